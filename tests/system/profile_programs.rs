//! `quell profile` on real programs with different runtimes: a shell with pipelines, Perl with
//! BioPerl, BLAST+, Java, Python, OpenMPI, static programs, and programs that fail. The output and
//! exit code of each are the same as without Quell, and the numbers of the report add up.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::skip;
use crate::stage::{Ended, MPIRUN_VARIABLES, Stage, has, is_root, why_no_openmpi, words};
use crate::trees;

/// A stage with a working directory and a directory that counts as a shared file system.
struct Fixture {
    stage: Stage,
    work: PathBuf,
    shared: PathBuf,
    variables: Vec<(&'static str, OsString)>,
}

/// The result of profiling a program.
struct Profiled {
    ended: Ended,
    report: Value,
    output: PathBuf,
}

impl Fixture {
    fn new() -> Fixture {
        let stage = Stage::new();
        let (work, shared) = (stage.dir("work"), stage.dir("shared"));
        Fixture { stage, work, shared, variables: Vec::new() }
    }

    fn set(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.variables.push((name, value.into()));
    }

    fn in_environment(&self, mut command: Command) -> Command {
        // So that the temporary directories are the same on every machine.
        command.current_dir(&self.work).env_remove("TMPDIR").env_remove("PYTHONDONTWRITEBYTECODE");
        command.envs(self.variables.iter().cloned());
        command
    }

    fn direct_command(&self, program: &[OsString]) -> Command {
        let mut command = self.in_environment(self.stage.command(&program[0]));
        command.args(&program[1..]);
        command
    }

    fn quell(&self, options: &[&dyn AsRef<OsStr>], program: &[OsString]) -> Command {
        let mut command = self.in_environment(self.stage.quell());
        command.args(options).arg("--").args(program);
        command
    }

    /// Returns a command that profiles a program, and the path of its report.
    fn profiling(&self, name: &str, shared: &Path, program: &[OsString]) -> (Command, PathBuf) {
        let output = self.stage.path(name);
        let options: [&dyn AsRef<OsStr>; 6] = [&"profile", &"-q", &"-o", &output, &"--shared", &shared];
        (self.quell(&options, program), output)
    }

    /// Profiles a program that ends with exit code `code`, and checks that the report is
    /// consistent.
    #[track_caller]
    fn profile_to(&self, code: i32, name: &str, shared: &Path, program: &[OsString]) -> Profiled {
        let (mut command, output) = self.profiling(name, shared, program);
        let ended = self.stage.run(&mut command).expect(code);
        let report = read_report(&output);
        expect_sums(&report);
        Profiled { ended, report, output }
    }

    /// Runs a program without and with profiling, and checks that output and exit code are the
    /// same.
    #[track_caller]
    fn profile(&self, name: &str, shared: &Path, program: &[OsString]) -> Profiled {
        let plain = self.stage.run(&mut self.direct_command(program)).expect(0);
        let profiled = self.profile_to(0, name, shared, program);
        assert_eq!(profiled.ended.text(), plain.text());
        assert_eq!(profiled.ended.err, plain.err);
        profiled
    }

    /// Runs a program with the proposed configuration, and checks that its trees are covered and
    /// its output is the same.
    #[track_caller]
    fn expect_same_when_covered(&self, profiled: &Profiled, program: &[OsString]) {
        let config = profiled.output.join("quell.toml");
        let run: [&dyn AsRef<OsStr>; 5] = [&"run", &"--strict", &"-v", &"--config", &config];
        for creates_index in [true, false] {
            let ended = self.stage.run(&mut self.quell(&run, program)).expect(0);
            assert_eq!(ended.text(), profiled.ended.text());
            assert!(ended.err.contains("covered by"), "{}", ended.err);
            // The first run creates the index, the second uses it.
            assert_eq!(ended.err.contains("no index yet"), creates_index, "{}", ended.err);
        }
        self.stage.expect_nothing_left();
    }
}

impl Profiled {
    fn number(&self, pointer: &str) -> u64 {
        number(&self.report, pointer)
    }

    /// Returns a row of a finding.
    #[track_caller]
    fn row(&self, finding: &str, member: &str, value: impl AsRef<OsStr>) -> &Value {
        let value = value.as_ref().to_str().unwrap();
        let found = rows(&self.report, finding).iter().find(|row| row[member] == value);
        found.unwrap_or_else(|| panic!("no {member} {value} in {finding}: {}", self.report[finding]))
    }

