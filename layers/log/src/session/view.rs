//! The content of a file as one node sees it: the extents of all its logs, resolved, and updated as
//! the logs grow. No part of a log is read twice. Extents that do not fit into memory are written
//! to a flat index in a scratch file.

use std::collections::{HashMap, VecDeque};

use quell_vfs::{Error, ErrorKind, Result};

use crate::container::container_dir::{Container, data_name};
use crate::container::missing::missing;
use crate::format::data_log;
use crate::format::extents::{Extent, Extents, Orders, Piece, resolve};
use crate::format::flat::{Flat, FlatLog};
use crate::format::frames::{Frame, Frames, Order, stored_bytes};
use crate::format::heads::HEAD_BYTES;
use crate::format::index_log::Batch;
use crate::format::meta::{Running, Summary, Truncations, boot_of};
use crate::format::runs::Run;
use crate::session::flatten;
use crate::session::scan::{self, IndexPlace};
use crate::session::share::{Share, part};

/// A log with more extents than this must have data for them, because each extent takes memory.
const EXTENTS_UNCHECKED_MAX: u64 = 1 << 16;

/// For each writer, the payload ranges of its log that were torn before they were synced, sorted.
pub type Torn = HashMap<u64, Vec<(u64, u64)>>;

/// One log, as far as it was read.
#[derive(Debug)]
pub struct Log {
    pub writer: u64,
    pub frames: Frames,
    /// Offset of the next batch in the index log, and the payload and data log offsets at which
    /// that batch must begin.
    index_place: u64,
    indexed: (u64, u64),
    /// Payload bytes below this payload offset survive a power failure.
    synced: u64,
    /// Payload ranges that are ignored, because they were torn before they were synced.
    torn: Vec<(u64, u64)>,
    /// For each torn part of an extent, its end in the file and the payload offset of the extent.
    /// These parts are holes, but the file keeps its size.
    lost: Vec<(u64, u64)>,
    /// Number of bytes of the data log that count: its final size, or the published size. `None` if
    /// all complete frames count.
    until: Option<u64>,
    /// The writer had no power failure, or a sync of it failed: missing or changed bytes are
    /// damage, and not torn.
    is_certain: bool,
    /// Number of bytes of the data log that were acknowledged by a writer without a power failure
    /// and must be present.
    whole_until: u64,
    /// Number of extents in the batches so far, and the number that the size of the data log
    /// allows.
    claimed: u64,
    shown: u64,
    /// Runs that were read and not visited yet, each with the payload offset of its first byte.
    coming: VecDeque<(u64, Run)>,
}

impl Log {
    pub fn new(writer: u64, block_bytes: u64) -> Log {
        let start = HEAD_BYTES as u64;
        let frames = Frames::new(block_bytes, start);
        Log {
            writer,
            frames,
            index_place: 0,
            indexed: (0, start),
            synced: 0,
            torn: Vec::new(),
            lost: Vec::new(),
            until: None,
            is_certain: false,
            whole_until: 0,
            claimed: 0,
            shown: EXTENTS_UNCHECKED_MAX,
            coming: VecDeque::new(),
        }
    }

    /// Creates a log from its row in a flat index.
    fn known(flat: &FlatLog) -> Log {
        let FlatLog { index_place, indexed, synced, .. } = *flat;
        let new = Log::new(flat.writer, flat.frames.block_bytes());
        Log { frames: flat.frames.clone(), index_place, indexed, synced, ..new }
    }

    /// Returns the log's row for a flat index.
    pub fn to_flat(&self) -> FlatLog {
        let Log { writer, index_place, indexed, synced, .. } = *self;
        FlatLog { writer, index_place, indexed, synced, frames: self.frames.clone() }
    }

    /// Returns true if all bytes that count were read.
    fn is_complete(&self) -> bool {
        self.until.is_some_and(|bytes| self.frames.place() >= bytes)
    }

    pub fn order(&self, position: u64) -> Order {
        let Frame { epoch, sequence, .. } = self.frames.frame(position);
        Order { epoch, sequence, writer: self.writer }
    }

