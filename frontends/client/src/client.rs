//! Operations by path on a file system of the contract.

use std::sync::Arc;

use quell_vfs::{
    Attributes, Change, Context, Cursor, Error, ErrorKind, Kind, NewEntry, NodeId, NodeRef, OpenMode,
    ParentAndName, Rename, Result, Writable, WritableFile, errno, resolve, resolve_parent,
};

use crate::file::ClientFile;
use crate::open_options::{Create, OpenOptions};
use crate::owned::Owned;

/// The maximum number of attempts of an open with `Create::IfMissing`. An attempt fails if `lookup`
/// does not find the file and `create` then reports that it exists, because other processes create
/// and remove it. After the last attempt the open returns `EAGAIN`. No other error is retried.
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
#[derive(Debug, Clone)]
pub struct Client {
    // In a child process, dropping this would delete files that its parent has removed and still
    // reads.
    fs: Arc<Owned<Arc<dyn Writable>>>,
    umask: u32,
}

impl Client {
    /// Returns a client of a file system object that belongs to this process.
    pub fn new(fs: Arc<dyn Writable>) -> Result<Client> {
        Ok(Client::with_umask(fs, umask()?))
    }

    pub(crate) fn with_umask(fs: Arc<dyn Writable>, umask: u32) -> Client {
        Client { fs: Arc::new(Owned::new(fs)), umask }
    }

    /// Returns the file system, in the process that opened it.
    fn fs(&self) -> Result<&dyn Writable> {
        Ok(&**self.fs.get()?)
    }

