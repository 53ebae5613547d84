//! The curve of figure 3 of the paper: decides on the next number of threads, on the end of the
//! rise, and on the sustained rate. Plain functions of the steps so far; no clock, no thread, no
//! file.

use std::time::Duration;

/// The factor by which a step must exceed the best step with fewer threads.
const RISE: f64 = 1.10;
/// The factor of the best rate from which a step belongs to the plateau.
const PLATEAU: f64 = 1.0 / RISE;
/// The minimum of a meaningful step: one round of the mix, some calls per thread, and a minimum
/// duration.
const STEP_OPERATIONS_MIN: u64 = 40;
const THREAD_OPERATIONS_MIN: u64 = 10;
const STEP_SECONDS_MIN: f64 = 0.02;

/// One measurement of the mix with a given number of threads.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The number of threads.
    pub parallelism: u32,
    /// The operations completed.
    pub operations: u64,
    /// The duration in seconds.
    pub seconds: f64,
    /// The median latency of a call.
    pub p50: Duration,
    /// The 99th percentile of the latencies.
    pub p99: Duration,
    /// The share of the time that this node's processors were busy, with any program.
    pub node_busy: Option<f64>,
}

impl Step {
    /// Returns the operations per second.
    pub fn rate(&self) -> f64 {
        rate(self.operations, self.seconds)
    }
}

/// Returns operations per second; 0 if no time has passed.
pub fn rate(operations: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { operations as f64 / seconds } else { 0.0 }
}

/// The operations and the time that remain of the limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Left {
    pub operations: u64,
    pub seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Next {
    Measure { parallelism: u32, operations: u64, seconds: f64 },
    Done(End),
}

/// The reason for which the rise ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// More threads gave no higher rate.
    Plateau,
    /// The rate still rose at the highest parallelism allowed.
    Highest,
    /// The limit of operations was reached.
    Operations,
    /// The time limit was reached.
    Seconds,
    /// A call took too long.
    Slow,
    /// All requests were answered from caches.
    Cached,
    /// The user stopped the probe.
    Interrupted,
}

/// Decides on the next step from the steps so far, the remaining limits, and the maximum of
/// `highest` threads.
pub fn next(steps: &[Step], highest: u32, left: Left) -> Next {
    let parallelism = match steps.last().map(|step| step.parallelism) {
        None => 1,
        Some(last) => {
            let best =
                |of: &dyn Fn(&&Step) -> bool| steps.iter().filter(of).map(Step::rate).fold(0.0, f64::max);
            let before = best(&|step| step.parallelism < last);
            let now = best(&|step| step.parallelism == last);
            let tries = steps.iter().filter(|step| step.parallelism == last).count();
            match now >= before * RISE {
                true if last >= highest => return Next::Done(End::Highest),
                true => last.saturating_mul(2).min(highest),
                // A short step on a busy machine is easily wrong, so it is repeated once.
                false if tries == 1 => last,
                false => return Next::Done(End::Plateau),
            }
        }
    };
    let parts = steps_possible(parallelism, highest);
    let operations = left.operations / parts;
    let seconds = left.seconds / parts as f64;
    if seconds < STEP_SECONDS_MIN {
        Next::Done(End::Seconds)
    } else if operations < STEP_OPERATIONS_MIN.max(THREAD_OPERATIONS_MIN * u64::from(parallelism)) {
        Next::Done(End::Operations)
    } else {
        Next::Measure { parallelism, operations, seconds }
    }
}

/// Returns the number of steps from this parallelism to the highest, plus one for a repetition.
fn steps_possible(parallelism: u32, highest: u32) -> u64 {
    let doublings = std::iter::successors(Some(parallelism), |p| (*p < highest).then(|| p.saturating_mul(2)));
    doublings.count() as u64 + 1
}

/// Returns the steps whose rate is near the best.
pub fn plateau(steps: &[Step]) -> impl Iterator<Item = &Step> {
    let best = steps.iter().map(Step::rate).fold(0.0, f64::max);
    steps.iter().filter(move |step| step.rate() > 0.0 && step.rate() >= best * PLATEAU)
}

/// Returns the rate of all steps of the plateau together.
pub fn sustained(steps: &[Step]) -> Option<f64> {
    let (operations, seconds) =
        plateau(steps).fold((0, 0.0), |(o, s), step| (o + step.operations, s + step.seconds));
    (operations > 0).then(|| rate(operations, seconds))
}

