//! Faults of log mounts: killed writers, killed mounts, stores that are full, read-only or gone,
//! and mounts that are unmounted while in use. Synced data must survive, no other data may appear,
//! and nothing may hang.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::log::{CONTAINERS, Fixture, walk};
use crate::log_fixture;
use crate::log_sharing::{SMALL_BYTES, process, small_record};
use crate::skip;
use crate::stage::{Mounted, Running, Stage, eventually, is_mounted, is_root, send};
use crate::trees::{noise, set_mode};

/// Returns the number of rounds that a writer has reported.
fn done(output: &str) -> u64 {
    // The last line may be incomplete.
    let whole = output.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let count = |line: &str| line.split_once("done ")?.1.parse().ok();
    whole.lines().rev().find_map(count).unwrap_or(0)
}

/// Checks that each reported round of each writer is present, and that every other round is either
/// complete or missing.
fn check(path: &Path, acknowledged: &[u64], when: &str) {
    let bytes = fs::read(path).unwrap();
    let processes = acknowledged.len() as u64;
    for (number, record) in bytes.chunks(SMALL_BYTES).enumerate() {
        let number = number as u64;
        if record != small_record(number) {
            assert!(record.iter().all(|byte| *byte == 0), "{when}: record {number} is invented");
            assert!(
                number / processes >= acknowledged[(number % processes) as usize],
                "{when}: record {number} is lost"
            );
        }
    }
    for (number, acknowledged) in
        acknowledged.iter().enumerate().filter(|(_, acknowledged)| **acknowledged > 0)
    {
        let last = (acknowledged - 1) * processes + number as u64;
        assert!(bytes.len() as u64 >= (last + 1) * SMALL_BYTES as u64, "{when}: record {last} is lost");
    }
}

fn start_all(stage: &Stage, what: &str, processes: u64, path: &Path) -> Vec<Running> {
    let mut all: Vec<_> = (0..processes)
        .map(|number| stage.start(&mut process(stage, what, number, processes, path)))
        .collect();
    for one in &mut all {
        one.wait_for_output("done ");
    }
    all
}

#[test]
fn synced_data_survives_a_killed_mount() {
    let fixture = log_fixture!();
    for round in 0..6u64 {
        let options: &[&str] = match round % 3 {
            0 => &[],
            1 => &["--buffer", "4K"],
            _ => &["--buffer", "32K", "--index", "flatten"],
        };
        let mounted = fixture.mount_with(&[&fixture.store], options);
        let path = mounted.point.join(format!("file{round}"));
        let writers = start_all(&fixture.stage, "sync", 3, &path);
        std::thread::sleep(Duration::from_millis(round * 37 % 100));
        send(fixture.stage.holders()[0], Signal::KILL);
        let acknowledged: Vec<u64> = writers
            .into_iter()
            .map(|writer| {
                let ended = writer.wait().expect(0).text();
                assert!(ended.contains("ended "), "{ended}");
                done(&ended)
            })
            .collect();
        let point = mounted.point.clone();
        fixture
            .stage
            .run(&mut fixture.command(&[&fixture.store], &[], &point))
            .expect(2)
            .says("quell umount");
        mounted.umount();
        let again = fixture.mount();
        let path = again.point.join(format!("file{round}"));
        check(&path, &acknowledged, &format!("round {round}"));
        // The file can still be written.
        let mut file = File::options().append(true).open(&path).unwrap();
        let size = file.metadata().unwrap().len();
        file.write_all(b"more").unwrap();
        drop(file);
        assert_eq!(fs::metadata(&path).unwrap().len(), size + 4);
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.ends_with(b"more"));
        again.umount();
    }
}

