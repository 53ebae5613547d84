//! Histories of real clients of real servers of blobs, while servers and clients are killed and
//! stopped, and the network and the disks of a Ceph fail. Each client is a process with the Python
//! library, and prints its transactions with their times. The histories are checked for strict
//! serializability, also by porcupine if it is there.
//!
//! `$QUELL_SECONDS` is the duration of the faults of each history, and `$QUELL_SEED` determines
//! their order.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use quell_testkit::Random;
use quell_testkit::porcupine::Porcupine;
use quell_testkit::serializability::{
    HistoryOperation, HistoryTransaction, Outcome, check_strict_serializability,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::blob_languages::{libraries, python};
use crate::blob_rados::{Ceph, POOL, wait_until_it_serves};
use crate::log_faults::Small;
use crate::stage::{Ended, Running, Stage, checkout, send};

const LISTS: u64 = 4;
const REGISTERS: u64 = 3;
const CLIENTS: usize = 6;

fn blob_name(number: u64) -> String {
    let kind = if number < LISTS { "list" } else { "register" };
    format!("{kind} {number}")
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |number| number.parse().expect("a number"))
}

/// The clients of a history.
struct Clients<'a> {
    stage: &'a Stage,
    location: String,
    /// Returns the command of a client, and that of `quell blob`, without their arguments.
    commands: Commands<'a>,
    running: Vec<(Running, ChildStdin)>,
    printed: Vec<String>,
    started: usize,
}

type Commands<'a> = (Box<dyn Fn() -> Command + 'a>, Box<dyn Fn() -> Command + 'a>);

impl<'a> Clients<'a> {
    /// Creates the lists, and starts the clients.
    fn start(stage: &'a Stage, location: String, commands: Commands<'a>) -> Clients<'a> {
        let (running, printed) = (Vec::new(), Vec::new());
        let mut clients = Clients { stage, location, commands, running, printed, started: 0 };
        let empty = stage.file("empty", "");
        for number in 0..LISTS + REGISTERS {
            clients.blob("put", &[empty.to_str().unwrap(), &blob_name(number)]);
        }
        (0..CLIENTS).for_each(|_| clients.start_one());
        clients
    }

    fn blob(&self, verb: &str, arguments: &[&str]) -> Ended {
        let mut command = (self.commands.1)();
        self.stage.run(command.args([verb, &self.location]).args(arguments)).expect(0)
    }

    fn start_one(&mut self) {
        let mut command = (self.commands.0)();
        command.arg(checkout().join("tests/system/blob_history.py"));
        command.args([&self.location, &self.started.to_string()]);
        command.args([LISTS, REGISTERS].map(|count| count.to_string()));
        let mut client = self.stage.start(command.stdin(Stdio::piped()));
        let input = client.stdin();
        self.running.push((client, input));
        self.started += 1;
    }

    /// Kills a client, and starts another one.
    fn kill_one(&mut self, random: &mut Random) {
        let (client, _) = self.running.swap_remove(random.below(self.running.len()));
        client.signal(Signal::KILL);
        self.printed.push(String::from_utf8(client.wait().out).unwrap());
        self.start_one();
    }

    /// Returns whether a client has been refused because the disk was full.
    fn have_seen_a_full_disk(&self) -> bool {
        let is_full = |text: &str| text.contains(r#""full""#);
        self.running.iter().any(|(client, _)| is_full(&client.out()))
            || self.printed.iter().any(|text| is_full(text))
    }

    /// Ends the clients, and checks their history. The server must run.
    fn check(mut self) -> usize {
        for (client, input) in self.running.drain(..) {
            drop(input);
            self.printed.push(client.wait().expect(0).text());
        }
        self.start_one();
        let (mut last, input) = self.running.pop().expect("it was started");
        last.wait_for_output("committed");
        drop(input);
        self.printed.push(last.wait().expect(0).text());
        let mut history: Vec<HistoryTransaction> =
            self.printed.iter().flat_map(|text| transactions(text)).collect();
        history.push(self.final_state());
        let count = |outcome| history.iter().filter(|transaction| transaction.outcome == outcome).count();
        let [committed, refused, unknown] =
            [Outcome::Committed, Outcome::Refused, Outcome::Unknown].map(count);
        println!("{committed} committed, {refused} refused, {unknown} unknown");
        if let Err(violation) = check_strict_serializability(&history) {
            let kept = std::env::temp_dir().join(format!("quell-history-{}", std::process::id()));
            std::fs::write(&kept, self.printed.concat()).unwrap();
            panic!("{violation}; the history is in {}", kept.display());
        }
        // Without a program, the tests of the checkers are skipped, and these are not.
        if let Some(porcupine) = std::env::var_os("QUELL_PORCUPINE").and(Porcupine::find()) {
            assert_eq!(porcupine.check(&[history]), [true], "porcupine has found a violation");
        }
        assert!(committed > 10 * CLIENTS && committed > refused + unknown, "the clients did little");
        committed
    }

    /// Returns a transaction that has read all lists and registers after the end of all others.
    fn final_state(&self) -> HistoryTransaction {
        let read = |number: u64| {
            let data = self.blob("cat", &[&blob_name(number)]).out;
            let numbers = data.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
            let numbers: Vec<u64> = numbers.collect();
            match number < LISTS {
                true => HistoryOperation::Read(number, numbers),
                false => HistoryOperation::ReadRegister(number, numbers.first().copied()),
            }
        };
        let operations = (0..LISTS + REGISTERS).map(read).collect();
        HistoryTransaction {
            begun: i64::MAX as u64 - 1,
            ended: i64::MAX as u64,
            outcome: Outcome::Committed,
            operations,
        }
    }
}

