//! The client's side of a joint transaction: the requests of each phase, and the transitions after
//! the replies. The code performs no I/O, starts no threads and reads no clock.
//! docs/decisions/0035-groups-of-servers.md describes the protocol.

use std::collections::{BTreeMap, BTreeSet};

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{
    Committed, JointDecision, JointId, JointReply, JointRequest, Outcome, Preparation, Proof, Refusal, Reply,
};

/// A joint transaction that this client has begun, or that it resolves because another client has
/// left it.
pub(crate) struct JointTransaction {
    id: JointId,
    coordinator: u32,
    /// The parts of the participants; empty if another client has begun the transaction.
    parts: BTreeMap<u32, Preparation>,
    phase: Phase,
    /// The number of phases that have ended.
    ended_phases: u32,
    result: Option<JointResult>,
}

/// The result for the program.
#[derive(Debug, Clone)]
pub(crate) enum JointResult {
    /// The transaction is committed. The results of each group.
    Committed(BTreeMap<u32, Committed>),
    /// The transaction has no effect, unless the refusal is `Failed` without an operation. A group,
    /// and its refusal.
    Refused(u32, Refusal),
}

enum Phase {
    /// The groups prepare the transaction. The votes of the groups that have prepared it.
    Prepare(BTreeMap<u32, (Committed, Proof)>),
    /// The coordinator commits the transaction.
    Commit(BTreeMap<u32, (Committed, Proof)>),
    /// The coordinator decides. If it aborts the transaction, the decision is sent to these groups.
    Resolve(BTreeSet<u32>),
    /// The groups in `left` apply the decision. After a commit, `confirmations` has an entry for
    /// each participant whose confirmation the coordinator needs: `None` until it is received.
    Apply {
        decision: JointDecision,
        left: BTreeSet<u32>,
        confirmations: BTreeMap<u32, Option<Proof>>,
    },
    /// The coordinator removes its decision.
    Forget(BTreeMap<u32, Proof>),
    Ended,
}

impl JointTransaction {
    /// Begins a transaction with the parts of its participants, at least one. All parts have the
    /// same identity, coordinator and participants.
    pub(crate) fn begin(parts: BTreeMap<u32, Preparation>) -> Option<JointTransaction> {
        let Preparation { id, coordinator, .. } = *parts.values().next()?;
        let phase = Phase::Prepare(BTreeMap::new());
        Some(JointTransaction { id, coordinator, parts, phase, ended_phases: 0, result: None })
    }

    /// Ends a transaction that another client has begun and that locks data of a group.
    pub(crate) fn resolve(id: JointId, coordinator: u32, group: u32) -> JointTransaction {
        let phase = Phase::Resolve(BTreeSet::from([group]));
        let parts = BTreeMap::new();
        JointTransaction { id, coordinator, parts, phase, ended_phases: 0, result: None }
    }

    /// Returns the requests of this phase without a reply, with the groups to which they are sent.
    /// Empty if the transaction has ended.
    pub(crate) fn requests(&self) -> Vec<(u32, JointRequest)> {
        match &self.phase {
            Phase::Prepare(votes) => {
                let missing = self.parts.iter().filter(|(group, _)| !votes.contains_key(group));
                missing.map(|(group, part)| (*group, JointRequest::Prepare(part.clone()))).collect()
            }
            Phase::Commit(votes) => {
                let participants = votes.keys().copied().collect();
                let votes = votes.values().map(|(_, vote)| *vote).collect();
                vec![(self.coordinator, JointRequest::Commit { id: self.id, participants, votes })]
            }
            Phase::Resolve(_) => vec![(self.coordinator, JointRequest::Resolve(self.id))],
            Phase::Apply { decision, left, .. } => {
                left.iter().map(|group| (*group, JointRequest::Apply(decision.clone()))).collect()
            }
            Phase::Forget(confirmations) => {
                let participants = confirmations.keys().copied().collect();
                let confirmations = confirmations.values().copied().collect();
                vec![(self.coordinator, JointRequest::Forget { id: self.id, participants, confirmations })]
            }
            Phase::Ended => Vec::new(),
        }
    }

    /// Returns the number of phases that have ended. The caller must not pass replies to requests
    /// of an earlier phase to [`receive`](JointTransaction::receive).
    pub(crate) fn ended_phases(&self) -> u32 {
        self.ended_phases
    }

    /// Returns the result, when it is known.
    pub(crate) fn result(&self) -> Option<&JointResult> {
        self.result.as_ref()
    }

