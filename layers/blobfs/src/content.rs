//! The bytes of a file: the bytes in the store, and the bytes that were written but are not in the
//! store yet.
//!
//! A write is added to the pending extents. A commit takes them: they are visible to reads of this
//! mount as committing extents until the store has answered. If the commit fails, they are pending
//! again, so that each later publish of any open file fails as well, until the writes are in the
//! store.
//!
//! One commit at a time is in progress, so that commits have the order of the writes. All publishes
//! that wait for it share the next commit and its error. So while a server hangs, a publish waits
//! for at most two commits. A commit may also contain other operations, such as a change of the
//! size. If the store refuses such a commit, only the caller that has requested these operations
//! gets the error; the publishes commit the writes alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use quell_blob::{Committed, Operation, OperationResult, SIZE_BYTES_MAX, Store};
use quell_mount_state::Extents;
use quell_threads::{lock, wait_while};
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
    /// Notified at the end of a commit.
    ended: Condvar,
    /// Whether the file had set-id bits in the last attributes from the store.
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
    commits: Commits,
}

/// The commits of a file, which are numbered from 1.
#[derive(Default)]
struct Commits {
    is_running: bool,
    begun: u64,
    /// The number of the last commit that has succeeded.
    succeeded: u64,
    /// The number of the last commit that has failed with an error that concerns all its writes,
    /// and the error.
    failed: Option<(u64, ErrorKind, String)>,
}

impl Commits {
    /// Returns the result of the commit `number` for a write that it contains, if it has ended. A
    /// later commit also contains the writes of a failed one.
    fn result(&self, number: u64, blob: &[u8]) -> Option<Result<()>> {
        if self.succeeded >= number {
            return Some(Ok(()));
        }
        let (last, kind, reason) = self.failed.as_ref()?;
        let error = || Error { source: Some(reason.clone().into()), ..Error::new(*kind, "write", blob) };
        (*last >= number).then(|| Err(error()))
    }
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

    /// Returns whether the file had set-id bits in the last attributes from the store.
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

    /// Returns attributes of the store, changed by the writes that are not in the store yet.
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
        // The buffered writes are read before the store: writes that are committed meanwhile are
        // read twice, but none is missed.
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

    /// Adds a write. If there are many pending writes, they are committed first.
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
                self.publish(store, blob)?;
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Commits all writes, at the latest with the commit after the one that is in progress.
    pub(crate) fn publish(&self, store: &Store, blob: &[u8]) -> Result<()> {
        self.publish_with(blob, |operations| store.commit(operations))
    }

    fn publish_with(
        &self,
        blob: &[u8],
        commit: impl FnOnce(Vec<Operation>) -> quell_blob::Result<Committed>,
    ) -> Result<()> {
        let mut state = lock(&self.state);
        let Commits { is_running, begun, .. } = state.commits;
        let number = match (state.pending.is_empty(), is_running) {
            (false, _) => begun + 1,
            (true, true) => begun,
            (true, false) => return Ok(()),
        };
        loop {
            if let Some(result) = state.commits.result(number, blob) {
                return result;
            }
            if !state.commits.is_running {
                drop(state);
                return self.commit_with(blob, Vec::new(), commit).map(drop);
            }
            state = wait_while(&self.ended, state, |state| state.commits.is_running);
        }
    }

    /// Commits all writes and then `operations`, as one transaction. Returns the results of
    /// `operations`.
    pub(crate) fn commit(
        &self,
        store: &Store,
        blob: &[u8],
        operations: Vec<Operation>,
    ) -> Result<Vec<OperationResult>> {
        self.commit_with(blob, operations, |operations| store.commit(operations))
    }

    fn commit_with(
        &self,
        blob: &[u8],
        operations: Vec<Operation>,
        commit: impl FnOnce(Vec<Operation>) -> quell_blob::Result<Committed>,
    ) -> Result<Vec<OperationResult>> {
        let (number, taken) = {
            let state = lock(&self.state);
            let mut state = wait_while(&self.ended, state, |state| state.commits.is_running);
            if state.pending.is_empty() && operations.is_empty() {
                return Ok(Vec::new());
            }
            state.committing = Arc::new(std::mem::take(&mut state.pending));
            state.commits.is_running = true;
            state.commits.begun += 1;
            (state.commits.begun, state.committing.clone())
        };
        let write = |(offset, data): (u64, &[u8])| Operation::Write {
            name: blob.to_vec(),
            offset,
            data: data.to_vec(),
        };
        let writes = taken.count();
        let is_of_writes = operations.is_empty();
        let all = taken.iter().map(write).chain(operations).collect();
        let result = commit(all).map_err(|cause| failed(cause, "write", blob));
        let mut state = lock(&self.state);
        state.committing = Arc::default();
        state.commits.is_running = false;
        match &result {
            Ok(_) => state.commits.succeeded = number,
            Err(error) => {
                // If the store does not answer, publishes must not wait for it once more.
                if is_of_writes || matches!(error.kind, ErrorKind::TimedOut | ErrorKind::Unavailable) {
                    state.commits.failed = Some((number, error.kind, error.to_string()));
                }
                let mut pending = (*taken).clone();
                pending.add(&state.pending);
                state.pending = pending;
            }
        }
        drop(state);
        self.ended.notify_all();
        Ok(result?.results.into_iter().skip(writes).collect())
    }
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;

