//! One writer's logs, looked at from beginning to end: every head, every block, and whether the index log says what the
//! data log has. Nothing is written; what may be repaired is told.

use quell_backing::OpenFile;
use quell_fs::{ErrorKind, Result};

use crate::check::Trouble;
use crate::container::Container;
use crate::crew::Tally;
use crate::data_log::{self, NoEdges};
use crate::frames::{FRAME_HEAD_BYTES, Frame, Frames, stored_bytes};
use crate::heads::HEAD_BYTES;
use crate::meta::{Closed, Running, Summary, boot_of};
use crate::runs::{Run, at_positions};
use crate::scan;

/// Blocks that are read at once.
const BLOCKS: u64 = 64;
/// Bytes that are looked through at once for a frame behind something that is none.
const SEARCH_BYTES: usize = 1 << 20;
/// Ranges of damage that are kept for one log; what is behind them is one more.
const DAMAGE_MAX: usize = 100_000;

/// What the names in `meta` say of a writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    Open {
        running: Running,
        is_gone: bool,
    },
    Closed(Closed),
    /// There are logs, and no name.
    Nobody,
}

impl Standing {
    /// Nobody writes to the logs any more.
    fn has_ended(&self) -> bool {
        matches!(self, Standing::Closed(_) | Standing::Open { is_gone: true, .. })
    }
}

/// What was seen of a writer's logs.
#[derive(Debug)]
pub struct LogFacts {
    pub writer: u64,
    pub standing: Standing,
    /// What cannot be repaired.
    pub troubles: Vec<Trouble>,
    /// Damaged bytes: position, and where in the file they begin and end.
    pub damaged: Vec<(u64, u64, u64)>,
    /// The same of what was lost before anybody synced it.
    pub lost: Vec<(u64, u64, u64)>,
    /// Where that ends in the file, as far as no cut took it.
    pub lost_end: u64,
    /// Whole frames end here in the data log, and at this position.
    pub good_place: u64,
    pub good_position: u64,
    /// Bytes behind the last whole frame that may be cut off.
    pub torn_bytes: Option<u64>,
    pub index_trouble: Option<&'static str>,
    /// The index log can be made anew from the data log.
    pub can_index: bool,
    /// The writer's end can be told from the data log.
    pub can_retire: bool,
    pub closed_is_wrong: bool,
    /// Its logs were removed when the file was cut; the name is left.
    pub is_dead: bool,
    pub epochs: Option<(u64, u64)>,
}

impl LogFacts {
    pub fn is_clean(&self) -> bool {
        self.troubles.is_empty()
            && self.damaged.is_empty()
            && self.lost.is_empty()
            && self.torn_bytes.is_none()
            && self.index_trouble.is_none()
            && !self.closed_is_wrong
            && !self.is_dead
            && !matches!(self.standing, Standing::Open { is_gone: true, .. })
    }
}

/// What the index log says, all of it.
struct Indexed {
    frames: Frames,
    runs: Vec<Run>,
    /// Positions below this one survive a loss of power.
    synced: u64,
}

/// Goes through runs as the positions of frames come.
struct Cursor<'a> {
    runs: &'a [Run],
    run: usize,
    extent: u64,
    /// Bytes of the extent that are used up.
    used: u64,
}

impl Cursor<'_> {
    /// Takes the next piece, at most `length` bytes; where it begins in the file, and its bytes.
    fn take(&mut self, length: u64) -> Option<(u64, u64)> {
        let run = self.runs.get(self.run)?;
        let start = run.start_of(self.extent) + self.used;
        let taken = length.min(run.length - self.used);
        self.used += taken;
        if self.used == run.length {
            (self.extent, self.used) = (self.extent + 1, 0);
            if self.extent == run.count {
                (self.run, self.extent) = (self.run + 1, 0);
            }
        }
        Some((start, taken))
    }

    /// Takes as many bytes as `runs` have; whether they are the same bytes of the file.
    fn is_next(&mut self, runs: &[Run]) -> bool {
        for run in runs {
            for i in 0..run.count {
                let (mut start, mut left) = (run.start_of(i), run.length);
                while left > 0 {
                    match self.take(left) {
                        Some((at, taken)) if at == start => (start, left) = (start + taken, left - taken),
                        _ => return false,
                    }
                }
            }
        }
        true
    }
}

