//! The blobs of a store as a file system of the contract.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use quell_blob::{Operation, SIZE_BYTES_MAX, Store};
use quell_mount_state::Cursors;
use quell_threads::{lock, read_lock, write_lock};
use quell_vfs::{
    Attributes, Capabilities, Change, Context, Cursor, DirEntry, Error, ErrorKind, File, FileSystem, Kind,
    NAME_BYTES_MAX, NewEntry, NodeId, NodeRef, OpenMode, Rename, Result, Space, Writable, WritableFile,
    check_name,
};
use rustix::process::geteuid;

use crate::attributes::{Owner, ns, of_new, stored};
use crate::changes::Renaming;
use crate::failure::failed;
use crate::file::{BlobFile, without_set_id};
use crate::listing::{Entry, position, read_page};
use crate::names::{Names, join, parent};
use crate::nodes::{Node, NodeState, Nodes};
use crate::removed::Upkeep;
use crate::shared::Shared;

/// The space that is reported, in bytes. A store does not know its real space.
const SPACE_BYTES: u64 = 1 << 50;
/// The largest length of the target of a symbolic link on Linux, in bytes.
const TARGET_BYTES_MAX: u64 = 4095;

/// The blobs of a store whose names begin with a prefix, as files.
pub struct BlobFs {
    shared: Arc<Shared>,
    cursors: Cursors<Entry>,
    /// The number of blobs without an entry that listings have found.
    hidden: AtomicU64,
    upkeep: Upkeep,
}

impl std::fmt::Debug for BlobFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobFs").field("store", &self.shared.store).finish_non_exhaustive()
    }
}

impl BlobFs {
    /// Returns the file system of the blobs whose names begin with `prefix` and a slash, or of all
    /// blobs if `prefix` is empty. Blobs without attributes belong to `owner`. `mount` is a random
    /// number, which no other mount has.
    ///
    /// # Errors
    ///
    /// `NameTooLong` if the prefix has more than 511 bytes.
    pub fn new(store: Store, prefix: &[u8], owner: Owner, mount: u64) -> Result<BlobFs> {
        let names = Names::new(prefix, mount)?;
        let nodes = Mutex::new(Nodes::new());
        let (paths, removed, is_marked) = (RwLock::new(()), AtomicU64::new(0), Mutex::new(false));
        let shared = Arc::new(Shared { store, names, owner, nodes, paths, removed, is_marked });
        let (cursors, hidden) = (Cursors::new(), AtomicU64::new(0));
        Ok(BlobFs { shared, cursors, hidden, upkeep: Upkeep::default() })
    }

    /// Starts a thread that changes the mark of this mount while the mount has files without names,
    /// and removes the data of such files of dead mounts. [`end`](BlobFs::end) ends it. No other
    /// mount of this process may use the store.
    ///
    /// # Errors
    ///
    /// The error of the operating system, if no thread can be started.
    pub fn start_upkeep(&self) -> Result<()> {
        self.upkeep.start(self.shared.clone())
    }

