//! One writer: collects the data that a process writes to one file into frames, and appends them to
//! its pair of logs. It does not know other writers; `log_file` decides which writer may write to a
//! range, and when a frame ends.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use quell_posix::{WritableFile, assume, assumed};
use quell_vfs::{Caller, Change, Error, ErrorKind, Result, Time, errno};

use crate::container::{Container, FIRST_EPOCH, OBJECT_PAYLOAD_MAX, write_frame, write_zeros};
use crate::format::{
    Closed, FileOffset, FrameKind, Frames, HEAD_BYTES, LogPosition, MetaName, OBJECT_END, OBJECT_FRAME_BYTES,
    Order, PAYLOAD_BYTES_MAX, PayloadOffset, Published, Run, Running, Runs, boot_of, data_name, encode_batch,
    encode_frame_head, encode_object_frame_head, is_frame_boundary,
};
use crate::locks::{Rank, RankedGuard, RankedMutex};
use crate::session::buffer::Buffer;

/// Number of runs at which a frame ends, regardless of its size, because a search for overlaps
/// visits all runs.
const FRAME_RUNS_MAX: usize = 4096;
/// Number of runs at which a batch is appended to the index log.
const BATCH_RUNS_MAX: usize = 1 << 18;

/// A frame that was written, for the extent map in memory.
#[derive(Debug, Clone, Copy)]
pub struct Written<'a> {
    pub order: Order,
    pub kind: FrameKind,
    pub head_bytes: u64,
    pub payload_start: PayloadOffset,
    /// Data log offset of the end of the frame.
    pub data_bytes: u64,
    pub runs: &'a [Run],
}

/// The payload of a frame.
#[derive(Debug, Clone, Copy)]
enum Payload<'a> {
    Data(&'a [u8]),
    /// A number of zeros.
    Zeros(u64),
}

impl Payload<'_> {
    fn kind(&self) -> FrameKind {
        match self {
            Payload::Data(_) => FrameKind::Data,
            Payload::Zeros(_) => FrameKind::Zeros,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Payload::Data(data) => data.len() as u64,
            Payload::Zeros(count) => *count,
        }
    }
}

/// The writer of one process. Its logs are created at the first write.
pub struct Writer {
    /// The number. It changes when the writer leaves its object, while `state` is locked.
    id: AtomicU64,
    state: RankedMutex<LockedWriter>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// The state of a writer. A thread writes to the logs only while it holds the lock.
pub struct LockedWriter {
    /// The credentials of the process's user, with which the logs are created and written, if root
    /// serves several users and the user has the permission. `None`: the logs are written with the
    /// credentials of this process.
    credentials: Option<Arc<Caller>>,
    /// The user has lost the permission to write to the file since it was opened.
    is_revoked: bool,
    /// A data log that was created, but whose header could not be written for lack of space.
    begun: Option<Box<dyn WritableFile>>,
    /// Created with the first frame.
    logs: Option<Logs>,
    buffer: Buffer,
    buffer_bytes: usize,
    /// The runs of the frame in `buffer`.
    runs: Runs,
    /// The end of the last frame.
    log_end: LogPosition,
    first_epoch: u64,
    /// The order of the last frame.
    last: Order,
    /// The end of the written data in the file, after truncations of this node, and the end without
    /// these truncations.
    end: FileOffset,
    end_untruncated: FileOffset,
}

struct Logs {
    data: Arc<dyn WritableFile>,
    /// The data log is the object as which the file began. It has no index log.
    object: Option<ObjectLog>,
    index: Option<Box<dyn WritableFile>>,
    /// An index log that was created, but whose header could not be written.
    index_begun: Option<Box<dyn WritableFile>>,
    index_offset: u64,
    /// The frames and runs of the next batch.
    frames: Frames,
    runs: Runs,
    /// The content of the writer's `open` name.
    running: Running,
    /// The `open` name survives a power failure.
    is_open_name_synced: bool,
    names_synced: bool,
    /// Payload offset up to which the index log records that the data is synced.
    synced: PayloadOffset,
    /// The end of the data log at the last successful sync.
    synced_to: LogPosition,
    /// A write or a sync of the data log has failed since the last successful sync. The kernel
    /// reports a failed writeback once and then marks the pages clean: data after `synced_to` may
    /// be lost even if the next sync succeeds.
    is_doubtful: bool,
    /// The failed operation was a sync, or the write-back that precedes a publication.
    has_failed: bool,
    /// The `failed` name is in `meta`.
    is_marked: bool,
    /// The end of the data log when it was written back last, so that other nodes see it.
    written_back: LogPosition,
}

/// The state of an object as a data log.
struct ObjectLog {
    progress: ObjectProgress,
    /// A failed write may have left bytes after the last frame. They are removed before anything
    /// else is written, because the size of the object must show its last frame.
    has_tail: bool,
}

/// Whether the writer appends data to its object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ObjectProgress {
    /// It may append data.
    Open,
    /// It has begun to end the object, and does not continue it even if this has failed: other
    /// processes may have seen the end, and do not read a frame after it.
    Ending,
    /// The object shows that its writer appends no more data, and other nodes see this.
    Ended,
}