/// Looks at the logs of one writer.
pub fn look(
    container: &Container,
    writer: u64,
    standing: Standing,
    summary: &Summary,
    tally: &Tally,
) -> Result<LogFacts> {
    let begin = HEAD_BYTES as u64;
    let mut facts = LogFacts {
        writer,
        standing,
        troubles: Vec::new(),
        damaged: Vec::new(),
        lost: Vec::new(),
        lost_end: 0,
        good_place: begin,
        good_position: 0,
        torn_bytes: None,
        index_trouble: None,
        can_index: false,
        can_retire: false,
        closed_is_wrong: false,
        is_dead: false,
        epochs: None,
    };
    if facts.standing == Standing::Nobody {
        facts.troubles.push(Trouble::Nobody(writer));
        return Ok(facts);
    }
    let missing = |error: &quell_fs::Error| error.kind == ErrorKind::NotFound;
    let data = match scan::data(container, writer) {
        Err(error) if missing(&error) => None,
        data => data?,
    };
    let Some((data, head)) = data else {
        match facts.standing {
            Standing::Closed(closed) => {
                // Who cuts a file to nothing removes logs first, then their names.
                facts.is_dead = summary.is_dead(&closed);
                if !facts.is_dead {
                    facts.troubles.push(Trouble::Short(writer, closed.data_bytes));
                }
            }
            // It has not begun; if it is gone it never will.
            _ => facts.can_retire = true,
        }
        return Ok(facts);
    };
    let size = data.stat()?.size_bytes;
    if let Err(error) = head {
        if error.kind != ErrorKind::Damaged {
            return Err(error);
        }
        match (&facts.standing, size <= begin) {
            (Standing::Open { is_gone, .. }, true) => facts.can_retire = *is_gone,
            _ => facts.troubles.push(Trouble::DataHead(writer)),
        }
        return Ok(facts);
    }
    let block_bytes = u64::from(container.head().block_bytes);
    let mut indexed = Indexed { frames: Frames::new(block_bytes, begin), runs: Vec::new(), synced: 0 };
    let index = match scan::batches(container, writer, &mut |batch, _| {
        indexed.frames.append(batch.frames);
        indexed.runs.extend(batch.runs);
        if batch.is_synced {
            indexed.synced = indexed.frames.position();
        }
        Ok(true)
    }) {
        Err(error) if missing(&error) => {
            scan::IndexEnd { bytes: None, place: 0, position: 0, data_place: begin, damage: None }
        }
        index => index?,
    };
    let boot = container.boot();
    let keeps_all = match &facts.standing {
        Standing::Closed(closed) => closed.is_certain(boot),
        Standing::Open { running, .. } => boot_of(&running.holder.node) == boot,
        Standing::Nobody => false,
    };
    if keeps_all || summary.has_failed(writer) {
        // No loss of power took anything: what is not there is damaged.
        indexed.synced = u64::MAX;
    }
    let walk = walk(&*data, size, &indexed, block_bytes, &mut facts, tally)?;
    finish(&mut facts, &index, &walk, size, summary);
    Ok(facts)
}

/// A frame that is not whole: place, position, and the damaged bytes as position, start and end in the file.
type TornFrame = (u64, u64, Vec<(u64, u64, u64)>);

/// What came of going through the data log.
struct Walk {
    /// Where heads end, and positions.
    place: u64,
    position: u64,
    /// Where the first frame begins that no index tells of and that is not whole, though others follow.
    broken: bool,
    /// The index tells of something else than the data log.
    disagrees: bool,
    /// Heads of frames are damaged.
    headless: bool,
    /// The index tells of more than the data log has: of what was synced, too.
    is_short: bool,
    lacks_synced: bool,
    /// Something behind the last frame is a whole frame again.
    more_later: bool,
    /// Where what was written ends in the file.
    end: u64,
}

