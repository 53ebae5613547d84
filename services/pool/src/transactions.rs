//! Transactions: changes of records on several members that take effect together. The member that
//! has the entry is the coordinator. The other members prepare their changes, and keep the names
//! locked until they know the decision, which is one write to the store of the coordinator. All
//! records survive the end of a daemon.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use quell_kv::{Batch, KeyRange};
use quell_vfs::{Error, ErrorKind, Result, check_name};
use quell_wire::pool::{FileId, MemberId, NodeKind, PeerRequest, RenameMode, Reply, TransactionId};

use crate::inode::{EntryRecord, PreparedChange, from_bytes, to_bytes};
use crate::keys;
use crate::lock_table::{HeldLock, Lock};
use crate::map::NameHash;
use crate::member::Member;
use crate::prepared::Prepared;
use crate::replies::unexpected;

/// The time after which a member requests the decision on a prepared change from the coordinator.
const DECISION_EXPECTED: Duration = Duration::from_secs(1);

/// A transaction that this member coordinates.
pub struct Transaction {
    pub id: TransactionId,
    members: BTreeSet<MemberId>,
}

// The coordinator.
impl Member {
    /// Begins a transaction. It must be ended with `conclude`.
    pub(crate) fn begin(&self) -> Result<Transaction> {
        let id = TransactionId { coordinator: self.id, number: self.next_number()? };
        self.undecided.borrow_mut().insert(id);
        Ok(Transaction { id, members: BTreeSet::new() })
    }

