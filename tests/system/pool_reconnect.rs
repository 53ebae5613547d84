//! Pools with copies whose own daemon is killed or stopped under running programs: the programs
//! connect to another daemon of their node and go on.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::pool::{Pool, is_incomplete};
use crate::skip;
use crate::stage::{Running, has, send};

/// Five threads write to files that they keep open, read them again, and create files, while the
/// program sends a signal to the daemon. Prints the names and error numbers of the operations that
/// have failed, one in each line; wrong data is `wrong`. A child process of fork(2) uses an open
/// file at the end.
const PROGRAM: &str = r#"
import errno, os, signal, sys, threading
base, daemon, name, rounds = sys.argv[1], int(sys.argv[2]), "SIG" + sys.argv[3], int(sys.argv[4])
SIZE, THREADS, failed, uncertain = 700_000, 5, [], set()
barrier = threading.Barrier(THREADS)
def attempt(name, function, *arguments):
    try:
        return function(*arguments)
    except OSError as error:
        failed.append(f"{name} {errno.errorcode[error.errno]}")
def check(name, is_right):
    if not is_right:
        failed.append(f"wrong {name}")
def work(thread):
    kept = os.open(f"{base}/kept{thread}", os.O_RDWR | os.O_CREAT)
    removed = os.open(f"{base}/removed{thread}", os.O_RDWR | os.O_CREAT)
    os.write(removed, b"removed")
    os.unlink(f"{base}/removed{thread}")
    for number in range(rounds):
        if number == rounds // 3 and barrier.wait() == 0:
            os.kill(daemon, getattr(signal, name))
        data = (b"%d-%d " % (thread, number)) * 200_000
        data = data[:SIZE]
        check("write", attempt("write", os.pwrite, kept, data, 0) == SIZE)
        check("data", attempt("read", os.pread, kept, SIZE, 0) == data)
        path = f"{base}/dir/f{thread}-{number}"
        created = attempt("create", os.open, path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        if created is None:
            uncertain.add(path)
        else:
            check("write", attempt("write", os.write, created, b"%d" % number) == len(str(number)))
            attempt("close", os.close, created)
        check("size", attempt("stat", lambda: os.fstat(kept).st_size) == SIZE)
    for number in range(rounds):
        path = f"{base}/dir/f{thread}-{number}"
        if path not in uncertain:
            with open(path, "rb") as file:
                check("file", file.read() == b"%d" % number)
    check("removed file", attempt("read", os.pread, removed, 7, 0) == b"removed")
    os.close(removed)
    child = os.fork()
    if child == 0:
        os._exit(0 if os.pread(kept, SIZE, 0) == data else 1)
    check("child", os.waitpid(child, 0)[1] == 0)
    attempt("close", os.close, kept)
os.mkdir(f"{base}/dir")
def guarded(thread):
    try:
        work(thread)
    except BaseException as error:
        failed.append(f"exception {error!r}")
        barrier.abort()
threads = [threading.Thread(target=guarded, args=(thread,)) for thread in range(THREADS)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("\n".join(failed))
"#;

/// The number of files that each thread creates.
const ROUNDS: &str = "45";

/// Runs the program in a directory. The results of at most a few operations may be unknown: those
/// that the daemon was performing.
fn run_program(pool: &Pool, command: &mut Command, signal: &str) {
    // Programs use the daemon of the first member.
    let daemon = pool.daemons()[0].to_string();
    let files = pool.files.clone();
    command.args(["python3", "-c", PROGRAM]).arg(files).args([&daemon, signal, ROUNDS]);
    let failed = pool.stage.run(command).expect(0).text();
    let failed: Vec<&str> = failed.lines().filter(|line| !line.is_empty()).collect();
    let is_documented = |line: &&str| *line == "create ENOTCONN";
    // Each of the five threads was performing one operation.
    assert!(failed.len() <= 5 && failed.iter().all(is_documented), "{failed:?}");
}

fn through_the_library(signal: &str, options: &[&str]) {
    let pool = Pool::start_with(3, options);
    let stopped = pool.daemons()[0];
    run_program(&pool, &mut pool.with_files(), signal);
    pool.sh("rm -r dir kept*; ls").expect(0);
    if signal == "STOP" {
        send(stopped, Signal::CONT);
    }
    pool.expect_nothing_left();
}

fn through_a_mount(signal: &str) {
    let pool = Pool::start_with(3, &["--replicas", "2"]);
    let stopped = pool.daemons()[0];
    let name = pool.files.to_str().unwrap();
    pool.quell(&["mount", "--pool", "p", name]).expect(0);
    run_program(&pool, &mut pool.stage.command("env"), signal);
    pool.quell(&["umount", name]).expect(0);
    if signal == "STOP" {
        send(stopped, Signal::CONT);
    }
    pool.expect_nothing_left();
}

fn can_run() -> bool {
    !is_incomplete() && has("python3")
}

#[test]
fn a_program_goes_on_when_its_daemon_is_killed() {
    if !can_run() {
        skip!("no quelld or no libquell_preload.so beside the binary, or no python3");
    }
    through_the_library("KILL", &["--replicas", "2"]);
    through_the_library("KILL", &["--replicas", "2", "--consistency", "commit"]);
}

#[test]
fn a_program_goes_on_when_its_daemon_is_stopped_and_replaced() {
    if !can_run() {
        skip!("no quelld or no libquell_preload.so beside the binary, or no python3");
    }
    through_the_library("STOP", &["--replicas", "2"]);
}

#[test]
fn a_mount_goes_on_when_its_daemon_is_killed_or_stopped() {
    if !can_run() {
        skip!("no quelld or no libquell_preload.so beside the binary, or no python3");
    }
    through_a_mount("KILL");
    through_a_mount("STOP");
}

#[test]
fn a_program_goes_on_on_a_busy_machine() {
    if !can_run() {
        skip!("no quelld or no libquell_preload.so beside the binary, or no python3");
    }
    let stage = crate::stage::Stage::new();
    let busy = || stage.start(stage.command("sh").args(["-c", "while :; do :; done"]));
    let busy: Vec<Running> = (0..2).map(|_| busy()).collect();
    through_the_library("KILL", &["--replicas", "2"]);
    through_the_library("STOP", &["--replicas", "2"]);
    for busy in busy {
        busy.signal(Signal::KILL);
        busy.wait();
    }
}

#[test]
fn programs_that_start_while_the_daemon_is_replaced_wait_for_another_one() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    for signal in ["KILL", "STOP"] {
        let pool = Pool::start_with(3, &["--replicas", "2"]);
        let daemon = pool.daemons()[0];
        // The threads of a stopped process go on until its main thread has got SIGSTOP. The result
        // of a request that one of them has taken is not known, so its program fails.
        let script = format!(
            "i=0; while [ $i -lt 60 ]; do
                 if [ $i = 20 ]; then
                     kill -{signal} {daemon}
                     while grep -qs '^State:.[RSD]' /proc/{daemon}/task/*/status; do :; done
                 fi
                 (echo $i >f$i) || echo failed $i
                 i=$((i + 1))
             done
             cat f* | sort -n | tr '\\n' ' '"
        );
        let all: String = (0..60).map(|number| format!("{number} ")).collect();
        let ended = pool.sh(&script).expect(0);
        assert_eq!(ended.text(), all, "{}", ended.err);
        if signal == "STOP" {
            send(daemon, Signal::CONT);
        }
        pool.expect_nothing_left();
    }
}

#[test]
fn without_copies_a_program_gets_enotconn_at_once() {
    if !can_run() {
        skip!("no quelld or no libquell_preload.so beside the binary, or no python3");
    }
    let pool = Pool::start(2);
    let program = r#"
import errno, os, signal, sys, time
file = os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CREAT)
os.kill(int(sys.argv[2]), signal.SIGKILL)
try:
    os.fstat(file)
    os.stat(sys.argv[1] + "/file")
except OSError as error:
    print(errno.errorcode[error.errno])
"#;
    let daemon = pool.daemons()[0].to_string();
    let begun = Instant::now();
    let mut command = pool.with_files();
    command.args(["python3", "-c", program]).arg(&pool.files).arg(daemon);
    assert_eq!(pool.stage.run(&mut command).expect(0).text(), "ENOTCONN\n");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    pool.quell(&["pool", "down", "p", "--discard"]);
    let _ = std::fs::remove_dir_all(pool.stage.path("data"));
}
