//! Compares the predictions of `quell profile` with the counters of real MooseFS clients: the
//! metadata operations of a program on a node with empty caches, directly, with its tree covered by
//! an index, and with a boot image.
//!
//! Needs root, for the network namespaces of `testbed/moosefs`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::skip;
use crate::stage::{Ended, Stage, has, is_root, views, words};
use crate::testbed::Testbed;

/// The counters of a MooseFS client for which each count is one message to the metadata server.
const OF_THE_SERVER: [&str; 19] = [
    "lookup.master",
    "getattr",
    "setattr",
    "access",
    "statfs",
    "open",
    "create",
    "mknod",
    "mkdir",
    "unlink",
    "rmdir",
    "symlink",
    "rename",
    "link",
    "opendir",
    "readdir.with_attrs+",
    "readdir.with_attrs",
    "readdir.without_attrs",
    "readlink.master",
];
/// Allowed deviation from the prediction, in percent.
const PER_CENT: u64 = 5;
/// Allowed deviation of small numbers: loading an index takes one operation more or less.
const FEW: u64 = 4;
/// Allowed deviation for each second by which a run is longer or shorter than the traced one. A
/// client caches directories and attributes for a second, and requests them again if they are still
/// used: the five directories on the path to the library, those of a package and its bytecode
/// cache, and `bin`, each with a lookup and a getattr.
const AGAIN_A_SECOND: u64 = 2 * 8;
/// The same with a covered tree, where only the path to it and the check are requested again.
const AGAIN_A_SECOND_COVERED: u64 = 4;
/// Number of attempts until a run is within the limits. On a busy machine the pauses differ between
/// runs, and so do the directories that a client requests again.
const TRIES: usize = 3;
/// Allowed deviation if almost all remaining operations load the index and the image.
const FEW_OF_A_BOOT: u64 = 6;

/// Copies the interpreter and its library, like an environment on a shared file system.
const INSTALL: &str = r#"
    set -e
    library=$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
    mkdir -p "$1/bin" "$1/lib"
    cp "$(readlink -f /usr/bin/python3)" "$1/bin/python3"
    tar -C "${library%/*}" -c --exclude test --exclude 'config-*' --exclude dist-packages --exclude idlelib \
        --exclude lib2to3 "${library##*/}" | tar -C "$1/lib" -x --no-same-owner
    echo "${library##*/}""#;

/// Imports all available modules of the standard library: hundreds of files, and lookups of as many
/// absent names.
const IMPORTS: &str = r#"
import importlib, pkgutil, sys, warnings
warnings.simplefilter("ignore")
done = 0
skipped = ("antigravity", "this", "idlelib", "lib2to3", "test", "tkinter", "turtle", "turtledemo")
names = [n for n in sorted(sys.stdlib_module_names) if not n.startswith("_") and n not in skipped]
for name in names:
    try:
        module = importlib.import_module(name)
    except ImportError:
        continue
    done += 1
    for part in sorted(m.name for m in pkgutil.iter_modules(getattr(module, "__path__", []))):
        if not part.startswith("_"):
            try:
                importlib.import_module(name + "." + part)
                done += 1
            except ImportError:
                pass
print(done, "modules")
"#;

struct Program {
    name: &'static str,
    command: Vec<OsString>,
    /// Whether the program sleeps most of the time, so that two may run at the same time.
    sleeps: bool,
}

fn programs(stage: &Stage, environment: &Path, library: &Path) -> Vec<Program> {
    let script = stage.file("imports.py", IMPORTS);
    let python = environment.join("bin/python3");
    let program = |name, command, sleeps| Program { name, command, sleeps };
    let shell = |script: &str, argument: &Path| words(&[&"sh", &"-c", &script, &"sh", &argument]);
    vec![
        program("imports", words(&[&python, &script]), false),
        program("ls -lR", words(&[&"ls", &"-lR", &environment]), false),
        program("find -printf", words(&[&"find", &environment, &"-printf", &"%P %y %m %s %T@ %l\n"]), false),
        program(
            "many processes",
            shell("for i in 1 2 3 4 5 6 7 8; do \"$1\" -c 'import email, json, http.client'; done", &python),
            false,
        ),
        program(
            "read all",
            shell("find \"$1\" -type f | sort | xargs cat | cksum", &library.join("encodings")),
            false,
        ),
        program(
            "a file each 2 s",
            shell(
                "for f in abc ast bdb cmd csv; do cat \"$1/$f.py\"; test -e \"$1/$f\"; test -e \"$1/no\"; sleep 2; done",
                library,
            ),
            true,
        ),
    ]
}

