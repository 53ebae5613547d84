//! What a file holds, as one node sees it: the extents of all its logs, resolved, and followed as the logs
//! grow. Nothing is read twice.

use std::collections::HashMap;

use quell_fs::{Error, ErrorKind, Result};

use crate::container::Container;
use crate::data_log;
use crate::extents::{Extent, Extents, Orders, Piece, resolve};
use crate::flat::{Flat, FlatLog};
use crate::frames::{Frame, Frames, Order};
use crate::heads::HEAD_BYTES;
use crate::index_log::Batch;
use crate::meta::{Cut, Running, Summary, limit};
use crate::missing::missing;
use crate::runs::Run;
use crate::scan::{self, IndexPlace};
use crate::share::{Share, part};

/// A log that claims more extents than this must show the data for them: each takes memory.
const EXTENTS_UNCHECKED_MAX: u64 = 1 << 16;

/// For each writer the positions of its log that were torn before anybody synced them, sorted.
pub type Torn = HashMap<u64, Vec<(u64, u64)>>;

/// One log as far as it is known.
#[derive(Debug)]
pub struct Log {
    pub writer: u64,
    pub frames: Frames,
    /// Where the next batch of the index log begins, and what it must go on from.
    index_place: u64,
    indexed: (u64, u64),
    /// Positions below this one survive a loss of power.
    synced: u64,
    /// Positions that do not count: they were torn before anybody synced them.
    torn: Vec<(u64, u64)>,
    /// Where torn parts of extents end in the file, and their positions: they are holes, and the file is as long as it was.
    lost: Vec<(u64, u64)>,
    /// So many bytes of the data log count: what its writer ended with, or published last. `None`: all that there is.
    until: Option<u64>,
    /// Extents that its index log told of, and how many the data log was seen to have room for.
    claimed: u64,
    shown: u64,
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
            claimed: 0,
            shown: EXTENTS_UNCHECKED_MAX,
        }
    }

    /// As far as a flat index knows it.
    fn known(flat: &FlatLog) -> Log {
        let FlatLog { index_place, indexed, synced, .. } = *flat;
        let new = Log::new(flat.writer, flat.frames.block_bytes());
        Log { frames: flat.frames.clone(), index_place, indexed, synced, ..new }
    }

    /// What a flat index keeps of it.
    pub fn to_flat(&self) -> FlatLog {
        let Log { writer, index_place, indexed, synced, .. } = *self;
        FlatLog { writer, index_place, indexed, synced, frames: self.frames.clone() }
    }

    /// All of it that counts so far is known.
    fn is_complete(&self) -> bool {
        self.until.is_some_and(|bytes| self.frames.place() >= bytes)
    }

    pub fn order(&self, position: u64) -> Order {
        let Frame { epoch, sequence, .. } = self.frames.frame(position);
        Order { epoch, sequence, writer: self.writer }
    }

    /// Takes in what the logs in the store have beyond what is known; every extent goes to `visit`, with its position.
    fn follow(&mut self, container: &Container, visit: &mut dyn FnMut(u64, u64, u64)) -> Result<()> {
        if self.is_complete() {
            return Ok(());
        }
        let torn = self.torn.clone();
        let mut lost = std::mem::take(&mut self.lost);
        let mut visit = |start, length, position| {
            without(&torn, start, length, position, &mut lost, visit);
        };
        let mut followed = self.follow_index(container, &mut visit);
        if followed.is_ok() && !self.is_complete() {
            followed = self.follow_data(container, &mut visit);
        }
        self.lost = lost;
        followed
    }

    fn follow_index(&mut self, container: &Container, visit: &mut dyn FnMut(u64, u64, u64)) -> Result<()> {
        // Nothing was published yet, or the index was lost: the data log has all that is in it.
        let Some(file) = missing(container.open_index(self.writer))? else { return Ok(()) };
        let (position, data_place) = self.indexed;
        let from = IndexPlace { place: self.index_place, position, data_place };
        let (writer, until) = (self.writer, self.until.unwrap_or(u64::MAX));
        let mut too_late = 0;
        let (end, _) = scan::batches_from(&*file, container, writer, from, &mut |batch, _| {
            if batch.frames.place() > until {
                too_late = batch.bytes as u64;
                return Ok(false);
            }
            self.take(container, batch, visit).map(|()| true)
        })?;
        self.index_place = end.place - too_late;
        Ok(())
    }

    /// Takes in a batch; part of it may be known already from the heads of the frames.
    fn take(
        &mut self,
        container: &Container,
        batch: Batch,
        visit: &mut dyn FnMut(u64, u64, u64),
    ) -> Result<()> {
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
            visit_run(&run, position, &mut |start, length, position| {
                if position >= known {
                    visit(start, length, position);
                }
            });
            position += run.bytes();
        }
        Ok(())
    }

    /// Every extent has a byte at least: a log whose batches, all together, tell of more extents than its data log takes bytes of the
    /// store tells of what is not there, and would fill memory with it.
    fn check_claim(&mut self, container: &Container, batch: &Batch) -> Result<()> {
        let extents = batch.runs.iter().fold(0u64, |sum, run| sum.saturating_add(run.count));
        self.claimed = self.claimed.saturating_add(extents);
        if self.claimed <= self.shown {
            return Ok(());
        }
        let file = container.open_data(self.writer)?;
        let stat = file.stat()?;
        // A size alone says nothing: a file may be all holes.
        let taken = stat.size_bytes.min(stat.blocks.saturating_mul(512));
        self.shown = EXTENTS_UNCHECKED_MAX.saturating_add(taken);
        let mut is_there = stat.size_bytes >= batch.frames.place();
        if is_there && self.claimed > self.shown {
            // A store that compresses, or that tells only later what a file takes: the bytes themselves show it.
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
                ..Error::new(ErrorKind::Damaged, "read", crate::container::index_name(self.writer))
            }),
        }
    }

    /// What the data log has beyond the index: whole frames only, each of their blocks checked.
    fn follow_data(&mut self, container: &Container, visit: &mut dyn FnMut(u64, u64, u64)) -> Result<()> {
        let file = match container.open_data(self.writer) {
            // Not begun, or torn at its beginning.
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Damaged) => return Ok(()),
            file => file?,
        };
        let block_bytes = self.frames.block_bytes();
        let from = (self.frames.place(), self.frames.position());
        let until = self.until.unwrap_or(u64::MAX);
        scan::frames(&*file, block_bytes, from, &mut |place, head, runs| {
            if place >= until || !data_log::is_whole(&*file, &head.frame(place), block_bytes)? {
                return Ok(false);
            }
            self.frames.push(head.bytes(), head.payload_bytes, head.epoch, head.sequence);
            let mut position = head.position;
            for run in runs {
                visit_run(&run, position, visit);
                position += run.bytes();
            }
            Ok(true)
        })?;
        Ok(())
    }
}