    /// Returns the file offset at which truncations cut off the frame at the payload offset
    /// `position`.
    fn limit(&self, cuts: &Truncations, position: u64) -> u64 {
        let Frame { epoch, sequence, payload_place, .. } = self.frames.frame(position);
        cuts.limit(Order { epoch, sequence, writer: self.writer }, payload_place)
    }

    /// Reads the new part of the logs, until `visit` was called for `room` extents. `visit`
    /// receives the start, the length and the payload offset of each. Returns true if everything
    /// was read.
    fn follow(
        &mut self,
        container: &Container,
        room: usize,
        visit: &mut dyn FnMut(u64, u64, u64),
    ) -> Result<bool> {
        let mut left = room as u64;
        self.visit_coming(&mut left, visit);
        if left > 0 && !self.is_complete() {
            self.follow_index(container, &mut left, visit)?;
        }
        if left > 0 && !self.is_complete() {
            self.follow_data(container, &mut left, visit)?;
        }
        if left > 0 && self.frames.place() < self.whole_until && !container.is_dropped(self.writer)? {
            return Err(Error {
                source: Some(
                    format!(
                        "it has lost what lies behind byte {} of {}",
                        self.frames.place(),
                        self.whole_until
                    )
                    .into(),
                ),
                ..Error::new(ErrorKind::Damaged, "read", data_name(self.writer))
            });
        }
        Ok(left > 0)
    }

    /// Sets how much of the data log counts, and how much of it must be present.
    fn stand(&mut self, standing: Standing) {
        let Standing { until, is_certain, whole_until, .. } = standing;
        (self.until, self.is_certain, self.whole_until) = (until, is_certain, whole_until);
    }

    /// Visits extents of `coming`, at most `left` of them.
    fn visit_coming(&mut self, left: &mut u64, visit: &mut dyn FnMut(u64, u64, u64)) {
        while *left > 0
            && let Some((position, run)) = self.coming.pop_front()
        {
            let count = run.count.min(*left);
            for i in 0..count {
                let position = position + i * run.length;
                without(&self.torn, run.start_of(i), run.length, position, &mut self.lost, visit);
            }
            if count < run.count {
                self.coming.push_front((position + count * run.length, run.after(count)));
            }
            *left -= count;
        }
        if self.coming.is_empty() {
            self.coming = VecDeque::new(); // free its memory
        }
    }

    fn follow_index(
        &mut self,
        container: &Container,
        left: &mut u64,
        visit: &mut dyn FnMut(u64, u64, u64),
    ) -> Result<()> {
        // The writer has not published yet, or the index log was lost: the frames are read from the
        // data log.
        let Some(file) = missing(container.open_index(self.writer))? else { return Ok(()) };
        let (position, data_place) = self.indexed;
        let from = IndexPlace { place: self.index_place, position, data_place };
        let (writer, until) = (self.writer, self.until.unwrap_or(u64::MAX));
        let mut too_late = 0;
        let (end, _) = scan::batches_from(&*file, container, writer, from, &mut |batch, _| {
            // At the limit, only batches without runs are taken, which record a sync.
            if batch.frames.place() > until || *left == 0 && !batch.runs.is_empty() {
                too_late = batch.bytes as u64;
                return Ok(false);
            }
            self.take(container, batch)?;
            self.visit_coming(left, visit);
            Ok(true)
        })?;
        self.index_place = end.place - too_late;
        Ok(())
    }

    /// Takes in a batch. A part of it may be known already from the headers of the frames.
    fn take(&mut self, container: &Container, batch: Batch) -> Result<()> {
        self.check_claim(container, &batch)?;
        let (start, known) = (self.indexed.0, self.frames.position());
        self.indexed = (start + batch.frames.position(), batch.frames.place());
        if batch.is_synced {
            self.synced = self.indexed.0;
        }
        if known >= self.indexed.0 {
            return Ok(());
        }
        if known == start {
            self.frames.append(batch.frames);
        } else {
            self.frames.append_from(batch.frames, known - start);
        }
        let mut position = start;
        for run in batch.runs {
            let end = position + run.bytes();
            // Frames are known completely, and an extent never spans frames.
            let before = known.saturating_sub(position).div_ceil(run.length);
            if before < run.count {
                self.coming.push_back((position + before * run.length, run.after(before)));
            }
            position = end;
        }
        Ok(())
    }

