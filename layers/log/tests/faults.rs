//! Tests the behaviour for programs when a store fails temporarily, when two nodes act at the same
//! time, and when another process syncs.

mod mounted;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use mounted::{MEMORY, own};
use quell_log::{Choices, LogFs};
use quell_posix::{PosixDir, WritableDir};
use quell_testkit::{MemoryStore, Writeback};
use quell_vfs::{
    Change, Context, ErrorKind, FileSystem, NewEntry, OpenMode, Result, Writable, WritableFile, errno,
};

fn mount(root: Arc<dyn WritableDir>, owner: (u32, u32), buffer_bytes: usize) -> LogFs {
    mounted::mount(
        vec![root],
        owner,
        Choices {
            buffer_bytes,
            index_threads: 1,
            flatten_bytes: 0,
            flattens_later: false,
            begins_as_object: false,
        },
    )
}

fn on_disk(path: &Path) -> LogFs {
    mount(Arc::new(PosixDir::open(path).unwrap()), own(), 1 << 16)
}

fn in_memory(store: &MemoryStore, buffer_bytes: usize) -> LogFs {
    mount(store.root(), MEMORY, buffer_bytes)
}

fn make(fs: &LogFs, (uid, gid): (u32, u32)) -> Box<dyn WritableFile> {
    let new = NewEntry { permissions: 0o640, uid, gid };
    fs.create(&Context::for_process(1), fs.root(), b"f", new, OpenMode::READ_WRITE).unwrap().1
}

fn open(fs: &LogFs, (context, mode): Opening) -> Result<Box<dyn WritableFile>> {
    let node = fs.lookup(&Context::OWN, fs.root(), b"f")?.expect("it is there").into_attributes().node;
    fs.open_as(&context, node, mode)
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

fn read(file: &dyn WritableFile, count: usize) -> Vec<u8> {
    let mut bytes = vec![0xAA; count];
    let n = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(n);
    bytes
}

#[test]
fn concurrent_stats_of_a_closed_file_return_its_size() {
    let temp = tempfile::tempdir().unwrap();
    let fs = on_disk(temp.path());
    let file = make(&fs, own());
    file.write_at(&[7; 5000], 0).unwrap();
    file.publish().unwrap();
    drop(file);
    let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                (0..1000)
                    .for_each(|_| assert_eq!(fs.attributes(&Context::OWN, node).unwrap().size_bytes, 5000))
            });
        }
    });
}

#[test]
fn a_write_after_a_second_open_is_later_than_data_that_the_node_has_read() {
    let temp = tempfile::tempdir().unwrap();
    let (a, b) = (on_disk(temp.path()), on_disk(temp.path()));
    drop(make(&on_disk(temp.path()), own()));
    let (of_a, of_b) = (open(&a, by(1)).unwrap(), open(&b, by(2)).unwrap());
    of_a.write_at(b"first of a", 500).unwrap();
    // Creates the state after both nodes listed the epochs and before either took one.
    for entry in std::fs::read_dir(temp.path().join("f.container")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_str().unwrap().starts_with("epoch-") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    for _ in 0..10 {
        of_b.write_at(b"from b, older", 0).unwrap();
        of_b.publish().unwrap();
    }
    drop(of_b);
    of_a.publish().unwrap();
    drop(of_a);
    let of_a = open(&a, by(1)).unwrap();
    assert_eq!(read(&*of_a, 13), b"from b, older");
    of_a.write_at(b"from a, newer", 0).unwrap();
    of_a.publish().unwrap();
    drop(of_a);
    assert_eq!(read(&*open(&on_disk(temp.path()), by(3)).unwrap(), 13), b"from a, newer");
}

#[test]
fn concurrent_opens_that_truncate_a_file_all_succeed() {
    let temp = tempfile::tempdir().unwrap();
    let (a, b) = (on_disk(temp.path()), on_disk(temp.path()));
    drop(make(&a, own()));
    for round in 0..40 {
        for process in 0..4 {
            let file = open(&a, by(process + 10)).unwrap();
            file.write_at(&[1; 100], u64::from(process) * 100).unwrap();
            file.publish().unwrap();
        }
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            for fs in [&a, &b] {
                let barrier = &barrier;
                scope.spawn(move || {
                    let node =
                        fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
                    barrier.wait();
                    drop(
                        fs.open_as(
                            &Context::for_process(100 + round),
                            node,
                            OpenMode { truncate: true, ..OpenMode::READ_WRITE },
                        )
                        .unwrap(),
                    );
                });
            }
        });
        assert_eq!(read(&*open(&b, by(1)).unwrap(), 10), b"");
    }
}

