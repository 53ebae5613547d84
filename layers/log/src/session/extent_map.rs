//! The content of a file as one node sees it: the extents of all its logs, which are resolved, and
//! are updated as the logs grow. No part of a log is read twice. Extents that do not fit into
//! memory are written to a flat index in a scratch file.
//!
//! A reader locks the map, so the methods that it calls meanwhile do no I/O: pages of the flat
//! index are read before ([`HeldPages`]), index logs are read by a [`MapUpdate`], and a copy of the
//! map writes the scratch file.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use quell_vfs::{ErrorKind, Result, printable};

use crate::container::{Container, Flat, HeldPages};
use crate::format::{
    Builder, Extent, Extents, FILE_END_MAX, FileOffset, FlatLog, Frame, FrameKind, Head, Order, Orders,
    PayloadOffset, PayloadRange, Piece, Run, Running, Summary, Truncations, boot_of, resolve, share_range,
};
use crate::session::log_reader::{LogBounds, LogReader};
use crate::session::share::Share;
use crate::session::writer::Written;

/// For each writer, the payload ranges of its log that were torn before they were synced, sorted.
pub type Torn = HashMap<u64, Vec<PayloadRange>>;

/// Passes the extents of a flat index in a range to its last argument.
type VisitFlat<'a> = dyn FnMut(&Arc<Flat>, FileOffset, FileOffset, &mut dyn FnMut(Extent)) + 'a;
/// As `VisitFlat`, for one flat index, and with I/O that can fail.
type ReadFlat<'a> = dyn FnMut(FileOffset, FileOffset, &mut dyn FnMut(Extent)) -> Result<()> + 'a;

/// The bytes of a log that a reader needs.
#[derive(Debug, Clone, Copy)]
pub struct LogPiece {
    pub writer: u64,
    /// Index in the reader's buffer.
    pub into: usize,
    pub length: usize,
    pub payload: PayloadOffset,
    pub frame: Frame,
    /// The bytes were synced, or no power failure can have removed them: missing bytes are damage.
    pub is_required: bool,
}

/// The result of flattening a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flattened {
    /// Number of logs.
    pub logs: u64,
    /// Number of extents.
    pub extents: u64,
    /// Size of the flat index.
    pub bytes: u64,
}

/// The resolved logs of a file.
#[derive(Debug, Clone)]
pub struct ExtentMap {
    logs: Vec<LogReader>,
    by_writer: HashMap<u64, u32>,
    /// The flat index, if there is one. Its logs come first in `logs`.
    flat: Option<Arc<Flat>>,
    /// Set if `flat` is a scratch file with the extents that did not fit into memory: the end of
    /// its last extent.
    spilled: Option<KnownEnd>,
    /// The file's size when it was flattened last.
    flattened: Option<KnownEnd>,
    /// All other extents. They hide the extents of `flat` in the same range.
    extents: Extents,
    truncations: Truncations,
    block_bytes: u64,
    torn: Torn,
    /// The larger of the size according to the names in `meta` and the end of lost data. Lost bytes
    /// are holes, but the file keeps its size.
    named_size: u64,
}

/// New data of other nodes' writers, for one extent map.
pub struct MapUpdate {
    truncations: Truncations,
    /// Copies of the map's logs, which are read without the map.
    logs: Vec<LogReader>,
    /// The flat index of the map.
    flat: Option<Arc<Flat>>,
    /// The extents that were read and that the flat index does not hide: the index of their log in
    /// `logs`, and the extents.
    found: Vec<(usize, Vec<Extent>)>,
    is_all: bool,
}

