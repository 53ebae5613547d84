//! A backup of a member: storage on another daemon, to which the changes of the member are applied.

use std::sync::Arc;

use quell_kv::{Batch, KeyRange, KeyValue};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::decode_first;
use quell_wire::pool::{Change, FileId, ReplicaMessage};

use crate::chunks::Chunks;

/// The number of keys that are removed with one commit.
const KEYS_AT_A_TIME: usize = 4096;

/// A backup of a member. Only one thread uses it.
pub struct Backup {
    store: Arc<dyn KeyValue>,
    chunks: Arc<dyn Chunks>,
    /// The stream of changes that the backup follows.
    stream: Option<(u64, u32)>,
    /// The number of the next message of the stream.
    next: u64,
    is_complete: bool,
    has_failed: bool,
}

impl std::fmt::Debug for Backup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backup").field("is_complete", &self.is_complete).finish_non_exhaustive()
    }
}

impl Backup {
    /// Returns a backup that follows no stream yet. Its storage is emptied with the first message.
    pub fn new(store: Arc<dyn KeyValue>, chunks: Arc<dyn Chunks>) -> Backup {
        Backup { store, chunks, stream: None, next: 0, is_complete: false, has_failed: false }
    }

    /// Returns whether the storage has all changes that the member has acknowledged.
    pub fn is_complete(&self) -> bool {
        self.is_complete && !self.has_failed
    }

    /// Applies the changes of a message, whose encoding is in `changes`. A message that was applied
    /// before has no effect.
    ///
    /// # Errors
    ///
    /// `Stale` for a message of another stream, or with a number other than the next one; `Damaged`
    /// if the changes cannot be decoded; errors of the storage. After an error of the storage, the
    /// backup is not complete any more, and refuses all messages of the stream.
    pub fn apply(&mut self, message: &ReplicaMessage, changes: &[u8]) -> Result<()> {
        if message.number == 0 && self.stream != Some(message.stream) {
            // An older stream ended before the newer one began.
            if self.stream.is_some_and(|stream| stream > message.stream) {
                return Err(stale(message));
            }
            self.stream = Some(message.stream);
            (self.next, self.is_complete, self.has_failed) = (0, false, false);
        }
        let is_next = message.number <= self.next;
        if self.stream != Some(message.stream) || !is_next || self.has_failed {
            return Err(stale(message));
        }
        if message.number < self.next {
            return Ok(());
        }
        let applied = self.apply_all(message.count, changes);
        match applied {
            Ok(()) => self.next += 1,
            Err(_) => self.has_failed = true,
        }
        applied
    }

    fn apply_all(&mut self, count: u32, mut changes: &[u8]) -> Result<()> {
        for _ in 0..count {
            let (change, rest) = decode_first(changes)?;
            self.apply_one(change)?;
            changes = rest;
        }
        match changes {
            [] => Ok(()),
            _ => Err(Error::new(ErrorKind::Damaged, "decode changes", "")),
        }
    }

    fn apply_one(&mut self, change: Change<'_>) -> Result<()> {
        match change {
            Change::Clear => self.clear(),
            Change::Commit(keys) => {
                let mut batch = Batch::with_capacity(keys.len());
                for change in keys {
                    match change.value {
                        Some(value) => batch.put(change.key, value),
                        None => batch.delete(change.key),
                    }
                }
                self.store.commit(batch)
            }
            Change::Write { id, offset, data, modified } => {
                self.chunks.write(id, data, offset)?;
                self.chunks.set_modified(id, modified)
            }
            Change::Copy { id, offset, data } => {
                self.chunks.write(id, data, offset)?;
                self.compare(id, data, offset)
            }
            Change::Truncate { id, end, modified } => {
                self.chunks.truncate(id, end)?;
                self.chunks.set_modified(id, modified)
            }
            Change::Remove { id } => self.chunks.remove(id),
            Change::SetModified { id, time } => self.chunks.set_modified(id, time),
            Change::SyncData { id } => self.chunks.sync(id),
            Change::SyncStore => self.store.sync(),
            Change::Complete => {
                self.is_complete = true;
                Ok(())
            }
        }
    }

    /// Reads the data that was just written, and compares it with `data`.
    fn compare(&self, id: FileId, data: &[u8], offset: u64) -> Result<()> {
        let mut read = vec![0; data.len()];
        let mut done = 0;
        while done < read.len() {
            match self.chunks.read(id, &mut read[done..], offset + done as u64)? {
                0 => break,
                count => done += count,
            }
        }
        match read[..done] == *data {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Damaged, "verify the copy of file", id.0.to_string())),
        }
    }

    fn clear(&self) -> Result<()> {
        loop {
            let mut batch = Batch::new();
            self.store.scan(&KeyRange::all(), &mut |key, _| {
                batch.delete(key);
                batch.len() < KEYS_AT_A_TIME
            })?;
            if batch.is_empty() {
                break;
            }
            self.store.commit(batch)?;
        }
        let mut files = Vec::new();
        self.chunks.files(&mut |id| files.push(id))?;
        files.into_iter().try_for_each(|id| self.chunks.remove(id))
    }
}

fn stale(message: &ReplicaMessage) -> Error {
    Error::new(ErrorKind::Stale, "change the backup of member", message.member.0.to_string())
}
