//! One file as one node has it open: the writers of its processes, the order of their writes, and
//! the view of its readers.
//!
//! Locks are taken in this order: a writer's state, the view, `clock`. No thread waits for a lock
//! while it holds a later one.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use lru::LruCache;
use quell_posix::WritableDir;
use quell_vfs::{Attributes, Change, Error, ErrorKind, Kind, NodeId, Result, Time};

use crate::container::container_dir::{ACCESS, Container, FIRST_EPOCH, data_name};
use crate::container::descriptors::Descriptors;
use crate::container::missing::missing;
use crate::format::data_log::{self, Block, Edges};
use crate::format::frames::Order;
use crate::format::meta::{COVERS_MAX, Covers, Cut, MetaName, Summary};
use crate::format::runs::FILE_END_MAX;
use crate::session::collected::Collected;
use crate::session::flatten::{self, Flattened};
use crate::session::share::Share;
use crate::session::view::{Torn, View, Wanted};
use crate::session::writer::{Site, Writer, Written};

/// Number of blocks of a file that are kept after they were read in part.
const EDGE_BLOCKS_MAX: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// The set-user-ID and set-group-ID bits.
const SET_ID: u32 = 0o6000;

/// A number that no writer has.
const NOBODY: u64 = 0;

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
}

/// A file of the mount that is open or known to the kernel.
pub struct LogFile {
    container: Container,
    choices: Choices,
    descriptors: Arc<Descriptors>,
    clock: Mutex<Clock>,
    writers: Mutex<HashMap<u32, Seat>>,
    view: RwLock<Option<View>>,
    edges: Mutex<LruCache<(u64, u64), Arc<Block>>>,
    /// The directory in which the container was found.
    parent: Option<Arc<dyn WritableDir>>,
    /// Counts changes of the container and its names; `safe` is the number of those that survive a
    /// power failure.
    changes: AtomicU64,
    safe: Mutex<u64>,
    failures: Mutex<Failures>,
    /// From the attributes that were read last. The kernel reads them at each open.
    has_set_id: AtomicBool,
    /// Writers whose last handle was closed and that could not end. They keep their collected data.
    unended: Mutex<Vec<Arc<Writer>>>,
    /// False after a page of the flat index was found damaged.
    trusts_flat: AtomicBool,
    /// Parts of logs that were torn before they were synced.
    torn: Mutex<Torn>,
}

impl Default for Choices {
    fn default() -> Choices {
        Choices { buffer_bytes: 1 << 20, index_threads: 4, flatten_bytes: 0, flattens_later: false }
    }
}

impl std::fmt::Debug for LogFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogFile").field("container", &self.container).finish_non_exhaustive()
    }
}

/// The failed writes and syncs of one file.
#[derive(Debug, Default)]
struct Failures {
    /// Number of failures.
    count: u64,
    /// The first failure since the last successful sync.
    first: Option<ErrorKind>,
}

/// The writer of a process, and the number of its open handles.
struct Seat {
    writer: Arc<Writer>,
    handles: usize,
}

/// The sequencer: gives frames their order, and knows the data that is not yet in frames.
struct Clock {
    /// 0 if no epoch was taken yet.
    epoch: u64,
    sequence: u64,
    /// Data was synced, or newer data was seen: the next write needs a later epoch.
    is_stale: bool,
    seen: u64,
    /// The end of the file as this node knows it, and whether it includes the writes of other
    /// nodes.
    end: u64,
    end_known: bool,
    /// The last truncation by any node that `end` includes.
    last_cut: Option<Order>,
    /// The writers of this node, and whether there were ever several at the same time.
    known: HashMap<u64, Arc<Writer>>,
    are_several: bool,
    /// The collected ranges; not tracked while there is only one writer.
    collected: Collected,
    /// `collected` is complete: data collected before there were several writers is in frames.
    all_collected: bool,
    /// The writers of this node with logs, and the sizes of their data logs.
    ours: HashMap<u64, u64>,
    /// The last truncation by this node.
    own_cut: Option<Order>,
}

impl LogFile {
    /// Creates a file from a container that was found in `parent`, which is needed for syncs.
    pub fn new(
        container: Container,
        parent: Option<Arc<dyn WritableDir>>,
        choices: Choices,
        descriptors: Arc<Descriptors>,
    ) -> LogFile {
        let clock = Clock {
            epoch: 0,
            sequence: 0,
            is_stale: false,
            seen: 0,
            end: 0,
            end_known: false,
            last_cut: None,
            known: HashMap::new(),
            are_several: false,
            collected: Collected::default(),
            all_collected: false,
            ours: HashMap::new(),
            own_cut: None,
        };
        LogFile {
            container,
            choices,
            descriptors,
            clock: Mutex::new(clock),
            writers: Mutex::default(),
            view: RwLock::new(None),
            edges: Mutex::new(LruCache::new(EDGE_BLOCKS_MAX)),
            parent,
            changes: AtomicU64::new(1),
            safe: Mutex::new(0),
            failures: Mutex::default(),
            has_set_id: AtomicBool::new(false),
            unended: Mutex::default(),
            trusts_flat: AtomicBool::new(true),
            torn: Mutex::default(),
        }
    }

