//! The interfaces of blobs for C, C++ and Python: programs that use a store in a directory, and
//! through a server.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::skip;
use crate::stage::{Running, Stage, checkout, eventually, has, quell, words};

/// Returns the directory of the library, which is beside the binary, or `None` if a test cannot
/// run.
pub fn libraries(program: &str) -> Option<PathBuf> {
    let directory = quell().parent()?.to_path_buf();
    if !directory.join("libquellblob.so").exists() {
        println!("SKIPPED: no libquellblob.so beside the binary");
        return None;
    }
    if !has(program) {
        println!("SKIPPED: no {program}");
        return None;
    }
    Some(directory)
}

/// The guide to blobs.
pub const GUIDE: &str = "docs/guides/blobs.md";

/// Returns the first example in a language of a document.
pub fn example(document: &str, language: &str) -> String {
    let document = std::fs::read_to_string(checkout().join(document)).unwrap();
    let example =
        document.split(&format!("```{language}\n")).nth(1).and_then(|rest| rest.split("```").next());
    example.expect("the document has an example").to_string()
}

impl Stage {
    /// Compiles a program and links it with the library of blobs.
    fn blob_program(&self, libraries: &Path, name: &str, source: &str) -> PathBuf {
        self.file("quell_blob.h", include_str!("../../frontends/blob-capi/include/quell_blob.h"));
        self.file("quell_blob.hpp", include_str!("../../frontends/blob-capi/include/quell_blob.hpp"));
        self.linked_program((libraries, "quellblob"), name, source)
    }

    /// Compiles a program in C, or in C++ if its name ends with `.cpp`, with all warnings, and
    /// links it with a shared library, given by its directory and its name. Its headers are in the
    /// directory of the stage.
    pub fn linked_program(&self, (libraries, library): (&Path, &str), name: &str, source: &str) -> PathBuf {
        let (source, program) = (self.file(name, source), self.path(format!("{name}.program")));
        let (compiler, standard) =
            if name.ends_with(".cpp") { ("c++", "-std=c++17") } else { ("cc", "-std=gnu11") };
        let mut command = self.command(compiler);
        command.args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread", "-I."]);
        command.arg("-o").args([&program, &source]).arg("-L").arg(libraries).arg(format!("-l{library}"));
        self.run(&mut command).expect(0);
        program
    }

    pub fn with_library(&self, libraries: &Path, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.command(program);
        command.env("LD_LIBRARY_PATH", libraries);
        command
    }