    #[track_caller]
    fn expect_program(&self, name: &str, processes: u64) {
        let programs = rows(&self.report, "programs").iter();
        let of_name =
            programs.filter(|p| Path::new(p["path"].as_str().unwrap()).file_name() == Some(name.as_ref()));
        let found: u64 = of_name.map(|p| p["processes"].as_u64().unwrap()).sum();
        assert_eq!(found, processes, "{name} in {}", self.report["programs"]);
    }

    fn trace(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.output.join("trace.strace")).unwrap()).into_owned()
    }
}

fn read_report(output: &Path) -> Value {
    serde_json::from_slice(&fs::read(output.join("report.json")).unwrap()).unwrap()
}

fn rows<'a>(report: &'a Value, list: &str) -> &'a [Value] {
    report[list].as_array().unwrap()
}

#[track_caller]
fn number(value: &Value, pointer: &str) -> u64 {
    let found = value.pointer(pointer).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("no number {pointer}"))
}

fn sum<'a>(values: impl IntoIterator<Item = &'a Value>, member: &str) -> u64 {
    values.into_iter().map(|value| value[member].as_u64().unwrap()).sum()
}

/// Checks the equations that docs/formats/profile.md promises for a report.
#[track_caller]
fn expect_sums(report: &Value) {
    let total = |name: &str| number(report, &format!("/totals/{name}"));
    let locations: Vec<&Value> = report["locations"].as_object().unwrap().values().collect();
    let elsewhere = ["no_file", "unknown", "bad"].map(|kind| total(&format!("elsewhere/{kind}")));
    assert_eq!(total("calls"), total("metadata") + total("data") + elsewhere.iter().sum::<u64>());
    assert_eq!(elsewhere[1], 0, "strace tells each descriptor");
    for member in ["metadata", "data", "bytes_read", "bytes_written"] {
        assert_eq!(sum(locations.iter().copied(), member), total(member), "{member}");
    }
    let by_call = report["totals"]["by_call"].as_object().unwrap();
    assert_eq!(by_call.values().map(|calls| calls.as_u64().unwrap()).sum::<u64>(), total("calls"));
    let operations = rows(report, "operations");
    for member in ["calls", "failed", "missing"] {
        assert_eq!(sum(operations, member), total(member), "operations: {member}");
    }
    for (location, row) in report["locations"].as_object().unwrap() {
        for class in ["metadata", "data"] {
            let of_cell =
                operations.iter().filter(|o| o["location"] == location.as_str() && o["class"] == class);
            assert_eq!(
                sum(of_cell, "calls"),
                row[class].as_u64().unwrap(),
                "operations: {location}, {class}"
            );
        }
    }
    // The integral of the rates is the number of calls.
    let step_s = report["metadata_rate"]["step_s"].as_f64().unwrap();
    let integral = |names: &[&str]| -> f64 {
        let point = |point: &Value| names.iter().map(|name| point[*name].as_f64().unwrap()).sum::<f64>();
        rows(report, "rate").iter().map(point).sum::<f64>() * step_s
    };
    let on_shared = sum(locations.iter().copied(), "on_shared") as f64;
    assert!((integral(&["metadata", "data"]) - on_shared).abs() < 0.5, "{on_shared}");
    assert!((integral(&["metadata", "elsewhere"]) - total("metadata") as f64).abs() < 0.5);
    let remaining = |launch: &str| number(report, &format!("/remaining/{launch}/metadata")) as f64;
    let looks = (report["duration_s"].as_f64().unwrap() - 4.0).max(0.0);
    assert!((integral(&["index"]) - remaining("index")).abs() < 1.0 + looks, "{}", remaining("index"));
    // Every line of the trace is a call, or a line of another known kind.
    let skipped = |name: &str| total(&format!("skipped/{name}"));
    let others = ["other_calls", "events", "resumed", "orphans", "truncated", "foreign"].map(skipped);
    assert_eq!(total("calls") - skipped("unfinished") + others.iter().sum::<u64>(), total("lines"));
    assert_eq!((others[3], others[4], others[5]), (0, 0, 0), "{}", report["totals"]["skipped"]);
}

