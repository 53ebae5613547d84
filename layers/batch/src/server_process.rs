//! The process of the server of a store, on the node of this process.

use std::os::unix::net::UnixStream;
use std::path::Path;

use quell_vfs::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::server_files::SOCKET;
use crate::store_dir::StoreDir;

/// The process of a server.
#[derive(Debug)]
pub struct ServerProcess {
    process: OwnedFd,
}

impl ServerProcess {
    /// Finds the process that serves a store of this user on this node.
    ///
    /// # Errors
    /// `Unavailable` if there is none; `PermissionDenied` if it belongs to another user; the errors
    /// of the directory of the store.
    pub fn find(store: &Path) -> Result<ServerProcess> {
        let dir = StoreDir::open(store)?;
        dir.check_format()?;
        ServerProcess::of_dir(&dir)
    }

    /// Finds the partition servers of a store of this user on this node.
    ///
    /// # Errors
    /// `Unavailable` if there is none; as for [`find`](Self::find).
    pub fn find_partition_servers(store: &Path) -> Result<Vec<ServerProcess>> {
        let dir = StoreDir::open(store)?;
        dir.check_format()?;
        let mut found = Vec::new();
        for server in dir.partition_servers()? {
            match ServerProcess::of_dir(&dir.partition_dir(server)?) {
                Err(error) if error.kind == ErrorKind::Unavailable => {}
                process => found.push(process?),
            }
        }
        match found.is_empty() {
            true => {
                let reason = "no process of this node is a partition server of the store";
                let error =
                    Error::new(ErrorKind::Unavailable, "find the partition servers of", dir.subject());
                Err(Error { source: Some(reason.into()), ..error })
            }
            false => Ok(found),
        }
    }

    fn of_dir(dir: &StoreDir) -> Result<ServerProcess> {
        let failed = |kind, reason: String| Error {
            source: Some(reason.into()),
            ..Error::new(kind, "find the server of", dir.subject())
        };
        let of_system = |error: Errno| Error::from_io(error.into(), "find the server of", dir.subject());
        let none = || failed(ErrorKind::Unavailable, "no process of this node serves the store".to_owned());
        let socket = UnixStream::connect(dir.file(SOCKET)).map_err(|_| none())?;
        let server = socket_peercred(&socket).map_err(of_system)?;
        if server.uid != rustix::process::geteuid() {
            return Err(failed(ErrorKind::PermissionDenied, "it is a process of another user".to_owned()));
        }
        let process = match pidfd_open(server.pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Err(none()),
            opened => opened.map_err(of_system)?,
        };
        // If the server has ended, the connection has ended, and the number of the process may be
        // that of another one.
        match is_ready(&socket, PollFlags::HUP, Some(Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(false) => Ok(ServerProcess { process }),
            Ok(true) => Err(none()),
            Err(error) => Err(of_system(error)),
        }
    }

    /// Sends SIGTERM to the server, and waits for its end. The server answers the requests that it
    /// has begun, and completes the commits that it has begun.
    ///
    /// # Errors
    /// The errors of pidfd_send_signal(2) and poll(2).
    pub fn end(&self) -> Result<()> {
        let ended = match pidfd_send_signal(&self.process, Signal::TERM) {
            Ok(()) => is_ready(&self.process, PollFlags::IN, None).map(drop),
            Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error),
        };
        ended.map_err(|error| Error::from_io(error.into(), "end the server of", "a store"))
    }
}

/// Waits for one of these events. Returns false if the time is over.
fn is_ready(fd: &impl AsFd, events: PollFlags, limit: Option<Timespec>) -> rustix::io::Result<bool> {
    loop {
        match poll(&mut [PollFd::new(fd, events)], limit.as_ref()) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}
