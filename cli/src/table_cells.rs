//! The cells of tables with rates.

/// Returns the cells, each in a column of 6 characters after a blank.
pub fn aligned<'a>(cells: impl IntoIterator<Item = &'a str>) -> String {
    cells.into_iter().map(|cell| format!(" {cell:>6}")).collect()
}

/// Returns a number with at most three or four digits and a unit prefix. `base` is 1000, or 1024
/// for bytes.
pub fn number(value: f64, base: f64) -> String {
    const PREFIXES: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let (mut value, mut prefix) = (value, 0);
    // A value of 999.95 would be rounded to 1000.
    while value >= base - 0.5 && prefix < PREFIXES.len() - 1 {
        value /= base;
        prefix += 1;
    }
    let digits = usize::from(value < 99.95 && value.fract() != 0.0);
    format!("{value:.digits$}{}", PREFIXES[prefix])
}

/// Returns the bound of a bucket of times.
pub fn time(microseconds: Option<u64>) -> String {
    match microseconds {
        None => "-".into(),
        Some(u64::MAX) => "> 67 s".into(),
        Some(us) if us < 1000 => format!("{us} us"),
        Some(us) if us < 1_000_000 => format!("{:.0} ms", us as f64 / 1e3),
        Some(us) => format!("{:.0} s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let found =
            [0.0, 0.25, 7.0, 99.94, 99.96, 999.0, 999.7, 12_345.0, 5.0e9].map(|value| number(value, 1000.0));
        assert_eq!(found, ["0", "0.2", "7", "99.9", "100", "999", "1.0k", "12.3k", "5G"]);
        assert_eq!(number((3_u64 << 30) as f64, 1024.0), "3G");
        assert_eq!(
            [None, Some(16), Some(2048), Some(1 << 21), Some(u64::MAX)].map(time),
            ["-", "16 us", "2 ms", "2 s", "> 67 s"]
        );
    }
}
