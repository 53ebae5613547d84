//! Durable commits of a store, of the key-value store below it, and of fdatasync(2) alone, on the
//! file system of `$TMPDIR`. The threads of each measurement run for three seconds; the
//! measurements are repeated three times in turn.
//!
//! ```text
//! cargo bench -p quell-blob --bench commits
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell_blob::{Store, Transform};
use quell_kv::{Batch, DiskOptions, DiskStore, Durability, KeyValue};

const SECONDS: u64 = 3;
const REPETITIONS: usize = 3;

/// Calls `commit` on several threads for some seconds, with the numbers of the thread and of the
/// call, and returns the calls per second.
fn rate(threads: usize, commit: impl Fn(usize, u64) + Sync) -> f64 {
    let (count, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (count, is_over, commit) = (&count, &is_over, &commit);
            scope.spawn(move || {
                for call in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    commit(thread, call);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(Duration::from_secs(SECONDS));
        is_over.store(true, Ordering::Relaxed);
    });
    count.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()
}

fn report(name: &str, threads: usize, rate: f64) {
    let latency_us = threads as f64 / rate * 1e6;
    println!("{name:<40} {threads:>3} threads {rate:>10.0}/s {latency_us:>9.0} us");
}

fn main() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(&directory.path().join("store").display().to_string()).expect("opened");
    let options = DiskOptions { durability: Durability::Power, ..DiskOptions::default() };
    let kv = DiskStore::open(&directory.path().join("kv"), &options).expect("opened");
    let file = File::create(directory.path().join("file")).expect("created");
    store.create("blob").expect("created");
    store.create("counter").expect("created");
    let data = [7; 100];
    for _ in 0..REPETITIONS {
        for threads in [1, 16] {
            let sync = |thread: usize, call: u64| {
                let offset = (call * 16 + thread as u64) % 4096 * 4096;
                file.write_all_at(&data, offset).and_then(|()| file.sync_data()).expect("written");
            };
            report("write and fdatasync", threads, rate(threads, sync));
            let put = |thread: usize, call: u64| {
                let mut batch = Batch::new();
                batch.put(&(call % 1000 * 16 + thread as u64).to_be_bytes(), &data);
                kv.commit(batch).expect("committed");
            };
            report("key-value store, 100 bytes", threads, rate(threads, put));
            let write = |thread: usize, call: u64| {
                let offset = (call % 1000 * 16 + thread as u64) * 512;
                store.write("blob", offset, &data).expect("committed");
            };
            report("blob, write of 100 bytes", threads, rate(threads, write));
            let add = |_: usize, _: u64| {
                store.transform("counter", 0, Transform::add_i64(1)).expect("committed");
            };
            report("blob, addition to one number", threads, rate(threads, add));
        }
    }
    let page = |thread: usize, call: u64| {
        let mut into = [0; 100];
        store.read("blob", (call * 7 % 1000 * 16 + thread as u64) * 512, &mut into).expect("read");
    };
    for threads in [1, 16] {
        report("blob, read of 100 bytes", threads, rate(threads, page));
    }
}
