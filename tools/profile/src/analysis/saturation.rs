//! The number of nodes that saturate a file system: the paper's first-order estimate (section 3.2),
//! `capacity / rate`.

/// Returns `capacity / rate`, rounded down, with as many digits as the rate has in whole operations
/// per second. 32,000 / 483 is 66; 32,000 / 6 is 5,000, because a rate of 6 may be anything from
/// 5.5 to 6.5. Returns `None` if no operation remains, so that there is no limit.
pub fn saturating_nodes(capacity: f64, rate: f64) -> Option<u64> {
    if !(rate > 0.0 && capacity > 0.0 && rate.is_finite() && capacity.is_finite()) {
        return None;
    }
    let digits = (rate.round().max(1.0)).log10().floor() as u32 + 1;
    let exact = (capacity / rate).floor().min(u64::MAX as f64) as u64;
    let unit = 10u64.checked_pow(exact.checked_ilog10().map_or(0, |l| (l + 1).saturating_sub(digits)));
    unit.map(|unit| exact / unit * unit)
}

/// The effects that the estimate leaves out; part of every report with an estimate.
pub const LEAVES_OUT: [&str; 5] = [
    "other users of the file system, and all traffic but this program's metadata",
    "the time at which nodes start: by the peak rate all bursts coincide, by the average they are spread evenly",
    "the caches of other clients: the model keeps directories and attributes for a second",
    "different costs of operations, and that a file system slows down before it is saturated",
    "data: reads may saturate the servers before metadata does",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rates_of_the_paper_give_its_numbers_of_nodes() {
        assert_eq!(saturating_nodes(32_000.0, 483.0), Some(66));
        assert_eq!(saturating_nodes(32_000.0, 6.0), Some(5_000));
    }

    #[test]
    fn the_result_has_as_many_digits_as_the_rate() {
        for (capacity, rate, expected) in [
            (32_000.0, 62.0, Some(510)),
            (32_000.0, 0.4, Some(80_000)),
            (32_000.0, 9.6, Some(3_300)),
            (32_000.0, 40_000.0, Some(0)),
            (32_000.0, 0.0, None),
            (0.0, 5.0, None),
            (32_000.0, f64::NAN, None),
            (1e300, 1e-300, Some(10_000_000_000_000_000_000)),
            (1_000.0, 1_000.0, Some(1)),
        ] {
            assert_eq!(saturating_nodes(capacity, rate), expected, "{capacity} by {rate}");
        }
    }
}
