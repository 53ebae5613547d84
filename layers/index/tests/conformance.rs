//! Tests that the index layer satisfies the contract, over a real directory and over one in memory.

use std::path::Path;
use std::sync::Arc;

use quell_index::{BuildOptions, BuildProgress, Image, IndexFs, OnChange, Xattrs, build, encode};
use quell_posix::{Dir, PosixDir};
use quell_testkit::conformance::{Implementation, Instance, run};
use quell_testkit::{MemoryDir, Tree, TreeNode, make_on_disk};

fn indexed(source: Arc<dyn Dir>) -> Arc<IndexFs> {
    let options = BuildOptions { xattrs: Xattrs::Always, ..Default::default() };
    let tree = build(source.clone(), b"/tree", &options, 4, None, &BuildProgress::default()).unwrap();
    assert_eq!(tree.problems, []);
    let image = Arc::new(Image::parse(encode(&tree).unwrap()).unwrap());
    Arc::new(IndexFs::new(image, source, OnChange::Refuse))
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

#[test]
fn the_index_of_a_real_directory_conforms() {
    let devices = can_make(TreeNode::special(quell_vfs::Kind::CharDevice, 0x0103), "devices");
    let xattrs = can_make(TreeNode::file("").with_xattr("user.probe", "x"), "attributes");
    let make = |tree: &Tree| {
        let temp = tempfile::tempdir().unwrap();
        make_on_disk(tree, temp.path()).unwrap_or_else(|e| panic!("{e}"));
        let open = |path: &Path| Arc::new(PosixDir::open(path).unwrap());
        Instance { fs: indexed(open(temp.path())), keep: Some(Box::new(temp)) }
    };
    run(&Implementation { name: "index over a real directory", exact: false, devices, xattrs, make: &make });
}
