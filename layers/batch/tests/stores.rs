//! Runs the conformance suite and random histories on the master image of a store and on the
//! private name space of a batch, and commits batches whose files were written through mounts.

mod mounts;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, RwLock};

use quell_batch_service::{
    BatchCaller, BatchRecord, BatchState, Image, MEMORY_BYTES, NameSpace, Names, NewBatch, Primary,
    PrivateEntries, ProofForm, ROOT, TableDir,
};
use quell_testkit::MemoryStore;
use quell_testkit::conformance::writing::{self, Mounts, WritableImplementation};
use quell_testkit::histories::{self, Shape};
use quell_vfs::{Change, Context, FileSystem, Rename, Time, Writable};

use mounts::{NEW, bytes, create, data_files, mount, open};

/// A store whose tables are in a temporary directory, and its primary server.
struct Store {
    primary: Primary,
    directory: tempfile::TempDir,
    data: MemoryStore,
}

/// An open batch.
struct Batch {
    record: BatchRecord,
    names: Arc<RwLock<Names<PrivateEntries>>>,
    tables: Arc<TableDir>,
}

impl Store {
    fn new() -> Store {
        let directory = tempfile::tempdir().unwrap();
        let entries = Arc::new(quell_kv::MemoryStore::new());
        Image::create(&*entries, 7, NEW, Time::default()).unwrap();
        let primary = Primary::open(entries, Arc::new(tables(&directory, "image"))).unwrap();
        Store { primary, directory, data: MemoryStore::new() }
    }

    fn begin(&self) -> Batch {
        let caller = BatchCaller { uid: NEW.uid, gid: NEW.gid, groups: Vec::new() };
        let new = NewBatch { name: "job".into(), caller, subtree: ROOT, is_atomic: true };
        let record = self.primary.begin(new).unwrap();
        let tables = Arc::new(tables(&self.directory, &record.number.to_string()));
        let names = self.primary.private(&record, tables.clone(), MEMORY_BYTES).unwrap();
        Batch { record, names: Arc::new(RwLock::new(names)), tables }
    }

    fn commit(&self, batch: &Batch) {
        let names = batch.names.read().unwrap();
        let certificate = names
            .0
            .submit(self.primary.store_number(), &batch.record, &*batch.tables, ProofForm::default(), 0)
            .unwrap();
        drop(names);
        let record = self.primary.commit(batch.record.number, &certificate, &*batch.tables).unwrap();
        match record.state {
            BatchState::Committed { conflicts, .. } => assert_eq!(conflicts.count, 0),
            state => panic!("{state:?}"),
        }
    }
}

fn tables(directory: &tempfile::TempDir, name: &str) -> TableDir {
    let path = directory.path().join(name);
    std::fs::create_dir_all(&path).unwrap();
    TableDir::new(OwnedFd::from(File::open(path).unwrap()))
}

impl Batch {
    fn names(&self) -> Arc<dyn NameSpace> {
        self.names.clone()
    }
}

/// Runs `check` on mounts of the master images of new stores, or of batches on them.
fn with(is_batch: bool, check: impl Fn(&WritableImplementation<'_>)) {
    let make = |count: usize| {
        let store = Store::new();
        let (names, number) = match is_batch {
            true => {
                let batch = store.begin();
                (batch.names(), batch.record.number)
            }
            false => (store.primary.name_space(), 0),
        };
        let mount = |_| -> Arc<dyn FileSystem> { Arc::new(mount(&names, &store.data, number)) };
        Mounts { mounts: (0..count).map(mount).collect(), keep: Some(Box::new(store)) }
    };
    check(&WritableImplementation {
        name: if is_batch { "a batch" } else { "the master image" },
        make: &make,
        mounts_max: if is_batch { 1 } else { 2 },
        name_bytes_max: 255,
        path_bytes_max: usize::MAX,
        uid: NEW.uid,
        gid: NEW.gid,
        owners: true,
        rename_kinds: true,
        hard_links: true,
        writes_zeros: false,
        locks: false,
        xattrs: true,
    });
}

#[test]
fn promises_are_kept_in_a_master_image() {
    with(false, writing::run);
}

#[test]
fn promises_are_kept_in_a_batch() {
    with(true, writing::run);
}

#[test]
fn random_histories_match_the_model() {
    for shape in [Shape::ONE_MOUNT, Shape::DENSE] {
        with(true, |implementation| histories::check(implementation, shape, 0..10));
        let shape = Shape { mounts: 2, ..shape };
        with(false, |implementation| histories::check(implementation, shape, 0..10));
    }
}

#[test]
fn files_of_a_committed_batch_are_those_that_it_has_written() {
    let store = Store::new();
    let names = store.primary.name_space();
    let master = mount(&names, &store.data, 0);
    let large = vec![1; 100_000];
    for (name, content) in [("kept", &large[..]), ("changed", &large), ("removed", b"bytes")] {
        let (_, file) = create(&master, name);
        file.write_at(content, 0).unwrap();
        file.close().unwrap();
    }
    let batch = store.begin();
    let fs = mount(&batch.names(), &store.data, batch.record.number);
    let (_, small) = create(&fs, "small");
    small.write_at(b"small", 0).unwrap();
    small.close().unwrap();
    let (node, file) = create(&fs, "large");
    file.write_at(&large, 50).unwrap();
    // The writes of a file that is still open are sent at the end of the mount.
    let (_, unsent) = create(&fs, "unsent");
    unsent.write_at(b"unsent", 0).unwrap();
    fs.change(&Context::OWN, node, &Change { permissions: Some(0o600), ..Change::default() }).unwrap();
    fs.rename(&Context::OWN, fs.root(), b"large", fs.root(), b"renamed", Rename::Replace).unwrap();
    fs.remove(&Context::OWN, fs.root(), b"removed").unwrap();
    let changed = open(&fs, "changed");
    changed.write_at(b"changed", 0).unwrap();
    changed.close().unwrap();
    assert_eq!(bytes(&*open(&master, "changed")), large, "before the commit");
    assert!(fs.lookup(&Context::OWN, fs.root(), b"removed").unwrap().is_none());
    assert!(master.lookup(&Context::OWN, master.root(), b"small").unwrap().is_none());
    fs.end().unwrap();
    store.commit(&batch);
    assert_eq!(bytes(&*open(&master, "small")), b"small");
    assert_eq!(bytes(&*open(&master, "unsent")), b"unsent");
    assert!(bytes(&*open(&master, "renamed")) == [&[0; 50][..], &large].concat());
    assert!(bytes(&*open(&master, "changed")) == [b"changed", &large[7..]].concat());
    assert!(bytes(&*open(&master, "kept")) == large);
    assert!(master.lookup(&Context::OWN, master.root(), b"removed").unwrap().is_none());
    let found = master.lookup(&Context::OWN, master.root(), b"renamed").unwrap().unwrap();
    assert_eq!((found.permissions, found.size_bytes), (0o600, 100_050));
    // The synchronous mode copies a file of the batch before it changes it.
    let before = data_files(&store.data).len();
    open(&master, "renamed").append(b"more").unwrap();
    assert_eq!(data_files(&store.data).len(), before + 1);
    assert_eq!(bytes(&*open(&master, "renamed")).len(), 100_054);
}
