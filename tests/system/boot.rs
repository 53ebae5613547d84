//! Boot images: recorded from real programs, served to them from memory, and refused if they do not
//! match the tree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::{Stage, is_root};
use crate::trees;

pub const BLOCK: usize = 4096;

const VIEWS: [&str; 3] = ["overlay", "overlay-fuse", "fuse"];

/// A tree with small files, a large file of which a start reads a small part, and a file that no
/// start reads.
pub struct Fixture {
    pub stage: Stage,
    pub tree: PathBuf,
    pub index: PathBuf,
    pub image: PathBuf,
}

pub const START: &str = r#"cat "$0/small" "$0/sub/other" && dd if="$0/large" bs=4096 skip=100 count=3 status=none | cksum && test -r "$0/empty" && cat "$0/empty""#;

impl Fixture {
    pub fn new() -> Fixture {
        let stage = Stage::new();
        let tree = stage.dir("tree");
        fs::create_dir(tree.join("sub")).unwrap();
        fs::write(tree.join("small"), "small\n").unwrap();
        fs::write(tree.join("sub/other"), trees::noise(3 * BLOCK + 7, 2)).unwrap();
        fs::write(tree.join("large"), trees::noise(400 * BLOCK, 3)).unwrap();
        fs::write(tree.join("cold"), trees::noise(5 * BLOCK, 4)).unwrap();
        fs::write(tree.join("empty"), "").unwrap();
        let index = stage.index(&tree);
        let image = stage.path("app.boot");
        Fixture { stage, tree, index, image }
    }

    pub fn record(&self, options: &[&str], script: &str) -> crate::stage::Ended {
        let mut command = self.stage.quell();
        command.arg("record").args(options).arg("-i").arg(&self.index).arg("-o").arg(&self.image);
        self.stage.run(command.args(["--", "sh", "-c", script]).arg(&self.tree))
    }

    pub fn run(&self, options: &[&str], script: &str) -> crate::stage::Ended {
        let mut command = self.stage.quell();
        command.arg("run").args(options).arg("-i").arg(&self.index).arg("-b").arg(&self.image);
        self.stage.run(command.args(["--", "sh", "-c", script]).arg(&self.tree))
    }

    pub fn boot(&self, words: &[&str]) -> crate::stage::Ended {
        self.stage.run(self.stage.quell().arg("boot").arg(words[0]).arg(&self.image).args(&words[1..]))
    }

    pub fn direct(&self, script: &str) -> Vec<u8> {
        self.stage.run(self.stage.command("sh").args(["-c", script]).arg(&self.tree)).expect(0).out
    }
}

/// Returns the name and the number of blocks of each file that `boot show --files --json` lists.
pub fn files_of(ended: &crate::stage::Ended) -> Vec<(String, u64)> {
    let list = ended.json()["list"].as_array().unwrap().clone();
    list.iter().map(|f| (f["name"].as_str().unwrap().to_owned(), f["blocks"].as_u64().unwrap())).collect()
}

#[test]
fn the_blocks_that_a_start_reads_are_recorded() {
    let fixture = Fixture::new();
    let expected = fixture.direct(START);
    assert_eq!(fixture.record(&["-q"], START).expect(0).out, expected);
    let shown = fixture.boot(&["show", "--files", "--json"]).expect(0);
    // The first block of an opened file is always recorded; of the large file it is one more block
    // than the program reads.
    assert_eq!(files_of(&shown), [("large".into(), 4), ("small".into(), 1), ("sub/other".into(), 4)]);
    fixture.boot(&["verify", "-i", fixture.index.to_str().unwrap()]).expect(0);
}

#[test]
fn a_start_from_the_image_reads_nothing_of_the_source() {
    let fixture = Fixture::new();
    let expected = fixture.direct(START);
    fixture.record(&["-q"], START).expect(0);
    // The same names and times, but other bytes: a read of the source gives a wrong result.
    for name in ["small", "sub/other", "large"] {
        let path = fixture.tree.join(name);
        let (length, modified) =
            (fs::metadata(&path).unwrap().len(), fs::metadata(&path).unwrap().modified().unwrap());
        fs::write(&path, vec![b'x'; length as usize]).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    }
    for view in VIEWS {
        let options = ["-q", "--strict", "--view", view, "--check", "none", "--recheck", "0"];
        assert_eq!(fixture.run(&options, START).expect(0).out, expected, "{view}");
    }
}