    /// Sends a request that prepares a change.
    pub(crate) async fn prepare(
        self: &Rc<Member>,
        transaction: &mut Transaction,
        member: MemberId,
        request: PeerRequest<'_>,
    ) -> Result<Reply<'static>> {
        transaction.members.insert(member);
        self.call(member, request).await
    }

    /// Prepares the removal of an empty directory on all members.
    ///
    /// # Errors
    ///
    /// `NotEmpty` if it has entries.
    pub(crate) async fn prepare_removal_of(
        self: &Rc<Member>,
        transaction: &mut Transaction,
        dir: FileId,
        name: &[u8],
    ) -> Result<()> {
        transaction.members.extend(self.map.members());
        let request = PeerRequest::PrepareRemoval { transaction: transaction.id, dir };
        let mut outcome = Ok(());
        for reply in self.call_all(&request).await {
            outcome = outcome.and(match reply {
                Ok(Reply::HasEntries(false)) => Ok(()),
                Ok(Reply::HasEntries(true)) => Err(Error::new(ErrorKind::NotEmpty, "remove", name)),
                Ok(other) => Err(unexpected(&other)),
                Err(error) => Err(error),
            });
        }
        outcome
    }

    /// Prepares the new name of a node on its member.
    pub(crate) async fn prepare_name_of(
        self: &Rc<Member>,
        transaction: &mut Transaction,
        id: FileId,
        name: Option<(FileId, &[u8])>,
    ) -> Result<()> {
        let request = PeerRequest::PrepareNode { transaction: transaction.id, id, name };
        self.prepare(transaction, self.map.home(id)?, request).await.map(drop)
    }

    /// Makes all members invalidate the cached directories of their clients if the transaction is
    /// committed.
    pub(crate) fn changes_dirs(&self, transaction: &mut Transaction) {
        transaction.members.extend(self.map.members());
    }

    /// Decides a transaction: commits it with the changes of this member's own records, or aborts
    /// it if `changes` is an error. Then it sends the decision to the members that have prepared
    /// changes. If a member cannot be reached, the decision is sent again later, and this is not an
    /// error.
    ///
    /// # Errors
    ///
    /// The error of `changes`, and the errors of the store.
    pub(crate) async fn conclude(
        self: &Rc<Member>,
        transaction: Transaction,
        changes: Result<Batch>,
    ) -> Result<()> {
        let Transaction { id, members } = transaction;
        let has_changes = changes.is_ok();
        let decided = changes.and_then(|mut batch| {
            let members: Vec<MemberId> = members.iter().copied().collect();
            batch.put(&keys::committed(id), &to_bytes(&members));
            self.environment.store.commit(batch)
        });
        if let Err(error) = &decided
            && has_changes
            && !matches!(error.kind, ErrorKind::NoSpace | ErrorKind::InvalidInput)
        {
            // The next start of this member knows whether the decision was written.
            return decided;
        }
        self.undecided.borrow_mut().remove(&id);
        if decided.is_ok() {
            self.unsent_decisions.borrow_mut().insert(id, members.clone());
        }
        let sent = self.send_decision(id, &members, decided.is_ok()).await;
        if decided.is_ok() && sent.is_ok() {
            // After an error, `send_decisions` repeats it.
            let _ = self.forget_decision(id);
        }
        decided
    }

    async fn send_decision(
        self: &Rc<Member>,
        transaction: TransactionId,
        members: &BTreeSet<MemberId>,
        is_committed: bool,
    ) -> Result<()> {
        let send =
            |member: &MemberId| self.call(*member, PeerRequest::EndTransaction { transaction, is_committed });
        join_all(members.iter().map(send)).await.into_iter().try_for_each(|sent| sent.map(drop))
    }

    fn forget_decision(&self, transaction: TransactionId) -> Result<()> {
        let mut batch = Batch::new();
        batch.delete(&keys::committed(transaction));
        self.environment.store.commit(batch)?;
        self.unsent_decisions.borrow_mut().remove(&transaction);
        Ok(())
    }

    /// Sends the decisions of this coordinator to the members that have not received them.
    pub(crate) async fn send_decisions(self: &Rc<Member>) -> Result<()> {
        let unsent = self.unsent_decisions.borrow().clone();
        let sent = unsent.iter().map(async |(transaction, members)| {
            self.send_decision(*transaction, members, true).await?;
            self.forget_decision(*transaction)
        });
        join_all(sent).await.into_iter().collect()
    }

    /// Returns whether a transaction of this member was committed. A transaction that was not
    /// committed and is not being performed will never be committed.
    pub(crate) fn outcome(&self, transaction: TransactionId) -> Result<Reply<'static>> {
        if self.undecided.borrow().contains(&transaction) {
            return Err(Error::new(ErrorKind::Busy, "end a transaction", ""));
        }
        let record = self.environment.store.get(&keys::committed(transaction))?;
        Ok(Reply::Committed(record.is_some()))
    }

    /// Reads the decisions of this member from the store.
    pub(crate) fn load_decisions(&self) -> Result<()> {
        let mut loaded = Ok(());
        self.environment.store.scan(&KeyRange::prefix(&keys::all_committed()), &mut |key, value| {
            match (keys::parse_transaction(key), from_bytes::<Vec<MemberId>>(value, "decision")) {
                (Some(transaction), Ok(members)) => {
                    self.unsent_decisions.borrow_mut().insert(transaction, members.into_iter().collect());
                }
                (_, Err(error)) => loaded = Err(error),
                (None, Ok(_)) => {}
            }
            loaded.is_ok()
        })?;
        loaded
    }
}

