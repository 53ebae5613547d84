//! read(2), write(2) and their relatives, lseek(2), truncate(2) and fsync(2).

use std::slice;

use libc::{c_char, c_int, c_void, iovec, off_t, size_t, ssize_t};
use quell_vfs::Change;

use crate::descriptors::{self, Description};
use crate::errno::{Errno, Outcome};
use crate::next::wrap;
use crate::open_file::OpenFile;
use crate::placeholder::{self, Part, borrow};
use crate::resolve::LastLink;
use crate::wrappers::{with_descriptor, with_path};

/// The largest number of buffers in one call (`IOV_MAX`).
const BUFFERS_MAX: c_int = 1024;

/// The largest number of bytes in one call, as in the kernel.
const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// Returns a buffer of the caller.
///
/// # Safety
///
/// `buffer` has space for `length` bytes that nothing else uses meanwhile.
unsafe fn buffer<'a>(buffer: *mut c_void, length: size_t) -> Outcome<&'a mut [u8]> {
    if length == 0 {
        return Ok(&mut []);
    }
    if buffer.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { slice::from_raw_parts_mut(buffer.cast(), length.min(TRANSFER_BYTES_MAX)) })
}

/// Returns the buffers of a vector.
///
/// # Safety
///
/// `vector` has `count` elements, and each of them meets the requirements of `buffer`.
unsafe fn buffers<'a>(vector: *const iovec, count: c_int) -> Outcome<Vec<&'a mut [u8]>> {
    if !(0..=BUFFERS_MAX).contains(&count) {
        return Err(Errno(libc::EINVAL));
    }
    let mut left = TRANSFER_BYTES_MAX;
    let mut all = Vec::with_capacity(count as usize);
    for position in 0..count as usize {
        // SAFETY: the caller's promise.
        let element = unsafe { *vector.add(position) };
        let length = element.iov_len.min(left);
        left -= length;
        // SAFETY: the caller's promise.
        all.push(unsafe { buffer(element.iov_base, length) }?);
    }
    Ok(all)
}

fn offset(offset: off_t) -> Outcome<u64> {
    u64::try_from(offset).map_err(|_| Errno(libc::EINVAL))
}

fn count(bytes: usize) -> ssize_t {
    bytes as ssize_t
}

fn read_file(fd: c_int, description: &Description, buffers: &mut [&mut [u8]]) -> Outcome<ssize_t> {
    descriptors::file(description)?.read(borrow(fd), buffers).map(count)
}

/// Returns the file that is written. No descriptor of a directory is open for writing.
fn written_file(description: &Description) -> Outcome<&OpenFile> {
    descriptors::file(description).map_err(|_| Errno(libc::EBADF))
}

fn write_file(fd: c_int, description: &Description, buffers: &[&[u8]]) -> Outcome<ssize_t> {
    written_file(description)?.write(borrow(fd), buffers).map(count)
}

fn read_file_at(description: &Description, buffers: &mut [&mut [u8]], at: off_t) -> Outcome<ssize_t> {
    descriptors::file(description)?.read_at(buffers, offset(at)?).map(count)
}

fn write_file_at(description: &Description, buffers: &[&[u8]], at: off_t) -> Outcome<ssize_t> {
    written_file(description)?.write_at(buffers, offset(at)?).map(count)
}

fn shared<'a>(buffers: &'a [&mut [u8]]) -> Vec<&'a [u8]> {
    buffers.iter().map(|buffer| &**buffer).collect()
}

wrap! {
    fn read(fd: c_int, into: *mut c_void, length: size_t) -> ssize_t, |next| {
        // SAFETY: the caller's arguments are valid for read(2).
        with_descriptor(fd, || unsafe { next(fd, into, length) }, |description| {
            // SAFETY: as above.
            read_file(fd, description, &mut [unsafe { buffer(into, length) }?])
        })
    }
}

