//! Locks of virtual files: fcntl(2), flock(2) and lockf(3).
//!
//! The locks of fcntl(2) belong to the process. Locks of open file descriptions, and locks of
//! flock(2), belong to an open file in the process that opened it: a process that has inherited the
//! descriptor cannot take or release them (ENOLCK), because the store's file system would treat
//! them as locks of another owner.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use libc::{c_int, c_ulong, off_t};
use quell_threads::lock;
use quell_vfs::{FileLocks, LockMode, LockOwner, LockScope, NodeId};

use crate::append_lock::APPEND_BYTE;
use crate::descriptors::{self, Description};
use crate::errno::{self, Errno, Outcome};
use crate::guard::inside;
use crate::next::wrap;
use crate::open_file::OpenFile;
use crate::pause::{Pauses, Waited};
use crate::placeholder::{self, borrow};
use crate::wrappers::opened;

/// The owner of all locks of fcntl(2) of this process. The other owners are addresses of open
/// files, with the lowest bit set if the library itself takes the lock (`OpenFile::lock_owner`).
const PROCESS: LockOwner = LockOwner(1);

/// The process ID that is reported for a conflicting lock, whose process may be on another node.
const UNKNOWN_PROCESS: libc::pid_t = -1;

/// The files on which this process has taken a lock of fcntl(2): the number of the virtual
/// directory, and the node.
static LOCKED: Mutex<BTreeSet<(usize, u64)>> = Mutex::new(BTreeSet::new());

/// Returns the owner of the locks of an open file.
fn owner_of(description: &Arc<Description>) -> LockOwner {
    LockOwner(Arc::as_ptr(description).addr() as u64)
}

/// Returns whether a command of fcntl(2) is about locks.
pub fn is_lock_command(command: c_int) -> bool {
    matches!(
        command,
        libc::F_GETLK
            | libc::F_SETLK
            | libc::F_SETLKW
            | libc::F_OFD_GETLK
            | libc::F_OFD_SETLK
            | libc::F_OFD_SETLKW
    )
}

/// Returns the bytes that the structure of fcntl(2) describes.
fn scope_of(fd: c_int, file: &OpenFile, range: &libc::flock) -> Outcome<LockScope> {
    let invalid = Errno(libc::EINVAL);
    let base = match c_int::from(range.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => placeholder::position(borrow(fd))? as i64,
        libc::SEEK_END => file.attributes()?.size_bytes as i64,
        _ => return Err(invalid),
    };
    let start = base.checked_add(range.l_start).ok_or(Errno(libc::EOVERFLOW))?;
    let (first, last) = match range.l_len {
        0 => (start, None),
        length if length > 0 => (start, Some(start.checked_add(length - 1).ok_or(Errno(libc::EOVERFLOW))?)),
        length => (start.checked_add(length).ok_or(invalid)?, Some(start - 1)),
    };
    let first = u64::try_from(first).map_err(|_| invalid)?;
    let last = match last {
        // The kernel treats a range up to the largest offset as a range without an end.
        None | Some(i64::MAX) => APPEND_BYTE - 1,
        Some(last) => u64::try_from(last).map_err(|_| invalid)?.min(APPEND_BYTE - 1),
    };
    Ok(LockScope::Bytes { first, last })
}

