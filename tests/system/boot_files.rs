//! Boot images of selected files, and images whose blocks are read from the image when they are
//! needed, because they do not fit the memory.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::boot::{BLOCK, files_of};
use crate::boot_moosefs::{OPERATIONS_MAX, operations};
use crate::skip;
use crate::stage::{Ended, Running, Stage, eventually, has, is_root};
use crate::testbed::Testbed;
use crate::trees;

const VIEWS: [&str; 3] = ["overlay", "overlay-fuse", "fuse"];
/// The tree is not compared with its index, so that a test can show where bytes come from.
const UNCHECKED: [&str; 5] = ["-q", "--check", "none", "--recheck", "0"];
const FILES: usize = 120;
const FILE_BYTES: usize = 5 * BLOCK + 99;
/// Reads all small files, in another order than the order in the image.
const READ_ALL: &str = r#"cat "$0"/d2/* "$0"/d0/* "$0"/d1/* | cksum"#;

/// A tree with small files in three directories, a large file, an empty file and hard links.
struct Fixture {
    stage: Stage,
    tree: PathBuf,
    index: PathBuf,
    image: PathBuf,
}

impl Fixture {
    fn new() -> Fixture {
        let stage = Stage::new();
        let tree = stage.dir("tree");
        make_tree(&tree);
        let (index, image) = (stage.index(&tree), stage.path("files.boot"));
        Fixture { stage, tree, index, image }
    }

    fn select(&self, options: &[&str]) -> Ended {
        let mut command = self.stage.quell();
        command.arg("record").args(options).arg("-i").arg(&self.index).arg("-o").arg(&self.image);
        self.stage.run(&mut command)
    }

    fn run_command(&self, options: &[&str], script: &str) -> std::process::Command {
        let mut command = self.stage.quell();
        command.arg("run").args(options).arg("-i").arg(&self.index).arg("-b").arg(&self.image);
        command.args(["--", "sh", "-c", script]).arg(&self.tree);
        command
    }

    fn run(&self, options: &[&str], script: &str) -> Ended {
        self.stage.run(&mut self.run_command(options, script))
    }

    fn direct(&self, script: &str) -> Vec<u8> {
        self.stage.run(self.stage.command("sh").args(["-c", script]).arg(&self.tree)).expect(0).out
    }

    fn show(&self) -> Ended {
        let mut command = self.stage.quell();
        self.stage.run(command.args(["boot", "show", "--files", "--json"]).arg(&self.image)).expect(0)
    }

    /// Replaces the bytes of all files, but no name, size or time: a read of the tree gives a wrong
    /// result.
    fn overwrite_tree(&self) {
        for directory in ["d0", "d1", "d2"] {
            for entry in fs::read_dir(self.tree.join(directory)).unwrap() {
                let path = entry.unwrap().path();
                let found = fs::metadata(&path).unwrap();
                let file = fs::File::options().write(true).open(&path).unwrap();
                file.write_all_at(&vec![b'x'; found.len() as usize], 0).unwrap();
                file.set_modified(found.modified().unwrap()).unwrap();
            }
        }
    }

    /// Starts a run that reads the tree when the returned file exists. The image does not fit its
    /// memory.
    fn start_in_ranges(&self, view: &str) -> (Running, PathBuf) {
        let script = format!(r#"echo ready; while ! test -e "$0.go"; do sleep 0.05; done; {READ_ALL}"#);
        let options = ["--view", view, "--budget", "1", "--strict", "--check", "none", "--recheck", "0"];
        let mut running = self.stage.start(&mut self.run_command(&options, &script));
        running.wait_for_output("ready");
        (running, self.stage.path("tree.go"))
    }
}

fn make_tree(tree: &Path) {
    for number in 0..FILES {
        let directory = tree.join(format!("d{}", number % 3));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("f{number}")), trees::noise(FILE_BYTES, 2 * number as u64)).unwrap();
    }
    fs::write(tree.join("large"), trees::noise(100 * BLOCK, 1000)).unwrap();
    fs::write(tree.join("empty"), "").unwrap();
    fs::write(tree.join("one.h"), "#define ONE 1\n").unwrap();
    fs::hard_link(tree.join("one.h"), tree.join("two.h")).unwrap();
}

