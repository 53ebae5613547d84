//! Batches that are committed together with a transaction of a store of blobs.

mod mounts;

use quell_batch::{BatchFs, Marker, MarkerLocation, OpenBatch, StoreAccess, TransactionOutcome};
use quell_batch_service::{BatchSummary, SummaryState};
use quell_vfs::{Context, Error, ErrorKind, FileSystem, Result};

use mounts::on_disk::{LARGE, Store, WAIT, put};
use mounts::{bytes, open};

fn access(store: &Store) -> StoreAccess {
    StoreAccess::open_for_batches(&store.path(), WAIT).unwrap()
}

/// Returns a batch whose only part is closed, and has a large and a small file.
fn closed_batch(store: &Store) -> u64 {
    let batch = access(store).begin_for_parts(b"", "job", false).unwrap().number;
    let part = OpenBatch::join(access(store), b"", batch, "part", WAIT).unwrap();
    put(&part.file_system(), "large", &[7; LARGE]);
    put(&part.file_system(), "small", b"small");
    part.close().unwrap();
    batch
}

fn commit(
    store: &Store,
    batch: u64,
    transaction: impl FnOnce(&Marker) -> TransactionOutcome,
) -> Result<BatchSummary> {
    let marker = MarkerLocation { location: "dir:/blobs", prefix: "markers/" };
    access(store).commit_with(batch, marker, transaction)
}

fn state(store: &Store, batch: u64) -> SummaryState {
    let batches = access(store).batches().unwrap();
    batches.into_iter().find(|found| found.number == batch).unwrap().state
}

fn error(kind: ErrorKind) -> Error {
    Error::new(kind, "commit", "the transaction")
}

fn has(fs: &BatchFs, name: &str) -> bool {
    fs.lookup(&Context::OWN, fs.root(), name.as_bytes()).unwrap().is_some()
}

fn is_published(store: &Store) -> bool {
    store.with_mount(|fs| {
        let found = ["large", "small"].map(|name| has(fs, name));
        assert_eq!(found[0], found[1]);
        if found[0] {
            assert_eq!(bytes(&*open(fs, "large")), vec![7; LARGE]);
        }
        found[0]
    })
}

const COMMITTED: SummaryState = SummaryState::Committed { entries: 2, conflicts: 0 };

#[test]
fn the_decision_of_the_transaction_is_that_of_the_batch() {
    let store = Store::new();
    let batch = closed_batch(&store);
    access(&store).check_commit_with(batch).unwrap();
    assert_eq!(access(&store).check_commit_with(batch + 9).unwrap_err().kind, ErrorKind::NotFound);
    let mut names = Vec::new();
    let refused = commit(&store, batch, |marker| {
        names.push(marker.blob.clone());
        TransactionOutcome::Refused(error(ErrorKind::Conflict))
    });
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Conflict);
    assert_eq!(state(&store, batch), SummaryState::OpenForParts);
    assert!(!is_published(&store));
    let committed = commit(&store, batch, |marker| {
        assert_eq!(marker.location, "dir:/blobs");
        names.push(marker.blob.clone());
        TransactionOutcome::Committed
    });
    assert_eq!(committed.unwrap().state, COMMITTED);
    assert!(is_published(&store));
    assert!(names.iter().all(|name| name.starts_with("markers/")) && names[0] != names[1], "{names:?}");
    let again = commit(&store, batch, |_| panic!("the transaction is not executed"));
    assert_eq!(again.unwrap_err().kind, ErrorKind::InvalidInput);
    assert_eq!(access(&store).check_commit_with(batch).unwrap_err().kind, ErrorKind::InvalidInput);
    assert!(store.problems(false).is_empty());
    store.collect(true);
    assert!(is_published(&store));
}

