//! The number of attempts of a transaction that conflicts, and the time between them.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// How often a transaction is repeated after a conflict, and the time between two attempts.
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
