//! The files of a store that nothing refers to. Only files whose names have the form that Quell
//! gives them are ever removed:
//!
//! - tables that neither the image nor an open batch uses,
//! - data files of the synchronous mode and of batches that have ended, to which neither the image
//!   nor the snapshot of an open batch refers,
//! - the directories of batches that have ended,
//! - the directories of verifications by auxiliary servers.
//!
//! The store is open meanwhile, so there is no mount in the synchronous mode, and no batch begins
//! or is committed. A running batch writes only to files of its own, which are not touched.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use quell_batch_service::{BatchState, DataFile};
use quell_posix::WritableDir;
use quell_vfs::Result;

use crate::data_files::{FoundFile, numbered, remove_empty_dirs, size_of, visit_data};
use crate::store::BatchStore;
use crate::verification_dir::visit_verifications;

/// A file or directory that nothing refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    /// The path in the store.
    pub path: Vec<u8>,
    /// The size, in bytes; 0 for a directory.
    pub size_bytes: u64,
}

impl BatchStore {
    /// Passes each file that nothing refers to to `visit`, and removes it if `removes` is set. A
    /// failed removal ends the call; it can be repeated.
    ///
    /// # Errors
    /// `Damaged` if the image cannot be read; `Busy` if a process uses the directory of a batch
    /// that has ended; the errors of files.
    pub fn collect_garbage(&self, removes: bool, visit: &mut dyn FnMut(&Unused)) -> Result<()> {
        // Clients of a server that has ended may have files to which no inode refers yet.
        let _no_clients = self.dir.exclude_clients()?;
        let ended = self.ended_batches()?;
        let mut used: HashSet<DataFile> = HashSet::new();
        self.primary().data_files(&mut |file, _| {
            used.insert(file);
        })?;
        let tables = self.tables_dir()?;
        for number in self.primary().unused_tables()? {
            let name = format!("{number:016x}.table").into_bytes();
            let size_bytes = size_of(&tables, &name)?;
            if removes {
                tables.remove(&name)?;
            }
            visit(&Unused { path: [b"tables/", &name[..]].concat(), size_bytes });
        }
        visit_verifications(&self.dir, removes, &mut |name| {
            visit(&Unused { path: [b"tables/", name].concat(), size_bytes: 0 });
        })?;
        let data = self.data_dir()?;
        let mut changed = BTreeSet::new();
        visit_data(&data, &mut |path, found| {
            let FoundFile::File { file, dir, name } = found else { return Ok(()) };
            let is_of_ended = file.batch == 0 || ended.contains(&file.batch);
            if !is_of_ended || used.contains(&file) {
                return Ok(());
            }
            let size_bytes = size_of(dir, name)?;
            if removes {
                dir.remove(name)?;
                changed.insert(file.batch);
            }
            visit(&Unused { path: [b"data/", path].concat(), size_bytes });
            Ok(())
        })?;
        for batch in changed.into_iter().filter(|batch| *batch != 0) {
            remove_empty_dirs(&data, batch)?;
        }
        let (numbers, _) = numbered(&self.batches_dir()?)?;
        for number in numbers.into_iter().filter(|number| ended.contains(number)) {
            if removes {
                self.remove_files_of_batch(number)?;
            }
            visit(&Unused { path: format!("batches/{number}").into_bytes(), size_bytes: 0 });
        }
        Ok(())
    }

    /// Returns the numbers of the batches that are committed or aborted.
    pub(crate) fn ended_batches(&self) -> Result<BTreeSet<u64>> {
        let states: BTreeMap<u64, BatchState> =
            self.primary().batches()?.into_iter().map(|batch| (batch.number, batch.state)).collect();
        Ok(states.into_iter().filter(|(_, state)| state.has_ended()).map(|(number, _)| number).collect())
    }
}
