//! The ID of this process, without a system call. It is kept in a page that the kernel fills with
//! zeros in a child (`MADV_WIPEONFORK`), so it is also right in a process that `_Fork` or clone(2)
//! has created, without the handlers of fork(2).

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The length of the mapping. The kernel rounds it up to whole pages.
const PAGE_BYTES: usize = 4096;

/// The page, which is never unmapped; NULL before it is mapped.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the ID of this process. It can be called in a signal handler. In a child that shares the
/// memory of its parent (CLONE_VM), it returns the ID of the parent.
pub fn process_id() -> u32 {
    // Without the page, each call makes a system call.
    let Some(page) = page() else { return std::process::id() };
    match page.load(Ordering::Relaxed) {
        0 => {
            let number = std::process::id();
            page.store(number, Ordering::Relaxed);
            number
        }
        number => number,
    }
}

fn page() -> Option<&'static AtomicU32> {
    let known = PAGE.load(Ordering::Acquire);
    // SAFETY: a page that was published is mapped for the life of the process, and contains zeros
    // or the ID that `process_id` has stored.
    if let Some(page) = unsafe { known.as_ref() } {
        return Some(page);
    }
    let new = new_page()?;
    match PAGE.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: as above.
        Ok(_) => unsafe { new.as_ref() },
        Err(other) => {
            unmap(new);
            // SAFETY: as above.
            unsafe { other.as_ref() }
        }
    }
}

fn new_page() -> Option<*mut AtomicU32> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses an address that is not in use.
    let page =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, access, MapFlags::PRIVATE) };
    let page = page.ok()?;
    // SAFETY: the advice concerns the page above, in children.
    match unsafe { rustix::mm::madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) } {
        Ok(()) => Some(page.cast()),
        Err(_) => {
            unmap(page.cast());
            None
        }
    }
}

fn unmap(page: *mut AtomicU32) {
    // SAFETY: nothing refers to the page. The call cannot fail for a page that was just mapped.
    let _ = unsafe { rustix::mm::munmap(page.cast(), PAGE_BYTES) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_its_number_also_without_handlers_of_fork() {
        assert_eq!(process_id(), std::process::id());
        // SAFETY: the child calls only functions that are safe in a signal handler.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as libc::pid_t;
        if child == 0 {
            let is_right = process_id() == std::process::id();
            // SAFETY: there are no preconditions.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = -1;
        // SAFETY: the pointer is to a number of this function.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(process_id(), std::process::id());
    }
}
