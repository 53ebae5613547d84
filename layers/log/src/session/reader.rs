//! Reads an open file: keeps its extent map, follows the logs of other nodes, and reads the data.
//!
//! No I/O is done under the lock of the map. Index logs are read before, and scratch files are
//! written from a copy, so writers of this node never wait: they add their frames to the map, or to
//! a list if the map is being built or was copied. Only threads that need new data of other nodes
//! wait, at `update`. Pages of a flat index are read by each thread for itself.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lru::LruCache;
use quell_vfs::{Error, ErrorKind, Result};

use crate::container::{Block, Container, Descriptors, Edges, HeldPages, read_payload, torn_blocks};
use crate::format::{
    FILE_END_MAX, FileOffset, FrameKind, Order, PayloadOffset, PayloadRange, Run, Summary, data_name,
};
use crate::locks::{Rank, RankedMutex, RankedRwLock};
use crate::session::extent_map::{ExtentMap, LogPiece, Torn};
use crate::session::sequencer::Sequencer;
use crate::session::share::Share;
use crate::session::writer::Written;

/// Number of blocks of a file that are kept after they were read in part.
const EDGE_BLOCKS_MAX: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// The extent map of a file.
enum MapState {
    /// The file was not read yet, or the map was dropped.
    Absent,
    /// A thread reads the index logs. The list contains the frames that writers of this node have
    /// written since it began.
    Building(Vec<OwnFrame>),
    Ready(Box<ExtentMap>),
    /// A thread writes a copy of the map to a scratch file, and replaces the map by it. The list
    /// contains the frames that were added to the map since it was copied.
    Copied(Box<ExtentMap>, Vec<OwnFrame>),
}

impl MapState {
    /// Returns the map, if there is one.
    fn map(&self) -> Option<&ExtentMap> {
        match self {
            MapState::Ready(map) | MapState::Copied(map, _) => Some(map),
            MapState::Absent | MapState::Building(_) => None,
        }
    }
}

/// A frame that a writer of this node has written.
struct OwnFrame {
    writer: u64,
    kind: FrameKind,
    head_bytes: u64,
    order: Order,
    payload_start: PayloadOffset,
    data_bytes: u64,
    runs: Vec<Run>,
}

impl OwnFrame {
    fn new(writer: u64, written: &Written<'_>) -> OwnFrame {
        let Written { order, kind, head_bytes, payload_start, data_bytes, runs } = *written;
        OwnFrame { writer, kind, head_bytes, order, payload_start, data_bytes, runs: runs.to_vec() }
    }

    fn written(&self) -> Written<'_> {
        let OwnFrame { kind, head_bytes, order, payload_start, data_bytes, ref runs, .. } = *self;
        Written { order, kind, head_bytes, payload_start, data_bytes, runs }
    }
}

/// The reason why a read failed, and the piece that could not be read; `None` if the index could
/// not be read.
struct Unread {
    error: Error,
    piece: Option<LogPiece>,
}

/// The parts of an open file that a reader uses.
#[derive(Clone, Copy)]
pub(crate) struct ReadContext<'a> {
    pub container: &'a Container,
    pub sequencer: &'a RankedMutex<Sequencer>,
}

impl ReadContext<'_> {
    fn own_data_bytes(&self, writer: u64) -> Option<u64> {
        self.sequencer.lock().own_data_bytes(writer)
    }

    /// Makes later writes of this node later than all data of other nodes in `map` and `summary`.
    fn mark_seen(&self, map: &ExtentMap, summary: &Summary) {
        let mut sequencer = self.sequencer.lock();
        let foreign = |writer: u64| sequencer.own_data_bytes(writer).is_none();
        let epoch = map.epoch_of(&foreign).max(sequencer.foreign_epoch(summary));
        sequencer.mark_seen(epoch);
    }
}

/// The reader of an open file.
pub(crate) struct Reader {
    descriptors: Arc<Descriptors>,
    index_threads: usize,
    /// Held while one thread reads index logs or writes a scratch file.
    update: RankedMutex<()>,
    map: RankedRwLock<MapState>,
    /// The map has more extents in memory than the limit.
    is_large: AtomicBool,
    edges: RankedMutex<LruCache<(u64, PayloadOffset), Arc<Block>>>,
    /// False after a page of the flat index was found damaged.
    trusts_flat: AtomicBool,
    /// Parts of logs that were torn before they were synced.
    torn: RankedMutex<Torn>,
}

