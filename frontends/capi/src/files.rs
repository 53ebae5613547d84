//! Open files: reads and writes at offsets, of one range or of several.

use std::ffi::{c_char, c_int, c_void};

use quell_client::{ClientFile, Create, OpenOptions, Result};

use crate::stores::{StatC, StoreHandle};
use quell_boundary::{
    check_output, handle, invalid, number, return_handle, slice, slice_mut, status, take_handle, text,
    write_output,
};

/// The flags of open(2), the same on every architecture that Quell supports.
const ACCESS: c_int = 0o3;
const READ_WRITE: c_int = 0o2;
const CREATE: c_int = 0o100;
const EXCLUSIVE: c_int = 0o200;
const TRUNCATE: c_int = 0o1000;
const CLOSE_ON_EXEC: c_int = 0o2_000_000;

/// An open file.
pub struct FileHandle(pub(crate) ClientFile);

/// A range of a file to read into memory.
#[repr(C)]
pub struct ReadPiece {
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The memory to read into: at least `length` bytes.
    pub into: *mut c_void,
    /// The number of bytes to read.
    pub length: usize,
    /// The number of bytes read: less than `length` only if the file ends there.
    pub received: usize,
}

/// A range of a file to write from memory.
#[repr(C)]
pub struct WritePiece {
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The memory to write from: at least `length` bytes.
    pub from: *const c_void,
    /// The number of bytes to write.
    pub length: usize,
}

/// Opens the regular file at `path`. `flags` consists of flags of fcntl.h: one of O_RDONLY,
/// O_WRONLY and O_RDWR, and any of O_CREAT, O_EXCL, O_TRUNC and O_CLOEXEC. Others, including
/// O_APPEND, are errors (see quell_append). A file that is created gets `permissions`, reduced by
/// the umask.
///
/// # Safety
///
/// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL; `file` is
/// NULL or a variable for the handle.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_open(
    store: *const StoreHandle,
    path: *const c_char,
    flags: c_int,
    permissions: u32,
    file: *mut *mut FileHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let (store, path) = unsafe {
            check_output(file)?;
            (handle(store, "a store")?, text(path)?)
        };
        let options = OpenOptions { permissions, ..open_options(flags)? };
        let opened = FileHandle(store.files()?.open_file(path, options)?);
        // SAFETY: the caller meets the requirements above.
        unsafe { return_handle(file, opened) };
        Ok(())
    })
}

/// Checks that the total length of several ranges can be returned by a function.
fn bound(lengths: impl Iterator<Item = usize>) -> Result<()> {
    let total =
        lengths.into_iter().try_fold(0_i64, |total, length| total.checked_add(length.try_into().ok()?));
    total.map(drop).ok_or_else(|| invalid("use pieces", "together they are longer than a file can be"))
}

pub(crate) fn open_options(flags: c_int) -> Result<OpenOptions> {
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
    Ok(OpenOptions { read, write, create, truncate: flags & TRUNCATE != 0, ..OpenOptions::READ })
}

/// Publishes all written data and closes the file. The file is closed even if publishing fails.
/// Does nothing for NULL.
///
/// # Safety
///
/// `file` is NULL or an open handle that no other thread uses, and that is not used afterwards.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_close(file: *mut FileHandle) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let file = unsafe { take_handle(file) };
        file.map_or(Ok(()), |file| file.0.close())
    })
}

/// Reads up to `length` bytes from `offset`, and returns the number of bytes read. It is less than
/// `length` only if the file ends there.
///
/// # Safety
///
/// `file` is NULL or an open file; `into` is NULL or has space for `length` bytes that nothing else
/// uses during the call.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_pread(
    file: *const FileHandle,
    into: *mut c_void,
    length: usize,
    offset: u64,
) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let (file, into) = unsafe { (handle(file, "a file")?, slice_mut(into.cast::<u8>(), length)?) };
        Ok(file.0.read_at(into, offset)? as i64)
    })
}

/// Writes all `length` bytes at `offset`, and returns `length`. After an error, any part of them
/// may have been written.
///
/// # Safety
///
/// `file` is NULL or an open file; `from` is NULL or has `length` bytes that do not change during
/// the call.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_pwrite(
    file: *const FileHandle,
    from: *const c_void,
    length: usize,
    offset: u64,
) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let (file, from) = unsafe { (handle(file, "a file")?, slice(from.cast::<u8>(), length)?) };
        file.0.write_at(from, offset)?;
        Ok(length as i64)
    })
}

