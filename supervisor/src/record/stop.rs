//! The condition that ends a recording: a time, or a line of the program's output. No I/O.

use std::time::Duration;

use regex::bytes::Regex;

/// Only this many bytes of a line are searched.
const LINE_BYTES_MAX: usize = 64 << 10;

/// When a recording ends, if the program has not ended before.
#[derive(Debug, Clone)]
pub enum StopCondition {
    /// This time after the program's start.
    Time(Duration),
    /// A line of the program's output matches.
    Line(Regex),
}

/// Searches a stream for a pattern, line by line.
#[derive(Debug)]
pub struct LineSearch<'a> {
    pattern: &'a Regex,
    /// The beginning of the line whose end was not read yet.
    line: Vec<u8>,
}

impl LineSearch<'_> {
    /// Returns a search that has read nothing.
    pub fn new(pattern: &Regex) -> LineSearch<'_> {
        LineSearch { pattern, line: Vec::new() }
    }

    /// Returns whether the new bytes complete or extend a matching line. The last line is matched
    /// before its end, because a prompt does not end with a newline.
    pub fn find(&mut self, bytes: &[u8]) -> bool {
        let mut found = false;
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let free_bytes = LINE_BYTES_MAX - self.line.len();
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            self.line.extend_from_slice(&text[..text.len().min(free_bytes)]);
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

    #[test]
    fn a_line_is_found_however_it_is_divided() {
        let pattern = Regex::new("^listening on port [0-9]+$").unwrap();
        let text = b"starting\r\nlistening on port 8080\r\nmore\n";
        for size in 1..text.len() {
            let mut lines = LineSearch::new(&pattern);
            assert!(text.chunks(size).any(|piece| lines.find(piece)), "{size}");
        }
        let mut lines = LineSearch::new(&pattern);
        assert!(!lines.find(b"not listening on port 8080\nlistening on port\n 8080\n"));
    }

    #[test]
    fn a_line_without_an_end_is_searched() {
        let pattern = Regex::new("login: ").unwrap();
        let mut lines = LineSearch::new(&pattern);
        assert!(!lines.find(b"Debian\nhost log"));
        assert!(lines.find(b"in: "));
    }

    #[test]
    fn a_long_line_takes_a_bounded_amount_of_memory() {
        let pattern = Regex::new("needle").unwrap();
        let mut lines = LineSearch::new(&pattern);
        for _ in 0..100 {
            assert!(!lines.find(&[b'x'; 10_000]));
        }
        assert!(lines.line.capacity() <= 2 * LINE_BYTES_MAX);
        assert!(lines.find(b"needle\nneedle\n"), "the next line is searched");
    }
}