    /// Returns the command that starts Python with the package of this checkout.
    pub fn with_package(&self, libraries: &Path, python: &str) -> Command {
        let mut command = self.with_library(libraries, python);
        command.env("PYTHONPATH", checkout().join("frontends/python")).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Starts a server of a store, and waits until it serves.
    pub fn blob_server(&self, store: &Path) -> Running {
        let mut command = self.quell();
        let server = self.start(command.args(words(&[&"blob", &"serve", &store, &"--json"])));
        assert!(eventually(|| server.out().ends_with('\n')), "{}", server.err());
        server
    }

    /// Runs a program with the location of an empty store in a directory, and of one on a server.
    fn run_both(&self, command: impl Fn() -> Command) {
        self.run(command().arg(self.path("in a directory"))).expect(0);
        let store = self.path("served");
        let server = self.blob_server(&store);
        self.run(command().arg(format!("unix:{}/socket", store.display()))).expect(0);
        server.signal(Signal::TERM);
        server.wait().expect(0);
        for store in ["in a directory", "served"] {
            self.run(self.quell().args(words(&[&"blob", &"fsck", &self.path(store)]))).expect(0);
        }
    }
}

#[test]
fn the_c_library_keeps_its_promises() {
    let Some(libraries) = libraries("cc") else { return };
    let stage = Stage::new();
    let program = stage.blob_program(&libraries, "cases.c", include_str!("blob_cases.c"));
    stage.run_both(|| stage.with_library(&libraries, &program));
}

#[test]
fn the_c_plus_plus_header_keeps_its_promises() {
    let Some(libraries) = libraries("c++") else { return };
    let stage = Stage::new();
    let program = stage.blob_program(&libraries, "cases.cpp", include_str!("blob_cases.cpp"));
    stage.run_both(|| stage.with_library(&libraries, &program));
}

#[test]
fn the_c_library_uses_memory_correctly() {
    check_memory("cc", "cases.c", include_str!("blob_cases.c"));
}

#[test]
fn the_c_plus_plus_header_uses_memory_correctly() {
    check_memory("c++", "cases.cpp", include_str!("blob_cases.cpp"));
}

/// Runs a program under valgrind.
fn check_memory(compiler: &str, name: &str, source: &str) {
    let Some(libraries) = libraries(compiler) else { return };
    if !has("valgrind") {
        skip!("no valgrind");
    }
    let stage = Stage::new();
    let program = stage.blob_program(&libraries, name, source);
    let mut watched = stage.with_library(&libraries, "valgrind");
    watched.args(["--quiet", "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
    watched.args(["--child-silent-after-fork=yes", "--fair-sched=yes"]).arg(program).arg(stage.path("store"));
    stage.run(&mut watched).expect(0);
}

#[test]
fn the_header_is_c_and_c_plus_plus() {
    let Some(_) = libraries("c++") else { return };
    let stage = Stage::new();
    let header = stage.file("a.h", include_str!("../../frontends/blob-capi/include/quell_blob.h"));
    for (compiler, standard, language) in [("cc", "-std=c99", "c"), ("c++", "-std=c++11", "c++")] {
        let mut check = stage.command(compiler);
        check.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-x", language]);
        stage.run(check.arg(&header).arg("-Wno-pragma-once-outside-header")).expect(0);
    }
}

#[test]
fn the_c_library_exports_the_functions_of_its_header() {
    let Some(libraries) = libraries("nm") else { return };
    let stage = Stage::new();
    let mut nm = stage.command("nm");
    let shown = stage.run(nm.args(["--dynamic", "--defined-only"]).arg(libraries.join("libquellblob.so")));
    let header = include_str!("../../frontends/blob-capi/include/quell_blob.h");
    let shown = shown.expect(0).text();
    let shown: Vec<&str> = shown.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    for name in &shown {
        assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
    }
    assert!(shown.len() > 30, "{shown:?}");
}

#[test]
fn a_c_program_survives_the_end_of_its_server() {
    let Some(libraries) = libraries("cc") else { return };
    let stage = Stage::new();
    let program = stage.blob_program(&libraries, "killed.c", include_str!("blob_killed.c"));
    let store = stage.path("store");
    let mut server = stage.blob_server(&store);
    let log = format!("unix:{}/socket", store.display());
    let mut client = stage.start(stage.with_library(&libraries, program).arg(log));
    // Commits are in flight when the server is killed, three times.
    for round in 1..=3 {
        client.wait_for_output(&format!("{}000 committed\n", round * 2));
        server.signal(Signal::KILL);
        server.wait();
        server = stage.blob_server(&store);
    }
    client.wait().expect(0).says("");
    server.signal(Signal::TERM);
    server.wait().expect(0);
}

#[test]
fn the_examples_of_the_guide_work() {
    let Some(libraries) = libraries("c++") else { return };
    let stage = Stage::new();
    for (name, language) in [("example.c", "c"), ("example.cpp", "c++")] {
        let program = stage.blob_program(&libraries, name, &example(GUIDE, language));
        for sum in ["21\n", "42\n"] {
            let mut run = stage.with_library(&libraries, &program);
            assert_eq!(stage.run(run.arg(stage.path(language))).expect(0).text(), sum);
        }
    }
}

/// Returns a Python that the package supports.
pub fn python() -> Option<&'static str> {
    let recent = "import sys, ctypes; sys.exit(sys.version_info < (3, 9))";
    ["/usr/bin/python3", "python3"].into_iter().find(|python| {
        Command::new(python).args(["-c", recent]).status().is_ok_and(|status| status.success())
    })
}

#[test]
fn the_python_package_keeps_its_promises() {
    let (Some(libraries), Some(python)) = (libraries("cc"), python()) else {
        skip!("no library, or no Python 3.9 or later");
    };
    let stage = Stage::new();
    let tests = || {
        let mut tests = stage.with_library(&libraries, python);
        tests.args(["-W", "error", "-m", "unittest", "discover", "--verbose", "tests/blob"]);
        tests.env("PYTHONPATH", ".").env("PYTHONDONTWRITEBYTECODE", "1");
        tests.current_dir(checkout().join("frontends/python"));
        tests
    };
    stage.run(&mut tests()).expect(0);
    let store = stage.path("store");
    let server = stage.blob_server(&store);
    let location = format!("unix:{}/socket", store.display());
    stage.run(tests().env("QUELL_BLOB_LOCATION", location)).expect(0);
    server.signal(Signal::TERM);
    server.wait().expect(0);
}
