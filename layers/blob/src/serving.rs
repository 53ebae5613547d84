//! The lease of a server whose store is in RADOS: a thread renews it, and each reply is sent only
//! while it is valid (docs/decisions/0034-servers-in-rados.md).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_blob_service::{CheckedStore, Problem, compare_joint_records};
use quell_rados::{
    Lease, Objects, Observed, Observer, Replaced, ServerState, group_name, read_groups, read_server,
};
use quell_threads::{lock, wait};
use quell_vfs::{Error, ErrorKind, Result, errno};
use quell_wire::Failure;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};

use crate::rados::{self, NAME};

/// The duration of a lease.
const LEASE: Duration = Duration::from_millis(1500);
/// The time between two renewals.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(300);
/// The time between a renewal with an unknown result and the next renewal.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// The time between two reads of the record of another server.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// The behaviour of a server that starts and finds another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takeover {
    /// The server replaces the other server if that one has ended or is dead, and fails otherwise.
    IfDead,
    /// The server waits until the other server has ended or is dead.
    Wait,
    /// The server replaces the other server in any case.
    Always,
}

/// A reason for a delay of the start of a server.
#[derive(Debug)]
pub enum Delay<'a> {
    /// Another server runs at this address, which is empty if the server accepts no clients on
    /// other machines.
    OtherServer(&'a str),
    /// The cluster did not perform an operation, which is repeated.
    Cluster(&'a Error),
}

/// The options of the start of a server.
pub struct Start<'a> {
    /// The behaviour if there is another server.
    pub takeover: Takeover,
    /// Called once if another server runs, and for each operation that is repeated.
    pub delayed: &'a mut dyn FnMut(Delay<'_>),
    /// Called from time to time while the server waits. If it returns true, the start fails with
    /// `Interrupted`.
    pub is_interrupted: &'a dyn Fn() -> bool,
}

impl fmt::Debug for Start<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Start").field("takeover", &self.takeover).finish_non_exhaustive()
    }
}

impl Start<'_> {
    /// Calls `operation`. If the server is a standby, calls it again after each temporary error, as
    /// long as `may_repeat` returns true.
    pub(crate) fn attempt<T>(
        &mut self,
        may_repeat: &dyn Fn() -> bool,
        mut operation: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        loop {
            match operation() {
                Err(error) if self.takeover == Takeover::Wait && is_passing(&error) && may_repeat() => {
                    (self.delayed)(Delay::Cluster(&error));
                }
                result => return result,
            }
            self.pause()?;
        }
    }

    /// Waits until the next attempt.
    fn pause(&self) -> Result<()> {
        if (self.is_interrupted)() {
            return Err(fail(ErrorKind::Interrupted, "interrupted"));
        }
        std::thread::sleep(WATCH_INTERVAL);
        Ok(())
    }
}

/// Returns the time of a clock that also runs while the system is suspended.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// The lease of this server, until [`end`](ServingLease::end) or the end of the value.
pub struct ServingLease {
    shared: Arc<Shared>,
    term: u64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    /// The times between which replies may be sent, in nanoseconds of [`now`].
    from_ns: AtomicU64,
    until_ns: AtomicU64,
    state: Mutex<State>,
    /// Notified after each change.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The reason for which this server never sends a reply again.
    lost: Option<Failure>,
    /// The address and the use of encryption that clients find, after they were published.
    published: Option<(String, bool)>,
    /// Whether the record must be renewed at once.
    is_urgent: bool,
    /// The time until which replies wait for a renewal. If there is none, they wait without a
    /// limit.
    waits_until: Option<Instant>,
    is_ending: bool,
}

impl fmt::Debug for ServingLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingLease").field("term", &self.term).finish_non_exhaustive()
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn fail(kind: ErrorKind, reason: impl Into<String>) -> Error {
    let source = Some(reason.into().into());
    Error { source, ..Error::new(kind, "serve", "the store") }
}

