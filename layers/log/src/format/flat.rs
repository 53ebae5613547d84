//! The flat index: one file instead of the index logs of all writers (Index Flatten, section IV-A
//! of the paper). Encodes and decodes its pages and tables. The format is described in
//! docs/formats/log.md. Pure functions on values, no I/O.

use quell_vfs::Result;
use xxhash_rust::xxh3::xxh3_64;

use crate::format::bytes::{Bytes, put_varint, u32_at, u64_at};
use crate::format::damage::LogDamage;
use crate::format::extents::Extent;
use crate::format::frames::{Frames, Order, PAYLOAD_BYTES_MAX};
use crate::format::heads::{HEAD_BYTES, Head, HeadKind};
use crate::format::offsets::{FileOffset, LogPosition, PayloadOffset};
use crate::format::runs::FILE_END_MAX;

/// Size of the trailer in bytes.
pub const TAIL_BYTES: usize = 64;
const TAIL_MAGIC: &[u8; 8] = b"QLOGTAIL";
const PAGE_ENTRY_BYTES: usize = 40;
/// The largest number of extents in a page. It also bounds the size of a page, because an extent is
/// encoded in at most 60 bytes.
const PAGE_EXTENTS_MAX: usize = 8192;
const PAGE_BYTES_MAX: u32 = (PAGE_EXTENTS_MAX * 60) as u32;
/// Larger tables are refused. The limit allows about 25 million pages.
const TABLES_BYTES_MAX: u64 = 1 << 30;

/// The row of one log in the log table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatLog {
    pub writer: u64,
    /// Offset of the next batch in the index log.
    pub index_offset: u64,
    /// Position in the data log at which that batch begins.
    pub indexed: LogPosition,
    /// The payload before this offset survives a power failure.
    pub synced: PayloadOffset,
    pub frames: Frames,
}

impl FlatLog {
    /// Returns the entry for a truncation that the flat index includes.
    fn of_truncation(number: u64, block_bytes: u64) -> FlatLog {
        let frames = Frames::new(block_bytes, HEAD_BYTES as u64);
        FlatLog {
            writer: number,
            index_offset: 0,
            indexed: frames.end(),
            synced: PayloadOffset::ZERO,
            frames,
        }
    }

    /// Returns true for the entry of a truncation, and for a log of which neither a batch nor a
    /// frame was read.
    fn is_empty(&self) -> bool {
        self.index_offset == 0 && self.frames.groups().is_empty()
    }
}

/// Writes a flat index: first sorted extents that do not overlap, as they are pushed, then the
/// tables. `put` receives the bytes and their offset; the pieces are consecutive.
pub struct Builder<P> {
    put: P,
    /// Offset of the next page in the flat index.
    offset: u64,
    page: Vec<Extent>,
    table: Vec<u8>,
    pages: u64,
    block_bytes: u64,
}

