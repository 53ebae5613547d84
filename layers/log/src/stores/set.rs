//! The stores of one log mount. Opens them, follows the placement map while the mount runs, and
//! gives access to the directories of each store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use quell_posix::{WritableDir, assume, assumed};
use quell_vfs::{Error, ErrorKind, Result, Space, errno};

use crate::format::{Member, NEW_DIR, OWN, StoreMap, file_name_bytes_max};
use crate::locks::{Rank, RankedMutex, RankedRwLock};
use crate::not_found::none_if_not_found;
use crate::stores::errors::{not_a_member, not_given, refused};
use crate::stores::host::Host;
use crate::stores::known_objects::KnownObjects;
use crate::stores::log_dir_cache::LogDirCache;
use crate::stores::map_files::{
    complete_map, has_map, newest_map, truncate_map, write_map, write_new_map, write_where_missing,
};
use crate::stores::map_update::{Opener, newer_stores};
use crate::stores::only_user::{CreationState, OnlyUserPeriod, OnlyUserPeriods};
use crate::stores::roles::{Role, change_roles, check_is_used, map_of};
use crate::stores::store::{
    Root, Store, StoreNumber, check_free, has_only_own_names, is_store, open_or_create_stores, open_stores,
};
use crate::stores::store_list::StoreList;
use crate::stores::use_lock::UseLock;

/// The stores of one mount.
pub struct Stores {
    /// The stores that are currently known.
    list: RankedRwLock<Arc<StoreList>>,
    /// Held while one thread looks for newer maps; other threads wait for its result.
    looking: RankedMutex<()>,
    opener: Option<Opener>,
    host: Host,
    directories: u32,
    log_dirs: LogDirCache,
    /// The locks that `begin_use` has taken, of each store whose file system has locks.
    use_locks: Vec<UseLock>,
    only_user: OnlyUserPeriods,
    /// The number of containers of objects that this process has begun to create.
    creations: AtomicU64,
    known_objects: KnownObjects,
    /// The number of files that this process is creating.
    files_in_creation: AtomicUsize,
    /// This process has created an object in `new` and given it its name.
    has_named_object: AtomicBool,
    /// Users other than the owner of the stores can create containers.
    has_other_writers: AtomicBool,
    /// The owner of all stores, if they have the same owner.
    owner: Option<u32>,
}

impl std::fmt::Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stores").field("stores", &self.count()).finish_non_exhaustive()
    }
}

impl Stores {
    /// Opens stores without paths for messages, as `open_named` does.
    pub fn open(roots: Vec<Arc<dyn WritableDir>>, host: Host, directories: u32) -> Result<Stores> {
        let named = roots.into_iter().map(|dir| Root { dir, path: Vec::new() }).collect();
        Stores::open_named(named, host, directories)
    }

    /// Opens the stores, in any order. Creates a missing `.quell` in each of them, and the first
    /// map if there are several. New containers get `directories` log directories.
    pub fn open_named(roots: Vec<Root>, host: Host, directories: u32) -> Result<Stores> {
        let are_stores = roots.iter().map(|root| is_store(&*root.dir)).collect::<Result<Vec<_>>>()?;
        // If a directory that is not a store is given together with stores that have a map, it is
        // not changed.
        for (root, _) in roots.iter().zip(&are_stores).filter(|(_, is_store)| **is_store) {
            if are_stores.contains(&false) && has_map(&*root.dir.open_writable_dir(OWN)?)? {
                let new = roots.iter().zip(&are_stores).find(|(_, is_store)| !**is_store);
                return Err(not_a_member(new.map_or(&[], |(root, _)| &root.path)));
            }
        }
        let opened = open_or_create_stores(roots, &host)?;
        let map = match newest_map(opened.iter().map(|store| &store.own))? {
            Some(map) => {
                complete_map(&opened, &map, &host)?;
                map
            }
            None if opened.len() == 1 => map_of(&opened),
            None => {
                for store in &opened {
                    if !has_only_own_names(&*store.root.dir)? {
                        return Err(refused(
                            &store.root.path,
                            "it has files and does not yet belong to the others: `quell log rebalance STORE --add OTHER` \
                             gives it an empty store"
                                .into(),
                        ));
                    }
                }
                let first = StoreMap { version: 1, ..map_of(&opened) };
                write_new_map(&opened, first.keeper(), first, &host)?
            }
        };
        allow_the_same_writers(&opened, false)?;
        Stores::new(opened, &map, host, directories)
    }

