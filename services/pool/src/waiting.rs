//! Bounded waits for locks.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{FileId, MemberId};

use crate::lock_table::{HeldLock, Lock};
use crate::member::Member;

/// The longest time for which an operation waits for a lock.
const WAIT_MAX: Duration = Duration::from_secs(30);

impl Member {
    /// Waits until a lock is free and takes it.
    ///
    /// # Errors
    /// `TimedOut` after 30 seconds. `Unavailable` at once if a rename to this name has waited for
    /// the decision of its coordinator for 30 seconds.
    pub(crate) async fn lock(&self, lock: Lock) -> Result<HeldLock> {
        if let Lock::Name(dir, name) = &lock
            && let Some(coordinator) = self.late_coordinator_of(*dir, name)
        {
            let source =
                Some(format!("a rename of this name has no decision of member {} yet", coordinator.0).into());
            return Err(Error { source, ..Error::new(ErrorKind::Unavailable, "use the name", name) });
        }
        let mut locked = pin!(self.locks.lock(lock));
        let mut until = None;
        poll_fn(|context| {
            if let Poll::Ready(held) = locked.as_mut().poll(context) {
                return Poll::Ready(Ok(held));
            }
            let now = self.monotonic();
            if now >= *until.get_or_insert(now + WAIT_MAX) {
                return Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "wait for another operation", "")));
            }
            self.lock_waiters.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Returns the coordinator of a rename to a name, if the rename has waited too long for the
    /// decision.
    fn late_coordinator_of(&self, dir: FileId, name: &[u8]) -> Option<MemberId> {
        let prepared = self.prepared.borrow();
        let (transaction, prepared) = prepared.of_name(dir, name)?;
        let age = self.monotonic().saturating_sub(prepared.since);
        (age >= WAIT_MAX).then_some(transaction.coordinator)
    }

    /// Ends waits that have reached their time limit. Must be called about once a second.
    pub fn end_waits(&self) {
        let waiters = self.lock_waiters.take();
        waiters.into_iter().for_each(|waiter| waiter.wake());
    }
}
