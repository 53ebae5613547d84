//! `quell batch commit --blobs`: a batch and a transaction of blobs are both committed, or neither.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::json;

use crate::batch::can_mount;
use crate::skip;
use crate::stage::{Ended, Stage, eventually, has, words};

/// A store with an open batch whose only part is closed, and a store of blobs.
struct Fixture {
    stage: Stage,
    store: PathBuf,
    blobs: PathBuf,
    batch: String,
    /// The file of `--blobs`.
    operations: PathBuf,
}

impl Fixture {
    /// Creates the stores. The batch creates the file `new`; the transaction creates the blob
    /// `runs/7` unless it exists, appends a line to `log`, and adds 1 to `totals`.
    fn new() -> Fixture {
        let stage = Stage::new();
        let store = stage.batch_store();
        let blobs = stage.path("blobs");
        stage.blob(&[&"put", &blobs, &stage.file("data", "first\n"), &"log"]).expect(0);
        let mut begin = stage.quell();
        let begun = stage.run(begin.args(words(&[&"batch", &"begin", &store]))).expect(0);
        let batch = begun.text().trim_end().to_owned();
        let part = stage.mount_batch(&store, &["--join", &batch], "part");
        fs::write(part.point.join("new"), "bytes").unwrap();
        part.umount();
        let summary = stage.file("summary", "summary");
        let document = json!({
            "store": blobs,
            "conditions": [{ "blob": "runs/7", "exists": false }],
            "operations": [
                { "operation": "create", "blob": "runs/7" },
                { "operation": "write", "blob": "runs/7", "offset": 0, "file": summary },
                { "operation": "append", "blob": "log", "text": "second\n" },
                { "operation": "add", "blob": "totals", "offset": 0, "number": 1 },
            ],
        });
        let operations = stage.file("blobs.json", document.to_string());
        Fixture { stage, store, blobs, batch, operations }
    }

    fn batch(&self, arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Ended {
        self.stage.run(self.stage.quell().arg("batch").args(words(arguments)))
    }

    fn commit(&self) -> Ended {
        self.batch(&[&"commit", &"--blobs", &self.operations, &self.store, &self.batch])
    }

    /// Commits the batch, and kills the command at the n-th call of a function by one of its
    /// threads.
    fn commit_killed_at(&self, call: &str, n: u32) -> Ended {
        let (trace, inject) = (format!("trace={call}"), format!("inject={call}:signal=KILL:when={n}"));
        let mut traced = self.stage.command("strace");
        traced.args(["-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject]);
        traced.arg(self.stage.quell().get_program()).args(["batch", "commit", "--blobs"]);
        self.stage.run(traced.args([&self.operations, &self.store]).arg(&self.batch))
    }

    fn state(&self) -> String {
        self.stage.batches(&self.store)[0]["state"].as_str().unwrap().to_owned()
    }

    /// Returns whether the file of the batch is in a store.
    fn has_file(&self, name: &str) -> bool {
        let out = self.stage.path(name);
        self.batch(&[&"export", &self.store, &out]).expect(0);
        out.join("new").exists()
    }

    fn content(&self, blob: &str) -> String {
        self.stage.blob(&[&"cat", &self.blobs, &blob]).expect(0).text()
    }

    /// Returns whether the transaction is committed, after a check that it was not executed twice
    /// or in part.
    fn has_blobs(&self) -> bool {
        let exists = self.stage.blob(&[&"stat", &self.blobs, &"runs/7"]).code() == Some(0);
        let log = if exists { "first\nsecond\n" } else { "first\n" };
        assert_eq!(self.content("log"), log);
        if exists {
            assert_eq!(
                (self.content("runs/7").as_str(), self.content("totals").as_bytes()[0]),
                ("summary", 1)
            );
        }
        exists
    }

    fn markers(&self) -> usize {
        let listed = self.stage.blob(&[&"ls", &self.blobs, &"quell-batch/", &"--json"]).expect(0);
        listed.text().lines().filter(|line| !line.contains("\"quell-batch/identity\"")).count()
    }

    /// Checks that a commit that fails before its verification creates no store of blobs.
    fn check_no_store_is_created(&self, code: i32, reason: &str) {
        let never = self.stage.path("never");
        let document = json!({ "store": never, "operations": [] }).to_string();
        let operations = self.stage.file("never.json", document);
        self.batch(&[&"commit", &"--blobs", &operations, &self.store, &self.batch]).expect(code).says(reason);
        assert!(!never.exists());
    }

    fn check(&self) {
        self.batch(&[&"fsck", &self.store]).expect(0);
        self.stage.blob(&[&"fsck", &self.blobs]).expect(0);
    }
}

#[test]
fn files_and_blobs_are_committed_together() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new();
    let committed = fixture.commit().expect(0);
    assert_eq!((committed.text().as_str(), committed.err.as_str()), ("", ""), "success prints nothing");
    assert_eq!(fixture.state(), "committed");
    assert!(fixture.has_file("out") && fixture.has_blobs());
    assert_eq!(fixture.markers(), 0);
    // The transaction is not executed for a batch that is committed.
    fixture.commit().expect(2).says("it is committed already");
    assert!(fixture.has_blobs());
    fixture.check_no_store_is_created(2, "it is committed already");
    fixture.batch(&[&"commit", &"--blobs", &fixture.operations, &"--lazy", &fixture.store, &"1"]).expect(2);
    fixture.check();
}

#[test]
fn files_and_blobs_are_committed_together_through_a_server() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new();
    let mut serve = fixture.stage.quell();
    let mut server = fixture.stage.start(serve.args(words(&[&"batch", &"serve", &fixture.store, &"--json"])));
    assert!(eventually(|| server.out().ends_with('\n') || !server.is_running()), "{}", server.err());
    fixture.commit().expect(0);
    assert_eq!(fixture.state(), "committed");
    assert!(fixture.has_file("out") && fixture.has_blobs());
    assert_eq!(fixture.markers(), 0);
    fixture.check_no_store_is_created(2, "it is committed already");
    server.signal(Signal::TERM);
    server.wait().expect(0);
    assert!(fixture.has_file("again"));
    fixture.check();
}

#[test]
fn nothing_is_committed_if_one_of_both_is_refused() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new();
    let stage = &fixture.stage;
    let neither = || {
        assert_eq!(fixture.state(), "open");
        assert!(!fixture.has_file(&format!("out-{}", stage.path("").read_dir().unwrap().count())));
        assert_eq!((fixture.content("log").as_str(), fixture.markers()), ("first\n", 0));
    };
    // A condition does not hold.
    stage.blob(&[&"put", &fixture.blobs, &stage.path("data"), &"runs/7"]).expect(0);
    fixture.commit().expect(2).says("the blob runs/7 exists");
    neither();
    stage.blob(&[&"rm", &fixture.blobs, &"runs/7"]).expect(0);
    // An operation fails.
    let text = fs::read_to_string(&fixture.operations).unwrap();
    let missing = text.replace("\"blob\":\"log\"", "\"blob\":\"missing\"");
    assert_ne!(text, missing);
    fs::write(&fixture.operations, missing).unwrap();
    fixture.commit().expect(2);
    neither();
    fs::write(&fixture.operations, text).unwrap();
    // Others have created the file meanwhile.
    let other = stage.mount_batch(&fixture.store, &[], "other");
    fs::write(other.point.join("new"), "of others").unwrap();
    other.umount();
    fixture.commit().expect(3).says("1 conflicts");
    assert_eq!((fixture.state().as_str(), fixture.has_blobs(), fixture.markers()), ("open", false, 0));
    fixture.batch(&[&"commit", &fixture.store, &fixture.batch]).expect(0).says("1 conflict");
    assert!(!fixture.has_blobs());
    fixture.check();
}

