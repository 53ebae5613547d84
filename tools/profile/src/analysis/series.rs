//! Counts over time in steps of equal length, in bounded memory: when there are too many steps, the
//! length of a step is doubled.

/// The first length of a step; short enough for a start that takes a tenth of a second.
const STEP_US: u64 = 10_000;
const STEPS_MAX: usize = 1 << 16;
/// The paper's unit: operations per second.
pub const SECOND_US: u64 = 1_000_000;

#[derive(Debug, Clone)]
pub struct Series {
    step_us: u64,
    counts: Vec<u32>,
}

impl Default for Series {
    fn default() -> Series {
        Series { step_us: STEP_US, counts: Vec::new() }
    }
}

/// The busiest interval of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peak {
    pub count: u64,
    pub at_us: u64,
    pub window_us: u64,
}

impl Series {
    /// Adds a count. `at_us`: microseconds since the common start of all series.
    pub fn add(&mut self, at_us: u64, count: u32) {
        while at_us / self.step_us >= STEPS_MAX as u64 {
            self.double();
        }
        let step = (at_us / self.step_us) as usize;
        if step >= self.counts.len() {
            self.counts.resize(step + 1, 0);
        }
        self.counts[step] = self.counts[step].saturating_add(count);
    }

    fn double(&mut self) {
        self.step_us *= 2;
        self.counts =
            self.counts.chunks(2).map(|pair| pair.iter().fold(0, |a: u32, b| a.saturating_add(*b))).collect();
    }

    pub fn step_us(&self) -> u64 {
        self.step_us
    }

    /// Returns the series with steps of at least this length.
    pub fn coarsened(&self, step_us: u64) -> Series {
        let mut series = self.clone();
        while series.step_us < step_us {
            series.double();
        }
        series
    }

    /// Returns the sum of this many steps, beginning with step `begin`.
    pub fn sum(&self, begin: usize, steps: usize) -> u64 {
        let end = begin.saturating_add(steps).min(self.counts.len());
        self.counts.get(begin..end).map_or(0, |counts| counts.iter().map(|c| u64::from(*c)).sum())
    }

    /// Returns the busiest interval of this length, or of the whole duration if that is shorter.
    pub fn peak(&self, duration_us: u64, window_us: u64) -> Peak {
        let steps = (window_us.min(duration_us).div_ceil(self.step_us)).max(1) as usize;
        let window_us = (steps as u64 * self.step_us).min(duration_us).max(1);
        let mut sum: u64 = self.counts.iter().take(steps).map(|c| u64::from(*c)).sum();
        let (mut count, mut at) = (sum, 0);
        for end in steps..self.counts.len() {
            sum += u64::from(self.counts[end]);
            sum -= u64::from(self.counts[end - steps]);
            if sum > count {
                (count, at) = (sum, end + 1 - steps);
            }
        }
        Peak { count, at_us: at as u64 * self.step_us, window_us }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_busiest_second() {
        let mut series = Series::default();
        for i in 0..100 {
            series.add(i * 100_000, 1);
        }
        series.add(5_050_000, 40);
        let peak = series.peak(10_000_000, SECOND_US);
        assert_eq!((peak.count, peak.window_us), (50, SECOND_US));
        assert!((4_000_000..=5_050_000).contains(&peak.at_us));
    }

    #[test]
    fn a_duration_below_a_second_is_the_window() {
        let mut series = Series::default();
        series.add(0, 10);
        series.add(499_999, 10);
        let peak = series.peak(500_000, SECOND_US);
        assert_eq!((peak.count, peak.window_us), (20, 500_000));
        assert_eq!(Series::default().peak(0, SECOND_US).count, 0);
    }

    #[test]
    fn a_year_fits_without_losing_counts() {
        let mut series = Series::default();
        series.add(0, 3);
        series.add(365 * 86_400 * SECOND_US, 4);
        assert!(series.counts.len() <= STEPS_MAX);
        assert_eq!(series.counts.iter().sum::<u32>(), 7);
        series.add(u64::MAX, 1);
        assert_eq!(series.counts.iter().sum::<u32>(), 8);
    }
}
