//! The copy of the description of an image, in the directory of its tables: without the key-value
//! store of the primary server, the image is rebuilt from it.

use quell_vfs::Result;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::batch::BatchRecord;
use crate::entry::damaged;
use crate::stored::{Description, decode, encode};

/// The first bytes of a copy, with the version of the format.
const MAGIC: [u8; 16] = *b"QUELL IMAGE 1\0\0\0";

/// The description of an image, and the records of its open batches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageCopy {
    pub(crate) description: Description,
    pub(crate) batches: Vec<BatchRecord>,
}

impl ImageCopy {
    /// Returns whether the copy is one of this description and these open batches, apart from
    /// numbers that were given since.
    pub(crate) fn is_of(&self, description: &Description, batches: &[BatchRecord]) -> bool {
        self.description.tables == description.tables
            && self.batches == batches
            && self.description.has_few_numbers_less_than(description)
    }

    /// Encodes the copy (docs/formats/batch.md).
    pub(crate) fn encode(&self) -> Vec<u8> {
        let body = encode(self);
        [&MAGIC[..], &xxh3_64(&body).to_le_bytes(), &body].concat()
    }

    /// Decodes a copy.
    ///
    /// # Errors
    /// `Damaged` if the bytes are none.
    pub(crate) fn decode(bytes: &[u8]) -> Result<ImageCopy> {
        let broken = || damaged("the copy of the image's description");
        let rest = bytes.strip_prefix(&MAGIC).ok_or_else(broken)?;
        let (checksum, body) = rest.split_first_chunk::<8>().ok_or_else(broken)?;
        if xxh3_64(body) != u64::from_le_bytes(*checksum) {
            return Err(broken());
        }
        let copy: ImageCopy = decode(body)?;
        match copy.description.has_valid_numbers() {
            true => Ok(copy),
            false => Err(broken()),
        }
    }
}
