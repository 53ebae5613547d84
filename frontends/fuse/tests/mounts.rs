//! Tests a real mount with the system calls that programs make. Each test mounts a small tree in
//! its own directory. If this machine allows no mounts, the tests print `SKIPPED:` and the reason.

mod memory;
mod mounted;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memory::{Content, Memory, ROOT};
use mounted::mounted;
use quell_fuse::{Options, Session, Snapshot};
use quell_vfs::{ErrorKind, Kind, Time};

/// A tree mounted for one test, unmounted and removed when dropped.
struct TestMount {
    // Declared before the directory, because fields are dropped in order.
    session: Session,
    dir: tempfile::TempDir,
}

impl TestMount {
    fn new(memory: Memory, options: &Options) -> Option<TestMount> {
        let (session, dir) = mounted(Arc::new(memory), options)?;
        Some(TestMount { session, dir })
    }

    fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.dir.path().join(name.as_ref())
    }

    fn counters(&self) -> Snapshot {
        self.session.counters().snapshot()
    }
}

/// Mounts, or ends the test.
macro_rules! view {
    ($memory:expr) => {
        view!($memory, Options::default())
    };
    ($memory:expr, $options:expr) => {
        match TestMount::new($memory, &$options) {
            Some(view) => view,
            None => return,
        }
    };
}

/// Returns whether the kernel answers `ask` from its caches. Tried a few times, because the kernel
/// drops cached data when memory is short or a user requests it.
fn kept(view: &TestMount, mut ask: impl FnMut()) -> bool {
    (0..5).any(|_| {
        ask();
        let before = view.counters();
        ask();
        view.counters() == before
    })
}

fn errno<T>(result: io::Result<T>) -> i32 {
    result.err().expect("an error").raw_os_error().expect("an error of the system")
}

/// Returns whether a program gets this error from a session that is over: EIO from its last
/// workers, ECONNABORTED for requests in flight when the connection closed, ENOTCONN afterwards.
fn dead(number: i32) -> bool {
    [EIO, ECONNABORTED, ENOTCONN].contains(&number)
}

fn names(dir: &Path) -> Vec<OsString> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EACCES: i32 = 13;
const EROFS: i32 = 30;
const ERANGE: i32 = 34;
const ENAMETOOLONG: i32 = 36;
const ENODATA: i32 = 61;
const EOPNOTSUPP: i32 = 95;
const ECONNABORTED: i32 = 103;
const ENOTCONN: i32 = 107;
const ESTALE: i32 = 116;

#[test]
fn stat_returns_the_attributes_of_the_contract() {
    let mut memory = Memory::new();
    let file = memory.file(ROOT, "file", b"twelve bytes");
    let attributes = memory.attributes_mut(file);
    attributes.permissions = 0o4751;
    attributes.uid = 4_000_000_000;
    attributes.gid = 12_345;
    attributes.nlink = 7;
    attributes.blocks = 99;
    attributes.modified = Time { seconds: -1_000, nanoseconds: 999_999_999 };
    attributes.changed = Time { seconds: 5_000_000_000, nanoseconds: 1 };
    let huge = memory.file_with(ROOT, "huge", 1 << 60, Content::Pattern);
    assert_eq!(huge.0, 2);
    let view = view!(memory);

    let stat = fs::metadata(view.path("file")).unwrap();
    assert_eq!(stat.ino(), file.0 + 1);
    assert_eq!(stat.mode(), 0o104_751);
    assert_eq!((stat.uid(), stat.gid()), (4_000_000_000, 12_345));
    assert_eq!((stat.nlink(), stat.size(), stat.blocks()), (7, 12, 99));
    assert_eq!((stat.mtime(), stat.mtime_nsec()), (-1_000, 999_999_999));
    assert_eq!((stat.atime(), stat.atime_nsec()), (-1_000, 999_999_999));
    assert_eq!((stat.ctime(), stat.ctime_nsec()), (5_000_000_000, 1));
    assert_eq!(fs::metadata(view.path("huge")).unwrap().size(), 1 << 60);
    assert_eq!(fs::metadata(view.path("")).unwrap().ino(), 1);
}

