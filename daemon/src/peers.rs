//! The requests to other daemons: to the members that they run, and to the backups that they have.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker as TaskWaker};
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, poll_fn};
use quell_pool_service::{BackupDaemons, Peers};
use quell_transport::local::Waker;
use quell_transport::peer::{Traffic, Transport, was_not_executed};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{DaemonId, MemberId, NetworkCounters, Reply};
use quell_wire::{Failure as WireFailure, decode};

use crate::placement::{Placement, number};
use crate::request::{PeerRequest, Replier};
use crate::router::Router;

/// How long a member may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest reply of a daemon with a backup, in bytes.
const CONFIRMATION_BYTES_MAX: u32 = 8 << 10;

/// Tasks of one thread that wait before they send a request again.
#[derive(Default)]
pub struct Retries(Mutex<Vec<TaskWaker>>);

impl Retries {
    /// Wakes the tasks. Called about once a second, and after a change of the placement.
    pub fn wake(&self) {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(TaskWaker::wake);
    }

    async fn wait(&self) {
        let mut has_waited = false;
        poll_fn(|context| {
            if std::mem::replace(&mut has_waited, true) {
                return Poll::Ready(());
            }
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// The connections to the other daemons, for one member.
#[derive(Clone)]
pub struct Network {
    /// The daemon that runs the member.
    pub daemon: DaemonId,
    /// Passes requests to other members of the same daemon.
    pub router: Arc<Router>,
    pub network: Arc<dyn Transport>,
    pub placement: Arc<Placement>,
    pub retries: Rc<Retries>,
    /// Wakes the thread of the member when a reply has arrived.
    pub waker: Waker,
}

impl Network {
    fn call_daemon(
        &self,
        to: DaemonId,
        request: Vec<u8>,
        reply_bytes_max: u32,
        deadline: Instant,
    ) -> impl Future<Output = Result<Vec<u8>>> + use<> {
        let (sender, receiver) = oneshot::channel();
        let waker = self.waker.clone();
        if to == self.daemon {
            let reply = Replier::Member(sender, waker);
            self.router.pass(PeerRequest { bytes: request, reply, deadline });
        } else {
            let done = move |reply| {
                // The service waits for the reply until it ends.
                let _ = sender.send(reply);
                waker.wake();
            };
            self.network.call(number(to), request, reply_bytes_max, deadline, Box::new(done));
        }
        let ended = move |_| Err(Error::new(ErrorKind::Unavailable, "call daemon", to.0.to_string()));
        receiver.map(move |reply| reply.unwrap_or_else(ended))
    }

    /// Sends a request to the daemon of a member. If it was not executed, or can be repeated, it is
    /// sent again until the time limit: another daemon may run the member.
    async fn call_member(
        self,
        to: MemberId,
        request: Vec<u8>,
        reply_bytes_max: u32,
        is_repeatable: bool,
    ) -> Result<Vec<u8>> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let (daemon, version) = self.placement.daemon(to);
            let Some(daemon) = daemon else {
                return Err(Error::new(ErrorKind::Unavailable, "call member", to.0.to_string()));
            };
            match self.call_daemon(daemon, request.clone(), reply_bytes_max, deadline).await {
                Err(error)
                    if error.kind == ErrorKind::Unavailable
                        && (is_repeatable || was_not_executed(&error))
                        && Instant::now() < deadline =>
                {
                    if self.placement.daemon(to).1 == version {
                        self.retries.wait().await;
                    }
                }
                reply => return reply,
            }
        }
    }
}

impl Peers for Network {
    fn call(
        &self,
        to: MemberId,
        request: Vec<u8>,
        reply_bytes_max: u32,
        is_repeatable: bool,
    ) -> LocalBoxFuture<'static, Result<Vec<u8>>> {
        if self.placement.has_replicas {
            return self.clone().call_member(to, request, reply_bytes_max, is_repeatable).boxed_local();
        }
        let (daemon, _) = self.placement.daemon(to);
        // All members are in the first placement.
        let daemon = daemon.unwrap_or(DaemonId(to.0));
        self.call_daemon(daemon, request, reply_bytes_max, Instant::now() + ANSWER_TIMEOUT).boxed_local()
    }

    fn traffic(&self) -> NetworkCounters {
        let Traffic { sent_bytes, received_bytes, sent_saved_bytes, received_saved_bytes } =
            self.network.traffic();
        NetworkCounters { sent_bytes, received_bytes, sent_saved_bytes, received_saved_bytes }
    }
}

impl BackupDaemons for Network {
    fn send(&self, to: DaemonId, message: Vec<u8>) -> LocalBoxFuture<'static, Result<()>> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let confirmed = self.call_daemon(to, message, CONFIRMATION_BYTES_MAX, deadline);
        let decoded = |reply: Result<Vec<u8>>| {
            let reply = reply?;
            let result: Result<Reply<'_>, WireFailure> = decode(&reply)?;
            result.map(drop).map_err(|failure| failure.into_error("change a backup", b""))
        };
        confirmed.map(decoded).boxed_local()
    }
}
