//! Logs and stores on objects in memory: their promises, damage, and failures at chosen operations.

mod promises;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use promises::{content, names, open, put};
use quell_kv::{DiskOptions, DiskStore, KeyValue, MemoryLimit, MemoryStore};
use quell_rados::{FaultEffect, LogOptions, MemoryObjects, Objects, RadosStore, Takeover};
use quell_vfs::ErrorKind;

const LOG: &str = "test.log.0000000000000001.0000000000000000";

#[test]
fn the_promises_are_kept() {
    promises::all(&(Arc::new(MemoryObjects::new()) as Arc<dyn Objects>));
}

/// Returns objects with a store of two commits.
fn two_commits() -> (MemoryObjects, Arc<dyn Objects>) {
    let memory = MemoryObjects::new();
    let objects: Arc<dyn Objects> = Arc::new(memory.clone());
    let store = open(&objects, "test").expect("a new store");
    store.commit(put("a", b"1")).expect("a commit");
    store.commit(put("b", b"2")).expect("a commit");
    (memory, objects)
}

#[test]
fn any_damage_of_acknowledged_bytes_is_an_error_with_its_place() {
    let (memory, objects) = two_commits();
    let length = objects.size(LOG).expect("a log object");
    for offset in 0..length as usize {
        assert!(memory.change(LOG, |object| object.content[offset] ^= 1));
        let error = open(&objects, "test").expect_err("damaged");
        assert_eq!(error.kind, ErrorKind::Damaged);
        let text = error.to_string();
        assert!(text.contains(LOG) && text.contains("offset"), "{offset}: {text}");
        assert!(memory.change(LOG, |object| object.content[offset] ^= 1));
    }
    for missing in [1, 20, 60] {
        assert!(memory.change(LOG, |object| object.content.truncate(length as usize - missing)));
        assert_eq!(open(&objects, "test").expect_err("too short").kind, ErrorKind::Damaged);
    }
}

#[test]
fn bytes_after_the_position_are_ignored_and_replaced() {
    let (memory, objects) = two_commits();
    assert!(memory.change(LOG, |object| object.content.extend_from_slice(b"QRec and no more")));
    let store = open(&objects, "test").expect("the bytes were never acknowledged");
    assert_eq!(content(&store).len(), 2);
    store.commit(put("c", b"3")).expect("a commit");
    assert_eq!(content(&open(&objects, "test").expect("a store")).len(), 3);
}

#[test]
fn missing_objects_and_guards_are_damage() {
    let (memory, objects) = two_commits();
    assert!(memory.change(LOG, |object| object.attributes.clear()));
    assert_eq!(open(&objects, "test").expect_err("no guard").kind, ErrorKind::Damaged);
    objects.remove(LOG).expect("a log object");
    assert_eq!(open(&objects, "test").expect_err("no log object").kind, ErrorKind::Damaged);

    let (_, objects) = two_commits();
    open(&objects, "test").expect("a store").checkpoint().expect("a checkpoint");
    let piece = names(&objects, "test.checkpoint.").remove(0);
    objects.remove(&piece).expect("a piece");
    let error = open(&objects, "test").expect_err("no piece");
    assert_eq!(error.kind, ErrorKind::Damaged);
    assert!(error.to_string().contains(&piece), "{error}");
}

#[test]
fn a_log_that_does_not_exist_is_created_only_if_wanted() {
    let objects = Arc::new(MemoryObjects::new());
    let options = LogOptions { create: false, ..LogOptions::default() };
    let refused = Takeover::new(objects.clone(), "test", &options).expect_err("no log");
    assert_eq!(refused.kind, ErrorKind::NotFound);
    assert!(objects.names().is_empty());
    let refused = Takeover::new(objects, "a/b", &options).expect_err("not a name");
    assert_eq!(refused.kind, ErrorKind::InvalidInput);
}

/// Another process takes the store over after the owner has created its next log object, and before
/// it has published it in the head.
#[test]
fn an_owner_that_is_replaced_during_a_change_of_objects_appends_nothing() {
    let memory = MemoryObjects::new();
    let (base, heads): (Arc<dyn Objects>, _) = (Arc::new(memory.clone()), AtomicUsize::new(0));
    let client = memory.with_faults(Box::new(move |operation, object| {
        // The first head is the creation, the second one names the first log object.
        if (operation, object) == ("write", "test.head") && heads.fetch_add(1, Ordering::Relaxed) == 2 {
            let other = open(&base, "test").expect("a takeover");
            other.commit(put("other", b"")).expect("the owner");
        }
        FaultEffect::Performed
    }));
    let options = LogOptions { object_bytes: 150, ..LogOptions::default() };
    let store =
        RadosStore::open(Arc::new(client), "test", MemoryStore::new(), &options).expect("a new store");
    store.commit(put("a", &[1; 80])).expect("a commit");
    store.commit(put("b", &[1; 80])).expect_err("replaced");
    assert_eq!(store.replaced().map(|replaced| replaced.epoch), Some(2));
    let objects: Arc<dyn Objects> = Arc::new(memory);
    assert_eq!(
        content(&open(&objects, "test").expect("a store")).into_keys().collect::<Vec<_>>(),
        ["a", "other"]
    );
    // The object that was created and not published is left.
    let left = "test.log.0000000000000001.0000000000000001";
    assert!(names(&objects, "test.log.").iter().any(|name| name == left));
    assert_eq!(open(&objects, "test").expect("a store").remove_orphans().expect("a list"), 1);
    assert!(!names(&objects, "test.log.").iter().any(|name| name == left));
}

