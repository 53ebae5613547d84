//! A flat index that is open for reading. A reader fetches only the pages that it needs, and the
//! pages that were decoded last are kept in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use quell_vfs::{ReadAt, Result};

use crate::format::{
    Extent, FileOffset, FlatLog, FlatTables, FlatTail, Frame, HEAD_BYTES, Head, LogDamage, Order, Orders,
    TAIL_BYTES, Truncations,
};
use crate::locks::{Rank, RankedMutex};

/// Number of decoded pages that are kept in memory, with 24 bytes for each of their extents.
const PAGES_KEPT: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");

/// An open flat index.
pub struct Flat {
    file: Box<dyn ReadAt>,
    tables: FlatTables,
    size: u64,
    /// Decoded pages by their index.
    kept: RankedMutex<LruCache<usize, Arc<Vec<Extent>>>>,
}

impl std::fmt::Debug for Flat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flat").field("pages", &self.tables.pages.len()).finish_non_exhaustive()
    }
}

impl Flat {
    /// Reads the tables of a flat index of `size` bytes.
    ///
    /// # Errors
    ///
    /// `Damaged` if the file is not a valid flat index of this container.
    pub fn open(file: Box<dyn ReadAt>, size: u64, container: &Head, name: &[u8]) -> Result<Flat> {
        let damage = |offset, reason| LogDamage { object: "a flat index", offset, reason }.in_file(name);
        let Some(tail_offset) = size.checked_sub(TAIL_BYTES as u64).filter(|at| *at >= HEAD_BYTES as u64)
        else {
            return Err(damage(size, "it ends too early"));
        };
        let mut head = [0; HEAD_BYTES];
        let mut tail = [0; TAIL_BYTES];
        if file.read_at(&mut head, 0)? < HEAD_BYTES || file.read_at(&mut tail, tail_offset)? < TAIL_BYTES {
            return Err(damage(0, "it ends too early"));
        }
        let tail =
            FlatTail::decode(&head, &tail, tail_offset, container).map_err(|wrong| wrong.in_file(name))?;
        let mut bytes = vec![0; (tail_offset - tail.tables_offset) as usize];
        let length = file.read_at(&mut bytes, tail.tables_offset)?;
        let tables =
            FlatTables::decode(&tail, &bytes[..length], container).map_err(|wrong| wrong.in_file(name))?;
        let kept = RankedMutex::new(Rank::Leaf, LruCache::new(PAGES_KEPT));
        Ok(Flat { file, tables, size: tail.size, kept })
    }

    pub fn logs(&self) -> &[FlatLog] {
        &self.tables.logs
    }

    /// Returns the numbers of the truncations that the flat index includes, and of logs of which
    /// neither a batch nor a frame was read.
    pub fn truncations(&self) -> &[u64] {
        &self.tables.truncations
    }

    /// Returns true if newer frames and truncations can be applied to the flat index. Each
    /// truncation that it does not include must be later than all of its frames and cover all of
    /// them. Otherwise a frame that the truncation removes may have hidden a frame that it does not
    /// remove, and that frame is missing here.
    pub fn is_usable(&self, truncations: &Truncations) -> bool {
        truncations.other_than(&self.tables.truncations).all(|(truncation, mut partly)| {
            truncation.order > self.tables.latest
                && partly.all(|covered| {
                    let log = self.tables.logs.iter().find(|log| log.writer == covered.writer);
                    log.is_none_or(|log| log.frames.begins_within(covered.bytes))
                })
        })
    }

    /// Returns the size of the logged file at the time when the flat index was created.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the end of the last extent.
    pub fn end(&self) -> FileOffset {
        self.tables.pages.last().map(|page| page.end).unwrap_or_default()
    }

    /// Returns the order of the latest frame.
    pub fn latest(&self) -> Order {
        self.tables.latest
    }

    /// Visits the extents from `start` to `end`, sorted. The ranges between them are holes.
    pub fn extents(&self, start: FileOffset, end: FileOffset, visit: &mut dyn FnMut(Extent)) -> Result<()> {
        for number in self.page_numbers(start, end) {
            visit_page(&self.page(number)?, start, end, visit);
        }
        Ok(())
    }

