//! Moves the container of a file to its home store.

use std::sync::Arc;

use quell_posix::WritableDir;
use quell_vfs::{Error, ErrorKind, Kind, Rename, Result};

use super::state::{Dirs, MoveResult, Rebalance, is_being_written, meta_names};
use crate::container::{Container, with_locks_excluded};
use crate::format::{CONTAINER_RECORD, META, MOVED, container_name, number_name};
use crate::not_found::none_if_not_found;
use crate::stores::{StoreNumber, remove_tree};

/// Deletes a copy in `trash`. The record is removed first, so that the copy is not mistaken for the
/// container with this number, to which the log directories in `parts` now belong. `trash` is
/// synced before, so that after a power failure the copy does not reappear under its old name
/// without a record.
fn delete_copy(container: &Container, trash: &dyn WritableDir, name: &[u8]) -> Result<()> {
    trash.sync()?;
    container.dir()?.remove(CONTAINER_RECORD)?;
    // From the name `moved`, a process that still has the copy open detects that other names are
    // missing.
    let meta = container.meta()?;
    meta.create_file(MOVED, 0o644)?;
    for name in meta.names()?.iter().filter(|name| *name != MOVED) {
        none_if_not_found(meta.remove(name))?;
    }
    remove_tree(trash, name)
}

/// Returns an error about a file that exists in two stores.
fn two_files(stored: &[u8]) -> Error {
    Error {
        source: Some("two stores have different files of this name; remove or rename one of them".into()),
        ..Error::new(ErrorKind::Exists, "move", stored)
    }
}

