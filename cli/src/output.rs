//! Standard output and standard error of commands. A full disk or a closed pipe causes no panic:
//! later output is dropped, and `finish` returns the error. Control characters are escaped, because
//! names of files may contain them.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::Mutex;

pub use quell_supervisor::counted;

use crate::failure::{CANNOT, Failure};

/// The exit code by which shells report a program that SIGPIPE ended. It is not 0, because the
/// result was not printed completely.
const NO_READER: u8 = 141;

/// The first error of writing to standard output.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line on standard output.
macro_rules! outln {
    () => { $crate::output::print(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::print_line(format_args!($($text)*)) };
}

/// Prints a line on standard error; errors are ignored.
macro_rules! errln {
    ($($text:tt)*) => { $crate::output::report_line(format_args!($($text)*)) };
}

pub(crate) use {errln, outln};

pub fn print(text: fmt::Arguments<'_>) {
    write(escape_control(&text.to_string()).as_bytes());
}

pub fn print_line(text: fmt::Arguments<'_>) {
    write(escape_control(&format!("{text}\n")).as_bytes());
}

/// Prints text with colours, in which names are already escaped.
pub fn print_coloured(text: &str) {
    write(text.as_bytes());
}

pub fn report_line(text: fmt::Arguments<'_>) {
    let text = without_error_numbers(&format!("{text}\n"));
    let _ = io::stderr().write_all(escape_control(&text).as_bytes());
}

/// Prints text with colours on standard error, without a line end; names are already escaped.
pub fn report_coloured(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

fn write(bytes: &[u8]) {
    let mut failed = quell_threads::lock(&FAILED);
    if failed.is_none() {
        *failed = io::stdout().write_all(bytes).err();
    }
}

/// Returns whether output is dropped, so that a command may stop work that only prints.
pub fn has_failed() -> bool {
    quell_threads::lock(&FAILED).is_some()
}

pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Flushes standard output.
///
/// Errors: why standard output could not be written; without a message if its reader has closed the
/// pipe.
pub fn finish() -> Result<(), Failure> {
    let mut failed = quell_threads::lock(&FAILED);
    let error = failed.take().or_else(|| io::stdout().flush().err());
    match error {
        None => Ok(()),
        Some(e) if e.kind() == ErrorKind::BrokenPipe => Err(Failure::with_code(NO_READER, "")),
        Some(e) => Err(Failure::with_code(CANNOT, format!("cannot write to standard output: {e}"))),
    }
}

/// Removes ` (os error N)`, which the standard library appends to the text of an error number. The
/// text alone is the spelling that other programs and the man pages use.
pub fn without_error_numbers(text: &str) -> String {
    const BEGIN: &str = " (os error ";
    let mut parts = text.split(BEGIN);
    let mut shorter = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        match rest.strip_prefix(')') {
            Some(rest) if part.len() > rest.len() + 1 => shorter += rest,
            _ => {
                shorter += BEGIN;
                shorter += part;
            }
        }
    }
    shorter
}

/// The width of tables.
pub const COLUMNS: usize = 80;

/// Breaks the words of `text` into lines for a table: with `first` before the first line, and as
/// many blanks before all others. A word that is longer than a line is not broken.
pub fn hanging(first: &str, text: &str) -> String {
    let indent = first.chars().count();
    let mut lines = first.to_owned();
    let mut width = indent;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > indent && width + 1 + length > COLUMNS {
            lines.push('\n');
            lines.extend(std::iter::repeat_n(' ', indent));
            width = indent;
        } else if width > indent {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines
}

/// Returns the text with control characters escaped, except newlines and tabs. They can come from
/// names of files, arguments and output of other programs. Each is written as a backslash and its
/// code.
fn escape_control(text: &str) -> Cow<'_, str> {
    let is_control = |c: char| !matches!(c, '\n' | '\t') && quell_vfs::is_unprintable(c);
    if !text.chars().any(is_control) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_control(c) {
            // The form of JSON escapes. Writing to a string does not fail.
            let _ = write!(escaped, "\\u{:04x}", c as u32);
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_error_is_not_printed_beside_its_text() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(
            without_error_numbers(&format!("a: {error}; b: {error}")),
            "a: No such file or directory; b: No such file or directory"
        );
        for text in ["", "an (os error of ours)", "x (os error )", "x (os error 2"] {
            assert_eq!(without_error_numbers(text), text);
        }
    }

    #[test]
    fn a_table_fits_its_width() {
        let lines = hanging("name  ", &"word ".repeat(40));
        assert!(lines.lines().all(|line| line.len() <= COLUMNS), "{lines}");
        assert!(lines.starts_with("name  word") && lines.lines().nth(1).unwrap().starts_with("      word"));
        assert_eq!(hanging("a ", "b"), "a b");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escape_control("a\tb\nc é 名\n"), "a\tb\nc é 名\n");
        assert_eq!(escape_control("\x1b[2J\r\u{7f}\u{9b}\u{202e}"), "\\u001b[2J\\u000d\\u007f\\u009b\\u202e");
        // JSON remains valid JSON with the same value.
        let value = serde_json::json!({ "path": "\u{9b}\u{202e}\u{7f}\x1b" });
        let text = value.to_string();
        let printed = escape_control(&text);
        assert!(printed.is_ascii());
        assert_eq!(serde_json::from_str::<serde_json::Value>(&printed).unwrap(), value);
    }
}
