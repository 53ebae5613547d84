//! A pool as a file system, and the daemons of a pool with copies on this node. The description of
//! the pool in the registry names them; the daemons change it when one of them has ended or a new
//! one was started.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_pool::{Daemon, Daemons, PoolFs};
use quell_runtime::{Described, Socket};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Result};

use crate::pool::PoolConnection;

/// How long operations wait for another daemon after the daemon has ended to which they were sent.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// The daemons of one pool on this node.
struct NodeDaemons {
    pool: Described,
    /// The socket to which the next connection is tried first.
    preferred: Mutex<Option<PathBuf>>,
}

impl NodeDaemons {
    /// Returns the daemons of the pool that is described beside a socket. Returns `None` for a pool
    /// without copies, and if there is no description: then a daemon that ends is not replaced.
    fn beside(socket: &Path) -> Option<NodeDaemons> {
        // If the description cannot be read, the socket is used nevertheless.
        let pool = Described::within(socket.parent()?).ok()?;
        let has_copies = pool.read().ok()?.is_some_and(|found| found.replicas > 1);
        has_copies.then(|| NodeDaemons { pool, preferred: Mutex::new(Some(socket.to_owned())) })
    }
}

impl Daemons for NodeDaemons {
    fn connect(&self) -> Result<Arc<dyn Daemon>> {
        let ended = |kind| Error::new(kind, "find a daemon of", "the pool");
        let described = match self.pool.read() {
            Ok(Some(described)) => described,
            Ok(None) => return Err(ended(ErrorKind::NotFound)),
            Err(refusal) => {
                return Err(Error { source: Some(refusal.into()), ..ended(ErrorKind::Damaged) });
            }
        };
        let mut sockets: Vec<PathBuf> = described.sockets().collect();
        // After a change of the pool, the member at this socket may no longer be the one that
        // serves clients.
        let preferred = lock(&self.preferred).take();
        if let Some(position) = sockets.iter().position(|socket| Some(socket) == preferred.as_ref()) {
            sockets.swap(0, position);
        }
        let mut failed = ended(ErrorKind::Unavailable);
        for socket in sockets {
            match connect(&self.pool, socket) {
                Ok(connection) => return Ok(Arc::new(connection)),
                Err(error) => failed = error,
            }
        }
        // The description may be older than the end of the last daemon.
        let is_later = matches!(failed.kind, ErrorKind::TimedOut | ErrorKind::Busy);
        Err(if is_later {
            failed
        } else {
            Error { source: Some(failed.into()), ..ended(ErrorKind::Unavailable) }
        })
    }

    fn wait_limit(&self) -> Duration {
        WAIT_LIMIT
    }
}

fn connect(pool: &Described, path: PathBuf) -> Result<PoolConnection> {
    let socket = Socket::new(path.clone()).map_err(|e| Error::from_io(e, "connect to", "a daemon"))?;
    let (pool, socket) = (pool.clone(), Arc::new(socket));
    let checked = Arc::clone(&socket);
    // The version of the description that was read last and has the socket. The description is read
    // again when its version has changed.
    let last = Mutex::new(None);
    let is_replaced = move || {
        if !checked.exists() {
            return true;
        }
        let version = pool.version();
        if version.is_some() && *lock(&last) == version {
            return false;
        }
        *lock(&last) = version;
        // If the description cannot be read, the wait for the daemon continues.
        pool.read().ok().flatten().is_some_and(|pool| !pool.has_socket(checked.path()))
    };
    let connection = PoolConnection::open_checked(&path, Some(Box::new(is_replaced)))?;
    match socket.exists() {
        true => connection.with_data(),
        // Another daemon serves there now.
        false => Err(Error::new(ErrorKind::Unavailable, "connect to", "a daemon")),
    }
}

/// Connects to the daemon whose socket is at `socket`. The pool has chunks of `chunk_bytes` bytes.
/// In a pool with copies, another daemon of the pool on this node replaces a daemon that ends,
/// including this first one. If there is no other daemon, operations wait for one for up to 30
/// seconds.
///
/// # Errors
///
/// As [`PoolConnection::open`].
pub fn open_pool(socket: &Path, chunk_bytes: u32) -> Result<PoolFs> {
    match NodeDaemons::beside(socket) {
        Some(daemons) => PoolFs::reconnecting(Box::new(daemons), chunk_bytes),
        None => open_pool_at(socket, chunk_bytes),
    }
}

/// Does the same as [`open_pool`], but uses this daemon only, for commands that do not wait for
/// another one.
///
/// # Errors
///
/// As [`PoolConnection::open`].
pub fn open_pool_at(socket: &Path, chunk_bytes: u32) -> Result<PoolFs> {
    Ok(PoolFs::new(Arc::new(PoolConnection::open(socket)?.with_data()?), chunk_bytes))
}
