//! Rebalance: moves every container, and every log directory of a container with logs in several
//! stores, to the store that the placement map gives. A drained store is emptied and leaves the
//! map.
//!
//! A container is first copied and synced, then gets its name in the new store, and is removed from
//! the old one last. If the process is killed, there are at most two copies, of which the one in
//! the home store is complete; the next run copies missing parts and removes the other. Logs only
//! grow and their names are unique, so a copy is completed by copying files that are missing or
//! shorter.
//!
//! Files that are being written are skipped. A writer that opens a file while it is moved is
//! detected by the names in `meta`, because every writer creates a name there before its logs: the
//! move is then undone.

use std::sync::{Arc, Mutex, PoisonError};

use quell_posix::{Stat, WritableDir};
use quell_vfs::{Change, Error, ErrorKind, Kind, Rename, Result};

use crate::container::container_dir::{Container, META, MOVED, RECORD, remove_tree};
use crate::container::missing::missing;
use crate::format::naming::{Stored, container_name, is_own, joined, other_name, shown};
use crate::format::store_map::StoreMap;
use crate::stores::store_set::{StoreNumber, Stores, enter_or_make, logs_name, number_name};
use crate::stores::tree::{Found, StoredDir, enter_all, find};
use crate::tools::crew::{self, Tally};

/// Size of a read, in bytes.
const PIECE_BYTES: usize = 4 << 20;
/// The largest number of passes. A later pass finds files that were created in a drained store
/// during the earlier ones.
const PASSES_MAX: usize = 4;

/// The result of a rebalance.
#[derive(Debug, Default)]
pub struct Rebalanced {
    /// Files in the store that the map gives, including moved files.
    pub files: u64,
    pub moved: u64,
    /// Log directories that were moved separately from their containers.
    pub parts: u64,
    pub bytes: u64,
    /// Files that are being written.
    pub busy: Vec<Vec<u8>>,
    pub failed: Vec<(Vec<u8>, Error)>,
    /// The drained stores are empty and were removed from the map.
    pub is_complete: bool,
}

/// One directory in every store.
type Dirs = Arc<Vec<Arc<dyn WritableDir>>>;

enum Task {
    Dir(Dirs, Vec<u8>, Vec<u8>),
    /// The file, and the stores that have a container of this name.
    File(Dirs, Vec<u8>, Vec<StoreNumber>, Vec<u8>),
}

struct Work<'a> {
    stores: &'a Arc<Stores>,
    tally: &'a Tally,
    done: Mutex<Rebalanced>,
}

