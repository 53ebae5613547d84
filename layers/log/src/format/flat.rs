//! The flat index: one file instead of the index logs of all writers (Index Flatten, section IV-A
//! of the paper). A reader fetches only the pages that it needs. The format is described in
//! docs/formats/log.md.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use quell_vfs::{Error, File, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::format::bytes::{Bytes, put_varint, u32_at, u64_at};
use crate::format::damage::Damage;
use crate::format::extents::Extent;
use crate::format::frames::{Frames, Order, PAYLOAD_BYTES_MAX};
use crate::format::heads::{HEAD_BYTES, Head, HeadKind};
use crate::format::meta::Truncations;
use crate::format::runs::FILE_END_MAX;

const TAIL_BYTES: usize = 64;
const TAIL_MAGIC: &[u8; 8] = b"QLOGTAIL";
const PAGE_ENTRY_BYTES: usize = 40;
/// The largest number of extents in a page. It also bounds the size of a page, because an extent is
/// encoded in at most 60 bytes.
const PAGE_EXTENTS_MAX: usize = 8192;
const PAGE_BYTES_MAX: u32 = (PAGE_EXTENTS_MAX * 60) as u32;
/// Larger tables are refused. The limit allows about 25 million pages.
const TABLES_BYTES_MAX: u64 = 1 << 30;
/// Number of decoded pages that are kept in memory, with 24 bytes for each of their extents.
const PAGES_KEPT: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");

/// The row of one log in the log table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatLog {
    pub writer: u64,
    /// Offset of the next batch in the index log.
    pub index_place: u64,
    /// Payload offset and data log offset at which that batch begins.
    pub indexed: (u64, u64),
    /// Payload bytes below this payload offset survive a power failure.
    pub synced: u64,
    pub frames: Frames,
}

impl FlatLog {
    /// Returns the entry for a truncation that the flat index includes.
    fn of_truncation(number: u64, block_bytes: u64) -> FlatLog {
        let frames = Frames::new(block_bytes, HEAD_BYTES as u64);
        FlatLog { writer: number, index_place: 0, indexed: (0, HEAD_BYTES as u64), synced: 0, frames }
    }

    /// Returns true for the entry of a truncation, and for a log of which nothing is known.
    fn is_empty(&self) -> bool {
        self.index_place == 0 && self.frames.groups().is_empty()
    }
}

/// Writes a flat index: first sorted extents that do not overlap, as they are pushed, then the
/// tables. `put` receives the bytes and their offset; the pieces are consecutive.
pub struct Builder<P> {
    put: P,
    place: u64,
    page: Vec<Extent>,
    table: Vec<u8>,
    pages: u64,
    block_bytes: u64,
}

impl<P: FnMut(&[&[u8]], u64) -> Result<()>> Builder<P> {
    /// Begins a flat index of the container with this record.
    pub fn new(mut put: P, container: &Head) -> Result<Builder<P>> {
        put(&[&container.of(HeadKind::Flat, 0).encode()], 0)?;
        let block_bytes = container.block_bytes.into();
        Ok(Builder {
            put,
            place: HEAD_BYTES as u64,
            page: Vec::new(),
            table: Vec::new(),
            pages: 0,
            block_bytes,
        })
    }

    pub fn push(&mut self, extent: Extent) -> Result<()> {
        self.page.push(extent);
        if self.page.len() == PAGE_EXTENTS_MAX { self.end_page() } else { Ok(()) }
    }

    fn end_page(&mut self) -> Result<()> {
        let (Some(first), Some(last)) = (self.page.first(), self.page.last()) else { return Ok(()) };
        let (bytes, runs) = encode_page(&self.page);
        for number in [first.start, last.end(), self.place] {
            self.table.extend(number.to_le_bytes());
        }
        self.table.extend((bytes.len() as u32).to_le_bytes());
        self.table.extend(runs.to_le_bytes());
        self.table.extend(xxh3_64(&bytes).to_le_bytes());
        (self.put)(&[&bytes], self.place)?;
        self.place += bytes.len() as u64;
        self.pages += 1;
        self.page.clear();
        Ok(())
    }

