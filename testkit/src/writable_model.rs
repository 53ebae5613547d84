//! The reference model of a writable tree: one table under one lock, simple enough to be verified
//! by reading.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use quell_threads::lock;
use quell_vfs::{
    Attributes, Capabilities, Change, Context, Cursor, DirEntry, Error, ErrorKind, File, FileLocks,
    FileSystem, HeldLock, Kind, LockMode, LockOwner, LockScope, NAME_BYTES_MAX, NewEntry, NodeId, NodeRef,
    OpenMode, ReadAt, Rename, Result, SetXattr, Space, Time, Writable, WritableFile, XATTR_VALUE_BYTES_MAX,
    check_name, check_user_xattr, errno,
};

use crate::lock_table::LockTable;
use crate::sparse::SparseBytes;

const ROOT: NodeId = NodeId(0);
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const SET_ID: u32 = SET_USER_ID | SET_GROUP_ID;
const GROUP_EXECUTE: u32 = 0o010;
const FILE_BYTES_MAX: u64 = i64::MAX as u64;
const SPACE_BYTES: u64 = 1 << 50;
/// The space for the extended attributes of one node: the bytes of their names and values.
const XATTRS_BYTES_MAX: usize = 128 << 10;

/// A file system in memory that implements exactly the contract. Clones share one file system, and
/// are different mounts of it.
///
/// Every write is visible immediately everywhere. A node keeps its number while it has a name, has
/// a reference or is open; numbers are not reused. Permissions are not enforced. The clock is
/// simulated: each change is one second later.
pub struct WritableModel {
    table: Arc<Mutex<Table>>,
    mount: u64,
}

impl Clone for WritableModel {
    fn clone(&self) -> WritableModel {
        let mut table = self.lock();
        table.mounts += 1;
        WritableModel { table: Arc::clone(&self.table), mount: table.mounts }
    }
}

struct Table {
    nodes: BTreeMap<NodeId, Entry>,
    next_node: u64,
    next_cursor: u64,
    seconds: i64,
    /// The number of mounts so far, without the first one.
    mounts: u64,
}

struct Entry {
    /// Size, blocks and link count are calculated when requested.
    attributes: Attributes,
    bytes: SparseBytes,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Sorted by name; each entry with its cursor in the listing.
    children: BTreeMap<Vec<u8>, (Cursor, NodeId)>,
    /// The directories and names: several if the node has hard links, none if it was removed.
    places: Vec<(NodeId, Vec<u8>)>,
    references: u64,
    open: u64,
    locks: LockTable,
}

impl std::fmt::Debug for WritableModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WritableModel").field("nodes", &self.lock().nodes.len()).finish()
    }
}

impl Default for WritableModel {
    fn default() -> WritableModel {
        WritableModel::new()
    }
}

fn refused<T>(kind: ErrorKind, operation: &'static str, subject: &[u8]) -> Result<T> {
    Err(Error::new(kind, operation, subject))
}