impl<P: FnMut(&[&[u8]], u64) -> Result<()>> Builder<P> {
    /// Begins a flat index of the container with this record.
    pub fn new(mut put: P, container: &Head) -> Result<Builder<P>> {
        put(&[&container.for_file(HeadKind::Flat, 0).encode()], 0)?;
        let block_bytes = container.block_bytes.into();
        Ok(Builder {
            put,
            offset: HEAD_BYTES as u64,
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
        for number in [first.start.0, last.end().0, self.offset] {
            self.table.extend(number.to_le_bytes());
        }
        self.table.extend((bytes.len() as u32).to_le_bytes());
        self.table.extend(runs.to_le_bytes());
        self.table.extend(xxh3_64(&bytes).to_le_bytes());
        (self.put)(&[&bytes], self.offset)?;
        self.offset += bytes.len() as u64;
        self.pages += 1;
        self.page.clear();
        Ok(())
    }

    /// Writes the tables. `truncations` are the numbers of the truncations that the flat index
    /// includes, and `size` is the size of the logged file. Returns the size of the flat index in
    /// bytes.
    pub fn finish(mut self, logs: &[FlatLog], truncations: &[u64], size: u64) -> Result<u64> {
        self.end_page()?;
        let logs_offset = self.offset + self.table.len() as u64;
        let mut tables = self.table;
        let truncations: Vec<FlatLog> =
            truncations.iter().map(|number| FlatLog::of_truncation(*number, self.block_bytes)).collect();
        for log in logs.iter().chain(&truncations) {
            tables.extend(log.writer.to_le_bytes());
            let groups = log.frames.groups();
            for number in [
                log.index_offset,
                log.indexed.payload.0,
                log.indexed.log_offset,
                log.synced.0,
                groups.len() as u64,
            ] {
                put_varint(&mut tables, number);
            }
            Frames::encode(groups, &mut tables);
        }
        let mut tail = [0; TAIL_BYTES];
        tail[..8].copy_from_slice(TAIL_MAGIC);
        let count = (logs.len() + truncations.len()) as u64;
        let numbers = [self.offset, logs_offset, self.pages, count, size, xxh3_64(&tables)];
        for (at, number) in (8..).step_by(8).zip(numbers) {
            tail[at..at + 8].copy_from_slice(&u64::to_le_bytes(number));
        }
        let sum = xxh3_64(&tail[..56]);
        tail[56..].copy_from_slice(&sum.to_le_bytes());
        (self.put)(&[&tables, &tail], self.offset)?;
        Ok(self.offset + (tables.len() + TAIL_BYTES) as u64)
    }
}

/// A run in a page.
struct PageRun {
    log: u32,
    length: u64,
    start: FileOffset,
    payload: PayloadOffset,
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
            let continues = run.length == length && extent.payload == run.payload + run.count * length;
            if continues && (run.count == 1 || extent.start == run.start + run.count * run.stride) {
                run.stride = extent.start - (run.start + (run.count - 1) * run.stride);
                run.count += 1;
                continue;
            }
        }
        last.insert(extent.log, runs.len());
        let Extent { start, payload, log, .. } = *extent;
        runs.push(PageRun { log, length, start, payload, stride: 0, count: 1 });
    }
    let mut out = Vec::new();
    let mut before = extents[0].start;
    for run in &runs {
        put_varint(&mut out, run.log.into());
        put_varint(&mut out, run.length << 1 | u64::from(run.count > 1));
        put_varint(&mut out, run.start - before);
        put_varint(&mut out, run.payload.0);
        if run.count > 1 {
            put_varint(&mut out, run.stride);
            put_varint(&mut out, run.count - 2);
        }
        before = run.start;
    }
    (out, runs.len() as u32)
}

