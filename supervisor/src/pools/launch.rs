//! The start of the daemons of a pool: a launcher program for each, whose standard input and output
//! carry the messages of `quell_wire::pool`.

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_wire::pool::{
    Complete, Compression, Consistency, DaemonId, DaemonReport, KeeperMessage, LEASE_MS, LINE_BYTES_MAX,
    Lifetime, Listen, Listening, MemberId, MemberSettings, PoolMember, PoolSettings, Ready,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::display::shown;
use crate::failure::Failure;
use crate::pools::replicas::Replicas;

/// How long the end of a launcher that has closed its connection is waited for.
const END_LIMIT: Duration = Duration::from_secs(2);

/// How long after the end of a lease a daemon is replaced, and the longest time between two
/// examinations of the leases while this process runs.
const LEASE_MARGIN: Duration = Duration::from_secs(1);
/// How often a start checks whether it was cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(50);
/// The time that launchers have to end after the end of their input, and again after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);
/// The lines of a launcher's standard error that are kept for the message of a failure.
const KEPT_LINES: usize = 8;
/// The longest of these lines, in bytes.
const KEPT_LINE_BYTES_MAX: u64 = 1000;

/// The settings of a pool that is to be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewPool {
    /// The name.
    pub name: String,
    /// The daemons.
    pub members: Vec<NewMember>,
    /// The absolute path of the directory on each node below which the daemons keep their data.
    /// `None` stands for `$TMPDIR` or `/tmp` of the node.
    pub directory: Option<PathBuf>,
    /// The largest number of bytes that each daemon keeps, if it keeps them in memory.
    pub memory_bytes: Option<u64>,
    /// The absolute path of the runtime directory on each node. `None` stands for the default
    /// directory of the user.
    pub runtime: Option<PathBuf>,
    /// The size of chunks, in bytes.
    pub chunk_bytes: u32,
    /// The number of partitions.
    pub partitions: u16,
    /// The time at which the sizes of files are visible.
    pub consistency: Consistency,
    /// The number of copies of all names and data.
    pub replicas: u16,
    /// Whether the data that daemons send to each other is encrypted.
    pub encrypts: bool,
    /// The compression of the data that daemons send to each other.
    pub compression: Compression,
    /// The event that ends the daemons.
    pub lifetime: Lifetime,
    /// Whether the pool continues after the end of the session in which it was started.
    pub is_detached: bool,
    /// The time limit of the start, in milliseconds.
    pub timeout_ms: u64,
    /// The filter of the daemons' events. `None` stands for `QUELL_LOG` of each node.
    pub log_filter: Option<String>,
}

/// A daemon that is to be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewMember {
    /// The name of its node in messages.
    pub host: String,
    /// The command line that starts it.
    pub command: Vec<String>,
    /// The address on which it listens.
    pub listen: Listen,
}

/// The launchers of the daemons of a pool.
pub struct StartedPool {
    members: Vec<RunningLauncher>,
    events: Receiver<(usize, Event)>,
    /// The placement of the members, if they have backups.
    replicas: Option<Replicas>,
    /// When the last lease was granted to each daemon.
    granted: Vec<Instant>,
    /// When leases were last examined.
    examined: Instant,
    /// Whether a command ends the pool.
    is_ending: bool,
}

/// A launcher that runs.
struct RunningLauncher {
    host: String,
    program: String,
    child: Child,
    /// Messages for its standard input, which ends when this is dropped.
    input: Option<Sender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
    messages: Arc<Mutex<VecDeque<String>>>,
    reader: Option<JoinHandle<()>>,
    is_ended: bool,
    /// Whether the program is the daemon itself, on this node.
    is_daemon: bool,
}

/// An event of one launcher.
enum Event {
    Line(String),
    /// Its standard output has ended, which is the end of the daemon.
    Ended,
}

/// Starts the daemons of a pool, and returns their launchers when all of them serve. `is_cancelled`
/// is called at least 20 times each second.
///
/// # Errors
///
/// The failure of the first daemon that cannot be started, which names its node; the time limit;
/// and interruption. The daemons that were started have ended then, unless their nodes do not
/// answer.
pub fn start_pool(new: &NewPool, is_cancelled: &dyn Fn() -> bool) -> Result<StartedPool, Failure> {
    for path in [&new.directory, &new.runtime].into_iter().flatten() {
        if path.to_str().is_none() {
            return Err(Failure::wrong_input(format!("{} is not valid UTF-8", shown(path))));
        }
    }
    let deadline = Instant::now() + Duration::from_millis(new.timeout_ms);
    let (sender, events) = channel();
    let mut launched = StartedPool {
        members: Vec::new(),
        events,
        replicas: None,
        granted: Vec::new(),
        examined: Instant::now(),
        is_ending: false,
    };
    let mut started = Ok(());
    for member in &new.members {
        match RunningLauncher::start(member, launched.members.len(), &sender) {
            Ok(launch) => launched.members.push(launch),
            Err(failure) => {
                started = Err(failure);
                break;
            }
        }
    }
    drop(sender);
    match started.and_then(|()| launched.exchange_settings(new, deadline, is_cancelled)) {
        Ok(()) => Ok(launched),
        Err(failure) => {
            launched.end();
            Err(failure)
        }
    }
}

