//! `quell batch` and `quell mount --batch`.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, chmod};
use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::Value;

use crate::stage::{Ended, Mounted, Stage, eventually, has, is_root, send, words};
use crate::trees::{TRUNCATE_WITH_SET_ID, permissions_after_truncation};

/// Returns whether this user can mount.
pub fn can_mount() -> bool {
    let can = is_root() || has("fusermount3");
    if !can {
        println!("SKIPPED: an ordinary user mounts through fusermount3, which is not there");
    }
    can
}

impl Stage {
    /// Creates a store for batches.
    pub fn batch_store(&self) -> PathBuf {
        let store = self.path("batches");
        let created = self.run(self.quell().args(words(&[&"batch", &"init", &store]))).expect(0);
        assert_eq!((created.text().as_str(), created.err.as_str()), ("", ""), "success prints nothing");
        store
    }

    /// Mounts a store for batches at the directory `name`.
    pub fn mount_batch(&self, store: &Path, options: &[&str], name: &str) -> Mounted<'_> {
        let point = self.dir(name);
        let mut command = self.quell();
        command.args(words(&[&"mount", &"--batch", &store])).args(options).arg(&point);
        let mounted = self.run(&mut command).expect(0);
        assert_eq!((mounted.text().as_str(), mounted.err.as_str()), ("", ""), "success prints nothing");
        Mounted::at(self, point)
    }

    /// Runs `quell batch quota` with these options.
    fn quota(&self, store: &Path, options: &[&str]) -> Ended {
        self.run(self.quell().args(words(&[&"batch", &"quota", &store])).args(options))
    }

    /// Returns the batches of a store, as `quell batch status --json` prints them.
    pub fn batches(&self, store: &Path) -> Vec<Value> {
        let printed = self.run(self.quell().args(words(&[&"batch", &"status", &store, &"--json"]))).expect(0);
        let value: Value = serde_json::from_str(&printed.text()).expect("JSON");
        value["batches"].as_array().expect("a list").clone()
    }
}

#[test]
fn the_files_and_bytes_of_users_are_listed() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.batch_store();
    let quota = |options: &[&str]| stage.quota(&store, options).expect(0).text();
    let user = rustix::process::getuid().as_raw();
    let used = |files: u64, bytes: u64| {
        serde_json::json!({
            "store": { "files": files, "bytes": bytes, "files_limit": null, "bytes_limit": null },
            "each_user": { "files_limit": null, "bytes_limit": null },
            "users": [{
                "user": user, "files": files, "bytes": bytes, "files_limit": null, "bytes_limit": null,
            }],
        })
    };
    let listed = || serde_json::from_str::<Value>(&quota(&["--json"])).expect("JSON");
    // The root directory.
    assert_eq!(listed(), used(1, 0));
    for (options, files) in [(&[][..], 3), (&["--mode", "batch"][..], 5)] {
        let name = format!("mount-{files}");
        let mounted = stage.mount_batch(&store, options, &name);
        fs::create_dir(mounted.point.join(&name)).unwrap();
        fs::write(mounted.point.join(&name).join("file"), "bytes").unwrap();
        mounted.umount();
        assert_eq!(listed(), used(files, (files - 1) / 2 * 5));
    }
    assert_eq!(quota(&[]), format!("whole store  5 files, 10 B\n{user:>11}  5 files, 10 B\n"));
}

