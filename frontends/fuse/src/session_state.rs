//! The state of a session: whether it is over, and the reason. Its owner and its workers share this
//! state.

use std::fs;
use std::io;
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
    /// The connection's number under `/sys/fs/fuse/connections`, if it is known.
    connection: Option<u32>,
}

impl SessionState {
    pub(crate) fn new(connection: Option<u32>) -> SessionState {
        SessionState {
            over: AtomicBool::new(false),
            outcome: Mutex::default(),
            changed: Condvar::new(),
            in_flight: Arc::default(),
            connection,
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
        if let Some(connection) = self.connection.filter(|_| !unmounted) {
            // Most systems have this directory, and the user who mounted may write to it.
            let _ = fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1");
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