/// Visits the parts of an extent at whose positions nothing is torn; `torn` is sorted.
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

/// Visits the extents of a run: start, length, position.
fn visit_run(run: &Run, position: u64, visit: &mut dyn FnMut(u64, u64, u64)) {
    for i in 0..run.count {
        visit(run.start_of(i), run.length, position + i * run.length);
    }
}

/// Which bytes of a log a reader needs.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub writer: u64,
    /// Where in the reader's buffer they go.
    pub into: usize,
    pub length: usize,
    pub position: u64,
    pub frame: Frame,
    /// It survives a loss of power.
    pub is_synced: bool,
}

/// A file's logs, resolved.
#[derive(Debug)]
pub struct View {
    logs: Vec<Log>,
    by_writer: HashMap<u64, u32>,
    /// What was flattened, if anything was; its logs are the first ones.
    flat: Option<Flat>,
    /// Size of the file when it was flattened last, and what is later than all in it.
    flattened: Option<(u64, Order)>,
    /// All else: it hides what `flat` has in the same place.
    extents: Extents,
    cuts: Vec<Cut>,
    block_bytes: u64,
    torn: Torn,
    /// What the names in `meta` say of the size, and where what was lost ended: bytes that were lost are holes.
    told: u64,
}

/// Logs one after another, of which the first has this number.
struct Logs<'a>(&'a [Log], u32);

