//! Presents a directory of a file system of the contract, such as a pool, as a directory of
//! `quell-posix`.

use std::any::Any;
use std::sync::Arc;

use quell_posix::{Dir, OpenFile, Stat, WritableDir, WritableFile};
use quell_vfs::{
    Attributes, Change, Context, Cursor, Error, ErrorKind, File, FileSystem, Kind, NewEntry, NodeId, NodeRef,
    OpenMode, ReadAt, Rename, Result, SetXattr, Space, Writable, check_name, resolve,
};

/// A directory of a file system of the contract.
pub struct TreeDir {
    node: Node,
    /// The owner and group of new entries.
    owner: (u32, u32),
}

/// One reference to a node.
struct Node {
    fs: Arc<dyn FileSystem>,
    id: NodeId,
}

impl Node {
    /// Takes ownership of a reference. The root has no reference.
    fn of(fs: &Arc<dyn FileSystem>, found: NodeRef<'_>) -> Node {
        Node { fs: Arc::clone(fs), id: found.into_attributes().node }
    }

    fn writable(&self) -> Result<&dyn Writable> {
        self.fs.writable().ok_or_else(|| Error::new(ErrorKind::ReadOnly, "change", ""))
    }

    fn change(&self, change: &Change) -> Result<()> {
        self.writable()?.change(&Context::OWN, self.id, change).map(drop)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.id != self.fs.root() {
            self.fs.forget(self.id, 1);
        }
    }
}

impl std::fmt::Debug for TreeDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TreeDir").field("node", &self.node.id).finish_non_exhaustive()
    }
}

impl TreeDir {
    /// Opens the directory at `path`. Symbolic links are not followed. New entries get `owner`: a
    /// user and a group.
    ///
    /// # Errors
    ///
    /// As [`resolve`].
    pub fn open(fs: &Arc<dyn FileSystem>, path: &[u8], owner: (u32, u32)) -> Result<TreeDir> {
        let found = resolve(&**fs, &Context::OWN, path)?;
        TreeDir::of(fs, found, owner, path)
    }

    fn of(fs: &Arc<dyn FileSystem>, found: NodeRef<'_>, owner: (u32, u32), name: &[u8]) -> Result<TreeDir> {
        match found.kind {
            Kind::Dir => Ok(TreeDir { node: Node::of(fs, found), owner }),
            _ => Err(Error::new(ErrorKind::NotADirectory, "open", name)),
        }
    }

    fn find(&self, operation: &'static str, name: &[u8]) -> Result<NodeRef<'_>> {
        let found = self.node.fs.lookup(&Context::OWN, self.node.id, name)?;
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, operation, name))
    }

    fn child(&self, name: &[u8]) -> Result<TreeDir> {
        let found = self.find("open", name)?;
        TreeDir::of(&self.node.fs, found, self.owner, name)
    }

    fn new_entry(&self, permissions: u32) -> NewEntry {
        NewEntry { permissions, uid: self.owner.0, gid: self.owner.1 }
    }
}

fn stat_of(found: &Attributes) -> Stat {
    Stat {
        mode: found.mode(),
        uid: found.uid,
        gid: found.gid,
        nlink: found.nlink,
        rdev: found.rdev,
        size_bytes: found.size_bytes,
        blocks: found.blocks,
        modified: found.modified,
        changed: found.changed,
        device: 0,
        inode: found.node.0,
        mount_root: false,
    }
}

impl Dir for TreeDir {
    fn stat_self(&self) -> Result<Stat> {
        self.node.fs.attributes(&Context::OWN, self.node.id).map(|found| stat_of(&found))
    }

    fn names(&self) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.visit(&mut |name, _| {
            names.push(name.to_vec());
            true
        })?;
        Ok(names)
    }

    fn visit(&self, visit: &mut dyn FnMut(&[u8], Option<Kind>) -> bool) -> Result<()> {
        let mut each = |entry: quell_vfs::DirEntry<'_>| visit(entry.name, Some(entry.kind));
        self.node.fs.list(&Context::OWN, self.node.id, Cursor::START, &mut each)
    }

    fn stat(&self, name: &[u8]) -> Result<Stat> {
        check_name(name)?;
        let found = self.node.fs.lookup(&Context::OWN, self.node.id, name)?;
        found.map(|found| stat_of(&found)).ok_or_else(|| Error::new(ErrorKind::NotFound, "stat", name))
    }

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
        let found = self.find("read link", name)?;
        match found.kind {
            Kind::Symlink => self.node.fs.read_link(&Context::OWN, found.node()),
            _ => Err(Error::new(ErrorKind::InvalidInput, "read link", name)),
        }
    }

    fn xattrs(&self, name: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let found = match name.is_empty() {
            true => None,
            false => Some(self.find("list attributes", name)?),
        };
        let node = found.as_ref().map_or(self.node.id, NodeRef::node);
        let mut set = Vec::new();
        for attribute in self.node.fs.xattr_names(&Context::OWN, node)? {
            if let Some(value) = self.node.fs.xattr(&Context::OWN, node, &attribute)? {
                set.push((attribute, value));
            }
        }
        set.sort();
        Ok(set)
    }

    fn open_dir(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
        Ok(Arc::new(self.child(name)?))
    }

    fn enter(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
        self.open_dir(name)
    }

    fn open_file(&self, name: &[u8]) -> Result<Box<dyn OpenFile>> {
        let found = self.find("open", name)?;
        let file = self.node.fs.open(&Context::OWN, found.node())?;
        Ok(Box::new(TreeFile { file, node: Node::of(&self.node.fs, found) }))
    }

    fn open_file_and_stat(&self, name: &[u8]) -> Result<(Box<dyn OpenFile>, Stat)> {
        let found = self.find("open", name)?;
        let stat = stat_of(&found);
        let file = self.node.fs.open(&Context::OWN, found.node())?;
        Ok((Box::new(TreeFile { file, node: Node::of(&self.node.fs, found) }), stat))
    }
}

