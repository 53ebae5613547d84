//! Transactions: operations and reads that are committed together, or not at all.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quell_blob::{Committed, Error, FileAttributes, OPERATIONS_MAX, Operation, Result, Retries, Transaction};
use quell_boundary::{check_output, handle, invalid, last_message, return_handle, slice_mut, take_handle};
use quell_threads::lock;
use quell_vfs::ErrorKind;

use crate::errors::{number, status};
use crate::owner::Owned;
use crate::results::ResultHandle;
use crate::snapshots::NamesHandle;
use crate::stores::{AttributesC, FileAttributesC, OpenStore, StoreHandle, bytes, write_attributes};
use crate::transforms::{TransformC, transform};

/// A transaction that is not committed.
pub struct TransactionHandle(Owned<OpenTransaction>);

/// A transaction, with the store that it belongs to.
pub struct OpenTransaction {
    pub store: Arc<OpenStore>,
    changes: Mutex<Changes>,
}

/// The state of a transaction.
pub enum Changes {
    /// The transaction reads one state of the store.
    Reading(Transaction),
    /// The transaction cannot read.
    Batch(Vec<Operation>),
    /// The transaction was committed, or its commit has failed.
    Ended,
}

impl TransactionHandle {
    fn begin(store: &Arc<OpenStore>, changes: Changes) -> TransactionHandle {
        let store = store.clone();
        TransactionHandle(Owned::new(OpenTransaction { store, changes: Mutex::new(changes) }))
    }

    pub(crate) fn open(&self) -> Result<&OpenTransaction> {
        Ok(self.0.get()?)
    }
}

impl OpenTransaction {
    fn add(&self, operation: Operation) -> Result<()> {
        match &mut *lock(&self.changes) {
            Changes::Reading(transaction) => transaction.add(operation),
            Changes::Batch(operations) if operations.len() == OPERATIONS_MAX => {
                Err(invalid("add an operation", "a transaction has at most 16,384 operations").into())
            }
            Changes::Batch(operations) => {
                operations.push(operation);
                Ok(())
            }
            Changes::Ended => Err(ended()),
        }
    }

    fn with_reads<T>(&self, read: impl FnOnce(&mut Transaction) -> Result<T>) -> Result<T> {
        let mut changes: MutexGuard<'_, Changes> = lock(&self.changes);
        match &mut *changes {
            Changes::Reading(transaction) => read(transaction),
            Changes::Batch(_) => Err(invalid("read", "a batch cannot read: see quell_blob_begin").into()),
            Changes::Ended => Err(ended()),
        }
    }

    /// Ends the transaction, and returns its changes.
    pub fn end(&self) -> Changes {
        std::mem::replace(&mut *lock(&self.changes), Changes::Ended)
    }

    fn commit(&self) -> Result<Committed> {
        match self.end() {
            Changes::Reading(transaction) => transaction.commit(),
            Changes::Batch(operations) => self.store.store.commit(operations),
            Changes::Ended => Err(ended()),
        }
    }
}

/// Returns the error for a transaction whose commit was begun.
pub fn ended() -> Error {
    invalid("use the transaction", "it was committed, or its commit has failed").into()
}

/// The attempts of a transaction that conflicts, and their delays. 0 selects the default.
#[repr(C)]
pub struct RetriesC {
    /// The largest number of attempts (default 20).
    pub attempts_max: u32,
    /// The mean time before the second attempt, in microseconds (default 100). It doubles with each
    /// attempt.
    pub first_delay_us: u32,
    /// The largest mean time before an attempt, in microseconds (default 1,000,000).
    pub delay_max_us: u32,
}

impl RetriesC {
    fn retries(&self) -> Retries {
        let usual = Retries::default();
        let delay = |microseconds: u32, usual| match microseconds {
            0 => usual,
            given => Duration::from_micros(given.into()),
        };
        Retries {
            attempts_max: if self.attempts_max == 0 { usual.attempts_max } else { self.attempts_max },
            first_delay: delay(self.first_delay_us, usual.first_delay),
            delay_max: delay(self.delay_max_us, usual.delay_max),
        }
    }
}

/// Begins a transaction. It reads the latest state and its own changes. Others see its changes
/// after its commit, all at once. The commit fails with ECANCELED (QUELL_BLOB_CONFLICT) if another
/// transaction has changed a part that this one has read.
///
/// # Safety
///
/// `store` is NULL or an open store; `transaction` is NULL or a variable for the handle.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_begin(
    store: *const StoreHandle,
    transaction: *mut *mut TransactionHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let store = unsafe {
            check_output(transaction)?;
            handle(store, "a store")?.open()?
        };
        let begun = TransactionHandle::begin(store, Changes::Reading(store.store.begin()?));
        // SAFETY: the caller meets the requirements above.
        unsafe { return_handle(transaction, begun) };
        Ok(())
    })
}

