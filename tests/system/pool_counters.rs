//! The counters of a pool: they agree exactly with the operations of programs, survive the end of
//! the programs, and are the same in `quell pool top` and `quell pool metrics`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use rustix::process::Signal;
use serde_json::Value;

use crate::pool::{Pool, is_incomplete};
use crate::skip;
use crate::stage::{Stage, eventually, has, send};

/// The counters of the daemons of a pool.
struct Counters(Vec<Value>);

impl Counters {
    fn read(pool: &Pool) -> Counters {
        let top = pool.quell(&["pool", "top", "p", "--once", "--json", "--interval", "0.1"]).expect(0).json();
        let daemons = top["members"].as_array().unwrap();
        Counters(daemons.iter().map(|daemon| daemon["counters"].clone()).collect())
    }

    /// Returns the counter of a daemon at a path such as `/clients/requests/create`.
    fn get(&self, daemon: usize, path: &str) -> u64 {
        let value = self.0[daemon].pointer(path).unwrap_or_else(|| panic!("{path} in {}", self.0[daemon]));
        value.as_u64().unwrap()
    }

    fn sum(&self, path: &str) -> u64 {
        (0..self.0.len()).map(|daemon| self.get(daemon, path)).sum()
    }

    /// Returns the number of requests of all kinds.
    fn all(&self, daemon: usize, sender: &str) -> u64 {
        let kinds = self.0[daemon][sender]["requests"].as_object().unwrap();
        kinds.values().map(|count| count.as_u64().unwrap()).sum()
    }

    fn all_latencies(&self, daemon: usize, sender: &str) -> u64 {
        let buckets = self.0[daemon][sender]["latency_buckets"].as_array().unwrap();
        buckets.iter().map(|count| count.as_u64().unwrap()).sum()
    }
}

/// Returns the value of a sample, whose labels contain all of `labels`.
fn metric(text: &str, name: &str, labels: &[&str]) -> f64 {
    let begin = format!("quell_pool_{name}{{");
    let mut found = text
        .lines()
        .filter(|line| line.starts_with(&begin) && labels.iter().all(|label| line.contains(label)))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap());
    let value = found.next().unwrap_or_else(|| panic!("{name} {labels:?} in {text}"));
    assert_eq!(found.next(), None, "{name} {labels:?} in {text}");
    value
}

#[test]
fn counters_agree_with_the_operations_of_programs() {
    if is_incomplete() || !has("python3") {
        skip!("no quelld or no libquell_preload.so beside the binary, or no python3");
    }
    let pool = Pool::start(2);
    let python = |program: &str| {
        let mut command = pool.with_files();
        command.args(["python3", "-c", program]).arg(&pool.files);
        pool.stage.run(&mut command)
    };
    let before = Counters::read(&pool);
    let names = r#"
import os, sys
os.chdir(sys.argv[1])
for number in range(40):
    os.mkdir(f"d{number}")
for number in range(10):
    os.rename(f"d{number}", f"r{number}")
for number in range(10, 15):
    os.rmdir(f"d{number}")
for number in range(3):
    os.mkdir(f"r{number}/below")
    try:
        os.rmdir(f"r{number}")
        sys.exit("the directory has an entry")
    except OSError:
        pass
"#;
    python(names).expect(0);
    let after = Counters::read(&pool);
    // Programs use the first daemon.
    let increase = |path: &str| after.get(0, path) - before.get(0, path);
    assert_eq!(increase("/clients/requests/create"), 43);
    assert_eq!(increase("/clients/requests/rename"), 10);
    assert_eq!(increase("/clients/requests/remove"), 8);
    assert_eq!(increase("/clients/failed/remove"), 3);
    assert_eq!(increase("/clients/failed/create") + increase("/clients/failed/rename"), 0);
    assert_eq!(increase("/clients/read_bytes") + increase("/clients/written_bytes"), 0);
    let kinds = ["create", "rename", "remove"];
    assert!(kinds.iter().all(|kind| after.get(1, &format!("/clients/requests/{kind}")) == 0));
    // The second daemon has created the directories that it has, for the first one. It is not known
    // which daemon had the directories that were removed.
    let below = (0..3).map(|number| format!("p:/r{number}/below"));
    let renamed = (0..10).map(|number| format!("p:/r{number}"));
    let left = (15..40).map(|number| format!("p:/d{number}"));
    let is_on_second =
        |path: &String| pool.quell(&["pool", "map", path, "--json"]).expect(0).json()["daemon"] == 1;
    let on_second = below.chain(renamed).chain(left).filter(is_on_second).count() as u64;
    let created = after.get(1, "/peers/requests/create");
    assert!((on_second..=on_second + 5).contains(&created), "{created} {on_second}");
    // Each request has a latency.
    for (daemon, sender) in [(0, "clients"), (0, "peers"), (1, "clients"), (1, "peers")] {
        assert_eq!(after.all(daemon, sender), after.all_latencies(daemon, sender), "{daemon} {sender}");
    }
    pool.expect_nothing_left();
}

