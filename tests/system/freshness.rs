//! A tree that is not as its index has it: noticed before a run, at opens, and while it is covered; what each
//! view then does is as docs/semantics.md says.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::stage::{Running, Stage, eventually, views};
use crate::trees;

/// A stage, a small tree, its index.
fn scene() -> (Stage, PathBuf, PathBuf) {
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
            .run(stage.quell().args(["run", "--recheck", "0", "-i"]).arg(&index).args(["--", "true"]))
            .expect(0)
    };
    let stamps = || -> Vec<PathBuf> {
        let entries = fs::read_dir(stage.runtime()).unwrap().flatten().map(|entry| entry.path());
        entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("checked-")).collect()
    };
    assert!(!run().err.contains("is not as"));
    let [stamp] = &stamps()[..] else { panic!("{:?}", stamps()) };
    let age = || {
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(61);
        let stamp = fs::File::options().create(true).truncate(false).write(true).open(stamp).unwrap();
        stamp.set_modified(old).unwrap();
    };
    // A fresh stamp: the root, and then a or d, which are as they were.
    fs::write(tree.join("a/b/new"), "").unwrap();
    assert!(!run().err.contains("is not as"));
    // An old one: five looks, of which four are drawn by chance.
    let noticed = (0..40).any(|_| {
        age();
        run().err.contains("is not as")
    });
    assert!(noticed && stamps().is_empty(), "seven of eight times it is seen at once");
    // Something in the root is seen at once, stamp or not.
    fs::remove_file(tree.join("a/b/new")).unwrap();
    stage.run(stage.quell().args(["index", "-q", "--update"]).arg(&index)).expect(0);
    // The stamp of a generation that is gone is cleared away by those that come.
    age();
    assert!(!run().err.contains("is not as"));
    assert!(stamps().len() == 1 && stamps()[0] != *stamp, "{:?}", stamps());
    fs::write(tree.join("new"), "").unwrap();
    run().says("is not as").says("~ . (mtime)");
}

#[test]
fn a_stale_index_is_reported_and_the_original_is_used() {
    let (stage, tree, index) = scene();
    fs::write(tree.join("added"), "").unwrap();
    for view in views() {
        let ended = stage.run(stage.quell_run(&index, view).args(["--", "ls"]).arg(&tree)).expect(0);
        assert_eq!(ended.text(), "added\nbin\nlib\nlink\nreadme\n", "{view}");
        ended.says("is not as").says("~ . (mtime)").says("quell index --update").says("original");
    }
}

#[test]
fn strict_refuses_a_stale_index() {
    let (stage, tree, index) = scene();
    fs::write(tree.join("added"), "").unwrap();
    for view in views() {
        let ended =
            stage.run(stage.quell_run(&index, view).args(["--strict", "--", "echo", "ran"])).expect(3);
        assert_eq!(ended.text(), "", "{view}");
        ended.says("is not as");
    }
    let point = stage.dir("point");
    stage.run(stage.quell().arg("mount").arg(&index).arg(&point)).expect(3).says("is not as");
}

#[test]
fn without_a_check_the_view_is_what_was_indexed() {
    let (stage, tree, index) = scene();
    fs::write(tree.join("added"), "").unwrap();
    for view in views() {
        let mut command = stage.quell_run(&index, view);
        command.args(["--strict", "--check", "none", "--", "ls"]).arg(&tree);
        assert_eq!(stage.run(&mut command).expect(0).text(), "bin\nlib\nlink\nreadme\n", "{view}");
    }
}

#[test]
fn a_sample_finds_what_was_installed_into_the_fullest_directory() {
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
        let (stage, tree, index) = scene();
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
    let (stage, tree, index) = scene();
    fs::rename(&tree, stage.path("moved")).unwrap();
    stage.run(stage.quell().arg("verify").arg(&index)).expect(2).says("tree");
    stage
        .run(stage.quell_run(&stage.path("none.quell"), "auto").args(["--", "true"]))
        .expect(2)
        .says("none.quell");
    // Nothing can be covered where nothing is: the program runs, and is told.
    stage.run(stage.quell_run(&index, "auto").args(["--", "true"])).expect(0).says("original");
    stage.run(stage.quell_run(&index, "auto").args(["--strict", "--", "true"])).expect(2).says("tree");
}

/// Runs a script in a view; it goes on with each line that it is sent.
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
        // New bytes up to the indexed size.
        ("fuse", &["--on-change", "serve"], "6\nHELLO,end\n"),
        ("fuse", &["--on-change", "ignore"], "6\nHELLO,end\n"),
        // All of it, though stat tells another size.
        ("overlay", &[], "6\nHELLO, there\nend\n"),
        ("overlay-fuse", &[], "6\nHELLO, there\nend\n"),
    ] {
        if !views().contains(&view) {
            continue;
        }
        let (stage, tree, index) = scene();
        let mut running = start(&stage, &index, view, options, &tree, LOOK_LATER);
        fs::write(tree.join("readme"), "HELLO, there\n").unwrap();
        running.stdin().write_all(b"\n").unwrap();
        let ended = running.wait().expect(0);
        assert_eq!(ended.text(), format!("leaf\nready\n{expected}10000\n"), "{view} {options:?}");
        let refused = ended.err.contains("Stale file handle");
        assert_eq!(refused, expected == "6\nend\n", "{view} {options:?}: {}", ended.err);
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
        let (stage, tree, index) = scene();
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
            // The new file, and the old one where it was open.
            assert_eq!((ended.text().as_str(), first), ("ready\nother\n10000\n", ""), "{view}");
        } else {
            assert_eq!(ended.text(), "ready\n10000\n", "{view}");
            assert!(first.contains(replaced), "{view}: {first}");
        }
        assert!(second.contains(removed), "{view}: {second}");
    }
}

#[test]
fn a_copy_with_other_owners_times_is_the_same_tree() {
    let (stage, tree, index) = scene();
    let copy = stage.path("copy");
    stage.sh("cp -a \"$1\" \"$2\"", &[&tree, &copy]).expect(0);
    stage.run(stage.quell().args(["verify", "--source"]).arg(&copy).arg(&index)).expect(0);
    assert!(eventually(|| stage.processes().is_empty()));
}
