//! Trees to cover: a varied one with all kinds of entries, and small ones.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use crate::stage::{Stage, has, is_root};

/// The size of the file that consists almost entirely of a hole.
pub const HUGE_BYTES: u64 = 1 << 40;

pub fn name(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Sets a modification time, which may be before 1970.
pub fn set_mtime(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A script that truncates a file with set-id bits at its opening, and prints the permissions. Its
/// argument is the directory of the file.
pub const TRUNCATE_WITH_SET_ID: &str =
    "cd \"$1\" && touch program && chmod 6755 program && : >program && stat -c %a program && rm program";

/// The output of [`TRUNCATE_WITH_SET_ID`]: only root keeps the bits (`CAP_FSETID`).
pub fn permissions_after_truncation() -> &'static str {
    if is_root() { "6755\n" } else { "755\n" }
}

/// Returns pseudorandom bytes that depend on the seed only.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Creates a tree like a small installation: a program, two directories, a few files, a link.
pub fn small(stage: &Stage, directory: &str) -> PathBuf {
    let tree = stage.dir(directory);
    fs::create_dir_all(tree.join("bin")).unwrap();
    fs::create_dir_all(tree.join("lib/deep")).unwrap();
    fs::write(tree.join("bin/tool"), "#!/bin/sh\necho tool ran with \"$@\"\n").unwrap();
    set_mode(&tree.join("bin/tool"), 0o755);
    fs::write(tree.join("lib/data"), noise(10_000, 7)).unwrap();
    fs::write(tree.join("lib/deep/leaf"), "leaf\n").unwrap();
    fs::write(tree.join("readme"), "hello\n").unwrap();
    symlink("lib/deep/leaf", tree.join("link")).unwrap();
    tree
}

/// Creates all kinds of entries that an ordinary user can create, and for root also the others.
pub fn varied(stage: &Stage) -> PathBuf {
    let tree = small(stage, "varied");
    unusual_names(&tree.join("names"));
    kinds(&tree.join("kinds"));
    modes(&tree.join("modes"));
    times(&tree.join("times"));
    contents(&tree.join("contents"));
    fs::create_dir(tree.join("empty")).unwrap();

    let links = tree.join("hardlinks");
    fs::create_dir_all(links.join("below")).unwrap();
    fs::write(links.join("a"), "linked").unwrap();
    fs::hard_link(links.join("a"), links.join("below/b")).unwrap();
    fs::hard_link(links.join("a"), tree.join("c")).unwrap();
    fs::write(links.join("lonely"), "another name is outside").unwrap();
    fs::hard_link(links.join("lonely"), stage.path("outside")).unwrap();
    fs::write(links.join("not-linked"), "linked").unwrap();

    xattrs(&tree.join("xattrs"));
    acls(&tree.join("acls"));
    if is_root() {
        as_root(&tree.join("root"));
    }
    tree
}

fn unusual_names(directory: &Path) {
    fs::create_dir(directory).unwrap();
    let longest = [b'n'; 255];
    let names: [&[u8]; 14] = [
        b"\xff\xfe not text",
        &longest,
        b"new\nline",
        b"colon:colon",
        b"comma,comma",
        b"back\\slash",
        b" blanks ",
        b"quote\"'`",
        b"$HOME",
        b"*",
        b"-rf",
        b"\x01\x1b[0m",
        b"\\012",
        "größe".as_bytes(),
    ];
    for bytes in names {
        fs::write(directory.join(name(bytes)), bytes).unwrap();
    }
    // The same names for directories on a path, where a redirect or an option string must escape
    // them.
    for bytes in [&b"dir:a,b\\c\n\xff"[..], b"..."] {
        let below = directory.join(name(bytes));
        fs::create_dir(&below).unwrap();
        fs::write(below.join(name(b"\xff:,\\")), "deep").unwrap();
        symlink(name(b"\xff:,\\"), below.join("link")).unwrap();
    }
}

fn kinds(directory: &Path) {
    fs::create_dir(directory).unwrap();
    symlink("../bin/tool", directory.join("link")).unwrap();
    symlink("/etc/passwd", directory.join("absolute")).unwrap();
    symlink("nowhere", directory.join("dangling")).unwrap();
    symlink("itself", directory.join("itself")).unwrap();
    symlink("x/".repeat(2000), directory.join("long")).unwrap();
    symlink("..", directory.join("up")).unwrap();
    let make = |name: &str, kind| {
        rustix::fs::mknodat(CWD, directory.join(name), kind, Mode::from_raw_mode(0o640), 0).unwrap();
    };
    make("fifo", FileType::Fifo);
    make("socket", FileType::Socket);
}

fn modes(directory: &Path) {
    fs::create_dir(directory).unwrap();
    for mode in
        [0o000, 0o200, 0o400, 0o444, 0o555, 0o644, 0o711, 0o755, 0o777, 0o4755, 0o2755, 0o6755, 0o1644]
    {
        let path = directory.join(format!("file-{mode:o}"));
        fs::write(&path, "mode").unwrap();
        set_mode(&path, mode);
        let path = directory.join(format!("dir-{mode:o}"));
        // Another test covers directories that cannot be read.
        if mode & 0o500 == 0o500 {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("inside"), "").unwrap();
            set_mode(&path, mode);
        }
    }
    let sticky = directory.join("sticky");
    fs::create_dir(&sticky).unwrap();
    set_mode(&sticky, 0o1777);
}

