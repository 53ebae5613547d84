//! Decodes an OPTIONS section: it is refused, or a build uses it and writes the same options again.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use quell_index::{BuildOptions, BuildProgress, Image, build, encode};
use quell_testkit::{MemoryDir, Tree, TreeNode};

fn small_tree() -> Arc<Tree> {
    let mut tree = Tree::new();
    let lib = tree.add(Tree::ROOT, "lib", TreeNode::dir());
    tree.add(lib, "a.pyc", TreeNode::file("x"));
    tree.add(lib, "[odd]", TreeNode::file("x").with_xattr("user.note", "x"));
    tree.add(Tree::ROOT, "link", TreeNode::symlink("lib"));
    Arc::new(tree)
}

fn image(options: &BuildOptions, lines: Option<Vec<String>>) -> Option<Image> {
    let source = Arc::new(MemoryDir::new(small_tree()));
    let mut tree = build(source, b"/tree", options, 1, None, &BuildProgress::default()).ok()?;
    if let Some(lines) = lines {
        tree.options = lines;
    }
    Some(Image::parse(encode(&tree).expect("it is small")).expect("what we encode we read"))
}

fuzz_target!(|text: &str| {
    let with_text = image(&BuildOptions::default(), Some(vec![text.to_owned()])).expect("the defaults work");
    let Ok(options) = BuildOptions::from_image(&with_text) else { return };
    // A pattern may be invalid; then the build returns an error.
    if let Some(again) = image(&options, None) {
        assert_eq!(BuildOptions::from_image(&again).expect("we wrote it"), options);
    }
});
