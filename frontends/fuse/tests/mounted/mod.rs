//! A file system mounted for one test, and the reasons why a machine allows no FUSE mount. The
//! reasons are determined without the code under test, so that a mount that fails for any other
//! reason fails the test.

use std::process::Command;
use std::sync::Arc;

use quell_fuse::{Options, Session};
use quell_vfs::FileSystem;

/// `CAP_SYS_ADMIN`, which mount(2) needs.
const SYS_ADMIN: u64 = 1 << 21;

/// Returns the value of a line of `/proc/self/status`.
fn status(name: &str) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("/proc/self/status has no {name}")).trim().to_owned()
}

/// Returns the reason why the user that the command prefix `before` changes to (empty: this
/// process's user) cannot mount FUSE file systems on this machine; `None` if it can.
pub fn why_no_mounts(before: &[&str]) -> Option<String> {
    let run = |words: &[&str]| {
        let words = [before, words].concat();
        Command::new(words[0]).args(&words[1..]).output().is_ok_and(|output| output.status.success())
    };
    // A process whose bounding set lacks the capability cannot get it, not even from a set-id
    // fusermount3.
    if u64::from_str_radix(&status("CapBnd"), 16).unwrap() & SYS_ADMIN == 0 {
        return Some("this container may not mount file systems".into());
    }
    if !run(&["sh", "-c", ": <>/dev/fuse"]) {
        return Some("/dev/fuse cannot be opened".into());
    }
    if before.is_empty() && rustix::process::geteuid().is_root() {
        return None;
    }
    if status("NoNewPrivs") != "0" {
        return Some("set-id programs, such as fusermount3, have no effect in this container".into());
    }
    (!run(&["fusermount3", "--version"])).then(|| "fusermount3 is not installed".into())
}

/// Mounts `fs` in a new directory, which is removed when the result is dropped. If this machine
/// allows no mounts, prints the reason and returns `None`.
#[allow(dead_code)] // not every test program mounts a directory of this kind
pub fn mounted(fs: Arc<dyn FileSystem>, options: &Options) -> Option<(Session, tempfile::TempDir)> {
    if let Some(reason) = why_no_mounts(&[]) {
        println!("SKIPPED: {reason}");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let session = quell_fuse::mount_at(fs, dir.path(), options).unwrap_or_else(|error| panic!("{error}"));
    Some((session, dir))
}
