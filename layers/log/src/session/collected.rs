//! The data that the writers of one node have collected and not yet written, by file range. If two
//! writers write to the same range, the earlier writer's frame is finished first. Pure functions on
//! values, no I/O.

use std::collections::BTreeMap;

use crate::format::runs::Run;

/// Ranges of the file, which do not overlap, each with its writer.
#[derive(Debug, Default)]
pub struct Collected {
    /// Maps the start of a range to its end and its writer.
    stretches: BTreeMap<u64, (u64, u64)>,
}

impl Collected {
    /// Returns the writers, other than `writer`, that have collected a part of `start..end`. A
    /// writer is returned once for each of its ranges.
    pub fn rivals(&self, writer: u64, start: u64, end: u64) -> Vec<u64> {
        let others = self.overlapping(start, end).filter(|(_, (_, whose))| *whose != writer);
        others.map(|(_, (_, whose))| whose).collect()
    }

    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, (u64, u64))> {
        let before = self.stretches.range(..start).next_back().filter(move |(_, (stop, _))| *stop > start);
        before.into_iter().chain(self.stretches.range(start..end)).map(|(at, stretch)| (*at, *stretch))
    }

    /// Records that `writer` collects `start..end`. No other writer may have collected a part of
    /// it.
    pub fn add(&mut self, writer: u64, start: u64, end: u64) {
        let (mut from, mut to) = (start, end);
        if let Some((at, (stop, whose))) = self.stretches.range(..=start).next_back()
            && *whose == writer
            && *stop >= start
        {
            (from, to) = (*at, to.max(*stop));
        }
        let hidden: Vec<_> = self.overlapping(from, to).collect();
        for (at, (stop, _)) in hidden {
            self.stretches.remove(&at);
            to = to.max(stop);
        }
        self.stretches.insert(from, (to, writer));
    }

    /// Returns the end of the last collected range, or 0 if there is none.
    pub fn end(&self) -> u64 {
        // Ranges do not overlap, so the last one also has the largest end.
        self.stretches.last_key_value().map_or(0, |(_, (end, _))| *end)
    }

    /// Removes all ranges of `writer`.
    pub fn forget(&mut self, writer: u64) {
        self.stretches.retain(|_, (_, whose)| *whose != writer);
    }

    /// Removes the ranges of `writer` that these runs contain, after they were written.
    pub fn remove(&mut self, writer: u64, runs: &[Run]) {
        if self.stretches.is_empty() {
            return;
        }
        for run in runs {
            for i in 0..run.count {
                let (start, end) = (run.start_of(i), run.start_of(i) + run.length);
                let own: Vec<u64> = self
                    .overlapping(start, end)
                    .filter(|(_, (_, whose))| *whose == writer)
                    .map(|(at, _)| at)
                    .collect();
                for at in own {
                    self.stretches.remove(&at);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::runs::Runs;
    use quell_testkit::Random;

    #[test]
    fn rivals_are_those_who_have_collected_some_of_it() {
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
                let mut found = collected.rivals(writer, start as u64, end as u64);
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
                collected.add(writer, start as u64, end as u64);
                runs[writer as usize].push(start as u64, (end - start) as u64);
                owners[start..end].fill(writer);
            }
        }
    }

    #[test]
    fn what_goes_on_is_one_stretch() {
        let mut collected = Collected::default();
        (0..1000).for_each(|i| collected.add(1, i * 10, i * 10 + 10));
        assert_eq!(collected.stretches.len(), 1);
    }
}