    /// Processes the reply to a request of [`requests`](JointTransaction::requests), or the error
    /// after the last repetition of the request.
    pub(crate) fn receive(&mut self, group: u32, reply: Result<Reply>) {
        let reply = match reply {
            Ok(Reply::Failed(failure)) => Err(failure.into_error("call a server of", b"the store")),
            other => other,
        };
        let before = std::mem::discriminant(&self.phase);
        self.phase = match (std::mem::replace(&mut self.phase, Phase::Ended), reply) {
            (Phase::Prepare(mut votes), Ok(Reply::Joint(JointReply::Prepared { committed, vote }))) => {
                votes.insert(group, (committed, vote));
                match votes.len() == self.parts.len() {
                    true => Phase::Commit(votes),
                    false => Phase::Prepare(votes),
                }
            }
            (Phase::Prepare(_), reply) => {
                self.result = Some(JointResult::Refused(group, refusal(reply)));
                Phase::Resolve(self.others())
            }
            (Phase::Commit(votes), Ok(Reply::Joint(JointReply::Decided { decision, unconfirmed }))) => {
                self.result = Some(match decision.outcome {
                    Outcome::Committed => JointResult::Committed(
                        votes.into_iter().map(|(group, (committed, _))| (group, committed)).collect(),
                    ),
                    Outcome::Aborted => JointResult::Refused(group, Refusal::Aborted),
                });
                let aborted = self.others();
                self.apply(decision, unconfirmed, aborted)
            }
            // The preparation was just written, and the same request succeeds later.
            (Phase::Commit(votes), Ok(Reply::Refused(refusal))) if is_busy(&refusal) => Phase::Commit(votes),
            (Phase::Commit(_), reply) => {
                let refusal = refusal(reply);
                // After a refusal for another reason, the transaction is not committed.
                let is_unknown = matches!(&refusal, Refusal::Failed { failure, .. }
                    if matches!(failure.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut));
                self.result = Some(JointResult::Refused(group, refusal));
                if is_unknown { Phase::Ended } else { Phase::Resolve(self.others()) }
            }
            (Phase::Resolve(aborted), Ok(Reply::Joint(JointReply::Decided { decision, unconfirmed }))) => {
                self.apply(decision, unconfirmed, aborted)
            }
            (
                Phase::Apply { decision, mut left, mut confirmations },
                Ok(Reply::Joint(JointReply::Applied { confirmation })),
            ) => {
                left.remove(&group);
                confirmations.entry(group).and_modify(|missing| *missing = Some(confirmation));
                JointTransaction::next_of_apply(decision, left, confirmations)
            }
            (Phase::Apply { decision, left, confirmations }, Ok(Reply::Refused(refusal)))
                if is_busy(&refusal) =>
            {
                Phase::Apply { decision, left, confirmations }
            }
            (Phase::Apply { decision, mut left, confirmations }, _) => {
                // Another client that meets the locks of this group resolves the transaction.
                left.remove(&group);
                JointTransaction::next_of_apply(decision, left, confirmations)
            }
            (Phase::Resolve(_) | Phase::Forget(_) | Phase::Ended, _) => Phase::Ended,
        };
        self.ended_phases += u32::from(std::mem::discriminant(&self.phase) != before);
    }

    /// Returns the participants other than the coordinator.
    fn others(&self) -> BTreeSet<u32> {
        self.parts.keys().copied().filter(|group| *group != self.coordinator).collect()
    }

    /// Begins to send the decision to participants: after a commit, to the participants that have
    /// not confirmed it; otherwise to `aborted`.
    fn apply(&self, decision: JointDecision, unconfirmed: Vec<u32>, aborted: BTreeSet<u32>) -> Phase {
        let mut left = aborted;
        let confirmations = match decision.outcome {
            Outcome::Committed => unconfirmed.iter().map(|group| (*group, None)).collect(),
            Outcome::Aborted => BTreeMap::new(),
        };
        left.extend(confirmations.keys());
        left.remove(&self.coordinator);
        JointTransaction::next_of_apply(decision, left, confirmations)
    }

    fn next_of_apply(
        decision: JointDecision,
        left: BTreeSet<u32>,
        confirmations: BTreeMap<u32, Option<Proof>>,
    ) -> Phase {
        if !left.is_empty() {
            return Phase::Apply { decision, left, confirmations };
        }
        let all: Option<BTreeMap<u32, Proof>> =
            confirmations.into_iter().map(|(group, proof)| Some((group, proof?))).collect();
        match all {
            Some(all) if !all.is_empty() => Phase::Forget(all),
            _ => Phase::Ended,
        }
    }
}

fn is_busy(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Failed { failure, .. } if failure.kind() == ErrorKind::Busy)
}

/// Returns the reason for which a request was not successful.
fn refusal(reply: Result<Reply>) -> Refusal {
    match reply {
        Ok(Reply::Refused(refusal)) => refusal,
        Ok(_) => Error::new(ErrorKind::Damaged, "understand the reply of", "the server").into(),
        Err(error) => error.into(),
    }
}
