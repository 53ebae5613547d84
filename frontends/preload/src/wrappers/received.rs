//! Descriptors that a process receives from another one: over a socket, or with pidfd_getfd(2). The
//! descriptor of a virtual file is recognized by its placeholder.

use libc::{c_int, c_uint, cmsghdr, mmsghdr, msghdr, ssize_t, timespec};

use crate::descriptors;
use crate::guard::{inside, is_inside};
use crate::next::wrap;
use crate::placeholder;
use crate::process::description_of;
use crate::view;
use crate::wrappers::programs::publish_before;

/// Makes a received descriptor a virtual one if it is a placeholder.
fn adopt(fd: c_int) {
    let adopted = inside(|| {
        if let Some(description) = placeholder::read(fd).and_then(|header| description_of(&header)) {
            descriptors::assign(fd, description);
        }
        Ok(())
    });
    if let Err(error) = adopted {
        crate::messages::warn(&format!("a received virtual file cannot be used: error {}", error.0));
    }
}

/// Adopts the descriptors in the control data of a message.
///
/// # Safety
///
/// The message was filled by recvmsg(2).
unsafe fn adopt_all(message: *const msghdr) {
    // SAFETY: the caller's promise: the control data consists of whole headers, and of numbers of
    // descriptors after those of this type.
    unsafe {
        let mut header: *const cmsghdr = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<c_int>();
                let bytes = (*header).cmsg_len as usize - (data.addr() - header.addr());
                for position in 0..bytes / size_of::<c_int>() {
                    adopt(data.add(position).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

fn is_used() -> bool {
    view::is_active() && !is_inside()
}

wrap! {
    fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t, |next| {
        // SAFETY: the caller's arguments are valid for recvmsg(2).
        unsafe {
            let received = next(socket, message, flags);
            if received >= 0 && (*message).msg_controllen > 0 && is_used() {
                adopt_all(message);
            }
            received
        }
    }
}

wrap! {
    fn recvmmsg(socket: c_int, messages: *mut mmsghdr, number: c_uint, flags: c_int, timeout: *mut timespec) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for recvmmsg(2).
        unsafe {
            let received = next(socket, messages, number, flags, timeout);
            for position in 0..received.max(0) as usize {
                let message = &raw const (*messages.add(position)).msg_hdr;
                if (*message).msg_controllen > 0 && is_used() {
                    adopt_all(message);
                }
            }
            received
        }
    }
}

// The receiver opens the file again, and must see the data written so far.
wrap! {
    fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t, |next| {
        // SAFETY: the caller's arguments are valid for sendmsg(2).
        unsafe {
            if !message.is_null() && (*message).msg_controllen > 0 {
                publish_before();
            }
            next(socket, message, flags)
        }
    }
}

wrap! {
    fn sendmmsg(socket: c_int, messages: *mut mmsghdr, number: c_uint, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for sendmmsg(2).
        unsafe {
            let has_control = |position: usize| (*messages.add(position)).msg_hdr.msg_controllen > 0;
            if !messages.is_null() && (0..number as usize).any(has_control) {
                publish_before();
            }
            next(socket, messages, number, flags)
        }
    }
}

wrap! {
    fn pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int, |next| {
        // SAFETY: any arguments are valid.
        let received = unsafe { next(process, fd, flags) };
        if received >= 0 && is_used() {
            adopt(received);
        }
        received
    }
}
