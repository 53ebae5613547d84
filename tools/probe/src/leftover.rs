//! Directories of other probes: decides from their metadata whether one is in use. Accesses no
//! files.

use std::fmt;

/// The prefix of the name of a probe's directory; six letters or digits follow.
pub const PREFIX: &str = ".quell-probe-";
/// Longer than any probe runs, including a small difference between clocks.
const LIFE_SECONDS_MAX: u64 = 15 * 60;

/// Returns whether a name has the form of a probe's directory.
pub fn is_probe_directory_name(name: &[u8]) -> bool {
    name.strip_prefix(PREFIX.as_bytes())
        .is_some_and(|rest| rest.len() == 6 && rest.iter().all(u8::is_ascii_alphanumeric))
}

/// The owner's line that a probe writes into its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The name of the node.
    pub host: String,
    /// The id of the process.
    pub process: u32,
    /// Seconds since 1970.
    pub started: u64,
}

impl Owner {
    /// Parses a line; `None` if it is not a complete line written by a probe.
    pub fn parse(text: &str) -> Option<Owner> {
        let mut words = text.strip_suffix('\n')?.split(' ');
        let owner = Owner {
            host: words.next().filter(|host| !host.is_empty())?.into(),
            process: words.next()?.parse().ok()?,
            started: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(owner)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.host, self.process, self.started)
    }
}

/// The state of another probe's directory.
#[derive(Debug, Clone)]
pub struct Leftover {
    /// The name of the directory.
    pub name: String,
    /// The owner of the directory.
    pub uid: u32,
    /// The owner's line, if it is complete.
    pub owner: Option<Owner>,
    /// Whether a process holds its lock; `None` if the caller may not check it, or locks are not
    /// supported.
    pub locked: Option<bool>,
    /// The time of the last change of the directory, in seconds since 1970.
    pub modified: u64,
}

impl Leftover {
    /// Returns whether the probe may still be running.
    pub fn is_live(&self, here: &str, now: u64) -> bool {
        match (self.locked, &self.owner) {
            (Some(true), _) => true,
            // The kernel released the lock when the process ended.
            (Some(false), Some(owner)) if owner.host == here => false,
            // Locks may not work between nodes, but the age is valid on all.
            (_, Some(owner)) => now < owner.started.saturating_add(LIFE_SECONDS_MAX),
            (_, None) => now < self.modified.saturating_add(LIFE_SECONDS_MAX),
        }
    }

    /// Returns a description of the owner.
    pub fn describe_owner(&self) -> String {
        match &self.owner {
            Some(owner) => format!("process {} on {}", owner.process, owner.host),
            None => format!("user {}", self.uid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_probes_form_are_probe_directories() {
        for (name, yes) in [
            (".quell-probe-aB3xYz", true),
            (".quell-probe-aB3xY", false),
            (".quell-probe-aB3xYz7", false),
            (".quell-probe-../../", false),
            (".quell-probe-", false),
            ("quell-probe-aB3xYz", false),
        ] {
            assert_eq!(is_probe_directory_name(name.as_bytes()), yes, "{name}");
        }
    }

    #[test]
    fn an_owners_line_is_parsed_as_it_was_printed() {
        let owner = Owner { host: "node7".into(), process: 123, started: 1_764_000_000 };
        assert_eq!(Owner::parse(&format!("{owner}\n")), Some(owner));
        for text in ["", "\n", "node7 123 17", "node7 123\n", "node7 x 17\n", " 1 2\n", "a 1 2 3\n"] {
            assert_eq!(Owner::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_probe_is_live_while_it_holds_its_lock_or_may_hold_it() {
        let minutes = 60;
        let cases = [
            // locked, host and age of the owner, age of the directory, live
            (Some(true), Some(("here", 0)), 0, true),
            (Some(true), Some(("here", 99 * minutes)), 99 * minutes, true),
            (Some(false), Some(("here", 0)), 0, false),
            (Some(false), Some(("there", minutes)), minutes, true),
            (Some(false), Some(("there", 16 * minutes)), 0, false),
            (None, Some(("here", minutes)), minutes, true),
            (None, Some(("here", 16 * minutes)), minutes, false),
            // The directory of another user's probe, or of one that was killed before it could
            // write its owner's line.
            (None, None, minutes, true),
            (Some(false), None, minutes, true),
            (None, None, 16 * minutes, false),
        ];
        let now = 1_764_000_000;
        for (locked, owner, age, live) in cases {
            let owner = owner.map(|(host, age)| Owner { host: host.into(), process: 1, started: now - age });
            let leftover =
                Leftover { name: format!("{PREFIX}aaaaaa"), uid: 0, owner, locked, modified: now - age };
            assert_eq!(leftover.is_live("here", now), live, "{leftover:?}");
        }
    }
}
