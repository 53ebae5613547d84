//! Faults while a boot image is recorded, written and served. Each is reported with its own
//! message, and never leads to an incomplete image, a block of another generation, or a program
//! that does not run.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::process::Signal;

use crate::boot::{BLOCK, Fixture, START, files_of};
use crate::group::Group;
use crate::skip;
use crate::stage::{Ended, Running, eventually, is_root, quell, send};
use crate::trees;

const READ_SMALL: &str = r#"cat "$0/small""#;

/// Returns the names in the image's directory that begin with the image's name, with or without a
/// preceding dot.
fn names_beside(image: &Path) -> Vec<String> {
    let name = image.file_name().unwrap().to_str().unwrap();
    let entries = fs::read_dir(image.parent().unwrap()).unwrap();
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|found| found.trim_start_matches('.').starts_with(name)).collect()
}

impl Fixture {
    pub fn start_recording(&self, options: &[&str], script: &str) -> Running {
        let mut command = self.stage.quell();
        command.arg("record").args(options).arg("-i").arg(&self.index).arg("-o").arg(&self.image);
        self.stage.start(command.args(["--", "sh", "-c", script]).arg(&self.tree))
    }

    fn names(&self) -> Vec<String> {
        files_of(&self.boot(&["show", "--files", "--json"]).expect(0))
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    }

    fn recordings(&self) -> u64 {
        self.boot(&["show", "--json"]).expect(0).json()["recordings"].as_u64().unwrap()
    }

    fn lock(&self) -> PathBuf {
        self.image.with_file_name(".app.boot.lock")
    }

    /// Takes the writer's lock, as another writer would.
    fn take_lock(&self) -> fs::File {
        let file = fs::File::create(self.lock()).unwrap();
        rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
        file
    }
}

// --- recording ---------------------------------------------------------------------------------

#[test]
fn a_killed_record_command_loses_nothing_of_the_recording() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], READ_SMALL).expect(0);
    let before = fs::read(&fixture.image).unwrap();
    let mut running = fixture.start_recording(
        &["-q"],
        r#"cat "$0/cold" >/dev/null; echo read; while ! test -e "$0.go"; do sleep 0.05; done"#,
    );
    running.wait_for_output("read");
    running.signal(Signal::KILL);
    running.wait();
    assert!(fs::read(&fixture.image).unwrap() == before, "the old image stays while the program runs");
    fs::write(fixture.stage.path("tree.go"), "").unwrap();
    assert!(eventually(|| fixture.stage.processes().is_empty()));
    assert_eq!(
        (fixture.names(), names_beside(&fixture.image)),
        (vec!["cold".to_owned()], vec!["app.boot".to_owned()])
    );
    fixture.stage.expect_nothing_left();
}

