//! Paths below the virtual directories of the environment variable QUELL_VIEW.

use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use quell_client::{Error, ErrorKind, Result, VirtualPath};

use crate::stores::{ChoicesC, StoreHandle};
use quell_boundary::{check_output, handle, number, path, return_handle, slice_mut, status};

const ERANGE: i32 = 34;

/// Returns 1 if the path lies below a virtual directory of the environment variable QUELL_VIEW, or
/// is one, and 0 if not. A relative path is relative to the current directory; symbolic links are
/// not followed. Copies the path in the store to `in_store`, which has space for `space` bytes and
/// may be NULL if that is 0; fails with ERANGE if it is too small. Fails with EINVAL if the value
/// of the variable is invalid; it is read once in a process.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL; `in_store` has space for `space` bytes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_virtual_path(
    path: *const c_char,
    in_store: *mut c_char,
    space: usize,
) -> c_int {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let (found, into) = unsafe { (find(path)?, slice_mut(in_store.cast::<u8>(), space)?) };
        let Some(found) = found else { return Ok(0) };
        if !into.is_empty() {
            let bytes = found.path().as_os_str().as_bytes();
            if bytes.len() >= into.len() {
                return Err(too_small());
            }
            into[..bytes.len()].copy_from_slice(bytes);
            into[bytes.len()] = 0;
        }
        Ok(1)
    }) as c_int
}

/// Opens the store of the virtual directory of the path, once in a process for all calls with the
/// same choices. If `choices` is NULL, the choices of QUELL_VIEW apply. Otherwise a buffer size of
/// 0 stands for the buffer size of QUELL_VIEW, no file is flattened when it is closed, and the
/// other members have no effect. Fails with ENOENT if the path lies below no virtual directory. The
/// caller closes the handle.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL; `choices` is NULL or initialized; `store` is
/// NULL or a variable for the handle.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_virtual_store(
    path: *const c_char,
    choices: *const ChoicesC,
    store: *mut *mut StoreHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (found, choices) = unsafe {
            check_output(store)?;
            (find(path)?, if choices.is_null() { None } else { Some(handle(choices, "choices")?) })
        };
        let mut found = found.ok_or_else(not_virtual)?;
        if let Some(choices) = choices {
            if choices.buffer_bytes > 0 {
                found.set_buffer_bytes(choices.buffer_bytes);
            }
            found.set_never_flattens();
        }
        let opened = StoreHandle::Log(found.store()?);
        // SAFETY: the caller meets the requirements above.
        unsafe { return_handle(store, opened) };
        Ok(())
    })
}

/// Returns the largest size of the index logs of a file that is flattened when its last writer
/// closes it, in bytes, as QUELL_VIEW states for the virtual directory of the path: 0 if no file is
/// flattened. Fails with ENOENT if the path lies below no virtual directory.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_virtual_flatten_bytes(path: *const c_char) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let found = unsafe { find(path)? }.ok_or_else(not_virtual)?;
        Ok(found.flatten_threshold_bytes().unwrap_or(0).try_into().unwrap_or(i64::MAX))
    })
}

/// Returns the path if it lies below a virtual directory.
///
/// # Safety
///
/// As for `boundary::path`.
// SAFETY: the section above states the conditions.
unsafe fn find(pointer: *const c_char) -> Result<Option<VirtualPath>> {
    // SAFETY: the caller guarantees the same.
    VirtualPath::find(unsafe { path(pointer)? })
}

fn not_virtual() -> Error {
    let refused = Error::new(ErrorKind::NotFound, "find a virtual directory", "");
    Error { source: Some("the path lies below no directory of QUELL_VIEW".into()), ..refused }
}

fn too_small() -> Error {
    let refused = Error::new(ErrorKind::Os(ERANGE), "copy a path", "");
    Error { source: Some("the space for it is too small".into()), ..refused }
}
