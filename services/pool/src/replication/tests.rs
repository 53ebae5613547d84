//! Tests of the copy to a new backup, and of the messages that a backup refuses. The simulation
//! tests failures.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_channel::oneshot;
use futures_executor::LocalPool;
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, ready};
use futures_util::task::LocalSpawnExt;
use quell_kv::{Batch, KeyRange, KeyValue, MemoryStore};
use quell_testkit::MemoryStore as MemoryDirs;
use quell_vfs::{ErrorKind, Result};
use quell_wire::pool::{Change, DaemonId, FileId, KeyChange, MemberId, ReplicaMessage, Route, Stamp};
use quell_wire::{decode_first, encode};

use super::{Backup, BackupDaemons, BackupEvent, Replication};
use crate::chunks::{ChunkDir, ChunkState, Chunks, Space};
use crate::environment::Clock;

const MEMBER: MemberId = MemberId(3);

struct Fixed;

impl Clock for Fixed {
    fn now(&self) -> Stamp {
        Stamp::default()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_secs(10)
    }
}

/// A daemon with a backup, to which all messages are applied.
struct OneDaemon(RefCell<Backup>);

impl BackupDaemons for OneDaemon {
    fn send(&self, _: DaemonId, message: Vec<u8>) -> LocalBoxFuture<'static, Result<()>> {
        let applied =
            decode_first(&message).and_then(|((_, header), changes): ((Route, ReplicaMessage), _)| {
                self.0.borrow_mut().apply(&header, changes)
            });
        ready(applied).boxed_local()
    }
}

struct Storage {
    store: Arc<MemoryStore>,
    chunks: Arc<ChunkDir>,
}

impl Storage {
    fn new() -> Storage {
        Storage { store: Arc::default(), chunks: Arc::new(ChunkDir::new(MemoryDirs::new().root())) }
    }

    fn backup(&self) -> Backup {
        Backup::new(Arc::clone(&self.store) as Arc<dyn KeyValue>, Arc::clone(&self.chunks) as Arc<dyn Chunks>)
    }

    fn keys(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut keys = Vec::new();
        let mut visit = |key: &[u8], value: &[u8]| {
            keys.push((key.to_vec(), value.to_vec()));
            true
        };
        self.store.scan(&KeyRange::all(), &mut visit).unwrap();
        keys
    }

    fn data(&self) -> Vec<(FileId, Vec<u8>, Stamp)> {
        let mut files = Vec::new();
        self.chunks.files(&mut |id| files.push(id)).unwrap();
        files.sort();
        let read = |id: FileId| {
            let state = self.chunks.state(id).unwrap().unwrap();
            let mut data = vec![0; state.end as usize];
            // A hole at the end is not read.
            self.chunks.read(id, &mut data, 0).unwrap();
            (id, data, state.modified)
        };
        files.into_iter().map(read).collect()
    }
}

fn put(store: &dyn KeyValue, key: &[u8], value: &[u8]) {
    let mut batch = Batch::new();
    batch.put(key, value);
    store.commit(batch).unwrap();
}

#[test]
fn a_new_backup_gets_everything_and_further_changes() {
    let (primary, other) = (Storage::new(), Storage::new());
    put(&*other.store, b"old", b"value");
    other.chunks.write(FileId(99), b"old", 0).unwrap();
    for number in 0..5000_u32 {
        put(&*primary.store, &number.to_be_bytes(), &[7; 100]);
    }
    let large = vec![5; 300 << 10];
    primary.chunks.write(FileId(1), &large, 0).unwrap();
    primary.chunks.write(FileId(2), b"after a hole", 400 << 10).unwrap();
    primary.chunks.write(FileId(6), b"begin", 0).unwrap();
    primary.chunks.write(FileId(6), b"far behind a hole", 3 << 20).unwrap();
    primary.chunks.write(FileId(3), b"", 0).unwrap();
    primary.chunks.write(FileId(4), &[0; 1000], 0).unwrap();
    primary.chunks.set_modified(FileId(4), Stamp { seconds: 77, nanoseconds: 1 }).unwrap();

    let mut executor = LocalPool::new();
    let daemon = Rc::new(OneDaemon(RefCell::new(other.backup())));
    let replication = Replication::new(
        Arc::clone(&primary.store) as _,
        Arc::clone(&primary.chunks) as _,
        Rc::new(Fixed),
        Rc::clone(&daemon) as _,
    );
    let (store, chunks) = (replication.store(), replication.chunks());
    for task in replication.set_backups(MEMBER, 1, 0, &[DaemonId(8)]) {
        executor.spawner().spawn_local(task).unwrap();
    }
    assert!(replication.is_settled(), "replies do not wait for a backup that is not complete");
    // The copy has begun, but is not complete.
    for _ in 0..3 {
        executor.try_run_one();
    }
    put(&*store, &1_u32.to_be_bytes(), b"changed");
    put(&*store, &4999_u32.to_be_bytes(), b"changed");
    chunks.truncate(FileId(1), 100).unwrap();
    chunks.remove(FileId(2)).unwrap();
    executor.run_until_stalled();
    assert_eq!(replication.take_events(), [BackupEvent::Complete(DaemonId(8))]);
    assert!(daemon.0.borrow().is_complete());
    assert_eq!(primary.keys(), other.keys());
    assert_eq!(primary.data(), other.data());

    let mut batch = Batch::new();
    batch.delete(&7_u32.to_be_bytes());
    store.commit(batch).unwrap();
    chunks.write(FileId(5), b"new", 10).unwrap();
    chunks.set_modified(FileId(5), Stamp { seconds: 5, nanoseconds: 6 }).unwrap();
    assert!(!replication.is_settled(), "the backup has not confirmed the change");
    executor.run_until_stalled();
    assert!(replication.is_settled());
    assert_eq!(primary.keys(), other.keys());
    assert_eq!(primary.data(), other.data());

    replication.set_lease_end(Some(Duration::from_secs(9)));
    assert!(!replication.is_settled(), "the lease has ended");
    replication.set_lease_end(Some(Duration::from_secs(11)));
    assert!(replication.is_settled());
    let spawned = replication.set_backups(MEMBER, 1, 0, &[]);
    assert!(spawned.is_empty());
    put(&*store, b"alone", b"");
    assert!(replication.is_settled(), "a removed backup confirms nothing");
}