wrap! {
    fn __read_chk(fd: c_int, into: *mut c_void, length: size_t, space: size_t) -> ssize_t, |next| {
        // SAFETY: the caller's arguments are valid for read(2), and the buffer's size.
        with_descriptor(fd, || unsafe { next(fd, into, length, space) }, |description| {
            // SAFETY: as above. libc ends the process if `length` is larger than `space`.
            read_file(fd, description, &mut [unsafe { buffer(into, length.min(space)) }?])
        })
    }
}

wrap! {
    fn write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t, |next| {
        // SAFETY: the caller's arguments are valid for write(2).
        with_descriptor(fd, || unsafe { next(fd, from, length) }, |description| {
            // SAFETY: as above; the bytes are only read.
            write_file(fd, description, &[unsafe { buffer(from.cast_mut(), length) }?])
        })
    }
}

macro_rules! positioned {
    ($read:ident, $checked:ident, $write:ident) => {
        wrap! {
            fn $read(fd: c_int, into: *mut c_void, length: size_t, at: off_t) -> ssize_t, |next| {
                // SAFETY: the caller's arguments are valid for pread(2).
                with_descriptor(fd, || unsafe { next(fd, into, length, at) }, |description| {
                    // SAFETY: as above.
                    read_file_at(description, &mut [unsafe { buffer(into, length) }?], at)
                })
            }
        }

        wrap! {
            fn $checked(fd: c_int, into: *mut c_void, length: size_t, at: off_t, space: size_t) -> ssize_t, |next| {
                // SAFETY: the caller's arguments are valid for pread(2), and the buffer's size.
                with_descriptor(fd, || unsafe { next(fd, into, length, at, space) }, |description| {
                    // SAFETY: as above.
                    read_file_at(description, &mut [unsafe { buffer(into, length.min(space)) }?], at)
                })
            }
        }

        wrap! {
            fn $write(fd: c_int, from: *const c_void, length: size_t, at: off_t) -> ssize_t, |next| {
                // SAFETY: the caller's arguments are valid for pwrite(2).
                with_descriptor(fd, || unsafe { next(fd, from, length, at) }, |description| {
                    // SAFETY: as above; the bytes are only read.
                    write_file_at(description, &[unsafe { buffer(from.cast_mut(), length) }?], at)
                })
            }
        }
    };
}

positioned!(pread, __pread_chk, pwrite);
positioned!(pread64, __pread64_chk, pwrite64);

wrap! {
    fn readv(fd: c_int, vector: *const iovec, number: c_int) -> ssize_t, |next| {
        // SAFETY: the caller's arguments are valid for readv(2).
        with_descriptor(fd, || unsafe { next(fd, vector, number) }, |description| {
            // SAFETY: as above.
            read_file(fd, description, &mut unsafe { buffers(vector, number) }?)
        })
    }
}

wrap! {
    fn writev(fd: c_int, vector: *const iovec, number: c_int) -> ssize_t, |next| {
        // SAFETY: the caller's arguments are valid for writev(2).
        with_descriptor(fd, || unsafe { next(fd, vector, number) }, |description| {
            // SAFETY: as above.
            write_file(fd, description, &shared(&unsafe { buffers(vector, number) }?))
        })
    }
}

