//! The conformance suite for read-only file systems of the contract, one promise per file. An
//! implementation provides a function that creates it from a described tree. The suite creates
//! trees, checks results, and panics if a result is wrong, after printing the name of the promise.

mod attributes;
mod capabilities;
mod hard_links;
mod links;
mod list;
mod lookup;
mod paths;
mod read;
mod resolve;
mod stale;
pub mod writing;
mod xattrs;

use std::any::Any;
use std::sync::Arc;

use quell_vfs::{Attributes, FileSystem, Kind, NodeId};

use crate::tree::{Node, Tree};

/// A file system created from a described tree, and the resources that must live as long.
pub struct Made {
    pub fs: Arc<dyn FileSystem>,
    pub keep: Option<Box<dyn Any>>,
}

impl std::fmt::Debug for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Made").finish_non_exhaustive()
    }
}

/// One implementation, and the features that it supports.
pub struct World<'a> {
    pub name: &'a str,
    /// All attributes are as described. If false, owners, status change times, block counts, and
    /// the sizes and link counts of directories are those of the file system that holds the tree.
    pub exact: bool,
    pub devices: bool,
    pub xattrs: bool,
    pub make: &'a dyn Fn(&Tree) -> Made,
}

impl std::fmt::Debug for World<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("name", &self.name).finish_non_exhaustive()
    }
}

type Promise = fn(&World<'_>);

const PROMISES: [(&str, Promise); 11] = [
    ("attributes", attributes::check),
    ("capabilities", capabilities::check),
    ("hard links", hard_links::check),
    ("links", links::check),
    ("list", list::check),
    ("lookup", lookup::check),
    ("paths", paths::check),
    ("read", read::check),
    ("resolve", resolve::check),
    ("stale", stale::check),
    ("xattrs", xattrs::check),
];

/// Checks all promises.
pub fn run(world: &World<'_>) {
    for (name, check) in PROMISES {
        println!("{}: {name}", world.name);
        check(world);
    }
}

impl World<'_> {
    /// Creates the tree without nodes and attributes that the implementation does not support.
    fn made(&self, tree: &Tree) -> Made {
        let device = |node: &Node| matches!(node.kind, Kind::CharDevice | Kind::BlockDevice);
        let mut tree = tree.without(|node| device(node) && !self.devices);
        if !self.xattrs {
            for number in 0..tree.node_count() {
                tree.node_mut(number).xattrs.clear();
            }
        }
        (self.make)(&tree)
    }
}

/// Describes the attributes that differ. Node numbers are not compared, because each implementation
/// chooses its own.
pub fn differences(expected: &Attributes, found: &Attributes, exact: bool) -> Vec<String> {
    let is_dir = expected.kind == Kind::Dir;
    let mut found = *found;
    if !exact {
        (found.uid, found.gid) = (expected.uid, expected.gid);
        (found.changed, found.blocks) = (expected.changed, expected.blocks);
        if is_dir {
            (found.size_bytes, found.nlink) = (expected.size_bytes, expected.nlink);
        }
    }
    found.node = expected.node;
    if found == *expected {
        return Vec::new();
    }
    vec![format!("expected {expected:?}"), format!("found {found:?}")]
}

/// Returns a tree with every kind of node and many kinds of names.
fn one_of_everything() -> Tree {
    let mut tree = Tree::new();
    let bin = tree.add(Tree::ROOT, "bin", Node::dir().with_permissions(0o2755));
    let tool = tree.add(bin, "tool", Node::file("#!/bin/sh\n").with_permissions(0o4751));
    tree.link(bin, "tool-1.0", tool);
    tree.add(bin, "link", Node::symlink("../lib/a"));
    tree.add(bin, "dangling", Node::symlink(vec![b'x'; 4000]));
    let lib = tree.add(Tree::ROOT, "lib", Node::dir().with_permissions(0o700));
    tree.link(lib, "the tool", tool);
    tree.add(lib, "a", Node::file(vec![7; 70_000]).with_xattr("user.note", "seven"));
    let mut sparse = Node::file("begins");
    sparse.size_bytes = 1 << 33;
    tree.add(lib, "sparse", sparse);
    tree.add(lib, "empty file", Node::file(""));
    tree.add(lib, "fifo", Node::special(Kind::Fifo, 0));
    tree.add(lib, "socket", Node::special(Kind::Socket, 0));
    tree.add(lib, "null", Node::special(Kind::CharDevice, 0x0103));
    tree.add(lib, "disk", Node::special(Kind::BlockDevice, 0x0801));
    let names = tree.add(lib, "names", Node::dir().with_xattr("user.empty", ""));
    for name in [&b"\xff\xfe"[..], b"with\nnewline", b" ", b"...", b"-rf", &[b'n'; 255]] {
        tree.add(names, name, Node::file(name));
    }
    let mut at = tree.add(Tree::ROOT, "deep", Node::dir());
    for depth in 0..40 {
        at = tree.add(at, format!("{depth}"), Node::dir());
    }
    tree.add(Tree::ROOT, "empty", Node::dir());
    let many = tree.add(Tree::ROOT, "many", Node::dir());
    for i in 0..700 {
        tree.add(many, format!("f{i}"), Node::file(format!("{i}")));
    }
    tree
}

/// Returns the node at a path that must exist.
fn node_at(fs: &dyn FileSystem, path: &str) -> NodeId {
    quell_vfs::resolve(fs, path.as_bytes()).unwrap_or_else(|e| panic!("{path}: {e}")).node
}

#[track_caller]
fn refused<T>(answer: quell_vfs::Result<T>, errno: i32) {
    match answer {
        Ok(_) => panic!("this must be refused"),
        Err(e) => assert_eq!(e.errno(), errno, "{e}"),
    }
}
