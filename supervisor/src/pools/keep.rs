//! The daemons of a running pool, as their keeper knows them: it starts and adds daemons, grants
//! leases, and replaces daemons that fail.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use quell_wire::pool::{
    Complete, DaemonId, DaemonReport, KeeperMessage, LEASE_MS, Listening, MemberId, PoolDaemon, Ready,
};
use rustix::process::Signal;

use crate::failure::Failure;
use crate::pools::messages::{KeeperAnswer, KeeperCommand};
use crate::pools::new_pool::{NewDaemon, NewPool, PoolSecret};
use crate::pools::placement::{Effect, Placement};
use crate::pools::running::{Event, RunningLauncher, printable};

/// How long after the end of a lease a daemon is replaced, and the longest time between two
/// examinations of the leases while this process runs.
const LEASE_MARGIN: Duration = Duration::from_secs(1);
/// The time that launchers have to end after the end of their input, and again after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);

/// The state of a daemon.
pub(super) enum Phase {
    /// The daemon has received its settings. `replaced`: the failed daemon that it replaces, and
    /// whose members and data it takes over, if there is one.
    Starting {
        replaced: Option<DaemonId>,
    },
    /// The daemon listens, and has received the settings of the pool.
    Joining {
        daemon: PoolDaemon,
        replaced: Option<DaemonId>,
    },
    Serving,
    /// The daemon is ending, and has no members.
    Leaving,
    /// The daemon could not be started, or has failed after it had begun to serve.
    Failed {
        was_serving: bool,
    },
}

/// A daemon that was launched.
pub(super) struct LaunchedDaemon {
    pub(super) launcher: RunningLauncher,
    pub(super) new: NewDaemon,
    pub(super) phase: Phase,
    /// The daemon whose number is in the name of the directory with the data.
    storage: DaemonId,
    /// Whether the data remains after the end of the daemon, so that another daemon can take it
    /// over.
    has_data: bool,
    /// When the last lease was granted.
    granted: Instant,
    /// The number of the configuration that the daemon follows.
    configuration: u64,
    /// The message of the failure that the daemon has reported while it served.
    reported: Option<String>,
}

/// The daemons of a pool.
pub struct StartedPool {
    pub(super) new: NewPool,
    pub(super) secret: PoolSecret,
    /// All daemons that were launched. The number of a daemon is its position here.
    pub(super) daemons: Vec<LaunchedDaemon>,
    sender: Sender<Event>,
    pub(super) events: Receiver<Event>,
    pub(super) placement: Placement,
    /// When leases were last examined.
    examined: Instant,
    /// Whether a command ends the pool.
    pub(super) is_ending: bool,
    /// Commands that were not begun.
    pub(super) commands: Vec<(KeeperCommand, Sender<KeeperAnswer>)>,
    /// The reasons why daemons were not added.
    pub(super) failed_starts: Vec<String>,
    /// The numbers of clients that daemons have reported.
    pub(super) clients: BTreeMap<DaemonId, u64>,
}

impl fmt::Debug for StartedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.daemons.iter().map(|daemon| &daemon.launcher.host);
        f.debug_list().entries(hosts).finish()
    }
}

impl StartedPool {
    pub(super) fn new(
        new: NewPool,
        secret: PoolSecret,
        (sender, events): (Sender<Event>, Receiver<Event>),
    ) -> StartedPool {
        StartedPool {
            new,
            secret,
            daemons: Vec::new(),
            sender,
            events,
            placement: Placement::new(&[], &[], 1),
            examined: Instant::now(),
            is_ending: false,
            commands: Vec::new(),
            failed_starts: Vec::new(),
            clients: BTreeMap::new(),
        }
    }

    /// Returns the sender of events for the keeper.
    pub(super) fn events(&self) -> Sender<Event> {
        self.sender.clone()
    }

    /// Starts the launcher of a daemon.
    pub(super) fn launch(&mut self, new: &NewDaemon) -> Result<(), Failure> {
        let number = self.daemons.len();
        self.daemons.push(LaunchedDaemon {
            launcher: RunningLauncher::start(new, number, &self.sender)?,
            new: new.clone(),
            phase: Phase::Starting { replaced: None },
            storage: DaemonId(number as u16),
            has_data: self.new.memory_bytes.is_none(),
            granted: Instant::now(),
            configuration: 0,
            reported: None,
        });
        Ok(())
    }

