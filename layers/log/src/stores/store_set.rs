//! The stores of one log mount, and the identity of this node. `placement` decides which store
//! holds which file.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use quell_posix::{WritableDir, assume, assumed};
use quell_vfs::{Change, Error, ErrorKind, Kind, Rename, Result, Space, errno};

use crate::container::container_dir::{ACCESS, Container, logs_permissions, remove_tree};
use crate::container::log_dirs::LogDirs;
use crate::container::missing::missing;
use crate::container::scratch::Scratch;
use crate::format::heads::{BLOCK_BYTES, HEAD_BYTES, Head, HeadKind};
use crate::format::meta::Holder;
use crate::format::naming::{OWN, is_own};
use crate::format::store_map::{MAP_BYTES_MAX, Member, StoreMap};
use crate::stores::newer_map;
use crate::stores::placement;
use crate::stores::tree::is_store;

/// A directory, and a name in it.
pub(crate) type Named = (Arc<dyn WritableDir>, Vec<u8>);

/// The index of a store in the list of stores.
pub type StoreNumber = usize;

const MAKING: &[u8] = b"new";
const TRASH: &[u8] = b"trash";
const PARTS: &[u8] = b"parts";
const RECORD: &[u8] = b"store";
const OWN_PERMISSIONS: u32 = 0o755;
const POINTER_PERMISSIONS: u32 = 0o644;
/// Every user with write permission to the store creates containers there, and may remove only
/// their own.
const SHARED_PERMISSIONS: u32 = 0o1777;
/// The largest size of a file that stands for a log directory, in bytes.
const POINTER_BYTES_MAX: usize = 64;

/// This process and its node, and the source of random numbers.
pub struct Host {
    pub holder: Holder,
    pub uid: u32,
    pub gid: u32,
    pub random: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Returns true if the process is known to be dead. Returns false if its state is unknown, as
    /// for processes of other nodes.
    pub is_gone: Box<dyn Fn(&Holder) -> bool + Send + Sync>,
    pub scratch: Scratch,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("holder", &self.holder).finish_non_exhaustive()
    }
}

/// A directory that is or becomes a store, and its path in messages.
#[derive(Clone)]
pub struct Root {
    pub dir: Arc<dyn WritableDir>,
    pub path: Vec<u8>,
}

impl std::fmt::Debug for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Root").field("path", &String::from_utf8_lossy(&self.path)).finish_non_exhaustive()
    }
}

/// The change of a store's role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The store keeps its role.
    Keep,
    /// The store is added, or used again.
    Add,
    /// The store is drained.
    Drain,
}

/// Opens the directory at a path in a map. The map may have been written by another user: symbolic
/// links must not be followed, and `newer_map` verifies the directory.
pub type Opener = Box<dyn Fn(&[u8]) -> Result<Arc<dyn WritableDir>> + Send + Sync>;

/// The stores of one mount.
pub struct Stores {
    view: RwLock<Arc<View>>,
    /// Held while one thread looks for newer maps; other threads wait for its result.
    looking: Mutex<()>,
    opener: Option<Opener>,
    host: Host,
    directories: u32,
    log_dirs: LogDirs,
}

/// The stores according to one version of the map. A store keeps its index during the lifetime of
/// `Stores`: added stores are appended, and drained stores stay in the list.
pub(crate) struct View {
    /// 0 for a single store without a map.
    pub version: u64,
    pub roots: Vec<Arc<dyn WritableDir>>,
    pub own: Vec<Arc<dyn WritableDir>>,
    /// The numbers in the stores' records, by which containers are placed.
    pub numbers: Vec<u128>,
    pub paths: Vec<Vec<u8>>,
    /// The store in which the next version of the map is created first.
    keeper: StoreNumber,
    /// The stores in use: their indices, and their numbers.
    used: (Vec<StoreNumber>, Vec<u128>),
}

impl View {
    /// Creates a view. `opened` contains every store that `map` uses. A store that is not in the
    /// map gets no new files.
    pub(crate) fn of(opened: impl IntoIterator<Item = Opened>, map: &StoreMap) -> View {
        let (mut roots, mut own, mut numbers, mut paths) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for store in opened {
            roots.push(store.root.dir);
            own.push(store.own);
            numbers.push(store.number);
            paths.push(store.root.path);
        }
        let is_used = |number| map.member(number).is_some_and(|member| !member.is_draining);
        let places: Vec<_> = (0..numbers.len()).filter(|place| is_used(numbers[*place])).collect();
        let keeper = numbers.iter().position(|number| *number == map.keeper()).expect("a store that is used");
        let used = places.iter().map(|place| numbers[*place]).collect();
        View { version: map.version, roots, own, numbers, paths, keeper, used: (places, used) }
    }

    /// Returns the stores in order.
    pub(crate) fn opened(&self) -> Vec<Opened> {
        let one = |place: StoreNumber| Opened {
            root: Root { dir: Arc::clone(&self.roots[place]), path: self.paths[place].clone() },
            own: Arc::clone(&self.own[place]),
            number: self.numbers[place],
        };
        (0..self.roots.len()).map(one).collect()
    }

