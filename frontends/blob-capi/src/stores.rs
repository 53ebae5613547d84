//! Stores, and operations on one blob.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use quell_blob::{BlobStat, Operation, Result, Store};
use quell_boundary::{
    check_output, handle, invalid, return_handle, slice, slice_mut, take_handle, text, write_output,
};
use quell_vfs::{Error, ErrorKind};

use crate::callbacks::Callbacks;
use crate::errors::{number, status};
use crate::owner::Owned;
use crate::results::{copy_before, too_small};
use crate::transforms::{TransformC, transform};

/// The largest number of operations in flight if the options name none.
const IN_FLIGHT_MAX: usize = 1000;

/// An open store.
pub struct StoreHandle(Owned<Arc<OpenStore>>);

/// A store and its callbacks, for all handles that use them.
pub struct OpenStore {
    pub store: Store,
    pub callbacks: Callbacks,
}

impl StoreHandle {
    /// Returns the store, unless this process is a child of the one that opened it.
    pub(crate) fn open(&self) -> Result<&Arc<OpenStore>> {
        Ok(self.0.get()?)
    }
}

/// Options for opening a store. 0 selects the default.
#[repr(C)]
pub struct OptionsC {
    /// The largest number of submitted operations in flight (default 1,000). The functions that
    /// submit one wait while as many are in flight.
    pub in_flight_max: u32,
    /// Whether quell_blob_open fails with ENOENT if there is no store (default: it creates one).
    pub must_exist: c_int,
}

/// The attributes of a blob as a file of `quell mount --blob`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FileAttributesC {
    /// The type and the permissions, as `st_mode`.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// The attributes of a blob.
#[repr(C)]
pub struct AttributesC {
    /// The size, in bytes.
    pub size_bytes: u64,
    /// The time of the last commit that changed the blob, in nanoseconds since 1970 (UTC).
    pub modified_ns: u64,
}

impl From<BlobStat> for AttributesC {
    fn from(stat: BlobStat) -> AttributesC {
        AttributesC { size_bytes: stat.size_bytes, modified_ns: stat.modified_ns }
    }
}

/// Returns the bytes of a name.
///
/// # Safety
///
/// `name` is NULL or points to `length` bytes that stay unchanged while the result is used.
// SAFETY: the section above states the conditions.
pub unsafe fn bytes<'a>(name: *const c_void, length: usize) -> Result<&'a [u8]> {
    // SAFETY: the caller guarantees the same.
    Ok(unsafe { slice(name.cast::<u8>(), length) }?)
}

/// Writes the attributes of a blob into the caller's variable. Fails with ENOENT for `None`.
///
/// # Safety
///
/// `into` is NULL or a variable for the attributes.
// SAFETY: the section above states the conditions.
pub unsafe fn write_attributes(name: &[u8], stat: Option<BlobStat>, into: *mut AttributesC) -> Result<()> {
    let stat = stat.ok_or_else(|| Error::new(ErrorKind::NotFound, "read the attributes of", name))?;
    // SAFETY: the caller guarantees the same.
    Ok(unsafe { write_output(into, stat.into()) }?)
}

/// Opens the store at a location: `dir:PATH`, the path of a directory, `unix:PATH`,
/// `quell://HOST:PORT?key=FILE`, or `rados://POOL/NAMESPACE?key=FILE` for the present server of a
/// store in RADOS; the last two with `&encrypt` for an encrypted connection. A directory that does
/// not exist is created with mode 0700. If a server has the directory open, this process becomes a
/// client of the server. `options` may be NULL.
///
/// Fails with EBUSY if another process has the store open and is no server, with ENOTCONN if no
/// server answers, with ENOENT if a pool of RADOS has no store, with EACCES if the directory
/// belongs to another user or if others have access to it, with EEXIST if it has other files, and
/// with EIO if the store does not have its format.
///
/// # Safety
///
/// `location` is NULL or a string that ends with a NUL; `options` is NULL or initialized; `store`
/// is NULL or a variable for the handle.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_open(
    location: *const c_char,
    options: *const OptionsC,
    store: *mut *mut StoreHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (location, options) = unsafe {
            check_output(store)?;
            (text(location)?, if options.is_null() { None } else { Some(handle(options, "options")?) })
        };
        let location = std::str::from_utf8(location)
            .map_err(|_| invalid("open the store", "the location is not UTF-8"))?;
        let in_flight_max = match options.map_or(0, |options| options.in_flight_max) {
            0 => IN_FLIGHT_MAX,
            chosen => chosen as usize,
        };
        let opened = match options.is_some_and(|options| options.must_exist != 0) {
            true => Store::open_existing(location)?,
            false => Store::open(location)?,
        };
        let callbacks = Callbacks::new(in_flight_max);
        let opened = StoreHandle(Owned::new(Arc::new(OpenStore { store: opened, callbacks })));
        // SAFETY: the caller meets the requirements above.
        unsafe { return_handle(store, opened) };
        Ok(())
    })
}