    /// Marks the file as just created by this node, which has its first epoch.
    pub fn born(self) -> LogFile {
        self.clock().epoch = FIRST_EPOCH;
        self
    }

    pub fn container(&self) -> &Container {
        &self.container
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seats(&self) -> MutexGuard<'_, HashMap<u32, Seat>> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the writers of this node.
    fn writers(&self) -> Vec<Arc<Writer>> {
        self.clock().known.values().cloned().collect()
    }

    /// Returns the size of the data log that a writer of this node has written.
    fn written_by(&self, writer: u64) -> Option<u64> {
        self.clock().ours.get(&writer).copied()
    }

    fn is_ours(&self, writer: u64) -> bool {
        self.clock().ours.contains_key(&writer)
    }

    /// Returns the writer of `process`, and adds a handle, which `release` removes.
    pub fn writer(&self, process: u32) -> Result<Arc<Writer>> {
        // Data written after an open must be later than data published before it. In a file that
        // was just created there is none.
        {
            let mut clock = self.clock();
            clock.is_stale |= clock.sequence > 0;
        }
        let mut seats = self.seats();
        if let Some(seat) = seats.get_mut(&process) {
            seat.handles += 1;
            return Ok(Arc::clone(&seat.writer));
        }
        let id = self.container.stores().random_writer();
        let writer = Arc::new(Writer::new(id, self.choices.buffer_bytes));
        let (others, were_several) = {
            let mut clock = self.clock();
            let others: Vec<Arc<Writer>> = clock.known.values().cloned().collect();
            clock.known.insert(id, Arc::clone(&writer));
            clock.ours.entry(id).or_default();
            // From now on all writers record their collected ranges ...
            let were_several = clock.are_several;
            clock.are_several |= clock.known.len() > 1;
            (others, were_several)
        };
        // ... and the data that they collected before is written as frames.
        if !were_several
            && let Some(error) = others.iter().find_map(|other| other.lock().flush(self, other.id).err())
        {
            let mut clock = self.clock();
            clock.known.remove(&id);
            clock.are_several = false;
            clock.collected = Collected::default();
            return Err(error);
        }
        let mut clock = self.clock();
        clock.all_collected = clock.are_several;
        drop(clock);
        seats.insert(process, Seat { writer: Arc::clone(&writer), handles: 1 });
        Ok(writer)
    }

    /// Removes a handle of `process`. With the last one its writer ends. Returns true if no writer
    /// of this node is left.
    pub fn release(&self, process: u32) -> Result<bool> {
        let mut seats = self.seats();
        let Some(seat) = seats.get_mut(&process) else { return Ok(false) };
        seat.handles -= 1;
        if seat.handles > 0 {
            return Ok(false);
        }
        let writer = seats.remove(&process).expect("it was there").writer;
        let is_last = seats.is_empty();
        drop(seats);
        let closed = writer.lock().close(self, writer.id);
        match &closed {
            Ok(()) => self.forget_writer(&writer),
            // Every sync and close of the file tries to write its collected data again.
            Err(error) => {
                self.failed(error);
                self.unended.lock().unwrap_or_else(PoisonError::into_inner).push(writer);
            }
        }
        closed.map(|()| is_last)
    }

    fn forget_writer(&self, writer: &Writer) {
        let mut clock = self.clock();
        clock.known.remove(&writer.id);
        clock.collected.forget(writer.id);
    }

    /// Ends the writers that could not end when their last handle was closed.
    fn end_unended(&self) -> Result<()> {
        let mut ended = Ok(());
        let waiting = std::mem::take(&mut *self.unended.lock().unwrap_or_else(PoisonError::into_inner));
        for writer in waiting {
            let closed = writer.lock().close(self, writer.id);
            match &closed {
                Ok(()) => self.forget_writer(&writer),
                Err(_) => self.unended.lock().unwrap_or_else(PoisonError::into_inner).push(writer),
            }
            ended = ended.and(closed);
        }
        ended
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a failed write or sync. Every later sync and close of the file returns it, until a
    /// sync of the whole file succeeds.
    fn failed(&self, error: &Error) {
        let mut failures = self.failures();
        failures.count += 1;
        failures.first.get_or_insert(error.kind);
    }

    /// Creates a flat index if the options require it and there is no writer. Returns an error soon
    /// after `is_given_up` was set.
    pub fn flatten_if_due(&self, is_given_up: &AtomicBool) -> Result<Option<Flattened>> {
        let Choices { index_threads, flatten_bytes, .. } = self.choices;
        if flatten_bytes == 0 || !self.seats().is_empty() {
            return Ok(None);
        }
        flatten::after_last_writer(&self.container, index_threads, flatten_bytes, is_given_up)
    }

    /// Ends all writers of this node, including those with open handles.
    pub fn end(&self) -> Result<()> {
        let seats = std::mem::take(&mut *self.seats());
        // After a failed sync, the file is repaired as far as possible while its writers exist.
        let mut ended = if self.failures().first.is_some() { self.sync() } else { Ok(()) };
        for Seat { writer, .. } in seats.into_values() {
            ended = ended.and(writer.lock().close(self, writer.id));
        }
        match ended.and(self.end_unended()) {
            // The file was removed by another process, so its data is not needed.
            Err(_) if self.container.is_gone().is_ok_and(|gone| gone) => Ok(()),
            ended => ended,
        }
    }

    /// Takes a new epoch if the next write must be later than data that was synced or seen. The
    /// first epoch is taken with the first frame.
    fn settle(&self) -> Result<()> {
        let mut clock = self.clock();
        if clock.epoch == 0 || !clock.is_stale {
            return Ok(());
        }
        // A node that opened the file later has a larger epoch. A node that opened it at the same
        // time may have the same epoch, and an open writer may have synced in this node's epoch.
        let is_alone = |summary: &Summary| {
            let foreign = |writer: u64| !clock.ours.contains_key(&writer);
            summary.epoch_of(&foreign) < clock.epoch
                && !summary.open.iter().any(|running| foreign(running.writer))
        };
        if clock.seen >= clock.epoch || !is_alone(&self.container.summary()?) {
            let taken = self.container.take_epochs(clock.seen.max(clock.epoch), 1);
            clock.epoch = taken.inspect_err(|error| self.failed(error))?;
            clock.end_known = false;
        }
        clock.is_stale = false;
        Ok(())
    }

    /// Marks `start..end` as collected by `writer`, and returns the previous end of the file. If
    /// other writers have collected a part of it, returns these as the error; the caller must flush
    /// them first.
    fn claim(&self, writer: u64, start: u64, end: u64) -> Result<u64, Vec<Arc<Writer>>> {
        let mut clock = self.clock();
        let rivals = clock.collected.rivals(writer, start, end);
        if rivals.is_empty() {
            let end_before = clock.end;
            clock.end = clock.end.max(end);
            if clock.are_several {
                clock.collected.add(writer, start, end);
            }
            return Ok(end_before);
        }
        Err(rivals.iter().filter_map(|rival| clock.known.get(rival).cloned()).collect())
    }

    /// Writes all of `from` at `offset`. Writes of this node's processes are ordered by the time of
    /// this call.
    pub fn write_at(&self, writer: &Writer, from: &[u8], offset: u64) -> Result<()> {
        let end = end_of(offset, from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        self.settle()?;
        loop {
            let mut state = writer.lock();
            state.make_room(self, writer.id, from.len())?;
            let rivals = match self.claim(writer.id, offset, end) {
                Ok(end_before) => {
                    let put = state.put(self, writer.id, from, offset);
                    if put.is_err() {
                        let mut clock = self.clock();
                        // Only a write that needs a frame of its own, or the first one in a buffer,
                        // can fail, so the writer has no other collected data.
                        clock.collected.forget(writer.id);
                        // The next append begins at the end of the file without this write, unless
                        // another write came later.
                        if clock.end == end {
                            clock.end = end_before.max(state.end());
                        }
                    }
                    return put;
                }
                Err(rivals) => rivals,
            };
            drop(state);
            for rival in rivals {
                rival.lock().flush(self, rival.id)?;
            }
        }
    }

    /// Writes all of `from` at the end of the file as this node knows it, and returns the offset.
    pub fn append(&self, writer: &Writer, from: &[u8]) -> Result<u64> {
        self.settle()?;
        if !self.clock().end_known {
            let (size, summary) = self.size_and_summary()?;
            let cut = summary.last_cut().map(|cut| cut.order);
            let mut clock = self.clock();
            // Concurrent appends of this node count, unless another node has truncated the file.
            let others_end = if cut == clock.last_cut { clock.end } else { 0 };
            (clock.end, clock.end_known, clock.last_cut) = (others_end.max(size), true, cut);
        }
        let offset = {
            let mut clock = self.clock();
            let offset = clock.end;
            clock.end = end_of(offset, from.len())?;
            offset
        };
        let written = self.write_at(writer, from, offset);
        if written.is_err() {
            // The next append begins here again, unless another append came later.
            let mut clock = self.clock();
            if clock.end == offset + from.len() as u64 {
                clock.end = offset;
            }
        }
        written.map(|()| offset)
    }

    /// Publishes the data of `writer`; `None` for a handle that is open for reading. After a failed
    /// write or sync the whole file is synced, so that success means that no data is lost.
    pub fn publish(&self, writer: Option<&Writer>) -> Result<()> {
        if self.failures().first.is_some() {
            return self.sync();
        }
        match writer {
            Some(writer) => writer.lock().publish(self, writer.id),
            None => Ok(()),
        }
    }

    /// Syncs the data of all writers of this node, and unsynced data of writers that have ended. An
    /// error is returned by every later sync and publish on every handle, until one of them
    /// succeeds.
    pub fn sync(&self) -> Result<()> {
        // Read before the work: changes during it are left to the next sync.
        let mut safe = self.safe.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = self.changes.load(Ordering::SeqCst);
        let failures = self.failures().count;
        let had_failed = self.failures().first.is_some();
        let synced = self.sync_all(*safe < changes || had_failed);
        match &synced {
            Ok(()) => {
                *safe = changes;
                let mut now = self.failures();
                if now.count == failures {
                    now.first = None;
                }
            }
            Err(error) => self.failed(error),
        }
        synced?;
        drop(safe);
        self.clock().is_stale = true;
        self.follow()
    }

    /// Syncs as much as possible, and returns the first error. `has_changed` is true if the
    /// container and its names must be synced, too.
    fn sync_all(&self, has_changed: bool) -> Result<()> {
        let (mut are_new, mut synced) = (has_changed, Ok(()));
        for writer in self.writers() {
            match writer.lock().sync(self, writer.id) {
                Ok(is_new) => are_new |= is_new,
                Err(error) => synced = synced.and(Err(error)),
            }
        }
        synced = synced.and(self.end_unended());
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
            self.container.sync()?;
            if let Some(parent) = &self.parent {
                parent.sync()?;
            }
        }
        Ok(())
    }

    /// Takes the data that others have published into the view.
    pub fn follow(&self) -> Result<()> {
        if self.read_view().is_none() {
            return Ok(());
        }
        self.follow_to(&self.container.summary()?)
    }

    /// Takes the data that `summary` names into the view.
    fn follow_to(&self, summary: &Summary) -> Result<()> {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = view.as_mut() else { return Ok(()) };
        match known.follow(&self.container, summary, &|writer| self.written_by(writer)) {
            Ok(()) => {
                self.saw(known, summary);
                Ok(())
            }
            Err(error) => {
                // The view may have taken in a part of the data.
                *view = None;
                if error.kind == ErrorKind::Damaged {
                    // A page of the flat index is damaged. The logs contain the same data, and the
                    // next reader uses them.
                    if self.trusts_flat.swap(false, Ordering::Relaxed) {
                        return Ok(());
                    }
                }
                Err(error)
            }
        }
    }

    /// Makes later writes of this node later than all data of others in `view` and `summary`.
    fn saw(&self, view: &View, summary: &Summary) {
        let mut clock = self.clock();
        let foreign = |writer: u64| !clock.ours.contains_key(&writer);
        let epoch = view.epoch_of(&foreign).max(summary.epoch_of(&foreign));
        if epoch >= clock.epoch {
            (clock.seen, clock.is_stale) = (clock.seen.max(epoch), true);
        }
    }

    fn read_view(&self) -> RwLockReadGuard<'_, Option<View>> {
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Builds the view if there is none.
    fn see(&self) -> Result<()> {
        if self.read_view().is_some() {
            return Ok(());
        }
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        if view.is_none() {
            // Writers that write frames meanwhile wait for the lock; their frames are then either
            // known or added.
            let summary = self.container.summary()?;
            let torn = self.torn.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let threads = self.choices.index_threads;
            // Torn or damaged parts are left out when the logs are read; a flat index may contain
            // them.
            let ours = |writer: u64| self.written_by(writer);
            let logs_alone = |torn| View::build(&self.container, &summary, &ours, threads, torn);
            let built = if torn.is_empty() && self.trusts_flat.load(Ordering::Relaxed) {
                match View::open(&self.container, &summary, &ours, threads) {
                    Err(error)
                        if error.kind == ErrorKind::Damaged
                            && self.trusts_flat.swap(false, Ordering::Relaxed) =>
                    {
                        logs_alone(torn)?
                    }
                    built => built?,
                }
            } else {
                logs_alone(torn)?
            };
            *view = Some(self.accept(built, &summary)?);
        }
        Ok(())
    }

    fn accept(&self, built: View, summary: &Summary) -> Result<View> {
        if built.size() == 0 && self.container.is_gone()? {
            return Err(elsewhere());
        }
        self.saw(&built, summary);
        Ok(built)
    }

    /// Builds the view from shares, unless there is a view, or torn parts are known, which shares
    /// may contain.
    pub fn take_shares(&self, shares: &[Share]) -> Result<()> {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        if view.is_none() && self.torn.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            let summary = self.container.summary()?;
            let (ours, threads) = (|writer: u64| self.written_by(writer), self.choices.index_threads);
            let built = View::merge(&self.container, &summary, &ours, threads, shares)?;
            *view = Some(self.accept(built, &summary)?);
        }
        Ok(())
    }

    /// Writes the frames with bytes of `start..end`, so that the view has them.
    fn flush_for(&self, start: u64, end: u64) -> Result<()> {
        let writers: Vec<Arc<Writer>> = {
            let clock = self.clock();
            if clock.all_collected {
                let rivals = clock.collected.rivals(NOBODY, start, end);
                rivals.iter().filter_map(|rival| clock.known.get(rival).cloned()).collect()
            } else {
                clock.known.values().cloned().collect()
            }
        };
        for writer in writers {
            let mut state = writer.lock();
            if state.holds(start, end) {
                state.flush(self, writer.id)?;
            }
        }
        Ok(())
    }

    /// Returns the end of the collected data.
    fn collected_end(&self) -> u64 {
        {
            let clock = self.clock();
            if clock.all_collected {
                return clock.collected.end();
            }
        }
        self.writers().iter().map(|writer| writer.lock().collected_end()).max().unwrap_or(0)
    }

    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let end = offset.saturating_add(into.len() as u64).min(FILE_END_MAX);
        if end <= offset {
            return Ok(0);
        }
        // Another node may have removed logs since the view was built, because the file was
        // truncated.
        let mut is_new = false;
        loop {
            let unread = match self.try_read(into, offset, end) {
                Ok(length) => return Ok(length),
                Err(unread) => *unread,
            };
            let try_again = match &unread {
                Unread { error, .. } if error.kind == ErrorKind::NotFound && !is_new => true,
                Unread { error, piece: Some(piece) } => self.leave_out(error, piece)?,
                // A page of a flat index is damaged. The logs contain the same data.
                Unread { error, piece: None } => {
                    error.kind == ErrorKind::Damaged && self.trusts_flat.swap(false, Ordering::Relaxed)
                }
            };
            if !try_again {
                return Err(unread.error);
            }
            is_new = true;
            self.forget_view();
        }
    }

