//! Scratch files for indexes that do not fit into memory: the part beyond a limit is kept as a flat
//! index in an unlinked temporary file. These files lie outside the stores, because a reader may
//! have no permission to write there.

use quell_posix::WritableFile;
use quell_vfs::Result;

/// Extents that are kept in memory for each file, 24 bytes each. Sorting and resolving them
/// temporarily takes up to four times as much, so an index takes about 200 MB at most.
pub const EXTENTS_MAX: usize = 2 << 20;

/// Creates scratch files, and sets the limit above which they are used.
pub struct Scratch {
    /// The number of extents that are kept in memory; `EXTENTS_MAX` by default.
    pub extents_max: usize,
    /// Creates an empty, unlinked temporary file.
    pub make: Box<dyn Fn() -> Result<Box<dyn WritableFile>> + Send + Sync>,
}

impl Scratch {
    /// Creates scratch files with `make` for the extents beyond `EXTENTS_MAX`.
    pub fn new(make: impl Fn() -> Result<Box<dyn WritableFile>> + Send + Sync + 'static) -> Scratch {
        Scratch { extents_max: EXTENTS_MAX, make: Box::new(make) }
    }
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").field("extents_max", &self.extents_max).finish_non_exhaustive()
    }
}
