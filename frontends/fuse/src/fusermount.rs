//! Mounts for ordinary users. The set-user-ID program fusermount3 mounts and sends the descriptor
//! of the device over a socket. This is the protocol of libfuse: `_FUSE_COMMFD` has the socket's
//! number.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use quell_vfs::{Error, ErrorKind, Result, printable};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};

use crate::Options;
use crate::options::{Access, SUBTYPE};

/// The names of the program: the name in libfuse 3, then the name on older systems.
const PROGRAMS: [&str; 2] = ["fusermount3", "fusermount"];

/// Mounts on `path` and returns the device. The socket is the standard input of the program, which
/// does not read it, so that no other descriptor has to be kept across exec.
pub(crate) fn mount(path: &Path, access: Access, options: &Options) -> Result<OwnedFd> {
    let error = |cause: io::Error| Error::from_io(cause, "mount on", path.as_os_str().as_bytes());
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| error(errno.into()))?;
    let output = run(|program| {
        let mut command = Command::new(program);
        command.arg("-o").arg(mount_options(access, options)).arg("--").arg(path);
        command.env("_FUSE_COMMFD", "0").stdin(Stdio::from(theirs.try_clone()?));
        command.output()
    })
    .map_err(error)?;
    drop(theirs);
    match receive(&ours).map_err(error)? {
        Some(device) => Ok(device),
        None => Err(refused(&output, "mount on", path)),
    }
}

/// Unmounts `path`. With `lazily`, even while it is in use.
pub(crate) fn unmount(path: &Path, lazily: bool) -> Result<()> {
    let output = run(|program| {
        let mut command = Command::new(program);
        command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(path).stdin(Stdio::null()).output()
    })
    .map_err(|cause| Error::from_io(cause, "unmount", path.as_os_str().as_bytes()))?;
    if output.status.success() { Ok(()) } else { Err(refused(&output, "unmount", path)) }
}

fn run(mut command: impl FnMut(&str) -> io::Result<Output>) -> io::Result<Output> {
    for program in PROGRAMS {
        match command(program) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => continue,
            ran => return ran,
        }
    }
    let advice = "fusermount3 is not installed; ordinary users mount with it (package fuse3)";
    Err(io::Error::new(io::ErrorKind::NotFound, advice))
}

fn mount_options(access: Access, options: &Options) -> OsString {
    let mut list = OsString::from(match access {
        Access::ReadOnly => "ro",
        Access::Writable => "rw",
    });
    list.push(",nosuid,nodev,default_permissions,subtype=");
    list.push(SUBTYPE);
    if options.allow_other {
        list.push(",allow_other");
    }
    list.push(",fsname=");
    list.push(options.source.replace('\\', "\\\\").replace(',', "\\,"));
    list
}

/// Receives the descriptor from the program; `None` if it ended without sending one.
fn receive(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

fn refused(output: &Output, operation: &'static str, path: &Path) -> Error {
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    let kind = if said.contains("busy") { ErrorKind::Busy } else { ErrorKind::PermissionDenied };
    let reason = if said.contains("user_allow_other") {
        "an ordinary user may give other users access (allow_other) only if /etc/fuse.conf has the line \
         user_allow_other; ask an administrator"
            .to_owned()
    } else {
        format!("fusermount3: {}", printable(said.trim_start_matches("fusermount3: ").as_bytes()))
    };
    let subject: &OsStr = path.as_os_str();
    Error { source: Some(reason.into()), ..Error::new(kind, operation, subject.as_bytes()) }
}
