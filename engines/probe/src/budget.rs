//! What a probe may ask for: the cap on operations, from which removing is set aside as soon as a name is made, and
//! what each part of a probe gets of it. Numbers only.

use std::time::Duration;

use crate::kind::Kind;

/// What the user allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Everything counted, removing included.
    pub operations: u64,
    /// Of measuring.
    pub duration: Duration,
    /// Threads.
    pub parallelism: u32,
}

/// Of the operations allowed, the part that may go into making and removing names: one in so many.
const NAMES_SHARE: u64 = 10;
/// The same for each kind that is measured alone.
const KIND_SHARE: u64 = 50;
/// The shape of one directory of the paper's tree.
const DIRECTORIES_MAX: u64 = 16;
const FILES: u64 = 17;

/// What making a name takes, and what its removal will take.
pub const NAME_OPERATIONS: u64 = Kind::Create.operations() + Kind::Remove.operations();

impl Limits {
    /// Directories and files in each.
    pub fn shape(&self) -> (u32, u32) {
        let names = self.operations / NAMES_SHARE / NAME_OPERATIONS;
        let directories = (names / (FILES + 1)).clamp(1, DIRECTORIES_MAX);
        let files = (names / directories).saturating_sub(1).clamp(1, FILES);
        (directories as u32, files as u32)
    }

    /// For one kind alone.
    pub fn kind_operations(&self) -> u64 {
        self.operations / KIND_SHARE
    }

    pub fn kind_duration(&self) -> Duration {
        self.duration / 20
    }

    /// A fifth of the time for making names: on a slow file system fewer are made.
    pub fn making_duration(&self) -> Duration {
        self.duration / 5
    }
}

/// Operations allowed, asked, and set aside for removing.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    spent: u64,
    reserved: u64,
}

impl Budget {
    pub fn new(limit: u64) -> Budget {
        Budget { limit, spent: 0, reserved: 0 }
    }

    /// What may still be asked for.
    pub fn free(&self) -> u64 {
        self.limit.saturating_sub(self.spent + self.reserved)
    }

    pub fn spend(&mut self, operations: u64) {
        self.spent += operations;
    }

    /// Sets aside what removing this many names takes.
    pub fn reserve_removal(&mut self, names: u64) {
        self.reserved += names * Kind::Remove.operations();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(operations: u64) -> Limits {
        Limits { operations, duration: Duration::from_secs(10), parallelism: 64 }
    }

    #[test]
    fn a_small_cap_makes_a_small_tree() {
        let cases = [
            // operations, directories, files in each
            (100, 1, 1),
            (500, 1, 11),
            (1_000, 1, 17),
            (2_000, 2, 17),
            (20_000, 16, 17),
            (1_000_000, 16, 17),
        ];
        for (operations, directories, files) in cases {
            let shape = limits(operations).shape();
            assert_eq!(shape, (directories, files), "{operations}");
            let names = u64::from(shape.0 * (shape.1 + 1));
            assert!(names * NAME_OPERATIONS <= operations / NAMES_SHARE, "{operations}");
        }
    }

    #[test]
    fn what_is_made_can_be_removed_within_the_cap() {
        let mut budget = Budget::new(100);
        budget.spend(10);
        budget.reserve_removal(20);
        assert_eq!(budget.free(), 50);
        budget.spend(60);
        assert_eq!(budget.free(), 0, "more asked than allowed is not less than nothing");
    }
}
