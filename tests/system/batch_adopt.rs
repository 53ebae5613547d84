//! `quell batch init --adopt`: stores that begin with the files of an existing directory.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::batch::can_mount;
use crate::pool_staging::{listing, make_tree};
use crate::stage::{Ended, Stage, eventually, is_root, words};

/// The user and the group that own the tree of another user.
const OTHER: u32 = 12_345;

impl Stage {
    fn adopt_command(&self, tree: &Path, options: &[&str]) -> Command {
        let mut command = self.quell();
        command.args(words(&[&"batch", &"init", &self.path("store"), &"--adopt", &tree])).args(options);
        command
    }

    fn adopt(&self, tree: &Path, options: &[&str]) -> Ended {
        self.run(&mut self.adopt_command(tree, options))
    }

    fn batch_command(&self, name: &str, options: &[&str]) -> Ended {
        self.run(self.quell().args(words(&[&"batch", &name, &self.path("store")])).args(options))
    }
}

/// Waits until the clock of the file system of a directory has passed the times of its files.
fn wait_for_other_time(path: &Path) {
    let time = |path: &Path| fs::metadata(path).map(|found| (found.ctime(), found.ctime_nsec())).unwrap();
    let probe = path.with_file_name("probe");
    assert!(eventually(|| {
        fs::write(&probe, "").unwrap();
        time(&probe) > time(path)
    }));
}

#[test]
fn an_adopted_tree_is_used_and_not_changed() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let tree = stage.dir("tree");
    make_tree(&tree);
    fs::hard_link(tree.join("sub/7"), tree.join("hard")).unwrap();
    let original = listing(&tree);
    let adopted = stage.adopt(&tree, &[]).expect(0);
    assert_eq!((adopted.text().as_str(), adopted.err.as_str()), ("", ""), "success prints nothing");
    let store = stage.path("store");

    // A batch, mounted over the tree itself, so that programs find the files at their usual paths.
    let mut command = stage.quell();
    command.args(words(&[&"mount", &"--batch", &store, &"--mode", &"batch", &tree]));
    stage.run(&mut command).expect(0);
    let batch = crate::stage::Mounted::at(&stage, tree.clone());
    assert!(listing(&tree) == original, "the files");
    assert_eq!(fs::metadata(tree.join("hard")).unwrap().nlink(), 2);
    assert_eq!(
        fs::metadata(tree.join("hard")).unwrap().ino(),
        fs::metadata(tree.join("sub/7")).unwrap().ino()
    );
    let script = r#"
        set -e; cd "$1"
        printf changed >> hard; rm sub/5; mv sub/deep sub/moved; truncate -s 3 sub/8; echo new > sub/new
        chmod 600 sub/9; : > sub/10
    "#;
    stage.sh(script, &[&tree]).expect(0);
    let changed = listing(&tree);
    batch.umount();
    assert_eq!(stage.batches(&store)[0]["conflicts"], 0);
    assert!(listing(&tree) == original, "the tree");

    // The synchronous mode, with a server.
    let mut serve = stage.quell();
    serve.args(words(&[&"batch", &"serve", &store, &"--json"]));
    let server = stage.start(&mut serve);
    assert!(eventually(|| server.out().ends_with('\n')), "{}", server.err());
    let mounted = stage.mount_batch(&store, &[], "mounted");
    assert!(listing(&mounted.point) == changed, "the files");
    fs::write(mounted.point.join("sub/11"), "synchronous").unwrap();
    let changed = listing(&mounted.point);
    mounted.umount();
    server.signal(Signal::TERM);
    server.wait().expect(0);

    // The tools.
    let checked = stage.batch_command("fsck", &[]).expect(0);
    assert_eq!(checked.text(), "");
    stage.batch_command("gc", &[]).expect(0);
    let out = stage.path("exported");
    let mut export = stage.quell();
    stage.run(export.args(words(&[&"batch", &"export", &store, &out]))).expect(0);
    assert!(listing(&out) == changed, "the files");
    assert!(listing(&tree) == original, "the tree");
}