/// Returns the transactions that a client has printed. The last one has no result if the client was
/// killed.
fn transactions(printed: &str) -> Vec<HistoryTransaction> {
    let mut transactions: Vec<HistoryTransaction> = Vec::new();
    for line in printed.split_inclusive('\n') {
        // A client was killed while it printed a line.
        let Some(line) = line.strip_suffix('\n') else { continue };
        let line: Value = serde_json::from_str(line).unwrap();
        let begun = line["begun"].as_u64().unwrap();
        let operations = line["operations"].as_array().unwrap().iter().map(operation).collect();
        let Some(outcome) = line["outcome"].as_str() else {
            transactions.push(HistoryTransaction { begun, ended: 0, outcome: Outcome::Unknown, operations });
            continue;
        };
        let last = transactions.last_mut().unwrap();
        assert_eq!(last.begun, begun);
        last.ended = line["ended"].as_u64().unwrap();
        last.operations = operations;
        last.outcome = match outcome {
            "committed" => Outcome::Committed,
            "refused" | "full" => Outcome::Refused,
            "unknown" => Outcome::Unknown,
            other => panic!("{other}"),
        };
    }
    transactions
}

fn operation(value: &Value) -> HistoryOperation {
    let list = value[1].as_u64().unwrap();
    match value[0].as_str().unwrap() {
        "append" => HistoryOperation::Append(list, value[2].as_u64().unwrap()),
        "write" => HistoryOperation::Write(list, value[2].as_u64().unwrap()),
        "get" => HistoryOperation::ReadRegister(list, value[2].as_u64()),
        _ => HistoryOperation::Read(
            list,
            value[2].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect(),
        ),
    }
}

fn pause(random: &mut Random, milliseconds: std::ops::Range<u64>) {
    let length = (milliseconds.end - milliseconds.start) as usize;
    std::thread::sleep(Duration::from_millis(milliseconds.start + random.below(length) as u64));
}

/// Returns the directory of the libraries, and an interpreter.
fn requirements() -> Option<(PathBuf, &'static str)> {
    let (libraries, python) = (libraries("python3")?, python());
    if python.is_none() {
        println!("SKIPPED: no Python");
    }
    Some((libraries, python?))
}

