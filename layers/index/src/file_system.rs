//! An index as a file system: names and attributes from the image, data from the tree itself.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use lru::LruCache;
use quell_posix::{Dir, OpenFile, Stat};
use quell_threads::lock;
use quell_vfs::{
    Attributes, Capabilities, Context, Cursor, DirEntry, Error, ErrorKind, File, FileState, FileSystem, Kind,
    NAME_BYTES_MAX, NodeId, NodeRef, ReadAt, Result, errno, printable,
};

use crate::builder::{CAPABILITY, is_kept};
use crate::format::{self, Field};
use crate::image::{EntryId, Image, ROOT};
use crate::indexed_file::{is_indexed_root, same_access};

/// Number of directories of the tree that are kept open, so that opening another file in them needs
/// one lookup.
const ENTERED_MAX: NonZeroUsize = NonZeroUsize::new(512).expect("not zero");

/// A node number has the entry in its lower bits. From this bit on it has the number of changes of
/// the file that were seen before.
pub(crate) const VERSION_SHIFT: u32 = 32;

const SET_ID: u32 = 0o6000;

const ACL: &[u8] = b"system.posix_acl_access";

/// Errors of opening a name that is not a regular file (any more): it does not exist, is a
/// directory, a symbolic link, a FIFO or a socket, or a component of the path is not a directory.
const NO_FILE: [i32; 5] = [errno::ENOENT, errno::ENOTDIR, errno::EISDIR, errno::ELOOP, errno::ENXIO];

/// The action of an open if the file is not the indexed file (see [`FileState`]), or does not exist
/// any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnChange {
    /// The open fails with ESTALE, so that old metadata never appears with new bytes.
    #[default]
    Refuse,
    /// The file is opened as it is now. If it has changed since it was first opened, it becomes
    /// another node: an open of the old node fails with ESTALE, and a lookup of the name returns
    /// the new node. The kernel therefore never caches bytes of both states under one node.
    Serve,
    /// The file is opened as it is now, without distinguishing its states.
    Ignore,
}

/// The conditions under which an index is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Whether files are opened with more permissions than the served users have. At every open,
    /// owners, permissions and access control lists of the file, and of the directories on its
    /// path, must then equal those in the index, regardless of [`OnChange`]: a user must not read
    /// data through the index to which the original denies access.
    pub serves_others: bool,
    /// Whether the index belongs to root. Set-id bits, devices and file capabilities of another
    /// index are not shown to other users.
    pub index_is_roots: bool,
    /// Whether the process is in a user namespace that maps users to other ids, or not at all.
    /// Owners are then compared only if other users are served.
    pub owners_unknown: bool,
}

impl Default for Rules {
    /// Returns the rules of a user's own view.
    fn default() -> Rules {
        Rules { serves_others: false, index_is_roots: true, owners_unknown: false }
    }
}

/// The file system of a covered tree.
pub struct IndexFs {
    image: Arc<Image>,
    root: Arc<Entered>,
    on_change: OnChange,
    rules: Rules,
    /// Whether inode numbers distinguish files.
    has_inodes: bool,
    /// Whether the tree is on the file system where it was indexed.
    on_indexed_file_system: bool,
    entered: Mutex<LruCache<EntryId, Arc<Entered>>>,
    /// The state of each file at its first open, if the index does not have it.
    versions: Mutex<HashMap<EntryId, Version>>,
}

/// An open directory of the tree.
struct Entered {
    dir: Arc<dyn Dir>,
    entry: EntryId,
    /// The indexed attributes.
    indexed: Attributes,
    above: Option<Arc<Entered>>,
}

impl Drop for Entered {
    /// Drops the chain iteratively: a recursive drop could overflow the stack on a deep tree.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(mut last) = above.and_then(Arc::into_inner) {
            above = last.above.take();
        }
    }
}

/// A state of a file, and the number of states that were seen before it.
#[derive(Debug, Clone, Copy)]
struct Version {
    number: u32,
    state: FileState,
}

impl fmt::Debug for IndexFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexFs").field("image", &self.image).finish_non_exhaustive()
    }
}

impl IndexFs {
    /// Returns the file system. `source` is the root of the described tree on this node.
    pub fn new(image: Arc<Image>, source: Arc<dyn Dir>, on_change: OnChange) -> IndexFs {
        IndexFs::with_rules(image, source, on_change, Rules::default())
    }

