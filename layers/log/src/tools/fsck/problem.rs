//! The problems that `quell log fsck` reports: their kinds, which have stable identifiers, and
//! their texts. Pure functions. docs/guides/log-tools.md describes each kind for users.

use std::fmt;
use std::ops::Range;

use crate::format::{FileOffset, Holder};

/// A kind of problem. All problems of one kind have the same meaning for a user and are treated
/// alike; the text of a problem has the details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ProblemKind {
    /// An index log, flat index, `closed` name or `epoch` name is missing, damaged, or differs from
    /// the data logs, from which it is derived.
    Metadata,
    /// The data log of an ended writer ends with an incomplete frame.
    TornEnd,
    /// A writer was not closed, and its process has ended.
    DeadWriter,
    /// The remains of an interrupted or completed creation, removal or repair.
    Leftover,
    /// Bytes of the file are damaged or missing.
    DamagedData,
    /// Bytes of the file were lost before they were synced; readers get the previous content.
    LostUnsynced,
    /// Damaged bytes in a log that the file does not need.
    HarmlessDamage,
    /// An entry that Quell did not create.
    Foreign,
    /// The stores disagree about a name: it exists more than once, or is not in every store.
    InconsistentName,
    /// The parts of a file belong to different users.
    InconsistentOwner,
    /// Logs that no name in `meta` refers to.
    OrphanLogs,
    /// Log directories of a container that is in none of the stores.
    OrphanParts,
    /// A container that cannot be opened or checked.
    NotChecked,
}

impl ProblemKind {
    /// All kinds, in the order of docs/guides/log-tools.md.
    pub const ALL: [ProblemKind; 13] = [
        ProblemKind::Metadata,
        ProblemKind::TornEnd,
        ProblemKind::DeadWriter,
        ProblemKind::Leftover,
        ProblemKind::DamagedData,
        ProblemKind::LostUnsynced,
        ProblemKind::HarmlessDamage,
        ProblemKind::Foreign,
        ProblemKind::InconsistentName,
        ProblemKind::InconsistentOwner,
        ProblemKind::OrphanLogs,
        ProblemKind::OrphanParts,
        ProblemKind::NotChecked,
    ];

    /// Returns the stable identifier, for programs and for docs/guides/log-tools.md.
    pub fn id(self) -> &'static str {
        match self {
            ProblemKind::Metadata => "metadata",
            ProblemKind::TornEnd => "torn-end",
            ProblemKind::DeadWriter => "dead-writer",
            ProblemKind::Leftover => "leftover",
            ProblemKind::DamagedData => "damaged-data",
            ProblemKind::LostUnsynced => "lost-unsynced",
            ProblemKind::HarmlessDamage => "harmless-damage",
            ProblemKind::Foreign => "foreign",
            ProblemKind::InconsistentName => "inconsistent-name",
            ProblemKind::InconsistentOwner => "inconsistent-owner",
            ProblemKind::OrphanLogs => "orphan-logs",
            ProblemKind::OrphanParts => "orphan-parts",
            ProblemKind::NotChecked => "not-checked",
        }
    }
}

/// A problem: its kind, and the details for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The kind.
    pub kind: ProblemKind,
    /// One line without the path of the file.
    pub text: String,
    /// The writer whose logs have the problem.
    pub writer: Option<u64>,
    /// The affected ranges of the file.
    pub ranges: Vec<Range<FileOffset>>,
}

/// The result of a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepairOutcome {
    /// No repair was requested, or none exists.
    NotRepaired,
    /// The problem is repaired.
    Repaired,
    /// The repair failed.
    Failed(String),
}

/// A problem of one file or store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The path in the mount; empty for problems of a store itself.
    pub path: Vec<u8>,
    /// The problem.
    pub problem: Problem,
    /// The result of the repair.
    pub outcome: RepairOutcome,
}

impl Problem {
    fn new(kind: ProblemKind, text: String) -> Problem {
        Problem { kind, text, writer: None, ranges: Vec::new() }
    }

    fn of_writer(kind: ProblemKind, writer: u64, text: String) -> Problem {
        Problem { writer: Some(writer), ..Problem::new(kind, text) }
    }

    pub(crate) fn index_log(writer: u64, defect: &str) -> Problem {
        let text = format!("the index log of writer {writer:016x} {defect}");
        Problem::of_writer(ProblemKind::Metadata, writer, text)
    }

    pub(crate) fn flat_index(name: &str, defect: &str) -> Problem {
        Problem::new(ProblemKind::Metadata, format!("the flat index {name} {defect}"))
    }

