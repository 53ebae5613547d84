//! A pool as a file system: the connection of this process to the daemon of its node.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use quell_pool::{Daemon, LocalData, PoolFs};
use quell_posix::PosixDir;
use quell_transport::local::LocalChannel;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::Failure;
use quell_wire::pool::{Mark, Operation, Reply};

/// A connection of this process to a daemon, through shared memory.
pub struct PoolConnection {
    channel: LocalChannel,
    data: Option<LocalData>,
}

impl std::fmt::Debug for PoolConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PoolConnection").finish()
    }
}

impl PoolConnection {
    /// Connects to the daemon whose socket is at `socket`.
    ///
    /// # Errors
    ///
    /// `NotFound` and `Unavailable` if no daemon serves there, `PermissionDenied` if it belongs to
    /// another user.
    pub fn open(socket: &Path) -> Result<PoolConnection> {
        let channel = LocalChannel::connect_with(socket, quell_posix::moved)?;
        Ok(PoolConnection { channel, data: None })
    }

    /// Opens the data of the daemon's member, so that reads and writes of it need no requests.
    ///
    /// # Errors
    ///
    /// Those of a lost connection, and `Damaged` for an invalid reply.
    pub fn with_data(mut self) -> Result<PoolConnection> {
        let Some(dir) = self.channel.descriptors().next().map(|dir| dir.try_clone_to_owned()) else {
            return Ok(self);
        };
        let dir = dir.map_err(|e| Error::from_io(e, "open", "the data of a pool"))?;
        let mut partitions = None;
        self.call(None, &Operation::OwnPartitions, &mut |reply| {
            partitions = match reply {
                Ok(Reply::Partitions(own)) => Some(own),
                _ => None,
            };
        })?;
        let invalid = || Error::new(ErrorKind::Damaged, "open", "the data of a pool");
        let dir = Arc::new(PosixDir::of_descriptor(dir));
        self.data = Some(LocalData { dir, partitions: partitions.ok_or_else(invalid)? });
        Ok(self)
    }

    /// Sends an operation whose reply has no content.
    ///
    /// # Errors
    ///
    /// That of the operation, and those of a lost connection.
    pub fn send(&self, operation: &Operation<'_>) -> Result<()> {
        let mut result = Ok(());
        self.call(None, operation, &mut |reply| {
            result = reply.map(drop).map_err(|failure| failure.into_error("send", b""));
        })?;
        result
    }
}

/// The changes of all members of a pool at one time.
#[derive(Debug)]
pub struct PoolMarks(Vec<Mark>);

impl PoolMarks {
    /// Returns whether the pool has changes that were not part of a complete copy of it.
    pub fn has_unsaved_changes(&self) -> bool {
        self.0.iter().any(|mark| mark.saved != mark.changes)
    }
}

impl PoolConnection {
    /// Returns the marks of all members.
    ///
    /// # Errors
    ///
    /// `Unavailable` and `TimedOut` if a member does not answer.
    pub fn marks(&self) -> Result<PoolMarks> {
        let mut result = Err(Error::new(ErrorKind::Damaged, "read the marks", ""));
        self.call(None, &Operation::Marks, &mut |reply| match reply {
            Ok(Reply::Marks(marks)) => result = Ok(PoolMarks(marks)),
            Ok(_) => {}
            Err(failure) => result = Err(failure.into_error("read the marks", b"")),
        })?;
        result
    }

    /// Records that all changes before `marks` were copied out of the pool.
    ///
    /// # Errors
    ///
    /// As [`marks`](Self::marks).
    pub fn record_marks(&self, marks: &PoolMarks) -> Result<()> {
        let marks = marks.0.iter().map(|mark| (mark.member, mark.changes)).collect();
        self.send(&Operation::RecordMarks { marks })
    }
}

impl Daemon for PoolConnection {
    fn call(
        &self,
        deadline: Option<Instant>,
        operation: &Operation<'_>,
        receive: &mut dyn FnMut(Result<Reply<'_>, Failure>),
    ) -> Result<()> {
        let encode = |into: &mut [u8]| quell_wire::encode_into(operation, into);
        self.channel.call(deadline, encode, |reply| quell_wire::decode(reply).map(receive))?
    }

    fn dirs_version(&self) -> u64 {
        self.channel.version()
    }

    fn local_data(&self) -> Option<&LocalData> {
        self.data.as_ref()
    }
}

/// Connects to the daemon whose socket is at `socket`. The pool has chunks of `chunk_bytes` bytes.
///
/// # Errors
///
/// As [`PoolConnection::open`].
pub fn open_pool(socket: &Path, chunk_bytes: u32) -> Result<PoolFs> {
    Ok(PoolFs::new(Arc::new(PoolConnection::open(socket)?.with_data()?), chunk_bytes))
}
