//! The log directories of one container: in the container itself, or in `parts` of another store,
//! with a pointer in the container that names the store (section V of the paper, the second
//! technique). Finds, creates and deletes them, and decides which users may own them.

use std::sync::Arc;

use quell_posix::WritableDir;
use quell_vfs::{Error, ErrorKind, Kind, Rename, Result, errno};

use crate::container::permissions::logs_permissions;
use crate::container::pointers::{read_pointer, write_pointer};
use crate::format::{ACCESS, logs_name, number_name};
use crate::not_found::none_if_not_found;
use crate::stores::{StoreNumber, Stores, create_or_open_dir_for, open_or_create_dir_for, remove_tree};

/// The largest number of attempts to create a log directory while the owner of the file changes.
const CREATE_ATTEMPTS_MAX: u32 = 4;

/// A directory, and a name in it.
pub(crate) type Named = (Arc<dyn WritableDir>, Vec<u8>);

/// The log directories of one container.
pub(crate) struct LogDirectories<'a> {
    stores: &'a Stores,
    /// The container's directory.
    dir: &'a Arc<dyn WritableDir>,
    /// The container's number.
    container: u128,
    home: StoreNumber,
}

impl<'a> LogDirectories<'a> {
    pub fn new(
        stores: &'a Stores,
        dir: &'a Arc<dyn WritableDir>,
        container: u128,
        home: StoreNumber,
    ) -> LogDirectories<'a> {
        LogDirectories { stores, dir, container, home }
    }

    /// Opens log directory `number`, in any store, and creates it if `create` is true.
    pub fn open(&self, number: u32, create: bool) -> Result<Arc<dyn WritableDir>> {
        let not_found = match self.find(number)? {
            Some((dir, name)) => match dir.open_writable_dir(&name) {
                // The pointer survived a power failure, and the log directory did not.
                Err(error) if error.kind == ErrorKind::NotFound => error,
                opened => return opened,
            },
            None => Error::new(ErrorKind::NotFound, "open", logs_name(number)),
        };
        if create { self.create(number) } else { Err(not_found) }
    }

    /// Returns the parent directory and the name of a log directory, if it exists.
    pub fn find(&self, number: u32) -> Result<Option<Named>> {
        let name = logs_name(number);
        let pointed = match none_if_not_found(self.dir.stat(&name))? {
            Some(stat) if stat.kind() == Some(Kind::Dir) => return Ok(Some((Arc::clone(self.dir), name))),
            Some(_) => read_pointer(self.stores, &**self.dir, &name)?,
            None => None,
        };
        // If a power failure removed the pointer, the next writer would create it again. Without a
        // pointer, the log directory is therefore looked up in the store that placement gives.
        let store = match pointed {
            Some(store) => store,
            None => match self.placed(number) {
                store if store == self.home => return Ok(None),
                store => store,
            },
        };
        let parts = self.stores.parts_dir(store)?;
        let own = parts.open_writable_dir(&number_name(self.container));
        let own = match own.and_then(|own| own.stat(&name).map(|_| own)) {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
            own => own?,
        };
        let owner = own.stat_self()?.uid;
        // The two owners are almost always equal. The owners of the pointers are read only if the
        // two differ.
        let is_plain = owner == self.dir.stat_self()?.uid;
        match is_plain || owners_of(&**self.dir)?.contains(&owner) {
            true => Ok(Some((own, name))),
            false => Err(of_another_user(&name)),
        }
    }

    /// Returns the store for a new log directory.
    pub fn placed(&self, number: u32) -> StoreNumber {
        self.stores.home(&[&self.container.to_le_bytes()[..], &number.to_le_bytes()].concat())
    }

    /// Creates a log directory in the store that placement gives.
    fn create(&self, number: u32) -> Result<Arc<dyn WritableDir>> {
        let mut attempts = 1;
        loop {
            match self.create_once(number) {
                // Another mount has changed the owner of the file meanwhile, or has removed the
                // directory because it could not give it to the new owner.
                Err(error)
                    if (error.errno() == errno::EPERM || error.kind == ErrorKind::NotFound)
                        && attempts < CREATE_ATTEMPTS_MAX =>
                {
                    attempts += 1;
                }
                created => return created,
            }
        }
    }

    /// Creates a log directory for the current owner of the file.
    ///
    /// # Errors
    ///
    /// EPERM if the owner of the container changes before the directory has its owner.
    fn create_once(&self, number: u32) -> Result<Arc<dyn WritableDir>> {
        let name = logs_name(number);
        let permissions = self.dir.stat_self()?.mode & 0o7777;
        // If root serves other users, the directory belongs to the file's owner.
        let owner = match self.stores.has_root_power() {
            true => Some(self.dir.stat(ACCESS).map(|access| (access.uid, access.gid))?),
            false => None,
        };
        let create = |parent: &dyn WritableDir, name: &[u8], permissions| {
            open_or_create_dir_for(parent, name, permissions, owner)
        };
        let mut store = self.placed(number);
        // Nothing new is created in a drained store.
        if store != self.home && !self.stores.is_open_for_new(store)? {
            if !self.stores.refresh()? {
                return Err(Error::new(ErrorKind::NotFound, "create", name));
            }
            store = self.placed(number);
        }
        if store == self.home {
            return create_or_open_dir_for(&**self.dir, &name, logs_permissions(permissions), owner);
        }
        let own = create(&*self.stores.parts_dir(store)?, &number_name(self.container), permissions)?;
        let owner = own.stat_self()?.uid;
        // The user who creates the pointer becomes one of the owners.
        if owner != self.stores.acting_uid() && !owners_of(&**self.dir)?.contains(&owner) {
            return Err(of_another_user(&name));
        }
        let dir = create(&*own, &name, logs_permissions(permissions))?;
        match self.point_first(&name, store)? {
            pointed if pointed == store => Ok(dir),
            pointed => {
                let _ = own.remove_dir(&name); // no pointer names it
                let parts = self.stores.parts_dir(pointed)?;
                parts.open_writable_dir(&number_name(self.container))?.open_writable_dir(&name)
            }
        }
    }

    /// Creates the pointer `name` to `store`, unless there is one already. A mount that does not
    /// know an added store may have chosen another store. Returns the store that the pointer names.
    fn point_first(&self, name: &[u8], store: StoreNumber) -> Result<StoreNumber> {
        match self.point(name, store, Rename::Keep) {
            Err(error) if matches!(error.kind, ErrorKind::Exists | ErrorKind::Unsupported) => {
                match none_if_not_found(read_pointer(self.stores, &**self.dir, name))?.flatten() {
                    Some(pointed) => Ok(pointed),
                    None => self.point(name, store, Rename::Replace).map(|()| store),
                }
            }
            pointed => pointed.map(|()| store),
        }
    }

    fn point(&self, name: &[u8], store: StoreNumber, mode: Rename) -> Result<()> {
        write_pointer(self.stores, self.home, &**self.dir, name, store, mode)
    }

    /// Makes the pointer to a log directory in another store survive a power failure.
    pub fn sync(&self, number: u32) -> Result<()> {
        let name = logs_name(number);
        let pointed = match none_if_not_found(self.dir.stat(&name))? {
            Some(stat) if stat.kind() == Some(Kind::Dir) => return Ok(()),
            Some(_) => read_pointer(self.stores, &**self.dir, &name)?,
            None => None,
        };
        if pointed.is_none() {
            self.point(&name, self.placed(number), Rename::Replace)?;
        }
        if let Some((dir, _)) = self.find(number)? {
            dir.sync()?;
        }
        self.stores.list().stores.iter().try_for_each(|store| store.parts_dir()?.sync())
    }

    /// Returns the container's directories in the `parts` of all stores.
    pub fn in_parts(&self) -> Result<Vec<Named>> {
        in_parts(self.stores, self.container, &known_owners(self.stores, &**self.dir)?)
    }
}

