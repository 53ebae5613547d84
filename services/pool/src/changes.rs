//! Marks: whether a pool has changes that were not copied out of it. Each member has a number that
//! grows with its changes. A copy of the whole pool reads the numbers of all members before it
//! begins, and records them after it has ended; a larger number is a later change.
//!
//! The number grows, and is written to the store, only with the first change after it was read.
//!
//! Clients write the chunks of their node without requests. The files that they may be writing are
//! those with a `NoteData` and with references. Their data is compared when the number is read, and
//! when the last reference is returned.

use std::rc::Rc;

use quell_kv::Batch;
use quell_vfs::Result;
use quell_wire::pool::{FileId, Mark, MemberId, PeerRequest, Reply};

use crate::inode::{from_bytes, to_bytes};
use crate::keys;
use crate::marks::MarksRecord;
use crate::member::Member;
use crate::replies::unexpected;

impl Member {
    /// Reads the marks from the store.
    pub(crate) fn load_marks(&self) -> Result<()> {
        if let Some(bytes) = self.environment.store.get(&keys::marks())? {
            let MarksRecord { changes, saved } = from_bytes(&bytes, "mark")?;
            self.marks.changes.set(changes);
            self.marks.saved.set(saved);
            // Data may have been written that was not compared before the end of the daemon.
            self.count_change();
        }
        Ok(())
    }

    /// Records that a client may write a file of this member without requests.
    pub(crate) fn begin_writing(&self, id: FileId) -> Result<()> {
        let state = self.environment.chunks.state(id)?;
        self.marks.written.borrow_mut().entry(id).or_insert(state);
        Ok(())
    }

    /// Counts the changes of a file that clients do not use any more.
    pub(crate) fn end_writing(&self, id: FileId) {
        let known = self.marks.written.borrow_mut().remove(&id);
        if known.is_some_and(|known| self.environment.chunks.state(id).ok() != Some(known)) {
            self.count_change();
        }
    }

    /// Counts the changes of files that clients may be writing.
    fn count_writes(&self) -> Result<()> {
        let mut has_changed = false;
        for (id, known) in self.marks.written.borrow_mut().iter_mut() {
            let state = self.environment.chunks.state(*id)?;
            has_changed |= state != *known;
            *known = state;
        }
        if has_changed {
            self.count_change();
        }
        if self.was_started {
            // The member may have ended between a change and its count.
            self.marks.changes.set(self.marks.changes.get() + 1);
        }
        Ok(())
    }

    /// Counts a change after it was made, and before its reply. A copy that begins later has it;
    /// for one that has begun, it is a later change.
    pub(crate) fn count_change(&self) {
        if !self.marks.is_counted.get() {
            self.marks.changes.set(self.marks.changes.get() + 1);
            // The number in memory counts while the daemon runs. If it cannot be recorded, for
            // example on a full disk, the next change tries it again.
            self.marks.is_counted.set(self.put_marks().is_ok());
        }
    }

    fn put_marks(&self) -> Result<()> {
        let record = MarksRecord { changes: self.marks.changes.get(), saved: self.marks.saved.get() };
        let mut batch = Batch::new();
        batch.put(&keys::marks(), &to_bytes(&record));
        self.environment.store.commit(batch)
    }

    /// Returns the marks of this member.
    pub(crate) fn own_mark(&self) -> Result<Reply<'static>> {
        self.count_writes()?;
        self.marks.is_counted.set(false);
        let (changes, saved) = (self.marks.changes.get(), self.marks.saved.get());
        Ok(Reply::Marks(vec![Mark { member: self.id, changes, saved }]))
    }

    /// Records that a copy has the changes up to a number.
    pub(crate) fn record_mark(&self, changes: u64) -> Result<Reply<'static>> {
        // A copy that began earlier may end later.
        if changes > self.marks.saved.get() && changes <= self.marks.changes.get() {
            self.marks.saved.set(changes);
            self.put_marks()?;
        }
        Ok(Reply::Done)
    }

    /// Returns the marks of all members.
    pub(crate) async fn all_marks(self: &Rc<Member>) -> Result<Reply<'static>> {
        let mut all = Vec::new();
        for reply in self.call_all(&PeerRequest::Mark).await {
            match reply? {
                Reply::Marks(marks) => all.extend(marks),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(Reply::Marks(all))
    }

    /// Records the marks of a copy on all members.
    pub(crate) async fn record_marks(
        self: &Rc<Member>,
        marks: Vec<(MemberId, u64)>,
    ) -> Result<Reply<'static>> {
        for (member, changes) in marks.into_iter().filter(|(member, _)| self.map.members().contains(member)) {
            self.call(member, PeerRequest::RecordMark { changes }).await?;
        }
        Ok(Reply::Done)
    }
}
