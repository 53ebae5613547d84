//! The promises on a Ceph cluster: `testbed/cephfs`, which needs root.

mod promises;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use promises::{content, open, put};
use quell_kv::KeyValue;
use quell_rados::{Objects, Pool, PoolOptions, Write};
use quell_vfs::ErrorKind;
use rustix::process::{Pid, Signal};

/// The address of a pool, in the process that is in the network of the cluster. `$CEPH_CONF` names
/// the configuration.
const POOL: &str = "QUELL_TEST_POOL";

/// A cluster of three OSDs on this machine, which is stopped on drop.
struct Cluster {
    script: PathBuf,
    directory: tempfile::TempDir,
}

impl Cluster {
    fn call(&self, words: &[&str], environment: &[(&str, &str)]) -> Output {
        let state = self.directory.path().join("ceph");
        let mut command = Command::new(&self.script);
        command.args(words).env("TESTBED", state).envs(environment.iter().copied());
        command.output().expect("the script runs")
    }

    fn must(&self, words: &[&str], environment: &[(&str, &str)]) {
        let output = self.call(words, environment);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{words:?}: {}{}", text(&output.stdout), text(&output.stderr));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.call(&["down"], &[]);
    }
}

/// Returns the process of an OSD, as the state directory of the test bed names it.
fn osd(number: u8) -> Pid {
    let state = PathBuf::from(std::env::var_os("TESTBED").expect("the state directory"));
    let text = std::fs::read_to_string(state.join(format!("run/osd{number}"))).expect("a running OSD");
    let pid = text.split_whitespace().next().and_then(|pid| pid.parse().ok());
    pid.and_then(Pid::from_raw).expect("a process number")
}

/// The processes of all OSDs while they are stopped; they continue on drop.
struct StoppedOsds(Vec<Pid>);

impl StoppedOsds {
    fn new() -> StoppedOsds {
        let stopped = StoppedOsds((0..3).map(osd).collect());
        stopped.send(Signal::STOP);
        stopped
    }

    fn send(&self, signal: Signal) {
        for pid in &self.0 {
            rustix::process::kill_process(*pid, signal).expect("a process of the test bed");
        }
    }
}

impl Drop for StoppedOsds {
    fn drop(&mut self) {
        self.send(Signal::CONT);
    }
}

#[test]
fn the_promises_are_kept_on_a_cluster() {
    if std::env::var_os(POOL).is_some() {
        return; // the other test runs in this process
    }
    let has = |path: &str| Path::new(path).exists();
    if !rustix::process::geteuid().is_root() || !has("/usr/bin/dpkg") || !has("/dev/fuse") {
        println!("SKIPPED: a Ceph in a network namespace needs root, /dev/fuse and Debian's ceph packages");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testbed/cephfs");
    // A short name, because the length of socket paths is limited.
    let directory = tempfile::Builder::new().prefix("qr").tempdir_in("/tmp").expect("a directory");
    let cluster = Cluster { script, directory };
    cluster.must(&["up", "1"], &[]);
    cluster.must(&["exec", "ceph", "osd", "pool", "create", "blob", "8"], &[]);
    let program = std::env::current_exe().expect("the test program");
    let program = program.to_str().expect("a path in UTF-8");
    let words = ["exec", program, "--exact", "in_the_network_of_the_cluster", "--nocapture"];
    cluster.must(&words, &[(POOL, "rados://blob/tests")]);
}

#[test]
fn in_the_network_of_the_cluster() {
    let Ok(address) = std::env::var(POOL) else {
        return; // the other test calls this one in another process
    };
    let second = Duration::from_secs(1);
    // A busy machine delays operations, in particular the first ones on a new pool.
    let options = PoolOptions {
        operation_timeout: 60 * second,
        connect_timeout: 60 * second,
        ..PoolOptions::default()
    };
    let open_pool = |options: &PoolOptions| -> Arc<dyn Objects> {
        Arc::new(Pool::open(&address, options).expect("the pool"))
    };
    let objects = open_pool(&options);
    promises::all(&objects);

    // Several large objects in flight.
    let block = |number: u8| vec![number; 4 << 20];
    let object = |number: u8| format!("large.{number}");
    let write = |number| objects.start_write(&object(number), &Write::new().write_full(&block(number)));
    (0..16).map(write).collect::<Vec<_>>().into_iter().for_each(|write| write.wait().expect("a write"));
    let read = |number| (number, objects.start_read(&object(number), 0, 4 << 20));
    for (number, read) in (0..16).map(read).collect::<Vec<_>>() {
        assert!(read.wait().expect("a read") == block(number), "object {number}");
    }

    // Another namespace has other objects.
    let other = Pool::open("rados://blob/other", &options).expect("the pool");
    assert_eq!(other.size("large.0").expect_err("no object").kind, ErrorKind::NotFound);
    let missing = Pool::open("rados://missing", &options).expect_err("no such pool");
    assert_eq!(missing.kind, ErrorKind::NotFound, "{missing}");

    // A cluster that performs no operations is an error, and acknowledged commits stay.
    let short = PoolOptions { operation_timeout: 5 * second, ..options.clone() };
    let objects = open_pool(&short);
    let store = open(&objects, "stopped").expect("a new store");
    store.commit(put("a", b"1")).expect("a commit");
    let stopped = StoppedOsds::new();
    let begin = Instant::now();
    let error = store.commit(put("b", b"2")).expect_err("the cluster is stopped");
    assert_eq!(error.kind, ErrorKind::TimedOut, "{error}");
    println!("a commit to a stopped cluster failed after {:?}", begin.elapsed());
    assert_eq!(open(&objects, "stopped").expect_err("the cluster is stopped").kind, ErrorKind::TimedOut);
    drop(stopped);
    store.commit(put("c", b"3")).expect_err("the store has failed");
    let found = content(&open(&objects, "stopped").expect("the cluster works again"));
    assert!(found.contains_key("a") && !found.contains_key("c"), "{found:?}");

    // An OSD that is killed delays commits until the cluster has noticed it; none of them fails.
    let objects = open_pool(&options);
    let store = open(&objects, "killed").expect("a new store");
    let mut slowest = Duration::ZERO;
    for number in 0..200 {
        if number == 20 {
            rustix::process::kill_process(osd(0), Signal::KILL).expect("a process of the test bed");
        }
        let begin = Instant::now();
        store.commit(put(&number.to_string(), b"")).expect("two OSDs are left");
        slowest = slowest.max(begin.elapsed());
    }
    println!("the slowest commit while an OSD was killed: {slowest:?}");
    assert_eq!(content(&open(&objects, "killed").expect("a store")).len(), 200);
}