    /// Starts a daemon of the running pool, and returns its number. It has no members, unless a
    /// daemon in whose place it is started has left some with their data.
    pub(super) fn launch_more(
        &mut self,
        new: &NewDaemon,
        replaced: Option<DaemonId>,
    ) -> Result<usize, Failure> {
        let number = self.daemons.len();
        self.launch(new)?;
        let id = DaemonId(number as u16);
        let left = replaced
            .map(|failed| (self.placement.members_of(failed), self.daemons[usize::from(failed.0)].storage));
        let (members, storage) = left.filter(|(members, _)| !members.is_empty()).unwrap_or((Vec::new(), id));
        let launched = &mut self.daemons[number];
        (launched.storage, launched.phase) = (storage, Phase::Starting { replaced });
        launched.launcher.send(&self.new.daemon_settings(&self.secret, new, id, (members, storage)));
        Ok(number)
    }

    /// Begins to keep the pool. All of its daemons serve.
    pub(super) fn serve(&mut self, placement: Placement) {
        self.placement = placement;
        let now = Instant::now();
        for daemon in &mut self.daemons {
            (daemon.phase, daemon.granted) = (Phase::Serving, now);
        }
        self.examined = now;
        if self.has_replicas() {
            self.send_configuration();
        }
    }

    /// Returns whether a daemon has failed after it had begun to serve.
    pub(super) fn was_serving(&self, number: usize) -> bool {
        matches!(self.daemons[number].phase, Phase::Failed { was_serving: true })
    }

    /// Returns the failure that a daemon has reported while it served, after a colon, or nothing.
    pub(super) fn reported_failure(&self, number: usize) -> String {
        let reported = self.daemons[number].reported.as_ref();
        reported.map(|message| format!(": {message}")).unwrap_or_default()
    }

    /// Returns whether all members run and have all their backups.
    pub fn is_complete(&self) -> bool {
        self.placement.is_complete()
    }

    fn has_replicas(&self) -> bool {
        self.new.replicas > 1
    }

    pub(super) fn send_configuration(&self) {
        self.send_to_all(&KeeperMessage::Configuration(self.placement.configuration()));
    }

    /// Returns whether all daemons but these follow the present configuration.
    pub(super) fn is_followed_without(&self, excluded: &[DaemonId]) -> bool {
        let number = self.placement.configuration().number;
        let mut others = self.placement.daemons().filter(|daemon| !excluded.contains(&daemon.id));
        others.all(|daemon| self.daemons[usize::from(daemon.id.0)].configuration >= number)
    }

    fn send_to_all(&self, message: &KeeperMessage) {
        for daemon in self.placement.daemons() {
            self.send(daemon.id, message);
        }
    }

    pub(super) fn send(&self, daemon: DaemonId, message: &KeeperMessage) {
        if let Some(daemon) = self.daemons.get(usize::from(daemon.0)) {
            daemon.launcher.send(message);
        }
    }

    /// Waits for an event, at most for `timeout`, and handles it.
    pub(super) fn step(&mut self, timeout: Duration) {
        let mut next = self.events.recv_timeout(timeout).ok();
        // All reports are read before the leases are examined, also after this process was stopped.
        while let Some(event) = next {
            match event {
                Event::Ended(number) => self.launcher_ended(number),
                Event::Line(number, line) => self.take_line(number, &line),
                Event::Command(command, answers) => self.commands.push((command, answers)),
            }
            next = self.events.try_recv().ok();
        }
        // Launchers that have ended are reaped, so that no zombies remain. `end` waits for
        // launchers that have closed their output and continue to run.
        for daemon in self.daemons.iter_mut().filter(|daemon| daemon.launcher.is_ended) {
            daemon.launcher.has_exited();
        }
        self.examine_leases();
    }