impl Reader {
    pub fn new(descriptors: Arc<Descriptors>, index_threads: usize) -> Reader {
        Reader {
            descriptors,
            index_threads,
            update: RankedMutex::new(Rank::MapUpdate, ()),
            map: RankedRwLock::new(Rank::Map, MapState::Absent),
            is_large: AtomicBool::new(false),
            edges: RankedMutex::new(Rank::Leaf, LruCache::new(EDGE_BLOCKS_MAX)),
            trusts_flat: AtomicBool::new(true),
            torn: RankedMutex::new(Rank::Leaf, Torn::default()),
        }
    }

    pub fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// Returns true if the file was not read yet.
    pub fn is_unread(&self) -> bool {
        matches!(*self.map.read(), MapState::Absent)
    }

    /// Adds the data that other nodes have published to the map, which is built if there is none.
    /// Returns the size of the file.
    pub fn refreshed_size(&self, file: ReadContext<'_>) -> Result<u64> {
        loop {
            self.build_map(file)?;
            self.refresh(file)?;
            // Another thread may have dropped the map, or `refresh` has dropped it because a page
            // of the flat index is damaged; the map is then built again.
            if let Some(map) = self.map.read().map() {
                return Ok(map.size());
            }
        }
    }

    /// Adds a frame that a writer of this node has written. A later reader finds its data in the
    /// map.
    pub fn add(&self, file: ReadContext<'_>, writer: u64, written: &Written<'_>) {
        let (mut pages, mut loaded) = (HeldPages::default(), Ok(()));
        loop {
            let mut state = self.map.write();
            // Recorded while the map is locked, so that a thread that builds the map finds the
            // frame either in the log or in the list.
            file.sequencer.lock().written(writer, written.data_bytes);
            let map = match &mut *state {
                MapState::Absent => return,
                MapState::Building(frames) => return frames.push(OwnFrame::new(writer, written)),
                MapState::Ready(map) | MapState::Copied(map, _) => map,
            };
            if loaded.is_err() {
                // The next reader builds the map again from the logs, and gets the error.
                let dropped = std::mem::replace(&mut *state, MapState::Absent);
                drop(state);
                return drop(dropped); // without the lock, because a large map takes long
            }
            if map.add(writer, written, &mut pages) {
                match &mut *state {
                    MapState::Copied(_, frames) => frames.push(OwnFrame::new(writer, written)),
                    MapState::Ready(map) if map.is_large(file.container) => {
                        self.is_large.store(true, Ordering::Relaxed);
                    }
                    _ => {}
                }
                return;
            }
            drop(state);
            loaded = pages.load();
        }
    }

    /// Drops the map; the next read builds it again.
    pub fn drop_map(&self) {
        let _one = self.update.lock();
        self.edges.lock().clear();
        self.set_absent();
    }

    fn set_absent(&self) {
        let dropped = std::mem::replace(&mut *self.map.write(), MapState::Absent);
        drop(dropped); // without the lock, because a large map takes long
    }

    /// Writes the extents in memory to a scratch file if they have become more than the limit. Does
    /// nothing if another thread reads index logs, because that thread does it afterwards. The
    /// caller holds no lock of the file.
    pub fn spill_if_large(&self, file: ReadContext<'_>) {
        if !self.is_large.load(Ordering::Relaxed) {
            return;
        }
        let Some(_one) = self.update.try_lock() else { return };
        if self.spill(file).is_err() {
            // The next reader builds the map again from the logs, and gets the error.
            self.set_absent();
        }
    }

    /// Replaces the map by a copy with its extents in a scratch file, if there are more in memory
    /// than the limit. The caller holds `update`.
    fn spill(&self, file: ReadContext<'_>) -> Result<()> {
        let mut copy = {
            let mut state = self.map.write();
            self.is_large.store(false, Ordering::Relaxed);
            match std::mem::replace(&mut *state, MapState::Absent) {
                MapState::Ready(map) if map.is_large(file.container) => {
                    let copy = (*map).clone();
                    *state = MapState::Copied(map, Vec::new());
                    copy
                }
                other => {
                    *state = other;
                    return Ok(());
                }
            }
        };
        copy.shrink(file.container)?;
        self.end_build(file, copy)
    }

