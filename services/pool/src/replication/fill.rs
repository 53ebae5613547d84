//! Copies the whole storage of a member to a new backup, in steps. Steps and changes that are made
//! meanwhile are sent to the backup in their order, and a step reads the present state, so each key
//! and each range of data gets its last value at the end.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use quell_kv::{KeyRange, KeyValue};
use quell_vfs::Result;
use quell_wire::encode;
use quell_wire::pool::{Change, DATA_BYTES_MAX, FileId, KeyChange};

use crate::chunks::Chunks;

/// No further key is added to a step that has this size, in bytes.
const KEYS_STEP_BYTES: usize = 128 << 10;
/// The largest number of bytes of data in a step. All of them are in one local file.
const DATA_STEP_BYTES: u64 = DATA_BYTES_MAX as u64;

/// The state of the copy.
pub(super) enum Fill {
    /// The keys after this one are to be copied.
    Keys(Option<Vec<u8>>),
    /// The data of these files is to be copied, beginning at this offset in the first file.
    Data(VecDeque<FileId>, u64),
    /// All keys and data were copied.
    Done,
}

impl Fill {
    /// Returns whether all keys and data were copied.
    pub fn is_done(&self) -> bool {
        matches!(self, Fill::Done)
    }

    /// Returns the encoded changes of the next step.
    pub fn step(&mut self, store: &Arc<dyn KeyValue>, chunks: &Arc<dyn Chunks>) -> Result<Vec<Vec<u8>>> {
        match self {
            Fill::Keys(after) => {
                let (mut entries, mut bytes) = (Vec::new(), 0);
                let start = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                store.scan(&KeyRange::between(start, Bound::Unbounded), &mut |key, value| {
                    bytes += key.len() + value.len();
                    entries.push((key.to_vec(), value.to_vec()));
                    bytes < KEYS_STEP_BYTES
                })?;
                let Some((last, _)) = entries.last() else {
                    let mut files = VecDeque::new();
                    chunks.files(&mut |id| files.push_back(id))?;
                    *self = Fill::Data(files, 0);
                    return Ok(Vec::new());
                };
                let last = last.clone();
                let keys = entries.iter().map(|(key, value)| KeyChange { key, value: Some(value) });
                let change = encode(&Change::Commit(keys.collect()));
                *self = Fill::Keys(Some(last));
                Ok(vec![change])
            }
            Fill::Data(files, offset) => {
                let Some(id) = files.front().copied() else {
                    *self = Fill::Done;
                    return Ok(vec![encode(&Change::Complete)]);
                };
                let Some(state) = chunks.state(id)? else {
                    files.pop_front();
                    *offset = 0;
                    return Ok(Vec::new());
                };
                // Holes, among them the chunks of other members, are not read.
                let start = chunks.next_data(id, *offset)?.map_or(state.end, |start| start.min(state.end));
                let end = state.end.min((start / DATA_STEP_BYTES + 1) * DATA_STEP_BYTES);
                let mut data = vec![0; (end - start) as usize];
                // Parts that were not written remain zeros.
                chunks.read(id, &mut data, start)?;
                *offset = end;
                let write = |offset, data: &[u8]| encode(&Change::Copy { id, offset, data });
                let mut changes = Vec::new();
                if data.iter().any(|byte| *byte != 0) {
                    changes.push(write(start, &data));
                }
                if end == state.end {
                    if changes.is_empty() {
                        // The last byte sets the end of the file. It is zero, unless the file was
                        // truncated after a part of it was copied.
                        let mut last = [0];
                        chunks.read(id, &mut last, end.saturating_sub(1))?;
                        changes.push(write(end.saturating_sub(1), &last));
                    }
                    // An empty file has a local file, too. Its time is part of the attributes.
                    changes.push(match end {
                        0 => encode(&Change::Truncate { id, end, modified: state.modified }),
                        _ => encode(&Change::SetModified { id, time: state.modified }),
                    });
                    files.pop_front();
                    *offset = 0;
                }
                Ok(changes)
            }
            Fill::Done => Ok(Vec::new()),
        }
    }
}
