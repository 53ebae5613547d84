//! One of several groups of servers of a store: the blobs that it has, and the requests about joint
//! transactions. Servers of different groups do not communicate with each other. Clients carry the
//! statements of the servers, with keyed hashes that clients cannot compute.
//! docs/decisions/0035-groups-of-servers.md describes the protocol.

use std::fmt;

use quell_vfs::{Error, ErrorKind};
use quell_wire::blob::{
    GROUPS_MAX, JOINT_BYTES_MAX, JointDecision, JointId, JointReply, JointRequest, Outcome, Part,
    Preparation, Proof, Refusal, Reply, Request, Transaction, UNDECIDED_MAX, group_of,
};
use quell_wire::{Failure, encode};

use crate::joint::{JointStep, invalid};
use crate::queue::CommitResult;
use crate::store::OpenStore;

/// The longest time for which commits wait for a snapshot of several groups, in milliseconds.
const HOLD_MS_MAX: u32 = 500;

/// The group of a server, and the number of groups of the store.
#[derive(Clone)]
pub struct Group {
    number: u32,
    count: u32,
    key: [u8; 32],
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("number", &self.number).field("count", &self.count).finish()
    }
}

impl Group {
    /// Returns the group `number`, from 0, of `count`. All servers of the store have the same
    /// secret, and its clients do not know it.
    ///
    /// # Errors
    /// `InvalidInput` if the number or the count is out of bounds.
    pub fn new(number: u32, count: u32, secret: &[u8; 32]) -> Result<Group, Error> {
        if number >= count || count as usize > GROUPS_MAX {
            return Err(Error::new(ErrorKind::InvalidInput, "use", format!("group {number} of {count}")));
        }
        Ok(Group { number, count, key: blake3::derive_key("quell blob 1 joint transactions", secret) })
    }

