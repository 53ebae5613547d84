//! The client's half of the local channel.
//!
//! It runs in processes of other programs: it has no thread, and its memory is the segment, two
//! pages, and a few words. Which slots are in use is recorded in the memory of the process
//! (`used`), so that the daemon and forked children cannot change it.

// The payload of a slot is lent to one thread at a time.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell_vfs::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::thread::futex;

use super::handshake;
use super::layout::{AWAITED, PAYLOAD_BYTES_MAX, REPLIED, REQUESTED, SLOTS};
use super::memory::{Daemon, ForkMark, Segment, StatusView};
use super::polling::{LOADS_PER_CHECK, Polling};
use super::waker::ring;

/// The maximum time of [`LocalChannel::connect`].
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before a connection is tried again if the daemon's queue of connections is full.
const CONNECT_PAUSE: Duration = Duration::from_millis(5);
/// The longest sleep after which a waiting thread looks whether the daemon has ended.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(100);
/// The longest sleep of a thread that waits for a slot while slots are in quarantine: the daemon
/// does not wake it when it answers them.
const QUARANTINE_INTERVAL: Duration = Duration::from_millis(10);
/// How long a thread polls for a reply before it sleeps. docs/decisions/0020-local-channel.md has
/// the measurements.
const POLL_TIME: Duration = Duration::from_micros(50);
/// A reply that came within this time would have been found by polling. It includes the time until
/// a sleeping thread runs, which is about 25 us on a virtual machine.
const SHORT_WAIT: Duration = Duration::from_micros(75);

/// How often a connection that waits for the daemon checks whether another one has replaced it.
const REPLACEMENT_INTERVAL: Duration = Duration::from_millis(500);

const ALL_SLOTS: u32 = (1 << SLOTS) - 1;

/// A call that has no reply.
#[derive(Debug)]
pub enum Unanswered {
    /// The connection is lost, because the daemon has ended or was replaced. No later call of this
    /// connection succeeds.
    Lost {
        /// An error of the kind `Unavailable`.
        error: Error,
        /// Whether the daemon has taken the request. Otherwise it was not executed and will not be.
        was_taken: bool,
    },
    /// The call has failed for another reason, or this process is a forked child.
    Failed(Error),
}

impl From<Error> for Unanswered {
    fn from(error: Error) -> Unanswered {
        Unanswered::Failed(error)
    }
}

impl From<Unanswered> for Error {
    fn from(unanswered: Unanswered) -> Error {
        match unanswered {
            Unanswered::Lost { error, .. } | Unanswered::Failed(error) => error,
        }
    }
}

/// Returns whether another daemon serves in place of the connected one, which will not answer.
pub type IsReplaced = Box<dyn Fn() -> bool + Send + Sync>;

/// A check whether the daemon was replaced, which threads that wait for it make.
struct ReplacementCheck {
    is_replaced: IsReplaced,
    created: Instant,
    /// The time of the next check, in nanoseconds after `created`.
    next_ns: AtomicU64,
}

impl std::fmt::Debug for ReplacementCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplacementCheck").finish_non_exhaustive()
    }
}

impl ReplacementCheck {
    fn new(is_replaced: IsReplaced) -> ReplacementCheck {
        ReplacementCheck { is_replaced, created: Instant::now(), next_ns: AtomicU64::new(0) }
    }

    /// Checks, unless another thread has done so within `REPLACEMENT_INTERVAL`.
    fn is_replaced(&self) -> bool {
        let now = self.created.elapsed();
        let next = (now + REPLACEMENT_INTERVAL).as_nanos() as u64;
        let due = |last: u64| (u128::from(last) <= now.as_nanos()).then_some(next);
        self.next_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok() && (self.is_replaced)()
    }
}