    fn launcher_ended(&mut self, number: usize) {
        let has_replicas = self.has_replicas();
        let daemon = &mut self.daemons[number];
        let launch = &mut daemon.launcher;
        launch.is_ended = true;
        launch.input = None;
        match daemon.phase {
            Phase::Starting { .. } | Phase::Joining { .. } => {
                let reason = format!("it ended before it served{}", launch.last_lines());
                let failure = launch.failed(&reason);
                self.start_failed(number, &failure);
            }
            // With leases, a daemon on another node may run after the end of its connection.
            Phase::Serving if !has_replicas => self.daemon_failed(number),
            _ => {}
        }
    }

    fn take_line(&mut self, number: usize, line: &str) {
        let launch = &self.daemons[number].launcher;
        let taken = match &self.daemons[number].phase {
            Phase::Starting { replaced } => match serde_json::from_str(line) {
                Ok(Listening::At(daemon)) if usize::from(daemon.id.0) == number => {
                    let replaced = *replaced;
                    self.join(number, daemon, replaced);
                    Ok(())
                }
                Ok(Listening::At(_)) => Err(launch.failed("its answer has a wrong number")),
                Ok(Listening::Failed { code, message }) => Err(launch.refused(code, &message)),
                Err(error) => Err(launch.wrong_answer(line, &error)),
            },
            Phase::Joining { daemon, replaced } => match serde_json::from_str(line) {
                Ok(Ready::Serving) => {
                    let (daemon, replaced) = (daemon.clone(), *replaced);
                    self.joined(number, daemon, replaced);
                    Ok(())
                }
                Ok(Ready::Failed { code, message }) => Err(launch.refused(code, &message)),
                Err(error) => Err(launch.wrong_answer(line, &error)),
            },
            Phase::Serving => {
                self.take_report(number, line);
                Ok(())
            }
            Phase::Leaving | Phase::Failed { .. } => Ok(()),
        };
        if let Err(failure) = taken {
            self.start_failed(number, &failure);
        }
    }

    /// Sends the settings of the pool to a daemon that listens.
    fn join(&mut self, number: usize, daemon: PoolDaemon, replaced: Option<DaemonId>) {
        // The settings have the placement that follows when this daemon serves.
        let mut placement = self.placement.clone();
        add(&mut placement, daemon.clone(), replaced);
        let configuration = placement.configuration();
        self.daemons[number].launcher.send(&self.new.pool_settings(
            configuration.daemons,
            configuration.members,
            configuration.ended,
        ));
        self.daemons[number].phase = Phase::Joining { daemon, replaced };
    }

    /// Adds a daemon that serves.
    fn joined(&mut self, number: usize, daemon: PoolDaemon, replaced: Option<DaemonId>) {
        self.daemons[number].launcher.send(&Complete);
        self.daemons[number].phase = Phase::Serving;
        self.daemons[number].granted = Instant::now();
        add(&mut self.placement, daemon, replaced);
        self.send_configuration();
    }

    fn start_failed(&mut self, number: usize, failure: &Failure) {
        self.daemons[number].phase = Phase::Failed { was_serving: false };
        // The daemon ends, and removes its files.
        self.daemons[number].launcher.input = None;
        self.failed_starts.push(failure.to_string());
    }

    fn take_report(&mut self, number: usize, line: &str) {
        let daemon = DaemonId(number as u16);
        if !self.placement.is_usable(daemon) {
            return;
        }
        match serde_json::from_str(line) {
            Ok(DaemonReport::Lease(request)) => {
                self.daemons[number].granted = Instant::now();
                self.daemons[number].launcher.send(&KeeperMessage::Lease(request));
            }
            Ok(DaemonReport::Configured(configuration)) => {
                self.daemons[number].configuration = configuration;
            }
            Ok(DaemonReport::Complete { member, backup }) => {
                let effect = self.placement.backup_complete(daemon, member, backup);
                self.apply(effect, member);
            }
            Ok(DaemonReport::Failed { member, backup }) => {
                let effect = self.placement.backup_failed(daemon, member, backup);
                self.apply(effect, member);
            }
            Ok(DaemonReport::Released(member)) => {
                let effect = self.placement.released(daemon, member);
                self.apply(effect, member);
            }
            Ok(DaemonReport::Clients(count)) => drop(self.clients.insert(daemon, count)),
            Ok(DaemonReport::Ending) => self.is_ending = true,
            Ok(DaemonReport::Removing) => self.daemons[number].has_data = false,
            // Without a lease, the daemon fails. The end of its input ends it.
            Err(_) => {
                let daemon = &mut self.daemons[number];
                if let Ok(Listening::Failed { message, .. }) = serde_json::from_str(line) {
                    daemon.reported = Some(printable(&message));
                }
                daemon.launcher.input = None;
            }
        }
    }

