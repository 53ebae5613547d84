//! The plan of a log mount: checks the stores before anything is served.

use std::io;
use std::path::{Path, PathBuf};

use quell_log::{Choices, is_own};
use quell_mount_spec::{FLATTEN_THRESHOLD_BYTES, IndexMode, NewFiles};
use rustix::fs::{Access, AtFlags, CWD};

use crate::display::shown;
use crate::failure::Failure;
use crate::protocol::plan::{KernelCaching, LocksMode, LogPlan};

/// The options of a log mount that the user gave.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogOptions {
    /// The size of the write buffer of one process for one file, in bytes.
    pub buffer_bytes: Option<u64>,
    /// How the index of a file is made.
    pub index: Option<IndexMode>,
    /// The largest size of the index logs of a file that is flattened, in bytes.
    pub flatten_threshold_bytes: Option<u64>,
    /// Where locks are kept.
    pub locks: Option<LocksMode>,
    /// How long the kernel keeps names and attributes.
    pub kernel_caching: Option<KernelCaching>,
    /// The form in which new files are created.
    pub new_files: Option<NewFiles>,
}

/// Checks the options and the stores, and returns the plan. `mountpoint` has no symbolic links.
/// `makes_stores`: whether a directory that contains other files may become a store.
pub fn log_plan(
    stores: &[PathBuf],
    mountpoint: &Path,
    options: LogOptions,
    makes_stores: bool,
) -> Result<LogPlan, Failure> {
    let flattens = matches!(options.index, Some(IndexMode::Flatten | IndexMode::FlattenLater));
    if options.flatten_threshold_bytes.is_some() && !flattens {
        return Err(Failure::wrong_input(
            "--flatten-threshold can be used only with --index flatten or flatten-later",
        ));
    }
    let stores = stores.iter().map(|store| real_store(store)).collect::<Result<Vec<_>, _>>()?;
    for (number, store) in stores.iter().enumerate() {
        refuse_nested(store, mountpoint, &stores[..number])?;
        check_access(store)?;
    }
    if !makes_stores {
        stores.iter().try_for_each(|store| refuse_other_directory(store))?;
    }
    Ok(LogPlan {
        stores,
        buffer_bytes: options.buffer_bytes.map_or(Choices::default().buffer_bytes, |bytes| bytes as usize),
        index: options.index.unwrap_or(IndexMode::Parallel),
        flatten_threshold_bytes: options.flatten_threshold_bytes.unwrap_or(FLATTEN_THRESHOLD_BYTES),
        locks: options.locks.unwrap_or_default(),
        kernel_caching: options.kernel_caching.unwrap_or_default(),
        new_files: options.new_files.unwrap_or(NewFiles::Object),
    })
}

fn real_store(store: &Path) -> Result<PathBuf, Failure> {
    let name = shown(store);
    let found = store.canonicalize().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Failure::wrong_input(format!(
            "{name} does not exist; create an empty directory for the store: mkdir {name}"
        )),
        _ => Failure::wrong_input(format!("{name}: {e}")),
    })?;
    match found.is_dir() {
        true => Ok(found),
        false => Err(Failure::wrong_input(format!(
            "{name} is not a directory: a store is a directory on a shared file system"
        ))),
    }
}

/// Refuses a store at, above or below the mount point: the mount would send requests to itself.
fn refuse_nested(store: &Path, mountpoint: &Path, others: &[PathBuf]) -> Result<(), Failure> {
    let (name, point) = (shown(store), shown(mountpoint));
    let wrong = |message: String| Err(Failure::wrong_input(message));
    if store == mountpoint {
        return wrong(format!("{name} is also the mount point: name another directory to mount on"));
    }
    if store.starts_with(mountpoint) {
        return wrong(format!(
            "the store {name} lies below the mount point {point}, which would hide it: name a mount point outside of it"
        ));
    }
    if mountpoint.starts_with(store) {
        return wrong(format!("the mount point {point} lies in the store {name}: name one outside of it"));
    }
    let Some(other) = others.iter().find(|other| store.starts_with(other) || other.starts_with(store)) else {
        return Ok(());
    };
    match other == store {
        true => wrong(format!("the store {name} is named twice: name each store once")),
        false => wrong(format!(
            "of the stores {name} and {} one lies in the other: name separate directories",
            shown(other)
        )),
    }
}

fn check_access(store: &Path) -> Result<(), Failure> {
    let access = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::accessat(CWD, store, access, AtFlags::EACCESS).map_err(|e| {
        let what = match e {
            rustix::io::Errno::ROFS => {
                "its file system is mounted read-only; remount it, or name another store".to_owned()
            }
            rustix::io::Errno::ACCESS => {
                "you may not write to it; its owner can allow it, or name a store of yours".to_owned()
            }
            e => io::Error::from(e).to_string(),
        };
        Failure::cannot(format!("the store {}: {what}", shown(store)))
    })
}

/// Refuses a directory that contains other files, so that it does not become a store by mistake.
fn refuse_other_directory(store: &Path) -> Result<(), Failure> {
    if quell_mount_spec::is_store(store)? {
        return Ok(());
    }
    let failed = |e: io::Error| Failure::cannot(format!("the store {}: {e}", shown(store)));
    let mut names = std::fs::read_dir(store).map_err(failed)?.flatten().map(|entry| entry.file_name());
    // Another node may be making this directory a store at this moment. It creates Quell's own
    // directory first.
    let is_empty = names.all(|name| is_own(name.as_encoded_bytes()));
    if is_empty || quell_mount_spec::is_store(store)? {
        return Ok(());
    }
    Err(Failure::wrong_input(format!(
        "{} is not a store and is not empty: name a store or an empty directory; --init turns it into a store and keeps its files",
        shown(store)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_would_send_requests_to_itself_is_refused() {
        let refused = |store: &str, point: &str, others: &[&str]| {
            let others: Vec<PathBuf> = others.iter().map(PathBuf::from).collect();
            refuse_nested(Path::new(store), Path::new(point), &others).unwrap_err().to_string()
        };
        assert!(refused("/a", "/a", &[]).contains("another directory"));
        assert!(refused("/a/b", "/a", &[]).contains("hide"));
        assert!(refused("/a", "/a/b", &[]).contains("outside"));
        assert!(refused("/a", "/m", &["/b", "/a"]).contains("twice"));
        assert!(refused("/a", "/m", &["/a/b"]).contains("one lies in the other"));
        assert!(refuse_nested(Path::new("/ab"), Path::new("/a"), &["/abc".into()]).is_ok());
    }
}
