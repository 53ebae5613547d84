//! Data that was written to a file and is not yet stored. The functions have no I/O.

use std::collections::BTreeMap;

/// Bytes at offsets of a file. No two extents overlap or touch.
#[derive(Debug, Default, Clone)]
pub struct Extents {
    by_start: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl Extents {
    /// Adds bytes, which replace earlier ones. `offset + data.len()` is at most 2^63 - 1.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len() as u64;
        // Most writes continue the one before.
        if let Some((start, last)) = self.by_start.range_mut(..=offset).next_back()
            && start + last.len() as u64 >= offset
        {
            let skip = (offset - start) as usize;
            if skip + data.len() <= last.len() {
                last[skip..skip + data.len()].copy_from_slice(data);
                return;
            }
            let start = *start;
            self.bytes += skip + data.len() - last.len();
            last.truncate(skip);
            last.extend_from_slice(data);
            return self.join_next(start, end);
        }
        self.by_start.insert(offset, data.to_vec());
        self.bytes += data.len();
        self.join_next(offset, end);
    }

    /// Joins later extents that begin before or at `end` with the extent at `start`, which ends
    /// there.
    fn join_next(&mut self, start: u64, end: u64) {
        while let Some((next, _)) = self.by_start.range(start + 1..=end).next() {
            let next = *next;
            let Some(rest) = self.by_start.remove(&next) else { return };
            let overlap = ((end - next) as usize).min(rest.len());
            self.bytes -= overlap;
            if let Some(extent) = self.by_start.get_mut(&start) {
                extent.extend_from_slice(&rest[overlap..]);
            }
            if overlap < rest.len() {
                return;
            }
        }
    }

    /// Adds all extents of `later`, which replace earlier bytes.
    pub fn add(&mut self, later: &Extents) {
        for (start, data) in &later.by_start {
            self.write(*start, data);
        }
    }

    /// Copies the bytes of a range that the extents have into `into`.
    pub fn copy_to(&self, offset: u64, into: &mut [u8]) {
        let end = offset.saturating_add(into.len() as u64);
        let before = self.by_start.range(..offset).next_back();
        for (start, data) in before.into_iter().chain(self.by_start.range(offset..end)) {
            let (first, last) = (offset.max(*start), end.min(start + data.len() as u64));
            if first < last {
                into[(first - offset) as usize..(last - offset) as usize]
                    .copy_from_slice(&data[(first - start) as usize..(last - start) as usize]);
            }
        }
    }

    /// Returns the parts of the extents in a range.
    pub fn part(&self, offset: u64, length: usize) -> Extents {
        let end = offset.saturating_add(length as u64);
        let mut part = Extents::default();
        let before = self.by_start.range(..offset).next_back();
        for (start, data) in before.into_iter().chain(self.by_start.range(offset..end)) {
            let (first, last) = (offset.max(*start), end.min(start + data.len() as u64));
            if first < last {
                part.write(first, &data[(first - start) as usize..(last - start) as usize]);
            }
        }
        part
    }

    /// Returns whether the extents have all bytes of a range.
    pub fn covers(&self, offset: u64, length: usize) -> bool {
        let found = self.by_start.range(..=offset).next_back();
        found.is_some_and(|(start, data)| start + data.len() as u64 >= offset.saturating_add(length as u64))
    }

    /// Returns the position after the last byte, or 0.
    pub fn end(&self) -> u64 {
        self.by_start.last_key_value().map_or(0, |(start, data)| start + data.len() as u64)
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of extents.
    pub fn count(&self) -> usize {
        self.by_start.len()
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// Returns the extents, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.by_start.iter().map(|(start, data)| (*start, &data[..]))
    }
}

#[cfg(test)]
mod tests {
    use quell_testkit::Random;

    use super::*;

    #[test]
    fn random_writes_agree_with_an_array() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let (mut extents, mut array) = (Extents::default(), vec![None; 300]);
            for _ in 0..60 {
                let (offset, count) = (random.below(250), random.below(50));
                let data = random.bytes(count);
                extents.write(offset as u64, &data);
                array[offset..offset + count].iter_mut().zip(&data).for_each(|(at, byte)| *at = Some(*byte));
                let written = array.iter().flatten().count();
                assert_eq!(extents.bytes(), written, "seed {seed}");
                assert_eq!(extents.iter().map(|(_, data)| data.len()).sum::<usize>(), written);
                let (offset, count) = (random.below(250), 1 + random.below(49));
                let mut found = vec![0; count];
                extents.part(offset as u64, count).copy_to(offset as u64, &mut found);
                let range = &array[offset..offset + count];
                let expected: Vec<u8> = range.iter().map(|byte| byte.unwrap_or(0)).collect();
                assert_eq!(found, expected, "seed {seed}");
                assert_eq!(extents.covers(offset as u64, count), range.iter().all(Option::is_some));
            }
            let ends: Vec<(u64, u64)> =
                extents.iter().map(|(start, data)| (start, start + data.len() as u64)).collect();
            assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "seed {seed}: {ends:?}");
            let end = array.iter().rposition(Option::is_some).map_or(0, |last| last as u64 + 1);
            assert_eq!(extents.end(), end);
        }
    }
}