#[test]
fn other_mounts_keep_working_when_one_is_killed() {
    let fixture = log_fixture!();
    let one = fixture.mount();
    let holder = fixture.stage.holder();
    let other = fixture.mount();
    let writers = start_all(&fixture.stage, "sync", 2, &one.point.join("file"));
    let reader = File::options().read(true).write(true).open(other.point.join("file")).unwrap();
    send(holder, Signal::KILL);
    let acknowledged: Vec<u64> =
        writers.into_iter().map(|writer| done(&writer.wait().expect(0).text())).collect();
    check(&other.point.join("file"), &acknowledged, "from another mount");
    reader.sync_all().unwrap();
    reader.write_all_at(b"over", 0).unwrap();
    drop(reader);
    assert!(fs::read(other.point.join("file")).unwrap().starts_with(b"over"));
    fs::remove_file(other.point.join("file")).unwrap();
    one.umount();
    other.umount();
    assert_eq!(fixture.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn data_of_a_killed_program_is_kept() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    for round in 0..4u64 {
        let path = mounted.point.join(format!("file{round}"));
        let writers = start_all(&fixture.stage, "write", 3, &path);
        std::thread::sleep(Duration::from_millis(round * 29 % 70));
        for writer in &writers {
            writer.signal(Signal::KILL);
        }
        // Neither synced nor closed by the writer, but its node is still running.
        let acknowledged: Vec<u64> = writers.into_iter().map(|writer| done(&writer.wait().text())).collect();
        check(&path, &acknowledged, "on this mount");
        assert!(eventually(|| fixture.open_records().is_empty()), "{:?}", fixture.open_records());
        let other = fixture.mount();
        check(&other.point.join(format!("file{round}")), &acknowledged, "on another mount");
        other.umount();
    }
    mounted.umount();
}

#[test]
fn a_mount_in_use_is_kept_unless_forced_and_keeps_written_data() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let mut file = File::create(mounted.point.join("file")).unwrap();
    file.write_all(b"written").unwrap();
    let removed = File::create(mounted.point.join("removed")).unwrap();
    removed.write_all_at(b"x", 0).unwrap();
    fs::remove_file(mounted.point.join("removed")).unwrap();
    let umount = |options: &[&str]| {
        fixture.stage.run(fixture.stage.quell().arg("umount").args(options).arg(&mounted.point))
    };
    let refused = umount(&[]).expect(3);
    assert!(refused.err.contains("in use") || refused.err.contains("busy"), "{}", refused.err);
    file.write_all(b" and more").unwrap();
    umount(&["--force"]).expect(0);
    assert!(!is_mounted(&mounted.point) && fixture.stage.processes().is_empty());
    assert!(file.write_all(b"lost").is_err());
    drop((file, removed));
    assert_eq!((fixture.open_records(), fixture.leftovers()), (Vec::new(), Vec::new()));
    let again = fixture.mount();
    assert_eq!(fs::read_to_string(again.point.join("file")).unwrap(), "written and more");
    assert_eq!(fs::read_dir(&again.point).unwrap().count(), 1);
    again.umount();
}

#[test]
fn a_store_that_is_removed_under_a_mount_gives_errors_and_no_more() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    fs::create_dir(mounted.point.join("dir")).unwrap();
    fs::write(mounted.point.join("dir/file"), noise(100_000, 3)).unwrap();
    let mut open = File::options().read(true).write(true).open(mounted.point.join("dir/file")).unwrap();
    open.write_all(b"written before").unwrap();
    fs::remove_dir_all(&fixture.store).unwrap();
    let script = "cd \"$1\"; cat dir/file; echo x >dir/file; echo x >new; mkdir sub; ls -la . dir; rm -rf dir; mv a b; stat .; df . ; true";
    fixture.stage.sh(script, &[&mounted.point]).expect(0);
    let _ = open.write_all(b"x").and_then(|()| open.sync_all());
    let _ = open.read(&mut [0; 10]);
    drop(open);
    // The same process still answers.
    assert_eq!(fixture.stage.holders().len(), 1);
    fixture.stage.run(fixture.stage.quell().args(["stats", "--json"]).arg(&mounted.point)).expect(0);
    mounted.umount();
    fixture.stage.expect_nothing_left();
}

/// A small file system for stores, which is unmounted on drop.
pub struct Small {
    pub path: PathBuf,
}

