//! A tree that differs from its index: noticed before a run, at opens, and while the tree is
//! covered. docs/semantics.md describes the behaviour of each view.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::skip;
use crate::stage::{Ended, Running, Stage, eventually, has, is_root, views};
use crate::trees;

/// Returns a stage, a small tree, and its index.
fn fixture() -> (Stage, PathBuf, PathBuf) {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let index = stage.index(&tree);
    (stage, tree, index)
}

#[test]
fn a_tree_that_was_checked_just_now_is_looked_at_less() {
    let stage = Stage::new();
    let tree = stage.dir("tree");
    for name in ["a/b/c", "d"] {
        fs::create_dir_all(tree.join(name)).unwrap();
    }
    let index = stage.index(&tree);
    let run = || {
        stage
            .run(
                stage
                    .quell()
                    .args(["run", "--check", "sample", "--recheck", "0", "-i"])
                    .arg(&index)
                    .args(["--", "true"]),
            )
            .expect(0)
    };
    let stamps = || -> Vec<PathBuf> {
        let entries = fs::read_dir(stage.runtime()).unwrap().flatten().map(|entry| entry.path());
        entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("checked-")).collect()
    };
    assert!(!run().err.contains("is out of date"));
    let [stamp] = &stamps()[..] else { panic!("{:?}", stamps()) };
    let age = || {
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(61);
        let stamp = fs::File::options().create(true).truncate(false).write(true).open(stamp).unwrap();
        stamp.set_modified(old).unwrap();
    };
    // With a recent stamp, the sample has the root and one random entry, a or d, which are
    // unchanged.
    fs::write(tree.join("a/b/new"), "").unwrap();
    assert!(!run().err.contains("is out of date"));
    // With an old stamp, the sample has five entries, of which four are random.
    let noticed = (0..40).any(|_| {
        age();
        run().err.contains("is out of date")
    });
    assert!(noticed && stamps().is_empty(), "seven of eight times it is seen at once");
    // A change in the root is always noticed.
    fs::remove_file(tree.join("a/b/new")).unwrap();
    stage.run(stage.quell().args(["index", "-q", "--update"]).arg(&index)).expect(0);
    // The stamp of an older generation is removed by later runs.
    age();
    assert!(!run().err.contains("is out of date"));
    assert!(stamps().len() == 1 && stamps()[0] != *stamp, "{:?}", stamps());
    fs::write(tree.join("new"), "").unwrap();
    run().says("is out of date").says("~ . (mtime)");
}

#[test]
fn a_stale_index_is_reported_and_the_original_is_used() {
    let (stage, tree, index) = fixture();
    fs::write(tree.join("added"), "").unwrap();
    for view in views() {
        let ended = stage.run(stage.quell_run(&index, view).args(["--", "ls"]).arg(&tree)).expect(0);
        assert_eq!(ended.text(), "added\nbin\nlib\nlink\nreadme\n", "{view}");
        ended.says("is out of date").says("~ . (mtime)").says("quell index --update").says("original");
    }
}

#[test]
fn strict_refuses_a_stale_index() {
    let (stage, tree, index) = fixture();
    fs::write(tree.join("added"), "").unwrap();
    for view in views() {
        let ended =
            stage.run(stage.quell_run(&index, view).args(["--strict", "--", "echo", "ran"])).expect(3);
        assert_eq!(ended.text(), "", "{view}");
        ended.says("is out of date");
    }
    let point = stage.dir("point");
    stage.run(stage.quell().arg("mount").arg(&index).arg(&point)).expect(3).says("is out of date");
}

#[test]
fn without_a_check_the_view_shows_the_index() {
    let (stage, tree, index) = fixture();
    fs::write(tree.join("added"), "").unwrap();
    for view in views() {
        let mut command = stage.quell_run(&index, view);
        command.args(["--strict", "--check", "none", "--", "ls"]).arg(&tree);
        assert_eq!(stage.run(&mut command).expect(0).text(), "bin\nlib\nlink\nreadme\n", "{view}");
    }
}

#[test]
fn a_sample_finds_a_file_added_to_the_largest_directory() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    for number in 0..300 {
        fs::write(tree.join(format!("lib/deep/module{number}")), "").unwrap();
    }
    let index = stage.index(&tree);
    fs::write(tree.join("lib/deep/another"), "").unwrap();
    let mut command = stage.quell_run(&index, "auto");
    stage.run(command.args(["--strict", "--", "true"])).expect(3).says("~ lib/deep (mtime)");
}

