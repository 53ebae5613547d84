//! Stores that a program has open, and what it asks of them by path.

use std::path::Path;
use std::sync::Arc;

use quell_fs::{
    Attributes, Change, Cursor, Error, ErrorKind, FileSystem, Kind, New, Open, Rename, Result, Writable,
    errno,
};
use quell_log::{Choices, Flattened, LogFs};

use crate::file::StoreFile;
use crate::owned::Owned;
use crate::walk::{Held, Place, place, resolve};

/// Processes that make and remove one name by turns must not keep a third one from opening it for ever.
const TRIES_MAX: usize = 100;

/// What becomes of a name that is not there, or is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Create {
    #[default]
    Never,
    IfMissing,
    /// It is `Exists` if there is something of that name.
    New,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct How {
    pub read: bool,
    pub write: bool,
    pub create: Create,
    /// The file has no bytes from this moment on. Only with `write`.
    pub truncate: bool,
    /// Of a file that is made: the lower twelve bits of `st_mode`, the process's umask not yet taken away.
    pub permissions: u32,
}

impl How {
    pub const READ: How =
        How { read: true, write: false, create: Create::Never, truncate: false, permissions: 0o666 };
    pub const WRITE: How = How { read: false, write: true, ..How::READ };
    pub const READ_WRITE: How = How { write: true, ..How::READ };
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub kind: Kind,
}

/// Stores that are open as one tree of files. Cheap to clone; what is opened through it keeps it open.
#[derive(Debug, Clone)]
pub struct Store(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    // A child that dropped it would delete what its parent has removed and still reads.
    fs: Owned<LogFs>,
    umask: u32,
}

impl Store {
    /// Opens the directories `stores` as one tree, and makes what each of them keeps for itself where it is missing. The
    /// directories themselves must be there. Everybody who opens the tree names the same ones.
    ///
    /// Flattening in the background (`flattens_later`) is for mounts: who opens a store here waits for it in the close, and no
    /// thread is left that a fork or the end of the process would cut off.
    pub fn open(stores: &[impl AsRef<Path>], choices: Choices) -> Result<Store> {
        let choices = Choices { flattens_later: false, ..choices };
        let fs = Owned::new(quell_stack::open_log(stores, choices)?);
        Ok(Store(Arc::new(Opened { fs, umask: umask()? })))
    }

    /// The file system, for the process that opened it.
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

    /// Opens the regular file at `path`. Errors: `NotFound`, `Exists`, `IsADirectory`; `ELOOP` for a symbolic link.
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
                // Somebody was quicker: it is there now.
                Err(error) if error.kind == ErrorKind::Exists && how.create == Create::IfMissing => {}
                Err(error) => return Err(error),
            }
        }
        refused(ErrorKind::Os(errno::EAGAIN))
    }

    pub fn stat(&self, path: &[u8]) -> Result<Attributes> {
        Ok(resolve(self.fs()?, path)?.attributes)
    }

    /// Makes one index of what was published of a file, for all who open it from now on: with many writers that takes a fraction of
    /// the time. What is written afterwards is found beside it.
    pub fn flatten(&self, path: &[u8]) -> Result<Flattened> {
        let fs = self.fs()?;
        fs.flatten(resolve(fs, path)?.node())
    }

    /// Makes the file `size_bytes` long: bytes from there on are gone, or it is filled up with zeros.
    pub fn truncate(&self, path: &[u8], size_bytes: u64) -> Result<()> {
        let fs = self.fs()?;
        let node = resolve(fs, path)?;
        fs.change(node.node(), &Change { size_bytes: Some(size_bytes), ..Change::default() }).map(drop)
    }

    /// Errors: `Exists`.
    pub fn make_dir(&self, path: &[u8], permissions: u32) -> Result<()> {
        let fs = self.fs()?;
        let Some(Place { dir, name }) = place(fs, path)? else {
            return Err(Error::new(ErrorKind::Exists, "make directory", path));
        };
        Held::new(fs, fs.make_dir(dir.node(), &name, self.new_entry(permissions))?);
        Ok(())
    }

    /// Removes a file or symbolic link. Who has the file open keeps it until it is closed. Errors: `IsADirectory`.
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

    /// Gives `from` the name `to`, which is replaced if it is there.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let fs = self.fs()?;
        match (place(fs, from)?, place(fs, to)?) {
            (Some(old), Some(new)) => {
                fs.rename(old.dir.node(), &old.name, new.dir.node(), &new.name, Rename::Replace)
            }
            _ => Err(Error::new(ErrorKind::InvalidInput, "rename", from)),
        }
    }

    /// The entries of a directory, without `.` and `..`, in no order that means anything.
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

/// What the process takes away from the permissions of what it makes. Asked of the kernel's list: the system call
/// cannot tell it without changing it for a moment, for all threads.
fn umask() -> Result<u32> {
    let path = "/proc/self/status";
    let status = std::fs::read_to_string(path).map_err(|cause| Error::from_io(cause, "read", path))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let mask = line.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok());
    mask.ok_or_else(|| Error::new(ErrorKind::Os(errno::EIO), "read", path))
}
