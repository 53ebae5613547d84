//! Functions for descriptors themselves: close(2), dup(2), fcntl(2), ioctl(2) and flock(2).

use std::sync::Arc;

use libc::{c_int, c_uint, c_ulong};

use crate::descriptors::{self, Description};
use crate::errno::{self, Errno, Outcome};
use crate::guard::{inside, is_inside};
use crate::next::wrap;
use crate::open_file::reported_flags;
use crate::own_descriptors;
use crate::placeholder::{self, Part, borrow};
use crate::refusals::refused;
use crate::spare_placeholders;
use crate::streams;
use crate::wrappers::{locks, opened, with_descriptor};

/// Closes a virtual descriptor. Its data is published, and an error of this is returned; the
/// descriptor is closed in any case, as by close(2).
fn close_virtual(fd: c_int) -> Outcome<()> {
    let sharings = descriptors::sharings();
    let Some((description, is_private)) = descriptors::remove_for_close(fd) else {
        return Err(Errno(libc::EBADF));
    };
    // The kernel's descriptor is closed when `own` is dropped, after its data was collected.
    let own = placeholder::own(fd);
    let published = publish(fd, &description);
    let is_last = !descriptors::refers(&description);
    let closed = close_last(description);
    if is_private && is_last && descriptors::sharings() == sharings {
        spare_placeholders::keep(own);
    } else {
        drop(own);
    }
    published.and(closed)
}

fn publish(fd: c_int, description: &Description) -> Outcome<()> {
    match description {
        Description::File(file) => file.publish(borrow(fd), Part::WholePages),
        Description::Dir(_) => Ok(()),
    }
}

/// Closes the file if no other descriptor of this process refers to it.
fn close_last(description: Arc<Description>) -> Outcome<()> {
    let released = locks::release_of_process(&description);
    // The reference count is not examined, because another thread may still be using the file.
    let closed = match &*description {
        Description::File(file) if !descriptors::refers(&description) => file.close(),
        Description::File(_) | Description::Dir(_) => Ok(()),
    };
    released.and(closed)
}

/// Removes a virtual descriptor that libc is about to close by an internal call. Returns an error
/// of the file.
pub fn before_internal_close(fd: c_int) -> Outcome<()> {
    if !descriptors::is_virtual(fd) || is_inside() {
        return Ok(());
    }
    inside(|| {
        let Some(description) = descriptors::remove(fd) else { return Ok(()) };
        let published = publish(fd, &description);
        published.and(close_last(description))
    })
}

/// Closes a virtual descriptor, as close(2) does.
pub fn close_descriptor(fd: c_int) -> c_int {
    errno::reply(inside(|| close_virtual(fd).map(|()| 0)))
}

wrap! {
    fn close(fd: c_int) -> c_int, |next| {
        if descriptors::is_virtual(fd) && !is_inside() {
            streams::flush_standard(fd);
            let closed = close_descriptor(fd);
            streams::use_for_standard(fd);
            return closed;
        }
        if descriptors::is_own(fd) {
            return errno::reply(Err(Errno(libc::EBADF)));
        }
        if is_inside() {
            own_descriptors::remove(fd);
        }
        // SAFETY: any argument is valid.
        unsafe { next(fd) }
    }
}

/// Closes the virtual descriptors of a range, or sets close-on-exec for them if `flags` has
/// CLOSE_RANGE_CLOEXEC. Returns the rest of the range, without the library's own descriptors.
fn close_in_range(first: c_uint, last: c_uint, flags: c_int) -> Vec<(c_uint, c_uint)> {
    let limit = |number: c_uint| c_int::try_from(number).unwrap_or(c_int::MAX);
    if first <= last && view_is_used() {
        let closed = inside(|| {
            let mut result = Ok(());
            for fd in descriptors::in_range(limit(first), limit(last)) {
                let closed = match flags & CLOSE_RANGE_CLOEXEC != 0 {
                    true => {
                        rustix::io::fcntl_setfd(borrow(fd), rustix::io::FdFlags::CLOEXEC).map_err(Errno::from)
                    }
                    false => close_virtual(fd),
                };
                result = result.and(closed);
            }
            result
        });
        if let Err(error) = closed {
            // close_range(2) ignores the errors of closes.
            crate::messages::warn(&format!("data of a closed file could not be stored: error {}", error.0));
        }
    }
    if is_inside() || !own_descriptors::can_contain(limit(last)) {
        return vec![(first, last)];
    }
    let ranges = inside(|| Ok(own_descriptors::others_in_range(limit(first), limit(last))));
    let ranges = ranges.unwrap_or_default().into_iter();
    ranges.map(|(first, last)| (first as c_uint, last as c_uint)).collect()
}

