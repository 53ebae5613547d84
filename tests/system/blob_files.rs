//! `quell mount --blob`: blobs as files.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::skip;
use crate::stage::{Mounted, Stage, eventually, has, is_root, words};
use crate::trees::{TRUNCATE_WITH_SET_ID, permissions_after_truncation};

/// The interpreter for which Debian installs NumPy and h5py.
const PYTHON: &str = "/usr/bin/python3";
const ESTALE: i32 = 116;

/// Returns whether this user can mount.
pub fn can_mount() -> bool {
    let can = is_root() || has("fusermount3");
    if !can {
        println!("SKIPPED: an ordinary user mounts through fusermount3, which is not there");
    }
    can
}

impl Stage {
    /// Mounts the blobs of a store at the directory `name`.
    fn mount_blobs(&self, store: &dyn AsRef<std::ffi::OsStr>, prefix: &str, name: &str) -> Mounted<'_> {
        let point = self.dir(name);
        let mut command = self.quell();
        command.args(words(&[&"mount", &"--blob", store, &"--blob-prefix", &prefix, &point]));
        let mounted = self.run(&mut command).expect(0);
        assert_eq!((mounted.text().as_str(), mounted.err.as_str()), ("", ""), "success prints nothing");
        Mounted::at(self, point)
    }
}

/// Uses a mount of the blobs `a/b` and `top`.
pub const FILES: &str = r#"
set -e; cd "$1"
test "$(ls -A)" = "$(printf 'a\ntop')"
test "$(ls -A a)" = b
test "$(cat a/b)" = 'of a program'
test "$(stat -c %a:%F top)" = '600:regular file'
printf 'of a file\n' > new; printf 'and more\n' >> new
mkdir -p deep/empty; mv a deep/moved; cp -p deep/moved/b copy
test "$(cat new)" = "$(printf 'of a file\nand more')"
cmp copy deep/moved/b
test "$(stat -c %Y copy)" = "$(stat -c %Y deep/moved/b)"
chmod 640 copy; touch -d '2001-02-03 04:05:06 UTC' copy
test "$(stat -c %a:%Y copy)" = 640:981173106
ln -s copy link; test "$(readlink link)" = copy; cmp link copy
ln copy hard 2>&1 | grep -q 'not permitted'
! rmdir deep 2>/dev/null; rmdir deep/empty; test ! -e deep/empty
exec 3<>unlinked; rm unlinked; test ! -e unlinked; echo kept >&3; exec 3>&-
truncate -s 100K sparse; printf x | dd of=sparse bs=1 seek=70000 conv=notrunc 2>/dev/null
test "$(tr -d '\0' < sparse)" = x
mkdir many; for i in $(seq 600); do : > many/$i; done
test "$(ls many | wc -l)" = 600; rm -r many; test ! -e many
"#;

#[test]
fn programs_read_and_write_blobs_as_files() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.path("store");
    let file = stage.file("data", "of a program\n");
    for name in ["run7/a/b", "run7/top", "run7//hidden", "run7/a/../hidden", "run70/other", "run7/top/below"]
    {
        stage.blob(&[&"put", &store, &file, &name]).expect(0);
    }
    let mounted = stage.mount_blobs(&store, "run7", "files");
    stage.sh(FILES, &[&mounted.point]).expect(0);
    assert_eq!(
        stage.sh(TRUNCATE_WITH_SET_ID, &[&mounted.point]).expect(0).text(),
        permissions_after_truncation()
    );
    let stats = stage.run(stage.quell().arg("stats").arg("--json").arg(&mounted.point)).expect(0).json();
    assert_eq!(stats[0]["blob"]["prefix"], "run7", "{stats}");
    assert!(stats[0]["blob"]["counters"]["hidden_blobs"].as_u64() >= Some(2), "{stats}");
    mounted.umount();
    let names = stage.blob(&[&"ls", &store]).expect(0).text();
    let names: Vec<&str> = names.lines().filter_map(|line| line.split_whitespace().last()).collect();
    for name in ["run7/new", "run7/deep/moved/b", "run7/deep/moved/../hidden", "run70/other", "run7/sparse"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    assert!(!names.iter().any(|name| name.starts_with("run7/a/") || name.contains("removed")), "{names:?}");
    assert_eq!(stage.blob(&[&"cat", &store, &"run7/new"]).expect(0).text(), "of a file\nand more\n");
    stage.blob(&[&"fsck", &store]).expect(0);
    // The next mount shows the same.
    let again = stage.mount_blobs(&store, "run7/", "again");
    assert_eq!(fs::metadata(again.point.join("copy")).unwrap().mode() & 0o7777, 0o640);
    assert_eq!(fs::read_link(again.point.join("link")).unwrap(), Path::new("copy"));
    again.umount();
}

