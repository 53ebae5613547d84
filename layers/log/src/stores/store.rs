//! One store: its root, its `.quell` directory, and its number.

use std::sync::{Arc, OnceLock};

use quell_posix::WritableDir;
use quell_vfs::{Change, Error, ErrorKind, Kind, Rename, Result, errno};

use crate::format::{
    BLOCK_BYTES, CLOSED_NEW_DIR, HEAD_BYTES, Head, HeadKind, NEW_DIR, OWN, PARTS_DIR, STORE_RECORD,
    STORE_VERSION, TRASH_DIR, is_own, number_name,
};
use crate::locks::{Rank, RankedMutex};
use crate::not_found::none_if_not_found;
use crate::stores::directories::open_or_create_dir;
use crate::stores::errors::refused;
use crate::stores::host::Host;
use crate::stores::removal::remove_tree;

/// The index of a store in the list of stores.
pub type StoreNumber = usize;

const OWN_PERMISSIONS: u32 = 0o755;
/// Permissions of the record, of maps, and of files that stand for log directories.
pub(crate) const FILE_PERMISSIONS: u32 = 0o644;
/// The directories of a store in which processes create and remove containers.
const WORK_DIRS: [&[u8]; 3] = [NEW_DIR, TRASH_DIR, PARTS_DIR];
/// Permissions of `new`, `trash` and `parts` as long as only the owner of the store has write
/// permission to files and directories in it.
const OWNER_WRITABLE_PERMISSIONS: u32 = 0o755;
/// Permissions of `new`, `trash` and `parts` otherwise: every user with write permission to a
/// directory of the store creates containers there, and may remove only their own.
const SHARED_PERMISSIONS: u32 = 0o1777;
/// The permissions with which users other than the owner write.
pub(crate) const OTHERS_WRITE: u32 = 0o022;

/// A directory that is or becomes a store, and its path in messages.
#[derive(Clone)]
pub struct Root {
    /// The directory.
    pub dir: Arc<dyn WritableDir>,
    /// Its path: in messages, and in the placement map.
    pub path: Vec<u8>,
}

impl std::fmt::Debug for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Root").field("path", &String::from_utf8_lossy(&self.path)).finish_non_exhaustive()
    }
}

/// The users that can create containers in a store.
pub(crate) struct Writers {
    /// The owner of the store, who always can.
    pub owner: u32,
    /// All other users can, too.
    pub has_others: bool,
}

/// An open store.
#[derive(Clone)]
pub(crate) struct Store {
    pub root: Root,
    /// The `.quell` directory.
    pub own: Arc<dyn WritableDir>,
    /// The number in the store's record, by which containers are placed.
    pub number: u128,
    /// The directory `parts`, which stays open.
    parts: Arc<OnceLock<Arc<dyn WritableDir>>>,
    /// The directory `new`, if it was opened to stay open.
    new: Arc<RankedMutex<Option<Arc<dyn WritableDir>>>>,
}

impl Store {
    /// Opens the directory for new containers under construction. A drained store has none
    /// (`NotFound`).
    pub fn new_dir(&self) -> Result<Arc<dyn WritableDir>> {
        self.own.open_writable_dir(NEW_DIR)
    }

    /// Returns the directory for new files, which is opened once. It may have lost its name since.
    pub fn kept_new_dir(&self) -> Result<Arc<dyn WritableDir>> {
        if let Some(new) = &*self.new.lock() {
            return Ok(Arc::clone(new));
        }
        self.reopened_new_dir()
    }

    /// Opens the directory for new files again, and keeps it open.
    pub fn reopened_new_dir(&self) -> Result<Arc<dyn WritableDir>> {
        let opened = self.new_dir();
        let before = std::mem::replace(&mut *self.new.lock(), opened.as_ref().ok().cloned());
        drop(before); // without the lock, because closing may be slow
        opened
    }

    /// Opens the directory for log directories of containers in other stores.
    pub fn parts_dir(&self) -> Result<Arc<dyn WritableDir>> {
        self.own.open_writable_dir(PARTS_DIR)
    }

    /// Returns the directory `parts`, which is opened once.
    pub fn kept_parts_dir(&self) -> Result<Arc<dyn WritableDir>> {
        if let Some(parts) = self.parts.get() {
            return Ok(Arc::clone(parts));
        }
        let parts = self.parts_dir()?;
        Ok(Arc::clone(self.parts.get_or_init(|| parts)))
    }

    /// Opens the directory for removed containers that are not yet deleted.
    pub fn trash_dir(&self) -> Result<Arc<dyn WritableDir>> {
        self.own.open_writable_dir(TRASH_DIR)
    }

    /// Prevents new files in a drained store. A mount that does not know the new map finds no `new`
    /// directory, and then reads the map.
    ///
    /// A mount that has the directory open can create files in it, and give them names in the
    /// store, until the directory is removed. It is therefore always renamed to the same name, so
    /// that a later call finds it if this call is interrupted between the rename and the removal.
    pub fn close_for_new(&self) -> Result<()> {
        let remove_closed = || none_if_not_found(remove_tree(&*self.own, CLOSED_NEW_DIR)).map(drop);
        remove_closed()?;
        none_if_not_found(self.own.rename(NEW_DIR, &*self.own, CLOSED_NEW_DIR, Rename::Replace))?;
        remove_closed()
    }

