//! The commits of a store: in groups, one group at a time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use quell_kv::{BATCH_BYTES_MAX, Batch, KeyValue};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::Failure;
use quell_wire::blob::{Committed, Refusal, StoreCounters, Transaction, TransactionId, Version};

use crate::apply::{self, Environment, NotDone};
use crate::epoch::{EPOCH_MAX, first_of, is_almost_used_up};
use crate::extents::{ExtentId, Extents};
use crate::garbage::{Garbage, REMOVED_IN_A_STEP, remove_uncommitted};
use crate::keys::{self, ContentId};
use crate::options::{Clock, Options};
use crate::prepared::Prepared;
use crate::queue::{CommitResult, PendingTransaction, Queue, Receiver};
use crate::recent::{Change, RecentChanges};
use crate::tables::{Changed, Changes, Latest, Tables, batch_of, visit_prefix};
use crate::versions::Versions;

/// The size of the changes of one group, in bytes, after which no transaction is added to it.
const GROUP_BYTES: u64 = 8 << 20;
/// The size of the changes of one transaction, in bytes. A group with its last transaction fits
/// into a batch.
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
    /// The extents that were written, and their bytes.
    written_extents: AtomicU64,
    written_extent_bytes: AtomicU64,
    /// The failure after which all commits fail.
    failure: OnceLock<Failure>,
}