/// Moves everything to the store that the map gives.
pub fn rebalance(stores: &Arc<Stores>, threads: usize, tally: &Tally) -> Result<Rebalanced> {
    let work = Work { stores, tally, done: Mutex::default() };
    for _ in 0..PASSES_MAX {
        let before = work.moves();
        let root: Dirs = Arc::new(stores.roots());
        work.note(|done| done.files = 0);
        let mut first = Vec::new();
        work.list(&root, b"", &mut first)?;
        crew::run(threads, first, tally, &|task, more| {
            let (Task::Dir(.., path) | Task::File(.., path)) = &task;
            let path = path.clone();
            if let Err(error) = work.one(task, more) {
                work.note(|done| done.failed.push((path, error)));
            }
        });
        let is_over = work.moves() == before || work.has_left();
        if is_over || tally.is_stopped() {
            break;
        }
    }
    if !work.has_left() && !tally.is_stopped() {
        let draining = stores.draining();
        if draining.contains(&0)
            && let Some(first) = (0..stores.count()).find(|store| !draining.contains(store))
        {
            work.copy_links(&Arc::new(stores.roots()), first)?;
        }
        stores.leave_drained()?;
        work.note(|done| done.is_complete = true);
    }
    Ok(work.done.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Returns what would be moved with a map that is not in use yet. Changes nothing.
pub fn foretell(stores: &Arc<Stores>, map: &StoreMap) -> Result<Rebalanced> {
    let mut told = Rebalanced::default();
    let mut waiting = vec![(StoredDir::root(stores), Vec::new())];
    while let Some((dir, path)) = waiting.pop() {
        for entry in dir.list()?.entries {
            let below = joined(&path, &entry.name);
            match entry.kind {
                Kind::File => {
                    let container = match dir.open(&entry) {
                        Err(error) if error.kind == ErrorKind::NotFound => continue,
                        container => container?,
                    };
                    told.files += 1;
                    if is_live(&container)? {
                        told.busy.push(below);
                    } else if stores.number(entry.store) != map.home(&entry.name) {
                        told.moved += 1;
                        told.bytes += container.summary()?.data_bytes();
                    }
                }
                Kind::Dir => match find(stores, &below)? {
                    Found::Dir(dir) => waiting.push((dir, below)),
                    Found::Entry(..) => {}
                },
                _ => {}
            }
        }
    }
    told.is_complete = true;
    Ok(told)
}

/// Returns true if a writer is open that is not known to be dead.
fn is_live(container: &Container) -> Result<bool> {
    let host = container.host();
    Ok(container.summary()?.is_being_written(&host.is_gone))
}

fn meta_names(container: &Container) -> Result<Vec<Vec<u8>>> {
    let mut names = container.meta()?.names()?;
    names.sort();
    Ok(names)
}

/// Deletes a copy in `trash`. The record is removed first, so that the copy is not mistaken for the
/// container with this number, to which the log directories in `parts` now belong. `trash` is
/// synced before, so that after a power failure the copy does not reappear under its old name
/// without a record.
fn delete(container: &Container, trash: &dyn WritableDir, name: &[u8]) -> Result<()> {
    trash.sync()?;
    container.dir().remove(RECORD)?;
    // A process that still has the copy open must not take the remaining names for all names.
    let meta = container.meta()?;
    meta.create_file(MOVED, 0o644)?;
    for name in meta.names()?.iter().filter(|name| *name != MOVED) {
        missing(meta.remove(name))?;
    }
    remove_tree(trash, name)
}

/// The location of a log directory.
struct Place {
    dir: Arc<dyn WritableDir>,
    /// `None` for the container itself.
    store: Option<StoreNumber>,
}

impl Work<'_> {
    fn note(&self, note: impl FnOnce(&mut Rebalanced)) {
        note(&mut self.done.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn moves(&self) -> u64 {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.moved + done.parts
    }

    fn has_left(&self) -> bool {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        !done.busy.is_empty() || !done.failed.is_empty()
    }

    fn one(&self, task: Task, more: &mut Vec<Task>) -> Result<()> {
        match task {
            Task::Dir(parent, name, path) => {
                let entered = enter_all(&parent, &other_name(&name)?, self.stores.host());
                match missing(entered)? {
                    Some(dirs) => self.list(&Arc::new(dirs), &path, more),
                    None => Ok(()), // it was removed meanwhile
                }
            }
            Task::File(dirs, name, places, path) => match self.file(&dirs, &name, &places)? {
                None => Ok(()),
                Some(true) => {
                    self.tally.add_file();
                    self.note(|done| done.files += 1);
                    Ok(())
                }
                Some(false) => {
                    self.note(|done| done.busy.push(path));
                    Ok(())
                }
            },
        }
    }

    fn list(&self, dirs: &Dirs, path: &[u8], more: &mut Vec<Task>) -> Result<()> {
        let mut files: std::collections::BTreeMap<Vec<u8>, Vec<StoreNumber>> = Default::default();
        for (store, dir) in dirs.iter().enumerate() {
            for stored in dir.names()? {
                match shown(&stored) {
                    _ if path.is_empty() && is_own(&stored) => {}
                    Some(Stored::Container(name)) => files.entry(name.to_vec()).or_default().push(store),
                    Some(Stored::Other(name)) if store == 0 => {
                        let kind = missing(dir.stat(&stored))?.and_then(|stat| stat.kind());
                        if kind == Some(Kind::Dir) {
                            more.push(Task::Dir(Arc::clone(dirs), name.to_vec(), joined(path, name)));
                        }
                    }
                    _ => {}
                }
            }
        }
        more.extend(files.into_iter().map(|(name, places)| {
            let path = joined(path, &name);
            Task::File(Arc::clone(dirs), name, places, path)
        }));
        Ok(())
    }

    /// Moves one file. Returns `None` if there is no such file, and otherwise whether everything of
    /// it is in the right store.
    fn file(&self, dirs: &Dirs, name: &[u8], places: &[StoreNumber]) -> Result<Option<bool>> {
        let (stored, home) = (container_name(name)?, self.stores.home(name));
        let mut is_file = false;
        for store in places.iter().copied().filter(|store| *store != home) {
            match self.move_file(dirs, &stored, store, home)? {
                None => {}
                Some(true) => is_file = true,
                Some(false) => return Ok(Some(false)),
            }
        }
        match self.open(dirs, &stored, home)? {
            Some(container) => Ok(Some(self.settle_logs(&container)?)),
            None => Ok(is_file.then_some(true)), // it was removed meanwhile
        }
    }

    fn open(&self, dirs: &Dirs, stored: &[u8], store: StoreNumber) -> Result<Option<Container>> {
        match Container::open(self.stores, store, &*dirs[store], stored) {
            // Another program created an object with this name.
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            container => container.map(Some),
        }
    }

    fn move_file(
        &self,
        dirs: &Dirs,
        stored: &[u8],
        from: StoreNumber,
        to: StoreNumber,
    ) -> Result<Option<bool>> {
        let Some(source) = self.open(dirs, stored, from)? else { return Ok(None) };
        if is_live(&source)? {
            return Ok(Some(false));
        }
        let before = meta_names(&source)?;
        let there = self.open(dirs, stored, to)?;
        let is_new = there.is_none();
        let target = match there {
            Some(target) if target.number() != source.number() => {
                return Err(Error {
                    source: Some("two stores have a file of this name, and it is not the same one".into()),
                    ..Error::new(ErrorKind::Exists, "move", stored)
                });
            }
            Some(target) if is_live(&target)? => return Ok(Some(false)),
            Some(target) => {
                self.fill(&source, &target.dir_handle(), to)?;
                target
            }
            None => {
                let making = self.stores.making_new(to)?;
                let temporary = number_name(self.stores.random_number());
                let made = self.copy_container(&source, &*making, &temporary, to).and_then(|()| {
                    making.sync()?;
                    making.rename(&temporary, &*dirs[to], stored, Rename::Replace)
                });
                if made.is_err() {
                    let _ = remove_tree(&*making, &temporary); // an incomplete copy
                }
                made?;
                dirs[to].sync()?;
                Container::open(self.stores, to, &*dirs[to], stored)?
            }
        };
        let (trash, name) = (self.stores.trash(from)?, number_name(self.stores.random_number()));
        match dirs[from].rename(stored, &*trash, &name, Rename::Replace) {
            // The file was removed or renamed meanwhile: the copy must not restore its old name.
            Err(error) if error.kind == ErrorKind::NotFound && is_new && !is_live(&target)? => {
                missing(self.discard(&target, &*dirs[to], stored, to))?;
                return Ok(None);
            }
            renamed => renamed?,
        }
        if meta_names(&source)? != before {
            if is_live(&source)? {
                trash.rename(&name, &*dirs[from], stored, Rename::Replace)?;
                if is_new && !is_live(&target)? {
                    self.discard(&target, &*dirs[to], stored, to)?;
                }
                return Ok(Some(false));
            }
            self.fill(&source, &target.dir_handle(), to)?;
        }
        delete(&source, &*trash, &name)?;
        self.note(|done| done.moved += 1);
        Ok(Some(true))
    }

    fn discard(
        &self,
        container: &Container,
        dir: &dyn WritableDir,
        stored: &[u8],
        store: StoreNumber,
    ) -> Result<()> {
        let (trash, name) = (self.stores.trash(store)?, number_name(self.stores.random_number()));
        dir.rename(stored, &*trash, &name, Rename::Replace)?;
        delete(container, &*trash, &name)
    }

    fn copy_container(
        &self,
        source: &Container,
        making: &dyn WritableDir,
        name: &[u8],
        to: StoreNumber,
    ) -> Result<()> {
        let dir = self.make_like(making, name, &source.dir().stat_self()?)?;
        self.fill(source, &dir, to)
    }

    /// Copies everything of `source` that is missing in `into`, a directory in store `to`, and
    /// syncs it.
    fn fill(&self, source: &Container, into: &Arc<dyn WritableDir>, to: StoreNumber) -> Result<()> {
        let from = source.dir();
        for name in from.names()? {
            if name != META && !name.starts_with(b"logs-") {
                self.copy_file(from, &**into, &name, to)?;
            }
        }
        for number in 0..source.head().directories {
            let places = self.places(source, number)?;
            if places.is_empty() {
                continue;
            }
            let name = logs_name(number);
            let known = missing(into.stat(&name))?;
            let wanted = match known.map(|stat| stat.kind() == Some(Kind::Dir)) {
                Some(true) => None,
                Some(false) => self.stores.named_by(&**into, &name)?,
                None => None,
            };
            let is_known = known.is_some_and(|stat| stat.kind() == Some(Kind::Dir)) || wanted.is_some();
            let store = match (is_known, self.stores.placed(source, number)) {
                (true, _) => wanted,
                (false, store) if store == to => None,
                (false, store) => Some(store),
            };
            let target = match store {
                None => {
                    let like = places[0].dir.stat_self()?;
                    self.make_like(&**into, &name, &like)?
                }
                Some(store) => self.part(source, store, &name)?,
            };
            for place in places.iter().filter(|place| place.store.is_none() || place.store != store) {
                self.copy_all(&*place.dir, &*target, store.unwrap_or(to))?;
            }
            target.sync()?;
            if let (Some(store), false) = (store, is_known) {
                self.stores.point_in(to, &**into, &name, store)?;
            }
        }
        let meta = self.make_like(&**into, META, &source.meta()?.stat_self()?)?;
        self.copy_all(source.meta()?, &*meta, to)?;
        meta.sync()?;
        into.sync()
    }

    /// Returns all locations with logs of the log directory `number`.
    fn places(&self, container: &Container, number: u32) -> Result<Vec<Place>> {
        let (name, own) = (logs_name(number), number_name(container.number()));
        let mut places = Vec::new();
        match container.dir().open_writable_dir(&name) {
            Ok(dir) => places.push(Place { dir, store: None }),
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Err(error),
        }
        for store in 0..self.stores.count() {
            if let Some(parts) = missing(self.stores.parts(store)?.open_writable_dir(&own))?
                && let Some(dir) = missing(parts.open_writable_dir(&name))?
            {
                places.push(Place { dir, store: Some(store) });
            }
        }
        Ok(places)
    }

    /// Opens the log directory in `parts` of `store`, and creates it if it is missing.
    fn part(&self, container: &Container, store: StoreNumber, name: &[u8]) -> Result<Arc<dyn WritableDir>> {
        let like = container.dir().stat_self()?;
        let parts = self.stores.parts(store)?;
        let own = self.make_like(&*parts, &number_name(container.number()), &like)?;
        let dir = self.make_like(&*own, name, &like)?;
        own.sync()?;
        parts.sync()?;
        Ok(dir)
    }

    /// Moves the log directories of a container in its home store to the stores that the map gives.
    /// Returns true if all are there.
    fn settle_logs(&self, container: &Container) -> Result<bool> {
        for number in 0..container.head().directories {
            let places = self.places(container, number)?;
            let wanted = self.stores.placed(container, number);
            let is_there = |place: &Place| match place.store {
                None => wanted == container.home(),
                Some(store) => wanted == store,
            };
            if places.len() <= 1 && places.iter().all(is_there) {
                continue;
            }
            if is_live(container)? {
                return Ok(false);
            }
            if !self.move_logs(container, number, &places, wanted)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn move_logs(
        &self,
        container: &Container,
        number: u32,
        places: &[Place],
        wanted: StoreNumber,
    ) -> Result<bool> {
        let (name, home) = (logs_name(number), container.home());
        let before = meta_names(container)?;
        let local = places.iter().find(|place| place.store.is_none());
        // A directory in the container stays if the container's store is the right one. Otherwise a
        // file replaces it, which names the store.
        let (target, store) = match local {
            Some(local) if wanted == home => (Arc::clone(&local.dir), None),
            _ => (self.part(container, wanted, &name)?, Some(wanted)),
        };
        let others = || places.iter().filter(|place| place.store != store);
        let copy = || {
            others().try_for_each(|place| self.copy_all(&*place.dir, &*target, wanted))?;
            target.sync()
        };
        copy()?;
        let making = self.stores.making(home)?;
        let old = number_name(self.stores.random_number());
        let pointed = match local {
            Some(_) => None,
            None => missing(self.stores.named_by(container.dir(), &name))?.flatten(),
        };
        if let Some(store) = store {
            if local.is_some() {
                self.stores.point_in(home, &*making, &old, store)?;
                match making.rename(&old, container.dir(), &name, Rename::Exchange) {
                    Err(error) if error.kind == ErrorKind::Unsupported => {
                        making.remove(&old)?;
                        return Ok(true); // readers find it in its old location
                    }
                    exchanged => exchanged?,
                }
            } else if pointed != Some(store) {
                self.stores.point_in(home, container.dir(), &name, store)?;
            }
            container.dir().sync()?;
        }
        if meta_names(container)? != before {
            if is_live(container)? {
                match (store, local, pointed) {
                    (Some(_), Some(_), _) => {
                        making.rename(&old, container.dir(), &name, Rename::Exchange)?;
                        making.remove(&old)?;
                    }
                    (Some(store), None, Some(before)) if before != store => {
                        self.stores.point_in(home, container.dir(), &name, before)?;
                    }
                    _ => {}
                }
                return Ok(false);
            }
            copy()?;
        }
        for place in others() {
            match place.store {
                None => remove_tree(&*making, &old)?,
                Some(store) => {
                    let (parts, own) = (self.stores.parts(store)?, number_name(container.number()));
                    remove_tree(&*parts.open_writable_dir(&own)?, &name)?;
                    match parts.remove_dir(&own) {
                        Err(error) if error.kind != ErrorKind::NotEmpty => return Err(error),
                        _ => {}
                    }
                }
            }
        }
        self.note(|done| done.parts += 1);
        Ok(true)
    }

    fn copy_all(&self, from: &dyn WritableDir, into: &dyn WritableDir, store: StoreNumber) -> Result<()> {
        from.names()?.iter().try_for_each(|name| self.copy_file(from, into, name, store))
    }

    /// Copies a file unless it is already there. The copy gets its name after it is complete and
    /// synced.
    fn copy_file(
        &self,
        from: &dyn WritableDir,
        into: &dyn WritableDir,
        name: &[u8],
        store: StoreNumber,
    ) -> Result<()> {
        let Some(stat) = missing(from.stat(name))? else { return Ok(()) };
        if stat.kind() != Some(Kind::File)
            || missing(into.stat(name))?.is_some_and(|there| there.size_bytes >= stat.size_bytes)
        {
            return Ok(());
        }
        let Some(file) = missing(from.open_file(name))? else { return Ok(()) };
        // Owner and permissions are read from the open file, because its name may have been
        // replaced.
        let stat = file.stat()?;
        let making = self.stores.making(store)?;
        let temporary = number_name(self.stores.random_number());
        // Other users can reach this directory, but not necessarily the final one.
        let copy = making.create_file(&temporary, 0o600)?;
        let copied = (|| {
            let mut bytes = vec![0; PIECE_BYTES.min(stat.size_bytes as usize)];
            let mut place = 0;
            while place < stat.size_bytes {
                let length = file.read_at(&mut bytes, place)?;
                if length == 0 {
                    break;
                }
                if self.tally.is_stopped() {
                    return Err(Error::new(ErrorKind::Os(quell_vfs::errno::EINTR), "copy", name));
                }
                copy.write_at(&bytes[..length], place)?;
                place += length as u64;
                self.tally.add_bytes(length as u64);
            }
            self.note(|done| done.bytes += place);
            copy.change(&self.dress(name, &stat)?)?;
            if place > 0 {
                copy.sync()?;
            }
            making.rename(&temporary, into, name, Rename::Replace)
        })();
        if copied.is_err() {
            let _ = making.remove(&temporary);
        }
        copied
    }

    /// Returns the permissions, owner and time of a copy.
    fn dress(&self, name: &[u8], stat: &Stat) -> Result<Change> {
        let host = self.stores.host();
        if host.uid != 0 && host.uid != stat.uid {
            return Err(Error {
                source: Some("it belongs to another user: root can move it".into()),
                ..Error::new(ErrorKind::PermissionDenied, "copy", name)
            });
        }
        Ok(Change {
            uid: (host.uid == 0).then_some(stat.uid),
            gid: (host.uid == 0 || host.gid != stat.gid).then_some(stat.gid),
            permissions: Some(stat.mode & 0o7777),
            size_bytes: None,
            modified: Some(stat.modified),
        })
    }

    fn make_like(&self, parent: &dyn WritableDir, name: &[u8], stat: &Stat) -> Result<Arc<dyn WritableDir>> {
        if let Some(dir) = missing(parent.open_writable_dir(name))? {
            return Ok(dir);
        }
        let dir = enter_or_make(parent, name, stat.mode & 0o7777)?;
        parent.change(name, &self.dress(name, stat)?)?;
        Ok(dir)
    }

    /// Copies the symbolic links of the first store to the store that will be the first one.
    fn copy_links(&self, root: &Dirs, store: StoreNumber) -> Result<()> {
        let mut waiting = vec![Arc::clone(root)];
        while let Some(dirs) = waiting.pop() {
            for stored in dirs[0].names()? {
                if Arc::ptr_eq(&dirs, root) && is_own(&stored)
                    || !matches!(shown(&stored), Some(Stored::Other(_)))
                {
                    continue;
                }
                let Some(stat) = missing(dirs[0].stat(&stored))? else { continue };
                match stat.kind() {
                    Some(Kind::Dir) => {
                        waiting.push(Arc::new(enter_all(&dirs, &stored, self.stores.host())?));
                    }
                    Some(Kind::Symlink) => {
                        let target = dirs[0].read_link(&stored)?;
                        match missing(dirs[store].read_link(&stored))? {
                            Some(there) if there == target => continue,
                            Some(_) => dirs[store].remove(&stored)?,
                            None => {}
                        }
                        dirs[store].make_symlink(&stored, &target)?;
                        let host = self.stores.host();
                        let (uid, gid) = match host.uid {
                            0 => (Some(stat.uid), Some(stat.gid)),
                            _ => (None, None),
                        };
                        let modified = Some(stat.modified);
                        dirs[store].change(&stored, &Change { uid, gid, modified, ..Change::default() })?;
                    }
                    _ => {}
                }
            }
            dirs[store].sync()?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "rebalance_test.rs"]
mod tests;