impl Small {
    /// Returns `None`, and prints the reason, if this user cannot mount one.
    pub fn new(stage: &Stage, size: &str) -> Option<Small> {
        let path = stage.dir("small");
        if !is_root() {
            println!("SKIPPED: an ordinary user cannot mount a small file system");
            return None;
        }
        let mut mount = stage.command("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size},mode=755"), "quell-test"]).arg(&path);
        stage.run(&mut mount).expect(0);
        Some(Small { path })
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        if is_mounted(&self.path) {
            let _ = Command::new("umount").arg("-l").arg(&self.path).status();
        }
    }
}

#[test]
fn a_full_store_is_an_error_until_space_is_freed() {
    let Some(fixture) = Fixture::new() else { return };
    for form in ["container", "object"] {
        let Some(small) = Small::new(&fixture.stage, "4m") else { return };
        check_full_store(&fixture, &small, form);
    }
}

/// Checks a store in a small file system. New files begin in this form.
fn check_full_store(fixture: &Fixture, small: &Small, form: &str) {
    let mounted = fixture.mount_with(&[&small.path], &["--new-files", form]);
    fs::write(mounted.point.join("kept"), noise(100_000, 5)).unwrap();
    // A program that writes more than fits gets an error at a write or at the close.
    let script = "dd if=/dev/urandom of=\"$1/big\" bs=64K count=200 conv=notrunc 2>&1; echo code $?";
    let printed = fixture.stage.sh(script, &[&mounted.point]).text();
    assert!(printed.contains("No space left") && printed.contains("code 1"), "{printed}");
    assert!(fs::read(mounted.point.join("kept")).unwrap() == noise(100_000, 5));
    fs::remove_file(mounted.point.join("big")).unwrap();
    assert!(eventually(|| fs::write(mounted.point.join("again"), noise(1_000_000, 6)).is_ok()));
    assert!(fs::read(mounted.point.join("again")).unwrap() == noise(1_000_000, 6));
    // Collected data that does not fit is kept for another attempt.
    let filler = small.path.join("filler");
    let file = File::create(mounted.point.join("waits")).unwrap();
    file.write_all_at(b"begun", 0).unwrap();
    file.sync_all().unwrap();
    let _ = File::create(&filler).unwrap().write_all(&vec![1; 4 << 20]);
    let written = file.write_all_at(&noise(500_000, 7), 0);
    if form == "object" {
        // The file needs a container for this write.
        assert_eq!(written.unwrap_err().raw_os_error(), Some(28), "ENOSPC");
        fs::remove_file(&filler).unwrap();
        file.write_all_at(&noise(500_000, 7), 0).unwrap();
    } else {
        written.unwrap();
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(28), "ENOSPC");
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(28), "ENOSPC");
        fs::remove_file(&filler).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    mounted.umount();
    let mounted = fixture.mount_with(&[&small.path], &[]);
    assert!(fs::read(mounted.point.join("waits")).unwrap() == noise(500_000, 7));
    assert!(fs::read(mounted.point.join("kept")).unwrap() == noise(100_000, 5));
    mounted.umount();
}

/// Files whose data fits no longer are removed while they are open: neither the failed writes nor
/// the closes leave anything in the store.
#[test]
fn files_removed_in_a_full_store_leave_nothing_in_it() {
    let Some(fixture) = Fixture::new() else { return };
    let Some(small) = Small::new(&fixture.stage, "4m") else { return };
    let mounted = fixture.mount_with(&[&small.path], &["--buffer", "64K"]);
    let names: Vec<_> = (0..8).map(|number| mounted.point.join(format!("open{number}"))).collect();
    let open: Vec<File> = names.iter().map(|name| File::create_new(name).unwrap()).collect();
    // Two files have logs before the store is full, one of them with a synced frame.
    open[0].write_all_at(&noise(1000, 1), 0).unwrap();
    open[0].sync_all().unwrap();
    open[1].write_all_at(&noise(100_000, 2), 0).unwrap();
    let _ = File::create(small.path.join("filler")).unwrap().write_all(&vec![1; 4 << 20]);
    let is_full = |result: std::io::Result<()>| result.is_err_and(|error| error.raw_os_error() == Some(28));
    for file in &open[..6] {
        file.write_all_at(&noise(40_000, 3), 0).unwrap();
    }
    assert!(is_full(open[2].sync_all()) && is_full(open[6].write_all_at(&noise(100_000, 4), 0)));
    assert!(is_full(File::create_new(mounted.point.join("another")).map(drop)));
    for name in &names {
        fs::remove_file(name).unwrap();
    }
    // Some of these writes fail, others only when the files are closed.
    open.iter().for_each(|file| drop(file.write_all_at(&noise(40_000, 5), 50_000)));
    drop(open);
    let left = || -> Vec<PathBuf> {
        let areas = ["trash", "new", "parts"].map(|area| small.path.join(".quell").join(area));
        let names = areas.iter().flat_map(|area| fs::read_dir(area).unwrap());
        names.map(|entry| entry.unwrap().path()).collect()
    };
    assert!(eventually(|| left().is_empty()), "{:?}", left());
    mounted.umount();
    assert_eq!(left(), Vec::<PathBuf>::new());
}

