//! The other members, as the service calls them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use quell_pool_service::Peers;
use quell_transport::local::Waker;
use quell_transport::peer::{self, PeerNetwork};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{MemberId, PoolSettings};

use crate::failure::Failure;

/// How long a member may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The connections to the other members.
pub struct Network {
    network: Rc<PeerNetwork>,
    /// Wakes the service thread when a reply has arrived.
    waker: Waker,
}

impl Network {
    /// Connects the members of a pool. `waker` wakes the thread of the service.
    pub fn new(network: Rc<PeerNetwork>, pool: &PoolSettings, waker: Waker) -> Result<Network, Failure> {
        let mut members = HashMap::new();
        for member in &pool.members {
            let refused =
                || Failure::wrong_input(format!("{} is not an address with a port", member.address));
            let address: SocketAddr = member.address.parse().map_err(|_| refused())?;
            members.insert(number(member.id), address);
        }
        network.set_members(&members)?;
        Ok(Network { network, waker })
    }
}

impl Peers for Network {
    fn call(
        &self,
        to: MemberId,
        request: Vec<u8>,
        reply_bytes_max: u32,
    ) -> LocalBoxFuture<'static, Result<Vec<u8>>> {
        let (sender, receiver) = oneshot::channel();
        let waker = self.waker.clone();
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        self.network.call(number(to), request, reply_bytes_max, deadline, move |reply| {
            // The service waits for the reply until it ends.
            let _ = sender.send(reply);
            waker.wake();
        });
        let ended = move |_| Err(Error::new(ErrorKind::Unavailable, "call member", to.0.to_string()));
        receiver.map(move |reply| reply.unwrap_or_else(ended)).boxed_local()
    }
}

/// Returns the number of a member in the connections.
pub fn number(member: MemberId) -> peer::MemberId {
    peer::MemberId(u64::from(member.0))
}