    /// Refuses a log whose batches have more extents than its data log has bytes. Every extent has
    /// at least one byte, so such a log is forged or damaged, and would fill the memory.
    fn check_claim(&mut self, container: &Container, batch: &Batch) -> Result<()> {
        let extents = batch.runs.iter().fold(0u64, |sum, run| sum.saturating_add(run.count));
        self.claimed = self.claimed.saturating_add(extents);
        if self.claimed <= self.shown {
            return Ok(());
        }
        let file = container.open_data(self.writer)?;
        let stat = file.stat()?;
        // The size alone is not sufficient, because a file may consist of holes.
        let taken = stat.size_bytes.min(stat.blocks.saturating_mul(512));
        self.shown = EXTENTS_UNCHECKED_MAX.saturating_add(taken);
        let mut is_there = stat.size_bytes >= batch.frames.place();
        if is_there && self.claimed > self.shown {
            // The store may compress data or update `st_blocks` late, so the blocks themselves are
            // verified.
            for (frame, _) in batch.frames.iter() {
                let frame = Frame { position: self.indexed.0 + frame.position, ..frame };
                is_there = is_there && data_log::is_whole(&*file, &frame, self.frames.block_bytes())?;
                if !is_there {
                    break;
                }
            }
            self.shown = self.claimed;
        }
        match is_there {
            true => Ok(()),
            false => Err(Error {
                source: Some("it tells of more than the data log has".into()),
                ..Error::new(
                    ErrorKind::Damaged,
                    "read",
                    crate::container::container_dir::index_name(self.writer),
                )
            }),
        }
    }

    /// Reads the frames of the data log that have no batch. Only complete frames count, and each of
    /// their blocks is verified.
    fn follow_data(
        &mut self,
        container: &Container,
        left: &mut u64,
        visit: &mut dyn FnMut(u64, u64, u64),
    ) -> Result<()> {
        let file = match container.open_data(self.writer) {
            // The writer has not started, or the header is torn.
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Damaged) => return Ok(()),
            file => file?,
        };
        let block_bytes = self.frames.block_bytes();
        let from = (self.frames.place(), self.frames.position());
        let until = self.until.unwrap_or(u64::MAX);
        scan::frames(&*file, block_bytes, from, &mut |place, head, runs| {
            // In the part that must be present, a bad block is damage and does not affect other
            // blocks.
            let end = place + head.bytes() + stored_bytes(head.payload_bytes, block_bytes);
            let must_be_there = end <= self.whole_until;
            if place >= until
                || !must_be_there && !data_log::is_whole(&*file, &head.frame(place), block_bytes)?
            {
                return Ok(false);
            }
            self.frames.push(head.bytes(), head.payload_bytes, head.epoch, head.sequence);
            let mut position = head.position;
            for run in runs {
                self.coming.push_back((position, run));
                position += run.bytes();
            }
            self.visit_coming(left, visit);
            Ok(*left > 0)
        })?;
        Ok(())
    }
}

/// Visits the parts of an extent outside of the payload ranges `torn`, which are sorted.
fn without(
    torn: &[(u64, u64)],
    start: u64,
    length: u64,
    position: u64,
    lost: &mut Vec<(u64, u64)>,
    visit: &mut dyn FnMut(u64, u64, u64),
) {
    let (mut at, end) = (position, position + length);
    let mut part = |from: u64, to: u64| {
        if from < to {
            visit(start + (from - position), to - from, from);
        }
    };
    for (bad, bad_end) in torn.iter().filter(|(bad, bad_end)| *bad < end && *bad_end > position) {
        part(at, (*bad).max(at));
        at = at.max(*bad_end);
        lost.push((start + ((*bad_end).min(end) - position), position));
    }
    part(at, end);
}

/// The bytes of a log that a reader needs.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub writer: u64,
    /// Index in the reader's buffer.
    pub into: usize,
    pub length: usize,
    pub position: u64,
    pub frame: Frame,
    /// The bytes were synced, or no power failure can have removed them: if they are missing, they
    /// are damaged.
    pub must_be_there: bool,
}

