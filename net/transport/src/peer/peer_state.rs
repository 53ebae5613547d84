//! One other member: its calls, requests and connection under one lock, which is never held during
//! I/O or while a handler or the receiver of a result runs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use quell_vfs::{Error, ErrorKind, Result};
use tokio::sync::Notify;

use super::compression::COMPRESSED_BYTES_MIN;
use super::frame::{
    Fields, FrameKind, LENGTH_BYTES, LENGTH_MIN, PAYLOAD_BYTES_MAX, Status, Violation, decode_ids,
};
use super::gate::Gate;
use super::handler::{Handler, Reply, ReplySink, Request};
use super::handshake::{Hello, Refusal};
use super::incoming::{Incoming, RequestAction};
use super::link::{Link, Written};
use super::not_executed::not_executed;
use super::outgoing::{Credit, Ended, Frame, Outgoing};
use super::settings::{Compression, MemberId, SERVER, Settings};
use super::stream::Endpoint;
use super::transport::{CollectedSends, Done};

/// Bytes that are protected before they are written.
const BATCH_BYTES: usize = 256 << 10;

/// The counters of the connections to one member, since it was added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerCounters {
    /// Whether there is a connection.
    pub is_connected: bool,
    /// Connections that were established.
    pub connections: u64,
    /// Frames that were sent, without those of the handshake.
    pub frames_sent: u64,
    /// Frames that were received, without those of the handshake.
    pub frames_received: u64,
    /// Bytes of the frames that were sent.
    pub bytes_sent: u64,
    /// Bytes of the frames that were received.
    pub bytes_received: u64,
    /// Bytes that compression has saved in the frames that were sent.
    pub bytes_saved_sent: u64,
    /// Bytes that compression has saved in the frames that were received.
    pub bytes_saved_received: u64,
    /// Requests of the member that were passed to the handler.
    pub requests_executed: u64,
    /// Calls that wait for a connection or for credit.
    pub calls_queued: u64,
    /// Calls that wait for a reply, and those that have ended and whose reply is still expected.
    pub calls_in_flight: u64,
    /// Requests that the handler has not answered.
    pub requests_begun: u64,
}

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicU64,
    frames_sent: AtomicU64,
    frames_received: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    bytes_saved_sent: AtomicU64,
    bytes_saved_received: AtomicU64,
    requests_executed: AtomicU64,
}

thread_local! {
    /// The members to which this thread has sent requests or replies that are not written yet, if
    /// it collects them.
    static COLLECTED: RefCell<Option<BTreeMap<*const Peer, Arc<Peer>>>> = const { RefCell::new(None) };
}

/// The collection of the requests and replies of the calling thread.
#[derive(Debug)]
pub(super) struct CollectedPeers(PhantomData<*const ()>);

impl CollectedPeers {
    pub fn begin() -> CollectedPeers {
        COLLECTED.with_borrow_mut(|collected| *collected = Some(BTreeMap::new()));
        CollectedPeers(PhantomData)
    }
}

/// Calls a function whose requests and replies are not collected, although this thread collects
/// them otherwise.
pub(super) fn without_collection<T>(call: impl FnOnce() -> T) -> T {
    let collected = COLLECTED.with_borrow_mut(Option::take);
    let result = call();
    COLLECTED.with_borrow_mut(|present| *present = collected);
    result
}

impl CollectedSends for CollectedPeers {
    fn send(&self) {
        while let Some((_, peer)) =
            COLLECTED.with_borrow_mut(|collected| collected.as_mut().and_then(BTreeMap::pop_first))
        {
            let link = peer.state().link.clone();
            if let Some(link) = link {
                peer.flush(&link);
            }
        }
    }
}

impl Drop for CollectedPeers {
    /// Leaves the collected requests and replies to the threads of the connections.
    fn drop(&mut self) {
        let collected = COLLECTED.with_borrow_mut(Option::take).unwrap_or_default();
        for peer in collected.into_values() {
            let link = peer.state().link.clone();
            if let Some(link) = link {
                peer.wake(&link);
            }
        }
    }
}

