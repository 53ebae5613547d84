//! The data files of a store: `BATCH/XX/INODE` in its data directory, where XX are the last two
//! hexadecimal digits of the inode number. Files of the same batch and inode have different
//! versions: the name of a version other than 0 is `INODE.VERSION`.
//!
//! If a process ends between the creation of a data file and the change of its inode, or between
//! the removal of a file and the removal of its data file, the data file remains without an inode.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use quell_batch_service::{Content, DataFile};
use quell_posix::{OpenFile, PosixDir, WritableDir, WritableFile};
use quell_vfs::{Error, ErrorKind, Result, Space};
use rustix::process::geteuid;

use crate::access_list::{FileAccess, PrivateStore, Readers};
use crate::adopted::{AdoptedHandle, AdoptedTree};
use crate::data_names::{DIRS, batch_name, dir_name, file_name, incoming_name};
use crate::incoming::open_data_file;

const FILE_PERMISSIONS: u32 = 0o600;
const DIR_PERMISSIONS: u32 = 0o700;
/// The modes of files and directories in a store for a group. New entries of a directory with the
/// set-group-ID bit get its group.
const FILE_PERMISSIONS_OF_GROUP: u32 = 0o640;
pub(crate) const DIR_PERMISSIONS_OF_GROUP: u32 = 0o2750;
/// The number of existing data files of one inode that a creation skips.
const VERSIONS_MAX: u32 = 1000;

/// The data directory of a store, and the batch whose data files this mount writes.
pub(crate) struct Data {
    dir: Arc<dyn WritableDir>,
    /// The directory with the data files of other users, in a store for a group.
    pub(crate) incoming: Option<OwnedFd>,
    /// The ids for the access control lists of data files, in a private store.
    pub(crate) private: Option<PrivateStore>,
    /// The directory for the data files of this mount: the directory that contains it, and its
    /// name.
    own: (Arc<dyn WritableDir>, String),
    /// The modes of new files and directories.
    permissions: (u32, u32),
    pub(crate) batch: u64,
    /// The adopted tree of the store, if it has one.
    adopted: Option<Arc<AdoptedTree>>,
    /// The directories of the batch, opened when they are needed.
    dirs: [OnceLock<Arc<dyn WritableDir>>; DIRS],
}

/// An open data file.
pub(crate) enum Handle {
    /// A file of the batch of this mount.
    Own(Box<dyn WritableFile>),
    /// A file of another batch, which is only read.
    Foreign(Box<dyn OpenFile>),
    /// A file of the adopted tree.
    Adopted(AdoptedHandle),
}

impl Handle {
    pub(crate) fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        match self {
            Handle::Own(file) => file.read_at(into, offset),
            Handle::Foreign(file) => file.read_at(into, offset),
            Handle::Adopted(file) => file.read_at(into, offset),
        }
    }

    /// Returns the next range with data, as [`OpenFile::next_data`] does. Errors: `Busy` for a file
    /// of the batch of this mount, which is never copied.
    pub(crate) fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        match self {
            Handle::Own(_) => Err(Error::new(ErrorKind::Busy, "copy", "a data file")),
            Handle::Foreign(file) => file.next_data(offset),
            Handle::Adopted(file) => file.next_data(offset),
        }
    }

    /// Checks that all bytes that were read belong to one state of the file, if other users may
    /// change it.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        match self {
            Handle::Adopted(file) => file.check(),
            Handle::Own(_) | Handle::Foreign(_) => Ok(()),
        }
    }

    /// Returns the file for writing. `None` if it belongs to another batch.
    pub(crate) fn own(&self) -> Option<&dyn WritableFile> {
        match self {
            Handle::Own(file) => Some(&**file),
            Handle::Foreign(_) | Handle::Adopted(_) => None,
        }
    }
}

impl Data {
    pub(crate) fn new(dir: Arc<dyn WritableDir>, batch: u64, adopted: Option<Arc<AdoptedTree>>) -> Data {
        let own = (dir.clone(), batch_name(batch));
        let (incoming, private, permissions) = (None, None, (FILE_PERMISSIONS, DIR_PERMISSIONS));
        let dirs = [const { OnceLock::new() }; DIRS];
        Data { dir, incoming, private, own, permissions, batch, adopted, dirs }
    }

    /// Returns the data files of a store for a group. If `is_foreign` is set, this user is not the
    /// owner of the store, and the files of this mount are in `incoming`. In a private store, each
    /// file has an access control list with the users that its inode permits to read it.
    pub(crate) fn of_group(
        dir: Arc<dyn WritableDir>,
        incoming: OwnedFd,
        batch: u64,
        is_foreign: bool,
        private: Option<PrivateStore>,
    ) -> Result<Data> {
        let mut data = Data::new(dir, batch, None);
        if is_foreign {
            let cloned = incoming.try_clone();
            let cloned = cloned.map_err(|cause| Error::from_io(cause, "open", "the data files"))?;
            data.own = (Arc::new(PosixDir::of_descriptor(cloned)), incoming_name(batch));
        }
        data.incoming = Some(incoming);
        data.permissions = (FILE_PERMISSIONS_OF_GROUP, DIR_PERMISSIONS_OF_GROUP);
        data.private = private;
        Ok(data)
    }