#[test]
fn bytes_are_counted_exactly_also_those_of_programs_that_were_killed() {
    if is_incomplete() || !has("python3") {
        skip!("no quelld or no libquell_preload.so beside the binary, or no python3");
    }
    let pool = Pool::start(2);
    let program = r#"
import os, signal, sys
fd = os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CREAT, 0o600)
block = os.urandom(100_000)
for number in range(50):
    assert os.pwrite(fd, block, number * len(block)) == len(block)
for number in range(30):
    assert os.pread(fd, len(block), number * len(block)) == block
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
os.close(fd)
"#;
    for (run, end) in [(1, "ends"), (2, "killed")] {
        let mut command = pool.with_files();
        command.args(["python3", "-c", program]).arg(&pool.files).arg(end);
        let ended = pool.stage.run(&mut command);
        assert_eq!(ended.code() == Some(0), end == "ends", "{}", ended.err);
        // The connection of the command that reads the counters is left.
        assert!(eventually(|| Counters::read(&pool).get(0, "/connections") == 1));
        let counters = Counters::read(&pool);
        let sum = |path: &str| counters.get(0, path);
        assert_eq!(sum("/clients/written_bytes") + sum("/direct/written_bytes"), run * 5_000_000);
        assert_eq!(sum("/clients/read_bytes") + sum("/direct/read_bytes"), run * 3_000_000);
        // The chunks of the second daemon, which the first one has requested.
        assert_eq!(counters.get(1, "/peers/written_bytes"), sum("/clients/written_bytes"));
        assert_eq!(counters.get(1, "/peers/read_bytes"), sum("/clients/read_bytes"));
        assert_eq!(counters.get(1, "/peers/requests/write"), sum("/clients/requests/write"));
        assert_eq!(counters.get(1, "/peers/requests/read"), sum("/clients/requests/read"));
        // Each write concerns one chunk, or two chunks on different daemons or on the same one.
        let accesses = sum("/clients/requests/write") + sum("/direct/writes");
        assert!((run * 50..=run * 60).contains(&accesses), "{accesses}");
        assert!(sum("/direct/writes") > 0 && sum("/clients/requests/write") > 0);
        assert_eq!(counters.sum("/clients/failed/write") + counters.sum("/clients/failed/read"), 0);
    }
    pool.expect_nothing_left();
}

#[test]
fn the_metrics_are_the_counters() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start(2);
    pool.sh("for i in 1 2 3 4 5 6; do mkdir d$i; done; head -c 3000000 /dev/zero >zeros").expect(0);
    let text = pool.quell(&["pool", "metrics", "p"]).expect(0).text();
    let counters = Counters::read(&pool);
    for daemon in [0, 1] {
        let member = format!("member=\"{daemon}\"");
        assert_eq!(metric(&text, "up", &[&member]), 1.0);
        for kind in ["create", "lookup", "read", "write", "extend"] {
            let operation = format!("operation=\"{kind}\"");
            let value = metric(&text, "operations_total", &[&member, &operation]);
            assert_eq!(value, counters.get(daemon, &format!("/clients/requests/{kind}")) as f64, "{kind}");
        }
        let direct = metric(&text, "bytes_total", &[&member, "path=\"direct\"", "operation=\"write\""]);
        assert_eq!(direct, counters.get(daemon, "/direct/written_bytes") as f64);
    }
    // The endpoint on a Unix socket.
    let socket = pool.stage.path("metrics");
    let listen = format!("unix:{}", socket.display());
    let mut serving =
        pool.stage.start(pool.stage.quell().args(["pool", "metrics", "p", "--listen", &listen]));
    serving.wait_for_error("the metrics are at");
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let answer = request(UnixStream::connect(&socket).unwrap());
    let creations = ["member=\"0\"", "operation=\"create\""];
    assert_eq!(
        metric(&answer, "operations_total", &creations),
        counters.get(0, "/clients/requests/create") as f64
    );
    serving.signal(Signal::TERM);
    serving.wait().expect(0);
    assert!(!socket.exists());
    // The endpoint on a port that the kernel has chosen.
    let arguments = ["pool", "metrics", "p", "--listen", "127.0.0.1:0"];
    let mut serving = pool.stage.start(pool.stage.quell().args(arguments));
    serving.wait_for_error("/metrics");
    let said = serving.err();
    let address = said.split("http://").nth(1).unwrap().split('/').next().unwrap();
    let answer = request(TcpStream::connect(address).unwrap());
    assert_eq!(metric(&answer, "up", &["member=\"1\""]), 1.0);
    serving.signal(Signal::INT);
    serving.wait().expect(0);
    pool.quell(&["pool", "metrics", "p", "--listen", "0.0.0.0:1"]).expect(2).says("not a loopback address");
    pool.quell(&["pool", "metrics", "other"]).expect(2).says("there is no pool other");
    pool.expect_nothing_left();
}

