//! The limits of the use of a store: an operation or a commit that would exceed one changes
//! nothing.

mod stores;

use std::fs::File;
use std::sync::Arc;

use quell_batch_service::{
    BatchState, Image, InodeChange, LimitChange, NameSpace, NewNode, NumberChange, Primary, Quota,
    QuotaSubject, ROOT, TableDir, UNLIMITED, Usage,
};
use quell_kv::MemoryStore;
use quell_testkit::Random;
use quell_vfs::{ErrorKind, NewEntry, Rename, Result};

use stores::operations::operation;
use stores::{FILE, Fixture, LATER, NEW, NOW, Open, USER, content, make_dir, make_file, tables, tree};

const OTHER: u32 = USER + 1;
const OF_USER: QuotaSubject = QuotaSubject::User(USER);

fn set(primary: &Primary, subject: QuotaSubject, inodes: NumberChange, bytes: NumberChange) {
    primary.set_limit(subject, LimitChange { inodes, bytes }).unwrap();
}

fn limit_inodes(primary: &Primary, subject: QuotaSubject, inodes: u64) {
    set(primary, subject, NumberChange::Set(inodes), NumberChange::Keep);
}

fn limit_bytes(primary: &Primary, subject: QuotaSubject, bytes: u64) {
    set(primary, subject, NumberChange::Keep, NumberChange::Set(bytes));
}

fn usage_of(primary: &Primary, subject: QuotaSubject) -> Usage {
    let quotas = primary.quotas().unwrap();
    quotas.iter().find(|quota| quota.subject == subject).map_or(Usage::default(), |quota| quota.usage)
}

fn create(names: &dyn NameSpace, name: &str, uid: u32) -> Result<()> {
    names.create(ROOT, name.as_bytes(), NewNode::File, NewEntry { uid, ..FILE }, NOW).map(drop)
}

fn assert_refused<T: std::fmt::Debug>(result: Result<T>, reason: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Quota, "{error}");
    assert!(error.to_string().contains(reason), "{error}");
}

#[test]
fn an_operation_that_would_exceed_a_limit_changes_nothing() {
    let fixture = Fixture::new();
    let (primary, master) = (&fixture.primary, fixture.master());
    let file = make_file(&*master, ROOT, "file");
    limit_inodes(primary, OF_USER, 3);
    limit_bytes(primary, OF_USER, 10);
    create(&*master, "third", USER).unwrap();
    let before = tree(&*master);
    let at_limit = "user 1000 would have 4 inodes; the limit is 3";
    assert_refused(create(&*master, "fourth", USER), at_limit);
    assert_refused(master.create(ROOT, b"dir", NewNode::Dir, NEW, NOW), at_limit);
    let link = NewNode::Symlink(b"target".to_vec());
    assert_refused(master.create(ROOT, b"symlink", link, NEW, NOW), at_limit);
    let node = (file.inode.number, &file.place);
    assert_refused(
        master.change(node, &content(&[7; 11]), LATER),
        "user 1000 would have 11 bytes; the limit is 10",
    );
    assert_eq!(tree(&*master), before);
    master.change(node, &content(&[7; 10]), LATER).unwrap();
    // Another name of a file, other attributes and another user do not count.
    master.link(node, ROOT, b"link", LATER).unwrap();
    master.rename((ROOT, b"third"), (ROOT, b"renamed"), Rename::Replace, LATER).unwrap();
    create(&*master, "of another user", OTHER).unwrap();
    // A rename that replaces a file, and a removal, reduce the use.
    master.rename((ROOT, b"link"), (ROOT, b"renamed"), Rename::Replace, LATER).unwrap();
    create(&*master, "third", USER).unwrap();
    assert_refused(create(&*master, "fourth", USER), at_limit);
    master.remove(ROOT, b"third", LATER).unwrap();
    create(&*master, "third", USER).unwrap();
    fixture.check("at the end");
}