impl WritableDir for TreeDir {
    fn open_writable_dir(&self, name: &[u8]) -> Result<Arc<dyn WritableDir>> {
        check_name(name)?;
        Ok(Arc::new(self.child(name)?))
    }

    fn open_writable_file(&self, name: &[u8]) -> Result<Box<dyn WritableFile>> {
        check_name(name)?;
        let found = self.find("open", name)?;
        let file = self.node.writable()?.open_as(&Context::OWN, found.node(), OpenMode::READ_WRITE)?;
        Ok(Box::new(TreeFile { file, node: Node::of(&self.node.fs, found) }))
    }

    fn create_file(&self, name: &[u8], permissions: u32) -> Result<Box<dyn WritableFile>> {
        check_name(name)?;
        let new = self.new_entry(permissions);
        let fs = self.node.writable()?;
        let (found, file) = fs.create(&Context::OWN, self.node.id, name, new, OpenMode::READ_WRITE)?;
        Ok(Box::new(TreeFile { file, node: Node::of(&self.node.fs, found) }))
    }

    fn make_dir(&self, name: &[u8], permissions: u32) -> Result<()> {
        check_name(name)?;
        let new = self.new_entry(permissions);
        self.node.writable()?.make_dir(&Context::OWN, self.node.id, name, new).map(drop)
    }

    fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<()> {
        check_name(name)?;
        let new = self.new_entry(0o777);
        self.node.writable()?.make_symlink(&Context::OWN, self.node.id, name, target, new).map(drop)
    }

    fn remove(&self, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.node.writable()?.remove(&Context::OWN, self.node.id, name)
    }

    fn remove_dir(&self, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.node.writable()?.remove_dir(&Context::OWN, self.node.id, name)
    }

    fn rename(&self, from: &[u8], to_dir: &dyn WritableDir, to: &[u8], how: Rename) -> Result<()> {
        check_name(from)?;
        check_name(to)?;
        let invalid = || Error::new(ErrorKind::InvalidInput, "rename", from);
        let to_dir = to_dir.as_any().downcast_ref::<TreeDir>();
        let to_dir =
            to_dir.filter(|to_dir| Arc::ptr_eq(&to_dir.node.fs, &self.node.fs)).ok_or_else(invalid)?;
        self.node.writable()?.rename(&Context::OWN, self.node.id, from, to_dir.node.id, to, how)
    }

    fn change(&self, name: &[u8], change: &Change) -> Result<()> {
        if change.size_bytes.is_some() {
            return Err(Error::new(ErrorKind::InvalidInput, "change", name));
        }
        if name.is_empty() {
            return self.node.change(change);
        }
        check_name(name)?;
        let found = self.find("change", name)?;
        self.node.writable()?.change(&Context::OWN, found.node(), change).map(drop)
    }

    fn set_xattr(&self, name: &[u8], attribute: &[u8], value: Option<&[u8]>) -> Result<()> {
        let found = match name.is_empty() {
            true => None,
            false => Some(self.find("set attributes", name)?),
        };
        let node = found.as_ref().map_or(self.node.id, NodeRef::node);
        let fs = self.node.writable()?;
        match value {
            Some(value) => fs.set_xattr(&Context::OWN, node, attribute, value, SetXattr::Any),
            None => fs.remove_xattr(&Context::OWN, node, attribute),
        }
    }

    fn sync(&self) -> Result<()> {
        self.node.writable()?.sync_dir(&Context::OWN, self.node.id)
    }

    fn space(&self) -> Result<Space> {
        self.node.writable()?.space()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An open file, which is a reference to its node.
struct TreeFile<F: ?Sized> {
    file: Box<F>,
    node: Node,
}

impl<F: File + ?Sized> ReadAt for TreeFile<F> {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(into, offset)
    }
}

impl OpenFile for TreeFile<dyn File> {
    fn stat(&self) -> Result<Stat> {
        self.file.attributes().map(|found| stat_of(&found))
    }

    fn sync(&self) -> Result<()> {
        let file = self.node.writable()?.open_as(&Context::OWN, self.node.id, OpenMode::WRITE)?;
        file.sync().and(file.close())
    }
}

impl OpenFile for TreeFile<dyn quell_vfs::WritableFile> {
    fn stat(&self) -> Result<Stat> {
        self.file.attributes().map(|found| stat_of(&found))
    }

    fn sync(&self) -> Result<()> {
        self.file.sync()
    }
}

impl WritableFile for TreeFile<dyn quell_vfs::WritableFile> {
    fn write_pieces_at(&self, pieces: &[&[u8]], offset: u64) -> Result<()> {
        let mut at = offset;
        for piece in pieces {
            self.file.write_at(piece, at)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn write_back(&self) -> Result<()> {
        self.file.publish()
    }

    fn set_size(&self, size_bytes: u64) -> Result<()> {
        self.node.change(&Change { size_bytes: Some(size_bytes), ..Change::default() })
    }

    fn change(&self, change: &Change) -> Result<()> {
        if change.size_bytes.is_some() {
            return Err(Error::new(ErrorKind::InvalidInput, "change", b""));
        }
        self.node.change(change)
    }
}
