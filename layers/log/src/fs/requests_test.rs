//! Counts the requests that operations of a mount send to its store.

use std::sync::Arc;

use quell_posix::WritableDir;
use quell_testkit::{CountingDir, MemoryStore};
use quell_vfs::{Cursor, FileSystem, New, Writable};

use crate::fs::file_system::LogFs;
use crate::session::Choices;
use crate::stores::Stores;
use crate::test_stores::{host, make};

const NEW: New = New { permissions: 0o750, uid: 1000, gid: 100 };

/// Returns a mount of one store, and the counter of its requests.
fn counted() -> (LogFs, CountingDir<dyn WritableDir>) {
    let store: Arc<dyn WritableDir> = MemoryStore::new().root();
    let counting = CountingDir::new(store);
    let root: Arc<dyn WritableDir> = Arc::new(counting.clone());
    let stores = Stores::open(vec![root], host(2, 1), 4).unwrap();
    (LogFs::new(stores, Choices::default()), counting)
}

/// Returns the operations that `act` causes.
fn operations(counting: &CountingDir<dyn WritableDir>, act: impl FnOnce()) -> Vec<&'static str> {
    let before = counting.operations().len();
    act();
    counting.operations()[before..].iter().map(|operation| operation.verb).collect()
}

#[test]
fn a_listing_sends_no_request_for_each_entry() {
    let (fs, counting) = counted();
    let dir = fs.make_dir(fs.root(), b"dir", NEW).unwrap().node;
    let list = |count: usize| {
        operations(&counting, || {
            let mut names = 0;
            fs.list(dir, Cursor::START, &mut |_| {
                names += 1;
                true
            })
            .unwrap();
            assert_eq!(names, count);
        })
    };
    list(0); // opens the directory
    let empty = list(0);
    for i in 0..50 {
        fs.make_dir(dir, format!("dir{i}").as_bytes(), NEW).unwrap();
        fs.make_symlink(dir, format!("link{i}").as_bytes(), b"target", NEW).unwrap();
    }
    assert_eq!(list(100), empty);
    assert_eq!(empty, ["list", "stat"], "the directory, and the newest map");
}

#[test]
fn a_missing_name_takes_a_request_for_each_name_that_it_may_have_and_one_for_the_map() {
    let (fs, counting) = counted();
    drop(make(&fs, "f", 1));
    let missing = || assert!(fs.lookup(fs.root(), b"missing").unwrap().is_none());
    assert_eq!(operations(&counting, missing), ["stat", "stat", "stat"]);
}
