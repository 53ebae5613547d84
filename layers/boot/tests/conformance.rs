//! Tests that a recorder does not change the file system below it, and that a file system with
//! recorded blocks equals the one below it, regardless of the blocks that are recorded.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use quell_boot::{
    BLOCK_BYTES, BootFile, BootFs, BootImage, Choice, HEADER_BYTES, ImageFile, IndexedTree, OpenOverride,
    Opener, RecordedBlocks, RecordedFiles, RecordedFilesLayer, Recorder, RecorderFs, Subject,
};
use quell_testkit::conformance::{Implementation, Instance, run};
use quell_testkit::operations::{Comparison, Shape, random_tree};
use quell_testkit::{Model, Random, Tree, TreeNode};
use quell_vfs::{
    Attributes, Context, Error, ErrorKind, File, FileSystem, Kind, NodeId, ReadAt, Result, errno,
};

/// The index of a model. It does not identify files, so an image is valid only with its own
/// generation.
#[derive(Debug)]
struct Indexed;

impl IndexedTree for Indexed {
    fn generation(&self) -> u128 {
        42
    }

    fn inode(&self, _: NodeId) -> u64 {
        0
    }

    fn is_original(&self) -> bool {
        false
    }
}

fn subject() -> Subject {
    Subject::Tree(Arc::new(Indexed))
}

fn files(model: &Model) -> Vec<(NodeId, u64)> {
    let paths = model.tree().paths();
    let attributes = paths.iter().filter_map(|(path, _)| quell_vfs::resolve(model, &Context::OWN, path).ok());
    attributes.filter(|a| a.kind == Kind::File).map(|a| (a.node, a.size_bytes)).collect()
}

/// Reads random ranges of random files.
fn start(fs: &dyn FileSystem, files: &[(NodeId, u64)], random: &mut Random) {
    for (node, size) in files {
        if random.one_in(3) {
            continue;
        }
        let Ok(file) = fs.open(&Context::OWN, *node) else { continue };
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
    BootImage::parse(recorder.pack(&**model, &subject(), &Choice::ALL, 2).unwrap().0).unwrap()
}

fn layer(image: BootImage, fs: Arc<dyn FileSystem>) -> (BootFs, Arc<RecordedBlocks>) {
    let blocks = RecordedFiles::new(image, &*fs, &Indexed).decode(2).unwrap();
    (BootFs::new(fs, blocks.clone()), blocks)
}

fn implementation<'a>(name: &'a str, make: &'a dyn Fn(&Tree) -> Instance) -> Implementation<'a> {
    Implementation { name, exact: true, devices: true, xattrs: true, make }
}

#[test]
fn a_file_system_that_records_conforms() {
    let make = |tree: &Tree| {
        let model: Arc<Model> = Arc::new(Model::new(Arc::new(tree.clone())));
        Instance { fs: Arc::new(RecorderFs::new(model, Recorder::new())), keep: None }
    };
    run(&implementation("recorder over the model", &make));
}

#[test]
fn a_file_system_with_recorded_blocks_conforms() {
    for seed in 0..3 {
        let make = |tree: &Tree| {
            let model = Arc::new(Model::new(Arc::new(tree.clone())));
            let image = recorded(&model, seed);
            Instance { fs: Arc::new(layer(image, model).0), keep: None }
        };
        run(&implementation("recorded blocks over the model", &make));
    }
}

/// Counts opens. Each open takes long enough for other threads to begin another one.
struct SlowOpens(Arc<AtomicU32>);

impl Opener for SlowOpens {
    fn open(
        &self,
        context: &Context<'_>,
        inner: &Arc<dyn FileSystem>,
        node: NodeId,
    ) -> Result<Box<dyn File>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(100));
        inner.open(context, node)
    }
}

#[test]
fn concurrent_reads_of_missing_blocks_open_a_file_once() {
    const READERS: usize = 16;
    let bytes: Vec<u8> = (0..200 * BLOCK_BYTES).map(|at| (at / 100) as u8).collect();
    let mut tree = Tree::new();
    tree.add(Tree::ROOT, "large", TreeNode::file(&bytes));
    let model = Arc::new(Model::new(Arc::new(tree)));
    let node = quell_vfs::resolve(&*model, &Context::OWN, b"large").unwrap().node;
    let recorder = Recorder::new();
    let recorded = RecorderFs::new(model.clone(), recorder.clone());
    recorded.open(&Context::OWN, node).unwrap().read_at(&mut [0; BLOCK_BYTES], 0).unwrap();
    let image = recorder.pack(&*model, &subject(), &Choice::ALL, 1).unwrap().0;

    let opens = Arc::new(AtomicU32::new(0));
    let counted: Arc<dyn FileSystem> = Arc::new(OpenOverride::new(model, SlowOpens(opens.clone())));
    let fs = layer(BootImage::parse(image).unwrap(), counted).0;
    let file = fs.open(&Context::OWN, node).unwrap();
    let together = Barrier::new(READERS);
    std::thread::scope(|scope| {
        for reader in 1..=READERS {
            let (file, together, bytes) = (&file, &together, &bytes);
            scope.spawn(move || {
                together.wait();
                let mut into = [0; BLOCK_BYTES];
                file.read_at(&mut into, (reader * BLOCK_BYTES) as u64).unwrap();
                assert!(into[..] == bytes[reader * BLOCK_BYTES..][..BLOCK_BYTES]);
            });
        }
    });
    assert_eq!(opens.load(Ordering::SeqCst), 1);
}