/// Begins a transaction that cannot read, and never conflicts. Unlike quell_blob_begin, it sends no
/// request to a server before its commit. It has at most 16,384 operations.
///
/// # Safety
///
/// `store` is NULL or an open store; `transaction` is NULL or a variable for the handle.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_batch(
    store: *const StoreHandle,
    transaction: *mut *mut TransactionHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let store = unsafe {
            check_output(transaction)?;
            handle(store, "a store")?.open()?
        };
        let begun = TransactionHandle::begin(store, Changes::Batch(Vec::new()));
        // SAFETY: the caller meets the requirements above.
        unsafe { return_handle(transaction, begun) };
        Ok(())
    })
}

/// Adds the creation of an empty blob. If the blob exists, the commit fails with EEXIST, unless
/// `may_exist` is not 0; then the blob is left unchanged.
///
/// # Safety
///
/// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_transaction_create(
    transaction: *const TransactionHandle,
    name: *const c_void,
    name_bytes: usize,
    may_exist: c_int,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (open, name) =
            unsafe { (handle(transaction, "a transaction")?.open()?, bytes(name, name_bytes)?) };
        open.add(Operation::Create { name: name.to_vec(), may_exist: may_exist != 0 })
    })
}

/// Adds the deletion of a blob. The commit fails with ENOENT if it does not exist.
///
/// # Safety
///
/// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_transaction_delete(
    transaction: *const TransactionHandle,
    name: *const c_void,
    name_bytes: usize,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (open, name) =
            unsafe { (handle(transaction, "a transaction")?.open()?, bytes(name, name_bytes)?) };
        open.add(Operation::Delete { name: name.to_vec() })
    })
}

/// Adds a change of the name of a blob, whose content is not copied. The commit fails with EEXIST
/// if the other name is in use.
///
/// # Safety
///
/// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes, and `to` has
/// `to_bytes` bytes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_transaction_rename(
    transaction: *const TransactionHandle,
    name: *const c_void,
    name_bytes: usize,
    to: *const c_void,
    to_bytes: usize,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (open, name, to) = unsafe {
            let open = handle(transaction, "a transaction")?.open()?;
            (open, bytes(name, name_bytes)?, bytes(to, to_bytes)?)
        };
        open.add(Operation::Rename { name: name.to_vec(), to: to.to_vec() })
    })
}

/// Adds a write of bytes, which are copied. The commit fails with ENOENT if there is no blob of
/// this name.
///
/// # Safety
///
/// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes, and `data` has
/// `length` bytes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_transaction_write(
    transaction: *const TransactionHandle,
    name: *const c_void,
    name_bytes: usize,
    offset: u64,
    data: *const c_void,
    length: usize,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (open, name, data) = unsafe {
            let open = handle(transaction, "a transaction")?.open()?;
            (open, bytes(name, name_bytes)?, bytes(data, length)?)
        };
        open.add(Operation::Write { name: name.to_vec(), offset, data: data.to_vec() })
    })
}

/// Adds a write of bytes, which are copied, at the end of a blob. The result of the commit has
/// their offset. Appends of several transactions do not conflict.
///
/// # Safety
///
/// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes, and `data` has
/// `length` bytes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_transaction_append(
    transaction: *const TransactionHandle,
    name: *const c_void,
    name_bytes: usize,
    data: *const c_void,
    length: usize,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (open, name, data) = unsafe {
            let open = handle(transaction, "a transaction")?.open()?;
            (open, bytes(name, name_bytes)?, bytes(data, length)?)
        };
        open.add(Operation::Append { name: name.to_vec(), data: data.to_vec() })
    })
}

/// Adds a change of the size of a blob.
///
/// # Safety
///
/// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_transaction_resize(
    transaction: *const TransactionHandle,
    name: *const c_void,
    name_bytes: usize,
    size_bytes: u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (open, name) =
            unsafe { (handle(transaction, "a transaction")?.open()?, bytes(name, name_bytes)?) };
        open.add(Operation::Resize { name: name.to_vec(), size_bytes })
    })
}