/// A program that makes a known number of calls below its argument, through relative paths,
/// directory descriptors, duplicated descriptors and another working directory.
const COUNTED: &str = r#"
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct stat status;
    char name[4096], byte;
    if (argc != 2) return 2;
    for (int i = 0; i < 7; i++) {              /* 7, not there */
        snprintf(name, sizeof name, "%s/absent-%d", argv[1], i);
        stat(name, &status);
    }
    snprintf(name, sizeof name, "%s/file", argv[1]);
    for (int i = 0; i < 5; i++) {              /* 5 x (open, stat of a copy, 2 closes), 5 reads */
        int first = open(name, O_RDONLY), copy = i % 2 ? dup(first) : fcntl(first, F_DUPFD, 20);
        if (first < 0 || read(copy, &byte, 1) != 1) return 3;
        close(first);
        fstat(copy, &status);
        close(copy);
    }
    int directory = open(argv[1], O_RDONLY | O_DIRECTORY), before = open(".", O_RDONLY | O_DIRECTORY); /* 1 */
    fstatat(directory, "file", &status, AT_SYMLINK_NOFOLLOW); /* 1 */
    fstatat(directory, "./absent", &status, 0);               /* 1, not there */
    if (dup2(directory, 30) != 30) return 4;
    close(directory);                                         /* 1 */
    fchdir(30);                                               /* 1 */
    access("file", R_OK);                                     /* 1 */
    access("../known/absent", R_OK);                          /* 1, not there */
    pid_t child = fork();
    if (child == 0) {
        fstatat(30, "file", &status, 0);                      /* 1 */
        lstat("absent", &status);                             /* 1, not there */
        _exit(0);
    }
    waitpid(child, NULL, 0);
    fchdir(before);                                           /* elsewhere again */
    puts("counted");
    return 0;
}
"#;
const COUNTED_METADATA: u64 = 7 + 5 * 4 + 9;
const COUNTED_MISSING: u64 = 7 + 3;
const COUNTED_READS: u64 = 5;

/// Compiles the program to `counted`, dynamically or statically.
fn counted(fixture: &Fixture, options: &str) -> PathBuf {
    let (source, program) = (fixture.stage.file("counted.c", COUNTED), fixture.stage.path("counted"));
    fixture.stage.sh(&format!("cc -O1 {options} -o \"$1\" \"$2\""), &[&program, &source]).expect(0);
    let known = fixture.stage.dir("shared/known");
    fs::write(known.join("file"), "12345").unwrap();
    program
}

#[track_caller]
fn expect_counted(profiled: &Profiled, known: &Path, times: u64) {
    let row = profiled.row("directories", "path", known);
    let found = ["metadata", "missing", "data"].map(|member| row[member].as_u64().unwrap());
    assert_eq!(found, [times * COUNTED_METADATA, times * COUNTED_MISSING, times * COUNTED_READS], "{row}");
}

#[test]
fn a_shell_pipeline_is_counted_exactly_across_directories() {
    if !has("cc") {
        skip!("no C compiler");
    }
    let fixture = Fixture::new();
    let program = counted(&fixture, "");
    let known = fixture.shared.join("known");
    // Directly, from a subshell in another directory, through a pipe, in the background, and from a
    // nested shell.
    let script = r#"
        exec 3>&1 4<"$0"
        "$1" "$2/known" | cat
        (cd "$2" && "$1" known >&3)
        cd "$2/known" && "$1" . 2>&1 | (cd / && cat) && cd - >/dev/null
        "$1" "$2/known/../known" & wait
        cd "$2/.." && sh -c 'cd shared; exec "$1" ./known' sh "$1"
        read line <&4; echo "$line" >"$3/out"; cat <"$3/out" | tr a-z A-Z"#;
    let file = fixture.stage.file("input", "from a descriptor\n");
    let program = words(&[&"sh", &"-c", &script, &file, &program, &fixture.shared, &fixture.work]);
    let profiled = fixture.profile("report", &fixture.shared, &program);
    assert_eq!(profiled.ended.text(), format!("{}FROM A DESCRIPTOR\n", "counted\n".repeat(5)));
    // The shell enters the directory once, after a lookup.
    let row = profiled.row("directories", "path", &known);
    assert_eq!(number(row, "/missing"), 5 * COUNTED_MISSING, "{row}");
    assert_eq!(number(row, "/data"), 5 * COUNTED_READS, "{row}");
    let own = number(row, "/metadata") - 5 * COUNTED_METADATA;
    assert!((1..=4).contains(&own), "{own} calls of the shell: {row}");
    profiled.expect_program("counted", 10);
    profiled.expect_program("tr", 1);
    assert_eq!(profiled.report["locations"]["cwd"]["mode"], "read-write");
    assert_eq!(profiled.report["locations"]["shared"]["mode"], "read-only");
    assert_eq!(number(&profiled.report, "/locations/shared/bytes_read"), 5 * COUNTED_READS);
}

