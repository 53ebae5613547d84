//! Serves a name space of this process to processes of its user on this node.

use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use quell_batch::SharedNames;
use quell_transport::local::{LocalServer, ServerOptions, Waker};
use quell_vfs::{Error, Result};

/// A thread that executes the requests of clients, until [`stop`](LocalNames::stop).
pub struct LocalNames {
    socket: PathBuf,
    waker: Waker,
    last_version: u64,
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl fmt::Debug for LocalNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalNames").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl LocalNames {
    /// Starts the thread. The directory of the socket must belong to this user and give no
    /// permission to others.
    ///
    /// # Errors
    /// `PermissionDenied` for another directory; the error of the system if the socket or the
    /// thread cannot be created.
    pub fn start(names: SharedNames, socket: &Path) -> Result<LocalNames> {
        let options =
            ServerOptions { descriptors: vec![names.store_descriptor()?], ..ServerOptions::default() };
        let mut server = LocalServer::bind(socket, options)?;
        // Other users have no access to the directory, and no other process has the socket, so the
        // directory of locks can be replaced.
        let locks = directory_of_locks(socket);
        match create_directory(&locks) {
            Ok(created) => server.add_descriptor(created),
            Err(error) => {
                // The error of the directory is returned, because it is more useful.
                let _ = std::fs::remove_file(socket);
                return Err(error);
            }
        }
        let waker = server.waker();
        waker.set_version(names.first_version());
        let last_version = names.last_version();
        let is_ending = Arc::new(AtomicBool::new(false));
        let (ending, its_waker) = (is_ending.clone(), waker.clone());
        let serve = move || serve(server, &names, &its_waker, &ending);
        match std::thread::Builder::new().name("batch names".into()).spawn(serve) {
            Ok(thread) => Ok(LocalNames {
                socket: socket.to_owned(),
                waker,
                last_version,
                is_ending,
                thread: Some(thread),
            }),
            Err(cause) => {
                // The error of the thread is returned, because it is more useful.
                let _ = remove(socket);
                Err(Error::from_io(cause, "start a thread for", "requests"))
            }
        }
    }

    /// Ends the connections of all clients and the thread, and removes the socket. Requests that
    /// were not begun fail, and clients write to no data file any more. A second call does nothing.
    ///
    /// # Errors
    /// The error that has ended the thread before; the error of the removal.
    pub fn stop(&mut self) -> Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.is_ending.store(true, Ordering::Release);
        self.waker.wake();
        // The panic hook has reported a panic of the thread.
        let served = thread.join().unwrap_or(Ok(()));
        self.waker.set_version(self.last_version);
        served.and(remove(&self.socket))
    }
}

/// Returns the directory with the locks of files that belongs to a socket.
pub fn directory_of_locks(socket: &Path) -> PathBuf {
    socket.with_extension("locks")
}

/// Creates an empty directory for this user, in place of a directory that a killed process has
/// left.
fn create_directory(path: &Path) -> Result<OwnedFd> {
    let created = std::fs::DirBuilder::new().mode(0o700).create(path).or_else(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            std::fs::remove_dir_all(path)?;
            std::fs::DirBuilder::new().mode(0o700).create(path)
        }
        _ => Err(error),
    });
    let opened = created.and_then(|()| std::fs::File::open(path));
    let opened = opened.map_err(|cause| Error::from_io(cause, "create", path.as_os_str().as_encoded_bytes()));
    Ok(opened?.into())
}

/// Removes a socket and its directory with locks.
fn remove(socket: &Path) -> Result<()> {
    let failed = |path: &Path, cause| Error::from_io(cause, "remove", path.as_os_str().as_encoded_bytes());
    let locks = directory_of_locks(socket);
    let removed = std::fs::remove_file(socket).map_err(|cause| failed(socket, cause));
    removed.and(std::fs::remove_dir_all(&locks).map_err(|cause| failed(&locks, cause)))
}

/// Executes requests until the server ends.
fn serve(mut server: LocalServer, names: &SharedNames, waker: &Waker, is_ending: &AtomicBool) -> Result<()> {
    let mut requests = Vec::new();
    while !is_ending.load(Ordering::Acquire) {
        server.wait(None)?;
        server.drain(&mut |ticket, request| requests.push((ticket, request.to_vec())));
        for (ticket, request) in requests.drain(..) {
            let executed = names.execute(&request);
            if executed.changed_dirs {
                // The version changes before the reply, because the client reads the version after
                // the reply.
                waker.increase_version();
            }
            server.reply_bytes(ticket, &executed.reply);
        }
    }
    Ok(())
}
