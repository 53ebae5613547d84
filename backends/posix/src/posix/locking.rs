//! Locks of ranges of bytes as locks of an open file description (fcntl(2), F_OFD_SETLK): the file
//! system decides about conflicts, also between its nodes, and the kernel removes the locks with
//! the last descriptor.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use quell_vfs::{Error, ErrorKind, LockMode, Result, errno};

use super::PosixFile;
use crate::lock_support::{check_before_lock, has_coherent_caches, has_reliable_locks};
use crate::span::{file_span, operation_span};
use crate::{LockedRange, OFFSET_MAX, RangeLocks};

impl RangeLocks for PosixFile {
    fn try_lock(&self, range: LockedRange) -> Result<bool> {
        let _span = file_span("lock", range.first, 0);
        let check = check_before_lock(self.fd.as_fd())?;
        if !try_set(self.fd.as_fd(), range)? {
            return Ok(false);
        }
        if let Some(check) = check
            && let Err(error) = check.after_lock(self.fd.as_fd())
        {
            let _ = self.unlock(range.first, range.last); // the lock is of no use
            return Err(error);
        }
        Ok(true)
    }

    fn unlock(&self, first: u64, last: u64) -> Result<()> {
        let _span = file_span("unlock", first, 0);
        set(self.fd.as_fd(), &flock(libc::F_UNLCK, first, last)).map_err(refused)
    }

    fn conflicting(&self, range: LockedRange) -> Result<Option<LockedRange>> {
        check_before_lock(self.fd.as_fd())?;
        self.conflicting_on_node(range)
    }

    fn needs_sync_between_nodes(&self) -> bool {
        !has_coherent_caches(self.fd.as_fd())
    }

    fn are_reliable(&self) -> Option<bool> {
        has_reliable_locks(self.fd.as_fd())
    }

    fn try_lock_on_node(&self, range: LockedRange) -> Result<bool> {
        let _span = file_span("lock", range.first, 0);
        try_set(self.fd.as_fd(), range)
    }

    fn conflicting_on_node(&self, range: LockedRange) -> Result<Option<LockedRange>> {
        let _span = operation_span("getlk");
        let mut found = flock(kind_of(range.mode), range.first, range.last);
        loop {
            match fcntl(&self.fd, FcntlArg::F_OFD_GETLK(&mut found)) {
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(e) => return Err(refused(e)),
            }
        }
        let mode = match i32::from(found.l_type) {
            libc::F_UNLCK => return Ok(None),
            libc::F_RDLCK => LockMode::Shared,
            _ => LockMode::Exclusive,
        };
        // The numbers come from the file system.
        let first = u64::try_from(found.l_start).unwrap_or(0);
        let last = match u64::try_from(found.l_len) {
            Ok(length) if length > 0 => first.saturating_add(length - 1).min(OFFSET_MAX),
            _ => OFFSET_MAX,
        };
        Ok(Some(LockedRange { first, last, mode }))
    }
}

/// Returns the type of a lock for fcntl(2).
fn kind_of(mode: LockMode) -> libc::c_int {
    match mode {
        LockMode::Shared => libc::F_RDLCK,
        LockMode::Exclusive => libc::F_WRLCK,
    }
}

/// Locks a range. Returns false if a lock of another description conflicts.
fn try_set(fd: BorrowedFd<'_>, range: LockedRange) -> Result<bool> {
    match set(fd, &flock(kind_of(range.mode), range.first, range.last)) {
        Ok(()) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(e) => Err(refused(e)),
    }
}

fn set(fd: BorrowedFd<'_>, lock: &libc::flock) -> nix::Result<()> {
    loop {
        match fcntl(fd, FcntlArg::F_OFD_SETLK(lock)) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Returns the argument of fcntl(2). `first` and `last` are at most `OFFSET_MAX`.
fn flock(kind: i32, first: u64, last: u64) -> libc::flock {
    debug_assert!(first <= last && last <= OFFSET_MAX, "a valid range");
    let length = if last == OFFSET_MAX { 0 } else { last - first + 1 };
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: first as i64,
        l_len: length as i64,
        l_pid: 0, // required for locks of an open file description
    }
}

/// Returns the error of a lock. File systems without locks return different numbers.
fn refused(number: Errno) -> Error {
    match number {
        Errno::ENOLCK | Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ENOTTY => Error {
            source: Some(format!("the file system refuses locks: {}", number.desc()).into()),
            ..Error::new(ErrorKind::Os(errno::ENOLCK), "lock", b"")
        },
        number => super::failed(rustix::io::Errno::from_raw_os_error(number as i32), "lock", b""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PosixDir, WritableDir};

    fn range(first: u64, last: u64, mode: LockMode) -> LockedRange {
        LockedRange { first, last, mode }
    }

    #[test]
    fn locks_of_two_descriptors_conflict_and_end_with_the_descriptor() {
        let temp = tempfile::tempdir().unwrap();
        let dir = PosixDir::open(temp.path()).unwrap();
        let a = dir.create_file(b"file", 0o644).unwrap();
        let b = dir.open_writable_file(b"file").unwrap();
        let (locks_a, locks_b) = (a.locks().unwrap(), b.locks().unwrap());
        assert!(locks_a.try_lock(range(0, 9, LockMode::Exclusive)).unwrap());
        assert!(locks_a.try_lock(range(5, 20, LockMode::Shared)).unwrap(), "its own locks never conflict");
        assert!(!locks_b.try_lock(range(4, 4, LockMode::Shared)).unwrap());
        assert!(locks_b.try_lock(range(5, 9, LockMode::Shared)).unwrap());
        assert!(!locks_b.try_lock(range(20, 20, LockMode::Exclusive)).unwrap());
        assert!(locks_b.try_lock(range(21, OFFSET_MAX, LockMode::Exclusive)).unwrap());
        let found = locks_a.conflicting(range(0, OFFSET_MAX, LockMode::Exclusive)).unwrap();
        assert_eq!(found, Some(range(5, 9, LockMode::Shared)));
        let found = locks_a.conflicting(range(OFFSET_MAX, OFFSET_MAX, LockMode::Shared)).unwrap();
        assert_eq!(found, Some(range(21, OFFSET_MAX, LockMode::Exclusive)));
        locks_b.unlock(21, OFFSET_MAX - 1).unwrap();
        assert!(!locks_a.try_lock(range(OFFSET_MAX, OFFSET_MAX, LockMode::Shared)).unwrap());
        assert!(locks_a.try_lock(range(21, OFFSET_MAX - 1, LockMode::Exclusive)).unwrap());
        drop(a);
        assert!(locks_b.try_lock(range(0, OFFSET_MAX, LockMode::Exclusive)).unwrap());
    }

    #[test]
    fn a_descriptor_for_reading_gets_shared_locks_only() {
        let temp = tempfile::tempdir().unwrap();
        let dir = PosixDir::open(temp.path()).unwrap();
        drop(dir.create_file(b"file", 0o444).unwrap());
        let file = crate::Dir::open_file(&dir, b"file").unwrap();
        let locks = file.locks().unwrap();
        assert!(locks.try_lock(range(0, 0, LockMode::Shared)).unwrap());
        let refused = locks.try_lock(range(0, 0, LockMode::Exclusive)).unwrap_err();
        assert_eq!(refused.errno(), errno::EBADF);
    }
}
