//! Reads the tree in the stores without a mount: directories, symbolic links and containers under
//! their names in the mount, and entries that a mount does not show. Symbolic links are not
//! followed.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell_posix::{Stat, WritableDir};
use quell_vfs::{Error, ErrorKind, Kind, Result};

use crate::container::Container;
use crate::format::{Stored, container_name, is_own, other_name, shown};
use crate::not_found::none_if_not_found;
use crate::stores::{StoreNumber, Stores};

/// An entry with a name in the mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name in the mount.
    pub name: Vec<u8>,
    /// A file, a directory or a symbolic link.
    pub kind: Kind,
    /// The store that holds it. A directory is in every store.
    pub store: StoreNumber,
}

/// The reason why a name in a store is not as the log layer creates it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameProblemKind {
    /// Quell did not create it; a mount does not show it.
    Foreign,
    /// Another store has a container of the same file, and a mount shows that one.
    SeveralStores,
    /// A directory or symbolic link that is hidden by a file with the same name.
    FileAndOther,
    /// A directory or symbolic link that is missing in the first store; a mount does not show it.
    NotInFirst,
    /// A directory that is missing in this store; files in it cannot be placed in this store.
    Missing,
}

/// A name that is not as the log layer creates it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameProblem {
    /// The store that has the name.
    pub store: StoreNumber,
    /// The name in the store.
    pub stored: Vec<u8>,
    /// The difference.
    pub kind: NameProblemKind,
}

/// All names in a directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// Sorted by name.
    pub entries: Vec<Entry>,
    /// Names that a mount does not show, or that differ between the stores.
    pub problems: Vec<NameProblem>,
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

/// The result of resolving a path.
#[derive(Debug)]
pub enum ResolvedPath {
    /// A directory.
    Dir(StoredDir),
    /// A file or a symbolic link, and its directory.
    Entry(StoredDir, Entry),
}

/// Resolves `path`, which consists of names as the mount shows them.
///
/// # Errors
///
/// `NotFound`, or `NotADirectory`.
pub fn find(stores: &Arc<Stores>, path: &[u8]) -> Result<ResolvedPath> {
    let mut dir = StoredDir::root(stores);
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).peekable();
    while let Some(name) = names.next() {
        let entry = dir.lookup(name)?.ok_or_else(|| Error::new(ErrorKind::NotFound, "find", path))?;
        match (entry.kind, names.peek()) {
            (Kind::Dir, _) => dir = dir.enter(name)?,
            (_, None) => return Ok(ResolvedPath::Entry(dir, entry)),
            (..) => return Err(Error::new(ErrorKind::NotADirectory, "find", path)),
        }
    }
    Ok(ResolvedPath::Dir(dir))
}

impl StoredDir {
    /// Returns the root directory of the mount.
    pub fn root(stores: &Arc<Stores>) -> StoredDir {
        let dirs = stores.roots().iter().map(|root| Some(Arc::clone(root))).collect();
        StoredDir { stores: Arc::clone(stores), dirs, is_root: true }
    }

    /// Returns the stores.
    pub fn stores(&self) -> &Arc<Stores> {
        &self.stores
    }

    pub(crate) fn is_root(&self) -> bool {
        self.is_root
    }

    /// Returns the directory in one store, if it exists there.
    pub(crate) fn in_store(&self, store: StoreNumber) -> Option<&dyn WritableDir> {
        self.dirs[store].as_deref()
    }

    /// Returns the directory in the first store, which holds its attributes.
    fn first(&self) -> &dyn WritableDir {
        self.dirs[0].as_deref().expect("the first store has every directory")
    }

    /// Returns the attributes of the directory.
    pub fn stat(&self) -> Result<Stat> {
        self.first().stat_self()
    }

    /// Returns the entry with this name. The stores are searched in the same order as by a mount.
    pub fn lookup(&self, name: &[u8]) -> Result<Option<Entry>> {
        if self.is_root && is_own(name) {
            return Ok(None);
        }
        let file = |store| Entry { name: name.to_vec(), kind: Kind::File, store };
        let (stored, home) = (container_name(name).ok(), self.stores.home(name));
        if let Some(stored) = &stored {
            for store in std::iter::once(home).chain((0..self.dirs.len()).filter(|store| *store != home)) {
                if self.is_file(store, stored)? {
                    return Ok(Some(file(store)));
                }
            }
        }
        let kind = self.kind(0, &other_name(name)?)?;
        if let Some(kind) = kind.filter(|kind| matches!(kind, Kind::Dir | Kind::Symlink)) {
            return Ok(Some(Entry { name: name.to_vec(), kind, store: 0 }));
        }
        // Fails if a store was added that this program cannot open, since the name may be there. A
        // file that is being moved has its name in its home before the old name is removed.
        self.stores.refresh()?;
        match &stored {
            Some(stored) if self.is_file(home, stored)? => Ok(Some(file(home))),
            _ => Ok(None),
        }
    }

