//! The auxiliary servers that are connected to this primary server, and their verifications. No
//! function of the requests blocks, so that a thread that serves connections can call it: threads
//! that commit batches wait for the verdicts. docs/formats/batch-protocol.md describes the
//! messages.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use quell_batch_service::{
    Auxiliary, AuxiliarySummary, PROTOCOL, Reply, Request, Verdict, VerificationResult, VerificationTask,
};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::{Failure, decode, encode};

use crate::name_requests::{BEYOND_LIMITS, other_version, refuse};
use crate::random::random_number;
use crate::store_dir::StoreDir;
use crate::verification_dir::{remove_verification, take_tables};

/// The largest message with a task, in bytes.
pub(crate) const TASK_BYTES_MAX: usize = 1 << 20;
/// After this many auxiliary servers were lost during the verification of one batch, the primary
/// server verifies it itself.
const ATTEMPTS: usize = 3;
/// The time in which an auxiliary server that has waited for a batch in vain requests one again.
const GRACE: Duration = Duration::from_secs(5);
/// How often a thread that waits for an auxiliary server looks whether one has left.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Sends the reply to a request.
pub type SendReply = Box<dyn FnOnce(Vec<u8>) + Send>;

/// The auxiliary servers that are connected.
pub struct AuxiliaryServers {
    /// The random number of the store.
    store: u128,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// By the number of their client.
    servers: BTreeMap<u64, ConnectedServer>,
    /// The results that the threads which wait for them have not taken yet, by the number of the
    /// verification.
    results: HashMap<u64, VerificationResult>,
    is_closed: bool,
}

struct ConnectedServer {
    name: String,
    work: Work,
    verified: u64,
    failed: u64,
}

enum Work {
    /// It waits for a batch, at most until the time.
    Idle(SendReply, Instant),
    /// It has a batch.
    Verifying { verification: u64, batch: u64 },
    /// It has ended a verification, and has not requested the next batch yet.
    None,
}

/// The end of a verification.
enum Outcome {
    Verified(Vec<u8>),
    Failed(Failure),
    /// The auxiliary server has left, or this process ends.
    Lost,
}

impl std::fmt::Debug for AuxiliaryServers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuxiliaryServers").finish_non_exhaustive()
    }
}

impl AuxiliaryServers {
    pub(crate) fn new(store: u128) -> AuxiliaryServers {
        AuxiliaryServers { store, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Executes an encoded request of an auxiliary server, which has proved the commit key and has
    /// the number `client`. The sender waits for the reply until `deadline`.
    pub fn execute(&self, client: u64, request: &[u8], deadline: Instant, reply: SendReply) {
        let answer = match decode(request) {
            Ok(request) => self.perform(client, request, deadline, reply),
            Err(error) => Some((failed(&error), reply)),
        };
        if let Some((message, reply)) = answer {
            reply(encode(&message));
        }
    }

    /// Returns the reply, if the request is answered now.
    fn perform(
        &self,
        client: u64,
        request: Request,
        deadline: Instant,
        reply: SendReply,
    ) -> Option<(Reply, SendReply)> {
        if !request.is_within_limits() {
            return Some((failed(&refuse(BEYOND_LIMITS)), reply));
        }
        match request {
            Request::Hello { protocol: PROTOCOL } => Some((Reply::Welcome { store: self.store }, reply)),
            Request::Hello { .. } => Some((failed(&other_version()), reply)),
            Request::NextVerification { name } => {
                self.request_next(client, name, deadline, reply).map(|reply| {
                    let source = Some("the server ends".into());
                    let error = Error::new(ErrorKind::Unavailable, "wait for a batch", "");
                    (failed(&Error { source, ..error }), reply)
                })
            }
            Request::Verdict { verification, result } => {
                let answer = match self.end_verification(client, verification, result) {
                    true => Reply::Done,
                    false => {
                        let source = Some("the verification was given up".into());
                        failed(&Error { source, ..Error::new(ErrorKind::Stale, "end the verification", "") })
                    }
                };
                Some((answer, reply))
            }
            _ => {
                let source = Some("the key is one for auxiliary servers only".into());
                let error = Error::new(ErrorKind::PermissionDenied, "execute a request", "");
                Some((failed(&Error { source, ..error }), reply))
            }
        }
    }

    /// Notes that an auxiliary server waits for a batch. A verification that it has not ended is
    /// lost. Returns the reply if this process ends.
    fn request_next(
        &self,
        client: u64,
        name: String,
        deadline: Instant,
        reply: SendReply,
    ) -> Option<SendReply> {
        let mut state = lock(&self.state);
        if state.is_closed {
            return Some(reply);
        }
        let known = state.servers.entry(client).or_insert_with(|| ConnectedServer {
            name: String::new(),
            work: Work::None,
            verified: 0,
            failed: 0,
        });
        known.name = name;
        // The sender does not wait for the reply to an earlier request any more.
        let earlier = std::mem::replace(&mut known.work, Work::Idle(reply, deadline));
        let left = state.take_left();
        drop(state);
        drop((earlier, left));
        self.changed.notify_all();
        None
    }

    /// Notes the result of a verification. Returns false if the auxiliary server does not have it.
    fn end_verification(&self, client: u64, verification: u64, result: VerificationResult) -> bool {
        let mut state = lock(&self.state);
        let Some(server) = state.servers.get_mut(&client) else { return false };
        let has_it =
            matches!(server.work, Work::Verifying { verification: current, .. } if current == verification);
        if has_it {
            match result {
                VerificationResult::Verified(_) => server.verified += 1,
                VerificationResult::Failed(_) => server.failed += 1,
            }
            server.work = Work::None;
            state.results.insert(verification, result);
            drop(state);
            self.changed.notify_all();
        }
        has_it
    }

    /// A client has ended. It may have been no auxiliary server.
    pub fn ended(&self, client: u64) {
        let removed = lock(&self.state).servers.remove(&client);
        if removed.is_some() {
            self.changed.notify_all();
        }
    }

    /// Gives all verifications up, and refuses later requests: this process ends.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        let servers = std::mem::take(&mut state.servers);
        drop(state);
        self.changed.notify_all();
        for server in servers.into_values() {
            if let Work::Idle(reply, _) = server.work {
                let source = Some("the server ends".into());
                let error = Error::new(ErrorKind::Unavailable, "wait for a batch", "");
                reply(encode(&failed(&Error { source, ..error })));
            }
        }
    }

    /// Returns the auxiliary servers, in the order of their names.
    pub fn summaries(&self) -> Vec<AuxiliarySummary> {
        let mut state = lock(&self.state);
        let left = state.take_left();
        let mut summaries: Vec<_> = state.servers.values().map(ConnectedServer::summary).collect();
        drop(state);
        drop(left);
        summaries.sort_by(|left, right| left.name.cmp(&right.name));
        summaries
    }

    /// Gives a task to an auxiliary server, waits for its end, and returns the number of the
    /// verification. Waits if all of them have tasks. `None` if there are none.
    fn run(&self, task: &VerificationTask) -> Option<(u64, Outcome)> {
        if lock(&self.state).servers.is_empty() {
            return None;
        }
        let verification = random_number() as u64;
        let message = encode(&Reply::Verification { verification, task: Box::new(task.clone()) });
        if message.len() > TASK_BYTES_MAX {
            return None;
        }
        let (client, reply) = self.assign(verification, task.record.number)?;
        reply(message);
        Some((verification, self.wait_for(client, verification)))
    }

    fn assign(&self, verification: u64, batch: u64) -> Option<(u64, SendReply)> {
        // It is dropped after the lock is released.
        let mut left = Vec::new();
        let mut state = lock(&self.state);
        loop {
            left.extend(state.take_left());
            if state.is_closed || state.servers.is_empty() {
                return None;
            }
            let now = Instant::now();
            let waits =
                |server: &ConnectedServer| matches!(server.work, Work::Idle(_, deadline) if now < deadline);
            let idle = state.servers.iter_mut().find(|(_, server)| waits(server));
            if let Some((client, server)) = idle {
                let work = std::mem::replace(&mut server.work, Work::Verifying { verification, batch });
                let Work::Idle(reply, _) = work else { return None };
                return Some((*client, reply));
            }
            state = self.wait(state);
        }
    }

    fn wait_for(&self, client: u64, verification: u64) -> Outcome {
        let mut state = lock(&self.state);
        loop {
            match state.results.remove(&verification) {
                Some(VerificationResult::Verified(verdict)) => return Outcome::Verified(verdict.0),
                Some(VerificationResult::Failed(failure)) => return Outcome::Failed(failure),
                None => {}
            }
            let work = state.servers.get(&client).map(|server| &server.work);
            if !matches!(work, Some(Work::Verifying { verification: current, .. }) if *current == verification)
            {
                return Outcome::Lost;
            }
            state = self.wait(state);
        }
    }

    fn wait<'a>(&self, state: std::sync::MutexGuard<'a, State>) -> std::sync::MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, LOOK_INTERVAL);
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
    }
}