#[test]
fn operations_beyond_the_limit_of_a_store_fail_with_edquot() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.batch_store();
    let quota = |options: &[&str]| stage.quota(&store, options).expect(0).text();
    const EDQUOT: Errno = Errno::DQUOT;
    let errno = |result: std::io::Result<()>| result.map_err(|error| Errno::from_io_error(&error).unwrap());
    assert_eq!(quota(&["--whole-store", "--files", "4", "--bytes", "1M"]), "");
    // Other processes find the server of the mount, and change the limits of the mounted store.
    let mounted = stage.mount_batch(&store, &[], "mount");
    let path = |name: &str| mounted.point.join(name);
    fs::write(path("a"), [7; 1000]).unwrap();
    fs::create_dir(path("b")).unwrap();
    symlink("target", path("c")).unwrap();
    assert_eq!(errno(fs::write(path("d"), "")), Err(EDQUOT));
    assert!(!path("d").exists());
    fs::remove_file(path("c")).unwrap();
    // The size is sent to the name space when the file is closed.
    let mut file = File::create(path("d")).unwrap();
    file.write_all(&vec![7; 1 << 20]).unwrap();
    let second = file.try_clone().unwrap();
    assert_eq!(errno(file.sync_all()), Err(EDQUOT));
    assert_eq!(errno(second.sync_all()), Err(EDQUOT));
    file.set_len(0).unwrap();
    file.sync_all().unwrap();
    drop((file, second));
    let space = rustix::fs::statvfs(&mounted.point).unwrap();
    assert_eq!((space.f_files, space.f_ffree), (4, 0));
    assert_eq!(
        (space.f_blocks * space.f_frsize, space.f_bfree * space.f_frsize),
        (1 << 20, (1 << 20) - 4096)
    );
    mounted.umount();
    // A batch that was committed beyond the limit stays open.
    let mounted = stage.mount_batch(&store, &["--mode", "batch"], "batch");
    fs::write(mounted.point.join("e"), "").unwrap();
    let (code, error) = mounted.unmounted();
    assert!(code != Some(0) && error.contains("the store would have 5 inodes; the limit is 4"), "{error}");
    assert_eq!(quota(&["--whole-store", "--files", "none"]), "");
    stage.run(stage.quell().args(words(&[&"batch", &"commit", &store, &"1"]))).expect(0);
    let user = rustix::process::getuid().as_raw();
    let listed = format!("whole store  5 files, 1000 B; at most 1.00 MiB\n{user:>11}  5 files, 1000 B\n");
    assert_eq!(quota(&[]), listed);
}

#[test]
fn a_batch_is_published_when_its_mount_is_removed() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.batch_store();
    let script = r#"
        set -e; cd "$1"
        mkdir -p a/b/c; echo text > a/b/c/file; mv a/b/c a/moved; rmdir a/b
        ln -s moved/file a/link; ln a/moved/file a/hard; chmod 640 a/hard
        mkdir many; for i in $(seq 500); do : > many/$i; done
        seq 50000 > large; rm many/7
        cat a/link; stat -c '%a %h' a/moved/file
    "#;
    let batch = stage.mount_batch(&store, &["--mode", "batch", "--batch-name", "first"], "job");
    let done = stage.run(stage.command("sh").args(words(&[&"-c", &script, &"sh", &batch.point]))).expect(0);
    assert_eq!(done.text(), "text\n640 2\n");
    assert_eq!(
        stage.sh(TRUNCATE_WITH_SET_ID, &[&batch.point]).expect(0).text(),
        permissions_after_truncation()
    );
    // Other mounts show nothing of the batch yet, and can change the store meanwhile.
    let others = stage.mount_batch(&store, &[], "others");
    assert_eq!(fs::read_dir(&others.point).unwrap().count(), 0);
    fs::write(others.point.join("own"), "of others").unwrap();
    others.umount();
    batch.umount();
    let batches = stage.batches(&store);
    assert_eq!(batches[0]["state"], "committed", "{batches:?}");
    assert_eq!((&batches[0]["name"], &batches[0]["conflicts"]), (&"first".into(), &0.into()));
    let after = stage.mount_batch(&store, &[], "after");
    assert_eq!(fs::read_dir(after.point.join("many")).unwrap().count(), 499);
    assert_eq!(fs::read_to_string(after.point.join("a/link")).unwrap(), "text\n");
    assert_eq!(fs::read_to_string(after.point.join("own")).unwrap(), "of others");
    assert_eq!(fs::read_to_string(after.point.join("large")).unwrap().lines().count(), 50_000);
    // Another process cannot open the store meanwhile: the commands say so.
    let refused = stage.run(stage.quell().args(words(&[&"mount", &"--batch", &store, &stage.dir("second")])));
    refused.expect(3).says("another process has it open");
    after.umount();
}

#[test]
fn the_kernel_keeps_the_names_of_a_mount_that_alone_changes_them() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.batch_store();
    for (options, name) in [(&["--mode", "batch"][..], "job"), (&[], "whole")] {
        let mounted = stage.mount_batch(&store, options, name);
        let dir = mounted.point.join(name);
        fs::create_dir(&dir).unwrap();
        let lookups = || {
            let stats =
                stage.run(stage.quell().args(words(&[&"stats", &"--json", &mounted.point]))).expect(0);
            let stats: Value = serde_json::from_str(&stats.text()).expect("JSON");
            stats[0]["batch"]["counters"]["lookups"].as_u64().expect("a number")
        };
        // The kernel drops names when memory is short.
        let is_kept = || {
            fs::write(dir.join("file"), name).unwrap();
            let before = lookups();
            for _ in 0..100 {
                assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), name);
                assert_eq!(fs::metadata(dir.join("file")).unwrap().len(), name.len() as u64);
            }
            lookups() < before + 10
        };
        assert!((0..5).any(|_| is_kept()), "each use is a request");
        fs::remove_file(dir.join("file")).unwrap();
        assert!(!dir.join("file").exists());
        mounted.umount();
    }
    let after = stage.mount_batch(&store, &[], "after");
    let mut names: Vec<_> = fs::read_dir(&after.point).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["job", "whole"]);
    after.umount();
}

