//! Times the door alone: a file system in memory behind it, nothing slow anywhere, so that what is
//! left is the kernel, the device and this crate. Prints one line a measurement, microseconds an
//! operation, beside the same on a directory of the local disk.
//!
//! `cargo run --release -p quell-fuse --example door_alone [THREADS ...]`

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

/// Microseconds an operation, with the paths shared out among `clients` threads.
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

fn measure(name: &str, options: &Options) {
    let dir = tempfile::tempdir().unwrap();
    let mount = |options: &Options| quell_fuse::at(Arc::new(tree()), dir.path(), options).unwrap();
    let root = dir.path();

    let session = mount(options);
    let walk = [
        ("ls -lR", run("ls", &["-lR"], root)),
        ("again", run("ls", &["-lR"], root)),
        ("find", run("find", &[], root)),
    ];
    session.stop();
    let session = mount(options);
    let find = run("find", &[], root);
    session.stop();
    let [ls, again, _] = walk.map(|(_, seconds)| seconds);
    println!("{name}: ls -lR first {ls:.2} s, again {again:.2} s; find first {find:.2} s");

    for clients in [1, 4, 16] {
        let session = mount(options);
        let (files, missing) = (paths(root, "file", 20_000), paths(root, "missing", 20_000));
        print!("{name}, {clients} clients:");
        print!(" stat first {:.2} again {:.2},", time(&files, clients, stat), time(&files, clients, stat));
        print!(" missing first {:.2}", time(&missing, clients, miss));
        print!(" again {:.2},", time(&missing, clients, miss));
        print!(" open+close first {:.2} again", time(&files, clients, open));
        print!(" {:.2},", time(&files, clients, open));
        print!(" read first {:.2} again {:.2}", time(&files, clients, read), time(&files, clients, read));
        let start = Instant::now();
        fs::copy(root.join("large"), "/dev/null").unwrap();
        println!(" us; {:.0} MB/s", LARGE_BYTES as f64 / start.elapsed().as_secs_f64() / 1e6);
        session.stop();
    }
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
    measure_local_disk();
    for threads in if chosen.is_empty() { vec![1, 2, 4, 8] } else { chosen } {
        for no_open in [false, true] {
            let name = format!("{threads} threads{}", if no_open { ", no_open" } else { "" });
            measure(&name, &Options { threads, no_open, ..Options::default() });
        }
    }
}