#[test]
fn a_full_check_finds_every_change() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    for number in 0..300 {
        fs::write(tree.join(format!("lib/deep/module{number}")), "old").unwrap();
    }
    let index = stage.index(&tree);
    let full = |view: &str| {
        stage.run(stage.quell_run(&index, view).args(["--strict", "--check", "full", "--", "true"]))
    };
    full("auto").expect(0);
    fs::write(tree.join("lib/deep/module77"), "another").unwrap();
    fs::remove_file(tree.join("bin/tool")).unwrap();
    for view in views() {
        full(view).expect(3).says("~ lib/deep/module77 (size").says("- bin/tool");
    }
}

#[test]
fn a_change_while_it_runs_is_reported() {
    for view in views() {
        let (stage, tree, index) = fixture();
        let mut command = stage.quell_run(&index, view);
        command.args(["--recheck", "200", "--", "sh", "-c", "echo ready; read line"]);
        let mut running = stage.start(command.stdin(Stdio::piped()));
        running.wait_for_output("ready");
        fs::write(tree.join("readme"), "longer than before").unwrap();
        running.wait_for_error("changed while it is covered: ~ readme (size");
        drop(running.stdin());
        running.wait();
    }
}

#[test]
fn a_missing_tree_is_wrong_input_and_a_missing_index_too() {
    let (stage, tree, index) = fixture();
    fs::rename(&tree, stage.path("moved")).unwrap();
    stage.run(stage.quell().arg("verify").arg(&index)).expect(2).says("tree");
    stage
        .run(stage.quell_run(&stage.path("none.quell"), "auto").args(["--", "true"]))
        .expect(2)
        .says("none.quell");
    // There is no directory to cover: the program runs, and a message is printed.
    stage.run(stage.quell_run(&index, "auto").args(["--", "true"])).expect(0).says("original");
    stage.run(stage.quell_run(&index, "auto").args(["--strict", "--", "true"])).expect(2).says("tree");
}

/// Starts a script in a view. It continues with each line that it receives.
fn start(stage: &Stage, index: &Path, view: &str, options: &[&str], tree: &Path, script: &str) -> Running {
    let mut command = stage.quell_run(index, view);
    command.args(["--strict", "--quiet", "--recheck", "0"]).args(options);
    command.args(["--", "sh", "-c", script, "sh"]).arg(tree);
    let mut running = stage.start(command.stdin(Stdio::piped()));
    running.wait_for_output("ready");
    running
}

const LOOK_LATER: &str = "exec 3<\"$1/lib/data\"; cat \"$1/link\"; echo ready; read line; \
                          stat -c %s \"$1/readme\"; cat \"$1/readme\"; echo end; wc -c <&3";

#[test]
fn a_file_changed_in_place() {
    for (view, options, expected) in [
        ("fuse", &[][..], "6\nend\n"),
        ("fuse", &["--on-change", "refuse"], "6\nend\n"),
        // The program reads the new bytes, up to the indexed size.
        ("fuse", &["--on-change", "serve"], "6\nHELLO,end\n"),
        ("fuse", &["--on-change", "ignore"], "6\nHELLO,end\n"),
        // The change is shown within moments; see below. Without the check of the whole tree, and
        // with overlay-fuse, stat(2) returns the indexed size, and the program reads all bytes.
        ("overlay", &["--check", "sample"], "6\nHELLO, there\nend\n"),
        ("overlay-fuse", &[], "6\nHELLO, there\nend\n"),
    ] {
        if !views().contains(&view) {
            continue;
        }
        let (stage, tree, index) = fixture();
        let mut running = start(&stage, &index, view, options, &tree, LOOK_LATER);
        fs::write(tree.join("readme"), "HELLO, there\n").unwrap();
        running.stdin().write_all(b"\n").unwrap();
        let ended = running.wait().expect(0);
        assert_eq!(ended.text(), format!("leaf\nready\n{expected}10000\n"), "{view} {options:?}");
        let refused = ended.err.contains("Stale file handle");
        assert_eq!(refused, expected == "6\nend\n", "{view} {options:?}: {}", ended.err);
    }
}

/// Changes the files of a tree while a program looks at them, and returns what the program sees of
/// each: size, modification time, content.
const LOOK_AGAIN: &str = "echo ready; while read name; do \
                          f=\"$1/$name\"; stat -c '%s %Y' \"$f\"; wc -c <\"$f\"; sum <\"$f\"; done";

