//! The parts of blobs that recent commits have changed. They decide whether a transaction conflicts
//! with commits after the state that it has read (optimistic concurrency control). The code
//! performs no I/O and takes no locks.

use std::collections::{BTreeMap, HashMap, VecDeque};

use quell_wire::blob::{Conflict, Part, Read, Version};
use serde::{Deserialize, Serialize};

/// The largest number of changed parts that are kept.
const PARTS_MAX: usize = 1 << 18;

/// A part of a blob that a transaction changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) name: Vec<u8>,
    pub(crate) part: ChangedPart,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ChangedPart {
    /// The blob was created or deleted. Its size and bytes have changed as well.
    Existence,
    /// The size of the blob.
    Size,
    /// The bytes from the first number up to the second one, exclusive.
    Range(u64, u64),
}

/// The changes of recent commits.
pub(crate) struct RecentChanges {
    blobs: HashMap<Vec<u8>, BlobChanges>,
    /// The names that were created or deleted, with the version of the last such commit.
    names: BTreeMap<Vec<u8>, Version>,
    /// All changes, in the order of their versions.
    order: VecDeque<(Version, Change)>,
    /// Changes up to this version may be missing.
    forgotten: Version,
}

#[derive(Default)]
struct BlobChanges {
    existence: Option<Version>,
    size: Option<Version>,
    /// Disjoint ranges: for each start, the end and the version of the last change.
    ranges: BTreeMap<u64, (u64, Version)>,
}

impl RecentChanges {
    /// Returns an empty list of changes. Changes up to `forgotten` are not known.
    pub(crate) fn new(forgotten: Version) -> RecentChanges {
        RecentChanges { blobs: HashMap::new(), names: BTreeMap::new(), order: VecDeque::new(), forgotten }
    }

    /// Adds a change of a commit. Its version must not be less than the versions of earlier
    /// changes.
    pub(crate) fn add(&mut self, version: Version, change: Change) {
        let blob = self.blobs.entry(change.name.clone()).or_default();
        match change.part {
            ChangedPart::Existence => {
                blob.existence = Some(version);
                self.names.insert(change.name.clone(), version);
            }
            ChangedPart::Size => blob.size = Some(version),
            ChangedPart::Range(start, end) => blob.add_range(start, end, version),
        }
        self.order.push_back((version, change));
    }

    /// Returns all changes, in the order in which they were added.
    pub(crate) fn into_changes(self) -> impl Iterator<Item = Change> {
        self.order.into_iter().map(|(_, change)| change)
    }

    /// Returns the version up to which changes may be missing: a transaction that has read an
    /// earlier state cannot be compared with the changes.
    pub(crate) fn forgotten(&self) -> Version {
        self.forgotten
    }

    /// Returns the conflict if a commit after `state` has changed a part that was read.
    pub(crate) fn conflict(&self, read: &Read, state: Version) -> Option<Conflict> {
        let conflict = |changed| Some(Conflict { read: read.clone(), changed });
        let is_later = |version: Option<Version>| version.is_some_and(|version| version > state);
        if read.part == Part::NamesWithPrefix {
            let mut names =
                self.names.range(read.name.clone()..).take_while(|(name, _)| name.starts_with(&read.name));
            return names
                .any(|(_, version)| *version > state)
                .then_some(Part::NamesWithPrefix)
                .and_then(conflict);
        }
        let blob = self.blobs.get(&read.name)?;
        if is_later(blob.existence) {
            return conflict(Part::Existence);
        }
        match read.part {
            Part::Existence | Part::NamesWithPrefix => None,
            Part::Size => is_later(blob.size).then_some(Part::Size).and_then(conflict),
            Part::Range { start, end } => {
                let changed = blob.first_change(start, end, state)?;
                conflict(Part::Range { start: changed.0, end: changed.1 })
            }
        }
    }

    /// Removes the changes of commits up to `version`, which every snapshot contains, and the
    /// oldest changes if there are too many.
    pub(crate) fn forget_up_to(&mut self, version: Version) {
        while let Some((oldest, _)) = self.order.front() {
            if *oldest > version && self.order.len() <= PARTS_MAX {
                return;
            }
            let Some((version, change)) = self.order.pop_front() else { return };
            self.forgotten = self.forgotten.max(version);
            self.remove(version, &change);
        }
    }

    /// Removes a change, unless a later change has replaced it.
    fn remove(&mut self, version: Version, change: &Change) {
        let Some(blob) = self.blobs.get_mut(&change.name) else { return };
        match change.part {
            ChangedPart::Existence => {
                if blob.existence == Some(version) {
                    blob.existence = None;
                    self.names.remove(&change.name);
                }
            }
            ChangedPart::Size => {
                if blob.size == Some(version) {
                    blob.size = None;
                }
            }
            ChangedPart::Range(start, end) => blob.remove_range(start, end, version),
        }
        if blob.existence.is_none() && blob.size.is_none() && blob.ranges.is_empty() {
            self.blobs.remove(&change.name);
        }
    }
}