#[test]
fn files_are_selected_by_size_and_by_pattern_without_a_program() {
    let fixture = Fixture::new();
    let tree_before = fixture.direct(r#"ls -lR "$0""#);
    let message = fixture.select(&["--small", "32K"]).expect(0).err;
    assert!(message.contains("121 files with") && message.contains("of memory for them"), "{message}");
    let small = files_of(&fixture.show());
    // The image has the file with two names once, and neither the large nor the empty file.
    assert_eq!(small.len(), FILES + 1, "{small:?}");
    assert!(small.contains(&("d1/f1".into(), 6)) && small.iter().any(|(name, _)| name.ends_with(".h")));
    let mut verify = fixture.stage.quell();
    verify.args(["boot", "verify"]).arg(&fixture.image).arg("-i").arg(&fixture.index);
    fixture.stage.run(&mut verify).expect(0);

    fixture.select(&["-q", "--pattern", "*.h", "--pattern", "d0/f?"]).expect(0);
    let names: Vec<String> = files_of(&fixture.show()).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[..4], ["d0/f0", "d0/f3", "d0/f6", "d0/f9"]);
    assert!(names.len() == 5 && names[4].ends_with(".h"), "{names:?}");
    fixture.select(&["-q", "--pattern", "*", "--small", "100"]).expect(0);
    assert_eq!(files_of(&fixture.show()).len(), 1);
    assert_eq!(fixture.direct(r#"ls -lR "$0""#), tree_before);

    let image = fs::read(&fixture.image).unwrap();
    fixture.select(&["--pattern", "no such*"]).expect(2).says("no file");
    fixture.select(&["--pattern", "["]).expect(2).says("select [");
    for words in [&["--small", "1K", "--", "true"][..], &["--small", "1K", "--until", "3"], &["--dry-run"]] {
        fixture.select(words).expect(2);
    }
    assert_eq!(fs::read(&fixture.image).unwrap(), image, "a refused command has changed the image");
}

#[test]
fn sparse_files_of_any_size_take_no_more_than_the_budget() {
    const BYTES_MAX: u64 = i64::MAX as u64;
    let stage = Stage::new();
    // Not every file system has files of this size.
    let tree = tempfile::tempdir_in("/dev/shm").unwrap();
    for name in ["a", "b"] {
        fs::File::create(tree.path().join(name)).unwrap().set_len(BYTES_MAX).unwrap();
    }
    let (index, image) = (stage.path("sparse.quell"), stage.path("sparse.boot"));
    stage.run(stage.quell().args(["index", "-q"]).arg(tree.path()).arg("-o").arg(&index)).expect(0);
    let select = |options: &[&str]| {
        let mut command = stage.quell();
        command.args(["record", "--pattern", "*"]).args(options).arg("-i").arg(&index);
        stage.run(command.arg("-o").arg(&image))
    };
    let all = select(&["--dry-run", "--json"]).expect(0).json();
    assert_eq!((&all["files"], &all["memory_bytes"]), (&2.into(), &u64::MAX.into()), "{all}");
    select(&[]).expect(2).says("blocks, and an image can have");
    assert!(!image.exists());

    let within = select(&["--dry-run", "--json", "--budget", "10"]).expect(0).json();
    assert_eq!((&within["files"], &within["blocks_bytes"]), (&1.into(), &(10 << 20).into()), "{within}");
    select(&["-q", "--budget", "10"]).expect(0);
    let mut show = stage.quell();
    let shown = stage.run(show.args(["boot", "show", "--files", "--json"]).arg(&image)).expect(0);
    assert_eq!(files_of(&shown).iter().map(|(_, blocks)| *blocks).collect::<Vec<_>>(), [2560]);
}

#[test]
fn files_that_changed_after_the_tree_was_indexed_are_reported_and_left_out() {
    let fixture = Fixture::new();
    let options = ["--pattern", "d0/f0", "--pattern", "d0/f3", "--pattern", "d0/f6"];
    let file = |name: &str| fixture.tree.join("d0").join(name);
    fs::write(file("f0"), "another content").unwrap();
    fs::remove_file(file("f3")).unwrap();
    let words = "2 files are not in the image, because of changes after the tree was indexed";
    fixture.select(&options).expect(1).says(words);
    assert_eq!(files_of(&fixture.show()), [("d0/f6".into(), 6)]);
    let result = fixture.select(&[&options[..], &["--json"]].concat()).expect(1).says(words).json();
    assert_eq!((&result["changed_files"], &result["unreadable_blocks"]), (&2.into(), &0.into()), "{result}");

    let image = fs::read(&fixture.image).unwrap();
    fs::remove_file(file("f6")).unwrap();
    fixture.select(&options).expect(3).says("3 files are not in the image").says("no block can be read");
    assert_eq!(fs::read(&fixture.image).unwrap(), image, "the old image was replaced");

    fixture.stage.run(fixture.stage.quell().args(["index", "-q", "--update"]).arg(&fixture.index)).expect(0);
    let result = fixture.select(&[&options[..], &["--json"]].concat()).expect(0).json();
    assert_eq!((&result["changed_files"], &result["image_files"]), (&0.into(), &1.into()), "{result}");
}

#[test]
fn an_interrupted_selection_leaves_no_file() {
    let stage = Stage::new();
    let tree = stage.dir("tree");
    fs::File::create(tree.join("sparse")).unwrap().set_len(2 << 30).unwrap();
    let index = stage.index(&tree);
    let directory = stage.dir("images");
    let catches_interrupts = |pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        caught.is_some_and(|mask| mask & 1 << (Signal::INT.as_raw() - 1) != 0)
    };
    // The command may end before the signal arrives; it is then repeated.
    let is_interrupted = || {
        let mut command = stage.quell();
        command.args(["record", "-q", "--pattern", "*", "-i"]).arg(&index);
        let mut running = stage.start(command.arg("-o").arg(directory.join("sparse.boot")));
        // The signal is caught from the moment when the command holds the lock.
        eventually(|| !running.is_running() || catches_interrupts(running.pid()));
        if running.is_running() {
            running.signal(Signal::INT);
        }
        let ended = running.wait();
        let is_done = ended.code() == Some(0);
        if is_done {
            fs::remove_file(directory.join("sparse.boot")).unwrap();
        } else {
            ended.expect(130).says("no boot image was written");
        }
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "files are left");
        !is_done
    };
    assert!((0..20).any(|_| is_interrupted()), "no signal arrived in time");
}