    fn apply(&mut self, effect: Effect, member: MemberId) {
        match effect {
            Effect::None => {}
            Effect::Changed => self.send_configuration(),
            Effect::Release(daemon) => self.send(daemon, &KeeperMessage::Release(member)),
        }
    }

    /// Lets other daemons run the members of a daemon that certainly does not run them any more.
    /// Without copies, its members are lost until it is started again.
    fn daemon_failed(&mut self, number: usize) {
        if self.is_ending {
            return;
        }
        // If the daemon still runs, or continues later, the end of its input ends it.
        self.daemons[number].launcher.input = None;
        self.daemons[number].phase = Phase::Failed { was_serving: true };
        self.placement.daemon_failed(DaemonId(number as u16));
        self.send_configuration();
    }

    /// Finds daemons that have ended, and daemons whose leases have ended.
    fn examine_leases(&mut self) {
        if !self.has_replicas() {
            return;
        }
        let now = Instant::now();
        if now.duration_since(self.examined) > LEASE_MARGIN {
            // This process was stopped, and could not grant leases.
            self.daemons.iter_mut().for_each(|daemon| daemon.granted = now);
        }
        self.examined = now;
        let limit = Duration::from_millis(LEASE_MS) + LEASE_MARGIN;
        for number in 0..self.daemons.len() {
            let daemon = &mut self.daemons[number];
            if !matches!(daemon.phase, Phase::Serving) {
                continue;
            }
            // A daemon on another node may run after the end of its connection, until its lease
            // ends.
            let launch = &mut daemon.launcher;
            let has_ended = launch.is_daemon && launch.is_ended && launch.has_exited();
            if has_ended || now.duration_since(daemon.granted) > limit {
                self.daemon_failed(number);
            }
        }
    }

    /// Returns whether all daemons have ended, and none has left data that another one can take
    /// over.
    pub(super) fn has_ended(&self) -> bool {
        if self.is_ending {
            // `end` ends daemons without members.
            let has_members = |number: usize| !self.placement.members_of(DaemonId(number as u16)).is_empty();
            let mut daemons = self.daemons.iter().enumerate();
            return daemons.all(|(number, daemon)| daemon.launcher.is_ended || !has_members(number));
        }
        let mut ended = self.placement.ended().iter();
        let has_data = ended.any(|daemon| self.daemons[usize::from(daemon.id.0)].has_data);
        !has_data && self.daemons.iter().all(|daemon| daemon.launcher.is_ended)
    }

    /// Ends the daemons by closing their input, after which they remove their files. Launchers that
    /// do not end are killed.
    pub fn end(&mut self) {
        for launch in self.launchers() {
            launch.input = None;
        }
        self.wait_for_launchers();
        self.signal(Signal::TERM);
        self.wait_for_launchers();
        self.signal(Signal::KILL);
        self.launchers().for_each(RunningLauncher::wait);
    }

    fn launchers(&mut self) -> impl Iterator<Item = &mut RunningLauncher> {
        self.daemons.iter_mut().map(|daemon| &mut daemon.launcher)
    }

    fn wait_for_launchers(&mut self) {
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline && !self.launchers().all(RunningLauncher::has_exited) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Signals the launchers that have not ended.
    fn signal(&mut self, signal: Signal) {
        self.launchers().for_each(|launch| launch.signal(signal));
    }
}

fn add(placement: &mut Placement, daemon: PoolDaemon, replaced: Option<DaemonId>) {
    match replaced {
        Some(failed) => placement.restart(failed, daemon),
        None => placement.add(daemon),
    }
}
