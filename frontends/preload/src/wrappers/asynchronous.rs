//! Asynchronous I/O: aio_read(3) and its relatives. An operation on a virtual file is complete when
//! the function returns, and its result is stored where libc's aio_error(3) and aio_return(3) read
//! it.

use std::mem::MaybeUninit;

use libc::{c_int, c_void, off_t, pthread_t, sigevent, size_t, ssize_t};

use crate::descriptors;
use crate::errno::{self, Errno};
use crate::guard::is_inside;
use crate::next::wrap;

/// An operation, as libc defines `struct aiocb`.
#[repr(C)]
pub struct Operation {
    fd: c_int,
    opcode: c_int,
    priority: c_int,
    buffer: *mut c_void,
    length: size_t,
    notification: sigevent,
    // The members of libc.
    next: *mut c_void,
    absolute_priority: c_int,
    policy: c_int,
    error: c_int,
    result: ssize_t,
    offset: off_t,
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<Operation>() == size_of::<libc::aiocb>());

/// The value of `si_code` for a signal of a completed operation.
const SI_ASYNCIO: c_int = -4;

/// The members of `siginfo_t` that a queued signal has.
#[repr(C)]
struct QueuedSignal {
    signal: c_int,
    number: c_int,
    code: c_int,
    alignment: c_int,
    pid: libc::pid_t,
    uid: libc::uid_t,
    value: libc::sigval,
    rest: [u8; 96],
}

const _: () = assert!(size_of::<QueuedSignal>() == size_of::<libc::siginfo_t>());

/// `struct sigevent` with the function and the attributes of a notification by a thread. In the
/// union of libc, they share their memory with `sigev_notify_thread_id`.
#[repr(C)]
struct ThreadNotification {
    value: libc::sigval,
    signal: c_int,
    notify: c_int,
    function: Option<extern "C" fn(libc::sigval)>,
    attributes: *const libc::pthread_attr_t,
}

/// A function that a new thread calls to notify the program, with its argument.
struct Call {
    function: extern "C" fn(libc::sigval),
    value: libc::sigval,
}

extern "C" fn call_function(call: *mut c_void) -> *mut c_void {
    // SAFETY: `notify` has allocated the value, and has passed the ownership of it.
    let Call { function, value } = unsafe { call.cast::<Call>().read() };
    // SAFETY: `notify` has allocated it with malloc.
    unsafe { libc::free(call) };
    function(value);
    std::ptr::null_mut()
}

/// Tells the program that operations are complete.
///
/// # Safety
///
/// `notification` is NULL or a valid structure.
unsafe fn notify(notification: *const sigevent) {
    // SAFETY: the caller's promise; the structures have the layout of libc.
    unsafe {
        let Some(event) = notification.as_ref() else { return };
        match event.sigev_notify {
            libc::SIGEV_SIGNAL => {
                let mut info: QueuedSignal = MaybeUninit::zeroed().assume_init();
                info.signal = event.sigev_signo;
                info.code = SI_ASYNCIO;
                info.pid = libc::getpid();
                info.uid = libc::getuid();
                info.value = event.sigev_value;
                libc::syscall(libc::SYS_rt_sigqueueinfo, info.pid, event.sigev_signo, &raw const info);
            }
            libc::SIGEV_THREAD => {
                let event = &*notification.cast::<ThreadNotification>();
                let Some(function) = event.function else { return };
                // The program's malloc, as in libc.
                let call = libc::malloc(size_of::<Call>()).cast::<Call>();
                if call.is_null() {
                    return;
                }
                call.write(Call { function, value: event.value });
                let mut thread = MaybeUninit::<pthread_t>::uninit();
                let created =
                    libc::pthread_create(thread.as_mut_ptr(), event.attributes, call_function, call.cast());
                match created {
                    0 if event.attributes.is_null() => {
                        libc::pthread_detach(thread.assume_init());
                    }
                    0 => {}
                    _ => libc::free(call.cast()),
                }
            }
            _ => {}
        }
    }
}

/// The kinds of operations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Sync,
    DataSync,
}

/// Performs an operation, and stores its result.
fn perform(operation: &mut Operation, kind: Kind) {
    // SAFETY: the program has promised that the buffer has this length.
    let result = unsafe {
        match kind {
            Kind::Read => libc::pread64(operation.fd, operation.buffer, operation.length, operation.offset),
            Kind::Write => libc::pwrite64(operation.fd, operation.buffer, operation.length, operation.offset),
            Kind::Sync => libc::fsync(operation.fd) as ssize_t,
            Kind::DataSync => libc::fdatasync(operation.fd) as ssize_t,
        }
    };
    operation.result = result;
    operation.error = if result < 0 { errno::get() } else { 0 };
}

/// Performs an operation of a virtual file. `None` for other files.
///
/// # Safety
///
/// `operation` is NULL or a valid structure.
unsafe fn performed(operation: *mut Operation, kind: Kind) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let operation = unsafe { operation.as_mut() }?;
    if !descriptors::is_virtual(operation.fd) || is_inside() {
        return None;
    }
    let before = errno::get();
    perform(operation, kind);
    errno::set(before);
    // SAFETY: the structure is part of the operation.
    unsafe { notify(&operation.notification) };
    Some(0)
}