#[test]
fn a_static_program_is_traced_like_any_other() {
    if !has("cc") {
        skip!("no C compiler");
    }
    let fixture = Fixture::new();
    let program = counted(&fixture, "-static");
    let known = fixture.shared.join("known");
    let words_of_it = words(&[&program, &known]);
    let profiled = fixture.profile("report", &fixture.shared, &words_of_it);
    expect_counted(&profiled, &known, 1);
    profiled.expect_program("counted", 2);
    let loader =
        rows(&profiled.report, "searches").iter().find(|s| s["variable"].as_str().unwrap().contains("LD_"));
    assert!(loader.is_none(), "there is no loader: {loader:?}");
}

#[test]
fn busybox_is_many_programs_in_one() {
    let Some(busybox) = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new).into_iter().find(|p| p.exists())
    else {
        skip!("busybox is not installed (busybox-static)");
    };
    let fixture = Fixture::new();
    for number in 0..30 {
        fs::write(fixture.shared.join(format!("f{number:02}")), format!("line {number}\n")).unwrap();
    }
    let script =
        r#"cd "$1" && busybox find . -type f | busybox sort | busybox xargs busybox cat | busybox wc -l"#;
    let script = script.replace("busybox", busybox.to_str().unwrap());
    let program = words(&[&busybox, &"sh", &"-c", &script, &"sh", &fixture.shared]);
    let profiled = fixture.profile("report", &fixture.shared, &program);
    assert_eq!(profiled.ended.text().trim(), "30");
    let opened = rows(&profiled.report, "operations")
        .iter()
        .filter(|o| o["location"] == "shared" && ["open", "openat"].iter().any(|call| o["call"] == *call));
    // Each file, and the directory.
    assert_eq!(sum(opened, "calls"), 31);
    assert_eq!(rows(&profiled.report, "small_files").len(), 0);
}

