//! The main thread of a daemon that serves: it runs the members that the keeper of the pool assigns
//! to this daemon, requests leases, and ends the daemon.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use quell_pool_service::PoolMap;
use quell_runtime::Socket;
use quell_wire::pool::{
    Configuration, DaemonId, DaemonReport, KeeperMessage, LEASE_MS, MemberId, PoolMember, PoolSettings,
};
use serde::Serialize;

use crate::backups::Backups;
use crate::event::Event;
use crate::failure::Failure;
use crate::node_files::NodeFiles;
use crate::service::{Command, EndedMember, MemberStart, RunningMember, Shared};
use crate::storage::{DaemonStorage, Storage};

/// How often the main thread checks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(250);
/// How often a daemon of a pool with replicas requests a lease.
const LEASE_INTERVAL: Duration = Duration::from_millis(LEASE_MS / 6);
/// The largest number of requests for leases without an answer. Older ones are forgotten.
const REQUESTS_MAX: usize = 64;
/// How long the end of the daemon waits for requests of other members that were begun.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// A daemon that serves.
pub struct Daemon {
    pub pool: PoolSettings,
    pub map: PoolMap,
    pub shared: Shared,
    pub backups: Backups,
    storage: Arc<DaemonStorage>,
    members: HashMap<MemberId, RunningMember>,
    /// Members that are ending because the keeper gives them to other daemons.
    releasing: HashSet<MemberId>,
    /// Members that have ended because the keeper gives them to other daemons, until a
    /// configuration has a daemon for them.
    released: HashMap<MemberId, Storage>,
    /// The number of the last configuration.
    configuration: u64,
    last_request: u64,
    /// The time of the last request for a lease.
    requested: Option<Instant>,
    /// Requests for leases without an answer, with their times.
    requests: VecDeque<(u64, Instant)>,
}

impl Daemon {
    pub fn new(
        pool: PoolSettings,
        map: PoolMap,
        shared: Shared,
        (backups, storage): (Backups, Arc<DaemonStorage>),
    ) -> Daemon {
        Daemon {
            pool,
            map,
            shared,
            backups,
            storage,
            members: HashMap::new(),
            releasing: HashSet::new(),
            released: HashMap::new(),
            configuration: 0,
            last_request: 0,
            requested: None,
            requests: VecDeque::new(),
        }
    }

    fn has_replicas(&self) -> bool {
        self.pool.replicas > 1
    }

    /// Runs a member on its storage. `serves_clients`: as in the member's description.
    pub fn start_member(
        &mut self,
        id: MemberId,
        storage: Storage,
        serves_clients: bool,
    ) -> Result<(), Failure> {
        let own = self.pool.daemons.iter().find(|daemon| daemon.id == self.shared.daemon);
        let missing = || Failure::wrong_input("the settings of the pool do not contain this daemon");
        let start = MemberStart {
            id,
            map: self.map.clone(),
            owner: (self.pool.uid, self.pool.gid),
            has_replicas: self.has_replicas(),
            serves_clients,
            storage,
            socket: own.ok_or_else(missing)?.socket(id),
        };
        let running = RunningMember::start(start, self.shared.clone())?;
        self.members.insert(id, running);
        Ok(())
    }