#[test]
fn a_copied_container_is_another_file() {
    let temp = tempfile::tempdir().unwrap();
    let fs = on_disk(temp.path());
    let file = make(&fs, own());
    file.write_at(b"original", 0).unwrap();
    file.publish().unwrap();
    drop(file);
    let [from, to] = ["f.container", "copy.container"].map(|name| temp.path().join(name));
    assert!(std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
    let file = open(&fs, by(1)).unwrap();
    let node = fs.lookup(&Context::OWN, fs.root(), b"copy").unwrap().unwrap().into_attributes().node;
    let copy = fs.open_as(&Context::for_process(2), node, OpenMode::READ_WRITE).unwrap();
    copy.write_at(b"CHANGED!", 0).unwrap();
    copy.publish().unwrap();
    assert_eq!((read(&*file, 8), read(&*copy, 8)), (b"original".to_vec(), b"CHANGED!".to_vec()));
    drop((file, copy));
    assert_eq!(read(&*open(&on_disk(temp.path()), by(1)).unwrap(), 8), b"original");
}

#[test]
fn collected_data_is_written_after_the_store_was_full() {
    for nth in 0..4 {
        let store = MemoryStore::new();
        let fs = in_memory(&store, 1 << 16);
        let file = make(&fs, MEMORY);
        file.write_at(b"hello", 0).unwrap();
        let count = AtomicU64::new(0);
        store.fail(move |operation| {
            let is_it = operation.verb.starts_with("write") && count.fetch_add(1, Ordering::Relaxed) == nth;
            is_it.then_some(errno::ENOSPC)
        });
        assert_eq!(file.publish().unwrap_err().kind, ErrorKind::NoSpace, "write {nth}");
        store.fail_nothing();
        file.publish().unwrap();
        drop(file);
        assert_eq!(read(&*open(&in_memory(&store, 1 << 16), by(2)).unwrap(), 9), b"hello");
    }
}

#[test]
fn a_failed_large_write_does_not_hide_writes_of_other_processes() {
    let store = MemoryStore::new();
    let fs = in_memory(&store, 4096);
    let a = make(&fs, MEMORY);
    let b = open(&fs, by(2)).unwrap();
    for (file, offset) in [(&a, 100_000), (&b, 200_000)] {
        file.write_at(b"x", offset).unwrap();
        file.publish().unwrap();
    }
    store.fail(|operation| operation.verb.starts_with("write").then_some(errno::ENOSPC));
    assert_eq!(a.write_at(&[1; 8192], 0).unwrap_err().kind, ErrorKind::NoSpace);
    store.fail_nothing();
    b.write_at(b"overlaps", 10).unwrap();
    assert_eq!(read(&*a, 18)[10..], *b"overlaps");
}

#[test]
fn the_logs_of_an_open_writer_are_not_opened_before_the_file_is_read() {
    let store = MemoryStore::new();
    let (a, b) = (in_memory(&store, 100), in_memory(&store, 100));
    let file = make(&a, MEMORY);
    file.write_at(&[b'1'; 2000], 0).unwrap();
    file.publish().unwrap();
    file.write_at(&[b'2'; 2000], 1000).unwrap();
    // The other node must not open or stat a log: on some file systems this revokes the lock that
    // lets the writer buffer its data.
    store.fail(|operation| {
        let is_log = [b".data".as_slice(), b".index"].iter().any(|end| operation.path.ends_with(end));
        is_log.then_some(errno::EIO)
    });
    let found = b.lookup(&Context::OWN, b.root(), b"f").unwrap().unwrap();
    assert_eq!(found.size_bytes, 2000);
    drop(b.open_as(&Context::for_process(2), found.node(), OpenMode::WRITE).unwrap());
    store.fail_nothing();
    // The read returns the published data, whose size stat reports.
    assert_eq!(read(&*open(&b, READ).unwrap(), 5000), [b'1'; 2000]);
    file.publish().unwrap();
    assert_eq!(b.attributes(&Context::OWN, found.node).unwrap().size_bytes, 3000);
    assert_eq!(read(&*open(&b, READ).unwrap(), 5000)[1000..], [b'2'; 2000]);
}

#[test]
fn an_open_succeeds_after_an_index_log_could_not_be_read() {
    let store = MemoryStore::new();
    let (a, b) = (in_memory(&store, 1 << 16), in_memory(&store, 1 << 16));
    let file = make(&a, MEMORY);
    file.write_at(&[b'1'; 20], 0).unwrap();
    file.publish().unwrap();
    assert_eq!(read(&*open(&b, READ).unwrap(), 20), [b'1'; 20]);
    file.write_at(&[b'2'; 20], 0).unwrap();
    file.publish().unwrap();
    store.fail(|operation| {
        let is_index = operation.path.ends_with(b".index");
        (operation.verb.starts_with("open") && is_index).then_some(errno::EIO)
    });
    assert_eq!(open(&b, READ).err().unwrap().errno(), errno::EIO);
    store.fail_nothing();
    assert_eq!(read(&*open(&b, READ).unwrap(), 20), [b'2'; 20]);
}

#[test]
fn a_failed_append_leaves_no_hole() {
    let store = MemoryStore::new();
    let fs = in_memory(&store, 64);
    let file = make(&fs, MEMORY);
    file.append(&[b'a'; 100]).unwrap();
    store.fail(|operation| operation.verb.starts_with("write").then_some(errno::ENOSPC));
    assert!(file.append(&[b'b'; 100]).is_err());
    store.fail_nothing();
    assert_eq!(file.append(&[b'c'; 100]).unwrap(), 100);
}

#[test]
fn a_failed_first_write_leaves_no_hole_and_hides_no_later_data() {
    let store = MemoryStore::new();
    let fs = in_memory(&store, 64);
    let file = make(&fs, MEMORY);
    // The log is created, but there is no space for the frame.
    let count = AtomicU64::new(0);
    store.fail(move |operation| {
        let is_data = operation.verb.starts_with("write") && is_data(&operation.path);
        (is_data && count.fetch_add(1, Ordering::Relaxed) == 1).then_some(errno::ENOSPC)
    });
    assert_eq!(file.write_at(&[b'a'; 100], 500).unwrap_err().kind, ErrorKind::NoSpace);
    store.fail_nothing();
    file.sync().unwrap();
    assert_eq!(file.append(&[b'b'; 100]).unwrap(), 0);
    assert_eq!(read(&*file, 200), [b'b'; 100]);
    file.sync().unwrap();
    // The mount ends without a close.
    let after = in_memory(&store.crash(0), 64);
    assert_eq!(read(&*open(&after, by(2)).unwrap(), 200), [b'b'; 100]);
}

#[test]
fn data_written_after_a_failed_write_and_a_truncation_by_another_mount_is_kept() {
    let store = MemoryStore::new();
    let (a, b) = (in_memory(&store, 64), in_memory(&store, 64));
    let of_a = make(&a, MEMORY);
    of_a.write_at(&[b'a'; 100], 0).unwrap();
    of_a.publish().unwrap();
    // The frame is written to the log in part.
    store.set_free_bytes(Some(8192));
    assert_eq!(of_a.write_at(&[b'b'; 50_000], 0).unwrap_err().kind, ErrorKind::NoSpace);
    store.set_free_bytes(None);
    drop(open(&b, truncating(by(2))).unwrap());
    of_a.write_at(b"after the truncation", 0).unwrap();
    of_a.publish().unwrap();
    assert_eq!(read(&*open(&b, by(2)).unwrap(), 100), b"after the truncation");
    assert_eq!(read(&*of_a, 100), b"after the truncation");
}

#[test]
fn a_removed_file_does_not_reappear_after_a_sync_of_the_directory() {
    for seed in 0..40 {
        let store = MemoryStore::new();
        let fs = in_memory(&store, 64);
        let file = make(&fs, MEMORY);
        file.write_at(b"removed", 0).unwrap();
        file.sync().unwrap();
        drop(file);
        fs.remove(&Context::OWN, fs.root(), b"f").unwrap();
        fs.sync_dir(&Context::OWN, fs.root()).unwrap();
        // Creates another file with this name, which is not synced.
        drop(make(&fs, MEMORY));
        let after = in_memory(&store.crash(seed), 64);
        match after.lookup(&Context::OWN, after.root(), b"f") {
            Ok(found) => assert_eq!(found.map_or(0, |found| found.size_bytes), 0, "seed {seed}"),
            // Its record may be lost, because it was not synced.
            Err(error) => assert_eq!(error.kind, ErrorKind::Damaged, "seed {seed}"),
        }
    }
}

#[test]
fn a_sync_includes_data_of_closed_writers() {
    for how in [by(2), READ] {
        let store = MemoryStore::new();
        let fs = in_memory(&store, 1 << 16);
        let file = make(&fs, MEMORY);
        file.write_at(b"payload", 0).unwrap();
        file.publish().unwrap();
        drop(file);
        open(&fs, how).unwrap().sync().unwrap();
        for seed in 0..20 {
            let after = in_memory(&store.crash(seed), 1 << 16);
            assert_eq!(read(&*open(&after, READ).unwrap(), 9), b"payload", "seed {seed}, {how:?}");
        }
    }
}

#[test]
fn a_failed_open_keeps_collected_data_of_other_processes() {
    let store = MemoryStore::new();
    let fs = in_memory(&store, 1 << 16);
    let file = make(&fs, MEMORY);
    file.write_at(b"buffered", 0).unwrap();
    store.fail(|operation| operation.verb.starts_with("write").then_some(errno::ENOSPC));
    assert_eq!(open(&fs, by(2)).err().unwrap().kind, ErrorKind::NoSpace);
    store.fail_nothing();
    assert_eq!(read(&*file, 8), b"buffered");
    let other = open(&fs, by(3)).unwrap();
    other.write_at(b"later", 0).unwrap();
    assert_eq!(read(&*file, 8), b"laterred");
}

#[test]
fn a_changed_block_is_an_error_and_a_torn_unsynced_block_reads_as_before() {
    let temp = tempfile::tempdir().unwrap();
    let fs = on_disk(temp.path());
    let file = make(&fs, own());
    file.write_at(&[b'1'; 20_000], 0).unwrap();
    file.sync().unwrap();
    drop(file);
    let mut data = Vec::new();
    let logs = |known: &[std::path::PathBuf]| {
        let dirs = std::fs::read_dir(temp.path().join("f.container")).unwrap().map(|dir| dir.unwrap().path());
        let logs = dirs.filter(|dir| dir.to_str().unwrap().contains("/logs-"));
        let files = logs.flat_map(|dir| std::fs::read_dir(dir).unwrap()).map(|file| file.unwrap().path());
        let is_new = |file: &std::path::PathBuf| file.extension().unwrap() == "data" && !known.contains(file);
        files.filter(is_new).collect::<Vec<_>>()
    };
    data.extend(logs(&[]));
    let file = open(&fs, by(2)).unwrap();
    file.write_at(&[b'2'; 100], 0).unwrap();
    file.publish().unwrap();
    drop((file, fs));
    let second = logs(&data).remove(0);
    let whole = std::fs::read(&second).unwrap();
    let seen = |boots| {
        let root = vec![Arc::new(PosixDir::open(temp.path()).unwrap()) as Arc<dyn WritableDir>];
        let fs = mounted::mount_after(boots, root, own(), Choices::default());
        let mut bytes = vec![0; 20_000];
        open(&fs, READ).unwrap().read_at(&mut bytes, 0).map(|_| bytes[0])
    };
    assert_eq!((seen(0).unwrap(), seen(1).unwrap()), (b'2', b'2'));
    // Imitates a power failure before the end of the block was written.
    std::fs::write(&second, &whole[..whole.len() - 8]).unwrap();
    assert_eq!(seen(1).unwrap(), b'1');
    // On a node that was not rebooted since, only a fault of the store can have lost it.
    assert_eq!(seen(0).unwrap_err().kind, ErrorKind::Damaged);
    // The block was written and has changed since.
    let mut changed = whole.clone();
    changed[whole.len() - 50] ^= 1;
    std::fs::write(&second, &changed).unwrap();
    assert_eq!(seen(1).unwrap_err().kind, ErrorKind::Damaged);
    std::fs::write(&second, &whole).unwrap();
    // Synced data is never treated as torn.
    let first = std::fs::read(&data[0]).unwrap();
    std::fs::write(&data[0], &first[..first.len() - 8]).unwrap();
    assert_eq!(seen(1).unwrap_err().kind, ErrorKind::Damaged);
}

fn is_data(path: &[u8]) -> bool {
    path.ends_with(b".data")
}

fn eio<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| error.errno() == errno::EIO)
}

