//! The files of the tree that a store has adopted. They may belong to other users and change at any
//! time: each is opened below the descriptor of the tree without following symbolic links, and
//! compared with its state at the adoption. docs/formats/batch.md has the rules.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_batch_service::{AcceptedFile, AdoptedFile};
use quell_posix::{Dir, OpenFile, PosixDir, Stat};
use quell_vfs::{Error, ErrorKind, Result, errno};

/// The file of a store with the inode number and the path of its tree.
pub(crate) const ADOPTED: &[u8] = b"adopted";
/// The largest length of a path on Linux, in bytes.
const TREE_PATH_BYTES_MAX: usize = 4096;
/// The largest length of the decimal inode number of the tree, in bytes.
const INODE_BYTES_MAX: usize = 20;
const OPEN: &str = "open the adopted file";

/// The adopted tree of a store, as this process found it when it opened the store.
pub(crate) struct AdoptedTree {
    pub(crate) path: PathBuf,
    /// The directory, or the error of its open(2). It is not opened later: another directory, or a
    /// mount of this store, may be at its path then.
    top: Result<Top, Error>,
}

struct Top {
    dir: Arc<dyn Dir>,
    device: u64,
}

impl fmt::Debug for AdoptedTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdoptedTree").field("path", &self.path).finish_non_exhaustive()
    }
}

/// An open file of the adopted tree.
pub(crate) struct AdoptedHandle {
    file: Box<dyn OpenFile>,
    adopted: AdoptedFile,
}

impl AdoptedTree {
    /// Opens the tree of the store in a directory, if it has one. It is not an error if the tree
    /// cannot be opened: its files cannot be opened then.
    ///
    /// # Errors
    /// `Damaged` if the file with its path does not have its format; the errors of files.
    pub(crate) fn of_store(store: &PosixDir) -> Result<Option<Arc<AdoptedTree>>> {
        let file = match store.open_file(ADOPTED) {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut bytes = vec![0; INODE_BYTES_MAX + TREE_PATH_BYTES_MAX + 3];
        let length = file.read_at(&mut bytes, 0)?;
        let Some((inode, path)) = decode(&bytes[..length]) else {
            let source = "it must have the inode number of the adopted tree, a newline, the absolute path, \
                          and a newline";
            return Err(Error {
                source: Some(source.into()),
                ..Error::new(ErrorKind::Damaged, "read", ADOPTED)
            });
        };
        let path = PathBuf::from(OsStr::from_bytes(path));
        let top = open_top(&path, inode);
        Ok(Some(Arc::new(AdoptedTree { path, top })))
    }

    /// Returns the error of the open(2) of the tree, if it failed.
    pub(crate) fn problem(&self) -> Option<&Error> {
        self.top.as_ref().err()
    }

    /// Opens a file.
    ///
    /// # Errors
    /// `Stale` if it does not exist any more, or was changed since the adoption;
    /// `PermissionDenied`; other errors of open(2).
    pub(crate) fn open(&self, adopted: &AdoptedFile) -> Result<AdoptedHandle> {
        let (file, stat) = self.find(adopted, |dir, name| dir.open_file_and_stat(name))?;
        check(adopted, &stat)?;
        Ok(AdoptedHandle { file, adopted: adopted.clone() })
    }

    /// Returns the present state of a file, which may differ from the state at the adoption.
    ///
    /// # Errors
    /// `Stale` if there is no regular file at its path; the errors of stat(2).
    pub(crate) fn present(&self, adopted: &AdoptedFile) -> Result<AcceptedFile> {
        let stat = self.find(adopted, |dir, name| dir.stat(name))?;
        let file = adopted_file(adopted.path.clone(), &stat);
        match stat.kind() {
            Some(quell_vfs::Kind::File) => {
                Ok(AcceptedFile { file, mode: stat.mode, uid: stat.uid, gid: stat.gid })
            }
            _ => Err(stale(adopted, "it is no longer a regular file")),
        }
    }

    /// Calls `find` with the directory and the name of a file.
    fn find<T>(&self, adopted: &AdoptedFile, find: impl FnOnce(&dyn Dir, &[u8]) -> Result<T>) -> Result<T> {
        let top = self.top.as_ref().map_err(|error| {
            stale(adopted, &format!("the adopted tree was not found when the store was opened: {error}"))
        })?;
        let gone = |error: Error| match error.kind {
            // A directory or the file was removed, or replaced by a link, a socket or a directory.
            ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::Os(errno::ELOOP | errno::ENXIO) => stale(adopted, "it was removed or replaced"),
            _ => Error { operation: OPEN, subject: adopted.path.clone(), ..error },
        };
        let mut names: Vec<&[u8]> = adopted.path.split(|byte| *byte == b'/').collect();
        let name = names.pop().unwrap_or_default();
        let mut dir = top.dir.clone();
        for name in names {
            dir = dir.enter(name).map_err(gone)?;
            // The cached attributes need no request, which a mount of this store could not answer
            // now.
            if dir.stat_self_cached().map_err(gone)?.device != top.device {
                return Err(stale(adopted, "another file system is mounted above it"));
            }
        }
        find(&*dir, name).map_err(gone)
    }
}

impl AdoptedHandle {
    /// Reads bytes. Errors: `Stale` if the file was changed since the adoption.
    pub(crate) fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let found = self.file.read_at(into, offset)?;
        // The times change before the bytes, so a change before the read is found.
        self.check()?;
        Ok(found)
    }

