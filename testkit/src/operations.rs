//! Trees, changes of trees and comparisons of trees, generated from a seed.

use std::collections::HashMap;

use quell_vfs::{Attributes, Context, FileSystem, Kind, NodeId, Result, Time};

use crate::compare::{Listed, differences, listing};
use crate::random::Random;
use crate::tree::{NodeNumber, Tree, TreeNode};

/// The parameters of a generated tree.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The number of entries to generate; entries of equal name are skipped.
    pub entries: usize,
    /// Whether there are times before 1678 and after 2261, sizes up to the maximum, long names,
    /// many links and attributes: values that a format can store but hardly any file system can.
    pub extremes: bool,
    /// Whether nodes have extended attributes.
    pub xattrs: bool,
}

impl Shape {
    /// A small tree that every file system can hold.
    pub const SMALL: Shape = Shape { entries: 60, extremes: false, xattrs: false };
    /// A tree with values that only formats can hold.
    pub const EXTREME: Shape = Shape { entries: 120, extremes: true, xattrs: true };
}

/// Generates a tree from a seed.
pub fn random_tree(seed: u64, shape: Shape) -> Tree {
    let mut random = Random::new(seed);
    let mut tree = Tree::new();
    *tree.node_mut(Tree::ROOT) = dressed(TreeNode::dir(), shape, &mut random);
    let mut directories = vec![Tree::ROOT];
    let mut files: Vec<NodeNumber> = Vec::new();
    for _ in 0..shape.entries {
        let dir = *random.pick(&directories);
        let name = random_name(shape, &mut random);
        if tree.node(dir).children.contains_key(&name) {
            continue;
        }
        if !files.is_empty() && random.one_in(8) {
            tree.link(dir, name, *random.pick(&files));
            continue;
        }
        let node = dressed(random_node(shape, &mut random), shape, &mut random);
        let kind = node.kind;
        let number = tree.add(dir, name, node);
        if kind == Kind::Dir {
            directories.push(number);
        } else {
            files.push(number);
        }
    }
    tree
}

fn random_name(shape: Shape, random: &mut Random) -> Vec<u8> {
    let length = match random.below(10) {
        0 if shape.extremes => 255,
        1 if shape.extremes => 1,
        _ => 1 + random.below(12),
    };
    let any = shape.extremes || random.one_in(4);
    let name: Vec<u8> = random
        .bytes(length)
        .into_iter()
        .map(|b| match b {
            b if !any => b'a' + b % 8,
            b'/' | 0 => b'_',
            b => b,
        })
        .collect();
    if name == b"." || name == b".." { b"dots".to_vec() } else { name }
}

fn random_node(shape: Shape, random: &mut Random) -> TreeNode {
    match random.below(12) {
        0..3 => TreeNode::dir(),
        3 => {
            let longest = if shape.extremes { 4095 } else { 100 };
            let length = if random.one_in(4) { longest } else { 1 + random.below(20) };
            TreeNode::symlink(random.bytes(length).into_iter().map(|b| b.max(1)).collect::<Vec<_>>())
        }
        4 => TreeNode::special(Kind::Fifo, 0),
        5 => TreeNode::special(Kind::Socket, 0),
        6 if shape.extremes => {
            let rdev = if random.one_in(3) { u64::MAX } else { random.number() % 0x1_0000 };
            TreeNode::special(*random.pick(&[Kind::CharDevice, Kind::BlockDevice]), rdev)
        }
        _ => {
            let length = random.below(6000);
            TreeNode::file(random.bytes(length))
        }
    }
}