macro_rules! positioned_vector {
    ($read:ident, $write:ident, $read_flags:ident, $write_flags:ident) => {
        wrap! {
            fn $read(fd: c_int, vector: *const iovec, number: c_int, at: off_t) -> ssize_t, |next| {
                // SAFETY: the caller's arguments are valid for preadv(2).
                with_descriptor(fd, || unsafe { next(fd, vector, number, at) }, |description| {
                    // SAFETY: as above.
                    read_file_at(description, &mut unsafe { buffers(vector, number) }?, at)
                })
            }
        }

        wrap! {
            fn $write(fd: c_int, vector: *const iovec, number: c_int, at: off_t) -> ssize_t, |next| {
                // SAFETY: the caller's arguments are valid for pwritev(2).
                with_descriptor(fd, || unsafe { next(fd, vector, number, at) }, |description| {
                    // SAFETY: as above.
                    write_file_at(description, &shared(&unsafe { buffers(vector, number) }?), at)
                })
            }
        }

        wrap! {
            fn $read_flags(fd: c_int, vector: *const iovec, number: c_int, at: off_t, flags: c_int) -> ssize_t, |next| {
                // SAFETY: the caller's arguments are valid for preadv2(2).
                with_descriptor(fd, || unsafe { next(fd, vector, number, at, flags) }, |description| {
                    if flags & !libc::RWF_HIPRI != 0 {
                        return Err(Errno(libc::EOPNOTSUPP));
                    }
                    // SAFETY: as above.
                    let mut buffers = unsafe { buffers(vector, number) }?;
                    match at {
                        -1 => read_file(fd, description, &mut buffers),
                        at => read_file_at(description, &mut buffers, at),
                    }
                })
            }
        }

        wrap! {
            fn $write_flags(fd: c_int, vector: *const iovec, number: c_int, at: off_t, flags: c_int) -> ssize_t, |next| {
                // SAFETY: the caller's arguments are valid for pwritev2(2).
                with_descriptor(fd, || unsafe { next(fd, vector, number, at, flags) }, |description| {
                    if flags & !(libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC) != 0 {
                        return Err(Errno(libc::EOPNOTSUPP));
                    }
                    // SAFETY: as above.
                    let buffers = unsafe { buffers(vector, number) }?;
                    let written = match at {
                        -1 => write_file(fd, description, &shared(&buffers)),
                        at => write_file_at(description, &shared(&buffers), at),
                    }?;
                    if flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0 {
                        sync_descriptor(fd, description)?;
                    }
                    Ok(written)
                })
            }
        }
    };
}

positioned_vector!(preadv, pwritev, preadv2, pwritev2);
positioned_vector!(preadv64, pwritev64, preadv64v2, pwritev64v2);

macro_rules! seek {
    ($name:ident) => {
        wrap! {
            fn $name(fd: c_int, offset: off_t, whence: c_int) -> off_t, |next| {
                // SAFETY: any arguments are valid.
                with_descriptor(fd, || unsafe { next(fd, offset, whence) }, |description| {
                    match description {
                        Description::File(file) => file.seek(borrow(fd), offset, whence),
                        Description::Dir(_) => seek_dir(fd, offset, whence),
                    }
                })
            }
        }
    };
}

/// Sets the position in a directory, from which getdents64(2) reads.
fn seek_dir(fd: c_int, offset: off_t, whence: c_int) -> Outcome<off_t> {
    let base = match whence {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => placeholder::position(borrow(fd))?,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let target = base.checked_add_signed(offset).ok_or(Errno(libc::EINVAL))?;
    placeholder::set_position(borrow(fd), target)?;
    Ok(target as off_t)
}

seek!(lseek);
seek!(lseek64);

macro_rules! truncate {
    ($path:ident, $descriptor:ident) => {
        wrap! {
            fn $path(path: *const c_char, size: off_t) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for truncate(2).
                unsafe {
                    with_path(libc::AT_FDCWD, path, LastLink::Follow, |_, path| next(path, size), |entry| {
                        let size_bytes = Some(offset(size)?);
                        let found = entry.node()?;
                        if found.kind == quell_vfs::Kind::Dir {
                            return Err(Errno(libc::EISDIR));
                        }
                        crate::access::check_access(found, libc::W_OK, true)?;
                        let context = crate::view::context();
                        let change = Change { size_bytes, ..Change::default() };
                        entry.writable()?.change(&context, found.node(), &change)?;
                        Ok(0)
                    })
                }
            }
        }

        wrap! {
            fn $descriptor(fd: c_int, size: off_t) -> c_int, |next| {
                // SAFETY: any arguments are valid.
                with_descriptor(fd, || unsafe { next(fd, size) }, |description| {
                    let Description::File(file) = description else { return Err(Errno(libc::EINVAL)) };
                    file.truncate(offset(size)?).map(|()| 0)
                })
            }
        }
    };
}

