//! Serves a text for HTTP requests, on a Unix socket or a loopback port.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::address::Address;
use crate::connection::Connection;

/// The largest number of connections at a time. Others wait in the queue of the kernel.
const CONNECTIONS_MAX: usize = 16;
/// The interval at which the endpoint checks whether it is to end, and whether a connection has
/// ended.
const INTERVAL: Duration = Duration::from_millis(100);

/// A listening endpoint.
#[derive(Debug)]
pub struct Endpoint {
    listener: OwnedFd,
    address: Address,
    /// The path of the Unix socket, which is removed at the end.
    socket: Option<PathBuf>,
}

impl Endpoint {
    /// Begins to listen. A Unix socket gets the mode 0600. The socket of an endpoint that was
    /// killed is replaced. Changes the umask of the process for a moment, so no other thread may
    /// create files meanwhile.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if another process listens on the address, or if the path exists and is not a
    /// socket; others of socket(7) and unix(7).
    pub fn listen(address: &Address) -> io::Result<Endpoint> {
        match address {
            Address::Loopback(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                let address = Address::Loopback(listener.local_addr()?);
                Ok(Endpoint { listener: listener.into(), address, socket: None })
            }
            Address::Unix(path) => {
                remove_unused(path)?;
                let umask = rustix::process::umask(Mode::from_raw_mode(0o177));
                let listener = UnixListener::bind(path);
                rustix::process::umask(umask);
                let listener = listener?;
                listener.set_nonblocking(true)?;
                let socket = Some(path.clone());
                Ok(Endpoint { listener: listener.into(), address: address.clone(), socket })
            }
        }
    }

    /// Returns the address, with the port that the kernel has chosen for port 0.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Serves `text` until `is_stopped` returns true, which is called at least ten times each
    /// second. `text` is called for each request, by up to 16 threads at a time. Returns after
    /// the last connection has ended: at most about 10 s later, and the time of `text`.
    ///
    /// # Errors
    ///
    /// The errors of the listening socket and of the removal of the Unix socket.
    pub fn serve(self, is_stopped: &dyn Fn() -> bool, text: &(dyn Fn() -> String + Sync)) -> io::Result<()> {
        let connections = AtomicUsize::new(0);
        let served = std::thread::scope(|scope| {
            while !is_stopped() {
                if connections.load(Ordering::Acquire) == CONNECTIONS_MAX {
                    std::thread::sleep(INTERVAL);
                    continue;
                }
                let Some(socket) = self.accept()? else { continue };
                connections.fetch_add(1, Ordering::AcqRel);
                let connections = &connections;
                scope.spawn(move || {
                    Connection::new(socket).serve(text);
                    connections.fetch_sub(1, Ordering::AcqRel);
                });
            }
            Ok(())
        });
        let removed = self.socket.map_or(Ok(()), std::fs::remove_file);
        served.and(removed)
    }

    /// Waits at most `INTERVAL` for a connection.
    fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: INTERVAL.subsec_nanos().into() };
        let mut events = [PollFd::new(&self.listener, PollFlags::IN)];
        match rustix::event::poll(&mut events, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.listener, flags) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                std::thread::sleep(INTERVAL);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Removes a socket on which no process listens.
fn remove_unused(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
            // The bind reports that the address is in use.
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}
