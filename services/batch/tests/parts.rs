//! Batches of several parts: their parts are verified one after the other, and published at once.

mod stores;

use std::collections::BTreeSet;
use std::sync::RwLock;

use quell_batch_service::{
    BatchCaller, BatchState, Certificate, ConflictReason, InodeChange, MemoryEntries, NameSpace, Names,
    NewNode, NewPart, PartState, ROOT,
};
use quell_testkit::Random;
use quell_vfs::{ErrorKind, NewEntry, Rename};

use stores::operations::operation;
use stores::{Fixture, LATER, NEW, NOW, Open, make_dir, make_file, tree, write};

fn text_file(names: &dyn NameSpace, dir: u64, name: &str, text: &str) {
    write(names, &make_file(names, dir, name), text.as_bytes());
}

/// Returns the reasons and the names of conflicts.
fn reasons(fixture: &Fixture, batch: u64) -> Vec<(ConflictReason, String)> {
    let name = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
    fixture.conflicts_of(batch).iter().map(|conflict| (conflict.reason, name(&conflict.name))).collect()
}

fn sorted<const N: usize>(mut lines: [String; N]) -> [String; N] {
    lines.sort();
    lines
}

fn state_of(fixture: &Fixture, number: u64) -> BatchState {
    let batches = fixture.primary.batches().unwrap();
    batches.into_iter().find(|record| record.number == number).unwrap().state
}

#[test]
fn the_parts_are_published_at_once_and_equal_directories_become_one() {
    let fixture = Fixture::new();
    let existing = make_dir(&*fixture.master(), ROOT, "existing");
    let batch = fixture.begin_for_parts(true).number;
    let parts: Vec<Open> = (0..3).map(|_| fixture.join(batch).unwrap()).collect();
    for (number, part) in parts.iter().enumerate() {
        let names = &part.names;
        let out = make_dir(names, existing, "out");
        let deep = make_dir(names, out, "deep");
        let own = make_dir(names, deep, &format!("own-{number}"));
        text_file(names, own, "file", "own");
        text_file(names, deep, &format!("file-{number}"), "deep");
        text_file(names, ROOT, &format!("top-{number}"), "top");
        let linked = make_file(names, out, &format!("linked-{number}"));
        names.link((linked.inode.number, &linked.place), own, b"second", LATER).unwrap();
    }
    // Nothing is visible before the commit, and the other parts see nothing either.
    assert_eq!(tree(&*fixture.master()).len(), 2);
    assert_eq!(parts[0].names.lookup(ROOT, b"top-1").unwrap(), None);
    let record = fixture.commit_parts(batch, &parts.iter().collect::<Vec<_>>()).unwrap();
    // 2 directories of the first part, and of each part 1 directory and 5 names.
    assert!(
        matches!(&record.state, BatchState::Committed { entries: 20, conflicts } if conflicts.count == 0)
    );
    let mut expected = vec!["/ 755 3".to_owned(), "/existing/ 755 3".into(), "/existing/out/ 755 3".into()];
    expected.push("/existing/out/deep/ 755 5".into());
    for number in 0..3 {
        expected.push(format!("/top-{number} 644 1 top"));
        expected.push(format!("/existing/out/linked-{number} 644 2 "));
        expected.push(format!("/existing/out/deep/file-{number} 644 1 deep"));
        expected.push(format!("/existing/out/deep/own-{number}/ 755 2"));
        expected.push(format!("/existing/out/deep/own-{number}/file 644 1 own"));
        expected.push(format!("/existing/out/deep/own-{number}/second 644 2 "));
    }
    expected.sort();
    assert_eq!(tree(&*fixture.master()), expected);
    let entries: Vec<u64> = parts
        .iter()
        .map(|part| match state_of(&fixture, part.record.number) {
            BatchState::Part { of, state: PartState::Committed { entries } } if of == batch => entries,
            state => panic!("{state:?}"),
        })
        .collect();
    assert_eq!(entries, [8, 6, 6]);
    fixture.check("after the commit");
}