impl Orders for Logs<'_> {
    fn order(&self, extent: &Extent) -> Order {
        self.0[(extent.log - self.1) as usize].order(extent.position)
    }
}

impl View {
    /// Nothing is known yet.
    pub fn new(block_bytes: u64) -> View {
        let extents = Extents::new(Vec::new(), Order::default());
        View {
            logs: Vec::new(),
            by_writer: HashMap::new(),
            flat: None,
            flattened: None,
            extents,
            cuts: Vec::new(),
            block_bytes,
            torn: HashMap::new(),
            told: 0,
        }
    }

    /// As `build`, but what a flat index has is not read again: of the logs that it knows only what came since.
    pub fn open(
        container: &Container,
        summary: &Summary,
        ours: &dyn Fn(u64) -> bool,
        threads: usize,
    ) -> Result<View> {
        match newest_flat(container)? {
            Some(flat) => {
                let mut view = View::new(container.head().block_bytes.into());
                for known in flat.logs() {
                    view.learn(known);
                }
                view.flattened = Some((flat.size(), flat.latest()));
                view.flat = Some(flat);
                view.fill(container, summary, ours, threads, Vec::new())
            }
            None => View::build(container, summary, ours, threads, Torn::new()),
        }
    }

    /// Brings together what was read in shares. What the logs have beyond, and logs that are in no share, are read; a log that is
    /// in several counts once, so that who divides the logs need not have seen the same names in `meta`. Logs that `summary` does
    /// not name count as well: what they hide is not in the shares any more.
    pub fn merge(
        container: &Container,
        summary: &Summary,
        ours: &dyn Fn(u64) -> bool,
        threads: usize,
        shares: &[Share],
    ) -> Result<View> {
        let mut view = View::new(container.head().block_bytes.into());
        let mut found = Vec::new();
        for share in shares {
            let mut numbers = Vec::new();
            for known in share.logs() {
                let is_new = !view.by_writer.contains_key(&known.writer);
                numbers.push(is_new.then(|| view.learn(known)));
            }
            share.extents(&mut |extent| {
                found.extend(numbers[extent.log as usize].map(|log| Extent { log, ..extent }));
            })?;
        }
        view.fill(container, summary, ours, threads, found)
    }

    /// Reads all that the logs have, with `threads` threads (section IV-B of the paper: each reads its share of the index logs).
    /// Of `ours`, whose writers are this process's, all counts, of others what they published; nothing at positions that are in `torn`.
    pub fn build(
        container: &Container,
        summary: &Summary,
        ours: &dyn Fn(u64) -> bool,
        threads: usize,
        torn: Torn,
    ) -> Result<View> {
        let mut view = View { torn, ..View::new(container.head().block_bytes.into()) };
        if !view.torn.is_empty() {
            // What was lost was there when it was flattened, and the file is as long as it was.
            view.flattened = newest_flat(container)?.map(|flat| (flat.size(), flat.latest()));
        }
        view.fill(container, summary, ours, threads, Vec::new())
    }