/// Adds a change of the attributes of a blob as a file, which the store keeps and does not
/// interpret, or of the time of its last change, in nanoseconds since 1970 (UTC). NULL leaves the
/// attributes or the time as they are. The commit fails with ENOENT if there is no blob of this
/// name.
///
/// # Safety
///
/// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes; `file` and
/// `modified_ns` are NULL or initialized.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_transaction_set_attributes(
    transaction: *const TransactionHandle,
    name: *const c_void,
    name_bytes: usize,
    file: *const FileAttributesC,
    modified_ns: *const u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (open, name, file, modified_ns) = unsafe {
            let open = handle(transaction, "a transaction")?.open()?;
            (open, bytes(name, name_bytes)?, file.as_ref(), modified_ns.as_ref().copied())
        };
        let file = file.map(|file| FileAttributes { mode: file.mode, uid: file.uid, gid: file.gid });
        open.add(Operation::SetAttributes { name: name.to_vec(), file, modified_ns })
    })
}

/// Adds a transform. It is applied to the numbers at the commit, so that transforms of several
/// transactions do not conflict.
///
/// # Safety
///
/// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes; `transform` is NULL
/// or initialized, with pointers to as many bytes as it states.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_transaction_apply(
    transaction: *const TransactionHandle,
    name: *const c_void,
    name_bytes: usize,
    offset: u64,
    transform: *const TransformC,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (open, name, transform) = unsafe {
            let open = handle(transaction, "a transaction")?.open()?;
            (open, bytes(name, name_bytes)?, self::transform(transform)?)
        };
        open.add(Operation::Transform { name: name.to_vec(), offset, transform })
    })
}

/// Reads bytes, including the changes of this transaction, and returns their number. It is less
/// than `length` at the end of the blob only. Fails with ENOENT if there is no blob of this name,
/// with the reason for which an earlier operation of the transaction cannot be applied, and with
/// ESTALE if the state is no longer kept.
///
/// # Safety
///
/// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes; `into` has space
/// for `length` bytes, which no other thread uses during the call.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_transaction_read(
    transaction: *const TransactionHandle,
    name: *const c_void,
    name_bytes: usize,
    offset: u64,
    into: *mut c_void,
    length: usize,
) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let (open, name, into) = unsafe {
            let open = handle(transaction, "a transaction")?.open()?;
            (open, bytes(name, name_bytes)?, slice_mut(into.cast::<u8>(), length)?)
        };
        Ok(open.with_reads(|transaction| transaction.read(name, offset, into))? as i64)
    })
}

/// Sets `attributes` to the attributes of a blob, including the changes of this transaction. Fails
/// with ENOENT if there is no blob of this name. The commit fails if the size or existence has
/// changed; a change of the time is no conflict.
///
/// # Safety
///
/// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes; `attributes` is
/// NULL or a variable for the attributes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_transaction_stat(
    transaction: *const TransactionHandle,
    name: *const c_void,
    name_bytes: usize,
    attributes: *mut AttributesC,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (open, name) =
            unsafe { (handle(transaction, "a transaction")?.open()?, bytes(name, name_bytes)?) };
        let found = open.with_reads(|transaction| transaction.stat(name))?;
        // SAFETY: the caller meets the requirements above.
        unsafe { write_attributes(name, found, attributes) }
    })
}

/// Lists blobs as quell_blob_snapshot_list does, including the changes of this transaction. The
/// commit fails if a blob whose name begins with `prefix` was created or deleted.
///
/// # Safety
///
/// `transaction` is NULL or an open transaction; `prefix` has `prefix_bytes` bytes, and `after` has
/// `after_bytes` bytes; `names` is NULL or a variable for the handle.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_transaction_list(
    transaction: *const TransactionHandle,
    prefix: *const c_void,
    prefix_bytes: usize,
    after: *const c_void,
    after_bytes: usize,
    count_max: usize,
    names: *mut *mut NamesHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (open, prefix, after) = unsafe {
            check_output(names)?;
            let open = handle(transaction, "a transaction")?.open()?;
            (open, bytes(prefix, prefix_bytes)?, bytes(after, after_bytes)?)
        };
        let found = open.with_reads(|transaction| transaction.list(prefix, after, count_max))?;
        // SAFETY: the caller meets the requirements above.
        unsafe { return_handle(names, NamesHandle::new(found)) };
        Ok(())
    })
}

/// Returns the version of the state that the transaction reads, which is never negative. Fails with
/// EINVAL for a batch.
///
/// # Safety
///
/// `transaction` is NULL or an open transaction.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_transaction_version(transaction: *const TransactionHandle) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let open = unsafe { handle(transaction, "a transaction")? }.open()?;
        Ok(open.with_reads(|transaction| Ok(transaction.version()))?.0 as i64)
    })
}

