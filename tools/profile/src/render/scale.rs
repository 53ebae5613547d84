//! The positions of values along a linear axis, and the values that are marked on it.

/// A linear axis that begins with zero.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// The value at the end of the axis.
    end: f64,
}

impl Scale {
    pub fn new(greatest: f64) -> Self {
        let greatest = finite(greatest);
        // An axis must not have the length zero.
        Scale { end: if greatest > 0.0 { greatest } else { 1.0 } }
    }

    /// Returns the position of a value, from 0 at zero to 1 at the end.
    pub fn position(&self, value: f64) -> f64 {
        (finite(value) / self.end).clamp(0.0, 1.0)
    }

    /// Returns the values to mark: zero and round values, about `number` of them.
    pub fn marks(&self, number: usize) -> Vec<f64> {
        multiples(round_step(self.end / number as f64), self.end)
    }
}

/// Returns round times from zero to `end` in seconds, about `number` of them.
pub fn round_times(end: f64, number: usize) -> Vec<f64> {
    const STEPS: [f64; 13] = [
        60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 10_800.0, 21_600.0, 43_200.0, 86_400.0,
        172_800.0,
    ];
    let step = finite(end) / number as f64;
    let step = match step <= 30.0 {
        true => round_step(step),
        false => {
            STEPS.into_iter().find(|s| *s >= step).unwrap_or_else(|| round_step(step / 86_400.0) * 86_400.0)
        }
    };
    multiples(step, finite(end))
}

/// Returns 1, 2 or 5 times a power of ten, at least `least`.
fn round_step(least: f64) -> f64 {
    if least <= 0.0 || !least.is_finite() {
        return 1.0;
    }
    let power = 10f64.powi(least.log10().floor() as i32);
    let factor = [1.0, 2.0, 5.0].into_iter().find(|f| f * power >= least * 0.999).unwrap_or(10.0);
    factor * power
}

fn multiples(step: f64, end: f64) -> Vec<f64> {
    (0..50).map(|n| f64::from(n) * step).take_while(|value| *value <= end * 1.0001).collect()
}

/// Returns 0 for a value that is negative or not finite, because it has no position on an axis.
pub fn finite(value: f64) -> f64 {
    if value.is_finite() && value > 0.0 { value } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_few() {
        assert_eq!(Scale::new(1_512_545.0).marks(4), [0.0, 500_000.0, 1_000_000.0, 1_500_000.0]);
        assert_eq!(Scale::new(0.7).marks(4), [0.0, 0.2, 0.4, 0.6000000000000001]);
        assert_eq!(round_times(3163.0, 6), [0.0, 600.0, 1200.0, 1800.0, 2400.0, 3000.0]);
        assert_eq!(round_times(8.0, 5), [0.0, 2.0, 4.0, 6.0, 8.0]);
        for end in [0.0, 1e-9, 1e18, f64::MAX, f64::NAN, f64::INFINITY, -1.0] {
            assert!(round_times(end, 6).len() <= 50);
            assert!(Scale::new(end).marks(6).len() <= 50);
        }
    }

    #[test]
    fn every_value_has_a_position_on_the_axis() {
        for end in [0.0, 1.0, 1e18, f64::MAX, f64::NAN, -1.0] {
            let scale = Scale::new(end);
            for value in [0.0, 1.0, f64::MAX, f64::NAN, f64::INFINITY, -5.0] {
                assert!((0.0..=1.0).contains(&scale.position(value)), "{value} of {end}");
            }
        }
    }
}
