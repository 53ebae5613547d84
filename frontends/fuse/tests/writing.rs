//! Tests a real mount of a writable tree with the system calls that programs make. Each test mounts
//! an empty tree in its own directory. If this machine allows no mounts, the tests print `SKIPPED:`
//! and the reason.

mod mounted;
mod watched;

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mounted::mounted;
use quell_fuse::{LockKeeper, Options, Session, Snapshot};
use quell_testkit::kernel_version;
use quell_vfs::{Change, Context, FileSystem, NewEntry, OpenMode, Writable};
use rustix::fs::{
    CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use watched::{ROOT, Watch, Watched};

/// An empty tree mounted for one test, unmounted and removed when dropped.
struct Mounted {
    // Declared before the directory, because fields are dropped in order.
    session: Session,
    fs: Arc<Watched>,
    watch: Arc<Watch>,
    dir: tempfile::TempDir,
}

impl Mounted {
    fn new(options: &Options) -> Option<Mounted> {
        let (fs, watch) = Watched::new();
        let (session, dir) = mounted(Arc::clone(&fs) as _, options)?;
        Some(Mounted { session, fs, watch, dir })
    }

    fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.dir.path().join(name.as_ref())
    }

    fn counters(&self) -> Snapshot {
        self.session.counters().snapshot()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).unwrap();
    }

    fn open(&self, name: &str, flags: OFlags) -> File {
        rustix::fs::open(self.path(name), flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644)).unwrap().into()
    }
}

/// Mounts, or ends the test.
macro_rules! mounted {
    () => {
        mounted!(Options::default())
    };
    ($options:expr) => {
        match Mounted::new(&$options) {
            Some(mounted) => mounted,
            None => return,
        }
    };
}

fn errno<T>(result: io::Result<T>) -> i32 {
    result.err().expect("an error").raw_os_error().expect("an error of the system")
}

