//! `quell run --batch`.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::batch::can_mount;
use crate::stage::{Stage, eventually, send, words};

impl Stage {
    /// Returns the command that runs a script with a store at a directory.
    fn run_batch(&self, store: &Path, dir: &Path, options: &[&str], script: &str) -> std::process::Command {
        let mut command = self.quell();
        let batch = format!("{}={}", store.display(), dir.display());
        command.args(words(&[&"run", &"--batch", &batch])).args(options);
        command.args(words(&[&"--", &"sh", &"-c", &script, &"sh", &dir]));
        command
    }

    /// Returns the output of a script that reads the files of a store.
    fn read_store(&self, store: &Path, script: &str) -> String {
        let dir = self.dir("read");
        self.run(&mut self.run_batch(store, &dir, &["--mode", "sync"], script)).expect(0).text()
    }
}

#[test]
fn files_of_a_program_are_published_when_it_ends() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let (store, dir) = (stage.batch_store(), stage.dir("job"));
    let script = r#"
        cd "$1" && mkdir -p a/b && for i in $(seq 200); do echo $i > a/b/$i; done
        touch "$1/../ready"; while [ -e "$1/../ready" ]; do sleep 0.02; done
        pwd; exit 7
    "#;
    let program = stage.start(&mut stage.run_batch(&store, &dir, &["--batch-name", "first"], script));
    assert!(eventually(|| stage.path("ready").exists()), "{}", program.err());
    // Only the program sees the files.
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    assert_eq!(stage.read_store(&store, "ls $1"), "");
    fs::remove_file(stage.path("ready")).unwrap();
    let ended = program.wait().expect(7);
    assert_eq!((ended.text(), ended.err.as_str()), (format!("{}\n", dir.display()), ""));
    let batches = stage.batches(&store);
    assert_eq!((&batches[0]["state"], &batches[0]["name"]), (&"committed".into(), &"first".into()));
    assert_eq!(stage.read_store(&store, "ls $1/a/b | wc -l; cat $1/a/b/200"), "200\n200\n");
    // The working directory of the program is a directory of the mount, also if its path exists
    // outside.
    let mut inside = stage.run_batch(&store.join("a"), &dir, &[], "cat b/7; echo more > b/7");
    assert_eq!(stage.run(inside.current_dir(&dir)).expect(0).text(), "7\n");
    assert_eq!(stage.read_store(&store, "cat $1/a/b/7"), "more\n");
    stage.expect_nothing_left();
}

#[test]
fn the_exit_code_is_that_of_the_program_and_signals_are_passed_to_it() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let (store, dir) = (stage.batch_store(), stage.dir("job"));
    let run = |script: &str| stage.run(&mut stage.run_batch(&store, &dir, &[], script));
    run("echo > $1/before; kill -KILL $$").expect(137);
    let mut missing = stage.quell();
    let batch = format!("{}={}", store.display(), dir.display());
    stage.run(missing.args(words(&[&"run", &"--batch", &batch, &"--", &"/no/such/program"]))).expect(127);
    // SIGTERM reaches the program, which ends as it likes.
    let script = "trap 'echo > $1/ended; exit 3' TERM; touch $1/../ready; while :; do sleep 0.02; done";
    let program = stage.start(&mut stage.run_batch(&store, &dir, &[], script));
    assert!(eventually(|| stage.path("ready").exists()), "{}", program.err());
    program.signal(Signal::TERM);
    program.wait().expect(3);
    assert_eq!(stage.read_store(&store, "ls $1"), "before\nended\n");
    stage.expect_nothing_left();
}

#[test]
fn conflicts_of_a_program_are_reported() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let (store, dir) = (stage.batch_store(), stage.dir("job"));
    let other = stage.dir("other");
    // While the program runs, another one creates the same name.
    let script = "echo batch > $1/$2; touch $1/../ready; while [ -e $1/../ready ]; do sleep 0.02; done";
    for (name, options, code) in [("one", &[][..], 0), ("two", &["--strict"], 1)] {
        let mut command = stage.run_batch(&store, &dir, options, script);
        let program = stage.start(command.arg(name));
        assert!(eventually(|| stage.path("ready").exists()), "{}", program.err());
        let mut create = stage.run_batch(&store, &other, &["--mode", "sync"], "echo other > $1/$2");
        stage.run(create.arg(name)).expect(0);
        fs::remove_file(stage.path("ready")).unwrap();
        program.wait().expect(code).says("1 conflict; list them with: quell batch conflicts");
    }
    let expected = "one\none.quell-conflict-1-1\ntwo\ntwo.quell-conflict-2-1\n";
    assert_eq!(stage.read_store(&store, "ls $1"), expected);
    stage.expect_nothing_left();
}

