//! A mount namespace of our own: what is mounted there is seen by the processes in it alone, and is gone
//! when the last of them ends, however it ends.

use std::time::{Duration, Instant};

use quell_fs::{Error, Result};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::UnshareFlags;

/// How the namespace was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// A mount namespace alone: the caller may mount (root).
    Mount,
    /// A user namespace around it, in which the caller's user and group are mapped to themselves and
    /// everybody else shows as the overflow user.
    UserAndMount,
}

/// How long threads that have done their work may take to be gone.
const THREADS_END_TIMEOUT: Duration = Duration::from_secs(2);

/// Threads that were joined may still be on their way out, and the kernel lets no process with several
/// into another user namespace: waits until there is one, for a while.
pub(crate) fn wait_until_alone() {
    let begun = Instant::now();
    let alone = || std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1);
    while !alone() && begun.elapsed() < THREADS_END_TIMEOUT {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Moves the calling process into new namespaces. It must have a single thread, or threads that end.
pub fn isolate(isolation: Isolation) -> Result<()> {
    wait_until_alone();
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let failed = |operation: &'static str| move |e: std::io::Error| Error::from_io(e, operation, b"");
    match isolation {
        Isolation::Mount => unshare(UnshareFlags::NEWNS).map_err(failed("make a mount namespace"))?,
        Isolation::UserAndMount => {
            unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(failed("make a user namespace"))?;
            // Without this the kernel refuses the map of groups.
            write("/proc/self/setgroups", "deny").map_err(failed("deny setgroups"))?;
            write("/proc/self/uid_map", format!("{uid} {uid} 1")).map_err(failed("map the user"))?;
            write("/proc/self/gid_map", format!("{gid} {gid} 1")).map_err(failed("map the group"))?;
        }
    }
    // What we mount must not travel out. Mounts of the outside still come in and, above all, go: an
    // administrator can unmount a file system although a job is running.
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).map_err(|e| Error::from_io(e.into(), "separate mounts", b"/"))
}

fn write(path: &str, text: impl AsRef<[u8]>) -> std::io::Result<()> {
    std::fs::write(path, text)
}

fn unshare(flags: UnshareFlags) -> std::io::Result<()> {
    // SAFETY: unsharing namespaces invalidates neither memory nor descriptors; it is unsafe in rustix
    // only for the flag that unshares the table of descriptors, which is not used here.
    #[allow(unsafe_code)]
    unsafe {
        rustix::thread::unshare_unsafe(flags)?;
    }
    Ok(())
}
