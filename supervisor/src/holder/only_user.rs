//! Lets the kernel keep the names and attributes of a log mount while the mount is the only user of
//! its store, see docs/techniques/log.md. A thread checks twice a second whether this is still so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use quell_fuse::KernelCache;
use quell_log::LogFs;
use quell_vfs::Result;

use crate::holder::messages::Messages;
use crate::protocol::plan::KernelCaching;

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_millis(500);
/// How long the kernel keeps names and attributes. Another user of the store waits until they have
/// expired, so a longer time delays it. This is also shorter than the time after which shared file
/// systems remove the locks of a node that does not answer, so that the kernel of such a node keeps
/// nothing when another one becomes the only user.
const LIFETIME: Duration = Duration::from_secs(5);
/// If the last completed check began longer ago than this, the kernel keeps no replies and the log
/// layer follows the changes of other processes: the file system does not answer, and may remove
/// the locks of this node.
const CONFIRMATION: Duration = Duration::from_secs(2);
/// The number of intervals between the last reply that the kernel keeps and the sharing of the
/// store. They are one second longer than the lifetime, the time that this reply may take to reach
/// a program.
const ENDING_INTERVALS: u32 = 12;
/// The number of intervals without requests after which the store is shared, so that processes that
/// begin to use it later do not wait, and nothing keeps its file system from becoming read-only.
/// They are longer than the lifetime, so the use of a name causes a request in this time.
const IDLE_INTERVALS: u32 = 12;
/// The number of intervals before the first attempt, so that mounts of a job that start together do
/// not wait for one another.
const FIRST_INTERVALS: u32 = 3;
/// The largest number of intervals between two attempts to become the only user.
const ATTEMPT_INTERVALS_MAX: u32 = 128;

/// Whether a mount is the only user of its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Other processes may use the store. The next attempt follows after this many intervals, if
    /// there are requests.
    Shared { intervals: u32 },
    /// The mount is the only user, and has had no requests for this number of intervals.
    Only { idle: u32 },
    /// The kernel keeps nothing new. The store is shared after this many intervals.
    Ending { intervals: u32 },
}

/// The action of one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Wait,
    /// Becomes the only user, or confirms that it still is.
    BeOnlyUser,
    /// Lets the kernel keep nothing new.
    End,
    /// Shares the store.
    Share,
}

/// The phases of a mount and the pauses between its attempts. No I/O.
#[derive(Debug)]
struct Schedule {
    phase: Phase,
    /// The number of intervals from the next attempt to the one after it.
    pause: u32,
}

impl Schedule {
    fn new() -> Schedule {
        Schedule { phase: Phase::Shared { intervals: FIRST_INTERVALS }, pause: 1 }
    }

    /// Returns the action for the next interval. `is_active`: there were requests in the last one.
    fn next(&mut self, is_active: bool) -> Action {
        match &mut self.phase {
            Phase::Shared { intervals: 0 } if is_active => Action::BeOnlyUser,
            Phase::Shared { intervals: 0 } => Action::Wait,
            Phase::Only { idle } => {
                *idle = if is_active { 0 } else { *idle + 1 };
                if *idle < IDLE_INTERVALS {
                    return Action::BeOnlyUser;
                }
                self.pause = 1; // no other process has disturbed this one
                Action::End
            }
            Phase::Ending { intervals: 0 } => Action::Share,
            Phase::Shared { intervals } | Phase::Ending { intervals } => {
                *intervals -= 1;
                Action::Wait
            }
        }
    }

    /// Notes the result of [`Action::BeOnlyUser`].
    fn is_only_user(&mut self, is_only_user: bool) {
        match (self.phase, is_only_user) {
            (Phase::Only { .. }, true) => {}
            (_, true) => self.phase = Phase::Only { idle: 0 },
            (Phase::Only { .. }, false) => self.end(),
            (_, false) => self.wait(),
        }
    }

    /// Notes that the kernel keeps nothing new.
    fn end(&mut self) {
        self.phase = Phase::Ending { intervals: ENDING_INTERVALS };
    }

    /// Notes that the store is shared, or cannot be used alone. Waits before the next attempt,
    /// longer each time: each attempt is a request to the store, and the processes that take turns
    /// wait for several seconds each time.
    fn wait(&mut self) {
        self.phase = Phase::Shared { intervals: self.pause };
        self.pause = (self.pause * 2).min(ATTEMPT_INTERVALS_MAX);
    }
}

/// Starts the thread, unless the kernel never keeps anything. It ends with the mount. The result is
/// true while this mount is the only user of its store.
pub fn start(
    fs: &Arc<LogFs>,
    cache: Option<KernelCache>,
    caching: KernelCaching,
    messages: &Messages,
) -> Arc<AtomicBool> {
    let is_only_user = Arc::new(AtomicBool::new(false));
    let Some(cache) = cache else { return is_only_user };
    let shared_lifetime = match caching {
        KernelCaching::Auto => Duration::ZERO,
        KernelCaching::None => return is_only_user,
        KernelCaching::Seconds(seconds) => Duration::from_secs(seconds.into()),
    };
    cache.set_lifetime(shared_lifetime);
    let mut keeper = Keeper {
        fs: Arc::downgrade(fs),
        cache,
        shared_lifetime,
        schedule: Schedule::new(),
        is_only_user: Arc::clone(&is_only_user),
        replies: 0,
    };
    let started = thread::Builder::new().name("quell-user".into()).spawn(move || {
        loop {
            thread::sleep(INTERVAL);
            if keeper.act().is_none() {
                return;
            }
        }
    });
    if let Err(e) = started {
        messages.print(&format!(
            "cannot start the thread that lets the kernel keep names: {e}; the mount is slower"
        ));
    }
    is_only_user
}

