//! Indexes, boot images and configurations of other users: which are refused and which are used. If
//! one is refused, the program does not run.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skip;
use crate::stage::{Ended, Stage, is_root, quell};
use crate::trees::{self, set_mode};

/// User ids without an account.
const MALLORY: u32 = 4_242_420;
const ALICE: u32 = 4_242_421;

struct Fixture {
    stage: Stage,
    tree: PathBuf,
    index: PathBuf,
}

impl Fixture {
    fn new() -> Fixture {
        let stage = Stage::new();
        let tree = trees::small(&stage, "tree");
        let index = stage.index(&tree);
        fs::set_permissions(&index, fs::Permissions::from_mode(0o644)).unwrap();
        Fixture { stage, tree, index }
    }

    /// Runs a program that reports its start with `quell run`, in a view of the tree or on the
    /// original.
    fn run(&self, options: &[&str], index: &Path) -> Ended {
        let mut command = self.stage.quell();
        command.arg("run").args(options).arg("-i").arg(index);
        self.stage.run(command.args(["--", "sh", "-c", "echo ran; cat \"$1/readme\"", "sh"]).arg(&self.tree))
    }

    #[track_caller]
    fn refused(&self, options: &[&str], index: &Path, words: &str) {
        let ended = self.run(options, index).expect(2).says(words);
        assert_eq!(ended.text(), "", "the program ran");
        assert!(!ended.err.contains("original"), "{}", ended.err);
    }
}

/// Returns a command of another user, with a copy of the program that this user may read.
fn as_user(stage: &Stage, uid: u32) -> Command {
    as_member(stage, uid, "--clear-groups")
}

/// Does the same as `as_user`, with an option of setpriv(1) for the supplementary groups.
pub fn as_member(stage: &Stage, uid: u32, groups: &str) -> Command {
    let copy = stage.path("quell-copy");
    if !copy.exists() {
        fs::copy(quell(), &copy).unwrap();
        set_mode(&copy, 0o755);
    }
    let runtime = stage.dir(&format!("runtime-{uid}"));
    chown(&runtime, Some(uid), Some(uid)).unwrap();
    set_mode(&runtime, 0o700);
    let mut command = stage.command("setpriv");
    let id = uid.to_string();
    command.args(["--reuid", &id, "--regid", &id, groups, "--"]).arg(copy);
    command.env("QUELL_RUNTIME_DIR", runtime);
    command
}

#[test]
fn a_foreign_index_is_refused_and_no_program_runs() {
    if !is_root() {
        skip!("files of two users are made by root alone");
    }
    let fixture = Fixture::new();
    chown(&fixture.index, Some(MALLORY), Some(MALLORY)).unwrap();
    for options in [&[][..], &["--strict"], &["--check", "none"], &["--view", "fuse"]] {
        fixture.refused(options, &fixture.index, "--trust-owner 4242420");
    }
    fixture.refused(&["--trust-owner", "4242421"], &fixture.index, "user 4242420");
    let ended = fixture.run(&["--strict", "-q", "--trust-owner", "4242420"], &fixture.index).expect(0);
    assert_eq!(ended.text(), "ran\nhello\n");
    let point = fixture.stage.dir("point");
    let mount = |options: &[&str]| {
        let mut command = fixture.stage.quell();
        command.arg("mount").args(options).arg(&fixture.index).arg(&point);
        fixture.stage.run(&mut command)
    };
    mount(&[]).expect(2).says("--trust-owner");
    mount(&["--trust-owner", "4242420"]).expect(0);
    fixture.stage.run(fixture.stage.quell().arg("umount").arg(&point)).expect(0);
    let boot = fixture.stage.path("boot");
    let record = |options: &[&str]| {
        let mut command = fixture.stage.quell();
        command.args(["record", "-q"]).args(options).arg("-i").arg(&fixture.index).arg("-o").arg(&boot);
        fixture.stage.run(command.args(["--", "cat"]).arg(fixture.tree.join("readme")))
    };
    let ended = record(&[]).expect(2).says("--trust-owner");
    assert_eq!(ended.text(), "");
    assert_eq!(record(&["--trust-owner", "4242420"]).expect(0).text(), "hello\n");
    // An update writes the caller's own index and checks the owner; `show` only prints the index
    // and does not.
    let update = |options: &[&str]| {
        fixture.stage.run(fixture.stage.quell().args(["index", "--update"]).args(options).arg(&fixture.index))
    };
    update(&[]).expect(2).says("--trust-owner");
    fixture.stage.run(fixture.stage.quell().arg("verify").arg(&fixture.index)).expect(0);
    fixture.stage.run(fixture.stage.quell().arg("show").arg(&fixture.index)).expect(0);
    update(&["--trust-owner", "4242420"]).expect(0);
}

