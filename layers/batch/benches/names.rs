//! Measures creations, look-ups and small files of a private name space in memory, and the same
//! operations on the name space without the layer: the difference is the cost of the layer.
//!
//! ```sh
//! cargo bench -p quell-batch
//! ```

#[path = "../tests/mounts/mod.rs"]
mod mounts;

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use quell_batch::BatchFs;
use quell_batch_service::{NameSpace, NewNode, ROOT};
use quell_testkit::MemoryStore;
use quell_vfs::{Context, FileSystem, OpenMode, Time, Writable, WritableFile};

use mounts::{NEW, mount, private};

const FILES: usize = 10_000;

fn file_names() -> Vec<String> {
    (0..FILES).map(|number| format!("file.{number:08}")).collect()
}

fn mounted() -> (Arc<dyn NameSpace>, BatchFs) {
    let names = private();
    let fs = mount(&names, &MemoryStore::new(), 1);
    (names, fs)
}

fn create(fs: &BatchFs, name: &str) -> Box<dyn WritableFile> {
    let created = fs.create(&Context::OWN, fs.root(), name.as_bytes(), NEW, OpenMode::WRITE);
    created.expect("a file").1
}

fn operations(criterion: &mut Criterion) {
    let files = file_names();
    let mut group = criterion.benchmark_group("10,000 files");
    group.sample_size(20).throughput(criterion::Throughput::Elements(FILES as u64));

    group.bench_function("create in the name space", |bencher| {
        bencher.iter_batched(
            mounted,
            |(names, fs)| {
                for name in &files {
                    let new = names.create(ROOT, name.as_bytes(), NewNode::File, NEW, Time::default());
                    black_box(new.expect("a file"));
                }
                (names, fs)
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("create, close", |bencher| {
        bencher.iter_batched(
            mounted,
            |(names, fs)| {
                for name in &files {
                    create(&fs, name).close().expect("closed");
                }
                (names, fs)
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("create, write 100 bytes, close", |bencher| {
        bencher.iter_batched(
            mounted,
            |(names, fs)| {
                for name in &files {
                    let file = create(&fs, name);
                    file.write_at(&[1; 100], 0).expect("written");
                    file.close().expect("closed");
                }
                (names, fs)
            },
            BatchSize::PerIteration,
        );
    });

    let (names, fs) = mounted();
    files.iter().for_each(|name| create(&fs, name).close().expect("closed"));
    group.bench_function("look up in the name space", |bencher| {
        bencher.iter(|| {
            for name in &files {
                black_box(names.lookup(ROOT, name.as_bytes()).expect("looked up"));
            }
        });
    });
    group.bench_function("look up", |bencher| {
        bencher.iter(|| {
            for name in &files {
                black_box(fs.lookup(&Context::OWN, fs.root(), name.as_bytes()).expect("looked up"));
            }
        });
    });
    group.finish();
}

criterion_group!(benches, operations);
criterion_main!(benches);
