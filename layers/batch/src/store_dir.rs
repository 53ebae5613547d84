//! The directory of a store. docs/formats/batch.md describes its files.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quell_batch_service::{
    BatchRecord, Certificate, FILES_OF_USERS, NameSpace, Names, PrivateEntries, SnapshotServer, TableDir,
    TableFiles,
};
use quell_kv::{DiskOptions, DiskStore, Durability};
use quell_posix::{Dir, PosixDir, WritableDir, open_private_dir};
use quell_vfs::{Error, ErrorKind, Rename, Result};
use rustix::fs::{CWD, Gid, Mode, OFlags, fchmod, fchown, fstat, openat, syncfs};
use rustix::process::geteuid;

use crate::access_list::{FileAccess, PrivateStore, Readers};
use crate::adopted::AdoptedTree;
use crate::data::Data;
use crate::file_system::BatchFs;
use crate::incoming::open_batch_dir;
use crate::store_lock::{LOCK, LockKind, StoreLock, is_excluded, try_lock};

/// The largest number of a batch, so that its lock is within the offsets of a file.
const BATCH_NUMBER_MAX: u64 = u64::MAX >> 2;
/// The content of the file `format` of a store that only its owner can use.
const FORMAT: &[u8] = b"QUELLBATCH1\n";
/// The content of the file `format` of a store for a group.
const FORMAT_OF_GROUP: &[u8] = b"QUELLBATCH1 group\n";
/// The content of the file `format` of a private store for a group.
const FORMAT_OF_PRIVATE: &[u8] = b"QUELLBATCH1 private\n";
/// The name of the operation in errors.
pub(crate) const OPEN: &str = "open the store";
/// The directories of a store.
pub(crate) const KEYS: &str = "keys";
pub(crate) const TABLES: &str = "tables";
pub(crate) const DATA: &str = "data";
pub(crate) const BATCHES: &str = "batches";
/// The directory for the batches and data files of other users, in a store for a group.
pub(crate) const INCOMING: &str = "incoming";
/// The directory with the directories of partition servers.
pub(crate) const PARTITIONS: &str = "partitions";
/// The file with the certificate of a batch, in its directory.
pub(crate) const CERTIFICATE: &[u8] = b"certificate";
pub(crate) const NEW_CERTIFICATE: &[u8] = b"certificate.new";
/// The file with the newest view of a batch, a new view while it is written, the last request for a
/// view, and a new request while it is written, in the same directory.
pub(crate) const VIEW: &[u8] = b"view";
pub(crate) const NEW_VIEW: &[u8] = b"view.new";
pub(crate) const VIEW_REQUEST: &[u8] = b"view-request";
/// The largest certificate that is read, in bytes.
pub(crate) const CERTIFICATE_BYTES_MAX: usize = 64 << 20;
/// The time between two attempts to open a store that another process has open.
pub(crate) const RETRY: Duration = Duration::from_millis(20);
/// The memory for blocks of the key-value store, in bytes.
const CACHE_BYTES: u64 = 16 << 20;

/// The key-value store of a store that this process has open.
#[derive(Debug)]
pub(crate) struct OpenKeys {
    // The store is closed before the lock is removed.
    pub(crate) store: DiskStore,
    pub(crate) lock: StoreLock,
}

/// The users that can use a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// The owner.
    Owner,
    /// The owner and the members of a group, who can read all names and contents.
    Group,
    /// The owner and the members of a group, who can read the names and contents that the
    /// permissions of the entries allow them to read.
    Private,
}

impl Sharing {
    /// Returns the content of the file `format`.
    pub(crate) fn format(self) -> &'static [u8] {
        match self {
            Sharing::Owner => FORMAT,
            Sharing::Group => FORMAT_OF_GROUP,
            Sharing::Private => FORMAT_OF_PRIVATE,
        }
    }

    fn of_format(format: &[u8]) -> Option<Sharing> {
        [Sharing::Owner, Sharing::Group, Sharing::Private]
            .into_iter()
            .find(|sharing| sharing.format() == format)
    }
}

/// The directory of a store.
#[derive(Debug)]
pub(crate) struct StoreDir {
    pub(crate) path: PathBuf,
    fd: OwnedFd,
    /// The owner of the store, if it is another user, whom the caller trusts.
    owner: Option<u32>,
    sharing: Sharing,
}