truncate!(truncate, ftruncate);
truncate!(truncate64, ftruncate64);

fn sync_descriptor(fd: c_int, description: &Description) -> Outcome<c_int> {
    match description {
        Description::File(file) => file.sync(borrow(fd)),
        Description::Dir(dir) => dir.sync(),
    }
    .map(|()| 0)
}

macro_rules! sync {
    ($name:ident) => {
        wrap! {
            fn $name(fd: c_int) -> c_int, |next| {
                // SAFETY: any argument is valid.
                with_descriptor(fd, || unsafe { next(fd) }, |description| sync_descriptor(fd, description))
            }
        }
    };
}

sync!(fsync);
sync!(fdatasync);
sync!(syncfs);

wrap! {
    fn sync_file_range(fd: c_int, offset: off_t, length: off_t, flags: libc::c_uint) -> c_int, |next| {
        // SAFETY: any arguments are valid.
        with_descriptor(fd, || unsafe { next(fd, offset, length, flags) }, |description| sync_descriptor(fd, description))
    }
}

wrap! {
    fn sync() -> (), |next| {
        if crate::view::is_active() {
            // The function has no result; a later fsync(2) or close(2) returns the error.
            let _ = crate::guard::inside(|| crate::process::publish_all(Part::WholePages));
        }
        // SAFETY: there are no preconditions.
        unsafe { next() }
    }
}

macro_rules! fallocate {
    ($kernel:ident, $posix:ident, $advise:ident) => {
        wrap! {
            fn $kernel(fd: c_int, mode: c_int, start: off_t, length: off_t) -> c_int, |next| {
                // SAFETY: any arguments are valid.
                with_descriptor(fd, || unsafe { next(fd, mode, start, length) }, |description| {
                    match mode {
                        0 => allocate(description, start, length).map(|()| 0),
                        libc::FALLOC_FL_KEEP_SIZE => Ok(0), // a log has no space to reserve
                        _ => Err(Errno(libc::EOPNOTSUPP)),
                    }
                })
            }
        }

        wrap! {
            fn $posix(fd: c_int, start: off_t, length: off_t) -> c_int, |next| {
                match crate::wrappers::opened(fd) {
                    // SAFETY: any arguments are valid.
                    None => unsafe { next(fd, start, length) },
                    // This function returns the error number.
                    Some(description) => {
                        crate::guard::inside(|| allocate(&description, start, length)).map_or_else(|error| error.0, |()| 0)
                    }
                }
            }
        }

        wrap! {
            fn $advise(fd: c_int, start: off_t, length: off_t, advice: c_int) -> c_int, |next| {
                match crate::wrappers::opened(fd) {
                    // SAFETY: any arguments are valid.
                    None => unsafe { next(fd, start, length, advice) },
                    Some(_) => 0, // advice may be ignored
                }
            }
        }
    };
}

fallocate!(fallocate, posix_fallocate, posix_fadvise);
fallocate!(fallocate64, posix_fallocate64, posix_fadvise64);

/// Makes the file at least as long as the range requires.
fn allocate(description: &Description, start: off_t, length: off_t) -> Outcome<()> {
    let file = descriptors::file(description).map_err(|_| Errno(libc::ENODEV))?;
    if start < 0 || length <= 0 {
        return Err(Errno(libc::EINVAL));
    }
    let end = start.checked_add(length).ok_or(Errno(libc::EFBIG))? as u64;
    match end > file.attributes()?.size_bytes {
        true => file
            .truncate(end)
            .map_err(|error| if error.0 == libc::EINVAL { Errno(libc::EBADF) } else { error }),
        false => Ok(()),
    }
}

wrap! {
    fn readahead(fd: c_int, offset: off_t, length: size_t) -> ssize_t, |next| {
        // SAFETY: any arguments are valid.
        with_descriptor(fd, || unsafe { next(fd, offset, length) }, |_| Ok(0))
    }
}
