//! The contents of an image that are read from its file when they are needed, one frame at a time.
//! The memory is bounded regardless of the size of the image: the frames that were used last are
//! kept, and the kernel keeps the blocks that programs have read as long as there is memory.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Result};

use crate::format::{
    BLOCK_BYTES, ContentId, FILE_ROW_BYTES, FRAME_BLOCKS, FRAME_ROW_BYTES, HEADER_BYTES, RUN_ROW_BYTES, ZEROS,
};
use crate::image::BootImage;

/// The number of decoded frames that are kept. A frame has the blocks of neighbouring files, which
/// programs often read one after another.
const FRAMES_KEPT: usize = 16;

/// Reads from the file of an image.
pub trait ImageFile: Send + Sync {
    /// Fills `into` from an offset. It is an error if the file ends before `into` is full. Called
    /// by several threads.
    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> Result<()>;

    /// Reports that a frame could not be used, once for each image: blocks of such a frame are read
    /// from the tree.
    fn report(&self, error: &Error);
}

/// A limit of the memory for frames: the frames that are kept, and the frames that the threads of a
/// view read and decode.
const FRAMES_BYTES_MAX: u64 = 64 << 20;
/// The memory of an entry that maps a node to the number of a file.
const NODE_BYTES: u64 = 40;

/// The most memory that serving an image takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// The memory if the blocks that were read are kept in memory.
    pub memory_bytes: u64,
    /// The memory for frames of unread blocks, if the image has any and its other blocks are kept
    /// in memory.
    pub unread_bytes: u64,
    /// The memory if the blocks of the image are read from its file when they are needed.
    pub ranges_bytes: u64,
}

impl MemoryEstimate {
    /// Returns the memory for an image.
    pub fn of_image(image: &BootImage) -> MemoryEstimate {
        let tables_bytes = image.tables_bytes();
        let unread_bytes = if image.unread_blocks() > 0 { FRAMES_BYTES_MAX } else { 0 };
        let estimate = MemoryEstimate::new(image.files().into(), image.serving_bytes(), tables_bytes);
        MemoryEstimate { unread_bytes, ..estimate }
    }

    /// Returns the memory for an image of whole files, before it is written.
    pub fn of_files(files: u64, blocks: u64, names_bytes: u64) -> MemoryEstimate {
        let rows = files * (FILE_ROW_BYTES + RUN_ROW_BYTES) as u64;
        // The sizes of files come from a tree: sparse files can have any number of blocks.
        let frames = blocks.div_ceil(FRAME_BLOCKS as u64).saturating_mul(FRAME_ROW_BYTES as u64);
        MemoryEstimate::new(
            files,
            blocks.saturating_mul(BLOCK_BYTES as u64),
            (HEADER_BYTES as u64 + rows + names_bytes).saturating_add(frames),
        )
    }

    fn new(files: u64, blocks_bytes: u64, tables_bytes: u64) -> MemoryEstimate {
        let tables_bytes = tables_bytes.saturating_add(files * NODE_BYTES);
        let ranges_bytes = tables_bytes.saturating_add(FRAMES_BYTES_MAX);
        let memory_bytes = tables_bytes.saturating_add(blocks_bytes);
        MemoryEstimate { memory_bytes, unread_bytes: 0, ranges_bytes }
    }
}

/// `None` in a slot: the frame is damaged.
type Frame = Arc<OnceLock<Option<Vec<u8>>>>;

/// The number of buffers of removed frames that are kept for the next frames.
const SPARE_BUFFERS_MAX: usize = 4;

#[derive(Default)]
struct KeptFrames {
    /// Frames, each with the value of `uses` at its last use.
    frames: HashMap<usize, (u64, Frame)>,
    uses: u64,
    /// Buffers of removed frames, and of compressed frames. An allocator reuses such buffers
    /// late or never if one thread allocates them and another one frees them.
    spare: Vec<Vec<u8>>,
}

impl KeptFrames {
    /// Returns a frame, which becomes the last used one. If there are too many frames, the frame
    /// that was not used for the longest time is removed.
    fn frame(&mut self, number: usize) -> Frame {
        self.uses += 1;
        let uses = self.uses;
        let (last_use, frame) = self.frames.entry(number).or_default();
        *last_use = uses;
        let frame = frame.clone();
        if self.frames.len() > FRAMES_KEPT {
            let oldest = self.frames.iter().min_by_key(|(_, (last_use, _))| *last_use);
            if let Some(oldest) = oldest.map(|(number, _)| *number)
                && let Some((_, removed)) = self.frames.remove(&oldest)
            {
                self.release(removed);
            }
        }
        frame
    }

    /// Keeps the buffer of a removed frame if no other thread uses the frame.
    fn release(&mut self, frame: Frame) {
        if let Some(bytes) = Arc::into_inner(frame).and_then(OnceLock::into_inner).flatten() {
            self.keep_buffer(bytes);
        }
    }

    fn keep_buffer(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS_MAX {
            self.spare.push(buffer);
        }
    }
}

