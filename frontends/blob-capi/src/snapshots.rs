//! Snapshots and lists of names.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use quell_blob::{BlobStat, Snapshot};
use quell_boundary::{check_output, handle, return_handle, slice_mut, take_handle, write_output};
use quell_threads::lock;

use crate::errors::{number, status};
use crate::owner::Owned;
use crate::stores::{AttributesC, StoreHandle, bytes, write_attributes};

/// One state of a store.
pub struct SnapshotHandle(Owned<Snapshot>);

/// A list of blobs, and the position of the next one.
pub struct NamesHandle {
    names: Vec<(Vec<u8>, BlobStat)>,
    next: Mutex<usize>,
}

impl NamesHandle {
    pub(crate) fn new(names: Vec<(Vec<u8>, BlobStat)>) -> NamesHandle {
        NamesHandle { names, next: Mutex::new(0) }
    }
}

/// A blob in a list.
#[repr(C)]
pub struct NameC {
    /// The name. Valid until the list is closed.
    pub name: *const c_void,
    /// The length of the name, in bytes.
    pub name_bytes: usize,
    /// The attributes of the blob.
    pub attributes: AttributesC,
}

/// Begins a snapshot of the latest state. Later commits do not change it. All functions on it fail
/// with ESTALE if later commits have changed so much that the store no longer keeps the state, or
/// if the server of the store was restarted.
///
/// # Safety
///
/// `store` is NULL or an open store; `snapshot` is NULL or a variable for the handle.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_snapshot_begin(
    store: *const StoreHandle,
    snapshot: *mut *mut SnapshotHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let store = unsafe {
            check_output(snapshot)?;
            handle(store, "a store")?.open()?
        };
        let begun = SnapshotHandle(Owned::new(store.store.snapshot()?));
        // SAFETY: the caller meets the requirements above.
        unsafe { return_handle(snapshot, begun) };
        Ok(())
    })
}

/// Returns the version of the state, which is never negative.
///
/// # Safety
///
/// `snapshot` is NULL or an open snapshot.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_snapshot_version(snapshot: *const SnapshotHandle) -> i64 {
    // SAFETY: the caller meets the requirements above.
    number(|| Ok(unsafe { handle(snapshot, "a snapshot")? }.0.get()?.version().0 as i64))
}

/// Reads as quell_blob_read.
///
/// # Safety
///
/// `snapshot` is NULL or an open snapshot; `name` has `name_bytes` bytes; `into` has space for
/// `length` bytes, which no other thread uses during the call.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_snapshot_read(
    snapshot: *const SnapshotHandle,
    name: *const c_void,
    name_bytes: usize,
    offset: u64,
    into: *mut c_void,
    length: usize,
) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let (snapshot, name, into) = unsafe {
            let into = slice_mut(into.cast::<u8>(), length)?;
            (handle(snapshot, "a snapshot")?.0.get()?, bytes(name, name_bytes)?, into)
        };
        Ok(snapshot.read(name, offset, into)? as i64)
    })
}

/// Sets `attributes` as quell_blob_stat does.
///
/// # Safety
///
/// `snapshot` is NULL or an open snapshot; `name` has `name_bytes` bytes; `attributes` is NULL or a
/// variable for the attributes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_snapshot_stat(
    snapshot: *const SnapshotHandle,
    name: *const c_void,
    name_bytes: usize,
    attributes: *mut AttributesC,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (snapshot, name) =
            unsafe { (handle(snapshot, "a snapshot")?.0.get()?, bytes(name, name_bytes)?) };
        // SAFETY: the caller meets the requirements above.
        unsafe { write_attributes(name, snapshot.stat(name)?, attributes) }
    })
}

/// Sets `position` to the first byte from `offset` on at which a blob has data, and returns 1. The
/// bytes before it are zeros. Returns 0 if there is no data up to the end. Fails with ENOENT if
/// there is no blob of this name.
///
/// # Safety
///
/// `snapshot` is NULL or an open snapshot; `name` has `name_bytes` bytes; `position` is NULL or a
/// variable for the position.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_snapshot_next_data(
    snapshot: *const SnapshotHandle,
    name: *const c_void,
    name_bytes: usize,
    offset: u64,
    position: *mut u64,
) -> c_int {
    let found = number(|| {
        // SAFETY: the caller meets the requirements above.
        let (snapshot, name) =
            unsafe { (handle(snapshot, "a snapshot")?.0.get()?, bytes(name, name_bytes)?) };
        let found = snapshot.next_data(name, offset)?;
        // SAFETY: the caller meets the requirements above.
        unsafe { write_output(position, found.unwrap_or(0))? };
        Ok(found.is_some().into())
    });
    found as c_int
}

/// Lists at most `count_max` blobs whose names begin with `prefix` and are after `after`, in the
/// order of their names. The last name of one list is `after` of the next one; both may be NULL
/// with length 0. The list is in memory.
///
/// # Safety
///
/// `snapshot` is NULL or an open snapshot; `prefix` has `prefix_bytes` bytes, and `after` has
/// `after_bytes` bytes; `names` is NULL or a variable for the handle.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_snapshot_list(
    snapshot: *const SnapshotHandle,
    prefix: *const c_void,
    prefix_bytes: usize,
    after: *const c_void,
    after_bytes: usize,
    count_max: usize,
    names: *mut *mut NamesHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (snapshot, prefix, after) = unsafe {
            check_output(names)?;
            let snapshot = handle(snapshot, "a snapshot")?.0.get()?;
            (snapshot, bytes(prefix, prefix_bytes)?, bytes(after, after_bytes)?)
        };
        let found = NamesHandle::new(snapshot.list(prefix, after, count_max)?);
        // SAFETY: the caller meets the requirements above.
        unsafe { return_handle(names, found) };
        Ok(())
    })
}

/// Ends a snapshot. Does nothing for NULL.
///
/// # Safety
///
/// `snapshot` is NULL or an open handle that no other thread uses, and that is not used afterwards.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_snapshot_close(snapshot: *mut SnapshotHandle) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        drop(unsafe { take_handle(snapshot) });
        Ok(())
    })
}

/// Sets `name` to the next blob of a list and returns 1, or returns 0 if there are no more.
///
/// # Safety
///
/// `names` is NULL or a list that is not closed; `name` is NULL or a variable for the blob.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_names_next(names: *const NamesHandle, name: *mut NameC) -> c_int {
    let found = number(|| {
        // SAFETY: the caller meets the requirements above.
        let names = unsafe { handle(names, "a list of names")? };
        let mut next = lock(&names.next);
        let Some((found, stat)) = names.names.get(*next) else { return Ok(0) };
        let (start, name_bytes) = (found.as_ptr().cast(), found.len());
        // SAFETY: the caller meets the requirements above.
        unsafe { write_output(name, NameC { name: start, name_bytes, attributes: (*stat).into() })? };
        *next += 1;
        Ok(1)
    });
    found as c_int
}

/// Frees a list. Does nothing for NULL.
///
/// # Safety
///
/// `names` is NULL or a list that no other thread uses, and that is not used afterwards.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_names_close(names: *mut NamesHandle) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        drop(unsafe { take_handle(names) });
        Ok(())
    })
}