#[derive(Debug)]
struct State {
    outgoing: Outgoing,
    incoming: Incoming,
    link: Option<Arc<Link>>,
    /// Frames that are sent before all others.
    first: Vec<Frame>,
    address: Endpoint,
    disconnected_at: Instant,
    refusal: Option<Refusal>,
    is_removed: bool,
    /// Whether the other side has sent a `Goodbye` frame.
    has_left: bool,
    /// When the task that ends calls looks at them next; `None` if it waits for `timer`.
    timer_at: Option<Instant>,
}

/// One other member.
pub(super) struct Peer {
    pub id: MemberId,
    /// The session of this member for the other one.
    pub session: u64,
    handler: Arc<dyn Handler>,
    /// Bounds the requests of all clients of a server.
    gate: Option<Arc<Gate>>,
    /// The other side, for messages.
    subject: String,
    limits: Limits,
    state: Mutex<State>,
    counts: Counts,
    /// Wakes the task that ends calls.
    pub timer: Notify,
    /// Wakes the task that connects.
    pub connector: Notify,
    is_stopping: AtomicBool,
    this: Weak<Peer>,
}

/// The settings that concern every call.
#[derive(Debug, Clone, Copy)]
struct Limits {
    held: Credit,
    calls_queued_max: usize,
    bytes_queued_max: usize,
    unreachable_after: Duration,
    /// The smallest payload that the task of the connection compresses.
    compressed_bytes_min: usize,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("id", &self.id).field("state", &self.state).finish_non_exhaustive()
    }
}

