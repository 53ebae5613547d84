//! Backups of the simulated members. Member N runs on daemon N at first. When a daemon fails, its
//! storage is lost, and other daemons run its members with the storage of their backups.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::decode_first;
use quell_wire::pool::{DaemonId, ReplicaMessage, Route};

use super::cluster::Cluster;
use super::storage::{Disk, Life};
use crate::replication::{Backup, BackupDaemons, BackupEvent, no_backup};

/// The interval at which the state of the backups is examined.
const INTERVAL: Duration = Duration::from_millis(200);
/// The longest time for which a member that moves performs the requests that were begun.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);
/// The interval at which the end of these requests is checked.
const RELEASE_INTERVAL: Duration = Duration::from_millis(10);
/// The time for which a failed daemon is not used for backups.
const AWAY: Duration = Duration::from_secs(6);

/// The daemons that run the members, and the backups.
pub struct Replicas {
    /// The daemon of each member.
    hosts: Vec<Cell<u16>>,
    backups: Vec<RefCell<Option<BackupOfMember>>>,
    failed: RefCell<BTreeSet<u16>>,
    /// The number of failures.
    pub failures: Cell<u64>,
    /// The number of members that have moved.
    pub moves: Cell<u64>,
}

struct BackupOfMember {
    daemon: u16,
    disk: Rc<Disk>,
    backup: RefCell<Backup>,
    /// Whether the member has reported that the backup is complete.
    is_reported: bool,
}

impl Replicas {
    pub fn new(members: u16) -> Replicas {
        Replicas {
            hosts: (0..members).map(Cell::new).collect(),
            backups: (0..members).map(|_| RefCell::default()).collect(),
            failed: RefCell::default(),
            failures: Cell::new(0),
            moves: Cell::new(0),
        }
    }
}

impl Cluster {
    /// Gives each member a backup on another daemon, and replaces members and backups that are
    /// lost.
    pub fn keep_backups(self: &Rc<Cluster>) {
        let cluster = Rc::clone(self);
        self.runtime.spawn(async move {
            loop {
                for member in 0..cluster.members() {
                    cluster.keep_backup(member);
                }
                cluster.runtime.sleep(INTERVAL).await;
            }
        });
    }

    fn keep_backup(self: &Rc<Cluster>, number: u16) {
        let replicas = &self.replicas;
        let failed = replicas.failed.borrow().clone();
        let host = &replicas.hosts[usize::from(number)];
        let mut backup = replicas.backups[usize::from(number)].borrow_mut();
        if self.running(number).is_none() {
            // Only members with a complete backup fail.
            let promoted = backup.take().expect("the member has a backup");
            assert!(promoted.backup.borrow().is_complete());
            host.set(promoted.daemon);
            self.replace_disk(number, promoted.disk);
            self.restart(number);
        }
        let running = self.running(number).expect("it was started");
        for event in running.replication.take_events() {
            if let (BackupEvent::Complete(daemon), Some(backup)) = (event, backup.as_mut()) {
                assert_eq!(daemon.0, backup.daemon);
                backup.is_reported = true;
            }
        }
        if backup.as_ref().is_some_and(|backup| failed.contains(&backup.daemon)) {
            *backup = None;
        }
        if backup.is_none() {
            let others = (1..self.members()).map(|n| (number + n) % self.members());
            let chosen = others.into_iter().find(|d| !failed.contains(d) && *d != host.get());
            if let Some(daemon) = chosen {
                let disk = Rc::new(Disk::new());
                let (store, chunks) = disk.open(&Arc::<Life>::default());
                let new = RefCell::new(Backup::new(store, chunks));
                *backup = Some(BackupOfMember { daemon, disk, backup: new, is_reported: false });
            }
        }
        let daemons: Vec<DaemonId> = backup.iter().map(|backup| DaemonId(backup.daemon)).collect();
        drop(backup);
        let session = running.member.session;
        for task in running.replication.set_backups(running.member.id, session, 0, &daemons) {
            running.spawn(&self.runtime, task);
        }
    }

