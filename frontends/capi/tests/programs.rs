//! Compiles C programs against the header, links them with the shared and with the static library,
//! and checks the promises of the header; under valgrind if it is installed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The libraries that a program linked with the static library also needs.
const STATIC: [&str; 3] = ["-lpthread", "-ldl", "-lm"];

/// Returns the directory of the library, which cargo builds beside this test.
fn libraries() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let beside = own.parent().unwrap();
    let found =
        [Some(beside), beside.parent()].into_iter().flatten().find(|dir| dir.join("libquell.so").exists());
    found.unwrap_or_else(|| panic!("no libquell.so in {}", beside.display())).to_path_buf()
}

fn crate_directory() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a command that must succeed, and returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, text(&output));
    text(&output)
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Linked {
    Shared,
    Static,
}

fn compile(source: &str, into: &Path, linked: Linked) -> PathBuf {
    let program = into.join(format!("{}-{linked:?}", Path::new(source).file_stem().unwrap().display()));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread"]);
    cc.arg("-I")
        .arg(crate_directory().join("include"))
        .arg("-o")
        .arg(&program)
        .arg(crate_directory().join(source));
    match linked {
        Linked::Shared => cc.arg("-L").arg(libraries()).arg("-lquell"),
        Linked::Static => cc.arg(libraries().join("libquell.a")).args(STATIC),
    };
    run(&mut cc);
    program
}

fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", libraries());
    command
}

#[test]
fn the_header_is_c_and_c_plus_plus() {
    for (compiler, standard, language) in [("cc", "-std=c99", "c"), ("c++", "-std=c++11", "c++")] {
        let mut check = Command::new(compiler);
        check.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-x", language]);
        run(check.arg(crate_directory().join("include/quell.h")).args(["-Wno-pragma-once-outside-header"]));
    }
}

#[test]
fn the_c_api_conforms_with_either_linking() {
    let temp = tempfile::tempdir().unwrap();
    for linked in [Linked::Shared, Linked::Static] {
        let store = temp.path().join(format!("{linked:?} store"));
        std::fs::create_dir(&store).unwrap();
        run(command(compile("tests/promises.c", temp.path(), linked)).arg(&store));
    }
}

#[test]
fn memory_is_used_correctly() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("SKIPPED: valgrind is not installed");
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let program = compile("tests/promises.c", temp.path(), Linked::Shared);
    let store = temp.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let mut watched = command("valgrind");
    watched.args(["--quiet", "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
    watched.args(["--child-silent-after-fork=yes", "--fair-sched=yes"]);
    run(watched.arg(program).arg(&store));
}

#[test]
fn batches_are_committed_or_aborted_with_either_linking() {
    let temp = tempfile::tempdir().unwrap();
    for linked in [Linked::Shared, Linked::Static] {
        let store = temp.path().join(format!("{linked:?} store"));
        quell_batch::BatchStore::create(&store).unwrap();
        let directory = temp.path().join(format!("{linked:?}"));
        std::fs::create_dir(&directory).unwrap();
        let program = compile("tests/batches.c", temp.path(), linked);
        run(command(program).arg(&store).current_dir(directory));
    }
    if rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: root can read everything");
    }
}

#[test]
fn the_example_creates_files_in_a_batch() {
    let temp = tempfile::tempdir().unwrap();
    let program = compile("examples/creates.c", temp.path(), Linked::Shared);
    let store = temp.path().join("store");
    quell_batch::BatchStore::create(&store).unwrap();
    let output = run(command(program).arg(&store).arg("1000"));
    assert!(output.starts_with("1000 entries published, 0 conflicts, "), "{output}");
}

/// Installs this library in the home directory `home`, as `make install PREFIX=$HOME/.local` does.
fn install(home: &Path) {
    let mut make = Command::new("make");
    make.args(["--no-print-directory", "install-library"]).current_dir(crate_directory().join("../.."));
    make.arg(format!("libquell={}", libraries().join("libquell").display()));
    run(make.arg(format!("PREFIX={}", home.join(".local").display())));
}

#[test]
fn the_commands_of_the_guide_work() {
    let guide = std::fs::read_to_string(crate_directory().join("../../docs/guides/library.md")).unwrap();
    let block = |begin: &str| guide.split(begin).nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let commands = block("-->\n```\n");
    let home = tempfile::tempdir().unwrap();
    install(home.path());
    std::fs::write(home.path().join("program.c"), block("```c\n")).unwrap();
    // The program can be run again.
    for _ in 0..2 {
        let mut shell = Command::new("sh");
        run(shell.args(["-e", "-c", commands]).env("HOME", home.path()).current_dir(home.path()));
    }
    assert!(home.path().join("store/checkpoint.container").exists());
    let python = home.path().join(".local/share/quell/python/quell");
    assert!(python.join("__init__.py").exists() && python.join("libquell.so").exists());
}

#[test]
fn several_processes_write_one_file() {
    let temp = tempfile::tempdir().unwrap();
    let program = compile("examples/checkpoint.c", temp.path(), Linked::Shared);
    let store = temp.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let output = run(command(program).arg(&store).arg("5"));
    assert_eq!(output, format!("5 processes wrote {} bytes\n", 5 * 16 * 47008));
}

#[test]
fn records_are_written_and_read_both_ways() {
    let temp = tempfile::tempdir().unwrap();
    let program = compile("examples/nto1.c", temp.path(), Linked::Shared);
    for mode in ["--quell", "--posix"] {
        let directory = temp.path().join(mode);
        std::fs::create_dir(&directory).unwrap();
        let output = run(command(&program).args([mode.as_ref(), directory.as_os_str()]).args([
            "--processes",
            "3",
            "--mib",
            "3",
        ]));
        for wanted in ["write_mib_s", "read_mib_s", "read_open_ms"] {
            assert!(output.contains(wanted), "{output}");
        }
    }
}

#[test]
fn the_shared_library_has_a_soname_and_does_not_link_fuse() {
    let library = libraries().join("libquell.so");
    let needed = run(Command::new("readelf").arg("-d").arg(&library));
    assert!(needed.contains("soname: [libquell.so]"), "{needed}");
    assert!(!needed.to_lowercase().contains("fuse"), "{needed}");
    let symbols = run(Command::new("nm").arg("--defined-only").arg(&library));
    assert!(symbols.contains("quell_pwrite"), "no symbols: {library:?}");
    let fuse: Vec<&str> =
        symbols.lines().filter(|line| line.contains("fuser") || line.contains("quell_fuse")).collect();
    assert!(fuse.is_empty(), "{fuse:?}");
    // The library exports only the functions of the header.
    let header = std::fs::read_to_string(crate_directory().join("include/quell.h")).unwrap();
    let shown = run(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(&library));
    let shown: Vec<&str> = shown.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    for name in &shown {
        assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
    }
    assert!(shown.len() > 20, "{shown:?}");
}
