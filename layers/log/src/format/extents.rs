//! Resolves which log holds which bytes of a file. The result is a list of extents that do not
//! overlap. Pure functions on values, no I/O.

use std::collections::{BTreeMap, BinaryHeap};

use crate::format::frames::Order;
use crate::format::offsets::{FileOffset, PayloadOffset};

/// Bytes that are consecutive in the file and in the payload of one log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    pub start: FileOffset,
    pub payload: PayloadOffset,
    /// At least 1, and at most the payload of a frame.
    pub length: u32,
    /// The log's row in the reader's table of logs.
    pub log: u32,
}

impl Extent {
    pub fn end(&self) -> FileOffset {
        self.start + u64::from(self.length)
    }

    /// Returns the part of the extent within `start..end`, which must overlap the extent.
    pub fn part(&self, start: FileOffset, end: FileOffset) -> Extent {
        let from = start.max(self.start);
        let to = end.min(self.end());
        let payload = self.payload + (from - self.start);
        Extent { start: from, payload, length: (to - from) as u32, log: self.log }
    }
}

/// Returns the order of an extent. All bytes of an extent are written at once and have the same
/// order.
pub trait Orders {
    fn order(&self, extent: &Extent) -> Order;
}

/// Resolves extents that may overlap: of two overlapping extents, the later one in order hides the
/// other. Within one frame (equal order), the extent with the larger payload offset is the later
/// one. The result is sorted and does not overlap.
pub fn resolve(mut extents: Vec<Extent>, orders: &dyn Orders) -> Vec<Extent> {
    // The sort is stable and detects sorted sequences, so shares that were resolved separately and
    // are adjacent here are not sorted again.
    extents.sort();
    if extents.windows(2).all(|pair| pair[0].end() <= pair[1].start) {
        return extents;
    }
    let mut resolved: Vec<Extent> = Vec::with_capacity(extents.len());
    let mut coming = extents.into_iter().peekable();
    // The remaining ends of extents whose fronts are hidden by other extents. The smallest start
    // comes first.
    let mut left: BinaryHeap<std::cmp::Reverse<Extent>> = BinaryHeap::new();
    loop {
        let from_left = match (left.peek(), coming.peek()) {
            (Some(rest), Some(next)) => rest.0 < *next,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => return resolved,
        };
        let next = if from_left { left.pop().map(|rest| rest.0) } else { coming.next() };
        let next = next.expect("it was there");
        let Some(last) = resolved.last_mut().filter(|last| last.end() > next.start) else {
            resolved.push(next);
            continue;
        };
        let (last_end, next_end) = (last.end(), next.end());
        if is_later(&next, last, orders) {
            if last_end > next_end {
                left.push(std::cmp::Reverse(last.part(next_end, last_end)));
            }
            if last.start == next.start {
                *last = next;
            } else {
                *last = last.part(last.start, next.start);
                resolved.push(next);
            }
        } else if next_end > last_end {
            left.push(std::cmp::Reverse(next.part(last_end, next_end)));
        }
    }
}

fn is_later(a: &Extent, b: &Extent, orders: &dyn Orders) -> bool {
    (orders.order(a), a.payload) > (orders.order(b), b.payload)
}

/// A range of the file that lies in one log, or in none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// The range is in a log.
    Data(Extent),
    /// No writer has written `start..end`; the range reads as zeros.
    Hole(FileOffset, FileOffset),
}

/// Extents that can be changed between reads. Most are in a sorted list; the extents that were
/// added since the list was made are in a tree.
#[derive(Debug, Clone, Default)]
pub struct Extents {
    base: Vec<Extent>,
    /// Extents by start. They hide the extents of `base` in the same range.
    live: BTreeMap<FileOffset, Extent>,
    latest: Order,
}

impl Extents {
    /// Creates extents from a sorted list without overlaps, of which none is later than `latest`.
    pub fn new(base: Vec<Extent>, latest: Order) -> Extents {
        debug_assert!(base.windows(2).all(|pair| pair[0].end() <= pair[1].start));
        Extents { base, live: BTreeMap::new(), latest }
    }

