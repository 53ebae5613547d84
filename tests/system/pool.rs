//! `quell pool`: programs use a pool of several daemons on this machine, and nothing remains when
//! it has ended.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::skip;
use crate::stage::{Ended, Stage, can_unshare, eventually, has, is_root, quell, send};
use crate::trees::{TRUNCATE_WITH_SET_ID, permissions_after_truncation};

/// A running pool, which is ended with the test, also if it fails.
pub struct Pool {
    pub stage: Stage,
    pub files: PathBuf,
}

impl Pool {
    /// Starts a pool of `daemons` daemons.
    pub fn start(daemons: u16) -> Pool {
        Pool::start_with(daemons, &[])
    }

    /// Starts a pool with further options.
    pub fn start_with(daemons: u16, options: &[&str]) -> Pool {
        let stage = Stage::new();
        let files = stage.dir("files");
        let data = stage.dir("data");
        let mut up = stage.quell();
        up.args(["pool", "up", "p", "--local", &daemons.to_string(), "--dir"]).arg(data).args(options);
        let ended = stage.run(&mut up).expect(0);
        assert_eq!((ended.text(), ended.err.as_str()), (String::new(), ""));
        Pool { stage, files }
    }

    pub fn quell(&self, arguments: &[&str]) -> Ended {
        self.stage.run(self.stage.quell().args(arguments))
    }

    /// Returns a command that runs a program with the pool in `files`.
    pub fn with_files(&self) -> Command {
        let mut command = self.stage.quell();
        command.arg("run").arg("--pool").arg(format!("p={}", self.files.display())).arg("--");
        command
    }

    /// Runs a script in the directory of the pool.
    pub fn sh(&self, script: &str) -> Ended {
        let mut command = self.with_files();
        command.args(["sh", "-c", &format!("cd \"$0\" || exit\n{script}")]).arg(&self.files);
        self.stage.run(&mut command)
    }

    /// Returns the process ids of the daemons.
    pub fn daemons(&self) -> Vec<i32> {
        let status = self.quell(&["pool", "status", "p", "--json"]).json();
        let daemons = status["daemons"].as_array().unwrap().iter();
        daemons.map(|daemon| i32::try_from(daemon["pid"].as_i64().unwrap()).unwrap()).collect()
    }

    pub fn expect_nothing_left(self) {
        self.quell(&["pool", "down", "p", "--discard"]).expect(0);
        assert_eq!(self.quell(&["pool", "ls"]).expect(0).text(), "");
        let left: Vec<_> = std::fs::read_dir(self.stage.path("data")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(std::fs::read_dir(&self.files).unwrap().count(), 0);
        self.stage.expect_nothing_left();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The pool has ended already if the test has succeeded.
        let _ = self.stage.quell().args(["-q", "pool", "down", "p", "--discard"]).output();
    }
}

pub fn is_incomplete() -> bool {
    let directory = quell();
    !directory.with_file_name("quelld").exists() || !directory.with_file_name("libquell_preload.so").exists()
}

#[test]
fn programs_share_the_files_of_a_pool() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    for daemons in [1, 3] {
        let pool = Pool::start(daemons);
        pool.sh("mkdir -p a/b && echo one >a/b/file && ln -s b/file a/link && mv a/b/file a/b/moved")
            .expect(0);
        // Another program, which is another client of the daemon.
        let found = pool.sh("cat a/b/moved; readlink a/link; ls a a/b; test -e a/link || echo dangling");
        assert_eq!(found.expect(0).text(), "one\nb/file\na:\nb\nlink\n\na/b:\nmoved\ndangling\n");
        pool.sh("mkdir a").expect(1).says("File exists");
        pool.sh("rmdir a").expect(1).says("not empty");
        pool.sh("mv a a/b/below").expect(1);
        let copied = "cp -r \"$PWD/../docs\" tree && diff -r \"$PWD/../docs\" tree && rm -r tree && ls";
        let docs = pool.stage.dir("docs");
        for number in 0..40_u8 {
            std::fs::write(docs.join(format!("{number}")), vec![number; 40_000 * usize::from(number)])
                .unwrap();
        }
        assert_eq!(pool.sh(copied).expect(0).text(), "a\n");
        pool.expect_nothing_left();
    }
}

#[test]
fn appends_of_several_processes_are_all_there() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start(2);
    let script =
        "for p in 1 2 3 4; do (for i in 1 2 3 4 5 6 7 8 9; do echo line $p $i >>log; done) & done; wait
        sort -u log | wc -l; wc -l <log";
    let counted = pool.sh(script).expect(0).text();
    assert_eq!(counted.split_ascii_whitespace().collect::<Vec<_>>(), ["36", "36"]);
    pool.expect_nothing_left();
}