impl Peer {
    pub fn new(
        settings: &Settings,
        id: MemberId,
        session: u64,
        address: Endpoint,
        handler: Arc<dyn Handler>,
        gate: Option<Arc<Gate>>,
    ) -> Arc<Peer> {
        let held = Credit { requests: settings.requests_held_max as usize, bytes: settings.bytes_held_max };
        // All servers have the same number.
        let subject = if id == SERVER { address.to_string() } else { id.to_string() };
        let state = State {
            outgoing: Outgoing::new(),
            incoming: Incoming::new(held),
            link: None,
            first: Vec::new(),
            address,
            disconnected_at: Instant::now(),
            refusal: None,
            is_removed: false,
            has_left: false,
            timer_at: None,
        };
        let limits = Limits {
            held,
            calls_queued_max: settings.calls_queued_max,
            bytes_queued_max: settings.bytes_queued_max,
            unreachable_after: settings.unreachable_after,
            compressed_bytes_min: match settings.compression {
                Compression::None => usize::MAX,
                Compression::Lz4 | Compression::Zstd => COMPRESSED_BYTES_MIN,
            },
        };
        Arc::new_cyclic(|this| Peer {
            id,
            subject,
            session,
            handler,
            gate,
            limits,
            state: Mutex::new(state),
            counts: Counts::default(),
            timer: Notify::new(),
            connector: Notify::new(),
            is_stopping: AtomicBool::new(false),
            this: Weak::clone(this),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the statement of this member for a handshake.
    pub fn hello(&self, connection: u64) -> Hello {
        Hello {
            session: self.session,
            connection,
            requests_held_max: self.limits.held.requests as u32,
            bytes_held_max: self.limits.held.bytes,
        }
    }

    pub fn address(&self) -> Endpoint {
        self.state().address.clone()
    }

    pub fn set_address(&self, address: Endpoint) {
        let mut state = self.state();
        if state.address != address {
            state.address = address;
            drop(state);
            self.connector.notify_one();
        }
    }

    pub fn is_removed(&self) -> bool {
        self.state().is_removed
    }

    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Returns whether the other side has left: it has sent a `Goodbye` frame, or has had no
    /// connection for `limit`, and the handler has no request of it.
    pub fn is_gone(&self, limit: Duration) -> bool {
        let state = self.state();
        state.link.is_none()
            && state.incoming.begun() == 0
            && (state.has_left || state.disconnected_at.elapsed() >= limit)
    }

    /// Returns whether the handlers have as many requests as they may have.
    pub fn is_full(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.is_full())
    }

    /// Waits until the handler may have another request.
    pub async fn wait_for_turn(&self) {
        if let Some(gate) = &self.gate {
            gate.wait().await;
        }
    }

    pub fn counters(&self) -> PeerCounters {
        let state = self.state();
        let count = |value: &AtomicU64| value.load(Ordering::Relaxed);
        PeerCounters {
            is_connected: state.link.is_some(),
            connections: count(&self.counts.connections),
            frames_sent: count(&self.counts.frames_sent),
            frames_received: count(&self.counts.frames_received),
            bytes_sent: count(&self.counts.bytes_sent),
            bytes_received: count(&self.counts.bytes_received),
            bytes_saved_sent: count(&self.counts.bytes_saved_sent),
            bytes_saved_received: count(&self.counts.bytes_saved_received),
            requests_executed: count(&self.counts.requests_executed),
            calls_queued: state.outgoing.queued().0 as u64,
            calls_in_flight: state.outgoing.in_flight() as u64,
            requests_begun: state.incoming.begun() as u64,
        }
    }

    // Calls

    /// Sends a request, and passes the result to `done`.
    pub fn call(&self, request: Arc<Vec<u8>>, reply_bytes_max: u32, deadline: Instant, done: Done) {
        let bytes = request.len();
        if bytes > PAYLOAD_BYTES_MAX || reply_bytes_max as usize > PAYLOAD_BYTES_MAX {
            return done(Err(self.error(ErrorKind::InvalidInput, "a request or its reply is too large")));
        }
        let mut state = self.state();
        let (calls, queued_bytes) = state.outgoing.queued();
        let refused = if state.is_removed || self.is_stopping.load(Ordering::Relaxed) {
            Some(self.not_executed(ErrorKind::Unavailable, "the connections are closed"))
        } else if state.link.is_none() && state.disconnected_at.elapsed() > self.limits.unreachable_after {
            Some(self.unreachable(&state, false))
        } else if calls >= self.limits.calls_queued_max || queued_bytes + bytes > self.limits.bytes_queued_max
        {
            Some(self.not_executed(ErrorKind::Busy, "too many requests wait for the member"))
        } else {
            None
        };
        if let Some(refused) = refused {
            drop(state);
            return done(Err(refused));
        }
        state.outgoing.call(request, reply_bytes_max, deadline, done);
        let is_earliest = state.timer_at.is_none_or(|timer_at| deadline < timer_at);
        if is_earliest {
            state.timer_at = Some(deadline);
        }
        let link = state.link.clone();
        drop(state);
        if is_earliest {
            self.timer.notify_one();
        }
        if let Some(link) = link {
            self.announce(&link, bytes);
        }
    }

    fn error(&self, kind: ErrorKind, text: impl Into<String>) -> Error {
        Error { source: Some(text.into().into()), ..Error::new(kind, "call", self.subject.clone()) }
    }

    /// Returns the error of a request that was certainly not executed.
    fn not_executed(&self, kind: ErrorKind, text: impl Into<String>) -> Error {
        not_executed(kind, &self.subject, text)
    }

    /// Returns the error of a request that has ended without a reply.
    fn ended(&self, kind: ErrorKind, text: &str, is_sent: bool) -> Error {
        match is_sent {
            true => self.error(kind, format!("{text}; it is not known whether the request was executed")),
            false => self.not_executed(kind, text),
        }
    }

    fn unreachable(&self, state: &State, is_sent: bool) -> Error {
        match state.refusal {
            Some(refusal) => {
                let kind = match refusal {
                    Refusal::Proof => ErrorKind::PermissionDenied,
                    Refusal::Description => ErrorKind::Unsupported,
                    _ => ErrorKind::Unavailable,
                };
                self.ended(kind, &refusal.to_string(), is_sent)
            }
            None => self.ended(ErrorKind::Unavailable, "there is no connection", is_sent),
        }
    }

    /// Ends the calls whose deadline has passed, or all if the member is unreachable. Returns the
    /// time at which this is to be repeated, if there is a call.
    pub fn end_calls(&self, now: Instant) -> Option<Instant> {
        let mut state = self.state();
        let expired = state.outgoing.expire(now);
        let unreachable_at = state.disconnected_at + self.limits.unreachable_after;
        let is_unreachable = state.link.is_none() && unreachable_at <= now;
        let unreachable = if is_unreachable { state.outgoing.end_all() } else { Vec::new() };
        let errors: Vec<_> = unreachable
            .into_iter()
            .map(|ended| (self.unreachable(&state, ended.is_sent), ended.done))
            .collect();
        let mut next = state.outgoing.next_deadline();
        if state.link.is_none() && next.is_some() {
            next = next.min(Some(unreachable_at));
        }
        state.timer_at = next;
        let link = state.link.clone();
        drop(state);
        for ended in expired {
            let text = match ended.is_sent {
                true => "no reply before the deadline",
                false => "the request could not be sent before the deadline",
            };
            contain(|| (ended.done)(Err(self.ended(ErrorKind::TimedOut, text, ended.is_sent))));
        }
        for (error, done) in errors {
            contain(|| done(Err(error)));
        }
        if let Some(link) = link {
            self.wake(&link);
        }
        next
    }

    fn end_lost(&self, lost: Vec<Ended>, text: &str) {
        for ended in lost {
            contain(|| (ended.done)(Err(self.error(ErrorKind::Unavailable, text))));
        }
    }

    // Connections

    /// Takes the other member's statement, at the initiator. Returns the payload of `resume`.
    pub fn meet(&self, theirs: &Hello) -> Vec<u64> {
        let mut state = self.state();
        let lost = state.outgoing.meet(theirs.session, credit(theirs));
        let sent = state.outgoing.sent();
        drop(state);
        self.end_lost(lost, RESTARTED);
        sent
    }

    /// Installs a connection after the other member's `resume`. The responder has not sent its own
    /// yet.
    pub fn connected(
        &self,
        link: &Arc<Link>,
        theirs: &Hello,
        ids: &[u8],
        is_initiator: bool,
    ) -> Result<(), Violation> {
        let mut state = self.state();
        if state.is_removed {
            return Err(Violation("the member was removed"));
        }
        state.incoming.resume(theirs.session, theirs.connection, decode_ids(ids))?;
        state.first.clear();
        state.outgoing.disconnected();
        let lost = state.outgoing.meet(theirs.session, credit(theirs));
        if !is_initiator {
            let sent = state.outgoing.sent();
            state.first.push(Frame::with_ids(FrameKind::Resume, &sent));
        }
        state.outgoing.connected();
        state.refusal = None;
        state.has_left = false;
        if let Some(old) = state.link.replace(link.clone()) {
            old.close.notify_one();
        }
        drop(state);
        self.counts.connections.fetch_add(1, Ordering::Relaxed);
        self.end_lost(lost, RESTARTED);
        self.flush(link);
        Ok(())
    }

    /// Notes that a connection has ended, unless another one has replaced it.
    pub fn disconnected(&self, link: &Arc<Link>) {
        let mut state = self.state();
        if !state.is_current(link) {
            return;
        }
        state.disconnected();
        drop(state);
        self.timer.notify_one();
    }

    /// Notes why the other member, or this one, refused a connection.
    pub fn refused(&self, refusal: Option<Refusal>) {
        self.state().refusal = refusal;
    }

    // Frames

    /// Takes a frame of a connection.
    pub fn take_frame(
        self: &Arc<Peer>,
        link: &Arc<Link>,
        fields: Fields,
        payload: Vec<u8>,
        bytes: usize,
    ) -> Result<(), Violation> {
        self.counts.frames_received.fetch_add(1, Ordering::Relaxed);
        self.counts.bytes_received.fetch_add(bytes as u64, Ordering::Relaxed);
        if fields.expanded_bytes != 0 {
            let saved = LENGTH_BYTES + LENGTH_MIN + payload.len() - bytes;
            self.counts.bytes_saved_received.fetch_add(saved as u64, Ordering::Relaxed);
        }
        link.count_frame();
        let mut state = self.state();
        if !state.is_current(link) {
            return Err(Violation("the connection was replaced"));
        }
        match fields.kind {
            FrameKind::Request => {
                if state.incoming.request(&fields, payload.len())? == RequestAction::Ignore {
                    return Ok(());
                }
                let session = state.incoming.session();
                drop(state);
                self.counts.requests_executed.fetch_add(1, Ordering::Relaxed);
                let request = Request {
                    from: self.id,
                    bytes: payload,
                    deadline: Instant::now() + Duration::from_millis(fields.deadline_ms.into()),
                    reply_bytes_max: fields.reply_bytes_max as usize,
                };
                let reply = Reply::new(self.clone(), session, fields.id);
                if let Some(gate) = &self.gate {
                    gate.enter();
                }
                contain(|| self.handler.handle(request, reply));
            }
            FrameKind::Reply => {
                let done = state.outgoing.reply(fields.id, payload.len())?;
                drop(state);
                if let Some(done) = done {
                    contain(|| done(self.outcome(fields.status, payload)));
                }
            }
            FrameKind::Cancel => state.incoming.cancel(fields.id)?,
            FrameKind::Acknowledge => state.incoming.acknowledge(decode_ids(&payload))?,
            FrameKind::Ping => {
                // A member that sends pings and reads no answers needs no second one.
                if !state.first.iter().any(|frame| frame.fields.kind == FrameKind::Pong) {
                    state.first.push(Frame::bare(FrameKind::Pong, 0));
                }
            }
            FrameKind::Pong => {}
            FrameKind::Goodbye => {
                let lost = state.outgoing.forget_session();
                state.has_left = true;
                // No later request is sent on this connection, where it would be lost.
                state.disconnected();
                drop(state);
                self.timer.notify_one();
                for ended in lost {
                    let text = "the member has stopped; the request was not executed";
                    contain(|| (ended.done)(Err(self.not_executed(ErrorKind::Unavailable, text))));
                }
                return Err(Violation("the member has stopped"));
            }
            FrameKind::Confirm | FrameKind::Resume => {
                return Err(Violation("a frame of the handshake after the handshake"));
            }
        }
        Ok(())
    }

    fn outcome(&self, status: Status, reply: Vec<u8>) -> Result<Vec<u8>> {
        let (kind, text) = match status {
            Status::Done => return Ok(reply),
            Status::Cancelled => (ErrorKind::TimedOut, "the request was cancelled"),
            Status::Stopping => {
                let text = "the member is stopping; the request was not executed";
                return Err(self.not_executed(ErrorKind::Unavailable, text));
            }
            Status::Unanswered => (
                ErrorKind::Unavailable,
                "the member gave no reply; it is not known whether the request was executed",
            ),
            Status::TooLarge => (ErrorKind::InvalidInput, "the reply is larger than the request allows"),
        };
        Err(self.error(kind, text))
    }

    /// Sends a ping, and the acknowledgements that wait for other frames.
    pub fn ping(&self, link: &Arc<Link>, is_silent: bool) {
        let mut state = self.state();
        if !state.is_current(link) {
            return;
        }
        let acknowledgement = state.outgoing.take_acknowledgement();
        state.first.extend(acknowledgement);
        if is_silent && !state.first.iter().any(|frame| frame.fields.kind == FrameKind::Ping) {
            state.first.push(Frame::bare(FrameKind::Ping, 0));
        }
        drop(state);
        self.flush(link);
    }

    /// Has a connection write its frames: by its own task, or by the task that reads.
    fn wake(&self, link: &Link) {
        if !link.is_reading.load(Ordering::SeqCst) {
            link.wake.notify_one();
        }
    }

    /// Has a request or reply with this number of bytes written: by the task of the connection, or
    /// by this thread if it collects them. Compression takes longer than to wake the task.
    fn announce(&self, link: &Link, bytes: usize) {
        if bytes >= self.limits.compressed_bytes_min {
            return self.wake(link);
        }
        let is_collected = COLLECTED.with_borrow_mut(|collected| match (collected, self.this.upgrade()) {
            (Some(collected), Some(peer)) => {
                collected.insert(Arc::as_ptr(&peer), peer);
                true
            }
            _ => false,
        });
        if !is_collected {
            self.wake(link);
        }
    }

    /// Writes frames until there are no more or the socket is full. If another thread does this
    /// now, it writes the frames of this one also.
    pub fn flush(&self, link: &Arc<Link>) {
        loop {
            let mut writer = match link.writer.try_lock() {
                Ok(writer) => writer,
                Err(TryLockError::WouldBlock) => return,
                // A panic can have left a frame incomplete.
                Err(TryLockError::Poisoned(_)) => return link.close.notify_one(),
            };
            let mut frames = Vec::new();
            loop {
                if writer.pending() < BATCH_BYTES {
                    self.take_output(link, BATCH_BYTES, &mut frames);
                    self.counts.frames_sent.fetch_add(frames.len() as u64, Ordering::Relaxed);
                    let saved = writer.add(&frames);
                    self.counts.bytes_saved_sent.fetch_add(saved as u64, Ordering::Relaxed);
                    frames.clear();
                }
                if writer.pending() == 0 {
                    break;
                }
                match writer.write(link) {
                    Ok((written, bytes)) => {
                        self.counts.bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
                        if written == Written::SocketFull {
                            drop(writer);
                            link.is_full.store(true, Ordering::SeqCst);
                            return link.wake.notify_one();
                        }
                    }
                    Err(_) => return link.close.notify_one(),
                }
            }
            drop(writer);
            // A frame that was added before the lock was released has found it locked.
            if !self.has_output(link) {
                return;
            }
        }
    }

    fn take_output(&self, link: &Arc<Link>, bytes_max: usize, frames: &mut Vec<Frame>) {
        let mut state = self.state();
        if !state.is_current(link) {
            return;
        }
        frames.append(&mut state.first);
        state.incoming.take(bytes_max, frames);
        state.outgoing.take(Instant::now(), bytes_max, frames);
    }

    fn has_output(&self, link: &Arc<Link>) -> bool {
        let mut state = self.state();
        state.is_current(link)
            && (!state.first.is_empty() || state.incoming.has_output() || state.outgoing.has_output())
    }

    // End

    /// Refuses new requests from now on.
    pub fn refuse_requests(&self) {
        self.state().incoming.stop();
    }

    /// Refuses new requests and calls from now on.
    pub fn begin_stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.refuse_requests();
    }

    /// Returns whether all requests are answered and all bytes are written.
    pub fn is_drained(&self) -> bool {
        let mut state = self.state();
        let Some(link) = state.link.clone() else { return state.incoming.begun() == 0 };
        let has_output =
            !state.first.is_empty() || state.incoming.has_output() || state.outgoing.has_output();
        let is_idle = state.incoming.begun() == 0 && !has_output;
        drop(state);
        is_idle && link.writer.try_lock().is_ok_and(|writer| writer.pending() == 0)
    }

    /// Returns whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.state().link.is_some()
    }