impl MapUpdate {
    /// Reads the new parts of the logs, up to about as many extents as are kept in memory.
    pub fn read(mut self, container: &Container) -> Result<MapUpdate> {
        let mut extents_left = container.host().scratch.extents_max.max(1);
        for (index, log) in self.logs.iter_mut().enumerate() {
            if extents_left == 0 {
                self.is_all = false;
                break;
            }
            let (found, is_end) =
                read_share(container, std::slice::from_mut(log), 0, &self.truncations, extents_left)?;
            extents_left = extents_left.saturating_sub(found.len());
            self.is_all &= is_end;
            let found = match &self.flat {
                Some(flat) => {
                    let logs = Logs(std::slice::from_ref(log), 0);
                    over_flat(flat, found, &logs, &self.truncations, &mut |start, end, visit| {
                        flat.extents(start, end, visit)
                    })?
                }
                None => found,
            };
            self.found.push((index, found));
        }
        Ok(self)
    }
}

/// The end of data in the file, and the numbers of the truncations that are included in it. Other
/// truncations must cover all of the data.
#[derive(Debug, Clone)]
struct KnownEnd {
    end: FileOffset,
    truncations: Vec<u64>,
}

impl KnownEnd {
    /// Returns the size of the file when `flat` was created, if `flat` is usable.
    fn of_file(flat: &Flat, truncations: &Truncations) -> Option<KnownEnd> {
        flat.is_usable(truncations)
            .then(|| KnownEnd { end: FileOffset(flat.size()), truncations: flat.truncations().to_vec() })
    }

    /// Returns the end after the truncations that are not included.
    fn end_after(reach: &Option<KnownEnd>, truncations: &Truncations) -> FileOffset {
        let end =
            reach.as_ref().map(|KnownEnd { end, truncations: known }| truncations.end_after(*end, known));
        end.unwrap_or_default()
    }
}

/// Consecutive logs, and the number of the first one.
struct Logs<'a>(&'a [LogReader], u32);

impl Logs<'_> {
    fn limit(&self, truncations: &Truncations, extent: &Extent) -> FileOffset {
        self.0[(extent.log - self.1) as usize].limit(truncations, extent.payload)
    }
}

impl Orders for Logs<'_> {
    fn order(&self, extent: &Extent) -> Order {
        self.0[(extent.log - self.1) as usize].order(extent.payload)
    }
}

impl ExtentMap {
    /// Creates an empty map.
    pub fn new(block_bytes: u64) -> ExtentMap {
        let extents = Extents::new(Vec::new(), Order::default());
        ExtentMap {
            logs: Vec::new(),
            by_writer: HashMap::new(),
            flat: None,
            spilled: None,
            flattened: None,
            extents,
            truncations: Truncations::default(),
            block_bytes,
            torn: HashMap::new(),
            named_size: 0,
        }
    }

    /// Builds a map as `build` does, but uses the newest flat index and reads only the newer parts
    /// of the logs that it knows.
    pub fn open(
        container: &Container,
        summary: &Summary,
        ours: &dyn Fn(u64) -> Option<u64>,
        threads: usize,
    ) -> Result<ExtentMap> {
        match newest_flat(container)?.filter(|flat| flat.is_usable(&summary.truncations)) {
            Some(flat) => {
                let mut map = ExtentMap::new(container.head().block_bytes.into());
                for known in flat.logs() {
                    map.add_known_log(known);
                }
                map.flattened = KnownEnd::of_file(&flat, &summary.truncations);
                map.flat = Some(Arc::new(flat));
                map.fill(container, summary, ours, threads, Vec::new())
            }
            None => ExtentMap::build(container, summary, ours, threads, Torn::new()),
        }
    }

