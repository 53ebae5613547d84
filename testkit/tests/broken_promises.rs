//! Tests that the conformance suites fail for implementations that break a promise.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use quell_testkit::conformance::writing::{self, Mounts, WritableImplementation};
use quell_testkit::conformance::{self, Implementation, Instance};
use quell_testkit::{Model, Tree, WritableModel};
use quell_vfs::{
    Attributes, Capabilities, Change, Context, Cursor, DirEntry, File, FileSystem, NewEntry, NodeId, NodeRef,
    OpenMode, Rename, Result, Space, Writable, WritableFile,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The operation of this name ignores its deadline.
    IgnoresDeadline(&'static str),
    /// Deadlines are not claimed, and have an effect.
    DeadlinesNotClaimed,
    /// The whole-path operation of this name uses only the last component.
    OnlyLastComponent(&'static str),
    /// A truncation by `change` keeps set-id bits.
    ChangeKeepsSetId,
    /// An open by node that truncates keeps set-id bits.
    OpenKeepsSetId,
    /// An open by path that truncates keeps set-id bits.
    OpenPathKeepsSetId,
    /// Cursors use all 64 bits.
    LargeCursors,
}

const READING: [&str; 9] = [
    "lookup",
    "attributes",
    "attributes_of_path",
    "list",
    "read_link",
    "xattr",
    "xattr_names",
    "open",
    "open_path",
];

const WRITING: [&str; 10] = [
    "change",
    "open_as",
    "open_path_as",
    "create",
    "make_dir",
    "make_symlink",
    "rename",
    "remove",
    "remove_dir",
    "sync_dir",
];

const HIGH_BIT: u64 = 1 << 63;

/// A model with a fault.
struct Wrong<F> {
    inner: F,
    fault: Fault,
}

impl<F: FileSystem> Wrong<F> {
    fn context<'a>(&self, operation: &'static str, context: &Context<'a>) -> Context<'a> {
        match self.fault == Fault::IgnoresDeadline(operation) {
            true => Context { deadline: None, ..*context },
            false => *context,
        }
    }

    fn own<'a>(&self, fault: Fault, context: Context<'a>) -> Context<'a> {
        match self.fault == fault {
            true => Context { caller: None, ..context },
            false => context,
        }
    }

    fn used_part<'p>(&self, operation: &'static str, path: &'p [u8]) -> &'p [u8] {
        match self.fault == Fault::OnlyLastComponent(operation) {
            true => path.rsplit(|byte| *byte == b'/').next().expect("a path has a last component"),
            false => path,
        }
    }

    fn inner(&self) -> &dyn Writable {
        self.inner.writable().expect("the model is writable")
    }
}

impl<F: FileSystem> FileSystem for Wrong<F> {
    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        Capabilities { deadlines: inner.deadlines && self.fault != Fault::DeadlinesNotClaimed, ..inner }
    }

    fn root(&self) -> NodeId {
        self.inner.root()
    }

    fn lookup(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        self.inner.lookup(&self.context("lookup", context), dir, name)
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId) -> Result<Attributes> {
        self.inner.attributes(&self.context("attributes", context), node)
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
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let context = self.context("list", context);
        if self.fault != Fault::LargeCursors {
            return self.inner.list(&context, dir, after, visit);
        }
        self.inner.list(&context, dir, Cursor(after.0 & !HIGH_BIT), &mut |entry| {
            visit(DirEntry { next: Cursor(entry.next.0 | HIGH_BIT), ..entry })
        })
    }

    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        self.inner.read_link(&self.context("read_link", context), node)
    }

    fn xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.inner.xattr(&self.context("xattr", context), node, name)
    }

    fn xattr_names(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.inner.xattr_names(&self.context("xattr_names", context), node)
    }

    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        self.inner.open(&self.context("open", context), node)
    }

    fn forget(&self, node: NodeId, references: u64) {
        self.inner.forget(node, references);
    }

    fn attributes_of_path(&self, context: &Context<'_>, path: &[u8]) -> Result<Option<Attributes>> {
        let path = self.used_part("attributes_of_path", path);
        self.inner.attributes_of_path(&self.context("attributes_of_path", context), path)
    }

    fn open_path(&self, context: &Context<'_>, path: &[u8]) -> Result<Box<dyn File>> {
        let path = self.used_part("open_path", path);
        self.inner.open_path(&self.context("open_path", context), path)
    }

    fn writable(&self) -> Option<&dyn Writable> {
        self.inner.writable().map(|_| self as _)
    }
}

impl<F: FileSystem> Writable for Wrong<F> {
    fn create(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
        mode: OpenMode,
    ) -> Result<(NodeRef<'_>, Box<dyn WritableFile>)> {
        self.inner().create(&self.context("create", context), dir, name, new, mode)
    }

