//! The two halves of a rename between two members. The member of the old name coordinates it and
//! keeps the decision; the member of the new name prepares it and keeps the name locked until it
//! knows the decision. Both records survive the end of a daemon.

use std::rc::Rc;

use quell_kv::{Batch, KeyRange};
use quell_vfs::{Error, ErrorKind, Result, check_name};
use quell_wire::pool::{FileId, MemberId, NodeKind, PeerRequest, RenameMode, Reply, TransactionId};

use crate::inode::{EntryRecord, PreparedName, from_bytes, to_bytes};
use crate::keys;
use crate::lock_table::Lock;
use crate::map::NameHash;
use crate::member::Member;
use crate::prepared::Prepared;
use crate::replies::unexpected;

impl Member {
    /// Locks the new name of a rename and records the entry that it may get.
    pub(crate) fn prepare_name(
        &self,
        transaction: TransactionId,
        dir: FileId,
        name: &[u8],
        id: FileId,
        kind: NodeKind,
        mode: RenameMode,
    ) -> Result<Reply<'static>> {
        check_name(name)?;
        let refused = |kind| Err(Error::new(kind, "rename", name));
        // To wait here could be a deadlock with a rename in the other direction.
        let Some(held) = self.locks.try_lock(Lock::Name(dir, name.to_vec())) else {
            return refused(ErrorKind::Busy);
        };
        self.check_dir_is_open(dir, name)?;
        let existing = self.entry(dir, name)?;
        match (mode, existing) {
            (RenameMode::Keep, Some(_)) => return refused(ErrorKind::Exists),
            (RenameMode::Exchange, None) => return refused(ErrorKind::NotFound),
            (RenameMode::Replace, Some(existing)) => match (kind, existing.kind) {
                (NodeKind::Dir, NodeKind::Dir) => {}
                (NodeKind::Dir, _) => return refused(ErrorKind::NotADirectory),
                (_, NodeKind::Dir) => return refused(ErrorKind::IsADirectory),
                _ => {}
            },
            _ => {}
        }
        let record = PreparedName { dir, name: name.to_vec(), new: EntryRecord { id, kind } };
        let mut batch = Batch::new();
        batch.put(&keys::prepared(transaction), &to_bytes(&record));
        self.environment.store.commit(batch)?;
        self.prepared.borrow_mut().insert(transaction, Prepared::new(record, held));
        Ok(Reply::Prepared(existing.map(|entry| (entry.id, entry.kind))))
    }

    /// Carries a prepared transaction out, or forgets it. A repetition has no effect.
    pub(crate) fn end_transaction(
        &self,
        transaction: TransactionId,
        is_committed: bool,
    ) -> Result<Reply<'static>> {
        let Some(prepared) = self.prepared.borrow_mut().remove(&transaction) else {
            return Ok(Reply::Done);
        };
        let PreparedName { dir, name, new } = &prepared.record;
        let mut batch = Batch::new();
        batch.delete(&keys::prepared(transaction));
        if is_committed {
            batch.put(&keys::entry(*dir, NameHash::new(*dir, name), name), &to_bytes(new));
        }
        if let Err(error) = self.environment.store.commit(batch) {
            // The name stays locked until the transaction can be ended.
            self.prepared.borrow_mut().insert(transaction, prepared);
            return Err(error);
        }
        if is_committed {
            self.note_change_of(*dir, self.now());
        }
        Ok(Reply::Done)
    }

    /// Returns whether a transaction of this member was committed. One that was not, and is not
    /// being performed, never will be.
    pub(crate) fn outcome(&self, transaction: TransactionId) -> Result<Reply<'static>> {
        if self.undecided.borrow().contains(&transaction) {
            return Err(Error::new(ErrorKind::Busy, "end a rename", ""));
        }
        let record = self.environment.store.get(&keys::committed(transaction))?;
        Ok(Reply::Committed(record.is_some()))
    }

    /// Reads the prepared names from the store and locks them, before any request is served.
    pub(crate) fn load_prepared(&self) -> Result<()> {
        let first = keys::all_prepared();
        let mut loaded = Ok(());
        self.environment.store.scan(&KeyRange::prefix(&first), &mut |key, value| {
            let record = from_bytes::<PreparedName>(value, "prepared name");
            match (keys::parse_prepared(key), record) {
                (Some(transaction), Ok(record)) => {
                    let lock = Lock::Name(record.dir, record.name.clone());
                    let held = self.locks.try_lock(lock).expect("one transaction has prepared a name");
                    self.prepared.borrow_mut().insert(transaction, Prepared::new(record, held));
                }
                (_, Err(error)) => loaded = Err(error),
                (None, Ok(_)) => {}
            }
            loaded.is_ok()
        })?;
        loaded
    }

    /// Asks the coordinators of prepared transactions for the decision, and ends those that are
    /// decided. Called when the service has started, and from time to time.
    ///
    /// # Errors
    ///
    /// Of the first transaction that could not be ended; the others are ended.
    pub async fn end_prepared(self: Rc<Member>) -> Result<()> {
        let waiting: Vec<TransactionId> = self.prepared.borrow().keys().copied().collect();
        let mut result = Ok(());
        for transaction in waiting {
            let ended = match self.call(transaction.coordinator, &PeerRequest::Outcome { transaction }).await
            {
                Ok(Reply::Committed(is_committed)) => {
                    // The coordinator has ended before it could do this.
                    let forgotten = self.tell_all(&PeerRequest::ForgetDirs).await;
                    self.end_transaction(transaction, is_committed).and(forgotten)
                }
                Ok(other) => Err(unexpected(&other)),
                // It is being performed.
                Err(error) if error.kind == ErrorKind::Busy => Ok(()),
                Err(error) => Err(error),
            };
            result = result.and(ended);
        }
        result
    }

    /// Takes the lock of renames for a member.
    pub(crate) async fn lock_renames(self: &Rc<Member>, from: MemberId) -> Result<Reply<'static>> {
        let held = self.locks.lock(Lock::Renames).await;
        self.renames.borrow_mut().insert(from, held);
        Ok(Reply::Done)
    }
}
