//! Stores, and operations on them by path.

use std::ffi::{c_char, c_int};

use quell_client::{Attributes, Batch, Choices, Client, Error, ErrorKind, Result, Store};

use quell_boundary::{
    check_output, handle, number, path, return_handle, slice, status, take_handle, text, write_output,
};

/// Stores opened as one directory tree, or a batch of a store for batches.
pub enum StoreHandle {
    #[doc(hidden)]
    Log(Store),
    #[doc(hidden)]
    Batch(Box<Batch>),
}

impl StoreHandle {
    /// Returns the files of the tree.
    pub(crate) fn files(&self) -> Result<&Client> {
        match self {
            StoreHandle::Log(store) => Ok(store),
            StoreHandle::Batch(batch) => batch.files(),
        }
    }

    /// Returns the log stores, for operations on the index of a file.
    pub(crate) fn log(&self) -> Result<&Store> {
        match self {
            StoreHandle::Log(store) => Ok(store),
            StoreHandle::Batch(_) => {
                Err(unsupported("use the index of a file of", "a batch has no such index"))
            }
        }
    }

    pub(crate) fn batch(&self) -> Result<&Batch> {
        match self {
            StoreHandle::Batch(batch) => Ok(batch),
            StoreHandle::Log(_) => Err(unsupported("end", "it is not a batch")),
        }
    }
}

fn unsupported(operation: &'static str, reason: &'static str) -> Error {
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::Unsupported, operation, "a store") }
}

/// Options for reading and writing files. 0 selects the default.
#[repr(C)]
pub struct ChoicesC {
    /// The size of the write buffer of a process for one file, in bytes (default 1 MiB). Its
    /// content is then appended to the log.
    pub buffer_bytes: usize,
    /// The number of threads that read the index when a file is opened (default 4).
    pub index_threads: usize,
    /// If the index of a file has at most this many bytes, the last writer that closes the file
    /// flattens it (default: never).
    pub flatten_bytes: u64,
}

/// The attributes of a file, directory or symbolic link.
#[repr(C)]
pub struct StatC {
    /// In bytes.
    pub size_bytes: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    /// As st_mode, for S_ISDIR(mode) and the other macros of sys/stat.h.
    pub mode: u32,
    /// The number of names; 1 for a file of a log store.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The time of the last change of the content, in seconds since 1970 (UTC).
    pub modified_s: i64,
    /// The time of the last change of the content or the attributes, in seconds since 1970 (UTC).
    pub changed_s: i64,
    /// The nanoseconds of `modified_s`: 0 to 999,999,999.
    pub modified_ns: u32,
    /// The nanoseconds of `changed_s`: 0 to 999,999,999.
    pub changed_ns: u32,
    /// Identifies a node among those that are open in this process. It is not valid in other
    /// processes.
    pub node: u64,
}

impl StatC {
    /// Translates attributes of the contract.
    pub fn from_attributes(attributes: &Attributes) -> StatC {
        let Attributes { modified, changed, .. } = attributes;
        StatC {
            size_bytes: attributes.size_bytes,
            blocks: attributes.blocks,
            mode: attributes.mode(),
            links: attributes.nlink,
            uid: attributes.uid,
            gid: attributes.gid,
            modified_s: modified.seconds,
            changed_s: changed.seconds,
            modified_ns: modified.nanoseconds,
            changed_ns: changed.nanoseconds,
            node: attributes.node.0,
        }
    }
}

