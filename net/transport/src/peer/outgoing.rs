//! The calls of this member to one other member: their order, credit, deadlines and repetition. A
//! state machine without I/O, clock or lock; docs/formats/peer-protocol.md has its rules.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use quell_vfs::Result;

use super::frame::{Fields, FrameKind, Violation, encode_ids};
use super::transport::Done;

/// A frame to send.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub fields: Fields,
    pub payload: Arc<Vec<u8>>,
}

impl Frame {
    pub fn bare(kind: FrameKind, id: u64) -> Frame {
        Frame { fields: Fields::new(kind, id), payload: Arc::default() }
    }

    pub fn with_ids(kind: FrameKind, ids: &[u64]) -> Frame {
        Frame { fields: Fields::new(kind, 0), payload: Arc::new(encode_ids(ids)) }
    }
}

/// Requests, and bytes of requests and of the replies that they allow, that a member holds for
/// another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Credit {
    pub requests: usize,
    pub bytes: u64,
}

struct Call {
    request: Arc<Vec<u8>>,
    reply_bytes_max: u32,
    deadline: Instant,
    is_sent: bool,
    /// `None` after the call has ended without a reply. The credit is in use until the reply comes.
    done: Option<Done>,
    cost: u64,
}

/// A call that ends without a reply.
pub(super) struct Ended {
    pub done: Done,
    /// Whether the request was sent, so that it may have been executed.
    pub is_sent: bool,
}

impl fmt::Debug for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ended").field("is_sent", &self.is_sent).finish_non_exhaustive()
    }
}

/// The calls to one member.
pub(super) struct Outgoing {
    next_id: u64,
    calls: HashMap<u64, Call>,
    /// Calls that were not sent yet. Calls that have ended meanwhile are not in `calls`.
    queue: VecDeque<u64>,
    /// Requests to send again on this connection.
    repeated: VecDeque<u64>,
    cancels: VecDeque<u64>,
    /// Replies to acknowledge.
    received: Vec<u64>,
    received_bytes: u64,
    deadlines: BTreeSet<(Instant, u64)>,
    used: Credit,
    limit: Credit,
    queued: usize,
    queued_bytes: usize,
    their_session: Option<u64>,
    is_connected: bool,
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing")
            .field("used", &self.used)
            .field("queued", &self.queued)
            .finish_non_exhaustive()
    }
}

impl Outgoing {
    pub fn new() -> Outgoing {
        let none = Credit { requests: 0, bytes: 0 };
        Outgoing {
            next_id: 1,
            calls: HashMap::new(),
            queue: VecDeque::new(),
            repeated: VecDeque::new(),
            cancels: VecDeque::new(),
            received: Vec::new(),
            received_bytes: 0,
            deadlines: BTreeSet::new(),
            used: none,
            limit: none,
            queued: 0,
            queued_bytes: 0,
            their_session: None,
            is_connected: false,
        }
    }

    /// Returns the number of calls that wait to be sent, and the bytes of their requests.
    pub fn queued(&self) -> (usize, usize) {
        (self.queued, self.queued_bytes)
    }

    /// Returns the number of requests that were sent and have no reply yet.
    pub fn in_flight(&self) -> usize {
        self.used.requests
    }

    /// Adds a call.
    pub fn call(&mut self, request: Arc<Vec<u8>>, reply_bytes_max: u32, deadline: Instant, done: Done) {
        let id = self.next_id;
        self.next_id += 1;
        self.queued += 1;
        self.queued_bytes += request.len();
        let cost = request.len() as u64 + u64::from(reply_bytes_max);
        let call = Call { request, reply_bytes_max, deadline, is_sent: false, done: Some(done), cost };
        self.calls.insert(id, call);
        self.queue.push_back(id);
        self.deadlines.insert((deadline, id));
    }

