//! The stores of one log mount, and who this node is. Which store holds what is decided in `placement`.

use std::sync::Arc;

use quell_backing::WritableDir;
use quell_fs::{Error, ErrorKind, Rename, Result, Space};

use crate::container::{Container, remove_tree};
use crate::heads::{BLOCK_BYTES, HEAD_BYTES, Head, HeadKind};
use crate::meta::Holder;
use crate::naming::OWN;
use crate::placement;

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
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("holder", &self.holder).finish_non_exhaustive()
    }
}

/// The stores of one mount.
pub struct Stores {
    roots: Vec<Arc<dyn WritableDir>>,
    own: Vec<Arc<dyn WritableDir>>,
    /// The stores' own numbers, by which containers are placed.
    numbers: Vec<u128>,
    host: Host,
    directories: u32,
}

impl std::fmt::Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stores").field("stores", &self.roots.len()).finish_non_exhaustive()
    }
}

impl Stores {
    /// Opens the stores, making what each of them keeps for itself where it is missing. New containers get
    /// `directories` log directories.
    pub fn open(roots: Vec<Arc<dyn WritableDir>>, host: Host, directories: u32) -> Result<Stores> {
        if roots.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "open", "no store"));
        }
        let (mut own, mut numbers) = (Vec::with_capacity(roots.len()), Vec::with_capacity(roots.len()));
        for root in &roots {
            let dir = match root.open_writable_dir(OWN) {
                Err(error) if error.kind == ErrorKind::NotFound => begin_store(&**root, &host)?,
                opened => opened?,
            };
            let mut bytes = [0; HEAD_BYTES];
            let length = dir.open_file(RECORD)?.read_at(&mut bytes, 0)?;
            let head = Head::decode(HeadKind::Store, &bytes[..length]).map_err(|damage| damage.of(RECORD))?;
            if numbers.contains(&head.container) {
                return Err(Error {
                    source: Some("one directory is given as two stores".into()),
                    ..Error::new(ErrorKind::InvalidInput, "open", "a store")
                });
            }
            own.push(dir);
            numbers.push(head.container);
        }
        Ok(Stores { roots, own, numbers, host, directories })
    }

    /// The store that should have the container of the file `name`.
    pub fn home(&self, name: &[u8]) -> StoreNumber {
        placement::choose(name, &self.numbers)
    }

    pub fn count(&self) -> usize {
        self.roots.len()
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn directories(&self) -> u32 {
        self.directories
    }

    pub fn roots(&self) -> &[Arc<dyn WritableDir>] {
        &self.roots
    }

    pub fn random_number(&self) -> u128 {
        u128::from((self.host.random)()) << 64 | u128::from((self.host.random)())
    }

    /// A number for a writer: never 0.
    pub fn random_writer(&self) -> u64 {
        (self.host.random)().max(1)
    }

    /// Where containers are made before they get their names.
    pub fn making(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        self.own[store].open_writable_dir(MAKING)
    }

    /// Where removed containers lie until they are deleted.
    pub fn trash(&self, store: StoreNumber) -> Result<Arc<dyn WritableDir>> {
        self.own[store].open_writable_dir(TRASH)
    }

    /// Deletes what was moved to the trash under this name, and the container's log directories in other stores.
    pub fn delete(&self, home: StoreNumber, name: &[u8], container: u128) -> Result<()> {
        remove_tree(&*self.trash(home)?, name)?;
        if self.roots.len() > 1 {
            for own in &self.own {
                match remove_tree(&*own.open_writable_dir(PARTS)?, &number_name(container)) {
                    Err(error) if error.kind != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
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
            Some(stat) if stat.kind() == Some(quell_fs::Kind::Dir) => {
                return Ok(Some((container.dir_handle(), name)));
            }
            Some(_) => self.pointed_at(container, &name)?,
            None => None,
        };
        // A pointer that was lost before anybody synced it is made again by who next writes there: what is to be found
        // then is found now.
        let store = store.unwrap_or_else(|| self.placed(container, number));
        if store == container.home() {
            return Ok(None);
        }
        let parts = self.own[store].open_writable_dir(PARTS)?;
        let own = parts.open_writable_dir(&number_name(container.number()));
        match own.and_then(|own| own.stat(&name).map(|_| own)) {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            own => Ok(Some((own?, name))),
        }
    }

    /// The store that the file `name`, in the place of a log directory, names; `None` for one that is torn.
    fn pointed_at(&self, container: &Container, name: &[u8]) -> Result<Option<StoreNumber>> {
        let mut bytes = [0; POINTER_BYTES_MAX];
        let length = container.dir().open_file(name)?.read_at(&mut bytes, 0)?;
        let named = &bytes[..length];
        if named.len() != 32 || !named.iter().all(u8::is_ascii_hexdigit) {
            return Ok(None);
        }
        let store = self.store_named(named).ok_or_else(|| Error {
            source: Some("it names a store that this mount does not have".into()),
            ..Error::new(ErrorKind::Damaged, "read", name)
        })?;
        Ok(Some(store))
    }

    /// The store where a log directory that is made now lies.
    fn placed(&self, container: &Container, number: u32) -> StoreNumber {
        let key = [&container.number().to_le_bytes()[..], &number.to_le_bytes()].concat();
        placement::choose(&key, &self.numbers)
    }

    /// In the store that placement says: in the container itself, or among the parts of another store with a file that
    /// names it in the container (section V of the paper, the second technique).
    fn make_logs(&self, container: &Container, number: u32) -> Result<Arc<dyn WritableDir>> {
        let name = logs_name(number);
        let permissions = container.permissions()?;
        let store = self.placed(container, number);
        if store == container.home() {
            return enter_or_make(container.dir(), &name, permissions);
        }
        let parts = self.own[store].open_writable_dir(PARTS)?;
        let own = enter_or_make(&*parts, &number_name(container.number()), permissions)?;
        let dir = enter_or_make(&*own, &name, permissions)?;
        self.point_at(container, &name, store)?;
        Ok(dir)
    }

    /// Whole before it has its name, and safe. Who else makes it at the same time says the same.
    fn point_at(&self, container: &Container, name: &[u8], store: StoreNumber) -> Result<()> {
        let making = self.making(container.home())?;
        let temporary = number_name(self.random_number());
        let file = making.create_file(&temporary, POINTER_PERMISSIONS)?;
        file.write_at(&number_name(self.numbers[store]), 0)?;
        file.sync()?;
        making.rename(&temporary, container.dir(), name, Rename::Replace)
    }

    /// The way to a log directory survives a loss of power, where it lies in another store.
    pub(crate) fn sync_logs(&self, container: &Container, number: u32) -> Result<()> {
        let name = logs_name(number);
        let pointed = match container.dir().stat(&name) {
            Ok(stat) if stat.kind() == Some(quell_fs::Kind::Dir) => return Ok(()),
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
        self.own.iter().try_for_each(|own| own.open_writable_dir(PARTS)?.sync())
    }

    fn store_named(&self, name: &[u8]) -> Option<StoreNumber> {
        self.numbers.iter().position(|number| number_name(*number) == name)
    }

    /// The room of all stores together.
    pub fn space(&self) -> Result<Space> {
        let mut sum = Space::default();
        for root in &self.roots {
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

fn logs_name(number: u32) -> Vec<u8> {
    format!("logs-{number:x}").into_bytes()
}

pub(crate) fn number_name(container: u128) -> Vec<u8> {
    format!("{container:032x}").into_bytes()
}

fn enter_or_make(parent: &dyn WritableDir, name: &[u8], permissions: u32) -> Result<Arc<dyn WritableDir>> {
    match parent.open_writable_dir(name) {
        Err(error) if error.kind == ErrorKind::NotFound => {}
        opened => return opened,
    }
    match parent.make_dir(name, permissions) {
        Err(error) if error.kind != ErrorKind::Exists => Err(error),
        _ => parent.open_writable_dir(name),
    }
}

/// Makes what a store keeps for itself, whole before it has its name: of several that do so at once one wins.
fn begin_store(root: &dyn WritableDir, host: &Host) -> Result<Arc<dyn WritableDir>> {
    let number = u128::from((host.random)()) << 64 | u128::from((host.random)());
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
