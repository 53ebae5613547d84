//! Markers: blobs that record whether a transaction is committed.

use std::sync::Barrier;

use quell_blob::{Error, MarkerOutcome, Retries, Store, Transaction};
use quell_vfs::ErrorKind;

fn open(directory: &tempfile::TempDir) -> Store {
    Store::open(&format!("dir:{}", directory.path().join("store").display())).unwrap()
}

/// Returns the name of a marker in a store.
fn marker(store: &Store, number: u32) -> String {
    format!("{}{number}", store.marker_prefix("m/").unwrap())
}

fn append(transaction: &mut Transaction) -> quell_blob::Result<()> {
    transaction.create("log")?;
    transaction.append("log", b"x")
}

fn commit(store: &Store, marker: &str) -> MarkerOutcome {
    store.commit_with_marker(marker, &Retries::default(), append)
}

fn size(store: &Store, name: &str) -> Option<u64> {
    store.stat(name).unwrap().map(|stat| stat.size_bytes)
}

#[test]
fn a_marker_exists_if_and_only_if_its_transaction_is_committed() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let [first, second] = [1, 2].map(|number| marker(&store, number));
    assert!(matches!(commit(&store, &first), MarkerOutcome::Committed));
    assert!(store.resolve_marker(&first).unwrap());
    // A refused transaction leaves no marker.
    let failing = |transaction: &mut Transaction| {
        append(transaction)?;
        transaction.create_new("log")
    };
    let MarkerOutcome::Refused(refused) = store.commit_with_marker(&second, &Retries::default(), failing)
    else {
        panic!("not refused")
    };
    assert_eq!(refused.kind(), ErrorKind::Exists);
    let condition = |_: &mut Transaction| {
        Err(Error::Store(quell_vfs::Error::new(ErrorKind::InvalidInput, "check", "a condition")))
    };
    assert!(matches!(
        store.commit_with_marker(&second, &Retries::default(), condition),
        MarkerOutcome::Refused(Error::Store(error)) if error.kind == ErrorKind::InvalidInput
    ));
    assert_eq!((size(&store, &second), size(&store, "log")), (None, Some(1)));
    // A transaction is committed once with its marker.
    assert!(matches!(commit(&store, &first), MarkerOutcome::Refused(_)));
    assert_eq!(size(&store, "log"), Some(1));
    store.remove_marker(&first).unwrap();
    store.remove_marker(&first).unwrap();
    assert_eq!(size(&store, &first), None);
}

#[test]
fn a_transaction_is_impossible_after_its_marker_was_resolved() {
    let directory = tempfile::tempdir().unwrap();
    let first = {
        let store = open(&directory);
        let first = marker(&store, 1);
        assert!(!store.resolve_marker(&first).unwrap());
        first
    };
    let store = open(&directory);
    assert!(matches!(commit(&store, &first), MarkerOutcome::Refused(_)));
    assert!(!store.resolve_marker(&first).unwrap());
    assert_eq!(size(&store, "log"), None);
    for content in [b"commi".as_slice(), b"committed more", b""] {
        let other = marker(&store, 2);
        store.create(&other).unwrap();
        store.append(&other, content).unwrap();
        assert_eq!(store.resolve_marker(&other).unwrap_err().kind(), ErrorKind::Damaged);
        store.delete(&other).unwrap();
    }
}

#[test]
fn a_commit_and_threads_that_resolve_its_marker_agree() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    store.create("log").unwrap();
    let mut committed = 0;
    for number in 0..100 {
        let marker = marker(&store, number);
        let barrier = Barrier::new(3);
        let (result, resolved) = std::thread::scope(|scope| {
            let resolve = || {
                barrier.wait();
                store.resolve_marker(&marker).unwrap()
            };
            let resolvers = [scope.spawn(resolve), scope.spawn(resolve)];
            barrier.wait();
            let result = commit(&store, &marker);
            (result, resolvers.map(|resolver| resolver.join().unwrap()))
        });
        let is_committed = match result {
            MarkerOutcome::Committed => true,
            MarkerOutcome::Refused(_) => false,
            MarkerOutcome::Unknown(error) => panic!("{error}"),
        };
        assert_eq!(resolved, [is_committed; 2], "{number}");
        committed += u64::from(is_committed);
        assert_eq!(size(&store, "log"), Some(committed), "{number}");
    }
}

#[test]
fn all_names_of_markers_contain_the_one_identity_of_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let prefix = || store.marker_prefix("a-b/").unwrap();
    let found = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(prefix)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(found.iter().all(|other| *other == found[0]), "{found:?}");
    drop(store);
    let store = open(&directory);
    assert_eq!(store.marker_prefix("a-b/").unwrap(), found[0]);
    assert_eq!(size(&store, "a-b/identity"), Some(32));
    for content in [b"other".as_slice(), &[b'f'; 33], &[b'F'; 32], &[0xff; 32]] {
        store.resize("a-b/identity", 0).unwrap();
        store.append("a-b/identity", content).unwrap();
        assert_eq!(store.marker_prefix("a-b/").unwrap_err().kind(), ErrorKind::Damaged);
        assert_eq!(store.resolve_marker(&format!("{}1", found[0])).unwrap_err().kind(), ErrorKind::Damaged);
    }
}

#[test]
fn a_marker_is_neither_created_nor_read_in_another_store() {
    let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [store, other] = directories.each_ref().map(open);
    let first = marker(&store, 1);
    let is_refused = |marker: &str, reason: &str| {
        let MarkerOutcome::Refused(refused) = commit(&other, marker) else { panic!("not refused") };
        for error in [refused, other.resolve_marker(marker).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains(reason), "{error}");
        }
        assert_eq!((size(&other, marker), size(&other, "log")), (None, None));
    };
    let location = other.location().to_string();
    is_refused(&first, &format!("the store of blobs at {location} is another one: it has no identity"));
    let identity = marker(&other, 1);
    assert_ne!(identity, first);
    let identity = identity.strip_prefix("m/").unwrap().strip_suffix("/1").unwrap();
    is_refused(
        &first,
        &format!("the store of blobs at {location} is another one: it has the identity {identity}"),
    );
    let short = format!("m/{}/1", &identity[1..]);
    for unnamed in ["1", "m/1", "/", "m/quell/1", short.as_str(), "ä3456789012345678901234567890123/"] {
        is_refused(unnamed, "its name does not contain the identity of a store of blobs");
    }
    // The transaction is still possible in its own store.
    assert!(matches!(commit(&store, &first), MarkerOutcome::Committed));
    assert!(store.resolve_marker(&first).unwrap());
}
