//! Locks of flock(2) and fcntl(2) on files of a log mount: programs on two mounts of one store, as
//! on two nodes, on the local file system and on a MooseFS.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::log_fixture;
use crate::skip;
use crate::stage::{Mounted, Stage, has, is_root, why_no_openmpi};
use crate::testbed::Testbed;

const PROGRAM: &str = include_str!("log_locks.py");
const MPI_PROGRAM: &str = include_str!("log_locks_mpi.c");
const RANKS: usize = 4;

/// Starts a program with a pattern and a name in the first directory, or for ranks with an odd
/// number in the second one. Root mounts the directory of a rank at a third path first: on a
/// cluster all nodes mount at the same path, and ROMIO sends the path of the file with the shared
/// file pointer to all ranks.
const START: &str = r#"one=$1 other=$2 at=$3 program=$4 pattern=$5 name=$6
case $((OMPI_COMM_WORLD_RANK % 2)) in 0) from=$one;; *) from=$other;; esac
if [ "$at" ]; then mount --bind "$from" "$at" || exit 9; from=$at; fi
exec "$program" "$pattern" "$from/$name""#;

/// Runs one check of the program with two directories.
#[track_caller]
fn check(stage: &Stage, name: &str, points: [&Path; 2], increments: u32) {
    let program = stage.file("log_locks.py", PROGRAM);
    let mut command = Command::new("python3");
    command.arg(program).arg(name).args(points).env("INCREMENTS", increments.to_string());
    let ended = stage.run(&mut command).expect(0);
    assert_eq!(ended.text(), format!("{name}: done\n"), "{}", ended.err);
}

#[track_caller]
fn check_with(name: &str, options: &[&str]) {
    if !has("python3") {
        skip!("python3 is not there");
    }
    let fixture = log_fixture!();
    let [one, other] = [(); 2].map(|()| fixture.mount_with(&[&fixture.store], options));
    check(&fixture.stage, name, [&one.point, &other.point], 50);
    one.umount();
    other.umount();
    assert_eq!(fixture.open_records(), Vec::<PathBuf>::new());
    assert_eq!(fixture.leftovers(), Vec::<PathBuf>::new());
    fixture.stage.expect_nothing_left();
}

#[test]
fn a_counter_under_a_lock_loses_no_increment_between_mounts() {
    check_with("counter", &[]);
}

#[test]
fn locks_exclude_one_another_between_mounts() {
    check_with("exclusion", &[]);
}

#[test]
fn locks_end_with_their_owner_and_not_before() {
    check_with("closes", &[]);
}

#[test]
fn a_waiting_request_ends_with_a_signal_and_delays_no_others() {
    check_with("waiting", &[]);
}

#[test]
fn renamed_and_replaced_files_keep_their_own_locks() {
    check_with("names", &[]);
}

#[test]
fn a_database_is_changed_from_two_mounts() {
    check_with("databases", &[]);
}

#[test]
fn locks_end_when_the_process_of_the_mount_is_killed() {
    if !has("python3") {
        skip!("python3 is not there");
    }
    let fixture = log_fixture!();
    let (one, other) = (fixture.mount(), fixture.mount());
    let mut stats = fixture.stage.quell();
    let reports = fixture.stage.run(stats.args(["stats", "--json"]).arg(&one.point)).expect(0).json();
    let program = fixture.stage.file("log_locks.py", PROGRAM);
    let mut command = Command::new("python3");
    command.arg(program).arg("killed").args([&one.point, &other.point]);
    command.env("PROCESS", reports[0]["pid"].to_string());
    fixture.stage.run(&mut command).expect(0);
    other.umount();
    one.umount();
}

#[test]
fn locks_of_the_node_hold_on_one_mount_only() {
    check_with("node", &["--locks", "node"]);
}

#[test]
fn locks_can_be_refused() {
    check_with("refusal", &["--locks", "none"]);
}

