//! The means to find the cause of a slow or hung program: `QUELL_LOG`, `--log-file`, and SIGUSR1.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;

use crate::boot;
use crate::log::{CONTAINERS, Fixture};
use crate::stage::{Stage, eventually, send};
use crate::trees;

#[test]
fn quell_log_writes_events_to_standard_error_and_nothing_is_written_without_it() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let index = stage.index(&tree);
    let mut command = stage.quell();
    command.args(["run", "--strict", "-i"]).arg(&index).args(["--", "cat"]).arg(tree.join("readme"));
    let ended = stage.run(&mut command).expect(0);
    assert_eq!((ended.text().as_str(), ended.err.as_str()), ("hello\n", ""));
    // The events of the command itself, and those of the holder that it starts.
    let ended = stage.run(command.env("QUELL_LOG", "debug")).expect(0).says("starting a holder");
    assert_eq!(ended.text(), "hello\n");
    assert!(eventually(|| stage.holders().is_empty()));
    let ended = stage.run(command.env("QUELL_LOG", "quell_posix=debug")).expect(0);
    assert!(ended.err.contains("backend{operation="), "{}", ended.err);
    assert!(!ended.err.contains("starting a holder"), "{}", ended.err);
}

#[test]
fn a_wrong_filter_is_a_usage_error_with_an_example() {
    let stage = Stage::new();
    let ended = stage.run(stage.quell().arg("doctor").env("QUELL_LOG", "quell_fuse=loud")).expect(2);
    ended.says("QUELL_LOG=quell_fuse=loud").says("for example: QUELL_LOG=debug");
}

#[test]
fn a_log_file_receives_the_events_of_the_command_and_of_its_holder() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let index = stage.index(&tree);
    let log = stage.path("trace");
    let mut command = stage.quell();
    command.args(["run", "--strict", "--view", "fuse", "-i"]).arg(&index).arg("--log-file").arg(&log);
    let ended = stage.run(command.args(["--", "cat"]).arg(tree.join("readme"))).expect(0);
    assert_eq!((ended.text().as_str(), ended.err.as_str()), ("hello\n", ""));
    assert!(eventually(|| stage.holders().is_empty()));
    let events = fs::read_to_string(&log).unwrap();
    assert!(events.contains("starting a holder"), "{events}");
    assert!(events.contains("request{operation=\"open\""), "{events}");
    assert!(events.contains("close time.busy="), "{events}");
}

#[test]
fn the_index_layer_reports_that_it_reads_and_compares_trees() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let index = stage.path("tree.quell");
    let mut command = stage.quell();
    command.args(["index", "-q"]).arg(&tree).arg("-o").arg(&index);
    let ended = stage.run(command.env("QUELL_LOG", "quell_index=debug")).expect(0);
    ended.says("read_tree{root=").says("read the tree entries=").says("close time.busy=");
    let mut command = stage.quell();
    command.args(["run", "-q", "--strict", "-i"]).arg(&index).args(["--", "true"]);
    command.env("QUELL_LOG", "quell_index=debug,quell_mount_spec=debug");
    let ended = stage.run(&mut command).expect(0);
    ended.says("loaded an index path=").says("compared the tree with its index entries=");
    assert!(eventually(|| stage.holders().is_empty()));
}

#[test]
fn the_boot_layer_reports_images_and_damaged_frames() {
    let fixture = boot::Fixture::new();
    fixture.record(&["-q", "--exact"], boot::START).expect(0);
    let log = fixture.stage.path("trace");
    let options = ["-q", "--check", "none", "--log-file", log.to_str().unwrap()];
    fixture.run(&options, boot::START).expect(0);
    let events = || fs::read_to_string(&log).unwrap();
    assert!(events().contains("opened the boot image of a tree files=3 files_changed=0"), "{}", events());
    assert!(!events().contains("the boot image is damaged"), "{}", events());
    assert!(eventually(|| fixture.stage.holders().is_empty()));
    // The last byte of the image belongs to its last frame.
    let mut image = fs::read(&fixture.image).unwrap();
    *image.last_mut().unwrap() ^= 1;
    fs::write(&fixture.image, image).unwrap();
    fixture.run(&options, boot::START).expect(0);
    assert!(events().contains("the boot image is damaged section=\"frame\""), "{}", events());
}

#[test]
fn the_log_layer_reports_containers_truncations_and_flat_indexes() {
    let Some(fixture) = Fixture::new() else { return };
    let log = fixture.stage.path("trace");
    let log_file = ["--log-file", log.to_str().unwrap()];
    let mounted = fixture.mount_with(&[&fixture.store], &[CONTAINERS, &log_file].concat());
    let file = mounted.point.join("file");
    fs::write(&file, "content").unwrap();
    fs::File::options().write(true).open(&file).unwrap().set_len(3).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "con");
    mounted.umount();
    let mut command = fixture.stage.quell();
    command.args(["log", "flatten"]).arg(&fixture.store).arg("file").args(log_file);
    fixture.stage.run(&mut command).expect(0);
    let events = fs::read_to_string(&log).unwrap();
    for event in [
        "opening a store path=",
        "created a container container=",
        "taking epochs container=",
        "truncating a file container=",
        "read the index of a file container=",
        "created a flat index container=",
    ] {
        assert!(events.contains(event), "{event}\n{events}");
    }
    assert!(events.contains("size_bytes=3 epoch="), "{events}");
}

/// Continues a stopped process when dropped, so that a failed test leaves no stopped process.
struct Stopped(i32);

impl Drop for Stopped {
    fn drop(&mut self) {
        send(self.0, Signal::CONT);
    }
}

#[test]
fn sigusr1_lists_the_requests_that_a_hung_mount_is_answering() {
    let Some(fixture) = Fixture::new() else { return };
    let stage = &fixture.stage;
    // The tree lies on a mount whose process is stopped below: a file system that does not answer.
    let lower = fixture.mount();
    let lower_holder = stage.holder();
    let tree = lower.point.join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("data"), "content").unwrap();
    let index = stage.index(&tree);
    let upper = stage.mount(&index, "fuse", &["--check", "none"]);
    let holders = stage.holders();
    let upper_holder = holders.into_iter().find(|pid| *pid != lower_holder).unwrap();
    let stats = stage.run(stage.quell().arg("stats").arg(&upper.point)).expect(0).text();
    let line = stats.lines().find_map(|line| line.trim().strip_prefix("messages"));
    let log = PathBuf::from(line.expect(&stats).trim());
    let messages = || fs::read_to_string(&log).unwrap_or_default();

    let stopped = Stopped(lower_holder);
    send(lower_holder, Signal::STOP);
    let mut reader = stage.start(stage.command("cat").arg(upper.point.join("data")));
    let is_listed = eventually(|| {
        send(upper_holder, Signal::USR1);
        messages().contains("of data, for ") || !reader.is_running()
    });
    assert!(is_listed && messages().contains("1 request is in flight:"), "{}", messages());
    assert!(reader.is_running());
    drop(stopped);

    assert_eq!(reader.wait().expect(0).text(), "content");
    let is_idle = eventually(|| {
        send(upper_holder, Signal::USR1);
        messages().contains("no request is in flight")
    });
    assert!(is_idle, "{}", messages());
    upper.umount();
    lower.umount();
    fs::remove_file(&log).unwrap();
}