    /// Returns the home store of the file `name`.
    pub(crate) fn home(&self, name: &[u8]) -> StoreNumber {
        let (places, numbers) = &self.used;
        places[placement::choose(name, numbers)]
    }

    /// Returns true if the store gets new files.
    pub(crate) fn is_used(&self, store: StoreNumber) -> bool {
        self.used.0.contains(&store)
    }

    /// Returns true if there is no newer version of the map. Makes a single lookup.
    fn is_newest(&self) -> Result<bool> {
        let Some(version) = self.version.checked_add(1) else { return Ok(true) };
        let next = StoreMap { version, members: Vec::new() }.file_name();
        Ok(missing(self.own[self.keeper].stat(&next))?.is_none())
    }
}

/// A store that is being opened, before its map is known.
#[derive(Clone)]
pub(crate) struct Opened {
    pub root: Root,
    pub own: Arc<dyn WritableDir>,
    pub number: u128,
}

impl std::fmt::Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stores").field("stores", &self.count()).finish_non_exhaustive()
    }
}

/// Returns an error whose source is the whole message for the user.
fn refused(subject: &[u8], reason: String) -> Error {
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::InvalidInput, "open", subject) }
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
        // A new directory next to stores with a map is not changed.
        for (root, _) in roots.iter().zip(&are_stores).filter(|(_, is_store)| **is_store) {
            if are_stores.contains(&false) && has_map(&*root.dir.open_writable_dir(OWN)?)? {
                let new = roots.iter().zip(&are_stores).find(|(_, is_store)| !**is_store);
                return Err(not_one_of_them(new.map_or(&[], |(root, _)| &root.path)));
            }
        }
        let opened = begin(roots, &host)?;
        let map = match newest_map(opened.iter().map(|store| &store.own))? {
            Some(map) => {
                complete(&opened, &map, &host)?;
                map
            }
            None if opened.len() == 1 => no_map(&opened),
            None => {
                for store in &opened {
                    let names = store.root.dir.names()?;
                    if names.iter().any(|name| !is_own(name)) {
                        return Err(refused(
                            &store.root.path,
                            "it has files and does not yet belong to the others: `quell log rebalance STORE --add OTHER` \
                             gives it an empty store"
                                .into(),
                        ));
                    }
                }
                let first = StoreMap { version: 1, ..no_map(&opened) };
                settle_map(&opened, first.keeper(), first, &host)?
            }
        };
        Stores::of(opened, &map, host, directories)
    }

    /// Returns these stores with an opener for stores that are added later. Without an opener such
    /// a store is an error.
    pub fn reaching(self, opener: Opener) -> Stores {
        Stores { opener: Some(opener), ..self }
    }

    /// Opens existing stores. Writes nothing.
    pub fn look(roots: Vec<Root>, host: Host, directories: u32) -> Result<Stores> {
        let opened = enter(roots)?;
        let map = match newest_map(opened.iter().map(|store| &store.own))? {
            Some(map) => map,
            None => no_map(&opened),
        };
        Stores::of(opened, &map, host, directories)
    }

    /// Opens stores and changes their roles with a new map, if one is needed. `rebalance` then
    /// moves the files.
    pub fn change(roots: Vec<(Root, Role)>, host: Host, directories: u32) -> Result<Stores> {
        let (roots, roles): (Vec<_>, Vec<_>) = roots.into_iter().unzip();
        for (root, role) in roots.iter().zip(&roles) {
            let is_store = is_store(&*root.dir)?;
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
        let opened = begin(roots, &host)?;
        let (now, next) = changed(&opened, &roles)?;
        check_left(&next)?;
        let is_same = next.members == now.members && (now.version > 0 || now.members.len() == 1);
        let map = match is_same {
            true => {
                // A previous run that ended before every store had the map has moved nothing.
                if now.version > 0 {
                    write_everywhere(&opened, &now, &host)?;
                }
                now
            }
            false => {
                let before = if now.members.is_empty() { &next } else { &now };
                settle_map(&opened, before.keeper(), next, &host)?
            }
        };
        // Also needed after a previous run that was killed before this.
        for store in &opened {
            match map.member(store.number) {
                Some(member) if member.is_draining => close_for_new(&*store.own, &host)?,
                Some(_) => open_for_new(&*store.own)?,
                None => {}
            }
        }
        Stores::of(opened, &map, host, directories)
    }

    /// Returns the map that `change` would create. Writes nothing; a store that does not exist yet
    /// gets a random number.
    pub fn foretell(roots: Vec<(Root, Role)>, host: &Host) -> Result<StoreMap> {
        let (mut opened, mut new) = (Vec::new(), Vec::new());
        for (root, role) in roots {
            if role == Role::Add && !is_store(&*root.dir)? {
                new.push(Member { number: random_number(host), is_draining: false, path: root.path });
            } else {
                opened.push((enter(vec![root])?.remove(0), role));
            }
        }
        let (opened, roles): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        let (_, mut map) = changed(&opened, &roles)?;
        map.members.append(&mut new);
        check_left(&map).map(|()| map)
    }

    fn of(opened: Vec<Opened>, map: &StoreMap, host: Host, directories: u32) -> Result<Stores> {
        if let Some(foreign) = opened.iter().find(|store| map.member(store.number).is_none()) {
            return Err(not_one_of_them(&foreign.root.path));
        }
        let mut ordered = Vec::with_capacity(opened.len());
        for member in &map.members {
            match opened.iter().find(|store| store.number == member.number) {
                Some(store) => ordered.push(store.clone()),
                None => return Err(not_named(member)),
            }
        }
        Ok(Stores {
            view: RwLock::new(Arc::new(View::of(ordered, map))),
            looking: Mutex::default(),
            opener: None,
            host,
            directories,
            log_dirs: LogDirs::default(),
        })
    }

    /// Returns the stores that are currently known.
    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the home store of the file `name`.
    pub fn home(&self, name: &[u8]) -> StoreNumber {
        self.view().home(name)
    }

    /// Looks for a newer map and uses it. Returns true if the stores have changed. Returns false
    /// only if, up to this call, no file was moved because of a map that is not known here.
    pub fn refresh(&self) -> Result<bool> {
        self.has_changed(&self.view())
    }

    /// Looks for a newer map, as `refresh` does. Returns true if the stores have changed since
    /// `seen`.
    pub(crate) fn has_changed(&self, seen: &Arc<View>) -> Result<bool> {
        if !Arc::ptr_eq(seen, &self.view()) {
            return Ok(true);
        }
        if seen.is_newest()? {
            return Ok(false);
        }
        let _one = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.view();
        if !Arc::ptr_eq(seen, &now) {
            return Ok(true);
        }
        // The process's own credentials, because the store is opened for all users that it serves.
        let _process = assume(None)?;
        let Some(newer) = newer_map::follow(&now, self.opener.as_ref(), self.host.uid)? else {
            return Ok(false);
        };
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(newer);
        Ok(true)
    }

    /// Returns the stores that are being drained.
    pub(crate) fn draining(&self) -> Vec<StoreNumber> {
        let view = self.view();
        (0..view.roots.len()).filter(|store| !view.is_used(*store)).collect()
    }

    /// Removes drained stores from the map, and truncates earlier maps.
    pub(crate) fn leave_drained(&self) -> Result<()> {
        let view = self.view();
        let Some(now) = newest_map(&view.own)? else { return Ok(()) };
        let keeper = now.keeper();
        let mut members = now.members.clone();
        members.retain(|member| !member.is_draining);
        let next = match members.len() == now.members.len() {
            true => now,
            false => StoreMap { version: now.version + 1, members },
        };
        let mut stay: Vec<(u128, &Arc<dyn WritableDir>)> =
            view.numbers.iter().copied().zip(&view.own).collect();
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
                    self.empty_map(&**own, &name)?;
                }
            }
        }
        Ok(())
    }

    /// Truncates a map that is no longer valid. Its name stays, so that a process with the version
    /// before it can see that there is a newer one.
    fn empty_map(&self, own: &dyn WritableDir, name: &[u8]) -> Result<()> {
        if missing(own.stat(name))?.is_none_or(|stat| stat.size_bytes == 0) {
            return Ok(());
        }
        let (trash, temporary) = (own.open_writable_dir(TRASH)?, number_name(self.random_number()));
        trash.create_file(&temporary, POINTER_PERMISSIONS)?;
        trash.rename(&temporary, own, name, Rename::Replace)
    }

    pub fn paths(&self) -> Vec<Vec<u8>> {
        self.view().paths.clone()
    }

    pub(crate) fn number(&self, store: StoreNumber) -> u128 {
        self.view().numbers[store]
    }

    pub fn count(&self) -> usize {
        self.view().roots.len()
    }

    /// Returns the `.quell` directory of a store.
    fn own(&self, store: StoreNumber) -> Arc<dyn WritableDir> {
        Arc::clone(&self.view().own[store])
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns true if this thread has root's rights, and not those of a user that it serves.
    pub(crate) fn has_root_power(&self) -> bool {
        self.host.uid == 0 && assumed().is_none()
    }

    /// Returns the user with whose rights this thread works.
    pub(crate) fn acting_uid(&self) -> u32 {
        assumed().map_or(self.host.uid, |caller| caller.uid)
    }

    pub fn directories(&self) -> u32 {
        self.directories
    }

    pub(crate) fn log_dirs(&self) -> &LogDirs {
        &self.log_dirs
    }

    pub fn roots(&self) -> Vec<Arc<dyn WritableDir>> {
        self.view().roots.clone()
    }

    pub fn random_number(&self) -> u128 {
        random_number(&self.host)
    }

    /// Returns a random number for a writer, which is not 0.
    pub fn random_writer(&self) -> u64 {
        (self.host.random)().max(1)
    }

    /// Opens the directory for new containers under construction. A drained store has none
    /// (`NotFound`); the caller then reads the map again.
    pub fn making_new(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        self.own(store).open_writable_dir(MAKING)
    }

    /// Opens the directory for files of existing containers under construction.
    pub fn making(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        match self.own(store).open_writable_dir(MAKING) {
            Err(error) if error.kind == ErrorKind::NotFound => self.trash(store),
            opened => opened,
        }
    }

    /// Opens the directory for log directories of containers in other stores.
    pub(crate) fn parts(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        self.own(store).open_writable_dir(PARTS)
    }

    /// Opens the directory for removed containers that are not yet deleted.
    pub fn trash(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        self.own(store).open_writable_dir(TRASH)
    }

    /// Deletes a container in `trash`, and its log directories in other stores.
    pub fn delete(&self, home: StoreNumber, name: &[u8], container: u128) -> Result<()> {
        let trash = self.trash(home)?;
        let owners = self.owners_of_parts(&*trash.open_writable_dir(name)?)?;
        let mut removed = remove_tree(&*trash, name);
        for (parts, number) in self.parts_owned(container, &owners)? {
            removed = removed.and(remove_tree(&*parts, &number));
        }
        removed
    }

    /// Returns the directories of an open container in the `parts` of all stores.
    pub(crate) fn parts_of(&self, container: &Container) -> Result<Vec<Named>> {
        self.parts_owned(container.number(), &self.owners_of_parts(container.dir())?)
    }

    /// Returns the owners whose directories in `parts` belong to the container, after making sure
    /// that all stores that it names are known.
    fn owners_of_parts(&self, container: &dyn WritableDir) -> Result<Vec<u32>> {
        let (owners, names_stores) = owners_and_pointers(container)?;
        if names_stores {
            self.refresh()?;
        }
        Ok(owners)
    }

    /// Returns the directories in `parts` of the container with this number, if they belong to one
    /// of `owners`.
    fn parts_owned(&self, container: u128, owners: &[u32]) -> Result<Vec<Named>> {
        let (name, mut found, view) = (number_name(container), Vec::new(), self.view());
        if view.roots.len() > 1 {
            for own in &view.own {
                let parts = own.open_writable_dir(PARTS)?;
                match parts.stat(&name) {
                    Ok(stat) if owners.contains(&stat.uid) => found.push((parts, name.clone())),
                    Err(error) if error.kind != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(found)
    }

    /// Opens the log directory `number` of a container, in any store, and creates it if `make` is
    /// true.
    pub(crate) fn open_logs(
        &self,
        container: &Container,
        number: u32,
        make: bool,
    ) -> Result<Arc<dyn WritableDir>> {
        let missing = match self.find_logs(container, number)? {
            Some((dir, name)) => match dir.open_writable_dir(&name) {
                // The pointer survived a power failure, and the log directory did not.
                Err(error) if error.kind == ErrorKind::NotFound => error,
                opened => return opened,
            },
            None => Error::new(ErrorKind::NotFound, "open", logs_name(number)),
        };
        if make { self.make_logs(container, number) } else { Err(missing) }
    }

    /// Returns the parent directory and the name of a log directory, if it exists.
    pub(crate) fn find_logs(&self, container: &Container, number: u32) -> Result<Option<Named>> {
        let name = logs_name(number);
        let stat = match container.dir().stat(&name) {
            Ok(stat) => Some(stat),
            Err(error) if error.kind == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let store = match stat {
            Some(stat) if stat.kind() == Some(Kind::Dir) => {
                return Ok(Some((container.dir_handle(), name)));
            }
            Some(_) => self.pointed_at(container, &name)?,
            None => None,
        };
        // A pointer that was lost in a power failure would be created again by the next writer. The
        // log directory is therefore found where placement puts it.
        let store = match store {
            Some(store) => store,
            None => match self.placed(container, number) {
                store if store == container.home() => return Ok(None),
                store => store,
            },
        };
        let parts = self.own(store).open_writable_dir(PARTS)?;
        let own = parts.open_writable_dir(&number_name(container.number()));
        let own = match own.and_then(|own| own.stat(&name).map(|_| own)) {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
            own => own?,
        };
        let maker = own.stat_self()?.uid;
        // This is almost always true; the owners of the pointers are read only otherwise.
        let is_plain = maker == container.dir().stat_self()?.uid;
        match is_plain || owners_of(container.dir())?.contains(&maker) {
            true => Ok(Some((own, name))),
            false => Err(of_another(&name)),
        }
    }

    /// Returns the store that the pointer `name` in a container names, or `None` if the pointer is
    /// torn.
    fn pointed_at(&self, container: &Container, name: &[u8]) -> Result<Option<StoreNumber>> {
        self.named_by(container.dir(), name)
    }

    /// Returns the store that the pointer `name` in any directory names.
    pub(crate) fn named_by(&self, dir: &dyn WritableDir, name: &[u8]) -> Result<Option<StoreNumber>> {
        let mut bytes = [0; POINTER_BYTES_MAX];
        let length = dir.open_file(name)?.read_at(&mut bytes, 0)?;
        let named = &bytes[..length];
        if named.len() != 32 || !named.iter().all(u8::is_ascii_hexdigit) {
            return Ok(None);
        }
        let seen = self.view();
        let store = match self.store_named(named) {
            // The store may have been added later.
            None if self.has_changed(&seen)? => self.store_named(named),
            found => found,
        };
        let store = store.ok_or_else(|| Error {
            source: Some("it names a store that this mount does not have".into()),
            ..Error::new(ErrorKind::Damaged, "read", name)
        })?;
        Ok(Some(store))
    }

    /// Returns the store for a new log directory.
    pub(crate) fn placed(&self, container: &Container, number: u32) -> StoreNumber {
        self.home(&[&container.number().to_le_bytes()[..], &number.to_le_bytes()].concat())
    }

    /// Creates a log directory in the store that placement gives: in the container itself, or in
    /// `parts` of another store, with a pointer in the container that names the store (section V of
    /// the paper, the second technique).
    fn make_logs(&self, container: &Container, number: u32) -> Result<Arc<dyn WritableDir>> {
        let name = logs_name(number);
        let permissions = container.permissions()?;
        // If root serves other users, the directory belongs to the file's owner.
        let owner = match self.has_root_power() {
            true => Some(container.dir().stat(ACCESS)?),
            false => None,
        };
        let make = |parent: &dyn WritableDir, name: &[u8], permissions| {
            enter_or_make_for(parent, name, permissions, owner.map(|owner| (owner.uid, owner.gid)))
        };
        let mut store = self.placed(container, number);
        if store == container.home() {
            return make(container.dir(), &name, logs_permissions(permissions));
        }
        match self.own(store).stat(MAKING) {
            // The store has been drained.
            Err(error) if error.kind == ErrorKind::NotFound && self.refresh()? => {
                store = self.placed(container, number);
                if store == container.home() {
                    return make(container.dir(), &name, logs_permissions(permissions));
                }
            }
            found => drop(found?),
        }
        let own = make(&*self.parts(store)?, &number_name(container.number()), permissions)?;
        let maker = own.stat_self()?.uid;
        // The user who creates the pointer becomes one of the owners.
        if maker != self.acting_uid() && !owners_of(container.dir())?.contains(&maker) {
            return Err(of_another(&name));
        }
        let dir = make(&*own, &name, logs_permissions(permissions))?;
        match self.point_first(container, &name, store)? {
            there if there == store => Ok(dir),
            there => {
                let _ = own.remove_dir(&name); // no pointer names it
                self.parts(there)?
                    .open_writable_dir(&number_name(container.number()))?
                    .open_writable_dir(&name)
            }
        }
    }

    /// Creates the pointer `name` to `store` in the container, unless there is one already: a mount
    /// that does not know of an added store chooses another store. Returns the store that the
    /// pointer names.
    fn point_first(&self, container: &Container, name: &[u8], store: StoreNumber) -> Result<StoreNumber> {
        match self.point(container.home(), container.dir(), name, store, Rename::Keep) {
            Err(error) if matches!(error.kind, ErrorKind::Exists | ErrorKind::Unsupported) => {
                match missing(self.pointed_at(container, name))?.flatten() {
                    Some(there) => Ok(there),
                    None => self.point_at(container, name, store).map(|()| store),
                }
            }
            pointed => pointed.map(|()| store),
        }
    }

    fn point_at(&self, container: &Container, name: &[u8], store: StoreNumber) -> Result<()> {
        self.point_in(container.home(), container.dir(), name, store)
    }

    /// Creates a pointer `name` in `dir`, a directory of store `home`. It is complete and synced
    /// before it gets its name. Concurrent callers write the same content.
    pub(crate) fn point_in(
        &self,
        home: StoreNumber,
        dir: &dyn WritableDir,
        name: &[u8],
        store: StoreNumber,
    ) -> Result<()> {
        self.point(home, dir, name, store, Rename::Replace)
    }

    fn point(
        &self,
        home: StoreNumber,
        dir: &dyn WritableDir,
        name: &[u8],
        store: StoreNumber,
        how: Rename,
    ) -> Result<()> {
        let making = self.making(home)?;
        let temporary = number_name(self.random_number());
        let file = making.create_file(&temporary, POINTER_PERMISSIONS)?;
        file.write_at(&number_name(self.number(store)), 0)?;
        file.sync()?;
        let named = making.rename(&temporary, dir, name, how);
        if named.is_err() {
            let _ = making.remove(&temporary);
        }
        match named {
            // Another user has created it, and this user may not replace it.
            Err(error) if error.errno() == errno::EPERM => match self.named_by(dir, name)? {
                Some(there) if there == store => Ok(()),
                _ => Err(error),
            },
            named => named,
        }
    }

    /// Makes the pointer to a log directory in another store survive a power failure.
    pub(crate) fn sync_logs(&self, container: &Container, number: u32) -> Result<()> {
        let name = logs_name(number);
        let pointed = match container.dir().stat(&name) {
            Ok(stat) if stat.kind() == Some(Kind::Dir) => return Ok(()),
            Ok(_) => self.pointed_at(container, &name)?,
            Err(error) if error.kind == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if pointed.is_none() {
            self.point_at(container, &name, self.placed(container, number))?;
        }
        if let Some((dir, _)) = self.find_logs(container, number)? {
            dir.sync()?;
        }
        self.view().own.iter().try_for_each(|own| own.open_writable_dir(PARTS)?.sync())
    }

    fn store_named(&self, name: &[u8]) -> Option<StoreNumber> {
        self.view().numbers.iter().position(|number| number_name(*number) == name)
    }

    /// Returns the sum of the space in all stores.
    pub fn space(&self) -> Result<Space> {
        let mut sum = Space::default();
        for root in self.roots() {
            let Space { total_bytes, free_bytes, available_bytes, entries, entries_free } = root.space()?;
            sum.total_bytes = sum.total_bytes.saturating_add(total_bytes);
            sum.free_bytes = sum.free_bytes.saturating_add(free_bytes);
            sum.available_bytes = sum.available_bytes.saturating_add(available_bytes);
            sum.entries = sum.entries.saturating_add(entries);
            sum.entries_free = sum.entries_free.saturating_add(entries_free);
        }
        Ok(sum)
    }
}

pub(crate) fn logs_name(number: u32) -> Vec<u8> {
    format!("logs-{number:x}").into_bytes()
}

/// Returns true if the format defines this name in `.quell`.
pub(crate) fn is_name_of_store(name: &[u8]) -> bool {
    [MAKING, TRASH, PARTS, RECORD].contains(&name) || StoreMap::version_of(name).is_some()
}

pub(crate) fn number_name(container: u128) -> Vec<u8> {
    format!("{container:032x}").into_bytes()
}

/// Returns the users whose directories in `parts` belong to a container: its owner, and the owners
/// of its pointers. The number alone is not sufficient, because any user can know or forge it.
pub(crate) fn owners_of(container: &dyn WritableDir) -> Result<Vec<u32>> {
    Ok(owners_and_pointers(container)?.0)
}

/// Returns the same, and whether the container has pointers.
fn owners_and_pointers(container: &dyn WritableDir) -> Result<(Vec<u32>, bool)> {
    let mut names_stores = false;
    let mut owners = vec![container.stat_self()?.uid];
    for name in container.names()? {
        if name != ACCESS && !name.starts_with(b"logs-") {
            continue;
        }
        let Some(stat) = missing(container.stat(&name))? else { continue };
        let is_file = stat.kind() == Some(Kind::File);
        names_stores |= is_file && name != ACCESS;
        // A hard link may have been created elsewhere, and root creates pointers for other users.
        if is_file && stat.nlink == 1 && stat.uid != 0 {
            owners.push(stat.uid);
        }
    }
    owners.sort_unstable();
    owners.dedup();
    Ok((owners, names_stores))
}

fn of_another(name: &[u8]) -> Error {
    Error {
        source: Some("what another store has under this container's number is another user's".into()),
        ..Error::new(ErrorKind::Damaged, "open", name)
    }
}

pub(crate) fn enter_or_make(
    parent: &dyn WritableDir,
    name: &[u8],
    permissions: u32,
) -> Result<Arc<dyn WritableDir>> {
    enter_or_make_for(parent, name, permissions, None)
}

fn enter_or_make_for(
    parent: &dyn WritableDir,
    name: &[u8],
    permissions: u32,
    owner: Option<(u32, u32)>,
) -> Result<Arc<dyn WritableDir>> {
    match parent.open_writable_dir(name) {
        Err(error) if error.kind == ErrorKind::NotFound => {}
        opened => return opened,
    }
    match parent.make_dir(name, permissions) {
        Err(error) if error.kind == ErrorKind::Exists => {}
        Err(error) => return Err(error),
        Ok(()) => {
            if let Some((uid, gid)) = owner {
                // The owner of the parent may have exchanged it. The engine changes the owner only
                // of a directory that belongs to that owner.
                let made = parent.stat(name)?;
                if (made.uid, made.gid) != (uid, gid) {
                    let owner = Change { uid: Some(uid), gid: Some(gid), ..Change::default() };
                    parent.change(name, &owner)?;
                }
            }
        }
    }
    parent.open_writable_dir(name)
}

fn random_number(host: &Host) -> u128 {
    u128::from((host.random)()) << 64 | u128::from((host.random)())
}

fn not_one_of_them(path: &[u8]) -> Error {
    let shown = String::from_utf8_lossy(path);
    refused(
        path,
        format!(
            "{shown} is none of these stores: `quell log rebalance STORE,... --add {shown}` makes it one"
        ),
    )
}

fn not_named(member: &Member) -> Error {
    let path = String::from_utf8_lossy(&member.path);
    refused(&member.path, format!("the store {path} belongs to these and is not named: name them all"))
}

/// Opens directories as stores, and makes those stores that are not.
fn begin(roots: Vec<Root>, host: &Host) -> Result<Vec<Opened>> {
    for root in &roots {
        if !is_store(&*root.dir)? {
            begin_store(&*root.dir, host)?;
        }
    }
    enter(roots)
}

/// Opens existing stores.
pub(crate) fn enter(roots: Vec<Root>) -> Result<Vec<Opened>> {
    if roots.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, "open", "no store"));
    }
    let mut opened: Vec<Opened> = Vec::with_capacity(roots.len());
    for root in roots {
        let own = root.dir.open_writable_dir(OWN)?;
        let mut bytes = [0; HEAD_BYTES];
        let length = own.open_file(RECORD)?.read_at(&mut bytes, 0)?;
        let head = Head::decode(HeadKind::Store, &bytes[..length]).map_err(|damage| damage.of(RECORD))?;
        if opened.iter().any(|other| other.number == head.container) {
            return Err(refused(&root.path, "one directory is given as two stores".into()));
        }
        opened.push(Opened { root, own, number: head.container });
    }
    Ok(opened)
}

fn has_map(own: &dyn WritableDir) -> Result<bool> {
    Ok(own.names()?.iter().any(|name| StoreMap::version_of(name).is_some()))
}

/// Returns the map of stores without a map: all are used, in the given order.
fn no_map(opened: &[Opened]) -> StoreMap {
    let member =
        |store: &Opened| Member { number: store.number, is_draining: false, path: store.root.path.clone() };
    StoreMap { version: 0, members: opened.iter().map(member).collect() }
}

/// Returns the newest complete map in these stores.
fn newest_map<'a>(own: impl IntoIterator<Item = &'a Arc<dyn WritableDir>>) -> Result<Option<StoreMap>> {
    let mut newest: Option<StoreMap> = None;
    for dir in own {
        let mut versions = map_versions(&**dir)?;
        while let Some(version) = versions.pop()
            && newest.as_ref().is_none_or(|newest| newest.version < version)
        {
            // A map that is damaged or was just removed is skipped.
            if let Some(map) = read_map(&**dir, version)? {
                newest = Some(map);
            }
        }
    }
    Ok(newest)
}

/// Returns the versions of the map files in a store, the newest last.
pub(crate) fn map_versions(own: &dyn WritableDir) -> Result<Vec<u64>> {
    let mut versions: Vec<u64> = own.names()?.iter().filter_map(|name| StoreMap::version_of(name)).collect();
    versions.sort_unstable();
    Ok(versions)
}

/// Reads a map. Returns `None` if it does not exist or is not complete.
pub(crate) fn read_map(own: &dyn WritableDir, version: u64) -> Result<Option<StoreMap>> {
    let name = StoreMap { version, members: Vec::new() }.file_name();
    let file = match own.open_file(&name) {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let size = usize::try_from(file.stat()?.size_bytes).unwrap_or(usize::MAX);
    if size > MAP_BYTES_MAX {
        return Ok(None);
    }
    let mut bytes = vec![0; size];
    let length = file.read_at(&mut bytes, 0)?;
    Ok(StoreMap::decode(version, &bytes[..length]).ok())
}

/// Returns the current map, and the map after the stores have changed their roles.
fn changed(opened: &[Opened], roles: &[Role]) -> Result<(StoreMap, StoreMap)> {
    let all = || opened.iter().zip(roles.iter().copied());
    let member =
        |store: &Opened| Member { number: store.number, is_draining: false, path: store.root.path.clone() };
    let old = || all().filter(|(_, role)| *role != Role::Add).map(|(store, _)| store);
    let now = match newest_map(old().map(|store| &store.own))? {
        Some(map) => map,
        None => StoreMap { version: 0, members: old().map(member).collect() },
    };
    if let Some(missing) =
        now.members.iter().find(|member| opened.iter().all(|store| store.number != member.number))
    {
        return Err(not_named(missing));
    }
    let mut next = StoreMap { version: now.version + 1, members: now.members.clone() };
    for (store, role) in all() {
        let known = next.members.iter_mut().find(|member| member.number == store.number);
        match (role, known) {
            (Role::Keep, Some(_)) => {}
            (Role::Keep, None) => return Err(not_one_of_them(&store.root.path)),
            (Role::Add, Some(known)) => known.is_draining = false,
            (Role::Add, None) => {
                check_free(&store.root)?;
                next.members.push(member(store));
            }
            (Role::Drain, Some(known)) => known.is_draining = true,
            (Role::Drain, None) => {
                return Err(refused(
                    &store.root.path,
                    "it is none of these stores, or is drained already".into(),
                ));
            }
        }
    }
    Ok((now, next))
}

/// Refuses a store to be added that has content.
fn check_free(root: &Root) -> Result<()> {
    match root.dir.names()?.iter().all(|name| is_own(name)) {
        true => Ok(()),
        false => {
            Err(refused(&root.path, "a store that is added is empty at first: name another directory".into()))
        }
    }
}

fn check_left(map: &StoreMap) -> Result<()> {
    match map.used().is_empty() {
        true => Err(refused(b"", "no store would be left".into())),
        false => Ok(()),
    }
}

/// Writes a map to all of its stores, and returns the valid one. `keeper` is that of the previous
/// map.
fn settle_map(opened: &[Opened], keeper: u128, map: StoreMap, host: &Host) -> Result<StoreMap> {
    let stores: Vec<_> = opened.iter().map(|store| (store.number, &store.own)).collect();
    let written = write_map(&stores, keeper, &map, host)?;
    if written.members.iter().map(|member| member.number).ne(map.members.iter().map(|member| member.number))
        && written.version > 1
    {
        return Err(refused(b"", "another process changed the stores at the same time; try again".into()));
    }
    Ok(written)
}

/// Completes a map. Its writer may have ended before every store had it; running mounts do not use
/// it before all of its stores have it.
fn complete(opened: &[Opened], map: &StoreMap, host: &Host) -> Result<()> {
    match write_everywhere(opened, map, host) {
        // In a read-only store nothing can be created or moved.
        Err(error) if error.kind == ErrorKind::ReadOnly => Ok(()),
        Err(error) if error.kind == ErrorKind::PermissionDenied => Err(Error {
            source: Some(
                "not every store has the newest map; the owner of the stores must run `quell log rebalance` again".into(),
            ),
            ..error
        }),
        written => written,
    }
}

/// Writes a map to those of its stores that lack it.
fn write_everywhere(opened: &[Opened], map: &StoreMap, host: &Host) -> Result<()> {
    let mut stores = Vec::new();
    for store in opened.iter().filter(|store| map.member(store.number).is_some()) {
        stores.push((store.number, &store.own));
    }
    let name = map.file_name();
    for (_, own) in &stores {
        if missing(own.stat(&name))?.is_none() {
            return write_map(&stores, map.keeper(), map, host).map(drop);
        }
    }
    Ok(())
}

/// Writes a complete map, first to the `keeper` of the previous version. If several processes
/// create the same version at the same time, the first one to succeed there determines it, and the
/// others use its map.
fn write_map(
    stores: &[(u128, &Arc<dyn WritableDir>)],
    keeper: u128,
    map: &StoreMap,
    host: &Host,
) -> Result<StoreMap> {
    let mut stores = stores.to_vec();
    stores.sort_by_key(|(number, _)| (*number != keeper, *number));
    let name = map.file_name();
    let mut counts = map.clone();
    for (place, (_, own)) in stores.iter().enumerate() {
        let making = own.open_writable_dir(TRASH)?;
        let temporary = number_name(random_number(host));
        let file = making.create_file(&temporary, POINTER_PERMISSIONS)?;
        file.write_at(&counts.encode(), 0)?;
        file.sync()?;
        let how = if place == 0 { Rename::Keep } else { Rename::Replace };
        match making.rename(&temporary, &***own, &name, how) {
            Err(error) if error.kind == ErrorKind::Unsupported && own.stat(&name).is_err() => {
                making.rename(&temporary, &***own, &name, Rename::Replace)?;
            }
            Err(error) if matches!(error.kind, ErrorKind::Exists | ErrorKind::Unsupported) => {
                making.remove(&temporary)?;
                match read_map(&***own, map.version)? {
                    Some(first) => counts = first,
                    // A damaged map is replaced.
                    None => {
                        own.remove(&name)?;
                        return write_map(&stores, keeper, map, host);
                    }
                }
            }
            renamed => renamed?,
        }
        own.sync()?;
    }
    Ok(counts)
}

/// Prevents new containers in a drained store. Mounts that do not know of the new map find no `new`
/// directory.
fn close_for_new(own: &dyn WritableDir, host: &Host) -> Result<()> {
    let trash = own.open_writable_dir(TRASH)?;
    let name = number_name(random_number(host));
    match own.rename(MAKING, &*trash, &name, Rename::Replace) {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => remove_tree(&*trash, &name),
    }
}

fn open_for_new(own: &dyn WritableDir) -> Result<()> {
    enter_or_make(own, MAKING, SHARED_PERMISSIONS).map(drop)
}

/// Creates the `.quell` directory of a store. It gets its name after it is complete, so of several
/// concurrent processes one succeeds.
fn begin_store(root: &dyn WritableDir, host: &Host) -> Result<Arc<dyn WritableDir>> {
    let number = random_number(host);
    let temporary = [OWN, b"-", &number_name(number)[..]].concat();
    root.make_dir(&temporary, OWN_PERMISSIONS)?;
    let dir = root.open_writable_dir(&temporary)?;
    for name in [MAKING, TRASH, PARTS] {
        dir.make_dir(name, SHARED_PERMISSIONS)?;
    }
    let head = Head {
        kind: HeadKind::Store,
        block_bytes: BLOCK_BYTES,
        container: number,
        writer: 0,
        directories: 0,
    };
    let record = dir.create_file(RECORD, POINTER_PERMISSIONS)?;
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
    root.sync()?;
    root.open_writable_dir(OWN)
}

#[cfg(test)]
#[path = "stores_test.rs"]
mod tests;
