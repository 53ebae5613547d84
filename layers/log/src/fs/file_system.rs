//! The file system of a log mount: directories and symbolic links as in the stores, and a container
//! for each file.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lru::LruCache;
use quell_posix::{Acting, Stat, WritableDir, assume, assumed};
use quell_threads::lock;
use quell_vfs::{
    Attributes, Caller, Capabilities, Change, Context, Cursor, DirEntry, Error, ErrorKind, File, FileSystem,
    Kind, NewEntry, NodeId, NodeRef, OpenMode, Rename, Result, Space, Writable, WritableFile, check_name,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::container::{Container, Descriptors, Identity, delete_container};
use crate::format::{Stored, container_name, is_own, number_name, other_name, shown};
use crate::fs::handle::Handle;
use crate::fs::nodes::{Node, Nodes, ROOT};
use crate::fs::open_files::{OpenFiles, SharedFile};
use crate::fs::store_dirs::{
    Dirs, check_empty, make_dir_like, remove_everywhere, rename_or_replace, take_back,
};
use crate::not_found::none_if_not_found;
use crate::session::{Choices, Flattened, LogFile, Share, flatten, read_share};
use crate::stores::{StoreList, StoreNumber, Stores, open_in_all_stores};

/// Number of directories that stay open to resolve paths from.
const DIRS_OPEN: NonZeroUsize = NonZeroUsize::new(128).expect("not zero");
/// Number of listings that are kept for later getdents(2) calls.
const LISTINGS_KEPT: NonZeroUsize = NonZeroUsize::new(16).expect("not zero");
/// Cursors must fit the positive half of `off_t`, and leave two values for `.` and `..`.
const CURSOR_BITS: u64 = (1 << 62) - 1;
/// Time limit for cancelled flattening, which removes its temporary file.
const GIVES_UP_WITHIN: Duration = Duration::from_secs(1);

/// A listing, sorted by cursor.
type Listed = Arc<Vec<(u64, Vec<u8>, Kind)>>;

/// The file system of a log mount.
pub struct LogFs {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for LogFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogFs").field("stores", &self.inner.stores).finish_non_exhaustive()
    }
}

struct Inner {
    stores: Arc<Stores>,
    choices: Choices,
    descriptors: Arc<Descriptors>,
    nodes: Mutex<Nodes>,
    dirs: Mutex<LruCache<NodeId, Dirs>>,
    files: OpenFiles,
    listings: Mutex<LruCache<NodeId, Listed>>,
    gone: Mutex<HashMap<NodeId, Gone>>,
}

/// A directory or symbolic link that was removed while it is still referenced.
enum Gone {
    Dir(Dirs),
    Link(Attributes, Vec<u8>),
}

/// The location of an entry of the mount.
#[derive(Debug, Clone, Copy)]
struct Found {
    store: StoreNumber,
    kind: Kind,
    stat: Stat,
}

/// The result of a lookup, and where it was made.
struct LookedUp {
    dirs: Dirs,
    /// The stores as they were known. If nothing was found, no store was added until then.
    store_list: Arc<StoreList>,
    found: Option<Found>,
}

impl LogFs {
    /// Returns the file system in these stores.
    pub fn new(stores: Stores, choices: Choices) -> LogFs {
        let stores = Arc::new(stores);
        let inner = Inner {
            files: OpenFiles::new(Arc::clone(&stores)),
            stores,
            choices,
            descriptors: Arc::default(),
            nodes: Mutex::new(Nodes::new()),
            dirs: Mutex::new(LruCache::new(DIRS_OPEN)),
            listings: Mutex::new(LruCache::new(LISTINGS_KEPT)),
            gone: Mutex::default(),
        };
        LogFs { inner: Arc::new(inner) }
    }

    /// Creates a flat index of the current content of a file's logs (Index Flatten, section IV-A).
    /// Writers can continue meanwhile.
    pub fn flatten(&self, node: NodeId) -> Result<Flattened> {
        let shared = self.inner.file(node)?;
        flatten(shared.file.container(), self.inner.choices.index_threads)
    }

    /// Reads share `number` of `shares` of a file's index logs (Parallel Index Read, section IV-B),
    /// as bytes for `open_with_shares`. A program with many processes opens a file in this way:
    /// each process reads its own share, all exchange their shares, and no index log is opened more
    /// than once.
    pub fn read_share(&self, node: NodeId, number: usize, shares: usize) -> Result<Vec<u8>> {
        let threads = self.inner.choices.index_threads;
        self.inner.with_file(node, |shared| read_share(shared.file.container(), number, shares, threads))
    }

    /// Opens a file with its shares, in any order. Newer data is read from the logs, and so is the
    /// data of missing shares.
    ///
    /// # Errors
    ///
    /// `Damaged` if the bytes are not a share of this file.
    pub fn open_with_shares(
        &self,
        context: &Context<'_>,
        node: NodeId,
        mode: OpenMode,
        shares: Vec<Vec<u8>>,
    ) -> Result<Box<dyn WritableFile>> {
        let head = *self.inner.file(node)?.file.container().head();
        let decoded = shares.into_iter().map(|bytes| Share::decode(bytes, &head));
        let shares = decoded.collect::<Result<Vec<_>>>()?;
        let opened = self.inner.with_file(node, |shared| {
            shared.file.take_shares(&shares)?;
            Handle::open(shared, node, mode, context.process, self.inner.choices.flattens_later)
        });
        Ok(Box::new(opened?))
    }

    /// Returns true if files are being flattened in the background, or are queued for it.
    pub fn is_flattening(&self) -> bool {
        !self.inner.files.flattening().is_idle()
    }

    /// Closes the logs of files without open handles that were not read since the last call. A
    /// mount is not notified if another mount removes or truncates a file, and an open log uses
    /// space in the store after it was unlinked.
    pub fn close_idle(&self) {
        let known = self.inner.files.all();
        let is_open = |shared: &&Arc<SharedFile>| shared.handles.load(Ordering::Relaxed) > 0;
        let in_use: HashSet<Identity> =
            known.iter().filter(is_open).map(|shared| shared.file.container().identity()).collect();
        self.inner.descriptors.close_idle(|file| in_use.contains(file));
    }

