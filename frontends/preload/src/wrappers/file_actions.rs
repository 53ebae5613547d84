//! The file actions of posix_spawn(3), which libc executes in the child by internal calls. A
//! virtual file is opened when its action is added, and the child gets a duplicate.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;

use libc::{c_char, c_int, mode_t, posix_spawn_file_actions_t};
use quell_threads::lock;

use crate::descriptors;
use crate::errno::{Errno, Outcome};
use crate::guard::inside;
use crate::next::wrap;
use crate::own_descriptors;
use crate::placeholder;
use crate::resolve::LastLink;
use crate::wrappers::descriptor::close_descriptor;
use crate::wrappers::open::open_entry;
use crate::wrappers::{FoundEntry, Target, find};

/// The descriptors that file actions refer to, by the addresses of the actions.
static OPENED: Mutex<BTreeMap<usize, Vec<OwnedFd>>> = Mutex::new(BTreeMap::new());

/// Opens a virtual file for a child, with a number above those that programs use.
fn open_for_child(entry: FoundEntry, flags: c_int, mode: mode_t) -> Outcome<OwnedFd> {
    let number = inside(|| open_entry(entry.into_inner()?, flags | libc::O_CLOEXEC, mode))?;
    let high = inside(|| Ok(own_descriptors::duplicate(placeholder::borrow(number))?));
    // The child inherits the placeholder, so it must not be used for another file.
    descriptors::share_all();
    close_descriptor(number);
    high
}

/// Locks the table for a fork.
pub fn lock_for_fork() -> std::sync::MutexGuard<'static, BTreeMap<usize, Vec<OwnedFd>>> {
    lock(&OPENED)
}

wrap! {
    fn posix_spawn_file_actions_addopen(
        actions: *mut posix_spawn_file_actions_t,
        fd: c_int,
        path: *const c_char,
        flags: c_int,
        mode: mode_t,
    ) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for posix_spawn_file_actions_addopen(3).
        match unsafe { find(libc::AT_FDCWD, path, LastLink::Follow) } {
            // SAFETY: as above.
            Ok(Target::Native) => unsafe { next(actions, fd, path, flags, mode) },
            // SAFETY: as above.
            Ok(Target::Elsewhere(path)) => unsafe { next(actions, fd, path.as_ptr(), flags, mode) },
            // The kernel opens the original file.
            // SAFETY: as above.
            Ok(Target::Virtual(entry)) if entry.is_tree() => unsafe { next(actions, fd, path, flags, mode) },
            Ok(Target::Virtual(entry)) => match open_for_child(entry, flags, mode) {
                Ok(opened) => {
                    // SAFETY: the actions are the caller's, and the descriptor is open until they
                    // are destroyed.
                    let added =
                        unsafe { libc::posix_spawn_file_actions_adddup2(actions, opened.as_raw_fd(), fd) };
                    let kept = inside(|| {
                        lock(&OPENED).entry(actions.addr()).or_default().push(opened);
                        Ok(())
                    });
                    kept.map_or_else(|error| error.0, |()| added)
                }
                Err(error) => error.0,
            },
            Err(error) => error.0,
        }
    }
}

wrap! {
    fn posix_spawn_file_actions_addchdir_np(
        actions: *mut posix_spawn_file_actions_t,
        path: *const c_char,
    ) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for posix_spawn_file_actions_addchdir_np(3).
        match unsafe { find(libc::AT_FDCWD, path, LastLink::Follow) } {
            // SAFETY: as above.
            Ok(Target::Virtual(entry)) if entry.is_tree() => unsafe { next(actions, path) },
            // The native directory below the virtual one would be the working directory.
            Ok(Target::Virtual(entry)) => entry.with(|_| Ok(())).map_or_else(|error| error.0, |()| libc::ENOTSUP),
            // SAFETY: as above.
            Ok(Target::Elsewhere(path)) => unsafe { next(actions, path.as_ptr()) },
            // SAFETY: as above.
            Ok(Target::Native) => unsafe { next(actions, path) },
            Err(Errno(number)) => number,
        }
    }
}

wrap! {
    fn posix_spawn_file_actions_destroy(actions: *mut posix_spawn_file_actions_t) -> c_int, |next| {
        if crate::view::is_active() {
            let _ = inside(|| {
                drop(lock(&OPENED).remove(&actions.addr()));
                Ok(())
            });
        }
        // SAFETY: the caller's argument is valid for posix_spawn_file_actions_destroy(3).
        unsafe { next(actions) }
    }
}
