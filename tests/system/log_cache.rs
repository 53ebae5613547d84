//! Names, attributes and data that the kernel keeps of a log mount: while the mount is the only
//! user of its store, and with `--kernel-cache SECONDS`. Changes of other processes are seen at
//! once.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use quell_testkit::kernel_version;
use rustix::process::Signal;

use crate::log::Fixture;
use crate::log_fixture;
use crate::skip;
use crate::stage::{Mounted, eventually, has, is_root, send, words};
use crate::testbed::Testbed;
use crate::trees::set_mode;

/// Returns the reason if the kernel keeps nothing here.
fn why_nothing_is_kept(store: &Path) -> Option<String> {
    let found = Command::new("stat").args(["-f", "-c", "%T"]).arg(store).output().unwrap();
    let kind = String::from_utf8(found.stdout).unwrap();
    let known = ["btrfs", "ext2/ext3", "f2fs", "overlayfs", "tmpfs", "xfs", "zfs"];
    (!known.contains(&kind.trim())).then(|| format!("locks of {kind} are not certain to hold"))
}

macro_rules! caching_fixture {
    () => {{
        let fixture = log_fixture!();
        if let Some(reason) = why_nothing_is_kept(&fixture.store) {
            skip!("{reason}");
        }
        fixture
    }};
}

fn log_report(fixture: &Fixture, point: &Path) -> serde_json::Value {
    let reports = fixture.stage.run(fixture.stage.quell().args(["stats", "--json"]).arg(point)).expect(0);
    reports.json()[0]["log"].clone()
}

fn is_only_user(fixture: &Fixture, point: &Path) -> bool {
    log_report(fixture, point)["only_user"].as_bool().unwrap()
}

#[track_caller]
fn wait_for_only_user(fixture: &Fixture, mounted: &Mounted<'_>) {
    // A mount without requests does not try.
    let is_only_user = || fs::metadata(&mounted.point).is_ok() && is_only_user(fixture, &mounted.point);
    assert!(eventually(is_only_user), "it does not become the only user");
}

/// Returns the number of requests for names and attributes that the mount has answered.
fn requests(fixture: &Fixture, point: &Path) -> u64 {
    let report = log_report(fixture, point);
    ["lookups", "attributes"].map(|name| report["counters"][name].as_u64().unwrap()).iter().sum()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn is_missing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

#[test]
fn a_mount_that_is_the_only_user_of_its_store_is_asked_once() {
    let fixture = caching_fixture!();
    let mounted = fixture.mount();
    wait_for_only_user(&fixture, &mounted);
    let dir = mounted.point.join("dir");
    fs::create_dir(&dir).unwrap();
    for number in 0..20 {
        fs::write(dir.join(format!("file{number}")), vec![b'x'; number]).unwrap();
    }
    let stat_all = || {
        for number in 0..20 {
            assert_eq!(fs::metadata(dir.join(format!("file{number}"))).unwrap().len(), number as u64);
        }
    };
    // The kernel passes on a close shortly after close(2) has returned, and the attributes of an
    // open file are not kept.
    let is_kept = || {
        let before = requests(&fixture, &mounted.point);
        stat_all();
        requests(&fixture, &mounted.point) == before
    };
    assert!(eventually(is_kept), "the kernel does not answer by itself");
    // Changes by this mount are seen at once.
    fs::write(dir.join("file3"), "longer than before").unwrap();
    assert_eq!(fs::metadata(dir.join("file3")).unwrap().len(), 18);
    let published = fs::metadata(dir.join("file3")).unwrap().modified().unwrap();
    assert_eq!(fs::metadata(dir.join("file3")).unwrap().modified().unwrap(), published);
    set_mode(&dir.join("file4"), 0o600);
    assert_eq!(mode(&dir.join("file4")), 0o600);
    fs::rename(dir.join("file5"), dir.join("file6")).unwrap();
    assert!(is_missing(&dir.join("file5")));
    assert_eq!(fs::metadata(dir.join("file6")).unwrap().len(), 5);
    fs::remove_file(dir.join("file7")).unwrap();
    assert!(is_missing(&dir.join("file7")));
    fs::write(dir.join("file7"), "again").unwrap();
    assert_eq!(fs::metadata(dir.join("file7")).unwrap().len(), 5);
    mounted.umount();
    fixture.stage.expect_nothing_left();
}

/// After a close, a file has the time of the published data, also if its attributes were read while
/// it was open.
#[test]
fn attributes_of_a_file_that_is_open_for_writing_are_not_kept() {
    let fixture = caching_fixture!();
    let mounted = fixture.mount();
    wait_for_only_user(&fixture, &mounted);
    let path = mounted.point.join("file");
    let file = File::create(&path).unwrap();
    for number in 1..=5u8 {
        std::os::unix::fs::FileExt::write_all_at(&file, &[number], u64::from(number)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), u64::from(number) + 1);
    }
    let before = requests(&fixture, &mounted.point);
    fs::metadata(&path).unwrap();
    fs::metadata(&path).unwrap();
    assert!(requests(&fixture, &mounted.point) >= before + 2, "each stat is a request");
    drop(file);
    let kept = fs::metadata(&path).unwrap();
    mounted.umount();
    let again = fixture.mount();
    let stored = fs::metadata(again.point.join("file")).unwrap();
    let times = |found: &fs::Metadata| (found.mtime(), found.mtime_nsec(), found.len());
    assert_eq!(times(&kept), times(&stored));
    again.umount();
}

