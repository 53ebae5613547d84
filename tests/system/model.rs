//! Random operations on random trees: every operation must have the same result in the view as on
//! the original. A failed case prints its seed; `QUELL_MODEL_SEED` runs that one.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::fs::{self, File};
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, RawDir, SeekFrom, StatxFlags};

use crate::probe::errno_name;
use crate::stage::{Launch, Stage, difference, launches_of_private_tree};
use crate::trees::{noise, set_mode, set_mtime, set_xattr};

const CASES: u64 = 6;
const OPERATIONS: usize = 600;
const SEED_FILE: &str = "seed";

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % bound
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Returns a unique name with unusual bytes.
fn random_name(random: &mut Random, number: usize) -> OsString {
    let alphabet = b"abcXYZ019 .-_:,\\\n\xff\xc3\xa9*'\"=%";
    let length = [1, 2, 3, 8, 30, 200][random.below(6)];
    let mut bytes: Vec<u8> = (0..length).map(|_| *random.pick(alphabet)).collect();
    bytes.extend_from_slice(format!("{number}").as_bytes());
    OsStr::from_bytes(&bytes).into()
}

/// Creates a tree below `root`. Attributes are set last, so that directories keep their times.
fn create_random_tree(root: &Path, seed: u64) {
    let mut random = Random::new(seed);
    let mut directories = vec![root.to_owned()];
    let mut files: Vec<PathBuf> = Vec::new();
    for number in 0..120 {
        let path = random.pick(&directories).join(random_name(&mut random, number));
        match random.below(10) {
            0 | 1 => {
                fs::create_dir(&path).unwrap();
                directories.push(path);
            }
            2 => {
                // `..` in the root would lead out of the tree, to files that change.
                let targets: [&[u8]; 5] = [b".", b"nowhere", b"/nowhere", b"\xff\n", b".."];
                let known = if path.parent() == Some(root) { 4 } else { 5 };
                let target: PathBuf = match files.is_empty() || random.below(2) == 0 {
                    true => OsStr::from_bytes(targets[random.below(known)]).into(),
                    false => random.pick(&files).file_name().unwrap().into(),
                };
                symlink(target, &path).unwrap();
            }
            3 if !files.is_empty() => fs::hard_link(random.pick(&files), &path).unwrap(),
            4 => rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap(),
            _ => {
                let length = [0, 1, 100, 4096, 5000, 70_000, 300_000][random.below(7)];
                fs::write(&path, noise(length, number as u64)).unwrap();
                if random.below(6) == 0 {
                    File::options().write(true).open(&path).unwrap().set_len(length as u64 * 3 + 9).unwrap();
                }
                // An ordinary user cannot read the attributes of a file without read permission.
                let readable = random.below(4) > 0;
                if readable && random.below(4) == 0 {
                    let _ = set_xattr(&path, "user.note", &noise(random.below(300), 5));
                }
                let modes = [0o644, 0o600, 0o755, 0o444, 0o4711];
                set_mode(&path, if readable { *random.pick(&modes) } else { 0o000 });
                files.push(path);
            }
        }
    }
    for path in files.iter().chain(directories.iter().rev()) {
        set_mtime(path, random.below(1 << 33) as i64 - (1 << 31), random.below(1_000_000_000) as i64);
    }
}