#[test]
fn a_store_that_becomes_read_only_can_still_be_read() {
    let Some(fixture) = Fixture::new() else { return };
    let Some(small) = Small::new(&fixture.stage, "16m") else { return };
    // A mount keeps objects open that it has created, so the file system would stay writable.
    let mounted = fixture.mount_with(&[&small.path], CONTAINERS);
    fs::write(mounted.point.join("file"), noise(100_000, 5)).unwrap();
    let remount = |mode: &str| {
        eventually(|| {
            fixture.stage.sh("mount -o remount,$2 \"$1\"", &[&small.path, Path::new(mode)]).code() == Some(0)
        })
    };
    assert!(remount("ro"));
    assert!(fs::read(mounted.point.join("file")).unwrap() == noise(100_000, 5));
    assert_eq!(fs::read_dir(&mounted.point).unwrap().count(), 1);
    let number = |e: std::io::Error| e.raw_os_error();
    assert_eq!(fs::write(mounted.point.join("new"), "x").map_err(number), Err(Some(30)), "EROFS");
    assert_eq!(fs::remove_file(mounted.point.join("file")).map_err(number), Err(Some(30)));
    let file = File::options().write(true).open(mounted.point.join("file")).unwrap();
    let changed = file.write_all_at(b"x", 0).and_then(|()| file.sync_all());
    assert_eq!(changed.map_err(number), Err(Some(30)));
    drop(file);
    mounted.umount_with_lost_data("Read-only file system");
    let point = fixture.point();
    fixture.stage.run(&mut fixture.command(&[&small.path], &[], &point)).expect(3).says("mounted read-only");
    assert!(remount("rw"));
    let mounted = fixture.mount_with(&[&small.path], &[]);
    assert!(fs::read(mounted.point.join("file")).unwrap() == noise(100_000, 5));
    mounted.umount();
}

#[test]
fn the_file_system_of_a_store_stays_as_long_as_the_mount() {
    let Some(fixture) = Fixture::new() else { return };
    let Some(small) = Small::new(&fixture.stage, "16m") else { return };
    let mounted = fixture.mount_with(&[&small.path], &[]);
    fs::write(mounted.point.join("file"), "x").unwrap();
    let busy = fixture.stage.sh("umount \"$1\"", &[&small.path]);
    assert_ne!(busy.code(), Some(0));
    fixture.stage.sh("umount -l \"$1\"", &[&small.path]).expect(0);
    fs::write(mounted.point.join("more"), "y").unwrap();
    assert_eq!(fs::read_to_string(mounted.point.join("file")).unwrap(), "x");
    mounted.umount();
}

const NOBODY: &str = "65534";