#[test]
fn the_overlay_view_shows_size_time_and_data_of_a_file_that_the_caller_changes() {
    if !views().contains(&"overlay") {
        skip!("overlayfs is not usable here");
    }
    let (stage, tree, index) = fixture();
    let mut command = stage.quell_run(&index, "overlay");
    command.args(["--strict", "--recheck", "0", "--", "sh", "-c", LOOK_AGAIN, "sh"]).arg(&tree);
    let mut running = stage.start(command.stdin(Stdio::piped()));
    running.wait_for_output("ready");
    let mut stdin = running.stdin();
    let old_time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let other = tree.join("aside");
    for (name, content) in [
        ("readme", "written in place, longer than before\n"),
        ("readme", "short\n"),
        ("readme", ""),
        ("readme", "not empty any more\n"),
        ("lib/data", "replaced by another file\n"),
        ("lib/data", "and by a third one, which is longer\n"),
        ("bin/tool", "changed in a directory that is used for the first time\n"),
    ] {
        let path = tree.join(name);
        if name == "lib/data" {
            fs::write(&other, content).unwrap();
            fs::rename(&other, &path).unwrap();
        } else {
            fs::write(&path, content).unwrap();
        }
        fs::File::options().write(true).open(&path).unwrap().set_modified(old_time).unwrap();
        let sum = stage.sh("sum <\"$1\"", &[&path]).expect(0).text();
        let expected = format!("{0} 1000000000\n{0}\n{sum}", content.len());
        // The view follows within milliseconds; a busy machine gets more.
        let is_shown = eventually(|| {
            let before = running.out().lines().count();
            stdin.write_all(format!("{name}\n").as_bytes()).unwrap();
            assert!(eventually(|| running.out().lines().count() >= before + 3), "{}", running.out());
            running.out().ends_with(&expected)
        });
        assert!(is_shown, "{name}: {expected}\n{}{}", running.out(), running.err());
    }
    drop(stdin);
    let ended = running.wait().expect(0);
    for name in ["readme", "lib/data", "bin/tool"] {
        let line = format!("changed while it is covered: ~ {name} (");
        assert_eq!(ended.err.matches(&line).count(), 1, "{}", ended.err);
    }
    ended.says("programs see the file as it is now");
}

#[test]
fn the_overlay_view_shows_a_file_that_was_replaced_while_a_program_used_it() {
    if !views().contains(&"overlay") {
        skip!("overlayfs is not usable here");
    }
    let (stage, tree, index) = fixture();
    let mut command = stage.quell_run(&index, "overlay");
    // The old file stays open until the third line.
    let script = "exec 3<\"$1/readme\"; echo ready; read line; cat <&3; cat \"$1/readme\"; exec 3<&-; \
                  echo closed; while read line; do \
                  { stat -L -c %s /dev/stdin; cat; } <\"$1/readme\"; done";
    command.args(["--strict", "--recheck", "0", "--", "sh", "-c", script, "sh"]).arg(&tree);
    let mut running = stage.start(command.stdin(Stdio::piped()));
    running.wait_for_output("ready");
    fs::write(tree.join("aside"), "the file that replaced it\n").unwrap();
    fs::rename(tree.join("aside"), tree.join("readme")).unwrap();
    running.wait_for_error("changed while it is covered: ~ readme");
    let mut stdin = running.stdin();
    stdin.write_all(b"\n").unwrap();
    running.wait_for_output("closed");
    // Size and data are of one file, while the old one is in use, too.
    assert_eq!(running.out(), "ready\nhello\nhello\nclosed\n", "{}", running.err());
    let is_shown = eventually(|| {
        let before = running.out().lines().count();
        stdin.write_all(b"\n").unwrap();
        assert!(eventually(|| running.out().lines().count() >= before + 2), "{}", running.out());
        let out = running.out();
        assert!(out.ends_with("6\nhello\n") || out.ends_with("26\nthe file that replaced it\n"), "{out}");
        out.ends_with("26\nthe file that replaced it\n")
    });
    assert!(is_shown, "{}{}", running.out(), running.err());
    drop(stdin);
    running.wait().expect(0);
}

