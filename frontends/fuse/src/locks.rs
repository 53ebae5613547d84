//! Translates lock requests, and waits for locks on behalf of programs.
//!
//! A request that has to wait does not occupy a worker: a thread of its own repeats the attempt
//! with pauses, which grow to `PAUSE_MAX`. A lock that is released on this mount wakes the threads
//! that wait for a lock of the same file. There is no queue: of several waiting programs any one
//! gets the lock, and programs on the node that releases it have the advantage.
//!
//! The FUSE library passes on neither the kernel's mark of requests of flock(2) nor the
//! interruption of a request, so both are looked up in /proc. If /proc does not show the system
//! call of a request for all bytes, both the bytes and the whole file are locked: then the locks
//! of flock(2) and fcntl(2) conflict, as on NFS.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fuser::{Errno, ReplyEmpty};
use quell_threads::{lock, wait_timeout_while};
use quell_vfs::{FileLocks, HeldLock, LockMode, LockOwner, LockScope, NodeId, Result, TO_END, WritableFile};

use crate::convert::errno;
use crate::lock_call::LockCall;
use crate::session_state::SessionState;
use crate::signals::{Pending, pending_signals};

/// The kernel's largest offset: the last byte of a lock to the end of the file.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// The numbers of fcntl.h, the same on every architecture that Quell supports.
const F_RDLCK: i32 = 0;
const F_WRLCK: i32 = 1;
pub(crate) const F_UNLCK: i32 = 2;

/// Pauses between two attempts to take a lock. Each attempt is a request to the store's file
/// system. The longest pause is also the delay of a signal.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The time for which a request that may not wait for a lock waits for open files that are being
/// closed.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// The largest number of requests of one mount that wait for a lock. Each takes a thread.
const WAITING_MAX: usize = 1024;

/// The time for which a request waits if its program is not visible in /proc, because the program
/// cannot be ended while it waits.
const WAIT_UNSEEN_MAX: Duration = Duration::from_secs(60);

/// A lock request of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockRequest {
    Lock(LockScope, LockMode),
    Unlock(LockScope),
}

impl LockRequest {
    /// Converts the kernel's values: a kind of fcntl.h, and the first and the last byte. `call`
    /// returns the system call of the request.
    pub(crate) fn new(
        kind: i32,
        first: u64,
        last: u64,
        call: impl FnOnce() -> LockCall,
    ) -> Result<LockRequest, Errno> {
        if first > last || first > OFFSET_MAX {
            return Err(Errno::EINVAL);
        }
        let bytes = LockScope::Bytes { first, last: if last >= OFFSET_MAX { TO_END } else { last } };
        // The kernel sends a lock of flock(2) as a lock of all bytes.
        let scope = match bytes {
            LockScope::ALL_BYTES => match call() {
                LockCall::Flock => LockScope::WholeFile,
                LockCall::Fcntl => bytes,
                LockCall::Unknown => LockScope::Everything,
            },
            _ => bytes,
        };
        match kind {
            F_RDLCK => Ok(LockRequest::Lock(scope, LockMode::Shared)),
            F_WRLCK => Ok(LockRequest::Lock(scope, LockMode::Exclusive)),
            F_UNLCK => Ok(LockRequest::Unlock(scope)),
            _ => Err(Errno::EINVAL),
        }
    }
}

/// Removes the locks of a scope. A range that begins behind the first byte and extends to the end
/// of the file includes the lock of the whole file, which the owner may have taken together with
/// all bytes.
pub(crate) fn unlock(locks: &dyn FileLocks, owner: LockOwner, scope: LockScope) -> Result<()> {
    let unlocked = locks.unlock(owner, scope);
    match scope {
        LockScope::Bytes { first: 1.., last: TO_END } => {
            unlocked.and(locks.unlock(owner, LockScope::WholeFile))
        }
        _ => unlocked,
    }
}

