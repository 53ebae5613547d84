//! Rebalance: every container, and every log directory of one that is in several stores, comes to lie where the map of the
//! stores wants it; a store that is drained is emptied and leaves the map.
//!
//! What is moved is copied and synced first, has its name in the new place then, and loses it in the old one last. Whoever is
//! ended on the way leaves two copies at most, of which the one at home is whole; the next run adds what it lacks and removes
//! the other. Logs only grow and no two have one name, so that adding is copying what is missing or shorter.
//!
//! A file that somebody writes is left. Who opens one in the very moment in which it is moved is noticed by the names in
//! `meta`, as every writer puts one there before it has logs: then the move is taken back.

use std::sync::{Arc, Mutex, PoisonError};

use quell_backing::{Stat, WritableDir};
use quell_fs::{Change, Error, ErrorKind, Kind, Rename, Result};

use crate::container::{Container, META, MOVED, RECORD, remove_tree};
use crate::crew::{self, Tally};
use crate::missing::missing;
use crate::naming::{Stored, container_name, is_own, joined, other_name, shown};
use crate::store_map::StoreMap;
use crate::stores::{StoreNumber, Stores, enter_or_make, logs_name, number_name};
use crate::tree::{Found, StoredDir, enter_all, find};

/// Bytes that are copied at once.
const PIECE_BYTES: usize = 4 << 20;
/// What comes into a store that is drained while it is emptied is looked for so often.
const PASSES_MAX: usize = 4;

/// What was moved, and what could not be.
#[derive(Debug, Default)]
pub struct Rebalanced {
    /// Files that lie where the map wants them, also those that were moved there.
    pub files: u64,
    pub moved: u64,
    /// Log directories that were moved apart from their files.
    pub parts: u64,
    pub bytes: u64,
    /// Files that somebody is writing.
    pub busy: Vec<Vec<u8>>,
    pub failed: Vec<(Vec<u8>, Error)>,
    /// What was to be drained is, and is no longer one of the stores.
    pub is_complete: bool,
}

/// One directory, in every store.
type Dirs = Arc<Vec<Arc<dyn WritableDir>>>;

enum Task {
    Dir(Dirs, Vec<u8>, Vec<u8>),
    /// In these stores.
    File(Dirs, Vec<u8>, Vec<StoreNumber>, Vec<u8>),
}

struct Work<'a> {
    stores: &'a Arc<Stores>,
    tally: &'a Tally,
    done: Mutex<Rebalanced>,
}

/// Brings everything where the map wants it.
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

/// What a map that does not count yet would move; nothing is changed.
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

/// Whether somebody has the file open for writing who is not known to be gone.
fn is_live(container: &Container) -> Result<bool> {
    let host = container.host();
    Ok(container.summary()?.is_being_written(&host.is_gone))
}

fn meta_names(container: &Container) -> Result<Vec<Vec<u8>>> {
    let mut names = container.meta()?.names()?;
    names.sort();
    Ok(names)
}

/// Deletes a copy that is in the trash. Without its record it is not taken for the container that it was, whose parts are
/// another one's now; it must not get its name back without it, after a loss of power.
fn delete(container: &Container, trash: &dyn WritableDir, name: &[u8]) -> Result<()> {
    trash.sync()?;
    container.dir().remove(RECORD)?;
    // Who has it open must not take some of its names for all of them.
    let meta = container.meta()?;
    meta.create_file(MOVED, 0o644)?;
    for name in meta.names()?.iter().filter(|name| *name != MOVED) {
        missing(meta.remove(name))?;
    }
    remove_tree(trash, name)
}

/// Where a log directory lies.
struct Place {
    dir: Arc<dyn WritableDir>,
    /// `None`: in the container itself.
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

    /// `None`: it is no file. Otherwise whether it lies where it should now.
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
            // Somebody else put something of that name there.
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
                    let _ = remove_tree(&*making, &temporary); // of use to nobody
                }
                made?;
                dirs[to].sync()?;
                Container::open(self.stores, to, &*dirs[to], stored)?
            }
        };
        let (trash, name) = (self.stores.trash(from)?, number_name(self.stores.random_number()));
        match dirs[from].rename(stored, &*trash, &name, Rename::Replace) {
            // It was removed meanwhile, or has another name: the copy must not bring it back.
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

    /// Gives `into`, in store `to`, all that `source` has and it lacks; it is safe then.
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

    /// Wherever logs of the log directory `number` lie.
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

    /// The log directory among the parts of `store`, made if it is not there.
    fn part(&self, container: &Container, store: StoreNumber, name: &[u8]) -> Result<Arc<dyn WritableDir>> {
        let like = container.dir().stat_self()?;
        let parts = self.stores.parts(store)?;
        let own = self.make_like(&*parts, &number_name(container.number()), &like)?;
        let dir = self.make_like(&*own, name, &like)?;
        own.sync()?;
        parts.sync()?;
        Ok(dir)
    }

    /// Log directories of a container that is at home come where they are wanted. Whether they all are there.
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
        // A directory of the container stays one if it is wanted there; else a file in its place names the store.
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
                        return Ok(true); // it is found where it is
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

    /// Copies a file unless it is there already: it has its name when it is whole and safe.
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
        // Owner and permissions of what is copied, and not of what had its name before.
        let stat = file.stat()?;
        let making = self.stores.making(store)?;
        let temporary = number_name(self.stores.random_number());
        // Other users reach it here, and not where it goes to.
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
                    return Err(Error::new(ErrorKind::Os(quell_fs::errno::EINTR), "copy", name));
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

    /// Permissions, owners and time of what is copied.
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

    /// The store that will be the first one gets the symbolic links of the one that is.
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