#[test]
fn a_failed_writeback_is_an_error_of_every_sync_and_close_and_never_reads_as_zeros() {
    let store = MemoryStore::new();
    let fs = in_memory(&store, 1 << 16);
    let a = make(&fs, MEMORY);
    let (b, reader) = (open(&fs, by(2)).unwrap(), open(&fs, READ).unwrap());
    b.write_at(b"of b", 100_000).unwrap();
    b.sync().unwrap();
    a.write_at(&[b'a'; 50_000], 0).unwrap();
    a.publish().unwrap();
    assert_eq!(store.fail_writeback(0, Writeback::Dropped, is_data), 1);
    // The store reports the failure once; the mount reports it to every caller on every call.
    assert!(eio(b.sync()));
    for _ in 0..3 {
        assert!(eio(a.sync()) && eio(b.sync()) && eio(reader.sync()));
        assert!(eio(a.publish()) && eio(b.publish()) && eio(reader.publish()));
    }
    let other = in_memory(&store, 1 << 16);
    for fs in [&fs, &other] {
        let mut bytes = [1; 4];
        let file = open(fs, READ).unwrap();
        assert!(eio(file.read_at(&mut bytes, 0)));
        assert_eq!((file.read_at(&mut bytes, 100_000).unwrap(), &bytes), (4, b"of b"));
    }
    drop((a, b, reader, fs));
    for boots in [0, 1] {
        let choices = Choices { index_threads: 1, ..Choices::default() };
        let later = mounted::mount_after(boots, vec![store.root()], MEMORY, choices);
        let file = open(&later, by(7)).unwrap();
        assert!(eio(file.read_at(&mut [0; 4], 0)), "the name says so also after the node was started again");
        assert!(eio(file.sync()) && eio(file.publish()));
    }
    // The file is truncated to 0.
    let file = open(&other, truncating(by(8))).unwrap();
    file.write_at(b"new", 0).unwrap();
    file.sync().unwrap();
    file.publish().unwrap();
    assert_eq!(read(&*file, 10), b"new");
}

