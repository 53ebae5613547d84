//! `quell batch begin`, and the parts of its batch: mounts and programs that join it.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::batch::can_mount;
use crate::skip;
use crate::stage::{Stage, eventually, send, why_no_openmpi, words};

impl Stage {
    /// Runs `quell batch` with arguments, and returns its exit code and its output.
    fn quell_batch(&self, code: i32, arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> (String, String) {
        let mut command = self.quell();
        command.arg("batch").args(words(arguments));
        let ended = self.run(&mut command).expect(code);
        (ended.text(), ended.err.clone())
    }

    /// Begins a batch of several parts, and returns its number.
    fn begin_batch(&self, store: &Path) -> String {
        let (number, err) = self.quell_batch(0, &[&"begin", &store]);
        assert_eq!(err, "");
        number.trim_end().to_owned()
    }

    fn states_of_batches(&self, store: &Path) -> Vec<Value> {
        self.batches(store).into_iter().map(|batch| batch["state"].clone()).collect()
    }
}

/// Lists the files of a directory with their contents.
const LIST: &str =
    r#"cd "$1" && find . -type f | sort | while read f; do echo "$f $(head -c 20 "$f")"; done"#;

#[test]
fn two_mounts_have_parts_of_one_batch() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    for has_server in [false, true] {
        let store = stage.path(if has_server { "served" } else { "own" });
        stage.quell_batch(0, &[&"init", &store]);
        let server = has_server.then(|| {
            let mut command = stage.quell();
            let server = stage.start(command.args(words(&[&"batch", &"serve", &store, &"--json"])));
            assert!(eventually(|| server.out().ends_with('\n')), "{}", server.err());
            server
        });
        let number = stage.begin_batch(&store);
        let join = ["--join", &number];
        let one = stage.mount_batch(&store, &join, &format!("one-{has_server}"));
        let two = stage.mount_batch(&store, &join, &format!("two-{has_server}"));
        for (part, name) in [(&one, "one"), (&two, "two")] {
            let out = part.point.join("out/common");
            fs::create_dir_all(&out).unwrap();
            fs::write(out.join(name), name).unwrap();
            fs::write(part.point.join(format!("large-{name}")), name.repeat(50_000)).unwrap();
            fs::write(part.point.join("same"), name).unwrap();
        }
        assert!(!one.point.join("out/common/two").exists(), "a part sees its own changes only");
        assert_eq!(stage.states_of_batches(&store), ["open", "open", "open"]);
        let (_, err) = stage.quell_batch(3, &[&"commit", &store, &number]);
        assert!(err.contains("unmount it before"), "{err}");
        one.umount();
        assert_eq!(stage.states_of_batches(&store), ["open", "closed", "open"]);
        two.umount();
        assert_eq!(stage.batches(&store)[2]["part_of"], 1);
        let (_, err) = stage.quell_batch(0, &[&"commit", &store, &number]);
        assert!(err.contains("1 conflict;"), "{err}");
        assert_eq!(stage.states_of_batches(&store), ["committed"; 3]);
        let (listed, _) = stage.quell_batch(1, &[&"conflicts", &store, &number]);
        assert_eq!(listed, "/same was created by others meanwhile; kept as /same.quell-conflict-1-1\n");
        let after = stage.mount_batch(&store, &[], &format!("after-{has_server}"));
        assert_eq!(
            stage.sh(LIST, &[&after.point]).expect(0).text(),
            "./large-one oneoneoneoneoneoneon\n./large-two twotwotwotwotwotwotw\n./out/common/one one\n\
             ./out/common/two two\n./same one\n./same.quell-conflict-1-1 two\n"
        );
        after.umount();
        // The batch with this number is committed already.
        let mut late = stage.quell();
        let point = stage.dir(&format!("late-{has_server}"));
        late.args(words(&[&"mount", &"--batch", &store, &"--join", &number, &point]));
        let late = stage.run(&mut late);
        assert!(late.code() != Some(0) && late.err.contains("committed"), "{}", late.err);
        if let Some(server) = server {
            server.signal(Signal::TERM);
            server.wait().expect(0);
        }
        stage.quell_batch(0, &[&"fsck", &store]);
    }
    stage.expect_nothing_left();
}

