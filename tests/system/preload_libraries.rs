//! Libraries of an indexed tree that programs load with dlopen(3) under the preload library.

use std::path::PathBuf;
use std::process::Command;

use crate::preload_calls::why_no_dispatch;
use crate::skip;
use crate::stage::{Stage, has, quell};

/// A tree with libraries, and a program that loads them.
struct Fixture {
    stage: Stage,
    program: PathBuf,
    tree: PathBuf,
    index: PathBuf,
}

impl Fixture {
    fn new() -> Fixture {
        let stage = Stage::new();
        let library = stage.file("library.c", include_str!("preload/library.c"));
        let program = stage.file("program.c", include_str!("preload/opens_library.c"));
        let small = stage.file("small.c", "int needed(void) { return 42; }\n");
        let (compiled, tree) = (stage.path("program"), stage.dir("tree"));
        let script = r#"
            mkdir "$2/first" "$2/second" && printf hello > "$2/file"
            cc -Wall -Werror -o "$1" "$3" -ldl
            cc -shared -fPIC -o "$2/second/libneeded.so" "$4"
            cc -shared -fPIC -o "$2/second/libinner.so" "$4"
            cc -Wall -Werror -shared -fPIC -DNAME='"right"' -o "$2/second/libx.so" "$5" -L"$2/second" -lneeded -lpthread
        "#;
        stage.sh(&format!("set -e; {script}"), &[&compiled, &tree, &program, &small, &library]).expect(0);
        let index = stage.index(&tree);
        // A library that the index does not contain is found only by calls of the kernel.
        let script = r#"cc -shared -fPIC -DNAME='"wrong"' -o "$1/first/libx.so" "$2" -L"$1/second" -lneeded"#;
        stage.sh(script, &[&tree, &library]).expect(0);
        Fixture { stage, program: compiled, tree, index }
    }

    fn command(&self, arguments: &[&str], is_preloaded: bool) -> Command {
        let mut command = self.stage.command(&self.program);
        command.args(arguments).env("TREE_FILE", self.tree.join("file")).env_remove("QUELL_LOG");
        let directories = [self.tree.join("first"), self.tree.join("second")];
        command.env("LD_LIBRARY_PATH", std::env::join_paths(directories).unwrap());
        if is_preloaded {
            let view = serde_json::json!({"tree": [{"path": self.tree, "index": self.index}]});
            command.env("LD_PRELOAD", quell().with_file_name("libquell_preload.so"));
            command.env("QUELL_VIEW", view.to_string());
        }
        command
    }

    #[track_caller]
    fn output(&self, arguments: &[&str], is_preloaded: bool) -> String {
        let ended = self.stage.run(&mut self.command(arguments, is_preloaded)).expect(0);
        assert_eq!(ended.err, "", "the library prints nothing on success");
        ended.text()
    }
}

#[test]
fn the_dynamic_linker_finds_libraries_by_the_index() {
    if !has("cc") {
        skip!("no C compiler (cc)");
    }
    if let Some(reason) = why_no_dispatch() {
        skip!("{reason}");
    }
    let fixture = Fixture::new();
    let path = fixture.tree.join("second/libx.so");
    let path = path.to_str().unwrap();
    let expected =
        format!("constructor of right: inner 1, thread 1\nright is {path}, needs 42\naction 1, mask 0\n");
    assert_eq!(fixture.output(&["unblocked", "libx.so"], true), expected);
    assert_eq!(fixture.output(&["unblocked", path], true), expected);
    let missing = fixture.output(&["unblocked", "libmissing.so"], true);
    assert_eq!(missing, fixture.output(&["unblocked", "libmissing.so"], false));

    // The kernel serves the calls of a thread that blocks SIGSYS, and without the library.
    for (arguments, is_preloaded) in [(["blocked", "libx.so"], true), (["unblocked", "libx.so"], false)] {
        let found = fixture.output(&arguments, is_preloaded);
        assert!(found.contains("wrong is "), "{found}");
    }
}

#[test]
fn run_dispatches_system_calls_on_request_and_traps_none() {
    let stage = Stage::new();
    let (store, view) = (stage.dir("store"), stage.dir("view"));
    let mut log = store.clone().into_os_string();
    log.push("=");
    log.push(&view);
    let run = |via: &str, script: &str| {
        let mut command = stage.quell();
        command.args(["run", "--via", via, "--log"]).arg(&log).args(["--", "sh", "-c", script]).arg(&view);
        stage.run(&mut command)
    };
    run("trap", "true").expect(3).says("`quell run` without --via");
    if let Some(reason) = why_no_dispatch() {
        run("preload+sud", "true").expect(3).says("Syscall User Dispatch");
        skip!("{reason}");
    }
    let ended = run("preload+sud", "echo hello > \"$0/f\" && cat \"$0/f\"").expect(0);
    assert_eq!((ended.text().as_str(), ended.err.as_str()), ("hello\n", ""));
    assert!(!view.join("f").exists(), "the file is in the store");
}