#[test]
fn pages_kept_in_memory_after_a_failed_writeback_are_written_again() {
    for closes in [false, true] {
        let store = MemoryStore::new();
        let fs = in_memory(&store, 1000);
        let a = make(&fs, MEMORY);
        let b = open(&fs, by(2)).unwrap();
        (0..40).for_each(|i| a.write_at(&[b'a' + i as u8 % 20; 900], i * 1000).unwrap());
        a.publish().unwrap();
        let expected = read(&*a, 50_000);
        if closes {
            drop(a);
        }
        assert_eq!(store.fail_writeback(3, Writeback::Kept, is_data), 1);
        assert!(eio(b.sync()));
        b.sync().unwrap();
        b.publish().unwrap();
        store.evict();
        assert_eq!(read(&*b, 50_000), expected);
        for seed in 0..8 {
            let after = mounted::mount_after(1, vec![store.crash(seed).root()], MEMORY, Choices::default());
            assert_eq!(read(&*open(&after, READ).unwrap(), 50_000), expected, "seed {seed}");
        }
    }
}

#[test]
fn a_writeback_that_fails_after_the_close_is_an_error_of_later_syncs_and_reads() {
    let store = MemoryStore::new();
    let (fs, other) = (in_memory(&store, 1 << 16), in_memory(&store, 1 << 16));
    let a = make(&fs, MEMORY);
    a.write_at(&[b'a'; 50_000], 0).unwrap();
    a.publish().unwrap();
    drop(a);
    store.fail_writeback(0, Writeback::Dropped, is_data);
    // No process has synced yet.
    let reader = open(&other, READ).unwrap();
    assert!(eio(reader.read_at(&mut [0; 4], 0)));
    for _ in 0..3 {
        assert!(eio(reader.sync()) && eio(reader.publish()));
        assert!(eio(open(&fs, by(3)).unwrap().sync()));
    }
}

