//! Operations by path on a file system of the contract.

use std::sync::Arc;

use quell_vfs::{
    Attributes, Change, Cursor, Error, ErrorKind, Kind, New, NodeId, Open, Rename, Result, Writable,
    WritableFile, errno,
};

use crate::file::ClientFile;
use crate::open_options::{Create, OpenOptions};
use crate::owned::Owned;
use crate::walk::{NodeGuard, ParentAndName, parent_and_name, resolve};

/// How often an open with `Create::IfMissing` starts again, because another process removed the
/// file after `create` found it and before `lookup` did. The result is then `EAGAIN`. No other
/// error is retried.
const OPEN_RACES_MAX: usize = 100;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name in the directory.
    pub name: Vec<u8>,
    /// The type of the node.
    pub kind: Kind,
}

/// A file system that this process uses by path. Clones are cheap; open files keep it open.
#[derive(Debug)]
pub struct Client<F> {
    // In a child process, dropping this would delete files that its parent has removed and still
    // reads.
    fs: Arc<Owned<F>>,
    umask: u32,
}

impl<F> Clone for Client<F> {
    fn clone(&self) -> Client<F> {
        Client { fs: Arc::clone(&self.fs), umask: self.umask }
    }
}

impl<F: Writable> Client<F> {
    /// Returns a client of a file system that only this process uses.
    pub fn new(fs: F) -> Result<Client<F>> {
        Ok(Client { fs: Arc::new(Owned::new(fs)), umask: umask()? })
    }

    /// Returns the file system, in the process that opened it.
    pub(crate) fn fs(&self) -> Result<&F> {
        self.fs.get()
    }

    fn new_entry(&self, permissions: u32) -> New {
        New {
            permissions: permissions & 0o7777 & !self.umask,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// Opens the regular file at `path`. Errors: `NotFound`, `Exists`, `IsADirectory`; `ELOOP` for
    /// a symbolic link.
    pub fn open_file(&self, path: &[u8], options: OpenOptions) -> Result<ClientFile<F>> {
        let refused = |kind| Err(Error::new(kind, "open", path));
        let is_valid = options.write || options.read && !options.truncate;
        if !is_valid {
            return refused(ErrorKind::InvalidInput);
        }
        let fs = self.fs()?;
        let Some(ParentAndName { parent, name }) = parent_and_name(fs, path)? else {
            return refused(ErrorKind::IsADirectory);
        };
        let open = Open {
            read: options.read,
            write: options.write,
            truncate: options.truncate,
            process: self.fs.process(),
        };
        for _ in 0..OPEN_RACES_MAX {
            if options.create != Create::New
                && let Some(attributes) = fs.lookup(parent.node(), &name)?
            {
                let found = NodeGuard::new(fs, attributes);
                match attributes.kind {
                    Kind::File => {}
                    Kind::Symlink => return refused(ErrorKind::Os(errno::ELOOP)),
                    _ => return refused(ErrorKind::IsADirectory),
                }
                let file = fs.open_as(found.node(), open)?;
                return Ok(self.opened(found.into_attributes().node, file, options));
            }
            if options.create == Create::Never {
                return refused(ErrorKind::NotFound);
            }
            match fs.create(parent.node(), &name, self.new_entry(options.permissions), open) {
                Ok((attributes, file)) => {
                    return Ok(self.opened(attributes.node, file, options));
                }
                // Another process has created it meanwhile.
                Err(error) if error.kind == ErrorKind::Exists && options.create == Create::IfMissing => {}
                Err(error) => return Err(error),
            }
        }
        refused(ErrorKind::Os(errno::EAGAIN))
    }

    fn opened(&self, node: NodeId, file: Box<dyn WritableFile>, options: OpenOptions) -> ClientFile<F> {
        ClientFile::new(Arc::clone(&self.fs), node, file, options)
    }

    /// Returns the attributes of the entry at `path`.
    pub fn stat(&self, path: &[u8]) -> Result<Attributes> {
        Ok(resolve(self.fs()?, path)?.attributes)
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
        let Some(ParentAndName { parent, name }) = parent_and_name(fs, path)? else {
            return Err(Error::new(ErrorKind::Exists, "make directory", path));
        };
        NodeGuard::new(fs, fs.make_dir(parent.node(), &name, self.new_entry(permissions))?);
        Ok(())
    }

    /// Removes a file or symbolic link. Open files keep their data until they are closed. Errors:
    /// `IsADirectory`.
    pub fn remove(&self, path: &[u8]) -> Result<()> {
        let fs = self.fs()?;
        match parent_and_name(fs, path)? {
            Some(ParentAndName { parent, name }) => fs.remove(parent.node(), &name),
            None => Err(Error::new(ErrorKind::IsADirectory, "remove", path)),
        }
    }

    /// Removes an empty directory. Errors: `NotEmpty`, `NotADirectory`.
    pub fn remove_dir(&self, path: &[u8]) -> Result<()> {
        let fs = self.fs()?;
        match parent_and_name(fs, path)? {
            Some(ParentAndName { parent, name }) => fs.remove_dir(parent.node(), &name),
            None => Err(Error::new(ErrorKind::InvalidInput, "remove directory", path)),
        }
    }

    /// Renames `from` to `to`, and replaces an existing entry of that name.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let fs = self.fs()?;
        match (parent_and_name(fs, from)?, parent_and_name(fs, to)?) {
            (Some(old), Some(new)) => {
                fs.rename(old.parent.node(), &old.name, new.parent.node(), &new.name, Rename::Replace)
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