fn dressed(mut node: TreeNode, shape: Shape, random: &mut Random) -> TreeNode {
    node.permissions = match node.kind {
        Kind::Symlink => 0o777,
        Kind::Dir => *random.pick(&[0o755, 0o700, 0o1777, 0o2755]),
        _ => *random.pick(&[0o644, 0o600, 0o4755, 0o444, 0o640]),
    };
    node.uid = *random.pick(&[0, 1000, 1001]);
    node.gid = *random.pick(&[0, 100]);
    let seconds = 1_000_000_000 + (random.number() % 700_000_000) as i64;
    let mut time = |_| Time { seconds, nanoseconds: (random.number() % 1_000_000_000) as u32 };
    (node.modified, node.changed) = (time(0), time(1));
    if random.one_in(3) {
        node.changed = node.modified;
    }
    if shape.extremes {
        let nanoseconds = node.modified.nanoseconds;
        let seconds = *random.pick(&[
            0,
            -1,
            i64::MIN,
            i64::MAX,
            i64::MAX / 1_000_000_000,
            i64::MIN / 1_000_000_000,
            i64::MIN / 1_000_000_000 - 1,
            4_000_000_000,
        ]);
        if random.one_in(2) {
            node.modified = Time { seconds, nanoseconds };
        }
        if random.one_in(2) {
            node.changed = Time { seconds, nanoseconds: 999_999_999 };
        }
        if node.kind == Kind::File && random.one_in(3) {
            node.size_bytes = *random.pick(&[i64::MAX as u64, 1 << 40, 0, 1]);
        }
        node.blocks = *random.pick(&[node.blocks, 0, 1, 8, u64::MAX >> 9]);
        if random.one_in(5) {
            node.uid = u32::MAX - 1;
            node.gid = *random.pick(&[u32::MAX - 1, 65534]);
        }
        if node.kind != Kind::Dir && random.one_in(6) {
            node.outside_links = *random.pick(&[1, 7, u32::MAX / 2]);
        }
    }
    // Links, fifos, sockets and devices have no `user.*` attributes.
    if shape.xattrs && matches!(node.kind, Kind::File | Kind::Dir) && random.one_in(4) {
        for i in 0..1 + random.below(4) {
            let length = match random.below(8) {
                0 if shape.extremes => 64 << 10,
                1 => 0,
                _ => random.below(200),
            };
            node.xattrs.insert(format!("user.{i}").into_bytes(), random.bytes(length));
        }
        if shape.extremes && random.one_in(3) {
            node.xattrs.insert([b"user.".as_slice(), &[b'n'; 250]].concat(), b"long name".to_vec());
            node.xattrs.insert(b"system.posix_acl_access".to_vec(), random.bytes(28));
        }
    }
    node
}

/// Changes a tree as installers do: a changed file is a new file under the old name, so the
/// directories' times show all changes. Returns the number of changes.
pub fn replace_by_renaming(tree: &mut Tree, random: &mut Random, changes: usize) -> usize {
    let mut made = 0;
    for _ in 0..changes {
        let directories: Vec<NodeNumber> = tree
            .paths()
            .into_iter()
            .filter(|(_, number)| tree.node(*number).kind == Kind::Dir)
            .map(|(_, number)| number)
            .collect();
        let dir = *random.pick(&directories);
        let names: Vec<Vec<u8>> = tree.node(dir).children.keys().cloned().collect();
        match random.below(4) {
            0 if !names.is_empty() => {
                let name = random.pick(&names).clone();
                if tree.remove(dir, &name).is_some_and(|n| tree.node(n).kind != Kind::Dir) {
                    // The file's other names show a lower link count and a new status change time.
                    touch_links(tree, random);
                }
            }
            1 => {
                let below = tree.add(dir, random_name(Shape::SMALL, random), TreeNode::dir());
                let node = random_node(Shape::SMALL, random);
                tree.add(below, b"in it", node);
            }
            _ => {
                let old = (!names.is_empty()).then(|| random.pick(&names).clone());
                let name = old.unwrap_or_else(|| random_name(Shape::SMALL, random));
                let node = dressed(random_node(Shape::SMALL, random), Shape::SMALL, random);
                tree.add(dir, name, node);
            }
        }
        let now = Time { seconds: 1_800_000_000, nanoseconds: (random.number() % 1_000_000_000) as u32 };
        let node = tree.node_mut(dir);
        (node.modified, node.changed) = (now, now);
        made += 1;
    }
    made
}

/// Sets the status change time of hard-linked files, because a change of the link count sets it.
fn touch_links(tree: &mut Tree, random: &mut Random) {
    let now = Time { seconds: 1_800_000_001, nanoseconds: (random.number() % 1_000_000_000) as u32 };
    let mut names: HashMap<NodeNumber, usize> = HashMap::new();
    for (_, number) in tree.paths() {
        *names.entry(number).or_default() += 1;
    }
    for (number, count) in names {
        if count > 1 {
            tree.node_mut(number).changed = now;
        }
    }
}

/// A comparison of two implementations; `exact` as in `conformance::Implementation`.
pub struct Comparison<'a> {
    model: &'a dyn FileSystem,
    other: &'a dyn FileSystem,
    exact: bool,
    /// Pairs of nodes from equal lookups, which can be used in further requests.
    known: Vec<(Attributes, NodeId)>,
    pairs: HashMap<NodeId, NodeId>,
    names: Vec<Vec<u8>>,
}

impl std::fmt::Debug for Comparison<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Comparison").field("known", &self.known.len()).finish_non_exhaustive()
    }
}