/// Contents of an image that are in its file only.
pub(crate) struct RangedContents {
    file: Arc<dyn ImageFile>,
    kept: Mutex<KeptFrames>,
    frames_read: AtomicU64,
    is_reported: AtomicBool,
}

impl fmt::Debug for RangedContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangedContents").field("frames_read", &self.frames_read).finish_non_exhaustive()
    }
}

impl RangedContents {
    pub(crate) fn new(file: Arc<dyn ImageFile>) -> RangedContents {
        RangedContents {
            file,
            kept: Mutex::default(),
            frames_read: AtomicU64::new(0),
            is_reported: AtomicBool::new(false),
        }
    }

    /// Returns the number of frames that were read from the file so far.
    pub(crate) fn frames_read(&self) -> u64 {
        self.frames_read.load(Ordering::Relaxed)
    }

    /// Copies a part of a content, from the offset `within` it. Returns `false` if its frame cannot
    /// be used. `image`: the tables of the image.
    pub(crate) fn copy(&self, image: &BootImage, content: ContentId, within: usize, into: &mut [u8]) -> bool {
        if content == ZEROS {
            into.fill(0);
            return true;
        }
        let number = content as usize / FRAME_BLOCKS;
        let frame = lock(&self.kept).frame(number);
        // Only readers of the same frame wait while it is read.
        let decoded = frame.get_or_init(|| match self.read(image, number) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                self.failed(number, &error);
                None
            }
        });
        let Some(bytes) = decoded else { return false };
        let begin = content as usize % FRAME_BLOCKS * BLOCK_BYTES + within;
        into.copy_from_slice(&bytes[begin..begin + into.len()]);
        if Arc::strong_count(&frame) == 1 {
            // Another thread has removed the frame meanwhile.
            lock(&self.kept).release(frame);
        }
        true
    }

    fn read(&self, image: &BootImage, number: usize) -> Result<Vec<u8>> {
        self.frames_read.fetch_add(1, Ordering::Relaxed);
        let [mut bytes, mut compressed] = {
            let mut kept = lock(&self.kept);
            [(); 2].map(|()| kept.spare.pop().unwrap_or_default())
        };
        let read = |offset, into: &mut [u8]| self.file.read_exact_at(into, offset);
        let result = image.read_frame(number, &read, &mut compressed, &mut bytes);
        let mut kept = lock(&self.kept);
        kept.keep_buffer(compressed);
        match result {
            Ok(()) => Ok(bytes),
            Err(error) => {
                kept.keep_buffer(bytes);
                Err(error)
            }
        }
    }

    fn failed(&self, number: usize, error: &Error) {
        tracing::debug!(frame = number, %error, "cannot use a frame: its blocks are read from the tree");
        if error.kind != ErrorKind::Damaged {
            // Other errors may be temporary: the next reader tries again.
            lock(&self.kept).frames.remove(&number);
        }
        if !self.is_reported.swap(true, Ordering::Relaxed) {
            self.file.report(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_for_files_of_any_size_has_no_overflow() {
        let MemoryEstimate { memory_bytes, ranges_bytes, .. } = MemoryEstimate::of_files(2, 1 << 52, 2);
        assert_eq!(memory_bytes, u64::MAX);
        assert!(ranges_bytes > FRAMES_BYTES_MAX && ranges_bytes < u64::MAX);
        assert_eq!(MemoryEstimate::of_files(1, u64::MAX, 1).memory_bytes, u64::MAX);
    }

    #[test]
    fn the_frames_that_were_used_last_are_kept() {
        let mut kept = KeptFrames::default();
        let first = kept.frame(0);
        (1..FRAMES_KEPT).for_each(|number| drop(kept.frame(number)));
        assert!(Arc::ptr_eq(&first, &kept.frame(0)), "a frame is removed although there is room");
        kept.frame(FRAMES_KEPT);
        assert_eq!(kept.frames.len(), FRAMES_KEPT);
        assert!(
            Arc::ptr_eq(&first, &kept.frame(0)) && !kept.frames.contains_key(&1),
            "{:?}",
            kept.frames.keys()
        );
    }

    #[test]
    fn the_buffer_of_a_removed_frame_is_used_again_if_no_thread_uses_the_frame() {
        let mut kept = KeptFrames::default();
        let in_use = kept.frame(0);
        in_use.set(Some(vec![0; 1])).unwrap();
        kept.frame(1).set(Some(vec![1; 2])).unwrap();
        (2..=FRAMES_KEPT + 1).for_each(|number| drop(kept.frame(number)));
        assert_eq!(kept.spare, [vec![1; 2]]);
        kept.release(in_use);
        assert_eq!(kept.spare, [vec![1; 2], vec![0; 1]]);
        (0..2 * SPARE_BUFFERS_MAX).for_each(|_| kept.keep_buffer(Vec::new()));
        assert_eq!(kept.spare.len(), SPARE_BUFFERS_MAX);
    }
}
