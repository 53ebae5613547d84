//! Copies files, directories and symbolic links between stores, with their owners, permissions and
//! times.

use std::sync::Arc;

use quell_posix::{OpenFile, Stat, WritableDir, WritableFile};
use quell_vfs::{Change, Error, ErrorKind, Kind, Rename, Result};

use super::state::{Dirs, Rebalance};
use crate::format::{Stored, is_own, number_name, shown};
use crate::not_found::none_if_not_found;
use crate::stores::{StoreNumber, open_in_all_stores, open_or_create_dir};

/// Size of a read, in bytes.
const READ_BYTES: usize = 4 << 20;

impl Rebalance<'_> {
    pub(super) fn copy_files(
        &self,
        from: &dyn WritableDir,
        into: &dyn WritableDir,
        store: StoreNumber,
    ) -> Result<()> {
        from.names()?.iter().try_for_each(|name| self.copy_file(from, into, name, store))
    }

    /// Copies a file into a directory of `store`, unless it is already there. The copy gets its
    /// name after it is complete and synced.
    pub(super) fn copy_file(
        &self,
        from: &dyn WritableDir,
        into: &dyn WritableDir,
        name: &[u8],
        store: StoreNumber,
    ) -> Result<()> {
        let Some(stat) = none_if_not_found(from.stat(name))? else { return Ok(()) };
        if stat.kind() != Some(Kind::File)
            || none_if_not_found(into.stat(name))?
                .is_some_and(|existing| existing.size_bytes >= stat.size_bytes)
        {
            return Ok(());
        }
        let Some(file) = none_if_not_found(from.open_file(name))? else { return Ok(()) };
        // Owner and permissions are read from the open file, because its name may have been
        // replaced.
        let stat = file.stat()?;
        let temporaries = self.stores.temporary_dir(store)?;
        let temporary = number_name(self.stores.random_number());
        // Other users can reach this directory, but not necessarily the final directory.
        let copy = temporaries.create_file(&temporary, 0o600)?;
        let write = || -> Result<()> {
            let written = self.copy_bytes(&*file, &*copy, name, stat.size_bytes)?;
            copy.change(&self.attributes_of_copy(name, &stat)?)?;
            if written > 0 {
                copy.sync()?;
            }
            temporaries.rename(&temporary, into, name, Rename::Replace)
        };
        let copied = write();
        if copied.is_err() {
            let _ = temporaries.remove(&temporary);
        }
        copied
    }

    /// Copies at most `size_bytes`. Returns the number of bytes that were copied.
    fn copy_bytes(
        &self,
        from: &dyn OpenFile,
        to: &dyn WritableFile,
        name: &[u8],
        size_bytes: u64,
    ) -> Result<u64> {
        let mut buffer = vec![0; READ_BYTES.min(size_bytes as usize)];
        let mut copied = 0;
        while copied < size_bytes {
            let length = from.read_at(&mut buffer, copied)?;
            if length == 0 {
                break;
            }
            if self.progress.is_stopped() {
                return Err(Error::new(ErrorKind::Interrupted, "copy", name));
            }
            to.write_at(&buffer[..length], copied)?;
            copied += length as u64;
            self.progress.add_bytes(length as u64);
        }
        self.update(|result| result.bytes += copied);
        Ok(copied)
    }

    /// Returns the permissions, owner and time of a copy.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` if the original belongs to another user, and this process does not run as
    /// root.
    fn attributes_of_copy(&self, name: &[u8], stat: &Stat) -> Result<Change> {
        let host = self.stores.host();
        if host.uid != 0 && host.uid != stat.uid {
            return Err(Error {
                source: Some("it belongs to another user; its owner or root can move it".into()),
                ..Error::new(ErrorKind::PermissionDenied, "copy", name)
            });
        }
        Ok(Change {
            uid: (host.uid == 0).then_some(stat.uid),
            gid: (host.uid == 0 || host.gid != stat.gid).then_some(stat.gid),
            permissions: Some(stat.mode & 0o7777),
            size_bytes: None,
            modified: Some(stat.modified),
        })
    }

    /// Opens the directory `name`, and creates it with the attributes `stat` if it is missing.
    pub(super) fn create_dir_like(
        &self,
        parent: &dyn WritableDir,
        name: &[u8],
        stat: &Stat,
    ) -> Result<Arc<dyn WritableDir>> {
        if let Some(dir) = none_if_not_found(parent.open_writable_dir(name))? {
            return Ok(dir);
        }
        let dir = open_or_create_dir(parent, name, stat.mode & 0o7777)?;
        parent.change(name, &self.attributes_of_copy(name, stat)?)?;
        Ok(dir)
    }

    /// Copies the symbolic links of the first store to `store`, which will be the first store.
    pub(super) fn copy_links(&self, root: &Dirs, store: StoreNumber) -> Result<()> {
        let mut waiting = vec![Arc::clone(root)];
        while let Some(dirs) = waiting.pop() {
            for stored in dirs[0].names()? {
                if Arc::ptr_eq(&dirs, root) && is_own(&stored)
                    || !matches!(shown(&stored), Some(Stored::Other(_)))
                {
                    continue;
                }
                let Some(stat) = none_if_not_found(dirs[0].stat(&stored))? else { continue };
                match stat.kind() {
                    Some(Kind::Dir) => {
                        waiting.push(Arc::new(open_in_all_stores(&dirs, &stored, self.stores.host())?));
                    }
                    Some(Kind::Symlink) => self.copy_link(&*dirs[0], &*dirs[store], &stored, &stat)?,
                    _ => {}
                }
            }
            dirs[store].sync()?;
        }
        Ok(())
    }

    fn copy_link(
        &self,
        from: &dyn WritableDir,
        into: &dyn WritableDir,
        stored: &[u8],
        stat: &Stat,
    ) -> Result<()> {
        let target = from.read_link(stored)?;
        match none_if_not_found(into.read_link(stored))? {
            Some(existing) if existing == target => return Ok(()),
            Some(_) => into.remove(stored)?,
            None => {}
        }
        into.make_symlink(stored, &target)?;
        let (uid, gid) = match self.stores.host().uid {
            0 => (Some(stat.uid), Some(stat.gid)),
            _ => (None, None),
        };
        into.change(stored, &Change { uid, gid, modified: Some(stat.modified), ..Change::default() })
    }
}