    /// Returns the file system with other rules than the rules of a user's own view.
    pub fn with_rules(image: Arc<Image>, source: Arc<dyn Dir>, on_change: OnChange, rules: Rules) -> IndexFs {
        let on_indexed_file_system = source.stat_self().is_ok_and(|root| is_indexed_root(&image, &root));
        let has_inodes = image.has_persistent_inodes();
        let indexed = image.attributes(ROOT);
        let root = Arc::new(Entered { dir: source, entry: ROOT, indexed, above: None });
        tracing::debug!(
            entries = image.entries(),
            ?on_change,
            on_indexed_file_system,
            has_inodes,
            "opened an indexed tree"
        );
        let entered = Mutex::new(LruCache::new(ENTERED_MAX));
        let versions = Mutex::default();
        IndexFs { image, root, on_change, rules, has_inodes, on_indexed_file_system, entered, versions }
    }

    /// Returns the entry of a node, regardless of its version.
    fn entry(&self, node: NodeId) -> Result<EntryId> {
        let (entry, version) = (node.0 as u32, node.0 >> VERSION_SHIFT);
        if entry < self.image.entries() && (version == 0 || self.on_change == OnChange::Serve) {
            return Ok(entry);
        }
        // The handle belongs to another generation.
        Err(Error::new(ErrorKind::Stale, "node", node.0.to_string()))
    }

    /// Returns the attributes that are shown, without the privileges that only an index of root may
    /// give.
    fn shown(&self, entry: EntryId) -> Attributes {
        let mut attributes = self.image.attributes(entry);
        if self.rules.serves_others && !self.rules.index_is_roots {
            if matches!(attributes.kind, Kind::CharDevice | Kind::BlockDevice) {
                (attributes.kind, attributes.permissions, attributes.rdev) = (Kind::File, 0, 0);
                (attributes.size_bytes, attributes.blocks) = (0, 0);
            }
            if attributes.kind != Kind::Dir {
                attributes.permissions &= !SET_ID;
            }
        }
        if self.on_change == OnChange::Serve && attributes.kind == Kind::File {
            let version = self.versions().get(&(attributes.node.0 as u32)).map_or(0, |known| known.number);
            attributes.node.0 |= u64::from(version) << VERSION_SHIFT;
        }
        attributes
    }

    /// Returns whether an attribute is shown. An index that was not created by the builder may have
    /// any attribute.
    fn shows_xattr(&self, name: &[u8]) -> bool {
        is_kept(name) && (name != CAPABILITY || !self.rules.serves_others || self.rules.index_is_roots)
    }

    /// Returns the entry of a directory whose content is known.
    fn known_dir(&self, node: NodeId, operation: &'static str) -> Result<EntryId> {
        let entry = self.entry(node)?;
        if self.image.kind(entry) != Kind::Dir {
            return Err(Error::new(ErrorKind::NotADirectory, operation, self.image.path(entry)));
        }
        if self.image.extra(entry, Field::Unknown).is_some() {
            return Err(Error::new(ErrorKind::PermissionDenied, operation, self.image.path(entry)));
        }
        Ok(entry)
    }

    fn stale(&self, entry: EntryId) -> Error {
        let path = self.image.path(entry);
        tracing::debug!(path = %printable(&path), "refused a file that differs from the index");
        let source = Some("it has changed since it was indexed".into());
        Error { source, ..Error::new(ErrorKind::Stale, "open", path) }
    }

    /// Checks that the permissions of each directory on the path still equal the indexed ones, if
    /// other users are served. They may have changed since the directory was opened.
    fn check_ancestors(&self, last: &Entered) -> Result<()> {
        let mut at = Some(last);
        while let Some(Entered { dir, entry, indexed, above }) = at {
            self.check_access(*entry, indexed, &dir.stat_self_cached()?)?;
            at = above.as_deref();
        }
        Ok(())
    }

    /// Returns an error if a user may have lost an access that the index grants.
    fn check_access(&self, entry: EntryId, indexed: &Attributes, now: &Stat) -> Result<()> {
        let others_may = if indexed.kind == Kind::Dir { 0o001 } else { 0o004 };
        let open_to_all = self.on_change != OnChange::Refuse && now.mode & others_may != 0;
        if open_to_all || same_access(indexed, now, true) {
            return Ok(());
        }
        Err(self.stale(entry))
    }

