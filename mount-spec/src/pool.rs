//! A pool as a file system: the connection of this process to the daemon of its node.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use quell_pool::{Daemon, PoolFs};
use quell_transport::local::LocalChannel;
use quell_vfs::Result;
use quell_wire::Failure;
use quell_wire::pool::{Operation, Reply};

/// A connection of this process to a daemon, through shared memory.
pub struct PoolConnection(LocalChannel);

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
        LocalChannel::connect_with(socket, quell_posix::moved).map(PoolConnection)
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

impl Daemon for PoolConnection {
    fn call(
        &self,
        deadline: Option<Instant>,
        operation: &Operation<'_>,
        receive: &mut dyn FnMut(Result<Reply<'_>, Failure>),
    ) -> Result<()> {
        let encode = |into: &mut [u8]| quell_wire::encode_into(operation, into);
        self.0.call(deadline, encode, |reply| quell_wire::decode(reply).map(receive))?
    }

    fn dirs_version(&self) -> u64 {
        self.0.version()
    }
}

/// Connects to the daemon whose socket is at `socket`. The pool has chunks of `chunk_bytes` bytes.
///
/// # Errors
///
/// As [`PoolConnection::open`].
pub fn open_pool(socket: &Path, chunk_bytes: u32) -> Result<PoolFs> {
    Ok(PoolFs::new(Arc::new(PoolConnection::open(socket)?), chunk_bytes))
}