impl WritableModel {
    /// Creates an empty root.
    pub fn new() -> WritableModel {
        let mut table =
            Table { nodes: BTreeMap::new(), next_node: 0, next_cursor: 1, seconds: 1_800_000_000, mounts: 0 };
        table.add(Kind::Dir, NewEntry { permissions: 0o755, uid: 0, gid: 0 }, Some((ROOT, Vec::new())));
        WritableModel { table: Arc::new(Mutex::new(table)), mount: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// Locks the table, unless the deadline has passed.
    fn lock_in_time(&self, context: &Context<'_>) -> Result<MutexGuard<'_, Table>> {
        match context.deadline {
            Some(deadline) if deadline <= Instant::now() => refused(ErrorKind::TimedOut, "wait", b""),
            _ => Ok(self.lock()),
        }
    }

    fn opened(&self, table: &mut Table, node: NodeId, mode: OpenMode) -> ModelFile {
        table.nodes.get_mut(&node).expect("it was just found").open += 1;
        // Not a clone, which would be another mount.
        let model = WritableModel { table: Arc::clone(&self.table), mount: self.mount };
        ModelFile { model, node, mode, is_closed: AtomicBool::new(false), lock_owners: Mutex::default() }
    }
}

impl Table {
    fn entry(&self, node: NodeId) -> Result<&Entry> {
        self.nodes.get(&node).ok_or_else(|| Error::new(ErrorKind::Stale, "node", node.0.to_string()))
    }

    fn entry_mut(&mut self, node: NodeId) -> Result<&mut Entry> {
        self.nodes.get_mut(&node).ok_or_else(|| Error::new(ErrorKind::Stale, "node", node.0.to_string()))
    }

    fn dir(&self, node: NodeId) -> Result<&Entry> {
        match self.entry(node)? {
            entry if entry.attributes.kind == Kind::Dir => Ok(entry),
            _ => refused(ErrorKind::NotADirectory, "look into", b""),
        }
    }

    fn child(&self, dir: NodeId, name: &[u8]) -> Result<Option<NodeId>> {
        Ok(self.dir(dir)?.children.get(name).map(|(_, node)| *node))
    }

    fn is_dir(&self, node: NodeId) -> bool {
        self.nodes[&node].attributes.kind == Kind::Dir
    }

    /// Returns whether `node` is `dir` or a directory above it.
    fn holds(&self, node: NodeId, dir: NodeId) -> bool {
        node == dir || (dir != ROOT && self.parent(dir).is_some_and(|up| self.holds(node, up)))
    }

    fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.nodes[&node].places.last().map(|(dir, _)| *dir)
    }

    fn now(&mut self) -> Time {
        self.seconds += 1;
        Time { seconds: self.seconds, nanoseconds: 0 }
    }

    fn touch(&mut self, node: NodeId) {
        let now = self.now();
        if let Some(entry) = self.nodes.get_mut(&node) {
            (entry.attributes.modified, entry.attributes.changed) = (now, now);
        }
    }

    fn attributes(&self, node: NodeId) -> Result<Attributes> {
        let entry = self.entry(node)?;
        let is_dir = |(_, child): &&(Cursor, NodeId)| self.is_dir(*child);
        let named = entry.places.len() as u32;
        let (size_bytes, blocks, nlink) = match entry.attributes.kind {
            Kind::Dir => (4096, 8, named * 2 + entry.children.values().filter(is_dir).count() as u32),
            Kind::Symlink => (entry.target.len() as u64, 0, named),
            _ => (entry.bytes.size_bytes(), entry.bytes.allocated_bytes() / 512, named),
        };
        Ok(Attributes { size_bytes, blocks, nlink, ..entry.attributes })
    }

    fn add(&mut self, kind: Kind, new: NewEntry, place: Option<(NodeId, Vec<u8>)>) -> NodeId {
        let node = NodeId(self.next_node);
        self.next_node += 1;
        let now = self.now();
        let attributes = Attributes {
            node,
            kind,
            permissions: new.permissions,
            uid: new.uid,
            gid: new.gid,
            nlink: 0,
            rdev: 0,
            size_bytes: 0,
            blocks: 0,
            modified: now,
            changed: now,
        };
        let (bytes, target, xattrs, children) = Default::default();
        let entry = Entry {
            attributes,
            bytes,
            target,
            xattrs,
            children,
            places: place.into_iter().collect(),
            references: 0,
            open: 0,
            locks: LockTable::default(),
        };
        self.nodes.insert(node, entry);
        node
    }

    /// Creates an entry with one reference.
    fn make(&mut self, kind: Kind, dir: NodeId, name: &[u8], mut new: NewEntry) -> Result<NodeId> {
        check_name(name)?;
        let above = self.dir(dir)?;
        if above.places.is_empty() {
            return refused(ErrorKind::NotFound, "make in a removed directory", name);
        }
        if above.children.contains_key(name) {
            return refused(ErrorKind::Exists, "make", name);
        }
        if above.attributes.permissions & SET_GROUP_ID != 0 {
            new.gid = above.attributes.gid;
            new.permissions |= if kind == Kind::Dir { SET_GROUP_ID } else { 0 };
        }
        let node = self.add(kind, new, None);
        self.nodes.get_mut(&node).expect("it was just added").references = 1;
        self.put(dir, name, Some(node));
        Ok(node)
    }

    /// Sets or removes an entry.
    fn put(&mut self, dir: NodeId, name: &[u8], node: Option<NodeId>) {
        self.touch(dir);
        let cursor = Cursor(self.next_cursor);
        self.next_cursor += 1;
        let children = &mut self.nodes.get_mut(&dir).expect("its caller looked").children;
        let before = match node {
            Some(node) => children.insert(name.to_vec(), (cursor, node)),
            None => children.remove(name),
        };
        let place = (dir, name.to_vec());
        if let Some((_, before)) = before {
            self.nodes.get_mut(&before).expect("it had a name").places.retain(|at| *at != place);
        }
        if let Some(node) = node {
            self.nodes.get_mut(&node).expect("its caller looked").places.push(place);
        }
    }

    /// Records that a node has lost a name.
    fn take_name(&mut self, node: NodeId) {
        let now = self.now();
        self.nodes.get_mut(&node).expect("its caller looked").attributes.changed = now;
        self.drop_if_unused(node);
    }

    fn drop_if_unused(&mut self, node: NodeId) {
        let used = |entry: &Entry| !entry.places.is_empty() || entry.references > 0 || entry.open > 0;
        if self.nodes.get(&node).is_some_and(|entry| !used(entry)) {
            self.nodes.remove(&node);
        }
    }

    fn file(&self, node: NodeId) -> Result<()> {
        match self.entry(node)?.attributes.kind {
            Kind::File => Ok(()),
            Kind::Dir => refused(ErrorKind::IsADirectory, "open", b""),
            _ => refused(ErrorKind::InvalidInput, "open", b""),
        }
    }

    fn set_size(&mut self, node: NodeId, size_bytes: u64) -> Result<()> {
        let entry = self.entry_mut(node)?;
        if entry.attributes.kind != Kind::File || size_bytes > FILE_BYTES_MAX {
            return refused(ErrorKind::InvalidInput, "set size", b"");
        }
        entry.bytes.set_size(size_bytes);
        self.touch(node);
        Ok(())
    }

    fn drop_set_id(&mut self, node: NodeId) -> Result<()> {
        let permissions = &mut self.entry_mut(node)?.attributes.permissions;
        let dropped = if *permissions & GROUP_EXECUTE != 0 { SET_ID } else { SET_USER_ID };
        *permissions &= !dropped;
        Ok(())
    }

    /// Truncates a file. Without a caller, the request has the permissions of this process.
    fn truncate(&mut self, context: &Context<'_>, node: NodeId, size_bytes: u64) -> Result<()> {
        self.set_size(node, size_bytes)?;
        let is_root = match context.caller {
            Some(caller) => caller.uid == 0,
            None => rustix::process::geteuid().is_root(),
        };
        if is_root { Ok(()) } else { self.drop_set_id(node) }
    }

    fn write(&mut self, node: NodeId, from: &[u8], offset: u64) -> Result<()> {
        let end = offset.checked_add(from.len() as u64);
        if end.is_none_or(|end| end > FILE_BYTES_MAX) {
            return refused(ErrorKind::InvalidInput, "write", b"");
        }
        self.entry_mut(node)?.bytes.write_at(from, offset);
        if !from.is_empty() {
            self.touch(node);
        }
        Ok(())
    }
}

impl FileSystem for WritableModel {
    fn capabilities(&self) -> Capabilities {
        Capabilities { deadlines: true, xattrs: true, ..Capabilities::default() }
    }

    fn root(&self) -> NodeId {
        ROOT
    }

    fn lookup(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        let mut table = self.lock_in_time(context)?;
        let found = table.child(dir, name)?;
        if name.len() > NAME_BYTES_MAX {
            return refused(ErrorKind::NameTooLong, "look up", name);
        }
        let Some(node) = found else { return Ok(None) };
        table.entry_mut(node)?.references += 1;
        Ok(Some(NodeRef::counted(self, table.attributes(node)?)))
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId) -> Result<Attributes> {
        self.lock_in_time(context)?.attributes(node)
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        let table = self.lock();
        table.entry(node)?;
        table.parent(node).ok_or_else(|| Error::new(ErrorKind::NotFound, "parent of a removed node", b""))
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        let table = self.lock();
        let (mut parts, mut at) = (Vec::new(), node);
        while at != ROOT {
            let Some((dir, name)) = &table.entry(at)?.places.last() else {
                return refused(ErrorKind::NotFound, "path of a removed node", b"");
            };
            parts.push(name.clone());
            at = *dir;
        }
        parts.reverse();
        Ok(parts.join(&b'/'))
    }

    fn list(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut entries = Vec::new();
        let table = self.lock_in_time(context)?;
        for (name, (cursor, node)) in table.dir(dir)?.children.iter().filter(|(_, (c, _))| *c > after) {
            entries.push((*cursor, name.clone(), table.attributes(*node)?));
        }
        // The visitor may call the model again.
        drop(table);
        entries.sort_by_key(|(cursor, ..)| *cursor);
        for (next, name, attributes) in entries {
            let Attributes { node, kind, .. } = attributes;
            if !visit(DirEntry { name: &name, next, node, kind, attributes: None }) {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        match self.lock_in_time(context)?.entry(node)? {
            entry if entry.attributes.kind == Kind::Symlink => Ok(entry.target.clone()),
            _ => refused(ErrorKind::InvalidInput, "read link", b""),
        }
    }

    fn xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.lock_in_time(context)?.entry(node)?.xattrs.get(name).cloned())
    }

    fn xattr_names(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        Ok(self.lock_in_time(context)?.entry(node)?.xattrs.keys().cloned().collect())
    }

    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        let mut table = self.lock_in_time(context)?;
        table.file(node)?;
        Ok(Box::new(self.opened(&mut table, node, OpenMode::READ)))
    }

    fn forget(&self, node: NodeId, references: u64) {
        let mut table = self.lock();
        if let Some(entry) = table.nodes.get_mut(&node).filter(|_| node != ROOT) {
            entry.references = entry.references.saturating_sub(references);
            table.drop_if_unused(node);
        }
    }

    fn writable(&self) -> Option<&dyn Writable> {
        Some(self)
    }
}

impl Writable for WritableModel {
    fn create(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
        mode: OpenMode,
    ) -> Result<(NodeRef<'_>, Box<dyn WritableFile>)> {
        let mut table = self.lock_in_time(context)?;
        let node = table.make(Kind::File, dir, name, new)?;
        let file = self.opened(&mut table, node, mode);
        Ok((NodeRef::counted(self, table.attributes(node)?), Box::new(file)))
    }