    /// Returns the end of the last extent, or 0.
    pub fn end(&self) -> FileOffset {
        let live = self.live.last_key_value().map(|(_, extent)| extent.end());
        live.max(self.base.last().map(Extent::end)).unwrap_or_default()
    }

    /// Returns an upper bound for the number of extents. Some in the list may be hidden.
    pub fn len(&self) -> usize {
        self.base.len() + self.live.len()
    }

    /// Adds an extent that was written with `order`. In ranges with a later extent, that extent
    /// stays.
    pub fn insert(&mut self, extent: Extent, order: Order, orders: &dyn Orders) {
        if order >= self.latest {
            self.latest = order;
            self.cover(extent);
        } else {
            let mut parts = Vec::new();
            self.pieces(extent.start, extent.end(), &mut |piece| {
                let (start, end) = match piece {
                    Piece::Hole(start, end) => (start, end),
                    Piece::Data(known) if is_later(&extent, &known, orders) => (known.start, known.end()),
                    Piece::Data(_) => return,
                };
                parts.push(extent.part(start, end));
            });
            parts.into_iter().for_each(|part| self.cover(part));
        }
        // The tree is merged into the list when it has a fixed fraction of the list's extents, so
        // that the cost is spread over many inserts.
        if self.live.len() > 4096 + self.base.len() / 4 {
            self.fold();
        }
    }

    /// Inserts `extent` into the tree, and removes the parts of others that it hides.
    fn cover(&mut self, extent: Extent) {
        let (start, end) = (extent.start, extent.end());
        if let Some((_, before)) = self.live.range_mut(..start).next_back()
            && before.end() > start
        {
            let whole = *before;
            *before = whole.part(whole.start, start);
            if whole.end() > end {
                self.live.insert(end, whole.part(end, whole.end()));
            }
        }
        while let Some((at, hidden)) = self.live.range(start..end).next().map(|(at, extent)| (*at, *extent)) {
            self.live.remove(&at);
            if hidden.end() > end {
                self.live.insert(end, hidden.part(end, hidden.end()));
            }
        }
        self.live.insert(start, extent);
    }

    fn fold(&mut self) {
        let mut all = Vec::with_capacity(self.base.len() + self.live.len());
        self.pieces(FileOffset::ZERO, FileOffset::MAX, &mut |piece| {
            if let Piece::Data(extent) = piece {
                all.push(extent);
            }
        });
        self.base = all;
        self.live.clear();
    }

    /// Truncates each extent at the file offset that `limit` returns for it.
    pub fn clip(&mut self, limit: &dyn Fn(&Extent) -> FileOffset) {
        self.fold();
        self.base.retain_mut(|extent| {
            let end = limit(extent).min(extent.end());
            if end <= extent.start {
                return false;
            }
            *extent = extent.part(extent.start, end);
            true
        });
    }

    /// Visits the pieces from `start` to `end`, in order and without gaps.
    pub fn pieces(&self, start: FileOffset, end: FileOffset, visit: &mut dyn FnMut(Piece)) {
        let mut at = start;
        let first = self.live.range(..start).next_back().filter(|(_, extent)| extent.end() > start);
        let live = first.into_iter().chain(self.live.range(start..end));
        let mut base = self.base.partition_point(|extent| extent.end() <= start);
        for (_, extent) in live {
            self.base_pieces(&mut base, at, extent.start.max(start), visit);
            let part = extent.part(start, end);
            at = part.end();
            visit(Piece::Data(part));
        }
        self.base_pieces(&mut base, at, end, visit);
    }

