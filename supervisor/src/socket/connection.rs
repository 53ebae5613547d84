//! Connections to a holder: one request and its answer.

use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use quell_vfs::{Error, ErrorKind, Result, errno};
use rustix::event::Timespec;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::socket::lock::socket_path;

const REPORT_BYTES_MAX: usize = 1 << 20;
/// The total time that a caller waits for its answer, and a holder for a caller's request.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before retrying a lock or a connection to a full queue.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The result of a connection attempt.
#[derive(Debug)]
pub enum Connection {
    Made(UnixStream),
    /// The holder exists, but accepts no connections.
    QueueFull,
    /// No holder. If `is_left_behind`, the socket of a killed holder still exists; a caller that
    /// has the lock removes it.
    None {
        is_left_behind: bool,
    },
}

/// Connects to the holder of `key` without waiting.
pub fn connect(directory: &Path, key: &str) -> Result<Connection> {
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
    let path = socket_path(directory, key);
    let failed = |e: Errno| Error::from_io(e.into(), "connect to", path.as_os_str().as_bytes());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
    let address = SocketAddrUnix::new(&path).map_err(failed)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {
            rustix::io::ioctl_fionbio(&socket, false).map_err(failed)?;
            Ok(Connection::Made(socket.into()))
        }
        Err(Errno::AGAIN) => Ok(Connection::QueueFull),
        Err(Errno::NOENT) => Ok(Connection::None { is_left_behind: false }),
        Err(Errno::CONNREFUSED) => Ok(Connection::None { is_left_behind: true }),
        Err(e) => Err(failed(e)),
    }
}

/// Sends a request and waits for the answer, both until the deadline.
pub fn call(stream: &UnixStream, request: &[u8], deadline: Instant) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let failed = |e: std::io::Error| match e.kind() {
        // The error of a socket timeout.
        std::io::ErrorKind::WouldBlock => match rustix::net::sockopt::socket_peercred(stream) {
            Ok(peer) => no_answer(&format!("process {}", peer.pid.as_raw_nonzero())),
            Err(_) => no_answer("the holder"),
        },
        _ => Error::from_io(e, "ask the holder", b""),
    };
    let wait = || {
        // A timeout of zero would mean no timeout.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream
            .set_read_timeout(Some(left))
            .and_then(|()| stream.set_write_timeout(Some(left)))
            .map_err(failed)
    };
    wait()?;
    std::io::Write::write_all(&mut &*stream, request).map_err(failed)?;
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let got = loop {
        wait()?;
        match rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut length)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            got => break got.map_err(|e| failed(e.into()))?,
        }
    };
    if got.bytes == 0 {
        // The connection was closed without an answer; the kernel may also report this as
        // ECONNRESET.
        return Err(failed(std::io::Error::from_raw_os_error(errno::ECONNRESET)));
    }
    let length = u32::from_le_bytes(length) as usize;
    if got.bytes != 4 || length > REPORT_BYTES_MAX {
        return Err(Error::new(ErrorKind::Damaged, "ask the holder", b"no answer"));
    }
    let descriptors = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        })
        .flatten()
        .collect();
    let mut answer = vec![0; length];
    wait()?;
    (&*stream).read_exact(&mut answer).map_err(failed)?;
    Ok((answer, descriptors))
}

/// Returns the error of a holder that does not answer in time.
pub fn no_answer(holder: &str) -> Error {
    let cause = std::io::Error::from(rustix::io::Errno::TIMEDOUT);
    Error::from_io(cause, "wait for an answer of", holder)
}

pub fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}
