//! The promises of `KeyValue`, for both stores.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_kv::{
    BATCH_BYTES_MAX, Batch, KEY_BYTES_MAX, KeyRange, KeyValue, MemoryLimit, MemoryStore, VALUE_BYTES_MAX,
};
use quell_vfs::ErrorKind;

use crate::{batch, entries, get, keys, open, put};

/// Runs a test with an empty store of each kind.
fn with_each_store(test: impl Fn(&dyn KeyValue)) {
    test(&MemoryStore::new());
    let directory = tempfile::tempdir().unwrap();
    test(&open(directory.path()));
}

#[test]
fn an_entry_is_read_replaced_and_removed() {
    with_each_store(|store| {
        assert_eq!(get(store, b"a"), None);
        put(store, b"a", b"1");
        assert_eq!(get(store, b"a").as_deref(), Some(&b"1"[..]));
        put(store, b"a", b"");
        assert_eq!(get(store, b"a").as_deref(), Some(&b""[..]));
        store.commit(batch(&[(b"a", None), (b"absent", None)])).unwrap();
        assert_eq!(get(store, b"a"), None);
        assert_eq!(entries(store, &KeyRange::all()), []);
    });
}

#[test]
fn the_last_operation_of_a_batch_on_a_key_counts() {
    with_each_store(|store| {
        put(store, b"b", b"0");
        store
            .commit(batch(&[
                (b"a", Some(b"1")),
                (b"a", None),
                (b"b", None),
                (b"b", Some(b"2")),
                (b"b", Some(b"3")),
            ]))
            .unwrap();
        assert_eq!(get(store, b"a"), None);
        assert_eq!(get(store, b"b").as_deref(), Some(&b"3"[..]));
    });
}

#[test]
fn a_scan_visits_the_keys_of_the_range_in_order_until_it_is_stopped() {
    with_each_store(|store| {
        for key in ["b", "ab", "a", "ac", "b\u{7f}", "aba", "c"] {
            put(store, key.as_bytes(), b"");
        }
        assert_eq!(keys(store, &KeyRange::all()), ["a", "ab", "aba", "ac", "b", "b\u{7f}", "c"]);
        assert_eq!(keys(store, &KeyRange::prefix(b"ab")), ["ab", "aba"]);
        assert_eq!(keys(store, &KeyRange::prefix(b"a").after(b"ab")), ["aba", "ac"]);
        let between = |start, end| keys(store, &KeyRange::between(start, end));
        assert_eq!(between(Bound::Included(b"ab"), Bound::Excluded(b"b")), ["ab", "aba", "ac"]);
        assert_eq!(between(Bound::Excluded(b"ab"), Bound::Included(b"b")), ["aba", "ac", "b"]);
        let mut visited = Vec::new();
        let mut visit = |key: &[u8], _: &[u8]| {
            visited.push(key.to_vec());
            visited.len() < 2
        };
        store.scan(&KeyRange::all(), &mut visit).unwrap();
        assert_eq!(visited, [b"a".to_vec(), b"ab".to_vec()]);
    });
}

#[test]
fn a_range_whose_end_is_before_its_start_is_empty() {
    with_each_store(|store| {
        put(store, b"b", b"");
        for (start, end) in [(&b"c"[..], &b"a"[..]), (b"b", b"b")] {
            for start in [Bound::Included(start), Bound::Excluded(start)] {
                assert_eq!(keys(store, &KeyRange::between(start, Bound::Excluded(end))), [""; 0]);
            }
            assert_eq!(
                keys(store, &KeyRange::between(Bound::Excluded(start), Bound::Included(end))),
                [""; 0]
            );
        }
        assert_eq!(keys(store, &KeyRange::between(Bound::Included(b"b"), Bound::Included(b"b"))), ["b"]);
    });
}

#[test]
fn a_scan_does_not_see_the_commits_of_its_visitor() {
    with_each_store(|store| {
        (0..100_u8).for_each(|key| put(store, &[key], b"old"));
        let mut count = 0;
        let mut visit = |key: &[u8], value: &[u8]| {
            assert_eq!(value, b"old");
            store.commit(batch(&[(&[key[0] + 1], Some(b"new")), (&[key[0] + 100], Some(b"new"))])).unwrap();
            count += 1;
            true
        };
        store.scan(&KeyRange::all(), &mut visit).unwrap();
        assert_eq!(count, 100);
        assert_eq!(entries(store, &KeyRange::all()).len(), 200);
    });
}

#[test]
fn a_scan_sees_each_batch_of_another_thread_entirely_or_not_at_all() {
    with_each_store(|store| {
        let write = |number: u32| {
            let mut batch = Batch::new();
            (0..20_u8).for_each(|key| batch.put(&[key], &number.to_be_bytes().repeat(50)));
            store.commit(batch).unwrap();
        };
        write(0);
        let stopped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| (1..).take_while(|_| !stopped.load(Ordering::Relaxed)).for_each(write));
            // An assertion in this loop would leave the other thread running.
            let is_torn = |entries: &Vec<(Vec<u8>, Vec<u8>)>| {
                entries.len() != 20 || entries.iter().any(|(_, value)| *value != entries[0].1)
            };
            let torn = (0..200).map(|_| entries(store, &KeyRange::all())).find(is_torn);
            stopped.store(true, Ordering::Relaxed);
            assert_eq!(torn, None);
        });
    });
}

