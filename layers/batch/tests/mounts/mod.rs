//! Mounts of name spaces in memory for tests, and a name space that counts its operations.

// Each test binary uses only a part of this module.
#![allow(dead_code)]

pub mod on_disk;

use std::sync::{Arc, Mutex, RwLock};

use quell_batch::BatchFs;
use quell_batch_service::{
    Entries, Entry, FoundNode, Inode, InodeChange, Key, KeyChange, MemoryEntries, NameSpace, Names, NewNode,
    Place, Quota, Removed, Renamed,
};
use quell_testkit::MemoryStore;
use quell_vfs::{
    Context, Error, ErrorKind, FileSystem, Kind, NewEntry, NodeId, OpenMode, Rename, Result, Time, Writable,
    WritableFile,
};

pub const NEW: NewEntry = NewEntry { permissions: 0o755, uid: 1000, gid: 1000 };

/// The entries of a name space that has only one client.
struct Private(MemoryEntries);

impl Entries for Private {
    const IS_SHARED: bool = false;

    fn get(&self, key: &Key) -> Result<Option<Entry>> {
        self.0.get(key)
    }

    fn list(&self, dir: u64, after: &[u8], visit: &mut dyn FnMut(&[u8], Entry) -> bool) -> Result<()> {
        self.0.list(dir, after, visit)
    }

    fn apply(&mut self, changes: Vec<KeyChange>) -> Result<()> {
        self.0.apply(changes)
    }

    fn new_inode(&mut self) -> Result<u64> {
        self.0.new_inode()
    }
}

/// Returns a name space that several mounts may use.
pub fn shared() -> Arc<dyn NameSpace> {
    Arc::new(RwLock::new(MemoryEntries::new(NEW, Time::default())))
}

/// Returns a name space that has one mount.
pub fn private() -> Arc<dyn NameSpace> {
    Arc::new(RwLock::new(Names(Private(MemoryEntries::new(NEW, Time::default()).0))))
}

/// Returns a mount that writes the data files of `batch`.
pub fn mount(names: &Arc<dyn NameSpace>, store: &MemoryStore, batch: u64) -> BatchFs {
    BatchFs::new(names.clone(), store.root(), batch)
}

/// Creates a file in the root, and keeps the reference.
pub fn create(fs: &BatchFs, name: &str) -> (NodeId, Box<dyn WritableFile>) {
    let created = fs.create(&Context::OWN, fs.root(), name.as_bytes(), NEW, OpenMode::READ_WRITE);
    let (created, file) = created.unwrap();
    (created.into_attributes().node, file)
}

/// Opens a file of the root, and keeps the reference.
pub fn open(fs: &BatchFs, name: &str) -> Box<dyn WritableFile> {
    let found = fs.lookup(&Context::OWN, fs.root(), name.as_bytes()).unwrap().expect("it exists");
    fs.open_as(&Context::OWN, found.into_attributes().node, OpenMode::READ_WRITE).unwrap()
}

/// Returns the first mebibyte of a file.
pub fn bytes(file: &dyn WritableFile) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let count = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(count);
    bytes
}

/// Returns the paths of all data files of a store.
pub fn data_files(store: &MemoryStore) -> Vec<String> {
    let mut found = Vec::new();
    let name = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
    let root = store.root();
    for batch in root.names().unwrap() {
        for dir in root.open_dir(&batch).unwrap().names().unwrap() {
            for file in root.open_dir(&batch).unwrap().open_dir(&dir).unwrap().names().unwrap() {
                found.push(format!("{}/{}/{}", name(&batch), name(&dir), name(&file)));
            }
        }
    }
    found.sort();
    found
}

/// A name space that counts its operations and can refuse changes.
pub struct Counting {
    inner: Arc<dyn NameSpace>,
    operations: Mutex<Vec<&'static str>>,
    refused: Mutex<Option<ErrorKind>>,
}

impl Counting {
    pub fn new(inner: Arc<dyn NameSpace>) -> Arc<Counting> {
        Arc::new(Counting { inner, operations: Mutex::default(), refused: Mutex::default() })
    }

    /// Returns the operations since the last call.
    pub fn taken(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.operations.lock().unwrap())
    }

    /// Refuses each change of an inode from now on, or accepts changes again if `kind` is `None`.
    pub fn refuse_changes(&self, kind: Option<ErrorKind>) {
        *self.refused.lock().unwrap() = kind;
    }

    fn count(&self, operation: &'static str) -> &dyn NameSpace {
        self.operations.lock().unwrap().push(operation);
        &*self.inner
    }
}

impl NameSpace for Counting {
    fn quota(&self) -> Result<Option<Quota>> {
        self.inner.quota()
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }

    fn lookup(&self, dir: u64, name: &[u8]) -> Result<Option<FoundNode>> {
        self.count("lookup").lookup(dir, name)
    }

    fn find(&self, number: u64, place: &Place) -> Result<FoundNode> {
        self.count("find").find(number, place)
    }

    fn parent(&self, dir: u64) -> Result<(u64, Vec<u8>)> {
        self.count("parent").parent(dir)
    }

    fn list(&self, dir: u64, after: &[u8], visit: &mut dyn FnMut(&[u8], u64, Kind) -> bool) -> Result<()> {
        self.count("list").list(dir, after, visit)
    }

    fn create(&self, dir: u64, name: &[u8], node: NewNode, new: NewEntry, now: Time) -> Result<FoundNode> {
        self.count("create").create(dir, name, node, new, now)
    }

    fn link(&self, node: (u64, &Place), dir: u64, name: &[u8], now: Time) -> Result<FoundNode> {
        self.count("link").link(node, dir, name, now)
    }

    fn remove(&self, dir: u64, name: &[u8], now: Time) -> Result<Removed> {
        self.count("remove").remove(dir, name, now)
    }

    fn remove_dir(&self, dir: u64, name: &[u8], now: Time) -> Result<Removed> {
        self.count("remove_dir").remove_dir(dir, name, now)
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), mode: Rename, now: Time) -> Result<Renamed> {
        self.count("rename").rename(from, to, mode, now)
    }

    fn change(&self, node: (u64, &Place), change: &InodeChange, now: Time) -> Result<Inode> {
        let inner = self.count("change");
        match *self.refused.lock().unwrap() {
            Some(kind) => Err(Error::new(kind, "change", "")),
            None => inner.change(node, change, now),
        }
    }

    fn sync(&self) -> Result<()> {
        self.count("sync").sync()
    }
}