/// Waits for an action of the kernel that happens later.
fn eventually(is_so: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > Duration::from_secs(60) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Closes a file and returns the result of close(2).
#[allow(unsafe_code)]
fn close(file: File) -> io::Result<()> {
    // SAFETY: the declaration matches the declaration in every libc. The standard library does not
    // return the result of close(2).
    unsafe extern "C" {
        fn close(fd: i32) -> i32;
    }
    // SAFETY: the file owned the descriptor, and nothing uses it afterwards.
    match unsafe { close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Maps the first bytes of a file during `with`.
#[allow(unsafe_code)]
fn map<T>(file: &File, length: usize, shared: bool, writes: bool, with: impl FnOnce(&mut [u8]) -> T) -> T {
    let access = if writes { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    let kind = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
    // SAFETY: a new mapping, within the file's length (the tests ensure this), and written to only
    // if it was mapped for writing. Nothing else changes these pages while a reference to them is
    // in use.
    unsafe {
        let at = mmap(std::ptr::null_mut(), length, access, kind, file, 0).unwrap();
        let result = with(std::slice::from_raw_parts_mut(at.cast::<u8>(), length));
        if shared && writes {
            msync(at, length, MsyncFlags::SYNC).unwrap();
        }
        munmap(at, length).unwrap();
        result
    }
}

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EACCES: i32 = 13;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const ENOTEMPTY: i32 = 39;

#[test]
fn writes_are_visible_to_all_programs_of_the_node_immediately() {
    let mounted = mounted!();
    let mut file = File::create_new(mounted.path("file")).unwrap();
    file.write_all(b"0123456789").unwrap();
    assert_eq!(mounted.read("file"), b"0123456789", "while it is still open");
    file.write_all_at(b"xy", 3).unwrap();
    file.write_all_at(b"end", 5000).unwrap();
    let stat = fs::metadata(mounted.path("file")).unwrap();
    assert_eq!((stat.len(), file.metadata().unwrap().len()), (5003, 5003));
    let seen = mounted.read("file");
    assert_eq!(
        (&seen[..10], &seen[10..5000], &seen[5000..]),
        (&b"012xy56789"[..], &[0; 4990][..], &b"end"[..])
    );
    drop(file);
    let counted = mounted.counters();
    assert_eq!((counted.made, counted.writes, counted.bytes_written), (1, 3, 15));
    assert_eq!((counted.opens, counted.published >= 1, counted.errors), (3, true, 0));
}

#[test]
fn writes_of_any_size_and_offset_arrive_unchanged() {
    let mounted = mounted!();
    let file = mounted.open("file", OFlags::CREATE | OFlags::RDWR);
    let bytes: Vec<u8> = (0..5_000_003u32).map(|n| (n / 251) as u8).collect();
    let mut expected = vec![0; 12_000_000];
    for (offset, length) in [(0, 1), (4095, 2), (100_001, 47_008), (1 << 20, 1 << 20), (5_000_000, 5_000_003)]
    {
        file.write_all_at(&bytes[..length], offset as u64).unwrap();
        expected[offset..offset + length].copy_from_slice(&bytes[..length]);
    }
    expected.truncate(10_000_003);
    assert!(mounted.read("file") == expected);
    let mut some = vec![0xee; 3_000_000];
    assert_eq!(file.read_at(&mut some, 9_000_000).unwrap(), 1_000_003);
    assert!(some[..1_000_003] == expected[9_000_000..]);
    assert_eq!(file.read_at(&mut some, 10_000_003).unwrap(), 0);
    assert_eq!(file.read_at(&mut some, 20_000_000).unwrap(), 0);
    // Also with O_DIRECT and unaligned offsets.
    let direct = mounted.open("file", OFlags::RDWR | OFlags::DIRECT);
    direct.write_all_at(b"direct", 77).unwrap();
    assert_eq!(direct.read_at(&mut some[..8], 76).unwrap(), 8);
    assert_eq!(&some[..8], b"\0direct\0");
}

#[test]
fn sendfile_and_copy_return_the_latest_writes() {
    let mounted = mounted!();
    mounted.write("from", vec![b'a'; 100_000]);
    let (from, writer) = (mounted.open("from", OFlags::RDONLY), mounted.open("from", OFlags::WRONLY));
    for (number, byte) in [b'a', b'b', b'c'].into_iter().enumerate() {
        writer.write_all_at(&vec![byte; 100_000], 0).unwrap();
        // sendfile(2) moves pages, without a buffer in the program.
        let to = tempfile::tempfile().unwrap();
        let mut offset = 0;
        while rustix::fs::sendfile(&to, &from, Some(&mut offset), 1 << 20).unwrap() > 0 {}
        let mut seen = vec![0; 100_000];
        to.read_exact_at(&mut seen, 0).unwrap();
        assert!(seen.iter().all(|seen| *seen == byte), "round {number}");
        // Within the mount.
        let copy = format!("copy-{number}");
        fs::copy(mounted.path("from"), mounted.path(&copy)).unwrap();
        assert_eq!(mounted.read(&copy), seen);
    }
}

#[test]
fn concurrent_writers_of_one_file_lose_no_byte() {
    let mounted = mounted!();
    mounted.write("file", b"");
    let (writers, rounds, length) = (8, 40, 4_701);
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let file = mounted.open("file", OFlags::WRONLY);
            scope.spawn(move || {
                for round in 0..rounds {
                    let place = (round * writers + writer) * length;
                    file.write_all_at(&vec![writer as u8 + 1; length], place as u64).unwrap();
                }
            });
        }
    });
    let seen = mounted.read("file");
    assert_eq!(seen.len(), writers * rounds * length);
    for (number, record) in seen.chunks(length).enumerate() {
        assert!(record.iter().all(|byte| *byte as usize == number % writers + 1), "record {number}");
    }
}

#[test]
fn two_descriptors_that_append_never_overwrite_each_other() {
    let mounted = mounted!();
    let append = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    let (mut a, mut b) = (mounted.open("log", append), mounted.open("log", append));
    for round in 0..50 {
        writeln!(a, "a{round}").unwrap();
        writeln!(b, "b{round}").unwrap();
    }
    let expected: String = (0..50).map(|round| format!("a{round}\nb{round}\n")).collect();
    assert_eq!(String::from_utf8(mounted.read("log")).unwrap(), expected);

    // O_APPEND can be set on an open descriptor, and cleared again.
    let mut c = mounted.open("log", OFlags::RDWR);
    rustix::fs::fcntl_setfl(&c, OFlags::APPEND).unwrap();
    c.write_all(b"appended").unwrap();
    rustix::fs::fcntl_setfl(&c, OFlags::empty()).unwrap();
    c.write_all_at(b"A", 0).unwrap();
    let seen = mounted.read("log");
    assert!(seen.ends_with(b"b49\nappended") && seen.starts_with(b"A0\nb0"));
    // The end of the file includes data appended by another process.
    a.write_all(b"!").unwrap();
    assert_eq!(c.seek(SeekFrom::End(0)).unwrap(), seen.len() as u64 + 1);
}

#[test]
fn an_open_that_truncates_is_one_request() {
    let mounted = mounted!();
    mounted.write("file", b"long content");
    mounted.watch.opens();
    let file = File::create(mounted.path("file")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 0);
    let opens = mounted.watch.opens();
    let truncating = OpenMode { truncate: true, ..OpenMode::WRITE };
    assert_eq!(opens.iter().map(|(mode, _)| *mode).collect::<Vec<_>>(), [truncating]);
    assert_eq!(mounted.counters().changes, 0);
    file.write_all_at(b"new", 0).unwrap();
    assert_eq!(mounted.read("file"), b"new");
    // Linux truncates the file although the descriptor is for reading.
    let mut file = mounted.open("file", OFlags::RDONLY | OFlags::TRUNC);
    assert_eq!(file.read(&mut [0; 10]).unwrap(), 0);
    assert_eq!(mounted.read("file"), b"");
}

#[test]
fn opens_pass_flags_and_process_on() {
    let mounted = mounted!();
    mounted.write("file", b"text");
    mounted.watch.opens();
    mounted.open("file", OFlags::RDONLY);
    mounted.open("file", OFlags::WRONLY | OFlags::APPEND);
    mounted.open("file", OFlags::RDWR);
    let seen: Vec<_> =
        mounted.watch.opens().iter().map(|(mode, _)| (mode.read, mode.write, mode.truncate)).collect();
    assert_eq!(seen, [(true, false, false), (false, true, false), (true, true, false)]);
    let script = format!("echo $$; : > {}", mounted.path("by-shell").display());
    let shell = Command::new("sh").args(["-c", &script]).output().unwrap();
    let process = String::from_utf8(shell.stdout).unwrap().trim().parse().unwrap();
    let processes = || mounted.watch.opens().iter().map(|(_, process)| *process).collect::<Vec<u32>>();
    assert_eq!(processes(), [process]);
    // All threads of a process are reported as that process.
    for _ in 0..2 {
        let open = || mounted.open("file", OFlags::WRONLY);
        std::thread::scope(|scope| scope.spawn(open).join().unwrap());
    }
    assert_eq!(processes(), [std::process::id(); 2]);
}

#[test]
fn files_are_truncated_and_extended_also_after_removal() {
    let mounted = mounted!();
    mounted.write("file", b"0123456789");
    let file = mounted.open("file", OFlags::RDWR);
    file.set_len(4).unwrap();
    assert_eq!(mounted.read("file"), b"0123");
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 2, 6).unwrap();
    assert_eq!(mounted.read("file"), b"0123\0\0\0\0");
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 3).unwrap();
    assert_eq!(mounted.read("file").len(), 8, "the size must not change");
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 100).unwrap();
    assert_eq!(mounted.read("file").len(), 8, "nothing is reserved");
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, hole, 2, 100).unwrap();
    assert_eq!(mounted.read("file"), b"01\0\0\0\0\0\0");
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 6, 4).unwrap();
    assert_eq!(mounted.read("file"), b"01\0\0\0\0\0\0\0\0");
    let collapse = FallocateFlags::COLLAPSE_RANGE;
    assert_eq!(rustix::fs::fallocate(&file, collapse, 0, 4096), Err(Errno::OPNOTSUPP));
    fs::remove_file(mounted.path("file")).unwrap();
    file.set_len(2).unwrap();
    let mut buffer = [0; 10];
    assert_eq!((file.read_at(&mut buffer, 0).unwrap(), &buffer[..2]), (2, &b"01"[..]));
}

