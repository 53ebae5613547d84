//! stat(2) and its relatives, access(2), chmod(2), chown(2) and utimensat(2).

use std::time::{SystemTime, UNIX_EPOCH};

use libc::{c_char, c_int, c_uint, gid_t, mode_t, timespec, timeval, uid_t, utimbuf};
use quell_vfs::{Attributes, Change, Kind, Time};

use crate::access::check_access;
use crate::attributes;
use crate::descriptors::Description;
use crate::errno::{Errno, Outcome};
use crate::guard::{inside, is_inside};
use crate::next::wrap;
use crate::originals;
use crate::resolve::{Entry, LastLink};
use crate::shared_memory;
use crate::view::VirtualDir;
use crate::wrappers::{change_native, last_link, with_descriptor, with_path};

/// Returns the attributes of an open file and its virtual directory.
fn attributes_of(description: &Description) -> Outcome<(&'static VirtualDir, Attributes)> {
    match description {
        Description::File(file) => Ok((file.dir, file.attributes()?)),
        Description::Dir(dir) => Ok((dir.dir, dir.attributes()?)),
    }
}

fn stat_descriptor(description: &Description, into: *mut libc::stat) -> Outcome<c_int> {
    let (dir, found) = attributes_of(description)?;
    fill(into, attributes::stat(dir, &found))
}

fn stat_entry(entry: &Entry, into: *mut libc::stat) -> Outcome<c_int> {
    fill(into, attributes::stat(entry.dir, entry.node()?))
}

fn fill<T>(into: *mut T, value: T) -> Outcome<c_int> {
    if into.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: the callers pass the caller's buffer, which has space for the structure.
    unsafe { into.write(value) };
    Ok(0)
}

/// Replaces the attributes of a file in memory by the attributes of the original in its tree.
/// `result` is the result of the system call that has filled `into`.
///
/// # Safety
///
/// If `result` is 0, `into` is a structure.
unsafe fn of_original(result: c_int, into: *mut libc::stat) -> c_int {
    // SAFETY: the caller's promise.
    if result == 0 && shared_memory::is_device(unsafe { (*into).st_dev }) {
        // SAFETY: as above.
        let (device, inode) = unsafe { ((*into).st_dev, (*into).st_ino) };
        let original = original(device, inode);
        if let Some((dir, found)) = original {
            // SAFETY: as above.
            unsafe { into.write(attributes::stat(dir, &found)) };
        }
    }
    result
}

/// As [`of_original`], for statx(2).
///
/// # Safety
///
/// As above.
unsafe fn of_original_x(result: c_int, into: *mut libc::statx) -> c_int {
    if result == 0 {
        // SAFETY: the caller's promise.
        let (major, minor, inode) =
            unsafe { ((*into).stx_dev_major, (*into).stx_dev_minor, (*into).stx_ino) };
        let original = original(libc::makedev(major, minor), inode);
        if let Some((dir, found)) = original {
            // SAFETY: as above.
            unsafe { into.write(attributes::statx(dir, &found)) };
        }
    }
    result
}

/// Returns the original of a file in memory.
fn original(device: u64, inode: u64) -> Option<(&'static VirtualDir, Attributes)> {
    if !shared_memory::is_device(device) || is_inside() {
        return None;
    }
    let found = inside(|| {
        let Some((dir, node)) = originals::find(device, inode) else { return Ok(None) };
        Ok(Some((dir, dir.fs()?.attributes(&crate::view::context(), node)?)))
    });
    found.unwrap_or(None)
}

/// Returns whether a path names the descriptor itself.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL.
unsafe fn is_descriptor_itself(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: the caller's promise.
    flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0)
}