#[test]
fn the_memory_of_selected_files_is_known_before_they_are_read() {
    let fixture = Fixture::new();
    let estimate = fixture.select(&["--small", "32K", "--dry-run", "--json"]).expect(0).json();
    assert!(!fixture.image.exists());
    fixture.select(&["--small", "32K", "--dry-run"]).expect(0);
    fixture.select(&["-q", "--small", "32K"]).expect(0);
    let shown = fixture.show().json();
    assert_eq!(estimate["files"], shown["files"]);
    assert_eq!(estimate["blocks_bytes"].as_u64(), shown["blocks"].as_u64().map(|b| b * BLOCK as u64));
    let bytes = |json: &serde_json::Value| json["ranges_bytes"].as_u64().unwrap();
    assert!(bytes(&estimate) >= bytes(&shown), "{estimate} {shown}");
    // In pieces, the memory does not depend on the size of the files.
    assert!(bytes(&shown) < (64 << 20) + 400 * FILES as u64, "{shown}");
}

#[test]
fn an_image_that_does_not_fit_the_memory_is_read_when_its_blocks_are_needed() {
    let fixture = Fixture::new();
    let expected = fixture.direct(READ_ALL);
    fixture.select(&["-q", "--small", "32K"]).expect(0);
    fixture.overwrite_tree();
    assert_ne!(fixture.direct(READ_ALL), expected);
    for view in VIEWS {
        let options = [&UNCHECKED[..], &["--strict", "--view", view]].concat();
        assert_eq!(fixture.run(&options, READ_ALL).expect(0).out, expected, "{view}: in memory");
        let options = [&options[..], &["--budget", "1"]].concat();
        assert_eq!(fixture.run(&options, READ_ALL).expect(0).out, expected, "{view}: in ranges");
        // Files without blocks in the image come from the tree.
        let ended = fixture.run(&options, r#"cksum <"$0/large"; cat "$0/empty"; stat -c %h "$0/one.h""#);
        assert_eq!(ended.expect(0).out, fixture.direct(r#"cksum <"$0/large"; echo 2"#), "{view}");
    }
    let ended = fixture.run(&["-v", "--budget", "1", "--check", "none"], "true").expect(0);
    ended.says("of the limit of --budget").says("read from it when they are needed");
}

#[test]
fn an_image_in_ranges_takes_a_part_of_the_budget() {
    let fixture = Fixture::new();
    fixture.select(&["-q", "--small", "32K"]).expect(0);
    let other = fixture.stage.dir("other");
    fs::write(other.join("small"), "small\n").unwrap();
    let (index, image) = (fixture.stage.index(&other), fixture.stage.path("other.boot"));
    let mut record = fixture.stage.quell();
    record.args(["record", "-q", "--small", "32K", "-i"]).arg(&index).arg("-o").arg(&image);
    fixture.stage.run(&mut record).expect(0);
    let messages = |first: &Path, second: &Path| {
        let mut command = fixture.stage.quell();
        command.args(["run", "-v", "--strict", "--budget", "1", "--check", "none", "-i"]).arg(&fixture.index);
        command.arg("-i").arg(&index).arg("-b").arg(first).arg("-b").arg(second).args(["--", "true"]);
        let ended = fixture.stage.run(&mut command).expect(0);
        ended.err.matches("its blocks are read from it when they are needed").count()
    };
    assert_eq!(messages(&image, &fixture.image), 1, "the small image fits before the other");
    assert_eq!(messages(&fixture.image, &image), 2, "the other image has taken the budget");
}

#[test]
fn frames_are_read_once_and_counted() {
    let fixture = Fixture::new();
    fixture.select(&["-q", "--small", "32K"]).expect(0);
    let frames = fixture.show().json()["contents"].as_u64().unwrap().div_ceil(256);
    assert!(frames >= 2);
    let point = fixture.stage.dir("point");
    let mut command = fixture.stage.quell();
    command.args(["mount", "-q", "--budget", "1", "-b"]).arg(&fixture.image);
    fixture.stage.run(command.arg(&fixture.index).arg(&point)).expect(0);
    let counters = || {
        let mut command = fixture.stage.quell();
        let stats = fixture.stage.run(command.args(["stats", "--json"]).arg(&point)).expect(0).json();
        stats[0]["trees"][0]["counters"].clone()
    };
    assert_eq!(counters()["frames_read"], 0, "frames are read before a program needs them");
    let read =
        || fixture.stage.run(fixture.stage.command("sh").args(["-c", READ_ALL]).arg(&point)).expect(0).out;
    let (first, second) = (read(), read());
    let counted = counters();
    fixture.stage.run(fixture.stage.quell().arg("umount").arg(&point)).expect(0);
    let expected = fixture.direct(READ_ALL);
    assert!(first == expected && second == expected);
    assert_eq!((&counted["frames_read"], &counted["blocks_from_source"]), (&frames.into(), &0.into()));
    assert_eq!((&counted["files_whole"], &counted["blocks_cached"]), (&0.into(), &0.into()));
}

#[test]
fn the_memory_of_the_holder_does_not_grow_with_the_image() {
    const DATA_MIB: usize = 192;
    let fixture = Fixture::new();
    let data = fixture.tree.join("data");
    fs::create_dir(&data).unwrap();
    for number in 0..DATA_MIB {
        let block = |at: usize| ((number << 8 | at) as u64).to_le_bytes().repeat(BLOCK / 8);
        let bytes: Vec<u8> = (0..256).flat_map(block).collect();
        fs::write(data.join(format!("{number}")), bytes).unwrap();
    }
    fixture.stage.run(fixture.stage.quell().args(["index", "-q", "--update"]).arg(&fixture.index)).expect(0);
    fixture.select(&["-q", "--pattern", "data/*"]).expect(0);
    let script = r#"cat "$0"/data/* | cksum; echo read; while ! test -e "$0.go"; do sleep 0.05; done"#;
    let expected = fixture.direct(r#"cat "$0"/data/* | cksum; echo read"#);
    let peak_mib = |command: &mut std::process::Command| {
        let mut running = fixture.stage.start(command);
        running.wait_for_output("read");
        let status = fs::read_to_string(format!("/proc/{}/status", fixture.stage.holder())).unwrap();
        fs::write(fixture.stage.path("tree.go"), "").unwrap();
        let ended = running.wait().expect(0);
        assert!(ended.out == expected, "{}", ended.err);
        fs::remove_file(fixture.stage.path("tree.go")).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim();
        peak.strip_suffix(" kB").unwrap().parse::<usize>().unwrap() >> 10
    };
    for view in VIEWS {
        let options = [&UNCHECKED[..], &["--strict", "--view", view]].concat();
        let mut without = fixture.stage.quell();
        without.arg("run").args(&options).arg("-i").arg(&fixture.index);
        let without = peak_mib(without.args(["--", "sh", "-c", script]).arg(&fixture.tree));
        let options = [&options[..], &["--budget", "64"]].concat();
        let with = peak_mib(&mut fixture.run_command(&options, script));
        // The documented limit is 64 MiB; the rest is for the allocator.
        assert!(with < without + DATA_MIB / 2, "{view}: {with} MiB, and {without} MiB without the image");
    }
}

// --- an image that changes while it is used ----------------------------------------------------

#[test]
fn an_image_that_is_removed_or_replaced_stays_in_use() {
    for view in VIEWS {
        let fixture = Fixture::new();
        let expected = fixture.direct(READ_ALL);
        fixture.select(&["-q", "--small", "32K"]).expect(0);
        let (running, go) = fixture.start_in_ranges(view);
        fixture.overwrite_tree();
        fs::remove_file(&fixture.image).unwrap();
        fs::write(&fixture.image, "another file").unwrap();
        fs::write(go, "").unwrap();
        let ended = running.wait().expect(0);
        assert_eq!(ended.out, [b"ready\n", &expected[..]].concat(), "{view}");
        assert_eq!(ended.err, "", "{view}");
    }
}

#[test]
fn blocks_of_a_truncated_or_overwritten_image_come_from_the_tree_with_one_message() {
    for view in VIEWS {
        for truncates in [false, true] {
            let fixture = Fixture::new();
            fixture.select(&["-q", "--small", "32K"]).expect(0);
            let expected = [b"ready\n", &fixture.direct(READ_ALL)[..]].concat();
            let (running, go) = fixture.start_in_ranges(view);
            let image = fs::File::options().write(true).open(&fixture.image).unwrap();
            let length = image.metadata().unwrap().len();
            let what = match truncates {
                true => {
                    image.set_len(length / 2).unwrap();
                    "it was truncated while it was used"
                }
                false => {
                    (&image).write_all(&vec![0; length as usize]).unwrap();
                    "the checksum is wrong"
                }
            };
            fs::write(go, "").unwrap();
            let ended = running.wait().expect(0).says(what).says("are read from the tree");
            assert!(ended.out == expected, "{view}: {}", ended.err);
            assert_eq!(ended.err.matches("read from the tree").count(), 1, "{view}: {}", ended.err);
        }
    }
}

#[test]
fn a_block_that_neither_the_image_nor_the_tree_has_is_an_error() {
    let fixture = Fixture::new();
    fixture.select(&["-q", "--small", "32K"]).expect(0);
    let whole = fs::read(&fixture.image).unwrap();
    let mut damaged = whole.clone();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    fs::write(&fixture.image, &damaged).unwrap();
    // An image in memory is verified as a whole, before the program starts.
    let words = "the checksum is wrong";
    fixture.run(&["--strict", "--check", "none"], "true").expect(2).says(words);
    // The last frame has the last files.
    let last = r#"cat "$0/d2/f98" | cksum"#;
    let in_ranges = ["--strict", "--check", "none", "--recheck", "0", "--budget", "1"];
    let ended = fixture.run(&in_ranges, last).expect(0).says(words);
    assert_eq!(ended.out, fixture.direct(last));
    fs::write(fixture.tree.join("d2/f98"), trees::noise(FILE_BYTES, 7)).unwrap();
    fixture.run(&in_ranges, r#"cat "$0/d2/f98""#).expect(1).says("Stale file handle");
}

#[test]
fn selected_files_are_added_to_a_recording_and_updated() {
    let fixture = Fixture::new();
    let mut command = fixture.stage.quell();
    command.args(["record", "-q", "-i"]).arg(&fixture.index).arg("-o").arg(&fixture.image);
    command.args(["--", "sh", "-c", r#"dd if="$0/large" bs=4096 skip=50 count=2 status=none | cksum"#]);
    fixture.stage.run(command.arg(&fixture.tree)).expect(0);
    assert_eq!(files_of(&fixture.show()), [("large".into(), 3)]);
    fixture.select(&["-q", "--small", "32K", "--update"]).expect(0);
    let files = files_of(&fixture.show());
    assert!(files.len() == FILES + 2 && files.contains(&("large".into(), 3)), "{files:?}");

    fs::write(fixture.tree.join("d0/f0"), "another content\n").unwrap();
    fs::write(fixture.tree.join("d0/new"), "a new file\n").unwrap();
    fixture.stage.run(fixture.stage.quell().args(["index", "-q", "--update"]).arg(&fixture.index)).expect(0);
    fixture.select(&["-q", "--small", "32K", "--update"]).expect(0);
    let script = r#"cat "$0/d0/f0" "$0/d0/new""#;
    let expected = fixture.direct(script);
    assert_eq!(files_of(&fixture.show()).len(), FILES + 3);
    fixture.overwrite_tree();
    assert_eq!(fixture.run(&UNCHECKED, script).expect(0).out, expected);
}

#[test]
fn a_cold_node_reads_an_image_in_ranges_with_few_operations() {
    if !is_root() || !has("mfsmaster") {
        skip!("a MooseFS in network namespaces needs root and Debian's moosefs packages");
    }
    let stage = Stage::new();
    let testbed = Testbed::start(&stage);
    make_tree(&testbed.node("1").join("tree"));
    let first = testbed.node("1");
    stage.run(stage.quell().args(["index", "-q"]).arg(first.join("tree"))).expect(0);
    let mut record = stage.quell();
    record.args(["record", "-q", "--small", "32K", "-i"]).arg(first.join("tree.quell"));
    stage.run(record.arg("-o").arg(first.join("files.boot"))).expect(0);

    let directory = testbed.node("2");
    let tree = directory.join("tree");
    // Enters the tree first, so that no later path lookup begins above it.
    let script = format!(r#"cd "$1" && {}"#, READ_ALL.replace("\"$0\"/", ""));
    let mut expected = Vec::new();
    let direct = testbed.requests_of("2", || expected = stage.sh(&script, &[&tree]).expect(0).out);
    assert!(direct["open"] >= FILES as u64, "{direct:?}");
    let mut command = stage.quell();
    command.args(["run", "-q", "--strict", "--check", "sample", "--recheck", "0", "--budget", "1", "-i"]);
    command.arg(directory.join("tree.quell")).arg("-b").arg(directory.join("files.boot"));
    command.arg("--source").arg(&tree).args(["--", "sh", "-c", &script, "sh"]).arg(&tree);
    let mut seen = Vec::new();
    let sent = testbed.requests_of("2", || seen = stage.run(&mut command).expect(0).out);
    assert!(seen == expected, "other bytes");
    assert!(operations(&sent) <= OPERATIONS_MAX, "{sent:?}");
    // A frame does not begin where a request of the client does.
    let pieces = fs::metadata(directory.join("files.boot")).unwrap().len() / (128 << 10);
    let frames = (FILES * 6 / 256) as u64 + 1;
    assert!(sent["read"] <= pieces + 2 * frames + 10, "{pieces} pieces: {sent:?}");
}
