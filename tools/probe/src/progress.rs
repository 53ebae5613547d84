//! The current state of a probe, for display, and the request to end it early.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Checking,
    Creating,
    /// Measuring each kind alone.
    Kinds,
    /// Measuring the mix with this number of threads.
    Mix(u32),
    Removing,
}

/// Shared between the threads of the probe and the thread that displays progress.
#[derive(Debug, Default)]
pub struct Progress {
    operations: AtomicU64,
    stage: AtomicU32,
    stop: AtomicBool,
}

// Stages are stored as numbers; those without a number of threads come first.
const MIX: u32 = 4;

impl Progress {
    /// Ends the measurement. Created names are still removed.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

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
