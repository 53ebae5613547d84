//! A key-value store whose commits are records of a guarded log.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use quell_kv::{Batch, KeyRange, KeyValue, Value};
use quell_vfs::{Error, ErrorKind, Result};

use crate::failure::{Failure, Replaced};
use crate::fields::Fault;
use crate::format::checkpoint::{ENTRIES_BYTES_MAX, PIECE_HEADER_BYTES, Piece, decode_piece};
use crate::format::head::{Head, PIECES_MAX};
use crate::format::log::PAYLOAD_BYTES_MAX;
use crate::format::names;
use crate::format::payload::{decode_group, encode_batch, encode_group};
use crate::guarded_log::{BegunCheckpoint, GuardedLog, LogOptions, Takeover, remove_all};
use crate::objects::{Objects, PendingRead, PendingWrite, failure};

/// The largest size of the batches that share a record, in bytes. A larger batch has a record of
/// its own.
const GROUP_BYTES_MAX: usize = 2 << 20;
/// The largest number of pieces of a checkpoint in flight.
const PIECES_IN_FLIGHT: usize = 4;
/// The approximate size of the batches in which the entries of a checkpoint are committed to the
/// local store, in bytes.
const LOAD_BYTES: u64 = 1 << 20;

const _: () = assert!(quell_kv::BATCH_BYTES_MAX as usize + GROUP_BYTES_MAX < PAYLOAD_BYTES_MAX);

/// A key-value store in objects. The entries are also in a local store, which `get` and `scan`
/// read. The local store is filled when the `RadosStore` is opened, and is not used again after the
/// `RadosStore` is closed.
///
/// **Durability.** After a commit has returned `Ok`, all replicas of the pool have it on their
/// disks: it survives the failure of this machine, and power failures as far as the pool does.
///
/// **Failure.** A commit that the cluster refuses, with `NoSpace`, `Quota` or `PermissionDenied`,
/// has no effect, and the store continues to work. After any other failure, every later commit
/// fails with the same error, and the store must be opened again. If another process has opened it
/// meanwhile, the error is `Unavailable` with [`Replaced`], and this process can never commit
/// again. `get` and `scan` do not notice that: a server that must not return old data makes a
/// commit first, or has a lease.
///
/// Commits of several threads that wait at the same time share one record.
pub struct RadosStore<L> {
    local: L,
    name: String,
    objects: Arc<dyn Objects>,
    shared: Mutex<Shared>,
    /// Notified when a thread returns the log; callers that need it for other operations than
    /// commits wait for it.
    log_returned: Condvar,
}

struct Shared {
    /// The log; `None` while a thread uses it without the lock.
    log: Option<GuardedLog>,
    waiting: VecDeque<Arc<WaitingCommit>>,
    /// The number of callers that need the log for other operations than commits. They precede
    /// commits.
    others: usize,
    failure: Option<Failure>,
    checkpoint_runs: bool,
}

/// A commit that waits.
struct WaitingCommit {
    encoded: Vec<u8>,
    state: Mutex<CommitState>,
    /// Notified, with the lock of `Shared`, when the result is known or this commit may lead.
    changed: Condvar,
}

struct CommitState {
    batch: Option<Batch>,
    result: Option<Result<(), Failure>>,
}

/// The size of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointSummary {
    /// The number of entries.
    pub entries: u64,
    /// The size of its objects, in bytes.
    pub bytes: u64,
}

/// Locks a mutex, also after a panic: code that holds a lock of this module does not panic between
/// two changes that belong together.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<L: fmt::Debug> fmt::Debug for RadosStore<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = lock(&self.shared);
        let mut text = f.debug_struct("RadosStore");
        text.field("name", &self.name).field("log", &shared.log).field("local", &self.local);
        text.field("waiting", &shared.waiting.len());
        text.field("failure", &shared.failure).finish()
    }
}

/// The log while a thread uses it. It is returned when the value is dropped.
struct Turn<'a, L> {
    store: &'a RadosStore<L>,
    log: Option<GuardedLog>,
}

impl<L> Turn<'_, L> {
    fn log(&mut self) -> &mut GuardedLog {
        self.log.as_mut().expect("the log is returned by drop alone")
    }
}

impl<L> Drop for Turn<'_, L> {
    fn drop(&mut self) {
        let mut shared = lock(&self.store.shared);
        let failure = self.log.as_ref().and_then(|log| log.failure().cloned());
        let panicked = std::thread::panicking().then(|| Failure::Other {
            kind: ErrorKind::Os(quell_vfs::errno::EIO),
            reason: "a thread panicked during a commit".to_owned(),
        });
        if shared.failure.is_none() {
            shared.failure = failure.or(panicked);
        }
        shared.log = self.log.take();
        self.store.log_returned.notify_all();
        if let Some(commit) = shared.waiting.front() {
            commit.changed.notify_all();
        }
    }
}