    /// Reads what the logs have beyond what is known of them; of that, `known` is not taken in yet.
    fn fill(
        self,
        container: &Container,
        summary: &Summary,
        ours: &dyn Fn(u64) -> bool,
        threads: usize,
        known: Vec<Extent>,
    ) -> Result<View> {
        let mut view = self;
        view.cuts = summary.cuts.clone();
        for (writer, until) in writers(container, summary) {
            let number = view.log_of(writer);
            view.logs[number as usize].until = until.filter(|_| !ours(writer));
        }
        let mut all = known;
        clip(&mut all, &Logs(&view.logs, 0), &view.cuts);
        let cuts = &view.cuts;
        let (count, mut rest) = (view.logs.len(), &mut view.logs[..]);
        let threads = threads.clamp(1, count.max(1));
        let shares: Vec<Result<Vec<Extent>>> = std::thread::scope(|scope| {
            let mut shares = (0..threads).map(|number| {
                let part = part(count, number, threads);
                let (logs, others) = std::mem::take(&mut rest).split_at_mut(part.len());
                rest = others;
                move || read_share(container, logs, part.start as u32, cuts)
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
        for share in shares {
            all.append(&mut share?);
        }
        let mut extents = resolve(all, &Logs(&view.logs, 0));
        if let Some(flat) = &view.flat {
            extents = over_flat(flat, extents, &Logs(&view.logs, 0))?;
        }
        let latest =
            view.logs.iter().filter_map(|log| log.frames.position().checked_sub(1).map(|p| log.order(p)));
        view.extents = Extents::new(extents, latest.max().unwrap_or_default());
        view.tell(summary);
        Ok(view)
    }

    /// Adds a log as far as somebody else has read it, and returns its number.
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

    /// Takes in what `summary` and the logs of writers other than `ours` have that is new.
    pub fn follow(
        &mut self,
        container: &Container,
        summary: &Summary,
        ours: &dyn Fn(u64) -> bool,
    ) -> Result<()> {
        self.cut(&summary.cuts);
        for (writer, until) in writers(container, summary).filter(|(writer, _)| !ours(*writer)) {
            let number = self.log_of(writer);
            let mut found = Vec::new();
            let log = &mut self.logs[number as usize];
            log.until = until;
            log.follow(container, &mut |start, length, position| {
                found.push(Extent { start, position, length: length as u32, log: number });
            })?;
            clip(&mut found, &Logs(&self.logs, 0), &self.cuts);
            self.insert(found)?;
        }
        self.tell(summary);
        Ok(())
    }

    /// How long the file is whatever can be read of it.
    fn tell(&mut self, summary: &Summary) {
        let lost = self.logs.iter().flat_map(|log| {
            let limit = |position| limit(&self.cuts, log.order(position));
            log.lost.iter().map(move |(end, position)| (*end).min(limit(*position)))
        });
        self.told = lost.max().unwrap_or(0).max(summary.size().0);
    }

    fn insert(&mut self, found: Vec<Extent>) -> Result<()> {
        let logs = Logs(&self.logs, 0);
        let found = match &self.flat {
            Some(flat) => over_flat(flat, found, &logs)?,
            None => found,
        };
        for extent in found {
            self.extents.insert(extent, logs.order(&extent), &logs);
        }
        Ok(())
    }

    /// Takes in a frame that a writer of this process has just written, unless it is known already.
    pub fn add(&mut self, writer: u64, head_bytes: u64, order: Order, position: u64, runs: &[Run]) {
        let number = self.log_of(writer);
        let log = &mut self.logs[number as usize];
        if log.frames.position() != position {
            return; // it was read from the store
        }
        let payload: u64 = runs.iter().map(Run::bytes).sum();
        log.frames.push(head_bytes, payload, order.epoch, order.sequence);
        let mut at = position;
        let logs = Logs(&self.logs, 0);
        for run in runs {
            visit_run(run, at, &mut |start, length, position| {
                let extent = Extent { start, position, length: length as u32, log: number };
                self.extents.insert(extent, order, &logs);
            });
            at += run.bytes();
        }
    }

    /// Takes in cuts: bytes that are earlier and beyond are gone.
    pub fn cut(&mut self, cuts: &[Cut]) {
        if cuts.iter().map(|cut| cut.order).eq(self.cuts.iter().map(|cut| cut.order)) {
            return;
        }
        self.cuts = cuts.to_vec();
        let logs = Logs(&self.logs, 0);
        let cuts = &self.cuts;
        self.extents.clip(&|extent| limit(cuts, logs.order(extent)));
    }

    /// Where the file ends.
    pub fn size(&self) -> u64 {
        self.flat_end().max(self.extents.end()).max(self.cuts.last().map_or(0, |cut| cut.size)).max(self.told)
    }

    /// Where what was flattened ends, as far as cuts since then leave it.
    fn flat_end(&self) -> u64 {
        self.flattened.map_or(0, |(size, latest)| size.min(limit(&self.cuts, latest)))
    }

    /// The largest epoch of a log that `counts`.
    pub fn epoch_of(&self, counts: &dyn Fn(u64) -> bool) -> u64 {
        let logs = self.logs.iter().filter(|log| counts(log.writer));
        logs.filter_map(|log| log.frames.epochs()).map(|(_, last)| last).max().unwrap_or(0)
    }

    /// The largest epoch that was seen.
    pub fn epoch(&self) -> u64 {
        self.epoch_of(&|_| true)
    }

    pub fn logs(&self) -> &[Log] {
        &self.logs
    }

    pub fn extents(&self) -> &Extents {
        &self.extents
    }

    /// What `into`, read from `offset` on, is made of; zeros are put into it at once, and bytes beyond the end are left.
    pub fn wanted(&self, into: &mut [u8], offset: u64) -> Result<Vec<Wanted>> {
        let mut wanted = Vec::new();
        let mut failed = Ok(());
        self.extents.pieces(offset, offset + into.len() as u64, &mut |piece| match piece {
            Piece::Hole(start, end) => {
                into[(start - offset) as usize..(end - offset) as usize].fill(0);
                if let Some(flat) = &self.flat {
                    let visited = flat.extents(start, end, &mut |extent| {
                        let limit = limit(&self.cuts, self.logs[extent.log as usize].order(extent.position));
                        if limit > extent.start {
                            self.want(&extent.part(extent.start, limit), offset, &mut wanted);
                        }
                    });
                    failed = std::mem::replace(&mut failed, Ok(())).and(visited);
                }
            }
            Piece::Data(extent) => self.want(&extent, offset, &mut wanted),
        });
        failed.map(|()| wanted)
    }

    fn want(&self, extent: &Extent, offset: u64, wanted: &mut Vec<Wanted>) {
        let log = &self.logs[extent.log as usize];
        let (mut at, end) = (extent.position, extent.position + u64::from(extent.length));
        let mut into = (extent.start - offset) as usize;
        while at < end {
            let frame = log.frames.frame(at);
            let length = (frame.end().min(end) - at) as usize;
            let is_synced = frame.end() <= log.synced;
            wanted.push(Wanted { writer: log.writer, into, length, position: at, frame, is_synced });
            at += length as u64;
            into += length;
        }
    }
}

/// The newest flat index that is whole; others are as if they were not there.
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

/// What of `found` is later than what the flat index has in the same place.
fn over_flat(flat: &Flat, found: Vec<Extent>, logs: &Logs<'_>) -> Result<Vec<Extent>> {
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
            if logs.order(&known) > order {
                parts.push((at, known.start));
                at = known.end();
            }
        })?;
        parts.push((at, extent.end()));
        over.extend(parts.iter().filter(|(from, to)| from < to).map(|(from, to)| extent.part(*from, *to)));
    }
    Ok(over)
}

/// All writers, with the bytes of their data logs that count. Who is known to have died publishes nothing more: all that there is.
fn writers<'a>(
    container: &'a Container,
    summary: &'a Summary,
) -> impl Iterator<Item = (u64, Option<u64>)> + 'a {
    let closed = summary.closed.iter().map(|closed| (closed.writer, Some(closed.data_bytes)));
    let open = summary.open.iter().map(|Running { writer, holder, told, .. }| {
        let is_gone = (container.host().is_gone)(holder);
        (*writer, (!is_gone).then(|| told.map_or(0, |told| told.data_bytes)))
    });
    closed.chain(open)
}

/// What the logs of one share have beyond what is known of them, resolved among themselves; `first` is the number of the first log.
fn read_share(container: &Container, logs: &mut [Log], first: u32, cuts: &[Cut]) -> Result<Vec<Extent>> {
    let mut found = Vec::new();
    for (log, number) in logs.iter_mut().zip(first..) {
        log.follow(container, &mut |start, length, position| {
            found.push(Extent { start, position, length: length as u32, log: number });
        })?;
    }
    let logs = Logs(logs, first);
    clip(&mut found, &logs, cuts);
    Ok(resolve(found, &logs))
}

/// Drops what a later cut took.
fn clip(extents: &mut Vec<Extent>, logs: &Logs<'_>, cuts: &[Cut]) {
    if cuts.is_empty() {
        return;
    }
    extents.retain_mut(|extent| {
        let end = limit(cuts, logs.order(extent)).min(extent.end());
        let is_left = end > extent.start;
        if is_left {
            extent.length = (end - extent.start) as u32;
        }
        is_left
    });
}
