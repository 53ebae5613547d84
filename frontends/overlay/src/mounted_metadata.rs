//! Changes the metadata layer of a mounted overlay view, so that the view shows a file of the tree
//! with the size and modification time that it has now.
//!
//! Overlayfs opens data by its path in the tree and compares nothing. A file that was changed after
//! the metadata layer was filled would have its new bytes and its old size.
//!
//! Two cases:
//!
//! - The file was written in place: size and time of its entry in the layer are set. Overlayfs
//!   reads them from the layer at each stat(2), so programs that have the file open see them, too.
//! - The path has another file: a new entry replaces the old one in the layer, and overlayfs drops
//!   the names that no program uses. A program that has the old file open keeps its size, time and
//!   data.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_vfs::{Attributes, Context, FileSystem, NodeId, Result, Time};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick};

use crate::metadata::{Fill, Ids, failed, open_dir, split, times};
use crate::redirected::METACOPY;

/// The name of an entry before it replaces another. The directory of such entries is not a layer.
const REPLACEMENT: &[u8] = b"replacement";

/// The size and time of a file, and whether the file is the one that the view shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileNow {
    /// Current size.
    pub size_bytes: u64,
    /// Current modification time.
    pub modified: Time,
    /// Whether the file that the view shows was written in place; otherwise the path has another
    /// file.
    pub is_shown_file: bool,
}

/// The way in which the view shows a changed file from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// As it was indexed, because data of it is in memory.
    FromMemory,
    /// With its current size and time, also to programs that have it open.
    InPlace,
    /// With its current size and time, after
    /// [`drop_unused_names`](MountedMetadata::drop_unused_names).
    Replaced,
}

/// The metadata layer of a mounted overlay view, in a tmpfs.
pub struct MountedMetadata {
    fs: Arc<dyn FileSystem>,
    layer: OwnedFd,
    /// A directory of the tmpfs beside the layer.
    outside: OwnedFd,
    /// The device number of the overlay mount.
    device: u64,
    /// The path that the mount is attached to. An open descriptor would keep the mount busy.
    mounted_at: PathBuf,
    is_read_only: bool,
    squash: Option<Ids>,
    /// The files of which data is in memory.
    in_memory: HashSet<NodeId>,
}

impl std::fmt::Debug for MountedMetadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MountedMetadata").field("layer", &self.layer).finish_non_exhaustive()
    }
}

impl MountedMetadata {
    /// `fs` and `squash` are the arguments with which the layer was filled; `layer` and `outside`
    /// are descriptors of the result, and `overlay` is the mount.
    pub fn new(
        fs: Arc<dyn FileSystem>,
        (layer, outside): (OwnedFd, OwnedFd),
        overlay: &OwnedFd,
        is_read_only: bool,
        squash: Option<Ids>,
        in_memory: HashSet<NodeId>,
    ) -> Result<MountedMetadata> {
        let device = rustix::fs::fstat(overlay).map_err(|e| failed(e, "stat", b"the overlay mount"))?.st_dev;
        let mounted_at = PathBuf::new();
        Ok(MountedMetadata { fs, layer, outside, device, mounted_at, is_read_only, squash, in_memory })
    }

    /// Sets the path that the mount is attached to.
    pub fn mounted_at(self, path: &Path) -> MountedMetadata {
        MountedMetadata { mounted_at: path.to_owned(), ..self }
    }

    /// Shows a regular file with its current size and time. Only one thread may call this at a
    /// time.
    pub fn show(&self, node: NodeId, path: &[u8], now: FileNow) -> Result<Update> {
        if self.in_memory.contains(&node) {
            return Ok(Update::FromMemory);
        }
        if now.is_shown_file && self.set_size_and_time(path, now)? {
            return Ok(Update::InPlace);
        }
        let indexed = self.fs.attributes(&Context::OWN, node)?;
        self.replace(path, Attributes { size_bytes: now.size_bytes, modified: now.modified, ..indexed })?;
        Ok(Update::Replaced)
    }

