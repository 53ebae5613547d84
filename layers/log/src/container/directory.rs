//! A container: the directory in a store that holds one file (PLFS, figure 1). This module creates,
//! opens, changes and removes containers; other modules read the logs. The format is described in
//! docs/formats/log.md.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use quell_posix::{OpenFile, Stat, WritableDir, WritableFile, assume};
use quell_vfs::{Change, Error, ErrorKind, FileIdentity, Kind, NewEntry, Rename, Result, errno, printable};

use crate::container::data_log::{rewrite, verify_frames};
use crate::container::flat_index::Flat;
use crate::container::lock_file::with_locks_excluded;
use crate::container::log_directories::{LogDirectories, delete_container};
use crate::container::object::{FIRST_EPOCH, Object, name_new};
use crate::container::permissions::{dir_permissions, effective_set_id, logs_permissions};
use crate::format::{
    ACCESS, BLOCK_BYTES, CONTAINER_RECORD, CONTAINER_VERSION, Closed, EPOCH_PREFIX, FLAT_PREFIX, GIVEN_AWAY,
    HEAD_BYTES, Head, HeadKind, LogPosition, META, MOVED, MetaName, OBJECT_VERSION, Summary, boot_of,
    data_name, epoch_name, index_name, is_name_of_container, number_name,
};
use crate::locks::{Rank, RankedMutex};
use crate::not_found::none_if_not_found;
use crate::stores::{CreationState, Host, StoreNumber, Stores, Ticket, remove_tree};

/// Permissions of log files. Every user that can reach a log can read it: the container's directory
/// restricts access.
pub(crate) const LOG_PERMISSIONS: u32 = 0o644;
/// Permissions of a file that is not complete.
const OWN_PERMISSIONS: u32 = 0o600;

/// Superseded names are removed from `meta` when there are this many of them.
const SUPERSEDED_KEPT: usize = 16;

/// Directories with up to this number of names are read with a single system call.
const NAMES_READ_AT_ONCE: usize = 100;

/// The largest number of temporary names that are compared with a file. Any user may create such
/// names.
const TEMPORARY_NAMES_MAX: usize = 1024;

/// Identifies a container among all existing containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContainerIdentity {
    pub store: StoreNumber,
    /// The identity of the container's directory.
    pub dir: FileIdentity,
}

/// The container of an object, as it was found.
struct FoundContainer {
    dir: Arc<dyn WritableDir>,
    record: Head,
}

/// An open container. It remains usable after it was renamed or removed, like an open file.
pub struct Container {
    /// The object as which the file began.
    object: Option<Object>,
    /// The container's directory. Not set as long as the file is only an object.
    dir: OnceLock<Arc<dyn WritableDir>>,
    /// The record, once the file has a container. Until then, `planned` is the record that this
    /// process would create.
    record: OnceLock<Head>,
    planned: Head,
    /// Held while one thread creates the container of an object.
    creating: RankedMutex<()>,
    /// The state in which the file was found to be only an object. As long as it is the state of
    /// the stores, no process can have created the container.
    only_object_in: RankedMutex<Option<CreationState>>,
    identity: FileIdentity,
    home: StoreNumber,
    stores: Arc<Stores>,
    meta: OnceLock<Arc<dyn WritableDir>>,
    /// The key of this container's log directories in the cache of open log directories.
    ticket: Ticket,
    /// This process has removed the object.
    is_removed: AtomicBool,
    /// The name of the container in `trash`, if the object had lost its name before the container
    /// was created.
    name_in_trash: RankedMutex<Option<Vec<u8>>>,
    /// A sync of the record failed. The record is rewritten before the next sync, because that sync
    /// would succeed even if the data was lost.
    is_record_doubtful: AtomicBool,
}

impl std::fmt::Debug for Container {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Container").field("number", &self.planned.container).finish_non_exhaustive()
    }
}

impl Container {
    /// Creates a container for an empty file. It gets the name `name` in `parent`, a directory of
    /// store `home`, after it is complete.
    ///
    /// # Errors
    ///
    /// `Exists` if the name is in use.
    pub fn create(
        stores: &Arc<Stores>,
        home: StoreNumber,
        parent: &dyn WritableDir,
        name: &[u8],
        new: NewEntry,
    ) -> Result<Container> {
        let number = stores.random_number();
        let head = Head {
            kind: HeadKind::Container,
            version: CONTAINER_VERSION,
            block_bytes: BLOCK_BYTES,
            container: number,
            writer: 0,
            directories: stores.directories(),
            process: None,
        };
        let temporaries = stores.new_dir(home)?;
        let temporary = format!("{number:032x}").into_bytes();
        let made =
            temporaries.make_and_open_dir(&temporary, dir_permissions(new.permissions)).and_then(|dir| {
                let meta = Self::create_content(stores, &*dir, head, new, true)?;
                let container = Container::new(dir, head, home, stores)?;
                let _ = container.meta.set(meta); // it was not set before
                Ok(container)
            });
        let named = made.and_then(|container| {
            temporaries.rename(&temporary, parent, name, Rename::Replace).map_err(exists_if_in_use)?;
            Ok(container)
        });
        tracing::debug!(
            container = %format_args!("{number:032x}"),
            name = %printable(name),
            store = home,
            is_created = named.is_ok(),
            "created a container"
        );
        if named.is_err() {
            // The incomplete container is not needed. If it cannot be removed now, `quell log fsck`
            // finds it.
            let _ = remove_tree(&*temporaries, &temporary);
        }
        named
    }

    /// Creates the record, `meta`, and `access` if `is_complete` is true. Returns `meta`.
    fn create_content(
        stores: &Stores,
        dir: &dyn WritableDir,
        head: Head,
        new: NewEntry,
        is_complete: bool,
    ) -> Result<Arc<dyn WritableDir>> {
        dir.create_file(CONTAINER_RECORD, LOG_PERMISSIONS)?.write_at(&head.encode(), 0)?;
        let access = match is_complete {
            true => Some(dir.create_file(ACCESS, new.permissions)?),
            false => None,
        };
        let meta = dir.make_and_open_dir(META, dir_permissions(new.permissions))?;
        // If root serves a user, it creates entries with the rights of the directory's owner.
        let host = stores.host();
        let (uid, gid) = match host.uid {
            0 => dir.stat_self().map(|made| (made.uid, made.gid))?,
            _ => (host.uid, host.gid),
        };
        if (uid, gid) != (new.uid, new.gid) {
            let change = Change { uid: Some(new.uid), gid: Some(new.gid), ..Change::default() };
            if let Some(access) = access {
                access.change(&Change { permissions: Some(new.permissions), ..change })?;
            }
            dir.change(META, &change)?;
            dir.change(b"", &change)?;
        }
        Ok(meta)
    }

    fn new(
        dir: Arc<dyn WritableDir>,
        head: Head,
        home: StoreNumber,
        stores: &Arc<Stores>,
    ) -> Result<Container> {
        let identity = dir.stat_self()?.identity();
        let new = Container::with(None, head, identity, home, stores);
        let _ = (new.dir.set(dir), new.record.set(head)); // they were not set before
        Ok(new)
    }

    fn with(
        object: Option<Object>,
        planned: Head,
        identity: FileIdentity,
        home: StoreNumber,
        stores: &Arc<Stores>,
    ) -> Container {
        Container {
            object,
            dir: OnceLock::new(),
            record: OnceLock::new(),
            planned,
            creating: RankedMutex::new(Rank::ContainerCreation, ()),
            only_object_in: RankedMutex::new(Rank::Leaf, None),
            identity,
            home,
            stores: Arc::clone(stores),
            meta: OnceLock::new(),
            ticket: stores.log_dirs().ticket(),
            is_removed: AtomicBool::new(false),
            name_in_trash: RankedMutex::new(Rank::Leaf, None),
            is_record_doubtful: AtomicBool::new(false),
        }
    }