#[test]
fn the_configuration_file_and_the_statistics_name_where_locks_are_kept() {
    let fixture = log_fixture!();
    let point = fixture.point();
    let text = |locks: &str| {
        let (point, store) = (point.display(), fixture.store.display());
        format!("[[log]]\npath = '{point}'\nstores = ['{store}']\n{locks}\n")
    };
    for (line, option, expected) in [
        ("", &[][..], "store"),
        ("locks = 'node'", &[], "node"),
        ("locks = 'node'", &["--locks", "none"], "none"),
    ] {
        let config = fixture.stage.file("quell.toml", text(line));
        let mut command = fixture.stage.quell();
        command.arg("mount").arg("--config").arg(config).args(option);
        fixture.stage.run(&mut command).expect(0);
        let mounted = Mounted::at(&fixture.stage, point.clone());
        let mut stats = fixture.stage.quell();
        let reports = fixture.stage.run(stats.args(["stats", "--json"]).arg(&point)).expect(0).json();
        assert_eq!(reports[0]["log"]["locks"], expected, "{reports}");
        mounted.umount();
    }
    let wrong =
        fixture.stage.run(fixture.stage.quell().args(["mount", "--locks", "none", "a", "b"])).expect(2);
    wrong.says("can be used only with --log");
}

/// A MooseFS with two nodes, each with a mount of the same store.
#[test]
fn locks_hold_between_the_nodes_of_a_parallel_file_system() {
    if !is_root() || !has("mfsmaster") || !has("python3") {
        skip!("a MooseFS in network namespaces needs root, Debian's moosefs packages and python3");
    }
    let stage = Stage::new();
    let testbed = Testbed::start(&stage);
    let stores = ["1", "2"].map(|node| testbed.node(node).join("store"));
    std::fs::create_dir(&stores[0]).unwrap();
    let mounts = [0, 1].map(|node| {
        let point = stage.dir(&format!("point{node}"));
        stage.run(stage.quell().arg("mount").arg("--log").arg(&stores[node]).arg(&point)).expect(0);
        Mounted::at(&stage, point)
    });
    for name in ["counter", "exclusion", "closes", "waiting", "databases"] {
        // Each unlock syncs.
        check(&stage, name, [&mounts[0].point, &mounts[1].point], 8);
    }
    for mounted in mounts {
        mounted.umount();
    }
}

/// The patterns of `log_locks_mpi.c`. OMPIO's atomic mode does not cover writes with holes, also
/// not on a local file system.
const MPI_PATTERNS: [(&str, &[&str]); 2] = [
    ("romio321", &["sieve", "atomic", "atomic-holes", "shared", "ordered"]),
    ("ompio", &["sieve", "atomic", "shared", "ordered"]),
];

#[test]
fn mpi_io_operations_that_rely_on_locks_are_right_between_mounts() {
    if let Some(reason) = why_no_openmpi() {
        skip!("{reason}");
    }
    let fixture = log_fixture!();
    let stage = &fixture.stage;
    let program = stage.mpi_program("mpicc", "log_locks_mpi", MPI_PROGRAM);
    let (start, point) = (stage.file("start", START), stage.dir("point"));
    let (one, other) = (fixture.mount(), fixture.mount());
    for (driver, patterns) in MPI_PATTERNS {
        for pattern in patterns {
            let has_shared_pointer = matches!(*pattern, "shared" | "ordered");
            if has_shared_pointer && !is_root() {
                println!("SKIPPED: {pattern}: only root can mount two directories at one path for MPI ranks");
                continue;
            }
            let mut command = stage.mpirun(RANKS);
            command.args(["--mca", "io", driver]);
            if is_root() {
                command.args(["unshare", "-m", "sh"]).arg(&start).args([&one.point, &other.point, &point]);
            } else {
                command.arg("sh").arg(&start).args([&one.point, &other.point]).arg("");
            }
            command.arg(&program).arg(pattern).arg(stage.mpi_name(&format!("{driver}-{pattern}")));
            // mpirun ends its ranks, too, before the test's own time limit.
            command.env("MPIEXEC_TIMEOUT", "200");
            let ended = stage.run(&mut command).expect(0);
            assert!(
                ended.text().contains(&format!("{pattern}: {RANKS} ranks\n")),
                "{driver}: {}",
                ended.text()
            );
        }
    }
    one.umount();
    other.umount();
    fixture.stage.expect_nothing_left();
}
