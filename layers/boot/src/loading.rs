//! The contents of an image, which can be read while they are still being decoded frame by frame.
//! Frames are in the order of first use, so a start that begins at once rarely waits long.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use quell_threads::{into_inner, lock};
use quell_vfs::Result;

use crate::format::{BLOCK_BYTES, ContentId, FRAME_BLOCKS, ZEROS};
use crate::image::{BLOCK_OF_ZEROS, BootImage};

/// Fills a buffer from an offset of an image's file. Called by several threads.
pub type ReadFrame<'a> = dyn Fn(u64, &mut [u8]) -> Result<()> + Sync + 'a;

/// One slot for each frame; `None` in a slot means that the frame could not be decoded.
pub struct LoadingContents {
    frames: Vec<OnceLock<Option<Vec<u8>>>>,
}

impl fmt::Debug for LoadingContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadingContents").field("frames", &self.frames.len()).finish()
    }
}

/// Marks all missing frames as failed when the loading ends, even by a panic, so that no reader
/// waits forever.
struct FailMissing<'a>(&'a LoadingContents);

impl Drop for FailMissing<'_> {
    fn drop(&mut self) {
        for frame in &self.0.frames {
            let _ = frame.set(None);
        }
    }
}

impl LoadingContents {
    /// Returns an empty value. [`load`](LoadingContents::load) must be called for it.
    pub fn new(image: &BootImage) -> Arc<LoadingContents> {
        Arc::new(LoadingContents { frames: (0..image.frame_count()).map(|_| OnceLock::new()).collect() })
    }

    /// Decodes all frames, in order except for the parallelism of the threads. `read` fills a
    /// buffer from an offset of the image's file. After an error, the missing frames are marked as
    /// failed.
    pub fn load(&self, image: &BootImage, threads: usize, read: &ReadFrame<'_>) -> Result<()> {
        let _rest = FailMissing(self);
        let next = AtomicUsize::new(0);
        let failure = Mutex::new(None);
        let work = || {
            let mut compressed = Vec::new();
            let is_intact = || failure.lock().is_ok_and(|failure| failure.is_none());
            while is_intact() {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(slot) = self.frames.get(number) else { return };
                let mut bytes = Vec::new();
                match image.read_frame(number, read, &mut compressed, &mut bytes) {
                    Ok(()) => _ = slot.set(Some(bytes)),
                    Err(error) => {
                        tracing::debug!(frame = number, %error, "cannot load a frame: its blocks are read from the disk");
                        *lock(&failure) = Some(error);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.max(1) {
                scope.spawn(work);
            }
            work();
        });
        into_inner(failure).map_or(Ok(()), Err)
    }

    /// Waits for a content, which must belong to the same image. Returns `None` if its frame could
    /// not be decoded.
    pub fn block(&self, content: ContentId) -> Option<&[u8]> {
        if content == ZEROS {
            return Some(&BLOCK_OF_ZEROS);
        }
        let frame = self.frames[content as usize / FRAME_BLOCKS].wait().as_ref()?;
        let begin = content as usize % FRAME_BLOCKS * BLOCK_BYTES;
        Some(&frame[begin..begin + BLOCK_BYTES])
    }
}