/// Copies a store of the fixture.
fn copy(fixture: &Fixture, from: &Path, to: &Path) {
    fixture.stage.sh("rm -rf \"$2\" && cp -a \"$1\" \"$2\"", &[from, to]).expect(0);
}

#[test]
fn another_store_at_the_location_decides_nothing() {
    if !can_mount() {
        return;
    }
    if !has("strace") {
        skip!("strace is not installed");
    }
    let fixture = Fixture::new();
    let stage = &fixture.stage;
    let saved = [&fixture.store, &fixture.blobs].map(|path| path.with_extension("saved"));
    copy(&fixture, &fixture.store, &saved[0]);
    copy(&fixture, &fixture.blobs, &saved[1]);
    // The command is killed when the transaction is committed, and the batch is prepared.
    let is_prepared = (1..=100).any(|n| {
        copy(&fixture, &saved[0], &fixture.store);
        copy(&fixture, &saved[1], &fixture.blobs);
        fixture.commit_killed_at("fdatasync,fsync,write", n);
        fixture.state() == "prepared" && fixture.has_blobs()
    });
    assert!(is_prepared, "no call leaves a prepared batch with its transaction");
    let own = stage.path("own");
    fs::rename(&fixture.blobs, &own).unwrap();
    let refused = |reason: &str| {
        for arguments in [&["commit"] as &[&str], &["abort"], &["commit", "--blobs"]] {
            let mut command = stage.quell();
            command.arg("batch").args(arguments);
            if arguments.len() == 2 {
                command.arg(&fixture.operations);
            }
            command.arg(&fixture.store).arg(&fixture.batch);
            stage.run(&mut command).expect(2).says(reason).says(fixture.blobs.to_str().unwrap());
            assert_eq!(fixture.state(), "prepared");
        }
    };
    refused("No such file or directory");
    // A new store, an earlier copy of the store, and one with another identity.
    stage.blob(&[&"put", &fixture.blobs, &stage.path("data"), &"log"]).expect(0);
    refused("is another one: it has no identity");
    copy(&fixture, &saved[1], &fixture.blobs);
    refused("is another one: it has no identity");
    let identity = "0123456789abcdef".repeat(2);
    let file = stage.file("identity", &identity);
    stage.blob(&[&"put", &fixture.blobs, &file, &"quell-batch/identity"]).expect(0);
    refused(&format!("is another one: it has the identity {identity}"));
    assert!(!fixture.has_blobs() && fixture.markers() == 0);
    // The transaction of the command is not executed if the earlier one is committed.
    copy(&fixture, &own, &fixture.blobs);
    let prepared = stage.path("prepared");
    copy(&fixture, &fixture.store, &prepared);
    fixture
        .commit()
        .expect(1)
        .says("was committed with an earlier transaction of blobs")
        .says("was not executed");
    assert_eq!(fixture.state(), "committed");
    assert!(fixture.has_file("out") && fixture.has_blobs() && fixture.markers() == 0);
    copy(&fixture, &prepared, &fixture.store);
    copy(&fixture, &own, &fixture.blobs);
    let published = fixture.batch(&[&"commit", &fixture.store, &fixture.batch]).expect(0);
    assert_eq!(published.err, "");
    assert!(fixture.has_file("again") && fixture.has_blobs());
    fixture.check();
}

