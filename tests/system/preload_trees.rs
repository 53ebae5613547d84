//! `quell run --via preload` on trees: one holder for each node checks the tree, and has its index
//! and the whole files of its boot image in memory for all processes.

use std::fs;
use std::process::Command;

use crate::boot::{Fixture, files_of};
use crate::skip;
use crate::stage::{Ended, has, quell};

/// A start that reads whole files, through several processes.
const START: &str = r#"cat "$0/small" && cat "$0/sub/other" | cksum && tail -c 4 "$0/sub/other" | cksum"#;

/// Options with which nothing is compared, so that a changed source is not noticed.
const UNCHECKED: [&str; 6] = ["-q", "--strict", "--check", "none", "--recheck", "0"];

fn preloaded(fixture: &Fixture, options: &[&str], boot: bool) -> Command {
    let mut command = fixture.stage.quell();
    command.args(["run", "--via", "preload"]).args(options).arg("-i").arg(&fixture.index);
    if boot {
        command.arg("-b").arg(&fixture.image);
    }
    command.arg("--");
    command
}

fn run(fixture: &Fixture, options: &[&str], script: &str) -> Ended {
    let mut command = preloaded(fixture, options, true);
    fixture.stage.run(command.args(["sh", "-c", script]).arg(&fixture.tree))
}

/// Replaces the bytes of the recorded files, and keeps their sizes and times: a read of the source
/// then has a wrong result.
fn spoil(fixture: &Fixture) {
    for name in ["small", "sub/other"] {
        let path = fixture.tree.join(name);
        let found = fs::metadata(&path).unwrap();
        fs::write(&path, vec![b'x'; found.len() as usize]).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(found.modified().unwrap()).unwrap();
    }
}

fn has_library() -> bool {
    quell().with_file_name("libquell_preload.so").exists()
}

#[test]
fn a_start_from_the_image_reads_nothing_of_the_source() {
    if !has_library() {
        skip!("no libquell_preload.so beside the binary");
    }
    let fixture = Fixture::new();
    let expected = fixture.direct(START);
    fixture.record(&["-q"], START).expect(0);
    spoil(&fixture);
    let ended = run(&fixture, &UNCHECKED, START).expect(0);
    assert_eq!((ended.out, ended.err.as_str()), (expected, ""));
}

#[test]
fn a_file_in_memory_has_the_attributes_of_the_original_and_cannot_be_changed() {
    if !has_library() || !has("python3") {
        skip!("no libquell_preload.so beside the binary, or no python3");
    }
    let fixture = Fixture::new();
    fixture.record(&["-q"], START).expect(0);
    let program = r#"
import errno, mmap, os, subprocess, sys
path = sys.argv[1] + "/sub/other"
fd = os.open(path, os.O_RDONLY)
other = os.open(path, os.O_RDONLY)
found, named = os.fstat(fd), os.stat(path)
print(tuple(found)[:7], found.st_mtime_ns, found.st_ctime_ns, tuple(found)[:7] == tuple(named)[:7])
print(os.lseek(fd, 0, os.SEEK_END), os.lseek(other, 0, os.SEEK_CUR), os.read(other, 5) == os.pread(fd, 5, 0))
print(hash(mmap.mmap(fd, 0, prot=mmap.PROT_READ)[:]) == hash(os.pread(fd, 1 << 20, 0)), os.fstat(os.dup(fd)) == found)
print(subprocess.run(["stat", "-L", "-c", "%i %s %Y", "/dev/stdin"], stdin=other, capture_output=True).stdout)
def names(of):
    try:
        return sorted(os.listxattr(of))
    except OSError as e:
        return e.errno
print(names(fd) == names(path))
for change in [lambda: os.fchmod(fd, 0o777), lambda: os.utime(fd), lambda: os.fchown(fd, -1, -1), lambda: os.open(path, os.O_RDWR)]:
    try:
        if len(sys.argv) > 2:
            change()
            print("changed")
    except OSError as e:
        print(errno.errorcode[e.errno])
"#;
    let file = fixture.stage.file("program.py", program);
    let direct = fixture.stage.run(fixture.stage.command("python3").args([&file, &fixture.tree])).expect(0);
    let mut command = preloaded(&fixture, &UNCHECKED, true);
    command.arg("python3").args([&file, &fixture.tree]).arg("changes");
    let found = fixture.stage.run(&mut command).expect(0);
    assert_eq!(found.err, "");
    let changes = found.text();
    let changes =
        changes.strip_prefix(&direct.text()).unwrap_or_else(|| panic!("{changes}{}", direct.text()));
    assert_eq!(changes, "EROFS\n".repeat(4));
    assert!(direct.text().contains("True"));
}

