//! The reserve of free space on the disk of a store, and the file that occupies a part of it.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use quell_vfs::{Error, ErrorKind, Result};

/// Size of the commits between two examinations of the free space, in bytes.
const EXAMINED_BYTES: u64 = 256 << 10;
/// Time between two examinations of the free space, if there is a ballast: in this time, other
/// writers do not use up a reserve of 128 MiB.
const EXAMINED_TIME: Duration = Duration::from_millis(5);
/// If a write failed for an unknown reason, and there is less free space than this, in bytes, then
/// the disk is assumed to be full.
const FULL_BYTES: u64 = 4 << 20;

/// The reserve, and the size of the commits since the last examination.
#[derive(Debug)]
pub(super) struct Space {
    reserve_bytes: u64,
    ballast: Option<Ballast>,
    /// At least [`EXAMINED_BYTES`] while the free space must be examined before the next commit.
    unexamined_bytes: AtomicU64,
    created: Instant,
    /// The time of the last examination, in nanoseconds after `created`.
    examined_ns: AtomicU64,
}

impl Space {
    /// Returns the space of a store, with this ballast if there is any.
    pub(super) fn new(reserve_bytes: u64, ballast: Option<Ballast>) -> Space {
        Space {
            reserve_bytes,
            ballast,
            unexamined_bytes: AtomicU64::new(EXAMINED_BYTES),
            created: Instant::now(),
            examined_ns: AtomicU64::new(0),
        }
    }

    /// Returns `NoSpace` if a commit of `bytes` must not be written.
    pub(super) fn admit(&self, path: &Path, bytes: u64, may_use_reserve: bool) -> Result<()> {
        let is_recent = self.is_recent();
        if self.unexamined_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes < EXAMINED_BYTES && is_recent {
            return Ok(());
        }
        let mut free_bytes = free_bytes(path)?;
        if let Some(ballast) = &self.ballast {
            if may_use_reserve && !is_admitted(free_bytes, self.reserve_bytes, bytes, true) {
                ballast.drop_all(path)?;
                free_bytes = self::free_bytes(path)?;
            } else if is_admitted(free_bytes, self.reserve_bytes, bytes + ballast.bytes, false) {
                ballast.load();
            }
        }
        // While there is little space, each commit is examined.
        let is_plenty = is_admitted(free_bytes, self.reserve_bytes, bytes + EXAMINED_BYTES, false);
        self.unexamined_bytes.store(if is_plenty { 0 } else { EXAMINED_BYTES }, Ordering::Relaxed);
        if !is_admitted(free_bytes, self.reserve_bytes, bytes, may_use_reserve) {
            return Err(Error::new(ErrorKind::NoSpace, "commit", path.as_os_str().as_bytes()));
        }
        Ok(())
    }

    /// Returns whether the last examination is recent enough. If it is not, records the time of a
    /// new one.
    fn is_recent(&self) -> bool {
        if self.ballast.is_none() {
            return true;
        }
        let now = self.created.elapsed().as_nanos() as u64;
        let is_recent =
            now - self.examined_ns.load(Ordering::Relaxed).min(now) < EXAMINED_TIME.as_nanos() as u64;
        if !is_recent {
            self.examined_ns.store(now, Ordering::Relaxed);
        }
        is_recent
    }

    /// Returns whether the free space explains that a write failed.
    pub(super) fn is_used_up(&self, path: &Path) -> Result<bool> {
        Ok(free_bytes(path)? < FULL_BYTES.max(self.reserve_bytes / 2))
    }
}

/// A file that occupies space, so that other writers of the file system cannot use it. It is made
/// empty when a commit that may use the reserve needs the space, and gets the space again as soon
/// as there is enough.
#[derive(Debug)]
pub(super) struct Ballast {
    file: File,
    bytes: u64,
    /// Whether the file occupies its space. Locked while this changes.
    is_loaded: Mutex<bool>,
}

impl Ballast {
    /// Opens the file, or creates it. A new file occupies no space until a commit has found enough
    /// free space.
    pub(super) fn open(path: &Path, bytes: u64) -> std::io::Result<Ballast> {
        let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        let is_loaded = file.metadata()?.blocks() * 512 >= bytes;
        Ok(Ballast { file, bytes, is_loaded: Mutex::new(is_loaded) })
    }

    /// Occupies the space, unless another thread changes the file. If the file system refuses, the
    /// next call tries again.
    fn load(&self) {
        let mut is_loaded = match self.is_loaded.try_lock() {
            Ok(is_loaded) => is_loaded,
            Err(TryLockError::Poisoned(is_loaded)) => is_loaded.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if !*is_loaded {
            let flags = rustix::fs::FallocateFlags::empty();
            *is_loaded = rustix::fs::fallocate(&self.file, flags, 0, self.bytes).is_ok();
            if !*is_loaded {
                // A part of the space may have been occupied. If it cannot be released, it stays
                // occupied.
                let _ = self.file.set_len(0);
            }
        }
    }

    /// Gives the space back to the file system.
    fn drop_all(&self, store: &Path) -> Result<()> {
        let mut is_loaded = self.is_loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_loaded {
            let failed = |cause| Error::from_io(cause, "free the reserve of", store.as_os_str().as_bytes());
            self.file.set_len(0).map_err(failed)?;
            *is_loaded = false;
        }
        Ok(())
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
