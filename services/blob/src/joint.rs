//! Joint transactions at one group of servers: the locks of prepared transactions, and the records
//! of outcomes. The code performs no I/O except through the tables, and starts no threads.
//! docs/decisions/0035-groups-of-servers.md describes the protocol.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{
    JOINT_BYTES_MAX, JointId, Operation, OperationResult, Outcome, Part, Preparation, Read, Refusal, Version,
};
use serde::{Deserialize, Serialize};

use crate::commuting::NameUse;
use crate::keys;
use crate::recent::{Change, ChangedPart, RecentChanges};
use crate::tables::{Tables, visit_prefix};

/// The largest number of joint transactions that are prepared in a group.
pub(crate) const PREPARED_MAX: usize = 4096;
/// The largest encoding of the record of a joint transaction that is prepared, in bytes.
const RECORD_BYTES_MAX: usize = 8 * JOINT_BYTES_MAX;

/// A step of a joint transaction.
pub(crate) enum JointStep {
    /// Compares the part of the transaction that is in this group with later commits, and locks it.
    Prepare(Arc<Preparation>),
    /// Commits the transaction at the coordinator, if these are its participants.
    Commit { id: JointId, participants: Vec<u32>, has_operations: bool },
    /// Aborts the transaction at the coordinator, unless it is decided already.
    Resolve { id: JointId, group: u32 },
    /// Applies the decision of the coordinator at another participant.
    Apply { id: JointId, coordinator: u32, outcome: Outcome, has_operations: bool },
    /// Removes the decision to commit, which these participants have confirmed.
    Forget { id: JointId, participants: Vec<u32> },
}

/// The value of a joint transaction that is prepared.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PreparedRecord {
    pub(crate) preparation: Preparation,
    pub(crate) changes: Vec<Change>,
    pub(crate) results: Vec<OperationResult>,
    pub(crate) version: Version,
}

impl PreparedRecord {
    /// Encodes the value.
    pub(crate) fn encode(&self) -> std::result::Result<Vec<u8>, Refusal> {
        let encoded = keys::encode(self);
        match encoded.len() <= RECORD_BYTES_MAX {
            true => Ok(encoded),
            false => Err(invalid("its part in a group, or its results, are too large; divide it").into()),
        }
    }
}

/// The value of the outcome of a joint transaction.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct OutcomeRecord {
    pub(crate) version: Version,
    pub(crate) outcome: Outcome,
}

/// The value of a decision to commit that some participants have not confirmed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct UnconfirmedRecord {
    pub(crate) version: Version,
    /// The participants other than the coordinator, ascending.
    pub(crate) participants: Vec<u32>,
}

/// The locks of a joint transaction that is prepared: on the parts that it changes, which other
/// transactions may change only with transforms that commute, and on the parts that it has read.
pub(crate) struct JointLocks {
    pub(crate) id: JointId,
    pub(crate) coordinator: u32,
    /// The names that the operations use, and how they use them.
    names: HashMap<Vec<u8>, NameUse>,
    /// Whether a transaction or a read that does not commute with this transaction was refused.
    /// From then on, no other transaction that shares its locks is prepared, so that the locks are
    /// released.
    has_waiters: AtomicBool,
    changes: RecentChanges,
    reads: Vec<Read>,
    /// The outcome and, after a commit, the first state that contains it.
    outcome: OnceLock<(Outcome, Version)>,
}

impl JointLocks {
    pub(crate) fn new(preparation: &Preparation, changes: &[Change]) -> JointLocks {
        let Preparation { id, coordinator, transaction, .. } = preparation;
        let mut names = uses_of(&transaction.operations);
        // A blob that the transaction creates exists only if it is committed.
        for change in changes.iter().filter(|change| change.part == ChangedPart::Existence) {
            names.insert(change.name.clone(), NameUse::Other);
        }
        JointLocks {
            id: *id,
            coordinator: *coordinator,
            names,
            has_waiters: AtomicBool::new(false),
            changes: changes_of(changes),
            reads: transaction.reads.clone(),
            outcome: OnceLock::new(),
        }
    }

    /// Returns whether a transaction that has read these parts, and uses names in these ways, must
    /// wait.
    pub(crate) fn stop(&self, reads: &[Read], names: &HashMap<Vec<u8>, NameUse>) -> bool {
        reads.iter().any(|read| self.changes.conflict(read, Version(0)).is_some())
            || self.shared(names).any(|(own, other)| !own.commutes(other))
    }

    /// Returns whether a transaction that uses these names must wait because others wait for the
    /// end of this one.
    pub(crate) fn has_waiters_for(&self, names: &HashMap<Vec<u8>, NameUse>) -> bool {
        self.has_waiters.load(Ordering::Relaxed) && self.shared(names).next().is_some()
    }

