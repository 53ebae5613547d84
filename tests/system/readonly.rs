//! Nothing is written to the shared tree, neither by default nor with a writable layer.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::probe::{Snapshot, differences};
use crate::stage::{Stage, launches_of_private_tree, views, words};
use crate::trees;

/// The error message of every attempt to change a file.
const READ_ONLY: &str = "Read-only file system";

/// Returns names, attributes, times in nanoseconds and content of everything, as text.
fn state_of(stage: &Stage, tree: &Path) -> String {
    let script = "cd \"$1\" && find . -printf '%p %y %m %s %T@ %C@ %l %n %U %G %i\\n' | LC_ALL=C sort && \
                  find . -type f -perm -400 -size -100M -print0 | LC_ALL=C sort -z | xargs -0 sha256sum && \
                  getfattr -R -P -d -m - . 2>/dev/null";
    stage.sh(script, &[tree]).text()
}

#[test]
fn every_change_is_refused_as_on_a_read_only_file_system() {
    let stage = Stage::new();
    let tree = trees::varied(&stage);
    let index = stage.index(&tree);
    let before = state_of(&stage, &tree);
    let attempts = [
        "echo x > \"$1/new\"",
        "echo x >> \"$1/readme\"",
        ": > \"$1/readme\"",
        "mkdir \"$1/new\"",
        "ln -s x \"$1/new\"",
        "ln \"$1/readme\" \"$1/new\"",
        "mkfifo \"$1/new\"",
        "rm -f \"$1/readme\"",
        "rmdir \"$1/empty\"",
        "chmod 777 \"$1/readme\"",
        "mv \"$1/readme\" \"$1/renamed\"",
        "touch \"$1/readme\"",
        "touch -h \"$1/link\"",
        "truncate -s 3 \"$1/readme\"",
        "setfattr -n user.x -v y \"$1/readme\"",
        "chown $(id -u) \"$1/readme\"",
    ];
    for launch in launches_of_private_tree() {
        let script = attempts.map(|attempt| format!("({attempt}); echo \"ended $?\" >&2")).join("\n");
        let ended =
            stage.run_in_view(launch, &index, &tree, |root| words(&[&"sh", &"-c", &script, &"sh", &root]));
        let mut answers = ended.err.split("ended ");
        let mut answer = answers.next().unwrap();
        for (attempt, rest) in attempts.iter().zip(answers) {
            assert!(answer.contains(READ_ONLY), "{launch:?}: {attempt} says {answer}");
            assert!(!rest.starts_with('0'), "{launch:?}: {attempt} succeeded");
            answer = rest;
        }
    }
    assert_eq!(before, state_of(&stage, &tree));
}

#[test]
fn a_scratch_layer_takes_every_change_and_is_thrown_away() {
    let stage = Stage::new();
    let tree = trees::varied(&stage);
    let index = stage.index(&tree);
    let before = state_of(&stage, &tree);
    let script = "cd \"$1\" && echo new > bin/new && cat bin/new && echo more >> readme && cat readme && \
                  rm c && rm -r lib && mv kinds renamed && test -e renamed/fifo && mkdir lib && ls lib | wc -l && \
                  chmod 700 bin && ln readme again && touch -d @5 empty && sed -i s/ran/walked/ bin/tool && \
                  bin/tool && setfattr -n user.x -v y readme && getfattr -n user.x --only-values readme";
    for view in views() {
        let mut command = stage.quell_run(&index, view);
        command.args(["--strict", "--quiet", "--scratch", "--", "sh", "-c", script, "sh"]).arg(&tree);
        let ended = stage.run(&mut command).expect(0);
        assert_eq!(ended.text(), "new\nhello\nmore\n0\ntool walked with\ny", "{view}");
        assert_eq!(before, state_of(&stage, &tree), "{view}");
        // The next run starts without the changes.
        let mut command = stage.quell_run(&index, view);
        command.args(["--strict", "--quiet", "--scratch", "--", "cat"]).arg(tree.join("readme"));
        assert_eq!(stage.run(&mut command).expect(0).text(), "hello\n", "{view}");
    }
}