#[test]
fn the_overlay_view_shows_many_files_that_are_replaced_at_once() {
    if !views().contains(&"overlay") {
        skip!("overlayfs is not usable here");
    }
    let stage = Stage::new();
    let tree = stage.dir("tree");
    let copies = stage.dir("copies");
    for number in 0..200 {
        fs::write(tree.join(format!("file{number}")), "old").unwrap();
        fs::write(copies.join(format!("file{number}")), "this is new\n").unwrap();
    }
    let index = stage.index(&tree);
    let mut command = stage.quell_run(&index, "overlay");
    // The kernel has the names and the data of the old files.
    let script = "cat \"$1\"/* >/dev/null; echo ready; \
                  while read line; do cat \"$1\"/* | grep -c new; echo end; done";
    command.args(["--strict", "--recheck", "0", "--", "sh", "-c", script, "sh"]).arg(&tree);
    let mut running = stage.start(command.stdin(Stdio::piped()));
    running.wait_for_output("ready");
    stage.sh("mv \"$1\"/* \"$2\"", &[&copies, &tree]).expect(0);
    let mut stdin = running.stdin();
    let is_shown = eventually(|| {
        let before = running.out().matches("end").count();
        stdin.write_all(b"\n").unwrap();
        assert!(eventually(|| running.out().matches("end").count() > before), "{}", running.out());
        running.out().ends_with("200\nend\n")
    });
    assert!(is_shown, "{}{}", running.out(), running.err());
    drop(stdin);
    running.wait().expect(0);
}

/// Starts a program in an overlay view that prints size and data of the files of a tree, of which
/// the kernel has names and data.
fn start_reader(stage: &Stage, tree: &Path, index: &Path, options: &[&str]) -> Running {
    let mut command = stage.quell_run(index, "overlay");
    let script = "cd \"$1\"; find . -type f | xargs cat >/dev/null; echo ready; echo end; \
                  while read name; do stat -c %s \"$name\"; cat \"$name\"; echo end; done";
    command.args(["--recheck", "0"]).args(options).args(["--", "sh", "-c", script, "sh"]).arg(tree);
    let mut running = stage.start(command.stdin(Stdio::piped()));
    running.wait_for_output("ready");
    running
}

/// Waits until the reader gets this content of a file, and its size.
#[track_caller]
fn expect_shown(running: &mut Running, stdin: &mut std::process::ChildStdin, name: &str, content: &str) {
    let expected = format!("end\n{}\n{content}end\n", content.len());
    let is_shown = eventually(|| {
        let before = running.out().matches("end\n").count();
        stdin.write_all(format!("{name}\n").as_bytes()).unwrap();
        assert!(eventually(|| running.out().matches("end\n").count() > before), "{}", running.out());
        running.out().ends_with(&expected)
    });
    assert!(is_shown, "{name}: {expected}\n{}{}", running.out(), running.err());
}

#[test]
fn the_overlay_view_shows_the_files_of_a_directory_that_was_replaced() {
    if !views().contains(&"overlay") {
        skip!("overlayfs is not usable here");
    }
    let stage = Stage::new();
    let tree = stage.dir("tree");
    let write = |directory: &str, content: &str| {
        fs::create_dir_all(tree.join(directory).join("sub")).unwrap();
        fs::write(tree.join(directory).join("module"), content).unwrap();
        fs::write(tree.join(directory).join("sub/module"), content).unwrap();
    };
    write("pkg", "old\n");
    let index = stage.index(&tree);
    let mut running = start_reader(&stage, &tree, &index, &["--strict"]);
    let mut stdin = running.stdin();
    let mut expect = |content: &str| {
        for name in ["pkg/module", "pkg/sub/module"] {
            expect_shown(&mut running, &mut stdin, name, content);
        }
    };
    // The new directory is at a path that is not watched until it is moved.
    write("pkg.new", "a new version\n");
    fs::rename(tree.join("pkg"), tree.join("pkg.old")).unwrap();
    fs::rename(tree.join("pkg.new"), tree.join("pkg")).unwrap();
    expect("a new version\n");
    // The new directory and its subdirectories are watched.
    write("pkg", "and then written in place\n");
    expect("and then written in place\n");
    // A change of the old directory is not taken for a change of the new one.
    write("pkg.old", "written elsewhere, and of no effect\n");
    expect("and then written in place\n");
    // A directory that is created again instead of moved.
    fs::remove_dir_all(tree.join("pkg")).unwrap();
    write("pkg", "created again\n");
    expect("created again\n");
    // The old directory returns.
    fs::rename(tree.join("pkg"), tree.join("pkg.new")).unwrap();
    fs::rename(tree.join("pkg.old"), tree.join("pkg")).unwrap();
    expect("written elsewhere, and of no effect\n");
    drop(stdin);
    running.wait().expect(0);
}

