//! A mount of a store for batches.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use quell_batch::{BatchFs, OpenBatch, Refreshed, StoreAccess, WatchedBatch};
use quell_fuse::{KernelCache, LockKeeper};
use quell_vfs::{FileSystem, Result};

use crate::batch_session::{BatchEnd, BatchSession, COMMIT_WAIT, open_batch_session};
use crate::failure::Failure;
use crate::holder::handshake::HolderContext;
use crate::holder::writable_mount::{Content, MountOptions, WritableMount, mountpoint};
use crate::protocol::plan::{BatchMode, BatchPlan};
use crate::protocol::report::{BatchReport, HolderReport};
use crate::runtime::end_record::MountedBatch;

/// Interval at which the process of a batch looks for requests for a view, and the process of a
/// mount that watches a batch looks for a newer view.
const VIEW_INTERVAL: Duration = Duration::from_secs(2);
/// The pause after the publication of a view, in multiples of its duration.
const VIEW_PAUSE: u32 = 20;
/// The longest pause after a publication: well below the 30 s for which `quell batch watch` waits
/// for an answer.
const VIEW_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Opens the store, begins the batch, and mounts its files.
pub fn create(context: &HolderContext, plan: &BatchPlan) -> Result<WritableMount, Failure> {
    let path = mountpoint(context, "a batch needs a mount point: quell mount --batch STORE MOUNTPOINT")?;
    let options = MountOptions {
        source: &plan.store,
        // A name space keeps no locks. The kernel's locks hold between the programs of this mount.
        locks: LockKeeper::Kernel,
        description: format!("the store {}", plan.store.display()),
    };
    let mut watched = None;
    let mount = WritableMount::create(context, path, &options, || {
        if let BatchMode::Watch { batch } = plan.mode {
            let batch = Arc::new(WatchedBatch::open_of(&plan.store, &plan.trust_owners, batch)?);
            let fs = Arc::new(batch.file_system_at(plan.subtree.as_os_str().as_bytes())?);
            watched = Some(batch);
            return Ok(Arc::new(Watched { fs, plan: plan.clone() }) as _);
        }
        let subtree = plan.subtree.as_os_str().as_bytes();
        let content: Arc<dyn Content> = match open_batch_session(plan)? {
            BatchSession::Synchronous(store) => {
                let fs = Arc::new(store.file_system(subtree)?);
                Arc::new(Synchronous { fs, store: *store, plan: plan.clone() })
            }
            BatchSession::Batch(batch, end) => {
                check_started(context, "publish views", publish_views(&batch));
                Arc::new(Batch { batch, plan: plan.clone(), end })
            }
        };
        Ok(content)
    })?;
    if let (Some(batch), Some(cache)) = (watched, mount.kernel_cache()) {
        show_views(batch, cache, context);
    }
    Ok(mount)
}

/// Prints that a thread for views cannot be started. `purpose` is its purpose.
fn check_started(context: &HolderContext, purpose: &str, started: io::Result<()>) {
    if let Err(e) = started {
        context.print(&format!("cannot {purpose} of the batch: cannot start a thread: {e}"));
    }
}

/// Starts a thread that publishes or shows views of a batch.
fn start_views(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("quell-views".into()).spawn(work).map(drop)
}

/// Starts the thread that publishes views of a batch of this process for `quell batch watch`. It
/// ends with the batch or the process.
///
/// # Errors
///
/// The error of the system if the thread cannot be created.
pub fn publish_views(batch: &Arc<OpenBatch>) -> io::Result<()> {
    let batch = Arc::downgrade(batch);
    start_views(move || {
        loop {
            thread::sleep(VIEW_INTERVAL);
            let Some(batch) = batch.upgrade() else { return };
            let began = Instant::now();
            match batch.publish_view() {
                Ok(false) => continue,
                Ok(true) => {}
                Err(error) => tracing::debug!(%error, "the view of a batch"),
            }
            drop(batch);
            thread::sleep(pause_after(began.elapsed()));
        }
    })
}

/// Returns the pause after a publication that took this long.
fn pause_after(publication: Duration) -> Duration {
    publication.saturating_mul(VIEW_PAUSE).min(VIEW_PAUSE_MAX)
}