#[test]
fn a_mount_needs_a_store_and_one_mount_point() {
    let stage = Stage::new();
    let point = stage.dir("files");
    let run = |arguments: &[&str]| {
        let mut command = stage.quell();
        stage.run(command.args(["mount", "--blob"]).args(arguments).current_dir(stage.path("")))
    };
    run(&["http://x", "files"]).expect(2).says("a location is dir:PATH");
    run(&["files/store", "files"]).expect(2).says("is in its mount point");
    run(&["unix:none", "files"]).expect(3).says("quell blob serve");
    run(&["store"]).expect(2).says("mount point");
    run(&["store", "files", "other"]).expect(2).says("name one mount point");
    run(&["store", "--log", "log", "files"]).expect(2).says("cannot be used with");
    assert!(fs::read_dir(point).unwrap().next().is_none());
}

const ARRAYS: &str = r#"
import sys, numpy, h5py, sqlite3
def path(name): return sys.argv[1] + '/' + name
values = numpy.arange(300000.0).reshape(300, 1000)
numpy.save(path('a.npy'), values)
assert (numpy.load(path('a.npy')) == values).all()
assert numpy.load(path('a.npy'), mmap_mode='r')[7, 7] == 7007
numpy.savez_compressed(path('z.npz'), values=values)
assert (numpy.load(path('z.npz'))['values'] == values).all()
with h5py.File(path('h.h5'), 'w') as file:
    file.create_dataset('values', data=values, chunks=(10, 100), compression='gzip')
    file.attrs['unit'] = 'm'
with h5py.File(path('h.h5'), 'r+') as file:
    file['values'][5, 5:8] = -1
    file.create_dataset('more', shape=(0,), maxshape=(None,), dtype='i8').resize((1000,))
    file['more'][900:] = 7
with h5py.File(path('h.h5'), 'r') as file:
    assert (file['values'][5, 5:8] == -1).all() and file['values'][6, 6] == 6006
    assert file['more'][:].sum() == 700 and file.attrs['unit'] == 'm'
base = sqlite3.connect(path('q.db'))
base.execute('create table t(a)')
with base: base.executemany('insert into t values(?)', [(i,) for i in range(1000)])
try:
    with base:
        base.execute('delete from t')
        raise KeyError
except KeyError: pass
other = sqlite3.connect(path('q.db'))
assert other.execute('select sum(a) from t').fetchone()[0] == 499500
"#;

#[test]
fn numpy_h5py_and_sqlite_work_on_blobs() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    if stage.run(stage.command(PYTHON).args(["-c", "import numpy, h5py, sqlite3"])).code() != Some(0) {
        skip!("the Python modules numpy, h5py, sqlite3 are not installed");
    }
    let store = stage.path("store");
    let embedded = stage.mount_blobs(&store, "", "embedded");
    stage.run(stage.command(PYTHON).args(["-c", ARRAYS]).arg(&embedded.point)).expect(0);
    embedded.umount();
    let (server, line) = stage.serve(&store, &[]);
    let socket = format!("unix:{}", line["socket"].as_str().unwrap());
    let served = stage.mount_blobs(&socket, "again", "served");
    stage.run(stage.command(PYTHON).args(["-c", ARRAYS]).arg(&served.point)).expect(0);
    served.umount();
    server.signal(Signal::TERM);
    server.wait().expect(0);
    stage.blob(&[&"fsck", &store]).expect(0);
}