#[test]
fn an_index_of_the_trees_owner_or_of_root_is_used() {
    if !is_root() {
        skip!("files of two users are made by root alone");
    }
    let fixture = Fixture::new();
    for uid in [0, MALLORY] {
        chown(&fixture.tree, Some(MALLORY), Some(MALLORY)).unwrap();
        let index = fixture.stage.index(&fixture.tree);
        set_mode(&index, 0o644);
        chown(&index, Some(uid), Some(uid)).unwrap();
        let mut command = as_user(&fixture.stage, ALICE);
        command.args(["run", "-q", "--strict", "-i"]).arg(&index).args(["--", "cat"]);
        let ended = fixture.stage.run(command.arg(fixture.tree.join("readme")));
        if ended.err.contains("user namespace") {
            skip!("no user namespaces for ordinary users: {}", ended.err);
        }
        assert_eq!(ended.expect(0).text(), "hello\n");
    }
    // The tree's owner has changed since, so the index belongs to another user.
    chown(&fixture.tree, Some(0), Some(0)).unwrap();
    let index = fixture.stage.index(&fixture.tree);
    chown(&index, Some(MALLORY), Some(MALLORY)).unwrap();
    set_mode(&index, 0o644);
    let mut command = as_user(&fixture.stage, ALICE);
    command.args(["run", "-i"]).arg(&index).args(["--", "echo", "ran"]);
    let ended = fixture.stage.run(&mut command).expect(2).says("--trust-owner");
    assert_eq!(ended.text(), "");
}

#[test]
fn a_file_that_other_users_may_write_is_refused() {
    let fixture = Fixture::new();
    for (mode, words) in [(0o666, "chmod o-w"), (0o646, "chmod o-w"), (0o664, "chmod g-w")] {
        set_mode(&fixture.index, mode);
        fixture.refused(&[], &fixture.index, words);
    }
    // A user with write permission for the tree may write to its index, too.
    set_mode(&fixture.tree, 0o775);
    let index = fixture.stage.index(&fixture.tree);
    set_mode(&index, 0o664);
    assert_eq!(fixture.run(&["--strict", "-q"], &index).expect(0).text(), "ran\nhello\n");
    let config = fixture.stage.file(
        "quell.toml",
        format!("[[tree]]\npath = '{}'\nindex = '{}'\n", fixture.tree.display(), index.display()),
    );
    let run = || {
        let mut command = fixture.stage.quell();
        fixture.stage.run(command.args(["run", "-q", "--config"]).arg(&config).args(["--", "echo", "ran"]))
    };
    set_mode(&config, 0o644);
    assert_eq!(run().expect(0).text(), "ran\n");
    set_mode(&config, 0o664);
    assert_eq!(run().expect(2).says("chmod g-w").text(), "");
    if is_root() {
        set_mode(&config, 0o644);
        chown(&config, Some(MALLORY), Some(MALLORY)).unwrap();
        assert_eq!(run().expect(2).says("--trust-owner").text(), "");
    }
}

