//! The working directory, and realpath(3).

use libc::{c_char, c_int, size_t};
use quell_vfs::Kind;

use crate::cwd;
use crate::descriptors;
use crate::errno::{self, Errno, Outcome};
use crate::guard::{inside, is_inside};
use crate::next::wrap;
use crate::process::hand_over_cwd;
use crate::resolve::{Entry, LastLink};
use crate::view::{self, VirtualDir};
use crate::wrappers::{Target, find, opened};

/// Makes a virtual directory the working directory. The kernel's working directory becomes the
/// original directory of a tree, or the mount point of a log directory, for programs that do not
/// use this library.
fn enter(dir: &'static VirtualDir, path: Vec<u8>) -> Outcome<c_int> {
    if dir.is_tree() {
        rustix::process::chdir(view::absolute(dir, &path))?;
    } else {
        rustix::process::chdir(&dir.path[..])?;
    }
    cwd::enter_virtual(dir, path);
    hand_over_cwd()?;
    Ok(0)
}

/// Records that the working directory is native.
fn leave() {
    if view::is_active() && !is_inside() {
        // If this fails, only a program that is executed starts in another directory.
        let _ = inside(|| {
            let was_virtual = cwd::virtual_cwd().is_some();
            cwd::enter_native();
            if was_virtual { hand_over_cwd() } else { Ok(()) }
        });
    }
}

fn enter_entry(entry: &Entry) -> Outcome<c_int> {
    let found = entry.node()?;
    if found.kind != Kind::Dir {
        return Err(Errno(libc::ENOTDIR));
    }
    crate::access::check_access(found, libc::X_OK, true)?;
    enter(entry.dir, entry.path.clone())
}

wrap! {
    fn chdir(path: *const c_char) -> c_int, |next| {
        let native = |path| {
            // SAFETY: the caller's argument is valid for chdir(2).
            let changed = unsafe { next(path) };
            if changed == 0 {
                leave();
            }
            changed
        };
        // SAFETY: as above.
        match unsafe { find(libc::AT_FDCWD, path, LastLink::Follow) } {
            Ok(Target::Native) => native(path),
            Ok(Target::Elsewhere(path)) => native(path.as_ptr()),
            Ok(Target::Virtual(entry)) => errno::reply(entry.with(enter_entry)),
            Err(error) => errno::reply(Err(error)),
        }
    }
}

wrap! {
    fn fchdir(fd: c_int) -> c_int, |next| {
        match opened(fd) {
            Some(description) => errno::reply(inside(|| {
                let dir = descriptors::dir(&description)?;
                enter(dir.dir, dir.path())
            })),
            None => {
                // SAFETY: any argument is valid.
                let changed = unsafe { next(fd) };
                if changed == 0 {
                    leave();
                }
                changed
            }
        }
    }
}

/// Returns the working directory if it is virtual.
fn virtual_path() -> Option<Vec<u8>> {
    if is_inside() || !view::is_active() {
        return None;
    }
    let found = inside(|| Ok(cwd::virtual_cwd().map(|(dir, path)| view::absolute(dir, &path))));
    found.unwrap_or(None)
}

/// Copies a path and a NUL to a buffer of the caller. If `into` is NULL, copies them to a buffer
/// from malloc(3), and a `space` of 0 stands for the size of the path.
///
/// # Safety
///
/// `into` is NULL or has space for `space` bytes.
unsafe fn copy_path(path: &[u8], into: *mut c_char, space: size_t) -> Outcome<*mut c_char> {
    let needed = path.len() + 1;
    let space = if into.is_null() && space == 0 { needed } else { space };
    if space < needed {
        return Err(Errno(if space == 0 { libc::EINVAL } else { libc::ERANGE }));
    }
    // SAFETY: malloc has no preconditions; the program frees the memory.
    let into = if into.is_null() { unsafe { libc::malloc(space) }.cast::<c_char>() } else { into };
    if into.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: the buffer has space for the path and the NUL, as checked above.
    unsafe {
        std::ptr::copy_nonoverlapping(path.as_ptr(), into.cast(), path.len());
        into.add(path.len()).write(0);
    }
    Ok(into)
}

