//! The functions of libc that this library defines, one file for each family. `table.txt` beside
//! this directory lists every function of libc that does I/O, and says which are defined here and
//! why the others are not.

mod asynchronous;
mod copies;
mod cwd;
mod data;
mod descriptor;
mod directories;
mod directory_entries;
#[cfg(target_arch = "x86_64")]
pub mod dispatched_calls;
pub mod file_actions;
mod file_systems;
mod formatted;
mod fts;
mod libraries;
pub mod locks;
mod mappings;
mod names;
pub mod open;
mod programs;
mod received;
mod signals;
mod status;
mod stdio;
pub mod system_calls;
mod temporary;
mod terminals;
mod threads;
mod waits;
mod walks;
mod wide;
mod xattrs;

use std::ffi::{CStr, CString};
use std::sync::Arc;

use libc::{c_char, c_int};

use crate::descriptors::{self, Description};
use crate::errno::{self, Errno, Outcome};
use crate::guard::{inside, is_inside};
use crate::locate::Located;
use crate::locate_at::locate;
use crate::originals;
use crate::resolve::{Entry, LastLink, Resolved, resolve};
use crate::view;

/// Returns the bytes of a path.
///
/// # Safety
///
/// `path` is a string that ends with a NUL and outlives the result.
unsafe fn bytes<'a>(path: *const c_char) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(path) }.to_bytes()
}

/// The target of a path that a program passed.
pub enum Target<V = FoundEntry> {
    /// Outside of the virtual directories, as the program named it.
    Native,
    /// Outside of the virtual directories, at another path.
    Elsewhere(CString),
    Virtual(V),
}

/// An entry that was found for a wrapper. It is dropped inside `guard::inside`: its drop may close
/// descriptors of the library, and must not change `errno`.
pub struct FoundEntry(Option<Box<Entry>>);

impl FoundEntry {
    /// Returns the entry, for code that runs inside `guard::inside`.
    pub fn into_inner(mut self) -> Outcome<Box<Entry>> {
        self.0.take().ok_or(Errno(libc::EIO))
    }

    /// Calls `ours` for the entry.
    fn with<T>(mut self, ours: impl FnOnce(&Entry) -> Outcome<T>) -> Outcome<T> {
        let entry = self.0.take();
        inside(move || {
            let entry = entry.ok_or(Errno(libc::EIO))?;
            ours(&entry)
        })
    }

    fn is_tree(&self) -> bool {
        self.0.as_ref().is_some_and(|entry| entry.dir.is_tree())
    }
}

impl Drop for FoundEntry {
    fn drop(&mut self) {
        if let Some(entry) = self.0.take() {
            let _ = inside(move || {
                drop(entry);
                Ok(())
            });
        }
    }
}

/// Returns the target of a path.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL.
pub unsafe fn find(dirfd: c_int, path: *const c_char, last_link: LastLink) -> Outcome<Target> {
    // SAFETY: the caller's promise.
    unsafe { find_and(dirfd, path, last_link, |entry| Ok(FoundEntry(Some(entry)))) }
}

/// Returns the target of a path, with the result of `ours` for an entry of a virtual directory.
/// `ours` runs in the same call of `guard::inside` that finds the entry: the system calls with
/// which such a call begins and ends take longer than most operations in it.
///
/// # Safety
///
/// As for `find`.
unsafe fn find_and<T>(
    dirfd: c_int,
    path: *const c_char,
    last_link: LastLink,
    ours: impl FnOnce(Box<Entry>) -> Outcome<T>,
) -> Outcome<Target<T>> {
    if path.is_null() || is_inside() || !view::is_active() {
        return Ok(Target::Native);
    }
    // SAFETY: the caller's promise.
    let path = unsafe { bytes(path) };
    if view::is_certainly_native(path) && descriptors::number_in(path).is_none() {
        return Ok(Target::Native);
    }
    inside(|| match locate(dirfd, path) {
        Located::Native => Ok(Target::Native),
        Located::Virtual(dir, rest) => match resolve(dir, &rest, last_link)? {
            Resolved::Virtual(entry) => ours(entry).map(Target::Virtual),
            Resolved::Native(path) => {
                CString::new(path).map(Target::Elsewhere).map_err(|_| Errno(libc::ENOENT))
            }
        },
    })
}

/// Calls `ours` for a path in a virtual directory. Calls `next` for all other paths, with the
/// directory and the path that libc must use.
///
/// # Safety
///
/// As for `find`.
unsafe fn with_path<T: From<i8>>(
    dirfd: c_int,
    path: *const c_char,
    last_link: LastLink,
    next: impl FnOnce(c_int, *const c_char) -> T,
    ours: impl FnOnce(&Entry) -> Outcome<T>,
) -> T {
    // SAFETY: the caller's promise.
    match unsafe { find_and(dirfd, path, last_link, |entry| ours(&entry)) } {
        Ok(Target::Native) => next(dirfd, path),
        Ok(Target::Elsewhere(path)) => next(libc::AT_FDCWD, path.as_ptr()),
        Ok(Target::Virtual(result)) => result,
        Err(error) => errno::reply(Err(error)),
    }
}

/// Returns the result of `examine` for a path in a virtual directory, or the error of the path;
/// `None` for a path outside.
///
/// # Safety
///
/// As for `find`.
pub unsafe fn if_virtual<T>(
    dirfd: c_int,
    path: *const c_char,
    last_link: LastLink,
    examine: impl FnOnce(&Entry) -> Outcome<T>,
) -> Option<Outcome<T>> {
    // SAFETY: the caller's promise.
    match unsafe { find_and(dirfd, path, last_link, |entry| examine(&entry)) } {
        Ok(Target::Native | Target::Elsewhere(_)) => None,
        Ok(Target::Virtual(result)) => Some(Ok(result)),
        Err(error) => Some(Err(error)),
    }
}

/// Calls `ours` for a virtual descriptor, and `next` for all others.
fn with_descriptor<T: From<i8>>(
    fd: c_int,
    next: impl FnOnce() -> T,
    ours: impl FnOnce(&Description) -> Outcome<T>,
) -> T {
    if !descriptors::is_virtual(fd) || is_inside() {
        return next();
    }
    // One call of `inside` for the table and the operation, because each takes two system calls.
    let found = inside(|| match descriptors::get(fd) {
        None => Ok(None),
        Some(description) => ours(&description).map(Some),
    });
    match found.transpose() {
        None => next(),
        Some(outcome) => errno::reply(outcome),
    }
}

/// Calls `next` for a descriptor that is not virtual, unless it is a file of a tree in memory,
/// whose attributes cannot be changed: EROFS, as for the path of the file.
fn change_native<T: From<i8>>(fd: c_int, next: impl FnOnce() -> T) -> T {
    match originals::of_descriptor(fd) {
        None => next(),
        Some(_) => errno::reply(Err(Errno(libc::EROFS))),
    }
}

/// Returns the open file of a virtual descriptor.
fn opened(fd: c_int) -> Option<Arc<Description>> {
    if !descriptors::is_virtual(fd) || is_inside() {
        return None;
    }
    // The table has a lock, which a signal handler must not wait for.
    inside(|| Ok(descriptors::get(fd))).unwrap_or(None)
}

/// Returns whether the last symbolic link of a path is followed, for the flags of `*at` functions.
fn last_link(flags: c_int) -> LastLink {
    match flags & libc::AT_SYMLINK_NOFOLLOW != 0 {
        true => LastLink::Keep,
        false => LastLink::Follow,
    }
}