impl StoreDir {
    /// Opens a store that belongs to the caller.
    pub(crate) fn open(path: &Path) -> Result<StoreDir> {
        StoreDir::open_of(path, &[])
    }

    /// Opens a store that belongs to the caller or to one of the users `trusted`. Only its owner
    /// may be able to write to its directory. Only the members of the group of a store for a group
    /// may also have access to it.
    ///
    /// # Errors
    /// `PermissionDenied` otherwise; the errors of open(2).
    pub(crate) fn open_of(path: &Path, trusted: &[u32]) -> Result<StoreDir> {
        let subject = path.as_os_str().as_bytes();
        let failed = |error: rustix::io::Errno| Error::from_io(error.into(), OPEN, subject);
        let refuse = |reason: String| {
            let source = Some(reason.into());
            Err(Error { source, ..Error::new(ErrorKind::PermissionDenied, OPEN, subject) })
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::empty()).map_err(failed)?;
        let found = fstat(&fd).map_err(failed)?;
        let user = geteuid().as_raw();
        let owner = Some(found.st_uid).filter(|owner| *owner != user);
        if let Some(owner) = owner
            && !trusted.contains(&owner)
        {
            return refuse(format!(
                "it belongs to user {owner}, and not to user {user}; if it is a store for a group and you trust its \
                 owner with your programs, pass --trust-owner {owner}"
            ));
        }
        let dir = StoreDir { path: path.to_owned(), fd, owner, sharing: Sharing::Owner }.with_format()?;
        match found.st_mode & 0o077 {
            0 => Ok(dir),
            mode if mode & 0o027 == 0 && dir.is_shared() => Ok(dir),
            _ if dir.is_shared() => refuse(
                "members of its group can write to it, or other users have access to it: chmod g-w,o= DIR"
                    .into(),
            ),
            _ => refuse(
                "other users have access to it; a store needs a directory of its own: chmod 700 DIR".into(),
            ),
        }
    }

    /// Opens a directory that belongs to the caller alone, and creates it if it does not exist.
    pub(crate) fn create(path: &Path, operation: &'static str) -> Result<StoreDir> {
        let fd = open_private_dir(path, true, operation)?;
        Ok(StoreDir { path: path.to_owned(), fd, owner: None, sharing: Sharing::Owner })
    }

    /// Returns the owner of the store, if it is another user.
    pub(crate) fn owner(&self) -> Option<u32> {
        self.owner
    }

    /// Returns whether it is a store for a group.
    pub(crate) fn is_shared(&self) -> bool {
        self.sharing != Sharing::Owner
    }

    /// Returns whether it is a private store for a group: members of the group can open only the
    /// files that the permissions of the entries allow them to read.
    pub(crate) fn is_private(&self) -> bool {
        self.sharing == Sharing::Private
    }

    /// Returns the kind of the store.
    pub(crate) fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Returns the ids for the access control lists of a private store.
    pub(crate) fn private(&self) -> Result<Option<PrivateStore>> {
        match self.is_private() {
            true => {
                let owner = self.owner.unwrap_or_else(|| geteuid().as_raw());
                Ok(Some(PrivateStore { owner, gid: self.gid()? }))
            }
            false => Ok(None),
        }
    }

    /// Returns the group of the directory.
    pub(crate) fn gid(&self) -> Result<u32> {
        let found = fstat(&self.fd).map_err(|error| Error::from_io(error.into(), OPEN, self.subject()))?;
        Ok(found.st_gid)
    }

    /// Makes this directory, which is empty, the directory of a store for a group of this kind.
    ///
    /// # Errors
    /// `PermissionDenied` if the caller is not a member of the group.
    pub(crate) fn share(&mut self, gid: u32, sharing: Sharing) -> Result<()> {
        self.sharing = sharing;
        share_dir(self.fd.as_fd(), gid, 0o2750)
            .map_err(|error| Error { subject: self.subject().to_vec(), ..error })
    }

    /// Makes a directory of a store for a group accessible to the group.
    pub(crate) fn share_dir(&self, name: &str, permissions: u32) -> Result<()> {
        share_dir(self.open_dir(name)?.as_fd(), self.gid()?, permissions)
    }