/// Returns the latency that this share of the calls did not exceed. Sorts the latencies.
pub fn percentile(latencies: &mut [Duration], share: f64) -> Duration {
    latencies.sort_unstable();
    let rank = (latencies.len() as f64 * share).ceil() as usize;
    latencies.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLENTY: Left = Left { operations: 100_000, seconds: 100.0 };

    fn step(parallelism: u32, rate: u64) -> Step {
        let latency = Duration::from_micros(100);
        Step { parallelism, operations: rate, seconds: 1.0, p50: latency, p99: latency, node_busy: None }
    }

    fn steps(of: &[(u32, u64)]) -> Vec<Step> {
        of.iter().map(|(parallelism, rate)| step(*parallelism, *rate)).collect()
    }

    #[test]
    fn threads_double_until_the_rate_stops_twice() {
        use End::{Highest, Plateau};
        type Case<'a> = (u32, &'a [(u32, u64)], Result<u32, End>);
        let cases: [Case; 12] = [
            (64, &[], Ok(1)),
            (64, &[(1, 13_000)], Ok(2)),
            (64, &[(1, 13_000), (2, 22_000)], Ok(4)),
            // The curve of the paper, if it had been measured in this way.
            (64, &[(1, 13_038), (2, 22_000), (4, 31_664), (8, 31_194)], Ok(8)),
            (64, &[(1, 13_038), (2, 22_000), (4, 31_664), (8, 31_194), (8, 33_262)], Err(Plateau)),
            // A slow step is repeated once.
            (64, &[(1, 10_000), (2, 9_000)], Ok(2)),
            (64, &[(1, 10_000), (2, 9_000), (2, 19_000)], Ok(4)),
            (64, &[(1, 10_000), (2, 9_000), (2, 10_500)], Err(Plateau)),
            (64, &[(1, 10_000), (2, 0), (2, 0)], Err(Plateau)),
            // The highest parallelism is not exceeded and need not be a power of two.
            (6, &[(1, 10), (2, 20), (4, 40)], Ok(6)),
            (6, &[(1, 10), (2, 20), (4, 40), (6, 60)], Err(Highest)),
            (6, &[(1, 10), (2, 20), (4, 40), (6, 41)], Ok(6)),
        ];
        for (highest, before, expected) in cases {
            let decided = match next(&steps(before), highest, PLENTY) {
                Next::Measure { parallelism, .. } => Ok(parallelism),
                Next::Done(end) => Err(end),
            };
            assert_eq!(decided, expected, "{before:?}");
        }
    }

    #[test]
    fn the_remaining_limits_are_divided_among_the_possible_steps() {
        let cases = [
            // steps so far, highest, left, expected
            (vec![], 64, (16_000, 8.0), Ok((1, 2_000, 1.0))),
            (steps(&[(1, 9)]), 64, (14_000, 7.0), Ok((2, 2_000, 1.0))),
            (vec![], 1, (16_000, 8.0), Ok((1, 8_000, 4.0))),
            (vec![], 64, (100, 8.0), Err(End::Operations)),
            (steps(&[(1, 9), (2, 18), (4, 36), (8, 72), (16, 144)]), 64, (900, 7.0), Err(End::Operations)),
            (vec![], 64, (16_000, 0.1), Err(End::Seconds)),
            (vec![], 64, (0, 0.0), Err(End::Seconds)),
        ];
        for (before, highest, (operations, seconds), expected) in cases {
            let decided = match next(&before, highest, Left { operations, seconds }) {
                Next::Measure { parallelism, operations, seconds } => Ok((parallelism, operations, seconds)),
                Next::Done(end) => Err(end),
            };
            assert_eq!(decided, expected, "{before:?} {highest} {operations} {seconds}");
        }
    }

    #[test]
    fn the_steps_end_within_the_limits_for_any_rates() {
        // Rates from a fixed seed, so that every run tests the same values.
        let mut seed = 1u64;
        let mut chance = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..2_000 {
            let highest = 1 + chance(256) as u32;
            let limit = chance(100_000);
            let mut left = Left { operations: limit, seconds: 10.0 };
            let mut before: Vec<Step> = Vec::new();
            while let Next::Measure { parallelism, operations, seconds } = next(&before, highest, left) {
                assert!(parallelism <= highest && operations <= left.operations && seconds <= left.seconds);
                assert!(before.len() < 20, "{before:?}");
                left.operations -= operations;
                left.seconds -= seconds;
                before.push(Step { operations: 1 + chance(operations), ..step(parallelism, 1) });
            }
        }
    }

    #[test]
    fn the_sustained_rate_is_that_of_the_plateau() {
        let paper = steps(&[(1, 13_038), (4, 31_664), (8, 31_194), (16, 33_262), (24, 32_916)]);
        let sustained_there = sustained(&paper).unwrap();
        assert!((32_000.0..32_500.0).contains(&sustained_there), "{sustained_there}");
        assert_eq!(plateau(&paper).map(|step| step.parallelism).collect::<Vec<_>>(), [4, 8, 16, 24]);
        assert_eq!(sustained(&steps(&[(1, 100), (2, 200)])), Some(200.0));
        assert_eq!(sustained(&steps(&[(1, 0)])), None);
        assert_eq!(sustained(&[]), None);
    }

    #[test]
    fn percentiles_are_latencies_that_occurred() {
        let mut hundred: Vec<Duration> = (1..=100).rev().map(Duration::from_micros).collect();
        assert_eq!(percentile(&mut hundred, 0.5), Duration::from_micros(50));
        assert_eq!(percentile(&mut hundred, 0.99), Duration::from_micros(99));
        assert_eq!(percentile(&mut hundred, 1.0), Duration::from_micros(100));
        assert_eq!(percentile(&mut [Duration::from_micros(7)], 0.01), Duration::from_micros(7));
        assert_eq!(percentile(&mut [], 0.5), Duration::ZERO);
    }
}
