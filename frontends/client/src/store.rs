//! The open stores of a program, and operations on them by path.

use std::path::Path;
use std::sync::Arc;

use quell_log::{Choices, Flattened, LogFs};
use quell_vfs::{
    Attributes, Change, Cursor, Error, ErrorKind, FileSystem, Kind, New, Open, Rename, Result, Writable,
    errno,
};

use crate::file::StoreFile;
use crate::owned::Owned;
use crate::walk::{Held, Place, place, resolve};

/// The number of attempts to open a file whose name other processes repeatedly create and remove.
const TRIES_MAX: usize = 100;

/// Whether an open creates the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Create {
    #[default]
    Never,
    IfMissing,
    /// The file must not exist; otherwise the open fails with `Exists`.
    New,
}

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct How {
    pub read: bool,
    pub write: bool,
    pub create: Create,
    /// Truncate the file to 0 bytes. Only with `write`.
    pub truncate: bool,
    /// For a file that is created: the lower twelve bits of `st_mode`, before the umask of the
    /// process is applied.
    pub permissions: u32,
}

impl How {
    pub const READ: How =
        How { read: true, write: false, create: Create::Never, truncate: false, permissions: 0o666 };
    pub const WRITE: How = How { read: false, write: true, ..How::READ };
    pub const READ_WRITE: How = How { write: true, ..How::READ };
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub kind: Kind,
}

/// Stores opened as one directory tree. Clones are cheap; open files keep it open.
#[derive(Debug, Clone)]
pub struct Store(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    // In a child process, dropping this would delete files that its parent has removed and still
    // reads.
    fs: Owned<LogFs>,
    umask: u32,
}

impl Store {
    /// Opens the directories `stores` as one directory tree. The directories must exist; missing
    /// internal files in them are created. All processes must open the tree with the same
    /// directories.
    ///
    /// Flattening in the background (`flattens_later`) is only for mounts. Here a close waits for
    /// it, so that no thread remains that a fork or the end of the process would interrupt.
    pub fn open(stores: &[impl AsRef<Path>], choices: Choices) -> Result<Store> {
        let choices = Choices { flattens_later: false, ..choices };
        let fs = Owned::new(quell_mount_spec::open_log(stores, choices)?);
        Ok(Store(Arc::new(Opened { fs, umask: umask()? })))
    }

    /// Returns the file system, in the process that opened it.
    pub(crate) fn fs(&self) -> Result<&LogFs> {
        self.0.fs.get()
    }