#[test]
fn a_file_that_was_changed_in_the_tree_is_stale() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let tree = stage.dir("tree");
    for name in ["changed", "gone", "kept", "replaced"] {
        fs::write(tree.join(name), "original").unwrap();
    }
    stage.adopt(&tree, &[]).expect(0);
    wait_for_other_time(&tree.join("replaced"));
    fs::write(tree.join("changed"), "much longer than before").unwrap();
    fs::remove_file(tree.join("gone")).unwrap();
    fs::rename(tree.join("replaced"), tree.join("elsewhere")).unwrap();
    symlink("/etc/passwd", tree.join("replaced")).unwrap();
    let store = stage.path("store");
    let mounted = stage.mount_batch(&store, &[], "mounted");
    for name in ["changed", "gone", "replaced"] {
        let path = mounted.point.join(name);
        assert_eq!(fs::metadata(&path).unwrap().len(), 8, "{name}");
        assert_eq!(fs::read(&path).unwrap_err().raw_os_error(), Some(116), "{name}: ESTALE");
    }
    assert_eq!(fs::read_to_string(mounted.point.join("kept")).unwrap(), "original");
    fs::write(mounted.point.join("changed"), "of the store").unwrap();
    fs::remove_file(mounted.point.join("gone")).unwrap();
    mounted.umount();
    // Files of the tree that were changed since the adoption are not exported.
    let out = stage.path("exported");
    let mut export = stage.quell();
    let exported = stage.run(export.args(words(&[&"batch", &"export", &store, &out])));
    exported.expect(1).says("replaced");
    let names: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(fs::read_to_string(out.join("changed")).unwrap(), "of the store");
    let checked = stage.batch_command("fsck", &["--json"]).expect(1);
    let problem: Value = serde_json::from_str(checked.text().trim()).expect("one line of JSON");
    assert_eq!((&problem["kind"], &problem["path"]), (&"missing-adopted".into(), &"/replaced".into()));
    assert_eq!(fs::read_to_string(tree.join("changed")).unwrap(), "much longer than before");
}

#[test]
fn a_check_below_a_mount_over_the_tree_repairs_nothing() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let tree = stage.dir("tree");
    fs::write(tree.join("file"), "original").unwrap();
    stage.adopt(&tree, &[]).expect(0);
    let store = stage.path("store");
    let mut command = stage.quell();
    command.args(words(&[&"mount", &"--batch", &store, &"--mode", &"batch", &tree]));
    stage.run(&mut command).expect(0);
    let batch = crate::stage::Mounted::at(&stage, tree.clone());
    fs::write(tree.join("file"), "not committed").unwrap();
    let checked = stage.batch_command("fsck", &["--repair", "--json"]).expect(1);
    let problem: Value = serde_json::from_str(checked.text().trim()).expect("one line of JSON");
    assert_eq!((&problem["kind"], &problem["repairable"]), (&"lost-tree".into(), &false.into()), "{problem}");
    // The mount itself reads from the tree below it, and cannot be adopted.
    let mut command = stage.quell();
    command.args(words(&[&"batch", &"init", &stage.path("other"), &"--adopt", &tree]));
    stage.run(&mut command).expect(3).says("a file system of Quell is mounted");
    assert!(!stage.path("other").exists());
    batch.umount();
    assert_eq!(fs::read_to_string(tree.join("file")).unwrap(), "original");
    let checked = stage.batch_command("fsck", &[]).expect(0);
    assert_eq!(checked.text(), "");
}

#[test]
fn entries_that_are_not_adopted_are_listed_and_the_exit_code_is_1() {
    let stage = Stage::new();
    let tree = stage.dir("tree");
    fs::write(tree.join("file"), "file").unwrap();
    fs::create_dir(tree.join("dir")).unwrap();
    stage.sh(r#"mkfifo "$1/dir/fifo""#, &[&tree]).expect(0);
    let adopted = stage.adopt(&tree, &[]).expect(1);
    assert!(adopted.err.contains("dir/fifo: "), "{}", adopted.err);
    assert!(adopted.err.contains("1 entry was not adopted"), "{}", adopted.err);
    fs::remove_dir_all(stage.path("store")).unwrap();
    let adopted = stage.adopt(&tree, &["--json"]).expect(1);
    let lines: Vec<Value> =
        adopted.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines[0]["path"], "dir/fifo", "{lines:?}");
    let counts = ["directories", "files", "links", "left_out"].map(|key| lines[1][key].as_u64().unwrap());
    assert_eq!(counts, [2, 1, 0, 1]);
    assert_eq!(adopted.err, "");
    // A store in its own tree would adopt itself.
    let mut command = stage.quell();
    command.args(words(&[&"batch", &"init", &tree.join("store"), &"--adopt", &tree]));
    stage.run(&mut command).expect(2).says("the store is in the directory to be adopted");
    assert!(!tree.join("store").exists());
}