macro_rules! stat_family {
    ($stat:ident, $lstat:ident, $fstat:ident, $fstatat:ident) => {
        wrap! {
            fn $stat(path: *const c_char, into: *mut libc::stat) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for stat(2).
                unsafe {
                    with_path(libc::AT_FDCWD, path, LastLink::Follow, |_, path| of_original(next(path, into), into), |entry| stat_entry(entry, into))
                }
            }
        }

        wrap! {
            fn $lstat(path: *const c_char, into: *mut libc::stat) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for lstat(2).
                unsafe {
                    with_path(libc::AT_FDCWD, path, LastLink::Keep, |_, path| of_original(next(path, into), into), |entry| stat_entry(entry, into))
                }
            }
        }

        wrap! {
            fn $fstat(fd: c_int, into: *mut libc::stat) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for fstat(2).
                with_descriptor(fd, || unsafe { of_original(next(fd, into), into) }, |description| stat_descriptor(description, into))
            }
        }

        wrap! {
            fn $fstatat(dirfd: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for fstatat(2).
                unsafe {
                    if is_descriptor_itself(path, flags) {
                        return with_descriptor(dirfd, || of_original(next(dirfd, path, into, flags), into), |description| stat_descriptor(description, into));
                    }
                    with_path(dirfd, path, last_link(flags), |dirfd, path| of_original(next(dirfd, path, into, flags), into), |entry| stat_entry(entry, into))
                }
            }
        }
    };
}

stat_family!(stat, lstat, fstat, fstatat);
stat_family!(stat64, lstat64, fstat64, fstatat64);

// Programs that were linked with a glibc older than 2.33 call these functions.
macro_rules! old_stat_family {
    ($stat:ident, $lstat:ident, $fstat:ident, $fstatat:ident) => {
        wrap! {
            fn $stat(version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int, |next| {
                // SAFETY: the caller's arguments are a version and valid arguments of stat(2).
                unsafe {
                    with_path(libc::AT_FDCWD, path, LastLink::Follow, |_, path| of_original(next(version, path, into), into), |entry| stat_entry(entry, into))
                }
            }
        }

        wrap! {
            fn $lstat(version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int, |next| {
                // SAFETY: the caller's arguments are a version and valid arguments of lstat(2).
                unsafe {
                    with_path(libc::AT_FDCWD, path, LastLink::Keep, |_, path| of_original(next(version, path, into), into), |entry| stat_entry(entry, into))
                }
            }
        }

        wrap! {
            fn $fstat(version: c_int, fd: c_int, into: *mut libc::stat) -> c_int, |next| {
                // SAFETY: the caller's arguments are a version and valid arguments of fstat(2).
                with_descriptor(fd, || unsafe { of_original(next(version, fd, into), into) }, |description| stat_descriptor(description, into))
            }
        }

        wrap! {
            fn $fstatat(version: c_int, dirfd: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int, |next| {
                // SAFETY: the caller's arguments are a version and valid arguments of fstatat(2).
                unsafe {
                    if is_descriptor_itself(path, flags) {
                        return with_descriptor(dirfd, || of_original(next(version, dirfd, path, into, flags), into), |description| stat_descriptor(description, into));
                    }
                    with_path(dirfd, path, last_link(flags), |dirfd, path| of_original(next(version, dirfd, path, into, flags), into), |entry| stat_entry(entry, into))
                }
            }
        }
    };
}

old_stat_family!(__xstat, __lxstat, __fxstat, __fxstatat);
old_stat_family!(__xstat64, __lxstat64, __fxstat64, __fxstatat64);

wrap! {
    fn statx(dirfd: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut libc::statx) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for statx(2).
        unsafe {
            if is_descriptor_itself(path, flags) {
                return with_descriptor(dirfd, || of_original_x(next(dirfd, path, flags, mask, into), into), |description| {
                    let (dir, found) = attributes_of(description)?;
                    fill(into, attributes::statx(dir, &found))
                });
            }
            with_path(
                dirfd,
                path,
                last_link(flags),
                |dirfd, path| of_original_x(next(dirfd, path, flags, mask, into), into),
                |entry| fill(into, attributes::statx(entry.dir, entry.node()?)),
            )
        }
    }
}

fn access_entry(entry: &Entry, mode: c_int, effective: bool) -> Outcome<c_int> {
    if mode & !7 != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let found = entry.node()?;
    if mode & libc::W_OK != 0 {
        entry.writable()?;
    }
    check_access(found, mode, effective).map(|()| 0)
}

macro_rules! access_family {
    ($($name:ident $effective:literal),*) => {$(
        wrap! {
            fn $name(path: *const c_char, mode: c_int) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for access(2).
                unsafe {
                    with_path(libc::AT_FDCWD, path, LastLink::Follow, |_, path| next(path, mode), |entry| access_entry(entry, mode, $effective))
                }
            }
        }
    )*};
}

access_family!(access false, euidaccess true, eaccess true);

wrap! {
    fn faccessat(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, |next| {
        const FLAGS: c_int = libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
        // SAFETY: the caller's arguments are valid for faccessat(2).
        unsafe {
            if flags & !FLAGS != 0 || mode & !(libc::R_OK | libc::W_OK | libc::X_OK) != 0 {
                return next(dirfd, path, mode, flags); // the kernel returns the error
            }
            with_path(
                dirfd,
                path,
                last_link(flags),
                |dirfd, path| next(dirfd, path, mode, flags),
                |entry| access_entry(entry, mode, flags & libc::AT_EACCESS != 0),
            )
        }
    }
}

fn change_entry(entry: &Entry, change: &Change) -> Outcome<c_int> {
    let context = crate::view::context();
    entry.writable()?.change(&context, entry.node()?.node(), change)?;
    Ok(0)
}

fn change_descriptor(description: &Description, change: &Change) -> Outcome<c_int> {
    match description {
        Description::File(file) => file.change(change)?,
        Description::Dir(dir) => dir.change(change)?,
    }
    Ok(0)
}

fn permissions(mode: mode_t) -> Change {
    Change { permissions: Some(mode & 0o7777), ..Change::default() }
}

wrap! {
    fn chmod(path: *const c_char, mode: mode_t) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for chmod(2).
        unsafe {
            with_path(libc::AT_FDCWD, path, LastLink::Follow, |_, path| next(path, mode), |entry| change_entry(entry, &permissions(mode)))
        }
    }
}

wrap! {
    fn lchmod(path: *const c_char, mode: mode_t) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for chmod(2).
        unsafe {
            with_path(libc::AT_FDCWD, path, LastLink::Keep, |_, path| next(path, mode), |entry| {
                match entry.node()?.kind {
                    Kind::Symlink => Err(Errno(libc::EOPNOTSUPP)),
                    _ => change_entry(entry, &permissions(mode)),
                }
            })
        }
    }
}