    /// Combines shares that were read separately. Newer parts of the logs and logs in no share are
    /// read from the store. A log that is in several shares is added once, so the readers of the
    /// shares need not have seen the same names in `meta`. Logs that `summary` does not name are
    /// added, too, because the shares lack the extents that these logs hide.
    pub fn merge(
        container: &Container,
        summary: &Summary,
        ours: &dyn Fn(u64) -> Option<u64>,
        threads: usize,
        shares: &[Share],
    ) -> Result<ExtentMap> {
        if !shares.iter().all(|share| share.is_usable(&summary.truncations)) {
            return ExtentMap::open(container, summary, ours, threads);
        }
        let mut map = ExtentMap::new(container.head().block_bytes.into());
        map.truncations = summary.truncations.clone();
        let mut found = Vec::new();
        for share in shares {
            let mut numbers = Vec::new();
            for known in share.logs() {
                let is_new = !map.by_writer.contains_key(&known.writer);
                numbers.push(is_new.then(|| map.add_known_log(known)));
            }
            for extents in share.extents() {
                for extent in extents?.iter() {
                    found.extend(numbers[extent.log as usize].map(|log| Extent { log, ..*extent }));
                }
                if found.len() >= container.host().scratch.extents_max {
                    map.gather(std::mem::take(&mut found))?;
                    map.spill(container)?;
                }
            }
        }
        map.fill(container, summary, ours, threads, found)
    }

    /// Reads all logs with `threads` threads, each of which reads a share of the index logs
    /// (section IV-B of the paper). For a writer of this process, `ours` returns the size of its
    /// data log, all of which counts. Of other writers only the published part counts. Payload
    /// ranges in `torn` are ignored.
    pub fn build(
        container: &Container,
        summary: &Summary,
        ours: &dyn Fn(u64) -> Option<u64>,
        threads: usize,
        torn: Torn,
    ) -> Result<ExtentMap> {
        let mut map = ExtentMap { torn, ..ExtentMap::new(container.head().block_bytes.into()) };
        if !map.torn.is_empty() {
            // A flat index may have been created before the data was lost. The file keeps the size
            // that it had then.
            map.flattened =
                newest_flat(container)?.and_then(|flat| KnownEnd::of_file(&flat, &summary.truncations));
        }
        map.fill(container, summary, ours, threads, Vec::new())
    }

    /// Resolves the published data of the writers in `summary`.
    pub(crate) fn published(container: &Container, summary: &Summary, threads: usize) -> Result<ExtentMap> {
        ExtentMap::build(container, summary, &|_| None, threads, Torn::new())
    }

    /// Reads the newer parts of all logs. `known` contains extents that are not in the map yet.
    fn fill(
        self,
        container: &Container,
        summary: &Summary,
        ours: &dyn Fn(u64) -> Option<u64>,
        threads: usize,
        known: Vec<Extent>,
    ) -> Result<ExtentMap> {
        let mut map = self;
        map.truncations = summary.truncations.clone();
        for (writer, bounds) in bounds_of_writers(container, summary) {
            let number = map.log_number(writer);
            let bounds = match ours(writer) {
                Some(written) => bounds.with_own_data(written),
                None => bounds,
            };
            map.logs[number as usize].set_bounds(bounds);
        }
        let extents_max = container.host().scratch.extents_max;
        let mut found = known;
        loop {
            let extents_left = extents_max.saturating_sub(found.len());
            let is_all = map.read_shares(container, threads, extents_left, &mut found)?;
            map.gather(std::mem::take(&mut found))?;
            if is_all {
                break;
            }
            map.spill(container)?;
        }
        map.set_named_size(summary);
        tracing::debug!(
            container = %container.shown_number(),
            logs = map.logs.len(),
            extents = map.extents.len(),
            has_flat = map.flattened.is_some(),
            threads,
            "read the index of a file"
        );
        Ok(map)
    }

