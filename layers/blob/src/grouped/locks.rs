//! The wait for a joint transaction of another client that has locked data.

use std::time::{Duration, Instant};

use quell_vfs::Error;
use quell_wire::blob::{JointId, Refusal};

use crate::retries::Retries;

/// The time after which a joint transaction that still locks data is resolved: its client may be
/// dead. If the client still runs, it repeats the transaction.
const RESOLVE_AFTER: Duration = Duration::from_millis(200);
/// The longest time for which an operation waits for locks.
const LIMIT: Duration = Duration::from_secs(60);

/// The waits of one operation.
pub(crate) struct LockWaits {
    deadline: Instant,
    attempts: u32,
    /// The transaction that held the lock at the last attempt, and the time at which it was first
    /// found.
    met: Option<(JointId, Instant)>,
}

/// The next step of an operation that has met a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// The operation waits, and is repeated.
    Wait(Duration),
    /// The other transaction is resolved, and the operation is repeated.
    Resolve,
    /// The operation fails.
    GiveUp,
}

impl LockWaits {
    pub(crate) fn new() -> LockWaits {
        LockWaits { deadline: Instant::now() + LIMIT, attempts: 0, met: None }
    }

    /// Returns the next step after an attempt that has met a lock of `id`, or was aborted.
    pub(crate) fn next(&mut self, id: Option<JointId>) -> Next {
        let now = Instant::now();
        if now >= self.deadline {
            return Next::GiveUp;
        }
        self.attempts += 1;
        let since = match (id, self.met) {
            (Some(id), Some((met, since))) if id == met => Some(since),
            (Some(id), _) => {
                self.met = Some((id, now));
                None
            }
            (None, _) => None,
        };
        if since.is_some_and(|since| now - since >= RESOLVE_AFTER) {
            return Next::Resolve;
        }
        let delays = Retries {
            attempts_max: u32::MAX,
            first_delay: Duration::from_micros(500),
            delay_max: Duration::from_millis(20),
        };
        Next::Wait(delays.delay(self.attempts))
    }
}

/// Returns the refusal of a read of locked data.
pub(crate) fn lock_of(error: &Error) -> Option<Refusal> {
    error.source.as_ref()?.downcast_ref::<Refusal>().cloned()
}
