//! Replication of a member: the daemon that runs it sends each change of its storage to the daemons
//! that have backups of the member. No reply or request leaves the member before all complete
//! backups have confirmed the earlier changes. A backup can therefore replace the storage of the
//! member at any time, as if the member had been killed and started again.

mod backup;
mod fill;
mod log;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, join};
use quell_kv::KeyValue;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::encode;
use quell_wire::pool::{Change, DATA_BYTES_MAX, DaemonId, MemberId, NetworkCounters, ReplicaMessage, Route};

pub use backup::Backup;

use crate::chunks::Chunks;
use crate::environment::{Clock, Peers};
use fill::Fill;
use log::{ChangeLog, ReplicatedChunks, ReplicatedStore};

/// The largest message to a backup, in bytes, without its last change.
const MESSAGE_BYTES: usize = DATA_BYTES_MAX / 2;

/// The connections to the daemons with backups.
pub trait BackupDaemons {
    /// Sends a message of [`Route::Backup`] with its changes, and waits for the confirmation.
    /// Errors: `Unavailable` and `TimedOut` if it is not known whether the changes were made; other
    /// errors if the backup has failed.
    fn send(&self, to: DaemonId, message: Vec<u8>) -> LocalBoxFuture<'static, Result<()>>;
}

/// A change of the state of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupEvent {
    /// The backup has all changes, and replies wait for its confirmations from now on.
    Complete(DaemonId),
    /// The backup has failed, and gets no further changes.
    Failed(DaemonId),
}

/// The replication of one member.
pub struct Replication {
    log: Arc<ChangeLog>,
    store: Arc<dyn KeyValue>,
    chunks: Arc<dyn Chunks>,
    clock: Rc<dyn Clock>,
    daemons: Rc<dyn BackupDaemons>,
    /// The end of the time for which this daemon may run the member, by the monotonic clock. `None`
    /// if no other daemon can run the member.
    lease_end: Cell<Option<Duration>>,
    next_generation: Cell<u32>,
    /// Tasks that wait before they send a message again.
    retrying: RefCell<Vec<Waker>>,
    events: RefCell<Vec<BackupEvent>>,
}

impl std::fmt::Debug for Replication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replication").finish_non_exhaustive()
    }
}

impl Replication {
    /// Returns the replication of a member with this storage, without backups.
    pub fn new(
        store: Arc<dyn KeyValue>,
        chunks: Arc<dyn Chunks>,
        clock: Rc<dyn Clock>,
        daemons: Rc<dyn BackupDaemons>,
    ) -> Rc<Replication> {
        Rc::new(Replication {
            log: Arc::default(),
            store,
            chunks,
            clock,
            daemons,
            lease_end: Cell::new(None),
            next_generation: Cell::new(0),
            retrying: RefCell::default(),
            events: RefCell::default(),
        })
    }

    /// Returns the store for the member.
    pub fn store(&self) -> Arc<dyn KeyValue> {
        Arc::new(ReplicatedStore { store: Arc::clone(&self.store), log: Arc::clone(&self.log) })
    }

    /// Returns the chunks for the member.
    pub fn chunks(&self) -> Arc<dyn Chunks> {
        Arc::new(ReplicatedChunks { chunks: Arc::clone(&self.chunks), log: Arc::clone(&self.log) })
    }

    /// Returns connections through which requests leave the member only after the changes before
    /// them were confirmed.
    pub fn peers(self: &Rc<Replication>, peers: Rc<dyn Peers>) -> Rc<dyn Peers> {
        Rc::new(ReplicatedPeers { peers, replication: Rc::clone(self) })
    }

    /// Sets the end of the time for which this daemon may run the member, by the monotonic clock.
    /// After this time, replies wait until a later end is set.
    pub fn set_lease_end(&self, end: Option<Duration>) {
        self.lease_end.set(end);
        self.log.state().wake();
    }

    /// Waits until all complete backups have confirmed the changes that were made so far, and until
    /// this daemon may run the member.
    pub fn settled(self: &Rc<Replication>) -> impl Future<Output = ()> + use<> {
        let (replication, position) = (Rc::clone(self), self.log.state().position);
        poll_fn(move |context| {
            let mut state = replication.log.state();
            let is_confirmed =
                state.backups.iter().all(|backup| !backup.is_complete || backup.confirmed >= position);
            if is_confirmed && replication.has_lease() {
                return Poll::Ready(());
            }
            state.waiting.push(context.waker().clone());
            Poll::Pending
        })
    }