#[test]
fn a_command_that_is_killed_leaves_both_or_neither() {
    if !can_mount() {
        return;
    }
    if !has("strace") {
        skip!("strace is not installed");
    }
    let fixture = Fixture::new();
    let saved = [&fixture.store, &fixture.blobs].map(|path| path.with_extension("saved"));
    copy(&fixture, &fixture.store, &saved[0]);
    copy(&fixture, &fixture.blobs, &saved[1]);
    let restore = || {
        copy(&fixture, &saved[0], &fixture.store);
        copy(&fixture, &saved[1], &fixture.blobs);
    };
    let mut found = BTreeSet::new();
    let mut first_prepared = None;
    // The command is killed at each of its calls that change files or make them durable.
    let calls = ["write", "fsync", "fdatasync"].into_iter();
    for (call, n) in calls.flat_map(|call| (1..=100).map(move |n| (call, n))) {
        if found.contains(&(call, "ended".to_owned(), true)) {
            continue;
        }
        restore();
        let killed = fixture.commit_killed_at(call, n);
        if killed.code().is_some() {
            killed.expect(0);
            found.insert((call, "ended".to_owned(), true));
            continue;
        }
        let (state, has_blobs) = (fixture.state(), fixture.has_blobs());
        found.insert((call, state.clone(), has_blobs));
        let mut is_open = state == "open";
        if state == "prepared" {
            let resolved = fixture.batch(&[&"commit", &fixture.store, &fixture.batch]);
            is_open = !has_blobs;
            match has_blobs {
                true => drop(resolved.expect(0)),
                false => {
                    resolved.expect(3).says("the batch is open again");
                    first_prepared.get_or_insert((call, n));
                }
            }
        }
        let at = format!("{call} {n}");
        let expected = if is_open { ("open", false) } else { ("committed", true) };
        assert_eq!((fixture.state().as_str(), fixture.has_blobs()), expected, "{at}");
        assert_eq!(fixture.has_file(&format!("out-{at}")), !is_open, "{at}");
        if is_open {
            fixture.commit().expect(0);
            assert!(fixture.has_blobs() && fixture.has_file(&format!("again-{at}")), "{at}");
        }
        fixture.check();
    }
    for state in [("open", false), ("prepared", false), ("prepared", true), ("committed", true)] {
        let is_this = |found: &(&str, String, bool)| (found.1.as_str(), found.2) == state;
        assert!(found.iter().any(is_this), "{state:?} is not in {found:?}");
    }
    for call in ["write", "fsync", "fdatasync"] {
        assert!(found.contains(&(call, "ended".to_owned(), true)), "more than 100 calls of {call}");
    }
    // A prepared batch is aborted if its transaction is not committed, or without the store of
    // blobs.
    let (call, n) = first_prepared.expect("a prepared batch without its transaction");
    for ignores in [false, true] {
        restore();
        fixture.commit_killed_at(call, n);
        assert_eq!((fixture.state().as_str(), fixture.has_blobs()), ("prepared", false));
        if ignores {
            fs::remove_dir_all(&fixture.blobs).unwrap();
            fixture.batch(&[&"abort", &fixture.store, &fixture.batch]).expect(2);
            assert_eq!(fixture.state(), "prepared");
            fixture.batch(&[&"abort", &"--ignore-blobs", &fixture.store, &fixture.batch]).expect(0);
        } else {
            fixture.batch(&[&"abort", &fixture.store, &fixture.batch]).expect(0);
            assert!(!fixture.has_blobs());
        }
        assert_eq!(fixture.state(), "aborted");
        fixture.batch(&[&"fsck", &fixture.store]).expect(0);
    }
}