    /// Returns the earliest deadline of a call.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Ends the calls whose deadline has passed.
    pub fn expire(&mut self, now: Instant) -> Vec<Ended> {
        let mut ended = Vec::new();
        while let Some((deadline, id)) =
            self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now)
        {
            self.deadlines.remove(&(deadline, id));
            ended.extend(self.end(id));
        }
        ended
    }

    /// Ends all calls.
    pub fn end_all(&mut self) -> Vec<Ended> {
        self.deadlines.clear();
        let mut ids: Vec<u64> = self.calls.keys().copied().collect();
        ids.sort_unstable();
        let ended = ids.into_iter().filter_map(|id| self.end(id)).collect();
        self.queue.clear();
        ended
    }

    fn end(&mut self, id: u64) -> Option<Ended> {
        let call = self.calls.get_mut(&id)?;
        let done = call.done.take()?;
        let is_sent = call.is_sent;
        if is_sent {
            call.request = Arc::default();
            if self.is_connected {
                self.cancels.push_back(id);
            }
        } else {
            self.queued -= 1;
            self.queued_bytes -= call.request.len();
            self.calls.remove(&id);
        }
        Some(Ended { done, is_sent })
    }

    /// Takes a reply, and returns the function that waits for it, unless the call has ended.
    pub fn reply(&mut self, id: u64, reply_bytes: usize) -> Result<Option<Done>, Violation> {
        let is_sent = |call: &&Call| call.is_sent;
        let Some(call) = self.calls.get(&id).filter(is_sent) else {
            return Err(Violation("a reply to no request"));
        };
        if reply_bytes > call.reply_bytes_max as usize {
            return Err(Violation("a reply is larger than the request allows"));
        }
        let call = self.calls.remove(&id).expect("it was found");
        self.deadlines.remove(&(call.deadline, id));
        self.used.requests -= 1;
        self.used.bytes -= call.cost;
        self.received.push(id);
        self.received_bytes += call.cost;
        Ok(call.done)
    }

    /// Notes that the connection is lost.
    pub fn disconnected(&mut self) {
        self.is_connected = false;
        self.repeated.clear();
        self.cancels.clear();
        self.received.clear();
        self.received_bytes = 0;
    }

    /// Takes the other member's statement of a handshake. If its session is another one than
    /// before, the calls whose requests were sent end.
    pub fn meet(&mut self, their_session: u64, limit: Credit) -> Vec<Ended> {
        self.limit = limit;
        if self.their_session.replace(their_session) == Some(their_session) {
            return Vec::new();
        }
        self.end_sent()
    }

    /// Ends the calls whose requests were sent, because the other member will not answer them.
    pub fn forget_session(&mut self) -> Vec<Ended> {
        self.their_session = None;
        self.end_sent()
    }

    fn end_sent(&mut self) -> Vec<Ended> {
        let calls = self.sent().into_iter().map(|id| (id, self.calls.remove(&id).expect("it was listed")));
        let calls: Vec<(u64, Call)> = calls.collect();
        self.used = Credit { requests: 0, bytes: 0 };
        let mut ended = Vec::new();
        for (id, call) in calls {
            self.deadlines.remove(&(call.deadline, id));
            ended.extend(call.done.map(|done| Ended { done, is_sent: true }));
        }
        ended
    }

    /// Returns the requests without a reply, in order: the payload of `resume`.
    pub fn sent(&self) -> Vec<u64> {
        let sent = self.calls.iter().filter(|(_, call)| call.is_sent);
        let mut sent: Vec<u64> = sent.map(|(id, _)| *id).collect();
        sent.sort_unstable();
        sent
    }

    /// Notes that a connection is established, after `meet`.
    pub fn connected(&mut self) {
        self.is_connected = true;
        for id in self.sent() {
            match self.calls[&id].done {
                Some(_) => self.repeated.push_back(id),
                None => self.cancels.push_back(id),
            }
        }
    }

    fn is_admitted(&self, cost: u64) -> bool {
        self.used.requests < self.limit.requests && self.used.bytes + cost <= self.limit.bytes
    }

    /// Returns whether `take` would return a frame.
    pub fn has_output(&mut self) -> bool {
        if !self.is_connected {
            return false;
        }
        while let Some(id) = self.queue.front() {
            match self.calls.get(id) {
                Some(call) => {
                    let cost = call.cost;
                    if self.is_admitted(cost) {
                        return true;
                    }
                    break;
                }
                None => drop(self.queue.pop_front()),
            }
        }
        // Other acknowledgements wait for the next frame.
        let is_much_received =
            self.received.len() * 4 >= self.limit.requests || self.received_bytes >= self.limit.bytes / 4;
        !self.repeated.is_empty()
            || !self.cancels.is_empty()
            || (is_much_received && !self.received.is_empty())
    }

    /// Returns the acknowledgement of all replies that were received since the last one.
    pub fn take_acknowledgement(&mut self) -> Option<Frame> {
        if !self.is_connected || self.received.is_empty() {
            return None;
        }
        self.received_bytes = 0;
        let received = std::mem::take(&mut self.received);
        Some(Frame::with_ids(FrameKind::Acknowledge, &received))
    }

    /// Adds frames to send, until they have about `bytes_max` bytes.
    pub fn take(&mut self, now: Instant, bytes_max: usize, frames: &mut Vec<Frame>) {
        if !self.has_output() {
            return;
        }
        frames.extend(self.take_acknowledgement());
        // A reply that has arrived meanwhile is acknowledged instead.
        let cancels = self.cancels.drain(..).filter(|id| self.calls.contains_key(id));
        frames.extend(cancels.map(|id| Frame::bare(FrameKind::Cancel, id)));
        let mut bytes = 0;
        while bytes < bytes_max
            && let Some(id) = self.repeated.pop_front()
        {
            let call = self.calls.get(&id).filter(|call| call.done.is_some());
            let frame = call.map(|call| request_frame(id, call, now));
            bytes += frame.as_ref().map_or(0, |frame| frame.payload.len());
            frames.extend(frame);
        }
        while bytes < bytes_max
            && let Some(id) = self.queue.front().copied()
        {
            let Some(cost) = self.calls.get(&id).map(|call| call.cost) else {
                self.queue.pop_front();
                continue;
            };
            if !self.is_admitted(cost) {
                break;
            }
            self.queue.pop_front();
            self.used.requests += 1;
            self.used.bytes += cost;
            self.queued -= 1;
            let call = self.calls.get_mut(&id).expect("it was found");
            call.is_sent = true;
            self.queued_bytes -= call.request.len();
            bytes += call.request.len();
            frames.push(request_frame(id, call, now));
        }
    }
}

fn request_frame(id: u64, call: &Call, now: Instant) -> Frame {
    let left = call.deadline.saturating_duration_since(now).as_nanos().div_ceil(1_000_000);
    let fields = Fields {
        deadline_ms: u32::try_from(left).unwrap_or(u32::MAX),
        reply_bytes_max: call.reply_bytes_max,
        ..Fields::new(FrameKind::Request, id)
    };
    Frame { fields, payload: call.request.clone() }
}