    /// Writes the tables. `cuts` are the numbers of the truncations that the flat index includes,
    /// and `size` is the size of the logged file. Returns the size of the flat index in bytes.
    pub fn finish(mut self, logs: &[FlatLog], cuts: &[u64], size: u64) -> Result<u64> {
        self.end_page()?;
        let logs_place = self.place + self.table.len() as u64;
        let mut tables = self.table;
        let cuts: Vec<FlatLog> =
            cuts.iter().map(|number| FlatLog::of_truncation(*number, self.block_bytes)).collect();
        for log in logs.iter().chain(&cuts) {
            tables.extend(log.writer.to_le_bytes());
            let groups = log.frames.groups();
            for number in [log.index_place, log.indexed.0, log.indexed.1, log.synced, groups.len() as u64] {
                put_varint(&mut tables, number);
            }
            Frames::encode(groups, &mut tables);
        }
        let mut tail = [0; TAIL_BYTES];
        tail[..8].copy_from_slice(TAIL_MAGIC);
        let count = (logs.len() + cuts.len()) as u64;
        let numbers = [self.place, logs_place, self.pages, count, size, xxh3_64(&tables)];
        for (at, number) in (8..).step_by(8).zip(numbers) {
            tail[at..at + 8].copy_from_slice(&u64::to_le_bytes(number));
        }
        let sum = xxh3_64(&tail[..56]);
        tail[56..].copy_from_slice(&sum.to_le_bytes());
        (self.put)(&[&tables, &tail], self.place)?;
        Ok(self.place + (tables.len() + TAIL_BYTES) as u64)
    }
}

/// A run in a page.
struct PageRun {
    log: u32,
    length: u64,
    start: u64,
    position: u64,
    stride: u64,
    count: u64,
}

fn encode_page(extents: &[Extent]) -> (Vec<u8>, u32) {
    let mut runs: Vec<PageRun> = Vec::new();
    // The last run of each log, to which the next extent of the log may be added.
    let mut last: std::collections::HashMap<u32, usize> = std::collections::HashMap::new();
    for extent in extents {
        let length = u64::from(extent.length);
        if let Some(run) = last.get(&extent.log).map(|at| &mut runs[*at]) {
            let continues = run.length == length && extent.position == run.position + run.count * length;
            if continues && (run.count == 1 || extent.start == run.start + run.count * run.stride) {
                run.stride = extent.start - (run.start + (run.count - 1) * run.stride);
                run.count += 1;
                continue;
            }
        }
        last.insert(extent.log, runs.len());
        let Extent { start, position, log, .. } = *extent;
        runs.push(PageRun { log, length, start, position, stride: 0, count: 1 });
    }
    let mut out = Vec::new();
    let mut before = extents[0].start;
    for run in &runs {
        put_varint(&mut out, run.log.into());
        put_varint(&mut out, run.length << 1 | u64::from(run.count > 1));
        put_varint(&mut out, run.start - before);
        put_varint(&mut out, run.position);
        if run.count > 1 {
            put_varint(&mut out, run.stride);
            put_varint(&mut out, run.count - 2);
        }
        before = run.start;
    }
    (out, runs.len() as u32)
}