    /// Builds the map if there is none.
    pub fn build_map(&self, file: ReadContext<'_>) -> Result<()> {
        if self.map.read().map().is_some() {
            return Ok(());
        }
        let _one = self.update.lock();
        if self.map.read().map().is_some() {
            return Ok(());
        }
        self.replace_map(file, || {
            let summary = file.container.summary()?;
            let torn = self.torn.lock().clone();
            let (own, threads) = (|writer: u64| file.own_data_bytes(writer), self.index_threads);
            // Torn or damaged parts are left out when the logs are read; a flat index may contain
            // them.
            if torn.is_empty() && self.trusts_flat.load(Ordering::Relaxed) {
                match ExtentMap::open(file.container, &summary, &own, threads) {
                    Err(error) if error.kind == ErrorKind::Damaged && self.stop_trusting_flat() => {}
                    built => return Ok((built?, summary)),
                }
            }
            Ok((ExtentMap::build(file.container, &summary, &own, threads, torn)?, summary))
        })
    }

    /// Builds the map from shares, unless there is a map, or torn parts are known, which shares may
    /// contain.
    pub fn take_shares(&self, file: ReadContext<'_>, shares: &[Share]) -> Result<()> {
        let _one = self.update.lock();
        if !self.is_unread() || !self.torn.lock().is_empty() {
            return Ok(());
        }
        self.replace_map(file, || {
            let summary = file.container.summary()?;
            let own = |writer: u64| file.own_data_bytes(writer);
            let built = ExtentMap::merge(file.container, &summary, &own, self.index_threads, shares)?;
            Ok((built, summary))
        })
    }

    /// Replaces the map by the result of `build`, which reads the logs without a lock of the map.
    /// The caller holds `update`.
    fn replace_map(
        &self,
        file: ReadContext<'_>,
        build: impl FnOnce() -> Result<(ExtentMap, Summary)>,
    ) -> Result<()> {
        let before = std::mem::replace(&mut *self.map.write(), MapState::Building(Vec::new()));
        drop(before); // without the lock, because a large map takes long
        let replaced = build().and_then(|(map, summary)| self.install(file, map, &summary));
        if replaced.is_err() {
            self.set_absent();
        }
        replaced
    }

    /// Installs a map that was built from `summary`.
    fn install(&self, file: ReadContext<'_>, map: ExtentMap, summary: &Summary) -> Result<()> {
        // The names in the container may be those that a removal has left. An object keeps its
        // content.
        if map.size() == 0 && !file.container.was_only_object() && file.container.is_gone()? {
            return Err(removed_or_moved());
        }
        file.mark_seen(&map, summary);
        self.end_build(file, map)
    }

    /// Installs `map`, after adding the frames that were written since its build began or since it
    /// was copied. The caller holds `update`.
    fn end_build(&self, file: ReadContext<'_>, mut map: ExtentMap) -> Result<()> {
        let mut pages = HeldPages::default();
        loop {
            let mut state = self.map.write();
            let frames = match &mut *state {
                MapState::Building(frames) | MapState::Copied(_, frames) => std::mem::take(frames),
                // A frame could not be added to the copied map. The next reader builds the map
                // again.
                MapState::Absent => return Ok(()),
                MapState::Ready(_) => unreachable!("only the holder of `update` ends a build"),
            };
            if frames.is_empty() {
                let before = std::mem::replace(&mut *state, MapState::Ready(Box::new(map)));
                drop(state);
                drop(before); // without the lock, because a large map takes long
                return Ok(());
            }
            drop(state);
            for frame in frames {
                while !map.add(frame.writer, &frame.written(), &mut pages) {
                    pages.load()?;
                }
            }
            map.shrink(file.container)?;
        }
    }

    fn stop_trusting_flat(&self) -> bool {
        self.trusts_flat.swap(false, Ordering::Relaxed)
    }

    /// Adds the data that other nodes have published to the map.
    pub fn refresh(&self, file: ReadContext<'_>) -> Result<()> {
        match self.is_unread() {
            true => Ok(()),
            false => self.refresh_to(file, &file.container.summary()?),
        }
    }