/// Decodes the extents of a page. They are sorted, and each lies within the page and its log.
fn decode_page(bytes: &[u8], page: &Page, logs: &[FlatLog]) -> Result<Vec<Extent>, LogDamage> {
    let mut bytes = Bytes::new(bytes, "a page of a flat index");
    let mut extents = Vec::new();
    let mut before = page.first;
    for _ in 0..page.runs {
        let (log, head) = (bytes.varint()?, bytes.varint()?);
        let start = before.0.checked_add(bytes.varint()?);
        let payload = bytes.varint()?;
        let (mut stride, mut count) = (0, 1);
        if head & 1 == 1 {
            (stride, count) = (bytes.varint()?, bytes.varint()?.saturating_add(2));
        }
        let length = head >> 1;
        let known = usize::try_from(log).ok().and_then(|log| logs.get(log));
        let last = stride.checked_mul(count - 1).and_then(|far| far.checked_add(start?));
        let end = last.and_then(|last| last.checked_add(length));
        let payload_end = length.checked_mul(count).and_then(|bytes| bytes.checked_add(payload));
        let fits = (1..=PAYLOAD_BYTES_MAX).contains(&length)
            && count <= (PAGE_EXTENTS_MAX - extents.len()) as u64
            && end.is_some_and(|end| FileOffset(end) <= page.end)
            && known.is_some_and(|log| payload_end.is_some_and(|end| end <= log.frames.payload_bytes()));
        let Some(start) = start.filter(|_| fits).map(FileOffset) else {
            return Err(bytes.damage("a run has an invalid value"));
        };
        for i in 0..count {
            let (start, payload) = (start + i * stride, PayloadOffset(payload + i * length));
            extents.push(Extent { start, payload, length: length as u32, log: log as u32 });
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

/// The entry of one page in the page table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// File offsets of the page's first byte and of the end of its last extent.
    pub first: FileOffset,
    pub end: FileOffset,
    /// Offset of the page in the flat index, and its size.
    pub offset: u64,
    pub bytes: u32,
    runs: u32,
    sum: u64,
}

impl Page {
    /// Decodes the extents of the page, sorted, from its bytes.
    ///
    /// # Errors
    ///
    /// The reason, if the checksum does not match or a value is invalid.
    pub fn decode(&self, bytes: &[u8], logs: &[FlatLog]) -> Result<Vec<Extent>, &'static str> {
        if bytes.len() < self.bytes as usize || xxh3_64(bytes) != self.sum {
            return Err("the checksum of a page does not match");
        }
        decode_page(bytes, self, logs).map_err(|_| "a page has an invalid value")
    }
}

/// The trailer of a flat index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlatTail {
    /// Offset of the page table, which the log table and the trailer follow.
    pub tables_offset: u64,
    logs_offset: u64,
    logs: u64,
    /// Size of the logged file.
    pub size: u64,
    sum: u64,
}

impl FlatTail {
    /// Decodes the trailer at offset `tail_offset`, and verifies the header.
    pub fn decode(
        head: &[u8],
        tail: &[u8; TAIL_BYTES],
        tail_offset: u64,
        container: &Head,
    ) -> Result<FlatTail, LogDamage> {
        if Head::decode(HeadKind::Flat, head)? != container.for_file(HeadKind::Flat, 0) {
            return Err(damage(0, "it belongs to another file"));
        }
        if &tail[..8] != TAIL_MAGIC || u64_at(tail, 56) != xxh3_64(&tail[..56]) {
            return Err(damage(tail_offset, "the checksum does not match"));
        }
        let [tables_offset, logs_offset, pages, logs, size, sum] =
            [8, 16, 24, 32, 40, 48].map(|at| u64_at(tail, at));
        let page_bytes = pages.checked_mul(PAGE_ENTRY_BYTES as u64);
        let tables = tail_offset.checked_sub(tables_offset).filter(|bytes| *bytes <= TABLES_BYTES_MAX);
        let fits = page_bytes.is_some_and(|bytes| logs_offset.checked_sub(tables_offset) == Some(bytes))
            && logs_offset <= tail_offset
            && size <= FILE_END_MAX;
        match tables.is_some_and(|bytes| fits && logs <= bytes) {
            true => Ok(FlatTail { tables_offset, logs_offset, logs, size, sum }),
            false => Err(damage(tail_offset, "its parts do not fit together")),
        }
    }
}

fn damage(offset: u64, reason: &'static str) -> LogDamage {
    LogDamage { object: "a flat index", offset, reason }
}

/// The tables of a flat index.
#[derive(Debug)]
pub struct FlatTables {
    pub pages: Vec<Page>,
    pub logs: Vec<FlatLog>,
    /// Numbers of the included truncations, and of logs of which neither a batch nor a frame was
    /// read.
    pub truncations: Vec<u64>,
    /// The order of the latest frame.
    pub latest: Order,
}

