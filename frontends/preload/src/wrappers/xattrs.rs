//! Extended attributes.

use libc::{c_char, c_int, c_void, size_t, ssize_t};
use quell_vfs::{Attributes, FileSystem, Kind, NodeId, SetXattr, USER_XATTRS, XATTR_VALUE_BYTES_MAX};

use crate::access::check_access;
use crate::descriptors::Description;
use crate::errno::{self, Errno, Outcome};
use crate::guard::inside;
use crate::next::wrap;
use crate::originals;
use crate::resolve::{Entry, LastLink};
use crate::wrappers::{bytes, change_native, with_descriptor, with_path};

/// The node whose attributes are read or changed.
struct Node {
    fs: &'static dyn FileSystem,
    node: NodeId,
    /// The other attributes of the node, if they are known.
    known: Option<Attributes>,
}

impl Node {
    fn attributes(&self) -> Outcome<Attributes> {
        match self.known {
            Some(known) => Ok(known),
            None => Ok(self.fs.attributes(&crate::view::context(), self.node)?),
        }
    }

    /// Checks access to an attribute. Access to a `user.` attribute requires the same permission as
    /// access to the file (xattr(7)). `wanted` is R_OK or W_OK.
    fn check_access(&self, name: &[u8], wanted: c_int) -> Outcome<()> {
        const STICKY: u32 = 0o1000;
        if !name.starts_with(USER_XATTRS) {
            return Ok(());
        }
        let found = self.attributes()?;
        let user = rustix::process::geteuid();
        let is_others = !user.is_root() && user.as_raw() != found.uid;
        match found.kind {
            Kind::Dir if wanted == libc::W_OK && found.permissions & STICKY != 0 && is_others => {
                Err(Errno(libc::EPERM))
            }
            Kind::Dir | Kind::File => check_access(&found, wanted, true),
            // Other files have no `user.` attributes, whatever their permissions are.
            _ => Ok(()),
        }
    }
}

fn of_entry(entry: &Entry) -> Outcome<Node> {
    let found = entry.node()?;
    Ok(Node { fs: entry.fs, node: found.node(), known: Some(**found) })
}

fn of_descriptor(description: &Description) -> Outcome<Node> {
    match description {
        Description::File(file) => Ok(Node { fs: file.dir.fs()?, node: file.file()?.0, known: None }),
        Description::Dir(dir) => of_entry(&*dir.entry()?),
    }
}

/// Returns the result of `ours` for the descriptor of a file in memory, and of `next` for all
/// others.
fn of_memory(
    fd: c_int,
    ours: impl FnOnce(Node) -> Outcome<ssize_t>,
    next: impl FnOnce() -> ssize_t,
) -> ssize_t {
    match originals::of_descriptor(fd) {
        None => next(),
        Some((dir, node)) => errno::reply(inside(|| ours(Node { fs: dir.fs()?, node, known: None }))),
    }
}

/// Copies a result. If `space` is 0, returns only the size of the result.
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
unsafe fn get(of: Node, name: *const c_char, into: *mut c_void, space: size_t) -> Outcome<ssize_t> {
    if !of.fs.capabilities().xattrs {
        return Err(Errno(libc::ENOTSUP));
    }
    // SAFETY: the caller's promise.
    let name = unsafe { bytes(name) };
    of.check_access(name, libc::R_OK)?;
    let value = of.fs.xattr(&crate::view::context(), of.node, name)?.ok_or(Errno(libc::ENODATA))?;
    // SAFETY: the caller's promise.
    unsafe { copy(&value, into, space) }
}

/// # Safety
///
/// `into` has space for `space` bytes.
unsafe fn list(of: Node, into: *mut c_char, space: size_t) -> Outcome<ssize_t> {
    if !of.fs.capabilities().xattrs {
        return Err(Errno(libc::ENOTSUP));
    }
    let names = of.fs.xattr_names(&crate::view::context(), of.node)?;
    let joined: Vec<u8> = names.iter().flat_map(|name| name.iter().copied().chain([0])).collect();
    // SAFETY: the caller's promise.
    unsafe { copy(&joined, into.cast(), space) }
}

