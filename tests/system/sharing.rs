//! Runs of one job on one node share a holder and therefore a namespace; other runs do not.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::skip;
use crate::stage::{Running, Stage, is_root, send, views, why_no_openmpi};
use crate::trees;

/// Prints its namespaces, then waits for a line.
const REPORT: &str = "readlink /proc/self/ns/mnt /proc/self/ns/user; cat \"$1/readme\"; read line; exit 0";

struct Job {
    stage: Stage,
    tree: std::path::PathBuf,
    index: std::path::PathBuf,
}

impl Job {
    fn new() -> Job {
        let stage = Stage::new();
        let tree = trees::small(&stage, "tree");
        let index = stage.index(&tree);
        Job { stage, tree, index }
    }

    fn rank(&self, view: &str, options: &[&str]) -> Command {
        let mut command = self.stage.quell_run(&self.index, view);
        command
            .args(["--strict", "--quiet"])
            .args(options)
            .args(["--", "sh", "-c", REPORT, "sh"])
            .arg(&self.tree);
        command.stdin(Stdio::piped());
        command
    }

    fn start(&self, command: &mut Command) -> Running {
        self.stage.start(command)
    }
}

/// Returns the two namespaces that a rank printed.
fn namespaces(rank: &mut Running) -> String {
    rank.wait_for_output("hello\n");
    rank.out()
}

fn end(mut rank: Running) {
    rank.stdin().write_all(b"\n").unwrap();
    rank.wait().expect(0);
}

#[test]
fn runs_of_one_name_share_a_namespace() {
    let job = Job::new();
    for view in views() {
        let mut ranks: Vec<Running> =
            (0..4).map(|_| job.start(&mut job.rank(view, &["--share", "x"]))).collect();
        let seen: BTreeSet<String> = ranks.iter_mut().map(namespaces).collect();
        assert_eq!(seen.len(), 1, "{view}: {seen:?}");
        job.stage.holder();
        ranks.into_iter().for_each(end);
        job.stage.expect_nothing_left();
    }
}

#[test]
fn ranks_are_recognized_by_the_variables_of_their_launcher() {
    let job = Job::new();
    let view = views()[0];
    let start = |variables: &[(&str, &str)]| job.start(job.rank(view, &[]).envs(variables.iter().copied()));
    for (variables, others) in [
        (&[("PMIX_NAMESPACE", "1")][..], &[("PMIX_NAMESPACE", "2")][..]),
        (&[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0")], &[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "1")]),
        (&[("PBS_JOBID", "a")], &[]),
    ] {
        let mut ranks = [start(variables), start(variables), start(others)];
        let seen: Vec<String> = ranks.iter_mut().map(namespaces).collect();
        assert_eq!(seen[0], seen[1], "{variables:?}");
        assert_ne!(seen[0], seen[2], "{variables:?} and {others:?}");
        ranks.into_iter().for_each(end);
    }
}

#[test]
fn other_names_options_and_runs_of_no_job_do_not_share() {
    let job = Job::new();
    let view = views()[0];
    let variants: [&[&str]; 6] = [
        &["--share", "x"],
        &["--share", "y"],
        &["--share", "x", "--scratch"],
        &["--share", "x", "--check", "none"],
        &[],
        &[],
    ];
    let mut ranks: Vec<Running> =
        variants.iter().map(|options| job.start(&mut job.rank(view, options))).collect();
    let seen: BTreeSet<String> = ranks.iter_mut().map(namespaces).collect();
    assert_eq!(seen.len(), variants.len());
    // Another generation of the index is a different view.
    fs::write(job.tree.join("added"), "").unwrap();
    job.stage.run(job.stage.quell().args(["index", "-q", "--update"]).arg(&job.index)).expect(0);
    let mut later = job.start(&mut job.rank(view, &["--share", "x"]));
    assert!(!seen.contains(&namespaces(&mut later)));
    end(later);
    ranks.into_iter().for_each(end);
}

#[test]
fn a_later_rank_joins_after_the_first_has_left() {
    let job = Job::new();
    for view in views() {
        let mut first = job.start(&mut job.rank(view, &["--share", "x"]));
        let expected = namespaces(&mut first);
        let mut second = job.start(&mut job.rank(view, &["--share", "x"]));
        assert_eq!(namespaces(&mut second), expected);
        end(first);
        let mut third = job.start(&mut job.rank(view, &["--share", "x"]));
        assert_eq!(namespaces(&mut third), expected, "{view}");
        end(second);
        end(third);
        job.stage.expect_nothing_left();
    }
}

#[test]
fn remains_of_a_killed_holder_are_replaced() {
    let job = Job::new();
    for view in views() {
        let mut first = job.start(&mut job.rank(view, &["--share", "x"]));
        let before = namespaces(&mut first);
        let holder = job.stage.holder();
        send(holder, Signal::KILL);
        assert!(crate::stage::eventually(|| job.stage.holders().is_empty()));
        let mut second = job.start(&mut job.rank(view, &["--share", "x"]));
        assert_ne!(namespaces(&mut second), before, "{view}");
        end(first);
        end(second);
        job.stage.expect_nothing_left();
    }
}

#[test]
fn users_do_not_share() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let job = Job::new();
    let view = views()[0];
    let mut mine = job.start(&mut job.rank(view, &["--share", "x"]));
    let expected = namespaces(&mut mine);
    // Another user has another runtime directory, and no access to the runtime directory of this
    // user.
    let mut theirs = job.stage.command("setpriv");
    theirs.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(crate::stage::quell());
    theirs.args(["run", "--strict", "--share", "x", "-i"]).arg(&job.index).args(["--", "true"]);
    job.stage.run(&mut theirs).expect(3).says("QUELL_RUNTIME_DIR");
    let own = job.stage.path("nobody's");
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).unwrap();
    trees::set_mode(&own, 0o700);
    let mut theirs = job.stage.command("setpriv");
    theirs.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(crate::stage::quell());
    theirs.args(["run", "--strict", "--quiet", "--share", "x", "-i"]).arg(&job.index);
    theirs.args(["--", "readlink", "/proc/self/ns/mnt"]).env("QUELL_RUNTIME_DIR", &own);
    let seen = job.stage.run(&mut theirs);
    if seen.err.contains("user namespace") {
        println!("SKIPPED: user namespaces are not for ordinary users here");
    } else {
        assert!(!expected.contains(seen.expect(0).text().trim()));
    }
    end(mine);
    assert!(crate::stage::eventually(|| crate::stage::left_in(&own).is_empty()));
}

