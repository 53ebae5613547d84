//! The last error of each thread: its message, its reason, and the conflicts of a transaction.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};

use quell_blob::{Conflict, Error, Part, Refusal, Result};

use quell_boundary::{guard, last_message, store_message, write_output};

/// A reason that has no number of its own: the error number states it.
pub const QUELL_BLOB_FAILED: u32 = 0;
/// Other transactions have changed data that the transaction has read (ECANCELED).
pub const QUELL_BLOB_CONFLICT: u32 = 1;
/// The state that the snapshot or transaction reads is no longer kept (ESTALE).
pub const QUELL_BLOB_SNAPSHOT_TOO_OLD: u32 = 2;
/// A compare-and-set found another number than the expected one (ECANCELED).
pub const QUELL_BLOB_DIFFERENT: u32 = 3;
/// The result of a checked transform is outside the range of its type (EINVAL).
pub const QUELL_BLOB_OVERFLOW: u32 = 4;

/// A part of a blob: whether it exists.
pub const QUELL_BLOB_EXISTENCE: u32 = 0;
/// A part of a blob: its size.
pub const QUELL_BLOB_SIZE: u32 = 1;
/// A part of a blob: its bytes from `start` up to `end`, exclusive.
pub const QUELL_BLOB_RANGE: u32 = 2;
/// The names that begin with the name of the conflict.
pub const QUELL_BLOB_NAMES: u32 = 3;

/// The reason of an error.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FailureC {
    /// QUELL_BLOB_FAILED, _CONFLICT, _SNAPSHOT_TOO_OLD, _DIFFERENT or _OVERFLOW.
    pub reason: u32,
    /// 1 if the same transaction can succeed when it is repeated from the beginning, otherwise 0.
    pub is_repeatable: c_int,
    /// The index of the operation in the transaction, from 0; -1 if none of them is the reason.
    pub operation: i64,
    /// The index of the number in the range of a transform, from 0.
    pub cell: u32,
    /// The length of the number that a compare-and-set found, in bytes; otherwise 0.
    pub found_bytes: u32,
    /// The number that a compare-and-set found, little endian.
    pub found: [u8; 8],
}

/// A part of a blob, or of the list of names.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PartC {
    /// QUELL_BLOB_EXISTENCE, _SIZE, _RANGE or _NAMES.
    pub kind: u32,
    /// For QUELL_BLOB_RANGE, the first byte.
    pub start: u64,
    /// For QUELL_BLOB_RANGE, the byte after the last one.
    pub end: u64,
}

/// A part that a transaction has read, and that another one has changed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ConflictC {
    /// The name of the blob, or the prefix of names.
    pub name: *const c_void,
    /// The length of the name, in bytes.
    pub name_bytes: usize,
    /// The part as the transaction has read it.
    pub read: PartC,
    /// The part that was changed.
    pub changed: PartC,
}

/// The details of the last error. The pointers in `listed` are to the names in `conflicts`.
struct LastError {
    failure: FailureC,
    conflicts: Vec<Conflict>,
    listed: Vec<ConflictC>,
}

const UNKNOWN: FailureC = FailureC {
    reason: QUELL_BLOB_FAILED,
    is_repeatable: 0,
    operation: -1,
    cell: 0,
    found_bytes: 0,
    found: [0; 8],
};

thread_local! {
    static LAST: RefCell<LastError> =
        const { RefCell::new(LastError { failure: UNKNOWN, conflicts: Vec::new(), listed: Vec::new() }) };
}

/// Returns the result of `call`, or the negative error number.
pub fn number(call: impl FnOnce() -> Result<i64>) -> i64 {
    let mut has_panicked = true;
    let answer = guard(|| {
        let answer = call().unwrap_or_else(store);
        has_panicked = false;
        answer
    });
    if has_panicked {
        replace(UNKNOWN, Vec::new());
    }
    answer
}

/// Does the same as `number`, for functions that return only success or an error.
pub fn status(call: impl FnOnce() -> Result<()>) -> c_int {
    number(|| call().map(|()| 0)) as c_int
}