#[test]
fn commits_of_several_threads_are_all_stored() {
    with_each_store(|store| {
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let key = move |number: u16| [&[thread][..], &number.to_be_bytes()].concat();
                scope.spawn(move || (0..2_000).for_each(|number| put(store, &key(number), &[thread; 100])));
            }
        });
        assert_eq!(entries(store, &KeyRange::all()).len(), 8_000);
    });
}

#[test]
fn a_range_may_have_bounds_that_are_too_long_for_a_key() {
    with_each_store(|store| {
        let key = |length: usize, last: u8| [&vec![b'x'; length - 1][..], &[last]].concat();
        let (longest, next) = (key(KEY_BYTES_MAX, b'x'), key(KEY_BYTES_MAX, b'y'));
        put(store, &longest, b"longest");
        put(store, &next, b"next");
        let bound = key(KEY_BYTES_MAX + 2, b'x');
        let values = |start, end| -> Vec<Vec<u8>> {
            entries(store, &KeyRange::between(start, end)).into_iter().map(|(_, value)| value).collect()
        };
        assert_eq!(values(Bound::Unbounded, Bound::Excluded(&bound)), [b"longest"]);
        assert_eq!(values(Bound::Unbounded, Bound::Included(&bound)), [b"longest"]);
        assert_eq!(values(Bound::Excluded(&bound), Bound::Unbounded), [b"next"]);
        assert_eq!(values(Bound::Included(&bound), Bound::Unbounded), [b"next"]);
        assert_eq!(values(Bound::Included(&bound), Bound::Included(&bound)), [[0; 0]; 0]);
    });
}

#[test]
fn a_batch_beyond_a_limit_is_refused_entirely() {
    with_each_store(|store| {
        let refused = |key: &[u8], value: &[u8]| {
            let error = store.commit(batch(&[(b"other", Some(b"")), (key, Some(value))])).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidInput, "{error}");
            assert_eq!(get(store, b"other"), None);
        };
        refused(b"", b"");
        refused(&vec![1; KEY_BYTES_MAX + 1], b"");
        refused(b"key", &vec![1; VALUE_BYTES_MAX + 1]);
        let mut large = Batch::new();
        (0..3_u8).for_each(|key| large.put(&[key], &vec![1; VALUE_BYTES_MAX - 1]));
        assert!(large.size_bytes() > BATCH_BYTES_MAX);
        assert_eq!(store.commit(large).unwrap_err().kind, ErrorKind::InvalidInput);
        assert_eq!(entries(store, &KeyRange::all()), []);
        assert_eq!(get(store, b""), None);
        assert_eq!(get(store, &vec![1; KEY_BYTES_MAX + 1]), None);
        let (key, value) = (vec![1; KEY_BYTES_MAX], vec![2; VALUE_BYTES_MAX]);
        put(store, &key, &value);
        assert!(get(store, &key) == Some(value));
    });
}

#[test]
fn the_size_grows_with_the_entries() {
    with_each_store(|store| {
        let empty = store.size_bytes().unwrap();
        put(store, b"key", &[1; 100_000]);
        store.sync().unwrap();
        assert!(store.size_bytes().unwrap() >= empty + 100_000);
    });
}

#[test]
fn a_full_memory_store_refuses_growth_and_accepts_deletes() {
    // An entry counts as 96 bytes besides its key and its value.
    let store = MemoryStore::with_limit(Arc::new(MemoryLimit::new(106)));
    put(&store, b"a", b"12345");
    let refused = store.commit(batch(&[(b"a", Some(b"1234567890")), (b"b", Some(b""))])).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NoSpace);
    assert_eq!(entries(&store, &KeyRange::all()), [(b"a".to_vec(), b"12345".to_vec())]);
    store.commit(batch(&[(b"a", None), (b"b", Some(b"123456789"))])).unwrap();
    assert_eq!(store.size_bytes().unwrap(), 10);
}

#[test]
fn memory_stores_with_one_limit_share_it() {
    let limit = Arc::new(MemoryLimit::new(200));
    let [first, second] = [(); 2].map(|()| MemoryStore::with_limit(Arc::clone(&limit)));
    put(&first, b"a", b"1");
    let refused = second.commit(batch(&[(b"a", Some(b"12345678"))])).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NoSpace);
    put(&second, b"a", b"1");
    drop(first);
    put(&second, b"a", b"12345678");
}

#[test]
fn a_clone_of_a_memory_store_is_independent() {
    let store = MemoryStore::new();
    put(&store, b"a", b"1");
    let clone = store.clone();
    put(&store, b"a", b"2");
    put(&clone, b"b", b"3");
    assert_eq!(get(&clone, b"a").as_deref(), Some(&b"1"[..]));
    assert_eq!(get(&store, b"b"), None);
}
