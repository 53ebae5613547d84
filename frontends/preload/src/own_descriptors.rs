//! The descriptors that the library has open for itself, such as the descriptors of the stores.
//! They have numbers above those that programs use. A program can neither close nor replace them.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard};

use libc::c_int;
use quell_threads::lock;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The number of descriptors that the library may have open for itself.
const OWN_DESCRIPTORS: u64 = 4096;

/// A limit on descriptors below this value is raised, so that the library's own descriptors have
/// numbers above the program's limit.
const SMALL_LIMIT: u64 = 2 * OWN_DESCRIPTORS;

/// The limit on descriptors that is assumed if the process has none.
const DEFAULT_LIMIT: u64 = 1 << 16;

/// The lowest number of a descriptor that the library has open for itself; 0 if it has not chosen
/// one yet.
static MINIMUM: AtomicI32 = AtomicI32::new(0);

/// The library's own descriptors.
static OWN: Mutex<BTreeSet<c_int>> = Mutex::new(BTreeSet::new());

/// Returns whether the library has opened this descriptor for itself. The caller must be inside
/// `guard::inside` if `can_contain(fd)`.
pub fn contains(fd: c_int) -> bool {
    can_contain(fd) && lock(&OWN).contains(&fd)
}

/// Returns whether a descriptor with this number can be the library's own.
pub fn can_contain(fd: c_int) -> bool {
    let minimum = MINIMUM.load(Ordering::Relaxed);
    minimum > 0 && fd >= minimum
}

/// Returns the ranges of numbers from `first` to `last` without the library's own descriptors.
pub fn others_in_range(first: c_int, last: c_int) -> Vec<(c_int, c_int)> {
    let mut ranges = Vec::new();
    let mut next = Some(first);
    for own in lock(&OWN).range(first..=last) {
        if let Some(next) = next.filter(|next| next < own) {
            ranges.push((next, own - 1));
        }
        next = own.checked_add(1);
    }
    ranges.extend(next.filter(|next| *next <= last).map(|next| (next, last)));
    ranges
}

/// Records a descriptor that the library has opened for itself.
pub fn add(fd: c_int) {
    lock(&OWN).insert(fd);
}

/// Records that the library has closed a descriptor.
pub fn remove(fd: c_int) {
    if can_contain(fd) {
        lock(&OWN).remove(&fd);
    }
}

/// Duplicates a descriptor as one of the library's own.
pub fn duplicate(fd: impl AsFd) -> rustix::io::Result<OwnedFd> {
    let duplicate = match rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), raise_limit()) {
        Err(Errno::INVAL) => rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), reduce_numbers())?,
        duplicate => duplicate?,
    };
    add(duplicate.as_raw_fd());
    Ok(duplicate)
}

/// Moves the descriptor to a number in the range of the library's own descriptors. If no number
/// there is free, the number does not change.
pub fn moved(fd: OwnedFd) -> OwnedFd {
    match fd.as_raw_fd() >= raise_limit() {
        true => {
            add(fd.as_raw_fd());
            fd
        }
        false => duplicate(&fd).unwrap_or(fd),
    }
}

/// Chooses lower numbers for the library's own descriptors, because the program has reduced its
/// limit since [`raise_limit`]. Returns the lowest of these numbers, which are at the end of the
/// limit.
fn reduce_numbers() -> c_int {
    let soft = getrlimit(Resource::Nofile).current.unwrap_or(DEFAULT_LIMIT);
    let minimum = c_int::try_from(end_of(soft)).unwrap_or(c_int::MAX).max(1);
    MINIMUM.fetch_min(minimum, Ordering::Relaxed).min(minimum)
}

/// Locks the set for a fork.
pub fn lock_for_fork() -> MutexGuard<'static, BTreeSet<c_int>> {
    lock(&OWN)
}

/// Chooses the numbers of the library's own descriptors, and returns the lowest of them. The limit
/// of the program is raised, and the numbers are above the old limit. If the limit is large or
/// cannot be raised, the numbers are at its end.
pub fn raise_limit() -> c_int {
    let known = MINIMUM.load(Ordering::Relaxed);
    if known > 0 {
        return known;
    }
    let limits = getrlimit(Resource::Nofile);
    let soft = limits.current.unwrap_or(DEFAULT_LIMIT);
    let hard = limits.maximum.unwrap_or(u64::MAX);
    let raised = soft.saturating_add(OWN_DESCRIPTORS).min(hard);
    let minimum = if soft >= SMALL_LIMIT || raised == soft {
        end_of(soft)
    } else {
        let limits = Rlimit { current: Some(raised), maximum: limits.maximum };
        match setrlimit(Resource::Nofile, limits) {
            Ok(()) => soft,
            Err(_) => end_of(soft),
        }
    };
    let minimum = c_int::try_from(minimum.min(DEFAULT_LIMIT)).unwrap_or(c_int::MAX);
    MINIMUM.store(minimum, Ordering::Relaxed);
    minimum
}

/// Returns the lowest number of the library's own descriptors if they are at the end of `limit`.
/// They use at most half of the limit.
fn end_of(limit: u64) -> u64 {
    limit - (limit / 2).min(OWN_DESCRIPTORS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_leave_out_the_own_descriptors() {
        for fd in [100, 101, 105, c_int::MAX] {
            add(fd);
        }
        assert_eq!(others_in_range(3, 200), [(3, 99), (102, 104), (106, 200)]);
        assert_eq!(others_in_range(100, 101), []);
        assert_eq!(others_in_range(101, c_int::MAX), [(102, 104), (106, c_int::MAX - 1)]);
        assert_eq!(others_in_range(3, 9), [(3, 9)]);
    }
}