impl<L: KeyValue> RadosStore<L> {
    /// Opens the store with this name, which no other process can change from then on, or creates
    /// it. `local` must be empty.
    ///
    /// # Errors
    /// `InvalidInput` if `local` has entries. The errors of [`Takeover::new`] and
    /// [`Takeover::replay`], and of commits to the local store.
    pub fn open(
        objects: Arc<dyn Objects>,
        name: &str,
        local: L,
        options: &LogOptions,
    ) -> Result<RadosStore<L>> {
        let mut is_empty = true;
        local.scan(&KeyRange::all(), &mut |_, _| {
            is_empty = false;
            false
        })?;
        if !is_empty {
            let reason = "the local store of a store in RADOS must be empty";
            return Err(failure(ErrorKind::InvalidInput, "open", name, reason));
        }
        let takeover = Takeover::new(Arc::clone(&objects), name, options)?;
        load_checkpoint(&*objects, name, takeover.head(), &local)?;
        let log = takeover.replay(&mut |record| {
            let batches = decode_group(record.payload).ok_or_else(|| {
                let reason = format!("record {} of {name} does not contain batches", record.sequence);
                failure(ErrorKind::Damaged, "open", name, reason)
            })?;
            batches.into_iter().try_for_each(|batch| local.commit(batch))
        })?;
        let shared = Shared {
            log: Some(log),
            waiting: VecDeque::new(),
            others: 0,
            failure: None,
            checkpoint_runs: false,
        };
        let shared = Mutex::new(shared);
        Ok(RadosStore { local, name: name.to_owned(), objects, shared, log_returned: Condvar::new() })
    }

    /// Returns the store that `get` and `scan` read.
    pub fn local(&self) -> &L {
        &self.local
    }

    /// Returns the epoch of the other process, if this process knows that it was replaced.
    pub fn replaced(&self) -> Option<Replaced> {
        match lock(&self.shared).failure {
            Some(Failure::Replaced(replaced)) => Some(replaced),
            _ => None,
        }
    }