/// Deletes the container with the number `container` that has the name `name` in the `trash` of
/// store `home`, and its log directories in other stores.
pub(crate) fn delete_container(
    stores: &Stores,
    home: StoreNumber,
    name: &[u8],
    container: u128,
) -> Result<()> {
    let (trash, list) = (stores.trash_dir(home)?, stores.list());
    // A container in a single store has no log directories elsewhere.
    let owners = match list.len() == 1 && !stores.has_changed(&list)? {
        true => Vec::new(),
        false => known_owners(stores, &*trash.open_writable_dir(name)?)?,
    };
    let mut removed = remove_tree(&*trash, name);
    for (parts, number) in in_parts(stores, container, &owners)? {
        removed = removed.and(remove_tree(&*parts, &number));
    }
    removed
}

/// Returns the owners whose directories in `parts` belong to the container. If the container has
/// pointers, looks for a newer placement map first, so that all stores to which they refer are
/// known.
fn known_owners(stores: &Stores, container: &dyn WritableDir) -> Result<Vec<u32>> {
    let (owners, has_pointers) = owners_and_pointers(container)?;
    if has_pointers {
        stores.refresh()?;
    }
    Ok(owners)
}

/// Returns the directories in `parts` of the container with this number, if they belong to one of
/// `owners`.
fn in_parts(stores: &Stores, container: u128, owners: &[u32]) -> Result<Vec<Named>> {
    let (name, mut found, list) = (number_name(container), Vec::new(), stores.list());
    if list.len() > 1 {
        for store in &list.stores {
            let parts = store.parts_dir()?;
            match parts.stat(&name) {
                Ok(stat) if owners.contains(&stat.uid) => found.push((parts, name.clone())),
                Err(error) if error.kind != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(found)
}

/// Returns the users whose directories in `parts` belong to a container: its owner, and the owners
/// of `access` and of its pointers. The number alone is not sufficient, because any user can know
/// or forge it.
pub(crate) fn owners_of(container: &dyn WritableDir) -> Result<Vec<u32>> {
    Ok(owners_and_pointers(container)?.0)
}

/// Returns the owners as `owners_of` does, and whether the container has pointers.
fn owners_and_pointers(container: &dyn WritableDir) -> Result<(Vec<u32>, bool)> {
    let mut has_pointers = false;
    let mut owners = vec![container.stat_self()?.uid];
    for name in container.names()? {
        if name != ACCESS && !name.starts_with(b"logs-") {
            continue;
        }
        let Some(stat) = none_if_not_found(container.stat(&name))? else { continue };
        let is_file = stat.kind() == Some(Kind::File);
        has_pointers |= is_file && name != ACCESS;
        // A file with several links may have been created elsewhere, and root creates pointers for
        // other users, so the owner of such a file is ignored.
        if is_file && stat.nlink == 1 && stat.uid != 0 {
            owners.push(stat.uid);
        }
    }
    owners.sort_unstable();
    owners.dedup();
    Ok((owners, has_pointers))
}

fn of_another_user(name: &[u8]) -> Error {
    Error {
        source: Some("the directory of this container in another store belongs to another user".into()),
        ..Error::new(ErrorKind::Damaged, "open", name)
    }
}
