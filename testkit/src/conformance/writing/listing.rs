//! Promise: a listing has every entry once, with its kind and node. Entries that are not changed
//! appear once, even if others are created and removed during the listing. No cursor is larger than
//! `Cursor::MAX`.

use std::collections::BTreeSet;

use quell_vfs::{Context, Cursor, Kind, OpenMode};

use super::mount::{Mount, WritableImplementation};
use super::names::odd_names;
use crate::compare::listing;

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let verbs = mount.verbs();
    let dir = mount.make_dir("dir");
    for (i, name) in odd_names().iter().enumerate() {
        match i % 3 {
            0 => drop(verbs.create(&Context::OWN, dir, name, mount.new, OpenMode::WRITE).unwrap()),
            1 => drop(verbs.make_dir(&Context::OWN, dir, name, mount.new_dir).unwrap()),
            _ => drop(verbs.make_symlink(&Context::OWN, dir, name, b"x", mount.new).unwrap()),
        }
    }
    for step in [1, 2, 7, 1000] {
        let entries = listing(&*mount.fs, dir, step).unwrap();
        let listed: BTreeSet<_> = entries.iter().map(|e| e.0.clone()).collect();
        assert_eq!((listed, entries.len()), (odd_names().into_iter().collect(), odd_names().len()));
        for (i, name) in odd_names().iter().enumerate() {
            let (_, entry) = entries.iter().find(|e| e.0 == *name).expect("it was listed");
            let found = mount.fs.lookup(&Context::OWN, dir, name).unwrap().expect("it is there");
            assert_eq!((entry.node, entry.kind), (found.node, found.kind), "{}", name.escape_ascii());
            assert_eq!(found.kind, [Kind::File, Kind::Dir, Kind::Symlink][i % 3]);
        }
    }
    mount
        .fs
        .list(&Context::OWN, dir, Cursor::START, &mut |entry| {
            assert!(entry.next <= Cursor::MAX, "{:?} is larger than any cursor may be", entry.next);
            true
        })
        .unwrap();
    while_it_changes(&implementation.mount());
    as_rm_does(&implementation.mount());
}

fn while_it_changes(mount: &Mount) {
    let dir = mount.make_dir("dir");
    for i in 0..60 {
        mount.create_in(dir, &format!("stays {i}"));
        mount.create_in(dir, &format!("goes {i}"));
    }
    let (mut cursor, mut names, mut round) = (Cursor::START, Vec::new(), 0);
    loop {
        let before = names.len();
        mount
            .fs
            .list(&Context::OWN, dir, cursor, &mut |entry| {
                names.push(entry.name.to_vec());
                cursor = entry.next;
                names.len() - before < 10
            })
            .unwrap();
        if names.len() == before {
            break;
        }
        for i in round * 5..(round * 5 + 5).min(60) {
            mount.verbs().remove(&Context::OWN, dir, format!("goes {i}").as_bytes()).unwrap();
            mount.create_in(dir, &format!("comes {i}"));
        }
        round += 1;
        assert!(round < 100, "the listing does not end");
    }
    let staying = names.iter().filter(|name| name.starts_with(b"stays"));
    assert_eq!(staying.clone().count(), 60);
    assert_eq!(staying.collect::<BTreeSet<_>>().len(), 60);
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "a name came twice");
}

/// Checks a listing whose entries are removed before it continues, as rm(1) does.
fn as_rm_does(mount: &Mount) {
    let dir = mount.make_dir("dir");
    for i in 0..100 {
        mount.create_in(dir, &format!("{i}"));
    }
    let mut cursor = Cursor::START;
    loop {
        let mut names = Vec::new();
        mount
            .fs
            .list(&Context::OWN, dir, cursor, &mut |entry| {
                names.push(entry.name.to_vec());
                cursor = entry.next;
                names.len() < 7
            })
            .unwrap();
        if names.is_empty() {
            break;
        }
        for name in names {
            mount.verbs().remove(&Context::OWN, dir, &name).unwrap();
        }
    }
    mount.verbs().remove_dir(&Context::OWN, mount.root, b"dir").unwrap();
}