#[test]
fn processes_use_the_memory_of_the_holder_and_not_the_index_file() {
    if !has_library() || !has("python3") {
        skip!("no libquell_preload.so beside the binary, or no python3");
    }
    let fixture = Fixture::new();
    fixture.record(&["-q"], START).expect(0);
    let expected = fixture.direct(r#"cat "$0/small"; stat -c %s "$0/cold""#);
    fs::write(fixture.tree.join("new"), "").unwrap();
    spoil(&fixture);
    // The last `cat` starts after its process has closed all descriptors.
    let script = r#"rm "$1" && python3 -c 'import os, sys
os.closerange(3, 4096)
os.execvp("sh", ["sh", "-c", "test ! -e \"$0/new\" && cat \"$0/small\"; stat -c %s \"$0/cold\"", sys.argv[1]])' "$0""#;
    let mut command = preloaded(&fixture, &UNCHECKED, true);
    command.args(["sh", "-c", script]).args([&fixture.tree, &fixture.index]);
    let ended = fixture.stage.run(&mut command).expect(0);
    assert_eq!((ended.out, ended.err.as_str()), (expected, ""));
}

#[test]
fn an_image_that_does_not_fit_the_memory_is_refused() {
    if !has_library() {
        skip!("no libquell_preload.so beside the binary");
    }
    let fixture = Fixture::new();
    let script = r#"cksum <"$0/large""#;
    fixture.record(&["-q", "--whole"], script).expect(0);
    let words = "takes 4 MiB of memory, and 1 MiB are left (of the limit of --budget)";
    let mut command = preloaded(&fixture, &["--budget", "1"], true);
    let ended =
        fixture.stage.run(command.args(["sh", "-c", script]).arg(&fixture.tree)).expect(0).says(words);
    assert_eq!(ended.says("the boot image is not used").out, fixture.direct(script));
    let mut command = preloaded(&fixture, &["--budget", "1", "--strict"], true);
    fixture.stage.run(command.args(["sh", "-c", script]).arg(&fixture.tree)).expect(3).says(words);
}

#[test]
fn runs_with_a_name_share_the_memory_and_stats_count_all_of_them() {
    if !has_library() {
        skip!("no libquell_preload.so beside the binary");
    }
    let fixture = Fixture::new();
    fixture.record(&["-q"], START).expect(0);
    let script = r#"cat "$0/small" >/dev/null && "$2" run --via preload -q --strict --share job -i "$3" -b "$1" -- sh -c 'cat "$0/small" && "$1" stats --json "$0"' "$0" "$2""#;
    let mut command = preloaded(&fixture, &["-q", "--strict", "--share", "job"], true);
    command.args(["sh", "-c", script]).args([&fixture.tree, &fixture.image]).arg(quell()).arg(&fixture.index);
    let ended = fixture.stage.run(&mut command).expect(0);
    let text = ended.text();
    let json = text.strip_prefix("small\n").unwrap_or_else(|| panic!("{text}{}", ended.err));
    let reports: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(reports.as_array().unwrap().len(), 1, "{reports}");
    let tree = &reports[0]["trees"][0];
    assert_eq!((tree["view"].as_str(), tree["entries"].as_u64()), (Some("preload"), Some(7)), "{reports}");
    assert_eq!(tree["counters"]["files_whole"], 2, "{reports}");
    assert_eq!(tree["counters"]["opens"], 2, "{reports}");
    assert!(!tree["generation"].as_str().unwrap().is_empty(), "{reports}");
}

#[test]
fn a_tree_that_differs_from_its_index_is_not_served() {
    if !has_library() {
        skip!("no libquell_preload.so beside the binary");
    }
    let fixture = Fixture::new();
    fs::write(fixture.tree.join("small"), "changed\n").unwrap();
    let run = |options: &[&str]| {
        let mut command = preloaded(&fixture, options, false);
        fixture.stage.run(command.arg("cat").arg(fixture.tree.join("small")))
    };
    let ended = run(&["--check", "full"]).expect(0);
    assert_eq!(ended.text(), "changed\n");
    ended.says("out of date").says("the original directory is used");
    let refused = run(&["--check", "full", "--strict"]).expect(3);
    assert_eq!(refused.text(), "");
    // Without a check the difference is found when the file is opened.
    run(&["-q", "--check", "none"]).expect(1).says("Stale");
}

#[test]
fn a_recording_of_whole_files_serves_large_files_too() {
    if !has_library() {
        skip!("no libquell_preload.so beside the binary");
    }
    let fixture = Fixture::new();
    let partly = r#"dd if="$0/large" bs=4096 skip=100 count=3 status=none | cksum"#;
    let entirely = r#"cksum < "$0/large""#;
    let expected = fixture.direct(entirely);
    fixture.record(&["-q"], partly).expect(0);
    assert!(files_of(&fixture.boot(&["show", "--files", "--json"])).contains(&("large".into(), 4)));
    fixture.record(&["-q", "--whole"], partly).expect(0);
    assert!(files_of(&fixture.boot(&["show", "--files", "--json"])).contains(&("large".into(), 400)));
    let path = fixture.tree.join("large");
    let found = fs::metadata(&path).unwrap();
    fs::write(&path, vec![b'x'; found.len() as usize]).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(found.modified().unwrap()).unwrap();
    let ended = run(&fixture, &UNCHECKED, entirely).expect(0);
    assert_eq!((ended.out, ended.err.as_str()), (expected, ""));
}
