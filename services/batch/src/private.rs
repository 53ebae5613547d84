//! The private name space of a batch: the changes of a job over a snapshot of the master image.
//!
//! Changes are kept in memory up to a limit, and then in sorted tables in the directory of the
//! batch. A change needs no request to a server: inode numbers come from a range that belongs to
//! the batch.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use quell_vfs::{Error, ErrorKind, Result};

use crate::batch::BatchRecord;
use crate::batch_size::check_submittable;
use crate::entries::{DirRequest, Entries, KeyChange};
use crate::entry::{Content, Entry, Inode, LINKED, damaged};
use crate::files::TableFiles;
use crate::key::{Key, split};
use crate::memtable::MemTable;
use crate::merge::{InMemory, Merge, Source, list_merged};
use crate::names::Names;
use crate::served_snapshot::{ServedSnapshot, SnapshotServer};
use crate::table::BlockCache;
use crate::table_ref::TableRef;
use crate::table_set::{TableSet, open_table};
use crate::view::{CopiedChanges, View};

/// The memory for changes that are not in a table yet, in bytes.
pub const MEMORY_BYTES: usize = 64 << 20;

/// Receives a directory, a name in it, and whether the name was removed.
pub type NameVisitor<'a> = dyn FnMut(u64, &[u8], bool) -> Result<()> + 'a;

/// The snapshot of a batch.
enum Snapshot {
    /// The tables of the snapshot.
    Tables(TableSet),
    /// The server, from which the entries are requested.
    Served(Arc<ServedSnapshot>),
}

/// The private entries of a batch.
pub struct PrivateEntries {
    snapshot: Snapshot,
    /// The tables of this batch.
    own: TableSet,
    /// The references to these tables, in the same order.
    own_refs: Vec<TableRef>,
    memory: MemTable,
    memory_bytes_max: usize,
    /// The inode numbers of this batch.
    inodes: Range<u64>,
    next_inode: u64,
    files: Arc<dyn TableFiles>,
    cache: Arc<BlockCache>,
    /// The name space shows views of a batch that another process changes, and is read-only.
    is_read_only: bool,
}

impl std::fmt::Debug for PrivateEntries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("PrivateEntries");
        shown.field("inodes", &self.inodes).field("next_inode", &self.next_inode);
        shown.field("own_tables", &self.own.len()).finish_non_exhaustive()
    }
}

impl PrivateEntries {
    /// Returns a name space that is equal to a snapshot. New entries get inode numbers of `inodes`.
    pub(crate) fn new(
        snapshot: TableSet,
        inodes: Range<u64>,
        files: Arc<dyn TableFiles>,
        cache: Arc<BlockCache>,
        memory_bytes_max: usize,
    ) -> PrivateEntries {
        PrivateEntries::over(Snapshot::Tables(snapshot), inodes, files, cache, memory_bytes_max)
    }

    fn over(
        snapshot: Snapshot,
        inodes: Range<u64>,
        files: Arc<dyn TableFiles>,
        cache: Arc<BlockCache>,
        memory_bytes_max: usize,
    ) -> PrivateEntries {
        PrivateEntries {
            snapshot,
            own: TableSet::default(),
            own_refs: Vec::new(),
            memory: MemTable::default(),
            memory_bytes_max,
            next_inode: inodes.start,
            inodes,
            files,
            cache,
            is_read_only: false,
        }
    }

    /// Returns the private name space of a batch whose record was received from a server. `image`
    /// has the tables of the image, and `files` has the tables of the batch. Only one process at a
    /// time may have the name space open. It keeps changes of about `memory_bytes_max` in memory,
    /// normally [`MEMORY_BYTES`].
    ///
    /// # Errors
    /// The errors of the tables of the snapshot.
    pub fn open(
        record: &BatchRecord,
        image: &dyn TableFiles,
        files: Arc<dyn TableFiles>,
        memory_bytes_max: usize,
    ) -> Result<Names<PrivateEntries>> {
        let cache = Arc::new(BlockCache::default());
        let snapshot = TableSet::open(image, &cache, &record.snapshot)?;
        let inodes = record.inodes.clone();
        Ok(Names(PrivateEntries::new(snapshot, inodes, files, cache, memory_bytes_max)))
    }

    /// Returns the private name space of a batch as [`open`](Self::open) does. The entries of the
    /// snapshot are requested from a server.
    pub fn open_served(
        record: &BatchRecord,
        server: Arc<dyn SnapshotServer>,
        files: Arc<dyn TableFiles>,
        memory_bytes_max: usize,
    ) -> Names<PrivateEntries> {
        let cache = Arc::new(BlockCache::default());
        let served = ServedSnapshot::new(server, files.clone(), cache.clone());
        let snapshot = Snapshot::Served(Arc::new(served));
        Names(PrivateEntries::over(snapshot, record.inodes.clone(), files, cache, memory_bytes_max))
    }

