//! The parts that several fuzz targets share.

use quell_blob_service::Clock;

/// A clock that stands still, so that an input has the same effect in each run.
pub struct NoClock;

impl Clock for NoClock {
    fn now_ns(&self) -> u64 {
        0
    }
}
