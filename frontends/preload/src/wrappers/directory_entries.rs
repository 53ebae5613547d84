//! getdents64(2) and getdirentries(3): the entries of a directory by its descriptor.

use libc::{c_char, c_int, c_void, off_t, size_t, ssize_t};

use crate::attributes::entry_type;
use crate::descriptors::{self, Description};
use crate::errno::{Errno, Outcome};
use crate::next::wrap;
use crate::open_dir::read_batch;
use crate::placeholder::{self, borrow};
use crate::wrappers::with_descriptor;

/// The offset of the name in an entry, and the alignment of entries.
const NAME_OFFSET: usize = std::mem::offset_of!(libc::dirent64, d_name);
const ALIGNMENT: usize = align_of::<libc::dirent64>();

/// Fills a buffer with the entries after the position of the descriptor, and returns the number of
/// bytes. Errors: ENOTDIR; EINVAL if the buffer has no space for one entry.
fn fill(fd: c_int, description: &Description, into: &mut [u8]) -> Outcome<ssize_t> {
    let dir = descriptors::dir(description)?;
    let mut used = 0;
    let mut position = placeholder::position(borrow(fd))?;
    'full: loop {
        let entries = read_batch(dir, position)?;
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            let length = (NAME_OFFSET + entry.name.len() + 1).next_multiple_of(ALIGNMENT);
            let Some(space) = into.get_mut(used..used + length) else {
                if used == 0 {
                    return Err(Errno(libc::EINVAL));
                }
                break 'full;
            };
            space.fill(0);
            space[..8].copy_from_slice(&dir.dir.identity(entry.node).inode.to_ne_bytes());
            space[8..16].copy_from_slice(&entry.next.to_ne_bytes());
            space[16..18].copy_from_slice(&(length as u16).to_ne_bytes());
            space[18] = entry_type(entry.kind);
            space[NAME_OFFSET..NAME_OFFSET + entry.name.len()].copy_from_slice(&entry.name);
            used += length;
            position = entry.next;
        }
    }
    placeholder::set_position(borrow(fd), position)?;
    Ok(used as ssize_t)
}

/// Returns a buffer of the caller.
///
/// # Safety
///
/// `buffer` has space for `length` bytes.
unsafe fn buffer<'a>(buffer: *mut c_void, length: size_t) -> Outcome<&'a mut [u8]> {
    if buffer.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(buffer.cast(), length.min(c_int::MAX as usize)) })
}

wrap! {
    fn getdents64(fd: c_int, into: *mut c_void, length: size_t) -> ssize_t, |next| {
        // SAFETY: the caller's arguments are valid for getdents64(2).
        with_descriptor(fd, || unsafe { next(fd, into, length) }, |description| {
            // SAFETY: as above.
            fill(fd, description, unsafe { buffer(into, length) }?)
        })
    }
}

macro_rules! getdirentries {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(fd: c_int, into: *mut c_char, length: size_t, base: *mut off_t) -> ssize_t, |next| {
                // SAFETY: the caller's arguments are valid for getdirentries(3).
                with_descriptor(fd, || unsafe { next(fd, into, length, base) }, |description| {
                    let start = placeholder::position(borrow(fd))?;
                    // SAFETY: as above.
                    let filled = fill(fd, description, unsafe { buffer(into.cast(), length) }?)?;
                    // SAFETY: as above.
                    unsafe { *base = start as off_t };
                    Ok(filled)
                })
            }
        }
    )*};
}

getdirentries!(getdirentries, getdirentries64);
