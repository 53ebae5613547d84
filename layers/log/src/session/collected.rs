//! The data that the writers of one node have collected and not yet written, by file range. If two
//! writers write to the same range, the earlier writer's frame is finished first. Pure functions on
//! values, no I/O.

use std::collections::BTreeMap;

use crate::format::{FileOffset, Run};

/// Ranges of the file, which do not overlap, each with its writer.
#[derive(Debug, Default)]
pub struct Collected {
    /// Maps the start of a range to its end and its writer.
    ranges: BTreeMap<FileOffset, (FileOffset, u64)>,
}

impl Collected {
    /// Returns the writers, other than `writer`, that have collected a part of `start..end`. A
    /// writer is returned once for each of its ranges.
    pub fn rivals(&self, writer: u64, start: FileOffset, end: FileOffset) -> Vec<u64> {
        let others = self.overlapping(start, end).filter(|(_, (_, owner))| *owner != writer);
        others.map(|(_, (_, owner))| owner).collect()
    }

    fn overlapping(
        &self,
        start: FileOffset,
        end: FileOffset,
    ) -> impl Iterator<Item = (FileOffset, (FileOffset, u64))> {
        let before = self.ranges.range(..start).next_back().filter(move |(_, (stop, _))| *stop > start);
        before.into_iter().chain(self.ranges.range(start..end)).map(|(at, range)| (*at, *range))
    }

    /// Records that `writer` collects `start..end`. No other writer may have collected a part of
    /// it.
    pub fn add(&mut self, writer: u64, start: FileOffset, end: FileOffset) {
        let (mut from, mut to) = (start, end);
        if let Some((at, (stop, owner))) = self.ranges.range(..=start).next_back()
            && *owner == writer
            && *stop >= start
        {
            (from, to) = (*at, to.max(*stop));
        }
        let hidden: Vec<_> = self.overlapping(from, to).collect();
        for (at, (stop, _)) in hidden {
            self.ranges.remove(&at);
            to = to.max(stop);
        }
        self.ranges.insert(from, (to, writer));
    }

    /// Returns the end of the last collected range, or 0 if there is none.
    pub fn end(&self) -> FileOffset {
        // Ranges do not overlap, so the last one also has the largest end.
        self.ranges.last_key_value().map(|(_, (end, _))| *end).unwrap_or_default()
    }

    /// Removes all ranges of `writer`, which has ended.
    pub fn forget(&mut self, writer: u64) {
        self.ranges.retain(|_, (_, owner)| *owner != writer);
    }

    /// Removes these runs, which were written, from the ranges of `writer`. The rest of a range
    /// that was written in part stays.
    pub fn remove(&mut self, writer: u64, runs: &[Run]) {
        if self.ranges.is_empty() {
            return;
        }
        for run in runs {
            for i in 0..run.count {
                self.remove_range(writer, run.start_of(i), run.start_of(i) + run.length);
            }
        }
    }

    /// Removes `start..end` from the ranges of `writer`.
    pub fn remove_range(&mut self, writer: u64, start: FileOffset, end: FileOffset) {
        let own: Vec<_> = self.overlapping(start, end).filter(|(_, (_, owner))| *owner == writer).collect();
        for (at, (stop, _)) in own {
            self.ranges.remove(&at);
            if at < start {
                self.ranges.insert(at, (start, writer));
            }
            if stop > end {
                self.ranges.insert(end, (stop, writer));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Runs;
    use quell_testkit::Random;

    #[test]
    fn rivals_are_the_other_writers_with_collected_data_in_the_range() {
        const SPACE: usize = 200;
        let mut random = Random::new(8);
        for _ in 0..200 {
            let mut collected = Collected::default();
            let mut owners = [0u64; SPACE];
            let mut runs: [Runs; 4] = Default::default();
            for _ in 0..80 {
                let writer = 1 + random.below(3) as u64;
                let start = random.below(SPACE - 1);
                let end = start + 1 + random.below((SPACE - start).min(30));
                let mut expected: Vec<u64> = owners[start..end].to_vec();
                expected.retain(|owner| *owner != 0 && *owner != writer);
                let mut found = collected.rivals(writer, FileOffset(start as u64), FileOffset(end as u64));
                for list in [&mut expected, &mut found] {
                    list.sort_unstable();
                    list.dedup();
                }
                assert_eq!(found, expected);
                for rival in found {
                    collected.remove(rival, runs[rival as usize].finish());
                    runs[rival as usize].clear();
                    owners.iter_mut().filter(|owner| **owner == rival).for_each(|owner| *owner = 0);
                }
                collected.add(writer, FileOffset(start as u64), FileOffset(end as u64));
                runs[writer as usize].push(FileOffset(start as u64), (end - start) as u64);
                owners[start..end].fill(writer);
            }
        }
    }

    #[test]
    fn a_range_that_is_written_in_part_keeps_its_other_bytes() {
        let mut collected = Collected::default();
        collected.add(1, FileOffset(0), FileOffset(100));
        collected.remove(1, &[Run::one(FileOffset(0), 40), Run::one(FileOffset(60), 10)]);
        let rivals = |start, end| !collected.rivals(2, FileOffset(start), FileOffset(end)).is_empty();
        let expected = [(0, 40, false), (40, 60, true), (60, 70, false), (70, 100, true)];
        expected.iter().for_each(|(start, end, found)| assert_eq!(rivals(*start, *end), *found, "{start}"));
        assert_eq!(collected.end(), FileOffset(100));
    }

    #[test]
    fn consecutive_data_of_one_writer_is_one_range() {
        let mut collected = Collected::default();
        (0..1000).for_each(|i| collected.add(1, FileOffset(i * 10), FileOffset(i * 10 + 10)));
        assert_eq!(collected.ranges.len(), 1);
    }
}