#[test]
fn a_part_whose_process_was_killed_is_reported_and_can_be_left_out() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.batch_store();
    let number = stage.begin_batch(&store);
    let kept = stage.mount_batch(&store, &["--join", &number], "kept");
    let before = stage.holders();
    let lost = stage.mount_batch(&store, &["--join", &number, "--batch-name", "node7"], "lost");
    fs::write(kept.point.join("kept"), "kept").unwrap();
    fs::write(lost.point.join("lost"), "lost").unwrap();
    let holder = stage.holders().into_iter().find(|holder| !before.contains(holder)).expect("a process");
    send(holder, Signal::KILL);
    let mut umount = stage.quell();
    umount.args(words(&[&"umount", &lost.point]));
    assert!(eventually(|| stage.states_of_batches(&store) == ["open", "open", "lost"]));
    let ended = stage.run(&mut umount).expect(3);
    assert!(ended.err.contains("part 3 was not closed"), "{}", ended.err);
    drop(lost);
    kept.umount();
    let (listed, _) = stage.quell_batch(0, &[&"status", &store]);
    assert!(listed.contains("part of 1, closed") && listed.contains("part of 1, lost  node7"), "{listed}");
    for option in ["--lazy", "--quiet"] {
        let (_, err) = stage.quell_batch(2, &[&"commit", &option, &store, &number]);
        assert!(err.contains("closed them: 3; --without-lost-parts"), "{err}");
    }
    let (_, err) = stage.quell_batch(0, &[&"commit", &"--without-lost-parts", &store, &number]);
    assert_eq!(err, "quell: part 3 is lost, and was discarded\n");
    assert_eq!(stage.states_of_batches(&store), ["committed", "committed", "aborted"]);
    let after = stage.mount_batch(&store, &[], "after");
    assert_eq!(stage.sh(LIST, &[&after.point]).expect(0).text(), "./kept kept\n");
    after.umount();
    stage.quell_batch(0, &[&"fsck", &store]);
    // The file with the messages of the killed process remains.
    assert!(stage.holders().is_empty());
}

#[test]
fn the_ranks_of_an_mpi_job_have_parts_of_one_batch() {
    if !can_mount() {
        return;
    }
    if let Some(reason) = why_no_openmpi() {
        skip!("{reason}");
    }
    let stage = Stage::new();
    let (store, dir) = (stage.batch_store(), stage.dir("job"));
    let number = stage.begin_batch(&store);
    let quell = stage.quell();
    let script = r#"
        cd "$1" && mkdir -p results/all && r=$OMPI_COMM_WORLD_RANK
        for i in $(seq 30); do echo $r > results/all/$r-$i; done
        mkdir results/rank-$r && echo $r > results/rank-$r/file
    "#;
    let batch = format!("{}={}", store.display(), dir.display());
    let mut job = stage.mpirun(4);
    job.arg(quell.get_program()).args(quell.get_args());
    job.args(words(&[
        &"run", &"--batch", &batch, &"--join", &number, &"--", &"sh", &"-c", &script, &"sh", &dir,
    ]));
    // mpirun ends its ranks, too, before the test's own time limit.
    job.env("MPIEXEC_TIMEOUT", "60");
    for (key, value) in quell.get_envs() {
        match value {
            Some(value) => job.env(key, value),
            None => job.env_remove(key),
        };
    }
    stage.run(&mut job).expect(0);
    assert_eq!(stage.states_of_batches(&store), ["open", "closed", "closed", "closed", "closed"]);
    assert_eq!(stage.quell_batch(0, &[&"commit", &store, &number]).1, "");
    // 2 directories that all ranks have created, and for each rank 1 directory and 31 files.
    assert_eq!(stage.batches(&store)[0]["entries"], 2 + 4 * 32);
    let after = stage.mount_batch(&store, &[], "after");
    let count = r#"cd "$1/results" && ls all | wc -l && cat rank-*/file | tr -d '\n'"#;
    assert_eq!(stage.sh(count, &[&after.point]).expect(0).text(), "120\n0123");
    after.umount();
    stage.expect_nothing_left();
}

#[test]
fn a_part_submits_the_form_of_proof_that_its_user_selects() {
    const FILES: u64 = 2000;
    const CREATE: &str = r#"cd "$1" && mkdir d && cd d && seq -f file.%06g 0 1999 | xargs touch"#;
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.path("store");
    stage.quell_batch(0, &[&"init", &store]);
    let number = stage.begin_batch(&store);
    let bytes_of = |part: &str| -> u64 {
        let files = fs::read_dir(store.join("batches").join(part)).unwrap();
        files.map(|file| file.and_then(|file| file.metadata()).unwrap().len()).sum()
    };
    let point = stage.dir("point");
    let mut sizes = Vec::new();
    for (part, options) in [("2", &["--proof", "certificate"][..]), ("3", &["--proof", "log"]), ("4", &[])] {
        let mut command = stage.quell();
        command.arg("run").arg("--batch").arg(format!("{}={}", store.display(), point.display()));
        command.args(["--join", &number]).args(options).args(["--", "sh", "-c", CREATE, "sh"]);
        stage.run(command.arg(&point)).expect(0);
        sizes.push(bytes_of(part));
    }
    let [tables, log, default] = sizes[..] else { panic!("{sizes:?}") };
    assert!(log < FILES * 8 && tables > FILES * 10 && default > FILES * 10, "{sizes:?}");
    // The three parts have one directory, and each other name twice in conflict.
    let (_, err) = stage.quell_batch(0, &[&"commit", &store, &number]);
    assert!(err.contains(&format!("{} conflicts;", 2 * FILES)), "{err}");
    let after = stage.mount_batch(&store, &[], "after");
    assert_eq!(fs::read_dir(after.point.join("d")).unwrap().count() as u64, 3 * FILES);
    // The option is for batches.
    let mut command = stage.quell();
    command.args(words(&[&"mount", &"--batch", &store, &stage.dir("other"), &"--proof", &"log"]));
    let refused = stage.run(&mut command).expect(2);
    assert!(refused.err.contains("--mode batch"), "{}", refused.err);
}
