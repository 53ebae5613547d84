//! A tree whose files the nodes of a job share: a file is opened without a request to the file
//! system below, and its blocks come from the job holder of the node. If the nodes do not share the
//! file, the first read opens it.

use std::sync::Arc;

use quell_boot::{OpenOverride, Opener, SourceFile};
use quell_job::BlockClient;
use quell_vfs::{Attributes, Context, File, FileSystem, Kind, NodeId, ReadAt, Result};

/// A covered tree with shared blocks.
pub type SharedBlocksFs = OpenOverride<SharedBlocks>;

/// The shared blocks of one tree.
#[derive(Debug)]
pub struct SharedBlocks {
    pub client: Arc<BlockClient>,
    /// The position of the index in the list of files of the job.
    pub index: u32,
}

impl Opener for SharedBlocks {
    fn open(
        &self,
        context: &Context<'_>,
        inner: &Arc<dyn FileSystem>,
        node: NodeId,
    ) -> Result<Box<dyn File>> {
        let attributes = inner.attributes(context, node)?;
        // With `--on-change refuse`, the number of a node is that of its entry in the index.
        let (Kind::File, Ok(entry)) = (attributes.kind, u32::try_from(node.0)) else {
            return inner.open(context, node);
        };
        Ok(Box::new(SharedFile {
            client: self.client.clone(),
            index: self.index,
            entry,
            size_bytes: attributes.size_bytes,
            source: SourceFile::new(inner.clone(), node),
        }))
    }
}

struct SharedFile {
    client: Arc<BlockClient>,
    index: u32,
    entry: u32,
    size_bytes: u64,
    /// The file below, which is opened if the nodes do not share the file.
    source: SourceFile,
}

impl File for SharedFile {
    fn attributes(&self) -> Result<Attributes> {
        self.source.attributes()
    }
}

impl ReadAt for SharedFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        if !self.source.is_open()
            && let Some(done) = self.client.read_at(self.index, self.entry, self.size_bytes, into, offset)
        {
            return Ok(done);
        }
        self.source.open()?.read_at(into, offset)
    }
}
