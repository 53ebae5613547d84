//! The files of a tree that an image has, and their blocks. Whole files can be written out while
//! they are decoded, in one pass over the image; all other blocks are in this process's memory. The
//! blocks of an image that is too large for this are read from its file when they are needed.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_vfs::{Error, ErrorKind, FileSystem, NodeId, Result};

use crate::format::{BLOCK_BYTES, ContentId, FRAME_BLOCKS, ZEROS};
use crate::image::{BootFile, BootImage, BootImageDamage, Contents};
use crate::ranges::{ImageFile, RangedContents};
use crate::validity::{IndexedTree, valid_file};

/// An image and the files of a tree that it has; the blocks are still compressed.
pub struct HotSet {
    image: Arc<BootImage>,
    /// The file of the image, if its blocks are read when they are needed.
    file: Option<Arc<dyn ImageFile>>,
    files: HashMap<NodeId, u32>,
    /// Files of the image that have changed in the tree. They are served from the tree.
    stale: Vec<Vec<u8>>,
}

impl fmt::Debug for HotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HotSet")
            .field("image", &self.image)
            .field("stale", &self.stale.len())
            .finish_non_exhaustive()
    }
}

/// Writes bytes of a file at an offset. Called by several threads.
pub type Write<'a> = dyn Fn(&BootFile, u64, &[u8]) -> Result<()> + Sync + 'a;

/// Blocks of a file with consecutive contents of one frame.
struct Piece {
    content: ContentId,
    blocks: u32,
    file: u32,
    first_block: u32,
}

impl HotSet {
    /// Finds the image's files in a tree. `fs`: the tree as its index describes it; attributes must
    /// be available without I/O.
    pub fn new(image: BootImage, fs: &dyn FileSystem, tree: &dyn IndexedTree) -> HotSet {
        let mut files = HashMap::new();
        let mut stale = Vec::new();
        for number in 0..image.files() {
            match valid_file(&image, number, fs, tree) {
                Some(now) => _ = files.insert(now.node, number),
                None => stale.push(image.file(number).name.to_vec()),
            }
        }
        tracing::debug!(
            files = files.len(),
            files_changed = stale.len(),
            blocks = image.contents(),
            recordings = image.recordings(),
            "opened the boot image of a tree"
        );
        HotSet { image: Arc::new(image), file: None, files, stale }
    }

    /// Returns the set with blocks that are read from the image's file when they are needed,
    /// instead of being decoded at once. Of the image only the tables must have been read.
    pub fn in_ranges(self, file: Arc<dyn ImageFile>) -> HotSet {
        HotSet { file: Some(file), ..self }
    }

    /// Returns whether blocks are read when they are needed.
    pub fn is_in_ranges(&self) -> bool {
        self.file.is_some()
    }

    /// Returns the names of files that have changed since the recording.
    pub fn stale(&self) -> &[Vec<u8>] {
        &self.stale
    }

    /// Returns the whole files, which can be written out: those of which every block is in the
    /// image. There are none if blocks are read when they are needed.
    pub fn whole(&self) -> HashSet<NodeId> {
        if self.is_in_ranges() {
            return HashSet::new();
        }
        let whole = |number: &u32| self.image.is_whole(&self.image.file(*number));
        self.files.iter().filter(|(_, number)| whole(number)).map(|(node, _)| *node).collect()
    }

    /// Returns the set without all other files.
    pub fn only(mut self, nodes: &HashSet<NodeId>) -> HotSet {
        self.files.retain(|node, _| nodes.contains(node));
        self
    }

    /// Decodes all blocks into memory, with `threads` threads, unless blocks are read when they are
    /// needed.
    pub fn decode(&self, threads: usize) -> Result<Arc<Hot>> {
        if let Some(file) = &self.file {
            let contents = Blocks::Ranges(RangedContents::new(file.clone()));
            return Ok(Hot::new(self.image.clone(), self.files.clone(), contents));
        }
        let contents = self.image.decode(threads).map_err(damaged)?;
        Ok(Hot::new(Arc::new(self.image.tables()), self.files.clone(), Blocks::Memory(contents)))
    }

