//! Reports of small traces, each for one statement of a report that must not mislead.

use std::time::Duration;

use crate::analysis::readings::{Capacity, FirstReading};
use crate::locations::{LocationRules, NoLinks, UnknownDirectories};
use crate::report::{Report, VerdictKind};
use crate::trace::reader::LineSource;

const SOURCE: LineSource = LineSource { space: 0, pid: 0 };

fn rules() -> LocationRules {
    LocationRules { shared: vec![b"/m".to_vec()], ..LocationRules::default() }
}

/// Returns the report of lines without times; one line is a millisecond after the other.
fn report(lines: &[String]) -> Report {
    let lines: Vec<String> = lines
        .iter()
        .enumerate()
        .map(|(number, line)| {
            let (pid, call) = line.split_once(' ').expect("a line begins with a process id");
            format!("{pid} 1700000000.{:06} {call}", number * 1000)
        })
        .collect();
    let mut links = NoLinks;
    let mut first = FirstReading::new(&rules(), Vec::new(), &mut links);
    lines.iter().for_each(|line| first.line(SOURCE, line.as_bytes(), String::new));
    first.end();
    let mut second = first.choose(1.0, &mut UnknownDirectories);
    lines.iter().for_each(|line| second.line(SOURCE, line.as_bytes()));
    let report = second.report(Some(&Capacity { operations_per_s: 32_000.0, from: "test".into() }));
    let skipped = &report.totals.skipped;
    assert_eq!(skipped.truncated + skipped.foreign + skipped.orphans, 0, "{:?}", skipped.examples);
    report
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim().to_owned()).collect()
}

