//! Reads one line of a trace, alone and as the two halves of an interrupted call: each line counts
//! once, and a call is the same call in both forms.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_profile::{FirstReading, LineSource, LocationRules, NoLinks, Report, UnknownDirectories};

fn report(lines: &[&[u8]]) -> Report {
    let location_rules = LocationRules { working: Some(b"/work".to_vec()), ..LocationRules::default() };
    let mut links = NoLinks;
    let mut first = FirstReading::new(&location_rules, Vec::new(), &mut links);
    let source = LineSource { space: 0, pid: 0 };
    lines.iter().for_each(|line| first.line(source, line, || "line".into()));
    first.end();
    let mut second = first.choose(1.0, &mut UnknownDirectories);
    lines.iter().for_each(|line| second.line(source, line));
    let report = second.report(None);
    let totals = &report.totals;
    let s = &totals.skipped;
    let others = s.other_calls + s.events + s.resumed + s.orphans + s.truncated + s.foreign;
    assert_eq!(totals.lines, lines.len() as u64);
    assert_eq!(totals.lines, totals.calls + others);
    report
}

fuzz_target!(|line: &[u8]| {
    let _ = (quell_profile::has_pid(line), quell_profile::time_of(line));
    let whole = report(&[line]);
    assert!(whole.totals.calls <= 1);
    // The same with a pid. If the line already has one, that one is used.
    let with_pid = [b"77 ".as_slice(), line].concat();
    report(&[&with_pid, line, &with_pid]);
    // A complete call is the same call if it is interrupted before its closing parenthesis.
    let is_plain = line.first().is_some_and(u8::is_ascii_lowercase) && whole.totals.calls == 1;
    let bracket = line.windows(4).rposition(|part| part == b") = ");
    let name = line.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
    if let (true, 0, Some(at)) = (is_plain, whole.totals.skipped.unfinished, bracket)
        && at > name
        && !line.ends_with(b" attached")
    {
        let begin = [b"77 ".as_slice(), &line[..at], b" <unfinished ...>"].concat();
        let end = [b"77 <... ".as_slice(), &line[..name], b" resumed>", &line[at..]].concat();
        let halves = report(&[&begin, &end]);
        assert!(halves.totals.calls <= 1);
        if halves.totals.skipped.unfinished == 0 && halves.totals.calls == 1 {
            assert_eq!(halves.totals.by_call, whole.totals.by_call);
            assert_eq!(halves.totals.failed, whole.totals.failed);
            assert_eq!(halves.totals.bytes_read, whole.totals.bytes_read);
        }
    }
});