#[test]
fn directories_that_cannot_be_read_are_empty_and_closed() {
    if !can_mount() {
        return;
    }
    if is_root() {
        println!("SKIPPED: root can read every directory");
        return;
    }
    let stage = Stage::new();
    let tree = stage.dir("tree");
    fs::create_dir_all(tree.join("closed/below")).unwrap();
    fs::write(tree.join("secret"), "secret").unwrap();
    for name in ["closed", "secret"] {
        fs::set_permissions(tree.join(name), PermissionsExt::from_mode(0o000)).unwrap();
    }
    let adopted = stage.adopt(&tree, &[]).expect(1);
    assert!(adopted.err.contains("closed: "), "{}", adopted.err);
    let mounted = stage.mount_batch(&stage.path("store"), &[], "mounted");
    let closed = fs::metadata(mounted.point.join("closed")).unwrap();
    assert_eq!(closed.mode() & 0o7777, 0);
    assert_eq!(fs::read_dir(mounted.point.join("closed")).unwrap_err().raw_os_error(), Some(13));
    assert_eq!(fs::read(mounted.point.join("secret")).unwrap_err().raw_os_error(), Some(13));
    // The mode in the store gives no access to the bytes in the tree.
    fs::set_permissions(mounted.point.join("secret"), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(fs::read(mounted.point.join("secret")).unwrap_err().raw_os_error(), Some(13));
    mounted.umount();
    fs::set_permissions(tree.join("closed"), PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
fn the_tree_of_another_user_gives_its_owner_no_power() {
    if !can_mount() {
        return;
    }
    if !is_root() {
        println!("SKIPPED: files of two users are made by root alone");
        return;
    }
    let stage = Stage::new();
    let tree = stage.dir("tree");
    fs::create_dir(tree.join("dir")).unwrap();
    for (name, mode) in [("program", 0o6755), ("dir/file", 0o640)] {
        fs::write(tree.join(name), "of others").unwrap();
        chown(tree.join(name), Some(OTHER), Some(OTHER)).unwrap();
        fs::set_permissions(tree.join(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    chown(tree.join("dir"), Some(OTHER), Some(OTHER)).unwrap();
    stage.adopt(&tree, &[]).expect(0);
    // The owner replaces a directory by a link to one of root, with a file of the same name.
    let secret = stage.dir("secret");
    fs::write(secret.join("file"), "of root !").unwrap();
    fs::rename(tree.join("dir"), tree.join("moved")).unwrap();
    symlink(&secret, tree.join("dir")).unwrap();
    let mounted = stage.mount_batch(&stage.path("store"), &[], "mounted");
    let program = fs::metadata(mounted.point.join("program")).unwrap();
    assert_eq!((program.uid(), program.mode() & 0o7777), (OTHER, 0o755), "without set-id bits");
    let file = mounted.point.join("dir/file");
    assert_eq!((fs::metadata(&file).unwrap().uid(), fs::metadata(&file).unwrap().len()), (OTHER, 9));
    assert_eq!(fs::read(&file).unwrap_err().raw_os_error(), Some(116), "ESTALE");
    mounted.umount();
}

/// A user renames a directory on the path of the new store during the adoption, and puts a link to
/// another private directory in its place. The adoption fails, because its output is closed.
#[test]
fn a_failed_adoption_removes_nothing_of_a_directory_that_replaces_the_store() {
    let stage = Stage::new();
    let tree = stage.dir("tree");
    // The reports about these files do not fit into a pipe, so the adoption waits for the reader.
    let script = r#"cd "$1"; seq -f "a-long-name-of-a-file-%g" 3000 | xargs mkfifo"#;
    stage.sh(script, &[&tree]).expect(0);
    let victim = stage.dir("victim");
    fs::set_permissions(&victim, PermissionsExt::from_mode(0o700)).unwrap();
    fs::write(victim.join("file"), "precious").unwrap();
    let (sub, moved) = (stage.dir("sub"), stage.path("moved"));
    let mut command = stage.quell();
    command.args(words(&[&"batch", &"init", &sub.join("store"), &"--adopt", &tree, &"--json"]));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    assert!(out.read_line(&mut String::new()).unwrap() > 0);
    fs::rename(&sub, &moved).unwrap();
    fs::create_dir(&sub).unwrap();
    symlink(&victim, sub.join("store")).unwrap();
    drop(out);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(141), "{ended:?}");
    assert_eq!(fs::read_to_string(victim.join("file")).unwrap(), "precious");
    assert_eq!(fs::read_dir(&moved).unwrap().count(), 0, "the incomplete store is removed");
}

#[test]
fn an_interrupted_adoption_leaves_nothing() {
    interrupt_adoption(Signal::INT);
}

#[test]
fn an_adoption_whose_terminal_is_closed_leaves_nothing() {
    interrupt_adoption(Signal::HUP);
}

fn interrupt_adoption(signal: Signal) {
    let stage = Stage::new();
    let tree = stage.dir("tree");
    let mut made = 0;
    // The signal may come too late in a tree that is small for this machine.
    for count in [50_000, 100_000, 200_000, 400_000] {
        // Links need less time than files.
        for number in made..count {
            let dir = tree.join((number / 10_000).to_string());
            if number % 10_000 == 0 {
                fs::create_dir(&dir).unwrap();
                fs::write(dir.join("file"), "file").unwrap();
            }
            fs::hard_link(dir.join("file"), dir.join(number.to_string())).unwrap();
        }
        made = count;
        let adopting = stage.start(&mut stage.adopt_command(&tree, &[]));
        assert!(eventually(|| stage.path("store/tables").exists()), "{}", adopting.err());
        adopting.signal(signal);
        let ended = adopting.wait();
        if ended.code() == Some(0) {
            fs::remove_dir_all(stage.path("store")).unwrap();
            continue;
        }
        ended.expect(130).says("no store was created");
        assert!(!stage.path("store").exists());
        return;
    }
    panic!("the adoption of {made} entries ended before it was interrupted");
}