#[test]
fn a_running_batch_is_watched_and_not_disturbed() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.batch_store();
    let refused = stage.run(stage.quell().args(words(&[&"batch", &"watch", &store, &"1"])));
    refused.expect(2).says("it is not open");
    let batch = stage.mount_batch(&store, &["--mode", "batch"], "job");
    fs::create_dir(batch.point.join("dir")).unwrap();
    fs::write(batch.point.join("dir/file"), "12345").unwrap();
    // The store is open in another process meanwhile.
    let open = stage.mount_batch(&store, &[], "open");
    let list = stage.run(stage.quell().args(words(&[&"batch", &"watch", &store, &"1", &"--list"]))).expect(0);
    let lines: Vec<_> = list.text().lines().map(|line| line.trim().to_owned()).collect();
    assert_eq!(lines, ["/dir/", "5  /dir/file"]);
    // The view that answered the first command is too old for the second one.
    fs::write(batch.point.join("new"), "").unwrap();
    let list = stage.run(stage.quell().args(words(&[&"batch", &"watch", &store, &"1", &"--list"]))).expect(0);
    assert!(list.text().contains("/new"), "{}", list.text());

    let watched = stage.mount_batch(&store, &["--watch", "1"], "watched");
    let shows =
        |content: &str| fs::read_to_string(watched.point.join("dir/file")).is_ok_and(|is| is == content);
    assert!(eventually(|| shows("12345")));
    fs::write(batch.point.join("dir/file"), "later").unwrap();
    assert!(eventually(|| shows("later")));
    let refused = fs::write(watched.point.join("dir/file"), "").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let options = ["--watch", "1", "--mode", "batch"];
    let mut command = stage.quell();
    command.args(words(&[&"mount", &"--batch", &store])).args(options).arg(stage.dir("other"));
    stage.run(&mut command).expect(2).says("cannot be used with");

    open.umount();
    batch.umount();
    assert!(shows("later"), "the last state is still shown");
    watched.umount();
    assert_eq!(stage.batches(&store)[0]["state"], "committed");
}

#[test]
fn batches_of_different_directories_are_open_at_the_same_time() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.batch_store();
    let all = stage.mount_batch(&store, &[], "all");
    fs::create_dir_all(all.point.join("runs/one")).unwrap();
    fs::create_dir(all.point.join("runs/two")).unwrap();
    all.umount();
    let options = ["--mode", "batch"];
    let one = stage.mount_batch(&store.join("runs/one"), &options, "job-one");
    let two = stage.mount_batch(&store.join("runs/two"), &options, "job-two");
    let overlapping = stage.dir("overlapping");
    for path in [store.clone(), store.join("runs"), store.join("runs/one")] {
        let mut command = stage.quell();
        command.args(words(&[&"mount", &"--batch", &path])).args(options).arg(&overlapping);
        stage.run(&mut command).expect(3).says("changes a part of this tree");
    }
    let snapshots =
        stage.run(stage.quell().args(words(&[&"batch", &"snapshots", &store, &"--json"]))).expect(0);
    let snapshots: Value = serde_json::from_str(&snapshots.text()).expect("JSON");
    let snapshots = snapshots["snapshots"].as_array().expect("a list");
    assert_eq!((&snapshots[0]["batch"], &snapshots[1]["batch"]), (&1.into(), &2.into()));
    // Both began with the same image.
    assert_eq!(snapshots[0]["tables"], snapshots[1]["tables"]);
    assert_eq!((&snapshots[0]["own_bytes"], snapshots.len()), (&0.into(), 2));
    let listed = stage.run(stage.quell().args(words(&[&"batch", &"snapshots", &store]))).expect(0).text();
    assert!(listed.lines().count() == 2 && listed.contains("of this snapshot only"), "{listed}");
    for (mounted, name) in [(&one, "of-one"), (&two, "of-two")] {
        fs::create_dir_all(mounted.point.join("a/b")).unwrap();
        fs::rename(mounted.point.join("a"), mounted.point.join("moved")).unwrap();
        fs::write(mounted.point.join("moved/b").join(name), name).unwrap();
    }
    two.umount();
    one.umount();
    let after = stage.mount_batch(&store.join("runs"), &[], "after");
    for (dir, name) in [("one", "of-one"), ("two", "of-two")] {
        assert_eq!(fs::read_to_string(after.point.join(dir).join("moved/b").join(name)).unwrap(), name);
    }
    after.umount();
    let missing = stage.dir("missing");
    let refused =
        stage.run(stage.quell().args(words(&[&"mount", &"--batch", &store.join("no/such"), &missing])));
    refused.expect(2).says("no/such");
}

