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
// SAFETY: as the header says of pointers; nothing else has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_dir_open(
    store: *const StoreHandle,
    path: *const c_char,
    dir: *mut *mut DirectoryHandle,
) -> c_int {
    done(|| {
        place_for(dir)?;
        let listed = handle(store, "a store")?.0.list(text(path)?)?;
        // A name has no zero in it, or it would be no name.
        let entries =
            listed.into_iter().filter_map(|entry| Some((CString::new(entry.name).ok()?, entry.kind)));
        give(dir, DirectoryHandle { entries: entries.collect(), next: Mutex::new(0) });
        Ok(())
    })
}

/// Fills `entry` with the next one and returns 1, or 0 when there are no more. There is no `.` and no `..`, and no order.
// SAFETY: as the header says of pointers; nothing else has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_dir_next(dir: *const DirectoryHandle, entry: *mut EntryC) -> c_int {
    let found = number(|| {
        let dir = handle(dir, "a directory")?;
        let mut next = dir.next.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((name, kind)) = dir.entries.get(*next) else { return Ok(0) };
        put(entry, EntryC { name: name.as_ptr(), mode: kind.mode_bits() })?;
        *next += 1;
        Ok(1)
    });
    found as c_int
}

/// NULL is nothing to close.
// SAFETY: as the header says of pointers; nothing else has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_dir_close(dir: *mut DirectoryHandle) -> c_int {
    done(|| {
        drop(take(dir));
        Ok(())
    })
}
