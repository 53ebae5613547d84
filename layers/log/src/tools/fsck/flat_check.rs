//! Compares the flat indices of a file with its logs. Writes nothing.

use std::collections::HashMap;

use quell_vfs::{ErrorKind, Result};

use crate::container::{Container, Flat};
use crate::format::{FileOffset, Order, PayloadOffset, Piece, Summary};
use crate::session::ExtentMap;

/// Returns the flat indices that are damaged or contradict the logs, and the reason.
pub fn check_flat_indexes(
    container: &Container,
    summary: &Summary,
    names: Vec<Vec<u8>>,
) -> Result<Vec<(Vec<u8>, &'static str)>> {
    let mut defects = Vec::new();
    if names.is_empty() {
        return Ok(defects);
    }
    let view = ExtentMap::published(container, summary, 1)?;
    for name in names {
        let agrees = match container.open_flat(&name) {
            // Readers ignore this flat index.
            Ok(flat) if !flat.is_usable(&summary.truncations) => Ok(true),
            Ok(flat) => agrees_with_logs(&flat, &view, summary),
            Err(error) => Err(error),
        };
        match agrees {
            Ok(true) => {}
            Ok(false) => defects.push((name, "differs from the logs")),
            Err(error) if error.kind == ErrorKind::Damaged => defects.push((name, "is damaged")),
            Err(error) if error.kind == ErrorKind::NotFound => {} // replaced meanwhile
            Err(error) => return Err(error),
        }
    }
    Ok(defects)
}

/// Returns true if the flat index agrees with the logs, apart from later changes.
fn agrees_with_logs(flat: &Flat, view: &ExtentMap, summary: &Summary) -> Result<bool> {
    let (logs, known) = (view.logs(), flat.logs());
    let (mut is_same, mut visited) = (true, Ok(()));
    flat.extents(FileOffset::ZERO, FileOffset::MAX, &mut |extent| {
        let log = &known[extent.log as usize];
        let frame = log.frames.frame(extent.payload);
        let order = Order { epoch: frame.epoch, sequence: frame.sequence, writer: log.writer };
        let limit = summary.truncations.limit(order, frame.payload_log_offset);
        let pieces = view.pieces(extent.start, extent.end(), &mut |piece| match piece {
            Piece::Data(now) => {
                let log_now = &logs[now.log as usize];
                is_same &= now.start >= limit
                    || log_now.order(now.payload) > order
                    || log_now.writer == log.writer
                        && now.payload == extent.payload + (now.start - extent.start);
            }
            Piece::Hole(start, _) => is_same &= limit <= start,
        });
        visited = std::mem::replace(&mut visited, Ok(())).and(pieces);
    })?;
    visited?;
    // The flat index must also contain all extents.
    let ends: HashMap<u64, PayloadOffset> =
        known.iter().map(|log| (log.writer, log.frames.payload_end())).collect();
    let mut lacks = Ok(false);
    view.pieces(FileOffset::ZERO, FileOffset(view.size()), &mut |piece| {
        let Piece::Data(now) = piece else { return };
        let log_now = &logs[now.log as usize];
        if !matches!(lacks, Ok(false)) || ends.get(&log_now.writer).is_none_or(|end| now.payload >= *end) {
            return;
        }
        let mut bytes = 0;
        let counted = flat.extents(now.start, now.end(), &mut |extent| bytes += u64::from(extent.length));
        lacks = counted.map(|()| bytes < u64::from(now.length));
    })?;
    Ok(is_same && !lacks?)
}
