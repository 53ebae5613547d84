//! Where an index goes that does not fit into memory: what is beyond a limit is kept as a flat index in a file that nobody else
//! has. Who reads a store may have no right to write to it, so that such files lie elsewhere.

use quell_backing::WritableFile;
use quell_fs::Result;

/// Extents that are kept in memory for each file: 24 bytes each, and up to four times as much for a moment while they are sorted
/// and resolved, so that an index takes about 200 MB at most.
pub const EXTENTS_MAX: usize = 2 << 20;

/// Files for what does not fit into memory, and what does.
pub struct Scratch {
    /// `EXTENTS_MAX`, or another limit.
    pub extents_max: usize,
    /// Makes an empty file that has no name any more, so that it is gone with the last who has it open.
    pub make: Box<dyn Fn() -> Result<Box<dyn WritableFile>> + Send + Sync>,
}

impl Scratch {
    /// Files that `make` makes, for what is beyond `EXTENTS_MAX`.
    pub fn new(make: impl Fn() -> Result<Box<dyn WritableFile>> + Send + Sync + 'static) -> Scratch {
        Scratch { extents_max: EXTENTS_MAX, make: Box::new(make) }
    }
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").field("extents_max", &self.extents_max).finish_non_exhaustive()
    }
}