    /// Opens the file with the bytes of a content. `None` if the bytes are in the inode. Errors:
    /// `Stale` if the file does not exist, or if it belongs to the adopted tree and was changed.
    pub(crate) fn open_content(&self, content: &Content) -> Result<Option<Handle>> {
        match content {
            Content::File(file) => self.open(*file).map(Some),
            Content::Adopted(file) => match &self.adopted {
                Some(tree) => tree.open(file).map(|handle| Some(Handle::Adopted(handle))),
                None => {
                    let source = Some("the store has no file `adopted` with the path of its tree".into());
                    Err(Error {
                        source,
                        ..Error::new(ErrorKind::Stale, "open the adopted file", file.path.clone())
                    })
                }
            },
            _ => Ok(None),
        }
    }

    /// Returns whether a data file belongs to the batch of this mount.
    pub(crate) fn is_own(&self, file: DataFile) -> bool {
        file.batch == self.batch
    }

    /// Returns the directory of the batch for an inode, and creates it if it does not exist.
    fn own_dir(&self, inode: u64) -> Result<&Arc<dyn WritableDir>> {
        let cell = &self.dirs[inode as usize % DIRS];
        if let Some(dir) = cell.get() {
            return Ok(dir);
        }
        let (top, name) = &self.own;
        let batch = made(&**top, name.as_bytes(), self.permissions.1)?;
        self.check_own(&*batch, name)?;
        let dir = made(&*batch, dir_name(inode).as_bytes(), self.permissions.1)?;
        self.check_own(&*dir, name)?;
        Ok(cell.get_or_init(|| dir))
    }

    /// Checks that only this user can change the names of a directory.
    fn check_own(&self, dir: &dyn WritableDir, name: &str) -> Result<()> {
        if self.incoming.is_some() { check_own(dir, name) } else { Ok(()) }
    }

    /// Creates a data file of an inode. In a private store, other users than the owner of the store
    /// can read it after [`set_readers`](Self::set_readers).
    pub(crate) fn create(&self, inode: u64) -> Result<(DataFile, Box<dyn WritableFile>)> {
        let dir = self.own_dir(inode)?;
        let access = match self.private {
            Some(store) => FileAccess::List(store.list(&Readers::default(), geteuid().as_raw())),
            None => FileAccess::Mode(self.permissions.0),
        };
        for version in 0..VERSIONS_MAX {
            let file = DataFile { batch: self.batch, inode, version };
            match access.create(&**dir, file_name(file).as_bytes()) {
                Err(error) if error.kind == ErrorKind::Exists => {}
                created => return Ok((file, created?)),
            }
        }
        Err(Error::new(ErrorKind::Busy, "create the data file of", inode.to_string()))
    }

    /// Opens a data file. Errors: `Stale` if it does not exist.
    pub(crate) fn open(&self, file: DataFile) -> Result<Handle> {
        let opened = match self.is_own(file) {
            true => {
                let name = file_name(file);
                self.own_dir(file.inode)?.open_writable_file(name.as_bytes()).map(Handle::Own)
            }
            false => self.open_foreign(file).map(Handle::Foreign),
        };
        opened.map_err(|error| match error.kind {
            ErrorKind::NotFound => Error { kind: ErrorKind::Stale, ..error },
            _ => error,
        })
    }

    fn open_foreign(&self, file: DataFile) -> Result<Box<dyn OpenFile>> {
        let opened = self.open_of_owner(file);
        match (&self.incoming, opened) {
            (Some(incoming), Err(error)) if error.kind == ErrorKind::NotFound => {
                open_data_file(incoming, file)
            }
            (_, opened) => opened,
        }
    }

    /// Opens a data file that the owner of the store has written.
    pub(crate) fn open_of_owner(&self, file: DataFile) -> Result<Box<dyn OpenFile>> {
        let batch = self.dir.enter(batch_name(file.batch).as_bytes())?;
        let dir = batch.enter(dir_name(file.inode).as_bytes())?;
        dir.open_file(file_name(file).as_bytes())
    }

    /// Removes a data file, if it belongs to the batch of this mount. Other data files may be part
    /// of a snapshot.
    pub(crate) fn remove(&self, file: DataFile) -> Result<()> {
        match self.is_own(file) {
            true => self.own_dir(file.inode)?.remove(file_name(file).as_bytes()),
            false => Ok(()),
        }
    }

    /// Makes the name of a new data file of an inode survive a power failure.
    pub(crate) fn sync_name(&self, inode: u64) -> Result<()> {
        self.own_dir(inode)?.sync()?;
        let (top, name) = &self.own;
        top.open_writable_dir(name.as_bytes())?.sync()?;
        top.sync()
    }

    pub(crate) fn space(&self) -> Result<Space> {
        self.dir.space()
    }
}

/// Checks that only this user can change the names of a directory in `incoming`: another member of
/// the group may have created it before, and could replace the files in it.
pub(crate) fn check_own(dir: &dyn WritableDir, name: &str) -> Result<()> {
    let found = dir.stat_self()?;
    match found.uid == geteuid().as_raw() && found.mode & 0o022 == 0 {
        true => Ok(()),
        false => {
            let source = Some("another user has created it, or can write to it".into());
            Err(Error { source, ..Error::new(ErrorKind::PermissionDenied, "write files in", name) })
        }
    }
}

/// Opens a directory, and creates it if it does not exist.
pub(crate) fn made(dir: &dyn WritableDir, name: &[u8], permissions: u32) -> Result<Arc<dyn WritableDir>> {
    match dir.open_writable_dir(name) {
        Err(error) if error.kind == ErrorKind::NotFound => {}
        opened => return opened,
    }
    match dir.make_dir(name, permissions) {
        Err(error) if error.kind != ErrorKind::Exists => Err(error),
        _ => dir.open_writable_dir(name),
    }
}

#[cfg(test)]
#[path = "data_test.rs"]
mod tests;
