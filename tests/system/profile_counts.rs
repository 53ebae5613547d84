//! Compares `quell profile --import` with `testbed/count-trace`, an independent program in another
//! language that was written from docs/formats/profile.md and counts the calls in the same logs.
//! Both must agree on every call, with all options of strace and for damaged logs.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::skip;
use crate::stage::{Stage, checkout, has};

/// The traced program: pipes, concurrent children, threads that fork, names that do not exist.
const PROGRAM: &str = r#"
cd /etc || exit 1
ls -l /usr/lib /nowhere >/dev/null 2>&1
(cat passwd group | grep -c root; (cd /tmp && stat . ../usr)) >/dev/null 2>&1 &
find /usr/share -maxdepth 1 2>/dev/null | sort | head -3 >/dev/null &
for n in 1 2 3; do test -e /nowhere/$n || : "$(readlink /proc/self/exe)" & done
exec 5</etc/passwd; read -r line <&5; exec 6<&5 5<&-; read -r line <&6
wait
"#;

/// Runs the program under strace with these options, and returns the logs.
fn trace(stage: &Stage, name: &str, options: &[&str]) -> Vec<PathBuf> {
    let directory = stage.dir(name);
    let log = directory.join("log");
    let mut command = stage.command("strace");
    command.args(options);
    // Without -o, strace's messages appear within lines, and process ids only if there are several
    // processes.
    if options.contains(&"-o") {
        command.arg(&log);
    }
    command.args(["sh", "-c", PROGRAM]);
    let ended = stage.run(&mut command).expect(0);
    if !options.contains(&"-o") {
        fs::write(&log, &ended.err).unwrap();
    }
    let mut logs: Vec<PathBuf> = fs::read_dir(&directory).unwrap().map(|e| e.unwrap().path()).collect();
    logs.sort();
    logs
}

/// Returns the report about these logs.
fn report(stage: &Stage, logs: &[PathBuf], options: &[&str]) -> Value {
    let output = stage.path(format!("report.{}", logs[0].to_string_lossy().replace('/', "_")));
    let mut command = stage.quell();
    command.args(["profile", "--quiet", "--json", "-o"]).arg(output).args(options);
    for log in logs {
        command.arg("--import").arg(log);
    }
    stage.run(&mut command).expect(0).json()
}