    /// Returns the directory that a process of the same user has opened at `path` with
    /// [`open_of`](Self::open_of), which has checked it.
    ///
    /// # Errors
    /// The errors of files.
    pub(crate) fn of_descriptor(path: &Path, fd: OwnedFd) -> Result<StoreDir> {
        let found =
            fstat(&fd).map_err(|error| Error::from_io(error.into(), OPEN, path.as_os_str().as_bytes()))?;
        let owner = Some(found.st_uid).filter(|owner| *owner != geteuid().as_raw());
        StoreDir { path: path.to_owned(), fd, owner, sharing: Sharing::Owner }.with_format()
    }

    /// Opens the directory again.
    pub(crate) fn duplicate(&self) -> Result<StoreDir> {
        let fd = self.open_dir(".")?;
        Ok(StoreDir { path: self.path.clone(), fd, owner: self.owner, sharing: self.sharing })
    }

    /// Returns a path of a file of the store. It does not depend on the path of the store, which
    /// may change meanwhile, and is valid as long as this value exists.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.file_named(name.as_bytes())
    }

    /// As [`file`](Self::file), for a name that may have any bytes.
    pub(crate) fn file_named(&self, name: &[u8]) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd())).join(OsStr::from_bytes(name))
    }

    pub(crate) fn subject(&self) -> &[u8] {
        self.path.as_os_str().as_bytes()
    }

    /// Returns the directory itself, with the operations on its files.
    pub(crate) fn files(&self) -> Result<PosixDir> {
        Ok(PosixDir::of_descriptor(self.open_dir(".")?))
    }

    /// Returns a tree of the store's name space as a file system. The file system writes data files
    /// of `batch`, which is 0 for the synchronous mode.
    pub(crate) fn file_system(&self, tree: Arc<dyn NameSpace>, batch: u64) -> Result<BatchFs> {
        Ok(BatchFs::with_data(tree, self.data_of(batch)?))
    }

    /// Returns the access to the data files of the store for a process that writes the data files
    /// of `batch`.
    pub(crate) fn data_of(&self, batch: u64) -> Result<Data> {
        let batch = match self.owner {
            Some(_) if batch == 0 => FILES_OF_USERS + u64::from(geteuid().as_raw()),
            _ => batch,
        };
        match self.is_shared() {
            true => {
                let (incoming, is_foreign) = (self.open_dir(INCOMING)?, self.owner.is_some());
                Data::of_group(self.data()?, incoming, batch, is_foreign, self.private()?)
            }
            false => Ok(Data::new(self.data()?, batch, AdoptedTree::of_store(&self.files()?)?)),
        }
    }

    pub(crate) fn data(&self) -> Result<Arc<dyn WritableDir>> {
        Ok(Arc::new(PosixDir::of_descriptor(self.open_dir(DATA)?)))
    }

    pub(crate) fn open_dir(&self, name: &str) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.fd, name, flags, Mode::empty())
            .map_err(|error| Error::from_io(error.into(), OPEN, self.subject()))
    }

    /// Opens the directory of a partition server.
    ///
    /// # Errors
    /// `NotFound` if there is none; the errors of open(2).
    pub(crate) fn partition_dir(&self, server: u32) -> Result<StoreDir> {
        let name = format!("{PARTITIONS}/{server}");
        let fd = self.open_dir(&name)?;
        Ok(StoreDir { path: self.path.join(name), fd, owner: self.owner, sharing: Sharing::Owner })
    }

    /// Creates the directory of a partition server, unless it exists.
    pub(crate) fn make_partition_dir(&self, server: u32) -> Result<()> {
        let make = |dir: &PosixDir, name: &str| match dir.make_dir(name.as_bytes(), 0o700) {
            Err(error) if error.kind != ErrorKind::Exists => Err(error),
            _ => WritableDir::sync(dir),
        };
        make(&self.files()?, PARTITIONS)?;
        make(&PosixDir::of_descriptor(self.open_dir(PARTITIONS)?), &server.to_string())
    }

    /// Returns the numbers of the partition servers that have a directory, in ascending order.
    pub(crate) fn partition_servers(&self) -> Result<Vec<u32>> {
        let dir = match self.open_dir(PARTITIONS) {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(Vec::new()),
            opened => PosixDir::of_descriptor(opened?),
        };
        let number = |name: &Vec<u8>| std::str::from_utf8(name).ok()?.parse::<u32>().ok();
        let mut servers: Vec<u32> = dir.names()?.iter().filter_map(number).collect();
        servers.sort_unstable();
        Ok(servers)
    }

    /// Returns the directory of the tables.
    pub(crate) fn tables(&self) -> Result<OwnedFd> {
        self.open_dir(TABLES)
    }

    /// Returns the tables of the image.
    pub(crate) fn image_tables(&self) -> Result<TableDir> {
        Ok(self.new_tables(self.tables()?))
    }

    /// Returns the tables in a directory of the owner, which become tables of the image.
    pub(crate) fn new_tables(&self, dir: OwnedFd) -> TableDir {
        match self.is_private() {
            true => TableDir::new(dir),
            false => TableDir::with_permissions(dir, self.file_permissions()),
        }
    }

    /// Returns the private name space of a batch, whose tables are in `tables`. The entries of its
    /// snapshot are requested from `server`, or read from the tables of the store if there is none.
    /// The name space keeps changes of about `memory_bytes_max` in memory.
    pub(crate) fn private_names(
        &self,
        record: &BatchRecord,
        server: Option<Arc<dyn SnapshotServer>>,
        tables: Arc<dyn TableFiles>,
        memory_bytes_max: usize,
    ) -> Result<Names<PrivateEntries>> {
        match server {
            Some(server) => Ok(PrivateEntries::open_served(record, server, tables, memory_bytes_max)),
            None => PrivateEntries::open(record, &self.image_tables()?, tables, memory_bytes_max),
        }
    }

    /// Returns the mode of new files for all users of the store.
    pub(crate) fn file_permissions(&self) -> u32 {
        if self.is_shared() { 0o640 } else { 0o600 }
    }

    /// Returns the access to new files of a batch of the caller: the owner of the store must be
    /// able to read them.
    pub(crate) fn batch_access(&self) -> Result<FileAccess> {
        Ok(match (self.private()?, self.owner) {
            (Some(store), Some(_)) => FileAccess::List(store.list(&Readers::default(), geteuid().as_raw())),
            (Some(_), None) => FileAccess::Mode(0o600),
            (None, _) => FileAccess::Mode(self.file_permissions()),
        })
    }

    /// Opens the key-value store. Errors: `Busy` if another process, on any node, has it open.
    pub(crate) fn open_keys(&self) -> Result<OpenKeys> {
        let busy = || Error {
            source: Some("another process has it open".into()),
            ..Error::new(ErrorKind::Busy, OPEN, self.subject())
        };
        let lock = self.try_lock(LockKind::Keys)?.ok_or_else(busy)?;
        let options =
            DiskOptions { cache_bytes: CACHE_BYTES, durability: Durability::Process, ..Default::default() };
        let store = DiskStore::open(&self.file(KEYS), &options).map_err(|error| match error.kind {
            ErrorKind::Busy => busy(),
            _ => Error { subject: self.subject().to_vec(), ..error },
        })?;
        Ok(OpenKeys { store, lock })
    }

    /// Removes the files of a store that was not completed, and its directory if `is_new` is set.
    /// The files are reached through the descriptor of the directory: if another directory has
    /// taken its path meanwhile, that directory is left as it is.
    pub(crate) fn remove_new(&self, is_new: bool) -> Result<()> {
        const OPERATION: &str = "remove";
        let failed = |cause| Error::from_io(cause, OPERATION, self.subject());
        for name in self.files()?.names()? {
            let path = self.file_named(&name);
            let is_dir = std::fs::symlink_metadata(&path).map_err(failed)?.is_dir();
            let removed = if is_dir { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            removed.map_err(failed)?;
        }
        let (true, Some(name)) = (is_new, self.path.file_name()) else { return Ok(()) };
        let above = PosixDir::of_descriptor(self.open_dir("..")?);
        let own = self.files()?.stat_self()?.identity();
        match above.stat(name.as_bytes()) {
            Ok(found) if found.identity() == own => above.remove_dir(name.as_bytes()),
            Err(error) if error.kind != ErrorKind::NotFound => Err(error),
            _ => {
                let source = Some("its directory was renamed meanwhile".into());
                Err(Error { source, ..Error::new(ErrorKind::Stale, OPERATION, self.subject()) })
            }
        }
    }

    /// Sets the kind of the store to the one that the file `format` states, if there is one.
    fn with_format(mut self) -> Result<StoreDir> {
        match self.files()?.open_file(b"format") {
            Err(error) if error.kind == ErrorKind::NotFound => {}
            opened => {
                let format = format_of(&*opened?)?;
                self.sharing = Sharing::of_format(&format).unwrap_or(Sharing::Owner);
            }
        }
        Ok(self)
    }

    pub(crate) fn check_format(&self) -> Result<()> {
        let refuse = |kind, reason: &str| {
            let source = Some(reason.to_owned().into());
            Err(Error { source, ..Error::new(kind, OPEN, self.subject()) })
        };
        let file = match self.files()?.open_file(b"format") {
            Ok(file) => file,
            Err(error) if error.kind == ErrorKind::NotFound => {
                return refuse(
                    ErrorKind::NotFound,
                    "there is no store for batches in this directory; create one: quell batch init DIR",
                );
            }
            Err(error) => return Err(error),
        };
        match Sharing::of_format(&format_of(&*file)?) {
            Some(_) => Ok(()),
            None => refuse(
                ErrorKind::Damaged,
                "its file `format` does not have the format of a store of this version",
            ),
        }
    }

    /// Makes the data files of a batch survive a power failure, if there are any.
    pub(crate) fn sync_data(&self, number: u64) -> Result<()> {
        let opened = match self.owner {
            Some(_) => open_batch_dir(&self.open_dir(INCOMING)?, number, geteuid().as_raw()),
            None => self.open_dir(&format!("{DATA}/{number}")),
        };
        match opened {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            opened => syncfs(opened?)
                .map_err(|error| Error::from_io(error.into(), "synchronize the data of", self.subject())),
        }
    }

    /// Locks a batch, until the value is dropped.
    ///
    /// # Errors
    /// `Busy` if a process uses the batch; `NotFound` if no batch can have the number; the errors
    /// of [`try_lock`].
    pub(crate) fn lock_batch(&self, number: u64) -> Result<StoreLock> {
        // A number outside of this range has no byte of its own in the file.
        if !(1..=BATCH_NUMBER_MAX).contains(&number) {
            return Err(Error::new(ErrorKind::NotFound, "find batch", number.to_string()));
        }
        let locked = try_lock(&self.lock_files(number)?, LockKind::Batch(number));
        locked.map_err(|error| self.batch_lock_error(error))?.ok_or_else(|| Error {
            source: Some("a process uses it".into()),
            ..Error::new(ErrorKind::Busy, "use batch", number.to_string())
        })
    }

    /// Returns whether a process uses a batch.
    pub(crate) fn is_batch_used(&self, number: u64) -> Result<bool> {
        let files = self.lock_files(number)?;
        is_excluded(&files, LockKind::Batch(number)).map_err(|error| self.batch_lock_error(error))
    }

    /// Returns the directory that has the lock of a batch: only the owner of the store can lock the
    /// file `lock` of the store. For another user, the directory of the batch has such a file.
    fn lock_files(&self, number: u64) -> Result<PosixDir> {
        match self.owner {
            Some(_) => Ok(self.batch(number)?.files),
            None => self.files(),
        }
    }

    fn batch_lock_error(&self, error: Error) -> Error {
        match self.owner {
            Some(_) => error,
            None => lock_error(&self.path, error),
        }
    }

    /// Prevents the removal of data files to which no inode refers yet, until the value is dropped:
    /// a client of a server may write such files while no process has the store open.
    pub(crate) fn keep_data(&self) -> Result<StoreLock> {
        self.lock_data(LockKind::KeepData)
    }

    /// Makes sure that no client of a server uses the store, until the value is dropped.
    ///
    /// # Errors
    /// `Busy` if a client uses it.
    pub(crate) fn exclude_clients(&self) -> Result<StoreLock> {
        self.lock_data(LockKind::ExcludeClients)
    }

    fn lock_data(&self, kind: LockKind) -> Result<StoreLock> {
        self.try_lock(kind)?.ok_or_else(|| {
            let reason = "a mount waits for a server of the store, or `quell batch gc` is running";
            let source = Some(reason.into());
            Error { source, ..Error::new(ErrorKind::Busy, "use the data of", self.subject()) }
        })
    }

    fn try_lock(&self, kind: LockKind) -> Result<Option<StoreLock>> {
        try_lock(&self.files()?, kind).map_err(|error| lock_error(&self.path, error))
    }

    /// Creates the directory of a batch that has begun, if its user is not the owner of the store.
    /// In this case no other process creates it.
    ///
    /// # Errors
    /// `Exists` if another user has created it; the errors of mkdir(2).
    pub(crate) fn make_batch(&self, number: u64) -> Result<()> {
        match self.owner {
            Some(_) => PosixDir::of_descriptor(self.open_dir(INCOMING)?)
                .make_dir(number.to_string().as_bytes(), 0o2750),
            None => Ok(()),
        }
    }

    /// Returns the directory of a batch of the caller.
    pub(crate) fn batch(&self, number: u64) -> Result<BatchDir> {
        if self.owner.is_none() {
            return self.own_batch(number);
        }
        let open = || open_batch_dir(&self.open_dir(INCOMING)?, number, geteuid().as_raw());
        let tables = match self.batch_access()? {
            FileAccess::Mode(permissions) => TableDir::with_permissions(open()?, permissions),
            FileAccess::List(list) => TableDir::with_access_list(open()?, list),
        };
        Ok(BatchDir { files: PosixDir::of_descriptor(open()?), tables })
    }

    /// Returns the directory of a batch to which only the owner of the store has access.
    pub(crate) fn own_batch(&self, number: u64) -> Result<BatchDir> {
        let open = || self.open_dir(&format!("{BATCHES}/{number}"));
        Ok(BatchDir { files: PosixDir::of_descriptor(open()?), tables: TableDir::new(open()?) })
    }

    /// Removes the files that a batch has written for itself.
    pub(crate) fn remove_batch(&self, number: u64) -> Result<()> {
        let batch = match self.batch(number) {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        batch.tables.list()?.into_iter().try_for_each(|table| batch.tables.remove(table))?;
        for name in [CERTIFICATE, NEW_CERTIFICATE, VIEW, NEW_VIEW, VIEW_REQUEST] {
            remove_if_present(&batch.files, name)?;
        }
        let above = match self.owner {
            Some(_) => {
                remove_if_present(&batch.files, LOCK)?;
                INCOMING
            }
            None => BATCHES,
        };
        let batches = PosixDir::of_descriptor(self.open_dir(above)?);
        match batches.remove_dir(number.to_string().as_bytes()) {
            // NFS keeps files that are open on this node. `gc` removes the directory later. The
            // data files of users other than the owner are in it as well.
            Err(error) if error.kind == ErrorKind::NotEmpty => Ok(()),
            removed => removed,
        }
    }
}

/// Returns the beginning of a file `format`, one byte longer than the longest valid content.
fn format_of(file: &dyn quell_posix::OpenFile) -> Result<Vec<u8>> {
    let mut content = vec![0; FORMAT_OF_PRIVATE.len() + 1];
    let length = file.read_at(&mut content, 0)?;
    content.truncate(length);
    Ok(content)
}

/// Gives a directory to a group. New files in it get the group.
fn share_dir(dir: BorrowedFd<'_>, gid: u32, permissions: u32) -> Result<()> {
    let failed = |error: rustix::io::Errno| match error {
        rustix::io::Errno::PERM => {
            let source = Some(format!("you are not a member of group {gid}").into());
            Error { source, ..Error::new(ErrorKind::PermissionDenied, "create the store", "") }
        }
        error => Error::from_io(error.into(), "create the store", ""),
    };
    fchown(dir, None, Some(Gid::from_raw(gid))).map_err(failed)?;
    fchmod(dir, Mode::from_raw_mode(permissions)).map_err(failed)
}

/// Describes an error of the file with the locks of a store.
fn lock_error(store: &Path, error: Error) -> Error {
    let source = match error.kind {
        ErrorKind::PermissionDenied => {
            let store = store.display();
            let reason = format!(
                "the owner of the store cannot write its file `lock`, possibly because another user created the file; \
                 as root: chown --reference={store} {store}/lock && chmod 600 {store}/lock"
            );
            Some(reason.into())
        }
        _ => error.source,
    };
    Error { operation: "lock the store", subject: store.as_os_str().as_bytes().to_vec(), source, ..error }
}

/// The directory of a batch, with the operations on its tables and on its other files.
pub(crate) struct BatchDir {
    pub(crate) files: PosixDir,
    pub(crate) tables: TableDir,
}

impl BatchDir {
    /// Returns whether there is a certificate.
    pub(crate) fn has_certificate(&self) -> Result<bool> {
        match self.files.stat(CERTIFICATE) {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(false),
            found => found.map(|_| true),
        }
    }

    /// Reads the certificate. Errors: `NotFound` if there is none.
    pub(crate) fn certificate(&self) -> Result<Certificate> {
        let file = self.files.open_file(CERTIFICATE)?;
        let mut bytes = vec![0; CERTIFICATE_BYTES_MAX + 1];
        let length = file.read_at(&mut bytes, 0)?;
        Certificate::decode(&bytes[..length])
    }
}

/// Writes the certificate of a batch, in place of an earlier one.
///
/// # Errors
/// `NoSpace` if it is too long; the errors of files.
pub(crate) fn write_certificate(files: &PosixDir, bytes: &[u8], access: &FileAccess) -> Result<()> {
    if bytes.len() > CERTIFICATE_BYTES_MAX {
        let reason = "the batch has changed entries in more existing directories than a certificate can list; \
                      a mount or program with --proof log needs no such list";
        let error = Error::new(ErrorKind::NoSpace, "write", "the certificate");
        return Err(Error { source: Some(reason.into()), ..error });
    }
    remove_if_present(files, NEW_CERTIFICATE)?;
    let file = access.create(files, NEW_CERTIFICATE)?;
    file.write_at(bytes, 0)?;
    file.sync()?;
    files.rename(NEW_CERTIFICATE, files, CERTIFICATE, Rename::Replace)?;
    WritableDir::sync(files)
}

pub(crate) fn remove_if_present(dir: &dyn WritableDir, name: &[u8]) -> Result<()> {
    match dir.remove(name) {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_store_has_a_format_of_its_own() {
        let temp = tempfile::tempdir().unwrap();
        let opened = |format: &[u8]| {
            std::fs::write(temp.path().join("format"), format).unwrap();
            let fd = OwnedFd::from(std::fs::File::open(temp.path()).unwrap());
            StoreDir::of_descriptor(temp.path(), fd).unwrap()
        };
        for sharing in [Sharing::Owner, Sharing::Group, Sharing::Private] {
            let dir = opened(sharing.format());
            dir.check_format().unwrap();
            assert_eq!((dir.sharing(), dir.duplicate().unwrap().sharing()), (sharing, sharing));
            assert_eq!(dir.is_shared(), sharing != Sharing::Owner);
            assert_eq!(dir.is_private(), sharing == Sharing::Private);
            let gid = std::os::unix::fs::MetadataExt::gid(&temp.path().metadata().unwrap());
            let owner = geteuid().as_raw();
            let private = (sharing == Sharing::Private).then_some(PrivateStore { owner, gid });
            assert_eq!(dir.private().unwrap(), private);
            for other in [&sharing.format()[1..], &[sharing.format(), b"x"].concat()] {
                let dir = opened(other);
                assert_eq!(dir.check_format().unwrap_err().kind, ErrorKind::Damaged);
                assert_eq!(dir.sharing(), Sharing::Owner);
            }
        }
    }

    #[test]
    fn an_error_of_a_lock_file_of_another_user_names_the_file_and_the_command() {
        let denied = Error::new(ErrorKind::PermissionDenied, "open", "lock");
        let error = lock_error(Path::new("/shared/store"), denied);
        assert_eq!(
            (error.kind, error.subject.as_slice()),
            (ErrorKind::PermissionDenied, &b"/shared/store"[..])
        );
        assert!(error.to_string().contains("chown --reference=/shared/store /shared/store/lock"), "{error}");
        // Other errors keep their reason.
        let source = Some("locks do not hold between nodes".into());
        let other = Error { source, ..Error::new(ErrorKind::Unsupported, "lock", "lock") };
        assert!(lock_error(Path::new("/shared/store"), other).to_string().contains("between nodes"));
    }
}
