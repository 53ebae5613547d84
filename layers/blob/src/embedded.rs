//! A store in this process.

use std::sync::mpsc::{Sender, channel};
use std::sync::{LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quell_blob_service::{BlobStat, Clock, CommitResult, OpenStore, Snapshot};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{Operation, OperationResult, Refusal, StoreCounters, Transaction, Version};

use crate::backend::{Backend, ReadDone, TransactionState, read_bytes};
use crate::readers::Readers;

/// A store in this process.
pub(crate) struct Embedded {
    store: OpenStore,
    /// Wakes the thread that commits submitted transactions. The first transaction starts the
    /// thread, which ends with the store.
    committer: Mutex<Option<Committer>>,
    readers: Readers,
}

struct Committer {
    sender: Sender<()>,
    thread: JoinHandle<()>,
}

impl Embedded {
    pub(crate) fn new(store: OpenStore) -> Embedded {
        Embedded { store, committer: Mutex::new(None), readers: Readers::default() }
    }

    /// Wakes the thread that commits.
    fn wake_committer(&self) -> Result<()> {
        let mut committer = lock(&self.committer);
        if committer.as_ref().is_some_and(|committer| committer.sender.send(()).is_ok()) {
            return Ok(());
        }
        let (sender, receiver) = channel();
        let store = self.store.clone();
        let thread = std::thread::Builder::new()
            .name("blob commits".into())
            .spawn(move || {
                while receiver.recv().is_ok() {
                    // One commit of a group is enough for all earlier wake-ups.
                    while receiver.try_recv().is_ok() {}
                    while store.commit_pending() {}
                }
            })
            .map_err(|e| Error::from_io(e, "start a thread", b"blob commits"))?;
        // The receiver exists, because its thread has just begun.
        let _ = sender.send(());
        *committer = Some(Committer { sender, thread });
        Ok(())
    }
}

impl Backend for Embedded {
    fn is_remote(&self) -> bool {
        false
    }

    fn begin(&self) -> Result<Box<dyn TransactionState>> {
        Ok(Box::new(EmbeddedState(self.store.snapshot())))
    }

    fn commit(&self, transaction: Transaction) -> CommitResult {
        self.store.commit(transaction)
    }

    fn submit(&self, transaction: Transaction, done: Box<dyn FnOnce(CommitResult) + Send>) {
        match self.wake_committer() {
            Ok(()) => {
                self.store.submit(transaction, done);
                // The thread may have checked for transactions before this one was added.
                let _ = self.wake_committer();
            }
            Err(error) => done(Err(error.into())),
        }
    }

    fn submit_read(&self, name: Vec<u8>, offset: u64, length_bytes: usize, done: ReadDone) {
        let store = self.store.clone();
        let read = move || read_bytes(&EmbeddedState(store.snapshot()), &name, offset, length_bytes);
        self.readers.submit(read, done);
    }

    fn collect(&self) -> Result<()> {
        self.store.collect()
    }

    fn server_counters(&self, _limit: Duration) -> Result<StoreCounters> {
        let source = Some("no server has it open; start one with: quell blob serve DIR".into());
        Err(Error { source, ..Error::new(ErrorKind::Unsupported, "count the requests of", "the store") })
    }
}

impl Drop for Embedded {
    /// Waits for the threads, so that the store can be opened again afterwards.
    fn drop(&mut self) {
        self.readers.stop();
        let Some(Committer { sender, thread }) = lock(&self.committer).take() else { return };
        drop(sender);
        // The thread that commits calls the receivers of results, and one of them can drop the last
        // reference to the store.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

struct EmbeddedState(Snapshot);

impl TransactionState for EmbeddedState {
    fn version(&self) -> Version {
        self.0.version()
    }

    fn apply(&mut self, operation: &Operation) -> std::result::Result<OperationResult, Refusal> {
        self.0.apply(operation.clone())
    }

    fn stat(&self, name: &[u8]) -> Result<Option<BlobStat>> {
        self.0.stat(name)
    }

    fn read(&self, name: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        self.0.read(name, offset, into)
    }

    fn next_data(&self, name: &[u8], offset: u64) -> Result<Option<u64>> {
        self.0.next_data(name, offset)
    }

    fn list(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, BlobStat)>> {
        let mut found = Vec::new();
        if limit > 0 {
            self.0.list(prefix, after, &mut |name, stat| {
                found.push((name.to_vec(), stat));
                found.len() < limit
            })?;
        }
        Ok(found)
    }
}

/// The system's clock.
pub(crate) struct SystemClock;

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
    }

    fn monotonic_ns(&self) -> u64 {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed().as_nanos() as u64
    }
}