#[test]
fn any_set_of_recorded_blocks_gives_the_models_bytes() {
    for seed in 0..30 {
        let model = Arc::new(Model::new(Arc::new(random_tree(seed, Shape { entries: 60, ..Shape::SMALL }))));
        let set = RecordedFiles::new(recorded(&model, seed), &*model, &Indexed);
        assert_eq!(set.stale(), [] as [Vec<u8>; 0], "seed {seed}");
        let fs = BootFs::new(model.clone(), set.decode(2).unwrap());
        Comparison::new(&*model, &fs, true).ask(&mut Random::new(seed), 300);
    }
}

#[test]
fn whole_files_are_written_and_other_blocks_served_from_memory() {
    let mut written_files = 0;
    for seed in 0..20 {
        let model = Arc::new(Model::new(Arc::new(random_tree(seed, Shape { entries: 60, ..Shape::SMALL }))));
        let set = RecordedFiles::new(recorded(&model, seed), &*model, &Indexed);
        let whole = set.whole();
        let out: HashMap<NodeId, Mutex<Vec<u8>>> = whole
            .iter()
            .map(|node| {
                (
                    *node,
                    Mutex::new(vec![0; model.attributes(&Context::OWN, *node).unwrap().size_bytes as usize]),
                )
            })
            .collect();
        let write = |file: &BootFile, offset: u64, bytes: &[u8]| {
            let node = quell_vfs::resolve(&*model, &Context::OWN, file.name)?.node;
            out[&node].lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        };
        let rest = set.decode_and_write(&whole, 3, &write).unwrap();
        let all = set.decode(1).unwrap();
        for (node, written) in out {
            let mut expected = vec![0; model.attributes(&Context::OWN, node).unwrap().size_bytes as usize];
            model.open(&Context::OWN, node).unwrap().read_at(&mut expected, 0).unwrap();
            assert_eq!(written.into_inner().unwrap(), expected, "seed {seed}");
            assert!(!rest.has(node) && all.has(node), "seed {seed}");
            written_files += 1;
        }
        let partly: Vec<NodeId> = all.nodes().filter(|node| !whole.contains(node)).collect();
        assert_eq!(rest.nodes().len(), partly.len(), "seed {seed}");
        for node in partly {
            let blocks = |recorded: &RecordedBlocks| {
                let mut blocks = Vec::new();
                recorded
                    .pieces_of(node, &mut |offset, piece| {
                        let offsets = (offset..).step_by(BLOCK_BYTES);
                        blocks.extend(offsets.zip(piece.chunks(BLOCK_BYTES).map(<[u8]>::to_vec)));
                        Ok(())
                    })
                    .unwrap();
                blocks
            };
            assert_eq!(blocks(&rest), blocks(&all), "seed {seed}");
            let file = model.open(&Context::OWN, node).unwrap();
            for (offset, block) in blocks(&rest) {
                let mut expected = vec![0; BLOCK_BYTES];
                let length = file.read_at(&mut expected, offset).unwrap();
                assert_eq!(block, expected[..length], "seed {seed}, offset {offset}");
            }
        }
        // `RecordedFilesLayer` shows only these files, with the content of the tree.
        let layer = RecordedFilesLayer::new(model.clone(), rest.clone());
        for (node, size) in files(&model) {
            let path = model.path(node).unwrap();
            let shown = quell_vfs::resolve(&layer, &Context::OWN, &path).ok();
            assert_eq!(shown.is_some(), rest.has(node), "seed {seed}");
            assert!(
                shown.as_ref().is_none_or(|file| file.permissions & 0o444 == 0o444),
                "every user may read it"
            );
            if shown.is_some() {
                let (mut mine, mut theirs) = (vec![0; size as usize], vec![0; size as usize]);
                layer.open(&Context::OWN, node).unwrap().read_at(&mut mine, 0).unwrap();
                model.open(&Context::OWN, node).unwrap().read_at(&mut theirs, 0).unwrap();
                assert_eq!(mine, theirs, "seed {seed}");
            }
        }
    }
    assert!(written_files > 50, "{written_files} files were whole");
}

