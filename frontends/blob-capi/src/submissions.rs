//! Commits and reads whose results are passed to a callback.

use std::ffi::{c_int, c_void};

use quell_blob::{Committed, Result, SUBMITTED_READ_BYTES_MAX};
use quell_boundary::{handle, invalid, slice_mut};

use crate::errors::{number, status, store as store_error};
use crate::results::ResultHandle;
use crate::stores::{StoreHandle, bytes};
use crate::transactions::{Changes, TransactionHandle, ended};

/// Receives the result of a commit: see quell_blob_submit.
// SAFETY: a call needs the pointers that quell_blob_submit states.
pub type CommittedC =
    Option<unsafe extern "C" fn(context: *mut c_void, status: c_int, result: *const ResultHandle)>;

/// Receives the result of a read: see quell_blob_submit_read.
// SAFETY: a call needs the pointer that quell_blob_submit_read states.
pub type ReadC = Option<unsafe extern "C" fn(context: *mut c_void, count: i64)>;

/// A pointer that the caller passes on to its callback.
struct Context(*mut c_void);

// SAFETY: the library only passes the pointer on; the caller knows the thread of its callbacks.
unsafe impl Send for Context {}

/// The caller's memory for the bytes of a read.
struct Destination {
    start: *mut u8,
    length: usize,
}

// SAFETY: the caller leaves the memory to the library until the callback is called.
unsafe impl Send for Destination {}

impl Context {
    // A method, so that a closure takes the whole value.
    fn pointer(self) -> *mut c_void {
        self.0
    }
}

/// Commits a transaction as quell_blob_commit does, without waiting. If the call succeeds, `done`
/// is called exactly once, with `context`, with 0 or the negative error number, and with the
/// result, or NULL after an error. The result is valid until `done` returns. If the call fails,
/// `done` is not called. The handle can be closed at once.
///
/// The call waits while the largest number of operations is in flight: see quell_blob_options. Data
/// of 32 KiB and more of an operation is written before the call returns, unless a server has the
/// store open.
///
/// Callbacks of a store are called by one thread, one after another, when a result is available.
/// They may call all functions but quell_blob_close and quell_blob_drain, and the functions that
/// submit an operation do not wait in them. In a callback, quell_blob_last_error() and the details
/// of the error describe the operation. While a callback runs, others of the store wait.
///
/// # Safety
///
/// `transaction` is NULL or an open transaction; `done` is NULL or a function that can be called by
/// another thread with `context`, and that returns to its caller.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_submit(
    transaction: *const TransactionHandle,
    done: CommittedC,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let open = unsafe { handle(transaction, "a transaction")? }.open()?;
        let done = done.ok_or_else(|| invalid("submit", "the function is NULL"))?;
        let context = Context(context);
        let changes = open.end();
        if matches!(changes, Changes::Ended) {
            return Err(ended());
        }
        let in_flight = open.store.callbacks.begin()?;
        let finish = move |committed: Result<Committed>| {
            in_flight.finish(Box::new(move || {
                let (status, result) = match committed {
                    Ok(committed) => (0, Some(ResultHandle(committed))),
                    Err(error) => (store_error(error) as c_int, None),
                };
                let result = result.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                // SAFETY: the caller guarantees that the function can be called with the pointer.
                unsafe { done(context.pointer(), status, result) };
            }));
        };
        match changes {
            Changes::Reading(transaction) => transaction.submit(finish),
            Changes::Batch(operations) => open.store.store.submit(operations, finish),
            Changes::Ended => unreachable!("it was excluded above"),
        }
        Ok(())
    })
}

/// Reads as quell_blob_read does, without waiting. If the call succeeds, `done` is called exactly
/// once, with `context`, and with the number of bytes or the negative error number. Until then
/// `into` must not be used. The rules of quell_blob_submit for callbacks and for waiting apply. At
/// most 64 MiB can be read.
///
/// # Safety
///
/// `store` is NULL or an open store; `name` has `name_bytes` bytes; `into` has space for `length`
/// bytes until `done` is called; `done` is NULL or a function that can be called by another thread
/// with `context`, and that returns to its caller.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_submit_read(
    store: *const StoreHandle,
    name: *const c_void,
    name_bytes: usize,
    offset: u64,
    into: *mut c_void,
    length: usize,
    done: ReadC,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, name, into) = unsafe {
            let into = slice_mut(into.cast::<u8>(), length)?;
            (handle(store, "a store")?.open()?, bytes(name, name_bytes)?, into)
        };
        let done = done.ok_or_else(|| invalid("submit", "the function is NULL"))?;
        if length > SUBMITTED_READ_BYTES_MAX {
            return Err(invalid("submit", "a submitted read has at most 64 MiB").into());
        }
        let (context, into) = (Context(context), Destination { start: into.as_mut_ptr(), length });
        let in_flight = store.callbacks.begin()?;
        store.store.submit_read(name, offset, length, move |read| {
            in_flight.finish(Box::new(move || {
                let count = number(|| into.fill(&read?));
                // SAFETY: the caller guarantees that the function can be called with the pointer.
                unsafe { done(context.pointer(), count) };
            }));
        });
        Ok(())
    })
}

impl Destination {
    /// Copies bytes to the memory, and returns their number.
    fn fill(self, bytes: &[u8]) -> Result<i64> {
        // SAFETY: the caller of the read guarantees that no other thread uses the memory until the
        // callback is called.
        let into = unsafe { slice_mut(self.start, self.length) }?;
        into[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len() as i64)
    }
}