#[test]
fn an_open_file_survives_replacement_and_removal() {
    let mounted = mounted!();
    mounted.write("a", b"old");
    mounted.write("b", b"new");
    let old = mounted.open("a", OFlags::RDWR);
    fs::rename(mounted.path("b"), mounted.path("a")).unwrap();
    assert_eq!(mounted.read("a"), b"new");
    assert_eq!(errno(fs::metadata(mounted.path("b"))), ENOENT);
    old.write_all_at(b"OLD still", 0).unwrap();
    let mut buffer = [0; 20];
    assert_eq!((old.read_at(&mut buffer, 0).unwrap(), &buffer[..9]), (9, &b"OLD still"[..]));
    assert_eq!(mounted.read("a"), b"new");

    let unlinked = mounted.open("a", OFlags::RDWR);
    fs::remove_file(mounted.path("a")).unwrap();
    assert_eq!(errno(File::open(mounted.path("a"))), ENOENT);
    assert_eq!((unlinked.metadata().unwrap().nlink(), unlinked.metadata().unwrap().len()), (0, 3));
    unlinked.write_all_at(b"er", 3).unwrap();
    assert_eq!((unlinked.read_at(&mut buffer, 0).unwrap(), &buffer[..5]), (5, &b"newer"[..]));
    mounted.write("a", b"another");
    assert_eq!(unlinked.metadata().unwrap().len(), 5);
}

#[test]
fn renames_replace_keep_or_exchange() {
    let mounted = mounted!();
    for name in ["a", "b"] {
        mounted.write(name, name);
    }
    let rename = |from: &str, to: &str, flags| {
        rustix::fs::renameat_with(CWD, mounted.path(from), CWD, mounted.path(to), flags)
    };
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((mounted.read("a"), mounted.read("b")), (b"b".to_vec(), b"a".to_vec()));
    rename("a", "c", RenameFlags::NOREPLACE).unwrap();
    assert_eq!(rename("a", "c", RenameFlags::EXCHANGE), Err(Errno::NOENT));
    fs::create_dir_all(mounted.path("dir/below")).unwrap();
    assert_eq!(errno(fs::rename(mounted.path("c"), mounted.path("dir"))), EISDIR);
    assert_eq!(errno(fs::rename(mounted.path("dir"), mounted.path("c"))), ENOTDIR);
    assert_eq!(errno(fs::rename(mounted.path("dir"), mounted.path("dir/below/it"))), EINVAL);
    fs::rename(mounted.path("c"), mounted.path("dir/below/c")).unwrap();
    assert_eq!(mounted.read("dir/below/c"), b"b");
    fs::rename(mounted.path("dir"), mounted.path("moved")).unwrap();
    assert_eq!(mounted.read("moved/below/c"), b"b");
    assert_eq!(mounted.counters().renamed, 4);
}

#[test]
fn directories_and_links_are_created_listed_and_removed() {
    let mounted = mounted!();
    fs::create_dir(mounted.path("dir")).unwrap();
    assert_eq!(errno(fs::create_dir(mounted.path("dir"))), EEXIST);
    symlink("../\u{fe}target", mounted.path("dir/link")).unwrap();
    assert_eq!(fs::read_link(mounted.path("dir/link")).unwrap(), Path::new("../\u{fe}target"));
    mounted.write("dir/file", b"");
    let mut names: Vec<_> = fs::read_dir(mounted.path("dir"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.file_type().unwrap().is_symlink()))
        .collect();
    names.sort();
    assert_eq!(names, [("file".to_owned(), false), ("link".to_owned(), true)]);
    assert_eq!(errno(fs::remove_dir(mounted.path("dir"))), ENOTEMPTY);
    assert_eq!(errno(fs::remove_dir(mounted.path("dir/file"))), ENOTDIR);
    assert_eq!(errno(fs::remove_file(mounted.path("dir"))), EISDIR);
    assert_eq!(errno(fs::remove_file(mounted.path("none"))), ENOENT);
    fs::remove_file(mounted.path("dir/link")).unwrap();
    fs::remove_file(mounted.path("dir/file")).unwrap();
    fs::remove_dir(mounted.path("dir")).unwrap();
    assert_eq!(fs::read_dir(mounted.path("")).unwrap().count(), 0);
    let seen = mounted.counters();
    assert_eq!((seen.made, seen.removed), (3, 3));
    File::open(mounted.path("")).unwrap().sync_all().unwrap();
}

