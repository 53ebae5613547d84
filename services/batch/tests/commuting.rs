//! All pairs of operations: another client executes one, and a batch the other one. The commit has
//! the result of their execution one after the other, or the batch's operation is in conflict. Both
//! forms of the proof have the same result.

mod stores;

use std::sync::RwLock;

use quell_batch_service::{
    Conflict, FoundNode, InodeChange, MemoryEntries, NameSpace, NewNode, Place, ProofForm, ROOT, Timestamp,
    XattrChange,
};
use quell_vfs::{Error, ErrorKind, Rename, Result, SetXattr};

use stores::{FILE, Fixture, LATER, NEW, NOW, content, make_dir, make_file, tree, write};

type Operation = (&'static str, fn(&dyn NameSpace) -> Result<()>);

/// Creates the tree that the operations change.
fn prepare(names: &dyn NameSpace) {
    let d = make_dir(names, ROOT, "d");
    for name in ["f", "g"] {
        write(names, &make_file(names, d, name), name.as_bytes());
    }
    make_dir(names, d, "e");
    let sub = make_dir(names, d, "sub");
    make_file(names, sub, "h");
    let linked = make_file(names, d, "l1");
    names.link((linked.inode.number, &linked.place), d, b"l2", NOW).unwrap();
}

/// Returns the directory and the last name of a path.
fn at<'a>(names: &dyn NameSpace, path: &'a str) -> Result<(u64, &'a [u8])> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut dir = ROOT;
    for part in above.split('/').filter(|part| !part.is_empty()) {
        let found = names.lookup(dir, part.as_bytes())?;
        dir = found.ok_or_else(|| Error::new(ErrorKind::NotFound, "look up", path))?.inode.number;
    }
    Ok((dir, name.as_bytes()))
}

/// As `at`, for a name that is changed: the directory must be writable.
fn changed<'a>(names: &dyn NameSpace, path: &'a str) -> Result<(u64, &'a [u8])> {
    let (dir, name) = at(names, path)?;
    match names.find(dir, &Place::Dir(dir))?.inode.mode & 0o300 {
        0o300 => Ok((dir, name)),
        _ => Err(Error::new(ErrorKind::PermissionDenied, "change", path)),
    }
}

fn found(names: &dyn NameSpace, path: &str) -> Result<FoundNode> {
    let (dir, name) = at(names, path)?;
    let found = names.lookup(dir, name)?;
    found.ok_or_else(|| Error::new(ErrorKind::NotFound, "look up", path))
}

fn create(names: &dyn NameSpace, path: &str, node: NewNode) -> Result<()> {
    let (dir, name) = changed(names, path)?;
    names.create(dir, name, node, FILE, LATER).map(drop)
}

fn rename(names: &dyn NameSpace, from: &str, to: &str, mode: Rename) -> Result<()> {
    names.rename(changed(names, from)?, changed(names, to)?, mode, LATER).map(drop)
}

fn link(names: &dyn NameSpace, from: &str, to: &str) -> Result<()> {
    let (dir, name) = changed(names, to)?;
    let file = found(names, from)?;
    names.link((file.inode.number, &file.place), dir, name, LATER).map(drop)
}

fn remove(names: &dyn NameSpace, path: &str) -> Result<()> {
    let (dir, name) = changed(names, path)?;
    names.remove(dir, name, LATER).map(drop)
}

fn remove_dir(names: &dyn NameSpace, path: &str) -> Result<()> {
    let (dir, name) = changed(names, path)?;
    names.remove_dir(dir, name, LATER).map(drop)
}

fn change(names: &dyn NameSpace, path: &str, change: InodeChange) -> Result<()> {
    let node = found(names, path)?;
    names.change((node.inode.number, &node.place), &change, LATER).map(drop)
}

fn chmod(names: &dyn NameSpace, path: &str, permissions: u32) -> Result<()> {
    change(names, path, InodeChange { permissions: Some(permissions), ..InodeChange::default() })
}

fn set(names: &dyn NameSpace, path: &str, bytes: &[u8]) -> Result<()> {
    change(names, path, content(bytes))
}

