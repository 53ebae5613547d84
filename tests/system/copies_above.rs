//! The directories above a covered tree as copies (`quell run --above copy`).

use std::fs;
use std::path::Path;

use crate::skip;
use crate::stage::{Stage, can_unshare, is_root, quell, views};

/// Makes a file system with a tree, entries beside the tree and another file system, and runs a
/// program in the view. `$1` is quell, `$2` the mount point, `$3` a directory for files, `$4` the
/// view, `$5` the program.
const SCRIPT: &str = r#"
    mount -t tmpfs none "$2"
    mkdir -p "$2/apps/tools/tree/sub" "$2/apps/beside" "$2/home/later" "$2/mounted"
    echo data > "$2/apps/tools/tree/sub/file"; echo home > "$2/home/file"; echo top > "$2/top"
    ln -s home "$2/link"; mkfifo "$2/apps/fifo"
    mount -t tmpfs none "$2/mounted"; echo inside > "$2/mounted/file"
    chmod 751 "$2/apps"; touch -d @1000000000 "$2/apps"
    "$1" index -q "$2/apps/tools/tree" -o "$3/index.quell"
    cd "$2/apps"
    "$1" run -q --strict --check none --above copy --view "$4" -i "$3/index.quell" -- sh -ec "$5" sh "$2" "$3" &
    for attempt in $(seq 600); do
        if [ -e "$3/started" ]; then break; fi
        if ! kill -0 $! 2>/dev/null; then break; fi
        sleep 0.1
    done
    mount -t tmpfs none "$2/home/later"; echo later > "$2/home/later/file"
    echo new > "$2/home/new"; mkdir "$2/new"
    touch "$3/changed"; wait $!
    cd /
    cat "$2/home/written"; ls -A "$2/apps""#;

/// Prints the entries that a program finds in the copied directories and beside them.
const PROGRAM: &str = r#"
    touch "$2/started"
    for attempt in $(seq 600); do if [ -e "$2/changed" ]; then break; fi; sleep 0.1; done
    cd "$1"
    echo "root: $(ls -A | tr '\n' ' ')"; echo "apps: $(ls -A apps | tr '\n' ' ')"
    echo "tree: $(cat apps/tools/tree/sub/file), $(ls apps/tools/tree)"
    echo "beside: $(cat home/file top mounted/file home/later/file home/new | tr '\n' ' ')"
    echo "link: $(readlink link), $(cat link/file)"; test -p apps/fifo && echo "fifo"
    echo "apps: $(stat -c '%a %Y' apps)"
    echo written > home/written; mv home/written home/moved; mv home/moved home/written
    mkdir apps/other 2>&1 || true; rmdir apps/beside 2>&1 || true; mv home away 2>&1 || true
    touch apps/tools/tree/x 2>&1 || true
    ln home/file apps/beside/file 2>&1 || true; mv home/file apps/beside/file && cat apps/beside/file
    mv apps/beside/file home/file"#;

fn run(stage: &Stage, view: &str, program: &str) -> crate::stage::Ended {
    let (point, files) = (stage.dir(&format!("point-{view}")), stage.dir(&format!("files-{view}")));
    let mut command = stage.command("unshare");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--propagation", "private", "sh", "-ec"]);
    // In a user namespace only a tree of mounts that was private before can become shared.
    command.args([&format!("mount --make-rshared /; {SCRIPT}"), "sh"]);
    command.arg(quell()).arg(&point).arg(&files).args([view, program]);
    stage.run(&mut command)
}

#[test]
fn entries_beside_the_tree_are_the_originals_and_names_above_it_are_fixed() {
    let stage = Stage::new();
    if !can_unshare(&stage) {
        skip!("no user namespaces to mount in");
    }
    for view in views() {
        let ended = run(&stage, view, PROGRAM).expect(0);
        let text = ended.text();
        let lines: Vec<&str> = text.lines().collect();
        let expect = [
            "root: apps home link mounted top ",
            "apps: beside fifo tools ",
            "tree: data, sub",
            "beside: home top inside later new ",
            "link: home, home",
            "fifo",
            "apps: 751 1000000000",
        ];
        assert_eq!(lines[..expect.len()], expect, "{view}: {text}\n{}", ended.err);
        let refused = &lines[expect.len()..];
        for (line, error) in
            refused.iter().zip(["Read-only", "Read-only", "Read-only", "Read-only", "cross-device"])
        {
            assert!(line.contains(error), "{view}: {line}");
        }
        assert_eq!(refused[5..], ["home", "written", "beside", "fifo", "tools"], "{view}: {text}");
    }
    stage.expect_nothing_left();
}