#[test]
fn a_directory_of_many_entries_is_listed_completely() {
    let mounted = mounted!();
    let names: Vec<String> = (0..3000).map(|n| format!("entry-{n:05}")).collect();
    names.iter().for_each(|name| mounted.write(name, b""));
    let listed =
        fs::read_dir(mounted.path("")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut listed: Vec<String> = listed.collect();
    listed.sort();
    assert_eq!(listed, names);
}

#[test]
fn exclusive_creation_fails_on_an_existing_name() {
    let mounted = mounted!();
    File::create_new(mounted.path("file")).unwrap();
    assert_eq!(errno(File::create_new(mounted.path("file"))), EEXIST);
    symlink("nowhere", mounted.path("link")).unwrap();
    assert_eq!(errno(File::create_new(mounted.path("link"))), EEXIST);
}

#[test]
fn a_file_that_another_node_creates_at_the_same_time_is_opened() {
    let mounted = mounted!();
    mounted.write("file", b"from another node");
    mounted.watch.look_ups_too_early.store(1, SeqCst);
    let file = mounted.open("file", OFlags::CREATE | OFlags::RDWR);
    assert_eq!(file.metadata().unwrap().len(), 17);
    mounted.watch.look_ups_too_early.store(1, SeqCst);
    assert_eq!(errno(File::create_new(mounted.path("file"))), EEXIST);
    mounted.watch.look_ups_too_early.store(1, SeqCst);
    drop(mounted.open("file", OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC));
    assert_eq!(mounted.read("file"), b"");
}

#[test]
fn only_files_directories_and_links_are_created_without_hard_links() {
    let mounted = mounted!();
    let make =
        |name: &str, kind| rustix::fs::mknodat(CWD, mounted.path(name), kind, Mode::from_raw_mode(0o640), 0);
    assert_eq!(make("fifo", FileType::Fifo), Err(Errno::PERM));
    assert_eq!(make("socket", FileType::Socket), Err(Errno::PERM));
    make("file", FileType::RegularFile).unwrap();
    assert_eq!(make("file", FileType::RegularFile), Err(Errno::EXIST));
    assert!(!fs::metadata(mounted.path("file")).unwrap().file_type().is_fifo());
    assert_eq!(errno(fs::hard_link(mounted.path("file"), mounted.path("second"))), EPERM);
}

#[test]
fn the_callers_umask_is_applied_once() {
    let mounted = mounted!();
    let script = "cd \"$1\" && umask 027 && : > file && mkdir dir && ln -s x link && umask 0 && : > open";
    let ran = Command::new("sh").args(["-c", script, "sh"]).arg(mounted.path("")).status().unwrap();
    assert!(ran.success());
    let mode = |name: &str| fs::symlink_metadata(mounted.path(name)).unwrap().mode();
    assert_eq!((mode("file"), mode("dir"), mode("open")), (0o100_640, 0o040_750, 0o100_666));
    assert_eq!(mode("link"), 0o120_777);
    let stat = fs::metadata(mounted.path("file")).unwrap();
    let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    assert_eq!((stat.uid(), stat.gid()), me);
}

#[test]
fn modes_owners_and_times_are_set_and_access_times_are_not() {
    let mounted = mounted!();
    mounted.write("file", b"x");
    let path = mounted.path("file");
    fs::set_permissions(&path, Permissions::from_mode(0o4610)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode(), 0o104_610);

    let set = |accessed: Timespec, modified: Timespec| {
        let times = Timestamps { last_access: accessed, last_modification: modified };
        rustix::fs::utimensat(CWD, &path, &times, rustix::fs::AtFlags::empty()).unwrap();
        let stat = fs::metadata(&path).unwrap();
        assert_eq!((stat.atime(), stat.atime_nsec()), (stat.mtime(), stat.mtime_nsec()));
        (stat.mtime(), stat.mtime_nsec())
    };
    let at = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let (now, omit) = (at(0, UTIME_NOW), at(0, UTIME_OMIT));
    for (seconds, nanoseconds) in
        [(1_234_567, 89), (-1, 0), (-1, 1), (-5, 250_000_000), (0, 0), (0, 999_999_999), (1 << 40, 5)]
    {
        assert_eq!(set(omit, at(seconds, nanoseconds)), (seconds, nanoseconds));
        assert_eq!(set(at(7, 7), omit), (seconds, nanoseconds));
    }
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    assert!(set(omit, now).0 >= before);

    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(12_345), Some(54_321)).unwrap();
        let stat = fs::metadata(&path).unwrap();
        assert_eq!((stat.uid(), stat.gid()), (12_345, 54_321));
        std::os::unix::fs::chown(&path, None, Some(7)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().uid(), 12_345);
    } else {
        assert_eq!(errno(std::os::unix::fs::chown(&path, Some(12_345), None)), EPERM);
    }
}

#[test]
fn the_kernel_checks_permissions() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: asking as another user needs root");
    }
    let mounted = mounted!(Options { allow_other: true, ..Options::default() });
    fs::set_permissions(mounted.path(""), Permissions::from_mode(0o755)).unwrap();
    mounted.write("mine", b"secret");
    fs::set_permissions(mounted.path("mine"), Permissions::from_mode(0o644)).unwrap();
    let as_nobody = |script: &str| {
        use std::os::unix::process::CommandExt;
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(mounted.path("")).uid(65534).gid(65534);
        shell.output().unwrap().status.success()
    };
    assert!(as_nobody("cat mine"));
    for refused in
        ["echo x > mine", ": > new", "mkdir new", "rm -f mine", "chmod 777 mine", "mv mine new", "touch mine"]
    {
        assert!(!as_nobody(refused), "{refused}");
    }
    assert_eq!(mounted.read("mine"), b"secret");
    let seen = mounted.counters();
    assert_eq!((seen.removed, seen.renamed, seen.made), (0, 0, 1), "the frontend got no request");
}

#[test]
fn a_read_only_mount_stays_read_only_when_root_remounts_it_as_writable() {
    use rustix::mount::{MountFlags, mount_remount};
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: a remount needs root");
    }
    let mounted = mounted!(Options { read_only: true, ..Options::default() });
    let new = NewEntry { permissions: 0o666, uid: 0, gid: 0 };
    let made = mounted.fs.create(&Context::OWN, ROOT, b"file", new, OpenMode::READ_WRITE).unwrap();
    made.1.write_at(b"safe", 0).unwrap();
    made.1.close().unwrap();
    drop(made);
    drop(mounted.fs.make_dir(&Context::OWN, ROOT, b"dir", new).unwrap());
    mounted.watch.opens();
    mount_remount(mounted.path(""), MountFlags::NOSUID | MountFlags::NODEV, "").unwrap();
    let file = mounted.path("file");
    assert_eq!(errno(OpenOptions::new().write(true).open(&file)), EROFS);
    assert_eq!(errno(OpenOptions::new().read(true).append(true).open(&file)), EROFS);
    let truncating = rustix::fs::open(&file, OFlags::RDONLY | OFlags::TRUNC, Mode::empty());
    assert_eq!(truncating.unwrap_err().raw_os_error(), EROFS);
    assert_eq!(errno(File::create(mounted.path("new"))), EROFS);
    assert_eq!(errno(fs::create_dir(mounted.path("new"))), EROFS);
    assert_eq!(errno(fs::remove_file(&file)), EROFS);
    assert_eq!(errno(fs::remove_dir(mounted.path("dir"))), EROFS);
    assert_eq!(errno(fs::rename(&file, mounted.path("new"))), EROFS);
    assert_eq!(errno(fs::hard_link(&file, mounted.path("new"))), EROFS);
    assert_eq!(errno(symlink("x", mounted.path("new"))), EROFS);
    assert_eq!(errno(fs::set_permissions(&file, Permissions::from_mode(0o600))), EROFS);
    assert_eq!(mounted.watch.opens(), []);
    assert_eq!(mounted.read("file"), b"safe");
}