    /// Visits the pieces of the list alone, from `at` to `end`. `next` is the index of the first
    /// extent that ends after `at`, and is advanced.
    fn base_pieces(
        &self,
        next: &mut usize,
        mut at: FileOffset,
        end: FileOffset,
        visit: &mut dyn FnMut(Piece),
    ) {
        while at < end {
            match self.base.get(*next) {
                Some(extent) if extent.end() <= at => *next += 1,
                Some(extent) if extent.start < end => {
                    if extent.start > at {
                        visit(Piece::Hole(at, extent.start));
                    }
                    let part = extent.part(at, end);
                    at = part.end();
                    visit(Piece::Data(part));
                }
                _ => {
                    visit(Piece::Hole(at, end));
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_testkit::Random;

    const SPACE: usize = 300;

    /// The sequence of each write, by the payload offset at which the write begins.
    struct ByPayload(Vec<(PayloadOffset, u64)>);

    impl Orders for ByPayload {
        fn order(&self, extent: &Extent) -> Order {
            let found = self.0.partition_point(|(payload, _)| *payload <= extent.payload);
            Order { epoch: 1, sequence: self.0[found - 1].1, writer: 0 }
        }
    }

    /// Returns the payload offset of each byte of the file, after all writes in their order.
    fn painted(extents: &[Extent], orders: &ByPayload) -> Vec<Option<PayloadOffset>> {
        let mut bytes = vec![None; SPACE];
        let mut sorted = extents.to_vec();
        sorted.sort_by_key(|extent| (orders.order(extent), extent.payload));
        for extent in sorted {
            for i in 0..u64::from(extent.length) {
                bytes[(extent.start + i).0 as usize] = Some(extent.payload + i);
            }
        }
        bytes
    }

    fn read(extents: &Extents, start: usize, end: usize) -> Vec<Option<PayloadOffset>> {
        let mut found = Vec::new();
        let (start, end) = (FileOffset(start as u64), FileOffset(end as u64));
        extents.pieces(start, end, &mut |piece| match piece {
            Piece::Hole(from, to) => found.extend((0..to - from).map(|_| None)),
            Piece::Data(extent) => {
                assert_eq!(extent.start, start + found.len() as u64);
                found.extend((0..u64::from(extent.length)).map(|i| Some(extent.payload + i)));
            }
        });
        found
    }

    fn histories(seed: u64, check: impl Fn(&mut Random, &[Extent], &ByPayload)) {
        let mut random = Random::new(seed);
        for _ in 0..400 {
            let mut payload = PayloadOffset(0);
            let mut orders = Vec::new();
            let mut extents = Vec::new();
            let most = *random.pick(&[3, 20, 100]);
            for _ in 0..random.below(50) {
                let length = 1 + random.below(most);
                let start = random.below(SPACE - length);
                let start = FileOffset(start as u64);
                extents.push(Extent { start, payload, length: length as u32, log: 0 });
                orders.push((payload, random.below(30) as u64));
                payload += length as u64;
            }
            check(&mut random, &extents, &ByPayload(orders));
        }
    }

    #[test]
    fn resolved_extents_are_those_of_writes_in_order() {
        histories(3, |_, extents, orders| {
            let resolved = resolve(extents.to_vec(), orders);
            let view = Extents::new(resolved, Order::default());
            assert_eq!(read(&view, 0, SPACE), painted(extents, orders));
        });
    }

    #[test]
    fn inserted_extents_are_resolved_in_any_order() {
        histories(4, |random, extents, orders| {
            let known = random.below(extents.len() + 1);
            let (first, rest) = extents.split_at(known);
            let latest = first.iter().map(|extent| orders.order(extent)).max().unwrap_or_default();
            let mut view = Extents::new(resolve(first.to_vec(), orders), latest);
            for extent in rest {
                view.insert(*extent, orders.order(extent), orders);
                if random.one_in(10) {
                    view.fold();
                }
            }
            let expected = painted(extents, orders);
            assert_eq!(read(&view, 0, SPACE), expected);
            for _ in 0..10 {
                let start = random.below(SPACE);
                let end = start + random.below(SPACE - start);
                assert_eq!(read(&view, start, end), expected[start..end]);
            }
            let end = expected.iter().rposition(Option::is_some).map_or(0, |last| last as u64 + 1);
            assert_eq!(view.end(), FileOffset(end));
            let limit = random.below(SPACE);
            view.clip(&|_| FileOffset(limit as u64));
            assert_eq!(read(&view, 0, limit), expected[..limit]);
            assert!(view.end() <= FileOffset(limit as u64));
        });
    }
}
