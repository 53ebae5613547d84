//! The commands to the keeper of a running pool, and its answers: lines of JSON on a Unix socket.

use quell_wire::pool::DaemonId;
use serde::{Deserialize, Serialize};

use crate::pools::new_pool::NewDaemon;

/// A command to the keeper of a pool.
#[derive(Debug, Serialize, Deserialize)]
pub enum KeeperCommand {
    /// Starts these daemons, and moves members and backups to them.
    Expand {
        /// The daemons.
        daemons: Vec<NewDaemon>,
        /// The time limit of the start of the daemons, in milliseconds.
        timeout_ms: u64,
    },
    /// Moves members and backups away from these daemons, and ends them.
    Shrink(Vec<DaemonId>),
    /// Starts a daemon for each failed daemon, and moves members and backups to it.
    Repair {
        /// The time limit of the start of the daemons, in milliseconds.
        timeout_ms: u64,
    },
    /// Ends the daemons and the keeper.
    End,
}

/// An answer of the keeper. The last one to a command is not `Progress`.
#[derive(Debug, Serialize, Deserialize)]
pub enum KeeperAnswer {
    /// The state of the command.
    Progress(CommandProgress),
    /// The command has ended.
    Done,
    /// The command has failed. Its earlier changes remain.
    Failed {
        /// The exit code.
        code: u8,
        /// The reason.
        message: String,
    },
}

/// The state of a command to the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandProgress {
    /// Daemons are being started.
    Starting,
    /// This number of members and backups was moved, of `total`.
    Moving {
        /// The number that was moved.
        moved: usize,
        /// The number that is to be moved in all.
        total: usize,
    },
    /// Daemons are being ended.
    Ending,
}