impl Writer {
    /// Creates a writer with the current credentials of this thread.
    pub fn new(id: u64, buffer_bytes: usize) -> Writer {
        let state = LockedWriter {
            credentials: assumed(),
            is_revoked: false,
            begun: None,
            logs: None,
            buffer: Buffer::default(),
            buffer_bytes,
            runs: Runs::default(),
            log_end: LogPosition::START,
            first_epoch: 0,
            last: Order::default(),
            end: FileOffset::ZERO,
            end_untruncated: FileOffset::ZERO,
        };
        Writer { id: AtomicU64::new(id), state: RankedMutex::new(Rank::Writer, state) }
    }

    /// Creates the first writer of a file, with the object as its data log.
    pub fn first(id: u64, buffer_bytes: usize, container: &Container, data: Arc<dyn WritableFile>) -> Writer {
        let writer = Writer::new(id, buffer_bytes);
        {
            let mut state = writer.lock();
            let holder = container.host().holder.clone();
            let running = Running { writer: id, first_epoch: FIRST_EPOCH, holder, published: None };
            let object = Some(ObjectLog { progress: ObjectProgress::Open, has_tail: false });
            state.logs = Some(Logs { object, ..Logs::new(data, container, running) });
            (state.first_epoch, state.last) =
                (FIRST_EPOCH, Order { epoch: FIRST_EPOCH, sequence: 0, writer: id });
        }
        writer
    }

    /// Returns the number, which does not change while the state is locked.
    pub fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    /// Gives the writer another number. The caller has locked the state.
    pub fn set_id(&self, id: u64) {
        self.id.store(id, Ordering::Relaxed);
    }

    pub fn lock(&self) -> RankedGuard<MutexGuard<'_, LockedWriter>> {
        self.state.lock()
    }
}

/// The parts of a file that its writers use.
pub trait WriterContext {
    fn container(&self) -> &Container;
    /// Takes an epoch for a writer that has its name in `meta` and no frame yet. Every truncation
    /// with a later epoch than the writer's frames has found that name.
    fn begin(&self) -> Result<()>;
    /// Returns the order of a frame that is written now.
    fn next_order(&self, writer: u64) -> Order;
    /// Records that a frame could not be written, and may have made the data log longer than the
    /// writer has recorded. A truncation by another mount may cover that length, so the next frame,
    /// which begins at the same offset, needs an epoch later than the truncation.
    fn frame_failed(&self);
    /// Records that written data may be lost, so that every close and sync of the file returns an
    /// error until the data is safe.
    fn write_back_failed(&self, error: &Error);
    /// Removes the set-id bits with which the file would run with the rights of its owner or group.
    fn drop_set_id(&self) -> Result<()>;
    /// Records that a frame is in the data log.
    fn written(&self, writer: u64, written: Written<'_>);
}

impl LockedWriter {
    /// Calls `work` with the writer's credentials: a thread that serves another process may write
    /// this writer's data to its logs. An open file keeps the access that its open granted, so if
    /// the user has lost the permission since, calls `work` again with the credentials of this
    /// process.
    fn with_credentials<T>(&mut self, work: impl Fn(&mut LockedWriter) -> Result<T>) -> Result<T> {
        let user = self.credentials.clone();
        let done = {
            let _acting = assume(user.clone())?;
            work(self)
        };
        match done {
            Err(error) if error.kind == ErrorKind::PermissionDenied && user.is_some() => {
                (self.credentials, self.is_revoked) = (None, true);
                let _acting = assume(None)?;
                work(self)
            }
            done => done,
        }
    }

