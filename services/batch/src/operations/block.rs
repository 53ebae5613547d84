//! Collects the operations of one block. An operation that changes an inode has the fields that
//! differ from the snapshot. An operation that creates an inode has the fields that differ from the
//! inode that was created before it.

use quell_vfs::Result;

use super::columns::{Columns, put};
use super::format::{
    CHANGE, CREATE, LINK, NAME_DIRECTORY, ONE_TIME, OTHER_DIRECTORY, OWN_FILE, REMOVE, SAME_ATTRIBUTES,
    SAME_CONTENT,
};
use crate::entry::{Content, DataFile, Entry, Inode, Timestamp, Xattr};
use crate::key::split;

/// The operations of a block that is being written.
#[derive(Debug)]
pub(super) struct OperationBlock {
    /// The number of the batch.
    batch: u64,
    columns: Columns<Vec<u8>>,
    last_key: Vec<u8>,
    /// The inode number of the previous operation.
    last_number: u64,
    /// The inode that was created last.
    last_created: Inode,
    /// The size of the entries that the operations make, in bytes.
    entries_bytes: usize,
}

/// Returns the inode with which the first created inode of a block is compared.
pub(super) fn first_reference() -> Inode {
    Inode {
        number: 0,
        mode: 0,
        uid: 0,
        gid: 0,
        links: 0,
        size_bytes: 0,
        modified: Timestamp(0, 0),
        changed: Timestamp(0, 0),
        content: Content::Empty,
        xattrs: Vec::new(),
    }
}

impl OperationBlock {
    /// Returns an empty block of the batch with this number.
    pub(super) fn new(batch: u64) -> OperationBlock {
        OperationBlock {
            batch,
            columns: Columns::default(),
            last_key: Vec::new(),
            last_number: 0,
            last_created: first_reference(),
            entries_bytes: 0,
        }
    }

    /// Returns the size of the entries that the operations make, in bytes.
    pub(super) fn entries_bytes(&self) -> usize {
        self.entries_bytes
    }

    /// Returns the key of the last operation, even if its block has been ended.
    pub(super) fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// Adds the operation that turns the snapshot's entry for a key into this one. An empty value
    /// is a removal.
    ///
    /// # Errors
    /// `Damaged` if one of the values is not an encoded entry.
    pub(super) fn add(&mut self, key: &[u8], value: &[u8], before: Option<&[u8]>) -> Result<()> {
        let place = self.add_key(key);
        self.entries_bytes += key.len() + value.len();
        if value.is_empty() {
            self.columns.operations.push(REMOVE | place);
            return Ok(());
        }
        let operation = match Entry::decode(value)? {
            Entry::Dir { inode } => {
                self.add_number(inode);
                NAME_DIRECTORY
            }
            Entry::Link { inode, type_bits } => {
                self.add_number(inode);
                put(&mut self.columns.attributes, &type_bits);
                LINK
            }
            Entry::Inode(inode) => match before.map(Entry::decode).transpose()? {
                Some(Entry::Inode(before)) if before.number == inode.number => {
                    CHANGE | self.add_inode(&before, &inode)
                }
                _ => {
                    self.add_number(inode.number);
                    let reference = std::mem::replace(&mut self.last_created, first_reference());
                    let flags = self.add_inode(&reference, &inode);
                    let Inode { mode, uid, gid, links, modified, .. } = inode;
                    self.last_created = Inode { mode, uid, gid, links, modified, ..reference };
                    CREATE | flags
                }
            },
        };
        self.columns.operations.push(operation | place);
        Ok(())
    }

    /// Ends the block and appends it to `into`.
    pub(super) fn finish(&mut self, into: &mut Vec<u8>) {
        self.columns.finish(into);
        (self.last_number, self.last_created, self.entries_bytes) = (0, first_reference(), 0);
    }

    /// Adds a key. Returns the flag for a key in another directory than the key before, or 0.
    fn add_key(&mut self, key: &[u8]) -> u8 {
        let (dir, name) = split(key).expect("a key has the number of a directory");
        let last = if self.columns.operations.is_empty() { None } else { split(&self.last_key) };
        let (flag, last_name) = match last {
            Some((last_dir, last_name)) if last_dir == dir => (0, last_name),
            last => {
                put(&mut self.columns.directories, &dir.wrapping_sub(last.map_or(0, |(dir, _)| dir)));
                (OTHER_DIRECTORY, &[][..])
            }
        };
        let shared = last_name.iter().zip(name).take_while(|(a, b)| a == b).count();
        // A name has at most 255 bytes.
        self.columns.lengths.extend([shared as u8, (name.len() - shared) as u8]);
        self.columns.names.extend_from_slice(&name[shared..]);
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        flag
    }

    fn add_number(&mut self, number: u64) {
        put(&mut self.columns.inodes, &(number.wrapping_sub(self.last_number) as i64));
        self.last_number = number;
    }

    /// Adds the fields of an inode that differ from its reference, and returns the flags.
    fn add_inode(&mut self, reference: &Inode, inode: &Inode) -> u8 {
        let mut flags = 0;
        let attributes = |inode: &Inode| (inode.mode, inode.uid, inode.gid, inode.links);
        if attributes(inode) == attributes(reference) {
            flags |= SAME_ATTRIBUTES;
        } else {
            for number in [inode.mode, inode.uid, inode.gid, inode.links] {
                put(&mut self.columns.attributes, &number);
            }
        }
        self.add_time(reference.modified, inode.modified);
        match inode.changed == inode.modified {
            true => flags |= ONE_TIME,
            false => self.add_time(inode.modified, inode.changed),
        }
        let own = Content::File(DataFile { batch: self.batch, inode: inode.number, version: 0 });
        if content_of(inode) == content_of(reference) {
            flags |= SAME_CONTENT;
        } else if inode.content == own && inode.xattrs.is_empty() {
            flags |= OWN_FILE;
            put(&mut self.columns.contents, &inode.size_bytes);
        } else {
            put(&mut self.columns.contents, &(inode.size_bytes, &inode.content, &inode.xattrs));
        }
        flags
    }

    fn add_time(&mut self, reference: Timestamp, time: Timestamp) {
        put(&mut self.columns.seconds, &time.0.wrapping_sub(reference.0));
        put(&mut self.columns.nanoseconds, &(i64::from(time.1) - i64::from(reference.1)));
    }
}

fn content_of(inode: &Inode) -> (u64, &Content, &[Xattr]) {
    (inode.size_bytes, &inode.content, &inode.xattrs)
}
