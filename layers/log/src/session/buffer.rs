//! The memory in which a writer collects a frame. A large frame has a mapping of its own, so that
//! dropping it returns the memory to the system.
//!
//! Memory from the allocator would not be returned: once a chunk of this size has been freed, glibc
//! takes chunks of that size from its heaps, and a heap shrinks only from its end. A small frame is
//! in memory from the allocator, because creating, filling and removing a mapping takes longer than
//! the write of a small file.

use memmap2::MmapMut;
use quell_vfs::{Error, ErrorKind, Result};

/// The size up to which a frame is in memory from the allocator.
const SMALL_BYTES: usize = 16 << 10;

/// Bytes that are appended one after another. An empty buffer may have no memory.
#[derive(Debug, Default)]
pub struct Buffer {
    /// The bytes, if there is no mapping.
    small: Vec<u8>,
    memory: Option<MmapMut>,
    length: usize,
}

impl Buffer {
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub fn bytes(&self) -> &[u8] {
        self.memory.as_deref().map_or(&self.small, |memory| &memory[..self.length])
    }

    /// Appends `from` to a buffer with a capacity of `capacity_bytes`, which must be the same in
    /// every call and must not be exceeded. Only pages that were written to use memory.
    ///
    /// # Errors
    ///
    /// The errors of mmap(2), if the buffer has no memory yet.
    pub fn push(&mut self, from: &[u8], capacity_bytes: usize) -> Result<()> {
        if self.memory.is_none() && self.length + from.len() <= SMALL_BYTES {
            self.small.extend_from_slice(from);
            self.length += from.len();
            return Ok(());
        }
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => {
                let mut memory = MmapMut::map_anon(capacity_bytes).map_err(|error| {
                    let kind = ErrorKind::from_errno(error.raw_os_error().unwrap_or(quell_vfs::errno::EIO));
                    Error { source: Some(Box::new(error)), ..Error::new(kind, "map", b"a write buffer") }
                })?;
                memory[..self.length].copy_from_slice(&self.small);
                self.small = Vec::new();
                memory
            }
        };
        let memory = self.memory.insert(memory);
        memory[self.length..][..from.len()].copy_from_slice(from);
        self.length += from.len();
        Ok(())
    }

    /// Empties the buffer, and keeps the memory for the next frame.
    pub fn clear(&mut self) {
        self.small.clear();
        self.length = 0;
    }

    /// Returns the memory to the system if the buffer is empty.
    pub fn release_if_empty(&mut self) {
        if self.is_empty() {
            (self.small, self.memory) = (Vec::new(), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_in_order_after_the_memory_was_freed() {
        let mut buffer = Buffer::default();
        for length in [3, SMALL_BYTES / 2, SMALL_BYTES / 2 + 1, 3 * SMALL_BYTES] {
            let (one, two, again) = (vec![b'1'; length], vec![b'2'; length], vec![b'3'; 2 * length - 1]);
            let capacity_bytes = 2 * length;
            assert_eq!(buffer.bytes(), b"");
            buffer.push(&one, capacity_bytes).unwrap();
            buffer.release_if_empty();
            buffer.push(&two, capacity_bytes).unwrap();
            assert_eq!(buffer.bytes(), [one, two].concat());
            assert_eq!(buffer.memory.is_some(), capacity_bytes > SMALL_BYTES, "a large frame is mapped");
            buffer.clear();
            buffer.push(&again, capacity_bytes).unwrap();
            assert_eq!((buffer.bytes(), buffer.len()), (&again[..], again.len()));
            buffer.clear();
            buffer.release_if_empty();
            assert!(buffer.memory.is_none() && buffer.small.capacity() == 0);
        }
    }
}