#[test]
fn changes_of_a_second_mount_are_seen_at_once_after_its_start() {
    let fixture = caching_fixture!();
    let one = fixture.mount();
    wait_for_only_user(&fixture, &one);
    let first = |name: &str| one.point.join(name);
    for dir in ["dir", "dir/below", "moved"] {
        fs::create_dir(first(dir)).unwrap();
    }
    for name in ["grows", "dir/mode", "dir/removed", "dir/below/renamed", "replaced"] {
        fs::write(first(name), "text").unwrap();
    }
    let open = File::open(first("grows")).unwrap();
    let names =
        ["grows", "dir", "dir/mode", "dir/removed", "dir/below", "dir/below/renamed", "replaced", "moved"];
    for name in names {
        fs::metadata(first(name)).unwrap();
    }
    assert!(is_missing(&first("new")) && is_missing(&first("dir/new")));
    // A working directory whose name expires.
    let mut inside = Command::new("sh");
    inside.arg("-c").arg("echo ready; read line; pwd -P; ls").current_dir(first("dir/below"));
    let mut inside = fixture.stage.start(inside.stdin(std::process::Stdio::piped()));
    inside.wait_for_output("ready");

    let other = fixture.mount();
    assert!(!is_only_user(&fixture, &one.point));
    let second = |name: &str| other.point.join(name);
    for round in 0..20u64 {
        fs::write(second("grows"), vec![b'x'; 10 + round as usize]).unwrap();
        assert_eq!(fs::metadata(first("grows")).unwrap().len(), 10 + round);
        set_mode(&second("dir/mode"), 0o600 + (round as u32 & 0o77));
        assert_eq!(mode(&first("dir/mode")), 0o600 + (round as u32 & 0o77));
        fs::write(second("dir/new"), "new").unwrap();
        assert_eq!(fs::read(first("dir/new")).unwrap(), b"new");
        fs::remove_file(second("dir/new")).unwrap();
        assert!(is_missing(&first("dir/new")));
    }
    assert_eq!(open.metadata().unwrap().len(), 29);
    drop(open);
    fs::remove_file(second("dir/removed")).unwrap();
    assert!(is_missing(&first("dir/removed")));
    fs::rename(second("dir/below/renamed"), second("new")).unwrap();
    assert!(is_missing(&first("dir/below/renamed")));
    assert_eq!(fs::read(first("new")).unwrap(), b"text");
    fs::write(second("other"), "replacement").unwrap();
    fs::rename(second("other"), second("replaced")).unwrap();
    assert_eq!(fs::read(first("replaced")).unwrap(), b"replacement");
    fs::rename(second("moved"), second("dir/moved")).unwrap();
    assert!(is_missing(&first("moved")) && first("dir/moved").is_dir());
    use std::io::Write;
    writeln!(inside.stdin(), "go").unwrap();
    let ended = inside.wait().expect(0).text();
    assert!(ended.contains(&format!("{}/dir/below", one.point.display())), "{ended}");

    // When the other one has ended, the first becomes the only user again.
    other.umount();
    wait_for_only_user(&fixture, &one);
    one.umount();
    fixture.stage.expect_nothing_left();
}

