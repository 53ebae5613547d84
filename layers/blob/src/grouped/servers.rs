//! The servers of the groups of a store, for a client: requests to one or all of them, snapshots of
//! all groups, and transactions that concern several groups.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use quell_blob_service::CommitResult;
use quell_rados::{Objects, group_name};
use quell_threads::lock;
use quell_transport::peer::ClientKey;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{
    GROUP_PROTOCOL, JointId, JointReply, JointRequest, Preparation, Refusal, Reply, Request, Transaction,
    TransactionId, Version, group_of,
};
use rustix::rand::{GetRandomFlags, getrandom};

use super::joint::{JointResult, JointTransaction};
use super::locks::{LockWaits, Next, lock_of};
use super::split::Split;
use crate::backend::{Backend, TransactionState};
use crate::finder::Finder;
use crate::rados::NAME;
use crate::remote::Remote;

/// The time for which the requests of one phase of a joint transaction are repeated.
const PHASE_LIMIT: Duration = Duration::from_secs(60);
/// The pause before a request that a server could not yet execute is repeated.
const PAUSE: Duration = Duration::from_millis(5);
/// The largest number of attempts to take a snapshot of all groups, and the number of first
/// attempts that let commits continue.
const SNAPSHOT_ATTEMPTS: u32 = 50;
const SNAPSHOT_ATTEMPTS_FREE: u32 = 2;
/// The longest time for which commits wait for a snapshot of all groups, in milliseconds.
const HOLD_MS: u32 = 100;
/// The connections to the servers, and the transactions of this program.
pub(super) struct Servers {
    groups: Vec<GroupLink>,
    /// A random number, which identifies the joint transactions of this program.
    client: u128,
    last_number: AtomicU64,
}

/// The connection to the present server of a group. The first request makes it.
struct GroupLink {
    remote: OnceLock<Remote>,
    /// The settings of the connection. Only one thread at a time connects.
    finder: Mutex<FinderSettings>,
}

#[derive(Clone)]
struct FinderSettings {
    objects: Arc<dyn Objects>,
    pool: String,
    name: String,
    key: ClientKey,
    is_encrypted: bool,
}

impl Servers {
    /// Returns the servers of a store with several groups in a pool, and connects to the server of
    /// the first group.
    pub(super) fn connect(
        objects: &Arc<dyn Objects>,
        pool: &str,
        groups: u32,
        key: &ClientKey,
        is_encrypted: bool,
    ) -> Result<Servers> {
        let mut client = [0; 16];
        getrandom(&mut client, GetRandomFlags::empty())
            .map_err(|e| Error::from_io(e.into(), "draw a random number", ""))?;
        let link = |group| {
            let (objects, name) = (objects.clone(), group_name(NAME, group));
            let (pool, key) = (pool.to_owned(), key.clone());
            let finder = FinderSettings { objects, pool, name, key, is_encrypted };
            GroupLink { remote: OnceLock::new(), finder: Mutex::new(finder) }
        };
        let servers = Servers {
            groups: (0..groups).map(link).collect(),
            client: u128::from_le_bytes(client),
            last_number: AtomicU64::new(0),
        };
        servers.remote(0)?;
        Ok(servers)
    }

    pub(super) fn count(&self) -> u32 {
        self.groups.len() as u32
    }

    /// Returns the connection to the present server of a group.
    pub(super) fn remote(&self, group: u32) -> Result<&Remote> {
        let Some(link) = self.groups.get(group as usize) else {
            return Err(Error::new(ErrorKind::Damaged, "use", format!("group {group}")));
        };
        if let Some(remote) = link.remote.get() {
            return Ok(remote);
        }
        let settings = lock(&link.finder);
        if let Some(remote) = link.remote.get() {
            return Ok(remote);
        }
        let FinderSettings { objects, pool, name, key, is_encrypted } = settings.clone();
        let finder = Finder::new(objects, (&pool, &name), key, is_encrypted);
        let remote = Remote::by_rados(finder, GROUP_PROTOCOL)?;
        Ok(link.remote.get_or_init(|| remote))
    }

    /// Returns the connection to the group of a blob.
    pub(super) fn remote_of(&self, name: &[u8]) -> Result<&Remote> {
        self.remote(group_of(name, self.count()))
    }

    /// Sends a request to all groups, and returns their replies.
    pub(super) fn call_all(&self, request: &dyn Fn(usize) -> Request) -> Result<Vec<Reply>> {
        let mut sent = Vec::new();
        for group in 0..self.groups.len() {
            sent.push(self.remote(group as u32)?.send(&request(group)));
        }
        sent.into_iter().map(|sent| sent.wait()).collect()
    }

    /// Takes a snapshot of each group, so that together they are one state of the store: each
    /// snapshot was still the latest state of its group after all had begun.
    pub(super) fn begin(&self) -> Result<Vec<Box<dyn TransactionState>>> {
        for attempt in 0..SNAPSHOT_ATTEMPTS {
            let holds = attempt >= SNAPSHOT_ATTEMPTS_FREE;
            if holds {
                self.call_all(&|_| Request::Joint(JointRequest::Hold(HOLD_MS)))?;
            }
            let mut states = Vec::new();
            for (group, reply) in self.call_all(&|_| Request::Begin)?.into_iter().enumerate() {
                states.push(self.remote(group as u32)?.begun(reply)?);
            }
            let replies = self.call_all(&|group| Request::Joint(JointRequest::Compare(states[group].0)))?;
            let is_one_state = replies.iter().all(|reply| *reply == Reply::Joint(JointReply::Latest(true)));
            if holds {
                self.call_all(&|_| Request::Joint(JointRequest::Hold(0)))?;
            }
            if is_one_state {
                return Ok(states.into_iter().map(|(_, state)| state).collect());
            }
        }
        let source = Some("the groups of servers change too fast; repeat the transaction".into());
        Err(Error { source, ..Error::new(ErrorKind::Stale, "begin", "snapshot of all groups") })
    }

