//! Pieces of a checkpoint.

use quell_kv::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

use super::head::{Checkpoint, Id};
use crate::fields::{Fault, Fields, checksum};

const MAGIC: &[u8; 8] = b"QUELLRC1";
/// The size of the header of a piece, in bytes.
pub(crate) const PIECE_HEADER_BYTES: usize = 64;
/// The length of the entries of a piece, in bytes, from which on it is complete.
const ENTRIES_BYTES: usize = 4 << 20;
/// Largest length of the entries of a piece, in bytes.
pub(crate) const ENTRIES_BYTES_MAX: usize = 24 << 20;
/// The size of an entry without its key and value, in bytes.
const ENTRY_BYTES: usize = 6;

const _: () = assert!(ENTRIES_BYTES + ENTRY_BYTES + KEY_BYTES_MAX + VALUE_BYTES_MAX <= ENTRIES_BYTES_MAX);

/// A piece to which entries are added.
pub(crate) struct Piece {
    bytes: Vec<u8>,
    entries: u32,
}

impl Piece {
    pub(crate) fn new() -> Piece {
        Piece { bytes: vec![0; PIECE_HEADER_BYTES], entries: 0 }
    }

    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.entries += 1;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.bytes.len() >= PIECE_HEADER_BYTES + ENTRIES_BYTES
    }

    /// Returns the bytes of the piece with this number.
    pub(crate) fn finish(mut self, id: &Id, checkpoint: &Checkpoint, number: u32) -> Vec<u8> {
        let header = encode_header(id, checkpoint, number, self.entries, &self.bytes[PIECE_HEADER_BYTES..]);
        self.bytes[..PIECE_HEADER_BYTES].copy_from_slice(&header);
        self.bytes
    }
}

/// Returns the header of a piece with these entries.
fn encode_header(id: &Id, checkpoint: &Checkpoint, number: u32, entries: u32, content: &[u8]) -> Vec<u8> {
    let mut header = Vec::with_capacity(PIECE_HEADER_BYTES);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(id);
    header.extend_from_slice(&checkpoint.epoch.to_le_bytes());
    header.extend_from_slice(&checkpoint.number.to_le_bytes());
    header.extend_from_slice(&number.to_le_bytes());
    header.extend_from_slice(&entries.to_le_bytes());
    header.extend_from_slice(&(content.len() as u64).to_le_bytes());
    let sum = checksum(&header, content);
    header.extend_from_slice(&sum.to_le_bytes());
    header
}

/// A function that gets the key and the value of each entry.
pub(crate) type VisitEntry<'a, E> = dyn FnMut(&[u8], &[u8]) -> Result<(), E> + 'a;

/// Passes the entries of a piece to `visit`.
pub(crate) fn decode_piece<E: From<Fault>>(
    bytes: &[u8],
    id: &Id,
    checkpoint: &Checkpoint,
    number: u32,
    visit: &mut VisitEntry<'_, E>,
) -> Result<(), E> {
    let fault = |offset: usize, reason| E::from(Fault { offset: offset as u64, reason });
    let Some((header, content)) = bytes.split_at_checked(PIECE_HEADER_BYTES) else {
        return Err(fault(0, "the header of the piece ends too early"));
    };
    if content.len() > ENTRIES_BYTES_MAX {
        return Err(fault(48, "the piece is longer than the limit"));
    }
    let entries = Fields(&header[44..]).u32().unwrap_or_default();
    if header != encode_header(id, checkpoint, number, entries, content) {
        return Err(fault(0, "the header of the piece or its checksum differs"));
    }
    let mut fields = Fields(content);
    for _ in 0..entries {
        let offset = bytes.len() - fields.0.len();
        let mut entry = || {
            let (key_bytes, value_bytes) = (usize::from(fields.u16()?), fields.u32()? as usize);
            Some((fields.bytes(key_bytes)?, fields.bytes(value_bytes)?))
        };
        match entry() {
            Some((key, value)) if !key.is_empty() && value.len() <= VALUE_BYTES_MAX => visit(key, value)?,
            _ => return Err(fault(offset, "the bytes are not an entry")),
        }
    }
    match fields.0 {
        [] => Ok(()),
        rest => Err(fault(bytes.len() - rest.len(), "bytes after the last entry")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECKPOINT: Checkpoint = Checkpoint { epoch: 3, number: 5, pieces: 2 };

    type Entry = (Vec<u8>, Vec<u8>);

    fn entries(bytes: &[u8], number: u32) -> Result<Vec<Entry>, Fault> {
        let mut found = Vec::new();
        decode_piece(bytes, &[9; 16], &CHECKPOINT, number, &mut |key, value| {
            found.push((key.to_vec(), value.to_vec()));
            Ok::<_, Fault>(())
        })?;
        Ok(found)
    }

    #[test]
    fn a_piece_is_decoded_as_it_was_encoded_and_only_under_its_number() {
        let mut piece = Piece::new();
        piece.push(b"a", b"1");
        piece.push(b"b", b"");
        let bytes = piece.finish(&[9; 16], &CHECKPOINT, 1);
        assert_eq!(entries(&bytes, 1), Ok(vec![(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), Vec::new())]));
        entries(&bytes, 0).expect_err("another piece");
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 8;
            entries(&changed, 1).expect_err("a byte was changed");
            entries(&bytes[..index], 1).expect_err("the rest is missing");
        }
    }
}
