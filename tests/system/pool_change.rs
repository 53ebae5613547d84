//! `quell pool expand`, `shrink` and `repair`: the daemons of a pool change while programs use it.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::pool::{Pool, is_incomplete};
use crate::skip;
use crate::stage::{Ended, eventually, send};

/// Creates files, reads, renames, links and removes them until the file `stop` exists, and then
/// prints `right`, or the first difference. It keeps a file open that has no name any more.
const WORKER: &str = r#"
import os, sys
name = sys.argv[1]
kept = open(name + "kept", "w+b")
os.unlink(name + "kept")
kept.write(b"kept" * 1000); kept.flush()
large = open(name + "large", "w+b")
number = 0
while not os.path.exists("stop"):
    directory = f"{name}dir{number % 7}"
    os.makedirs(directory, exist_ok=True)
    path = f"{directory}/f{number}"
    with open(path, "xb") as file:
        file.write(b"%d\n" % number)
    os.rename(path, path + ".new")
    os.symlink(f"f{number}.new", path)
    assert open(path, "rb").read() == b"%d\n" % number, path
    assert os.stat(path).st_size == len(str(number)) + 1, path
    if number >= 50:
        old = number - 50
        old_path = f"{name}dir{old % 7}/f{old}"
        assert open(old_path + ".new", "rb").read() == b"%d\n" % old, old_path
        os.unlink(old_path + ".new"); os.unlink(old_path)
    block = bytes([number % 251]) * 65536
    offset = (number * 300_000) % 8_000_000
    assert os.pwrite(large.fileno(), block, offset) == len(block)
    assert os.pread(large.fileno(), len(block), offset) == block, offset
    number += 1
os.lseek(kept.fileno(), 0, 0)
assert os.read(kept.fileno(), 10000) == b"kept" * 1000
mine = sum(len(os.listdir(f"{name}dir{d}")) for d in range(7) if os.path.isdir(f"{name}dir{d}"))
assert mine == 2 * min(number, 50), (mine, number)
print("right", number)
"#;

