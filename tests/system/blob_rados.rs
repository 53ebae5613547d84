//! `quell blob serve --rados`: servers of a store in a real Ceph that replace each other
//! (`testbed/cephfs`).

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;

use crate::blob_files::{FILES, can_mount};
use crate::blob_languages::{libraries, python};
use crate::skip;
use crate::stage::{Mounted, Running, Stage, checkout, eventually, is_root, quell, send};

pub const POOL: &str = "rados://blob/system";

/// A Ceph with three OSDs on this machine, which is stopped on drop.
pub struct Ceph<'a> {
    stage: &'a Stage,
    script: PathBuf,
    directory: PathBuf,
}

impl<'a> Ceph<'a> {
    /// Returns `None` if no Ceph can run on this machine.
    pub fn start(stage: &'a Stage) -> Option<Ceph<'a>> {
        let has = |path: &str| Path::new(path).exists();
        if !is_root() || !has("/usr/bin/dpkg") || !has("/dev/fuse") {
            println!(
                "SKIPPED: a Ceph in a network namespace needs root, /dev/fuse and Debian's ceph packages"
            );
            return None;
        }
        let ceph = Ceph { stage, script: checkout().join("testbed/cephfs"), directory: stage.path("ceph") };
        ceph.call(&["up", "1"]);
        ceph.call(&["exec", "ceph", "osd", "pool", "create", "blob", "8"]);
        Some(ceph)
    }

    pub fn call(&self, words: &[&str]) {
        let mut command = Command::new(&self.script);
        let output = command.args(words).env("TESTBED", &self.directory).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "cephfs {words:?}: {error}");
    }

    /// Returns the command of a program in the network of the cluster.
    pub fn inside(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.stage.command(&self.script);
        command.env("TESTBED", &self.directory).arg("exec").arg(program);
        command
    }

