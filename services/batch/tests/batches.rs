//! Batches from their beginning to their commit, on real files.

mod stores;

use quell_batch_service::{
    ConflictReason, Content, DataChange, DataFile, FileSize, InodeChange, NameSpace, NewNode, Place, ROOT,
};
use quell_vfs::{ErrorKind, Rename, Time};

use stores::{FILE, Fixture, LATER, NOW, content, make_dir, make_file, tree, write};

#[test]
fn a_batch_becomes_visible_as_a_whole() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let home = make_dir(&*master, ROOT, "home");
    make_file(&*master, home, "old");
    let batch = fixture.begin();
    let names = &batch.names;
    let out = make_dir(names, home, "out");
    for number in 0..1000 {
        let dir = make_dir(names, out, &format!("d{number}"));
        let file = make_file(names, dir, "file");
        write(names, &file, format!("content {number}").as_bytes());
    }
    names.rename((out, b"d7"), (home, b"moved"), Rename::Keep, LATER).unwrap();
    let place = make_file(names, out, "one");
    names.link((place.inode.number, &place.place), home, b"two", LATER).unwrap();
    names.remove(home, b"old", LATER).unwrap();
    let expected = tree(names);
    assert_eq!(tree(&*master), ["/ 755 3", "/home/ 755 2", "/home/old 644 1 "]);
    assert_eq!(fixture.conflicts(&batch), []);
    assert_eq!(tree(&*master), expected);
    // Synchronous operations continue in the directories of the batch.
    make_file(&*master, out, "later");
    master.rename((out, b"d9"), (ROOT, b"d9"), Rename::Keep, LATER).unwrap();
    assert_eq!(tree(&*master).len(), expected.len() + 1);
}

#[test]
fn a_batch_sets_the_times_of_files_of_others_to_the_present_time() {
    const PRESENT: Time = Time { seconds: 5000, nanoseconds: 7 };
    const OTHER: u32 = 2000;
    let fixture = Fixture::new();
    let fixture = Fixture { primary: fixture.primary.with_clock(|| PRESENT), ..fixture };
    let master = fixture.master();
    let of_other = |permissions| quell_vfs::NewEntry { permissions, uid: OTHER, gid: OTHER };
    let shared = master.create(ROOT, b"shared", NewNode::Dir, of_other(0o777), NOW).unwrap().inode.number;
    make_file(&*master, shared, "own");
    for name in ["written", "touched", "conflict"] {
        let theirs = master.create(shared, name.as_bytes(), NewNode::File, of_other(0o666), NOW).unwrap();
        write(&*master, &theirs, name.as_bytes());
    }
    let batch = fixture.begin();
    let names = &batch.names;
    let future = Time { seconds: 1 << 40, nanoseconds: 0 };
    let past = Time { seconds: 300, nanoseconds: 0 };
    let change = |name: &str, change: InodeChange, now| {
        let found = names.lookup(shared, name.as_bytes()).unwrap().unwrap();
        names.change((found.inode.number, &found.place), &change, now).unwrap();
    };
    let touch = |time: Time| InodeChange { modified: Some(time.into()), ..InodeChange::default() };
    change("written", content(b"by the batch"), future);
    change("touched", touch(past), past);
    change("conflict", content(b"mine"), future);
    change("own", touch(future), future);
    let found = master.lookup(shared, b"conflict").unwrap().unwrap();
    write(&*master, &found, b"theirs");
    // A new name changes the times of the directory.
    names.create(shared, b"new", NewNode::File, FILE, future).unwrap();
    assert_eq!(fixture.conflicts(&batch).len(), 1);
    let times = |name: &str| {
        let inode = master.lookup(shared, name.as_bytes()).unwrap().unwrap().inode;
        (inode.modified, inode.changed)
    };
    let present = PRESENT.into();
    assert_eq!(times("written"), (present, present));
    assert_eq!(times("touched").0, present);
    assert_eq!(times("conflict").0, present);
    let dir = master.find(shared, &Place::Dir(shared)).unwrap().inode;
    assert_eq!((dir.modified, dir.changed), (present, present));
    // A file of the batch has the modification time that the batch has stated, but the time of the
    // last change of its inode is not in the future.
    assert_eq!(times("own"), (future.into(), present));
}