/// Returns calls in a software tree, enough that it is proposed.
fn tree_calls() -> Vec<String> {
    let look = |n: usize| format!(r#"1 access("/m/env/lib/f{n}", R_OK) = -1 ENOENT (x)"#);
    let mut calls: Vec<String> = (0..30).map(look).collect();
    calls.push(r#"1 openat(AT_FDCWD</>, "/m/env/lib/x", O_RDONLY) = 3</m/env/lib/x>"#.to_owned());
    // The directory of an environment has several well-known entries.
    calls.push(r#"1 newfstatat(AT_FDCWD</>, "/m/env/bin", 0x1, 0) = 0"#.to_owned());
    calls
}

#[test]
fn all_rates_and_numbers_of_nodes_are_in_operations() {
    // The client answers all but the first of these from its cache.
    let mut calls = tree_calls();
    calls.extend((0..300).map(|_| r#"1 newfstatat(AT_FDCWD</>, "/m/env/lib", 0x1, 0) = 0"#.to_owned()));
    let report = report(&calls);
    let rates = &report.metadata_rate;
    for (rate, remaining) in [
        (rates.scenarios.direct, report.remaining.direct),
        (rates.scenarios.index, report.remaining.index),
        (rates.scenarios.boot, report.remaining.boot),
    ] {
        assert!((rate.average * report.duration_s - remaining.metadata as f64).abs() < 1e-6);
    }
    assert!(rates.calls.average > 5.0 * rates.scenarios.direct.average, "calls are a separate number");
    let expected = 32_000.0 / rates.scenarios.direct.average;
    let nodes = report.nodes.as_ref().unwrap().direct.unwrap() as f64;
    assert!(nodes <= expected && nodes > expected * 0.9, "{nodes} {expected}");
    let integral: f64 = report.rate.iter().map(|point| point.direct * rates.step_s).sum();
    assert!((integral - report.remaining.direct.metadata as f64).abs() < 1e-6);
}

#[test]
fn missing_names_on_shared_and_on_local_file_systems_are_separate() {
    let report = report(&lines(
        r#"1 access("/etc/ld.so.preload", R_OK) = -1 ENOENT (x)
           1 access("/usr/lib/a", R_OK) = -1 ENOENT (x)
           1 access("/m/a", R_OK) = -1 ENOENT (x)
           1 access("/m/b", R_OK) = 0"#,
    ));
    assert_eq!(
        (report.totals.missing, report.totals.shared.missing, report.totals.shared.metadata),
        (3, 1, 2)
    );
    assert_eq!((report.programs[0].missing, report.programs[0].missing_shared), (3, 1));
}

#[test]
fn bytes_of_shared_file_systems_are_those_of_their_calls() {
    let report = report(&lines(
        r#"1 read(3</m/a>, "", 100) = 100
           1 read(3</m/a>, "", 100) = 100
           1 read(4</etc/x>, "", 50) = 50
           1 write(5</m/b>, "", 7) = 7
           1 copy_file_range(4</etc/x>, NULL, 5</m/b>, NULL, 9, 0) = 9"#,
    ));
    let shared = &report.totals.shared;
    assert_eq!((report.totals.bytes_read, shared.bytes_read, shared.bytes_written), (259, 200, 16));
    let locations = &report.locations;
    let sum: u64 = locations.named().iter().map(|(_, _, totals)| totals.bytes_read).sum();
    assert_eq!(sum, report.totals.bytes_read);
}

#[test]
fn workers_that_read_a_file_once_each_are_not_rereads() {
    let once = |pid: u32, path: &str| {
        [
            format!(r#"{pid} openat(AT_FDCWD</>, "{path}", O_RDONLY) = 3<{path}>"#),
            format!(r#"{pid} read(3<{path}>, "", 9000) = 9000"#),
            format!("{pid} close(3<{path}>) = 0"),
        ]
    };
    let workers = (1..=8).flat_map(|pid| once(pid, "/m/module.py"));
    let loop_of_one = (0..3).flat_map(|_| once(20, "/m/table"));
    let report = report(&workers.chain(loop_of_one).collect::<Vec<_>>());
    let rereads: Vec<_> = report.rereads.iter().map(|row| (row.path.as_str(), row.times)).collect();
    assert_eq!(rereads, [("/m/table", 3.0)]);
}

#[test]
fn an_inherited_standard_output_is_not_an_n_1_write() {
    let report = report(&lines(
        r#"1 write(1</m/job.out>, "", 10) = 10
           2 write(1</m/job.out>, "", 10) = 10
           3 write(2</m/job.out>, "", 10) = 10
           1 openat(AT_FDCWD</>, "/m/ckpt", O_WRONLY|O_CREAT, 0644) = 5</m/ckpt>
           2 openat(AT_FDCWD</>, "/m/ckpt", O_WRONLY|O_CREAT, 0644) = 5</m/ckpt>
           1 pwrite64(5</m/ckpt>, "", 4096, 0) = 4096
           2 pwrite64(5</m/ckpt>, "", 4096, 4096) = 4096
           6 execve("/bin/dd", [], 0x7f) = 0
           6 openat(AT_FDCWD</>, "/m/disk", O_WRONLY) = 3</m/disk>
           6 dup2(3</m/disk>, 1</m/job.out>) = 1</m/disk>
           6 write(1</m/disk>, "", 512) = 512
           7 execve("/bin/dd", [], 0x7f) = 0
           7 openat(AT_FDCWD</>, "/m/disk", O_WRONLY) = 3</m/disk>
           7 dup2(3</m/disk>, 1</m/job.out>) = 1</m/disk>
           7 write(1</m/disk>, "", 512) = 512"#,
    ));
    let rows: Vec<_> = report.shared_writes.iter().map(|row| (row.path.as_str(), row.writers)).collect();
    assert_eq!(rows, [("/m/ckpt", 2), ("/m/disk", 2)], "dd opens the file itself");
    assert!(report.shared_writes.iter().all(|row| row.on_shared));
}

#[test]
fn a_tree_into_which_python_wrote_bytecode_is_not_proposed_and_the_report_says_why() {
    let mut calls = tree_calls();
    calls.extend(lines(
        r#"1 mkdir("/m/env/lib/__pycache__", 0777) = 0
           1 openat(AT_FDCWD</>, "/m/env/lib/__pycache__/x.cpython-312.pyc.99", O_WRONLY|O_CREAT) = 4</m/env/lib/__pycache__/x.cpython-312.pyc.99>
           1 rename("/m/env/lib/__pycache__/x.cpython-312.pyc.99", "/m/env/lib/__pycache__/x.cpython-312.pyc") = 0"#,
    ));
    let bytecode = report(&calls);
    assert_eq!((bytecode.trees.len(), bytecode.verdict.outcome), (0, VerdictKind::NothingProposed));
    let refused = &bytecode.not_proposed[0];
    assert!(refused.only_bytecode && refused.why.contains("__pycache__"), "{refused:?}");
    assert!(bytecode.verdict.text.contains("Profile the program once more"), "{}", bytecode.verdict.text);
    // Another change is a reason of its own.
    calls.push(r#"1 unlink("/m/env/lib/lock") = 0"#.to_owned());
    let other = report(&calls);
    assert!(!other.not_proposed[0].only_bytecode);
    assert!(other.verdict.text.contains("the program changed /m/env/lib/lock"), "{}", other.verdict.text);
}

#[test]
fn the_verdict_compares_operations_before_and_after() {
    let proposed = report(&tree_calls());
    let text = &proposed.verdict.text;
    let direct = proposed.remaining.direct.metadata;
    assert_eq!(proposed.verdict.outcome, VerdictKind::Proposed);
    assert!(
        text.contains("An index of /m/env leaves") && text.contains(&format!("of {direct} metadata")),
        "{text}"
    );
    assert!(text.contains("The file system saturates at"), "{text}");
    let nothing_shared = report(&lines(r#"1 access("/etc/x", R_OK) = 0"#));
    assert_eq!(nothing_shared.verdict.outcome, VerdictKind::NothingShared);
    assert_eq!(report(&[]).verdict.outcome, VerdictKind::NoCalls);
}

#[test]
fn the_path_tree_contains_all_operations() {
    let mut calls = tree_calls();
    calls.extend((0..20).map(|n| format!(r#"1 chmod("/m/data/f{n}", 0644) = 0"#)));
    let report = report(&calls);
    let tree = &report.path_tree;
    assert_eq!(tree[0].operations.direct, report.remaining.direct.metadata);
    let children: u64 = tree.iter().filter(|node| node.depth == 1).map(|node| node.operations.direct).sum();
    assert!(children <= tree[0].operations.direct && tree.len() >= 3, "{tree:?}");
    for pair in tree.windows(2) {
        assert!(pair[1].depth <= pair[0].depth + 1, "{tree:?}");
    }
    let node = |path: &str| tree.iter().find(|node| node.path == path).expect("it has many operations");
    assert!(node("/m/env").in_tree && !node("/m/data").in_tree);
}

#[test]
fn each_process_has_a_lane_with_its_operations() {
    let mut calls = tree_calls();
    calls.extend((0..20).map(|n| format!(r#"2 access("/m/data/f{n}", R_OK) = 0"#)));
    let report = report(&calls);
    let lanes: Vec<_> = report.processes.iter().map(|lane| lane.pid).collect();
    assert_eq!(lanes, [1, 2], "by start");
    let sum: u64 = report.processes.iter().map(|lane| lane.operations).sum();
    assert_eq!(sum, report.remaining.direct.metadata);
    for lane in &report.processes {
        assert_eq!(lane.steps.iter().sum::<u64>(), lane.operations);
        assert!(lane.begin_s <= lane.end_s && lane.end_s <= report.duration_s);
    }
}

#[test]
fn the_cost_of_calls_that_are_traced_at_the_same_time_is_not_added_up() {
    let cost = |pids: u32| {
        let mut links = NoLinks;
        let mut first = FirstReading::new(&rules(), Vec::new(), &mut links);
        first.set_call_cost(Duration::from_micros(40));
        for number in 0..1000u32 {
            for pid in 1..=pids {
                let time_us = number * 100 + pid;
                let line = format!("{pid} 1700000000.{time_us:06} access(\"/m/a\", R_OK) = 0 <0.000050>");
                first.line(SOURCE, line.as_bytes(), String::new);
            }
        }
        first.end()
    };
    let one = cost(1);
    assert_eq!(one.tracing, Duration::from_millis(40));
    // The sum would be 320 ms, three times the whole duration.
    let eight = cost(8);
    assert!(eight.tracing < Duration::from_millis(48) && eight.tracing < eight.span, "{eight:?}");
}
