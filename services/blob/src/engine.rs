//! The commits of a store: in groups, one group at a time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use quell_kv::{BATCH_BYTES_MAX, Batch, KeyValue};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::Failure;
use quell_wire::blob::{JointId, Refusal, StoreCounters, Transaction, Version};

use crate::apply::Environment;
use crate::content::NewExtent;
use crate::epoch::{EPOCH_MAX, first_of, is_almost_used_up};
use crate::extent_upload::ExtentUpload;
use crate::extents::{ExtentId, Extents};
use crate::garbage::{Garbage, REMOVED_IN_A_STEP, remove_uncommitted};
use crate::joint::{
    JointStep, OutcomeRecord, UnconfirmedRecord, find_outcome, find_prepared, find_unconfirmed,
    list_unconfirmed,
};
use crate::keys::{self, ContentId};
use crate::leader::{Decision, Group, GroupEffects, Leader};
use crate::options::{Clock, Options};
use crate::prepared::{Prepared, Step};
use crate::queue::{CommitResult, PendingTransaction, Queue, Receiver};
use crate::tables::{Changed, Changes, Latest, Tables, batch_of};
use crate::versions::Versions;
use crate::waiters::Waiters;

/// No transaction is added to a group whose changes have this size, in bytes.
const GROUP_BYTES: u64 = 8 << 20;
/// The largest size of the changes of one transaction, in bytes. A group with its last transaction
/// fits into a batch.
pub(crate) const TRANSACTION_BYTES_MAX: u64 = BATCH_BYTES_MAX - (GROUP_BYTES + (1 << 20));

/// The storage and the state of an open store.
pub(crate) struct Engine {
    pub(crate) tables: Arc<dyn KeyValue>,
    pub(crate) extents: Arc<dyn Extents>,
    pub(crate) versions: Versions,
    pub(crate) queue: Queue,
    clock: Arc<dyn Clock>,
    options: Options,
    /// The number of this opening of the store.
    epoch: u64,
    /// Only the thread that commits uses it, so that no thread waits for the lock.
    leader: Mutex<Leader>,
    last_number: AtomicU64,
    garbage: Garbage,
    pub(crate) waiters: Waiters,
    /// The extents that were written, and their bytes.
    written_extents: AtomicU64,
    written_extent_bytes: AtomicU64,
    /// The time until which commits wait, in nanoseconds of the clock. If the clock is set, they
    /// wait for a shorter or longer time; this has no other effect.
    held_until_ns: AtomicU64,
    hold: Mutex<Hold>,
    /// The failure after which all commits fail.
    failure: OnceLock<Failure>,
}

/// The last period in which commits wait, in nanoseconds of the clock.
#[derive(Default)]
struct Hold {
    begun_ns: u64,
    until_ns: u64,
    /// The earliest beginning of the next such period.
    next_ns: u64,
}

/// A transaction of a group, whose result is decided unless the commit of the group fails.
struct Decided {
    pending: PendingTransaction,
    result: CommitResult,
    /// Whether its extents are part of the commit.
    is_applied: bool,
}

