//! Tests several mounts of the same stores that use the same file or name at the same time:
//! truncations while other mounts write, and directories that are created, removed and renamed
//! while entries are created in them. Two mounts are interleaved at every operation on the store.

// `own` is used for mounts of real directories.
#[allow(dead_code)]
mod mounted;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use mounted::MEMORY;
use quell_log::{Choices, LogFs};
use quell_posix::WritableDir;
use quell_testkit::histories::crash::CrashImplementation;
use quell_testkit::histories::truncation;
use quell_testkit::{CountingDir, MemoryStore};
use quell_vfs::errno::EIO;
use quell_vfs::{
    Change, Context, ErrorKind, FileSystem, NewEntry, NodeId, OpenMode, Rename, Result, Writable,
    WritableFile,
};

const NEW: NewEntry = NewEntry { permissions: 0o755, uid: MEMORY.0, gid: MEMORY.1 };

// The files of mounts of this thread begin as objects.
thread_local!(static OBJECTS: Cell<bool> = const { Cell::new(false) });

/// Calls `run` with files that begin as containers, then with files that begin as objects.
fn in_both_forms(run: impl Fn()) {
    for begins_as_object in [false, true] {
        OBJECTS.set(begins_as_object);
        run();
    }
}

fn choices(buffer_bytes: usize, flatten_bytes: u64) -> Choices {
    let begins_as_object = OBJECTS.get();
    let buffer_bytes = if begins_as_object { 1 << 20 } else { buffer_bytes };
    Choices { buffer_bytes, index_threads: 2, flatten_bytes, begins_as_object, ..Choices::default() }
}

fn roots(stores: &[MemoryStore]) -> Vec<Arc<dyn WritableDir>> {
    stores.iter().map(|store| store.root() as Arc<dyn WritableDir>).collect()
}

fn mount(stores: &[MemoryStore]) -> LogFs {
    mounted::mount(roots(stores), MEMORY, choices(1 << 16, 0))
}

fn stores(count: usize) -> Vec<MemoryStore> {
    (0..count).map(|_| MemoryStore::new()).collect()
}