#[test]
fn names_of_several_parts_are_in_conflict_in_the_order_of_the_parts() {
    let fixture = Fixture::new();
    let batch = fixture.begin_for_parts(false).number;
    let (first, second) = (fixture.join(batch).unwrap(), fixture.join(batch).unwrap());
    // The later part writes first, which makes no difference.
    let out = make_dir(&second.names, ROOT, "out");
    text_file(&second.names, out, "file", "second");
    text_file(&second.names, out, "dir", "second");
    make_dir(&second.names, out, "private");
    make_dir(&second.names, out, "opened");
    text_file(&second.names, ROOT, "top", "second");
    let out = make_dir(&first.names, ROOT, "out");
    text_file(&first.names, out, "file", "first");
    make_dir(&first.names, out, "dir");
    let private = NewEntry { permissions: 0o700, ..NEW };
    first.names.create(out, b"private", NewNode::Dir, private, NOW).unwrap();
    make_dir(&first.names, out, "opened");
    text_file(&first.names, ROOT, "top", "first");
    fixture.commit_parts(batch, &[&first, &second]).unwrap();
    let exists = |name: &str| (ConflictReason::Exists, name.to_owned());
    let found = reasons(&fixture, batch);
    assert_eq!(found, ["top", "dir", "file", "private"].map(exists));
    let kept = |name: &str, number: u64| format!("{name}.quell-conflict-{batch}-{number}");
    assert_eq!(
        tree(&*fixture.master()),
        sorted([
            "/ 755 3".to_owned(),
            "/out/ 755 6".into(),
            "/out/dir/ 755 2".into(),
            format!("/out/{} 644 1 second", kept("dir", 2)),
            "/out/file 644 1 first".into(),
            format!("/out/{} 644 1 second", kept("file", 3)),
            "/out/opened/ 755 2".into(),
            "/out/private/ 700 2".into(),
            format!("/out/{}/ 755 2", kept("private", 4)),
            "/top 644 1 first".into(),
            format!("/{} 644 1 second", kept("top", 1)),
        ])
    );
    fixture.check("after the commit");
}

#[test]
fn changes_of_entries_of_the_snapshot_follow_the_table_of_conflicts() {
    let fixture = Fixture::new();
    let master = fixture.master();
    for name in ["removed", "renamed", "written", "moved"] {
        text_file(&*master, ROOT, name, "old");
    }
    let dir = make_dir(&*master, ROOT, "dir");
    let batch = fixture.begin_for_parts(false).number;
    let (first, second) = (fixture.join(batch).unwrap(), fixture.join(batch).unwrap());
    let names = &first.names;
    names.remove(ROOT, b"removed", LATER).unwrap();
    names.rename((ROOT, b"renamed"), (ROOT, b"one"), Rename::Keep, LATER).unwrap();
    write(names, &names.lookup(ROOT, b"written").unwrap().unwrap(), b"first");
    names.rename((ROOT, b"moved"), (make_dir(names, ROOT, "new"), b"moved-1"), Rename::Keep, LATER).unwrap();
    names.remove_dir(ROOT, b"dir", LATER).unwrap();
    let names = &second.names;
    names.remove(ROOT, b"removed", LATER).unwrap();
    names.rename((ROOT, b"renamed"), (ROOT, b"two"), Rename::Keep, LATER).unwrap();
    write(names, &names.lookup(ROOT, b"written").unwrap().unwrap(), b"second");
    // A file of the snapshot gets a name in a directory that the first part has created as well.
    let new = make_dir(names, ROOT, "new");
    let moved = names.lookup(ROOT, b"moved").unwrap().unwrap();
    names.link((moved.inode.number, &moved.place), new, b"moved-2", LATER).unwrap();
    text_file(names, dir, "file", "second");
    fixture.commit_parts(batch, &[&first, &second]).unwrap();
    let found: BTreeSet<String> = reasons(&fixture, batch).into_iter().map(|(_, name)| name).collect();
    assert_eq!(found, ["file", "removed", "renamed", "written"].map(String::from).into());
    let lines = tree(&*fixture.master());
    let expected = [
        "/new/ 755 2",
        "/new/moved-1 644 2 old",
        "/new/moved-2 644 2 old",
        "/one 644 1 old",
        "/written 644 1 first",
    ];
    for line in expected {
        assert!(lines.iter().any(|found| found == line), "{line}: {lines:#?}");
    }
    fixture.check("after the commit");
}