    /// For each name that both this transaction and another one use, returns both uses.
    fn shared<'a>(
        &'a self,
        names: &'a HashMap<Vec<u8>, NameUse>,
    ) -> impl Iterator<Item = (&'a NameUse, &'a NameUse)> {
        names.iter().filter_map(|(name, other)| Some((self.names.get(name)?, other)))
    }

    /// Returns whether a transaction with these changes must wait.
    pub(crate) fn stop_changes(&self, changes: &RecentChanges) -> bool {
        self.reads.iter().any(|read| changes.conflict(read, Version(0)).is_some())
    }

    /// Returns the names of the operations.
    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.names.keys().map(Vec::as_slice)
    }

    /// Returns the refusal of a transaction or read that waits for the end of this transaction.
    pub(crate) fn refuse_waiter(&self) -> Refusal {
        self.has_waiters.store(true, Ordering::Relaxed);
        self.refusal()
    }

    pub(crate) fn refusal(&self) -> Refusal {
        Refusal::Locked { id: self.id, coordinator: self.coordinator }
    }

    /// Records the outcome. States before `version` do not contain the changes of a commit.
    pub(crate) fn end(&self, outcome: Outcome, version: Version) {
        self.outcome.get_or_init(|| (outcome, version));
    }

    /// Checks that a state can be read, although this transaction was prepared and not ended when
    /// the state was the latest one.
    ///
    /// # Errors
    /// [`Locked`] if the outcome is not known; `Stale` if the transaction was committed, but the
    /// state does not contain its changes.
    fn check(&self, state: Version) -> Result<()> {
        match self.outcome.get() {
            None => Err(Error { source: Some(Box::new(Locked(self.refuse_waiter()))), ..busy() }),
            Some((Outcome::Committed, version)) if *version > state => {
                let source = Some("a transaction over several groups was committed meanwhile".into());
                Err(Error { source, ..Error::new(ErrorKind::Stale, "read", "snapshot") })
            }
            Some(_) => Ok(()),
        }
    }
}

/// Returns the names that operations use, and how they use them.
pub(crate) fn uses_of<'a>(operations: impl IntoIterator<Item = &'a Operation>) -> HashMap<Vec<u8>, NameUse> {
    let mut uses: HashMap<Vec<u8>, NameUse> = HashMap::new();
    for operation in operations {
        for name in operation.names() {
            uses.entry(name.to_vec()).or_default().add(operation);
        }
    }
    uses
}

/// The joint transactions that were prepared, and not ended, when a state was the latest one.
pub(crate) type LocksOfState = Arc<Vec<Arc<JointLocks>>>;

/// Checks that a part of a state can be read.
///
/// # Errors
/// The errors of [`JointLocks::check`].
pub(crate) fn check_read(locks: &LocksOfState, state: Version, name: &[u8], part: Part) -> Result<()> {
    if locks.is_empty() {
        return Ok(());
    }
    let read = Read { name: name.to_vec(), part };
    let of_part = locks.iter().filter(|locks| locks.changes.conflict(&read, Version(0)).is_some());
    check_all(of_part, state)
}

/// Checks that the attributes of the blobs for whose names `is_read` returns true can be read.
///
/// # Errors
/// The errors of [`JointLocks::check`].
pub(crate) fn check_names(
    locks: &LocksOfState,
    state: Version,
    is_read: &dyn Fn(&[u8]) -> bool,
) -> Result<()> {
    let of_names = locks.iter().filter(|locks| locks.names().any(is_read));
    check_all(of_names, state)
}

/// Checks all locks, even after an error, so that each transaction that has not ended from now on
/// refuses transactions that share its locks.
fn check_all<'a>(locks: impl Iterator<Item = &'a Arc<JointLocks>>, state: Version) -> Result<()> {
    locks.map(|locks| locks.check(state)).fold(Ok(()), Result::and)
}

/// Returns the refusal of a transaction that waits for the end of these joint transactions. The
/// refusal names the first of them. From now on, no further transaction that shares their locks is
/// prepared.
pub(crate) fn refusal_by_all<'a>(locks: impl Iterator<Item = &'a JointLocks>) -> Option<Refusal> {
    locks.map(JointLocks::refuse_waiter).fold(None, |first, refusal| first.or(Some(refusal)))
}

/// The cause of the error of a read of data that a joint transaction has locked.
#[derive(Debug)]
pub(crate) struct Locked(pub(crate) Refusal);

impl Locked {
    /// Returns the refusal that is the cause of an error.
    pub(crate) fn of(error: &Error) -> Option<&Refusal> {
        error.source.as_ref()?.downcast_ref::<Locked>().map(|locked| &locked.0)
    }
}

impl fmt::Display for Locked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Locked {}

fn busy() -> Error {
    Error::new(ErrorKind::Busy, "read", "the latest state")
}

/// Returns the error of a joint transaction that is not valid.
pub(crate) fn invalid(reason: &str) -> Error {
    let source = Some(reason.to_string().into());
    Error { source, ..Error::new(ErrorKind::InvalidInput, "commit", "transaction over several groups") }
}