fn as_nobody(stage: &Stage, script: &str, paths: &[&Path]) -> String {
    let mut command = stage.command("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "sh", "-c", script, "sh"]);
    stage.run(command.args(paths)).text()
}

#[test]
fn modes_and_owners_limit_other_users_on_the_mount_and_in_the_store() {
    if !is_root() {
        skip!("only root can look as another user");
    }
    for form in ["container", "object"] {
        check_other_users(&log_fixture!(), form);
    }
}

/// Checks the permissions of another user in a mount and its store. New files begin in this form.
fn check_other_users(fixture: &Fixture, form: &str) {
    let mounted = fixture.mount_with(&[&fixture.store], &["--new-files", form]);
    let at = |name: &str| mounted.point.join(name);
    for (name, mode) in [("private", 0o600), ("shared", 0o644), ("common", 0o666)] {
        fs::write(at(name), "secret words").unwrap();
        set_mode(&at(name), mode);
    }
    fs::create_dir(at("open")).unwrap();
    set_mode(&at("open"), 0o1777);
    set_mode(&mounted.point, 0o755);
    let script = "exec 2>&1; cd \"$1\"; for f in private shared common; do cat $f; echo; echo theirs >$f && echo wrote $f; done; \
                  rm private; touch new; chmod 777 shared; echo mine >open/mine && chmod 600 open/mine && cat open/mine; \
                  stat -c '%u %g %a' open/mine; rm open/mine; mkdir open/dir && stat -c %u open/dir; true";
    let printed = as_nobody(&fixture.stage, script, &[&mounted.point]);
    let denied = printed.matches("ermission denied").count() + printed.matches("not permitted").count();
    assert!(denied >= 6, "{printed}");
    assert_eq!(printed.matches("secret words").count(), 2, "{printed}");
    for words in ["wrote common", "mine\n65534 65534 600\n", "\n65534\n"] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    assert!(!printed.contains("wrote private") && !printed.contains("wrote shared"), "{printed}");
    assert_eq!(fs::read_to_string(at("common")).unwrap(), "theirs\n");
    // In the store, the same permissions apply to the files of the containers.
    let script =
        "find \"$1\" \\( -name '*.data' -o -name '*.container' -type f \\) 2>/dev/null | xargs -r cat; true";
    let found = as_nobody(&fixture.stage, script, &[&fixture.store.join("private.container")]);
    assert!(!found.contains("secret"), "{found}");
    let found = as_nobody(&fixture.stage, script, &[&fixture.store.join("shared.container")]);
    assert!(found.contains("secret words"));
    // If read permission is removed later, data that was written before becomes unreadable, too.
    set_mode(&at("shared"), 0o600);
    assert!(
        !as_nobody(&fixture.stage, script, &[&fixture.store.join("shared.container")]).contains("secret")
    );
    mounted.umount();
    // Logs belong to their writers, for quotas.
    let mut owners = Vec::new();
    walk(&fixture.store, &mut |path| {
        if path.extension().is_some_and(|e| e == "data") {
            owners.push(std::os::unix::fs::MetadataExt::uid(&fs::metadata(path).unwrap()));
        }
    });
    owners.sort_unstable();
    owners.dedup();
    // The first data of root's files is in their objects.
    assert_eq!(owners, if form == "object" { vec![65534] } else { vec![0, 65534] });
}

#[test]
fn an_ordinary_users_mount_is_closed_to_others() {
    if is_root() {
        skip!("all users have access to root's mounts");
    }
    let fixture = log_fixture!();
    let allowed = fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "user_allow_other"));
    let point = fixture.point();
    let mut command = fixture.command(&[&fixture.store], &["--allow-other"], &point);
    let ended = fixture.stage.run(&mut command);
    if allowed {
        ended.expect(0);
        Mounted::at(&fixture.stage, point).umount();
    } else {
        ended.expect(3).says("user_allow_other");
    }
    fixture.stage.expect_nothing_left();
}

#[test]
fn a_program_that_waits_for_input_sees_the_mount_go() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    fs::write(mounted.point.join("file"), "text").unwrap();
    let mut user = fixture.stage.command("sh");
    user.args(["-c", "exec 3<file; echo ready; read line; cat <&3; cat file; echo went on; exit 4"]);
    let mut user = fixture.stage.start(user.current_dir(&mounted.point).stdin(Stdio::piped()));
    user.wait_for_output("ready");
    send(fixture.stage.holder(), Signal::KILL);
    assert!(eventually(|| fixture.stage.holders().is_empty()));
    drop(user.stdin());
    let ended = user.wait().expect(4);
    assert!(ended.text().ends_with("went on\n"), "{}", ended.text());
    mounted.umount();
}

