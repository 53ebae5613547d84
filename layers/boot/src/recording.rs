//! The blocks that a start reads: a set for each file, in the order of first use, with the number
//! of recordings in which each block was read. The sets are the same in each run, but their order
//! is not, so recordings are merged as sets.

use std::collections::HashMap;

/// Blocks, identified by file number and block number.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    order: Vec<(u32, u32)>,
    seen: HashMap<(u32, u32), u32>,
    recordings: u32,
}

/// One block of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// The number of the file.
    pub file: u32,
    /// The number of the block in the file.
    pub block: u32,
    /// Number of recordings in which the block was read; 0 for unread blocks.
    pub recordings: u32,
}

impl Recording {
    /// Returns an empty recording of one start.
    pub fn new() -> Recording {
        Recording { recordings: 1, ..Recording::default() }
    }

    /// Returns the recording that is stored in an image.
    pub fn from_blocks(blocks: impl Iterator<Item = Recorded>, recordings: u32) -> Recording {
        let mut recording = Recording { recordings, ..Recording::default() };
        for Recorded { file, block, recordings } in blocks {
            recording.order.push((file, block));
            recording.seen.insert((file, block), recordings);
        }
        recording
    }

    /// Adds blocks that the start has read.
    pub fn add(&mut self, file: u32, blocks: std::ops::Range<u32>) {
        for block in blocks {
            self.seen.entry((file, block)).or_insert_with(|| {
                self.order.push((file, block));
                1
            });
        }
    }

    /// Merges the recording of another start. `file` maps the other recording's file numbers to the
    /// file numbers of this recording; `None` means that the file has changed, and its blocks are
    /// dropped.
    pub fn merge(&mut self, other: &Recording, file: impl Fn(u32) -> Option<u32>) {
        // The counts come from a file and may have any value.
        self.recordings = self.recordings.saturating_add(other.recordings);
        for (other_file, block) in &other.order {
            let Some(own_file) = file(*other_file) else { continue };
            let times = other.seen[&(*other_file, *block)];
            match self.seen.entry((own_file, *block)) {
                std::collections::hash_map::Entry::Occupied(mut seen) => {
                    *seen.get_mut() = seen.get().saturating_add(times);
                }
                std::collections::hash_map::Entry::Vacant(free) => {
                    free.insert(times);
                    self.order.push((own_file, *block));
                }
            }
        }
    }

    /// Adds the blocks of older recordings, which this recording completes: its own blocks count as
    /// read in all older recordings. `file`: as for [`merge`](Recording::merge).
    pub fn complete_older(&mut self, older: &Recording, file: impl Fn(u32) -> Option<u32>) {
        self.recordings = older.recordings;
        self.seen.values_mut().for_each(|times| *times = older.recordings);
        for (older_file, block) in &older.order {
            let Some(own_file) = file(*older_file) else { continue };
            let times = older.seen[&(*older_file, *block)];
            if self.seen.insert((own_file, *block), times).is_none() {
                self.order.push((own_file, *block));
            }
        }
    }

    /// Returns the number of merged recordings.
    pub fn recordings(&self) -> u32 {
        self.recordings
    }

    /// Returns the number of different blocks.
    pub fn blocks(&self) -> usize {
        self.order.len()
    }

    /// Returns the blocks in the order of first use.
    pub fn all(&self) -> impl Iterator<Item = Recorded> {
        self.order.iter().map(|key| Recorded { file: key.0, block: key.1, recordings: self.seen[key] })
    }

    /// Returns the blocks that were read in at least `least` recordings, and of these at most
    /// `blocks`, preferring the blocks that were read most often. The order is kept.
    pub fn chosen(&self, least: u32, blocks: usize) -> Recording {
        let mut hottest: Vec<(u32, usize)> = self
            .order
            .iter()
            .enumerate()
            .filter(|(_, key)| self.seen[*key] >= least)
            .map(|(at, key)| (self.seen[key], at))
            .collect();
        hottest.sort_by_key(|(times, at)| (std::cmp::Reverse(*times), *at));
        hottest.truncate(blocks);
        hottest.sort_by_key(|(_, at)| *at);
        let order: Vec<_> = hottest.into_iter().map(|(_, at)| self.order[at]).collect();
        let seen = order.iter().map(|key| (*key, self.seen[key])).collect();
        Recording { order, seen, recordings: self.recordings }
    }