#[test]
fn the_overlay_view_shows_a_change_whose_notification_the_kernel_dropped() {
    if !views().contains(&"overlay") {
        skip!("overlayfs is not usable here");
    }
    let (stage, tree, index) = fixture();
    let mut running = start_reader(&stage, &tree, &index, &["--strict"]);
    let mut stdin = running.stdin();
    let holder = stage.holder();
    let queued: usize =
        fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    let files =
        ["readme", "bin/tool"].map(|name| fs::File::options().write(true).open(tree.join(name)).unwrap());
    stage.sh("kill -STOP \"$1\"", &[Path::new(&holder.to_string())]).expect(0);
    // Equal notifications are combined only if they follow each other.
    for _ in 0..=queued / 2 {
        for file in &files {
            file.set_modified(std::time::SystemTime::now()).unwrap();
        }
    }
    fs::write(tree.join("lib/data"), "not notified\n").unwrap();
    stage.sh("kill -CONT \"$1\"", &[Path::new(&holder.to_string())]).expect(0);
    expect_shown(&mut running, &mut stdin, "lib/data", "not notified\n");
    drop(stdin);
    running.wait().expect(0);
}

#[test]
fn changes_of_a_tree_that_was_left_out_are_not_reported() {
    if !views().contains(&"overlay") {
        skip!("overlayfs is not usable here");
    }
    let stage = Stage::new();
    let (stale, covered) = (trees::small(&stage, "stale"), trees::small(&stage, "covered"));
    let (first, second) = (stage.index(&stale), stage.index(&covered));
    // The sample does not compare status change times, and the check of the whole tree does.
    edit_with_old_time(&stale.join("readme"), "HELLO\n");
    let mut command = stage.quell_run(&first, "overlay");
    command.arg("-i").arg(&second).args(["--recheck", "0", "--", "sh", "-c", "echo ready; read line; true"]);
    let mut running = stage.start(command.stdin(Stdio::piped()));
    running.wait_for_output("ready");
    assert!(running.err().contains("~ readme (ctime)"), "{}", running.err());
    fs::write(stale.join("readme"), "changed again\n").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    fs::write(covered.join("readme"), "changed\n").unwrap();
    running.wait_for_error(&format!("{} changed while it is covered", covered.display()));
    drop(running.stdin());
    let ended = running.wait().expect(0);
    assert_eq!(ended.err.matches("changed while it is covered").count(), 1, "{}", ended.err);
}

#[test]
fn a_change_is_printed_once_with_its_effect() {
    for (view, options, effect) in [
        ("fuse", &[][..], "opening it fails with ESTALE"),
        ("fuse", &["--on-change", "serve"], "programs read its new data up to the indexed size"),
        ("overlay", &[], "programs see the file as it is now"),
        ("overlay-fuse", &[], "the view shows its indexed size and time, and its new data"),
    ] {
        if !views().contains(&view) {
            continue;
        }
        let (stage, tree, index) = fixture();
        let mut command = stage.quell_run(&index, view);
        command.args(options);
        // Each of the few entries of the tree is compared many times.
        command.args(["--check", "sample", "--recheck", "200", "--", "sh", "-c", "echo ready; read line"]);
        let mut running = stage.start(command.stdin(Stdio::piped()));
        running.wait_for_output("ready");
        fs::write(tree.join("readme"), "longer than before").unwrap();
        running.wait_for_error("changed while it is covered: ~ readme (size");
        std::thread::sleep(std::time::Duration::from_secs(1));
        drop(running.stdin());
        let ended = running.wait();
        assert_eq!(ended.err.matches("~ readme").count(), 1, "{view}: {}", ended.err);
        ended.says(effect);
    }
}

#[test]
fn a_file_that_was_replaced_or_removed() {
    for (view, replaced, removed) in [
        ("fuse", "Stale file handle", "Stale file handle"),
        ("overlay", "", "No such file or directory"),
        ("overlay-fuse", "", "No such file or directory"),
    ] {
        if !views().contains(&view) {
            continue;
        }
        let (stage, tree, index) = fixture();
        let script = "exec 3<\"$1/lib/data\"; echo ready; read line; cat \"$1/readme\"; echo between >&2; \
                      cat \"$1/bin/tool\"; wc -c <&3; ls \"$1\" \"$1/bin\" >/dev/null";
        let mut running = start(&stage, &index, view, &[], &tree, script);
        for name in ["readme", "lib/data"] {
            fs::write(tree.join("aside"), "other\n").unwrap();
            fs::rename(tree.join("aside"), tree.join(name)).unwrap();
        }
        fs::remove_file(tree.join("bin/tool")).unwrap();
        running.stdin().write_all(b"\n").unwrap();
        let ended = running.wait().expect(0);
        let (first, second) = ended.err.split_once("between\n").unwrap();
        if replaced.is_empty() {
            // The program gets the new file, and the old one through a descriptor that was already
            // open.
            assert_eq!(ended.text(), "ready\nother\n10000\n", "{view}");
            // The overlay view reports changes.
            let error = first.lines().find(|line| !line.starts_with("quell: "));
            assert_eq!(error, None, "{view}");
        } else {
            assert_eq!(ended.text(), "ready\n10000\n", "{view}");
            assert!(first.contains(replaced), "{view}: {first}");
        }
        assert!(second.contains(removed), "{view}: {second}");
    }
}