#[test]
fn a_failed_sync_of_a_directory_is_an_error_until_a_sync_succeeds() {
    let store = MemoryStore::new();
    let fs = in_memory(&store, 1 << 16);
    let a = make(&fs, MEMORY);
    let b = open(&fs, by(2)).unwrap();
    a.write_at(b"payload", 0).unwrap();
    store.fail(|operation| (operation.verb == "sync directory").then_some(errno::EIO));
    assert!(eio(b.sync()) && eio(a.publish()) && eio(b.publish()) && eio(a.sync()));
    store.fail_nothing();
    // Success means that everything was synced.
    a.publish().unwrap();
    for seed in 0..8 {
        let after = in_memory(&store.crash(seed), 1 << 16);
        assert_eq!(read(&*open(&after, READ).unwrap(), 9), b"payload", "seed {seed}");
    }
}

#[test]
fn data_of_a_failed_close_is_written_by_the_next_close() {
    let store = MemoryStore::new();
    let fs = in_memory(&store, 1 << 16);
    let a = make(&fs, MEMORY);
    let b = open(&fs, by(2)).unwrap();
    a.write_at(b"collected", 0).unwrap();
    store.fail(|operation| operation.verb.starts_with("write").then_some(errno::ENOSPC));
    assert_eq!(a.publish().unwrap_err().kind, ErrorKind::NoSpace);
    drop(a);
    assert_eq!(b.publish().unwrap_err().kind, ErrorKind::NoSpace);
    store.fail_nothing();
    b.publish().unwrap();
    assert_eq!(read(&*open(&in_memory(&store, 1 << 16), READ).unwrap(), 20), b"collected");
}

