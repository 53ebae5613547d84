//! Checks one writer's logs completely: every header, every block, and whether the index log agrees
//! with the data log. Writes nothing, and reports what can be repaired.

use quell_posix::OpenFile;
use quell_vfs::{ErrorKind, Result};

use crate::container::container_dir::Container;
use crate::format::data_log::{self, NoEdges};
use crate::format::frames::{FRAME_HEAD_BYTES, Frame, Frames, stored_bytes};
use crate::format::heads::HEAD_BYTES;
use crate::format::meta::{Closed, Running, Summary, boot_of};
use crate::format::runs::{Run, at_positions};
use crate::session::scan;
use crate::tools::crew::Tally;
use crate::tools::problem::Problem;

/// Number of blocks in one read.
const BLOCKS: u64 = 64;
/// Number of bytes in one read of the search for a frame after a damaged part.
const SEARCH_BYTES: usize = 1 << 20;
/// The largest number of damaged ranges that are kept for one log. Further ranges are dropped.
const DAMAGE_MAX: usize = 100_000;

/// The state of a writer according to the names in `meta`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    Open {
        running: Running,
        is_gone: bool,
    },
    Closed(Closed),
    /// There are logs, but no name refers to them.
    Nobody,
}

impl Standing {
    /// Returns true if no process writes to the logs any more.
    fn has_ended(&self) -> bool {
        matches!(self, Standing::Closed(_) | Standing::Open { is_gone: true, .. })
    }
}

/// The result of checking a writer's logs.
#[derive(Debug)]
pub struct LogFacts {
    pub writer: u64,
    pub standing: Standing,
    /// Problems that cannot be repaired.
    pub problems: Vec<Problem>,
    /// Damaged bytes: payload offset, and start and end in the file.
    pub damaged: Vec<(u64, u64, u64)>,
    /// Bytes that were lost before they were synced, in the same form.
    pub lost: Vec<(u64, u64, u64)>,
    /// The end of `lost` in the file, after truncations.
    pub lost_end: u64,
    /// Data log offset and payload offset of the end of the complete frames.
    pub good_place: u64,
    pub good_position: u64,
    /// Number of bytes after the last complete frame, if they may be removed.
    pub torn_bytes: Option<u64>,
    pub index_defect: Option<&'static str>,
    /// The index log can be rebuilt from the data log.
    pub can_index: bool,
    /// The `closed` name of the writer can be derived from the data log.
    pub can_retire: bool,
    pub closed_is_wrong: bool,
    /// The logs were removed when the file was truncated, but the name remains.
    pub is_dead: bool,
    pub epochs: Option<(u64, u64)>,
}

impl LogFacts {
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
            && self.damaged.is_empty()
            && self.lost.is_empty()
            && self.torn_bytes.is_none()
            && self.index_defect.is_none()
            && !self.closed_is_wrong
            && !self.is_dead
            && !matches!(self.standing, Standing::Open { is_gone: true, .. })
    }
}

/// The whole content of the index log.
struct Indexed {
    frames: Frames,
    runs: Vec<Run>,
    /// Payload bytes below this payload offset survive a power failure.
    synced: u64,
}

/// A position in a list of runs, advanced along with the frames.
struct Cursor<'a> {
    runs: &'a [Run],
    run: usize,
    extent: u64,
    /// Number of bytes of the extent that were taken.
    used: u64,
}

impl Cursor<'_> {
    /// Takes the next piece of at most `length` bytes. Returns its start in the file and its
    /// length.
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

    /// Takes as many bytes as `runs` have. Returns true if they are at the same file offsets.
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

/// Checks the logs of one writer.
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
        problems: Vec::new(),
        damaged: Vec::new(),
        lost: Vec::new(),
        lost_end: 0,
        good_place: begin,
        good_position: 0,
        torn_bytes: None,
        index_defect: None,
        can_index: false,
        can_retire: false,
        closed_is_wrong: false,
        is_dead: false,
        epochs: None,
    };
    if facts.standing == Standing::Nobody {
        facts.problems.push(Problem::orphan_logs(writer));
        return Ok(facts);
    }
    let missing = |error: &quell_vfs::Error| error.kind == ErrorKind::NotFound;
    let data = match scan::data(container, writer) {
        Err(error) if missing(&error) => None,
        data => data?,
    };
    let Some((data, head)) = data else {
        match facts.standing {
            Standing::Closed(closed) => {
                // A truncation to size 0 removes the logs first, then their names.
                facts.is_dead = summary.is_dead(&closed);
                if !facts.is_dead {
                    facts.problems.push(Problem::missing_end(writer, closed.data_bytes));
                }
            }
            // The writer has not started. A dead writer will not start.
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
            _ => facts.problems.push(Problem::damaged_data_log_header(writer)),
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
        // No power failure can have removed data: missing data is damage.
        indexed.synced = u64::MAX;
    }
    let walk = walk(&*data, size, &indexed, block_bytes, &mut facts, tally)?;
    finish(&mut facts, &index, &walk, size, summary);
    Ok(facts)
}

