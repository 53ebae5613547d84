//! The processes of a mount namespace, found through /proc.
//!
//! On some kernels (Linux 6.18) the link /proc/PID/ns/mnt of a process that executes a program
//! cannot be read until the kernel has closed the files of the previous program. That may never
//! happen if a file is on the FUSE mount of a stopped process, and any user can arrange it. The
//! link is therefore read with a time limit. When the limit is exceeded, the process is recognized
//! by its mounts: /proc/PID/mountinfo can always be read.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use quell_threads::TimedCalls;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

const POLL: Duration = Duration::from_millis(10);
/// The time limit for reading the link of one process.
const LINK_TIMEOUT: Duration = Duration::from_secs(1);
/// The largest number of processes whose links this process waits for at the same time.
const BLOCKED_LINKS_MAX: usize = 8;

/// Reads the link /proc/PID/ns/mnt. The result is `None` if the link is not readable.
static NAMESPACE_LINKS: LazyLock<TimedCalls<i32, Option<PathBuf>>> = LazyLock::new(|| {
    let read = |pid: &i32| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    TimedCalls::new(read, LINK_TIMEOUT, BLOCKED_LINKS_MAX)
});

/// Returns the process numbers of the members of a mount namespace, without the member `known`.
/// `namespace` is the namespace as given by the link /proc/PID/ns/mnt of `known`.
///
/// A process whose link cannot be read in time (1 s) is a member if it has a mount in common with
/// `known`. It is not found if its root directory was changed to one that contains no mounts. The
/// link of a process whose earlier read has not returned is not read again; if 8 reads have not
/// returned, no link is read.
pub fn other_members(namespace: &Path, known: u32) -> Vec<i32> {
    let own_user = rustix::process::geteuid().as_raw();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|process| {
        let pid = process.file_name().to_str()?.parse::<i32>().ok()?;
        let is_candidate = pid != known as i32 && may_inspect(own_user, process.metadata().ok()?.uid());
        is_candidate.then_some(pid)
    });
    members_among(processes.collect(), namespace, known)
}

/// Returns whether `user` may read the namespaces of a process of `owner`, as stat(2) of /proc/PID
/// returns it. Users other than root cannot read the namespaces of other users, and the processes
/// in their views are their own: the user namespace of a view maps no other user.
fn may_inspect(user: u32, owner: u32) -> bool {
    user == 0 || user == owner
}

fn members_among(pids: Vec<i32>, namespace: &Path, known: u32) -> Vec<i32> {
    let links = NAMESPACE_LINKS.results(pids.iter().copied());
    let is_member = |pid: i32, link: Option<Option<PathBuf>>| match link {
        Some(link) => link.is_some_and(|link| link == namespace),
        None => shares_mount(pid, known),
    };
    pids.into_iter().zip(links).filter_map(|(pid, link)| is_member(pid, link).then_some(pid)).collect()
}

/// Returns whether two processes have a mount in common, and so are in the same mount namespace. A
/// process without visible mounts has none in common with others.
fn shares_mount(pid: i32, known: u32) -> bool {
    let mounts = |pid: &dyn std::fmt::Display| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/mountinfo"));
        text.map_or_else(|_| HashSet::new(), |text| mount_ids(&text))
    };
    // The kernel reuses the number of a mount after the unmount. A number that `known` has before
    // and after the other process is read belongs to the same mount.
    let before = mounts(&known);
    let other = mounts(&pid);
    let after = mounts(&known);
    other.iter().any(|id| before.contains(id) && after.contains(id))
}

/// Returns the numbers of the mounts in the text of a file mountinfo; see proc_pid_mountinfo(5).
fn mount_ids(mountinfo: &str) -> HashSet<u64> {
    mountinfo.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).collect()
}

/// Returns the other processes in the caller's mount namespace. Each was in the namespace after its
/// descriptor was opened, so a reused process number is never mistaken for a member.
fn others() -> Vec<OwnedFd> {
    let Ok(namespace) = std::fs::read_link("/proc/self/ns/mnt") else { return Vec::new() };
    let own_pid = std::process::id();
    // A process that cannot be identified as a member is not ended: it may belong to another user,
    // and the caller calls this again.
    let opened: Vec<(i32, OwnedFd)> = other_members(&namespace, own_pid)
        .into_iter()
        .filter_map(|pid| Some((pid, pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?)))
        .collect();
    let pids = opened.iter().map(|(pid, _)| *pid).collect();
    let still: HashSet<i32> = members_among(pids, &namespace, own_pid).into_iter().collect();
    opened.into_iter().filter(|(pid, _)| still.contains(pid)).map(|(_, descriptor)| descriptor).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_identified_by_the_first_field() {
        let text = "43 42 254:0 / / rw - ext4 /dev/vda rw\n7 43 0:25 / /a\\040b ro - tmpfs 99 rw\n";
        assert_eq!(mount_ids(text), HashSet::from([43, 7]));
        assert_eq!(mount_ids(""), HashSet::new());
    }

    #[test]
    fn a_child_shares_the_mounts_and_the_link_of_its_parent() {
        let own_pid = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as i32;
        let namespace = std::fs::read_link("/proc/self/ns/mnt").unwrap();
        let found = [shares_mount(pid, own_pid), other_members(&namespace, own_pid).contains(&pid)];
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, [true, true]);
        assert!(!shares_mount(pid, own_pid), "a process that has ended has no mounts");
        assert!(!shares_mount(own_pid as i32, u32::MAX));
    }

    #[test]
    fn only_root_inspects_processes_of_other_users() {
        assert!(may_inspect(0, 1000) && may_inspect(1000, 1000));
        assert!(!may_inspect(1000, 0) && !may_inspect(1000, 65534));
    }
}