    /// Adds the data that `summary` names to the map.
    pub fn refresh_to(&self, file: ReadContext<'_>, summary: &Summary) -> Result<()> {
        let _one = self.update.lock();
        match self.read_new(file, summary) {
            Ok(()) => Ok(()),
            Err(error) => {
                // A part of the data may be in the map.
                self.set_absent();
                // A page of the flat index is damaged. The logs contain the same data, and the next
                // reader uses them.
                match error.kind == ErrorKind::Damaged && self.stop_trusting_flat() {
                    true => Ok(()),
                    false => Err(error),
                }
            }
        }
    }

    /// Reads the new parts of the logs that `summary` names. The caller holds `update`.
    fn read_new(&self, file: ReadContext<'_>, summary: &Summary) -> Result<()> {
        let own = |writer: u64| file.own_data_bytes(writer);
        loop {
            let update = match self.map.read().map() {
                Some(map) => map.update_to(file.container, summary, &own),
                None => return Ok(()),
            };
            let Some(update) = update else {
                return self.replace_map(file, || {
                    let torn = self.torn.lock().clone();
                    let map = ExtentMap::build(file.container, summary, &own, 1, torn)?;
                    Ok((map, summary.clone()))
                });
            };
            let update = update.read(file.container)?;
            let mut state = self.map.write();
            // The map is absent if a frame of this node could not be added meanwhile.
            let MapState::Ready(map) = &mut *state else { return Ok(()) };
            let is_all = map.apply(update, summary);
            if is_all {
                file.mark_seen(map, summary);
            }
            drop(state);
            self.spill(file)?;
            if is_all {
                return Ok(());
            }
        }
    }

    /// Returns the parts of `start..end` that have data other than zeros of frames of zeros.
    /// Neighbouring parts may be joined, up to `bytes_max` bytes. The caller has written the
    /// collected data of the range.
    pub fn data_ranges(
        &self,
        file: ReadContext<'_>,
        start: FileOffset,
        end: FileOffset,
        bytes_max: u64,
    ) -> Result<Vec<Range<FileOffset>>> {
        loop {
            self.build_map(file)?;
            let copy = match self.map.read().map() {
                // Another thread may have dropped the map; it is then built again.
                None => continue,
                Some(map) if map.has_flat() => map.clone(),
                // Without a flat index this does no I/O.
                Some(map) => return map.data_ranges(start, end, bytes_max),
            };
            match copy.data_ranges(start, end, bytes_max) {
                // A page of the flat index is damaged. The logs contain the same data.
                Err(error) if error.kind == ErrorKind::Damaged && self.stop_trusting_flat() => {
                    self.drop_map();
                }
                found => return found,
            }
        }
    }

    /// Reads bytes of the file into `into`. `flush` writes the data that writers of this node have
    /// collected in a range to their logs, and returns the end of all collected data.
    pub fn read_at(
        &self,
        file: ReadContext<'_>,
        into: &mut [u8],
        offset: FileOffset,
        flush: &dyn Fn(FileOffset, FileOffset) -> Result<FileOffset>,
    ) -> Result<usize> {
        let end = FileOffset(offset.0.saturating_add(into.len() as u64).min(FILE_END_MAX));
        if end <= offset {
            return Ok(0);
        }
        // Another node may have removed logs since the map was built, because the file was
        // truncated.
        let mut is_new = false;
        let mut has_asked_server = false;
        loop {
            let unread = match self.try_read(file, into, offset, end, flush) {
                Ok(length) => return Ok(length),
                Err(unread) => *unread,
            };
            let try_again = match &unread {
                Unread { error, .. } if error.kind == ErrorKind::NotFound && !is_new => true,
                // This node may have cached the size of the log before the data was written.
                Unread { error, piece: Some(piece) }
                    if error.kind == ErrorKind::Damaged && !has_asked_server =>
                {
                    has_asked_server = true;
                    if let Ok(data) = self.descriptors.data(file.container, piece.writer) {
                        data.stat_from_server()?;
                    }
                    true
                }
                Unread { error, piece: Some(piece) } => self.ignore_torn(file, error, piece)?,
                // A page of a flat index is damaged. The logs contain the same data.
                Unread { error, piece: None } => {
                    error.kind == ErrorKind::Damaged && self.stop_trusting_flat()
                }
            };
            if !try_again {
                return Err(unread.error);
            }
            tracing::debug!(
                container = %file.container.shown_number(),
                error = %unread.error,
                "cannot read a part of a file: reading its index again"
            );
            is_new = true;
            self.drop_map();
        }
    }

