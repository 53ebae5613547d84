//! The decisions of the thread that commits: whether a transaction of a group is committed, and its
//! changes and result. Other code writes the changes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{Committed, JointId, Outcome, Preparation, Read, Refusal, Transaction, Version};

use crate::apply::{self, Applied, ApplyError, Environment};
use crate::commuting::NameUse;
use crate::garbage::REMOVED_IN_A_STEP;
use crate::joint::{
    JointLocks, JointStep, OutcomeRecord, PREPARED_MAX, PreparedRecord, UnconfirmedRecord, changes_of,
    find_locks, find_outcome, find_prepared, find_unconfirmed, invalid, refusal_by_all, uses_of,
};
use crate::keys;
use crate::prepared::{Prepared, Step};
use crate::recent::RecentChanges;
use crate::tables::{Changes, Tables, visit_prefix};
use crate::waiters::{WaiterId, Waiters};

type Decided<T> = std::result::Result<T, Refusal>;

/// The state of the thread that commits.
pub(crate) struct Leader {
    pub(crate) last: Version,
    pub(crate) recent: RecentChanges,
    /// The keys of the results and outcomes that are kept, in the order of their commits.
    pub(crate) results: VecDeque<(Version, Vec<u8>)>,
    /// The results of transactions that began before this state may have been removed.
    pub(crate) forgotten_results: Version,
    /// The joint transactions that are prepared.
    pub(crate) locks: Vec<Arc<JointLocks>>,
    /// Whether a commit of the key-value store failed, so that all later ones fail.
    pub(crate) has_failed: bool,
}

/// The effects of the transactions of a group that were decided so far, besides the changes of the
/// tables.
pub(crate) struct GroupEffects {
    /// The changes, with which later transactions of the group can conflict.
    pub(crate) changes: RecentChanges,
    /// The keys of new results and outcomes.
    pub(crate) results: Vec<Vec<u8>>,
    /// The joint transactions that are now prepared.
    pub(crate) prepared: Vec<Arc<JointLocks>>,
    /// The joint transactions that are no longer prepared.
    pub(crate) ended: Vec<(JointId, Outcome)>,
}

impl GroupEffects {
    pub(crate) fn new() -> GroupEffects {
        let changes = RecentChanges::new(Version(0));
        GroupEffects { changes, results: Vec::new(), prepared: Vec::new(), ended: Vec::new() }
    }
}

/// The decision about a transaction.
pub(crate) enum Decision {
    Applied(Committed),
    /// The transaction was committed before, or changes nothing.
    Repeated(Committed),
    /// A part of truncated content was removed. The transaction is decided with the next group.
    NotYet,
}

/// A group of transactions whose commits are being decided.
pub(crate) struct Group<'a, 'b> {
    pub(crate) leader: &'a Leader,
    pub(crate) effects: &'a mut GroupEffects,
    /// The tables with the changes of the group.
    pub(crate) all: &'a mut Changes<'b>,
    pub(crate) environment: Environment<'a>,
    pub(crate) version: Version,
    pub(crate) waiters: &'a Waiters,
    /// The time of the monotonic clock.
    pub(crate) monotonic_ns: u64,
}

impl Leader {
    /// Returns the state for a store that was just opened.
    pub(crate) fn open(tables: &dyn Tables, opened: Version) -> Result<Leader> {
        let mut results = Vec::new();
        visit_prefix(tables, &keys::results(), &mut |key, value| {
            let committed: Committed = keys::decode(value)?;
            results.push((committed.version, key.to_vec()));
            Ok(())
        })?;
        visit_prefix(tables, &keys::joint_outcomes(), &mut |key, value| {
            let record: OutcomeRecord = keys::decode(value)?;
            results.push((record.version, key.to_vec()));
            Ok(())
        })?;
        results.sort_by_key(|(version, _)| *version);
        let forgotten_results = match tables.get(keys::FORGOTTEN_RESULTS)? {
            Some(version) => keys::decode(&version)?,
            None => Version(0),
        };
        Ok(Leader {
            last: opened,
            recent: RecentChanges::new(opened),
            results: results.into(),
            forgotten_results,
            locks: find_locks(tables)?,
            has_failed: false,
        })
    }