/// A measured run of a command.
pub struct Measured {
    pub ended: Ended,
    /// The messages to the metadata server.
    pub operations: u64,
    seconds: f64,
    asked: BTreeMap<String, u64>,
}

/// Runs a command on a node with empty caches.
pub fn measure(testbed: &Testbed, node: &str, stage: &Stage, command: &mut Command) -> Measured {
    // The stamps of recent checks are removed, too, as on a node that has not run the program
    // before.
    for entry in fs::read_dir(stage.runtime()).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b"checked-") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let (mut ended, mut seconds) = (None, 0.0);
    let asked = testbed.requests_of(node, || {
        let begun = Instant::now();
        ended = Some(stage.run(command).expect(0));
        seconds = begun.elapsed().as_secs_f64();
    });
    let operations = OF_THE_SERVER.iter().filter_map(|name| asked.get(*name)).sum();
    Measured { ended: ended.unwrap(), operations, seconds, asked }
}

/// The allowed deviation of a run from its prediction.
struct Limit {
    few: u64,
    again_a_second: u64,
}

const DIRECT: Limit = Limit { few: FEW, again_a_second: AGAIN_A_SECOND };
const COVERED: Limit = Limit { few: FEW, again_a_second: AGAIN_A_SECOND_COVERED };
const BOOTED: Limit = Limit { few: FEW_OF_A_BOOT, again_a_second: AGAIN_A_SECOND_COVERED };

/// Measures until a run is within the limits, at most `TRIES` times. Returns the last run.
#[track_caller]
fn expect_near(
    what: &str,
    estimated: &serde_json::Value,
    estimated_s: f64,
    bar: &Limit,
    mut measure: impl FnMut() -> Measured,
) -> Measured {
    let estimated = estimated.as_u64().unwrap();
    let mut runs = Vec::new();
    for _ in 0..TRIES {
        let run = measure();
        let difference_s = (estimated_s - run.seconds).abs();
        // A listing is cached for a second. Directories that the program opens later are looked up:
        // in the worst case all that it opens during the difference in time.
        let opened_a_second = run.asked.get("opendir").map_or(0.0, |opened| *opened as f64 / run.seconds);
        let by_time = (difference_s * (bar.again_a_second as f64 + opened_a_second)) as u64;
        let allowed = (run.operations * PER_CENT / 100).max(bar.few + by_time);
        println!("{what}: {estimated} operations estimated, {} measured", run.operations);
        if estimated.abs_diff(run.operations) <= allowed {
            return run;
        }
        runs.push(format!("{} in {} s: {:?}", run.operations, run.seconds, run.asked));
    }
    panic!("{what}: {estimated} operations estimated for {estimated_s} s, measured:\n{}", runs.join("\n"));
}