    /// Sends the requests of a joint transaction until it has ended.
    pub(super) fn drive(&self, joint: &mut JointTransaction) {
        let mut deadline = Instant::now() + PHASE_LIMIT;
        loop {
            let phase = joint.ended_phases();
            let requests = joint.requests();
            if requests.is_empty() {
                return;
            }
            let send = |(group, request)| {
                (group, self.remote(group).map(|remote| remote.send(&Request::Joint(request))))
            };
            let sent: Vec<_> = requests.into_iter().map(send).collect();
            let is_late = Instant::now() >= deadline;
            for (group, sent) in sent {
                let mut reply = sent.and_then(|sent| sent.wait());
                if is_late {
                    reply = reply.and(Err(Error::new(ErrorKind::TimedOut, "commit", "transaction")));
                }
                if joint.ended_phases() == phase {
                    joint.receive(group, reply);
                }
            }
            match joint.ended_phases() == phase {
                true => std::thread::sleep(PAUSE),
                false => deadline = Instant::now() + PHASE_LIMIT,
            }
        }
    }

    /// Waits after an attempt that has met a joint transaction of another client. Returns false if
    /// the operation must fail.
    fn wait(&self, waits: &mut LockWaits, group: u32, refusal: &Refusal) -> bool {
        let (id, coordinator) = match refusal {
            Refusal::Locked { id, coordinator } => (Some(*id), *coordinator),
            _ => (None, 0),
        };
        match (waits.next(id), id) {
            (Next::GiveUp, _) => return false,
            (Next::Resolve, Some(id)) => self.drive(&mut JointTransaction::resolve(id, coordinator, group)),
            (Next::Resolve, None) => {}
            (Next::Wait(delay), _) => std::thread::sleep(delay),
        }
        true
    }

    /// Reads from a group, and waits for joint transactions that have locked the data.
    pub(super) fn read<T>(&self, group: u32, mut read: impl FnMut() -> Result<T>) -> Result<T> {
        let mut waits = LockWaits::new();
        loop {
            match read() {
                Err(error) => match lock_of(&error) {
                    Some(refusal) if self.wait(&mut waits, group, &refusal) => {}
                    _ => return Err(error),
                },
                read => return read,
            }
        }
    }

    /// Commits a transaction. `versions` are the versions of the state that it has read.
    pub(super) fn commit(&self, versions: &[Version], transaction: Transaction) -> CommitResult {
        let mut split = Split::new(transaction, versions, self.count())?;
        if let [(group, part)] = &mut split.parts.iter_mut().collect::<Vec<_>>()[..] {
            // All attempts have the same identity, so that at most one of them has an effect.
            let (client, number) = (self.client, self.last_number.fetch_add(1, Ordering::Relaxed) + 1);
            let begun = self.remote(**group)?.known();
            part.transaction.id = Some(TransactionId { client, number, begun });
        }
        let mut waits = LockWaits::new();
        loop {
            let (group, refusal) = match self.attempt(&split)? {
                JointResult::Committed(results) => return Ok(split.merge(results)),
                JointResult::Refused(group, refusal) => (group, refusal),
            };
            let is_repeated = matches!(refusal, Refusal::Locked { .. } | Refusal::Aborted);
            if !is_repeated || !self.wait(&mut waits, group, &refusal) {
                return Err(split.refusal(group, refusal));
            }
            if refusal == Refusal::Aborted {
                // Another client has resolved the transaction, or the versions that this client
                // knows are too old.
                for group in split.parts.keys() {
                    self.remote(*group)?.learn_version()?;
                }
            }
        }
    }

    /// Commits a transaction, unless it meets a joint transaction of another client.
    fn attempt(&self, split: &Split) -> Result<JointResult> {
        if let [(group, part)] = &split.parts.iter().collect::<Vec<_>>()[..] {
            return Ok(match self.remote(**group)?.commit(part.transaction.clone()) {
                Ok(committed) => JointResult::Committed(BTreeMap::from([(**group, committed)])),
                Err(refusal) => JointResult::Refused(**group, refusal),
            });
        }
        split.check()?;
        let participants: Vec<u32> = split.parts.keys().copied().collect();
        let number = self.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        let id = JointId { client: self.client, number };
        let coordinator = participants[(number % participants.len() as u64) as usize];
        let mut parts = BTreeMap::new();
        for (group, part) in &split.parts {
            let begun = self.remote(*group)?.known();
            let (participants, transaction) = (participants.clone(), part.transaction.clone());
            parts.insert(*group, Preparation { id, begun, coordinator, participants, transaction });
        }
        let Some(mut joint) = JointTransaction::begin(parts) else {
            return Ok(JointResult::Committed(BTreeMap::new()));
        };
        self.drive(&mut joint);
        Ok(joint.result().cloned().unwrap_or(JointResult::Refused(coordinator, Refusal::Aborted)))
    }

    /// Returns the joint transactions that are not ended in each group.
    pub(super) fn undecided(&self) -> Result<HashSet<(u32, JointId, u32)>> {
        let mut all = HashSet::new();
        let replies = self.call_all(&|_| Request::Joint(JointRequest::Undecided))?;
        for (group, reply) in (0..).zip(replies) {
            let Reply::Joint(JointReply::Undecided(found)) = reply else {
                return Err(self.remote(group)?.unexpected(reply));
            };
            all.extend(found.into_iter().map(|(id, coordinator)| (group, id, coordinator)));
        }
        Ok(all)
    }
}
