//! Tests that need separate processes: a server that is killed, an ordinary user, a user namespace.
//! The server is this test program, started again with its task in the environment (see `child`).

mod memory;
mod mounted;
mod watched;

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use memory::{Content, Memory, ROOT};
use quell_fuse::Options;
use quell_vfs::FileSystem;

const ORDER: &str = "QUELL_FUSE_TEST_ORDER";
const MOUNTPOINT: &str = "QUELL_FUSE_TEST_MOUNTPOINT";
const NOBODY: u32 = 65534;
const ENOTCONN: i32 = 107;
const ECONNABORTED: i32 = 103;

/// The time limit that detects a hang. No test takes this long, even on a busy machine.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// Not a test, but a program that the tests below start.
#[test]
#[ignore = "a program that tests start"]
fn child() {
    let order = std::env::var(ORDER).expect("started by a test, which sets the variable");
    let mountpoint = std::env::var_os(MOUNTPOINT).expect("started by a test, which sets the variable");
    let mountpoint = Path::new(&mountpoint);
    let say = |line: &str| {
        println!("\n{line}"); // after the test runner's unfinished line
        io::stdout().flush().unwrap();
    };
    match order.as_str() {
        "serve" | "serve for others" | "serve to write" => {
            let options = Options { allow_other: order.ends_with("others"), ..Options::default() };
            let fs: Arc<dyn FileSystem> =
                if order.ends_with("write") { watched::Watched::new().0 } else { Arc::new(tree()) };
            match quell_fuse::mount_at(fs, mountpoint, &options) {
                Ok(session) => {
                    say("READY");
                    session.join().unwrap();
                    say("UNMOUNTED");
                }
                Err(error) => say(&format!("REFUSED {error}")),
            }
        }
        "detached" => match quell_fuse::mount_detached(Arc::new(tree()), &Options::default()) {
            Ok((mount, session)) => {
                let anchor = format!("/proc/self/fd/{}/dir/file", std::os::fd::AsRawFd::as_raw_fd(&mount));
                assert_eq!(fs::read(anchor).unwrap(), b"content", "used while attached nowhere");
                use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};
                let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
                move_mount(&mount, "", rustix::fs::CWD, mountpoint, flags).unwrap();
                drop(mount);
                assert_eq!(fs::read(mountpoint.join("dir/file")).unwrap(), b"content");
                let stat = fs::metadata(mountpoint.join("dir/file")).unwrap();
                assert_eq!(stat.uid(), rustix::process::geteuid().as_raw());
                assert_eq!(session.counters().snapshot().negative_lookups, 0);
                unmount(mountpoint, UnmountFlags::empty()).unwrap();
                session.join().unwrap();
                say("DETACHED WORKS");
            }
            Err(error) => say(&format!("REFUSED {error}")),
        },
        other => panic!("no such order: {other}"),
    }
}

fn tree() -> Memory {
    let mut memory = Memory::new();
    let dir = memory.dir(ROOT, "dir");
    memory.file(dir, "file", b"content");
    memory.file_with(ROOT, "large", 64 << 20, Content::Pattern);
    memory
}

/// Ends the test with a `SKIPPED:` line if the user that the command prefix changes to cannot
/// mount.
macro_rules! can_mount {
    ($before:expr) => {
        if let Some(reason) = mounted::why_no_mounts($before) {
            println!("SKIPPED: {reason}");
            return;
        }
    };
}

/// A directory that all users can reach, with a copy of this program that all users can run.
struct Stage {
    dir: tempfile::TempDir,
}

impl Stage {
    fn new() -> Stage {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // Copied by another process: a child started by a concurrent test could inherit a
        // descriptor open for writing, and a program open for writing cannot be executed.
        let program = std::env::current_exe().unwrap();
        assert!(Command::new("cp").arg(program).arg(dir.path().join("program")).status().unwrap().success());
        fs::create_dir(dir.path().join("view")).unwrap();
        Stage { dir }
    }

    fn view(&self) -> PathBuf {
        self.dir.path().join("view")
    }