/// Returns the number of reads that the mount has answered.
fn reads(fixture: &Fixture, point: &Path) -> u64 {
    log_report(fixture, point)["counters"]["reads"].as_u64().unwrap()
}

/// Reads a whole file through an open descriptor.
fn read_all(file: &File) -> std::io::Result<Vec<u8>> {
    let mut content = vec![0xee; 200_000];
    let length = std::os::unix::fs::FileExt::read_at(file, &mut content, 0)?;
    content.truncate(length);
    Ok(content)
}

fn append(path: &Path, bytes: &[u8]) {
    let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
    std::io::Write::write_all(&mut file, bytes).unwrap();
}

/// The first version of Linux that keeps data of a log mount.
const KEEPS_DATA: (u32, u32) = (6, 18);

/// Opens a file for reading while the mount is the only user, and returns its descriptor when the
/// kernel keeps its data. On a busy machine a mount may confirm too late that it is the only user;
/// the kernel does not keep data for a descriptor that was opened then, and the file is opened
/// again.
#[track_caller]
fn open_kept(fixture: &Fixture, mounted: &Mounted<'_>, name: &str, content: &[u8]) -> File {
    let mut opened = File::open(mounted.point.join(name)).unwrap();
    let is_kept = || {
        opened = File::open(mounted.point.join(name)).unwrap();
        assert!(read_all(&opened).unwrap() == content);
        let before = reads(fixture, &mounted.point);
        assert!(read_all(&opened).unwrap() == content);
        kernel_version() < KEEPS_DATA || reads(fixture, &mounted.point) == before
    };
    assert!(eventually(is_kept), "the kernel does not keep the data of {name}");
    opened
}

/// Reads a whole file through a descriptor of `open_kept`. If the kernel keeps no data, it may be a
/// descriptor that needs fsync(2) to return what another mount has published.
fn read_kept(file: &File) -> Vec<u8> {
    if kernel_version() < KEEPS_DATA {
        file.sync_all().unwrap();
    }
    read_all(file).unwrap()
}

/// The kernel has the data of files that were opened while the mount was the only user. Their
/// descriptors follow the changes of a second mount, and so do new descriptors, also after the
/// second mount has ended.
#[test]
fn changes_of_a_second_mount_replace_data_that_the_kernel_keeps() {
    let fixture = caching_fixture!();
    let one = fixture.mount();
    wait_for_only_user(&fixture, &one);
    let first = |name: &str| one.point.join(name);
    let names = ["same-size", "grows", "shrinks", "replaced", "removed", "last"];
    for name in names {
        fs::write(first(name), vec![b'a'; 10_000]).unwrap();
    }
    let open = names.map(|name| open_kept(&fixture, &one, name, &[b'a'; 10_000]));
    let [same_size, grows, shrinks, replaced, removed, last] = &open;

    let other = fixture.mount();
    let second = |name: &str| other.point.join(name);
    let mut grown = vec![b'a'; 10_000];
    for round in 0..10u8 {
        let byte = b'b' + round;
        // The kernel recognizes a change that leaves the size by its time, which the store's file
        // system may round to several milliseconds.
        let time = || fs::metadata(second("same-size")).unwrap().modified().unwrap();
        let before = time();
        let has_new_time = || {
            fs::write(second("same-size"), vec![byte; 10_000]).unwrap();
            time() != before
        };
        assert!(eventually(has_new_time), "round {round}");
        assert!(read_kept(same_size) == vec![byte; 10_000], "round {round}");
        assert!(fs::read(first("same-size")).unwrap() == vec![byte; 10_000], "round {round}");
        append(&second("grows"), &[byte; 9_000]);
        grown.extend([byte; 9_000]);
        assert!(read_kept(grows) == grown, "round {round}");
        assert!(fs::read(first("grows")).unwrap() == grown, "round {round}");
        let size = 9_000 - 500 * usize::from(round);
        fs::OpenOptions::new().write(true).open(second("shrinks")).unwrap().set_len(size as u64).unwrap();
        assert!(read_kept(shrinks) == vec![b'a'; size], "round {round}");
    }
    fs::write(second("new"), "replacement").unwrap();
    fs::rename(second("new"), second("replaced")).unwrap();
    fs::remove_file(second("removed")).unwrap();
    assert_eq!(fs::read(first("replaced")).unwrap(), b"replacement");
    assert!(is_missing(&first("removed")));
    for file in [replaced, removed] {
        match read_all(file) {
            Ok(content) => assert!(content == vec![b'a'; 10_000], "the old file"),
            Err(error) => assert!(matches!(error.raw_os_error(), Some(2 | 116)), "{error}"), // ENOENT, ESTALE
        }
    }

    append(&second("last"), &[b'z'; 9_000]);
    other.umount();
    wait_for_only_user(&fixture, &one);
    let expected = [vec![b'a'; 10_000], vec![b'z'; 9_000]].concat();
    assert!(read_kept(last) == expected);
    assert!(fs::read(first("last")).unwrap() == expected);
    append(&first("last"), b"by the only user");
    assert!(read_kept(last).ends_with(b"by the only user"));
    drop(open);
    one.umount();
    fixture.stage.expect_nothing_left();
}