    /// Removes the oldest results from the tables if there would be more than `results_max`
    /// together with `new` ones. Returns the number of removed results, which are removed from
    /// `results` when the commit succeeds.
    pub(crate) fn forget_results(&self, all: &mut Changes<'_>, new: usize, results_max: usize) -> usize {
        let surplus = (self.results.len() + new).saturating_sub(results_max.max(new));
        let forgotten = surplus.min(self.results.len());
        for (_, key) in self.results.range(..forgotten) {
            all.delete(key.clone());
        }
        if let Some((version, _)) = self.results.range(..forgotten).next_back() {
            all.put(keys::FORGOTTEN_RESULTS.to_vec(), &keys::encode(version));
        }
        forgotten
    }

    /// Adds the effects of a group that was written. Returns whether the locks have changed.
    pub(crate) fn add(&mut self, version: Version, forgotten: usize, effects: GroupEffects) -> bool {
        if let Some((last, _)) = self.results.drain(..forgotten).next_back() {
            self.forgotten_results = last;
        }
        self.results.extend(effects.results.into_iter().map(|key| (version, key)));
        effects.changes.into_changes().for_each(|change| self.recent.add(version, change));
        let has_changed = !effects.prepared.is_empty() || !effects.ended.is_empty();
        self.locks.extend(effects.prepared);
        for (id, outcome) in effects.ended {
            if let Some(index) = self.locks.iter().position(|locks| locks.id == id) {
                self.locks.swap_remove(index).end(outcome, version);
            }
        }
        has_changed
    }
}

impl Group<'_, '_> {
    /// Decides about a transaction, and applies it.
    pub(crate) fn decide(&mut self, prepared: &Prepared) -> Decided<Decision> {
        match &prepared.step {
            Step::Commit => {
                let decided = self.commit(prepared);
                self.note_waiter(prepared, &decided);
                decided
            }
            Step::RemoveStale(name) => match apply::has_stale(&*self.all, name)? {
                true => self.remove_stale(name),
                false => Ok(self.applied()),
            },
            Step::Joint(JointStep::Prepare(preparation)) => self.prepare(preparation, prepared),
            Step::Joint(JointStep::Commit { id, participants, has_operations }) => {
                self.commit_joint(*id, participants, *has_operations, prepared)
            }
            Step::Joint(JointStep::Resolve { id, group }) => self.resolve(*id, *group),
            Step::Joint(JointStep::Apply { id, coordinator, outcome, has_operations }) => {
                self.apply_decision(*id, *coordinator, *outcome, *has_operations, prepared)
            }
            Step::Joint(JointStep::Forget { id, participants }) => self.forget(*id, participants),
        }
    }

    fn applied(&self) -> Decision {
        Decision::Applied(Committed { version: self.version, results: Vec::new() })
    }

    fn commit(&mut self, prepared: &Prepared) -> Decided<Decision> {
        if let Some(id) = prepared.id {
            if let Some(result) = self.all.get(&keys::result(id))? {
                return Ok(Decision::Repeated(keys::decode(&result)?));
            }
            if prepared.is_repeated && id.begun < self.leader.forgotten_results {
                return Err(unknown_result().into());
            }
        }
        self.validate(prepared.snapshot, &prepared.reads, &self.uses(prepared))?;
        let mut own = Changes::new(&*self.all);
        let applied = match apply::apply(&mut own, &self.environment, &prepared.operations) {
            Ok(applied) => applied,
            Err(ApplyError::Refused(refusal)) => return Err(refusal),
            Err(ApplyError::StaleContent(name)) => return self.remove_stale(&name),
        };
        self.check_shared_locks(&applied)?;
        let committed = Committed { version: self.version, results: applied.results };
        if let Some(id) = prepared.id {
            own.put(keys::result(id), &keys::encode(&committed));
        }
        if own.size_bytes() > self.environment.bytes_max {
            return Err(apply::too_large().into());
        }
        let own = own.into_changed();
        self.all.add(own);
        self.effects.results.extend(prepared.id.map(keys::result));
        applied.changes.into_iter().for_each(|change| self.effects.changes.add(self.version, change));
        Ok(Decision::Applied(committed))
    }

