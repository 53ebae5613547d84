//! One served mount: its worker threads, and how it ends.
//!
//! A session is over when its last mount is gone, when a worker panicked, or when its owner stopped
//! it. The kernel aborts a connection when the last descriptor of its device is closed. A worker
//! that waits for a request holds such a descriptor, and only a request can wake it (or the abort
//! file of fusectl, if it is mounted). Therefore, once a session is over, each worker that wakes up
//! ends instead of serving, and the last one closes the connection.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use fuser::{Notifier, SessionACL};
use quell_vfs::{Error, ErrorKind, FileSystem, NodeId, Result, errno};
use rustix::fs::{Mode, OFlags};

use crate::frontend::{Frontend, Written, publish_all};
use crate::mount::Place;
use crate::nodes::ino;
use crate::{Counters, Options};

/// A served mount. Dropping it stops it, as [`Session::stop`] does.
#[derive(Debug)]
pub struct Session {
    counters: Arc<Counters>,
    ending: Arc<Ending>,
    place: Place,
    written: Arc<Written>,
    /// Holds a descriptor of the device, and thereby keeps the connection open.
    notifier: Option<Notifier>,
    no_open: bool,
}

/// Visits the pieces of one file, each with its offset in bytes.
pub type Pieces<'a> = dyn Fn(NodeId, &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> + 'a;

impl Session {
    /// Answers the kernel's first request on `device` and starts the workers.
    pub(crate) fn start(
        fs: Arc<dyn FileSystem>,
        device: OwnedFd,
        options: &Options,
        place: Place,
    ) -> Result<Session> {
        let counters = Arc::new(Counters::new(fs.writable().is_some()));
        let ending = Arc::new(Ending::new(place.connection()));
        let frontend = Frontend::new(fs, options, Arc::clone(&counters), Arc::clone(&ending));
        let written = Arc::clone(&frontend.written);
        let mut config = fuser::Config::default();
        config.n_threads = Some(options.threads.max(1));
        // The kernel has already decided which users may send requests (allow_other).
        let workers = fuser::Session::from_fd(frontend, device, SessionACL::All, config)
            .map_err(|cause| Error::from_io(cause, "greet the kernel on", "/dev/fuse"))?;
        let notifier = options.fills_cache.then(|| workers.notifier());
        let no_open = options.no_open;
        let session = Session { counters, ending: Arc::clone(&ending), place, written, notifier, no_open };
        thread::Builder::new()
            .name("quell-fuse".to_owned())
            .spawn(move || ending.finish(workers.run()))
            .map_err(|cause| Error::from_io(cause, "start", "a thread"))?;
        Ok(session)
    }

    /// Stores pieces of files in the kernel's page cache before programs read them, if the session
    /// was started with [`Options::fills_cache`]. Must be called once, and not from a worker: it
    /// waits for pages that are being read. Returns the number of bytes stored. A file that could
    /// not be stored is read like any other.
    pub fn fill_cache(&mut self, mount: &OwnedFd, files: &[(NodeId, Vec<u8>)], pieces: &Pieces<'_>) -> u64 {
        let Some(notifier) = self.notifier.take() else { return 0 };
        if let (true, Some((_, path))) = (self.no_open, files.first()) {
            // This open is answered with ENOSYS, so that the kernel sends no opens, even if the
            // session fails later.
            let _ =
                rustix::fs::openat(mount, path.as_slice(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        }
        let mut bytes = 0;
        for (node, path) in files {
            // The kernel keeps the inode only while the file is open.
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let Ok(_open) = rustix::fs::openat(mount, path.as_slice(), flags, Mode::empty()) else {
                continue;
            };
            let _ = pieces(*node, &mut |offset, piece| {
                notifier
                    .store(ino(*node), offset, piece)
                    .map_err(|cause| Error::from_io(cause, "fill the cache of", path.as_slice()))?;
                bytes += piece.len() as u64;
                Ok(())
            });
        }
        bytes
    }

    /// Returns the totals, which remain readable after the session.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Waits until the session is over. Returns `Ok` if its last mount is gone or it was stopped,
    /// and an error with the reason if a worker failed; the owner should then drop the session.
    pub fn join(&self) -> Result<()> {
        self.ending.wait()
    }

    /// Returns whether [`join`](Session::join) would return immediately.
    pub fn is_over(&self) -> bool {
        self.ending.is_over()
    }

    /// Unmounts the mount that [`at`](crate::at) made; returns `Ok` if it is no longer there.
    /// Errors: `Os(EBUSY)` while a program has a file open or its working directory in the mount;
    /// `Unsupported` for a detached mount, whose location is not known here.
    pub fn unmount(&self) -> Result<()> {
        self.place.unmount(false)
    }

    /// Ends the session now, even if it is in use. Unmounts the mount that [`at`](crate::at) made;
    /// programs that still use it get errors. Data written so far is published before this returns.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.ending.is_unmounted() {
            // A mount that cannot be unmounted, because its namespace is gone, is unusable after
            // this anyway.
            let _ = self.place.unmount(true);
            self.ending.end(Outcome::Stopped);
            // The process may end before the workers do.
            publish_all(&self.written, &self.counters);
        }
    }
}

#[derive(Debug, Clone)]
enum Outcome {
    Unmounted,
    Stopped,
    Failed(String),
}

/// Whether and why a session is over; shared by its owner and its workers.
#[derive(Debug)]
pub(crate) struct Ending {
    over: AtomicBool,
    outcome: Mutex<Option<Outcome>>,
    changed: Condvar,
    /// The connection's number under `/sys/fs/fuse/connections`, if it is known.
    connection: Option<u32>,
}

impl Ending {
    fn new(connection: Option<u32>) -> Ending {
        Ending {
            over: AtomicBool::new(false),
            outcome: Mutex::default(),
            changed: Condvar::new(),
            connection,
        }
    }

    /// Called at the start of every request. The returned guard detects a panic. If the session is
    /// over, this ends the thread, and the request is answered with EIO because its reply is
    /// dropped.
    pub(crate) fn enter(&self) -> Worker<'_> {
        if self.over.load(Ordering::Relaxed) {
            resume_unwind(Box::new("the session is over"));
        }
        Worker(self)
    }

    fn finish(&self, ran: io::Result<()>) {
        self.end(match ran {
            Ok(()) => Outcome::Unmounted,
            Err(cause) => Outcome::Failed(cause.to_string()),
        });
    }

    /// Ends the session. The first reason is kept.
    fn end(&self, outcome: Outcome) {
        let unmounted = matches!(outcome, Outcome::Unmounted);
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(outcome);
        self.over.store(true, Ordering::Relaxed);
        self.changed.notify_all();
        if let Some(connection) = self.connection.filter(|_| !unmounted) {
            // Most systems have this directory, and the user who mounted may write to it.
            let _ = fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1");
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn is_unmounted(&self) -> bool {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*outcome, Some(Outcome::Unmounted))
    }

    fn wait(&self) -> Result<()> {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = self
            .changed
            .wait_while(outcome, |outcome| outcome.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        match &*outcome {
            Some(Outcome::Failed(reason)) => {
                let failed = Error::new(ErrorKind::Os(errno::EIO), "serve", "the mount");
                Err(Error { source: Some(reason.as_str().into()), ..failed })
            }
            _ => Ok(()),
        }
    }
}

/// Held for the time of one request.
#[derive(Debug)]
pub(crate) struct Worker<'a>(&'a Ending);

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.end(Outcome::Failed("a worker panicked; its message is on standard error".to_owned()));
        }
    }
}
