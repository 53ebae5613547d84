//! Stores, and what is asked of them by path.

use std::ffi::{c_char, c_int};

use quell_client::{Attributes, Choices, Store};

use crate::boundary::{done, give, handle, many, number, path, place_for, put, take, text};

/// Stores that are open as one tree of files.
pub struct StoreHandle(pub(crate) Store);

/// How files are read and written. 0 stands for what is usual.
#[repr(C)]
pub struct ChoicesC {
    /// What a process collects of what it writes to one file before it is appended to the log (1 MiB).
    pub buffer_bytes: usize,
    /// Threads that read the index when a file is opened (4).
    pub index_threads: usize,
    /// When the last writer of a file ends, its index is flattened if all of it is not larger than this (never).
    pub flatten_bytes: u64,
}

/// What there is to know about a file, directory or symbolic link.
#[repr(C)]
pub struct StatC {
    pub size_bytes: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    /// As st_mode: S_ISDIR(mode) and the others of sys/stat.h tell what it is.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub modified_s: i64,
    pub changed_s: i64,
    pub modified_ns: u32,
    pub changed_ns: u32,
    /// Tells apart what is open at the same time in this process. It means nothing to another one.
    pub node: u64,
}

impl StatC {
    pub fn of(attributes: &Attributes) -> StatC {
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

/// Opens the directories `paths` as one tree of files, and makes what each of them keeps for itself where it is missing. The
/// directories themselves must be there, and everybody who opens the tree names the same ones. `choices` may be NULL.
///
/// # Safety
///
/// `paths` has `count` pointers, each NULL or a string that ends with a zero; `choices` is NULL or
/// filled; `store` is NULL or a variable to write the handle to.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_store_open(
    paths: *const *const c_char,
    count: usize,
    choices: *const ChoicesC,
    store: *mut *mut StoreHandle,
) -> c_int {
    done(|| {
        // SAFETY: the caller keeps to the conditions above.
        let (paths, choices) = unsafe {
            place_for(store)?;
            let paths = many(paths, count)?.iter().map(|each| path(*each)).collect::<Result<Vec<_>, _>>()?;
            (paths, if choices.is_null() { None } else { Some(handle(choices, "choices")?) })
        };
        let mut chosen = Choices::default();
        if let Some(choices) = choices {
            let usual = |value: usize, usual| if value == 0 { usual } else { value };
            chosen.buffer_bytes = usual(choices.buffer_bytes, chosen.buffer_bytes);
            chosen.index_threads = usual(choices.index_threads, chosen.index_threads);
            chosen.flatten_bytes = choices.flatten_bytes;
        }
        let opened = StoreHandle(Store::open(&paths, chosen)?);
        // SAFETY: the caller keeps to the conditions above.
        unsafe { give(store, opened) };
        Ok(())
    })
}

/// Closes the store; files that were opened in it stay open. NULL is nothing to close.
///
/// # Safety
///
/// `store` is NULL or an open handle that no other thread uses and nothing uses afterwards.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_store_close(store: *mut StoreHandle) -> c_int {
    done(|| {
        // SAFETY: the caller keeps to the conditions above.
        drop(unsafe { take(store) });
        Ok(())
    })
}

/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a zero; `stat` is NULL or
/// a variable to write to.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_stat(
    store: *const StoreHandle,
    path: *const c_char,
    stat: *mut StatC,
) -> c_int {
    done(|| {
        // SAFETY: the caller keeps to the conditions above.
        let (store, path) = unsafe { (handle(store, "a store")?, text(path)?) };
        let found = StatC::of(&store.0.stat(path)?);
        // SAFETY: the caller keeps to the conditions above.
        unsafe { put(stat, found) }
    })
}

/// Makes the file `size_bytes` long: bytes from there on are gone, or it is filled up with zeros.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a zero.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_truncate(
    store: *const StoreHandle,
    path: *const c_char,
    size_bytes: u64,
) -> c_int {
    done(|| {
        // SAFETY: the caller keeps to the conditions above.
        let (store, path) = unsafe { (handle(store, "a store")?, text(path)?) };
        store.0.truncate(path, size_bytes)
    })
}

/// Makes one index of what was published of a file, for all who open it from now on: with many writers that takes a fraction of the
/// time. What is written afterwards is found beside it. Returns how many bytes the index has.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a zero.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_flatten(store: *const StoreHandle, path: *const c_char) -> i64 {
    number(|| {
        // SAFETY: the caller keeps to the conditions above.
        let (store, path) = unsafe { (handle(store, "a store")?, text(path)?) };
        Ok(store.0.flatten(path)?.bytes as i64)
    })
}

/// Removes a file or symbolic link. Who has the file open in this process keeps it until it is closed.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a zero.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_remove(store: *const StoreHandle, path: *const c_char) -> c_int {
    done(|| {
        // SAFETY: the caller keeps to the conditions above.
        let (store, path) = unsafe { (handle(store, "a store")?, text(path)?) };
        store.0.remove(path)
    })
}

/// Gives `from` the name `to`, which is replaced if it is there.
///
/// # Safety
///
/// `store` is NULL or an open store; `from` is NULL or a string that ends with a zero; `to` is NULL or a
/// string that ends with a zero.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_rename(
    store: *const StoreHandle,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    done(|| {
        // SAFETY: the caller keeps to the conditions above.
        let (store, from, to) = unsafe { (handle(store, "a store")?, text(from)?, text(to)?) };
        store.0.rename(from, to)
    })
}

/// Makes a directory; the umask is taken away from `permissions`.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a zero.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_mkdir(
    store: *const StoreHandle,
    path: *const c_char,
    permissions: u32,
) -> c_int {
    done(|| {
        // SAFETY: the caller keeps to the conditions above.
        let (store, path) = unsafe { (handle(store, "a store")?, text(path)?) };
        store.0.make_dir(path, permissions)
    })
}

/// Removes an empty directory.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a zero.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_rmdir(store: *const StoreHandle, path: *const c_char) -> c_int {
    done(|| {
        // SAFETY: the caller keeps to the conditions above.
        let (store, path) = unsafe { (handle(store, "a store")?, text(path)?) };
        store.0.remove_dir(path)
    })
}