    /// Reads the newer parts of the logs in shares of equal size, until there are about
    /// `extents_left` extents. Returns true if everything was read.
    fn read_shares(
        &mut self,
        container: &Container,
        threads: usize,
        extents_left: usize,
        found: &mut Vec<Extent>,
    ) -> Result<bool> {
        let (count, mut rest) = (self.logs.len(), &mut self.logs[..]);
        let threads = threads.clamp(1, count.max(1));
        let extents_left = extents_left.div_ceil(threads).max(1);
        let truncations = &self.truncations;
        let shares: Vec<Result<(Vec<Extent>, bool)>> = std::thread::scope(|scope| {
            let mut shares = (0..threads).map(|number| {
                let part = share_range(count, number, threads);
                let (logs, others) = std::mem::take(&mut rest).split_at_mut(part.len());
                rest = others;
                move || read_share(container, logs, part.start as u32, truncations, extents_left)
            });
            let own = shares.next();
            let others: Vec<_> = shares.map(|share| scope.spawn(share)).collect();
            let mut all: Vec<_> = own.into_iter().map(|mut share| share()).collect();
            all.extend(others.into_iter().map(|share| match share.join() {
                Ok(found) => found,
                Err(panic) => std::panic::resume_unwind(panic),
            }));
            all
        });
        let mut is_all = true;
        for share in shares {
            let (mut extents, is_end) = share?;
            if found.is_empty() {
                *found = extents;
            } else {
                found.append(&mut extents);
            }
            is_all &= is_end;
        }
        Ok(is_all)
    }

    /// Resolves `found`, and replaces the extents in memory by the result.
    fn gather(&mut self, found: Vec<Extent>) -> Result<()> {
        let logs = Logs(&self.logs, 0);
        let mut extents = found;
        clip(&mut extents, &logs, &self.truncations);
        extents = resolve(extents, &logs);
        if let Some(flat) = &self.flat {
            extents = over_flat(flat, extents, &logs, &self.truncations, &mut |start, end, visit| {
                flat.extents(start, end, visit)
            })?;
        }
        let last =
            self.logs.iter().filter_map(|log| log.frames.last().map(|frame| log.order(frame.payload_start)));
        self.extents = Extents::new(extents, last.max().unwrap_or_default());
        Ok(())
    }

    /// Returns true if there are more extents in memory than the limit.
    pub fn is_large(&self, container: &Container) -> bool {
        self.extents.len() > container.host().scratch.extents_max
    }

    /// Writes the extents to a scratch file if there are more in memory than the limit.
    pub fn shrink(&mut self, container: &Container) -> Result<()> {
        if self.is_large(container) { self.spill(container) } else { Ok(()) }
    }

    /// Writes the flat index and the extents in memory to one flat index in a scratch file.
    fn spill(&mut self, container: &Container) -> Result<()> {
        let file = (container.host().scratch.make)()?;
        let put = |pieces: &[&[u8]], offset| file.write_pieces_at(pieces, offset);
        let Flattened { extents, bytes, .. } = self.write_flat(container.head(), put)?;
        tracing::debug!(
            container = %container.shown_number(),
            extents,
            bytes,
            "wrote extents to a scratch file, because they do not fit into memory"
        );
        let flat = Flat::open(file, bytes, container.head(), b"a scratch file")?;
        self.extents = Extents::new(Vec::new(), flat.latest());
        self.spilled = Some(KnownEnd { end: flat.end(), truncations: self.truncations.numbers() });
        self.flat = Some(Arc::new(flat));
        Ok(())
    }

    /// Adds a log from its row in a flat index, and returns its number.
    fn add_known_log(&mut self, known: &FlatLog) -> u32 {
        let number = self.logs.len() as u32;
        self.by_writer.insert(known.writer, number);
        self.logs.push(LogReader::from_flat(known));
        number
    }

    fn log_number(&mut self, writer: u64) -> u32 {
        if let Some(number) = self.by_writer.get(&writer) {
            return *number;
        }
        let number = self.logs.len() as u32;
        self.logs.push(self.new_log(writer));
        self.by_writer.insert(writer, number);
        number
    }

    fn new_log(&self, writer: u64) -> LogReader {
        LogReader::new(writer, self.block_bytes, self.torn.get(&writer).cloned().unwrap_or_default())
    }

