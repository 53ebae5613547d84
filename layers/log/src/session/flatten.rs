//! Index Flatten (section IV-A of the paper): creates one index from many. It runs after the last
//! writer has ended, on request, or in the background.

use std::sync::atomic::{AtomicBool, Ordering};

use quell_vfs::{Error, ErrorKind, Result, errno};

use crate::container::container_dir::Container;
use crate::format::extents::Piece;
use crate::format::flat::{Builder, FlatLog};
use crate::format::heads::Head;
use crate::format::runs::FILE_END_MAX;
use crate::session::view::View;
use crate::tools::report;

/// The result of flattening a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flattened {
    pub logs: u64,
    pub extents: u64,
    /// Size of the flat index.
    pub bytes: u64,
}

/// Creates a flat index of the current content of the logs, which replaces an earlier one. Writers
/// can continue at the same time; their later data is read from the logs.
pub fn flatten(container: &Container, threads: usize) -> Result<Flattened> {
    flatten_until(container, threads, &AtomicBool::new(false))
}

fn flatten_until(container: &Container, threads: usize, is_given_up: &AtomicBool) -> Result<Flattened> {
    let summary = container.summary()?;
    let view = report::view_of(container, &summary, threads)?;
    container.replace_flat(view.epoch().max(summary.epoch()), |file| {
        let put = |pieces: &[&[u8]], place| {
            go_on(is_given_up)?;
            file.write_pieces_at(pieces, place)
        };
        write(&view, container.head(), put)
    })
}

/// Writes the content of `view` as a flat index of the container with this record.
pub(crate) fn write(
    view: &View,
    container: &Head,
    put: impl FnMut(&[&[u8]], u64) -> Result<()>,
) -> Result<Flattened> {
    let mut builder = Builder::new(put, container)?;
    let (mut extents, mut pushed) = (0, Ok(()));
    view.pieces(0, u64::MAX, &mut |piece| {
        if let (Piece::Data(extent), true) = (piece, pushed.is_ok()) {
            extents += 1;
            pushed = builder.push(extent);
        }
    })?;
    pushed?;
    let logs: Vec<FlatLog> = view.logs().iter().map(|log| log.to_flat()).collect();
    let bytes = builder.finish(&logs, &view.truncations().numbers(), view.size().min(FILE_END_MAX))?;
    Ok(Flattened { logs: logs.len() as u64, extents, bytes })
}

/// Flattens the file if no writer is open, if more than one has written, and if all index logs
/// together are not larger than `bytes_max`. Returns an error soon after `is_given_up` was set.
pub fn after_last_writer(
    container: &Container,
    threads: usize,
    bytes_max: u64,
    is_given_up: &AtomicBool,
) -> Result<Option<Flattened>> {
    let summary = container.summary()?;
    if !summary.open.is_empty() || summary.closed.len() < 2 {
        return Ok(None);
    }
    let mut bytes = 0;
    for closed in &summary.closed {
        go_on(is_given_up)?;
        bytes += container.open_index(closed.writer)?.stat()?.size_bytes;
        if bytes > bytes_max {
            return Ok(None);
        }
    }
    flatten_until(container, threads, is_given_up).map(Some)
}

fn go_on(is_given_up: &AtomicBool) -> Result<()> {
    match is_given_up.load(Ordering::Relaxed) {
        true => Err(Error::new(ErrorKind::Os(errno::EINTR), "flatten", b"")),
        false => Ok(()),
    }
}