    /// Allows new containers again in a store that was drained.
    pub fn open_for_new(&self) -> Result<()> {
        let permissions = work_dir_permissions(self.has_other_writers()?);
        open_or_create_dir(&*self.own, NEW_DIR, permissions).map(drop)
    }

    /// Returns the users that can create containers.
    pub fn writers(&self) -> Result<Writers> {
        let parts = self.own.stat(PARTS_DIR)?;
        Ok(Writers { owner: parts.uid, has_others: parts.mode & OTHERS_WRITE != 0 })
    }

    /// Returns true if users other than the owner of the store can create containers.
    pub fn has_other_writers(&self) -> Result<bool> {
        Ok(self.writers()?.has_others)
    }

    /// Returns true if all users can create names in all directories for which this is intended.
    fn is_open_to_all(&self) -> Result<bool> {
        for name in WORK_DIRS {
            // A drained store has no `new`.
            let found = none_if_not_found(self.own.stat(name))?;
            if found.is_some_and(|stat| stat.mode & OTHERS_WRITE != OTHERS_WRITE) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Allows all users to create containers. Does nothing if this process may not do this.
    pub fn allow_other_writers(&self) -> Result<()> {
        if self.is_open_to_all()? {
            return Ok(());
        }
        let change = Change { permissions: Some(SHARED_PERMISSIONS), ..Change::default() };
        for name in WORK_DIRS {
            match none_if_not_found(self.own.change(name, &change)) {
                Err(error) if matches!(error.errno(), errno::EPERM | errno::EACCES | errno::EROFS) => {}
                changed => drop(changed?),
            }
        }
        Ok(())
    }
}

/// Returns the permissions of `new`, `trash` and `parts`.
fn work_dir_permissions(has_other_writers: bool) -> u32 {
    if has_other_writers { SHARED_PERMISSIONS } else { OWNER_WRITABLE_PERMISSIONS }
}

/// Returns true if a directory has no names other than those of a store itself.
pub(crate) fn has_only_own_names(root: &dyn WritableDir) -> Result<bool> {
    Ok(root.names()?.iter().all(|name| is_own(name)))
}

/// Returns true if this directory is a store.
pub fn is_store(root: &dyn WritableDir) -> Result<bool> {
    Ok(none_if_not_found(root.stat(OWN))?.is_some_and(|stat| stat.kind() == Some(Kind::Dir)))
}

/// Opens directories as stores, and creates `.quell` in those that are not stores yet.
pub(crate) fn open_or_create_stores(roots: Vec<Root>, host: &Host) -> Result<Vec<Store>> {
    for root in &roots {
        if !is_store(&*root.dir)? {
            create_store(&*root.dir, host)?;
        }
    }
    open_stores(roots)
}

/// Opens existing stores.
pub(crate) fn open_stores(roots: Vec<Root>) -> Result<Vec<Store>> {
    if roots.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, "open", "no store"));
    }
    let mut opened: Vec<Store> = Vec::with_capacity(roots.len());
    for root in roots {
        let own = root.dir.open_writable_dir(OWN)?;
        let mut bytes = [0; HEAD_BYTES];
        let length = own.open_file(STORE_RECORD)?.read_at(&mut bytes, 0)?;
        let head =
            Head::decode(HeadKind::Store, &bytes[..length]).map_err(|damage| damage.in_file(STORE_RECORD))?;
        if opened.iter().any(|other| other.number == head.container) {
            return Err(refused(&root.path, "the directory is named twice: name each store once".into()));
        }
        let new = Arc::new(RankedMutex::new(Rank::Leaf, None));
        opened.push(Store { root, own, number: head.container, parts: Arc::default(), new });
    }
    Ok(opened)
}

/// Refuses to add a store that is not empty.
pub(crate) fn check_free(root: &Root) -> Result<()> {
    match has_only_own_names(&*root.dir)? {
        true => Ok(()),
        false => {
            Err(refused(&root.path, "it is not empty: name an empty directory for the new store".into()))
        }
    }
}

/// Creates the `.quell` directory of a store. It gets its name after it is complete, so of several
/// concurrent processes one succeeds.
fn create_store(root: &dyn WritableDir, host: &Host) -> Result<()> {
    let number = host.random_number();
    let temporary = [OWN, b"-", &number_name(number)[..]].concat();
    root.make_dir(&temporary, OWN_PERMISSIONS)?;
    let dir = root.open_writable_dir(&temporary)?;
    let owner = root.stat_self()?;
    let is_owner_writable = owner.uid == dir.stat_self()?.uid && owner.mode & OTHERS_WRITE == 0;
    // Existing directories may belong to other users.
    let has_other_writers = !is_owner_writable || !has_only_own_names(root)?;
    for name in WORK_DIRS {
        dir.make_dir(name, work_dir_permissions(has_other_writers))?;
    }
    let head = Head {
        kind: HeadKind::Store,
        version: STORE_VERSION,
        block_bytes: BLOCK_BYTES,
        container: number,
        writer: 0,
        directories: 0,
        process: None,
    };
    let record = dir.create_file(STORE_RECORD, FILE_PERMISSIONS)?;
    record.write_at(&head.encode(), 0)?;
    record.sync()?;
    dir.sync()?;
    match root.rename(&temporary, root, OWN, Rename::Replace) {
        Ok(()) => {}
        Err(error) if matches!(error.kind, ErrorKind::NotEmpty | ErrorKind::Exists) => {
            remove_tree(root, &temporary)?;
        }
        Err(error) => return Err(error),
    }
    root.sync()
}