    /// Makes a daemon fail with its storage, unless this would lose a member.
    pub fn fail_daemon(self: &Rc<Cluster>, daemon: u16) {
        let replicas = &self.replicas;
        let is_safe = (0..self.members()).all(|member| {
            let backup = replicas.backups[usize::from(member)].borrow();
            self.running(member).is_some() && backup.as_ref().is_some_and(|backup| backup.is_reported)
        });
        if !is_safe || !replicas.failed.borrow_mut().insert(daemon) {
            return;
        }
        replicas.failures.set(replicas.failures.get() + 1);
        for member in (0..self.members()).filter(|m| replicas.hosts[usize::from(*m)].get() == daemon) {
            self.kill(member);
        }
        let cluster = Rc::clone(self);
        self.runtime.spawn(async move {
            cluster.runtime.sleep(AWAY).await;
            cluster.replicas.failed.borrow_mut().remove(&daemon);
        });
    }

    /// Begins to move a member to the daemon with its backup, if the backup is complete.
    pub fn move_member(self: &Rc<Cluster>, number: u16) {
        let is_complete = |backup: &BackupOfMember| backup.is_reported;
        let has_backup =
            self.replicas.backups[usize::from(number)].borrow().as_ref().is_some_and(is_complete);
        let Some(running) = self.running(number).filter(|running| has_backup && !running.is_released.get())
        else {
            return;
        };
        running.is_released.set(true);
        let cluster = Rc::clone(self);
        self.runtime.spawn(async move {
            let limit = cluster.runtime.now() + RELEASE_LIMIT;
            let is_performing = || running.performing.get() > 0 && cluster.runtime.now() < limit;
            while running.life.is_alive() && (is_performing() || !running.replication.is_settled()) {
                cluster.runtime.sleep(RELEASE_INTERVAL).await;
            }
            if running.life.is_alive() {
                cluster.finish_move(number);
            }
        });
    }

    /// Runs a member that has been released on the daemon with its backup, or again on the same
    /// daemon if the other one has failed.
    fn finish_move(self: &Rc<Cluster>, number: u16) {
        self.kill(number);
        let replicas = &self.replicas;
        let mut backup = replicas.backups[usize::from(number)].borrow_mut();
        let has_failed = |backup: &BackupOfMember| replicas.failed.borrow().contains(&backup.daemon);
        if let Some(moved) = backup.take_if(|backup| backup.is_reported && !has_failed(backup)) {
            assert!(moved.backup.borrow().is_complete());
            replicas.moves.set(replicas.moves.get() + 1);
            replicas.hosts[usize::from(number)].set(moved.daemon);
            self.replace_disk(number, moved.disk);
        }
        drop(backup);
        self.restart(number);
    }

    /// Passes changes of a member to its backup on a daemon.
    async fn back_up(self: Rc<Cluster>, from: u16, to: u16, message: Vec<u8>) -> Result<()> {
        let unavailable = || Error::new(ErrorKind::Unavailable, "call daemon", to.to_string());
        self.runtime.sleep(self.delay()).await;
        if self.replicas.failed.borrow().contains(&to) || self.is_lost() {
            return Err(unavailable());
        }
        let ((_, header), changes): ((Route, ReplicaMessage), _) = decode_first(&message)?;
        assert_eq!(header.member.0, from);
        let applied = match &*self.replicas.backups[usize::from(from)].borrow() {
            Some(backup) if backup.daemon == to => backup.backup.borrow_mut().apply(&header, changes),
            _ => Err(no_backup(header.member)),
        };
        self.runtime.sleep(self.delay()).await;
        match self.is_lost() {
            true => Err(unavailable()),
            false => applied,
        }
    }
}

/// The connections of a member to the daemons with backups.
pub struct SimulatedDaemons {
    pub cluster: Weak<Cluster>,
    pub from: u16,
}

impl BackupDaemons for SimulatedDaemons {
    fn send(&self, to: DaemonId, message: Vec<u8>) -> LocalBoxFuture<'static, Result<()>> {
        let cluster = self.cluster.upgrade().expect("the simulation is running");
        cluster.back_up(self.from, to.0, message).boxed_local()
    }
}
