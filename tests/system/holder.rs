//! The holder process of a view: the directory in which programs start, the files that it keeps
//! open, the launches in which it ends, and the behaviour of others when it does not respond.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::log_fixture;
use crate::skip;
use crate::stage::{
    Launch, Mounted, PATIENCE, Stage, eventually, has, is_mounted, is_root, launches, mount_points, send,
    views,
};
use crate::trees;

/// Time limit for a holder's answer (docs/semantics.md).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A small tree and its index.
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
        Fixture { stage, tree, index }
    }

    /// Returns the `quell mount` command for a view and a mount point.
    fn mount_command(&self, view: &str, point: &Path) -> Command {
        let mut command = self.stage.quell();
        command.args(["mount", "--view", view]).arg(&self.index).arg(point);
        command
    }
}

/// Returns the views that this user can mount.
fn mountable() -> Vec<&'static str> {
    let view = |launch: Launch| matches!(launch, Launch::Mount(_)).then(|| launch.view());
    launches().into_iter().filter_map(view).collect()
}

// --- working directories of programs -----------------------------------------------------------

/// Prints the device and inode number of the working directory, and whether the tree is the
/// original, in which `later` exists.
const WHERE: &str =
    "stat -Lc %d:%i /proc/self/cwd; if test -e \"$1/later\"; then echo original; else echo view; fi";

fn identity(directory: &Path) -> String {
    let found = fs::metadata(directory).unwrap();
    format!("{}:{}", found.dev(), found.ino())
}

/// Returns a command that starts Quell in `directory`, after `prepare` has run there.
fn start_in(fixture: &Fixture, view: &str, options: &[&str], directory: &Path, prepare: &str) -> Command {
    let mut command = fixture.stage.command("sh");
    let script = format!("cd \"$1\" && shift && {prepare} exec \"$@\"");
    command.args(["-c", &script, "sh"]).arg(directory).arg(crate::stage::quell());
    command.args(["run", "--check", "none", "--view", view, "-i"]).arg(&fixture.index).args(options);
    command.args(["--", "sh", "-c", WHERE, "sh"]).arg(&fixture.tree);
    command
}

/// Checks that the program runs on the original tree in its own working directory, and that it does
/// not run with `--strict`.
#[track_caller]
fn expect_original(fixture: &Fixture, options: &[&str], directory: &Path, prepare: &str, says: &str) {
    let identity = identity(directory);
    let again = |directory: &Path| {
        // The script may have removed it.
        fs::create_dir_all(directory).unwrap();
    };
    for view in views() {
        let ended = fixture.stage.run(&mut start_in(fixture, view, options, directory, prepare)).expect(0);
        let expected = format!("{identity}\noriginal\n");
        if prepare.is_empty() {
            assert_eq!(ended.text(), expected, "{view}, {}: {}", directory.display(), ended.err);
        } else {
            assert!(ended.text().ends_with("original\n"), "{view}: {} {}", ended.text(), ended.err);
        }
        let ended = ended.says("working directory").says("running on the original directory").says(says);
        assert!(!ended.err.contains("starts in /"), "{}", ended.err);
        again(directory);
        let strict = [options, &["--strict"]].concat();
        let ended = fixture.stage.run(&mut start_in(fixture, view, &strict, directory, prepare)).expect(3);
        assert_eq!(ended.says("working directory").says(says).text(), "", "{view}");
        again(directory);
    }
    assert!(eventually(|| fixture.stage.processes().is_empty()));
}

/// Checks that the program runs in the view, in the directory with the same path.
#[track_caller]
fn expect_view(fixture: &Fixture, options: &[&str], directory: &Path) -> Vec<String> {
    let strict = [options, &["--strict"]].concat();
    let run = |view: &&str| {
        let ended = fixture.stage.run(&mut start_in(fixture, view, &strict, directory, "")).expect(0);
        let text = ended.text();
        let (identity, rest) = text.split_once('\n').unwrap();
        assert_eq!(rest, "view\n", "{view}: {}", ended.err);
        identity.to_owned()
    };
    views().iter().map(run).collect()
}

