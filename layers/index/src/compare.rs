//! Differences between an index and a tree, or between two indexes. Pure.
//!
//! Compared are the properties that a reading program can depend on and that a faithful copy of a
//! tree keeps: names, kind, permissions, owners, sizes of files, modification times, link targets,
//! extended attributes, device numbers. Not compared are status change times, block counts, and the
//! sizes and link counts of directories, because they depend on the file system of the copy.

use std::cmp::Ordering;

use quell_vfs::{Attributes, Kind};

use crate::image::{EntryId, Image, ROOT};

/// One path that differs from the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The path relative to the root; empty for the root itself.
    pub path: Vec<u8>,
    /// The kind of the difference.
    pub what: Change,
}

/// The difference of a path from the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The path is not in the index.
    Added,
    /// The path is only in the index.
    Removed,
    /// The names of the changed attributes: `mode`, `owner`, `size`, ...
    Changed(Vec<&'static str>),
}

/// Returns the names of the attributes that differ, by the rules above.
pub fn changed_attributes(old: &Attributes, new: &Attributes) -> Vec<&'static str> {
    if old.kind != new.kind {
        return vec!["kind"];
    }
    let is_dir = old.kind == Kind::Dir;
    [
        ("mode", old.permissions != new.permissions),
        ("owner", (old.uid, old.gid) != (new.uid, new.gid)),
        ("size", !is_dir && old.size_bytes != new.size_bytes),
        ("mtime", old.modified != new.modified),
        ("device", old.rdev != new.rdev),
        ("nlink", !is_dir && old.nlink != new.nlink),
    ]
    .into_iter()
    .filter_map(|(name, differs)| differs.then_some(name))
    .collect()
}

/// Calls `visit` for every difference, in the order of the old index's directories, until it
/// returns `false`.
pub fn compare(old: &Image, new: &Image, visit: &mut dyn FnMut(Difference) -> bool) {
    if !compare_entry(old, ROOT, new, ROOT, visit) {
        return;
    }
    let mut pairs = vec![(ROOT, ROOT)];
    while let Some((old_dir, new_dir)) = pairs.pop() {
        let (mut a, mut b) = (children(old, old_dir), children(new, new_dir));
        let (mut left, mut right) = (a.next(), b.next());
        loop {
            let order = match (left, right) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(l), Some(r)) => old.name(l).cmp(new.name(r)),
            };
            let go_on = match (order, left, right) {
                (Ordering::Less, Some(l), _) => {
                    left = a.next();
                    visit(Difference { path: old.path(l), what: Change::Removed })
                }
                (Ordering::Greater, _, Some(r)) => {
                    right = b.next();
                    visit(Difference { path: new.path(r), what: Change::Added })
                }
                (_, Some(l), Some(r)) => {
                    left = a.next();
                    right = b.next();
                    if old.kind(l) == Kind::Dir && new.kind(r) == Kind::Dir {
                        pairs.push((l, r));
                    }
                    compare_entry(old, l, new, r, visit)
                }
                _ => break,
            };
            if !go_on {
                return;
            }
        }
    }
}

fn children(image: &Image, directory: EntryId) -> std::ops::Range<EntryId> {
    image.children(directory).unwrap_or(0..0)
}

fn compare_entry(
    old: &Image,
    left: EntryId,
    new: &Image,
    right: EntryId,
    visit: &mut dyn FnMut(Difference) -> bool,
) -> bool {
    let mut changed = changed_attributes(&old.attributes(left), &new.attributes(right));
    if old.link_target(left) != new.link_target(right) {
        changed.push("target");
    }
    if !old.xattrs(left).eq(new.xattrs(right)) {
        changed.push("xattrs");
    }
    let unknown = crate::format::Field::Unknown;
    if old.extra(left, unknown).is_some() != new.extra(right, unknown).is_some() {
        changed.push("readable");
    }
    changed.is_empty() || visit(Difference { path: old.path(left), what: Change::Changed(changed) })
}
