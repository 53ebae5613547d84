//! A store whose blobs are divided among several groups of servers. The program computes the group
//! of a blob, and coordinates the transactions that concern several groups
//! (docs/decisions/0035-groups-of-servers.md).

mod joint;
#[cfg(test)]
mod joint_test;
mod locks;
mod servers;
mod split;
mod state;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quell_blob_service::CommitResult;
use quell_rados::Objects;
use quell_threads::lock;
use quell_transport::peer::ClientKey;
use quell_vfs::{Error, Result};
use quell_wire::blob::{Reply, Request, StoreCounters, Transaction, Version};

use self::joint::JointTransaction;
use self::servers::Servers;
use self::state::{LatestStates, SnapshotStates};
use crate::backend::{Backend, ReadDone, TransactionState, read_bytes};
use crate::readers::Readers;

/// The time after which `collect` ends a joint transaction that is still not decided.
const ABANDONED_AFTER: Duration = Duration::from_secs(2);

/// A store with several groups of servers.
pub(crate) struct Grouped {
    servers: Arc<Servers>,
    /// The threads for submitted transactions and reads that wait.
    threads: Readers,
}

impl Grouped {
    /// Returns a store with several groups in a pool, and connects to the server of the first
    /// group.
    pub(crate) fn open(
        objects: &Arc<dyn Objects>,
        pool: &str,
        groups: u32,
        key: &ClientKey,
        is_encrypted: bool,
    ) -> Result<Grouped> {
        let servers = Servers::connect(objects, pool, groups, key, is_encrypted)?;
        Ok(Grouped { servers: Arc::new(servers), threads: Readers::default() })
    }

    /// Executes a job on another thread, and passes `done` to it.
    fn execute<T: Send + 'static>(
        &self,
        done: Box<dyn FnOnce(T) + Send>,
        job: impl FnOnce(&Servers) -> T + Send + 'static,
        failed: impl FnOnce(Error) -> T + Send + 'static,
    ) {
        let done = Arc::new(Mutex::new(Some(done)));
        let (servers, of_job) = (self.servers.clone(), done.clone());
        let run = move || {
            let result = job(&servers);
            if let Some(done) = lock(&of_job).take() {
                done(result);
            }
            Ok(Vec::new())
        };
        // The second function is called with an error if no thread could be started.
        let finish = move |started: Result<Vec<u8>>| {
            if let (Err(error), Some(done)) = (started, lock(&done).take()) {
                done(failed(error));
            }
        };
        self.threads.submit(run, Box::new(finish));
    }
}

impl Backend for Grouped {
    fn is_remote(&self) -> bool {
        true
    }

    fn groups(&self) -> u32 {
        self.servers.count()
    }

    fn begin(&self) -> Result<Box<dyn TransactionState>> {
        Ok(Box::new(SnapshotStates::new(self.servers.clone(), self.servers.begin()?)))
    }

    fn latest(&self) -> Result<Box<dyn TransactionState>> {
        Ok(Box::new(LatestStates(self.servers.clone())))
    }

    fn commit(&self, transaction: Transaction) -> CommitResult {
        self.servers.commit(&[], transaction)
    }

    fn submit(&self, transaction: Transaction, done: Box<dyn FnOnce(CommitResult) + Send>) {
        self.submit_at(Vec::new(), transaction, done);
    }

    fn commit_at(&self, versions: &[Version], transaction: Transaction) -> CommitResult {
        self.servers.commit(versions, transaction)
    }

    fn submit_at(
        &self,
        versions: Vec<Version>,
        transaction: Transaction,
        done: Box<dyn FnOnce(CommitResult) + Send>,
    ) {
        let job = move |servers: &Servers| servers.commit(&versions, transaction);
        self.execute(done, job, |error| Err(error.into()));
    }

    fn submit_read(&self, name: Vec<u8>, offset: u64, length_bytes: usize, done: ReadDone) {
        let states = LatestStates(self.servers.clone());
        self.threads.submit(move || read_bytes(&states, &name, offset, length_bytes), done);
    }

    /// Returns the sums of the counters of all groups.
    fn server_counters(&self, limit: Duration) -> Result<StoreCounters> {
        let deadline = Instant::now() + limit;
        let mut sum: Option<StoreCounters> = None;
        for group in 0..self.servers.count() {
            let remote = self.servers.remote(group)?;
            let counters = remote.server_counters(deadline.saturating_duration_since(Instant::now()));
            let failed = |error: Error| {
                let (kind, source) = (error.kind, Some(Box::new(error) as _));
                Error { source, ..Error::new(kind, "read the counters of", format!("group {group}")) }
            };
            let counters = counters.map_err(failed)?;
            match &mut sum {
                Some(sum) => sum.add(&counters),
                None => sum = Some(counters),
            }
        }
        Ok(sum.unwrap_or_default())
    }

    /// As for one group. Also ends joint transactions whose clients have died.
    fn collect(&self) -> Result<()> {
        let servers = &self.servers;
        let before = servers.undecided()?;
        if !before.is_empty() {
            std::thread::sleep(ABANDONED_AFTER);
            for (group, id, coordinator) in servers.undecided()?.intersection(&before) {
                servers.drive(&mut JointTransaction::resolve(*id, *coordinator, *group));
            }
        }
        for reply in servers.call_all(&|_| Request::Collect)? {
            if reply != Reply::Done {
                return Err(servers.remote(0)?.unexpected(reply));
            }
        }
        Ok(())
    }
}

impl Drop for Grouped {
    /// Waits for the threads, so that all submitted transactions have their results.
    fn drop(&mut self) {
        self.threads.stop();
    }
}
