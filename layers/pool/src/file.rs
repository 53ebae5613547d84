//! An open file of a pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_vfs::{Attributes, Error, ErrorKind, File, OpenMode, ReadAt, Result, WritableFile, errno};
use quell_wire::pool::{FILE_BYTES_MAX, Operation, Reply, Settings};

use crate::client::Client;
use crate::daemon::{done, node};
use crate::nodes::KnownNode;

/// An open file. It is a use of its node.
pub struct PoolFile {
    client: Arc<Client>,
    node: Arc<KnownNode>,
    mode: OpenMode,
    is_closed: AtomicBool,
    /// The set-id bits were removed through this open file.
    has_dropped_set_id: AtomicBool,
    /// They are to be removed again, because another client may have set them since.
    must_drop_set_id: AtomicBool,
}

/// A range of bytes within one chunk.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    chunk: u64,
    offset_in_chunk: u32,
    bytes: usize,
    /// The offset in the caller's buffer.
    at: usize,
}

/// Divides a range of a file at the borders of its chunks.
fn pieces(offset: u64, bytes: usize, chunk_bytes: u32) -> impl Iterator<Item = Piece> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == bytes {
            return None;
        }
        let from = offset + at as u64;
        let offset_in_chunk = (from % u64::from(chunk_bytes)) as u32;
        let room = (chunk_bytes - offset_in_chunk) as usize;
        let chunk = from / u64::from(chunk_bytes);
        let piece = Piece { chunk, offset_in_chunk, bytes: room.min(bytes - at), at };
        at += piece.bytes;
        Some(piece)
    })
}

impl PoolFile {
    /// Takes over one use of the node.
    pub fn new(client: Arc<Client>, node: Arc<KnownNode>, mode: OpenMode) -> PoolFile {
        PoolFile {
            client,
            node,
            mode,
            is_closed: AtomicBool::new(false),
            has_dropped_set_id: AtomicBool::new(false),
            must_drop_set_id: AtomicBool::new(false),
        }
    }

    fn check_open(&self) -> Result<()> {
        match self.is_closed.load(Ordering::Relaxed) {
            true => Err(Error::new(ErrorKind::Os(errno::EBADF), "use", b"a closed file")),
            false => Ok(()),
        }
    }

    fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        // The frontends do not write to a file that is open for reading.
        match self.mode.write {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::InvalidInput, "write", b"opened for reading")),
        }
    }

    /// Removes the set-id bits that another client may have set since the first write.
    fn drop_set_id_of_later_writes(&self) -> Result<()> {
        self.has_dropped_set_id.store(false, Ordering::Relaxed);
        match self.must_drop_set_id.swap(false, Ordering::Relaxed) {
            true => self.send_drop_set_id(),
            false => Ok(()),
        }
    }

    fn send_drop_set_id(&self) -> Result<()> {
        let settings = Settings { drops_set_id: true, ..Settings::default() };
        let change = Operation::Change { id: self.node.id, settings };
        let changed = self.client.requests.ask(None, &change, ("change", b""), node)?;
        self.node.note(&changed);
        Ok(())
    }

    /// Returns the current size, and records it.
    fn size_bytes(&self) -> Result<u64> {
        let node = self.client.requests.attributes(None, self.node.id)?;
        self.node.note(&node);
        Ok(node.size_bytes)
    }

    /// Writes the pieces of a range. Returns whether the size was recorded with each of them.
    fn write_pieces_of(&self, from: &[u8], offset: u64) -> Result<bool> {
        let mut is_recorded = true;
        for Piece { chunk, offset_in_chunk, bytes, at } in pieces(offset, from.len(), self.client.chunk_bytes)
        {
            let operation = Operation::Write {
                id: self.node.id,
                chunk,
                offset: offset_in_chunk,
                data: &from[at..at + bytes],
                size_bytes_min: offset + (at + bytes) as u64,
            };
            let written = |reply: Reply<'_>| match reply {
                Reply::Written(is_recorded) => Some(is_recorded),
                _ => None,
            };
            is_recorded &= self.client.requests.ask(None, &operation, ("write", b""), written)?;
        }
        Ok(is_recorded)
    }
}