#[test]
fn a_change_of_the_owner_counts_for_the_new_owner() {
    let fixture = Fixture::new();
    let (primary, master) = (&fixture.primary, fixture.master());
    let file = make_file(&*master, ROOT, "file");
    stores::write(&*master, &file, b"seven b");
    let give = |uid| {
        let change = InodeChange { uid: Some(uid), ..InodeChange::default() };
        let found = master.lookup(ROOT, b"file").unwrap().unwrap();
        master.change((found.inode.number, &found.place), &change, LATER)
    };
    limit_bytes(primary, QuotaSubject::User(OTHER), 6);
    assert_refused(give(OTHER), "user 1001 would have 7 bytes; the limit is 6");
    limit_bytes(primary, QuotaSubject::User(OTHER), 7);
    limit_inodes(primary, OF_USER, 0);
    give(OTHER).unwrap();
    assert_refused(give(USER), "user 1000 would have 2 inodes; the limit is 0");
    // No limit of users applies to root.
    limit_inodes(primary, QuotaSubject::EachUser, 0);
    give(0).unwrap();
}

#[test]
fn below_a_limit_that_was_lowered_only_reductions_are_possible() {
    let fixture = Fixture::new();
    let (primary, master) = (&fixture.primary, fixture.master());
    let file = make_file(&*master, ROOT, "file");
    make_file(&*master, ROOT, "second");
    stores::write(&*master, &file, &[7; 20]);
    limit_inodes(primary, OF_USER, 1);
    limit_bytes(primary, OF_USER, 5);
    let node = (file.inode.number, &file.place);
    let write = |bytes: usize| master.change(node, &content(&vec![7; bytes]), LATER);
    assert_refused(write(21), "would have 21 bytes");
    write(20).unwrap();
    write(19).unwrap();
    assert_refused(write(20), "would have 20 bytes");
    assert_refused(create(&*master, "third", USER), "would have 4 inodes");
    master.remove(ROOT, b"second", LATER).unwrap();
    assert_refused(create(&*master, "second", USER), "would have 3 inodes");
    write(0).unwrap();
}

#[test]
fn a_limit_of_a_user_replaces_the_limit_for_each_user() {
    let fixture = Fixture::new();
    let (primary, master) = (&fixture.primary, fixture.master());
    limit_inodes(primary, QuotaSubject::EachUser, 1);
    let uids =
        |names: &dyn NameSpace, name: &str| [USER, OTHER, 0].map(|uid| create(names, name, uid).is_ok());
    assert_refused(create(&*master, "a", USER), "the limit is 1");
    create(&*master, "a", OTHER).unwrap();
    assert_refused(create(&*master, "b", OTHER), "the limit is 1");
    create(&*master, "b", 0).unwrap();
    create(&*master, "c", 0).unwrap();
    // A limit of the bytes leaves the number of inodes to the limit for each user.
    limit_bytes(primary, QuotaSubject::User(OTHER), 9);
    assert_refused(create(&*master, "d", OTHER), "the limit is 1");
    limit_inodes(primary, QuotaSubject::User(OTHER), 2);
    create(&*master, "d", OTHER).unwrap();
    assert_refused(create(&*master, "e", OTHER), "the limit is 2");
    set(primary, OF_USER, NumberChange::Set(UNLIMITED), NumberChange::Keep);
    create(&*master, "e", USER).unwrap();
    set(primary, OF_USER, NumberChange::Unset, NumberChange::Keep);
    assert_refused(create(&*master, "f", USER), "the limit is 1");
    assert_eq!(uids(&*master, "g"), [false, false, true]);
    // The limit of the whole store applies to all users.
    let used = usage_of(primary, QuotaSubject::Store).inodes;
    assert_eq!(used, 7);
    limit_inodes(primary, QuotaSubject::Store, used);
    set(primary, QuotaSubject::EachUser, NumberChange::Unset, NumberChange::Unset);
    assert_refused(create(&*master, "h", 0), "the store would have 8 inodes; the limit is 7");
    assert_eq!(uids(&*master, "h"), [false, false, false]);
    set(primary, QuotaSubject::Store, NumberChange::Set(UNLIMITED), NumberChange::Keep);
    create(&*master, "h", 0).unwrap();
    create(&*master, "i", USER).unwrap();
    assert_refused(create(&*master, "j", OTHER), "the limit is 2");
    let refused = primary.set_limit(QuotaSubject::User(0), LimitChange::default()).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidInput, "{refused}");
}

