//! The operations of small traces, by the rules of docs/techniques/profile.md.

use crate::analysis::readings::FirstReading;
use crate::analysis::replay::OPERATIONS_TO_LOAD_BOOT;
use crate::locations::{LocationRules, NoLinks, UnknownDirectories};
use crate::report::Scenarios;
use crate::trace::reader::LineSource;

/// Returns the remaining operations of the lines. Two seconds pass before each line that begins
/// with `+`.
fn remaining(lines: &[&str], tree: bool) -> Scenarios<u64> {
    let rules = LocationRules { shared: vec![b"/m".to_vec()], ..LocationRules::default() };
    let mut links = NoLinks;
    let mut first = FirstReading::new(&rules, Vec::new(), &mut links);
    let mut seconds = 1;
    let mut all = Vec::new();
    let padding = if tree { 20 } else { 0 };
    for number in 0..padding {
        // Enough calls that the tree is proposed; a view answers all of them.
        all.push(format!("7 1700000001.{number:06} access(\"/m/env/lib/x\", R_OK) = 0"));
    }
    for (number, line) in lines.iter().enumerate() {
        seconds += 2 * u32::from(line.starts_with('+'));
        all.push(format!("7 17000000{seconds:02}.{:06} {}", 100 + number, line.trim_start_matches('+')));
    }
    let source = LineSource { space: 0, pid: 0 };
    all.iter().for_each(|line| first.line(source, line.as_bytes(), String::new));
    first.end();
    let mut second = first.choose(1.0, &mut UnknownDirectories);
    all.iter().for_each(|line| second.line(source, line.as_bytes()));
    let report = second.report(None);
    let skipped = &report.totals.skipped;
    assert_eq!(skipped.truncated + skipped.foreign, 0, "{:?}", skipped.examples);
    assert_eq!(report.trees.len(), usize::from(tree));
    let remaining = report.remaining;
    Scenarios {
        direct: remaining.direct.metadata,
        index: remaining.index.metadata,
        boot: remaining.boot.metadata,
    }
}

fn direct(lines: &[&str]) -> u64 {
    remaining(lines, false).direct
}

const OPEN: &str = r#"openat(AT_FDCWD</>, "/m/d", O_RDONLY|O_DIRECTORY) = 3</m/d>"#;
const LIST: &str = "getdents64(3</m/d>, 0x1, 32768) = 48";
const REST: &str = "getdents64(3</m/d>, 0x1, 32768) = 0";
const CLOSE: &str = "close(3</m/d>) = 0";
const LOOK: &str = r#"newfstatat(AT_FDCWD</>, "/m/d", 0x1, 0) = 0"#;
const FILE: &str = r#"newfstatat(AT_FDCWD</>, "/m/d/f", 0x1, 0) = 0"#;

#[test]
fn an_open_listing_answers_for_its_entries() {
    assert_eq!(direct(&[OPEN, LIST, REST]), 3, "a lookup, an open, the names");
    assert_eq!(direct(&[OPEN, LIST, REST, LOOK]), 4, "with another access time");
    assert_eq!(direct(&[OPEN, LIST, FILE, FILE]), 3);
    assert_eq!(direct(&[OPEN, LIST, CLOSE, FILE, FILE]), 5);
    let copied = [OPEN, LIST, "fcntl(3</m/d>, F_DUPFD_CLOEXEC, 3) = 5</m/d>", CLOSE, FILE];
    assert_eq!(direct(&copied), 3, "a copy is open");
    let absent = r#"newfstatat(AT_FDCWD</>, "/m/d/g", 0x1, 0) = -1 ENOENT (x)"#;
    assert_eq!(direct(&[OPEN, LIST, absent]), 4, "a listing does not answer for absent names");
}

#[test]
fn directories_are_cached_for_a_second_and_files_are_not() {
    assert_eq!(direct(&[LOOK, LOOK, FILE]), 2);
    assert_eq!(direct(&[FILE, FILE]), 3);
    let later = format!("+{FILE}");
    assert_eq!(direct(&[FILE, &later]), 4);
    let missing = r#"access("/m/d/none/deeper/x", R_OK) = -1 ENOENT (x)"#;
    assert_eq!(direct(&[FILE, missing, missing]), 4, "up to the first missing name");
    let relative = r#"+newfstatat(3</m/d>, "f", 0x1, 0) = 0"#;
    assert_eq!(direct(&[OPEN, relative]), 3, "nothing above the descriptor");
}

#[test]
fn reading_data_invalidates_attributes() {
    let open = r#"openat(AT_FDCWD</>, "/m/f", O_RDONLY) = 3</m/f>"#;
    let (read, look) = ("read(3</m/f>, \"\"..., 832) = 832", "fstat(3</m/f>, 0x1) = 0");
    assert_eq!(direct(&[open, look]), 2);
    assert_eq!(direct(&[open, read, look, look]), 3);
    assert_eq!(direct(&[open, read, look, read, look]), 3, "the second read is cached");
    assert_eq!(direct(&[r#"readlink("/m/l", "f", 99) = 1"#, r#"readlink("/m/l", "f", 99) = 1"#]), 3);
}

#[test]
fn in_a_covered_tree_opens_and_later_lookups_of_opened_files_remain() {
    let added = |lines: &[&str]| remaining(lines, true).index - remaining(&[], true).index;
    let look = r#"newfstatat(AT_FDCWD</>, "/m/env/lib/f", 0x1, 0) = 0"#;
    let open = r#"openat(AT_FDCWD</>, "/m/env/lib/f", O_RDONLY) = 3</m/env/lib/f>"#;
    assert_eq!(added(&[look, look]), 0);
    // The directory in the tree, the file, the open.
    assert_eq!(added(&[look, open]), 3);
    assert_eq!(added(&[open, look, open]), 3 + 1 + 2);
    let boot = |lines: &[&str]| remaining(lines, true).boot;
    assert_eq!(boot(&[open, look, open]), OPERATIONS_TO_LOAD_BOOT + 1, "and the lookup of the tree");
}