    /// Returns true if bytes of `start..end` are collected and not yet in the log.
    pub fn holds(&self, start: FileOffset, end: FileOffset) -> bool {
        self.runs.overlaps(start, end)
    }

    /// Returns the end of the data written since the last truncation.
    pub fn end(&self) -> FileOffset {
        self.end.max(self.runs.end())
    }

    /// Returns the end of the collected data.
    pub fn collected_end(&self) -> FileOffset {
        self.runs.end()
    }

    /// Returns the epochs of the first and the last frame, if there are frames.
    pub fn epochs(&self) -> Option<RangeInclusive<u64>> {
        self.logs.as_ref().map(|_| self.first_epoch..=self.last.epoch)
    }

    /// Returns true if the writer has written data and has ended.
    pub fn has_ended(&self) -> bool {
        self.logs.is_none() && self.log_end.payload.0 > 0
    }

    /// Returns the size of the data log, with the collected data. Without data, there is no log.
    pub fn data_bytes(&self) -> u64 {
        match self.logs.is_some() || !self.buffer.is_empty() {
            true => self.log_end.log_offset + self.buffer.len() as u64,
            false => 0,
        }
    }

    /// Returns true if the data log is the object as which the file began.
    pub fn is_object(&self) -> bool {
        self.logs.as_ref().is_some_and(|logs| logs.object.is_some())
    }

    /// Returns true if data from `offset` to `end` continues the object: it begins at the end of
    /// the data so far, and all frames are full.
    pub fn may_extend_object(&self, offset: FileOffset, end: FileOffset) -> bool {
        let object = self.logs.as_ref().and_then(|logs| logs.object.as_ref());
        // A truncation by another mount may cover the bytes that a failed write has left.
        let is_intact =
            object.is_some_and(|object| object.progress == ObjectProgress::Open && !object.has_tail);
        let next = self.log_end.payload.0 + self.buffer.len() as u64;
        is_intact && is_frame_boundary(self.log_end) && offset.0 == next && end.0 <= OBJECT_PAYLOAD_MAX
    }

    /// Writes the collected frame if `bytes` more do not fit into it.
    pub fn flush_if_full(&mut self, file: &dyn WriterContext, id: u64, bytes: usize) -> Result<()> {
        if self.is_object() {
            return Ok(()); // the only frame of an object has all of its data
        }
        if self.buffer.len() + bytes > self.buffer_bytes || self.runs.len() >= FRAME_RUNS_MAX {
            self.flush(file, id)?;
        }
        Ok(())
    }