/// Starts the thread that shows newer views of a batch, as long as programs use the mount. It ends
/// with the batch or the process.
fn show_views(batch: Arc<WatchedBatch>, cache: KernelCache, context: &HolderContext) {
    let started = start_views(move || {
        let (mut replies, mut is_requested) = (None, false);
        loop {
            let used = Some(cache.replies());
            if std::mem::replace(&mut replies, used) != used && !is_requested {
                is_requested = batch.request().is_ok();
            }
            match batch.refresh() {
                Ok(Refreshed::Ended) => return,
                Ok(Refreshed::Newer) => is_requested = false,
                Ok(Refreshed::Same) => {}
                Err(error) => tracing::debug!(%error, "the view of a batch"),
            }
            thread::sleep(VIEW_INTERVAL);
        }
    });
    check_started(context, "show newer views", started);
}

/// The files of a running batch of another process.
struct Watched {
    fs: Arc<BatchFs>,
    plan: BatchPlan,
}

impl Content for Watched {
    fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.fs) as _
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn is_busy(&self) -> bool {
        false
    }

    /// Does nothing: nothing was changed.
    fn end(&self) -> Result<()> {
        Ok(())
    }

    fn describe(&self, path: &Path, counters: BTreeMap<String, u64>, report: &mut HolderReport) {
        let (store, path) = (self.plan.store.clone(), path.to_owned());
        let trust_owners = self.plan.trust_owners.clone();
        report.batch = Some(BatchReport { store, batch: None, trust_owners, path, counters });
    }
}

/// The master image of a store.
struct Synchronous {
    fs: Arc<BatchFs>,
    store: StoreAccess,
    plan: BatchPlan,
}

impl Content for Synchronous {
    fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.fs) as _
    }

    fn is_exclusive(&self) -> bool {
        self.store.is_exclusive()
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn end(&self) -> Result<()> {
        let ended = self.fs.end();
        self.store.name_space().sync()?;
        ended
    }

    fn describe(&self, path: &Path, counters: BTreeMap<String, u64>, report: &mut HolderReport) {
        let (store, path) = (self.plan.store.clone(), path.to_owned());
        let trust_owners = self.plan.trust_owners.clone();
        report.batch = Some(BatchReport { store, batch: None, trust_owners, path, counters });
    }
}

/// The private name space of a batch.
struct Batch {
    batch: Arc<OpenBatch>,
    plan: BatchPlan,
    end: BatchEnd,
}

impl Content for Batch {
    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.batch.file_system() as _
    }

    /// Returns true: only this process has the private name space.
    fn is_exclusive(&self) -> bool {
        true
    }

    /// Returns true: a write changes the private name space at once.
    fn publishes_writes(&self) -> bool {
        true
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn end(&self) -> Result<()> {
        match self.end {
            BatchEnd::Commit => self.batch.commit(COMMIT_WAIT).map(drop),
            BatchEnd::CommitLater => self.batch.commit_later(COMMIT_WAIT).map(drop),
            BatchEnd::Close => self.batch.close(),
        }
    }

    fn batch(&self) -> Option<MountedBatch> {
        let BatchPlan { store, trust_owners, .. } = self.plan.clone();
        Some(MountedBatch { store, number: self.batch.record().number, trust_owners })
    }

    /// Discards the batch, which is empty.
    fn abandon(&self) -> Result<()> {
        self.batch.abort(COMMIT_WAIT).map(drop)
    }

    fn describe(&self, path: &Path, counters: BTreeMap<String, u64>, report: &mut HolderReport) {
        let (store, path) = (self.plan.store.clone(), path.to_owned());
        let batch = Some(self.batch.record().number);
        let trust_owners = self.plan.trust_owners.clone();
        report.batch = Some(BatchReport { store, batch, trust_owners, path, counters });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_after_a_slow_publication_is_shorter_than_a_watch_waits() {
        assert_eq!(pause_after(Duration::from_millis(100)), Duration::from_secs(2));
        assert_eq!(pause_after(Duration::from_secs(2)), Duration::from_secs(10));
        assert_eq!(pause_after(Duration::MAX), Duration::from_secs(10));
    }
}
