//! Executes the operations of a log: makes the entries as the batch leaves them.

use quell_vfs::Result;

use super::block::first_reference;
use super::columns::{Columns, broken, take, take_bytes};
use super::format::{
    CHANGE, CREATE, KIND, LINK, NAME_DIRECTORY, ONE_TIME, OTHER_DIRECTORY, OWN_FILE, REMOVE, SAME_ATTRIBUTES,
    SAME_CONTENT,
};
use crate::entry::{Content, DataFile, Entry, Inode, Timestamp};
use crate::table::{BLOCK_BYTES_MAX, BlockBuilder, BlockDecoder, KEY_BYTES_MAX};
use crate::table_set::TableSet;

/// The execution of the operations of a batch on its snapshot.
#[derive(Debug)]
pub(crate) struct Execution {
    snapshot: TableSet,
    /// The number of the batch.
    batch: u64,
}

impl Execution {
    pub(crate) fn new(snapshot: TableSet, batch: u64) -> Execution {
        Execution { snapshot, batch }
    }

    /// Returns the inode that the snapshot has for a key.
    fn before(&self, key: &[u8]) -> Result<Inode> {
        match self.snapshot.get(key)?.as_deref() {
            None | Some([]) => Err(broken()),
            Some(value) => match Entry::decode(value)? {
                Entry::Inode(inode) => Ok(inode),
                _ => Err(broken()),
            },
        }
    }
}

impl BlockDecoder for Execution {
    fn decode(&self, block: &[u8]) -> Result<Vec<u8>> {
        let mut columns = Columns::decode(block)?;
        let mut entries = BlockBuilder::default();
        let mut key = Vec::with_capacity(KEY_BYTES_MAX);
        let (mut dir, mut number) = (0_u64, 0_u64);
        let mut created = Entry::Inode(first_reference());
        for &operation in std::mem::take(&mut columns.operations) {
            if operation & OTHER_DIRECTORY != 0 {
                dir = dir.wrapping_add(take(&mut columns.directories)?);
                key.clear();
                key.extend_from_slice(&dir.to_be_bytes());
            }
            take_name(&mut columns, &mut key)?;
            match operation & KIND {
                CREATE => {
                    number = next_number(&mut columns, number)?;
                    let Entry::Inode(inode) = &mut created else { unreachable!("it is an inode") };
                    (inode.number, inode.size_bytes, inode.content) = (number, 0, Content::Empty);
                    inode.xattrs.clear();
                    self.take_inode(operation, &mut columns, inode)?;
                    add(&mut entries, &key, &created);
                }
                CHANGE => {
                    let mut inode = self.before(&key)?;
                    self.take_inode(operation, &mut columns, &mut inode)?;
                    add(&mut entries, &key, &Entry::Inode(inode));
                }
                _ if operation & !(KIND | OTHER_DIRECTORY) != 0 => return Err(broken()),
                REMOVE => entries.add(&key, &[]),
                NAME_DIRECTORY => {
                    number = next_number(&mut columns, number)?;
                    add(&mut entries, &key, &Entry::Dir { inode: number });
                }
                LINK => {
                    number = next_number(&mut columns, number)?;
                    let type_bits = take(&mut columns.attributes)?;
                    add(&mut entries, &key, &Entry::Link { inode: number, type_bits });
                }
                _ => return Err(broken()),
            }
            if entries.len() > BLOCK_BYTES_MAX {
                return Err(broken());
            }
        }
        match columns.are_empty() {
            true => Ok(entries.into_bytes()),
            false => Err(broken()),
        }
    }
}

/// Adds an entry to a block.
fn add(entries: &mut BlockBuilder, key: &[u8], entry: &Entry) {
    // Entries without content are encoded without an allocation.
    match postcard::to_slice(entry, &mut [0; 128]) {
        Ok(value) => entries.add(key, value),
        Err(_) => entries.add(key, &entry.encode()),
    }
}

/// Replaces the name in a key by the next name of the columns.
fn take_name(columns: &mut Columns<&[u8]>, key: &mut Vec<u8>) -> Result<()> {
    const DIR_BYTES: usize = size_of::<u64>();
    let &[shared, others] = take_bytes(&mut columns.lengths, 2)? else { return Err(broken()) };
    let (shared, others) = (DIR_BYTES + usize::from(shared), usize::from(others));
    if shared > key.len() || shared + others > KEY_BYTES_MAX {
        return Err(broken());
    }
    key.truncate(shared);
    key.extend_from_slice(take_bytes(&mut columns.names, others)?);
    Ok(())
}

fn next_number(columns: &mut Columns<&[u8]>, number: u64) -> Result<u64> {
    Ok(number.wrapping_add_signed(take(&mut columns.inodes)?))
}

fn next_time(columns: &mut Columns<&[u8]>, Timestamp(seconds, nanoseconds): Timestamp) -> Result<Timestamp> {
    let seconds = seconds.wrapping_add(take(&mut columns.seconds)?);
    let nanoseconds = i64::from(nanoseconds).checked_add(take(&mut columns.nanoseconds)?);
    let nanoseconds = nanoseconds.and_then(|found| u32::try_from(found).ok()).ok_or_else(broken)?;
    Ok(Timestamp(seconds, nanoseconds))
}

impl Execution {
    /// Applies the fields of an operation to `inode`, the inode with which the log has compared
    /// them.
    fn take_inode(&self, operation: u8, columns: &mut Columns<&[u8]>, inode: &mut Inode) -> Result<()> {
        if operation & SAME_ATTRIBUTES == 0 {
            for attribute in [&mut inode.mode, &mut inode.uid, &mut inode.gid, &mut inode.links] {
                *attribute = take(&mut columns.attributes)?;
            }
        }
        inode.modified = next_time(columns, inode.modified)?;
        inode.changed = match operation & ONE_TIME {
            0 => next_time(columns, inode.modified)?,
            _ => inode.modified,
        };
        match operation & (SAME_CONTENT | OWN_FILE) {
            SAME_CONTENT => {}
            OWN_FILE => {
                inode.size_bytes = take(&mut columns.contents)?;
                inode.content =
                    Content::File(DataFile { batch: self.batch, inode: inode.number, version: 0 });
                inode.xattrs.clear();
            }
            0 => (inode.size_bytes, inode.content, inode.xattrs) = take(&mut columns.contents)?,
            _ => return Err(broken()),
        }
        Ok(())
    }
}