    fn make_dir(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
    ) -> Result<NodeRef<'_>> {
        let mut table = self.lock_in_time(context)?;
        let node = table.make(Kind::Dir, dir, name, new)?;
        Ok(NodeRef::counted(self, table.attributes(node)?))
    }

    fn make_symlink(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        target: &[u8],
        new: NewEntry,
    ) -> Result<NodeRef<'_>> {
        let mut table = self.lock_in_time(context)?;
        let node = table.make(Kind::Symlink, dir, name, NewEntry { permissions: 0o777, ..new })?;
        table.entry_mut(node)?.target = target.to_vec();
        Ok(NodeRef::counted(self, table.attributes(node)?))
    }

    fn link(&self, context: &Context<'_>, node: NodeId, dir: NodeId, name: &[u8]) -> Result<NodeRef<'_>> {
        let mut table = self.lock_in_time(context)?;
        check_name(name)?;
        if table.child(dir, name)?.is_some() {
            return refused(ErrorKind::Exists, "link", name);
        }
        if table.entry(node)?.attributes.kind == Kind::Dir {
            return refused(ErrorKind::Os(errno::EPERM), "link", name);
        }
        if table.entry(node)?.places.is_empty() || table.dir(dir)?.places.is_empty() {
            return refused(ErrorKind::NotFound, "link", name);
        }
        table.put(dir, name, Some(node));
        let now = table.now();
        let entry = table.entry_mut(node)?;
        (entry.attributes.changed, entry.references) = (now, entry.references + 1);
        Ok(NodeRef::counted(self, table.attributes(node)?))
    }

    fn remove(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        let mut table = self.lock_in_time(context)?;
        let Some(node) = table.child(dir, name)? else {
            return refused(ErrorKind::NotFound, "remove", name);
        };
        if table.is_dir(node) {
            return refused(ErrorKind::IsADirectory, "remove", name);
        }
        table.put(dir, name, None);
        table.take_name(node);
        Ok(())
    }

    fn remove_dir(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        let mut table = self.lock_in_time(context)?;
        let Some(node) = table.child(dir, name)? else {
            return refused(ErrorKind::NotFound, "remove directory", name);
        };
        if !table.is_dir(node) {
            return refused(ErrorKind::NotADirectory, "remove directory", name);
        }
        if !table.dir(node)?.children.is_empty() {
            return refused(ErrorKind::NotEmpty, "remove directory", name);
        }
        table.put(dir, name, None);
        table.take_name(node);
        Ok(())
    }

    fn rename(
        &self,
        context: &Context<'_>,
        from_dir: NodeId,
        from: &[u8],
        to_dir: NodeId,
        to: &[u8],
        how: Rename,
    ) -> Result<()> {
        let mut table = self.lock_in_time(context)?;
        let table = &mut *table;
        let (found, old) = (table.child(from_dir, from)?, table.child(to_dir, to)?);
        let Some(node) = found else {
            return refused(ErrorKind::NotFound, "rename", from);
        };
        check_name(to)?;
        match (how, old) {
            (Rename::Keep, Some(_)) => return refused(ErrorKind::Exists, "rename", to),
            (Rename::Exchange, None) => return refused(ErrorKind::NotFound, "rename", to),
            _ => {}
        }
        if table.holds(node, to_dir) {
            return refused(ErrorKind::InvalidInput, "rename below itself", from);
        }
        match old {
            Some(old) if old == node => return Ok(()),
            Some(old) if how == Rename::Exchange => {
                if table.holds(old, from_dir) {
                    return refused(ErrorKind::InvalidInput, "rename below itself", to);
                }
                table.put(from_dir, from, Some(old));
            }
            Some(old) => {
                match (table.is_dir(node), table.is_dir(old)) {
                    (true, false) => return refused(ErrorKind::NotADirectory, "rename", to),
                    (_, true) if table.holds(old, from_dir) => {
                        return refused(ErrorKind::NotEmpty, "rename", to);
                    }
                    (false, true) => return refused(ErrorKind::IsADirectory, "rename", to),
                    (true, true) if !table.dir(old)?.children.is_empty() => {
                        return refused(ErrorKind::NotEmpty, "rename", to);
                    }
                    _ => {}
                }
                table.put(to_dir, to, None);
                table.take_name(old);
                table.put(from_dir, from, None);
            }
            None => table.put(from_dir, from, None),
        }
        table.put(to_dir, to, Some(node));
        Ok(())
    }

    fn change(&self, context: &Context<'_>, node: NodeId, change: &Change) -> Result<Attributes> {
        let mut table = self.lock_in_time(context)?;
        if let Some(size_bytes) = change.size_bytes {
            table.truncate(context, node, size_bytes)?;
        }
        let now = table.now();
        let attributes = &mut table.entry_mut(node)?.attributes;
        attributes.permissions = change.permissions.unwrap_or(attributes.permissions);
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        attributes.modified = change.modified.unwrap_or(attributes.modified);
        attributes.changed = now;
        table.attributes(node)
    }

    fn open_as(&self, context: &Context<'_>, node: NodeId, mode: OpenMode) -> Result<Box<dyn WritableFile>> {
        let mut table = self.lock_in_time(context)?;
        table.file(node)?;
        if mode.truncate {
            table.truncate(context, node, 0)?;
        }
        Ok(Box::new(self.opened(&mut table, node, mode)))
    }

    fn set_xattr(
        &self,
        context: &Context<'_>,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: SetXattr,
    ) -> Result<()> {
        let mut table = self.lock_in_time(context)?;
        let now = table.now();
        let entry = table.entry_mut(node)?;
        check_user_xattr(entry.attributes.kind, name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return refused(ErrorKind::Os(errno::E2BIG), "set an extended attribute", name);
        }
        match (mode, entry.xattrs.contains_key(name)) {
            (SetXattr::Create, true) => return refused(ErrorKind::Exists, "set an extended attribute", name),
            (SetXattr::Replace, false) => {
                return refused(ErrorKind::Os(errno::ENODATA), "set an extended attribute", name);
            }
            _ => {}
        }
        let others = entry.xattrs.iter().filter(|(other, _)| *other != name);
        let others: usize = others.map(|(name, value)| name.len() + value.len()).sum();
        if others + name.len() + value.len() > XATTRS_BYTES_MAX {
            return refused(ErrorKind::NoSpace, "set an extended attribute", name);
        }
        entry.xattrs.insert(name.to_vec(), value.to_vec());
        entry.attributes.changed = now;
        Ok(())
    }

    fn remove_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<()> {
        let mut table = self.lock_in_time(context)?;
        let now = table.now();
        let entry = table.entry_mut(node)?;
        check_user_xattr(entry.attributes.kind, name)?;
        if entry.xattrs.remove(name).is_none() {
            return refused(ErrorKind::Os(errno::ENODATA), "remove an extended attribute", name);
        }
        entry.attributes.changed = now;
        Ok(())
    }

    /// Checks the deadline and the directory. All names are durable immediately.
    fn sync_dir(&self, context: &Context<'_>, dir: NodeId) -> Result<()> {
        self.lock_in_time(context)?.dir(dir).map(drop)
    }

    fn space(&self) -> Result<Space> {
        let table = self.lock();
        let used: u64 = table.nodes.values().map(|entry| entry.bytes.allocated_bytes()).sum();
        let free_bytes = SPACE_BYTES - used.min(SPACE_BYTES);
        let (total_bytes, available_bytes) = (SPACE_BYTES, free_bytes);
        Ok(Space { total_bytes, free_bytes, available_bytes, ..Space::default() })
    }
}

