//! Directory streams: opendir(3), readdir(3) and their relatives.

use libc::{DIR, c_char, c_int, c_long};

use crate::descriptors;
use crate::errno::{self, Errno, Outcome};
use crate::guard::{inside, is_inside};
use crate::next::wrap;
use crate::open_dir::{self, Stream, add_stream};
use crate::wrappers::open::open_path;
use crate::wrappers::{bytes, opened};

wrap! {
    fn opendir(path: *const c_char) -> *mut DIR, |next| {
        if path.is_null() || is_inside() || !crate::view::is_active() {
            // SAFETY: the caller's argument is valid for opendir(3).
            return unsafe { next(path) };
        }
        // SAFETY: as above.
        match open_path(unsafe { bytes(path) }, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0) {
            // SAFETY: as above.
            None => unsafe { next(path) },
            // A symbolic link may have led to a native directory.
            // SAFETY: the descriptor is open.
            Some(Ok(fd)) => unsafe { fdopendir(fd) },
            Some(Err(error)) => errno::reply_pointer(Err(error)),
        }
    }
}

wrap! {
    fn fdopendir(fd: c_int) -> *mut DIR, |next| {
        match opened(fd) {
            // SAFETY: any argument is valid.
            None => unsafe { next(fd) },
            Some(description) => errno::reply_pointer(inside(|| {
                descriptors::dir(&description)?;
                Ok(add_stream(fd))
            })),
        }
    }
}

/// Returns the stream behind a `DIR *` of this library.
fn own_stream(stream: *mut DIR) -> Option<std::sync::Arc<Stream>> {
    if !open_dir::has_streams() || is_inside() {
        return None;
    }
    inside(|| Ok(open_dir::stream(stream))).unwrap_or(None)
}

fn next_entry(stream: &Stream) -> Outcome<*mut libc::dirent64> {
    inside(|| {
        let description = descriptors::get(stream.fd).ok_or(Errno(libc::EBADF))?;
        stream.next(descriptors::dir(&description)?)
    })
}

macro_rules! readdir {
    ($read:ident, $read_r:ident) => {
        wrap! {
            fn $read(stream: *mut DIR) -> *mut libc::dirent64, |next| {
                match own_stream(stream) {
                    // SAFETY: the caller's argument is valid for readdir(3).
                    None => unsafe { next(stream) },
                    Some(stream) => errno::reply_pointer(next_entry(&stream)),
                }
            }
        }

        wrap! {
            fn $read_r(stream: *mut DIR, into: *mut libc::dirent64, result: *mut *mut libc::dirent64) -> c_int, |next| {
                let Some(stream) = own_stream(stream) else {
                    // SAFETY: the caller's arguments are valid for readdir_r(3).
                    return unsafe { next(stream, into, result) };
                };
                // This function returns the error number.
                match next_entry(&stream) {
                    Err(error) => error.0,
                    // SAFETY: the caller's buffers have space for an entry and a pointer; the entry
                    // is valid until the next call for the stream.
                    Ok(found) => unsafe {
                        *result = std::ptr::null_mut();
                        if !found.is_null() {
                            // The buffer may be shorter than the structure: it ends with the name.
                            let name = std::mem::offset_of!(libc::dirent64, d_name);
                            let length = name + libc::strlen((&raw const (*found).d_name).cast()) + 1;
                            std::ptr::copy_nonoverlapping(found.cast::<u8>(), into.cast::<u8>(), length);
                            *result = into;
                        }
                        0
                    },
                }
            }
        }
    };
}

readdir!(readdir, readdir_r);
readdir!(readdir64, readdir64_r);

wrap! {
    fn closedir(stream: *mut DIR) -> c_int, |next| {
        match own_stream(stream) {
            // SAFETY: the caller's argument is valid for closedir(3).
            None => unsafe { next(stream) },
            Some(_) => {
                let removed = inside(|| Ok(open_dir::remove_stream(stream))).unwrap_or(None);
                removed.map_or(0, |stream| crate::wrappers::descriptor::close_descriptor(stream.fd))
            }
        }
    }
}

wrap! {
    fn dirfd(stream: *mut DIR) -> c_int, |next| {
        match own_stream(stream) {
            // SAFETY: the caller's argument is valid for dirfd(3).
            None => unsafe { next(stream) },
            Some(stream) => stream.fd,
        }
    }
}

wrap! {
    fn rewinddir(stream: *mut DIR) -> (), |next| {
        match own_stream(stream) {
            // SAFETY: the caller's argument is valid for rewinddir(3).
            None => unsafe { next(stream) },
            Some(stream) => stream.set_position(0),
        }
    }
}

wrap! {
    fn telldir(stream: *mut DIR) -> c_long, |next| {
        match own_stream(stream) {
            // SAFETY: the caller's argument is valid for telldir(3).
            None => unsafe { next(stream) },
            Some(stream) => stream.position() as c_long,
        }
    }
}

wrap! {
    fn seekdir(stream: *mut DIR, position: c_long) -> (), |next| {
        match own_stream(stream) {
            // SAFETY: the caller's arguments are valid for seekdir(3).
            None => unsafe { next(stream, position) },
            Some(stream) => stream.set_position(position as u64),
        }
    }
}