    /// Returns the logs of other nodes' writers that may have new data according to `summary`, or
    /// `None` if the map must be built again.
    pub fn update_to(
        &self,
        container: &Container,
        summary: &Summary,
        ours: &dyn Fn(u64) -> Option<u64>,
    ) -> Option<MapUpdate> {
        if self.is_outdated_by(&summary.truncations) {
            return None;
        }
        let mut logs = Vec::new();
        for (writer, bounds) in bounds_of_writers(container, summary) {
            if ours(writer).is_some() {
                continue;
            }
            let known = self.by_writer.get(&writer).map(|number| &self.logs[*number as usize]);
            if known.is_none_or(|log| !log.is_complete_within(&bounds)) {
                let mut log = known.cloned().unwrap_or_else(|| self.new_log(writer));
                log.set_bounds(bounds);
                logs.push(log);
            }
        }
        let (truncations, flat) = (summary.truncations.clone(), self.flat.clone());
        Some(MapUpdate { truncations, logs, flat, found: Vec::new(), is_all: true })
    }

    /// Applies an update of this map, after the update was read. Since `update_to`, frames of this
    /// process may have been added to the map, but no other update may have been applied, and the
    /// map must not have been spilled. Returns true if everything was read; otherwise the caller
    /// makes another update.
    pub fn apply(&mut self, update: MapUpdate, summary: &Summary) -> bool {
        self.apply_truncations(&update.truncations);
        let mut numbers = Vec::with_capacity(update.logs.len());
        for log in update.logs {
            let number = self.log_number(log.writer);
            self.logs[number as usize] = log;
            numbers.push(number);
        }
        let logs = Logs(&self.logs, 0);
        for (index, found) in update.found {
            for extent in found {
                let extent = Extent { log: numbers[index], ..extent };
                self.extents.insert(extent, logs.order(&extent), &logs);
            }
        }
        self.set_named_size(summary);
        update.is_all
    }

    /// Sets the minimum size of the file, which does not depend on the readable extents.
    fn set_named_size(&mut self, summary: &Summary) {
        let lost_end = self.logs.iter().map(|log| log.lost_end(&self.truncations)).max().unwrap_or_default();
        self.named_size = lost_end.0.max(summary.size().0);
    }

    /// Adds a frame that a writer of this process has just written, unless it is already known.
    /// Returns false, and changes nothing, if pages of the flat index are missing in `pages`.
    pub fn add(&mut self, writer: u64, written: &Written<'_>, pages: &mut HeldPages) -> bool {
        let Written { order, kind, head_bytes, payload_start, runs, .. } = *written;
        let number = self.log_number(writer);
        let log = &mut self.logs[number as usize];
        log.set_certain();
        if log.frames.payload_end() != payload_start {
            return true; // it was read from the store
        }
        let payload: u64 = runs.iter().map(Run::bytes).sum();
        let (mut at, mut found) = (payload_start, Vec::new());
        for run in runs {
            for i in 0..run.count {
                let (start, payload) = (run.start_of(i), at + i * run.length);
                found.push(Extent { start, payload, length: run.length as u32, log: number });
            }
            at += run.bytes();
        }
        let flat = self.flat.as_ref().filter(|flat| order <= flat.latest());
        if let Some(flat) = flat {
            pages.select(flat);
            found.iter().for_each(|extent| pages.extents(extent.start, extent.end(), &mut |_| {}));
            if pages.is_incomplete() {
                return false;
            }
        }
        self.logs[number as usize].frames.push(kind, head_bytes, payload, order.epoch, order.sequence);
        let logs = Logs(&self.logs, 0);
        clip(&mut found, &logs, &self.truncations);
        if let Some(flat) = flat {
            found = over_flat(flat, found, &logs, &self.truncations, &mut |start, end, visit| {
                pages.extents(start, end, visit);
                Ok(())
            })
            .expect("all pages are held");
        }
        for extent in found {
            self.extents.insert(extent, order, &logs);
        }
        true
    }

