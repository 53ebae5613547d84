//! `quell blob serve`: stores that several processes use at the same time.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::skip;
use crate::stage::{Running, Stage, eventually, has, is_root, words};
use crate::testbed::Testbed;

impl Stage {
    /// Starts a server, and waits until it serves.
    pub fn serve(&self, store: &Path, options: &[&str]) -> (Running, serde_json::Value) {
        let mut command = self.quell();
        command.args(words(&[&"blob", &"serve", &store, &"--json"])).args(options);
        let running = self.start(&mut command);
        assert!(eventually(|| running.out().ends_with('\n')), "{}", running.err());
        let line = serde_json::from_str(&running.out()).unwrap();
        (running, line)
    }

    pub fn blob_command(&self, arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Command {
        let mut command = self.quell();
        command.arg("blob").args(words(arguments));
        command
    }
}

#[test]
fn processes_share_a_store_through_its_server() {
    let stage = Stage::new();
    let store = stage.path("store");
    let (server, line) = stage.serve(&store, &[]);
    assert!(line["address"].is_null() && !store.join("key").exists());
    let socket = format!("unix:{}", line["socket"].as_str().unwrap());
    // A client with a snapshot: it reads standard input while others commit.
    let file = stage.file("data", vec![7; 3_000_000]);
    stage.run(&mut stage.blob_command(&[&"put", &store, &file])).expect(0);
    let adders: Vec<Running> = (0..8)
        .map(|_| stage.start(&mut stage.blob_command(&[&"add", &socket, &"sum", &"0", &"1"])))
        .collect();
    adders.into_iter().for_each(|adder| _ = adder.wait().expect(0));
    let sum = stage.run(&mut stage.blob_command(&[&"add", &store, &"sum", &"0", &"0"])).expect(0);
    assert_eq!(sum.text(), "8\n");
    let copy = stage.path("copy");
    stage.run(&mut stage.blob_command(&[&"get", &socket, &"data", &copy])).expect(0);
    assert!(fs::read(&copy).unwrap() == fs::read(&file).unwrap());
    let second = stage.run(&mut stage.blob_command(&[&"serve", &store])).expect(3);
    second.says("another process has it open");
    stage.run(&mut stage.blob_command(&[&"fsck", &store])).expect(3).says("another process has it open");
    server.signal(Signal::TERM);
    server.wait().expect(0);
    assert!(!store.join("socket").exists());
    stage.run(&mut stage.blob_command(&[&"fsck", &store])).expect(0);
    stage.run(&mut stage.blob_command(&[&"ls", &socket])).expect(3).says("quell blob serve");
}

#[test]
fn clients_of_other_machines_need_the_key() {
    let stage = Stage::new();
    let store = stage.path("store");
    let (server, line) = stage.serve(&store, &["--listen", "127.0.0.1:0", "--encrypt"]);
    let (address, key) = (line["address"].as_str().unwrap(), line["key"].as_str().unwrap());
    let right = format!("quell://{address}?key={key}&encrypt");
    stage.run(&mut stage.blob_command(&[&"add", &right, &"sum", &"0", &"5"])).expect(0);
    let not_encrypted = format!("quell://{address}?key={key}");
    stage.run(&mut stage.blob_command(&[&"ls", &not_encrypted])).expect(3).says("encrypts");
    let other = stage.file("other", [1; 32]);
    crate::trees::set_mode(&other, 0o600);
    let wrong = format!("quell://{address}?key={}&encrypt", other.display());
    stage.run(&mut stage.blob_command(&[&"ls", &wrong])).expect(3).says("different keys");
    crate::trees::set_mode(&other, 0o644);
    stage.run(&mut stage.blob_command(&[&"ls", &wrong])).expect(3).says("other users have access");
    let mut command = stage.blob_command(&[&"ls", &right]);
    assert_eq!(stage.run(&mut command).expect(0).text().lines().count(), 1);
    server.signal(Signal::INT);
    server.wait().expect(0);
}

#[test]
fn a_measurement_reports_each_work_and_deletes_its_blobs() {
    let stage = Stage::new();
    let store = stage.path("store");
    const WORKS: [&str; 6] = ["events", "events-by-update", "add", "update", "write", "read"];
    let bench = |options: &[&str]| {
        let mut command = stage.blob_command(&[&"bench", &store, &"--json", &"--clients", &"3"]);
        command.args(WORKS.iter().flat_map(|work| ["--work", work])).args(options);
        command
    };
    let check = || {
        let text = stage.run(&mut bench(&["--seconds", "1"])).expect(0).text();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let works: Vec<_> = lines.iter().map(|line| line["work"].as_str().unwrap()).collect();
        assert_eq!(works, WORKS);
        for line in &lines {
            assert!(line["operations"].as_u64().unwrap() > 0 && line["clients"] == 3, "{line}");
            assert!(line["median_us"].as_u64() <= line["percentile_99_us"].as_u64(), "{line}");
        }
    };
    let list = || stage.run(&mut stage.blob_command(&[&"ls", &store])).expect(0).text();
    check();
    assert_eq!(list(), "");
    let (server, _) = stage.serve(&store, &[]);
    check();
    let beside = ["--seconds", "1", "--work", "read", "--beside", "events", "--beside-clients", "2"];
    let mut command = stage.blob_command(&[&"bench", &store, &"--json"]);
    assert_eq!(stage.run(command.args(beside)).expect(0).text().lines().count(), 2);
    assert_eq!(list(), "");
    let interrupted = stage.start(&mut bench(&["--seconds", "600"]));
    assert!(eventually(|| list().contains("quell-bench-")), "{}", interrupted.err());
    interrupted.signal(Signal::INT);
    interrupted.wait().expect(130).says("interrupted");
    assert_eq!(list(), "");
    server.signal(Signal::TERM);
    server.wait().expect(0);
}

#[test]
fn a_store_in_a_parallel_file_system_has_one_server_on_all_nodes() {
    if !is_root() || !has("mfsmaster") {
        skip!("a MooseFS in network namespaces needs root and Debian's moosefs packages");
    }
    let stage = Stage::new();
    let testbed = Testbed::start(&stage);
    let [first, second] = ["1", "2"].map(|node| testbed.node(node).join("store"));
    let call = |words: &[&dyn AsRef<std::ffi::OsStr>]| stage.run(&mut stage.blob_command(words));
    let (server, line) = stage.serve(&first, &["--listen", "127.0.0.1:0"]);
    // A program on another node uses the address of the server, and the key in the directory.
    let client =
        format!("quell://{}?key={}", line["address"].as_str().unwrap(), second.join("key").display());
    let file = stage.file("data", vec![7; 3_000_000]);
    call(&[&"put", &client, &file, &"data"]).expect(0);
    call(&[&"add", &client, &"sum", &"0", &"5"]).expect(0);
    let is_refused = |store: &Path| {
        for verb in ["serve", "fsck", "ls"] {
            call(&[&verb, &store]).expect(3).says("another process has it open");
        }
    };
    is_refused(&second);
    // A server that does not run for some time is not replaced.
    server.signal(Signal::STOP);
    is_refused(&second);
    server.signal(Signal::KILL);
    server.wait();
    // The file system releases the lock some time after the end of the process.
    assert!(eventually(|| call(&[&"fsck", &second]).status.success()));
    let (next, _) = stage.serve(&second, &[]);
    is_refused(&first);
    let copy = stage.path("copy");
    call(&[&"get", &second, &"data", &copy]).expect(0);
    assert!(fs::read(&copy).unwrap() == fs::read(&file).unwrap());
    assert_eq!(call(&[&"add", &second, &"sum", &"0", &"1"]).expect(0).text(), "6\n");
    next.signal(Signal::TERM);
    next.wait().expect(0);
    assert!(eventually(|| call(&[&"fsck", &first]).status.success()));
    assert_eq!(call(&[&"add", &first, &"sum", &"0", &"0"]).expect(0).text(), "6\n");
}
