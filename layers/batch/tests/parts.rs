//! Batches of several parts in stores on a disk: parts are closed, lost, and committed together.

mod mounts;

use std::path::PathBuf;
use std::time::Duration;

use quell_batch::{
    BatchFs, OpenBatch, PartProgress, Requester, ServedStore, StoreAccess, WatchedBatch, part_progress,
};
use quell_batch_service::{BatchCaller, BatchSummary, PartState, ROOT, Reply, Request, SummaryState};
use quell_posix::{LockedRange, PosixDir, WritableDir};
use quell_vfs::{Context, ErrorKind, FileSystem, LockMode, NodeId, Writable};
use quell_wire::{decode, encode};

use mounts::on_disk::{LARGE, Store, WAIT, put};
use mounts::{NEW, bytes, open};

fn access(store: &Store) -> StoreAccess {
    StoreAccess::open(&store.path(), WAIT).unwrap()
}

fn begin(store: &Store) -> u64 {
    access(store).begin_for_parts(b"", "job", false).unwrap().number
}

fn join(store: &Store, batch: u64) -> OpenBatch {
    OpenBatch::join(access(store), b"", batch, "part", WAIT).unwrap()
}

fn summaries(store: &Store) -> Vec<BatchSummary> {
    StoreAccess::open_for_batches(&store.path(), WAIT).unwrap().batches().unwrap()
}

fn has(fs: &BatchFs, name: &str) -> bool {
    fs.lookup(&Context::OWN, fs.root(), name.as_bytes()).unwrap().is_some()
}

fn files_of(store: &Store, part: u64) -> PathBuf {
    store.path().join("batches").join(part.to_string())
}

#[test]
fn closed_parts_are_committed_together_with_their_data() {
    for is_lazy in [false, true] {
        let store = Store::new();
        let batch = begin(&store);
        let parts: Vec<OpenBatch> = (0..3).map(|_| join(&store, batch)).collect();
        let mut numbers = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            let fs = part.file_system();
            put(&fs, &format!("large-{number}"), &vec![number as u8; LARGE]);
            put(&fs, &format!("small-{number}"), &[number as u8]);
            put(&fs, "same", &[number as u8; LARGE]);
            fs.make_dir(&Context::OWN, NodeId(0), b"dir", NEW).unwrap();
            numbers.push(part.record().number);
        }
        assert_eq!(
            access(&store).commit(batch).unwrap_err().kind,
            ErrorKind::Busy,
            "processes use the parts"
        );
        for part in parts {
            let number = part.record().number;
            assert_eq!(part_progress(&store.path(), number).unwrap(), Some(PartProgress::Open));
            part.close().unwrap();
            drop(part);
            assert_eq!(part_progress(&store.path(), number).unwrap(), Some(PartProgress::Closed));
            // The changes are not visible, and their files are not garbage.
            store.with_mount(|fs| assert!(!has(fs, "small-0")));
            assert!(store.collect(true).is_empty());
            assert!(store.problems(false).is_empty());
        }
        assert_eq!(part_progress(&store.path(), batch).unwrap(), None);
        if is_lazy {
            assert_eq!(access(&store).submit(batch).unwrap().state, SummaryState::Submitted);
        } else {
            let committed = SummaryState::Committed { entries: 10, conflicts: 2 };
            assert_eq!(access(&store).commit(batch).unwrap().state, committed);
        }
        store.with_mount(|fs| {
            assert!(has(fs, "dir"));
            for number in 0..3_u8 {
                assert_eq!(bytes(&*open(fs, &format!("large-{number}"))), vec![number; LARGE]);
                assert_eq!(bytes(&*open(fs, &format!("small-{number}"))), [number]);
            }
            assert_eq!(bytes(&*open(fs, "same")), [0; LARGE]);
            for number in 1..3_u8 {
                let kept = format!("same.quell-conflict-{batch}-{number}");
                assert_eq!(bytes(&*open(fs, &kept)), [number; LARGE]);
            }
        });
        let states: Vec<SummaryState> = summaries(&store).into_iter().map(|batch| batch.state).collect();
        assert_eq!(states[0], SummaryState::Committed { entries: 10, conflicts: 2 });
        for (state, entries) in states[1..].iter().zip([4, 3, 3]) {
            assert_eq!(*state, SummaryState::Part { of: batch, state: PartState::Committed { entries } });
        }
        assert_eq!(access(&store).conflicts(batch).unwrap().len(), 2);
        for number in numbers {
            assert!(!files_of(&store, number).exists());
            assert_eq!(part_progress(&store.path(), number).unwrap(), None);
        }
        assert!(store.problems(false).is_empty());
        store.collect(true);
        assert!(store.collect(false).is_empty());
        store.with_mount(|fs| assert_eq!(bytes(&*open(fs, "large-2")), vec![2; LARGE]));
        assert!(store.problems(false).is_empty());
        check_removal_of_conflicts(&store, batch);
    }
}