    /// Removes the data of files without names that other mounts have left, if the mark and the
    /// data of the mount were last changed longer than `after` ago. Returns the number of blobs.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn remove_abandoned(&self, after: Duration) -> Result<u64> {
        self.shared.remove_abandoned(after)
    }

    /// Returns the number of blobs that listings have not shown, because no file can have their
    /// names, or because a file hides a directory. A blob is counted once for each listing.
    pub fn hidden_blobs(&self) -> u64 {
        self.hidden.load(Ordering::Relaxed)
    }

    /// Commits the writes of all files, and deletes the data of files without names. The file
    /// system is not used afterwards.
    ///
    /// # Errors
    ///
    /// The first error; the other files are committed and deleted nevertheless.
    pub fn end(&self) -> Result<()> {
        let _paths = write_lock(&self.shared.paths);
        let nodes = lock(&self.shared.nodes).all();
        let end = |node: &Arc<Node>| match node.state() {
            NodeState::Named(_) if node.kind == Kind::File => {
                let blob = self.shared.blob_of(node)?;
                node.content.publish(&self.shared.store, &blob)
            }
            _ => self.shared.delete_data_of(node),
        };
        let ended = nodes.iter().map(end).fold(Ok(()), Result::and);
        // The thread is ended after the commits: it may be deleting many blobs of other mounts,
        // which must not delay them.
        self.upkeep.end();
        // After an error the mark remains. When the mark is too old, another mount removes the
        // blobs.
        ended.and_then(|()| self.shared.remove_mark())
    }

    fn node(&self, id: NodeId) -> Result<Arc<Node>> {
        lock(&self.shared.nodes).get(id)
    }

    /// Returns the path of a directory. `None` if it was removed.
    fn dir(&self, id: NodeId) -> Result<Option<Vec<u8>>> {
        let node = self.node(id)?;
        if node.kind != Kind::Dir {
            return Err(Error::new(ErrorKind::NotADirectory, "look into", ""));
        }
        Ok(node.path().ok())
    }

    /// Returns the path of an entry that is to be changed.
    fn entry(&self, dir: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        let dir = self.dir(dir)?;
        check_name(name)?;
        let dir = dir.ok_or_else(|| Error::new(ErrorKind::NotFound, "look into", ""))?;
        Ok(join(&dir, name))
    }

    /// Returns the blob for the data of the next file that loses its name, if a node at this path
    /// is in use.
    fn unnamed_blob(&self, path: &[u8]) -> Result<Option<Vec<u8>>> {
        let node = lock(&self.shared.nodes).at(path);
        match node.filter(|node| node.kind != Kind::Dir) {
            Some(_) => self.shared.removed_name(&self.shared.names.of_file(path)?).map(Some),
            None => Ok(None),
        }
    }

    /// Creates an entry, and adds `uses` uses of its node.
    fn make(
        &self,
        dir: NodeId,
        name: &[u8],
        (kind, new, data): (Kind, NewEntry, &[u8]),
        uses: u64,
    ) -> Result<(Attributes, Arc<Node>)> {
        let _paths = read_lock(&self.shared.paths);
        let path = self.entry(dir, name)?;
        // If the new entry can be created, another client has removed the entry of this node.
        let before = lock(&self.shared.nodes).at(&path);
        self.shared.create(&path, kind, of_new(kind, new), data)?;
        let mut nodes = lock(&self.shared.nodes);
        if let (Some(before), Some(now)) = (before, nodes.at(&path))
            && before.id == now.id
        {
            nodes.detach(&path, NodeState::Gone);
        }
        let node = nodes.hold(&path, kind, uses);
        drop(nodes);
        match self.shared.attributes(&node) {
            Ok(attributes) => Ok((attributes, node)),
            Err(error) => {
                self.shared.release(node.id, uses)?;
                Err(error)
            }
        }
    }

    fn opened(&self, context: &Context<'_>, id: NodeId, mode: OpenMode) -> Result<BlobFile> {
        let node = self.node(id)?;
        match node.kind {
            Kind::File => {}
            Kind::Dir => return Err(Error::new(ErrorKind::IsADirectory, "open", "")),
            _ => return Err(Error::new(ErrorKind::InvalidInput, "open", "")),
        }
        if mode.truncate {
            self.change(context, id, &Change { size_bytes: Some(0), ..Change::default() })?;
        } else {
            let _paths = read_lock(&self.shared.paths);
            // A file that another client has removed is not opened.
            self.shared.attributes(&node)?;
        }
        let node = lock(&self.shared.nodes).use_again(id)?;
        Ok(BlobFile::new(self.shared.clone(), node))
    }
}

impl FileSystem for BlobFs {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn root(&self) -> NodeId {
        NodeId(0)
    }

