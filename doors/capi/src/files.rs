//! Open files: bytes at offsets, one piece or many.

use std::ffi::{c_char, c_int, c_void};

use quell_client::{Create, How, Result, StoreFile};

use crate::boundary::{done, give, handle, invalid, many, many_mut, number, place_for, put, take, text};
use crate::stores::{StatC, StoreHandle};

/// The flags of open(2) on every architecture that Quell supports.
const ACCESS: c_int = 0o3;
const READ_WRITE: c_int = 0o2;
const CREATE: c_int = 0o100;
const EXCLUSIVE: c_int = 0o200;
const TRUNCATE: c_int = 0o1000;
const CLOSE_ON_EXEC: c_int = 0o2_000_000;

/// An open file.
pub struct FileHandle(StoreFile);

/// Where bytes of the file go to in memory.
#[repr(C)]
pub struct ReadPiece {
    /// Where they begin in the file.
    pub offset: u64,
    pub into: *mut c_void,
    pub length: usize,
    /// How many there were: fewer than `length` only where the file ends.
    pub received: usize,
}

/// Where bytes of the file come from in memory.
#[repr(C)]
pub struct WritePiece {
    /// Where they begin in the file.
    pub offset: u64,
    pub from: *const c_void,
    pub length: usize,
}

/// Opens the regular file at `path`. `flags` are those of fcntl.h: one of O_RDONLY, O_WRONLY and O_RDWR, and any of O_CREAT, O_EXCL,
/// O_TRUNC and O_CLOEXEC; no others (quell_append appends). A file that is made has `permissions` without the umask.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a zero; `file` is NULL or
/// a variable to write the handle to.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_open(
    store: *const StoreHandle,
    path: *const c_char,
    flags: c_int,
    permissions: u32,
    file: *mut *mut FileHandle,
) -> c_int {
    done(|| {
        // SAFETY: the caller keeps to the conditions above.
        let (store, path) = unsafe {
            place_for(file)?;
            (handle(store, "a store")?, text(path)?)
        };
        let how = How { permissions, ..how(flags)? };
        let opened = FileHandle(store.0.open_file(path, how)?);
        // SAFETY: the caller keeps to the conditions above.
        unsafe { give(file, opened) };
        Ok(())
    })
}

/// Refuses pieces that are together longer than what a function can return.
fn bound(lengths: impl Iterator<Item = usize>) -> Result<()> {
    let total =
        lengths.into_iter().try_fold(0_i64, |total, length| total.checked_add(length.try_into().ok()?));
    total.map(drop).ok_or_else(|| invalid("use pieces", "together they are longer than a file can be"))
}

fn how(flags: c_int) -> Result<How> {
    let known = ACCESS | CREATE | EXCLUSIVE | TRUNCATE | CLOSE_ON_EXEC;
    let access = flags & ACCESS;
    if flags & !known != 0 || access > READ_WRITE {
        return Err(invalid("open", "there is a flag that does not work here"));
    }
    let create = match (flags & CREATE != 0, flags & EXCLUSIVE != 0) {
        (false, _) => Create::Never,
        (true, false) => Create::IfMissing,
        (true, true) => Create::New,
    };
    let (read, write) = (access != 1, access != 0);
    Ok(How { read, write, create, truncate: flags & TRUNCATE != 0, ..How::READ })
}

/// Publishes what was written, and closes the file; it is closed also if that fails. NULL is nothing to close.
///
/// # Safety
///
/// `file` is NULL or an open handle that no other thread uses and nothing uses afterwards.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_close(file: *mut FileHandle) -> c_int {
    done(|| {
        // SAFETY: the caller keeps to the conditions above.
        let file = unsafe { take(file) };
        file.map_or(Ok(()), |file| file.0.close())
    })
}

/// Reads up to `length` bytes from `offset` on, and returns how many there were: fewer only where the file ends.
///
/// # Safety
///
/// `file` is NULL or an open file; `into` is NULL or has room for `length` bytes that nothing else uses
/// during the call.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_pread(
    file: *const FileHandle,
    into: *mut c_void,
    length: usize,
    offset: u64,
) -> i64 {
    number(|| {
        // SAFETY: the caller keeps to the conditions above.
        let (file, into) = unsafe { (handle(file, "a file")?, many_mut(into.cast::<u8>(), length)?) };
        Ok(file.0.read_at(into, offset)? as i64)
    })
}

/// Writes all `length` bytes at `offset`, and returns `length`. After an error any part of them may have been written.
///
/// # Safety
///
/// `file` is NULL or an open file; `from` is NULL or has `length` bytes that nothing changes during the
/// call.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_pwrite(
    file: *const FileHandle,
    from: *const c_void,
    length: usize,
    offset: u64,
) -> i64 {
    number(|| {
        // SAFETY: the caller keeps to the conditions above.
        let (file, from) = unsafe { (handle(file, "a file")?, many(from.cast::<u8>(), length)?) };
        file.0.write_at(from, offset)?;
        Ok(length as i64)
    })
}

