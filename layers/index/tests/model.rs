//! Tests with random trees that the index returns the same results as the model, that an update
//! equals a new build, and that encoding loses nothing.

use std::sync::Arc;

use quell_index::{
    BuildOptions, BuildProgress, Image, IndexFs, OnChange, ROOT, Sampler, Trust, Xattrs, build, encode,
};
use quell_posix::Dir;
use quell_testkit::operations::{Comparison, Shape, random_tree, replace_by_renaming};
use quell_testkit::{CountingDir, MemoryDir, Model, Random, Tree, TreeNode};
use quell_vfs::{Context, FileSystem, Time, errno, resolve};

const FAR_FUTURE: Time = Time { seconds: i64::MAX / 2_000_000_000, nanoseconds: 0 };

fn all_attributes() -> BuildOptions {
    BuildOptions { xattrs: Xattrs::Always, ..Default::default() }
}

fn memory(tree: &Arc<Tree>) -> Arc<dyn Dir> {
    Arc::new(MemoryDir::new(tree.clone()))
}

fn bytes_of(tree: &Arc<Tree>, threads: usize, trust: Option<Trust<'_>>) -> Vec<u8> {
    let built = build(memory(tree), b"/tree", &all_attributes(), threads, trust, &BuildProgress::default());
    let built = built.unwrap();
    assert_eq!(built.problems, []);
    encode(&built).unwrap()
}

#[test]
fn the_index_equals_the_model() {
    for seed in 0..60 {
        let shape = if seed % 2 == 0 { Shape::EXTREME } else { Shape { entries: 300, ..Shape::SMALL } };
        let tree = Arc::new(random_tree(seed, shape));
        let bytes = bytes_of(&tree, 1, None);
        assert!(bytes == bytes_of(&tree, 3, None), "seed {seed}: the bytes depend on the threads");
        let image = Image::parse(bytes).unwrap_or_else(|damage| panic!("seed {seed}: {damage}"));
        let fs = IndexFs::new(Arc::new(image), memory(&tree), OnChange::Refuse);
        let model = Model::new(tree);
        assert_eq!(fs.capabilities(), model.capabilities(), "seed {seed}");
        println!("seed {seed}");
        Comparison::new(&model, &fs, true).ask(&mut Random::new(seed), 400);
    }
}

#[test]
fn an_image_survives_encoding_and_parsing() {
    for seed in 100..130 {
        let tree = Arc::new(random_tree(seed, Shape::EXTREME));
        let image = Image::parse(bytes_of(&tree, 2, None)).unwrap();
        let model = Model::new(tree.clone());
        let paths = tree.paths();
        assert_eq!(image.entries() as usize, paths.len());
        for entry in 0..image.entries() {
            let path = image.path(entry);
            let expected = resolve(&model, &Context::OWN, &path).unwrap();
            let found = quell_vfs::Attributes { node: expected.node, ..image.attributes(entry) };
            assert_eq!(found, *expected, "seed {seed}, {}", path.escape_ascii());
            let node = tree.node(expected.node.0 as usize);
            assert_eq!(image.link_target(entry).unwrap_or_default(), node.target);
            let pairs = node.xattrs.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
            assert!(image.xattrs(entry).eq(pairs), "seed {seed}, {}", path.escape_ascii());
        }
    }
}

#[test]
fn an_update_by_directories_equals_a_build_after_any_replacements() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut tree = random_tree(seed, Shape { xattrs: seed % 3 == 0, ..Shape::SMALL });
        let mut image = Image::parse(bytes_of(&Arc::new(tree.clone()), 2, None)).unwrap();
        for round in 0..5 {
            let changes = random.below(6);
            replace_by_renaming(&mut tree, &mut random, changes);
            let now = Arc::new(tree.clone());
            let fresh = bytes_of(&now, 2, None);
            let updated = bytes_of(&now, 2, Some(Trust { image: &image, before: FAR_FUTURE }));
            assert!(fresh == updated, "seed {seed}, round {round}");
            image = Image::parse(updated).unwrap();
        }
    }
}

#[test]
fn an_update_by_directories_reads_only_what_changed() {
    let mut tree = random_tree(5, Shape { entries: 400, ..Shape::SMALL });
    let image = Image::parse(bytes_of(&Arc::new(tree.clone()), 2, None)).unwrap();
    let dir = tree.add(Tree::ROOT, "new directory", TreeNode::dir());
    tree.add(dir, "file", TreeNode::file("x"));
    tree.node_mut(Tree::ROOT).modified = FAR_FUTURE;
    let counting = CountingDir::new(memory(&Arc::new(tree)));
    let trust = Some(Trust { image: &image, before: FAR_FUTURE });
    let options = BuildOptions { xattrs: Xattrs::Never, ..Default::default() };
    build(Arc::new(counting.clone()), b"/tree", &options, 2, trust, &BuildProgress::default()).unwrap();
    let listed = counting.operations().into_iter().filter(|o| o.verb == "list");
    let listed: Vec<_> = listed.map(|o| o.path).collect();
    assert_eq!(listed.len(), 2, "{listed:?}");
}

#[test]
fn a_sample_costs_one_operation() {
    for seed in 0..200 {
        let shape = Shape { entries: 30 + seed as usize, ..Shape::SMALL };
        let tree = Arc::new(random_tree(seed, shape));
        let image = Arc::new(Image::parse(bytes_of(&tree, 1, None)).unwrap());
        let counting = CountingDir::new(memory(&tree));
        let mut sampler = Sampler::new(image, Arc::new(counting.clone()), seed);
        for looks in 1..=8 {
            assert_eq!(sampler.step().unwrap(), None, "seed {seed}");
            let cost = counting.uncached_operations();
            assert!(cost <= looks, "seed {seed}: {looks} looks: {:?}", counting.operations());
        }
        for _ in 0..100 {
            sampler.step().unwrap();
        }
        let operations = counting.operations();
        assert!(operations.iter().all(|o| matches!(o.verb, "stat" | "enter")), "seed {seed}");
        assert_eq!(operations.iter().filter(|o| o.verb == "stat").count(), 108, "seed {seed}");
    }
}

#[test]
fn a_very_deep_tree_is_indexed_and_read_without_recursion() {
    let mut tree = Tree::new();
    let mut at = Tree::ROOT;
    for _ in 0..3000 {
        at = tree.add(at, "d", TreeNode::dir());
    }
    tree.add(at, "file", TreeNode::file("deep"));
    let tree = Arc::new(tree);
    let image = Arc::new(Image::parse(bytes_of(&tree, 2, None)).unwrap());
    assert_eq!(image.longest_path_bytes(), 2 * 3000 + 4);
    let fs = IndexFs::new(image.clone(), memory(&tree), OnChange::Refuse);
    let last = u64::from(image.entries() - 1);
    let read = std::thread::Builder::new().stack_size(64 << 10).spawn(move || {
        let mut buffer = [0; 8];
        let count = fs.open(&Context::OWN, quell_vfs::NodeId(last)).unwrap().read_at(&mut buffer, 0).unwrap();
        assert_eq!(&buffer[..count], b"deep");
    });
    read.unwrap().join().unwrap();
    assert_eq!(image.parent(ROOT), ROOT);
    let gone = IndexFs::new(image, memory(&Arc::new(Tree::new())), OnChange::Refuse);
    assert_eq!(gone.open(&Context::OWN, quell_vfs::NodeId(last)).err().unwrap().errno(), errno::ESTALE);
}