#[test]
fn files_are_mapped_for_reading_and_for_writing() {
    let mounted = mounted!();
    let bytes: Vec<u8> = (0..100_000u32).map(|n| (n / 7) as u8).collect();
    mounted.write("file", &bytes);
    let file = mounted.open("file", OFlags::RDWR);
    for shared in [false, true] {
        map(&file, bytes.len(), shared, false, |seen| assert!(seen == bytes));
        // A mapping made now shows data written since the last one.
        file.write_all_at(b"changed", 50_000).unwrap();
        map(&file, bytes.len(), shared, false, |seen| assert_eq!(&seen[50_000..50_007], b"changed"));
        file.write_all_at(&bytes[50_000..50_007], 50_000).unwrap();
    }
    let read_only = mounted.open("file", OFlags::RDONLY);
    map(&read_only, bytes.len(), true, false, |seen| assert!(seen == bytes));

    map(&file, bytes.len(), true, true, |mapped| mapped[10..14].copy_from_slice(b"here"));
    assert_eq!(
        &mounted.read("file")[8..16],
        &[bytes[8], bytes[9], b'h', b'e', b'r', b'e', bytes[14], bytes[15]]
    );
    assert_eq!(mounted.read("file").len(), bytes.len());
    // Also if the descriptor appends.
    let append = mounted.open("file", OFlags::RDWR | OFlags::APPEND);
    map(&append, bytes.len(), true, true, |mapped| mapped[20] = 99);
    assert_eq!((mounted.read("file")[20], mounted.read("file").len()), (99, bytes.len()));
}

#[test]
fn a_program_that_was_just_written_runs() {
    let mounted = mounted!();
    fs::copy(fs::canonicalize("/bin/cat").unwrap(), mounted.path("cat")).unwrap();
    mounted.write("text", b"some text");
    fs::set_permissions(mounted.path("cat"), Permissions::from_mode(0o755)).unwrap();
    let ran = Command::new(mounted.path("cat")).arg(mounted.path("text")).output().unwrap();
    assert_eq!(ran.stdout, b"some text");
    assert_eq!(errno(Command::new(mounted.path("text")).output()), EACCES);
}

#[test]
fn statfs_returns_the_space_of_the_file_system() {
    let mounted = mounted!();
    mounted.write("file", vec![1; 1 << 20]);
    let (space, stat) = (mounted.fs.space().unwrap(), rustix::fs::statvfs(mounted.path("")).unwrap());
    assert!(space.free_bytes < space.total_bytes);
    assert_eq!(stat.f_blocks * stat.f_frsize, space.total_bytes);
    assert_eq!(stat.f_bfree * stat.f_frsize, space.free_bytes / 4096 * 4096);
    assert_eq!((stat.f_namemax, stat.f_files), (255, 0));
}

#[test]
fn a_full_file_system_is_an_error_of_write_and_of_close() {
    let mounted = mounted!();
    let mut file = mounted.open("file", OFlags::CREATE | OFlags::RDWR);
    file.write_all(b"fits").unwrap();
    mounted.watch.no_space_to_write.store(true, SeqCst);
    assert_eq!(errno(file.write_all(b"does not")), ENOSPC);
    let append = mounted.open("file", OFlags::WRONLY | OFlags::APPEND);
    assert_eq!(errno((&append).write_all(b"does not")), ENOSPC);
    mounted.watch.no_space_to_write.store(false, SeqCst);
    file.write_all(b" again").unwrap();
    mounted.watch.no_space_to_publish.store(true, SeqCst);
    let second = file.try_clone().unwrap();
    assert_eq!(errno(close(file)), ENOSPC);
    assert_eq!(errno(close(second)), ENOSPC, "each close of a descriptor asks");
    assert_eq!(errno(close(append)), ENOSPC);
    mounted.watch.no_space_to_publish.store(false, SeqCst);
    assert_eq!(mounted.read("file"), b"fits again");
    close(mounted.open("file", OFlags::WRONLY)).unwrap();
}

#[test]
fn each_file_is_closed_once() {
    let mounted = mounted!();
    for _ in 0..20 {
        mounted.write("file", b"written");
    }
    let opens = mounted.watch.opens().len() as u64;
    assert!(eventually(|| mounted.watch.closes.load(SeqCst) == opens));
    assert!(eventually(|| mounted.session.unmount().is_ok()));
    mounted.session.join().unwrap();
    assert_eq!(mounted.watch.closes.load(SeqCst), opens);
}

#[test]
fn files_open_at_the_end_of_a_session_are_published() {
    let mounted = mounted!();
    let file = mounted.open("file", OFlags::CREATE | OFlags::WRONLY);
    file.write_all_at(b"written", 0).unwrap();
    assert_eq!(mounted.watch.publishes.load(SeqCst), 0);
    let Mounted { session, watch, dir: _dir, .. } = mounted;
    session.stop();
    assert!(watch.publishes.load(SeqCst) >= 1);
}

#[test]
fn a_panic_in_one_file_does_not_prevent_the_publication_of_others() {
    let mounted = mounted!(Options { threads: 2, ..Options::default() });
    let files: Vec<File> =
        (0..3).map(|n| mounted.open(&format!("{n}"), OFlags::CREATE | OFlags::WRONLY)).collect();
    mounted.watch.panics.store(true, SeqCst);
    for file in files {
        assert!(close(file).is_err());
    }
    let Mounted { session, watch, dir: _dir, .. } = mounted;
    assert!(session.join().is_err());
    session.stop();
    assert!(watch.publishes.load(SeqCst) >= 4, "one that ended the session, and then all three");
}

#[test]
fn data_of_a_mapping_is_published_at_the_unmount_at_the_latest() {
    let mounted = mounted!();
    mounted.write("file", vec![0; 10_000]);
    for _ in 0..20 {
        let file = mounted.open("file", OFlags::RDWR);
        let before = mounted.watch.publishes.load(SeqCst);
        map(&file, 10_000, true, true, |mapped| mapped[7] += 1);
        drop(file);
        assert!(mounted.watch.publishes.load(SeqCst) > before);
    }
    assert!(eventually(|| mounted.session.unmount().is_ok()));
    mounted.session.join().unwrap();
    let opens = mounted.watch.opens().len() as u64;
    // Each file is published at close(2), and once more if a child of a concurrent test had a copy
    // of the descriptor. It is closed at most once, when the kernel releases it: an unmount drops
    // RELEASE requests that no worker has read yet, and these files are published instead.
    assert!(mounted.watch.publishes.load(SeqCst) >= opens);
    assert!(mounted.watch.closes.load(SeqCst) <= opens);
}

