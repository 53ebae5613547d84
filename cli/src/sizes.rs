//! Parses the sizes of options.

/// The letters for 2^10, 2^20, and so on.
const UNITS: &str = "KMGTP";

/// Returns a number of bytes from a number, which one of the letters K, M, G, T and P can follow
/// for 2^10 to 2^50 bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.char_indices().next_back() {
        Some((at, unit)) if unit.is_ascii_alphabetic() => {
            (&text[..at], UNITS.find(unit).map(|power| 10 * (power as u32 + 1)))
        }
        _ => (text, Some(0)),
    };
    let number = number.parse::<u64>().ok().filter(|_| number.bytes().all(|byte| byte.is_ascii_digit()));
    number.zip(shift).and_then(|(number, shift)| number.checked_mul(1 << shift)).ok_or_else(|| {
        "a size is a number of bytes, or a number with the unit K, M, G, T or P, such as 4G".into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_with_or_without_units() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("1K", 1 << 10),
            ("512M", 512 << 20),
            ("3G", 3 << 30),
            ("1T", 1 << 40),
            ("16383P", 16383 << 50),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "+1", "1k", "1KiB", "1 K", "16384P", "1.5G", "1Ж", "18446744073709551616"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