#[test]
fn a_stat_is_sent_once_and_then_answered_by_the_kernel() {
    let mut memory = Memory::new();
    memory.file(ROOT, "file", b"x");
    let view = view!(memory);
    fs::metadata(view.path("file")).unwrap();
    assert_eq!(view.counters().lookups, 1);
    assert!(kept(&view, || assert_eq!(fs::metadata(view.path("file")).unwrap().size(), 1)));
}

#[test]
fn a_missing_name_is_looked_up_once() {
    let mut memory = Memory::new();
    memory.dir(ROOT, "dir");
    let view = view!(memory);
    let ask = || assert_eq!(errno(fs::metadata(view.path("dir/libmissing.so"))), ENOENT);
    ask();
    let seen = view.counters();
    assert_eq!((seen.lookups, seen.negative_lookups, seen.errors), (2, 1, 0));
    assert!(kept(&view, ask));
}

#[test]
fn nothing_of_a_mutable_file_system_is_cached() {
    let mut memory = Memory::new();
    memory.can.immutable = false;
    memory.file(ROOT, "file", b"x");
    let view = view!(memory);
    for _ in 0..10 {
        assert_eq!(errno(fs::metadata(view.path("missing"))), ENOENT);
        fs::metadata(view.path("file")).unwrap();
        assert_eq!(names(&view.path("")), ["file"]);
        assert_eq!(fs::read(view.path("file")).unwrap(), b"x");
    }
    let seen = view.counters();
    assert_eq!((seen.negative_lookups, seen.listings, seen.reads >= 10), (10, 10, true));
    assert!(seen.lookups >= 20);
}

#[test]
fn a_directory_of_100_000_entries_is_listed_completely_in_order_and_then_cached() {
    let mut memory = Memory::new();
    let big = memory.dir(ROOT, "big");
    let mut expected = Vec::new();
    for n in 0..100_000 {
        let name = format!("entry-{n:06}");
        memory.file(big, &name, b"");
        expected.push(OsString::from(name));
    }
    let view = view!(memory);
    assert_eq!(names(&view.path("big")), expected);
    let seen = view.counters();
    assert_eq!((seen.listings, seen.entries_listed), (1, 100_000));

    assert!(kept(&view, || {
        assert_eq!(names(&view.path("big")), expected);
        for name in expected.iter().step_by(1000) {
            fs::metadata(view.path("big").join(name)).unwrap();
        }
    }));
}