impl ServingLease {
    /// Takes the lease of the store `name`.
    ///
    /// # Errors
    /// `Busy` if another server runs; `Interrupted` if the start was interrupted; the errors of the
    /// cluster.
    pub(crate) fn take(
        objects: &Arc<dyn Objects>,
        name: &str,
        start: &mut Start<'_>,
    ) -> Result<ServingLease> {
        let mut owner = [0; 16];
        getrandom(&mut owner, GetRandomFlags::empty())
            .map_err(|e| Error::from_io(e.into(), "draw a random number", ""))?;
        let mut observer = Observer::new();
        let mut has_waited = false;
        let takeover = start.takeover;
        let lease = loop {
            let (begun, found) = start.attempt(&|| true, || {
                let begun = now();
                Ok((begun, read_server(&**objects, name)?))
            })?;
            let observed = observer.observe(found.clone(), begun, now());
            let is_free = observed == Observed::Free;
            let found = found.as_ref();
            let address = found.map_or("", |found| found.address.as_str());
            if takeover == Takeover::IfDead && observed == Observed::Alive {
                return Err(fail(ErrorKind::Busy, lives(address)));
            }
            if is_free || takeover == Takeover::Always {
                match Lease::take(objects.clone(), name, found, is_free, (owner, LEASE), &now) {
                    Err(error) if error.kind == ErrorKind::Busy && takeover != Takeover::IfDead => {}
                    Err(error) if takeover == Takeover::Wait && is_passing(&error) => {
                        (start.delayed)(Delay::Cluster(&error));
                    }
                    Err(error) if error.kind == ErrorKind::Busy => {
                        return Err(fail(ErrorKind::Busy, lives("")));
                    }
                    lease => break lease?,
                }
            } else if !std::mem::replace(&mut has_waited, true) {
                (start.delayed)(Delay::OtherServer(address));
            }
            start.pause()?;
        };
        let shared = Arc::new(Shared::default());
        shared.set_validity(&lease);
        let (own, term, objects) = (shared.clone(), lease.term(), objects.clone());
        let name = name.to_owned();
        let thread = std::thread::Builder::new()
            .name("blob lease".into())
            .spawn(move || own.renew(lease, &*objects, &name))
            .map_err(|e| Error::from_io(e, "start a thread", b"blob lease"))?;
        Ok(ServingLease { shared, term, thread: Mutex::new(Some(thread)) })
    }

    /// Waits until the reply to a request that was executed before the call may be sent.
    ///
    /// Returns false if the reply must never be sent: this server was replaced, a write to the
    /// store has failed, or the server ends and has not renewed its lease in time.
    pub fn may_reply(&self) -> bool {
        self.shared.may_reply()
    }

    /// Limits the time for which replies wait for a renewal to `limit` from now on, because the
    /// server ends.
    pub fn limit_waits(&self, limit: Duration) {
        lock(&self.shared.state).waits_until.get_or_insert(Instant::now() + limit);
        self.shared.changed.notify_all();
    }

    /// Returns the reason for which this server can send no more replies, if there is one.
    pub fn lost(&self) -> Option<Error> {
        lock(&self.shared.state).lost.clone().map(|failure| failure.into_error("serve", b"the store"))
    }

    /// Publishes the address of this server, and waits until clients can find it. An empty address
    /// states that the server accepts no clients on other machines.
    ///
    /// # Errors
    /// The reason for which this server can send no more replies.
    pub fn publish(&self, address: &str, is_encrypted: bool) -> Result<()> {
        let mut state = lock(&self.shared.state);
        state.published = Some((address.to_owned(), is_encrypted));
        state.is_urgent = true;
        self.shared.changed.notify_all();
        drop(state);
        let state = quell_threads::wait_while(&self.shared.changed, lock(&self.shared.state), |state| {
            state.is_urgent && state.lost.is_none()
        });
        drop(state);
        self.lost().map_or(Ok(()), Err)
    }

    /// Waits until the lease of the server before this one has ended.
    pub(crate) fn wait_for_begin(&self) {
        let from = Duration::from_nanos(self.shared.from_ns.load(Ordering::Acquire));
        std::thread::sleep(from.saturating_sub(now()));
    }

    /// Stops this server from sending replies, because a write to the store has failed.
    pub(crate) fn fail(&self, error: &Error) {
        self.shared.lose(Failure::new(error));
    }

