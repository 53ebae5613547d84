//! One served mount: its worker threads, and the ways in which it ends.
//!
//! A session is over when the last mount of it is gone, when a worker panicked, or when its owner
//! stopped it. The kernel aborts a connection when the last descriptor of its device closes, and a
//! worker that waits for a request holds one; there is no way to wake it but a request (or the abort
//! file of fusectl, where that is mounted). So once a session is over, each worker that is woken
//! ends instead of serving, and the last one takes the connection with it.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use fuser::{Notifier, SessionACL};
use quell_fs::{Error, ErrorKind, FileSystem, NodeId, Result, errno};
use rustix::fs::{Mode, OFlags};

use crate::door::{Door, Written, publish_all};
use crate::mount::Place;
use crate::nodes::ino;
use crate::{Counters, Options};

/// A mount being served. Dropping it stops it, as [`Session::stop`] does.
#[derive(Debug)]
pub struct Session {
    counters: Arc<Counters>,
    ending: Arc<Ending>,
    place: Place,
    written: Arc<Written>,
    /// Holds a descriptor of the device, and with it the connection.
    notifier: Option<Notifier>,
    no_open: bool,
}

/// Visits the pieces of one file, each with its offset.
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
        let door = Door::new(fs, options, Arc::clone(&counters), Arc::clone(&ending));
        let written = Arc::clone(&door.written);
        let mut config = fuser::Config::default();
        config.n_threads = Some(options.threads.max(1));
        // Whose requests may come is the kernel's decision (allow_other), made before they get here.
        let workers = fuser::Session::from_fd(door, device, SessionACL::All, config)
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

    /// Puts pieces of files into the kernel's cache before anybody asks for them, if the session was made for it
    /// ([`Options::fills_cache`]). To be called once, and not from a worker: a page that is being asked for is waited
    /// for. Returns the bytes that were put there; a file that could not be filled is read as any other is.
    pub fn fill_cache(&mut self, mount: &OwnedFd, files: &[(NodeId, Vec<u8>)], pieces: &Pieces<'_>) -> u64 {
        let Some(notifier) = self.notifier.take() else { return 0 };
        if let (true, Some((_, path))) = (self.no_open, files.first()) {
            // With this it knows that it needs to ask for no open, also when nobody is left to tell.
            let _ =
                rustix::fs::openat(mount, path.as_slice(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        }
        let mut bytes = 0;
        for (node, path) in files {
            // The kernel knows the inode as long as somebody has it open.
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

    /// The running totals; they outlive the session.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Waits until the session is over. `Ok` when the last mount of it is gone or it was stopped;
    /// an error when a worker failed, with the reason, and then the owner should drop the session.
    pub fn join(&self) -> Result<()> {
        self.ending.wait()
    }

    /// Whether [`join`](Session::join) would return at once.
    pub fn is_over(&self) -> bool {
        self.ending.is_over()
    }

    /// Takes the mount away from where [`at`](crate::at) put it; `Ok` if it is no longer there.
    /// Errors: `Os(EBUSY)` while a program has a file open or its working directory there;
    /// `Unsupported` for a detached mount, which only its owner can find.
    pub fn unmount(&self) -> Result<()> {
        self.place.unmount(false)
    }

    /// Ends the session now, whoever uses it: takes the mount out of the tree where
    /// [`at`](crate::at) put it, and has what programs still hold of it answer with errors. What they have written so
    /// far is published before this returns.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.ending.is_unmounted() {
            // A mount that cannot be removed (its name space is gone) is dead all the same after this.
            let _ = self.place.unmount(true);
            self.ending.end(Outcome::Stopped);
            // The process may end before the workers have.
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
    /// The connection's number under `/sys/fs/fuse/connections`, where it is known.
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

    /// Called at the start of every request: what it returns notices a panic, and a session that is
    /// over ends the thread here. The request is answered with EIO as its reply is dropped.
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

    /// The first reason stays.
    fn end(&self, outcome: Outcome) {
        let unmounted = matches!(outcome, Outcome::Unmounted);
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(outcome);
        self.over.store(true, Ordering::Relaxed);
        self.changed.notify_all();
        if let Some(connection) = self.connection.filter(|_| !unmounted) {
            // Most systems have this directory, and the one who mounted may write to it.
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
