//! Tests that the index layer satisfies the contract, over a real directory and over one in memory.

use std::path::Path;
use std::sync::Arc;

use quell_index::{
    BuildOptions, BuildProgress, Image, IndexFs, InodeNumbers, OnChange, Xattrs, build, encode,
};
use quell_posix::{Dir, PosixDir};
use quell_testkit::conformance::{Implementation, Instance, run};
use quell_testkit::{MemoryDir, Tree, TreeNode, make_on_disk};
use quell_vfs::FileSystem;

fn indexed(source: Arc<dyn Dir>) -> Arc<IndexFs> {
    indexed_with_image(source).0
}

fn indexed_with_image(source: Arc<dyn Dir>) -> (Arc<IndexFs>, Arc<Image>) {
    let options = BuildOptions { xattrs: Xattrs::Always, ..Default::default() };
    let tree = build(source.clone(), b"/tree", &options, 4, None, &BuildProgress::default()).unwrap();
    assert_eq!(tree.problems, []);
    let image = Arc::new(Image::parse(encode(&tree).unwrap()).unwrap());
    (Arc::new(IndexFs::new(image.clone(), source, OnChange::Refuse)), image)
}

#[test]
fn the_index_of_a_directory_in_memory_conforms() {
    let make =
        |tree: &Tree| Instance { fs: indexed(Arc::new(MemoryDir::new(Arc::new(tree.clone())))), keep: None };
    run(&Implementation { name: "index over memory", exact: true, devices: true, xattrs: true, make: &make });
}

fn can_make(node: TreeNode, what: &str) -> bool {
    let temp = tempfile::tempdir().unwrap();
    let mut tree = Tree::new();
    tree.add(Tree::ROOT, "probe", node);
    make_on_disk(&tree, temp.path()).map_err(|e| println!("SKIPPED: {what}: {e}")).is_ok()
}

/// Runs the suite over real directories. `make_fs`: returns the file system for a directory.
fn run_over_directories(name: &'static str, make_fs: impl Fn(Arc<dyn Dir>) -> Arc<dyn FileSystem>) {
    let devices = can_make(TreeNode::special(quell_vfs::Kind::CharDevice, 0x0103), "devices");
    let xattrs = can_make(TreeNode::file("").with_xattr("user.probe", "x"), "attributes");
    let make = |tree: &Tree| {
        let temp = tempfile::tempdir().unwrap();
        make_on_disk(tree, temp.path()).unwrap_or_else(|e| panic!("{e}"));
        let open = |path: &Path| Arc::new(PosixDir::open(path).unwrap());
        Instance { fs: make_fs(open(temp.path())), keep: Some(Box::new(temp)) }
    };
    run(&Implementation { name, exact: false, devices, xattrs, make: &make });
}

#[test]
fn the_index_of_a_real_directory_conforms() {
    run_over_directories("index over a real directory", |directory| indexed(directory));
}

#[test]
fn an_index_with_the_inode_numbers_of_the_originals_conforms() {
    run_over_directories("index with inode numbers", |directory| {
        let (fs, image) = indexed_with_image(directory);
        Arc::new(InodeNumbers::new(fs, image).expect("each node has a number of its own"))
    });
}