    fn make_dir(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
    ) -> Result<NodeRef<'_>> {
        self.inner().make_dir(&self.context("make_dir", context), dir, name, new)
    }

    fn make_symlink(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        target: &[u8],
        new: NewEntry,
    ) -> Result<NodeRef<'_>> {
        self.inner().make_symlink(&self.context("make_symlink", context), dir, name, target, new)
    }

    fn remove(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        self.inner().remove(&self.context("remove", context), dir, name)
    }

    fn remove_dir(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        self.inner().remove_dir(&self.context("remove_dir", context), dir, name)
    }

    fn rename(
        &self,
        context: &Context<'_>,
        from_dir: NodeId,
        from: &[u8],
        to_dir: NodeId,
        to: &[u8],
        mode: Rename,
    ) -> Result<()> {
        self.inner().rename(&self.context("rename", context), from_dir, from, to_dir, to, mode)
    }

    fn change(&self, context: &Context<'_>, node: NodeId, change: &Change) -> Result<Attributes> {
        let context = self.own(Fault::ChangeKeepsSetId, self.context("change", context));
        self.inner().change(&context, node, change)
    }

    fn open_as(&self, context: &Context<'_>, node: NodeId, mode: OpenMode) -> Result<Box<dyn WritableFile>> {
        let context = self.own(Fault::OpenKeepsSetId, self.context("open_as", context));
        self.inner().open_as(&context, node, mode)
    }

    fn open_path_as(
        &self,
        context: &Context<'_>,
        path: &[u8],
        mode: OpenMode,
    ) -> Result<Box<dyn WritableFile>> {
        let context = self.own(Fault::OpenPathKeepsSetId, self.context("open_path_as", context));
        self.inner().open_path_as(&context, self.used_part("open_path_as", path), mode)
    }

    fn sync_dir(&self, context: &Context<'_>, dir: NodeId) -> Result<()> {
        self.inner().sync_dir(&self.context("sync_dir", context), dir)
    }

    fn space(&self) -> Result<Space> {
        self.inner().space()
    }
}

/// Returns whether a model with this fault keeps a promise about read-only trees.
fn is_kept_by_reader(promise: &str, fault: Fault) -> bool {
    let make = |tree: &Tree| {
        let inner = Model::new(Arc::new(tree.clone())).with_deadlines();
        Instance { fs: Arc::new(Wrong { inner, fault }), keep: None }
    };
    let name = format!("model with {fault:?}");
    let implementation =
        Implementation { name: &name, exact: true, devices: true, xattrs: true, make: &make };
    catch_unwind(AssertUnwindSafe(|| conformance::check(promise, &implementation))).is_ok()
}

/// Returns whether a model with this fault keeps a promise about writable trees.
fn is_kept_by_writer(promise: &str, fault: Fault) -> bool {
    let make = |count: usize| {
        let model: Arc<dyn FileSystem> = Arc::new(Wrong { inner: WritableModel::new(), fault });
        Mounts { mounts: vec![model; count], keep: None }
    };
    let name = format!("writable model with {fault:?}");
    let implementation = WritableImplementation {
        name: &name,
        make: &make,
        mounts_max: 1,
        name_bytes_max: 255,
        path_bytes_max: usize::MAX,
        uid: 1000,
        gid: 100,
        owners: true,
        rename_kinds: true,
        hard_links: true,
        writes_zeros: false,
        locks: false,
        xattrs: false,
    };
    catch_unwind(AssertUnwindSafe(|| writing::check(promise, &implementation))).is_ok()
}

#[test]
fn models_without_a_fault_keep_the_promises() {
    for promise in ["deadlines", "list", "resolve"] {
        assert!(is_kept_by_reader(promise, Fault::None), "{promise}");
    }
    for promise in ["deadlines", "listing", "paths", "set-id bits"] {
        assert!(is_kept_by_writer(promise, Fault::None), "{promise}");
    }
}

#[test]
fn a_deadline_that_is_claimed_and_ignored_is_noticed_for_each_operation() {
    for operation in READING {
        let fault = Fault::IgnoresDeadline(operation);
        assert!(!is_kept_by_reader("deadlines", fault), "{operation} of a read-only tree");
        assert!(!is_kept_by_writer("deadlines", fault), "{operation} of a writable tree");
    }
    for operation in WRITING {
        assert!(!is_kept_by_writer("deadlines", Fault::IgnoresDeadline(operation)), "{operation}");
    }
}

#[test]
fn deadlines_that_have_an_effect_and_are_not_claimed_are_noticed() {
    assert!(!is_kept_by_reader("deadlines", Fault::DeadlinesNotClaimed));
    assert!(!is_kept_by_writer("deadlines", Fault::DeadlinesNotClaimed));
}

#[test]
fn a_path_operation_that_ignores_a_component_is_noticed() {
    for operation in ["attributes_of_path", "open_path"] {
        assert!(!is_kept_by_reader("resolve", Fault::OnlyLastComponent(operation)), "{operation}");
    }
    for operation in ["attributes_of_path", "open_path", "open_path_as"] {
        assert!(!is_kept_by_writer("paths", Fault::OnlyLastComponent(operation)), "{operation}");
    }
}

#[test]
fn set_id_bits_kept_at_a_truncation_are_noticed() {
    for fault in [Fault::ChangeKeepsSetId, Fault::OpenKeepsSetId, Fault::OpenPathKeepsSetId] {
        assert!(!is_kept_by_writer("set-id bits", fault), "{fault:?}");
    }
}

#[test]
fn cursors_that_are_too_large_are_noticed() {
    assert!(!is_kept_by_reader("list", Fault::LargeCursors));
    assert!(!is_kept_by_writer("listing", Fault::LargeCursors));
}