fn walk(
    data: &dyn OpenFile,
    size: u64,
    indexed: &Indexed,
    block_bytes: u64,
    facts: &mut LogFacts,
    tally: &Tally,
) -> Result<Walk> {
    let begin = HEAD_BYTES as u64;
    let writer = facts.writer;
    let mut walk = Walk {
        place: begin,
        position: 0,
        broken: false,
        disagrees: false,
        headless: false,
        is_short: false,
        lacks_synced: false,
        more_later: false,
        end: 0,
    };
    let mut cursor = Cursor { runs: &indexed.runs, run: 0, extent: 0, used: 0 };
    // A frame that no index tells of and that is not whole: it is the end, unless something follows.
    let mut torn: Option<TornFrame> = None;
    while !tally.is_stopped() {
        let told = (!walk.disagrees && walk.position < indexed.frames.position())
            .then(|| indexed.frames.frame(walk.position));
        let head = data_log::read_head(data, walk.place, walk.position)?;
        let (frame, runs) = match (&head, told) {
            (Some((head, runs)), told) => {
                let frame = head.frame(walk.place);
                if told.is_some_and(|told| told != frame) || told.is_some() && !cursor.is_next(runs) {
                    walk.disagrees = true;
                }
                (frame, Some(runs))
            }
            (None, Some(told)) => {
                if told.payload_place + stored_bytes(told.payload_bytes, block_bytes) > size {
                    // All from here on is gone; the index says what it was.
                    let lost = (walk.position, indexed.frames.position());
                    damage(facts, indexed, &[lost], indexed.synced);
                    walk.is_short = true;
                    walk.lacks_synced = walk.position < indexed.synced;
                    break;
                }
                facts.troubles.push(Trouble::FrameHead(writer, walk.place));
                walk.headless = true;
                let mut left = told.payload_bytes;
                while left > 0
                    && let Some((_, taken)) = cursor.take(left)
                {
                    left -= taken;
                }
                (told, None)
            }
            (None, None) => break,
        };
        let end = frame.payload_place + stored_bytes(frame.payload_bytes, block_bytes);
        let is_told = told.is_some() && !walk.disagrees;
        if end > size {
            if is_told {
                damage(facts, indexed, &[(walk.position, indexed.frames.position())], indexed.synced);
                walk.is_short = true;
                walk.lacks_synced = walk.position < indexed.synced;
            }
            break;
        }
        let bad = bad_blocks(data, &frame, block_bytes, tally)?;
        if is_told {
            // What was not written to its end was lost, if nobody had synced it; all else is damaged.
            let torn =
                if bad.is_empty() { Vec::new() } else { data_log::torn_blocks(data, &frame, block_bytes)? };
            let blocks = bad.iter().flat_map(|(start, end)| {
                (*start..*end).step_by(block_bytes as usize).map(|at| (at, (at + block_bytes).min(*end)))
            });
            let (lost, changed): (Vec<_>, Vec<_>) = blocks.partition(|block| torn.contains(block));
            damage(facts, indexed, &lost, indexed.synced);
            damage(facts, indexed, &changed, u64::MAX);
        } else if let Some(runs) = runs
            && !bad.is_empty()
            && torn.is_none()
        {
            let mut found = Vec::new();
            bad.iter().for_each(|bad| {
                at_positions(runs, frame.position, *bad, &mut |position, start, end| {
                    found.push((position, start, end))
                });
            });
            torn = Some((walk.place, walk.position, found));
        } else if let (Some(runs), Some((.., found))) = (runs, &mut torn) {
            walk.broken = true;
            bad.iter().for_each(|bad| {
                at_positions(runs, frame.position, *bad, &mut |position, start, end| {
                    found.push((position, start, end))
                });
            });
        }
        if torn.is_none() || walk.broken || matches!(facts.standing, Standing::Closed(_)) {
            let (low, high) = facts.epochs.unwrap_or((frame.epoch, frame.epoch));
            facts.epochs = Some((low.min(frame.epoch), high.max(frame.epoch)));
            if let Some(runs) = runs {
                walk.end = runs.iter().map(Run::end).fold(walk.end, u64::max);
            }
        }
        (walk.place, walk.position) = (end, frame.end());
    }
    walk.more_later =
        walk.place < size && !walk.is_short && has_frame_after(data, walk.place, size, walk.position)?;
    let is_closed = matches!(&facts.standing, Standing::Closed(closed) if torn.as_ref().is_some_and(|torn| closed.data_bytes > torn.0));
    if !facts.standing.has_ended() {
        // What is being written is not whole at times; what the index tells of is.
        walk.more_later = false;
        return Ok(walk);
    }
    if let Some((place, position, found)) = torn {
        if walk.broken || walk.more_later || is_closed {
            facts.damaged.extend(found);
            walk.broken = !is_closed;
        } else {
            // The last frame, begun and not ended: it was never written.
            (walk.place, walk.position) = (place, position);
        }
    }
    Ok(walk)
}

/// Notes damaged positions with what they are in the file. What was not synced was lost with the power, and never
/// counted.
fn damage(facts: &mut LogFacts, indexed: &Indexed, bad: &[(u64, u64)], synced: u64) {
    let LogFacts { damaged, lost, .. } = facts;
    for (start, end) in bad {
        for (range, to) in
            [((*start, (*end).min(synced)), &mut *damaged), (((*start).max(synced), *end), &mut *lost)]
        {
            at_positions(&indexed.runs, 0, range, &mut |position, start, end| {
                if to.len() < DAMAGE_MAX {
                    to.push((position, start, end));
                }
            });
        }
    }
}