/// A connection of this process to the daemon of its node. Any number of threads can use it.
///
/// After fork(2), the child's copy refuses calls (`Unavailable`) and can be dropped; neither
/// affects the parent. The child connects anew. The copy should be dropped soon, because the daemon
/// notices the end of the parent only when no process has the socket of the connection open any
/// more. execve(2) closes the socket.
#[derive(Debug)]
pub struct LocalChannel {
    segment: Segment,
    status: StatusView,
    process: ForkMark,
    doorbell: OwnedFd,
    socket: OwnedFd,
    further: Vec<OwnedFd>,
    path: Vec<u8>,
    /// A bit for each slot that a thread uses, or that is in quarantine.
    used: AtomicU32,
    /// A bit for each slot whose call has timed out; it is free when the daemon has replied.
    quarantined: AtomicU32,
    /// Changes when a slot becomes free; threads without a slot sleep on it.
    released: AtomicU32,
    /// The number of threads that wait for a slot.
    slot_waiters: AtomicU32,
    /// Whether the daemon has closed the connection or was replaced.
    closed: AtomicBool,
    replacement: Option<ReplacementCheck>,
    polling: Polling,
    /// The number of processors that this process may use.
    processors: u32,
}

/// A slot that belongs to the calling thread. When the value is dropped, also if `encode` or
/// `decode` panics, it becomes free, or is put in quarantine if the daemon has not replied.
struct Slot<'a> {
    channel: &'a LocalChannel,
    number: usize,
    is_unanswered: bool,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        match self.is_unanswered {
            true => _ = self.channel.quarantined.fetch_or(1 << self.number, Ordering::SeqCst),
            false => self.channel.release(self.number),
        }
    }
}

impl LocalChannel {
    /// Connects to the daemon whose socket is at `path`. The daemon must have the effective uid of
    /// this process. Takes at most 5 s.
    ///
    /// Errors: `NotFound` and `Unavailable` if there is no daemon, `PermissionDenied` for a daemon
    /// of another user, `Busy` if it has its maximum number of clients, `Unsupported` for another
    /// version of the protocol, `TimedOut`.
    pub fn connect(path: impl AsRef<Path>) -> Result<LocalChannel> {
        LocalChannel::connect_with(path, |fd| fd)
    }

    /// Does the same as `connect`, and passes each descriptor that is kept to `moved`, which may
    /// return another one for the same file.
    pub fn connect_with(path: impl AsRef<Path>, moved: fn(OwnedFd) -> OwnedFd) -> Result<LocalChannel> {
        LocalChannel::connect_checked(path, moved, None)
    }

