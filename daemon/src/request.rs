//! The requests of other daemons, and the tasks of the thread with the backups.

use std::sync::mpsc;
use std::time::Instant;

use quell_transport::peer::Reply;
use quell_vfs::Error;
use quell_wire::pool::{self, MemberId};
use quell_wire::{Failure, encode};

use crate::storage::Storage;

/// A request of another daemon.
pub struct PeerRequest {
    pub bytes: Vec<u8>,
    pub reply: Reply,
    pub deadline: Instant,
}

/// A task of the thread with the backups.
pub enum Job {
    /// Changes of a member.
    Message(PeerRequest),
    /// Removes the backups of all members but these.
    Keep(Vec<MemberId>),
    /// Gives up the backup of a member, which this daemon is to run, if it is complete.
    Take(MemberId, mpsc::Sender<Option<Storage>>),
    /// Ends the thread.
    End,
}

/// Returns the encoded reply to a request that has failed.
pub fn failure(error: Error) -> Vec<u8> {
    encode(&Err::<pool::Reply<'_>, Failure>(Failure::from(error)))
}