    /// Serves until `is_stopped` returns true, which is called at least four times each second,
    /// until a command ends the pool, or until the input ends.
    ///
    /// Returns early if a member has failed; `end` returns the failure.
    ///
    /// # Errors
    ///
    /// The errors of reading the messages of the keeper, and of writing messages to it.
    pub fn run(
        &mut self,
        events: &Receiver<Event>,
        files: &NodeFiles,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        let interval = if self.has_replicas() { LEASE_INTERVAL } else { SIGNAL_INTERVAL };
        while !is_stopped() {
            if self.has_replicas() {
                self.request_lease()?;
            }
            match events.recv_timeout(interval) {
                Ok(Event::Line(line)) => self.take_line(line, files)?,
                Ok(Event::InputEnded) => return Ok(()),
                Ok(Event::Ended(member)) => match self.members.get(&member) {
                    Some(running) if running.has_failed() => return Ok(()),
                    Some(_) if self.releasing.contains(&member) => self.finish_release(member)?,
                    // A command ends the pool.
                    Some(_) => return report(&DaemonReport::Ending),
                    None => {}
                },
                Ok(Event::Backup { member, backup, is_complete: true }) => {
                    report(&DaemonReport::Complete { member, backup })?;
                }
                Ok(Event::Backup { member, backup, is_complete: false }) => {
                    report(&DaemonReport::Failed { member, backup })?;
                }
                Ok(Event::Clients(count)) => report(&DaemonReport::Clients(count))?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
        Ok(())
    }

    fn request_lease(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        if self.requested.is_some_and(|last| now.duration_since(last) < LEASE_INTERVAL) {
            return Ok(());
        }
        self.requested = Some(now);
        self.last_request += 1;
        self.requests.push_back((self.last_request, now));
        if self.requests.len() > REQUESTS_MAX {
            self.requests.pop_front();
        }
        report(&DaemonReport::Lease(self.last_request))
    }

    fn take_line(&mut self, line: std::io::Result<String>, files: &NodeFiles) -> Result<(), Failure> {
        let line = line.map_err(|e| Failure::cannot(format!("cannot read a message of the keeper: {e}")))?;
        let message = serde_json::from_str(&line)
            .map_err(|e| Failure::wrong_input(format!("damaged message of the keeper: {e}")))?;
        match message {
            KeeperMessage::Lease(number) => {
                let requested = self.requests.iter().find(|(request, _)| *request == number);
                if let Some((_, requested)) = requested.copied() {
                    self.requests.retain(|(request, _)| *request > number);
                    self.members.values().for_each(|member| member.command(Command::Lease(requested)));
                }
                Ok(())
            }
            KeeperMessage::Configuration(configuration) => self.configure(configuration, files),
            KeeperMessage::Release(member) => {
                self.release(member);
                Ok(())
            }
            KeeperMessage::RefuseClients => match self.serving() {
                Some(member) => {
                    member.command(Command::RefuseClients);
                    Ok(())
                }
                None => report(&DaemonReport::Clients(0)),
            },
            KeeperMessage::AcceptClients => {
                self.members.values().for_each(|member| member.command(Command::AcceptClients));
                Ok(())
            }
        }
    }

    /// Returns the member that serves the clients of the node.
    fn serving(&self) -> Option<&RunningMember> {
        let is_serving = |id: &MemberId| self.pool.members.iter().any(|m| m.id == *id && m.serves_clients);
        self.members.iter().find(|(id, _)| is_serving(id)).map(|(_, member)| member)
    }

    /// Begins to end a member, which another daemon is to run.
    fn release(&mut self, member: MemberId) {
        if let Some(running) = self.members.get(&member)
            && self.releasing.insert(member)
        {
            self.shared.router.hold(member);
            running.command(Command::Release);
        }
    }

    /// Keeps the storage of a released member until a configuration has a daemon for it.
    fn finish_release(&mut self, member: MemberId) -> Result<(), Failure> {
        self.releasing.remove(&member);
        let Some(running) = self.members.remove(&member) else { return Ok(()) };
        let (socket, storage) = (running.socket().clone(), running.storage()?);
        running.end()?.reply(&Ok(()));
        socket.remove().map_err(|e| Failure::cannot(format!("cannot remove a socket: {e}")))?;
        self.released.insert(member, storage);
        report(&DaemonReport::Released(member))
    }

    fn configure(&mut self, configuration: Configuration, files: &NodeFiles) -> Result<(), Failure> {
        let Configuration { number, daemons, members, releasing, ended, is_complete } = configuration;
        if number <= self.configuration {
            return Ok(());
        }
        self.configuration = number;
        let own = self.shared.daemon;
        // Without copies, only the next daemon of a member has a backup.
        let is_expected =
            |placed: &PoolMember| placed.daemon == own || (!self.has_replicas() && is_placed(placed, own));
        for placed in members.iter().filter(|placed| is_expected(placed)) {
            self.shared.router.expect(placed.id);
        }
        self.shared.placement.set(&*self.shared.network, &members, &daemons)?;
        let is_here =
            |member: MemberId| members.iter().any(|placed| placed.id == member && placed.daemon == own);
        let removed: Vec<MemberId> = self.members.keys().copied().filter(|id| !is_here(*id)).collect();
        for member in removed {
            // Another daemon runs the member, so the replies of this daemon are not sent.
            if let Some(running) = self.members.remove(&member) {
                running.end().map(drop)?;
            }
        }
        let moved: Vec<MemberId> = self.released.keys().copied().filter(|id| !is_here(*id)).collect();
        for member in moved {
            self.released.remove(&member);
            self.shared.router.release(member);
            if let Err(error) = self.storage.remove(member) {
                tracing::warn!(%error, "the storage of a member that has moved was not removed");
            }
        }
        let is_kept = |placed: &&PoolMember| is_placed(placed, own);
        if !self.has_replicas() {
            // A move to this daemon can have failed.
            members.iter().filter(|placed| !is_kept(placed)).for_each(|p| self.shared.router.release(p.id));
        }
        self.backups.keep(members.iter().filter(is_kept).map(|placed| placed.id).collect(), number);
        for placed in members.iter().filter(|placed| placed.daemon == own) {
            // A configuration that was sent before the report of a release arrived does not assign
            // the member to this daemon again. A start would begin new backups, and make those
            // incomplete that exist.
            if self.members.contains_key(&placed.id) || releasing.contains(&placed.id) {
                continue;
            }
            let missing =
                || Failure::cannot(format!("there is no complete backup of member {}", placed.id.0));
            let storage = self.released.remove(&placed.id).or_else(|| self.backups.take(placed.id));
            self.start_member(placed.id, storage.ok_or_else(missing)?, placed.serves_clients)?;
        }
        for placed in &members {
            if let Some(member) = self.members.get(&placed.id) {
                member.command(Command::Backups(placed.backups.clone(), number));
                member.command(Command::PlacementChanged);
            }
        }
        self.pool.daemons = daemons;
        self.pool.members = members;
        self.pool.ended = ended;
        self.pool.is_complete = is_complete;
        files.remove_ended(&self.pool);
        files.register(&self.pool)?;
        report(&DaemonReport::Configured(number))
    }

    /// Ends the members and the backups, removes the files, and sends the last replies.
    pub fn end(self, files: &NodeFiles) -> Result<(), Failure> {
        let Daemon { shared, backups, members, released, .. } = self;
        drop(released);
        let sockets: Vec<Socket> = members.values().map(|member| member.socket().clone()).collect();
        members.values().for_each(RunningMember::begin_end);
        let ended: Vec<Result<EndedMember, Failure>> =
            members.into_values().map(RunningMember::end).collect();
        backups.end();
        // The keeper may have ended.
        let _ = report(&DaemonReport::Removing);
        let removed = files.remove(&sockets);
        let mut failed = None;
        for ended in ended {
            match ended {
                Ok(ended) => ended.reply(&removed),
                Err(failure) => failed = Some(failure),
            }
        }
        shared.network.stop(STOP_LIMIT);
        removed.and(failed.map_or(Ok(()), Err))
    }
}

/// Returns whether a daemon runs a member or has a backup of it.
fn is_placed(member: &PoolMember, daemon: DaemonId) -> bool {
    member.daemon == daemon || member.backups.contains(&daemon)
}

/// Writes a message to standard output, which the keeper of the pool reads.
fn report(message: &DaemonReport) -> Result<(), Failure> {
    write_line(message, "report to the keeper of the pool")
}

/// Writes a line of JSON to standard output. `purpose` is a part of the error message.
pub fn write_line(message: &impl Serialize, purpose: &str) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(message).expect("the messages have no maps");
    line.push(b'\n');
    let mut output = std::io::stdout().lock();
    let written = output.write_all(&line).and_then(|()| output.flush());
    written.map_err(|e| Failure::cannot(format!("cannot {purpose}: {e}")))
}
