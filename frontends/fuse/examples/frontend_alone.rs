//! Times the FUSE server with a file system in memory, so that only the kernel, the device and this
//! crate are measured. Prints the same numbers for a directory of the local disk.
//!
//! `cargo run --profile dist -p quell-fuse --example frontend_alone [THREADS ...]`

#[path = "../tests/memory/mod.rs"]
mod memory;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use memory::{Memory, ROOT};
use quell_fuse::Options;

const DIRS: usize = 4000;
const FILES: usize = 20;
/// The machine may be busy with other programs, so the best round is printed.
const ROUNDS: usize = 4;
const LARGE_BYTES: usize = 256 << 20;

fn tree() -> Memory {
    let mut memory = Memory::new();
    for d in 0..DIRS {
        let dir = memory.dir(ROOT, format!("dir{d:04}"));
        for f in 0..FILES {
            memory.file(dir, format!("file{f:02}"), b"some bytes");
        }
    }
    memory.file(ROOT, "large", &vec![7; LARGE_BYTES]);
    memory
}

fn paths(root: &Path, name: &str, count: usize) -> Vec<PathBuf> {
    (0..count).map(|n| root.join(format!("dir{:04}/{name}{:02}", n / FILES, n % FILES))).collect()
}

/// Returns microseconds per operation, with the paths divided among `clients` threads.
fn time(paths: &[PathBuf], clients: usize, operate: impl Fn(&Path) + Sync) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for share in paths.chunks(paths.len().div_ceil(clients)) {
            scope.spawn(|| share.iter().for_each(|path| operate(path)));
        }
    });
    start.elapsed().as_secs_f64() * 1e6 / paths.len() as f64
}

fn stat(path: &Path) {
    fs::metadata(path).unwrap();
}

fn miss(path: &Path) {
    fs::metadata(path).unwrap_err();
}

fn open(path: &Path) {
    File::open(path).unwrap();
}

fn read(path: &Path) {
    fs::read(path).unwrap();
}

fn run(program: &str, arguments: &[&str], root: &Path) -> f64 {
    let start = Instant::now();
    let ran = Command::new(program).args(arguments).arg(root).stdout(Stdio::null()).status().unwrap();
    assert!(ran.success());
    start.elapsed().as_secs_f64()
}

/// The results for one way to mount, in the order of `NAMES`. Each number is the smallest one of
/// all rounds.
type Numbers = [f64; 12];

const NAMES: [&str; 12] = [
    "ls -lR first (s)",
    "ls -lR again (s)",
    "find first (s)",
    "find again (s)",
    "stat first (us)",
    "stat again (us)",
    "missing first (us)",
    "missing again (us)",
    "open+close (us)",
    "open+read+close first (us)",
    "open+read+close again (us)",
    "large file, cold (GB/s)",
];

fn measure(fs: &Arc<Memory>, options: &Options, clients: usize) -> Numbers {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let mount = || quell_fuse::mount_at(Arc::clone(fs) as _, root, options).unwrap();

    let session = mount();
    let (ls, ls_again) = (run("ls", &["-lR"], root), run("ls", &["-lR"], root));
    session.stop();
    let session = mount();
    let (find, find_again) = (run("find", &[], root), run("find", &[], root));
    session.stop();

    let session = mount();
    let (files, missing) = (paths(root, "file", 20_000), paths(root, "missing", 20_000));
    let (stat, stat_again) = (time(&files, clients, stat), time(&files, clients, stat));
    let (miss, miss_again) = (time(&missing, clients, miss), time(&missing, clients, miss));
    let open = time(&files, clients, open);
    let (read, read_again) = (time(&files, clients, read), time(&files, clients, read));
    let start = Instant::now();
    fs::copy(root.join("large"), "/dev/null").unwrap();
    let large = LARGE_BYTES as f64 / start.elapsed().as_secs_f64() / 1e9;
    session.stop();
    [ls, ls_again, find, find_again, stat, stat_again, miss, miss_again, open, read, read_again, large]
}

fn measure_local_disk() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let count = 2000;
    for d in 0..count / FILES {
        fs::create_dir(dir.path().join(format!("dir{d:04}"))).unwrap();
    }
    let (files, missing) = (paths(dir.path(), "file", count), paths(dir.path(), "missing", count));
    files.iter().for_each(|path| fs::write(path, b"some bytes").unwrap());
    let warm = |operate: fn(&Path), paths: &[PathBuf]| {
        time(paths, 1, operate);
        (0..10).map(|_| time(paths, 1, operate)).fold(f64::MAX, f64::min)
    };
    println!(
        "local disk, warm, 1 client: stat {:.2}, missing {:.2}, open+close {:.2}, read {:.2} us",
        warm(stat, &files),
        warm(miss, &missing),
        warm(open, &files),
        warm(read, &files)
    );
}

fn main() {
    let chosen: Vec<usize> =
        std::env::args().skip(1).map(|word| word.parse().expect("a number of threads")).collect();
    let chosen = if chosen.is_empty() { vec![1, 2, 4, 8] } else { chosen };
    measure_local_disk();
    let fs = Arc::new(tree());
    for no_open in [false, true] {
        for clients in [1, 16] {
            let mut best = vec![[f64::MAX; NAMES.len()]; chosen.len()];
            for _ in 0..ROUNDS {
                for (best, threads) in best.iter_mut().zip(&chosen) {
                    let options = Options { threads: *threads, no_open, ..Options::default() };
                    let mut seen = measure(&fs, &options, clients);
                    seen[NAMES.len() - 1] *= -1.0; // the only number for which more is better
                    best.iter_mut().zip(seen).for_each(|(best, seen)| *best = best.min(seen));
                }
            }
            println!("\n{clients} clients, no_open {no_open}; threads {chosen:?}");
            for (index, name) in NAMES.iter().enumerate() {
                print!("  {name:28}");
                best.iter().for_each(|numbers| print!("{:9.2}", numbers[index].abs()));
                println!();
            }
        }
    }
}