    pub(crate) fn wrong_closed_name(writer: u64) -> Problem {
        let text = format!("the `closed` name of writer {writer:016x} differs from its logs");
        Problem::of_writer(ProblemKind::Metadata, writer, text)
    }

    pub(crate) fn needless_closed_name(writer: u64) -> Problem {
        let text =
            format!("the `closed` name of writer {writer:016x} is left from an interrupted truncation");
        Problem::of_writer(ProblemKind::Metadata, writer, text)
    }

    pub(crate) fn untaken_epoch(epoch: u64) -> Problem {
        let text = format!("epoch {epoch} was used, but no `epoch` name marks it as taken");
        Problem::new(ProblemKind::Metadata, text)
    }

    pub(crate) fn torn_end(writer: u64, torn_bytes: u64) -> Problem {
        let text = format!(
            "the data log of writer {writer:016x} ends with {} that are not a complete frame",
            Bytes(torn_bytes)
        );
        Problem::of_writer(ProblemKind::TornEnd, writer, text)
    }

    pub(crate) fn dead_writer(writer: u64, holder: &Holder) -> Problem {
        let text =
            format!("writer {writer:016x} was not closed by its process, {} on {}", holder.pid, holder.node);
        Problem::of_writer(ProblemKind::DeadWriter, writer, text)
    }

    pub(crate) fn leftover(name: &str, store: &str) -> Problem {
        let text = format!("{name} in {store} is left over from a creation, removal or repair");
        Problem::new(ProblemKind::Leftover, text)
    }

    pub(crate) fn object_without_header() -> Problem {
        let text = "the file has no header and no content: either its creation was interrupted, or a \
                    mount has just created it"
            .to_owned();
        Problem::new(ProblemKind::Leftover, text)
    }

    pub(crate) fn same_number() -> Problem {
        let text = "another file of the store has the same number, because one is a copy that was made in the \
                    store itself: a change of one changes the other. Copy both through a mount, and remove them"
            .to_owned();
        Problem::new(ProblemKind::InconsistentName, text)
    }

    pub(crate) fn several_names() -> Problem {
        let text = "an interrupted rename has left the file with two names. Remove one of them".to_owned();
        Problem::new(ProblemKind::InconsistentName, text)
    }

    pub(crate) fn several_owners() -> Problem {
        let text = "parts of the file belong to different users, as after an interrupted change of its owner"
            .to_owned();
        Problem::new(ProblemKind::InconsistentOwner, text)
    }

    pub(crate) fn damaged_ranges(writer: u64, ranges: Vec<Range<FileOffset>>) -> Problem {
        let text =
            format!("bytes {} of the file are damaged, in the log of writer {writer:016x}", Ranges(&ranges));
        Problem { ranges, ..Problem::of_writer(ProblemKind::DamagedData, writer, text) }
    }

    pub(crate) fn damaged_data_log_header(writer: u64) -> Problem {
        let text =
            format!("the data log of writer {writer:016x} has a damaged header, so its data cannot be read");
        Problem::of_writer(ProblemKind::DamagedData, writer, text)
    }

    /// The bytes at these log offsets are not frames, but complete frames follow.
    pub(crate) fn unreadable_frames(writer: u64, log_range: Range<u64>) -> Problem {
        let Range { start, end } = log_range;
        let text = format!(
            "bytes {start} to {end} of the data log of writer {writer:016x} have frames that cannot be read"
        );
        Problem::of_writer(ProblemKind::DamagedData, writer, text)
    }

    pub(crate) fn missing_end(writer: u64, missing_bytes: u64) -> Problem {
        let text = format!("the data log of writer {writer:016x} has lost its last {}", Bytes(missing_bytes));
        Problem::of_writer(ProblemKind::DamagedData, writer, text)
    }

    pub(crate) fn lost_unsynced(writer: u64, ranges: Vec<Range<FileOffset>>) -> Problem {
        let text = format!(
            "bytes {} of the file were lost before they were synced, in the log of writer {writer:016x}",
            Ranges(&ranges)
        );
        Problem { ranges, ..Problem::of_writer(ProblemKind::LostUnsynced, writer, text) }
    }

    pub(crate) fn damaged_unused_ranges(writer: u64, ranges: Vec<Range<FileOffset>>) -> Problem {
        let text = format!(
            "bytes {} are damaged in the log of writer {writer:016x}, but were overwritten or truncated since",
            Ranges(&ranges)
        );
        Problem { ranges, ..Problem::of_writer(ProblemKind::HarmlessDamage, writer, text) }
    }