    /// Accepts the bytes `from` for the file offset `offset`. After an error, none or only the
    /// first of these bytes were accepted.
    pub fn put(&mut self, file: &dyn WriterContext, id: u64, from: &[u8], offset: FileOffset) -> Result<()> {
        if self.is_object() {
            return self.put_in_object(file, id, from, offset);
        }
        if from.len() < self.buffer_bytes {
            self.buffer.push(from, self.buffer_bytes)?;
            self.runs.push(offset, from.len() as u64);
            return Ok(());
        }
        // The data is large enough for frames of its own, and is written without copying.
        let mut at = offset;
        for part in from.chunks(PAYLOAD_BYTES_MAX as usize) {
            let mut runs = Runs::default();
            runs.push(at, part.len() as u64);
            self.write_frame(file, id, Payload::Data(part), runs.finish())?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Accepts the bytes `from`, which continue the object and fit into its frame.
    fn put_in_object(
        &mut self,
        file: &dyn WriterContext,
        id: u64,
        from: &[u8],
        offset: FileOffset,
    ) -> Result<()> {
        let (bytes, frame_bytes) = (from.len() as u64, OBJECT_FRAME_BYTES as usize);
        if from.len() == frame_bytes {
            return self.write_frame(file, id, Payload::Data(from), &[Run::one(offset, bytes)]);
        }
        self.buffer.push(from, self.buffer_bytes.max(frame_bytes))?;
        self.runs.push(offset, bytes);
        Ok(())
    }

    /// Makes the object show that its writer appends no more data, unless the object shows this
    /// already.
    fn end_object(&mut self, file: &dyn WriterContext, id: u64) -> Result<()> {
        let log_end = self.log_end;
        let Some(logs) = &mut self.logs else { return Ok(()) };
        let Some(object) = &mut logs.object else { return Ok(()) };
        if object.progress == ObjectProgress::Ended {
            return Ok(());
        }
        object.progress = ObjectProgress::Ending;
        object.remove_tail(&*logs.data, log_end)?;
        // A last frame that is not full shows the end by itself.
        if is_frame_boundary(log_end) {
            let modified = logs.data.stat_from_server()?.modified;
            object.has_tail = true; // in case the write fails
            logs.data.write_at(OBJECT_END, log_end.log_offset).inspect_err(|_| logs.is_doubtful = true)?;
            object.has_tail = false;
            // The time of the object is the modification time of the file, whose content is the
            // same as before.
            let time = Change { modified: Some(modified), ..Change::default() };
            if let Err(error) = logs.data.change(&time) {
                tracing::debug!(%error, "cannot restore the modification time of an object");
            }
        }
        logs.write_back(file, id, log_end)?;
        logs.object.as_mut().expect("it was there").progress = ObjectProgress::Ended;
        Ok(())
    }

    /// Publishes the data, and ends the object even if it has no data, so that nothing is written
    /// to it after its time was set.
    pub fn publish_and_end_object(&mut self, file: &dyn WriterContext, id: u64) -> Result<()> {
        self.publish(file, id)?;
        self.with_credentials(|state| state.end_object(file, id))
    }

    /// Ends the object, and records it in the container. The next frame begins new logs.
    pub fn leave_object(&mut self, file: &dyn WriterContext, id: u64) -> Result<()> {
        self.flush(file, id)?;
        self.with_credentials(|state| {
            state.end_object(file, id)?;
            file.container().dir()?;
            state.close_object(file, id)
        })?;
        (self.log_end, self.first_epoch) = (LogPosition::START, 0);
        (self.end, self.end_untruncated) = (FileOffset::ZERO, FileOffset::ZERO);
        Ok(())
    }

    /// Ends a writer whose object has ended.
    fn close_object(&mut self, file: &dyn WriterContext, id: u64) -> Result<()> {
        let log_end = self.log_end;
        if let Some(logs) = self.logs.as_mut().filter(|logs| logs.has_failed) {
            // Another process could not write the object again.
            logs.sync_data(file.container(), id, log_end)?;
        }
        let container = file.container();
        // If the container is created later, the object shows that its writer has ended. A
        // container that another process has begun to create may lack the end of the writer.
        if container.complete_if_begun()? {
            let Published { end, data_bytes, time, .. } = self.state_to_publish()?;
            let Some(logs) = &self.logs else { return Ok(()) };
            container.end_first_writer(&Closed {
                writer: id,
                first_epoch: FIRST_EPOCH,
                last_epoch: FIRST_EPOCH,
                end,
                data_bytes,
                time,
                is_synced: logs.synced_to.payload == self.log_end.payload && !logs.has_failed,
                boot: boot_of(&logs.running.holder.node),
            })?;
        } else {
            container.note_complete();
        }
        self.logs = None;
        Ok(())
    }

    /// Writes a frame of `length` zeros, at most [`PAYLOAD_BYTES_MAX`], after the collected frame.
    pub fn put_zeros(
        &mut self,
        file: &dyn WriterContext,
        id: u64,
        offset: FileOffset,
        length: u64,
    ) -> Result<()> {
        self.flush(file, id)?;
        let mut runs = Runs::default();
        runs.push(offset, length);
        self.write_frame(file, id, Payload::Zeros(length), runs.finish())
    }

    /// Writes the collected frame, if there is one. After an error the data is kept for another
    /// attempt.
    pub fn flush(&mut self, file: &dyn WriterContext, id: u64) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let buffer = std::mem::take(&mut self.buffer);
        let runs = self.runs.finish().to_vec();
        let written = self.write_frame(file, id, Payload::Data(buffer.bytes()), &runs);
        self.buffer = buffer;
        if written.is_ok() {
            self.buffer.clear();
            self.runs.clear();
        }
        written
    }

    fn write_frame(
        &mut self,
        file: &dyn WriterContext,
        id: u64,
        payload: Payload<'_>,
        runs: &[Run],
    ) -> Result<()> {
        self.with_credentials(|state| state.write_frame_as_assumed(file, id, payload, runs))
    }

    fn write_frame_as_assumed(
        &mut self,
        file: &dyn WriterContext,
        id: u64,
        payload: Payload<'_>,
        runs: &[Run],
    ) -> Result<()> {
        if self.is_revoked {
            // From now on this process writes the logs with its own credentials, so their owner
            // does not show that another user wrote the data.
            file.drop_set_id()?;
        }
        let container = file.container();
        let block_bytes = container.head().block_bytes.into();
        let is_first = self.logs.is_none();
        if is_first {
            self.logs = Some(Logs::create(file, id, &mut self.begun)?);
        }
        let mut order = file.next_order(id);
        if self.is_object() {
            let is_next = matches!(runs, [run] if run.count == 1 && run.start.0 == self.log_end.payload.0);
            if !is_next || !is_frame_boundary(self.log_end) {
                return Err(Error::new(ErrorKind::Os(errno::EIO), "append to the object of", data_name(id)));
            }
            order.epoch = FIRST_EPOCH;
        }
        if is_first {
            // Both are set even if the frame cannot be written, because a name in `meta` with only
            // one of them would be invalid.
            (self.first_epoch, self.last) = (order.epoch, order);
        }
        let logs = self.logs.as_mut().expect("they were made");
        let (kind, bytes, start) = (payload.kind(), payload.bytes(), self.log_end);
        if let Some(object) = &mut logs.object {
            object.remove_tail(&*logs.data, start)?;
        }
        let head = match logs.object {
            Some(_) => encode_object_frame_head(bytes, order.epoch, order.sequence, start.payload),
            None => encode_frame_head(kind, runs, bytes, order.epoch, order.sequence, start.payload),
        };
        let written = match payload {
            Payload::Data(data) => {
                write_frame(&*logs.data, start.log_offset, &head, data, start.payload, block_bytes)
            }
            Payload::Zeros(_) => write_zeros(&*logs.data, start.log_offset, &head, start.payload),
        };
        written.inspect_err(|_| {
            // Some file systems report a failed writeback at a later write.
            logs.is_doubtful = true;
            if let Some(object) = &mut logs.object {
                object.has_tail = true;
                let _ = object.remove_tail(&*logs.data, start); // tried again before the next write
            }
            file.frame_failed();
        })?;
        let head_bytes = head.len() as u64;
        let data_bytes = start.log_offset + head_bytes + kind.stored_bytes(bytes, block_bytes);
        file.written(id, Written { order, kind, head_bytes, payload_start: start.payload, data_bytes, runs });
        logs.frames.push(kind, head_bytes, bytes, order.epoch, order.sequence);
        for run in runs {
            (0..run.count).for_each(|i| logs.runs.push(run.start_of(i), run.length));
            self.end = self.end.max(run.end());
        }
        self.end_untruncated = self.end_untruncated.max(self.end);
        logs.runs.end_extent();
        self.log_end = LogPosition { log_offset: logs.frames.log_end(), payload: start.payload + bytes };
        self.last = order;
        if logs.object.is_some()
            && !is_frame_boundary(self.log_end)
            && let Some(object) = container.object()
        {
            object.set_complete(self.log_end.log_offset);
        }
        if logs.object.is_none() && logs.runs.len() >= BATCH_RUNS_MAX {
            logs.append_batch(container, id, self.log_end.payload, false)?;
        }
        Ok(())
    }

    /// Makes all written data visible to other mounts.
    pub fn publish(&mut self, file: &dyn WriterContext, id: u64) -> Result<()> {
        self.with_credentials(|state| {
            state.write_index(file, id)?;
            state.write_back(file, id)?;
            state.publish_size(file)
        })
    }

    /// Writes all data to the logs, and frees the memory of the buffer, because a writer often
    /// pauses after this.
    fn write_index(&mut self, file: &dyn WriterContext, id: u64) -> Result<()> {
        self.flush(file, id)?;
        self.buffer.release_if_empty();
        match &mut self.logs {
            Some(logs) if logs.object.is_none() => {
                logs.append_batch(file.container(), id, self.log_end.payload, false)
            }
            // Without data there is nothing to publish: a shell closes a copy of the descriptor
            // before the program writes.
            _ if self.log_end == LogPosition::START => Ok(()),
            _ => self.end_object(file, id),
        }
    }

    /// Lets other nodes see the data before a name in `meta` states that it is there. They do not
    /// need the index log, because they read the frames that it lacks from the data log.
    fn write_back(&mut self, file: &dyn WriterContext, id: u64) -> Result<()> {
        let end = self.log_end;
        let Some(logs) = &mut self.logs else { return Ok(()) };
        let is_needed = match logs.object {
            Some(_) => file.container().object().is_some_and(|object| !object.is_written_back()),
            None => logs.written_back != end,
        };
        if is_needed { logs.write_back(file, id, end) } else { Ok(()) }
    }

    /// Publishes the data, and makes it survive a power failure. Syncs the data log, which contains
    /// everything that the index log records, and the `open` name, which gives the published size.
    /// Returns true if this was the first sync of the writer's logs, so that the container must be
    /// synced, too.
    pub fn sync(&mut self, file: &dyn WriterContext, id: u64) -> Result<bool> {
        self.with_credentials(|state| state.sync_as_assumed(file, id))
    }

    fn sync_as_assumed(&mut self, file: &dyn WriterContext, id: u64) -> Result<bool> {
        // The name is updated first, because a file system with a journal then syncs it together
        // with the data.
        self.publish(file, id)?;
        let Some(logs) = &mut self.logs else { return Ok(false) };
        if logs.object.is_some() {
            if let Some(object) = file.container().object() {
                object.set_synced(); // before: a container that is created meanwhile is synced, too
            }
            logs.sync_data(file.container(), id, self.log_end)?;
            return Ok(!std::mem::replace(&mut logs.names_synced, true));
        }
        logs.sync_data(file.container(), id, self.log_end)?;
        let are_new = !logs.names_synced;
        if are_new {
            file.container().sync_logs(id)?;
            logs.names_synced = true;
        }
        logs.append_batch(file.container(), id, self.log_end.payload, true)?;
        if !logs.is_open_name_synced {
            file.container().meta()?.sync()?;
            logs.is_open_name_synced = true;
        }
        Ok(are_new)
    }

    /// Updates the `open` name, which gives the published size of the logs.
    fn publish_size(&mut self, file: &dyn WriterContext) -> Result<()> {
        if self.is_object() {
            return Ok(()); // the size of the object shows the size of the file
        }
        let published = self.state_to_publish()?;
        let Some(logs) = &mut self.logs else { return Ok(()) };
        if logs.running.published == Some(published) {
            return Ok(());
        }
        let running =
            Running { first_epoch: self.first_epoch, published: Some(published), ..logs.running.clone() };
        file.container()
            .rename_meta(&MetaName::Open(logs.running.clone()), &MetaName::Open(running.clone()))
            .map_err(|error| unless_ended(file.container(), running.writer, error))?;
        (logs.running, logs.is_open_name_synced) = (running, false);
        Ok(())
    }

    /// Returns the state of the logs. The time is read only if frames were written since it was
    /// published.
    fn state_to_publish(&self) -> Result<Published> {
        let (last_epoch, end, data_bytes) = (self.last.epoch, self.end_untruncated, self.log_end.log_offset);
        let known = self.logs.as_ref().and_then(|logs| logs.running.published);
        let time = match known {
            Some(known)
                if (known.last_epoch, known.end, known.data_bytes) == (last_epoch, end, data_bytes) =>
            {
                known.time
            }
            _ => self.modified()?.unwrap_or_default(),
        };
        Ok(Published { last_epoch, end, data_bytes, time })
    }

    /// Returns the time of the last frame, by the clock of the file system below.
    pub fn modified(&self) -> Result<Option<Time>> {
        self.logs.as_ref().map(|logs| Ok(logs.data.stat()?.modified)).transpose()
    }

    /// Returns true if a frame was written after `order`.
    pub fn is_later(&self, order: Order) -> bool {
        self.last > order
    }

    /// Truncates the data written before `order` to `size`. Returns the end of the data written
    /// later.
    pub fn truncate(&mut self, size: u64, order: Order) -> FileOffset {
        if self.last < order {
            self.end = self.end.min(FileOffset(size));
        }
        self.end()
    }

    /// Publishes the data, and ends the writer.
    pub fn close(&mut self, file: &dyn WriterContext, id: u64) -> Result<()> {
        self.with_credentials(|state| state.close_as_assumed(file, id))
    }

    fn close_as_assumed(&mut self, file: &dyn WriterContext, id: u64) -> Result<()> {
        self.write_index(file, id)?;
        if self.is_object() {
            self.end_object(file, id)?;
            return self.close_object(file, id);
        }
        self.write_back(file, id)?;
        let Published { last_epoch, end, data_bytes, time } = self.state_to_publish()?;
        let Some(logs) = &mut self.logs else { return Ok(()) };
        logs.mark_failed(file.container(), id)?;
        let closed = Closed {
            writer: id,
            first_epoch: self.first_epoch,
            last_epoch,
            end,
            data_bytes,
            time,
            is_synced: logs.synced == self.log_end.payload,
            boot: boot_of(&logs.running.holder.node),
        };
        file.container()
            .rename_meta(&MetaName::Open(logs.running.clone()), &MetaName::Closed(closed))
            .map_err(|error| unless_ended(file.container(), id, error))?;
        self.logs = None;
        Ok(())
    }
}

/// Returns the error of a writer whose `open` name is missing. If the file exists, a repair has
/// ended the writer, and its later data is not part of the file. Other errors are unchanged.
fn unless_ended(container: &Container, id: u64, error: Error) -> Error {
    if error.kind != ErrorKind::NotFound || !container.is_gone().is_ok_and(|gone| !gone) {
        return error;
    }
    let reason = format!(
        "`quell log fsck --repair` has ended writer {id:016x} of this process: data written since is not part of the file; open \
         the file again and repeat the writes"
    );
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::Os(errno::EIO), "publish", data_name(id)) }
}