    /// Records that the client of a transaction waits for locked names, or does not wait any
    /// longer.
    fn note_waiter(&self, prepared: &Prepared, decided: &Decided<Decision>) {
        let Some(id) = prepared.id else { return };
        let client = WaiterId::Writer(id.client);
        let names = || {
            let read = prepared.reads.iter().map(|read| &read.name[..]);
            prepared.operations.iter().flat_map(|of| of.operation.names()).chain(read)
        };
        match decided {
            Err(refusal @ Refusal::Locked { .. }) => {
                self.waiters.add(names(), client, refusal, self.monotonic_ns);
            }
            Ok(Decision::NotYet) => {}
            Ok(_) | Err(_) => self.waiters.remove(|name| names().any(|used| used == name), client),
        }
    }

    /// Returns the names that the operations of a transaction use, if joint transactions are
    /// prepared.
    fn uses(&self, prepared: &Prepared) -> HashMap<Vec<u8>, NameUse> {
        match self.locks().next() {
            Some(_) => uses_of(prepared.operations.iter().map(|operation| &operation.operation)),
            None => HashMap::new(),
        }
    }

    /// Compares the reads of a transaction with the commits after its snapshot, and with the joint
    /// transactions that are prepared.
    fn validate(
        &self,
        snapshot: Option<Version>,
        reads: &[Read],
        names: &HashMap<Vec<u8>, NameUse>,
    ) -> Decided<()> {
        if let Some(snapshot) = snapshot {
            if snapshot < self.leader.recent.forgotten() {
                return Err(Refusal::SnapshotTooOld);
            }
            let (recent, current) = (&self.leader.recent, &self.effects.changes);
            let conflicts =
                |read| recent.conflict(read, snapshot).or_else(|| current.conflict(read, snapshot));
            let conflicts: Vec<_> = reads.iter().filter_map(conflicts).collect();
            if !conflicts.is_empty() {
                return Err(Refusal::Conflict(conflicts));
            }
        }
        refusal_by_all(self.locks().filter(|locks| locks.stop(reads, names))).map_or(Ok(()), Err)
    }

    /// Compares the changes of a transaction with the reads of the joint transactions that are
    /// prepared.
    fn check_shared_locks(&self, applied: &Applied) -> Decided<()> {
        if self.locks().next().is_none() {
            return Ok(());
        }
        let changes = changes_of(&applied.changes);
        refusal_by_all(self.locks().filter(|locks| locks.stop_changes(&changes))).map_or(Ok(()), Err)
    }

    /// Returns the joint transactions that are prepared, including the transactions that end with
    /// this group.
    fn locks(&self) -> impl Iterator<Item = &JointLocks> {
        self.leader.locks.iter().chain(&self.effects.prepared).map(|locks| &**locks)
    }

    /// Removes a part of the content that a truncation of a blob has left.
    fn remove_stale(&mut self, name: &[u8]) -> Decided<Decision> {
        if !apply::has_stale(&*self.all, name)? {
            let source = Some("it truncates a large blob and extends it again; divide it".into());
            return Err(
                Error { source, ..Error::new(ErrorKind::InvalidInput, "commit", "transaction") }.into()
            );
        }
        apply::remove_stale(self.all, self.environment.extents, name, REMOVED_IN_A_STEP)?;
        Ok(Decision::NotYet)
    }