    fn new_entry(&self, permissions: u32) -> New {
        New {
            permissions: permissions & 0o7777 & !self.0.umask,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// Opens the regular file at `path`. Errors: `NotFound`, `Exists`, `IsADirectory`; `ELOOP` for
    /// a symbolic link.
    pub fn open_file(&self, path: &[u8], how: How) -> Result<StoreFile> {
        let refused = |kind| Err(Error::new(kind, "open", path));
        let has_sense = how.write || how.read && !how.truncate;
        if !has_sense {
            return refused(ErrorKind::InvalidInput);
        }
        let fs = self.fs()?;
        let Some(Place { dir, name }) = place(fs, path)? else { return refused(ErrorKind::IsADirectory) };
        let open =
            Open { read: how.read, write: how.write, truncate: how.truncate, process: self.0.fs.process() };
        for _ in 0..TRIES_MAX {
            if how.create != Create::New
                && let Some(attributes) = fs.lookup(dir.node(), &name)?
            {
                let found = Held::new(fs, attributes);
                match attributes.kind {
                    Kind::File => {}
                    Kind::Symlink => return refused(ErrorKind::Os(errno::ELOOP)),
                    _ => return refused(ErrorKind::IsADirectory),
                }
                let file = fs.open_as(found.node(), open)?;
                return Ok(StoreFile::new(self.clone(), found.keep().node, file, how));
            }
            if how.create == Create::Never {
                return refused(ErrorKind::NotFound);
            }
            match fs.create(dir.node(), &name, self.new_entry(how.permissions), open) {
                Ok((attributes, file)) => {
                    return Ok(StoreFile::new(self.clone(), attributes.node, file, how));
                }
                // Another process has created it meanwhile.
                Err(error) if error.kind == ErrorKind::Exists && how.create == Create::IfMissing => {}
                Err(error) => return Err(error),
            }
        }
        refused(ErrorKind::Os(errno::EAGAIN))
    }

    pub fn stat(&self, path: &[u8]) -> Result<Attributes> {
        Ok(resolve(self.fs()?, path)?.attributes)
    }

    /// Merges the indexes of the published data of a file into one, which makes later opens of a
    /// file with many writers much faster. Data written afterwards is found through its own index.
    pub fn flatten(&self, path: &[u8]) -> Result<Flattened> {
        let fs = self.fs()?;
        fs.flatten(resolve(fs, path)?.node())
    }

    /// Sets the size of the file. Data beyond it is removed; a file that becomes longer is filled
    /// with zeros.
    pub fn truncate(&self, path: &[u8], size_bytes: u64) -> Result<()> {
        let fs = self.fs()?;
        let node = resolve(fs, path)?;
        fs.change(node.node(), &Change { size_bytes: Some(size_bytes), ..Change::default() }).map(drop)
    }

    /// Creates a directory. Errors: `Exists`.
    pub fn make_dir(&self, path: &[u8], permissions: u32) -> Result<()> {
        let fs = self.fs()?;
        let Some(Place { dir, name }) = place(fs, path)? else {
            return Err(Error::new(ErrorKind::Exists, "make directory", path));
        };
        Held::new(fs, fs.make_dir(dir.node(), &name, self.new_entry(permissions))?);
        Ok(())
    }

    /// Removes a file or symbolic link. Open files keep their data until they are closed. Errors:
    /// `IsADirectory`.
    pub fn remove(&self, path: &[u8]) -> Result<()> {
        let fs = self.fs()?;
        match place(fs, path)? {
            Some(Place { dir, name }) => fs.remove(dir.node(), &name),
            None => Err(Error::new(ErrorKind::IsADirectory, "remove", path)),
        }
    }

    /// Removes an empty directory. Errors: `NotEmpty`, `NotADirectory`.
    pub fn remove_dir(&self, path: &[u8]) -> Result<()> {
        let fs = self.fs()?;
        match place(fs, path)? {
            Some(Place { dir, name }) => fs.remove_dir(dir.node(), &name),
            None => Err(Error::new(ErrorKind::InvalidInput, "remove directory", path)),
        }
    }

    /// Renames `from` to `to`, and replaces an existing entry of that name.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let fs = self.fs()?;
        match (place(fs, from)?, place(fs, to)?) {
            (Some(old), Some(new)) => {
                fs.rename(old.dir.node(), &old.name, new.dir.node(), &new.name, Rename::Replace)
            }
            _ => Err(Error::new(ErrorKind::InvalidInput, "rename", from)),
        }
    }

    /// Returns the entries of a directory, without `.` and `..`, in no particular order.
    pub fn list(&self, path: &[u8]) -> Result<Vec<Entry>> {
        let fs = self.fs()?;
        let dir = resolve(fs, path)?;
        let mut entries = Vec::new();
        fs.list(dir.node(), Cursor::START, &mut |entry| {
            entries.push(Entry { name: entry.name.to_vec(), kind: entry.attributes.kind });
            true
        })?;
        Ok(entries)
    }
}

/// Returns the umask of the process. It is read from `/proc`, because umask(2) can only return it
/// by changing it for all threads.
fn umask() -> Result<u32> {
    let path = "/proc/self/status";
    let status = std::fs::read_to_string(path).map_err(|cause| Error::from_io(cause, "read", path))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let mask = line.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok());
    mask.ok_or_else(|| Error::new(ErrorKind::Os(errno::EIO), "read", path))
}
