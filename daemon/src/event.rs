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
    /// A backup of a member of this daemon is complete or has failed.
    Backup { member: MemberId, backup: DaemonId, is_complete: bool },
}