/// Commits a transaction. When the call returns, all readers see it, and it survives a power
/// failure. If it fails, it has changed nothing, with the exceptions of ETIMEDOUT, ENOTCONN and
/// EIO, after which it can have taken effect. The transaction has ended in either case: other
/// functions fail with EINVAL, and the handle must be closed. `result` may be NULL.
///
/// # Safety
///
/// `transaction` is NULL or an open transaction; `result` is NULL or a variable for the result.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_commit(
    transaction: *const TransactionHandle,
    result: *mut *mut ResultHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let open = unsafe {
            check_result(result)?;
            handle(transaction, "a transaction")?.open()?
        };
        let committed = open.commit()?;
        // SAFETY: the caller meets the requirements above.
        unsafe { return_result(result, committed) };
        Ok(())
    })
}

/// Checks a variable for a result, which may be NULL, and sets it to NULL.
///
/// # Safety
///
/// `result` is NULL or a variable for the result.
// SAFETY: the section above states the conditions.
unsafe fn check_result(result: *mut *mut ResultHandle) -> Result<()> {
    if result.is_null() {
        return Ok(());
    }
    // SAFETY: the caller guarantees the same.
    Ok(unsafe { check_output(result) }?)
}

/// Stores a result in a variable, unless it is NULL.
///
/// # Safety
///
/// As for `check_result`, which has accepted the variable.
// SAFETY: the section above states the conditions.
unsafe fn return_result(result: *mut *mut ResultHandle, committed: Committed) {
    if !result.is_null() {
        // SAFETY: `check_result` has accepted it.
        unsafe { return_handle(result, ResultHandle(committed)) };
    }
}

/// Frees a transaction. One that was not committed changes nothing. Does nothing for NULL.
///
/// # Safety
///
/// `transaction` is NULL or an open handle that no other thread uses, and that is not used
/// afterwards.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_transaction_close(transaction: *mut TransactionHandle) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        drop(unsafe { take_handle(transaction) });
        Ok(())
    })
}

/// The body of a transaction: see quell_blob_transact.
// SAFETY: a call needs an open transaction and the pointer that quell_blob_transact states.
pub type BodyC =
    Option<unsafe extern "C" fn(transaction: *const TransactionHandle, context: *mut c_void) -> c_int>;

/// Begins a transaction, passes it to `body` with `context`, and commits it. After a conflict, and
/// if the state is no longer kept, all of this is repeated after a delay. `body` is called on this
/// thread, and may be called several times. It must neither commit nor close the transaction.
///
/// If `body` returns 0, the transaction is committed. If it returns a negative number, for example
/// the result of a failed read, the transaction is not committed; after -ECANCELED and -ESTALE it
/// is repeated, and all other numbers are returned. A positive number ends the transaction without
/// a commit, and is returned. `retries` and `result` may be NULL. After the last attempt, the error
/// of its commit is returned.
///
/// # Safety
///
/// `store` is NULL or an open store; `retries` is NULL or initialized; `body` is NULL or a function
/// that returns to its caller; `result` is NULL or a variable for the result.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_blob_transact(
    store: *const StoreHandle,
    retries: *const RetriesC,
    body: BodyC,
    context: *mut c_void,
    result: *mut *mut ResultHandle,
) -> c_int {
    let answer = number(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, retries) = unsafe {
            check_result(result)?;
            let retries = if retries.is_null() { None } else { Some(handle(retries, "retries")?) };
            (handle(store, "a store")?.open()?, retries)
        };
        let body = body.ok_or_else(|| invalid("transact", "the function is NULL"))?;
        let retries = retries.map_or_else(Retries::default, RetriesC::retries);
        let (answer, committed) = retries.repeat(|| {
            let begun = TransactionHandle::begin(store, Changes::Reading(store.store.begin()?));
            // SAFETY: the transaction is open during the call, and the caller guarantees that the
            // function returns.
            match unsafe { body(&begun, context) } {
                0 => Ok((0, Some(begun.open()?.commit()?))),
                answer if answer < 0 => Err(body_error(answer)),
                answer => Ok((answer, None)),
            }
        })?;
        if let Some(committed) = committed {
            // SAFETY: the caller meets the requirements above.
            unsafe { return_result(result, committed) };
        }
        Ok(answer.into())
    });
    answer as c_int
}

/// Returns the error of a body that has returned a negative error number.
fn body_error(answer: c_int) -> Error {
    let kind = ErrorKind::from_errno(answer.checked_neg().unwrap_or(c_int::MAX));
    // SAFETY: the message is a string of this thread, which no call replaces meanwhile.
    let message = unsafe { std::ffi::CStr::from_ptr(last_message()) }.to_string_lossy().into_owned();
    let source = (!message.is_empty()).then(|| format!("last error: {message}").into());
    quell_vfs::Error { source, ..quell_vfs::Error::new(kind, "run the body of the transaction", "") }.into()
}