    /// Makes this the name space of a batch of another process, for [`show`](Self::show). Each
    /// change of it fails with `ReadOnly`.
    pub fn for_views(self) -> PrivateEntries {
        PrivateEntries { is_read_only: true, ..self }
    }

    /// Passes the changes of the batch to `visit`, in the order of their keys. An empty value is a
    /// removal.
    ///
    /// # Errors
    /// The errors of the tables and of `visit`.
    pub(crate) fn changes(&self, mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        let memory: Box<dyn Source> = Box::new(InMemory(self.memory.entries()));
        let sources = std::iter::once(memory).chain(self.own.sources()).collect();
        let mut merge = Merge::new(sources)?;
        while let Some((key, value)) = merge.next()? {
            visit(key, value)?;
        }
        Ok(())
    }

    /// Returns the entry that the snapshot has.
    pub(crate) fn in_snapshot(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.is_own_dir(key) {
            true => Ok(None),
            false => match &self.snapshot {
                Snapshot::Tables(tables) => Ok(tables.get(key)?.filter(|value| !value.is_empty())),
                Snapshot::Served(served) => served.get(key),
            },
        }
    }

    /// Returns whether a key is in a directory that the batch has created.
    pub(crate) fn is_own_dir(&self, key: &[u8]) -> bool {
        split(key).is_some_and(|(dir, _)| self.inodes.contains(&dir))
    }

    /// Returns a copy of the state, for a view.
    pub fn copy_changes(&self) -> CopiedChanges {
        CopiedChanges { tables: self.own_refs.clone(), memory: self.memory.copy() }
    }

    /// Replaces the state by a view of the batch, whose name space another process changes.
    ///
    /// # Errors
    /// `NotFound` if a newer view has replaced `view`; the errors of tables. Then the state is as
    /// before.
    pub fn show(&mut self, view: &View) -> Result<()> {
        let open = |table: &TableRef| {
            let known = self.own_refs.iter().position(|known| known == table);
            known.map_or_else(|| open_table(&*self.files, &self.cache, table), |at| Ok(self.own.table(at)))
        };
        let tables = view.tables.iter().map(open).collect::<Result<Vec<_>>>()?;
        (self.own, self.own_refs) = (TableSet::new(tables), view.tables.clone());
        Ok(())
    }

    /// Passes each name that the batch has created, changed or removed to `visit`: its directory,
    /// the name, and whether it was removed.
    ///
    /// # Errors
    /// The errors of the tables and of `visit`.
    pub fn changed_names(&self, visit: &mut NameVisitor<'_>) -> Result<()> {
        self.changes(|key, value| match split(key) {
            Some((dir, name)) if dir != LINKED && !name.is_empty() => match value {
                [] if self.in_snapshot(key)?.is_none() => Ok(()), // created and removed
                value => visit(dir, name, value.is_empty()),
            },
            _ => Ok(()),
        })
    }

    /// Returns the inodes of the snapshot that the batch has changed, if `is_wanted` returns `true`
    /// for the changed one, each as it is in the snapshot and as it is in the batch, without its
    /// extended attributes.
    ///
    /// # Errors
    /// The errors of the tables.
    pub fn changed_inodes(&self, is_wanted: impl Fn(&Inode) -> bool) -> Result<Vec<(Inode, Inode)>> {
        let mut wanted: HashMap<u64, (Option<Inode>, Inode)> = HashMap::new();
        self.changes(|key, value| {
            if !value.is_empty()
                && let Entry::Inode(inode) = Entry::decode(value)?
                && is_wanted(&inode)
            {
                let before = self.inode_in_snapshot(key)?.filter(|before| before.number == inode.number);
                wanted.insert(inode.number, (before, Inode { xattrs: Vec::new(), ..inode }));
            }
            Ok(())
        })?;
        if wanted.values().any(|(before, _)| before.is_none()) {
            // A file that was renamed or linked has another key in the snapshot, which the batch
            // has changed as well.
            self.changes(|key, _| {
                if let Some(inode) = self.inode_in_snapshot(key)?
                    && let Some((before @ None, _)) = wanted.get_mut(&inode.number)
                {
                    *before = Some(inode);
                }
                Ok(())
            })?;
        }
        Ok(wanted.into_values().filter_map(|(before, after)| Some((before?, after))).collect())
    }