#[test]
fn a_program_starts_in_its_working_directory_or_not_in_the_view() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    fs::create_dir_all(tree.join("left out")).unwrap();
    fs::create_dir_all(tree.join("gone")).unwrap();
    symlink("lib", tree.join("was a link")).unwrap();
    let index = stage.path("index.quell");
    let mut command = stage.quell();
    command.args(["index", "--quiet", "--exclude", "left out"]).arg(&tree).arg("-o").arg(&index);
    stage.run(&mut command).expect(0);
    let fixture = Fixture { stage, tree, index };
    fs::write(fixture.tree.join("later"), "").unwrap();
    let created = fixture.tree.join("lib/created later");
    fs::create_dir(&created).unwrap();
    fs::remove_file(fixture.tree.join("was a link")).unwrap();
    fs::create_dir_all(fixture.tree.join("was a link/deep")).unwrap();
    symlink(&created, fixture.stage.path("alias")).unwrap();
    symlink(fixture.tree.join("lib"), fixture.stage.path("good alias")).unwrap();
    let outside = fixture.stage.dir("out side");

    expect_original(&fixture, &[], &created, "", "created later");
    expect_original(&fixture, &[], &fixture.stage.path("alias"), "", "created later");
    expect_original(&fixture, &[], &fixture.tree.join("left out"), "", "left out");
    // In the view this name is a link to another directory.
    expect_original(&fixture, &[], &fixture.tree.join("was a link"), "", "was a link");
    expect_original(&fixture, &[], &fixture.tree.join("was a link/deep"), "", "was a link");
    // The view still has the directory, but the path no longer exists.
    let gone = fixture.tree.join("gone");
    expect_original(&fixture, &[], &gone, "rmdir \"$PWD\" &&", "removed");
    expect_original(&fixture, &[], &outside, "rmdir \"$PWD\" &&", "removed");

    for directory in [fixture.tree.join("lib/deep"), fixture.stage.path("good alias"), fixture.tree.clone()] {
        expect_view(&fixture, &[], &directory);
    }
    let outside_identity = identity(&outside);
    for seen in expect_view(&fixture, &[], &outside) {
        assert_eq!(seen, outside_identity);
    }
    expect_view(&fixture, &[], Path::new("/"));
    fixture.stage.expect_nothing_left();
}

#[test]
fn a_working_directory_below_a_mount_point_is_not_in_the_view() {
    if !is_root() {
        skip!("an ordinary user cannot mount below a tree");
    }
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let point = tree.join("lib/point");
    fs::create_dir(&point).unwrap();
    stage.sh("mount -t tmpfs quell-test \"$1\" && mkdir \"$1/below\"", &[&point]).expect(0);
    let index = stage.index(&tree);
    let fixture = Fixture { stage, tree, index };
    fs::write(fixture.tree.join("later"), "").unwrap();
    expect_original(&fixture, &[], &point, "", "mounted below");
    expect_original(&fixture, &[], &point.join("below"), "", "below");
    // A bind mount of the same file system that was mounted later was not indexed either.
    let bound = fixture.tree.join("bin");
    fixture.stage.sh("mount --bind \"$1\" \"$2\"", &[&fixture.stage.dir("other"), &bound]).expect(0);
    expect_original(&fixture, &[], &bound, "", "mounted below");
    fixture.stage.sh("umount \"$1\" \"$2\"", &[&bound, &point]).expect(0);
    // The tree itself may be a mount point.
    fixture.stage.sh("mount --bind \"$1\" \"$1\"", &[&fixture.tree]).expect(0);
    expect_view(&fixture, &[], &fixture.tree.join("lib"));
    // The holder has the tree open until it ends. During its exit, its environment disappears from
    // /proc before its files are closed.
    assert!(eventually(|| fixture.stage.processes().is_empty()));
    assert!(eventually(|| fixture.stage.sh("umount \"$1\"", &[&fixture.tree]).code() == Some(0)));
}

