//! Tests the builder with injected faults: regardless of the errors of the file system, the build
//! ends, and each entry is either indexed correctly or listed as a problem.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use quell_index::{BuildOptions, BuildProgress, EntryId, Image, ROOT, Trust, Xattrs, build, encode};
use quell_posix::{Dir, OpenFile, Stat};
use quell_testkit::operations::{Shape, random_tree};
use quell_testkit::{Fault, Faults, FaultyDir};
use quell_testkit::{MemoryDir, Model, Tree, TreeNode};
use quell_vfs::{Context, Error, ErrorKind, FileSystem, Time, errno, resolve};

const SHAPE: Shape = Shape { entries: 80, extremes: false, xattrs: true };
const HANG: Duration = Duration::from_secs(60);

/// Builds an index over a directory with injected faults.
fn built(tree: &Arc<Tree>, faults: &Arc<Faults>, threads: usize) -> quell_vfs::Result<Image> {
    let healthy: Arc<dyn Dir> = Arc::new(MemoryDir::new(tree.clone()));
    let faulty: Arc<dyn Dir> = Arc::new(FaultyDir::new(healthy, faults.clone()));
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let options = BuildOptions { xattrs: Xattrs::Always, ..Default::default() };
        let tree = build(faulty, b"/tree", &options, threads, None, &BuildProgress::default());
        let _ = done.send(tree.and_then(|tree| encode(&tree)));
    });
    let bytes = wait.recv_timeout(HANG).expect("the builder neither panics nor hangs")?;
    Ok(Image::parse(bytes).expect("what we encode we read"))
}

fn entry_at(image: &Image, path: &[u8]) -> Option<EntryId> {
    let names = path.split(|b| *b == b'/').filter(|name| !name.is_empty());
    names.into_iter().try_fold(ROOT, |at, name| image.lookup(at, name))
}

/// Returns the path and the directories above it.
fn with_ancestors(path: &[u8]) -> Vec<&[u8]> {
    let ends = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(i, _)| i);
    [0].into_iter().chain(ends).map(|end| &path[..end]).chain([path]).collect()
}

/// Checks that every entry is correct or listed as a problem, that no other entry exists, and that
/// each problem has a cause.
fn check_index(seed: u64, tree: &Arc<Tree>, image: &Image, faults: &Faults) {
    let model = Model::new(tree.clone());
    let problems: Vec<Vec<u8>> = image.problems().map(|p| p.path).collect();
    let mut nodes = HashMap::new();
    // A problem at any of a file's names is a problem of the file.
    let of_problem = |(path, number)| problems.contains(&path).then_some(number);
    let nodes_with_problems: HashSet<usize> = tree.paths().into_iter().filter_map(of_problem).collect();
    for (path, number) in tree.paths() {
        let shown_path = format!("seed {seed}, {}", path.escape_ascii());
        let Some(entry) = entry_at(image, &path) else {
            let is_reported = with_ancestors(&path).into_iter().any(|p| problems.iter().any(|q| q == p));
            assert!(is_reported, "{shown_path} is missing and no problem says so");
            continue;
        };
        let expected = resolve(&model, &Context::OWN, &path).unwrap();
        let mut found = quell_vfs::Attributes { node: expected.node, ..image.attributes(entry) };
        // The faulty directory changes this time to show that a listing has changed.
        if expected.kind == quell_vfs::Kind::Dir {
            found.changed = expected.changed;
        }
        assert_eq!(found, *expected, "{shown_path}");
        let node = tree.node(number);
        assert_eq!(image.link_target(entry).unwrap_or_default(), node.target, "{shown_path}");
        let pairs = node.xattrs.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
        let is_reported = image.xattrs(entry).count() == 0 && nodes_with_problems.contains(&number);
        assert!(image.xattrs(entry).eq(pairs) || is_reported, "{shown_path}: attributes");
        assert_eq!(
            *nodes.entry(number).or_insert(image.node_of(entry)),
            image.node_of(entry),
            "{shown_path}"
        );
    }
    for entry in 0..image.entries() {
        let path = image.path(entry);
        assert!(
            resolve(&model, &Context::OWN, &path).is_ok(),
            "seed {seed}: {} is made up",
            path.escape_ascii()
        );
    }
    let affected = faults.affected_paths();
    for problem in &problems {
        let of_child = |s: &Vec<u8>| with_ancestors(s).len() >= 2 && parent(s) == problem.as_slice();
        let real = affected.contains(problem) || affected.iter().any(of_child);
        assert!(real, "seed {seed}: nothing was wrong with {}", problem.escape_ascii());
    }
}

fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|b| *b == b'/').map_or(b"", |slash| &path[..slash])
}

#[test]
fn every_entry_is_correct_or_among_the_problems() {
    let mut refused = 0;
    for seed in 0..150 {
        let tree = Arc::new(random_tree(seed, SHAPE));
        let faults = Faults::new(seed, 25, &Fault::ALL);
        match built(&tree, &faults, 1 + seed as usize % 4) {
            Ok(image) => check_index(seed, &tree, &image, &faults),
            Err(e) => {
                assert!(faults.affected_paths().contains(&b""[..]), "seed {seed}: {e}");
                refused += 1;
            }
        }
    }
    assert!(refused < 75, "most trees have a root that can be read");
}

#[test]
fn the_same_faults_give_the_same_bytes() {
    for seed in 200..260 {
        let tree = Arc::new(random_tree(seed, SHAPE));
        let bytes = |threads| {
            let image = built(&tree, &Faults::new(seed, 20, &Fault::ALL), threads);
            image.map(|image| image.bytes().to_vec()).map_err(|e| e.to_string())
        };
        let one = bytes(1);
        for threads in [2, 8] {
            assert!(bytes(threads) == one, "seed {seed}, {threads} threads");
        }
    }
}

#[test]
fn an_entry_with_unreadable_extended_attributes_is_indexed_without_them() {
    struct Unreadable(MemoryDir);
    impl Dir for Unreadable {
        fn stat_self(&self) -> quell_vfs::Result<Stat> {
            self.0.stat_self()
        }
        fn names(&self) -> quell_vfs::Result<Vec<Vec<u8>>> {
            self.0.names()
        }
        fn stat(&self, name: &[u8]) -> quell_vfs::Result<Stat> {
            self.0.stat(name)
        }
        fn read_link(&self, name: &[u8]) -> quell_vfs::Result<Vec<u8>> {
            self.0.read_link(name)
        }
        fn xattrs(&self, name: &[u8]) -> quell_vfs::Result<Vec<(Vec<u8>, Vec<u8>)>> {
            match name {
                b"secret" => Err(Error::new(ErrorKind::PermissionDenied, "read attribute", name)),
                b"heavy" => Ok((0..20).map(|i| (format!("user.{i:02}").into(), vec![0; 60_000])).collect()),
                _ => Ok(vec![(b"trusted.layout".to_vec(), vec![0; 2 << 20])]),
            }
        }
        fn open_dir(&self, name: &[u8]) -> quell_vfs::Result<Arc<dyn Dir>> {
            self.0.open_dir(name)
        }
        fn enter(&self, name: &[u8]) -> quell_vfs::Result<Arc<dyn Dir>> {
            self.0.enter(name)
        }
        fn open_file(&self, name: &[u8]) -> quell_vfs::Result<Box<dyn OpenFile>> {
            self.0.open_file(name)
        }
    }
    let mut tree = Tree::new();
    for name in ["heavy", "plain", "secret"] {
        tree.add(Tree::ROOT, name, TreeNode::file(name));
    }
    let source: Arc<dyn Dir> = Arc::new(Unreadable(MemoryDir::new(Arc::new(tree))));
    let options = BuildOptions { xattrs: Xattrs::Always, ..Default::default() };
    let tree = build(source, b"/tree", &options, 1, None, &BuildProgress::default()).unwrap();
    let problems: Vec<_> = tree.problems.iter().map(|p| (p.path.as_slice(), p.errno)).collect();
    assert_eq!(problems, [(&b"heavy"[..], 7), (b"secret", 13)]);
    let image = Image::parse(encode(&tree).unwrap()).unwrap();
    assert_eq!(image.attributes(entry_at(&image, b"secret").unwrap()).size_bytes, 6);
    assert_eq!(image.entries(), 4);
}