#[test]
fn the_index_beside_a_directory_must_be_one_of_it() {
    let fixture = Fixture::new();
    let other = trees::small(&fixture.stage, "other");
    let planted = fixture.stage.path("tree.quell");
    fixture
        .stage
        .run(fixture.stage.quell().args(["index", "-q"]).arg(&other).arg("-o").arg(&planted))
        .expect(0);
    fixture.refused(&[], &fixture.tree, "is an index of");
    fs::remove_file(&planted).unwrap();
    // A link to an index of the caller.
    symlink(&fixture.index, fixture.stage.path("other.quell")).unwrap();
    fixture.refused(&[], &other, "is an index of");
    // A dangling link is not followed when the index is created.
    symlink(fixture.stage.path("elsewhere"), &planted).unwrap();
    let ended = fixture.run(&[], &fixture.tree).expect(2).says("not a regular file");
    assert_eq!(ended.text(), "");
    assert!(!fixture.stage.path("elsewhere").exists());
    fs::remove_file(&planted).unwrap();
    if is_root() {
        // An index of the right tree that another user left there.
        fs::copy(&fixture.index, &planted).unwrap();
        chown(&planted, Some(MALLORY), Some(MALLORY)).unwrap();
        fixture.refused(&[], &fixture.tree, "--trust-owner");
    }
}

#[test]
fn a_foreign_boot_image_is_refused_and_not_joined() {
    let fixture = Fixture::new();
    let boot = fixture.stage.path("boot");
    let mut command = fixture.stage.quell();
    command.args(["record", "-q", "-i"]).arg(&fixture.index).arg("-o").arg(&boot);
    fixture.stage.run(command.args(["--", "cat"]).arg(fixture.tree.join("readme"))).expect(0);
    let words = match is_root() {
        true => {
            chown(&boot, Some(MALLORY), Some(MALLORY)).unwrap();
            "--trust-owner"
        }
        false => {
            println!(
                "SKIPPED: a file of another user is made by root alone; one that others may write stands for it"
            );
            set_mode(&boot, 0o606);
            "chmod o-w"
        }
    };
    fixture.refused(&["-b", boot.to_str().unwrap()], &fixture.index, words);
    let merged = fixture.stage.path("merged");
    let mut merge = fixture.stage.quell();
    fixture.stage.run(merge.args(["boot", "merge", "-o"]).arg(&merged).arg(&boot)).expect(2).says(words);
    assert!(!merged.exists());
    for option in ["--merge", "--update"] {
        let mut again = fixture.stage.quell();
        again.args(["record", "-q", option, "-i"]).arg(&fixture.index).arg("-o").arg(&boot);
        fixture.stage.run(again.args(["--", "true"])).expect(2).says(words);
    }
}

#[test]
fn a_wrong_file_is_refused_and_no_program_runs() {
    let fixture = Fixture::new();
    let script = fixture.stage.file("train.py", "print('hello')\n");
    fixture.refused(&[], &script, "not an index");
    fixture.refused(&[], &fixture.stage.file("empty", ""), "empty");
    fixture.refused(&[], Path::new("/dev/zero"), "not a regular file");
    // A file of 60 GiB takes neither memory nor time.
    let sparse = fixture.stage.file("sparse", "QUELLIDX");
    fs::File::options().write(true).open(&sparse).unwrap().set_len(60 << 30).unwrap();
    let mut show = fixture.stage.quell();
    fixture.stage.run(show.arg("show").arg(&sparse)).expect(2).says("version");
    let mut show = fixture.stage.quell();
    fs::write(&sparse, "QUELLBOO").unwrap();
    fs::File::options().write(true).open(&sparse).unwrap().set_len(60 << 30).unwrap();
    fixture.stage.run(show.args(["boot", "show"]).arg(&sparse)).expect(2).says("version");
}

#[test]
fn a_directory_with_files_becomes_a_store_only_with_init() {
    let stage = Stage::new();
    let (other, point) = (stage.dir("other"), stage.dir("point"));
    fs::write(other.join("thesis.tex"), "x").unwrap();
    let mount = |options: &[&str]| {
        let mut command = stage.quell();
        stage.run(command.args(["mount", "-q"]).args(options).arg("--log").arg(&other).arg(&point))
    };
    mount(&[]).expect(2).says("--init");
    assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
    mount(&["--init"]).expect(0);
    stage.run(stage.quell().arg("umount").arg(&point)).expect(0);
    mount(&[]).expect(0);
    stage.run(stage.quell().arg("umount").arg(&point)).expect(0);
}