#[test]
fn listings_start_with_dots_and_have_types_and_inodes() {
    let mut memory = Memory::new();
    let dir = memory.dir(ROOT, "dir");
    for (name, kind) in [
        ("file", Kind::File),
        ("directory", Kind::Dir),
        ("symlink", Kind::Symlink),
        ("fifo", Kind::Fifo),
        ("socket", Kind::Socket),
        ("char", Kind::CharDevice),
        ("block", Kind::BlockDevice),
    ] {
        memory.add(dir, name, kind, 0o600);
    }
    let view = view!(memory);
    let opened = File::open(view.path("dir")).unwrap();
    let entries: Vec<_> = rustix::fs::Dir::new(opened).unwrap().map(|entry| entry.unwrap()).collect();
    let seen: Vec<_> =
        entries.iter().map(|e| (e.file_name().to_str().unwrap(), e.file_type(), e.ino())).collect();
    use rustix::fs::FileType::*;
    let expected = [
        (".", Directory, 2),
        ("..", Directory, 1),
        ("file", RegularFile, 3),
        ("directory", Directory, 4),
        ("symlink", Symlink, 5),
        ("fifo", Fifo, 6),
        ("socket", Socket, 7),
        ("char", CharacterDevice, 8),
        ("block", BlockDevice, 9),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn seekdir_continues_at_the_given_offset() {
    for immutable in [true, false] {
        let mut memory = Memory::new();
        memory.can.immutable = immutable;
        for n in 0..5000 {
            memory.file(ROOT, format!("{n}"), b"");
        }
        let view = view!(memory);
        let mut dir = rustix::fs::Dir::new(File::open(view.path("")).unwrap()).unwrap();
        let first: Vec<_> = dir.by_ref().map(|entry| entry.unwrap()).collect();
        assert_eq!(first.len(), 5002);
        for at in [0, 1, 2, 77, 4000, 5000, 5001] {
            dir.seek(first[at].offset()).unwrap();
            let next = dir.next().map(|entry| entry.unwrap().file_name().to_owned());
            assert_eq!(next, first.get(at + 1).map(|entry| entry.file_name().to_owned()), "after {at}");
        }
        dir.rewind();
        assert_eq!(dir.count(), 5002);
    }
}

#[test]
fn names_are_any_bytes_up_to_255() {
    let mut memory = Memory::new();
    let odd: Vec<Vec<u8>> = vec![
        vec![b'x'; 255],
        vec![0xff; 255],
        b"\xff\xfe not UTF-8".to_vec(),
        b"new\nline".to_vec(),
        "größe".as_bytes().to_vec(),
        b"...".to_vec(),
    ];
    for name in &odd {
        memory.file(ROOT, name, name);
    }
    let view = view!(memory);
    for name in &odd {
        assert_eq!(&fs::read(view.path(OsStr::from_bytes(name))).unwrap(), name);
    }
    assert_eq!(names(&view.path("")), odd.iter().cloned().map(OsString::from_vec).collect::<Vec<_>>());
    assert_eq!(errno(fs::metadata(view.path("y".repeat(256)))), ENAMETOOLONG);
}

#[test]
fn directories_deeper_than_path_max_are_reached() {
    let mut memory = Memory::new();
    let name = "d".repeat(200);
    let mut dir = ROOT;
    for _ in 0..40 {
        dir = memory.dir(dir, &name);
    }
    memory.file(dir, "deep", b"down here");
    let view = view!(memory);
    let mut at = File::open(view.path("")).unwrap();
    let open = |at: &File, name: &str| {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        File::from(rustix::fs::openat(at, name, flags, rustix::fs::Mode::empty()).unwrap())
    };
    for _ in 0..40 {
        at = open(&at, &name);
    }
    assert_eq!(io::read_to_string(open(&at, "deep")).unwrap(), "down here");
    assert_eq!(open(&at, "..").metadata().unwrap().ino(), 40);
}

#[test]
fn a_link_target_is_returned_unchanged_and_cached() {
    let mut memory = Memory::new();
    memory.symlink(ROOT, "odd", b"\xff/../ \n");
    memory.symlink(ROOT, "long", &[b'y'; 4095]);
    memory.symlink(ROOT, "there", b"file");
    memory.file(ROOT, "file", b"found");
    let view = view!(memory);
    assert!(kept(&view, || {
        assert_eq!(fs::read_link(view.path("odd")).unwrap().as_os_str().as_bytes(), b"\xff/../ \n");
        assert_eq!(fs::read_link(view.path("long")).unwrap().as_os_str().len(), 4095);
        assert_eq!(fs::metadata(view.path("there")).unwrap().size(), 5);
    }));
    assert!(view.counters().links_read >= 3);
}

#[test]
fn special_files_keep_kind_and_device_number() {
    let mut memory = Memory::new();
    memory.add(ROOT, "fifo", Kind::Fifo, 0o600);
    memory.add(ROOT, "socket", Kind::Socket, 0o755);
    for (name, kind, major, minor) in
        [("null", Kind::CharDevice, 1, 3), ("big", Kind::BlockDevice, 4095, (1 << 20) - 1)]
    {
        let node = memory.add(ROOT, name, kind, 0o660);
        memory.attributes_mut(node).rdev = rustix::fs::makedev(major, minor);
    }
    let view = view!(memory);
    let stat = |name: &str| fs::metadata(view.path(name)).unwrap();
    assert!(stat("fifo").file_type().is_fifo());
    assert!(stat("socket").file_type().is_socket());
    assert!(stat("null").file_type().is_char_device());
    assert_eq!(stat("null").rdev(), rustix::fs::makedev(1, 3));
    assert!(stat("big").file_type().is_block_device());
    assert_eq!(stat("big").rdev(), rustix::fs::makedev(4095, (1 << 20) - 1));
    assert_eq!(errno(File::open(view.path("null"))), EACCES, "no devices through a view");
}

#[test]
fn hard_links_are_one_inode() {
    let mut memory = Memory::new();
    let dir = memory.dir(ROOT, "dir");
    let file = memory.file(ROOT, "a", b"shared");
    memory.link(dir, "b", file);
    memory.attributes_mut(file).nlink = 2;
    let view = view!(memory);
    let (a, b) = (fs::metadata(view.path("a")).unwrap(), fs::metadata(view.path("dir/b")).unwrap());
    assert_eq!((a.ino(), a.nlink()), (b.ino(), b.nlink()));
    assert_eq!(a.nlink(), 2);
    assert_eq!(fs::read(view.path("dir/b")).unwrap(), b"shared");
}

#[test]
fn extended_attributes_follow_the_rules_for_sizes() {
    let mut memory = Memory::new();
    memory.can.xattrs = true;
    let file = memory.file(ROOT, "file", b"");
    memory.xattr(file, b"user.one", b"value\0with\xff");
    memory.xattr(file, b"user.empty", b"");
    memory.xattr(file, b"user.large", &[7; 65536]);
    memory.file(ROOT, "plain", b"");
    let view = view!(memory);
    let path = view.path("file");

    let mut buffer = [0; 100];
    assert_eq!(rustix::fs::getxattr(&path, "user.one", &mut buffer).unwrap(), 11);
    assert_eq!(&buffer[..11], b"value\0with\xff");
    assert_eq!(rustix::fs::getxattr_query(&path, "user.one").unwrap(), 11);
    let small = rustix::fs::getxattr(&path, "user.one", &mut [0; 10]);
    assert_eq!(small.unwrap_err().raw_os_error(), ERANGE);
    assert_eq!(rustix::fs::getxattr(&path, "user.empty", &mut buffer).unwrap(), 0);
    let mut large = vec![0; 65536];
    assert_eq!(rustix::fs::getxattr(&path, "user.large", &mut large).unwrap(), 65536);
    let missing = rustix::fs::getxattr(&path, "user.two", &mut buffer);
    assert_eq!(missing.unwrap_err().raw_os_error(), ENODATA);

    let list = b"user.one\0user.empty\0user.large\0";
    assert_eq!(rustix::fs::listxattr(&path, &mut buffer).unwrap(), list.len());
    assert_eq!(&buffer[..list.len()], list);
    assert_eq!(rustix::fs::listxattr(&path, &mut [0; 5]).unwrap_err().raw_os_error(), ERANGE);
    assert_eq!(rustix::fs::listxattr(view.path("plain"), &mut buffer).unwrap(), 0);
    assert_eq!(view.counters().errors, 0);
}

#[test]
fn extended_attributes_are_requested_once_if_there_are_none() {
    let mut memory = Memory::new();
    memory.file(ROOT, "file", b"");
    let view = view!(memory);
    let path = view.path("file");
    for _ in 0..10 {
        let get = rustix::fs::getxattr(&path, "user.one", &mut [0; 10]);
        assert_eq!(get.unwrap_err().raw_os_error(), EOPNOTSUPP);
        let list = rustix::fs::listxattr(&path, &mut [0; 10]);
        assert_eq!(list.unwrap_err().raw_os_error(), EOPNOTSUPP);
    }
    assert_eq!(view.counters().xattrs, 2);
}

#[test]
fn reads_at_any_offset_give_the_bytes() {
    for no_open in [false, true] {
        let mut memory = Memory::new();
        let size = 5 * 1024 * 1024 + 123;
        memory.file_with(ROOT, "file", size, Content::Pattern);
        memory.file(ROOT, "empty", b"");
        let view = view!(memory, Options { no_open, ..Options::default() });
        let mut file = File::open(view.path("file")).unwrap();
        for offset in [0, 1, 4095, 4096, 1 << 20, size - 5000, size - 1] {
            let mut buffer = vec![0xee; 5000];
            let n = file.read_at(&mut buffer, offset).unwrap();
            assert_eq!(n as u64, 5000.min(size - offset));
            let right = buffer[..n].iter().zip(offset..).all(|(byte, at)| *byte == (at / 4096) as u8);
            assert!(right, "at {offset}");
        }
        assert_eq!(file.read_at(&mut [0; 10], size).unwrap(), 0);
        assert_eq!(file.read_at(&mut [0; 10], size + 100).unwrap(), 0);
        assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), size);
        file.rewind().unwrap();
        let mut all = Vec::new();
        file.read_to_end(&mut all).unwrap();
        assert_eq!(all.len() as u64, size);
        assert_eq!(fs::read(view.path("empty")).unwrap(), b"");

        let before = view.counters().reads;
        let kept = (0..5).any(|_| {
            assert_eq!(fs::read(view.path("file")).unwrap(), all);
            view.counters().reads == before
        });
        assert!(kept, "the kernel keeps the data");
    }
}

