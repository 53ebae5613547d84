//! Where Quell cannot work, it reports the reason and runs the program on the original directory;
//! with `--strict` it fails. A fault during a view does not break the program.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::group::Group;
use crate::skip;
use crate::stage::{Stage, can_unshare, is_root, quell, views};
use crate::trees::{self, HUGE_BYTES, set_mode};

fn fixture() -> (Stage, PathBuf, PathBuf) {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let index = stage.index(&tree);
    (stage, tree, index)
}

/// Returns a command that runs a script as root of a new user and mount namespace. Owners have
/// other numbers there, so the tree is indexed again in it. `$1` is quell, `$2` the index, `$3` the
/// tree.
fn unshared(stage: &Stage, script: &str, index: &Path, tree: &Path) -> Command {
    let mut command = stage.command("unshare");
    let script = format!("\"$1\" index -q \"$3\" -o \"$2\"; {script}");
    command.args(["-U", "-r", "-m", "sh", "-ec", &script, "sh"]).arg(quell()).args([index, tree]);
    command
}

/// Drops the capabilities of the namespace's root, so that the command has the capabilities of an
/// ordinary user.
const POWERLESS: &str = "setpriv --bounding-set=-all --inh-caps=-all --";

#[test]
fn without_user_namespaces_the_program_runs_on_the_original() {
    let (stage, tree, index) = fixture();
    if !can_unshare(&stage) {
        skip!("no user namespaces to deny");
    }
    let deny = "echo 0 >/proc/sys/user/max_user_namespaces";
    let script = format!(
        "{deny}; {POWERLESS} \"$1\" run -i \"$2\" -- sh -c 'cat \"$1/readme\"; touch \"$1/bin\"; exit 7' sh \"$3\""
    );
    let ended = stage.run(&mut unshared(&stage, &script, &index, &tree)).expect(7);
    assert_eq!(ended.text(), "hello\n");
    assert!(!ended.err.contains("Read-only"), "{}", ended.err);
    ended.says("user namespace").says("quell doctor").says("running on the original directory");
    let script = format!("{deny}; {POWERLESS} \"$1\" run --strict -i \"$2\" -- echo ran");
    let ended = stage.run(&mut unshared(&stage, &script, &index, &tree)).expect(3);
    assert_eq!(ended.text(), "");
    let script = format!("{deny}; {POWERLESS} \"$1\" doctor --json");
    let printed = stage.run(&mut unshared(&stage, &script, &index, &tree)).expect(3).json();
    assert_eq!(printed["view"], "none");
}

#[test]
fn without_the_fuse_device_the_program_runs_on_the_original_or_under_overlay() {
    let (stage, tree, index) = fixture();
    if !can_unshare(&stage) || !views().contains(&"fuse") {
        skip!("no user namespaces, or no fuse to deny");
    }
    let deny = "mount --bind /dev/null /dev/fuse";
    let script = format!("{deny}; \"$1\" run --view fuse -i \"$2\" -- cat \"$3/readme\"");
    let ended = stage.run(&mut unshared(&stage, &script, &index, &tree)).expect(0);
    assert_eq!(ended.text(), "hello\n");
    ended.says("fuse").says("running on the original directory");
    let script = format!("{deny}; \"$1\" run --view fuse --strict -i \"$2\" -- echo ran");
    assert_eq!(stage.run(&mut unshared(&stage, &script, &index, &tree)).expect(3).text(), "");
    if views().contains(&"overlay") {
        let script = format!("{deny}; \"$1\" run --strict -v -i \"$2\" -- cat \"$3/readme\"");
        stage.run(&mut unshared(&stage, &script, &index, &tree)).expect(0).says("covered by overlay");
    }
}

#[test]
fn an_index_that_is_broken_while_covered_changes_nothing() {
    let whole = Stage::new();
    drop(whole);
    for view in views() {
        for change in ["truncate", "overwrite", "remove"] {
            let (stage, tree, index) = fixture();
            let script = "echo ready; read line; ls \"$1/lib/deep\"; cat \"$1/lib/deep/leaf\" \"$1/link\"; \
                          test -e \"$1/absent\" || wc -c <\"$1/lib/data\"";
            let mut command = stage.quell_run(&index, view);
            command.args(["--strict", "--quiet", "--", "sh", "-c", script, "sh"]).arg(&tree);
            let mut running = stage.start(command.stdin(Stdio::piped()));
            running.wait_for_output("ready");
            let bytes = fs::metadata(&index).unwrap().len() as usize;
            match change {
                // In place: the file from which the view was made.
                "truncate" => fs::File::options().write(true).open(&index).unwrap().set_len(10).unwrap(),
                "overwrite" => fs::write(&index, vec![0xff; bytes]).unwrap(),
                _ => fs::remove_file(&index).unwrap(),
            }
            running.stdin().write_all(b"\n").unwrap();
            let ended = running.wait().expect(0);
            assert_eq!(ended.text(), "ready\nleaf\nleaf\nleaf\n10000\n", "{view} {change}: {}", ended.err);
        }
    }
}