wrap! {
    fn getcwd(into: *mut c_char, space: size_t) -> *mut c_char, |next| {
        match virtual_path() {
            // SAFETY: the caller's arguments are valid for getcwd(3).
            None => unsafe { next(into, space) },
            // SAFETY: as above.
            Some(path) => errno::reply_pointer(unsafe { copy_path(&path, into, space) }),
        }
    }
}

wrap! {
    fn __getcwd_chk(into: *mut c_char, space: size_t, size: size_t) -> *mut c_char, |next| {
        match virtual_path() {
            // SAFETY: the caller's arguments are valid for getcwd(3), and the buffer's size.
            None => unsafe { next(into, space, size) },
            // SAFETY: as above.
            Some(path) => errno::reply_pointer(unsafe { copy_path(&path, into, space.min(size)) }),
        }
    }
}

wrap! {
    fn get_current_dir_name() -> *mut c_char, |next| {
        match virtual_path() {
            // SAFETY: there are no preconditions.
            None => unsafe { next() },
            // SAFETY: without a buffer there are no preconditions.
            Some(path) => errno::reply_pointer(unsafe { copy_path(&path, std::ptr::null_mut(), 0) }),
        }
    }
}

wrap! {
    fn getwd(into: *mut c_char) -> *mut c_char, |next| {
        match virtual_path() {
            // SAFETY: the caller's argument is valid for getwd(3).
            None => unsafe { next(into) },
            // SAFETY: the buffer has space for PATH_MAX bytes.
            Some(path) => errno::reply_pointer(unsafe { copy_path(&path, into, libc::PATH_MAX as usize) }),
        }
    }
}

/// Returns the path without symbolic links, into a buffer of `space` bytes.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL; `into` is NULL or has space for `space` bytes.
unsafe fn real_path(
    path: *const c_char,
    into: *mut c_char,
    space: size_t,
    next: impl Fn(*const c_char, *mut c_char) -> *mut c_char,
) -> *mut c_char {
    // SAFETY: the caller's promise.
    match unsafe { find(libc::AT_FDCWD, path, LastLink::Follow) } {
        Ok(Target::Native) => next(path, into),
        Ok(Target::Elsewhere(path)) => next(path.as_ptr(), into),
        Ok(Target::Virtual(entry)) => errno::reply_pointer(entry.with(|entry| {
            entry.node()?;
            // The virtual directory itself may be named by a path with symbolic links.
            let path = view::absolute(entry.dir, &entry.path);
            let space = if into.is_null() { 0 } else { space };
            // SAFETY: the caller's promise.
            unsafe { copy_path(&path, into, space) }
        })),
        Err(error) => errno::reply_pointer(Err(error)),
    }
}

wrap! {
    fn realpath(path: *const c_char, into: *mut c_char) -> *mut c_char, |next| {
        // SAFETY: the caller's arguments are valid for realpath(3): the buffer has PATH_MAX bytes.
        unsafe { real_path(path, into, libc::PATH_MAX as usize, |path, into| next(path, into)) }
    }
}

wrap! {
    fn __realpath_chk(path: *const c_char, into: *mut c_char, size: size_t) -> *mut c_char, |next| {
        // SAFETY: the caller's arguments are valid for realpath(3), and the buffer's size.
        unsafe { real_path(path, into, size, |path, into| next(path, into, size)) }
    }
}

wrap! {
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char, |next| {
        // SAFETY: the caller's argument is valid for realpath(3).
        unsafe { real_path(path, std::ptr::null_mut(), 0, |path, _| next(path)) }
    }
}

wrap! {
    fn chroot(path: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's argument is valid for chroot(2).
        match unsafe { find(libc::AT_FDCWD, path, LastLink::Follow) } {
            Ok(Target::Virtual(entry)) => errno::reply(entry.with(|_| Err(Errno(libc::EOPNOTSUPP)))),
            // SAFETY: as above.
            _ => unsafe { next(path) },
        }
    }
}

wrap! {
    fn __getwd_chk(into: *mut c_char, size: size_t) -> *mut c_char, |next| {
        match virtual_path() {
            // SAFETY: the caller's buffer has `size` bytes.
            Some(path) => errno::reply_pointer(unsafe { copy_path(&path, into, size) }),
            // SAFETY: the caller's arguments are valid for getwd(3), and the buffer's size.
            None => unsafe { next(into, size) },
        }
    }
}