#[test]
fn a_recorder_that_is_killed_while_it_writes_leaves_the_old_image() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], READ_SMALL).expect(0);
    let before = fs::read(&fixture.image).unwrap();
    // The recorder is killed while it waits for the lock.
    let claimed = fixture.take_lock();
    let mut running = fixture.start_recording(&["-q"], r#"cat "$0/cold"; echo read"#);
    running.wait_for_output("read");
    assert!(eventually(|| fixture
        .stage
        .processes()
        .iter()
        .all(|pid| *pid == running.pid() || is_holder(*pid))));
    assert!(running.is_running(), "{}", running.err());
    send(fixture.stage.holder(), Signal::KILL);
    running.wait().expect(3).says("ended without a result, and no boot image was written");
    assert!(fs::read(&fixture.image).unwrap() == before);
    drop(claimed);
    // A recorder that is killed while it writes leaves such a file; a much later recorder removes
    // it.
    let left = fixture.image.with_file_name(".app.boot.aB34z6.aside");
    fs::write(&left, &before[..100]).unwrap();
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
    fs::File::options().write(true).open(&left).unwrap().set_modified(long_ago).unwrap();
    fixture.record(&["-q", "--merge"], r#"cat "$0/cold""#).expect(0);
    assert_eq!((fixture.names(), fixture.recordings()), (vec!["cold".to_owned(), "small".to_owned()], 2));
    assert_eq!(names_beside(&fixture.image), ["app.boot"]);
    fixture.stage.expect_nothing_left();
}

fn is_holder(pid: i32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.is_empty() || line.split(|b| *b == 0).nth(1) == Some(b"holder")
}

#[test]
fn the_pipe_of_a_killed_record_command_is_removed_by_the_next() {
    let fixture = Fixture::new();
    // The pipe of a command that was killed before the pipe was opened. Process ids are smaller
    // than this number.
    fixture.record(&["-q"], READ_SMALL).expect(0);
    let pipe = fixture.stage.runtime().join("record-4194305");
    fixture.stage.run(fixture.stage.command("mkfifo").arg(&pipe)).expect(0);
    fixture.record(&["-q"], READ_SMALL).expect(0);
    assert!(!pipe.exists());
    fixture.stage.expect_nothing_left();
}

#[test]
fn recordings_merged_at_the_same_time_are_all_kept() {
    let fixture = Fixture::new();
    let all = 6;
    let script = r#"cat "$0/small" >/dev/null; while ! test -e "$0.go"; do sleep 0.01; done"#;
    let running: Vec<Running> =
        (0..all).map(|_| fixture.start_recording(&["-q", "--merge"], script)).collect();
    assert!(eventually(|| fixture.stage.holders().len() == all));
    fs::write(fixture.stage.path("tree.go"), "").unwrap();
    for one in running {
        one.wait().expect(0);
    }
    assert_eq!((fixture.recordings(), fixture.names()), (all as u64, vec!["small".to_owned()]));
    assert_eq!(names_beside(&fixture.image), ["app.boot"]);
}

#[test]
fn a_recording_waits_for_another_writer_and_merges_its_result() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], READ_SMALL).expect(0);
    let (ours, aside) = (fixture.image.clone(), fixture.stage.path("aside.boot"));
    fs::rename(&ours, &aside).unwrap();
    let claimed = fixture.take_lock();
    let mut running = fixture.start_recording(&["-q", "--merge"], r#"cat "$0/cold" >/dev/null; echo read"#);
    running.wait_for_output("read");
    assert!(running.is_running());
    fs::rename(&aside, &ours).unwrap();
    fs::remove_file(fixture.lock()).unwrap();
    drop(claimed);
    running.wait().expect(0);
    assert_eq!((fixture.names(), fixture.recordings()), (vec!["cold".to_owned(), "small".to_owned()], 2));
}

#[test]
fn an_image_of_an_older_index_is_not_joined_and_stays() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], READ_SMALL).expect(0);
    let before = fs::read(&fixture.image).unwrap();
    fs::write(fixture.tree.join("small"), "other bytes\n").unwrap();
    fixture.stage.run(fixture.stage.quell().args(["index", "-q", "--update"]).arg(&fixture.index)).expect(0);
    let ended = fixture.record(&["-q", "--merge"], READ_SMALL).expect(2).says("it cannot be merged");
    assert_eq!(ended.text(), "", "it ran for nothing");
    assert!(fs::read(&fixture.image).unwrap() == before);
    assert_eq!(names_beside(&fixture.image), ["app.boot"]);
}

#[test]
fn a_start_that_reads_nothing_leaves_the_old_image() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], READ_SMALL).expect(0);
    let before = fs::read(&fixture.image).unwrap();
    let words = "nothing was recorded: no file of the tree was opened";
    for options in [&["-q"][..], &["-q", "--merge"]] {
        fixture.record(options, "exit 0").expect(3).says(words);
        fixture.record(options, "exit 5").expect(5).says(words);
    }
    let mut command = fixture.stage.quell();
    command.args(["record", "-i"]).arg(&fixture.index).arg("-o").arg(&fixture.image);
    fixture.stage.run(command.args(["--", "no-such-program"])).expect(127).says(words);
    fixture.record(&["-q"], r#"cat "$0/empty""#).expect(3).says("nothing was recorded: no block");
    assert!(fs::read(&fixture.image).unwrap() == before);
}

#[test]
fn a_lock_that_leads_elsewhere_is_refused_before_anything_runs() {
    let fixture = Fixture::new();
    let elsewhere = fixture.stage.path("elsewhere");
    std::os::unix::fs::symlink(&elsewhere, fixture.lock()).unwrap();
    let ended = fixture.record(&["-q"], READ_SMALL).expect(2).says("not a regular file");
    assert_eq!(ended.text(), "", "it ran for nothing");
    assert!(!elsewhere.exists(), "a link was followed");
}

