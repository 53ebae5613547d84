//! A name space and its data files as a file system of the contract.

use std::sync::{Arc, Mutex, RwLock};

use quell_batch_service::{
    Content, DEPTH_MAX, FoundNode, InodeChange, NameSpace, NewNode, Place, Quota, ROOT, XattrChange,
};
use quell_mount_state::Cursors;
use quell_posix::WritableDir;
use quell_threads::{lock, read_lock, write_lock};
use quell_vfs::{
    Attributes, Capabilities, Change, Context, Cursor, DirEntry, Error, ErrorKind, File, FileSystem, Kind,
    NewEntry, NodeId, NodeRef, OpenMode, Rename, Result, SetXattr, Space, Writable, WritableFile,
};
use rustix::process::geteuid;

use crate::content::inode_change;
use crate::data::Data;
use crate::file::BatchFile;
use crate::file_locks::FileLocks;
use crate::nodes::{Node, Nodes};
use crate::shared::{Shared, now};
use crate::state::FileState;

/// The number of entries of a directory that are read at a time.
const PAGE_ENTRIES: usize = 512;
/// The largest length of the target of a symbolic link on Linux, in bytes.
const TARGET_BYTES_MAX: usize = 4095;

/// The files of a name space.
pub struct BatchFs {
    shared: Arc<Shared>,
    cursors: Cursors<Vec<u8>>,
}

impl std::fmt::Debug for BatchFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchFs").finish_non_exhaustive()
    }
}

impl BatchFs {
    /// Returns the file system of a name space. `data` is the directory of the data files of the
    /// store. This mount writes to the data files of `batch`, which is the number of the batch for
    /// a private name space, and 0 for the master image.
    pub fn new(name_space: Arc<dyn NameSpace>, data: Arc<dyn WritableDir>, batch: u64) -> BatchFs {
        BatchFs::with_data(name_space, Data::new(data, batch, None))
    }

    pub(crate) fn with_data(name_space: Arc<dyn NameSpace>, data: Data) -> BatchFs {
        BatchFs::of_parts(name_space, data, None)
    }

    /// Returns the file system of a name space, whose files may have locks.
    pub(crate) fn of_parts(name_space: Arc<dyn NameSpace>, data: Data, locks: Option<FileLocks>) -> BatchFs {
        let (nodes, names) = (Mutex::new(Nodes::new()), RwLock::new(()));
        let shared = Shared { name_space, data, locks, nodes, names };
        BatchFs { shared: Arc::new(shared), cursors: Cursors::new() }
    }

    /// Sends the writes of all files to the name space, and removes the data files of files without
    /// names. The file system is not used afterwards.
    ///
    /// # Errors
    ///
    /// The first error; the other files are sent and removed nevertheless.
    pub fn end(&self) -> Result<()> {
        let nodes = lock(&self.shared.nodes).all();
        let end = |node: &Arc<Node>| {
            let sent = self.shared.send(node, &mut write_lock(&node.file));
            sent.and(self.shared.remove_data_of(node))
        };
        nodes.iter().map(end).fold(Ok(()), Result::and)
    }

    fn node(&self, id: NodeId) -> Result<Arc<Node>> {
        lock(&self.shared.nodes).get(id).cloned()
    }

    /// Returns the inode number of a directory that is in use.
    fn dir(&self, id: NodeId) -> Result<u64> {
        match lock(&self.shared.nodes).get(id)?.kind {
            Kind::Dir => Ok(id.0),
            _ => Err(Error::new(ErrorKind::NotADirectory, "look into", "")),
        }
    }

    /// Adds a reference to a node that was found at a name.
    fn hold(&self, (dir, name): (u64, &[u8]), found: &FoundNode) -> Result<Arc<Node>> {
        let (number, kind) = (found.inode.number, found.inode.kind()?);
        let place = || match kind {
            Kind::Dir => Place::Dir(number),
            _ => Place::Name { dir, name: name.to_vec() },
        };
        let mut nodes = lock(&self.shared.nodes);
        let mut is_new = false;
        let node = nodes.hold(number, 1, || {
            is_new = true;
            Node::new(number, kind, place(), FileState::default())
        });
        if !is_new {
            node.set_place(place());
        }
        Ok(node.clone())
    }

