//! The descriptors of a process. A fork copies nothing: both tables share the parts that neither
//! has changed, so that many forks of a process with many descriptors cost no more than their
//! lines.

use std::rc::Rc;

use crate::paths::PathId;

/// The file or other object that a descriptor refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    File(PathId),
    /// A pipe, a socket, or memory.
    NoFile,
    Unknown,
}

/// An open descriptor.
#[derive(Debug, Clone, Copy)]
pub struct OpenFile {
    pub target: Target,
    pub close_on_exec: bool,
}

/// Small, because most processes have few open descriptors and there may be many processes.
const SLOTS: usize = 16;
const LEAVES: usize = 32;
const BRANCHES: usize = 128;
/// Higher descriptors are not followed; limits of systems are seldom higher.
const DESCRIPTORS_MAX: usize = SLOTS * LEAVES * BRANCHES;

#[derive(Debug, Clone, Default)]
struct Leaf {
    slots: [Option<OpenFile>; SLOTS],
    /// Bit masks of the open descriptors, and of those that an exec closes.
    open: u32,
    on_exec: u32,
}

type Branch = [Option<Rc<Leaf>>; LEAVES];

#[derive(Debug, Clone, Default)]
pub struct DescriptorTable {
    /// Only as many as were needed.
    branches: Rc<Vec<Option<Rc<Branch>>>>,
}

/// Returns the indexes of a descriptor in branches, leaves and slots.
fn slot_of(descriptor: i32) -> Option<(usize, usize, usize)> {
    let number = usize::try_from(descriptor).ok().filter(|n| *n < DESCRIPTORS_MAX)?;
    Some((number / (SLOTS * LEAVES), number / SLOTS % LEAVES, number % SLOTS))
}

impl DescriptorTable {
    pub fn get(&self, descriptor: i32) -> Option<&OpenFile> {
        let (branch, leaf, slot) = slot_of(descriptor)?;
        self.leaf_at(branch, leaf)?.slots[slot].as_ref()
    }

    fn leaf(&mut self, branch: usize, leaf: usize) -> &mut Option<Rc<Leaf>> {
        let branches = Rc::make_mut(&mut self.branches);
        if branches.len() <= branch {
            branches.resize(branch + 1, None);
        }
        let branch = branches[branch].get_or_insert_default();
        &mut Rc::make_mut(branch)[leaf]
    }

    pub fn set(&mut self, descriptor: i32, open: OpenFile) {
        let Some((branch, leaf, slot)) = slot_of(descriptor) else { return };
        let leaf = Rc::make_mut(self.leaf(branch, leaf).get_or_insert_default());
        leaf.open |= 1 << slot;
        leaf.on_exec &= !(1 << slot);
        leaf.on_exec |= u32::from(open.close_on_exec) << slot;
        leaf.slots[slot] = Some(open);
    }

    pub fn close(&mut self, descriptor: i32) {
        if self.get(descriptor).is_some() {
            self.close_range(i64::from(descriptor), i64::from(descriptor));
        }
    }

    pub fn close_range(&mut self, first: i64, last: i64) {
        self.close_each(first, last, |leaf| leaf.open);
    }

    pub fn exec(&mut self) {
        self.close_each(0, i64::MAX, |leaf| leaf.on_exec);
    }

    /// Marks all of `first..=last` as closed by an exec.
    pub fn mark_range(&mut self, first: i64, last: i64) {
        for (branch, leaf, within) in leaves(first, last) {
            let Some(found) = self.leaf_at(branch, leaf) else { continue };
            if found.open & within & !found.on_exec != 0
                && let Some(leaf) = self.leaf(branch, leaf)
            {
                let leaf = Rc::make_mut(leaf);
                leaf.on_exec |= leaf.open & within;
                for slot in bits(within) {
                    leaf.slots[slot].iter_mut().for_each(|open| open.close_on_exec = true);
                }
            }
        }
    }

    fn leaf_at(&self, branch: usize, leaf: usize) -> Option<&Leaf> {
        self.branches.get(branch)?.as_ref()?[leaf].as_deref()
    }

