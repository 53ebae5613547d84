//! The tree of a store: inodes, names, space and time. All of it is protected by one lock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use quell_posix::Stat;
use quell_threads::lock;
use quell_vfs::{Change, Error, ErrorKind, Kind, Rename, Result, Time, errno};

use super::inode::{Attributes, Content, Inode, NAME_BYTES, Number, ROOT};
use super::journal::{NameChange, Slot};
use super::unsynced::Unsynced;
use crate::counting::Operation;
use crate::lock_table::LockTable;
use crate::random::Random;
use crate::sparse::SparseBytes;

/// Unused inodes are removed when there are this many.
const SWEEP_AT: usize = 1000;
const SET_GROUP_ID: u32 = 0o2000;
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// The rules for [`MemoryStore::crash`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CrashRules {
    /// Whether the `sync` of a file also makes the name durable with which it was created or
    /// renamed.
    pub file_sync_keeps_name: bool,
}

/// Decides whether an operation fails, and with which error number.
pub type Refusal = Box<dyn FnMut(&Operation) -> Option<i32> + Send>;

/// The state of one store, shared by its handles.
#[derive(Clone)]
pub(super) struct SharedState {
    state: Arc<Mutex<State>>,
    /// The sizes of files that a node has cached. `None`: the node caches none.
    cached_sizes: Option<Arc<Mutex<HashMap<Number, u64>>>>,
    /// The node writes data back later.
    delays_writes: bool,
}

impl SharedState {
    pub(super) fn new(state: State) -> SharedState {
        SharedState { state: Arc::new(Mutex::new(state)), cached_sizes: None, delays_writes: false }
    }

    /// Returns the same store as another node uses it, which caches the sizes of files.
    pub(super) fn of_caching_node(&self) -> SharedState {
        SharedState { cached_sizes: Some(Arc::default()), ..self.clone() }
    }

    /// Returns the same store as a node uses it that writes data back later.
    pub(super) fn of_delaying_node(&self) -> SharedState {
        SharedState { delays_writes: true, ..self.clone() }
    }

    pub(super) fn delays_writes(&self) -> bool {
        self.delays_writes
    }

    /// Returns the attributes of an inode as this node sees them. Other nodes do not see the data
    /// that a node has not written back.
    pub(super) fn stat(&self, state: &State, number: Number) -> Stat {
        let found = state.stat(number);
        let seen = state.delayed.get(&number).filter(|_| !self.delays_writes);
        Stat { size_bytes: seen.map_or(found.size_bytes, |seen| found.size_bytes.min(*seen)), ..found }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn is_same(&self, other: &SharedState) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Returns the size of a file as this node has cached it, and caches `size_bytes` if it has
    /// not.
    pub(super) fn size_on_node(&self, number: Number, size_bytes: u64) -> u64 {
        match &self.cached_sizes {
            Some(sizes) => *lock(sizes).entry(number).or_insert(size_bytes),
            None => size_bytes,
        }
    }

    /// Removes the cached size of a file, because the node has asked the server or changed the
    /// file.
    pub(super) fn forget_size(&self, number: Number) {
        if let Some(sizes) = &self.cached_sizes {
            lock(sizes).remove(&number);
        }
    }
}

impl std::fmt::Debug for SharedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedState").finish_non_exhaustive()
    }
}

pub(super) struct State {
    pub(super) inodes: HashMap<Number, Inode>,
    next: Number,
    /// Changes of names that no sync has made durable, in their order.
    pub(super) changes: Vec<NameChange>,
    nameless: usize,
    pub(super) used_bytes: u64,
    pub(super) capacity_bytes: Option<u64>,
    pub(super) inodes_max: Option<u64>,
    pub(super) read_only: bool,
    pub(super) gone: Option<i32>,
    pub(super) refusal: Option<Refusal>,
    pub(super) operations: u64,
    pub(super) now: Time,
    pub(super) step_nanoseconds: u32,
    pub(super) rules: CrashRules,
    pub(super) random: Random,
    /// The locks of open files, whose owners are numbers of `lock_owners`.
    pub(super) locks: HashMap<Number, LockTable>,
    pub(super) lock_owners: u64,
    pub(super) locks_are_reliable: bool,
    pub(super) has_rename_flags: bool,
    pub(super) counts_removed_names: bool,
    /// Files with data that a node has not written back yet, and their sizes before.
    pub(super) delayed: HashMap<Number, u64>,
}