    /// Creates a node, adds `uses` uses of it, and returns its attributes.
    fn make(
        &self,
        (dir, name): (NodeId, &[u8]),
        (node, new): (NewNode, NewEntry),
        uses: u64,
    ) -> Result<(Attributes, Arc<Node>)> {
        let dir = self.dir(dir)?;
        let _names = read_lock(&self.shared.names);
        let FoundNode { place, inode } = self.shared.name_space.create(dir, name, node, new, now())?;
        let (attributes, kind) = (inode.attributes()?, inode.kind()?);
        let state = if kind == Kind::File { FileState::created(inode.mode) } else { FileState::default() };
        let new = || Node::new(inode.number, kind, place, state);
        let node = lock(&self.shared.nodes).hold(inode.number, uses, new).clone();
        Ok((attributes, node))
    }

    /// Calls `change` while no other thread of this mount uses the position of a node, and removes
    /// the data that it returns.
    fn change_names(&self, change: impl FnOnce(&dyn NameSpace) -> Result<Option<Content>>) -> Result<()> {
        let unused = {
            let _names = write_lock(&self.shared.names);
            change(&*self.shared.name_space)?
        };
        // The file is removed. A data file that cannot be removed remains without an inode, until
        // it is removed as garbage.
        if let Some(content) = unused {
            let _ = self.shared.remove_data(&content);
        }
        Ok(())
    }

    /// Returns the entry that `look_up` finds at a name, with a reference to it.
    fn looked_up(
        &self,
        dir: NodeId,
        name: &[u8],
        look_up: impl FnOnce(&dyn NameSpace, u64) -> Result<Option<FoundNode>>,
    ) -> Result<Option<NodeRef<'_>>> {
        let dir = self.dir(dir)?;
        let (found, node) = {
            let _names = read_lock(&self.shared.names);
            let Some(found) = look_up(&*self.shared.name_space, dir)? else { return Ok(None) };
            let node = self.hold((dir, name), &found)?;
            (found, node)
        };
        // The inode may lack writes that were sent after it was looked up.
        let is_open = node.kind == Kind::File && read_lock(&node.file).open > 0;
        let attributes = match is_open {
            true => self.shared.attributes(&node),
            false => found.inode.attributes(),
        };
        match attributes {
            Ok(attributes) => Ok(Some(NodeRef::counted(self, attributes))),
            Err(error) => {
                self.shared.release(node.number, 1)?;
                Err(error)
            }
        }
    }

    fn opened(&self, context: &Context<'_>, id: NodeId, mode: OpenMode) -> Result<BatchFile> {
        let node = self.node(id)?;
        match node.kind {
            Kind::File => {}
            Kind::Dir => return Err(Error::new(ErrorKind::IsADirectory, "open", "")),
            _ => return Err(Error::new(ErrorKind::InvalidInput, "open", "")),
        }
        if mode.write {
            self.shared.check_write(&node)?;
        }
        if mode.truncate {
            self.change(context, id, &Change { size_bytes: Some(0), ..Change::default() })?;
        }
        let mut state = write_lock(&node.file);
        let inode = self.shared.inode(&node)?;
        self.shared.note_and_keep_writes(&node, &mut state, inode)?;
        if let Content::Adopted(_) = state.content {
            // A file that was changed since the adoption cannot be opened.
            let opened = self.shared.opened_data(&mut state);
            opened.inspect_err(|_| state.forget_if_closed())?;
        }
        let sync_failures = state.sync_failures;
        // The reference of the caller keeps the node in use.
        lock(&self.shared.nodes).hold_again(id)?;
        state.open += 1;
        drop(state);
        Ok(BatchFile::new(self.shared.clone(), node, sync_failures))
    }

    /// Returns the next entries of a directory after a name.
    fn page(&self, dir: u64, after: &[u8]) -> Result<Vec<(Vec<u8>, u64, Kind)>> {
        let mut page = Vec::new();
        self.shared.name_space.list(dir, after, &mut |name, number, kind| {
            page.push((name.to_vec(), number, kind));
            page.len() < PAGE_ENTRIES
        })?;
        Ok(page)
    }

    /// Returns the name of a cursor in a directory.
    fn name_of(&self, dir: NodeId, cursor: Cursor) -> Result<Vec<u8>> {
        if cursor == Cursor::START {
            return Ok(Vec::new());
        }
        self.cursors.entry(dir, cursor, |matches| {
            let mut found = None;
            self.shared.name_space.list(dir.0, b"", &mut |name, _, _| {
                found = matches(name).then(|| name.to_vec());
                found.is_none()
            })?;
            Ok(found)
        })
    }

    /// Returns the directory that contains a node, and a name of it there.
    fn parent_and_name(&self, node: &Node) -> Result<(u64, Vec<u8>)> {
        match node.place()? {
            Place::Dir(number) => self.shared.name_space.parent(number),
            Place::Name { dir, name } => Ok((dir, name)),
            Place::Linked(_) => Err(Error::new(ErrorKind::Stale, "find the path", "")),
        }
    }

    fn change_xattr(&self, id: NodeId, change: XattrChange) -> Result<()> {
        let node = self.node(id)?;
        let change = InodeChange { xattr: Some(change), ..InodeChange::default() };
        self.shared.change(&node, &change).map(drop)
    }
}

