//! Renames. The member of the old name coordinates: it locks the old name, asks the members of the
//! new name and of the nodes to prepare their changes, decides with one write to its own store, and
//! sends the decision to the others.

use std::rc::Rc;

use quell_kv::Batch;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{FileId, NodeKind, PeerRequest, RenameMode, Reply};

use crate::inode::{EntryRecord, to_bytes};
use crate::keys;
use crate::lock_table::Lock;
use crate::map::NameHash;
use crate::member::Member;
use crate::replies::unexpected;
use crate::results::Performed;
use crate::sessions::Origin;
use crate::transactions::Transaction;

/// A directory and a name in it.
type Name<'a> = (FileId, &'a [u8]);

/// The largest number of directories above another directory. A longer chain can only be a cycle in
/// damaged records.
const DEPTH_MAX: usize = 1 << 20;

impl Member {
    /// Renames an entry of this member.
    pub(crate) async fn rename(
        self: &Rc<Member>,
        origin: Origin,
        from: Name<'_>,
        to: Name<'_>,
        mode: RenameMode,
    ) -> Result<Reply<'static>> {
        let _name = self.lock(Lock::Name(from.0, from.1.to_vec())).await?;
        let refused = |kind| Err(Error::new(kind, "rename", from.1));
        let Some(moved) = self.entry(from.0, from.1)? else { return refused(ErrorKind::NotFound) };
        if from == to {
            return if mode == RenameMode::Keep { refused(ErrorKind::Exists) } else { Ok(Reply::Done) };
        }
        let mut transaction = self.begin()?;
        let mut changes = self.prepare_rename(&mut transaction, from, to, mode, moved).await;
        if let Ok(batch) = &mut changes {
            self.put_result(origin, Performed::All, batch);
        }
        self.conclude(transaction, changes).await?;
        self.note_change_of(from.0, self.now());
        Ok(Reply::Done)
    }

    /// Prepares a rename on all members, and returns the changes of this member's entry.
    async fn prepare_rename(
        self: &Rc<Member>,
        transaction: &mut Transaction,
        from: Name<'_>,
        to: Name<'_>,
        mode: RenameMode,
        moved: EntryRecord,
    ) -> Result<Batch> {
        let (dir, name) = to;
        let other = self.map.owner_of_name(NameHash::new(dir, name));
        let (id, kind) = (moved.id, moved.kind);
        let request = PeerRequest::PrepareName { transaction: transaction.id, dir, name, id, kind, mode };
        let existing = match self.prepare(transaction, other, request).await? {
            Reply::Prepared(existing) => existing.map(|(id, kind)| EntryRecord { id, kind }),
            reply => return Err(unexpected(&reply)),
        };
        if [Some(moved), existing].into_iter().flatten().any(|entry| entry.kind == NodeKind::Dir) {
            self.changes_dirs(transaction);
        }
        self.prepare_name_of(transaction, moved.id, Some(to)).await?;
        // Directories that are being moved are prepared on their members before the directories
        // above their new parents are examined. If two moves would together make a cycle, at least
        // one of them finds the other.
        if moved.kind == NodeKind::Dir && from.0 != to.0 {
            self.check_not_below(to.0, moved.id, from.1).await?;
        }
        let key = keys::entry(from.0, NameHash::new(from.0, from.1), from.1);
        let mut batch = Batch::new();
        match (mode, existing) {
            (RenameMode::Exchange, Some(existing)) => {
                self.prepare_name_of(transaction, existing.id, Some(from)).await?;
                if existing.kind == NodeKind::Dir && from.0 != to.0 {
                    self.check_not_below(from.0, existing.id, to.1).await?;
                }
                batch.put(&key, &to_bytes(&existing));
            }
            (_, Some(replaced)) => {
                if replaced.kind == NodeKind::Dir {
                    self.prepare_removal_of(transaction, replaced.id, to.1).await?;
                }
                self.prepare_name_of(transaction, replaced.id, None).await?;
                batch.delete(&key);
            }
            (_, None) => batch.delete(&key),
        }
        Ok(batch)
    }

    /// Checks that a directory is neither `above` nor below it.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if it is; `Busy` if a directory above it is being moved.
    async fn check_not_below(self: &Rc<Member>, dir: FileId, above: FileId, name: &[u8]) -> Result<()> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == above {
                return Err(Error::new(ErrorKind::InvalidInput, "rename", name));
            }
            if at == FileId::ROOT {
                return Ok(());
            }
            at = match self.call(self.map.home(at)?, PeerRequest::Above { id: at }).await? {
                Reply::Name { dir, .. } => dir,
                reply => return Err(unexpected(&reply)),
            };
        }
        Err(Error::new(ErrorKind::Damaged, "find the directories above", ""))
    }
}