/// A source whose files can no longer be opened.
struct Gone;

impl Opener for Gone {
    fn open(&self, _: &Context<'_>, _: &Arc<dyn FileSystem>, _: NodeId) -> Result<Box<dyn File>> {
        Err(Error::new(ErrorKind::Os(errno::EIO), "open", "the source"))
    }
}

#[test]
fn a_recorded_start_reads_nothing_from_the_source() {
    for seed in 0..20 {
        let model = Arc::new(Model::new(Arc::new(random_tree(seed, Shape { entries: 60, ..Shape::SMALL }))));
        let (fs, served) = layer(recorded(&model, seed), Arc::new(OpenOverride::new(model.clone(), Gone)));
        let files = files(&model);
        start(&fs, &files, &mut Random::new(seed));
        assert_eq!(served.served().from_source, 0, "seed {seed}");
        // A read of an unrecorded block returns the source's error, and never other bytes.
        for (node, size) in &files {
            let mut into = vec![0; *size as usize];
            let read = fs.open(&Context::OWN, *node).and_then(|file| file.read_at(&mut into, 0));
            let mut expected = vec![0; *size as usize];
            model.open(&Context::OWN, *node).unwrap().read_at(&mut expected, 0).unwrap();
            match read {
                Ok(length) => assert_eq!((length, &into), (expected.len(), &expected), "seed {seed}"),
                Err(e) => assert_eq!(e.kind, ErrorKind::Os(errno::EIO), "seed {seed}"),
            }
        }
    }
}

/// The file of an image. Every read fails if `is_removed` is set.
struct ImageInMemory {
    bytes: Vec<u8>,
    is_removed: AtomicBool,
    reports: AtomicU32,
}

impl ImageFile for ImageInMemory {
    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> Result<()> {
        if self.is_removed.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Os(errno::EIO), "read", "the image"));
        }
        into.copy_from_slice(&self.bytes[offset as usize..][..into.len()]);
        Ok(())
    }

    fn report(&self, _: &Error) {
        self.reports.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns files of more blocks than are stored as a whole, some with blocks of zeros and blocks
/// that another file has.
fn model_of_large_files(random: &mut Random) -> Arc<Model> {
    let shared = random.bytes(40 * BLOCK_BYTES);
    let mut tree = Tree::new();
    for number in 0..6 {
        let length = 40 * BLOCK_BYTES + random.below(300 * BLOCK_BYTES);
        let mut bytes = random.bytes(length);
        bytes[20 * BLOCK_BYTES..30 * BLOCK_BYTES].fill(0);
        let begin = random.below(10) * BLOCK_BYTES;
        bytes[begin..begin + 10 * BLOCK_BYTES].copy_from_slice(&shared[..10 * BLOCK_BYTES]);
        tree.add(Tree::ROOT, format!("file{number}"), TreeNode::file(&bytes));
    }
    tree.add(Tree::ROOT, "shared", TreeNode::file(&shared));
    Arc::new(Model::new(Arc::new(tree)))
}

#[test]
fn unread_blocks_come_from_the_image_and_only_without_it_from_the_source() {
    let mut whole_files = 0;
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let model = model_of_large_files(&mut random);
        let files = files(&model);
        let recorder = Recorder::new();
        let recording = RecorderFs::new(model.clone(), recorder.clone());
        start(&recording, &files, &mut random);
        let (node, size) = *random.pick(&files);
        recording.open(&Context::OWN, node).unwrap().read_at(&mut vec![0; size as usize], 0).unwrap();
        let choice = Choice { unread: true, ..Choice::ALL };
        let bytes = recorder.pack(&*model, &subject(), &choice, 2).unwrap().0;

        let set = || {
            let length = bytes.len() as u64;
            let end =
                BootImage::tables_end(bytes[..].first_chunk::<HEADER_BYTES>().unwrap(), length).unwrap();
            let tables = bytes[..end.min(length) as usize].to_vec();
            let image = BootImage::parse_tables(tables, length).unwrap();
            let (is_removed, reports) = (AtomicBool::new(false), AtomicU32::new(0));
            let file = Arc::new(ImageInMemory { bytes: bytes.clone(), is_removed, reports });
            (RecordedFiles::new(image, &*model, &Indexed).with_unread(file.clone()), file)
        };
        let gone: Arc<dyn FileSystem> = Arc::new(OpenOverride::new(model.clone(), Gone));
        // All bytes of all recorded files.
        let read_all = |blocks: &Arc<RecordedBlocks>, source: &Arc<dyn FileSystem>| {
            let fs = BootFs::new(source.clone(), blocks.clone());
            for (node, size) in files.iter().filter(|(node, _)| blocks.has(*node)) {
                let (mut mine, mut expected) = (vec![0; *size as usize], vec![0; *size as usize]);
                fs.open(&Context::OWN, *node).unwrap().read_at(&mut mine, 0).unwrap();
                model.open(&Context::OWN, *node).unwrap().read_at(&mut expected, 0).unwrap();
                assert!(mine == expected, "seed {seed}");
            }
        };
        let (intact, file) = set();
        let blocks = intact.decode(2).unwrap();
        assert_eq!(blocks.frames_read(), Some(0), "frames of unread blocks are read before they are needed");
        read_all(&blocks, &gone);
        assert_eq!((blocks.served().from_source, file.reports.load(Ordering::SeqCst)), (0, 0));
        assert!(blocks.frames_read() > Some(0));
        // The blocks of whole files are not kept in memory, and those of other files may be equal.
        let whole = intact.whole();
        whole_files += whole.len();
        let rest = intact.decode_and_write(&whole, 2, &|_, _, _| Ok(())).unwrap();
        assert_eq!(rest.nodes().len(), blocks.nodes().len() - whole.len());
        read_all(&rest, &gone);

        let (removed, file) = set();
        let blocks = removed.decode(2).unwrap();
        file.is_removed.store(true, Ordering::SeqCst);
        assert_eq!(removed.decode(2).unwrap_err().kind, ErrorKind::Damaged, "seed {seed}");
        let source: Arc<dyn FileSystem> = model.clone();
        read_all(&blocks, &source);
        assert!(blocks.served().from_source > 0);
        assert_eq!(file.reports.load(Ordering::SeqCst), 1);
        // Without a file, there are no unread blocks.
        let image = BootImage::parse(bytes.clone()).unwrap();
        let blocks = RecordedFiles::new(image, &*model, &Indexed).decode(1).unwrap();
        read_all(&blocks, &source);
        assert_eq!(blocks.frames_read(), None);
        assert!(blocks.served().from_source > 0);
    }
    assert!(whole_files >= 12, "{whole_files} files were whole");
}

