//! The positions of values along an axis, and the values that are marked on it.

/// How values are mapped to an axis that begins with zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Linear,
    /// By the logarithm of the value plus one: zero has a position, and a small value remains
    /// visible beside a large one.
    Logarithmic,
}

#[derive(Debug, Clone, Copy)]
pub struct Scale {
    pub kind: Kind,
    /// The value at the end of the axis.
    end: f64,
}

impl Scale {
    pub fn linear(greatest: f64) -> Self {
        let greatest = finite(greatest);
        // An axis must not have the length zero.
        Scale { kind: Kind::Linear, end: if greatest > 0.0 { greatest } else { 1.0 } }
    }

    /// Returns a linear scale if the smallest of `values` is visible on it, otherwise a logarithmic
    /// one.
    pub fn that_shows(greatest: f64, values: &[f64]) -> Self {
        let linear = Scale::linear(greatest);
        let seen = |value: &f64| *value <= 0.0 || *value >= linear.end / 30.0;
        // Below ten a logarithmic scale is no improvement.
        let kind =
            if linear.end < 10.0 || values.iter().all(seen) { Kind::Linear } else { Kind::Logarithmic };
        Scale { kind, ..linear }
    }

    /// Returns the scale with space beyond the greatest value, for labels.
    pub fn with_room(self, part: f64) -> Self {
        let end = match self.kind {
            Kind::Linear => self.end * (1.0 + part),
            Kind::Logarithmic => (self.end.ln_1p() * (1.0 + part)).exp_m1(),
        };
        Scale { end: if end.is_finite() { end } else { self.end }, ..self }
    }

    /// Returns the position of a value, from 0 at zero to 1 at the end.
    pub fn place(&self, value: f64) -> f64 {
        let value = finite(value);
        let place = match self.kind {
            Kind::Linear => value / self.end,
            Kind::Logarithmic => value.ln_1p() / self.end.ln_1p(),
        };
        place.clamp(0.0, 1.0)
    }

    /// Returns the values to mark: zero and round values.
    pub fn marks(&self, about: usize) -> Vec<f64> {
        match self.kind {
            Kind::Linear => multiples(round_step(self.end / about as f64), self.end),
            Kind::Logarithmic => {
                let powers: Vec<f64> =
                    (0..20).map(|n| 10f64.powi(n)).take_while(|p| *p <= self.end).collect();
                let every = powers.len().div_ceil(about.max(1)).max(1);
                [0.0].into_iter().chain(powers.into_iter().step_by(every)).collect()
            }
        }
    }

    pub fn called(&self) -> &'static str {
        match self.kind {
            Kind::Linear => "linear scale",
            Kind::Logarithmic => "logarithmic scale",
        }
    }
}

/// Returns round times from zero to `end`, in seconds.
pub fn moments(end: f64, about: usize) -> Vec<f64> {
    const STEPS: [f64; 13] = [
        60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 10_800.0, 21_600.0, 43_200.0, 86_400.0,
        172_800.0,
    ];
    let step = finite(end) / about as f64;
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
    fn small_values_are_seen_next_to_large_ones() {
        let scale = Scale::that_shows(10_454.0, &[483.0, 6.0]);
        assert_eq!(scale.kind, Kind::Logarithmic);
        assert!(scale.place(6.0) > 0.1 && scale.place(483.0) < 0.8);
        assert_eq!(scale.marks(6), [0.0, 1.0, 10.0, 100.0, 1000.0, 10_000.0]);
        assert_eq!(Scale::that_shows(10_454.0, &[4_000.0, 0.0]).kind, Kind::Linear);
        assert_eq!(Scale::that_shows(3.0, &[0.01]).kind, Kind::Linear);
    }

    #[test]
    fn marks_are_round_and_few() {
        assert_eq!(Scale::linear(1_512_545.0).marks(4), [0.0, 500_000.0, 1_000_000.0, 1_500_000.0]);
        assert_eq!(Scale::linear(0.7).marks(4), [0.0, 0.2, 0.4, 0.6000000000000001]);
        assert_eq!(moments(3163.0, 6), [0.0, 600.0, 1200.0, 1800.0, 2400.0, 3000.0]);
        assert_eq!(moments(8.0, 5), [0.0, 2.0, 4.0, 6.0, 8.0]);
        for end in [0.0, 1e-9, 1e18, f64::MAX, f64::NAN, f64::INFINITY, -1.0] {
            assert!(moments(end, 6).len() <= 50);
            assert!(Scale::linear(end).marks(6).len() <= 50);
            assert!(Scale::that_shows(end, &[1.0]).with_room(0.1).marks(6).len() <= 50);
        }
    }

    #[test]
    fn every_value_has_a_place_on_the_axis() {
        for end in [0.0, 1.0, 1e18, f64::MAX, f64::NAN, -1.0] {
            let scale = Scale::that_shows(end, &[1.0]).with_room(0.1);
            for value in [0.0, 1.0, f64::MAX, f64::NAN, f64::INFINITY, -5.0] {
                assert!((0.0..=1.0).contains(&scale.place(value)), "{value} of {end}");
            }
        }
    }
}
