//! Removal of entries, and of nodes that have neither a name nor references.

use std::rc::Rc;

use quell_kv::{Batch, KeyRange};
use quell_vfs::{Error, ErrorKind, NAME_BYTES_MAX, Result};
use quell_wire::pool::{FileId, Matching, NodeKind, PeerRequest, Reply};

use crate::inline::delete_inline_data;
use crate::inode::{Inode, to_bytes};
use crate::keys;
use crate::lock_table::Lock;
use crate::map::NameHash;
use crate::member::{Member, is_unknown};
use crate::results::Performed;
use crate::sessions::{LEASE, Origin};
use crate::xattrs::delete_xattrs;

impl Member {
    /// Removes an entry of this member.
    pub(crate) async fn remove(
        self: &Rc<Member>,
        origin: Origin,
        dir: FileId,
        name: &[u8],
        matching: Matching,
    ) -> Result<Reply<'static>> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, "remove", name));
        }
        let name_lock = self.lock(Lock::Name(dir, name.to_vec())).await?;
        let refused = |kind| Err(Error::new(kind, "remove", name));
        let Some(entry) = self.entry(dir, name)? else { return refused(ErrorKind::NotFound) };
        match (matching, entry.kind) {
            (Matching::NotDir, NodeKind::Dir) => return refused(ErrorKind::IsADirectory),
            (Matching::Dir, NodeKind::File | NodeKind::Symlink) => return refused(ErrorKind::NotADirectory),
            _ => {}
        }
        let mut batch = Batch::new();
        batch.delete(&keys::entry(dir, NameHash::new(dir, name), name));
        self.put_result(origin, Performed::All, &mut batch);
        if entry.kind != NodeKind::Dir && self.map.home(entry.id)? == self.id {
            if self.prepared.borrow().moves(entry.id) {
                return refused(ErrorKind::Busy);
            }
            let unused = self.take_name(entry.id, &mut batch)?;
            self.environment.store.commit(batch)?;
            self.note_change_of(dir, self.now());
            drop(name_lock);
            if let Some(id) = unused {
                self.unfinished.borrow_mut().insert(id);
                // After an error, `finish_nodes` repeats it.
                let _ = self.finish_node(id).await;
            }
            return Ok(Reply::Done);
        }
        let mut transaction = self.begin()?;
        let mut prepared = self.prepare_name_of(&mut transaction, entry.id, None).await;
        if prepared.is_ok() && entry.kind == NodeKind::Dir {
            prepared = self.prepare_removal_of(&mut transaction, entry.id, name).await;
        }
        self.conclude(transaction, prepared.map(|()| batch)).await?;
        self.note_change_of(dir, self.now());
        Ok(Reply::Done)
    }

    /// Adds the removal of a node's name to a batch. Returns the node if it remains after the
    /// batch, because of references or chunks. It is then one of the unfinished nodes.
    pub(crate) fn take_name(&self, id: FileId, batch: &mut Batch) -> Result<Option<FileId>> {
        let mut inode = self.inode(id)?;
        let is_held = self.member_holds.borrow().is_held(id) || !self.knows_references();
        if !is_held && !inode.has_chunks {
            delete_node(id, &inode, batch);
            return Ok(None);
        }
        inode.name = None;
        inode.changed = self.now();
        batch.put(&keys::inode(id), &to_bytes(&inode));
        batch.put(&keys::unfinished(id), &[]);
        Ok(Some(id))
    }

    /// Takes references of a member back, and removes the nodes that are no longer needed.
    pub(crate) async fn take_back(
        self: &Rc<Member>,
        origin: Origin,
        references: Vec<(FileId, u64)>,
        unanswered: Vec<u64>,
    ) -> Result<Reply<'static>> {
        let mut free = match unanswered.is_empty() {
            true => Vec::new(),
            false => {
                self.member_holds.borrow_mut().forget(origin.member, |number| unanswered.contains(&number))
            }
        };
        for (id, number) in references {
            if self.member_holds.borrow_mut().release(id, origin.member, number) {
                free.push(id);
            }
        }
        for id in free {
            self.end_writing(id);
            // After an error, `finish_nodes` repeats it.
            let _ = self.finish_node(id).await;
        }
        Ok(Reply::Done)
    }

    /// Returns whether all references are known: other members have had time to declare the
    /// references that they had before this member was started.
    pub(crate) fn knows_references(&self) -> bool {
        self.monotonic().saturating_sub(self.started) > LEASE || !self.was_started
    }

    /// Returns whether a node has neither a name nor references.
    pub(crate) fn is_unused(&self, id: FileId, inode: &Inode) -> bool {
        inode.name.is_none() && !self.member_holds.borrow().is_held(id) && self.knows_references()
    }

    /// Completes the interrupted truncation or removal of a node of this member: truncates its
    /// chunks, and removes the node if it has neither a name nor references. The record is removed
    /// last, so that everything can be repeated after an interruption.
    pub(crate) async fn finish_node(self: &Rc<Member>, id: FileId) -> Result<()> {
        if !self.unfinished.borrow().contains(&id) {
            return Ok(());
        }
        let _size = self.lock(Lock::Size(id)).await?;
        let inode = match self.inode(id) {
            Err(error) if error.kind == ErrorKind::Stale => {
                self.unfinished.borrow_mut().remove(&id);
                return Ok(());
            }
            found => found?,
        };
        if self.is_unused(id, &inode) {
            if inode.has_chunks {
                self.send_to_all(&PeerRequest::RemoveChunks { id }).await?;
            }
            // A late request may have set extended attributes meanwhile.
            let inode = self.inode(id)?;
            let mut batch = Batch::new();
            delete_node(id, &inode, &mut batch);
            batch.delete(&keys::unfinished(id));
            self.environment.store.commit(batch)?;
            self.unfinished.borrow_mut().remove(&id);
            return Ok(());
        }
        if inode.truncating_to_bytes.is_some() {
            self.finish_truncation(id).await?;
        }
        Ok(())
    }

    /// Finishes all nodes that can be finished. Errors: the first error.
    pub(crate) async fn finish_nodes(self: &Rc<Member>) -> Result<()> {
        let unfinished: Vec<FileId> = self.unfinished.borrow().iter().copied().collect();
        let mut result = Ok(());
        for id in unfinished {
            let finished = self.finish_node(id).await;
            let is_unreachable = finished.as_ref().is_err_and(is_unknown);
            result = result.and(finished);
            if is_unreachable {
                // The other nodes probably need the same member, which cannot be reached.
                break;
            }
        }
        result
    }

    /// Reads the unfinished nodes from the store.
    pub(crate) fn load_unfinished(&self) -> Result<()> {
        let first = keys::unfinished(FileId(0));
        self.environment.store.scan(&KeyRange::prefix(&first[..1]), &mut |key, _| {
            let id = key.get(1..).and_then(|id| id.try_into().ok());
            self.unfinished.borrow_mut().extend(id.map(|id| FileId(u64::from_be_bytes(id))));
            true
        })
    }
}

/// Adds the removal of all records of a node to a batch.
fn delete_node(id: FileId, inode: &Inode, batch: &mut Batch) {
    batch.delete(&keys::inode(id));
    delete_xattrs(id, inode, batch);
    delete_inline_data(id, inode, batch);
}