impl FileSystem for BatchFs {
    fn capabilities(&self) -> Capabilities {
        Capabilities { xattrs: true, ..Capabilities::default() }
    }

    fn root(&self) -> NodeId {
        NodeId(ROOT)
    }

    fn lookup(&self, _: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        self.looked_up(dir, name, |names, dir| names.lookup(dir, name))
    }

    fn lookup_on_path(&self, _: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        self.looked_up(dir, name, |names, dir| names.lookup_on_path(dir, name))
    }

    fn attributes(&self, _: &Context<'_>, node: NodeId) -> Result<Attributes> {
        self.shared.attributes(&*self.node(node)?)
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        Ok(NodeId(self.parent_and_name(&*self.node(node)?)?.0))
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        let node = self.node(node)?;
        let mut names = Vec::new();
        let mut at = node.number;
        while at != ROOT {
            let (dir, name) = match names.is_empty() {
                true => self.parent_and_name(&node)?,
                false => self.shared.name_space.parent(at)?,
            };
            names.push(name);
            if names.len() > DEPTH_MAX {
                return Err(Error::new(ErrorKind::NameTooLong, "find the path", ""));
            }
            at = dir;
        }
        names.reverse();
        Ok(names.join(&b'/'))
    }

    fn list(
        &self,
        _: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let number = self.dir(dir)?;
        let mut position = self.name_of(dir, after)?;
        loop {
            // The visitor may call this file system, so it is called after the name space.
            let page = self.page(number, &position)?;
            for (name, node, kind) in &page {
                let next = self.cursors.after(dir, name, name.clone());
                let (node, kind) = (NodeId(*node), *kind);
                if !visit(DirEntry { name, next, node, kind, attributes: None }) {
                    return Ok(());
                }
            }
            match page.into_iter().next_back() {
                Some((last, ..)) => position = last,
                None => return Ok(()),
            }
        }
    }

    fn read_link(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        match self.shared.inode(&*self.node(node)?)?.content {
            Content::Target(target) => Ok(target),
            _ => Err(Error::new(ErrorKind::InvalidInput, "read link", "")),
        }
    }

    fn xattr(&self, _: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let xattrs = self.shared.inode(&*self.node(node)?)?.xattrs;
        Ok(xattrs.into_iter().find(|xattr| xattr.name == name).map(|xattr| xattr.value))
    }

