//! The number of attempts of a transaction that conflicts, and the time between them.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::error::Result;

/// The number of attempts of a transaction that conflicts, and the time between two attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retries {
    /// The largest number of attempts, at least 1.
    pub attempts_max: u32,
    /// The mean time before the second attempt. It doubles with each attempt.
    pub first_delay: Duration,
    /// The largest mean time before an attempt.
    pub delay_max: Duration,
}

impl Default for Retries {
    /// Returns 20 attempts with about 7 seconds of delays in total.
    fn default() -> Retries {
        Retries {
            attempts_max: 20,
            first_delay: Duration::from_micros(100),
            delay_max: Duration::from_secs(1),
        }
    }
}

impl Retries {
    /// Calls `attempt`, and calls it again after an error for which [`Error::is_repeatable`]
    /// returns true.
    ///
    /// # Errors
    /// The first error for which it returns false; after `attempts_max` attempts, the error of the
    /// last attempt.
    ///
    /// [`Error::is_repeatable`]: crate::Error::is_repeatable
    pub fn repeat<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        for number in 1.. {
            match attempt() {
                Err(error) if error.is_repeatable() && number < self.attempts_max => {
                    std::thread::sleep(self.delay(number));
                }
                result => return result,
            }
        }
        unreachable!("the loop returns at the last attempt")
    }

    /// Returns the time between `attempt`, counted from 1, and the next one. It is a random time
    /// from 0.5 to 1.5 times the mean, so that two transactions that conflicted are repeated at
    /// different times.
    pub(crate) fn delay(&self, attempt: u32) -> Duration {
        let factor = 1_u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        let mean = self.first_delay.saturating_mul(factor).min(self.delay_max);
        // The hash of a new state is a random number.
        let random = RandomState::new().hash_one(attempt) % 1024;
        mean / 2 + mean.mul_f64(random as f64 / 1024.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound() {
        let retries = Retries::default();
        for attempt in 1..100 {
            let mean = retries.first_delay.saturating_mul(1 << (attempt - 1).min(20)).min(retries.delay_max);
            let delay = retries.delay(attempt);
            assert!(delay >= mean / 2 && delay <= mean * 3 / 2, "attempt {attempt}: {delay:?}");
        }
    }
}