/// Decodes the extents of a page. They are sorted, and each lies within the page and its log.
fn decode_page(bytes: &[u8], page: &Page, logs: &[FlatLog]) -> Result<Vec<Extent>, Damage> {
    let mut bytes = Bytes::new(bytes, "a page of a flat index");
    let mut extents = Vec::new();
    let mut before = page.first;
    for _ in 0..page.runs {
        let (log, head) = (bytes.varint()?, bytes.varint()?);
        let start = before.checked_add(bytes.varint()?);
        let position = bytes.varint()?;
        let (mut stride, mut count) = (0, 1);
        if head & 1 == 1 {
            (stride, count) = (bytes.varint()?, bytes.varint()?.saturating_add(2));
        }
        let length = head >> 1;
        let known = usize::try_from(log).ok().and_then(|log| logs.get(log));
        let last = stride.checked_mul(count - 1).and_then(|far| far.checked_add(start?));
        let end = last.and_then(|last| last.checked_add(length));
        let position_end = length.checked_mul(count).and_then(|bytes| bytes.checked_add(position));
        let fits = (1..=PAYLOAD_BYTES_MAX).contains(&length)
            && count <= (PAGE_EXTENTS_MAX - extents.len()) as u64
            && end.is_some_and(|end| end <= page.end)
            && known.is_some_and(|log| position_end.is_some_and(|end| end <= log.frames.position()));
        let Some(start) = start.filter(|_| fits) else {
            return Err(bytes.damage("a run cannot be like that"));
        };
        for i in 0..count {
            let (start, position) = (start + i * stride, position + i * length);
            extents.push(Extent { start, position, length: length as u32, log: log as u32 });
        }
        before = start;
    }
    extents.sort_unstable();
    let overlap = extents.windows(2).any(|pair| pair[0].end() > pair[1].start);
    if overlap || !bytes.is_empty() {
        return Err(bytes.damage("its runs do not fit together"));
    }
    Ok(extents)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Page {
    first: u64,
    end: u64,
    place: u64,
    bytes: u32,
    runs: u32,
    sum: u64,
}

/// An open flat index.
pub struct Flat {
    file: Box<dyn File>,
    pages: Vec<Page>,
    logs: Vec<FlatLog>,
    /// Numbers of the included truncations, and of logs of which nothing is known.
    cuts: Vec<u64>,
    size: u64,
    latest: Order,
    kept: Mutex<LruCache<usize, Arc<Vec<Extent>>>>,
}

impl std::fmt::Debug for Flat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flat").field("pages", &self.pages.len()).finish_non_exhaustive()
    }
}

impl Flat {
    /// Reads the tables of a flat index of `size` bytes.
    ///
    /// # Errors
    ///
    /// `Damaged` if the file is not a valid flat index of this container.
    pub fn open(file: Box<dyn File>, size: u64, container: &Head, name: &[u8]) -> Result<Flat> {
        let damage = |place, reason| Damage { what: "a flat index", place, reason }.of(name);
        if size < (HEAD_BYTES + TAIL_BYTES) as u64 {
            return Err(damage(size, "it ends too early"));
        }
        let mut head = [0; HEAD_BYTES];
        let mut tail = [0; TAIL_BYTES];
        let tail_place = size - TAIL_BYTES as u64;
        if file.read_at(&mut head, 0)? < HEAD_BYTES || file.read_at(&mut tail, tail_place)? < TAIL_BYTES {
            return Err(damage(0, "it ends too early"));
        }
        if Head::decode(HeadKind::Flat, &head).map_err(|wrong| wrong.of(name))?
            != container.of(HeadKind::Flat, 0)
        {
            return Err(damage(0, "it belongs to another file"));
        }
        if &tail[..8] != TAIL_MAGIC || u64_at(&tail, 56) != xxh3_64(&tail[..56]) {
            return Err(damage(tail_place, "the checksum is another"));
        }
        let [pages_place, logs_place, pages, logs, file_size, sum] =
            [8, 16, 24, 32, 40, 48].map(|at| u64_at(&tail, at));
        let table_bytes = pages.checked_mul(PAGE_ENTRY_BYTES as u64);
        let tables = tail_place.checked_sub(pages_place).filter(|bytes| *bytes <= TABLES_BYTES_MAX);
        let fits = table_bytes.is_some_and(|bytes| logs_place.checked_sub(pages_place) == Some(bytes))
            && file_size <= FILE_END_MAX;
        let Some(tables) = tables.filter(|tables| fits && logs_place <= tail_place && logs <= *tables) else {
            return Err(damage(tail_place, "its parts do not fit together"));
        };
        let mut bytes = vec![0; tables as usize];
        if file.read_at(&mut bytes, pages_place)? < bytes.len() || xxh3_64(&bytes) != sum {
            return Err(damage(pages_place, "the checksum is another"));
        }
        let (page_table, log_table) = bytes.split_at((logs_place - pages_place) as usize);
        let pages: Vec<Page> = page_table.chunks_exact(PAGE_ENTRY_BYTES).map(page_of).collect();
        let sorted = pages.windows(2).all(|pair| pair[0].end <= pair[1].first);
        let page_fits = |page: &Page| {
            page.first < page.end
                && page.end <= FILE_END_MAX
                && page.bytes <= PAGE_BYTES_MAX
                && page.runs as usize <= PAGE_EXTENTS_MAX
                && page.place.checked_add(page.bytes.into()).is_some_and(|end| end <= pages_place)
        };
        if !sorted || !pages.iter().all(page_fits) {
            return Err(damage(pages_place, "its pages do not fit together"));
        }
        let mut bytes = Bytes::new(log_table, "the table of logs");
        let mut logs =
            decode_logs(&mut bytes, logs, container.block_bytes.into()).map_err(|wrong| wrong.of(name))?;
        let cuts = logs.iter().filter(|log| log.is_empty()).map(|log| log.writer).collect();
        while logs.last().is_some_and(FlatLog::is_empty) {
            logs.pop();
        }
        let latest = logs.iter().filter_map(|log| {
            let last = log.frames.frame(log.frames.position().checked_sub(1)?);
            Some(Order { epoch: last.epoch, sequence: last.sequence, writer: log.writer })
        });
        let latest = latest.max().unwrap_or_default();
        let kept = Mutex::new(LruCache::new(PAGES_KEPT));
        Ok(Flat { file, pages, logs, cuts, size: file_size, latest, kept })
    }