impl FlatTables {
    /// Decodes the page table and the log table.
    pub fn decode(tail: &FlatTail, bytes: &[u8], container: &Head) -> Result<FlatTables, LogDamage> {
        let page_bytes = (tail.logs_offset - tail.tables_offset) as usize;
        if bytes.len() < page_bytes || xxh3_64(bytes) != tail.sum {
            return Err(damage(tail.tables_offset, "the checksum does not match"));
        }
        let (page_table, log_table) = bytes.split_at(page_bytes);
        let pages: Vec<Page> = page_table.chunks_exact(PAGE_ENTRY_BYTES).map(page_of).collect();
        let is_sorted = pages.windows(2).all(|pair| pair[0].end <= pair[1].first);
        let page_fits = |page: &Page| {
            page.first < page.end
                && page.end.0 <= FILE_END_MAX
                && page.bytes <= PAGE_BYTES_MAX
                && page.runs as usize <= PAGE_EXTENTS_MAX
                && page.offset.checked_add(page.bytes.into()).is_some_and(|end| end <= tail.tables_offset)
        };
        if !is_sorted || !pages.iter().all(page_fits) {
            return Err(damage(tail.tables_offset, "its pages do not fit together"));
        }
        let mut bytes = Bytes::new(log_table, "the table of logs");
        let mut logs = decode_logs(&mut bytes, tail.logs, container.block_bytes.into())?;
        let truncations = logs.iter().filter(|log| log.is_empty()).map(|log| log.writer).collect();
        while logs.last().is_some_and(FlatLog::is_empty) {
            logs.pop();
        }
        let latest = logs.iter().filter_map(|log| {
            let last = log.frames.last()?;
            Some(Order { epoch: last.epoch, sequence: last.sequence, writer: log.writer })
        });
        let latest = latest.max().unwrap_or_default();
        Ok(FlatTables { pages, logs, truncations, latest })
    }
}

/// Corrects the header, the trailer's magic bytes and all checksums, as far as these parts are
/// present.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn reseal_flat(bytes: &mut [u8], container: &Head) {
    let Some(tail_offset) = bytes.len().checked_sub(TAIL_BYTES).filter(|at| *at >= HEAD_BYTES) else {
        return;
    };
    bytes[..HEAD_BYTES].copy_from_slice(&container.for_file(HeadKind::Flat, 0).encode());
    let offset_at = |at| u64_at(bytes, tail_offset + at).min(tail_offset as u64) as usize;
    let pages_offset = offset_at(8);
    let table_bytes = offset_at(16).saturating_sub(pages_offset);
    let (pages, rest) = bytes.split_at_mut(pages_offset);
    let (tables, tail) = rest.split_at_mut(tail_offset - pages_offset);
    for entry in tables[..table_bytes].chunks_exact_mut(PAGE_ENTRY_BYTES) {
        let Page { offset, bytes, .. } = page_of(entry);
        let page = usize::try_from(offset).ok().and_then(|offset| pages.get(offset..)?.get(..bytes as usize));
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
        first: FileOffset(u64_at(entry, 0)),
        end: FileOffset(u64_at(entry, 8)),
        offset: u64_at(entry, 16),
        bytes: u32_at(entry, 24),
        runs: u32_at(entry, 28),
        sum: u64_at(entry, 32),
    }
}

fn decode_logs(bytes: &mut Bytes<'_>, count: u64, block_bytes: u64) -> Result<Vec<FlatLog>, LogDamage> {
    // Each log takes at least 13 bytes of the table, so the size of the table bounds this vector.
    let mut logs = Vec::new();
    for _ in 0..count {
        let writer = bytes.u64()?;
        let [index_offset, payload, log_offset] = [bytes.varint()?, bytes.varint()?, bytes.varint()?];
        let [synced, groups] = [bytes.varint()?, bytes.varint()?];
        let mut frames = Frames::new(block_bytes, HEAD_BYTES as u64);
        frames.decode(bytes, groups)?;
        if payload > frames.payload_bytes()
            || log_offset > frames.log_end()
            || synced > frames.payload_bytes()
        {
            return Err(bytes.damage("a log has an invalid value"));
        }
        let indexed = LogPosition { log_offset, payload: PayloadOffset(payload) };
        logs.push(FlatLog { writer, index_offset, indexed, synced: PayloadOffset(synced), frames });
    }
    if !bytes.is_empty() {
        return Err(bytes.damage("there are bytes after the last log"));
    }
    Ok(logs)
}