#[test]
fn after_an_unknown_decision_the_batch_waits_for_it() {
    for is_committed in [false, true] {
        let store = Store::new();
        let batch = closed_batch(&store);
        assert_eq!(access(&store).resolve_prepared(batch, |_| panic!("it is not prepared")).unwrap(), None);
        let mut name = String::new();
        let unknown = commit(&store, batch, |marker| {
            name.clone_from(&marker.blob);
            TransactionOutcome::Unknown(error(ErrorKind::TimedOut))
        });
        let unknown = unknown.unwrap_err();
        assert!(unknown.to_string().contains("the batch stays prepared"), "{unknown}");
        let marker = Marker { location: "dir:/blobs".into(), blob: name };
        assert_eq!(state(&store, batch), SummaryState::Prepared { marker: marker.clone() });
        assert!(!is_published(&store));
        // Nothing of it is garbage, and only its transaction can end it.
        store.collect(true);
        assert!(store.problems(false).is_empty());
        assert_eq!(access(&store).check_commit_with(batch).unwrap_err().kind, ErrorKind::Busy);
        let attempts: [&dyn Fn() -> Result<BatchSummary>; 4] = [
            &|| access(&store).commit(batch),
            &|| access(&store).abort(batch),
            &|| access(&store).submit(batch),
            &|| commit(&store, batch, |_| panic!("the transaction is not executed")),
        ];
        for attempt in attempts {
            assert_eq!(attempt().unwrap_err().kind, ErrorKind::Busy);
        }
        let failed = access(&store).resolve_prepared(batch, |_| Err(error(ErrorKind::Unavailable)));
        assert_eq!(failed.unwrap_err().kind, ErrorKind::Unavailable);
        let resolved = access(&store).resolve_prepared(batch, |found| {
            assert_eq!(*found, marker);
            Ok(is_committed)
        });
        let (summary, _) = resolved.unwrap().expect("it was prepared");
        assert_eq!(summary.state, if is_committed { COMMITTED } else { SummaryState::OpenForParts });
        assert_eq!(is_published(&store), is_committed);
        if !is_committed {
            access(&store).commit(batch).unwrap();
            assert!(is_published(&store));
        }
        assert!(store.problems(false).is_empty());
    }
}

#[test]
fn a_submitted_batch_has_no_transaction() {
    let store = Store::new();
    let batch = closed_batch(&store);
    access(&store).submit(batch).unwrap();
    let refused = commit(&store, batch, |_| panic!("the transaction is not executed")).unwrap_err();
    assert!(refused.to_string().contains("it is submitted"), "{refused}");
    let refused = access(&store).check_commit_with(batch).unwrap_err();
    assert!(refused.to_string().contains("it is submitted"), "{refused}");
    assert_eq!(state(&store, batch), SummaryState::Submitted);
}

#[test]
fn a_batch_of_another_user_is_rolled_back_and_not_resolved() {
    const OTHER: u32 = 12_345;
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can give a store to another user");
        return;
    }
    let store = Store::new();
    let batch = closed_batch(&store);
    assert_eq!(access(&store).roll_back_without_blobs(batch).unwrap(), None);
    commit(&store, batch, |_| TransactionOutcome::Unknown(error(ErrorKind::TimedOut))).unwrap_err();
    let path = store.path();
    let directory = path.parent().unwrap();
    let owner = format!("{OTHER}:{OTHER}");
    let given = std::process::Command::new("chown").args(["-R", &owner]).arg(directory).status().unwrap();
    assert!(given.success());
    let as_other = || {
        let (uid, gid) = (rustix::fs::Uid::from_raw(OTHER), rustix::fs::Gid::from_raw(OTHER));
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        let resolved = access(&store).resolve_prepared(batch, |_| panic!("the location is not opened"));
        assert_eq!(resolved.unwrap_err().kind, ErrorKind::PermissionDenied);
        let rolled_back = access(&store).roll_back_without_blobs(batch).unwrap().unwrap();
        assert_eq!(rolled_back.state, SummaryState::OpenForParts);
        assert_eq!(access(&store).check_commit_with(batch).unwrap_err().kind, ErrorKind::PermissionDenied);
        access(&store).abort(batch).unwrap();
        assert_eq!(state(&store, batch), SummaryState::Aborted);
    };
    std::thread::scope(|scope| scope.spawn(as_other).join().unwrap());
}