/// Opens the directories `paths` as one directory tree. The directories must exist; missing
/// internal files in them are created. All processes must open the tree with the same directories.
/// `choices` may be NULL.
///
/// # Safety
///
/// `paths` has `count` pointers, each NULL or a string that ends with a NUL; `choices` is NULL or
/// initialized; `store` is NULL or a variable for the handle.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_store_open(
    paths: *const *const c_char,
    count: usize,
    choices: *const ChoicesC,
    store: *mut *mut StoreHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (paths, choices) = unsafe {
            check_output(store)?;
            let paths = slice(paths, count)?.iter().map(|each| path(*each)).collect::<Result<Vec<_>>>()?;
            (paths, if choices.is_null() { None } else { Some(handle(choices, "choices")?) })
        };
        let mut chosen = Choices::default();
        if let Some(choices) = choices {
            let usual = |value: usize, usual| if value == 0 { usual } else { value };
            chosen.buffer_bytes = usual(choices.buffer_bytes, chosen.buffer_bytes);
            chosen.index_threads = usual(choices.index_threads, chosen.index_threads);
            chosen.flatten_bytes = choices.flatten_bytes;
        }
        let opened = StoreHandle::Log(Store::open(&paths, chosen)?);
        // SAFETY: the caller meets the requirements above.
        unsafe { return_handle(store, opened) };
        Ok(())
    })
}

/// Closes the store. Files that were opened in it stay open. A batch that was not committed is
/// aborted, as by quell_batch_abort, unless a call of quell_batch_commit has written its changes to
/// the store; handles of its open files stay valid, and are closed with quell_close. The handle is
/// closed also if an error is returned. Does nothing for NULL.
///
/// # Safety
///
/// `store` is NULL or an open handle that no other thread uses, and that is not used afterwards.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_store_close(store: *mut StoreHandle) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        match unsafe { take_handle(store) }.map(|handle| *handle) {
            Some(StoreHandle::Batch(batch)) => batch.close(),
            Some(StoreHandle::Log(_)) | None => Ok(()),
        }
    })
}

/// Sets `stat` to the attributes of the file, directory or symbolic link at `path`.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL; `stat` is
/// NULL or a variable for the attributes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_stat(
    store: *const StoreHandle,
    path: *const c_char,
    stat: *mut StatC,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, path) = unsafe { (handle(store, "a store")?, text(path)?) };
        let found = StatC::from_attributes(&store.files()?.stat(path)?);
        // SAFETY: the caller meets the requirements above.
        unsafe { write_output(stat, found) }
    })
}

/// Sets the size of the file to `size_bytes`. Data beyond it is removed; a file that becomes longer
/// is filled with zeros.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_truncate(
    store: *const StoreHandle,
    path: *const c_char,
    size_bytes: u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, path) = unsafe { (handle(store, "a store")?, text(path)?) };
        store.files()?.truncate(path, size_bytes)
    })
}

/// Merges the indexes of the published data of a file into one, which makes later opens of a file
/// with many writers much faster. Data written afterwards is found through its own index. Returns
/// the size of the merged index in bytes.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_flatten(store: *const StoreHandle, path: *const c_char) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, path) = unsafe { (handle(store, "a store")?, text(path)?) };
        Ok(store.log()?.flatten(path)?.bytes as i64)
    })
}

/// Removes a file or symbolic link. Files that are open in this process keep their data until they
/// are closed.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_remove(store: *const StoreHandle, path: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, path) = unsafe { (handle(store, "a store")?, text(path)?) };
        store.files()?.remove(path)
    })
}

/// Renames `from` to `to`, and replaces an existing entry of that name.
///
/// # Safety
///
/// `store` is NULL or an open store; `from` and `to` are each NULL or a string that ends with a
/// NUL.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_rename(
    store: *const StoreHandle,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, from, to) = unsafe { (handle(store, "a store")?, text(from)?, text(to)?) };
        store.files()?.rename(from, to)
    })
}

/// Creates a directory with `permissions`, reduced by the umask.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_mkdir(
    store: *const StoreHandle,
    path: *const c_char,
    permissions: u32,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, path) = unsafe { (handle(store, "a store")?, text(path)?) };
        store.files()?.make_dir(path, permissions)
    })
}

/// Removes an empty directory.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_rmdir(store: *const StoreHandle, path: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, path) = unsafe { (handle(store, "a store")?, text(path)?) };
        store.files()?.remove_dir(path)
    })
}
