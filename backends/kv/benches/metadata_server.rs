//! Measures a store with the operations of a file system's metadata server: creates (batches of 2
//! puts), lookups, listings and removals (batches of 2 deletes), with 1 million entries. The
//! results and the comparison with RocksDB are in docs/decisions/0019-key-value-store.md.
//!
//! `cargo bench -p quell-kv --bench metadata_server`

use std::hint::black_box;
use std::ops::Bound;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use quell_kv::{Batch, DiskOptions, DiskStore, KeyRange, KeyValue, MemoryStore};
use quell_testkit::Random;

/// Number of files; each has two entries.
const FILES: u64 = 500_000;
const HOT_FILES: u64 = 1_000;
const DIRECTORIES: u64 = 100;

fn hash(number: u64) -> u64 {
    Random::new(number).number()
}

/// Returns the key of a name in a directory: 23 to 60 bytes.
fn name_key(file: u64) -> Vec<u8> {
    let name = format!("file.{file:08}.abcdefghijklmnopqrstuvwxyzabcdefghijk");
    let name_bytes = 14 + (hash(file) % 38) as usize;
    [b"d", &hash(file % DIRECTORIES).to_be_bytes()[..], &name.as_bytes()[..name_bytes]].concat()
}

/// Returns the key of the attributes of a file: 17 bytes.
fn attributes_key(file: u64) -> Vec<u8> {
    [b"i", &hash(file ^ 0x5555).to_be_bytes()[..], &file.to_be_bytes()[..]].concat()
}

fn create(store: &dyn KeyValue, file: u64) {
    let value = Random::new(file).bytes(96);
    let mut batch = Batch::with_capacity(2);
    batch.put(&name_key(file), &value);
    batch.put(&attributes_key(file), &value);
    store.commit(batch).unwrap();
}

fn remove(store: &dyn KeyValue, file: u64) {
    let mut batch = Batch::with_capacity(2);
    batch.delete(&name_key(file));
    batch.delete(&attributes_key(file));
    store.commit(batch).unwrap();
}

fn measure(c: &mut Criterion, name: &str, store: &dyn KeyValue) {
    let start = Instant::now();
    (0..FILES).for_each(|file| create(store, file));
    println!("{name}: {FILES} creates in {:.2?}", start.elapsed());
    let mut group = c.benchmark_group(name);
    group.measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1)).sample_size(20);
    let mut file = 0;
    let mut next = move |end| {
        file += 1;
        hash(file) % end
    };
    group.bench_function("get, hot", |b| {
        b.iter(|| assert!(store.get(&attributes_key(next(HOT_FILES))).unwrap().is_some()));
    });
    group.bench_function("get, any", |b| {
        b.iter(|| assert!(store.get(&name_key(next(FILES))).unwrap().is_some()));
    });
    group.bench_function("get, missing", |b| {
        b.iter(|| assert!(store.get(&name_key(FILES * 100 + next(FILES))).unwrap().is_none()));
    });
    group.bench_function("scan, 1000 entries", |b| {
        b.iter(|| {
            let start = name_key(next(FILES / 2));
            let (mut left, mut bytes) = (1_000, 0);
            let range = KeyRange::between(Bound::Included(&start), Bound::Unbounded);
            let mut visit = |key: &[u8], value: &[u8]| {
                bytes += key.len() + value.len();
                left -= 1;
                left > 0
            };
            store.scan(&range, &mut visit).unwrap();
            black_box(bytes)
        });
    });
    let mut created = FILES;
    group.bench_function("create, 2 puts", |b| {
        b.iter(|| {
            create(store, created);
            created += 1;
        });
    });
    let mut removed = 0;
    group.bench_function("remove, 2 deletes", |b| {
        b.iter(|| {
            remove(store, removed);
            removed += 1;
        });
    });
    group.finish();
}

fn benchmark(c: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    let mut number = 0;
    c.bench_function("disk/open, new store", |b| {
        b.iter_custom(|count| {
            let mut time = Duration::ZERO;
            for _ in 0..count {
                number += 1;
                let start = Instant::now();
                let store =
                    DiskStore::open(&directory.path().join(number.to_string()), &DiskOptions::default());
                time += start.elapsed();
                drop(store.unwrap());
            }
            time
        });
    });
    let path = directory.path().join("full");
    let store = DiskStore::open(&path, &DiskOptions::default()).unwrap();
    measure(c, "disk", &store);
    drop(store);
    c.bench_function("disk/open, existing store", |b| {
        b.iter_custom(|count| {
            let mut time = Duration::ZERO;
            for _ in 0..count {
                let start = Instant::now();
                let store = DiskStore::open(&path, &DiskOptions::default()).unwrap();
                time += start.elapsed();
                drop(store);
            }
            time
        });
    });
    measure(c, "memory", &MemoryStore::new());
}

criterion_group!(benches, benchmark);
criterion_main!(benches);