/// Each rank sends every other rank a message that is larger than a queue, which the forced
/// transport copies directly from the memory of the other process.
pub const EXCHANGE: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { N = 1 << 20 };

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int *out = malloc(N * sizeof *out), *in = malloc(N * sizeof *in);
    for (int i = 0; i < N; i++) out[i] = rank * 31 + i;
    long wrong = 0;
    for (int step = 1; step < size; step++) {
        int to = (rank + step) % size, from = (rank + size - step) % size;
        MPI_Sendrecv(out, N, MPI_INT, to, 0, in, N, MPI_INT, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < N; i++) wrong += in[i] != from * 31 + i;
    }
    char mnt[64] = "", user[64] = "";
    if (readlink("/proc/self/ns/mnt", mnt, 63) < 0 || readlink("/proc/self/ns/user", user, 63) < 0) return 1;
    /* One write for each line, so that ranks do not mix. */
    char line[256];
    int length = snprintf(line, sizeof line, "rank %s %s wrong %ld\n", mnt, user, wrong);
    if (write(1, line, length) != length) return 1;
    MPI_Finalize();
    return 0;
}
"#;

#[test]
fn ranks_of_an_mpi_job_read_one_anothers_memory() {
    if let Some(reason) = why_no_openmpi() {
        skip!("{reason}");
    }
    let job = Job::new();
    let program = job.stage.mpi_program("mpicc", "exchange", EXCHANGE);
    let mpirun = || {
        let mut command = job.stage.mpirun(4);
        command.args([
            "--mca",
            "btl_vader_single_copy_mechanism",
            "cma",
            "--mca",
            "btl_base_warn_component_unused",
            "0",
        ]);
        // If attaching is refused, the transport must not silently use another method.
        command
    };
    let direct = job.stage.run(mpirun().arg(&program));
    if direct.code() != Some(0) {
        skip!("mpirun does not work here without Quell either: {}", direct.err);
    }
    for view in views() {
        let mut command = mpirun();
        command.arg(crate::stage::quell()).args(["run", "--strict", "--quiet", "--view", view, "-i"]);
        let ended = job.stage.run(command.arg(&job.index).arg("--").arg(&program)).expect(0);
        let text = ended.text();
        let lines: BTreeSet<&str> = text.lines().filter(|line| line.starts_with("rank ")).collect();
        assert_eq!(text.lines().filter(|line| line.starts_with("rank ")).count(), 4, "{view}: {text}");
        // All ranks are in the same mount namespace and user namespace, and all messages are
        // correct.
        assert_eq!(lines.len(), 1, "{view}: {text}");
        assert!(text.contains("wrong 0\n"), "{view}: {text}");
        for complaint in ["CMA", "single-copy", "Permission denied", "Operation not permitted"] {
            assert!(!ended.err.contains(complaint), "{view}: {}", ended.err);
        }
        job.stage.expect_nothing_left();
    }
}
