//! What a process that stays must not keep of the program that started it.

use std::os::fd::BorrowedFd;

use rustix::io::{FdFlags, fcntl_setfd};

/// Marks every descriptor of this process but the standard streams to be closed by the next exec. A descriptor that stayed open
/// in a holder would keep a lock (flock), a pipe or a deleted file of a program that has ended long ago.
pub fn close_inherited_on_exec() -> std::io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if number <= 2 {
            continue;
        }
        // SAFETY: the number was just listed as open; this process has one thread here, and closes nothing in between.
        #[allow(unsafe_code)]
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
    }
    Ok(())
}
