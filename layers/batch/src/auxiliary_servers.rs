//! The auxiliary servers that are connected to this primary server, and their verifications. The
//! functions that execute requests do not block, so that a thread that serves connections can call
//! them: threads that commit batches wait for the verdicts. docs/formats/batch-protocol.md
//! describes the messages.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use quell_batch_service::{
    Auxiliary, AuxiliarySummary, BatchState, PROTOCOL, Reply, Request, Verdict, VerificationResult,
    VerificationTask,
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
/// server verifies the batch itself.
const ATTEMPTS: usize = 3;
/// The time in which an auxiliary server must repeat its request for a batch after a request has
/// timed out.
const GRACE: Duration = Duration::from_secs(5);
/// The interval at which a thread that waits for an auxiliary server checks whether an auxiliary
/// server has left.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The default time for which a commit waits until an auxiliary server is idle, and then for its
/// verdict.
pub const VERIFICATION_LIMIT: Duration = Duration::from_secs(600);

/// Sends the reply to a request.
pub type SendReply = Box<dyn FnOnce(Vec<u8>) + Send>;

/// The auxiliary servers that are connected.
pub struct AuxiliaryServers {
    /// The random number of the store.
    store: u128,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The numbers of the clients that have stated this version of the protocol.
    greeted: HashSet<u64>,
    /// The auxiliary servers, by the numbers of their clients.
    servers: BTreeMap<u64, ConnectedServer>,
    /// The time for which a commit waits for an idle auxiliary server, and then again for its
    /// verdict.
    limit: Duration,
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
    /// The auxiliary server waits for a batch, at most until this time.
    Idle(SendReply, Instant),
    /// The auxiliary server verifies a batch.
    Verifying { verification: u64, batch: u64 },
    /// The auxiliary server has ended a verification, and has not requested the next batch yet.
    None,
    /// The auxiliary server has not ended the verification of a batch within the limit, and has not
    /// requested the next batch yet. No commit waits for it.
    Overdue { batch: u64 },
}

/// The end of a verification.
enum Outcome {
    Verified(Vec<u8>),
    Failed(Failure),
    /// The auxiliary server has left, or this process ends.
    Lost,
    /// The verification has not ended within this time.
    Overdue(Duration),
}

/// A verification that has ended.
struct Ended {
    verification: u64,
    /// The name of the auxiliary server.
    server: String,
    outcome: Outcome,
}

impl std::fmt::Debug for AuxiliaryServers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuxiliaryServers").finish_non_exhaustive()
    }
}

