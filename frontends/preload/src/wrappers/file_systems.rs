//! statfs(2), pathconf(3) and their relatives; file handles, and watches of files.

use std::ffi::CString;

use libc::{c_char, c_int, c_long, c_uint, c_void};

use crate::attributes;
use crate::errno::{self, Errno, Outcome};
use crate::next::wrap;
use crate::refusals::refused;
use crate::resolve::LastLink;
use crate::view::VirtualDir;
use crate::wrappers::{with_descriptor, with_path};

fn fill<T>(into: *mut T, value: T) -> Outcome<c_int> {
    if into.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: the callers pass the caller's buffer, which has space for the structure.
    unsafe { into.write(value) };
    Ok(0)
}

fn statfs_of(dir: &VirtualDir) -> Outcome<libc::statfs> {
    if let Some(fs) = dir.fs()?.writable() {
        return Ok(attributes::statfs(&fs.space()?));
    }
    // An indexed tree is on a file system of the kernel.
    let path = CString::new(dir.path.clone()).map_err(|_| Errno(libc::ENOENT))?;
    // SAFETY: the structure consists of integers, for which zero bytes are valid.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a string, and the structure is valid. The wrapper passes this call on to
    // libc, because the library is serving a virtual file.
    match unsafe { libc::statfs(path.as_ptr(), &mut found) } {
        0 => Ok(found),
        _ => Err(Errno(errno::get())),
    }
}

fn statvfs_of(dir: &VirtualDir) -> Outcome<libc::statvfs> {
    let found = statfs_of(dir)?;
    // SAFETY: the structure consists of integers, for which zero bytes are valid.
    let mut statvfs: libc::statvfs = unsafe { std::mem::zeroed() };
    statvfs.f_bsize = found.f_bsize as u64;
    statvfs.f_frsize = found.f_frsize as u64;
    statvfs.f_blocks = found.f_blocks;
    statvfs.f_bfree = found.f_bfree;
    statvfs.f_bavail = found.f_bavail;
    statvfs.f_files = found.f_files;
    statvfs.f_ffree = found.f_ffree;
    statvfs.f_favail = found.f_ffree;
    statvfs.f_fsid = dir.device;
    statvfs.f_namemax = found.f_namelen as u64;
    Ok(statvfs)
}

macro_rules! statfs_family {
    ($path:ident, $descriptor:ident, $type:ty, $of:ident) => {
        wrap! {
            fn $path(path: *const c_char, into: *mut $type) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for statfs(2).
                unsafe {
                    with_path(libc::AT_FDCWD, path, LastLink::Follow, |_, path| next(path, into), |entry| {
                        entry.node()?;
                        fill(into, $of(entry.dir)?)
                    })
                }
            }
        }

        wrap! {
            fn $descriptor(fd: c_int, into: *mut $type) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for fstatfs(2).
                with_descriptor(fd, || unsafe { next(fd, into) }, |description| fill(into, $of(description.dir())?))
            }
        }
    };
}

// The structures for large files are the same where `long` has 64 bits.
statfs_family!(statfs, fstatfs, libc::statfs, statfs_of);
statfs_family!(statfs64, fstatfs64, libc::statfs, statfs_of);
statfs_family!(statvfs, fstatvfs, libc::statvfs, statvfs_of);
statfs_family!(statvfs64, fstatvfs64, libc::statvfs, statvfs_of);

/// Returns a limit of the files of a virtual directory, or `None` if there is none.
fn limit(dir: &VirtualDir, name: c_int) -> Outcome<Option<c_long>> {
    Ok(match name {
        libc::_PC_LINK_MAX => Some(1),
        libc::_PC_NAME_MAX => Some(statfs_of(dir)?.f_namelen),
        libc::_PC_PATH_MAX => Some(c_long::from(libc::PATH_MAX)),
        libc::_PC_PIPE_BUF => Some(libc::PIPE_BUF as c_long),
        libc::_PC_CHOWN_RESTRICTED | libc::_PC_NO_TRUNC | libc::_PC_2_SYMLINKS => Some(1),
        libc::_PC_VDISABLE => Some(0),
        libc::_PC_MAX_CANON | libc::_PC_MAX_INPUT => Some(255),
        libc::_PC_FILESIZEBITS => Some(64),
        libc::_PC_REC_XFER_ALIGN | libc::_PC_REC_MIN_XFER_SIZE | libc::_PC_ALLOC_SIZE_MIN => Some(4096),
        libc::_PC_ASYNC_IO
        | libc::_PC_SYNC_IO
        | libc::_PC_PRIO_IO
        | libc::_PC_SOCK_MAXBUF
        | libc::_PC_REC_INCR_XFER_SIZE
        | libc::_PC_REC_MAX_XFER_SIZE
        | libc::_PC_SYMLINK_MAX => None,
        _ => return Err(Errno(libc::EINVAL)),
    })
}