/// Lets a command of a Python program find the library and the package.
fn with_package(mut command: Command, libraries: &Path) -> Command {
    command.env("LD_LIBRARY_PATH", libraries).env("PYTHONPATH", checkout().join("frontends/python"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

#[test]
fn histories_of_a_server_in_a_directory_are_strictly_serializable() {
    let Some((libraries, python)) = requirements() else { return };
    let mut random = Random::new(setting("QUELL_SEED", 1));
    let stage = Stage::new();
    let store = stage.path("store");
    let mut server = stage.serve(&store, &[]).0;
    let location = format!("unix:{}/socket", store.display());
    let client = || with_package(stage.command(python), &libraries);
    let commands: Commands = (Box::new(client), Box::new(|| stage.blob_command(&[])));
    let mut clients = Clients::start(&stage, location, commands);
    let end = Instant::now() + Duration::from_secs(setting("QUELL_SECONDS", 6));
    let mut kills = 0;
    while Instant::now() < end {
        pause(&mut random, 100..900);
        match random.below(6) {
            0..=2 => {
                server.signal(Signal::KILL);
                server.wait();
                server = stage.serve(&store, &[]).0;
                kills += 1;
            }
            3 => {
                server.signal(Signal::TERM);
                server.wait().expect(0);
                pause(&mut random, 0..300);
                server = stage.serve(&store, &[]).0;
            }
            4 => {
                server.signal(Signal::STOP);
                pause(&mut random, 100..1500);
                server.signal(Signal::CONT);
            }
            _ => clients.kill_one(&mut random),
        }
    }
    let committed = clients.check();
    println!("{kills} servers killed, {committed} transactions committed");
    server.signal(Signal::TERM);
    server.wait().expect(0);
    stage.run(stage.quell().args(["blob", "fsck"]).arg(&store)).expect(0);
}

/// Uses all the space of a file system but a number of bytes, as far as other programs let it.
fn fill(disk: &Path, left_bytes: u64) -> PathBuf {
    let path = disk.join("filler");
    let file = fs::File::create(&path).unwrap();
    let mut length = 0;
    for _ in 0..1000 {
        let found = rustix::fs::statvfs(disk).unwrap();
        let available = (found.f_bavail * found.f_frsize).saturating_sub(left_bytes);
        if available == 0 {
            break;
        }
        // The server can have used the space meanwhile.
        if rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), length, available).is_ok() {
            length += available;
        }
    }
    path
}

#[test]
fn histories_on_a_disk_that_is_full_at_times_are_strictly_serializable() {
    let Some((libraries, python)) = requirements() else { return };
    let stage = Stage::new();
    let Some(disk) = Small::new(&stage, "600m") else { return };
    let mut random = Random::new(setting("QUELL_SEED", 1));
    let store = disk.path.join("store");
    let mut server = stage.serve(&store, &[]).0;
    let location = format!("unix:{}/socket", store.display());
    let client = || with_package(stage.command(python), &libraries);
    let commands: Commands = (Box::new(client), Box::new(|| stage.blob_command(&[])));
    let mut clients = Clients::start(&stage, location, commands);
    let end = Instant::now() + Duration::from_secs(setting("QUELL_SECONDS", 6));
    while Instant::now() < end || !clients.have_seen_a_full_disk() {
        pause(&mut random, 100..500);
        let left_bytes = *random.pick(&[0, 0, 1 << 20, 80 << 20, 120 << 20]);
        let filler = fill(&disk.path, left_bytes);
        pause(&mut random, 100..500);
        match random.below(4) {
            0 => clients.kill_one(&mut random),
            1 => server.signal(Signal::KILL),
            _ => {}
        }
        fs::remove_file(&filler).unwrap();
        pause(&mut random, 0..200);
        // A server ends if the disk is filled between the examination of the space and the commit.
        if !server.is_running() {
            server.wait();
            server = stage.serve(&store, &[]).0;
        }
    }
    clients.check();
    server.signal(Signal::TERM);
    server.wait().expect(0);
    stage.run(stage.quell().args(["blob", "fsck"]).arg(&store)).expect(0);
}

/// Servers of one store, or of one of its groups, in a Ceph: one serves, and the other one waits.
struct Servers<'a> {
    ceph: &'a Ceph<'a>,
    /// The group that they serve, as options of their commands.
    group: Vec<String>,
    serving: (Running, PathBuf),
    waiting: (Running, PathBuf),
}