    /// Adds the missing blocks of a file with this many blocks, with the count of its most frequent
    /// block, unless the recording would then have more than `blocks_max` blocks. Does nothing if
    /// the recording has no block of the file.
    pub fn complete(&mut self, file: u32, blocks: u32, blocks_max: usize) {
        // A sparse file can have any number of blocks.
        if blocks as usize > blocks_max {
            return;
        }
        let here: Vec<u32> = (0..blocks).filter_map(|block| self.seen.get(&(file, block)).copied()).collect();
        let Some(hottest) = here.iter().max() else { return };
        if self.order.len() + (blocks as usize - here.len()) > blocks_max {
            return;
        }
        for block in 0..blocks {
            self.seen.entry((file, block)).or_insert_with(|| {
                self.order.push((file, block));
                *hottest
            });
        }
    }

    /// Adds blocks that no recording has read, after all other blocks. Files without a block that
    /// was read are left out.
    pub fn add_unread(&mut self, blocks: impl IntoIterator<Item = (u32, u32)>) {
        let files = self.blocks_by_file();
        for (file, block) in blocks {
            if files.contains_key(&file) {
                self.seen.entry((file, block)).or_insert_with(|| {
                    self.order.push((file, block));
                    0
                });
            }
        }
    }

    /// Adds the missing blocks of files as unread blocks, at most `blocks_max`. `files`: the file
    /// numbers, and the numbers of blocks. Files of which the fewest blocks are missing come first.
    pub fn complete_unread(&mut self, files: impl Iterator<Item = (u32, u32)>, blocks_max: usize) {
        let here = self.blocks_by_file();
        let missing = |(file, blocks): (u32, u32)| {
            let missing = blocks.checked_sub(*here.get(&file)?)?;
            (missing > 0).then_some((missing, file, blocks))
        };
        let mut missing: Vec<_> = files.filter_map(missing).collect();
        missing.sort_unstable();
        let mut left = blocks_max;
        let mut chosen = Vec::new();
        for (missing, file, blocks) in missing {
            let Some(rest) = left.checked_sub(missing as usize) else { break };
            left = rest;
            chosen.push((file, blocks));
        }
        // Files in the order of their first use.
        chosen.sort_unstable();
        self.add_unread(
            chosen.into_iter().flat_map(|(file, blocks)| (0..blocks).map(move |block| (file, block))),
        );
    }

