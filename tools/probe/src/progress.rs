//! The current state of a probe, for display, and the request to end it early.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The part of a probe that is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Checking the directory.
    Checking,
    /// Creating the tree.
    Creating,
    /// Measuring each kind alone.
    Kinds,
    /// Measuring the mix with this number of threads.
    Mix(u32),
    /// Removing the tree.
    Removing,
}

/// Shared between the threads of the probe and the thread that displays progress.
#[derive(Debug, Default)]
pub struct ProbeProgress {
    operations: AtomicU64,
    stage: AtomicU32,
    stop: AtomicBool,
}

// Stages are stored as numbers; those without a number of threads come first.
const MIX: u32 = 4;

impl ProbeProgress {
    /// Ends the measurement. Created names are still removed.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Returns whether the measurement was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns the operations so far.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    pub(crate) fn add_operations(&self, operations: u64) {
        self.operations.fetch_add(operations, Ordering::Relaxed);
    }

    /// Returns the part of the probe that is running.
    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Relaxed) {
            0 => Stage::Checking,
            1 => Stage::Creating,
            2 => Stage::Kinds,
            3 => Stage::Removing,
            threads => Stage::Mix(threads - MIX),
        }
    }

    pub(crate) fn enter(&self, stage: Stage) {
        let number = match stage {
            Stage::Checking => 0,
            Stage::Creating => 1,
            Stage::Kinds => 2,
            Stage::Removing => 3,
            Stage::Mix(threads) => threads + MIX,
        };
        self.stage.store(number, Ordering::Relaxed);
    }
}