/// A daemon that confirms messages when the test completes them.
#[derive(Default)]
struct SlowDaemon(RefCell<Vec<oneshot::Sender<Result<()>>>>);

impl BackupDaemons for SlowDaemon {
    fn send(&self, _: DaemonId, _: Vec<u8>) -> LocalBoxFuture<'static, Result<()>> {
        let (sender, receiver) = oneshot::channel();
        self.0.borrow_mut().push(sender);
        receiver.map(|confirmed| confirmed.expect("the test confirms all messages")).boxed_local()
    }
}

#[test]
fn a_backup_is_complete_when_it_has_what_was_acknowledged_during_the_copy() {
    let primary = Storage::new();
    let mut executor = LocalPool::new();
    let daemon = Rc::new(SlowDaemon::default());
    let replication = Replication::new(
        Arc::clone(&primary.store) as _,
        Arc::clone(&primary.chunks) as _,
        Rc::new(Fixed),
        Rc::clone(&daemon) as _,
    );
    let store = replication.store();
    for task in replication.set_backups(MEMBER, 1, 0, &[DaemonId(8)]) {
        executor.spawner().spawn_local(task).unwrap();
    }
    let mut messages = 0;
    while replication.take_events().is_empty() {
        executor.run_until_stalled();
        // Each change is acknowledged to the client at once during the copy.
        let is_copying = replication.is_settled();
        if is_copying {
            put(&*store, b"key", &[messages]);
        }
        messages += 1;
        let confirmed = daemon.0.borrow_mut().pop().expect("a message was sent");
        confirmed.send(Ok(())).unwrap();
        executor.run_until_stalled();
        assert!(messages < 10, "the backup is complete after a few messages");
    }
    assert!(replication.is_settled(), "everything was confirmed when the backup is reported as complete");
}

/// A daemon with a backup that confirms messages when the test completes them.
struct SteppedDaemon(OneDaemon, SlowDaemon);

impl BackupDaemons for SteppedDaemon {
    fn send(&self, to: DaemonId, message: Vec<u8>) -> LocalBoxFuture<'static, Result<()>> {
        let confirmed = self.1.send(to, Vec::new());
        self.0
            .send(to, message)
            .then(|applied| confirmed.map(|confirmed| applied.and(confirmed)))
            .boxed_local()
    }
}

#[test]
fn a_file_that_is_truncated_during_its_copy_is_the_same_in_the_backup() {
    const PART: usize = 512 << 10;
    for end in [0, 1, PART - 1, PART, PART + 1, 2 * PART, 2 * PART + 1] {
        for messages in 0..6 {
            let (primary, other) = (Storage::new(), Storage::new());
            primary.chunks.write(FileId(1), &vec![5; PART], 0).unwrap();
            primary.chunks.write(FileId(1), &vec![6; PART], 2 * PART as u64).unwrap();
            let mut executor = LocalPool::new();
            let backup = OneDaemon(RefCell::new(other.backup()));
            let daemon = Rc::new(SteppedDaemon(backup, SlowDaemon::default()));
            let replication = Replication::new(
                Arc::clone(&primary.store) as _,
                Arc::clone(&primary.chunks) as _,
                Rc::new(Fixed),
                Rc::clone(&daemon) as _,
            );
            for task in replication.set_backups(MEMBER, 1, 0, &[DaemonId(8)]) {
                executor.spawner().spawn_local(task).unwrap();
            }
            let mut confirm = || {
                executor.run_until_stalled();
                let sent = daemon.1.0.borrow_mut().pop();
                sent.is_some_and(|sent| sent.send(Ok(())).is_ok())
            };
            for _ in 0..messages {
                confirm();
            }
            replication.chunks().truncate(FileId(1), end as u64).unwrap();
            while confirm() {}
            assert!(daemon.0.0.borrow().is_complete());
            assert!(primary.data() == other.data(), "truncated to {end} after {messages} messages");
        }
    }
}

