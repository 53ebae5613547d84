//! The files of a tree of which an image has blocks, and these blocks. Whole files can be written
//! out while they are decoded, in one pass over the image; all other blocks that were read are in
//! this process's memory. Unread blocks, and all blocks of an image that is too large for this, are
//! read from the file of the image when they are needed.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_vfs::{Error, ErrorKind, FileSystem, NodeId, Result};

use crate::format::{BLOCK_BYTES, ContentId, FRAME_BLOCKS, ZEROS};
use crate::image::{BootFile, BootImage, BootImageDamage, Contents, Run, TakeFrame};
use crate::ranges::{ImageFile, RangedContents};
use crate::validity::{IndexedTree, valid_file};

/// An image, and the files of a tree of which it has blocks. The blocks are still compressed.
pub struct RecordedFiles {
    image: Arc<BootImage>,
    /// The file of the image, for blocks that are read when they are needed.
    file: Option<Arc<dyn ImageFile>>,
    is_in_ranges: bool,
    files: HashMap<NodeId, u32>,
    /// Files of the image that have changed in the tree. They are served from the tree.
    stale: Vec<Vec<u8>>,
}

impl fmt::Debug for RecordedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordedFiles")
            .field("image", &self.image)
            .field("stale", &self.stale.len())
            .finish_non_exhaustive()
    }
}

/// The least number of threads that read and decode frames. A read from a shared file system mostly
/// waits for the network, so more threads than processors can be useful.
const READERS_MIN: usize = 4;

/// Writes bytes of a file at an offset. Called by several threads.
pub type Write<'a> = dyn Fn(&BootFile, u64, &[u8]) -> Result<()> + Sync + 'a;

/// Blocks of a file with consecutive contents of one frame.
struct Piece {
    content: ContentId,
    blocks: u32,
    file: u32,
    first_block: u32,
}

impl RecordedFiles {
    /// Finds the image's files in a tree. `fs`: the tree as its index describes it; attributes must
    /// be available without I/O.
    pub fn new(image: BootImage, fs: &dyn FileSystem, tree: &dyn IndexedTree) -> RecordedFiles {
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
        RecordedFiles { image: Arc::new(image), file: None, is_in_ranges: false, files, stale }
    }

    /// Returns the set with blocks that are read from the image's file when they are needed,
    /// instead of being decoded at once. Only the tables of the image must have been read.
    pub fn in_ranges(self, file: Arc<dyn ImageFile>) -> RecordedFiles {
        RecordedFiles { file: Some(file), is_in_ranges: true, ..self }
    }

    /// Returns the set with unread blocks that are read from the image's file when they are needed.
    /// Without this, they are read from the tree.
    pub fn with_unread(self, file: Arc<dyn ImageFile>) -> RecordedFiles {
        RecordedFiles { file: Some(file), ..self }
    }

    /// Returns whether no block is kept in memory: all are read when they are needed.
    pub fn is_in_ranges(&self) -> bool {
        self.is_in_ranges
    }

    /// Returns the names of files that have changed since the recording.
    pub fn stale(&self) -> &[Vec<u8>] {
        &self.stale
    }

    /// Returns the whole files, which can be written out: the files of which every block was read.
    /// There are no such files if no block is kept in memory.
    pub fn whole(&self) -> HashSet<NodeId> {
        if self.is_in_ranges() {
            return HashSet::new();
        }
        let whole = |number: &u32| self.image.is_whole(&self.image.file(*number));
        self.files.iter().filter(|(_, number)| whole(number)).map(|(node, _)| *node).collect()
    }

    /// Returns the set with these files only.
    pub fn only(mut self, nodes: &HashSet<NodeId>) -> RecordedFiles {
        self.files.retain(|node, _| nodes.contains(node));
        self
    }

    /// Decodes all blocks that were read into memory, with `threads` threads, unless no block is
    /// kept in memory. Frames that are not in memory are read from the file of the image.
    pub fn decode(&self, threads: usize) -> Result<Arc<RecordedBlocks>> {
        if self.is_in_ranges {
            return Ok(self.with_blocks(self.image.clone(), self.files.clone(), None));
        }
        let contents = self.image.read_contents();
        let keep = |content: ContentId| content < contents;
        let contents = self.decode_to(contents, threads, &keep, &|_, _| Ok(()))?;
        Ok(self.with_blocks(Arc::new(self.image.tables()), self.files.clone(), Some(contents)))
    }

    /// Decodes the frames of the first `contents` contents. Frames that are not in memory are read
    /// from the file of the image. An error of such a read has the kind `Damaged`.
    fn decode_to(
        &self,
        contents: u32,
        threads: usize,
        keep: &(dyn Fn(ContentId) -> bool + Sync),
        take: &TakeFrame<'_, Error>,
    ) -> Result<Contents> {
        let image = &self.image;
        let Some(file) = self.file.as_ref().filter(|_| !image.has_frames()) else {
            let decode = |number: usize, _: &mut Vec<u8>, into: &mut [u8]| {
                image.decode_frame(number, into).map_err(damaged)
            };
            return image.decode_to(contents, threads, &decode, keep, take);
        };
        let decode = |number: usize, frame: &mut Vec<u8>, into: &mut [u8]| {
            let (offset, length) = image.frame_range(number);
            frame.resize(length, 0);
            file.read_exact_at(frame, offset).map_err(unusable)?;
            image.decode_bytes(number, frame, into).map_err(damaged)
        };
        image.decode_to(contents, threads.max(READERS_MIN), &decode, keep, take)
    }

