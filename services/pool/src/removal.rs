//! Removal of entries, and of nodes that have neither a name nor references.

use std::rc::Rc;

use quell_kv::Batch;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{FileId, Matching, MemberId, NodeKind, PeerRequest, Reply};

use crate::inode::to_bytes;
use crate::keys;
use crate::lock_table::Lock;
use crate::map::NameHash;
use crate::member::Member;

impl Member {
    /// Removes an entry of this member.
    pub(crate) async fn remove(
        self: &Rc<Member>,
        dir: FileId,
        name: &[u8],
        matching: Matching,
    ) -> Result<Reply<'static>> {
        let _name = self.locks.lock(Lock::Name(dir, name.to_vec())).await;
        let refused = |kind| Err(Error::new(kind, "remove", name));
        let Some(entry) = self.entry(dir, name)? else { return refused(ErrorKind::NotFound) };
        match (matching, entry.kind) {
            (Matching::NotDir, NodeKind::Dir) => return refused(ErrorKind::IsADirectory),
            (Matching::Dir, NodeKind::File | NodeKind::Symlink) => return refused(ErrorKind::NotADirectory),
            (Matching::Dir, NodeKind::Dir) => self.close_empty_dir(entry.id, name).await?,
            (Matching::NotDir, _) => {}
        }
        let home = self.map.home(entry.id)?;
        let is_here = home == self.id && entry.kind != NodeKind::Dir;
        let mut batch = Batch::new();
        batch.delete(&keys::entry(dir, NameHash::new(dir, name), name));
        let is_unused = is_here && self.take_name(entry.id, &mut batch)?;
        let removed = self.environment.store.commit(batch);
        if entry.kind == NodeKind::Dir {
            self.open_dir_everywhere(entry.id, removed.is_ok()).await?;
        }
        removed?;
        self.note_change_of(dir, self.now());
        match is_here {
            true if is_unused => self.remove_unused(entry.id).await?,
            true => {}
            false => drop(self.call(home, &PeerRequest::LoseName { id: entry.id }).await?),
        }
        Ok(Reply::Done)
    }

    /// Adds to a batch that a node of this member has lost its name. Returns whether the node is to
    /// be removed after the commit; one without references and without data is removed by it.
    fn take_name(&self, id: FileId, batch: &mut Batch) -> Result<bool> {
        let mut inode = self.inode(id)?;
        let is_held = self.member_holds.borrow().is_held(id);
        if !is_held && !inode.has_chunks {
            batch.delete(&keys::inode(id));
            return Ok(false);
        }
        inode.name = None;
        inode.changed = self.now();
        batch.put(&keys::inode(id), &to_bytes(&inode));
        Ok(!is_held)
    }

    /// Records that a node of this member has lost its name, and removes it if it has no
    /// references.
    pub(crate) async fn lose_name(self: &Rc<Member>, id: FileId) -> Result<Reply<'static>> {
        let mut batch = Batch::new();
        let is_unused = self.take_name(id, &mut batch)?;
        self.environment.store.commit(batch)?;
        if is_unused {
            self.remove_unused(id).await?;
        }
        Ok(Reply::Done)
    }

    /// Takes references of a member back, and removes the nodes that are no longer needed.
    pub(crate) async fn take_back(
        self: &Rc<Member>,
        from: MemberId,
        references: Vec<(FileId, u64)>,
    ) -> Result<Reply<'static>> {
        let mut result = Ok(Reply::Done);
        for (id, count) in references {
            if self.member_holds.borrow_mut().release(id, from, count)
                && let Err(error) = self.remove_unused(id).await
            {
                result = Err(error);
            }
        }
        result
    }

    /// Removes a node of this member that has no references, unless it has a name. The record is
    /// removed last, so that a repetition removes the rest.
    pub(crate) async fn remove_unused(self: &Rc<Member>, id: FileId) -> Result<()> {
        let inode = match self.inode(id) {
            Err(error) if error.kind == ErrorKind::Stale => return Ok(()),
            found => found?,
        };
        if inode.name.is_some() {
            return Ok(());
        }
        if inode.has_chunks {
            self.tell_all(&PeerRequest::RemoveChunks { id }).await?;
        }
        let mut batch = Batch::new();
        batch.delete(&keys::inode(id));
        self.environment.store.commit(batch)
    }
}
