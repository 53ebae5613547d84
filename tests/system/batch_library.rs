//! Batches in programs that use `libquell`: the C functions, the Python package, and the examples
//! of the documentation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::blob_languages::{example, libraries, python};
use crate::skip;
use crate::stage::{Stage, eventually, words};

/// The documentation of batches.
const DOCUMENT: &str = "docs/techniques/batch.md";

/// Compiles a C program and links it with the library.
fn compile(stage: &Stage, libraries: &Path, name: &str, source: &str) -> PathBuf {
    stage.file("quell.h", include_str!("../../frontends/capi/include/quell.h"));
    stage.linked_program((libraries, "quell"), name, source)
}

/// Exports a store, and returns the directory with its names.
fn exported(stage: &Stage, store: &Path) -> PathBuf {
    let target = stage.path("exported");
    stage.run(stage.quell().args(words(&[&"batch", &"export", &store, &target]))).expect(0);
    target
}

#[test]
fn the_functions_keep_their_promises_with_and_without_a_server() {
    let Some(libraries) = libraries("cc") else { return };
    let stage = Stage::new();
    let source = include_str!("../../frontends/capi/tests/batches.c");
    let program = compile(&stage, &libraries, "program.c", source);
    let run = |store: &Path, name: &str| {
        let mut command: Command = stage.with_library(&libraries, &program);
        stage.run(command.arg(store).current_dir(stage.dir(name))).expect(0);
        let mut status = stage.quell();
        let listed = stage.run(status.args(words(&[&"batch", &"status", &store, &"--json"]))).expect(0);
        assert!(!listed.text().contains("\"open\""), "{}", listed.text());
    };
    run(&stage.batch_store(), "alone");
    let store = stage.path("served");
    stage.run(stage.quell().args(words(&[&"batch", &"init", &store]))).expect(0);
    let server = stage.start(stage.quell().args(words(&[&"batch", &"serve", &store, &"--json"])));
    assert!(eventually(|| server.out().ends_with('\n')), "{}", server.err());
    run(&store, "with a server");
    server.signal(Signal::TERM);
    server.wait().expect(0);
}

#[test]
fn the_examples_of_the_documentation_work() {
    let (Some(libraries), Some(python)) = (libraries("cc"), python()) else {
        skip!("no library, or no Python 3.9 or later");
    };
    let stage = Stage::new();
    let store = stage.batch_store();
    let program = compile(&stage, &libraries, "example.c", &example(DOCUMENT, "c"));
    stage.run(stage.with_library(&libraries, &program).arg(&store)).expect(0);
    let script = format!("import sys\nstore = sys.argv[1]\n{}", example(DOCUMENT, "python"));
    let script = stage.file("example.py", script);
    stage.run(stage.with_package(&libraries, python).args([&script, &store])).expect(0);
    let names = exported(&stage, &store);
    assert_eq!(fs::read_dir(&names).unwrap().count(), 1001);
    assert_eq!(fs::read(names.join("sample-999")).unwrap(), b"data");
    assert_eq!(fs::read(names.join("run/result")).unwrap(), b"data");
}

#[test]
fn changes_whose_commit_failed_are_committed_by_the_command() {
    let (Some(libraries), Some(python)) = (libraries("cc"), python()) else {
        skip!("no library, or no Python 3.9 or later");
    };
    let stage = Stage::new();
    let store = stage.batch_store();
    let script = r#"
import os, quell, sys
store = sys.argv[1]
try:
    with quell.Batch(store) as batch:
        batch.mkdir("kept")
        os.rename(store + "/format", store + "/hidden")
except OSError as error:
    os.rename(store + "/hidden", store + "/format")
    sys.exit(str(error))
"#;
    let script = stage.file("program.py", script);
    let ended = stage.run(stage.with_package(&libraries, python).args([&script, &store])).expect(1);
    assert!(ended.err.contains("`quell batch commit STORE 1` commits them"), "{}", ended.err);
    stage.run(stage.quell().args(words(&[&"batch", &"commit", &store, &"1"]))).expect(0);
    assert!(exported(&stage, &store).join("kept").is_dir());
}

#[test]
fn a_killed_program_leaves_a_batch_that_can_be_aborted() {
    let Some(libraries) = libraries("cc") else { return };
    let stage = Stage::new();
    let store = stage.batch_store();
    let source = r#"
#include <signal.h>
#include <quell.h>
int main(int argc, char **argv) {
    quell_store *batch;
    if (argc < 2 || quell_batch_begin(argv[1], NULL, &batch) < 0 || quell_mkdir(batch, "lost", 0755) < 0)
        return 1;
    return raise(SIGKILL);
}
"#;
    let program = compile(&stage, &libraries, "killed.c", source);
    let ended = stage.run(stage.with_library(&libraries, &program).arg(&store));
    assert_ne!(ended.code(), Some(1), "{}", ended.err);
    let batch = |arguments: &[&str]| stage.run(stage.quell().arg("batch").args(arguments));
    let store = store.to_str().unwrap();
    let listed = batch(&["status", store]).expect(0);
    assert!(listed.text().contains("libquell"), "{}", listed.text());
    batch(&["abort", store, "1"]).expect(0);
    assert_eq!(fs::read_dir(exported(&stage, store.as_ref())).unwrap().count(), 0);
}
