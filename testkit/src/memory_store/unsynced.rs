//! Changes of a file's data that are not durable yet, and the part of them that a power failure
//! leaves.

use crate::random::Random;
use crate::sparse::{BLOCK_BYTES, SparseBytes};

/// The maximum number of unsynced bytes of a file, apart from the last 1,024 writes.
const UNSYNCED_BYTES_MAX: usize = 64 << 20;
/// A change of a file's data that no sync has made durable.
#[derive(Debug, Clone)]
pub(super) struct Unsynced {
    pub(super) what: ByteChange,
    /// Whether a sync that was to write this change has failed.
    pub(super) doubtful: bool,
}

#[derive(Debug, Clone)]
pub(super) enum ByteChange {
    Write { offset: u64, bytes: Vec<u8> },
    Size(u64),
}

impl Unsynced {
    pub(super) fn write(offset: u64, bytes: &[u8]) -> Unsynced {
        Unsynced { what: ByteChange::Write { offset, bytes: bytes.to_vec() }, doubtful: false }
    }

    pub(super) fn size(size_bytes: u64) -> Unsynced {
        Unsynced { what: ByteChange::Size(size_bytes), doubtful: false }
    }

    pub(super) fn apply(&self, to: &mut SparseBytes) {
        match &self.what {
            ByteChange::Write { offset, bytes } => to.write_at(bytes, *offset),
            ByteChange::Size(size_bytes) => to.set_size(*size_bytes),
        }
    }

    fn count(&self) -> usize {
        match &self.what {
            ByteChange::Write { bytes, .. } => bytes.len(),
            ByteChange::Size(_) => 0,
        }
    }

    pub(super) fn keep_bounded(unsynced: &mut Vec<Unsynced>, synced: &mut SparseBytes) {
        // The sum is calculated only once per 1,024 writes, or after a write of at least 1 MiB.
        if !unsynced.len().is_multiple_of(1024) && unsynced.last().is_none_or(|u| u.count() < 1 << 20) {
            return;
        }
        let mut waiting: usize = unsynced.iter().map(Unsynced::count).sum();
        let mut written = 0;
        while waiting > UNSYNCED_BYTES_MAX && written < unsynced.len() {
            unsynced[written].apply(synced);
            waiting -= unsynced[written].count();
            written += 1;
        }
        unsynced.drain(..written);
    }

    /// Applies the part of the change that a power failure leaves.
    pub(super) fn apply_some(&self, to: &mut SparseBytes, survivors: Survivors, random: &mut Random) {
        let (offset, bytes) = match &self.what {
            ByteChange::Size(size_bytes) => {
                return if survivors.includes(random) {
                    to.set_size(*size_bytes)
                };
            }
            ByteChange::Write { offset, bytes } => (*offset, bytes),
        };
        if survivors == Survivors::All || survivors == Survivors::Nothing {
            return if survivors == Survivors::All {
                to.write_at(bytes, offset)
            };
        }
        let end = offset + bytes.len() as u64;
        match random.below(8) {
            0 | 1 => {}
            2 | 3 => to.write_at(bytes, offset),
            4 => to.write_at(&bytes[..random.below(bytes.len() + 1)], offset),
            5 => {
                let cut = random.below(bytes.len() + 1);
                if to.size_bytes() < offset + cut as u64 {
                    to.set_size(offset + cut as u64);
                }
                to.write_at(&bytes[cut..], offset + cut as u64);
            }
            6 => {
                // Blocks are written independently; the size is written last.
                let mut at = offset;
                while at < end {
                    let next = ((at / BLOCK_BYTES + 1) * BLOCK_BYTES).min(end);
                    if random.one_in(2) {
                        to.write_at(&bytes[(at - offset) as usize..(next - offset) as usize], at);
                    }
                    at = next;
                }
            }
            _ => to.set_size(to.size_bytes().max(end)),
        }
    }
}

/// How many of the unsynced changes survive a power failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Survivors {
    Nothing,
    All,
    /// On average, this number of every four changes.
    Some(usize),
}

impl Survivors {
    pub(super) fn from_seed(seed: u64) -> Survivors {
        match seed % 8 {
            0 => Survivors::Nothing,
            1 => Survivors::All,
            2 => Survivors::Some(1),
            3 => Survivors::Some(3),
            _ => Survivors::Some(2),
        }
    }

    pub(super) fn includes(self, random: &mut Random) -> bool {
        match self {
            Survivors::Nothing => false,
            Survivors::All => true,
            Survivors::Some(of_four) => random.below(4) < of_four,
        }
    }
}
