//! A store of blobs that this process has open.

use std::fmt;
use std::sync::Arc;

use quell_kv::KeyValue;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{JointId, Outcome, Preparation, Refusal, StoreCounters, Transaction, Version};

use crate::apply::PreparedOperation;
use crate::content::NewExtent;
use crate::engine::Engine;
use crate::extent_upload::ExtentUpload;
use crate::extents::Extents;
use crate::joint::JointStep;
use crate::options::{Clock, Options};
use crate::prepared::{Prepared, Step};
use crate::queue::{CommitResult, PendingTransaction, Receiver, Waiter};
use crate::snapshot::Snapshot;
use crate::waiters::WaiterId;

/// A store of blobs that this process has open; no other process has it open at the same time. All
/// methods may be called by several threads. A clone refers to the same store.
#[derive(Clone)]
pub struct OpenStore(Arc<Engine>);

impl OpenStore {
    /// Opens the store whose tables are in `tables`, or creates one if `tables` is empty. No other
    /// code may use `tables` and `extents`.
    ///
    /// # Errors
    /// `Damaged` if the tables do not have their format; the errors of the key-value store and of
    /// the extents.
    pub fn open(
        tables: Arc<dyn KeyValue>,
        extents: Arc<dyn Extents>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<OpenStore> {
        Ok(OpenStore(Arc::new(Engine::open(tables, extents, clock, options)?)))
    }

    /// Returns a snapshot of the latest state.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.0.clone())
    }

    /// Returns the version of the latest state, which contains everything that was committed before
    /// the call.
    pub fn version(&self) -> Version {
        self.0.versions.published()
    }

    /// Commits a transaction, and returns when it survives all failures that a commit of the
    /// key-value store survives.
    ///
    /// The calling thread may commit transactions of other threads with its own.
    ///
    /// # Errors
    /// See [`Refusal`]. The transaction has changed nothing, unless a write failed. In this case,
    /// all later commits fail until the store is opened again, and then it contains either all
    /// changes of the transaction or none.
    pub fn commit(&self, transaction: Transaction) -> CommitResult {
        let prepared = self.0.prepare(transaction, Vec::new())?;
        let waiter = Arc::new(Waiter::default());
        let receiver = Receiver::Thread(waiter.clone());
        let mut leads = self.0.queue.add(PendingTransaction { prepared, receiver });
        loop {
            if !leads {
                match waiter.wait() {
                    Some(result) => return result,
                    None => leads = true,
                }
            }
            self.0.commit_next_group();
            if let Some(result) = waiter.take() {
                while self.0.queue.pass_on() {
                    self.0.commit_next_group();
                }
                self.0.remove_some();
                return result;
            }
        }
    }

    /// Adds a transaction to the queue of transactions that wait for their commit. A thread that
    /// commits, for example in [`commit_pending`](OpenStore::commit_pending), passes the result to
    /// `done`, which must not block. Data of 32 KiB and more is written before the call returns.
    pub fn submit(&self, transaction: Transaction, done: impl FnOnce(CommitResult) + Send + 'static) {
        self.submit_written(transaction, Vec::new(), done);
    }

    /// As [`submit`](OpenStore::submit), for a transaction with extents that are written already.
    /// `written` has them with the positions of their operations in ascending order.
    pub(crate) fn submit_written(
        &self,
        transaction: Transaction,
        written: Vec<(u32, NewExtent)>,
        done: impl FnOnce(CommitResult) + Send + 'static,
    ) {
        match self.0.prepare(transaction, written) {
            Ok(prepared) => self.add(prepared, done),
            Err(refusal) => done(Err(refusal)),
        }
    }

    /// Begins an extent whose data is sent in parts.
    pub(crate) fn begin_extent(&self) -> ExtentUpload {
        self.0.begin_extent()
    }

    /// Ends an extent, after which a transaction can refer to it.
    pub(crate) fn finish_extent(&self, upload: ExtentUpload) -> Result<()> {
        upload.finish(&*self.0.extents)
    }

    /// Marks an extent to which no transaction refers for removal. Does not block.
    pub(crate) fn abandon_extent(&self, extent: NewExtent) {
        self.0.abandon(extent);
    }

    /// Adds a step of a joint transaction to the transactions that wait for their commit. `step`
    /// receives whether operations are added with it: those of the transaction `committed`, if it
    /// is prepared here.
    pub(crate) fn submit_joint(
        &self,
        committed: Option<JointId>,
        step: impl FnOnce(bool) -> JointStep,
        done: impl FnOnce(CommitResult) + Send + 'static,
    ) {
        match self.0.prepare_joint(committed, step) {
            Ok(prepared) => self.add(prepared, done),
            Err(refusal) => done(Err(refusal)),
        }
    }

    /// Adds the preparation of a joint transaction to the transactions that wait for their commit.
    pub(crate) fn submit_preparation(
        &self,
        mut preparation: Preparation,
        done: impl FnOnce(CommitResult) + Send + 'static,
    ) {
        let operations = &mut preparation.transaction.operations;
        let inline = operations.iter().cloned().map(PreparedOperation::inline).collect();
        let step = Step::Joint(JointStep::Prepare(Arc::new(preparation)));
        self.add(Prepared { operations: inline, ..step.alone() }, done);
    }

    fn add(&self, prepared: Prepared, done: impl FnOnce(CommitResult) + Send + 'static) {
        self.0.queue.add_only(PendingTransaction { prepared, receiver: Receiver::Function(Box::new(done)) });
    }

