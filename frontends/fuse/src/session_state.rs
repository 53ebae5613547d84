//! The state of a session: whether it is over, and the reason. Its owner and its workers share this
//! state.

use std::fs::File;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use quell_threads::{lock, wait_while};
use quell_vfs::{Error, ErrorKind, NodeId, Result, errno};
use tracing::span::EnteredSpan;

use crate::in_flight::{Entered, InFlight};

#[derive(Debug, Clone)]
pub(crate) enum SessionEnd {
    Unmounted,
    Stopped,
    Failed(String),
}

/// The state of one session.
#[derive(Debug)]
pub(crate) struct SessionState {
    over: AtomicBool,
    outcome: Mutex<Option<SessionEnd>>,
    changed: Condvar,
    pub(crate) in_flight: Arc<InFlight>,
    /// The file that aborts the connection, if the system has it. It is opened while the connection
    /// exists, because the kernel gives the number of the connection to another connection after
    /// the mount is gone.
    abort: Option<File>,
}

impl SessionState {
    pub(crate) fn new(abort: Option<File>) -> SessionState {
        SessionState {
            over: AtomicBool::new(false),
            outcome: Mutex::default(),
            changed: Condvar::new(),
            in_flight: Arc::default(),
            abort,
        }
    }

    /// Begins a request. The returned guard detects a panic. If the session is over, this ends the
    /// thread, and the request is answered with EIO because its reply is dropped.
    pub(crate) fn enter(&self, operation: &'static str, node: NodeId) -> RequestGuard<'_> {
        if self.over.load(Ordering::Relaxed) {
            resume_unwind(Box::new("the session is over"));
        }
        let in_flight = self.in_flight.start(operation, node);
        let span = tracing::debug_span!("request", operation, node = node.0).entered();
        RequestGuard { state: self, _span: span, _in_flight: in_flight }
    }

    pub(crate) fn finish(&self, ran: io::Result<()>) {
        self.end(match ran {
            Ok(()) => SessionEnd::Unmounted,
            Err(cause) => SessionEnd::Failed(cause.to_string()),
        });
    }

    /// Ends the session. The first reason is kept.
    pub(crate) fn end(&self, outcome: SessionEnd) {
        let unmounted = matches!(outcome, SessionEnd::Unmounted);
        lock(&self.outcome).get_or_insert(outcome);
        self.over.store(true, Ordering::Relaxed);
        self.changed.notify_all();
        if let Some(mut abort) = self.abort.as_ref().filter(|_| !unmounted) {
            // Without the abort, each worker ends at its next request.
            let _ = abort.write_all(b"1");
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub(crate) fn is_unmounted(&self) -> bool {
        let outcome = lock(&self.outcome);
        matches!(*outcome, Some(SessionEnd::Unmounted))
    }

    pub(crate) fn wait(&self) -> Result<()> {
        let outcome = lock(&self.outcome);
        let outcome = wait_while(&self.changed, outcome, |outcome| outcome.is_none());
        match &*outcome {
            Some(SessionEnd::Failed(reason)) => {
                let failed = Error::new(ErrorKind::Os(errno::EIO), "serve", "the mount");
                Err(Error { source: Some(reason.as_str().into()), ..failed })
            }
            _ => Ok(()),
        }
    }
}

/// Held for the time of one request.
#[derive(Debug)]
pub(crate) struct RequestGuard<'a> {
    state: &'a SessionState,
    _span: EnteredSpan,
    _in_flight: Entered,
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.state
                .end(SessionEnd::Failed("a worker panicked; its message is on standard error".to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_is_stopped_aborts_the_connection_that_it_had_at_its_start() {
        let temp = tempfile::tempdir().unwrap();
        let (path, own) = (temp.path().join("abort"), temp.path().join("own"));
        let state = SessionState::new(Some(File::create(&path).unwrap()));
        std::fs::rename(&path, &own).unwrap();
        std::fs::write(&path, "").unwrap(); // the file of another connection with the same number
        state.end(SessionEnd::Stopped);
        assert_eq!(std::fs::read_to_string(own).unwrap(), "1");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "");
    }

    #[test]
    fn a_session_whose_mount_is_gone_aborts_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("abort");
        let state = SessionState::new(Some(File::create(&path).unwrap()));
        state.end(SessionEnd::Unmounted);
        assert_eq!(std::fs::read_to_string(path).unwrap(), "");
    }
}