#[test]
fn a_program_is_not_executed_without_its_store() {
    let stage = Stage::new();
    let (store, dir) = (stage.batch_store(), stage.dir("job"));
    let run = |batch: &str, options: &[&str]| {
        let mut command = stage.quell();
        command.args(["run", "--batch", batch]).args(options).args(["--", "echo", "executed"]);
        let ended = stage.run(&mut command);
        assert_eq!(ended.text(), "");
        ended
    };
    let batch = |store: &Path, dir: &Path| format!("{}={}", store.display(), dir.display());
    run("no-equals-sign", &[]).expect(2).says("STORE[/PATH]=DIR");
    run(&batch(&store, &stage.path("missing")), &[]).expect(2).says("missing");
    run(&batch(&stage.path("missing"), &dir), &[]).expect(2).says("missing");
    run(&batch(&store, &dir), &["--mode", "sync", "--atomic"]).expect(2).says("--mode batch");
    run(&batch(&store, &dir), &["--via", "trap"]).expect(2).says("--via");
    run(&batch(&store, &dir), &["-i", "index"]).expect(2);
    if can_mount() {
        run(&batch(&store.join("no/such"), &dir), &[]).expect(2).says("no/such");
    }
    assert!(stage.batches(&store).is_empty());
    stage.expect_nothing_left();
}

#[test]
fn a_batch_that_is_lost_is_reported() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let (store, dir) = (stage.batch_store(), stage.dir("job"));
    let script = "echo > $1/lost; touch $2; while [ -e $2 ]; do sleep 0.02; done";
    let mut command = stage.run_batch(&store, &dir, &[], script);
    let program = stage.start(command.arg(stage.path("ready")));
    assert!(eventually(|| stage.path("ready").exists()), "{}", program.err());
    send(stage.holder(), Signal::KILL);
    fs::remove_file(stage.path("ready")).unwrap();
    program.wait().expect(3).says("batch 1 was not committed");
    assert_eq!(stage.batches(&store)[0]["state"], "open");
    stage.run(stage.quell().args(words(&[&"batch", &"abort", &store, &"1"]))).expect(0);
    assert_eq!(stage.read_store(&store, "ls $1"), "");
}

#[test]
fn the_commit_is_awaited_if_the_runtime_directory_is_named_by_a_symbolic_link() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let (store, dir) = (stage.batch_store(), stage.dir("job"));
    // Another process creates the name as well, so the result of the commit has to be known.
    let script = "echo > $1/same; touch $2; while [ -e $2 ]; do sleep 0.02; done";
    let mut command = stage.run_batch(&store, &dir, &["--strict"], script);
    std::os::unix::fs::symlink(stage.runtime().parent().unwrap(), stage.path("link")).unwrap();
    command.env("QUELL_RUNTIME_DIR", stage.path("link/runtime")).arg(stage.path("ready"));
    let program = stage.start(&mut command);
    assert!(eventually(|| stage.path("ready").exists()), "{}", program.err());
    stage.read_store(&store, "echo other > $1/same");
    fs::remove_file(stage.path("ready")).unwrap();
    program.wait().expect(1).says("1 conflict");
    stage.expect_nothing_left();
}

#[test]
fn a_batch_is_closed_if_its_start_is_interrupted() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let (store, dir) = (stage.batch_store(), stage.dir("job"));
    let is_waiting = |count: usize| eventually(|| stage.holders().len() == count);
    // The processes of the mounts wait until the store is not open any more.
    let own = stage.mount_batch(&store, &[], "own");
    let mut mount = stage.quell();
    mount.args(words(&[&"mount", &"--batch", &store, &"--mode", &"batch", &dir]));
    let mounting = stage.start(&mut mount);
    assert!(is_waiting(2), "{}", mounting.err());
    mounting.signal(Signal::KILL);
    mounting.wait();
    own.umount();
    assert!(is_waiting(0));
    let batches = stage.batches(&store);
    assert!(batches.iter().all(|batch| batch["state"] == "aborted"), "{batches:?}");
    let own = stage.mount_batch(&store, &[], "own");
    let running = stage.start(&mut stage.run_batch(&store, &dir, &[], "echo executed"));
    assert!(is_waiting(2), "{}", running.err());
    running.signal(Signal::TERM);
    own.umount();
    let ended = running.wait().expect(143).says("interrupted");
    assert_eq!(ended.text(), "");
    let batches = stage.batches(&store);
    assert_eq!(batches.last().unwrap()["state"], "aborted", "{batches:?}");
    stage.expect_nothing_left();
}