    fn try_read(
        &self,
        file: ReadContext<'_>,
        into: &mut [u8],
        offset: FileOffset,
        end: FileOffset,
        flush: &dyn Fn(FileOffset, FileOffset) -> Result<FileOffset>,
    ) -> Result<usize, Box<Unread>> {
        let whole = |error| Box::new(Unread { error, piece: None });
        // Collected data beyond the requested range makes the file longer, too.
        let collected_end = flush(offset, end).map_err(whole)?;
        let mut pages = HeldPages::default();
        let (length, pieces) = loop {
            self.build_map(file).map_err(whole)?;
            // Another thread may have dropped the map; it is then built again.
            if let Some(map) = self.map.read().map() {
                let file_end = FileOffset(map.size()).max(collected_end);
                let length = end.min(file_end).bytes_after(offset) as usize;
                if let Some(pieces) = map.pieces_for(&mut into[..length], offset, &mut pages) {
                    break (length, pieces);
                }
            }
            pages.load().map_err(whole)?;
        };
        for piece in pieces {
            let part = &mut into[piece.into..piece.into + piece.length];
            self.read_piece(file, &piece, part)
                .map_err(|error| Box::new(Unread { error, piece: Some(piece) }))?;
        }
        Ok(length)
    }

    fn read_piece(&self, file: ReadContext<'_>, piece: &LogPiece, part: &mut [u8]) -> Result<()> {
        let data = self.descriptors.data(file.container, piece.writer)?;
        let edges = LogEdges { edges: &self.edges, writer: piece.writer };
        let block_bytes = file.container.head().block_bytes.into();
        let read = read_payload(&*data, &piece.frame, block_bytes, piece.payload, part, &edges);
        read.map_err(|error| match error.kind {
            ErrorKind::Damaged => Error { subject: data_name(piece.writer), ..error },
            _ => error,
        })
    }

    /// Handles a piece that could not be read. If it was torn in a power failure before it was
    /// synced, it is ignored from now on. Each block is ignored separately, so that all readers get
    /// the same content. Returns true if the read must be repeated.
    fn ignore_torn(&self, file: ReadContext<'_>, error: &Error, piece: &LogPiece) -> Result<bool> {
        let bad = match error.kind {
            // Another node removed the file, or moved it to another store: the log itself is not
            // lost.
            ErrorKind::NotFound if file.container.is_gone()? => return Err(removed_or_moved()),
            ErrorKind::NotFound if piece.is_required => {
                return Err(Error::new(ErrorKind::Damaged, "read", data_name(piece.writer)));
            }
            _ if piece.is_required => return Ok(false),
            ErrorKind::NotFound => vec![PayloadRange::ALL],
            ErrorKind::Damaged => match self.descriptors.data(file.container, piece.writer) {
                Ok(data) => torn_blocks(&*data, &piece.frame, file.container.head().block_bytes.into())?,
                // The header is torn: nothing in this log was synced.
                Err(_) => vec![PayloadRange::ALL],
            },
            _ => return Ok(false),
        };
        let mut torn = self.torn.lock();
        let known = torn.entry(piece.writer).or_default();
        let before = known.len();
        known.extend(bad.iter().filter(|bad| !known.contains(bad)).copied().collect::<Vec<_>>());
        known.sort_unstable();
        Ok(known.len() > before)
    }
}

/// Returns the error for a file that another node has removed or moved.
fn removed_or_moved() -> Error {
    Error::new(ErrorKind::Stale, "read", b"a file that was removed or moved")
}

/// The kept blocks of one log.
struct LogEdges<'a> {
    edges: &'a RankedMutex<LruCache<(u64, PayloadOffset), Arc<Block>>>,
    writer: u64,
}

impl Edges for LogEdges<'_> {
    fn get(&self, start: PayloadOffset) -> Option<Arc<Block>> {
        self.edges.lock().get(&(self.writer, start)).cloned()
    }

    fn put(&self, block: Arc<Block>) {
        let evicted = self.edges.lock().push((self.writer, block.start), block);
        drop(evicted);
    }
}