/// Stores an error as the last one of this thread, and returns the negative error number.
pub fn store(error: Error) -> i64 {
    store_message(error.to_string());
    let answer = -i64::from(error.kind().errno());
    let mut failure = FailureC { is_repeatable: error.is_repeatable().into(), ..UNKNOWN };
    let mut conflicts = Vec::new();
    match error {
        Error::Refused(Refusal::Conflict(found)) => {
            failure.reason = QUELL_BLOB_CONFLICT;
            conflicts = found;
        }
        Error::Refused(Refusal::SnapshotTooOld) => failure.reason = QUELL_BLOB_SNAPSHOT_TOO_OLD,
        Error::Refused(Refusal::Different { operation, cell, found }) => {
            let found_bytes = found.len().min(failure.found.len());
            failure.found[..found_bytes].copy_from_slice(&found[..found_bytes]);
            failure = FailureC {
                reason: QUELL_BLOB_DIFFERENT,
                operation: operation.into(),
                cell,
                found_bytes: found_bytes as u32,
                ..failure
            };
        }
        Error::Refused(Refusal::Overflow { operation, cell }) => {
            failure = FailureC { reason: QUELL_BLOB_OVERFLOW, operation: operation.into(), cell, ..failure };
        }
        Error::Refused(Refusal::Failed { operation, .. }) => {
            failure.operation = operation.map_or(-1, i64::from);
        }
        Error::Store(error) if error.kind == quell_vfs::ErrorKind::Stale => {
            failure.reason = QUELL_BLOB_SNAPSHOT_TOO_OLD;
        }
        Error::Refused(Refusal::Locked { .. } | Refusal::Aborted) | Error::Store(_) => {}
    }
    replace(failure, conflicts);
    answer
}

fn replace(failure: FailureC, conflicts: Vec<Conflict>) {
    let part = |part: &Part| match part {
        Part::Existence => PartC { kind: QUELL_BLOB_EXISTENCE, start: 0, end: 0 },
        Part::Size => PartC { kind: QUELL_BLOB_SIZE, start: 0, end: 0 },
        Part::Range { start, end } => PartC { kind: QUELL_BLOB_RANGE, start: *start, end: *end },
        Part::NamesWithPrefix => PartC { kind: QUELL_BLOB_NAMES, start: 0, end: 0 },
    };
    let listed = conflicts.iter().map(|conflict| ConflictC {
        name: conflict.read.name.as_ptr().cast(),
        name_bytes: conflict.read.name.len(),
        read: part(&conflict.read.part),
        changed: part(&conflict.changed),
    });
    let listed = listed.collect();
    // While the thread is being destroyed, no caller can read the error.
    let _ = LAST.try_with(|last| last.replace(LastError { failure, conflicts, listed }));
}

/// Returns the message of the last error in this thread; never NULL. It is valid until the next
/// error in this thread, or until the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn quell_blob_last_error() -> *const c_char {
    last_message()
}

/// Sets `failure` to the reason of the last error in this thread.
///
/// # Safety
///
/// `failure` is NULL or a variable for the reason.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_last_failure(failure: *mut FailureC) -> c_int {
    let last = LAST.try_with(|last| last.borrow().failure).unwrap_or(UNKNOWN);
    // An error of this call does not replace the last one.
    // SAFETY: the caller meets the requirements above.
    match unsafe { write_output(failure, last) } {
        Ok(()) => 0,
        Err(error) => -error.errno(),
    }
}

/// Sets `conflicts` to the conflicts of the last error in this thread, and returns their number: 0
/// if the error is no conflict. They are valid until the next error in this thread, or until the
/// thread ends.
///
/// # Safety
///
/// `conflicts` is NULL or a variable for the pointer.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_last_conflicts(conflicts: *mut *const ConflictC) -> i64 {
    let (first, count) = LAST
        .try_with(|last| {
            let last = last.borrow();
            debug_assert_eq!(last.conflicts.len(), last.listed.len());
            (last.listed.as_ptr(), last.listed.len())
        })
        .unwrap_or((std::ptr::null(), 0));
    // SAFETY: the caller meets the requirements above.
    match unsafe { write_output(conflicts, first) } {
        Ok(()) => count as i64,
        Err(error) => -i64::from(error.errno()),
    }
}