/// The resolved logs of a file.
#[derive(Debug)]
pub struct View {
    logs: Vec<Log>,
    by_writer: HashMap<u64, u32>,
    /// The flat index, if there is one. Its logs come first in `logs`.
    flat: Option<Flat>,
    /// Set if `flat` is a scratch file with the extents that did not fit into memory: the end of
    /// its last extent.
    spilled: Option<Reach>,
    /// The file's size when it was flattened last.
    flattened: Option<Reach>,
    /// All other extents. They hide the extents of `flat` in the same range.
    extents: Extents,
    cuts: Truncations,
    block_bytes: u64,
    torn: Torn,
    /// The size according to the names in `meta`, and the end of lost data: lost bytes are holes.
    told: u64,
}

/// An end in the file, and the numbers of the truncations that are included in it. Other
/// truncations cover all of the data.
#[derive(Debug)]
struct Reach {
    end: u64,
    cuts: Vec<u64>,
}

impl Reach {
    /// Returns the size of the file when `flat` was created, if `flat` is usable.
    fn of_file(flat: &Flat, cuts: &Truncations) -> Option<Reach> {
        flat.is_usable(cuts).then(|| Reach { end: flat.size(), cuts: flat.cuts().to_vec() })
    }

    /// Returns the end after the truncations that are not included.
    fn end_after(reach: &Option<Reach>, cuts: &Truncations) -> u64 {
        reach.as_ref().map_or(0, |Reach { end, cuts: known }| cuts.end_after(*end, known))
    }
}

/// Consecutive logs, and the number of the first one.
struct Logs<'a>(&'a [Log], u32);

impl Logs<'_> {
    fn limit(&self, cuts: &Truncations, extent: &Extent) -> u64 {
        self.0[(extent.log - self.1) as usize].limit(cuts, extent.position)
    }
}

impl Orders for Logs<'_> {
    fn order(&self, extent: &Extent) -> Order {
        self.0[(extent.log - self.1) as usize].order(extent.position)
    }
}

impl View {
    /// Creates an empty view.
    pub fn new(block_bytes: u64) -> View {
        let extents = Extents::new(Vec::new(), Order::default());
        View {
            logs: Vec::new(),
            by_writer: HashMap::new(),
            flat: None,
            spilled: None,
            flattened: None,
            extents,
            cuts: Truncations::default(),
            block_bytes,
            torn: HashMap::new(),
            told: 0,
        }
    }

    /// Builds a view as `build` does, but uses the newest flat index and reads only the newer parts
    /// of the logs that it knows.
    pub fn open(
        container: &Container,
        summary: &Summary,
        ours: &dyn Fn(u64) -> Option<u64>,
        threads: usize,
    ) -> Result<View> {
        match newest_flat(container)?.filter(|flat| flat.is_usable(&summary.cuts)) {
            Some(flat) => {
                let mut view = View::new(container.head().block_bytes.into());
                for known in flat.logs() {
                    view.learn(known);
                }
                view.flattened = Reach::of_file(&flat, &summary.cuts);
                view.flat = Some(flat);
                view.fill(container, summary, ours, threads, Vec::new())
            }
            None => View::build(container, summary, ours, threads, Torn::new()),
        }
    }

    /// Combines shares that were read separately. Newer parts of the logs and logs in no share are
    /// read from the store. A log in several shares counts once, so the readers need not have seen
    /// the same names in `meta`. Logs that `summary` does not name count, too, because the shares
    /// lack the extents that these logs hide.
    pub fn merge(
        container: &Container,
        summary: &Summary,
        ours: &dyn Fn(u64) -> Option<u64>,
        threads: usize,
        shares: &[Share],
    ) -> Result<View> {
        if !shares.iter().all(|share| share.is_usable(&summary.cuts)) {
            return View::open(container, summary, ours, threads);
        }
        let mut view = View::new(container.head().block_bytes.into());
        view.cuts = summary.cuts.clone();
        let mut found = Vec::new();
        for share in shares {
            let mut numbers = Vec::new();
            for known in share.logs() {
                let is_new = !view.by_writer.contains_key(&known.writer);
                numbers.push(is_new.then(|| view.learn(known)));
            }
            for extents in share.extents() {
                for extent in extents?.iter() {
                    found.extend(numbers[extent.log as usize].map(|log| Extent { log, ..*extent }));
                }
                if found.len() >= container.host().scratch.extents_max {
                    view.gather(std::mem::take(&mut found))?;
                    view.spill(container)?;
                }
            }
        }
        view.fill(container, summary, ours, threads, found)
    }

