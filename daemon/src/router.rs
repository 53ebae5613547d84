//! The requests of members: each is for a member that this daemon runs, or for a backup.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Instant;

use quell_transport::local::Waker;
use quell_transport::peer::{Handler, Reply, Request};
use quell_wire::decode_first;
use quell_wire::pool::{MemberId, Route};

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
        self.waker.wake();
    }
}

enum Destination {
    Running(Inbox),
    /// The daemon will run the member, or another daemon has not learned yet that it does not.
    Waiting(Vec<PeerRequest>),
}

/// Passes requests to the threads of the members and of the backups.
pub struct Router {
    members: Mutex<HashMap<MemberId, Destination>>,
    backups: mpsc::Sender<Job>,
}

impl Router {
    /// Returns a router that passes messages for backups to `backups`.
    pub fn new(backups: mpsc::Sender<Job>) -> Router {
        Router { members: Mutex::default(), backups }
    }

    fn members(&self) -> MutexGuard<'_, HashMap<MemberId, Destination>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the requests for a member to its thread from now on.
    pub fn add(&self, member: MemberId, inbox: Inbox) {
        let replaced = self.members().insert(member, Destination::Running(inbox.clone()));
        if let Some(Destination::Waiting(requests)) = replaced {
            requests.into_iter().for_each(|request| inbox.push(request));
        }
    }

    fn pass_to_member(&self, to: MemberId, request: PeerRequest) {
        let mut members = self.members();
        match members.entry(to).or_insert_with(|| Destination::Waiting(Vec::new())) {
            Destination::Running(inbox) => {
                let inbox = inbox.clone();
                drop(members);
                inbox.push(request);
            }
            Destination::Waiting(waiting) => {
                let now = Instant::now();
                // A reply that is dropped is an error for the sender.
                waiting.retain(|request| request.deadline > now);
                if waiting.len() < WAITING_MAX {
                    waiting.push(request);
                }
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
        self.pass(PeerRequest { bytes, reply: Replier::Daemon(reply), deadline });
    }
}