#[test]
fn a_file_read_in_order_arrives_in_large_requests() {
    let mut memory = Memory::new();
    memory.file_with(ROOT, "large", 16 << 20, Content::Pattern);
    let view = view!(memory);
    fs::copy(view.path("large"), "/dev/null").unwrap();
    let seen = view.counters();
    // The kernel sends requests of 128 KiB by default; root may raise this to 1 MiB.
    let expected = if rustix::process::geteuid().is_root() { 30 } else { 150 };
    assert!(seen.reads <= expected, "{} reads", seen.reads);
}

#[test]
#[allow(unsafe_code)]
fn a_mapped_file_shows_its_bytes() {
    let mut memory = Memory::new();
    let size = 1 << 20;
    memory.file_with(ROOT, "file", size, Content::Pattern);
    let view = view!(memory);
    let file = File::open(view.path("file")).unwrap();
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    // SAFETY: a private mapping of a file that never changes, read within its length, and unmapped
    // once.
    unsafe {
        let at =
            mmap(std::ptr::null_mut(), size as usize, ProtFlags::READ, MapFlags::PRIVATE, &file, 0).unwrap();
        let bytes = std::slice::from_raw_parts(at.cast::<u8>(), size as usize);
        assert!(bytes.iter().zip(0..).all(|(byte, at)| *byte == (at / 4096) as u8));
        munmap(at, size as usize).unwrap();
    }
}

