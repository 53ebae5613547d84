//! The tree that the stores hold, without a mount: directories, symbolic links and containers by the names that they
//! have in a mount, and what lies there that no mount shows. No link is followed.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell_backing::{Stat, WritableDir, assume};
use quell_fs::{Change, Error, ErrorKind, Kind, Result};

use crate::container::Container;
use crate::missing::missing;
use crate::naming::{OWN, Stored, container_name, is_own, other_name, shown};
use crate::stores::{Host, StoreNumber, Stores};

/// What has a name in a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    /// A file, a directory or a symbolic link.
    pub kind: Kind,
    /// Where it lies; directories lie in every store.
    pub store: StoreNumber,
}

/// Why a name in a store is not as this layer makes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oddity {
    /// Somebody else put it there; no mount shows it.
    Foreign,
    /// The container of a file that another store has, too; mounts show the other.
    SeveralStores,
    /// A directory or link that is hidden by a file of the same name.
    FileAndOther,
    /// A directory or link that the first store does not have; no mount shows it.
    NotInFirst,
    /// A directory that this store lacks; files in it cannot be placed there.
    Missing,
}

/// A name that is not as this layer makes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Odd {
    pub store: StoreNumber,
    /// As it is in the store.
    pub stored: Vec<u8>,
    pub why: Oddity,
}

/// All names of a directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// By name.
    pub entries: Vec<Entry>,
    pub odd: Vec<Odd>,
}

/// A directory, open in every store that has it.
pub struct StoredDir {
    stores: Arc<Stores>,
    dirs: Vec<Option<Arc<dyn WritableDir>>>,
    is_root: bool,
}

impl std::fmt::Debug for StoredDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredDir").field("is_root", &self.is_root).finish_non_exhaustive()
    }
}

/// Whether somebody has made a store of this directory.
pub fn is_store(root: &dyn WritableDir) -> Result<bool> {
    Ok(missing(root.stat(OWN))?.is_some_and(|stat| stat.kind() == Some(Kind::Dir)))
}

/// The directory `stored` of `dirs`, which are one directory in every store: made in stores that lack it, as the first one's is.
pub(crate) fn enter_all(
    dirs: &[Arc<dyn WritableDir>],
    stored: &[u8],
    host: &Host,
) -> Result<Vec<Arc<dyn WritableDir>>> {
    // What is missing is made for all users whom this process serves, as the first store has it.
    let _process = assume(None)?;
    let mut entered: Vec<Arc<dyn WritableDir>> = Vec::with_capacity(dirs.len());
    for dir in dirs {
        let opened = match (dir.open_writable_dir(stored), entered.first()) {
            (Err(error), Some(first)) if error.kind == ErrorKind::NotFound => {
                let like = first.stat_self()?;
                match dir.make_dir(stored, like.mode & 0o7777) {
                    // Another mount has made it meanwhile.
                    Err(error) if error.kind == ErrorKind::Exists => {}
                    made => {
                        made?;
                        if host.uid == 0 || host.gid != like.gid {
                            let uid = (host.uid == 0).then_some(like.uid);
                            let change = Change { uid, gid: Some(like.gid), ..Change::default() };
                            // A group that its owner does not belong to is not given.
                            match dir.change(stored, &change) {
                                Err(error) if host.uid == 0 => return Err(error),
                                _ => {}
                            }
                        }
                    }
                }
                dir.open_writable_dir(stored)?
            }
            (opened, _) => opened?,
        };
        entered.push(opened);
    }
    Ok(entered)
}

/// What a path leads to.
#[derive(Debug)]
pub enum Found {
    Dir(StoredDir),
    /// A file or a symbolic link, and the directory that it is in.
    Entry(StoredDir, Entry),
}

/// What `path`, of names as a mount shows them, leads to. Errors: `NotFound`, `NotADirectory`.
pub fn find(stores: &Arc<Stores>, path: &[u8]) -> Result<Found> {
    let mut dir = StoredDir::root(stores);
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).peekable();
    while let Some(name) = names.next() {
        let entry = dir.lookup(name)?.ok_or_else(|| Error::new(ErrorKind::NotFound, "find", path))?;
        match (entry.kind, names.peek()) {
            (Kind::Dir, _) => dir = dir.enter(name)?,
            (_, None) => return Ok(Found::Entry(dir, entry)),
            (..) => return Err(Error::new(ErrorKind::NotADirectory, "find", path)),
        }
    }
    Ok(Found::Dir(dir))
}

impl StoredDir {
    pub fn root(stores: &Arc<Stores>) -> StoredDir {
        let dirs = stores.roots().iter().map(|root| Some(Arc::clone(root))).collect();
        StoredDir { stores: Arc::clone(stores), dirs, is_root: true }
    }

    pub fn stores(&self) -> &Arc<Stores> {
        &self.stores
    }

    pub(crate) fn is_root(&self) -> bool {
        self.is_root
    }

    /// The directory in one store.
    pub(crate) fn in_store(&self, store: StoreNumber) -> Option<&dyn WritableDir> {
        self.dirs[store].as_deref()
    }

    /// The directory of the first store, which has what a directory's attributes are.
    fn first(&self) -> &dyn WritableDir {
        self.dirs[0].as_deref().expect("the first store has every directory")
    }

    pub fn stat(&self) -> Result<Stat> {
        self.first().stat_self()
    }