#[test]
fn an_ordinary_view_copies_directories_of_a_mounted_file_system() {
    let shared = Path::new("/dev/shm");
    let has_mount = fs::read_to_string("/proc/self/mounts").is_ok_and(|table| table.contains(" /dev/shm "));
    if !has_mount {
        skip!("/dev/shm is not a mount point");
    }
    let stage = Stage::new();
    if !can_unshare(&stage) {
        skip!("no user namespaces to mount in");
    }
    let base = tempfile::Builder::new().prefix("quell-above.").tempdir_in(shared).unwrap();
    let tree = base.path().join("apps/tree");
    fs::create_dir_all(&tree).unwrap();
    fs::create_dir(base.path().join("apps/beside")).unwrap();
    fs::write(tree.join("file"), "data").unwrap();
    let index = stage.index(&tree);
    let script = r#"cd "$1" && cat tree/file && echo x > beside/new && mkdir other"#;
    for view in views() {
        let mut command = stage.quell_run(&index, view);
        command.args(["--above", "copy", "--", "sh", "-c", script, "sh"]).arg(base.path().join("apps"));
        let ended = stage.run(&mut command);
        assert!(
            ended.text() == "data" && ended.err.contains("Read-only"),
            "{view}: {} {}",
            ended.text(),
            ended.err
        );
        assert!(base.path().join("apps/beside/new").exists(), "{view}");
        assert!(!base.path().join("apps/other").exists(), "{view}");
        fs::remove_file(base.path().join("apps/beside/new")).unwrap();
    }
    stage.expect_nothing_left();
}

#[test]
fn directories_that_cannot_be_copied_are_used_as_they_are() {
    let stage = Stage::new();
    if !can_unshare(&stage) {
        skip!("no user namespaces to mount in");
    }
    let Some(view) = views().first() else { skip!("no view") };
    // Too many entries in the mount point, and in a directory below it.
    for (below, copied) in [("", false), ("/apps/tools", true)] {
        let program = "touch \"$2/started\"; cat \"$1/apps/tools/tree/sub/file\"; mkdir \"$1/made\" || true";
        let many = format!("for n in $(seq 300); do touch \"$2{below}/n$n\"; done; \"$1\" index");
        let many = SCRIPT.replace("\"$1\" index", &many);
        let (point, files) = (stage.dir("point"), stage.dir("files"));
        let full = format!("{}{below}", point.display());
        let tree = point.join("apps/tools/tree");
        let message = match copied {
            false => {
                format!(
                    "directories above {} are not copied: {full} has more than 256 entries",
                    tree.display()
                )
            }
            true => format!(
                "directories above {} are copied only down to {}: together with {full}, the directories have more than 256 entries",
                tree.display(),
                point.join("apps").display()
            ),
        };
        for (options, code) in [("-q", 0), ("-q --strict", 3)] {
            let script =
                many.replace("-q --strict", options).replace("wait $!", "code=0; wait $! || code=$?");
            let script = script.replace("cat \"$2/home/written\"; ls -A \"$2/apps\"", "");
            let mut command = stage.command("unshare");
            if !is_root() {
                command.args(["--user", "--map-root-user"]);
            }
            command.args(["--mount", "--propagation", "private", "sh", "-ec"]);
            command.args([&format!("{script}\nexit $code"), "sh"]);
            command.arg(quell()).arg(&point).arg(&files).args([view, program]);
            let ended = stage.run(&mut command).expect(code);
            assert!(ended.err.contains(&message), "{}", ended.err);
            assert_eq!(ended.text().contains("data"), code == 0, "{}", ended.text());
            assert_eq!(ended.err.contains("Read-only"), copied && code == 0, "{}", ended.err);
            for name in ["started", "changed", "index.quell"] {
                let _ = fs::remove_file(files.join(name));
            }
        }
        for directory in [point, files] {
            fs::remove_dir_all(directory).unwrap();
        }
    }
    stage.expect_nothing_left();
}
