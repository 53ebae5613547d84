//! Reads of one state, and of a state with operations that are not committed.

use std::fmt;
use std::sync::Arc;

use quell_kv::Value;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{BlobStat, Operation, OperationResult, Part, Refusal, Version};

use crate::apply::{self, ApplyError, Environment, PreparedOperation};
use crate::content;
use crate::engine::{Engine, TRANSACTION_BYTES_MAX};
use crate::joint::{Locked, LocksOfState, check_names, check_read};
use crate::keys::{self, BlobEntry, ContentId};
use crate::tables::{
    ChangeSet, Changed, Changes, SnapshotTables, Tables, end_of_prefix, get_merged, scan_merged, visit_range,
};

/// One state of a store, and the operations of a transaction that reads it. Reads never wait for
/// commits. The operations are in memory, and do not change the store. A snapshot ends when it is
/// dropped.
///
/// All methods fail with `Stale` if later commits have changed so much that the store no longer
/// keeps the state: see [`Options`](crate::Options).
pub struct Snapshot {
    engine: Arc<Engine>,
    version: Version,
    /// The joint transactions that were prepared when the state was the latest one.
    locks: LocksOfState,
    /// The changes of the operations.
    draft: ChangeSet,
    /// The size of the changes that transforms have added, in bytes.
    transformed_bytes: u64,
}

impl Snapshot {
    pub(crate) fn new(engine: Arc<Engine>) -> Snapshot {
        let (version, locks) = engine.versions.begin_snapshot();
        Snapshot { engine, version, locks, draft: ChangeSet::default(), transformed_bytes: 0 }
    }

    /// Returns a snapshot of the same state, without operations.
    pub fn draft(&self) -> Snapshot {
        self.engine.versions.begin_snapshot_of(self.version);
        let (engine, version, locks) = (self.engine.clone(), self.version, self.locks.clone());
        Snapshot { engine, version, locks, draft: ChangeSet::default(), transformed_bytes: 0 }
    }

    /// Returns the version of the state.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Applies an operation, and returns its result. Later reads see its effect. A commit of the
    /// same operation can have another result, for example another offset of an append.
    ///
    /// # Errors
    /// The reason for which a commit would refuse the operation on this state. The operation has no
    /// effect.
    pub fn apply(&mut self, operation: Operation) -> std::result::Result<OperationResult, Refusal> {
        let is_transform = matches!(operation, Operation::Transform { .. });
        if is_transform && self.transformed_bytes > TRANSACTION_BYTES_MAX {
            return Err(apply::too_large().into());
        }
        let names: Vec<&[u8]> = operation.names().collect();
        check_names(&self.locks, self.version, &|name| names.contains(&name))
            .map_err(|error| Locked::of(&error).cloned().unwrap_or_else(|| error.into()))?;
        let engine = &*self.engine;
        let new_id = || ContentId(engine.new_number());
        let (now_ns, bytes_max) = (engine.now_ns(), u64::MAX);
        let environment = Environment { extents: &*engine.extents, new_id: &new_id, now_ns, bytes_max };
        let tables = self.tables();
        let mut own = Changes::new(&tables);
        let applied = apply::apply(&mut own, &environment, &[PreparedOperation::inline(operation)]);
        let own = own.into_changed();
        match applied {
            Ok(applied) => {
                let before = self.draft.size_bytes();
                self.draft.add(own);
                if is_transform {
                    self.transformed_bytes += self.draft.size_bytes().saturating_sub(before);
                }
                Ok(applied.results.into_iter().next().unwrap_or(OperationResult::Done))
            }
            Err(ApplyError::Refused(refusal)) => Err(refusal),
            Err(ApplyError::StaleContent(name)) => {
                // Later snapshots do not have the stale content.
                engine.remove_stale_of(name.clone());
                engine.commit_pending(&mut || ());
                let source =
                    Some("the rest of a truncated blob is being removed; repeat the transaction".into());
                Err(Error { source, ..Error::new(ErrorKind::Busy, "extend", name) }.into())
            }
        }
    }