#[test]
fn a_large_file_lies_in_chunks_on_all_daemons_and_can_be_truncated() {
    if is_incomplete() || !has("python3") {
        skip!("no quelld or no libquell_preload.so beside the binary, or no python3");
    }
    let pool = Pool::start(3);
    let program = r#"
import os, sys
path = sys.argv[1] + "/large"
data = os.urandom(5 << 20)
with open(path, "wb") as file:
    file.write(data)
with open(path, "r+b") as file:
    assert file.read() == data
    file.truncate(1234567)
    file.truncate(5 << 20)
    file.seek(0)
    assert file.read() == data[:1234567] + bytes((5 << 20) - 1234567)
    os.unlink(path)
    file.seek(0)
    assert file.read(10) == data[:10], "an open file keeps its data"
"#;
    let files = pool.files.clone();
    let chunks = |pool: &Pool| -> Vec<usize> {
        let base = std::fs::read_dir(pool.stage.path("data")).unwrap().next().unwrap().unwrap().path();
        let count =
            |number: u8| std::fs::read_dir(base.join(format!("{number}/{number}/chunks"))).unwrap().count();
        (0..3).map(count).collect()
    };
    pool.stage.run(pool.with_files().args(["python3", "-c", program]).arg(&files)).expect(0);
    assert!(
        eventually(|| chunks(&pool) == [0, 0, 0]),
        "{:?}: the chunks of the file are removed",
        chunks(&pool)
    );
    pool.sh("head -c 9000000 /dev/zero >zeros").expect(0);
    assert!(chunks(&pool).iter().all(|count| *count > 0), "{:?}", chunks(&pool));
    pool.expect_nothing_left();
}

#[test]
fn a_pool_with_files_is_not_ended_by_accident_and_names_are_checked() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start(1);
    pool.sh("touch file").expect(0);
    pool.quell(&["pool", "down", "p"]).expect(1).says("--discard").says("stage-out p:/ DIR");
    pool.quell(&["pool", "up", "p", "--local", "1"]).expect(2).says("exists");
    pool.quell(&["pool", "up", "../p", "--local", "1"]).expect(2).says("is not a valid name for a pool");
    pool.quell(&["pool", "status", "other"]).expect(2).says("there is no pool other");
    pool.quell(&["run", "--pool", "other", "--", "true"]).expect(2).says("there is no pool other");
    pool.quell(&["pool", "up", "q", "--local", "1", "--dir", "/nonexistent"]).expect(2);
    assert_eq!(pool.quell(&["pool", "ls"]).expect(0).text(), "p  1 daemon\n");
    // Without a directory the program finds the pool by a variable.
    let own = pool.quell(&["run", "--pool", "p", "--", "sh", "-c", "ls \"$QUELL_POOL_DIR\""]).expect(0);
    assert_eq!(own.text(), "file\n");
    pool.expect_nothing_left();
}

#[test]
fn the_end_of_a_daemon_is_an_error_and_not_a_hang() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start(3);
    pool.sh("for i in 0 1 2 3 4 5 6 7 8 9; do echo $i >$i; done").expect(0);
    // The killed daemon is neither the one to which programs connect, nor the one with the root
    // directory.
    send(pool.daemons()[1], Signal::KILL);
    // A listing needs all daemons.
    let listed = pool.sh("ls");
    assert_ne!(listed.code(), Some(0), "{}", listed.text());
    // Files on the other daemons can be read.
    let read = pool.sh("for i in 0 1 2 3 4 5 6 7 8 9; do cat $i 2>/dev/null; done; true").expect(0);
    let count = read.text().lines().count();
    assert!((1..10).contains(&count), "{count} of 10 files");
    pool.quell(&["pool", "status", "p"]).expect(1);
    pool.expect_nothing_left();
}