    /// Returns the indices of the pages with extents from `start` to `end`.
    fn page_numbers(&self, start: FileOffset, end: FileOffset) -> impl Iterator<Item = usize> {
        let pages = &self.tables.pages;
        let first = pages.partition_point(|page| page.end <= start);
        (first..pages.len()).take_while(move |number| pages[*number].first < end)
    }

    /// Returns the file offset at which truncations end the frame of an extent.
    pub fn limit(&self, truncations: &Truncations, extent: &Extent) -> FileOffset {
        let Frame { payload_log_offset, .. } =
            self.tables.logs[extent.log as usize].frames.frame(extent.payload);
        truncations.limit(self.order(extent), payload_log_offset)
    }

    /// Returns all extents, sorted, one page at a time.
    pub fn pages(&self) -> impl Iterator<Item = Result<Arc<Vec<Extent>>>> {
        (0..self.tables.pages.len()).map(|number| self.page(number))
    }

    /// Returns a page that is in memory.
    fn kept_page(&self, number: usize) -> Option<Arc<Vec<Extent>>> {
        self.kept.lock().get(&number).cloned()
    }

    fn page(&self, number: usize) -> Result<Arc<Vec<Extent>>> {
        if let Some(extents) = self.kept_page(number) {
            return Ok(extents);
        }
        let page = &self.tables.pages[number];
        let mut bytes = vec![0; page.bytes as usize];
        let length = self.file.read_at(&mut bytes, page.offset)?;
        let extents = page.decode(&bytes[..length], &self.tables.logs).map_err(|reason| {
            LogDamage { object: "a flat index", offset: page.offset, reason }.in_file("the flat index")
        })?;
        let extents = Arc::new(extents);
        let mut kept = self.kept.lock();
        let evicted = kept.push(number, Arc::clone(&extents));
        drop(kept);
        drop(evicted);
        Ok(extents)
    }
}

/// Expects extents of this flat index, whose `log` is a row of its own log table.
impl Orders for Flat {
    fn order(&self, extent: &Extent) -> Order {
        let log = &self.tables.logs[extent.log as usize];
        let Frame { epoch, sequence, .. } = log.frames.frame(extent.payload);
        Order { epoch, sequence, writer: log.writer }
    }
}

/// Visits the extents of a page from `start` to `end`.
fn visit_page(extents: &[Extent], start: FileOffset, end: FileOffset, visit: &mut dyn FnMut(Extent)) {
    let from = extents.partition_point(|extent| extent.end() <= start);
    for extent in extents[from..].iter().take_while(|extent| extent.start < end) {
        visit(extent.part(start, end));
    }
}

/// Pages of one flat index that a caller holds in memory, to find extents without I/O while it
/// holds a lock. If a page is missing, the caller releases the lock, calls [`load`](Self::load),
/// and takes the lock and begins again.
#[derive(Debug, Default)]
pub struct HeldPages {
    flat: Option<Arc<Flat>>,
    pages: BTreeMap<usize, Arc<Vec<Extent>>>,
    missing: BTreeSet<usize>,
}

impl HeldPages {
    /// Uses the pages of `flat` from now on. Drops the pages of any other flat index.
    pub fn select(&mut self, flat: &Arc<Flat>) {
        if !self.flat.as_ref().is_some_and(|selected| Arc::ptr_eq(selected, flat)) {
            *self = HeldPages { flat: Some(Arc::clone(flat)), ..HeldPages::default() };
        }
    }

    /// Visits the extents of the selected flat index from `start` to `end`, as [`Flat::extents`]
    /// does, but only those in pages in memory. Does no I/O.
    pub fn extents(&mut self, start: FileOffset, end: FileOffset, visit: &mut dyn FnMut(Extent)) {
        let Some(flat) = &self.flat else { return };
        for number in flat.page_numbers(start, end) {
            if let Some(page) = self.pages.get(&number) {
                visit_page(page, start, end, visit);
            } else if let Some(page) = flat.kept_page(number) {
                visit_page(&page, start, end, visit);
                self.pages.insert(number, page);
            } else {
                self.missing.insert(number);
            }
        }
    }