/// An open file of the model.
struct ModelFile {
    model: WritableModel,
    node: NodeId,
    mode: OpenMode,
    is_closed: AtomicBool,
    /// The owners that have taken locks through this file.
    lock_owners: Mutex<HashSet<LockOwner>>,
}

impl ModelFile {
    fn may(&self, allowed: bool, operation: &'static str) -> Result<MutexGuard<'_, Table>> {
        if !allowed || self.is_closed.load(Ordering::Relaxed) {
            return refused(ErrorKind::Os(quell_vfs::errno::EBADF), operation, b"");
        }
        Ok(self.model.lock())
    }
}

impl Drop for ModelFile {
    fn drop(&mut self) {
        let _ = self.close(); // never fails
    }
}

impl ModelFile {
    fn close_once(&self) {
        if self.is_closed.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut table = self.model.lock();
        if let Some(entry) = table.nodes.get_mut(&self.node) {
            entry.open -= 1;
            for owner in lock(&self.lock_owners).drain() {
                entry.locks.release((self.model.mount, owner));
            }
        }
        table.drop_if_unused(self.node);
    }
}

impl File for ModelFile {
    fn attributes(&self) -> Result<Attributes> {
        self.may(true, "read the attributes of")?.attributes(self.node)
    }
}

impl ReadAt for ModelFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.may(self.mode.read, "read")?.entry(self.node)?.bytes.read_at(into, offset))
    }
}