impl BlobChanges {
    /// Adds a range, and removes its bytes from older ranges.
    fn add_range(&mut self, start: u64, end: u64, version: Version) {
        if start >= end {
            return;
        }
        if let Some((before_start, (before_end, before_version))) =
            self.ranges.range(..start).next_back().map(|(start, range)| (*start, *range))
            && before_end > start
        {
            self.ranges.insert(before_start, (start, before_version));
            if before_end > end {
                self.ranges.insert(end, (before_end, before_version));
            }
        }
        let inside: Vec<u64> = self.ranges.range(start..end).map(|(start, _)| *start).collect();
        for inside_start in inside {
            if let Some((inside_end, inside_version)) = self.ranges.remove(&inside_start)
                && inside_end > end
            {
                self.ranges.insert(end, (inside_end, inside_version));
            }
        }
        self.ranges.insert(start, (end, version));
    }

    /// Removes the remaining parts of ranges that a version changed.
    fn remove_range(&mut self, start: u64, end: u64, version: Version) {
        let left = self.ranges.range(start..end).filter(|(_, (_, of))| *of == version);
        let left: Vec<u64> = left.map(|(start, _)| *start).collect();
        for start in left {
            self.ranges.remove(&start);
        }
    }

    /// Returns the first part of a range that a commit after `state` has changed, if there is one.
    fn first_change(&self, start: u64, end: u64, state: Version) -> Option<(u64, u64)> {
        let before = self.ranges.range(..start).next_back();
        let inside = self.ranges.range(start..end.max(start));
        before
            .into_iter()
            .chain(inside)
            .find(|(_, (changed_end, version))| *changed_end > start && *version > state)
            .map(|(changed_start, (changed_end, _))| ((*changed_start).max(start), (*changed_end).min(end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_testkit::Random;

    fn range(start: u64, end: u64) -> Change {
        Change { name: b"a".to_vec(), part: ChangedPart::Range(start, end) }
    }

    fn read(part: Part) -> Read {
        Read { name: b"a".to_vec(), part }
    }

    #[test]
    fn ranges_agree_with_a_version_for_each_byte() {
        const BYTES: u64 = 40;
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let mut recent = RecentChanges::new(Version(0));
            let mut bytes = [Version(0); BYTES as usize];
            for version in 1..=30 {
                let start = random.below(BYTES as usize) as u64;
                let end = start + 1 + random.below((BYTES - start) as usize) as u64;
                recent.add(Version(version), range(start, end));
                bytes[start as usize..end as usize].fill(Version(version));
                if random.below(4) == 0 {
                    recent.forget_up_to(Version(random.below(version as usize) as u64));
                }
                let state = Version(
                    recent.forgotten().0 + random.below((version - recent.forgotten().0 + 1) as usize) as u64,
                );
                let start = random.below(BYTES as usize) as u64;
                let end = start + 1 + random.below((BYTES - start) as usize) as u64;
                let expected = bytes[start as usize..end as usize].iter().any(|version| *version > state);
                let found = recent.conflict(&read(Part::Range { start, end }), state);
                assert_eq!(found.is_some(), expected, "seed {seed}, version {version}");
                if let Some(Conflict { changed: Part::Range { start: from, end: to }, .. }) = found {
                    assert!(start <= from && from < to && to <= end);
                    assert!(bytes[from as usize..to as usize].iter().all(|version| *version > state));
                }
            }
            recent.forget_up_to(Version(30));
            assert!(recent.blobs.is_empty() && recent.order.is_empty());
        }
    }

    #[test]
    fn creations_conflict_with_listings_and_with_every_read() {
        let mut recent = RecentChanges::new(Version(0));
        recent.add(Version(5), Change { name: b"ab".to_vec(), part: ChangedPart::Existence });
        let read = |name: &[u8], part| Read { name: name.to_vec(), part };
        for (read, conflicts) in [
            (read(b"ab", Part::Existence), true),
            (read(b"ab", Part::Size), true),
            (read(b"ab", Part::Range { start: 7, end: 8 }), true),
            (read(b"a", Part::NamesWithPrefix), true),
            (read(b"", Part::NamesWithPrefix), true),
            (read(b"ac", Part::NamesWithPrefix), false),
            (read(b"abc", Part::NamesWithPrefix), false),
            (read(b"a", Part::Existence), false),
        ] {
            assert_eq!(recent.conflict(&read, Version(4)).is_some(), conflicts, "{read:?}");
            assert_eq!(recent.conflict(&read, Version(5)), None, "{read:?}");
        }
    }
}