struct Keeper {
    fs: Weak<LogFs>,
    cache: KernelCache,
    shared_lifetime: Duration,
    schedule: Schedule,
    is_only_user: Arc<AtomicBool>,
    /// The number of replies at the last interval.
    replies: u64,
}

impl Keeper {
    /// Acts once. Returns `None` if the mount has ended.
    fn act(&mut self) -> Option<()> {
        let fs = self.fs.upgrade()?;
        let replies = self.cache.replies();
        let is_active = replies != self.replies;
        self.replies = replies;
        match self.schedule.next(is_active) {
            Action::Wait => {}
            Action::BeOnlyUser => {
                let until = Instant::now() + CONFIRMATION;
                let found = logged(fs.be_only_user(until)).unwrap_or(false);
                self.set_only_user(&fs, found.then_some(until));
                // After the lifetime was set, because the pause begins now.
                self.schedule.is_only_user(found);
            }
            Action::End => {
                self.set_only_user(&fs, None);
                self.schedule.end();
            }
            // If a file is being created, the next interval tries again.
            Action::Share => {
                if fs.share_stores() {
                    self.schedule.wait();
                }
            }
        }
        Some(())
    }

    /// Sets the lifetime of replies. `until`: if this mount is the only user of its store, the
    /// moment at which the lifetime ends without a confirmation.
    fn set_only_user(&self, fs: &LogFs, until: Option<Instant>) {
        match until {
            Some(until) => {
                let lifetime = LIFETIME.max(self.shared_lifetime);
                self.cache.set_lifetime_until(until, lifetime, self.shared_lifetime);
            }
            None => {
                self.cache.set_lifetime(self.shared_lifetime);
                // Called after the lifetime was set: the kernel may keep the data of each file that
                // was opened before, so the file must belong to the period that ends here.
                fs.end_only_user_period();
            }
        }
        self.is_only_user.store(until.is_some(), Ordering::Relaxed);
    }
}

fn logged<T>(result: Result<T>) -> Option<T> {
    if let Err(error) = &result {
        tracing::debug!(%error, "the use of the store");
    }
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_the_kernel_keeps_expires_before_the_store_is_shared() {
        assert!(INTERVAL * ENDING_INTERVALS >= LIFETIME + Duration::from_secs(1));
        assert!(INTERVAL * IDLE_INTERVALS > LIFETIME);
        assert!(CONFIRMATION >= INTERVAL * 2, "a confirmation may be late by one interval");
    }

    #[test]
    fn the_only_user_confirms_it_and_shares_the_store_after_a_pause() {
        let mut schedule = Schedule::new();
        for _ in 0..FIRST_INTERVALS {
            assert_eq!(schedule.next(true), Action::Wait);
        }
        assert_eq!(schedule.next(true), Action::BeOnlyUser);
        schedule.is_only_user(true);
        for _ in 0..10 {
            assert_eq!(schedule.next(true), Action::BeOnlyUser);
            schedule.is_only_user(true);
        }
        assert_eq!(schedule.next(true), Action::BeOnlyUser);
        schedule.is_only_user(false);
        for _ in 0..ENDING_INTERVALS {
            assert_eq!(schedule.next(true), Action::Wait);
        }
        assert_eq!(schedule.next(true), Action::Share);
        schedule.wait();
        assert_eq!(schedule.next(true), Action::Wait);
        assert_eq!(schedule.next(true), Action::BeOnlyUser);
    }

    #[test]
    fn an_idle_mount_shares_the_store_until_there_are_requests() {
        let mut schedule = Schedule { phase: Phase::Only { idle: 0 }, pause: 64 };
        for _ in 1..IDLE_INTERVALS {
            assert_eq!(schedule.next(false), Action::BeOnlyUser);
            schedule.is_only_user(true);
        }
        assert_eq!(schedule.next(false), Action::End);
        schedule.end();
        for _ in 0..ENDING_INTERVALS {
            assert_eq!(schedule.next(true), Action::Wait);
        }
        assert_eq!(schedule.next(false), Action::Share);
        schedule.wait();
        assert_eq!(schedule.next(false), Action::Wait);
        for _ in 0..100 {
            assert_eq!(schedule.next(false), Action::Wait);
        }
        assert_eq!(schedule.next(true), Action::BeOnlyUser);
    }

    #[test]
    fn attempts_become_rare_while_others_use_the_store() {
        let mut schedule = Schedule::new();
        let mut attempts = 0;
        for _ in 0..1000 {
            if schedule.next(true) == Action::BeOnlyUser {
                attempts += 1;
                schedule.is_only_user(false);
            }
        }
        assert!((10..20).contains(&attempts), "{attempts}");
    }
}