#[test]
fn recorded_blocks_outlive_the_source_and_others_are_errors() {
    let fixture = Fixture::new();
    fixture.record(&["-q", "--exact"], START).expect(0);
    let expected = fixture.direct(START);
    let spare = fixture.stage.path("spare");
    assert!(Command::new("cp").args(["-a"]).arg(&fixture.tree).arg(&spare).status().unwrap().success());
    for view in VIEWS {
        let script = format!(
            r#"echo ready; while ! test -e "$1"; do sleep 0.05; done; {START}
               head -c 30000 "$0/large" >/dev/null || echo large; cat "$0/cold" >/dev/null || echo cold"#
        );
        let gone = fixture.stage.path("gone");
        let mut command = fixture.stage.quell();
        let options = ["run", "-q", "--strict", "--view", view, "--check", "none", "--recheck", "0", "-i"];
        command.args(options).arg(&fixture.index).arg("-b").arg(&fixture.image);
        let mut running =
            fixture.stage.start(command.args(["--", "sh", "-c", &script]).arg(&fixture.tree).arg(&gone));
        running.wait_for_output("ready");
        for entry in fs::read_dir(&fixture.tree).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
        }
        fs::write(&gone, "").unwrap();
        let ended = running.wait().expect(0);
        let expected = [b"ready\n", &expected[..], b"large\ncold\n"].concat();
        assert_eq!(ended.out, expected, "{view}: {}", ended.err);
        fs::remove_file(&gone).unwrap();
        let refilled = Command::new("cp").args(["-aT"]).arg(&spare).arg(&fixture.tree).status().unwrap();
        assert!(refilled.success());
    }
}

/// A read of another block of a recorded file would otherwise take an open of the file.
#[test]
fn other_blocks_of_recorded_files_are_read_from_the_image() {
    let fixture = Fixture::new();
    fixture.record(&[], START).expect(0).says("32.00 KiB of 3 files and 1.55 MiB of unread blocks in");
    let shown = fixture.boot(&["show", "--files", "--json"]).expect(0);
    assert_eq!(shown.json()["unread_blocks"], 396);
    assert_eq!(files_of(&shown), [("large".into(), 4), ("small".into(), 1), ("sub/other".into(), 4)]);
    let script = r#"cat "$0/large" "$0/small" "$0/sub/other""#;
    let expected = fixture.direct(script);
    // A read of the source gives a wrong result.
    let path = fixture.tree.join("large");
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, vec![b'x'; 400 * BLOCK]).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    for view in VIEWS {
        let options = ["-q", "--strict", "--view", view, "--check", "none", "--recheck", "0"];
        assert!(fixture.run(&options, script).expect(0).out == expected, "{view}");
    }
    // A merge keeps the unread blocks.
    let merged = fixture.stage.path("merged.boot");
    let mut command = fixture.stage.quell();
    command.args(["boot", "merge"]).arg(&fixture.image).arg(&fixture.image).arg("-o").arg(&merged);
    fixture.stage.run(&mut command).expect(0);
    fs::rename(&merged, &fixture.image).unwrap();
    let options = ["-q", "--strict", "--check", "none", "--recheck", "0"];
    assert!(fixture.run(&options, script).expect(0).out == expected);
    fixture.boot(&["extract", fixture.stage.path("extracted").to_str().unwrap()]).expect(0);
    assert!(fs::read(fixture.stage.path("extracted/large")).unwrap() == expected[..400 * BLOCK]);
}

#[test]
fn a_damaged_frame_of_unread_blocks_is_not_served() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], START).expect(0);
    let mut bytes = fs::read(&fixture.image).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&fixture.image, bytes).unwrap();
    fixture.boot(&["verify"]).expect(2);
    let expected = fixture.direct(START);
    let ended = fixture.run(&["--strict"], START).expect(0);
    assert_eq!((ended.out, &*ended.err), (expected, ""), "the frame is not read");
    let script = r#"cat "$0/large""#;
    let ended = fixture.run(&["--strict"], script).expect(0).says("are read from the tree");
    assert!(ended.out == fixture.direct(script));
}

#[test]
fn a_killed_holder_loses_only_blocks_held_in_its_memory() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], START).expect(0);
    let expected = fixture.direct(START);
    let dead = fixture.stage.path("dead");
    let script = format!(
        r#"echo ready; while ! test -e "$1"; do sleep 0.05; done; {START}
           cksum <"$0/cold"; tail -c 5000 "$0/large" >/dev/null 2>&1 || echo large"#
    );
    let mut command = fixture.stage.quell();
    let options = ["run", "-q", "--strict", "--view", "overlay", "-i"];
    command.args(options).arg(&fixture.index).arg("-b").arg(&fixture.image);
    let mut running =
        fixture.stage.start(command.args(["--", "sh", "-c", &script]).arg(&fixture.tree).arg(&dead));
    running.wait_for_output("ready");
    crate::stage::send(fixture.stage.holder(), rustix::process::Signal::KILL);
    assert!(crate::stage::eventually(|| fixture.stage.holders().is_empty()));
    fs::write(&dead, "").unwrap();
    let ended = running.wait().expect(0);
    let cold = fixture.direct(r#"cksum <"$0/cold""#);
    assert_eq!(ended.out, [b"ready\n", &expected[..], &cold[..], b"large\n"].concat(), "{}", ended.err);
}