    /// Compares the part of a joint transaction with later commits, and locks it. The operations
    /// have no extents.
    fn prepare(&mut self, preparation: &Arc<Preparation>, prepared: &Prepared) -> Decided<Decision> {
        let Preparation { id, begun, transaction, .. } = &**preparation;
        match find_outcome(&*self.all, *id)? {
            Some(OutcomeRecord { outcome: Outcome::Aborted, .. }) => return Err(Refusal::Aborted),
            Some(OutcomeRecord { version, .. }) => {
                return Ok(Decision::Repeated(Committed { version, results: Vec::new() }));
            }
            None => {}
        }
        if let Some(PreparedRecord { preparation: first, results, version, .. }) =
            find_prepared(&*self.all, *id)?
        {
            return match first == **preparation {
                true => Ok(Decision::Repeated(Committed { version, results })),
                false => Err(invalid("another one has its identity").into()),
            };
        }
        // The request was delayed for so long that the outcome of its transaction was removed.
        if *begun < self.leader.forgotten_results {
            return Err(Refusal::Aborted);
        }
        if self.locks().count() >= PREPARED_MAX {
            let source = Some("4,096 other ones are not decided: quell blob gc ends them".into());
            return Err(Error { source, ..Error::new(ErrorKind::Busy, "prepare", "transaction") }.into());
        }
        let Transaction { snapshot, reads, .. } = transaction;
        let names = uses_of(&transaction.operations);
        self.validate(*snapshot, reads, &names)?;
        if let Some(locks) = self.locks().find(|locks| locks.has_waiters_for(&names)) {
            return Err(locks.refusal());
        }
        let waited_for = self.waiters.refusal(names.keys().map(Vec::as_slice), self.monotonic_ns);
        if let Some(refusal) = waited_for {
            return Err(refusal);
        }
        let mut own = Changes::new(&*self.all);
        let applied = match apply::apply(&mut own, &self.environment, &prepared.operations) {
            Ok(applied) => applied,
            Err(ApplyError::Refused(refusal)) => return Err(refusal),
            Err(ApplyError::StaleContent(name)) => return self.remove_stale(&name),
        };
        self.check_shared_locks(&applied)?;
        let Applied { results, changes } = applied;
        let locks = JointLocks::new(preparation, &changes);
        let (preparation, version) = (Preparation::clone(preparation), self.version);
        let record = PreparedRecord { preparation, changes, results, version };
        self.all.put(keys::joint_prepared(*id), &record.encode()?);
        self.effects.prepared.push(Arc::new(locks));
        Ok(Decision::Applied(Committed { version, results: record.results }))
    }

    /// Decides at the coordinator that a joint transaction is committed.
    fn commit_joint(
        &mut self,
        id: JointId,
        participants: &[u32],
        has_operations: bool,
        prepared: &Prepared,
    ) -> Decided<Decision> {
        if let Some(known) = find_outcome(&*self.all, id)? {
            return repeated(known);
        }
        let Some(record) = find_prepared(&*self.all, id)? else { return Err(unknown_result().into()) };
        if record.preparation.participants != participants {
            return Err(invalid("it has other participants").into());
        }
        let coordinator = record.preparation.coordinator;
        let others = participants.iter().copied().filter(|group| *group != coordinator).collect();
        let decision = self.end(id, record, has_operations, prepared)?;
        if let Decision::Applied(_) = decision {
            let unconfirmed = UnconfirmedRecord { version: self.version, participants: others };
            self.all.put(keys::joint_unconfirmed(id), &keys::encode(&unconfirmed));
        }
        Ok(decision)
    }

