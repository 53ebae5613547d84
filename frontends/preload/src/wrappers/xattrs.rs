//! Extended attributes.

use libc::{c_char, c_int, c_void, size_t, ssize_t};
use quell_vfs::{FileSystem, NodeId};

use crate::descriptors::Description;
use crate::errno::{self, Errno, Outcome};
use crate::guard::inside;
use crate::next::wrap;
use crate::originals;
use crate::resolve::{Entry, LastLink};
use crate::wrappers::{bytes, change_native, with_descriptor, with_path};

/// The node whose attributes are asked for.
type Node = (&'static dyn FileSystem, NodeId);

fn of_entry(entry: &Entry) -> Outcome<Node> {
    Ok((entry.fs, entry.node()?.node()))
}

fn of_descriptor(description: &Description) -> Outcome<Node> {
    match description {
        Description::File(file) => Ok((file.dir.fs()?, file.file()?.0)),
        Description::Dir(dir) => of_entry(&*dir.entry()?),
    }
}

/// Answers for the descriptor of a file in memory with `ours`, and for all others with `next`.
fn of_memory(
    fd: c_int,
    ours: impl FnOnce(Node) -> Outcome<ssize_t>,
    next: impl FnOnce() -> ssize_t,
) -> ssize_t {
    match originals::of_descriptor(fd) {
        None => next(),
        Some((dir, node)) => errno::reply(inside(|| ours((dir.fs()?, node)))),
    }
}

/// Copies a result, whose size is asked for with a size of 0.
///
/// # Safety
///
/// `into` has space for `space` bytes.
unsafe fn copy(found: &[u8], into: *mut c_void, space: size_t) -> Outcome<ssize_t> {
    if space > 0 {
        if found.len() > space {
            return Err(Errno(libc::ERANGE));
        }
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), into.cast(), found.len()) };
    }
    Ok(found.len() as ssize_t)
}

/// # Safety
///
/// `name` is a string that ends with a NUL; `into` has space for `space` bytes.
unsafe fn get((fs, node): Node, name: *const c_char, into: *mut c_void, space: size_t) -> Outcome<ssize_t> {
    if !fs.capabilities().xattrs {
        return Err(Errno(libc::ENOTSUP));
    }
    let context = crate::view::context();
    // SAFETY: the caller's promise.
    let value = fs.xattr(&context, node, unsafe { bytes(name) })?.ok_or(Errno(libc::ENODATA))?;
    // SAFETY: the caller's promise.
    unsafe { copy(&value, into, space) }
}

/// # Safety
///
/// `into` has space for `space` bytes.
unsafe fn list((fs, node): Node, into: *mut c_char, space: size_t) -> Outcome<ssize_t> {
    if !fs.capabilities().xattrs {
        return Err(Errno(libc::ENOTSUP));
    }
    let context = crate::view::context();
    let names = fs.xattr_names(&context, node)?;
    let joined: Vec<u8> = names.iter().flat_map(|name| name.iter().copied().chain([0])).collect();
    // SAFETY: the caller's promise.
    unsafe { copy(&joined, into.cast(), space) }
}

/// The contract has no operation that changes extended attributes.
fn refuse_change((fs, _): Node) -> Outcome<c_int> {
    Err(Errno(if fs.writable().is_some() { libc::ENOTSUP } else { libc::EROFS }))
}

macro_rules! path_xattrs {
    ($get:ident, $list:ident, $set:ident, $remove:ident, $last_link:expr) => {
        wrap! {
            fn $get(path: *const c_char, name: *const c_char, into: *mut c_void, space: size_t) -> ssize_t, |next| {
                // SAFETY: the caller's arguments are those of getxattr(2).
                unsafe {
                    with_path(libc::AT_FDCWD, path, $last_link, |_, path| next(path, name, into, space), |entry| get(of_entry(entry)?, name, into, space))
                }
            }
        }

        wrap! {
            fn $list(path: *const c_char, into: *mut c_char, space: size_t) -> ssize_t, |next| {
                // SAFETY: the caller's arguments are those of listxattr(2).
                unsafe {
                    with_path(libc::AT_FDCWD, path, $last_link, |_, path| next(path, into, space), |entry| list(of_entry(entry)?, into, space))
                }
            }
        }

        wrap! {
            fn $set(path: *const c_char, name: *const c_char, value: *const c_void, length: size_t, flags: c_int) -> c_int, |next| {
                // SAFETY: the caller's arguments are those of setxattr(2).
                unsafe {
                    with_path(libc::AT_FDCWD, path, $last_link, |_, path| next(path, name, value, length, flags), |entry| refuse_change(of_entry(entry)?))
                }
            }
        }

        wrap! {
            fn $remove(path: *const c_char, name: *const c_char) -> c_int, |next| {
                // SAFETY: the caller's arguments are those of removexattr(2).
                unsafe {
                    with_path(libc::AT_FDCWD, path, $last_link, |_, path| next(path, name), |entry| refuse_change(of_entry(entry)?))
                }
            }
        }
    };
}

path_xattrs!(getxattr, listxattr, setxattr, removexattr, LastLink::Follow);
path_xattrs!(lgetxattr, llistxattr, lsetxattr, lremovexattr, LastLink::Keep);

wrap! {
    fn fgetxattr(fd: c_int, name: *const c_char, into: *mut c_void, space: size_t) -> ssize_t, |next| {
        // SAFETY: the caller's arguments are those of fgetxattr(2).
        with_descriptor(fd, || unsafe { of_memory(fd, |node| get(node, name, into, space), || next(fd, name, into, space)) }, |description| unsafe {
            get(of_descriptor(description)?, name, into, space)
        })
    }
}

wrap! {
    fn flistxattr(fd: c_int, into: *mut c_char, space: size_t) -> ssize_t, |next| {
        // SAFETY: the caller's arguments are those of flistxattr(2).
        with_descriptor(fd, || unsafe { of_memory(fd, |node| list(node, into, space), || next(fd, into, space)) }, |description| unsafe {
            list(of_descriptor(description)?, into, space)
        })
    }
}

wrap! {
    fn fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, length: size_t, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments are those of fsetxattr(2).
        with_descriptor(fd, || change_native(fd, || unsafe { next(fd, name, value, length, flags) }), |description| refuse_change(of_descriptor(description)?))
    }
}

wrap! {
    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments are those of fremovexattr(2).
        with_descriptor(fd, || change_native(fd, || unsafe { next(fd, name) }), |description| refuse_change(of_descriptor(description)?))
    }
}