impl ObjectLog {
    /// Removes the bytes that a failed write has left after the last frame.
    fn remove_tail(&mut self, data: &dyn WritableFile, end: LogPosition) -> Result<()> {
        if self.has_tail {
            data.set_size(end.log_offset)?;
            self.has_tail = false;
        }
        Ok(())
    }
}

impl Logs {
    fn create(file: &dyn WriterContext, id: u64, begun: &mut Option<Box<dyn WritableFile>>) -> Result<Logs> {
        let container = file.container();
        let holder = container.host().holder.clone();
        // The name must exist before the epoch is read.
        let running = Running { writer: id, first_epoch: 0, holder, published: None };
        match container.add_meta(&MetaName::Open(running.clone())) {
            // The name is left from an earlier attempt that failed for lack of space.
            Err(error) if error.kind == ErrorKind::Exists => {}
            added => added?,
        }
        file.begin()?;
        let data = Arc::from(container.create_data(id, begun)?);
        Ok(Logs::new(data, container, running))
    }

    fn new(data: Arc<dyn WritableFile>, container: &Container, running: Running) -> Logs {
        let frames = Frames::new(container.head().block_bytes.into(), HEAD_BYTES as u64);
        let runs = Runs::default();
        Logs {
            data,
            object: None,
            index: None,
            index_begun: None,
            index_offset: 0,
            frames,
            runs,
            running,
            is_open_name_synced: false,
            names_synced: false,
            synced: PayloadOffset::ZERO,
            synced_to: LogPosition::START,
            is_doubtful: false,
            has_failed: false,
            is_marked: false,
            written_back: LogPosition::START,
        }
    }