    /// Returns whether `settled` would return at once.
    pub fn is_settled(&self) -> bool {
        let state = self.log.state();
        state.backups.iter().all(|backup| !backup.is_complete || backup.confirmed >= state.position)
            && self.has_lease()
    }

    fn has_lease(&self) -> bool {
        self.lease_end.get().is_none_or(|end| self.clock.monotonic() < end)
    }

    /// Sets the daemons that have backups. Returns tasks that send the changes to the new backups.
    /// A task ends when its backup is removed. `session` is the session of the member, and
    /// `configuration` the number of the configuration that names the daemons.
    pub fn set_backups(
        self: &Rc<Replication>,
        member: MemberId,
        session: u64,
        configuration: u64,
        daemons: &[DaemonId],
    ) -> Vec<LocalBoxFuture<'static, ()>> {
        let mut state = self.log.state();
        state.backups.retain_mut(|backup| {
            let is_kept = daemons.contains(&backup.daemon);
            if !is_kept && let Some(sender) = backup.sender.take() {
                sender.wake();
            }
            is_kept
        });
        let mut tasks = Vec::new();
        for daemon in daemons {
            if state.backups.iter().any(|backup| backup.daemon == *daemon) {
                continue;
            }
            let generation = self.next_generation.get();
            self.next_generation.set(generation + 1);
            let position = state.position;
            let mut backup = log::Backup {
                daemon: *daemon,
                generation,
                queue: Default::default(),
                confirmed: 0,
                is_complete: false,
                complete_at: None,
                has_failed: false,
                sender: None,
            };
            backup.push(position, encode(&Change::Clear).into());
            state.backups.push(backup);
            let header =
                ReplicaMessage { member, stream: (session, generation), configuration, number: 0, count: 0 };
            tasks.push(Rc::clone(self).feed(*daemon, header).boxed_local());
        }
        state.wake();
        drop(state);
        self.retry();
        tasks
    }

    /// Sends again the messages that could not be sent. Must be called about once a second.
    pub fn retry(&self) {
        self.retrying.take().into_iter().for_each(Waker::wake);
        // The lease may have ended or begun.
        self.log.state().wake();
    }

    /// Returns the changes of the states of backups since the last call.
    pub fn take_events(&self) -> Vec<BackupEvent> {
        self.events.take()
    }

    /// Sends the whole storage of the member, and all further changes, to a backup. Each message
    /// begins with `header`, its number and the number of its changes.
    async fn feed(self: Rc<Replication>, to: DaemonId, header: ReplicaMessage) {
        let stream = header.stream;
        let mut fill = Fill::Keys(None);
        if !self.fill_queue(&mut fill, to, stream.1).await {
            return;
        }
        for number in 0.. {
            let header = ReplicaMessage { number, ..header };
            let Some((message, position, is_complete)) = self.next_message(to, header).await else {
                return;
            };
            // The next part of the copy is read while the backup applies these changes.
            let delivered = self.deliver(to, stream.1, message);
            let (is_delivered, is_filled) = join(delivered, self.fill_queue(&mut fill, to, stream.1)).await;
            if !is_delivered || !is_filled {
                return;
            }
            let mut state = self.log.state();
            let last = state.position;
            let Some(backup) = state.backup(to, stream.1) else { return };
            backup.confirmed = position;
            if is_complete {
                backup.is_complete = true;
                // The changes so far were acknowledged without waiting for this backup.
                backup.complete_at = Some(last);
            }
            if backup.complete_at.is_some_and(|last| position >= last) {
                backup.complete_at = None;
                self.events.borrow_mut().push(BackupEvent::Complete(to));
            }
            state.wake();
        }
    }

    /// Adds parts of the copy to the queue of a new backup until it has changes or everything was
    /// copied. Returns false if the storage of the member has failed.
    async fn fill_queue(&self, fill: &mut Fill, to: DaemonId, generation: u32) -> bool {
        while !fill.is_done() && self.is_queue_empty(to, generation) {
            if self.fill(fill, to, generation).is_err() {
                self.fail(to, generation);
                return false;
            }
            // Requests are performed between two steps.
            pause().await;
        }
        true
    }

    /// Adds the next part of the copy to the queue of a new backup.
    fn fill(&self, fill: &mut Fill, to: DaemonId, generation: u32) -> Result<()> {
        let changes = fill.step(&self.store, &self.chunks)?;
        let mut state = self.log.state();
        let position = state.position;
        if let Some(backup) = state.backup(to, generation) {
            changes.into_iter().for_each(|change| backup.push(position, change.into()));
        }
        Ok(())
    }

    fn is_queue_empty(&self, to: DaemonId, generation: u32) -> bool {
        self.log.state().backup(to, generation).is_some_and(|backup| backup.queue.is_empty())
    }

    /// Waits for changes in the queue of a backup, and takes the changes for the next message,
    /// which begins with `header` and the number of changes. Returns the message, the last position
    /// in it, and whether the last change is `Complete`; `None` if the backup was removed.
    async fn next_message(
        &self,
        to: DaemonId,
        header: ReplicaMessage,
    ) -> Option<(Vec<u8>, log::Position, bool)> {
        let complete = encode(&Change::Complete);
        poll_fn(|context| {
            let mut state = self.log.state();
            let Some(backup) = state.backup(to, header.stream.1) else { return Poll::Ready(None) };
            if backup.queue.is_empty() {
                backup.sender = Some(context.waker().clone());
                return Poll::Pending;
            }
            let (mut changes, mut bytes, mut last) = (Vec::new(), 0, 0);
            let mut is_complete = false;
            while !is_complete
                && bytes < MESSAGE_BYTES
                && let Some((_, change)) = backup.queue.front()
                && (bytes == 0 || bytes + change.len() <= log::CHANGE_BYTES_MAX)
                && let Some((position, change)) = backup.queue.pop_front()
            {
                is_complete = *change == complete;
                bytes += change.len();
                last = position;
                changes.push(change);
            }
            drop(state);
            let count = changes.len() as u32;
            let mut message = encode(&(Route::Backup, ReplicaMessage { count, ..header }));
            message.reserve_exact(bytes);
            changes.iter().for_each(|change| message.extend_from_slice(change));
            Poll::Ready(Some((message, last, is_complete)))
        })
        .await
    }

    /// Sends a message until it is confirmed. Returns false if the backup was removed or has
    /// failed.
    async fn deliver(&self, to: DaemonId, generation: u32, message: Vec<u8>) -> bool {
        loop {
            match self.daemons.send(to, message.clone()).await {
                Ok(()) => return true,
                Err(error) if matches!(error.kind, ErrorKind::Unavailable | ErrorKind::TimedOut) => {
                    if self.log.state().backup(to, generation).is_none() {
                        return false;
                    }
                    self.wait_for_retry().await;
                }
                Err(_) => {
                    self.fail(to, generation);
                    return false;
                }
            }
        }
    }

    /// Waits for the next call of `retry`.
    async fn wait_for_retry(&self) {
        let mut has_waited = false;
        poll_fn(|context| {
            if std::mem::replace(&mut has_waited, true) {
                return Poll::Ready(());
            }
            self.retrying.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Records that a backup has failed. Replies wait for its confirmations until it is removed.
    fn fail(&self, to: DaemonId, generation: u32) {
        let mut state = self.log.state();
        if let Some(backup) = state.backup(to, generation) {
            backup.has_failed = true;
            backup.queue.clear();
            self.events.borrow_mut().push(BackupEvent::Failed(to));
        }
    }
}

/// Yields to the other tasks of the thread once.
async fn pause() {
    let mut has_paused = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_paused, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The other members, whose requests wait for the backups.
struct ReplicatedPeers {
    peers: Rc<dyn Peers>,
    replication: Rc<Replication>,
}

impl Peers for ReplicatedPeers {
    fn call(
        &self,
        to: MemberId,
        request: Vec<u8>,
        reply_bytes_max: u32,
        is_repeatable: bool,
    ) -> LocalBoxFuture<'static, Result<Vec<u8>>> {
        if self.replication.is_settled() {
            return self.peers.call(to, request, reply_bytes_max, is_repeatable);
        }
        let (peers, settled) = (Rc::clone(&self.peers), self.replication.settled());
        async move {
            settled.await;
            peers.call(to, request, reply_bytes_max, is_repeatable).await
        }
        .boxed_local()
    }

    fn traffic(&self) -> NetworkCounters {
        self.peers.traffic()
    }
}

/// Returns the error of a daemon that has no backup of a member.
pub fn no_backup(member: MemberId) -> Error {
    Error::new(ErrorKind::Stale, "change the backup of member", member.0.to_string())
}
