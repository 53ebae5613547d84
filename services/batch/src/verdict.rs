//! The result of the verification of a batch, and its encoding in a message of an auxiliary server.
//! docs/formats/batch-protocol.md describes the encoding.

use std::collections::HashSet;
use std::ops::Range;

use quell_vfs::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::batch::Conflicts;
use crate::image::Addition;
use crate::table_ref::{TableRef, conflict_tables_of_batch, tables_of_batch};
use crate::task::VerificationTask;
use crate::usage::UsageChanges;

/// The largest encoded verdict, in bytes.
pub const VERDICT_BYTES_MAX: usize = 1 << 20;

/// The result of a verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The changes of the image.
    pub(crate) addition: Addition,
    /// The number of new entries.
    pub(crate) entries: u64,
    pub(crate) conflicts: Conflicts,
    /// The directories that the verification has read from the current image, in ascending order.
    pub(crate) dirs: Vec<u64>,
    /// The directories of which it has only read the attributes that decide about the access to
    /// them, in ascending order.
    pub(crate) accesses: Vec<u64>,
}

/// The fields of an encoded verdict.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Encoded {
    /// The number of the batch or of the part.
    batch: u64,
    tables: Vec<TableRef>,
    entries: u64,
    conflicts: u64,
    conflict_tables: Vec<TableRef>,
    /// Lists of directories: the first number, and the differences between adjacent ones.
    changed_dirs: Vec<u64>,
    dirs: Vec<u64>,
    accesses: Vec<u64>,
    /// The changes of the use of users, in the order of the users.
    usage: UsageChanges,
}

impl Verdict {
    /// Returns the numbers of the tables that the verification has written.
    pub fn tables(&self) -> impl Iterator<Item = u64> {
        self.addition.tables.iter().chain(&self.conflicts.tables).map(|table| table.number)
    }

    /// Returns the number of new entries.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Returns the number of conflicts, including the conflicts of earlier parts of the batch.
    pub fn conflicts(&self) -> u64 {
        self.conflicts.count
    }

    /// Encodes the verdict about the batch or the part with this number.
    ///
    /// # Errors
    /// `NoSpace` if it is longer than [`VERDICT_BYTES_MAX`].
    pub fn encode(&self, batch: u64) -> Result<Vec<u8>> {
        let encoded = Encoded {
            batch,
            tables: self.addition.tables.clone(),
            entries: self.entries,
            conflicts: self.conflicts.count,
            conflict_tables: self.conflicts.tables.clone(),
            changed_dirs: differences(&self.addition.changed_dirs),
            dirs: differences(&self.dirs),
            accesses: differences(&self.accesses),
            usage: self.addition.usage.clone().unwrap_or_default(),
        };
        let bytes = postcard::to_stdvec(&encoded).expect("a verdict has no value that postcard refuses");
        match bytes.len() <= VERDICT_BYTES_MAX {
            true => Ok(bytes),
            false => {
                let source = Some("the batch depends on too many directories for one message".into());
                Err(Error { source, ..Error::new(ErrorKind::NoSpace, "encode a verdict", "") })
            }
        }
    }

    /// Decodes the verdict about the batch or the part of `task`.
    ///
    /// # Errors
    /// `Damaged` if the bytes are not a verdict, or if the verdict is about another batch.
    pub fn decode(bytes: &[u8], task: &VerificationTask) -> Result<Verdict> {
        if bytes.len() > VERDICT_BYTES_MAX {
            return Err(refused("it is too long"));
        }
        let Ok((encoded, [])) = postcard::take_from_bytes::<Encoded>(bytes) else {
            return Err(refused("its bytes do not have the format of a verdict"));
        };
        if encoded.batch != task.record.number {
            return Err(refused("it states the number of another batch"));
        }
        check_tables(&encoded.tables, &tables_of_batch(encoded.batch))?;
        check_tables(&encoded.conflict_tables, &conflict_tables_of_batch(encoded.batch))?;
        let listed =
            encoded.conflict_tables.iter().try_fold(0_u64, |sum, table| sum.checked_add(table.entries));
        if listed.is_none() || listed != encoded.conflicts.checked_sub(task.conflicts) {
            return Err(refused(
                "the number of conflicts differs from the number of entries of their tables",
            ));
        }
        let Encoded { tables, entries, conflicts, conflict_tables, usage, .. } = encoded;
        let verdict = Verdict {
            addition: Addition { tables, changed_dirs: numbers(&encoded.changed_dirs)?, usage: Some(usage) },
            entries,
            conflicts: Conflicts { count: conflicts, tables: conflict_tables },
            dirs: numbers(&encoded.dirs)?,
            accesses: numbers(&encoded.accesses)?,
        };
        // Numbers have several encodings, of which only the shortest is accepted.
        match verdict.encode(encoded.batch).is_ok_and(|encoded| encoded == bytes) {
            true => Ok(verdict),
            false => Err(refused("its encoding is not the shortest one")),
        }
    }
}

/// Checks that each table has one of these numbers, that no number occurs twice, and that each
/// table has entries.
fn check_tables(tables: &[TableRef], permitted: &Range<u64>) -> Result<()> {
    let mut numbers = HashSet::new();
    for table in tables {
        if !permitted.contains(&table.number) || !numbers.insert(table.number) {
            return Err(refused("the number of a table does not belong to the batch, or occurs twice"));
        }
        if table.entries == 0 || table.bytes == 0 {
            return Err(refused("a table is empty"));
        }
    }
    Ok(())
}

/// Returns the first number of an ascending list, and the differences between adjacent ones.
fn differences(numbers: &[u64]) -> Vec<u64> {
    let mut last = 0;
    numbers.iter().map(|number| number - std::mem::replace(&mut last, *number)).collect()
}

