//! The differences between an index and its tree, as a message.

use std::path::Path;

use quell_index::{Change, Difference};
use serde::{Deserialize, Serialize};

use crate::display::{counted, shown, shown_bytes};

/// Number of differences in a message.
const DIFFERENCES_SHOWN: usize = 3;

/// Differences between an index and its tree, in the form in which they are printed and passed to
/// the other nodes of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaleReport {
    /// The first few differences, as `quell verify` prints them.
    lines: Vec<String>,
    count: usize,
    /// Whether there may be more than `count`.
    is_more: bool,
}

impl StaleReport {
    /// Returns `None` if there is no difference. `is_all`: the whole tree was compared.
    pub fn from_differences(differences: &[Difference], is_all: bool) -> Option<StaleReport> {
        let lines = differences.iter().take(DIFFERENCES_SHOWN).map(difference_line).collect();
        let count = differences.len();
        (count > 0).then_some(StaleReport { lines, count, is_more: !is_all })
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns a line with the index and the consequence, the first differences, and the command
    /// that updates the index.
    pub fn message(&self, index: &Path, consequence: &str) -> String {
        let index = shown(index);
        let at_least = if self.is_more { "at least " } else { "" };
        let changes = counted(self.count as u64, "change", "changes");
        let mut message = format!("{index} is out of date ({at_least}{changes}){consequence}");
        for line in self.lines.iter().take(DIFFERENCES_SHOWN) {
            message += &format!("\n  {line}");
        }
        message + &format!("\nTo fix: quell index --update {index}")
    }
}

/// Inserts the consequence into the first line of a refusal's message.
pub fn with_consequence(message: &str, consequence: &str) -> String {
    match message.split_once('\n') {
        Some((first, rest)) => format!("{first}{consequence}\n{rest}"),
        None => format!("{message}{consequence}"),
    }
}

/// Formats a difference as `quell verify` prints it.
pub fn difference_line(difference: &Difference) -> String {
    let path = match difference.path.is_empty() {
        true => ".".into(),
        false => shown_bytes(&difference.path),
    };
    match &difference.what {
        Change::Added => format!("+ {path}"),
        Change::Removed => format!("- {path}"),
        Change::Changed(what) => format!("~ {path} ({})", what.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_the_index_three_differences_and_the_command() {
        let difference = |name: &str| Difference {
            path: name.as_bytes().to_vec(),
            what: Change::Changed(vec!["size", "mtime"]),
        };
        let two: Vec<Difference> = ["a", "b"].map(difference).into();
        let index = Path::new("env.quell");
        assert_eq!(StaleReport::from_differences(&[], true), None);
        let stale = StaleReport::from_differences(&two, true).unwrap();
        let message = stale.message(index, "");
        let expected = "env.quell is out of date (2 changes)\n  ~ a (size, mtime)\n  ~ b (size, mtime)\n\
                        To fix: quell index --update env.quell";
        assert_eq!(message, expected);
        let running = with_consequence(&message, ": running without Quell");
        assert_eq!(running, stale.message(index, ": running without Quell"));
        let many: Vec<Difference> = ["a", "b", "c", "d"].map(difference).into();
        let message = StaleReport::from_differences(&many, false).unwrap().message(index, "");
        assert!(message.starts_with("env.quell is out of date (at least 4 changes)\n"), "{message}");
        assert_eq!(message.lines().count(), 5);
        assert!(
            StaleReport::from_differences(&two[..1], false)
                .unwrap()
                .message(index, "")
                .contains("(at least 1 change)")
        );
    }
}
