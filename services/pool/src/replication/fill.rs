//! The copy of everything that a member has to a new backup, in steps. Changes that are made
//! meanwhile go to the backup in the same order: a step reads the present state, so each key and
//! each range of data ends with its last value.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use quell_kv::{KeyRange, KeyValue};
use quell_vfs::Result;
use quell_wire::encode;
use quell_wire::pool::{Change, FileId, KeyChange};

use crate::chunks::Chunks;

/// The size of a step, in bytes, beyond which no further key is added to it.
const STEP_BYTES: usize = 128 << 10;

/// The state of the copy.
pub(super) enum Fill {
    /// The keys after this one are to be copied.
    Keys(Option<Vec<u8>>),
    /// The data of these files is to be copied, of the first one from this offset on.
    Data(VecDeque<FileId>, u64),
    /// Everything was copied.
    Done,
}

impl Fill {
    /// Returns whether everything was copied.
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
                    bytes < STEP_BYTES
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
                let (start, end) = (*offset, state.end.min(*offset + STEP_BYTES as u64));
                let mut data = vec![0; end.saturating_sub(start) as usize];
                // Parts that were not written remain zeros.
                chunks.read(id, &mut data, start)?;
                let is_last = end >= state.end;
                if is_last {
                    files.pop_front();
                    *offset = 0;
                } else {
                    *offset = end;
                }
                let write = |offset, data: &[u8]| {
                    encode(&Change::Copy { id, offset, data, modified: state.modified })
                };
                Ok(match data.iter().any(|byte| *byte != 0) {
                    true => vec![write(start, &data)],
                    // The last byte sets the end of the file. Others are a hole.
                    false if is_last && !data.is_empty() => vec![write(end - 1, &[0])],
                    // An empty local file exists.
                    false if is_last => vec![write(start, &[])],
                    false => Vec::new(),
                })
            }
            Fill::Done => Ok(Vec::new()),
        }
    }
}
