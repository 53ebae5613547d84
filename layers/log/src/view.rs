//! What a file holds, as one node sees it: the extents of all its logs, resolved, and followed as the logs
//! grow. Nothing is read twice. Of extents that do not fit into memory a flat index is made, in a scratch file.

use std::collections::{HashMap, VecDeque};

use quell_fs::{Error, ErrorKind, Result};

use crate::container::{Container, data_name};
use crate::data_log;
use crate::extents::{Extent, Extents, Orders, Piece, resolve};
use crate::flat::{Flat, FlatLog};
use crate::flatten;
use crate::frames::{Frame, Frames, Order, stored_bytes};
use crate::heads::HEAD_BYTES;
use crate::index_log::Batch;
use crate::meta::{Running, Summary, Truncations, boot_of};
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
    /// Its writer has lost no power, or a sync of it failed: what is missing or changed in it is damage, not torn.
    is_certain: bool,
    /// So many bytes of the data log were acknowledged by a writer that has lost no power: all of them must be there.
    whole_until: u64,
    /// Extents that its index log told of, and how many the data log was seen to have room for.
    claimed: u64,
    shown: u64,
    /// Runs that were taken in and not visited yet, each with the position of its first byte.
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

    /// Where the bytes end that truncations left of the frame at `position`.
    fn limit(&self, cuts: &Truncations, position: u64) -> u64 {
        let Frame { epoch, sequence, payload_place, .. } = self.frames.frame(position);
        cuts.limit(Order { epoch, sequence, writer: self.writer }, payload_place)
    }

    /// Takes in what the logs in the store have beyond what is known, until `visit` was called for `room` extents; each comes with its
    /// position. Returns whether that was all.
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

    /// What is known of the writer: how much of the data log counts, and how much of it must be there.
    fn stand(&mut self, standing: Standing) {
        let Standing { until, is_certain, whole_until, .. } = standing;
        (self.until, self.is_certain, self.whole_until) = (until, is_certain, whole_until);
    }

    /// Visits extents that were taken in, no more than are left to visit.
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
            self.coming = VecDeque::new(); // its memory would stay as long as the log is known
        }
    }

    fn follow_index(
        &mut self,
        container: &Container,
        left: &mut u64,
        visit: &mut dyn FnMut(u64, u64, u64),
    ) -> Result<()> {
        // Nothing was published yet, or the index was lost: the data log has all that is in it.
        let Some(file) = missing(container.open_index(self.writer))? else { return Ok(()) };
        let (position, data_place) = self.indexed;
        let from = IndexPlace { place: self.index_place, position, data_place };
        let (writer, until) = (self.writer, self.until.unwrap_or(u64::MAX));
        let mut too_late = 0;
        let (end, _) = scan::batches_from(&*file, container, writer, from, &mut |batch, _| {
            // Where there is no room left, what only says that all before is synced is taken in.
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

    /// Takes in a batch; part of it may be known already from the heads of the frames.
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
            // Frames are known whole, and no extent goes from one into the next.
            let before = known.saturating_sub(position).div_ceil(run.length);
            if before < run.count {
                self.coming.push_back((position + before * run.length, run.after(before)));
            }
            position = end;
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
    fn follow_data(
        &mut self,
        container: &Container,
        left: &mut u64,
        visit: &mut dyn FnMut(u64, u64, u64),
    ) -> Result<()> {
        let file = match container.open_data(self.writer) {
            // Not begun, or torn at its beginning.
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Damaged) => return Ok(()),
            file => file?,
        };
        let block_bytes = self.frames.block_bytes();
        let from = (self.frames.place(), self.frames.position());
        let until = self.until.unwrap_or(u64::MAX);
        scan::frames(&*file, block_bytes, from, &mut |place, head, runs| {
            // Of what must be there one block that is not is damage, and takes no other with it.
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

/// Which bytes of a log a reader needs.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub writer: u64,
    /// Where in the reader's buffer they go.
    pub into: usize,
    pub length: usize,
    pub position: u64,
    pub frame: Frame,
    /// It was synced, or no loss of power can have taken it: where it is not, it is damaged.
    pub must_be_there: bool,
}

/// A file's logs, resolved.
#[derive(Debug)]
pub struct View {
    logs: Vec<Log>,
    by_writer: HashMap<u64, u32>,
    /// What was flattened, if anything was; its logs are the first ones.
    flat: Option<Flat>,
    /// If `flat` is a scratch file, which has all that did not fit into memory: where it ends.
    spilled: Option<Reach>,
    /// Size of the file when it was flattened last.
    flattened: Option<Reach>,
    /// All else: it hides what `flat` has in the same place.
    extents: Extents,
    cuts: Truncations,
    block_bytes: u64,
    torn: Torn,
    /// What the names in `meta` say of the size, and where what was lost ended: bytes that were lost are holes.
    told: u64,
}

/// Where a flat index ends, and the numbers of the truncations that it takes into account; others cover all of it.
#[derive(Debug)]
struct Reach {
    end: u64,
    cuts: Vec<u64>,
}

impl Reach {
    /// The size of the file when `flat` was made, if it is of use.
    fn of_file(flat: &Flat, cuts: &Truncations) -> Option<Reach> {
        flat.is_usable(cuts).then(|| Reach { end: flat.size(), cuts: flat.cuts().to_vec() })
    }

    /// Where what is left of it ends.
    fn end_after(reach: &Option<Reach>, cuts: &Truncations) -> u64 {
        reach.as_ref().map_or(0, |Reach { end, cuts: known }| cuts.end_after(*end, known))
    }
}

/// Logs one after another, of which the first has this number.
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
    /// Nothing is known yet.
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

    /// As `build`, but what a flat index has is not read again: of the logs that it knows only what came since.
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

    /// Brings together what was read in shares. What the logs have beyond, and logs that are in no share, are read; a log that is
    /// in several counts once, so that who divides the logs need not have seen the same names in `meta`. Logs that `summary` does
    /// not name count as well: what they hide is not in the shares any more.
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

    /// Reads all that the logs have, with `threads` threads (section IV-B of the paper: each reads its share of the index logs).
    /// `ours` says how many bytes of its data log a writer of this process has written; all of them count, of other writers those that
    /// they published; nothing at positions that are in `torn`.
    pub fn build(
        container: &Container,
        summary: &Summary,
        ours: &dyn Fn(u64) -> Option<u64>,
        threads: usize,
        torn: Torn,
    ) -> Result<View> {
        let mut view = View { torn, ..View::new(container.head().block_bytes.into()) };
        if !view.torn.is_empty() {
            // What was lost was there when it was flattened, and the file is as long as it was.
            view.flattened = newest_flat(container)?.and_then(|flat| Reach::of_file(&flat, &summary.cuts));
        }
        view.fill(container, summary, ours, threads, Vec::new())
    }

    /// Reads what the logs have beyond what is known of them; of that, `known` is not taken in yet.
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

    /// Reads what the logs have beyond what is known, in shares of equal size, until there are about `room` extents. Returns whether
    /// that was all.
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

    /// Takes in extents that may overlap, as all that is kept in memory.
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

    /// If more is kept in memory than may be, it goes to a file.
    pub fn shrink(&mut self, container: &Container) -> Result<()> {
        if self.extents.len() > container.host().scratch.extents_max { self.spill(container) } else { Ok(()) }
    }

    /// Makes one flat index, in a file of its own, of what is flattened and what is kept in memory.
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

    /// Takes in what `summary` and the logs of writers of other processes have that is new.
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

    /// How long the file is whatever can be read of it.
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

    /// Takes in a frame that a writer of this process has just written, unless it is known already.
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

    /// Takes in truncations: bytes that are earlier and beyond are gone.
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

    /// Whether a truncation that is not known yet leaves some of what is known. It may then leave what the view has dropped,
    /// because something hid it that the truncation takes; and nobody can tell where what a flat index has ends.
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

    /// Where the file ends.
    pub fn size(&self) -> u64 {
        Reach::end_after(&self.flattened, &self.cuts)
            .max(Reach::end_after(&self.spilled, &self.cuts))
            .max(self.extents.end())
            .max(self.cuts.last().map_or(0, |cut| cut.size))
            .max(self.told)
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

    /// Visits what there is from `start` to `end`, in order and without gaps.
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

    /// The same of what is flattened, as far as cuts since then leave it.
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

    /// What `into`, read from `offset` on, is made of; zeros are put into it at once, and bytes beyond the end are left.
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

/// What of `found` is later than what `cuts` left of the flat index in the same place.
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

/// What the names in `meta` say of a writer.
struct Standing {
    writer: u64,
    /// So many bytes of its data log count; `None`: all whole frames.
    until: Option<u64>,
    is_certain: bool,
    whole_until: u64,
}

impl Standing {
    /// Of a writer of this process all counts, and nothing of it was lost with the power: the bytes that it has written are there.
    fn of_ours(self, written: u64) -> Standing {
        Standing { until: None, is_certain: true, whole_until: self.whole_until.max(written), ..self }
    }
}

/// All writers. Who is known to have died publishes nothing more: all whole frames count.
fn writers<'a>(container: &'a Container, summary: &'a Summary) -> impl Iterator<Item = Standing> + 'a {
    let boot = container.boot();
    let standing = move |writer, until, acknowledged, is_certain: bool| {
        let is_certain = is_certain || summary.has_failed(writer);
        Standing { writer, until, is_certain, whole_until: if is_certain { acknowledged } else { 0 } }
    };
    let closed = summary.closed.iter().map(move |closed| {
        let is_certain = closed.is_certain(boot);
        // Its logs may be removed at any moment, or may be already.
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

/// What the logs of one share have beyond what is known of them and `cuts` left, resolved among themselves, no more than `room`
/// extents; and whether that was all. `first` is the number of the first log.
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
    // What a truncation took hides nothing: it may be later than what the truncation left.
    let logs = Logs(logs, first);
    clip(&mut found, &logs, cuts);
    Ok((resolve(found, &logs), is_all))
}

/// Drops what a later cut took.
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