impl State {
    pub(super) fn new() -> State {
        let mut state = State {
            inodes: HashMap::new(),
            next: ROOT,
            changes: Vec::new(),
            nameless: 0,
            used_bytes: 0,
            capacity_bytes: None,
            inodes_max: None,
            read_only: false,
            gone: None,
            refusal: None,
            operations: 0,
            now: Time { seconds: 1_800_000_000, nanoseconds: 0 },
            step_nanoseconds: 1_000_000,
            rules: CrashRules::default(),
            random: Random::new(0),
            locks: HashMap::new(),
            lock_owners: 0,
            locks_are_reliable: true,
            has_rename_flags: true,
            counts_removed_names: true,
            delayed: HashMap::new(),
        };
        state.add(Content::Dir(BTreeMap::new()), 0o755, (ROOT, Vec::new()));
        state
    }

    /// Returns the same tree in another store, with no open files and no faults.
    pub(super) fn without_handles(&self) -> State {
        let mut inodes = self.inodes.clone();
        for inode in inodes.values_mut() {
            inode.handles = 0;
        }
        let mut state = State {
            inodes,
            next: self.next,
            changes: self.changes.clone(),
            nameless: 0,
            used_bytes: 0,
            capacity_bytes: self.capacity_bytes,
            inodes_max: self.inodes_max,
            read_only: self.read_only,
            gone: None,
            refusal: None,
            operations: 0,
            now: self.now,
            step_nanoseconds: self.step_nanoseconds,
            rules: self.rules,
            random: self.random.clone(),
            locks: HashMap::new(),
            lock_owners: 0,
            locks_are_reliable: self.locks_are_reliable,
            has_rename_flags: self.has_rename_flags,
            counts_removed_names: self.counts_removed_names,
            delayed: HashMap::new(),
        };
        state.sweep();
        state.count_used();
        state
    }

    pub(super) fn count_used(&mut self) {
        self.used_bytes = self.inodes.values().filter(|i| i.in_use()).map(Inode::taken_bytes).sum();
    }

    pub(super) fn used_inodes(&self) -> u64 {
        self.inodes.values().filter(|inode| inode.in_use()).count() as u64
    }

    pub(super) fn open_handles(&self) -> u64 {
        self.inodes.values().map(|inode| inode.handles).sum()
    }

    pub(super) fn inode(&self, number: Number) -> &Inode {
        &self.inodes[&number]
    }

    pub(super) fn inode_mut(&mut self, number: Number) -> &mut Inode {
        self.inodes.get_mut(&number).expect("an inode that is named, open or may come back is kept")
    }

    /// Returns the path of a name in a directory. If the directory was removed, its last path is
    /// used.
    pub(super) fn path(&self, dir: Number, name: &[u8]) -> Vec<u8> {
        let mut parts = vec![name];
        let mut at = dir;
        while let Some(inode) = self.inodes.get(&at).filter(|_| at != ROOT) {
            parts.push(&inode.parent_and_name.1);
            at = inode.parent_and_name.0;
        }
        parts.retain(|part| !part.is_empty());
        parts.reverse();
        parts.join(&b'/')
    }