/// Runs two workers in the pool while `change` runs, and returns the result of `change`.
fn during_work(pool: &Pool, change: impl FnOnce() -> Ended) -> Ended {
    let program = pool.stage.file("worker.py", WORKER);
    let workers: Vec<_> = ["a", "b"]
        .map(|name| {
            let mut command = pool.with_files();
            command.args(["sh", "-c", "cd \"$0\" && exec python3 \"$1\" \"$2\""]);
            command.arg(&pool.files).arg(&program).arg(name);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .into();
    let is_working = || pool.sh("ls adir3 bdir3").code() == Some(0);
    assert!(eventually(is_working), "the workers do not work");
    let changed = change();
    let stopped = pool.sh("touch stop");
    for worker in workers {
        let ended = worker.wait_with_output().unwrap();
        let (output, error) =
            (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        assert!(ended.status.success() && output.starts_with("right"), "{output}{error}\n{}", changed.err);
    }
    stopped.expect(0);
    pool.sh("rm -r *").expect(0);
    changed
}

fn has_python() -> bool {
    std::process::Command::new("python3").arg("--version").output().is_ok()
}

/// Returns the numbers of the daemons, with the numbers of their members.
fn members(pool: &Pool) -> Vec<(u64, usize)> {
    let status = pool.quell(&["pool", "status", "p", "--json"]).expect(0).json();
    let daemons = status["daemons"].as_array().unwrap().iter();
    let of =
        |daemon: &Value| (daemon["number"].as_u64().unwrap(), daemon["members"].as_array().unwrap().len());
    daemons.map(of).collect()
}

#[test]
fn daemons_are_added_and_removed_while_programs_use_the_pool() {
    if is_incomplete() || !has_python() {
        skip!("no quelld, no libquell_preload.so beside the binary, or no python3");
    }
    for replicas in ["1", "2"] {
        let pool = Pool::start_with(2, &["--expand-to", "8", "--replicas", replicas, "--chunk-kib", "64"]);
        pool.sh("for i in $(seq 100); do echo $i >f$i; done; head -c 5000000 /dev/urandom >data").expect(0);
        let sum = pool.sh("cat f* | sort -n; md5sum data").expect(0).text();
        pool.sh("mkdir .kept && mv f* data .kept").expect(0);
        assert_eq!(members(&pool), [(0, 4), (1, 4)]);
        let expand = || pool.quell(&["pool", "expand", "p", "--local", "2"]);
        during_work(&pool, expand).expect(0);
        assert_eq!(members(&pool), [(0, 2), (1, 2), (2, 2), (3, 2)]);
        // Programs use the first daemon of the node.
        let shrink = || pool.quell(&["pool", "shrink", "p", "1", "3"]);
        during_work(&pool, shrink).expect(0);
        // On a busy machine a move can fail, and its repetition can go to the other daemon.
        let left = members(&pool);
        assert!(matches!(left[..], [(0, 3..=5), (2, 3..=5)]), "{left:?}");
        assert_eq!(left.iter().map(|(_, members)| members).sum::<usize>(), 8, "{left:?}");
        assert_eq!(pool.sh("cd .kept; cat f* | sort -n; md5sum data").expect(0).text(), sum, "{replicas}");
        pool.expect_nothing_left();
    }
}

#[test]
fn a_daemon_that_a_program_uses_is_not_removed() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start_with(2, &["--replicas", "2"]);
    pool.quell(&["pool", "shrink", "p", "1"]).expect(2).says("would have 1 daemons");
    pool.quell(&["pool", "shrink", "p", "7"]).expect(2).says("no daemon 7");
    pool.quell(&["pool", "expand", "p", "--local", "1"]).expect(2).says("--expand-to");
    pool.expect_nothing_left();

    let pool = Pool::start_with(2, &[]);
    let used = during(&pool, || pool.quell(&["pool", "shrink", "p", "0"]));
    used.expect(3).says("a program uses the daemon 0");
    // Without the program, the daemon is removed, and other programs use the remaining daemon.
    pool.sh("echo text >file").expect(0);
    pool.quell(&["pool", "shrink", "p", "0"]).expect(0);
    assert_eq!(members(&pool), [(1, 2)]);
    assert_eq!(pool.sh("cat file").expect(0).text(), "text\n");
    pool.expect_nothing_left();
}

/// Runs `change` while a program uses the pool.
fn during(pool: &Pool, change: impl FnOnce() -> Ended) -> Ended {
    let mut command = pool.with_files();
    command.args(["sh", "-c", "cd \"$0\" && echo used && read line"]).arg(&pool.files);
    let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = [0; 5];
    std::io::Read::read_exact(program.stdout.as_mut().unwrap(), &mut line).unwrap();
    let changed = change();
    drop(program.stdin.take());
    // The end of the input is an error of `read`.
    assert_eq!(program.wait().unwrap().code(), Some(1));
    changed
}

#[test]
fn daemons_that_have_failed_are_started_again() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    for replicas in ["1", "2"] {
        let pool = Pool::start_with(3, &["--replicas", replicas]);
        pool.sh("for i in $(seq 100); do echo $i >f$i; done; head -c 5000000 /dev/urandom >data").expect(0);
        let sum = pool.sh("cat f* | sort -n; md5sum data").expect(0).text();
        let killed = pool.daemons()[1];
        send(killed, Signal::KILL);
        let is_noticed =
            || !pool.daemons().contains(&killed) || pool.quell(&["pool", "status", "p"]).code() == Some(1);
        assert!(eventually(is_noticed), "the end of a daemon is not noticed");
        pool.quell(&["pool", "repair", "p"]).expect(0);
        let mut found = members(&pool);
        found.sort();
        assert_eq!(found, [(0, 1), (2, 1), (3, 1)], "{replicas}");
        assert_eq!(pool.sh("cat f* | sort -n; md5sum data").expect(0).text(), sum, "{replicas}");
        // No failed daemon is left, so the command changes nothing.
        pool.quell(&["pool", "repair", "p"]).expect(0);
        pool.expect_nothing_left();
    }
}

/// Writes to a file that it keeps open, reads it again, and looks names up until the file `stop`
/// exists. `progress` has the number of its last round.
const KEEPING_WORKER: &str = r#"
import os
kept, progress = (os.open(name, os.O_RDWR | os.O_CREAT) for name in ["kept", "progress"])
number = 0
while not os.path.exists("stop"):
    number += 1
    block, offset = b"%d " % number * 20_000, number % 7 * 300_000
    assert os.pwrite(kept, block, offset) == len(block)
    assert os.pread(kept, len(block), offset) == block, number
    assert os.path.samestat(os.stat("kept"), os.fstat(kept)), number
    os.pwrite(progress, b"%08d" % number, 0)
print("right")
"#;

#[test]
fn a_program_uses_other_daemons_of_its_node_before_and_after_a_repair() {
    if is_incomplete() || !has_python() {
        skip!("no quelld, no libquell_preload.so beside the binary, or no python3");
    }
    let pool = Pool::start_with(3, &["--replicas", "2"]);
    let mut command = pool.with_files();
    command.args(["sh", "-c", "cd \"$0\" && exec python3 -c \"$1\""]).arg(&pool.files).arg(KEEPING_WORKER);
    let worker = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let progress = || pool.sh("cat progress").text().parse::<u64>().unwrap_or(0);
    let works_on = || {
        let before = progress();
        eventually(|| progress() > before + 1)
    };
    assert!(works_on(), "the program does not begin");
    // Programs use the first daemon, and the next one after its end.
    for _ in 0..2 {
        let killed = pool.daemons()[0];
        send(killed, Signal::KILL);
        assert!(eventually(|| !pool.daemons().contains(&killed)), "the end of a daemon is not noticed");
        pool.quell(&["pool", "repair", "p"]).expect(0);
        assert_eq!(pool.daemons().len(), 3);
        assert!(works_on(), "the program does not go on");
        let is_complete = || pool.quell(&["pool", "status", "p", "--json"]).json()["is_complete"] == true;
        assert!(eventually(is_complete), "copies are missing");
    }
    pool.sh("touch stop").expect(0);
    let ended = worker.wait_with_output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&ended.stdout),
        "right\n",
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    pool.expect_nothing_left();
}

#[test]
fn lost_data_is_reported_by_a_repair() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start(2);
    let status = pool.quell(&["pool", "status", "p", "--json"]).expect(0).json();
    let directory = status["daemons"][1]["directory"].as_str().unwrap().to_owned();
    send(pool.daemons()[1], Signal::KILL);
    std::fs::remove_dir_all(directory).unwrap();
    let is_noticed = || pool.quell(&["pool", "status", "p"]).code() == Some(1);
    assert!(eventually(is_noticed), "the end of a daemon is not noticed");
    pool.quell(&["pool", "repair", "p"]).expect(3).says("cannot be used");
    pool.expect_nothing_left();
}
