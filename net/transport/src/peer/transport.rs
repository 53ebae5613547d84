//! The interface of the connections between daemons. `PeerNetwork` implements it with TCP; another
//! implementation can use another network. tests/peer/contract.rs tests the promises of all of
//! them.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_vfs::Result;

use super::settings::MemberId;
use crate::local::Reactor;

/// The function that receives the result of a call.
pub type Done = Box<dyn FnOnce(Result<Vec<u8>>) + Send>;

/// The connections of one member to all others. They are authenticated: only members of the pool
/// can send requests, and no other process can change one. Requests of other members go to the
/// [`Handler`](super::Handler) with which an implementation is started.
pub trait Transport: fmt::Debug + Send + Sync {
    /// Returns the address that the member listens on.
    fn address(&self) -> SocketAddr;

    /// Sets the other members and their addresses; the own number is ignored. A member that is
    /// no longer listed is disconnected, and calls to it fail with `Unavailable`. An address that
    /// has changed is used for the next connection.
    ///
    /// Fails with the error of the system, for example if it provides no random numbers.
    fn set_members(&self, members: &HashMap<MemberId, SocketAddr>) -> Result<()>;

    /// Sends a request to another member, and passes the result to `done` exactly once: on a thread
    /// of the connections, or on the calling thread if the call fails at once. `done` must not
    /// block. The request is executed at most once. No order between requests is promised. The
    /// request is shared, because a caller that may send it again keeps it.
    ///
    /// The request has at most [`PAYLOAD_BYTES_MAX`](super::PAYLOAD_BYTES_MAX) bytes, and so has
    /// `reply_bytes_max`, the largest reply: it counts for the memory that the other member
    /// reserves, so it should not be larger than necessary.
    ///
    /// Errors: `TimedOut` at the deadline; `Unavailable` if the member has no connection, is
    /// stopping, was restarted or is not listed, or if its handler gave no reply;
    /// `PermissionDenied` if the member has no connection because it has another key; `Busy` if too
    /// many calls wait; `InvalidInput` for sizes out of bounds, and for a reply that is larger than
    /// `reply_bytes_max`. After an error for which [`was_not_executed`](super::was_not_executed) is
    /// false, the request may have been executed.
    fn call(&self, to: MemberId, request: Arc<Vec<u8>>, reply_bytes_max: u32, deadline: Instant, done: Done);

    /// Begins to collect the requests and replies of the calling thread, as long as the result
    /// exists: [`send`](CollectedSends::send) must follow them. Without a collection, a thread of
    /// the connections is woken for each of them, and writes it. A thread has at most one
    /// collection.
    fn collect(&self) -> Box<dyn CollectedSends>;

    /// Lets the calling thread serve the connections while it waits for the events of a server,
    /// whose descriptor is passed. Handlers and the receivers of results then run on this thread.
    /// Returns `None` if this is not possible, or has no use yet, because there are no other
    /// members.
    fn reactor(&self, events: OwnedFd) -> Result<Option<Box<dyn Reactor>>> {
        drop(events);
        Ok(None)
    }

    /// Returns the bytes that were exchanged with all members, also with those that are no longer
    /// listed. The numbers never decrease.
    fn traffic(&self) -> Traffic;

    /// Refuses new connections and requests, waits at most `limit` for the answers to the requests
    /// that were begun, whose handlers can call other members meanwhile, and then refuses calls and
    /// closes all connections. Calls without a reply fail with `Unavailable`. A second call does
    /// nothing.
    ///
    /// It must not be called by a handler or by the receiver of a result.
    fn stop(&self, limit: Duration);
}

/// The bytes that were exchanged with other members, with all that the implementation adds to
/// requests and replies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that were sent.
    pub sent_bytes: u64,
    /// Bytes that were received.
    pub received_bytes: u64,
    /// Bytes that the compression of sent data has saved.
    pub sent_saved_bytes: u64,
    /// Bytes that the compression of received data has saved.
    pub received_saved_bytes: u64,
}

/// The collection of the requests and replies of a thread. The threads of the connections
/// send the rest after its end.
pub trait CollectedSends: fmt::Debug {
    /// Sends the collected requests and replies, as far as this is possible at once; the threads of
    /// the connections send the rest. Does not wait.
    fn send(&self);
}
