//! Tests the crash histories: a file system that passes everything on to a directory survives power
//! failures, and variants that omit a sync do not, so the tests can fail.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use quell_posix::WritableDir;
use quell_testkit::MemoryStore;
use quell_testkit::histories::crash::{self, CrashImplementation, Failure};
use quell_vfs::{
    Attributes, Capabilities, Change, Context, Cursor, DirEntry, Error, ErrorKind, File, FileSystem, Kind,
    NewEntry, NodeId, NodeRef, OpenMode, ReadAt, Rename, Result, Space, Writable, WritableFile,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    BytesAreNotSynced,
    NamesAreNotSynced,
    /// Publishing leaves data in the process.
    PublishedLate,
    /// Mounting truncates files to whole blocks.
    RepairedTooMuch,
}

/// The files of one directory. A node is an inode of the store.
struct Plain {
    dir: Arc<dyn WritableDir>,
    names: Mutex<HashMap<NodeId, Vec<u8>>>,
    fault: Fault,
}

impl Plain {
    fn mount(store: &MemoryStore, fault: Fault) -> Plain {
        let plain = Plain { dir: store.root(), names: Mutex::default(), fault };
        if fault == Fault::RepairedTooMuch {
            for name in plain.dir.names().unwrap() {
                let file = plain.dir.open_writable_file(&name).unwrap();
                file.set_size(file.stat().unwrap().size_bytes / 512 * 512).unwrap();
            }
        }
        plain
    }

    fn name(&self, node: NodeId) -> Vec<u8> {
        self.names.lock().unwrap()[&node].clone()
    }

    fn found(&self, name: &[u8]) -> Result<Attributes> {
        let stat = self.dir.stat(name)?;
        self.names.lock().unwrap().insert(NodeId(stat.inode), name.to_vec());
        Ok(attributes_from(&stat))
    }

    fn file(&self, inner: Box<dyn quell_posix::WritableFile>) -> Box<dyn WritableFile> {
        Box::new(PlainFile { inner, dir: self.dir.clone(), fault: self.fault, late: Mutex::default() })
    }
}

fn attributes_from(stat: &quell_posix::Stat) -> Attributes {
    Attributes {
        node: NodeId(stat.inode),
        kind: Kind::File,
        permissions: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        nlink: stat.nlink,
        rdev: 0,
        size_bytes: stat.size_bytes,
        blocks: stat.blocks,
        modified: stat.modified,
        changed: stat.changed,
    }
}

fn never<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, "not part of the test", b""))
}

impl FileSystem for Plain {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn root(&self) -> NodeId {
        NodeId(0)
    }

    fn lookup(&self, _: &Context<'_>, _dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        match self.found(name) {
            Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
            found => Ok(Some(NodeRef::permanent(found?))),
        }
    }

    fn attributes(&self, _: &Context<'_>, node: NodeId) -> Result<Attributes> {
        self.found(&self.name(node))
    }

    fn parent(&self, _node: NodeId) -> Result<NodeId> {
        never()
    }

    fn path(&self, _node: NodeId) -> Result<Vec<u8>> {
        never()
    }

    fn list(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: Cursor,
        _: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        never()
    }

    fn read_link(&self, _: &Context<'_>, _node: NodeId) -> Result<Vec<u8>> {
        never()
    }

    fn xattr(&self, _: &Context<'_>, _node: NodeId, _name: &[u8]) -> Result<Option<Vec<u8>>> {
        never()
    }

    fn xattr_names(&self, _: &Context<'_>, _node: NodeId) -> Result<Vec<Vec<u8>>> {
        never()
    }

    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        let file = self.open_as(context, node, OpenMode::READ)?;
        Ok(file)
    }

    fn forget(&self, _node: NodeId, _references: u64) {}

    fn writable(&self) -> Option<&dyn Writable> {
        Some(self)
    }
}

impl Writable for Plain {
    fn create(
        &self,
        _: &Context<'_>,
        _dir: NodeId,
        name: &[u8],
        new: NewEntry,
        _mode: OpenMode,
    ) -> Result<(NodeRef<'_>, Box<dyn WritableFile>)> {
        let file = self.dir.create_file(name, new.permissions)?;
        Ok((NodeRef::permanent(self.found(name)?), self.file(file)))
    }