/// A frame that is not complete: log offset, payload offset, and the damaged bytes as payload
/// offset, start and end in the file.
type TornFrame = (u64, u64, Vec<(u64, u64, u64)>);

/// The result of reading the data log from beginning to end.
struct Walk {
    /// Data log offset and payload offset of the end of the headers.
    place: u64,
    position: u64,
    /// A frame without a batch is not complete, although others follow.
    broken: bool,
    /// The index log contradicts the data log.
    disagrees: bool,
    /// Headers of frames are damaged.
    headless: bool,
    /// The index log has more frames than the data log; `lacks_synced` if synced ones are missing.
    is_short: bool,
    lacks_synced: bool,
    /// There is a complete frame after the end of the frames.
    more_later: bool,
    /// The largest end of the frames' extents in the file.
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
    // The first frame without a batch that is not complete. It is the end of the log, unless others
    // follow.
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
                    // The rest of the log is missing; the index log tells which bytes it held.
                    let lost = (walk.position, indexed.frames.position());
                    damage(facts, indexed, &[lost], indexed.synced);
                    walk.is_short = true;
                    walk.lacks_synced = walk.position < indexed.synced;
                    break;
                }
                facts.problems.push(Problem::damaged_frame_header(writer, walk.place));
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
            // Blocks that were not written completely were lost if they had not been synced. All
            // other bad blocks are damaged.
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
        // Frames that are just being written may be incomplete; those with a batch are not.
        walk.more_later = false;
        return Ok(walk);
    }
    if let Some((place, position, found)) = torn {
        if walk.broken || walk.more_later || is_closed {
            facts.damaged.extend(found);
            walk.broken = !is_closed;
        } else {
            // The last frame was not written completely and does not count.
            (walk.place, walk.position) = (place, position);
        }
    }
    Ok(walk)
}

/// Adds the file ranges of bad payload ranges: below `synced` to `damaged`, and the rest, which a
/// power failure removed, to `lost`.
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

/// Returns the payload ranges of blocks that do not match their checksums.
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

/// Returns true if there is a complete header of a later frame anywhere after `place`. File data
/// may look like one; in this case less is repaired, but nothing is lost.
fn has_frame_after(data: &dyn OpenFile, place: u64, size: u64, position: u64) -> Result<bool> {
    // The header at `place` itself is not complete.
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

/// Derives the possible repairs from the result of `walk`.
fn finish(facts: &mut LogFacts, index: &scan::IndexEnd, walk: &Walk, size: u64, summary: &Summary) {
    let writer = facts.writer;
    (facts.good_place, facts.good_position) = (walk.place, walk.position);
    let has_ended = facts.standing.has_ended();
    let is_inside = walk.broken || walk.more_later;
    if walk.more_later {
        facts.problems.push(Problem::unreadable_frames(writer, walk.place, size));
    }
    if !has_ended {
        if walk.disagrees {
            facts.index_defect = Some("differs from the data log");
        }
        return;
    }
    facts.can_index = !is_inside && !walk.headless && !walk.lacks_synced;
    if walk.is_short {
        let of = |order| summary.cuts.limit(order, walk.place);
        let order = crate::format::frames::Order {
            epoch: facts.epochs.map_or(0, |(first, _)| first),
            sequence: 0,
            writer,
        };
        facts.lost_end = facts.lost.iter().map(|(.., end)| (*end).min(of(order))).max().unwrap_or(0);
    }
    if let Standing::Closed(closed) = &facts.standing {
        if walk.place < closed.data_bytes {
            facts.problems.push(Problem::missing_end(writer, closed.data_bytes - walk.place));
            facts.can_index = false;
        } else if facts.can_index {
            let is_cut = summary.last_cut().is_some();
            facts.closed_is_wrong = facts.epochs != Some((closed.first_epoch, closed.last_epoch))
                || closed.data_bytes != walk.place
                // The name may have a larger END than the log, if data was lost before it was
                // synced.
                || !is_cut && closed.end < walk.end;
        }
    }
    let is_short = matches!(facts.standing, Standing::Closed(closed) if walk.place < closed.data_bytes);
    if walk.place < size && !is_inside && !walk.lacks_synced && !is_short {
        facts.torn_bytes = Some(size - walk.place);
    }
    facts.can_retire = facts.can_index;
    facts.index_defect = if walk.disagrees {
        Some("differs from the data log")
    } else if index.bytes.is_none() {
        (walk.position > 0).then_some("is missing")
    } else if index.damage.is_some() {
        Some("is damaged")
    } else if index.position < walk.position {
        Some("ends before the data log, so that readers must read its frames")
    } else if index.position > walk.position && !walk.lacks_synced {
        Some("describes more than the data log has")
    } else {
        None
    };
}
