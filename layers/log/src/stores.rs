//! The stores of one log mount, and who this node is. Which store holds what is decided in `placement`.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use quell_backing::{WritableDir, assume, assumed};
use quell_fs::{Change, Error, ErrorKind, Kind, Rename, Result, Space, errno};

use crate::container::{ACCESS, Container, logs_permissions, remove_tree};
use crate::heads::{BLOCK_BYTES, HEAD_BYTES, Head, HeadKind};
use crate::log_dirs::LogDirs;
use crate::meta::Holder;
use crate::missing::missing;
use crate::naming::{OWN, is_own};
use crate::newer_map;
use crate::placement;
use crate::scratch::Scratch;
use crate::store_map::{MAP_BYTES_MAX, Member, StoreMap};
use crate::tree::is_store;

/// A directory, and a name in it.
pub(crate) type Named = (Arc<dyn WritableDir>, Vec<u8>);

/// A store's place in the list.
pub type StoreNumber = usize;

const MAKING: &[u8] = b"new";
const TRASH: &[u8] = b"trash";
const PARTS: &[u8] = b"parts";
const RECORD: &[u8] = b"store";
const OWN_PERMISSIONS: u32 = 0o755;
const POINTER_PERMISSIONS: u32 = 0o644;
/// Everybody who may write to the store makes containers there, and may remove only their own.
const SHARED_PERMISSIONS: u32 = 0o1777;
/// The most that a file which stands for a log directory may hold.
const POINTER_BYTES_MAX: usize = 64;

/// This process and its node, as the layer needs to know them; chance comes from here too.
pub struct Host {
    pub holder: Holder,
    pub uid: u32,
    pub gid: u32,
    pub random: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Whether the process is gone for sure; of other nodes nobody can tell.
    pub is_gone: Box<dyn Fn(&Holder) -> bool + Send + Sync>,
    pub scratch: Scratch,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("holder", &self.holder).finish_non_exhaustive()
    }
}

/// A directory that is or becomes a store, and what people call it.
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

/// What is to become of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It stays what it is.
    Keep,
    /// It is used from now on.
    Add,
    /// Nothing new is placed there from now on.
    Drain,
}

/// Opens the directory at a path that a map says. What is in a map was written by somebody else: no link is followed, and
/// `newer_map` checks what is found there.
pub type Opener = Box<dyn Fn(&[u8]) -> Result<Arc<dyn WritableDir>> + Send + Sync>;

/// The stores of one mount.
pub struct Stores {
    view: RwLock<Arc<View>>,
    /// One thread looks for what newer maps say, and the others wait for what it finds.
    looking: Mutex<()>,
    opener: Option<Opener>,
    host: Host,
    directories: u32,
    log_dirs: LogDirs,
}

/// The stores as one version of the map has them. A store keeps its place for as long as anybody has the `Stores`: those that are
/// added come behind the others, those that go are left there.
pub(crate) struct View {
    /// 0: a store by itself, which has no map.
    pub version: u64,
    pub roots: Vec<Arc<dyn WritableDir>>,
    pub own: Vec<Arc<dyn WritableDir>>,
    /// The stores' own numbers, by which containers are placed.
    pub numbers: Vec<u128>,
    pub paths: Vec<Vec<u8>>,
    /// The store that gets the next version before all others do.
    keeper: StoreNumber,
    /// The stores that get what is new: their places in the list, and their numbers.
    used: (Vec<StoreNumber>, Vec<u128>),
}

impl View {
    /// `opened` holds every store that `map` uses. A store that the map does not have any more gets nothing.
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

    /// The stores once more, in their places.
    pub(crate) fn opened(&self) -> Vec<Opened> {
        let one = |place: StoreNumber| Opened {
            root: Root { dir: Arc::clone(&self.roots[place]), path: self.paths[place].clone() },
            own: Arc::clone(&self.own[place]),
            number: self.numbers[place],
        };
        (0..self.roots.len()).map(one).collect()
    }

    /// The store that should have the container of the file `name`.
    pub(crate) fn home(&self, name: &[u8]) -> StoreNumber {
        let (places, numbers) = &self.used;
        places[placement::choose(name, numbers)]
    }

    /// Whether the store gets what is new.
    pub(crate) fn is_used(&self, store: StoreNumber) -> bool {
        self.used.0.contains(&store)
    }

    /// Whether no store was added, and none is to be drained, since: one look for one name.
    fn is_newest(&self) -> Result<bool> {
        let Some(version) = self.version.checked_add(1) else { return Ok(true) };
        let next = StoreMap { version, members: Vec::new() }.file_name();
        Ok(missing(self.own[self.keeper].stat(&next))?.is_none())
    }
}

/// A store while it is found out which ones belong together.
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

/// An error of which people read the reason alone.
fn refused(subject: &[u8], reason: String) -> Error {
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::InvalidInput, "open", subject) }
}