const OPERATIONS: &[Operation] = &[
    ("create d/n", |names| create(names, "d/n", NewNode::File)),
    ("create d/m", |names| create(names, "d/m", NewNode::File)),
    ("create d/e/k", |names| create(names, "d/e/k", NewNode::File)),
    ("mkdir d/n", |names| create(names, "d/n", NewNode::Dir)),
    ("symlink d/n", |names| create(names, "d/n", NewNode::Symlink(b"t".to_vec()))),
    ("unlink d/f", |names| remove(names, "d/f")),
    ("unlink d/l1", |names| remove(names, "d/l1")),
    ("rmdir d/e", |names| remove_dir(names, "d/e")),
    ("unlink d/sub/h, rmdir d/sub", |names| {
        remove(names, "d/sub/h").and_then(|()| remove_dir(names, "d/sub"))
    }),
    ("rename d/f d/n", |names| rename(names, "d/f", "d/n", Rename::Replace)),
    ("rename d/f d/g", |names| rename(names, "d/f", "d/g", Rename::Replace)),
    ("rename d/l1 d/n", |names| rename(names, "d/l1", "d/n", Rename::Replace)),
    ("rename d/e d/n", |names| rename(names, "d/e", "d/n", Rename::Replace)),
    ("rename d/e d/sub/e", |names| rename(names, "d/e", "d/sub/e", Rename::Replace)),
    ("rename d/sub d/e", |names| rename(names, "d/sub", "d/e", Rename::Replace)),
    ("rename d/sub d/e/sub", |names| rename(names, "d/sub", "d/e/sub", Rename::Replace)),
    ("exchange d/f d/g", |names| rename(names, "d/f", "d/g", Rename::Exchange)),
    ("exchange d/f d/sub", |names| rename(names, "d/f", "d/sub", Rename::Exchange)),
    ("link d/f d/n", |names| link(names, "d/f", "d/n")),
    ("link d/l1 d/m", |names| link(names, "d/l1", "d/m")),
    ("chmod 600 d/f", |names| chmod(names, "d/f", 0o600)),
    ("chmod 640 d/f", |names| chmod(names, "d/f", 0o640)),
    ("chmod 600 d/l2", |names| chmod(names, "d/l2", 0o600)),
    ("chmod 700 d", |names| chmod(names, "d", 0o700)),
    ("chmod 500 d", |names| chmod(names, "d", 0o500)),
    ("chmod 500 d/e", |names| chmod(names, "d/e", 0o500)),
    ("write d/f", |names| set(names, "d/f", b"written")),
    ("truncate d/f", |names| set(names, "d/f", b"")),
    ("utimens d/f", |names| {
        change(names, "d/f", InodeChange { modified: Some(Timestamp(300, 0)), ..InodeChange::default() })
    }),
    ("setxattr d/f", |names| {
        let xattr = Some(XattrChange::Set(b"user.a".to_vec(), b"1".to_vec(), SetXattr::Any));
        change(names, "d/f", InodeChange { xattr, ..InodeChange::default() })
    }),
];

/// Returns a tree without the entries that a conflict adds, and without the numbers of links.
fn names_and_content(tree: &[String]) -> Vec<String> {
    let lines = tree.iter().filter(|line| !line.contains("quell-conflict"));
    let without_links = |line: &String| match line.split(' ').collect::<Vec<_>>()[..] {
        [path, mode, _, ref content @ ..] => format!("{path} {mode} {}", content.join(" ")),
        _ => panic!("{line}"),
    };
    lines.map(without_links).collect()
}

/// The results of two operations in one order.
fn in_order(first: &Operation, second: &Operation) -> (Result<()>, Vec<String>) {
    let model = RwLock::new(MemoryEntries::new(NEW, NOW));
    prepare(&model);
    let result = (first.1)(&model).and_then(|()| (second.1)(&model));
    (result, tree(&model))
}

/// Commits an operation of a batch after an operation of another client. Returns the tree after the
/// operation of the other client, the conflicts, and the tree after the commit.
fn committed_beside(
    others: &Operation,
    batch: &Operation,
    form: ProofForm,
) -> (Vec<String>, Vec<Conflict>, Vec<String>) {
    let fixture = Fixture { form, ..Fixture::new() };
    let master = fixture.master();
    prepare(&*master);
    let open = fixture.begin();
    (batch.1)(&open.names).expect("the operation of the batch succeeds on the snapshot");
    (others.1)(&*master).expect("the operation of others succeeds");
    let after_others = tree(&*master);
    let conflicts = fixture.conflicts(&open);
    (after_others, conflicts, tree(&*master))
}

#[test]
fn every_pair_of_operations_commutes_or_is_in_conflict() {
    let mut failures = Vec::new();
    let (mut committed, mut in_conflict) = (0, 0);
    for others in OPERATIONS {
        for batch in OPERATIONS {
            let (after_others, conflicts, found) = committed_beside(others, batch, ProofForm::Log);
            let other_form = committed_beside(others, batch, ProofForm::Certificate);
            let are_equal =
                (&after_others, &conflicts, &found) == (&other_form.0, &other_form.1, &other_form.2);
            assert!(are_equal, "others {}; batch {}: {found:?}, {other_form:?}", others.0, batch.0);
            let (after, tree_after) = in_order(others, batch);
            let (before, tree_before) = in_order(batch, others);
            let commute = after.is_ok() && before.is_ok() && tree_after == tree_before;
            let is_right = if conflicts.is_empty() {
                committed += 1;
                // The result is the same as after one of the two orders.
                after.is_ok() && found == tree_after || before.is_ok() && found == tree_before
            } else {
                in_conflict += 1;
                let without_batch = names_and_content(&after_others);
                let found = names_and_content(&found);
                // Either the batch's operation has no effect, or a first part of it has.
                let is_first_part = found == names_and_content(&tree_after)
                    || batch.0.starts_with("unlink d/sub/h,")
                        && found.iter().eq(without_batch.iter().filter(|line| !line.contains("/h ")));
                // An exchange after the same exchange would undo it.
                let is_conservative = batch.0 == others.0 && batch.0.starts_with("exchange");
                (!commute || is_conservative) && (found == without_batch || is_first_part)
            };
            if !is_right {
                let conflicts: Vec<_> = conflicts
                    .iter()
                    .map(|c| format!("{} {:?}", String::from_utf8_lossy(&c.name), c.reason))
                    .collect();
                failures.push(format!("others {}; batch {}: {conflicts:?}\n  found  {found:?}\n  after  {after:?} {tree_after:?}\n  before {before:?} {tree_before:?}", others.0, batch.0));
            }
        }
    }
    assert!(failures.is_empty(), "{} pairs:\n{}", failures.len(), failures.join("\n"));
    assert!(committed > 300 && in_conflict > 100, "{committed} committed, {in_conflict} in conflict");
}
