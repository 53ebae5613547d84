//! Formats numbers and names for users: thousands separators, suitable units, and escaped names.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::report::{AccessMode, Rate};

/// Formats `1234567` as `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a size with three digits and a decimal unit: `1.44 GB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let mut value = number as f64;
    let mut unit = 0;
    // 999.5 would be rounded to 1000.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = if unit == 0 || value >= 99.95 { 0 } else { 1 + usize::from(value < 9.995) };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// Formats a number with as many decimals as are significant.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "?".to_owned();
    }
    let size = value.abs();
    if size == 0.0 {
        "0".to_owned()
    } else if size < 0.005 {
        "< 0.01".to_owned()
    } else if size < 9.95 {
        let text = format!("{value:.*}", if size < 0.995 { 2 } else { 1 });
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        count(size.round() as u64)
    }
}

/// Formats a duration, or a time since the first call.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "?".to_owned();
    }
    // A value that would be rounded up to the next unit is written in that unit.
    if seconds == 0.0 {
        return "0 s".to_owned();
    } else if seconds < 0.0995 {
        return format!("{} ms", number(seconds * 1000.0));
    } else if seconds < 9.995 {
        let text = format!("{seconds:.2}");
        return format!("{} s", text.trim_end_matches('0').trim_end_matches('.'));
    } else if seconds < 59.95 {
        let text = format!("{seconds:.1}");
        return format!("{} s", text.strip_suffix(".0").unwrap_or(&text));
    }
    let whole = seconds.round() as u64;
    let parts =
        [(whole / 86_400, "d"), (whole / 3600 % 24, "h"), (whole / 60 % 60, "min"), (whole % 60, "s")];
    let first = parts.iter().position(|(value, _)| *value > 0).unwrap_or(3);
    let two = &parts[first..parts.len().min(first + 2)];
    let words: Vec<_> = two
        .iter()
        .filter(|(value, _)| *value > 0)
        .map(|(value, unit)| format!("{} {unit}", count(*value)))
        .collect();
    words.join(" ")
}

/// Formats seconds since 1970 as day and minute of the local time, with its offset from UTC; `None`
/// for a trace without dates.
pub fn date(since_1970_s: f64, utc_offset_s: i32) -> Option<String> {
    // From the second day, so that a local time is not before 1970, up to the year 9999; false for
    // NaN, too.
    if !(86_400.0..253_402_300_800.0).contains(&since_1970_s) {
        return None;
    }
    let minutes = ((since_1970_s + f64::from(utc_offset_s)) / 60.0).floor() as u64;
    let mut days = minutes / 1440;
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute) = (minutes / 60 % 24, minutes % 60);
    let sign = if utc_offset_s < 0 { '-' } else { '+' };
    let offset_min = utc_offset_s.unsigned_abs() / 60;
    let offset = format!("{sign}{:02}{:02}", offset_min / 60, offset_min % 60);
    Some(format!("{year}-{month:02}-{:02} {hour:02}:{minute:02} {offset}", days + 1))
}

/// Formats a part as a percentage, with enough precision to distinguish it from 0 and from 100 %.
pub fn percentage(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0 %".to_owned();
    }
    let percent = part as f64 * 100.0 / whole as f64;
    if part == 0 {
        "0 %".to_owned()
    } else if percent < 0.01 {
        "< 0.01 %".to_owned()
    } else if percent < 0.995 {
        format!("{percent:.2} %")
    } else if percent < 9.95 {
        format!("{percent:.1} %")
    } else if part < whole && percent >= 99.5 {
        "> 99 %".to_owned()
    } else {
        format!("{percent:.0} %")
    }
}

/// Formats a count with the singular or plural: `1 file`, `12 files`.
pub fn plural(number: u64, one: &str, more: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { more })
}

/// Returns the paper's abbreviation for the use of a location: unused, read or read and written.
pub fn mode(mode: AccessMode) -> &'static str {
    match mode {
        AccessMode::Unused => "–",
        AccessMode::ReadOnly => "RO",
        AccessMode::ReadWrite => "RW",
    }
}

/// Formats a number of nodes; `no limit` if there is none.
pub fn nodes(number: Option<u64>) -> String {
    number.map_or_else(|| "no limit".to_owned(), count)
}

/// Formats average and peak, both per second.
pub fn rates(rate: &Rate) -> String {
    format!("average {}, peak {}", number(rate.average), number(rate.peak))
}

/// Escapes all characters of a trace's text that a terminal would interpret or that could deceive a
/// reader: control characters, marks that change the writing direction, and other invisible
/// characters are written as `\u{202e}`; a backslash is doubled, so that no other text looks the
/// same.
pub fn escaped(text: &str) -> String {
    // `escape_debug` escapes the right characters, and also quotes, which are harmless here.
    text.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\"")
}

/// Escapes as `escaped` does, and shortens the text in the middle to at most `columns` columns. The
/// beginning and the end of a path are more informative than its middle.
pub fn name(text: &str, columns: usize) -> String {
    let text = escaped(text);
    if text.width() <= columns {
        return text;
    }
    let shown = columns.saturating_sub(1);
    let begin = fitting(text.chars(), shown / 3);
    let end: Vec<char> = fitting(text.chars().rev(), shown - shown / 3).chars().collect();
    format!("{begin}…{}", end.into_iter().rev().collect::<String>())
}

