//! The requests of members: each is for a member that this daemon runs, or for a backup.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::time::Instant;

use quell_transport::local::Waker;
use quell_transport::peer::{Handler, Reply, Request, Transport};
use quell_wire::decode_first;
use quell_wire::pool::{DaemonId, MESSAGE_BYTES_MAX, MemberId, Route};

use crate::placement::{Placement, number};
use crate::request::{Job, PeerRequest, Replier, failure};

/// The largest number of requests that wait until this daemon runs their member.
const WAITING_MAX: usize = 4096;

/// The receiver of the requests for one member: a thread.
#[derive(Clone)]
pub struct Inbox {
    pub requests: mpsc::Sender<PeerRequest>,
    pub waker: Waker,
}

impl Inbox {
    fn push(&self, request: PeerRequest) {
        // After the end of the service, the reply is dropped, and the sender gets an error.
        let _ = self.requests.send(request);
    }
}

enum Destination {
    Running(Inbox),
    /// The daemon will run the member, or another daemon has not learned yet that it does not, or
    /// the daemon has released the member, and the next configuration names its new daemon.
    Waiting(Vec<PeerRequest>),
    /// Another daemon runs the member, which this daemon has released, and is not to run again.
    Released,
}

/// The connections to which requests for released members are passed.
struct Forwarding {
    /// The connections own the router.
    network: Weak<dyn Transport>,
    placement: Arc<Placement>,
    daemon: DaemonId,
}

/// Passes requests to the threads of the members and of the backups.
pub struct Router {
    members: Mutex<HashMap<MemberId, Destination>>,
    backups: mpsc::Sender<Job>,
    forwarding: OnceLock<Forwarding>,
}

impl Router {
    /// Returns a router that passes messages for backups to `backups`.
    pub fn new(backups: mpsc::Sender<Job>) -> Router {
        Router { members: Mutex::default(), backups, forwarding: OnceLock::new() }
    }

    /// Sets the connections to the other daemons, and the number of this one.
    pub fn connect(&self, network: &Arc<dyn Transport>, placement: &Arc<Placement>, daemon: DaemonId) {
        let (network, placement) = (Arc::downgrade(network), Arc::clone(placement));
        // It is set once, before members run.
        let _ = self.forwarding.set(Forwarding { network, placement, daemon });
    }

    fn members(&self) -> MutexGuard<'_, HashMap<MemberId, Destination>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the requests for a member to its thread from now on.
    pub fn add(&self, member: MemberId, inbox: Inbox) {
        let replaced = self.members().insert(member, Destination::Running(inbox.clone()));
        if let Some(Destination::Waiting(requests)) = replaced {
            requests.into_iter().for_each(|request| inbox.push(request));
            inbox.waker.wake();
        }
    }

    /// Keeps the requests for a member that this daemon has released before, and is to run again:
    /// other daemons may know of it earlier.
    pub fn expect(&self, member: MemberId) {
        if let Some(destination @ Destination::Released) = self.members().get_mut(&member) {
            *destination = Destination::Waiting(Vec::new());
        }
    }

    /// Keeps the requests for a member from now on, which this daemon releases.
    pub fn hold(&self, member: MemberId) {
        self.members().insert(member, Destination::Waiting(Vec::new()));
    }

    /// Passes the requests for a member that were held or expected to the daemon that runs it.
    pub fn release(&self, member: MemberId) {
        let mut held = Vec::new();
        if let Some(destination) = self.members().get_mut(&member)
            && let Destination::Waiting(requests) = destination
        {
            held = std::mem::take(requests);
            *destination = Destination::Released;
        }
        held.into_iter().for_each(|request| self.forward(member, request));
    }

    /// Sends a request to the daemon that runs its member.
    fn forward(&self, to: MemberId, request: PeerRequest) {
        let PeerRequest { bytes, reply, deadline } = request;
        let target = self.forwarding.get().and_then(|Forwarding { network, placement, daemon }| {
            let target = placement.daemon(to).0.filter(|target| target != daemon)?;
            Some((network.upgrade()?, target))
        });
        // A reply that is dropped is an error for the sender.
        let Some((network, target)) = target else { return };
        let done = move |answer: quell_vfs::Result<Vec<u8>>| {
            if let Ok(answer) = answer {
                reply.send(answer);
            }
        };
        network.call(number(target), bytes, MESSAGE_BYTES_MAX as u32, deadline, Box::new(done));
    }

