//! A file system in memory, simple enough to be verified by reading, with the faults that the tests
//! need.

#![allow(dead_code)] // each test program uses only a part of this file

use std::collections::HashMap;
use std::sync::Arc;

use quell_vfs::{
    Attributes, Capabilities, Context, Cursor, DirEntry, Error, ErrorKind, File, FileSystem, Kind, NodeId,
    NodeRef, ReadAt, Result, Time,
};

pub const ROOT: NodeId = NodeId(0);

/// The result of reading a file.
#[derive(Clone)]
pub enum Content {
    Bytes(Arc<[u8]>),
    /// `size_bytes` bytes, each the low byte of its offset divided by 4,096.
    Pattern,
    /// An open returns this error.
    Refused(ErrorKind),
    /// A read panics.
    Panic,
}

struct Node {
    attributes: Attributes,
    parent: NodeId,
    name: Vec<u8>,
    entries: Vec<(Vec<u8>, NodeId)>,
    by_name: HashMap<Vec<u8>, NodeId>,
    target: Vec<u8>,
    content: Content,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

pub struct Memory {
    nodes: Vec<Node>,
    pub can: Capabilities,
}

impl Memory {
    pub fn new() -> Memory {
        let can = Capabilities { immutable: true, ..Capabilities::default() };
        let mut memory = Memory { nodes: Vec::new(), can };
        memory.push(ROOT, b"", Kind::Dir, 0o755);
        memory
    }

    fn push(&mut self, parent: NodeId, name: &[u8], kind: Kind, permissions: u32) -> NodeId {
        let node = NodeId(self.nodes.len() as u64);
        let attributes = Attributes {
            node,
            kind,
            permissions,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            nlink: 1,
            rdev: 0,
            size_bytes: 0,
            blocks: 0,
            modified: Time { seconds: 1_700_000_000, nanoseconds: 123_456_789 },
            changed: Time { seconds: 1_700_000_001, nanoseconds: 987_654_321 },
        };
        self.nodes.push(Node {
            attributes,
            parent,
            name: name.to_vec(),
            entries: Vec::new(),
            by_name: HashMap::new(),
            target: Vec::new(),
            content: Content::Bytes(Arc::from([])),
            xattrs: Vec::new(),
        });
        node
    }

    /// Adds a node of any kind with a name in `dir`.
    pub fn add(&mut self, dir: NodeId, name: impl AsRef<[u8]>, kind: Kind, permissions: u32) -> NodeId {
        let node = self.push(dir, name.as_ref(), kind, permissions);
        self.link(dir, name, node);
        node
    }

    pub fn dir(&mut self, dir: NodeId, name: impl AsRef<[u8]>) -> NodeId {
        self.add(dir, name, Kind::Dir, 0o755)
    }

    pub fn file(&mut self, dir: NodeId, name: impl AsRef<[u8]>, bytes: &[u8]) -> NodeId {
        let node = self.add(dir, name, Kind::File, 0o644);
        self.resize(node, bytes.len() as u64);
        self.nodes[node.0 as usize].content = Content::Bytes(bytes.into());
        node
    }

    pub fn file_with(
        &mut self,
        dir: NodeId,
        name: impl AsRef<[u8]>,
        size_bytes: u64,
        content: Content,
    ) -> NodeId {
        let node = self.add(dir, name, Kind::File, 0o644);
        self.resize(node, size_bytes);
        self.nodes[node.0 as usize].content = content;
        node
    }

    fn resize(&mut self, node: NodeId, size_bytes: u64) {
        let attributes = self.attributes_mut(node);
        attributes.size_bytes = size_bytes;
        attributes.blocks = size_bytes.div_ceil(512);
    }

    pub fn symlink(&mut self, dir: NodeId, name: impl AsRef<[u8]>, target: &[u8]) -> NodeId {
        let node = self.add(dir, name, Kind::Symlink, 0o777);
        self.nodes[node.0 as usize].target = target.to_vec();
        self.attributes_mut(node).size_bytes = target.len() as u64;
        node
    }

    /// Adds a name for a node (also used for the first name).
    pub fn link(&mut self, dir: NodeId, name: impl AsRef<[u8]>, node: NodeId) {
        let dir = &mut self.nodes[dir.0 as usize];
        dir.entries.push((name.as_ref().to_vec(), node));
        assert!(dir.by_name.insert(name.as_ref().to_vec(), node).is_none());
    }

    pub fn xattr(&mut self, node: NodeId, name: &[u8], value: &[u8]) {
        self.nodes[node.0 as usize].xattrs.push((name.to_vec(), value.to_vec()));
    }

    pub fn attributes_mut(&mut self, node: NodeId) -> &mut Attributes {
        &mut self.nodes[node.0 as usize].attributes
    }

    fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.0 as usize]
    }
}

impl FileSystem for Memory {
    fn capabilities(&self) -> Capabilities {
        self.can
    }

    fn root(&self) -> NodeId {
        ROOT
    }

    fn lookup(&self, _: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        if name.len() > quell_vfs::NAME_BYTES_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, "lookup", name));
        }
        Ok(self.node(dir).by_name.get(name).map(|node| NodeRef::permanent(self.node(*node).attributes)))
    }

    fn attributes(&self, _: &Context<'_>, node: NodeId) -> Result<Attributes> {
        Ok(self.node(node).attributes)
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        Ok(self.node(node).parent)
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        if node == ROOT {
            return Ok(Vec::new());
        }
        let mut path = self.path(self.node(node).parent)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&self.node(node).name);
        Ok(path)
    }

    fn list(
        &self,
        _: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let from = after.0 as usize;
        for (index, (name, node)) in self.node(dir).entries.iter().enumerate().skip(from) {
            let attributes = self.node(*node).attributes;
            let (next, node, kind) = (Cursor(index as u64 + 1), *node, attributes.kind);
            if !visit(DirEntry { name, next, node, kind, attributes: Some(attributes) }) {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        Ok(self.node(node).target.clone())
    }

    fn xattr(&self, _: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let xattrs = &self.node(node).xattrs;
        Ok(xattrs.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()))
    }

    fn xattr_names(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        Ok(self.node(node).xattrs.iter().map(|(name, _)| name.clone()).collect())
    }

    fn open(&self, _: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        let Node { attributes, content, .. } = self.node(node);
        match content {
            Content::Refused(kind) => Err(Error::new(*kind, "open", self.path(node)?)),
            content => Ok(Box::new(OpenFile { content: content.clone(), attributes: *attributes })),
        }
    }

    /// Node numbers are permanent.
    fn forget(&self, _: NodeId, _: u64) {}
}

struct OpenFile {
    content: Content,
    attributes: Attributes,
}

impl File for OpenFile {
    fn attributes(&self) -> Result<Attributes> {
        Ok(self.attributes)
    }
}

impl ReadAt for OpenFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let left = self.attributes.size_bytes.saturating_sub(offset);
        let n = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match &self.content {
            Content::Bytes(bytes) if n > 0 => into[..n].copy_from_slice(&bytes[offset as usize..][..n]),
            Content::Pattern => {
                let mut done = 0;
                while done < n {
                    let at = offset + done as u64;
                    let end = n.min(done + 4096 - (at % 4096) as usize);
                    into[done..end].fill((at / 4096) as u8);
                    done = end;
                }
            }
            Content::Panic => panic!("this file panics when it is read (as the test wants)"),
            _ => {}
        }
        Ok(n)
    }
}
