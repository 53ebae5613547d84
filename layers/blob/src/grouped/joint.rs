//! The client's side of a joint transaction: the requests of each phase, and the conclusions from
//! the replies. The code has no I/O, no threads and no clock.
//! docs/decisions/0035-groups-of-servers.md describes the protocol.

use std::collections::{BTreeMap, BTreeSet};

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{
    Committed, JointDecision, JointId, JointReply, JointRequest, Outcome, Preparation, Proof, Refusal, Reply,
};

/// A joint transaction, from its preparation or from the resolution of one that another client has
/// left.
pub(crate) struct JointTransaction {
    id: JointId,
    coordinator: u32,
    /// The parts of the participants; none if another client began the transaction.
    parts: BTreeMap<u32, Preparation>,
    phase: Phase,
    /// The number of phases that have ended.
    ended_phases: u32,
    result: Option<JointResult>,
}

/// The result for the program.
#[derive(Debug, Clone)]
pub(crate) enum JointResult {
    /// It is committed, with the results of each group.
    Committed(BTreeMap<u32, Committed>),
    /// It has no effect, unless the refusal is `Failed` without an operation. The reason is that of
    /// a group.
    Refused(u32, Refusal),
}

enum Phase {
    /// The groups prepare it. The votes of those that have.
    Prepare(BTreeMap<u32, (Committed, Proof)>),
    /// The coordinator commits it.
    Commit(BTreeMap<u32, (Committed, Proof)>),
    /// The coordinator decides. These groups are told that it was aborted.
    Resolve(BTreeSet<u32>),
    /// These groups apply the decision. `confirmations` are those of the participants of a commit
    /// that the coordinator waits for: `None` if not received.
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
    /// Begins a transaction with the parts of its participants, at least one. All have the same
    /// identity, coordinator and participants.
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

    /// Returns the requests whose replies are missing in this phase, with the groups that get them;
    /// none if the transaction has ended.
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

    /// Returns the number of phases that have ended. Replies to requests of an earlier phase are
    /// not passed to [`receive`](JointTransaction::receive).
    pub(crate) fn ended_phases(&self) -> u32 {
        self.ended_phases
    }

    /// Returns the result, when it is known.
    pub(crate) fn result(&self) -> Option<&JointResult> {
        self.result.as_ref()
    }

    /// Takes a reply, or the error of a request that was repeated long enough, to a request of
    /// [`requests`](JointTransaction::requests).
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
            // The preparation was written just now: the same request succeeds later.
            (Phase::Commit(votes), Ok(Reply::Refused(refusal))) if is_busy(&refusal) => Phase::Commit(votes),
            (Phase::Commit(_), reply) => {
                let refusal = refusal(reply);
                // After a refusal for another reason, it is not committed.
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
                // Another client that meets the locks of this group ends them.
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

    /// Begins to tell the decision to participants: after a commit to those that have not confirmed
    /// it, otherwise to `aborted`.
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
