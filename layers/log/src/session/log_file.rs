//! One file as one node has it open: the writers of its processes, the order of their writes, and
//! its reader. `session` describes the order of the locks.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use quell_posix::{Stat, WritableDir};
use quell_vfs::{
    Attributes, Caller, Change, Error, ErrorKind, HeldLock, Kind, LockMode, LockOwner, LockScope, NodeId,
    Result, Time,
};

use crate::container::{Container, Descriptors, FIRST_EPOCH, SET_ID, effective_set_id, may_write};
use crate::format::{
    COVERS_MAX, CoveredLog, Covers, FILE_END_MAX, FileOffset, MetaName, Order, PAYLOAD_BYTES_MAX, Summary,
    Truncation,
};
use crate::locks::{Rank, RankedGuard, RankedMutex};
use crate::not_found::none_if_not_found;
use crate::session::extent_map::Flattened;
use crate::session::failures::Failures;
use crate::session::file_locks::FileLocks;
use crate::session::flatten::flatten_after_last_writer;
use crate::session::reader::{ReadContext, Reader};
use crate::session::sequencer::{EpochRequest, Sequencer};
use crate::session::share::Share;
use crate::session::writer::{LockedWriter, Writer, WriterContext, Written};

/// The options for reading and writing files of a mount.
#[derive(Debug, Clone, Copy)]
pub struct Choices {
    /// Number of bytes that a writer collects before it appends a frame to its log.
    pub buffer_bytes: usize,
    /// Number of threads that read index logs when a file is opened.
    pub index_threads: usize,
    /// When the last writer of a file ends, its index is flattened if all index logs together are
    /// not larger than this number of bytes (the threshold of Index Flatten, section IV-A). 0
    /// disables flattening.
    pub flatten_bytes: u64,
    /// Flattening is done by a thread of the mount, and close(2) does not wait for it.
    pub flattens_later: bool,
    /// New files begin as one object, if their permissions and `buffer_bytes` allow it.
    pub begins_as_object: bool,
}

/// The maximum number of attempts to determine the attributes of a file while writers end. The last
/// attempt may lack the data of a writer that ends during it.
const ATTRIBUTE_ATTEMPTS_MAX: usize = 10;

/// The result of one attempt to determine the attributes of a file.
struct AttributesOnce {
    attributes: Attributes,
    summary: Summary,
    /// The writers of this node that are open in `summary`, and whose data is not in `attributes`.
    unaccounted: Vec<u64>,
}

/// A file of the mount that is open or known to the kernel.
pub struct LogFile {
    container: Container,
    choices: Choices,
    sequencer: RankedMutex<Sequencer>,
    /// Held while one thread takes an epoch.
    epoch: RankedMutex<()>,
    writers: RankedMutex<HashMap<u32, WriterSlot>>,
    reader: Reader,
    /// The directory in which the container was found.
    parent: Option<Arc<dyn WritableDir>>,
    /// Counts changes of the container and its names; `synced_changes` is the number of changes
    /// that survive a power failure.
    changes: AtomicU64,
    synced_changes: RankedMutex<u64>,
    failures: Failures,
    /// The file had set-id bits when its attributes were last read. The kernel reads them at each
    /// open.
    has_set_id: AtomicBool,
    /// Writers whose last handle was closed and that could not end. They keep their collected data.
    unclosed: RankedMutex<Vec<Arc<Writer>>>,
    locks: FileLocks,
    /// This mount has set the modification time of the object as which the file began.
    is_object_time_set: AtomicBool,
}

impl Default for Choices {
    fn default() -> Choices {
        Choices {
            buffer_bytes: 1 << 20,
            index_threads: 4,
            flatten_bytes: 0,
            flattens_later: false,
            begins_as_object: false,
        }
    }
}

impl std::fmt::Debug for LogFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogFile").field("container", &self.container).finish_non_exhaustive()
    }
}

/// The writer of a process, and the number of its open handles.
struct WriterSlot {
    writer: Arc<Writer>,
    handles: usize,
}

impl LogFile {
    /// Creates a file from a container that was found in `parent`, which is needed for syncs.
    pub fn new(
        container: Container,
        parent: Option<Arc<dyn WritableDir>>,
        choices: Choices,
        descriptors: Arc<Descriptors>,
    ) -> LogFile {
        LogFile::with_epoch(container, parent, choices, descriptors, 0)
    }

    /// Creates a file from a container that this node has just created. The node then has the first
    /// epoch.
    pub fn created(
        container: Container,
        parent: Option<Arc<dyn WritableDir>>,
        choices: Choices,
        descriptors: Arc<Descriptors>,
    ) -> LogFile {
        LogFile::with_epoch(container, parent, choices, descriptors, FIRST_EPOCH)
    }

