//! A set of tables that is read as one table. Newer tables supersede older ones.

use std::sync::Arc;

use quell_vfs::Result;

use crate::entry::{Entry, Inode};
use crate::files::TableFiles;
use crate::key::Key;
use crate::merge::{Merge, Source, list_merged};
use crate::table::{BlockCache, Table, TableLookups};
use crate::table_ref::TableRef;

/// Tables, the newest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct TableSet(Vec<Arc<Table>>);

impl TableSet {
    /// Opens tables, the newest first.
    pub(crate) fn open(
        files: &dyn TableFiles,
        cache: &Arc<BlockCache>,
        tables: &[TableRef],
    ) -> Result<TableSet> {
        tables.iter().map(|table| open_table(files, cache, table)).collect::<Result<_>>().map(TableSet)
    }

    /// Returns a set of tables, the newest first.
    pub(crate) fn new(tables: Vec<Arc<Table>>) -> TableSet {
        TableSet(tables)
    }

    /// Returns a table; 0 is the newest one.
    pub(crate) fn table(&self, at: usize) -> Arc<Table> {
        self.0[at].clone()
    }

    /// Adds a table that is newer than all others.
    pub(crate) fn add(&mut self, table: Arc<Table>) {
        self.0.insert(0, table);
    }

    /// Returns the set of the newest `count` tables.
    pub(crate) fn newest(&self, count: usize) -> TableSet {
        TableSet(self.0[..count].to_vec())
    }

    /// Returns the set of all tables but the newest `count`.
    pub(crate) fn without_newest(&self, count: usize) -> TableSet {
        TableSet(self.0[count..].to_vec())
    }

    /// Returns the first and the last key of each table.
    pub(crate) fn key_ranges(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|table| table.key_range())
    }

    /// Returns the total length of the footers, in bytes.
    pub(crate) fn footer_bytes(&self) -> u64 {
        self.0.iter().map(|table| table.footer_bytes()).sum()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the value of a key; an empty value is a removal. `None` if no table has one.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        for table in &self.0 {
            if let Some(value) = table.get(key)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Returns look-ups of keys in ascending order.
    pub(crate) fn lookups(&self) -> SetLookups {
        SetLookups(self.0.iter().map(|table| TableLookups::new(table.clone())).collect())
    }

    /// Returns the entry of a key, or `None` if there is none.
    pub(crate) fn entry(&self, key: &Key) -> Result<Option<Entry>> {
        match self.get(key.as_bytes())?.as_deref() {
            None | Some([]) => Ok(None),
            Some(value) => Entry::decode(value).map(Some),
        }
    }

    /// Returns the inode of a directory, or `None` if there is no such directory.
    pub(crate) fn dir(&self, dir: u64) -> Result<Option<Inode>> {
        Ok(match self.entry(&Key::of_dir(dir))? {
            Some(Entry::Inode(inode)) => Some(inode),
            _ => None,
        })
    }

    /// Passes the names of a directory after `after` to `visit`, until it returns false.
    pub(crate) fn list(
        &self,
        dir: u64,
        after: &[u8],
        visit: &mut dyn FnMut(&[u8], Entry) -> bool,
    ) -> Result<()> {
        let start = Key::of_name(dir, after);
        list_merged(Merge::new(self.sources_after(start.as_bytes()).collect())?, dir, visit)
    }

    /// Returns the entries after a key, the newest table first, for a merge.
    pub(crate) fn sources_after<'a>(&self, key: &[u8]) -> impl Iterator<Item = Box<dyn Source + 'a>> {
        self.0.iter().map(|table| Box::new(table.entries_after(key)) as Box<dyn Source>)
    }

    /// Returns all entries, the newest table first, for a merge.
    pub(crate) fn sources<'a>(&self) -> impl Iterator<Item = Box<dyn Source + 'a>> {
        self.0.iter().map(|table| Box::new(table.entries()) as Box<dyn Source>)
    }
}

/// Look-ups of keys in ascending order in a set of tables.
#[derive(Debug)]
pub(crate) struct SetLookups(Vec<TableLookups>);

impl SetLookups {
    /// Returns the value of a key. `None` if there is none, or if the entry is removed.
    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        for table in &mut self.0 {
            if let Some(value) = table.get(key)? {
                return Ok(Some(value).filter(|value| !value.is_empty()));
            }
        }
        Ok(None)
    }
}

/// Opens a table, whose footer must have the checksum of the reference.
pub(crate) fn open_table(
    files: &dyn TableFiles,
    cache: &Arc<BlockCache>,
    table: &TableRef,
) -> Result<Arc<Table>> {
    let file = files.open(table.number)?;
    Ok(Arc::new(Table::open(file, Some(table.checksum), cache.clone())?))
}