fn view_is_used() -> bool {
    crate::view::is_active() && !is_inside()
}

const CLOSE_RANGE_CLOEXEC: c_int = 4;

wrap! {
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, |next| {
        if first > last {
            // SAFETY: any arguments are valid.
            return unsafe { next(first, last, flags) };
        }
        for (first, last) in close_in_range(first, last, flags) {
            // SAFETY: any arguments are valid.
            let closed = unsafe { next(first, last, flags) };
            if closed != 0 {
                return closed;
            }
        }
        0
    }
}

wrap! {
    fn closefrom(first: c_int) -> (), |next| {
        let ranges = close_in_range(first.max(0) as c_uint, c_int::MAX as c_uint, 0);
        if ranges == [(first.max(0) as c_uint, c_int::MAX as c_uint)] {
            // SAFETY: any argument is valid.
            return unsafe { next(first) };
        }
        for (first, last) in ranges {
            // SAFETY: any arguments are valid.
            unsafe { crate::next::system_call()(libc::SYS_close_range, first, last, 0) };
        }
    }
}

/// Records that `new` refers to the same open file as `old`, and closes the virtual file to which
/// `new` referred before.
fn duplicated(new: c_int, description: Arc<Description>) -> Outcome<c_int> {
    if !descriptors::is_possible(new) {
        drop(placeholder::own(new));
        return Err(Errno(libc::EMFILE));
    }
    if let Some(before) = descriptors::assign(new, description)
        && let Err(error) = close_last(before)
    {
        // The descriptor has been duplicated, so dup2(2) has succeeded.
        crate::messages::warn(&format!("data of a closed file could not be stored: error {}", error.0));
    }
    Ok(new)
}

/// Publishes the file of a virtual descriptor that dup2(2) is about to close.
fn publish_replaced(new: c_int) -> Outcome<()> {
    match descriptors::get(new) {
        Some(replaced) => publish(new, &replaced),
        None => Ok(()),
    }
}

/// Duplicates `old` as `new`. Errors of the replaced file are not returned, as by dup2(2).
fn duplicate_as(old: c_int, new: c_int, next: impl FnOnce() -> c_int) -> c_int {
    if !view_is_used() || old == new {
        return next();
    }
    if descriptors::is_own(new) {
        return errno::reply(Err(Errno(libc::EBADF)));
    }
    let (source, replaced) = (opened(old), descriptors::is_virtual(new));
    if source.is_none() && !replaced {
        return next();
    }
    streams::flush_standard(new);
    if replaced && let Err(error) = inside(|| publish_replaced(new)) {
        return errno::reply(Err(error));
    }
    let number = next();
    if number < 0 {
        return number;
    }
    let duplicated = inside(|| match source {
        Some(source) => duplicated(new, source),
        None => {
            if let Some(Err(error)) = descriptors::remove(new).map(close_last) {
                crate::messages::warn(&format!(
                    "data of a closed file could not be stored: error {}",
                    error.0
                ));
            }
            Ok(number)
        }
    });
    streams::use_for_standard(new);
    errno::reply(duplicated)
}

wrap! {
    fn dup(fd: c_int) -> c_int, |next| {
        // SAFETY: any argument is valid.
        let new = unsafe { next(fd) };
        match opened(fd) {
            Some(description) if new >= 0 => {
                let duplicated = inside(|| duplicated(new, description));
                streams::use_for_standard(new);
                errno::reply(duplicated)
            }
            _ => new,
        }
    }
}