// The other members, and the coordinator for its own records.
impl Member {
    /// Locks the new name of a rename and records the entry that it may get.
    pub(crate) fn prepare_name(
        &self,
        transaction: TransactionId,
        (dir, name): (FileId, &[u8]),
        new: EntryRecord,
        mode: RenameMode,
    ) -> Result<Reply<'static>> {
        check_name(name)?;
        let refused = |kind| Err(Error::new(kind, "rename", name));
        let change = PreparedChange::Entry { dir, name: name.to_vec(), new };
        if self.prepared.borrow().has(transaction, &change) {
            // The request is a repetition after a restart of this member.
            return Ok(Reply::Prepared(self.entry(dir, name)?.map(|entry| (entry.id, entry.kind))));
        }
        // Waiting here could cause a deadlock with a rename in the other direction.
        let Some(held) = self.locks.try_lock(Lock::Name(dir, name.to_vec())) else {
            return refused(ErrorKind::Busy);
        };
        self.check_dir_is_open(dir, name)?;
        let existing = self.entry(dir, name)?;
        match (mode, existing) {
            (RenameMode::Keep, Some(_)) => return refused(ErrorKind::Exists),
            (RenameMode::Exchange, None) => return refused(ErrorKind::NotFound),
            (RenameMode::Replace, Some(existing)) => match (new.kind, existing.kind) {
                (NodeKind::Dir, NodeKind::Dir) => {}
                (NodeKind::Dir, _) => return refused(ErrorKind::NotADirectory),
                (_, NodeKind::Dir) => return refused(ErrorKind::IsADirectory),
                _ => {}
            },
            _ => {}
        }
        self.keep_prepared(transaction, change, Some(held))?;
        Ok(Reply::Prepared(existing.map(|entry| (entry.id, entry.kind))))
    }

    /// Records the name that a node may get or lose. Meanwhile no other transaction can move the
    /// node.
    pub(crate) fn prepare_node(
        &self,
        transaction: TransactionId,
        id: FileId,
        name: Option<(FileId, &[u8])>,
    ) -> Result<Reply<'static>> {
        let kind = self.inode(id)?.kind;
        let name = name.map(|(dir, name)| (dir, name.to_vec()));
        let change = PreparedChange::Node { id, kind, name };
        if self.prepared.borrow().has(transaction, &change) {
            return Ok(Reply::Done);
        }
        if self.prepared.borrow().moves(id) {
            return Err(Error::new(ErrorKind::Busy, "rename a node", ""));
        }
        self.keep_prepared(transaction, change, None)?;
        Ok(Reply::Done)
    }

    /// Refuses new entries in a directory from now on, and returns whether it has entries.
    pub(crate) fn prepare_removal(&self, transaction: TransactionId, dir: FileId) -> Result<Reply<'static>> {
        if self.prepared.borrow().has(transaction, &PreparedChange::Removal { dir }) {
            return Ok(Reply::HasEntries(false));
        }
        if self.has_entries(dir)? {
            return Ok(Reply::HasEntries(true));
        }
        // The directory is being removed, or it is not known yet whether it gets an entry.
        if self.prepared.borrow().removes(dir) || self.prepared.borrow().adds_to(dir) {
            return Err(Error::new(ErrorKind::Busy, "remove a directory", ""));
        }
        self.keep_prepared(transaction, PreparedChange::Removal { dir }, None)?;
        Ok(Reply::HasEntries(false))
    }

    fn keep_prepared(
        &self,
        transaction: TransactionId,
        change: PreparedChange,
        name: Option<HeldLock>,
    ) -> Result<()> {
        let mut prepared = self.prepared.borrow_mut();
        let known = prepared.0.get(&transaction).map_or(&[][..], |prepared| &prepared.changes);
        let changes: Vec<PreparedChange> = known.iter().cloned().chain([change]).collect();
        let mut batch = Batch::new();
        batch.put(&keys::prepared(transaction), &to_bytes(&changes));
        self.environment.store.commit(batch)?;
        let kept = prepared.0.entry(transaction).or_default();
        kept.changes = changes;
        kept.names.extend(name);
        kept.since = self.monotonic();
        Ok(())
    }

    /// Applies or discards the prepared changes of a transaction. A repetition has no effect.
    pub(crate) async fn end_transaction(
        self: &Rc<Member>,
        transaction: TransactionId,
        is_committed: bool,
    ) -> Result<Reply<'static>> {
        let prepared = self.prepared.borrow_mut().0.remove(&transaction);
        // A member that has prepared nothing receives the decision only to invalidate the cached
        // directories of its clients.
        if is_committed && prepared.as_ref().is_none_or(Prepared::changes_dirs) {
            self.environment.clients.forget_dirs();
        }
        let Some(prepared) = prepared else { return Ok(Reply::Done) };
        match self.write_end(transaction, &prepared, is_committed) {
            Ok(unused) => {
                drop(prepared);
                for id in unused {
                    // After an error, `finish_nodes` repeats it.
                    let _ = self.finish_node(id).await;
                }
                Ok(Reply::Done)
            }
            Err(error) => {
                // The names stay locked until the transaction can be ended.
                self.prepared.borrow_mut().0.insert(transaction, prepared);
                Err(error)
            }
        }
    }

    /// Writes the changes of a transaction. Returns the nodes that are no longer needed.
    fn write_end(
        &self,
        transaction: TransactionId,
        prepared: &Prepared,
        is_committed: bool,
    ) -> Result<Vec<FileId>> {
        let mut batch = Batch::new();
        batch.delete(&keys::prepared(transaction));
        let mut unused = Vec::new();
        let committed = if is_committed { &prepared.changes[..] } else { &[] };
        for change in committed {
            match change {
                PreparedChange::Entry { dir, name, new } => {
                    batch.put(&keys::entry(*dir, NameHash::new(*dir, name), name), &to_bytes(new));
                }
                PreparedChange::Node { id, name: Some((dir, name)), .. } => {
                    let mut inode = self.inode(*id)?;
                    inode.name = Some((*dir, name.clone()));
                    inode.changed = self.now();
                    batch.put(&keys::inode(*id), &to_bytes(&inode));
                }
                PreparedChange::Node { id, name: None, .. } => {
                    unused.extend(self.take_name(*id, &mut batch)?);
                }
                PreparedChange::Removal { dir } => {
                    batch.put(&keys::removed_dir(*dir), &[]);
                    batch.delete(&keys::dir_group(*dir));
                }
            }
        }
        self.environment.store.commit(batch)?;
        for change in committed {
            match change {
                PreparedChange::Entry { dir, .. } => self.note_change_of(*dir, self.now()),
                PreparedChange::Node { .. } => {}
                PreparedChange::Removal { dir } => {
                    self.removed_dirs.borrow_mut().insert(*dir);
                    self.dir_groups.borrow_mut().remove(dir);
                }
            }
        }
        self.unfinished.borrow_mut().extend(&unused);
        Ok(unused)
    }

    /// Reads the prepared changes from the store and locks the names, before any request is served.
    pub(crate) fn load_prepared(&self) -> Result<()> {
        let mut loaded = Ok(());
        self.environment.store.scan(&KeyRange::prefix(&keys::all_prepared()), &mut |key, value| {
            let changes = from_bytes::<Vec<PreparedChange>>(value, "prepared change");
            match (keys::parse_transaction(key), changes) {
                (Some(transaction), Ok(changes)) => {
                    let lock = |change: &PreparedChange| match change {
                        PreparedChange::Entry { dir, name, .. } => {
                            let held = self.locks.try_lock(Lock::Name(*dir, name.clone()));
                            Some(held.expect("one transaction has prepared a name"))
                        }
                        _ => None,
                    };
                    let names = changes.iter().filter_map(lock).collect();
                    let prepared = Prepared { changes, names, since: self.started };
                    self.prepared.borrow_mut().0.insert(transaction, prepared);
                }
                (_, Err(error)) => loaded = Err(error),
                (None, Ok(_)) => {}
            }
            loaded.is_ok()
        })?;
        loaded
    }

    /// Requests the decisions on prepared transactions from their coordinators, and ends the
    /// transactions that are decided.
    pub(crate) async fn end_prepared(self: &Rc<Member>) -> Result<()> {
        let now = self.monotonic();
        let is_late = |prepared: &Prepared| now.saturating_sub(prepared.since) >= DECISION_EXPECTED;
        let late: Vec<TransactionId> = {
            let prepared = self.prepared.borrow();
            prepared.0.iter().filter(|(_, prepared)| is_late(prepared)).map(|(id, _)| *id).collect()
        };
        let ended = late.into_iter().map(async |transaction| {
            match self.call(transaction.coordinator, PeerRequest::Outcome { transaction }).await {
                Ok(Reply::Committed(is_committed)) => {
                    self.end_transaction(transaction, is_committed).await.map(drop)
                }
                Ok(other) => Err(unexpected(&other)),
                // The transaction is still being performed.
                Err(error) if error.kind == ErrorKind::Busy => Ok(()),
                Err(error) => Err(error),
            }
        });
        join_all(ended).await.into_iter().collect()
    }
}