/// The context and the mode of an open.
type Opening = (Context<'static>, OpenMode);

const READ: Opening = (Context::OWN, OpenMode::READ);

fn by(process: u32) -> Opening {
    (Context::for_process(process), OpenMode::READ_WRITE)
}

fn truncating((context, mode): Opening) -> Opening {
    (context, OpenMode { truncate: true, ..mode })
}

fn node(fs: &LogFs, name: &[u8]) -> NodeId {
    fs.lookup(&Context::OWN, fs.root(), name).unwrap().expect("it is there").into_attributes().node
}

fn open(fs: &LogFs, (context, mode): Opening) -> Box<dyn WritableFile> {
    fs.open_as(&context, node(fs, b"f"), mode).unwrap()
}

fn create(fs: &LogFs) -> Box<dyn WritableFile> {
    fs.create(&Context::for_process(1), fs.root(), b"f", NEW, OpenMode::READ_WRITE).unwrap().1
}

fn truncate(fs: &LogFs, size: u64) {
    fs.change(&Context::OWN, node(fs, b"f"), &Change { size_bytes: Some(size), ..Change::default() })
        .unwrap();
}

fn put(file: &dyn WritableFile, bytes: &[u8], offset: u64) {
    file.write_at(bytes, offset).unwrap();
    file.sync().unwrap();
}

/// Returns the content of `f` as a new mount reads it.
fn content(stores: &[MemoryStore]) -> Vec<u8> {
    let fs = mount(stores);
    let file = open(&fs, READ);
    let mut bytes = vec![0xAA; 1 << 20];
    let n = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(n);
    assert_eq!(fs.attributes(&Context::OWN, node(&fs, b"f")).unwrap().size_bytes, n as u64);
    bytes
}

// --- cached sizes -------------------------------------------------------------------------------

#[test]
fn data_of_another_node_is_read_although_this_node_has_cached_the_size_of_its_log() {
    in_both_forms(|| {
        let stores = stores(1);
        let a = mount(&stores);
        let b = mounted::mount(vec![stores[0].root_on_caching_node()], MEMORY, choices(1 << 16, 0));
        let of_a = create(&a);
        // An open file keeps the extents that were read, and each open adds the new extents.
        let _kept = open(&b, READ);
        for round in 0..4u64 {
            // Each sync publishes the new end of the log.
            put(&*of_a, &[b'a' + round as u8; 100], 100 * round);
            let of_b = open(&b, READ);
            let mut bytes = vec![0; 1000];
            let length = of_b.read_at(&mut bytes, 0).unwrap();
            assert_eq!(length as u64, 100 * (round + 1), "round {round}");
            let expected: Vec<u8> = (0..=round).flat_map(|r| [b'a' + r as u8; 100]).collect();
            assert_eq!(&bytes[..length], &expected[..]);
        }
    });
}

// --- data that a node writes back later ---------------------------------------------------------

/// Returns a mount of a node whose written data other nodes see after it was written back.
fn mount_of_delaying_node(store: &MemoryStore) -> LogFs {
    mounted::mount(vec![store.root_on_delaying_node()], MEMORY, choices(1 << 16, 0))
}

fn read(file: &dyn WritableFile) -> Vec<u8> {
    let mut bytes = vec![0xAA; 1 << 16];
    let length = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(length);
    bytes
}

/// The logs stay open after close(2) as long as another descriptor is open, and until the kernel
/// has passed on the last close.
#[test]
fn another_node_sees_data_after_a_close_whose_logs_stay_open() {
    in_both_forms(|| {
        let stores = stores(1);
        let (a, b) = (mount_of_delaying_node(&stores[0]), mount(&stores));
        let of_a = create(&a);
        let _kept = open(&b, READ);
        let mut expected = Vec::new();
        for round in 0..4 {
            let bytes = [b'a' + round; 100];
            of_a.write_at(&bytes, expected.len() as u64).unwrap();
            of_a.publish().unwrap();
            expected.extend(bytes);
            assert_eq!(read(&*open(&b, READ)), expected, "round {round}");
        }
    });
}

/// Another node reads before each operation on the store.
#[test]
fn no_read_fails_while_data_is_published_that_its_node_writes_back_later() {
    type Publication = fn(&dyn WritableFile) -> Result<()>;
    let publications: [Publication; 3] = [|file| file.publish(), |file| file.sync(), |file| file.close()];
    in_both_forms(|| {
        for publish in publications {
            let stores = stores(1);
            let b = Arc::new(mount(&stores));
            let reads = Arc::new(AtomicUsize::new(0));
            let (reader, count) = (Arc::clone(&b), Arc::clone(&reads));
            let is_active = Arc::new(AtomicBool::new(false));
            let active = Arc::clone(&is_active);
            let root = stores[0].root_on_delaying_node();
            let counting = CountingDir::with_hook(root, move |_, _| {
                if active.load(Ordering::Relaxed) {
                    let reader = Arc::clone(&reader);
                    let seen = std::thread::spawn(move || read(&*open(&reader, READ))).join().unwrap();
                    assert!(seen.is_empty() || seen == [7; 100], "{} bytes", seen.len());
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            let a = mounted::mount(vec![Arc::new(counting)], MEMORY, choices(1 << 16, 0));
            let of_a = create(&a);
            of_a.write_at(&[7; 100], 0).unwrap();
            is_active.store(true, Ordering::Relaxed);
            publish(&*of_a).unwrap();
            is_active.store(false, Ordering::Relaxed);
            assert_eq!(read(&*open(&b, READ)), [7; 100]);
            assert!(reads.load(Ordering::Relaxed) > 1);
        }
    });
}

#[test]
fn a_failed_write_back_is_returned_and_the_next_close_writes_the_data_again() {
    in_both_forms(|| {
        let stores = stores(1);
        let (a, b) = (mount_of_delaying_node(&stores[0]), mount(&stores));
        let of_a = create(&a);
        let other_of_a = open(&a, READ);
        of_a.write_at(&[7; 100], 0).unwrap();
        stores[0].fail(|operation| (operation.verb == "write back").then_some(EIO));
        assert_eq!(of_a.publish().unwrap_err().errno(), EIO);
        stores[0].fail(|operation| matches!(operation.verb, "write back" | "sync").then_some(EIO));
        assert_eq!(other_of_a.publish().unwrap_err().errno(), EIO, "every descriptor returns it");
        assert_eq!(of_a.publish().unwrap_err().errno(), EIO, "the data is not safe");
        // The data is synced, which does not need the operation that fails.
        stores[0].fail(|operation| (operation.verb == "write back").then_some(EIO));
        of_a.publish().unwrap();
        assert_eq!(read(&*open(&b, READ)), [7; 100]);
    });
}

// --- truncation ---------------------------------------------------------------------------------

#[test]
fn data_written_after_truncations_by_two_mounts_is_kept() {
    in_both_forms(|| {
        for with_open_truncate in [false, true] {
            let stores = stores(1);
            let (a, b) = (mount(&stores), mount(&stores));
            drop(create(&a));
            let how = |process| match with_open_truncate {
                true => truncating(by(process)),
                false => by(process),
            };
            let (of_a, of_b) = (open(&a, how(1)), open(&b, how(2)));
            if !with_open_truncate {
                truncate(&b, 0);
                truncate(&a, 0);
            }
            put(&*of_b, b"bbbb", 4);
            drop(of_b);
            put(&*of_a, b"aaaa", 0);
            drop(of_a);
            assert_eq!(content(&stores), b"aaaabbbb", "truncated at open: {with_open_truncate}");
        }
    });
}

#[test]
fn an_open_writer_keeps_data_written_after_a_truncation_by_another_mount() {
    in_both_forms(|| {
        let stores = stores(1);
        let mounts = [mount(&stores), mount(&stores), mount(&stores)];
        let files = [create(&mounts[0]), open(&mounts[1], by(2)), open(&mounts[2], by(3))];
        for round in 0..6u64 {
            for (number, file) in (0..).zip(&files) {
                put(&**file, &[b'0'; 30], number * 30 + 200);
            }
            for fs in &mounts {
                truncate(fs, 10 * round);
            }
            let mut expected = vec![0; 10 * round as usize];
            for (number, file) in (0..).zip(&files) {
                put(&**file, &[number as u8 + b'a'; 20], number * 20);
                let end = 20 * (number as usize + 1);
                expected.resize(expected.len().max(end), 0);
                expected[end - 20..end].fill(number as u8 + b'a');
            }
            assert_eq!(content(&stores), expected, "round {round}");
            // Each mount has the same content after it has read the file again.
            for file in &files {
                file.sync().unwrap();
                let mut bytes = vec![0; 1000];
                let n = file.read_at(&mut bytes, 0).unwrap();
                assert_eq!(bytes[..n], expected, "round {round}");
            }
            truncate(&mounts[1], 0);
        }
    });
}

#[test]
fn a_second_process_keeps_data_written_after_a_truncation_by_another_mount() {
    in_both_forms(|| {
        let stores = stores(1);
        let (a, b) = (mount(&stores), mount(&stores));
        let first = create(&a);
        put(&*first, b"first", 0);
        let second = open(&a, by(7));
        truncate(&b, 0);
        put(&*second, b"second", 0);
        drop(second);
        assert_eq!(content(&stores), b"second");
        put(&*first, b"first", 10);
        drop(first);
        assert_eq!(content(&stores), b"second\0\0\0\0first");
    });
}

#[test]
fn a_flat_index_created_before_or_after_a_truncation_shows_later_data() {
    in_both_forms(|| {
        let stores = stores(1);
        let (a, b) = (mount(&stores), mount(&stores));
        let of_a = create(&a);
        put(&*of_a, b"AAAAAAAA", 0);
        let of_b = open(&b, by(2));
        put(&*of_b, b"BBBBBBBB", 4);
        drop(of_b);
        b.flatten(node(&b, b"f")).unwrap();
        truncate(&b, 6);
        b.flatten(node(&b, b"f")).unwrap();
        put(&*of_a, b"after", 10);
        assert_eq!(content(&stores), b"AAAABB\0\0\0\0after");
        b.flatten(node(&b, b"f")).unwrap();
        assert_eq!(content(&stores), b"AAAABB\0\0\0\0after");
        drop(of_a);
        truncate(&b, 0);
        assert_eq!(content(&stores), b"");
    });
}

/// Returns a mount that calls `hook` before every operation on the stores.
fn hooked(stores: &[MemoryStore], hook: impl Fn() + Send + Sync + 'static) -> LogFs {
    let hook = Arc::new(hook);
    let roots = stores.iter().map(|store| {
        let hook = Arc::clone(&hook);
        let dir = CountingDir::<dyn WritableDir>::with_hook(store.root(), move |_, _| hook());
        Arc::new(dir) as Arc<dyn WritableDir>
    });
    mounted::mount(roots.collect(), MEMORY, choices(1 << 16, 0))
}

/// Runs an action of one mount at the `at`th operation of another mount on the stores, after it was
/// armed.
struct Between {
    at: usize,
    count: AtomicUsize,
    is_armed: AtomicBool,
    act: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Between {
    fn new(at: usize) -> Arc<Between> {
        let (count, is_armed) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Between { at, count, is_armed, act: Mutex::new(None) })
    }

    fn arm(&self, act: impl FnOnce() + Send + 'static) {
        *self.act.lock().unwrap() = Some(Box::new(act));
        self.is_armed.store(true, Ordering::SeqCst);
    }

    fn pass(&self) {
        if self.is_armed.load(Ordering::SeqCst) && self.count.fetch_add(1, Ordering::SeqCst) == self.at {
            let act = self.act.lock().unwrap().take().expect("it is done once");
            // The action runs on a thread of its own, because the caller holds locks of its mount.
            std::thread::spawn(act).join().unwrap();
        }
    }

    /// Returns true if the operation had enough steps for the action to run.
    fn disarm(&self) -> bool {
        self.is_armed.store(false, Ordering::SeqCst);
        self.act.lock().unwrap().is_none()
    }
}

/// Calls `run` for each operation on the stores during which another mount may act, until there are
/// no more.
fn at_every_operation(mut run: impl FnMut(Arc<Between>) -> bool) {
    let count = (0..1000).take_while(|at| run(Between::new(*at))).count();
    assert!((3..1000).contains(&count), "{count} operations");
}

#[test]
fn a_write_during_a_truncation_is_kept_or_dropped_and_a_later_one_is_kept() {
    in_both_forms(|| {
        for had_begun in [false, true] {
            for size in [0, 100] {
                at_every_operation(|between| {
                    let stores = stores(1);
                    let passes = Arc::clone(&between);
                    let (a, b) = (hooked(&stores, move || passes.pass()), Arc::new(mount(&stores)));
                    drop(create(&a));
                    let file: Arc<dyn WritableFile> = Arc::from(open(&b, by(2)));
                    if had_begun {
                        put(&*file, &[b'0'; 300], 0);
                    }
                    let during = Arc::clone(&file);
                    between.arm(move || put(&*during, b"during", 200));
                    truncate(&a, size);
                    let was_done = between.disarm();
                    put(&*file, b"after", 300);
                    let found = content(&stores);
                    let at = between.at;
                    assert_eq!(found.len(), 305, "{had_begun} {size} {at}");
                    assert_eq!(&found[300..], b"after", "{had_begun} {size} {at}");
                    let kept = if had_begun { size as usize } else { 0 };
                    assert!(found[..kept].iter().all(|byte| *byte == b'0'), "{had_begun} {size} {at}");
                    assert!(found[kept..200].iter().all(|byte| *byte == 0), "{had_begun} {size} {at}");
                    let during = &found[200..206];
                    assert!(during == b"during" || during == [0; 6], "{had_begun} {size} {at}: {during:?}");
                    was_done
                });
            }
        }
    });
}

#[test]
fn a_truncation_during_a_write_drops_no_later_write() {
    in_both_forms(|| {
        for had_begun in [false, true] {
            at_every_operation(|between| {
                let stores = stores(1);
                let passes = Arc::clone(&between);
                let (a, b) = (Arc::new(mount(&stores)), hooked(&stores, move || passes.pass()));
                drop(create(&b));
                let file = open(&b, by(2));
                if had_begun {
                    put(&*file, b"before", 0);
                }
                let other = Arc::clone(&a);
                between.arm(move || truncate(&other, 0));
                put(&*file, b"during", 100);
                let was_done = between.disarm();
                put(&*file, b"after", 200);
                let at = between.at;
                let found = content(&stores);
                assert_eq!((found.len(), &found[200..]), (205, &b"after"[..]), "{had_begun} {at}");
                let before: &[u8] = if had_begun && !was_done { b"before" } else { &[0; 6] };
                assert_eq!(&found[..6], before, "{had_begun} {at}");
                let during = &found[100..106];
                assert!(during == b"during" || was_done && during == [0; 6], "{had_begun} {at}: {during:?}");
                was_done
            });
        }
    });
}

#[test]
fn data_written_after_two_concurrent_truncations_is_kept() {
    in_both_forms(|| {
        at_every_operation(|between| {
            let stores = stores(1);
            let passes = Arc::clone(&between);
            let (a, b) = (hooked(&stores, move || passes.pass()), Arc::new(mount(&stores)));
            let c = mount(&stores);
            let files = [create(&a), open(&b, by(2)), open(&c, by(3))];
            files.iter().for_each(|file| put(&**file, &[b'0'; 300], 0));
            let other = Arc::clone(&b);
            between.arm(move || truncate(&other, 0));
            truncate(&a, 0);
            let was_done = between.disarm();
            for (number, file) in (0..).zip(&files) {
                put(&**file, &[b'1'; 10], number * 10);
            }
            assert_eq!(content(&stores), [b'1'; 30], "{}", between.at);
            was_done
        });
    });
}

/// Runs histories of one to three mounts: QUELL_HISTORIES of each (default 200), starting with seed
/// QUELL_SEED (default 0).
fn match_the_model(stores: usize, buffer_bytes: usize, flatten_bytes: u64) {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
    };
    let (count, first) = (number("QUELL_HISTORIES", 200), number("QUELL_SEED", 0));
    let make = |stores: &[MemoryStore], boots| -> Arc<dyn FileSystem> {
        Arc::new(mounted::mount_after(boots, roots(stores), MEMORY, choices(buffer_bytes, flatten_bytes)))
    };
    let (uid, gid) = MEMORY;
    let name = format!("log over {stores} stores, buffers of {buffer_bytes}");
    let implementation =
        CrashImplementation { name: &name, stores, make: &make, uid, gid, unsynced_damage: true };
    for mounts in 1..=3 {
        truncation::check(&implementation, mounts, first..first + count);
    }
}

#[test]
fn random_histories_with_truncations_by_several_mounts_match_the_model() {
    in_both_forms(|| match_the_model(1, 1 << 16, 0));
}

#[test]
fn random_histories_with_truncations_and_small_buffers_match_the_model() {
    match_the_model(1, 100, 1 << 20);
}

#[test]
fn random_histories_with_truncations_in_two_stores_match_the_model() {
    match_the_model(2, 100, 0);
}

// --- objects ------------------------------------------------------------------------------------

/// Writes `f` in pieces of 100,000 bytes to the end, and closes it. Returns its content.
fn write_object(file: Box<dyn WritableFile>, bytes: usize) -> Vec<u8> {
    let content: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
    for (piece, offset) in content.chunks(100_000).zip((0..).step_by(100_000)) {
        file.write_at(piece, offset).unwrap();
    }
    file.close().unwrap();
    content
}

#[test]
fn the_first_writer_loses_nothing_if_another_mount_writes_at_any_of_its_operations() {
    OBJECTS.set(true);
    for bytes in [0, 5, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 2_500_000, 17 << 20] {
        at_every_operation(|between| {
            let stores = stores(1);
            let passes = Arc::clone(&between);
            let (a, b) = (hooked(&stores, move || passes.pass()), Arc::new(mount(&stores)));
            let file = create(&a);
            let other = Arc::clone(&b);
            let end = bytes as u64 + 100;
            between.arm(move || {
                let file = open(&other, by(2));
                file.write_at(b"joined", end).unwrap();
                file.close().unwrap();
            });
            let mut expected = write_object(file, bytes);
            let was_done = between.disarm();
            if was_done {
                expected.resize(end as usize, 0);
                expected.extend(b"joined");
            }
            for fs in [&a, &*b, &mount(&stores)] {
                let file = open(fs, READ);
                let mut found = vec![0xAA; expected.len() + 1];
                let n = file.read_at(&mut found, 0).unwrap();
                let size = fs.attributes(&Context::OWN, node(fs, b"f")).unwrap().size_bytes;
                assert_eq!((n, size), (expected.len(), n as u64), "{bytes} {}", between.at);
                assert!(found[..n] == expected, "{bytes} {}", between.at);
            }
            was_done && between.at < 40
        });
    }
}

#[test]
fn what_the_first_writer_writes_after_a_truncation_by_another_mount_is_kept() {
    OBJECTS.set(true);
    for bytes in [300, 1 << 20] {
        at_every_operation(|between| {
            let stores = stores(1);
            let passes = Arc::clone(&between);
            let (a, b) = (hooked(&stores, move || passes.pass()), Arc::new(mount(&stores)));
            let file = create(&a);
            let other = Arc::clone(&b);
            between.arm(move || truncate(&other, 0));
            file.write_at(&vec![b'0'; bytes], 0).unwrap();
            file.publish().unwrap();
            file.write_at(b"during", bytes as u64).unwrap();
            file.sync().unwrap();
            let was_done = between.disarm();
            file.write_at(b"after", bytes as u64 + 100).unwrap();
            file.close().unwrap();
            let mut found = vec![0xAA; bytes + 200];
            let n = open(&mount(&stores), READ).read_at(&mut found, 0).unwrap();
            assert_eq!((n, &found[bytes + 100..n]), (bytes + 105, &b"after"[..]), "{bytes} {}", between.at);
            let is_kept = |part: &[u8], byte| part.iter().all(|found| *found == byte);
            let front = &found[..bytes];
            assert!(is_kept(front, b'0') || was_done && is_kept(front, 0), "{bytes} {}", between.at);
            was_done
        });
    }
}

#[test]
fn a_writer_that_is_killed_leaves_its_complete_frames_and_another_mount_continues_the_file() {
    OBJECTS.set(true);
    for bytes in [0, 77, 1 << 20] {
        let stores = stores(1);
        let a = mount(&stores);
        let file = create(&a);
        let content: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
        if bytes > 0 {
            file.write_at(&content, 0).unwrap();
        }
        // Never closed, as if the process were killed. Only full frames are in the object.
        let _killed = std::mem::ManuallyDrop::new((file, a));
        let kept = bytes >> 20 << 20;
        let b = mount(&stores);
        let size = || b.attributes(&Context::OWN, node(&b, b"f")).unwrap().size_bytes;
        assert_eq!(size(), kept as u64);
        let file = open(&b, by(2));
        file.write_at(b"more", kept as u64).unwrap();
        file.close().unwrap();
        let mut found = vec![0; bytes + 10];
        let n = open(&mount(&stores), READ).read_at(&mut found, 0).unwrap();
        assert!(n == kept + 4 && found[..kept] == content[..kept] && found[kept..n] == *b"more", "{bytes}");
    }
}

#[test]
fn nothing_of_a_removed_object_and_its_container_stays() {
    OBJECTS.set(true);
    for is_joined in [false, true] {
        for is_open in [false, true] {
            let stores = stores(1);
            let (a, b) = (mount(&stores), mount(&stores));
            let file = create(&a);
            file.write_at(&[1; 5000], 0).unwrap();
            file.publish().unwrap();
            if is_joined {
                put(&*open(&b, by(2)), b"joined", 9000);
            }
            let file = is_open.then_some(file); // closed if it is not open
            a.remove(&Context::OWN, a.root(), b"f").unwrap();
            if let Some(file) = file {
                // The file works as before until it is closed.
                file.write_at(b"later", 100).unwrap();
                let mut found = [0; 5];
                assert_eq!(file.read_at(&mut found, 100).unwrap(), 5);
                assert_eq!(found, *b"later", "{is_joined}");
                assert_eq!(file.attributes().unwrap().nlink, 0);
                file.close().unwrap();
            }
            drop((a, b));
            let own = stores[0].root().open_writable_dir(b".quell").unwrap();
            for name in [&b"new"[..], b"trash", b"parts"] {
                let left = own.open_writable_dir(name).unwrap().names().unwrap();
                assert!(left.is_empty(), "{is_joined} {is_open}: {}", left[0].escape_ascii());
            }
            assert_eq!(stores[0].root().names().unwrap(), [b".quell"]);
        }
    }
}

// --- zeros --------------------------------------------------------------------------------------

#[test]
fn zeros_replace_data_within_the_file_and_are_ordered_with_writes_of_other_mounts() {
    in_both_forms(|| {
        let stores = stores(1);
        let (a, b) = (mount(&stores), mount(&stores));
        let of_a = create(&a);
        put(&*of_a, &[b'a'; 300], 0);
        let of_b = open(&b, by(2));
        of_b.write_zeros(100, 1 << 40).unwrap();
        of_b.sync().unwrap();
        of_a.sync().unwrap();
        put(&*of_a, b"after", 150);
        let expected = [&[b'a'; 100][..], &[0; 50], b"after", &[0; 145]].concat();
        assert_eq!(content(&stores), expected);
        // Both the flat index and the data logs show the zeros.
        b.flatten(node(&b, b"f")).unwrap();
        assert_eq!(content(&stores), expected);
        of_b.write_zeros(0, 120).unwrap();
        of_b.publish().unwrap();
        assert_eq!(content(&stores), [&[0; 150][..], b"after", &[0; 145]].concat());
        truncate(&a, 50);
        assert_eq!(content(&stores), [0; 50]);
    });
}

/// Seed 1810 with two mounts and small buffers.
#[test]
fn zeros_are_written_to_a_file_whose_flat_index_is_damaged() {
    let stores = stores(1);
    let fs = mount(&stores);
    let of_a = create(&fs);
    put(&*of_a, &[b'a'; 300], 0);
    fs.flatten(node(&fs, b"f")).unwrap();
    drop(of_a);
    let dir = stores[0].root().open_writable_dir(b"f.container").unwrap();
    let flat = dir.names().unwrap().into_iter().find(|name| name.starts_with(b"flat-")).unwrap();
    // The first page follows the header of 64 bytes.
    dir.open_writable_file(&flat).unwrap().write_at(b"\xff", 64).unwrap();
    let fs = mount(&stores);
    let file = open(&fs, by(2));
    file.write_zeros(100, 50).unwrap();
    drop(file);
    assert_eq!(content(&stores), [&[b'a'; 100][..], &[0; 50], &[b'a'; 150]].concat());
}

#[test]
fn zeros_replace_data_that_was_not_written_to_the_log_yet() {
    in_both_forms(|| {
        let stores = stores(1);
        let fs = mount(&stores);
        let (one, other) = (create(&fs), open(&fs, by(7)));
        one.write_at(&[b'1'; 100], 0).unwrap();
        other.write_at(&[b'2'; 100], 50).unwrap();
        one.write_zeros(40, 20).unwrap();
        other.write_at(b"3", 50).unwrap();
        one.write_zeros(120, 10).unwrap();
        let expected =
            [&[b'1'; 40][..], &[0; 10], b"3", &[0; 9], &[b'2'; 60], &[0; 10], &[b'2'; 20]].concat();
        let mut found = vec![0xAA; 1000];
        let length = one.read_at(&mut found, 0).unwrap();
        assert_eq!(&found[..length], &expected[..]);
        drop((one, other));
        assert_eq!(content(&stores), expected);
    });
}

#[test]
fn a_large_hole_takes_little_space_in_the_store() {
    let stores = stores(1);
    let fs = mount(&stores);
    let file = create(&fs);
    let end = 5 << 40;
    put(&*file, b"start", 0);
    put(&*file, b"end", end);
    let blocks = || fs.attributes(&Context::OWN, node(&fs, b"f")).unwrap().blocks;
    let before = blocks();
    // There is data near both ends only, and the rest is a hole already.
    for _ in 0..3 {
        file.write_zeros(0, end + 1).unwrap();
        file.sync().unwrap();
    }
    assert!(blocks() - before <= 2, "{} of {before} blocks", blocks());
    let mut found = [0xAA; 8];
    assert_eq!((file.read_at(&mut found, end - 2).unwrap(), &found[..5]), (5, &b"\0\0\0nd"[..]));
    assert_eq!((file.read_at(&mut found, 0).unwrap(), found), (8, [0; 8]));
}

#[test]
fn zeros_are_written_during_a_truncation_by_another_mount_before_or_after_it() {
    in_both_forms(|| {
        at_every_operation(|between| {
            let stores = stores(1);
            let passes = Arc::clone(&between);
            let (a, b) = (hooked(&stores, move || passes.pass()), Arc::new(mount(&stores)));
            drop(create(&a));
            let file: Arc<dyn WritableFile> = Arc::from(open(&b, by(2)));
            put(&*file, &[b'0'; 300], 0);
            let during = Arc::clone(&file);
            between.arm(move || {
                during.write_zeros(50, 100).unwrap();
                during.sync().unwrap();
            });
            truncate(&a, 100);
            let was_done = between.disarm();
            put(&*file, b"after", 10);
            let (found, at) = (content(&stores), between.at);
            assert_eq!(
                (&found[..10], &found[10..15], &found[15..50]),
                (&[b'0'; 10][..], &b"after"[..], &[b'0'; 35][..])
            );
            let zeros = if was_done { 0 } else { b'0' };
            assert!(found[50..100].iter().all(|byte| *byte == zeros), "{at}");
            // As a write, the zeros may be later than the truncation.
            assert!(found.len() == 100 || was_done && found.len() == 150, "{at}: {} bytes", found.len());
            assert!(found[100..].iter().all(|byte| *byte == 0), "{at}");
            was_done
        });
    });
}

// --- directories --------------------------------------------------------------------------------

/// Returns true if every store has the directory `name`.
fn is_everywhere(stores: &[MemoryStore], name: &[u8]) -> bool {
    stores.iter().all(|store| store.root().stat(name).is_ok())
}

fn make_files(fs: &LogFs, dir: NodeId) -> Vec<(Vec<u8>, Result<()>)> {
    let one = |number: usize| {
        let name = format!("file{number}").into_bytes();
        let made = fs.create(&Context::for_process(9), dir, &name, NEW, OpenMode::READ_WRITE).map(drop);
        (name, made)
    };
    (0..6).map(one).collect()
}

#[test]
fn of_two_concurrent_mkdir_calls_exactly_one_succeeds() {
    for count in [1, 2] {
        at_every_operation(|between| {
            let stores = stores(count);
            let passes = Arc::clone(&between);
            let (a, b) = (hooked(&stores, move || passes.pass()), Arc::new(mount(&stores)));
            let results = Arc::new(Mutex::new(None));
            let (other, reported) = (Arc::clone(&b), Arc::clone(&results));
            between.arm(move || {
                let made = other.make_dir(&Context::OWN, other.root(), b"dir", NEW);
                let files = made.as_ref().ok().map(|dir| make_files(&other, dir.node));
                *reported.lock().unwrap() = Some((made.map(drop), files));
            });
            let made = a.make_dir(&Context::OWN, a.root(), b"dir", NEW).map(drop);
            let was_done = between.disarm();
            let at = between.at;
            let fresh = mount(&stores);
            let dir = node(&fresh, b"dir");
            if let Some((other, files)) = results.lock().unwrap().take() {
                assert_ne!(made.is_ok(), other.is_ok(), "{count} {at}: {made:?} {other:?}");
                let lost = made.and(other).unwrap_err();
                assert_eq!(lost.kind, ErrorKind::Exists, "{count} {at}");
                for (name, made) in files.unwrap_or_default() {
                    made.unwrap();
                    assert!(fresh.lookup(&Context::OWN, dir, &name).unwrap().is_some(), "{count} {at}");
                }
            }
            assert!(make_files(&fresh, dir).iter().all(|(_, made)| {
                made.as_ref().is_ok_and(|()| true)
                    || made.as_ref().is_err_and(|error| error.kind == ErrorKind::Exists)
            }));
            assert!(is_everywhere(&stores, b"dir"), "{count} {at}");
            was_done
        });
    }
}

#[test]
fn a_directory_that_is_filled_while_it_is_removed_stays_in_every_store() {
    for count in [1, 2, 3] {
        for knows_it in [false, true] {
            at_every_operation(|between| {
                let stores = stores(count);
                let passes = Arc::clone(&between);
                let (a, b) = (hooked(&stores, move || passes.pass()), Arc::new(mount(&stores)));
                a.make_dir(&Context::OWN, a.root(), b"dir", NEW).unwrap();
                if knows_it {
                    let dir = node(&b, b"dir");
                    drop(b.create(&Context::for_process(1), dir, b"x", NEW, OpenMode::READ_WRITE).unwrap());
                    b.remove(&Context::OWN, dir, b"x").unwrap();
                }
                let results = Arc::new(Mutex::new(Vec::new()));
                let (other, reported) = (Arc::clone(&b), Arc::clone(&results));
                between.arm(move || {
                    if let Ok(Some(dir)) = other.lookup(&Context::OWN, other.root(), b"dir") {
                        *reported.lock().unwrap() = make_files(&other, dir.node);
                    }
                });
                let removed = a.remove_dir(&Context::OWN, a.root(), b"dir");
                let was_done = between.disarm();
                let at = between.at;
                let files = std::mem::take(&mut *results.lock().unwrap());
                let made: Vec<_> = files.iter().filter(|(_, made)| made.is_ok()).collect();
                let fresh = mount(&stores);
                let dir = fresh.lookup(&Context::OWN, fresh.root(), b"dir").unwrap();
                assert_eq!(removed.is_ok(), dir.is_none(), "{count} {knows_it} {at}");
                assert_eq!(
                    removed.is_ok(),
                    made.is_empty(),
                    "{count} {knows_it} {at}: {removed:?} {files:?}"
                );
                if let Some(dir) = dir {
                    assert_eq!(removed.unwrap_err().kind, ErrorKind::NotEmpty, "{count} {knows_it} {at}");
                    assert!(is_everywhere(&stores, b"dir"), "{count} {knows_it} {at}");
                    // The mount that filled the directory can continue to use it.
                    let again = node(&b, b"dir");
                    for (name, _) in made {
                        for (fs, dir) in [(&fresh, dir.node), (&*b, again)] {
                            assert!(
                                fs.lookup(&Context::OWN, dir, name).unwrap().is_some(),
                                "{count} {knows_it} {at}"
                            );
                        }
                    }
                    make_files(&b, again);
                    for (name, _) in make_files(&fresh, dir.node) {
                        assert!(
                            b.lookup(&Context::OWN, again, &name).unwrap().is_some(),
                            "{count} {knows_it} {at}"
                        );
                    }
                }
                was_done
            });
        }
    }
}

#[test]
fn files_created_in_a_directory_during_a_rename_over_it_are_kept() {
    for count in [1, 2] {
        at_every_operation(|between| {
            let stores = stores(count);
            let passes = Arc::clone(&between);
            let (a, b) = (hooked(&stores, move || passes.pass()), Arc::new(mount(&stores)));
            for name in [b"old", b"new"] {
                a.make_dir(&Context::OWN, a.root(), name, NEW).unwrap();
            }
            drop(
                a.create(&Context::for_process(1), node(&a, b"old"), b"inside", NEW, OpenMode::READ_WRITE)
                    .unwrap(),
            );
            let results = Arc::new(Mutex::new(Vec::new()));
            let (other, reported) = (Arc::clone(&b), Arc::clone(&results));
            between.arm(move || {
                if let Ok(Some(dir)) = other.lookup(&Context::OWN, other.root(), b"new") {
                    *reported.lock().unwrap() = make_files(&other, dir.node);
                }
            });
            let renamed = a.rename(&Context::OWN, a.root(), b"old", a.root(), b"new", Rename::Replace);
            let was_done = between.disarm();
            let at = between.at;
            let files = std::mem::take(&mut *results.lock().unwrap());
            let fresh = mount(&stores);
            let new = node(&fresh, b"new");
            let old = fresh.lookup(&Context::OWN, fresh.root(), b"old").unwrap();
            for (name, _) in files.iter().filter(|(_, made)| made.is_ok()) {
                // With several stores, both names may temporarily lead to both directories.
                let is_in_old = count > 1
                    && old
                        .as_ref()
                        .is_some_and(|old| fresh.lookup(&Context::OWN, old.node(), name).unwrap().is_some());
                let is_there = is_in_old || fresh.lookup(&Context::OWN, new, name).unwrap().is_some();
                assert!(is_there, "{count} {at}: {renamed:?}");
            }
            match renamed {
                Ok(()) => {
                    assert!(fresh.lookup(&Context::OWN, new, b"inside").unwrap().is_some(), "{count} {at}");
                    assert!(
                        fresh.lookup(&Context::OWN, fresh.root(), b"old").unwrap().is_none(),
                        "{count} {at}"
                    );
                }
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::NotEmpty, "{count} {at}");
                    let old = node(&fresh, b"old");
                    assert!(fresh.lookup(&Context::OWN, old, b"inside").unwrap().is_some(), "{count} {at}");
                    assert!(is_everywhere(&stores, b"old") && is_everywhere(&stores, b"new"), "{count} {at}");
                }
            }
            was_done
        });
    }
}

#[test]
fn a_rename_to_a_name_that_is_created_meanwhile_succeeds_or_returns_exists() {
    in_both_forms(|| {
        for how in [Rename::Replace, Rename::Keep] {
            at_every_operation(|between| {
                let stores = stores(1);
                let passes = Arc::clone(&between);
                let (a, b) = (hooked(&stores, move || passes.pass()), Arc::new(mount(&stores)));
                drop(
                    a.create(&Context::for_process(1), a.root(), b"from", NEW, OpenMode::READ_WRITE).unwrap(),
                );
                let other = Arc::clone(&b);
                between.arm(move || {
                    drop(other.create(
                        &Context::for_process(2),
                        other.root(),
                        b"to",
                        NEW,
                        OpenMode::READ_WRITE,
                    ))
                });
                let renamed = a.rename(&Context::OWN, a.root(), b"from", a.root(), b"to", how);
                let was_done = between.disarm();
                let at = between.at;
                let fresh = mount(&stores);
                assert!(fresh.lookup(&Context::OWN, fresh.root(), b"to").unwrap().is_some(), "{at}");
                match renamed {
                    Ok(()) => {
                        assert!(fresh.lookup(&Context::OWN, fresh.root(), b"from").unwrap().is_none(), "{at}")
                    }
                    Err(error) => assert_eq!((error.kind, how), (ErrorKind::Exists, Rename::Keep), "{at}"),
                }
                was_done
            });
        }
    });
}

/// The results of two renames to one name, the second during the first.
struct Renamed {
    renamed: Result<()>,
    /// `None`: the first rename ended before the operation at which the second begins.
    other_renamed: Option<Result<()>>,
    was_done: bool,
}

/// Renames `first` on mount `a` to `to`, and during it `second` on mount `b` to the same name.
fn rename_both_to_one_name(
    between: &Between,
    a: &LogFs,
    first: &[u8],
    b: &Arc<LogFs>,
    second: &[u8],
) -> Renamed {
    let result = Arc::new(Mutex::new(None));
    let (other, reports, from) = (Arc::clone(b), Arc::clone(&result), second.to_vec());
    between.arm(move || {
        *reports.lock().unwrap() =
            Some(other.rename(&Context::OWN, other.root(), &from, other.root(), b"to", Rename::Replace));
    });
    let renamed = a.rename(&Context::OWN, a.root(), first, a.root(), b"to", Rename::Replace);
    let was_done = between.disarm();
    let other_renamed = result.lock().unwrap().take();
    Renamed { renamed, other_renamed, was_done }
}

/// Mount `a` renames a directory to `to` while another mount renames its own one to the same name.
#[test]
fn two_directories_renamed_to_one_name_by_two_mounts_keep_their_files() {
    // With these names, the files of both directories are in both stores.
    let names = [&b"0"[..], b"1", b"2", b"3"];
    for (mine, theirs) in names.iter().flat_map(|mine| names.iter().map(move |theirs| (*mine, *theirs))) {
        for is_target_there in [false, true] {
            at_every_operation(|between| {
                let stores = stores(2);
                let passes = Arc::clone(&between);
                let (a, b) = (hooked(&stores, move || passes.pass()), Arc::new(mount(&stores)));
                for (dir, file) in [(b"a", [b"a-", mine].concat()), (b"b", [b"b-", theirs].concat())] {
                    a.make_dir(&Context::OWN, a.root(), dir, NEW).unwrap();
                    drop(
                        a.create(&Context::for_process(1), node(&a, dir), &file, NEW, OpenMode::READ_WRITE)
                            .unwrap(),
                    );
                }
                if is_target_there {
                    a.make_dir(&Context::OWN, a.root(), b"to", NEW).unwrap();
                }
                let Renamed { renamed, other_renamed, was_done } =
                    rename_both_to_one_name(&between, &a, b"a", &b, b"b");
                let fresh = mount(&stores);
                let is_in = |dir: &[u8], file: &[u8]| {
                    let dir = fresh.lookup(&Context::OWN, fresh.root(), dir).unwrap();
                    dir.is_some_and(|dir| fresh.lookup(&Context::OWN, dir.node, file).unwrap().is_some())
                };
                let results = [
                    (&b"a"[..], [b"a-", mine].concat(), Some(&renamed)),
                    (b"b", [b"b-", theirs].concat(), other_renamed.as_ref()),
                ];
                for (dir, file, result) in results {
                    let (is_old, is_new) = (is_in(dir, &file), is_in(b"to", &file));
                    let is_renamed = result.is_some_and(Result::is_ok);
                    assert_eq!(
                        (is_old, is_new),
                        (!is_renamed, is_renamed),
                        "{}: {}, {:?}, other {other_renamed:?}, {renamed:?}",
                        between.at,
                        file.escape_ascii(),
                        result
                    );
                }
                was_done
            });
        }
    }
}

#[test]
fn renames_of_two_files_to_one_name_by_two_mounts_both_succeed_in_any_stores() {
    in_both_forms(|| {
        let names = [&b"0"[..], b"1", b"2", b"3"];
        for (mine, theirs) in names.iter().flat_map(|mine| names.iter().map(move |theirs| (*mine, *theirs))) {
            for is_target_there in [false, true] {
                at_every_operation(|between| {
                    let stores = stores(2);
                    let passes = Arc::clone(&between);
                    let (a, b) = (hooked(&stores, move || passes.pass()), Arc::new(mount(&stores)));
                    let (first, second) = ([b"a-", mine].concat(), [b"b-", theirs].concat());
                    let made = [&first[..], &second, b"to"];
                    for name in &made[..2 + usize::from(is_target_there)] {
                        let file = a
                            .create(&Context::for_process(1), a.root(), name, NEW, OpenMode::READ_WRITE)
                            .unwrap()
                            .1;
                        put(&*file, name, 0);
                    }
                    let Renamed { renamed, other_renamed, was_done } =
                        rename_both_to_one_name(&between, &a, &first, &b, &second);
                    let at = between.at;
                    assert!(renamed.is_ok(), "{at}: {renamed:?}");
                    assert!(other_renamed.as_ref().is_none_or(Result::is_ok), "{at}: {other_renamed:?}");
                    let fresh = mount(&stores);
                    let is_there =
                        |name: &[u8]| fresh.lookup(&Context::OWN, fresh.root(), name).unwrap().is_some();
                    assert!(!is_there(&first) && is_there(&second) == other_renamed.is_none(), "{at}");
                    let mut bytes = [0; 4];
                    let file = fresh.open_as(&Context::OWN, node(&fresh, b"to"), OpenMode::READ).unwrap();
                    let length = file.read_at(&mut bytes, 0).unwrap();
                    let now = &bytes[..length];
                    assert!(now == first || other_renamed.is_some() && now == second, "{at}: {now:?}");
                    was_done
                });
            }
        }
    });
}

#[test]
fn a_file_that_another_mount_closes_or_syncs_while_it_is_removed_leaves_nothing_in_the_store() {
    in_both_forms(|| {
        for flatten_bytes in [0, 1 << 20] {
            for closes in [false, true] {
                at_every_operation(|between| {
                    let stores = stores(2);
                    let passes = Arc::clone(&between);
                    let a = hooked(&stores, move || passes.pass());
                    let roots = roots(&stores);
                    let b = Arc::new(mounted::mount(roots, MEMORY, choices(100, flatten_bytes)));
                    let (created, file) = b
                        .create(&Context::for_process(1), b.root(), b"f", NEW, OpenMode::READ_WRITE)
                        .unwrap();
                    let node = created.into_attributes().node;
                    put(&*file, b"synced", 0);
                    file.sync().unwrap();
                    file.write_at(b"more", 6).unwrap();
                    between.arm(move || {
                        // The file may be removed already.
                        let _ = if closes { file.publish() } else { file.sync() };
                        drop(file);
                    });
                    a.remove(&Context::OWN, a.root(), b"f").unwrap();
                    let was_done = between.disarm();
                    b.forget(node, 1);
                    drop(b);
                    for store in &stores {
                        let own = store.root().open_dir(b".quell").unwrap();
                        for area in [&b"new"[..], b"trash", b"parts"] {
                            let left = own.open_dir(area).unwrap().names().unwrap();
                            assert!(left.is_empty(), "{} {flatten_bytes} {closes} {left:?}", between.at);
                        }
                    }
                    was_done
                });
            }
        }
    });
}