    /// Returns the outcome of a joint transaction that this group has decided, and the participants
    /// that have not all confirmed it.
    pub(crate) fn joint_decision(&self, id: JointId) -> Result<(Outcome, Vec<u32>)> {
        if let Some(record) = self.0.joint_unconfirmed(id)? {
            return Ok((Outcome::Committed, record.participants));
        }
        match self.0.joint_outcome(id)? {
            Some(record) => Ok((record.outcome, Vec::new())),
            None => Err(Error::new(ErrorKind::Unavailable, "find the decision about", "transaction")),
        }
    }

    /// Returns the joint transactions that are prepared, with their coordinators, and the joint
    /// transactions whose commit is not confirmed, for which this group is the coordinator
    /// (`None`).
    pub(crate) fn joint_undecided(&self) -> Result<Vec<(JointId, Option<u32>)>> {
        self.0.joint_undecided()
    }

    /// Makes commits wait for some milliseconds; 0 ends the wait.
    pub(crate) fn hold(&self, milliseconds: u32) {
        self.0.hold(milliseconds);
    }

    /// Returns whether transactions wait for their commit, because they were just submitted, or
    /// because a snapshot of several groups is being taken.
    pub fn has_pending(&self) -> bool {
        self.0.queue.has_pending()
    }

    /// Commits the transactions that wait, and removes unneeded data as
    /// [`remove_some`](OpenStore::remove_some) does. Returns false if no transactions wait, or
    /// another thread commits them.
    pub fn commit_pending(&self) -> bool {
        let has_committed = self.commit_pending_and(&mut || ());
        if has_committed {
            self.remove_some();
        }
        has_committed
    }

    /// Does the same as [`commit_pending`](OpenStore::commit_pending), but removes no data: the
    /// caller must call [`remove_some`](OpenStore::remove_some) if there is something to
    /// [remove](OpenStore::has_removable). `after_group` is called after the results of each group
    /// were passed on.
    pub fn commit_pending_and(&self, after_group: &mut dyn FnMut()) -> bool {
        self.0.commit_pending(after_group)
    }

    /// Returns whether there is enough unneeded data that its removal is worth a commit.
    pub fn has_removable(&self) -> bool {
        self.0.has_removable()
    }

    /// Removes data that neither the latest state nor a snapshot needs, if there is enough of it.
    /// The call waits for the storage; commits and reads continue meanwhile. The removal of content
    /// that a truncation has left is added to the transactions that wait.
    pub fn remove_some(&self) {
        self.0.remove_some();
    }

    /// Removes all data that neither the latest state nor a snapshot needs.
    ///
    /// # Errors
    /// The errors of the key-value store and of the extents. A later call removes the rest.
    pub fn collect(&self) -> Result<()> {
        // The content that truncations have left is removed first, because it refers to extents.
        self.0.remove_truncated();
        self.commit_pending();
        self.0.remove_all()
    }

    /// Returns the failure of a write after which all commits fail, if there was one. The store
    /// must be opened again.
    pub fn failure(&self) -> Option<Error> {
        self.0.failure().map(|failure| failure.clone().into_error("write to", b"the store"))
    }

    /// Removes the extents that earlier processes wrote and never committed, and returns their
    /// number. Commits and reads continue meanwhile. The call lists all extents.
    /// [`open`](OpenStore::open) removes such extents of the last process, unless
    /// [`Options::lists_when_opened`] is false. Other such extents exist only if a write was
    /// performed after its process had been replaced, which is possible in RADOS.
    ///
    /// # Errors
    /// The errors of the key-value store and of the extents. A later call removes the rest.
    pub fn remove_orphans(&self) -> Result<usize> {
        self.0.remove_orphans()
    }

    /// Records that a client was refused because names are locked, so that no further joint
    /// transaction locks these names until the client has used them.
    pub(crate) fn add_waiter<'a>(
        &self,
        names: impl IntoIterator<Item = &'a [u8]>,
        client: WaiterId,
        refusal: &Refusal,
    ) {
        self.0.waiters.add(names, client, refusal, self.monotonic_ns());
    }

    /// Records that a client has used the names for which `is_used` returns true.
    pub(crate) fn remove_waiter(&self, is_used: impl Fn(&[u8]) -> bool, client: WaiterId) {
        self.0.waiters.remove(is_used, client);
    }

    /// Returns the names with a prefix that joint transactions have locked.
    pub(crate) fn locked_names(&self, prefix: &[u8]) -> Vec<Vec<u8>> {
        let locks = self.0.versions.locks();
        let names = locks.iter().flat_map(|locks| locks.names());
        names.filter(|name| name.starts_with(prefix)).map(<[u8]>::to_vec).collect()
    }

    /// Returns the time of day, in nanoseconds since 1970.
    pub(crate) fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    /// Returns the time of a monotonic clock, in nanoseconds.
    pub(crate) fn monotonic_ns(&self) -> u64 {
        self.0.monotonic_ns()
    }

    /// Adds the counters of the extents, and of the history.
    pub(crate) fn count(&self, counters: &mut StoreCounters) {
        self.0.count(counters);
    }

    /// Returns the memory that the values for snapshots need, in bytes.
    pub fn history_bytes(&self) -> u64 {
        self.0.versions.history_bytes()
    }

    /// Waits until all commits survive a power failure.
    ///
    /// # Errors
    /// The errors of the key-value store.
    pub fn sync(&self) -> Result<()> {
        self.0.tables.sync()
    }
}

impl fmt::Debug for OpenStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenStore").field("version", &self.version()).finish_non_exhaustive()
    }
}
