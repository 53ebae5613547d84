//! The keeper of a running pool, and the commands that add, remove or replace daemons of the pool.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use quell_wire::pool::{DaemonId, KeeperMessage, PoolDaemon};

use crate::failure::Failure;
use crate::pools::keep::{Phase, StartedPool};
use crate::pools::messages::{CommandProgress, KeeperAnswer, KeeperCommand};
use crate::pools::new_pool::NewDaemon;

/// How long daemons may take to report their clients, and that they follow a configuration.
const REPORT_LIMIT: Duration = Duration::from_secs(10);
/// How long a daemon without members may take to end.
const END_LIMIT: Duration = Duration::from_secs(30);

/// A command that is being performed.
pub(super) struct ActiveCommand {
    answers: Sender<KeeperAnswer>,
    stage: Stage,
    /// When the stage fails, if it has not ended.
    deadline: Option<Instant>,
    /// The reasons why daemons were not started.
    failures: Vec<String>,
    progress: Option<CommandProgress>,
}

/// The present stage of a command.
enum Stage {
    /// These daemons are being started.
    Starting(Vec<usize>),
    /// Daemons are asked for the number of their clients.
    Asking(Vec<DaemonId>),
    /// Members and backups are moved: `total` of them. `added`: the daemons that were started for
    /// the command. `leaving`: the daemons that end afterwards.
    Moving { total: usize, added: Vec<usize>, leaving: Vec<DaemonId> },
    /// These daemons have no members any more. Other daemons may not know this yet.
    Leaving(Vec<DaemonId>),
    /// Daemons are ending.
    Ending(Vec<DaemonId>),
}

impl ActiveCommand {
    fn report(&mut self, progress: CommandProgress) {
        if self.progress != Some(progress) {
            self.progress = Some(progress);
            // The command may have been interrupted. The keeper goes on.
            let _ = self.answers.send(KeeperAnswer::Progress(progress));
        }
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() > deadline)
    }
}

/// The keeper of a running pool.
pub struct Keeper {
    pool: StartedPool,
    command: Option<ActiveCommand>,
}

impl Keeper {
    /// Returns the keeper of a pool that was started.
    pub fn new(pool: StartedPool) -> Keeper {
        Keeper { pool, command: None }
    }

    /// Keeps the pool until a command ends it, until all daemons have ended and none has left data,
    /// or until `is_cancelled` returns true, which is called at least once each `interval`.
    pub fn keep(&mut self, interval: Duration, is_cancelled: &dyn Fn() -> bool) {
        let has_ended = |keeper: &Keeper| keeper.pool.has_ended() && keeper.command.is_none();
        while !has_ended(self) && !is_cancelled() {
            self.pool.step(interval);
            for (command, answers) in std::mem::take(&mut self.pool.commands) {
                self.begin(command, answers);
            }
            self.proceed();
        }
    }

    /// Ends the daemons, which remove their files.
    pub fn end(mut self) {
        self.pool.end();
    }

    fn begin(&mut self, command: KeeperCommand, answers: Sender<KeeperAnswer>) {
        if self.command.is_some() && !matches!(command, KeeperCommand::End) {
            return refuse(
                &answers,
                Failure::cannot("another command is changing the pool; wait until it has ended"),
            );
        }
        let begun = match command {
            KeeperCommand::Expand { daemons, timeout_ms } => self.begin_expansion(&daemons, timeout_ms),
            KeeperCommand::Shrink(daemons) => self.begin_reduction(&daemons),
            KeeperCommand::Repair { timeout_ms } => Ok(self.begin_repair(timeout_ms)),
            KeeperCommand::End => {
                self.pool.is_ending = true;
                // The command may have been interrupted.
                let _ = answers.send(KeeperAnswer::Done);
                return;
            }
        };
        match begun {
            Ok((stage, limit, failures)) => {
                let deadline = Some(Instant::now() + limit);
                self.command = Some(ActiveCommand { answers, stage, deadline, failures, progress: None });
            }
            Err(failure) => refuse(&answers, failure),
        }
    }

    fn begin_expansion(&mut self, new: &[NewDaemon], timeout_ms: u64) -> Result<Begun, Failure> {
        let daemons = self.pool.placement.daemons().count() + new.len();
        let members = self.pool.new.members;
        if daemons > usize::from(members) {
            return Err(Failure::wrong_input(format!(
                "the pool would have {daemons} daemons, and can have {members}; set a larger number with \
                 `quell pool up --expand-to` when you start it"
            )));
        }
        let new = new.iter().map(|daemon| (daemon.clone(), None)).collect();
        Ok(self.begin_start(new, timeout_ms))
    }