    /// Waits until no other thread uses the log.
    fn turn(&self) -> Turn<'_, L> {
        let mut shared = lock(&self.shared);
        shared.others += 1;
        loop {
            if let Some(log) = shared.log.take() {
                shared.others -= 1;
                return Turn { store: self, log: Some(log) };
            }
            shared = self.log_returned.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the size of the records since the last checkpoint, in bytes. An opening reads them
    /// in addition to the checkpoint. Waits while a commit is in progress.
    pub fn log_bytes(&self) -> u64 {
        self.turn().log().log_bytes()
    }

    /// Returns the epoch of this process. Waits while a commit is in progress.
    pub fn epoch(&self) -> u64 {
        self.turn().log().epoch()
    }

    /// Writes a checkpoint of all entries, and removes the older part of the log and the previous
    /// checkpoint. Commits go on meanwhile. Returns `None` if nothing was committed since the last
    /// checkpoint.
    ///
    /// # Errors
    /// `Busy` if another thread writes a checkpoint. The errors of [`Objects`], after which the
    /// previous checkpoint and the log remain, and commits go on, except after the failures that
    /// [`GuardedLog::append`] describes.
    pub fn checkpoint(&self) -> Result<Option<CheckpointSummary>> {
        if std::mem::replace(&mut lock(&self.shared).checkpoint_runs, true) {
            return Err(Error::new(ErrorKind::Busy, "checkpoint", &self.name));
        }
        let result = self.checkpoint_alone();
        lock(&self.shared).checkpoint_runs = false;
        result
    }

    fn checkpoint_alone(&self) -> Result<Option<CheckpointSummary>> {
        let mut turn = self.turn();
        // After a failure, the checkpoint would lack a commit that is in the log but not in the
        // local store.
        self.sync()?;
        let begun = turn.log().begin_checkpoint()?;
        let id = turn.log().id();
        drop(turn);
        let Some(mut begun) = begun else {
            return Ok(None);
        };
        let written = self.write_pieces(&id, &mut begun);
        let mut turn = self.turn();
        let published = match &written {
            Ok(_) => turn.log().publish_checkpoint(&begun),
            Err(_) => {
                turn.log().discard_pieces(&begun.checkpoint);
                Ok(())
            }
        };
        let garbage = turn.log().take_garbage();
        drop(turn);
        // Objects that cannot be removed now are removed after the next checkpoint.
        let (left, _cause) = remove_all(&*self.objects, garbage);
        self.turn().log().return_garbage(left);
        published?;
        written.map(Some)
    }

    /// Writes the entries as pieces, and counts them in `begun`.
    fn write_pieces(&self, id: &[u8; 16], begun: &mut BegunCheckpoint) -> Result<CheckpointSummary> {
        let mut writer = PieceWriter {
            objects: &*self.objects,
            name: &self.name,
            in_flight: VecDeque::new(),
            summary: CheckpointSummary { entries: 0, bytes: 0 },
        };
        let (mut piece, mut result) = (Piece::new(), Ok(()));
        let scanned = self.local.scan(&KeyRange::all(), &mut |key, value| {
            piece.push(key, value);
            writer.summary.entries += 1;
            if piece.is_complete() {
                let complete = std::mem::replace(&mut piece, Piece::new());
                result = writer.write(complete, id, begun);
            }
            result.is_ok()
        });
        if scanned.is_ok() && result.is_ok() && !piece.is_empty() {
            result = writer.write(piece, id, begun);
        }
        while !writer.in_flight.is_empty() {
            result = result.and(writer.wait());
        }
        scanned.and(result).map(|()| writer.summary)
    }

    /// Removes the log objects and pieces of checkpoints that earlier processes created, and that
    /// the head does not name. Returns their number. The call lists all objects of the pool, so it
    /// takes long in a large pool.
    ///
    /// # Errors
    /// The errors of [`Objects`].
    pub fn remove_orphans(&self) -> Result<usize> {
        let mut found = Vec::new();
        self.objects.list(&format!("{}.", self.name), &mut |object| {
            found.push(object.to_owned());
            true
        })?;
        let mut turn = self.turn();
        found.retain(|object| turn.log().is_orphan(object));
        drop(turn);
        let count = found.len();
        match remove_all(&*self.objects, found) {
            (_, Some(error)) => Err(error),
            _ => Ok(count),
        }
    }

    /// Appends the commits at the front of the queue as one record, and applies them to the local
    /// store. The caller has taken the log.
    fn lead(&self, mut turn: Turn<'_, L>, group: &[Arc<WaitingCommit>]) {
        let payload = encode_group(group.iter().map(|commit| commit.encoded.as_slice()));
        let mut result = turn.log().append(&payload).map(drop).map_err(|error| Failure::of(&error));
        let mut results = Vec::with_capacity(group.len());
        for commit in group {
            let batch = lock(&commit.state).batch.take();
            if let (Ok(()), Some(batch)) = (&result, batch) {
                result = self.local.commit(batch).map_err(|error| {
                    // The log has the batch, and the local store does not.
                    let failure = Failure::unknown(&error);
                    lock(&self.shared).failure.get_or_insert(failure.clone());
                    failure
                });
            }
            results.push(result.clone());
        }
        drop(turn);
        let _shared = lock(&self.shared);
        for (commit, result) in group.iter().zip(results) {
            lock(&commit.state).result = Some(result);
            commit.changed.notify_all();
        }
    }
}

/// Takes the commits that share the next record from the queue.
fn take_group(waiting: &mut VecDeque<Arc<WaitingCommit>>) -> Vec<Arc<WaitingCommit>> {
    let (mut group, mut bytes) = (Vec::new(), 0);
    while let Some(next) = waiting.front() {
        bytes += next.encoded.len();
        if !group.is_empty() && bytes > GROUP_BYTES_MAX {
            break;
        }
        group.extend(waiting.pop_front());
    }
    group
}

/// Writes the pieces of a checkpoint.
struct PieceWriter<'a> {
    objects: &'a dyn Objects,
    name: &'a str,
    /// The names and bytes are kept for the repetition of a write with an unknown result.
    in_flight: VecDeque<(String, Vec<u8>, Box<dyn PendingWrite>)>,
    summary: CheckpointSummary,
}

impl PieceWriter<'_> {
    fn write(&mut self, piece: Piece, id: &[u8; 16], begun: &mut BegunCheckpoint) -> Result<()> {
        if self.in_flight.len() == PIECES_IN_FLIGHT {
            self.wait()?;
        }
        let number = begun.checkpoint.pieces;
        if number == PIECES_MAX {
            return Err(failure(
                ErrorKind::NoSpace,
                "checkpoint",
                self.name,
                "the checkpoint has more pieces than the limit: the store has too many entries",
            ));
        }
        let name = names::piece(self.name, begun.checkpoint.epoch, begun.checkpoint.number, number);
        let bytes = piece.finish(id, &begun.checkpoint, number);
        begun.checkpoint.pieces += 1;
        self.summary.bytes += bytes.len() as u64;
        let pending = self.objects.start_write(&name, &crate::Write::new().write_full(&bytes));
        self.in_flight.push_back((name, bytes, pending));
        Ok(())
    }

    /// Waits for the oldest write. A write with an unknown result is repeated once: each attempt
    /// writes the same bytes.
    fn wait(&mut self) -> Result<()> {
        let Some((name, bytes, pending)) = self.in_flight.pop_front() else {
            return Ok(());
        };
        match pending.wait() {
            Err(error) if !crate::objects::is_refusal(&error) => {
                self.objects.write(&name, &crate::Write::new().write_full(&bytes))
            }
            result => result,
        }
    }
}