#[test]
fn programs_run_from_the_view() {
    for no_open in [false, true] {
        let mut memory = Memory::new();
        let cat = fs::read(fs::canonicalize("/bin/cat").unwrap()).unwrap();
        let program = memory.file(ROOT, "program", &cat);
        memory.attributes_mut(program).permissions = 0o755;
        let script = memory.file(ROOT, "script", b"#!/bin/sh\necho script \"$0\"\n");
        memory.attributes_mut(script).permissions = 0o755;
        memory.file(ROOT, "text", b"some text");
        let view = view!(memory, Options { no_open, ..Options::default() });
        let ran = Command::new(view.path("program")).arg(view.path("text")).output().unwrap();
        assert_eq!(ran.stdout, b"some text");
        let ran = Command::new(view.path("script")).output().unwrap();
        assert!(ran.stdout.starts_with(b"script /"));
        assert_eq!(errno(Command::new(view.path("text")).output()), EACCES);
    }
}

#[test]
fn concurrent_readers_all_get_their_bytes() {
    for no_open in [false, true] {
        let mut memory = Memory::new();
        for n in 0..40 {
            memory.file(ROOT, format!("{n}"), format!("content of {n}").repeat(1000).as_bytes());
        }
        let view = view!(memory, Options { no_open, ..Options::default() });
        std::thread::scope(|scope| {
            for start in 0..16 {
                let view = &view;
                scope.spawn(move || {
                    for n in (0..40).map(|n| (n + start) % 40) {
                        let bytes = fs::read(view.path(format!("{n}"))).unwrap();
                        assert_eq!(bytes, format!("content of {n}").repeat(1000).as_bytes());
                        assert_eq!(names(&view.path("")).len(), 40);
                    }
                });
            }
        });
        assert_eq!(view.counters().errors, 0);
    }
}

#[test]
fn writing_is_refused_as_on_any_read_only_mount() {
    let mut memory = Memory::new();
    let file = memory.file(ROOT, "file", b"safe");
    memory.attributes_mut(file).permissions = 0o666;
    memory.dir(ROOT, "dir");
    let view = view!(memory);
    let file = view.path("file");
    assert_eq!(errno(OpenOptions::new().write(true).open(&file)), EROFS);
    assert_eq!(errno(OpenOptions::new().read(true).append(true).open(&file)), EROFS);
    assert_eq!(errno(File::create(view.path("new"))), EROFS);
    assert_eq!(errno(fs::create_dir(view.path("new"))), EROFS);
    assert_eq!(errno(fs::remove_file(&file)), EROFS);
    assert_eq!(errno(fs::remove_dir(view.path("dir"))), EROFS);
    assert_eq!(errno(fs::rename(&file, view.path("new"))), EROFS);
    assert_eq!(errno(fs::hard_link(&file, view.path("new"))), EROFS);
    assert_eq!(errno(std::os::unix::fs::symlink("x", view.path("new"))), EROFS);
    assert_eq!(errno(fs::set_permissions(&file, fs::Permissions::from_mode(0o600))), EROFS);
    let set = rustix::fs::setxattr(&file, "user.x", b"y", rustix::fs::XattrFlags::empty());
    assert_eq!(set.unwrap_err().raw_os_error(), EROFS);
    assert_eq!(fs::read(&file).unwrap(), b"safe");
}

