//! Calls of other nodes, with the replies on a channel.

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use quell_transport::peer::{Client, ClientSettings, Done, Endpoint, PoolKey, Role};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::encode;
use quell_wire::job::{REPLY_BYTES_MAX, Request, TEXT_BYTES_MAX, shortened};

/// The time without a connection after which a call fails. The port of a process that has ended
/// refuses connections, so `OtherNode::pause_after` then finds at once whether the process exists.
const UNREACHABLE_AFTER: Duration = Duration::from_millis(300);
/// The pause before a call that found no connection is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// The interval between two checks whether a reply is still needed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time limit of the `Goodbye` frame.
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

    /// Sends a request, and passes the result to `done` exactly once, on another thread, which
    /// `done` must not block.
    pub fn call_then(&self, request: &Request<'_>, reply_bytes_max: usize, limit: Duration, done: Done) {
        self.client.call(encode(request), reply_bytes_max as u32, Instant::now() + limit, done);
    }

    /// Sends a request and waits for the reply, at most for `limit`. The request is repeated as
    /// long as there is no connection and a process listens at the address, so it can be executed
    /// twice. A node that joins twice serves the children of both of its positions in the tree.
    ///
    /// # Errors
    /// The errors of the last call; `Interrupted` as soon as `is_needed` returns `false`.
    pub fn ask(
        &self,
        request: &Request<'_>,
        limit: Duration,
        is_needed: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>> {
        let until = Instant::now() + limit;
        loop {
            match self.ask_once(request, until.saturating_duration_since(Instant::now()), is_needed) {
                Ok(bytes) => return Ok(bytes),
                Err(error) => self.pause_after(error, until, is_needed)?,
            }
        }
    }

    /// Pauses after a call that has failed, if it is to be repeated: a connection that is missing
    /// does not mean that the process has ended.
    ///
    /// # Errors
    /// `error` if the call is not to be repeated; `Interrupted` if `is_needed` returns `false`.
    pub fn pause_after(&self, error: Error, until: Instant, is_needed: &dyn Fn() -> bool) -> Result<()> {
        if error.kind != ErrorKind::Unavailable {
            return Err(error);
        }
        if !is_needed() {
            return Err(self.interrupted());
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || OtherNode::try_address(self.address, left).is_err() {
            return Err(error);
        }
        std::thread::sleep(RETRY_PAUSE);
        Ok(())
    }

    fn interrupted(&self) -> Error {
        Error::new(ErrorKind::Interrupted, "call", self.address.to_string())
    }

    fn ask_once(
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
                Err(RecvTimeoutError::Timeout) => return Err(self.interrupted()),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(ErrorKind::Unavailable, "call", self.address.to_string()));
                }
            }
        }
    }

    /// Connects to the address, and closes the connection. It waits at most for `limit`.
    ///
    /// # Errors
    /// The errors of connect(2): `ConnectionRefused` if no process listens at the address.
    pub fn try_address(address: SocketAddr, limit: Duration) -> std::io::Result<()> {
        TcpStream::connect_timeout(&address, limit).map(drop)
    }

    /// Sends a `Goodbye` frame, and closes the connection.
    pub fn leave(&self) {
        self.client.stop(GOODBYE_LIMIT);
    }
}

/// Returns a text of another node for a message: shortened, and without control characters.
pub fn printable(text: &str) -> String {
    let shown = |character: char| if character.is_control() { '?' } else { character };
    shortened(text, TEXT_BYTES_MAX).chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_other_nodes_are_printed_without_control_characters() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a?[2Jb?");
        assert_eq!(printable(&"x".repeat(TEXT_BYTES_MAX + 1)).len(), TEXT_BYTES_MAX);
    }
}
