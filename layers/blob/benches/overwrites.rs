//! The space of a store whose blobs are overwritten again and again: a million writes of one range
//! of 4 KiB, and 2,000 of one range of 1 MiB, by 64 threads, while a reader begins a snapshot each
//! second and reads both ranges with it. The store also has 256 MiB that do not change.
//!
//! ```text
//! cargo bench -p quell-blob --bench overwrites [WRITES]
//! ```

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell_blob::Store;

const THREADS: u64 = 64;
const UNCHANGED_BYTES: usize = 256 << 20;
const SMALL_BYTES: usize = 4096;
const LARGE_BYTES: usize = 1 << 20;
/// One of this many writes is large.
const LARGE_ONE_IN: u64 = 500;

/// Returns the disk space of all files below a directory, in bytes.
fn disk_bytes(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut total = 0;
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(stat) = entry.metadata() else { continue };
        total += if stat.is_dir() { disk_bytes(&entry.path()) } else { stat.blocks() * 512 };
    }
    total
}

/// Returns the memory of this process, in KiB.
fn memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("read");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn main() {
    let writes: u64 = std::env::args().filter_map(|word| word.parse().ok()).next().unwrap_or(1_000_000);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let store = Store::open(&path.display().to_string()).expect("opened");
    for name in ["unchanged", "small", "large"] {
        store.create(name).expect("created");
    }
    for _ in 0..UNCHANGED_BYTES / LARGE_BYTES {
        store.append("unchanged", &vec![1; LARGE_BYTES]).expect("appended");
    }
    store.write("small", 0, &[0; SMALL_BYTES]).expect("written");
    store.write("large", 0, &vec![0; LARGE_BYTES]).expect("written");
    let live = (UNCHANGED_BYTES + SMALL_BYTES + LARGE_BYTES) as u64;
    let (done, is_over, begun) = (AtomicU64::new(0), AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let number = done.fetch_add(1, Ordering::Relaxed);
                    if number >= writes {
                        is_over.store(true, Ordering::Relaxed);
                        return;
                    }
                    let written = match number % LARGE_ONE_IN {
                        0 => store.write("large", 0, &vec![number as u8; LARGE_BYTES]),
                        _ => store.write("small", 0, &[number as u8; SMALL_BYTES]),
                    };
                    written.expect("written");
                }
            });
        }
        let mut largest = 0;
        let mut next = 1;
        while !is_over.load(Ordering::Relaxed) {
            let snapshot = store.snapshot().expect("begun");
            std::thread::sleep(Duration::from_secs(1));
            let mut small = [0; SMALL_BYTES];
            let mut large = vec![0; LARGE_BYTES];
            snapshot.read("small", 0, &mut small).expect("read");
            snapshot.read("large", 0, &mut large).expect("read");
            assert!(small.iter().all(|byte| *byte == small[0]), "a write was read in part");
            assert!(large.iter().all(|byte| *byte == large[0]), "a write was read in part");
            largest = largest.max(disk_bytes(&path));
            if done.load(Ordering::Relaxed) >= writes * next / 10 {
                println!(
                    "{:>9} writes: {:>7} KiB of memory, {:>5.2} times the live data on the disk, at most {:.2}",
                    done.load(Ordering::Relaxed),
                    memory_kib(),
                    disk_bytes(&path) as f64 / live as f64,
                    largest as f64 / live as f64,
                );
                next = done.load(Ordering::Relaxed) * 10 / writes + 1;
            }
        }
    });
    println!("{writes} writes in {:.0} s", begun.elapsed().as_secs_f64());
    store.collect().expect("collected");
    println!("after the collection: {:.2} times the live data", disk_bytes(&path) as f64 / live as f64);
}