impl fmt::Debug for StartedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.members.iter().map(|launch| &launch.host);
        f.debug_list().entries(hosts).finish()
    }
}

impl StartedPool {
    fn exchange_settings(
        &mut self,
        new: &NewPool,
        deadline: Instant,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        let (mut key, mut number) = ([0; 32], [0; 16]);
        random(&mut key)?;
        random(&mut number)?;
        for (id, (launch, member)) in (0..).zip(self.members.iter().zip(&new.members)) {
            launch.send(&MemberSettings {
                name: new.name.clone(),
                pool: u128::from_le_bytes(number),
                key,
                daemon: DaemonId(id),
                member: MemberId(id),
                host: member.host.clone(),
                directory: new.directory.clone(),
                memory_bytes: new.memory_bytes,
                runtime: new.runtime.clone(),
                listen: member.listen.clone(),
                encrypts: new.encrypts,
                compression: new.compression,
                lifetime: new.lifetime,
                log_filter: new.log_filter.clone(),
            });
        }
        let mut members: Vec<PoolMember> = Vec::new();
        self.receive(deadline, is_cancelled, &mut |launch, answer| match answer {
            Listening::At(member) => {
                members.push(member);
                Ok(())
            }
            Listening::Failed { code, message } => Err(launch.refused(code, &message)),
        })?;
        members.sort_by_key(|member| member.id);
        if !members.iter().map(|member| member.id.0).eq(0..new.members.len() as u16) {
            return Err(Failure::cannot("the answers of the daemons have wrong member numbers"));
        }
        let settings = PoolSettings {
            members,
            ended: Vec::new(),
            is_complete: new.replicas == 1,
            replicas: new.replicas,
            partitions: new.partitions,
            chunk_bytes: new.chunk_bytes,
            consistency: new.consistency,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        self.members.iter().for_each(|launch| launch.send(&settings));
        self.receive(deadline, is_cancelled, &mut |launch, answer| match answer {
            Ready::Serving => Ok(()),
            Ready::Failed { code, message } => Err(launch.refused(code, &message)),
        })?;
        self.members.iter().for_each(|launch| launch.send(&Complete));
        match new.replicas {
            1 => Ok(()),
            copies => self.start_replicas(&settings.members, copies, deadline, is_cancelled),
        }
    }

    /// Gives each member its backups, and waits until they are complete.
    fn start_replicas(
        &mut self,
        members: &[PoolMember],
        copies: u16,
        deadline: Instant,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        self.replicas = Some(Replicas::new(members, copies));
        self.granted = vec![Instant::now(); self.members.len()];
        self.examined = Instant::now();
        self.send_configuration();
        while !self.replicas.as_ref().is_some_and(Replicas::is_complete) {
            self.step(CANCEL_INTERVAL);
            if let Some(ended) = self.members.iter_mut().find(|launch| launch.is_ended) {
                return Err(ended.ended());
            }
            if is_cancelled() {
                return Err(Failure::interrupted("the start was interrupted"));
            }
            if Instant::now() > deadline {
                return Err(Failure::cannot("the backups were not complete within the time limit"));
            }
        }
        Ok(())
    }

    fn send_configuration(&self) {
        let Some(replicas) = &self.replicas else { return };
        let message = KeeperMessage::Configuration(replicas.configuration());
        for (number, launch) in (0..).zip(&self.members) {
            if replicas.is_usable(DaemonId(number)) {
                launch.send(&message);
            }
        }
    }

    /// Waits for an event, at most for `timeout`, and performs what it requires.
    fn step(&mut self, timeout: Duration) {
        let mut next = self.events.recv_timeout(timeout).ok();
        // All reports are read before the leases are examined, also after this process was stopped.
        while let Some((number, event)) = next {
            match event {
                Event::Ended => self.launcher_ended(number),
                Event::Line(line) => self.take_report(number, &line),
            }
            next = self.events.try_recv().ok();
        }
        self.reap();
        self.examine_leases();
    }

    fn launcher_ended(&mut self, number: usize) {
        let launch = &mut self.members[number];
        launch.is_ended = true;
        launch.input = None;
    }

    /// Takes the exit status of launchers that have ended, so that they do not stay as zombies.
    /// `end` waits for those that have closed their output and go on.
    fn reap(&mut self) {
        for launch in self.members.iter_mut().filter(|launch| launch.is_ended) {
            let _ = launch.child.try_wait();
        }
    }

    fn take_report(&mut self, number: usize, line: &str) {
        let Some(replicas) = &mut self.replicas else { return };
        let daemon = DaemonId(number as u16);
        if !replicas.is_usable(daemon) {
            return;
        }
        match serde_json::from_str(line) {
            Ok(DaemonReport::Lease(request)) => {
                self.granted[number] = Instant::now();
                self.members[number].send(&KeeperMessage::Lease(request));
            }
            Ok(DaemonReport::Complete { member, backup }) => {
                if replicas.backup_complete(daemon, member, backup) {
                    self.send_configuration();
                }
            }
            Ok(DaemonReport::Failed { member, backup }) => {
                if replicas.backup_failed(daemon, member, backup) {
                    self.send_configuration();
                }
            }
            Ok(DaemonReport::Ending) => self.is_ending = true,
            // Without a lease, the daemon fails.
            Err(_) => self.members[number].input = None,
        }
    }

    /// Lets other daemons run the members of a daemon that certainly does not run them any more.
    fn daemon_failed(&mut self, number: usize) {
        if self.is_ending {
            return;
        }
        // The end of its input ends a daemon that continues later.
        self.members[number].input = None;
        if let Some(replicas) = &mut self.replicas {
            replicas.daemon_failed(DaemonId(number as u16));
            self.send_configuration();
        }
    }

    /// Finds daemons that have ended, and those whose leases have ended.
    fn examine_leases(&mut self) {
        if self.replicas.is_none() {
            return;
        }
        let now = Instant::now();
        if now.duration_since(self.examined) > LEASE_MARGIN {
            // This process was stopped, and so were its grants.
            self.granted.iter_mut().for_each(|granted| *granted = now);
        }
        self.examined = now;
        let limit = Duration::from_millis(LEASE_MS) + LEASE_MARGIN;
        for number in 0..self.members.len() {
            if !self.replicas.as_ref().is_some_and(|r| r.is_usable(DaemonId(number as u16))) {
                continue;
            }
            // A daemon on another node may run after the end of its connection, until its lease
            // ends.
            let launch = &mut self.members[number];
            let has_ended =
                launch.is_daemon && launch.is_ended && matches!(launch.child.try_wait(), Ok(Some(_)));
            if has_ended || now.duration_since(self.granted[number]) > limit {
                self.daemon_failed(number);
            }
        }
    }

    /// Receives one message of each daemon.
    fn receive<T: DeserializeOwned>(
        &mut self,
        deadline: Instant,
        is_cancelled: &dyn Fn() -> bool,
        take: &mut dyn FnMut(&RunningLauncher, T) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut waiting: Vec<bool> = self.members.iter().map(|_| true).collect();
        while waiting.contains(&true) {
            match self.events.recv_timeout(CANCEL_INTERVAL) {
                Ok((number, Event::Line(line))) if waiting[number] => {
                    let launch = &mut self.members[number];
                    match serde_json::from_str(&line) {
                        Ok(message) => take(launch, message)?,
                        Err(error) => {
                            let shown: String = line.trim_end().chars().take(200).collect();
                            let shown = quell_vfs::printable(shown.as_bytes());
                            return Err(launch
                                .failed(&format!("its answer is not a valid message: {shown}: {error}")));
                        }
                    }
                    waiting[number] = false;
                }
                Ok((number, Event::Line(_))) => {
                    return Err(self.members[number].failed("it has sent an unexpected message"));
                }
                Ok((number, Event::Ended)) => return Err(self.members[number].ended()),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::cannot("all daemons have ended"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if is_cancelled() {
                return Err(Failure::interrupted("the start was interrupted"));
            }
            if Instant::now() > deadline {
                return Err(self.too_slow(&waiting));
            }
        }
        Ok(())
    }

    /// Returns the failure of a start that took too long.
    fn too_slow(&mut self, waiting: &[bool]) -> Failure {
        let silent: Vec<usize> = (0..waiting.len()).filter(|number| waiting[*number]).collect();
        let hosts: Vec<&str> = silent.iter().map(|number| self.members[*number].host.as_str()).collect();
        let mut message = format!("no answer from the daemons on {} within the time limit", hosts.join(", "));
        for number in silent {
            let launch = &self.members[number];
            let messages = launch.messages.lock().unwrap_or_else(PoisonError::into_inner);
            message.extend(messages.iter().map(|line| format!("\n  {}: {line}", launch.host)));
        }
        Failure::cannot(message)
    }

    /// Detaches the daemons from this process. They must have the lifetime `Unlimited`.
    pub fn release(mut self) {
        for launch in &mut self.members {
            launch.input = None;
            // If a writer has panicked, its daemon has not got the message, and ends.
            let _ = launch.writer.take().map(JoinHandle::join);
        }
    }

    /// Keeps the pool until all daemons have ended, or until `is_cancelled` returns true, which is
    /// called at least once each `interval`: grants leases, and replaces daemons that fail.
    pub fn wait(&mut self, interval: Duration, is_cancelled: &dyn Fn() -> bool) {
        while !self.members.iter().all(|launch| launch.is_ended) && !is_cancelled() {
            self.step(interval);
        }
    }

    /// Ends the daemons by closing their input, after which they remove their files. Launchers that
    /// do not end are killed.
    pub fn end(mut self) {
        for launch in &mut self.members {
            launch.input = None;
        }
        self.wait_for_launchers();
        self.signal(Signal::TERM);
        self.wait_for_launchers();
        self.signal(Signal::KILL);
        for launch in &mut self.members {
            // It was killed.
            let _ = launch.child.wait();
        }
    }

    fn wait_for_launchers(&mut self) {
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline
            && !self.members.iter_mut().all(|launch| matches!(launch.child.try_wait(), Ok(Some(_)) | Err(_)))
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Signals the launchers that have not ended.
    fn signal(&mut self, signal: Signal) {
        for launch in &mut self.members {
            // A child that was not waited for keeps its process id.
            if let Ok(None) = launch.child.try_wait() {
                // It may have ended meanwhile.
                let _ = kill_process(Pid::from_child(&launch.child), signal);
            }
        }
    }
}

impl RunningLauncher {
    fn start(
        member: &NewMember,
        number: usize,
        events: &Sender<(usize, Event)>,
    ) -> Result<RunningLauncher, Failure> {
        let [program, arguments @ ..] = member.command.as_slice() else {
            return Err(Failure::wrong_input(format!("{}: the launcher has no program", member.host)));
        };
        let failed = |e: std::io::Error| {
            Failure::cannot(format!("cannot start the daemon on {}: {program}: {e}", member.host))
        };
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = (input.expect("it is piped"), output.expect("it is piped"));
        let errors = child.stderr.take().expect("it is piped");
        let (sender, lines) = channel();
        let messages = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&messages);
        let events = events.clone();
        let mut launch = RunningLauncher {
            host: member.host.clone(),
            program: program.clone(),
            child,
            input: Some(sender),
            writer: None,
            messages,
            reader: None,
            is_ended: false,
            is_daemon: arguments.is_empty(),
        };
        let started = (|| {
            launch.writer = Some(thread(move || write_lines(input, &lines))?);
            launch.reader = Some(thread(move || keep_lines(errors, &kept))?);
            thread(move || read_lines(output, number, &events)).map(drop)
        })();
        if let Err(error) = started {
            // The failure of the start is the one to report.
            let _ = launch.child.kill();
            let _ = launch.child.wait();
            return Err(failed(error));
        }
        Ok(launch)
    }

    /// Sends a message. If the daemon has ended, the end of its output is noticed elsewhere.
    fn send(&self, message: &impl Serialize) {
        let mut line = serde_json::to_vec(message).expect("the messages have no maps, and valid paths");
        line.push(b'\n');
        if let Some(input) = &self.input {
            let _ = input.send(line);
        }
    }

    /// Returns the failure that the daemon has reported.
    fn refused(&self, code: u8, message: &str) -> Failure {
        let message: String = message.chars().take(2000).collect();
        let message = format!("the daemon on {}: {}", self.host, quell_vfs::printable(message.as_bytes()));
        Failure::with_code(if code == Failure::WRONG_INPUT { code } else { Failure::CANNOT }, message)
    }

    fn failed(&self, reason: &str) -> Failure {
        Failure::cannot(format!("cannot start the daemon on {}: {reason}", self.host))
    }

    /// Returns the failure of a launcher that has ended without a message of the daemon.
    fn ended(&mut self) -> Failure {
        // Its connection ends before it does. Its standard error ends with it, unless another
        // process has it open.
        let deadline = Instant::now() + END_LIMIT;
        let status = loop {
            let status = self.child.try_wait().ok().flatten();
            let has_all = self.reader.as_ref().is_none_or(|reader| reader.is_finished());
            if status.is_some() && has_all || Instant::now() >= deadline {
                break status;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let status = match status {
            Some(status) => format!("ended with {status}"),
            None => "closed the connection".into(),
        };
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: String = messages.iter().map(|line| format!("\n  {line}")).collect();
        self.failed(&format!("{} {status}{lines}", self.program))
    }
}

fn thread(run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("quell-launcher".into()).stack_size(128 << 10).spawn(run)
}

fn write_lines(mut input: ChildStdin, lines: &Receiver<Vec<u8>>) {
    for line in lines {
        // A daemon that has failed has reported the reason, and does not read any more.
        if input.write_all(&line).and_then(|()| input.flush()).is_err() {
            return;
        }
    }
}

fn read_lines(output: ChildStdout, number: usize, events: &Sender<(usize, Event)>) {
    let mut output = BufReader::new(output);
    loop {
        let mut line = String::new();
        let event = match (&mut output).take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(0) | Err(_) => Event::Ended,
            Ok(_) => Event::Line(line),
        };
        let is_last = matches!(event, Event::Ended);
        if events.send((number, event)).is_err() || is_last {
            return;
        }
    }
}

/// Reads the messages of a launcher until its end, and keeps the last ones.
fn keep_lines(errors: ChildStderr, kept: &Mutex<VecDeque<String>>) {
    let mut errors = BufReader::new(errors);
    loop {
        let mut line = Vec::new();
        match (&mut errors).take(KEPT_LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = quell_vfs::printable(line.trim_ascii_end());
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT_LINES {
            kept.pop_front();
        }
        kept.push_back(text);
    }
}

fn random(bytes: &mut [u8]) -> Result<(), Failure> {
    match getrandom(&mut *bytes, GetRandomFlags::empty()) {
        // The kernel gives up to 256 bytes at once.
        Ok(_) => Ok(()),
        Err(e) => Err(Failure::cannot(format!("no random numbers: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_pool(scripts: &[&str]) -> NewPool {
        let member = |(number, script): (usize, &&str)| NewMember {
            host: format!("n{number}"),
            command: ["sh", "-c", script].map(str::to_owned).into(),
            listen: Listen::Loopback,
        };
        NewPool {
            name: "p".into(),
            members: scripts.iter().enumerate().map(member).collect(),
            directory: None,
            memory_bytes: None,
            runtime: None,
            chunk_bytes: 4096,
            partitions: 16,
            consistency: Consistency::Synchronous,
            replicas: 1,
            encrypts: false,
            compression: Compression::None,
            lifetime: Lifetime::Input,
            is_detached: false,
            timeout_ms: 60_000,
            log_filter: None,
        }
    }

    /// A daemon that never answers, and ends with its input.
    const SILENT: &str = "cat >/dev/null";

    fn failure(new: &NewPool, is_cancelled: &dyn Fn() -> bool) -> String {
        start_pool(new, is_cancelled).expect_err("no daemon answers").to_string()
    }

    #[test]
    fn a_failure_names_the_node_and_has_the_last_messages_of_its_launcher() {
        let refusing = "for i in 1 2 3 4 5 6 7 8 9; do echo line $i >&2; done; exit 7";
        let message = failure(&new_pool(&[SILENT, refusing]), &|| false);
        assert!(
            message.starts_with("cannot start the daemon on n1: sh ended with exit status: 7"),
            "{message}"
        );
        assert!(message.ends_with("line 9") && !message.contains("line 1\n"), "{message}");
        let message =
            failure(&new_pool(&["echo '{\"Failed\":{\"code\":3,\"message\":\"no\"}}'; cat"]), &|| false);
        assert_eq!(message, "the daemon on n0: no");
        let message = failure(&new_pool(&["echo nonsense; cat"]), &|| false);
        assert!(message.contains("n0") && message.contains("nonsense"), "{message}");
        let mut none = new_pool(&[SILENT]);
        none.members[0].command = vec!["/nonexistent/ssh".into()];
        assert!(failure(&none, &|| false).contains("/nonexistent/ssh"));
    }

    #[test]
    fn a_start_ends_at_its_time_limit_and_when_it_is_cancelled() {
        let mut new = new_pool(&[SILENT, SILENT]);
        assert!(failure(&new, &|| true).contains("interrupted"));
        new.timeout_ms = 100;
        assert!(failure(&new, &|| false).contains("n0, n1"));
    }
}
