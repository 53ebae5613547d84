//! The distribution of times, which servers count and commands show.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The number of buckets of a [`Histogram`].
pub const BUCKETS: usize = 28;

/// The distribution of times. Bucket `i` counts times of at most 2^i microseconds that no lower
/// bucket counts: 1 us, 2 us, and so on up to 67 s. The last bucket counts all longer times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Histogram {
    /// The number of times in each bucket.
    pub counts: [u64; BUCKETS],
    /// The sum of all times, in nanoseconds.
    pub total_ns: u64,
}

impl Histogram {
    /// Counts a time.
    pub fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // The smallest i with ns <= 1000 * 2^i.
        let microseconds = ns.div_ceil(1000).max(1);
        let bucket = (u64::BITS - (microseconds - 1).leading_zeros()) as usize;
        self.counts[bucket.min(BUCKETS - 1)] += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
    }

    /// Returns the largest time that a bucket counts, in microseconds, or `None` for the last
    /// bucket, which has no bound.
    pub fn bound_us(bucket: usize) -> Option<u64> {
        (bucket < BUCKETS - 1).then(|| 1 << bucket)
    }

    /// Adds all times of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
    }

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the times that were counted since `earlier`, a state of the same histogram.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        Histogram {
            counts: std::array::from_fn(|i| self.counts[i].saturating_sub(earlier.counts[i])),
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
        }
    }

    /// Returns the bound of the bucket with the time that at least `percent` of 100 times do not
    /// exceed, in microseconds. `None` if no time was counted; `u64::MAX` if the time is in the
    /// last bucket. The time itself is more than half of the bound.
    pub fn percentile_us(&self, percent: u64) -> Option<u64> {
        let count = u128::from(self.count());
        let wanted = (count * u128::from(percent.min(100))).div_ceil(100).max(1);
        let mut counted = 0_u128;
        for (bucket, in_bucket) in self.counts.iter().enumerate() {
            counted += u128::from(*in_bucket);
            if counted >= wanted {
                return Some(Histogram::bound_us(bucket).unwrap_or(u64::MAX));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket_of(time: Duration) -> usize {
        let mut histogram = Histogram::default();
        histogram.add(time);
        assert_eq!((histogram.count(), histogram.total_ns), (1, time.as_nanos() as u64));
        histogram.counts.iter().position(|count| *count == 1).unwrap()
    }

    #[test]
    fn a_time_is_counted_in_the_lowest_bucket_whose_bound_it_does_not_exceed() {
        assert_eq!(bucket_of(Duration::ZERO), 0);
        for bucket in 0..BUCKETS - 1 {
            let bound = Duration::from_micros(Histogram::bound_us(bucket).unwrap());
            assert_eq!(bucket_of(bound), bucket);
            assert_eq!(bucket_of(bound + Duration::from_nanos(1)), bucket + 1);
        }
        assert_eq!(bucket_of(Duration::from_secs(1 << 30)), BUCKETS - 1);
        let mut histogram = Histogram::default();
        histogram.add(Duration::MAX);
        assert_eq!((histogram.counts[BUCKETS - 1], histogram.total_ns), (1, u64::MAX));
        assert_eq!(Histogram::bound_us(BUCKETS - 2), Some(67_108_864));
        assert_eq!(Histogram::bound_us(BUCKETS - 1), None);
    }

    #[test]
    fn a_percentile_is_the_bound_of_the_bucket_that_reaches_it() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile_us(50), None);
        (0..98).for_each(|_| histogram.add(Duration::from_micros(7)));
        histogram.add(Duration::from_micros(100));
        histogram.add(Duration::from_secs(100));
        assert_eq!(histogram.percentile_us(0), Some(8));
        assert_eq!(histogram.percentile_us(50), Some(8));
        assert_eq!(histogram.percentile_us(98), Some(8));
        assert_eq!(histogram.percentile_us(99), Some(128));
        assert_eq!(histogram.percentile_us(100), Some(u64::MAX));
        let mut later = histogram;
        later.add(Duration::from_micros(2));
        assert_eq!(later.since(&histogram).percentile_us(50), Some(2));
        assert_eq!(later.since(&histogram).total_ns, 2000);
        let mut merged = histogram;
        merged.merge(&later.since(&histogram));
        assert_eq!(merged, later);
        // Values of another process do not overflow.
        let hostile = Histogram { counts: [u64::MAX; BUCKETS], total_ns: u64::MAX };
        assert_eq!(hostile.percentile_us(99), Some(1));
        assert_eq!(histogram.since(&hostile), Histogram::default());
    }
}