impl Rebalance<'_> {
    /// Moves one file, whose containers are in the stores `holders`, to its home, and its log
    /// directories to the stores that placement gives.
    pub(super) fn place_file(&self, dirs: &Dirs, name: &[u8], holders: &[StoreNumber]) -> Result<MoveResult> {
        let (stored, home) = (container_name(name)?, self.stores.home(name));
        if let Some(store) = self.object_in(dirs, &stored, holders)? {
            return self.keep_object(store, name);
        }
        let mut is_file = false;
        for store in holders.iter().copied().filter(|store| *store != home) {
            match self.move_container(dirs, &stored, store, home)? {
                MoveResult::Absent => {}
                MoveResult::Placed => is_file = true,
                MoveResult::Busy => return Ok(MoveResult::Busy),
            }
        }
        match self.open(dirs, &stored, home)? {
            Some(container) => self.place_log_dirs(&container),
            None if is_file => Ok(MoveResult::Placed), // it was removed after the move
            None => Ok(MoveResult::Absent),
        }
    }

    /// Returns the store with a file that began as an object.
    fn object_in(&self, dirs: &Dirs, stored: &[u8], holders: &[StoreNumber]) -> Result<Option<StoreNumber>> {
        for store in holders {
            let found = none_if_not_found(dirs[*store].stat(stored))?;
            if found.is_some_and(|stat| stat.kind() == Some(Kind::File)) {
                return Ok(Some(*store));
            }
        }
        Ok(None)
    }

    /// Leaves a file that began as an object in its store, in which each process finds it. It
    /// cannot be moved out of a drained store.
    fn keep_object(&self, store: StoreNumber, name: &[u8]) -> Result<MoveResult> {
        match self.stores.draining().contains(&store) {
            false => Ok(MoveResult::Placed),
            true => Err(Error {
                source: Some("it began as an object, which cannot be moved: replace it by a copy".into()),
                ..Error::new(ErrorKind::Unsupported, "move", name)
            }),
        }
    }

    fn open(&self, dirs: &Dirs, stored: &[u8], store: StoreNumber) -> Result<Option<Container>> {
        match Container::open(self.stores, store, &*dirs[store], stored) {
            // Another program created an object with this name.
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            container => container.map(Some),
        }
    }

    fn move_container(
        &self,
        dirs: &Dirs,
        stored: &[u8],
        from: StoreNumber,
        to: StoreNumber,
    ) -> Result<MoveResult> {
        let Some(source) = self.open(dirs, stored, from)? else { return Ok(MoveResult::Absent) };
        if is_being_written(&source)? {
            return Ok(MoveResult::Busy);
        }
        // Locks of the container would not conflict with locks of its copy.
        let moved =
            with_locks_excluded(&**source.dir()?, || self.move_unlocked(&source, dirs, stored, from, to));
        match moved {
            Err(error) if error.kind == ErrorKind::Busy => Ok(MoveResult::Busy),
            moved => moved,
        }
    }

    /// Moves a container on which no process holds a lock.
    fn move_unlocked(
        &self,
        source: &Container,
        dirs: &Dirs,
        stored: &[u8],
        from: StoreNumber,
        to: StoreNumber,
    ) -> Result<MoveResult> {
        let names_before = meta_names(source)?;
        let existing = self.open(dirs, stored, to)?;
        let is_new = existing.is_none();
        let target = match existing {
            Some(target) if target.number() != source.number() => return Err(two_files(stored)),
            Some(target) if is_being_written(&target)? => return Ok(MoveResult::Busy),
            Some(target) => {
                self.complete_copy(source, target.dir()?, to)?;
                target
            }
            None => self.create_copy(source, dirs, stored, to)?,
        };
        let (trash, name) = (self.stores.trash_dir(from)?, number_name(self.stores.random_number()));
        match dirs[from].rename(stored, &*trash, &name, Rename::Replace) {
            // The file was removed or renamed meanwhile, so the copy must not keep the old name.
            Err(error) if error.kind == ErrorKind::NotFound && is_new && !is_being_written(&target)? => {
                none_if_not_found(self.discard(&target, &*dirs[to], stored, to))?;
                return Ok(MoveResult::Absent);
            }
            renamed => renamed?,
        }
        if meta_names(source)? != names_before {
            if is_being_written(source)? {
                trash.rename(&name, &*dirs[from], stored, Rename::Replace)?;
                if is_new && !is_being_written(&target)? {
                    self.discard(&target, &*dirs[to], stored, to)?;
                }
                return Ok(MoveResult::Busy);
            }
            self.complete_copy(source, target.dir()?, to)?;
        }
        delete_copy(source, &*trash, &name)?;
        self.update(|result| result.moved += 1);
        Ok(MoveResult::Placed)
    }

    /// Creates a complete copy of a container under a temporary name, then gives it its name.
    fn create_copy(
        &self,
        source: &Container,
        dirs: &Dirs,
        stored: &[u8],
        to: StoreNumber,
    ) -> Result<Container> {
        let new = self.stores.new_dir(to)?;
        let temporary = number_name(self.stores.random_number());
        let create = || -> Result<()> {
            let dir = self.create_dir_like(&*new, &temporary, &source.dir()?.stat_self()?)?;
            self.complete_copy(source, &dir, to)?;
            new.sync()?;
            new.rename(&temporary, &*dirs[to], stored, Rename::Replace)
        };
        let created = create();
        if created.is_err() {
            let _ = remove_tree(&*new, &temporary); // an incomplete copy
        }
        created?;
        dirs[to].sync()?;
        Container::open(self.stores, to, &*dirs[to], stored)
    }

    /// Removes a copy that is no longer needed.
    fn discard(
        &self,
        container: &Container,
        dir: &dyn WritableDir,
        stored: &[u8],
        store: StoreNumber,
    ) -> Result<()> {
        let (trash, name) = (self.stores.trash_dir(store)?, number_name(self.stores.random_number()));
        dir.rename(stored, &*trash, &name, Rename::Replace)?;
        delete_copy(container, &*trash, &name)
    }

    /// Copies everything of `source` that is missing in `copy`, a directory in store `to`, and
    /// syncs it.
    fn complete_copy(&self, source: &Container, copy: &Arc<dyn WritableDir>, to: StoreNumber) -> Result<()> {
        let from = &**source.dir()?;
        for name in from.names()? {
            if name != META && !name.starts_with(b"logs-") {
                self.copy_file(from, &**copy, &name, to)?;
            }
        }
        for directory in 0..source.head().directories {
            self.copy_log_dir(source, directory, &**copy, to)?;
        }
        let meta = self.create_dir_like(&**copy, META, &source.meta()?.stat_self()?)?;
        self.copy_files(source.meta()?, &*meta, to)?;
        meta.sync()?;
        copy.sync()
    }
}