macro_rules! aio {
    ($read:ident, $write:ident, $sync:ident, $cancel:ident, $list:ident) => {
        wrap! {
            fn $read(operation: *mut Operation) -> c_int, |next| {
                // SAFETY: the caller's argument is valid for aio_read(3).
                unsafe { performed(operation, Kind::Read).unwrap_or_else(|| next(operation)) }
            }
        }

        wrap! {
            fn $write(operation: *mut Operation) -> c_int, |next| {
                // SAFETY: the caller's argument is valid for aio_write(3).
                unsafe { performed(operation, Kind::Write).unwrap_or_else(|| next(operation)) }
            }
        }

        wrap! {
            fn $sync(kind: c_int, operation: *mut Operation) -> c_int, |next| {
                let chosen = match kind {
                    libc::O_SYNC => Kind::Sync,
                    libc::O_DSYNC => Kind::DataSync,
                    // SAFETY: libc refuses other numbers.
                    _ => return unsafe { next(kind, operation) },
                };
                // SAFETY: the caller's arguments are valid for aio_fsync(3).
                unsafe { performed(operation, chosen).unwrap_or_else(|| next(kind, operation)) }
            }
        }

        wrap! {
            fn $cancel(fd: c_int, operation: *mut Operation) -> c_int, |next| {
                match descriptors::is_virtual(fd) && !is_inside() {
                    true => libc::AIO_ALLDONE,
                    // SAFETY: the caller's arguments are valid for aio_cancel(3).
                    false => unsafe { next(fd, operation) },
                }
            }
        }

        wrap! {
            fn $list(mode: c_int, list: *const *mut Operation, number: c_int, notification: *mut sigevent) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for lio_listio(3).
                unsafe { submit(mode, list, number, notification, |list, number, notification| next(mode, list, number, notification)) }
            }
        }
    };
}

aio!(aio_read, aio_write, aio_fsync, aio_cancel, lio_listio);
aio!(aio_read64, aio_write64, aio_fsync64, aio_cancel64, lio_listio64);

/// Performs the operations of a list on virtual files, and passes the others on.
///
/// # Safety
///
/// The arguments are valid for lio_listio(3).
unsafe fn submit(
    mode: c_int,
    list: *const *mut Operation,
    number: c_int,
    notification: *mut sigevent,
    next: impl FnOnce(*const *mut Operation, c_int, *mut sigevent) -> c_int,
) -> c_int {
    let count = usize::try_from(number).unwrap_or(0);
    // SAFETY: the caller's promise.
    let operation = |position: usize| unsafe { *list.add(position) };
    let is_ours = |operation: *mut Operation| {
        // SAFETY: the caller's promise.
        let found = unsafe { operation.as_ref() };
        found.is_some_and(|found| descriptors::is_virtual(found.fd) && found.opcode != libc::LIO_NOP)
    };
    if is_inside() || !(0..count).any(|position| is_ours(operation(position))) {
        return next(list, number, notification);
    }
    if mode != libc::LIO_WAIT && mode != libc::LIO_NOWAIT {
        return errno::reply(Err(Errno(libc::EINVAL)));
    }
    // libc skips NULL, so its copy of the list has NULL in place of the operations on virtual
    // files.
    // SAFETY: the array has space for the list.
    let others = unsafe { libc::calloc(count, size_of::<*mut Operation>()) }.cast::<*mut Operation>();
    if others.is_null() {
        return errno::reply(Err(Errno(libc::EAGAIN)));
    }
    let (mut has_others, mut has_failed) = (false, false);
    for position in 0..count {
        let operation = operation(position);
        if !is_ours(operation) {
            has_others |= !operation.is_null();
            // SAFETY: the position is in the array.
            unsafe { *others.add(position) = operation };
            continue;
        }
        // SAFETY: `is_ours` has checked that it is not NULL.
        unsafe {
            match (*operation).opcode {
                libc::LIO_READ => perform(&mut *operation, Kind::Read),
                libc::LIO_WRITE => perform(&mut *operation, Kind::Write),
                _ => {
                    (*operation).error = libc::EINVAL;
                    (*operation).result = -1;
                }
            }
            has_failed |= (*operation).error != 0;
            notify(&(*operation).notification);
        }
    }
    let result = match has_others {
        true => next(others, number, notification),
        false => {
            if mode == libc::LIO_NOWAIT {
                // SAFETY: the caller's promise.
                unsafe { notify(notification) };
            }
            0
        }
    };
    let number = errno::get();
    // SAFETY: the list was allocated above; libc does not keep it.
    unsafe { libc::free(others.cast()) };
    errno::set(number);
    match result == 0 && has_failed {
        true => errno::reply(Err(Errno(libc::EIO))),
        false => result,
    }
}
