//! Batches of a store for batches.

use std::ffi::{c_char, c_int};

use quell_client::{Batch, BatchOptions, BatchSummary, SummaryState};

use crate::stores::StoreHandle;
use quell_boundary::{check_output, handle, number, path, return_handle, slice, status, text, write_output};

/// The options of a new batch. NULL and 0 select the default.
#[repr(C)]
pub struct BatchOptionsC {
    /// The existing directory of the store that the batch changes, with everything below it
    /// (default: the root directory). The paths of the batch are relative to it.
    pub directory: *const c_char,
    /// The name that `quell batch status` shows (default: "libquell").
    pub name: *const c_char,
    /// The user IDs of the owners that the caller trusts: the store belongs to the caller or to one
    /// of them.
    pub trusted_owners: *const u32,
    /// The number of `trusted_owners`.
    pub trusted_owners_count: usize,
    /// If it is not 0, a commit publishes either all changes or none.
    pub is_atomic: c_int,
}

/// The result of a commit.
#[repr(C)]
pub struct BatchResultC {
    /// The number of the batch in its store, for `quell batch conflicts`.
    pub number: u64,
    /// The number of new files, directories and links that were published.
    pub entries: u64,
    /// The number of operations that were not published, because they conflict with changes that
    /// others have published since the batch began.
    pub conflicts: u64,
}

/// Begins a batch in the store for batches at `store`, a directory that `quell batch init` has
/// made. The batch is a directory tree like that of quell_store_open, with the content of the store
/// at the time of the call. Changes of its files and names are executed in this process, without
/// requests to a metadata server, and become visible to others with quell_batch_commit. `options`
/// may be NULL.
///
/// Changes and opens for writing that the permissions of the entries deny to the caller fail with
/// EACCES or EPERM; the owner of a file may always write to it. Names, attributes and contents are
/// read without checks, because all users of a store can read its tables. Locks fail with ENOLCK,
/// and functions for an index with EOPNOTSUPP. `quell batch watch` shows no names of the batch.
///
/// Fails with EBUSY if another open batch changes a part of the same tree, or if another process
/// has the store open for 10 s without serving it; with ENOTCONN if the store belongs to another
/// user and has no server. A process that ends before it has committed or closed the batch leaves
/// an open batch, which `quell batch abort` discards.
///
/// # Safety
///
/// `store` is NULL or a string that ends with a NUL; `options` is NULL or initialized, and
/// `trusted_owners` has `trusted_owners_count` elements; `batch` is NULL or a variable for the
/// handle.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_batch_begin(
    store: *const c_char,
    options: *const BatchOptionsC,
    batch: *mut *mut StoreHandle,
) -> c_int {
    status(|| {
        let mut chosen = BatchOptions { name: "libquell", ..BatchOptions::default() };
        // SAFETY: the caller meets the requirements above.
        let store = unsafe {
            check_output(batch)?;
            if !options.is_null() {
                let options = handle(options, "options")?;
                if !options.directory.is_null() {
                    chosen.directory = text(options.directory)?;
                }
                if !options.name.is_null() {
                    chosen.name = utf8(text(options.name)?)?;
                }
                chosen.trusted_owners = slice(options.trusted_owners, options.trusted_owners_count)?;
                chosen.is_atomic = options.is_atomic != 0;
            }
            path(store)?
        };
        let begun = StoreHandle::Batch(Box::new(Batch::begin(store, chosen)?));
        // SAFETY: the caller meets the requirements above.
        unsafe { return_handle(batch, begun) };
        Ok(())
    })
}

/// Returns the number of the batch in its store.
///
/// # Safety
///
/// `batch` is NULL or a batch.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_batch_number(batch: *const StoreHandle) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let batch = unsafe { handle(batch, "a batch")? };
        Ok(batch.batch()?.number()? as i64)
    })
}

/// Verifies and publishes the changes of a batch. Files of the batch must be closed before, and no
/// other thread may use the batch during the call. Operations that conflict with changes of others
/// are not published; their number is in `result`, which may be NULL, and `quell batch conflicts`
/// lists them. Afterwards, all functions for files of the batch fail with EBADF.
///
/// Fails with EBUSY if a file is open (then the batch can still be changed), if the batch is atomic
/// and has conflicts, or if another process has the store open for 60 s without serving it; with
/// EDQUOT if a limit of the use of the store would be exceeded. After an error, the batch can be
/// committed again or aborted. If the message names `quell batch commit`, the changes are in the
/// store, and this command can commit them after quell_store_close, too. If a server of the store
/// ends during the call, the call waits up to 24 hours for the next one.
///
/// # Safety
///
/// `batch` is NULL or a batch; `result` is NULL or a variable for the result.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_batch_commit(batch: *const StoreHandle, result: *mut BatchResultC) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let batch = unsafe { handle(batch, "a batch")? };
        let BatchSummary { number, state, .. } = batch.batch()?.commit()?;
        let (entries, conflicts) = match state {
            SummaryState::Committed { entries, conflicts } => (entries, conflicts),
            _ => (0, 0),
        };
        if result.is_null() {
            return Ok(());
        }
        // SAFETY: the caller meets the requirements above.
        unsafe { write_output(result, BatchResultC { number, entries, conflicts }) }
    })
}

/// Discards the changes of a batch, also those that are made later through open files. Afterwards,
/// all functions for files of the batch fail with EBADF. Fails with EBUSY if another process has
/// the store open for 60 s without serving it; after an error, the batch can only be aborted again.
///
/// # Safety
///
/// `batch` is NULL or a batch.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_batch_abort(batch: *const StoreHandle) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let batch = unsafe { handle(batch, "a batch")? };
        batch.batch()?.abort().map(drop)
    })
}

fn utf8(name: &[u8]) -> quell_client::Result<&str> {
    std::str::from_utf8(name).map_err(|_| quell_boundary::invalid("begin", "the name is not UTF-8"))
}
