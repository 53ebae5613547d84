//! Parallel Index Read for the processes of a job: each reads a share of the index of a file, all
//! exchange their shares by a transport of their choice, and open the file with them.

use std::ffi::{c_char, c_int, c_void};

use quell_client::{OpenOptions, Result};

use crate::files::{FileHandle, open_options};
use crate::stores::StoreHandle;
use quell_boundary::{
    check_output, handle, invalid, number, return_handle, slice, status, take_handle, text, write_output,
};

/// A share of the index of a file, as read by quell_read_share.
pub struct ShareHandle(Vec<u8>);

/// A share of the index of a file, in the memory of the caller.
#[repr(C)]
pub struct ShareBytes {
    /// The bytes of the share.
    pub bytes: *const c_void,
    /// The number of bytes.
    pub length: usize,
}

/// Returns the number of index logs that opening the file reads, and thus the largest useful number
/// of shares: 0 if no process has published data, and 1 if the file is flattened.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_index_logs(store: *const StoreHandle, path: *const c_char) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, path) = unsafe { (handle(store, "a store")?, text(path)?) };
        Ok(store.log()?.index_logs(path)? as i64)
    })
}

/// Reads share `number` (from 0) of `shares` of the index of a file, for processes that open the
/// file together: each reads one share, all exchange their shares, and each calls
/// quell_open_with_shares. Each index log is then read once, and not once by each process. Fails
/// with EFBIG if the share has more than 1 GiB; each process then opens the file with quell_open.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL; `share` is
/// NULL or a variable for the handle.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_read_share(
    store: *const StoreHandle,
    path: *const c_char,
    number: usize,
    shares: usize,
    share: *mut *mut ShareHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, path) = unsafe {
            check_output(share)?;
            (handle(store, "a store")?, text(path)?)
        };
        let read = ShareHandle(store.log()?.read_share(path, number, shares)?);
        // SAFETY: the caller meets the requirements above.
        unsafe { return_handle(share, read) };
        Ok(())
    })
}

/// Sets `bytes` to the bytes of the share, which are valid until it is freed.
///
/// # Safety
///
/// `share` is NULL or a share of quell_read_share; `bytes` is NULL or a variable for the result.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_share_bytes(share: *const ShareHandle, bytes: *mut ShareBytes) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let share = unsafe { handle(share, "a share")? };
        let found = ShareBytes { bytes: share.0.as_ptr().cast(), length: share.0.len() };
        // SAFETY: the caller meets the requirements above.
        unsafe { write_output(bytes, found) }
    })
}

/// Frees the share. Does nothing for NULL.
///
/// # Safety
///
/// `share` is NULL or a share of quell_read_share that is not used afterwards.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_share_free(share: *mut ShareHandle) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        drop(unsafe { take_handle(share) });
        Ok(())
    })
}

/// Opens the existing regular file at `path` with `count` shares of its index, in any order. Data
/// that is in no share is found through the index logs. `flags` are O_RDONLY or O_RDWR. Fails with
/// EIO if the bytes are not a share of this file.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL; `shares` has
/// `count` elements, and each `bytes` has `length` bytes; `file` is NULL or a variable for the
/// handle.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_open_with_shares(
    store: *const StoreHandle,
    path: *const c_char,
    flags: c_int,
    shares: *const ShareBytes,
    count: usize,
    file: *mut *mut FileHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, path, shares) = unsafe {
            check_output(file)?;
            (handle(store, "a store")?, text(path)?, copied(shares, count)?)
        };
        let options = open_options(flags)?;
        if options.create != OpenOptions::READ.create || options.truncate || !options.read {
            return Err(invalid("open", "the flags are O_RDONLY or O_RDWR if shares are given"));
        }
        let opened = FileHandle(store.log()?.open_with_shares(path, options, shares)?);
        // SAFETY: the caller meets the requirements above.
        unsafe { return_handle(file, opened) };
        Ok(())
    })
}

/// As quell_flatten, with all shares of the index of the file: the index logs are not read again.
/// One of the processes that have read the shares calls it.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL; `shares` has
/// `count` elements, and each `bytes` has `length` bytes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_flatten_shares(
    store: *const StoreHandle,
    path: *const c_char,
    shares: *const ShareBytes,
    count: usize,
) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, path, shares) =
            unsafe { (handle(store, "a store")?, text(path)?, copied(shares, count)?) };
        Ok(store.log()?.flatten_shares(path, shares)?.bytes as i64)
    })
}

/// Copies the shares of the caller.
///
/// # Safety
///
/// `shares` has `count` elements, and each `bytes` has `length` bytes that do not change during the
/// call.
// SAFETY: the section above states the conditions.
unsafe fn copied(shares: *const ShareBytes, count: usize) -> Result<Vec<Vec<u8>>> {
    // SAFETY: the caller guarantees the same.
    let shares = unsafe { slice(shares, count)? };
    // SAFETY: the caller guarantees the bytes of each.
    shares
        .iter()
        .map(|share| Ok(unsafe { slice(share.bytes.cast::<u8>(), share.length)? }.to_vec()))
        .collect()
}
