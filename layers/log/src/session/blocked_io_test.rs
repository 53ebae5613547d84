//! Tests that other threads can read and write a file while one thread waits for I/O on it.

use std::slice::from_ref;
use std::sync::Arc;

use quell_posix::WritableDir;
use quell_testkit::{CountingDir, MemoryStore};
use quell_vfs::{Context, FileSystem, NodeId, OpenMode, Writable, WritableFile};

use crate::fs::LogFs;
use crate::session::Choices;
use crate::stores::{Host, Scratch, Stores};
use crate::test_stores::{Gate, again, content, host, make, mount, pattern};

const CHOICES: Choices = Choices {
    buffer_bytes: 40_000,
    index_threads: 1,
    flatten_bytes: 0,
    flattens_later: false,
    begins_as_object: false,
};

/// Returns a mount that keeps 10 extents of an index in memory, and whose reads and writes of
/// scratch files pass these gates.
fn mount_with_scratch(store: &MemoryStore, reads: &Gate, writes: &Gate) -> LogFs {
    let (reads, writes) = (reads.clone(), writes.clone());
    let scratch = Scratch::new(move || {
        let (reads, writes) = (reads.clone(), writes.clone());
        let memory: Arc<dyn WritableDir> = MemoryStore::new().root();
        let dir = CountingDir::with_hook(memory, move |_, operation| match operation.verb {
            "read" => reads.pass(),
            "write" => writes.pass(),
            _ => {}
        });
        dir.create_file(b"scratch", 0o600)
    });
    let host = Host { scratch: Scratch { extents_max: 10, ..scratch }, ..host(5, 1) };
    let root: Arc<dyn WritableDir> = store.root();
    LogFs::new(Stores::open(vec![root], host, 4).unwrap(), CHOICES)
}

fn open(fs: &LogFs, node: NodeId, process: u32) -> Box<dyn WritableFile> {
    fs.open_as(&Context::for_process(process), node, OpenMode::READ_WRITE).unwrap()
}

/// Creates a file with 100 extents of 10 bytes each, and holes between them. Returns its content.
fn write_extents(store: &MemoryStore) -> Vec<u8> {
    let fs = mount(from_ref(store), 2, 2);
    let file = make(&fs, "f", 1);
    let mut expected = vec![0; 1990];
    for number in 0..100 {
        let (at, bytes) = (number * 20, pattern(10, number as u64));
        file.write_at(&bytes, at as u64).unwrap();
        // Writes a frame for each extent, so that no page of a scratch file is needed to add the
        // next extent.
        file.publish().unwrap();
        expected[at..at + 10].copy_from_slice(&bytes);
    }
    drop(file);
    expected
}

fn read(file: &dyn WritableFile, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length + 1];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), length);
    bytes.truncate(length);
    bytes
}

#[test]
fn a_read_that_waits_for_a_page_of_the_index_does_not_block_writes_and_other_reads() {
    let (store, reads) = (MemoryStore::new(), Gate::opened());
    let mut expected = write_extents(&store);
    let fs = mount_with_scratch(&store, &reads, &Gate::opened());
    let (reader, writer) = (again(&fs, "f", 1), again(&fs, "f", 2));
    let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
    // This read builds the extent map, and needs no page of the flat index.
    assert_eq!(reader.read_at(&mut [0], 1 << 40).unwrap(), 0);
    reads.close();
    std::thread::scope(|scope| {
        let _opened = reads.opened_at_end();
        let blocked = scope.spawn(|| {
            let mut bytes = vec![0; 1990];
            reader.read_at(&mut bytes, 0).unwrap();
            bytes
        });
        reads.wait_for_thread();
        writer.write_at(b"later", 3000).unwrap();
        writer.publish().unwrap();
        let mut bytes = [0; 5];
        assert_eq!(writer.read_at(&mut bytes, 3000).unwrap(), 5);
        assert_eq!(&bytes, b"later");
        assert_eq!(fs.attributes(&Context::OWN, node).unwrap().size_bytes, 3005);
        reads.open();
        let found = blocked.join().unwrap();
        assert_eq!(found, expected);
    });
    expected.resize(3000, 0);
    expected.extend_from_slice(b"later");
    assert_eq!(read(&*reader, 3005), expected);
}

#[test]
fn a_write_that_waits_for_a_scratch_file_does_not_block_other_writes_and_reads() {
    let (store, writes) = (MemoryStore::new(), Gate::opened());
    let mut expected = write_extents(&store);
    let fs = mount_with_scratch(&store, &Gate::opened(), &writes);
    let (first, second) = (again(&fs, "f", 1), again(&fs, "f", 2));
    let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
    assert_eq!(read(&*first, 1990), expected);
    writes.close();
    std::thread::scope(|scope| {
        let _opened = writes.opened_at_end();
        // Writes more extents than are kept in memory.
        for number in 0..20 {
            first.write_at(&[1; 5], number * 100).unwrap();
            expected[number as usize * 100..][..5].fill(1);
        }
        first.publish().unwrap();
        let blocked = scope.spawn(|| first.write_at(&[2; 5], 50));
        writes.wait_for_thread();
        second.write_at(&[3; 5], 100).unwrap();
        second.publish().unwrap();
        expected[50..55].fill(2);
        expected[100..105].fill(3);
        assert_eq!(fs.attributes(&Context::OWN, node).unwrap().size_bytes, 1990);
        assert_eq!(read(&*second, 1990), expected);
        writes.open();
        blocked.join().unwrap().unwrap();
    });
    // The frames that were written meanwhile are in the new map, too.
    assert_eq!(read(&*first, 1990), expected);
    drop((first, second));
    assert_eq!(content(from_ref(&store), "f").unwrap(), expected);
}

#[test]
fn an_open_that_waits_for_data_of_another_writer_does_not_block_other_opens() {
    let (store, writes) = (MemoryStore::new(), Gate::opened());
    let gate = writes.clone();
    let root: Arc<dyn WritableDir> = store.root();
    let root: Arc<dyn WritableDir> = Arc::new(CountingDir::with_hook(root, move |_, operation| {
        if operation.verb == "write" {
            gate.pass();
        }
    }));
    let fs = LogFs::new(Stores::open(vec![root], host(6, 1), 4).unwrap(), CHOICES);
    let first = make(&fs, "f", 1);
    first.write_at(&[1; 100], 0).unwrap();
    let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
    writes.close();
    std::thread::scope(|scope| {
        let _opened = writes.opened_at_end();
        let blocked = scope.spawn(|| open(&fs, node, 2));
        writes.wait_for_thread();
        let third = open(&fs, node, 1);
        writes.open();
        drop(third); // publishes the data of process 1, so it would wait, too
        let second = blocked.join().unwrap();
        second.write_at(&[2; 100], 50).unwrap();
        first.write_at(&[3; 10], 80).unwrap();
    });
    let expected = [[1; 50].as_slice(), &[2; 30], &[3; 10], &[2; 60]].concat();
    assert_eq!(read(&*first, 150), expected);
    drop(first);
    assert_eq!(content(from_ref(&store), "f").unwrap(), expected);
}
