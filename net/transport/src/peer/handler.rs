//! The interface of a service to the connections: requests of other members, and their replies.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::settings::MemberId;

/// A request of another member.
#[derive(Debug)]
pub struct Request {
    /// The member that sent it. A process with the pool's key can claim to be any member.
    pub from: MemberId,
    /// The bytes of the request, at most [`PAYLOAD_BYTES_MAX`](super::PAYLOAD_BYTES_MAX).
    pub bytes: Vec<u8>,
    /// The time at which the sender stops waiting, by the clock of this member.
    pub deadline: Instant,
    /// The largest reply that the sender accepts, in bytes.
    pub reply_bytes_max: usize,
}

/// Executes the requests of other members.
pub trait Handler: Send + Sync {
    /// Executes a request, or passes it to another thread, which answers later. It is called on a
    /// thread that serves connections, and must not block.
    fn handle(&self, request: Request, reply: Reply);
}

/// The receiver of answers, which an implementation of [`Transport`](super::Transport) has.
pub trait ReplySink: Send + Sync {
    /// Takes the reply to a request, with the numbers that were passed to [`Reply::new`]. `None`:
    /// the handler has ended without a reply. Called once for each request, on any thread.
    fn answer(&self, session: u64, id: u64, reply: Option<Vec<u8>>);
}

/// The obligation to answer one request, from any thread.
pub struct Reply {
    /// `None` after the answer.
    sink: Option<Arc<dyn ReplySink>>,
    session: u64,
    id: u64,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Reply {
    /// Returns the obligation to answer the request `id` of a session of its sender. The answer
    /// goes to `sink`.
    pub fn new(sink: Arc<dyn ReplySink>, session: u64, id: u64) -> Reply {
        Reply { sink: Some(sink), session, id }
    }

    /// Answers the request. Without a connection the reply is kept, and sent when the other member
    /// repeats the request. A reply that is larger than the request allows becomes an error at the
    /// sender.
    pub fn send(mut self, reply: Vec<u8>) {
        if let Some(sink) = self.sink.take() {
            sink.answer(self.session, self.id, Some(reply));
        }
    }
}

impl Drop for Reply {
    /// Tells the sender that there will be no reply, so that a handler that forgets one, or panics,
    /// does not hold the sender's credit for ever.
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            sink.answer(self.session, self.id, None);
        }
    }
}
