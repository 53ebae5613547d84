//! The events for the main thread of a daemon.

use quell_wire::pool::{DaemonId, MemberId};

/// An event for the main thread.
pub enum Event {
    /// A line of standard input.
    Line(std::io::Result<String>),
    /// Standard input has ended.
    InputEnded,
    /// The thread of a member has ended.
    Ended(MemberId),
    /// The number of clients that are connected. If it is 0, others are refused from now on.
    Clients(u64),
    /// A backup of a member of this daemon is complete or has failed.
    Backup { member: MemberId, backup: DaemonId, is_complete: bool },
}
