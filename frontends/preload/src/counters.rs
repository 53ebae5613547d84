//! Counts the operations on virtual directories, for `quell stats`. The counters are shared by all
//! processes of a `quell run`; without its file nothing is counted.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_mount_spec::{PROCESS_COUNTERS, PROCESS_COUNTERS_OFFSET, process_counters_bytes};
use rustix::fs::{FileType, Mode, OFlags};

static COUNTERS: OnceLock<Option<&'static [AtomicU64]>> = OnceLock::new();

/// An operation, by its position in `PROCESS_COUNTERS`.
#[derive(Debug, Clone, Copy)]
pub enum Counter {
    Opens,
    OpensRefused,
    Lookups,
    Listings,
    Reads,
    ReadBytes,
    Writes,
    WrittenBytes,
    CallsRefused,
}

/// Uses the counters in a file.
pub fn use_file(path: Option<&Path>, directories: usize) {
    COUNTERS.get_or_init(|| map(path?, directories));
}

fn map(path: &Path, directories: usize) -> Option<&'static [AtomicU64]> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let found = rustix::fs::fstat(&file).ok()?;
    let length = PROCESS_COUNTERS_OFFSET + process_counters_bytes(directories);
    let is_own = found.st_uid == rustix::process::geteuid().as_raw();
    let is_regular = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if !is_own || !is_regular || (found.st_size as u64) < length as u64 {
        return None;
    }
    // SAFETY: the file belongs to this user and is at least this long. It is removed only
    // after the end of the program, and no program shortens it. The mapping is never removed.
    unsafe {
        let address = libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            std::os::fd::AsRawFd::as_raw_fd(&file),
            0,
        );
        if address == libc::MAP_FAILED {
            return None;
        }
        let first = address.cast::<u8>().add(PROCESS_COUNTERS_OFFSET).cast::<AtomicU64>();
        Some(std::slice::from_raw_parts(first, directories * PROCESS_COUNTERS.len()))
    }
}

/// Adds to a counter of a directory. `position` is the position of the directory in the view.
pub fn add(position: usize, counter: Counter, amount: u64) {
    if let Some(Some(counters)) = COUNTERS.get()
        && let Some(cell) = counters.get(position * PROCESS_COUNTERS.len() + counter as usize)
    {
        cell.fetch_add(amount, Ordering::Relaxed);
    }
}
