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
// SAFETY: as the header says of pointers; nothing else has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_store_open(
    paths: *const *const c_char,
    count: usize,
    choices: *const ChoicesC,
    store: *mut *mut StoreHandle,
) -> c_int {
    done(|| {
        place_for(store)?;
        let paths = many(paths, count)?.iter().map(|each| path(*each)).collect::<Result<Vec<_>, _>>()?;
        let mut chosen = Choices::default();
        if let Ok(choices) = handle(choices, "choices") {
            let usual = |value: usize, usual| if value == 0 { usual } else { value };
            chosen.buffer_bytes = usual(choices.buffer_bytes, chosen.buffer_bytes);
            chosen.index_threads = usual(choices.index_threads, chosen.index_threads);
            chosen.flatten_bytes = choices.flatten_bytes;
        }
        give(store, StoreHandle(Store::open(&paths, chosen)?));
        Ok(())
    })
}

/// Closes the store; files that were opened in it stay open. NULL is nothing to close.
// SAFETY: as the header says of pointers; nothing else has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_store_close(store: *mut StoreHandle) -> c_int {
    done(|| {
        drop(take(store));
        Ok(())
    })
}

// SAFETY: as the header says of pointers; nothing else has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_stat(
    store: *const StoreHandle,
    path: *const c_char,
    stat: *mut StatC,
) -> c_int {
    done(|| put(stat, StatC::of(&handle(store, "a store")?.0.stat(text(path)?)?)))
}

/// Makes the file `size_bytes` long: bytes from there on are gone, or it is filled up with zeros.
// SAFETY: as the header says of pointers; nothing else has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_truncate(
    store: *const StoreHandle,
    path: *const c_char,
    size_bytes: u64,
) -> c_int {
    done(|| handle(store, "a store")?.0.truncate(text(path)?, size_bytes))
}

/// Makes one index of what was published of a file, for all who open it from now on: with many writers that takes a fraction of the
/// time. What is written afterwards is found beside it. Returns how many bytes the index has.
// SAFETY: as the header says of pointers; nothing else has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_flatten(store: *const StoreHandle, path: *const c_char) -> i64 {
    number(|| Ok(handle(store, "a store")?.0.flatten(text(path)?)?.bytes as i64))
}

/// Removes a file or symbolic link. Who has the file open in this process keeps it until it is closed.
// SAFETY: as the header says of pointers; nothing else has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_remove(store: *const StoreHandle, path: *const c_char) -> c_int {
    done(|| handle(store, "a store")?.0.remove(text(path)?))
}

/// Gives `from` the name `to`, which is replaced if it is there.
// SAFETY: as the header says of pointers; nothing else has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_rename(
    store: *const StoreHandle,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    done(|| handle(store, "a store")?.0.rename(text(from)?, text(to)?))
}

/// Makes a directory; the umask is taken away from `permissions`.
// SAFETY: as the header says of pointers; nothing else has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_mkdir(
    store: *const StoreHandle,
    path: *const c_char,
    permissions: u32,
) -> c_int {
    done(|| handle(store, "a store")?.0.make_dir(text(path)?, permissions))
}

/// Removes an empty directory.
// SAFETY: as the header says of pointers; nothing else has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_rmdir(store: *const StoreHandle, path: *const c_char) -> c_int {
    done(|| handle(store, "a store")?.0.remove_dir(text(path)?))
}