#[test]
fn open_batches_do_not_overlap() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let (a, b) = (make_dir(&*master, ROOT, "a"), make_dir(&*master, ROOT, "b"));
    let below = make_dir(&*master, a, "below");
    let batch = fixture.begin_as(1000, a, false).unwrap();
    for subtree in [ROOT, a, below] {
        assert_eq!(fixture.begin_as(1000, subtree, false).err().unwrap().kind, ErrorKind::Busy);
    }
    let other = fixture.begin_as(1000, b, false).unwrap();
    // A batch changes its subtree only.
    make_file(&other.names, a, "outside");
    assert_eq!(fixture.commit(&other).unwrap_err().kind, ErrorKind::InvalidInput);
    fixture.primary.abort(other.record.number).unwrap();
    fixture.commit(&batch).unwrap();
    fixture.begin().names.create(ROOT, b"f", NewNode::File, FILE, NOW).unwrap();
}

#[test]
fn an_atomic_batch_with_a_conflict_stays_open() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let batch = fixture.begin_as(1000, ROOT, true).unwrap();
    make_file(&batch.names, ROOT, "same");
    make_file(&batch.names, ROOT, "other");
    make_file(&*master, ROOT, "same");
    assert_eq!(fixture.commit(&batch).unwrap_err().kind, ErrorKind::Busy);
    assert_eq!(tree(&*master), ["/ 755 2", "/same 644 1 "]);
    master.remove(ROOT, b"same", LATER).unwrap();
    fixture.commit(&batch).unwrap();
    assert_eq!(tree(&*master), ["/ 755 2", "/other 644 1 ", "/same 644 1 "]);
    // A batch is committed once.
    assert_eq!(fixture.commit(&batch).unwrap_err().kind, ErrorKind::InvalidInput);
}

#[test]
fn entries_in_conflict_are_kept_under_other_names() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let gone = make_dir(&*master, ROOT, "gone");
    let batch = fixture.begin();
    let dir = make_dir(&batch.names, ROOT, "same");
    make_file(&batch.names, dir, "inside");
    make_file(&batch.names, gone, "orphan");
    make_file(&*master, ROOT, "same");
    master.remove_dir(ROOT, b"gone", LATER).unwrap();
    let conflicts = fixture.conflicts(&batch);
    let reasons: Vec<_> =
        conflicts.iter().map(|conflict| (conflict.name.as_slice(), conflict.reason)).collect();
    let expected = [(&b"same"[..], ConflictReason::Exists), (b"orphan", ConflictReason::DirectoryRemoved)];
    assert_eq!(reasons, expected);
    let expected = [
        "/ 755 4",
        "/quell-conflicts-1/ 700 2",
        "/quell-conflicts-1/orphan.quell-conflict-1-2 644 1 ",
        "/same 644 1 ",
        "/same.quell-conflict-1-1/ 755 2",
        "/same.quell-conflict-1-1/inside 644 1 ",
    ];
    assert_eq!(tree(&*master), expected);
}

#[test]
fn tables_are_merged_and_removed_when_no_snapshot_has_them() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let tables = || std::fs::read_dir(fixture.directory.path().join("image")).unwrap().count();
    let old = fixture.begin_as(1000, make_dir(&*master, ROOT, "old"), false).unwrap();
    let dir = make_dir(&*master, ROOT, "dir");
    let mut most = 0;
    for number in 0..60 {
        let batch = fixture.begin_as(1000, dir, false).unwrap();
        make_file(&batch.names, dir, &format!("file{number}"));
        if number % 3 == 2 {
            batch.names.remove(dir, format!("file{}", number - 1).as_bytes(), LATER).unwrap();
        }
        assert_eq!(fixture.conflicts(&batch), []);
        most = most.max(tables());
    }
    assert!(most < 30, "{most} tables");
    let expected = tree(&*master);
    assert_eq!(expected.len(), 3 + 40);
    // The snapshot of the batch that is open all the time still has its tables.
    make_file(&old.names, old.record.subtree, "late");
    assert_eq!(fixture.conflicts(&old), []);
    assert_eq!(tree(&*master).len(), expected.len() + 1);
}

