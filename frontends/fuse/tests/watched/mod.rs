//! The reference model with counters of references and opens, and with injected faults.

#![allow(dead_code)] // each test program uses only a part of this file

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use quell_testkit::WritableModel;
use quell_vfs::{
    Attributes, Capabilities, Change, Context, Cursor, DirEntry, Error, ErrorKind, File, FileSystem,
    NewEntry, NodeId, NodeRef, OpenMode, ReadAt, Rename, Result, SetXattr, Space, Writable, WritableFile,
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
    pub closes: AtomicU64,
    opens: Mutex<Vec<(OpenMode, u32)>>,
    references: Mutex<BTreeMap<NodeId, i64>>,
}

impl Watch {
    /// Returns the number of references not yet returned, and checks that no node has a negative
    /// number of references.
    pub fn references(&self) -> i64 {
        let references = self.references.lock().unwrap();
        assert!(references.values().all(|held| *held >= 0), "{references:?}");
        references.values().sum()
    }

    /// Returns the mode and the process of each open since the last call.
    pub fn opens(&self) -> Vec<(OpenMode, u32)> {
        std::mem::take(&mut self.opens.lock().unwrap())
    }
}

#[derive(Debug)]
pub struct Watched {
    model: WritableModel,
    watch: Arc<Watch>,
}

impl Watched {
    /// Returns an empty tree that all users may change.
    pub fn new() -> (Arc<Watched>, Arc<Watch>) {
        let (model, watch) = (WritableModel::new(), Arc::new(Watch::default()));
        model.change(&Context::OWN, ROOT, &Change { permissions: Some(0o777), ..Change::default() }).unwrap();
        (Arc::new(Watched { model, watch: Arc::clone(&watch) }), watch)
    }

    /// Counts a reference that the model has counted.
    fn counted(&self, found: NodeRef<'_>) -> NodeRef<'_> {
        let attributes = found.into_attributes();
        *self.watch.references.lock().unwrap().entry(attributes.node).or_default() += 1;
        NodeRef::counted(self, attributes)
    }

    fn watched(
        &self,
        context: &Context<'_>,
        file: Box<dyn WritableFile>,
        mode: OpenMode,
    ) -> Box<dyn WritableFile> {
        self.watch.opens.lock().unwrap().push((mode, context.process));
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

    fn lookup(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        let found = self.model.lookup(context, dir, name)?;
        let early = &self.watch.look_ups_too_early;
        if found.is_some() && early.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Ok(None);
        }
        Ok(found.map(|found| self.counted(found)))
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId) -> Result<Attributes> {
        self.model.attributes(context, node)
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        self.model.parent(node)
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        self.model.path(node)
    }

    fn list(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.model.list(context, dir, after, visit)
    }

    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        self.model.read_link(context, node)
    }

    fn xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.model.xattr(context, node, name)
    }

    fn xattr_names(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.model.xattr_names(context, node)
    }

    fn open(&self, _: &Context<'_>, _: NodeId) -> Result<Box<dyn File>> {
        panic!("files of a tree that may be changed are opened as somebody wants")
    }

    fn forget(&self, node: NodeId, references: u64) {
        *self.watch.references.lock().unwrap().entry(node).or_default() -= references as i64;
        self.model.forget(node, references);
    }

    fn writable(&self) -> Option<&dyn Writable> {
        Some(self)
    }
}

impl Writable for Watched {
    fn create(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
        mode: OpenMode,
    ) -> Result<(NodeRef<'_>, Box<dyn WritableFile>)> {
        let (created, file) = self.model.create(context, dir, name, new, mode)?;
        Ok((self.counted(created), self.watched(context, file, mode)))
    }

    fn make_dir(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
    ) -> Result<NodeRef<'_>> {
        self.model.make_dir(context, dir, name, new).map(|created| self.counted(created))
    }

    fn make_symlink(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        target: &[u8],
        new: NewEntry,
    ) -> Result<NodeRef<'_>> {
        self.model.make_symlink(context, dir, name, target, new).map(|created| self.counted(created))
    }

    fn remove(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        self.model.remove(context, dir, name)
    }

    fn remove_dir(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        self.model.remove_dir(context, dir, name)
    }

    fn rename(
        &self,
        context: &Context<'_>,
        from_dir: NodeId,
        from: &[u8],
        to_dir: NodeId,
        to: &[u8],
        how: Rename,
    ) -> Result<()> {
        self.model.rename(context, from_dir, from, to_dir, to, how)
    }

    fn change(&self, context: &Context<'_>, node: NodeId, change: &Change) -> Result<Attributes> {
        self.model.change(context, node, change)
    }

    fn open_as(&self, context: &Context<'_>, node: NodeId, mode: OpenMode) -> Result<Box<dyn WritableFile>> {
        Ok(self.watched(context, self.model.open_as(context, node, mode)?, mode))
    }

    fn set_xattr(
        &self,
        context: &Context<'_>,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: SetXattr,
    ) -> Result<()> {
        self.model.set_xattr(context, node, name, value, mode)
    }

    fn remove_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<()> {
        self.model.remove_xattr(context, node, name)
    }

    fn sync_dir(&self, context: &Context<'_>, dir: NodeId) -> Result<()> {
        self.watch.syncs.fetch_add(1, SeqCst);
        fail_if(&self.watch.cannot_sync, ErrorKind::Os(quell_vfs::errno::EIO), || {
            self.model.sync_dir(context, dir)
        })
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
    fn attributes(&self) -> Result<Attributes> {
        self.file.attributes()
    }
}

impl ReadAt for WatchedFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(into, offset)
    }
}

impl WritableFile for WatchedFile {
    fn close(&self) -> Result<()> {
        self.watch.closes.fetch_add(1, SeqCst);
        fail_if(&self.watch.no_space_to_publish, ErrorKind::NoSpace, || self.file.close())
    }

    fn drop_set_id(&self) -> Result<()> {
        self.file.drop_set_id()
    }

    fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        let write = || self.file.write_at(from, offset);
        fail_if(&self.watch.no_space_to_write, ErrorKind::NoSpace, write)
    }

    fn write_zeros(&self, offset: u64, length: u64) -> Result<()> {
        self.file.write_zeros(offset, length)
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