impl<'a> Comparison<'a> {
    /// Starts at the roots, which must be equal.
    pub fn new(model: &'a dyn FileSystem, other: &'a dyn FileSystem, exact: bool) -> Comparison<'a> {
        let mut comparison =
            Comparison { model, other, exact, known: Vec::new(), pairs: HashMap::new(), names: Vec::new() };
        let (a, b) = (
            model.attributes(&Context::OWN, model.root()).unwrap(),
            other.attributes(&Context::OWN, other.root()).unwrap(),
        );
        comparison.same(&a, &b, "the root");
        comparison.names.push(b"no such name".to_vec());
        comparison
    }

    /// Compares the results of `count` random requests and panics at the first difference.
    pub fn ask(&mut self, random: &mut Random, count: usize) {
        for _ in 0..count {
            self.ask_one(random);
        }
    }

    fn same(&mut self, a: &Attributes, b: &Attributes, question: &str) {
        assert_eq!(differences(a, b, self.exact), Vec::<String>::new(), "{question}");
        match self.pairs.insert(a.node, b.node) {
            Some(before) => assert_eq!(before, b.node, "{question}: one node has become two"),
            None => self.known.push((*a, b.node)),
        }
    }

    fn ask_one(&mut self, random: &mut Random) {
        let (a, b) = *random.pick(&self.known);
        let (kind, a) = (a.kind, a.node);
        let place = || self.model.path(a).unwrap_or_default().escape_ascii().to_string();
        match random.below(9) {
            0..3 => {
                let name = random.pick(&self.names).clone();
                let question = format!("{} in {}", name.escape_ascii(), place());
                match (self.model.lookup(&Context::OWN, a, &name), self.other.lookup(&Context::OWN, b, &name))
                {
                    (Ok(Some(a)), Ok(Some(b))) => self.same(&a, &b, &question),
                    (Ok(None), Ok(None)) => {}
                    (Err(a), Err(b)) => assert_eq!(a.errno(), b.errno(), "{question}"),
                    (a, b) => panic!("{question}: {a:?} and {b:?}"),
                }
            }
            3 | 4 => self.compare_listing(a, b, random),
            5 => {
                let question = format!("attributes of {}", place());
                let (a, b) = (
                    self.model.attributes(&Context::OWN, a).unwrap(),
                    self.other.attributes(&Context::OWN, b).unwrap(),
                );
                self.same(&a, &b, &question);
            }
            6 => agree(
                self.model.read_link(&Context::OWN, a),
                self.other.read_link(&Context::OWN, b),
                &place(),
            ),
            7 => {
                agree(
                    self.model.xattr_names(&Context::OWN, a),
                    self.other.xattr_names(&Context::OWN, b),
                    &place(),
                );
                for name in self.model.xattr_names(&Context::OWN, a).unwrap() {
                    agree(
                        self.model.xattr(&Context::OWN, a, &name),
                        self.other.xattr(&Context::OWN, b, &name),
                        &place(),
                    );
                }
                agree(
                    self.model.xattr(&Context::OWN, a, b"user.none"),
                    self.other.xattr(&Context::OWN, b, b"user.none"),
                    &place(),
                );
            }
            _ => {
                // For a file with several names, `path` may return any of them.
                let path = self.other.path(b).unwrap();
                assert_eq!(
                    quell_vfs::resolve(self.model, &Context::OWN, &path).unwrap().node,
                    a,
                    "{}",
                    path.escape_ascii()
                );
                if kind == Kind::Dir {
                    agree(self.model.path(a), self.other.path(b), &place());
                    let up = (self.model.parent(a).unwrap(), self.other.parent(b).unwrap());
                    let question = format!("the directory of {}", place());
                    let (a, b) = (
                        self.model.attributes(&Context::OWN, up.0).unwrap(),
                        self.other.attributes(&Context::OWN, up.1).unwrap(),
                    );
                    self.same(&a, &b, &question);
                }
            }
        }
    }

    /// Compares complete listings, read a few entries at a time.
    fn compare_listing(&mut self, a: NodeId, b: NodeId, random: &mut Random) {
        let step = 1 + random.below(7);
        let (left, right) = (listing(self.model, a, step), listing(self.other, b, step));
        let (left, right) = match (left, right) {
            (Ok(left), Ok(right)) => (left, right),
            (left, right) => return agree(left.map(drop), right.map(drop), "listing"),
        };
        let names = |list: &[(Vec<u8>, Listed)]| list.iter().map(|e| e.0.clone()).collect::<Vec<_>>();
        assert_eq!(names(&left), names(&right), "listing in steps of {step}");
        for ((name, a), (_, b)) in left.iter().zip(&right) {
            let question = name.escape_ascii().to_string();
            match (&a.attributes, &b.attributes) {
                (Some(a), Some(b)) => self.same(a, b, &question),
                (a, b) => panic!("{question}: a read-only tree lists attributes: {a:?} and {b:?}"),
            }
        }
        self.names.extend(left.into_iter().map(|e| e.0));
    }
}

fn agree<T: PartialEq + std::fmt::Debug>(a: Result<T>, b: Result<T>, question: &str) {
    match (a, b) {
        (Ok(a), Ok(b)) => assert_eq!(a, b, "{question}"),
        (Err(a), Err(b)) => assert_eq!(a.errno(), b.errno(), "{question}: {a} and {b}"),
        (a, b) => panic!("{question}: {a:?} and {b:?}"),
    }
}