/// Waits until all callbacks have returned, and closes the store. Its directory or connection stays
/// open until its transactions and snapshots are closed as well. Fails with EDEADLK in a callback;
/// then the store stays open. Does nothing for NULL.
///
/// # Safety
///
/// `store` is NULL or an open handle that no other thread uses, and that is not used afterwards.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_close(store: *mut StoreHandle) -> c_int {
    status(|| {
        if store.is_null() {
            return Ok(());
        }
        // SAFETY: the caller meets the requirements above.
        if let Ok(open) = unsafe { handle(store, "a store")? }.open() {
            open.callbacks.close()?;
        }
        // SAFETY: the caller meets the requirements above.
        drop(unsafe { take_handle(store) });
        Ok(())
    })
}

/// Waits until the callbacks of all submitted operations have returned. Fails with EDEADLK in a
/// callback.
///
/// # Safety
///
/// `store` is NULL or an open store.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_drain(store: *const StoreHandle) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let store = unsafe { handle(store, "a store")? }.open()?;
        Ok(store.callbacks.drain()?)
    })
}

/// Creates an empty blob. Fails with EEXIST if there is a blob of this name.
///
/// # Safety
///
/// `store` is NULL or an open store; `name` has `name_bytes` bytes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_create(
    store: *const StoreHandle,
    name: *const c_void,
    name_bytes: usize,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, name) = unsafe { (handle(store, "a store")?.open()?, bytes(name, name_bytes)?) };
        store.store.create(name)
    })
}

/// Deletes a blob. Fails with ENOENT if there is no blob of this name.
///
/// # Safety
///
/// `store` is NULL or an open store; `name` has `name_bytes` bytes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_delete(
    store: *const StoreHandle,
    name: *const c_void,
    name_bytes: usize,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, name) = unsafe { (handle(store, "a store")?.open()?, bytes(name, name_bytes)?) };
        store.store.delete(name)
    })
}

/// Gives a blob another name, without a copy of its content. Fails with ENOENT if there is no blob
/// of this name, and with EEXIST if there is a blob of the other name.
///
/// # Safety
///
/// `store` is NULL or an open store; `name` has `name_bytes` bytes, and `to` has `to_bytes` bytes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_rename(
    store: *const StoreHandle,
    name: *const c_void,
    name_bytes: usize,
    to: *const c_void,
    to_bytes: usize,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, name, to) =
            unsafe { (handle(store, "a store")?.open()?, bytes(name, name_bytes)?, bytes(to, to_bytes)?) };
        store.store.rename(name, to)
    })
}

/// Writes bytes of a blob. A blob that ends before `offset` is extended with zeros. Fails with
/// ENOENT if there is no blob of this name.
///
/// # Safety
///
/// `store` is NULL or an open store; `name` has `name_bytes` bytes, and `data` has `length` bytes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_write(
    store: *const StoreHandle,
    name: *const c_void,
    name_bytes: usize,
    offset: u64,
    data: *const c_void,
    length: usize,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, name, data) =
            unsafe { (handle(store, "a store")?.open()?, bytes(name, name_bytes)?, bytes(data, length)?) };
        store.store.write(name, offset, data)
    })
}

/// Writes bytes at the end of a blob, and returns their offset. Fails with ENOENT if there is no
/// blob of this name.
///
/// # Safety
///
/// `store` is NULL or an open store; `name` has `name_bytes` bytes, and `data` has `length` bytes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_append(
    store: *const StoreHandle,
    name: *const c_void,
    name_bytes: usize,
    data: *const c_void,
    length: usize,
) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, name, data) =
            unsafe { (handle(store, "a store")?.open()?, bytes(name, name_bytes)?, bytes(data, length)?) };
        Ok(store.store.append(name, data)? as i64)
    })
}