    /// Returns the number of blocks of each file with blocks.
    fn blocks_by_file(&self) -> HashMap<u32, u32> {
        let mut files = HashMap::new();
        for (file, _) in &self.order {
            *files.entry(*file).or_default() += 1;
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(recording: &Recording) -> Vec<(u32, u32, u32)> {
        recording.all().map(|r| (r.file, r.block, r.recordings)).collect()
    }

    #[test]
    fn a_block_is_recorded_once_at_its_first_read() {
        let mut recording = Recording::new();
        recording.add(1, 5..7);
        recording.add(0, 0..1);
        recording.add(1, 4..6);
        assert_eq!(blocks(&recording), [(1, 5, 1), (1, 6, 1), (0, 0, 1), (1, 4, 1)]);
    }

    #[test]
    fn recordings_are_merged_as_sets_with_counts() {
        let (mut one, mut two) = (Recording::new(), Recording::new());
        one.add(0, 0..2);
        two.add(7, 1..3);
        two.add(8, 0..1);
        one.merge(&two, |file| (file == 7).then_some(0));
        assert_eq!((one.recordings(), blocks(&one)), (2, vec![(0, 0, 1), (0, 1, 2), (0, 2, 1)]));
    }

    #[test]
    fn blocks_that_complete_older_recordings_count_in_all_of_them() {
        let (mut older, mut new) = (Recording::new(), Recording::new());
        older.add(7, 0..2);
        older.add(8, 0..1);
        let mut second = Recording::new();
        second.add(7, 1..2);
        older.merge(&second, Some);
        new.add(0, 1..3);
        new.complete_older(&older, |file| (file == 7).then_some(0));
        // Block 1 was read in both older recordings, block 0 in one, and block 2 is new.
        assert_eq!((new.recordings(), blocks(&new)), (2, vec![(0, 1, 2), (0, 2, 2), (0, 0, 1)]));
    }

    #[test]
    fn forged_counts_do_not_overflow() {
        let made_up = Recorded { file: 0, block: 0, recordings: u32::MAX };
        let forged = Recording::from_blocks([made_up].into_iter(), u32::MAX);
        let mut joined = forged.clone();
        joined.merge(&forged, Some);
        assert_eq!((joined.recordings(), blocks(&joined)), (u32::MAX, vec![(0, 0, u32::MAX)]));
    }

    #[test]
    fn a_file_is_completed_within_the_limit_and_only_if_it_is_recorded() {
        let mut recording = Recording::new();
        recording.add(0, 1..2);
        recording.merge(&recording.clone(), Some);
        recording.complete(0, 3, 2);
        assert_eq!(recording.blocks(), 1, "three blocks are more than two");
        recording.complete(0, 3, 3);
        recording.complete(1, 3, usize::MAX);
        // The blocks of such a file are not visited.
        recording.complete(0, u32::MAX, 4);
        assert_eq!(blocks(&recording), [(0, 1, 2), (0, 0, 2), (0, 2, 2)]);
    }

    #[test]
    fn unread_blocks_follow_all_others_in_files_that_were_read() {
        let mut recording = Recording::new();
        recording.add(1, 1..2);
        recording.add(0, 0..1);
        recording.add_unread([(0, 1), (1, 1), (2, 0), (1, 0)]);
        assert_eq!(blocks(&recording), [(1, 1, 1), (0, 0, 1), (0, 1, 0), (1, 0, 0)]);
    }

    #[test]
    fn files_with_the_fewest_missing_blocks_are_completed_within_the_limit() {
        let completed = |blocks_max| {
            let mut recording = Recording::new();
            recording.add(2, 0..1);
            recording.add(0, 5..7);
            recording.add(1, 0..3);
            // File 3 was not read, and file 1 has no more blocks.
            let files = [(0, 7), (1, 3), (2, 4), (3, 1)];
            recording.complete_unread(files.into_iter(), blocks_max);
            let unread: Vec<_> = recording.all().skip(6).map(|r| (r.file, r.block, r.recordings)).collect();
            unread
        };
        assert_eq!(completed(2), []);
        assert_eq!(completed(7), [(2, 1, 0), (2, 2, 0), (2, 3, 0)]);
        let file_0 = (0..5).map(|block| (0, block, 0));
        assert_eq!(completed(8), file_0.chain(completed(7)).collect::<Vec<_>>());
        // The blocks of such a file are not visited.
        let mut recording = Recording::new();
        recording.add(0, 0..1);
        recording.complete_unread([(0, u32::MAX)].into_iter(), 4);
        assert_eq!(recording.blocks(), 1);
    }

    #[test]
    fn the_most_frequent_blocks_are_selected_in_order() {
        let mut one = Recording::new();
        one.add(0, 0..4);
        let mut two = Recording::new();
        two.add(0, 2..5);
        one.merge(&two, Some);
        assert_eq!(blocks(&one.chosen(2, 10)), [(0, 2, 2), (0, 3, 2)]);
        assert_eq!(blocks(&one.chosen(1, 3)), [(0, 0, 1), (0, 2, 2), (0, 3, 2)]);
    }
}