    /// Handles a piece that could not be read. If it was torn in a power failure before it was
    /// synced, it is ignored from now on. Each block is handled separately, so that all readers get
    /// the same content. Returns true if the read must be repeated.
    fn leave_out(&self, error: &Error, piece: &Wanted) -> Result<bool> {
        let bad = match error.kind {
            // Removed by another node, or moved to another store: the log itself is not lost.
            ErrorKind::NotFound if self.container.is_gone()? => {
                return Err(elsewhere());
            }
            ErrorKind::NotFound if piece.must_be_there => {
                return Err(Error::new(ErrorKind::Damaged, "read", data_name(piece.writer)));
            }
            _ if piece.must_be_there => return Ok(false),
            ErrorKind::NotFound => vec![(0, u64::MAX)],
            ErrorKind::Damaged => match self.descriptors.data(&self.container, piece.writer) {
                Ok(file) => {
                    data_log::torn_blocks(&*file, &piece.frame, self.container.head().block_bytes.into())?
                }
                // The header is torn: nothing in this log was synced.
                Err(_) => vec![(0, u64::MAX)],
            },
            _ => return Ok(false),
        };
        let mut torn = self.torn.lock().unwrap_or_else(PoisonError::into_inner);
        let known = torn.entry(piece.writer).or_default();
        let before = known.len();
        known.extend(bad.iter().filter(|bad| !known.contains(bad)).copied().collect::<Vec<_>>());
        known.sort_unstable();
        Ok(known.len() > before)
    }

