//! The state of directories that every member needs to create entries: whether entries may be
//! created, and the group that they get. Also the times of directories, which changes of their
//! entries set.

use std::rc::Rc;

use quell_kv::{Batch, KeyRange};
use quell_vfs::{ErrorKind, Result};
use quell_wire::pool::{FileId, PeerRequest, Reply, Stamp};

use crate::inode::{from_bytes, to_bytes};
use crate::keys;
use crate::map::NameHash;
use crate::member::Member;

impl Member {
    /// Reads the state of directories from the store.
    pub(crate) fn load_directories(&self) -> Result<()> {
        let id = |key: &[u8]| key.get(1..)?.try_into().ok().map(|id| FileId(u64::from_be_bytes(id)));
        let first = keys::removed_dir(FileId(0));
        self.environment.store.scan(&KeyRange::prefix(&first[..1]), &mut |key, _| {
            self.removed_dirs.borrow_mut().extend(id(key));
            true
        })?;
        let first = keys::dir_group(FileId(0));
        let mut damaged = Ok(());
        self.environment.store.scan(&KeyRange::prefix(&first[..1]), &mut |key, value| {
            match (id(key), from_bytes(value, "group")) {
                (Some(dir), Ok(gid)) => drop(self.dir_groups.borrow_mut().insert(dir, gid)),
                (_, Err(error)) => damaged = Err(error),
                (None, Ok(_)) => {}
            }
            true
        })?;
        damaged
    }

    /// Returns whether a directory has entries on this member.
    pub(crate) fn has_entries(&self, dir: FileId) -> Result<bool> {
        let first = keys::entries_from(dir, NameHash(0));
        let end = keys::end_of(&first[..9]);
        let mut has_entries = false;
        self.environment.store.scan(&keys::range(&first, &end), &mut |_, _| {
            has_entries = true;
            false
        })?;
        Ok(has_entries)
    }

    pub(crate) fn forget_dirs(&self) -> Result<Reply<'static>> {
        self.environment.clients.forget_dirs();
        Ok(Reply::Done)
    }

    pub(crate) fn set_dir_group(&self, dir: FileId, gid: Option<u32>) -> Result<Reply<'static>> {
        let mut batch = Batch::new();
        match gid {
            Some(gid) => batch.put(&keys::dir_group(dir), &to_bytes(&gid)),
            None => batch.delete(&keys::dir_group(dir)),
        }
        self.environment.store.commit(batch)?;
        match gid {
            Some(gid) => self.dir_groups.borrow_mut().insert(dir, gid),
            None => self.dir_groups.borrow_mut().remove(&dir),
        };
        Ok(Reply::Done)
    }

    /// Records that entries of a directory have changed. `send_times` informs the member of the
    /// directory.
    pub(crate) fn note_change_of(&self, dir: FileId, time: Stamp) {
        let mut touched = self.touched_dirs.borrow_mut();
        let latest = touched.entry(dir).or_insert(time);
        *latest = time.max(*latest);
    }

    /// Returns whether `send_times` has anything to send.
    pub fn has_unsent_times(&self) -> bool {
        !self.touched_dirs.borrow().is_empty()
    }

    /// Records the times of directories whose entries have changed since the last call.
    ///
    /// # Errors
    ///
    /// The error of the first member that failed. The times are only a hint, so they are not sent
    /// again.
    pub async fn send_times(self: Rc<Member>) -> Result<()> {
        let touched = self.touched_dirs.take();
        let mut result = Ok(());
        for (dir, time) in touched {
            let sent = self.call(self.map.home(dir)?, PeerRequest::Touch { dir, time }).await;
            result = result.and(sent.map(drop));
        }
        result
    }

    pub(crate) fn touch(&self, dir: FileId, time: Stamp) -> Result<Reply<'static>> {
        match self.inode(dir) {
            // The directory was removed meanwhile.
            Err(error) if error.kind == ErrorKind::Stale => {}
            found => {
                let mut inode = found?;
                inode.touch(time);
                self.put_inode(dir, &inode)?;
            }
        }
        Ok(Reply::Done)
    }
}