    /// Applies truncations: data beyond the size of a later truncation is removed.
    pub fn apply_truncations(&mut self, truncations: &Truncations) {
        if *truncations == self.truncations {
            return;
        }
        self.truncations = truncations.clone();
        let logs = Logs(&self.logs, 0);
        let truncations = &self.truncations;
        self.extents.clip(&|extent| logs.limit(truncations, extent));
    }

    /// Returns true if a new truncation covers only a part of the known data. In this case data
    /// that was dropped because other data hid it may have to reappear, and the end of the flat
    /// index after the truncation is unknown.
    fn is_outdated_by(&self, truncations: &Truncations) -> bool {
        let latest = self.flat.as_ref().map(|flat| flat.latest());
        truncations.other_than(&self.truncations.numbers()).any(|(truncation, mut partly)| {
            latest.is_some_and(|latest| truncation.order < latest)
                || partly.any(|covered| {
                    let log = self.by_writer.get(&covered.writer).map(|number| &self.logs[*number as usize]);
                    log.is_some_and(|log| !log.frames.begins_within(covered.bytes))
                })
        })
    }

    /// Returns the size of the file.
    pub fn size(&self) -> u64 {
        KnownEnd::end_after(&self.flattened, &self.truncations)
            .max(KnownEnd::end_after(&self.spilled, &self.truncations))
            .max(self.extents.end())
            .0
            .max(self.truncations.last().map_or(0, |truncation| truncation.size))
            .max(self.named_size)
    }

    /// Returns the largest epoch of the logs for which `counts` is true.
    pub fn epoch_of(&self, counts: &dyn Fn(u64) -> bool) -> u64 {
        let logs = self.logs.iter().filter(|log| counts(log.writer));
        logs.filter_map(|log| log.frames.epochs()).map(|epochs| *epochs.end()).max().unwrap_or(0)
    }

    /// Returns the largest epoch of all logs.
    pub fn epoch(&self) -> u64 {
        self.epoch_of(&|_| true)
    }

    pub fn logs(&self) -> &[LogReader] {
        &self.logs
    }

    /// Visits the pieces from `start` to `end`, in order and without gaps. Reads pages of the flat
    /// index.
    pub fn pieces(&self, start: FileOffset, end: FileOffset, visit: &mut dyn FnMut(Piece)) -> Result<()> {
        let mut read = Ok(());
        self.visit_pieces(start, end, visit, &mut |flat, start, end, visit| {
            if read.is_ok() {
                read = flat.extents(start, end, visit);
            }
        });
        read
    }

    /// Returns true if there is a flat index, so that [`pieces`](Self::pieces) reads pages.
    pub fn has_flat(&self) -> bool {
        self.flat.is_some()
    }

    /// Returns the parts of `start..end` that have data other than zeros of frames of zeros.
    /// Neighbouring parts are joined, up to `bytes_max` bytes, also over holes and zeros.
    pub fn data_ranges(
        &self,
        start: FileOffset,
        end: FileOffset,
        bytes_max: u64,
    ) -> Result<Vec<Range<FileOffset>>> {
        let mut ranges: Vec<Range<FileOffset>> = Vec::new();
        self.pieces(start, end, &mut |piece| {
            let Piece::Data(extent) = piece else { return };
            let log = &self.logs[extent.log as usize];
            let (mut at, end) = (extent.payload, extent.payload + u64::from(extent.length));
            while at < end {
                let frame = log.frames.frame(at);
                let stop = frame.payload_end().min(end);
                if frame.kind == FrameKind::Data {
                    let (from, to) =
                        (extent.start + (at - extent.payload), extent.start + (stop - extent.payload));
                    match ranges.last_mut() {
                        Some(last) if to - last.start <= bytes_max => last.end = to,
                        _ => ranges.push(from..to),
                    }
                }
                at = stop;
            }
        })?;
        Ok(ranges)
    }