    pub fn logs(&self) -> &[FlatLog] {
        &self.logs
    }

    /// Returns the numbers of the truncations that the flat index includes, and of logs of which
    /// nothing is known.
    pub fn cuts(&self) -> &[u64] {
        &self.cuts
    }

    /// Returns true if newer frames and truncations can be applied to the flat index. Each
    /// truncation that it does not include must be later than all of its frames and cover all of
    /// them. Otherwise a frame that the truncation removes may have hidden a frame that it does not
    /// remove, and that frame is missing here.
    pub fn is_usable(&self, truncations: &Truncations) -> bool {
        truncations.other_than(&self.cuts).all(|(cut, mut partly)| {
            cut.order > self.latest
                && partly.all(|(writer, bytes)| {
                    let log = self.logs.iter().find(|log| log.writer == *writer);
                    log.is_none_or(|log| log.frames.begins_within(*bytes))
                })
        })
    }

    /// Returns the size of the logged file at the time when the flat index was created.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the end of the last extent.
    pub fn end(&self) -> u64 {
        self.pages.last().map_or(0, |page| page.end)
    }

    /// Returns the latest order of all frames.
    pub fn latest(&self) -> Order {
        self.latest
    }

    /// Visits the extents from `start` to `end`, sorted. The ranges between them are holes.
    pub fn extents(&self, start: u64, end: u64, visit: &mut dyn FnMut(Extent)) -> Result<()> {
        let first = self.pages.partition_point(|page| page.end <= start);
        for number in first..self.pages.len() {
            if self.pages[number].first >= end {
                break;
            }
            let extents = self.page(number)?;
            let from = extents.partition_point(|extent| extent.end() <= start);
            for extent in extents[from..].iter().take_while(|extent| extent.start < end) {
                visit(extent.part(start, end));
            }
        }
        Ok(())
    }

    /// Returns all extents, sorted, one page at a time.
    pub fn pages(&self) -> impl Iterator<Item = Result<Arc<Vec<Extent>>>> {
        (0..self.pages.len()).map(|number| self.page(number))
    }

    fn page(&self, number: usize) -> Result<Arc<Vec<Extent>>> {
        if let Some(extents) = self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(&number) {
            return Ok(Arc::clone(extents));
        }
        let page = &self.pages[number];
        let mut bytes = vec![0; page.bytes as usize];
        let damage = |reason| -> Error {
            Damage { what: "a flat index", place: page.place, reason }.of("the flat index")
        };
        if self.file.read_at(&mut bytes, page.place)? < bytes.len() || xxh3_64(&bytes) != page.sum {
            return Err(damage("a page is not as its checksum says"));
        }
        let extents =
            decode_page(&bytes, page, &self.logs).map_err(|_| damage("a page cannot be like that"))?;
        let extents = Arc::new(extents);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let evicted = kept.push(number, Arc::clone(&extents));
        drop(kept);
        drop(evicted);
        Ok(extents)
    }
}