    /// Returns the next range with data, as [`OpenFile::next_data`] does.
    pub(crate) fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        self.file.next_data(offset)
    }

    /// Checks that the file was not changed since the adoption.
    pub(crate) fn check(&self) -> Result<()> {
        check(&self.adopted, &self.file.stat()?)
    }
}

/// Returns the content of the file `adopted`.
pub(crate) fn encode(inode: u64, path: &Path) -> Vec<u8> {
    [inode.to_string().as_bytes(), b"\n", path.as_os_str().as_bytes(), b"\n"].concat()
}

/// Returns the inode number and the path in the content of the file `adopted`.
fn decode(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let inode = std::str::from_utf8(&bytes[..end]).ok()?.parse().ok()?;
    let path = &bytes[end + 1..];
    let path = path.strip_suffix(b"\n").unwrap_or(path);
    let is_path = path.starts_with(b"/") && path.len() <= TREE_PATH_BYTES_MAX && !path.contains(&0);
    is_path.then_some((inode, path))
}

/// Opens the directory at the path of a tree if it is the tree, and not, for example, the root of a
/// mount over it.
fn open_top(path: &Path, inode: u64) -> Result<Top> {
    let dir = PosixDir::start(path)?;
    let stat = dir.stat_self()?;
    check_no_mount_of_quell(path, &stat)?;
    if stat.inode != inode {
        return Err(refused(ErrorKind::Stale, path, "another directory is at its path"));
    }
    Ok(Top { dir: Arc::new(dir), device: stat.device })
}

/// Refuses a tree in a mount of Quell: a mount over an adopted tree has the same names, and its
/// inode numbers can be equal to the inode numbers of the tree.
///
/// # Errors
/// `Unsupported`.
pub(crate) fn check_no_mount_of_quell(path: &Path, stat: &Stat) -> Result<()> {
    // Without the list, the inode number alone is compared.
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    match is_mount_of_quell(&mounts, stat.device) {
        true => {
            let reason = "a file system of Quell is mounted at its path, possibly a batch; unmount it";
            Err(refused(ErrorKind::Unsupported, path, reason))
        }
        false => Ok(()),
    }
}

/// Returns whether a device is a FUSE mount of Quell in the text of mountinfo. Its lines have the
/// form `id parent major:minor root mountpoint options ... - type source options`.
fn is_mount_of_quell(mountinfo: &[u8], device: u64) -> bool {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    mountinfo.split(|byte| *byte == b'\n').any(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        words.nth(2) == Some(number.as_bytes())
            && words.skip_while(|word| *word != b"-").nth(1) == Some(b"fuse.quell")
    })
}

fn refused(kind: ErrorKind, path: &Path, reason: &str) -> Error {
    let source = Some(reason.to_owned().into());
    Error { source, ..Error::new(kind, "open the adopted tree", path.as_os_str().as_bytes()) }
}

/// Returns the description of a file of a tree.
pub(crate) fn adopted_file(path: Vec<u8>, stat: &Stat) -> AdoptedFile {
    AdoptedFile {
        path,
        inode: stat.inode,
        size_bytes: stat.size_bytes,
        modified: stat.modified.into(),
        changed: stat.changed.into(),
    }
}

fn check(adopted: &AdoptedFile, stat: &Stat) -> Result<()> {
    let is_same = adopted.inode == stat.inode
        && adopted.size_bytes == stat.size_bytes
        && adopted.modified == stat.modified.into()
        && adopted.changed == stat.changed.into();
    if is_same { Ok(()) } else { Err(stale(adopted, "it was changed since the adoption")) }
}

fn stale(adopted: &AdoptedFile, reason: &str) -> Error {
    let source = Some(reason.to_owned().into());
    Error { source, ..Error::new(ErrorKind::Stale, OPEN, adopted.path.clone()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_with_the_path_of_the_tree_is_decoded() {
        let path = Path::new("/a/new\nline");
        assert_eq!(decode(&encode(77, path)), Some((77, &b"/a/new\nline"[..])));
        for bad in ["", "7", "7\n", "/a\n", "7\na\n", "x\n/a\n", "-7\n/a\n", "7\n/a\0b\n"] {
            assert_eq!(decode(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn mounts_of_quell_are_recognized_by_their_device() {
        let mounts = b"36 35 0:40 / /t rw,relatime shared:1 - fuse.quell quell rw\n\
                       37 35 0:41 / /u rw - tmpfs fuse.quell rw\n";
        assert!(is_mount_of_quell(mounts, rustix::fs::makedev(0, 40)));
        assert!(!is_mount_of_quell(mounts, rustix::fs::makedev(0, 41)));
        assert!(!is_mount_of_quell(mounts, rustix::fs::makedev(0, 4)));
    }
}