    fn with_blocks(
        &self,
        image: Arc<BootImage>,
        files: HashMap<NodeId, u32>,
        memory: Option<Contents>,
    ) -> Arc<RecordedBlocks> {
        let ranges = self.file.clone().filter(|_| self.is_in_ranges || image.unread_blocks() > 0);
        let ranges = ranges.map(RangedContents::new);
        Arc::new(RecordedBlocks { image, memory, ranges, files, tally: Tally::default() })
    }

    /// Passes the blocks of the files `whole`, which must be whole files, to `write`, and decodes
    /// the blocks that were read of all other files into memory. Blocks of zeros are not written:
    /// the file must be sparse and have its size already.
    pub fn decode_and_write(
        &self,
        whole: &HashSet<NodeId>,
        threads: usize,
        write: &Write<'_>,
    ) -> Result<Arc<RecordedBlocks>> {
        if self.is_in_ranges() {
            return self.decode(threads);
        }
        let image = &self.image;
        let contents = image.read_contents();
        let mut rest = HashMap::new();
        let mut kept = vec![false; (contents as usize).next_multiple_of(FRAME_BLOCKS)];
        let mut pieces: Vec<Vec<Piece>> = Vec::new();
        pieces.resize_with((contents as usize).div_ceil(FRAME_BLOCKS), Vec::new);
        for (node, number) in &self.files {
            let written = whole.contains(node);
            for run in image.runs_of(&image.file(*number)).filter(|run| run.content != ZEROS) {
                let end = run.content + run.blocks;
                if !written {
                    // Unread blocks may have the content of a block that was read.
                    kept[run.content.min(contents) as usize..end.min(contents) as usize].fill(true);
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
        let take = |first: ContentId, bytes: &[u8]| -> Result<()> {
            for piece in &pieces[first as usize / FRAME_BLOCKS] {
                let file = image.file(piece.file);
                let offset = u64::from(piece.first_block) * BLOCK_BYTES as u64;
                let begin = (piece.content - first) as usize * BLOCK_BYTES;
                // The padding of the last block does not belong to the file.
                let length =
                    (u64::from(piece.blocks) * BLOCK_BYTES as u64).min(file.size_bytes - offset) as usize;
                write(&file, offset, &bytes[begin..begin + length])?;
            }
            Ok(())
        };
        let keep = |content: ContentId| kept[content as usize];
        let contents = self.decode_to(contents, threads, &keep, &take)?;
        Ok(self.with_blocks(Arc::new(image.tables()), rest, Some(contents)))
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

/// Returns the error for a frame that cannot be read: the image cannot be used, as if it were
/// damaged.
fn unusable(error: Error) -> Error {
    match error.kind {
        ErrorKind::Damaged => error,
        _ => Error {
            source: Some(Box::new(error)),
            ..Error::new(ErrorKind::Damaged, "decode", b"the boot image")
        },
    }
}

/// Files of a tree with blocks in memory, or in the file of an image.
pub struct RecordedBlocks {
    /// The image's tables, without frames.
    image: Arc<BootImage>,
    /// The contents of the blocks that were read, unless they are read when they are needed.
    memory: Option<Contents>,
    /// Contents that are read when they are needed, if there are any.
    ranges: Option<RangedContents>,
    files: HashMap<NodeId, u32>,
    tally: Tally,
}

impl fmt::Debug for RecordedBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordedBlocks")
            .field("files", &self.files.len())
            .field("memory", &self.memory)
            .field("ranges", &self.ranges)
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

impl RecordedBlocks {
    /// Returns the number of blocks served so far.
    pub fn served(&self) -> Served {
        self.tally.served()
    }

    /// Returns whether no block is in memory: all are read from the file of the image when they are
    /// needed.
    pub fn is_in_ranges(&self) -> bool {
        self.memory.is_none()
    }

    /// Returns the number of frames that were read from the file of the image when they were
    /// needed; `None` if no block is read in this way.
    pub fn frames_read(&self) -> Option<u64> {
        self.ranges.as_ref().map(RangedContents::frames_read)
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

    /// Calls `visit` for all blocks of a file that were read and are in memory: for each piece that
    /// is contiguous in memory, with its offset. The last block ends at the end of the file.
    pub fn pieces_of(&self, node: NodeId, visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let (Some(file), Some(contents)) = (self.file(node), &self.memory) else { return Ok(()) };
        for run in self.image.runs_of(&file).filter(Run::is_read) {
            let mut at = 0;
            while at < run.blocks {
                let piece = contents.consecutive(run.content_at(at), run.blocks - at);
                let offset = u64::from(run.first_block + at) * BLOCK_BYTES as u64;
                let length = (file.size_bytes - offset).min(piece.len() as u64) as usize;
                visit(offset, &piece[..length])?;
                at += (piece.len() / BLOCK_BYTES) as u32;
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
        let is_in_memory = content == ZEROS || content < self.image.read_contents();
        match (&self.memory, &self.ranges) {
            (Some(memory), _) if is_in_memory => {
                into.copy_from_slice(&memory.block(content)[within..within + into.len()]);
                true
            }
            (_, Some(ranges)) => ranges.copy(&self.image, content, within, into),
            (_, None) => false,
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