    /// Reads all logs with `threads` threads, each of which reads a share of the index logs
    /// (section IV-B of the paper). `ours` returns the size of the data log that a writer of this
    /// process has written, all of which counts. Of other writers the published part counts.
    /// Payload ranges in `torn` are ignored.
    pub fn build(
        container: &Container,
        summary: &Summary,
        ours: &dyn Fn(u64) -> Option<u64>,
        threads: usize,
        torn: Torn,
    ) -> Result<View> {
        let mut view = View { torn, ..View::new(container.head().block_bytes.into()) };
        if !view.torn.is_empty() {
            // A flat index may have been created before the data was lost. The file keeps the size
            // that it had then.
            view.flattened = newest_flat(container)?.and_then(|flat| Reach::of_file(&flat, &summary.cuts));
        }
        view.fill(container, summary, ours, threads, Vec::new())
    }

    /// Reads the newer parts of all logs. `known` are extents that the view does not contain yet.
    fn fill(
        self,
        container: &Container,
        summary: &Summary,
        ours: &dyn Fn(u64) -> Option<u64>,
        threads: usize,
        known: Vec<Extent>,
    ) -> Result<View> {
        let mut view = self;
        view.cuts = summary.cuts.clone();
        for standing in writers(container, summary) {
            let number = view.log_of(standing.writer);
            let standing = match ours(standing.writer) {
                Some(written) => standing.of_ours(written),
                None => standing,
            };
            view.logs[number as usize].stand(standing);
        }
        let extents_max = container.host().scratch.extents_max;
        let mut found = known;
        loop {
            let room = extents_max.saturating_sub(found.len());
            let is_all = view.read_shares(container, threads, room, &mut found)?;
            view.gather(std::mem::take(&mut found))?;
            if is_all {
                break;
            }
            view.spill(container)?;
        }
        view.tell(summary);
        Ok(view)
    }

