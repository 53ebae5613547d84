//! Renames. The member of the old name coordinates: it locks the old name, has the new name
//! prepared by its member, decides with one write to its own store, and tells the other member.

use std::rc::Rc;

use quell_kv::Batch;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{FileId, NodeKind, Operation, PeerRequest, RenameMode, Reply, TransactionId};

use crate::inode::{EntryRecord, to_bytes};
use crate::keys;
use crate::lock_table::Lock;
use crate::map::NameHash;
use crate::member::Member;
use crate::replies::unexpected;

/// A directory and a name in it.
type Name<'a> = (FileId, &'a [u8]);

/// The largest number of directories above another. Longer chains can only be a cycle in damaged
/// records.
const DEPTH_MAX: usize = 1 << 20;

impl Member {
    /// Renames an entry of this member.
    pub(crate) async fn rename(
        self: &Rc<Member>,
        from: Name<'_>,
        to: Name<'_>,
        mode: RenameMode,
    ) -> Result<Reply<'static>> {
        let not_found = || Error::new(ErrorKind::NotFound, "rename", from.1);
        let known = self.entry(from.0, from.1)?.ok_or_else(not_found)?;
        // An exchange can move the other directory, whose kind is not known yet.
        let moves_dir = from.0 != to.0 && (known.kind == NodeKind::Dir || mode == RenameMode::Exchange);
        if !moves_dir {
            return self.rename_locked(from, to, mode, known).await;
        }
        let root = self.map.home(FileId::ROOT)?;
        self.call(root, &PeerRequest::LockRenames).await?;
        let renamed = self.rename_locked(from, to, mode, known).await;
        let unlocked = self.call(root, &PeerRequest::UnlockRenames).await;
        let reply = renamed?;
        unlocked?;
        Ok(reply)
    }

    async fn rename_locked(
        self: &Rc<Member>,
        from: Name<'_>,
        to: Name<'_>,
        mode: RenameMode,
        known: EntryRecord,
    ) -> Result<Reply<'static>> {
        let refused = |kind| Err(Error::new(kind, "rename", from.1));
        if from == to {
            return if mode == RenameMode::Keep { refused(ErrorKind::Exists) } else { Ok(Reply::Done) };
        }
        let _name = self.locks.lock(Lock::Name(from.0, from.1.to_vec())).await;
        match self.entry(from.0, from.1)? {
            Some(entry) if entry == known => {}
            // It changed while this operation waited: the caller tries again.
            Some(_) => return refused(ErrorKind::Busy),
            None => return refused(ErrorKind::NotFound),
        }
        if known.kind == NodeKind::Dir && self.is_at_or_below(to.0, known.id).await? {
            return refused(ErrorKind::InvalidInput);
        }
        let transaction = TransactionId { coordinator: self.id, number: self.next_number()? };
        self.undecided.borrow_mut().insert(transaction);
        let outcome = self.transact(transaction, from, to, mode, known).await;
        self.undecided.borrow_mut().remove(&transaction);
        outcome
    }

    async fn transact(
        self: &Rc<Member>,
        transaction: TransactionId,
        from: Name<'_>,
        to: Name<'_>,
        mode: RenameMode,
        moved: EntryRecord,
    ) -> Result<Reply<'static>> {
        let other = self.map.owner_of_name(NameHash::new(to.0, to.1));
        let (dir, name) = to;
        let prepare =
            PeerRequest::PrepareName { transaction, dir, name, id: moved.id, kind: moved.kind, mode };
        let existing = match self.call(other, &prepare).await? {
            Reply::Prepared(existing) => existing.map(|(id, kind)| EntryRecord { id, kind }),
            reply => return Err(unexpected(&reply)),
        };
        let decided = match self.check_existing(from, to, mode, existing).await {
            Ok(()) => self.decide(transaction, from, mode, existing),
            Err(error) => Err(error),
        };
        let is_committed = decided.is_ok();
        let ended = self.call(other, &PeerRequest::EndTransaction { transaction, is_committed }).await;
        if let (RenameMode::Replace, Some(replaced)) = (mode, existing)
            && replaced.kind == NodeKind::Dir
            && is_committed
        {
            self.open_dir_everywhere(replaced.id, true).await?;
        }
        let moves_dir =
            [Some(moved), existing].into_iter().flatten().any(|entry| entry.kind == NodeKind::Dir);
        let forgotten = match is_committed && moves_dir {
            // Also if the other member was not told: the old name is gone.
            true => self.tell_all(&PeerRequest::ForgetDirs).await,
            false => Ok(()),
        };
        decided?;
        ended.and(forgotten.map(|()| Reply::Done))?;
        let mut batch = Batch::new();
        batch.delete(&keys::committed(transaction));
        self.environment.store.commit(batch)?;
        self.note_change_of(from.0, self.now());
        self.give_name(moved.id, to).await?;
        match (mode, existing) {
            (RenameMode::Exchange, Some(existing)) => self.give_name(existing.id, from).await?,
            (_, Some(replaced)) => {
                let home = self.map.home(replaced.id)?;
                self.call(home, &PeerRequest::LoseName { id: replaced.id }).await?;
            }
            (_, None) => {}
        }
        Ok(Reply::Done)
    }

    /// Checks the entry that has the new name. A directory that is replaced is closed.
    async fn check_existing(
        self: &Rc<Member>,
        from: Name<'_>,
        to: Name<'_>,
        mode: RenameMode,
        existing: Option<EntryRecord>,
    ) -> Result<()> {
        match existing {
            Some(existing) if existing.kind == NodeKind::Dir => match mode {
                RenameMode::Exchange if self.is_at_or_below(from.0, existing.id).await? => {
                    Err(Error::new(ErrorKind::InvalidInput, "rename", from.1))
                }
                RenameMode::Exchange | RenameMode::Keep => Ok(()),
                RenameMode::Replace => self.close_empty_dir(existing.id, to.1).await,
            },
            _ => Ok(()),
        }
    }

    /// Commits a transaction: the old name is removed, or gets the exchanged entry.
    fn decide(
        &self,
        transaction: TransactionId,
        from: Name<'_>,
        mode: RenameMode,
        existing: Option<EntryRecord>,
    ) -> Result<()> {
        let key = keys::entry(from.0, NameHash::new(from.0, from.1), from.1);
        let mut batch = Batch::new();
        match (mode, existing) {
            (RenameMode::Exchange, Some(existing)) => batch.put(&key, &to_bytes(&existing)),
            _ => batch.delete(&key),
        }
        batch.put(&keys::committed(transaction), &[]);
        self.environment.store.commit(batch)
    }

    async fn give_name(self: &Rc<Member>, id: FileId, (dir, name): Name<'_>) -> Result<()> {
        self.call(self.map.home(id)?, &PeerRequest::SetName { id, dir, name }).await.map(drop)
    }

    /// Returns whether a directory is `above`, or lies below it. Nothing moves meanwhile if the
    /// lock of renames is held.
    async fn is_at_or_below(self: &Rc<Member>, dir: FileId, above: FileId) -> Result<bool> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == above {
                return Ok(true);
            }
            if at == FileId::ROOT {
                return Ok(false);
            }
            let name = PeerRequest::Perform(Operation::Name { id: at });
            at = match self.call(self.map.home(at)?, &name).await? {
                Reply::Name { dir, .. } => dir,
                reply => return Err(unexpected(&reply)),
            };
        }
        Err(Error::new(ErrorKind::Damaged, "find the directories above", ""))
    }
}