#[test]
fn a_tree_in_which_every_call_fails_is_refused() {
    for seed in 0..20 {
        let tree = Arc::new(random_tree(seed, SHAPE));
        let faults = Faults::new(seed, 1, &[Fault::Error(errno::EIO)]);
        let Err(error) = built(&tree, &faults, 4) else { panic!("seed {seed}: an index of nothing") };
        assert_eq!(error.errno(), errno::EIO, "seed {seed}: {error}");
        assert!(faults.affected_paths().contains(&b""[..]), "seed {seed}: the root had no fault");
    }
}

#[test]
fn a_tree_in_which_every_second_call_fails_is_refused_or_an_index_with_problems() {
    let (mut refused, mut images) = (0, 0);
    for seed in 0..80 {
        let tree = Arc::new(random_tree(seed, SHAPE));
        let faults = Faults::new(seed, 2, &[Fault::Error(errno::EIO), Fault::Vanished]);
        match built(&tree, &faults, 4) {
            Ok(image) => {
                check_index(seed, &tree, &image, &faults);
                assert!(
                    image.problem_count() > 0,
                    "seed {seed}: no problem among {} entries",
                    image.entries()
                );
                images += 1;
            }
            Err(error) => {
                assert_eq!(error.errno(), errno::EIO, "seed {seed}: {error}");
                refused += 1;
            }
        }
    }
    assert!(refused >= 5 && images >= 5, "{refused} refused, {images} images");
}

#[test]
fn problems_survive_an_update_that_trusts_directories() {
    let far = Time { seconds: i64::MAX / 2_000_000_000, nanoseconds: 0 };
    let options = BuildOptions { xattrs: Xattrs::Always, ..Default::default() };
    let mut seen = 0;
    for seed in 0..60 {
        let tree = Arc::new(random_tree(seed, SHAPE));
        let faulty = || -> Arc<dyn Dir> {
            let faults = Faults::new(seed, 25, &[Fault::Error(errno::EIO), Fault::Vanished]);
            Arc::new(FaultyDir::new(Arc::new(MemoryDir::new(tree.clone())), faults))
        };
        let progress = BuildProgress::default();
        let Ok(first) = build(faulty(), b"/tree", &options, 2, None, &progress) else { continue };
        let bytes = encode(&first).unwrap();
        let image = Image::parse(bytes.clone()).unwrap();
        let trust = Some(Trust { image: &image, before: far });
        let again = build(faulty(), b"/tree", &options, 2, trust, &progress).unwrap();
        assert_eq!(again.problems, first.problems, "seed {seed}");
        assert!(encode(&again).unwrap() == bytes, "seed {seed}");
        seen += image.problem_count();
    }
    assert!(seen > 20, "the faults affected something");
}

#[test]
fn the_contract_passes_torn_reads_of_the_backend_on() {
    // The layer uses the backend's file: a caller's read has the same result as a read of the
    // backend.
    let mut tree = Tree::new();
    tree.add(Tree::ROOT, "file", TreeNode::file("0123456789"));
    let tree = Arc::new(tree);
    let image = built(&tree, &Faults::new(0, 1, &[]), 1).unwrap();
    let healthy = Arc::new(MemoryDir::new(tree));
    let source = Arc::new(FaultyDir::new(healthy, Faults::new(0, 1, &[Fault::Torn])));
    let fs = quell_index::IndexFs::new(Arc::new(image), source, Default::default());
    let file = fs.open(&Context::OWN, resolve(&fs, &Context::OWN, b"file").unwrap().node).unwrap();
    let mut buffer = [0; 10];
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 5);
    assert_eq!(&buffer[..5], b"01234");
}
