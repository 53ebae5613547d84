//! The limits of a probe and their division among its parts. The operations for removing a name are
//! reserved when the name is created. Calculations only.

use std::time::Duration;

use crate::kind::OperationKind;

/// The limits that the user sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// All operations, including removal.
    pub operations: u64,
    /// The duration of the measurement.
    pub duration: Duration,
    /// The maximum number of threads.
    pub parallelism: u32,
}

/// Creating and removing names may take one tenth of the operations.
const NAMES_SHARE: u64 = 10;
/// Each kind that is measured alone may take one fiftieth.
const KIND_SHARE: u64 = 50;
/// The shape of the tree: at most 16 directories, each with 17 files as in the paper (section 3.2).
const DIRECTORIES_MAX: u64 = 16;
const FILES: u64 = 17;

/// The operations for creating a name and for removing it later.
pub const NAME_OPERATIONS: u64 = OperationKind::Create.operations() + OperationKind::Remove.operations();

impl Limits {
    /// Returns the number of directories, and of files in each.
    pub fn shape(&self) -> (u32, u32) {
        let names = self.operations / NAMES_SHARE / NAME_OPERATIONS;
        let directories = (names / (FILES + 1)).clamp(1, DIRECTORIES_MAX);
        let files = (names / directories).saturating_sub(1).clamp(1, FILES);
        (directories as u32, files as u32)
    }

    /// Returns the operations for measuring one kind alone.
    pub fn kind_operations(&self) -> u64 {
        self.operations / KIND_SHARE
    }

    /// Returns the time for measuring one kind alone.
    pub fn kind_duration(&self) -> Duration {
        self.duration / 20
    }

    /// Returns the time for creating names: a fifth, so that fewer names are created on a slow file
    /// system.
    pub fn creation_duration(&self) -> Duration {
        self.duration / 5
    }
}

/// Operations allowed, spent, and reserved for removal.
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

    /// Returns the operations that may still be spent.
    pub fn free(&self) -> u64 {
        self.limit.saturating_sub(self.spent + self.reserved)
    }

    pub fn spend(&mut self, operations: u64) {
        self.spent += operations;
    }

    /// Reserves the operations for removing `names` names.
    pub fn reserve_removal(&mut self, names: u64) {
        self.reserved += names * OperationKind::Remove.operations();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(operations: u64) -> Limits {
        Limits { operations, duration: Duration::from_secs(10), parallelism: 64 }
    }

    #[test]
    fn a_low_limit_gives_a_small_tree() {
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
    fn created_names_can_be_removed_within_the_limit() {
        let mut budget = Budget::new(100);
        budget.spend(10);
        budget.reserve_removal(20);
        assert_eq!(budget.free(), 50);
        budget.spend(60);
        assert_eq!(budget.free(), 0, "spending more than allowed leaves zero");
    }
}
