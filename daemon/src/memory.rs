//! The file system of a daemon that keeps its data in memory: a tmpfs of a bounded size that has no
//! path. The daemon and its clients use it through descriptors, so the kernel frees the memory when
//! the last of them has ended, however it has ended.
//!
//! Only root may mount a tmpfs, or a process in a user namespace of its own. The daemon has several
//! threads, and its clients have other namespaces, so it does not enter one: another process of
//! this program does, mounts the tmpfs, and passes a descriptor of its directory to the daemon.

use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};

use quell_overlay::{Isolation, isolate, mount_bounded_tmpfs};
use rustix::fs::{Mode, OFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::failure::Failure;

/// The argument of the process that mounts the tmpfs. The size in bytes follows.
const HELPER: &str = "mount-memory";
/// The number that statfs(2) returns for a tmpfs.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// One file for this number of bytes: a file with data needs at least a page, and an inode needs
/// about 1 KiB that the size of a tmpfs does not include.
const BYTES_OF_A_FILE: u64 = 4096;

/// Returns the directory of a new tmpfs with this size.
///
/// # Errors
///
/// `Failure::cannot` if this node does not permit it.
pub fn directory(size_bytes: u64) -> Result<OwnedFd, Failure> {
    let failed = |e: std::io::Error| Failure::cannot(format!("cannot create a file system in memory: {e}"));
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let helper = Command::new("/proc/self/exe")
        .args([HELPER, &size_bytes.to_string()])
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let received = receive(&ours);
    let ended = helper.wait_with_output().map_err(failed)?;
    let Some(directory) = received.map_err(|e| failed(e.into()))? else {
        let reason = quell_vfs::printable(ended.stderr.trim_ascii());
        return Err(Failure::cannot(format!(
            "cannot create a file system in memory for --memory: {reason}; only root, or a user whom this node \
             permits user namespaces, can mount one; use --dir /dev/shm instead, which has no limit for a daemon"
        )));
    };
    match rustix::fs::fstatfs(&directory).map_err(|e| failed(e.into()))?.f_type as u64 {
        TMPFS_MAGIC => Ok(directory),
        _ => Err(Failure::cannot("the file system for --memory is not a tmpfs")),
    }
}

/// Receives a descriptor; `None` if the other side has ended.
fn receive(socket: &UnixStream) -> rustix::io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let into = &mut [IoSliceMut::new(&mut byte)];
    recvmsg(socket, into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    Ok(descriptors.flatten().next())
}

/// Returns the size of the tmpfs that this process is to mount, if it was started for that.
pub fn size_for_helper() -> Option<String> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next() {
        Some(first) if first == HELPER => arguments.next(),
        _ => None,
    }
}

/// Mounts a tmpfs of this size, and passes its directory to the socket at standard input.
pub fn run_helper(size_bytes: &str) -> ExitCode {
    match mount_and_send(size_bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a descriptor the daemon fails, with or without the reason.
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn mount_and_send(size_bytes: &str) -> quell_vfs::Result<()> {
    let failed = |operation: &'static str| {
        move |e: rustix::io::Errno| quell_vfs::Error::from_io(e.into(), operation, "tmpfs")
    };
    let size_bytes: u64 = size_bytes
        .parse()
        .map_err(|_| quell_vfs::Error::new(quell_vfs::ErrorKind::InvalidInput, "mount", size_bytes))?;
    if isolate(Isolation::Mount).is_err() {
        isolate(Isolation::UserAndMount)?;
    }
    let mount = mount_bounded_tmpfs(size_bytes, size_bytes / BYTES_OF_A_FILE)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(&mount, ".", flags, Mode::empty()).map_err(failed("open"))?;
    let descriptors = [directory.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(rustix::stdio::stdin(), &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)
        .map_err(failed("send"))?;
    Ok(())
}