    fn lookup(&self, _: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        let _paths = read_lock(&self.shared.paths);
        let dir = self.dir(dir)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, "look up", name));
        }
        let Some(dir) = dir.filter(|_| check_name(name).is_ok()) else { return Ok(None) };
        let path = join(&dir, name);
        let Some(found) = self.shared.find(&path)? else { return Ok(None) };
        let node = lock(&self.shared.nodes).hold(&path, found.kind, 1);
        Ok(Some(NodeRef::counted(self, found.attributes(&node, self.shared.owner))))
    }

    fn attributes(&self, _: &Context<'_>, node: NodeId) -> Result<Attributes> {
        let _paths = read_lock(&self.shared.paths);
        self.shared.attributes(&*self.node(node)?)
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        let _paths = read_lock(&self.shared.paths);
        let path = self.node(node)?.path()?;
        Ok(lock(&self.shared.nodes).number_of(parent(&path)))
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        let _paths = read_lock(&self.shared.paths);
        self.node(node)?.path()
    }

    fn list(
        &self,
        _: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut next_position = None;
        loop {
            // The visitor may call this file system, so it is called without the lock.
            let (page, numbers) = {
                let _paths = read_lock(&self.shared.paths);
                let Some(path) = self.dir(dir)? else { return Ok(()) };
                let below = self.shared.names.below(&path)?;
                let page = self.shared.at_one_state(|state| {
                    let start = match &next_position {
                        Some(start) => Clone::clone(start),
                        None => position(&self.cursors, (dir, after), state, &below)?,
                    };
                    read_page(state, &below, &start)
                })?;
                let nodes = lock(&self.shared.nodes);
                let numbers: Vec<NodeId> =
                    page.entries.iter().map(|entry| nodes.number_of(&join(&path, &entry.name))).collect();
                (page, numbers)
            };
            self.hidden.fetch_add(page.hidden, Ordering::Relaxed);
            for (entry, node) in page.entries.iter().zip(numbers) {
                let next = self.cursors.after(dir, &entry.name, entry.clone());
                let (name, kind) = (&entry.name[..], entry.kind);
                if !visit(DirEntry { name, next, node, kind, attributes: None }) {
                    return Ok(());
                }
            }
            match page.next {
                Some(next) => next_position = Some(next),
                None => return Ok(()),
            }
        }
    }

    fn read_link(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        let _paths = read_lock(&self.shared.paths);
        let node = self.node(node)?;
        if node.kind != Kind::Symlink {
            return Err(Error::new(ErrorKind::InvalidInput, "read link", ""));
        }
        let size_bytes = self.shared.attributes(&node)?.size_bytes;
        if size_bytes > TARGET_BYTES_MAX {
            return Err(Error::new(ErrorKind::Damaged, "read link", ""));
        }
        let mut target = vec![0; size_bytes as usize];
        let count = node.content.read(&self.shared.store, &self.shared.blob_of(&node)?, &mut target, 0)?;
        target.truncate(count);
        Ok(target)
    }

    fn xattr(&self, _: &Context<'_>, node: NodeId, _: &[u8]) -> Result<Option<Vec<u8>>> {
        self.node(node).map(|_| None)
    }

    fn xattr_names(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.node(node).map(|_| Vec::new())
    }

    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        Ok(Box::new(self.opened(context, node, OpenMode::READ)?))
    }

    fn forget(&self, node: NodeId, references: u64) {
        let _paths = read_lock(&self.shared.paths);
        // If the data of a removed file cannot be deleted, it remains below `PREFIX//removed/`.
        let _ = self.shared.release(node, references);
    }

    fn writable(&self) -> Option<&dyn Writable> {
        Some(self)
    }
}

impl Writable for BlobFs {
    fn create(
        &self,
        _: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
        _: OpenMode,
    ) -> Result<(NodeRef<'_>, Box<dyn WritableFile>)> {
        // One use is the reference, the other one the open file.
        let (attributes, node) = self.make(dir, name, (Kind::File, new, b""), 2)?;
        Ok((NodeRef::counted(self, attributes), Box::new(BlobFile::new(self.shared.clone(), node))))
    }

