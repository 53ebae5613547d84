//! Wakes the service thread of a local server from other threads of the daemon.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_vfs::{Error, Result};
use rustix::event::EventfdFlags;

use super::memory::StatusPage;

/// The state that the service thread and the wakers share.
#[derive(Debug)]
pub(super) struct WakeState {
    pub(super) status: StatusPage,
    /// Whether a wake-up was requested that the service thread has not seen.
    requested: AtomicBool,
    /// Written to end epoll_wait(2); never read, because epoll reports each write (`EPOLLET`).
    pub(super) event: OwnedFd,
}

impl WakeState {
    pub(super) fn new(status: StatusPage) -> Result<WakeState> {
        Ok(WakeState { status, requested: AtomicBool::new(false), event: eventfd()? })
    }

    /// Returns whether a wake-up was requested.
    pub(super) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    /// Forgets a request to wake up, and returns whether there was one. Called before the service
    /// thread looks for its work.
    pub(super) fn take_request(&self) -> bool {
        self.is_requested() && self.requested.swap(false, Ordering::SeqCst)
    }
}

/// Returns an eventfd that blocks neither side.
pub(super) fn eventfd() -> Result<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|cause| Error::from_io(cause.into(), "create", "an eventfd"))
}

/// Adds 1 to an eventfd. Its counter can be full only if the client filled it, which has woken the
/// daemon.
pub(super) fn ring(eventfd: &OwnedFd) {
    while rustix::io::write(eventfd, &1_u64.to_ne_bytes()) == Err(rustix::io::Errno::INTR) {}
}

/// Wakes the service thread of a [`LocalServer`](super::LocalServer), and increases the number that
/// its clients read. Clones do so for the same server.
#[derive(Debug, Clone)]
pub struct Waker(pub(super) Arc<WakeState>);

impl Waker {
    /// Increases the number that [`LocalChannel::version`](super::LocalChannel::version) returns. A
    /// client that reads it after this call gets the new number.
    pub fn increase_version(&self) {
        self.0.status.increase_version();
    }

    /// Sets the number that [`increase_version`](Self::increase_version) increases.
    pub fn set_version(&self, version: u64) {
        self.0.status.set_version(version);
    }

    /// Makes the current or the next [`wait`](super::LocalServer::wait) return. Several calls
    /// before it returns count once. Memory that the caller wrote before this call is visible to
    /// the service thread after `wait`.
    pub fn wake(&self) {
        if !self.0.requested.swap(true, Ordering::SeqCst) && self.0.status.is_sleeping() {
            ring(&self.0.event);
        }
    }
}