wrap! {
    fn dup2(old: c_int, new: c_int) -> c_int, |next| {
        // SAFETY: any arguments are valid.
        duplicate_as(old, new, || unsafe { next(old, new) })
    }
}

wrap! {
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int, |next| {
        // SAFETY: any arguments are valid.
        duplicate_as(old, new, || unsafe { next(old, new, flags) })
    }
}

fn control(
    fd: c_int,
    description: &Arc<Description>,
    command: c_int,
    argument: c_ulong,
    next: impl FnOnce() -> c_int,
) -> Outcome<c_int> {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let new = next();
            if new < 0 {
                return Err(Errno(errno::get()));
            }
            duplicated(new, Arc::clone(description))
        }
        libc::F_GETFD | libc::F_SETFD => match next() {
            -1 => Err(Errno(errno::get())),
            flags => Ok(flags),
        },
        libc::F_GETFL => Ok(match &**description {
            Description::File(file) => reported_flags(file.flags()),
            Description::Dir(dir) => reported_flags(dir.flags()),
        }),
        libc::F_SETFL => {
            match &**description {
                Description::File(file) if file.flags() & libc::O_PATH != 0 => {
                    return Err(Errno(libc::EBADF));
                }
                Description::Dir(dir) if dir.flags() & libc::O_PATH != 0 => return Err(Errno(libc::EBADF)),
                Description::File(file) => file.set_flags(argument as c_int),
                Description::Dir(dir) => dir.set_flags(argument as c_int),
            }
            placeholder::set_header(borrow(fd), &description.header())?;
            Ok(0)
        }
        _ => Err(refused("fcntl", Some(description.dir()), Errno(libc::EINVAL))),
    }
}

macro_rules! fcntl {
    ($name:ident) => {
        wrap! {
            fn $name(fd: c_int, command: c_int, argument: c_ulong) -> c_int, |next| {
                match opened(fd) {
                    // SAFETY: the caller's arguments are valid for fcntl(2).
                    None => unsafe { next(fd, command, argument) },
                    Some(description) if locks::is_lock_command(command) => {
                        // SAFETY: as above; the argument of these commands is an address.
                        errno::reply(unsafe { locks::control(fd, &description, command, argument) })
                    }
                    Some(description) => {
                        // SAFETY: as above.
                        let next = || unsafe { next(fd, command, argument) };
                        let result = inside(|| control(fd, &description, command, argument, next));
                        if let (Ok(new), libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) = (result, command) {
                            streams::use_for_standard(new);
                        }
                        errno::reply(result)
                    }
                }
            }
        }
    };
}

fcntl!(fcntl);
fcntl!(fcntl64);

wrap! {
    fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for ioctl(2).
        with_descriptor(fd, || unsafe { next(fd, request, argument) }, |description| {
            match request {
                libc::FIOCLEX | libc::FIONCLEX => {
                    let flags = if request == libc::FIOCLEX { rustix::io::FdFlags::CLOEXEC } else { rustix::io::FdFlags::empty() };
                    rustix::io::fcntl_setfd(borrow(fd), flags)?;
                    Ok(0)
                }
                libc::FIONREAD => {
                    let file = descriptors::file(description)?;
                    let left = file.attributes()?.size_bytes.saturating_sub(placeholder::position(borrow(fd))?);
                    let into = std::ptr::with_exposed_provenance_mut::<c_int>(argument as usize);
                    // SAFETY: as above; the argument of this request is the address of a number.
                    unsafe { into.write(c_int::try_from(left).unwrap_or(c_int::MAX)) };
                    Ok(0)
                }
                // Programs make these requests to find out whether a file is a terminal.
                libc::TCGETS | libc::TIOCGWINSZ | libc::TIOCGPGRP => Err(Errno(libc::ENOTTY)),
                _ => Err(refused("ioctl", Some(description.dir()), Errno(libc::ENOTTY))),
            }
        })
    }
}

wrap! {
    fn isatty(fd: c_int) -> c_int, |next| {
        match descriptors::is_virtual(fd) && !is_inside() {
            true => {
                errno::set(libc::ENOTTY);
                0
            }
            // SAFETY: any argument is valid.
            false => unsafe { next(fd) },
        }
    }
}
