//! Tests that forged logs with valid names and checksums do no harm.

use std::sync::Arc;

use quell_posix::WritableDir;
use quell_testkit::MemoryStore;
use quell_vfs::{Context, ErrorKind, FileSystem, Result, Writable};

use crate::container::Container;
use crate::format::{
    Closed, FileOffset, FrameKind, Frames, HEAD_BYTES, HeadKind, MetaName, Run, data_name, encode_batch,
    index_name,
};
use crate::session::extent_map::ExtentMap;
use crate::session::flatten::flatten;
use crate::test_stores::{again, container, make, mount};

/// Creates a file with one writer, which has ended, and returns the directory of its logs.
fn written(store: &MemoryStore) -> (Container, Closed, Arc<dyn WritableDir>) {
    let stores = std::slice::from_ref(store);
    let fs = mount(stores, 1, 1);
    let file = make(&fs, "f", 1);
    file.write_at(&[7; 100], 0).unwrap();
    file.sync().unwrap();
    drop(file);
    drop(fs);
    let container = container(stores, "f");
    let closed = container.summary().unwrap().closed[0];
    let logs = container.log_directories().unwrap().open((closed.writer % 4) as u32, false).unwrap();
    (container, closed, logs)
}

/// Gives the writer an index log of `batches` batches with 2^15 extents of one byte each, and a
/// data log of the matching size that consists of a hole.
fn claim(container: &Container, closed: Closed, logs: &dyn WritableDir, batches: u64) {
    let head = container.head();
    let mut index = head.for_file(HeadKind::Index, closed.writer).encode().to_vec();
    let mut all = Frames::new(head.block_bytes.into(), HEAD_BYTES as u64);
    let count = 1 << 15;
    for batch in 0..batches {
        let mut own = Frames::new(head.block_bytes.into(), all.log_end());
        own.push(FrameKind::Data, 70, count, 1, 1 + batch);
        let run = Run { start: FileOffset(batch * count * 2), length: 1, stride: 2, count };
        index.extend(encode_batch(&own, &[run], all.end(), true));
        all.append(own);
    }
    let file = logs.open_writable_file(&index_name(closed.writer)).unwrap();
    file.set_size(0).unwrap();
    file.write_at(&index, 0).unwrap();
    logs.open_writable_file(&data_name(closed.writer)).unwrap().set_size(all.log_end()).unwrap();
    let longer = Closed { data_bytes: all.log_end(), ..closed };
    container.rename_meta(&MetaName::Closed(closed), &MetaName::Closed(longer)).unwrap();
}

#[test]
fn an_index_log_with_more_extents_than_the_data_log_has_bytes_is_damaged() {
    let store = MemoryStore::new();
    let (container, closed, logs) = written(&store);
    claim(&container, closed, &*logs, 20);
    let summary = container.summary().unwrap();
    let error = ExtentMap::open(&container, &summary, &|_| None, 1).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Damaged);
}

#[test]
fn an_existing_file_with_the_name_of_a_new_log_is_not_used() {
    let store = MemoryStore::new();
    let (container, ..) = written(&store);
    let logs = container.logs_of(8, true).unwrap();
    for name in [data_name(8), index_name(8)] {
        logs.create_file(&name, 0o600).unwrap().write_at(b"another's", 0).unwrap();
    }
    for made in [container.create_data(8, &mut None), container.create_index(8, &mut None)] {
        assert_eq!(made.err().unwrap().errno(), quell_vfs::errno::EIO);
    }
    for name in [data_name(8), index_name(8)] {
        let mut bytes = [0; 64];
        let length = logs.open_file(&name).unwrap().read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes[..length], b"another's");
    }
}

#[test]
fn a_flat_index_of_another_user_than_the_owner_is_not_used() {
    let store = MemoryStore::new();
    let (container, ..) = written(&store);
    flatten(&container, 1).unwrap();
    let flat = container.flats().unwrap().remove(0);
    // This flat index claims an epoch that the logs have not reached. A forged one could hide data
    // that is written from now on.
    let later = [&b"flat-ffff-"[..], &[b'0'; 32]].concat();
    container
        .dir()
        .unwrap()
        .rename(&flat, &**container.dir().unwrap(), &later, quell_vfs::Rename::Replace)
        .unwrap();
    assert!(container.open_flat(&later).is_ok());
    let of_another = quell_vfs::Change { uid: Some(4321), ..Default::default() };
    container.dir().unwrap().change(&later, &of_another).unwrap();
    let error = container.open_flat(&later).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Damaged);
    assert_eq!(crate::test_stores::content(std::slice::from_ref(&store), "f").unwrap(), [7; 100]);
}

#[test]
fn many_small_extents_are_read_if_the_data_log_has_their_bytes() {
    let store = MemoryStore::new();
    let stores = std::slice::from_ref(&store);
    let fs = mount(stores, 1, 1);
    let file = make(&fs, "f", 1);
    for i in 0..100_000u64 {
        file.write_at(&[i as u8], i * 2 + i % 3).unwrap();
    }
    drop(file);
    let fs = mount(stores, 2, 1);
    let mut bytes = [0; 1];
    assert_eq!(again(&fs, "f", 1).read_at(&mut bytes, 99_997 * 2 + 99_997 % 3).unwrap(), 1);
    assert_eq!(bytes[0], 99_997u64 as u8);
}

#[test]
fn a_file_without_free_epochs_refuses_writes() {
    let store = MemoryStore::new();
    let (container, ..) = written(&store);
    container.dir().unwrap().create_file(b"epoch-ffffffffffffffff", 0o644).unwrap();
    for seen in [0, u64::MAX] {
        assert_eq!(container.take_epochs(seen, 1).unwrap_err().kind, ErrorKind::Damaged);
    }
    let fs = mount(std::slice::from_ref(&store), 2, 1);
    let file = again(&fs, "f", 1);
    let written: Result<()> = file.write_at(b"x", 0).and_then(|()| file.publish());
    assert_eq!(written.unwrap_err().kind, ErrorKind::Damaged);
    drop(file);
    fs.remove(&Context::OWN, fs.root(), b"f").unwrap();
}
