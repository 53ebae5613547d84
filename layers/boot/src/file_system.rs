//! A tree whose hot blocks are in memory: a file of the image is opened without asking anybody, its blocks are copied from
//! memory, and only a block that is not there opens the file itself.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use quell_fs::{File, FileSystem, NodeId, Result, resolve};

use crate::format::BLOCK_BYTES;
use crate::image::{BootFile, BootImage, Contents};
use crate::over::{Open, Over};

/// A covered tree with a boot image on top.
pub type BootFs = Over<Arc<Hot>>;

/// An image that is decoded, and which of the tree's files it has.
pub struct Hot {
    image: BootImage,
    contents: Contents,
    files: HashMap<NodeId, u32>,
    /// Files of the image that the tree no longer has like that; they are served from the tree.
    stale: Vec<Vec<u8>>,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl fmt::Debug for Hot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hot")
            .field("image", &self.image)
            .field("stale", &self.stale.len())
            .finish_non_exhaustive()
    }
}

/// Blocks served so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Served {
    pub from_memory: u64,
    pub from_source: u64,
}

impl Hot {
    /// Finds the image's files in the tree, whose attributes are at hand.
    pub fn new(image: BootImage, contents: Contents, tree: &dyn FileSystem) -> Result<Arc<Hot>> {
        let mut files = HashMap::new();
        let mut stale = Vec::new();
        for number in 0..image.files() {
            let file = image.file(number);
            let now = resolve(tree, file.name).ok();
            match now.filter(|now| now.size_bytes == file.size_bytes && now.modified == file.modified) {
                Some(now) => _ = files.insert(now.node, number),
                None => stale.push(file.name.to_vec()),
            }
        }
        Ok(Arc::new(Hot {
            image,
            contents,
            files,
            stale,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }))
    }

    pub fn image(&self) -> &BootImage {
        &self.image
    }

    pub fn stale(&self) -> &[Vec<u8>] {
        &self.stale
    }

    pub fn served(&self) -> Served {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Served { from_memory: of(&self.hits), from_source: of(&self.misses) }
    }

    /// Copies from memory as far as it goes without a gap.
    fn read(&self, file: &BootFile, into: &mut [u8], offset: u64) -> usize {
        let wanted = (into.len() as u64).min(file.size_bytes.saturating_sub(offset)) as usize;
        let mut done = 0;
        while done < wanted {
            let at = offset + done as u64;
            let within = (at % BLOCK_BYTES as u64) as usize;
            let block = u32::try_from(at / BLOCK_BYTES as u64).ok();
            let Some(content) = block.and_then(|block| self.image.content(file, block)) else { break };
            let length = (BLOCK_BYTES - within).min(wanted - done);
            into[done..done + length].copy_from_slice(&self.contents.block(content)[within..within + length]);
            done += length;
            self.hits.fetch_add(1, Ordering::Relaxed);
        }
        done
    }
}

impl Open for Arc<Hot> {
    fn open(&self, inner: &Arc<dyn FileSystem>, node: NodeId) -> Result<Box<dyn File>> {
        let Some(number) = self.files.get(&node) else { return inner.open(node) };
        let inner = inner.clone();
        Ok(Box::new(HotFile { hot: self.clone(), number: *number, node, inner, source: OnceLock::new() }))
    }
}

struct HotFile {
    hot: Arc<Hot>,
    number: u32,
    node: NodeId,
    inner: Arc<dyn FileSystem>,
    /// Opened by the first miss.
    source: OnceLock<Box<dyn File>>,
}

impl HotFile {
    fn source(&self) -> Result<&dyn File> {
        if self.source.get().is_none() {
            // Two readers may both open it; one file is closed again.
            let _ = self.source.set(self.inner.open(self.node)?);
        }
        Ok(&**self.source.get().expect("just set"))
    }
}

impl File for HotFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let file = self.hot.image.file(self.number);
        let done = self.hot.read(&file, into, offset);
        let wanted = (into.len() as u64).min(file.size_bytes.saturating_sub(offset)) as usize;
        if done == wanted {
            return Ok(done);
        }
        // The rest in one read: what is in memory behind the gap is not worth a second one.
        let rest = self.source()?.read_at(&mut into[done..], offset + done as u64)?;
        self.hot.misses.fetch_add((rest as u64).div_ceil(BLOCK_BYTES as u64), Ordering::Relaxed);
        Ok(done + rest)
    }
}
