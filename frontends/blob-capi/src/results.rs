//! Results of committed transactions.

use std::ffi::{c_int, c_void};

use quell_blob::{Committed, OperationResult, Result};
use quell_boundary::{handle, invalid, slice_mut, take_handle};
use quell_vfs::{Error, ErrorKind};

use crate::errors::{number, status};

const ERANGE: i32 = 34;

/// The result of a transaction that was committed.
pub struct ResultHandle(pub(crate) Committed);

impl ResultHandle {
    fn operation(&self, index: usize) -> Result<&OperationResult> {
        let found = self.0.results.get(index);
        Ok(found.ok_or_else(|| invalid("read a result", "the transaction has no operation of this index"))?)
    }
}

/// Returns the version of the state after the transaction, which is never negative. Later
/// transactions get the same or a larger one.
///
/// # Safety
///
/// `result` is NULL or the result of a transaction that is not closed.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_result_version(result: *const ResultHandle) -> i64 {
    // SAFETY: the caller meets the requirements above.
    number(|| Ok(unsafe { handle(result, "a result")? }.0.version.0 as i64))
}

/// Returns the offset at which the data of an append begins. `operation` is the index of the append
/// in the transaction, from 0. Fails with EINVAL if the operation is not an append.
///
/// # Safety
///
/// `result` is NULL or the result of a transaction that is not closed.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_result_appended(result: *const ResultHandle, operation: usize) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let result = unsafe { handle(result, "a result")? };
        match result.operation(operation)? {
            OperationResult::Appended(offset) => Ok(*offset as i64),
            _ => Err(invalid("read a result", "the operation is no append").into()),
        }
    })
}

/// Copies the numbers before a transform, for which `returns_before` was set, to `into`, and
/// returns their length in bytes. `operation` is the index of the transform in the transaction,
/// from 0. Fails with EINVAL if there are no such numbers, and with ERANGE if `space` is too small.
///
/// # Safety
///
/// `result` is NULL or the result of a transaction that is not closed; `into` has space for `space`
/// bytes, or is NULL.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_result_before(
    result: *const ResultHandle,
    operation: usize,
    into: *mut c_void,
    space: usize,
) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let (result, into) = unsafe { (handle(result, "a result")?, slice_mut(into.cast::<u8>(), space)?) };
        copy_before(result.operation(operation)?, into)
    })
}

/// Copies the numbers before a transform, and returns their length in bytes.
pub fn copy_before(result: &OperationResult, into: &mut [u8]) -> Result<i64> {
    let OperationResult::Before(before) = result else {
        return Err(invalid("read a result", "the operation returns no numbers").into());
    };
    let into = into.get_mut(..before.len()).ok_or_else(too_small)?;
    into.copy_from_slice(before);
    Ok(before.len() as i64)
}

/// Returns the error for numbers that are longer than the space for them.
pub fn too_small() -> Error {
    let source = Some("the space for the numbers is too small".into());
    Error { source, ..Error::new(ErrorKind::Os(ERANGE), "read a result", "") }
}

/// Frees a result. Does nothing for NULL.
///
/// # Safety
///
/// `result` is NULL or a result that no other thread uses, and that is not used afterwards. A
/// result that was passed to a callback must not be freed.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_result_close(result: *mut ResultHandle) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        drop(unsafe { take_handle(result) });
        Ok(())
    })
}