/// Returns the numbers with these differences.
fn numbers(differences: &[u64]) -> Result<Vec<u64>> {
    let mut last: Option<u64> = None;
    let mut next = |difference: &u64| match last {
        Some(_) if *difference == 0 => Err(refused("a directory occurs twice")),
        _ => {
            let number = last.unwrap_or_default().checked_add(*difference);
            last = number;
            number.ok_or_else(|| refused("the number of a directory is too large"))
        }
    };
    differences.iter().map(&mut next).collect()
}

fn refused(reason: &'static str) -> Error {
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::Damaged, "read a verdict", "") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::ROOT;
    use crate::fuzzing::{verdict, verification_task};

    /// Returns the reason for which the verdict is refused after a change.
    fn reason(change: impl FnOnce(&mut Encoded)) -> String {
        let bytes = verdict().encode(verification_task().record.number).unwrap();
        let mut encoded: Encoded = postcard::from_bytes(&bytes).unwrap();
        change(&mut encoded);
        let error =
            Verdict::decode(&postcard::to_stdvec(&encoded).unwrap(), &verification_task()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Damaged);
        error.to_string()
    }

    #[test]
    fn a_verdict_is_decoded_as_it_was_encoded() {
        let task = verification_task();
        let bytes = verdict().encode(task.record.number).unwrap();
        assert_eq!(bytes, include_bytes!("../../../fuzz/seeds/batch_verdicts/one"));
        assert_eq!(Verdict::decode(&bytes, &task).unwrap(), verdict());
        // The example of docs/formats/batch-protocol.md, for a batch without earlier parts.
        let no_changes = Addition { usage: Some(UsageChanges::default()), ..Addition::default() };
        let first = VerificationTask { conflicts: 0, ..task.clone() };
        let example = Verdict::decode(&[3, 0, 0, 0, 0, 0, 0, 1, 0, 0], &first).unwrap();
        assert_eq!((example.accesses, example.addition), (vec![ROOT], no_changes.clone()));
        let empty = Verdict {
            addition: no_changes,
            entries: 0,
            conflicts: Conflicts { count: task.conflicts, tables: Vec::new() },
            dirs: Vec::new(),
            accesses: Vec::new(),
        };
        assert_eq!(Verdict::decode(&empty.encode(task.record.number).unwrap(), &task).unwrap(), empty);
    }

    #[test]
    fn each_wrong_statement_is_refused() {
        let other = reason(|encoded| encoded.batch += 1);
        assert!(other.contains("another batch"), "{other}");
        let number = tables_of_batch(verification_task().record.number);
        let of_conflicts = conflict_tables_of_batch(verification_task().record.number);
        assert_eq!(number.end, of_conflicts.start);
        for wrong in [1, number.start - 1, number.end, u64::MAX] {
            let reason = reason(|encoded| encoded.tables[0].number = wrong);
            assert!(reason.contains("does not belong to the batch"), "{wrong}: {reason}");
        }
        for wrong in [1, number.end - 1, of_conflicts.end, u64::MAX] {
            let reason = reason(|encoded| encoded.conflict_tables[0].number = wrong);
            assert!(reason.contains("does not belong to the batch"), "{wrong}: {reason}");
        }
        for text in [
            ("occurs twice", reason(|encoded| encoded.tables[1].number = encoded.tables[0].number)),
            ("is empty", reason(|encoded| encoded.tables[1].entries = 0)),
            ("is empty", reason(|encoded| encoded.conflict_tables[0].bytes = 0)),
            ("of their tables", reason(|encoded| encoded.conflicts += 1)),
            ("of their tables", reason(|encoded| encoded.conflicts = 0)),
            ("of their tables", reason(|encoded| encoded.conflict_tables.clear())),
            (
                "of their tables",
                reason(|encoded| {
                    let table = TableRef { entries: u64::MAX, ..encoded.conflict_tables[0].clone() };
                    encoded.conflict_tables.push(TableRef { number: table.number + 1, ..table });
                }),
            ),
            ("directory occurs twice", reason(|encoded| encoded.dirs[1] = 0)),
            ("directory occurs twice", reason(|encoded| encoded.accesses[1] = 0)),
            ("directory occurs twice", reason(|encoded| encoded.changed_dirs.push(0))),
            ("too large", reason(|encoded| encoded.dirs[1] = u64::MAX)),
        ] {
            assert!(text.1.contains(text.0), "{text:?}");
        }
    }

    #[test]
    fn other_bytes_and_longer_encodings_are_refused() {
        let task = verification_task();
        let bytes = verdict().encode(task.record.number).unwrap();
        for wrong in [&bytes[..bytes.len() - 1], &[&bytes[..], &[0]].concat(), &[]] {
            let error = Verdict::decode(wrong, &task).unwrap_err();
            assert!(error.to_string().contains("do not have the format of a verdict"), "{error}");
        }
        // The number of the batch in an encoding that is one byte longer than necessary.
        let longer = [&[bytes[0] | 0x80, 0], &bytes[1..]].concat();
        let error = Verdict::decode(&longer, &task).unwrap_err();
        assert!(error.to_string().contains("not the shortest"), "{error}");
        let error = Verdict::decode(&vec![0; VERDICT_BYTES_MAX + 1], &task).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    }

    #[test]
    fn a_verdict_about_too_many_directories_is_not_encoded() {
        let wide = |count: u64| Verdict { dirs: (0..count).map(|number| number * 3).collect(), ..verdict() };
        assert!(wide(500_000).encode(1).is_ok());
        assert_eq!(wide(2_000_000).encode(1).unwrap_err().kind, ErrorKind::NoSpace);
    }
}