#[test]
fn the_error_of_a_refused_open_reaches_the_program() {
    let refused = || {
        let mut memory = Memory::new();
        for (name, kind) in [
            ("stale", ErrorKind::Stale),
            ("secret", ErrorKind::PermissionDenied),
            ("gone", ErrorKind::NotFound),
            ("unsupported", ErrorKind::Os(38)),
        ] {
            memory.file_with(ROOT, name, 100, Content::Refused(kind));
        }
        memory.file(ROOT, "good", b"good");
        memory
    };
    let expected = [("stale", ESTALE), ("secret", EACCES), ("gone", ENOENT), ("unsupported", EOPNOTSUPP)];

    let view = view!(refused());
    for (name, number) in expected {
        assert_eq!(errno(File::open(view.path(name))), number, "{name}");
    }
    assert_eq!(fs::read(view.path("good")).unwrap(), b"good");
    let seen = view.counters();
    // The kernel repeats an open that fails with ESTALE once.
    assert_eq!((seen.opens, seen.opens_refused, seen.errors), (1, 5, 5));

    // If the kernel sends no opens, the first read returns the same errors.
    let view = view!(refused(), Options { no_open: true, ..Options::default() });
    for (name, number) in expected {
        assert_eq!(errno(File::open(view.path(name)).unwrap().read(&mut [0; 10])), number, "{name}");
    }
    assert_eq!(fs::read(view.path("good")).unwrap(), b"good");
}

#[test]
fn an_open_without_open_requests_costs_no_request() {
    let mut memory = Memory::new();
    for n in 0..1000 {
        memory.file(ROOT, format!("{n}"), format!("{n}").as_bytes());
    }
    let view = view!(memory, Options { no_open: true, ..Options::default() });
    let read_all = || {
        for n in 0..1000 {
            assert_eq!(fs::read_to_string(view.path(format!("{n}"))).unwrap(), format!("{n}"));
        }
    };
    read_all(); // more files than the server keeps open
    let seen = view.counters();
    assert_eq!((seen.opens, seen.errors), (1000, 0));
    assert!(kept(&view, read_all));
}

#[test]
fn permissions_are_those_of_the_attributes() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: asking as another user needs root");
        return;
    }
    let mut memory = Memory::new();
    memory.attributes_mut(ROOT).permissions = 0o755;
    let private = memory.file(ROOT, "private", b"");
    memory.attributes_mut(private).permissions = 0o600;
    memory.file(ROOT, "public", b"open to all");
    let as_nobody = |path: PathBuf| {
        use std::os::unix::process::CommandExt;
        Command::new("cat").arg(path).uid(65534).gid(65534).output().unwrap()
    };
    let view = view!(memory, Options { allow_other: true, ..Options::default() });
    fs::set_permissions(view.dir.path().parent().unwrap(), fs::Permissions::from_mode(0o1777)).ok();
    assert_eq!(as_nobody(view.path("public")).stdout, b"open to all");
    let denied = String::from_utf8(as_nobody(view.path("private")).stderr).unwrap();
    assert!(denied.contains("Permission denied"), "{denied}");
}

#[test]
fn the_kernel_applies_access_control_lists() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: asking as another user needs root");
        return;
    }
    let mut memory = Memory::new();
    (memory.can.xattrs, memory.can.acls) = (true, true);
    // Version 2; user::rw-, user:65534:r--, group::---, mask::r--, other::---.
    let mut acl = 2u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, permissions, id) in
        [(1u16, 6u16, none), (2, 4, 65534), (4, 0, none), (16, 4, none), (32, 0, none)]
    {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&permissions.to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    let file = memory.file(ROOT, "listed", b"for nobody");
    memory.attributes_mut(file).permissions = 0o640;
    memory.xattr(file, b"system.posix_acl_access", &acl);
    let view = view!(memory, Options { allow_other: true, ..Options::default() });
    let as_user = |id: u32| {
        use std::os::unix::process::CommandExt;
        Command::new("cat").arg(view.path("listed")).uid(id).gid(id).output().unwrap()
    };
    assert_eq!(as_user(65534).stdout, b"for nobody");
    assert!(!as_user(65533).status.success());
}