    fn xattr_names(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        let xattrs = self.shared.inode(&*self.node(node)?)?.xattrs;
        Ok(xattrs.into_iter().map(|xattr| xattr.name).collect())
    }

    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        Ok(Box::new(self.opened(context, node, OpenMode::READ)?))
    }

    fn forget(&self, node: NodeId, references: u64) {
        // A data file that cannot be removed remains without an inode, until it is removed as
        // garbage.
        let _ = self.shared.release(node.0, references);
    }

    fn writable(&self) -> Option<&dyn Writable> {
        Some(self)
    }
}

impl Writable for BatchFs {
    fn create(
        &self,
        _: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
        _: OpenMode,
    ) -> Result<(NodeRef<'_>, Box<dyn WritableFile>)> {
        // One use is the reference, the other one the open file.
        let (attributes, node) = self.make((dir, name), (NewNode::File, new), 2)?;
        let file = BatchFile::new(self.shared.clone(), node, 0);
        Ok((NodeRef::counted(self, attributes), Box::new(file)))
    }

    fn make_dir(&self, _: &Context<'_>, dir: NodeId, name: &[u8], new: NewEntry) -> Result<NodeRef<'_>> {
        let (attributes, _) = self.make((dir, name), (NewNode::Dir, new), 1)?;
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
        if target.len() > TARGET_BYTES_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, "create the link", name));
        }
        let (attributes, _) = self.make((dir, name), (NewNode::Symlink(target.to_vec()), new), 1)?;
        Ok(NodeRef::counted(self, attributes))
    }

    fn link(&self, _: &Context<'_>, id: NodeId, dir: NodeId, name: &[u8]) -> Result<NodeRef<'_>> {
        let (node, dir) = (self.node(id)?, self.dir(dir)?);
        {
            let _names = write_lock(&self.shared.names);
            let removed = || Error::new(ErrorKind::NotFound, "link", name);
            let place = node.place().map_err(|_| removed())?;
            self.shared.name_space.link((node.number, &place), dir, name, now())?;
            node.set_place(Place::Name { dir, name: name.to_vec() });
            lock(&self.shared.nodes).hold_again(id)?;
        }
        match self.shared.attributes(&node) {
            Ok(attributes) => Ok(NodeRef::counted(self, attributes)),
            Err(error) => {
                self.shared.release(node.number, 1)?;
                Err(error)
            }
        }
    }

    fn remove(&self, _: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        let dir = self.dir(dir)?;
        self.change_names(|names| {
            let removed = names.remove(dir, name, now())?;
            Ok(self.shared.lost_name((dir, name), removed))
        })
    }

    fn remove_dir(&self, _: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        let dir = self.dir(dir)?;
        self.change_names(|names| {
            let removed = names.remove_dir(dir, name, now())?;
            Ok(self.shared.lost_name((dir, name), removed))
        })
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
        let (from_dir, to_dir) = (self.dir(from_dir)?, self.dir(to_dir)?);
        self.change_names(|names| {
            let renamed = names.rename((from_dir, from), (to_dir, to), mode, now())?;
            let unused = renamed.replaced.and_then(|removed| self.shared.lost_name((to_dir, to), removed));
            let nodes = lock(&self.shared.nodes);
            if let Some(node) = nodes.find(renamed.moved) {
                node.set_place(Place::Name { dir: to_dir, name: to.to_vec() });
            }
            if let Some(node) = renamed.exchanged.and_then(|number| nodes.find(number)) {
                node.set_place(Place::Name { dir: from_dir, name: from.to_vec() });
            }
            Ok(unused)
        })
    }

    fn change(&self, context: &Context<'_>, id: NodeId, change: &Change) -> Result<Attributes> {
        let node = self.node(id)?;
        if node.kind == Kind::File {
            let drops_set_id = change.size_bytes.is_some() && !context.keeps_set_id(geteuid().as_raw());
            return self.shared.change_file(&node, change, drops_set_id);
        }
        if change.size_bytes.is_some() {
            return Err(Error::new(ErrorKind::InvalidInput, "set the size", ""));
        }
        self.shared.change(&node, &inode_change(change))?.attributes()
    }

    fn open_as(&self, context: &Context<'_>, node: NodeId, mode: OpenMode) -> Result<Box<dyn WritableFile>> {
        Ok(Box::new(self.opened(context, node, mode)?))
    }

    fn set_xattr(
        &self,
        _: &Context<'_>,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: SetXattr,
    ) -> Result<()> {
        self.change_xattr(node, XattrChange::Set(name.to_vec(), value.to_vec(), mode))
    }

    fn remove_xattr(&self, _: &Context<'_>, node: NodeId, name: &[u8]) -> Result<()> {
        self.change_xattr(node, XattrChange::Remove(name.to_vec()))
    }

    fn sync_dir(&self, _: &Context<'_>, dir: NodeId) -> Result<()> {
        self.dir(dir)?;
        self.shared.name_space.sync()
    }

    fn space(&self) -> Result<Space> {
        let space = self.shared.data.space()?;
        Ok(match self.shared.name_space.quota()? {
            Some(quota) => within_quota(space, &quota),
            None => space,
        })
    }
}

