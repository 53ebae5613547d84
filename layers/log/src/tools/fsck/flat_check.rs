//! Compares the flat indexes of a file with its logs. Writes nothing.

use std::collections::HashMap;

use quell_vfs::{ErrorKind, Result};

use crate::container::container_dir::Container;
use crate::format::extents::Piece;
use crate::format::flat::Flat;
use crate::format::frames::Order;
use crate::format::meta::Summary;
use crate::session::view::View;
use crate::tools::report;

/// Returns the flat indexes that are damaged or contradict the logs, and the reason.
pub fn check_flat_indexes(
    container: &Container,
    summary: &Summary,
    names: Vec<Vec<u8>>,
) -> Result<Vec<(Vec<u8>, &'static str)>> {
    let mut defects = Vec::new();
    if names.is_empty() {
        return Ok(defects);
    }
    let view = report::view_of(container, summary, 1)?;
    for name in names {
        let agrees = match container.open_flat(&name) {
            // Readers ignore it.
            Ok(flat) if !flat.is_usable(&summary.cuts) => Ok(true),
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
fn agrees_with_logs(flat: &Flat, view: &View, summary: &Summary) -> Result<bool> {
    let (logs, known) = (view.logs(), flat.logs());
    let (mut is_same, mut visited) = (true, Ok(()));
    flat.extents(0, u64::MAX, &mut |extent| {
        let log = &known[extent.log as usize];
        let frame = log.frames.frame(extent.position);
        let order = Order { epoch: frame.epoch, sequence: frame.sequence, writer: log.writer };
        let limit = summary.cuts.limit(order, frame.payload_place);
        let pieces = view.pieces(extent.start, extent.end(), &mut |piece| match piece {
            Piece::Data(now) => {
                let log_now = &logs[now.log as usize];
                is_same &= now.start >= limit
                    || log_now.order(now.position) > order
                    || log_now.writer == log.writer
                        && now.position == extent.position + (now.start - extent.start);
            }
            Piece::Hole(start, _) => is_same &= limit <= start,
        });
        visited = std::mem::replace(&mut visited, Ok(())).and(pieces);
    })?;
    visited?;
    // The flat index must also contain all extents.
    let positions: HashMap<u64, u64> = known.iter().map(|log| (log.writer, log.frames.position())).collect();
    let mut lacks = Ok(false);
    view.pieces(0, view.size(), &mut |piece| {
        let Piece::Data(now) = piece else { return };
        let log_now = &logs[now.log as usize];
        if !matches!(lacks, Ok(false))
            || positions.get(&log_now.writer).is_none_or(|end| now.position >= *end)
        {
            return;
        }
        let mut bytes = 0;
        let counted = flat.extents(now.start, now.end(), &mut |extent| bytes += u64::from(extent.length));
        lacks = counted.map(|()| bytes < u64::from(now.length));
    })?;
    Ok(is_same && !lacks?)
}
