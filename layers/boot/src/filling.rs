//! All contents of an image, filled frame by frame while they are asked for already. Frames lie in the order of first use, so
//! a start that begins at once rarely waits for long.

use std::fmt;
use std::sync::{Arc, OnceLock};

use quell_fs::{Error, ErrorKind, Result};

use crate::format::{BLOCK_BYTES, ContentId, FRAME_BLOCKS, ZEROS};
use crate::image::{BLOCK_OF_ZEROS, BootImage};

/// One slot for each frame; `None` in it: it will not come.
pub struct Filling {
    frames: Vec<OnceLock<Option<Vec<u8>>>>,
}

impl fmt::Debug for Filling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filling").field("frames", &self.frames.len()).finish()
    }
}

/// Gives up what has not come when the one who fills goes, also by a panic: nobody waits for ever.
struct GivingUp<'a>(&'a Filling);

impl Drop for GivingUp<'_> {
    fn drop(&mut self) {
        for frame in &self.0.frames {
            let _ = frame.set(None);
        }
    }
}

impl Filling {
    /// Empty. Somebody has to call [`fill`](Filling::fill).
    pub fn new(image: &BootImage) -> Arc<Filling> {
        Arc::new(Filling { frames: (0..image.frame_count()).map(|_| OnceLock::new()).collect() })
    }

    /// Decodes all frames in order. `read` fills a buffer from an offset of the image's file. After an error the
    /// frames that are missing will not come.
    pub fn fill(&self, image: &BootImage, read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>) -> Result<()> {
        let _rest = GivingUp(self);
        let mut frame = Vec::new();
        for (number, slot) in self.frames.iter().enumerate() {
            let (offset, length) = image.frame_place(number);
            frame.resize(length, 0);
            read(offset, &mut frame)?;
            let blocks = (image.contents() as usize - number * FRAME_BLOCKS).min(FRAME_BLOCKS);
            let mut bytes = vec![0; blocks * BLOCK_BYTES];
            image.decode_bytes(number, &frame, &mut bytes).map_err(|damage| Error {
                source: Some(Box::new(damage)),
                ..Error::new(ErrorKind::Damaged, "decode", b"the boot image")
            })?;
            let _ = slot.set(Some(bytes));
        }
        Ok(())
    }

    /// Waits for it; `None`: it will not come. `content` is one that the same image named.
    pub fn block(&self, content: ContentId) -> Option<&[u8]> {
        if content == ZEROS {
            return Some(&BLOCK_OF_ZEROS);
        }
        let frame = self.frames[content as usize / FRAME_BLOCKS].wait().as_ref()?;
        let begin = content as usize % FRAME_BLOCKS * BLOCK_BYTES;
        Some(&frame[begin..begin + BLOCK_BYTES])
    }
}