#[test]
fn perl_searches_its_variable() {
    let bio = Path::new("/usr/share/perl5/Bio");
    if !has("perl") || !bio.join("SeqIO.pm").exists() {
        skip!("no BioPerl (bioperl)");
    }
    let mut fixture = Fixture::new();
    let (empty, library) = (fixture.stage.dir("shared/perl/empty"), fixture.stage.dir("shared/perl/lib"));
    fixture.stage.sh("cp -r \"$1\" \"$2\"", &[bio, &library]).expect(0);
    let mut list = empty.clone().into_os_string();
    list.push(":");
    list.push(&library);
    fixture.set("PERL5LIB", list);
    let input = fixture.stage.file("in.fa", ">one\nACGTACGTTTGA\n>two\nGGGCCCAATTAA\n");
    let script = "use strict; use Bio::SeqIO; use Bio::SearchIO; use Bio::AlignIO;
        my $in = Bio::SeqIO->new(-file => $ARGV[0], -format => 'fasta');
        while (my $s = $in->next_seq) { print $s->id, ' ', $s->revcom->seq, ' ', $s->translate->seq, \"\\n\" }";
    let program = words(&[&"perl", &"-e", &script, &input]);
    let profiled = fixture.profile("report", &fixture.shared, &program);
    assert_eq!(profiled.ended.text(), "one TCAAACGTACGT TYV*\ntwo TTAATTGGGCCC GPN*\n");
    profiled.expect_program("perl", 1);
    // Modules outside of Bio are searched in both directories without success.
    let search = profiled.row("searches", "variable", "PERL5LIB");
    assert_eq!(search["how"], "environment");
    for directory in [&empty, &library, &empty.join("Bio")] {
        let found = rows(search, "directories").iter().find(|d| d["path"] == directory.to_str().unwrap());
        assert!(found.is_some_and(|d| number(d, "/missing") >= 5), "{}: {search}", directory.display());
    }
    // Nothing was found in the empty directory.
    let missing =
        profiled.trace().lines().filter(|l| l.contains("/perl/empty/") && l.contains("ENOENT")).count();
    assert!(missing >= 50, "{missing}");
    let tree = &profiled.report["trees"][0];
    assert!(Path::new(tree["path"].as_str().unwrap()).starts_with(&fixture.shared), "{tree}");
    assert!(number(tree, "/files_opened") >= 40, "{tree}");
    fixture.expect_same_when_covered(&profiled, &program);
}

#[test]
fn blast_writes_where_it_works_and_reads_its_database() {
    if !has("makeblastdb") || !has("blastn") {
        skip!("no BLAST+ (ncbi-blast+)");
    }
    let mut fixture = Fixture::new();
    fixture.set("BLAST_USAGE_REPORT", "false");
    let bases = |number: u64| {
        trees::noise(300, number + 1).into_iter().map(|b| ["A", "C", "G", "T"][usize::from(b & 3)])
    };
    let sequence: String = (0..40).map(|n| format!(">s{n}\n{}\n", bases(n).collect::<String>())).collect();
    fs::write(fixture.work.join("db.fa"), &sequence).unwrap();
    let query: String = sequence.lines().take(2).map(|line| format!("{line}\n")).collect();
    fs::write(fixture.work.join("q.fa"), query).unwrap();
    let script = "makeblastdb -in db.fa -dbtype nucl -out db -logfile log &&
        perl -e 'print qx(blastn -query q.fa -db db -outfmt 6 -max_target_seqs 5)' | cut -f 1,2 | sort -u";
    // As in a job on a cluster, the working directory is on the shared file system.
    let program = words(&[&"sh", &"-c", &script]);
    let profiled = fixture.profile("report", fixture.work.parent().unwrap(), &program);
    assert!(profiled.ended.text().contains("s0\ts0"), "{}", profiled.ended.text());
    for name in ["makeblastdb", "blastn", "cut", "sort"] {
        profiled.expect_program(name, 1);
    }
    let cwd = &profiled.report["locations"]["cwd"];
    assert_eq!(cwd["mode"], "read-write", "{cwd}");
    assert_eq!(number(cwd, "/on_shared"), number(cwd, "/metadata") + number(cwd, "/data"));
    assert!(number(cwd, "/bytes_written") > 3_000 && number(cwd, "/bytes_read") > 3_000, "{cwd}");
    // Written by one program, read by the other.
    let row = profiled.row("programs", "path", fs::canonicalize("/usr/bin/blastn").unwrap());
    assert!(number(row, "/shared") > 0 && number(row, "/data") > 0, "{row}");
    let trace = profiled.trace();
    let opened = |flags: &str| {
        trace.lines().any(|l| l.contains("db.ndb\"") && l.contains(flags) && l.contains("openat("))
    };
    assert!(opened("O_RDONLY") && (opened("O_WRONLY") || opened("O_RDWR")));
    // No tree is proposed to which the program writes.
    assert_eq!(rows(&profiled.report, "trees").len(), 0, "{}", profiled.report["trees"]);
    let database = profiled.row("searches", "variable", "BLASTDB");
    assert_eq!(database["directories"][0]["path"], fixture.work.to_str().unwrap(), "{database}");
}

#[test]
fn the_threads_of_java_are_one_process() {
    let Ok(keytool) = fs::canonicalize("/usr/bin/keytool") else {
        skip!("no Java (default-jre-headless)");
    };
    let fixture = Fixture::new();
    let home = keytool.ancestors().nth(2).unwrap().to_owned();
    let options = "-alias a -keyalg EC -dname CN=a -validity 9 -storetype PKCS12 -storepass secret1";
    let script = format!(
        "rm -f keys; \"$1\" -genkeypair -keystore keys {options} 2>/dev/null &&
         \"$1\" -list -keystore keys -storepass secret1 2>/dev/null | grep -c PrivateKeyEntry"
    );
    let program = words(&[&"sh", &"-c", &script, &"sh", &keytool]);
    let profiled = fixture.profile("report", &home, &program);
    assert_eq!(profiled.ended.text(), "1\n");
    profiled.expect_program("keytool", 2);
    // The shell, rm, the two keytools, grep, and the shell that is the parent of one keytool.
    let processes = profiled.number("/totals/processes");
    let trace = profiled.trace();
    let threads: BTreeSet<&str> = trace.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(threads.len() as u64 >= processes + 6, "{} threads, {processes} processes", threads.len());
    assert!((5..=7).contains(&processes), "{processes}");
    let tree = profiled.row("trees", "path", &home);
    assert!(number(tree, "/files_opened") >= 5, "{tree}");
    assert_eq!(profiled.report["locations"]["shared"]["mode"], "read-only");
    fixture.expect_same_when_covered(&profiled, &program);
}

/// All ranks write one file, each its own records.
const TOGETHER: &str = r#"
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank, size;
    char record[4096];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    memset(record, 'a' + rank, sizeof record);
    int file = open(argv[1], O_WRONLY | O_CREAT, 0644);
    for (int i = 0; i < 8; i++)
        if (pwrite(file, record, sizeof record, (off_t)(i * size + rank) * sizeof record) != sizeof record) return 3;
    close(file);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("%d ranks\n", size);
    MPI_Finalize();
    return 0;
}
"#;