/// Returns changes in a form that can be compared with reads of the state 0.
pub(crate) fn changes_of(changes: &[Change]) -> RecentChanges {
    let mut all = RecentChanges::new(Version(0));
    changes.iter().for_each(|change| all.add(Version(1), change.clone()));
    all
}

/// Returns the outcome of a joint transaction, if it is known.
pub(crate) fn find_outcome(tables: &dyn Tables, id: JointId) -> Result<Option<OutcomeRecord>> {
    if let Some(record) = find_unconfirmed(tables, id)? {
        return Ok(Some(OutcomeRecord { version: record.version, outcome: Outcome::Committed }));
    }
    tables.get(&keys::joint_outcome(id))?.map(|value| keys::decode(&value)).transpose()
}

/// Returns the decision to commit a joint transaction that some participants have not confirmed.
pub(crate) fn find_unconfirmed(tables: &dyn Tables, id: JointId) -> Result<Option<UnconfirmedRecord>> {
    tables.get(&keys::joint_unconfirmed(id))?.map(|value| keys::decode(&value)).transpose()
}

/// Returns the record of a joint transaction that is prepared.
pub(crate) fn find_prepared(tables: &dyn Tables, id: JointId) -> Result<Option<PreparedRecord>> {
    tables.get(&keys::joint_prepared(id))?.map(|value| keys::decode(&value)).transpose()
}

/// Returns the locks of all joint transactions that are prepared.
pub(crate) fn find_locks(tables: &dyn Tables) -> Result<Vec<Arc<JointLocks>>> {
    let mut locks = Vec::new();
    visit_prefix(tables, &keys::all_joint_prepared(), &mut |_, value| {
        let record: PreparedRecord = keys::decode(value)?;
        locks.push(Arc::new(JointLocks::new(&record.preparation, &record.changes)));
        Ok(())
    })?;
    Ok(locks)
}

/// Returns the identities of the decisions to commit that are not confirmed.
pub(crate) fn list_unconfirmed(tables: &dyn Tables) -> Result<Vec<JointId>> {
    let mut ids = Vec::new();
    visit_prefix(tables, &keys::all_joint_unconfirmed(), &mut |key, _| {
        ids.push(keys::joint_of(key)?);
        Ok(())
    })?;
    Ok(ids)
}

/// Returns whether a key and a value of a joint transaction have their format.
pub(crate) fn is_entry(key: &[u8], value: &[u8]) -> bool {
    let has_value = match key.first() {
        first if first == keys::joint_outcomes().first() => keys::decode::<OutcomeRecord>(value).is_ok(),
        first if first == keys::all_joint_prepared().first() => keys::decode::<PreparedRecord>(value).is_ok(),
        _ => keys::decode::<UnconfirmedRecord>(value).is_ok(),
    };
    keys::joint_of(key).is_ok() && has_value
}

#[cfg(test)]
mod tests {
    use quell_wire::blob::{Transaction, Transform};

    use super::*;

    /// Returns the locks of a transaction that adds to the number in the blob `hot`.
    fn addition(number: u64) -> Arc<JointLocks> {
        let name = b"hot".to_vec();
        let add = Operation::Transform { name: name.clone(), offset: 0, transform: Transform::add_i64(1) };
        let preparation = Preparation {
            id: JointId { client: 1, number },
            coordinator: 0,
            participants: vec![0, 1],
            begun: Version(0),
            transaction: Transaction { operations: vec![add], ..Transaction::default() },
        };
        let change = Change { name, part: ChangedPart::Range(0, 8) };
        Arc::new(JointLocks::new(&preparation, &[change]))
    }

    #[test]
    fn a_refused_reader_or_writer_waits_for_all_additions_and_no_further_one_shares_their_locks() {
        let add = addition(9).names.clone();
        let part = Part::Range { start: 0, end: 8 };
        for waits in [
            &|locks: &LocksOfState| check_read(locks, Version(1), b"hot", part.clone()).is_err(),
            &|locks: &LocksOfState| check_names(locks, Version(1), &|name| name == b"hot").is_err(),
            &|locks: &LocksOfState| {
                let first = refusal_by_all(locks.iter().map(|locks| &**locks));
                first == Some(locks[0].refusal())
            },
        ] as [&dyn Fn(&LocksOfState) -> bool; 3]
        {
            let locks: LocksOfState = Arc::new((1..=3).map(addition).collect());
            assert!(locks.iter().all(|locks| !locks.stop(&[], &add) && !locks.has_waiters_for(&add)));
            assert!(waits(&locks));
            assert!(locks.iter().all(|locks| locks.has_waiters_for(&add)));
            // A transaction that uses other names need not wait.
            assert!(locks.iter().all(|locks| !locks.has_waiters_for(&HashMap::new())));
        }
        assert_eq!(refusal_by_all(std::iter::empty()), None);
    }
}