    /// Ends the thread and the lease, so that another server need not wait until the lease has
    /// ended. The caller must have sent all replies; replies that still wait are never sent.
    pub fn end(&self) {
        let mut state = lock(&self.shared.state);
        state.is_ending = true;
        self.shared.changed.notify_all();
        drop(state);
        if let Some(thread) = lock(&self.thread).take() {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// Checks the store in a pool, and passes its problems to `report`. No server can serve it
/// meanwhile.
pub(crate) fn check(pool: &str, repair: bool, report: &mut dyn FnMut(Problem)) -> Result<CheckedStore> {
    let objects: Arc<dyn Objects> = Arc::new(rados::open_pool(pool)?);
    let groups = read_groups(&*objects, NAME)?.unwrap_or(1);
    // For each group, the check may have to wait until the lease of a server that was killed has
    // ended.
    let taken: Vec<Result<ServingLease>> = std::thread::scope(|scope| {
        let take = |group| {
            let (objects, name) = (&objects, group_name(NAME, group));
            scope.spawn(move || take_for_check(pool, objects, &name))
        };
        let threads: Vec<_> = (0..groups).map(take).collect();
        let panicked = "a thread of the check has ended without a result";
        let no_result = || {
            Err(Error {
                source: Some(panicked.into()),
                ..Error::new(ErrorKind::Os(errno::EIO), "check", pool)
            })
        };
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| no_result())).collect()
    });
    let (mut leases, mut failed) = (Vec::new(), None);
    for lease in taken {
        match lease {
            Ok(lease) => leases.push(lease),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    let checked = match failed {
        Some(error) => Err(error),
        None => check_groups(&objects, groups, repair, report),
    };
    let mut lost = None;
    for lease in leases {
        // Another server may have changed the store meanwhile.
        if !lease.may_reply() {
            lost = lost.or(lease.lost());
        }
        lease.end();
    }
    match lost {
        Some(lost) => Err(lost),
        None => checked,
    }
}

fn check_groups(
    objects: &Arc<dyn Objects>,
    groups: u32,
    repair: bool,
    report: &mut dyn FnMut(Problem),
) -> Result<CheckedStore> {
    let (mut sum, mut records) = (CheckedStore::default(), Vec::new());
    for group in 0..groups {
        let (checked, of_group) = rados::check(objects.clone(), (group, groups), repair, report)?;
        sum.blobs += checked.blobs;
        sum.size_bytes = sum.size_bytes.saturating_add(checked.size_bytes);
        sum.extents += checked.extents;
        sum.extent_bytes += checked.extent_bytes;
        records.push(of_group);
    }
    compare_joint_records(&records, report);
    Ok(sum)
}

/// Takes the lease of a group, so that no server can serve it.
fn take_for_check(pool: &str, objects: &Arc<dyn Objects>, name: &str) -> Result<ServingLease> {
    let has_store = objects.size(&format!("{name}.head"));
    has_store.map_err(|error| match error.kind {
        ErrorKind::NotFound => {
            let source = Some(
                format!(
                    "there is no store in this namespace of the pool: the object {name}.head does not exist"
                )
                .into(),
            );
            Error { source, ..Error::new(ErrorKind::NotFound, "check", pool) }
        }
        _ => error,
    })?;
    let mut start = Start { takeover: Takeover::IfDead, delayed: &mut |_| (), is_interrupted: &|| false };
    ServingLease::take(objects, name, &mut start)
}

impl Drop for ServingLease {
    /// Waits for the thread: librados must not be used while the process ends.
    fn drop(&mut self) {
        self.end();
    }
}

fn lives(address: &str) -> String {
    let at = if address.is_empty() { String::new() } else { format!(" at {address}") };
    format!("another server{at} serves it; end that one, or wait with: quell blob serve --standby")
}

/// Returns whether an operation can succeed later.
fn is_passing(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::TimedOut | ErrorKind::Unavailable | ErrorKind::NoSpace | ErrorKind::Quota)
}

impl Shared {
    fn set_validity(&self, lease: &Lease) {
        let (from, until) = lease.validity();
        self.from_ns.store(nanoseconds(from), Ordering::Release);
        self.until_ns.store(nanoseconds(until), Ordering::Release);
    }

    fn is_valid(&self) -> bool {
        let now_ns = nanoseconds(now());
        self.from_ns.load(Ordering::Acquire) <= now_ns && now_ns < self.until_ns.load(Ordering::Acquire)
    }

    fn may_reply(&self) -> bool {
        let mut state = lock(&self.state);
        loop {
            match state.lost {
                Some(_) => return false,
                None if self.is_valid() => return true,
                None if state.is_ending => return false,
                None => {}
            }
            state = match state.waits_until {
                None => wait(&self.changed, state),
                Some(until) => match until.checked_duration_since(Instant::now()) {
                    Some(left) => {
                        let waited = self.changed.wait_timeout(state, left);
                        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
                    }
                    None => return false,
                },
            };
        }
    }

    fn lose(&self, failure: Failure) {
        lock(&self.state).lost.get_or_insert(failure);
        self.changed.notify_all();
    }

    /// Renews the lease until it is lost or ended.
    fn renew(&self, mut lease: Lease, objects: &dyn Objects, name: &str) {
        loop {
            let state = lock(&self.state);
            if state.lost.is_some() {
                return;
            }
            let (is_ending, published) = (state.is_ending, state.published.clone());
            drop(state);
            let (address, is_encrypted) = published.clone().unwrap_or_default();
            let server_state = match published {
                _ if is_ending => ServerState::Ended,
                Some(_) => ServerState::Serving,
                None => ServerState::Starting,
            };
            if is_ending {
                // No reply may be sent after the record states the end.
                self.lose(Failure::new(&fail(ErrorKind::Unavailable, "the server has ended")));
                // The lease of the previous server may still be valid, so the next server must wait
                // as if this one were dead.
                if now() < lease.validity().0 {
                    return;
                }
            }
            let renewal = lease.begin(now(), server_state, &address, is_encrypted);
            let pause = match lease.finish(renewal) {
                _ if is_ending => return,
                Ok(()) => {
                    self.set_validity(&lease);
                    let mut state = lock(&self.state);
                    state.is_urgent &= state.published != published;
                    drop(state);
                    RENEWAL_INTERVAL
                }
                Err(error) if Replaced::of(&error).is_some() => {
                    return self.lose(Failure::new(&replaced(objects, name)));
                }
                Err(error) if is_passing(&error) => RETRY_INTERVAL,
                Err(error) => return self.lose(Failure::new(&error)),
            };
            self.changed.notify_all();
            let state = lock(&self.state);
            if !state.is_ending && !state.is_urgent && state.lost.is_none() {
                let _woken = self.changed.wait_timeout(state, pause);
            }
        }
    }
}

/// Returns the error of a server that was replaced, with the address of the other server.
fn replaced(objects: &dyn Objects, name: &str) -> Error {
    let address = match read_server(objects, name) {
        Ok(Some(found)) if !found.address.is_empty() => format!(" at {}", found.address),
        _ => String::new(),
    };
    fail(
        ErrorKind::Unavailable,
        format!("another server{address} has replaced this one; no commit that it acknowledged is lost"),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use quell_rados::{FaultEffect, MemoryObjects};

    fn take(objects: &Arc<dyn Objects>) -> ServingLease {
        let mut start = Start { takeover: Takeover::Always, delayed: &mut |_| (), is_interrupted: &|| false };
        ServingLease::take(objects, NAME, &mut start).expect("taken")
    }

    #[test]
    fn only_a_server_that_waits_repeats_an_operation_without_an_answer() {
        let attempts = |takeover: Takeover, error: ErrorKind, may_repeat: bool, is_interrupted: bool| {
            let (mut attempts, mut delays) = (0, 0);
            let mut delayed = |_: Delay<'_>| delays += 1;
            let mut start = Start { takeover, delayed: &mut delayed, is_interrupted: &|| is_interrupted };
            let result = start.attempt(&|| may_repeat, || {
                attempts += 1;
                if attempts < 3 { Err(fail(error, "it failed")) } else { Ok(()) }
            });
            (attempts, delays, result.err().map(|error| error.kind))
        };
        let none = ErrorKind::TimedOut;
        assert_eq!(attempts(Takeover::Wait, none, true, false), (3, 2, None));
        assert_eq!(attempts(Takeover::Wait, none, true, true), (1, 1, Some(ErrorKind::Interrupted)));
        assert_eq!(attempts(Takeover::Wait, none, false, false), (1, 0, Some(none)));
        assert_eq!(attempts(Takeover::Always, none, true, false), (1, 0, Some(none)));
        assert_eq!(attempts(Takeover::IfDead, none, true, false), (1, 0, Some(none)));
        let damaged = ErrorKind::Damaged;
        assert_eq!(attempts(Takeover::Wait, damaged, true, false), (1, 0, Some(damaged)));
    }

    #[test]
    fn a_server_that_ends_while_the_cluster_hangs_sends_no_waiting_reply() {
        let objects = MemoryObjects::new();
        let is_hanging = Arc::new(AtomicBool::new(false));
        let hangs = is_hanging.clone();
        let faults = move |_: &str, _: &str| match hangs.load(Ordering::Relaxed) {
            true => FaultEffect::Refused(ErrorKind::TimedOut),
            false => FaultEffect::Performed,
        };
        let objects: Arc<dyn Objects> = Arc::new(objects.with_faults(Box::new(faults)));
        let lease = Arc::new(take(&objects));
        assert!(lease.may_reply());
        is_hanging.store(true, Ordering::Relaxed);
        // The time of the lease ends, because it is not renewed any more.
        std::thread::sleep(LEASE + RENEWAL_INTERVAL);
        let waiting = lease.clone();
        let reply = std::thread::spawn(move || waiting.may_reply());
        lease.limit_waits(Duration::from_millis(10));
        assert!(!reply.join().expect("no panic"));
        assert!(!lease.may_reply());
        lease.end();
    }

    #[test]
    fn a_server_that_ends_before_its_lease_is_valid_does_not_free_the_store() {
        let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
        let state = || read_server(&*objects, NAME).expect("read").map(|record| (record.term, record.state));
        let first = take(&objects);
        take(&objects).end();
        // The time of the lease of the first server has not ended yet.
        assert_eq!(state(), Some((2, ServerState::Starting)));
        first.end();
        let third = take(&objects);
        third.wait_for_begin();
        third.end();
        assert_eq!(state(), Some((3, ServerState::Ended)));
    }
}
