//! Calls every method of an image for every entry. None may panic for bytes that were accepted.
//! Used by the tests and by the fuzz targets.

use std::sync::Arc;

use quell_index::format::Field;
use quell_index::{
    BuildOptions, BuildProgress, Image, IndexFs, OnChange, ROOT, Sampler, Trust, build, compare, encode,
};
use quell_posix::Dir;
use quell_testkit::{MemoryDir, Tree};
use quell_vfs::{Context, Cursor, FileSystem, Kind, NodeId};

/// The length of a path grows with the depth of the tree, so with more entries than this the
/// methods for paths are called for some entries only.
const PATHS_MAX: u32 = 300;

pub fn call_every_method(image: Image) {
    let _ = (image.generation().to_string(), image.nodes(), image.file_bytes(), image.root_path().len());
    let _ = (image.longest_path_bytes(), image.problem_count(), format!("{image:?}"));
    let _ = (image.problems().count(), image.option_lines().count(), image.section_bytes().count());
    let entries = image.entries();
    for entry in 0..entries {
        let attributes = image.attributes(entry);
        assert_eq!(attributes.kind, image.kind(entry));
        let node = image.node_of(entry);
        assert!(node <= entry && image.node_of(node) == node);
        assert_eq!(image.children(entry).is_some(), attributes.kind == Kind::Dir);
        assert_eq!(image.link_target(entry).is_some(), attributes.kind == Kind::Symlink);
        let _ = (image.xattrs(entry).count(), Field::ALL.map(|field| image.extra(entry, field)));
        let parent = image.parent(entry);
        assert!(entry == ROOT || parent < entry);
        if entry != ROOT {
            assert_eq!(image.lookup(parent, image.name(entry)), Some(entry));
        }
        assert_eq!(image.lookup(entry, b""), None);
        if entry < PATHS_MAX {
            let _ = image.path(entry);
        }
    }
    let options = BuildOptions::from_image(&image);
    let mut found = 0;
    compare(&image, &image, &mut |_| {
        found += 1;
        true
    });
    assert_eq!(found, 0, "an image differs from itself");
    let image = Arc::new(image);
    // The tree below it has the root's times and is empty, so trusted content is taken from the
    // image.
    let mut tree = Tree::new();
    let root = image.attributes(ROOT);
    let node = tree.node_mut(Tree::ROOT);
    (node.modified, node.changed) = (root.modified, root.changed);
    let source: Arc<dyn Dir> = Arc::new(MemoryDir::new(Arc::new(tree)));
    ask_the_file_system(&IndexFs::new(image.clone(), source.clone(), OnChange::Refuse), entries);
    let mut sampler = Sampler::new(image.clone(), source.clone(), 7);
    for _ in 0..20 {
        let _ = sampler.step();
    }
    if let Ok(options) = options {
        let before = quell_vfs::Time { seconds: i64::MAX, nanoseconds: 0 };
        let trust = Some(Trust { image: &image, before });
        let updated = build(source, b"/", &options, 1, trust, &BuildProgress::default());
        if let Ok(tree) = updated {
            Image::parse(encode(&tree).unwrap()).expect("what we encode we read");
        }
    }
}

fn ask_the_file_system(fs: &IndexFs, entries: u32) {
    let _ = (fs.capabilities(), fs.root());
    for node in (0..u64::from(entries.min(PATHS_MAX)) + 1).map(NodeId) {
        let _ = (
            fs.attributes(&Context::OWN, node),
            fs.parent(node),
            fs.path(node),
            fs.open(&Context::OWN, node).is_ok(),
        );
        let _ = (
            fs.read_link(&Context::OWN, node),
            fs.xattr(&Context::OWN, node, b"user.x"),
            fs.xattr_names(&Context::OWN, node),
        );
        let _ = fs.list(&Context::OWN, node, Cursor::START, &mut |entry| {
            fs.lookup(&Context::OWN, node, entry.name).is_ok()
        });
        let _ = fs.list(&Context::OWN, node, Cursor(u64::MAX), &mut |_| true);
    }
}