impl State {
    /// Removes the servers that do not wait for a batch any more and have not requested one again.
    /// A client that has left without a reply is forgotten when this value is dropped.
    fn take_left(&mut self) -> Vec<ConnectedServer> {
        let now = Instant::now();
        let has_left = |server: &ConnectedServer| matches!(server.work, Work::Idle(_, deadline) if deadline + GRACE <= now);
        let left: Vec<u64> =
            self.servers.iter().filter(|(_, server)| has_left(server)).map(|(client, _)| *client).collect();
        left.iter().filter_map(|client| self.servers.remove(client)).collect()
    }
}

impl ConnectedServer {
    fn summary(&self) -> AuxiliarySummary {
        let batch = match self.work {
            Work::Verifying { batch, .. } => Some(batch),
            Work::Idle(..) | Work::None => None,
        };
        AuxiliarySummary { name: self.name.clone(), batch, verified: self.verified, failed: self.failed }
    }
}

fn failed(error: &Error) -> Reply {
    Reply::Failed(Failure::new(error))
}

/// The auxiliary servers of a store, and its directory, from which their tables are taken.
pub(crate) struct StoreVerifiers<'a> {
    pub(crate) servers: &'a AuxiliaryServers,
    pub(crate) dir: &'a StoreDir,
}

impl Auxiliary for StoreVerifiers<'_> {
    fn verify(&self, task: &VerificationTask) -> Result<Option<Verdict>> {
        for _ in 0..ATTEMPTS {
            let Some((verification, outcome)) = self.servers.run(task) else { return Ok(None) };
            if let Outcome::Verified(bytes) = &outcome
                && let Ok(verdict) = Verdict::decode(bytes, task)
                && take_tables(self.dir, verification, verdict.tables()).is_ok()
            {
                return Ok(Some(verdict));
            }
            // The other files of the auxiliary server are removed as garbage.
            let _ = remove_verification(self.dir, verification);
            match outcome {
                Outcome::Lost => {}
                Outcome::Failed(failure) if failure.kind() == ErrorKind::InvalidInput => {
                    let batch = task.record.number.to_string();
                    return Err(failure.into_error("verify batch", batch.as_bytes()));
                }
                // An error of the files of its node, or a verdict that cannot be used: the primary
                // server finds the error of the batch, if it is one.
                Outcome::Failed(_) | Outcome::Verified(_) => return Ok(None),
            }
        }
        Ok(None)
    }
}