    /// Does the same as `connect_with`. While a thread waits for the daemon, it calls `is_replaced`
    /// every 500 ms, and the connection is lost if this returns true.
    pub fn connect_checked(
        path: impl AsRef<Path>,
        moved: fn(OwnedFd) -> OwnedFd,
        is_replaced: Option<IsReplaced>,
    ) -> Result<LocalChannel> {
        let replacement = is_replaced.map(ReplacementCheck::new);
        let path = path.as_ref().as_os_str().as_bytes();
        let failed = |cause: Errno| match cause {
            Errno::CONNREFUSED | Errno::CONNRESET | Errno::PIPE => {
                Error { source: Some(Box::new(std::io::Error::from(cause))), ..unavailable(path) }
            }
            cause => Error::from_io(cause.into(), "connect to the daemon at", path),
        };
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
        loop {
            match rustix::net::connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(CONNECT_PAUSE),
                Err(Errno::AGAIN) => return Err(timed_out(path)),
                Err(cause) => return Err(failed(cause)),
            }
        }
        if !handshake::is_same_user(&socket)? {
            return Err(Error::new(ErrorKind::PermissionDenied, "connect to the daemon at", path));
        }
        // The buffer of a new socket has space for the message.
        let flags = SendFlags::NOSIGNAL;
        let sent = rustix::io::retry_on_intr(|| rustix::net::send(&socket, &handshake::hello(), flags));
        match sent.map_err(failed)? {
            handshake::HELLO_BYTES => {}
            _ => return Err(unavailable(path)),
        }
        wait_for_data(&socket, deadline, replacement.as_ref(), path)?;
        let descriptors = handshake::receive_welcome(&socket, path)?;
        Ok(LocalChannel {
            segment: Segment::open(&descriptors.segment)?,
            status: StatusView::open(&descriptors.status)?,
            process: ForkMark::new()?,
            doorbell: moved(descriptors.doorbell),
            socket: moved(socket),
            further: descriptors.further.into_iter().map(moved).collect(),
            path: path.to_vec(),
            used: AtomicU32::new(0),
            quarantined: AtomicU32::new(0),
            released: AtomicU32::new(0),
            slot_waiters: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            replacement,
            polling: Polling::new(Instant::now()),
            processors: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
        })
    }

    /// Returns the further descriptors that the daemon has passed, in its order.
    pub fn descriptors(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.further.iter().map(std::os::fd::AsFd::as_fd)
    }

    /// Returns a number that the daemon increases. Sends no request. The daemon and its clients
    /// define the meaning of the number.
    pub fn version(&self) -> u64 {
        self.status.version()
    }

    /// Adds to one of the [`COUNTERS_OF_CLIENT`](super::COUNTERS_OF_CLIENT) counters of this
    /// connection, which the daemon reads. Sends no request. The daemon and its clients define the
    /// meaning of the counters. Panics if there is no counter of this number.
    pub fn count(&self, counter: usize, amount: u64) {
        self.segment.counter(counter).fetch_add(amount, Ordering::Relaxed);
    }

    /// Returns whether calls can succeed: the connection belongs to this process, and this process
    /// has not noticed the end of the daemon.
    pub fn is_open(&self) -> bool {
        self.process.is_marked() && !self.closed.load(Ordering::Relaxed)
    }

    /// Sends a request and waits for the reply, until `deadline` if there is one.
    ///
    /// `encode` writes the request into the buffer that it gets, of [`PAYLOAD_BYTES_MAX`] bytes
    /// with any content, and returns its length. `decode` gets the reply. The buffers are the
    /// shared memory itself. `encode` and `decode` may not wait for another call of the same
    /// channel, which can need a 17th slot.
    ///
    /// Errors: the errors of `encode`, after which nothing was sent; `InvalidInput` if its length
    /// exceeds the buffer; `Unavailable` if the daemon has ended, which is noticed within 100 ms,
    /// or if this process is a forked child; `TimedOut` after the deadline; `Damaged` if the reply
    /// has an impossible length. After `Unavailable` and `TimedOut`, the daemon may have executed
    /// the request or may still do so. A signal does not interrupt a call.
    pub fn call<R>(
        &self,
        deadline: Option<Instant>,
        encode: impl FnOnce(&mut [u8]) -> Result<usize>,
        decode: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        Ok(self.try_call(deadline, encode, decode)?)
    }

    /// Does the same as `call`, and distinguishes a lost connection from other errors.
    pub fn try_call<R>(
        &self,
        deadline: Option<Instant>,
        encode: impl FnOnce(&mut [u8]) -> Result<usize>,
        decode: impl FnOnce(&[u8]) -> R,
    ) -> std::result::Result<R, Unanswered> {
        let mut slot = self.claim(deadline)?;
        // SAFETY: the slot belongs to this thread, and the daemon has answered its last request.
        let length = encode(unsafe { self.segment.payload_mut(slot.number) })?;
        if length > PAYLOAD_BYTES_MAX {
            let error = Error::new(ErrorKind::InvalidInput, "send a request to the daemon at", &self.path);
            return Err(error.into());
        }
        slot.is_unanswered = true;
        self.submit(slot.number, length);
        self.wait(slot.number, deadline).map_err(|unanswered| match unanswered {
            Unanswered::Lost { error, .. } => {
                Unanswered::Lost { error, was_taken: !self.withdraw(slot.number) }
            }
            failed => failed,
        })?;
        slot.is_unanswered = false;
        let length = self.segment.reply_bytes(slot.number).load(Ordering::Relaxed) as usize;
        // SAFETY: the slot belongs to this thread, and the daemon has answered its request.
        let payload = unsafe { self.segment.payload_mut(slot.number) };
        match payload.get(..length) {
            Some(reply) => Ok(decode(reply)),
            None => Err(Error::new(ErrorKind::Damaged, "read a reply of the daemon at", &self.path).into()),
        }
    }

    /// Returns the lowest slot that is free, or waits for one.
    fn claim(&self, deadline: Option<Instant>) -> std::result::Result<Slot<'_>, Unanswered> {
        loop {
            if !self.process.is_marked() {
                return Err(unavailable(&self.path).into());
            }
            if self.closed.load(Ordering::Relaxed) {
                return Err(self.lost());
            }
            if let Some(slot) = self.try_claim() {
                return Ok(slot);
            }
            self.slot_waiters.fetch_add(1, Ordering::SeqCst);
            let released = self.released.load(Ordering::SeqCst);
            let slot = self.try_claim();
            let result = match &slot {
                Some(_) => Ok(()),
                None => {
                    let quarantined = self.quarantined.load(Ordering::Relaxed) != 0;
                    let interval = if quarantined { QUARANTINE_INTERVAL } else { LIVENESS_INTERVAL };
                    self.sleep(&self.released, futex::Flags::PRIVATE, released, interval, deadline)
                }
            };
            self.slot_waiters.fetch_sub(1, Ordering::SeqCst);
            result?;
            if let Some(slot) = slot {
                return Ok(slot);
            }
        }
    }

    fn try_claim(&self) -> Option<Slot<'_>> {
        let lowest = |used: u32| (used != ALL_SLOTS).then(|| used | (used + 1));
        if let Ok(used) = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, lowest) {
            let number = (!used).trailing_zeros() as usize;
            return Some(Slot { channel: self, number, is_unanswered: false });
        }
        let quarantined = self.quarantined.load(Ordering::SeqCst);
        let mut slots = (0..SLOTS).filter(|slot| quarantined & (1 << slot) != 0);
        let number = slots.find(|slot| {
            self.segment.state(*slot).load(Ordering::Acquire) == REPLIED
                && self.quarantined.fetch_and(!(1 << slot), Ordering::SeqCst) & (1 << slot) != 0
        })?;
        Some(Slot { channel: self, number, is_unanswered: false })
    }

    fn release(&self, slot: usize) {
        self.used.fetch_and(!(1 << slot), Ordering::SeqCst);
        if self.slot_waiters.load(Ordering::SeqCst) != 0 {
            self.released.fetch_add(1, Ordering::SeqCst);
            // The call fails only for an invalid address.
            let _ = futex::wake(&self.released, futex::Flags::PRIVATE, 1);
        }
    }

    fn submit(&self, slot: usize, length: usize) {
        self.segment.request_bytes(slot).store(length as u32, Ordering::Relaxed);
        self.segment.processor(slot).store(rustix::thread::sched_getcpu() as u32, Ordering::Relaxed);
        self.segment.state(slot).store(REQUESTED, Ordering::Release);
        self.segment.pending().fetch_or(1 << slot, Ordering::SeqCst);
        let is_watched = self.segment.watched().load(Ordering::SeqCst) != 0;
        if !is_watched || self.status.daemon() == Daemon::Sleeping {
            ring(&self.doorbell);
        }
    }

    /// Withdraws a request that the daemon has not taken. Returns false if it has taken it.
    ///
    /// Afterwards, neither a daemon that has ended nor a daemon that continues after it was stopped
    /// and replaced takes the request, because a daemon takes requests by clearing their bits.
    fn withdraw(&self, slot: usize) -> bool {
        self.segment.pending().fetch_and(!(1 << slot), Ordering::SeqCst) & (1 << slot) != 0
    }

    fn lost(&self) -> Unanswered {
        Unanswered::Lost { error: unavailable(&self.path), was_taken: false }
    }

    /// Waits until the daemon has replied.
    fn wait(&self, slot: usize, deadline: Option<Instant>) -> std::result::Result<(), Unanswered> {
        let state = self.segment.state(slot);
        let start = Instant::now();
        if self.poll(state, start) {
            return Ok(());
        }
        // A failure means that the state is already `REPLIED`.
        let _ = state.compare_exchange(REQUESTED, AWAITED, Ordering::Acquire, Ordering::Acquire);
        loop {
            let slept = match state.load(Ordering::Acquire) {
                REPLIED => return Ok(()),
                AWAITED => self.sleep(state, futex::Flags::empty(), AWAITED, LIVENESS_INTERVAL, deadline),
                _ => Err(Error::new(ErrorKind::Damaged, "wait for the daemon at", &self.path).into()),
            };
            if state.load(Ordering::Acquire) == REPLIED {
                self.polling.slept(start.elapsed(), SHORT_WAIT);
                return Ok(());
            }
            slept?;
        }
    }

    /// Polls for the reply as long as this is likely to be quicker than to sleep. Returns whether
    /// the reply has arrived. If the clients and the daemon need all processors, a thread that
    /// polls would take the processor from another client, which can prepare its next request
    /// meanwhile.
    fn poll(&self, state: &AtomicU32, start: Instant) -> bool {
        if self.status.clients() >= self.processors {
            return false;
        }
        let Some(mut attempt) = self.polling.begin(start, start + POLL_TIME) else { return false };
        loop {
            match self.status.daemon() {
                // The doorbell has woken the service thread, or it waits for something before it
                // can reply.
                Daemon::Sleeping => return false,
                // The service thread runs only when this thread does not.
                Daemon::AwakeOn(processor) if processor == rustix::thread::sched_getcpu() as u32 => {
                    return false;
                }
                Daemon::AwakeOn(_) => {}
            }
            for _ in 0..LOADS_PER_CHECK {
                if state.load(Ordering::Acquire) == REPLIED {
                    return true;
                }
                std::hint::spin_loop();
            }
            if !attempt.goes_on(Instant::now()) {
                return false;
            }
        }
    }

    /// Sleeps on a word while it has a value, for at most an interval, and then checks that the
    /// deadline has not passed, and that the daemon has neither ended nor been replaced.
    fn sleep(
        &self,
        word: &AtomicU32,
        flags: futex::Flags,
        value: u32,
        interval: Duration,
        deadline: Option<Instant>,
    ) -> std::result::Result<(), Unanswered> {
        let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let interval = remaining.map_or(interval, |remaining| remaining.min(interval));
        match futex::wait(word, flags, value, Some(&timespec(interval))) {
            Ok(()) | Err(Errno::AGAIN) => {}
            // A signal of the program interrupts the sleep, not the call. Frequent signals do not
            // let the interval pass.
            Err(Errno::TIMEDOUT | Errno::INTR) => {
                let is_replaced = || self.replacement.as_ref().is_some_and(ReplacementCheck::is_replaced);
                if self.closed.load(Ordering::Relaxed) || self.has_daemon_closed()? || is_replaced() {
                    self.closed.store(true, Ordering::Relaxed);
                    return Err(self.lost());
                }
            }
            Err(cause) => {
                return Err(Error::from_io(cause.into(), "wait for the daemon at", &self.path).into());
            }
        }
        match deadline {
            Some(deadline) if deadline <= Instant::now() => Err(timed_out(&self.path).into()),
            _ => Ok(()),
        }
    }

    fn has_daemon_closed(&self) -> Result<bool> {
        let mut socket = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        match rustix::event::poll(&mut socket, Some(&timespec(Duration::ZERO))) {
            Ok(events) => Ok(events != 0),
            Err(Errno::INTR) => Ok(false),
            Err(cause) => Err(Error::from_io(cause.into(), "wait for the daemon at", &self.path)),
        }
    }
}

