//! Locks of ranges of bytes of an open file.

use std::ffi::c_int;

use quell_client::{LockMode, LockOwner, LockScope, Result};

use crate::files::FileHandle;
use quell_boundary::{handle, invalid, number, status};

/// Locks `length` bytes from `offset`, or all bytes from there if `length` is 0, and waits as long
/// as another handle, of this or another process on any node, has a lock that conflicts: a shared
/// one (`is_exclusive` is 0) with exclusive locks, an exclusive one with all locks. Locks of this
/// handle are replaced. Then data that others published before they released a lock is visible.
/// Reads and writes do not check locks. Fails with ENOLCK if the file system of the store keeps no
/// locks between its nodes, and with EBADF for an exclusive lock if the caller may not write to the
/// file. Closing the file releases its locks.
///
/// # Safety
///
/// `file` is NULL or an open file.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_lock(
    file: *const FileHandle,
    offset: u64,
    length: u64,
    is_exclusive: c_int,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let file = unsafe { handle(file, "a file")? };
        file.0.lock(owner(file), scope(offset, length)?, mode(is_exclusive))
    })
}

/// As quell_lock, but does not wait: returns 1 if the range is locked now, and 0 if another handle
/// has a lock that conflicts.
///
/// # Safety
///
/// `file` is NULL or an open file.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_try_lock(
    file: *const FileHandle,
    offset: u64,
    length: u64,
    is_exclusive: c_int,
) -> c_int {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let file = unsafe { handle(file, "a file")? };
        let locks = file.0.locks()?;
        locks.try_lock(owner(file), scope(offset, length)?, mode(is_exclusive)).map(i64::from)
    }) as c_int
}

/// Publishes the data written through this handle, then releases its locks of the range, which is
/// given as for quell_lock. They are released even if the data cannot be published.
///
/// # Safety
///
/// `file` is NULL or an open file.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_unlock(file: *const FileHandle, offset: u64, length: u64) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let file = unsafe { handle(file, "a file")? };
        file.0.locks()?.unlock(owner(file), scope(offset, length)?)
    })
}

/// Returns the owner of the locks of a handle. No two open handles have the same address.
fn owner(file: &FileHandle) -> LockOwner {
    LockOwner(std::ptr::from_ref(file).addr() as u64)
}

fn mode(is_exclusive: c_int) -> LockMode {
    if is_exclusive == 0 { LockMode::Shared } else { LockMode::Exclusive }
}

fn scope(offset: u64, length: u64) -> Result<LockScope> {
    let last = match length {
        0 => quell_client::TO_END,
        _ => offset.checked_add(length - 1).ok_or_else(|| invalid("lock", "the range is too long"))?,
    };
    Ok(LockScope::Bytes { first: offset, last })
}