    /// Reads the newer parts of the logs in shares of equal size, until there are about `room`
    /// extents. Returns true if everything was read.
    fn read_shares(
        &mut self,
        container: &Container,
        threads: usize,
        room: usize,
        found: &mut Vec<Extent>,
    ) -> Result<bool> {
        let (count, mut rest) = (self.logs.len(), &mut self.logs[..]);
        let threads = threads.clamp(1, count.max(1));
        let room = room.div_ceil(threads).max(1);
        let cuts = &self.cuts;
        let shares: Vec<Result<(Vec<Extent>, bool)>> = std::thread::scope(|scope| {
            let mut shares = (0..threads).map(|number| {
                let part = part(count, number, threads);
                let (logs, others) = std::mem::take(&mut rest).split_at_mut(part.len());
                rest = others;
                move || read_share(container, logs, part.start as u32, cuts, room)
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

    /// Resolves `found`, which replaces the extents in memory.
    fn gather(&mut self, found: Vec<Extent>) -> Result<()> {
        let logs = Logs(&self.logs, 0);
        let mut extents = found;
        clip(&mut extents, &logs, &self.cuts);
        extents = resolve(extents, &logs);
        if let Some(flat) = &self.flat {
            extents = over_flat(flat, extents, &logs, &self.cuts)?;
        }
        let last =
            self.logs.iter().filter_map(|log| log.frames.position().checked_sub(1).map(|p| log.order(p)));
        self.extents = Extents::new(extents, last.max().unwrap_or_default());
        Ok(())
    }

    /// Writes the extents to a scratch file if there are more in memory than the limit.
    pub fn shrink(&mut self, container: &Container) -> Result<()> {
        if self.extents.len() > container.host().scratch.extents_max { self.spill(container) } else { Ok(()) }
    }

    /// Writes the flat index and the extents in memory to one flat index in a scratch file.
    fn spill(&mut self, container: &Container) -> Result<()> {
        let file = (container.host().scratch.make)()?;
        let put = |pieces: &[&[u8]], place| file.write_pieces_at(pieces, place);
        let bytes = flatten::write(self, container.head(), put)?.bytes;
        let flat = Flat::open(file, bytes, container.head(), b"a scratch file")?;
        self.extents = Extents::new(Vec::new(), flat.latest());
        self.spilled = Some(Reach { end: flat.end(), cuts: self.cuts.numbers() });
        self.flat = Some(flat);
        Ok(())
    }

    /// Adds a log as another reader has read it, and returns its number.
    fn learn(&mut self, known: &FlatLog) -> u32 {
        let number = self.logs.len() as u32;
        self.by_writer.insert(known.writer, number);
        self.logs.push(Log::known(known));
        number
    }

    fn log_of(&mut self, writer: u64) -> u32 {
        *self.by_writer.entry(writer).or_insert_with(|| {
            let torn = self.torn.get(&writer).cloned().unwrap_or_default();
            self.logs.push(Log { torn, ..Log::new(writer, self.block_bytes) });
            (self.logs.len() - 1) as u32
        })
    }

    /// Takes in new names of `summary`, and new data of the writers of other processes.
    pub fn follow(
        &mut self,
        container: &Container,
        summary: &Summary,
        ours: &dyn Fn(u64) -> Option<u64>,
    ) -> Result<()> {
        let extents_max = container.host().scratch.extents_max;
        if self.is_outdated_by(&summary.cuts) {
            *self = View::build(container, summary, ours, 1, std::mem::take(&mut self.torn))?;
            return Ok(());
        }
        self.cut(&summary.cuts);
        for standing in writers(container, summary).filter(|standing| ours(standing.writer).is_none()) {
            let number = self.log_of(standing.writer);
            self.logs[number as usize].stand(standing);
            let mut is_all = false;
            while !is_all {
                let log = std::slice::from_mut(&mut self.logs[number as usize]);
                let (found, is_end) = read_share(container, log, number, &self.cuts, extents_max)?;
                is_all = is_end;
                self.insert(found)?;
                self.shrink(container)?;
            }
        }
        self.tell(summary);
        Ok(())
    }

    /// Sets the file's minimum size, which does not depend on the readable extents.
    fn tell(&mut self, summary: &Summary) {
        let lost = self.logs.iter().flat_map(|log| {
            log.lost.iter().map(|(end, position)| (*end).min(log.limit(&self.cuts, *position)))
        });
        self.told = lost.max().unwrap_or(0).max(summary.size().0);
    }

    fn insert(&mut self, found: Vec<Extent>) -> Result<()> {
        let logs = Logs(&self.logs, 0);
        let found = match &self.flat {
            Some(flat) => over_flat(flat, found, &logs, &self.cuts)?,
            None => found,
        };
        for extent in found {
            self.extents.insert(extent, logs.order(&extent), &logs);
        }
        Ok(())
    }

    /// Takes in a frame that a writer of this process has just written, unless it is already known.
    pub fn add(
        &mut self,
        writer: u64,
        head_bytes: u64,
        order: Order,
        position: u64,
        runs: &[Run],
    ) -> Result<()> {
        let number = self.log_of(writer);
        let log = &mut self.logs[number as usize];
        log.is_certain = true;
        if log.frames.position() != position {
            return Ok(()); // it was read from the store
        }
        let payload: u64 = runs.iter().map(Run::bytes).sum();
        log.frames.push(head_bytes, payload, order.epoch, order.sequence);
        let (mut at, mut found) = (position, Vec::new());
        for run in runs {
            for i in 0..run.count {
                let (start, position) = (run.start_of(i), at + i * run.length);
                found.push(Extent { start, position, length: run.length as u32, log: number });
            }
            at += run.bytes();
        }
        clip(&mut found, &Logs(&self.logs, 0), &self.cuts);
        self.insert(found)
    }

    /// Takes in truncations: earlier data beyond the size is removed.
    pub fn cut(&mut self, cuts: &Truncations) {
        if *cuts == self.cuts {
            return;
        }
        self.cuts = cuts.clone();
        let logs = Logs(&self.logs, 0);
        let cuts = &self.cuts;
        self.extents.clip(&|extent| logs.limit(cuts, extent));
    }

    pub fn truncations(&self) -> &Truncations {
        &self.cuts
    }

    /// Returns true if a new truncation covers only a part of the known data. In this case data
    /// that was dropped because other data hid it may have to reappear, and the end of the flat
    /// index after the truncation is unknown.
    fn is_outdated_by(&self, cuts: &Truncations) -> bool {
        let latest = self.flat.as_ref().map(Flat::latest);
        cuts.other_than(&self.cuts.numbers()).any(|(cut, mut partly)| {
            latest.is_some_and(|latest| cut.order < latest)
                || partly.any(|(writer, bytes)| {
                    let log = self.by_writer.get(writer).map(|number| &self.logs[*number as usize]);
                    log.is_some_and(|log| !log.frames.begins_within(*bytes))
                })
        })
    }

    /// Returns the size of the file.
    pub fn size(&self) -> u64 {
        Reach::end_after(&self.flattened, &self.cuts)
            .max(Reach::end_after(&self.spilled, &self.cuts))
            .max(self.extents.end())
            .max(self.cuts.last().map_or(0, |cut| cut.size))
            .max(self.told)
    }

    /// Returns the largest epoch of the logs for which `counts` is true.
    pub fn epoch_of(&self, counts: &dyn Fn(u64) -> bool) -> u64 {
        let logs = self.logs.iter().filter(|log| counts(log.writer));
        logs.filter_map(|log| log.frames.epochs()).map(|(_, last)| last).max().unwrap_or(0)
    }

    /// Returns the largest epoch of all logs.
    pub fn epoch(&self) -> u64 {
        self.epoch_of(&|_| true)
    }

    pub fn logs(&self) -> &[Log] {
        &self.logs
    }

    /// Visits the pieces from `start` to `end`, in order and without gaps.
    pub fn pieces(&self, start: u64, end: u64, visit: &mut dyn FnMut(Piece)) -> Result<()> {
        let mut read = Ok(());
        self.extents.pieces(start, end, &mut |piece| match (piece, &self.flat) {
            (Piece::Hole(start, end), Some(flat)) if read.is_ok() => {
                read = self.flat_pieces(flat, start, end, visit);
            }
            (piece, _) => visit(piece),
        });
        read
    }

    /// Visits the pieces of the flat index, after the truncations since it was created.
    fn flat_pieces(&self, flat: &Flat, start: u64, end: u64, visit: &mut dyn FnMut(Piece)) -> Result<()> {
        let mut at = start;
        flat.extents(start, end, &mut |extent| {
            let limit = self.logs[extent.log as usize].limit(&self.cuts, extent.position);
            if limit <= extent.start {
                return;
            }
            if extent.start > at {
                visit(Piece::Hole(at, extent.start));
            }
            let part = extent.part(extent.start, limit);
            at = part.end();
            visit(Piece::Data(part));
        })?;
        if at < end {
            visit(Piece::Hole(at, end));
        }
        Ok(())
    }

    /// Returns the ranges of logs that are needed to fill `into` from file offset `offset` on.
    /// Fills holes with zeros, and ignores bytes beyond the end of the file.
    pub fn wanted(&self, into: &mut [u8], offset: u64) -> Result<Vec<Wanted>> {
        let mut wanted = Vec::new();
        self.pieces(offset, offset + into.len() as u64, &mut |piece| match piece {
            Piece::Hole(start, end) => into[(start - offset) as usize..(end - offset) as usize].fill(0),
            Piece::Data(extent) => self.want(&extent, offset, &mut wanted),
        })?;
        Ok(wanted)
    }

    fn want(&self, extent: &Extent, offset: u64, wanted: &mut Vec<Wanted>) {
        let log = &self.logs[extent.log as usize];
        let (mut at, end) = (extent.position, extent.position + u64::from(extent.length));
        let mut into = (extent.start - offset) as usize;
        while at < end {
            let frame = log.frames.frame(at);
            let length = (frame.end().min(end) - at) as usize;
            let must_be_there = log.is_certain || frame.end() <= log.synced;
            wanted.push(Wanted { writer: log.writer, into, length, position: at, frame, must_be_there });
            at += length as u64;
            into += length;
        }
    }
}

/// Returns the newest valid flat index. Damaged ones are ignored.
fn newest_flat(container: &Container) -> Result<Option<Flat>> {
    for name in container.flats()?.iter().rev() {
        match container.open_flat(name) {
            Ok(flat) => return Ok(Some(flat)),
            Err(error) if matches!(error.kind, ErrorKind::Damaged | ErrorKind::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Returns the parts of `found` that are later in order than the flat index in the same range,
/// after the truncations `cuts`.
fn over_flat(flat: &Flat, found: Vec<Extent>, logs: &Logs<'_>, cuts: &Truncations) -> Result<Vec<Extent>> {
    let mut over = Vec::with_capacity(found.len());
    for extent in found {
        let order = logs.order(&extent);
        if order > flat.latest() {
            over.push(extent);
            continue;
        }
        let mut at = extent.start;
        let mut parts = Vec::new();
        flat.extents(extent.start, extent.end(), &mut |known| {
            let known_end = known.end().min(logs.limit(cuts, &known));
            if known_end > known.start && logs.order(&known) > order {
                parts.push((at, known.start));
                at = known_end;
            }
        })?;
        parts.push((at, extent.end()));
        over.extend(parts.iter().filter(|(from, to)| from < to).map(|(from, to)| extent.part(*from, *to)));
    }
    Ok(over)
}

/// The state of a writer according to the names in `meta`.
struct Standing {
    writer: u64,
    /// Number of bytes of its data log that count; `None` for all complete frames.
    until: Option<u64>,
    is_certain: bool,
    whole_until: u64,
}

impl Standing {
    /// Returns the state of a writer of this process: all of its data counts, and the bytes that it
    /// has written must be present, because it had no power failure.
    fn of_ours(self, written: u64) -> Standing {
        Standing { until: None, is_certain: true, whole_until: self.whole_until.max(written), ..self }
    }
}

/// Returns the state of all writers. A dead writer does not publish any more, so all of its
/// complete frames count.
fn writers<'a>(container: &'a Container, summary: &'a Summary) -> impl Iterator<Item = Standing> + 'a {
    let boot = container.boot();
    let standing = move |writer, until, acknowledged, is_certain: bool| {
        let is_certain = is_certain || summary.has_failed(writer);
        Standing { writer, until, is_certain, whole_until: if is_certain { acknowledged } else { 0 } }
    };
    let closed = summary.closed.iter().map(move |closed| {
        let is_certain = closed.is_certain(boot);
        // Its logs may be removed at any time.
        let acknowledged = if summary.is_dead(closed) { 0 } else { closed.data_bytes };
        standing(closed.writer, Some(closed.data_bytes), acknowledged, is_certain)
    });
    let open = summary.open.iter().map(move |Running { writer, holder, told, .. }| {
        let is_gone = (container.host().is_gone)(holder);
        let told = told.map_or(0, |told| told.data_bytes);
        standing(*writer, (!is_gone).then_some(told), told, boot_of(&holder.node) == boot)
    });
    closed.chain(open)
}

/// Reads the newer parts of the logs of one share, applies `cuts`, and resolves the extents among
/// themselves. Stops after about `room` extents; returns true if everything was read. `first` is
/// the number of the first log.
fn read_share(
    container: &Container,
    logs: &mut [Log],
    first: u32,
    cuts: &Truncations,
    room: usize,
) -> Result<(Vec<Extent>, bool)> {
    let (mut found, mut is_all) = (Vec::new(), true);
    for (log, number) in logs.iter_mut().zip(first..) {
        let left = room.max(1).saturating_sub(found.len());
        if left == 0 {
            is_all = false;
            break;
        }
        is_all &= log.follow(container, left, &mut |start, length, position| {
            found.push(Extent { start, position, length: length as u32, log: number });
        })?;
    }
    // Truncated data must be removed before resolving: it may be later in order than data that the
    // truncation keeps, and would hide it.
    let logs = Logs(logs, first);
    clip(&mut found, &logs, cuts);
    Ok((resolve(found, &logs), is_all))
}

/// Removes the data that a later truncation removes.
fn clip(extents: &mut Vec<Extent>, logs: &Logs<'_>, cuts: &Truncations) {
    if cuts.cuts().is_empty() {
        return;
    }
    extents.retain_mut(|extent| {
        let end = logs.limit(cuts, extent).min(extent.end());
        let is_left = end > extent.start;
        if is_left {
            extent.length = (end - extent.start) as u32;
        }
        is_left
    });
}