fn counts_of_script(stage: &Stage, logs: &[PathBuf]) -> Value {
    let counter = checkout().join("testbed/count-trace");
    stage.run(stage.command("python3").arg(counter).args(logs)).expect(0).json()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Checks that each line of the log is counted once.
fn expect_each_line_counted_once(report: &Value) {
    let totals = &report["totals"];
    let skipped = &totals["skipped"];
    let names = ["other_calls", "events", "resumed", "orphans", "truncated", "foreign"];
    let others: u64 = names.iter().map(|name| number(&skipped[name])).sum();
    assert_eq!(number(&totals["lines"]), number(&totals["calls"]) + others, "{totals}");
    let elsewhere = &totals["elsewhere"];
    let elsewhere: u64 = ["no_file", "unknown", "bad"].iter().map(|n| number(&elsewhere[n])).sum();
    let placed = number(&totals["metadata"]) + number(&totals["data"]);
    assert_eq!(number(&totals["calls"]), placed + elsewhere);
}

fn report_that_agrees_with_script(stage: &Stage, logs: &[PathBuf], what: &str) -> Value {
    let report = report(stage, logs, &[]);
    let counted = counts_of_script(stage, logs);
    let totals = &report["totals"];
    assert_eq!(totals["by_call"], counted["by_call"], "{what}");
    assert_eq!((&totals["calls"], &totals["lines"]), (&counted["calls"], &counted["lines"]), "{what}");
    for class in ["metadata", "data"] {
        let operations = report["operations"].as_array().unwrap().iter();
        let calls = operations.filter(|o| o["class"] == class).map(|o| number(&o["calls"]));
        assert_eq!(calls.sum::<u64>(), number(&counted[class]), "{what}: {class}");
    }
    expect_each_line_counted_once(&report);
    report
}

macro_rules! needs_strace {
    () => {
        if !has("strace") || !has("python3") {
            skip!("needs strace and python3");
        }
    };
}

#[test]
fn all_methods_of_tracing_count_every_call() {
    needs_strace!();
    let stage = Stage::new();
    let launches: [&[&str]; 12] = [
        &["-f", "-ttt", "-y", "-o"],
        &["-f", "-o"],
        &["-ff", "-o"],
        &["-ff", "-ttt", "-o"],
        &["-f"],
        &["-f", "-tt", "-T", "-y"],
        &["-f", "-r", "-s", "3", "-o"],
        &["-f", "-t", "-yy", "-x", "-o"],
        &["-f", "-y", "-xx", "-o"],
        &["-f", "-v", "-s", "9999", "-o"],
        &["-f", "-q", "-i", "-ttt", "-r", "-o"],
        &["-f", "-e", "trace=%file,close,mmap,read", "-o"],
    ];
    for (number, options) in launches.into_iter().enumerate() {
        let logs = trace(&stage, &format!("launch{number}"), options);
        let report = report_that_agrees_with_script(&stage, &logs, &options.join(" "));
        let skipped = &report["totals"]["skipped"];
        for name in ["orphans", "truncated", "foreign"] {
            assert_eq!(skipped[name], 0, "{}: {skipped}", options.join(" "));
        }
    }
}

#[test]
fn processes_are_counted_alike_however_they_were_traced() {
    needs_strace!();
    let stage = Stage::new();
    let launches: [&[&str]; 5] =
        [&["-f", "-y", "-ttt", "-o"], &["-f", "-o"], &["-ff", "-ttt", "-o"], &["-ff", "-o"], &["-f"]];
    let counts = launches.map(|options| {
        let logs = trace(&stage, &format!("launch{}", options.concat()), options);
        number(&report(&stage, &logs, &[])["totals"]["processes"])
    });
    assert_eq!(counts, [counts[0]; 5], "{launches:?}");
}

/// Returns a pseudorandom number below `limit`, and advances the seed.
fn random_below(seed: &mut u64, limit: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize % limit
}

#[test]
fn a_truncated_trace_is_counted_up_to_its_end() {
    needs_strace!();
    let stage = Stage::new();
    let whole = fs::read(&trace(&stage, "whole", &["-f", "-ttt", "-y", "-o"])[0]).unwrap();
    let mut seed = 7;
    // A log without a complete call has another result.
    let shortest = whole.len() / 20;
    for number in 0..12 {
        let length = shortest + random_below(&mut seed, whole.len() - shortest);
        let log = stage.file(&format!("cut{number}"), &whole[..length]);
        report_that_agrees_with_script(&stage, &[log], &format!("cut {number}"));
    }
}

#[test]
fn garbage_in_a_log_is_counted_and_shown_and_hides_no_call() {
    needs_strace!();
    let stage = Stage::new();
    let whole = fs::read(&trace(&stage, "whole", &["-f", "-y", "-o"])[0]).unwrap();
    let garbage: [&[u8]; 6] = [
        b"",
        b"2026-01-01 INFO open(x) done",
        b"\0\0\0",
        b"\xff\xfe= 3",
        b"Traceback: <unfinished ...>",
        b"}",
    ];
    let mut seed = 11;
    let (mut mixed, mut foreign) = (Vec::new(), 0);
    for line in whole.split_inclusive(|b| *b == b'\n') {
        if random_below(&mut seed, 5) == 0 {
            mixed.extend_from_slice(garbage[random_below(&mut seed, garbage.len())]);
            mixed.push(b'\n');
            foreign += 1;
        }
        mixed.extend_from_slice(&line[..line.len() - 1]);
        mixed.extend_from_slice(if random_below(&mut seed, 2) == 0 { b"\r\n" } else { b"\n" });
    }
    let log = stage.file("mixed", &mixed);
    let report = report_that_agrees_with_script(&stage, std::slice::from_ref(&log), "mixed");
    let skipped = &report["totals"]["skipped"];
    assert_eq!(skipped["foreign"], foreign, "{skipped}");
    let examples = skipped["examples"].as_array().unwrap();
    assert!(examples.len() == 5 && examples[0].as_str().unwrap().contains("mixed:"), "{examples:?}");
}

#[test]
fn logs_of_ranks_with_the_same_pids_add_up() {
    needs_strace!();
    let stage = Stage::new();
    let one = trace(&stage, "one", &["-f", "-ttt", "-y", "-o"]);
    let copy = stage.path("copy");
    fs::copy(&one[0], &copy).unwrap();
    let alone = report(&stage, &one, &[]);
    let both = report_that_agrees_with_script(&stage, &[one[0].clone(), copy], "two ranks");
    for name in ["calls", "metadata", "data", "processes", "lines"] {
        assert_eq!(number(&both["totals"][name]), 2 * number(&alone["totals"][name]), "{name}");
    }
}

#[test]
fn a_directory_of_another_machine_counts_as_shared_where_it_is_imported() {
    let stage = Stage::new();
    let log = stage.file(
        "log",
        "7 1700000000.5 stat(\"/nowhere/sw/a\", 0x7f) = 0\n7 1700000000.6 stat(\"/a\", 0x7f) = 0\n",
    );
    let report = report(&stage, &[log], &["--shared", "/nowhere/sw"]);
    assert_eq!(report["locations"]["shared"]["metadata"], 1, "{}", report["locations"]);
    let root = report["locations"]["shared"]["roots"][0].as_str().unwrap();
    assert!(root.starts_with("/nowhere/sw"), "{root}");
}

/// Returns a log with `calls_a_second` calls per second for ten seconds, evenly spaced.
fn steady(directory: &Path, calls_a_second: u64) -> String {
    let mut log = String::new();
    for call in 0..10 * calls_a_second {
        let micros = call * 1_000_000 / calls_a_second;
        let (seconds, micros) = (1_700_000_000 + micros / 1_000_000, micros % 1_000_000);
        let path = directory.join(format!("f{call}"));
        log += &format!("7 {seconds}.{micros:06} stat(\"{}\", 0x7f) = -1 ENOENT (No)\n", path.display());
    }
    log
}

#[test]
fn the_papers_rates_give_the_papers_nodes() {
    let stage = Stage::new();
    let shared = stage.dir("shared");
    for (rate, nodes, words) in [(483, 66, "66"), (6, 5_000, "5,000")] {
        let log = stage.file(&format!("rate{rate}"), steady(&shared, rate));
        let mut command = stage.quell();
        command.args(["profile", "--capacity", "32000", "--shared"]).arg(&shared).arg("--import").arg(&log);
        let output = stage.path(format!("report{rate}"));
        let summary = stage.run(command.arg("-o").arg(&output)).expect(0).text();
        let report: Value = serde_json::from_slice(&fs::read(output.join("report.json")).unwrap()).unwrap();
        assert_eq!(report["nodes"]["direct"], nodes, "{}", report["nodes"]);
        let average = report["metadata_rate"]["direct"]["average"].as_f64().unwrap();
        assert!((average - rate as f64).abs() < 0.01, "{average}");
        assert!(
            summary.lines().any(|line| line.contains("nodes") && line.contains(words)),
            "no {words} nodes in:\n{summary}"
        );
    }
}