#[test]
fn a_tree_past_the_memory_budget_is_served_by_fuse() {
    let (stage, tree, index) = fixture();
    let mut command = stage.quell_run(&index, "auto");
    command.args(["--strict", "-v", "--memory", "0", "--", "cat"]).arg(tree.join("readme"));
    let ended = stage.run(&mut command);
    if ended.code() == Some(3) && !views().contains(&"fuse") {
        skip!("no fuse view");
    }
    ended.expect(0).says("covered by fuse").says("--memory");
}

#[test]
fn a_limit_on_file_sizes_that_a_tmpfs_cannot_keep_to_leads_to_fuse() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    fs::File::create(tree.join("huge")).unwrap().set_len(HUGE_BYTES).unwrap();
    let index = stage.index(&tree);
    if !views().contains(&"overlay") || !views().contains(&"fuse") {
        skip!("not both of overlay and fuse work here");
    }
    let script = "ulimit -f 1000; exec \"$1\" run --strict -v -i \"$2\" -- sh -c 'ulimit -f; stat -c %s \"$1\"' sh \"$3/huge\"";
    let ended = stage.sh(script, &[&quell(), &index, &tree]).expect(0);
    assert_eq!(ended.text(), format!("1000\n{HUGE_BYTES}\n"));
    ended.says("covered by fuse").says("size of");
}

#[test]
fn a_holder_without_memory_leaves_the_program_on_the_original() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let directory = fs::File::open(&tree).unwrap();
    for number in 0..40_000 {
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        rustix::fs::openat(&directory, format!("{number}"), flags, 0o644.into()).unwrap();
    }
    let index = stage.index(&tree);
    let group = match Group::new(24 << 20) {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let script =
        "echo $$ >\"$4/cgroup.procs\"; exec \"$1\" run --view overlay -i \"$2\" -- cat \"$3/readme\"";
    let ended = stage.sh(script, &[&quell(), &index, &tree, &group.path]).expect(0);
    assert_eq!(ended.text(), "hello\n");
    ended.says("running on the original directory");
    assert!(crate::stage::eventually(|| stage.processes().is_empty()));
}

#[test]
fn a_runtime_directory_that_is_not_ones_own_is_not_used() {
    let (stage, tree, index) = fixture();
    let run = |runtime: &Path, strict: bool| {
        let mut command = stage.quell_run(&index, "auto");
        command.env("QUELL_RUNTIME_DIR", runtime);
        if strict {
            command.arg("--strict");
        }
        stage.run(command.args(["--", "cat"]).arg(tree.join("readme")))
    };
    let open = stage.dir("open");
    set_mode(&open, 0o755);
    let own = stage.dir("own");
    set_mode(&own, 0o700);
    let link = stage.path("link");
    symlink(&own, &link).unwrap();
    let file = stage.file("file", "");
    let mut refused = vec![open, link, file, stage.path("no/such")];
    if is_root() {
        let theirs = stage.dir("theirs");
        chown(&theirs, Some(65534), Some(65534)).unwrap();
        set_mode(&theirs, 0o700);
        refused.push(theirs);
    } else {
        refused.push("/usr".into());
    }
    for directory in refused {
        assert_eq!(run(&directory, true).expect(3).text(), "", "{directory:?}");
        let ended = run(&directory, false).expect(0);
        assert_eq!(ended.text(), "hello\n", "{directory:?}");
        ended.says(directory.to_str().unwrap()).says("running on the original directory");
    }
    run(&own, true).expect(0);
    assert!(crate::stage::eventually(|| crate::stage::left_in(&own).is_empty()));
}

#[test]
fn a_mount_below_the_tree_that_the_user_may_not_look_under_leads_to_fuse() {
    let (stage, tree, _) = fixture();
    if !can_unshare(&stage) || !views().contains(&"fuse") {
        skip!("no user namespaces, or no fuse view");
    }
    fs::create_dir(tree.join("other")).unwrap();
    let index = stage.index(&tree);
    // Mounted by the root of the outer namespace, and therefore locked in the namespace of the user
    // inside.
    let script = "mount -t tmpfs none \"$3/other\"; echo x >\"$3/other/inside\"; \
                  unshare -U --map-user=1000 --map-group=1000 -- \
                  \"$1\" run --strict -v --check none -i \"$2\" -- sh -c 'cat \"$1/readme\"; ls \"$1/other\"' sh \"$3\"";
    let ended = stage.run(&mut unshared(&stage, script, &index, &tree)).expect(0);
    assert_eq!(ended.text(), "hello\n");
    ended.says("covered by fuse").says("overlay");
}

#[test]
fn a_full_disk_leaves_the_old_index() {
    let (stage, tree, _) = fixture();
    if !can_unshare(&stage) {
        skip!("no user namespaces");
    }
    for number in 0..3000 {
        fs::write(tree.join(format!("file{number}")), "").unwrap();
    }
    let directory = stage.dir("directory");
    let script = "mount -t tmpfs -o size=16k none \"$1\"; echo old >\"$1/index\"; \
                  \"$2\" index -q \"$3\" --force -o \"$1/index\" && exit 9; cat \"$1/index\"; ls -A \"$1\"";
    let mut command = stage.command("unshare");
    command.args(["-U", "-r", "-m", "sh", "-ec", script, "sh"]).args([&directory, &quell(), &tree]);
    let ended = stage.run(&mut command).expect(0);
    assert_eq!(ended.text(), "old\nindex\n");
    ended.says("No space left");
}