    /// Counts an operation, and fails it if a fault is set.
    pub(super) fn begin(&mut self, verb: &'static str, of: Number, name: &[u8], writes: bool) -> Result<()> {
        self.operations += 1;
        let fail = |errno, path: &[u8]| Err(Error::new(ErrorKind::from_errno(errno), verb, path));
        if let Some(errno) = self.gone {
            return fail(errno, name);
        }
        if let Some(mut refusal) = self.refusal.take() {
            let operation = Operation { verb, path: self.path(of, name) };
            let refused = refusal(&operation);
            self.refusal = Some(refusal);
            if let Some(errno) = refused {
                return fail(errno, &operation.path);
            }
        }
        if writes && self.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, verb, name));
        }
        Ok(())
    }

    fn stamp(&mut self) -> Time {
        let now = self.now;
        let nanoseconds = self.now.nanoseconds + self.step_nanoseconds;
        self.now = Time {
            seconds: now.seconds + i64::from(nanoseconds / 1_000_000_000),
            nanoseconds: nanoseconds % 1_000_000_000,
        };
        now
    }

    fn free_bytes(&self) -> u64 {
        self.capacity_bytes.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.used_bytes))
    }

    pub(super) fn space(&self) -> quell_vfs::Space {
        let total_bytes = self.capacity_bytes.unwrap_or(self.used_bytes + (1 << 50));
        let free_bytes = total_bytes.saturating_sub(self.used_bytes);
        quell_vfs::Space {
            total_bytes,
            free_bytes,
            available_bytes: free_bytes,
            ..quell_vfs::Space::default()
        }
    }

    fn add(&mut self, content: Content, permissions: u32, parent_and_name: (Number, Vec<u8>)) -> Number {
        let number = self.next;
        self.next += 1;
        let modified = self.stamp();
        // As in the kernel, a directory with the set-group-id bit passes its group on.
        let from = self.inodes.get(&parent_and_name.0).map(|dir| dir.attributes);
        let from = from.filter(|attributes| attributes.permissions & SET_GROUP_ID != 0);
        let gid = from.map_or(100, |attributes| attributes.gid);
        let inherited = if matches!(content, Content::Dir(_)) { from.map_or(0, |_| SET_GROUP_ID) } else { 0 };
        let permissions = permissions | inherited;
        let attributes = Attributes { permissions, uid: 1000, gid, modified };
        let inode = Inode {
            attributes,
            synced_attributes: attributes,
            changed: modified,
            content,
            parent_and_name,
            named: true,
            was_linked: false,
            handles: 0,
            writeback_errors: 0,
            is_reported: false,
        };
        self.used_bytes += inode.taken_bytes();
        self.inodes.insert(number, inode);
        number
    }

    pub(super) fn names(&self, dir: Number) -> &BTreeMap<Vec<u8>, Number> {
        match &self.inode(dir).content {
            Content::Dir(names) => names,
            _ => unreachable!("an open directory is a directory"),
        }
    }

    pub(super) fn child(&self, dir: Number, name: &[u8], operation: &'static str) -> Result<Number> {
        quell_vfs::check_name(name)?;
        let found = self.names(dir).get(name).copied();
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, operation, name))
    }

    /// Returns the child `name`, or the directory itself if the name is empty.
    pub(super) fn child_or_self(&self, dir: Number, name: &[u8], operation: &'static str) -> Result<Number> {
        if name.is_empty() { Ok(dir) } else { self.child(dir, name, operation) }
    }

    pub(super) fn stat(&self, number: Number) -> Stat {
        let inode = self.inode(number);
        let (size_bytes, allocated, nlink) = match &inode.content {
            Content::File { bytes, .. } => {
                let kept = u32::from(!self.counts_removed_names && inode.handles > 0);
                (bytes.size_bytes(), bytes.allocated_bytes(), self.count_names(number).max(kept))
            }
            Content::Symlink(target) => (target.len() as u64, 0, u32::from(inode.named)),
            Content::Dir(names) => {
                let dirs = names.values().filter(|n| self.inode(**n).kind() == Kind::Dir).count() as u32;
                (4096, 4096, if inode.named { 2 + dirs } else { 0 })
            }
        };
        Stat {
            mode: inode.kind().mode_bits() | inode.attributes.permissions,
            uid: inode.attributes.uid,
            gid: inode.attributes.gid,
            nlink,
            rdev: 0,
            size_bytes,
            blocks: allocated / 512,
            modified: inode.attributes.modified,
            changed: inode.changed,
            device: 1,
            inode: number,
            mount_root: false,
        }
    }

    // Names.

    /// Returns the number of names of a file.
    fn count_names(&self, number: Number) -> u32 {
        let inode = self.inode(number);
        if !inode.was_linked {
            return u32::from(inode.named);
        }
        let named = self.inodes.values().filter(|inode| inode.named);
        let count = |inode: &Inode| match &inode.content {
            Content::Dir(names) => names.values().filter(|named| **named == number).count() as u32,
            _ => 0,
        };
        named.map(count).sum()
    }

    /// Gives a file another name.
    pub(super) fn link(
        &mut self,
        (from_dir, from): (Number, &[u8]),
        (to_dir, to): (Number, &[u8]),
    ) -> Result<()> {
        quell_vfs::check_name(to)?;
        let number = self.child(from_dir, from, "link")?;
        let refused = |kind, name: &[u8]| Err(Error::new(kind, "link", name));
        if self.has_rename_flags || self.inode(number).kind() == Kind::Dir {
            return refused(ErrorKind::Unsupported, from);
        }
        if !self.inode(to_dir).named {
            return refused(ErrorKind::NotFound, to);
        }
        if self.names(to_dir).contains_key(to) {
            return refused(ErrorKind::Exists, to);
        }
        self.inode_mut(number).was_linked = true;
        self.put(to_dir, to, Some(number));
        self.touch_dir(to_dir);
        let slot = Slot { dir: to_dir, name: to.to_vec(), before: None, after: Some(number) };
        self.record(NameChange { slots: vec![slot], ..NameChange::default() });
        Ok(())
    }

    /// Sets or removes an entry, without checks and without recording a change.
    pub(super) fn put(&mut self, dir: Number, name: &[u8], number: Option<Number>) {
        let Content::Dir(names) = &mut self.inode_mut(dir).content else {
            unreachable!("names are in directories")
        };
        match number {
            Some(number) => {
                names.insert(name.to_vec(), number);
                let inode = self.inode_mut(number);
                (inode.parent_and_name, inode.named) = ((dir, name.to_vec()), true);
            }
            None => {
                names.remove(name);
            }
        }
    }

    fn touch_dir(&mut self, dir: Number) {
        let now = self.stamp();
        let inode = self.inode_mut(dir);
        (inode.attributes.modified, inode.changed) = (now, now);
    }

    fn record(&mut self, change: NameChange) {
        self.changes.push(change);
        self.keep_changes_bounded();
    }

    pub(super) fn create(
        &mut self,
        dir: Number,
        name: &[u8],
        content: Content,
        permissions: u32,
    ) -> Result<Number> {
        quell_vfs::check_name(name)?;
        if !self.inode(dir).named {
            return Err(Error::new(ErrorKind::NotFound, "create in a removed directory", name));
        }
        if self.names(dir).contains_key(name) {
            return Err(Error::new(ErrorKind::Exists, "create", name));
        }
        let is_full = self.inodes_max.is_some_and(|most| self.used_inodes() >= most);
        if self.free_bytes() < NAME_BYTES || is_full {
            return Err(Error::new(ErrorKind::NoSpace, "create", name));
        }
        let number = self.add(content, permissions & 0o7777, (dir, name.to_vec()));
        self.put(dir, name, Some(number));
        self.touch_dir(dir);
        let slot = Slot { dir, name: name.to_vec(), before: None, after: Some(number) };
        self.record(NameChange { slots: vec![slot], ..NameChange::default() });
        Ok(number)
    }

    /// Marks an inode as removed.
    fn unnamed(&mut self, number: Number) {
        let now = self.stamp();
        let is_named = self.inode(number).was_linked && self.count_names(number) > 0;
        let inode = self.inode_mut(number);
        (inode.named, inode.changed) = (is_named, now);
        self.maybe_unused(number);
    }

    fn maybe_unused(&mut self, number: Number) {
        let inode = self.inode(number);
        if !inode.in_use() {
            self.used_bytes = self.used_bytes.saturating_sub(inode.taken_bytes());
            self.nameless += 1;
            if self.nameless > SWEEP_AT {
                self.sweep();
            }
        }
    }

    /// Removes inodes that are not reachable and that no power failure can restore.
    pub(super) fn sweep(&mut self) {
        let slots = self.changes.iter().flat_map(|change| &change.slots);
        let kept: HashSet<Number> = slots.flat_map(|s| [Some(s.dir), s.before, s.after]).flatten().collect();
        self.inodes.retain(|number, inode| inode.in_use() || kept.contains(number));
        self.nameless = 0;
    }

    pub(super) fn remove(&mut self, dir: Number, name: &[u8], a_dir: bool) -> Result<()> {
        let number = self.child(dir, name, "remove")?;
        let kind = match (&self.inode(number).content, a_dir) {
            (Content::Dir(_), false) => Some(ErrorKind::IsADirectory),
            (Content::Dir(names), true) if !names.is_empty() => Some(ErrorKind::NotEmpty),
            (Content::Dir(_), true) | (_, false) => None,
            (_, true) => Some(ErrorKind::NotADirectory),
        };
        if let Some(kind) = kind {
            return Err(Error::new(kind, "remove", name));
        }
        self.put(dir, name, None);
        self.unnamed(number);
        self.touch_dir(dir);
        let slot = Slot { dir, name: name.to_vec(), before: Some(number), after: None };
        let emptied = a_dir.then_some(number);
        self.record(NameChange { slots: vec![slot], emptied, ..NameChange::default() });
        Ok(())
    }

    /// Returns whether `number` is `dir` or one of the directories above it.
    fn holds(&self, number: Number, dir: Number) -> bool {
        let mut at = dir;
        loop {
            if at == number {
                return true;
            }
            if at == ROOT {
                return false;
            }
            at = self.inode(at).parent_and_name.0;
        }
    }

    pub(super) fn rename(
        &mut self,
        (from_dir, from): (Number, &[u8]),
        (to_dir, to): (Number, &[u8]),
        how: Rename,
    ) -> Result<()> {
        let refused = |kind, name: &[u8]| Err(Error::new(kind, "rename", name));
        let number = self.child(from_dir, from, "rename")?;
        quell_vfs::check_name(to)?;
        if how != Rename::Replace && !self.has_rename_flags {
            return refused(ErrorKind::Unsupported, from);
        }
        if !self.inode(to_dir).named {
            return refused(ErrorKind::NotFound, to);
        }
        let old = self.names(to_dir).get(to).copied();
        let is_dir = |number: Number| self.inode(number).kind() == Kind::Dir;
        if how == Rename::Keep && old.is_some() {
            return refused(ErrorKind::Exists, to);
        }
        if how == Rename::Exchange && old.is_none() {
            return refused(ErrorKind::NotFound, to);
        }
        if is_dir(number) && self.holds(number, to_dir) {
            return refused(ErrorKind::InvalidInput, from);
        }
        match (how, old) {
            (Rename::Exchange, Some(old)) if is_dir(old) && self.holds(old, from_dir) => {
                return refused(ErrorKind::InvalidInput, to);
            }
            (Rename::Replace, Some(old)) if old != number => match (is_dir(number), is_dir(old)) {
                (true, false) => return refused(ErrorKind::NotADirectory, to),
                // The error of the kernel if the new name is a directory above the moved one.
                (_, true) if self.holds(old, from_dir) => return refused(ErrorKind::NotEmpty, to),
                (false, true) => return refused(ErrorKind::IsADirectory, to),
                (true, true) if !self.names(old).is_empty() => return refused(ErrorKind::NotEmpty, to),
                _ => {}
            },
            _ => {}
        }
        if old == Some(number) {
            return Ok(());
        }
        let moved_dir = from_dir != to_dir && (is_dir(number) || old.is_some_and(is_dir));
        let replaced_dir = old.filter(|old| how == Rename::Replace && is_dir(*old));
        let left = old.filter(|_| how == Rename::Exchange);
        self.put(from_dir, from, left);
        self.put(to_dir, to, Some(number));
        if let Some(old) = old.filter(|_| how != Rename::Exchange) {
            self.unnamed(old);
        }
        for dir in [from_dir, to_dir] {
            self.touch_dir(dir);
        }
        let now = self.stamp();
        self.inode_mut(number).changed = now;
        let slots = vec![
            Slot { dir: from_dir, name: from.to_vec(), before: Some(number), after: left },
            Slot { dir: to_dir, name: to.to_vec(), before: old, after: Some(number) },
        ];
        self.record(NameChange { slots, emptied: replaced_dir, after_all: moved_dir });
        Ok(())
    }

    pub(super) fn change(&mut self, number: Number, change: &Change) -> Result<()> {
        let inode = self.inode(number);
        if change.size_bytes.is_some() {
            return Err(Error::new(ErrorKind::InvalidInput, "change the size", &inode.parent_and_name.1));
        }
        if change.permissions.is_some() && inode.kind() == Kind::Symlink {
            return Err(Error::new(ErrorKind::Unsupported, "change the mode", &inode.parent_and_name.1));
        }
        let now = self.stamp();
        let inode = self.inode_mut(number);
        let old = inode.attributes;
        inode.attributes = Attributes {
            permissions: change.permissions.map_or(old.permissions, |permissions| permissions & 0o7777),
            uid: change.uid.unwrap_or(old.uid),
            gid: change.gid.unwrap_or(old.gid),
            modified: change.modified.unwrap_or(old.modified),
        };
        inode.changed = now;
        Ok(())
    }

    // Files.

    /// Changes the data of a file and records the change as unsynced.
    pub(super) fn change_bytes(&mut self, number: Number, what: Unsynced) {
        let now = self.stamp();
        let inode = self.inode_mut(number);
        (inode.attributes.modified, inode.changed) = (now, now);
        let Content::File { bytes, synced, unsynced } = &mut inode.content else {
            unreachable!("an open file is a file")
        };
        let before = bytes.allocated_bytes();
        what.apply(bytes);
        let after = bytes.allocated_bytes();
        unsynced.push(what);
        Unsynced::keep_bounded(unsynced, synced);
        self.used_bytes = (self.used_bytes + after).saturating_sub(before);
    }

    pub(super) fn file_bytes(&self, number: Number) -> &SparseBytes {
        match &self.inode(number).content {
            Content::File { bytes, .. } => bytes,
            _ => unreachable!("an open file is a file"),
        }
    }

    pub(super) fn write(&mut self, number: Number, from: &[u8], offset: u64) -> Result<()> {
        let fits = (offset).checked_add(from.len() as u64).is_some_and(|end| end <= FILE_BYTES_MAX);
        if !fits {
            return Err(Error::new(ErrorKind::InvalidInput, "write", b""));
        }
        let count = self.file_bytes(number).writable_bytes(offset, from.len(), self.free_bytes());
        if count > 0 {
            self.change_bytes(number, Unsynced::write(offset, &from[..count]));
        }
        if count < from.len() {
            return Err(Error::new(ErrorKind::NoSpace, "write", b""));
        }
        Ok(())
    }

    pub(super) fn set_size(&mut self, number: Number, size_bytes: u64) -> Result<()> {
        if size_bytes > FILE_BYTES_MAX {
            return Err(Error::new(ErrorKind::InvalidInput, "set size", b""));
        }
        self.change_bytes(number, Unsynced::size(size_bytes));
        Ok(())
    }

    pub(super) fn closed(&mut self, number: Number) {
        self.inode_mut(number).handles -= 1;
        self.maybe_unused(number);
    }

    /// Returns a regular file that is to be opened.
    pub(super) fn file(&self, dir: Number, name: &[u8]) -> Result<Number> {
        let number = self.child(dir, name, "open")?;
        let kind = match self.inode(number).kind() {
            Kind::File => return Ok(number),
            Kind::Dir => ErrorKind::IsADirectory,
            _ => ErrorKind::Os(errno::ELOOP),
        };
        Err(Error::new(kind, "open", name))
    }
}