#[test]
fn a_damaged_image_is_not_joined_and_stays() {
    let fixture = Fixture::new();
    fs::write(&fixture.image, "QUELLBOO, but not really").unwrap();
    let ended =
        fixture.record(&["-q", "--merge"], READ_SMALL).expect(2).says("the file ends within the header");
    assert_eq!(ended.text(), "", "it ran for nothing");
    assert_eq!(fs::read(&fixture.image).unwrap(), b"QUELLBOO, but not really");
    fixture.record(&["-q"], READ_SMALL).expect(0);
    assert_eq!(fixture.names(), ["small"]);
}

#[test]
fn where_nothing_can_be_written_nothing_is_run() {
    let fixture = Fixture::new();
    let script = r#"dir=$1; mount -t tmpfs -o ro none "$dir" || exit 77
        exec "$2" record -i "$3" -o "$dir/app.boot" -- echo run"#;
    let directory = fixture.stage.dir("read-only");
    let ended = if is_root() {
        let mut command = fixture.stage.command("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]).arg(&directory).arg(quell()).arg(&fixture.index);
        fixture.stage.run(&mut command)
    } else {
        fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o555)).unwrap();
        let mut command = fixture.stage.quell();
        command.args(["record", "-i"]).arg(&fixture.index).arg("-o").arg(directory.join("app.boot"));
        fixture.stage.run(command.args(["--", "echo", "run"]))
    };
    let ended = ended.expect(3).says("cannot create the image in");
    assert_eq!(ended.text(), "", "it ran all the same");
}

#[test]
fn a_full_disk_leaves_the_old_image() {
    if !is_root() {
        skip!("a small file system to fill needs root to mount it");
    }
    let fixture = Fixture::new();
    let directory = fixture.stage.dir("small disk");
    // In a mount namespace of its own, so that no mount remains.
    let script = r#"mount -t tmpfs -o size=256k none "$1" || exit 77
        "$2" record -q -i "$3" -o "$1/app.boot" -- cat "$4/small" || exit 78
        cp "$1/app.boot" "$1/copy"
        "$2" record -i "$3" -o "$1/app.boot" -- cksum "$4/large"
        echo "code $?"; cmp "$1/app.boot" "$1/copy" && ls -A "$1""#;
    let mut command = fixture.stage.command("unshare");
    command
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(&directory)
        .arg(quell())
        .arg(&fixture.index)
        .arg(&fixture.tree);
    let ended = fixture
        .stage
        .run(&mut command)
        .expect(0)
        .says("nothing was recorded")
        .says("No space left on device");
    assert!(ended.text().ends_with("code 3\napp.boot\ncopy\n"), "{}", ended.text());
}

#[test]
fn a_file_larger_than_allowed_leaves_the_old_image() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], READ_SMALL).expect(0);
    let before = fs::read(&fixture.image).unwrap();
    // The shell's limit of the file size is in blocks of 512 bytes.
    let script = r#"ulimit -f 64; exec "$1" record -i "$2" -o "$3" -- cksum "$4/large""#;
    let paths: [&Path; 4] = [&quell(), &fixture.index, &fixture.image, &fixture.tree];
    fixture.stage.sh(script, &paths).expect(3).says("nothing was recorded").says("File too large");
    assert!(fs::read(&fixture.image).unwrap() == before);
    assert_eq!(names_beside(&fixture.image), ["app.boot"]);
}

// --- serving -----------------------------------------------------------------------------------

#[test]
fn an_image_of_another_tree_is_refused() {
    let fixture = Fixture::new();
    let other = Fixture::new();
    fs::write(other.tree.join("small"), "of another tree\n").unwrap();
    other.stage.run(other.stage.quell().args(["index", "-q", "--update"]).arg(&other.index)).expect(0);
    other.record(&["-q"], READ_SMALL).expect(0);
    fs::copy(&other.image, &fixture.image).unwrap();
    assert_eq!(fixture.run(&[], READ_SMALL).expect(0).says("belongs to another index").text(), "small\n");
    fixture.run(&["--strict"], READ_SMALL).expect(2).says("belongs to another index");
}

