//! Moves log directories of a container to the stores that placement gives.

use std::sync::Arc;

use quell_posix::WritableDir;
use quell_vfs::{ErrorKind, Kind, Rename, Result};

use super::decisions::{
    ExistingLogDir, LogDirLocation, PointerChange, decide_move, is_placed, locate_in_copy,
};
use super::state::{MoveResult, Rebalance, is_being_written, meta_names};
use crate::container::{Container, read_pointer, write_pointer};
use crate::format::{logs_name, number_name};
use crate::not_found::none_if_not_found;
use crate::stores::{StoreNumber, remove_tree};

/// A log directory at one of its locations.
struct LocatedDir {
    dir: Arc<dyn WritableDir>,
    location: LogDirLocation,
}

impl Rebalance<'_> {
    /// Returns the log directory `directory` at all locations that have it.
    fn find_locations(&self, container: &Container, directory: u32) -> Result<Vec<LocatedDir>> {
        let (name, own) = (logs_name(directory), number_name(container.number()));
        let mut found = Vec::new();
        match container.dir()?.open_writable_dir(&name) {
            Ok(dir) => found.push(LocatedDir { dir, location: None }),
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Err(error),
        }
        for store in 0..self.stores.count() {
            if let Some(parts) = none_if_not_found(self.stores.parts_dir(store)?.open_writable_dir(&own))?
                && let Some(dir) = none_if_not_found(parts.open_writable_dir(&name))?
            {
                found.push(LocatedDir { dir, location: Some(store) });
            }
        }
        Ok(found)
    }

    /// Opens the log directory in `parts` of `store`, and creates it if it is missing.
    fn open_part(
        &self,
        container: &Container,
        store: StoreNumber,
        name: &[u8],
    ) -> Result<Arc<dyn WritableDir>> {
        let like = container.dir()?.stat_self()?;
        let parts = self.stores.parts_dir(store)?;
        let own = self.create_dir_like(&*parts, &number_name(container.number()), &like)?;
        let dir = self.create_dir_like(&*own, name, &like)?;
        own.sync()?;
        parts.sync()?;
        Ok(dir)
    }

    /// Copies the missing files of a log directory of `source` to `copy`, the copy of the container
    /// in store `to`, or to `parts` of the store that placement gives.
    pub(super) fn copy_log_dir(
        &self,
        source: &Container,
        directory: u32,
        copy: &dyn WritableDir,
        to: StoreNumber,
    ) -> Result<()> {
        let found = self.find_locations(source, directory)?;
        let Some(first) = found.first() else { return Ok(()) };
        let name = logs_name(directory);
        let existing = match none_if_not_found(copy.stat(&name))?.map(|stat| stat.kind()) {
            None => ExistingLogDir::Absent,
            Some(Some(Kind::Dir)) => ExistingLogDir::Directory,
            Some(_) => ExistingLogDir::Pointer(read_pointer(self.stores, copy, &name)?),
        };
        let (location, pointer) = locate_in_copy(existing, source.log_directories()?.placed(directory), to);
        let target = match location {
            None => self.create_dir_like(copy, &name, &first.dir.stat_self()?)?,
            Some(store) => self.open_part(source, store, &name)?,
        };
        for other in found.iter().filter(|other| other.location.is_none() || other.location != location) {
            self.copy_files(&*other.dir, &*target, location.unwrap_or(to))?;
        }
        target.sync()?;
        match pointer {
            Some(store) => write_pointer(self.stores, to, copy, &name, store, Rename::Replace),
            None => Ok(()),
        }
    }

    /// Moves the log directories of a container in its home store to the stores that placement
    /// gives.
    pub(super) fn place_log_dirs(&self, container: &Container) -> Result<MoveResult> {
        for directory in 0..container.head().directories {
            let found = self.find_locations(container, directory)?;
            let locations: Vec<LogDirLocation> = found.iter().map(|found| found.location).collect();
            let placed = container.log_directories()?.placed(directory);
            if is_placed(&locations, placed, container.home()) {
                continue;
            }
            if is_being_written(container)?
                || self.move_log_dir(container, directory, &found, placed)? == MoveResult::Busy
            {
                return Ok(MoveResult::Busy);
            }
        }
        Ok(MoveResult::Placed)
    }

    fn move_log_dir(
        &self,
        container: &Container,
        directory: u32,
        found: &[LocatedDir],
        placed: StoreNumber,
    ) -> Result<MoveResult> {
        let (name, home) = (logs_name(directory), container.home());
        let names_before = meta_names(container)?;
        let in_container = found.iter().find(|found| found.location.is_none());
        let pointer = match in_container {
            Some(_) => None,
            None => none_if_not_found(read_pointer(self.stores, &**container.dir()?, &name))?.flatten(),
        };
        let (location, change) = decide_move(in_container.is_some(), pointer, placed, home);
        let target = match (location, in_container) {
            (None, Some(in_container)) => Arc::clone(&in_container.dir),
            _ => self.open_part(container, placed, &name)?,
        };
        let others = || found.iter().filter(|found| found.location != location);
        let copy = || {
            others().try_for_each(|other| self.copy_files(&*other.dir, &*target, placed))?;
            target.sync()
        };
        copy()?;
        let temporaries = self.stores.temporary_dir(home)?;
        // A temporary name: of the new pointer before the exchange, and of the replaced directory
        // after it.
        let replaced = number_name(self.stores.random_number());
        let exchange = || temporaries.rename(&replaced, &**container.dir()?, &name, Rename::Exchange);
        match change {
            PointerChange::Unchanged => {}
            PointerChange::ReplaceDirectory => {
                write_pointer(self.stores, home, &*temporaries, &replaced, placed, Rename::Replace)?;
                match exchange() {
                    Err(error) if error.kind == ErrorKind::Unsupported => {
                        temporaries.remove(&replaced)?;
                        return Ok(MoveResult::Placed); // readers find it at its old location
                    }
                    exchanged => exchanged?,
                }
            }
            PointerChange::Write { .. } => {
                write_pointer(self.stores, home, &**container.dir()?, &name, placed, Rename::Replace)?
            }
        }
        if location.is_some() {
            container.dir()?.sync()?;
        }
        if meta_names(container)? != names_before {
            if is_being_written(container)? {
                match change {
                    PointerChange::ReplaceDirectory => {
                        exchange()?;
                        temporaries.remove(&replaced)?;
                    }
                    PointerChange::Write { previous: Some(previous) } => {
                        write_pointer(
                            self.stores,
                            home,
                            &**container.dir()?,
                            &name,
                            previous,
                            Rename::Replace,
                        )?;
                    }
                    _ => {}
                }
                return Ok(MoveResult::Busy);
            }
            copy()?;
        }
        for other in others() {
            match other.location {
                None => remove_tree(&*temporaries, &replaced)?,
                Some(store) => self.remove_part(container, store, &name)?,
            }
        }
        self.update(|result| result.moved_log_dirs += 1);
        Ok(MoveResult::Placed)
    }

    /// Removes a log directory in `parts` of `store`, and its parent if that is empty.
    fn remove_part(&self, container: &Container, store: StoreNumber, name: &[u8]) -> Result<()> {
        let (parts, own) = (self.stores.parts_dir(store)?, number_name(container.number()));
        remove_tree(&*parts.open_writable_dir(&own)?, name)?;
        match parts.remove_dir(&own) {
            Err(error) if error.kind != ErrorKind::NotEmpty => Err(error),
            _ => Ok(()),
        }
    }
}
