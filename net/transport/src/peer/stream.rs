//! The byte streams that carry connections: TCP, and Unix sockets between processes of one machine.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream, tcp, unix};

use super::peer_user::PeerUser;

/// The address of a process that accepts connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A host and a port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => address.fmt(f),
            Endpoint::Unix(path) => path.display().fmt(f),
        }
    }
}

/// The users whose processes a server serves at a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnixClients {
    /// The user of the server, and root. The socket has the mode 0600.
    OfThisUser,
    /// All users that can open the socket, which has the mode 0660 and the group of its directory
    /// if that has the set-group-ID bit. The rights of a client depend on its user.
    OfAllUsers,
}

/// A stream in both directions.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The reading half of a stream.
#[derive(Debug)]
pub(super) enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
}

/// The writing half of a stream.
#[derive(Debug)]
pub(super) enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
}

impl Stream {
    /// Connects. The process at the other end of a Unix socket must belong to this user, to root,
    /// or to the user `trusted`, unless this process belongs to root.
    pub async fn connect(to: &Endpoint, trusted: Option<u32>) -> io::Result<Stream> {
        match to {
            Endpoint::Tcp(address) => Stream::tcp(TcpStream::connect(address).await?),
            Endpoint::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                let own = rustix::process::geteuid();
                let uid = stream.peer_cred()?.uid();
                match own.is_root() || is_trusted(uid, own.as_raw()) || trusted == Some(uid) {
                    true => Ok(Stream::Unix(stream)),
                    false => Err(io::Error::new(
                        io::ErrorKind::PermissionDenied,
                        "the socket is one of another user",
                    )),
                }
            }
        }
    }

    /// Takes a TCP connection.
    pub fn tcp(stream: TcpStream) -> io::Result<Stream> {
        stream.set_nodelay(true)?;
        Ok(Stream::Tcp(stream))
    }

    /// Takes a connection to a Unix socket, and returns the user of the client if all users are
    /// served.
    pub fn unix(stream: UnixStream, clients: UnixClients) -> io::Result<(Stream, Option<PeerUser>)> {
        let refused = |reason| Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        match clients {
            UnixClients::OfAllUsers => {
                let user = PeerUser::of(stream.as_fd())?;
                Ok((Stream::Unix(stream), Some(user)))
            }
            UnixClients::OfThisUser
                if is_trusted(stream.peer_cred()?.uid(), rustix::process::geteuid().as_raw()) =>
            {
                Ok((Stream::Unix(stream), None))
            }
            UnixClients::OfThisUser => refused("the client is one of another user"),
        }
    }

    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Stream::Tcp(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Tcp(read), WriteHalf::Tcp(write))
            }
            Stream::Unix(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Unix(read), WriteHalf::Unix(write))
            }
        }
    }
}

fn is_trusted(uid: u32, own: u32) -> bool {
    uid == own || uid == 0
}

impl WriteHalf {
    /// Waits until the socket accepts bytes.
    pub async fn writable(&self) -> io::Result<()> {
        match self {
            WriteHalf::Tcp(half) => half.writable().await,
            WriteHalf::Unix(half) => half.writable().await,
        }
    }

    /// Writes as many bytes as the socket accepts.
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            WriteHalf::Tcp(half) => {
                let stream: &TcpStream = half.as_ref();
                stream.try_io(Interest::WRITABLE, || send(stream, slices))
            }
            WriteHalf::Unix(half) => {
                let stream: &UnixStream = half.as_ref();
                stream.try_io(Interest::WRITABLE, || send(stream, slices))
            }
        }
    }
}

/// Sends bytes. Unlike writev(2), which tokio uses, it never ends the process with SIGPIPE:
/// programs that are not written in Rust do not ignore this signal.
fn send(socket: impl AsFd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    Ok(sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?)
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ReadHalf::Tcp(half) => Pin::new(half).poll_read(context, buffer),
            ReadHalf::Unix(half) => Pin::new(half).poll_read(context, buffer),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
