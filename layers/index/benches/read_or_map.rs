//! Compares reading and mapping an index file: the measurement for
//! docs/decisions/0002-read-not-map.md. `cargo bench -p quell-index --bench read_or_map [--
//! DIRECTORY]` creates the file in DIRECTORY.

use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Instant;

use quell_testkit::Random;
use rustix::fs::{Advice, fadvise};
use rustix::mm::{MapFlags, ProtFlags, madvise, mmap, munmap};
use xxhash_rust::xxh3::xxh3_64;

const FILE_BYTES: usize = 40 << 20;
const ROUNDS: usize = 15;
/// The approximate number of positions that one lookup reads: a few steps of a binary search, far
/// apart.
const TOUCHES: usize = 1000;

/// A file mapped for reading until this value is dropped.
struct Mapped {
    start: *mut std::ffi::c_void,
}

impl Mapped {
    fn map(file: &File) -> Mapped {
        // SAFETY: the mapping is new and private; the file belongs to this process and is not
        // truncated while it is mapped.
        #[allow(unsafe_code)]
        let start = unsafe {
            mmap(std::ptr::null_mut(), FILE_BYTES, ProtFlags::READ, MapFlags::PRIVATE, file, 0)
                .expect("a file can be mapped")
        };
        Mapped { start }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has this length and lives as long as `self`.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(self.start.cast(), FILE_BYTES)
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to `self`, and the borrow of its bytes has ended.
        #[allow(unsafe_code)]
        unsafe {
            let _ = munmap(self.start, FILE_BYTES);
        }
    }
}

fn read_whole(file: &mut File) -> u64 {
    let mut bytes = Vec::with_capacity(FILE_BYTES + 1);
    file.read_to_end(&mut bytes).expect("it is ours");
    xxh3_64(&bytes)
}

fn map_and_check(file: &mut File) -> u64 {
    xxh3_64(Mapped::map(file).bytes())
}

/// Reads without validation: only the accessed pages are fetched.
fn map_and_touch(file: &mut File) -> u64 {
    let mapped = Mapped::map(file);
    let mut random = Random::new(1);
    (0..TOUCHES).map(|_| u64::from(mapped.bytes()[random.below(FILE_BYTES)])).sum()
}

/// Does the same as `map_and_touch` without read-ahead, similar to a file system with small
/// read-ahead windows.
fn map_and_touch_single_pages(file: &mut File) -> u64 {
    let mapped = Mapped::map(file);
    // SAFETY: the advice changes only the kernel's read-ahead, not the content.
    #[allow(unsafe_code)]
    unsafe {
        madvise(mapped.start, FILE_BYTES, rustix::mm::Advice::Random).expect("the mapping is ours");
    }
    let mut random = Random::new(1);
    (0..TOUCHES).map(|_| u64::from(mapped.bytes()[random.below(FILE_BYTES)])).sum()
}

/// Returns the number of major page faults, which waited for the file system.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux has it");
    let after_name = stat.rsplit(')').next().expect("it has a name");
    after_name.split_whitespace().nth(9).and_then(|n| n.parse().ok()).expect("a number")
}

fn main() {
    let directory = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let directory = directory.map_or_else(std::env::temp_dir, PathBuf::from);
    let mut file = tempfile::NamedTempFile::new_in(directory).expect("a temporary file");
    file.write_all(&Random::new(7).bytes(FILE_BYTES)).expect("space for a file");
    file.as_file().sync_all().expect("space for a file");
    type Method = (&'static str, fn(&mut File) -> u64);
    let methods: [Method; 4] = [
        ("read whole, checksum", read_whole),
        ("map, checksum", map_and_check),
        ("map, no checksum, 1,000 touches", map_and_touch),
        ("the same, nothing read ahead", map_and_touch_single_pages),
    ];
    for cold in [false, true] {
        for (name, method) in methods {
            let mut times = Vec::new();
            let mut waited = 0;
            for _ in 0..ROUNDS {
                let mut open = File::open(file.path()).expect("it is ours");
                if cold {
                    fadvise(open.as_fd(), 0, None, Advice::DontNeed).expect("it is clean");
                } else {
                    black_box(read_whole(&mut File::open(file.path()).expect("it is ours")));
                }
                let (begun, before) = (Instant::now(), faults());
                black_box(method(&mut open));
                times.push(begun.elapsed().as_secs_f64() * 1000.0);
                waited = faults() - before;
            }
            times.sort_by(f64::total_cmp);
            let state = if cold { "cold" } else { "warm" };
            let (best, median) = (times[0], times[ROUNDS / 2]);
            println!(
                "{state:4} {name:32} {median:7.1} ms median, {best:6.1} best, {waited} waits for a page"
            );
        }
    }
}