#[test]
fn a_directory_that_was_moved_below_a_later_one_is_not_merged() {
    let fixture = Fixture::new();
    let batch = fixture.begin_for_parts(false).number;
    let (first, second) = (fixture.join(batch).unwrap(), fixture.join(batch).unwrap());
    let out = make_dir(&first.names, ROOT, "out");
    make_dir(&first.names, out, "sub");
    let names = &second.names;
    // One of the names has no entry in the image, and the other one has an entry.
    for name in ["free", "sub"] {
        let early = make_dir(names, ROOT, name);
        text_file(names, early, "file", name);
    }
    let out = make_dir(names, ROOT, "out");
    for name in [b"free".as_slice(), b"sub"] {
        names.rename((ROOT, name), (out, name), Rename::Keep, LATER).unwrap();
    }
    fixture.commit_parts(batch, &[&first, &second]).unwrap();
    assert_eq!(reasons(&fixture, batch), [(ConflictReason::Exists, "sub".to_owned())]);
    assert_eq!(
        tree(&*fixture.master()),
        sorted([
            "/ 755 3".to_owned(),
            "/out/ 755 5".into(),
            "/out/free/ 755 2".into(),
            "/out/free/file 644 1 free".into(),
            "/out/sub/ 755 2".into(),
            format!("/out/sub.quell-conflict-{batch}-1/ 755 2"),
            format!("/out/sub.quell-conflict-{batch}-1/file 644 1 sub"),
        ])
    );
    fixture.check("after the commit");
}

#[test]
fn entries_whose_directory_is_removed_share_one_directory_of_the_batch() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let dir = make_dir(&*master, ROOT, "dir");
    let batch = fixture.begin_for_parts(false).number;
    let parts = [fixture.join(batch).unwrap(), fixture.join(batch).unwrap()];
    for part in &parts {
        text_file(&part.names, dir, "file", "kept");
    }
    master.remove_dir(ROOT, b"dir", LATER).unwrap();
    fixture.commit_parts(batch, &[&parts[0], &parts[1]]).unwrap();
    let kept =
        |number: u64| format!("/quell-conflicts-{batch}/file.quell-conflict-{batch}-{number} 644 1 kept");
    let dir = format!("/quell-conflicts-{batch}/ 700 2");
    assert_eq!(tree(&*master), ["/ 755 3".to_owned(), dir, kept(1), kept(2)]);
    fixture.check("after the commit");
}

#[test]
fn an_entry_in_conflict_gets_no_name_that_its_part_has_used() {
    let fixture = Fixture::new();
    let batch = fixture.begin_for_parts(false).number;
    let (first, second) = (fixture.join(batch).unwrap(), fixture.join(batch).unwrap());
    text_file(&first.names, make_dir(&first.names, ROOT, "out"), "file", "first");
    let out = make_dir(&second.names, ROOT, "out");
    text_file(&second.names, out, "file", "second");
    let used = format!("file.quell-conflict-{batch}-1");
    text_file(&second.names, out, &used, "used");
    fixture.commit_parts(batch, &[&first, &second]).unwrap();
    assert_eq!(
        tree(&*fixture.master()),
        sorted([
            "/ 755 3".to_owned(),
            "/out/ 755 2".into(),
            "/out/file 644 1 first".into(),
            format!("/out/{used} 644 1 used"),
            format!("/out/file.quell-conflict-{batch}-2 644 1 second"),
        ])
    );
    fixture.check("after the commit");
}

#[test]
fn a_directory_of_others_is_not_merged_with_one_of_a_part() {
    let fixture = Fixture::new();
    let batch = fixture.begin_for_parts(false).number;
    let part = fixture.join(batch).unwrap();
    make_dir(&part.names, ROOT, "out");
    make_dir(&*fixture.master(), ROOT, "out");
    fixture.commit_parts(batch, &[&part]).unwrap();
    assert_eq!(reasons(&fixture, batch), [(ConflictReason::Exists, "out".to_owned())]);
}

#[test]
fn an_atomic_batch_with_a_conflict_publishes_none_of_its_parts() {
    let fixture = Fixture::new();
    let batch = fixture.begin_for_parts(true).number;
    let parts = [fixture.join(batch).unwrap(), fixture.join(batch).unwrap()];
    for part in &parts {
        make_file(&part.names, ROOT, "file");
    }
    let refused = fixture.commit_parts(batch, &[&parts[0], &parts[1]]).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Busy);
    assert_eq!(tree(&*fixture.master()).len(), 1);
    // Without the second part, there is no conflict.
    fixture.primary.abort(parts[1].record.number).unwrap();
    fixture.commit_parts(batch, &[&parts[0]]).unwrap();
    assert_eq!(tree(&*fixture.master()).len(), 2);
    let state = BatchState::Part { of: batch, state: PartState::Aborted };
    assert_eq!(state_of(&fixture, parts[1].record.number), state);
}