    /// Ends all open files as if they had been closed: written data is published, and removed files
    /// are deleted. Used when the mount ends without waiting for processes with open files, or for
    /// background flattening. The file system must not be used afterwards.
    pub fn end(&self) -> Result<()> {
        let open = self.inner.files.all();
        let mut ended = Ok(());
        for shared in &open {
            ended = ended.and(shared.file.end());
        }
        self.inner.files.flattening().stop(GIVES_UP_WITHIN);
        for shared in open {
            ended = ended.and(shared.delete_if_removed());
        }
        ended
    }
}

impl Drop for LogFs {
    fn drop(&mut self) {
        self.inner.files.flattening().stop(Duration::ZERO);
    }
}

impl Inner {
    fn node(&self, node: NodeId) -> Result<Node> {
        lock(&self.nodes).get(node).cloned()
    }

    /// Returns the state of a directory or symbolic link that is about to be removed, if it is
    /// referenced, because it cannot be found by name afterwards.
    fn state_before_removal(&self, dir: NodeId, dirs: &Dirs, name: &[u8]) -> Result<Option<(NodeId, Gone)>> {
        let Some(node) = lock(&self.nodes).named(dir, name) else { return Ok(None) };
        let stored = other_name(name)?;
        let gone = match self.node(node)?.kind {
            Kind::File => return Ok(None),
            Kind::Dir => Gone::Dir(self.dirs(node)?),
            kind => {
                let attributes = attributes_from(node, kind, &dirs[0].stat(&stored)?);
                Gone::Link(Attributes { nlink: 0, ..attributes }, dirs[0].read_link(&stored)?)
            }
        };
        Ok(Some((node, gone)))
    }

    fn keep_gone(&self, gone: Option<(NodeId, Gone)>) {
        lock(&self.gone).extend(gone);
    }

    /// Opens the directory `node`, starting at its nearest open ancestor.
    fn dirs(&self, node: NodeId) -> Result<Dirs> {
        if let Some(Gone::Dir(dirs)) = lock(&self.gone).get(&node) {
            return Ok(Arc::clone(dirs));
        }
        let (path, kind) = {
            let nodes = lock(&self.nodes);
            (nodes.path_to(node)?, nodes.get(node)?.kind)
        };
        if kind != Kind::Dir {
            return Err(Error::new(
                ErrorKind::NotADirectory,
                "look into",
                path.last().map_or(&b""[..], |w| &w.1),
            ));
        }
        let roots = self.stores.roots();
        let mut from = 0;
        let mut at: Option<Dirs> = None;
        for (index, (node, _)) in path.iter().enumerate().rev() {
            // If a store was added since it was opened, it is opened again, in that store, too.
            if let Some(dirs) = lock(&self.dirs).get(node).filter(|dirs| dirs.len() == roots.len()) {
                (from, at) = (index + 1, Some(Arc::clone(dirs)));
                break;
            }
        }
        let mut at = at.unwrap_or_else(|| Arc::new(roots));
        for (node, name) in &path[from..] {
            at = Arc::new(open_in_all_stores(&at, &other_name(name)?, self.stores.host())?);
            let evicted = lock(&self.dirs).push(*node, Arc::clone(&at));
            drop(evicted);
        }
        Ok(at)
    }

    fn is_own(&self, dir: NodeId, name: &[u8]) -> bool {
        dir == ROOT && is_own(name)
    }

    /// Finds `name`: first as a file, in its home and then in the other stores, then as a directory
    /// or symbolic link.
    ///
    /// A file that is being moved gets its name in its home before the old one is removed, so the
    /// home is searched once more at the end.
    fn find(&self, dir: NodeId, dirs: &Dirs, store_list: &StoreList, name: &[u8]) -> Result<Option<Found>> {
        if self.is_own(dir, name) {
            return Ok(None);
        }
        let file_in = |store: StoreNumber, stored: &[u8]| -> Result<Option<Found>> {
            // A removed directory is missing in stores that were added later.
            let Some(dir) = dirs.get(store) else { return Ok(None) };
            let stat = none_if_not_found(dir.stat(stored))?.filter(|stat| stat.kind() == Some(Kind::Dir));
            Ok(stat.map(|stat| Found { store, kind: Kind::File, stat }))
        };
        let stored = container_name(name).ok();
        let home = store_list.home(name);
        if let Some(stored) = &stored {
            for store in std::iter::once(home).chain((0..dirs.len()).filter(|store| *store != home)) {
                if let Some(found) = file_in(store, stored)? {
                    return Ok(Some(found));
                }
            }
        }
        let stat = none_if_not_found(dirs[0].stat(&other_name(name)?))?;
        let other = stat.and_then(|stat| {
            let kind = stat.kind().filter(|kind| matches!(kind, Kind::Dir | Kind::Symlink))?;
            Some(Found { store: 0, kind, stat })
        });
        match stored {
            Some(stored) if other.is_none() && dirs.len() > 1 => file_in(home, &stored),
            _ => Ok(other),
        }
    }

    /// Finds `name` in the directory `dir`. If the name is in none of the known stores, newer maps
    /// are read before the name is reported as missing or is created, because it may be in a store
    /// that was added.
    ///
    /// A missing name costs three requests even in a single store, and none of them can be left out.
    /// A file and another object of the same name have different names in the store, and either may
    /// have been created by another node. A file may have been moved to an added store at any time,
    /// and a map that was read before the search does not exclude it.
    fn look_up(&self, dir: NodeId, name: &[u8]) -> Result<LookedUp> {
        loop {
            let store_list = self.stores.list();
            let dirs = self.dirs(dir)?;
            let found = self.find(dir, &dirs, &store_list, name)?;
            if found.is_some() || !self.stores.has_changed(&store_list)? {
                return Ok(LookedUp { dirs, store_list, found });
            }
        }
    }

    /// Returns true if `name` is no longer where it was found, because another node has moved it.
    /// The operation can then be repeated.
    fn has_moved(&self, dir: NodeId, name: &[u8], found: &Found) -> Result<bool> {
        let now = self.look_up(dir, name)?.found;
        Ok(now.is_some_and(|now| (now.store, now.stat.identity()) != (found.store, found.stat.identity())))
    }