/// Removes all conflicts while the list, which has a table for each part, is being read.
#[track_caller]
fn check_removal_of_conflicts(store: &Store, batch: u64) {
    {
        let open = store.open();
        let primary = open.primary();
        let mut count = 0;
        let read = primary.conflicts(batch, &mut |_| {
            count += 1;
            match count {
                1 => primary.remove_conflicts(&primary.lock_commit(batch), &mut |_| true),
                _ => Ok(()),
            }
        });
        read.unwrap();
        assert_eq!(count, 2);
    }
    assert_eq!(access(store).conflicts(batch).unwrap(), []);
    assert!(store.problems(false).is_empty());
}

#[test]
fn a_lost_part_keeps_the_batch_from_being_committed_until_it_is_discarded() {
    let store = Store::new();
    let batch = begin(&store);
    let (kept, lost) = (join(&store, batch), join(&store, batch));
    put(&kept.file_system(), "kept", b"kept");
    put(&lost.file_system(), "lost", &[1; LARGE]);
    let lost_number = lost.record().number;
    drop(lost); // the process was killed
    kept.close().unwrap();
    let kept_number = kept.record().number;
    drop(kept);
    let store_access = access(&store);
    let parts = [(kept_number, PartProgress::Closed), (lost_number, PartProgress::Lost)];
    assert_eq!(store_access.parts(batch).unwrap(), parts);
    for ended in [store_access.commit(batch), store_access.submit(batch)] {
        let error = ended.unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound);
        assert!(error.to_string().contains(&format!("closed them: {lost_number};")), "{error}");
    }
    assert_eq!(store_access.abort_lost_parts(batch).unwrap(), [lost_number]);
    assert!(!files_of(&store, lost_number).exists());
    // A new part makes the changes of the lost one.
    drop(store_access);
    let again = join(&store, batch);
    put(&again.file_system(), "again", b"again");
    again.close().unwrap();
    drop(again);
    access(&store).commit(batch).unwrap();
    store.with_mount(|fs| assert!(has(fs, "kept") && has(fs, "again") && !has(fs, "lost")));
    let state = SummaryState::Part { of: batch, state: PartState::Aborted };
    assert!(summaries(&store).iter().any(|batch| batch.number == lost_number && batch.state == state));
    // The data file of the lost part is garbage.
    let data = format!("data/{lost_number}/");
    assert!(store.collect(true).iter().any(|path| path.starts_with(&data)));
    assert!(store.problems(false).is_empty());
}

#[test]
fn an_aborted_batch_discards_its_parts() {
    let store = Store::new();
    let batch = begin(&store);
    let part = join(&store, batch);
    put(&part.file_system(), "file", b"bytes");
    assert_eq!(access(&store).abort(batch).unwrap_err().kind, ErrorKind::Busy);
    part.close().unwrap();
    let number = part.record().number;
    drop(part);
    access(&store).abort(batch).unwrap();
    assert!(!files_of(&store, number).exists());
    assert_eq!(access(&store).commit(batch).unwrap_err().kind, ErrorKind::InvalidInput);
    let joined = OpenBatch::join(access(&store), b"", batch, "late", WAIT).map(drop);
    assert_eq!(joined.unwrap_err().kind, ErrorKind::InvalidInput);
    store.with_mount(|fs| assert!(!has(fs, "file")));
    assert!(store.problems(false).is_empty());
}

#[test]
fn a_part_joins_with_the_directory_of_its_batch_and_not_during_a_commit() {
    let store = Store::new();
    store.with_mount(|fs| drop(fs.make_dir(&Context::OWN, NodeId(0), b"sub", NEW).unwrap()));
    let batch = access(&store).begin_for_parts(b"sub", "job", false).unwrap().number;
    let joined = OpenBatch::join(access(&store), b"", batch, "part", WAIT).map(drop).unwrap_err();
    assert_eq!(joined.kind, ErrorKind::InvalidInput);
    assert!(joined.to_string().contains("/sub"), "{joined}");
    let part = OpenBatch::join(access(&store), b"sub", batch, "part", WAIT).unwrap();
    put(&part.file_system(), "file", b"bytes");
    part.close().unwrap();
    drop(part);
    // A process that commits the batch holds its lock.
    let file = PosixDir::open(&store.path()).unwrap().open_writable_file(b"lock").unwrap();
    let range = LockedRange { first: batch + 1, last: batch + 1, mode: LockMode::Exclusive };
    assert!(file.locks().unwrap().try_lock(range).unwrap());
    let joined = OpenBatch::join(access(&store), b"sub", batch, "late", Duration::ZERO).map(drop);
    assert_eq!(joined.unwrap_err().kind, ErrorKind::Busy);
    drop(file);
    access(&store).commit(batch).unwrap();
    assert_eq!(summaries(&store).len(), 2, "nothing has joined");
}