    fn make_dir(&self, _: &Context<'_>, _dir: NodeId, _name: &[u8], _new: NewEntry) -> Result<NodeRef<'_>> {
        never()
    }

    fn make_symlink(
        &self,
        _: &Context<'_>,
        _dir: NodeId,
        _name: &[u8],
        _target: &[u8],
        _new: NewEntry,
    ) -> Result<NodeRef<'_>> {
        never()
    }

    fn remove(&self, _: &Context<'_>, _dir: NodeId, _name: &[u8]) -> Result<()> {
        never()
    }

    fn remove_dir(&self, _: &Context<'_>, _dir: NodeId, _name: &[u8]) -> Result<()> {
        never()
    }

    fn rename(&self, _: &Context<'_>, _: NodeId, _: &[u8], _: NodeId, _: &[u8], _: Rename) -> Result<()> {
        never()
    }

    fn change(&self, context: &Context<'_>, node: NodeId, change: &Change) -> Result<Attributes> {
        if let Some(size_bytes) = change.size_bytes {
            self.dir.open_writable_file(&self.name(node))?.set_size(size_bytes)?;
        }
        self.attributes(context, node)
    }

    fn open_as(&self, _: &Context<'_>, node: NodeId, _mode: OpenMode) -> Result<Box<dyn WritableFile>> {
        Ok(self.file(self.dir.open_writable_file(&self.name(node))?))
    }

    fn sync_dir(&self, _: &Context<'_>, _dir: NodeId) -> Result<()> {
        never()
    }

    fn space(&self) -> Result<Space> {
        self.dir.space()
    }
}

struct PlainFile {
    inner: Box<dyn quell_posix::WritableFile>,
    dir: Arc<dyn WritableDir>,
    fault: Fault,
    late: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl PlainFile {
    fn written(&self) -> Result<()> {
        let late = std::mem::take(&mut *self.late.lock().unwrap());
        late.iter().try_for_each(|(offset, bytes)| self.inner.write_at(bytes, *offset))
    }
}

impl File for PlainFile {
    fn attributes(&self) -> Result<Attributes> {
        Ok(attributes_from(&self.inner.stat()?))
    }
}

impl ReadAt for PlainFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.inner.read_at(into, offset)
    }
}

impl WritableFile for PlainFile {
    fn close(&self) -> Result<()> {
        self.publish()
    }

    fn drop_set_id(&self) -> Result<()> {
        never()
    }

    fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        if self.fault == Fault::PublishedLate {
            self.late.lock().unwrap().push((offset, from.to_vec()));
            return Ok(());
        }
        self.inner.write_at(from, offset)
    }

    fn append(&self, from: &[u8]) -> Result<u64> {
        let end = self.inner.stat()?.size_bytes;
        self.inner.write_at(from, end)?;
        Ok(end)
    }

    fn publish(&self) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.written()?;
        if self.fault != Fault::BytesAreNotSynced {
            self.inner.sync()?;
        }
        if self.fault != Fault::NamesAreNotSynced {
            self.dir.sync()?;
        }
        Ok(())
    }
}

fn run(fault: Fault, seed: u64) -> Result<(), String> {
    let make = |stores: &[MemoryStore], _| Arc::new(Plain::mount(&stores[0], fault)) as Arc<dyn FileSystem>;
    let implementation = CrashImplementation {
        name: "plain",
        stores: 1,
        make: &make,
        uid: 1000,
        gid: 100,
        unsynced_damage: false,
    };
    crash::run(&implementation, Failure::KillOrPowerLoss, seed)
}

#[test]
fn a_correct_file_system_survives_every_crash() {
    for seed in 0..60 {
        run(Fault::None, seed).unwrap();
    }
}

#[test]
fn each_fault_is_found() {
    for fault in
        [Fault::BytesAreNotSynced, Fault::NamesAreNotSynced, Fault::PublishedLate, Fault::RepairedTooMuch]
    {
        let found = (0..40).find_map(|seed| run(fault, seed).err());
        println!("{fault:?}: {}\n", found.unwrap_or_else(|| panic!("{fault:?} was not found")));
    }
}
