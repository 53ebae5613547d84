//! Recording changes nothing, and a file system with hot blocks is the one below it, whatever part of it is hot.

use std::sync::Arc;

use quell_boot::{BootFs, BootImage, Choice, Hot, Open, Over, Recorder, RecorderFs};
use quell_fs::{Error, ErrorKind, File, FileSystem, Kind, NodeId, Result, errno};
use quell_testkit::conformance::{Made, World, run};
use quell_testkit::operations::{Comparison, Shape, random_tree};
use quell_testkit::{Model, Random, Tree};

const GENERATION: u128 = 42;

fn files(model: &Model) -> Vec<(NodeId, u64)> {
    let paths = model.tree().paths();
    let attributes = paths.iter().filter_map(|(path, _)| quell_fs::resolve(model, path).ok());
    attributes.filter(|a| a.kind == Kind::File).map(|a| (a.node, a.size_bytes)).collect()
}

/// Reads some pieces of some files.
fn start(fs: &dyn FileSystem, files: &[(NodeId, u64)], random: &mut Random) {
    for (node, size) in files {
        if random.one_in(3) {
            continue;
        }
        let Ok(file) = fs.open(*node) else { continue };
        for _ in 0..random.below(4) {
            let offset = random.below(*size as usize + 10) as u64;
            let mut into = vec![0; random.below(20_000)];
            file.read_at(&mut into, offset).unwrap();
        }
    }
}

fn recorded(model: &Arc<Model>, seed: u64) -> BootImage {
    let recorder = Recorder::new();
    let fs = RecorderFs::new(model.clone(), recorder.clone());
    start(&fs, &files(model), &mut Random::new(seed));
    BootImage::parse(recorder.pack(&**model, GENERATION, &Choice::ALL, 2).unwrap()).unwrap()
}

fn hot(image: BootImage, fs: Arc<dyn FileSystem>) -> (BootFs, Arc<Hot>) {
    let contents = image.decode(2).unwrap();
    let hot = Hot::new(image, contents, &*fs).unwrap();
    (BootFs::new(fs, hot.clone()), hot)
}

fn world<'a>(name: &'a str, make: &'a dyn Fn(&Tree) -> Made) -> World<'a> {
    World { name, exact: true, devices: true, xattrs: true, make }
}

#[test]
fn a_file_system_that_records_conforms() {
    let make = |tree: &Tree| {
        let model: Arc<Model> = Arc::new(Model::new(Arc::new(tree.clone())));
        Made { fs: Arc::new(RecorderFs::new(model, Recorder::new())), keep: None }
    };
    run(&world("recorder over the model", &make));
}

#[test]
fn a_file_system_with_hot_blocks_conforms() {
    for seed in 0..3 {
        let make = |tree: &Tree| {
            let model = Arc::new(Model::new(Arc::new(tree.clone())));
            let image = recorded(&model, seed);
            Made { fs: Arc::new(hot(image, model).0), keep: None }
        };
        run(&world("hot blocks over the model", &make));
    }
}

#[test]
fn whatever_is_hot_it_answers_as_the_model_does() {
    for seed in 0..30 {
        let model = Arc::new(Model::new(Arc::new(random_tree(seed, Shape { entries: 60, ..Shape::SMALL }))));
        let (fs, served) = hot(recorded(&model, seed), model.clone());
        Comparison::new(&*model, &fs, true).ask(&mut Random::new(seed), 300);
        assert_eq!(served.stale(), [] as [Vec<u8>; 0], "seed {seed}");
    }
}

/// The source is gone: no file can be opened any more.
struct Gone;

impl Open for Gone {
    fn open(&self, _inner: &Arc<dyn FileSystem>, _node: NodeId) -> Result<Box<dyn File>> {
        Err(Error::new(ErrorKind::Os(errno::EIO), "open", "the source"))
    }
}

#[test]
fn a_start_that_was_recorded_needs_the_source_no_more() {
    for seed in 0..20 {
        let model = Arc::new(Model::new(Arc::new(random_tree(seed, Shape { entries: 60, ..Shape::SMALL }))));
        let (fs, served) = hot(recorded(&model, seed), Arc::new(Over::new(model.clone(), Gone)));
        let files = files(&model);
        start(&fs, &files, &mut Random::new(seed));
        assert_eq!(served.served().from_source, 0, "seed {seed}");
        // What was not recorded is an error of the source, and never other bytes.
        for (node, size) in &files {
            let mut into = vec![0; *size as usize];
            let read = fs.open(*node).and_then(|file| file.read_at(&mut into, 0));
            let mut expected = vec![0; *size as usize];
            model.open(*node).unwrap().read_at(&mut expected, 0).unwrap();
            match read {
                Ok(length) => assert_eq!((length, &into), (expected.len(), &expected), "seed {seed}"),
                Err(e) => assert_eq!(e.kind, ErrorKind::Os(errno::EIO), "seed {seed}"),
            }
        }
    }
}

#[test]
fn a_file_that_changed_since_is_served_from_the_tree_and_reported() {
    let mut tree = random_tree(5, Shape { entries: 60, ..Shape::SMALL });
    let model = Arc::new(Model::new(Arc::new(tree.clone())));
    let image = recorded(&model, 5);
    let name = image.file(0).name.to_vec();
    let number = tree.paths().into_iter().find(|(path, _)| *path == name).expect("it was recorded").1;
    tree.node_mut(number).modified.nanoseconds ^= 1;
    let changed = Arc::new(Model::new(Arc::new(tree)));
    let (fs, served) = hot(image, changed.clone());
    assert!(served.stale().contains(&name), "{:?}", served.stale());
    Comparison::new(&*changed, &fs, true).ask(&mut Random::new(5), 300);
}