    /// Passes the blocks of the files `whole`, which must be whole files, to `write`, and decodes
    /// the blocks of all others into memory. Blocks of zeros are not written: the file must be
    /// sparse and have its size already.
    pub fn decode_and_write(
        &self,
        whole: &HashSet<NodeId>,
        threads: usize,
        write: &Write<'_>,
    ) -> Result<Arc<Hot>> {
        if self.is_in_ranges() {
            return self.decode(threads);
        }
        let image = &self.image;
        let mut rest = HashMap::new();
        let mut kept = vec![false; image.contents() as usize];
        let mut pieces: Vec<Vec<Piece>> = Vec::new();
        pieces.resize_with((image.contents() as usize).div_ceil(FRAME_BLOCKS), Vec::new);
        for (node, number) in &self.files {
            let written = whole.contains(node);
            for run in image.runs_of(&image.file(*number)).filter(|run| run.content != ZEROS) {
                let end = run.content + run.blocks;
                if !written {
                    kept[run.content as usize..end as usize].fill(true);
                    continue;
                }
                let mut content = run.content;
                while content < end {
                    let frame = content as usize / FRAME_BLOCKS;
                    let blocks = end.min(((frame + 1) * FRAME_BLOCKS) as u32) - content;
                    let first_block = run.first_block + (content - run.content);
                    pieces[frame].push(Piece { content, blocks, file: *number, first_block });
                    content += blocks;
                }
            }
            if !written {
                rest.insert(*node, *number);
            }
        }
        let take = |first: ContentId, bytes: &[u8]| -> std::result::Result<(), Failed> {
            for piece in &pieces[first as usize / FRAME_BLOCKS] {
                let file = image.file(piece.file);
                let offset = u64::from(piece.first_block) * BLOCK_BYTES as u64;
                let begin = (piece.content - first) as usize * BLOCK_BYTES;
                // The padding of the last block does not belong to the file.
                let length =
                    (u64::from(piece.blocks) * BLOCK_BYTES as u64).min(file.size_bytes - offset) as usize;
                write(&file, offset, &bytes[begin..begin + length]).map_err(Failed)?;
            }
            Ok(())
        };
        let contents = image.decode_to(threads, &|content| kept[content as usize], &take).map_err(|f| f.0)?;
        Ok(Hot::new(Arc::new(image.tables()), rest, Blocks::Memory(contents)))
    }
}

struct Failed(Error);

impl From<BootImageDamage> for Failed {
    fn from(damage: BootImageDamage) -> Failed {
        Failed(damaged(damage))
    }
}

fn damaged(damage: BootImageDamage) -> Error {
    tracing::debug!(
        section = damage.section,
        at = damage.at,
        what = damage.what,
        "the boot image is damaged"
    );
    Error { source: Some(Box::new(damage)), ..Error::new(ErrorKind::Damaged, "decode", b"the boot image") }
}

/// The blocks of an image.
#[derive(Debug)]
enum Blocks {
    Memory(Contents),
    Ranges(RangedContents),
}

/// Files of a tree with blocks in memory, or in the file of an image.
pub struct Hot {
    /// The image's tables, without frames.
    image: Arc<BootImage>,
    contents: Blocks,
    files: HashMap<NodeId, u32>,
    tally: Tally,
}

impl fmt::Debug for Hot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hot")
            .field("files", &self.files.len())
            .field("contents", &self.contents)
            .finish_non_exhaustive()
    }
}

/// Number of blocks served so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Served {
    /// Blocks that were in memory, or in the file of the image.
    pub from_memory: u64,
    /// Blocks that were read from the file system below.
    pub from_source: u64,
}

/// Counts served blocks.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    from_memory: AtomicU64,
    from_source: AtomicU64,
}

impl Tally {
    pub(crate) fn memory(&self, bytes: usize) {
        self.from_memory.fetch_add(bytes.div_ceil(BLOCK_BYTES) as u64, Ordering::Relaxed);
    }

