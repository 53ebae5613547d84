//! A directory in memory, created from a described tree. It gives the same results as
//! `PosixDir`.

use std::sync::Arc;

use quell_posix::{Dir, OpenFile, Stat};
use quell_vfs::{Error, ErrorKind, Kind, ReadAt, Result, errno};

use crate::tree::{NodeNumber, Tree};

/// An open directory of a described tree.
#[derive(Debug, Clone)]
pub struct MemoryDir {
    tree: Arc<Tree>,
    link_counts: Arc<Vec<u32>>,
    number: NodeNumber,
    can_list: bool,
}

impl MemoryDir {
    /// Opens the root of a tree.
    pub fn new(tree: Arc<Tree>) -> MemoryDir {
        let link_counts = Arc::new(tree.link_counts());
        MemoryDir { tree, link_counts, number: Tree::ROOT, can_list: true }
    }

    fn child(&self, name: &[u8], operation: &'static str) -> Result<NodeNumber> {
        quell_vfs::check_name(name)?;
        let found = self.tree.node(self.number).children.get(name).copied();
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, operation, name))
    }

    fn child_dir(&self, name: &[u8], can_list: bool) -> Result<Arc<dyn Dir>> {
        let number = self.child(name, "open")?;
        if self.tree.node(number).kind != Kind::Dir {
            return Err(Error::new(ErrorKind::NotADirectory, "open", name));
        }
        Ok(Arc::new(MemoryDir { number, can_list, ..self.clone() }))
    }
}

fn stat_of(tree: &Tree, link_counts: &[u32], number: NodeNumber) -> Stat {
    let node = tree.node(number);
    Stat {
        mode: node.kind.mode_bits() | node.permissions,
        uid: node.uid,
        gid: node.gid,
        nlink: link_counts[number],
        rdev: node.rdev,
        size_bytes: node.size_bytes,
        blocks: node.blocks,
        modified: node.modified,
        changed: node.changed,
        device: 1,
        inode: number as u64 + 1,
        mount_root: false,
    }
}

impl Dir for MemoryDir {
    fn stat_self(&self) -> Result<Stat> {
        Ok(stat_of(&self.tree, &self.link_counts, self.number))
    }

    fn names(&self) -> Result<Vec<Vec<u8>>> {
        if !self.can_list {
            // The directory was opened with `enter`.
            return Err(Error::new(ErrorKind::Os(errno::EBADF), "list", b""));
        }
        // Not sorted, because file systems do not guarantee an order and callers must not rely on
        // one.
        Ok(self.tree.node(self.number).children.keys().rev().cloned().collect())
    }

    fn stat(&self, name: &[u8]) -> Result<Stat> {
        Ok(stat_of(&self.tree, &self.link_counts, self.child(name, "stat")?))
    }

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
        let node = self.tree.node(self.child(name, "read link")?);
        match node.kind {
            Kind::Symlink => Ok(node.target.clone()),
            _ => Err(Error::new(ErrorKind::InvalidInput, "read link", name)),
        }
    }

    fn xattrs(&self, name: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let number = if name.is_empty() { self.number } else { self.child(name, "list attributes")? };
        Ok(self.tree.node(number).xattrs.clone().into_iter().collect())
    }

    fn open_dir(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
        self.child_dir(name, true)
    }

    fn enter(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
        self.child_dir(name, false)
    }

    fn open_file(&self, name: &[u8]) -> Result<Box<dyn OpenFile>> {
        let number = self.child(name, "open")?;
        let kind = match self.tree.node(number).kind {
            Kind::File => {
                let (tree, link_counts) = (self.tree.clone(), self.link_counts.clone());
                return Ok(Box::new(MemoryFile { tree, link_counts, number }));
            }
            Kind::Dir => ErrorKind::IsADirectory,
            Kind::Symlink => ErrorKind::Os(errno::ELOOP),
            _ => ErrorKind::Os(errno::ENXIO),
        };
        Err(Error::new(kind, "open", name))
    }
}

#[derive(Debug)]
struct MemoryFile {
    tree: Arc<Tree>,
    link_counts: Arc<Vec<u32>>,
    number: NodeNumber,
}

impl ReadAt for MemoryFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.tree.node(self.number).read_at(into, offset))
    }
}

impl OpenFile for MemoryFile {
    fn stat(&self) -> Result<Stat> {
        Ok(stat_of(&self.tree, &self.link_counts, self.number))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