#[test]
fn ranks_that_write_one_file_are_found() {
    if let Some(reason) = why_no_openmpi() {
        skip!("{reason}");
    }
    let mut fixture = Fixture::new();
    for (name, value) in MPIRUN_VARIABLES {
        fixture.set(name, value);
    }
    let program = fixture.stage.mpi_program("mpicc", "together", TOGETHER);
    let file = fixture.shared.join("checkpoint");
    let mut command = words(&[&"mpirun", &"-n", &"4", &"--oversubscribe", &"--mca", &"btl", &"self,vader"]);
    command.extend(words(&[&"--mca", &"plm_rsh_agent", &"/bin/false"]));
    if is_root() {
        command.push("--allow-run-as-root".into());
    }
    command.extend(words(&[&program, &file]));
    let direct = fixture.stage.run(&mut fixture.direct_command(&command));
    if direct.code() != Some(0) {
        skip!("mpirun does not work here without Quell either: {}", direct.err);
    }
    let profiled = fixture.profile_to(0, "report", &fixture.shared, &command);
    assert_eq!(profiled.ended.text(), "4 ranks\n");
    let row = profiled.row("shared_writes", "path", &file);
    let found = ["writers", "writes", "record", "bytes_written"].map(|member| row[member].as_u64().unwrap());
    assert_eq!(found, [4, 32, 4096, 32 * 4096], "{row}");
    profiled.expect_program("together", 4);
    assert_eq!(profiled.report["locations"]["shared"]["mode"], "read-write");
    assert_eq!(profiled.report["locations"]["shared"]["metadata"], 8, "each opens and closes it");
}

#[test]
fn python_is_covered_after_it_has_written_its_caches() {
    let yaml = Path::new("/usr/lib/python3/dist-packages/yaml");
    let python = Path::new("/usr/bin/python3");
    if !python.exists() || !yaml.join("__init__.py").exists() {
        skip!("no Debian Python with YAML (python3-yaml)");
    }
    let fixture = Fixture::new();
    let environment = fixture.shared.join("env");
    let make =
        "/usr/bin/python3 -m venv --without-pip \"$1\" && cp -r \"$2\" \"$1\"/lib/python3*/site-packages &&
        rm -rf \"$1\"/lib/python3*/site-packages/yaml/__pycache__ && echo \"$1\"/lib/python3*/site-packages";
    let made = fixture.stage.sh(make, &[&environment, yaml]);
    if made.code() != Some(0) {
        skip!("python3 -m venv does not work here: {}", made.err);
    }
    let text = made.text();
    let packages = Path::new(text.trim());
    let script = "import json, yaml; print(json.dumps(yaml.safe_load('{a: [1, 2.5, yes], b: {c: null}}')))";
    let program = words(&[&environment.join("bin/python3"), &"-c", &script]);
    // The first start compiles the modules.
    let first = fixture.profile_to(0, "first", &fixture.shared, &program);
    assert_eq!(first.ended.text(), "{\"a\": [1, 2.5, true], \"b\": {\"c\": null}}\n");
    assert_eq!(rows(&first.report, "trees").len(), 0, "{}", first.report["trees"]);
    let refused = first.row("not_proposed", "path", &environment);
    assert!(refused["why"].as_str().unwrap().contains("yaml/__pycache__"), "{refused}");
    assert_eq!(refused["only_bytecode"], true);
    assert_eq!(first.report["verdict"]["outcome"], "nothing-proposed");
    let again = &first.report["next"][0];
    assert!(again["command"].as_str().unwrap().starts_with("quell profile -o "), "{again}");
    // The commands of the guide work although nothing is proposed.
    let config = first.output.join("quell.toml");
    let run: [&dyn AsRef<OsStr>; 3] = [&"run", &"--config", &config];
    let ended = fixture.stage.run(&mut fixture.quell(&run, &program)).expect(0);
    assert_eq!(ended.text(), first.ended.text());
    assert!(ended.err.contains("has no [[tree]]"), "{}", ended.err);
    let strict: [&dyn AsRef<OsStr>; 4] = [&"run", &"--strict", &"--config", &config];
    fixture.stage.run(&mut fixture.quell(&strict, &program)).expect(2).says("has no [[tree]]");
    // The second start finds the bytecode.
    let second = fixture.profile("second", &fixture.shared, &program);
    assert_eq!(rows(&second.report, "not_proposed").len(), 0);
    let tree = second.row("trees", "path", &environment);
    assert!(number(tree, "/opens") >= 15 && number(tree, "/missing") > 0, "{tree}");
    assert!(number(tree, "/remaining/index/metadata") > number(tree, "/remaining/boot/metadata"));
    let search = second.row("searches", "variable", "PYTHONPATH (sys.path)");
    let directories = rows(search, "directories").iter();
    let within = directories.filter(|d| Path::new(d["path"].as_str().unwrap()).starts_with(&environment));
    assert!(within.count() > 0, "{search}");
    assert!(packages.join("yaml/__pycache__").is_dir());
    fixture.expect_same_when_covered(&second, &program);
}

