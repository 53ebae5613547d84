//! Compares the ways of making the index of a file (`quell mount --log --index MODE`): the size of
//! the index, the time of the close that may flatten it, and the time from opening a file to its
//! first bytes. The store is a local directory, with and without a delay of each operation on it. A
//! shared file system has such a delay. The results are in docs/decisions/0015-index-modes.md.
//!
//! `cargo bench -p quell-log --bench index_modes`

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell_log::{Choices, Holder, Host, LogFs, Scratch, Stores};
use quell_posix::{PosixDir, WritableDir};
use quell_testkit::{CountingDir, Random};
use quell_vfs::{Context, FileSystem, NewEntry, OpenMode, Writable};

const ROUNDS: usize = 5;
const RECORD_BYTES: usize = 100;
/// Delay of each operation on the store, for a shared file system in a cluster.
const DELAY: Duration = Duration::from_micros(500);
/// No file of this benchmark is too large to be flattened.
const FLATTEN_BYTES: u64 = 1 << 40;

/// Mounts a store whose operations take `delay` longer.
fn mount(dir: &Path, choices: Choices, delay: Duration) -> LogFs {
    static SEED: AtomicU64 = AtomicU64::new(1);
    let random = std::sync::Mutex::new(Random::new(SEED.fetch_add(1, Ordering::Relaxed)));
    let host = Host {
        holder: Holder { pid: 1, start: 1, node: "bench".to_owned() },
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        random: Box::new(move || random.lock().unwrap().number()),
        is_gone: Box::new(|_| false),
        scratch: Scratch::new(|| quell_testkit::MemoryStore::new().root().create_file(b"scratch", 0o600)),
    };
    let root = Arc::new(PosixDir::open(dir).unwrap()) as Arc<dyn WritableDir>;
    let root: Arc<dyn WritableDir> = match delay {
        Duration::ZERO => root,
        delay => Arc::new(CountingDir::with_hook(root, move |_, _| std::thread::sleep(delay))),
    };
    LogFs::new(Stores::open(vec![root], host, 32).unwrap(), choices)
}

/// The order in which the processes write their records.
#[derive(Clone, Copy)]
enum Shape {
    /// Records of the processes alternate in the file.
    Strided,
    /// Each process writes one contiguous part of the file.
    Segmented,
    /// Records at random offsets.
    Random,
}

/// Writes the file `file` and closes it. Returns the duration of the last close.
fn write(fs: &LogFs, shape: Shape, writers: u64, records: u64) -> Duration {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let new = NewEntry { permissions: 0o644, uid, gid };
    let (created, first) = fs.create(&Context::OWN, fs.root(), b"file", new, OpenMode::WRITE).unwrap();
    let mut random = Random::new(1);
    for writer in 0..writers {
        let context = Context::for_process(writer as u32 + 1);
        let file = fs.open_as(&context, created.node(), OpenMode::WRITE).unwrap();
        for record in 0..records {
            let number = match shape {
                Shape::Strided => record * writers + writer,
                Shape::Segmented => writer * records + record,
                Shape::Random => random.number() % (writers * records * 100),
            };
            file.write_at(&[writer as u8; RECORD_BYTES], number * RECORD_BYTES as u64).unwrap();
        }
        file.close().unwrap();
    }
    let begin = Instant::now();
    first.close().unwrap();
    begin.elapsed()
}

/// Returns the sum of the sizes of all files below `dir` whose names match.
fn bytes_of(dir: &Path, matches: &dyn Fn(&str) -> bool) -> u64 {
    let mut sum = 0;
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let metadata = entry.metadata().unwrap();
        match metadata.is_dir() {
            true => sum += bytes_of(&entry.path(), matches),
            false if matches(&entry.file_name().to_string_lossy()) => sum += metadata.len(),
            false => {}
        }
    }
    sum
}

/// Returns the shortest time from opening the file, in a new mount, to its first bytes.
fn open(dir: &Path, index_threads: usize, delay: Duration) -> Duration {
    let choices = Choices { index_threads, ..Choices::default() };
    let once = || {
        let fs = mount(dir, choices, delay);
        let found = fs.lookup(&Context::OWN, fs.root(), b"file").unwrap().unwrap();
        let begin = Instant::now();
        fs.open(&Context::OWN, found.node()).unwrap().read_at(&mut [0; RECORD_BYTES], 5000).unwrap();
        begin.elapsed()
    };
    (0..ROUNDS).map(|_| once()).min().unwrap()
}

fn main() {
    println!(
        "{:22}{:>14}{:>14}{:>13}{:>13}{:>13}{:>13}{:>13}{:>13}{:>13}",
        "milliseconds",
        "index B/write",
        "flat B/write",
        "close",
        "close flat",
        "close later",
        "delay",
        "1 thread",
        "4 threads",
        "flat"
    );
    for (name, shape) in
        [("strided", Shape::Strided), ("segmented", Shape::Segmented), ("random", Shape::Random)]
    {
        for (writers, records) in [(8, 25_000), (1024, 200)] {
            let temps: [_; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
            let logs = Choices::default();
            let flatten = Choices { flatten_bytes: FLATTEN_BYTES, ..logs };
            let later = Choices { flattens_later: true, ..flatten };
            let mut closes = Vec::new();
            for (temp, choices) in temps.iter().zip([logs, flatten, later]) {
                let fs = mount(temp.path(), choices, Duration::ZERO);
                closes.push(write(&fs, shape, writers, records));
                while fs.is_flattening() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            let [logs, flat, _] = temps.each_ref().map(|temp| temp.path());
            let each = |bytes: u64| bytes as f64 / (writers * records) as f64;
            let index_bytes = each(bytes_of(logs, &|name| name.ends_with(".index")));
            let flat_bytes = each(bytes_of(flat, &|name| name.starts_with("flat-")));
            for delay in [Duration::ZERO, DELAY] {
                let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
                let opens = [open(logs, 1, delay), open(logs, 4, delay), open(flat, 4, delay)].map(ms);
                print!("{:22}{index_bytes:14.3}{flat_bytes:14.3}", format!("{name}, {writers} writers"));
                closes.iter().for_each(|close| print!("{:13.1}", ms(*close)));
                print!("{:13.1}", ms(delay));
                opens.iter().for_each(|open| print!("{open:13.1}"));
                println!();
            }
        }
    }
}
