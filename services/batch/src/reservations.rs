//! The directories of the image and the use that prepared batches reserve. A prepared batch can be
//! published at any time, without another verification, so nothing on which its verification
//! depends may change, and its changes must remain within the limits of the use.

use std::collections::{BTreeMap, HashSet};

use quell_vfs::{Error, ErrorKind, Result};

use crate::batch::Prepared;
use crate::usage::{Usage, UsageChanges};

/// The reserved directories and use, by the numbers of the prepared batches.
#[derive(Debug, Default)]
pub(crate) struct Reservations(BTreeMap<u64, Reserved>);

#[derive(Debug)]
struct Reserved {
    /// The directories that must not change.
    dirs: HashSet<u64>,
    /// Those of them that the batch changes.
    changed: Vec<u64>,
    /// The changes of the use.
    usage: UsageChanges,
}

impl Reservations {
    /// Reserves the directories of a prepared batch, and the use that it adds.
    pub(crate) fn insert(&mut self, batch: u64, prepared: &Prepared, usage: UsageChanges) {
        let dirs = prepared.dirs.iter().chain(&prepared.changed_dirs).copied().collect();
        self.0.insert(batch, Reserved { dirs, changed: prepared.changed_dirs.clone(), usage });
    }

    /// Returns the use that all batches except `by` add: of a user, or of all users. A batch that
    /// reduces the use reserves nothing, because it may be rolled back.
    pub(crate) fn usage(&self, by: Option<u64>, uid: Option<u32>) -> Usage {
        let others = self.0.iter().filter(|(batch, _)| Some(**batch) != by);
        let increase = |(_, reserved): (_, &Reserved)| match uid {
            Some(uid) => reserved.usage.of(uid).increase(),
            None => reserved.usage.total().increase(),
        };
        others.map(increase).fold(Usage::default(), Usage::with)
    }

    /// Ends the reservation of a batch.
    pub(crate) fn remove(&mut self, batch: u64) {
        self.0.remove(&batch);
    }

    /// Checks that the batch `by` can change these directories; `None` for an operation that
    /// belongs to no batch.
    ///
    /// # Errors
    /// `Busy` if another batch reserves one of them.
    pub(crate) fn check(&self, by: Option<u64>, changed: &[u64]) -> Result<()> {
        let is_reserved = |reserved: &Reserved| changed.iter().any(|dir| reserved.dirs.contains(dir));
        let found = self.0.iter().find(|(batch, reserved)| Some(**batch) != by && is_reserved(reserved));
        found.map_or(Ok(()), |(batch, _)| Err(reserved_by(*batch)))
    }

    /// Checks that a batch can be prepared: two prepared batches can be published in any order, so
    /// neither may depend on a directory that the other one changes.
    ///
    /// # Errors
    /// `Busy` if there is such a directory.
    pub(crate) fn check_new(&self, number: u64, prepared: &Prepared) -> Result<()> {
        self.check(Some(number), &prepared.changed_dirs)?;
        let reads = |reserved: &Reserved| {
            reserved.changed.iter().any(|changed| prepared.dirs.binary_search(changed).is_ok())
        };
        let found = self.0.iter().find(|(batch, reserved)| **batch != number && reads(reserved));
        found.map_or(Ok(()), |(batch, _)| Err(reserved_by(*batch)))
    }
}

fn reserved_by(batch: u64) -> Error {
    let reason = format!(
        "batch {batch} is prepared and reserves the directory, until its commit with a transaction of blobs \
         has ended; if its process has ended, use \"quell batch commit\" or \"quell batch abort\""
    );
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::Busy, "change a directory", "") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Marker;

    fn prepared(dirs: &[u64], changed_dirs: &[u64]) -> Prepared {
        Prepared {
            marker: Marker { location: "dir:/blobs".into(), blob: "marker".into() },
            entries: vec![1],
            tables: Vec::new(),
            changed_dirs: changed_dirs.to_vec(),
            dirs: dirs.to_vec(),
        }
    }

    #[test]
    fn reserved_directories_are_changed_by_their_batch_only() {
        let mut reservations = Reservations::default();
        reservations.insert(7, &prepared(&[1, 2], &[2, 3]), UsageChanges::default());
        for dir in [1, 2, 3] {
            let refused = reservations.check(None, &[9, dir]).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Busy);
            assert!(refused.to_string().contains("batch 7 is prepared"), "{refused}");
            assert!(reservations.check(Some(8), &[dir]).is_err());
            reservations.check(Some(7), &[dir]).unwrap();
        }
        reservations.check(None, &[4]).unwrap();
        reservations.remove(7);
        reservations.check(None, &[1, 2, 3]).unwrap();
    }

    #[test]
    fn two_batches_are_prepared_if_neither_depends_on_a_change_of_the_other_one() {
        let mut reservations = Reservations::default();
        reservations.insert(7, &prepared(&[1, 2], &[2]), UsageChanges::default());
        reservations.check_new(8, &prepared(&[1, 3], &[3])).unwrap();
        // It reads a directory that batch 7 changes, or changes one that batch 7 reads.
        assert!(reservations.check_new(8, &prepared(&[2, 3], &[3])).is_err());
        assert!(reservations.check_new(8, &prepared(&[1, 3], &[1])).is_err());
    }
}
