//! The environment of a member, which is passed to it: storage, the other members, the clients, and
//! the clock.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use quell_kv::KeyValue;
use quell_vfs::Result;
use quell_wire::pool::{DirectCounters, MemberId, NetworkCounters, Stamp};

use crate::chunks::Chunks;

/// The other members of the pool.
pub trait Peers {
    /// Sends a request and returns the reply of the member, which has at most `reply_bytes_max`
    /// bytes. A request that `is_repeatable` may be sent several times, because a repetition has no
    /// other effect. Errors: `Unavailable` and `TimedOut` if there is no reply; in this case it is
    /// not known whether the member has performed the request.
    fn call(
        &self,
        to: MemberId,
        request: Vec<u8>,
        reply_bytes_max: u32,
        is_repeatable: bool,
    ) -> LocalBoxFuture<'static, Result<Vec<u8>>>;

    /// Returns the counters of the connections to the other members, if they are counted.
    fn traffic(&self) -> NetworkCounters {
        NetworkCounters::default()
    }
}

/// The clients of the node.
pub trait Clients {
    /// Invalidates the cached directories of the clients. A client that begins to resolve a path
    /// after this call uses no earlier result.
    fn forget_dirs(&self);

    /// Returns the counters of the clients.
    fn counts(&self) -> ClientCounts;
}

/// The counters of the clients of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientCounts {
    /// The current number of connections of clients.
    pub connections: u64,
    /// The accesses of clients to chunks without requests, including clients that have ended. No
    /// number ever decreases, even if a client writes wrong numbers to the shared memory.
    pub direct: DirectCounters,
}

/// The clock of the node.
pub trait Clock {
    /// Returns the time of day.
    fn now(&self) -> Stamp;

    /// Returns the time since an arbitrary event before the start of the member. It never
    /// decreases.
    fn monotonic(&self) -> Duration;
}

/// The storage, connections and clock of one member.
pub struct Environment {
    /// The name space and the attributes.
    pub store: Arc<dyn KeyValue>,
    /// The chunks.
    pub chunks: Arc<dyn Chunks>,
    /// The other members.
    pub peers: Rc<dyn Peers>,
    /// The clients of the node.
    pub clients: Rc<dyn Clients>,
    /// The largest length of the inline data of a file, in bytes.
    pub inline_bytes_max: usize,
    /// A number that members share if and only if they run on one machine.
    pub machine: u64,
    /// Whether the pool has copies, so that requests are sent again to the daemon that runs a
    /// member after a failure.
    pub has_copies: bool,
    /// The clock.
    pub clock: Rc<dyn Clock>,
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment").finish_non_exhaustive()
    }
}
