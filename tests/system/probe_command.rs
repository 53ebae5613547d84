//! `quell probe`: its limits are strict, it refuses to run where it would disturb others, and
//! however it ends, nothing of it remains and no other file is touched. strace's fault injection
//! makes this machine's file system slow, failing or full.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::ops::Deref;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::skip;
use crate::stage::{Running, Stage, eventually, has, is_root, quell};
use crate::testbed::Testbed;

/// An empty directory in memory where /dev/shm is a tmpfs, otherwise below `TMPDIR`. A probe ends
/// after a call that takes longer than a second, which happens on a busy disk.
struct MemoryDirectory(tempfile::TempDir);

impl MemoryDirectory {
    fn new() -> MemoryDirectory {
        let in_memory = tempfile::Builder::new().prefix("quell-probed.").tempdir_in("/dev/shm");
        MemoryDirectory(in_memory.or_else(|_| tempfile::tempdir()).unwrap())
    }
}

impl Deref for MemoryDirectory {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.0.path()
    }
}

impl AsRef<Path> for MemoryDirectory {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl AsRef<OsStr> for MemoryDirectory {
    fn as_ref(&self) -> &OsStr {
        self.as_os_str()
    }
}

/// Returns a probe command that starts without confirmation.
fn probe(stage: &Stage, directory: &Path, options: &[&str]) -> Command {
    let mut command = stage.quell();
    command.args(["probe", "--yes"]).args(options).arg(directory);
    command
}

/// Returns the same command under strace with fault injection. With -D, strace is a grandchild and
/// the probe stays a direct child.
fn disturbed(stage: &Stage, directory: &Path, injections: &[&str], options: &[&str]) -> Command {
    let mut command = stage.command("strace");
    command.args(["-D", "-f", "-qq", "-o"]).arg(stage.path("trace"));
    for injection in injections {
        command.args(["-e", &format!("inject={injection}")]);
    }
    command.arg(quell()).args(["probe", "--yes"]).args(options).arg(directory);
    command
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// A tmpfs mounted by root, which is unmounted on drop.
struct Tmpfs<'a>(&'a Stage, &'a Path);

impl<'a> Tmpfs<'a> {
    fn mount(stage: &'a Stage, point: &'a Path, options: &str) -> Tmpfs<'a> {
        stage.sh(&format!(r#"mount -t tmpfs -o {options} quell-test "$1""#), &[point]).expect(0);
        Tmpfs(stage, point)
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        self.0.sh(r#"umount "$1""#, &[self.1]);
    }
}

/// Returns the directory of a running probe.
fn its_directory(directory: &Path) -> Option<PathBuf> {
    let name = names(directory).into_iter().find(|name| name.starts_with(".quell-probe-"))?;
    Some(directory.join(name))
}

#[track_caller]
fn expect_empty(directory: &Path) {
    assert_eq!(names(directory), BTreeSet::new());
}

/// Waits until the probe has created `below` in its directory.
#[track_caller]
fn wait_for(running: &mut Running, directory: &Path, below: &str) {
    let there = || its_directory(directory).is_some_and(|own| own.join(below).exists());
    let came = eventually(|| there() || !running.is_running());
    assert!(came && running.is_running(), "it ended before it made {below}:\n{}", running.err());
}

#[test]
fn the_result_is_as_documented_and_nothing_stays() {
    let stage = Stage::new();
    let (directory, output) = (MemoryDirectory::new(), stage.path("result.json"));
    let options = ["--json", "--max-parallel", "4", "-o", output.to_str().unwrap()];
    let result = stage.run(&mut probe(&stage, &directory, &options)).expect(0).json();
    let written: Value = serde_json::from_slice(&fs::read(&output).unwrap()).unwrap();
    assert_eq!(result, written);
    expect_empty(&directory);

    assert_eq!(result["schema"], "quell-probe/1");
    assert!(result["made_by"].as_str().unwrap().starts_with("quell "));
    assert_eq!(result["directory"], directory.to_str().unwrap());
    assert!(result["started"].as_u64().unwrap() > 1_700_000_000);
    assert!(result["sustained"].as_f64().unwrap() > 0.0);
    assert!(result["saturated"].is_boolean() && result["capped_by"].is_null());
    assert!(result["operations_total"].as_u64().unwrap() <= 20_000);
    assert!(!result["notes"].as_array().unwrap().is_empty());
    let kinds = result["kinds"].as_array().unwrap();
    let of_kinds: Vec<_> = kinds.iter().map(|kind| kind["kind"].as_str().unwrap()).collect();
    assert_eq!(of_kinds, ["lookup", "attributes", "list", "create", "remove"]);
    for kind in kinds {
        assert!(["server", "cache", "local"].contains(&kind["answered_by"].as_str().unwrap()), "{kind}");
        assert!(kind["calls"].as_u64() > Some(0) && kind["operations"].as_u64() >= kind["calls"].as_u64());
    }
    let steps = result["steps"].as_array().unwrap();
    assert_eq!(steps[0]["parallelism"], 1);
    for measured in kinds.iter().chain(steps) {
        let number = |name: &str| measured[name].as_f64().unwrap_or_else(|| panic!("{name}: {measured}"));
        assert!(number("operations") > 0.0 && number("rate") > 0.0 && number("seconds") >= 0.0);
        assert!(number("p50_us") <= number("p99_us"), "{measured}");
    }
    assert!(steps.iter().all(|step| step["parallelism"].as_u64() <= Some(4)));
}

#[test]
fn the_trace_has_the_directory_and_the_steps_of_a_probe() {
    let stage = Stage::new();
    let directory = MemoryDirectory::new();
    let mut command = probe(&stage, &directory, &["-q", "--max-parallel", "2"]);
    let ended = stage.run(command.env("QUELL_LOG", "quell_probe=debug")).expect(0);
    let ended = ended.says("check_directory{path=").says("the directory may be probed leftovers=0");
    let ended = ended.says("created the probe's directory name=.quell-probe-");
    let ended = ended.says("measured one kind kind=\"lookup\"").says("measured the mix threads=1");
    ended.says("removed the probe's directory name=.quell-probe-");
}

#[test]
fn people_get_a_curve_and_quiet_gets_none() {
    let stage = Stage::new();
    let directory = MemoryDirectory::new();
    let text = stage.run(&mut probe(&stage, &directory, &[])).expect(0).text();
    for words in ["answered by", "threads", "##", "This node alone sustains about"] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let lines = text.lines().filter(|line| !line.contains('/') && !line.starts_with("note: "));
    assert!(lines.clone().all(|line| line.chars().count() <= 80), "{text}");
    let output = stage.path("result.json");
    let quiet = ["-q", "-o", output.to_str().unwrap()];
    let ended = stage.run(&mut probe(&stage, &directory, &quiet)).expect(0);
    assert_eq!((ended.text(), ended.err), (String::new(), String::new()));
    assert!(output.is_file());
}

#[test]
fn without_a_terminal_yes_is_required_and_nothing_is_created() {
    let stage = Stage::new();
    let directory = MemoryDirectory::new();
    let before = fs::metadata(&directory).unwrap().modified().unwrap();
    let mut command = stage.quell();
    let ended = stage.run(command.args(["probe", "--seconds", "7"]).arg(&directory)).expect(2);
    // The message describes what the probe would do.
    let ended = ended.says("--yes").says("20,000 operations").says("7 s").says(".quell-probe-XXXXXX");
    ended.says("16 directories of 17 empty files").says("remove the directory at the end");
    expect_empty(&directory);
    assert_eq!(fs::metadata(&directory).unwrap().modified().unwrap(), before);
}

#[test]
fn a_user_at_a_terminal_is_asked_for_confirmation() {
    if !has("script") {
        skip!("script(1) is not installed");
    }
    let stage = Stage::new();
    let directory = MemoryDirectory::new();
    for (answer, code, words) in
        [("n", 1, "nothing was created"), ("", 1, "nothing was created"), ("y", 0, "sustains")]
    {
        let line = format!(
            "printf '{answer}\\n' | script -q -e -c \"'{}' probe '{}'\" /dev/null",
            quell().display(),
            directory.display()
        );
        let text = stage.sh(&line, &[]).expect(code).text();
        assert!(text.contains("Begin? [y/N]") && text.contains(words), "{answer}: {text}");
        expect_empty(&directory);
    }
}

#[test]
fn wrong_directories_and_numbers_are_wrong_usage() {
    let stage = Stage::new();
    let (directory, file) = (MemoryDirectory::new(), stage.file("file", "x"));
    stage.run(&mut probe(&stage, &file, &[])).expect(2).says("is not a directory");
    stage.run(&mut probe(&stage, &stage.path("missing"), &[])).expect(2);
    let nowhere = stage.path("missing/result");
    stage.run(&mut probe(&stage, &directory, &["-o", nowhere.to_str().unwrap()])).expect(2);
    for options in [["--operations", "199"], ["--seconds", "0"], ["--max-parallel", "0"]] {
        stage.run(&mut probe(&stage, &directory, &options)).expect(2).says(options[0]);
    }
    expect_empty(&directory);
}

/// Counts the operations as docs/techniques/probe.md does, in the lines of `strace -f -y` about the
/// directory.
fn traced_operations(trace: &str, directory: &Path) -> u64 {
    let of_it = format!("<{}", directory.display());
    let mut halves = 0;
    for line in trace.lines() {
        let Some((call, arguments)) = line.split_once(' ').and_then(|(_, rest)| rest.trim().split_once('('))
        else {
            continue;
        };
        // A call on an open directory or on a file below it, or a call that opens it.
        let about = arguments.split(", ").next().is_some_and(|first| first.contains(&of_it));
        let opens = call == "openat" && arguments.contains(&format!("\"{}\"", directory.display()));
        if !about && !opens {
            continue;
        }
        halves += match call {
            "mkdirat" | "mknodat" | "unlinkat" => 4,
            "openat" if arguments.contains("O_CREAT") => 4,
            "close" | "fcntl" => 0,
            "statx" if arguments.contains("AT_STATX_DONT_SYNC") => 0,
            // Every second call only returns the end of the directory.
            "getdents64" => 1,
            _ => 2,
        };
    }
    halves / 2
}

#[test]
fn the_limit_of_operations_includes_all_requests() {
    if !has("strace") {
        skip!("strace is not installed");
    }
    let stage = Stage::new();
    let directory = MemoryDirectory::new();
    for cap in ["200", "600", "3000"] {
        let trace = stage.path("trace");
        let mut command = stage.command("strace");
        command.args(["-f", "-y", "-qq", "-o"]).arg(&trace).arg(quell());
        command.args(["probe", "--yes", "--json", "--operations", cap]).arg(&directory);
        let ended = stage.run(&mut command);
        // Two hundred operations are too few to determine a rate.
        let result = ended.expect(if cap == "200" { 1 } else { 0 }).json();
        let reported = result["operations_total"].as_u64().unwrap();
        let traced = traced_operations(&fs::read_to_string(&trace).unwrap(), &directory);
        assert!(
            reported <= cap.parse().unwrap() && traced <= cap.parse().unwrap(),
            "{cap}: {reported} {traced}"
        );
        assert!(
            reported.abs_diff(traced) <= 5 + reported / 50,
            "{cap}: reported {reported}, traced {traced}"
        );
        expect_empty(&directory);
    }
}

#[test]
fn the_cap_on_time_cuts_a_step_short() {
    if !has("strace") {
        skip!("strace is not installed");
    }
    let stage = Stage::new();
    let directory = MemoryDirectory::new();
    // Each listing takes a tenth of a second: a million operations would take hours.
    let options = ["--json", "--operations", "1000000", "--seconds", "2"];
    let slow = ["getdents64:delay_enter=100000:when=9+"];
    let result = stage.run(&mut disturbed(&stage, &directory, &slow, &options));
    let result = result.expect(0).json();
    let seconds: f64 =
        result["steps"].as_array().unwrap().iter().map(|step| step["seconds"].as_f64().unwrap()).sum();
    // The calls in flight at the end of each step add to the time; there are at most nine steps.
    assert!(seconds < 2.0 + 9.0, "{result}");
    expect_empty(&directory);
}

#[test]
fn an_early_end_leaves_no_directory() {
    if !has("strace") {
        skip!("strace is not installed");
    }
    let stage = Stage::new();
    for signal in [Signal::INT, Signal::TERM] {
        // While the tree is created, while measuring, and while removing.
        for (slow, below) in
            [("mknodat:delay_enter=50000", "d00/f03"), ("getdents64:delay_enter=50000:when=9+", "d15/f16")]
        {
            let directory = MemoryDirectory::new();
            let mut running = stage.start(&mut disturbed(&stage, &directory, &[slow], &[]));
            wait_for(&mut running, &directory, below);
            running.signal(signal);
            running.wait().expect(130).says("everything that the probe created is removed");
            expect_empty(&directory);
        }
        let directory = MemoryDirectory::new();
        let slow = ["unlinkat:delay_enter=20000"];
        let mut running = stage.start(&mut disturbed(&stage, &directory, &slow, &["--operations", "2000"]));
        wait_for(&mut running, &directory, "d01/f16");
        let own = its_directory(&directory).unwrap();
        assert!(eventually(|| !own.join("d01/f16").exists()));
        running.signal(signal);
        running.wait().expect(130);
        expect_empty(&directory);
    }
}

#[test]
fn a_killed_probe_leaves_its_directory_and_the_next_one_reports_it() {
    if !has("strace") {
        skip!("strace is not installed");
    }
    let stage = Stage::new();
    let directory = MemoryDirectory::new();
    let slow = ["mknodat:delay_enter=20000"];
    let mut running = stage.start(&mut disturbed(&stage, &directory, &slow, &[]));
    wait_for(&mut running, &directory, "d00/f03");
    let own = its_directory(&directory).unwrap();
    assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o700);

    // A running probe uses the directory exclusively.
    stage.run(&mut probe(&stage, &directory, &[])).expect(3).says("another probe is running");
    let clean = || stage.run(stage.quell().args(["probe", "--clean"]).arg(&directory));
    clean().expect(1).says("may be running");
    assert!(running.is_running());

    running.signal(Signal::KILL);
    running.wait();
    let text = stage.run(&mut probe(&stage, &directory, &[])).expect(0).text();
    assert!(text.contains("left by a probe that was killed") && text.contains("--clean"), "{text}");
    // Files that the probe did not create stay, and so does its directory.
    fs::write(own.join("precious"), "mine").unwrap();
    fs::write(own.join("d00/precious"), "mine").unwrap();
    clean().expect(1).says("not created by a probe");
    assert_eq!(names(&own), BTreeSet::from(["d00".into(), "owner".into(), "precious".into()]));
    assert_eq!(names(&own.join("d00")), BTreeSet::from(["precious".into()]));
    fs::remove_file(own.join("precious")).unwrap();
    fs::remove_file(own.join("d00/precious")).unwrap();
    clean().expect(0);
    expect_empty(&directory);
    assert!(clean().expect(0).text().contains("no leftovers of probes"));
}

#[test]
fn a_directory_without_an_owner_record_counts_as_in_use_until_it_is_old() {
    let stage = Stage::new();
    let directory = MemoryDirectory::new();
    let own = directory.join(".quell-probe-aaaaaa");
    fs::create_dir(&own).unwrap();
    stage.run(&mut probe(&stage, &directory, &[])).expect(3).says("another probe is running");
    stage.sh(r#"touch -d '1 hour ago' "$1""#, &[&own]).expect(0);
    stage.run(&mut probe(&stage, &directory, &[])).expect(0);
    stage.run(stage.quell().args(["probe", "--clean"]).arg(&directory)).expect(0);
    expect_empty(&directory);
}

#[test]
fn entries_of_others_are_not_changed() {
    let stage = Stage::new();
    let (directory, elsewhere) = (stage.dir("d"), stage.dir("elsewhere"));
    fs::create_dir(elsewhere.join("d00")).unwrap();
    fs::write(elsewhere.join("d00/f00"), "mine").unwrap();
    fs::write(elsewhere.join("owner"), "vm 1 1\n").unwrap();
    // Links with the name of a probe's directory, or in such a directory.
    symlink(&elsewhere, directory.join(".quell-probe-aaaaaa")).unwrap();
    let old = directory.join(".quell-probe-bbbbbb");
    fs::create_dir(&old).unwrap();
    symlink(elsewhere.join("d00"), old.join("d00")).unwrap();
    symlink(elsewhere.join("owner"), old.join("owner")).unwrap();
    // Similar names, and entries of other kinds.
    fs::create_dir(directory.join(".quell-probe-")).unwrap();
    fs::write(directory.join(".quell-probe-cccccc"), "mine").unwrap();
    fs::write(directory.join("q00000000"), "mine").unwrap();
    stage.sh(r#"touch -h -d '1 hour ago' "$1""#, &[&old]).expect(0);
    let before = names(&directory);
    stage.run(&mut probe(&stage, &directory, &["--operations", "1000"])).expect(0);
    stage.run(stage.quell().args(["probe", "--clean"]).arg(&directory)).expect(1);
    assert_eq!(names(&directory), before);
    assert_eq!(fs::read_to_string(elsewhere.join("d00/f00")).unwrap(), "mine");
    assert_eq!(names(&elsewhere), BTreeSet::from(["d00".into(), "owner".into()]));
    assert_eq!(names(&old), BTreeSet::from(["d00".into(), "owner".into()]));
}

#[test]
fn a_directory_that_may_not_be_written_to_is_refused() {
    let stage = Stage::new();
    let directory = MemoryDirectory::new();
    let _mounted = is_root().then(|| Tmpfs::mount(&stage, &directory, "ro"));
    if !is_root() {
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o555)).unwrap();
    }
    stage
        .run(&mut probe(&stage, &directory, &[]))
        .expect(3)
        .says("is not probed")
        .says("creates and removes files");
    expect_empty(&directory);
}

#[test]
fn a_full_file_system_is_refused() {
    if !is_root() {
        skip!("only root mounts a tmpfs of its own outside a namespace");
    }
    let stage = Stage::new();
    for (options, words) in [("nr_inodes=100", "free inodes"), ("size=512k", "free blocks")] {
        let directory = stage.dir(words);
        let _mounted = Tmpfs::mount(&stage, &directory, options);
        stage.run(&mut probe(&stage, &directory, &[])).expect(3).says(words);
        expect_empty(&directory);
    }
    let directory = stage.dir("roomy");
    let _mounted = Tmpfs::mount(&stage, &directory, "nr_inodes=1000");
    let text = stage.run(&mut probe(&stage, &directory, &[])).expect(0).text();
    assert!(text.contains("a file system of this node"), "{text}");
    expect_empty(&directory);
}

#[test]
fn a_failed_creation_is_reported_and_the_rest_removed() {
    if !has("strace") {
        skip!("strace is not installed");
    }
    let stage = Stage::new();
    let directory = MemoryDirectory::new();
    for error in ["ENOSPC", "EDQUOT", "EROFS"] {
        let fails = format!("mknodat:error={error}:when=20");
        stage.run(&mut disturbed(&stage, &directory, &[&fails], &[])).expect(3).says("create f");
        expect_empty(&directory);
    }
    // A failing listing ends the probe, too.
    let fails = ["getdents64:error=EIO:when=30"];
    stage.run(&mut disturbed(&stage, &directory, &fails, &[])).expect(3).says("list");
    expect_empty(&directory);
}

#[test]
fn entries_that_cannot_be_removed_are_named() {
    if !has("strace") {
        skip!("strace is not installed");
    }
    let stage = Stage::new();
    let directory = MemoryDirectory::new();
    let fails = ["unlinkat:error=EIO:when=50"];
    let ended = stage.run(&mut disturbed(&stage, &directory, &fails, &[])).expect(3);
    let own = its_directory(&directory).unwrap();
    // The rate is still printed.
    assert!(ended.text().contains("sustains"), "{}", ended.text());
    ended.says(own.to_str().unwrap()).says("quell probe --clean");
    stage.run(stage.quell().args(["probe", "--clean"]).arg(&directory)).expect(0);
    expect_empty(&directory);
}

#[test]
fn a_busy_file_system_is_left_alone() {
    if !has("strace") {
        skip!("strace is not installed");
    }
    let stage = Stage::new();
    let directory = MemoryDirectory::new();
    let slow = ["statx:delay_enter=70000"];
    stage.run(&mut disturbed(&stage, &directory, &slow, &[])).expect(3).says("busy or slow");
    expect_empty(&directory);
    // One call that takes longer than a second is sufficient.
    let slow = ["faccessat2:delay_enter=1500000"];
    stage.run(&mut disturbed(&stage, &directory, &slow, &[])).expect(3).says("busy or slow");
    expect_empty(&directory);
}

#[test]
fn a_call_that_takes_a_second_ends_it() {
    if !has("strace") {
        skip!("strace is not installed");
    }
    let stage = Stage::new();
    let directory = MemoryDirectory::new();
    // strace counts calls per thread: these listings are measured before the first step.
    let slow = ["getdents64:delay_enter=1500000:when=30"];
    let result = stage.run(&mut disturbed(&stage, &directory, &slow, &["--json"])).expect(1).json();
    assert_eq!((&result["capped_by"], &result["sustained"]), (&Value::from("slow"), &Value::Null));
    assert!(result["notes"].to_string().contains("longer than a second"), "{result}");
    assert!(result["steps"].as_array().unwrap().is_empty(), "{result}");
    expect_empty(&directory);
}

#[test]
fn a_call_that_never_comes_back_is_given_up() {
    if !has("strace") {
        skip!("strace is not installed");
    }
    let stage = Stage::new();
    let directory = MemoryDirectory::new();
    let hangs = ["getdents64:delay_enter=16000000:when=40"];
    stage.run(&mut disturbed(&stage, &directory, &hangs, &[])).expect(3).says("stopped answering");
    expect_empty(&directory);
}

#[test]
fn on_moosefs_the_probe_sends_the_requests_that_it_reports() {
    if !is_root() || !has("mfsmaster") {
        skip!("a MooseFS in network namespaces needs root and Debian's moosefs packages");
    }
    let stage = Stage::new();
    let testbed = Testbed::start(&stage);
    let directory = testbed.node("1").join("probed");
    fs::create_dir(&directory).unwrap();
    // On a busy machine, a call can take longer than a second. Then the probe ends early.
    let undisturbed = |cap: &str| {
        (0..10).find_map(|_| {
            let before = testbed.sent("1");
            let ended = stage.run(&mut probe(&stage, &directory, &["--json", "--operations", cap]));
            match ended.code() {
                Some(1) if ended.json()["capped_by"] == "slow" => None,
                _ => Some((before, ended.expect(0).json())),
            }
        })
    };
    for cap in ["1000", "20000"] {
        let (before, result) = undisturbed(cap).expect("a call took longer than a second each time");
        let sent = testbed.sent("1") - before;
        let reported = result["operations_total"].as_u64().unwrap();
        assert!(reported <= cap.parse().unwrap(), "{cap}: {result}");
        // In addition, an idle client sends a message every two or three seconds.
        assert!(reported.abs_diff(sent) <= reported / 20 + 5, "{cap}: reported {reported}, sent {sent}");
        for kind in result["kinds"].as_array().unwrap() {
            assert_eq!(kind["answered_by"], "server", "{result}");
        }
        let notes = result["notes"].to_string();
        assert!(notes.contains("lower bound") && notes.contains("FUSE"), "{notes}");
        expect_empty(&directory);
    }
    // The client of the other node does not see remaining files or a running probe either.
    let other = testbed.node("2").join("probed");
    stage.run(&mut probe(&stage, &other, &["--operations", "1000"])).expect(0);
    expect_empty(&other);
    drop(testbed);
    stage.expect_nothing_left();
}