impl Servers<'_> {
    fn serve(ceph: &Ceph<'_>, group: &[String], directory: &Path, is_standby: bool) -> Running {
        let mut options: Vec<&str> = group.iter().map(String::as_str).collect();
        options.extend(is_standby.then_some("--standby"));
        ceph.serve(directory, &options)
    }

    /// Waits until the other server serves, ends the one before it, and starts another one in its
    /// directory, which waits.
    fn exchange(mut self, end: impl FnOnce(Running)) -> Self {
        wait_until_it_serves(&mut self.waiting.0);
        let (ended, directory) = self.serving;
        end(ended);
        let waiting = (Servers::serve(self.ceph, &self.group, &directory, true), directory);
        Servers { serving: self.waiting, waiting, ..self }
    }
}

#[test]
fn histories_of_servers_in_a_ceph_are_strictly_serializable() {
    check_histories_in_a_ceph(1);
}

#[test]
fn histories_of_several_groups_in_a_ceph_are_strictly_serializable() {
    check_histories_in_a_ceph(3);
}

/// Each group has a server of its own, and another one that waits for the group.
fn check_histories_in_a_ceph(groups: usize) {
    let Some((libraries, python)) = requirements() else { return };
    let stage = Stage::new();
    let Some(ceph) = Ceph::start(&stage) else { return };
    let mut random = Random::new(setting("QUELL_SEED", 1));
    let key = stage.path("first").join("key");
    let mut all: Vec<Option<Servers>> = Vec::new();
    for group in 0..groups {
        let first = match group {
            0 => stage.path("first"),
            _ => ceph.directory(&format!("serving {group}"), &key),
        };
        let mut options = Vec::new();
        if groups > 1 {
            options.extend([
                "--groups".to_owned(),
                groups.to_string(),
                "--serve".to_owned(),
                group.to_string(),
            ]);
        }
        let mut serving = Servers::serve(&ceph, &options, &first, false);
        wait_until_it_serves(&mut serving);
        let other = ceph.directory(&format!("waiting {group}"), &key);
        let waiting = Servers::serve(&ceph, &options, &other, true);
        let (serving, waiting) = ((serving, first), (waiting, other));
        all.push(Some(Servers { ceph: &ceph, group: options, serving, waiting }));
    }
    let client = || with_package(ceph.inside(python), &libraries);
    let commands: Commands = (Box::new(client), Box::new(|| ceph.blob(&[])));
    let location = format!("{POOL}?key={}", key.display());
    let mut clients = Clients::start(&stage, location, commands);
    let end = Instant::now() + Duration::from_secs(setting("QUELL_SECONDS", 20));
    let mut faults = 0..;
    while Instant::now() < end {
        pause(&mut random, 500..2000);
        let chosen = random.below(groups);
        let servers = all[chosen].take().expect("it is put back");
        // Each kind of fault occurs.
        let servers = match faults.next().expect("it has no end") % 5 {
            0 => {
                servers.serving.0.signal(Signal::KILL);
                servers.exchange(|ended| drop(ended.wait()))
            }
            1 => {
                servers.serving.0.signal(Signal::STOP);
                servers.exchange(|stopped| {
                    stopped.signal(Signal::CONT);
                    stopped.wait().expect(3).says("another server");
                })
            }
            2 => {
                // No packet is delivered.
                let network = |state: &str| {
                    let mut ip = ceph.inside("ip");
                    stage.run(ip.args(["link", "set", "lo", state])).expect(0);
                };
                network("down");
                pause(&mut random, 200..1200);
                network("up");
                servers
            }
            3 => {
                let disk = ceph.process("osd0");
                send(disk, Signal::STOP);
                pause(&mut random, 200..1500);
                send(disk, Signal::CONT);
                servers
            }
            _ => {
                clients.kill_one(&mut random);
                servers
            }
        };
        all[chosen] = Some(servers);
    }
    // Then the other disks have all data.
    ceph.wait_until_it_is_clean();
    send(ceph.process("osd1"), Signal::KILL);
    pause(&mut random, 1000..2000);
    clients.check();
    for servers in all.into_iter().flatten() {
        servers.serving.0.signal(Signal::TERM);
        drop(servers.exchange(|ended| drop(ended.wait().expect(0))));
    }
}