    /// Sends the last frame of this member. Returns false, and does nothing, while the answer to a
    /// request is not sent, because the frame tells the other side that its other requests were not
    /// executed.
    pub fn say_goodbye(&self) -> bool {
        let mut state = self.state();
        if state.incoming.begun() > 0 || state.incoming.has_output() {
            return false;
        }
        let Some(link) = state.link.clone() else { return true };
        if state.incoming.has_unsent_answer() {
            return false;
        }
        state.first.push(Frame::bare(FrameKind::Goodbye, 0));
        drop(state);
        self.flush(&link);
        true
    }

    /// Closes the connection, and ends all calls.
    pub fn remove(&self) {
        let mut state = self.state();
        state.is_removed = true;
        let ended = state.outgoing.end_all();
        if let Some(link) = &state.link {
            link.close.notify_one();
        }
        drop(state);
        for ended in ended {
            let error = self.ended(ErrorKind::Unavailable, "the connections are closed", ended.is_sent);
            (ended.done)(Err(error));
        }
        self.timer.notify_one();
        self.connector.notify_one();
    }
}

const RESTARTED: &str = "the member was restarted; it is not known whether the request was executed";

/// Calls code of a service. A panic in it is reported by the panic hook, and does not end the task
/// that serves the connection.
fn contain(call: impl FnOnce()) {
    if std::panic::catch_unwind(AssertUnwindSafe(call)).is_err() {
        tracing::error!("a handler of requests or replies has panicked");
    }
}

fn credit(hello: &Hello) -> Credit {
    Credit { requests: hello.requests_held_max as usize, bytes: hello.bytes_held_max }
}

impl State {
    fn is_current(&self, link: &Arc<Link>) -> bool {
        self.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link))
    }

    /// Notes that there is no connection any more.
    fn disconnected(&mut self) {
        self.link = None;
        self.first.clear();
        self.outgoing.disconnected();
        self.incoming.disconnected();
        self.disconnected_at = Instant::now();
    }
}

impl ReplySink for Peer {
    fn answer(&self, session: u64, id: u64, reply: Option<Vec<u8>>) {
        let status = if reply.is_some() { Status::Done } else { Status::Unanswered };
        let reply = reply.unwrap_or_default();
        let bytes = reply.len();
        if let Some(gate) = &self.gate {
            gate.leave();
        }
        let mut state = self.state();
        let is_queued = state.incoming.answer(session, id, status, reply);
        let link = state.link.clone();
        drop(state);
        if let Some(link) = link.filter(|_| is_queued) {
            self.announce(&link, bytes);
        }
    }
}
