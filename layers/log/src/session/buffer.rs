//! The memory in which a writer collects a frame. It is a mapping of its own, so that dropping it
//! returns the memory to the system.
//!
//! Memory from the allocator would not be returned: once a chunk of this size has been freed, glibc
//! takes chunks of that size from its heaps, and a heap shrinks only from its end.

use memmap2::MmapMut;
use quell_vfs::{Error, ErrorKind, Result};

/// Bytes that are appended one after another. An empty buffer may have no memory.
#[derive(Debug, Default)]
pub struct Buffer {
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
        self.memory.as_deref().map_or(&[], |memory| &memory[..self.length])
    }

    /// Appends `from` to a buffer with a capacity of `capacity_bytes`, which must be the same in
    /// every call and must not be exceeded. Only pages that were written to use memory.
    ///
    /// # Errors
    ///
    /// Those of mmap(2), if the buffer has no memory yet.
    pub fn push(&mut self, from: &[u8], capacity_bytes: usize) -> Result<()> {
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => MmapMut::map_anon(capacity_bytes).map_err(|error| {
                let kind = ErrorKind::from_errno(error.raw_os_error().unwrap_or(quell_vfs::errno::EIO));
                Error { source: Some(Box::new(error)), ..Error::new(kind, "map", b"a write buffer") }
            })?,
        };
        let memory = self.memory.insert(memory);
        memory[self.length..][..from.len()].copy_from_slice(from);
        self.length += from.len();
        Ok(())
    }

    /// Empties the buffer, and keeps the memory for the next frame.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// Returns the memory to the system if the buffer is empty.
    pub fn release_if_empty(&mut self) {
        if self.is_empty() {
            self.memory = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_in_order_after_the_memory_was_freed() {
        let mut buffer = Buffer::default();
        for _ in 0..3 {
            assert_eq!(buffer.bytes(), b"");
            buffer.push(b"one", 6).unwrap();
            buffer.release_if_empty();
            buffer.push(b"two", 6).unwrap();
            assert_eq!(buffer.bytes(), b"onetwo");
            buffer.clear();
            buffer.push(b"again", 6).unwrap();
            assert_eq!((buffer.bytes(), buffer.len()), (&b"again"[..], 5));
            buffer.clear();
            buffer.release_if_empty();
            assert!(buffer.memory.is_none());
        }
    }
}