#[test]
fn a_batch_beyond_a_limit_stays_open() {
    let fixture = Fixture::new();
    let (primary, master) = (&fixture.primary, fixture.master());
    let dir = make_dir(&*master, ROOT, "dir");
    limit_inodes(primary, OF_USER, 6);
    let batch = fixture.begin();
    for file in 0..5 {
        let file = make_file(&batch.names, dir, &format!("file-{file}"));
        stores::write(&batch.names, &file, b"seven b");
    }
    let before = tree(&*master);
    assert_refused(fixture.commit(&batch), "user 1000 would have 7 inodes; the limit is 6");
    assert_eq!(
        (tree(&*master), &primary.batch(batch.record.number).unwrap().state),
        (before, &BatchState::Open)
    );
    limit_inodes(primary, OF_USER, 7);
    limit_bytes(primary, QuotaSubject::Store, 34);
    assert_refused(fixture.commit(&batch), "the store would have 35 bytes; the limit is 34");
    limit_bytes(primary, QuotaSubject::Store, 35);
    fixture.commit(&batch).unwrap();
    assert_eq!(usage_of(primary, OF_USER), Usage { inodes: 7, bytes: 35 });
    // A batch that reduces the use is committed above a lowered limit.
    limit_inodes(primary, OF_USER, 1);
    let batch = fixture.begin();
    batch.names.remove(dir, b"file-0", LATER).unwrap();
    batch.names.remove(dir, b"file-1", LATER).unwrap();
    make_file(&batch.names, dir, "new");
    fixture.commit(&batch).unwrap();
    assert_eq!(usage_of(primary, OF_USER), Usage { inodes: 6, bytes: 21 });
    fixture.check("at the end");
}

#[test]
fn the_parts_of_a_batch_count_together() {
    let fixture = Fixture::new();
    limit_inodes(&fixture.primary, OF_USER, 4);
    let batch = fixture.begin_for_parts(false).number;
    let parts: Vec<Open> = (0..2).map(|_| fixture.join(batch).unwrap()).collect();
    for (part, open) in parts.iter().enumerate() {
        for file in 0..2 {
            make_file(&open.names, ROOT, &format!("file-{part}-{file}"));
        }
    }
    let parts: Vec<&Open> = parts.iter().collect();
    assert_refused(fixture.commit_parts(batch, &parts), "would have 5 inodes; the limit is 4");
    limit_inodes(&fixture.primary, OF_USER, 5);
    fixture.commit_parts(batch, &parts).unwrap();
}

#[test]
fn a_prepared_batch_counts_until_it_is_rolled_back_and_can_always_be_published() {
    let fixture = Fixture::new();
    let (primary, master) = (&fixture.primary, fixture.master());
    let [run, other] = ["run", "other"].map(|name| make_dir(&*master, ROOT, name));
    limit_inodes(primary, OF_USER, 5);
    limit_inodes(primary, QuotaSubject::Store, 6);
    let batch = fixture.begin_as(USER, run, false).unwrap();
    for name in ["a", "b", "c"] {
        make_file(&batch.names, run, name);
    }
    assert_refused(fixture.prepare(&batch, "one"), "would have 6 inodes; the limit is 5");
    batch.names.remove(run, b"c", LATER).unwrap();
    fixture.prepare(&batch, "one").unwrap();
    let create_beside = || master.create(other, b"mine", NewNode::File, FILE, NOW).map(drop);
    assert_refused(create_beside(), "user 1000 would have 6 inodes; the limit is 5");
    master.create(other, b"of another user", NewNode::File, NewEntry { uid: OTHER, ..FILE }, NOW).unwrap();
    let second = master.create(other, b"second", NewNode::File, NewEntry { uid: OTHER, ..FILE }, NOW);
    assert_refused(second, "the store would have 7 inodes; the limit is 6");
    fixture.roll_back(&batch, "one").unwrap();
    create_beside().unwrap();
    master.remove(other, b"mine", LATER).unwrap();
    fixture.prepare(&batch, "two").unwrap();
    // The transaction of its marker may be committed, so a lower limit does not refuse it.
    limit_inodes(primary, OF_USER, 1);
    fixture.publish(&batch, "two").unwrap();
    assert_eq!(usage_of(primary, OF_USER).inodes, 5);
    assert_refused(create_beside(), "user 1000 would have 6 inodes; the limit is 1");
    fixture.check("at the end");
}

