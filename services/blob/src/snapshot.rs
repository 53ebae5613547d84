//! Reads of one state, and of a state with operations that are not committed.

use std::fmt;
use std::sync::Arc;

use quell_kv::Value;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{BlobStat, Operation, OperationResult, Refusal, Version};

use crate::apply::{self, Environment, NotDone, PreparedOperation};
use crate::content;
use crate::engine::{Engine, TRANSACTION_BYTES_MAX};
use crate::keys::{self, BlobEntry, ContentId};
use crate::tables::{Changed, Changes, SnapshotTables, Tables, end_of_prefix};

/// One state of a store. Reads of it never wait for commits. It ends when it is dropped.
///
/// All methods fail with `Stale` if later commits have changed so much that the store no longer
/// keeps the state: see [`Options`](crate::Options).
pub struct Snapshot {
    engine: Arc<Engine>,
    version: Version,
}

impl Snapshot {
    pub(crate) fn new(engine: Arc<Engine>) -> Snapshot {
        let version = engine.versions.begin_snapshot();
        Snapshot { engine, version }
    }

    /// Returns the version of the state.
    pub fn version(&self) -> Version {
        self.version
    }

    fn tables(&self) -> SnapshotTables<'_> {
        let Engine { tables, versions, .. } = &*self.engine;
        SnapshotTables { latest: &**tables, versions, version: self.version }
    }

    /// Returns the attributes of a blob, or `None` if there is no blob of this name.
    ///
    /// # Errors
    /// `InvalidInput` and `NameTooLong` for a name that no blob can have; those of the store.
    pub fn stat(&self, name: &[u8]) -> Result<Option<BlobStat>> {
        stat(&self.tables(), name)
    }

    /// Reads bytes of a blob, and returns their number. It is less than requested at the end of the
    /// blob only.
    ///
    /// # Errors
    /// `NotFound` if there is no blob of this name; `Damaged` if data does not have its checksum.
    pub fn read(&self, name: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        read(&self.engine, &self.tables(), name, offset, into).map_err(|error| self.cause_of(error))
    }

    /// Returns the first position from `offset` on at which a blob has data. The bytes before it
    /// are zeros. `None` if there is no data up to the end.
    ///
    /// # Errors
    /// As for [`read`](Snapshot::read).
    pub fn next_data(&self, name: &[u8], offset: u64) -> Result<Option<u64>> {
        next_data(&self.tables(), name, offset)
    }

    /// Passes the names that begin with `prefix` and are after `after`, in ascending order, to
    /// `visit`, until it returns false.
    ///
    /// # Errors
    /// Those of the store.
    pub fn list(
        &self,
        prefix: &[u8],
        after: &[u8],
        visit: &mut dyn FnMut(&[u8], BlobStat) -> bool,
    ) -> Result<()> {
        list(&self.tables(), prefix, after, visit)
    }

    /// Returns the cause of the failure of a read. If the state is no longer kept, its extents may
    /// have been removed during the read.
    fn cause_of(&self, error: Error) -> Error {
        self.engine.versions.check(self.version).err().unwrap_or(error)
    }

    /// Returns a state with operations on this one, of which there are none yet.
    pub fn draft(&self) -> DraftState {
        self.engine.versions.begin_snapshot_of(self.version);
        let snapshot = Snapshot { engine: self.engine.clone(), version: self.version };
        DraftState { snapshot, changed: Changed::new(), transformed_bytes: 0 }
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

/// A snapshot with a draft: operations that are not committed. A transaction reads its own changes
/// from it. The operations are in memory, and do not change the store.
pub struct DraftState {
    snapshot: Snapshot,
    changed: Changed,
    /// The size of the changes that transforms have added, in bytes.
    transformed_bytes: u64,
}

impl DraftState {
    /// Applies an operation, and returns its result. A commit of the same operation can have
    /// another result, for example another offset of an append.
    ///
    /// # Errors
    /// The reason for which a commit would refuse the operation on this state. The draft is
    /// unchanged.
    pub fn apply(&mut self, operation: Operation) -> std::result::Result<OperationResult, Refusal> {
        let is_transform = matches!(operation, Operation::Transform { .. });
        if is_transform && self.transformed_bytes > TRANSACTION_BYTES_MAX {
            return Err(apply::too_large().into());
        }
        let engine = &*self.snapshot.engine;
        let tables = self.snapshot.tables();
        let new_id = || ContentId(engine.new_number());
        let (now_ns, bytes_max) = (engine.now_ns(), u64::MAX);
        let environment = Environment { extents: &*engine.extents, new_id: &new_id, now_ns, bytes_max };
        let mut base = Changes::new(&tables);
        base.add(std::mem::take(&mut self.changed));
        let mut own = Changes::new(&base);
        let applied = apply::apply(&mut own, &environment, &[PreparedOperation::inline(operation)]);
        let own = own.into_changed();
        let applied = match applied {
            Ok(applied) => {
                let before = base.size_bytes();
                base.add(own);
                if is_transform {
                    self.transformed_bytes += base.size_bytes().saturating_sub(before);
                }
                Ok(applied.results.into_iter().next().unwrap_or(OperationResult::Done))
            }
            Err(NotDone::Refused(refusal)) => Err(refusal),
            Err(NotDone::Stale(name)) => {
                // Later snapshots do not have it.
                engine.remove_stale_of(name.clone());
                engine.commit_pending(&mut || ());
                let source =
                    Some("the rest of a truncated blob is being removed; repeat the transaction".into());
                Err(Error { source, ..Error::new(ErrorKind::Busy, "extend", name) }.into())
            }
        };
        self.changed = base.into_changed();
        applied
    }

    /// Returns the version of the snapshot.
    pub fn version(&self) -> Version {
        self.snapshot.version
    }

    /// Reads as [`Snapshot::read`] does.
    ///
    /// # Errors
    /// As for [`Snapshot::read`].
    pub fn read(&self, name: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        let read = read(&self.snapshot.engine, &self.tables(), name, offset, into);
        read.map_err(|error| self.snapshot.cause_of(error))
    }

    /// Returns the attributes as [`Snapshot::stat`] does.
    ///
    /// # Errors
    /// As for [`Snapshot::stat`].
    pub fn stat(&self, name: &[u8]) -> Result<Option<BlobStat>> {
        stat(&self.tables(), name)
    }

    /// Returns the next data as [`Snapshot::next_data`] does.
    ///
    /// # Errors
    /// As for [`Snapshot::next_data`].
    pub fn next_data(&self, name: &[u8], offset: u64) -> Result<Option<u64>> {
        next_data(&self.tables(), name, offset)
    }

    /// Lists names as [`Snapshot::list`] does.
    ///
    /// # Errors
    /// As for [`Snapshot::list`].
    pub fn list(
        &self,
        prefix: &[u8],
        after: &[u8],
        visit: &mut dyn FnMut(&[u8], BlobStat) -> bool,
    ) -> Result<()> {
        list(&self.tables(), prefix, after, visit)
    }

    fn tables(&self) -> DraftTables<'_> {
        DraftTables { base: self.snapshot.tables(), changed: &self.changed }
    }
}