    fn begin_repair(&mut self, timeout_ms: u64) -> Begun {
        let new =
            |daemon: &PoolDaemon| (self.pool.daemons[usize::from(daemon.id.0)].new.clone(), Some(daemon.id));
        let new = self.pool.placement.ended().iter().map(new).collect();
        self.begin_start(new, timeout_ms)
    }

    /// Starts daemons. The second element of each pair is the failed daemon that the new one
    /// replaces, if there is one.
    fn begin_start(&mut self, new: Vec<(NewDaemon, Option<DaemonId>)>, timeout_ms: u64) -> Begun {
        let (mut starting, mut failures) = (Vec::new(), Vec::new());
        for (daemon, replaced) in new {
            match self.pool.launch_more(&daemon, replaced) {
                Ok(number) => starting.push(number),
                Err(failure) => failures.push(failure.to_string()),
            }
        }
        (Stage::Starting(starting), Duration::from_millis(timeout_ms), failures)
    }

    fn begin_reduction(&mut self, leaving: &[DaemonId]) -> Result<Begun, Failure> {
        if let Some(unknown) = leaving.iter().find(|daemon| !self.pool.placement.is_usable(**daemon)) {
            return Err(Failure::wrong_input(format!("the pool has no daemon {}", unknown.0)));
        }
        let left = self.pool.placement.daemons().count() - leaving.len();
        if left < usize::from(self.pool.new.replicas) {
            return Err(Failure::wrong_input(format!(
                "the pool would have {left} daemons, and keeps {} copies",
                self.pool.new.replicas
            )));
        }
        self.pool.clients.clear();
        for daemon in leaving {
            self.pool.send(*daemon, &KeeperMessage::RefuseClients);
        }
        Ok((Stage::Asking(leaving.to_vec()), REPORT_LIMIT, Vec::new()))
    }

    /// Begins the next stage of the command when the present one has ended.
    fn proceed(&mut self) {
        let Some(mut command) = self.command.take() else { return };
        command.failures.append(&mut self.pool.failed_starts);
        let next = match &command.stage {
            Stage::Starting(starting) => {
                let starting = starting.clone();
                command.report(CommandProgress::Starting);
                self.continue_start(&mut command, &starting)
            }
            Stage::Asking(leaving) => {
                let leaving = leaving.clone();
                self.continue_asking(&command, leaving)
            }
            Stage::Moving { total, added, leaving } => {
                let (total, added, leaving) = (*total, added.clone(), leaving.clone());
                self.continue_moves(&mut command, total, &added, leaving)
            }
            Stage::Leaving(daemons) => {
                let daemons = daemons.clone();
                self.continue_leaving(&command, daemons)
            }
            Stage::Ending(daemons) => {
                let daemons = daemons.clone();
                command.report(CommandProgress::Ending);
                self.continue_end(&command, &daemons)
            }
        };
        match next {
            Next::Wait => self.command = Some(command),
            Next::Stage(stage, deadline) => {
                (command.stage, command.deadline) = (stage, deadline);
                self.command = Some(command);
            }
            Next::Ended(answer) => {
                // The command may have been interrupted.
                let _ = command.answers.send(answer);
            }
        }
    }

    fn continue_start(&mut self, command: &mut ActiveCommand, starting: &[usize]) -> Next {
        let is_starting = |phase: &Phase| matches!(phase, Phase::Starting { .. } | Phase::Joining { .. });
        let daemons = &self.pool.daemons;
        let late: Vec<usize> =
            starting.iter().copied().filter(|number| is_starting(&daemons[*number].phase)).collect();
        if !late.is_empty() && !command.is_late() {
            return Next::Wait;
        }
        for number in late {
            let daemon = &mut self.pool.daemons[number];
            daemon.phase = Phase::Failed { was_serving: false };
            let launch = &mut daemon.launcher;
            launch.input = None;
            let failure = launch.failed(&format!("no answer within the time limit{}", launch.last_lines()));
            command.failures.push(failure.to_string());
        }
        self.pool.placement.balance();
        self.pool.send_configuration();
        let added = starting.to_vec();
        Next::Stage(Stage::Moving { total: self.remaining(), added, leaving: Vec::new() }, None)
    }

    fn continue_asking(&mut self, command: &ActiveCommand, leaving: Vec<DaemonId>) -> Next {
        let clients = &self.pool.clients;
        if !leaving.iter().all(|daemon| clients.contains_key(daemon)) && !command.is_late() {
            return Next::Wait;
        }
        let describe = |daemon: &DaemonId| {
            let host = &self.pool.daemons[usize::from(daemon.0)].launcher.host;
            match clients.get(daemon) {
                Some(0) => None,
                Some(1) => Some(format!("a program uses the daemon {} on {host}", daemon.0)),
                Some(count) => Some(format!("{count} programs use the daemon {} on {host}", daemon.0)),
                None => Some(format!("the daemon {} on {host} does not answer", daemon.0)),
            }
        };
        let used: Vec<String> = leaving.iter().filter_map(describe).collect();
        if !used.is_empty() {
            for daemon in leaving {
                self.pool.send(daemon, &KeeperMessage::AcceptClients);
            }
            return failed(format!("the pool was not changed: {}", used.join("; ")));
        }
        self.pool.placement.leave(&leaving);
        self.pool.send_configuration();
        Next::Stage(Stage::Moving { total: self.remaining(), added: Vec::new(), leaving }, None)
    }

