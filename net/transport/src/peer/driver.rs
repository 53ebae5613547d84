//! The threads that serve the connections to other members.
//!
//! If there is only one thread, it lends its work to the service thread of a member: the thread
//! that calls `block_on` of a `current_thread` runtime performs the tasks of all connections. A
//! message is then not passed from one thread to the other, which would cost more than most
//! requests. While the service thread does not wait, for example during a long fdatasync(2), the
//! own thread takes the work back after `ABSENCE_MAX`.

// tokio requires a promise for each descriptor that it watches.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::task::yield_now;

use super::peer_state::without_collection;
use crate::local::Reactor;

/// The own thread serves the connections after the service thread was absent for this time, and at
/// most for twice this time.
const ABSENCE_MAX: Duration = Duration::from_millis(50);
/// The pause of a service thread whose runtime has ended meanwhile.
const ENDED_PAUSE: Duration = Duration::from_millis(1);

/// The runtime of the connections, and its threads.
pub(super) struct Driver {
    pub runtime: Runtime,
    /// Belongs to the service thread that serves the connections, if there is one.
    borrower: Mutex<Weak<()>>,
    /// Whether the runtime has one thread of its own, whose work can be lent.
    is_lent: bool,
    /// Whether the own thread serves the connections.
    is_serving: AtomicBool,
    /// Whether the service thread serves the connections at this moment.
    is_borrowed: AtomicBool,
    /// The number of times that the service thread has served the connections.
    turns: AtomicU64,
    /// Ends the service by the own thread.
    leave: Notify,
    own: OnceLock<Thread>,
    is_ending: AtomicBool,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("is_serving", &self.is_serving).finish_non_exhaustive()
    }
}

impl Driver {
    /// Starts the threads.
    pub fn start(threads: usize) -> io::Result<Arc<Driver>> {
        const NAME: &str = "quell-peers";
        let is_lent = threads == 1;
        let runtime = match is_lent {
            true => Builder::new_current_thread().enable_all().build()?,
            false => {
                Builder::new_multi_thread().worker_threads(threads).thread_name(NAME).enable_all().build()?
            }
        };
        let driver = Arc::new(Driver {
            runtime,
            borrower: Mutex::default(),
            is_lent,
            is_serving: AtomicBool::new(false),
            is_borrowed: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            leave: Notify::new(),
            own: OnceLock::new(),
            is_ending: AtomicBool::new(false),
        });
        if is_lent {
            let own = Arc::clone(&driver);
            let thread = std::thread::Builder::new().name(NAME.into()).spawn(move || own.serve())?;
            let _ = driver.own.set(thread.thread().clone());
        }
        Ok(driver)
    }

    /// Serves the connections whenever no service thread does.
    fn serve(&self) {
        while !self.is_ending.load(Ordering::SeqCst) {
            self.is_serving.store(true, Ordering::SeqCst);
            self.runtime.block_on(self.leave.notified());
            self.is_serving.store(false, Ordering::SeqCst);
            let mut known = self.turns.load(Ordering::SeqCst);
            while !self.is_ending.load(Ordering::SeqCst) {
                std::thread::park_timeout(ABSENCE_MAX);
                let turns = self.turns.load(Ordering::SeqCst);
                if turns == known && !self.is_borrowed.load(Ordering::SeqCst) {
                    break;
                }
                known = turns;
            }
        }
    }

    /// Lets the service thread whose server has this descriptor for its events serve the
    /// connections. Returns `None` if there are several threads, or if another one does.
    pub fn lend(self: &Arc<Driver>, events: OwnedFd) -> io::Result<Option<Box<dyn Reactor>>> {
        let mut borrower = self.borrower.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_lent || borrower.strong_count() != 0 {
            return Ok(None);
        }
        let _context = self.runtime.enter();
        // SAFETY: the value owns the descriptor, which is open until the registration ends.
        let events = unsafe { AsyncFd::register_with_interest(events, Interest::READABLE) };
        let events = events.map_err(io::Error::from)?;
        let token = Arc::new(());
        *borrower = Arc::downgrade(&token);
        Ok(Some(Box::new(Borrowed { driver: Arc::downgrade(self), events, _token: token })))
    }

    /// Performs the tasks of the connections on the calling thread, until `work` is complete.
    fn borrow(&self, work: impl Future<Output = ()>) {
        self.is_borrowed.store(true, Ordering::SeqCst);
        self.turns.fetch_add(1, Ordering::SeqCst);
        if self.is_serving.load(Ordering::SeqCst) {
            // The own thread gives up the runtime. If it has just begun, `work` is still completed,
            // by a thread that wakes this one.
            self.leave.notify_one();
        }
        // Collected requests and replies would not be sent before the end of the wait.
        without_collection(|| self.runtime.block_on(work));
        self.is_borrowed.store(false, Ordering::SeqCst);
    }

    /// Ends the runtime, within `limit` if no handler blocks it.
    pub fn end(self: Arc<Driver>, limit: Duration) {
        self.is_ending.store(true, Ordering::SeqCst);
        self.leave.notify_one();
        if let Some(own) = self.own.get() {
            own.unpark();
        }
        let end = Instant::now() + limit;
        let mut driver = self;
        loop {
            match Arc::try_unwrap(driver) {
                Ok(driver) => return driver.runtime.shutdown_timeout(limit),
                // The thread that drops the last reference ends the runtime.
                Err(_) if Instant::now() >= end => return,
                Err(shared) => driver = shared,
            }
            std::thread::sleep(ENDED_PAUSE);
        }
    }
}

/// The connections, for the service thread that serves them.
struct Borrowed {
    driver: Weak<Driver>,
    events: AsyncFd<OwnedFd>,
    _token: Arc<()>,
}

impl Reactor for Borrowed {
    fn wait(&self, timeout: Option<Duration>) -> bool {
        let Some(driver) = self.driver.upgrade() else { return false };
        driver.borrow(async {
            let event = async {
                match self.events.readable().await {
                    // The server takes its events after this call, so none is lost.
                    Ok(mut ready) => ready.clear_ready(),
                    Err(_) => std::thread::sleep(ENDED_PAUSE),
                }
            };
            match timeout {
                Some(timeout) => _ = tokio::time::timeout(timeout, event).await,
                None => event.await,
            }
        });
        true
    }

    fn turn(&self) {
        if let Some(driver) = self.driver.upgrade() {
            driver.borrow(async {
                // The first call finds the sockets with data, and the second call reads them.
                yield_now().await;
                yield_now().await;
            });
        }
    }
}