#[test]
fn a_writable_layer_keeps_changes_for_the_next_run() {
    let stage = Stage::new();
    let tree = trees::varied(&stage);
    let index = stage.index(&tree);
    let before = state_of(&stage, &tree);
    for view in views() {
        let layer = stage.path(format!("layer-{view}"));
        let run = |script: &str| {
            let mut command = stage.quell_run(&index, view);
            command.args(["--strict", "--quiet", "--writable"]).arg(&layer);
            command.args(["--", "sh", "-c", script, "sh"]).arg(&tree);
            stage.run(&mut command).expect(0).text()
        };
        run(
            "cd \"$1\" && echo new > new && echo more >> readme && rm link && mv lib/data lib/moved && mkdir d",
        );
        let seen =
            run("cd \"$1\" && cat new readme && ls lib && test -d d && ! test -L link && wc -c < lib/moved");
        assert_eq!(seen, "new\nhello\nmore\ndeep\nmoved\n10000\n", "{view}");
        stage.expect_nothing_left();
        // Without the layer the tree is unchanged.
        let mut command = stage.quell_run(&index, view);
        command.args(["--strict", "--quiet", "--", "cat"]).arg(tree.join("readme"));
        assert_eq!(stage.run(&mut command).expect(0).text(), "hello\n", "{view}");
        assert_eq!(before, state_of(&stage, &tree), "{view}");
    }
}

/// The root of such a view is the writable layer's own directory, which must look like the tree's.
#[test]
fn before_anything_is_written_a_writable_view_is_the_original() {
    let stage = Stage::new();
    let tree = trees::varied(&stage);
    let _ = trees::set_xattr(&tree, "user.root", b"kept");
    trees::set_mode(&tree, 0o2710);
    trees::set_mtime(&tree, 1_000_000_000, 5);
    let index = stage.index(&tree);
    let original = stage.snapshot_original(&tree);
    for view in views() {
        let layer = stage.path(format!("layer-{view}"));
        for options in [&["--scratch"][..], &["--writable", layer.to_str().unwrap()]] {
            let output = stage.path("out/probe");
            let probe = stage.probe_command("snapshot", &tree, &output);
            let mut command = stage.quell_run(&index, view);
            command.args(["--strict", "--quiet"]).args(options).arg("--").arg(probe.get_program());
            stage.run(command.args(probe.get_args())).expect(0);
            let seen: Snapshot = serde_json::from_slice(&fs::read(output).unwrap()).unwrap();
            let found = differences(&original, &seen, |path, fact, a, b| {
                let is_dir = a["mode"].starts_with('4');
                match fact {
                    // The root of an overlay joins two directories.
                    "nlink" if path == "." => b[fact] == "1",
                    "size" | "blocks" if is_dir => true,
                    // The overlay of the writable layer determines status change times and blocks,
                    // in every view.
                    "ctime" | "blocks" | "blocks after opening" => true,
                    _ => false,
                }
            });
            assert!(found.is_empty(), "{view} {options:?}\n{}", found.join("\n"));
        }
    }
}

#[test]
fn differences_of_a_writable_view_are_as_documented() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    fs::hard_link(tree.join("readme"), tree.join("readme-too")).unwrap();
    let index = stage.index(&tree);
    for view in views() {
        let script = "cd \"$1\" && stat -c %h lib && touch lib/new && stat -c %h lib && \
                      echo more >>readme && cat readme-too && stat -c %h readme && mv lib moved && ls moved";
        let mut command = stage.quell_run(&index, view);
        command.args(["--strict", "--quiet", "--scratch", "--", "sh", "-c", script, "sh"]).arg(&tree);
        let text = stage.run(&mut command).expect(0).text();
        assert_eq!(text, "3\n1\nhello\n1\ndata\ndeep\nnew\n", "{view}");
    }
}

#[test]
fn a_writable_layer_has_one_user_at_a_time() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let index = stage.index(&tree);
    let layer = stage.path("layer");
    for view in views() {
        let mut first = stage.quell_run(&index, view);
        first.arg("--writable").arg(&layer).args(["--", "sh", "-c", "echo running; read line"]);
        let mut first = stage.start(first.stdin(std::process::Stdio::piped()));
        first.wait_for_output("running");
        let mut second = stage.quell_run(&index, view);
        second.args(["--strict", "--writable"]).arg(&layer).args(["--", "true"]);
        stage.run(&mut second).expect(3).says("in use by another view");
        // The next view waits for the end of this one.
        let mut third = stage.start(&mut second);
        std::thread::sleep(Duration::from_millis(500));
        assert!(third.is_running(), "{view}: {}", third.err());
        drop(first.stdin());
        first.wait();
        third.wait().expect(0);
        stage.expect_nothing_left();
    }
}

#[test]
fn the_trees_access_times_are_the_only_thing_that_reading_may_change() {
    let stage = Stage::new();
    let tree = trees::varied(&stage);
    let index = stage.index(&tree);
    let before = state_of(&stage, &tree);
    for launch in launches_of_private_tree() {
        stage.snapshot(launch, &index, &tree);
    }
    assert_eq!(before, state_of(&stage, &tree));
    fs::metadata(&tree).unwrap();
}