impl Engine {
    /// Opens a store: see [`OpenStore::open`](crate::OpenStore::open).
    pub(crate) fn open(
        tables: Arc<dyn KeyValue>,
        extents: Arc<dyn Extents>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<Engine> {
        let before = match tables.get(keys::EPOCH)? {
            Some(epoch) => keys::decode::<u64>(&epoch)?,
            None => 0,
        };
        let epoch = before + 1;
        if epoch > EPOCH_MAX {
            let source = Some("the store was opened too often; copy it into a new one".into());
            return Err(Error { source, ..Error::new(ErrorKind::NoSpace, "open", "store") });
        }
        let latest = Latest(&*tables);
        // The extents are removed before the new epoch is stored. If this fails, the next opening
        // removes them.
        if options.lists_when_opened {
            remove_uncommitted(&latest, &*extents, before..epoch)?;
        }
        let mut batch = Batch::new();
        batch.put(keys::EPOCH, &keys::encode(&epoch));
        // A store on a full disk can be opened, to read it and to delete blobs.
        batch.allow_reserve();
        tables.commit(batch)?;
        tables.sync()?;
        let opened = Version(first_of(epoch));
        let leader = Leader::open(&latest, opened)?;
        Ok(Engine {
            versions: Versions::new(opened, Arc::new(leader.locks.clone()), options.history_bytes_max),
            leader: Mutex::new(leader),
            last_number: AtomicU64::new(first_of(epoch)),
            garbage: Garbage::find(tables.clone(), extents.clone(), opened)?,
            queue: Queue::default(),
            waiters: Waiters::default(),
            written_extents: AtomicU64::new(0),
            written_extent_bytes: AtomicU64::new(0),
            tables,
            extents,
            clock,
            options,
            epoch,
            held_until_ns: AtomicU64::new(0),
            hold: Mutex::default(),
            failure: OnceLock::new(),
        })
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    pub(crate) fn monotonic_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    pub(crate) fn new_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Begins an extent whose data is sent in parts. The caller must pass the extent to
    /// [`prepare`](Engine::prepare) or to [`abandon`](Engine::abandon).
    pub(crate) fn begin_extent(&self) -> ExtentUpload {
        // Unneeded data is normally removed after commits, but clients that abandon extents may
        // never commit.
        if self.garbage.unused_extents().1 >= self.options.unused_extent_bytes_max / 4 {
            self.remove_some();
        }
        ExtentUpload::begin(&*self.extents, ExtentId(self.new_number()))
    }

    /// Marks an extent to which no transaction refers for removal. Does not block.
    pub(crate) fn abandon(&self, extent: NewExtent) {
        self.garbage.add_uncommitted(extent);
    }

    /// Checks the limits of a transaction, and writes its large data. `written` are the extents
    /// that are written already, with the positions of their operations in ascending order.
    pub(crate) fn prepare(
        &self,
        transaction: Transaction,
        written: Vec<(u32, NewExtent)>,
    ) -> std::result::Result<Prepared, Refusal> {
        let new_extent = || ExtentId(self.new_number());
        let prepared = Prepared::new(transaction, written, &*self.extents, &new_extent)?;
        for extent in prepared.operations.iter().filter_map(|operation| operation.extent) {
            self.written_extents.fetch_add(1, Ordering::Relaxed);
            self.written_extent_bytes.fetch_add(extent.length_bytes, Ordering::Relaxed);
        }
        Ok(prepared)
    }

    /// Adds the counters of the extents, and of the history.
    pub(crate) fn count(&self, counters: &mut StoreCounters) {
        counters.history_bytes = self.versions.history_bytes();
        counters.extents = self.written_extents.load(Ordering::Relaxed);
        counters.extent_bytes = self.written_extent_bytes.load(Ordering::Relaxed);
        (counters.unused_extents, counters.unused_extent_bytes) = self.garbage.unused_extents();
    }

    /// Returns an entry of the queue for a step of a joint transaction. `step` receives whether the
    /// entry contains operations: those of the transaction `committed`, if it is prepared here.
    pub(crate) fn prepare_joint(
        &self,
        committed: Option<JointId>,
        step: impl FnOnce(bool) -> JointStep,
    ) -> std::result::Result<Prepared, Refusal> {
        let record = match committed {
            Some(id) => find_prepared(&Latest(&*self.tables), id)?,
            None => None,
        };
        let Some(record) = record else { return Ok(Step::Joint(step(false)).alone()) };
        // The reads were compared before, and the parts are locked since then.
        let transaction = Transaction { snapshot: None, reads: Vec::new(), ..record.preparation.transaction };
        Ok(Prepared { step: Step::Joint(step(true)), ..self.prepare(transaction, Vec::new())? })
    }

    /// Returns the outcome of a joint transaction, if it is known.
    pub(crate) fn joint_outcome(&self, id: JointId) -> Result<Option<OutcomeRecord>> {
        find_outcome(&Latest(&*self.tables), id)
    }

    /// Returns the decision to commit a joint transaction that some participants have not
    /// confirmed.
    pub(crate) fn joint_unconfirmed(&self, id: JointId) -> Result<Option<UnconfirmedRecord>> {
        find_unconfirmed(&Latest(&*self.tables), id)
    }

    /// Returns the joint transactions that are prepared, with their coordinators, and the joint
    /// transactions whose commit is not confirmed, for which this group is the coordinator
    /// (`None`).
    pub(crate) fn joint_undecided(&self) -> Result<Vec<(JointId, Option<u32>)>> {
        let prepared = self.versions.locks();
        let prepared = prepared.iter().map(|locks| (locks.id, Some(locks.coordinator)));
        let unconfirmed = list_unconfirmed(&Latest(&*self.tables))?;
        Ok(prepared.chain(unconfirmed.into_iter().map(|id| (id, None))).collect())
    }

    /// Makes commits wait for some milliseconds; 0 ends the wait. After a wait, the next one can
    /// begin only after commits were possible for the same time, so that clients cannot stop
    /// commits.
    pub(crate) fn hold(&self, milliseconds: u32) {
        let now_ns = self.clock.now_ns();
        let mut hold = lock(&self.hold);
        let end_ns = match milliseconds {
            0 => now_ns.min(hold.until_ns),
            _ if now_ns < hold.next_ns => return,
            _ => {
                hold.begun_ns = now_ns;
                now_ns.saturating_add(u64::from(milliseconds) * 1_000_000)
            }
        };
        hold.until_ns = end_ns;
        hold.next_ns = end_ns.saturating_add(end_ns.saturating_sub(hold.begun_ns));
        self.held_until_ns.store(end_ns, Ordering::Release);
    }

    fn is_held(&self) -> bool {
        let until_ns = self.held_until_ns.load(Ordering::Acquire);
        until_ns > 0 && self.clock.now_ns() < until_ns
    }

    /// Commits the transactions that wait, unless another thread commits them, and calls
    /// `after_group` after each group. Returns whether there were transactions to commit.
    pub(crate) fn commit_pending(&self, after_group: &mut dyn FnMut()) -> bool {
        if self.is_held() || !self.queue.lead() {
            return false;
        }
        loop {
            self.commit_next_group();
            after_group();
            if self.is_held() {
                self.queue.step_down();
                return true;
            }
            if !self.queue.pass_on() {
                return true;
            }
        }
    }

    /// Commits the next transactions that wait. Only one thread at a time calls it.
    pub(crate) fn commit_next_group(&self) {
        let group = self.queue.take(self.options.group_max);
        if !group.is_empty() {
            self.commit_group(group);
        }
    }

    /// Commits transactions together, and passes the results to their receivers.
    fn commit_group(&self, group: Vec<PendingTransaction>) {
        let mut leader = lock(&self.leader);
        if is_almost_used_up(leader.last.0.max(self.last_number.load(Ordering::Relaxed))) {
            drop(leader);
            let source = Some("the numbers of this opening are used up: open the store again".into());
            let error = Error { source, ..Error::new(ErrorKind::NoSpace, "commit", "transaction") };
            let failure = Failure::new(&error);
            group.into_iter().for_each(|pending| self.refuse(pending, &failure));
            return;
        }
        let version = Version(leader.last.0 + 1);
        leader.last = version;
        let (now_ns, monotonic_ns) = (self.clock.now_ns(), self.clock.monotonic_ns());
        let latest = Latest(&*self.tables);
        let mut all = Changes::new(&latest);
        let mut effects = GroupEffects::new();
        let new_id = || ContentId(self.new_number());
        let mut group = VecDeque::from(group);
        let mut done = Vec::with_capacity(group.len());
        let mut not_yet = None;
        while let Some(pending) = group.pop_front() {
            if all.size_bytes() > GROUP_BYTES {
                group.push_front(pending);
                break;
            }
            let environment = Environment {
                extents: &*self.extents,
                new_id: &new_id,
                now_ns,
                bytes_max: TRANSACTION_BYTES_MAX,
            };
            let (leader, effects, all) = (&*leader, &mut effects, &mut all);
            let waiters = &self.waiters;
            let mut of_group = Group { leader, effects, all, environment, version, waiters, monotonic_ns };
            let decision = of_group.decide(&pending.prepared);
            let (result, is_applied) = match decision {
                Ok(Decision::Applied(committed)) => (Ok(committed), true),
                Ok(Decision::Repeated(committed)) => (Ok(committed), false),
                // The rest of the truncated content is removed by the next group.
                Ok(Decision::NotYet) => {
                    not_yet = Some(pending);
                    break;
                }
                Err(refusal) => (Err(refusal), false),
            };
            // The extents of the transaction are kept until the commit: if the commit fails, the
            // transaction may be applied again.
            done.push(Decided { pending, result, is_applied });
        }
        if !group.is_empty() {
            self.queue.put_back(group.into());
        }
        let forgotten = leader.forget_results(&mut all, effects.results.len(), self.options.results_max);
        let changed = all.into_changed();
        if let Err(error) = self.write(&mut leader, version, &latest, &changed) {
            let has_failed = leader.has_failed;
            drop(leader);
            self.fail_group(&error, has_failed, done, not_yet);
            return;
        }
        if let Some(pending) = not_yet {
            self.queue.put_back(vec![pending]);
        }
        let locks = leader.add(version, forgotten, effects).then(|| Arc::new(leader.locks.clone()));
        let oldest = self.versions.publish(version, locks);
        leader.recent.forget_up_to(oldest);
        drop(leader);
        self.garbage.note(version, &changed);
        if let Some(needed) = self.garbage.excess(oldest, self.options.unused_extent_bytes_max) {
            self.versions.expire_before(needed);
        }
        for Decided { pending, result, is_applied } in done {
            if !is_applied {
                pending.prepared.discard(&*self.extents);
            }
            pending.receiver.receive(result);
        }
    }

    /// Passes the failure of the commit of a group to the receivers. `not_yet` is a transaction
    /// that waits for the removal of truncated content.
    fn fail_group(
        &self,
        error: &Error,
        has_failed: bool,
        done: Vec<Decided>,
        not_yet: Option<PendingTransaction>,
    ) {
        if is_full(error) && done.len() + usize::from(not_yet.is_some()) > 1 {
            // The transactions of the group may fit one by one.
            done.into_iter().for_each(|decided| self.commit_group(vec![decided.pending]));
            self.queue.put_back(Vec::from_iter(not_yet));
            return;
        }
        let failure = Failure::new(error);
        if let Some(pending) = not_yet {
            self.refuse(pending, &failure);
        }
        for Decided { pending, result, is_applied } in done {
            // If the key-value store has failed, the next open may find the commit, and removes the
            // extents that it does not refer to.
            if !has_failed || !is_applied {
                pending.prepared.discard(&*self.extents);
            }
            let failed = Refusal::Failed { operation: None, failure: failure.clone() };
            pending.receiver.receive(result.and(Err(failed)));
        }
    }

    /// Removes the extents of a transaction, and passes the failure to its receiver.
    fn refuse(&self, pending: PendingTransaction, failure: &Failure) {
        pending.prepared.discard(&*self.extents);
        pending.receiver.receive(Err(Refusal::Failed { operation: None, failure: failure.clone() }));
    }

    /// Writes changes. Snapshots of earlier states still see the values before the changes.
    fn write(
        &self,
        leader: &mut Leader,
        version: Version,
        latest: &Latest<'_>,
        changed: &Changed,
    ) -> Result<()> {
        let mut before = Vec::with_capacity(changed.len());
        for key in changed.keys() {
            before.push((key.clone(), latest.get(key)?));
        }
        self.versions.begin_commit(version, before);
        let mut written = self.tables.commit(batch_of(changed));
        if let Err(error) = &mut written {
            let is_refused =
                is_full(error) || matches!(error.kind, ErrorKind::InvalidInput | ErrorKind::PermissionDenied);
            // `NoSpace` is also the error of a key-value store that has failed.
            let is_failure = !is_refused || self.tables.sync().is_err();
            let is_first_failure = is_failure && !std::mem::replace(&mut leader.has_failed, true);
            if is_failure {
                self.failure.get_or_init(|| Failure::new(error));
            }
            // The first commit that fails may be visible, so readers need the values before it.
            // Refused commits and later commits have written nothing.
            if !is_first_failure {
                self.versions.undo_commit(version);
            } else if is_full(error) {
                // `NoSpace` would state that nothing was written.
                error.kind = ErrorKind::Os(quell_vfs::errno::EIO);
            }
        }
        written
    }

    /// Returns whether there is enough unneeded data to remove some of it.
    pub(crate) fn has_removable(&self) -> bool {
        self.garbage.is_worth_a_step(self.options.unused_extent_bytes_max / 8)
    }

    /// Removes unneeded data if there is enough of it.
    pub(crate) fn remove_some(&self) {
        if self.has_removable() {
            self.remove_truncated();
            // Data that is not removed waits for a later step: no commit depends on it.
            let _ = self.garbage.try_remove(self.versions.oldest_needed(), REMOVED_IN_A_STEP);
        }
    }

    /// Removes all unneeded data, except the content that truncations have left.
    pub(crate) fn remove_all(&self) -> Result<()> {
        self.garbage.remove(self.versions.oldest_needed())
    }

    /// Returns the failure of a write after which all commits fail, if there was one.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    /// Removes the extents that earlier processes have written, and to which no commit refers.
    /// Returns their number.
    pub(crate) fn remove_orphans(&self) -> Result<usize> {
        // Commits of this process refer only to extents of its own epoch, or to extents to which
        // earlier commits refer.
        remove_uncommitted(&Latest(&*self.tables), &*self.extents, 0..self.epoch)
    }

    /// Makes the next thread that commits remove the content that truncations have left.
    pub(crate) fn remove_truncated(&self) {
        for name in self.garbage.take_truncated() {
            self.remove_stale_of(name);
        }
    }

    /// Makes the next thread that commits remove the content of a blob that a truncation has left.
    pub(crate) fn remove_stale_of(&self, name: Vec<u8>) {
        let prepared = Step::RemoveStale(name).alone();
        self.queue.add_only(PendingTransaction { prepared, receiver: Receiver::Function(Box::new(|_| ())) });
    }
}

/// Returns whether the storage has no space for a write.
fn is_full(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::NoSpace | ErrorKind::Quota)
}