/// Appends all `length` bytes at the end of the file as known to this process, and returns their
/// offset.
///
/// # Safety
///
/// `file` is NULL or an open file; `from` is NULL or has `length` bytes that do not change during
/// the call.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_append(file: *const FileHandle, from: *const c_void, length: usize) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let (file, from) = unsafe { (handle(file, "a file")?, slice(from.cast::<u8>(), length)?) };
        Ok(file.0.append(from)? as i64)
    })
}

/// Reads several ranges in one call, sets `received` in each, and returns the total number of bytes
/// read. The buffers must not overlap.
///
/// # Safety
///
/// `file` is NULL or an open file; `pieces` has `count` elements, each `into` has space for
/// `length` bytes, and no two of these buffers overlap or are used by another thread.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_read_pieces(
    file: *const FileHandle,
    pieces: *mut ReadPiece,
    count: usize,
) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let (file, pieces) = unsafe { (handle(file, "a file")?, slice_mut(pieces, count)?) };
        for piece in &mut *pieces {
            piece.received = 0;
        }
        bound(pieces.iter().map(|piece| piece.length))?;
        let mut wanted = Vec::with_capacity(count);
        for piece in &*pieces {
            // SAFETY: the caller guarantees the space, and that no two buffers overlap.
            let into = unsafe { slice_mut(piece.into.cast::<u8>(), piece.length)? };
            wanted.push((piece.offset, into));
        }
        let received = file.0.read_pieces(&mut wanted)?;
        for (piece, received) in pieces.iter_mut().zip(&received) {
            piece.received = *received;
        }
        Ok(received.iter().sum::<usize>() as i64)
    })
}

/// Writes several ranges in one call, in order: where two overlap, the later one remains. Returns
/// the total number of bytes written.
///
/// # Safety
///
/// `file` is NULL or an open file; `pieces` has `count` elements, and each `from` has `length`
/// bytes that do not change during the call.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_write_pieces(
    file: *const FileHandle,
    pieces: *const WritePiece,
    count: usize,
) -> i64 {
    number(|| {
        // SAFETY: the caller meets the requirements above.
        let (file, pieces) = unsafe { (handle(file, "a file")?, slice(pieces, count)?) };
        bound(pieces.iter().map(|piece| piece.length))?;
        let mut given = Vec::with_capacity(count);
        for piece in pieces {
            // SAFETY: the caller guarantees the bytes.
            let from = unsafe { slice(piece.from.cast::<u8>(), piece.length)? };
            given.push((piece.offset, from));
        }
        file.0.write_pieces(&given)?;
        Ok(given.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() as i64)
    })
}

/// Makes all data written so far visible to processes that open the file from now on.
///
/// # Safety
///
/// `file` is NULL or an open file.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_publish(file: *const FileHandle) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let file = unsafe { handle(file, "a file")? };
        file.0.publish()
    })
}

/// As quell_publish; in addition the data survives a power failure, and data that other processes
/// have published becomes visible.
///
/// # Safety
///
/// `file` is NULL or an open file.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_sync(file: *const FileHandle) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let file = unsafe { handle(file, "a file")? };
        file.0.sync()
    })
}

/// Sets `stat` to the attributes of the file.
///
/// # Safety
///
/// `file` is NULL or an open file; `stat` is NULL or a variable for the attributes.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_file_stat(file: *const FileHandle, stat: *mut StatC) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
        let file = unsafe { handle(file, "a file")? };
        let found = StatC::from_attributes(&file.0.stat()?);
        // SAFETY: the caller meets the requirements above.
        unsafe { write_output(stat, found) }
    })
}

/// Sets the size of the file to `size_bytes`. Data beyond it is removed; a file that becomes longer
/// is filled with zeros.
///
/// # Safety
///
/// `file` is NULL or an open file.
// SAFETY: no other symbol has this name; the section above states the requirements on the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_file_truncate(file: *const FileHandle, size_bytes: u64) -> c_int {
    status(|| {
        // SAFETY: the caller meets the requirements above.
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
    fn flags_of_open_2_are_accepted_and_others_refused() {
        let parsed = |flags| open_options(flags).map(|o| (o.read, o.write, o.create, o.truncate)).ok();
        assert_eq!(parsed(0), Some((true, false, Create::Never, false)));
        assert_eq!(parsed(1 | CREATE), Some((false, true, Create::IfMissing, false)));
        assert_eq!(parsed(2 | CREATE | EXCLUSIVE | TRUNCATE), Some((true, true, Create::New, true)));
        assert_eq!(parsed(3), None);
        assert_eq!(parsed(0o2000), None); // O_APPEND
    }
}
