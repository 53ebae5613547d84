//! Tests flattening in the background of a mount: its effect on other operations, the time at which
//! it runs, and its behaviour when a store fails or the mount ends.

use std::slice::from_ref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_posix::WritableDir;
use quell_testkit::MemoryStore;
use quell_vfs::errno::EIO;
use quell_vfs::{Context, FileSystem, Writable};

use crate::fs::LogFs;
use crate::session::log_file::Choices;
use crate::stores::Stores;
use crate::test_stores::{Gate, again, container, content, host, make, mount};

const LONG: Duration = Duration::from_secs(60);

fn flattens() -> bool {
    std::thread::current().name() == Some("quell-flatten")
}

/// Returns a mount whose background flattening passes the gate at the moment when the flat index
/// gets its number.
fn mount_with(store: &MemoryStore, gate: &Gate) -> LogFs {
    let (mut host, gate) = (host(5, 1), gate.clone());
    let random = host.random;
    host.random = Box::new(move || {
        if flattens() {
            gate.pass();
        }
        random()
    });
    let choices = Choices { flatten_bytes: 1 << 20, flattens_later: true, ..Choices::default() };
    let root: Arc<dyn WritableDir> = store.root();
    LogFs::new(Stores::open(vec![root], host, 4).unwrap(), choices)
}

/// Creates a file that two processes have written and closed.
fn write(fs: &LogFs, name: &str) {
    let first = make(fs, name, 1);
    let second = again(fs, name, 2);
    first.write_at(&[1; 1000], 0).unwrap();
    second.write_at(&[2; 1000], 500).unwrap();
    drop(first);
    drop(second);
}

fn written() -> Vec<u8> {
    [[1; 500].as_slice(), &[2; 1000]].concat()
}

fn wait_until_idle(fs: &LogFs) {
    let begun = Instant::now();
    while fs.is_flattening() {
        assert!(begun.elapsed() < LONG);
        std::thread::yield_now();
    }
}

fn flats(store: &MemoryStore, name: &str) -> usize {
    container(from_ref(store), name).flats().unwrap().len()
}

#[test]
fn a_flat_index_appears_and_no_close_waits_for_it() {
    let (store, gate) = (MemoryStore::new(), Gate::closed());
    let fs = mount_with(&store, &gate);
    write(&fs, "f");
    gate.wait_for_thread();
    // Other operations continue meanwhile.
    write(&fs, "g");
    assert_eq!((flats(&store, "f"), content(from_ref(&store), "f").unwrap()), (0, written()));
    assert!(fs.is_flattening());
    gate.open();
    wait_until_idle(&fs);
    for name in ["f", "g"] {
        assert_eq!((flats(&store, name), content(from_ref(&store), name).unwrap()), (1, written()));
    }
}

#[test]
fn a_file_with_open_writers_or_a_single_writer_is_not_flattened() {
    let (store, gate) = (MemoryStore::new(), Gate::opened());
    let (fs, elsewhere) = (mount_with(&store, &gate), mount(from_ref(&store), 7, 1));
    make(&fs, "alone", 1).write_at(b"alone", 0).unwrap();
    write(&fs, "f");
    wait_until_idle(&fs);
    let before = container(from_ref(&store), "f").flats().unwrap();
    // Adds a writer of another node.
    let theirs = again(&elsewhere, "f", 1);
    theirs.write_at(b"theirs", 0).unwrap();
    theirs.publish().unwrap();
    again(&fs, "f", 1).write_at(b"mine", 2000).unwrap();
    wait_until_idle(&fs);
    assert_eq!(container(from_ref(&store), "f").flats().unwrap(), before);
    drop(theirs);
    again(&fs, "f", 1).write_at(b"mine", 3000).unwrap();
    wait_until_idle(&fs);
    assert_ne!(container(from_ref(&store), "f").flats().unwrap(), before);
    assert_eq!(flats(&store, "alone"), 0);
}

#[test]
fn a_file_that_is_written_again_before_its_turn_is_flattened_at_its_next_close() {
    let (store, gate) = (MemoryStore::new(), Gate::closed());
    let fs = mount_with(&store, &gate);
    write(&fs, "first");
    gate.wait_for_thread();
    write(&fs, "f");
    let file = again(&fs, "f", 3);
    gate.open();
    wait_until_idle(&fs);
    assert_eq!((flats(&store, "first"), flats(&store, "f")), (1, 0));
    drop(file);
    wait_until_idle(&fs);
    assert_eq!(flats(&store, "f"), 1);
}

#[test]
fn a_failed_background_flattening_is_not_an_error() {
    for nth in 1..60 {
        let (store, gate) = (MemoryStore::new(), Gate::opened());
        let fs = mount_with(&store, &gate);
        let mut count = 0;
        store.fail(move |_| {
            count += u32::from(flattens());
            (flattens() && count >= nth).then_some(EIO)
        });
        write(&fs, "f");
        wait_until_idle(&fs);
        store.fail_nothing();
        assert_eq!(content(from_ref(&store), "f").unwrap(), written(), "{nth}");
        again(&fs, "f", 1).sync().unwrap();
        fs.end().unwrap();
    }
}

#[test]
fn a_removed_file_is_deleted_and_not_flattened() {
    let (store, gate) = (MemoryStore::new(), Gate::closed());
    let fs = mount_with(&store, &gate);
    write(&fs, "first");
    gate.wait_for_thread();
    write(&fs, "f");
    let trash = || {
        let own = store.root().open_dir(b".quell").unwrap();
        own.open_dir(b"trash").unwrap().names().unwrap().len()
    };
    for name in ["f", "first"] {
        let node =
            fs.lookup(&Context::OWN, fs.root(), name.as_bytes()).unwrap().unwrap().into_attributes().node;
        fs.remove(&Context::OWN, fs.root(), name.as_bytes()).unwrap();
        fs.forget(node, u64::from(u32::MAX));
    }
    // The first file is deleted when it is no longer in use.
    assert_eq!(trash(), 1);
    gate.open();
    wait_until_idle(&fs);
    assert_eq!(trash(), 0);
}

#[test]
fn the_end_of_a_mount_drops_queued_files_in_bounded_time() {
    let (store, gate) = (MemoryStore::new(), Gate::closed());
    let fs = mount_with(&store, &gate);
    write(&fs, "first");
    gate.wait_for_thread();
    write(&fs, "f");
    let file = make(&fs, "open", 1);
    file.write_at(b"kept", 0).unwrap();
    let begun = Instant::now();
    fs.end().unwrap();
    assert!(begun.elapsed() < LONG);
    assert_eq!(content(from_ref(&store), "open").unwrap(), b"kept");
    gate.open();
    wait_until_idle(&fs);
    assert_eq!((flats(&store, "first"), flats(&store, "f")), (0, 0));
    assert_eq!(content(from_ref(&store), "first").unwrap(), written());
}
