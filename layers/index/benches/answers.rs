//! Measures the time of one request to the index, of parsing it, and of building it.
//! `cargo bench -p quell-index --bench answers`

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use quell_index::{BuildOptions, BuildProgress, Image, IndexFs, OnChange, build, encode};
use quell_posix::Dir;
use quell_testkit::operations::{Shape, random_tree};
use quell_testkit::{MemoryDir, Random, Tree, TreeNode};
use quell_vfs::{Context, Cursor, FileSystem, NodeId, resolve};

mod synthetic;

fn nothing() -> Arc<dyn Dir> {
    Arc::new(MemoryDir::new(Arc::new(Tree::new())))
}

fn answers(c: &mut Criterion) {
    let image = Arc::new(synthetic::image(100_000));
    let fs = IndexFs::new(image.clone(), nothing(), OnChange::Refuse);
    let dir = resolve(&fs, &Context::OWN, &b"package_01/".repeat(7)).expect("it is there").node;
    let mut random = Random::new(1);
    let nodes: Vec<NodeId> = (0..4096).map(|_| NodeId(random.number() % 100_000)).collect();
    let mut at = 0;
    let mut next = move || {
        at = (at + 1) % nodes.len();
        nodes[at]
    };
    c.bench_function("lookup, found", |b| {
        b.iter(|| fs.lookup(&Context::OWN, dir, black_box(b"module_007.cpython-313.pyc")))
    });
    c.bench_function("lookup, not found", |b| {
        b.iter(|| fs.lookup(&Context::OWN, dir, black_box(b"libm.so.6")))
    });
    c.bench_function("attributes of any entry", |b| b.iter(|| fs.attributes(&Context::OWN, next())));
    c.bench_function("path of an entry 8 deep", |b| b.iter(|| fs.path(black_box(NodeId(99_999)))));
}

fn listing(c: &mut Criterion) {
    let mut tree = Tree::new();
    for i in 0..1000 {
        tree.add(Tree::ROOT, format!("module_{i:04}.py"), TreeNode::file("x"));
    }
    let source: Arc<dyn Dir> = Arc::new(MemoryDir::new(Arc::new(tree)));
    let tree = build(source.clone(), b"/", &BuildOptions::default(), 1, None, &BuildProgress::default());
    let image = Image::parse(encode(&tree.expect("it is in memory")).expect("it is small"));
    let fs = IndexFs::new(Arc::new(image.expect("we wrote it")), source, OnChange::Refuse);
    let mut group = c.benchmark_group("list");
    group.throughput(Throughput::Elements(1000));
    group.bench_function("1,000 entries with attributes", |b| {
        b.iter(|| {
            fs.list(&Context::OWN, fs.root(), Cursor::START, &mut |entry| {
                black_box(entry);
                true
            })
        })
    });
    group.finish();
}

fn begin(c: &mut Criterion) {
    let bytes = synthetic::image(100_000).bytes().to_vec();
    let mut group = c.benchmark_group("begin");
    group.sample_size(20);
    group.throughput(Throughput::Elements(100_000));
    group.bench_function("parse 100,000 entries", |b| {
        b.iter_batched(|| bytes.clone(), Image::parse, criterion::BatchSize::LargeInput)
    });
    let tree = synthetic::tree(100_000);
    group.bench_function("encode 100,000 entries", |b| b.iter(|| encode(&tree)));
    let tree = Arc::new(random_tree(1, Shape { entries: 10_000, ..Shape::SMALL }));
    let source: Arc<dyn Dir> = Arc::new(MemoryDir::new(tree));
    group.throughput(Throughput::Elements(10_000));
    group.bench_function("build 10,000 entries in memory", |b| {
        b.iter(|| build(source.clone(), b"/", &BuildOptions::default(), 2, None, &BuildProgress::default()))
    });
    group.finish();
}

criterion_group!(benches, answers, listing, begin);
criterion_main!(benches);