    pub(crate) fn source(&self, bytes: usize) {
        self.from_source.fetch_add(bytes.div_ceil(BLOCK_BYTES) as u64, Ordering::Relaxed);
    }

    pub(crate) fn served(&self) -> Served {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Served { from_memory: of(&self.from_memory), from_source: of(&self.from_source) }
    }
}

impl Hot {
    fn new(image: Arc<BootImage>, files: HashMap<NodeId, u32>, contents: Blocks) -> Arc<Hot> {
        Arc::new(Hot { image, contents, files, tally: Tally::default() })
    }

    /// Returns the number of blocks served so far.
    pub fn served(&self) -> Served {
        self.tally.served()
    }

    /// Returns whether blocks are read from the file of the image when they are needed.
    pub fn is_in_ranges(&self) -> bool {
        matches!(self.contents, Blocks::Ranges(_))
    }

    /// Returns the number of frames that were read from the file of the image when they were
    /// needed.
    pub fn frames_read(&self) -> u64 {
        match &self.contents {
            Blocks::Memory(_) => 0,
            Blocks::Ranges(ranges) => ranges.frames_read(),
        }
    }

    /// Returns the files with blocks.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeId> {
        self.files.keys().copied()
    }

    /// Returns whether a file has blocks.
    pub fn has(&self, node: NodeId) -> bool {
        self.files.contains_key(&node)
    }

    pub(crate) fn file(&self, node: NodeId) -> Option<BootFile<'_>> {
        self.files.get(&node).map(|number| self.image.file(*number))
    }

    /// Calls `visit` for each block of a file in memory, with its offset; the last block is cut at
    /// the end of the file.
    pub fn blocks_of(&self, node: NodeId, visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let (Some(file), Blocks::Memory(contents)) = (self.file(node), &self.contents) else { return Ok(()) };
        for run in self.image.runs_of(&file) {
            for at in 0..run.blocks {
                let content = run.content_at(at);
                let offset = u64::from(run.first_block + at) * BLOCK_BYTES as u64;
                let length = (file.size_bytes - offset).min(BLOCK_BYTES as u64) as usize;
                visit(offset, &contents.block(content)[..length])?;
            }
        }
        Ok(())
    }

    pub(crate) fn read(&self, file: &BootFile, into: &mut [u8], offset: u64) -> usize {
        let done =
            copy(&self.image, &|content, within, into| self.block(content, within, into), file, into, offset);
        self.tally.memory(done);
        done
    }

    fn block(&self, content: ContentId, within: usize, into: &mut [u8]) -> bool {
        match &self.contents {
            Blocks::Memory(contents) => {
                into.copy_from_slice(&contents.block(content)[within..within + into.len()]);
                true
            }
            Blocks::Ranges(ranges) => ranges.copy(&self.image, content, within, into),
        }
    }

    pub(crate) fn missed(&self, bytes: usize) {
        self.tally.source(bytes);
    }
}

/// Copies a part of a content, from an offset in it. Returns `false` if the content is missing.
pub(crate) type CopyBlock<'a> = dyn Fn(ContentId, usize, &mut [u8]) -> bool + 'a;

/// Copies blocks of a file, up to the first missing one. Returns the number of bytes.
pub(crate) fn copy(
    image: &BootImage,
    copy_block: &CopyBlock<'_>,
    file: &BootFile,
    into: &mut [u8],
    offset: u64,
) -> usize {
    let wanted = (into.len() as u64).min(file.size_bytes.saturating_sub(offset)) as usize;
    let mut done = 0;
    while done < wanted {
        let at = offset + done as u64;
        let within = (at % BLOCK_BYTES as u64) as usize;
        let block = u32::try_from(at / BLOCK_BYTES as u64).ok();
        let Some(content) = block.and_then(|block| image.content(file, block)) else { break };
        let length = (BLOCK_BYTES - within).min(wanted - done);
        if !copy_block(content, within, &mut into[done..done + length]) {
            break;
        }
        done += length;
    }
    done
}