/// The state of the thread that commits.
struct Leader {
    last: Version,
    recent: RecentChanges,
    /// The transactions whose results are kept, in the order of their commits.
    results: VecDeque<(Version, TransactionId)>,
    /// The results of transactions that began before this state may have been removed.
    forgotten_results: Version,
    /// Whether a commit of the key-value store failed, so that all later ones fail.
    has_failed: bool,
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
        // Before the new epoch is stored: an opening that fails here is repeated by the next one.
        if options.lists_when_opened {
            remove_uncommitted(&latest, &*extents, before..epoch)?;
        }
        let mut batch = Batch::new();
        batch.put(keys::EPOCH, &keys::encode(&epoch));
        // A store on a full disk can be opened, to read it and to delete blobs.
        batch.allow_reserve();
        tables.commit(batch)?;
        tables.sync()?;
        let mut results = Vec::new();
        visit_prefix(&latest, &keys::results(), &mut |key, value| {
            let committed: Committed = keys::decode(value)?;
            results.push((committed.version, keys::transaction_of(key)?));
            Ok(())
        })?;
        results.sort_by_key(|(version, _)| *version);
        let forgotten_results = match tables.get(keys::FORGOTTEN_RESULTS)? {
            Some(version) => keys::decode(&version)?,
            None => Version(0),
        };
        let opened = Version(first_of(epoch));
        let recent = RecentChanges::new(opened);
        let results = results.into();
        let leader = Leader { last: opened, recent, results, forgotten_results, has_failed: false };
        Ok(Engine {
            versions: Versions::new(opened, options.history_bytes_max),
            leader: Mutex::new(leader),
            last_number: AtomicU64::new(first_of(epoch)),
            garbage: Garbage::find(tables.clone(), extents.clone(), opened)?,
            queue: Queue::default(),
            written_extents: AtomicU64::new(0),
            written_extent_bytes: AtomicU64::new(0),
            tables,
            extents,
            clock,
            options,
            epoch,
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

    /// Checks the limits of a transaction, and writes its large data.
    pub(crate) fn prepare(&self, transaction: Transaction) -> std::result::Result<Prepared, Refusal> {
        let prepared = Prepared::new(transaction, &*self.extents, &|| ExtentId(self.new_number()))?;
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

    /// Commits the transactions that wait, unless another thread does, and calls `after_group`
    /// after each group. Returns whether there were any.
    pub(crate) fn commit_pending(&self, after_group: &mut dyn FnMut()) -> bool {
        if !self.queue.lead() {
            return false;
        }
        loop {
            self.commit_next_group();
            after_group();
            if !self.queue.pass_on() {
                self.remove_some();
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

    /// Commits transactions together, and passes on their results.
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
        let now_ns = self.clock.now_ns();
        let latest = Latest(&*self.tables);
        let mut all = Changes::new(&latest);
        // The changes of this group, in which a conflict is possible as well.
        let mut current = RecentChanges::new(Version(0));
        let mut new_results = Vec::new();
        let mut group = VecDeque::from(group);
        let mut done = Vec::with_capacity(group.len());
        let mut not_yet = None;
        while let Some(pending) = group.pop_front() {
            if all.size_bytes() > GROUP_BYTES {
                group.push_front(pending);
                break;
            }
            let decision = self.apply(&leader, &current, &mut all, &pending.prepared, version, now_ns);
            let (result, is_applied) = match decision {
                Ok(Decision::Applied(committed, changed)) => {
                    changed.into_iter().for_each(|change| current.add(version, change));
                    if let Some(id) = pending.prepared.id {
                        new_results.push((version, id));
                    }
                    (Ok(committed), true)
                }
                Ok(Decision::Repeated(committed)) => (Ok(committed), false),
                // The rest of the truncated content is removed by the next group.
                Ok(Decision::NotYet) => {
                    not_yet = Some(pending);
                    break;
                }
                Err(refusal) => (Err(refusal), false),
            };
            // Its extents are kept until the commit: if this fails, it may be applied again.
            done.push(Decided { pending, result, is_applied });
        }
        if !group.is_empty() {
            self.queue.put_back(group.into());
        }
        let forgotten = self.forget_results(&leader, &mut all, new_results.len());
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
        let last = leader.results.drain(..forgotten).next_back();
        if let Some((last, _)) = last {
            leader.forgotten_results = last;
        }
        leader.results.extend(new_results);
        current.into_changes().for_each(|change| leader.recent.add(version, change));
        let oldest = self.versions.publish(version);
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

    /// Passes on the failure of the commit of a group. `not_yet` is a transaction for which
    /// truncated content was to be removed.
    fn fail_group(
        &self,
        error: &Error,
        has_failed: bool,
        done: Vec<Decided>,
        not_yet: Option<PendingTransaction>,
    ) {
        if is_full(error) && done.len() + usize::from(not_yet.is_some()) > 1 {
            // A smaller group may still fit.
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

    /// Removes the extents of a transaction, and passes on the failure.
    fn refuse(&self, pending: PendingTransaction, failure: &Failure) {
        pending.prepared.discard(&*self.extents);
        pending.receiver.receive(Err(Refusal::Failed { operation: None, failure: failure.clone() }));
    }

    /// Decides whether a transaction is committed, and applies it to `all`.
    fn apply(
        &self,
        leader: &Leader,
        current: &RecentChanges,
        all: &mut Changes<'_>,
        prepared: &Prepared,
        version: Version,
        now_ns: u64,
    ) -> std::result::Result<Decision, Refusal> {
        if let Some(id) = prepared.id {
            if let Some(result) = all.get(&keys::result(id))? {
                return Ok(Decision::Repeated(keys::decode(&result)?));
            }
            if prepared.is_repeated && id.begun < leader.forgotten_results {
                let source = Some("the result of the first attempt is no longer known".into());
                return Err(
                    Error { source, ..Error::new(ErrorKind::Unavailable, "commit", "transaction") }.into()
                );
            }
        }
        if let Some(name) = &prepared.removes_stale_of {
            return match apply::has_stale(&*all, name)? {
                true => self.remove_stale(all, name),
                false => Ok(Decision::Applied(Committed { version, results: Vec::new() }, Vec::new())),
            };
        }
        if let Some(snapshot) = prepared.snapshot {
            if snapshot < leader.recent.forgotten() {
                return Err(Refusal::SnapshotTooOld);
            }
            let conflicts =
                |read| leader.recent.conflict(read, snapshot).or_else(|| current.conflict(read, snapshot));
            let conflicts: Vec<_> = prepared.reads.iter().filter_map(conflicts).collect();
            if !conflicts.is_empty() {
                return Err(Refusal::Conflict(conflicts));
            }
        }
        let mut own = Changes::new(&*all);
        let new_id = || ContentId(self.new_number());
        let bytes_max = TRANSACTION_BYTES_MAX;
        let environment = Environment { extents: &*self.extents, new_id: &new_id, now_ns, bytes_max };
        let applied = match apply::apply(&mut own, &environment, &prepared.operations) {
            Ok(applied) => applied,
            Err(NotDone::Refused(refusal)) => return Err(refusal),
            Err(NotDone::Stale(name)) => return self.remove_stale(all, &name),
        };
        let committed = Committed { version, results: applied.results };
        if let Some(id) = prepared.id {
            own.put(keys::result(id), &keys::encode(&committed));
        }
        if own.size_bytes() > TRANSACTION_BYTES_MAX {
            return Err(apply::too_large().into());
        }
        let own = own.into_changed();
        all.add(own);
        Ok(Decision::Applied(committed, applied.changes))
    }

    /// Removes a part of the content that a truncation of a blob has left.
    fn remove_stale(&self, all: &mut Changes<'_>, name: &[u8]) -> std::result::Result<Decision, Refusal> {
        if !apply::has_stale(&*all, name)? {
            let source = Some("it truncates a large blob and extends it again; divide it".into());
            return Err(
                Error { source, ..Error::new(ErrorKind::InvalidInput, "commit", "transaction") }.into()
            );
        }
        apply::remove_stale(all, &*self.extents, name, REMOVED_IN_A_STEP)?;
        Ok(Decision::NotYet)
    }

    /// Removes the oldest results of transactions if there are too many with `new` ones. Returns
    /// their number: they are forgotten when the commit succeeds.
    fn forget_results(&self, leader: &Leader, all: &mut Changes<'_>, new: usize) -> usize {
        let surplus = (leader.results.len() + new).saturating_sub(self.options.results_max.max(new));
        let forgotten = surplus.min(leader.results.len());
        for (_, id) in leader.results.range(..forgotten) {
            all.delete(keys::result(*id));
        }
        if let Some((version, _)) = leader.results.range(..forgotten).next_back() {
            all.put(keys::FORGOTTEN_RESULTS.to_vec(), &keys::encode(version));
        }
        forgotten
    }

    /// Writes changes. Snapshots of earlier states see the values before them.
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
        let written = self.tables.commit(batch_of(changed));
        if let Err(error) = &written {
            let is_refused =
                is_full(error) || matches!(error.kind, ErrorKind::InvalidInput | ErrorKind::PermissionDenied);
            // `NoSpace` is also the error of a key-value store that has failed.
            let is_failure = !is_refused || self.tables.sync().is_err();
            let is_first_failure = is_failure && !std::mem::replace(&mut leader.has_failed, true);
            if is_failure {
                self.failure.get_or_init(|| Failure::new(error));
            }
            // The first commit that fails may be visible: readers need the values before it.
            // Refused and later ones have written nothing.
            if !is_first_failure {
                self.versions.undo_commit(version);
            }
        }
        written
    }

    /// Removes unneeded data if there is enough of it.
    pub(crate) fn remove_some(&self) {
        if self.garbage.is_worth_a_step(self.options.unused_extent_bytes_max / 8) {
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

    /// Removes the extents that processes wrote before this one opened the store, and that no
    /// commit refers to. Returns their number.
    pub(crate) fn remove_orphans(&self) -> Result<usize> {
        // Commits of this process refer to extents of its own epoch, or to those that others do.
        remove_uncommitted(&Latest(&*self.tables), &*self.extents, 0..self.epoch)
    }

    /// Lets the next thread that commits remove the content that truncations have left.
    pub(crate) fn remove_truncated(&self) {
        for name in self.garbage.take_truncated() {
            self.remove_stale_of(name);
        }
    }

    /// Lets the next thread that commits remove the content of a blob that a truncation has left.
    pub(crate) fn remove_stale_of(&self, name: Vec<u8>) {
        let prepared = Prepared { removes_stale_of: Some(name), ..Prepared::default() };
        self.queue.add_only(PendingTransaction { prepared, receiver: Receiver::Function(Box::new(|_| ())) });
    }
}

/// Returns whether the storage has no space for a write.
fn is_full(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::NoSpace | ErrorKind::Quota)
}

/// The decision about a transaction.
enum Decision {
    Applied(Committed, Vec<Change>),
    /// It was committed before.
    Repeated(Committed),
    /// A part of the truncated content was removed; it is applied with the next group.
    NotYet,
}