#[test]
fn small_reads_through_a_mount_that_is_the_only_user_are_collected() {
    let fixture = caching_fixture!();
    let mounted = fixture.mount();
    wait_for_only_user(&fixture, &mounted);
    let path = mounted.point.join("file");
    let content: Vec<u8> = (0..1_000_000u32).map(|n| (n / 13) as u8).collect();
    fs::write(&path, &content).unwrap();
    if kernel_version() < KEEPS_DATA {
        skip!("Linux before 6.18 keeps no data");
    }
    // The kernel passes on the close of the writer shortly after close(2) has returned.
    let are_collected = || {
        let file = File::open(&path).unwrap();
        let before = reads(&fixture, &mounted.point);
        let mut piece = vec![0; 8192];
        for (number, expected) in content.chunks(8192).enumerate() {
            let offset = 8192 * number as u64;
            let length = std::os::unix::fs::FileExt::read_at(&file, &mut piece, offset).unwrap();
            assert!(piece[..length] == *expected);
        }
        reads(&fixture, &mounted.point) - before < 40
    };
    assert!(eventually(are_collected), "each of 123 reads is a request");
    mounted.umount();
    fixture.stage.expect_nothing_left();
}

#[test]
fn commands_and_programs_without_a_mount_take_part() {
    let fixture = caching_fixture!();
    let mounted = fixture.mount();
    wait_for_only_user(&fixture, &mounted);
    let at = |name: &str| mounted.point.join(name);
    fs::write(at("file"), "text").unwrap();
    assert!(is_missing(&at("imported")) && fs::metadata(at("file")).unwrap().len() == 4);
    let plain = fixture.stage.file("plain", "imported");
    let quell = || fixture.stage.quell();
    fixture
        .stage
        .run(quell().args(["log", "import"]).arg(&plain).arg(&fixture.store).arg("imported"))
        .expect(0);
    assert_eq!(fs::read(at("imported")).unwrap(), b"imported");
    wait_for_only_user(&fixture, &mounted);
    let mut listing = fixture.stage.start(quell().args(["log", "ls"]).arg(&fixture.store));
    // A mount without requests for six seconds is the only user no longer.
    for number in 0.. {
        assert!(is_missing(&at(&format!("missing {number}"))));
        if !listing.is_running() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    listing.wait().expect(0);
    assert!(is_only_user(&fixture, &mounted.point), "a command that only reads does not disturb");
    fixture.stage.run(quell().args(["log", "fsck"]).arg(&fixture.store).arg("--repair")).expect(0);
    assert!(!is_only_user(&fixture, &mounted.point));
    mounted.umount();
    fixture.stage.expect_nothing_left();
}

#[test]
fn a_killed_mount_leaves_no_lock_and_a_stopped_one_is_waited_for() {
    let fixture = caching_fixture!();
    let one = fixture.mount();
    wait_for_only_user(&fixture, &one);
    fs::write(one.point.join("file"), "text").unwrap();
    let open = File::open(one.point.join("file")).unwrap();
    read_all(&open).unwrap();
    send(fixture.stage.holder(), Signal::KILL);
    // Data that the kernel keeps may be returned, but nothing waits for the killed process.
    let _ = read_all(&open);
    drop(open);
    let other = fixture.mount();
    wait_for_only_user(&fixture, &other);
    assert_eq!(fs::read(other.point.join("file")).unwrap(), b"text");
    one.umount();

    let holder = fixture.stage.holder();
    // The kernel keeps no answer for this name, so the mount has a request and stays the only user.
    assert!(is_missing(&other.point.join("missing")));
    wait_for_only_user(&fixture, &other);
    fs::metadata(other.point.join("file")).unwrap();
    send(holder, Signal::STOP);
    let point = fixture.point();
    let mut starting = fixture.stage.start(&mut fixture.command(&[&fixture.store], &["--quiet"], &point));
    std::thread::sleep(Duration::from_secs(1));
    let is_waiting = starting.is_running();
    send(holder, Signal::CONT);
    starting.wait().expect(0);
    assert!(is_waiting, "the stopped mount may still have names in the kernel's cache");
    let third = Mounted::at(&fixture.stage, point);
    fs::remove_file(third.point.join("file")).unwrap();
    assert!(is_missing(&other.point.join("file")));
    other.umount();
    third.umount();
}

#[test]
fn the_option_sets_how_long_the_kernel_keeps_names_of_a_shared_store() {
    let fixture = caching_fixture!();
    // The other mount exists first, so that the store is shared all the time.
    let other = fixture.mount_with(&[&fixture.store], &["--kernel-cache", "none"]);
    fs::write(other.point.join("file"), "text").unwrap();
    let kept = fixture.mount_with(&[&fixture.store], &["--kernel-cache", "60"]);
    assert_eq!(fs::metadata(kept.point.join("file")).unwrap().len(), 4);
    let before = requests(&fixture, &kept.point);
    fs::write(other.point.join("file"), "longer").unwrap();
    assert_eq!(fs::metadata(kept.point.join("file")).unwrap().len(), 4, "as before for a minute");
    assert_eq!(requests(&fixture, &kept.point), before);
    kept.umount();
    // Without other users, `none` keeps nothing either.
    std::thread::sleep(Duration::from_secs(4));
    assert!(!is_only_user(&fixture, &other.point));
    let before = requests(&fixture, &other.point);
    fs::metadata(other.point.join("file")).unwrap();
    fs::metadata(other.point.join("file")).unwrap();
    assert!(requests(&fixture, &other.point) >= before + 2);
    other.umount();
    for wrong in ["0", "61", "yes"] {
        let point = fixture.point();
        let mut command = fixture.command(&[&fixture.store], &["--kernel-cache", wrong], &point);
        fixture.stage.run(&mut command).expect(2).says("1 to 60 seconds");
    }
    fixture.stage.expect_nothing_left();
}

#[test]
fn several_stores_have_no_only_user() {
    let fixture = caching_fixture!();
    let second = fixture.stage.dir("second");
    let mounted = fixture.mount_with(&[&fixture.store, &second], &[]);
    fs::write(mounted.point.join("file"), "text").unwrap();
    std::thread::sleep(Duration::from_secs(4));
    assert!(!is_only_user(&fixture, &mounted.point));
    let before = requests(&fixture, &mounted.point);
    fs::metadata(mounted.point.join("file")).unwrap();
    fs::metadata(mounted.point.join("file")).unwrap();
    assert!(requests(&fixture, &mounted.point) >= before + 2);
    mounted.umount();
}

/// A directory on another path, through a FUSE file system that forwards locks.
struct Forwarded {
    point: PathBuf,
}

impl Drop for Forwarded {
    fn drop(&mut self) {
        let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(&self.point).status();
    }
}

/// The process on the FUSE file system can itself not become the only user.
///
/// bindfs releases all locks of a file when any process closes a descriptor of it. The fusermount3
/// that an ordinary user's mount starts closes the descriptors that it has inherited.
#[test]
fn a_mount_on_a_file_system_of_another_type_is_noticed() {
    if !is_root() {
        skip!("bindfs releases the locks of an ordinary user's mount");
    }
    let fixture = caching_fixture!();
    let forwarded = Forwarded { point: fixture.stage.dir("forwarded") };
    let mut bindfs = Command::new("bindfs");
    bindfs
        .args(["--no-allow-other", "--enable-lock-forwarding", "--multithreaded"])
        .arg(&fixture.store)
        .arg(&forwarded.point);
    match bindfs.status() {
        Err(error) if error.kind() == ErrorKind::NotFound => skip!("bindfs is not installed"),
        status => assert!(status.unwrap().success()),
    }
    let one = fixture.mount();
    wait_for_only_user(&fixture, &one);
    fs::write(one.point.join("file"), "text").unwrap();
    assert!(eventually(|| fs::metadata(one.point.join("file")).is_ok_and(|found| found.len() == 4)));
    let other = fixture.mount_with(&[&forwarded.point], &[]);
    assert!(!is_only_user(&fixture, &one.point));
    for round in 0..20 {
        fs::write(other.point.join("file"), vec![b'x'; 10 + round]).unwrap();
        assert_eq!(fs::metadata(one.point.join("file")).unwrap().len(), 10 + round as u64);
    }
    one.umount();
    let until = std::time::Instant::now() + Duration::from_secs(4);
    while std::time::Instant::now() < until {
        fs::metadata(other.point.join("file")).unwrap();
        assert!(!is_only_user(&fixture, &other.point));
        std::thread::sleep(Duration::from_millis(100));
    }
    other.umount();
}

/// MooseFS releases the locks of a killed process, so its stores can have an only user as well.
#[test]
fn a_mount_on_a_moosefs_can_be_the_only_user_of_its_store() {
    if !is_root() || !has("mfsmaster") {
        skip!("a MooseFS in network namespaces needs root and Debian's moosefs packages");
    }
    let fixture = log_fixture!();
    let testbed = Testbed::start(&fixture.stage);
    let stores = ["1", "2"].map(|node| testbed.node(node).join("log-store"));
    fs::create_dir(&stores[0]).unwrap();
    let mount = |store: &Path, name: &str| {
        let point = fixture.stage.dir(name);
        let mut command = fixture.stage.quell();
        command.args(words(&[&"mount", &"--init", &"--log", &store, &point]));
        fixture.stage.run(&mut command).expect(0);
        Mounted::at(&fixture.stage, point)
    };
    let one = mount(&stores[0], "one");
    wait_for_only_user(&fixture, &one);
    fs::write(one.point.join("file"), "of the first node").unwrap();
    let is_kept = || {
        let before = requests(&fixture, &one.point);
        assert_eq!(fs::metadata(one.point.join("file")).unwrap().len(), 17);
        requests(&fixture, &one.point) == before
    };
    assert!(eventually(is_kept), "the kernel does not answer by itself");
    let mut open = File::create(one.point.join("open")).unwrap();
    // A mount of another node waits until the kernel keeps nothing, and finds the new file.
    let two = mount(&stores[1], "two");
    assert!(!is_only_user(&fixture, &one.point));
    assert_eq!(fs::read(two.point.join("open")).unwrap(), b"");
    open.write_all(b"written later").unwrap();
    drop(open);
    assert_eq!(fs::read(two.point.join("open")).unwrap(), b"written later");
    fs::rename(two.point.join("file"), two.point.join("renamed")).unwrap();
    assert!(is_missing(&one.point.join("file")));
    assert_eq!(fs::read_to_string(one.point.join("renamed")).unwrap(), "of the first node");
    two.umount();
    // The lock of a killed mount ends, and the other node can become the only user.
    wait_for_only_user(&fixture, &one);
    send(fixture.stage.holder(), Signal::KILL);
    assert!(eventually(|| fixture.stage.holders().is_empty()));
    drop(one);
    let two = mount(&stores[1], "two-again");
    wait_for_only_user(&fixture, &two);
    assert!(!is_missing(&two.point.join("renamed")));
    two.umount();
}