fn times(directory: &Path) {
    fs::create_dir(directory).unwrap();
    for (seconds, nanoseconds) in [
        (0, 0),
        (-1, 999_999_999),
        (-2_000_000_000, 1),
        (1_700_000_000, 123_456_789),
        (2_147_483_648, 5),
        (4_102_444_800, 999_999_999),
        (10_000_000_000, 1),
    ] {
        let file = directory.join(format!("file{seconds}"));
        fs::write(&file, "").unwrap();
        set_mtime(&file, seconds, nanoseconds);
        let link = directory.join(format!("link{seconds}"));
        symlink("target", &link).unwrap();
        set_mtime(&link, seconds, nanoseconds);
        let below = directory.join(format!("dir{seconds}"));
        fs::create_dir(&below).unwrap();
        set_mtime(&below, seconds, nanoseconds);
    }
}

fn contents(directory: &Path) {
    fs::create_dir(directory).unwrap();
    for length in [0, 1, 4095, 4096, 4097, 131_072, 1_048_577] {
        fs::write(directory.join(format!("bytes-{length}")), noise(length, length as u64)).unwrap();
    }
    let huge = File::create(directory.join("huge")).unwrap();
    huge.set_len(HUGE_BYTES).unwrap();
    huge.write_at(b"start", 0).unwrap();
    huge.write_at(b"middle", HUGE_BYTES / 2).unwrap();
    huge.write_at(b"end", HUGE_BYTES - 3).unwrap();
    let mut holes = File::create(directory.join("holes")).unwrap();
    holes.write_all(b"start").unwrap();
    holes.set_len(1 << 20).unwrap();
}

pub fn set_xattr(path: &Path, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
}

fn xattrs(directory: &Path) {
    fs::create_dir_all(directory.join("dir")).unwrap();
    fs::write(directory.join("file"), "x").unwrap();
    fs::write(directory.join("none"), "x").unwrap();
    if set_xattr(&directory.join("file"), "user.note", b"a value").is_err() {
        return println!("SKIPPED: {} keeps no extended attributes", directory.display());
    }
    set_xattr(&directory.join("file"), "user.empty", b"").unwrap();
    set_xattr(&directory.join("file"), "user.binary", b"\0\xff\n").unwrap();
    set_xattr(&directory.join("file"), "user.long", &noise(2000, 3)).unwrap();
    // Attributes of overlayfs itself must be shown as the file's own.
    set_xattr(&directory.join("file"), "user.overlay.metacopy", b"not ours").unwrap();
    set_xattr(&directory.join("file"), "user.overlay.redirect", b"/etc/passwd").unwrap();
    set_xattr(&directory.join("file"), "user.overlay.overlay.opaque", b"y").unwrap();
    set_xattr(&directory.join("dir"), "user.note", b"of a directory").unwrap();
    set_xattr(&directory.join("dir"), "user.overlay.opaque", b"y").unwrap();
    set_xattr(directory, "user.root", b"r").unwrap();
}

/// Creates access control lists that name no user unknown in a user namespace that maps one user.
fn acls(directory: &Path) {
    fs::create_dir_all(directory.join("dir")).unwrap();
    fs::write(directory.join("file"), "x").unwrap();
    if !has("setfacl") {
        return println!("SKIPPED: setfacl is not installed");
    }
    let me = rustix::process::geteuid().as_raw();
    let run = |options: &[&str], path: &Path| {
        std::process::Command::new("setfacl").args(options).arg(path).status().is_ok_and(|s| s.success())
    };
    let entry = format!("u:{me}:r--");
    let default = format!("d:u:{me}:rwx");
    if !run(&["-m", &entry], &directory.join("file")) || !run(&["-m", &default], &directory.join("dir")) {
        println!("SKIPPED: {} keeps no access control lists", directory.display());
    }
}

/// Creates devices, files of other owners, and capabilities.
fn as_root(directory: &Path) {
    fs::create_dir(directory).unwrap();
    for (name, kind, major, minor) in [
        ("null", FileType::CharacterDevice, 1, 3),
        ("block", FileType::BlockDevice, 7, 0),
        ("large", FileType::CharacterDevice, 511, 1_048_575),
    ] {
        let number = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(CWD, directory.join(name), kind, Mode::from_raw_mode(0o666), number).unwrap();
    }
    for (name, mode) in [("owned", 0o640), ("owned-setuid", 0o4755)] {
        let path = directory.join(name);
        fs::write(&path, "another's").unwrap();
        std::os::unix::fs::chown(&path, Some(12345), Some(54321)).unwrap();
        set_mode(&path, mode);
    }
    symlink("owned", directory.join("owned-link")).unwrap();
    std::os::unix::fs::lchown(directory.join("owned-link"), Some(12345), Some(54321)).unwrap();
    fs::create_dir(directory.join("owned-dir")).unwrap();
    std::os::unix::fs::chown(directory.join("owned-dir"), Some(4_000_000_000), Some(1)).unwrap();
    fs::write(directory.join("capable"), "x").unwrap();
    // Revision 2 of the format, with cap_net_raw permitted.
    let mut capability = [0; 20];
    capability[3] = 2;
    capability[5] = 0x20;
    set_xattr(&directory.join("capable"), "security.capability", &capability).unwrap();
    if has("setfacl") {
        fs::write(directory.join("listed"), "x").unwrap();
        let status = std::process::Command::new("setfacl")
            .args(["-m", "u:65534:rw,g:12345:r"])
            .arg(directory.join("listed"))
            .status();
        assert!(status.is_ok_and(|status| status.success()));
    }
}