/// Positions of blocks that are not as their checksums say.
fn bad_blocks(
    data: &dyn OpenFile,
    frame: &Frame,
    block_bytes: u64,
    tally: &Tally,
) -> Result<Vec<(u64, u64)>> {
    let mut bad: Vec<(u64, u64)> = Vec::new();
    let mut buffer = vec![0; (BLOCKS * block_bytes).min(frame.payload_bytes) as usize];
    let mut check = |start: u64, end: u64| -> Result<bool> {
        let into = &mut buffer[..(end - start) as usize];
        match data_log::read_payload(data, frame, block_bytes, start, into, &NoEdges) {
            Ok(()) => Ok(true),
            Err(error) if error.kind == ErrorKind::Damaged => Ok(false),
            Err(error) => Err(error),
        }
    };
    let mut at = frame.position;
    while at < frame.end() && !tally.is_stopped() {
        let end = (at + BLOCKS * block_bytes).min(frame.end());
        if !check(at, end)? {
            let mut block = at;
            while block < end {
                let block_end = (block + block_bytes).min(end);
                if !check(block, block_end)? {
                    match bad.last_mut() {
                        Some((_, last)) if *last == block => *last = block_end,
                        _ => bad.push((block, block_end)),
                    }
                }
                block = block_end;
            }
        }
        tally.add_bytes(end - at);
        at = end;
    }
    Ok(bad)
}

/// Whether a whole head of a later frame lies anywhere behind `place`. Bytes of users may look like one: then less is
/// repaired, nothing else.
fn has_frame_after(data: &dyn OpenFile, place: u64, size: u64, position: u64) -> Result<bool> {
    // What begins at `place` itself is not whole.
    let mut at = place + 1;
    let overlap = FRAME_HEAD_BYTES as usize - 1;
    let mut buffer = vec![0; SEARCH_BYTES + overlap];
    while at < size {
        let read = data.read_at(&mut buffer, at)?;
        let mut from = 0;
        while let Some(found) = buffer[from..read].windows(4).position(|four| four == b"FRAM") {
            let start = from + found;
            from = start + 1;
            if start >= SEARCH_BYTES {
                break;
            }
            let Some(head) = buffer[start..read].first_chunk::<{ FRAME_HEAD_BYTES as usize }>() else {
                break;
            };
            if let Ok(head) = data_log::decode_head(head)
                && head.position >= position
                && data_log::read_head(data, at + start as u64, head.position)?.is_some()
            {
                return Ok(true);
            }
        }
        at += SEARCH_BYTES as u64;
    }
    Ok(false)
}

/// What follows from what was seen.
fn finish(facts: &mut LogFacts, index: &scan::IndexEnd, walk: &Walk, size: u64, summary: &Summary) {
    let writer = facts.writer;
    (facts.good_place, facts.good_position) = (walk.place, walk.position);
    let has_ended = facts.standing.has_ended();
    let is_inside = walk.broken || walk.more_later;
    if walk.more_later {
        facts.troubles.push(Trouble::Unreadable(writer, walk.place, size));
    }
    if !has_ended {
        if walk.disagrees {
            facts.index_trouble = Some("does not say what the data log has");
        }
        return;
    }
    facts.can_index = !is_inside && !walk.headless && !walk.lacks_synced;
    if walk.is_short {
        let of = |order| summary.cuts.limit(order, walk.place);
        let order =
            crate::frames::Order { epoch: facts.epochs.map_or(0, |(first, _)| first), sequence: 0, writer };
        facts.lost_end = facts.lost.iter().map(|(.., end)| (*end).min(of(order))).max().unwrap_or(0);
    }
    if let Standing::Closed(closed) = &facts.standing {
        if walk.place < closed.data_bytes {
            facts.troubles.push(Trouble::Short(writer, closed.data_bytes - walk.place));
            facts.can_index = false;
        } else if facts.can_index {
            let is_cut = summary.last_cut().is_some();
            facts.closed_is_wrong = facts.epochs != Some((closed.first_epoch, closed.last_epoch))
                || closed.data_bytes != walk.place
                // More than the log has is what was lost before it was synced.
                || !is_cut && closed.end < walk.end;
        }
    }
    let is_short = matches!(facts.standing, Standing::Closed(closed) if walk.place < closed.data_bytes);
    if walk.place < size && !is_inside && !walk.lacks_synced && !is_short {
        facts.torn_bytes = Some(size - walk.place);
    }
    facts.can_retire = facts.can_index;
    facts.index_trouble = if walk.disagrees {
        Some("does not say what the data log has")
    } else if index.bytes.is_none() {
        (walk.position > 0).then_some("is missing")
    } else if index.damage.is_some() {
        Some("is damaged")
    } else if index.position < walk.position {
        Some("ends before the data log, whose frames readers have to go through")
    } else if index.position > walk.position && !walk.lacks_synced {
        Some("tells of more than the data log has")
    } else {
        None
    };
}