#[test]
fn a_mounted_pool_serves_all_programs_and_has_the_files_of_programs_with_the_library() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start(2);
    let point = pool.stage.dir("point");
    let name = point.to_str().unwrap();
    let mounted = pool.quell(&["mount", "--pool", "p", name]).expect(0);
    assert_eq!((mounted.text(), mounted.err.as_str()), (String::new(), ""));
    let script = "cd \"$1\" && mkdir d && echo one >d/file && cp /bin/sh d/sh && d/sh -c 'cat d/file; ls d'";
    assert_eq!(pool.stage.sh(script, &[&point]).expect(0).text(), "one\nfile\nsh\n");
    assert_eq!(pool.sh("cat d/file; echo two >d/second").expect(0).text(), "one\n");
    assert_eq!(pool.stage.sh("cat \"$1/d/second\"", &[&point]).expect(0).text(), "two\n");
    let with_mount = pool.stage.sh(TRUNCATE_WITH_SET_ID, &[&point]).expect(0);
    let with_library = pool.sh(&format!("set -- .; {TRUNCATE_WITH_SET_ID}")).expect(0);
    let expected = permissions_after_truncation();
    assert_eq!((with_mount.text().as_str(), with_library.text().as_str()), (expected, expected));
    let report = pool.quell(&["stats", "--json", name]).expect(0).json();
    assert_eq!(report[0]["pool"]["name"], "p", "{report}");
    pool.quell(&["umount", name]).expect(0);
    pool.expect_nothing_left();
}

