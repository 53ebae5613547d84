//! An index as a file system: names and attributes from the image, data from the tree itself.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;
use quell_backing::Dir;
use quell_fs::{
    Attributes, Capabilities, Cursor, DirEntry, Error, ErrorKind, File, FileSystem, Kind, NAME_BYTES_MAX,
    NodeId, Result, errno,
};

use crate::format::{self, Field};
use crate::image::{EntryId, Image, ROOT};

/// Directories of the tree that stay entered, so that opening a neighbour is one look-up.
const ENTERED_MAX: NonZeroUsize = NonZeroUsize::new(512).expect("not zero");

/// What opening a name answers where no regular file is behind it (any more): nothing, a directory, a
/// symbolic link, a fifo or socket; or the way to it is none.
const NO_FILE: [i32; 5] = [errno::ENOENT, errno::ENOTDIR, errno::EISDIR, errno::ELOOP, errno::ENXIO];

/// What an open does when the file is not the one that was indexed (its size or modification time
/// differs, or it is gone).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnChange {
    /// The open fails with "stale" (ESTALE): never old metadata with new bytes.
    #[default]
    Refuse,
    /// The file is opened as it is now.
    Serve,
}

/// A covered tree.
pub struct IndexFs {
    image: Arc<Image>,
    source: Arc<dyn Dir>,
    on_change: OnChange,
    entered: Mutex<LruCache<EntryId, Arc<dyn Dir>>>,
}

impl fmt::Debug for IndexFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexFs").field("image", &self.image).finish_non_exhaustive()
    }
}

impl IndexFs {
    /// `source` is the root of the tree that the image describes, on this node.
    pub fn new(image: Arc<Image>, source: Arc<dyn Dir>, on_change: OnChange) -> IndexFs {
        IndexFs { image, source, on_change, entered: Mutex::new(LruCache::new(ENTERED_MAX)) }
    }

    fn entry(&self, node: NodeId) -> Result<EntryId> {
        match u32::try_from(node.0) {
            Ok(entry) if entry < self.image.entries() => Ok(entry),
            // A handle from another generation.
            _ => Err(Error::new(ErrorKind::Stale, "node", node.0.to_string())),
        }
    }

    /// A directory whose content is known.
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

    /// The tree's own directory for an entry, from the nearest one above that is entered already. Not
    /// recursive: a tree may be deeper than any stack.
    fn enter(&self, entry: EntryId) -> Result<Arc<dyn Dir>> {
        let mut way = Vec::new();
        let mut at = entry;
        let mut dir = loop {
            if at == ROOT {
                break self.source.clone();
            }
            if let Some(dir) = self.entered().get(&at) {
                break dir.clone();
            }
            way.push(at);
            at = self.image.parent(at);
        };
        while let Some(next) = way.pop() {
            // The lock is not held while the file system is asked.
            dir = dir.enter(self.image.name(next))?;
            self.entered().put(next, dir.clone());
        }
        Ok(dir)
    }

    fn entered(&self) -> MutexGuard<'_, LruCache<EntryId, Arc<dyn Dir>>> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileSystem for IndexFs {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            immutable: true,
            xattrs: self.image.has_flag(format::FLAG_XATTRS),
            acls: self.image.has_flag(format::FLAG_ACLS),
        }
    }

    fn root(&self) -> NodeId {
        NodeId(ROOT.into())
    }

    fn lookup(&self, dir: NodeId, name: &[u8]) -> Result<Option<Attributes>> {
        let dir = self.known_dir(dir, "look up in")?;
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, "look up", name));
        }
        Ok(self.image.lookup(dir, name).map(|entry| self.image.attributes(entry)))
    }

    fn attributes(&self, node: NodeId) -> Result<Attributes> {
        Ok(self.image.attributes(self.entry(node)?))
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        Ok(NodeId(self.image.parent(self.entry(node)?).into()))
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        Ok(self.image.path(self.entry(node)?))
    }

    fn list(&self, dir: NodeId, after: Cursor, visit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let dir = self.known_dir(dir, "list")?;
        let children = self.image.children(dir).unwrap_or(0..0);
        // A cursor is the number of children before it.
        let skip = u32::try_from(after.0).unwrap_or(u32::MAX);
        for entry in children.start.saturating_add(skip)..children.end {
            let next = Cursor(u64::from(entry - children.start) + 1);
            let attributes = self.image.attributes(entry);
            if !visit(DirEntry { name: self.image.name(entry), next, attributes }) {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, node: NodeId) -> Result<Vec<u8>> {
        let entry = self.entry(node)?;
        match self.image.link_target(entry) {
            Some(target) => Ok(target.to_vec()),
            None => Err(Error::new(ErrorKind::InvalidInput, "read link", self.image.path(entry))),
        }
    }

    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut set = self.image.xattrs(self.entry(node)?);
        Ok(set.find(|(n, _)| *n == name).map(|(_, value)| value.to_vec()))
    }

    fn xattr_names(&self, node: NodeId) -> Result<Vec<Vec<u8>>> {
        Ok(self.image.xattrs(self.entry(node)?).map(|(name, _)| name.to_vec()).collect())
    }

    fn open(&self, node: NodeId) -> Result<Box<dyn File>> {
        let entry = self.entry(node)?;
        let indexed = self.image.attributes(entry);
        match indexed.kind {
            Kind::File => {}
            Kind::Dir => return Err(Error::new(ErrorKind::IsADirectory, "open", self.image.path(entry))),
            _ => return Err(Error::new(ErrorKind::InvalidInput, "open", self.image.path(entry))),
        }
        let stale = || Error::new(ErrorKind::Stale, "open", self.image.path(entry));
        let opened =
            self.enter(self.image.parent(entry)).and_then(|dir| dir.open_file(self.image.name(entry)));
        let file = match opened {
            Ok(file) => file,
            // There is nothing of that name, or something that is no file.
            Err(e) if NO_FILE.contains(&e.errno()) => return Err(stale()),
            Err(e) => return Err(e),
        };
        let now = file.stat()?;
        let regular = Kind::from_mode(now.mode) == Some(Kind::File);
        let same = now.size_bytes == indexed.size_bytes && now.modified == indexed.modified;
        if !regular || (!same && self.on_change == OnChange::Refuse) {
            return Err(stale());
        }
        Ok(file)
    }
}
