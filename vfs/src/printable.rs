//! Names in a form that is safe to print.

use std::fmt::Write;

/// Returns whether a terminal would interpret the character instead of showing it, or would change
/// the order of the text around it. These are control characters, line and paragraph separators,
/// and direction marks.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Formats a name or path for a message, on one line. Unprintable characters and bytes that are not
/// UTF-8 become escape sequences, and backslashes are doubled.
pub fn printable(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\r' => text.push_str("\\r"),
                c if c.is_ascii() && is_unprintable(c) => {
                    escape(&mut text, format_args!("\\x{:02x}", c as u32))
                }
                c if is_unprintable(c) => escape(&mut text, format_args!("\\u{{{:x}}}", c as u32)),
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            escape(&mut text, format_args!("\\x{byte:02x}"));
        }
    }
    text
}

fn escape(text: &mut String, sequence: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = text.write_fmt(sequence);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_line_of_harmless_text() {
        assert_eq!(printable("lib/é 名".as_bytes()), "lib/é 名");
        assert_eq!(printable(b"a\nb\x1b[31m\x7f\\"), "a\\nb\\x1b[31m\\x7f\\\\");
        assert_eq!(printable(b"\xff\xc2\x9b"), "\\xff\\u{9b}");
        assert_eq!(printable("\u{202e}gpj.exe".as_bytes()), "\\u{202e}gpj.exe");
    }
}