    /// Returns `false` if the entry has no attribute that names its data, because the file was
    /// empty.
    fn set_size_and_time(&self, path: &[u8], now: FileNow) -> Result<bool> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.layer, OsStr::from_bytes(path), flags, Mode::empty())
            .map_err(|e| failed(e, "open", path))?;
        match rustix::fs::fgetxattr(&file, OsStr::from_bytes(METACOPY), &mut [0; 64]) {
            Ok(_) => {}
            Err(Errno::NODATA) => return Ok(false),
            Err(e) => return Err(failed(e, "read an attribute of", path)),
        }
        rustix::fs::ftruncate(&file, now.size_bytes).map_err(|e| failed(e, "set size of", path))?;
        rustix::fs::futimens(&file, &times(now.modified)).map_err(|e| failed(e, "set times of", path))?;
        Ok(true)
    }

    /// Replaces an entry of the layer. The times of its directory stay as indexed.
    fn replace(&self, path: &[u8], attributes: Attributes) -> Result<()> {
        let name = OsStr::from_bytes(REPLACEMENT);
        // An entry that a failed replacement has left.
        let _ = rustix::fs::unlinkat(&self.outside, name, AtFlags::empty());
        let fill = Fill {
            fs: &*self.fs,
            layer: self.layer.as_fd(),
            squash: self.squash.as_ref(),
            xattrs: self.fs.capabilities().xattrs,
            whole: &self.in_memory,
        };
        fill.make_file(self.outside.as_fd(), REPLACEMENT, &attributes, path)?;
        let (directory, last) = split(path);
        let directory = OsStr::from_bytes(if directory.is_empty() { b"." } else { directory });
        let at = open_dir(self.layer.as_fd(), directory.as_bytes())?;
        let before = rustix::fs::fstat(&at).map_err(|e| failed(e, "stat the directory of", path))?;
        rustix::fs::renameat(&self.outside, name, &at, OsStr::from_bytes(last))
            .map_err(|e| failed(e, "replace", path))?;
        let modified = Time { seconds: before.st_mtime, nanoseconds: before.st_mtime_nsec as u32 };
        rustix::fs::utimensat(&self.layer, directory, &times(modified), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| failed(e, "set times of the directory of", path))
    }

    /// Returns whether a program that looks the path up now finds the file. It does not if another
    /// program used the name when the file was shown; see
    /// [`drop_unused_names`](MountedMetadata::drop_unused_names).
    pub fn is_visible(&self, path: &[u8], now: FileNow) -> bool {
        let Ok(Some(root)) = self.root() else { return false };
        let found = rustix::fs::statat(&root, OsStr::from_bytes(path), AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| {
            let modified = (found.st_mtime, found.st_mtime_nsec as u32);
            found.st_size as u64 == now.size_bytes
                && modified == (now.modified.seconds, now.modified.nanoseconds)
        })
    }

    /// Makes overlayfs look up names again, except those in use: the kernel drops them whenever a
    /// mount is reconfigured, even without a changed option.
    pub fn drop_unused_names(&self) -> Result<()> {
        let reconfigure = || {
            let Some(root) = self.root()? else { return Ok(()) };
            let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
            let fs = fspick(&root, "", flags)?;
            if self.is_read_only {
                fsconfig_set_flag(fs.as_fd(), "ro")?;
            }
            fsconfig_reconfigure(fs.as_fd())
        };
        reconfigure().map_err(|e: Errno| failed(e, "drop cached names of", b"the overlay mount"))
    }

    /// Returns the root of the mount, or `None` if the mount is not attached yet, or another one is
    /// at its path.
    fn root(&self) -> rustix::io::Result<Option<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.mounted_at, flags, Mode::empty())?;
        Ok((rustix::fs::fstat(&root)?.st_dev == self.device).then_some(root))
    }
}