    fn with_epoch(
        container: Container,
        parent: Option<Arc<dyn WritableDir>>,
        choices: Choices,
        descriptors: Arc<Descriptors>,
        epoch: u64,
    ) -> LogFile {
        LogFile {
            container,
            choices,
            sequencer: RankedMutex::new(Rank::Sequencer, Sequencer::new(epoch)),
            epoch: RankedMutex::new(Rank::Epoch, ()),
            writers: RankedMutex::new(Rank::Slots, HashMap::new()),
            reader: Reader::new(descriptors, choices.index_threads),
            parent,
            changes: AtomicU64::new(1),
            synced_changes: RankedMutex::new(Rank::Sync, 0),
            failures: Failures::default(),
            has_set_id: AtomicBool::new(false),
            unclosed: RankedMutex::new(Rank::Leaf, Vec::new()),
            locks: FileLocks::new(),
            is_object_time_set: AtomicBool::new(false),
        }
    }

    pub fn container(&self) -> &Container {
        &self.container
    }

    fn sequencer(&self) -> RankedGuard<MutexGuard<'_, Sequencer>> {
        self.sequencer.lock()
    }

    fn slots(&self) -> RankedGuard<MutexGuard<'_, HashMap<u32, WriterSlot>>> {
        self.writers.lock()
    }

    /// Returns the parts of this file that its reader uses.
    fn read_context(&self) -> ReadContext<'_> {
        ReadContext { container: &self.container, sequencer: &self.sequencer }
    }

    /// Returns the writers of this node.
    fn writers(&self) -> Vec<Arc<Writer>> {
        self.sequencer().writers()
    }

    fn is_own(&self, writer: u64) -> bool {
        self.sequencer().own_data_bytes(writer).is_some()
    }

    /// Returns the writer of `process`, and adds a handle, which `release` removes.
    ///
    /// # Errors
    ///
    /// The error of another writer of this node whose collected data could not be written. Then no
    /// handle was added.
    pub fn writer(&self, process: u32) -> Result<Arc<Writer>> {
        // Data written after an open must be later than data published before it. A file that was
        // just created has no such data.
        self.sequencer().mark_opened();
        let writer = self.add_handle(process);
        // Data that other writers have collected without a record must be in frames before this
        // handle writes, because an overlap with it would not be detected. Several handles may be
        // opened at the same time; each open flushes these writers.
        let unrecorded = self.sequencer().unrecorded(writer.id());
        for other in unrecorded {
            let flushed = other.lock().flush(self, other.id());
            if let Err(error) = flushed {
                // Nothing was written with the handle.
                let _ = self.release(process);
                return Err(error);
            }
            self.sequencer().mark_recorded(other.id());
        }
        Ok(writer)
    }

    /// Adds a handle to the writer of `process`, which is created if there is none.
    fn add_handle(&self, process: u32) -> Arc<Writer> {
        let mut slots = self.slots();
        let slot = slots.entry(process).or_insert_with(|| {
            // The first writer of a new file writes its object.
            let object = self.container.object().and_then(|object| Some((object.writer(), object.claim()?)));
            let writer = Arc::new(match object {
                Some((id, data)) => Writer::first(id, self.choices.buffer_bytes, &self.container, data),
                None => Writer::new(self.container.stores().random_writer(), self.choices.buffer_bytes),
            });
            self.sequencer().add_writer(&writer);
            WriterSlot { writer, handles: 0 }
        });
        slot.handles += 1;
        Arc::clone(&slot.writer)
    }

    /// Passes a new object to the file server, so that other processes find it with its header.
    /// After an error, each close and sync of the file tries again, until one succeeds.
    pub fn write_back_new_object(&self) -> Result<()> {
        let Some(object) = self.container.object() else { return Ok(()) };
        object.write_back_new().inspect_err(|error| self.failures.record(error))
    }

    /// Returns true if a write or sync has failed since the last successful sync.
    pub fn has_failures(&self) -> bool {
        self.failures.is_any()
    }

    /// Removes a handle of `process`. The writer of the process ends with its last handle. Returns
    /// true if no writer of this node is left.
    pub fn release(&self, process: u32) -> Result<bool> {
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(&process) else { return Ok(false) };
        slot.handles -= 1;
        if slot.handles > 0 {
            return Ok(false);
        }
        let writer = slots.remove(&process).expect("it was there").writer;
        let is_last = slots.is_empty();
        drop(slots);
        let closed = writer.lock().close(self, writer.id());
        match &closed {
            Ok(()) => self.sequencer().remove_writer(writer.id()),
            // Every sync and close of the file tries again to write the data that it has collected.
            Err(error) => {
                tracing::debug!(
                    container = %self.container.shown_number(),
                    %error,
                    "cannot end a writer: every sync and close tries again"
                );
                self.failures.record(error);
                self.unclosed.lock().push(writer);
            }
        }
        closed.map(|()| is_last)
    }

    /// Ends the writers that could not end when their last handle was closed.
    fn close_unclosed(&self) -> Result<()> {
        let mut ended = Ok(());
        let waiting = std::mem::take(&mut *self.unclosed.lock());
        for writer in waiting {
            let closed = writer.lock().close(self, writer.id());
            match &closed {
                Ok(()) => self.sequencer().remove_writer(writer.id()),
                Err(_) => self.unclosed.lock().push(writer),
            }
            ended = ended.and(closed);
        }
        ended
    }

    /// Creates a flat index if the options require it and there is no writer. Returns an error soon
    /// after `is_cancelled` was set.
    pub fn flatten_if_due(&self, is_cancelled: &AtomicBool) -> Result<Option<Flattened>> {
        let Choices { index_threads, flatten_bytes, .. } = self.choices;
        // An object has no index that could be flattened. The writer that has just ended has looked
        // for a container; if another process creates one now, its last writer flattens the index.
        if flatten_bytes == 0 || !self.slots().is_empty() || self.container.was_only_object() {
            return Ok(None);
        }
        flatten_after_last_writer(&self.container, index_threads, flatten_bytes, is_cancelled)
    }

    /// Ends all writers of this node, including those with open handles.
    pub fn end(&self) -> Result<()> {
        let slots = std::mem::take(&mut *self.slots());
        // After a failed sync, the file is synced again while its writers exist, because they
        // rewrite the data that may be lost.
        let mut ended = if self.failures.is_any() { self.sync() } else { Ok(()) };
        for WriterSlot { writer, .. } in slots.into_values() {
            ended = ended.and(writer.lock().close(self, writer.id()));
        }
        let released = self.locks.release_all();
        match ended.and(self.close_unclosed()).and(released) {
            // Another process removed the file, so its data is not needed.
            Err(_) if self.container.is_gone().is_ok_and(|gone| gone) => Ok(()),
            ended => ended,
        }
    }

    /// Takes a new epoch if the next write must be later than data that was synced or seen. The
    /// first epoch is taken with the first frame.
    fn take_epoch_if_stale(&self) -> Result<()> {
        if self.sequencer().epoch_request().is_none() {
            return Ok(());
        }
        let _one = self.epoch.lock();
        // Another thread may have taken one meanwhile.
        let Some(request) = self.sequencer().epoch_request() else { return Ok(()) };
        let summary = self.container.summary()?;
        let is_needed = !self.sequencer().is_alone(&request, &summary);
        let taken = match is_needed {
            true => Some(self.take_epochs(&request, 1)?),
            false => None,
        };
        self.sequencer().end_request(&request, taken);
        Ok(())
    }

    fn take_epochs(&self, request: &EpochRequest, count: u64) -> Result<u64> {
        let taken = self.container.take_epochs(request.known, count);
        taken.inspect_err(|error| self.failures.record(error))
    }

    /// Writes all of `from` at `offset`. Writes of this node's processes are ordered by the time of
    /// this call.
    pub fn write_at(&self, writer: &Writer, from: &[u8], offset: FileOffset) -> Result<()> {
        let end = end_of(offset, from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        self.take_epoch_if_stale()?;
        loop {
            let mut state = writer.lock();
            if state.is_object() && !(self.has_first_epoch() && state.may_extend_object(offset, end)) {
                self.leave_object(writer, &mut state)?;
            }
            state.flush_if_full(self, writer.id(), from.len())?;
            let claimed = self.sequencer().claim(writer.id(), offset, end);
            let rivals = match claimed {
                Ok(claim) => {
                    let put = state.put(self, writer.id(), from, offset);
                    if put.is_err() {
                        self.sequencer().withdraw_claim(writer.id(), &claim, state.end());
                    }
                    drop(state);
                    self.reader.spill_if_large(self.read_context());
                    return put;
                }
                Err(rivals) => rivals,
            };
            drop(state);
            for rival in rivals {
                rival.lock().flush(self, rival.id())?;
            }
        }
    }

    /// Returns true if frames of this node still have the first epoch, as all frames of an object
    /// have.
    fn has_first_epoch(&self) -> bool {
        self.sequencer().known_epochs().0 == FIRST_EPOCH
    }

    /// Ends the object of a writer, which continues with logs of its own in the container.
    fn leave_object(&self, writer: &Writer, state: &mut LockedWriter) -> Result<()> {
        let (before, after) = (writer.id(), self.container.stores().random_writer());
        state.leave_object(self, before)?;
        writer.set_id(after);
        self.sequencer().renumber(before, after);
        Ok(())
    }

    /// Replaces the bytes of `offset..offset + length` within the file by zeros, which take no
    /// space in the log.
    ///
    /// # Errors
    ///
    /// `Unsupported` in a container that an earlier version of Quell has created.
    pub fn write_zeros(&self, writer: &Writer, offset: FileOffset, length: u64) -> Result<()> {
        if !self.container.head().has_zeros() {
            return Err(Error {
                source: Some("an earlier version of Quell created the file; use a copy of it".into()),
                ..Error::new(ErrorKind::Unsupported, "write zeros to", offset.to_string())
            });
        }
        let size = FileOffset(self.size_and_summary()?.0);
        let end = FileOffset(offset.0.saturating_add(length)).min(size);
        if offset >= end {
            return Ok(());
        }
        self.take_epoch_if_stale()?;
        self.flush_for(offset, end)?;
        let mut ranges = self.reader.data_ranges(self.read_context(), offset, end, PAYLOAD_BYTES_MAX)?;
        if ranges.is_empty() {
            // A frame is written nevertheless, because the modification time of the file must
            // change.
            ranges.push(offset..offset + 1);
        }
        let written = ranges.into_iter().try_for_each(|range| self.write_zeros_at(writer, range));
        self.reader.spill_if_large(self.read_context());
        written
    }

    /// Writes one frame of zeros.
    fn write_zeros_at(&self, writer: &Writer, range: Range<FileOffset>) -> Result<()> {
        loop {
            let mut state = writer.lock();
            if state.is_object() {
                self.leave_object(writer, &mut state)?;
            }
            state.flush(self, writer.id())?;
            let claimed = self.sequencer().claim(writer.id(), range.start, range.end);
            let rivals = match claimed {
                Ok(claim) => {
                    let put = state.put_zeros(self, writer.id(), range.start, range.end - range.start);
                    if put.is_err() {
                        self.sequencer().withdraw_claim(writer.id(), &claim, state.end());
                    }
                    return put;
                }
                Err(rivals) => rivals,
            };
            drop(state);
            for rival in rivals {
                rival.lock().flush(self, rival.id())?;
            }
        }
    }

    /// Writes all of `from` at the end of the file as this node knows it, and returns the offset.
    pub fn append(&self, writer: &Writer, from: &[u8]) -> Result<FileOffset> {
        self.take_epoch_if_stale()?;
        let is_end_known = self.sequencer().is_end_known();
        if !is_end_known {
            let (size, summary) = self.size_and_summary()?;
            let last_truncation = summary.last_truncation().map(|truncation| truncation.order);
            self.sequencer().set_end(size, last_truncation);
        }
        let (offset, end) = {
            let mut sequencer = self.sequencer();
            let offset = sequencer.end();
            let end = end_of(offset, from.len())?;
            sequencer.move_end(offset, end);
            (offset, end)
        };
        let written = self.write_at(writer, from, offset);
        if written.is_err() {
            // The next append begins here again, unless another append came later.
            self.sequencer().move_end(end, offset);
        }
        written.map(|()| offset)
    }

    /// Publishes the data of `writer`; `None` for a handle that is open for reading. After a failed
    /// write or sync the whole file is synced, so that success means that no data is lost.
    pub fn publish(&self, writer: Option<&Writer>) -> Result<()> {
        if self.failures.is_any() {
            return self.sync();
        }
        match writer {
            Some(writer) => writer.lock().publish(self, writer.id()),
            None => Ok(()),
        }
    }

    /// Locks `scope` for `owner`, unless another owner has a conflicting lock. Data that others
    /// published before they released a lock is then visible here, and later writes of this node
    /// are later than that data.
    pub fn try_lock(&self, owner: LockOwner, scope: LockScope, mode: LockMode) -> Result<bool> {
        // The lock may replace an exclusive lock, under which data was written.
        if mode == LockMode::Shared && self.locks.has_locks(owner) {
            self.publish_all()?;
        }
        if !self.locks.try_lock(&self.container, owner, scope, mode)? {
            return Ok(false);
        }
        self.sequencer().mark_opened();
        if self.locks.needs_sync() {
            // A log is read from the servers after it was opened again.
            self.reader.descriptors().forget_file(self.container.identity());
        }
        match self.refresh() {
            Ok(()) => Ok(true),
            Err(error) => {
                // A program that gets an error does not expect to hold the lock.
                let _ = self.locks.unlock(owner, scope);
                Err(error)
            }
        }
    }

    /// Publishes all data of this node, then removes the locks of `owner` in `scope`, also after an
    /// error. It publishes all data, because a process may hold a lock for other writers: its
    /// children, or threads that write through other descriptors.
    pub fn unlock(&self, owner: LockOwner, scope: LockScope) -> Result<()> {
        self.publish_all().and(self.unlock_unpublished(owner, scope))
    }

    /// Removes the locks of `owner` in `scope`, without publishing data.
    pub fn unlock_unpublished(&self, owner: LockOwner, scope: LockScope) -> Result<()> {
        self.locks.unlock(owner, scope)
    }

    /// Publishes the data of all writers of this node, so that other nodes see it.
    fn publish_all(&self) -> Result<()> {
        if self.failures.is_any() {
            return self.sync();
        }
        let needs_sync = self.locks.needs_sync();
        self.writers().iter().try_for_each(|writer| match needs_sync {
            true => self.sync_writer(writer),
            false => writer.lock().publish(self, writer.id()),
        })
    }

    /// Syncs the data of one writer. The names of new logs are synced by the next sync of the file.
    fn sync_writer(&self, writer: &Writer) -> Result<()> {
        let synced = writer.lock().sync(self, writer.id());
        match synced {
            Ok(true) => {
                self.changes.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
            Ok(false) => Ok(()),
            Err(error) => {
                self.failures.record(&error);
                Err(error)
            }
        }
    }

    /// Returns a lock of another owner that conflicts with the described one.
    pub fn conflicting_lock(
        &self,
        owner: LockOwner,
        scope: LockScope,
        mode: LockMode,
    ) -> Result<Option<HeldLock>> {
        self.locks.conflicting(&self.container, owner, scope, mode)
    }

    /// Removes all locks of `owner`. If it has any, publishes all data of this node first, as
    /// `unlock` does.
    pub fn release_locks(&self, owner: LockOwner) -> Result<()> {
        let published = if self.locks.has_locks(owner) { self.publish_all() } else { Ok(()) };
        published.and(self.locks.release(owner))
    }

    /// Syncs the data of all writers of this node, and unsynced data of writers that have ended. An
    /// error is returned by every later sync and publish on every handle, until one of them
    /// succeeds.
    pub fn sync(&self) -> Result<()> {
        let mut synced_changes = self.synced_changes.lock();
        // The count is read before the work: changes during it are left to the next sync.
        let changes = self.changes.load(Ordering::SeqCst);
        let failures = self.failures.seen();
        match self.sync_all(*synced_changes < changes || failures.is_any) {
            Ok(()) => {
                *synced_changes = changes;
                self.failures.end(failures);
            }
            Err(error) => {
                self.failures.record(&error);
                return Err(error);
            }
        }
        drop(synced_changes);
        self.sequencer().mark_stale();
        self.refresh()
    }

    /// Syncs as much as possible, and returns the first error. `has_changed` is true if the
    /// container and its names must be synced, too.
    fn sync_all(&self, has_changed: bool) -> Result<()> {
        let (mut are_new, mut synced) = (has_changed, Ok(()));
        let mut is_object_synced = false;
        for writer in self.writers() {
            let mut state = writer.lock();
            match state.sync(self, writer.id()) {
                Ok(is_new) => {
                    are_new |= is_new;
                    is_object_synced |= state.is_object();
                }
                Err(error) => synced = synced.and(Err(error)),
            }
        }
        synced = synced.and(self.close_unclosed());
        if self.container.only_object()?.is_some() {
            synced?;
            if are_new {
                self.container.sync(is_object_synced)?;
                if let Some(parent) = &self.parent {
                    parent.sync()?;
                }
            }
            return Ok(());
        }
        let summary = self.container.summary()?;
        for closed in summary.closed.iter().filter(|closed| !summary.is_dead(closed)) {
            let has_failed = summary.has_failed(closed.writer);
            if !closed.is_synced || has_failed {
                synced = synced.and(self.container.sync_ended(closed, has_failed));
                are_new = true;
            }
        }
        synced?;
        if are_new {
            self.container.sync(is_object_synced)?;
            if let Some(parent) = &self.parent {
                parent.sync()?;
            }
        }
        Ok(())
    }

    /// Adds the data that other nodes have published to the extent map.
    pub fn refresh(&self) -> Result<()> {
        self.reader.refresh(self.read_context())
    }

    /// Builds the extent map from shares (see [`Reader::take_shares`]).
    pub fn take_shares(&self, shares: &[Share]) -> Result<()> {
        self.reader.take_shares(self.read_context(), shares)
    }

    pub fn read_at(&self, into: &mut [u8], offset: FileOffset) -> Result<usize> {
        self.reader.read_at(self.read_context(), into, offset, &|start, end| {
            self.flush_for(start, end)?;
            Ok(self.collected_end())
        })
    }

    /// Writes the frames with bytes of `start..end`, so that the extent map has them.
    fn flush_for(&self, start: FileOffset, end: FileOffset) -> Result<()> {
        let writers = self.sequencer().writers_with(start, end);
        for writer in writers {
            let mut state = writer.lock();
            if state.holds(start, end) {
                state.flush(self, writer.id())?;
            }
        }
        Ok(())
    }

    /// Returns the end of the collected data.
    fn collected_end(&self) -> FileOffset {
        let known = self.sequencer().collected_end();
        known.unwrap_or_else(|| {
            self.writers().iter().map(|writer| writer.lock().collected_end()).max().unwrap_or_default()
        })
    }

    /// Returns the size of the file for stat(2), and the content of `meta`.
    fn size_and_summary(&self) -> Result<(u64, Summary)> {
        let summary = self.container.summary()?;
        Ok((self.size_of(&summary, &self.writers())?, summary))
    }

    /// Returns the size of the file for stat(2). `writers` were the writers of this node after
    /// `summary` was read.
    fn size_of(&self, summary: &Summary, writers: &[Arc<Writer>]) -> Result<u64> {
        let (size, unknown) = summary.size();
        let own_truncation = self.sequencer().own_truncation();
        // The end that a writer knows is valid if its data is later than the last truncation.
        let is_later = |first: u64| {
            summary.last_truncation().is_none_or(|truncation| {
                truncation.order.epoch < first || Some(truncation.order) == own_truncation
            })
        };
        let (mut end, mut known, mut collected) = (FileOffset::ZERO, true, FileOffset::ZERO);
        for writer in writers {
            let state = writer.lock();
            (end, collected) = (end.max(state.end()), collected.max(state.collected_end()));
            known &= state.epochs().is_none_or(|epochs| is_later(*epochs.start()));
        }
        // Open writers of other nodes have published their size. Their logs are not opened, because
        // on some file systems an open revokes the lock that lets a writer buffer its data. If the
        // file is read on this node, the extent map follows the logs anyway. The logs of a dead
        // writer may have more data than was published.
        let host = self.container.host();
        let mut foreign = summary.open.iter().filter(|running| !self.is_own(running.writer)).peekable();
        known &= self.reader.is_unread() || foreign.peek().is_none();
        known &= !foreign.any(|running| (host.is_gone)(&running.holder));
        if known && unknown.iter().all(|id| writers.iter().any(|writer| writer.id() == *id)) {
            return Ok(size.max(end.0));
        }
        let known = self.reader.refreshed_size(self.read_context())?;
        Ok(known.max(collected.0))
    }

    pub fn attributes(&self, node: NodeId) -> Result<Attributes> {
        self.attributes_and_summary(node).map(|(attributes, _)| attributes)
    }

    /// Returns the attributes that a new file had when it was created.
    pub fn attributes_of_new(&self, node: NodeId, object: Option<Stat>) -> Result<Attributes> {
        let access = match object {
            Some(stat) => stat,
            None => self.container.access_stat()?,
        };
        self.has_set_id.store(access.mode & SET_ID != 0, Ordering::Relaxed);
        let permissions = self.shown_permissions(&access, &Summary::default())?;
        Ok(Attributes {
            node,
            kind: Kind::File,
            permissions,
            uid: access.uid,
            gid: access.gid,
            nlink: 1,
            rdev: 0,
            size_bytes: 0,
            blocks: 0,
            modified: access.modified,
            changed: access.modified.max(access.changed),
        })
    }

    /// Returns the attributes, and the content of `meta` from which they were determined.
    pub fn attributes_and_summary(&self, node: NodeId) -> Result<(Attributes, Summary)> {
        if self.is_object_time_set.load(Ordering::Relaxed) {
            self.flush_all()?; // collected data has no time yet
        }
        let mut unaccounted = Vec::new();
        for _ in 1..ATTRIBUTE_ATTEMPTS_MAX {
            let attempt = self.attributes_once(node)?;
            // These writers have ended, or have left their object, after `meta` was read. A name
            // that a failed creation of a log has left has no writer, so a second attempt finds it
            // again.
            if attempt.unaccounted.iter().all(|id| unaccounted.contains(id)) {
                return Ok((attempt.attributes, attempt.summary));
            }
            unaccounted = attempt.unaccounted;
        }
        let AttributesOnce { attributes, summary, .. } = self.attributes_once(node)?;
        Ok((attributes, summary))
    }

    /// Reads `meta`, and determines the attributes from it and from the writers of this node.
    fn attributes_once(&self, node: NodeId) -> Result<AttributesOnce> {
        let (access, summary) = self.container.access_and_summary()?;
        self.has_set_id.store(access.mode & SET_ID != 0, Ordering::Relaxed);
        let writers = self.writers();
        let size_bytes = self.size_of(&summary, &writers)?;
        let mut written = summary.written();
        let mut data_bytes = summary.data_bytes();
        let mut open = Vec::new();
        for writer in writers {
            let mut state = writer.lock();
            if summary.has_set_time() {
                state.flush(self, writer.id())?; // collected data has no time yet
            }
            if !state.has_ended() {
                open.push(writer.id());
            }
            // An object that has ended is in the summary.
            if summary.closed.iter().all(|closed| closed.writer != writer.id()) {
                data_bytes += state.data_bytes();
            }
            if let Some(epochs) = state.epochs()
                && !summary.set_after(*epochs.end())
            {
                written = written.max(state.modified()?);
            }
        }
        let own = summary.open.iter().map(|running| running.writer).filter(|&id| self.is_own(id));
        let unaccounted = own.filter(|id| !open.contains(id)).collect();
        let foreign = summary.open.iter().filter(|running| !self.is_own(running.writer));
        data_bytes += foreign
            .filter_map(|running| running.published)
            .map(|published| published.data_bytes)
            .sum::<u64>();
        let modified = written.or(summary.modified()).unwrap_or(access.modified);
        let attributes = Attributes {
            node,
            kind: Kind::File,
            permissions: self.shown_permissions(&access, &summary)?,
            uid: access.uid,
            gid: access.gid,
            nlink: 1,
            rdev: 0,
            size_bytes,
            blocks: data_bytes.div_ceil(512),
            modified,
            changed: modified.max(access.changed),
        };
        Ok(AttributesOnce { attributes, summary, unaccounted })
    }

    /// Returns the permissions, without effective set-id bits if a user other than the owner and
    /// root may have written the content: that content would run with the owner's rights.
    fn shown_permissions(&self, access: &Stat, summary: &Summary) -> Result<u32> {
        let permissions = access.mode & 0o7777;
        let effective = effective_set_id(permissions);
        if effective == 0 {
            return Ok(permissions);
        }
        let closed = summary.closed.iter().map(|closed| closed.writer);
        let writers = closed.chain(summary.open.iter().map(|running| running.writer));
        match self.container.belongs_to(access.uid, writers)? {
            true => Ok(permissions),
            false => Ok(permissions & !effective),
        }
    }

    pub fn change(&self, change: &Change) -> Result<()> {
        if let Some(size) = change.size_bytes {
            self.truncate(size)?;
        }
        if change.permissions.is_some() || change.uid.is_some() || change.gid.is_some() {
            if change.permissions.is_some_and(|permissions| permissions & SET_ID != 0) {
                self.has_set_id.store(true, Ordering::Relaxed);
            }
            self.container.change(change, self.parent.as_deref())?;
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
        if let Some(time) = change.modified {
            self.set_time(time)?;
        }
        Ok(())
    }

    /// Writes the collected data of all writers of this node.
    fn flush_all(&self) -> Result<()> {
        self.writers().iter().try_for_each(|writer| writer.lock().flush(self, writer.id()))
    }

    /// Changes the attributes of the object as which the file began, if it has no container. If the
    /// modification time is changed, all data is written before. Returns false if the container
    /// must be changed, too, because another process has created it meanwhile.
    pub(crate) fn change_only_object(&self, change: &Change) -> Result<bool> {
        if change.modified.is_some() {
            self.is_object_time_set.store(true, Ordering::Relaxed);
            let writers = self.writers();
            writers.iter().try_for_each(|writer| writer.lock().publish_and_end_object(self, writer.id()))?;
        }
        if self.container.only_object()?.is_none() {
            return Ok(false);
        }
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.container.change_object(change, self.parent.as_deref())?;
        Ok(!self.container.complete_if_begun()?)
    }

    /// Returns whether the user may write to the file.
    pub(crate) fn may_be_written_by(&self, user: &Caller) -> Result<bool> {
        Ok(may_write(&self.container.access_stat()?, user))
    }

    /// Returns the file's permissions.
    pub(crate) fn permissions(&self) -> Result<u32> {
        Ok(self.container.access_stat()?.mode & 0o7777)
    }

    /// Changes the file's permissions from `before` to `after`, which lacks some set-id bits.
    /// Changes `access` only, because the permissions of the directories and logs do not depend on
    /// the set-id bits of the file.
    pub(crate) fn remove_set_id(&self, before: u32, after: u32) -> Result<()> {
        if after != before {
            let change = Change { permissions: Some(after), ..Change::default() };
            self.container.change_access(&change)?;
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Returns whether the file had set-id bits when this mount last read its attributes. Another
    /// mount may have set them since.
    pub fn had_set_id(&self) -> bool {
        self.has_set_id.load(Ordering::Relaxed)
    }

    /// Removes the set-user-ID bit, and the set-group-ID bit of a file that is executable by its
    /// group.
    pub fn drop_set_id(&self) -> Result<()> {
        let before = self.permissions()?;
        self.remove_set_id(before, before & !effective_set_id(before))?;
        self.has_set_id.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Returns an order that is later than all data written or seen here so far, and earlier than
    /// all later data.
    fn take_order(&self) -> Result<Order> {
        for writer in self.writers() {
            writer.lock().flush(self, writer.id())?;
        }
        let _one = self.epoch.lock();
        let request = self.sequencer().any_epoch_request();
        let epoch = self.take_epochs(&request, 2)?;
        let number = self.container.stores().random_writer();
        Ok(self.sequencer().end_request_with_order(&request, epoch, number))
    }

    fn set_time(&self, time: Time) -> Result<()> {
        let order = self.take_order()?;
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.container.add_meta(&MetaName::Time(order, time))?;
        if let Ok(summary) = self.container.summary() {
            let tidied = self.container.tidy_meta(&summary, &MetaName::Time(order, time));
            tidied.unwrap_or_else(|error| self.failures.record(&error));
        }
        Ok(())
    }

    /// Truncates or extends the file to `size` bytes.
    pub fn truncate(&self, size: u64) -> Result<()> {
        if size > FILE_END_MAX {
            return Err(Error::new(ErrorKind::InvalidInput, "resize", size.to_string()));
        }
        let order = self.take_order()?;
        let name = |time| MetaName::Truncation(Truncation { order, size, time });
        tracing::debug!(
            container = %self.container.shown_number(),
            size_bytes = size,
            epoch = order.epoch,
            "truncating a file"
        );
        self.add_covers(order.writer)?;
        self.container.add_meta(&name(Time::default()))?;
        // The truncation gets the modification time of its name, by the clock of the file system
        // below. If the name is missing, another node has truncated the file to size 0 since, and
        // that truncation is later.
        let stat = self.container.meta()?.stat(name(Time::default()).encode().as_bytes());
        let named =
            stat.and_then(|stat| self.container.rename_meta(&name(Time::default()), &name(stat.modified)));
        none_if_not_found(named)?;
        self.changes.fetch_add(1, Ordering::SeqCst);
        // Data written after `order` was taken is later than the truncation.
        let mut end = FileOffset(size);
        for writer in self.writers() {
            let mut state = writer.lock();
            let written = state.truncate(size, order);
            if state.is_later(order) {
                end = end.max(written);
            }
        }
        self.sequencer().truncated(order, end);
        let summary = self.container.summary()?;
        let tidied = self.container.tidy_meta(&summary, &name(Time::default()));
        tidied.unwrap_or_else(|error| self.failures.record(&error));
        if size == 0 {
            // This only frees space. Logs that cannot be removed now are removed at the next
            // truncation.
            if self.drop_dead_logs(&summary).is_err() {
                self.reader.drop_map(); // some logs in `summary` may be removed
            }
        }
        self.reader.refresh_to(self.read_context(), &summary)
    }

    /// Creates the `covers` names of a truncation, which state the part of the data logs of other
    /// mounts' open writers that it covers. Data beyond that is later than the truncation,
    /// regardless of its epoch. The truncation's epoch was taken before, and its `cut` name is
    /// created afterwards.
    ///
    /// These names need no sync: a writer's sync of later data syncs `meta`.
    fn add_covers(&self, truncation: u64) -> Result<()> {
        let summary = self.container.summary()?;
        let mut logs = Vec::new();
        for running in summary.open.iter().filter(|running| !self.is_own(running.writer)) {
            let published = running.published.map_or(0, |published| published.data_bytes);
            let stored = match self.container.stat_data(running.writer) {
                Ok(stat) => stat.size_bytes,
                // The log was not created yet, or is in a directory of another user: the published
                // size counts.
                Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::PermissionDenied) => 0,
                Err(error) => return Err(error),
            };
            logs.push(CoveredLog { writer: running.writer, bytes: published.max(stored) });
        }
        let names: Vec<MetaName> = (logs.chunks(COVERS_MAX))
            .map(|logs| MetaName::Covers(Covers { truncation, logs: logs.to_vec() }))
            .collect();
        let added = names.iter().try_for_each(|name| self.container.add_meta(name));
        if added.is_err() {
            // Without the `cut` name these names have no meaning.
            names.iter().for_each(|name| drop(self.container.remove_meta(name)));
        }
        added
    }

    /// After a truncation to size 0, removes the logs of writers that ended before it.
    fn drop_dead_logs(&self, summary: &Summary) -> Result<()> {
        let Some(truncation) =
            summary.last_truncation().filter(|truncation| truncation.size == 0 && summary.open.is_empty())
        else {
            return Ok(());
        };
        let dead: Vec<_> =
            summary.closed.iter().filter(|closed| summary.truncations.last_covers(closed)).collect();
        if dead.is_empty() {
            return Ok(());
        }
        // The `cut` name is synced first: after a power failure the logs must not be missing
        // without it.
        self.container.meta()?.sync().inspect_err(|error| self.failures.record(error))?;
        // Other nodes may remove the same names at the same time.
        for closed in &dead {
            self.reader.descriptors().forget(&self.container, closed.writer);
            self.container.remove_logs(closed.writer)?;
            none_if_not_found(self.container.remove_meta(&MetaName::Closed(**closed)))?;
            if summary.has_failed(closed.writer) {
                self.container.clear_failed(closed.writer)?;
            }
        }
        self.container.remove_flats()?;
        if dead.len() == summary.closed.len() {
            for earlier in
                summary.truncations.as_slice().iter().filter(|earlier| earlier.order < truncation.order)
            {
                none_if_not_found(self.container.remove_meta(&MetaName::Truncation(*earlier)))?;
            }
        }
        self.reader.drop_map();
        Ok(())
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        self.reader.descriptors().forget_file(self.container.identity());
    }
}

/// Returns the end of `length` bytes at `offset`, if a file may end there.
fn end_of(offset: FileOffset, length: usize) -> Result<FileOffset> {
    let end = offset.0.checked_add(length as u64).filter(|end| *end <= FILE_END_MAX);
    end.map(FileOffset).ok_or_else(|| Error::new(ErrorKind::InvalidInput, "write", offset.to_string()))
}

impl WriterContext for LogFile {
    fn container(&self) -> &Container {
        &self.container
    }

    fn begin(&self) -> Result<()> {
        let (known, seen) = self.sequencer().known_epochs();
        let epoch = self.container.epoch_of_new_writer(known, seen)?;
        self.sequencer().begin_writer(epoch, known);
        Ok(())
    }

    fn next_order(&self, writer: u64) -> Order {
        self.sequencer().next_order(writer)
    }

    fn frame_failed(&self) {
        self.sequencer().mark_stale();
    }

    fn write_back_failed(&self, error: &Error) {
        self.failures.record(error);
    }

    fn drop_set_id(&self) -> Result<()> {
        LogFile::drop_set_id(self)
    }

    fn written(&self, writer: u64, written: Written<'_>) {
        self.reader.add(self.read_context(), writer, &written);
        // The frame is added to the map first, so that a reader finds the data in the extent map or
        // in the collected ranges.
        self.sequencer().flushed(writer, written.runs);
    }
}