/// Corrects the header, the trailer's magic bytes and all checksums, as far as these parts are
/// present.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn reseal_flat(bytes: &mut [u8], container: &Head) {
    let Some(tail_place) = bytes.len().checked_sub(TAIL_BYTES).filter(|at| *at >= HEAD_BYTES) else { return };
    bytes[..HEAD_BYTES].copy_from_slice(&container.of(HeadKind::Flat, 0).encode());
    let place = |at| u64_at(bytes, tail_place + at).min(tail_place as u64) as usize;
    let pages_place = place(8);
    let table_bytes = place(16).saturating_sub(pages_place);
    let (pages, rest) = bytes.split_at_mut(pages_place);
    let (tables, tail) = rest.split_at_mut(tail_place - pages_place);
    for entry in tables[..table_bytes].chunks_exact_mut(PAGE_ENTRY_BYTES) {
        let Page { place, bytes, .. } = page_of(entry);
        let page = usize::try_from(place).ok().and_then(|place| pages.get(place..)?.get(..bytes as usize));
        if let Some(page) = page {
            entry[32..].copy_from_slice(&xxh3_64(page).to_le_bytes());
        }
    }
    tail[..8].copy_from_slice(TAIL_MAGIC);
    tail[48..56].copy_from_slice(&xxh3_64(tables).to_le_bytes());
    let sum = xxh3_64(&tail[..56]);
    tail[56..].copy_from_slice(&sum.to_le_bytes());
}

fn page_of(entry: &[u8]) -> Page {
    Page {
        first: u64_at(entry, 0),
        end: u64_at(entry, 8),
        place: u64_at(entry, 16),
        bytes: u32_at(entry, 24),
        runs: u32_at(entry, 28),
        sum: u64_at(entry, 32),
    }
}

