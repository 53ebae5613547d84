//! Mounts that are created below a covered tree while a view exists.

use std::fs;

use crate::skip;
use crate::stage::{Stage, can_unshare, is_root, quell, views};

/// Starts a program in a view, mounts a file system below the tree, and lets the program list it.
/// `$1` is quell, `$2` the tree, `$3` a directory for files. Mounts propagate to the view, as on a
/// machine with systemd.
const SCRIPT: &str = r#"
    "$1" index -q "$2" -o "$3/index.quell"
    mount -t tmpfs none "$2/before"
    "$1" run -q --strict --check none --recheck 0 -i "$3/index.quell" -- sh -ec '
        touch "$2/started"; until [ -e "$2/mounted" ]; do sleep 0.1; done
        ls "$1/data" "$1/before"' sh "$2" "$3" 2>"$3/messages" &
    until [ -e "$3/started" ] || ! kill -0 $!; do sleep 0.1; done
    mount -t tmpfs none "$2/data"; mount -t tmpfs none "$2.beside"
    touch "$2/data/file"
    for attempt in $(seq 600); do
        if [ -s "$3/messages" ]; then break; fi
        sleep 0.1
    done
    mount -t tmpfs none "$3/mounts"; umount "$3/mounts"
    touch "$3/mounted"; wait $!
    cat "$3/messages" >&2
    umount "$2/data" "$2/before" "$2.beside""#;

#[test]
fn a_mount_below_a_covered_tree_is_reported_once() {
    let stage = Stage::new();
    if !can_unshare(&stage) {
        skip!("no user namespaces to mount in");
    }
    if views().is_empty() {
        skip!("no overlay view");
    }
    let tree = stage.dir("tree");
    for directory in ["data", "before"] {
        fs::create_dir(tree.join(directory)).unwrap();
        fs::write(tree.join(directory).join("indexed"), "").unwrap();
    }
    stage.dir("tree.beside");
    stage.dir("files/mounts");
    let mut command = stage.command("unshare");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--propagation", "private", "sh", "-ec"]);
    // In a user namespace only a tree of mounts that was private before can become shared.
    command.args([&format!("mount --make-rshared /; {SCRIPT}"), "sh"]);
    command.arg(quell()).arg(&tree).arg(stage.path("files"));
    let ended = stage.run(&mut command).expect(0);
    let message = format!("{}: a file system (tmpfs) was mounted here", tree.join("data").display());
    assert_eq!(ended.err.matches("was mounted here").count(), 1, "{}", ended.err);
    assert!(ended.err.contains(&message), "{}", ended.err);
    assert!(ended.text().contains("data:\nindexed\n"), "{}", ended.text());
    stage.expect_nothing_left();
}
