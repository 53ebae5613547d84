//! Listings of directories.

use std::ffi::{CString, c_char, c_int};
use std::sync::Mutex;

use quell_client::Kind;
use quell_threads::lock;

use crate::stores::StoreHandle;
use quell_boundary::{check_output, handle, number, return_handle, status, take_handle, text, write_output};

/// An open directory: its entries at the time of the open, and the position of the next one.
pub struct DirectoryHandle {
    entries: Vec<(CString, Kind)>,
    next: Mutex<usize>,
}

/// An entry of a directory.
#[repr(C)]
pub struct EntryC {
    /// Valid until the directory is closed.
    pub name: *const c_char,
    /// The type bits of st_mode, for S_ISDIR(mode) and the other macros of sys/stat.h.
    pub mode: u32,
}

/// Opens the directory at `path` to list its present entries.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL; `dir` is NULL
/// or a variable for the handle.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_dir_open(
    store: *const StoreHandle,
    path: *const c_char,
    dir: *mut *mut DirectoryHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, path) = unsafe {
            check_output(dir)?;
            (handle(store, "a store")?, text(path)?)
        };
        let listed = store.files()?.list(path)?;
        // Names contain no NUL, so no entry is skipped.
        let entries =
            listed.into_iter().filter_map(|entry| Some((CString::new(entry.name).ok()?, entry.kind)));
        let opened = DirectoryHandle { entries: entries.collect(), next: Mutex::new(0) };
        // SAFETY: the caller meets the requirements above.
        unsafe { return_handle(dir, opened) };
        Ok(())
    })
}

/// Sets `entry` to the next entry and returns 1, or returns 0 if there are no more. `.` and `..`
/// are not listed, and the order is arbitrary.
///
/// # Safety
///
/// `dir` is NULL or an open directory; `entry` is NULL or a variable for the entry.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_dir_next(dir: *const DirectoryHandle, entry: *mut EntryC) -> c_int {
    let found = number(|| {
        // SAFETY: the caller meets the requirements above.
        let dir = unsafe { handle(dir, "a directory")? };
        let mut next = lock(&dir.next);
        let Some((name, kind)) = dir.entries.get(*next) else { return Ok(0) };
        // SAFETY: the caller meets the requirements above.
        unsafe { write_output(entry, EntryC { name: name.as_ptr(), mode: kind.mode_bits() })? };
        *next += 1;
        Ok(1)
    });
    found as c_int
}

/// Closes the directory. Does nothing for NULL.
///
/// # Safety
///
/// `dir` is NULL or an open handle that no other thread uses, and that is not used afterwards.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_dir_close(dir: *mut DirectoryHandle) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        drop(unsafe { take_handle(dir) });
        Ok(())
    })
}
