//! The requests of members to other members, and the tasks of the thread with the backups.

use std::sync::{Arc, mpsc};
use std::time::Instant;

use futures_channel::oneshot;
use quell_transport::local::Waker;
use quell_transport::peer::Reply;
use quell_vfs::{Error, Result};
use quell_wire::pool::{self, MemberId};
use quell_wire::{Failure, encode};

use crate::storage::Storage;

/// The receiver of the reply to a request.
pub enum Replier {
    /// Another daemon.
    Daemon(Reply),
    /// A member of this daemon. `Waker` wakes its thread.
    Member(oneshot::Sender<Result<Vec<u8>>>, Waker),
}

impl Replier {
    /// Sends the reply.
    pub fn send(self, reply: Vec<u8>) {
        match self {
            Replier::Daemon(replier) => replier.send(reply),
            Replier::Member(sender, waker) => {
                // The member may have ended.
                let _ = sender.send(Ok(reply));
                waker.wake();
            }
        }
    }
}

/// A request of a member to another one, or a message for a backup.
pub struct PeerRequest {
    /// Shared with the member of this daemon that sent the request and may repeat it.
    pub bytes: Arc<Vec<u8>>,
    pub reply: Replier,
    pub deadline: Instant,
}

/// A task of the thread with the backups.
pub enum Job {
    /// Changes of a member.
    Message(PeerRequest),
    /// Removes the backups of all members but these, and begins streams of the configuration of
    /// this number.
    Keep(Vec<MemberId>, u64),
    /// Gives up the backup of a member, which this daemon is to run, if it is complete.
    Take(MemberId, mpsc::Sender<Option<Storage>>),
    /// Ends the thread.
    End,
}

/// Returns the encoded reply to a request that has failed.
pub fn failure(error: Error) -> Vec<u8> {
    encode(&Err::<pool::Reply<'_>, Failure>(Failure::from(error)))
}