#[test]
fn a_number_that_no_batch_can_have_is_not_found() {
    let store = Store::new();
    for number in [0, 1 << 62, i64::MAX as u64, u64::MAX] {
        let access = access(&store);
        let results = [
            access.commit(number).map(drop),
            access.submit(number).map(drop),
            access.abort(number).map(drop),
            access.abort_lost_parts(number).map(drop),
            OpenBatch::join(access, b"", number, "part", WAIT).map(drop),
        ];
        for result in results {
            assert_eq!(result.unwrap_err().kind, ErrorKind::NotFound, "{number}");
        }
    }
}

#[test]
fn a_damaged_part_refuses_the_whole_batch_and_is_reported() {
    let store = Store::new();
    let batch = begin(&store);
    let parts = [join(&store, batch), join(&store, batch)];
    let numbers = [parts[0].record().number, parts[1].record().number];
    for (part, name) in parts.iter().zip(["first", "second"]) {
        put(&part.file_system(), name, b"bytes");
        part.close().unwrap();
    }
    drop(parts);
    // The certificate of the other part of the batch.
    let honest = std::fs::read(files_of(&store, numbers[1]).join("certificate")).unwrap();
    let other = std::fs::read(files_of(&store, numbers[0]).join("certificate")).unwrap();
    std::fs::write(files_of(&store, numbers[1]).join("certificate"), other).unwrap();
    let refused = access(&store).commit(batch).unwrap_err();
    assert!(matches!(refused.kind, ErrorKind::InvalidInput | ErrorKind::Damaged), "{refused}");
    assert!(refused.to_string().contains(&format!("part {}", numbers[1])), "{refused}");
    assert!(store.problems(false).iter().any(|(kind, _)| *kind == "bad-certificate"));
    access(&store).submit(batch).unwrap();
    store.with_mount(|fs| assert!(!has(fs, "first") && !has(fs, "second")));
    assert!(matches!(&summaries(&store)[0].state, SummaryState::Refused { .. }));
    std::fs::write(files_of(&store, numbers[1]).join("certificate"), honest).unwrap();
    access(&store).commit(batch).unwrap();
    store.with_mount(|fs| assert!(has(fs, "first") && has(fs, "second")));
    assert!(store.problems(false).is_empty());
}

#[test]
fn an_open_part_can_be_watched() {
    let store = Store::new();
    let batch = begin(&store);
    let part = join(&store, batch);
    let number = part.record().number;
    put(&part.file_system(), "file", b"bytes");
    assert_eq!(WatchedBatch::open_of(&store.path(), &[], batch).unwrap_err().kind, ErrorKind::InvalidInput);
    let watched = WatchedBatch::open_of(&store.path(), &[], number).unwrap();
    watched.request().unwrap();
    assert!(part.publish_view().unwrap());
    assert_eq!(watched.refresh().unwrap(), quell_batch::Refreshed::Newer);
    assert!(has(&watched.file_system_at(b"").unwrap(), "file"));
    part.close().unwrap();
    assert!(!part.publish_view().unwrap());
    assert_eq!(watched.refresh().unwrap(), quell_batch::Refreshed::Ended);
    assert_eq!(WatchedBatch::open_of(&store.path(), &[], number).unwrap_err().kind, ErrorKind::NotFound);
}

#[test]
fn a_server_begins_joins_and_commits_batches_of_several_parts() {
    let store = Store::new();
    let served = ServedStore::new(store.open());
    let call = |request: &Request| -> Reply {
        decode(&served.execute(&Requester::Owner, &encode(request), 1 << 20)).unwrap()
    };
    let uid = rustix::process::geteuid().as_raw();
    let caller = BatchCaller { uid, gid: uid, groups: Vec::new() };
    let (name, subtree, is_atomic) = ("job".to_owned(), ROOT, false);
    let begin = Request::BeginForParts { name: name.clone(), caller: caller.clone(), subtree, is_atomic };
    let Reply::Begun(record) = call(&begin) else { panic!("not begun") };
    let batch = record.number;
    let join = Request::Join { batch, name: name.clone(), caller: caller.clone() };
    let Reply::Begun(part) = call(&join) else { panic!("not joined") };
    assert!(files_of(&store, part.number).is_dir());
    // The part is not closed.
    assert!(matches!(call(&Request::Commit { batch }), Reply::Failed(_)));
    assert!(matches!(call(&Request::Submit { batch }), Reply::Failed(_)));
    let Reply::Batch(aborted) = call(&Request::Abort { batch: part.number }) else { panic!("not aborted") };
    assert_eq!(aborted.state, SummaryState::Part { of: batch, state: PartState::Aborted });
    assert!(!files_of(&store, part.number).exists());
    let Reply::Batch(committed) = call(&Request::Commit { batch }) else { panic!("not committed") };
    assert_eq!(committed.state, SummaryState::Committed { entries: 0, conflicts: 0 });
    assert!(matches!(call(&join), Reply::Failed(_)));
    let long = Request::Join { batch, name: "n".repeat(256), caller };
    assert!(matches!(call(&long), Reply::Failed(_)));
}