/// Returns the space of a store with a limit on a file system with this space: the use of the
/// store, and the space that is free on the file system and within the limit.
fn within_quota(space: Space, Quota { usage, limit, .. }: &Quota) -> Space {
    let mut within = space;
    if let Some(limit) = limit.bytes {
        let used = u64::try_from(usage.bytes).unwrap_or(u64::MAX);
        within.free_bytes = space.free_bytes.min(limit.saturating_sub(used));
        within.available_bytes = space.available_bytes.min(within.free_bytes);
        within.total_bytes = used.saturating_add(within.free_bytes);
    }
    if let Some(limit) = limit.inodes {
        let left = limit.saturating_sub(usage.inodes);
        // A file system that reports no number of entries has no limit for them.
        within.entries_free = if space.entries > 0 { space.entries_free.min(left) } else { left };
        within.entries = usage.inodes.saturating_add(within.entries_free);
    }
    within
}

#[cfg(test)]
mod tests {
    use quell_batch_service::{Limit, QuotaSubject, Usage};

    use super::*;

    #[test]
    fn the_space_of_a_store_is_that_of_its_limit_or_of_the_file_system() {
        let space = Space {
            total_bytes: 1000,
            free_bytes: 500,
            available_bytes: 400,
            entries: 50,
            entries_free: 20,
            ..Space::default()
        };
        let usage = Usage { inodes: 10, bytes: 100 };
        let quota = |inodes, bytes| {
            let limit = Limit { inodes, bytes };
            Quota { subject: QuotaSubject::Store, usage, limit }
        };
        assert_eq!(within_quota(space, &quota(None, None)), space);
        // The file system has less space than the limit.
        let within = within_quota(space, &quota(Some(1000), Some(10_000)));
        assert_eq!((within.total_bytes, within.free_bytes, within.available_bytes), (600, 500, 400));
        assert_eq!((within.entries, within.entries_free), (30, 20));
        let expected = Space {
            total_bytes: 300,
            free_bytes: 200,
            available_bytes: 200,
            entries: 12,
            entries_free: 2,
            ..space
        };
        assert_eq!(within_quota(space, &quota(Some(12), Some(300))), expected);
        let full = within_quota(space, &quota(Some(10), Some(99)));
        assert_eq!((full.entries, full.entries_free), (10, 0));
        assert_eq!((full.total_bytes, full.free_bytes, full.available_bytes), (100, 0, 0));
        // The number of entries of the file system is not known.
        let unknown = Space { entries: 0, entries_free: 0, ..space };
        let within = within_quota(unknown, &quota(Some(12), None));
        assert_eq!((within.entries, within.entries_free), (12, 2));
    }
}
