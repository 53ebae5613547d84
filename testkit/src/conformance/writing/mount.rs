//! An implementation to be checked, and its mounts with shorthand methods for the checks.

use std::any::Any;
use std::sync::Arc;

use quell_vfs::{
    Attributes, Context, FileSystem, NewEntry, NodeId, NodeRef, OpenMode, Writable, WritableFile,
};

/// Mounts of one new, empty store: files created through one mount are visible through the others.
pub struct Mounts {
    /// The mounts.
    pub mounts: Vec<Arc<dyn FileSystem>>,
    /// The resources that must live as long as the mounts.
    pub keep: Option<Box<dyn Any>>,
}

impl std::fmt::Debug for Mounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mounts").field("count", &self.mounts.len()).finish_non_exhaustive()
    }
}

/// One implementation, and the features that it supports.
pub struct WritableImplementation<'a> {
    /// The name for messages.
    pub name: &'a str,
    /// Creates a new store with this number of mounts.
    pub make: &'a dyn Fn(usize) -> Mounts,
    /// The maximum number of mounts of one store. If it is 1, promises about several are not
    /// checked.
    pub mounts_max: usize,
    /// The maximum length of a file name: 255, unless the format needs part of it.
    pub name_bytes_max: usize,
    /// The maximum length of a path: `usize::MAX`, unless the names of directories are not stored
    /// one by one.
    pub path_bytes_max: usize,
    /// The owner of new files.
    pub uid: u32,
    /// The group of new files.
    pub gid: u32,
    /// Whether files can be given to other owners.
    pub owners: bool,
    /// Whether `Rename::Keep` and `Rename::Exchange` work; otherwise they return `Unsupported`.
    pub rename_kinds: bool,
    /// Whether a node other than a directory can have several names; otherwise linking one returns
    /// `Unsupported`.
    pub hard_links: bool,
    /// Whether [`WritableFile::write_zeros`](quell_vfs::WritableFile::write_zeros) is supported.
    pub writes_zeros: bool,
    /// Whether files have locks; otherwise they answer ENOLCK.
    pub locks: bool,
    /// Whether files and directories have `user.` attributes; otherwise setting one returns
    /// `Unsupported`.
    pub xattrs: bool,
}

impl std::fmt::Debug for WritableImplementation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WritableImplementation").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A mount with shorthand methods for tests.
pub(super) struct Mount {
    pub(super) fs: Arc<dyn FileSystem>,
    pub(super) root: NodeId,
    pub(super) new: NewEntry,
    pub(super) new_dir: NewEntry,
    // Declared after the mount, so that it is dropped after it.
    _keep: Option<Box<dyn Any>>,
}

impl WritableImplementation<'_> {
    pub(super) fn mount(&self) -> Mount {
        let Mounts { mut mounts, keep } = (self.make)(1);
        assert_eq!(mounts.len(), 1);
        self.mount_of(mounts.remove(0), keep)
    }

    pub(super) fn mount_of(&self, fs: Arc<dyn FileSystem>, keep: Option<Box<dyn Any>>) -> Mount {
        let new = NewEntry { permissions: 0o644, uid: self.uid, gid: self.gid };
        let new_dir = NewEntry { permissions: 0o755, ..new };
        Mount { root: fs.root(), fs, new, new_dir, _keep: keep }
    }

    /// Returns two mounts of one store, if the implementation supports them.
    pub(super) fn two_mounts(&self) -> Option<TwoMounts> {
        if self.mounts_max < 2 {
            return None;
        }
        let Mounts { mut mounts, keep } = (self.make)(2);
        assert_eq!(mounts.len(), 2);
        let (second, first) = (mounts.remove(1), mounts.remove(0));
        Some(TwoMounts { a: self.mount_of(first, None), b: self.mount_of(second, None), _keep: keep })
    }
}

pub(super) struct TwoMounts {
    pub(super) a: Mount,
    pub(super) b: Mount,
    _keep: Option<Box<dyn Any>>,
}

impl Mount {
    pub(super) fn verbs(&self) -> &dyn Writable {
        self.fs.writable().expect("it may be changed")
    }

    /// Creates a file in the root, open for reading and writing, and keeps the reference.
    pub(super) fn create(&self, name: &str) -> (NodeId, Box<dyn WritableFile>) {
        self.create_in(self.root, name)
    }

    pub(super) fn create_in(&self, dir: NodeId, name: &str) -> (NodeId, Box<dyn WritableFile>) {
        let created =
            self.verbs().create(&Context::OWN, dir, name.as_bytes(), self.new, OpenMode::READ_WRITE);
        let (created, file) = created.unwrap_or_else(|e| panic!("{name}: {e}"));
        (created.into_attributes().node, file)
    }

    /// Creates a file in the root with these bytes, and closes it.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> NodeId {
        let (node, file) = self.create(name);
        file.write_at(bytes, 0).unwrap();
        file.close().unwrap();
        node
    }

    pub(super) fn make_dir(&self, name: &str) -> NodeId {
        let made = self.verbs().make_dir(&Context::OWN, self.root, name.as_bytes(), self.new_dir);
        made.unwrap().into_attributes().node
    }

    pub(super) fn open(&self, node: NodeId) -> Box<dyn WritableFile> {
        self.verbs().open_as(&Context::OWN, node, OpenMode::READ_WRITE).unwrap()
    }

    /// Returns the attributes of an entry, and keeps the reference.
    pub(super) fn lookup(&self, dir: NodeId, name: &str) -> Option<Attributes> {
        let found = self.fs.lookup(&Context::OWN, dir, name.as_bytes());
        found.unwrap_or_else(|e| panic!("{name}: {e}")).map(NodeRef::into_attributes)
    }

    pub(super) fn attributes(&self, node: NodeId) -> Attributes {
        self.fs.attributes(&Context::OWN, node).unwrap()
    }

    /// Opens a file and returns its data.
    pub(super) fn bytes(&self, node: NodeId) -> Vec<u8> {
        let file = self.verbs().open_as(&Context::OWN, node, OpenMode::READ).unwrap();
        let bytes = whole(&*file);
        assert_eq!(self.attributes(node).size_bytes, bytes.len() as u64, "the size is another");
        bytes
    }

    /// Returns the data of the file at a path, or `None` if there is no such entry.
    pub(super) fn bytes_at(&self, path: &str) -> Option<Vec<u8>> {
        let found = quell_vfs::resolve(&*self.fs, &Context::OWN, path.as_bytes());
        found.ok().map(|found| self.bytes(found.node()))
    }
}

/// Returns the data of a small file.
pub(super) fn whole(file: &dyn WritableFile) -> Vec<u8> {
    let mut bytes = vec![0xAA; 1 << 20];
    let count = file.read_at(&mut bytes, 0).unwrap();
    assert!(count < bytes.len(), "no small file");
    bytes.truncate(count);
    bytes
}

pub(super) fn read(file: &dyn WritableFile, offset: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0xAA; count];
    let count = file.read_at(&mut bytes, offset).unwrap();
    bytes.truncate(count);
    bytes
}
