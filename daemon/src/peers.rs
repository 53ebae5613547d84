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
        request: Arc<Vec<u8>>,
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
    /// sent again until the time limit: another daemon may run the member. Without copies this is
    /// so only if the member has moved, because a daemon that has failed is not replaced.
    async fn call_member(
        self,
        to: MemberId,
        request: Vec<u8>,
        reply_bytes_max: u32,
        is_repeatable: bool,
    ) -> Result<Vec<u8>> {
        let request = Arc::new(request);
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let (daemon, version) = self.placement.daemon(to);
            let Some(daemon) = daemon else {
                return Err(Error::new(ErrorKind::Unavailable, "call member", to.0.to_string()));
            };
            let error = match self.call_daemon(daemon, Arc::clone(&request), reply_bytes_max, deadline).await
            {
                Err(error) if error.kind == ErrorKind::Unavailable => error,
                reply => return reply,
            };
            let (new_daemon, new_version) = self.placement.daemon(to);
            let can_succeed = self.placement.has_replicas || new_daemon != Some(daemon);
            if !can_succeed || !(is_repeatable || was_not_executed(&error)) || Instant::now() >= deadline {
                return Err(error);
            }
            if new_version == version {
                self.retries.wait().await;
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
        self.clone().call_member(to, request, reply_bytes_max, is_repeatable).boxed_local()
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
        let confirmed = self.call_daemon(to, Arc::new(message), CONFIRMATION_BYTES_MAX, deadline);
        let decoded = |reply: Result<Vec<u8>>| {
            let reply = reply?;
            let result: Result<Reply<'_>, WireFailure> = decode(&reply)?;
            result.map(drop).map_err(|failure| failure.into_error("change a backup", b""))
        };
        confirmed.map(decoded).boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc;

    use futures_executor::block_on;
    use quell_transport::local::{LocalServer, ServerOptions};
    use quell_transport::peer::{self, CollectedSends, Done, not_executed};
    use quell_wire::encode;
    use quell_wire::pool::{PoolDaemon, PoolMember, Route};

    use super::*;
    use crate::router::Inbox;

    const MOVED: MemberId = MemberId(1);
    const OWN: DaemonId = DaemonId(0);
    const SOURCE: DaemonId = DaemonId(1);
    const TARGET: DaemonId = DaemonId(2);

    /// The failure of the calls to the daemon that the member leaves.
    #[derive(Debug, Clone, Copy)]
    enum Failed {
        NotExecuted,
        Unknown,
    }

    /// Connections to a daemon that ends, whose requests fail, and to another one, which answers.
    #[derive(Debug)]
    struct Moving {
        failed: Failed,
        /// The placement that is valid from the first failure on.
        after: PoolMember,
        placement: Arc<Placement>,
        calls: Mutex<Vec<u64>>,
    }

    impl Transport for Moving {
        fn address(&self) -> SocketAddr {
            SocketAddr::from((Ipv4Addr::LOCALHOST, 1))
        }

        fn set_members(&self, _: &HashMap<peer::MemberId, SocketAddr>) -> Result<()> {
            Ok(())
        }

        fn call(&self, to: peer::MemberId, request: Arc<Vec<u8>>, _: u32, _: Instant, done: Done) {
            self.calls.lock().unwrap().push(to.0);
            if to == number(TARGET) {
                return done(Ok(Arc::unwrap_or_clone(request)));
            }
            self.placement.set(self, std::slice::from_ref(&self.after), &[]).unwrap();
            done(Err(match self.failed {
                Failed::NotExecuted => not_executed(ErrorKind::Unavailable, &to, "the member is stopping"),
                Failed::Unknown => Error::new(ErrorKind::Unavailable, "call", to.to_string()),
            }));
        }

        fn collect(&self) -> Box<dyn CollectedSends> {
            unreachable!("a member does not collect here")
        }

        fn traffic(&self) -> Traffic {
            Traffic::default()
        }

        fn stop(&self, _: Duration) {}
    }

    fn placed_on(daemon: DaemonId) -> PoolMember {
        PoolMember { id: MOVED, daemon, backups: Vec::new(), serves_clients: false }
    }

    /// Returns a server that gives wakers, with the directory of its socket.
    fn server() -> (LocalServer, tempfile::TempDir) {
        // Sockets are only in directories that other users cannot enter.
        let mode = std::fs::Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().permissions(mode).tempdir().unwrap();
        let server = LocalServer::bind(directory.path().join("socket"), ServerOptions::default()).unwrap();
        (server, directory)
    }

    /// Returns the connections for a member of `OWN`, in a pool without copies with `MOVED` on `on`
    /// at first, and on `after` when a request has failed.
    fn connect(failed: Failed, on: DaemonId, after: DaemonId, waker: Waker) -> (Network, Arc<Moving>) {
        let placement = Arc::new(Placement::new(false));
        let moving = Arc::new(Moving {
            failed,
            after: placed_on(after),
            placement: Arc::clone(&placement),
            calls: Mutex::default(),
        });
        placement.set(&*moving, &[placed_on(on)], &[] as &[PoolDaemon]).unwrap();
        let network = Network {
            daemon: OWN,
            router: Arc::new(Router::new(mpsc::channel().0)),
            network: Arc::clone(&moving) as _,
            placement,
            retries: Rc::default(),
            waker,
        };
        (network, moving)
    }

    /// Sends a request to a member that is on `SOURCE` at first, and on `after` when the request
    /// has failed. Returns the result and the daemons that were called.
    fn call(failed: Failed, after: DaemonId, is_repeatable: bool) -> (Result<Vec<u8>>, Vec<u64>) {
        let (server, _directory) = server();
        let (network, moving) = connect(failed, SOURCE, after, server.waker());
        let result = block_on(network.call(MOVED, b"request".to_vec(), 100, is_repeatable));
        (result, moving.calls.lock().unwrap().clone())
    }

    #[test]
    fn a_request_that_reaches_a_daemon_after_its_member_has_moved_is_sent_to_the_next_one() {
        for (failed, is_repeatable) in
            [(Failed::NotExecuted, false), (Failed::NotExecuted, true), (Failed::Unknown, true)]
        {
            let (result, calls) = call(failed, TARGET, is_repeatable);
            assert_eq!(result.unwrap(), b"request", "{failed:?}");
            assert_eq!(calls, [1, 2], "{failed:?}");
        }
    }

    #[test]
    fn a_request_that_may_have_been_executed_is_not_sent_again() {
        let (result, calls) = call(Failed::Unknown, TARGET, false);
        assert_eq!((result.unwrap_err().kind, calls), (ErrorKind::Unavailable, vec![1]));
    }

    #[test]
    fn without_copies_no_request_waits_for_a_daemon_that_has_ended() {
        for failed in [Failed::NotExecuted, Failed::Unknown] {
            let (result, calls) = call(failed, SOURCE, true);
            assert_eq!((result.unwrap_err().kind, calls), (ErrorKind::Unavailable, vec![1]));
        }
    }

    #[test]
    fn a_request_to_a_member_of_the_same_daemon_is_not_copied() {
        let (server, _directory) = server();
        let (network, _) = connect(Failed::Unknown, OWN, OWN, server.waker());
        let (requests, inbox) = mpsc::channel();
        network.router.add(MOVED, Inbox { requests, waker: server.waker() });
        let request = encode(&Route::Member { from: MemberId(0), to: MOVED });
        let address = request.as_ptr();
        let call = network.call(MOVED, request, 100, true);
        assert!(call.now_or_never().is_none(), "nothing has answered");
        assert_eq!(inbox.try_recv().unwrap().bytes.as_ptr(), address);
    }
}