#[test]
fn blocks_that_were_not_recorded_come_from_the_source() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], START).expect(0);
    let everything = r#"cd "$0" && find . -type f | sort | xargs cksum"#;
    assert_eq!(fixture.run(&["-q", "--strict"], everything).expect(0).out, fixture.direct(everything));
}

#[test]
fn recordings_join_as_sets() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], r#"cat "$0/small""#).expect(0);
    fixture.record(&["-q", "--merge"], r#"cat "$0/small" "$0/cold""#).expect(0);
    let both = fixture.boot(&["show", "--files", "--json"]).expect(0);
    assert_eq!(both.json()["recordings"], 2);
    assert_eq!(files_of(&both), [("cold".into(), 5), ("small".into(), 1)]);
    fixture.record(&["-q", "--merge", "--min-runs", "3"], r#"cat "$0/small""#).expect(0);
    let hottest = fixture.boot(&["show", "--files", "--json"]).expect(0);
    assert_eq!(files_of(&hottest), [("small".into(), 1)]);
}

#[test]
fn images_are_merged_and_taken_out_of() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], r#"cat "$0/small""#).expect(0);
    let first = fixture.stage.path("first.boot");
    fs::rename(&fixture.image, &first).unwrap();
    fixture.record(&["-q", "--exact"], START).expect(0);
    let merged = fixture.stage.path("merged.boot");
    let mut command = fixture.stage.quell();
    command.args(["boot", "merge"]).arg(&first).arg(&fixture.image).arg("-o").arg(&merged);
    fixture.stage.run(&mut command).expect(0);
    let out = fixture.stage.path("hot");
    fixture.stage.run(fixture.stage.quell().args(["boot", "extract"]).arg(&merged).arg(&out)).expect(0);
    let same = |name: &str| fs::read(out.join(name)).unwrap() == fs::read(fixture.tree.join(name)).unwrap();
    assert!(same("small") && same("sub/other") && !same("large"));
    let (hot, tree) = (fs::read(out.join("large")).unwrap(), fs::read(fixture.tree.join("large")).unwrap());
    assert_eq!(hot[100 * BLOCK..103 * BLOCK], tree[100 * BLOCK..103 * BLOCK]);
    assert_eq!(hot.len(), tree.len());
}

#[test]
fn the_exit_code_is_the_programs_and_the_image_is_made_all_the_same() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], r#"cat "$0/small"; exit 7"#).expect(7);
    fixture.boot(&["verify"]).expect(0);
}

#[test]
fn a_program_that_never_ends_is_ended() {
    let fixture = Fixture::new();
    let ended = fixture.record(&["-q", "--until", "1"], r#"cat "$0/small"; exec sleep 600"#);
    assert_eq!(ended.code(), Some(143));
    assert_eq!(files_of(&fixture.boot(&["show", "--files", "--json"]).expect(0)), [("small".into(), 1)]);
}

#[test]
fn an_image_whose_files_have_all_changed_is_refused() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], r#"cat "$0/small""#).expect(0);
    fs::write(fixture.tree.join("small"), "other bytes\n").unwrap();
    fixture.stage.run(fixture.stage.quell().args(["index", "-q", "--update"]).arg(&fixture.index)).expect(0);
    let ended = fixture.run(&[], r#"cat "$0/small""#).expect(0).says("record it again");
    assert_eq!(ended.text(), "other bytes\n");
    fixture.run(&["--strict"], "true").expect(2).says("record it again");
    fixture.boot(&["verify", "-i", fixture.index.to_str().unwrap()]).expect(1);
}

#[test]
fn a_damaged_image_is_refused_with_the_offset_and_the_program_runs() {
    let fixture = Fixture::new();
    fixture.record(&["-q", "--exact"], START).expect(0);
    let whole = fs::read(&fixture.image).unwrap();
    let expected = fixture.direct(START);
    let damage = |bytes: &[u8], words: &str| {
        fs::write(&fixture.image, bytes).unwrap();
        assert_eq!(fixture.run(&[], START).expect(0).says(words).out, expected);
        fixture.boot(&["verify"]).expect(2).says(words);
    };
    damage(&whole[..whole.len() - 1], "header at 16");
    damage(&whole[..50], "the file ends within the header");
    damage(b"", "the file ends within the header");
    damage(b"#!/bin/sh\n", "not a boot image");
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    damage(&flipped, "frame at 0: the checksum is wrong");
    flipped = whole;
    flipped[130] ^= 1;
    damage(&flipped, "the checksum of the tables is wrong");
}