    /// Passes the data log up to `end` to the file server. If this or a sync has failed before, the
    /// data is synced instead, which writes it again.
    fn write_back(&mut self, file: &dyn WriterContext, id: u64, end: LogPosition) -> Result<()> {
        if self.has_failed {
            self.sync_data(file.container(), id, end)?;
        } else {
            let (container, from) = (file.container(), self.synced_to);
            let mut is_synced = false;
            let written = self.with_write_back_lock(container, |has_failed, data| {
                is_synced = has_failed;
                match has_failed {
                    true => container.write_data_again(data, id, from, end.log_offset),
                    false => data.write_back(),
                }
            });
            if let Err(error) = written {
                self.sync_failed(container, id);
                file.write_back_failed(&error);
                return Err(error);
            }
            if is_synced {
                self.synced_to = end;
            }
        }
        self.written_back = end;
        Ok(())
    }

    /// Syncs the data log up to `end`. After a failed write or sync, the part that is not known to
    /// be synced is rewritten first and verified afterwards, because the kernel would report
    /// success for pages that it has dropped.
    fn sync_data(&mut self, container: &Container, id: u64, end: LogPosition) -> Result<()> {
        let (is_doubtful, from) = (self.is_doubtful, self.synced_to);
        let synced =
            self.with_write_back_lock(container, |has_failed, data| match is_doubtful || has_failed {
                true => container.write_data_again(data, id, from, end.log_offset),
                false => data.sync(),
            });
        if let Err(error) = synced {
            self.sync_failed(container, id);
            return Err(error);
        }
        (self.synced_to, self.is_doubtful, self.has_failed) = (end, false, false);
        if self.is_marked {
            container.clear_failed(id)?;
            self.is_marked = false;
        }
        Ok(())
    }

