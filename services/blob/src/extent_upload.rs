//! Extents whose data clients send in parts, before the transactions that refer to them.

use quell_vfs::{Error, ErrorKind, Result};

use crate::content::NewExtent;
use crate::extents::{EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, ExtentId, ExtentWriter, Extents};

/// An extent that is being written. If the storage cannot write an extent in parts, the whole
/// extent is written at the end.
pub(crate) struct ExtentUpload {
    pub(crate) extent: NewExtent,
    target: Target,
}

enum Target {
    Writer(Box<dyn ExtentWriter>),
    Memory(Vec<u8>),
}

impl ExtentUpload {
    /// Begins an extent. No other extent has the number `id`.
    pub(crate) fn begin(extents: &dyn Extents, id: ExtentId) -> ExtentUpload {
        let target = match extents.begin(id) {
            Some(writer) => Target::Writer(writer),
            None => Target::Memory(Vec::new()),
        };
        ExtentUpload { extent: NewExtent { id, length_bytes: 0 }, target }
    }

    /// Appends data.
    ///
    /// # Errors
    /// `InvalidInput` if the extent would have more than 64 MiB; the errors of the extents. The
    /// upload cannot be continued.
    pub(crate) fn append(&mut self, data: &[u8]) -> Result<()> {
        if self.extent.length_bytes + data.len() as u64 > EXTENT_BYTES_MAX as u64 {
            return Err(invalid("an operation has more than 64 MiB of data"));
        }
        self.extent.length_bytes += data.len() as u64;
        match &mut self.target {
            Target::Writer(writer) => writer.append(data),
            Target::Memory(bytes) => {
                bytes.extend_from_slice(data);
                Ok(())
            }
        }
    }

    /// Ends the extent. When the call returns, its data survives all failures that a commit
    /// survives.
    ///
    /// # Errors
    /// `InvalidInput` if the extent has less than 32 KiB; the errors of the extents.
    pub(crate) fn finish(self, extents: &dyn Extents) -> Result<()> {
        if self.extent.length_bytes < EXTENT_BYTES_MIN as u64 {
            return Err(invalid("the data of an extent has less than 32 KiB"));
        }
        match self.target {
            Target::Writer(writer) => writer.finish(),
            Target::Memory(bytes) => extents.write(self.extent.id, &bytes),
        }
    }
}

fn invalid(reason: &'static str) -> Error {
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::InvalidInput, "write", "an extent") }
}
