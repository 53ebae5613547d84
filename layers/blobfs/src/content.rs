//! The bytes of a file: those in the store, and those that were written and are not yet there.
//!
//! A write is added to the pending extents. A commit takes them: they are visible to reads of this
//! mount as committing extents until the store has answered. If the commit fails, they are pending
//! again, so that each later publish of any open file fails as well, until they are in the store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use quell_blob::{Operation, OperationResult, SIZE_BYTES_MAX, Store};
use quell_mount_state::Extents;
use quell_threads::lock;
use quell_vfs::{Attributes, Error, ErrorKind, Result, Time};

use crate::failure::failed;

/// The largest size of the writes of a file that are committed together, in bytes.
const PENDING_BYTES_MAX: usize = 8 << 20;
/// The largest number of extents that are committed together. Each may change two pages of 512
/// bytes.
const PENDING_EXTENTS_MAX: usize = 4096;
/// The set-id bits of `st_mode`.
const SET_ID: u32 = 0o6000;

/// The content of a file that is in use.
#[derive(Default)]
pub(crate) struct Content {
    state: Mutex<State>,
    /// Held during a commit, so that commits have the order of the writes.
    commits: Mutex<()>,
    /// The store last reported set-id bits.
    has_set_id: AtomicBool,
}

#[derive(Default)]
struct State {
    pending: Extents,
    committing: Arc<Extents>,
    /// The time of the last write that is not in the store.
    written: Time,
    /// The number of open files.
    open: usize,
}

impl State {
    fn is_clean(&self) -> bool {
        self.pending.is_empty() && self.committing.is_empty()
    }

    fn end(&self) -> u64 {
        self.pending.end().max(self.committing.end())
    }
}

impl Content {
    pub(crate) fn note_mode(&self, permissions: u32) {
        self.has_set_id.store(permissions & SET_ID != 0, Ordering::Relaxed);
    }

    /// Returns whether the store last reported set-id bits.
    pub(crate) fn has_set_id(&self) -> bool {
        self.has_set_id.load(Ordering::Relaxed)
    }

    pub(crate) fn opened(&self) {
        lock(&self.state).open += 1;
    }

    /// Discards the writes that could not be committed, if no file is open: each close has returned
    /// the error.
    pub(crate) fn closed(&self) {
        let mut state = lock(&self.state);
        state.open -= 1;
        if state.open == 0 {
            state.pending = Extents::default();
        }
    }

    /// Returns attributes of the store as they are with the writes that are not there.
    pub(crate) fn with_buffered(&self, found: Attributes) -> Attributes {
        let state = lock(&self.state);
        if state.is_clean() {
            return found;
        }
        let size_bytes = found.size_bytes.max(state.end());
        let (blocks, time) = (size_bytes.div_ceil(512), state.written);
        Attributes { size_bytes, blocks, modified: time, changed: time, ..found }
    }

    /// Reads bytes, and returns their number.
    pub(crate) fn read(&self, store: &Store, blob: &[u8], into: &mut [u8], offset: u64) -> Result<usize> {
        // Before the read of the store: writes that are committed meanwhile are read twice, but
        // none is missed.
        let (first, second, end) = {
            let state = lock(&self.state);
            let part = |extents: &Extents| extents.part(offset, into.len());
            (part(&state.committing), part(&state.pending), state.end())
        };
        if second.covers(offset, into.len()) {
            second.copy_to(offset, into);
            return Ok(into.len());
        }
        let found = store.read(blob, offset, into).map_err(|cause| failed(cause, "read", blob))?;
        let buffered = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
        let count = found.max(buffered);
        into[found..count].fill(0);
        first.copy_to(offset, into);
        second.copy_to(offset, into);
        Ok(count)
    }

    /// Adds a write. If there are many, they are committed before.
    pub(crate) fn write(&self, store: &Store, blob: &[u8], from: &[u8], offset: u64) -> Result<()> {
        let end = offset.checked_add(from.len() as u64).filter(|end| *end <= SIZE_BYTES_MAX);
        if from.is_empty() {
            return Ok(());
        }
        end.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "write", blob))?;
        let mut at = offset;
        for part in from.chunks(PENDING_BYTES_MAX / 2) {
            loop {
                let mut state = lock(&self.state);
                let is_full = state.pending.bytes() + part.len() > PENDING_BYTES_MAX
                    || state.pending.count() >= PENDING_EXTENTS_MAX;
                if !is_full {
                    state.pending.write(at, part);
                    state.written = now();
                    break;
                }
                drop(state);
                self.commit(store, blob, Vec::new())?;
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Commits all writes and then `operations`, as one transaction. Returns the results of
    /// `operations`.
    pub(crate) fn commit(
        &self,
        store: &Store,
        blob: &[u8],
        operations: Vec<Operation>,
    ) -> Result<Vec<OperationResult>> {
        let _turn = lock(&self.commits);
        let taken = {
            let mut state = lock(&self.state);
            if state.pending.is_empty() && operations.is_empty() {
                return Ok(Vec::new());
            }
            state.committing = Arc::new(std::mem::take(&mut state.pending));
            state.committing.clone()
        };
        let write = |(offset, data): (u64, &[u8])| Operation::Write {
            name: blob.to_vec(),
            offset,
            data: data.to_vec(),
        };
        let writes = taken.count();
        let all = taken.iter().map(write).chain(operations).collect();
        let result = store.commit(all);
        let mut state = lock(&self.state);
        state.committing = Arc::default();
        match result {
            Ok(committed) => Ok(committed.results.into_iter().skip(writes).collect()),
            Err(cause) => {
                let mut pending = (*taken).clone();
                pending.add(&state.pending);
                state.pending = pending;
                Err(failed(cause, "write", blob))
            }
        }
    }
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}