#[test]
fn created_and_reread_files_are_found() {
    if !has("perl") {
        skip!("no perl");
    }
    let fixture = Fixture::new();
    for name in ["table", "module"] {
        fs::write(fixture.shared.join(name), vec![7; 100_000]).unwrap();
    }
    // One process reads the table five times; five processes read the module once each.
    let script = r#"
        mkdir "$1/many" && for n in $(seq 150); do echo "$n" >"$1/many/$n"; done
        perl -e 'for (1 .. 5) { open my $f, "<", $ARGV[0]; local $/; print length <$f>, "\n" }' "$1/table"
        for n in 1 2 3 4 5; do cat "$1/module"; done | wc -c
        rm -r "$1/many""#;
    let program = words(&[&"sh", &"-c", &script, &"sh", &fixture.shared]);
    let profiled = fixture.profile("report", &fixture.shared, &program);
    let many = profiled.row("small_files", "directory", fixture.shared.join("many"));
    assert_eq!(
        (number(many, "/files"), number(many, "/bytes_written")),
        (150, 9 * 2 + 90 * 3 + 51 * 4),
        "{many}"
    );
    let table = profiled.row("rereads", "path", fixture.shared.join("table"));
    assert_eq!(["opens", "processes", "bytes_read"].map(|m| table[m].as_u64().unwrap()), [5, 1, 500_000]);
    assert_eq!((&table["times"], rows(&profiled.report, "rereads").len()), (&Value::from(5.0), 1));
    assert_eq!(number(&profiled.report, "/remaining/direct/bytes_read"), 200_000);
    assert_eq!(number(&profiled.report, "/totals/shared/bytes_read"), 1_000_000);
}

#[test]
fn exit_codes_and_signals_are_the_programs() {
    let fixture = Fixture::new();
    fs::write(fixture.shared.join("file"), "read\n").unwrap();
    for (name, end, code) in [
        ("three", "exit 3", 3),
        ("killed", "kill -KILL $$", 128 + 9),
        ("terminated", "kill -TERM $$", 128 + 15),
        ("crashed", "kill -SEGV $$", 128 + 11),
    ] {
        let program =
            words(&[&"sh", &"-c", &format!("cat \"$1\"; {end}"), &"sh", &fixture.shared.join("file")]);
        let plain = fixture.stage.run(&mut fixture.direct_command(&program));
        assert_eq!(plain.code().unwrap_or_else(|| 128 + plain.status.signal().unwrap()), code);
        let profiled = fixture.profile_to(code, name, &fixture.shared, &program);
        assert_eq!(profiled.ended.text(), "read\n");
        profiled.expect_program("cat", 1);
        assert_eq!(profiled.number("/locations/shared/bytes_read"), 5);
    }
}

#[test]
fn a_program_that_is_not_there_leaves_nothing() {
    let fixture = Fixture::new();
    for program in ["/not/there", "no-such-program-anywhere"] {
        let (mut command, output) = fixture.profiling("report", &fixture.shared, &words(&[&program]));
        fixture.stage.run(&mut command).expect(127).says(program);
        assert!(!output.exists(), "{program}");
    }
}

#[test]
fn calls_before_an_interruption_are_reported() {
    let fixture = Fixture::new();
    fs::write(fixture.shared.join("file"), "read\n").unwrap();
    for (name, signal) in [("int", Signal::INT), ("term", Signal::TERM)] {
        // The signal must also end a child of the program.
        let script = "cat \"$1\"; sleep 600 & echo ready; wait";
        let program = words(&[&"sh", &"-c", &script, &"sh", &fixture.shared.join("file")]);
        let (mut command, output) = fixture.profiling(name, &fixture.shared, &program);
        let mut running = fixture.stage.start(&mut command);
        running.wait_for_output("ready");
        running.signal(signal);
        running.wait().expect(130);
        let report = read_report(&output);
        expect_sums(&report);
        assert!(report["notes"][0].as_str().unwrap().contains("interrupted"), "{}", report["notes"]);
        assert_eq!(number(&report, "/locations/shared/bytes_read"), 5);
        assert!(output.join("report.html").is_file());
        fixture.stage.expect_nothing_left();
    }
}