    fn pass_to_member(&self, to: MemberId, request: PeerRequest) {
        let mut members = self.members();
        match members.entry(to).or_insert_with(|| Destination::Waiting(Vec::new())) {
            Destination::Running(inbox) => {
                // Under the lock, so that the request arrives before the member is released.
                inbox.push(request);
                let waker = inbox.waker.clone();
                drop(members);
                waker.wake();
            }
            Destination::Waiting(waiting) => {
                let now = Instant::now();
                // A reply that is dropped is an error for the sender.
                waiting.retain(|request| request.deadline > now);
                if waiting.len() < WAITING_MAX {
                    waiting.push(request);
                }
            }
            Destination::Released => {
                drop(members);
                self.forward(to, request);
            }
        }
    }
}

impl Router {
    /// Passes a request to a member or a backup of this daemon.
    pub fn pass(&self, request: PeerRequest) {
        let PeerRequest { bytes, reply, deadline } = request;
        match decode_first(&bytes) {
            Ok((Route::Member { to, .. }, _)) => {
                self.pass_to_member(to, PeerRequest { bytes, reply, deadline })
            }
            Ok((Route::Backup, _)) => {
                // The thread ends with the process.
                let _ = self.backups.send(Job::Message(PeerRequest { bytes, reply, deadline }));
            }
            Err(error) => reply.send(failure(error)),
        }
    }
}

impl Handler for Router {
    fn handle(&self, request: Request, reply: Reply) {
        let Request { bytes, deadline, .. } = request;
        self.pass(PeerRequest { bytes: Arc::new(bytes), reply: Replier::Daemon(reply), deadline });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quell_transport::peer::ReplySink;
    use quell_wire::encode;

    use super::*;

    const MOVED: MemberId = MemberId(1);

    /// Records the answers: `None` if a request was dropped.
    #[derive(Default)]
    struct Answers(Mutex<Vec<Option<Vec<u8>>>>);

    impl ReplySink for Answers {
        fn answer(&self, _: u64, _: u64, reply: Option<Vec<u8>>) {
            self.0.lock().unwrap().push(reply);
        }
    }

    fn pass(router: &Router, answers: &Arc<Answers>) {
        let bytes = Arc::new(encode(&Route::Member { from: MemberId(0), to: MOVED }));
        let reply = Replier::Daemon(Reply::new(Arc::clone(answers) as _, 1, 1));
        router.pass(PeerRequest { bytes, reply, deadline: Instant::now() + Duration::from_secs(600) });
    }

    #[test]
    fn requests_for_a_member_that_comes_back_wait_for_it() {
        let router = Router::new(mpsc::channel().0);
        let answers = Arc::new(Answers::default());
        let dropped = || answers.0.lock().unwrap().len();
        router.hold(MOVED);
        pass(&router, &answers);
        assert_eq!(dropped(), 0);
        // There is no connection to another daemon, so requests that are passed on are dropped.
        router.release(MOVED);
        assert_eq!(dropped(), 1);
        pass(&router, &answers);
        assert_eq!(dropped(), 2);
        router.expect(MOVED);
        pass(&router, &answers);
        assert_eq!(dropped(), 2);
        // The move has failed.
        router.release(MOVED);
        assert_eq!(dropped(), 3);
        pass(&router, &answers);
        assert_eq!(dropped(), 4);
    }

    #[test]
    fn requests_for_a_member_that_was_never_here_wait_for_it() {
        let router = Router::new(mpsc::channel().0);
        let answers = Arc::new(Answers::default());
        // The configuration that names this daemon has not arrived yet; the one before it has.
        router.release(MOVED);
        pass(&router, &answers);
        assert!(answers.0.lock().unwrap().is_empty());
    }
}