#[test]
fn a_working_directory_where_another_tree_is_shown_must_exist_in_that_tree() {
    let stage = Stage::new();
    let source = trees::small(&stage, "source");
    let index = stage.index(&source);
    let tree = trees::small(&stage, "shown-at");
    fs::create_dir(tree.join("only here")).unwrap();
    fs::write(tree.join("later"), "").unwrap();
    let at = tree.to_str().unwrap().to_owned();
    let fixture = Fixture { stage, tree, index };
    expect_original(&fixture, &["--at", &at], &fixture.tree.join("only here"), "", "only here");
    expect_view(&fixture, &["--at", &at], &fixture.tree.join("lib"));
    // The original is not covered.
    let seen = expect_view(&fixture, &["--at", &at], &source.join("lib"));
    assert!(seen.iter().all(|seen| *seen == identity(&source.join("lib"))), "{seen:?}");
}

#[test]
fn a_working_directory_that_cannot_be_searched_is_kept() {
    let fixture = Fixture::new();
    fs::write(fixture.tree.join("later"), "").unwrap();
    let closed = fixture.stage.dir("closed");
    let expected = identity(&closed);
    for view in views() {
        let mut command = start_in(&fixture, view, &[], &closed, "chmod 0 . &&");
        let text = fixture.stage.run(&mut command).expect(0).text();
        trees::set_mode(&closed, 0o700);
        assert_eq!(text.lines().next(), Some(&*expected), "{view}: {text}");
    }
}

// --- open files of the holder ------------------------------------------------------------------

/// Scripts in which a caller would wait forever for a process that keeps its streams or its lock
/// open. `$1` is a file; the command follows.
const CAPTURES: [&str; 4] = [
    "shift; out=$(\"$@\" 2>&1); echo \"ended $?\"",
    "shift; \"$@\" 2>&1 | cat >/dev/null; echo \"ended 0\"",
    "shift; \"$@\" 3>&1 4>&1 5>&2 2>&1 | cat >/dev/null; echo \"ended 0\"",
    "exec 9>\"$1\"; lock=$1; shift; flock 9; \"$@\" >/dev/null 2>&1; code=$?; exec 9>&-; flock -n \"$lock\" true || exit 1; \
     echo \"ended $code\"",
];

/// Runs the command in each of the scripts of `CAPTURES`, and calls `after` after each of them.
#[track_caller]
fn expect_captured(stage: &Stage, command: &dyn Fn() -> Command, after: &mut dyn FnMut()) {
    let lock = stage.path("lock");
    for script in CAPTURES {
        let inner = command();
        let mut outer = stage.command("timeout");
        outer
            .args(["60", "sh", "-c", script, "sh"])
            .arg(&lock)
            .arg(inner.get_program())
            .args(inner.get_args());
        let ended = stage.run(&mut outer);
        assert_eq!((ended.code(), &*ended.text()), (Some(0), "ended 0\n"), "{script}: {}", ended.err);
        after();
    }
    // A socket as standard streams, as with sshd and job managers.
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let stream = || Stdio::from(OwnedFd::from(theirs.try_clone().unwrap()));
    let status = command().stdin(stream()).stdout(stream()).stderr(stream()).status().unwrap();
    drop(theirs);
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut text = String::new();
    ours.read_to_string(&mut text).expect("the stream has no end");
    assert_eq!(status.code(), Some(0), "{text}");
    after();
}

/// Checks that the process has no file of the caller open.
#[track_caller]
fn expect_detached(pid: i32, stage: &Stage) {
    let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).unwrap();
    assert_eq!(link("cwd"), Path::new("/"));
    assert_eq!((link("fd/0"), link("fd/1")), ("/dev/null".into(), "/dev/null".into()));
    let log = link("fd/2");
    assert!(
        log.starts_with(stage.runtime()) && log.extension().is_some_and(|e| e == "log"),
        "{}",
        log.display()
    );
    assert_eq!(fs::metadata(&log).unwrap().mode() & 0o777, 0o600);
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The fields after the name: state, parent, process group, session, terminal.
    let fields: Vec<&str> = status.rsplit_once(") ").unwrap().1.split(' ').collect();
    assert_eq!((fields[2], fields[4]), (fields[3], "0"), "{status}");
}

