//! The bytes that one owner has locked, as a sorted list of ranges that do not touch. The modes are
//! not recorded: the file system below keeps them.

/// The bytes that one owner has locked.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct LockedBytes(Vec<(u64, u64)>);

impl LockedBytes {
    /// Returns true if no byte is locked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the bytes from `first` to `last`, both included.
    pub fn add(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first, last);
        self.0.retain(|(start, end)| {
            let touches = *start <= last.saturating_add(1) && first <= end.saturating_add(1);
            if touches {
                (first, last) = (first.min(*start), last.max(*end));
            }
            !touches
        });
        let at = self.0.partition_point(|(start, _)| *start < first);
        self.0.insert(at, (first, last));
    }

    /// Removes the bytes from `first` to `last`, both included.
    pub fn remove(&mut self, first: u64, last: u64) {
        let mut left = Vec::with_capacity(self.0.len() + 1);
        for (start, end) in self.0.drain(..) {
            if start < first {
                left.push((start, end.min(first - 1)));
            }
            if end > last {
                left.push((start.max(last + 1), end));
            }
        }
        self.0 = left;
    }
}

#[cfg(test)]
mod tests {
    use quell_testkit::Random;

    use super::*;

    #[test]
    fn ranges_are_merged_and_divided_as_in_a_set_of_bytes() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let (mut ranges, mut bytes) = (LockedBytes::default(), [false; 24]);
            for _ in 0..40 {
                let first = random.below(24);
                let last = first + random.below(24 - first);
                let adds = random.one_in(2);
                match adds {
                    true => ranges.add(first as u64, last as u64),
                    false => ranges.remove(first as u64, last as u64),
                }
                bytes[first..=last].fill(adds);
                let mut expected: Vec<(u64, u64)> = Vec::new();
                for at in (0..24_u64).filter(|at| bytes[*at as usize]) {
                    match expected.last_mut() {
                        Some((_, last)) if *last + 1 == at => *last = at,
                        _ => expected.push((at, at)),
                    }
                }
                assert_eq!(ranges.0, expected, "seed {seed}");
                assert_eq!(ranges.is_empty(), expected.is_empty());
            }
        }
        let mut ranges = LockedBytes::default();
        ranges.add(5, u64::MAX);
        ranges.add(u64::MAX, u64::MAX);
        ranges.remove(6, u64::MAX);
        assert_eq!(ranges, LockedBytes(vec![(5, 5)]));
    }
}