#[test]
fn a_truncated_file_keeps_its_logs_until_the_truncation_survives_a_power_failure() {
    for seed in 0..60 {
        let store = MemoryStore::new();
        let fs = in_memory(&store, 1 << 16);
        let file = make(&fs, MEMORY);
        file.write_at(&[b'1'; 50_000], 0).unwrap();
        file.sync().unwrap();
        drop(file);
        drop(open(&fs, truncating(by(2))).unwrap());
        let after = mounted::mount_after(1, vec![store.crash(seed).root()], MEMORY, Choices::default());
        let found = read(&*open(&after, READ).unwrap(), 60_000);
        assert!(found.is_empty() || found == [b'1'; 50_000], "seed {seed}: {} bytes", found.len());
    }
}

#[test]
fn a_removed_and_closed_file_leaves_no_open_handles_and_no_used_space() {
    let store = MemoryStore::new();
    let fs = in_memory(&store, 1 << 16);
    let round = |is_open: bool| {
        let mode = OpenMode::READ_WRITE;
        let new = NewEntry { permissions: 0o640, uid: MEMORY.0, gid: MEMORY.1 };
        let (made, file) = fs.create(&Context::for_process(1), fs.root(), b"f", new, mode).unwrap();
        for process in 2..20 {
            let other = fs.open_as(&Context::for_process(process), made.node, OpenMode::READ_WRITE).unwrap();
            other.write_at(&[7; 30_000], u64::from(process) * 30_000).unwrap();
            other.publish().unwrap();
        }
        assert_eq!(file.read_at(&mut vec![0; 600_000], 0).unwrap(), 600_000);
        let file = Some(file).filter(|_| is_open);
        fs.remove(&Context::OWN, fs.root(), b"f").unwrap();
        drop((file, made));
    };
    round(false);
    let (before, frame_bytes) = (store.open_handles(), 10 * 4096);
    // The space of the removed file is free again, exactly.
    store.set_free_bytes(Some(700_000 + 100 * 4096 + frame_bytes));
    for i in 0..30 {
        round(i % 2 == 0);
        assert_eq!(store.open_handles(), before, "round {i}");
    }
}

#[test]
fn the_space_of_a_file_that_another_mount_removed_is_freed_after_the_close() {
    let store = MemoryStore::new();
    let fs = in_memory(&store, 1 << 16);
    let other = in_memory(&store, 1 << 16);
    store.set_free_bytes(Some(900_000));
    for round in 0..3 {
        let file = make(&fs, MEMORY);
        file.write_at(&[7; 500_000], 0).unwrap();
        file.publish().unwrap();
        drop(file);
        let read_there = open(&other, READ).unwrap();
        assert_eq!(read(&*read_there, 600_000), [7; 500_000], "round {round}");
        let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
        fs.remove(&Context::OWN, fs.root(), b"f").unwrap();
        fs.forget(node, 2);
        // The other mount can read the file while it is open there.
        other.close_idle();
        other.close_idle();
        assert_eq!(read(&*read_there, 600_000), [7; 500_000], "round {round}");
        drop(read_there);
        other.close_idle();
        other.close_idle();
    }
}

#[test]
fn a_write_drops_set_id_bits_except_set_group_id_without_group_execute() {
    let store = MemoryStore::new();
    let fs = in_memory(&store, 1 << 16);
    let file = make(&fs, MEMORY);
    let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
    for (before, after) in [(0o6755, 0o755), (0o4700, 0o700), (0o2745, 0o2745), (0o640, 0o640)] {
        fs.change(&Context::OWN, node, &Change { permissions: Some(before), ..Change::default() }).unwrap();
        file.drop_set_id().unwrap();
        assert_eq!(fs.attributes(&Context::OWN, node).unwrap().permissions, after, "{before:o}");
    }
}