fn decode_logs(bytes: &mut Bytes<'_>, count: u64, block_bytes: u64) -> Result<Vec<FlatLog>, Damage> {
    // Each log takes at least 13 bytes of the table, so the size of the table bounds this vector.
    let mut logs = Vec::new();
    for _ in 0..count {
        let writer = bytes.u64()?;
        let [index_place, position, place] = [bytes.varint()?, bytes.varint()?, bytes.varint()?];
        let [synced, groups] = [bytes.varint()?, bytes.varint()?];
        let mut frames = Frames::new(block_bytes, HEAD_BYTES as u64);
        frames.decode(bytes, groups)?;
        if position > frames.position() || place > frames.place() || synced > frames.position() {
            return Err(bytes.damage("a log cannot be like that"));
        }
        logs.push(FlatLog { writer, index_place, indexed: (position, place), synced, frames });
    }
    if !bytes.is_empty() {
        return Err(bytes.damage("it goes on beyond the last log"));
    }
    Ok(logs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_testkit::{MemoryStore, Random};
    use quell_vfs::ErrorKind;

    use crate::format::heads::BLOCK_BYTES;

    const RECORD: Head = Head {
        kind: HeadKind::Container,
        block_bytes: BLOCK_BYTES,
        container: 77,
        writer: 0,
        directories: 4,
    };

    /// Returns extents of three logs: a checkpoint of two, interrupted by extents of the third.
    fn some(count: u64) -> (Vec<Extent>, Vec<FlatLog>) {
        let mut random = Random::new(5);
        let mut extents = Vec::new();
        let (mut positions, mut start) = ([0u64; 3], 0);
        for i in 0..count {
            let log = if random.one_in(50) { 2 } else { i % 2 };
            let length = if log == 2 { 1 + random.below(90) as u64 } else { 100 };
            let position = positions[log as usize];
            extents.push(Extent { start, position, length: length as u32, log: log as u32 });
            positions[log as usize] += length;
            start += 100 + if random.one_in(300) { 1 << 33 } else { 0 };
        }
        let logs = (1..).zip(positions).map(|(writer, bytes)| {
            let mut frames = Frames::new(BLOCK_BYTES.into(), HEAD_BYTES as u64);
            frames.push(60, bytes.max(1), 1, writer);
            let indexed = (frames.position(), frames.place());
            FlatLog { writer, index_place: 64, indexed, synced: 0, frames }
        });
        (extents, logs.collect())
    }

    fn written(extents: &[Extent], logs: &[FlatLog]) -> (MemoryStore, u64) {
        let store = MemoryStore::new();
        let file = store.root().create_file(b"flat", 0o644).unwrap();
        let put = |pieces: &[&[u8]], place| file.write_pieces_at(pieces, place);
        let mut builder = Builder::new(put, &RECORD).unwrap();
        extents.iter().for_each(|extent| builder.push(*extent).unwrap());
        let bytes = builder.finish(logs, &[], 12345).unwrap();
        (store, bytes)
    }

    fn open(store: &MemoryStore) -> Result<Flat> {
        let file = store.root().open_file(b"flat")?;
        let size = file.stat()?.size_bytes;
        Flat::open(file, size, &RECORD, b"flat")
    }

    fn read(flat: &Flat, start: u64, end: u64) -> Result<Vec<Extent>> {
        let mut found = Vec::new();
        flat.extents(start, end, &mut |extent| found.push(extent)).map(|()| found)
    }

    #[test]
    fn what_is_pushed_is_found_page_by_page() {
        let (extents, logs) = some(30_000);
        let (store, bytes) = written(&extents, &logs);
        let flat = open(&store).unwrap();
        assert_eq!((flat.logs(), flat.size(), flat.pages.len()), (&logs[..], 12345, 4));
        assert_eq!(flat.latest(), Order { epoch: 1, sequence: 3, writer: 3 });
        assert_eq!(read(&flat, 0, u64::MAX).unwrap(), extents);
        let mut random = Random::new(6);
        for _ in 0..300 {
            let (a, b) = (random.below(extents.len()), random.below(extents.len()));
            let (start, end) = (extents[a.min(b)].start + 1, extents[a.max(b)].start + 2);
            let mut expected = extents[a.min(b)..=a.max(b)].to_vec();
            expected.retain(|extent| extent.end() > start);
            let expected: Vec<Extent> = expected.iter().map(|extent| extent.part(start, end)).collect();
            assert_eq!(read(&flat, start, end).unwrap(), expected);
        }
        assert!(bytes < 30_000, "two thirds of the extents are in a few runs: {bytes} bytes");
    }

    #[test]
    fn a_flat_index_that_is_damaged_anywhere_is_refused() {
        let (extents, logs) = some(400);
        let (store, bytes) = written(&extents, &logs);
        let file = store.root().open_writable_file(b"flat").unwrap();
        for at in 0..bytes {
            let mut byte = [0];
            file.read_at(&mut byte, at).unwrap();
            file.write_at(&[byte[0] ^ 0x20], at).unwrap();
            let opened = open(&store);
            let found = opened.and_then(|flat| read(&flat, 0, u64::MAX));
            assert_eq!(found.unwrap_err().kind, ErrorKind::Damaged, "byte {at}");
            file.write_at(&byte, at).unwrap();
        }
        for size in [0, 63, 64, 127, bytes - 1] {
            file.set_size(size).unwrap();
            let opened = open(&store);
            assert_eq!(opened.unwrap_err().kind, ErrorKind::Damaged, "{size} bytes");
        }
    }

    #[test]
    fn runs_that_overlap_or_lie_outside_are_refused_also_with_good_checksums() {
        let (extents, logs) = some(20);
        let bad: [fn(&mut Vec<Extent>); 3] = [
            |extents| extents[3].log = 7,
            |extents| extents[3].position = 1 << 40,
            |extents| extents[3].length = 5000,
        ];
        for change in bad {
            let mut wrong = extents.clone();
            change(&mut wrong);
            let (store, _) = written(&wrong, &logs);
            let flat = open(&store).unwrap();
            assert_eq!(read(&flat, 0, u64::MAX).unwrap_err().kind, ErrorKind::Damaged);
        }
    }
}