#[test]
fn the_owner_of_a_directory_may_change_its_mode_and_then_its_names() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let dir = make_dir(&*master, ROOT, "dir");
    make_file(&*master, dir, "old");
    let chmod = |names: &dyn NameSpace, mode| {
        let change = InodeChange { permissions: Some(mode), ..InodeChange::default() };
        names.change((dir, &Place::Dir(dir)), &change, LATER).unwrap();
    };
    chmod(&*master, 0o555);
    let batch = fixture.begin();
    chmod(&batch.names, 0o755);
    make_file(&batch.names, dir, "new");
    batch.names.remove(dir, b"old", LATER).unwrap();
    chmod(&batch.names, 0o555);
    assert_eq!(fixture.conflicts(&batch), []);
    assert_eq!(tree(&*master), ["/ 755 3", "/dir/ 555 2", "/dir/new 644 1 "]);
}

#[test]
fn many_large_inodes_can_be_changed_in_one_batch() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let dir = make_dir(&*master, ROOT, "dir");
    let names: Vec<String> = (0..1000).map(|number| format!("file{number}")).collect();
    let bytes = vec![b'x'; 40_000];
    let write_all = |to: &dyn NameSpace| {
        for name in &names {
            write(to, &make_file(to, dir, name), &bytes);
        }
    };
    write_all(&*master);
    let batch = fixture.begin();
    for name in &names {
        batch.names.remove(dir, name.as_bytes(), LATER).unwrap();
    }
    write_all(&batch.names);
    assert_eq!(fixture.conflicts(&batch), []);
    // Then their attributes are changed.
    let batch = fixture.begin();
    for name in &names {
        let file = batch.names.lookup(dir, name.as_bytes()).unwrap().unwrap();
        let change = InodeChange { permissions: Some(0o600), ..InodeChange::default() };
        batch.names.change((file.inode.number, &file.place), &change, LATER).unwrap();
    }
    assert_eq!(fixture.conflicts(&batch), []);
    for name in &names {
        let file = master.lookup(dir, name.as_bytes()).unwrap().unwrap();
        assert_eq!((file.inode.mode & 0o777, file.inode.size_bytes), (0o600, 40_000));
    }
}

#[test]
fn a_data_file_that_others_have_written_to_is_not_replaced() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let file = make_file(&*master, ROOT, "file");
    let replace = |names: &dyn NameSpace, expected, batch, time| {
        let new = Content::File(DataFile { batch, inode: file.inode.number, version: 0 });
        let size = FileSize::Exactly(100_000);
        let data = Some(DataChange::Replace { expected, new, size });
        let change = InodeChange { data, ..InodeChange::default() };
        names.change((file.inode.number, &file.place), &change, time).unwrap();
    };
    replace(&*master, Content::Empty, 0, NOW);
    let batch = fixture.begin();
    let shared = DataFile { batch: 0, inode: file.inode.number, version: 0 };
    replace(&batch.names, Content::File(shared), batch.record.number, LATER);
    // Others write to the data file in place.
    let data = Some(DataChange::File(shared, FileSize::GrownTo(100_000)));
    let change = InodeChange { data, ..InodeChange::default() };
    master.change((file.inode.number, &file.place), &change, LATER).unwrap();
    let reasons: Vec<_> = fixture.conflicts(&batch).iter().map(|conflict| conflict.reason).collect();
    assert_eq!(reasons, [ConflictReason::AttributeChanged]);
    // The new content is kept in a new file.
    let kept = master.lookup(ROOT, b"file.quell-conflict-1-1").unwrap().unwrap().inode;
    let mine = DataFile { batch: batch.record.number, inode: file.inode.number, version: 0 };
    assert_eq!((kept.content, kept.size_bytes), (Content::File(mine), 100_000));
    assert_ne!(kept.number, file.inode.number);
    let found = master.lookup(ROOT, b"file").unwrap().unwrap();
    assert_eq!(found.inode.content, Content::File(shared));
}

