//! Creates a described tree on a real file system, as far as the user and the file system permit.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use quell_vfs::Kind;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chmodat, chownat,
    mknodat, utimensat,
};

use crate::tree::{Tree, TreeNode};

/// An entry that could not be created, and the reason. Tests report it as skipped.
#[derive(Debug)]
pub struct CannotMake {
    /// The path of the node.
    pub path: PathBuf,
    /// The operation that failed.
    pub what: &'static str,
    /// The error of the system.
    pub cause: io::Error,
}

impl std::fmt::Display for CannotMake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}: {}", self.path.display(), self.what, self.cause)
    }
}

/// Creates the tree in the empty directory `at`. Owners are set only if the caller is root. Status
/// change times, block counts and the sizes of directories are those of the file system.
pub fn make_on_disk(tree: &Tree, at: &Path) -> Result<(), CannotMake> {
    let mut first_names: Vec<Option<PathBuf>> = vec![None; tree.node_count()];
    let paths = tree.paths();
    let on_disk = |path: &[u8]| match path {
        b"" => at.to_path_buf(),
        _ => at.join(OsStr::from_bytes(path)),
    };
    for (path, number) in &paths {
        let (path, node) = (on_disk(path), tree.node(*number));
        let failed = |what| {
            let path = path.clone();
            move |cause: io::Error| CannotMake { path, what, cause }
        };
        if let Some(first) = &first_names[*number] {
            std::fs::hard_link(first, &path).map_err(failed("link"))?;
            continue;
        }
        first_names[*number] = Some(path.clone());
        make(node, &path).map_err(failed("make"))?;
    }
    // Children first: creating them changed the times of their directory, and the directory's mode
    // may deny access to them.
    for (path, number) in paths.iter().rev() {
        let (path, node) = (on_disk(path), tree.node(*number));
        dress(node, &path).map_err(|(what, cause)| CannotMake { path: path.clone(), what, cause })?;
    }
    Ok(())
}

fn make(node: &TreeNode, path: &Path) -> io::Result<()> {
    let file_type = match node.kind {
        Kind::Dir if path.exists() => return Ok(()),
        Kind::Dir => return std::fs::create_dir(path),
        Kind::Symlink => return std::os::unix::fs::symlink(OsStr::from_bytes(&node.target), path),
        Kind::File => {
            let file = std::fs::File::create_new(path)?;
            file.write_all_at(&node.data, 0)?;
            return file.set_len(node.size_bytes);
        }
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharacterDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    };
    Ok(mknodat(CWD, path, file_type, Mode::from_raw_mode(0o600), node.rdev)?)
}

fn dress(node: &TreeNode, path: &Path) -> Result<(), (&'static str, io::Error)> {
    let is_link = node.kind == Kind::Symlink;
    for (name, value) in &node.xattrs {
        rustix::fs::lsetxattr(path, OsStr::from_bytes(name), value, XattrFlags::empty())
            .map_err(|e| ("set attribute", e.into()))?;
    }
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(node.uid), Gid::from_raw(node.gid));
        chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| ("give to its owner", e.into()))?;
    }
    if !is_link {
        chmodat(CWD, path, Mode::from_raw_mode(node.permissions), AtFlags::empty())
            .map_err(|e| ("set mode", e.into()))?;
    }
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec {
            tv_sec: node.modified.seconds,
            tv_nsec: node.modified.nanoseconds.into(),
        },
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| ("set time", e.into()))
}