#[test]
fn mountinfo_shows_the_type_source_and_options() {
    let options = Options { source: "a tree, of \\ software".to_owned(), ..Options::default() };
    let view = view!(Memory::new(), options);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let place = view.dir.path().to_str().unwrap();
    let line = mounts.lines().find(|line| line.contains(place)).unwrap();
    assert!(line.starts_with("a\\040tree,\\040of\\040\\134\\040software "), "{line}");
    assert!(line.contains(" fuse.quell ro,nosuid,nodev,"), "{line}");
    assert!(line.contains("default_permissions"), "{line}");
    let stat = rustix::fs::statvfs(view.path("")).unwrap();
    assert_eq!((stat.f_namemax, stat.f_blocks, stat.f_bavail), (255, 0, 0));
}

#[test]
fn an_unmount_ends_the_session_and_a_busy_mount_is_kept() {
    let mut memory = Memory::new();
    memory.file(ROOT, "file", b"");
    let view = view!(memory);
    let open = File::open(view.path("file")).unwrap();
    assert!(matches!(view.session.unmount().unwrap_err().kind, ErrorKind::Busy));
    assert!(!view.session.is_over());
    drop(open);
    let start = Instant::now();
    loop {
        match view.session.unmount() {
            Ok(()) => break,
            // The release of the file that was just closed may not have arrived yet.
            Err(_) if start.elapsed() < Duration::from_secs(60) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
    view.session.join().unwrap();
    assert!(view.session.is_over());
    assert_eq!(names(view.dir.path()), Vec::<OsString>::new());
    view.session.unmount().unwrap();
}

#[test]
fn dropping_a_session_unmounts_even_when_in_use() {
    let mut memory = Memory::new();
    memory.file_with(ROOT, "file", 100, Content::Pattern);
    let TestMount { session, dir } = view!(memory);
    let mut open = File::open(dir.path().join("file")).unwrap();
    session.stop();
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(dir.path().to_str().unwrap()));
    assert!(dead(errno(open.read(&mut [0; 10]))));
}

#[test]
fn a_panic_ends_the_session_and_blocks_no_program() {
    for threads in [1, 4] {
        let mut memory = Memory::new();
        memory.file_with(ROOT, "bad", 100, Content::Panic);
        memory.file(ROOT, "good", b"good");
        let view = view!(memory, Options { threads, ..Options::default() });
        assert_eq!(fs::read(view.path("good")).unwrap(), b"good");
        let start = Instant::now();
        assert!(dead(errno(fs::read(view.path("bad")))));
        let error = view.session.join().unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
        // Each request that still reaches a worker ends that worker. The last one closes the
        // connection.
        let numbers: Vec<i32> =
            (0..2 * threads).map(|n| errno(fs::metadata(view.path(format!("new{n}"))))).collect();
        assert!(numbers.iter().all(|number| dead(*number)), "{numbers:?}");
        assert_eq!(numbers.last(), Some(&ENOTCONN));
        assert!(start.elapsed() < Duration::from_secs(60), "a request hung for a while");
    }
}

#[test]
fn a_missing_mount_point_is_named() {
    let error = quell_fuse::mount_at(Arc::new(Memory::new()), Path::new("/no/such/dir"), &Options::default());
    assert_eq!(error.unwrap_err().to_string(), "mount on /no/such/dir: No such file or directory");
}

#[test]
fn every_counter_has_a_name() {
    let names: HashSet<&str> = Snapshot::default().pairs().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 12);
    let mut memory = Memory::new();
    memory.file(ROOT, "file", b"12345");
    let view = view!(memory);
    fs::read(view.path("file")).unwrap();
    let pairs: Vec<_> = view.counters().pairs().filter(|(_, value)| *value > 0).collect();
    assert!(pairs.contains(&("opens", 1)) && pairs.contains(&("bytes_read", 5)), "{pairs:?}");
}