/// The file is closed by the RELEASE after the last close(2).
#[test]
fn a_file_system_that_publishes_writes_gets_no_flush() {
    let mounted =
        mounted!(Options { publishes_writes: true, locks: LockKeeper::Kernel, ..Options::default() });
    for flags in [OFlags::CREATE | OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY] {
        let (publishes, closes) = (mounted.watch.publishes.load(SeqCst), mounted.watch.closes.load(SeqCst));
        let file = mounted.open("file", flags);
        let copy = file.try_clone().unwrap();
        if flags != OFlags::RDONLY {
            file.write_all_at(b"written", 0).unwrap();
        }
        mounted.watch.no_space_to_publish.store(true, SeqCst);
        close(file).unwrap();
        assert_eq!(mounted.watch.closes.load(SeqCst), closes, "a copy of the descriptor is open");
        close(copy).unwrap();
        assert!(eventually(|| mounted.watch.closes.load(SeqCst) == closes + 1));
        mounted.watch.no_space_to_publish.store(false, SeqCst);
        assert_eq!(mounted.watch.publishes.load(SeqCst), publishes, "no FLUSH");
    }
    assert_eq!(mounted.read("file"), b"written");
    // fsync(2) returns errors as before.
    let file = mounted.open("file", OFlags::WRONLY);
    file.sync_all().unwrap();
    assert_eq!(mounted.watch.syncs.load(SeqCst), 1);
    // A file system that keeps the locks needs each FLUSH.
    let mounted = mounted!(Options { publishes_writes: true, ..Options::default() });
    mounted.write("file", b"x");
    assert!(mounted.watch.publishes.load(SeqCst) >= 1);
}

/// A close returns the error of a failed sync even for a file opened for reading: each close is
/// passed to the file.
#[test]
fn a_close_of_a_file_opened_for_reading_calls_publish() {
    let mounted = mounted!();
    mounted.write("file", b"x");
    assert!(eventually(|| mounted.counters().published == 2), "a close, and the end of the open file");
    close(mounted.open("file", OFlags::RDONLY)).unwrap();
    assert_eq!(mounted.read("file"), b"x");
    // No data was written: releasing a file that was open for reading publishes nothing.
    assert_eq!(mounted.counters().published, 4);
}

#[test]
fn a_failed_sync_returns_an_error() {
    let mounted = mounted!();
    let file = mounted.open("file", OFlags::CREATE | OFlags::RDWR);
    file.write_all_at(b"x", 0).unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    assert_eq!((mounted.watch.syncs.load(SeqCst), mounted.counters().synced), (2, 2));
    for each_write in [OFlags::SYNC, OFlags::DSYNC] {
        let before = mounted.watch.syncs.load(SeqCst);
        mounted.open("file", OFlags::WRONLY | each_write).write_all_at(b"y", 0).unwrap();
        assert_eq!(mounted.watch.syncs.load(SeqCst), before + 1);
    }
    let (dir, before) = (File::open(mounted.path("")).unwrap(), mounted.watch.syncs.load(SeqCst));
    dir.sync_all().unwrap();
    assert_eq!(mounted.watch.syncs.load(SeqCst), before + 1);
    mounted.watch.cannot_sync.store(true, SeqCst);
    assert_eq!(errno(dir.sync_all()), EIO);
    assert_eq!(errno(file.sync_all()), EIO);
    assert_eq!(errno(file.sync_data()), EIO);
    assert_eq!(errno(mounted.open("file", OFlags::WRONLY | OFlags::DSYNC).write_all_at(b"z", 0)), EIO);
    file.write_all_at(b"z", 0).unwrap();
}

#[test]
fn a_write_costs_exactly_one_request() {
    let mounted = mounted!();
    let file = mounted.open("file", OFlags::CREATE | OFlags::RDWR);
    let buffer = vec![1; 47_008];
    file.write_all_at(&buffer, 0).unwrap();
    let before = mounted.counters();
    for number in 1..200 {
        file.write_all_at(&buffer, number * 47_008).unwrap();
    }
    let after = mounted.counters();
    assert_eq!((after.writes - before.writes, after.xattrs), (199, before.xattrs));
    assert_eq!((after.attributes, after.lookups), (before.attributes, before.lookups));
    let mut into = vec![0; 47_008];
    for number in 0..200 {
        file.read_exact_at(&mut into, number * 47_008).unwrap();
    }
    let read = mounted.counters();
    assert_eq!((read.reads - after.reads, read.attributes), (200, after.attributes));
}

/// Makes the kernel drop all names of the mount that are not in use.
fn forget_names(mounted: &Mounted) {
    use rustix::mount::{MountFlags, mount_remount};
    mount_remount(mounted.path(""), MountFlags::NOSUID | MountFlags::NODEV, "").unwrap();
}

#[test]
fn all_references_are_returned() {
    let mounted = mounted!();
    let is_root = rustix::process::geteuid().is_root();
    for round in 0..20 {
        fs::create_dir_all(mounted.path("a/b/c")).unwrap();
        for n in 0..50 {
            mounted.write(&format!("a/b/c/{n}"), b"x");
            fs::metadata(mounted.path(format!("a/b/c/{n}"))).unwrap();
        }
        symlink("x", mounted.path("a/link")).unwrap();
        let names: Vec<_> = fs::read_dir(mounted.path("a/b/c")).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(names.len(), 50);
        let open = File::open(&names[0]).unwrap();
        fs::rename(&names[1], mounted.path("a/renamed")).unwrap();
        fs::rename(&names[2], &names[3]).unwrap();
        assert!(mounted.watch.references() > 0);
        if round % 2 == 0 {
            fs::remove_dir_all(mounted.path("a")).unwrap();
            assert!(mounted.watch.references() > 0, "somebody has it open");
        } else {
            drop(open);
            if is_root {
                let none_left = || {
                    forget_names(&mounted);
                    mounted.watch.references() == 0
                };
                assert!(eventually(none_left), "{}", mounted.watch.references());
            }
            assert_eq!(fs::read_dir(mounted.path("a/b/c")).unwrap().count(), 48, "with new references");
            fs::remove_dir_all(mounted.path("a")).unwrap();
        }
    }
    // A removed file has no name that the kernel could cache.
    assert!(eventually(|| mounted.watch.references() == 0), "{}", mounted.watch.references());
}