    /// Closes the descriptors of `first..=last` that are in the mask that `mask_of` returns.
    fn close_each(&mut self, first: i64, last: i64, mask_of: impl Fn(&Leaf) -> u32) {
        for (branch, leaf, within) in leaves(first, last) {
            let Some(found) = self.leaf_at(branch, leaf) else { continue };
            let mask = mask_of(found) & within;
            let is_all = mask == found.open;
            if mask == 0 {
                continue;
            }
            let entry = self.leaf(branch, leaf);
            if is_all {
                *entry = None;
            } else if let Some(leaf) = entry {
                let leaf = Rc::make_mut(leaf);
                leaf.open &= !mask;
                leaf.on_exec &= !mask;
                bits(mask).for_each(|slot| leaf.slots[slot] = None);
            }
        }
    }
}

fn bits_below(slot: usize) -> u32 {
    ((1u64 << slot) - 1) as u32
}

fn bits(mask: u32) -> impl Iterator<Item = usize> {
    (0..SLOTS).filter(move |slot| mask & (1 << slot) != 0)
}

/// Returns the leaves with descriptors of a range, and a mask of these descriptors.
fn leaves(first: i64, last: i64) -> impl Iterator<Item = (usize, usize, u32)> {
    let first = first.clamp(0, DESCRIPTORS_MAX as i64) as usize;
    let end = last.saturating_add(1).clamp(0, DESCRIPTORS_MAX as i64) as usize;
    let numbers = if first < end { first / SLOTS..end.div_ceil(SLOTS) } else { 0..0 };
    numbers.map(move |number| {
        let begin = number * SLOTS;
        let low = first.saturating_sub(begin);
        let high = (end - begin).min(SLOTS);
        (number / LEAVES, number % LEAVES, bits_below(high) & !bits_below(low))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(descriptors: &mut DescriptorTable, numbers: &[i32]) {
        for number in numbers {
            descriptors.set(*number, OpenFile { target: Target::NoFile, close_on_exec: false });
        }
    }

    fn open(descriptors: &DescriptorTable) -> Vec<i32> {
        (-2..70_000).filter(|d| descriptors.get(*d).is_some()).collect()
    }

    #[test]
    fn a_change_of_a_copy_does_not_change_the_original() {
        let mut one = DescriptorTable::default();
        set(&mut one, &[0, 31, 32, 1_023, 1_024, 65_535]);
        let mut other = one.clone();
        other.close(32);
        set(&mut other, &[33]);
        assert_eq!(open(&one), [0, 31, 32, 1_023, 1_024, 65_535]);
        assert_eq!(open(&other), [0, 31, 33, 1_023, 1_024, 65_535]);
    }

    #[test]
    fn descriptors_out_of_range_are_ignored() {
        let mut descriptors = DescriptorTable::default();
        for descriptor in [-1, i32::MIN, 65_536, i32::MAX] {
            set(&mut descriptors, &[descriptor]);
            descriptors.close(descriptor);
        }
        assert!(open(&descriptors).is_empty());
    }

    #[test]
    fn ranges_are_closed_from_end_to_end() {
        for (first, last, left) in [
            (0, i64::MAX, vec![]),
            (3, 33, vec![0, 34]),
            (32, 32, vec![0, 3, 33, 34]),
            (-5, 2, vec![3, 32, 33, 34]),
            (9, 1, vec![0, 3, 32, 33, 34]),
            (i64::MAX, i64::MAX, vec![0, 3, 32, 33, 34]),
            (0, i64::MIN, vec![0, 3, 32, 33, 34]),
        ] {
            let mut descriptors = DescriptorTable::default();
            set(&mut descriptors, &[0, 3, 32, 33, 34]);
            let mut marked = descriptors.clone();
            descriptors.close_range(first, last);
            assert_eq!(open(&descriptors), left, "{first} to {last}");
            marked.mark_range(first, last);
            assert_eq!(open(&marked).len(), 5);
            marked.exec();
            assert_eq!(open(&marked), left, "{first} to {last}, by exec");
        }
    }
}