#[test]
fn random_operations_are_answered_as_on_the_original() {
    let own = std::env::var("QUELL_MODEL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds: Vec<u64> = own.map_or_else(|| (1..=CASES).collect(), |seed| vec![seed]);
    for seed in seeds {
        let stage = Stage::new();
        let tree = stage.dir("tree");
        create_random_tree(&tree, seed);
        fs::write(tree.join(SEED_FILE), seed.to_string()).unwrap();
        let index = stage.index(&tree);
        let original = stage.probe_original(&tree, "operations");
        assert!(original.lines().count() > OPERATIONS, "seed {seed}");
        for launch in launches_of_private_tree() {
            let view = stage.probe(launch, &index, &tree, "operations");
            assert_eq!(
                difference(&masked(&original, launch), &masked(&view, launch)),
                "",
                "QUELL_MODEL_SEED={seed} {launch:?}"
            );
            assert_eq!(original.lines().count(), view.lines().count(), "QUELL_MODEL_SEED={seed} {launch:?}");
        }
    }
}

/// Removes the sizes of directories, which differ in an overlay view.
fn masked(text: &str, launch: Launch) -> String {
    let mask = |line: &str| match line.split_once(" directory size ") {
        Some((line, _)) if launch.view() == "overlay" => format!("{line}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(mask).collect()
}

/// Returns true if the path itself, not the target of a symbolic link, is a directory.
fn is_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// Returns all paths below the root, in an order that does not depend on the file system.
fn paths_below(root: &Path) -> Vec<PathBuf> {
    let mut all = vec![PathBuf::new()];
    let mut next = 0;
    while next < all.len() {
        let path = all[next].clone();
        next += 1;
        if is_dir(&root.join(&path)) {
            let mut names: Vec<OsString> =
                fs::read_dir(root.join(&path)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            all.extend(names.into_iter().map(|name| path.join(name)));
        }
    }
    all
}

/// Performs the operations in the child process. Returns a line for each operation with its result.
pub fn perform(root: &Path) -> String {
    let seed: u64 = fs::read_to_string(root.join(SEED_FILE)).unwrap().parse().unwrap();
    let mut random = Random::new(seed ^ 0xabcd);
    let paths = paths_below(root);
    let mut lines = format!("{} paths\n", paths.len());
    for number in 0..OPERATIONS {
        let mut path = random.pick(&paths).clone();
        // Sometimes a name that does not exist, or a path with a detour.
        match random.below(12) {
            0 => path.push("absent"),
            1 if !path.as_os_str().is_empty() && is_dir(&root.join(&path)) => {
                path = path.join("..").join(random.pick(&paths).file_name().unwrap_or_default());
            }
            2 => path.as_mut_os_string().push("x"),
            3 => path = Path::new(".").join(&path).join("."),
            4 => path.push("n".repeat(256)),
            _ => {}
        }
        let (operation, answer) = operate(&mut random, &root.join(&path));
        let shown = path.as_os_str().as_bytes().escape_ascii();
        writeln!(lines, "{number} {operation} {shown}: {answer}").unwrap();
    }
    lines
}

fn operate(random: &mut Random, path: &Path) -> (&'static str, String) {
    match random.below(8) {
        0 | 1 => ("stat", stat(path, AtFlags::SYMLINK_NOFOLLOW)),
        2 => ("stat following", stat(path, AtFlags::empty())),
        3 => ("read", read(random, path)),
        4 => ("list", list(random, path)),
        5 => {
            let target = rustix::fs::readlink(path, Vec::new());
            ("readlink", target.map_or_else(errno_name, |t| t.as_bytes().escape_ascii().to_string()))
        }
        6 => {
            let mode = *random.pick(&[Access::EXISTS, Access::READ_OK, Access::WRITE_OK, Access::EXEC_OK]);
            let asked = rustix::fs::accessat(CWD, path, mode, AtFlags::empty());
            // A view is read-only, so a check for write permission has another result.
            let answer = asked.map_or_else(errno_name, |()| "yes".into());
            ("access", if mode == Access::WRITE_OK { String::new() } else { answer })
        }
        _ => {
            let name = *random.pick(&["user.note", "user.absent"]);
            let mut value = vec![0; 1000];
            let got = rustix::fs::getxattr(path, name, &mut value);
            ("getxattr", got.map_or_else(errno_name, |n| value[..n].escape_ascii().to_string()))
        }
    }
}

fn stat(path: &Path, flags: AtFlags) -> String {
    match rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS) {
        Err(e) => errno_name(e),
        Ok(stat) => {
            let is_dir = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
            format!(
                "{:o} {} {} {} {}.{}{} {}",
                stat.stx_mode,
                stat.stx_nlink,
                stat.stx_uid,
                stat.stx_gid,
                stat.stx_mtime.tv_sec,
                stat.stx_mtime.tv_nsec,
                if is_dir { " directory size" } else { "" },
                stat.stx_size,
            )
        }
    }
}

/// Opens a file and reads several pieces, including pieces at and beyond its end.
fn read(random: &mut Random, path: &Path) -> String {
    // Non-blocking, so that opening a FIFO does not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(e) => return errno_name(e),
    };
    let metadata = file.metadata().unwrap();
    // The size of a directory depends on the view.
    let length = if metadata.is_dir() { 0 } else { metadata.len() as usize };
    let mut answer = String::new();
    for _ in 0..4 {
        let at = random.below(length + 5000) as u64;
        let mut buffer = vec![0; random.below(9000)];
        let got = file.read_at(&mut buffer, at);
        let sum = |n: usize| {
            buffer[..n].iter().fold(7u64, |sum, b| sum.wrapping_mul(31).wrapping_add(u64::from(*b)))
        };
        let printed =
            got.map_or_else(|e| format!("error {:?}", e.raw_os_error()), |n| format!("{n}/{:x}", sum(n)));
        write!(answer, " {at}+{}={printed}", buffer.len()).unwrap();
    }
    let mut whole = Vec::new();
    match file.read_to_end(&mut whole) {
        Ok(n) => write!(answer, " whole {n}").unwrap(),
        Err(e) => write!(answer, " error {:?}", e.raw_os_error()).unwrap(),
    }
    answer
}

/// Lists a directory, then seeks back to an earlier position: the remaining entries must be the
/// same as before.
fn list(random: &mut Random, path: &Path) -> String {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(e) => return errno_name(e),
    };
    let from = |position: u64| {
        rustix::fs::seek(&fd, SeekFrom::Start(position)).unwrap();
        let mut buffer = vec![MaybeUninit::<u8>::uninit(); 4096];
        let mut raw = RawDir::new(&fd, &mut buffer);
        let mut entries: Vec<(Vec<u8>, String, u64)> = Vec::new();
        while let Some(entry) = raw.next() {
            let entry = entry.unwrap();
            let kind = format!("{:?}", entry.file_type());
            entries.push((entry.file_name().to_bytes().to_vec(), kind, entry.next_entry_cookie()));
        }
        entries
    };
    let all = from(0);
    let at = random.below(all.len());
    let consistent = from(all[at].2) == all[at + 1..];
    let mut names: Vec<String> =
        all.iter().map(|(name, kind, _)| format!("{}:{kind}", name.escape_ascii())).collect();
    names.sort();
    format!("{} {consistent} {names:?}", all.len())
}
