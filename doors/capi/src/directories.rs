//! Listings: what a directory had in it when somebody asked.

use std::ffi::{CString, c_char, c_int};
use std::sync::{Mutex, PoisonError};

use quell_client::Kind;

use crate::boundary::{done, give, handle, number, place_for, put, take, text};
use crate::stores::StoreHandle;

/// A listing that somebody goes through.
pub struct DirectoryHandle {
    entries: Vec<(CString, Kind)>,
    next: Mutex<usize>,
}

/// One entry of a directory.
#[repr(C)]
pub struct EntryC {
    /// There until the directory is closed.
    pub name: *const c_char,
    /// The type bits of st_mode: S_ISDIR(mode) and the others of sys/stat.h tell what it is.
    pub mode: u32,
}

/// Opens the directory at `path` to list what is in it now.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a zero; `dir` is NULL or a
/// variable to write the handle to.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_dir_open(
    store: *const StoreHandle,
    path: *const c_char,
    dir: *mut *mut DirectoryHandle,
) -> c_int {
    done(|| {
        // SAFETY: the caller keeps to the conditions above.
        let (store, path) = unsafe {
            place_for(dir)?;
            (handle(store, "a store")?, text(path)?)
        };
        let listed = store.0.list(path)?;
        // A name has no zero in it, or it would be no name.
        let entries =
            listed.into_iter().filter_map(|entry| Some((CString::new(entry.name).ok()?, entry.kind)));
        let opened = DirectoryHandle { entries: entries.collect(), next: Mutex::new(0) };
        // SAFETY: the caller keeps to the conditions above.
        unsafe { give(dir, opened) };
        Ok(())
    })
}

/// Fills `entry` with the next one and returns 1, or 0 when there are no more. There is no `.` and no `..`, and no order.
///
/// # Safety
///
/// `dir` is NULL or an open directory; `entry` is NULL or a variable to write to.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_dir_next(dir: *const DirectoryHandle, entry: *mut EntryC) -> c_int {
    let found = number(|| {
        // SAFETY: the caller keeps to the conditions above.
        let dir = unsafe { handle(dir, "a directory")? };
        let mut next = dir.next.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((name, kind)) = dir.entries.get(*next) else { return Ok(0) };
        // SAFETY: the caller keeps to the conditions above.
        unsafe { put(entry, EntryC { name: name.as_ptr(), mode: kind.mode_bits() })? };
        *next += 1;
        Ok(1)
    });
    found as c_int
}

/// NULL is nothing to close.
///
/// # Safety
///
/// `dir` is NULL or an open handle that no other thread uses and nothing uses afterwards.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_dir_close(dir: *mut DirectoryHandle) -> c_int {
    done(|| {
        // SAFETY: the caller keeps to the conditions above.
        drop(unsafe { take(dir) });
        Ok(())
    })
}