    /// Visits the pieces from `start` to `end`.
    fn visit_pieces(
        &self,
        start: FileOffset,
        end: FileOffset,
        visit: &mut dyn FnMut(Piece),
        visit_flat: &mut VisitFlat<'_>,
    ) {
        self.extents.pieces(start, end, &mut |piece| match (piece, &self.flat) {
            (Piece::Hole(start, end), Some(flat)) => {
                let mut at = start;
                visit_flat(flat, start, end, &mut |extent| {
                    // Truncations since the flat index was created are applied.
                    let limit = self.logs[extent.log as usize].limit(&self.truncations, extent.payload);
                    if limit <= extent.start {
                        return;
                    }
                    if extent.start > at {
                        visit(Piece::Hole(at, extent.start));
                    }
                    let part = extent.part(extent.start, limit);
                    at = part.end();
                    visit(Piece::Data(part));
                });
                if at < end {
                    visit(Piece::Hole(at, end));
                }
            }
            (piece, _) => visit(piece),
        });
    }

    /// Writes the content as a flat index of the container with this record.
    pub(crate) fn write_flat(
        &self,
        container: &Head,
        put: impl FnMut(&[&[u8]], u64) -> Result<()>,
    ) -> Result<Flattened> {
        let mut builder = Builder::new(put, container)?;
        let (mut extents, mut pushed) = (0, Ok(()));
        self.pieces(FileOffset::ZERO, FileOffset::MAX, &mut |piece| {
            if let (Piece::Data(extent), true) = (piece, pushed.is_ok()) {
                extents += 1;
                pushed = builder.push(extent);
            }
        })?;
        pushed?;
        let logs: Vec<FlatLog> = self.logs.iter().map(|log| log.to_flat()).collect();
        let bytes = builder.finish(&logs, &self.truncations.numbers(), self.size().min(FILE_END_MAX))?;
        Ok(Flattened { logs: logs.len() as u64, extents, bytes })
    }

    /// Returns the ranges of logs that are needed to fill `into` from file offset `offset` on, or
    /// `None` if pages of the flat index are missing in `pages`. Fills holes with zeros, and
    /// ignores bytes beyond the end of the file.
    pub fn pieces_for(
        &self,
        into: &mut [u8],
        offset: FileOffset,
        pages: &mut HeldPages,
    ) -> Option<Vec<LogPiece>> {
        let (mut pieces, end) = (Vec::new(), offset + into.len() as u64);
        let mut visit = |piece| match piece {
            Piece::Hole(start, end) => into[(start - offset) as usize..(end - offset) as usize].fill(0),
            Piece::Data(extent) => self.add_log_pieces(&extent, offset, &mut pieces),
        };
        self.visit_pieces(offset, end, &mut visit, &mut |flat, start, end, visit| {
            pages.select(flat);
            pages.extents(start, end, visit);
        });
        (!pages.is_incomplete()).then_some(pieces)
    }

    fn add_log_pieces(&self, extent: &Extent, offset: FileOffset, pieces: &mut Vec<LogPiece>) {
        let log = &self.logs[extent.log as usize];
        let (mut at, end) = (extent.payload, extent.payload + u64::from(extent.length));
        let mut into = (extent.start - offset) as usize;
        while at < end {
            let frame = log.frames.frame(at);
            let length = (frame.payload_end().min(end) - at) as usize;
            let is_required = log.must_have(&frame);
            pieces.push(LogPiece { writer: log.writer, into, length, payload: at, frame, is_required });
            at += length as u64;
            into += length;
        }
    }
}