#[test]
fn a_mount_keeps_no_stream_and_no_lock_of_its_caller() {
    let fixture = Fixture::new();
    let point = fixture.stage.dir("point");
    let mounted = Mounted::at(&fixture.stage, point.clone());
    for view in mountable() {
        expect_captured(&fixture.stage, &|| fixture.mount_command(view, &point), &mut || {
            assert!(is_mounted(&point));
            expect_detached(fixture.stage.holder(), &fixture.stage);
            fixture.stage.run(fixture.stage.quell().arg("umount").arg(&point)).expect(0);
            fixture.stage.expect_nothing_left();
        });
    }
    drop(mounted);
}

#[test]
fn a_log_mount_keeps_no_stream_and_no_lock_of_its_caller() {
    let fixture = log_fixture!();
    let point = fixture.point();
    let mounted = Mounted::at(&fixture.stage, point.clone());
    expect_captured(&fixture.stage, &|| fixture.command(&[&fixture.store], &[], &point), &mut || {
        assert!(is_mounted(&point));
        expect_detached(fixture.stage.holder(), &fixture.stage);
        fixture.stage.run(fixture.stage.quell().arg("umount").arg(&point)).expect(0);
        fixture.stage.expect_nothing_left();
    });
    drop(mounted);
}

#[test]
fn a_mount_of_a_disk_image_keeps_no_stream_and_no_lock_of_its_caller() {
    if !is_root() && !has("fusermount3") {
        skip!("an ordinary user mounts through fusermount3, which is not there");
    }
    let stage = Stage::new();
    let disk = stage.file("disk.raw", trees::noise(1 << 20, 3));
    let image = stage.path("disk.boot");
    let mut record = stage.quell();
    record.args(["record", "-q", "--image-format", "raw", "--image"]).arg(&disk).arg("-o").arg(&image);
    stage.run(record.args(["--", "head", "-c", "9000"]).arg(&disk)).expect(0);
    let point = stage.dir("point");
    let mounted = Mounted::at(&stage, point.clone());
    let command = || {
        let mut command = stage.quell();
        command.args(["mount", "--image-format", "raw", "--image", "-b"]).arg(&image).arg(&disk).arg(&point);
        command
    };
    expect_captured(&stage, &command, &mut || {
        assert!(is_mounted(&point));
        expect_detached(stage.holder(), &stage);
        stage.run(stage.quell().arg("umount").arg(&point)).expect(0);
        stage.expect_nothing_left();
    });
    drop(mounted);
}

#[test]
fn a_run_keeps_no_stream_and_no_lock_of_a_program_that_has_ended() {
    let fixture = Fixture::new();
    let pid_file = fixture.stage.path("pid");
    // A process that stays in the view, and keeps the holder alive, has no file of the program
    // open.
    let program = "setsid sh -c 'echo $$ >\"$1.new\"; mv \"$1.new\" \"$1\"; exec sleep 600' sh \"$1\" </dev/null >/dev/null \
                   2>&1 3>&- 4>&- 5>&- 9>&- & while ! test -e \"$1\"; do sleep 0.01; done";
    for view in views() {
        let command = || {
            let mut command = fixture.stage.quell_run(&fixture.index, view);
            command.args(["--strict", "--", "sh", "-c", program, "sh"]).arg(&pid_file);
            command
        };
        expect_captured(&fixture.stage, &command, &mut || {
            assert_eq!(fixture.stage.holders().len(), 1, "{view}");
            let pid = fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
            send(pid, Signal::KILL);
            fs::remove_file(&pid_file).unwrap();
            fixture.stage.expect_nothing_left();
        });
    }
}

#[test]
fn messages_of_a_mount_are_in_a_log_that_stats_names() {
    let fixture = Fixture::new();
    for view in mountable() {
        let mounted = fixture.stage.mount(&fixture.index, view, &["--quiet", "--recheck", "100"]);
        let stats =
            fixture.stage.run(fixture.stage.quell().arg("stats").arg(&mounted.point)).expect(0).text();
        let line = stats.lines().find_map(|line| line.trim().strip_prefix("messages"));
        let log = PathBuf::from(line.expect(&stats).trim());
        fs::write(fixture.tree.join("readme"), format!("changed by {view}")).unwrap();
        let messages = || fs::read_to_string(&log).unwrap();
        assert!(eventually(|| messages().contains("readme")), "{view}: {}", messages());
        mounted.umount();
        // The log can be read until the next mount at the same mount point.
        assert!(messages().contains("changed while it is covered"), "{view}");
        fs::remove_file(&log).unwrap();
        fs::write(fixture.tree.join("readme"), "hello\n").unwrap();
        fixture
            .stage
            .run(fixture.stage.quell().args(["index", "-q", "--update"]).arg(&fixture.index))
            .expect(0);
    }
}