/// # Safety
///
/// `name` is a string that ends with a NUL; `value` has `length` bytes.
unsafe fn set(
    of: Node,
    name: *const c_char,
    value: *const c_void,
    length: size_t,
    flags: c_int,
) -> Outcome<c_int> {
    let tree = of.fs.writable().ok_or(Errno(libc::EROFS))?;
    let mode = match flags {
        0 => SetXattr::Any,
        libc::XATTR_CREATE => SetXattr::Create,
        libc::XATTR_REPLACE => SetXattr::Replace,
        _ => return Err(Errno(libc::EINVAL)),
    };
    if length > XATTR_VALUE_BYTES_MAX {
        return Err(Errno(libc::E2BIG));
    }
    // SAFETY: the caller's promise.
    let name = unsafe { bytes(name) };
    let value = match length {
        0 => &[],
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(value.cast(), length) },
    };
    of.check_access(name, libc::W_OK)?;
    tree.set_xattr(&crate::view::context(), of.node, name, value, mode)?;
    Ok(0)
}

/// # Safety
///
/// `name` is a string that ends with a NUL.
unsafe fn remove(of: Node, name: *const c_char) -> Outcome<c_int> {
    let tree = of.fs.writable().ok_or(Errno(libc::EROFS))?;
    // SAFETY: the caller's promise.
    let name = unsafe { bytes(name) };
    of.check_access(name, libc::W_OK)?;
    tree.remove_xattr(&crate::view::context(), of.node, name)?;
    Ok(0)
}

macro_rules! path_xattrs {
    ($get:ident, $list:ident, $set:ident, $remove:ident, $last_link:expr) => {
        wrap! {
            fn $get(path: *const c_char, name: *const c_char, into: *mut c_void, space: size_t) -> ssize_t, |next| {
                // SAFETY: the caller's arguments are valid for getxattr(2).
                unsafe {
                    with_path(libc::AT_FDCWD, path, $last_link, |_, path| next(path, name, into, space), |entry| get(of_entry(entry)?, name, into, space))
                }
            }
        }

        wrap! {
            fn $list(path: *const c_char, into: *mut c_char, space: size_t) -> ssize_t, |next| {
                // SAFETY: the caller's arguments are valid for listxattr(2).
                unsafe {
                    with_path(libc::AT_FDCWD, path, $last_link, |_, path| next(path, into, space), |entry| list(of_entry(entry)?, into, space))
                }
            }
        }

        wrap! {
            fn $set(path: *const c_char, name: *const c_char, value: *const c_void, length: size_t, flags: c_int) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for setxattr(2).
                unsafe {
                    with_path(libc::AT_FDCWD, path, $last_link, |_, path| next(path, name, value, length, flags), |entry| set(of_entry(entry)?, name, value, length, flags))
                }
            }
        }

        wrap! {
            fn $remove(path: *const c_char, name: *const c_char) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for removexattr(2).
                unsafe {
                    with_path(libc::AT_FDCWD, path, $last_link, |_, path| next(path, name), |entry| remove(of_entry(entry)?, name))
                }
            }
        }
    };
}

path_xattrs!(getxattr, listxattr, setxattr, removexattr, LastLink::Follow);
path_xattrs!(lgetxattr, llistxattr, lsetxattr, lremovexattr, LastLink::Keep);

wrap! {
    fn fgetxattr(fd: c_int, name: *const c_char, into: *mut c_void, space: size_t) -> ssize_t, |next| {
        // SAFETY: the caller's arguments are valid for fgetxattr(2).
        with_descriptor(fd, || unsafe { of_memory(fd, |node| get(node, name, into, space), || next(fd, name, into, space)) }, |description| unsafe {
            get(of_descriptor(description)?, name, into, space)
        })
    }
}

wrap! {
    fn flistxattr(fd: c_int, into: *mut c_char, space: size_t) -> ssize_t, |next| {
        // SAFETY: the caller's arguments are valid for flistxattr(2).
        with_descriptor(fd, || unsafe { of_memory(fd, |node| list(node, into, space), || next(fd, into, space)) }, |description| unsafe {
            list(of_descriptor(description)?, into, space)
        })
    }
}

wrap! {
    fn fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, length: size_t, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for fsetxattr(2).
        with_descriptor(fd, || change_native(fd, || unsafe { next(fd, name, value, length, flags) }), |description| unsafe {
            set(of_descriptor(description)?, name, value, length, flags)
        })
    }
}

wrap! {
    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for fremovexattr(2).
        with_descriptor(fd, || change_native(fd, || unsafe { next(fd, name) }), |description| unsafe { remove(of_descriptor(description)?, name) })
    }
}
