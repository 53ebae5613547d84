//! An extent that is being written. Its pieces are written while their data is passed.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use quell_vfs::{ErrorKind, Result};

use crate::format::extent::{EXTENT_BYTES_MAX, PIECE_BYTES, PIECES_MAX, PieceEncoder};
use crate::format::names;
use crate::objects::{Objects, PendingWrite, Write, failure, is_refusal};

/// An extent whose data is passed in parts. It needs memory for one piece of 4 MiB, and for the
/// pieces in flight.
///
/// If the value is dropped before the end, [`ObjectExtents::remove`](crate::ObjectExtents::remove)
/// removes the pieces that were written.
pub struct ExtentWriter {
    objects: Arc<dyn Objects>,
    name: String,
    number: u64,
    /// The number of the next piece.
    next: u32,
    /// The next piece, which is not complete; `None` if it has no data yet.
    piece: Option<PieceEncoder>,
    /// The largest data of a piece, in bytes.
    piece_bytes_max: usize,
    in_flight: VecDeque<StartedPiece>,
    in_flight_max: usize,
}

struct StartedPiece {
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
    /// Begins an extent of at most `bytes_max` bytes, with at most `in_flight_max` pieces in
    /// flight.
    pub(crate) fn new(
        objects: Arc<dyn Objects>,
        name: String,
        number: u64,
        bytes_max: usize,
        in_flight_max: usize,
    ) -> ExtentWriter {
        ExtentWriter {
            objects,
            name,
            number,
            next: 0,
            piece: None,
            piece_bytes_max: bytes_max.min(PIECE_BYTES),
            in_flight: VecDeque::new(),
            in_flight_max,
        }
    }

    /// Appends data, and starts to write the pieces that are complete.
    ///
    /// # Errors
    /// `InvalidInput` if the extent would have more than 64 MiB. The errors of [`Objects`], after
    /// which the extent cannot be continued.
    pub fn append(&mut self, mut data: &[u8]) -> Result<()> {
        let in_piece = self.piece.as_ref().map_or(0, PieceEncoder::data_bytes);
        if data.len() > EXTENT_BYTES_MAX - (self.next as usize * PIECE_BYTES + in_piece) {
            let reason = format!("an extent of more than {EXTENT_BYTES_MAX} bytes");
            return Err(failure(ErrorKind::InvalidInput, "write", &self.name, reason));
        }
        while !data.is_empty() {
            let new = || PieceEncoder::new(self.number, self.next, self.piece_bytes_max);
            let piece = self.piece.get_or_insert_with(new);
            let (part, rest) = data.split_at(data.len().min(PIECE_BYTES - piece.data_bytes()));
            piece.append(part);
            data = rest;
            if piece.data_bytes() == PIECE_BYTES {
                self.write_piece()?;
            }
        }
        Ok(())
    }

    /// Ends the extent. When the call returns, all replicas of the pool have the data on their
    /// disks.
    ///
    /// # Errors
    /// The errors of [`Objects`], after which a part of the extent may exist.
    /// [`remove`](crate::ObjectExtents::remove) removes it.
    pub fn finish(mut self) -> Result<()> {
        // An extent without data has one piece.
        if self.piece.is_some() || self.next == 0 {
            self.write_piece()?;
        }
        self.in_flight.drain(..).try_for_each(|started| started.wait(&*self.objects))
    }

    /// Starts to write the piece that has the data so far.
    fn write_piece(&mut self) -> Result<()> {
        debug_assert!(self.next < PIECES_MAX, "the length is limited");
        if self.in_flight.len() >= self.in_flight_max
            && let Some(oldest) = self.in_flight.pop_front()
        {
            oldest.wait(&*self.objects)?;
        }
        let bytes = self.piece.take().map_or_else(Vec::new, PieceEncoder::finish);
        let object = names::extent(&self.name, self.number, self.next);
        let pending = self.objects.start_write(&object, &Write::new().write_full(&bytes));
        self.in_flight.push_back(StartedPiece { object, bytes, pending });
        self.next += 1;
        Ok(())
    }
}

impl StartedPiece {
    /// Waits for the write. A write with an unknown result is repeated once: it writes the same
    /// bytes.
    fn wait(self, objects: &dyn Objects) -> Result<()> {
        match self.pending.wait() {
            Err(error) if !is_refusal(&error) => {
                objects.write(&self.object, &Write::new().write_full(&self.bytes))
            }
            result => result,
        }
    }
}