// --- a holder that does not answer -------------------------------------------------------------

/// Returns the number of sockets of the stage, including their connections, whether accepted or
/// not.
fn sockets(stage: &Stage) -> usize {
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let runtime = stage.runtime();
    table.lines().filter(|line| line.contains(runtime.to_str().unwrap())).count()
}

#[test]
fn ranks_wait_together_for_a_holder_that_does_not_answer() {
    const RANKS: usize = 4;
    let fixture = Fixture::new();
    let view = views()[0];
    let rank = |options: &[&str]| {
        let mut command = fixture.stage.quell_run(&fixture.index, view);
        command.args(["--share", "x"]).args(options).args([
            "--",
            "sh",
            "-c",
            "echo ready; read line; exit 0",
        ]);
        command.stdin(Stdio::piped());
        command
    };
    for options in [&[][..], &["--strict"]] {
        let mut first = fixture.stage.start(&mut rank(options));
        first.wait_for_output("ready");
        let holder = fixture.stage.holder();
        send(holder, Signal::STOP);
        let begun = Instant::now();
        let mut ranks: Vec<_> = (0..RANKS).map(|_| fixture.stage.start(&mut rank(options))).collect();
        // One socket listens; the others are connections that wait for an answer.
        let (mut all_at_once, mut lasted) = (false, Vec::new());
        eventually(|| {
            all_at_once |= sockets(&fixture.stage) > RANKS;
            // Programs that run uncovered wait for a line; the others have ended.
            let is_over =
                |rank: &mut crate::stage::Running| rank.out().contains("ready") || !rank.is_running();
            let over = ranks.iter_mut().map(is_over).filter(|over| *over).count();
            lasted.resize_with(over.max(lasted.len()), || begun.elapsed());
            over == RANKS
        });
        assert_eq!(lasted.len(), RANKS, "a rank waits still");
        // If the ranks waited one after the other, they would take four times the limit.
        assert!(all_at_once || lasted[RANKS - 1] < 2 * ANSWER_TIMEOUT, "{lasted:?}");
        assert_eq!(fixture.stage.holders(), [holder], "another holder was started");
        let is_strict = !options.is_empty();
        let mut messages = 0;
        for mut rank in ranks {
            if !is_strict {
                std::io::Write::write_all(&mut rank.stdin(), b"\n").unwrap();
            }
            let ended = rank.wait().expect(if is_strict { 3 } else { 0 });
            messages += ended.err.matches("does not answer").count();
            assert_eq!(ended.out.is_empty(), is_strict);
        }
        assert_eq!(messages, 1, "the ranks of a job print it once");
        send(holder, Signal::CONT);
        // The holder was only stopped.
        let mut later = fixture.stage.start(&mut rank(options));
        later.wait_for_output("ready");
        assert_eq!(fixture.stage.holders(), [holder]);
        for mut rank in [first, later] {
            std::io::Write::write_all(&mut rank.stdin(), b"\n").unwrap();
            rank.wait().expect(0);
        }
        fixture.stage.expect_nothing_left();
    }
}

#[test]
fn a_silent_connection_delays_no_other_rank() {
    let fixture = Fixture::new();
    let view = views()[0];
    let rank = |script: &str| {
        let mut command = fixture.stage.quell_run(&fixture.index, view);
        command.args(["--strict", "--quiet", "--share", "x", "--", "sh", "-c", script]).stdin(Stdio::piped());
        command
    };
    let mut first = fixture.stage.start(&mut rank("echo ready; read line; exit 0"));
    first.wait_for_output("ready");
    let is_socket = |path: &PathBuf| path.extension().is_some_and(|e| e == "sock");
    let entries = fs::read_dir(fixture.stage.runtime()).unwrap().map(|entry| entry.unwrap().path());
    let socket = entries.into_iter().find(is_socket).unwrap();
    // Enough connections that a holder that waited for each in turn would exceed the time limit.
    let silent: Vec<UnixStream> = (0..4).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    fixture.stage.run(&mut rank("exit 7")).expect(7);
    drop(silent);
    std::io::Write::write_all(&mut first.stdin(), b"\n").unwrap();
    first.wait().expect(0);
    fixture.stage.expect_nothing_left();
}