impl ReadAt for PoolFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.check_open()?;
        let mut wanted = into.len();
        if offset.checked_add(wanted as u64).is_none_or(|end| end > self.node.known_bytes()) {
            wanted = (self.size_bytes()?.saturating_sub(offset)).min(wanted as u64) as usize;
        }
        for Piece { chunk, offset_in_chunk, bytes, at } in pieces(offset, wanted, self.client.chunk_bytes) {
            let into = &mut into[at..at + bytes];
            let operation =
                Operation::Read { id: self.node.id, chunk, offset: offset_in_chunk, bytes: bytes as u32 };
            let found = self.client.requests.ask(None, &operation, ("read", b""), |reply| match reply {
                Reply::Bytes(data) if data.len() <= into.len() => {
                    into[..data.len()].copy_from_slice(&data);
                    Some(data.len())
                }
                _ => None,
            })?;
            if found < bytes {
                // The rest is a hole, or the file was truncated.
                let end = self.size_bytes()?.saturating_sub(offset).min(wanted as u64) as usize;
                into[found..].fill(0);
                if end < at + bytes {
                    return Ok(end.max(at));
                }
            }
        }
        Ok(wanted)
    }
}

impl File for PoolFile {
    fn attributes(&self) -> Result<Attributes> {
        self.check_open()?;
        Ok(self.client.requests.attributes(None, self.node.id)?.attributes())
    }
}

impl WritableFile for PoolFile {
    fn close(&self) -> Result<()> {
        if self.is_closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let dropped = self.drop_set_id_of_later_writes();
        // The space of a removed file is free when it is closed.
        let released = match self.node.known_bytes() {
            0 => self.client.release_later(self.node.id, 1),
            _ => self.client.release_now(self.node.id),
        };
        dropped.and(released)
    }

    fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        self.check_writable()?;
        let end = offset.checked_add(from.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        let Some(end) = end else {
            return Err(Error::new(ErrorKind::InvalidInput, "write", b"beyond the largest size"));
        };
        if from.is_empty() {
            return Ok(());
        }
        if !self.write_pieces_of(from, offset)? {
            let grow = Operation::Grow { id: self.node.id, size_bytes_min: end };
            self.client.requests.ask(None, &grow, ("write", b""), done)?;
        }
        self.node.has_written_to(end);
        Ok(())
    }

    fn append(&self, from: &[u8]) -> Result<u64> {
        self.check_writable()?;
        let reserve = Operation::Reserve { id: self.node.id, bytes: from.len() as u64 };
        let offset = self.client.requests.ask(None, &reserve, ("append", b""), |reply| match reply {
            Reply::Offset(offset) => Some(offset),
            _ => None,
        })?;
        self.write_pieces_of(from, offset)?;
        self.node.has_written_to(offset + from.len() as u64);
        Ok(offset)
    }

    /// Data is visible everywhere when a write returns.
    fn publish(&self) -> Result<()> {
        self.check_open()?;
        self.drop_set_id_of_later_writes()
    }

    fn sync(&self) -> Result<()> {
        self.check_open()?;
        self.drop_set_id_of_later_writes()?;
        self.client.requests.ask(None, &Operation::Sync { id: self.node.id }, ("sync", b""), done)
    }

    /// Another client may set the bits at any time. A request for each write would double its cost,
    /// so there is one for the first write, and one for all later ones before they are published.
    fn drop_set_id(&self) -> Result<()> {
        self.check_open()?;
        if self.has_dropped_set_id.swap(true, Ordering::Relaxed) && !self.node.has_set_id() {
            self.must_drop_set_id.store(true, Ordering::Relaxed);
            return Ok(());
        }
        self.send_drop_set_id()
    }
}

impl Drop for PoolFile {
    fn drop(&mut self) {
        // A frontend has called `close` before, and gets its errors. The daemon releases the
        // references of a client that ends.
        let _ = self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_divided_at_the_borders_of_chunks() {
        let found: Vec<(u64, u32, usize, usize)> = pieces(95, 30, 10)
            .map(|piece| (piece.chunk, piece.offset_in_chunk, piece.bytes, piece.at))
            .collect();
        assert_eq!(found, [(9, 5, 5, 0), (10, 0, 10, 5), (11, 0, 10, 15), (12, 0, 5, 25)]);
        assert_eq!(pieces(7, 0, 10).next(), None);
    }
}