    /// Applies the operations of a joint transaction that is prepared. Since the preparation, other
    /// transactions have changed the blobs only by transforms that commute, so the results are the
    /// same as at the preparation.
    fn end(
        &mut self,
        id: JointId,
        record: PreparedRecord,
        has_operations: bool,
        prepared: &Prepared,
    ) -> Decided<Decision> {
        if !has_operations {
            let source = Some("its preparation was just written; repeat the request".into());
            return Err(Error { source, ..Error::new(ErrorKind::Busy, "commit", "transaction") }.into());
        }
        let mut own = Changes::new(&*self.all);
        let applied = match apply::apply(&mut own, &self.environment, &prepared.operations) {
            Ok(applied) => applied,
            Err(ApplyError::Refused(refusal)) => return Err(refusal),
            Err(ApplyError::StaleContent(name)) => return self.remove_stale(&name),
        };
        own.delete(keys::joint_prepared(id));
        let own = own.into_changed();
        self.all.add(own);
        applied.changes.into_iter().for_each(|change| self.effects.changes.add(self.version, change));
        self.effects.ended.push((id, Outcome::Committed));
        Ok(Decision::Applied(Committed { version: self.version, results: record.results }))
    }

    /// Returns the decision about a joint transaction. If there is no decision yet, the transaction
    /// is aborted.
    fn resolve(&mut self, id: JointId, group: u32) -> Decided<Decision> {
        if let Some(known) = find_outcome(&*self.all, id)? {
            return repeated(known);
        }
        let record = find_prepared(&*self.all, id)?;
        if record.as_ref().is_some_and(|record| record.preparation.coordinator != group) {
            return Err(invalid("another group is its coordinator").into());
        }
        self.abort(id, record.is_some());
        Ok(self.applied())
    }

    fn abort(&mut self, id: JointId, is_prepared: bool) {
        if is_prepared {
            self.all.delete(keys::joint_prepared(id));
            self.effects.ended.push((id, Outcome::Aborted));
        }
        self.put_outcome(id, Outcome::Aborted);
    }

    fn put_outcome(&mut self, id: JointId, outcome: Outcome) {
        let key = keys::joint_outcome(id);
        let record = OutcomeRecord { version: self.version, outcome };
        self.all.put(key.clone(), &keys::encode(&record));
        self.effects.results.push(key);
    }

    /// Ends a joint transaction as its coordinator has decided.
    fn apply_decision(
        &mut self,
        id: JointId,
        coordinator: u32,
        outcome: Outcome,
        has_operations: bool,
        prepared: &Prepared,
    ) -> Decided<Decision> {
        let Some(record) = find_prepared(&*self.all, id)? else {
            // If the transaction is committed, this participant has prepared it before, so it must
            // have ended it.
            if outcome == Outcome::Aborted && find_outcome(&*self.all, id)?.is_none() {
                self.abort(id, false);
                return Ok(self.applied());
            }
            return Ok(Decision::Repeated(Committed { version: self.version, results: Vec::new() }));
        };
        if record.preparation.coordinator != coordinator {
            return Err(invalid("another group is its coordinator").into());
        }
        if outcome == Outcome::Aborted {
            self.abort(id, true);
            return Ok(self.applied());
        }
        let decision = self.end(id, record, has_operations, prepared)?;
        if let Decision::Applied(_) = decision {
            self.put_outcome(id, Outcome::Committed);
        }
        Ok(decision)
    }

    /// Replaces the decision to commit by an outcome, which is removed after some time like other
    /// results.
    fn forget(&mut self, id: JointId, participants: &[u32]) -> Decided<Decision> {
        match find_unconfirmed(&*self.all, id)? {
            Some(record) if record.participants == participants => {
                self.all.delete(keys::joint_unconfirmed(id));
                self.put_outcome(id, Outcome::Committed);
                Ok(self.applied())
            }
            Some(_) => Err(invalid("it has other participants").into()),
            None => Ok(Decision::Repeated(Committed { version: self.version, results: Vec::new() })),
        }
    }
}

/// Returns the decision about a joint transaction whose outcome is known.
fn repeated(known: OutcomeRecord) -> Decided<Decision> {
    Ok(Decision::Repeated(Committed { version: known.version, results: Vec::new() }))
}

fn unknown_result() -> Error {
    let source = Some("the result of the first attempt is no longer known".into());
    Error { source, ..Error::new(ErrorKind::Unavailable, "commit", "transaction") }
}