    /// Returns the process id of a server of the cluster, such as `osd0`.
    pub fn process(&self, name: &str) -> i32 {
        let line = fs::read_to_string(self.directory.join("run").join(name)).unwrap();
        line.split(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until each object has its two copies, so that the death of one OSD loses no object. An
    /// OSD that the others took for dead for a moment lacks the data that was written meanwhile.
    pub fn wait_until_it_is_clean(&self) {
        let ask = |words: &[&str]| {
            let output = self.inside("ceph").args(words).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        // The states of placement groups come from the OSDs, which report them at intervals.
        for disk in ["0", "1", "2"] {
            let number = |text: String| text.trim().parse::<u64>().unwrap_or(0);
            let mut reported = 0;
            let has_reported = || {
                reported = number(ask(&["tell", &format!("osd.{disk}"), "flush_pg_stats"]));
                reported > 0
            };
            assert!(eventually(has_reported));
            assert!(eventually(|| number(ask(&["osd", "last-stat-seq", disk])) >= reported));
        }
        let is_clean = || {
            let Ok(found) = serde_json::from_str::<Value>(&ask(&["pg", "dump", "pgs_brief", "-f", "json"]))
            else {
                return false;
            };
            let groups = found["pg_stats"].as_array().expect("the placement groups");
            groups.iter().all(|group| {
                let state = group["state"].as_str().unwrap();
                let up = group["up"].as_array().unwrap();
                state.starts_with("active+clean") && up.len() == 2
            })
        };
        assert!(eventually(is_clean), "the cluster does not get clean");
    }

    /// Returns `quell blob` with arguments, in the network of the cluster.
    pub fn blob(&self, arguments: &[&dyn AsRef<OsStr>]) -> Command {
        let mut command = self.inside(quell());
        command.arg("blob");
        arguments.iter().for_each(|argument| _ = command.arg(argument));
        command
    }

    /// Starts a server with a directory of its own, as if it were on another machine.
    pub fn serve(&self, directory: &Path, options: &[&str]) -> Running {
        self.serve_pool(POOL, directory, options)
    }

    /// Does the same for a store in a pool.
    fn serve_pool(&self, pool: &str, directory: &Path, options: &[&str]) -> Running {
        let listen: &[&dyn AsRef<OsStr>] =
            &[&"serve", &directory, &"--rados", &pool, &"--json", &"--listen", &"127.0.0.1:0"];
        self.stage.start(self.blob(listen).args(options))
    }

    /// Returns the directory of a server, with a copy of the key.
    pub fn directory(&self, name: &str, key: &Path) -> PathBuf {
        let directory = self.stage.dir(name);
        crate::trees::set_mode(&directory, 0o700);
        fs::copy(key, directory.join("key")).unwrap();
        directory
    }
}

impl Drop for Ceph<'_> {
    fn drop(&mut self) {
        let _ = Command::new(&self.script).arg("down").env("TESTBED", &self.directory).status();
    }
}

pub fn wait_until_it_serves(server: &mut Running) {
    server.wait_for_output("\n");
}

#[test]
fn servers_of_a_store_in_ceph_replace_each_other() {
    let stage = Stage::new();
    let Some(ceph) = Ceph::start(&stage) else { return };
    let first_directory = stage.path("first");
    let key = first_directory.join("key");
    let store = format!("{POOL}?key={}", key.display());
    let run = |arguments: &[&dyn AsRef<OsStr>]| stage.run(&mut ceph.blob(arguments));
    let add = |amount: &str| run(&[&"add", &store, &"sum", &"0", &amount]).expect(0);
    let client = |words: &[&str]| -> Vec<String> { words.iter().map(ToString::to_string).collect() };

    let begin = Instant::now();
    let mut first = ceph.serve(&first_directory, &[]);
    wait_until_it_serves(&mut first);
    add("1");
    println!("the first commit to a new store: {:?} after the start of its server", begin.elapsed());
    let data: Vec<u8> = (0..5_000_000_u32).map(|index| (index * 7 / 5) as u8).collect();
    let file = stage.file("data", &data);
    run(&[&"put", &store, &file]).expect(0);

    // One server that waits for the first one to end, and one that does not.
    let second_directory = ceph.directory("second", &key);
    let mut second = ceph.serve(&second_directory, &["--standby"]);
    let third_directory = ceph.directory("third", &key);
    ceph.serve(&third_directory, &[]).wait().expect(3).says("another server at 127.0.0.1");
    run(&[&"fsck", &POOL]).expect(3).says("another server");
    assert!(second.out().is_empty());

    // A client that is connected to the first server, and others that come and go.
    let mut connected = stage.start(ceph.blob(&[&"put", &store, &"-", &"late"]).stdin(Stdio::piped()));
    let mut input = connected.stdin();
    input.write_all(&data).unwrap();
    let adders: Vec<Running> = (0..3)
        .map(|_| {
            let script =
                "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do \"$@\" || exit 1; done";
            let words = client(&["exec", quell().to_str().unwrap(), "blob", "add", &store, "sum", "0", "1"]);
            let mut command = stage.command("sh");
            command.args(["-c", script, "sh"]).arg(&ceph.script).args(words);
            stage.start(command.env("TESTBED", &ceph.directory))
        })
        .collect();
    assert!(eventually(|| adders.iter().any(|adder| adder.out().lines().count() >= 3)));
    let begin = Instant::now();
    first.signal(Signal::KILL);
    add("1");
    println!("the next commit with a standby: {:?} after the kill", begin.elapsed());
    drop(input);
    connected.wait().expect(0);
    adders.into_iter().for_each(|adder| _ = adder.wait().expect(0));
    assert_eq!(add("0").text(), "62\n");
    for name in ["data", "late"] {
        let copy = stage.path(format!("{name}.copy"));
        run(&[&"get", &store, &name, &copy]).expect(0);
        assert!(fs::read(&copy).unwrap() == data, "{name}");
    }
    wait_until_it_serves(&mut second);

    // A server that is stopped, and goes on when another one has replaced it.
    second.signal(Signal::STOP);
    let mut third = ceph.serve(&third_directory, &[]);
    wait_until_it_serves(&mut third);
    add("1");
    second.signal(Signal::CONT);
    second.wait().expect(3).says("another server at 127.0.0.1");
    assert_eq!(add("0").text(), "63\n");

    // A server that is replaced although it lives.
    let begin = Instant::now();
    let mut fourth = ceph.serve(&second_directory, &["--replace"]);
    third.wait().expect(3).says("has replaced this one");
    assert_eq!(add("0").text(), "63\n");
    println!("the first commit of a server that replaces a live one: {:?}", begin.elapsed());
    wait_until_it_serves(&mut fourth);

    run(&[&"gc", &store]).expect(0);
    let backup = stage.path("backup");
    run(&[&"backup", &store, &backup]).expect(0);
    run(&[&"fsck", &backup]).expect(0);
    fourth.signal(Signal::TERM);
    fourth.wait().expect(0);
    run(&[&"fsck", &POOL]).expect(0).says("0 problems");
    let empty = "rados://blob/empty";
    run(&[&"fsck", &empty]).expect(2).says("there is no store");
    run(&[&"ls", &format!("{empty}?key={}", key.display())]).expect(2).says("there is no store");
    run(&[&"ls", &format!("rados://absent?key={}", key.display())]).expect(2).says("open the pool");

    // All servers are dead, and there is no standby.
    let mut fifth = ceph.serve(&third_directory, &[]);
    wait_until_it_serves(&mut fifth);
    fifth.signal(Signal::KILL);
    let begin = Instant::now();
    let mut sixth = ceph.serve(&second_directory, &[]);
    assert_eq!(add("1").text(), "64\n");
    println!("the first commit of a server that is started after a kill: {:?}", begin.elapsed());
    wait_until_it_serves(&mut sixth);
    sixth.signal(Signal::TERM);
    sixth.wait().expect(0);

    // The cluster does not answer for longer than an operation may take when a standby starts.
    let to_disks = |signal: Signal| {
        ["osd0", "osd1", "osd2"].iter().for_each(|disk| send(ceph.process(disk), signal));
    };
    to_disks(Signal::STOP);
    let mut seventh = ceph.serve(&third_directory, &["--standby"]);
    seventh.wait_for_error("trying again until the cluster answers");
    to_disks(Signal::CONT);
    wait_until_it_serves(&mut seventh);
    assert_eq!(add("1").text(), "65\n");
    seventh.signal(Signal::TERM);
    seventh.wait().expect(0);
}

/// Transfers amounts between blobs of all groups, and prints a line for each transfer that was
/// acknowledged. The transfer has appended the same line to the log of the client.
const TRANSFERS: &str = r#"
import random, sys
from quell import blob
location, client, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
add = lambda amount: blob.Transform("add", "i64", amount)
number_in = lambda data: int.from_bytes(data, "little", signed=True)
with blob.open(location) as store:
    for number in range(count):
        line = b"%s %04d\n" % (client.encode(), number)
        source, target = random.sample(["account-%d" % account for account in range(6)], 2)
        def transfer(transaction):
            if number % 2:
                transaction.transform(source, 0, add(-1))
            else:
                balance = number_in(transaction.read(source, 0, 8))
                transaction.write(source, (balance - 1).to_bytes(8, "little", signed=True))
            transaction.transform(target, 0, add(1))
            transaction.append("log-" + client, line)
        store.transact(transfer, retries=blob.Retries(attempts=1000, delay_max=0.1))
        print(line.decode(), end="", flush=True)
"#;

/// Compares the sum of all accounts in snapshots, until a file exists.
const SUMS: &str = r#"
import os, sys
from quell import blob
count = 0
with blob.open(sys.argv[1]) as store:
    while not os.path.exists(sys.argv[2]):
        try:
            with store.snapshot() as snapshot:
                found = [snapshot.read("account-%d" % account, 0, 8) for account in range(6)]
        except blob.SnapshotTooOld:
            continue
        numbers = [int.from_bytes(number, "little", signed=True) for number in found]
        assert sum(numbers) == 0, numbers
        count += 1
print(count)
"#;

#[test]
fn transactions_over_several_groups_survive_the_death_of_a_server() {
    const CLIENTS: [&str; 3] = ["a", "b", "c"];
    const TRANSFERS_EACH: usize = 30;
    let (Some(libraries), Some(python)) = (libraries("cc"), python()) else {
        skip!("no library, or no Python 3.9 or later");
    };
    let stage = Stage::new();
    let Some(ceph) = Ceph::start(&stage) else { return };
    let pool = "rados://blob/groups";
    let first_directory = stage.path("first");
    let key = first_directory.join("key");
    let store = format!("{pool}?key={}", key.display());
    let run = |arguments: &[&dyn AsRef<OsStr>]| stage.run(&mut ceph.blob(arguments));
    let serves = |server: &Running, groups: usize| {
        assert!(eventually(|| server.out().lines().count() == groups), "{}", server.err());
    };
    let first = ceph.serve_pool(pool, &first_directory, &["--groups", "3", "--serve", "0,1"]);
    serves(&first, 2);
    let second_directory = ceph.directory("second", &key);
    let mut second = ceph.serve_pool(pool, &second_directory, &["--serve", "2"]);
    serves(&second, 1);
    let third_directory = ceph.directory("third", &key);
    let mut third = ceph.serve_pool(pool, &third_directory, &["--serve", "0,1", "--standby"]);
    ceph.serve_pool(pool, &stage.path("other"), &["--groups", "2"]).wait().expect(2).says("has 3 groups");
    ceph.serve_pool(pool, &stage.path("other"), &["--serve", "3"]).wait().expect(2).says("groups 0 to 2");

    let zero = stage.file("zero", [0; 8]);
    (0..6).for_each(|account| _ = run(&[&"put", &store, &zero, &format!("account-{account}")]).expect(0));
    let empty = stage.file("empty", []);
    CLIENTS.iter().for_each(|client| _ = run(&[&"put", &store, &empty, &format!("log-{client}")]).expect(0));
    let client = |source: &str, arguments: &[&dyn AsRef<OsStr>]| {
        let mut command = stage.with_library(&libraries, &ceph.script);
        command.env("TESTBED", &ceph.directory).env("PYTHONPATH", checkout().join("frontends/python"));
        command.env("PYTHONDONTWRITEBYTECODE", "1").args(["exec", python, "-c", source]);
        arguments.iter().for_each(|argument| _ = command.arg(argument));
        stage.start(&mut command)
    };
    let each = TRANSFERS_EACH.to_string();
    let transfers: Vec<Running> =
        CLIENTS.iter().map(|name| client(TRANSFERS, &[&store, name, &each])).collect();
    let done = stage.path("done");
    let sums = client(SUMS, &[&store, &done]);
    let acknowledged = || transfers.iter().map(|transfer| transfer.out().lines().count()).sum::<usize>();
    assert!(eventually(|| acknowledged() >= 10), "{}", transfers[0].err());
    first.signal(Signal::KILL);
    let begin = Instant::now();
    let before = acknowledged();
    assert!(eventually(|| acknowledged() > before + CLIENTS.len()), "{}", transfers[0].err());
    println!("transfers go on {:?} after the kill", begin.elapsed());
    for (name, transfer) in CLIENTS.iter().zip(transfers) {
        let lines = transfer.wait().expect(0).text();
        assert_eq!(lines.lines().count(), TRANSFERS_EACH);
        assert_eq!(run(&[&"cat", &store, &format!("log-{name}")]).expect(0).text(), lines);
    }
    fs::write(&done, "").unwrap();
    let snapshots = sums.wait().expect(0).text();
    assert!(snapshots.trim().parse::<u32>().unwrap() > 0);
    serves(&third, 2);

    assert_eq!(run(&[&"ls", &store]).expect(0).text().lines().count(), 9);
    run(&[&"gc", &store]).expect(0);
    let backup = stage.path("backup");
    run(&[&"backup", &store, &backup]).expect(0);
    run(&[&"bench", &store, &"--clients", &"2", &"--seconds", &"1"]).expect(0);
    let address = third.out().lines().next().and_then(|line| line.split('"').nth(3)).unwrap().to_owned();
    let one_group = format!("quell://{address}?key={}", key.display());
    run(&[&"ls", &one_group]).expect(3).says("several groups of servers");
    for server in [&mut second, &mut third] {
        server.signal(Signal::TERM);
    }
    second.wait().expect(0);
    third.wait().expect(0);
    run(&[&"fsck", &pool]).expect(0).says("0 problems");
}

#[test]
fn a_store_of_several_groups_can_be_mounted_and_top_sums_its_servers() {
    let stage = Stage::new();
    if !can_mount() {
        return;
    }
    let Some(ceph) = Ceph::start(&stage) else { return };
    let pool = "rados://blob/files";
    let directory = stage.path("server");
    let store = format!("{pool}?key={}", directory.join("key").display());
    let run = |arguments: &[&dyn AsRef<OsStr>]| stage.run(&mut ceph.blob(arguments));
    let server = ceph.serve_pool(pool, &directory, &["--groups", "3"]);
    assert!(eventually(|| server.out().lines().count() == 3), "{}", server.err());
    let data = stage.file("data", "of a program\n");
    for name in ["run7/a/b", "run7/top", "run7//hidden"] {
        run(&[&"put", &store, &data, &name]).expect(0);
    }
    let mount = |name: &str| {
        let point = stage.dir(name);
        let mut command = ceph.inside(quell());
        command.args(["mount", "--blob", &store, "--blob-prefix", "run7"]).arg(&point);
        stage.run(&mut command).expect(0);
        Mounted::at(&stage, point)
    };
    let (one, two) = (mount("one"), mount("two"));
    stage.sh(FILES, &[&one.point]).expect(0);
    // Most of these names belong to another group than the name before.
    let renames = r#"
set -e; cd "$1"; other=$2
head -c 3000000 /dev/urandom > data-0; truncate -s 5M data-0; chmod 640 data-0
touch -d '2001-02-03 04:05:06 UTC' data-0; sum=$(sha256sum < data-0)
for i in 1 2 3 4 5 6 7 8; do
    exec 3<"data-$((i - 1))"
    mv "data-$((i - 1))" "data-$i"
    test "$(sha256sum <&3)" = "$sum"; exec 3<&-
    test "$(sha256sum < "$other/data-$i")" = "$sum"; test ! -e "$other/data-$((i - 1))"
    test "$(stat -c %a:%s:%Y "data-$i")" = 640:5242880:981173106
done
for i in 1 2 3 4; do echo "$i" > new; mv new current; test "$(cat "$other/current")" = "$i"; done
mkdir tree; for i in 1 2 3 4 5; do mkdir tree/$i; echo $i > tree/$i/file; done
mv tree moved; test ! -e "$other/tree"
for i in 1 2 3 4 5; do test "$(cat "$other/moved/$i/file")" = "$i"; done
python3 - <<END
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for name in ("current", "data-8"):
    before = [open(path, "rb").read() for path in (name, "moved/1/file")]
    assert libc.renameat2(-100, name.encode(), -100, b"moved/1/file", 2) == 0, ctypes.get_errno()
    assert [open(path, "rb").read() for path in ("moved/1/file", name)] == before
END
rm -r moved; ! test -e "$other/moved"
"#;
    stage.sh(renames, &[&one.point, &two.point]).expect(0);
    let shown = run(&[&"top", &store, &"--once", &"--json", &"--interval", &"0.1"]).expect(0).json();
    assert!(shown["counters"]["requests"]["commit"].as_u64() > Some(10), "{shown}");
    let metrics = run(&[&"metrics", &store]).expect(0).text();
    assert!(metrics.contains("quell_blob_up{"), "{metrics}");
    one.umount();
    two.umount();
    let names = run(&[&"ls", &store]).expect(0).text();
    assert!(!names.contains("removed"), "{names}");
    server.signal(Signal::TERM);
    server.wait().expect(0);
    run(&[&"fsck", &pool]).expect(0).says("0 problems");
}

#[test]
fn a_full_cluster_refuses_commits_and_acknowledged_data_stays_readable() {
    let stage = Stage::new();
    let Some(ceph) = Ceph::start(&stage) else { return };
    let directory = stage.path("server");
    let store = format!("{POOL}?key={}", directory.join("key").display());
    let run = |arguments: &[&dyn AsRef<OsStr>]| stage.run(&mut ceph.blob(arguments));
    let mut server = ceph.serve(&directory, &[]);
    wait_until_it_serves(&mut server);
    let small = stage.file("small", "small\n");
    let large = stage.file("large", vec![7; 300_000]);
    run(&[&"put", &store, &small]).expect(0);
    run(&[&"put", &store, &large]).expect(0);
    let mut acknowledged = 0;
    let mut add_until = |is_refused: bool| {
        assert!(eventually(|| {
            let added = run(&[&"add", &store, &"sum", &"0", &"1"]);
            let was_refused = added.code() != Some(0);
            match was_refused {
                true => _ = added.expect(3).says("No space left on device"),
                false => acknowledged += 1,
            }
            was_refused == is_refused
        }));
        acknowledged
    };
    add_until(false);
    // An OSD is full when the used part of its space exceeds the last of these ratios, which must
    // ascend.
    let set_ratios = |ratios: [&str; 3]| {
        for (name, ratio) in ["nearfull", "backfillfull", "full"].iter().zip(ratios) {
            ceph.call(&["exec", "ceph", "osd", &format!("set-{name}-ratio"), ratio]);
        }
    };
    for round in 0..2 {
        set_ratios(["0.000001", "0.000002", "0.000003"]);
        let before = add_until(true);
        run(&[&"put", &store, &large, &"refused"]).expect(3).says("No space left on device");
        let copy = stage.path("copy");
        for (name, file) in [("small", &small), ("large", &large)] {
            run(&[&"get", &store, &name, &copy]).expect(0);
            assert_eq!(fs::read(&copy).unwrap(), fs::read(file).unwrap(), "{round}: {name}");
            fs::remove_file(&copy).unwrap();
        }
        assert!(!run(&[&"ls", &store]).expect(0).text().contains("refused"));
        set_ratios(["0.85", "0.90", "0.95"]);
        let after = add_until(false);
        assert_eq!(after, before + 1);
        // The sum has each acknowledged addition once, and none that was refused.
        assert_eq!(run(&[&"add", &store, &"sum", &"0", &"0"]).expect(0).text(), format!("{after}\n"));
    }
    server.signal(Signal::TERM);
    server.wait().expect(0);
    run(&[&"fsck", &POOL]).expect(0).says("0 problems");
}
