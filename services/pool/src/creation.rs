//! Creation of entries.

use std::rc::Rc;

use quell_kv::Batch;
use quell_vfs::{Error, ErrorKind, Result, check_name};
use quell_wire::pool::{FileId, NewKind, NodeKind, PeerRequest, Reply, TARGET_BYTES_MAX};

use crate::inode::{EntryRecord, Inode, to_bytes};
use crate::keys;
use crate::lock_table::Lock;
use crate::map::NameHash;
use crate::member::Member;
use crate::results::Performed;
use crate::sessions::Origin;

/// The set-group-id bit of `st_mode`.
pub(crate) const SET_GROUP_ID: u16 = 0o2000;

impl Member {
    /// Creates an entry, and makes a reference for `origin`.
    pub(crate) async fn create(
        self: &Rc<Member>,
        origin: Origin,
        dir: FileId,
        name: &[u8],
        kind: NewKind<'_>,
        (permissions, uid, gid): (u16, u32, u32),
    ) -> Result<Reply<'static>> {
        check_name(name)?;
        let (kind, target) = match kind {
            NewKind::File => (NodeKind::File, &b""[..]),
            NewKind::Dir => (NodeKind::Dir, &b""[..]),
            NewKind::Symlink(target) if target.len() > TARGET_BYTES_MAX => {
                return Err(Error::new(ErrorKind::NameTooLong, "create a link", name));
            }
            NewKind::Symlink(target) => (NodeKind::Symlink, target),
        };
        let _name = self.lock(Lock::Name(dir, name.to_vec())).await?;
        self.check_dir_is_open(dir, name)?;
        if self.entry(dir, name)?.is_some() {
            return Err(Error::new(ErrorKind::Exists, "create", name));
        }
        let (mut permissions, mut gid) = (permissions & 0o7777, gid);
        let inherited = self.dir_groups.borrow().get(&dir).copied();
        if let Some(inherited) = inherited {
            gid = inherited;
            permissions |= if kind == NodeKind::Dir { SET_GROUP_ID } else { 0 };
        }
        let hash = NameHash::new(dir, name);
        let id = self.next_id(hash)?;
        if kind == NodeKind::Dir && permissions & SET_GROUP_ID != 0 {
            self.send_to_all(&PeerRequest::SetDirGroup { dir: id, gid: Some(gid) }).await?;
            self.check_dir_is_open(dir, name)?;
        }
        let now = self.now();
        let inode = Inode {
            kind,
            permissions,
            uid,
            gid,
            size_bytes: target.len() as u64,
            modified: now,
            is_modified_set: false,
            changed: now,
            name: Some((dir, name.to_vec())),
            target: target.to_vec(),
            has_xattrs: false,
            has_chunks: false,
            is_inline: kind == NodeKind::File,
            inline_bytes: 0,
            truncating_to_bytes: None,
        };
        let mut batch = Batch::new();
        batch.put(&keys::entry(dir, hash, name), &to_bytes(&EntryRecord { id, kind }));
        batch.put(&keys::inode(id), &to_bytes(&inode));
        self.put_result(origin, Performed::Creation(id), &mut batch);
        self.environment.store.commit(batch)?;
        self.add_hold(id, origin);
        self.note_change_of(dir, now);
        Ok(Reply::Held(inode.node(id)))
    }

    /// Returns an error if no entry may be created in a directory: `NotFound` if it was removed,
    /// `Busy` while it is being removed.
    pub(crate) fn check_dir_is_open(&self, dir: FileId, name: &[u8]) -> Result<()> {
        if self.removed_dirs.borrow().contains(&dir) {
            return Err(Error::new(ErrorKind::NotFound, "create in a removed directory", name));
        }
        if self.prepared.borrow().removes(dir) {
            return Err(Error::new(ErrorKind::Busy, "create", name));
        }
        Ok(())
    }
}