#[test]
fn more_than_100_000_conflicts_are_listed() {
    const FILES: usize = 110_000;
    let fixture = Fixture::new();
    let master = fixture.master();
    let dir = make_dir(&*master, ROOT, "gone");
    let batch = fixture.begin();
    for number in 0..FILES {
        make_file(&batch.names, dir, &number.to_string());
    }
    master.remove_dir(ROOT, b"gone", LATER).unwrap();
    let conflicts = fixture.conflicts(&batch);
    assert_eq!(conflicts.len(), FILES);
    assert!(conflicts.iter().all(|conflict| conflict.reason == ConflictReason::DirectoryRemoved));
    let kept = master.lookup(ROOT, b"quell-conflicts-1").unwrap().expect("the directory").inode.number;
    let mut found = 0;
    let mut visit = |_: &[u8], _, _| {
        found += 1;
        true
    };
    master.list(kept, b"", &mut visit).unwrap();
    assert_eq!(found, FILES);
}

#[test]
fn a_long_chain_of_renames_is_refused_as_a_whole() {
    const FILES: usize = 2_000;
    let fixture = Fixture::new();
    let master = fixture.master();
    let dir = make_dir(&*master, ROOT, "dir");
    let name = |number: usize| format!("f{number}");
    for number in 0..FILES {
        make_file(&*master, dir, &name(number));
    }
    let batch = fixture.begin();
    make_file(&batch.names, dir, "new");
    for number in (0..FILES).rev() {
        let (from, to) = (name(number), name(number + 1));
        batch.names.rename((dir, from.as_bytes()), (dir, to.as_bytes()), Rename::Keep, LATER).unwrap();
    }
    // The last rename cannot be made, so none of the others can.
    make_file(&*master, dir, &name(FILES));
    let conflicts = fixture.conflicts(&batch);
    assert_eq!(conflicts.len(), FILES);
    assert!(conflicts.iter().all(|conflict| conflict.reason == ConflictReason::Exists));
    assert_eq!(tree(&*master).len(), 2 + FILES + 2);
    assert!(master.lookup(dir, b"new").unwrap().is_some());
}

#[test]
fn only_one_move_of_each_cycle_is_refused() {
    let fixture = Fixture::new();
    let master = fixture.master();
    // The moved directory `first` is above the cycle of `second` and `third`.
    let [_first, second, third] = ["first", "second", "third"].map(|name| make_dir(&*master, ROOT, name));
    let [fourth, fifth] = ["fourth", "fifth"].map(|name| make_dir(&*master, ROOT, name));
    let batch = fixture.begin();
    for (name, to) in [("first", second), ("second", third), ("fourth", fifth)] {
        batch.names.rename((ROOT, name.as_bytes()), (to, name.as_bytes()), Rename::Keep, LATER).unwrap();
    }
    for (name, to) in [("third", second), ("fifth", fourth)] {
        master.rename((ROOT, name.as_bytes()), (to, name.as_bytes()), Rename::Keep, LATER).unwrap();
    }
    let conflicts = fixture.conflicts(&batch);
    let refused: Vec<_> =
        conflicts.iter().map(|conflict| (conflict.name.as_slice(), conflict.reason)).collect();
    assert_eq!(refused, [(&b"second"[..], ConflictReason::Cycle), (b"fourth", ConflictReason::Cycle)]);
    let expected = [
        "/ 755 4",
        "/fourth/ 755 3",
        "/fourth/fifth/ 755 2",
        "/second/ 755 4",
        "/second/first/ 755 2",
        "/second/third/ 755 2",
    ];
    assert_eq!(tree(&*master), expected);
}