impl Stores {
    /// Opens stores that nobody has a name for: see `open_named`.
    pub fn open(roots: Vec<Arc<dyn WritableDir>>, host: Host, directories: u32) -> Result<Stores> {
        let named = roots.into_iter().map(|dir| Root { dir, path: Vec::new() }).collect();
        Stores::open_named(named, host, directories)
    }

    /// Opens the stores, in whatever order they are given, making what each of them keeps for itself where it is missing;
    /// the first time that there are several they get their map. New containers get `directories` log directories.
    pub fn open_named(roots: Vec<Root>, host: Host, directories: u32) -> Result<Stores> {
        let are_stores = roots.iter().map(|root| is_store(&*root.dir)).collect::<Result<Vec<_>>>()?;
        // A new directory beside stores that belong together is left as it is.
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

    /// The same stores, which open those that are added from now on with `opener`. Without one they are refused.
    pub fn reaching(self, opener: Opener) -> Stores {
        Stores { opener: Some(opener), ..self }
    }

    /// Opens stores that are there already; nothing is written.
    pub fn look(roots: Vec<Root>, host: Host, directories: u32) -> Result<Stores> {
        let opened = enter(roots)?;
        let map = match newest_map(opened.iter().map(|store| &store.own))? {
            Some(map) => map,
            None => no_map(&opened),
        };
        Stores::of(opened, &map, host, directories)
    }

    /// Opens stores of which some come or go from now on: they get a new map if one is needed. What is where it should not be
    /// any more is for `rebalance`.
    pub fn change(roots: Vec<(Root, Role)>, host: Host, directories: u32) -> Result<Stores> {
        let (roots, roles): (Vec<_>, Vec<_>) = roots.into_iter().unzip();
        for (root, role) in roots.iter().zip(&roles) {
            let is_store = is_store(&*root.dir)?;
            if *role == Role::Add && !is_store {
                check_free(root)?;
            }
            if *role != Role::Add && !is_store {
                return Err(Error {
                    source: Some("it is no store".into()),
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
                // Who ended before every store had it has moved nothing.
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
        // Also after a run that was ended before this.
        for store in &opened {
            match map.member(store.number) {
                Some(member) if member.is_draining => close_for_new(&*store.own, &host)?,
                Some(_) => open_for_new(&*store.own)?,
                None => {}
            }
        }
        Stores::of(opened, &map, host, directories)
    }

    /// The map that `change` would make. Nothing is written; a store that is not made yet gets any number.
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

    /// The stores as they are known now.
    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The store that should have the container of the file `name`.
    pub fn home(&self, name: &[u8]) -> StoreNumber {
        self.view().home(name)
    }

    /// Whether there are other stores now, or other ones that get something new. Says `false` only if no file was moved by a map
    /// that is not known here, up to the moment of the call.
    pub fn refresh(&self) -> Result<bool> {
        self.has_changed(&self.view())
    }

    /// The same, since `seen`.
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
        // A store is opened for all users whom this process serves.
        let _process = assume(None)?;
        let Some(newer) = newer_map::follow(&now, self.opener.as_ref(), self.host.uid)? else {
            return Ok(false);
        };
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(newer);
        Ok(true)
    }

    /// The stores that get nothing new.
    pub(crate) fn draining(&self) -> Vec<StoreNumber> {
        let view = self.view();
        (0..view.roots.len()).filter(|store| !view.is_used(*store)).collect()
    }

    /// Leaves out of the map what is drained; what is said of earlier maps goes.
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
            return Err(refused(b"", "somebody else has changed the stores meanwhile: run it again".into()));
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

    /// A map that counts no more says nothing. Its name stays: it tells who knows the version before that there is a newer one.
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

    /// What a store keeps for itself.
    fn own(&self, store: StoreNumber) -> Arc<dyn WritableDir> {
        Arc::clone(&self.view().own[store])
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Whether this thread works with root's power, and not with that of a user who is served.
    pub(crate) fn has_root_power(&self) -> bool {
        self.host.uid == 0 && assumed().is_none()
    }

    /// The user with whose power this thread works.
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

    /// A number for a writer: never 0.
    pub fn random_writer(&self) -> u64 {
        (self.host.random)().max(1)
    }

    /// Where new containers are made before they get their names. A store that is drained has no such place (`NotFound`): who
    /// did not know reads the map again.
    pub fn making_new(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        self.own(store).open_writable_dir(MAKING)
    }

    /// Where what a container gets is made before it has its name.
    pub fn making(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        match self.own(store).open_writable_dir(MAKING) {
            Err(error) if error.kind == ErrorKind::NotFound => self.trash(store),
            opened => opened,
        }
    }

    /// Where log directories lie whose containers are in other stores.
    pub(crate) fn parts(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        self.own(store).open_writable_dir(PARTS)
    }

    /// Where removed containers lie until they are deleted.
    pub fn trash(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        self.own(store).open_writable_dir(TRASH)
    }

    /// Deletes what was moved to the trash under this name, and the container's log directories in other stores.
    pub fn delete(&self, home: StoreNumber, name: &[u8], container: u128) -> Result<()> {
        let trash = self.trash(home)?;
        let owners = self.owners_of_parts(&*trash.open_writable_dir(name)?)?;
        let mut removed = remove_tree(&*trash, name);
        for (parts, number) in self.parts_owned(container, &owners)? {
            removed = removed.and(remove_tree(&*parts, &number));
        }
        removed
    }

    /// What other stores have of an open container.
    pub(crate) fn parts_of(&self, container: &Container) -> Result<Vec<Named>> {
        self.parts_owned(container.number(), &self.owners_of_parts(container.dir())?)
    }

    /// The owners of what stores have of a container, when all stores are known that it can name.
    fn owners_of_parts(&self, container: &dyn WritableDir) -> Result<Vec<u32>> {
        let (owners, names_stores) = owners_and_pointers(container)?;
        if names_stores {
            self.refresh()?;
        }
        Ok(owners)
    }

    /// What stores have of the container of this number, where it is one of `owners`'.
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

    /// The log directory `number` of a container, wherever it lies.
    pub(crate) fn open_logs(
        &self,
        container: &Container,
        number: u32,
        make: bool,
    ) -> Result<Arc<dyn WritableDir>> {
        let missing = match self.find_logs(container, number)? {
            Some((dir, name)) => match dir.open_writable_dir(&name) {
                // A pointer to what nobody synced.
                Err(error) if error.kind == ErrorKind::NotFound => error,
                opened => return opened,
            },
            None => Error::new(ErrorKind::NotFound, "open", logs_name(number)),
        };
        if make { self.make_logs(container, number) } else { Err(missing) }
    }

    /// The directory and the name in it of a log directory, if it exists.
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
        // A pointer that was lost before anybody synced it is made again by who next writes there: what is to be found
        // then is found now.
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
        // Almost always; all that leads there from the container is looked at only if it is not.
        let is_plain = maker == container.dir().stat_self()?.uid;
        match is_plain || owners_of(container.dir())?.contains(&maker) {
            true => Ok(Some((own, name))),
            false => Err(of_another(&name)),
        }
    }

    /// The store that the file `name`, in the place of a log directory, names; `None` for one that is torn.
    fn pointed_at(&self, container: &Container, name: &[u8]) -> Result<Option<StoreNumber>> {
        self.named_by(container.dir(), name)
    }

    /// The same in any directory.
    pub(crate) fn named_by(&self, dir: &dyn WritableDir, name: &[u8]) -> Result<Option<StoreNumber>> {
        let mut bytes = [0; POINTER_BYTES_MAX];
        let length = dir.open_file(name)?.read_at(&mut bytes, 0)?;
        let named = &bytes[..length];
        if named.len() != 32 || !named.iter().all(u8::is_ascii_hexdigit) {
            return Ok(None);
        }
        let seen = self.view();
        let store = match self.store_named(named) {
            // One that was added.
            None if self.has_changed(&seen)? => self.store_named(named),
            found => found,
        };
        let store = store.ok_or_else(|| Error {
            source: Some("it names a store that this mount does not have".into()),
            ..Error::new(ErrorKind::Damaged, "read", name)
        })?;
        Ok(Some(store))
    }

    /// The store where a log directory that is made now lies.
    pub(crate) fn placed(&self, container: &Container, number: u32) -> StoreNumber {
        self.home(&[&container.number().to_le_bytes()[..], &number.to_le_bytes()].concat())
    }

    /// In the store that placement says: in the container itself, or among the parts of another store with a file that
    /// names it in the container (section V of the paper, the second technique).
    fn make_logs(&self, container: &Container, number: u32) -> Result<Arc<dyn WritableDir>> {
        let name = logs_name(number);
        let permissions = container.permissions()?;
        // Root makes them for others: they are the file's owner's.
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
            // It is drained now.
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
        // Who makes the pointer is one of the owners from then on.
        if maker != self.acting_uid() && !owners_of(container.dir())?.contains(&maker) {
            return Err(of_another(&name));
        }
        let dir = make(&*own, &name, logs_permissions(permissions))?;
        match self.point_first(container, &name, store)? {
            there if there == store => Ok(dir),
            there => {
                let _ = own.remove_dir(&name); // nobody is led there
                self.parts(there)?
                    .open_writable_dir(&number_name(container.number()))?
                    .open_writable_dir(&name)
            }
        }
    }

    /// Makes `name` in the container name `store`, unless it names one already: who does not know of a store that was added makes
    /// another choice. The store that it names then.
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

    /// Makes `name` in `dir`, of store `home`, name a store: whole before it has its name, and safe. Who else makes it at
    /// the same time says the same.
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
            // Another user was quicker, and its name is not ours to replace.
            Err(error) if error.errno() == errno::EPERM => match self.named_by(dir, name)? {
                Some(there) if there == store => Ok(()),
                _ => Err(error),
            },
            named => named,
        }
    }

    /// The way to a log directory survives a loss of power, where it lies in another store.
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

    /// The room of all stores together.
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

/// Whether the format defines this name for what a store keeps for itself.
pub(crate) fn is_name_of_store(name: &[u8]) -> bool {
    [MAKING, TRASH, PARTS, RECORD].contains(&name) || StoreMap::version_of(name).is_some()
}

pub(crate) fn number_name(container: u128) -> Vec<u8> {
    format!("{container:032x}").into_bytes()
}

/// The users whose directories in `parts` belong to a container: its owner, and those who made what leads there from it. Numbers
/// of containers can be read and made up, owners cannot.
pub(crate) fn owners_of(container: &dyn WritableDir) -> Result<Vec<u32>> {
    Ok(owners_and_pointers(container)?.0)
}

/// The same, and whether there are files in the places of log directories.
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
        // One that has another name too may have been made anywhere.
        // Root makes such names for anybody.
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
                // The parent's owner may exchange it: the engine gives away only what belongs to that owner.
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

/// Opens directories as stores, making them stores where they are none.
fn begin(roots: Vec<Root>, host: &Host) -> Result<Vec<Opened>> {
    for root in &roots {
        if !is_store(&*root.dir)? {
            begin_store(&*root.dir, host)?;
        }
    }
    enter(roots)
}

/// Opens stores.
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

/// What holds of stores that have no map: they are used in the order in which they are named.
fn no_map(opened: &[Opened]) -> StoreMap {
    let member =
        |store: &Opened| Member { number: store.number, is_draining: false, path: store.root.path.clone() };
    StoreMap { version: 0, members: opened.iter().map(member).collect() }
}

/// The newest map that is whole, of all that these stores have.
fn newest_map<'a>(own: impl IntoIterator<Item = &'a Arc<dyn WritableDir>>) -> Result<Option<StoreMap>> {
    let mut newest: Option<StoreMap> = None;
    for dir in own {
        let mut versions = map_versions(&**dir)?;
        while let Some(version) = versions.pop()
            && newest.as_ref().is_none_or(|newest| newest.version < version)
        {
            // One that is damaged, or that was removed meanwhile, is as if it were not there.
            if let Some(map) = read_map(&**dir, version)? {
                newest = Some(map);
            }
        }
    }
    Ok(newest)
}

/// The versions that a store has a file of, the newest last.
pub(crate) fn map_versions(own: &dyn WritableDir) -> Result<Vec<u64>> {
    let mut versions: Vec<u64> = own.names()?.iter().filter_map(|name| StoreMap::version_of(name)).collect();
    versions.sort_unstable();
    Ok(versions)
}

/// `None` for one that is not there, or not whole.
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

/// The map that counts, and the one that there is when the stores have their new roles.
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

/// A store that is added has nothing yet.
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

/// Writes a map to all of its stores, and says which one counts. `keeper`: that of the map before.
fn settle_map(opened: &[Opened], keeper: u128, map: StoreMap, host: &Host) -> Result<StoreMap> {
    let stores: Vec<_> = opened.iter().map(|store| (store.number, &store.own)).collect();
    let written = write_map(&stores, keeper, &map, host)?;
    if written.members.iter().map(|member| member.number).ne(map.members.iter().map(|member| member.number))
        && written.version > 1
    {
        return Err(refused(b"", "somebody else has changed the stores meanwhile: try again".into()));
    }
    Ok(written)
}

/// Whoever was writing the map may have ended before every store had it: nobody goes by it before they all do, as mounts
/// that run see it only then.
fn complete(opened: &[Opened], map: &StoreMap, host: &Host) -> Result<()> {
    match write_everywhere(opened, map, host) {
        // Nothing can be made there, nor moved.
        Err(error) if error.kind == ErrorKind::ReadOnly => Ok(()),
        Err(error) if error.kind == ErrorKind::PermissionDenied => Err(Error {
            source: Some(
                "not every store has the newest map: who owns them runs `quell log rebalance` again".into(),
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

/// Writes a map, whole, first to the `keeper` of the version before: of several who make the same version at the same
/// time the first one wins there, and the others take what it has written.
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
                    // Damaged: as if it were not there.
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

/// Nothing new comes into the store any more, also not by mounts that do not know of it: they find no place to make it.
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

/// Makes what a store keeps for itself, whole before it has its name: of several that do so at once one wins.
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