    /// Returns true if `name` no longer refers to the object `found`, or to no object if that is
    /// `None`.
    fn is_another(&self, dir: NodeId, name: &[u8], found: Option<&Found>) -> Result<bool> {
        let key = |found: &Found| (found.store, found.stat.identity());
        Ok(self.look_up(dir, name)?.found.as_ref().map(key) != found.map(key))
    }

    /// Marks the known node as removed if another node has replaced it under this name.
    fn note_replaced_node(&self, dir: NodeId, dirs: &Dirs, name: &[u8], found: &Found) {
        let Some(node) = lock(&self.nodes).named(dir, name) else { return };
        let is_another = match found.kind {
            Kind::File => {
                let shared = self.files.peek(node);
                let now = (found.store, found.stat.identity());
                let known = shared.as_ref().map(|shared| shared.file.container());
                let is_another = known.is_some_and(|known| known.identity() != now);
                if is_another
                    && let Some(known) = known
                    && container_name(name)
                        .and_then(|stored| {
                            Container::open(&self.stores, found.store, &*dirs[found.store], &stored)
                        })
                        .is_ok_and(|found| found.number() == known.number())
                {
                    // The same file, moved to another store.
                    drop((self.files.forget(node), shared));
                    return;
                }
                is_another
            }
            _ => {
                let dirs = lock(&self.dirs).get(&node).cloned();
                let known = dirs.and_then(|dirs| dirs[0].stat_self().ok());
                known.is_some_and(|known| known.identity() != found.stat.identity())
            }
        };
        if is_another {
            lock(&self.nodes).removed(dir, name);
        }
    }

    /// Returns the file of a node, and opens it if it is not open.
    fn file(&self, node: NodeId) -> Result<Arc<SharedFile>> {
        if let Some(shared) = self.files.get(node) {
            return Ok(shared);
        }
        let Node { parent, name, kind, is_removed, .. } = self.node(node)?;
        match kind {
            Kind::File => {}
            Kind::Dir => return Err(Error::new(ErrorKind::IsADirectory, "open", name)),
            _ => return Err(Error::new(ErrorKind::InvalidInput, "open", name)),
        }
        if is_removed {
            return Err(Error::new(ErrorKind::Stale, "open", name));
        }
        let (container, dirs, found) = loop {
            let LookedUp { dirs, found, .. } = self.look_up(parent, &name)?;
            let Some(found) = found.filter(|found| found.kind == Kind::File) else {
                return Err(Error::new(ErrorKind::NotFound, "open", name));
            };
            let stored = container_name(&name)?;
            match Container::open(&self.stores, found.store, &*dirs[found.store], &stored) {
                Err(error)
                    if error.kind == ErrorKind::NotFound && self.has_moved(parent, &name, &found)? => {}
                container => break (container?, dirs, found),
            }
        };
        Ok(self.add_file(node, container, &dirs[found.store]))
    }

    /// Makes a container in `dir` the file of a node, unless the node has one.
    fn add_file(&self, node: NodeId, container: Container, dir: &Arc<dyn WritableDir>) -> Arc<SharedFile> {
        let descriptors = Arc::clone(&self.descriptors);
        self.files.add(node, LogFile::new(container, Some(Arc::clone(dir)), self.choices, descriptors))
    }

    /// Opens the file of a node that was just found, so that `file` does not look it up again. Does
    /// nothing if the file is open, or is no longer where it was found.
    fn open_found(&self, node: NodeId, found: &Found) -> Result<()> {
        if self.files.get(node).is_some() {
            return Ok(());
        }
        let Node { parent, name, .. } = self.node(node)?;
        let dirs = self.dirs(parent)?;
        let Some(dir) = dirs.get(found.store) else { return Ok(()) };
        let opened = Container::open(&self.stores, found.store, &**dir, &container_name(&name)?);
        if let Some(container) = none_if_not_found(opened)? {
            self.add_file(node, container, dir);
        }
        Ok(())
    }