#[test]
fn parts_join_and_end_only_with_their_batch() {
    let fixture = Fixture::new();
    let other = fixture.begin();
    let kind = |result: quell_vfs::Result<Open>| result.map(|_| ()).unwrap_err().kind;
    assert_eq!(kind(fixture.join(77)), ErrorKind::NotFound);
    assert_eq!(kind(fixture.join(other.record.number)), ErrorKind::InvalidInput);
    fixture.commit(&other).unwrap();
    let batch = fixture.begin_for_parts(false).number;
    let part = fixture.join(batch).unwrap();
    let number = part.record.number;
    assert_eq!(kind(fixture.join(number)), ErrorKind::InvalidInput);
    let caller = BatchCaller { uid: 5, gid: 5, groups: Vec::new() };
    let foreign = fixture.primary.join(NewPart { batch, name: String::new(), caller }).unwrap_err();
    assert_eq!(foreign.kind, ErrorKind::PermissionDenied);
    // A part is committed and submitted with its batch only.
    assert_eq!(fixture.commit(&part).unwrap_err().kind, ErrorKind::InvalidInput);
    assert_eq!(fixture.primary.submit(number).unwrap_err().kind, ErrorKind::InvalidInput);
    assert_eq!(fixture.begin_as(stores::USER, ROOT, false).map(|_| ()).unwrap_err().kind, ErrorKind::Busy);
    fixture.primary.submit(batch).unwrap();
    assert_eq!(kind(fixture.join(batch)), ErrorKind::InvalidInput);
    assert_eq!(fixture.primary.abort(number).unwrap_err().kind, ErrorKind::InvalidInput);
    fixture.primary.refuse(batch, "a reason").unwrap();
    fixture.primary.abort(batch).unwrap();
    assert_eq!(state_of(&fixture, number), BatchState::Part { of: batch, state: PartState::Aborted });
    // Without parts there are no changes.
    let empty = fixture.begin_for_parts(false).number;
    let record = fixture.commit_parts(empty, &[]).unwrap();
    assert!(matches!(record.state, BatchState::Committed { entries: 0, .. }));
    assert_eq!(fixture.primary.snapshots().unwrap(), []);
}

#[test]
fn a_part_that_joins_during_a_commit_is_not_lost() {
    let fixture = Fixture::new();
    let batch = fixture.begin_for_parts(false).number;
    let first = fixture.join(batch).unwrap();
    make_file(&first.names, ROOT, "first");
    let certificate = fixture.certificate(&first);
    let late = RwLock::new(None);
    let committed = fixture.primary.commit_with(&fixture.primary.lock_commit(batch), &|_, visit| {
        visit(&certificate, &*first.files)?;
        *late.write().unwrap() = Some(fixture.join(batch).unwrap());
        Ok(())
    });
    assert_eq!(committed.unwrap_err().kind, ErrorKind::Busy);
    let late = late.into_inner().unwrap().unwrap();
    make_file(&late.names, ROOT, "late");
    fixture.commit_parts(batch, &[&first, &late]).unwrap();
    assert_eq!(tree(&*fixture.master()).len(), 3);
}

/// Returns the operations of a part, which change no name of other parts except for directories of
/// the same attributes.
fn run_own(part: usize, number: usize, random: &mut Random, names: &dyn NameSpace) {
    let mut dir = ROOT;
    for _ in 0..random.below(4) {
        let name = *random.pick(&["a", "b", "c"]);
        dir = match names.lookup(dir, name.as_bytes()).unwrap() {
            Some(found) => found.inode.number,
            None => make_dir(names, dir, name),
        };
    }
    let own = |number: usize| format!("own-{part}-{number}").into_bytes();
    let old = own(random.below(number + 1));
    // The operation may be refused.
    let _ = match random.below(8) {
        0..=2 => {
            text_file(names, dir, &format!("own-{part}-{number}"), "text");
            Ok(())
        }
        3 => names.create(dir, &own(number), NewNode::Dir, NEW, NOW).map(drop),
        4 => names.remove(dir, &old, LATER).map(drop),
        5 => names.rename((dir, &old), (ROOT, &own(number)), Rename::Replace, LATER).map(drop),
        6 => names.rename((ROOT, &old), (dir, &own(number)), Rename::Replace, LATER).map(drop),
        _ => match names.lookup(dir, &old).unwrap() {
            Some(found) => {
                let change = InodeChange { permissions: Some(0o750), ..InodeChange::default() };
                names.change((found.inode.number, &found.place), &change, LATER).map(drop)
            }
            None => Ok(()),
        },
    };
}

