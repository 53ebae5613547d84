//! Tests the random histories: the model agrees with itself, and variants with one fault do not, so
//! the tests can fail.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use quell_testkit::WritableModel;
use quell_testkit::conformance::writing::{Mounts, WritableImplementation};
use quell_testkit::histories::{self, Shape};
use quell_vfs::{
    Attributes, Capabilities, Change, Context, File, FileSystem, NewEntry, NodeId, NodeRef, OpenMode, ReadAt,
    Rename, Result, SetXattr, Space, Writable, WritableFile,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Long writes lose their last byte.
    TornWrites,
    /// A file that grows shows the data it had before it was truncated.
    OldBytesComeBack,
    /// An append goes one byte before the end.
    AppendsTooEarly,
    /// Of two overlapping ranges the first one remains.
    PiecesInWrongOrder,
    /// Publishing updates the time.
    TimeOfPublishing,
    /// A removed file loses its data although it is open.
    RemovedIsEmpty,
    /// `Rename::Keep` replaces an existing entry.
    NothingIsKept,
    /// Writes to a node without references are lost.
    ForgottenWritesAreLost,
    /// A mount caches sizes until it writes.
    OldSizes,
    /// A mount caches data until it writes.
    OldBytes,
}

const FAULTS: [Fault; 8] = [
    Fault::TornWrites,
    Fault::OldBytesComeBack,
    Fault::AppendsTooEarly,
    Fault::PiecesInWrongOrder,
    Fault::TimeOfPublishing,
    Fault::RemovedIsEmpty,
    Fault::NothingIsKept,
    Fault::ForgottenWritesAreLost,
];

/// The model with a fault.
#[derive(Clone)]
struct Wrong {
    inner: WritableModel,
    fault: Fault,
    /// The state of one mount.
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    attributes: HashMap<NodeId, Attributes>,
    bytes: HashMap<NodeId, Vec<u8>>,
    forgotten: HashMap<NodeId, Arc<AtomicBool>>,
}

impl Wrong {
    fn mount(inner: &WritableModel, fault: Fault) -> Wrong {
        Wrong { inner: inner.clone(), fault, known: Arc::default() }
    }

    fn changed(&self, node: NodeId) {
        let mut known = self.known.lock().unwrap();
        known.attributes.remove(&node);
        known.bytes.remove(&node);
    }

    fn file(&self, node: NodeId, inner: Box<dyn WritableFile>) -> Box<dyn WritableFile> {
        let forgotten = self.known.lock().unwrap().forgotten.entry(node).or_default().clone();
        Box::new(WrongFile { inner, node, of: self.clone(), forgotten })
    }

    fn shown(&self, attributes: Attributes) -> Attributes {
        if self.fault != Fault::OldSizes {
            return attributes;
        }
        let mut known = self.known.lock().unwrap();
        let size_bytes = known.attributes.entry(attributes.node).or_insert(attributes).size_bytes;
        Attributes { size_bytes, ..attributes }
    }
}

impl FileSystem for Wrong {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn root(&self) -> NodeId {
        self.inner.root()
    }

    fn lookup(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        let found = self.inner.lookup(context, dir, name)?;
        Ok(found.map(|found| NodeRef::counted(self, self.shown(found.into_attributes()))))
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId) -> Result<Attributes> {
        Ok(self.shown(self.inner.attributes(context, node)?))
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        self.inner.parent(node)
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        self.inner.path(node)
    }

    fn list(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        after: quell_vfs::Cursor,
        visit: &mut dyn FnMut(quell_vfs::DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.inner.list(context, dir, after, visit)
    }

    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        self.inner.read_link(context, node)
    }

    fn xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.inner.xattr(context, node, name)
    }

    fn xattr_names(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.inner.xattr_names(context, node)
    }

    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        self.inner.open(context, node)
    }

    fn forget(&self, node: NodeId, references: u64) {
        self.inner.forget(node, references);
        if let Some(forgotten) = self.known.lock().unwrap().forgotten.remove(&node) {
            forgotten.store(true, Ordering::SeqCst);
        }
    }

    fn writable(&self) -> Option<&dyn Writable> {
        Some(self)
    }
}

