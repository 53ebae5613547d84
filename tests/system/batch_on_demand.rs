//! Servers of stores for batches that run in the background: `quell batch serve --background`, and
//! those that the option `--serve` of mounts and programs starts.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::batch::can_mount;
use crate::stage::{Ended, Stage, eventually, send, words};

impl Stage {
    /// Returns the servers in the background that this stage has started.
    fn background_servers(&self) -> Vec<i32> {
        let is_server = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == b"--detached")
        };
        self.processes().into_iter().filter(is_server).collect()
    }

    /// Returns the only server in the background. Others that were started at the same time have
    /// ended, or end.
    #[track_caller]
    fn background_server(&self) -> i32 {
        assert!(eventually(|| self.background_servers().len() == 1), "{:?}", self.background_servers());
        self.background_servers()[0]
    }

    fn end_background_server(&self, signal: Signal) {
        let server = self.background_server();
        send(server, signal);
        assert!(eventually(|| self.background_servers().is_empty()));
    }

    fn serve_in_background(&self, store: &Path, options: &[&str]) -> Ended {
        self.run(self.quell().args(words(&[&"batch", &"serve", &store, &"--background"])).args(options))
    }
}

#[test]
fn mounts_that_start_at_the_same_time_share_one_server() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.batch_store();
    let names: Vec<String> = (0..6).map(|number| format!("mount-{number}")).collect();
    let mounts: Vec<_> = std::thread::scope(|scope| {
        let started: Vec<_> = (names.iter())
            .map(|name| scope.spawn(|| stage.mount_batch(&store, &["--serve"], name)))
            .collect();
        started.into_iter().map(|mount| mount.join().expect("a mount")).collect()
    });
    stage.background_server();
    for (number, mount) in mounts.iter().enumerate() {
        fs::write(mount.point.join(number.to_string()), "of a mount").unwrap();
    }
    for mount in &mounts {
        assert_eq!(fs::read_dir(&mount.point).unwrap().count(), mounts.len());
    }
    // The server belongs to no mount.
    let mut mounts = mounts.into_iter();
    let (last, first) = (mounts.next_back().expect("a mount"), mounts.next().expect("a mount"));
    mounts.for_each(|mount| mount.umount());
    fs::write(last.point.join("later"), "of the last mount").unwrap();
    assert_eq!(fs::read_to_string(first.point.join("later")).unwrap(), "of the last mount");
    // After a server was killed, the next use of the store starts another one, and the other mounts
    // continue with it.
    stage.end_background_server(Signal::KILL);
    let next = stage.mount_batch(&store, &["--serve"], "next");
    assert_eq!(fs::read_to_string(first.point.join("later")).unwrap(), "of the last mount");
    fs::write(first.point.join("later"), "of the first mount").unwrap();
    assert_eq!(fs::read_to_string(next.point.join("later")).unwrap(), "of the first mount");
    for mount in [first, last, next] {
        mount.umount();
    }
    stage.end_background_server(Signal::TERM);
    assert!(!store.join("socket").exists());
}

#[test]
fn programs_share_a_server_with_mounts() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.batch_store();
    let mount = stage.mount_batch(&store, &["--serve"], "mount");
    let seen = stage.dir("seen");
    for (number, via) in [&[][..], &["--via", "preload"]].into_iter().enumerate() {
        for (mode, expected) in [("sync", "synchronous"), ("batch", "of a batch")] {
            let name = format!("{number}-{mode}");
            let mut command: Command = stage.quell();
            command.arg("run").args(via).args(["--serve", "--mode", mode, "--batch"]);
            command.arg(format!("{}={}", store.display(), seen.display()));
            command
                .args(["--", "sh", "-c", r#"printf %s "$2" > "$1""#, "sh"])
                .arg(seen.join(&name))
                .arg(expected);
            let ended = stage.run(&mut command).expect(0);
            assert_eq!((ended.text().as_str(), ended.err.as_str()), ("", ""), "success prints nothing");
            assert_eq!(fs::read_to_string(mount.point.join(&name)).unwrap(), expected);
        }
    }
    mount.umount();
    stage.end_background_server(Signal::TERM);
}

#[test]
fn a_server_in_the_background_ends_after_its_last_client() {
    let stage = Stage::new();
    let store = stage.batch_store();
    let started = stage.serve_in_background(&store, &["--idle", "1", "--json"]).expect(0);
    let line: Value = serde_json::from_str(&started.text()).expect("JSON");
    assert_eq!(line["store"].as_str(), store.to_str());
    assert!(line["address"].is_null());
    // A client keeps the server, without any request.
    if can_mount() {
        let mount = stage.mount_batch(&store, &[], "mount");
        let server = stage.background_server();
        std::thread::sleep(std::time::Duration::from_secs(2));
        assert_eq!(stage.background_servers(), [server]);
        fs::write(mount.point.join("file"), "").unwrap();
        mount.umount();
    }
    assert!(eventually(|| stage.background_servers().is_empty()));
    assert!(!store.join("socket").exists());
    assert!(stage.batches(&store).is_empty(), "the store can be opened without a server");
}

#[test]
fn a_server_in_the_background_that_cannot_start_reports_the_reason() {
    let stage = Stage::new();
    let store = stage.batch_store();
    stage.serve_in_background(&stage.path("missing"), &[]).expect(2).says("missing");
    stage.serve_in_background(&store, &["--listen", "nonsense"]).expect(2).says("--listen nonsense");
    stage.serve_in_background(&store, &[]).expect(0);
    stage.serve_in_background(&store, &[]).expect(3).says("has a server already");
    let stop = || stage.run(stage.quell().args(words(&[&"batch", &"serve", &store, &"--stop"])));
    stop().expect(0);
    assert!(stage.background_servers().is_empty(), "the command waits for the end of the server");
    stop().expect(3).says("no process of this node serves the store");
    if !can_mount() {
        return;
    }
    // A mount without a server has the store open.
    let own = stage.mount_batch(&store, &[], "own");
    let point = stage.dir("other");
    let other = stage.run(stage.quell().args(words(&[&"mount", &"--batch", &store, &"--serve", &point])));
    other.expect(3).says("another process has it open");
    assert!(stage.background_servers().is_empty());
    own.umount();
}
