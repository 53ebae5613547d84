//! Marks, which show whether a pool has changes that were not copied out of the pool. Each member
//! has a number that increases with its changes. A complete copy of the pool (stage-out) reads the
//! numbers of all members before it begins, and records them after it has ended. If the number of a
//! member is larger than the recorded one, the member has later changes.
//!
//! Only the first change after the number was read increases it and writes it to the store.
//!
//! Clients write the chunks of their machine without requests. A client may be writing a file if it
//! has sent `NoteData` and the file has references. The size and the times of the data of such a
//! file are compared with their earlier values when the number is read, and when the last reference
//! is returned.

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
            // Clients may have written data that was not compared before the daemon ended.
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

    /// Counts the changes of a file that clients no longer use.
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
            // The member may have ended after a change and before counting it.
            self.marks.changes.set(self.marks.changes.get() + 1);
        }
        Ok(())
    }

    /// Counts a change. Must be called after the change was made and before the reply is sent: a
    /// copy that begins afterwards contains the change, and for a copy that has already begun, it
    /// is a later change.
    pub(crate) fn count_change(&self) {
        if !self.marks.is_counted.get() {
            self.marks.changes.set(self.marks.changes.get() + 1);
            // While the daemon runs, the number in memory is valid. If it cannot be recorded, for
            // example on a full disk, the next change repeats this.
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

    /// Records that a complete copy of the pool contains the changes up to a number.
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