#[test]
fn changes_in_conflict_are_listed_and_kept() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.batch_store();
    let batch = stage.mount_batch(&store, &["--mode", "batch"], "job");
    fs::write(batch.point.join("same"), "of the batch").unwrap();
    let others = stage.mount_batch(&store, &[], "others");
    fs::write(others.point.join("same"), "of others").unwrap();
    others.umount();
    let point = batch.point.clone();
    let ended = stage.run(stage.quell().arg("umount").arg(&point)).expect(0);
    assert!(ended.err.contains("1 conflict; list them with: quell batch conflicts"), "{}", ended.err);
    let listed = stage.run(stage.quell().args(words(&[&"batch", &"conflicts", &store, &"1"]))).expect(1);
    let expected = "/same was created by others meanwhile; kept as /same.quell-conflict-1-1\n";
    assert_eq!(listed.text(), expected);
    let after = stage.mount_batch(&store, &[], "after");
    assert_eq!(fs::read_to_string(after.point.join("same")).unwrap(), "of others");
    assert_eq!(fs::read_to_string(after.point.join("same.quell-conflict-1-1")).unwrap(), "of the batch");
    after.umount();
    let command = |arguments: &[&str]| {
        let mut command = stage.quell();
        command.args(words(&[&"batch", &"conflicts", &store, &"1"])).args(arguments);
        stage.run(&mut command)
    };
    command(&["--keep", "mine"]).expect(2).says("--all");
    command(&["--keep", "mine", "/other"]).expect(2).says("no such conflict");
    command(&["--rename", "/same", "/same"]).expect(3).says("/same");
    command(&["--rename", "/mine", "/same"]).expect(0);
    assert_eq!(command(&[]).expect(0).text(), "");
    assert_eq!(command(&["--json"]).expect(0).json()["conflicts"], serde_json::json!([]));
    let after = stage.mount_batch(&store, &[], "resolved");
    assert_eq!(fs::read_to_string(after.point.join("mine")).unwrap(), "of the batch");
    assert_eq!(fs::read_dir(&after.point).unwrap().count(), 2);
    after.umount();
}

#[test]
fn a_batch_that_is_not_committed_is_reported() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.batch_store();
    let batch = stage.mount_batch(&store, &["--mode", "batch", "--atomic"], "job");
    fs::write(batch.point.join("same"), "of the batch").unwrap();
    let others = stage.mount_batch(&store, &[], "others");
    fs::write(others.point.join("same"), "of others").unwrap();
    others.umount();
    stage.run(stage.quell().arg("umount").arg(&batch.point)).expect(3).says("batch 1 was not committed");
    assert_eq!(stage.batches(&store)[0]["state"], "open");
    // The other file is removed, and another process commits the batch.
    let others = stage.mount_batch(&store, &[], "again");
    fs::remove_file(others.point.join("same")).unwrap();
    others.umount();
    stage.run(stage.quell().args(words(&[&"batch", &"commit", &store, &"1"]))).expect(0);
    let after = stage.mount_batch(&store, &[], "after");
    assert_eq!(fs::read_to_string(after.point.join("same")).unwrap(), "of the batch");
    after.umount();
}

