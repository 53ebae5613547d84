//! The processes of a mount namespace, found through /proc.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

const POLL: Duration = Duration::from_millis(10);

/// Returns the other processes in the caller's mount namespace. Each was in the namespace after its
/// descriptor was opened, so a reused process number is never mistaken for a member.
fn others() -> Vec<OwnedFd> {
    let Ok(ours) = std::fs::read_link("/proc/self/ns/mnt") else { return Vec::new() };
    let own_pid = std::process::id() as i32;
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Vec::new();
    for process in processes.flatten() {
        let number = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        let Some(pid) = number.filter(|pid| *pid != own_pid).and_then(Pid::from_raw) else { continue };
        let link = process.path().join("ns/mnt");
        let is_member = || std::fs::read_link(&link).is_ok_and(|theirs| theirs == ours);
        if !is_member() {
            continue;
        }
        let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if is_member() {
            found.push(descriptor);
        }
    }
    found
}

/// Ends all other processes in the caller's mount namespace: with SIGTERM, and after `grace` with
/// SIGKILL. Processes that enter the namespace meanwhile are also ended.
pub fn end_other_members(grace: Duration) {
    let begun = Instant::now();
    let mut signal = Signal::TERM;
    loop {
        let members = others();
        if members.is_empty() {
            return;
        }
        for member in &members {
            // Signalling fails for a process that has just ended or has changed its user.
            let _ = pidfd_send_signal(member, signal);
        }
        let pause_ends = Instant::now() + if signal == Signal::TERM { grace } else { POLL };
        while Instant::now() < pause_ends && !others().is_empty() {
            std::thread::sleep(POLL);
        }
        if begun.elapsed() >= grace {
            signal = Signal::KILL;
        }
    }
}