/// Returns `text`, truncated to at most `columns` columns.
pub fn truncated(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    format!("{}…", fitting(text.chars(), columns.saturating_sub(1)))
}

fn fitting(characters: impl Iterator<Item = char>, columns: usize) -> String {
    let mut taken = 0;
    let fits = |c: &char| {
        taken += c.width().unwrap_or(0);
        taken <= columns
    };
    characters.take_while(fits).collect()
}

/// Formats a command and its arguments as a shell command line, escaped as by `escaped`.
pub fn command(words: &[String]) -> String {
    let quoter = shlex::Quoter::new().allow_nul(true);
    let line = quoter.join(words.iter().map(String::as_str));
    command_line(&line.expect("only NUL cannot be quoted, and it may be there"))
}

/// Formats a command to be copied: as `escaped`, except for backslashes, which a shell needs
/// unchanged.
pub fn command_line(text: &str) -> String {
    text.split('\\').map(escaped).collect::<Vec<_>>().join("\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_few_digits_and_units() {
        assert_eq!([count(0), count(999), count(1000), count(1_512_545)], ["0", "999", "1,000", "1,512,545"]);
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!([bytes(0), bytes(999), bytes(1_435_228_808)], ["0 B", "999 B", "1.44 GB"]);
        assert_eq!([bytes(68_929_672), bytes(999_999), bytes(u64::MAX)], ["68.9 MB", "1.00 MB", "18.4 EB"]);
        assert_eq!([number(0.0), number(0.004), number(0.4), number(6.0)], ["0", "< 0.01", "0.4", "6"]);
        assert_eq!([number(0.37), number(0.996), number(9.94)], ["0.37", "1", "9.9"]);
        assert_eq!([number(9.96), number(10_454.4), number(f64::NAN)], ["10", "10,454", "?"]);
        assert_eq!(
            [percentage(0, 0), percentage(1, 1_000_000), percentage(14_726, 1_142_781)],
            ["0 %", "< 0.01 %", "1.3 %"]
        );
        assert_eq!(
            [percentage(999, 1000), percentage(1000, 1000), percentage(1, 2)],
            ["> 99 %", "100 %", "50 %"]
        );
    }

    #[test]
    fn durations_have_at_most_two_units() {
        assert_eq!(
            [duration(0.0), duration(0.0123), duration(0.35), duration(42.0)],
            ["0 s", "12 ms", "0.35 s", "42 s"]
        );
        assert_eq!(
            [duration(59.96), duration(3163.0), duration(7380.0)],
            ["1 min", "52 min 43 s", "2 h 3 min"]
        );
        assert_eq!([duration(864_000.0), duration(f64::INFINITY), duration(-1.0)], ["10 d", "?", "?"]);
    }

    #[test]
    fn dates_match_the_calendar() {
        assert_eq!(date(0.0, 0), None);
        assert_eq!(date(f64::NAN, 0), None);
        assert_eq!(date(951_827_696.0, 0).as_deref(), Some("2000-02-29 12:34 +0000"));
        assert_eq!(date(1_793_318_399.9, 0).as_deref(), Some("2026-10-29 23:59 +0000"));
        assert_eq!(date(1_793_318_399.9, 19_800).as_deref(), Some("2026-10-30 05:29 +0530"));
        assert_eq!(date(4_107_542_400.0, -3600).as_deref(), Some("2100-02-28 23:00 -0100"));
    }

    #[test]
    fn what_a_terminal_would_obey_is_written_out() {
        assert_eq!(
            escaped("a\x1b[31mb\r\n\t\u{202e}c\u{200b}\u{feff}"),
            r"a\u{1b}[31mb\r\n\t\u{202e}c\u{200b}\u{feff}"
        );
        assert_eq!(escaped(r#"it's "so" ü 模型"#), r#"it's "so" ü 模型"#);
        assert_eq!(escaped(r"back\slash\'"), r"back\\slash\\'");
    }

    #[test]
    fn names_keep_begin_and_end_and_take_no_more_room_than_they_may() {
        assert_eq!(name("/shared/sw/lib/python3/site-packages/x.py", 20), "/share…packages/x.py");
        assert_eq!(name("short", 5), "short");
        for columns in 0..40 {
            assert!(name(&"模型/".repeat(500), columns).width() <= columns.max(1));
            assert!(truncated(&"模型/".repeat(500), columns).width() <= columns.max(1));
        }
    }

    #[test]
    fn commands_can_be_given_to_a_shell() {
        let words = ["maker", "-x", "two words", "it's", r"back\slash", ""].map(str::to_owned);
        let line = command(&words);
        assert!(line.starts_with("maker -x 'two words' "), "{line}");
        assert_eq!(shlex::split(&line).unwrap(), words);
        assert_eq!(command_line(&line), line);
        assert_eq!(command(&["a\0\x1b".to_owned()]), r"'a\0\u{1b}'");
    }
}