#[test]
fn a_backup_refuses_messages_of_other_streams_and_numbers() {
    let storage = Storage::new();
    let mut backup = storage.backup();
    let message =
        |stream, number, count| ReplicaMessage { member: MEMBER, stream, configuration: 0, number, count };
    let change =
        |value: &'static [u8]| encode(&Change::Commit(vec![KeyChange { key: b"key", value: Some(value) }]));
    let value = || storage.store.get(b"key").unwrap().map(|value| value.to_vec());
    assert_eq!(backup.apply(&message((1, 0), 1, 1), &change(b"a")).unwrap_err().kind, ErrorKind::Stale);
    backup.apply(&message((1, 0), 0, 1), &change(b"a")).unwrap();
    assert_eq!(backup.apply(&message((1, 0), 2, 1), &change(b"b")).unwrap_err().kind, ErrorKind::Stale);
    backup.apply(&message((1, 0), 1, 1), &change(b"b")).unwrap();
    backup.apply(&message((1, 0), 1, 1), &change(b"c")).expect("a repeated message is confirmed");
    assert_eq!(value().as_deref(), Some(&b"b"[..]), "a repeated message has no effect");
    backup.apply(&message((2, 0), 0, 1), &encode(&Change::Clear)).unwrap();
    assert_eq!(value(), None);
    assert_eq!(backup.apply(&message((1, 0), 2, 1), &change(b"a")).unwrap_err().kind, ErrorKind::Stale);
    assert_eq!(backup.apply(&message((1, 9), 0, 1), &change(b"a")).unwrap_err().kind, ErrorKind::Stale);
    // After an error, the backup is not used.
    backup.apply(&message((2, 0), 1, 1), &encode(&Change::Complete)).unwrap();
    assert!(backup.is_complete());
    assert_eq!(backup.apply(&message((2, 0), 2, 2), &change(b"a")).unwrap_err().kind, ErrorKind::Damaged);
    assert!(!backup.is_complete());
    assert_eq!(backup.apply(&message((2, 0), 3, 1), &change(b"a")).unwrap_err().kind, ErrorKind::Stale);
}

/// Chunks on a disk that changes a byte of each write.
struct BadDisk(Arc<ChunkDir>);

impl Chunks for BadDisk {
    fn read(&self, id: FileId, into: &mut [u8], offset: u64) -> Result<usize> {
        self.0.read(id, into, offset)
    }

    fn write(&self, id: FileId, from: &[u8], offset: u64) -> Result<()> {
        let mut changed = from.to_vec();
        changed.iter_mut().for_each(|byte| *byte ^= 1);
        self.0.write(id, &changed, offset)
    }

    fn truncate(&self, id: FileId, end: u64) -> Result<()> {
        self.0.truncate(id, end)
    }

    fn remove(&self, id: FileId) -> Result<()> {
        self.0.remove(id)
    }

    fn files(&self, visit: &mut dyn FnMut(FileId)) -> Result<()> {
        self.0.files(visit)
    }

    fn sync(&self, id: FileId) -> Result<()> {
        self.0.sync(id)
    }

    fn state(&self, id: FileId) -> Result<Option<ChunkState>> {
        self.0.state(id)
    }

    fn set_modified(&self, id: FileId, time: Stamp) -> Result<()> {
        self.0.set_modified(id, time)
    }

    fn next_data(&self, id: FileId, offset: u64) -> Result<Option<u64>> {
        self.0.next_data(id, offset)
    }

    fn space(&self) -> Result<Space> {
        self.0.space()
    }
}

#[test]
fn a_copy_that_differs_on_the_disk_is_refused() {
    let storage = Storage::new();
    let bad = Arc::new(BadDisk(Arc::clone(&storage.chunks)));
    let mut backup = Backup::new(Arc::clone(&storage.store) as _, bad);
    let message =
        |number| ReplicaMessage { member: MEMBER, stream: (1, 0), configuration: 0, number, count: 1 };
    let copy = |data| encode(&Change::Copy { id: FileId(1), offset: 0, data });
    backup.apply(&message(0), &copy(b"")).unwrap();
    assert_eq!(backup.apply(&message(1), &copy(b"data")).unwrap_err().kind, ErrorKind::Damaged);
}