// --- the end of a holder -----------------------------------------------------------------------

#[test]
fn a_signal_takes_a_mounted_view_away() {
    let fixture = Fixture::new();
    for view in mountable() {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let mounted = fixture.stage.mount(&fixture.index, view, &["--quiet"]);
            // Not read by this process: a program that another test starts would inherit the
            // descriptor, and keep the view in use.
            assert_eq!(fixture.stage.sh("cat \"$1/readme\"", &[&mounted.point]).expect(0).text(), "hello\n");
            send(fixture.stage.holder(), signal);
            assert!(eventually(|| fixture.stage.processes().is_empty()), "{view}, {signal:?}");
            assert!(!is_mounted(&mounted.point), "{view}, {signal:?}");
            fixture.stage.expect_nothing_left();
        }
    }
}

#[test]
fn a_mounted_view_in_use_is_detached_by_a_signal_and_served_to_its_last_user() {
    let fixture = Fixture::new();
    for view in mountable() {
        let mounted = fixture.stage.mount(&fixture.index, view, &["--quiet"]);
        let mut user = fs::File::open(mounted.point.join("lib/data")).unwrap();
        let holder = fixture.stage.holder();
        send(holder, Signal::TERM);
        assert!(eventually(|| !is_mounted(&mounted.point)), "{view}");
        // Another view can be mounted at the mount point.
        fixture.stage.run(&mut fixture.mount_command(view, &mounted.point)).expect(0);
        assert_eq!(fs::read_to_string(mounted.point.join("readme")).unwrap(), "hello\n");
        let mut bytes = Vec::new();
        user.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, trees::noise(10_000, 7), "{view}");
        let is_served = fixture.stage.holders().contains(&holder);
        assert_eq!(is_served, view != "overlay", "the kernel alone serves an overlay view");
        drop(user);
        assert!(eventually(|| !fixture.stage.holders().contains(&holder)), "{view}");
        mounted.umount();
        fixture.stage.expect_nothing_left();
    }
}

#[test]
fn a_writable_view_in_use_keeps_its_lock_after_a_signal() {
    if !is_root() {
        skip!("an ordinary user's mount is read-only");
    }
    let fixture = Fixture::new();
    // Root's overlay views at a mount point are read-only.
    for view in mountable().into_iter().filter(|view| *view == "fuse") {
        let layer = fixture.stage.dir(&format!("layer-{view}"));
        let layer = layer.to_str().unwrap();
        let mounted = fixture.stage.mount(&fixture.index, view, &["--quiet", "--writable", layer]);
        let mut user = fs::File::create(mounted.point.join("new")).unwrap();
        let holder = fixture.stage.holder();
        let log = fs::read_link(format!("/proc/{holder}/fd/2")).unwrap();
        send(holder, Signal::TERM);
        let messages = || fs::read_to_string(&log).unwrap();
        assert!(eventually(|| messages().contains("in use")), "{view}");
        assert!(is_mounted(&mounted.point), "{view}");
        let mut other = fixture.stage.quell_run(&fixture.index, view);
        other.args(["--strict", "--writable", layer, "--", "true"]);
        fixture.stage.run(&mut other).expect(3).says("in use by another view");
        std::io::Write::write_all(&mut user, b"kept").unwrap();
        drop(user);
        // The view is still unmounted when the last program has ended.
        assert!(eventually(|| fixture.stage.holders().is_empty()), "{view}");
        assert!(!is_mounted(&mounted.point), "{view}");
        assert_eq!(fs::read(Path::new(layer).join("upper/new")).unwrap(), b"kept", "{view}");
        fixture.stage.run(&mut other).expect(0);
        fs::remove_file(&log).unwrap();
        fixture.stage.expect_nothing_left();
    }
}

