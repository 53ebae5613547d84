//! A tree with recorded blocks in memory. A file of the image is opened without a request to the
//! file system below, its blocks are copied from memory, and only the first read of another block
//! opens the file itself.

use std::sync::Arc;

use quell_vfs::{
    Attributes, Capabilities, Context, Cursor, DirEntry, File, FileSystem, Kind, NodeId, NodeRef, ReadAt,
    Result,
};

use crate::open_override::{OpenOverride, Opener};
use crate::recorded_files::RecordedBlocks;
use crate::source_file::SourceFile;

/// A covered tree, with recorded blocks served from a boot image.
pub type BootFs = OpenOverride<Arc<RecordedBlocks>>;

impl Opener for Arc<RecordedBlocks> {
    fn open(
        &self,
        context: &Context<'_>,
        inner: &Arc<dyn FileSystem>,
        node: NodeId,
    ) -> Result<Box<dyn File>> {
        if !self.has(node) {
            return inner.open(context, node);
        }
        let source = SourceFile::new(inner.clone(), node);
        Ok(Box::new(RecordedFile { blocks: self.clone(), node, source }))
    }
}

struct RecordedFile {
    blocks: Arc<RecordedBlocks>,
    node: NodeId,
    /// The file below, which the first read of a block that is not in memory opens.
    source: SourceFile,
}

impl File for RecordedFile {
    fn attributes(&self) -> Result<Attributes> {
        self.source.attributes()
    }
}

impl ReadAt for RecordedFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let file = self.blocks.file(self.node).expect("only a recorded file is opened here");
        let done = self.blocks.read(&file, into, offset);
        let wanted = (into.len() as u64).min(file.size_bytes.saturating_sub(offset)) as usize;
        if done == wanted {
            return Ok(done);
        }
        // The rest is read at once: blocks in memory beyond the gap do not justify a second read.
        let rest = self.source.open()?.read_at(&mut into[done..], offset + done as u64)?;
        self.blocks.missed(rest);
        Ok(done + rest)
    }
}

/// The directories of a tree, and only those files that have blocks in memory: a layer above other
/// file systems. It grants every user read access, because access is checked above it, where the
/// owners of the tree are known.
#[derive(Debug)]
pub struct RecordedFilesLayer {
    inner: BootFs,
    blocks: Arc<RecordedBlocks>,
}

impl RecordedFilesLayer {
    /// Returns the layer for the recorded files of `tree`.
    pub fn new(tree: Arc<dyn FileSystem>, blocks: Arc<RecordedBlocks>) -> RecordedFilesLayer {
        RecordedFilesLayer { inner: BootFs::new(tree, blocks.clone()), blocks }
    }

    fn shows(&self, kind: Kind, node: NodeId) -> bool {
        kind == Kind::Dir || self.blocks.has(node)
    }
}

fn open_to_all(attributes: Attributes) -> Attributes {
    let readable = if attributes.kind == Kind::Dir { 0o555 } else { 0o444 };
    Attributes { permissions: attributes.permissions | readable, ..attributes }
}

impl FileSystem for RecordedFilesLayer {
    fn capabilities(&self) -> Capabilities {
        Capabilities { xattrs: false, acls: false, ..self.inner.capabilities() }
    }

    fn root(&self) -> NodeId {
        self.inner.root()
    }

    fn lookup(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        let found =
            self.inner.lookup(context, dir, name)?.filter(|found| self.shows(found.kind, found.node()));
        Ok(found.map(|found| {
            let attributes = open_to_all(*found);
            found.with_attributes(attributes)
        }))
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId) -> Result<Attributes> {
        self.inner.attributes(context, node).map(open_to_all)
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        self.inner.parent(node)
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        self.inner.path(node)
    }

    fn list(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.inner.list(context, dir, after, &mut |entry| {
            let attributes = entry.attributes.map(open_to_all);
            !self.shows(entry.kind, entry.node) || visit(DirEntry { attributes, ..entry })
        })
    }

    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        self.inner.read_link(context, node)
    }

    fn xattr(&self, _: &Context<'_>, _node: NodeId, _name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn xattr_names(&self, _: &Context<'_>, _node: NodeId) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        self.inner.open(context, node)
    }

    fn forget(&self, node: NodeId, references: u64) {
        self.inner.forget(node, references);
    }
}