impl fmt::Debug for DraftState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DraftState").field("snapshot", &self.snapshot).finish_non_exhaustive()
    }
}

/// The tables of a snapshot with the changes of a draft.
struct DraftTables<'a> {
    base: SnapshotTables<'a>,
    changed: &'a Changed,
}

impl Tables for DraftTables<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        match self.changed.get(key) {
            Some(value) => Ok(value.clone()),
            None => self.base.get(key),
        }
    }

    fn scan(&self, start: &[u8], end: &[u8], visit: &mut dyn FnMut(&[u8], &Value) -> bool) -> Result<()> {
        crate::tables::scan_merged(&self.base, self.changed, start, end, visit)
    }
}

fn stat(tables: &dyn Tables, name: &[u8]) -> Result<Option<BlobStat>> {
    apply::check_name(name)?;
    Ok(content::entry(tables, name)?.as_ref().map(stat_of))
}

fn stat_of(entry: &BlobEntry) -> BlobStat {
    BlobStat { size_bytes: entry.size_bytes, modified_ns: entry.modified_ns }
}

fn read(engine: &Engine, tables: &dyn Tables, name: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
    apply::check_name(name)?;
    let entry = content::entry(tables, name)?.ok_or_else(|| Error::new(ErrorKind::NotFound, "read", name))?;
    let length = entry.size_bytes.saturating_sub(offset).min(into.len() as u64) as usize;
    content::read(tables, &*engine.extents, &entry, offset, &mut into[..length])?;
    Ok(length)
}

fn next_data(tables: &dyn Tables, name: &[u8], offset: u64) -> Result<Option<u64>> {
    apply::check_name(name)?;
    let entry = content::entry(tables, name)?.ok_or_else(|| Error::new(ErrorKind::NotFound, "read", name))?;
    content::next_data(tables, &entry, offset)
}

fn list(
    tables: &dyn Tables,
    prefix: &[u8],
    after: &[u8],
    visit: &mut dyn FnMut(&[u8], BlobStat) -> bool,
) -> Result<()> {
    let start = match after >= prefix && !after.is_empty() {
        true => [&keys::name(after)[..], &[0]].concat(),
        false => keys::name(prefix),
    };
    let mut failed = None;
    tables.scan(&start, &end_of_prefix(&keys::name(prefix)), &mut |key, value| match keys::name_of(key)
        .and_then(|name| Ok((name, keys::decode::<BlobEntry>(value)?)))
    {
        Ok((name, entry)) => visit(name, stat_of(&entry)),
        Err(error) => {
            failed = Some(error);
            false
        }
    })?;
    failed.map_or(Ok(()), Err)
}