#[test]
fn a_lazy_batch_is_verified_when_the_store_is_used() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.batch_store();
    let state = |index: usize| stage.batches(&store)[index]["state"].as_str().unwrap().to_owned();
    let batch = stage.mount_batch(&store, &["--mode", "batch", "--lazy"], "job");
    fs::write(batch.point.join("small"), "small").unwrap();
    fs::write(batch.point.join("large"), vec![7; 200_000]).unwrap();
    batch.umount();
    assert_eq!(state(0), "submitted");
    let listed = stage.run(stage.quell().args(words(&[&"batch", &"status", &store]))).expect(0);
    assert!(listed.text().contains("submitted, not verified yet"), "{}", listed.text());
    assert_eq!(state(0), "submitted", "status verifies nothing");
    let mounted = stage.mount_batch(&store, &[], "mounted");
    assert_eq!(fs::read_to_string(mounted.point.join("small")).unwrap(), "small");
    assert_eq!(fs::read(mounted.point.join("large")).unwrap(), vec![7; 200_000]);
    mounted.umount();
    assert_eq!(state(0), "committed");

    // A program, and a batch whose tables are damaged before they are verified.
    let dir = stage.dir("program");
    let job = format!("{}={}", store.display(), dir.display());
    let mut run = stage.quell();
    run.args(words(&[&"run", &"--batch", &job, &"--lazy", &"--", &"touch", &dir.join("of-program")]));
    stage.run(&mut run).expect(0);
    assert_eq!(state(1), "submitted");
    for entry in fs::read_dir(store.join("batches/2")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|suffix| suffix == "table") {
            fs::write(path, "damaged").unwrap();
        }
    }
    let mounted = stage.mount_batch(&store, &[], "mounted");
    assert!(mounted.point.join("small").exists() && !mounted.point.join("of-program").exists());
    mounted.umount();
    assert_eq!(state(1), "refused");
    assert!(stage.batches(&store)[1]["reason"].is_string());
    stage.run(stage.quell().args(words(&[&"batch", &"commit", &store, &"2"]))).expect(2);
    stage.run(stage.quell().args(words(&[&"batch", &"abort", &store, &"2"]))).expect(0);
    let refused =
        stage.run(stage.quell().args(words(&[&"mount", &"--batch", &store, &"--lazy", &stage.dir("sync")])));
    refused.expect(2).says("only with --mode batch");
}

#[test]
fn a_batch_whose_process_was_killed_is_aborted() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.batch_store();
    let batch = stage.mount_batch(&store, &["--mode", "batch"], "job");
    fs::write(batch.point.join("lost"), "text").unwrap();
    let command = |name: &str| stage.run(stage.quell().args(words(&[&"batch", &name, &store, &"1"])));
    for name in ["commit", "abort"] {
        command(name).expect(3).says("a process uses it");
    }
    send(stage.holder(), Signal::KILL);
    let point = batch.point.clone();
    drop(batch);
    assert_eq!(stage.batches(&store)[0]["state"], "open", "{}", point.display());
    command("commit").expect(2).says("before it had written its changes");
    command("abort").expect(0);
    assert_eq!(stage.batches(&store)[0]["state"], "aborted");
    command("abort").expect(0);
    // Nothing of the batch is visible, and the next batch can begin.
    let next = stage.mount_batch(&store, &["--mode", "batch"], "next");
    assert_eq!(fs::read_dir(&next.point).unwrap().count(), 0);
    next.umount();
    assert_eq!(stage.batches(&store)[1]["state"], "committed");
}

#[test]
fn a_store_is_refused_if_it_is_none() {
    let stage = Stage::new();
    let status = |store: &Path| stage.run(stage.quell().args(words(&[&"batch", &"status", &store])));
    let private = stage.dir("private");
    chmod(&private, Mode::RWXU).unwrap();
    let refused = status(&private);
    assert!(refused.err.contains("there is no store for batches in this directory"), "{}", refused.err);
    let store = stage.batch_store();
    assert!(stage.batches(&store).is_empty());
    let again = stage.run(stage.quell().args(words(&[&"batch", &"init", &store])));
    assert!(again.err.contains("the directory has other files"), "{}", again.err);
    // A store to which others have access.
    chmod(&store, Mode::from_raw_mode(0o750)).unwrap();
    assert!(status(&store).err.contains("other users have access to it"));
}

#[test]
fn umount_reports_a_batch_that_was_not_committed() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.batch_store();
    let batch = stage.mount_batch(&store, &["--mode", "batch"], "job");
    fs::write(batch.point.join("lost"), "text").unwrap();
    send(stage.holder(), Signal::KILL);
    assert!(crate::stage::eventually(|| stage.holders().is_empty()));
    let ended = stage.run(stage.quell().arg("umount").arg(&batch.point)).expect(3);
    let ended = ended.says("batch 1 was not committed").says("are lost").says("quell batch abort");
    assert!(!ended.err.contains("quell batch commit"), "{}", ended.err);
    stage.run(stage.quell().args(words(&[&"batch", &"abort", &store, &"1"]))).expect(0);
    // Data that could not be saved at the end is reported as well.
    let own = stage.mount_batch(&store, &["--mode", "batch"], "job");
    fs::write(own.point.join("file"), "text").unwrap();
    fs::rename(store.join("tables"), store.join("away")).unwrap();
    let ended = stage.run(stage.quell().arg("umount").arg(&own.point)).expect(3);
    ended.says("could not be saved").says("was not committed").says("quell batch commit");
    fs::rename(store.join("away"), store.join("tables")).unwrap();
    stage.run(stage.quell().args(words(&[&"batch", &"commit", &store, &"2"]))).expect(0);
}
