//! Calls and programs in mounts of a store for batches, in each mode: the C programs and the
//! scripts in `preload/` must have the results that they have in a real directory. After the commit
//! of a batch, the store must have the tree that the programs have left. `preload_programs.rs` does
//! the same with the preload library.

use std::path::Path;
use std::process::Command;

use crate::batch::can_mount;
use crate::preload_programs::{TREE, differences};
use crate::skip;
use crate::stage::{Stage, has, words};

/// The number of seeds of random calls in each mode.
const SEEDS: usize = 60;

/// The kernel lets epoll(7) watch the files of FUSE, and refuses those of a local file system.
const DIFFERENT_IN_FUSE: &str = "epoll_ctl(events, EPOLL_CTL_ADD, fd, ";

/// A mode of a mount: its options, and whether another process serves the store.
#[derive(Debug, Clone, Copy)]
struct Mode {
    options: &'static [&'static str],
    has_server: bool,
}

const SYNCHRONOUS: Mode = Mode { options: &["--mode", "sync"], has_server: false };
const SERVED: Mode = Mode { options: &["--mode", "sync"], has_server: true };
const BATCH: Mode = Mode { options: &["--mode", "batch"], has_server: false };

/// Runs `work` in a real directory and in a mount, and compares the outputs, and the trees that
/// remain. The tree of the mount is read again after the mount was removed.
#[track_caller]
fn agrees(mode: Mode, work: impl Fn(&Stage, &Path) -> Command) {
    let stage = Stage::new();
    let (store, real) = (stage.batch_store(), stage.dir("real"));
    let server = mode.has_server.then(|| {
        stage.run(stage.quell().args(words(&[&"batch", &"serve", &store, &"--background"]))).expect(0);
    });
    let output = |dir: &Path| {
        let ended = stage.run(&mut work(&stage, dir)).expect(0);
        let printed = ended.text().replace(dir.to_str().expect("UTF-8"), "DIR") + &ended.err;
        let comparable = printed.lines().filter(|line| !line.contains(DIFFERENT_IN_FUSE));
        comparable.fold(String::new(), |text, line| text + line + "\n")
    };
    let tree = |dir: &Path| {
        let mut command = stage.command("bash");
        command.args(["-c", TREE, "script"]).env("D", dir).env("LC_ALL", "C.UTF-8");
        stage.run(&mut command).expect(0).text().replace(dir.to_str().expect("UTF-8"), "DIR")
    };
    let mount = stage.mount_batch(&store, mode.options, "mount");
    let mut different = differences("output", &output(&real), &output(&mount.point));
    let expected = tree(&real);
    different.extend(differences("tree", &expected, &tree(&mount.point)));
    mount.umount();
    let again = stage.mount_batch(&store, &[], "again");
    different.extend(differences("tree of the store", &expected, &tree(&again.point)));
    again.umount();
    if server.is_some() {
        stage.run(stage.quell().args(words(&[&"batch", &"serve", &store, &"--stop"]))).expect(0);
    }
    assert!(different.is_empty(), "{mode:?}\n{}", different.join("\n"));
}

/// Returns the command that runs a C program with a directory.
fn c_program(stage: &Stage, source: &str, dir: &Path) -> Command {
    let program = stage.path("program");
    if !program.exists() {
        stage.file("cases.h", include_str!("preload/cases.h"));
        let source = stage.file("program.c", source);
        let script = "cc -std=gnu11 -Wall -Werror -Wno-unused-result -pthread -o \"$1\" \"$2\"";
        stage.sh(script, &[&program, &source]).expect(0);
    }
    let mut command = stage.command(program);
    command.arg(dir);
    command
}

#[track_caller]
fn c_program_agrees(mode: Mode, source: &str, arguments: &[&str]) {
    if !has("cc") {
        skip!("no C compiler (cc)");
    }
    if can_mount() {
        agrees(mode, |stage, dir| {
            let mut command = c_program(stage, source, dir);
            command.args(arguments);
            command
        });
    }
}

#[track_caller]
fn script_agrees(mode: Mode, script: &str) {
    if let Some(program) = crate::preload_programs::missing(script) {
        skip!("{program} is not installed");
    }
    if can_mount() {
        agrees(mode, |stage, dir| {
            let outside = stage.dir(if dir.ends_with("real") { "outside-real" } else { "outside-mount" });
            let mut command = stage.command("env");
            command.args([format!("HOME={}", outside.display()), format!("TMPDIR={}", outside.display())]);
            command.args(["bash", "-c", script, "script"]).env("D", dir).env("LC_ALL", "C.UTF-8");
            command.current_dir(outside);
            command
        });
    }
}

macro_rules! in_each_mode {
    ($($mode:ident $of_mode:ident;)*) => {$(
        mod $mode {
            use super::*;

            #[test]
            fn random_calls() {
                c_program_agrees($of_mode, include_str!("preload/random.c"), &["0", &SEEDS.to_string()]);
            }

            in_each_mode! { calls $of_mode: asynchronous copies descriptors flags fts locks mappings stdio walks wide }

            in_each_mode! { scripts $of_mode: appends archives coreutils databases editors shell }
        }
    )*};
    (calls $of_mode:ident: $($name:ident)*) => {$(
        #[test]
        fn $name() {
            c_program_agrees($of_mode, include_str!(concat!("preload/", stringify!($name), ".c")), &[]);
        }
    )*};
    (scripts $of_mode:ident: $($name:ident)*) => {$(
        #[test]
        fn $name() {
            script_agrees($of_mode, include_str!(concat!("preload/programs/", stringify!($name), ".sh")));
        }
    )*};
}

in_each_mode! {
    synchronous SYNCHRONOUS;
    served SERVED;
    batch BATCH;
}