    /// Returns the attributes of a blob, or `None` if there is no blob of this name.
    ///
    /// # Errors
    /// `InvalidInput` and `NameTooLong` for a name that no blob can have; the errors of the store.
    pub fn stat(&self, name: &[u8]) -> Result<Option<BlobStat>> {
        check_names(&self.locks, self.version, &|changed| changed == name)?;
        Ok(self.find(name)?.as_ref().map(stat_of))
    }

    /// Reads bytes of a blob, and returns their number. The number is less than requested only at
    /// the end of the blob.
    ///
    /// # Errors
    /// `NotFound` if there is no blob of this name; `Damaged` if data does not have its checksum.
    pub fn read(&self, name: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        let part = Part::Range { start: offset, end: offset.saturating_add(into.len() as u64) };
        check_read(&self.locks, self.version, name, part)?;
        let entry = self.existing(name)?;
        let length = entry.size_bytes.saturating_sub(offset).min(into.len() as u64) as usize;
        let read = content::read(&self.tables(), &*self.engine.extents, &entry, offset, &mut into[..length]);
        // If the state is no longer kept, its extents may have been removed during the read.
        read.map_err(|error| self.engine.versions.check(self.version).err().unwrap_or(error))?;
        Ok(length)
    }

    /// Returns the first position from `offset` on at which a blob has data. The bytes before it
    /// are zeros. `None` if there is no data up to the end.
    ///
    /// # Errors
    /// As for [`read`](Snapshot::read).
    pub fn next_data(&self, name: &[u8], offset: u64) -> Result<Option<u64>> {
        check_names(&self.locks, self.version, &|changed| changed == name)?;
        content::next_data(&self.tables(), &self.existing(name)?, offset)
    }

    /// Passes the names that begin with `prefix` and are after `after`, in ascending order, to
    /// `visit`, until it returns false.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn list(
        &self,
        prefix: &[u8],
        after: &[u8],
        visit: &mut dyn FnMut(&[u8], BlobStat) -> bool,
    ) -> Result<()> {
        check_names(&self.locks, self.version, &|name| name.starts_with(prefix))?;
        let start = match after >= prefix && !after.is_empty() {
            true => [&keys::name(after)[..], &[0]].concat(),
            false => keys::name(prefix),
        };
        visit_range(&self.tables(), &start, &end_of_prefix(&keys::name(prefix)), &mut |key, value| {
            Ok(visit(keys::name_of(key)?, stat_of(&keys::decode(value)?)))
        })
    }

    fn find(&self, name: &[u8]) -> Result<Option<BlobEntry>> {
        apply::check_name(name)?;
        content::entry(&self.tables(), name)
    }

    fn existing(&self, name: &[u8]) -> Result<BlobEntry> {
        self.find(name)?.ok_or_else(|| Error::new(ErrorKind::NotFound, "read", name))
    }

    fn tables(&self) -> DraftTables<'_> {
        let Engine { tables, versions, .. } = &*self.engine;
        let base = SnapshotTables { latest: &**tables, versions, version: self.version };
        DraftTables { base, changed: self.draft.changed() }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // The next commit frees the memory that the snapshot needed.
        self.engine.versions.end_snapshot(self.version);
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("version", &self.version).finish_non_exhaustive()
    }
}

/// The tables of a snapshot with the changes of its operations.
struct DraftTables<'a> {
    base: SnapshotTables<'a>,
    changed: &'a Changed,
}

impl Tables for DraftTables<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        get_merged(&self.base, self.changed, key)
    }

    fn scan(&self, start: &[u8], end: &[u8], visit: &mut dyn FnMut(&[u8], &Value) -> bool) -> Result<()> {
        scan_merged(&self.base, self.changed, start, end, visit)
    }
}

fn stat_of(entry: &BlobEntry) -> BlobStat {
    BlobStat { size_bytes: entry.size_bytes, modified_ns: entry.modified_ns, file: entry.file }
}