    fn continue_moves(
        &mut self,
        command: &mut ActiveCommand,
        total: usize,
        added: &[usize],
        leaving: Vec<DaemonId>,
    ) -> Next {
        let moved = total.saturating_sub(self.remaining());
        command.report(CommandProgress::Moving { moved, total });
        if !self.pool.placement.is_idle() {
            return Next::Wait;
        }
        if !leaving.is_empty() {
            let left = self.pool.placement.left();
            if left > 0 {
                self.pool.placement.stay();
                self.pool.send_configuration();
                for daemon in leaving {
                    self.pool.send(daemon, &KeeperMessage::AcceptClients);
                }
                return failed(format!(
                    "{left} parts or copies could not be moved, because a daemon has failed or no other daemon has \
                     enough space; the daemons stay"
                ));
            }
            return Next::Stage(Stage::Leaving(leaving), Some(Instant::now() + REPORT_LIMIT));
        }
        let mut failures = std::mem::take(&mut command.failures);
        for number in added.iter().filter(|number| self.pool.was_serving(**number)) {
            failures.push(format!(
                "the daemon {number} on {} has failed after its start{}",
                self.pool.daemons[*number].launcher.host,
                self.pool.reported_failure(*number)
            ));
        }
        let unmoved = self.pool.placement.unmoved();
        if unmoved > 0 && failures.is_empty() {
            failures
                .push(format!("{unmoved} parts could not be moved, because a daemon has too little space"));
        }
        let lost = |daemon: &PoolDaemon| !self.pool.placement.members_of(daemon.id).is_empty();
        for PoolDaemon { id, host, .. } in self.pool.placement.ended().iter().filter(|daemon| lost(daemon)) {
            let reason = self.pool.reported_failure(usize::from(id.0));
            failures.push(format!("files of the daemon {} on {host} cannot be used{reason}", id.0));
        }
        match failures.is_empty() {
            true => Next::Ended(KeeperAnswer::Done),
            false => failed(failures.join("\n  ")),
        }
    }

    /// Ends daemons without members when no other daemon sends requests to them any more.
    fn continue_leaving(&mut self, command: &ActiveCommand, leaving: Vec<DaemonId>) -> Next {
        if !self.pool.is_followed_without(&leaving) && !command.is_late() {
            return Next::Wait;
        }
        for daemon in &leaving {
            let daemon = &mut self.pool.daemons[usize::from(daemon.0)];
            (daemon.phase, daemon.launcher.input) = (Phase::Leaving, None);
        }
        Next::Stage(Stage::Ending(leaving), Some(Instant::now() + END_LIMIT))
    }

    fn continue_end(&mut self, command: &ActiveCommand, daemons: &[DaemonId]) -> Next {
        let running: Vec<usize> = daemons.iter().map(|daemon| usize::from(daemon.0)).collect();
        let running: Vec<usize> =
            running.into_iter().filter(|number| !self.pool.daemons[*number].launcher.is_ended).collect();
        if !running.is_empty() && !command.is_late() {
            return Next::Wait;
        }
        self.pool.placement.remove_left();
        self.pool.send_configuration();
        let hosts: Vec<&str> =
            running.iter().map(|number| self.pool.daemons[*number].launcher.host.as_str()).collect();
        match hosts.is_empty() {
            true => Next::Ended(KeeperAnswer::Done),
            false => failed(format!("daemons without members have not ended on {}", hosts.join(", "))),
        }
    }

    /// Returns the number of members and backups that are still to be moved.
    fn remaining(&self) -> usize {
        self.pool.placement.left() + self.pool.placement.excess() + self.pool.placement.moving()
    }
}

/// The first stage of a command, its time limit, and the daemons whose launchers could not be
/// started.
type Begun = (Stage, Duration, Vec<String>);

/// The state of a command after its stage was examined.
enum Next {
    Wait,
    Stage(Stage, Option<Instant>),
    Ended(KeeperAnswer),
}

fn failed(message: String) -> Next {
    Next::Ended(KeeperAnswer::Failed { code: Failure::CANNOT, message })
}

fn refuse(answers: &Sender<KeeperAnswer>, failure: Failure) {
    let answer = KeeperAnswer::Failed { code: failure.code(), message: failure.to_string() };
    // The command may have been interrupted.
    let _ = answers.send(answer);
}
