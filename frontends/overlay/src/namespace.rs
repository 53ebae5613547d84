//! Private mount namespaces. Mounts in one are visible only to the processes in it, and disappear
//! when the last of them ends, however it ends.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use quell_vfs::{Error, Result};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// The kinds of namespaces to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// A mount namespace only, for a caller with the right to mount (root).
    Mount,
    /// A mount namespace in a user namespace that maps the caller's user and group to themselves.
    /// All other ids show as the overflow ids.
    UserAndMount,
}

/// The time limit for the exit of threads that have finished their work.
const THREADS_END_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until the process has one thread, at most for the timeout. Joined threads may not have
/// exited yet, and the kernel does not move a process with several threads into another user
/// namespace.
fn wait_until_alone() {
    let begun = Instant::now();
    let alone = || std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1);
    while !alone() && begun.elapsed() < THREADS_END_TIMEOUT {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Moves the calling thread into new namespaces. For a user namespace, the process must have a
/// single thread, or other threads that are about to end.
pub fn isolate(isolation: Isolation) -> Result<()> {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let failed = |operation: &'static str| move |e: std::io::Error| Error::from_io(e, operation, b"");
    match isolation {
        Isolation::Mount => unshare(UnshareFlags::NEWNS).map_err(failed("create a mount namespace"))?,
        Isolation::UserAndMount => {
            wait_until_alone();
            unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
                .map_err(failed("create a user namespace"))?;
            // Otherwise the kernel rejects the group map.
            write("/proc/self/setgroups", "deny").map_err(failed("deny setgroups"))?;
            write("/proc/self/uid_map", format!("{uid} {uid} 1")).map_err(failed("map the user"))?;
            write("/proc/self/gid_map", format!("{gid} {gid} 1")).map_err(failed("map the group"))?;
        }
    }
    // Mounts made here must not propagate to the parent namespace. Mounts and, more importantly,
    // unmounts of the parent still propagate here: an administrator can unmount a file system while
    // a job is running.
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).map_err(|e| Error::from_io(e.into(), "separate mounts", b"/"))
}

fn write(path: &str, text: impl AsRef<[u8]>) -> std::io::Result<()> {
    std::fs::write(path, text)
}

fn unshare(flags: UnshareFlags) -> std::io::Result<()> {
    // SAFETY: unsharing namespaces invalidates neither memory nor descriptors. In rustix the call
    // is unsafe only because of the flag that unshares the descriptor table, which is not used
    // here.
    #[allow(unsafe_code)]
    unsafe {
        rustix::thread::unshare_unsafe(flags)?;
    }
    Ok(())
}

/// Descriptors of the namespaces of a view.
#[derive(Debug)]
pub struct Namespaces {
    mount: OwnedFd,
    user: Option<OwnedFd>,
}

impl Namespaces {
    /// Returns the namespaces behind descriptors of /proc/PID/ns/mnt and /proc/PID/ns/user.
    pub fn new(mount: OwnedFd, user: Option<OwnedFd>) -> Namespaces {
        Namespaces { mount, user }
    }

    /// Returns the namespaces of the calling process.
    pub fn of_caller(with_user: bool) -> Result<Namespaces> {
        let open = |kind: &str| {
            let path = format!("/proc/self/ns/{kind}");
            File::open(&path).map(OwnedFd::from).map_err(|e| Error::from_io(e, "open", path))
        };
        Ok(Namespaces { mount: open("mnt")?, user: with_user.then(|| open("user")).transpose()? })
    }

    /// Returns the descriptor of the mount namespace.
    pub fn mount(&self) -> BorrowedFd<'_> {
        self.mount.as_fd()
    }

    /// Returns the descriptor of the user namespace, if there is one.
    pub fn user(&self) -> Option<BorrowedFd<'_>> {
        self.user.as_ref().map(AsFd::as_fd)
    }

    /// Moves the calling process into the namespaces. It must have a single thread, or other
    /// threads that are about to end. Its root and working directory become the root of the
    /// namespace.
    pub fn enter(&self) -> Result<()> {
        // The kernel moves only a process without other threads, also into a mount namespace.
        wait_until_alone();
        if let Some(user) = &self.user {
            move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))
                .map_err(|e| Error::from_io(e.into(), "enter the user namespace", b""))?;
        }
        move_into_link_name_space(self.mount.as_fd(), Some(LinkNameSpaceType::Mount))
            .map_err(|e| Error::from_io(e.into(), "enter the mount namespace", b""))
    }
}