impl Writable for Wrong {
    fn create(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
        mode: OpenMode,
    ) -> Result<(NodeRef<'_>, Box<dyn WritableFile>)> {
        let (created, file) = self.inner.create(context, dir, name, new, mode)?;
        let attributes = created.into_attributes();
        Ok((NodeRef::counted(self, attributes), self.file(attributes.node, file)))
    }

    fn make_dir(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
    ) -> Result<NodeRef<'_>> {
        let made = self.inner.make_dir(context, dir, name, new)?;
        Ok(NodeRef::counted(self, made.into_attributes()))
    }

    fn make_symlink(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        target: &[u8],
        new: NewEntry,
    ) -> Result<NodeRef<'_>> {
        let made = self.inner.make_symlink(context, dir, name, target, new)?;
        Ok(NodeRef::counted(self, made.into_attributes()))
    }

    fn remove(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        if self.fault == Fault::RemovedIsEmpty
            && let Some(found) = self.inner.lookup(context, dir, name)?
        {
            let empty = Change { size_bytes: Some(0), ..Change::default() };
            // The change is refused if the entry is a directory.
            let _ = self.inner.change(context, found.node(), &empty);
        }
        self.inner.remove(context, dir, name)
    }

    fn remove_dir(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        self.inner.remove_dir(context, dir, name)
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
        let how =
            if self.fault == Fault::NothingIsKept && how == Rename::Keep { Rename::Replace } else { how };
        self.inner.rename(context, from_dir, from, to_dir, to, how)
    }

    fn change(&self, context: &Context<'_>, node: NodeId, change: &Change) -> Result<Attributes> {
        let before = self.inner.attributes(context, node)?;
        self.changed(node);
        let after = self.inner.change(context, node, change)?;
        if self.fault == Fault::OldBytesComeBack && after.size_bytes > before.size_bytes {
            let file = self.inner.open_as(context, node, OpenMode::WRITE)?;
            file.write_at(b"old", before.size_bytes.min(after.size_bytes - 3))?;
        }
        Ok(after)
    }

    fn open_as(&self, context: &Context<'_>, node: NodeId, mode: OpenMode) -> Result<Box<dyn WritableFile>> {
        if mode.truncate {
            self.changed(node);
        }
        Ok(self.file(node, self.inner.open_as(context, node, mode)?))
    }

    fn set_xattr(
        &self,
        context: &Context<'_>,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: SetXattr,
    ) -> Result<()> {
        self.inner.set_xattr(context, node, name, value, mode)
    }

    fn remove_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<()> {
        self.inner.remove_xattr(context, node, name)
    }

    fn sync_dir(&self, context: &Context<'_>, dir: NodeId) -> Result<()> {
        self.inner.sync_dir(context, dir)
    }

    fn space(&self) -> Result<Space> {
        self.inner.space()
    }
}

struct WrongFile {
    inner: Box<dyn WritableFile>,
    node: NodeId,
    of: Wrong,
    forgotten: Arc<AtomicBool>,
}

impl File for WrongFile {
    fn attributes(&self) -> Result<Attributes> {
        Ok(self.of.shown(self.inner.attributes()?))
    }
}

impl ReadAt for WrongFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let count = self.inner.read_at(into, offset)?;
        if self.of.fault == Fault::OldBytes && offset == 0 {
            let mut known = self.of.known.lock().unwrap();
            let old = known.bytes.entry(self.node).or_insert_with(|| into[..count].to_vec());
            let same = old.len().min(count);
            into[..same].copy_from_slice(&old[..same]);
        }
        Ok(count)
    }
}

impl WritableFile for WrongFile {
    fn close(&self) -> Result<()> {
        self.publish()?;
        self.inner.close()
    }

    fn drop_set_id(&self) -> Result<()> {
        self.inner.drop_set_id()
    }

    fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        self.of.changed(self.node);
        let lost = self.of.fault == Fault::TornWrites && from.len() > 5000;
        if self.of.fault == Fault::ForgottenWritesAreLost && self.forgotten.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.inner.write_at(&from[..from.len() - usize::from(lost)], offset)
    }

    fn append(&self, from: &[u8]) -> Result<u64> {
        self.of.changed(self.node);
        let at = self.inner.append(from)?;
        if self.of.fault == Fault::AppendsTooEarly && at > 0 {
            self.inner.write_at(from, at - 1)?;
        }
        Ok(at)
    }

    fn publish(&self) -> Result<()> {
        if self.of.fault == Fault::TimeOfPublishing {
            self.inner.write_at(b"", 0)?;
            let modified = Some(quell_vfs::Time { seconds: 1, nanoseconds: 1 });
            // The node may have no reference other than this open file.
            let _ = self.of.inner.change(&Context::OWN, self.node, &Change { modified, ..Change::default() });
        }
        self.inner.publish()
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn write_pieces(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        let mut pieces = pieces.to_vec();
        if self.of.fault == Fault::PiecesInWrongOrder {
            pieces.reverse();
        }
        pieces.iter().try_for_each(|(offset, from)| self.write_at(from, *offset))
    }
}

/// Runs `test` on mounts of the model with a fault.
fn with_fault<T>(fault: Fault, test: impl FnOnce(&WritableImplementation<'_>) -> T) -> T {
    let make = |count: usize| {
        let model = WritableModel::new();
        let mount = || Arc::new(Wrong::mount(&model, fault)) as Arc<dyn FileSystem>;
        Mounts { mounts: (0..count).map(|_| mount()).collect(), keep: None }
    };
    test(&WritableImplementation {
        name: &format!("{fault:?}"),
        make: &make,
        mounts_max: 8,
        name_bytes_max: 255,
        path_bytes_max: usize::MAX,
        uid: 1000,
        gid: 100,
        owners: true,
        rename_kinds: true,
        hard_links: false,
        writes_zeros: false,
        locks: true,
        xattrs: true,
    })
}

#[test]
fn two_models_agree() {
    with_fault(Fault::None, |implementation| {
        histories::check(implementation, Shape::ONE_MOUNT, 0..100);
        histories::check(implementation, Shape { forgets: true, ..Shape::DENSE }, 0..60);
        histories::check(implementation, Shape::TWO_MOUNTS, 0..100);
    });
}

#[test]
fn each_fault_is_found_on_one_mount() {
    for fault in FAULTS {
        let found = with_fault(fault, |implementation| {
            let shape = Shape { forgets: fault == Fault::ForgottenWritesAreLost, ..Shape::ONE_MOUNT };
            (0..60).find_map(|seed| histories::run(implementation, shape, seed).err())
        });
        let found = found.unwrap_or_else(|| panic!("{fault:?} was not found"));
        println!("{fault:?}: {found}\n");
    }
}

#[test]
fn two_mounts_find_an_answer_cached_too_long() {
    for fault in [Fault::OldSizes, Fault::OldBytes] {
        with_fault(fault, |implementation| {
            let shape = Shape { mounts: 2, ..Shape::ONE_MOUNT };
            let found = (0..60).find_map(|seed| histories::run(implementation, shape, seed).err());
            println!("{fault:?}: {}", found.unwrap_or_else(|| panic!("{fault:?} was not found")));
        });
    }
}

#[test]
fn one_seed_is_one_history() {
    let report = |seed| {
        with_fault(Fault::TornWrites, |implementation| {
            histories::run(implementation, Shape::DENSE, seed).err().map(|e| e.to_string())
        })
    };
    let torn = |seed| {
        with_fault(Fault::TornWrites, |implementation| {
            histories::run(implementation, Shape::ONE_MOUNT, seed).err()
        })
    };
    let seed = (0..60).find(|seed| torn(*seed).is_some()).expect("it is found");
    assert_eq!(torn(seed).map(|e| e.to_string()), torn(seed).map(|e| e.to_string()));
    assert_eq!(report(0), None, "no write is that long");
}