#[test]
fn changes_of_another_node_are_seen_at_the_next_lookup() {
    let mounted = mounted!();
    mounted.write("file", b"one");
    fs::metadata(mounted.path("file")).unwrap();
    // The test calls the file system directly, as if through another mount of the same tree.
    let there = mounted.fs.lookup(&Context::OWN, ROOT, b"file").unwrap().unwrap().into_attributes().node;
    mounted.fs.change(&Context::OWN, there, &Change { size_bytes: Some(1), ..Change::default() }).unwrap();
    assert_eq!(fs::metadata(mounted.path("file")).unwrap().len(), 1);
    assert_eq!(mounted.read("file"), b"o");
    mounted.fs.rename(&Context::OWN, ROOT, b"file", ROOT, b"moved", quell_vfs::Rename::Replace).unwrap();
    assert_eq!(errno(fs::metadata(mounted.path("file"))), ENOENT);
    assert_eq!(mounted.read("moved"), b"o");
    mounted.fs.forget(there, 1);
}

/// Lets the kernel keep data, as the owner of a session does while no other node uses the tree.
/// Returns false if this kernel keeps none, because it is older than Linux 6.18.
#[track_caller]
fn keep_data(mounted: &Mounted) -> bool {
    if kernel_version() < (6, 18) {
        println!("SKIPPED: Linux before 6.18 keeps no data");
        return false;
    }
    let (long, none) = (Duration::from_secs(600), Duration::ZERO);
    mounted.session.kernel_cache().unwrap().set_lifetime_until(Instant::now() + long, long, none);
    mounted.write("kept", b"kept");
    let is_kept = || {
        mounted.read("kept");
        let before = mounted.counters().reads;
        mounted.read("kept");
        mounted.counters().reads == before
    };
    // The kernel passes on the close of the writer shortly after close(2) has returned.
    assert!(eventually(is_kept), "the kernel does not keep the data");
    true
}

#[test]
fn data_that_the_kernel_keeps_is_read_once_and_ahead() {
    let mounted = mounted!();
    if !keep_data(&mounted) {
        return;
    }
    let bytes: Vec<u8> = (0..2_000_000u32).map(|n| (n / 11) as u8).collect();
    mounted.write("file", &bytes);
    let before = mounted.counters();
    for _ in 0..3 {
        let file = mounted.open("file", OFlags::RDONLY);
        let mut some = [0; 100];
        for offset in (0..1_000_000).step_by(100) {
            file.read_exact_at(&mut some, offset as u64).unwrap();
            assert_eq!(some, bytes[offset..offset + 100]);
        }
    }
    let read = mounted.counters();
    assert!(read.reads - before.reads < 100, "{} requests for 30,000 reads", read.reads - before.reads);
    // O_DIRECT passes each read on. Some of the few read-aheads may be counted later than the reads
    // that caused them.
    let direct = mounted.open("file", OFlags::RDONLY | OFlags::DIRECT);
    for _ in 0..200 {
        direct.read_exact_at(&mut [0; 100], 0).unwrap();
    }
    assert!(mounted.counters().reads >= read.reads + 200);
}

#[test]
fn changes_through_the_mount_are_seen_at_once_in_data_that_the_kernel_keeps() {
    let mounted = mounted!();
    if !keep_data(&mounted) {
        return;
    }
    let mut expected = vec![b'a'; 100_000];
    mounted.write("file", &expected);
    let reader = mounted.open("file", OFlags::RDONLY);
    #[track_caller]
    fn check(mounted: &Mounted, reader: &File, expected: &[u8]) {
        let mut seen = vec![0xee; expected.len() + 10_000];
        let length = reader.read_at(&mut seen, 0).unwrap();
        assert!(seen[..length] == *expected, "through the open descriptor: {length} bytes");
        assert!(mounted.read("file") == expected, "through a new descriptor");
        map(reader, expected.len(), true, false, |mapped| assert!(*mapped == *expected, "through a mapping"));
    }
    check(&mounted, &reader, &expected);
    let writer = mounted.open("file", OFlags::RDWR);
    writer.write_all_at(b"changed", 5_000).unwrap();
    expected[5_000..5_007].copy_from_slice(b"changed");
    check(&mounted, &reader, &expected);
    mounted.open("file", OFlags::WRONLY | OFlags::APPEND).write_all(b"appended").unwrap();
    expected.extend_from_slice(b"appended");
    check(&mounted, &reader, &expected);
    writer.set_len(50_000).unwrap();
    expected.truncate(50_000);
    check(&mounted, &reader, &expected);
    writer.write_all_at(b"end", 70_000).unwrap();
    expected.resize(70_000, 0);
    expected.extend_from_slice(b"end");
    check(&mounted, &reader, &expected);
    map(&writer, expected.len(), true, true, |mapped| mapped[10..14].copy_from_slice(b"here"));
    expected[10..14].copy_from_slice(b"here");
    check(&mounted, &reader, &expected);
    drop(writer);
    mounted.write("file", b"a new content");
    check(&mounted, &reader, b"a new content");
    // A time that is set to an earlier value does not bring back earlier data.
    let earlier = fs::metadata(mounted.path("file")).unwrap().modified().unwrap();
    mounted.write("file", b"another one..");
    mounted.open("file", OFlags::WRONLY).set_modified(earlier).unwrap();
    check(&mounted, &reader, b"another one..");
    mounted.write("other", b"replacement..");
    fs::rename(mounted.path("other"), mounted.path("file")).unwrap();
    let mut seen = [0; 13];
    reader.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"another one..", "the replaced file");
    assert_eq!(mounted.read("file"), b"replacement..");
}

/// Each byte of the file is the number of the round that wrote it. A read that begins after a round
/// returns its number or a later one, although others read ahead at the same time.
#[test]
fn reads_during_writes_leave_no_old_data_in_the_kernel() {
    const ROUNDS: u8 = 250;
    const BYTES: usize = 256 * 1024;
    let mounted = mounted!();
    let is_kept = keep_data(&mounted);
    mounted.write("file", vec![0; BYTES]);
    let readers: Vec<_> = (0..3).map(|_| mounted.open("file", OFlags::RDONLY)).collect();
    let written = std::sync::atomic::AtomicU8::new(0);
    std::thread::scope(|scope| {
        for reader in &readers {
            scope.spawn(|| {
                let mut seen = vec![0; 16 * 1024];
                while written.load(SeqCst) < ROUNDS {
                    for offset in (0..BYTES).step_by(seen.len()) {
                        let least = written.load(SeqCst);
                        reader.read_exact_at(&mut seen, offset as u64).unwrap();
                        let found = seen.iter().min().unwrap();
                        assert!(*found >= least, "{found} after round {least} at {offset}");
                    }
                }
            });
        }
        for round in 1..=ROUNDS {
            let writer = mounted.open("file", OFlags::WRONLY);
            for offset in (0..BYTES).step_by(64 * 1024) {
                writer.write_all_at(&vec![round; 64 * 1024], offset as u64).unwrap();
            }
            written.store(round, SeqCst);
        }
    });
    if is_kept {
        assert!(mounted.read("file").iter().all(|byte| *byte == ROUNDS));
    }
}