    /// Returns true if a name in a store is a directory, or the object as which a file began.
    fn is_file(&self, store: StoreNumber, stored: &[u8]) -> Result<bool> {
        Ok(matches!(self.kind(store, stored)?, Some(Kind::Dir | Kind::File)))
    }

    fn kind(&self, store: StoreNumber, stored: &[u8]) -> Result<Option<Kind>> {
        let Some(Some(dir)) = self.dirs.get(store) else { return Ok(None) };
        Ok(none_if_not_found(dir.stat(stored))?.and_then(|stat| stat.kind()))
    }

    /// Opens the directory `name` in this one.
    pub fn enter(&self, name: &[u8]) -> Result<StoredDir> {
        let stored = other_name(name)?;
        let open = |(store, dir): (usize, &Option<Arc<dyn WritableDir>>)| match dir {
            Some(dir) => match dir.open_writable_dir(&stored) {
                // The directory is missing in this store, or another object has its name. `quell
                // log fsck` reports it.
                Err(_) if store > 0 => Ok(None),
                opened => opened.map(Some),
            },
            None => Ok(None),
        };
        let dirs = self.dirs.iter().enumerate().map(open).collect::<Result<Vec<_>>>()?;
        Ok(StoredDir { stores: Arc::clone(&self.stores), dirs, is_root: false })
    }

    /// Opens the container of a file in this directory.
    pub fn open(&self, file: &Entry) -> Result<Container> {
        let stored = container_name(&file.name)?;
        let dir = self.in_store(file.store);
        let dir = dir.ok_or_else(|| Error::new(ErrorKind::NotFound, "open", &file.name))?;
        Container::open(&self.stores, file.store, dir, &stored)
    }

    /// Returns the target and the attributes of a symbolic link in this directory.
    pub fn link(&self, entry: &Entry) -> Result<(Vec<u8>, Stat)> {
        let stored = other_name(&entry.name)?;
        Ok((self.first().read_link(&stored)?, self.first().stat(&stored)?))
    }

    /// Returns every name, sorted.
    pub fn list(&self) -> Result<Listing> {
        let mut files: BTreeMap<Vec<u8>, StoreNumber> = BTreeMap::new();
        let mut others: BTreeMap<Vec<u8>, Kind> = BTreeMap::new();
        let mut problems = Vec::new();
        for (store, dir) in self.dirs.iter().enumerate() {
            let Some(dir) = dir else { continue };
            for stored in dir.names()? {
                if self.is_root && is_own(&stored) {
                    continue;
                }
                let mut add_problem =
                    |kind| problems.push(NameProblem { store, stored: stored.clone(), kind });
                match (shown(&stored), self.kind(store, &stored)?) {
                    (_, None) => {} // it was removed meanwhile
                    (Some(Stored::Container(name)), Some(Kind::Dir | Kind::File)) => {
                        match files.get_mut(name) {
                            None => drop(files.insert(name.to_vec(), store)),
                            Some(_) if self.stores.home(name) != store => {
                                add_problem(NameProblemKind::SeveralStores)
                            }
                            Some(other) => {
                                let other = std::mem::replace(other, store);
                                problems.push(NameProblem {
                                    store: other,
                                    stored,
                                    kind: NameProblemKind::SeveralStores,
                                });
                            }
                        }
                    }
                    (Some(Stored::Other(name)), Some(kind @ (Kind::Dir | Kind::Symlink))) => match store {
                        0 => drop(others.insert(name.to_vec(), kind)),
                        _ if kind == Kind::Dir && others.get(name) == Some(&Kind::Dir) => {}
                        _ => add_problem(NameProblemKind::NotInFirst),
                    },
                    _ => add_problem(NameProblemKind::Foreign),
                }
            }
        }
        for (name, kind) in &others {
            let stored = other_name(name)?;
            if files.contains_key(name) {
                problems.push(NameProblem { store: 0, stored, kind: NameProblemKind::FileAndOther });
            } else if *kind == Kind::Dir {
                for store in 1..self.dirs.len() {
                    if self.kind(store, &stored)? != Some(Kind::Dir) {
                        problems.push(NameProblem {
                            store,
                            stored: stored.clone(),
                            kind: NameProblemKind::Missing,
                        });
                    }
                }
            }
        }
        // Fails if a store was added that this program cannot open: the list would lack its files.
        self.stores.refresh()?;
        others.retain(|name, _| !files.contains_key(name));
        let files = files.into_iter().map(|(name, store)| Entry { name, kind: Kind::File, store });
        let others = others.into_iter().map(|(name, kind)| Entry { name, kind, store: 0 });
        let mut entries: Vec<Entry> = files.chain(others).collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Listing { entries, problems })
    }
}