    fn forget_view(&self) {
        self.edges.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn try_read(&self, into: &mut [u8], offset: u64, end: u64) -> Result<usize, Box<Unread>> {
        let whole = |error| Box::new(Unread { error, piece: None });
        self.flush_for(offset, end).map_err(whole)?;
        // Collected data beyond the requested range makes the file longer, too.
        let collected = self.collected_end();
        let (length, wanted) = loop {
            self.see().map_err(whole)?;
            // Another thread may have dropped the view; it is then built again.
            if let Some(view) = &*self.read_view() {
                let length = (end.min(view.size().max(collected)).saturating_sub(offset)) as usize;
                break (length, view.wanted(&mut into[..length], offset).map_err(whole)?);
            }
        };
        for piece in wanted {
            let part = &mut into[piece.into..piece.into + piece.length];
            self.read_piece(&piece, part).map_err(|error| Box::new(Unread { error, piece: Some(piece) }))?;
        }
        Ok(length)
    }

    fn read_piece(&self, piece: &Wanted, part: &mut [u8]) -> Result<()> {
        let file = self.descriptors.data(&self.container, piece.writer)?;
        let edges = LogEdges { file: self, writer: piece.writer };
        let block_bytes = self.container.head().block_bytes.into();
        let read = data_log::read_payload(&*file, &piece.frame, block_bytes, piece.position, part, &edges);
        read.map_err(|error| match error.kind {
            ErrorKind::Damaged => Error { subject: data_name(piece.writer), ..error },
            _ => error,
        })
    }

    /// Returns the size of the file for stat(2), and the content of `meta`.
    fn size_and_summary(&self) -> Result<(u64, Summary)> {
        let summary = self.container.summary()?;
        let (size, ask) = summary.size();
        let writers = self.writers();
        let own_cut = self.clock().own_cut;
        // The writers' own information is valid if it is later than the last truncation.
        let is_later = |first: u64| {
            summary.last_cut().is_none_or(|cut| cut.order.epoch < first || Some(cut.order) == own_cut)
        };
        let (mut end, mut known, mut collected) = (0, true, 0);
        for writer in &writers {
            let state = writer.lock();
            (end, collected) = (end.max(state.end()), collected.max(state.collected_end()));
            known &= state.epochs().is_none_or(|(first, _)| is_later(first));
        }
        // Open writers of other nodes have published their size, and their logs are not opened: on
        // some file systems this takes the permission to buffer from a writer. If the file is read
        // here, the view follows the logs anyway; a dead writer's logs may have more.
        let host = self.container.host();
        let mut foreign = summary.open.iter().filter(|running| !self.is_ours(running.writer)).peekable();
        known &= self.read_view().is_none() || foreign.peek().is_none();
        known &= !foreign.any(|running| (host.is_gone)(&running.holder));
        if known && ask.iter().all(|id| writers.iter().any(|writer| writer.id == *id)) {
            return Ok((size.max(end), summary));
        }
        self.see()?;
        self.follow()?;
        let seen = self.read_view().as_ref().map_or(0, View::size);
        Ok((seen.max(collected), summary))
    }

    pub fn attributes(&self, node: NodeId) -> Result<Attributes> {
        self.attributes_and_summary(node).map(|(attributes, _)| attributes)
    }

    /// Returns the attributes, and the content of `meta` from which they were determined.
    pub fn attributes_and_summary(&self, node: NodeId) -> Result<(Attributes, Summary)> {
        let access = self.container.dir().stat(ACCESS)?;
        self.has_set_id.store(access.mode & SET_ID != 0, Ordering::Relaxed);
        let (size_bytes, summary) = self.size_and_summary()?;
        let mut written = summary.written();
        let mut data_bytes = summary.data_bytes();
        for writer in self.writers() {
            let mut state = writer.lock();
            if summary.has_set_time() {
                state.flush(self, writer.id)?; // collected data has no time yet
            }
            if let Some((_, last)) = state.epochs() {
                data_bytes += state.data_bytes();
                if !summary.set_after(last) {
                    written = written.max(state.modified()?);
                }
            }
        }
        let foreign = summary.open.iter().filter(|running| !self.is_ours(running.writer));
        data_bytes += foreign.filter_map(|running| running.told).map(|told| told.data_bytes).sum::<u64>();
        let modified = written.or(summary.modified()).unwrap_or(access.modified);
        let attributes = Attributes {
            node,
            kind: Kind::File,
            permissions: access.mode & 0o7777,
            uid: access.uid,
            gid: access.gid,
            nlink: 1,
            rdev: 0,
            size_bytes,
            blocks: data_bytes.div_ceil(512),
            modified,
            changed: modified.max(access.changed),
        };
        Ok((attributes, summary))
    }

    pub fn change(&self, change: &Change) -> Result<()> {
        if let Some(size) = change.size_bytes {
            self.cut(size)?;
        }
        if change.permissions.is_some() || change.uid.is_some() || change.gid.is_some() {
            if change.permissions.is_some_and(|permissions| permissions & SET_ID != 0) {
                self.has_set_id.store(true, Ordering::Relaxed);
            }
            self.container.change(change)?;
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
        if let Some(time) = change.modified {
            self.set_time(time)?;
        }
        Ok(())
    }

    /// Returns true if these permissions differ from the file's only by removed set-id bits.
    pub fn only_drops_set_id(&self, permissions: u32) -> Result<bool> {
        let before = self.container.dir().stat(ACCESS)?.mode & 0o7777;
        Ok(before != permissions && before & !permissions & !SET_ID == 0 && permissions & !before == 0)
    }

    /// Changes the permissions of `access` only, because directories and logs of the container have
    /// no set-id bits.
    fn set_permissions_of_access(&self, before: u32, permissions: u32) -> Result<()> {
        if permissions != before {
            let change = Change { permissions: Some(permissions), ..Change::default() };
            self.container.dir().change(ACCESS, &change)?;
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Removes set-id bits down to these permissions (see
    /// [`only_drops_set_id`](Self::only_drops_set_id)).
    pub fn drop_set_id_to(&self, permissions: u32) -> Result<()> {
        let before = self.container.dir().stat(ACCESS)?.mode & 0o7777;
        self.set_permissions_of_access(before, before & permissions)
    }

    /// Removes the set-user-ID bit, and the set-group-ID bit of a file that is executable by its
    /// group.
    pub fn drop_set_id(&self) -> Result<()> {
        if !self.has_set_id.load(Ordering::Relaxed) {
            return Ok(());
        }
        let before = self.container.dir().stat(ACCESS)?.mode & 0o7777;
        let group = if before & 0o010 != 0 { 0o2000 } else { 0 };
        self.set_permissions_of_access(before, before & !(0o4000 | group))?;
        self.has_set_id.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Returns an order that is later than all data written or seen here so far, and earlier than
    /// all later data.
    fn moment(&self) -> Result<Order> {
        for writer in self.writers() {
            writer.lock().flush(self, writer.id)?;
        }
        let mut clock = self.clock();
        let taken = self.container.take_epochs(clock.seen.max(clock.epoch), 2);
        let epoch = taken.inspect_err(|error| self.failed(error))?;
        clock.epoch = epoch;
        (clock.is_stale, clock.end_known) = (false, false);
        clock.sequence += 1;
        let writer = self.container.stores().random_writer();
        clock.ours.entry(writer).or_default();
        Ok(Order { epoch: epoch - 1, sequence: clock.sequence, writer })
    }

    fn set_time(&self, time: Time) -> Result<()> {
        let order = self.moment()?;
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.container.add_meta(&MetaName::Time(order, time))?;
        if let Ok(summary) = self.container.summary() {
            let tidied = self.container.tidy_meta(&summary, &MetaName::Time(order, time));
            tidied.unwrap_or_else(|error| self.failed(&error));
        }
        Ok(())
    }

    /// Truncates or extends the file to `size` bytes.
    pub fn cut(&self, size: u64) -> Result<()> {
        if size > FILE_END_MAX {
            return Err(Error::new(ErrorKind::InvalidInput, "resize", size.to_string()));
        }
        let order = self.moment()?;
        let name = |time| MetaName::Cut(Cut { order, size, time });
        self.add_covers(order.writer)?;
        self.container.add_meta(&name(Time::default()))?;
        // The time of the name itself, by the clock of the file system below. If the name is
        // missing, another node has truncated the file to size 0 since, which is later.
        let stat = self.container.meta()?.stat(name(Time::default()).encode().as_bytes());
        let named =
            stat.and_then(|stat| self.container.rename_meta(&name(Time::default()), &name(stat.modified)));
        missing(named)?;
        self.changes.fetch_add(1, Ordering::SeqCst);
        // Data written after `order` was taken is later than the truncation.
        let mut end = size;
        for writer in self.writers() {
            let mut state = writer.lock();
            let written = state.cut(size, order);
            if state.is_later(order) {
                end = end.max(written);
            }
        }
        let mut clock = self.clock();
        (clock.end, clock.end_known) = (end, false);
        (clock.own_cut, clock.last_cut) = (Some(order), Some(order));
        drop(clock);
        let summary = self.container.summary()?;
        let tidied = self.container.tidy_meta(&summary, &name(Time::default()));
        tidied.unwrap_or_else(|error| self.failed(&error));
        if size == 0 {
            // This only frees space. Logs that cannot be removed now are removed at the next
            // truncation.
            if self.drop_dead_logs(&summary).is_err() {
                self.forget_view(); // some logs in `summary` may be removed
            }
        }
        self.follow_to(&summary)
    }

    /// Creates the `covers` names of the truncation `cut`: how much of the data logs of other
    /// mounts' open writers it covers. Data beyond that is later than the truncation, whatever its
    /// epoch. The truncation's epoch was taken before, and its `cut` name is created afterwards.
    ///
    /// These names need no sync: a writer's sync of later data syncs `meta`.
    fn add_covers(&self, cut: u64) -> Result<()> {
        let summary = self.container.summary()?;
        let mut logs = Vec::new();
        for running in summary.open.iter().filter(|running| !self.is_ours(running.writer)) {
            let published = running.told.map_or(0, |told| told.data_bytes);
            let stored = match self.container.stat_data(running.writer) {
                Ok(stat) => stat.size_bytes,
                // Not created yet, or in a directory of another user: the published size counts.
                Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::PermissionDenied) => 0,
                Err(error) => return Err(error),
            };
            logs.push((running.writer, published.max(stored)));
        }
        let names: Vec<MetaName> = (logs.chunks(COVERS_MAX))
            .map(|logs| MetaName::Covers(Covers { cut, logs: logs.to_vec() }))
            .collect();
        let added = names.iter().try_for_each(|name| self.container.add_meta(name));
        if added.is_err() {
            // Without the `cut` name they have no meaning.
            names.iter().for_each(|name| drop(self.container.remove_meta(name)));
        }
        added
    }

    /// After a truncation to size 0, removes the logs of writers that ended before it.
    fn drop_dead_logs(&self, summary: &Summary) -> Result<()> {
        let Some(cut) = summary.last_cut().filter(|cut| cut.size == 0 && summary.open.is_empty()) else {
            return Ok(());
        };
        let dead: Vec<_> = summary.closed.iter().filter(|closed| summary.cuts.last_covers(closed)).collect();
        if dead.is_empty() {
            return Ok(());
        }
        // The `cut` name is synced first: after a power failure the logs must not be missing
        // without it.
        self.container.meta()?.sync().inspect_err(|error| self.failed(error))?;
        // Other nodes may remove the same names at the same time.
        for closed in &dead {
            self.descriptors.forget(&self.container, closed.writer);
            self.container.remove_logs(closed.writer)?;
            missing(self.container.remove_meta(&MetaName::Closed(**closed)))?;
            if summary.has_failed(closed.writer) {
                self.container.clear_failed(closed.writer)?;
            }
        }
        self.container.remove_flats()?;
        if dead.len() == summary.closed.len() {
            for earlier in summary.cuts.cuts().iter().filter(|earlier| earlier.order < cut.order) {
                missing(self.container.remove_meta(&MetaName::Cut(*earlier)))?;
            }
        }
        self.forget_view();
        Ok(())
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        self.descriptors.forget_file(self.container.identity());
    }
}

/// The reason why a read failed, and the piece that could not be read; `None` if the index could
/// not be read.
struct Unread {
    error: Error,
    piece: Option<Wanted>,
}

/// Returns the error for a file that another node has removed or moved.
fn elsewhere() -> Error {
    Error::new(ErrorKind::Stale, "read", b"a file that is elsewhere now")
}

/// Returns the end of `length` bytes at `offset`, if a file may end there.
fn end_of(offset: u64, length: usize) -> Result<u64> {
    let end = offset.checked_add(length as u64).filter(|end| *end <= FILE_END_MAX);
    end.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "write", offset.to_string()))
}

impl Site for LogFile {
    fn container(&self) -> &Container {
        &self.container
    }

    fn begin(&self) -> Result<()> {
        let (known, seen) = {
            let clock = self.clock();
            (clock.epoch, clock.seen)
        };
        let epoch = self.container.epoch_of_new_writer(known, seen)?;
        let mut clock = self.clock();
        if epoch > clock.epoch {
            clock.epoch = epoch;
            clock.is_stale &= clock.seen >= epoch;
            clock.end_known &= known == 0;
        }
        Ok(())
    }

    fn next_order(&self, writer: u64) -> Order {
        let mut clock = self.clock();
        clock.sequence += 1;
        clock.ours.entry(writer).or_default();
        Order { epoch: clock.epoch, sequence: clock.sequence, writer }
    }

    fn frame_failed(&self) {
        self.clock().is_stale = true;
    }

    fn written(&self, writer: u64, written: Written<'_>) {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        self.clock().ours.insert(writer, written.data_bytes);
        if let Some(known) = view.as_mut() {
            let Written { head_bytes, order, position, runs, .. } = written;
            let added = known.add(writer, head_bytes, order, position, runs);
            if added.and_then(|()| known.shrink(&self.container)).is_err() {
                // The next reader builds the view again from the logs, and gets the error.
                *view = None;
            }
        }
        drop(view);
        // In this order, so that a reader finds the data in the view or in the collected ranges.
        self.clock().collected.remove(writer, written.runs);
    }
}

/// The blocks of one log among those of its file.
struct LogEdges<'a> {
    file: &'a LogFile,
    writer: u64,
}

impl Edges for LogEdges<'_> {
    fn get(&self, position: u64) -> Option<Arc<Block>> {
        let mut edges = self.file.edges.lock().unwrap_or_else(PoisonError::into_inner);
        edges.get(&(self.writer, position)).cloned()
    }

    fn put(&self, block: Arc<Block>) {
        let mut edges = self.file.edges.lock().unwrap_or_else(PoisonError::into_inner);
        edges.put((self.writer, block.position), block);
    }
}
