//! The parts of a batch: a part joins a batch, or is discarded, alone or with the batch.

use std::ops::Range;

use quell_vfs::{Error, ErrorKind, Result};

use crate::batch::{BatchCaller, BatchRecord, BatchState, PartState};
use crate::commit::{end_part, open_batch, open_parts};
use crate::image::Image;

/// The largest number of parts of a batch.
const PARTS_MAX: usize = 4096;

/// A part that joins a batch.
#[derive(Debug, Clone)]
pub struct NewPart {
    /// The number of the batch.
    pub batch: u64,
    /// The name of the part for users.
    pub name: String,
    /// The user, who must be the user of the batch.
    pub caller: BatchCaller,
}

/// Adds a part to an open batch.
pub(crate) fn join(image: &mut Image, new: NewPart, inodes: u64) -> Result<BatchRecord> {
    let failed = |kind, reason: &str| Error {
        source: Some(reason.to_owned().into()),
        ..Error::new(kind, "join batch", new.batch.to_string())
    };
    let Some(batch) = image.batch(new.batch)? else {
        return Err(failed(ErrorKind::NotFound, "there is no batch with this number"));
    };
    if !batch.has_parts() {
        return Err(failed(ErrorKind::InvalidInput, "it was not begun with `quell batch begin`"));
    }
    if batch.state != BatchState::Open {
        return Err(failed(ErrorKind::InvalidInput, "it was committed, submitted, refused or aborted"));
    }
    if batch.caller.uid != new.caller.uid {
        return Err(failed(ErrorKind::PermissionDenied, "it is a batch of another user"));
    }
    if open_parts(image, new.batch)?.len() >= PARTS_MAX {
        return Err(failed(ErrorKind::NoSpace, &format!("it has {PARTS_MAX} parts already")));
    }
    let BatchRecord { snapshot, subtree, is_atomic, .. } = batch;
    let record = |number, inodes: Range<u64>| BatchRecord {
        number,
        name: new.name,
        caller: new.caller,
        inodes,
        snapshot,
        subtree,
        is_atomic,
        state: BatchState::Part { of: new.batch, state: PartState::Open },
    };
    image.add_batch(inodes, record)
}

/// Discards a part of a batch that is not submitted.
pub(crate) fn abort_part(image: &mut Image, part: BatchRecord) -> Result<BatchRecord> {
    let refuse = |reason: &str| {
        let source = Some(reason.to_owned().into());
        Err(Error { source, ..Error::new(ErrorKind::InvalidInput, "abort part", part.number.to_string()) })
    };
    let (true, Some(of)) = (part.is_open_part(), part.part_of()) else {
        return refuse("it is committed or aborted already");
    };
    if let BatchState::Submitted { .. } = open_batch(image, of)?.state {
        return refuse("its batch is submitted");
    }
    let part = end_part(part, PartState::Aborted);
    image.put_batch(&part)?;
    Ok(part)
}

/// Discards a batch and its parts.
pub(crate) fn abort(image: &mut Image, number: u64) -> Result<BatchRecord> {
    let batch = open_batch(image, number)?;
    let mut ended = vec![BatchRecord { state: BatchState::Aborted, snapshot: Vec::new(), ..batch }];
    let parts = open_parts(image, number)?;
    ended.extend(parts.into_iter().map(|part| end_part(part, PartState::Aborted)));
    image.put_batches(&ended)?;
    Ok(ended.swap_remove(0))
}