#[test]
fn files_of_a_pool_have_extended_attributes() {
    if is_incomplete() || !has("python3") {
        skip!("no quelld or no libquell_preload.so beside the binary, or no python3");
    }
    let pool = Pool::start(2);
    let program = r#"
import errno, os, sys
def refused(number, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == number, (errno.errorcode[error.errno], arguments)
    else:
        raise Exception("not refused", arguments)
os.chdir(sys.argv[1])
assert os.getxattr("../" + os.path.basename(os.getcwd()) + "/dir/old", "user.old") == b"kept"
os.rename("dir/old", "new")
assert os.listxattr("new") == ["user.old"]
os.rename("new", "dir/old")
file = os.open("file", os.O_CREAT | os.O_RDWR)
for of in ["file", file, "dir"]:
    refused(errno.ENODATA, os.getxattr, of, "user.a")
    refused(errno.ENODATA, os.setxattr, of, "user.a", b"", os.XATTR_REPLACE)
    os.setxattr(of, "user.a", b"1", os.XATTR_CREATE)
    refused(errno.EEXIST, os.setxattr, of, "user.a", b"2", os.XATTR_CREATE)
    os.setxattr(of, "user.b", b"x" * 65536)
    refused(errno.E2BIG, os.setxattr, of, "user.c", b"x" * 65537)
    refused(errno.ERANGE, os.setxattr, of, "user." + "n" * 251, b"")
    refused(errno.ENOSPC, os.setxattr, of, "user.c", b"x" * 65536)
    refused(errno.EOPNOTSUPP, os.setxattr, of, "unknown", b"")
    assert os.getxattr(of, "user.a") == b"1" and os.getxattr(of, "user.b") == b"x" * 65536
    assert sorted(os.listxattr(of)) == ["user.a", "user.b"]
    os.removexattr(of, "user.a")
    refused(errno.ENODATA, os.removexattr, of, "user.a")
    assert os.listxattr(of) == ["user.b"]
    os.removexattr(of, "user.b")
os.symlink("file", "link")
refused(errno.EPERM, lambda: os.setxattr("link", "user.a", b"1", follow_symlinks=False))
os.setxattr("link", "user.a", b"by link")
assert os.getxattr("file", "user.a") == b"by link"
os.unlink("link")
os.unlink("file")
assert os.getxattr(file, "user.a") == b"by link", "an open file keeps its attributes"
"#;
    let set = "mkdir dir && touch dir/old && python3 -c 'import os; os.setxattr(\"dir/old\", \"user.old\", b\"kept\")'";
    pool.sh(set).expect(0);
    let files = pool.files.clone();
    pool.stage.run(pool.with_files().args(["python3", "-c", program]).arg(&files)).expect(0);
    // The same through a mount.
    let point = pool.stage.dir("point");
    let name = point.to_str().unwrap();
    pool.quell(&["mount", "--pool", "p", name]).expect(0);
    pool.stage.run(pool.stage.command("python3").args(["-c", program]).arg(&point)).expect(0);
    pool.quell(&["umount", name]).expect(0);
    pool.expect_nothing_left();
}

#[test]
fn with_consistency_commit_sizes_are_visible_after_a_close() {
    if is_incomplete() || !has("python3") {
        skip!("no quelld or no libquell_preload.so beside the binary, or no python3");
    }
    let stage = Stage::new();
    let (files, data) = (stage.dir("files"), stage.dir("data"));
    let mut up = stage.quell();
    up.args(["pool", "up", "p", "--local", "3", "--consistency", "commit", "--chunk-kib", "4", "--dir"]);
    stage.run(up.arg(data)).expect(0);
    let pool = Pool { stage, files };
    assert_eq!(pool.quell(&["pool", "status", "p", "--json"]).expect(0).json()["consistency"], "commit");
    assert!(pool.quell(&["pool", "status", "p"]).expect(0).text().contains("consistency commit"));
    // Each process writes its own blocks of one file. The last of 200 chunks is probably not on the
    // daemon of the attributes, so its size is sent.
    let program = r#"
import os, sys
rank, path = int(sys.argv[1]), sys.argv[2] + "/shared"
file = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
for block in range(rank, 200, 4):
    os.pwrite(file, bytes([rank + 1]) * 4096, block * 4096)
    assert os.fstat(file).st_size >= (block + 1) * 4096, "a process sees its own size"
    assert os.pread(file, 4096, block * 4096) == bytes([rank + 1]) * 4096
if rank == 0:
    os._exit(0)
os.close(file)
"#;
    let script = pool.stage.file("program.py", program);
    let run = format!(
        "for rank in 0 1 2 3; do python3 {} $rank \"$PWD\" || echo failed & done; wait; wc -c <shared",
        script.display()
    );
    assert_eq!(pool.sh(&run).expect(0).text().trim(), "819200");
    let check = "import sys; data = open(sys.argv[1] + '/shared', 'rb').read()\n\
        assert all(data[n * 4096:(n + 1) * 4096] == bytes([n % 4 + 1]) * 4096 for n in range(200))";
    pool.stage.run(pool.with_files().args(["python3", "-c", check]).arg(&pool.files)).expect(0);
    // cp -p sets the times before it closes the copy.
    pool.sh(
        "touch -d 2001-02-03 shared && cp -p shared copy && test ! copy -nt shared && test ! copy -ot shared",
    )
    .expect(0);
    pool.expect_nothing_left();
}

/// Returns the memory of all tmpfs and all shared mappings on this machine, in bytes.
fn shared_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Shmem:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_pool_in_memory_has_a_limit_and_leaves_nothing_when_it_is_killed() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let stage = Stage::new();
    let (files, _data) = (stage.dir("files"), stage.dir("data"));
    let up = ["pool", "up", "p", "--local", "1", "--memory", "512M"];
    let started = stage.run(stage.quell().args(up));
    if started.code() == Some(3) && started.err.contains("cannot create a file system in memory") {
        skip!("this machine permits no mounts in namespaces: {}", started.err);
    }
    started.expect(0);
    let pool = Pool { stage, files };
    let status = pool.quell(&["pool", "status", "p", "--json"]).expect(0).json();
    // Seven eighths of the memory of each daemon are for data.
    assert_eq!(status["total_bytes"], 448_u64 << 20, "{status}");
    assert_eq!(
        (&status["daemons"][0]["directory"], &status["daemons"][0]["memory_bytes"]),
        (&serde_json::Value::Null, &(512_u64 << 20).into())
    );
    pool.sh("head -c 100000 /dev/urandom >a && cp a b && cmp a b && mkdir d && mv b d && ls d").expect(0);
    // A full pool refuses data, keeps the old data, and has space again after a removal.
    pool.sh("head -c 500000000 /dev/zero >large").expect(1).says("No space left");
    pool.sh("cp a small").expect(1).says("No space left");
    assert_eq!(
        pool.sh("cmp a d/b && rm large small && echo text >small && cat small").expect(0).text(),
        "text\n"
    );
    pool.sh("head -c 300000000 /dev/zero >large").expect(0);
    let before = shared_memory();
    assert!(before > 300_000_000, "{before}");
    for daemon in pool.daemons() {
        send(daemon, Signal::KILL);
    }
    assert!(eventually(|| shared_memory() + 200_000_000 < before), "{before}, now {}", shared_memory());
    pool.expect_nothing_left();
}

/// Runs below a private tmpfs of 400 MiB, which is the disk of one daemon.
const FULL_DISK: &str = r#"
mount -t tmpfs -o size=400m none "$2"
"$1" pool up full --quiet --local 1 --dir "$2"
trap '"$1" -q pool down full --discard' EXIT
run() { "$1" run --quiet --pool "full=$3" -- sh -c "cd \"\$0\" || exit; $4" "$3"; }
run "$1" "$2" "$3" 'head -c 100000 /dev/urandom >kept && cp kept large && head -c 2000 kept >small &&
  for n in 1 2 3 4 5 6 7 8; do head -c 1000 kept >small$n || exit; done'
