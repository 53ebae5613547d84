//! SIGHUP, which the kernel sends when the terminal of a process is closed.

/// Whether this process ignores SIGHUP, as its caller requested with nohup(1).
pub fn is_hang_up_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Signal N is bit N - 1.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}