impl AuxiliaryServers {
    pub(crate) fn new(store: u128) -> AuxiliaryServers {
        let state = State {
            greeted: HashSet::new(),
            servers: BTreeMap::new(),
            limit: VERIFICATION_LIMIT,
            results: HashMap::new(),
            is_closed: false,
        };
        AuxiliaryServers { store, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Sets the time for which a commit waits until an auxiliary server is idle, and then for its
    /// verdict. After this time the primary server verifies the batch itself.
    pub fn set_limit(&self, limit: Duration) {
        lock(&self.state).limit = limit;
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

    /// Returns the reply if the request is answered at once.
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
            Request::Hello { protocol: PROTOCOL } => {
                lock(&self.state).greeted.insert(client);
                Some((Reply::Welcome { store: self.store }, reply))
            }
            Request::Hello { protocol } => Some((failed(&other_version(protocol)), reply)),
            // The rules of the verification belong to the version of the protocol.
            Request::NextVerification { .. } if !lock(&self.state).greeted.contains(&client) => {
                let source = Some("the auxiliary server has not stated its version of the protocol".into());
                let error = Error::new(ErrorKind::Unsupported, "wait for a batch", "");
                Some((failed(&Error { source, ..error }), reply))
            }
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

    /// Records that an auxiliary server waits for a batch. If it has not ended a verification, this
    /// verification is lost. Returns the reply if this process ends.
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

    /// Records the result of a verification. Returns false if the verification is not the current
    /// one of the auxiliary server.
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

    /// Must be called when a client has ended, whether it was an auxiliary server or not.
    pub fn ended(&self, client: u64) {
        let mut state = lock(&self.state);
        state.greeted.remove(&client);
        let removed = state.servers.remove(&client);
        drop(state);
        if removed.is_some() {
            self.changed.notify_all();
        }
    }

    /// Abandons all verifications, and refuses later requests, because this process ends.
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

    /// Gives a task to an auxiliary server, and waits for the end of the verification. If all
    /// auxiliary servers have tasks, waits until one is idle. `None` if there are no auxiliary
    /// servers, if none becomes idle within the limit, or if the task is too long.
    fn run(&self, task: &VerificationTask) -> Option<Ended> {
        let batch = task.record.number;
        let state = lock(&self.state);
        let (is_alone, limit) = (state.servers.is_empty(), state.limit);
        drop(state);
        if is_alone {
            return None;
        }
        let verification = random_number() as u64;
        let message = encode(&Reply::Verification { verification, task: Box::new(task.clone()) });
        if message.len() > TASK_BYTES_MAX {
            tracing::info!(batch, bytes = message.len(), "the task is too long for an auxiliary server");
            return None;
        }
        // All operations on names wait for the commit of a submitted batch, so this process
        // verifies it at once if no auxiliary server is idle.
        let wait = match task.record.state {
            BatchState::Submitted { .. } => Duration::ZERO,
            _ => limit,
        };
        let (client, server, reply) = self.assign(verification, batch, wait)?;
        reply(message);
        Some(Ended { verification, server, outcome: self.wait_for(client, verification, limit) })
    }

    /// Assigns a verification to an idle auxiliary server. Returns the number of its client, its
    /// name, and the function with which the caller must send it the task.
    fn assign(&self, verification: u64, batch: u64, limit: Duration) -> Option<(u64, String, SendReply)> {
        let end = Instant::now() + limit;
        // The list is dropped after the lock is released.
        let mut left = Vec::new();
        let mut state = lock(&self.state);
        loop {
            left.extend(state.take_left());
            if state.is_closed || state.servers.values().all(ConnectedServer::is_overdue) {
                return None;
            }
            let now = Instant::now();
            let waits =
                |server: &ConnectedServer| matches!(server.work, Work::Idle(_, deadline) if now < deadline);
            let idle = state.servers.iter_mut().find(|(_, server)| waits(server));
            if let Some((client, server)) = idle {
                let work = std::mem::replace(&mut server.work, Work::Verifying { verification, batch });
                let Work::Idle(reply, _) = work else { return None };
                return Some((*client, server.name.clone(), reply));
            }
            if now >= end {
                drop(state);
                if !limit.is_zero() {
                    tracing::warn!(
                        batch,
                        limit_s = limit.as_secs(),
                        "no auxiliary server became idle within the limit"
                    );
                }
                return None;
            }
            state = self.wait(state, end);
        }
    }

    fn wait_for(&self, client: u64, verification: u64, limit: Duration) -> Outcome {
        let end = Instant::now() + limit;
        let mut state = lock(&self.state);
        loop {
            match state.results.remove(&verification) {
                Some(VerificationResult::Verified(verdict)) => return Outcome::Verified(verdict.0),
                Some(VerificationResult::Failed(failure)) => return Outcome::Failed(failure),
                None => {}
            }
            let Some(server) = state.servers.get_mut(&client) else { return Outcome::Lost };
            match server.work {
                Work::Verifying { verification: current, batch } if current == verification => {
                    if Instant::now() >= end {
                        server.work = Work::Overdue { batch };
                        server.failed += 1;
                        drop(state);
                        // Other commits do not wait for this auxiliary server any more.
                        self.changed.notify_all();
                        return Outcome::Overdue(limit);
                    }
                }
                _ => return Outcome::Lost,
            }
            state = self.wait(state, end);
        }
    }

    /// Waits until the state may have changed, or until `end`.
    fn wait<'a>(
        &self,
        state: std::sync::MutexGuard<'a, State>,
        end: Instant,
    ) -> std::sync::MutexGuard<'a, State> {
        let rest = end.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout(state, rest.min(LOOK_INTERVAL));
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
    }
}

impl State {
    /// Removes the servers that do not wait for a batch any more and have not requested one again.
    /// The pending replies are dropped with the returned servers.
    fn take_left(&mut self) -> Vec<ConnectedServer> {
        let now = Instant::now();
        let has_left = |server: &ConnectedServer| matches!(server.work, Work::Idle(_, deadline) if deadline + GRACE <= now);
        let left: Vec<u64> =
            self.servers.iter().filter(|(_, server)| has_left(server)).map(|(client, _)| *client).collect();
        left.iter().filter_map(|client| self.servers.remove(client)).collect()
    }
}

impl ConnectedServer {
    fn is_overdue(&self) -> bool {
        matches!(self.work, Work::Overdue { .. })
    }