    /// Calls `act` with the data log. If the data log is the object, `write_back_new` waits
    /// meanwhile. The first parameter of `act` is true if `write_back_new` has failed since the
    /// last call.
    fn with_write_back_lock(
        &self,
        container: &Container,
        act: impl FnOnce(bool, &dyn WritableFile) -> Result<()>,
    ) -> Result<()> {
        match container.object().filter(|_| self.object.is_some()) {
            Some(object) => object.write_back_by(|has_failed| act(has_failed, &*self.data)),
            None => act(false, &*self.data),
        }
    }

    fn sync_failed(&mut self, container: &Container, id: u64) {
        (self.is_doubtful, self.has_failed) = (true, true);
        // Readers need the name after this process has ended. If it cannot be created now, this is
        // tried again, at the latest when the writer ends.
        let _ = self.mark_failed(container, id);
    }

    /// Creates the `failed` name if a sync failed.
    fn mark_failed(&mut self, container: &Container, id: u64) -> Result<()> {
        if self.has_failed && !self.is_marked {
            container.mark_failed(id)?;
            self.is_marked = true;
        }
        Ok(())
    }

    /// Appends a batch with the frames that are not in the index log. Without such frames, appends
    /// a batch if it has to record that all data is synced.
    fn append_batch(
        &mut self,
        container: &Container,
        id: u64,
        end: PayloadOffset,
        is_synced: bool,
    ) -> Result<()> {
        if self.frames.groups().is_empty() && !(is_synced && self.synced < end) {
            return Ok(());
        }
        let payload = PayloadOffset(end - PayloadOffset(self.frames.payload_bytes()));
        let start = LogPosition { log_offset: self.frames.log_start(), payload };
        let batch = encode_batch(&self.frames, self.runs.finish(), start, is_synced);
        if self.index.is_none() {
            self.index = Some(container.create_index(id, &mut self.index_begun)?);
            self.index_offset = HEAD_BYTES as u64;
        }
        self.index.as_ref().expect("it was made").write_at(&batch, self.index_offset)?;
        self.index_offset += batch.len() as u64;
        self.frames = Frames::new(container.head().block_bytes.into(), self.frames.log_end());
        self.runs.clear();
        if is_synced {
            self.synced = end;
        }
        Ok(())
    }
}
