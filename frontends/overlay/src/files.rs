//! Attaches single files of a mount over other files, each at its own path.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use quell_vfs::{Error, FileIdentity, Result};
use rustix::fs::{CWD, OFlags};
use rustix::mount::{OpenTreeFlags, UnmountFlags, open_tree, unmount};

use crate::mount::{attach, attach_to};

/// A file of a mount and the file that it covers.
#[derive(Debug, Clone)]
pub struct FilePart {
    /// The name in the root of the mount.
    pub name: String,
    /// The absolute path of the covered file.
    pub path: PathBuf,
    /// The identity that the covered file must have.
    pub original: FileIdentity,
}

/// Attaches files of a detached mount over other files, in the caller's mount namespace: each
/// `name` in the root of the mount over its `path`. The mount is attached to the directory `aside`
/// meanwhile, because before Linux 6.15 the kernel clones no part of a detached mount.
pub fn attach_files(mount: &OwnedFd, aside: &Path, files: &[FilePart]) -> Result<()> {
    attach(mount, aside, None)?;
    let parts = files.iter().map(|file| Ok((part(&aside.join(&file.name))?, file)));
    let parts: Result<Vec<_>> = parts.collect();
    unmount(aside, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
        .map_err(|e| Error::from_io(e.into(), "unmount the view from", aside.as_os_str().as_bytes()))?;
    for (part, FilePart { path, original, .. }) in parts? {
        attach_to(&part, path, OFlags::empty(), Some(*original))?;
    }
    Ok(())
}

fn part(path: &Path) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(CWD, path, flags)
        .map_err(|e| Error::from_io(e.into(), "clone the mount of the file", path.as_os_str().as_bytes()))
}