/// Writes all `length` bytes where the file ends as this process knows it, and returns where that was.
///
/// # Safety
///
/// `file` is NULL or an open file; `from` is NULL or has `length` bytes that nothing changes during the
/// call.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_append(file: *const FileHandle, from: *const c_void, length: usize) -> i64 {
    number(|| {
        // SAFETY: the caller keeps to the conditions above.
        let (file, from) = unsafe { (handle(file, "a file")?, many(from.cast::<u8>(), length)?) };
        Ok(file.0.append(from)? as i64)
    })
}

/// Reads all pieces in one call, says in each how many bytes it received, and returns how many that were together.
/// The pieces' memory must not overlap.
///
/// # Safety
///
/// `file` is NULL or an open file; `pieces` has `count` pieces, each `into` has room for `length` bytes,
/// and no two of these overlap or are used by another thread.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_read_pieces(
    file: *const FileHandle,
    pieces: *mut ReadPiece,
    count: usize,
) -> i64 {
    number(|| {
        // SAFETY: the caller keeps to the conditions above.
        let (file, pieces) = unsafe { (handle(file, "a file")?, many_mut(pieces, count)?) };
        for piece in &mut *pieces {
            piece.received = 0;
        }
        bound(pieces.iter().map(|piece| piece.length))?;
        let mut wanted = Vec::with_capacity(count);
        for piece in &*pieces {
            // SAFETY: the caller promises room, and that no two pieces overlap.
            let into = unsafe { many_mut(piece.into.cast::<u8>(), piece.length)? };
            wanted.push((piece.offset, into));
        }
        let received = file.0.read_pieces(&mut wanted)?;
        for (piece, received) in pieces.iter_mut().zip(&received) {
            piece.received = *received;
        }
        Ok(received.iter().sum::<usize>() as i64)
    })
}

/// Writes all pieces in one call, in order: a later one wins where two overlap. Returns how many bytes that were.
///
/// # Safety
///
/// `file` is NULL or an open file; `pieces` has `count` pieces, and each `from` has `length` bytes that
/// nothing changes during the call.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_write_pieces(
    file: *const FileHandle,
    pieces: *const WritePiece,
    count: usize,
) -> i64 {
    number(|| {
        // SAFETY: the caller keeps to the conditions above.
        let (file, pieces) = unsafe { (handle(file, "a file")?, many(pieces, count)?) };
        bound(pieces.iter().map(|piece| piece.length))?;
        let mut given = Vec::with_capacity(count);
        for piece in pieces {
            // SAFETY: the caller promises the bytes.
            let from = unsafe { many(piece.from.cast::<u8>(), piece.length)? };
            given.push((piece.offset, from));
        }
        file.0.write_pieces(&given)?;
        Ok(given.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() as i64)
    })
}

/// What was written so far is there for everybody who opens the file from now on.
///
/// # Safety
///
/// `file` is NULL or an open file.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_publish(file: *const FileHandle) -> c_int {
    done(|| {
        // SAFETY: the caller keeps to the conditions above.
        let file = unsafe { handle(file, "a file")? };
        file.0.publish()
    })
}

/// As quell_publish, it survives a loss of power, and what others have published is seen from now on.
///
/// # Safety
///
/// `file` is NULL or an open file.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_sync(file: *const FileHandle) -> c_int {
    done(|| {
        // SAFETY: the caller keeps to the conditions above.
        let file = unsafe { handle(file, "a file")? };
        file.0.sync()
    })
}

/// # Safety
///
/// `file` is NULL or an open file; `stat` is NULL or a variable to write to.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_file_stat(file: *const FileHandle, stat: *mut StatC) -> c_int {
    done(|| {
        // SAFETY: the caller keeps to the conditions above.
        let file = unsafe { handle(file, "a file")? };
        let found = StatC::of(&file.0.stat()?);
        // SAFETY: the caller keeps to the conditions above.
        unsafe { put(stat, found) }
    })
}

/// Makes the file `size_bytes` long: bytes from there on are gone, or it is filled up with zeros.
///
/// # Safety
///
/// `file` is NULL or an open file.
// SAFETY: nothing else has this name; the section above states the conditions of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_file_truncate(file: *const FileHandle, size_bytes: u64) -> c_int {
    done(|| {
        // SAFETY: the caller keeps to the conditions above.
        let file = unsafe { handle(file, "a file")? };
        file.0.truncate(size_bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_are_too_long_together_are_refused() {
        let half = (i64::MAX / 2) as usize;
        assert!(bound([half, half, 1].into_iter()).is_ok());
        assert!(bound([half, half, 2].into_iter()).is_err());
        assert!(bound([usize::MAX].into_iter()).is_err());
    }

    #[test]
    fn flags_are_those_of_the_system_and_others_are_refused() {
        let how = |flags| how(flags).map(|how| (how.read, how.write, how.create, how.truncate)).ok();
        assert_eq!(how(0), Some((true, false, Create::Never, false)));
        assert_eq!(how(1 | CREATE), Some((false, true, Create::IfMissing, false)));
        assert_eq!(how(2 | CREATE | EXCLUSIVE | TRUNCATE), Some((true, true, Create::New, true)));
        assert_eq!(how(3), None);
        assert_eq!(how(0o2000), None); // O_APPEND
    }
}