#[test]
fn the_estimate_of_remaining_requests_agrees_with_a_client() {
    if !is_root() || !has("mfsmaster") {
        skip!("a MooseFS in network namespaces needs root and Debian's moosefs packages");
    }
    if !Path::new("/usr/bin/python3").exists() {
        skip!("Debian's python3 is not installed");
    }
    let stage = Stage::new();
    let testbed = Testbed::start(&stage);
    // Below other directories, as software usually is.
    let directory = Path::new("site/software/env");
    let installed = stage.sh(INSTALL, &[&testbed.node("1").join(directory)]).expect(0).text();
    let at = |node: &str| -> (PathBuf, PathBuf) {
        let environment = testbed.node(node).join(directory);
        let library = environment.join("lib").join(installed.trim());
        (environment, library)
    };
    let (environment, library) = at("2");
    let there = programs(&stage, &at("1").0, &at("1").1);
    for (program, elsewhere) in programs(&stage, &environment, &library).into_iter().zip(there) {
        let Program { name, command, sleeps } = program;
        let direct_command = |command: &[OsString]| {
            let mut plain = stage.command(&command[0]);
            plain.args(&command[1..]).env("PYTHONDONTWRITEBYTECODE", "1").current_dir("/");
            plain
        };
        let quell = |words: &[&str], file: &Path, command: &[OsString]| {
            let mut quell = stage.quell();
            quell.args(words).arg(file).arg("--").args(command);
            quell.env("PYTHONDONTWRITEBYTECODE", "1").current_dir("/");
            quell
        };
        // Reports and indexes lie next to the software, as on a cluster.
        let output = testbed.node("2").join(format!("site/{}", name.replace(' ', "-")));
        // With --compare, the cost of tracing is known, and with it the speed of the untraced
        // program, on a busy machine, too.
        let compare =
            if sleeps { &["profile", "-q", "-o"][..] } else { &["profile", "-q", "--compare", "-o"] };
        let profile = || stage.run(&mut quell(compare, &output, &command)).expect(0).out;
        let measure_direct = || match sleeps {
            true => measure(&testbed, "1", &stage, &mut direct_command(&elsewhere.command)),
            false => measure(&testbed, "2", &stage, &mut direct_command(&command)),
        };
        let (profiled, mut first) = if sleeps {
            std::thread::scope(|scope| {
                let direct = scope.spawn(measure_direct);
                (profile(), Some(direct.join().unwrap()))
            })
        } else {
            (profile(), None)
        };
        let report: serde_json::Value =
            serde_json::from_slice(&fs::read(output.join("report.json")).unwrap()).unwrap();
        let seconds = report["duration_s"].as_f64().unwrap();
        assert_eq!(report["trees"][0]["path"], environment.to_str().unwrap(), "{name}: {}", report["trees"]);
        assert_eq!(report["trees"].as_array().unwrap().len(), 1, "{name}");
        let remaining = &report["remaining"];
        let measure_again = || first.take().unwrap_or_else(measure_direct);
        let estimated = &remaining["direct"]["metadata"];
        let direct = expect_near(&format!("{name}, direct"), estimated, seconds, &DIRECT, measure_again);
        let times = if sleeps { 1 } else { 2 };
        assert!(profiled == direct.ended.out.repeat(times), "{name}: another output when traced");

        let config = output.join("quell.toml");
        let run = ["run", "-q", "--strict", "--check", "sample", "--config"];
        stage.run(&mut quell(&run, &config, &words(&[&"true"]))).expect(0);
        assert!(output.join("env.quell").is_file(), "the index is made where quell.toml says");
        let measure_covered = || measure(&testbed, "2", &stage, &mut quell(&run, &config, &command));
        let covered = if views().contains(&"overlay") {
            let estimated = &remaining["index"]["metadata"];
            expect_near(&format!("{name}, index"), estimated, seconds, &COVERED, measure_covered)
        } else {
            measure_covered()
        };
        // Directories have other sizes in a view.
        assert!(
            name.contains("ls") || name.contains("find") || covered.ended.out == direct.ended.out,
            "{name}"
        );
        if !views().contains(&"overlay") {
            println!("SKIPPED: the estimate is for the view overlay, which does not work here");
            continue;
        }

        let (index, image) = (output.join("env.quell"), output.join("app.boot"));
        let mut record = stage.quell();
        record.args(["record", "-q", "-i"]).arg(&index).arg("-o").arg(&image).arg("--").args(&command);
        let recorded = stage.run(record.env("PYTHONDONTWRITEBYTECODE", "1").current_dir("/"));
        if name.contains("ls") || name.contains("find") {
            // These programs open no file, so a boot image would be empty.
            recorded.expect(3).says("nothing was recorded");
            continue;
        }
        recorded.expect(0);
        let mut run = stage.quell();
        run.args(["run", "-q", "--strict", "--check", "sample", "-i"])
            .arg(&index)
            .arg("-b")
            .arg(&image)
            .arg("--")
            .args(&command);
        run.env("PYTHONDONTWRITEBYTECODE", "1").current_dir("/");
        let measure_hot = || measure(&testbed, "2", &stage, &mut run);
        let estimated = &remaining["boot"]["metadata"];
        let hot = expect_near(&format!("{name}, boot"), estimated, seconds, &BOOTED, measure_hot);
        assert!(hot.ended.out == covered.ended.out, "{name}: another output from the image");
    }
    drop(testbed);
    stage.expect_nothing_left();
}