    /// Returns these stores with an opener for stores that are added later. Without an opener such
    /// a store is an error.
    pub fn with_opener(self, opener: Opener) -> Stores {
        Stores { opener: Some(opener), ..self }
    }

    /// Opens existing stores. Writes nothing.
    pub fn open_existing(roots: Vec<Root>, host: Host, directories: u32) -> Result<Stores> {
        let opened = open_stores(roots)?;
        let map = match newest_map(opened.iter().map(|store| &store.own))? {
            Some(map) => map,
            None => map_of(&opened),
        };
        Stores::new(opened, &map, host, directories)
    }

    /// Opens stores, registers this process as their user as [`begin_use`](Self::begin_use) does,
    /// and changes their roles with a new map, if one is needed. `rebalance` then moves the files.
    /// If the only user of a store does not share it, nothing is changed.
    pub fn change(
        roots: Vec<(Root, Role)>,
        host: Host,
        directories: u32,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Stores> {
        let (roots, roles): (Vec<_>, Vec<_>) = roots.into_iter().unzip();
        let are_stores = roots.iter().map(|root| is_store(&*root.dir)).collect::<Result<Vec<_>>>()?;
        for ((root, role), is_store) in roots.iter().zip(&roles).zip(are_stores.iter().copied()) {
            if *role == Role::Add && !is_store {
                check_free(root)?;
            }
            if *role != Role::Add && !is_store {
                return Err(Error {
                    source: Some("not a store".into()),
                    ..Error::new(ErrorKind::NotFound, "open", &root.path)
                });
            }
        }
        let mut use_locks = Vec::new();
        for (root, _) in roots.iter().zip(&are_stores).filter(|(_, is_store)| **is_store) {
            for store in open_stores(vec![root.clone()])? {
                use_locks.extend(begin_use_of(&store, host.uid, pause)?);
            }
        }
        let opened = open_or_create_stores(roots, &host)?;
        for (store, _) in opened.iter().zip(&are_stores).filter(|(_, is_store)| !**is_store) {
            use_locks.extend(begin_use_of(store, host.uid, pause)?);
        }
        let (now, next) = next_map(&opened, &roles)?;
        check_is_used(&next)?;
        let is_same = next.members == now.members && (now.version > 0 || now.members.len() == 1);
        let map = match is_same {
            true => {
                // A previous run that ended before every store had the map has moved nothing.
                if now.version > 0 {
                    write_where_missing(&opened, &now, &host)?;
                }
                now
            }
            false => {
                let before = if now.members.is_empty() { &next } else { &now };
                // Other users create files in a new store as soon as the map names it.
                allow_the_same_writers(&opened, false)?;
                write_new_map(&opened, before.keeper(), next, &host)?
            }
        };
        // Done for an unchanged map, too, because a previous run may have been killed before this
        // step.
        for store in &opened {
            match map.member(store.number) {
                Some(member) if member.is_draining => store.close_for_new()?,
                Some(_) => store.open_for_new()?,
                None => {}
            }
        }
        allow_the_same_writers(&opened, false)?;
        Ok(Stores { use_locks, ..Stores::new(opened, &map, host, directories)? })
    }

    /// Returns the map that `change` would create. Writes nothing; a store that does not exist yet
    /// gets a random number.
    pub fn planned_map(roots: Vec<(Root, Role)>, host: &Host) -> Result<StoreMap> {
        let (mut opened, mut new) = (Vec::new(), Vec::new());
        for (root, role) in roots {
            if role == Role::Add && !is_store(&*root.dir)? {
                new.push(Member { number: host.random_number(), is_draining: false, path: root.path });
            } else {
                opened.push((open_stores(vec![root])?.remove(0), role));
            }
        }
        let (opened, roles): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        let (_, mut map) = next_map(&opened, &roles)?;
        map.members.append(&mut new);
        check_is_used(&map).map(|()| map)
    }

    fn new(opened: Vec<Store>, map: &StoreMap, host: Host, directories: u32) -> Result<Stores> {
        if let Some(foreign) = opened.iter().find(|store| map.member(store.number).is_none()) {
            return Err(not_a_member(&foreign.root.path));
        }
        let mut ordered = Vec::with_capacity(opened.len());
        for member in &map.members {
            match opened.iter().find(|store| store.number == member.number) {
                Some(store) => ordered.push(store.clone()),
                None => return Err(not_given(member)),
            }
        }
        let (has_other_writers, owner) = match ordered.iter().map(Store::writers).collect::<Result<Vec<_>>>()
        {
            Ok(writers) => {
                let owner = writers[0].owner;
                let is_same = writers.iter().all(|writers| writers.owner == owner);
                (writers.iter().any(|writers| writers.has_others), is_same.then_some(owner))
            }
            // An incomplete store is not known to be owner-writable.
            Err(_) => (true, None),
        };
        Ok(Stores {
            list: RankedRwLock::new(Rank::Leaf, Arc::new(StoreList::new(ordered, map))),
            looking: RankedMutex::new(Rank::PlacementMap, ()),
            opener: None,
            host,
            directories,
            log_dirs: LogDirCache::default(),
            use_locks: Vec::new(),
            only_user: OnlyUserPeriods::new(),
            creations: AtomicU64::new(0),
            known_objects: KnownObjects::new(),
            files_in_creation: AtomicUsize::new(0),
            has_named_object: AtomicBool::new(false),
            has_other_writers: AtomicBool::new(has_other_writers),
            owner,
        })
    }

    /// Registers this process as a user of the stores, for as long as the result exists. Each
    /// process that changes files or names must do this before its first change, because a mount
    /// that is the only user lets the kernel keep names and attributes. Such a mount shares the
    /// store when it notices this process. `pause` waits a moment, and returns false to give up.
    ///
    /// # Errors
    ///
    /// `Busy` if the only user of a store has not shared it when `pause` gives up.
    pub fn begin_use(self, pause: &mut dyn FnMut() -> bool) -> Result<Stores> {
        let mut use_locks = Vec::new();
        for store in &self.list().stores {
            use_locks.extend(begin_use_of(store, self.host.uid, pause)?);
        }
        Ok(Stores { use_locks, ..self })
    }

    /// Makes this process the only user of the store, or confirms that it still is. The period ends
    /// at `until`, unless it is confirmed or ended before. Returns false if another process uses
    /// the store; if this process was the only user, others wait until it shares the store. Stores
    /// with a placement map have no only user, because a process may use them without opening this
    /// store.
    pub(crate) fn be_only_user(&self, until: Instant) -> Result<bool> {
        let list = self.list();
        let is_only_user = match (&self.use_locks[..], &list.stores[..]) {
            // Before the period begins, because no map is looked for in it.
            ([lock], [store]) if list.version == 0 => lock.be_only_user(&*store.own, &|| {
                Ok(self.only_user_period().is_some() || !self.has_changed(&list)?)
            }),
            _ => Ok(false),
        };
        if matches!(is_only_user, Ok(true)) {
            if self.only_user_period().is_none() {
                self.read_other_writers()?;
            }
            self.only_user.confirm(until, Instant::now());
        }
        is_only_user
    }

    /// Ends the current period, if there is one.
    pub(crate) fn end_only_user_period(&self) {
        self.only_user.end();
    }

    /// Returns the current period in which this process is the only user of the store.
    pub(crate) fn only_user_period(&self) -> Option<OnlyUserPeriod> {
        self.only_user.current(Instant::now())
    }

    /// Returns the current state in which only this process creates containers of objects, or
    /// `None` if other processes may create them. If a process has found no container after it read
    /// the state, there is none as long as the state is the current one.
    pub(crate) fn creation_state(&self) -> Option<CreationState> {
        let creations = self.creations.load(Ordering::SeqCst);
        self.only_user_period().map(|period| CreationState::new(period, creations))
    }

    /// Returns the objects that are known to be whole files.
    pub(crate) fn known_objects(&self) -> &KnownObjects {
        &self.known_objects
    }

    /// Begins a new state of the containers of objects. Must be called before the container of an
    /// object gets its name, and again afterwards.
    pub(crate) fn begin_creation_state(&self) {
        self.creations.fetch_add(1, Ordering::SeqCst);
    }

    /// Calls `create`, which creates a file and opens it. The parameter of `create` is true if this
    /// process is the only user of the store. [`is_creating_file`](Self::is_creating_file) is then
    /// true until `create` returns.
    pub(crate) fn while_creating_file<T>(&self, create: impl FnOnce(bool) -> T) -> T {
        // The count is increased before the period is read, so after the end of the period it
        // includes each creation that began in the period.
        self.files_in_creation.fetch_add(1, Ordering::SeqCst);
        if self.only_user_period().is_none() {
            self.files_in_creation.fetch_sub(1, Ordering::SeqCst);
            return create(false);
        }
        let created = create(true);
        self.files_in_creation.fetch_sub(1, Ordering::SeqCst);
        created
    }

    /// Records that this process has created an object in `new` and given it its name, so the file
    /// system can rename files without replacing others, or has hard links.
    pub(crate) fn set_has_named_object(&self) {
        self.has_named_object.store(true, Ordering::Relaxed);
    }

    /// Returns true if this process has created an object in `new` and given it its name.
    pub(crate) fn has_named_object(&self) -> bool {
        self.has_named_object.load(Ordering::Relaxed)
    }

    /// Returns true while this process is creating a file as the only user of the store.
    pub(crate) fn is_creating_file(&self) -> bool {
        self.files_in_creation.load(Ordering::SeqCst) > 0
    }

    /// Shares the stores with other processes again.
    pub(crate) fn share(&self) {
        self.use_locks.iter().for_each(UseLock::share);
    }

    /// Returns the stores that are currently known.
    pub(crate) fn list(&self) -> Arc<StoreList> {
        Arc::clone(&self.list.read())
    }

    /// Returns the home store of the file `name`.
    pub fn home(&self, name: &[u8]) -> StoreNumber {
        self.list().home(name)
    }

    /// Looks for a newer map and uses it. Returns true if the stores have changed. If it returns
    /// false, no file was moved before this call because of a map that is not known here.
    pub fn refresh(&self) -> Result<bool> {
        self.has_changed(&self.list())
    }

    /// Looks for a newer map, as `refresh` does. Returns true if the stores have changed since
    /// `seen`.
    pub(crate) fn has_changed(&self, seen: &Arc<StoreList>) -> Result<bool> {
        if !Arc::ptr_eq(seen, &self.list()) {
            return Ok(true);
        }
        // A process that creates a map waits until this one is no longer the only user.
        if self.only_user_period().is_some() || seen.is_newest()? {
            return Ok(false);
        }
        let _one = self.looking.lock();
        let now = self.list();
        if !Arc::ptr_eq(seen, &now) {
            return Ok(true);
        }
        // The process's own credentials, because the store is opened for all users of the mount.
        let _process = assume(None)?;
        let Some(newer) = newer_stores(&now, self.opener.as_ref(), self.host.uid)? else {
            return Ok(false);
        };
        tracing::debug!(
            version = newer.version,
            stores = newer.len(),
            stores_before = now.len(),
            "using a newer placement map"
        );
        if self.has_other_writers() {
            allow_the_same_writers(&newer.stores, true)?;
        }
        *self.list.write() = Arc::new(newer);
        Ok(true)
    }

    /// Returns the stores that are being drained.
    pub(crate) fn draining(&self) -> Vec<StoreNumber> {
        let list = self.list();
        (0..list.len()).filter(|store| !list.is_used(*store)).collect()
    }

    /// Removes drained stores from the map, and truncates earlier maps.
    pub(crate) fn leave_drained(&self) -> Result<()> {
        let list = self.list();
        let Some(now) = newest_map(list.own_dirs())? else { return Ok(()) };
        let keeper = now.keeper();
        let mut members = now.members.clone();
        members.retain(|member| !member.is_draining);
        let next = match members.len() == now.members.len() {
            true => now,
            false => StoreMap { version: now.version + 1, members },
        };
        let mut stay: Vec<(u128, &Arc<dyn WritableDir>)> =
            list.stores.iter().map(|store| (store.number, &store.own)).collect();
        stay.retain(|(number, _)| next.member(*number).is_some());
        let written = write_map(&stay, keeper, &next, &self.host)?;
        if written != next {
            return Err(refused(
                b"",
                "another process changed the stores at the same time; run it again".into(),
            ));
        }
        for (_, own) in stay {
            for name in own.names()? {
                if StoreMap::version_of(&name).is_some_and(|version| version < next.version) {
                    truncate_map(&**own, &name, &self.host)?;
                }
            }
        }
        Ok(())
    }

    /// Returns true if users other than the owner of the stores can create containers, as far as
    /// this process knows.
    pub(crate) fn has_other_writers(&self) -> bool {
        self.has_other_writers.load(Ordering::Relaxed)
    }

    /// Returns the same as [`has_other_writers`](Self::has_other_writers), also after a change by
    /// another process.
    pub(crate) fn has_other_writers_now(&self) -> Result<bool> {
        // The only user has read this at the beginning of its period.
        if self.has_other_writers() || self.only_user_period().is_some() {
            return Ok(self.has_other_writers());
        }
        self.read_other_writers()?;
        Ok(self.has_other_writers())
    }

    fn read_other_writers(&self) -> Result<()> {
        for store in &self.list().stores {
            if store.has_other_writers()? {
                self.has_other_writers.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Prepares the stores for write permission of `user` to a file or directory, or of any user if
    /// it is `None`: allows all users to create containers, unless `user` is root or the owner of
    /// the stores. Must be called before the permission is given.
    pub(crate) fn allow_writer(&self, user: Option<u32>) -> Result<()> {
        let is_known = user == Some(0) || user.is_some() && user == self.owner;
        if self.has_other_writers() || is_known {
            return Ok(());
        }
        // The process's own credentials, because the directories belong to the owner of the store.
        let _process = assume(None)?;
        self.list().stores.iter().try_for_each(Store::allow_other_writers)?;
        self.has_other_writers.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the paths of the stores, in the order of the placement map.
    pub fn paths(&self) -> Vec<Vec<u8>> {
        self.list().stores.iter().map(|store| store.root.path.clone()).collect()
    }

    pub(crate) fn number(&self, store: StoreNumber) -> u128 {
        self.list().stores[store].number
    }

    /// Returns the number of stores.
    pub fn count(&self) -> usize {
        self.list().len()
    }

    /// Returns this process and its node.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns true if this thread has root's rights, and not the rights of a user that it serves.
    pub(crate) fn has_root_power(&self) -> bool {
        self.host.uid == 0 && assumed().is_none()
    }

    /// Returns the user with whose rights this thread works.
    pub(crate) fn acting_uid(&self) -> u32 {
        assumed().map_or(self.host.uid, |caller| caller.uid)
    }

    /// Returns the number of log directories of a new container.
    pub fn directories(&self) -> u32 {
        self.directories
    }

    pub(crate) fn log_dirs(&self) -> &LogDirCache {
        &self.log_dirs
    }

    /// Returns the root directories of the stores.
    pub fn roots(&self) -> Vec<Arc<dyn WritableDir>> {
        self.list().stores.iter().map(|store| Arc::clone(&store.root.dir)).collect()
    }

    /// Returns a random number for a container.
    pub fn random_number(&self) -> u128 {
        self.host.random_number()
    }

    /// Returns a random number for a writer, which is not 0.
    pub fn random_writer(&self) -> u64 {
        (self.host.random)().max(1)
    }

    /// Opens the directory for new containers under construction. A drained store has none
    /// (`NotFound`); the caller then reads the map again.
    pub fn new_dir(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        self.list().stores[store].new_dir()
    }

    /// Returns the directory for new objects, which stays open. If it was removed, because the
    /// store was drained, creating a file in it fails with `NotFound` or `Stale`, and
    /// [`reopened_new_dir`](Self::reopened_new_dir) opens the new directory.
    pub(crate) fn kept_new_dir(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        self.list().stores[store].kept_new_dir()
    }

    /// Opens the directory for new objects again.
    pub(crate) fn reopened_new_dir(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        self.list().stores[store].reopened_new_dir()
    }

    /// Opens the directory for files of existing containers under construction.
    pub fn temporary_dir(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        match self.new_dir(store) {
            Err(error) if error.kind == ErrorKind::NotFound => self.trash_dir(store),
            opened => opened,
        }
    }

    /// Opens the directory for log directories of containers in other stores.
    pub(crate) fn parts_dir(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        self.list().stores[store].parts_dir()
    }

    /// Returns the directory for log directories, which stays open.
    pub(crate) fn kept_parts_dir(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        self.list().stores[store].kept_parts_dir()
    }

    /// Opens the directory for removed containers that are not yet deleted.
    pub fn trash_dir(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        self.list().stores[store].trash_dir()
    }

    /// Returns true if new containers can be created in the store.
    pub(crate) fn is_open_for_new(&self, store: StoreNumber) -> Result<bool> {
        Ok(none_if_not_found(self.list().stores[store].own.stat(NEW_DIR))?.is_some())
    }

    /// Returns the sum of the space in all stores, and the longest name that a file can have in
    /// each of them.
    pub fn space(&self) -> Result<Space> {
        let mut sum = Space::default();
        for root in self.roots() {
            let Space { total_bytes, free_bytes, available_bytes, entries, entries_free, name_bytes_max } =
                root.space()?;
            sum.total_bytes = sum.total_bytes.saturating_add(total_bytes);
            sum.free_bytes = sum.free_bytes.saturating_add(free_bytes);
            sum.available_bytes = sum.available_bytes.saturating_add(available_bytes);
            sum.entries = sum.entries.saturating_add(entries);
            sum.entries_free = sum.entries_free.saturating_add(entries_free);
            sum.name_bytes_max = sum.name_bytes_max.min(name_bytes_max);
        }
        sum.name_bytes_max = file_name_bytes_max(sum.name_bytes_max);
        Ok(sum)
    }
}

/// Allows all users to create containers in all stores, if they can do so in one of them, or if
/// `is_open` is set. An incomplete store is not known to be owner-writable.
fn allow_the_same_writers(stores: &[Store], is_open: bool) -> Result<()> {
    match is_open || stores.iter().any(|store| store.has_other_writers().unwrap_or(true)) {
        true => stores.iter().try_for_each(Store::allow_other_writers),
        false => Ok(()),
    }
}

/// Registers this process as a user of one store; see `Stores::begin_use`. Returns `None` if the
/// file system has no locks; then this process is never the only user.
fn begin_use_of(store: &Store, uid: u32, pause: &mut dyn FnMut() -> bool) -> Result<Option<UseLock>> {
    let lock = UseLock::open(&*store.own, uid)?;
    let mut is_registered = false;
    let mut is_free = || -> Result<bool> {
        is_registered = is_registered || lock.register()?;
        Ok(is_registered && !lock.has_only_user()?)
    };
    loop {
        match is_free() {
            Ok(true) => return Ok(Some(lock)),
            Ok(false) if pause() => {}
            Ok(false) => {
                return Err(Error {
                    source: Some(
                        "the mount that is the only user of the store does not answer; end the process of that \
                         mount"
                            .into(),
                    ),
                    ..Error::new(ErrorKind::Busy, "use the store", &store.root.path)
                });
            }
            Err(error) if error.errno() == errno::ENOLCK => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Returns the current map, and the map after the stores have changed their roles.
///
/// # Errors
///
/// `InvalidInput` if a store that becomes a member has content.
fn next_map(stores: &[Store], roles: &[Role]) -> Result<(StoreMap, StoreMap)> {
    let members = || stores.iter().zip(roles).filter(|(_, role)| **role != Role::Add).map(|(store, _)| store);
    let now = match newest_map(members().map(|store| &store.own))? {
        Some(map) => map,
        None => map_of(members()),
    };
    let (next, added) = change_roles(&now, stores, roles)?;
    added.iter().try_for_each(|store| check_free(&store.root))?;
    Ok((now, next))
}

#[cfg(test)]
#[path = "set_test.rs"]
mod tests;