/// A source in which the first block of one file, and all of another file, cannot be read any more.
struct Torn {
    file: NodeId,
    other: NodeId,
}

struct TornFile(Box<dyn File>);

impl Opener for Torn {
    fn open(
        &self,
        context: &Context<'_>,
        inner: &Arc<dyn FileSystem>,
        node: NodeId,
    ) -> Result<Box<dyn File>> {
        if node == self.other {
            return Err(Error::new(ErrorKind::PermissionDenied, "open", "the other"));
        }
        let file = inner.open(context, node)?;
        Ok(if node == self.file { Box::new(TornFile(file)) } else { file })
    }
}

impl File for TornFile {
    fn attributes(&self) -> Result<Attributes> {
        self.0.attributes()
    }
}

impl ReadAt for TornFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        match offset {
            0 => Err(Error::new(ErrorKind::Os(errno::EIO), "read", "the first block")),
            _ => self.0.read_at(into, offset),
        }
    }
}

#[test]
fn an_unreadable_block_is_left_out_alone() {
    let model = Arc::new(Model::new(Arc::new(random_tree(7, Shape { entries: 60, ..Shape::SMALL }))));
    let mut all = files(&model);
    all.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    let blocks = |at: usize| all[at].1.div_ceil(BLOCK_BYTES as u64);
    assert!(blocks(0) > 1 && blocks(1) > 0, "larger files are needed");
    let recorder = Recorder::new();
    let fs = RecorderFs::new(model.clone(), recorder.clone());
    for (node, size) in &all {
        fs.open(&Context::OWN, *node).unwrap().read_at(&mut vec![0; *size as usize], 0).unwrap();
    }
    let pack = |fs: &dyn FileSystem| {
        let (bytes, lost) = recorder.pack(fs, &subject(), &Choice::ALL, 1).unwrap();
        (BootImage::parse(bytes).unwrap(), lost)
    };
    let (whole, nothing) = pack(&*model);
    let torn = OpenOverride::new(model.clone(), Torn { file: all[0].0, other: all[1].0 });
    let (image, lost) = pack(&torn);
    assert_eq!((nothing.unreadable_blocks, lost.unreadable_blocks), (0, 1 + blocks(1)));
    let counted = |image: &BootImage| image.recording().blocks() as u64;
    assert_eq!(counted(&image), counted(&whole) - lost.unreadable_blocks);
    assert_eq!((image.files(), lost.first_error.is_some()), (whole.files() - 1, true));
    let (fs, _) = layer(image, model.clone());
    Comparison::new(&*model, &fs, true).ask(&mut Random::new(7), 300);
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
    let set = RecordedFiles::new(image, &*changed, &Indexed);
    assert!(set.stale().contains(&name), "{:?}", set.stale());
    let fs = BootFs::new(changed.clone(), set.decode(2).unwrap());
    Comparison::new(&*changed, &fs, true).ask(&mut Random::new(5), 300);
}
