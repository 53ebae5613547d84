//! The reserve of free space on the disk of a store.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_vfs::{Error, ErrorKind, Result};

/// Size of the commits between two examinations of the free space, in bytes.
const EXAMINED_BYTES: u64 = 256 << 10;
/// If a write failed for an unknown reason, and there is less free space than this, in bytes, then
/// the disk is assumed to be full.
const FULL_BYTES: u64 = 4 << 20;

/// The reserve, and the size of the commits since the last examination.
#[derive(Debug)]
pub(super) struct Space {
    reserve_bytes: u64,
    /// At least [`EXAMINED_BYTES`] while the free space must be examined before the next commit.
    unexamined_bytes: AtomicU64,
}

impl Space {
    pub(super) fn new(reserve_bytes: u64) -> Space {
        Space { reserve_bytes, unexamined_bytes: AtomicU64::new(EXAMINED_BYTES) }
    }

    /// Returns `NoSpace` if a commit of `bytes` must not be written.
    pub(super) fn admit(&self, path: &Path, bytes: u64, may_use_reserve: bool) -> Result<()> {
        if self.unexamined_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes < EXAMINED_BYTES {
            return Ok(());
        }
        let free_bytes = free_bytes(path)?;
        if !is_admitted(free_bytes, self.reserve_bytes, bytes, may_use_reserve) {
            return Err(Error::new(ErrorKind::NoSpace, "commit", path.as_os_str().as_bytes()));
        }
        if is_admitted(free_bytes, self.reserve_bytes, bytes + EXAMINED_BYTES, false) {
            self.unexamined_bytes.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns whether the free space explains that a write failed.
    pub(super) fn is_used_up(&self, path: &Path) -> Result<bool> {
        Ok(free_bytes(path)? < FULL_BYTES.max(self.reserve_bytes / 2))
    }
}

/// Returns whether a commit of `bytes` may be written.
fn is_admitted(free_bytes: u64, reserve_bytes: u64, bytes: u64, may_use_reserve: bool) -> bool {
    let kept = if may_use_reserve { FULL_BYTES.min(reserve_bytes / 2) } else { reserve_bytes };
    free_bytes >= kept.saturating_add(bytes)
}

/// Returns the free space of a file system that an ordinary user may use, in bytes.
fn free_bytes(path: &Path) -> Result<u64> {
    let state = rustix::fs::statvfs(path)
        .map_err(|cause| Error::from_io(cause.into(), "statvfs", path.as_os_str().as_bytes()))?;
    Ok(state.f_bavail.saturating_mul(state.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::{FULL_BYTES, is_admitted};

    #[test]
    fn a_delete_may_use_the_reserve() {
        for (free_bytes, put, delete) in
            [(111, true, true), (110, true, true), (109, false, true), (60, false, true), (59, false, false)]
        {
            assert_eq!(is_admitted(free_bytes, 100, 10, false), put, "{free_bytes}");
            assert_eq!(is_admitted(free_bytes, 100, 10, true), delete, "{free_bytes}");
        }
        let large = 128 << 20;
        assert!(
            is_admitted(FULL_BYTES + 10, large, 10, true) && !is_admitted(FULL_BYTES + 9, large, 10, true)
        );
    }
}