    pub(crate) fn damaged_frame_header(writer: u64, log_offset: u64) -> Problem {
        let text = format!(
            "the header of the frame at byte {log_offset} of the data log of writer {writer:016x} is damaged, \
             but the index log has a copy"
        );
        Problem::of_writer(ProblemKind::HarmlessDamage, writer, text)
    }

    pub(crate) fn foreign_entry(store: &str) -> Problem {
        let text = format!("an entry of {store} that Quell did not create; mounts do not show it");
        Problem::new(ProblemKind::Foreign, text)
    }

    pub(crate) fn not_a_container() -> Problem {
        Problem::new(
            ProblemKind::Foreign,
            "a directory that has the name of a container, but no record".to_owned(),
        )
    }

    pub(crate) fn foreign_name(name: &str) -> Problem {
        Problem::new(ProblemKind::Foreign, format!("Quell did not create {name} in the container"))
    }

    pub(crate) fn file_in_several_stores(store: &str) -> Problem {
        let text =
            format!("another store has a file of this name as well; mounts do not show the one in {store}");
        Problem::new(ProblemKind::InconsistentName, text)
    }

    pub(crate) fn hidden_by_file() -> Problem {
        let text = "a file of this name hides a directory or symbolic link".to_owned();
        Problem::new(ProblemKind::InconsistentName, text)
    }

    pub(crate) fn not_in_first_store(store: &str, first: &str) -> Problem {
        let text = format!(
            "{store} has a directory or symbolic link that is missing in {first}; mounts do not show it"
        );
        Problem::new(ProblemKind::InconsistentName, text)
    }

    pub(crate) fn directory_missing(store: &str) -> Problem {
        Problem::new(ProblemKind::InconsistentName, format!("{store} does not have this directory"))
    }

    pub(crate) fn orphan_logs(writer: u64) -> Problem {
        let text = format!(
            "the logs of writer {writer:016x} are not part of the file: no name in `meta` refers to them"
        );
        Problem::of_writer(ProblemKind::OrphanLogs, writer, text)
    }

    pub(crate) fn orphan_parts(name: &str, store: &str) -> Problem {
        let text = format!("{name} in {store} has log directories of a file that is in none of these stores");
        Problem::new(ProblemKind::OrphanParts, text)
    }

    pub(crate) fn not_checked(reason: impl fmt::Display) -> Problem {
        Problem::new(ProblemKind::NotChecked, format!("cannot be checked: {reason}"))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.id(), self.text)
    }
}

/// A number of bytes in a message.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, if self.0 == 1 { "byte" } else { "bytes" })
    }
}

/// Ranges in a message; only the first four are shown.
struct Ranges<'a>(&'a [Range<FileOffset>]);

const RANGES_SHOWN: usize = 4;

impl fmt::Display for Ranges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Range { start, end }) in self.0.iter().take(RANGES_SHOWN).enumerate() {
            write!(f, "{}{start} to {end}", if number > 0 { ", " } else { "" })?;
        }
        match self.0.len().saturating_sub(RANGES_SHOWN) {
            0 => Ok(()),
            1 => f.write_str(" and 1 more range"),
            more => write!(f, " and {more} more ranges"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_distinct_and_in_kebab_case() {
        let ids: std::collections::BTreeSet<_> = ProblemKind::ALL.iter().map(|kind| kind.id()).collect();
        assert_eq!(ids.len(), ProblemKind::ALL.len());
        for id in ids {
            assert!(id.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{id}");
        }
    }

    #[test]
    fn the_guide_has_a_row_for_each_kind() {
        let guide = include_str!("../../../../../docs/guides/log-tools.md");
        for kind in ProblemKind::ALL {
            assert!(guide.contains(&format!("\n| `{}` |", kind.id())), "{kind:?}");
        }
    }

    #[test]
    fn texts_have_singular_and_plural_and_few_ranges() {
        assert!(Problem::torn_end(1, 1).text.contains("with 1 byte"));
        assert!(Problem::torn_end(1, 2).text.contains("with 2 bytes that"));
        let range = |i| FileOffset(2 * i)..FileOffset(2 * i + 1);
        let ranges = |count: u64| Problem::damaged_ranges(1, (0..count).map(range).collect());
        assert!(ranges(4).text.contains("2 to 3, 4 to 5, 6 to 7 of the file"));
        assert!(ranges(5).text.contains("6 to 7 and 1 more range of the file"));
        assert!(ranges(6).text.contains("and 2 more ranges"));
        assert_eq!(ranges(6).ranges.len(), 6);
    }
}