/// Sets the size of a blob: truncates it, or extends it with zeros, which need no space. Fails with
/// ENOENT if there is no blob of this name.
///
/// # Safety
///
/// `store` is NULL or an open store; `name` has `name_bytes` bytes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_resize(
    store: *const StoreHandle,
    name: *const c_void,
    name_bytes: usize,
    size_bytes: u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, name) = unsafe { (handle(store, "a store")?.open()?, bytes(name, name_bytes)?) };
        store.store.resize(name, size_bytes)
    })
}

/// Replaces numbers in a blob, in one commit and without reading them. If `transform` asks for the
/// numbers before the transform, they are copied to `before`, and their length in bytes is
/// returned; otherwise 0 is returned, and `before` may be NULL. `before_bytes` is the space in
/// `before`.
///
/// Fails with ENOENT if there is no blob of this name, with EINVAL for a transform that is not
/// defined or a result outside the range of the type (QUELL_BLOB_OVERFLOW), with ECANCELED if a
/// compare-and-set found another number (QUELL_BLOB_DIFFERENT), and with ERANGE if the space is too
/// small. Then nothing is changed.
///
/// # Safety
///
/// `store` is NULL or an open store; `name` has `name_bytes` bytes; `transform` is NULL or
/// initialized, with pointers to as many bytes as it states; `before` has space for `before_bytes`
/// bytes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_apply(
    store: *const StoreHandle,
    name: *const c_void,
    name_bytes: usize,
    offset: u64,
    transform: *const TransformC,
    before: *mut c_void,
    before_bytes: usize,
) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, name, transform, before) = unsafe {
            (
                handle(store, "a store")?.open()?,
                bytes(name, name_bytes)?,
                self::transform(transform)?,
                slice_mut(before.cast::<u8>(), before_bytes)?,
            )
        };
        let returns_before = transform.returns_before;
        if returns_before && (before.len() as u64) < transform.length_bytes() {
            return Err(too_small().into());
        }
        let operation = Operation::Transform { name: name.to_vec(), offset, transform };
        let committed = store.store.commit(vec![operation])?;
        match (returns_before, committed.results.first()) {
            (true, Some(result)) => copy_before(result, before),
            _ => Ok(0),
        }
    })
}

/// Reads bytes of the latest state of a blob, and returns their number. It is less than `length` at
/// the end of the blob only. Fails with ENOENT if there is no blob of this name, and with EIO if
/// data does not have its checksum.
///
/// # Safety
///
/// `store` is NULL or an open store; `name` has `name_bytes` bytes; `into` has space for `length`
/// bytes, which no other thread uses during the call.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_read(
    store: *const StoreHandle,
    name: *const c_void,
    name_bytes: usize,
    offset: u64,
    into: *mut c_void,
    length: usize,
) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, name, into) = unsafe {
            let into = slice_mut(into.cast::<u8>(), length)?;
            (handle(store, "a store")?.open()?, bytes(name, name_bytes)?, into)
        };
        Ok(store.store.read(name, offset, into)? as i64)
    })
}

/// Sets `attributes` to the attributes of a blob in the latest state. Fails with ENOENT if there is
/// no blob of this name.
///
/// # Safety
///
/// `store` is NULL or an open store; `name` has `name_bytes` bytes; `attributes` is NULL or a
/// variable for the attributes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_stat(
    store: *const StoreHandle,
    name: *const c_void,
    name_bytes: usize,
    attributes: *mut AttributesC,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, name) = unsafe { (handle(store, "a store")?.open()?, bytes(name, name_bytes)?) };
        // SAFETY: the caller meets the requirements above.
        unsafe { write_attributes(name, store.store.stat(name)?, attributes) }
    })
}

/// Removes all data that neither the latest state nor a snapshot needs. Commits also remove such
/// data, after some of it has accumulated.
///
/// # Safety
///
/// `store` is NULL or an open store.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_collect(store: *const StoreHandle) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let store = unsafe { handle(store, "a store")? }.open()?;
        store.store.collect()
    })
}
