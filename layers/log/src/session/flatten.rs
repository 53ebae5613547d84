//! Creates one index from the index logs of many writers: a flat index of a file (Index Flatten,
//! section IV-A of the paper), after the last writer has ended, on request, or in the background;
//! or the index of a share of the logs (Parallel Index Read, section IV-B), as bytes for the other
//! readers of the file.

use std::sync::atomic::{AtomicBool, Ordering};

use quell_vfs::{Error, ErrorKind, Result, errno};

use crate::container::Container;
use crate::session::extent_map::{ExtentMap, Flattened, newest_flat};
use crate::session::share::Share;

/// The maximum size of a share. A larger index is read by each process for itself, page by page if
/// it is flat, because all shares of a file are kept in memory while they are exchanged.
const SHARE_BYTES_MAX: usize = 1 << 30;

/// Creates a flat index of the current content of the logs, which replaces an earlier one. Writers
/// can continue at the same time; their later data is read from the logs.
pub fn flatten(container: &Container, threads: usize) -> Result<Flattened> {
    flatten_until(container, threads, &AtomicBool::new(false))
}

fn flatten_until(container: &Container, threads: usize, is_cancelled: &AtomicBool) -> Result<Flattened> {
    let summary = container.summary()?;
    let map = ExtentMap::published(container, &summary, threads)?;
    write_flat(container, &map, summary.epoch(), is_cancelled)
}

/// Does the same as `flatten` with shares that other processes have read (section IV-A: the index
/// is gathered from the processes). Only data that they lack is read from the logs.
pub fn flatten_shares(container: &Container, shares: &[Share], threads: usize) -> Result<Flattened> {
    let summary = container.summary()?;
    let map = ExtentMap::merge(container, &summary, &|_| None, threads, shares)?;
    write_flat(container, &map, summary.epoch(), &AtomicBool::new(false))
}

fn write_flat(
    container: &Container,
    map: &ExtentMap,
    epoch: u64,
    is_cancelled: &AtomicBool,
) -> Result<Flattened> {
    if container.only_object()?.is_some() {
        return Ok(Flattened { logs: 1, extents: 1, bytes: 0 }); // there is no index log
    }
    let flattened = container.replace_flat(map.epoch().max(epoch), |file| {
        let put = |pieces: &[&[u8]], offset| {
            check_cancelled(is_cancelled)?;
            file.write_pieces_at(pieces, offset)
        };
        map.write_flat(container.head(), put)
    })?;
    let Flattened { logs, extents, bytes } = flattened;
    tracing::debug!(container = %container.shown_number(), logs, extents, bytes, "created a flat index");
    Ok(flattened)
}

/// Returns the number of index logs that opening the file reads: 0 if no process has published
/// data, and 1 if there is a flat index.
pub fn index_logs(container: &Container) -> Result<usize> {
    let summary = container.summary()?;
    let logs = summary.closed.len() + summary.open.len();
    let has_flat =
        logs > 1 && newest_flat(container)?.is_some_and(|flat| flat.is_usable(&summary.truncations));
    Ok(if has_flat { 1 } else { logs })
}

/// Reads share `number` of `shares` with `threads` threads, and encodes it for the other readers of
/// the file. A single share is read from the flat index, if there is one.
///
/// # Errors
///
/// `EFBIG` if the share has more than `SHARE_BYTES_MAX` bytes.
pub fn read_share(container: &Container, number: usize, shares: usize, threads: usize) -> Result<Vec<u8>> {
    if number >= shares {
        return Err(Error::new(ErrorKind::InvalidInput, "read share", format!("{number} of {shares}")));
    }
    let summary = container.summary()?.part(number, shares);
    let map = match shares {
        1 => ExtentMap::open(container, &summary, &|_| None, threads)?,
        _ => ExtentMap::published(container, &summary, threads)?,
    };
    let mut bytes = Vec::new();
    let put = |pieces: &[&[u8]], _| {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        if length > SHARE_BYTES_MAX - bytes.len() {
            return Err(Error::new(
                ErrorKind::Os(errno::EFBIG),
                "read share",
                format!("{number} of {shares}"),
            ));
        }
        pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
        Ok(())
    };
    map.write_flat(container.head(), put)?;
    Ok(bytes)
}

/// Flattens the file if no writer is open, if more than one has written, and if all index logs
/// together are not larger than `bytes_max`. Returns an error soon after `is_cancelled` was set.
pub fn flatten_after_last_writer(
    container: &Container,
    threads: usize,
    bytes_max: u64,
    is_cancelled: &AtomicBool,
) -> Result<Option<Flattened>> {
    let summary = container.summary()?;
    if !summary.open.is_empty() || summary.closed.len() < 2 {
        return Ok(None);
    }
    let mut bytes = 0;
    for closed in &summary.closed {
        check_cancelled(is_cancelled)?;
        bytes += container.open_index(closed.writer)?.stat()?.size_bytes;
        if bytes > bytes_max {
            return Ok(None);
        }
    }
    flatten_until(container, threads, is_cancelled).map(Some)
}

fn check_cancelled(is_cancelled: &AtomicBool) -> Result<()> {
    match is_cancelled.load(Ordering::Relaxed) {
        true => Err(Error::new(ErrorKind::Interrupted, "flatten", b"")),
        false => Ok(()),
    }
}
