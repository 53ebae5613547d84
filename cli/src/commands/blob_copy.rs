//! Parts of the commands that copy blobs: lists, reads of ranges, and progress.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::HumanBytes;
use quell_blob::{BlobStat, Snapshot};

use crate::failure::{Failure, of_blob as failure};
use crate::progress::{interruption, watch_line};

/// The bytes that are read or written at once, and the data of one operation.
pub(super) const PIECE_BYTES: usize = 16 << 20;
/// The number of names that are listed at once.
const NAMES_AT_ONCE: usize = 1000;

/// Passes all blobs whose names begin with `prefix` to `visit`.
pub(super) fn each(
    snapshot: &Snapshot,
    prefix: &[u8],
    mut visit: impl FnMut(&[u8], BlobStat) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut after = Vec::new();
    loop {
        let found = snapshot.list(prefix, &after, NAMES_AT_ONCE).map_err(failure)?;
        let Some((last, _)) = found.last() else { return Ok(()) };
        after = last.clone();
        for (name, stat) in found {
            visit(&name, stat)?;
        }
    }
}

/// Passes the bytes of a range of a blob to `write`, in pieces. Pieces without data are passed as
/// their length only.
pub(super) fn copy_out(
    snapshot: &Snapshot,
    name: &[u8],
    (start, end): (u64, u64),
    write: &mut dyn FnMut(Piece<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut buffer = vec![0; PIECE_BYTES.min((end - start) as usize)];
    let mut offset = start;
    while offset < end {
        let data = snapshot.next_data(name, offset).map_err(failure)?.unwrap_or(end).min(end);
        if data > offset {
            write(Piece::Zeros(data - offset))?;
            offset = data;
            continue;
        }
        let length = buffer.len().min((end - offset) as usize);
        let length = snapshot.read(name, offset, &mut buffer[..length]).map_err(failure)?;
        write(Piece::Data(offset, &buffer[..length]))?;
        offset += length as u64;
    }
    Ok(())
}

/// A part of a blob.
pub(super) enum Piece<'a> {
    /// The offset and the bytes.
    Data(u64, &'a [u8]),
    /// The number of zeros.
    Zeros(u64),
}

/// Runs `work` with a counter of bytes, and shows it.
pub(super) fn with_progress<T: Send>(
    title: &str,
    quiet: bool,
    work: impl FnOnce(&AtomicU64, &dyn Fn() -> Result<(), Failure>) -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let bytes = AtomicU64::new(0);
    let interrupted = interruption();
    let line = |elapsed: Duration| {
        let done = bytes.load(Ordering::Relaxed);
        let rate = done as f64 / elapsed.as_secs_f64().max(0.001);
        format!("{title}: {}, {}/s", HumanBytes(done), HumanBytes(rate as u64))
    };
    watch_line(&line, quiet, &|| (), || {
        work(&bytes, &|| match interrupted.load(Ordering::Relaxed) {
            true => Err(Failure::interrupted("interrupted")),
            false => Ok(()),
        })
    })
}
