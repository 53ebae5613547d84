//! The directories in which auxiliary servers write the tables of a verification:
//! `tables/verify-NUMBER`. Each verification has its own directory, so an auxiliary server whose
//! verification was abandoned neither changes nor removes a table of another verification.
//! docs/formats/batch.md describes them.

use std::sync::Arc;

use quell_batch_service::TableDir;
use quell_posix::{Dir, PosixDir, WritableDir};
use quell_vfs::{ErrorKind, Rename, Result};

use crate::store_dir::{BatchDir, StoreDir, TABLES, remove_if_present};

/// The beginning of the name of the directory of a verification.
const PREFIX: &str = "verify-";
/// The directory in it with the copy of the certificate and of the tables that are verified.
const SUBMITTED: &str = "submitted";

fn name_of(verification: u64) -> String {
    format!("{PREFIX}{verification:016x}")
}

/// The directory of a verification, for the auxiliary server.
pub(crate) struct VerificationDir {
    /// The new tables.
    pub(crate) output: Arc<TableDir>,
    path: String,
}

impl VerificationDir {
    /// Creates the directory of a verification.
    ///
    /// # Errors
    /// `Exists` if the directory already exists; the errors of files.
    pub(crate) fn create(store: &StoreDir, verification: u64) -> Result<VerificationDir> {
        let name = name_of(verification);
        tables(store)?.make_dir(name.as_bytes(), 0o700)?;
        let path = format!("{TABLES}/{name}");
        let output = store.new_tables(store.open_dir(&path)?);
        Ok(VerificationDir { output: Arc::new(output), path })
    }

    /// Creates the directory for a copy of the files that are verified.
    pub(crate) fn make_submitted(&self, store: &StoreDir) -> Result<BatchDir> {
        PosixDir::of_descriptor(store.open_dir(&self.path)?).make_dir(SUBMITTED.as_bytes(), 0o700)?;
        let open = || store.open_dir(&format!("{}/{SUBMITTED}", self.path));
        Ok(BatchDir { files: PosixDir::of_descriptor(open()?), tables: TableDir::new(open()?) })
    }

    /// Removes this copy.
    pub(crate) fn remove_submitted(&self, store: &StoreDir) -> Result<()> {
        remove_submitted(&PosixDir::of_descriptor(store.open_dir(&self.path)?))
    }
}

/// Moves the tables of a verdict to the directory of the image, and removes the directory of the
/// verification. They survive a power failure when the directory of the image is synchronized.
///
/// # Errors
/// The errors of files. Tables that were moved are not removed.
pub(crate) fn take_tables(
    store: &StoreDir,
    verification: u64,
    numbers: impl Iterator<Item = u64>,
) -> Result<()> {
    let to = tables(store)?;
    let from = PosixDir::of_descriptor(store.open_dir(&format!("{TABLES}/{}", name_of(verification)))?);
    for number in numbers {
        let name = TableDir::file_name(number);
        from.rename(name.as_bytes(), &to, name.as_bytes(), Rename::Replace)?;
    }
    // The directory is empty, or the remaining files are removed as garbage.
    let _ = remove_verification(store, verification);
    Ok(())
}

/// Removes the directory of a verification with everything in it.
///
/// # Errors
/// The errors of files; `NotEmpty` if an auxiliary server creates files at the same time.
pub(crate) fn remove_verification(store: &StoreDir, verification: u64) -> Result<()> {
    remove(&tables(store)?, name_of(verification).as_bytes())
}

/// Passes the names of the directories of verifications to `visit`. If `removes` is set, each
/// directory is removed first. No primary server may run meanwhile.
///
/// # Errors
/// The errors of files.
pub(crate) fn visit_verifications(
    store: &StoreDir,
    removes: bool,
    visit: &mut dyn FnMut(&[u8]),
) -> Result<()> {
    let tables = tables(store)?;
    for name in tables.names()?.into_iter().filter(|name| name.starts_with(PREFIX.as_bytes())) {
        if removes {
            remove(&tables, &name)?;
        }
        visit(&name);
    }
    Ok(())
}

fn tables(store: &StoreDir) -> Result<PosixDir> {
    Ok(PosixDir::of_descriptor(store.tables()?))
}

fn remove(tables: &PosixDir, name: &[u8]) -> Result<()> {
    let dir = match tables.open_writable_dir(name) {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    remove_submitted(&*dir)?;
    dir.names()?.iter().try_for_each(|name| remove_if_present(&*dir, name))?;
    tables.remove_dir(name)
}

fn remove_submitted(dir: &dyn WritableDir) -> Result<()> {
    let submitted = match dir.open_writable_dir(SUBMITTED.as_bytes()) {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    submitted.names()?.iter().try_for_each(|name| remove_if_present(&*submitted, name))?;
    dir.remove_dir(SUBMITTED.as_bytes())
}
