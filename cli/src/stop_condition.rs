//! Parses the value of `--until`: the end condition of a recording.

use std::time::Duration;

use quell_supervisor::StopCondition;
use regex::bytes::RegexBuilder;

/// Size limit of a compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 4 << 20;

/// Parses a number of seconds; any other text is a pattern.
pub fn parse(text: &str) -> Result<StopCondition, String> {
    let is_number = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if let (true, Ok(seconds)) = (is_number, text.parse::<f64>()) {
        return match Duration::try_from_secs_f64(seconds) {
            Ok(time) if !time.is_zero() => Ok(StopCondition::Time(time)),
            _ => Err("the number of seconds must be more than 0".into()),
        };
    }
    if text.is_empty() {
        return Err("an empty pattern matches every line; give a text or a number of seconds".into());
    }
    let pattern = RegexBuilder::new(text).size_limit(PATTERN_BYTES_MAX).build();
    pattern.map(StopCondition::Line).map_err(|e| format!("not a valid regular expression: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_seconds_and_other_text_is_a_pattern() {
        for (text, seconds) in [("30", 30.0), ("0.5", 0.5), (".5", 0.5), ("5.", 5.0)] {
            assert!(
                matches!(parse(text), Ok(StopCondition::Time(time)) if time.as_secs_f64() == seconds),
                "{text}"
            );
        }
        for text in ["(8080)", "8080$", "30s", "inf", "1e3", ".", "1.2.3", "ready to (serve|listen)"] {
            assert!(matches!(parse(text), Ok(StopCondition::Line(_))), "{text}");
        }
        let endless = "9".repeat(400);
        for text in ["0", "0.0", "", "(", "*", &endless] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
