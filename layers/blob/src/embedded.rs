//! A store in this process.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::{SystemTime, UNIX_EPOCH};

use quell_blob_service::{BlobStat, Clock, CommitResult, OpenStore, Snapshot};
use quell_threads::lock;
use quell_vfs::{Error, Result};
use quell_wire::blob::{Operation, OperationResult, Refusal, Transaction, Version};

use crate::backend::{Backend, TransactionState};

/// A store in this process.
pub(crate) struct Embedded {
    store: OpenStore,
    /// Wakes the thread that commits submitted transactions. It is started by the first of them,
    /// and ends with the store.
    committer: Mutex<Option<Sender<()>>>,
}

impl Embedded {
    pub(crate) fn new(store: OpenStore) -> Embedded {
        Embedded { store, committer: Mutex::new(None) }
    }

    /// Wakes the thread that commits.
    fn wake_committer(&self) -> Result<()> {
        let mut committer = lock(&self.committer);
        if committer.as_ref().is_some_and(|sender| sender.send(()).is_ok()) {
            return Ok(());
        }
        let (sender, receiver) = channel();
        let store = self.store.clone();
        std::thread::Builder::new()
            .name("blob commits".into())
            .spawn(move || {
                while receiver.recv().is_ok() {
                    // One commit of a group answers all wake-ups before it.
                    while receiver.try_recv().is_ok() {}
                    while store.commit_pending() {}
                }
            })
            .map_err(|e| Error::from_io(e, "start a thread", b"blob commits"))?;
        // The receiver exists, because its thread has just begun.
        let _ = sender.send(());
        *committer = Some(sender);
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
                // The thread may have looked for transactions before this one was added.
                let _ = self.wake_committer();
            }
            Err(error) => done(Err(error.into())),
        }
    }

    fn collect(&self) -> Result<()> {
        self.store.collect()
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
}