/// Returns the kernel's values for a lock that conflicts: first byte, last byte, kind.
pub(crate) fn conflict_values(held: &HeldLock) -> (u64, u64, i32) {
    let kind = match held.mode {
        LockMode::Shared => F_RDLCK,
        LockMode::Exclusive => F_WRLCK,
    };
    match held.scope {
        LockScope::Bytes { first, last } => (first, last.min(OFFSET_MAX), kind),
        LockScope::WholeFile | LockScope::Everything => (0, OFFSET_MAX, kind),
    }
}

/// The requests of one mount that wait for locks.
#[derive(Debug, Default)]
pub(crate) struct LockWaiters {
    count: AtomicUsize,
    /// For each file with waiting requests: their number, and the number of times that a lock of
    /// the file was released while they waited.
    files: Mutex<HashMap<NodeId, WaitersOfFile>>,
    released: Condvar,
    /// The number of open files of each node that are being closed.
    closing: Mutex<HashMap<NodeId, usize>>,
    closed: Condvar,
}

#[derive(Debug, Default)]
struct WaitersOfFile {
    count: usize,
    releases: u64,
}

/// A request that waits.
pub(crate) struct WaitingRequest {
    pub file: Arc<dyn WritableFile>,
    pub node: NodeId,
    pub owner: LockOwner,
    pub scope: LockScope,
    pub mode: LockMode,
    /// The thread of the program.
    pub thread: u32,
}

impl LockWaiters {
    /// Calls `close`, which closes an open file and so releases locks.
    pub(crate) fn while_closing<T>(&self, node: NodeId, close: impl FnOnce() -> T) -> T {
        *lock(&self.closing).entry(node).or_default() += 1;
        let result = close();
        let mut closing = lock(&self.closing);
        if let Some(count) = closing.get_mut(&node) {
            *count -= 1;
            if *count == 0 {
                closing.remove(&node);
            }
        }
        drop(closing);
        self.closed.notify_all();
        self.wake(node);
        result
    }

    /// Gives open files of a node that a program has closed the time to release their locks. The
    /// kernel sends the request for this before close(2) returns, but does not wait for the reply,
    /// and another worker may be about to begin with the request.
    pub(crate) fn await_closes(&self, node: NodeId) {
        thread::sleep(PAUSE_MIN);
        let closing = lock(&self.closing);
        drop(wait_timeout_while(&self.closed, closing, CLOSE_MAX, |closing| closing.contains_key(&node)));
    }

    /// Wakes the requests that wait for a lock of this file.
    pub(crate) fn wake(&self, node: NodeId) {
        let mut files = lock(&self.files);
        if let Some(file) = files.get_mut(&node) {
            file.releases += 1;
            self.released.notify_all();
        }
    }