#[test]
fn an_image_that_is_cut_anywhere_is_refused() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], START).expect(0);
    let whole = fs::read(&fixture.image).unwrap();
    let expected = fixture.direct(START);
    for part in 0..16 {
        fs::write(&fixture.image, &whole[..whole.len() * part / 16]).unwrap();
        fixture.boot(&["verify"]).expect(2);
        let ended = fixture.run(&[], START).expect(0).says("the boot image is not used");
        assert!(ended.out == expected, "{part} of 16");
        fixture.run(&["--strict"], START).expect(2);
    }
}

#[test]
fn a_flipped_bit_anywhere_is_found_and_nothing_of_it_is_served() {
    let fixture = Fixture::new();
    fixture.record(&["-q", "--exact"], START).expect(0);
    let whole = fs::read(&fixture.image).unwrap();
    let expected = fixture.direct(START);
    for part in 0..16 {
        let mut flipped = whole.clone();
        flipped[(whole.len() - 1) * part / 15] ^= 0x10;
        fs::write(&fixture.image, flipped).unwrap();
        fixture.boot(&["verify"]).expect(2);
        let ended = fixture.run(&[], START).expect(0).says("the boot image is not used");
        assert!(ended.out == expected, "{part} of 15");
    }
}

#[test]
fn an_image_that_is_replaced_while_it_is_served_changes_nothing() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], START).expect(0);
    let mut command = fixture.stage.quell();
    command.args(["run", "-q", "--strict", "-i"]).arg(&fixture.index).arg("-b").arg(&fixture.image);
    let script = format!(r#"echo ready; while ! test -e "$0.go"; do sleep 0.05; done; {START}"#);
    let mut running = fixture.stage.start(command.args(["--", "sh", "-c", &script]).arg(&fixture.tree));
    running.wait_for_output("ready");
    // Overwritten in place, and then replaced by another file.
    fs::write(&fixture.image, "garbage").unwrap();
    fs::remove_file(&fixture.image).unwrap();
    fs::write(&fixture.image, "garbage").unwrap();
    fs::write(fixture.stage.path("tree.go"), "").unwrap();
    let expected = [b"ready\n", &fixture.direct(START)[..]].concat();
    assert!(running.wait().expect(0).out == expected);
    fixture.run(&[], START).expect(0).says("not a boot image");
}

#[test]
fn a_source_that_changed_is_served_as_it_is_and_said() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], START).expect(0);
    fs::write(fixture.tree.join("small"), "changed after it was recorded\n").unwrap();
    let everything = r#"cat "$0/small""#;
    // The index is stale: nothing is covered, and nothing is served from memory.
    let ended =
        fixture.run(&["--check", "full"], everything).expect(0).says("~ small").says("original directory");
    assert_eq!(ended.text(), "changed after it was recorded\n");
    fixture.run(&["--check", "full", "--strict"], everything).expect(3).says("~ small");
    // The index is current, and the image is stale.
    fixture.stage.run(fixture.stage.quell().args(["index", "-q", "--update"]).arg(&fixture.index)).expect(0);
    let ended = fixture.run(&["--check", "full"], everything).expect(0).says("quell record --update");
    assert_eq!(ended.text(), "changed after it was recorded\n");
}

