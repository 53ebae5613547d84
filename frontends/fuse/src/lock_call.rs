//! Finds out with which system call a program requests a lock of all bytes. The kernel marks
//! requests of flock(2), but the FUSE library does not pass the mark on.

use std::fs;
use std::thread;
use std::time::Duration;

/// The system call of a lock request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockCall {
    Flock,
    Fcntl,
    /// /proc does not show the system call to this user: the program is in another PID namespace,
    /// is of another user or has set-id rights, or the Yama security module does not allow it.
    Unknown,
}

/// The largest number of times that `/proc/TID/syscall` is read until the thread sleeps. The thread
/// has sent its request and is about to wait for the reply.
const LOOKS_MAX: u32 = 50;

/// Returns the system call in which a thread waits for the reply to a lock request.
pub(crate) fn lock_call(thread: u32) -> LockCall {
    for look in 0..LOOKS_MAX {
        match fs::read_to_string(format!("/proc/{thread}/syscall")) {
            Ok(text) if text.starts_with("running") => {}
            Ok(text) => return call_in(&text),
            Err(_) => return LockCall::Unknown,
        }
        match look {
            0..10 => thread::yield_now(),
            _ => thread::sleep(Duration::from_millis(1)),
        }
    }
    LockCall::Unknown
}

/// Returns the system call that the text of `/proc/PID/syscall` names. The numbers of flock(2) and
/// fcntl(2) on x86-64, on aarch64 and in 32-bit x86 programs are known. Other system calls with the
/// same numbers take no locks.
fn call_in(text: &str) -> LockCall {
    let number = text.split_ascii_whitespace().next().and_then(|word| word.parse::<u32>().ok());
    let (flock, fcntl): (&[u32], &[u32]) = match cfg!(target_arch = "aarch64") {
        true => (&[32, 143], &[25, 55, 221]),
        false => (&[73, 143], &[72, 55, 221]),
    };
    match number {
        Some(number) if flock.contains(&number) => LockCall::Flock,
        Some(number) if fcntl.contains(&number) => LockCall::Fcntl,
        _ => LockCall::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_numbers_of_this_architecture() {
        let flock = if cfg!(target_arch = "aarch64") { "32" } else { "73" };
        assert_eq!(call_in(&format!("{flock} 0x3 0x2 0x0 0x0 0x0 0x0 0x7ff 0x7f\n")), LockCall::Flock);
        assert_eq!(call_in("143 0x3 0x2 0x0 0x0 0x0 0x0 0x7ff 0x7f\n"), LockCall::Flock);
        assert_eq!(call_in("221 0x3 0x7 0x0\n"), LockCall::Fcntl);
        for text in ["", "running\n", "-1 0x7ff 0x7f\n", "0 0x3\n", "99999999999\n"] {
            assert_eq!(call_in(text), LockCall::Unknown, "{text}");
        }
        assert_eq!(lock_call(u32::MAX), LockCall::Unknown);
    }
}