#[test]
fn limits_and_the_use_of_prepared_batches_are_there_after_the_store_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(MemoryStore::new());
    Image::create(&*store, 7, NEW, NOW).unwrap();
    let image = directory.path().join("image");
    let open = |store: &Arc<MemoryStore>| Primary::open(store.clone(), Arc::new(tables(&image))).unwrap();
    let fixture =
        Fixture { primary: open(&store), directory: tempfile::tempdir().unwrap(), ..Fixture::new() };
    let [run, other] = ["run", "other"].map(|name| make_dir(&*fixture.master(), ROOT, name));
    let batch = fixture.begin_as(USER, run, false).unwrap();
    make_file(&batch.names, run, "new");
    fixture.prepare(&batch, "one").unwrap();
    limit_inodes(&fixture.primary, OF_USER, 4);
    limit_bytes(&fixture.primary, QuotaSubject::EachUser, 100);
    set(&fixture.primary, QuotaSubject::User(OTHER), NumberChange::Keep, NumberChange::Set(UNLIMITED));
    let quotas = fixture.primary.quotas().unwrap();
    drop(fixture);
    let lost = Arc::new(MemoryStore::new());
    Image::rebuild(&*lost, &TableDir::new(File::open(&image).unwrap().into())).unwrap();
    let limits = |quotas: &[Quota]| -> Vec<_> {
        quotas.iter().map(|quota| (quota.subject, quota.limit.inodes, quota.limit.bytes)).collect()
    };
    let primary = open(&store);
    assert_eq!(primary.quotas().unwrap(), quotas);
    let names = primary.name_space();
    let refused = names.create(other, b"mine", NewNode::File, FILE, NOW);
    assert_refused(refused, "user 1000 would have 5 inodes; the limit is 4");
    drop((names, primary));
    // The copy of the description has the limits, and not the use of prepared batches.
    let primary = open(&lost);
    assert_eq!(limits(&primary.quotas().unwrap()), limits(&quotas));
    assert_eq!(usage_of(&primary, OF_USER).inodes, 3);
}

#[test]
fn random_operations_and_batches_never_exceed_a_limit_that_they_did_not_exceed_before() {
    let (mut done, mut refused, mut refused_batches) = (0, 0, 0);
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let fixture = Fixture::new();
        let (primary, master) = (&fixture.primary, fixture.master());
        for round in 0..8 {
            let (inodes, bytes) = (4 + random.below(20) as u64, random.below(200) as u64);
            let subject = if random.one_in(2) { OF_USER } else { QuotaSubject::Store };
            set(primary, OF_USER, NumberChange::Unset, NumberChange::Unset);
            set(primary, QuotaSubject::Store, NumberChange::Unset, NumberChange::Unset);
            set(primary, subject, NumberChange::Set(inodes), NumberChange::Set(bytes));
            let exceeds = |before: Usage, after: Usage| {
                after.inodes > before.inodes.max(inodes) || after.bytes > before.bytes.max(bytes.into())
            };
            let text = format!("seed {seed}, round {round}");
            let before = usage_of(primary, OF_USER);
            if random.one_in(2) {
                let batch = fixture.begin();
                for _ in 0..random.below(60) {
                    let _ = operation(&mut random).run(&batch.names);
                }
                let wanted = tree(&batch.names);
                match fixture.commit(&batch) {
                    Ok(_) => assert_eq!(tree(&*master), wanted, "{text}"),
                    Err(error) => {
                        assert_eq!(error.kind, ErrorKind::Quota, "{text}: {error}");
                        primary.abort(batch.record.number).unwrap();
                        refused_batches += 1;
                        assert_eq!(usage_of(primary, OF_USER), before, "{text}");
                    }
                }
                assert!(!exceeds(before, usage_of(primary, OF_USER)), "{text}");
                continue;
            }
            for _ in 0..random.below(60) {
                let (operation, before) = (operation(&mut random), usage_of(primary, OF_USER));
                let old = tree(&*master);
                match operation.run(&*master) {
                    Err(error) if error.kind == ErrorKind::Quota => {
                        assert_eq!((tree(&*master), usage_of(primary, OF_USER)), (old, before), "{text}");
                        // Without limits, it would have exceeded one.
                        set(primary, subject, NumberChange::Unset, NumberChange::Unset);
                        operation.run(&*master).unwrap();
                        assert!(exceeds(before, usage_of(primary, OF_USER)), "{text}, {operation:?}");
                        set(primary, subject, NumberChange::Set(inodes), NumberChange::Set(bytes));
                        refused += 1;
                    }
                    _ => {
                        assert!(!exceeds(before, usage_of(primary, OF_USER)), "{text}, {operation:?}");
                        done += 1;
                    }
                }
            }
            fixture.check(&text);
        }
    }
    assert!(done > 1000 && refused > 100 && refused_batches > 10, "{done} {refused} {refused_batches}");
}
