//! Measures the time from opening a file to its first bytes, for logs of different shapes, and the
//! time to write and to read a checkpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use quell_log::{Choices, Holder, Host, LogFs, Scratch, Stores};
use quell_posix::{PosixDir, WritableDir};
use quell_testkit::Random;
use quell_vfs::{Context, FileSystem, NewEntry, OpenMode, Writable};

fn mount(dir: &std::path::Path, choices: Choices) -> LogFs {
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
    LogFs::new(Stores::open(vec![root], host, 32).unwrap(), choices)
}

fn new() -> NewEntry {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    NewEntry { permissions: 0o644, uid, gid }
}

/// Creates a file written by `writers` processes, each with `records` records of 100 bytes at
/// random offsets below 10 GB.
fn random_file(dir: &std::path::Path, writers: u32, records: u32) {
    let fs = mount(dir, Choices { buffer_bytes: 1 << 20, ..Choices::default() });
    let mut random = Random::new(1);
    let (node, first) = {
        let (created, file) = fs.create(&Context::OWN, fs.root(), b"file", new(), OpenMode::WRITE).unwrap();
        (created.into_attributes().node, file)
    };
    drop(first);
    for process in 0..writers {
        let file = fs.open_as(&Context::for_process(process), node, OpenMode::WRITE).unwrap();
        for _ in 0..records {
            file.write_at(&[process as u8; 100], random.number() % 10_000_000_000).unwrap();
        }
        file.publish().unwrap();
    }
}

fn opening(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("open to first byte");
    group.sample_size(10);
    for (writers, records) in [(1024, 1000), (8, 25_000)] {
        let temp = tempfile::tempdir().unwrap();
        random_file(temp.path(), writers, records);
        for flat in [false, true] {
            let fs = mount(temp.path(), Choices::default());
            if flat {
                let node =
                    fs.lookup(&Context::OWN, fs.root(), b"file").unwrap().unwrap().into_attributes().node;
                println!("{:?}", fs.flatten(node).unwrap());
            }
            let name =
                format!("{writers} logs of {records} records, {}", if flat { "flattened" } else { "logs" });
            group.bench_function(name, |bencher| {
                bencher.iter_batched(
                    || mount(temp.path(), Choices::default()),
                    |fs| {
                        let node = fs
                            .lookup(&Context::OWN, fs.root(), b"file")
                            .unwrap()
                            .unwrap()
                            .into_attributes()
                            .node;
                        let file = fs.open(&Context::OWN, node).unwrap();
                        file.read_at(&mut [0; 100], 5_000_000_000).unwrap();
                        fs
                    },
                    BatchSize::PerIteration,
                );
            });
        }
    }
    group.finish();
}

/// Measures the cost of the layer in addition to the writes themselves. Four writers take turns in
/// one thread.
fn checkpoint(criterion: &mut Criterion) {
    const RECORD: usize = 47_008;
    const RECORDS: usize = 4000;
    let mut group = criterion.benchmark_group("checkpoint of 4 writers");
    group.sample_size(10);
    group.throughput(Throughput::Bytes((RECORD * RECORDS) as u64));
    let record = vec![7; RECORD];
    for buffer_bytes in [128 << 10, 1 << 20, 4 << 20] {
        let temp = tempfile::tempdir().unwrap();
        let fs = mount(temp.path(), Choices { buffer_bytes, ..Choices::default() });
        let mut number = 0;
        let mut write = |fs: &LogFs| {
            number += 1;
            let name = format!("f{number}").into_bytes();
            let (created, first) =
                fs.create(&Context::OWN, fs.root(), &name, new(), OpenMode::WRITE).unwrap();
            let open = |process| {
                fs.open_as(&Context::for_process(process), created.node(), OpenMode::WRITE).unwrap()
            };
            let files: Vec<_> = (1..5).map(open).collect();
            for i in 0..RECORDS {
                files[i % 4].write_at(&record, (i * RECORD) as u64).unwrap();
            }
            files.iter().for_each(|file| file.publish().unwrap());
            drop((first, files));
            name
        };
        group.bench_function(format!("write, buffers of {} KiB", buffer_bytes >> 10), |bencher| {
            bencher.iter(|| {
                let name = write(&fs);
                fs.remove(&Context::OWN, fs.root(), &name).unwrap();
            });
        });
        let name = write(&fs);
        let node = fs.lookup(&Context::OWN, fs.root(), &name).unwrap().unwrap().into_attributes().node;
        group.bench_function(format!("read, buffers of {} KiB", buffer_bytes >> 10), |bencher| {
            let file = fs.open(&Context::OWN, node).unwrap();
            let mut into = vec![0; RECORD];
            bencher.iter(|| {
                for rank in 0..4 {
                    for i in (rank..RECORDS).step_by(4) {
                        assert_eq!(file.read_at(&mut into, (i * RECORD) as u64).unwrap(), RECORD);
                    }
                }
            });
        });
    }
    // The same bytes in four private files, without Quell.
    let temp = tempfile::tempdir().unwrap();
    group.bench_function("private files: write", |bencher| {
        bencher.iter(|| {
            use std::os::unix::fs::FileExt;
            let files: Vec<_> =
                (0..4).map(|i| std::fs::File::create(temp.path().join(format!("p{i}"))).unwrap()).collect();
            for i in 0..RECORDS {
                files[i % 4].write_all_at(&record, (i / 4 * RECORD) as u64).unwrap();
            }
        });
    });
    group.finish();
}

criterion_group!(benches, opening, checkpoint);
criterion_main!(benches);