    /// Returns the command that runs this program as `child`, prefixed by `before` (a command and
    /// its arguments).
    fn command(&self, before: &[&str], order: &str) -> Command {
        let program = self.dir.path().join("program");
        let mut words = before.iter().map(|word| word.as_ref()).chain([program.as_os_str()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(["--exact", "child", "--ignored", "--nocapture"]);
        command.env(ORDER, order).env(MOUNTPOINT, self.view()).stdout(Stdio::piped());
        command
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        unmount(&self.view()); // a failed test may have left it mounted
    }
}

/// A running child, whose output is read with a time limit; killed when dropped.
struct Server {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Server {
    fn start(mut command: Command) -> Server {
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || output.lines().try_for_each(|line| sender.send(line.unwrap())));
        Server { child, lines }
    }

    /// Returns the next line in capitals. Only `child` prints such lines; the test runner does not.
    fn says(&self) -> String {
        loop {
            let line = self.lines.recv_timeout(HANG_TIMEOUT).expect("the child says something");
            if line.starts_with(|first: char| first.is_ascii_uppercase()) {
                return line;
            }
        }
    }

    fn end(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `ask` in another thread and fails if it hangs.
fn promptly<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, answer) = mpsc::channel();
    thread::spawn(move || sender.send(ask()));
    answer.recv_timeout(HANG_TIMEOUT).expect("no hang")
}

fn unmount(mountpoint: &Path) {
    let _ = rustix::mount::unmount(mountpoint, rustix::mount::UnmountFlags::DETACH);
    let _ = Command::new("fusermount3").arg("-uzq").arg(mountpoint).status();
}

#[test]
fn a_killed_server_causes_errors_and_blocks_no_program() {
    let stage = Stage::new();
    can_mount!(&[]);
    let mut server = Server::start(stage.command(&[], "serve"));
    assert_eq!(server.says(), "READY");
    let view = stage.view();
    assert_eq!(fs::read(view.join("dir/file")).unwrap(), b"content");
    let mut open = fs::File::open(view.join("large")).unwrap();
    open.read_exact(&mut [0; 10]).unwrap();

    // Killed with requests in flight from eight readers that bypass the cache.
    let readers: Vec<_> = (0..8)
        .map(|n| {
            let path = view.join("large");
            thread::spawn(move || {
                use std::os::unix::fs::FileExt;
                let mut at = n;
                loop {
                    let attributes = fs::metadata(path.with_file_name(format!("missing-{n}-{at}")));
                    let read =
                        fs::File::open(&path).and_then(|f| f.read_at(&mut [0; 4096], (at % 999) * 65536));
                    let error =
                        attributes.err().filter(|e| e.kind() != io::ErrorKind::NotFound).or(read.err());
                    if let Some(error) = error {
                        return error.raw_os_error().unwrap();
                    }
                    at += 1;
                }
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(50));
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    for reader in readers {
        let number = promptly(move || reader.join().unwrap());
        assert!([ENOTCONN, ECONNABORTED, 5].contains(&number), "{number}");
    }
    let name = view.join("not looked up before");
    let number = promptly(move || fs::metadata(name).unwrap_err().raw_os_error());
    assert_eq!(number, Some(ENOTCONN));
    let number = promptly({
        let path = view.join("dir/file");
        move || fs::File::open(path).unwrap_err().raw_os_error()
    });
    assert_eq!(number, Some(ENOTCONN));
    unmount(&view);
    fs::metadata(&view).unwrap();
}

#[test]
fn a_program_started_by_the_server_does_not_keep_the_connection() {
    let stage = Stage::new();
    can_mount!(&[]);
    let session = quell_fuse::mount_at(Arc::new(tree()), &stage.view(), &Options::default()).unwrap();
    let fds = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    assert!(!String::from_utf8(fds.stdout).unwrap().contains("/dev/fuse"));
    drop(session);
}

/// Returns the command prefix for an ordinary user: empty if the test runs as one, otherwise a
/// change to user 65534.
fn as_ordinary_user(stage: &Stage) -> Vec<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    chown(stage.view(), Some(NOBODY), Some(NOBODY)).unwrap();
    vec!["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
}

#[test]
fn an_ordinary_user_mounts_with_fusermount3() {
    let stage = Stage::new();
    let before = as_ordinary_user(&stage);
    let root = !before.is_empty();
    can_mount!(&before);
    let server = Server::start(stage.command(&before, "serve"));
    assert_eq!(server.says(), "READY");
    let read = {
        let mut words = before.clone();
        words.push("cat");
        Command::new(words[0]).args(&words[1..]).arg(stage.view().join("dir/file")).output().unwrap()
    };
    assert_eq!(read.stdout, b"content");
    if root {
        let denied = fs::metadata(stage.view()).unwrap_err();
        assert_eq!(denied.raw_os_error(), Some(13), "not even root is let in without allow_other");
    }
    let mut words = before.clone();
    words.extend(["fusermount3", "-u"]);
    assert!(Command::new(words[0]).args(&words[1..]).arg(stage.view()).status().unwrap().success());
    assert_eq!(server.says(), "UNMOUNTED");
    assert!(server.end().success());
}

#[test]
fn an_ordinary_user_writes_through_fusermount3() {
    let stage = Stage::new();
    let before = as_ordinary_user(&stage);
    can_mount!(&before);
    let server = Server::start(stage.command(&before, "serve to write"));
    assert_eq!(server.says(), "READY");
    let script = "cd \"$0\" && mkdir dir && echo one > dir/file && echo two >> dir/file && mv dir/file . && rmdir dir \
                  && chmod 640 file && touch -d @1000 file && stat -c '%a %s %Y %u' file && cat file && id -u";
    let mut words = before.clone();
    words.extend(["sh", "-c", script]);
    let ran = Command::new(words[0]).args(&words[1..]).arg(stage.view()).output().unwrap();
    let said = String::from_utf8(ran.stdout).unwrap();
    let id = said.lines().last().expect("a user");
    assert_eq!(said, format!("640 8 1000 {id}\none\ntwo\n{id}\n"), "{:?}", String::from_utf8(ran.stderr));
    let mut words = before.clone();
    words.extend(["fusermount3", "-u"]);
    assert!(Command::new(words[0]).args(&words[1..]).arg(stage.view()).status().unwrap().success());
    assert_eq!(server.says(), "UNMOUNTED");
    assert!(server.end().success());
}

#[test]
fn allow_other_without_permission_fails_with_advice() {
    let conf = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if conf.lines().any(|line| line.trim() == "user_allow_other") {
        println!("SKIPPED: /etc/fuse.conf has user_allow_other");
        return;
    }
    let stage = Stage::new();
    let before = as_ordinary_user(&stage);
    can_mount!(&before);
    let server = Server::start(stage.command(&before, "serve for others"));
    let said = server.says();
    assert!(said.starts_with("REFUSED mount on ") && said.contains("Permission denied"), "{said}");
    assert!(said.contains("/etc/fuse.conf has the line user_allow_other"), "{said}");
}

#[test]
fn a_detached_mount_works_in_a_name_space_of_root() {
    detached_in(&["unshare", "-Urm"]);
}

#[test]
fn a_detached_mount_works_in_a_name_space_of_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        return detached_in(&["unshare", "-Urm"]);
    }
    // If only root may open /dev/fuse, a mount namespace for this process alone shows a device that
    // all users may open.
    let script = "node=$0.fuse; mknod \"$node\" c 10 229 && chmod 666 \"$node\" && \
                  mount --bind \"$node\" /dev/fuse && \
                  exec setpriv --reuid=65534 --regid=65534 --clear-groups unshare -Urm \"$0\" \"$@\"";
    detached_in(&["unshare", "-m", "sh", "-c", script]);
}

fn detached_in(before: &[&str]) {
    let stage = Stage::new();
    if let Err(error) = Command::new("unshare").args(["-Urm", "true"]).output().and_then(|ran| {
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        if ran.status.success() { Ok(()) } else { Err(io::Error::other(said)) }
    }) {
        println!("SKIPPED: no user namespaces: {error}");
        return;
    }
    // `before` may create the device that the user sees, so the check opens it there.
    let opens = stage.dir.path().join("opens");
    fs::write(&opens, "#!/bin/sh\n: <>/dev/fuse\n").unwrap();
    fs::set_permissions(&opens, fs::Permissions::from_mode(0o755)).unwrap();
    let opened = Command::new(before[0]).args(&before[1..]).arg(&opens).output().unwrap();
    if !opened.status.success() {
        println!("SKIPPED: /dev/fuse cannot be opened in a user namespace: {opened:?}");
        return;
    }
    let server = Server::start(stage.command(before, "detached"));
    assert_eq!(server.says(), "DETACHED WORKS");
    assert!(server.end().success());
}
