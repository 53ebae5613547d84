//! Records of entries and nodes in this member's store, and the numbers of new nodes.

use std::time::Duration;

use quell_kv::Batch;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{FileId, NodeKind, Stamp};

use crate::inode::{EntryRecord, Inode, from_bytes, to_bytes};
use crate::keys;
use crate::map::{NameHash, new_id};
use crate::member::Member;

/// The number of numbers for new nodes that are reserved with one write.
const NUMBERS_RESERVED: u64 = 1 << 16;

impl Member {
    pub(crate) fn now(&self) -> Stamp {
        self.environment.clock.now()
    }

    pub(crate) fn monotonic(&self) -> Duration {
        self.environment.clock.monotonic()
    }

    /// Returns the record of an entry.
    pub(crate) fn entry(&self, dir: FileId, name: &[u8]) -> Result<Option<EntryRecord>> {
        let key = keys::entry(dir, NameHash::new(dir, name), name);
        self.environment.store.get(&key)?.map(|bytes| from_bytes(&bytes, "name")).transpose()
    }

    /// Returns the record of a node of this member. Errors: `Stale` if there is none.
    pub(crate) fn inode(&self, id: FileId) -> Result<Inode> {
        let stale = || Error::new(ErrorKind::Stale, "node", id.0.to_string());
        let bytes = self.environment.store.get(&keys::inode(id))?.ok_or_else(stale)?;
        let mut inode: Inode = from_bytes(&bytes, "node")?;
        if inode.kind == NodeKind::Dir
            && let Some(touched) = self.touched_dirs.borrow().get(&id)
        {
            inode.touch(*touched);
        }
        self.add_changes_of_data(id, &mut inode)?;
        Ok(inode)
    }

    /// Writes the record of a node.
    pub(crate) fn put_inode(&self, id: FileId, inode: &Inode) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(&keys::inode(id), &to_bytes(inode));
        self.environment.store.commit(batch)
    }

    /// Returns the identifier for a node that is created under a name of this member.
    pub(crate) fn next_id(&self, hash: NameHash) -> Result<FileId> {
        let number = self.next_number();
        new_id(self.map.partition_of_name(hash), self.id, number?)
            .ok_or_else(|| Error::new(ErrorKind::NoSpace, "number a node", ""))
    }

    /// Returns a number that this member has not used before.
    pub(crate) fn next_number(&self) -> Result<u64> {
        let number = self.next_number.get();
        if number >= self.reserved_numbers.get() {
            let reserved = number + NUMBERS_RESERVED;
            let mut batch = Batch::new();
            batch.put(&keys::counter(), &to_bytes(&reserved));
            self.environment.store.commit(batch)?;
            self.reserved_numbers.set(reserved);
        }
        self.next_number.set(number + 1);
        Ok(number)
    }

    /// Reads the first number that is not reserved. Returns whether it exists, which shows that the
    /// member was started before.
    pub(crate) fn load_numbers(&self) -> Result<bool> {
        let stored = self.environment.store.get(&keys::counter())?;
        let reserved = match &stored {
            Some(bytes) => from_bytes(bytes, "counter")?,
            // Number 0 of partition 0 and member 0 is the root.
            None => 1,
        };
        self.next_number.set(reserved);
        self.reserved_numbers.set(reserved);
        Ok(stored.is_some())
    }

    pub(crate) fn create_root(&self, (uid, gid): (u32, u32)) -> Result<()> {
        if self.environment.store.get(&keys::inode(FileId::ROOT))?.is_some() {
            return Ok(());
        }
        let now = self.now();
        self.put_inode(
            FileId::ROOT,
            &Inode {
                kind: NodeKind::Dir,
                permissions: 0o700,
                uid,
                gid,
                size_bytes: 0,
                modified: now,
                is_modified_set: false,
                changed: now,
                name: Some((FileId::ROOT, Vec::new())),
                target: Vec::new(),
                has_xattrs: false,
                has_chunks: false,
                is_inline: false,
                inline_bytes: 0,
                truncating_to_bytes: None,
            },
        )
    }
}