#[test]
fn data_is_not_kept_after_the_lifetime_and_changed_attributes_drop_it() {
    let mounted = mounted!();
    if !keep_data(&mounted) {
        return;
    }
    mounted.write("file", b"before");
    let reader = mounted.open("file", OFlags::RDONLY);
    let read = || {
        let mut seen = [0; 6];
        reader.read_exact_at(&mut seen, 0).unwrap();
        seen
    };
    assert_eq!(&read(), b"before");
    mounted.session.kernel_cache().unwrap().set_lifetime(Duration::ZERO);
    // The attributes that the kernel has are valid for the lifetime that they were sent with. A
    // change of them drops them.
    fs::set_permissions(mounted.path("file"), Permissions::from_mode(0o600)).unwrap();
    // As if through another mount of the same tree.
    let there = mounted.fs.lookup(&Context::OWN, ROOT, b"file").unwrap().unwrap().into_attributes().node;
    let other = mounted.fs.open_as(&Context::OWN, there, OpenMode::READ_WRITE).unwrap();
    other.write_at(b"after.", 0).unwrap();
    let modified = Some(quell_vfs::Time { seconds: 7, nanoseconds: 0 });
    mounted.fs.change(&Context::OWN, there, &Change { modified, ..Change::default() }).unwrap();
    assert_eq!(&read(), b"after.", "the time of the file has changed");
    other.write_at(b"direct", 0).unwrap();
    assert_eq!(mounted.read("file"), b"direct", "a new descriptor reads without the cache");
    mounted.fs.forget(there, 1);
}

#[test]
fn the_kernel_repeats_no_request_to_an_exclusive_mount_until_a_request_changes_the_answer() {
    let mounted = mounted!(Options { exclusive: true, ..Options::default() });
    fs::create_dir_all(mounted.path("dir/sub")).unwrap();
    mounted.write("dir/file", b"one");
    symlink("file", mounted.path("dir/link")).unwrap();
    let listed =
        || fs::read_dir(mounted.path("dir")).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
    let ask = || {
        assert_eq!(listed().len(), 3);
        assert_eq!(fs::metadata(mounted.path("dir/file")).unwrap().len(), 3);
        assert_eq!(fs::read_link(mounted.path("dir/link")).unwrap(), Path::new("file"));
        assert_eq!(errno(fs::metadata(mounted.path("dir/missing"))), ENOENT);
    };
    // The kernel drops caches when memory is short, and a file that was closed just before may
    // still be open here.
    let is_kept = || {
        ask();
        let before = mounted.counters();
        ask();
        mounted.counters() == before
    };
    assert!(eventually(is_kept));

    // Data is kept since Linux 6.18, which may be older here.
    for content in [&b"two"[..], b"three", b""] {
        mounted.write("dir/file", content);
        for _ in 0..3 {
            assert_eq!(mounted.read("dir/file"), content);
        }
    }
    mounted.write("dir/file", b"one");

    // Each change is seen at once.
    mounted.write("dir/missing", b"four");
    assert_eq!(fs::metadata(mounted.path("dir/missing")).unwrap().len(), 4);
    assert_eq!(listed().len(), 4);
    fs::rename(mounted.path("dir/file"), mounted.path("dir/second")).unwrap();
    assert_eq!(errno(fs::metadata(mounted.path("dir/file"))), ENOENT);
    fs::rename(mounted.path("dir/second"), mounted.path("dir/sub/moved")).unwrap();
    assert_eq!(mounted.read("dir/sub/moved"), b"one");
    assert_eq!(errno(fs::metadata(mounted.path("dir/second"))), ENOENT);
    fs::set_permissions(mounted.path("dir/sub/moved"), Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::metadata(mounted.path("dir/sub/moved")).unwrap().permissions().mode() & 0o777, 0o600);
    let before = fs::metadata(mounted.path("dir")).unwrap();
    fs::create_dir(mounted.path("dir/new")).unwrap();
    let after = fs::metadata(mounted.path("dir")).unwrap();
    assert!(after.nlink() > before.nlink() && after.modified().unwrap() >= before.modified().unwrap());
    assert_eq!(listed().len(), 4);
    fs::remove_dir_all(mounted.path("dir")).unwrap();
    assert_eq!(errno(fs::metadata(mounted.path("dir"))), ENOENT);
    assert!(eventually(|| mounted.watch.references() == 0), "{}", mounted.watch.references());
}

#[test]
fn mountinfo_shows_a_writable_mount() {
    let mounted = mounted!();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(mounted.dir.path().to_str().unwrap())).unwrap();
    assert!(line.contains(" fuse.quell rw,nosuid,nodev,") && line.contains("default_permissions"), "{line}");
}

#[test]
fn every_counter_of_a_writable_mount_has_a_name() {
    let mounted = mounted!();
    mounted.write("file", b"12345");
    let pairs: std::collections::BTreeMap<_, _> = mounted.counters().pairs().collect();
    assert_eq!(pairs.len(), 22);
    assert_eq!((pairs["made"], pairs["bytes_written"]), (1, 5));
}

#[test]
fn opens_of_anything_but_a_file_are_refused() {
    let mounted = mounted!();
    fs::create_dir(mounted.path("dir")).unwrap();
    let open = |flags: OFlags| {
        OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(mounted.path("dir"))
    };
    assert_eq!(errno(open(OFlags::empty())), EISDIR);
    assert_eq!(errno(open(OFlags::CREATE)), EISDIR);
    symlink("file", mounted.path("link")).unwrap();
    fs::write(mounted.path("link"), b"through the link").unwrap();
    assert_eq!(mounted.read("file"), b"through the link");
}
