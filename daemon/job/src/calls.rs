//! Calls of other nodes, with the replies on a channel.

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use quell_transport::peer::{Client, ClientSettings, Endpoint, PoolKey, Role};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::encode;
use quell_wire::job::{REPLY_BYTES_MAX, Request};

/// The time without a connection after which calls fail. The port of a process that has ended
/// refuses connections, so `OtherNode::is_listening` then finds at once whether the process exists.
const UNREACHABLE_AFTER: Duration = Duration::from_millis(300);
/// The interval between two checks whether a reply is still needed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time that a goodbye may take.
const GOODBYE_LIMIT: Duration = Duration::from_millis(200);

/// Another node of the job.
pub struct OtherNode {
    client: Client,
    pub address: SocketAddr,
}

impl OtherNode {
    /// Starts to connect.
    pub fn connect(address: SocketAddr, key: &PoolKey) -> Result<OtherNode> {
        let settings = ClientSettings {
            unreachable_after: UNREACHABLE_AFTER,
            ..ClientSettings::new(Role::Job, Endpoint::Tcp(address), key.clone())
        };
        Ok(OtherNode { client: Client::start(settings)?, address })
    }

    /// Sends a request. The result is sent to `results` with `tag`.
    pub fn call<T: Send + 'static>(
        &self,
        request: &Request<'_>,
        limit: Duration,
        tag: T,
        results: &Sender<(T, Result<Vec<u8>>)>,
    ) {
        let results = results.clone();
        let done = Box::new(move |result| {
            // The receiver may have ended.
            let _ = results.send((tag, result));
        });
        self.client.call(encode(request), REPLY_BYTES_MAX as u32, Instant::now() + limit, done);
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// Those of the call; `Interrupted` as soon as `is_needed` returns `false`.
    pub fn ask(
        &self,
        request: &Request<'_>,
        limit: Duration,
        is_needed: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>> {
        let (sender, receiver) = channel();
        self.call(request, limit, (), &sender);
        drop(sender);
        loop {
            match receiver.recv_timeout(POLL_INTERVAL) {
                Ok(((), result)) => return result,
                Err(RecvTimeoutError::Timeout) if is_needed() => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Error::new(ErrorKind::Interrupted, "call", self.address.to_string()));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(ErrorKind::Unavailable, "call", self.address.to_string()));
                }
            }
        }
    }

    /// Connects to the address, and closes the connection. It waits at most for `limit`.
    ///
    /// # Errors
    /// Those of connect(2): `ConnectionRefused` if no process listens at the address.
    pub fn try_address(address: SocketAddr, limit: Duration) -> std::io::Result<()> {
        TcpStream::connect_timeout(&address, limit).map(drop)
    }

    /// Returns whether a process accepts connections at the address. It waits at most for `limit`.
    pub fn is_listening(address: SocketAddr, limit: Duration) -> bool {
        OtherNode::try_address(address, limit).is_ok()
    }

    /// Says goodbye.
    pub fn leave(&self) {
        self.client.stop(GOODBYE_LIMIT);
    }
}
