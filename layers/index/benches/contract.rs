//! Compares nodes and paths in the contract: the measurement for
//! docs/decisions/0001-nodes-in-the-contract.md. `cargo bench -p quell-index --bench contract`
//!
//! The kernel sends an inode number and a name. With nodes, the request goes directly to the layer.
//! With paths, the frontend finds the directory's path in its own table and appends the name, and
//! the layer resolves the path.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use quell_index::{Image, IndexFs, OnChange};
use quell_posix::Dir;
use quell_testkit::{MemoryDir, Random, Tree};
use quell_vfs::{Context, FileSystem, NodeId, resolve};

mod synthetic;

const ENTRIES: u64 = 1_000_000;

/// The frontend's tables between inode numbers and paths, if the contract uses paths.
struct Inodes {
    paths: HashMap<u64, Arc<[u8]>>,
    numbers: HashMap<Arc<[u8]>, u64>,
}

impl Inodes {
    fn new(image: &Image) -> Inodes {
        let mut inodes = Inodes { paths: HashMap::new(), numbers: HashMap::new() };
        for entry in 0..image.entries() {
            let path: Arc<[u8]> = image.path(entry).into();
            inodes.paths.insert(entry.into(), path.clone());
            inodes.numbers.insert(path, entry.into());
        }
        inodes
    }
}

/// The smaller table of libfuse's high-level interface: the name and the parent of each inode.
struct Parents {
    names: HashMap<u64, (u64, Box<[u8]>)>,
    numbers: HashMap<(u64, Box<[u8]>), u64>,
}

impl Parents {
    fn new(image: &Image) -> Parents {
        let mut parents = Parents { names: HashMap::new(), numbers: HashMap::new() };
        for entry in 0..image.entries() {
            let (parent, name) = (u64::from(image.parent(entry)), Box::<[u8]>::from(image.name(entry)));
            parents.names.insert(entry.into(), (parent, name.clone()));
            parents.numbers.insert((parent, name), entry.into());
        }
        parents
    }

    fn path(&self, mut number: u64) -> Vec<u8> {
        let mut names = Vec::new();
        while number != 0 {
            let (parent, name) = &self.names[&number];
            names.push(&**name);
            number = *parent;
        }
        names.reverse();
        names.join(&b'/')
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn contract(c: &mut Criterion) {
    let image = Arc::new(synthetic::image(ENTRIES));
    println!("the image of {ENTRIES} entries: {:.1} MiB", mib(image.file_bytes()));
    let source: Arc<dyn Dir> = Arc::new(MemoryDir::new(Arc::new(Tree::new())));
    let fs = IndexFs::new(image.clone(), source, OnChange::Refuse);
    let before = synthetic::resident_bytes();
    let inodes = Inodes::new(&image);
    let with_inodes = synthetic::resident_bytes();
    println!("a table of inodes with paths: {:.1} MiB more", mib(with_inodes - before));
    let parents = Parents::new(&image);
    let with_parents = synthetic::resident_bytes();
    println!("a table of inodes with parents: {:.1} MiB more", mib(with_parents - with_inodes));

    // Files 8 levels deep: the nodes of their directories, and their names.
    let mut random = Random::new(1);
    let first_file = ENTRIES / 10;
    let questions: Vec<(u64, Vec<u8>)> = (0..100_000)
        .map(|_| {
            let entry = (first_file + random.number() % (ENTRIES - first_file)) as u32;
            (u64::from(image.parent(entry)), image.name(entry).to_vec())
        })
        .collect();
    let mut at = 0;
    let mut next = || {
        at = (at + 1) % questions.len();
        &questions[at]
    };
    c.bench_function("stat by node: lookup(directory, name)", |b| {
        b.iter(|| {
            let (dir, name) = next();
            black_box(fs.lookup(&Context::OWN, NodeId(*dir), name))
        })
    });
    c.bench_function("stat by path: table of paths, then 8 lookups", |b| {
        b.iter(|| {
            let (dir, name) = next();
            let path = [&inodes.paths[dir], b"/".as_slice(), name].concat();
            black_box(resolve(&fs, &Context::OWN, &path))
        })
    });
    c.bench_function("stat by path: table of parents, then 8 lookups", |b| {
        b.iter(|| {
            let (dir, name) = next();
            let path = [parents.path(*dir).as_slice(), b"/", name].concat();
            black_box(resolve(&fs, &Context::OWN, &path))
        })
    });
    // The best case of a layer for paths: one hash of the whole path, and a second table.
    c.bench_function("stat by path: table of paths, then one hash of the path", |b| {
        b.iter(|| {
            let (dir, name) = next();
            let path = [&inodes.paths[dir], b"/".as_slice(), name].concat();
            let entry = inodes.numbers[path.as_slice()];
            black_box(image.attributes(entry as u32))
        })
    });
    black_box(parents.numbers.len());
}

criterion_group!(benches, contract);
criterion_main!(benches);