    /// Calls `act` with the file of a node. If another process has moved the file to another store,
    /// calls it again with the file there.
    fn with_file<T>(&self, node: NodeId, act: impl Fn(Arc<SharedFile>) -> Result<T>) -> Result<T> {
        let shared = self.file(node)?;
        match act(Arc::clone(&shared)) {
            Err(error)
                if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Stale)
                    && !self.node(node)?.is_removed
                    && shared.file.container().is_gone()? =>
            {
                drop((self.files.forget(node), shared));
                act(self.file(node)?)
            }
            done => done,
        }
    }

    fn attributes_of(&self, node: NodeId, found: &Found) -> Result<Attributes> {
        match found.kind {
            Kind::File => {
                self.open_found(node, found)?;
                self.with_file(node, |shared| shared.file.attributes(node))
            }
            kind => Ok(attributes_from(node, kind, &found.stat)),
        }
    }

    /// Returns true if the container of `name` has a record, but lacks `access` or `meta`, after a
    /// power failure or an interrupted removal. A new file with this name can be created only after
    /// it was removed.
    fn is_incomplete(&self, dirs: &Dirs, name: &[u8], found: &Found) -> Result<bool> {
        if found.kind != Kind::File {
            return Ok(false);
        }
        let stored = container_name(name)?;
        let open =
            || none_if_not_found(Container::open(&self.stores, found.store, &*dirs[found.store], &stored));
        let Some(container) = open()? else { return Ok(false) };
        if container.is_complete()? {
            return Ok(false); // another one that was created meanwhile
        }
        // A container that is being removed has already lost its name.
        Ok(open()?.is_some_and(|now| now.identity() == container.identity()))
    }

    /// Checks that `name` is free, and returns the directory and the stores for which this holds.
    fn free_name(&self, dir: NodeId, name: &[u8]) -> Result<(Dirs, Arc<StoreList>)> {
        check_name(name)?;
        if self.is_own(dir, name) {
            return Err(Error::new(ErrorKind::PermissionDenied, "make", name));
        }
        let LookedUp { dirs, store_list, found } = self.look_up(dir, name)?;
        match found {
            // An empty directory with the name of a container and without a record is replaced. A
            // container that was just moved is not.
            Some(found @ Found { store, kind: Kind::File, .. })
                if Container::open(&self.stores, store, &*dirs[store], &container_name(name)?)
                    .is_err_and(|error| error.kind == ErrorKind::NotFound)
                    && !self.has_moved(dir, name, &found)? =>
            {
                Ok((dirs, store_list))
            }
            Some(_) => Err(Error::new(ErrorKind::Exists, "make", name)),
            None => Ok((dirs, store_list)),
        }
    }

    /// Returns `new` with the group of a directory that has the set-group-ID bit.
    fn inherit(&self, dir: &dyn WritableDir, new: NewEntry, is_dir: bool) -> Result<NewEntry> {
        let parent = dir.stat_self()?;
        Ok(if parent.mode & 0o2000 != 0 {
            let bit = if is_dir { 0o2000 } else { 0 };
            NewEntry { gid: parent.gid, permissions: new.permissions | bit, ..new }
        } else {
            new
        })
    }

    /// Adds `gid` as the group of new files, if a user is served, until the result is dropped.
    fn with_group(&self, gid: u32) -> Result<Option<Acting>> {
        match assumed() {
            Some(caller) if caller.gid != gid => {
                let groups = caller.groups.iter().copied().chain([caller.gid]).collect();
                assume(Some(Arc::new(Caller { gid, groups, uid: caller.uid }))).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Gives a new object to the intended user and group, if it does not already belong to them.
    fn set_owner(&self, dir: &dyn WritableDir, stored: &[u8], new: NewEntry) -> Result<()> {
        let host = self.stores.host();
        let (uid, gid) = match host.uid {
            0 => dir.stat(stored).map(|made| (made.uid, made.gid))?,
            _ => (host.uid, host.gid),
        };
        if (uid, gid) == (new.uid, new.gid) {
            return Ok(());
        }
        dir.change(stored, &Change { uid: Some(new.uid), gid: Some(new.gid), ..Change::default() })
    }

    /// Moves the container `stored` to `trash`. Deletes it there, unless its `node` is still
    /// referenced.
    fn discard(
        &self,
        dir: &dyn WritableDir,
        store: StoreNumber,
        stored: &[u8],
        node: Option<NodeId>,
    ) -> Result<()> {
        let (number, identity) = match Container::open(&self.stores, store, dir, stored) {
            Ok(container) => (container.number(), Some(container.identity())),
            // It can still be removed. `quell log fsck` finds its parts in other stores.
            Err(error) if error.kind == ErrorKind::Damaged => (0, None),
            Err(error) => return Err(error),
        };
        let shared = match (node, identity) {
            (_, None) => None,
            (Some(node), _) => {
                Some(self.file(node)?).filter(|shared| Some(shared.file.container().identity()) == identity)
            }
            (None, Some(identity)) => self.files.with_container(&identity),
        };
        let name = number_name(self.stores.random_number());
        dir.rename(stored, &*self.stores.trash_dir(store)?, &name, Rename::Replace)?;
        let Some(shared) = shared else {
            // The name is removed, as requested. If the container cannot be deleted now, `quell log
            // fsck` finds it.
            let _process = assume(None)?;
            let _ = delete_container(&self.stores, store, &name, number);
            return Ok(());
        };
        shared.set_removed(name);
        self.files.flattening().forget(&shared);
        let before = node.map(|node| self.files.keep_removed(node, &shared));
        drop((before, shared)); // deleted at the last drop, which may be this one
        Ok(())
    }
}

fn attributes_from(node: NodeId, kind: Kind, stat: &Stat) -> Attributes {
    Attributes {
        node,
        kind,
        permissions: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        nlink: if kind == Kind::Dir { 2 } else { 1 },
        rdev: 0,
        size_bytes: stat.size_bytes,
        blocks: stat.blocks,
        modified: stat.modified,
        changed: stat.changed,
    }
}

impl FileSystem for LogFs {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn root(&self) -> NodeId {
        ROOT
    }

    fn lookup(&self, _: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        let inner = &self.inner;
        check_name(name)?;
        let LookedUp { dirs, found, .. } = inner.look_up(dir, name)?;
        let Some(found) = found else {
            // Another node may have removed the name.
            lock(&inner.nodes).removed(dir, name);
            return Ok(None);
        };
        inner.note_replaced_node(dir, &dirs, name, &found);
        let node = lock(&inner.nodes).refer(dir, name, found.kind);
        match inner.attributes_of(node, &found) {
            Ok(attributes) => Ok(Some(NodeRef::counted(self, attributes))),
            Err(error) => {
                self.forget(node, 1);
                // A directory with the name of a container and without a record is not a file.
                match error.kind == ErrorKind::NotFound && !inner.is_incomplete(&dirs, name, &found)? {
                    true => Ok(None),
                    false => Err(error_of_incomplete(error, name)),
                }
            }
        }
    }

    fn attributes(&self, _: &Context<'_>, node: NodeId) -> Result<Attributes> {
        let inner = &self.inner;
        let known = inner.node(node)?;
        match known.kind {
            Kind::File => {
                let attributes = inner.with_file(node, |shared| shared.file.attributes(node))?;
                Ok(Attributes { nlink: u32::from(!known.is_removed), ..attributes })
            }
            Kind::Dir => {
                let attributes = attributes_from(node, Kind::Dir, &inner.dirs(node)?[0].stat_self()?);
                Ok(Attributes { nlink: if known.is_removed { 0 } else { attributes.nlink }, ..attributes })
            }
            kind => {
                if let Some(Gone::Link(attributes, _)) = lock(&inner.gone).get(&node) {
                    return Ok(*attributes);
                }
                let stat = inner.dirs(known.parent)?[0].stat(&other_name(&known.name)?)?;
                Ok(attributes_from(node, kind, &stat))
            }
        }
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        Ok(self.inner.node(node)?.parent)
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        let path = lock(&self.inner.nodes).path_to(node)?;
        let names: Vec<&[u8]> = path.iter().map(|(_, name)| &name[..]).collect();
        Ok(names.join(&b'/'))
    }

    fn list(
        &self,
        _: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let inner = &self.inner;
        let kept = lock(&inner.listings).get(&dir).cloned().filter(|_| after != Cursor::START);
        let listed = match kept {
            Some(listed) => listed,
            None => {
                let listed = Arc::new(inner.whole_listing(dir)?);
                lock(&inner.listings).push(dir, Arc::clone(&listed));
                listed
            }
        };
        let from = listed.partition_point(|(cursor, ..)| *cursor <= after.0);
        for (cursor, name, kind) in &listed[from..] {
            let node = lock(&inner.nodes).number(dir, name);
            if !visit(DirEntry { name, next: Cursor(*cursor), node, kind: *kind, attributes: None }) {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        let Node { parent, name, kind, .. } = self.inner.node(node)?;
        if kind != Kind::Symlink {
            return Err(Error::new(ErrorKind::InvalidInput, "read link", name));
        }
        if let Some(Gone::Link(_, target)) = lock(&self.inner.gone).get(&node) {
            return Ok(target.clone());
        }
        self.inner.dirs(parent)?[0].read_link(&other_name(&name)?)
    }

    fn xattr(&self, _: &Context<'_>, node: NodeId, _: &[u8]) -> Result<Option<Vec<u8>>> {
        self.inner.node(node).map(|_| None)
    }

    fn xattr_names(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.inner.node(node).map(|_| Vec::new())
    }

    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        let _acting = self.inner.assume_caller(context)?;
        Ok(Box::new(self.inner.open_file(context, node, OpenMode::READ)?))
    }

    fn forget(&self, node: NodeId, references: u64) {
        lock(&self.inner.nodes).forget(node, references);
        self.inner.forget_unused();
    }

    fn writable(&self) -> Option<&dyn Writable> {
        Some(self)
    }
}

impl Inner {
    /// Returns a listing of all stores that exist when it is complete.
    fn whole_listing(&self, dir: NodeId) -> Result<Vec<(u64, Vec<u8>, Kind)>> {
        loop {
            let store_list = self.stores.list();
            let listed = self.listing(dir, &store_list)?;
            if !self.stores.has_changed(&store_list)? {
                return Ok(listed);
            }
        }
    }

    fn listing(&self, dir: NodeId, store_list: &StoreList) -> Result<Vec<(u64, Vec<u8>, Kind)>> {
        let dirs = self.dirs(dir)?;
        let mut found = HashMap::new();
        // A file that is moved meanwhile must be found at least once: drained stores are read
        // before those that get their files, and added stores after those that lose files.
        let (left, used): (Vec<_>, Vec<_>) = (0..dirs.len()).partition(|store| !store_list.is_used(*store));
        for store in left.into_iter().chain(used) {
            let stored_dir = &dirs[store];
            for (stored, kind) in stored_dir.names_and_kinds()? {
                match shown(&stored) {
                    Some(Stored::Container(name)) => {
                        found.insert(name.to_vec(), Kind::File);
                    }
                    Some(Stored::Other(name)) if store == 0 && !self.is_own(dir, name) => {
                        let kind = match kind {
                            Some(kind) => Some(kind),
                            None => none_if_not_found(stored_dir.stat(&stored))?.and_then(|stat| stat.kind()),
                        };
                        if let Some(kind @ (Kind::Dir | Kind::Symlink)) = kind {
                            found.entry(name.to_vec()).or_insert(kind);
                        }
                    }
                    _ => {}
                }
            }
        }
        let mut listed: Vec<_> = found
            .into_iter()
            .map(|(name, kind)| (1 + (xxh3_64(&name) & CURSOR_BITS >> 1), name, kind))
            .collect();
        listed.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        Ok(listed)
    }
}

impl Writable for LogFs {
    fn create(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
        mode: OpenMode,
    ) -> Result<(NodeRef<'_>, Box<dyn WritableFile>)> {
        let _acting = self.inner.assume_caller(context)?;
        let inner = &self.inner;
        let stored = container_name(name)?;
        let (container, dirs) = loop {
            let (dirs, store_list) = inner.free_name(dir, name)?;
            let new = inner.inherit(&*dirs[0], new, false)?;
            // As in any directory with the set-group-ID bit, a file gets the group of the directory
            // even if the user does not belong to it; but the container is first created in another
            // directory.
            let _group = inner.with_group(new.gid)?;
            let home = store_list.home(name);
            let Some(stored_dir) = dirs.get(home) else {
                // The directory was removed.
                return Err(Error::new(ErrorKind::NotFound, "make", name));
            };
            match Container::create(&inner.stores, home, &**stored_dir, &stored, new) {
                // The store is being drained, and this mount did not know it.
                Err(error)
                    if error.kind == ErrorKind::NotFound && inner.stores.has_changed(&store_list)? => {}
                made => break (made?, dirs),
            }
        };
        let home = container.home();
        let file = LogFile::created(
            container,
            Some(Arc::clone(&dirs[home])),
            inner.choices,
            Arc::clone(&inner.descriptors),
        );
        let node = {
            let mut nodes = lock(&inner.nodes);
            // Another node may have removed the file with this name.
            nodes.removed(dir, name);
            nodes.refer(dir, name, Kind::File)
        };
        let shared = inner.files.add(node, file);
        let opened = shared.file.attributes(node).and_then(|attributes| {
            Ok((
                attributes,
                Handle::open(
                    shared,
                    node,
                    OpenMode { truncate: false, ..mode },
                    context.process,
                    inner.choices.flattens_later,
                )?,
            ))
        });
        match opened {
            Ok((attributes, handle)) => Ok((NodeRef::counted(self, attributes), Box::new(handle))),
            Err(error) => {
                self.forget(node, 1);
                Err(error)
            }
        }
    }

    fn make_dir(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
    ) -> Result<NodeRef<'_>> {
        let _acting = self.inner.assume_caller(context)?;
        let inner = &self.inner;
        let (dirs, _) = inner.free_name(dir, name)?;
        let stored = other_name(name)?;
        let new = inner.inherit(&*dirs[0], new, true)?;
        // The first store decides which of several mounts that create the same directory succeeds.
        let mut made: Vec<&dyn WritableDir> = Vec::with_capacity(dirs.len());
        for (store, stored_dir) in dirs.iter().enumerate() {
            let done = match stored_dir.make_dir(&stored, new.permissions) {
                // Another mount created the directory here because it was missing, or it remained
                // after a removal.
                Err(error) if error.kind == ErrorKind::Exists && store > 0 => Ok(()),
                Err(error) => Err(error),
                Ok(()) => {
                    made.push(&**stored_dir);
                    Ok(())
                }
            };
            if let Err(error) = done.and_then(|()| inner.set_owner(&**stored_dir, &stored, new)) {
                // Only the directories of this call, and only if they are empty.
                for begun in made.iter().rev() {
                    let _ = begun.remove_dir(&stored);
                }
                return Err(error);
            }
        }
        let stat = dirs[0].stat(&stored)?;
        let node = lock(&inner.nodes).refer(dir, name, Kind::Dir);
        Ok(NodeRef::counted(self, attributes_from(node, Kind::Dir, &stat)))
    }

    fn make_symlink(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        target: &[u8],
        new: NewEntry,
    ) -> Result<NodeRef<'_>> {
        let _acting = self.inner.assume_caller(context)?;
        let inner = &self.inner;
        let (dirs, _) = inner.free_name(dir, name)?;
        let stored = other_name(name)?;
        let new = inner.inherit(&*dirs[0], new, false)?;
        dirs[0].make_symlink(&stored, target)?;
        inner.set_owner(&*dirs[0], &stored, new).inspect_err(|error| {
            // If it is gone, the name now belongs to another mount's object.
            if error.kind != ErrorKind::NotFound {
                let _ = dirs[0].remove(&stored);
            }
        })?;
        let stat = dirs[0].stat(&stored)?;
        let node = lock(&inner.nodes).refer(dir, name, Kind::Symlink);
        Ok(NodeRef::counted(self, attributes_from(node, Kind::Symlink, &stat)))
    }

    fn remove(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        let _acting = self.inner.assume_caller(context)?;
        let inner = &self.inner;
        let LookedUp { dirs, found, .. } = inner.look_up(dir, name)?;
        match found {
            None => return Err(Error::new(ErrorKind::NotFound, "remove", name)),
            Some(Found { kind: Kind::Dir, .. }) => {
                return Err(Error::new(ErrorKind::IsADirectory, "remove", name));
            }
            Some(found @ Found { store, kind: Kind::File, .. }) => {
                let node = lock(&inner.nodes).named(dir, name);
                match inner.discard(&*dirs[store], store, &container_name(name)?, node) {
                    Err(error)
                        if error.kind == ErrorKind::NotFound && inner.has_moved(dir, name, &found)? =>
                    {
                        return self.remove(context, dir, name);
                    }
                    discarded => discarded?,
                }
            }
            Some(Found { store, .. }) => {
                let gone = inner.state_before_removal(dir, &dirs, name)?;
                dirs[store].remove(&other_name(name)?)?;
                inner.keep_gone(gone);
            }
        }
        lock(&inner.nodes).removed(dir, name);
        Ok(())
    }

    fn remove_dir(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        let _acting = self.inner.assume_caller(context)?;
        let inner = &self.inner;
        let dirs = loop {
            let LookedUp { dirs, store_list, found } = inner.look_up(dir, name)?;
            match found {
                None => return Err(Error::new(ErrorKind::NotFound, "remove", name)),
                Some(Found { kind: Kind::Dir, .. }) => {}
                Some(_) => return Err(Error::new(ErrorKind::NotADirectory, "remove", name)),
            }
            check_empty(&dirs, name)?;
            // Files may have been moved to a store that was added.
            if !inner.stores.has_changed(&store_list)? {
                break dirs;
            }
        };
        let stored = other_name(name)?;
        let gone = inner.state_before_removal(dir, &dirs, name)?;
        if let Err(error) = remove_everywhere(&dirs, &stored) {
            // Another directory may have this name now.
            if let Some(node) = lock(&inner.nodes).named(dir, name) {
                lock(&inner.dirs).pop(&node);
            }
            return Err(error);
        }
        inner.keep_gone(gone);
        if let Some(node) = lock(&inner.nodes).removed(dir, name) {
            lock(&inner.dirs).pop(&node);
        }
        Ok(())
    }

    fn rename(
        &self,
        context: &Context<'_>,
        from_dir: NodeId,
        from: &[u8],
        to_dir: NodeId,
        to: &[u8],
        mode: Rename,
    ) -> Result<()> {
        let _acting = self.inner.assume_caller(context)?;
        let inner = &self.inner;
        let refused = |kind| Err(Error::new(kind, "rename", from));
        check_name(to)?;
        if inner.is_own(to_dir, to) {
            return refused(ErrorKind::PermissionDenied);
        }
        let (from_dirs, to_dirs, source, target, store_list) = loop {
            let store_list = inner.stores.list();
            let (first, second) = (inner.look_up(from_dir, from)?, inner.look_up(to_dir, to)?);
            let Some(source) = first.found else { return refused(ErrorKind::NotFound) };
            let is_dir = |found: Option<Found>| found.is_some_and(|found| found.kind == Kind::Dir);
            // A directory is renamed in every store.
            if !(is_dir(first.found) || is_dir(second.found)) || !inner.stores.has_changed(&store_list)? {
                break (first.dirs, second.dirs, source, second.found, store_list);
            }
        };
        if from_dirs.len() != to_dirs.len() {
            // Either a store was just added, or one of the directories was removed before.
            let now = (inner.dirs(from_dir)?.len(), inner.dirs(to_dir)?.len());
            return match now.0 == now.1 {
                true => self.rename(context, from_dir, from, to_dir, to, mode),
                false => refused(ErrorKind::NotFound),
            };
        }
        if from_dir == to_dir && from == to {
            return if mode == Rename::Keep { refused(ErrorKind::Exists) } else { Ok(()) };
        }
        {
            let nodes = lock(&inner.nodes);
            let holds =
                |dir, name: &[u8], other| nodes.named(dir, name).is_some_and(|it| nodes.is_below(other, it));
            if holds(from_dir, from, to_dir) || mode == Rename::Exchange && holds(to_dir, to, from_dir) {
                return refused(ErrorKind::InvalidInput);
            }
        }
        match (mode, &target) {
            (Rename::Keep, Some(_)) => return refused(ErrorKind::Exists),
            (Rename::Exchange, None) => return refused(ErrorKind::NotFound),
            (Rename::Exchange, Some(target)) => {
                inner.exchange(&from_dirs, from, &source, &to_dirs, to, target)?;
                lock(&inner.nodes).exchanged(from_dir, from, to_dir, to);
                inner.forget_unused();
                return Ok(());
            }
            (Rename::Replace, Some(target)) if source.kind == Kind::Dir && target.kind != Kind::Dir => {
                return refused(ErrorKind::NotADirectory);
            }
            (Rename::Replace, Some(target)) if source.kind != Kind::Dir && target.kind == Kind::Dir => {
                return refused(ErrorKind::IsADirectory);
            }
            (Rename::Replace, Some(target)) if target.kind == Kind::Dir => check_empty(&to_dirs, to)?,
            _ => {}
        }
        let gone = if target.is_some() { inner.state_before_removal(to_dir, &to_dirs, to)? } else { None };
        let replaced = target.map(|found| (found, lock(&inner.nodes).named(to_dir, to)));
        if source.kind == Kind::File {
            match inner.rename_file(&from_dirs, from, &source, &to_dirs, to, replaced) {
                Err(error)
                    if error.kind == ErrorKind::NotFound && inner.has_moved(from_dir, from, &source)? =>
                {
                    return self.rename(context, from_dir, from, to_dir, to, mode);
                }
                // Another mount has created, replaced or removed an object with this name
                // meanwhile. Containers are never empty.
                Err(error)
                    if matches!(
                        error.kind,
                        ErrorKind::Exists | ErrorKind::NotEmpty | ErrorKind::NotFound
                    ) && inner.is_another(to_dir, to, target.as_ref())?
                        && inner.look_up(from_dir, from)?.found.is_some() =>
                {
                    return self.rename(context, from_dir, from, to_dir, to, mode);
                }
                renamed => renamed?,
            }
        } else {
            let (old, new) = (other_name(from)?, other_name(to)?);
            let stores = if source.kind == Kind::Dir { from_dirs.len() } else { 1 };
            let replaced_dir =
                target.as_ref().filter(|target| target.kind == Kind::Dir).map(|target| target.stat);
            let (asked, mut begun) = (mode, Vec::with_capacity(stores));
            for store in 0..stores {
                if source.kind == Kind::Dir && stores > 1 {
                    begun.push(none_if_not_found(from_dirs[store].stat(&old))?);
                }
                // The first store decides whether the name is free; other stores may have remains
                // of a removed directory.
                let is_new_dir = source.kind == Kind::Dir && target.is_none();
                let store_mode = match store {
                    // A directory that another mount has just created must not be replaced, because
                    // its files may be in another store.
                    0 if is_new_dir && stores > 1 => Rename::Keep,
                    0 => mode,
                    _ => Rename::Replace,
                };
                match rename_or_replace(&*from_dirs[store], &old, &*to_dirs[store], &new, store_mode) {
                    Err(error)
                        if store == 0
                            && error.kind == ErrorKind::Exists
                            && inner.is_another(to_dir, to, None)? =>
                    {
                        return self.rename(context, from_dir, from, to_dir, to, asked);
                    }
                    Err(error) if error.kind == ErrorKind::NotFound && store > 0 => {}
                    Err(error) => {
                        // Another mount has filled the target in this store: the renames are
                        // undone.
                        for (store, moved) in begun.iter().enumerate().take(store).rev() {
                            let (from_dir, to_dir) = (&*from_dirs[store], &*to_dirs[store]);
                            let Some(moved) = moved else { continue };
                            take_back(from_dir, &old, to_dir, &new, moved)?;
                            if let Some(like) = &replaced_dir {
                                make_dir_like(to_dir, &new, like)?;
                            }
                        }
                        return Err(error);
                    }
                    Ok(()) => {}
                }
            }
            if source.kind == Kind::Dir && inner.stores.has_changed(&store_list)? {
                // A store was added meanwhile, and objects moved there may have the old name.
                let (from_dirs, to_dirs) = (inner.dirs(from_dir)?, inner.dirs(to_dir)?);
                for (from_dir, to_dir) in from_dirs.iter().zip(&**to_dirs).skip(store_list.len()) {
                    none_if_not_found(from_dir.rename(&old, &**to_dir, &new, Rename::Replace))?;
                }
            }
            if let Some((found, node)) = replaced.filter(|(found, _)| found.kind == Kind::File) {
                inner.discard(&*to_dirs[found.store], found.store, &container_name(to)?, node)?;
            }
        }
        inner.keep_gone(gone);
        let mut nodes = lock(&inner.nodes);
        nodes.removed(to_dir, to);
        nodes.renamed(from_dir, from, to_dir, to);
        Ok(())
    }

    fn change(&self, context: &Context<'_>, node: NodeId, change: &Change) -> Result<Attributes> {
        let _acting = self.inner.assume_caller(context)?;
        let inner = &self.inner;
        let known = inner.node(node)?;
        if known.kind == Kind::File {
            let shared = inner.file(node)?;
            let mut change = *change;
            if let Some(permissions) = change.permissions
                && change.uid.is_none()
                && change.gid.is_none()
                && shared.file.only_drops_set_id(permissions)?
            {
                // The kernel makes this request on behalf of the writing user, who often is not the
                // owner.
                let _acting = assume(None)?;
                shared.file.drop_set_id_to(permissions)?;
                change.permissions = None;
            }
            shared.file.change(&change)?;
            return self.attributes(context, node);
        }
        if change.size_bytes.is_some() {
            return Err(Error::new(ErrorKind::InvalidInput, "resize", known.name));
        }
        if known.kind == Kind::Dir {
            inner.stores.refresh()?; // it is changed in every store
            inner.dirs(node)?.iter().try_for_each(|dir| dir.change(b"", change))?;
        } else {
            inner.dirs(known.parent)?[0].change(&other_name(&known.name)?, change)?;
        }
        self.attributes(context, node)
    }

    fn open_as(&self, context: &Context<'_>, node: NodeId, mode: OpenMode) -> Result<Box<dyn WritableFile>> {
        let _acting = self.inner.assume_caller(context)?;
        Ok(Box::new(self.inner.open_file(context, node, mode)?))
    }

    /// Syncs with the permissions of this process, because the caller may have none for `trash`.
    fn sync_dir(&self, _: &Context<'_>, dir: NodeId) -> Result<()> {
        self.inner.dirs(dir)?.iter().try_for_each(|dir| dir.sync())?;
        // Removing a file renames its container into `trash`. Some file systems make a rename
        // durable only after a sync of the directory with the new name.
        (0..self.inner.stores.roots().len()).try_for_each(|store| self.inner.stores.trash_dir(store)?.sync())
    }

    fn space(&self) -> Result<Space> {
        self.inner.stores.space()
    }
}

impl Inner {
    /// Makes this thread work with the permissions of the caller, until the result is dropped. An
    /// ordinary user's mount has that user's permissions for all callers. Root's mount works with
    /// those of the users whose directories it changes: see `PosixDir::open_shared`.
    fn assume_caller(&self, context: &Context<'_>) -> Result<Option<Acting>> {
        match context.caller {
            Some(caller) if self.stores.host().uid == 0 && caller.uid != 0 => {
                Ok(Some(assume(Some(Arc::new(caller.clone())))?))
            }
            _ => Ok(None),
        }
    }

    fn open_file(&self, context: &Context<'_>, node: NodeId, mode: OpenMode) -> Result<Handle> {
        self.with_file(node, |shared| {
            Handle::open(shared, node, mode, context.process, self.choices.flattens_later)
        })
    }

    /// Drops everything that is kept for nodes without references.
    fn forget_unused(&self) {
        let forgotten = lock(&self.nodes).take_forgotten();
        for node in forgotten {
            // Dropped without a lock, because the last close may delete the file.
            let file = self.files.forget(node);
            let dirs = lock(&self.dirs).pop(&node);
            let gone = lock(&self.gone).remove(&node);
            drop((file, dirs, gone));
        }
    }

    /// Renames the container of `from` to `to`, within its store.
    fn rename_file(
        &self,
        from_dirs: &Dirs,
        from: &[u8],
        source: &Found,
        to_dirs: &Dirs,
        to: &[u8],
        replaced: Option<(Found, Option<NodeId>)>,
    ) -> Result<()> {
        let (old, new) = (container_name(from)?, container_name(to)?);
        let (from_dir, to_dir) = (&*from_dirs[source.store], &*to_dirs[source.store]);
        let Some((target, node)) = replaced else {
            return from_dir.rename(&old, to_dir, &new, Rename::Replace);
        };
        // Another mount that renames to the same name may have removed the replaced object already.
        let removed = |result| none_if_not_found(result).map(drop);
        if target.kind == Kind::Symlink {
            from_dir.rename(&old, to_dir, &new, Rename::Replace)?;
            return removed(to_dirs[0].remove(&other_name(to)?));
        }
        if target.store != source.store {
            match from_dir.rename(&old, to_dir, &new, Rename::Replace) {
                // Another mount has renamed a file of this store to this name meanwhile.
                // Containers are never empty.
                Err(error) if matches!(error.kind, ErrorKind::Exists | ErrorKind::NotEmpty) => {
                    from_dir.rename(&old, to_dir, &new, Rename::Exchange)?;
                    removed(self.discard(from_dir, source.store, &old, None))?;
                }
                renamed => renamed?,
            }
            return removed(self.discard(&*to_dirs[target.store], target.store, &new, node));
        }
        // In one step if the file system supports it, so that there is always a file with this
        // name.
        match from_dir.rename(&old, to_dir, &new, Rename::Exchange) {
            Ok(()) => removed(self.discard(from_dir, source.store, &old, node)),
            Err(error) if error.kind == ErrorKind::Unsupported => {
                self.discard(to_dir, target.store, &new, node)?;
                from_dir.rename(&old, to_dir, &new, Rename::Replace)
            }
            Err(error) => Err(error),
        }
    }

    /// Exchanges two names: in one step if they are of the same kind and in the same store,
    /// otherwise in two.
    fn exchange(
        &self,
        a_dirs: &Dirs,
        a: &[u8],
        first: &Found,
        b_dirs: &Dirs,
        b: &[u8],
        second: &Found,
    ) -> Result<()> {
        let is_file = |found: &Found| found.kind == Kind::File;
        let name = |found: &Found, name| if is_file(found) { container_name(name) } else { other_name(name) };
        let stores = |found: &Found| match found.kind {
            Kind::Dir => 0..a_dirs.len(),
            _ => found.store..found.store + 1,
        };
        let (a_now, a_then) = (name(first, a)?, name(first, b)?);
        let (b_now, b_then) = (name(second, b)?, name(second, a)?);
        for store in 0..a_dirs.len() {
            let (a_dir, b_dir) = (&*a_dirs[store], &*b_dirs[store]);
            let (has_a, has_b) = (stores(first).contains(&store), stores(second).contains(&store));
            if has_a && has_b && a_now == b_then {
                a_dir.rename(&a_now, b_dir, &a_then, Rename::Exchange)?;
                continue;
            }
            // Names of files and other objects never collide, nor do names in different stores.
            if has_a {
                a_dir.rename(&a_now, b_dir, &a_then, Rename::Replace)?;
            }
            if has_b {
                b_dir.rename(&b_now, a_dir, &b_then, Rename::Replace)?;
            }
        }
        Ok(())
    }
}

/// Returns the error of `lookup` for an incomplete container (see `Inner::is_incomplete`). Other
/// errors are unchanged.
fn error_of_incomplete(error: Error, name: &[u8]) -> Error {
    match error.kind {
        ErrorKind::NotFound => Error {
            source: Some(
                "parts of the file were lost before it was synced, or while it was removed; remove it".into(),
            ),
            ..Error::new(ErrorKind::Damaged, "read", name)
        },
        _ => error,
    }
}

#[cfg(test)]
#[path = "deputy_test.rs"]
mod deputy;