/// An ext4 on a loop device whose file lies on a tmpfs. When the tmpfs is full, the device cannot
/// write new blocks of that file. ext4 accepts writes, because it has free blocks itself, and their
/// writeback fails.
pub struct FailingDevice<'a> {
    stage: &'a Stage,
    backing: PathBuf,
    pub point: PathBuf,
}

impl FailingDevice<'_> {
    /// Returns `None`, and prints the reason, if this user cannot create one.
    pub fn if_possible(stage: &Stage) -> Option<FailingDevice<'_>> {
        let reason = match File::options().read(true).write(true).open("/dev/loop-control") {
            _ if !is_root() => "a block device that fails needs root",
            Err(_) => "no loop devices",
            Ok(_) => return Some(FailingDevice::new(stage)),
        };
        println!("SKIPPED: {reason}");
        None
    }

    fn new(stage: &Stage) -> FailingDevice<'_> {
        let device = FailingDevice { stage, backing: stage.dir("backing"), point: stage.dir("device") };
        let script = "mount -t tmpfs -o size=96m quell-test \"$1\" && \
             dd if=/dev/zero of=\"$1/disk\" bs=1M count=64 status=none && \
             mkfs.ext4 -q -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 \"$1/disk\"";
        stage.sh(script, &[&device.backing]).expect(0);
        device.mount();
        device
    }

    pub fn mount(&self) {
        let script = "mount -o loop,commit=300 \"$1/disk\" \"$2\"";
        self.stage.sh(script, &[&self.backing, &self.point]).expect(0);
    }

    pub fn unmount(&self) {
        self.stage.sh("umount \"$1\"", &[&self.point]).expect(0);
    }

    /// Fills the tmpfs, so that blocks of the device that no file uses yet cannot be written.
    pub fn fail(&self) {
        // Only this file system is synced, not the dirty data of other file systems.
        let script = "sync -f \"$2\" && fstrim \"$2\" && ! cat /dev/zero >\"$1/ballast\"";
        self.stage.sh(script, &[&self.backing, &self.point]).expect(0);
    }

    pub fn work(&self) {
        fs::remove_file(self.backing.join("ballast")).unwrap();
    }
}

impl Drop for FailingDevice<'_> {
    fn drop(&mut self) {
        // Runs after a failed assertion, too. The loop device is freed with its mount.
        let _ = self.stage.sh("umount -l \"$2\"; umount -l \"$1\"", &[&self.backing, &self.point]);
    }
}

#[test]
fn a_failed_writeback_of_a_real_device_is_an_error_until_the_data_was_written_again() {
    let fixture = log_fixture!();
    let Some(device) = FailingDevice::if_possible(&fixture.stage) else { return };
    let store = device.point.join("store");
    fs::create_dir(&store).unwrap();
    // A write that creates the container of an object would fail at once.
    let mounted = fixture.mount_with(&[&store], CONTAINERS);
    let path = mounted.point.join("file");
    let of_a = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    of_a.write_all_at(&[1; 100_000], 0).unwrap();
    of_a.sync_all().unwrap();
    // Another process opens the file, syncs it and closes it.
    let sync = |code: i32| drop(fixture.stage.sh("sync \"$1\"", &[&path]).expect(code));
    device.fail();
    let data = noise(1_200_000, 7);
    of_a.write_all_at(&data, 0).unwrap();
    sync(1);
    for attempt in 0..3 {
        assert!(of_a.sync_all().is_err(), "sync {attempt} of the writer");
        sync(1);
        // An open may fail, too, but a successful read returns the data.
        if let Ok(bytes) = fs::read(&path) {
            assert!(bytes == data, "{attempt}");
        }
    }
    device.work();
    of_a.sync_all().unwrap();
    sync(0);
    drop(of_a);
    mounted.umount();
    // Remounted, so that the next read comes from the device.
    device.unmount();
    device.mount();
    let again = fixture.mount_with(&[&store], &[]);
    assert!(fs::read(again.point.join("file")).unwrap() == data, "synced data was lost");
    again.umount();
}
