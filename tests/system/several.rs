//! Several trees at once, nested trees, and trees at another path.

use std::fs;

use crate::stage::{Stage, views};
use crate::trees;

#[test]
fn several_trees_are_covered_by_one_command() {
    let stage = Stage::new();
    let (one, two) = (trees::small(&stage, "one"), trees::small(&stage, "two"));
    let (index_one, index_two) = (stage.index(&one), stage.index(&two));
    for view in views() {
        let mut command = stage.quell_run(&index_one, view);
        command.arg("-i").arg(&index_two).args(["--strict", "-v", "--", "sh", "-c"]);
        command.arg("cat \"$1/readme\" \"$2/lib/deep/leaf\"; touch \"$1/x\"; touch \"$2/x\"; true").arg("sh");
        let ended = stage.run(command.arg(&one).arg(&two)).expect(0);
        assert_eq!(ended.text(), "hello\nleaf\n", "{view}");
        assert_eq!(ended.err.matches("Read-only file system").count(), 2, "{view}: {}", ended.err);
        assert_eq!(ended.err.matches(&format!("covered by {view} ")).count(), 2, "{view}: {}", ended.err);
    }
}

#[test]
fn a_tree_inside_a_tree_shows_its_own_index_in_whatever_order_they_are_named() {
    let stage = Stage::new();
    let outer = trees::small(&stage, "outer");
    let inner = trees::small(&stage, "outer/lib/inner");
    let outer_index = stage.index(&outer);
    fs::write(inner.join("later"), "in the inner index only\n").unwrap();
    let inner_index = stage.index(&inner);
    for view in views() {
        for (first, second) in [(&outer_index, &inner_index), (&inner_index, &outer_index)] {
            let mut command = stage.quell_run(first, view);
            command.arg("-i").arg(second).args(["--strict", "--check", "none", "--", "cat"]);
            command.args([outer.join("readme"), inner.join("later"), inner.join("lib/deep/leaf")]);
            let text = stage.run(&mut command).expect(0).text();
            assert_eq!(text, "hello\nin the inner index only\nleaf\n", "{view}");
        }
    }
}

#[test]
fn of_several_trees_only_the_stale_one_is_left_uncovered() {
    let stage = Stage::new();
    let (one, two) = (trees::small(&stage, "one"), trees::small(&stage, "two"));
    let (index_one, index_two) = (stage.index(&one), stage.index(&two));
    fs::write(one.join("added"), "").unwrap();
    for view in views() {
        let mut command = stage.quell_run(&index_one, view);
        command.arg("-i").arg(&index_two).args(["--", "sh", "-c", "ls \"$1\"; touch \"$2/x\"", "sh"]);
        let ended = stage.run(command.arg(&one).arg(&two)).expect(1);
        assert!(ended.text().contains("added"), "{view}");
        ended.says("is out of date").says("one is not covered").says("Read-only file system");
    }
}

#[test]
fn a_directory_is_indexed_first_if_need_be() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let run = |options: &[&str]| {
        let mut command = stage.quell();
        command.args(["run", "--strict"]).args(options).arg("-i").arg(&tree);
        stage.run(command.arg("--").arg("cat").arg(tree.join("readme"))).expect(0)
    };
    let index = stage.path("tree.quell");
    let first = run(&["-v"]).says("has no index yet").says("tree.quell: written");
    assert_eq!(first.text(), "hello\n");
    assert!(index.is_file());
    let second = run(&["-v"]);
    assert!(!second.err.contains("has no index yet"));
    assert_eq!(second.text(), "hello\n");
    // Success prints nothing without an option that requests it.
    fs::remove_file(&index).unwrap();
    let third = run(&[]);
    assert_eq!((third.text().as_str(), third.err.as_str()), ("hello\n", ""));
    assert!(index.is_file());
}

/// Messages before the start of the program must not appear in its output.
#[test]
fn making_an_index_first_leaves_standard_output_to_the_program() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let mut command = stage.quell();
    command.args(["run", "-i"]).arg(&tree).args(["--", "cat"]).arg(tree.join("readme"));
    assert_eq!(stage.run(&mut command).expect(0).text(), "hello\n");
}

#[test]
fn a_source_elsewhere_is_covered_there() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let index = stage.index(&tree);
    let copy = stage.path("copy");
    stage.sh("cp -a \"$1\" \"$2\" && rm -r \"$1\"", &[&tree, &copy]).expect(0);
    for view in views() {
        let mut command = stage.quell_run(&index, view);
        command.args(["--strict", "--quiet", "--source"]).arg(&copy);
        command.args(["--", "sh", "-c", "\"$1/bin/tool\" it; touch \"$1/x\"", "sh"]).arg(&copy);
        let ended = stage.run(&mut command).expect(1);
        assert_eq!(ended.text(), "tool ran with it\n", "{view}");
        ended.says("Read-only file system");
    }
    let point = stage.dir("point");
    stage.run(stage.quell().args(["mount", "-q", "--source"]).arg(&copy).arg(&index).arg(&point)).expect(0);
    assert_eq!(fs::read_to_string(point.join("readme")).unwrap(), "hello\n");
    stage.run(stage.quell().arg("umount").arg(&point)).expect(0);
}

#[test]
fn another_path_can_be_covered() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let index = stage.index(&tree);
    let directory = stage.dir("directory");
    fs::write(directory.join("below"), "").unwrap();
    for view in views() {
        let mut command = stage.quell_run(&index, view);
        // The program changes a status change time, which a full check would report before the next
        // run.
        command.args(["--strict", "--quiet", "--check", "sample", "--at"]).arg(&directory);
        // The tree's own path is not covered, so it can be written to. The modification time stays
        // the same.
        let script = "ls \"$1\"; cat \"$1/lib/deep/leaf\"; touch -r \"$2/readme\" \"$2/readme\"";
        let ended =
            stage.run(command.args(["--", "sh", "-c", script, "sh"]).arg(&directory).arg(&tree)).expect(0);
        assert_eq!(ended.text(), "bin\nlib\nlink\nreadme\nleaf\n", "{view}");
    }
}

#[test]
fn options_of_one_tree_are_refused_for_several() {
    let stage = Stage::new();
    let (one, two) = (trees::small(&stage, "one"), trees::small(&stage, "two"));
    let (index_one, index_two) = (stage.index(&one), stage.index(&two));
    for option in ["--source", "--at", "--writable"] {
        let mut command = stage.quell_run(&index_one, "auto");
        command.arg("-i").arg(&index_two).arg(option).arg(&one).args(["--", "echo", "ran"]);
        let ended = stage.run(&mut command).expect(2);
        assert_eq!(ended.text(), "");
        ended.says("one -i");
    }
}