    /// Returns true if a page was missing since the last call of `load`, so that not all extents
    /// were visited.
    pub fn is_incomplete(&self) -> bool {
        !self.missing.is_empty()
    }

    /// Reads the missing pages.
    pub fn load(&mut self) -> Result<()> {
        let Some(flat) = &self.flat else { return Ok(()) };
        for number in std::mem::take(&mut self.missing) {
            self.pages.insert(number, flat.page(number)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_testkit::{MemoryStore, Random};
    use quell_vfs::ErrorKind;

    use crate::format::{
        BLOCK_BYTES, Builder, CONTAINER_VERSION, FrameKind, Frames, HeadKind, PayloadOffset,
    };

    const RECORD: Head = Head {
        kind: HeadKind::Container,
        version: CONTAINER_VERSION,
        block_bytes: BLOCK_BYTES,
        container: 77,
        writer: 0,
        directories: 4,
        process: None,
    };

    /// Returns extents of three logs: a checkpoint of two, interrupted by extents of the third.
    fn some(count: u64) -> (Vec<Extent>, Vec<FlatLog>) {
        let mut random = Random::new(5);
        let mut extents = Vec::new();
        let (mut payloads, mut start) = ([PayloadOffset(0); 3], FileOffset(0));
        for i in 0..count {
            let log = if random.one_in(50) { 2 } else { i % 2 };
            let length = if log == 2 { 1 + random.below(90) as u64 } else { 100 };
            let payload = payloads[log as usize];
            extents.push(Extent { start, payload, length: length as u32, log: log as u32 });
            payloads[log as usize] += length;
            start += 100 + if random.one_in(300) { 1 << 33 } else { 0 };
        }
        let logs = (1..).zip(payloads).map(|(writer, PayloadOffset(bytes))| {
            let mut frames = Frames::new(BLOCK_BYTES.into(), HEAD_BYTES as u64);
            frames.push(FrameKind::Data, 60, bytes.max(1), 1, writer);
            FlatLog { writer, index_offset: 64, indexed: frames.end(), synced: PayloadOffset(0), frames }
        });
        (extents, logs.collect())
    }

    fn written(extents: &[Extent], logs: &[FlatLog]) -> (MemoryStore, u64) {
        let store = MemoryStore::new();
        let file = store.root().create_file(b"flat", 0o644).unwrap();
        let put = |pieces: &[&[u8]], offset| file.write_pieces_at(pieces, offset);
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

    fn read(flat: &Flat, start: FileOffset, end: FileOffset) -> Result<Vec<Extent>> {
        let mut found = Vec::new();
        flat.extents(start, end, &mut |extent| found.push(extent)).map(|()| found)
    }

    #[test]
    fn pushed_extents_are_found_in_each_page() {
        let (extents, logs) = some(30_000);
        let (store, bytes) = written(&extents, &logs);
        let flat = open(&store).unwrap();
        assert_eq!((flat.logs(), flat.size(), flat.tables.pages.len()), (&logs[..], 12345, 4));
        assert_eq!(flat.latest(), Order { epoch: 1, sequence: 3, writer: 3 });
        assert_eq!(read(&flat, FileOffset::ZERO, FileOffset::MAX).unwrap(), extents);
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
            let found = opened.and_then(|flat| read(&flat, FileOffset::ZERO, FileOffset::MAX));
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
    fn runs_that_overlap_or_lie_outside_are_refused_even_with_valid_checksums() {
        let (extents, logs) = some(20);
        let bad: [fn(&mut Vec<Extent>); 3] = [
            |extents| extents[3].log = 7,
            |extents| extents[3].payload = PayloadOffset(1 << 40),
            |extents| extents[3].length = 5000,
        ];
        for change in bad {
            let mut wrong = extents.clone();
            change(&mut wrong);
            let (store, _) = written(&wrong, &logs);
            let flat = open(&store).unwrap();
            assert_eq!(read(&flat, FileOffset::ZERO, FileOffset::MAX).unwrap_err().kind, ErrorKind::Damaged);
        }
    }
}
