//! The examining program: this test program, started again inside and outside of a view with an
//! order in its environment. It writes its results to a file, so that both can be compared entry by
//! entry.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;

use crate::stage::{Launch, Stage};

const ORDER: &str = "QUELL_PROBE";
const ROOT: &str = "QUELL_PROBE_ROOT";
const OUTPUT: &str = "QUELL_PROBE_OUTPUT";
/// Of larger files, the ends and some parts are read.
const WHOLE_FILE_BYTES_MAX: u64 = 16 << 20;

/// Not a test: the tests start it as a separate process.
#[test]
#[ignore = "a program that tests start"]
fn child() {
    let order = std::env::var_os(ORDER).expect("started by a test, which sets the variable");
    let root = PathBuf::from(std::env::var_os(ROOT).unwrap());
    let output = PathBuf::from(std::env::var_os(OUTPUT).unwrap());
    let text = match order.to_str().unwrap() {
        "snapshot" => serde_json::to_string(&snapshot_of(&root)).unwrap(),
        "operations" => crate::model::perform(&root),
        "map" => map(&root),
        "connect" => match std::os::unix::net::UnixStream::connect(&root) {
            Ok(_) => "connected".into(),
            Err(e) => e.to_string(),
        },
        other => panic!("no such order: {other}"),
    };
    fs::write(output, text).unwrap();
}

/// Returns the arguments and environment variables with which this program carries out `order`.
fn probe_words(order: &str, root: &Path, output: &Path) -> Vec<OsString> {
    let variable = |name: &str, value: &OsStr| {
        let mut word = OsString::from(name);
        word.push("=");
        word.push(value);
        word
    };
    let program = std::env::current_exe().unwrap();
    let mut words: Vec<OsString> = vec!["env".into()];
    words.push(variable(ORDER, order.as_ref()));
    words.push(variable(ROOT, root.as_os_str()));
    words.push(variable(OUTPUT, output.as_os_str()));
    words.push(program.into());
    words.extend(
        ["--exact", "probe::child", "--ignored", "--nocapture", "--test-threads=1"].map(OsString::from),
    );
    words
}

impl Stage {
    /// Runs `order` in the view and returns its output.
    #[track_caller]
    pub fn probe(&self, launch: Launch, index: &Path, tree: &Path, order: &str) -> String {
        let output = self.path("out/probe");
        self.run_in_view(launch, index, tree, |root| probe_words(order, root, &output)).expect(0);
        fs::read_to_string(output).unwrap()
    }

    /// Runs `order` on the original and returns its output.
    #[track_caller]
    pub fn probe_original(&self, tree: &Path, order: &str) -> String {
        let output = self.path("out/probe");
        let words = probe_words(order, tree, &output);
        self.run(self.command(&words[0]).args(&words[1..])).expect(0);
        fs::read_to_string(output).unwrap()
    }

    /// Returns a command that writes the result of `order` to `output`.
    pub fn probe_command(&self, order: &str, root: &Path, output: &Path) -> Command {
        let words = probe_words(order, root, output);
        let mut command = self.command(&words[0]);
        command.args(&words[1..]);
        command
    }

    #[track_caller]
    pub fn snapshot(&self, launch: Launch, index: &Path, tree: &Path) -> Snapshot {
        serde_json::from_str(&self.probe(launch, index, tree, "snapshot")).unwrap()
    }

    #[track_caller]
    pub fn snapshot_original(&self, tree: &Path) -> Snapshot {
        serde_json::from_str(&self.probe_original(tree, "snapshot")).unwrap()
    }
}

/// The properties of one entry, by name, as a program sees them.
pub type Facts = BTreeMap<String, String>;
/// The entries of a tree, by path, as a program sees them.
pub type Snapshot = BTreeMap<String, Facts>;

/// Returns a line for each property that differs, except for those that `allowed` accepts.
pub fn differences(
    original: &Snapshot,
    view: &Snapshot,
    allowed: impl Fn(&str, &str, &Facts, &Facts) -> bool,
) -> Vec<String> {
    let mut lines = Vec::new();
    for path in original.keys().filter(|path| !view.contains_key(*path)) {
        lines.push(format!("{path}: missing in the view"));
    }
    for (path, snapshot) in view {
        let Some(expected) = original.get(path) else {
            lines.push(format!("{path}: only in the view"));
            continue;
        };
        let names: std::collections::BTreeSet<&String> = expected.keys().chain(snapshot.keys()).collect();
        for name in names {
            let (was, is) = (expected.get(name), snapshot.get(name));
            if was != is && !allowed(path, name, expected, snapshot) {
                lines.push(format!("{path}: {name}: original {was:?}, view {is:?}"));
            }
        }
    }
    lines
}

fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

pub fn errno_name(errno: Errno) -> String {
    format!("error {}", errno.raw_os_error())
}

struct Scan {
    snapshot: Snapshot,
    /// The first path of each file, by device and inode number.
    first: HashMap<(u64, u64), String>,
    root_device: u64,
}

/// Examines everything below `root`, one directory at a time, so that no path is too long.
pub fn snapshot_of(root: &Path) -> Snapshot {
    let fd = rustix::fs::openat(CWD, root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let stat = stat(&fd, b"", AtFlags::EMPTY_PATH).unwrap();
    let mut scan = Scan { snapshot: Snapshot::new(), first: HashMap::new(), root_device: device(&stat) };
    let mut facts = scan.facts_of(&stat, ".");
    scan.add_attributes(&fd, b".", &mut facts);
    scan.directory(&fd, b".", ".", &mut facts, None);
    scan.snapshot.insert(".".into(), facts);
    scan.snapshot
}

fn stat(at: &OwnedFd, name: &[u8], flags: AtFlags) -> Result<Statx, Errno> {
    let flags = flags | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(at, OsStr::from_bytes(name), flags, StatxFlags::BASIC_STATS)
}

fn device(stat: &Statx) -> u64 {
    rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)
}

impl Scan {
    fn facts_of(&mut self, stat: &Statx, path: &str) -> Facts {
        let time = |t: rustix::fs::StatxTimestamp| format!("{}.{:09}", t.tv_sec, t.tv_nsec);
        let mut facts = Facts::new();
        let mut set = |name: &str, value: String| facts.insert(name.into(), value);
        set("mode", format!("{:o}", stat.stx_mode));
        set("nlink", stat.stx_nlink.to_string());
        set("uid", stat.stx_uid.to_string());
        set("gid", stat.stx_gid.to_string());
        set("size", stat.stx_size.to_string());
        set("mtime", time(stat.stx_mtime));
        set("ctime", time(stat.stx_ctime));
        set("blocks", stat.stx_blocks.to_string());
        set("rdev", format!("{}:{}", stat.stx_rdev_major, stat.stx_rdev_minor));
        set("device", if device(stat) == self.root_device { "the root's" } else { "another" }.into());
        let first = self.first.entry((device(stat), stat.stx_ino)).or_insert_with(|| path.into());
        set("same file as", first.clone());
        facts
    }

    fn add_attributes(&self, at: &OwnedFd, name: &[u8], facts: &mut Facts) {
        let path = [format!("/proc/self/fd/{}/", at.as_raw_fd()).as_bytes(), name].concat();
        let path = Path::new(OsStr::from_bytes(&path));
        let list = match sized(|buffer| rustix::fs::llistxattr(path, buffer)) {
            Ok(list) => list,
            Err(e) => {
                facts.insert("xattrs".into(), errno_name(e));
                return;
            }
        };
        let mut names: Vec<&[u8]> = list.split(|b| *b == 0).filter(|name| !name.is_empty()).collect();
        names.sort();
        facts.insert("xattrs".into(), names.iter().map(|name| shown(name) + " ").collect());
        for name in names {
            let value = sized(|buffer| rustix::fs::lgetxattr(path, OsStr::from_bytes(name), buffer));
            let value = value.map_or_else(errno_name, |value| shown(&value));
            facts.insert(format!("xattr {}", shown(name)), value);
        }
        let absent = sized(|buffer| rustix::fs::lgetxattr(path, "user.not-there", buffer));
        facts.insert("absent xattr".into(), absent.map_or_else(errno_name, |_| "there".into()));
    }