#[test]
fn a_copy_with_other_owners_times_is_the_same_tree() {
    let (stage, tree, index) = fixture();
    let copy = stage.path("copy");
    stage.sh("cp -a \"$1\" \"$2\"", &[&tree, &copy]).expect(0);
    stage.run(stage.quell().args(["verify", "--source"]).arg(&copy).arg(&index)).expect(0);
    assert!(eventually(|| stage.processes().is_empty()));
}

/// Python modules among 5,000 entries. The program prints `mod.value`.
struct Modules {
    stage: Stage,
    lib: PathBuf,
    index: PathBuf,
}

impl Modules {
    /// Returns `None` without Python.
    fn new() -> Option<Modules> {
        if !has("python3") {
            return None;
        }
        let stage = Stage::new();
        let lib = stage.dir("tree/lib");
        for package in 0..50 {
            let directory = lib.join(format!("package{package}"));
            fs::create_dir(&directory).unwrap();
            (0..100).for_each(|number| fs::write(directory.join(format!("m{number}.py")), "").unwrap());
        }
        // A sample is unlikely to include it.
        fs::write(lib.join("package7/mod.py"), "value = 100\n").unwrap();
        let modules = Modules { index: PathBuf::new(), stage, lib };
        // The module's bytecode is in the tree and in the index.
        assert_eq!(modules.direct(), "100\n");
        let index = modules.stage.index(modules.lib.parent().unwrap());
        Some(Modules { index, ..modules })
    }

    fn module(&self) -> PathBuf {
        self.lib.join("package7/mod.py")
    }

    fn python(&self, command: &mut std::process::Command) -> Ended {
        command
            .args(["python3", "-c", "import mod; print(mod.value)"])
            .env("PYTHONPATH", self.lib.join("package7"));
        self.stage.run(command)
    }

    fn direct(&self) -> String {
        self.python(&mut self.stage.command("env")).expect(0).text()
    }

    /// Runs the program in a view with the default options, except those given.
    fn covered(&self, options: &[&str]) -> Ended {
        let mut command = self.stage.quell();
        command.args(["run", "-q", "-i"]).arg(&self.index).args(options).arg("--");
        self.python(&mut command)
    }

    fn update(&self) {
        self.stage.run(self.stage.quell().args(["index", "-q", "--update"]).arg(&self.index)).expect(0);
    }
}

/// Writes to a file in place and restores its modification time.
fn edit_with_old_time(path: &Path, content: &str) {
    let before = fs::metadata(path).unwrap().modified().unwrap();
    // Timestamps have a granularity; an edit within it cannot be noticed.
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::write(path, content).unwrap();
    fs::File::options().write(true).open(path).unwrap().set_modified(before).unwrap();
}

#[test]
fn a_module_that_was_edited_in_place_never_runs_as_it_was() {
    let Some(modules) = Modules::new() else { skip!("python3 is not installed") };
    assert_eq!(modules.covered(&["--strict"]).expect(0).text(), "100\n");
    for round in 0..20 {
        let value = 200 + round;
        let line = format!("value = {value}\n");
        let module = modules.module();
        let package = modules.lib.join("package7/mod");
        let _ = fs::remove_dir_all(&package);
        modules.update();
        match round % 5 {
            0 => fs::write(&module, line).unwrap(),
            1 => fs::write(&module, format!("# longer\n{line}")).unwrap(),
            2 => {
                let mut file = fs::File::options().append(true).open(&module).unwrap();
                file.write_all(line.as_bytes()).unwrap();
            }
            3 => {
                fs::create_dir(&package).unwrap();
                fs::write(package.join("__init__.py"), line).unwrap();
            }
            _ => {
                fs::remove_file(&module).unwrap();
                fs::write(&module, line).unwrap();
            }
        }
        // Python uses bytecode if the source's size and time, in seconds, match those in the
        // bytecode.
        let edited = if round % 5 == 3 { package.join("__init__.py") } else { module };
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(2 * (round + 1));
        fs::File::options().write(true).open(edited).unwrap().set_modified(later).unwrap();
        modules.covered(&["--strict"]).expect(3).says("is out of date").says("quell index --update");
        let ended = modules.covered(&[]).expect(0).says("is out of date").says("running on the original");
        assert_eq!(ended.text(), format!("{value}\n"), "round {round}: {}", ended.err);
    }
    modules.stage.expect_nothing_left();
}