impl WritableFile for ModelFile {
    fn close(&self) -> Result<()> {
        self.close_once();
        Ok(())
    }

    fn drop_set_id(&self) -> Result<()> {
        self.may(true, "change")?.drop_set_id(self.node)
    }

    fn locks(&self) -> Result<&dyn FileLocks> {
        self.may(true, "lock").map(|_| self as &dyn FileLocks)
    }

    fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        self.may(self.mode.write, "write")?.write(self.node, from, offset)
    }

    fn write_zeros(&self, offset: u64, length: u64) -> Result<()> {
        let mut table = self.may(self.mode.write, "write zeros")?;
        let end = offset.saturating_add(length).min(table.entry(self.node)?.bytes.size_bytes());
        match end.checked_sub(offset) {
            None | Some(0) => Ok(()),
            Some(length) => table.write(self.node, &vec![0; length as usize], offset),
        }
    }

    fn append(&self, from: &[u8]) -> Result<u64> {
        let mut table = self.may(self.mode.write, "append")?;
        let end = table.entry(self.node)?.bytes.size_bytes();
        table.write(self.node, from, end)?;
        Ok(end)
    }

    fn publish(&self) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

impl FileLocks for ModelFile {
    fn try_lock(&self, owner: LockOwner, scope: LockScope, mode: LockMode) -> Result<bool> {
        let mut table = self.may(true, "lock")?;
        lock(&self.lock_owners).insert(owner);
        table.entry_mut(self.node)?.locks.try_lock((self.model.mount, owner), scope, mode)
    }

    fn unlock(&self, owner: LockOwner, scope: LockScope) -> Result<()> {
        self.may(true, "unlock")?.entry_mut(self.node)?.locks.unlock((self.model.mount, owner), scope)
    }

    fn conflicting(&self, owner: LockOwner, scope: LockScope, mode: LockMode) -> Result<Option<HeldLock>> {
        self.may(true, "lock")?.entry(self.node)?.locks.conflicting((self.model.mount, owner), scope, mode)
    }

    fn release(&self, owner: LockOwner) -> Result<()> {
        let mut table = self.may(true, "unlock")?;
        lock(&self.lock_owners).remove(&owner);
        table.entry_mut(self.node)?.locks.release((self.model.mount, owner));
        Ok(())
    }
}