#[test]
fn a_second_signal_ends_a_mounted_view_in_use() {
    let fixture = Fixture::new();
    for view in mountable() {
        let mounted = fixture.stage.mount(&fixture.index, view, &["--quiet"]);
        let user = fs::File::open(mounted.point.join("lib/data")).unwrap();
        let holder = fixture.stage.holder();
        send(holder, Signal::TERM);
        assert!(eventually(|| !is_mounted(&mounted.point)), "{view}");
        send(holder, Signal::TERM);
        assert!(eventually(|| fixture.stage.processes().is_empty()), "{view}");
        drop(user);
        drop(mounted);
        // The view was in use, which the log reports.
        let _ = fs::remove_dir_all(fixture.stage.runtime());
    }
}

#[test]
fn a_signal_to_the_holder_of_a_run_leaves_its_programs_their_view() {
    let fixture = Fixture::new();
    for view in views() {
        let script = "echo ready; read line; cat \"$1/lib/deep/leaf\"; ls \"$1\"";
        let mut command = fixture.stage.quell_run(&fixture.index, view);
        command.args(["--strict", "--quiet", "--", "sh", "-c", script, "sh"]).arg(&fixture.tree);
        let mut running = fixture.stage.start(command.stdin(Stdio::piped()));
        running.wait_for_output("ready");
        send(fixture.stage.holder(), Signal::TERM);
        std::io::Write::write_all(&mut running.stdin(), b"\n").unwrap();
        assert_eq!(running.wait().expect(0).text(), "ready\nleaf\nbin\nlib\nlink\nreadme\n", "{view}");
        fixture.stage.expect_nothing_left();
    }
}

#[test]
fn a_mount_point_with_a_view_takes_no_second_one() {
    let fixture = Fixture::new();
    for view in mountable() {
        let mounted = fixture.stage.mount(&fixture.index, view, &["--quiet"]);
        let again = || fixture.stage.run(&mut fixture.mount_command(view, &mounted.point)).expect(2);
        let count = || mount_points().iter().filter(|point| **point == mounted.point).count();
        again().says("already has a view").says("quell umount");
        // The same must hold if the holder does not answer requests for its files.
        send(fixture.stage.holder(), Signal::STOP);
        again().says("already has a view").says("quell umount");
        send(fixture.stage.holder(), Signal::CONT);
        if is_root() {
            let own = fixture.stage.path(format!("nobody-{view}"));
            fs::create_dir(&own).unwrap();
            std::os::unix::fs::chown(&own, Some(65534), Some(65534)).unwrap();
            trees::set_mode(&own, 0o700);
            let mut other = fixture.stage.command("setpriv");
            other.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(crate::stage::quell());
            other.args(["mount", "--view", "fuse"]).arg(&fixture.index).arg(&mounted.point);
            let ended = fixture.stage.run(other.env("QUELL_RUNTIME_DIR", &own)).expect(2);
            ended.says("already has a view").says("quell umount");
        }
        let holder = fixture.stage.holder();
        send(holder, Signal::KILL);
        assert!(eventually(|| fixture.stage.holders().is_empty()));
        again().says("already has a view").says("quell umount");
        assert_eq!(count(), 1, "{view}");
        fixture.stage.run(fixture.stage.quell().arg("umount").arg(&mounted.point)).expect(0);
        fixture.stage.run(&mut fixture.mount_command(view, &mounted.point)).expect(0);
        assert_eq!(count(), 1, "{view}");
        mounted.umount();
        fixture.stage.expect_nothing_left();
    }
}

// --- mounting again after an unmount -----------------------------------------------------------

/// Unmounts with each of the programs that a user may use, and mounts again immediately, several
/// times.
#[track_caller]
fn expect_mounted_again(stage: &Stage, mount: &dyn Fn() -> Command, point: &Path) {
    let quell = crate::stage::quell();
    let plain = if is_root() { "umount \"$0\"" } else { "fusermount3 -u -- \"$0\"" };
    for unmount in [plain, "\"$1\" umount \"$0\""] {
        stage.run(&mut mount()).expect(0);
        for turn in 0..8 {
            let mut command = stage.command("sh");
            // A program that another test starts has this process's descriptors open until its
            // exec.
            let script = format!("until {unmount}; do sleep 0.05; done; shift; exec \"$@\"");
            let again = mount();
            command.args(["-c", &script]).arg(point).arg(&quell).arg(again.get_program());
            let ended = stage.run(command.args(again.get_args()));
            assert_eq!(ended.code(), Some(0), "{unmount}, turn {turn}: {}", ended.err);
        }
        stage.run(stage.quell().arg("umount").arg(point)).expect(0);
        assert!(!is_mounted(point));
        stage.expect_nothing_left();
    }
}