#[test]
fn the_next_mount_removes_the_blobs_of_a_killed_mount() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.path("store");
    let removed = |store: &Path| {
        let names = stage.blob(&[&"ls", &store, &"p//removed/"]).expect(0).text();
        names.lines().filter(|line| !line.ends_with("/mount")).count()
    };
    let killed = stage.mount_blobs(&store, "p", "killed");
    let file = File::create_new(killed.point.join("file")).unwrap();
    file.write_all_at(&[1; 100_000], 0).unwrap();
    file.sync_all().unwrap();
    fs::remove_file(killed.point.join("file")).unwrap();
    let holder = rustix::process::Pid::from_raw(stage.holder()).unwrap();
    rustix::process::kill_process(holder, Signal::KILL).unwrap();
    assert!(eventually(|| stage.holders().is_empty()));
    drop(file);
    drop(killed);
    assert_eq!(removed(&store), 1);

    // This process is the only one that has the store open, so the other mount is dead.
    let next = stage.mount_blobs(&store, "p", "next");
    next.umount();
    assert_eq!(removed(&store), 0);

    // Through a server, a mount may live.
    let (server, _) = stage.serve(&store, &[]);
    let one = stage.mount_blobs(&store, "p", "one");
    let file = File::create_new(one.point.join("file")).unwrap();
    file.write_all_at(b"kept", 0).unwrap();
    fs::remove_file(one.point.join("file")).unwrap();
    let two = stage.mount_blobs(&store, "p", "two");
    two.umount();
    let mut data = [0; 4];
    file.read_exact_at(&mut data, 0).unwrap();
    assert_eq!(&data, b"kept");
    assert_eq!(removed(&store), 1);
    drop(file);
    one.umount();
    assert_eq!(stage.blob(&[&"ls", &store]).expect(0).text(), "");
    server.signal(Signal::TERM);
    server.wait().expect(0);
}

#[test]
fn a_closed_file_is_visible_on_the_other_mounts_of_a_server() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.path("store");
    let (server, line) = stage.serve(&store, &[]);
    let socket = format!("unix:{}", line["socket"].as_str().unwrap());
    let (a, b) = (stage.mount_blobs(&socket, "p", "a"), stage.mount_blobs(&store, "p", "b"));
    let on = |mounted: &Mounted<'_>, name: &str| mounted.point.join(name);

    let mut writer = File::create(on(&a, "f")).unwrap();
    writer.write_all(b"first").unwrap();
    assert_eq!(fs::read(on(&a, "f")).unwrap(), b"first", "on the same mount before the close");
    drop(writer);
    assert_eq!(fs::read(on(&b, "f")).unwrap(), b"first");
    let writer = OpenOptions::new().write(true).open(on(&b, "f")).unwrap();
    writer.write_all_at(b"second", 0).unwrap();
    writer.sync_all().unwrap();
    assert_eq!(fs::read(on(&a, "f")).unwrap(), b"second", "synced, and still open");
    for number in 0..20 {
        let from = if number % 2 == 0 { &a } else { &b };
        let mut log = OpenOptions::new().append(true).create(true).open(on(from, "log")).unwrap();
        log.write_all(format!("{number}\n").as_bytes()).unwrap();
    }
    assert_eq!(fs::read_to_string(on(&a, "log")).unwrap().lines().count(), 20);

    let exclusive =
        |mounted: &Mounted<'_>| File::create_new(on(mounted, "lock")).map(drop).map_err(|e| e.kind());
    assert_eq!((exclusive(&a), exclusive(&b)), (Ok(()), Err(ErrorKind::AlreadyExists)));
    fs::create_dir(on(&a, "d")).unwrap();
    fs::write(on(&b, "d/x"), "below").unwrap();
    assert!(fs::remove_dir(on(&a, "d")).is_err());
    fs::rename(on(&a, "d"), on(&a, "e")).unwrap();
    assert_eq!(fs::read(on(&b, "e/x")).unwrap(), b"below");

    // Programs that use the library change the same blobs.
    let reader = File::open(on(&a, "f")).unwrap();
    stage.blob(&[&"rm", &socket, &"p/f"]).expect(0);
    assert_eq!(reader.read_at(&mut [0; 9], 0).unwrap_err().raw_os_error(), Some(ESTALE));
    writer.write_all_at(b"lost", 0).unwrap();
    for _ in 0..2 {
        assert_eq!(writer.sync_all().unwrap_err().raw_os_error(), Some(ESTALE));
    }
    drop((reader, writer));
    let file = stage.file("data", "by the library");
    stage.blob(&[&"put", &socket, &file, &"p/f"]).expect(0);
    assert_eq!(fs::read(on(&a, "f")).unwrap(), b"by the library");
    a.umount();
    b.umount();
    server.signal(Signal::TERM);
    server.wait().expect(0);
    stage.blob(&[&"fsck", &store]).expect(0);
}