/// Waits until a socket has data or is closed.
fn wait_for_data(
    socket: &OwnedFd,
    deadline: Instant,
    replacement: Option<&ReplacementCheck>,
    path: &[u8],
) -> Result<()> {
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let mut sockets = [PollFd::new(socket, PollFlags::IN)];
        match rustix::event::poll(&mut sockets, Some(&timespec(remaining.min(LIVENESS_INTERVAL)))) {
            Ok(0) if replacement.is_some_and(ReplacementCheck::is_replaced) => return Err(unavailable(path)),
            Ok(0) if remaining.is_zero() => return Err(timed_out(path)),
            Ok(0) => {}
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(cause) => return Err(Error::from_io(cause.into(), "connect to the daemon at", path)),
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

fn unavailable(path: &[u8]) -> Error {
    Error::new(ErrorKind::Unavailable, "reach the daemon at", path)
}

fn timed_out(path: &[u8]) -> Error {
    Error::new(ErrorKind::TimedOut, "reach the daemon at", path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use super::*;
    use crate::local::{LocalServer, ServerOptions};

    const LONG: Duration = Duration::from_secs(60);
    /// Connections of the hostile client, each until the server disconnects it.
    const ATTACKS: usize = 40;

    /// A generator of numbers (xorshift), the same in each run.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        /// Returns a random number, which often has a meaning in the protocol.
        fn word(&mut self) -> u32 {
            match self.next() % 8 {
                0 => u32::MAX,
                1 => PAYLOAD_BYTES_MAX as u32 + 1,
                2 => PAYLOAD_BYTES_MAX as u32,
                3 => self.next() as u32,
                small => small as u32 - 4,
            }
        }
    }

    fn echo(channel: &LocalChannel, byte: u8, length: usize) -> Result<()> {
        let encode = |payload: &mut [u8]| {
            payload[..length].fill(byte);
            Ok(length)
        };
        let is_same = |reply: &[u8]| reply.len() == length && reply.iter().all(|found| *found == byte);
        assert!(channel.call(Some(Instant::now() + LONG), encode, is_same)?);
        Ok(())
    }

    /// Writes to the words of a segment until the server closes the connection.
    fn scribble(channel: &LocalChannel, numbers: &mut Numbers) {
        let start = Instant::now();
        while !channel.has_daemon_closed().unwrap() {
            assert!(start.elapsed() < LONG, "the server did not notice the violations");
            let slot = numbers.next() as usize % SLOTS;
            for _ in 0..20 {
                let word = numbers.word();
                match numbers.next() % 8 {
                    // Most bits belong to slots that exist: other bits end the connection at once.
                    0 => channel.segment.pending().store(numbers.next() & 0xffff, Ordering::SeqCst),
                    1 if word == u32::MAX => channel.segment.pending().store(u64::MAX, Ordering::SeqCst),
                    2 | 3 => channel.segment.request_bytes(slot).store(word, Ordering::SeqCst),
                    4 => channel.segment.reply_bytes(slot).store(word, Ordering::SeqCst),
                    5 if slot == 0 => channel.segment.watched().store(word, Ordering::SeqCst),
                    5 => channel.segment.processor(slot).store(word, Ordering::SeqCst),
                    _ => channel.segment.state(slot).store(word, Ordering::SeqCst),
                }
            }
            channel.segment.copy_in(slot, &[numbers.next() as u8; 1000]);
            ring(&channel.doorbell);
        }
    }

    #[test]
    fn a_client_that_writes_anything_to_its_segment_harms_only_itself() {
        let mode = std::fs::Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().permissions(mode).tempdir().unwrap();
        let path = directory.path().join("socket");
        let mut server = LocalServer::bind(&path, ServerOptions::default()).unwrap();
        let (stop, waker) = (Arc::new(AtomicBool::new(false)), server.waker());
        let is_stopped = stop.clone();
        let service = std::thread::spawn(move || {
            let mut requests = Vec::new();
            while !is_stopped.load(Ordering::SeqCst) {
                server.wait(Some(LONG)).unwrap();
                server.drain(&mut |ticket, bytes| requests.push((ticket, bytes.to_vec())));
                assert!(requests.len() <= 3 * SLOTS, "a client has more requests than slots");
                for (ticket, bytes) in requests.drain(..) {
                    server.reply_bytes(ticket, &bytes);
                }
            }
            server.clients()
        });
        let honest = LocalChannel::connect(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
                for _ in 0..ATTACKS {
                    let channel = LocalChannel::connect(&path).unwrap();
                    std::thread::scope(|scope| {
                        let end = Instant::now() + Duration::from_millis(5);
                        let channel = &channel;
                        let call =
                            move || (0..100).for_each(|_| _ = channel.call(Some(end), |_| Ok(64), |_| ()));
                        scope.spawn(call);
                        scribble(channel, &mut numbers);
                    });
                }
            });
            (0..5000).for_each(|i| echo(&honest, i as u8, i % 3000).unwrap());
        });
        (0..100).for_each(|i| echo(&honest, i, 100).unwrap());
        stop.store(true, Ordering::SeqCst);
        waker.wake();
        assert!(service.join().unwrap() <= 2);
    }
}