wrap! {
    fn pathconf(path: *const c_char, name: c_int) -> c_long, |next| {
        // SAFETY: the caller's arguments are valid for pathconf(3).
        unsafe {
            with_path(libc::AT_FDCWD, path, LastLink::Follow, |_, path| next(path, name), |entry| {
                entry.node()?;
                // -1 without an error: there is no limit.
                Ok(limit(entry.dir, name)?.unwrap_or(-1))
            })
        }
    }
}

wrap! {
    fn fpathconf(fd: c_int, name: c_int) -> c_long, |next| {
        // SAFETY: any arguments are valid.
        with_descriptor(fd, || unsafe { next(fd, name) }, |description| Ok(limit(description.dir(), name)?.unwrap_or(-1)))
    }
}

wrap! {
    fn name_to_handle_at(
        dirfd: c_int,
        path: *const c_char,
        handle: *mut c_void,
        mount: *mut c_int,
        flags: c_int,
    ) -> c_int, |next| {
        let unsupported = |dir| Err(refused("name_to_handle_at", Some(dir), Errno(libc::EOPNOTSUPP)));
        // SAFETY: the caller's arguments are valid for name_to_handle_at(2).
        unsafe {
            if flags & libc::AT_EMPTY_PATH != 0 && !path.is_null() && *path == 0 {
                return with_descriptor(dirfd, || next(dirfd, path, handle, mount, flags), |description| unsupported(description.dir()));
            }
            let last_link = if flags & libc::AT_SYMLINK_FOLLOW != 0 { LastLink::Follow } else { LastLink::Keep };
            with_path(dirfd, path, last_link, |dirfd, path| next(dirfd, path, handle, mount, flags), |entry| {
                entry.node()?;
                unsupported(entry.dir)
            })
        }
    }
}

wrap! {
    fn open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for open_by_handle_at(2).
        with_descriptor(mount, || unsafe { next(mount, handle, flags) }, |description| {
            Err(refused("open_by_handle_at", Some(description.dir()), Errno(libc::EOPNOTSUPP)))
        })
    }
}

// The kernel does not see changes of virtual files. Programs that watch files read them regularly
// instead if the limit of watches is reached (ENOSPC); for other errors many give up.
wrap! {
    fn inotify_add_watch(fd: c_int, path: *const c_char, mask: u32) -> c_int, |next| {
        let last_link = if mask & libc::IN_DONT_FOLLOW != 0 { LastLink::Keep } else { LastLink::Follow };
        // SAFETY: the caller's arguments are valid for inotify_add_watch(2).
        unsafe {
            with_path(libc::AT_FDCWD, path, last_link, |_, path| next(fd, path, mask), |entry| {
                entry.node()?;
                Err(refused("inotify_add_watch", Some(entry.dir), Errno(libc::ENOSPC)))
            })
        }
    }
}

wrap! {
    fn fanotify_mark(fd: c_int, flags: c_uint, mask: u64, dirfd: c_int, path: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for fanotify_mark(2).
        unsafe {
            if path.is_null() {
                return with_descriptor(dirfd, || next(fd, flags, mask, dirfd, path), |description| {
                    Err(refused("fanotify_mark", Some(description.dir()), Errno(libc::ENODEV)))
                });
            }
            with_path(dirfd, path, LastLink::Follow, |dirfd, path| next(fd, flags, mask, dirfd, path), |entry| {
                entry.node()?;
                Err(refused("fanotify_mark", Some(entry.dir), Errno(libc::ENODEV)))
            })
        }
    }
}
