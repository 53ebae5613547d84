//! What commands print. A full disk or a reader that has gone is not a panic: what is printed from then on is dropped, and
//! `finish` says how the command ends. No output holds control characters, whatever names are in it.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::Mutex;

use crate::failure::{CANNOT, Failure};

/// As a shell shows a program that SIGPIPE ended. Not 0: the result was not all printed.
const NO_READER: u8 = 141;

/// The first error of standard output.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// A line on standard output.
macro_rules! outln {
    () => { $crate::output::print(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::print_line(format_args!($($text)*)) };
}

/// A line on standard error, which may have no reader.
macro_rules! errln {
    ($($text:tt)*) => { $crate::output::report_line(format_args!($($text)*)) };
}

pub(crate) use {errln, outln};

pub fn print(text: fmt::Arguments<'_>) {
    write(harmless(&text.to_string()).as_bytes());
}

pub fn print_line(text: fmt::Arguments<'_>) {
    write(harmless(&format!("{text}\n")).as_bytes());
}

/// Text whose names are escaped already, with colours.
pub fn print_coloured(text: &str) {
    write(text.as_bytes());
}

pub fn report_line(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(harmless(&format!("{text}\n")).as_bytes());
}

/// The same for what goes on on the same line.
pub fn report_coloured(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

fn write(bytes: &[u8]) {
    let mut failed = FAILED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if failed.is_none() {
        *failed = io::stdout().write_all(bytes).err();
    }
}

/// Whether what is printed is dropped: long work for it alone may end.
pub fn has_failed() -> bool {
    FAILED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_some()
}

pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Writes what is buffered.
///
/// Errors: a failure that says why standard output could not be written; without a message where its reader has gone.
pub fn finish() -> Result<(), Failure> {
    let mut failed = FAILED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let error = failed.take().or_else(|| io::stdout().flush().err());
    match error {
        None => Ok(()),
        Some(e) if e.kind() == ErrorKind::BrokenPipe => Err(Failure::of_code(NO_READER, "")),
        Some(e) => Err(Failure::of_code(CANNOT, format!("cannot write to standard output: {e}"))),
    }
}

/// The text without characters that a terminal obeys, but for the ends of lines and tabs. They are in it where the name of a file, a
/// line of another program or an argument is. Each is written as a backslash and its code.
fn harmless(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| !matches!(c, '\n' | '\t') && quell_fs::is_unprintable(c);
    if !text.chars().any(obeyed) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if obeyed(c) {
            // As JSON has it. Writing to a string does not fail.
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
    fn what_a_terminal_obeys_is_escaped() {
        assert_eq!(harmless("a\tb\nc é 名\n"), "a\tb\nc é 名\n");
        assert_eq!(harmless("\x1b[2J\r\u{7f}\u{9b}\u{202e}"), "\\u001b[2J\\u000d\\u007f\\u009b\\u202e");
        // JSON stays JSON of the same value.
        let value = serde_json::json!({ "path": "\u{9b}\u{202e}\u{7f}\x1b" });
        let text = value.to_string();
        let printed = harmless(&text);
        assert!(printed.is_ascii());
        assert_eq!(serde_json::from_str::<serde_json::Value>(&printed).unwrap(), value);
    }
}