wrap! {
    fn fchmod(fd: c_int, mode: mode_t) -> c_int, |next| {
        // SAFETY: any arguments are valid.
        with_descriptor(fd, || change_native(fd, || unsafe { next(fd, mode) }), |description| change_descriptor(description, &permissions(mode)))
    }
}

wrap! {
    fn fchmodat(dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for fchmodat(2).
        unsafe {
            with_path(dirfd, path, last_link(flags), |dirfd, path| next(dirfd, path, mode, flags), |entry| {
                match entry.node()?.kind {
                    Kind::Symlink => Err(Errno(libc::EOPNOTSUPP)),
                    _ => change_entry(entry, &permissions(mode)),
                }
            })
        }
    }
}

/// Returns the change of chown(2), in which -1 stands for no change.
fn owners(uid: uid_t, gid: gid_t) -> Change {
    let id = |id: u32| (id != u32::MAX).then_some(id);
    Change { uid: id(uid), gid: id(gid), ..Change::default() }
}

wrap! {
    fn chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for chown(2).
        unsafe {
            with_path(libc::AT_FDCWD, path, LastLink::Follow, |_, path| next(path, uid, gid), |entry| change_entry(entry, &owners(uid, gid)))
        }
    }
}

wrap! {
    fn lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for lchown(2).
        unsafe {
            with_path(libc::AT_FDCWD, path, LastLink::Keep, |_, path| next(path, uid, gid), |entry| change_entry(entry, &owners(uid, gid)))
        }
    }
}

wrap! {
    fn fchown(fd: c_int, uid: uid_t, gid: gid_t) -> c_int, |next| {
        // SAFETY: any arguments are valid.
        with_descriptor(fd, || change_native(fd, || unsafe { next(fd, uid, gid) }), |description| change_descriptor(description, &owners(uid, gid)))
    }
}

