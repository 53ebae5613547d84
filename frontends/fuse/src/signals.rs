//! Finds out whether a thread that waits for a reply has a signal to handle. The kernel cannot end
//! a request that was sent: until the reply, not even SIGKILL ends the thread.
//!
//! The kernel replaces a reply of EINTR by ERESTARTSYS, an internal error number that a program
//! without a signal would receive. So a signal counts only if this thread will handle it.

use std::fs::File;
use std::io::Read;

/// The size of a `status` file up to `SigBlk:`. The list of supplementary groups comes before, and
/// has at most 65,536 groups of up to 11 bytes.
const STATUS_BYTES_MAX: u64 = 1 << 20;

/// Whether a thread has a signal to handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pending {
    Some,
    None,
    /// /proc does not show the thread, for example because it is in another PID namespace.
    Unknown,
}

/// Returns whether a thread has a signal to handle.
pub(crate) fn pending_signals(thread: u32) -> Pending {
    let mut status = Vec::new();
    let read = File::open(format!("/proc/{thread}/status"))
        .and_then(|file| file.take(STATUS_BYTES_MAX).read_to_end(&mut status));
    match read {
        Ok(_) => pending_in(&status, thread),
        Err(_) => Pending::Unknown,
    }
}

/// Returns whether the thread has a signal to handle, according to its `status` file.
///
/// Signals that are ignored never become pending. A signal to the whole process counts only for the
/// main thread: the kernel prefers the main thread, and it is not known which other thread handles
/// the signal.
fn pending_in(status: &[u8], thread: u32) -> Pending {
    let field = |label: &[u8]| {
        let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(label))?;
        std::str::from_utf8(line).ok().map(str::trim)
    };
    let mask = |label| field(label).and_then(|text| u64::from_str_radix(text, 16).ok());
    let main = field(b"Tgid:").and_then(|text| text.parse::<u32>().ok());
    let masks = (mask(b"SigPnd:"), mask(b"ShdPnd:"), mask(b"SigBlk:"));
    let (Some(own), Some(shared), Some(blocked), Some(main)) = (masks.0, masks.1, masks.2, main) else {
        return Pending::Unknown;
    };
    let shared = if main == thread { shared } else { 0 };
    if (own | shared) & !blocked != 0 { Pending::Some } else { Pending::None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(main: u32, own: &str, shared: &str, blocked: &str) -> Vec<u8> {
        format!(
            "Name:\tSigPnd:\\n\nTgid:\t{main}\nPid:\t7\nGroups:\t1 2 \nSigQ:\t0/7\nSigPnd:\t{own}\n\
             ShdPnd:\t{shared}\nSigBlk:\t{blocked}\nSigIgn:\tffff\n"
        )
        .into_bytes()
    }

    #[test]
    fn a_signal_counts_if_this_thread_will_handle_it() {
        let found = |main, own, shared, blocked| pending_in(&status(main, own, shared, blocked), 7);
        assert_eq!(found(7, "0", "0", "0"), Pending::None);
        assert_eq!(found(7, "0000000000000100", "0", "0"), Pending::Some);
        assert_eq!(found(7, "0", "2", "0"), Pending::Some);
        assert_eq!(found(7, "0", "2", "2"), Pending::None, "blocked");
        assert_eq!(found(6, "0", "2", "0"), Pending::None, "another thread may handle it");
        assert_eq!(found(6, "100", "0", "2"), Pending::Some, "SIGKILL is pending for each thread");
        for text in [&b""[..], b"Tgid:\t7\nSigPnd:\tx\n", b"Tgid:\t7\nSigPnd:\t0\nShdPnd:\t0\n"] {
            assert_eq!(pending_in(text, 7), Pending::Unknown);
        }
    }

    #[test]
    fn this_thread_is_seen_and_an_unknown_one_is_not() {
        let mine = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert_ne!(pending_signals(mine), Pending::Unknown);
        assert_eq!(pending_signals(u32::MAX), Pending::Unknown);
    }
}