/// Returns the mode of a lock, or `None` for an unlock. Errors: EINVAL; EBADF if the file was not
/// opened for this mode.
fn mode_of(file: &OpenFile, kind: c_int) -> Outcome<Option<LockMode>> {
    let access = file.flags() & libc::O_ACCMODE;
    match kind {
        libc::F_UNLCK => Ok(None),
        libc::F_RDLCK if access == libc::O_WRONLY => Err(Errno(libc::EBADF)),
        libc::F_RDLCK => Ok(Some(LockMode::Shared)),
        libc::F_WRLCK if access == libc::O_RDONLY => Err(Errno(libc::EBADF)),
        libc::F_WRLCK => Ok(Some(LockMode::Exclusive)),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Calls `act` with the locks of a file.
fn with_locks<T>(
    file: &OpenFile,
    act: impl FnOnce(&dyn FileLocks, NodeId) -> quell_vfs::Result<T>,
) -> Outcome<T> {
    let (node, opened) = file.file()?;
    Ok(act(opened.locks()?, node)?)
}

/// Describes a conflicting lock, or sets F_UNLCK if there is none.
fn describe_conflict(file: &OpenFile, range: &mut libc::flock, owner: LockOwner, fd: c_int) -> Outcome<()> {
    let mode = match c_int::from(range.l_type) {
        libc::F_RDLCK => LockMode::Shared,
        libc::F_WRLCK => LockMode::Exclusive,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let scope = scope_of(fd, file, range)?;
    let conflict = with_locks(file, |locks, _| locks.conflicting(owner, scope, mode))?;
    let Some(conflict) = conflict else {
        range.l_type = libc::F_UNLCK as _;
        return Ok(());
    };
    let (first, last) = match conflict.scope {
        LockScope::Bytes { first, last } => (first, last),
        LockScope::WholeFile | LockScope::Everything => (0, APPEND_BYTE - 1),
    };
    range.l_type = match conflict.mode {
        LockMode::Shared => libc::F_RDLCK as _,
        LockMode::Exclusive => libc::F_WRLCK as _,
    };
    range.l_whence = libc::SEEK_SET as _;
    range.l_start = first as off_t;
    range.l_len = if last >= APPEND_BYTE - 1 { 0 } else { (last - first + 1) as off_t };
    range.l_pid = UNKNOWN_PROCESS;
    Ok(())
}

/// Takes or releases a lock. Returns false if another owner has a conflicting one.
fn set_lock(
    description: &Arc<Description>,
    owner: LockOwner,
    scope: LockScope,
    mode: Option<LockMode>,
) -> Outcome<bool> {
    let file = descriptors::file(description).map_err(|_| Errno(libc::EBADF))?;
    if owner != PROCESS && file.is_inherited() {
        return Err(Errno(libc::ENOLCK));
    }
    with_locks(file, |locks, node| match mode {
        None => locks.unlock(owner, scope).map(|()| true),
        Some(mode) => {
            if owner == PROCESS {
                lock(&LOCKED).insert((file.dir.number, node.0));
            }
            locks.try_lock(owner, scope, mode)
        }
    })
}

/// Takes a lock. If `waits` is true, waits for it, otherwise fails with EAGAIN if another owner has
/// a conflicting lock. Errors: EINTR if a signal arrives that interrupts system calls.
fn take(
    description: &Arc<Description>,
    owner: LockOwner,
    scope: LockScope,
    mode: Option<LockMode>,
    waits: bool,
) -> Outcome<c_int> {
    let mut pauses: Option<Pauses> = None;
    loop {
        if inside(|| set_lock(description, owner, scope, mode))? {
            return Ok(0);
        }
        if !waits {
            return Err(Errno(libc::EAGAIN));
        }
        // Signals stay blocked from here to the end, so that none is missed between an attempt and
        // a pause.
        if let Waited::Interrupted = pauses.get_or_insert_with(Pauses::new).pause() {
            return Err(Errno(libc::EINTR));
        }
    }
}

/// The commands of fcntl(2) for locks. Not called inside `guard::inside`, because it may wait.
///
/// # Safety
///
/// `argument` is the address of a `struct flock`, or NULL.
pub unsafe fn control(
    fd: c_int,
    description: &Arc<Description>,
    command: c_int,
    argument: c_ulong,
) -> Outcome<c_int> {
    let range = std::ptr::with_exposed_provenance_mut::<libc::flock>(argument as usize);
    // SAFETY: the caller's promise.
    let range = unsafe { range.as_mut() }.ok_or(Errno(libc::EFAULT))?;
    let file = descriptors::file(description).map_err(|_| Errno(libc::EBADF))?;
    let of_description = matches!(command, libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW);
    if of_description && range.l_pid != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let owner = if of_description { owner_of(description) } else { PROCESS };
    if matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
        return inside(|| describe_conflict(file, range, owner, fd)).map(|()| 0);
    }
    let (scope, mode) =
        inside(|| Ok((scope_of(fd, file, range)?, mode_of(file, c_int::from(range.l_type))?)))?;
    let waits = matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW);
    take(description, owner, scope, mode, waits)
}

/// Releases the locks of fcntl(2) that this process has on a file, because it closes a descriptor
/// of it.
pub fn release_of_process(description: &Description) -> Outcome<()> {
    let Description::File(file) = description else { return Ok(()) };
    if lock(&LOCKED).is_empty() || !file.is_open_here() {
        return Ok(());
    }
    let (node, opened) = file.file()?;
    if lock(&LOCKED).remove(&(file.dir.number, node.0)) {
        opened.locks()?.release(PROCESS)?;
    }
    Ok(())
}

/// Locks the table for a fork.
pub fn lock_for_fork() -> std::sync::MutexGuard<'static, BTreeSet<(usize, u64)>> {
    lock(&LOCKED)
}

wrap! {
    fn flock(fd: c_int, operation: c_int) -> c_int, |next| {
        let Some(description) = opened(fd) else {
            // SAFETY: any arguments are valid.
            return unsafe { next(fd, operation) };
        };
        let mode = match operation & !libc::LOCK_NB {
            libc::LOCK_SH => Ok(Some(LockMode::Shared)),
            libc::LOCK_EX => Ok(Some(LockMode::Exclusive)),
            libc::LOCK_UN => Ok(None),
            _ => Err(Errno(libc::EINVAL)),
        };
        let waits = operation & libc::LOCK_NB == 0;
        errno::reply(mode.and_then(|mode| {
            take(&description, owner_of(&description), LockScope::WholeFile, mode, waits)
        }))
    }
}

/// Translates lockf(3) to fcntl(2), as libc does.
fn section(fd: c_int, description: &Arc<Description>, command: c_int, length: off_t) -> Outcome<c_int> {
    // SAFETY: the structure consists of integers, for which zero bytes are valid.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_whence = libc::SEEK_CUR as _;
    range.l_len = length;
    range.l_type = libc::F_WRLCK as _;
    let command = match command {
        libc::F_LOCK => libc::F_SETLKW,
        libc::F_TLOCK => libc::F_SETLK,
        libc::F_ULOCK => {
            range.l_type = libc::F_UNLCK as _;
            libc::F_SETLK
        }
        libc::F_TEST => {
            range.l_type = libc::F_RDLCK as _;
            // SAFETY: the address points to the structure.
            unsafe {
                control(fd, description, libc::F_GETLK, (&raw mut range).expose_provenance() as c_ulong)
            }?;
            return match c_int::from(range.l_type) {
                libc::F_UNLCK => Ok(0),
                _ => Err(Errno(libc::EACCES)),
            };
        }
        _ => return Err(Errno(libc::EINVAL)),
    };
    // SAFETY: as above.
    unsafe { control(fd, description, command, (&raw mut range).expose_provenance() as c_ulong) }
}

macro_rules! lockf {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(fd: c_int, command: c_int, length: off_t) -> c_int, |next| {
                match opened(fd) {
                    // SAFETY: any arguments are valid.
                    None => unsafe { next(fd, command, length) },
                    Some(description) => errno::reply(section(fd, &description, command, length)),
                }
            }
        }
    )*};
}

lockf!(lockf, lockf64);
