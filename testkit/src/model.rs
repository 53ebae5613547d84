//! The reference model: a read-only file system that uses a described tree directly, and is simple
//! enough to be verified by reading. Other implementations are compared with it.

use std::sync::Arc;
use std::time::Instant;

use quell_vfs::{
    Attributes, Capabilities, Context, Cursor, DirEntry, Error, ErrorKind, File, FileSystem, Kind,
    NAME_BYTES_MAX, NodeId, NodeRef, ReadAt, Result,
};

use crate::tree::{NodeNumber, Tree, TreeNode};

/// A described tree as a file system. Nodes have the same numbers as in the tree.
#[derive(Debug)]
pub struct Model {
    tree: Arc<Tree>,
    link_counts: Vec<u32>,
    /// One path of each node; `None` if its last name was removed.
    paths: Vec<Option<Vec<u8>>>,
    parents: Vec<NodeNumber>,
    keeps_deadlines: bool,
}

impl Model {
    /// Returns the file system of a tree.
    pub fn new(tree: Arc<Tree>) -> Model {
        let mut paths = vec![None; tree.node_count()];
        let mut parents = vec![Tree::ROOT; tree.node_count()];
        let all = tree.paths();
        for (path, number) in &all {
            paths[*number] = Some(path.clone());
            for child in tree.node(*number).children.values() {
                parents[*child] = *number;
            }
        }
        Model { link_counts: tree.link_counts(), paths, parents, tree, keeps_deadlines: false }
    }

    /// Returns the same file system, which refuses operations whose deadline has passed, as a layer
    /// with servers does. Without this it ignores deadlines, as a layer on a local backend does.
    pub fn with_deadlines(self) -> Model {
        Model { keeps_deadlines: true, ..self }
    }

    fn check_deadline(&self, context: &Context<'_>) -> Result<()> {
        match context.deadline {
            Some(deadline) if self.keeps_deadlines && deadline <= Instant::now() => {
                Err(Error::new(ErrorKind::TimedOut, "wait", b""))
            }
            _ => Ok(()),
        }
    }

    /// Returns the tree.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    fn number(&self, node: NodeId) -> Result<NodeNumber> {
        match usize::try_from(node.0) {
            Ok(number) if self.paths.get(number).is_some_and(Option::is_some) => Ok(number),
            _ => Err(Error::new(ErrorKind::Stale, "node", node.0.to_string())),
        }
    }

    fn node(&self, node: NodeId) -> Result<&TreeNode> {
        Ok(self.tree.node(self.number(node)?))
    }

    fn dir(&self, node: NodeId) -> Result<&TreeNode> {
        match self.node(node)? {
            dir if dir.kind == Kind::Dir => Ok(dir),
            _ => Err(Error::new(ErrorKind::NotADirectory, "look into", self.path(node)?)),
        }
    }

    fn attributes_of(&self, number: NodeNumber) -> Attributes {
        let node = self.tree.node(number);
        Attributes {
            node: NodeId(number as u64),
            kind: node.kind,
            permissions: node.permissions,
            uid: node.uid,
            gid: node.gid,
            nlink: self.link_counts[number],
            rdev: node.rdev,
            size_bytes: node.size_bytes,
            blocks: node.blocks,
            modified: node.modified,
            changed: node.changed,
        }
    }

    fn some_node(&self, is: impl Fn(&TreeNode) -> bool) -> bool {
        (0..self.tree.node_count()).any(|number| self.paths[number].is_some() && is(self.tree.node(number)))
    }
}

impl FileSystem for Model {
    fn capabilities(&self) -> Capabilities {
        let is_acl = |name: &Vec<u8>| name.starts_with(b"system.posix_acl_");
        Capabilities {
            immutable: true,
            xattrs: self.some_node(|node| !node.xattrs.is_empty()),
            acls: self.some_node(|node| node.xattrs.keys().any(is_acl)),
            deadlines: self.keeps_deadlines,
        }
    }

    fn root(&self) -> NodeId {
        NodeId(Tree::ROOT as u64)
    }

    fn lookup(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        self.check_deadline(context)?;
        let dir = self.dir(dir)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, "look up", name));
        }
        Ok(dir.children.get(name).map(|number| NodeRef::permanent(self.attributes_of(*number))))
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId) -> Result<Attributes> {
        self.check_deadline(context)?;
        Ok(self.attributes_of(self.number(node)?))
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        Ok(NodeId(self.parents[self.number(node)?] as u64))
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        Ok(self.paths[self.number(node)?].clone().expect("a node with a number has a path"))
    }

    fn list(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.check_deadline(context)?;
        let skip = usize::try_from(after.0).unwrap_or(usize::MAX);
        for (i, (name, number)) in self.dir(dir)?.children.iter().enumerate().skip(skip) {
            let attributes = self.attributes_of(*number);
            let (next, node, kind) = (Cursor(i as u64 + 1), attributes.node, attributes.kind);
            if !visit(DirEntry { name, next, node, kind, attributes: Some(attributes) }) {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        self.check_deadline(context)?;
        match self.node(node)? {
            link if link.kind == Kind::Symlink => Ok(link.target.clone()),
            _ => Err(Error::new(ErrorKind::InvalidInput, "read link", self.path(node)?)),
        }
    }

    fn xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.check_deadline(context)?;
        Ok(self.node(node)?.xattrs.get(name).cloned())
    }

    fn xattr_names(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.check_deadline(context)?;
        Ok(self.node(node)?.xattrs.keys().cloned().collect())
    }

    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        self.check_deadline(context)?;
        let kind = match self.node(node)?.kind {
            Kind::File => {
                let (tree, number) = (self.tree.clone(), self.number(node)?);
                return Ok(Box::new(ModelFile { tree, number, attributes: self.attributes_of(number) }));
            }
            Kind::Dir => ErrorKind::IsADirectory,
            _ => ErrorKind::InvalidInput,
        };
        Err(Error::new(kind, "open", self.path(node)?))
    }

    /// Node numbers are permanent.
    fn forget(&self, _: NodeId, _: u64) {}
}

#[derive(Debug)]
struct ModelFile {
    tree: Arc<Tree>,
    number: NodeNumber,
    attributes: Attributes,
}

impl ReadAt for ModelFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.tree.node(self.number).read_at(into, offset))
    }
}

impl File for ModelFile {
    fn attributes(&self) -> Result<Attributes> {
        Ok(self.attributes)
    }
}
