//! Closes descriptors that a long-lived process must not inherit.

use std::os::fd::BorrowedFd;

use rustix::io::{FdFlags, fcntl_setfd};

/// Marks all descriptors of this process except the standard streams as close-on-exec. If a holder
/// kept them, it would keep locks (flock), pipes and deleted files of a program that ended long
/// ago.
pub fn close_inherited_on_exec() -> std::io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if number <= 2 {
            continue;
        }
        // SAFETY: the descriptor was just listed as open. This process has one thread here and
        // closes nothing in between.
        #[allow(unsafe_code)]
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
    }
    Ok(())
}