    fn summary(&self) -> AuxiliarySummary {
        let batch = match self.work {
            Work::Verifying { batch, .. } | Work::Overdue { batch } => Some(batch),
            Work::Idle(..) | Work::None => None,
        };
        AuxiliarySummary { name: self.name.clone(), batch, verified: self.verified, failed: self.failed }
    }
}

fn failed(error: &Error) -> Reply {
    Reply::Failed(Failure::new(error))
}

/// The auxiliary servers of a store, and its directory, to which they write their tables.
pub(crate) struct StoreVerifiers<'a> {
    pub(crate) servers: &'a AuxiliaryServers,
    pub(crate) dir: &'a StoreDir,
}

impl StoreVerifiers<'_> {
    /// Reads a verdict, and takes its tables.
    fn take(&self, verification: u64, bytes: &[u8], task: &VerificationTask) -> Result<Verdict> {
        let verdict = Verdict::decode(bytes, task)?;
        take_tables(self.dir, verification, verdict.tables())?;
        Ok(verdict)
    }
}

impl Auxiliary for StoreVerifiers<'_> {
    fn verify(&self, task: &VerificationTask) -> Result<Option<Verdict>> {
        let batch = task.record.number;
        for _ in 0..ATTEMPTS {
            let Some(Ended { verification, server, outcome }) = self.servers.run(task) else {
                return Ok(None);
            };
            let taken = match &outcome {
                Outcome::Verified(bytes) => self.take(verification, bytes, task).map(Some),
                Outcome::Failed(_) | Outcome::Lost | Outcome::Overdue(_) => Ok(None),
            };
            if let Ok(Some(verdict)) = taken {
                return Ok(Some(verdict));
            }
            // The other files of the auxiliary server are removed as garbage.
            let _ = remove_verification(self.dir, verification);
            match outcome {
                Outcome::Lost => tracing::warn!(batch, ?server, "an auxiliary server was lost"),
                Outcome::Failed(failure) if failure.kind() == ErrorKind::InvalidInput => {
                    let error = failure.into_error("verify batch", batch.to_string().as_bytes());
                    tracing::warn!(batch, ?server, %error, "an auxiliary server has refused a batch");
                    return Err(error);
                }
                // An error of the files on the node of the auxiliary server, or a verdict that
                // cannot be used. If the batch is the reason, the verification by the primary
                // server fails as well.
                Outcome::Failed(failure) => {
                    let error = failure.into_error("verify batch", batch.to_string().as_bytes());
                    tracing::warn!(batch, ?server, %error, "an auxiliary server could not verify a batch");
                    return Ok(None);
                }
                Outcome::Verified(_) => {
                    if let Err(error) = taken {
                        tracing::warn!(batch, ?server, %error, "the verdict of an auxiliary server is refused");
                    }
                    return Ok(None);
                }
                Outcome::Overdue(limit) => {
                    let limit_s = limit.as_secs();
                    tracing::warn!(
                        batch,
                        ?server,
                        limit_s,
                        "an auxiliary server has not verified a batch within the limit"
                    );
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }
}