    /// The entry of this name, found as a mount finds it.
    pub fn lookup(&self, name: &[u8]) -> Result<Option<Entry>> {
        if self.is_root && is_own(name) {
            return Ok(None);
        }
        let file = |store| Entry { name: name.to_vec(), kind: Kind::File, store };
        let (stored, home) = (container_name(name).ok(), self.stores.home(name));
        if let Some(stored) = &stored {
            for store in std::iter::once(home).chain((0..self.dirs.len()).filter(|store| *store != home)) {
                if self.kind(store, stored)? == Some(Kind::Dir) {
                    return Ok(Some(file(store)));
                }
            }
        }
        let kind = self.kind(0, &other_name(name)?)?;
        if let Some(kind) = kind.filter(|kind| matches!(kind, Kind::Dir | Kind::Symlink)) {
            return Ok(Some(Entry { name: name.to_vec(), kind, store: 0 }));
        }
        // In a store that was added since it would not be found; what is being moved has its name at home first.
        self.stores.refresh()?;
        match &stored {
            Some(stored) if self.kind(home, stored)? == Some(Kind::Dir) => Ok(Some(file(home))),
            _ => Ok(None),
        }
    }

    fn kind(&self, store: StoreNumber, stored: &[u8]) -> Result<Option<Kind>> {
        let Some(Some(dir)) = self.dirs.get(store) else { return Ok(None) };
        Ok(missing(dir.stat(stored))?.and_then(|stat| stat.kind()))
    }

    /// The directory `name` in this one.
    pub fn enter(&self, name: &[u8]) -> Result<StoredDir> {
        let stored = other_name(name)?;
        let open = |(store, dir): (usize, &Option<Arc<dyn WritableDir>>)| match dir {
            Some(dir) => match dir.open_writable_dir(&stored) {
                // Missing, or something else: that is for fsck to tell.
                Err(_) if store > 0 => Ok(None),
                opened => opened.map(Some),
            },
            None => Ok(None),
        };
        let dirs = self.dirs.iter().enumerate().map(open).collect::<Result<Vec<_>>>()?;
        Ok(StoredDir { stores: Arc::clone(&self.stores), dirs, is_root: false })
    }

    /// The container of a file in this directory.
    pub fn open(&self, file: &Entry) -> Result<Container> {
        let stored = container_name(&file.name)?;
        let dir = self.in_store(file.store);
        let dir = dir.ok_or_else(|| Error::new(ErrorKind::NotFound, "open", &file.name))?;
        Container::open(&self.stores, file.store, dir, &stored)
    }

    /// A symbolic link in this directory: its target and what `stat` says of it.
    pub fn link(&self, entry: &Entry) -> Result<(Vec<u8>, Stat)> {
        let stored = other_name(&entry.name)?;
        Ok((self.first().read_link(&stored)?, self.first().stat(&stored)?))
    }

    /// Every name, sorted.
    pub fn list(&self) -> Result<Listing> {
        let mut files: BTreeMap<Vec<u8>, StoreNumber> = BTreeMap::new();
        let mut others: BTreeMap<Vec<u8>, Kind> = BTreeMap::new();
        let mut odd = Vec::new();
        for (store, dir) in self.dirs.iter().enumerate() {
            let Some(dir) = dir else { continue };
            for stored in dir.names()? {
                if self.is_root && is_own(&stored) {
                    continue;
                }
                let mut strange = |why| odd.push(Odd { store, stored: stored.clone(), why });
                match (shown(&stored), self.kind(store, &stored)?) {
                    (_, None) => {} // it was removed meanwhile
                    (Some(Stored::Container(name)), Some(Kind::Dir)) => match files.get_mut(name) {
                        None => drop(files.insert(name.to_vec(), store)),
                        Some(_) if self.stores.home(name) != store => strange(Oddity::SeveralStores),
                        Some(other) => {
                            let other = std::mem::replace(other, store);
                            odd.push(Odd { store: other, stored, why: Oddity::SeveralStores });
                        }
                    },
                    (Some(Stored::Other(name)), Some(kind @ (Kind::Dir | Kind::Symlink))) => match store {
                        0 => drop(others.insert(name.to_vec(), kind)),
                        _ if kind == Kind::Dir && others.get(name) == Some(&Kind::Dir) => {}
                        _ => strange(Oddity::NotInFirst),
                    },
                    _ => strange(Oddity::Foreign),
                }
            }
        }
        for (name, kind) in &others {
            let stored = other_name(name)?;
            if files.contains_key(name) {
                odd.push(Odd { store: 0, stored, why: Oddity::FileAndOther });
            } else if *kind == Kind::Dir {
                for store in 1..self.dirs.len() {
                    if self.kind(store, &stored)? != Some(Kind::Dir) {
                        odd.push(Odd { store, stored: stored.clone(), why: Oddity::Missing });
                    }
                }
            }
        }
        self.stores.refresh()?; // what is in a store that was added since is not told to be missing
        others.retain(|name, _| !files.contains_key(name));
        let files = files.into_iter().map(|(name, store)| Entry { name, kind: Kind::File, store });
        let others = others.into_iter().map(|(name, kind)| Entry { name, kind, store: 0 });
        let mut entries: Vec<Entry> = files.chain(others).collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Listing { entries, odd })
    }
}