/// The reason for which the entries of a checkpoint cannot be loaded.
enum LoadFailure {
    Fault(Fault),
    Local(Error),
}

impl From<Fault> for LoadFailure {
    fn from(fault: Fault) -> LoadFailure {
        LoadFailure::Fault(fault)
    }
}

/// Commits the entries of the checkpoint to the local store.
fn load_checkpoint(objects: &dyn Objects, name: &str, head: &Head, local: &dyn KeyValue) -> Result<()> {
    let Some(checkpoint) = &head.checkpoint else {
        return Ok(());
    };
    let piece_name = |piece| names::piece(name, checkpoint.epoch, checkpoint.number, piece);
    let damaged = |object: &str, reason: String| {
        failure(ErrorKind::Damaged, "read", object, format!("{object}: {reason}"))
    };
    let length = PIECE_HEADER_BYTES + ENTRIES_BYTES_MAX + 1;
    let start = |piece| objects.start_read(&piece_name(piece), 0, length);
    let mut in_flight: VecDeque<(u32, Box<dyn PendingRead>)> = VecDeque::new();
    let (mut next, mut batch) = (0, Batch::new());
    while next < checkpoint.pieces || !in_flight.is_empty() {
        while next < checkpoint.pieces && in_flight.len() < PIECES_IN_FLIGHT {
            in_flight.push_back((next, start(next)));
            next += 1;
        }
        let Some((number, read)) = in_flight.pop_front() else {
            break;
        };
        let object = piece_name(number);
        let read = read.wait().or_else(|error| match crate::objects::is_refusal(&error) {
            true => Err(error),
            false => objects.read(&object, 0, length),
        });
        let bytes = read.map_err(|error| match error.kind {
            ErrorKind::NotFound => damaged(&object, "a piece of the checkpoint is missing".to_owned()),
            _ => error,
        })?;
        decode_piece(&bytes, &head.id, checkpoint, number, &mut |key, value| {
            batch.put(key, value);
            match batch.size_bytes() >= LOAD_BYTES {
                true => local.commit(std::mem::take(&mut batch)).map_err(LoadFailure::Local),
                false => Ok(()),
            }
        })
        .map_err(|cause| match cause {
            LoadFailure::Fault(fault) => damaged(&object, fault.to_string()),
            LoadFailure::Local(error) => error,
        })?;
    }
    local.commit(batch)
}

impl<L: KeyValue> KeyValue for RadosStore<L> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.local.get(key)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        batch.check(self.name.as_bytes())?;
        if batch.is_empty() {
            return Ok(());
        }
        let encoded = encode_batch(&batch);
        let state = Mutex::new(CommitState { batch: Some(batch), result: None });
        let own = Arc::new(WaitingCommit { encoded, state, changed: Condvar::new() });
        let mut shared = lock(&self.shared);
        shared.waiting.push_back(Arc::clone(&own));
        loop {
            if let Some(result) = lock(&own.state).result.take() {
                return result.map_err(|failure| failure.error("commit", &self.name));
            }
            let is_first = shared.waiting.front().is_some_and(|first| Arc::ptr_eq(first, &own));
            if is_first && let Some(failure) = shared.failure.clone() {
                shared.waiting.pop_front();
                if let Some(next) = shared.waiting.front() {
                    next.changed.notify_all();
                }
                return Err(failure.error("commit", &self.name));
            }
            let may_lead = is_first && shared.others == 0;
            shared = match may_lead.then(|| shared.log.take()).flatten() {
                Some(log) => {
                    let group = take_group(&mut shared.waiting);
                    drop(shared);
                    self.lead(Turn { store: self, log: Some(log) }, &group);
                    lock(&self.shared)
                }
                None => own.changed.wait(shared).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn scan(&self, range: &KeyRange<'_>, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.local.scan(range, visit)
    }

    /// Writes nothing: a commit that has returned `Ok` is already on the disks of the pool.
    ///
    /// # Errors
    /// The failure after which all commits fail.
    fn sync(&self) -> Result<()> {
        match &lock(&self.shared).failure {
            Some(failure) => Err(failure.error("sync", &self.name)),
            None => Ok(()),
        }
    }

    fn size_bytes(&self) -> Result<u64> {
        self.local.size_bytes()
    }
}
