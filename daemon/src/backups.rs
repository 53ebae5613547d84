//! The backups of members that other daemons run. One thread owns them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

use quell_pool_service::{Backup, no_backup};
use quell_vfs::Result;
use quell_wire::pool::{MemberId, ReplicaMessage, Reply, Route};
use quell_wire::{Failure as WireFailure, decode_first, encode};

use crate::failure::Failure;
use crate::request::{Job, PeerRequest, failure};
use crate::storage::{DaemonStorage, Storage};

/// The thread with the backups.
pub struct Backups {
    jobs: mpsc::Sender<Job>,
    thread: JoinHandle<()>,
}

impl Backups {
    /// Starts the thread.
    pub fn start(
        jobs: (mpsc::Sender<Job>, mpsc::Receiver<Job>),
        storage: Arc<DaemonStorage>,
    ) -> std::result::Result<Backups, Failure> {
        let (sender, receiver) = jobs;
        let held = BackupState { storage, backups: HashMap::new(), configuration: 0, waiting: Vec::new() };
        let started = std::thread::Builder::new().name("quell-backups".into()).spawn(|| held.run(receiver));
        let thread = started.map_err(|e| Failure::cannot(format!("cannot start a thread: {e}")))?;
        Ok(Backups { jobs: sender, thread })
    }

    /// Removes the backups of all members but these, as the configuration of this number requires.
    pub fn keep(&self, members: Vec<MemberId>, configuration: u64) {
        // The thread runs until `end`.
        let _ = self.jobs.send(Job::Keep(members, configuration));
    }

    /// Returns the storage of the complete backup of a member. The backup gets no changes any more.
    pub fn take(&self, member: MemberId) -> Option<Storage> {
        let (sender, receiver) = mpsc::channel();
        // The thread runs until `end`.
        let _ = self.jobs.send(Job::Take(member, sender));
        receiver.recv().ok().flatten()
    }

    /// Ends the thread, which closes the storage.
    pub fn end(self) {
        let _ = self.jobs.send(Job::End);
        if self.thread.join().is_err() {
            tracing::error!("the thread of the backups has panicked");
        }
    }
}

struct BackupState {
    storage: Arc<DaemonStorage>,
    backups: HashMap<MemberId, (Backup, Storage)>,
    /// The number of the present configuration.
    configuration: u64,
    /// First messages of streams of later configurations.
    waiting: Vec<PeerRequest>,
}

impl BackupState {
    fn run(mut self, jobs: mpsc::Receiver<Job>) {
        for job in jobs {
            match job {
                Job::Message(request) => self.take(request),
                Job::Keep(members, configuration) => {
                    self.configuration = configuration;
                    let removed: Vec<_> =
                        self.backups.extract_if(|member, _| !members.contains(member)).collect();
                    for (member, backup) in removed {
                        drop(backup);
                        self.remove(member);
                    }
                    for request in std::mem::take(&mut self.waiting) {
                        self.take(request);
                    }
                }
                Job::Take(member, sender) => {
                    let taken = self.backups.remove(&member).filter(|(backup, _)| backup.is_complete());
                    // The receiver waits.
                    let _ = sender.send(taken.map(|(_, storage)| storage));
                }
                Job::End => return,
            }
        }
    }

    /// Performs a message. The first message of a stream waits for its configuration, so that an
    /// earlier configuration does not remove the backup.
    fn take(&mut self, request: PeerRequest) {
        let decoded: Result<((Route, ReplicaMessage), &[u8])> = decode_first(&request.bytes);
        let applied = match decoded {
            Ok(((_, header), _)) if header.number == 0 && header.configuration > self.configuration => {
                let now = Instant::now();
                // The sender of a request that is dropped sends it again.
                self.waiting.retain(|waiting| waiting.deadline > now);
                return self.waiting.push(request);
            }
            Ok(((_, header), changes)) => self.apply(&header, changes),
            Err(error) => Err(error),
        };
        request.reply.send(match applied {
            Ok(()) => encode(&Ok::<_, WireFailure>(Reply::Done)),
            Err(error) => failure(error),
        });
    }

    fn apply(&mut self, header: &ReplicaMessage, changes: &[u8]) -> Result<()> {
        let member = header.member;
        if !self.backups.contains_key(&member) {
            if header.number != 0 {
                return Err(no_backup(member));
            }
            let storage = self.storage.create(member)?;
            let backup = Backup::new(Arc::clone(&storage.store), Arc::clone(&storage.chunks));
            self.backups.insert(member, (backup, storage));
        }
        let (backup, _) = self.backups.get_mut(&member).expect("it was inserted");
        backup.apply(header, changes)
    }

    fn remove(&self, member: MemberId) {
        if let Err(error) = self.storage.remove(member) {
            tracing::warn!(%error, "a backup was not removed");
        }
    }
}
