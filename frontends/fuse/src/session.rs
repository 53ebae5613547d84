//! One served mount: its worker threads, and its end.
//!
//! A session is over when its last mount is gone, when a worker panicked, or when its owner stopped
//! it. The kernel aborts a connection when the last descriptor of its device is closed. A worker
//! that waits for a request holds such a descriptor, and only a request can wake it (or the abort
//! file of fusectl, if it is mounted). Therefore, once a session is over, each worker that wakes up
//! ends instead of serving, and the last one closes the connection.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use fuser::{Notifier, SessionACL};
use quell_vfs::{Error, FileSystem, NodeId, Result};
use rustix::fs::{Mode, OFlags};

use crate::counters::Counters;
use crate::frontend::{Frontend, WritableHandles, publish_all};
use crate::in_flight::RequestsInFlight;
use crate::lifetimes::KernelCache;
use crate::location::MountLocation;
use crate::nodes::ino;
use crate::options::Options;
use crate::session_state::{SessionEnd, SessionState};

/// A served mount. Dropping it stops it, as [`Session::stop`] does.
#[derive(Debug)]
pub struct Session {
    counters: Arc<Counters>,
    state: Arc<SessionState>,
    in_flight: RequestsInFlight,
    location: MountLocation,
    writable_files: Arc<WritableHandles>,
    /// Holds a descriptor of the device, and thereby keeps the connection open.
    notifier: Option<Notifier>,
    kernel_cache: Option<KernelCache>,
    no_open: bool,
}

/// Receives a piece of a file, with its offset in bytes.
pub type VisitPiece<'a> = dyn FnMut(u64, &[u8]) -> Result<()> + 'a;

/// Visits the pieces of one file.
pub type Pieces<'a> = dyn Fn(NodeId, &mut VisitPiece<'_>) -> Result<()> + Sync + 'a;

impl Session {
    /// Answers the kernel's first request on `device` and starts the workers.
    pub(crate) fn start(
        fs: Arc<dyn FileSystem>,
        device: OwnedFd,
        options: &Options,
        location: MountLocation,
    ) -> Result<Session> {
        let counters = Arc::new(Counters::new(fs.writable().is_some()));
        let state = Arc::new(SessionState::new(location.abort_file()));
        let in_flight = RequestsInFlight { table: Arc::clone(&state.in_flight), fs: Arc::downgrade(&fs) };
        let frontend = Frontend::new(fs, options, Arc::clone(&counters), Arc::clone(&state));
        let writable_files = Arc::clone(&frontend.writable_files);
        let kernel_cache = frontend.fs.writable().map(|_| KernelCache(Arc::clone(&frontend.lifetimes)));
        let mut config = fuser::Config::default();
        config.n_threads = Some(options.threads.max(1));
        // The kernel has already decided which users may send requests (allow_other).
        let workers = fuser::Session::from_fd(frontend, device, SessionACL::All, config)
            .map_err(|cause| Error::from_io(cause, "start the FUSE protocol on", "/dev/fuse"))?;
        let notifier = options.fills_cache.then(|| workers.notifier());
        let no_open = options.no_open;
        let session = Session {
            counters,
            state: Arc::clone(&state),
            in_flight,
            location,
            writable_files,
            notifier,
            kernel_cache,
            no_open,
        };
        thread::Builder::new()
            .name("quell-fuse".to_owned())
            .spawn(move || state.finish(workers.run()))
            .map_err(|cause| Error::from_io(cause, "start", "a thread"))?;
        Ok(session)
    }

    /// Stores pieces of files in the kernel's page cache before programs read them, with `threads`
    /// threads, if the session was started with [`Options::fills_cache`]. Must be called once, and
    /// not from a worker: it waits for pages that are being read. Returns the number of bytes
    /// stored. A file that could not be stored is read like any other.
    ///
    /// `pieces` must visit the same pieces of a file in each call.
    pub fn fill_cache(
        &mut self,
        mount: &OwnedFd,
        files: &[(NodeId, Vec<u8>)],
        pieces: &Pieces<'_>,
        threads: usize,
    ) -> u64 {
        let Some(notifier) = self.notifier.take() else { return 0 };
        if let (true, Some((_, path))) = (self.no_open, files.first()) {
            // This open is answered with ENOSYS, so that the kernel sends no opens, even if the
            // session fails later.
            let _ =
                rustix::fs::openat(mount, path.as_slice(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        }
        let threads = threads.max(1);
        let store = |thread| {
            let is_own = |number: usize| number % threads == thread;
            files
                .iter()
                .enumerate()
                .map(|(position, (node, path))| {
                    store_file(&notifier, mount, *node, path, &|visit| {
                        let mut number = position;
                        pieces(*node, &mut |offset, piece| {
                            number += 1;
                            if is_own(number) { visit(offset, piece) } else { Ok(()) }
                        })
                    })
                })
                .sum::<u64>()
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || store(thread))).collect();
            let own = store(0);
            let joined = others
                .into_iter()
                .map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            own + joined.sum::<u64>()
        })
    }

    /// Returns the totals, which remain readable after the session.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Returns the cache of the kernel for a writable tree, or `None` for a read-only one.
    pub fn kernel_cache(&self) -> Option<KernelCache> {
        self.kernel_cache.clone()
    }

    /// Returns a handle that lists the requests in flight.
    pub fn in_flight(&self) -> RequestsInFlight {
        self.in_flight.clone()
    }

    /// Waits until the session is over. Returns `Ok` if its last mount is gone or it was stopped,
    /// and an error with the reason if a worker failed; the owner should then drop the session.
    pub fn join(&self) -> Result<()> {
        self.state.wait()
    }

    /// Returns whether [`join`](Session::join) would return immediately.
    pub fn is_over(&self) -> bool {
        self.state.is_over()
    }

    /// Unmounts the mount that [`mount_at`](crate::mount_at) made; returns `Ok` if it is no longer
    /// there. Errors: `Busy` while a program has a file open or its working directory in the mount;
    /// `Unsupported` for a detached mount, whose location is not known here.
    pub fn unmount(&self) -> Result<()> {
        self.location.unmount(false)
    }

    /// Ends the session now, even if it is in use. Unmounts the mount that
    /// [`mount_at`](crate::mount_at) made; programs that still use it get errors. Data written so
    /// far is published before this returns.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.state.is_unmounted() {
            // A mount that cannot be unmounted, because its namespace is gone, is unusable after
            // this anyway.
            let _ = self.location.unmount(true);
            self.state.end(SessionEnd::Stopped);
            // The process may end before the workers do.
            publish_all(&self.writable_files, &self.counters);
        }
    }
}

/// Stores pieces of one file. Returns the number of bytes stored.
fn store_file(
    notifier: &Notifier,
    mount: &OwnedFd,
    node: NodeId,
    path: &[u8],
    pieces: &dyn Fn(&mut VisitPiece<'_>) -> Result<()>,
) -> u64 {
    let failed = |cause| Error::from_io(cause, "fill the cache of", path);
    // The kernel keeps the inode only while the file is open.
    let mut opened = None;
    let mut bytes = 0;
    // The pieces after an error are not stored.
    let _ = pieces(&mut |offset, piece| {
        if opened.is_none() {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            opened =
                Some(rustix::fs::openat(mount, path, flags, Mode::empty()).map_err(|e| failed(e.into()))?);
        }
        notifier.store(ino(node), offset, piece).map_err(failed)?;
        bytes += piece.len() as u64;
        Ok(())
    });
    bytes
}