#[test]
fn parts_without_common_names_have_the_result_of_their_execution_one_after_the_other() {
    for seed in 0..cases(60) {
        let mut fixture = Fixture::new();
        fixture.memory_bytes = 2000;
        let model = RwLock::new(Names(MemoryEntries::new(NEW, NOW).0));
        for names in [&*fixture.master(), &model] {
            make_dir(names, ROOT, "a");
        }
        let batch = fixture.begin_for_parts(false).number;
        let parts: Vec<Open> = (0..4).map(|_| fixture.join(batch).unwrap()).collect();
        for (number, part) in parts.iter().enumerate() {
            for names in [&part.names as &dyn NameSpace, &model] {
                let mut random = Random::new(seed * 10 + number as u64);
                (0..40).for_each(|operation| run_own(number, operation, &mut random, names));
            }
        }
        fixture.commit_parts(batch, &parts.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(reasons(&fixture, batch), [], "seed {seed}");
        assert_eq!(tree(&*fixture.master()), tree(&model), "seed {seed}");
        fixture.check(&format!("seed {seed}"));
    }
}

fn cases(default: u64) -> u64 {
    std::env::var("QUELL_HISTORIES").map_or(default, |text| text.parse().expect("a number"))
}

/// Returns the inode numbers of the files in all directories.
fn files_of(names: &dyn NameSpace) -> BTreeSet<u64> {
    let (mut files, mut dirs) = (BTreeSet::new(), vec![ROOT]);
    while let Some(dir) = dirs.pop() {
        let mut found = Vec::new();
        let visit = &mut |name: &[u8], number: u64, kind| {
            found.push((name.to_vec(), number, kind));
            true
        };
        names.list(dir, b"", visit).unwrap();
        for (_, number, kind) in found {
            match kind {
                quell_vfs::Kind::Dir => dirs.push(number),
                _ => drop(files.insert(number)),
            }
        }
    }
    files
}

#[test]
fn parts_in_conflict_with_each_other_and_with_others_leave_a_whole_tree() {
    let mut conflicts = 0;
    for seed in 0..cases(100) {
        let mut random = Random::new(seed);
        let mut fixture = Fixture::new();
        fixture.memory_bytes = if random.one_in(2) { 2000 } else { 1 << 20 };
        let master = fixture.master();
        for round in 0..4 {
            let text = format!("seed {seed}, round {round}");
            let batch = fixture.begin_for_parts(false).number;
            let parts: Vec<Open> = (0..3).map(|_| fixture.join(batch).unwrap()).collect();
            for _ in 0..random.below(100) {
                let names: &dyn NameSpace = match random.below(4) {
                    3 => &*master,
                    part => &parts[part].names,
                };
                // The operation may be refused.
                let _ = operation(&mut random).run(names);
            }
            let new: Vec<u64> = parts
                .iter()
                .flat_map(|part| {
                    let of_part = files_of(&part.names).into_iter();
                    of_part.filter(|number| part.record.inodes.contains(number)).collect::<Vec<_>>()
                })
                .collect();
            let committed = fixture.commit_parts(batch, &parts.iter().collect::<Vec<_>>());
            committed.unwrap_or_else(|error| panic!("{text}: {error}"));
            conflicts += fixture.conflicts_of(batch).len();
            fixture.check(&text);
            // Every file that a part has created is found in the image.
            let found = files_of(&*master);
            let lost: Vec<_> = new.iter().filter(|number| !found.contains(number)).collect();
            assert!(lost.is_empty(), "{text}: {lost:?} are lost");
        }
    }
    assert!(conflicts > 100, "{conflicts} conflicts");
}

/// Two parts with changes, and their certificates.
fn certified() -> (Fixture, u64, Vec<Open>, Vec<Certificate>) {
    let fixture = Fixture::new();
    let dir = make_dir(&*fixture.master(), ROOT, "dir");
    let batch = fixture.begin_for_parts(false).number;
    let parts: Vec<Open> = (0..2).map(|_| fixture.join(batch).unwrap()).collect();
    for part in &parts {
        let new = make_dir(&part.names, dir, "new");
        text_file(&part.names, new, &format!("file-{}", part.record.number), "text");
    }
    let certificates = parts.iter().map(|part| fixture.certificate(part)).collect();
    (fixture, batch, parts, certificates)
}

#[test]
fn a_certificate_is_valid_for_its_own_part_only() {
    let (fixture, batch, parts, honest) = certified();
    let before = tree(&*fixture.master());
    let both = [&parts[0], &parts[1]];
    // The certificate of the first part twice, and both certificates exchanged: with the tables of
    // the other part, and without.
    let twice = [honest[0].clone(), honest[0].clone()];
    let renumbered = |of: usize, number: u64| Certificate { batch: number, ..honest[of].clone() };
    let second = parts[1].record.number;
    for certificates in [
        twice,
        [honest[1].clone(), honest[0].clone()],
        [honest[0].clone(), renumbered(0, second)],
        [honest[0].clone(), renumbered(1, batch)],
        [renumbered(0, batch), honest[1].clone()],
    ] {
        let refused = fixture.commit_certified(batch, &both, &certificates).unwrap_err();
        assert!(
            matches!(refused.kind, ErrorKind::InvalidInput | ErrorKind::NotFound | ErrorKind::Damaged),
            "{refused}"
        );
        assert_eq!(tree(&*fixture.master()), before);
    }
    let stolen = fixture.primary.commit_with(&fixture.primary.lock_commit(batch), &|_, visit| {
        // The tables and the certificate of the first part are submitted for both parts.
        visit(&honest[0], &*parts[0].files)
    });
    assert_eq!(stolen.unwrap_err().kind, ErrorKind::InvalidInput);
    let renumbered = renumbered(0, second);
    let stolen = fixture.primary.commit_with(&fixture.primary.lock_commit(batch), &|number, visit| {
        visit(if number == second { &renumbered } else { &honest[0] }, &*parts[0].files)
    });
    assert_eq!(stolen.unwrap_err().kind, ErrorKind::InvalidInput);
    // The right certificates are accepted once, and are refused for a part of a later batch.
    fixture.commit_certified(batch, &both, &honest).unwrap();
    assert_eq!(fixture.commit_certified(batch, &both, &honest).unwrap_err().kind, ErrorKind::InvalidInput);
    let later = fixture.begin_for_parts(false).number;
    let replay = fixture.join(later).unwrap();
    let replayed = fixture
        .primary
        .commit_with(&fixture.primary.lock_commit(later), &|_, visit| visit(&honest[0], &*parts[0].files));
    assert_eq!(replayed.unwrap_err().kind, ErrorKind::InvalidInput);
    fixture.commit_parts(later, &[&replay]).unwrap();
}

#[test]
fn no_mutation_of_the_certificate_of_a_part_is_accepted() {
    const MUTATIONS: usize = 20_000;
    let (fixture, batch, parts, honest) = certified();
    let both = [&parts[0], &parts[1]];
    let encoded = honest[1].encode();
    let mut random = Random::new(17);
    let mut decoded = 0;
    for mutation in 0..MUTATIONS {
        let mut bytes = encoded.clone();
        for _ in 0..1 + random.below(3) {
            let at = 24 + random.below(bytes.len() - 24);
            bytes[at] ^= 1 << random.below(8);
        }
        let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[24..]);
        bytes[16..24].copy_from_slice(&checksum.to_le_bytes());
        let Ok(mutated) = Certificate::decode(&bytes) else { continue };
        if mutated == honest[1] {
            continue;
        }
        decoded += 1;
        let refused = fixture.commit_certified(batch, &both, &[honest[0].clone(), mutated.clone()]);
        assert!(refused.is_err(), "mutation {mutation}: {mutated:?}");
    }
    assert!(decoded > MUTATIONS / 10, "{decoded} decoded");
    fixture.commit_certified(batch, &both, &honest).unwrap();
    assert!(matches!(state_of(&fixture, batch), BatchState::Committed { .. }));
}