#[test]
fn a_view_is_mounted_again_right_after_it_was_unmounted() {
    let fixture = Fixture::new();
    for view in mountable() {
        let point = fixture.stage.dir(&format!("point-{view}"));
        expect_mounted_again(&fixture.stage, &|| fixture.mount_command(view, &point), &point);
    }
}

#[test]
fn a_log_is_mounted_again_right_after_it_was_unmounted() {
    let fixture = log_fixture!();
    let point = fixture.point();
    expect_mounted_again(&fixture.stage, &|| fixture.command(&[&fixture.store], &[], &point), &point);
}

/// Returns true if the process waits for a file lock.
fn waits_for_lock(pid: i32) -> bool {
    let locks = fs::read_to_string("/proc/locks").unwrap();
    let mut lines = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.any(|words| words.contains(&"->") && words.contains(&"FLOCK") && words.contains(&&*pid.to_string()))
}

/// Returns the state of a process as in proc(5); `T` is stopped.
fn state_of(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[test]
fn a_mount_waits_for_the_remains_of_a_killed_mount_command() {
    if !has("strace") {
        skip!("strace is not installed");
    }
    let fixture = log_fixture!();
    let point = fixture.point();
    let mounted = Mounted::at(&fixture.stage, point.clone());
    let mount = fixture.command(&[&fixture.store], &["--quiet"], &point);
    // Of the processes of `quell mount`, only the holder calls setsid(2), after it has received its
    // plan and the lock, and before it mounts. strace stops it there.
    let mut traced = fixture.stage.command("strace");
    let trace = fixture.stage.path("trace");
    traced.args(["-f", "-qq", "-o"]).arg(&trace);
    traced.args(["-e", "trace=setsid", "-e", "inject=setsid:signal=STOP"]);
    let mut strace = fixture.stage.start(traced.arg(mount.get_program()).args(mount.get_args()));
    let argument = |pid: i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|b| *b == 0).nth(1).map(<[u8]>::to_owned).unwrap_or_default()
    };
    // A traced process is in state `t` before the signal is delivered, too; the line in the trace
    // follows the delivery.
    let is_stopped = || fs::read_to_string(&trace).is_ok_and(|text| text.contains("stopped by SIGSTOP"));
    assert!(eventually(|| is_stopped() || !strace.is_running()));
    assert!(is_stopped(), "{}", strace.err());
    let holders = fixture.stage.holders();
    let [holder] = holders[..] else { panic!("{holders:?}") };
    let commands: Vec<i32> =
        fixture.stage.processes().into_iter().filter(|pid| argument(*pid) == b"mount").collect();
    assert_eq!(commands.len(), 1, "{commands:?}");
    send(commands[0], Signal::KILL);
    strace.signal(Signal::KILL);
    strace.wait();
    assert!(eventually(|| state_of(commands[0]).is_none_or(|state| state == 'Z')));
    assert!(eventually(|| state_of(holder).is_none_or(|state| state == 'T')));
    assert_eq!(state_of(holder), Some('T'));

    let mut second = fixture.stage.start(&mut fixture.command(&[&fixture.store], &["--quiet"], &point));
    let waits = eventually(|| waits_for_lock(second.pid()) || !second.is_running());
    assert!(waits && second.is_running(), "the second mount did not wait: {}", second.err());
    assert!(!is_mounted(&point));
    send(holder, Signal::CONT);
    let ended = second.wait();
    assert_eq!(ended.code(), Some(0), "{}", ended.err);
    assert!(eventually(|| !fixture.stage.holders().contains(&holder)));
    assert_eq!(mount_points().iter().filter(|other| **other == point).count(), 1);
    mounted.umount();
    fixture.stage.expect_nothing_left();
}
