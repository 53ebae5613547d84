//! The messages that open a connection, and the descriptors that are passed with them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use quell_vfs::{Error, ErrorKind, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

const MAGIC: &[u8; 8] = b"QUELLLC1";
const VERSION: u32 = 1;

/// The size of the message of the client.
pub(super) const HELLO_BYTES: usize = 16;
const WELCOME_BYTES: usize = 24;

/// The maximum number of further descriptors.
pub(super) const FURTHER_MAX: usize = 16;
const DESCRIPTORS_MAX: usize = 3 + FURTHER_MAX;

/// The answer of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Accepted = 0,
    Full = 1,
    OtherVersion = 2,
}

/// The descriptors that a client receives.
#[derive(Debug)]
pub(super) struct Descriptors {
    pub(super) segment: OwnedFd,
    pub(super) doorbell: OwnedFd,
    pub(super) status: OwnedFd,
    pub(super) further: Vec<OwnedFd>,
}

fn put(message: &mut [u8], offset: usize, number: u32) {
    message[offset..offset + 4].copy_from_slice(&number.to_ne_bytes());
}

fn get(message: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(message[offset..offset + 4].try_into().expect("4 bytes"))
}

/// Returns the message of the client.
pub(super) fn hello() -> [u8; HELLO_BYTES] {
    let mut message = [0; HELLO_BYTES];
    message[..8].copy_from_slice(MAGIC);
    put(&mut message, 8, VERSION);
    message
}

/// Checks the message of a client; `None` if the sender is not a client.
pub(super) fn check_hello(message: &[u8; HELLO_BYTES]) -> Option<Status> {
    let version = (&message[..8] == MAGIC).then(|| get(message, 8))?;
    Some(if version == VERSION { Status::Accepted } else { Status::OtherVersion })
}

/// Returns whether the process at the other end has the effective uid of this one.
pub(super) fn is_same_user(socket: impl AsFd) -> Result<bool> {
    let peer = rustix::net::sockopt::socket_peercred(socket)
        .map_err(|cause| Error::from_io(cause.into(), "inspect", "a socket"))?;
    Ok(peer.uid == rustix::process::geteuid())
}

/// Sends the answer of the daemon. `descriptors`: segment, doorbell, status page, and further
/// ones if the status is `Accepted`, otherwise none. Does not block: an error if the message does
/// not fit the empty buffer of the socket.
pub(super) fn send_welcome(socket: impl AsFd, status: Status, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let mut message = [0; WELCOME_BYTES];
    message[..8].copy_from_slice(MAGIC);
    put(&mut message, 8, VERSION);
    put(&mut message, 12, status as u32);
    put(&mut message, 16, descriptors.len().saturating_sub(3) as u32);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "too many descriptors");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &[IoSlice::new(&message)], &mut control, flags)
    });
    match sent.map_err(|cause| Error::from_io(cause.into(), "answer", "a client"))? {
        WELCOME_BYTES => Ok(()),
        _ => Err(Error::new(ErrorKind::Unavailable, "answer", "a client")),
    }
}

/// Receives the answer of the daemon from a socket that has data to read.
pub(super) fn receive_welcome(socket: impl AsFd, path: &[u8]) -> Result<Descriptors> {
    let damaged = || Error::new(ErrorKind::Damaged, "connect to the daemon at", path);
    let mut message = [0; WELCOME_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut message)], &mut control, flags)
    });
    let received =
        received.map_err(|cause| Error::from_io(cause.into(), "connect to the daemon at", path))?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let mut descriptors = rights.flatten();
    match received.bytes {
        // The daemon has closed the connection: it ends, or has too many connections.
        0 => return Err(Error::new(ErrorKind::Unavailable, "connect to the daemon at", path)),
        WELCOME_BYTES if &message[..8] == MAGIC && !received.flags.contains(ReturnFlags::CTRUNC) => {}
        _ => return Err(damaged()),
    }
    match get(&message, 12) {
        0 => {}
        1 => return Err(Error::new(ErrorKind::Busy, "connect to the daemon at", path)),
        2 => return Err(Error::new(ErrorKind::Unsupported, "connect to the daemon at", path)),
        _ => return Err(damaged()),
    }
    let mut next = || descriptors.next().ok_or_else(damaged);
    let (segment, doorbell, status) = (next()?, next()?, next()?);
    let further: Vec<OwnedFd> = descriptors.collect();
    match further.len() == get(&message, 16) as usize {
        true => Ok(Descriptors { segment, doorbell, status, further }),
        false => Err(damaged()),
    }
}