wrap! {
    fn fchownat(dirfd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for fchownat(2).
        unsafe {
            if is_descriptor_itself(path, flags) {
                return with_descriptor(dirfd, || change_native(dirfd, || next(dirfd, path, uid, gid, flags)), |description| change_descriptor(description, &owners(uid, gid)));
            }
            with_path(dirfd, path, last_link(flags), |dirfd, path| next(dirfd, path, uid, gid, flags), |entry| change_entry(entry, &owners(uid, gid)))
        }
    }
}

fn now() -> Time {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
}

/// Returns the change of utimensat(2). Access times are not kept.
///
/// # Safety
///
/// `times` is NULL or has two elements.
unsafe fn times_of(times: *const timespec) -> Outcome<Change> {
    let modified = if times.is_null() {
        Some(now())
    } else {
        // SAFETY: the caller's promise.
        let (_, time) = unsafe { (*times, *times.add(1)) };
        match time.tv_nsec {
            libc::UTIME_NOW => Some(now()),
            libc::UTIME_OMIT => None,
            nanoseconds @ 0..=999_999_999 => {
                Some(Time { seconds: time.tv_sec, nanoseconds: nanoseconds as u32 })
            }
            _ => return Err(Errno(libc::EINVAL)),
        }
    };
    Ok(Change { modified, ..Change::default() })
}

/// Returns the change of utimes(2).
///
/// # Safety
///
/// `times` is NULL or has two elements.
unsafe fn microseconds_of(times: *const timeval) -> Outcome<Change> {
    if times.is_null() {
        return Ok(Change { modified: Some(now()), ..Change::default() });
    }
    // SAFETY: the caller's promise.
    let time = unsafe { *times.add(1) };
    match time.tv_usec {
        0..=999_999 => {
            let modified = Time { seconds: time.tv_sec, nanoseconds: time.tv_usec as u32 * 1000 };
            Ok(Change { modified: Some(modified), ..Change::default() })
        }
        _ => Err(Errno(libc::EINVAL)),
    }
}

wrap! {
    fn utimensat(dirfd: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for utimensat(2).
        unsafe {
            if path.is_null() || is_descriptor_itself(path, flags) {
                return with_descriptor(dirfd, || change_native(dirfd, || next(dirfd, path, times, flags)), |description| change_descriptor(description, &times_of(times)?));
            }
            with_path(dirfd, path, last_link(flags), |dirfd, path| next(dirfd, path, times, flags), |entry| change_entry(entry, &times_of(times)?))
        }
    }
}

wrap! {
    fn futimens(fd: c_int, times: *const timespec) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for futimens(3).
        unsafe {
            with_descriptor(fd, || change_native(fd, || next(fd, times)), |description| change_descriptor(description, &times_of(times)?))
        }
    }
}

wrap! {
    fn utimes(path: *const c_char, times: *const timeval) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for utimes(2).
        unsafe {
            with_path(libc::AT_FDCWD, path, LastLink::Follow, |_, path| next(path, times), |entry| change_entry(entry, &microseconds_of(times)?))
        }
    }
}

wrap! {
    fn lutimes(path: *const c_char, times: *const timeval) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for lutimes(3).
        unsafe {
            with_path(libc::AT_FDCWD, path, LastLink::Keep, |_, path| next(path, times), |entry| change_entry(entry, &microseconds_of(times)?))
        }
    }
}

wrap! {
    fn futimes(fd: c_int, times: *const timeval) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for futimes(3).
        unsafe {
            with_descriptor(fd, || change_native(fd, || next(fd, times)), |description| change_descriptor(description, &microseconds_of(times)?))
        }
    }
}

wrap! {
    fn futimesat(dirfd: c_int, path: *const c_char, times: *const timeval) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for futimesat(2).
        unsafe {
            with_path(dirfd, path, LastLink::Follow, |dirfd, path| next(dirfd, path, times), |entry| change_entry(entry, &microseconds_of(times)?))
        }
    }
}

wrap! {
    fn utime(path: *const c_char, times: *const utimbuf) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for utime(2).
        unsafe {
            with_path(libc::AT_FDCWD, path, LastLink::Follow, |_, path| next(path, times), |entry| {
                let modified = match times.is_null() {
                    true => now(),
                    false => Time { seconds: (*times).modtime, nanoseconds: 0 },
                };
                change_entry(entry, &Change { modified: Some(modified), ..Change::default() })
            })
        }
    }
}