    /// Returns whether there is an open file, or another client of the file system.
    pub(crate) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.fs) > 1
    }

    /// Returns the context of all operations: the permissions and the ID of this process.
    fn context(&self) -> Context<'static> {
        Context::for_process(self.fs.process())
    }

    fn new_entry(&self, permissions: u32) -> NewEntry {
        NewEntry {
            permissions: permissions & 0o7777 & !self.umask,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// Opens the regular file at `path`. Errors: `NotFound`, `Exists`, `IsADirectory`; `ELOOP` for
    /// a symbolic link.
    pub fn open_file(&self, path: &[u8], options: OpenOptions) -> Result<ClientFile> {
        let refused = |kind| Err(Error::new(kind, "open", path));
        let is_valid = options.write || options.read && !options.truncate;
        if !is_valid {
            return refused(ErrorKind::InvalidInput);
        }
        let fs = self.fs()?;
        let context = self.context();
        let Some(ParentAndName { parent, name }) = resolve_parent(fs, &context, path)? else {
            return refused(ErrorKind::IsADirectory);
        };
        let mode = OpenMode { read: options.read, write: options.write, truncate: options.truncate };
        for _ in 0..OPEN_RACES_MAX {
            if options.create != Create::New
                && let Some(found) = fs.lookup(&context, parent.node(), name)?
            {
                match found.kind {
                    Kind::File => {}
                    Kind::Symlink => return refused(ErrorKind::Os(errno::ELOOP)),
                    _ => return refused(ErrorKind::IsADirectory),
                }
                let file = fs.open_as(&context, found.node(), mode)?;
                return Ok(self.opened(found, file, options));
            }
            if options.create == Create::Never {
                return refused(ErrorKind::NotFound);
            }
            match fs.create(&context, parent.node(), name, self.new_entry(options.permissions), mode) {
                Ok((created, file)) => return Ok(self.opened(created, file, options)),
                // Another process has created it meanwhile.
                Err(error) if error.kind == ErrorKind::Exists && options.create == Create::IfMissing => {}
                Err(error) => return Err(error),
            }
        }
        refused(ErrorKind::Os(errno::EAGAIN))
    }

    /// Opens an existing file with `open`. Errors: `InvalidInput` for options that do not read, or
    /// that create or truncate.
    pub(crate) fn open_existing(
        &self,
        path: &[u8],
        options: OpenOptions,
        open: impl FnOnce(&Context<'_>, NodeId, OpenMode) -> Result<Box<dyn WritableFile>>,
    ) -> Result<ClientFile> {
        let OpenOptions { read, write, create, truncate, .. } = options;
        if !read || truncate || create != Create::Never {
            return Err(Error::new(ErrorKind::InvalidInput, "open", path));
        }
        let fs = self.fs()?;
        let context = self.context();
        let found = resolve(fs, &context, path)?;
        match found.kind {
            Kind::File => {}
            Kind::Symlink => return Err(Error::new(ErrorKind::Os(errno::ELOOP), "open", path)),
            _ => return Err(Error::new(ErrorKind::IsADirectory, "open", path)),
        }
        let file = open(&context, found.node(), OpenMode { read, write, truncate })?;
        Ok(self.opened(found, file, options))
    }

    /// Returns the open file, which takes over the reference to its node.
    fn opened(&self, found: NodeRef<'_>, file: Box<dyn WritableFile>, options: OpenOptions) -> ClientFile {
        ClientFile::new(Arc::clone(&self.fs), found.into_attributes().node, file, options)
    }

    /// Returns the attributes of the entry at `path`.
    pub fn stat(&self, path: &[u8]) -> Result<Attributes> {
        let found = self.fs()?.attributes_of_path(&self.context(), path)?;
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, "stat", path))
    }

    /// Sets the size of the file. Data beyond it is removed; a file that becomes longer is filled
    /// with zeros.
    pub fn truncate(&self, path: &[u8], size_bytes: u64) -> Result<()> {
        let fs = self.fs()?;
        let context = self.context();
        let found = resolve(fs, &context, path)?;
        let change = Change { size_bytes: Some(size_bytes), ..Change::default() };
        fs.change(&context, found.node(), &change).map(drop)
    }

    /// Creates a directory. Errors: `Exists`.
    pub fn make_dir(&self, path: &[u8], permissions: u32) -> Result<()> {
        let fs = self.fs()?;
        let context = self.context();
        let Some(ParentAndName { parent, name }) = resolve_parent(fs, &context, path)? else {
            return Err(Error::new(ErrorKind::Exists, "create directory", path));
        };
        fs.make_dir(&context, parent.node(), name, self.new_entry(permissions)).map(drop)
    }

    /// Removes a file or symbolic link. Open files keep their data until they are closed. Errors:
    /// `IsADirectory`.
    pub fn remove(&self, path: &[u8]) -> Result<()> {
        let fs = self.fs()?;
        let context = self.context();
        match resolve_parent(fs, &context, path)? {
            Some(ParentAndName { parent, name }) => fs.remove(&context, parent.node(), name),
            None => Err(Error::new(ErrorKind::IsADirectory, "remove", path)),
        }
    }

    /// Removes an empty directory. Errors: `NotEmpty`, `NotADirectory`.
    pub fn remove_dir(&self, path: &[u8]) -> Result<()> {
        let fs = self.fs()?;
        let context = self.context();
        match resolve_parent(fs, &context, path)? {
            Some(ParentAndName { parent, name }) => fs.remove_dir(&context, parent.node(), name),
            None => Err(Error::new(ErrorKind::InvalidInput, "remove directory", path)),
        }
    }

    /// Renames `from` to `to`, and replaces an existing entry of that name.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let fs = self.fs()?;
        let context = self.context();
        match (resolve_parent(fs, &context, from)?, resolve_parent(fs, &context, to)?) {
            (Some(old), Some(new)) => {
                let (from_dir, to_dir) = (old.parent.node(), new.parent.node());
                fs.rename(&context, from_dir, old.name, to_dir, new.name, Rename::Replace)
            }
            _ => Err(Error::new(ErrorKind::InvalidInput, "rename", from)),
        }
    }

    /// Returns the entries of a directory, without `.` and `..`, in no particular order.
    pub fn list(&self, path: &[u8]) -> Result<Vec<Entry>> {
        let fs = self.fs()?;
        let context = self.context();
        let dir = resolve(fs, &context, path)?;
        let mut entries = Vec::new();
        fs.list(&context, dir.node(), Cursor::START, &mut |entry| {
            entries.push(Entry { name: entry.name.to_vec(), kind: entry.kind });
            true
        })?;
        Ok(entries)
    }
}

/// Returns the umask of the process. It is read from `/proc`, because umask(2) can only return it
/// by changing it for all threads.
pub(crate) fn umask() -> Result<u32> {
    let path = "/proc/self/status";
    let status = std::fs::read_to_string(path).map_err(|cause| Error::from_io(cause, "read", path))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let mask = line.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok());
    mask.ok_or_else(|| Error::new(ErrorKind::Os(errno::EIO), "read", path))
}
