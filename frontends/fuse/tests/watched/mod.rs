//! The reference model with counters of references and opens, and with injected faults.

#![allow(dead_code)] // each test program uses only a part of this file

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use quell_testkit::WritableModel;
use quell_vfs::{
    Attributes, Capabilities, Change, Cursor, DirEntry, Error, ErrorKind, File, FileSystem, New, NodeId,
    Open, Rename, Result, Space, Writable, WritableFile,
};

pub const ROOT: NodeId = NodeId(0);

/// The injected faults and the recorded calls, shared by the file system and the test.
#[derive(Debug, Default)]
pub struct Watch {
    pub no_space_to_write: AtomicBool,
    pub no_space_to_publish: AtomicBool,
    pub cannot_sync: AtomicBool,
    pub panics: AtomicBool,
    /// The number of lookups that do not find an existing name, as if another node created it
    /// immediately afterwards.
    pub look_ups_too_early: AtomicU64,
    pub syncs: AtomicU64,
    pub publishes: AtomicU64,
    opens: Mutex<Vec<Open>>,
    references: Mutex<BTreeMap<NodeId, i64>>,
}

impl Watch {
    fn refers(&self, found: Attributes) -> Attributes {
        *self.references.lock().unwrap().entry(found.node).or_default() += 1;
        found
    }

    /// Returns the number of references not yet returned, and checks that no node got back too
    /// many.
    pub fn references(&self) -> i64 {
        let references = self.references.lock().unwrap();
        assert!(references.values().all(|held| *held >= 0), "{references:?}");
        references.values().sum()
    }

    /// Returns the opens since the last call.
    pub fn opens(&self) -> Vec<Open> {
        std::mem::take(&mut self.opens.lock().unwrap())
    }
}

#[derive(Debug)]
pub struct Watched {
    model: WritableModel,
    watch: Arc<Watch>,
}

impl Watched {
    /// An empty tree that all users may change.
    pub fn new() -> (Arc<Watched>, Arc<Watch>) {
        let (model, watch) = (WritableModel::new(), Arc::new(Watch::default()));
        model.change(ROOT, &Change { permissions: Some(0o777), ..Change::default() }).unwrap();
        (Arc::new(Watched { model, watch: Arc::clone(&watch) }), watch)
    }

    fn watched(&self, file: Box<dyn WritableFile>, how: Open) -> Box<dyn WritableFile> {
        self.watch.opens.lock().unwrap().push(how);
        Box::new(WatchedFile { file, watch: Arc::clone(&self.watch) })
    }
}

fn fail_if<T>(ordered: &AtomicBool, kind: ErrorKind, otherwise: impl FnOnce() -> Result<T>) -> Result<T> {
    if ordered.load(SeqCst) { Err(Error::new(kind, "do", "the requested error")) } else { otherwise() }
}

impl FileSystem for Watched {
    fn capabilities(&self) -> Capabilities {
        self.model.capabilities()
    }

    fn root(&self) -> NodeId {
        self.model.root()
    }

    fn lookup(&self, dir: NodeId, name: &[u8]) -> Result<Option<Attributes>> {
        let found = self.model.lookup(dir, name)?;
        let early = &self.watch.look_ups_too_early;
        if let Some(found) = found
            && early.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
        {
            self.model.forget(found.node, 1);
            return Ok(None);
        }
        Ok(found.map(|found| self.watch.refers(found)))
    }

    fn attributes(&self, node: NodeId) -> Result<Attributes> {
        self.model.attributes(node)
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        self.model.parent(node)
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        self.model.path(node)
    }

    fn list(&self, dir: NodeId, after: Cursor, visit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.model.list(dir, after, visit)
    }

    fn read_link(&self, node: NodeId) -> Result<Vec<u8>> {
        self.model.read_link(node)
    }

    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.model.xattr(node, name)
    }

    fn xattr_names(&self, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.model.xattr_names(node)
    }

    fn open(&self, _: NodeId) -> Result<Box<dyn File>> {
        panic!("files of a tree that may be changed are opened as somebody wants")
    }

    fn writable(&self) -> Option<&dyn Writable> {
        Some(self)
    }
}

impl Writable for Watched {
    fn create(
        &self,
        dir: NodeId,
        name: &[u8],
        new: New,
        how: Open,
    ) -> Result<(Attributes, Box<dyn WritableFile>)> {
        let (created, file) = self.model.create(dir, name, new, how)?;
        Ok((self.watch.refers(created), self.watched(file, how)))
    }

    fn make_dir(&self, dir: NodeId, name: &[u8], new: New) -> Result<Attributes> {
        self.model.make_dir(dir, name, new).map(|created| self.watch.refers(created))
    }

    fn make_symlink(&self, dir: NodeId, name: &[u8], target: &[u8], new: New) -> Result<Attributes> {
        self.model.make_symlink(dir, name, target, new).map(|created| self.watch.refers(created))
    }

    fn remove(&self, dir: NodeId, name: &[u8]) -> Result<()> {
        self.model.remove(dir, name)
    }

    fn remove_dir(&self, dir: NodeId, name: &[u8]) -> Result<()> {
        self.model.remove_dir(dir, name)
    }

    fn rename(&self, from_dir: NodeId, from: &[u8], to_dir: NodeId, to: &[u8], how: Rename) -> Result<()> {
        self.model.rename(from_dir, from, to_dir, to, how)
    }

    fn change(&self, node: NodeId, change: &Change) -> Result<Attributes> {
        self.model.change(node, change)
    }

    fn open_as(&self, node: NodeId, how: Open) -> Result<Box<dyn WritableFile>> {
        Ok(self.watched(self.model.open_as(node, how)?, how))
    }

    fn sync_dir(&self, dir: NodeId) -> Result<()> {
        self.watch.syncs.fetch_add(1, SeqCst);
        fail_if(&self.watch.cannot_sync, ErrorKind::Os(quell_vfs::errno::EIO), || self.model.sync_dir(dir))
    }

    fn forget(&self, node: NodeId, references: u64) {
        *self.watch.references.lock().unwrap().entry(node).or_default() -= references as i64;
        self.model.forget(node, references);
    }

    fn space(&self) -> Result<Space> {
        self.model.space()
    }
}

struct WatchedFile {
    file: Box<dyn WritableFile>,
    watch: Arc<Watch>,
}

impl File for WatchedFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(into, offset)
    }
}

impl WritableFile for WatchedFile {
    fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        let write = || self.file.write_at(from, offset);
        fail_if(&self.watch.no_space_to_write, ErrorKind::NoSpace, write)
    }

    fn append(&self, from: &[u8]) -> Result<u64> {
        fail_if(&self.watch.no_space_to_write, ErrorKind::NoSpace, || self.file.append(from))
    }

    fn publish(&self) -> Result<()> {
        self.watch.publishes.fetch_add(1, SeqCst);
        assert!(!self.watch.panics.load(SeqCst), "publishing panics (as the test wants)");
        fail_if(&self.watch.no_space_to_publish, ErrorKind::NoSpace, || self.file.publish())
    }

    fn sync(&self) -> Result<()> {
        self.watch.syncs.fetch_add(1, SeqCst);
        fail_if(&self.watch.cannot_sync, ErrorKind::Os(quell_vfs::errno::EIO), || self.file.sync())
    }
}