    fn inode_in_snapshot(&self, key: &[u8]) -> Result<Option<Inode>> {
        let Some(value) = self.in_snapshot(key)? else { return Ok(None) };
        match Entry::decode(&value)? {
            Entry::Inode(inode) => Ok(Some(Inode { xattrs: Vec::new(), ..inode })),
            Entry::Dir { .. } | Entry::Link { .. } => Ok(None),
        }
    }

    /// Returns the directory that contained a directory in the snapshot, and its name there; `None`
    /// if the snapshot has no such directory.
    ///
    /// # Errors
    /// The errors of the tables.
    pub fn parent_in_snapshot(&self, dir: u64) -> Result<Option<(u64, Vec<u8>)>> {
        let Some(value) = self.in_snapshot(Key::of_dir(dir).as_bytes())? else { return Ok(None) };
        match Entry::decode(&value)? {
            Entry::Inode(Inode { content: Content::Parent { dir, name }, .. }) => Ok(Some((dir, name))),
            _ => Err(damaged("a directory")),
        }
    }

    /// Writes the changes in memory as a table.
    fn spill(&mut self) -> Result<()> {
        let table_bytes = self.own_refs.iter().map(|table| table.bytes).sum();
        check_submittable(table_bytes, self.own.footer_bytes())?;
        let number = self.own.len() as u64;
        let file = self.files.create(number)?;
        let (table, summary) = self.memory.write(file, &self.cache)?;
        self.own.add(table);
        self.own_refs.insert(0, TableRef::new(number, &summary));
        self.memory.clear();
        Ok(())
    }
}

impl Entries for PrivateEntries {
    const IS_SHARED: bool = false;

    fn get(&self, key: &Key) -> Result<Option<Entry>> {
        let key = key.as_bytes();
        let decode = |value: &[u8]| match value {
            [] => Ok(None),
            value => Entry::decode(value).map(Some),
        };
        if let Some(value) = self.memory.get(key) {
            return decode(value);
        }
        if let Some(value) = self.own.get(key)? {
            return decode(&value);
        }
        self.in_snapshot(key)?.map_or(Ok(None), |value| decode(&value))
    }

    fn list(&self, dir: u64, after: &[u8], visit: &mut dyn FnMut(&[u8], Entry) -> bool) -> Result<()> {
        let start = Key::of_name(dir, after);
        let start = start.as_bytes();
        let known;
        let memory = self.memory.dir_after(dir, start);
        let memory: Box<dyn Source> = Box::new(InMemory(memory));
        let mut sources = vec![memory];
        sources.extend(self.own.sources_after(start));
        if !self.inodes.contains(&dir) {
            match &self.snapshot {
                Snapshot::Tables(tables) => sources.extend(tables.sources_after(start)),
                Snapshot::Served(served) => {
                    known = served.with_dir(dir)?;
                    sources.extend(known.sources_after(dir, start));
                }
            }
        }
        list_merged(Merge::new(sources)?, dir, visit)
    }

    fn apply(&mut self, changes: Vec<KeyChange>) -> Result<()> {
        if self.is_read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "change", "a batch of another process"));
        }
        if let Snapshot::Served(served) = &self.snapshot
            && served.has_reduced(changes.iter().map(|(key, _)| key.as_bytes()))
        {
            let reason =
                "you have no permission to read all of it, so only the synchronous mode can change it";
            let error = Error::new(ErrorKind::PermissionDenied, "change", "an entry of another user");
            return Err(Error { source: Some(reason.into()), ..error });
        }
        let encoded: Vec<_> = changes
            .iter()
            .map(|(key, entry)| (key, entry.as_ref().map_or(Vec::new(), Entry::encode)))
            .collect();
        let fits = encoded.iter().all(|(key, value)| self.memory.has_space(key.as_bytes(), value));
        if !fits || self.memory.memory_bytes() > self.memory_bytes_max {
            self.spill()?;
        }
        for (key, value) in encoded {
            self.memory.put(key.as_bytes(), &value);
        }
        Ok(())
    }

    fn new_inode(&mut self) -> Result<u64> {
        // The last number is for the directory of entries in conflict.
        if self.next_inode + 1 >= self.inodes.end {
            return Err(Error::new(ErrorKind::NoSpace, "create more files in one batch than", ""));
        }
        self.next_inode += 1;
        Ok(self.next_inode - 1)
    }

    fn dir_request(&self, dir: u64) -> Option<DirRequest> {
        match &self.snapshot {
            Snapshot::Served(served) if !self.inodes.contains(&dir) && !served.is_known(dir) => {
                let served = served.clone();
                Some(Box::new(move || served.request_dir(dir).map(drop)))
            }
            _ => None,
        }
    }
}