#[test]
fn a_comparison_runs_the_program_twice() {
    let fixture = Fixture::new();
    let output = fixture.stage.path("report");
    let options: [&dyn AsRef<OsStr>; 5] = [&"profile", &"-q", &"--compare", &"-o", &output];
    let program = words(&[&"sh", &"-c", &"echo once >>log; exit 4"]);
    fixture.stage.run(&mut fixture.quell(&options, &program)).expect(4);
    assert_eq!(fs::read_to_string(fixture.work.join("log")).unwrap(), "once\nonce\n");
    let report = read_report(&output);
    expect_sums(&report);
    let tracing = &report["tracing"];
    assert_eq!(
        (tracing["how"].as_str(), tracing["exit_code"].as_i64()),
        (Some("measured"), Some(4)),
        "{tracing}"
    );
}

#[test]
fn reports_get_the_next_free_name_and_are_private() {
    let fixture = Fixture::new();
    for name in ["quell-profile", "quell-profile.2", "quell-profile.3"] {
        // The mode of the report must not depend on the umask.
        let mut command = fixture.in_environment(fixture.stage.command("sh"));
        command.args(["-c", "umask 000; exec \"$@\"", "sh"]).arg(crate::stage::quell());
        let ended = fixture.stage.run(command.args(["profile", "--json", "-q", "--", "true"])).expect(0);
        let output = fixture.work.join(name);
        assert_eq!(output.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(ended.json(), read_report(&output), "printed and written are the same");
        let expected =
            ["operations.csv", "report.html", "report.json", "timeline.svg", "locations.png", "mountinfo"];
        for file in expected.iter().chain(&["trace.strace"]) {
            assert!(output.join(file).is_file(), "{name}/{file}");
        }
    }
}

#[test]
fn a_saved_trace_makes_the_same_report() {
    let fixture = Fixture::new();
    let tree = fixture.stage.dir("shared/env/bin");
    for number in 0..40 {
        fs::write(tree.join(format!("part{number}")), "part\n").unwrap();
    }
    fs::create_dir_all(fixture.shared.join("env/lib")).unwrap();
    fs::write(fixture.shared.join("env/lib/x"), "x\n").unwrap();
    let script = r#"for n in $(seq 0 39); do test -e "$1/bin/no$n"; cat "$1/bin/part$n" "$1/lib/x"; done | sort | uniq -c
        ls -l "$1/bin" >list; find "$1" -type f | wc -l"#;
    let program = words(&[&"sh", &"-c", &script, &"sh", &fixture.shared.join("env")]);
    let profiled = fixture.profile("report", &fixture.shared, &program);
    let again = fixture.stage.path("again");
    let mut command = fixture.in_environment(fixture.stage.quell());
    command.args(["profile", "-q", "-o"]).arg(&again).arg("--shared").arg(&fixture.shared);
    command.arg("--import").arg(profiled.output.join("trace.strace"));
    command.arg("--mounts").arg(profiled.output.join("mountinfo")).arg("--cwd").arg(&fixture.work);
    // The traces are read from another directory, and the report must be the same.
    fixture.stage.run(command.current_dir("/")).expect(0);
    let (first, second) = (&profiled.report, &read_report(&again));
    expect_sums(second);
    for member in [
        "lines",
        "calls",
        "metadata",
        "data",
        "elsewhere",
        "failed",
        "missing",
        "bytes_read",
        "bytes_written",
    ] {
        assert_eq!(first["totals"][member], second["totals"][member], "{member}");
    }
    for member in ["processes", "by_call", "skipped"] {
        assert_eq!(first["totals"][member], second["totals"][member], "{member}");
    }
    for location in ["cwd", "tmp", "shared", "local"] {
        for member in ["metadata", "data", "bytes_read", "bytes_written", "missing", "on_shared", "mode"] {
            assert_eq!(
                first["locations"][location][member], second["locations"][location][member],
                "{location}: {member}"
            );
        }
    }
    for member in ["small_files", "shared_writes", "rereads", "not_proposed"] {
        assert_eq!(first[member], second[member], "{member}");
    }
    let tree =
        |report: &Value| ["path", "metadata", "missing", "opens"].map(|m| report["trees"][0][m].clone());
    assert_eq!(tree(first), tree(second));
    assert_eq!(first["trees"][0]["path"], fixture.shared.join("env").to_str().unwrap(), "{}", first["trees"]);
    assert_eq!((&second["tracing"], rows(second, "traces").len()), (&Value::Null, 1));
    // The traced program ran longer, and a client caches entries for a second.
    let duration = |report: &Value| report["duration_s"].as_f64().unwrap();
    assert!(duration(second) >= duration(first));
    if duration(second) < 1.0 {
        assert_eq!(first["remaining"], second["remaining"]);
    }
}
