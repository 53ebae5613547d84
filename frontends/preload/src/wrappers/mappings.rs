//! mmap(2) of virtual files. The kernel cannot read a virtual file when a page is used, so a
//! mapping is a copy of the file at the time of the call, in a memfd.

use libc::{c_int, c_void, off_t, size_t};
use rustix::fs::{MemfdFlags, Mode, OFlags};

use crate::descriptors::{self, Description};
use crate::errno::{self, Errno, Outcome};
use crate::guard::inside;
use crate::memory_copy;
use crate::next::wrap;
use crate::refusals::warn_once;
use crate::view;
use crate::wrappers::opened;

/// The largest mapping, in bytes: its copy occupies memory.
pub const MAPPING_BYTES_MAX: u64 = 1 << 30;

/// The number of bytes that are copied at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Returns a descriptor with a copy of the file from `start`, which has `length` bytes or fewer at
/// the end of the file.
fn copy_of(
    description: &Description,
    length: u64,
    protection: c_int,
    flags: c_int,
    start: off_t,
) -> Outcome<std::os::fd::OwnedFd> {
    // mmap(2) returns ENODEV for a directory.
    let file = descriptors::file(description).map_err(|_| Errno(libc::ENODEV))?;
    let page_bytes = page_bytes();
    let start = u64::try_from(start).map_err(|_| Errno(libc::EINVAL))?;
    if length == 0 || start % page_bytes != 0 || start.checked_add(length).is_none() {
        return Err(Errno(libc::EINVAL));
    }
    let access = file.flags() & libc::O_ACCMODE;
    if file.flags() & libc::O_PATH != 0 {
        return Err(Errno(libc::EBADF));
    }
    let is_shared = match flags & libc::MAP_TYPE {
        libc::MAP_PRIVATE => false,
        libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE => true,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let writes_through = is_shared && protection & libc::PROT_WRITE != 0;
    if access == libc::O_WRONLY || writes_through && access != libc::O_RDWR {
        return Err(Errno(libc::EACCES));
    }
    if writes_through {
        let path = view::absolute(file.dir, &file.path());
        warn_once(
            "mmap",
            &format!(
                "{}: a shared mapping cannot be written without a mount (ENODEV); use `quell mount` or \
                 `quell run` with FUSE",
                String::from_utf8_lossy(&path)
            ),
        );
        return Err(Errno(libc::ENODEV));
    }
    let size_bytes = file.attributes()?.size_bytes;
    let length = length.next_multiple_of(page_bytes).min(size_bytes.saturating_sub(start));
    if length > MAPPING_BYTES_MAX {
        return Err(Errno(libc::ENOMEM));
    }
    let memfd = rustix::fs::memfd_create("quell-mapping", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&memfd, length)?;
    let mut buffer = vec![0; CHUNK_BYTES.min(length as usize)];
    let mut copied = 0;
    while copied < length {
        let wanted = buffer.len().min((length - copied) as usize);
        let received = file.read_at(&mut [&mut buffer[..wanted]], start + copied)?;
        if received == 0 {
            break; // another process has made the file shorter
        }
        // Zeros need no memory.
        if buffer[..received].iter().any(|byte| *byte != 0) {
            memory_copy::write_at(&memfd, &buffer[..received], copied)?;
        }
        copied += received as u64;
    }
    if !is_shared {
        return Ok(memfd);
    }
    // mprotect(2) must not make a shared mapping writable.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memfd));
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

macro_rules! mmap {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(
                address: *mut c_void,
                length: size_t,
                protection: c_int,
                flags: c_int,
                fd: c_int,
                start: off_t,
            ) -> *mut c_void, |next| {
                let description = if flags & libc::MAP_ANONYMOUS == 0 { opened(fd) } else { None };
                let Some(description) = description else {
                    // SAFETY: the caller's arguments are valid for mmap(2).
                    return unsafe { next(address, length, protection, flags, fd, start) };
                };
                match inside(|| copy_of(&description, length as u64, protection, flags, start)) {
                    // SAFETY: as above; the mapping keeps the copy after its descriptor is closed.
                    Ok(copy) => unsafe {
                        let copy_fd = std::os::fd::AsRawFd::as_raw_fd(&copy);
                        let mapped = next(address, length, protection, flags, copy_fd, 0);
                        let number = errno::get();
                        drop(copy);
                        errno::set(number);
                        mapped
                    },
                    Err(error) => {
                        errno::set(error.0);
                        libc::MAP_FAILED
                    }
                }
            }
        }
    )*};
}

mmap!(mmap, mmap64);

fn page_bytes() -> u64 {
    // SAFETY: sysconf has no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}