    fn check_acl(&self, entry: EntryId, now: Option<&[u8]>) -> Result<()> {
        let mut indexed = self.image.xattrs(entry);
        let indexed = indexed.find(|(name, _)| *name == ACL).map(|(_, list)| list);
        if indexed == now { Ok(()) } else { Err(self.stale(entry)) }
    }

    /// Checks that the opened file, with the attributes `now`, is the indexed one, or the version
    /// that `node` identifies.
    fn check(&self, node: NodeId, entry: EntryId, file: &dyn OpenFile, now: &Stat) -> Result<()> {
        let indexed = self.image.attributes(entry);
        if now.kind() != Some(Kind::File) {
            return Err(self.stale(entry));
        }
        if self.rules.serves_others {
            self.check_access(entry, &indexed, now)?;
            // In an index that belongs to root, a changed access control list shows as a changed
            // status change time.
            if !self.rules.index_is_roots {
                self.check_acl(entry, file.acl()?.as_deref())?;
            }
        }
        let state = now.state();
        let owners = self.rules.serves_others || !self.rules.owners_unknown;
        let same = match self.on_change {
            OnChange::Ignore => true,
            OnChange::Serve => self.version_of(entry, state) as u64 == node.0 >> VERSION_SHIFT,
            OnChange::Refuse => {
                same_access(&indexed, now, owners)
                    && (now.size_bytes, now.modified) == (indexed.size_bytes, indexed.modified)
                    && match self.indexed_state(entry, &indexed) {
                        Some(before) => before.is_same(&state, self.has_inodes),
                        None => self.version_of(entry, state) == 0,
                    }
            }
        };
        if same { Ok(()) } else { Err(self.stale(entry)) }
    }

    /// Returns the file's indexed state, if inode numbers and status change times are valid on this
    /// file system.
    fn indexed_state(&self, entry: EntryId, indexed: &Attributes) -> Option<FileState> {
        let inode = self.image.inode(entry).filter(|_| self.on_indexed_file_system)?;
        Some(FileState {
            inode,
            nlink: indexed.nlink,
            size_bytes: indexed.size_bytes,
            modified: indexed.modified,
            changed: indexed.changed,
        })
    }

    /// Returns the number of other states of the file that were opened before this one.
    fn version_of(&self, entry: EntryId, state: FileState) -> u32 {
        let mut versions = self.versions();
        let known = versions.entry(entry).or_insert(Version { number: 0, state });
        if !known.state.is_same(&state, self.has_inodes) {
            *known = Version { number: known.number.saturating_add(1), state };
        }
        known.number
    }

    fn versions(&self) -> MutexGuard<'_, HashMap<EntryId, Version>> {
        lock(&self.versions)
    }

    /// Opens the tree's directory of an entry, starting from the nearest ancestor that is open.
    /// Iterative, because recursion could overflow the stack on a deep tree.
    fn enter(&self, entry: EntryId) -> Result<Arc<Entered>> {
        let mut missing = Vec::new();
        let mut at = entry;
        let mut last = loop {
            if at == ROOT {
                break self.root.clone();
            }
            if let Some(entered) = self.entered().get(&at) {
                break entered.clone();
            }
            missing.push(at);
            at = self.image.parent(at);
        };
        while let Some(entry) = missing.pop() {
            // The lock is not held during I/O.
            let dir = last.dir.enter(self.image.name(entry))?;
            if self.rules.serves_others && !self.rules.index_is_roots {
                let set = dir.xattrs(b"")?;
                let list = set.into_iter().find(|(name, _)| name == ACL).map(|(_, list)| list);
                self.check_acl(entry, list.as_deref())?;
            }
            let indexed = self.image.attributes(entry);
            last = Arc::new(Entered { dir, entry, indexed, above: Some(last) });
            self.entered().put(entry, last.clone());
        }
        Ok(last)
    }

    /// Opens a regular file of the tree, and compares it with the index. Returns the state that was
    /// compared.
    ///
    /// # Errors
    /// The errors of [`FileSystem::open`]: `Stale` if the file differs.
    pub fn open_compared(&self, node: NodeId) -> Result<(Box<dyn OpenFile>, FileState)> {
        let entry = self.entry(node)?;
        match self.image.kind(entry) {
            Kind::File => {}
            Kind::Dir => return Err(Error::new(ErrorKind::IsADirectory, "open", self.image.path(entry))),
            _ => return Err(Error::new(ErrorKind::InvalidInput, "open", self.image.path(entry))),
        }
        let opened = self.enter(self.image.parent(entry)).and_then(|above| {
            if self.rules.serves_others {
                self.check_ancestors(&above)?;
            }
            above.dir.open_file_and_stat(self.image.name(entry))
        });
        let (file, now) = match opened {
            Ok(file) => file,
            // The name does not exist, or is not a regular file.
            Err(e) if NO_FILE.contains(&e.errno()) => return Err(self.stale(entry)),
            Err(e) => return Err(e),
        };
        self.check(node, entry, &*file, &now)?;
        Ok((file, now.state()))
    }

    fn entered(&self) -> MutexGuard<'_, LruCache<EntryId, Arc<Entered>>> {
        lock(&self.entered)
    }
}

