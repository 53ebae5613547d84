//! Promise: a listing has every entry once, in an order that never changes, from any cursor. No
//! cursor is larger than `Cursor::MAX`.

use std::collections::BTreeSet;

use quell_vfs::errno::ENOTDIR;
use quell_vfs::{Context, Cursor, FileSystem, NodeId};

use super::implementation::{Implementation, node_at, refused, varied_tree};
use crate::compare::listing;

pub(super) fn check(implementation: &Implementation<'_>) {
    let instance = implementation.create(&varied_tree());
    let fs = &*instance.fs;
    let many = node_at(fs, "many");
    let names = |step| listing(fs, many, step).unwrap().into_iter().map(|e| e.0).collect::<Vec<_>>();
    let all = names(usize::MAX);
    assert_eq!(all.len(), 700);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 700, "a name came twice");
    for step in [1, 2, 3, 255, 256, 257, 699, 700] {
        assert_eq!(names(step), all, "in steps of {step}");
    }
    from_every_cursor(fs, many, &all);
    assert_eq!(listing(fs, node_at(fs, "empty"), 10).unwrap(), []);
    for name in listing(fs, fs.root(), 10).unwrap() {
        assert!(name.0 != b"." && name.0 != b"..", "those are the frontend's to add");
    }
    let odd = listing(fs, node_at(fs, "lib/names"), 10).unwrap();
    assert!(odd.iter().any(|(name, _)| name == &[b'n'; 255]) && odd.len() == 6);
    // Beyond the end there are no entries and no error.
    fs.list(&Context::OWN, many, Cursor(u64::MAX), &mut |_| panic!("nothing is there")).unwrap();
    fs.list(&Context::OWN, many, Cursor(u64::from(u32::MAX)), &mut |_| panic!("nothing is there")).unwrap();
    refused(fs.list(&Context::OWN, node_at(fs, "bin/tool"), Cursor::START, &mut |_| true), ENOTDIR);
    refused(fs.list(&Context::OWN, node_at(fs, "bin/link"), Cursor::START, &mut |_| true), ENOTDIR);
}

/// Checks that a listing continues after the entry of a cursor, even if the cursor is used later.
fn from_every_cursor(fs: &dyn FileSystem, dir: NodeId, all: &[Vec<u8>]) {
    let mut cursors = Vec::new();
    fs.list(&Context::OWN, dir, Cursor::START, &mut |entry| {
        assert!(entry.next <= Cursor::MAX, "{:?} is larger than any cursor may be", entry.next);
        cursors.push(entry.next);
        true
    })
    .unwrap();
    for (i, cursor) in cursors.into_iter().enumerate().step_by(37) {
        let mut next = None;
        fs.list(&Context::OWN, dir, cursor, &mut |entry| {
            next = Some(entry.name.to_vec());
            false
        })
        .unwrap();
        assert_eq!(next.as_ref(), all.get(i + 1));
    }
}