/// Returns the newest valid flat index. Damaged ones are ignored.
pub fn newest_flat(container: &Container) -> Result<Option<Flat>> {
    for name in container.flats()?.iter().rev() {
        match container.open_flat(name) {
            Ok(flat) => return Ok(Some(flat)),
            Err(error) if matches!(error.kind, ErrorKind::Damaged | ErrorKind::NotFound) => {
                tracing::debug!(
                    container = %container.shown_number(),
                    name = %printable(name),
                    %error,
                    "ignored a flat index"
                );
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Returns the parts of `found` that the flat index does not hide. After these truncations, the
/// flat index has no extent in their range, or an earlier one.
fn over_flat(
    flat: &Flat,
    found: Vec<Extent>,
    logs: &Logs<'_>,
    truncations: &Truncations,
    read_flat: &mut ReadFlat<'_>,
) -> Result<Vec<Extent>> {
    let mut over = Vec::with_capacity(found.len());
    for extent in found {
        let order = logs.order(&extent);
        if order > flat.latest() {
            over.push(extent);
            continue;
        }
        let mut at = extent.start;
        let mut parts = Vec::new();
        read_flat(extent.start, extent.end(), &mut |known| {
            let known_end = known.end().min(flat.limit(truncations, &known));
            if known_end > known.start && flat.order(&known) > order {
                parts.push((at, known.start));
                at = known_end;
            }
        })?;
        parts.push((at, extent.end()));
        over.extend(parts.iter().filter(|(from, to)| from < to).map(|(from, to)| extent.part(*from, *to)));
    }
    Ok(over)
}

/// Returns the bounds of the logs of all writers. A dead writer publishes nothing more, so all of
/// its complete frames count.
fn bounds_of_writers<'a>(
    container: &'a Container,
    summary: &'a Summary,
) -> impl Iterator<Item = (u64, LogBounds)> + 'a {
    let boot = container.boot();
    let bounds = move |writer, counted_bytes, acknowledged, is_certain: bool| {
        let is_certain = is_certain || summary.has_failed(writer);
        let required_bytes = if is_certain { acknowledged } else { 0 };
        (writer, LogBounds { counted_bytes, is_certain, required_bytes })
    };
    let closed = summary.closed.iter().map(move |closed| {
        // Its logs may be removed at any time.
        let acknowledged = if summary.is_dead(closed) { 0 } else { closed.data_bytes };
        bounds(closed.writer, Some(closed.data_bytes), acknowledged, closed.is_certain(boot))
    });
    let open = summary.open.iter().map(move |running| {
        let Running { writer, holder, published, .. } = running;
        let counts_all = running.counts_all() || (container.host().is_gone)(holder);
        let published = published.map_or(0, |published| published.data_bytes);
        bounds(*writer, (!counts_all).then_some(published), published, boot_of(&holder.node) == boot)
    });
    closed.chain(open)
}

/// Reads the newer parts of the logs of one share, applies the truncations, and resolves the
/// extents among themselves. Stops after about `extents_left` extents; returns true if everything
/// was read. `first` is the number of the first log.
fn read_share(
    container: &Container,
    logs: &mut [LogReader],
    first: u32,
    truncations: &Truncations,
    extents_left: usize,
) -> Result<(Vec<Extent>, bool)> {
    let (mut found, mut is_all) = (Vec::new(), true);
    for (log, number) in logs.iter_mut().zip(first..) {
        let left = extents_left.max(1).saturating_sub(found.len());
        if left == 0 {
            is_all = false;
            break;
        }
        is_all &= log.read_new(container, left, &mut |start, length, payload| {
            found.push(Extent { start, payload, length: length as u32, log: number });
        })?;
    }
    // Truncated data must be removed before resolving: it may be later in order than data that the
    // truncation keeps, and would hide it.
    let logs = Logs(logs, first);
    clip(&mut found, &logs, truncations);
    Ok((resolve(found, &logs), is_all))
}

/// Removes the data that a later truncation removes.
fn clip(extents: &mut Vec<Extent>, logs: &Logs<'_>, truncations: &Truncations) {
    if truncations.as_slice().is_empty() {
        return;
    }
    extents.retain_mut(|extent| {
        let end = logs.limit(truncations, extent).min(extent.end());
        let is_left = end > extent.start;
        if is_left {
            extent.length = (end - extent.start) as u32;
        }
        is_left
    });
}