    /// Answers `request` when it has the lock, or cannot get it. Returns immediately.
    pub(crate) fn start(
        self: &Arc<Self>,
        state: &Arc<SessionState>,
        request: WaitingRequest,
        reply: ReplyEmpty,
    ) {
        if self.count.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return reply.error(Errno::ENOLCK);
        }
        let (waiters, state) = (Arc::clone(self), Arc::clone(state));
        // If the thread cannot be started, the reply is dropped with the closure, which answers the
        // request with EIO.
        let started = thread::Builder::new().name("lock-waiter".to_owned()).spawn(move || {
            let node = request.node;
            lock(&waiters.files).entry(node).or_default().count += 1;
            let result = waiters.wait(&state, &request);
            let mut files = lock(&waiters.files);
            if let Some(file) = files.get_mut(&node) {
                file.count -= 1;
                if file.count == 0 {
                    files.remove(&node);
                }
            }
            drop(files);
            drop(request);
            waiters.count.fetch_sub(1, Ordering::Relaxed);
            match result {
                Ok(()) => reply.ok(),
                Err(number) => reply.error(number),
            }
        });
        if let Err(error) = started {
            self.count.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(%error, "cannot start a thread that waits for a lock");
        }
    }

    /// Repeats the attempt until the lock is taken.
    fn wait(&self, state: &SessionState, request: &WaitingRequest) -> Result<(), Errno> {
        let started = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            if state.is_over() {
                return Err(Errno::ENOTCONN);
            }
            match pending_signals(request.thread) {
                // The kernel then handles the signal, and repeats the request if system calls are
                // restarted after this signal.
                Pending::Some => return Err(Errno::EINTR),
                Pending::None => {}
                Pending::Unknown if started.elapsed() > WAIT_UNSEEN_MAX => return Err(Errno::ENOLCK),
                Pending::Unknown => {}
            }
            let releases = self.releases(request.node);
            let attempt = (request.file.locks())
                .and_then(|locks| locks.try_lock(request.owner, request.scope, request.mode));
            match attempt {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(errno(&error)),
            }
            match self.pause(request.node, releases, pause) {
                Paused::Released => pause = PAUSE_MIN,
                Paused::TimedOut => pause = (pause * 2).min(PAUSE_MAX),
            }
        }
    }

    fn releases(&self, node: NodeId) -> u64 {
        lock(&self.files).get(&node).map_or(0, |file| file.releases)
    }

    /// Waits until a lock of the file is released on this mount, at most for `pause`.
    fn pause(&self, node: NodeId, seen: u64, pause: Duration) -> Paused {
        let is_unchanged = |files: &mut HashMap<NodeId, WaitersOfFile>| {
            files.get(&node).is_some_and(|file| file.releases == seen)
        };
        let mut files = wait_timeout_while(&self.released, lock(&self.files), pause, is_unchanged);
        if is_unchanged(&mut files) { Paused::TimedOut } else { Paused::Released }
    }
}

/// The end of a pause.
enum Paused {
    Released,
    TimedOut,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_all_bytes_may_be_one_of_flock() {
        let lock = |first, last| LockRequest::new(F_WRLCK, first, last, || LockCall::Unknown).unwrap();
        let of_call = |call| LockRequest::new(F_UNLCK, 0, OFFSET_MAX, || call).unwrap();
        assert_eq!(of_call(LockCall::Flock), LockRequest::Unlock(LockScope::WholeFile));
        assert_eq!(of_call(LockCall::Fcntl), LockRequest::Unlock(LockScope::ALL_BYTES));
        assert_eq!(of_call(LockCall::Unknown), LockRequest::Unlock(LockScope::Everything));
        let bytes = |first, last| LockRequest::Lock(LockScope::Bytes { first, last }, LockMode::Exclusive);
        assert_eq!(lock(0, OFFSET_MAX), LockRequest::Lock(LockScope::Everything, LockMode::Exclusive));
        assert_eq!(lock(0, OFFSET_MAX - 1), bytes(0, OFFSET_MAX - 1));
        assert_eq!(lock(1, OFFSET_MAX), bytes(1, TO_END));
        assert_eq!(lock(5, 5), bytes(5, 5));
        for (kind, first, last) in [(F_RDLCK, 6, 5), (F_UNLCK, u64::MAX, u64::MAX), (3, 0, 1), (-1, 0, 1)] {
            let converted = LockRequest::new(kind, first, last, || panic!("no call is needed"));
            assert!(converted.is_err(), "{kind} {first} {last}");
        }
    }

    #[test]
    fn a_release_on_this_mount_ends_the_pause() {
        let waiters = Arc::new(LockWaiters::default());
        let (first, second) = (NodeId(1), NodeId(2));
        for node in [first, second] {
            lock(&waiters.files).entry(node).or_default().count += 1;
        }
        let seen = waiters.releases(first);
        waiters.wake(first);
        // A release before the pause counts, too.
        assert!(matches!(waiters.pause(first, seen, Duration::from_secs(3600)), Paused::Released));
        assert!(matches!(waiters.pause(second, 0, Duration::from_millis(1)), Paused::TimedOut));
        waiters.wake(NodeId(3)); // no request waits for this file
        assert!(!lock(&waiters.files).contains_key(&NodeId(3)));
    }
}
