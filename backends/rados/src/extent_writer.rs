//! An extent that is being written. Its pieces are written while their data is passed.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use quell_vfs::{ErrorKind, Result};

use crate::format::extent::{EXTENT_BYTES_MAX, PIECE_BYTES, PIECES_MAX, encode_piece};
use crate::format::names;
use crate::objects::{Objects, PendingWrite, Write, failure, is_refusal};

/// An extent whose data is passed in parts. It needs memory for one piece of 4 MiB, for the first
/// one, and for those in flight.
///
/// If the value is dropped before the end, [`ObjectExtents::remove`](crate::ObjectExtents::remove)
/// removes the pieces that were written.
pub struct ExtentWriter {
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) name: String,
    pub(crate) number: u64,
    /// The number of the next piece.
    pub(crate) next: u32,
    /// Data of the next piece, which is not complete.
    pub(crate) data: Vec<u8>,
    /// The first piece, which is the last to be written: if it exists, the extent is complete.
    pub(crate) first: Option<Vec<u8>>,
    pub(crate) in_flight: VecDeque<StartedPiece>,
    pub(crate) in_flight_max: usize,
}

pub(crate) struct StartedPiece {
    object: String,
    bytes: Vec<u8>,
    pending: Box<dyn PendingWrite>,
}

impl fmt::Debug for ExtentWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtentWriter").field("number", &self.number).finish_non_exhaustive()
    }
}

impl ExtentWriter {
    /// Appends data, and starts to write the pieces that are complete.
    ///
    /// # Errors
    /// `InvalidInput` if the extent would have more than 64 MiB. Those of [`Objects`]: the extent
    /// cannot be continued.
    pub fn append(&mut self, mut data: &[u8]) -> Result<()> {
        let before = self.next as usize * PIECE_BYTES + self.data.len();
        if data.len() > EXTENT_BYTES_MAX - before {
            let reason = format!("an extent of more than {EXTENT_BYTES_MAX} bytes");
            return Err(failure(ErrorKind::InvalidInput, "write", &self.name, reason));
        }
        while self.data.len() + data.len() >= PIECE_BYTES {
            let (part, rest) = data.split_at(PIECE_BYTES - self.data.len());
            if self.data.is_empty() {
                self.add_piece(part)?;
            } else {
                self.data.extend_from_slice(part);
                let mut whole = std::mem::take(&mut self.data);
                self.add_piece(&whole)?;
                whole.clear();
                self.data = whole;
            }
            data = rest;
        }
        if !data.is_empty() {
            self.data.extend_from_slice(data);
        }
        Ok(())
    }

    /// Ends the extent. When the call returns, all replicas of the pool have the data on their
    /// disks.
    ///
    /// # Errors
    /// Those of [`Objects`]: a part of the extent may exist, which
    /// [`remove`](crate::ObjectExtents::remove) removes.
    pub fn finish(mut self) -> Result<()> {
        let last = std::mem::take(&mut self.data);
        self.finish_with(&last)
    }

    /// Ends the extent after `last`, the data of the last piece; empty if the last one was
    /// complete.
    pub(crate) fn finish_with(mut self, last: &[u8]) -> Result<()> {
        if !last.is_empty() || self.next == 0 {
            self.add_piece(last)?;
        }
        while let Some(started) = self.in_flight.pop_front() {
            self.wait(started)?;
        }
        let first = self.first.take().unwrap_or_default();
        let started = self.start(0, first);
        self.wait(started)
    }

    fn add_piece(&mut self, data: &[u8]) -> Result<()> {
        let piece = self.next;
        debug_assert!(piece < PIECES_MAX, "the length is limited");
        self.next += 1;
        let bytes = encode_piece(self.number, piece, data);
        if piece == 0 {
            self.first = Some(bytes);
            return Ok(());
        }
        if self.in_flight.len() >= self.in_flight_max
            && let Some(oldest) = self.in_flight.pop_front()
        {
            self.wait(oldest)?;
        }
        let started = self.start(piece, bytes);
        self.in_flight.push_back(started);
        Ok(())
    }

    fn start(&self, piece: u32, bytes: Vec<u8>) -> StartedPiece {
        let object = names::extent(&self.name, self.number, piece);
        let pending = self.objects.start_write(&object, &Write::new().write_full(&bytes));
        StartedPiece { object, bytes, pending }
    }

    /// Waits for a write. A write with an unknown result is repeated once: it writes the same
    /// bytes.
    fn wait(&self, StartedPiece { object, bytes, pending }: StartedPiece) -> Result<()> {
        match pending.wait() {
            Err(error) if !is_refusal(&error) => {
                self.objects.write(&object, &Write::new().write_full(&bytes))
            }
            result => result,
        }
    }
}