/// Writes, syncs while there is no server, and syncs again through another descriptor.
const SYNC: &str = r#"
import os, sys
first = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
other = os.open(sys.argv[1], os.O_RDWR)
os.write(first, b'kept in memory')
print('written', flush=True)
sys.stdin.readline()
try: os.fsync(first)
except OSError as error: print('failed', error.errno, flush=True)
sys.stdin.readline()
os.fsync(other)
print('synced', flush=True)
"#;

#[test]
fn a_mount_reports_a_killed_server_and_works_again_after_its_restart() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.path("store");
    let (server, line) = stage.serve(&store, &[]);
    let socket = format!("unix:{}", line["socket"].as_str().unwrap());
    let mounted = stage.mount_blobs(&socket, "", "files");
    fs::write(mounted.point.join("before"), "acknowledged").unwrap();
    let start = || {
        let mut command = stage.command(PYTHON);
        command.args(["-c", SYNC]).arg(mounted.point.join("f")).stdin(std::process::Stdio::piped());
        stage.start(&mut command)
    };
    let mut program = start();
    let mut stdin = program.stdin();
    program.wait_for_output("written");
    server.signal(Signal::KILL);
    server.wait();
    stdin.write_all(b"\n").unwrap();
    // After a minute without a server.
    program.wait_for_output("failed");
    let (server, _) = stage.serve(&store, &[]);
    stdin.write_all(b"\n").unwrap();
    program.wait_for_output("synced");
    program.wait().expect(0);
    assert_eq!(fs::read(mounted.point.join("f")).unwrap(), b"kept in memory");
    assert_eq!(fs::read(mounted.point.join("before")).unwrap(), b"acknowledged");
    mounted.umount();
    server.signal(Signal::TERM);
    server.wait().expect(0);
}

#[test]
fn other_users_cannot_read_blobs() {
    if !is_root() {
        skip!("asking as another user needs root");
    }
    let stage = Stage::new();
    let store = stage.path("store");
    let file = stage.file("data", "secret");
    stage.blob(&[&"put", &store, &file, &"f"]).expect(0);
    let mounted = stage.mount_blobs(&store, "", "files");
    let as_other = |program: &str, path: &Path| {
        let mut command = stage.command("setpriv");
        command.args(["--reuid", "4242", "--regid", "4242", "--clear-groups", "--", program]).arg(path);
        stage.run(&mut command)
    };
    as_other("ls", &mounted.point).expect(2).says("Permission denied");
    as_other("cat", &mounted.point.join("f")).expect(1).says("Permission denied");
    // The owner can give access.
    let allow = |path: PathBuf, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    allow(mounted.point.clone(), 0o755);
    as_other("cat", &mounted.point.join("f")).expect(1).says("Permission denied");
    allow(mounted.point.join("f"), 0o644);
    assert_eq!(as_other("cat", &mounted.point.join("f")).expect(0).text(), "secret");
    as_other("rm", &mounted.point.join("f")).expect(1).says("Permission denied");
    mounted.umount();
}