    /// Refuses a request that concerns a blob of another group.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Refusal> {
        match request {
            Request::Read { name, .. } | Request::Stat { name, .. } | Request::NextData { name, .. } => {
                self.check_name(name)
            }
            Request::Commit(transaction) | Request::CommitWritten { transaction, .. } => {
                self.check_transaction(transaction)
            }
            Request::Joint(JointRequest::Prepare(preparation)) => {
                self.check_transaction(&preparation.transaction)
            }
            _ => Ok(()),
        }
    }

    /// Refuses a transaction that concerns a blob of another group.
    pub(crate) fn check_transaction(&self, transaction: &Transaction) -> Result<(), Refusal> {
        let reads = transaction.reads.iter().filter(|read| read.part != Part::NamesWithPrefix);
        let operations = transaction.operations.iter().flat_map(|operation| operation.names());
        reads.map(|read| &read.name[..]).chain(operations).try_for_each(|name| self.check_name(name))
    }

    fn check_name(&self, name: &[u8]) -> Result<(), Refusal> {
        let group = group_of(name, self.count);
        if group == self.number {
            return Ok(());
        }
        let reason = format!("it belongs to group {group}, and not to {}: open rados://POOL", self.number);
        Err(Error { source: Some(reason.into()), ..Error::new(ErrorKind::InvalidInput, "use", name) }.into())
    }

    /// Executes a request about joint transactions, and passes the reply to `replied`: at once, or
    /// on the thread that commits.
    pub(crate) fn execute(
        &self,
        store: &OpenStore,
        request: JointRequest,
        replied: impl FnOnce(Reply) + Send + 'static,
    ) {
        match request {
            JointRequest::Prepare(preparation) => self.prepare(store, preparation, replied),
            JointRequest::Commit { id, participants, votes } => {
                let proves = |(group, vote): (&u32, &Proof)| {
                    Group::is_proof(vote, &self.vote(id, self.number, &participants, *group))
                };
                let are_all = votes.len() == participants.len() && participants.contains(&self.number);
                if !are_all || !participants.iter().zip(&votes).all(proves) {
                    return replied(not_proved());
                }
                let step = move |has_operations| JointStep::Commit { id, participants, has_operations };
                self.decide(store, id, Some(id), step, replied);
            }
            JointRequest::Resolve(id) => {
                let group = self.number;
                self.decide(store, id, None, move |_| JointStep::Resolve { id, group }, replied);
            }
            JointRequest::Apply(decision) => {
                let JointDecision { id, coordinator, outcome, proof } = decision;
                if !Group::is_proof(&proof, &self.decision(id, coordinator, outcome)) {
                    return replied(not_proved());
                }
                let confirmation = self.confirmation(id, self.number);
                let applied = move |result: CommitResult| {
                    replied(match result {
                        Ok(_) => Reply::Joint(JointReply::Applied { confirmation }),
                        Err(refusal) => Reply::Refused(refusal),
                    });
                };
                let committed = (outcome == Outcome::Committed).then_some(id);
                let step =
                    move |has_operations| JointStep::Apply { id, coordinator, outcome, has_operations };
                store.submit_joint(committed, step, applied);
            }
            JointRequest::Forget { id, participants, confirmations } => {
                let proves = |(group, confirmation): (&u32, &Proof)| {
                    Group::is_proof(confirmation, &self.confirmation(id, *group))
                };
                let are_all = participants.len() == confirmations.len();
                if !are_all || !participants.iter().zip(&confirmations).all(proves) {
                    return replied(not_proved());
                }
                store.submit_joint(
                    None,
                    move |_| JointStep::Forget { id, participants },
                    |result| {
                        replied(match result {
                            Ok(_) => Reply::Done,
                            Err(refusal) => Reply::Refused(refusal),
                        });
                    },
                );
            }
            JointRequest::Undecided => replied(self.undecided(store)),
            JointRequest::Hold(milliseconds) => {
                store.hold(milliseconds.min(HOLD_MS_MAX));
                replied(Reply::Done);
            }
            JointRequest::Compare(_) => replied(failed(&invalid("it compares no snapshot"))),
        }
    }

    fn prepare(
        &self,
        store: &OpenStore,
        preparation: Preparation,
        replied: impl FnOnce(Reply) + Send + 'static,
    ) {
        let Preparation { id, coordinator, ref participants, ref transaction, .. } = preparation;
        let is_valid = participants.is_sorted_by(|a, b| a < b)
            && participants.iter().all(|group| *group < self.count)
            && participants.contains(&self.number)
            && participants.contains(&coordinator)
            && transaction.id.is_none()
            && (transaction.snapshot.is_some() || transaction.reads.is_empty());
        if !is_valid || encode(transaction).len() > JOINT_BYTES_MAX {
            return replied(failed(&invalid("its part in a group has more than 1 MiB, or a wrong form")));
        }
        let vote = self.vote(id, coordinator, participants, self.number);
        store.submit_preparation(preparation, move |result| {
            replied(match result {
                Ok(committed) => Reply::Joint(JointReply::Prepared { committed, vote }),
                Err(refusal) => Reply::Refused(refusal),
            });
        });
    }

    /// Executes a step at the coordinator, and replies with its decision.
    fn decide(
        &self,
        store: &OpenStore,
        id: JointId,
        committed: Option<JointId>,
        step: impl FnOnce(bool) -> JointStep,
        replied: impl FnOnce(Reply) + Send + 'static,
    ) {
        let (group, of) = (self.clone(), store.clone());
        store.submit_joint(committed, step, move |result| {
            replied(match result.and_then(|_| Ok(of.joint_decision(id)?)) {
                Ok((outcome, unconfirmed)) => {
                    let proof = group.decision(id, group.number, outcome);
                    let decision = JointDecision { id, coordinator: group.number, outcome, proof };
                    Reply::Joint(JointReply::Decided { decision, unconfirmed })
                }
                Err(refusal) => Reply::Refused(refusal),
            });
        });
    }

    fn undecided(&self, store: &OpenStore) -> Reply {
        match store.joint_undecided() {
            Ok(found) => {
                let all = found.into_iter().map(|(id, coordinator)| (id, coordinator.unwrap_or(self.number)));
                Reply::Joint(JointReply::Undecided(all.take(UNDECIDED_MAX).collect()))
            }
            Err(error) => failed(&error),
        }
    }

    fn vote(&self, id: JointId, coordinator: u32, participants: &[u32], group: u32) -> Proof {
        self.proof(&encode(&("vote", id, coordinator, participants, group)))
    }

    fn decision(&self, id: JointId, coordinator: u32, outcome: Outcome) -> Proof {
        self.proof(&encode(&("decision", id, coordinator, outcome)))
    }

    fn confirmation(&self, id: JointId, group: u32) -> Proof {
        self.proof(&encode(&("confirmation", id, group)))
    }

    fn proof(&self, statement: &[u8]) -> Proof {
        Proof(*blake3::keyed_hash(&self.key, statement).as_bytes())
    }

    /// Compares two proofs in a time that does not depend on them.
    fn is_proof(found: &Proof, expected: &Proof) -> bool {
        blake3::Hash::from_bytes(found.0) == blake3::Hash::from_bytes(expected.0)
    }
}

fn failed(error: &Error) -> Reply {
    Reply::Failed(Failure::new(error))
}

fn not_proved() -> Reply {
    let source = Some("a statement of another server is not authentic".into());
    let error = Error::new(ErrorKind::PermissionDenied, "decide", "transaction over several groups");
    failed(&Error { source, ..error })
}
