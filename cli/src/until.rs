//! The end condition of a recording: a time, or a line of the program's output. No I/O.

use std::time::Duration;

use regex::bytes::{Regex, RegexBuilder};

/// Only this many bytes of a line are searched.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Size limit of a compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 4 << 20;

#[derive(Debug, Clone)]
pub enum Until {
    Time(Duration),
    Line(Regex),
}

/// Parses a number of seconds; any other text is a pattern.
pub fn parse(text: &str) -> Result<Until, String> {
    let is_number = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if let (true, Ok(seconds)) = (is_number, text.parse::<f64>()) {
        return match Duration::try_from_secs_f64(seconds) {
            Ok(time) if !time.is_zero() => Ok(Until::Time(time)),
            _ => Err("a number of seconds is above 0".into()),
        };
    }
    if text.is_empty() {
        return Err("an empty pattern is found in every line".into());
    }
    let pattern = RegexBuilder::new(text).size_limit(PATTERN_BYTES_MAX).build();
    pattern.map(Until::Line).map_err(|e| format!("not a pattern: {e}"))
}

/// Searches a stream for a pattern, line by line.
#[derive(Debug)]
pub struct Lines<'a> {
    pattern: &'a Regex,
    /// The beginning of the line whose end was not read yet.
    line: Vec<u8>,
}

impl Lines<'_> {
    pub fn new(pattern: &Regex) -> Lines<'_> {
        Lines { pattern, line: Vec::new() }
    }

    /// Returns whether the new bytes complete or extend a matching line. The last line is matched
    /// before its end, because a prompt has none.
    pub fn find(&mut self, came: &[u8]) -> bool {
        let mut found = false;
        for piece in came.split_inclusive(|b| *b == b'\n') {
            let room = LINE_BYTES_MAX - self.line.len();
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
            found |= self.pattern.is_match(line);
            if piece.ends_with(b"\n") {
                self.line.clear();
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Regex {
        match parse(text) {
            Ok(Until::Line(pattern)) => pattern,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_number_is_seconds_and_all_else_a_pattern() {
        for (text, seconds) in [("30", 30.0), ("0.5", 0.5), (".5", 0.5), ("5.", 5.0)] {
            assert!(matches!(parse(text), Ok(Until::Time(time)) if time.as_secs_f64() == seconds), "{text}");
        }
        for text in ["(8080)", "8080$", "30s", "inf", "1e3", ".", "1.2.3", "ready to (serve|listen)"] {
            assert!(matches!(parse(text), Ok(Until::Line(_))), "{text}");
        }
        let endless = "9".repeat(400);
        for text in ["0", "0.0", "", "(", "*", &endless] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_line_is_found_however_it_comes() {
        let pattern = pattern("^listening on port [0-9]+$");
        let text = b"starting\r\nlistening on port 8080\r\nmore\n";
        for size in 1..text.len() {
            let mut lines = Lines::new(&pattern);
            assert!(text.chunks(size).any(|piece| lines.find(piece)), "{size}");
        }
        let mut lines = Lines::new(&pattern);
        assert!(!lines.find(b"not listening on port 8080\nlistening on port\n 8080\n"));
    }

    #[test]
    fn a_prompt_is_a_line() {
        let pattern = pattern("login: ");
        let mut lines = Lines::new(&pattern);
        assert!(!lines.find(b"Debian\nhost log"));
        assert!(lines.find(b"in: "));
    }

    #[test]
    fn a_line_without_an_end_takes_no_more_than_it_may() {
        let pattern = pattern("needle");
        let mut lines = Lines::new(&pattern);
        for _ in 0..100 {
            assert!(!lines.find(&[b'x'; 10_000]));
        }
        assert!(lines.line.capacity() <= 2 * LINE_BYTES_MAX);
        assert!(lines.find(b"needle\nneedle\n"), "the next line is looked at");
    }
}