#[test]
fn an_edit_that_puts_size_and_time_back_is_found_by_the_status_change_time() {
    let Some(modules) = Modules::new() else { skip!("python3 is not installed") };
    for value in 200..203 {
        edit_with_old_time(&modules.module(), &format!("value = {value}\n"));
        modules.covered(&["--strict"]).expect(3).says("~ lib/package7/mod.py (ctime)");
        modules.update();
    }
}

/// Returns a command on one of two nodes of a Slurm job, with a runtime directory of its own.
fn on_node(stage: &Stage, node: &str, step: &str, index: &Path, options: &[&str]) -> std::process::Command {
    let runtime = stage.path(format!("runtime-{node}"));
    // A mount namespace of its own, for root, too.
    let mut command = if is_root() {
        let mut command = stage.command("unshare");
        command.arg("--mount").arg(crate::stage::quell());
        command
    } else {
        stage.quell()
    };
    command.args(["run", "-q", "--recheck", "0", "-i"]).arg(index).args(options).arg("--");
    command.env("QUELL_RUNTIME_DIR", runtime).env("SLURM_JOB_ID", "7").env("SLURM_STEP_ID", step);
    command.env("SLURM_NODEID", node).stdin(Stdio::piped());
    command
}

#[test]
fn other_nodes_of_a_job_report_a_difference_and_end_if_strict() {
    let Some(modules) = Modules::new() else { skip!("python3 is not installed") };
    let stage = &modules.stage;
    fs::write(modules.module(), "value = 200\n").unwrap();
    let wait = ["sh", "-c", "echo ready; read line; echo end"];
    for (step, options) in [("0", &[][..]), ("1", &["--strict"])] {
        // The second node checks only the sample, which does not include the module.
        let mut second = stage.start(on_node(stage, "1", step, &modules.index, options).args(wait));
        second.wait_for_output("ready");
        assert!(!second.err().contains("is out of date"), "{}", second.err());
        let first = stage.run(on_node(stage, "0", step, &modules.index, options).arg("true"));
        let first = first.expect(if options.is_empty() { 0 } else { 3 });
        first.says("is out of date (1 change)").says("~ lib/package7/mod.py");
        second.wait_for_error("is out of date (1 change)");
        if options.is_empty() {
            assert!(second.is_running());
            second.stdin().write_all(b"\n").unwrap();
            assert_eq!(second.wait().expect(0).text(), "ready\nend\n");
        } else {
            use std::os::unix::process::ExitStatusExt;
            let ended = second.wait().says("ending the program");
            assert_eq!(ended.status.signal(), Some(15), "{ended:?}");
        }
    }
    assert!(eventually(|| stage.processes().is_empty()));
}

#[test]
fn the_first_node_of_a_job_passes_on_that_nothing_differs() {
    let Some(modules) = Modules::new() else { skip!("python3 is not installed") };
    let stage = &modules.stage;
    stage.run(on_node(stage, "0", "0", &modules.index, &["--strict"]).arg("true")).expect(0);
    let results: Vec<_> = fs::read_dir(stage.state().join("quell")).unwrap().flatten().collect();
    let is_result = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("check-");
    let [result] = &results[..] else { panic!("{results:?}") };
    assert!(is_result(&result.file_name()), "{results:?}");
    assert_eq!(fs::read_to_string(result.path()).unwrap(), "null");
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(stage.state().join("quell")).unwrap());
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_tree_of_another_user_is_checked_beside_the_program_and_not_again_for_a_while() {
    if !is_root() {
        skip!("giving files away needs root");
    }
    let Some(modules) = Modules::new() else { skip!("python3 is not installed") };
    let stage = &modules.stage;
    let tree = modules.lib.parent().unwrap();
    stage.sh("chown -R 1234:1234 \"$1\"", &[tree]).expect(0);
    modules.update();
    let start = |options: &[&str]| {
        let mut command = stage.quell();
        command.args(["run", "-q", "--recheck", "0", "-i"]).arg(&modules.index).args(options);
        let mut running =
            stage.start(command.args(["--", "sh", "-c", "echo ready; read line"]).stdin(Stdio::piped()));
        running.wait_for_output("ready");
        running
    };
    let clean = || -> Vec<PathBuf> {
        let entries = fs::read_dir(stage.state().join("quell")).unwrap().flatten().map(|entry| entry.path());
        entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("check-")).collect()
    };
    let mut running = start(&[]);
    let is_clean = || clean().iter().any(|path| fs::read(path).unwrap_or_default() == b"null");
    assert!(eventually(is_clean), "no check was completed");
    running.stdin().write_all(b"\n").unwrap();
    assert_eq!(running.wait().expect(0).err, "");
    // An expired result is ignored.
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(601);
    fs::File::options().write(true).open(&clean()[0]).unwrap().set_modified(old).unwrap();
    fs::write(modules.module(), "value = 200\n").unwrap();
    let mut running = start(&[]);
    running.wait_for_error("is out of date (1 change): the view of");
    assert!(running.is_running());
    drop(running.stdin());
    running.wait();
    // A result that reports a difference is not reused, because the tree may have been restored
    // since.
    let mut running = start(&["--strict"]);
    running.wait_for_error("ending the program");
    let ended = running.wait();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended.status), Some(15), "{ended:?}");
    stage.expect_nothing_left();
}