impl FileSystem for IndexFs {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            immutable: true,
            xattrs: self.image.has_flag(format::FLAG_XATTRS),
            acls: self.image.has_flag(format::FLAG_ACLS),
            deadlines: false,
        }
    }

    fn root(&self) -> NodeId {
        NodeId(ROOT.into())
    }

    fn lookup(&self, _: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        let dir = self.known_dir(dir, "look up in")?;
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, "look up", name));
        }
        Ok(self.image.lookup(dir, name).map(|entry| NodeRef::permanent(self.shown(entry))))
    }

    fn attributes(&self, _: &Context<'_>, node: NodeId) -> Result<Attributes> {
        let shown = self.shown(self.entry(node)?);
        // A node that was looked up before the file changed keeps its number.
        let same = shown.node.0 as u32 == node.0 as u32;
        Ok(Attributes { node: if same { node } else { shown.node }, ..shown })
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        Ok(NodeId(self.image.parent(self.entry(node)?).into()))
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        Ok(self.image.path(self.entry(node)?))
    }

    fn list(
        &self,
        _: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.known_dir(dir, "list")?;
        let children = self.image.children(dir).unwrap_or(0..0);
        // A cursor is the number of children before it.
        let skip = u32::try_from(after.0).unwrap_or(u32::MAX);
        for entry in children.start.saturating_add(skip)..children.end {
            let next = Cursor(u64::from(entry - children.start) + 1);
            let attributes = self.shown(entry);
            let Attributes { node, kind, .. } = attributes;
            let name = self.image.name(entry);
            if !visit(DirEntry { name, next, node, kind, attributes: Some(attributes) }) {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        let entry = self.entry(node)?;
        match self.image.link_target(entry) {
            Some(target) => Ok(target.to_vec()),
            None => Err(Error::new(ErrorKind::InvalidInput, "read link", self.image.path(entry))),
        }
    }

    fn xattr(&self, _: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let entry = self.entry(node)?;
        if !self.shows_xattr(name) {
            return Ok(None);
        }
        let mut set = self.image.xattrs(entry);
        Ok(set.find(|(n, _)| *n == name).map(|(_, value)| value.to_vec()))
    }

    fn xattr_names(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        let names = self.image.xattrs(self.entry(node)?).map(|(name, _)| name);
        Ok(names.filter(|name| self.shows_xattr(name)).map(<[u8]>::to_vec).collect())
    }

    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        let (file, _) = self.open_compared(node)?;
        Ok(Box::new(IndexedFile { file, attributes: self.attributes(context, node)? }))
    }

    /// Node numbers are permanent.
    fn forget(&self, _: NodeId, _: u64) {}
}

/// An open file of the tree, with its attributes in the index.
struct IndexedFile {
    file: Box<dyn OpenFile>,
    attributes: Attributes,
}

impl ReadAt for IndexedFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(into, offset)
    }
}

impl File for IndexedFile {
    fn into_descriptor(self: Box<Self>) -> Option<OwnedFd> {
        self.file.into_descriptor()
    }

    fn attributes(&self) -> Result<Attributes> {
        Ok(self.attributes)
    }
}
