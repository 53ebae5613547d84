//! The changes of a member's storage, in the order in which they were made, and the queue of each
//! backup.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use quell_kv::{Batch, KeyRange, KeyValue, Value};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::encode;
use quell_wire::pool::{Change, DATA_BYTES_MAX, DaemonId, FileId, KeyChange, Stamp};

use crate::chunks::{ChunkState, Chunks, Space};

/// The largest encoded change, in bytes: the data of a file, or the entries of a batch.
pub(super) const CHANGE_BYTES_MAX: usize = DATA_BYTES_MAX + 4096;

/// The changes of one member that its backups have not confirmed.
#[derive(Default)]
pub(super) struct ChangeLog(Mutex<State>);

/// The number of a change. The changes of a member are numbered from 1.
pub(super) type Position = u64;

#[derive(Default)]
pub(super) struct State {
    /// The number of the last change.
    pub position: Position,
    pub backups: Vec<Backup>,
    /// Tasks that wait for confirmations.
    pub waiting: Vec<Waker>,
}

/// The state of a backup that the daemon of the member keeps.
pub(super) struct Backup {
    pub daemon: DaemonId,
    /// Distinguishes a backup from an earlier one on the same daemon, which was removed.
    pub generation: u32,
    /// The changes that are not in a message yet, with their numbers.
    pub queue: VecDeque<(Position, Arc<Vec<u8>>)>,
    /// The last change that the backup has confirmed.
    pub confirmed: Position,
    /// Whether all keys and data were copied, so that replies wait for the confirmations of the
    /// backup.
    pub is_complete: bool,
    /// When the backup has confirmed this change, it has all changes that were acknowledged. `None`
    /// before `is_complete`, and after the event was reported.
    pub complete_at: Option<Position>,
    /// Whether the backup has reported an error. If so, it gets no further changes.
    pub has_failed: bool,
    /// The task that sends the changes.
    pub sender: Option<Waker>,
}

impl ChangeLog {
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    fn has_backups(&self) -> bool {
        !self.state().backups.is_empty()
    }

    fn add(&self, change: &Change<'_>) {
        self.state().add(encode(change).into());
    }
}

impl State {
    fn add(&mut self, change: Arc<Vec<u8>>) {
        self.position += 1;
        for backup in &mut self.backups {
            backup.push(self.position, Arc::clone(&change));
        }
    }

    /// Wakes the tasks that wait for confirmations.
    pub fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }

    pub fn backup(&mut self, daemon: DaemonId, generation: u32) -> Option<&mut Backup> {
        self.backups.iter_mut().find(|backup| backup.daemon == daemon && backup.generation == generation)
    }
}

impl Backup {
    pub fn push(&mut self, position: Position, change: Arc<Vec<u8>>) {
        if !self.has_failed {
            self.queue.push_back((position, change));
            if let Some(sender) = self.sender.take() {
                sender.wake();
            }
        }
    }
}

/// The store of a member, whose commits are sent to the backups.
pub(super) struct ReplicatedStore {
    pub store: Arc<dyn KeyValue>,
    pub log: Arc<ChangeLog>,
}

impl KeyValue for ReplicatedStore {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.store.get(key)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        if batch.is_empty() || !self.log.has_backups() {
            return self.store.commit(batch);
        }
        let changes = batch.operations().map(|(key, value)| KeyChange { key, value }).collect();
        let change = encode(&Change::Commit(changes));
        if change.len() > CHANGE_BYTES_MAX {
            let source = Some(format!("a change of {} bytes cannot be replicated", change.len()).into());
            return Err(Error { source, ..Error::new(ErrorKind::InvalidInput, "commit", "") });
        }
        self.store.commit(batch)?;
        self.log.state().add(change.into());
        Ok(())
    }

    fn scan(&self, range: &KeyRange<'_>, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.store.scan(range, visit)
    }

    fn sync(&self) -> Result<()> {
        self.store.sync()?;
        self.log.add(&Change::SyncStore);
        Ok(())
    }

    fn size_bytes(&self) -> Result<u64> {
        self.store.size_bytes()
    }
}

/// The chunks of a member, whose changes are sent to the backups.
pub(super) struct ReplicatedChunks {
    pub chunks: Arc<dyn Chunks>,
    pub log: Arc<ChangeLog>,
}

impl ReplicatedChunks {
    /// Returns the time of the last write, which the last change of the file's data has set.
    fn modified(&self, id: FileId) -> Result<Stamp> {
        Ok(self.chunks.state(id)?.map_or_else(Stamp::default, |state| state.modified))
    }
}

impl Chunks for ReplicatedChunks {
    fn read(&self, id: FileId, into: &mut [u8], offset: u64) -> Result<usize> {
        self.chunks.read(id, into, offset)
    }

    fn write(&self, id: FileId, data: &[u8], offset: u64) -> Result<()> {
        self.chunks.write(id, data, offset)?;
        if self.log.has_backups() {
            self.log.add(&Change::Write { id, offset, data, modified: self.modified(id)? });
        }
        Ok(())
    }

    fn truncate(&self, id: FileId, end: u64) -> Result<()> {
        self.chunks.truncate(id, end)?;
        if self.log.has_backups() {
            self.log.add(&Change::Truncate { id, end, modified: self.modified(id)? });
        }
        Ok(())
    }

    fn remove(&self, id: FileId) -> Result<()> {
        self.chunks.remove(id)?;
        self.log.add(&Change::Remove { id });
        Ok(())
    }

    fn files(&self, visit: &mut dyn FnMut(FileId)) -> Result<()> {
        self.chunks.files(visit)
    }

    fn sync(&self, id: FileId) -> Result<()> {
        self.chunks.sync(id)?;
        self.log.add(&Change::SyncData { id });
        Ok(())
    }

    fn state(&self, id: FileId) -> Result<Option<ChunkState>> {
        self.chunks.state(id)
    }

    fn set_modified(&self, id: FileId, time: Stamp) -> Result<()> {
        self.chunks.set_modified(id, time)?;
        self.log.add(&Change::SetModified { id, time });
        Ok(())
    }

    fn next_data(&self, id: FileId, offset: u64) -> Result<Option<u64>> {
        self.chunks.next_data(id, offset)
    }

    fn space(&self) -> Result<Space> {
        self.chunks.space()
    }
}