    use quell_blob::Version;

    use super::*;

    const BLOB: &[u8] = b"file";

    fn add(content: &Content, offset: u64) {
        lock(&content.state).pending.write(offset, b"x");
    }

    /// Makes four threads publish while a commit is in progress, which then ends. Returns the
    /// result of the first publish, the results of the four threads, and the number of commits.
    fn publish_together(is_first_ok: bool, is_second_ok: bool) -> (bool, Vec<bool>, usize) {
        let content = Content::default();
        content.opened();
        let (commits, ready) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let answer = |is_ok: bool| match is_ok {
            true => Ok(Committed { version: Version(1), results: Vec::new() }),
            false => Err(Error::new(ErrorKind::TimedOut, "commit", "transaction").into()),
        };
        let (answered, hang) = mpsc::channel::<()>();
        add(&content, 0);
        std::thread::scope(|scope| {
            let (content, commits, ready) = (&content, &commits, &ready);
            let first = scope.spawn(move || {
                content.publish_with(BLOB, |operations| {
                    commits.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(operations.len(), 1);
                    hang.recv().expect("an answer");
                    answer(is_first_ok)
                })
            });
            let is_running = || lock(&content.state).commits.is_running;
            while !is_running() {
                std::thread::yield_now();
            }
            // All of these bytes are in the next commit.
            (1..=4).for_each(|number| add(content, 2 * number));
            let others: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(move || {
                        ready.fetch_add(1, Ordering::Relaxed);
                        content.publish_with(BLOB, |_| {
                            commits.fetch_add(1, Ordering::Relaxed);
                            answer(is_second_ok)
                        })
                    })
                })
                .collect();
            while ready.load(Ordering::Relaxed) < 4 {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
            answered.send(()).expect("a commit that waits");
            let first = first.join().expect("no panic").is_ok();
            let others = others.into_iter().map(|other| other.join().expect("no panic").is_ok()).collect();
            (first, others, commits.load(Ordering::Relaxed))
        })
    }

    #[test]
    fn publishes_that_wait_share_the_next_commit_and_its_error() {
        let (first, others, commits) = publish_together(true, true);
        assert!(first && others.iter().all(|is_ok| *is_ok));
        // A thread that publishes late has nothing to commit.
        assert_eq!(commits, 2);
        // The next commit contains the writes of the failed commit.
        let (first, others, _) = publish_together(false, true);
        assert!(!first && others.iter().all(|is_ok| *is_ok), "{others:?}");
        let (first, others, _) = publish_together(true, false);
        assert!(first && others.iter().all(|is_ok| !*is_ok), "{others:?}");
    }

    /// Publishes while a commit of the same writes and of another operation is in progress, which
    /// fails with `kind`. Returns whether the publish succeeds, and its number of commits.
    fn publish_beside_an_operation(kind: ErrorKind) -> (bool, usize) {
        let content = Content::default();
        content.opened();
        add(&content, 0);
        let commits = AtomicUsize::new(0);
        let (answered, hang) = mpsc::channel::<()>();
        let resize = Operation::Resize { name: BLOB.to_vec(), size_bytes: 1 };
        std::thread::scope(|scope| {
            let (content, commits) = (&content, &commits);
            let first = scope.spawn(move || {
                content.commit_with(BLOB, vec![resize], |operations| {
                    assert_eq!(operations.len(), 2);
                    hang.recv().expect("an answer");
                    Err(Error::new(kind, "commit", "transaction").into())
                })
            });
            while !lock(&content.state).commits.is_running {
                std::thread::yield_now();
            }
            let second = scope.spawn(move || {
                content.publish_with(BLOB, |operations| {
                    assert_eq!(operations.len(), 1);
                    commits.fetch_add(1, Ordering::Relaxed);
                    Ok(Committed { version: Version(1), results: Vec::new() })
                })
            });
            std::thread::sleep(std::time::Duration::from_millis(100));
            answered.send(()).expect("a commit that waits");
            let first = first.join().expect("no panic");
            assert_eq!(first.expect_err("the commit fails").kind, kind);
            (second.join().expect("no panic").is_ok(), commits.load(Ordering::Relaxed))
        })
    }

    #[test]
    fn a_publish_does_not_return_the_error_of_an_operation_that_shared_its_commit() {
        assert_eq!(publish_beside_an_operation(ErrorKind::PermissionDenied), (true, 1));
        assert_eq!(publish_beside_an_operation(ErrorKind::NoSpace), (true, 1));
        assert_eq!(publish_beside_an_operation(ErrorKind::TimedOut), (false, 0));
    }
}