    /// Lists a directory and examines everything below. `parent` is the inode number of its parent.
    fn directory(&mut self, at: &OwnedFd, name: &[u8], path: &str, facts: &mut Facts, parent: Option<u64>) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(at, OsStr::from_bytes(name), flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(e) => {
                facts.insert("listing".into(), errno_name(e));
                return;
            }
        };
        let entries = match list(&fd) {
            Ok(entries) => entries,
            Err(e) => {
                facts.insert("listing".into(), errno_name(e));
                return;
            }
        };
        facts.insert("entries".into(), entries.len().to_string());
        facts.insert(
            "listed again".into(),
            if list(&fd) == Ok(entries.clone()) { "same" } else { "other" }.into(),
        );
        let own = stat(&fd, b"", AtFlags::EMPTY_PATH).unwrap().stx_ino;
        let dot = entries.iter().find(|entry| entry.name == b".").map(|entry| entry.number);
        let dots = entries.iter().find(|entry| entry.name == b"..").map(|entry| entry.number);
        let above = stat(&fd, b"..", AtFlags::empty()).map(|stat| stat.stx_ino);
        facts.insert(".".into(), (dot == Some(own)).to_string());
        if let Some(parent) = parent {
            facts.insert("..".into(), (above == Ok(parent)).to_string());
            facts.insert(".. in the listing".into(), (dots == Some(parent)).to_string());
        }
        facts.insert(
            "absent name".into(),
            stat(&fd, b"not-there", AtFlags::empty()).map_or_else(errno_name, |_| "there".into()),
        );
        for entry in entries.iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
            let path = format!("{path}/{}", shown(&entry.name));
            let below = self.entry(&fd, entry, &path, own);
            self.snapshot.insert(path, below);
        }
    }

    fn entry(&mut self, at: &OwnedFd, entry: &Entry, path: &str, parent: u64) -> Facts {
        let stat = match stat(at, &entry.name, AtFlags::empty()) {
            Ok(stat) => stat,
            Err(e) => return Facts::from([("stat".into(), errno_name(e))]),
        };
        let mut facts = self.facts_of(&stat, path);
        facts.insert("d_type".into(), format!("{:?}", entry.kind));
        facts.insert("d_ino".into(), if entry.number == stat.stx_ino { "same" } else { "other" }.into());
        self.add_attributes(at, &entry.name, &mut facts);
        match FileType::from_raw_mode(stat.stx_mode.into()) {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(at, OsStr::from_bytes(&entry.name), Vec::new());
                let target = target.map_or_else(errno_name, |target| shown(target.as_bytes()));
                facts.insert("target".into(), target);
            }
            FileType::Directory => self.directory(at, &entry.name, path, &mut facts, Some(parent)),
            FileType::RegularFile => {
                facts.insert("content".into(), content(at, &entry.name));
                let after = self::stat(at, &entry.name, AtFlags::empty()).map(|s| s.stx_blocks.to_string());
                facts.insert("blocks after opening".into(), after.unwrap_or_else(errno_name));
            }
            _ => {}
        }
        let access = |mode| {
            let asked = rustix::fs::accessat(at, OsStr::from_bytes(&entry.name), mode, AtFlags::empty());
            asked.map_or_else(errno_name, |()| "yes".into())
        };
        facts.insert("may read".into(), access(rustix::fs::Access::READ_OK));
        facts.insert("may execute".into(), access(rustix::fs::Access::EXEC_OK));
        facts
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    name: Vec<u8>,
    kind: FileType,
    number: u64,
}

/// Returns all entries in the order of the listing.
fn list(fd: &OwnedFd) -> Result<Vec<Entry>, Errno> {
    rustix::fs::seek(fd, SeekFrom::Start(0))?;
    let mut buffer = vec![MaybeUninit::<u8>::uninit(); 32 << 10];
    let mut raw = RawDir::new(fd, &mut buffer);
    let mut entries = Vec::new();
    while let Some(entry) = raw.next() {
        let entry = entry?;
        entries.push(Entry {
            name: entry.file_name().to_bytes().to_vec(),
            kind: entry.file_type(),
            number: entry.ino(),
        });
    }
    Ok(entries)
}

fn content(at: &OwnedFd, name: &[u8]) -> String {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(at, OsStr::from_bytes(name), flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(e) => return errno_name(e),
    };
    let size = file.metadata().unwrap().len();
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; 1 << 16];
    let mut at = 0;
    loop {
        match file.read_at(&mut buffer, at) {
            Ok(0) => break,
            Ok(n) => {
                hasher.write(&buffer[..n]);
                at += n as u64;
            }
            Err(e) => return format!("{e} at {at}"),
        }
        if size > WHOLE_FILE_BYTES_MAX {
            // The start, two positions in between, and the end.
            let marks = [(size / 3) & !0xfff, (size / 2) & !0xfff, size - 4096];
            at = marks.into_iter().find(|mark| *mark > at).unwrap_or(at);
        }
    }
    hasher.write_u64(at);
    format!("{:016x}", hasher.finish())
}

fn sized(read: impl Fn(&mut Vec<u8>) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; 64 << 10];
    let length = read(&mut buffer)?;
    buffer.truncate(length);
    Ok(buffer)
}

/// Reads a file through a private mapping.
fn map(file: &Path) -> String {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let file = File::open(file).unwrap();
    let length = file.metadata().unwrap().len() as usize;
    // SAFETY: the kernel chooses an unused range; it is read while mapped, and no process changes
    // the file meanwhile.
    #[allow(unsafe_code)]
    unsafe {
        let start = mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, &file, 0).unwrap();
        let mut hasher = DefaultHasher::new();
        hasher.write(std::slice::from_raw_parts(start.cast::<u8>(), length));
        munmap(start, length).unwrap();
        format!("{length} {:016x}", hasher.finish())
    }
}