#[test]
fn a_chain_of_directories_is_not_reversed_if_its_end_cannot_be_moved() {
    const DIRS: usize = 200;
    let fixture = Fixture::new();
    let master = fixture.master();
    let name = |number: usize| format!("d{number}");
    let mut dirs = vec![make_dir(&*master, ROOT, "top")];
    for number in 0..DIRS {
        dirs.push(make_dir(&*master, *dirs.last().unwrap(), &name(number)));
    }
    let batch = fixture.begin();
    // The deepest directory becomes the highest one.
    for number in (0..DIRS).rev() {
        let to = if number == DIRS - 1 { dirs[0] } else { dirs[number + 2] };
        let name = name(number);
        let from = dirs[number];
        batch.names.rename((from, name.as_bytes()), (to, name.as_bytes()), Rename::Keep, LATER).unwrap();
    }
    // The deepest directory cannot be moved, and then none of the others can.
    make_file(&*master, dirs[0], &name(DIRS - 1));
    let before = tree(&*master);
    let conflicts = fixture.conflicts(&batch);
    assert_eq!(conflicts.len(), DIRS);
    assert_eq!(tree(&*master), before);
    fixture.check("a reversed chain");
}

#[test]
fn other_users_cannot_use_all_names_for_an_entry_in_conflict() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let batch = fixture.begin();
    make_file(&batch.names, ROOT, "same");
    make_file(&*master, ROOT, "same");
    for number in 0..200 {
        make_file(&*master, ROOT, &format!("same.quell-conflict-{}-{number}", batch.record.number));
    }
    let conflicts = fixture.conflicts(&batch);
    let [conflict] = &conflicts[..] else { panic!("{conflicts:?}") };
    let kept = conflict.kept_as.as_ref().unwrap();
    assert!(kept.name.starts_with(b"same.quell-conflict-"), "{kept:?}");
    assert_eq!(master.lookup(ROOT, &kept.name).unwrap().unwrap().inode.number, kept.inode);
}

#[test]
fn the_conflicts_of_all_parts_are_listed_from_each_position() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let batch = fixture.begin_for_parts(false);
    let parts = [(); 3].map(|()| fixture.join(batch.number).unwrap());
    for (at, part) in parts.iter().enumerate() {
        for number in 0..3 {
            make_file(&part.names, ROOT, &format!("{at}-{number}"));
            make_file(&*master, ROOT, &format!("{at}-{number}"));
        }
    }
    fixture.commit_parts(batch.number, &parts.each_ref()).unwrap();
    let all = fixture.conflicts_of(batch.number);
    assert_eq!(all.len(), 9);
    for from in 0..=10 {
        let mut found = Vec::new();
        let visit = &mut |conflict| {
            found.push(conflict);
            Ok(found.len() < 4)
        };
        fixture.primary.conflicts_from(batch.number, from, visit).unwrap();
        let expected: Vec<_> = all.iter().skip(from as usize).take(4).cloned().collect();
        assert_eq!(found, expected, "from {from}");
    }
}

#[test]
fn synchronous_operations_continue_while_batches_are_committed_and_tables_merged() {
    const FILES: usize = 500;
    let fixture = Fixture::new();
    let master = fixture.master();
    let (dir, other) = (make_dir(&*master, ROOT, "dir"), make_dir(&*master, ROOT, "other"));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for number in 0..FILES {
                make_file(&*master, other, &format!("file{number}"));
                if number % 2 == 1 {
                    master.remove(other, format!("file{}", number - 1).as_bytes(), LATER).unwrap();
                }
            }
        });
        for number in 0..40 {
            let batch = fixture.begin_as(1000, dir, false).unwrap();
            make_file(&batch.names, dir, &format!("file{number}"));
            assert_eq!(fixture.conflicts(&batch), []);
        }
    });
    assert_eq!(tree(&*master).len(), 3 + 40 + FILES / 2);
    fixture.check("merges and other operations");
}