#[test]
fn an_append_whose_result_is_lost_is_performed_once() {
    for effect in [FaultEffect::ResultLost, FaultEffect::Late] {
        let (memory, objects) = two_commits();
        let lost = AtomicUsize::new(0);
        let client = memory.with_faults(Box::new(move |operation, object| {
            let is_append = operation == "write" && object == LOG;
            // The takeover makes the first write.
            match is_append && lost.fetch_add(1, Ordering::Relaxed) == 1 {
                true => effect,
                false => FaultEffect::Performed,
            }
        }));
        let client: Arc<dyn Objects> = Arc::new(client);
        let store = open(&client, "test").expect("a store");
        store.commit(put("c", b"3")).expect("the result is found out");
        let size = objects.size(LOG).expect("a log object");
        memory.perform_late(0);
        assert_eq!(objects.size(LOG).expect("a log object"), size);
        store.commit(put("d", b"4")).expect("a commit");
        assert_eq!(content(&open(&objects, "test").expect("a store")).len(), 4, "{effect:?}");
    }
}

#[test]
fn a_refused_commit_has_no_effect_and_the_next_one_has() {
    let (memory, objects) = two_commits();
    let full = Arc::new(AtomicUsize::new(0));
    let is_full = Arc::clone(&full);
    let client = memory.with_faults(Box::new(move |operation, _| {
        match operation == "write" && is_full.load(Ordering::Relaxed) == 1 {
            true => FaultEffect::Refused(ErrorKind::NoSpace),
            false => FaultEffect::Performed,
        }
    }));
    let client: Arc<dyn Objects> = Arc::new(client);
    let store = open(&client, "test").expect("a store");
    full.store(1, Ordering::Relaxed);
    assert_eq!(store.commit(put("c", b"3")).expect_err("the pool is full").kind, ErrorKind::NoSpace);
    assert_eq!(store.checkpoint().expect_err("the pool is full").kind, ErrorKind::NoSpace);
    full.store(0, Ordering::Relaxed);
    store.commit(put("d", b"4")).expect("a commit");
    store.checkpoint().expect("a checkpoint");
    let found = content(&open(&objects, "test").expect("a store"));
    assert_eq!(found.into_keys().collect::<Vec<_>>(), ["a", "b", "d"]);
}

#[test]
fn a_commit_that_the_local_store_refuses_is_not_lost() {
    let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let local = MemoryStore::with_limit(Arc::new(MemoryLimit::new(1000)));
    let store =
        RadosStore::open(Arc::clone(&objects), "test", local, &LogOptions::default()).expect("a store");
    store.commit(put("a", b"1")).expect("a commit");
    let error = store.commit(put("b", &[0; 2000])).expect_err("too large");
    // Not `NoSpace`, after which the commit would have no effect.
    assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    store.commit(put("c", b"3")).expect_err("the store has failed");
    store.checkpoint().expect_err("the checkpoint would not contain the commit");
    store.sync().expect_err("the store has failed");
    let found = content(&open(&objects, "test").expect("a store"));
    assert_eq!(found.into_keys().collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn the_local_store_may_be_on_a_disk_and_must_be_empty() {
    let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let directory = tempfile::tempdir().expect("a directory");
    let local =
        |name| DiskStore::open(&directory.path().join(name), &DiskOptions::default()).expect("a store");
    let open = |name| RadosStore::open(Arc::clone(&objects), "test", local(name), &LogOptions::default());
    let store = open("first").expect("a new store");
    store.commit(put("a", b"1")).expect("a commit");
    drop(store);
    assert_eq!(open("first").expect_err("it has entries").kind, ErrorKind::InvalidInput);
    let value = open("second").expect("a store").get(b"a").expect("a read");
    assert_eq!(value.as_deref(), Some(&b"1"[..]));
}

/// While one append is in progress, the commits of other threads wait, and share the next record.
#[test]
fn commits_that_wait_share_a_record() {
    let memory = MemoryObjects::new();
    let (appends, begun) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(2)));
    let (count, first) = (Arc::clone(&appends), Arc::clone(&begun));
    let client = memory.with_faults(Box::new(move |operation, object| {
        // The first write of the object is its creation.
        if operation == "write" && object == LOG && count.fetch_add(1, Ordering::Relaxed) == 1 {
            first.wait();
            first.wait();
        }
        FaultEffect::Performed
    }));
    let client: Arc<dyn Objects> = Arc::new(client);
    let store = open(&client, "test").expect("a new store");
    std::thread::scope(|scope| {
        let store = &store;
        scope.spawn(move || store.commit(put("first", b"")).expect("a commit"));
        begun.wait();
        for number in 0..16 {
            scope.spawn(move || store.commit(put(&number.to_string(), b"")).expect("a commit"));
        }
        while format!("{store:?}").matches("waiting: 16").count() == 0 {
            std::thread::yield_now();
        }
        begun.wait();
    });
    assert_eq!(appends.load(Ordering::Relaxed), 3, "a creation, the first commit, and all others");
    assert_eq!(content(&store).len(), 17);
}