#[test]
fn an_image_that_does_not_fit_the_budget_is_read_when_it_is_needed() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], r#"cat "$0/large""#).expect(0);
    let script = r#"cksum "$0/large""#;
    let ended = fixture
        .run(&["-v", "--budget", "3"], script)
        .expect(0)
        .says("takes 4 MiB of memory, and 3 MiB are left (of the limit of --budget)")
        .says("its blocks are read from it when they are needed");
    assert_eq!(ended.out, fixture.direct(script));
}

#[test]
fn a_recorder_that_is_killed_leaves_the_old_image() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], r#"cat "$0/small""#).expect(0);
    let before = fs::read(&fixture.image).unwrap();
    let mut command = fixture.stage.quell();
    command.args(["record", "-i"]).arg(&fixture.index).arg("-o").arg(&fixture.image);
    command
        .args(["--", "sh", "-c", r#"cat "$0/cold" >/dev/null; echo read; exec sleep 600"#])
        .arg(&fixture.tree);
    let mut running = fixture.stage.start(&mut command);
    running.wait_for_output("read");
    let holder = fixture.stage.holder();
    crate::stage::send(holder, rustix::process::Signal::KILL);
    running.signal(rustix::process::Signal::TERM);
    let ended = running.wait();
    assert_eq!(ended.code(), Some(3), "{}", ended.err);
    assert!(ended.err.contains("without a result"), "{}", ended.err);
    assert_eq!(fs::read(&fixture.image).unwrap(), before);
}

#[test]
fn a_mount_serves_from_memory_too_and_counts() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], START).expect(0);
    let point = fixture.stage.dir("point");
    let mut command = fixture.stage.quell();
    command.args(["mount", "-q", "-b"]).arg(&fixture.image).arg(&fixture.index).arg(&point);
    fixture.stage.run(&mut command).expect(0);
    let start =
        || fixture.stage.run(fixture.stage.command("sh").args(["-c", START]).arg(&point)).expect(0).out;
    let counters = || {
        let mut command = fixture.stage.quell();
        let stats = fixture.stage.run(command.args(["stats", "--json"]).arg(&point)).expect(0).json();
        let names = ["files_whole", "blocks_cached", "blocks_from_memory", "blocks_from_source"];
        names.map(|name| stats[0]["trees"][0]["counters"][name].as_u64().unwrap())
    };
    let first = start();
    // Root's view is an overlay, with whole files in its tmpfs and the other blocks in its page
    // cache. An ordinary user's view has all 28,685 bytes in the page cache.
    let (whole, cached) = if is_root() { (2, 4) } else { (0, 8) };
    let [whole_now, cached_now, from_memory, from_source] = counters();
    assert_eq!([whole_now, cached_now, from_source], [whole, cached, 0]);
    // The kernel may have evicted pages.
    assert!(from_memory <= cached, "{from_memory} blocks were asked for one by one");
    // Blocks that the kernel has evicted are served from memory.
    let large = fs::File::open(point.join("large")).unwrap();
    rustix::fs::fadvise(&large, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let second = start();
    let after = counters();
    drop(large);
    fixture.stage.run(fixture.stage.quell().arg("umount").arg(&point)).expect(0);
    assert_eq!((&first, &second), (&fixture.direct(START), &first));
    assert!(after[2] >= 3, "{after:?}");
}

#[test]
fn two_recorders_on_one_file_leave_one_whole_image() {
    let fixture = Fixture::new();
    let start = |script: &str| {
        let mut command = fixture.stage.quell();
        command.args(["record", "-q", "-i"]).arg(&fixture.index).arg("-o").arg(&fixture.image);
        fixture.stage.start(command.args(["--", "sh", "-c", script]).arg(&fixture.tree))
    };
    let (one, two) =
        (start(r#"cat "$0/small" >/dev/null; sleep 1"#), start(r#"cat "$0/cold" >/dev/null; sleep 1"#));
    one.wait().expect(0);
    two.wait().expect(0);
    let files = files_of(&fixture.boot(&["show", "--files", "--json"]).expect(0));
    assert!(files == [("small".to_owned(), 1)] || files == [("cold".to_owned(), 5)], "{files:?}");
}

#[test]
fn an_image_that_another_user_may_not_read_stays_so() {
    if !is_root() {
        crate::skip!("an image of files that others may not read: needs root to make such files");
    }
    let fixture = Fixture::new();
    fixture.record(&["-q"], START).expect(0);
    let mode = |path: &Path| std::os::unix::fs::MetadataExt::mode(&fs::metadata(path).unwrap()) & 0o777;
    assert_eq!(mode(&fixture.image), 0o600, "it holds bytes of files, whatever modes they have");
}