/// Sends a request for the metrics, and returns the answer.
pub fn request(mut stream: impl Read + Write) -> String {
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    answer
}

#[test]
fn a_daemon_that_does_not_answer_is_reported() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start(3);
    let (killed, stopped) = (pool.daemons()[1], pool.daemons()[2]);
    send(killed, Signal::KILL);
    send(stopped, Signal::STOP);
    let socket = pool.stage.runtime().join("pools/p/1");
    assert!(eventually(|| UnixStream::connect(&socket).is_err()));
    let top = pool.quell(&["pool", "top", "p", "--once", "--interval", "0.1"]).expect(1).text();
    let daemons: Vec<&str> = top.lines().skip(3).take(3).collect();
    let answers: Vec<bool> = daemons.iter().map(|line| !line.contains("no answer")).collect();
    assert_eq!(answers, [true, false, false], "{top}");
    let is_up = |text: &str| ["0", "1", "2"].map(|n| metric(text, "up", &[&format!("member=\"{n}\"")]));
    let text = pool.quell(&["pool", "metrics", "p"]).expect(1).text();
    assert_eq!(is_up(&text), [1.0, 0.0, 0.0]);
    // The endpoint waits for the stopped daemon longer than for its client.
    let listening = pool.stage.path("metrics");
    let listen = format!("unix:{}", listening.display());
    let mut serving =
        pool.stage.start(pool.stage.quell().args(["pool", "metrics", "p", "--listen", &listen]));
    serving.wait_for_error("the metrics are at");
    assert_eq!(is_up(&request(UnixStream::connect(&listening).unwrap())), [1.0, 0.0, 0.0]);
    serving.signal(Signal::TERM);
    serving.wait().expect(0);
    send(stopped, Signal::CONT);
    pool.quell(&["pool", "top", "other", "--once"]).expect(2).says("there is no pool other");
    pool.quell(&["pool", "top", "p", "--interval", "0"]).expect(2).says("from 0.1 to 3600");
    pool.expect_nothing_left();
}

#[test]
fn the_log_of_a_daemon_has_the_events_that_quell_log_selects() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    for (filter, is_selected) in [(None, false), (Some("quell_pool_service=debug"), true), (Some(""), false)]
    {
        let stage = Stage::new();
        let (data, files) = (stage.dir("data"), stage.dir("files"));
        let mut up = stage.quell();
        up.args(["pool", "up", "p", "--local", "2", "--dir"]).arg(data);
        filter.map(|filter| up.env("QUELL_LOG", filter));
        stage.run(&mut up).expect(0);
        let pool = Pool { stage, files };
        pool.sh("for i in 1 2 3 4 5 6 7 8; do mkdir d$i; done").expect(0);
        let read = |number| {
            let path = pool.stage.runtime().join(format!("pools/p/{number}.log"));
            std::fs::read_to_string(path).unwrap()
        };
        let (first, second) = (read(0), read(1));
        assert_eq!(first.contains("operation=\"create\" sender=Client"), is_selected, "{filter:?}: {first}");
        // The other daemon has created some of the directories.
        assert_eq!(
            second.contains("operation=\"create\" sender=Member"),
            is_selected,
            "{filter:?}: {second}"
        );
        assert!(is_selected || first.is_empty(), "{first}");
        // The filter selects no other events.
        assert!(!first.contains("quell_transport"), "{first}");
        pool.expect_nothing_left();
    }
}

/// Runs a command on a new terminal, and sends a key after it has printed a word. Prints its exit
/// code, and whether it has changed the modes of the terminal and has shown the first screen again.
const ON_A_TERMINAL: &str = r#"
import os, pty, sys, termios
word, key = sys.argv[1].encode(), sys.argv[2].encode()
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[3], sys.argv[3:])
before = termios.tcgetattr(terminal)[3]
output, is_sent = b"", False
while True:
    try:
        part = os.read(terminal, 4096)
    except OSError:
        break
    if not part:
        break
    output += part
    if not is_sent and word in output:
        changed = termios.tcgetattr(terminal)[3] != before
        os.write(terminal, key)
        is_sent = True
status = os.waitpid(pid, 0)[1]
print(os.waitstatus_to_exitcode(status), changed, output.endswith(b"\x1b[?1049l"))
"#;

#[test]
fn a_key_ends_the_table_on_a_terminal() {
    if is_incomplete() || !has("python3") {
        skip!("no quelld or no libquell_preload.so beside the binary, or no python3");
    }
    let pool = Pool::start(1);
    for key in ["q", "\u{3}"] {
        let mut command = pool.stage.command("python3");
        command.args(["-c", ON_A_TERMINAL, "machine", key]).arg(crate::stage::quell());
        command.args(["pool", "top", "p", "--interval", "0.1"]);
        assert_eq!(pool.stage.run(&mut command).expect(0).text(), "0 True True\n", "{key:?}");
    }
    pool.expect_nothing_left();
}