    /// Creates a file as an object with the name `name` in `parent`, a directory of store `home`.
    /// `has_writer` is true if the process that creates the file may write to it. Returns the
    /// attributes of the object, too.
    ///
    /// # Errors
    ///
    /// `Exists` if the name is in use.
    pub fn create_object(
        stores: &Arc<Stores>,
        home: StoreNumber,
        parent: &dyn WritableDir,
        name: &[u8],
        new: NewEntry,
        has_writer: bool,
    ) -> Result<(Container, Stat)> {
        let numbers = (stores.random_number(), stores.random_writer());
        // Read before other processes can find the object.
        let state = stores.creation_state();
        let create = |temporaries: &dyn WritableDir| {
            Object::create(temporaries, (parent, name), new, numbers, stores.host(), has_writer)
        };
        let (object, stat) = match create(&*stores.kept_new_dir(home)?) {
            // `new` may have been removed when the store was drained, and created again.
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Stale) => {
                create(&*stores.reopened_new_dir(home)?)?
            }
            created => created?,
        };
        stores.set_has_named_object();
        Ok((Container::of_new_object(stores, home, name, (object, &stat), state), stat))
    }

    /// Creates a file as `create_object` does, but under its name ([`Object::create_in_place`]).
    /// The process that creates it may write to it. Must be called in
    /// [`Stores::while_creating_file`], while this process is the only user of the store.
    pub fn create_object_in_place(
        stores: &Arc<Stores>,
        home: StoreNumber,
        parent: &dyn WritableDir,
        name: &[u8],
        permissions: u32,
        set_attributes: &dyn Fn(&dyn WritableFile, Stat) -> Result<Stat>,
    ) -> Result<(Container, Stat)> {
        let numbers = (stores.random_number(), stores.random_writer());
        let state = stores.creation_state();
        let file: Arc<dyn WritableFile> = Arc::from(parent.create_file_with_umask(name, permissions)?);
        let created = Object::create_in_place(Arc::clone(&file), numbers, stores.host(), set_attributes);
        let (object, stat) = created.inspect_err(|_| {
            // If this process has lost its lock on the store, the name may belong to another file,
            // which must not be removed.
            let own = file.stat().map(|stat| stat.identity());
            let found = parent.stat(name).map(|stat| stat.identity());
            if own.is_ok_and(|own| found.is_ok_and(|found| found == own)) {
                let _ = parent.remove(name); // otherwise `quell log fsck` finds it
            }
        })?;
        Ok((Container::of_new_object(stores, home, name, (object, &stat), state), stat))
    }

    /// Returns the file that begins as this object. `state` was read before the object was created.
    fn of_new_object(
        stores: &Arc<Stores>,
        home: StoreNumber,
        name: &[u8],
        (object, stat): (Object, &Stat),
        state: Option<CreationState>,
    ) -> Container {
        let number = object.head().container;
        tracing::debug!(
            container = %format_args!("{number:032x}"),
            name = %printable(name),
            store = home,
            "created an object"
        );
        let planned = record_of_object(stores, number);
        let container = Container::with(Some(object), planned, stat.identity(), home, stores);
        *container.only_object_in.lock() = state;
        stores.known_objects().remove((home, stat.identity()));
        container
    }

    /// Opens a file that began as an object.
    fn open_object(
        stores: &Arc<Stores>,
        home: StoreNumber,
        parent: &dyn WritableDir,
        name: &[u8],
    ) -> Result<Container> {
        let (file, stat) = parent.open_file_and_stat(name)?;
        let state = stores.creation_state();
        let known = state.and_then(|state| stores.known_objects().head(state, home, &stat));
        let object = match known {
            Some(head) => Object::open_known(Arc::from(file), head, &stat),
            None => Object::open(Arc::from(file), &stat, name)?,
        };
        let planned = record_of_object(stores, object.head().container);
        let container = Container::with(Some(object), planned, stat.identity(), home, stores);
        if known.is_some() {
            *container.only_object_in.lock() = state;
        }
        Ok(container)
    }

    /// Identifies this container among all existing containers.
    pub fn identity(&self) -> ContainerIdentity {
        ContainerIdentity { store: self.home, dir: self.identity }
    }

    /// Opens the container `name` in `parent`.
    ///
    /// # Errors
    ///
    /// `NotFound`, also for a directory that is not a container, and `Damaged`.
    pub fn open(
        stores: &Arc<Stores>,
        home: StoreNumber,
        parent: &dyn WritableDir,
        name: &[u8],
    ) -> Result<Container> {
        let is_file = || parent.stat(name).is_ok_and(|stat| stat.kind() == Some(Kind::File));
        let dir = match parent.open_writable_dir(name) {
            Err(error) if error.kind == ErrorKind::NotADirectory => {
                return match Container::open_object(stores, home, parent, name) {
                    // Another mount has removed or replaced it.
                    Err(now) if now.kind == ErrorKind::NotFound => Err(now),
                    Err(_) if !is_file() => Err(error),
                    opened => opened,
                };
            }
            opened => opened?,
        };
        let record = match dir.open_file(CONTAINER_RECORD) {
            Err(error) if error.kind == ErrorKind::NotFound && is_remains_of_container(&*dir)? => {
                return Err(Error {
                    source: Some("its record was lost before the file was synced".into()),
                    ..Error::new(ErrorKind::Damaged, "read", name)
                });
            }
            record => record?,
        };
        let head = read_record(&*record, name)?;
        let number = head.container;
        tracing::debug!(
            container = %format_args!("{number:032x}"),
            name = %printable(name),
            store = home,
            "opened a container"
        );
        Container::new(dir, head, home, stores)
    }

    /// Opens a file as [`open`](Self::open) does. `found` is the kind that the name had before. If
    /// it is known, opening an object takes one request fewer.
    pub fn open_as(
        stores: &Arc<Stores>,
        home: StoreNumber,
        parent: &dyn WritableDir,
        name: &[u8],
        found: Option<Kind>,
    ) -> Result<Container> {
        if found == Some(Kind::File) {
            match Container::open_object(stores, home, parent, name) {
                // Another mount may have replaced the object by a container.
                Err(error) if error.kind == ErrorKind::IsADirectory => {}
                opened => return opened,
            }
        }
        Container::open(stores, home, parent, name)
    }

    /// Returns the number of the container.
    pub fn number(&self) -> u128 {
        self.planned.container
    }

    /// Returns the number as the names in a store contain it, for tracing events.
    pub(crate) fn shown_number(&self) -> String {
        format!("{:032x}", self.planned.container)
    }

    /// Returns the record of the container.
    pub fn head(&self) -> &Head {
        self.record.get().unwrap_or(&self.planned)
    }

    /// Returns the store that holds the container.
    pub fn home(&self) -> StoreNumber {
        self.home
    }

    /// Returns this process and its node.
    pub fn host(&self) -> &Host {
        self.stores.host()
    }

    /// Returns the stores of the mount.
    pub fn stores(&self) -> &Arc<Stores> {
        &self.stores
    }

    /// Returns the container's directory, which is created if the file is only an object.
    pub fn dir(&self) -> Result<&Arc<dyn WritableDir>> {
        match self.dir.get() {
            Some(dir) => Ok(dir),
            None => self.create_or_open_dir(),
        }
    }

    /// Returns the container's directory for a lock of a user who may read the file. If the file is
    /// only an object, only its owner may create the container, but root's mount does so for all
    /// users, who do not get any permission by this.
    pub(crate) fn dir_for_lock(&self) -> Result<&Arc<dyn WritableDir>> {
        if self.dir.get().is_none() && self.stores.host().uid == 0 {
            let _process = assume(None)?;
            return self.dir();
        }
        self.dir()
    }

    /// Returns the object as which the file began.
    pub(crate) fn object(&self) -> Option<&Object> {
        self.object.as_ref()
    }

    /// Returns the object if it is the data log of `writer`.
    pub(crate) fn object_of(&self, writer: u64) -> Option<&Object> {
        self.object.as_ref().filter(|object| object.writer() == writer)
    }

    /// Returns the object if the file has no container. Another process may create one at any time.
    pub(crate) fn only_object(&self) -> Result<Option<&Object>> {
        Ok(if self.existing_dir()?.is_none() { self.object.as_ref() } else { None })
    }

    /// Records that the first writer has ended, and that the file was only an object afterwards.
    /// Does nothing if other processes may change this.
    pub(crate) fn note_complete(&self) {
        let state = *self.only_object_in.lock();
        if let (Some(object), Some(state)) = (&self.object, state)
            && let Some(size_bytes) = object.complete_bytes()
        {
            let key = (self.home, self.identity);
            self.stores.known_objects().add(state, key, size_bytes, object.head());
        }
    }

    /// Returns true if the file is known to be only an object, and no process is creating its
    /// container.
    pub(crate) fn is_known_only_object(&self) -> bool {
        let state = self.stores.creation_state();
        state.is_some() && *self.only_object_in.lock() == state
    }

    /// Returns true if the file was only an object when this process last looked for its container.
    pub(crate) fn was_only_object(&self) -> bool {
        self.object.is_some() && self.dir.get().is_none()
    }

    /// Returns the container's directory, if any process has created it completely.
    fn existing_dir(&self) -> Result<Option<&Arc<dyn WritableDir>>> {
        if self.dir.get().is_none()
            && let Some(found) = self.find_container()?
        {
            self.keep_if_complete(&found)?;
        }
        Ok(self.dir.get())
    }

    /// Keeps the container of an object open if it is part of the file. Returns whether it is part
    /// of the file.
    fn keep_if_complete(&self, found: &FoundContainer) -> Result<bool> {
        let Some(access) = none_if_not_found(found.dir.stat(ACCESS))? else { return Ok(false) };
        if access.nlink > 1
            && let Err(error) = self.remove_temporary_name(&*found.dir)
        {
            tracing::debug!(container = %self.shown_number(), %error, "`access` may keep a second name");
        }
        // Another thread may have set the same values.
        let _ = (self.record.set(found.record), self.dir.set(Arc::clone(&found.dir)));
        Ok(true)
    }

    /// Removes the temporary name of `access`. On file systems that cannot rename a file without
    /// replacing another one, `access` has a second name for a moment after it was created, and
    /// keeps it if its creator is killed (see [`name_new`]). Locks and changes of attributes fail
    /// while it has two names, because another user may have created one of them.
    fn remove_temporary_name(&self, dir: &dyn WritableDir) -> Result<()> {
        // The process's own credentials, because any user may have created the name.
        let _process = assume(None)?;
        // This node may have cached the link count before the creator removed the name.
        let access = dir.stat_from_server(ACCESS)?;
        if access.nlink < 2 {
            return Ok(());
        }
        let temporaries = self.stores.temporary_dir(self.home)?;
        for name in temporaries.names()?.into_iter().take(TEMPORARY_NAMES_MAX) {
            let found = none_if_not_found(temporaries.stat(&name))?;
            if found.is_some_and(|found| found.identity() == access.identity()) {
                return none_if_not_found(temporaries.remove(&name)).map(drop);
            }
        }
        Ok(())
    }

    /// Finds the container of an object, which is not part of the file before it has `access`. The
    /// container must belong to the owner of the object, because any user can know or forge the
    /// number; or to root, while root gives the file from one user to another.
    fn find_container(&self) -> Result<Option<FoundContainer>> {
        let Some(object) = &self.object else { return Ok(None) };
        if self.is_known_only_object() {
            return Ok(None);
        }
        let state = self.stores.creation_state();
        let (parts, name) = (self.stores.kept_parts_dir(self.home)?, number_name(self.number()));
        let mut known_owner = None;
        loop {
            let opened = parts.open_writable_dir(&name);
            if opened.as_ref().is_err_and(|error| error.kind == ErrorKind::NotFound) {
                *self.only_object_in.lock() = state;
                return Ok(None);
            }
            // The owner of the object is read before and after the owner of the directory, but not
            // at all if there is no directory, which is almost always the case.
            let Some(owner) = known_owner else {
                known_owner = Some(object.stat()?.uid);
                continue;
            };
            let dir_owner = match &opened {
                Ok(dir) => dir.stat_self()?.uid,
                // Another user's directory must not prevent the use of the file.
                Err(_) => match none_if_not_found(parts.stat(&name))? {
                    Some(stat) => stat.uid,
                    None => return Ok(None),
                },
            };
            if dir_owner == owner {
                return self.read_container(opened?, owner, &name);
            }
            if dir_owner == 0
                && let Ok(dir) = &opened
                && is_given_to(&**dir, owner)?
            {
                return self.read_container(opened?, owner, &name);
            }
            // Root may have changed the owner of both meanwhile.
            known_owner = Some(object.stat()?.uid);
            if known_owner == Some(owner) {
                return Ok(None);
            }
        }
    }

    /// Reads the record of the container of an object, whose owner is `owner`.
    fn read_container(
        &self,
        dir: Arc<dyn WritableDir>,
        owner: u32,
        name: &[u8],
    ) -> Result<Option<FoundContainer>> {
        let Some(file) = none_if_not_found(dir.open_file(CONTAINER_RECORD))? else { return Ok(None) };
        let stat = file.stat()?;
        // Other users may have moved this file here.
        if stat.nlink != 1 || !(stat.uid == owner || stat.uid == 0) {
            return Ok(None);
        }
        let record = read_record(&*file, name)?;
        match record.container == self.number() && record.block_bytes == self.planned.block_bytes {
            true => Ok(Some(FoundContainer { dir, record })),
            false => Err(Error {
                source: Some("it belongs to another file".into()),
                ..Error::new(ErrorKind::Damaged, "open", name)
            }),
        }
    }

    /// Creates the container of an object, or opens the container that another process has created.
    /// From then on, writers other than the first one have logs, and the names in `meta` take
    /// effect.
    fn create_or_open_dir(&self) -> Result<&Arc<dyn WritableDir>> {
        let _one = self.creating.lock();
        if let Some(dir) = self.existing_dir()? {
            return Ok(dir);
        }
        let object = self.object.as_ref().expect("a file without a directory is an object");
        // The container would be useless if this node failed before the object has its header.
        object.write_back_new()?;
        if self.is_removed.load(Ordering::SeqCst) && !object.has_name()? {
            self.create_in_trash(object)?;
        } else {
            match self.create_or_open_in_parts(object) {
                Err(error)
                    if error.kind == ErrorKind::Stale && self.is_unnamed(object, &object.stat()?)? =>
                {
                    self.create_in_trash(object)?;
                }
                created => created?,
            }
        }
        Ok(self.dir.get().expect("it was set"))
    }

    /// Creates the container of an object in `parts`, where each process finds it, or opens it.
    ///
    /// # Errors
    ///
    /// `Stale` if the object has no name.
    fn create_or_open_in_parts(&self, object: &Object) -> Result<()> {
        let stat = object.stat()?;
        if self.is_unnamed(object, &stat)? {
            return Err(removed());
        }
        self.check_may_create_container(&stat)?;
        if self.find_container()?.is_none() {
            self.begin_container(object, &stat)?;
        }
        match self.complete_if_begun()? {
            true => Ok(()),
            false if self.is_unnamed(object, &object.stat()?)? => Err(removed()),
            false => Err(Error {
                source: Some("a directory of another user has its name in `parts`".into()),
                ..Error::new(ErrorKind::Damaged, "create the container of", self.shown_number())
            }),
        }
    }

    /// Creates the container of an object that has lost its name, for the handles of this process
    /// that still use the file. The container is created in `trash`, where no other process uses
    /// it: the process that has removed the object has looked in `parts` already, and would leave a
    /// container there. [`take_name_in_trash`](Self::take_name_in_trash) returns its name.
    fn create_in_trash(&self, object: &Object) -> Result<()> {
        let stat = object.stat()?;
        self.check_may_create_container(&stat)?;
        let (trash, name) = (self.stores.trash_dir(self.home)?, number_name(self.stores.random_number()));
        let created = self.make_container(object, &stat, &*trash, &name).and_then(|dir| {
            self.complete(object, &stat, &*dir)?;
            Ok(dir)
        });
        tracing::debug!(
            container = %self.shown_number(),
            is_created = created.is_ok(),
            "creating the container of a removed object"
        );
        match created {
            Ok(dir) => {
                *self.name_in_trash.lock() = Some(name);
                let _ = (self.record.set(self.planned), self.dir.set(dir)); // they were not set before
                self.note_end_of_first_writer(object)
            }
            Err(error) => {
                // Otherwise `quell log fsck` finds it.
                let _ = none_if_not_found(remove_tree(&*trash, &name));
                Err(error)
            }
        }
    }

    /// Records that this process has removed the object. Its link count does not show this if the
    /// node has renamed the open object instead of removing it, as on NFS.
    ///
    /// A thread that removes the object calls this before it looks in `parts`, and a thread that
    /// creates the container there calls [`is_unnamed`](Self::is_unnamed) afterwards. So at least
    /// one of the two removes a container that is created during the removal.
    pub(crate) fn set_removed(&self) {
        self.is_removed.store(true, Ordering::SeqCst);
        self.stores.known_objects().remove((self.home, self.identity));
    }

    /// Returns true if the object, which has these attributes, has no name.
    fn is_unnamed(&self, object: &Object, stat: &Stat) -> Result<bool> {
        Ok(stat.nlink == 0 || self.is_removed.load(Ordering::SeqCst) && !object.has_name()?)
    }

    /// Returns the name of the container in `trash` if this process has created it after the object
    /// had lost its name. The caller deletes the container when the file is closed.
    pub(crate) fn take_name_in_trash(&self) -> Option<Vec<u8>> {
        self.name_in_trash.lock().take()
    }

    /// Fails unless this process may create the container of an object with these attributes.
    fn check_may_create_container(&self, object: &Stat) -> Result<()> {
        match self.may_create_container(object) {
            true => Ok(()),
            false => {
                let reason =
                    "the file belongs to another user; only its owner and root can create its container";
                Err(Error {
                    source: Some(reason.into()),
                    ..Error::new(ErrorKind::PermissionDenied, "create the container of", self.shown_number())
                })
            }
        }
    }

    /// Returns true if this process may create the container of an object with these attributes.
    fn may_create_container(&self, object: &Stat) -> bool {
        object.uid == self.stores.acting_uid() || self.stores.has_root_power()
    }

    /// Creates the container of an object, without `access`.
    fn begin_container(&self, object: &Object, stat: &Stat) -> Result<()> {
        let (temporaries, parts) =
            (self.stores.temporary_dir(self.home)?, self.stores.kept_parts_dir(self.home)?);
        let (temporary, name) = (number_name(self.stores.random_number()), number_name(self.number()));
        let made = self.make_container(object, stat, &*temporaries, &temporary).and_then(|_| {
            self.stores.begin_creation_state();
            let renamed = temporaries.rename(&temporary, &*parts, &name, Rename::Replace);
            // Otherwise a thread that has looked for the container before the rename would record
            // that there is none in the current state.
            self.stores.begin_creation_state();
            renamed.map_err(exists_if_in_use)?;
            if object.may_be_synced() { parts.sync() } else { Ok(()) }
        });
        tracing::debug!(
            container = %self.shown_number(),
            is_created = made.is_ok(),
            "creating the container of an object"
        );
        match made {
            Ok(()) => Ok(()),
            Err(error) => {
                // Otherwise `quell log fsck` finds it.
                let _ = none_if_not_found(remove_tree(&*temporaries, &temporary));
                match error.kind {
                    ErrorKind::Exists => Ok(()), // another process was faster
                    _ => Err(error),
                }
            }
        }
    }

    /// Creates the container of an object in `parent`, without `access`.
    fn make_container(
        &self,
        object: &Object,
        stat: &Stat,
        parent: &dyn WritableDir,
        name: &[u8],
    ) -> Result<Arc<dyn WritableDir>> {
        let permissions = stat.mode & 0o7777;
        let dir = parent.make_and_open_dir(name, dir_permissions(permissions))?;
        let new = NewEntry { permissions, uid: stat.uid, gid: stat.gid };
        let meta = Self::create_content(&self.stores, &*dir, self.planned, new, false)?;
        let first = MetaName::Open(object.unpublished(self.stores.host()));
        meta.create_file(first.encode().as_bytes(), LOG_PERMISSIONS)?;
        // After a power failure the container must not exist without the name of the first writer:
        // the data of the object would not be part of the file.
        if object.may_be_synced() {
            dir.open_file(CONTAINER_RECORD)?.sync()?;
            meta.sync()?;
            dir.sync()?;
        }
        Ok(dir)
    }

    /// Completes the container of an object if a process has begun to create it. Returns whether
    /// there is a container.
    ///
    /// A process that creates the container gives it its name, and reads the attributes and the end
    /// of the object afterwards, for `access` and `meta`. A process that changes or ends the object
    /// calls this function afterwards. So at least one of the two processes sees the change of the
    /// other, even if the other is killed.
    pub(crate) fn complete_if_begun(&self) -> Result<bool> {
        if self.dir.get().is_some() {
            return Ok(true);
        }
        let (Some(object), Some(found)) = (&self.object, self.find_container()?) else {
            return Ok(self.dir.get().is_some());
        };
        if self.keep_if_complete(&found)? {
            return Ok(true);
        }
        let stat = object.stat()?;
        if self.is_unnamed(object, &stat)? {
            self.discard_container()?;
            return Err(removed());
        }
        if !self.may_create_container(&stat) {
            return Ok(false); // nothing was written to it yet
        }
        self.complete(object, &stat, &*found.dir)?;
        match self.existing_dir()? {
            Some(_) => {
                self.note_end_of_first_writer(object)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Completes the container of an object with these attributes. `access` comes last.
    fn complete(&self, object: &Object, stat: &Stat, dir: &dyn WritableDir) -> Result<()> {
        let meta = dir.open_writable_dir(META)?;
        let (content, host) = (object.content(stat)?, self.stores.host());
        if content.is_ended {
            let summary = Summary::from_names(meta.names()?);
            for running in summary.open.into_iter().filter(|running| running.writer == object.writer()) {
                let open = MetaName::Open(running).encode();
                let closed = MetaName::Closed(object.closed(&content, stat, host)).encode();
                // Another process may complete the container at the same time.
                none_if_not_found(match content.file_bytes {
                    // Without a frame there is nothing that a name could describe.
                    0 => meta.remove(open.as_bytes()),
                    _ => meta.rename(open.as_bytes(), &*meta, closed.as_bytes(), Rename::Replace),
                })?;
            }
        }
        if object.may_be_synced() {
            meta.sync()?;
        }
        self.match_dirs(dir, stat)?;
        if !self.create_access(dir, stat)? {
            // Another process was faster, and may have read newer attributes.
            self.match_dirs(dir, &dir.stat(ACCESS)?)?;
        }
        if object.may_be_synced() { dir.sync() } else { Ok(()) }
    }

    /// Gives the directories of a container that is being created the attributes that follow from
    /// the attributes of the file.
    fn match_dirs(&self, dir: &dyn WritableDir, file: &Stat) -> Result<()> {
        let permissions = dir_permissions(file.mode & 0o7777);
        let found = dir.stat_self()?;
        if (found.gid, found.mode & 0o7777) == (file.gid, permissions) {
            return Ok(());
        }
        let change = Change { gid: Some(file.gid), permissions: Some(permissions), ..Change::default() };
        dir.change(META, &change)?;
        dir.change(b"", &change)
    }

    /// Creates `access` with the attributes of the file. Returns false if another process has
    /// created it.
    fn create_access(&self, dir: &dyn WritableDir, file: &Stat) -> Result<bool> {
        let (temporaries, temporary) =
            (self.stores.temporary_dir(self.home)?, number_name(self.stores.random_number()));
        let permissions = file.mode & 0o7777;
        let access = temporaries.create_file(&temporary, permissions)?;
        let found = access.stat()?;
        let owners = Change { uid: Some(file.uid), gid: Some(file.gid), ..Change::default() };
        let owners = if (found.uid, found.gid) == (file.uid, file.gid) { Change::default() } else { owners };
        let permissions = Some(permissions).filter(|_| owners.uid.is_some());
        let created = access
            .change(&Change { permissions, modified: Some(file.modified), ..owners })
            .and_then(|()| name_new(&*temporaries, &temporary, dir, ACCESS));
        match created {
            Ok(()) => Ok(true),
            Err(error) => {
                let _ = temporaries.remove(&temporary); // otherwise `quell log fsck` finds it
                match error.kind {
                    ErrorKind::Exists => Ok(false),
                    _ => Err(error),
                }
            }
        }
    }

    /// Removes the container of an object that was removed.
    pub(crate) fn discard_container(&self) -> Result<()> {
        let name = number_name(self.stores.random_number());
        match self.move_container_to_trash(&name)? {
            true => delete_container(&self.stores, self.home, &name, self.number()),
            false => Ok(()),
        }
    }

    /// Moves the container of an object that was removed to `trash`, under the name `name`. Returns
    /// false if there is none.
    pub(crate) fn move_container_to_trash(&self, name: &[u8]) -> Result<bool> {
        if self.find_container()?.is_none() {
            return Ok(false);
        }
        let (parts, trash) = (self.stores.kept_parts_dir(self.home)?, self.stores.trash_dir(self.home)?);
        let moved = parts.rename(&number_name(self.number()), &*trash, name, Rename::Replace);
        Ok(none_if_not_found(moved)?.is_some())
    }

    /// Records the end of the first writer, if the object shows that the writer has ended. The
    /// writer may have ended after the container was created and before it could find the
    /// container.
    fn note_end_of_first_writer(&self, object: &Object) -> Result<()> {
        let (stat, host) = (object.file().stat_from_server()?, self.stores.host());
        let content = object.content(&stat)?;
        match content.is_ended {
            true => self.end_first_writer(&object.closed(&content, &stat, host)),
            false => Ok(()),
        }
    }

    /// Records the end of a first writer that was killed. Its complete frames are part of the file.
    pub(crate) fn end_killed_first_writer(&self, object: &Object) -> Result<()> {
        self.dir()?;
        object.file().sync()?;
        let stat = object.stat()?;
        let closed = object.closed(&object.content(&stat)?, &stat, self.stores.host());
        self.end_first_writer(&Closed { is_synced: true, boot: 0, ..closed })?;
        self.meta()?.sync()
    }

    /// Records the end of the first writer in the container, unless another process has recorded
    /// it.
    pub(crate) fn end_first_writer(&self, closed: &Closed) -> Result<()> {
        let summary = self.summary()?;
        // The name depends on the node that has created it, so it is found by the number of the
        // writer.
        for running in summary.open.iter().filter(|running| running.writer == closed.writer) {
            let renamed = self.rename_meta(&MetaName::Open(running.clone()), &MetaName::Closed(*closed));
            none_if_not_found(unless_of_another(renamed))?;
        }
        Ok(())
    }

    /// Returns the attributes of the file, and the content of `meta`.
    pub fn access_and_summary(&self) -> Result<(Stat, Summary)> {
        match self.only_object()? {
            Some(object) => {
                let stat = object.stat()?;
                Ok((stat, self.summary_of_object(object, &stat)?))
            }
            None => Ok((self.dir()?.stat(ACCESS)?, self.summary()?)),
        }
    }

    /// Returns the attributes of the file, which are the attributes of `access` or of the object.
    pub fn access_stat(&self) -> Result<Stat> {
        match self.only_object()? {
            Some(object) => object.stat(),
            None => self.dir()?.stat(ACCESS),
        }
    }

    /// Returns the directory `meta`, which is opened once.
    pub fn meta(&self) -> Result<&dyn WritableDir> {
        if self.meta.get().is_none() {
            let _ = self.meta.set(self.dir()?.open_writable_dir(META)?);
        }
        Ok(&**self.meta.get().expect("it was set"))
    }

    /// Returns the current content of `meta`.
    pub fn summary(&self) -> Result<Summary> {
        if let Some(object) = self.only_object()? {
            return self.summary_of_object(object, &object.stat()?);
        }
        let meta = self.meta()?;
        let mut names = meta.names()?;
        // A name that is changed while a long directory is read may be missed both under its old
        // and its new name. A second listing contains it.
        if names.len() > NAMES_READ_AT_ONCE {
            names.extend(meta.names()?);
        }
        // The container was moved or removed: the names that are left would describe a smaller
        // file.
        if names.iter().any(|name| name == MOVED) || names.is_empty() && self.is_gone()? {
            return Err(Error::new(ErrorKind::NotFound, "look into", META));
        }
        Ok(Summary::from_names(names))
    }

    /// Returns the names that `meta` would have if the file were a container.
    pub(crate) fn names_of_object(&self) -> Result<Vec<Vec<u8>>> {
        match &self.object {
            Some(object) => {
                self.name_of_object(object, &object.stat()?).map(|name| name.into_iter().collect())
            }
            None => Ok(Vec::new()),
        }
    }

    fn summary_of_object(&self, object: &Object, stat: &Stat) -> Result<Summary> {
        Ok(Summary::from_names(self.name_of_object(object, stat)?))
    }

    fn name_of_object(&self, object: &Object, stat: &Stat) -> Result<Option<Vec<u8>>> {
        let host = self.stores.host();
        let content = object.content(stat)?;
        let name = match content.is_ended {
            true if content.file_bytes == 0 => None,
            true => Some(MetaName::Closed(object.closed(&content, stat, host))),
            false => Some(MetaName::Open(object.running(&content, stat, host))),
        };
        Ok(name.map(|name| name.encode().into_bytes()))
    }

    /// Creates a name in `meta`. Fails with `Exists` if the name exists already.
    pub fn add_meta(&self, name: &MetaName) -> Result<()> {
        self.meta()?.create_file(name.encode().as_bytes(), LOG_PERMISSIONS).map(drop)
    }

    /// Removes the names of `summary` that `new` supersedes, once there are `SUPERSEDED_KEPT` of
    /// them. Names that cannot be removed stay, because they have no effect.
    ///
    /// # Errors
    ///
    /// The errors of the sync of `meta` that precedes the removal.
    pub fn tidy_meta(&self, summary: &Summary, new: &MetaName) -> Result<()> {
        let superseded = summary.superseded(new);
        // After a power failure the new name must not be lost while the others are gone, so `meta`
        // is synced first. Several names are removed at once to save syncs.
        if superseded.len() < SUPERSEDED_KEPT {
            return Ok(());
        }
        self.meta()?.sync()?;
        for name in superseded {
            let _ = self.remove_meta(&name);
        }
        Ok(())
    }

    /// Replaces a name in `meta` by another one.
    pub fn rename_meta(&self, from: &MetaName, to: &MetaName) -> Result<()> {
        let meta = self.meta()?;
        meta.rename(from.encode().as_bytes(), meta, to.encode().as_bytes(), Rename::Replace)
    }

    /// Removes a name in `meta`.
    pub fn remove_meta(&self, name: &MetaName) -> Result<()> {
        self.meta()?.remove(name.encode().as_bytes())
    }

    /// Returns the epochs that are taken, and the names of the flat indices.
    pub fn epochs_and_flats(&self) -> Result<(Vec<u64>, Vec<Vec<u8>>)> {
        let (mut epochs, mut flats) = (Vec::new(), Vec::new());
        if self.only_object()?.is_some() {
            return Ok((epochs, flats));
        }
        for name in self.dir()?.names()? {
            let text = std::str::from_utf8(&name).unwrap_or("");
            if let Some(epoch) =
                text.strip_prefix(EPOCH_PREFIX).and_then(|hex| u64::from_str_radix(hex, 16).ok())
            {
                epochs.push(epoch);
            } else if text.starts_with(FLAT_PREFIX) {
                flats.push(name);
            }
        }
        epochs.sort_unstable();
        Ok((epochs, flats))
    }

    /// Takes `count` epochs that are larger than `seen` and all epochs that are taken, and returns
    /// the last of them. Other nodes may take the same epochs at the same time; these are then not
    /// ordered.
    ///
    /// The name is synced, so that a power failure cannot free the epochs, because data written in
    /// them may survive.
    pub fn take_epochs(&self, seen: u64, count: u64) -> Result<u64> {
        self.dir()?;
        let (epochs, _) = self.epochs_and_flats()?;
        self.take_after(epochs, seen, count)
    }

    /// Returns the epoch for a writer whose name in `meta` is new: `known`, the last epoch of this
    /// node (0 for none), if no other node has taken a larger one; otherwise a new one that is
    /// larger than all others and `seen`.
    ///
    /// A truncation takes its epoch before it lists `meta`, and a writer calls this after its name
    /// exists. Therefore either the writer's epoch is later than the truncation, or the truncation
    /// finds the name.
    pub fn epoch_of_new_writer(&self, known: u64, seen: u64) -> Result<u64> {
        let (epochs, _) = self.epochs_and_flats()?;
        if known > 0 && epochs.last().is_none_or(|last| *last <= known) {
            return Ok(known);
        }
        self.take_after(epochs, seen.max(known), 1)
    }

    fn take_after(&self, epochs: Vec<u64>, seen: u64, count: u64) -> Result<u64> {
        let last = epochs.last().copied().unwrap_or(FIRST_EPOCH).max(seen);
        // Counting cannot reach the largest number, so the name of this epoch is forged.
        let epoch = last.checked_add(count).ok_or_else(|| Error {
            source: Some("no epoch is left".into()),
            ..Error::new(ErrorKind::Damaged, "take", epoch_name(last))
        })?;
        tracing::debug!(container = %self.shown_number(), epoch, count, "taking epochs");
        let dir = self.dir()?;
        match dir.create_file(&epoch_name(epoch), LOG_PERMISSIONS) {
            Ok(_) => dir.sync()?,
            Err(error) if error.kind == ErrorKind::Exists => {}
            Err(error) => return Err(error),
        }
        for smaller in epochs {
            // Errors are ignored, because only the largest epoch counts, and other nodes may remove
            // the same names.
            let _ = dir.remove(&epoch_name(smaller));
        }
        Ok(epoch)
    }

    /// Returns the names of the flat indices, the newest last.
    pub fn flats(&self) -> Result<Vec<Vec<u8>>> {
        let (_, mut flats) = self.epochs_and_flats()?;
        // Epochs are hexadecimal without leading zeros, and the rest has a fixed length, so longer
        // names are later.
        flats.sort_by_key(|name| (name.len(), name.clone()));
        Ok(flats)
    }

    /// Opens a flat index. The error is `Damaged` if it is not usable or belongs to another user.
    pub fn open_flat(&self, name: &[u8]) -> Result<Flat> {
        let file = self.dir()?.open_file(name)?;
        let found = file.stat()?;
        self.check_owner_of_flat(&found, name)?;
        Flat::open(file, found.size_bytes, self.head(), name)
    }

    /// Refuses a flat index of another user. A flat index replaces all logs, and a forged one may
    /// hide data that is written later. Any user who has or once had write permission to the file
    /// may have added it. If it belongs neither to the file's owner nor to root nor to this
    /// process's user, it is treated as damaged, and readers use the logs.
    fn check_owner_of_flat(&self, found: &Stat, name: &[u8]) -> Result<()> {
        let trusted = [0, self.stores.acting_uid()];
        let is_owner = || Ok::<_, Error>(self.dir()?.stat_self()?.uid == found.uid);
        match found.nlink == 1 && (trusted.contains(&found.uid) || is_owner()?) {
            true => Ok(()),
            false => Err(Error {
                source: Some("it belongs to another user than the file".into()),
                ..Error::new(ErrorKind::Damaged, "open", name)
            }),
        }
    }

    /// Creates a flat index for the data up to `epoch`. It gets its name after `write` has
    /// succeeded; earlier flat indices are then removed. Returns the result of `write`.
    pub fn replace_flat<T>(
        &self,
        epoch: u64,
        write: impl FnOnce(&dyn WritableFile) -> Result<T>,
    ) -> Result<T> {
        let dir = self.dir()?;
        let temporaries = self.stores.temporary_dir(self.home)?;
        let id = number_name(self.stores.random_number());
        let file = temporaries.create_file(&id, LOG_PERMISSIONS)?;
        let before = self.flats()?;
        let name = [format!("{FLAT_PREFIX}{epoch:x}-").as_bytes(), &id].concat();
        let written = write(&*file)
            .and_then(|written| self.give_to_owner(&*file).map(|()| written))
            .and_then(|written| file.write_back().map(|()| written))
            .and_then(|written| temporaries.rename(&id, &**dir, &name, Rename::Replace).map(|()| written));
        if written.is_err() {
            let _ = temporaries.remove(&id);
            return written;
        }
        for earlier in before {
            // Another process may have removed it; a reader that has it open can still read it.
            let _ = dir.remove(&earlier);
        }
        written
    }

    /// Removes all flat indices.
    pub fn remove_flats(&self) -> Result<()> {
        let dir = self.dir()?;
        self.flats()?.iter().try_for_each(|name| none_if_not_found(dir.remove(name)).map(drop))
    }

    /// Returns the number of the log directory for the logs of `writer`.
    fn logs_number(&self, writer: u64) -> u32 {
        (writer % u64::from(self.head().directories)) as u32
    }

    /// Opens the directory for the logs of `writer`, and creates it if `make` is true.
    pub(crate) fn logs_of(&self, writer: u64, make: bool) -> Result<Arc<dyn WritableDir>> {
        if !make && self.only_object()?.is_some() {
            return Err(Error::new(ErrorKind::NotFound, "open", data_name(writer)));
        }
        self.dir()?; // the record gives the number of log directories
        let number = self.logs_number(writer);
        if let Some(dir) = self.stores.log_dirs().get(self.ticket, number) {
            return Ok(dir);
        }
        let dir = self.log_directories()?.open(number, make)?;
        self.stores.log_dirs().put(self.ticket, number, Arc::clone(&dir));
        Ok(dir)
    }

    /// Returns the current permissions of the container's directory.
    fn permissions(&self) -> Result<u32> {
        Ok(self.dir()?.stat_self()?.mode & 0o7777)
    }

    /// Returns the log directories, which may lie in other stores.
    pub(crate) fn log_directories(&self) -> Result<LogDirectories<'_>> {
        Ok(LogDirectories::new(&self.stores, self.dir()?, self.number(), self.home))
    }

    /// Creates the data log of `writer`. If its header cannot be written, `begun` keeps the file
    /// for the next attempt. An existing file with its name is never used.
    pub fn create_data(
        &self,
        writer: u64,
        begun: &mut Option<Box<dyn WritableFile>>,
    ) -> Result<Box<dyn WritableFile>> {
        self.create_log(writer, &data_name(writer), HeadKind::Data, begun)
    }

    /// Creates the index log of `writer`, as `create_data` creates the data log.
    pub fn create_index(
        &self,
        writer: u64,
        begun: &mut Option<Box<dyn WritableFile>>,
    ) -> Result<Box<dyn WritableFile>> {
        self.create_log(writer, &index_name(writer), HeadKind::Index, begun)
    }

    fn create_log(
        &self,
        writer: u64,
        name: &[u8],
        kind: HeadKind,
        begun: &mut Option<Box<dyn WritableFile>>,
    ) -> Result<Box<dyn WritableFile>> {
        let create = |logs: &dyn WritableDir| logs.create_file(name, LOG_PERMISSIONS);
        let file = match begun.take() {
            Some(file) => file,
            None => self.in_logs_of(writer, true, create).map_err(|error| match error.kind {
                ErrorKind::Exists => Error {
                    source: Some("a file that another process made has the name of a new log".into()),
                    ..Error::new(ErrorKind::Os(errno::EIO), "create", name)
                },
                _ => error,
            })?,
        };
        let head = self.head().for_file(kind, writer).encode();
        let made = self.give_to_owner(&*file).and_then(|()| file.write_at(&head, 0));
        match made {
            Ok(()) => Ok(file),
            Err(error) => {
                *begun = Some(file);
                Err(error)
            }
        }
    }

    /// Calls `act` with the log directory of `writer`. If `act` finds no directory or file, looks
    /// the directory up again, or creates it again if `make` is set: another mount may have moved
    /// it to another store, or removed it while the owner of the file changed.
    fn in_logs_of<T>(
        &self,
        writer: u64,
        make: bool,
        act: impl Fn(&dyn WritableDir) -> Result<T>,
    ) -> Result<T> {
        match act(&*self.logs_of(writer, make)?) {
            // NFS returns ESTALE for a removed directory that is open.
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Stale) => {
                tracing::debug!(
                    container = %self.shown_number(),
                    writer = format_args!("{writer:016x}"),
                    "a log is not in its directory: looking the directory up again"
                );
                self.stores.log_dirs().forget(self.ticket, self.logs_number(writer));
                act(&*self.logs_of(writer, make)?)
            }
            done => done,
        }
    }

    /// Gives a new file in the container to the owner of the container's file if root writes for
    /// other users, so that the owner's quota includes it.
    pub(crate) fn give_to_owner(&self, file: &dyn WritableFile) -> Result<()> {
        if !self.stores.has_root_power() {
            return Ok(());
        }
        let (owner, now) = (self.access_stat()?, file.stat()?);
        if (owner.uid, owner.gid) == (now.uid, now.gid) {
            return Ok(());
        }
        file.change(&Change { uid: Some(owner.uid), gid: Some(owner.gid), ..Change::default() })
    }

    /// Opens a log of `writer`.
    pub(crate) fn open_log(&self, writer: u64, name: &[u8]) -> Result<Arc<dyn OpenFile>> {
        if let Some(object) = self.object_of(writer) {
            return match name == data_name(writer) {
                true => Ok(Arc::clone(object.file())),
                // The first writer has no index log.
                false => Err(Error::new(ErrorKind::NotFound, "open", name)),
            };
        }
        self.in_logs_of(writer, false, |logs| logs.open_file(name)).map(Arc::from)
    }

    /// Returns true if the container was removed, or moved to another store.
    pub fn is_gone(&self) -> Result<bool> {
        match (self.dir.get(), &self.object) {
            (None, Some(object)) => Ok(object.stat()?.nlink == 0),
            _ => Ok(none_if_not_found(self.dir()?.stat(CONTAINER_RECORD))?.is_none()),
        }
    }

    /// Opens the data log of `writer` and verifies its header.
    pub fn open_data(&self, writer: u64) -> Result<Arc<dyn OpenFile>> {
        let file = self.open_log(writer, &data_name(writer))?;
        if self.object_of(writer).is_some() {
            return Ok(file); // its header was verified when it was opened
        }
        let mut bytes = [0; HEAD_BYTES];
        let mut length = file.read_at(&mut bytes, 0)?;
        // This node may have cached the size of the log before the header was written.
        if length < HEAD_BYTES && file.stat_from_server()?.size_bytes > length as u64 {
            length = file.read_at(&mut bytes, 0)?;
        }
        self.check_head(&bytes[..length], HeadKind::Data, writer)?;
        Ok(file)
    }

    /// Opens the data log of `writer` for a repair, and verifies the header through the descriptor
    /// with which the repair writes.
    pub(crate) fn open_data_for_repair(&self, writer: u64) -> Result<Box<dyn WritableFile>> {
        let file = self.logs_of(writer, false)?.open_writable_file(&data_name(writer))?;
        let mut bytes = [0; HEAD_BYTES];
        let length = file.read_at(&mut bytes, 0)?;
        self.check_head(&bytes[..length], HeadKind::Data, writer)?;
        Ok(file)
    }

    /// Returns the attributes of the data log of `writer` without opening it: on some file systems,
    /// an open by another process revokes the lock that lets the writer buffer its data.
    pub fn stat_data(&self, writer: u64) -> Result<Stat> {
        match self.object_of(writer) {
            Some(object) => object.file().stat_from_server(),
            None => self.logs_of(writer, false)?.stat(&data_name(writer)),
        }
    }

    /// Opens the index log of `writer`. The caller verifies the header with `check_head`, because
    /// it reads the header together with the batches.
    pub fn open_index(&self, writer: u64) -> Result<Arc<dyn OpenFile>> {
        self.open_log(writer, &index_name(writer))
    }

    /// Returns whether every object that determines the content of the file belongs to `owner` or
    /// to root, and no former owner can change it: the container, `meta`, the flat indices, and the
    /// logs of `writers` with their directories. Objects of other users may have any content.
    pub fn belongs_to(&self, owner: u32, writers: impl Iterator<Item = u64>) -> Result<bool> {
        let is_trusted = |stat: &Stat| stat.uid == owner || stat.uid == 0;
        if let Some(object) = &self.object
            && (!is_trusted(&object.stat()?) || self.only_object()?.is_some())
        {
            return Ok(is_trusted(&object.stat()?));
        }
        let container = self.dir()?;
        if self.object.is_some() && none_if_not_found(container.stat(GIVEN_AWAY))?.is_some() {
            return Ok(false);
        }
        if !is_trusted(&container.stat_self()?) || !is_trusted(&self.meta()?.stat_self()?) {
            return Ok(false);
        }
        for name in self.flats()? {
            if !is_trusted(&container.stat(&name)?) {
                return Ok(false);
            }
        }
        for writer in writers.filter(|writer| self.object_of(*writer).is_none()) {
            let dir = self.logs_of(writer, false)?;
            if !is_trusted(&dir.stat_self()?) {
                return Ok(false);
            }
            for name in [data_name(writer), index_name(writer)] {
                // A log that is missing has no content.
                if none_if_not_found(dir.stat(&name))?.is_some_and(|stat| !is_trusted(&stat)) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Verifies that a log begins with the header of this kind, container and writer. The error is
    /// `Damaged`.
    pub fn check_head(&self, bytes: &[u8], kind: HeadKind, writer: u64) -> Result<()> {
        let name = if kind == HeadKind::Data { data_name(writer) } else { index_name(writer) };
        match Head::decode(kind, bytes) {
            Ok(found) if found == self.head().for_file(kind, writer) => Ok(()),
            Ok(_) => Err(Error {
                source: Some("it belongs to another file".into()),
                ..Error::new(ErrorKind::Damaged, "read", name)
            }),
            Err(damage) => Err(damage.in_file(name)),
        }
    }

    /// Makes the names of `writer`'s logs survive a power failure.
    pub fn sync_logs(&self, writer: u64) -> Result<()> {
        if self.object_of(writer).is_none() {
            self.logs_of(writer, false)?.sync()?;
            self.log_directories()?.sync(self.logs_number(writer))?;
        }
        // The log directory may be new; then its name must be synced, too.
        self.dir()?.sync()
    }

    /// Rewrites the header of `writer`'s data log, and its content from `from` up to log offset
    /// `end`. Syncs the log and verifies the content of the storage.
    ///
    /// # Errors
    ///
    /// `Damaged` if a frame is incomplete or does not match its checksums.
    pub fn write_data_again(
        &self,
        data: &dyn WritableFile,
        writer: u64,
        from: LogPosition,
        end: u64,
    ) -> Result<()> {
        tracing::debug!(
            container = %self.shown_number(),
            writer = %format_args!("{writer:016x}"),
            from_offset = from.log_offset,
            end_offset = end,
            "writing a data log again, because a write or sync of it failed"
        );
        rewrite(data, from.log_offset, end)?;
        let head = match self.object_of(writer) {
            Some(object) => *object.head(),
            None => self.head().for_file(HeadKind::Data, writer),
        };
        data.write_at(&head.encode(), 0)?;
        data.sync()?;
        verify_frames(data, from, end, self.head().block_bytes.into())
            .map_err(|error| Error { subject: data_name(writer), ..error })
    }

    /// Records that a sync of `writer`'s data log failed: until the log is rewritten, missing data
    /// in it is damage.
    pub fn mark_failed(&self, writer: u64) -> Result<()> {
        tracing::debug!(
            container = %self.shown_number(),
            writer = %format_args!("{writer:016x}"),
            "a sync of a data log failed"
        );
        match self.add_meta(&MetaName::Failed(writer)) {
            Err(error) if error.kind == ErrorKind::Exists => Ok(()),
            added => added,
        }
    }

    /// Removes the name that `mark_failed` created.
    pub fn clear_failed(&self, writer: u64) -> Result<()> {
        none_if_not_found(self.remove_meta(&MetaName::Failed(writer))).map(drop)
    }

    /// Makes the data of a writer that has ended survive a power failure. `has_failed` is true if a
    /// sync of it failed before.
    pub fn sync_ended(&self, closed: &Closed, has_failed: bool) -> Result<()> {
        let (writer, name) = (closed.writer, data_name(closed.writer));
        if let Some(object) = self.object_of(writer) {
            if let (true, Some(data)) = (has_failed, object.writable()) {
                self.write_data_again(data, writer, LogPosition::START, closed.data_bytes)?;
            } else if has_failed {
                return Err(Error {
                    source: Some("a sync of it has failed, and its writer has ended: copy the file".into()),
                    ..Error::new(ErrorKind::Os(errno::EIO), "sync", name)
                });
            }
            object.set_synced();
            if !has_failed {
                object.file().sync().inspect_err(|_| {
                    let _ = self.mark_failed(writer);
                })?;
            }
            if self.only_object()?.is_some() {
                return Ok(());
            }
        } else if has_failed {
            let data = self.logs_of(writer, false)?.open_writable_file(&name)?;
            self.write_data_again(&*data, writer, LogPosition::START, closed.data_bytes)?;
        } else {
            match self.logs_of(writer, false).and_then(|logs| logs.open_file(&name)) {
                Ok(data) => data.sync().inspect_err(|_| {
                    // The failure is recorded, because the next sync would succeed. If the name
                    // cannot be created, missing data still counts as damage on this boot.
                    let _ = self.mark_failed(writer);
                })?,
                // The log belongs to another user and cannot be synced by this one.
                Err(error) if error.kind == ErrorKind::PermissionDenied => return Ok(()),
                // The log was lost in a power failure before it was synced, or was removed after
                // the last truncation.
                Err(error) if error.kind == ErrorKind::NotFound && !self.keeps(closed)? => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.sync_logs(writer)?;
        // If the writer ran on another boot, a power failure may have removed a part of its data:
        // only the existing part is synced.
        let boot = if closed.boot == self.boot() { closed.boot } else { 0 };
        let synced = Closed { is_synced: true, boot, ..*closed };
        // If another process has renamed the name, or the name belongs to another user, it stays as
        // it is, and the next sync syncs the log again.
        let renamed = self.rename_meta(&MetaName::Closed(*closed), &MetaName::Closed(synced));
        none_if_not_found(unless_of_another(renamed))?;
        if has_failed {
            self.clear_failed(writer)?;
        }
        Ok(())
    }

    /// Returns true if an ended writer ran on this boot of this node, so that no power failure
    /// removed its data, and its logs are still part of the file.
    fn keeps(&self, closed: &Closed) -> Result<bool> {
        Ok(closed.boot == self.boot() && !self.is_dropped(closed.writer)?)
    }

    /// Returns true if `access` and `meta` exist.
    pub fn is_complete(&self) -> Result<bool> {
        if self.only_object()?.is_some() {
            return Ok(true);
        }
        for name in [ACCESS, META] {
            if none_if_not_found(self.dir()?.stat(name))?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the number of this node's boot, as names in `meta` contain it.
    pub fn boot(&self) -> u64 {
        boot_of(&self.host().holder.node)
    }

    /// Returns true if the logs of `writer` were removed, or may be removed, after a truncation to
    /// size 0.
    pub fn is_dropped(&self, writer: u64) -> Result<bool> {
        let summary = self.summary()?;
        let is_open = summary.open.iter().any(|running| running.writer == writer);
        let closed = summary.closed.iter().find(|closed| closed.writer == writer);
        Ok(!is_open && closed.is_none_or(|closed| summary.is_dead(closed)))
    }

    /// Makes the container itself and all names in `meta` survive a power failure, and the object
    /// unless its writer has just synced it.
    pub fn sync(&self, is_object_synced: bool) -> Result<()> {
        if let Some(object) = &self.object {
            object.set_synced();
            if !is_object_synced {
                object.file().sync().inspect_err(|_| {
                    let _ = self.mark_failed(object.writer());
                })?;
            }
            if self.only_object()?.is_some() {
                return Ok(());
            }
            self.stores.kept_parts_dir(self.home)?.sync()?;
        }
        let dir = self.dir()?;
        self.meta()?.sync()?;
        if self.is_record_doubtful.load(Ordering::Relaxed) {
            let record = dir.open_writable_file(CONTAINER_RECORD)?;
            // The record is dropped from the cache for the reason given at `rewrite`.
            record.drop_cache(0, NonZeroU64::new(1 << 20).expect("not zero"))?;
            record.write_at(&self.head().encode(), 0)?;
        }
        for name in [CONTAINER_RECORD, ACCESS] {
            // The files are opened for reading, because they often belong to another user, and that
            // user may not have synced them.
            match dir.open_file(name) {
                Ok(file) => file.sync().inspect_err(|_| {
                    self.is_record_doubtful.store(true, Ordering::Relaxed);
                })?,
                // This user may write to the file, but not read it. `access` is empty, and its name
                // is synced with the directory.
                Err(error) if name == ACCESS && error.kind == ErrorKind::PermissionDenied => {}
                Err(error) => return Err(error),
            }
        }
        self.is_record_doubtful.store(false, Ordering::Relaxed);
        dir.sync()
    }

    /// Removes the logs of a writer. An object stays until the file is removed.
    pub fn remove_logs(&self, writer: u64) -> Result<()> {
        if self.object_of(writer).is_some() {
            return Ok(());
        }
        let dir = self.logs_of(writer, false)?;
        let names = [data_name(writer), index_name(writer)];
        names.iter().try_for_each(|name| none_if_not_found(dir.remove(name)).map(drop))
    }

    /// Changes the file's permissions or owners, which `access` and the directories have. `parent`
    /// is the directory in which the file was opened.
    ///
    /// The container's directory, and the container's directories in other stores, control the
    /// access to all other directories and files. Permissions are removed from them first, and
    /// granted to them last.
    pub fn change(&self, change: &Change, parent: Option<&dyn WritableDir>) -> Result<()> {
        let dir = self.dir()?;
        let of = self.owners_of_directories(change.uid)?;
        if change.uid.is_some() || change.gid.is_some() {
            let owners = Change { uid: change.uid, gid: change.gid, ..Change::default() };
            match (&self.object, self.stores.has_root_power()) {
                // `access` comes last, so that its lock excludes another change until the owners of
                // the object and of the directory are equal again.
                (Some(object), true) => with_locks_excluded(&**dir, || {
                    self.change_owners_below(object, &owners, parent)?;
                    self.change_outer_dirs(&owners)?;
                    self.replace_access(&owners)
                })?,
                (object, is_root) => {
                    match is_root {
                        // Locks of the old file would not conflict with locks of the new file.
                        true => with_locks_excluded(&**dir, || self.replace_access(&owners))?,
                        false => self.change_access(&owners)?,
                    }
                    self.change_below(of.as_deref(), &owners, &owners)?;
                    // The container is changed last: directories in `parts` belong to it only as
                    // long as their owner is the owner of the container, of `access` or of a
                    // pointer.
                    if object.is_some() {
                        self.change_object(&owners, parent)?;
                    }
                    self.change_outer_dirs(&owners)?;
                }
            }
        }
        if let Some(permissions) = change.permissions {
            let as_permissions = |mode| Change { permissions: Some(mode), ..Change::default() };
            let (before, after) = (self.permissions()?, dir_permissions(permissions));
            // The permissions that are granted both before and afterwards.
            let between = (before | !0o777) & after;
            if before & 0o777 != between & 0o777 {
                self.change_outer_dirs(&as_permissions(between))?;
            }
            self.change_access(&as_permissions(permissions))?;
            let logs = as_permissions(logs_permissions(after));
            self.change_below(of.as_deref(), &as_permissions(after), &logs)?;
            self.change_outer_dirs(&as_permissions(after))?;
            if self.object.is_some() {
                // Users who may read the file must be able to read the object, which only its owner
                // may write.
                self.change_object(&as_permissions(permissions & 0o755 | 0o400), parent)?;
            }
        }
        Ok(())
    }

    /// Changes the attributes of the object, regardless of its current name.
    pub(crate) fn change_object(&self, change: &Change, parent: Option<&dyn WritableDir>) -> Result<()> {
        match (&self.object, parent) {
            (Some(object), Some(parent)) => parent.change_open(&**object.file(), change),
            _ => Err(Error::new(ErrorKind::Unsupported, "change", self.shown_number())),
        }
    }

    /// Changes the owners of the directories in the container and of the object, as root. If this
    /// changes the user, the container's directory belongs to root meanwhile, so that the container
    /// is found at each moment, and root can repeat the change after an interruption.
    fn change_owners_below(
        &self,
        object: &Object,
        owners: &Change,
        parent: Option<&dyn WritableDir>,
    ) -> Result<()> {
        let (dir, before) = (self.dir()?, object.stat()?);
        let changes_user = owners.uid.is_some_and(|uid| uid != before.uid);
        if changes_user {
            let to_root = Change { uid: Some(0), ..Change::default() };
            if dir.stat(CONTAINER_RECORD)?.uid != 0 {
                dir.change_of(CONTAINER_RECORD, &[before.uid], &to_root)?;
            }
            dir.change(b"", &to_root)?;
            if before.uid != 0 {
                match dir.create_file(GIVEN_AWAY, LOG_PERMISSIONS) {
                    Err(error) if error.kind != ErrorKind::Exists => return Err(error),
                    _ => {}
                }
            }
        }
        // The container may belong to root now.
        let known = [before.uid, owners.uid.unwrap_or(before.uid)];
        let changed = self.change_below(Some(&known), owners, owners);
        let changed = changed.and_then(|()| self.change_object(owners, parent));
        if changed.is_err() && changes_user {
            // Otherwise `quell log fsck` reports it.
            let back = Change { uid: Some(before.uid), gid: Some(before.gid), ..Change::default() };
            let _ = self.change_below(Some(&known), &back, &back).and_then(|()| dir.change(b"", &back));
        }
        changed
    }

    /// Returns whether a change of the user of a file that began as an object was interrupted.
    pub(crate) fn owner_change(&self) -> Result<OwnerChange> {
        let (Some(object), Some(dir)) = (&self.object, self.existing_dir()?) else {
            return Ok(OwnerChange::None);
        };
        let (owner, container) = (object.stat()?.uid, dir.stat_self()?.uid);
        let (access, meta) = (dir.stat(ACCESS)?.uid, dir.stat(META)?.uid);
        Ok(if [container, access, meta] == [owner; 3] {
            OwnerChange::None
        } else if meta == owner && (container == owner || container == 0) {
            OwnerChange::CanBeFinished
        } else {
            OwnerChange::MustBeRepeated
        })
    }

    /// Gives the container to the owner of the object, to finish an interrupted change of the user.
    pub(crate) fn finish_owner_change(&self, parent: &dyn WritableDir) -> Result<()> {
        let Some(object) = &self.object else { return Ok(()) };
        let stat = object.stat()?;
        self.change(&Change { uid: Some(stat.uid), gid: Some(stat.gid), ..Change::default() }, Some(parent))
    }

    /// Changes `access`. When root changes the owner, it replaces `access` by a new file, and
    /// copies the permissions of the old file afterwards. If `access` was replaced after that copy,
    /// the new file is changed, too.
    pub(crate) fn change_access(&self, change: &Change) -> Result<()> {
        let dir = self.dir()?;
        loop {
            let before = dir.stat(ACCESS)?.identity();
            dir.change(ACCESS, change)?;
            if dir.stat(ACCESS)?.identity() == before {
                return Ok(());
            }
        }
    }

    /// Replaces `access` by a new file when root changes the owner. The old owner may have replaced
    /// it by a hard link to another file, or may have it open for writing and could turn it into a
    /// set-id program of the new owner.
    fn replace_access(&self, owners: &Change) -> Result<()> {
        let dir = self.dir()?;
        let before = dir.open_file(ACCESS)?;
        let now = before.stat()?;
        if now.kind() != Some(Kind::File) {
            return Err(Error {
                source: Some("it is not a regular file".into()),
                ..Error::new(ErrorKind::Damaged, "change", ACCESS)
            });
        }
        let (uid, gid) = (owners.uid.unwrap_or(now.uid), owners.gid.unwrap_or(now.gid));
        // The effective set-id bits are removed, as by chown(2).
        let permissions = now.mode & 0o7777;
        let attributes = Change {
            uid: Some(uid),
            gid: Some(gid),
            permissions: Some(permissions & !effective_set_id(permissions)),
            size_bytes: None,
            modified: Some(now.modified),
        };
        let (temporaries, temporary) =
            (self.stores.temporary_dir(self.home)?, number_name(self.stores.random_number()));
        let file = temporaries.create_file(&temporary, OWN_PERMISSIONS)?;
        let changed = file
            .change(&attributes)
            .and_then(|()| temporaries.rename(&temporary, &**dir, ACCESS, Rename::Replace));
        if changed.is_err() {
            let _ = temporaries.remove(&temporary); // otherwise `quell log fsck` finds it
        }
        changed?;
        // Another mount may have changed the permissions of the old file meanwhile.
        let later = before.stat()?.mode & 0o7777;
        if later != permissions {
            let later = Change { permissions: Some(later & !effective_set_id(later)), ..Change::default() };
            dir.change(ACCESS, &later)?;
        }
        Ok(())
    }

    /// Changes the directories that control the access to all other directories and files.
    fn change_outer_dirs(&self, change: &Change) -> Result<()> {
        for (parts, name) in self.log_directories()?.in_parts()? {
            unless_of_another(parts.change(&name, change))?;
        }
        self.dir()?.change(b"", change)
    }

    /// Returns the users to which `meta` and the log directories may belong if root changes them in
    /// a container of root, and `None` for other users than root. `new` is the new owner of the
    /// file. Former owners may have moved directories of other users into the container.
    ///
    /// # Errors
    ///
    /// EPERM if `meta` belongs to another user. EBUSY instead if `access` is locked, because
    /// another mount may be changing the owner of the file.
    fn owners_of_directories(&self, new: Option<u32>) -> Result<Option<Vec<u32>>> {
        if !self.stores.has_root_power() {
            return Ok(None);
        }
        let dir = self.dir()?;
        let allowed = || -> Result<Vec<u32>> {
            let mut owners = match &self.object {
                Some(object) => vec![object.stat()?.uid],
                None => vec![dir.stat_self()?.uid, dir.stat(ACCESS)?.uid],
            };
            owners.extend(new);
            match dir.stat_self()?.uid != 0 || owners.contains(&dir.stat(META)?.uid) {
                true => Ok(owners),
                false => Err(Error {
                    source: Some("it belongs to another user than the file".into()),
                    ..Error::new(ErrorKind::Os(errno::EPERM), "change", META)
                }),
            }
        };
        match allowed() {
            Err(error) if error.errno() == errno::EPERM => with_locks_excluded(&**dir, allowed),
            owners => owners,
        }
        .map(Some)
    }

    /// Changes `meta` and the log directories. If the container belongs to root, and there are
    /// `owners`, `meta` must belong to one of them, and log directories of other users stay as they
    /// are.
    fn change_below(&self, owners: Option<&[u32]>, meta: &Change, logs: &Change) -> Result<()> {
        let change = |dir: &dyn WritableDir, name: &[u8], change: &Change| match owners {
            Some(owners) => dir.change_of(name, owners, change),
            None => dir.change(name, change),
        };
        change(&**self.dir()?, META, meta)?;
        for number in 0..self.head().directories {
            let found = match self.log_directories()?.find(number) {
                Err(error) if error.kind == ErrorKind::PermissionDenied => None,
                found => found?,
            };
            if let Some((dir, name)) = found {
                unless_of_another(change(&*dir, &name, logs))?;
            }
        }
        Ok(())
    }
}

/// The state of a change of the user of a file that began as an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnerChange {
    /// All parts belong to one user.
    None,
    /// The change was interrupted after the object had its owner. `meta`, which changes before the
    /// object, belongs to this user, so that no other user's object with the same number gets the
    /// container.
    CanBeFinished,
    /// The change was interrupted before, or a user has moved files of other users into the
    /// container.
    MustBeRepeated,
}

/// Returns true if root is giving a file to `owner` or taking it from this user: `access` or `meta`
/// in `dir`, the container's directory, belongs to the user, while `dir` belongs to root.
fn is_given_to(dir: &dyn WritableDir, owner: u32) -> Result<bool> {
    for name in [ACCESS, META] {
        if none_if_not_found(dir.stat(name))?.is_some_and(|stat| stat.uid == owner) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the record of a container for the object with this number.
fn record_of_object(stores: &Stores, number: u128) -> Head {
    Head {
        kind: HeadKind::Container,
        version: OBJECT_VERSION,
        block_bytes: BLOCK_BYTES,
        container: number,
        writer: 0,
        directories: stores.directories(),
        process: None,
    }
}

/// Reads the record of a container.
fn read_record(file: &dyn OpenFile, name: &[u8]) -> Result<Head> {
    let mut bytes = [0; HEAD_BYTES];
    let length = file.read_at(&mut bytes, 0)?;
    Head::decode(HeadKind::Container, &bytes[..length]).map_err(|damage| damage.in_file(name))
}

impl Drop for Container {
    fn drop(&mut self) {
        self.stores.log_dirs().forget_all(self.ticket);
    }
}

/// Ignores EPERM: a directory of another user stays as it is, because only that user can change it.
/// Also ignores that the directory does not exist: another mount may have removed it.
fn unless_of_another(changed: Result<()>) -> Result<()> {
    match changed {
        Err(error) if error.errno() == errno::EPERM || error.kind == ErrorKind::NotFound => Ok(()),
        changed => changed,
    }
}

/// Returns true if a directory without a record was a container: it contains only names that
/// containers have.
fn is_remains_of_container(dir: &dyn WritableDir) -> Result<bool> {
    let names = dir.names()?;
    Ok(!names.is_empty() && names.iter().all(|name| is_name_of_container(name)))
}

/// Converts the error of a rename of a container onto an existing one, which is never empty, or
/// onto an object to `Exists`.
fn exists_if_in_use(error: Error) -> Error {
    match error.kind {
        ErrorKind::NotEmpty | ErrorKind::NotADirectory => Error { kind: ErrorKind::Exists, ..error },
        _ => error,
    }
}

fn removed() -> Error {
    Error::new(ErrorKind::Stale, "write to", b"a file that was removed")
}