#[test]
fn a_file_never_mixes_recorded_and_changed_content() {
    let fixture = Fixture::new();
    fixture.record(&["-q", "--exact"], START).expect(0);
    let before = fs::read(fixture.tree.join("large")).unwrap();
    fs::write(fixture.tree.join("large"), trees::noise(400 * BLOCK, 9)).unwrap();
    // Blocks 0 and 100 to 102 are in memory, and the file was replaced: the first miss reports it,
    // in any order of reads.
    let unchecked = ["-q", "--strict", "--check", "none", "--recheck", "0"];
    let ended = fixture.run(&unchecked, r#"cat "$0/large""#).expect(1).says("Stale file handle");
    assert!(before.starts_with(&ended.out), "bytes of now behind those in memory");
    let blocks = |skip: usize, count: usize| {
        fixture.run(&unchecked, &format!(r#"dd if="$0/large" bs=4096 skip={skip} count={count} status=none"#))
    };
    assert!(blocks(100, 3).expect(0).out == before[100 * BLOCK..103 * BLOCK]);
    assert!(blocks(99, 2).expect(1).says("Stale file handle").out.is_empty());
    for other in ["serve", "ignore"] {
        fixture.run(&["--on-change", other], "true").expect(2).says("only with --on-change refuse");
    }
}

// --- memory ------------------------------------------------------------------------------------

/// Creates a tree with 40 MiB of incompressible data that is recorded.
fn large_fixture() -> (Fixture, &'static str) {
    let fixture = Fixture::new();
    fs::write(fixture.tree.join("huge"), trees::noise(40 << 20, 5)).unwrap();
    fixture.stage.run(fixture.stage.quell().args(["index", "-q", "--update"]).arg(&fixture.index)).expect(0);
    let script = r#"cksum <"$0/huge""#;
    fixture.record(&["-q"], script).expect(0);
    (fixture, script)
}

/// Runs a script in a view with the boot image, in a control group.
fn run_in_group(group: &Group, fixture: &Fixture, options: &[&str], script: &str) -> Ended {
    let mut command = fixture.stage.command("sh");
    command.args(["-c", r#"echo $$ >"$0/cgroup.procs"; exec "$@""#]).arg(&group.path).arg(quell());
    command.arg("run").args(options).arg("-i").arg(&fixture.index).arg("-b").arg(&fixture.image);
    fixture.stage.run(command.args(["--", "sh", "-c", script]).arg(&fixture.tree))
}

#[test]
fn in_a_control_group_with_less_memory_than_the_image_nothing_is_killed() {
    let group = match Group::new(96 << 20) {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let (fixture, script) = large_fixture();
    let expected = fixture.direct(script);
    let run = |options: &[&str]| run_in_group(&group, &fixture, options, script);
    let group_message = format!("in the control group {}", group.path.display());
    // The blocks are read from the image when they are needed.
    let ended = run(&["-v"]).expect(0).says("takes 81 MiB of memory").says(&group_message);
    assert!(ended.err.contains("half of the") && ended.err.contains("--budget raises"), "{}", ended.err);
    assert!(ended.out == expected);
    assert!(run(&["--strict"]).expect(0).out == expected);
    assert_eq!(group.killed(), 0);
}

#[test]
fn in_a_control_group_with_enough_memory_the_image_is_served() {
    let group = match Group::new(256 << 20) {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let (fixture, script) = large_fixture();
    let expected = fixture.direct(script);
    // A read of the source gives a wrong result.
    let path = fixture.tree.join("huge");
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, vec![b'x'; 40 << 20]).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    let ended = run_in_group(&group, &fixture, &["-q", "--strict", "--check", "none"], script).expect(0);
    assert!(ended.out == expected);
    assert_eq!(group.killed(), 0);
}

#[test]
fn in_a_control_group_without_memory_for_a_part_of_the_image_it_is_not_used() {
    let group = match Group::new(48 << 20) {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let (fixture, script) = large_fixture();
    let expected = fixture.direct(script);
    let run = |options: &[&str]| run_in_group(&group, &fixture, options, script);
    let group_message = format!("in the control group {}", group.path.display());
    let ended = run(&[]).expect(0).says(&group_message).says("the boot image is not used");
    assert!(ended.out == expected);
    assert!(run(&["--strict"]).expect(3).says(&group_message).out.is_empty());
    assert_eq!(group.killed(), 0);
}

#[test]
fn a_strict_run_with_too_small_a_budget_uses_the_image_all_the_same() {
    let fixture = Fixture::new();
    let script = r#"cksum "$0/large""#;
    fixture.record(&["-q"], script).expect(0);
    let expected = fixture.direct(script);
    assert_eq!(fixture.run(&["-q", "--budget", "1", "--strict"], script).expect(0).out, expected);
    fixture.run(&["--budget", "0"], "true").expect(2);
    let mut command = fixture.stage.quell();
    command.args(["run", "-q", "--strict", "--budget", "4", "-i"]).arg(&fixture.index);
    fixture.stage.run(command.arg("-b").arg(&fixture.image).args(["--", "true"])).expect(0);
}