    fn make_dir(&self, _: &Context<'_>, dir: NodeId, name: &[u8], new: NewEntry) -> Result<NodeRef<'_>> {
        let (attributes, _) = self.make(dir, name, (Kind::Dir, new, b""), 1)?;
        Ok(NodeRef::counted(self, attributes))
    }

    fn make_symlink(
        &self,
        _: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        target: &[u8],
        new: NewEntry,
    ) -> Result<NodeRef<'_>> {
        if target.len() as u64 > TARGET_BYTES_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, "create the link", name));
        }
        let (attributes, _) = self.make(dir, name, (Kind::Symlink, new, target), 1)?;
        Ok(NodeRef::counted(self, attributes))
    }

    fn remove(&self, _: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        let _paths = write_lock(&self.shared.paths);
        let path = self.entry(dir, name)?;
        let unnamed = self.unnamed_blob(&path)?;
        self.shared.remove(&path, unnamed.as_deref())?;
        if let Some(unnamed) = unnamed {
            lock(&self.shared.nodes).detach(&path, NodeState::Unnamed(unnamed));
        }
        Ok(())
    }

    fn remove_dir(&self, _: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        let _paths = write_lock(&self.shared.paths);
        let path = self.entry(dir, name)?;
        let last = self.last_attributes(&path);
        self.shared.remove_dir(&path)?;
        let mut nodes = lock(&self.shared.nodes);
        nodes.detach_below(&path);
        nodes.detach(&path, last);
        Ok(())
    }

    fn rename(
        &self,
        _: &Context<'_>,
        from_dir: NodeId,
        from: &[u8],
        to_dir: NodeId,
        to: &[u8],
        mode: Rename,
    ) -> Result<()> {
        let _paths = write_lock(&self.shared.paths);
        let (from, to) = (self.entry(from_dir, from)?, self.entry(to_dir, to)?);
        let replaced = if mode == Rename::Replace { self.unnamed_blob(&to)? } else { None };
        let last = self.last_attributes(&to);
        let renaming = Renaming { from: &from, to: &to, mode, replaced: replaced.clone() };
        self.shared.rename(&renaming)?;
        if from == to {
            return Ok(());
        }
        let mut nodes = lock(&self.shared.nodes);
        if mode != Rename::Exchange {
            nodes.detach_below(&to);
            nodes.detach(&to, replaced.map_or(last, NodeState::Unnamed));
        }
        nodes.exchange(&from, &to);
        Ok(())
    }

    fn change(&self, context: &Context<'_>, id: NodeId, change: &Change) -> Result<Attributes> {
        let _paths = read_lock(&self.shared.paths);
        let node = self.node(id)?;
        let is_refused = match change.size_bytes {
            Some(size_bytes) => node.kind != Kind::File || size_bytes > SIZE_BYTES_MAX,
            None => false,
        };
        if is_refused {
            return Err(Error::new(ErrorKind::InvalidInput, "set the size", ""));
        }
        if let NodeState::RemovedDir(last) = node.state() {
            let changed = changed_attributes(last, change);
            node.set_state(NodeState::RemovedDir(changed));
            return Ok(changed);
        }
        let name = match node.kind {
            Kind::Dir => self.shared.names.of_dir(&node.path()?)?,
            _ => self.shared.blob_of(&node)?,
        };
        let stat = self.shared.store.stat(&name).map_err(|cause| failed(cause, "change", &name))?;
        let before = stored(node.kind, stat.as_ref(), self.shared.owner);
        let mut file = before;
        if let Some(permissions) = change.permissions {
            file.mode = node.kind.mode_bits() | (permissions & 0o7777);
        }
        file.uid = change.uid.unwrap_or(file.uid);
        file.gid = change.gid.unwrap_or(file.gid);
        if change.size_bytes.is_some() && !context.keeps_set_id(geteuid().as_raw()) {
            file = without_set_id(file);
        }
        let mut operations = Vec::new();
        if node.kind == Kind::Dir {
            operations.push(Operation::Create { name: name.clone(), may_exist: true });
        }
        if let Some(size_bytes) = change.size_bytes {
            operations.push(Operation::Resize { name: name.clone(), size_bytes });
        }
        let (file, modified_ns) = ((file != before).then_some(file), change.modified.map(ns));
        if file.is_some() || modified_ns.is_some() {
            operations.push(Operation::SetAttributes { name: name.clone(), file, modified_ns });
        }
        // Earlier writes are committed first, so that they do not change the new time.
        node.content.commit(&self.shared.store, &name, operations)?;
        self.shared.attributes(&node)
    }

    fn open_as(&self, context: &Context<'_>, node: NodeId, mode: OpenMode) -> Result<Box<dyn WritableFile>> {
        Ok(Box::new(self.opened(context, node, mode)?))
    }

    /// Only checks the directory: each change of a name survives a power failure when it returns.
    fn sync_dir(&self, _: &Context<'_>, dir: NodeId) -> Result<()> {
        self.dir(dir).map(drop)
    }

    fn space(&self) -> Result<Space> {
        let (total_bytes, free_bytes) = (SPACE_BYTES, SPACE_BYTES);
        Ok(Space { total_bytes, free_bytes, available_bytes: free_bytes, ..Space::default() })
    }
}

impl BlobFs {
    /// Returns the state of the node of a directory after its removal. The caller holds the lock
    /// `paths`.
    fn last_attributes(&self, path: &[u8]) -> NodeState {
        let node = lock(&self.shared.nodes).at(path);
        let last =
            node.filter(|node| node.kind == Kind::Dir).and_then(|node| self.shared.attributes(&node).ok());
        last.map_or(NodeState::Gone, |last| NodeState::RemovedDir(Attributes { nlink: 0, ..last }))
    }
}

/// Returns the attributes of a removed directory after a change.
fn changed_attributes(last: Attributes, change: &Change) -> Attributes {
    let modified = change.modified.unwrap_or(last.modified);
    Attributes {
        permissions: change.permissions.map_or(last.permissions, |permissions| permissions & 0o7777),
        uid: change.uid.unwrap_or(last.uid),
        gid: change.gid.unwrap_or(last.gid),
        modified,
        ..last
    }
}