# Another program takes the rest of the disk, to the last byte.
head -c 500000000 /dev/zero >"$2/other" 2>/dev/null || true
run "$1" "$2" "$3" 'for n in $(seq 400); do cp kept "copy$n" || exit; done' && exit 9
run "$1" "$2" "$3" 'cmp -n 2000 kept small && truncate -s 100 small && truncate -s 10 large &&
  : >small1 && rm small2 large && wc -c <small && ls | grep -c "^small"'
run "$1" "$2" "$3" 'echo text >new' && exit 8
rm "$2/other"
run "$1" "$2" "$3" 'rm -f copy* && cat kept kept >new && cmp -n 100000 kept new && wc -c <new'
"#;

#[test]
fn a_full_disk_refuses_data_and_permits_removal_and_truncation() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let stage = Stage::new();
    if !can_unshare(&stage) {
        skip!("no user namespaces");
    }
    let (data, files) = (stage.dir("data"), stage.dir("files"));
    let mut command = stage.command("unshare");
    command.args(["-U", "-r", "-m", "sh", "-ec", FULL_DISK, "sh"]).arg(quell()).args([&data, &files]);
    let ended = stage.run(&mut command).expect(0);
    assert_eq!(ended.text(), "100\n8\n200000\n", "{}", ended.err);
    ended.says("No space left");
    stage.expect_nothing_left();
}

#[test]
fn other_users_cannot_use_a_pool() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    if !is_root() {
        skip!("asking as another user needs root");
    }
    let pool = Pool::start(1);
    let socket = pool.stage.runtime().join("pools/p/0");
    let connect = "use Socket; socket(S, PF_UNIX, SOCK_STREAM, 0) || die;
        connect(S, sockaddr_un($ARGV[0])) || do { print STDERR \"$!\\n\"; exit 1 }";
    let as_other = |path: &Path| {
        let mut command = pool.stage.command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "perl", "-e", connect]).arg(path);
        pool.stage.run(&mut command)
    };
    as_other(&socket).expect(1).says("Permission denied");
    pool.expect_nothing_left();
}

#[test]
fn the_map_of_a_file_names_the_daemons_that_have_its_data() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start(3);
    pool.sh("head -c 10000001 /dev/zero | tr '\\0' x >file").expect(0);
    let map = pool.quell(&["pool", "map", "p:/file", "--json"]).expect(0);
    let lines: Vec<serde_json::Value> =
        map.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["part"], "attributes");
    let mut end = 0;
    let mut bytes = [0; 3];
    for line in &lines[1..] {
        assert_eq!((&line["part"], line["start"].as_u64().unwrap()), (&"data".into(), end));
        end = line["end"].as_u64().unwrap();
        bytes[line["daemon"].as_u64().unwrap() as usize] += end - line["start"].as_u64().unwrap();
    }
    assert_eq!(end, 10_000_001);
    assert!(bytes.iter().all(|bytes| *bytes > 0), "20 chunks are on one daemon only: {bytes:?}");
    // The space that the local files use, in which the chunks of other daemons are holes.
    let status = pool.quell(&["pool", "status", "p", "--json"]).json();
    for (daemon, bytes) in status["daemons"].as_array().unwrap().iter().zip(bytes) {
        let chunks = Path::new(daemon["directory"].as_str().unwrap())
            .join(daemon["number"].to_string())
            .join("chunks");
        let used: u64 = std::fs::read_dir(chunks)
            .unwrap()
            .map(|file| std::os::unix::fs::MetadataExt::blocks(&file.unwrap().metadata().unwrap()) * 512)
            .sum();
        assert!((bytes..bytes + (64 << 10)).contains(&used), "{used} bytes are used for {bytes}");
    }
    let table = pool.quell(&["pool", "map", "p:/file"]).expect(0).text();
    assert_eq!(table.lines().count(), lines.len() + 1);
    // The data of a small file is beside its attributes.
    pool.sh("echo small >small").expect(0);
    let map = pool.quell(&["pool", "map", "p:/small", "--json"]).expect(0);
    let lines: Vec<serde_json::Value> =
        map.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[1]["end"], &lines[1]["daemon"]), (&6.into(), &lines[0]["daemon"]));
    assert_eq!(lines.len(), 2);
    pool.sh("mkdir dir").expect(0);
    assert_eq!(pool.quell(&["pool", "map", "p:/dir"]).expect(0).text().lines().count(), 1);
    pool.quell(&["pool", "map", "p:/missing"]).expect(2).says("there is no such file");
    pool.expect_nothing_left();
}