#[test]
fn the_overlay_view_shows_what_a_check_beside_the_program_finds() {
    if !is_root() {
        skip!("giving files away needs root");
    }
    if !views().contains(&"overlay") {
        skip!("overlayfs is not usable here");
    }
    for changed in [1, 40] {
        let stage = Stage::new();
        let tree = stage.dir("tree");
        fs::create_dir(tree.join("d")).unwrap();
        (0..100).for_each(|n| fs::write(tree.join(format!("d/f{n}")), "old\n").unwrap());
        stage.sh("chown -R 1234:1234 \"$1\"", &[&tree]).expect(0);
        let index = stage.index(&tree);
        // The next sample has only the root and the directory.
        let mut command = stage.quell_run(&index, "overlay");
        stage.run(command.args(["--strict", "--check", "sample", "--", "true"])).expect(0);
        // With many changes the check ends early.
        for n in 0..changed {
            fs::write(tree.join(format!("d/f{n}")), "longer than indexed\n").unwrap();
        }
        let mut running = start_reader(&stage, &tree, &index, &[]);
        let mut stdin = running.stdin();
        running.wait_for_error("keeps the indexed metadata, except sizes and times of changed files");
        for n in [0, changed - 1] {
            expect_shown(&mut running, &mut stdin, &format!("d/f{n}"), "longer than indexed\n");
        }
        drop(stdin);
        let ended = running.wait().expect(0);
        assert_eq!(ended.err.matches("is out of date").count(), 1, "{}", ended.err);
        assert!(!ended.err.contains("changed while"), "{}", ended.err);
    }
}

#[test]
fn ranks_of_a_job_report_an_outdated_index_once() {
    let (stage, tree, index) = fixture();
    fs::write(tree.join("added"), "").unwrap();
    let rank = |job: Option<&str>, options: &[&str]| {
        let mut command = stage.quell_run(&index, "auto");
        command.args(options).args(["--", "ls"]).arg(&tree);
        if let Some(job) = job {
            command.env("PMIX_NAMESPACE", job);
        }
        stage.start(&mut command)
    };
    let lines = |job, options: &[&str], code| -> Vec<usize> {
        let ranks: Vec<Running> = (0..8).map(|_| rank(job, options)).collect();
        let ended = ranks.into_iter().map(|rank| rank.wait().expect(code));
        let lines = ended.map(|ended| {
            assert_eq!(ended.text().contains("added"), code == 0);
            assert!(ended.err.is_empty() || ended.err.contains("is out of date"), "{}", ended.err);
            ended.err.lines().count()
        });
        lines.filter(|lines| *lines > 0).collect()
    };
    assert_eq!(lines(Some("1"), &[], 0).len(), 1);
    assert_eq!(lines(Some("2"), &["--strict"], 3).len(), 1);
    assert_eq!(lines(None, &["--share", "x"], 0).len(), 1);
    // Runs without a common job each print the message, in a few lines.
    let single = lines(None, &[], 0);
    assert!(single.len() == 8 && single.iter().all(|lines| *lines <= 5), "{single:?}");
    // A later job prints the message again.
    assert_eq!(lines(Some("3"), &[], 0).len(), 1);
    stage.expect_nothing_left();
}
