//! One of the two file systems of a history: its mounts and open files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quell_vfs::errno::ENOENT;
use quell_vfs::{
    Attributes, Change, Context, Error, ErrorKind, FileSystem, Kind, NewEntry, NodeId, OpenMode, Result,
    Time, Writable, WritableFile,
};

use super::operation::{DIRECTORIES, FAR, Operation, Path, SLOTS, bytes_of, file_name};
use crate::compare::listing;
use crate::conformance::writing::WritableImplementation;

/// Times that were set have these nanoseconds; times of clocks do not.
const SET_NANOSECONDS: u32 = 123_456_789;
/// The number of bytes compared at one offset of a file.
const WINDOW_BYTES: usize = 256 << 10;

struct Slot {
    node: NodeId,
    file: Box<dyn WritableFile>,
    /// Whether the node's reference has not been returned yet.
    held: bool,
    /// Whether the file was left open in an earlier turn.
    idle: bool,
}

pub(super) struct Executor {
    // Declared before the mounts, so that files are closed first.
    slots: Vec<Vec<Option<Slot>>>,
    mounts: Vec<Arc<dyn FileSystem>>,
    /// The mount whose turn it is.
    mount: usize,
    mounts_in_turn: usize,
    new: NewEntry,
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OperationResult {
    Done,
    Error(i32),
    Bytes(Vec<u8>),
    /// The results of several ranges.
    Pieces(Vec<Vec<u8>>),
    /// The size of a file, its beginning and its data beyond 2^40.
    All(u64, Vec<u8>, Vec<u8>),
    At(u64),
    Stat {
        kind: char,
        permissions: u32,
        size_bytes: u64,
        nlink: u32,
        owners: (u32, u32),
        set: Option<Time>,
    },
    Names(BTreeSet<(Vec<u8>, char)>),
    Xattrs(BTreeMap<Vec<u8>, Option<Vec<u8>>>),
    /// A contradiction within the result.
    Contradiction(String),
}

impl OperationResult {
    fn from_attributes(attributes: Attributes) -> OperationResult {
        let is_file = attributes.kind == Kind::File;
        let set = attributes.modified.nanoseconds == SET_NANOSECONDS;
        OperationResult::Stat {
            kind: attributes.kind.letter(),
            permissions: attributes.permissions,
            size_bytes: if is_file { attributes.size_bytes } else { 0 },
            nlink: if is_file { attributes.nlink } else { 0 },
            owners: (attributes.uid, attributes.gid),
            set: set.then_some(attributes.modified),
        }
    }

    pub(super) fn agrees(&self, found: &OperationResult) -> bool {
        self == found
    }

    /// Describes the difference for a report.
    pub(super) fn difference(&self, found: &OperationResult) -> String {
        let at = |place: &str, expected: &[u8], found: &[u8]| {
            let first = expected.iter().zip(found).position(|(a, b)| a != b);
            let first = first.unwrap_or(expected.len().min(found.len()));
            let wrong = expected.iter().zip(found).filter(|(a, b)| a != b).count();
            let some = |bytes: &[u8]| {
                format!("{:02x?}", &bytes[first.min(bytes.len())..bytes.len().min(first + 16)])
            };
            format!(
                "{place}expected {} bytes, found {}; {wrong} of them differ, from the {first}th on: expected {}, found {}",
                expected.len(),
                found.len(),
                some(expected),
                some(found)
            )
        };
        match (self, found) {
            (OperationResult::Bytes(a), OperationResult::Bytes(b)) => at("", a, b),
            (OperationResult::Pieces(a), OperationResult::Pieces(b)) => {
                let piece = a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(0);
                at(&format!("piece {piece}: "), &a[piece], &b[piece])
            }
            (OperationResult::All(size, a, far), OperationResult::All(found_size, b, found_far))
                if size == found_size =>
            {
                if a != b {
                    at("", a, b)
                } else {
                    at("beyond 2^40: ", far, found_far)
                }
            }
            (OperationResult::All(size, ..), OperationResult::All(found, ..)) => {
                format!("expected {size} bytes, found {found}")
            }
            (expected, found) => format!("expected {expected:?}\nfound    {found:?}"),
        }
    }
}

fn not_found<T>() -> Result<T> {
    Err(Error::new(ErrorKind::from_errno(ENOENT), "look up", b""))
}

fn read(file: &dyn WritableFile, offset: u64, count: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0xAA; count];
    let count = file.read_at(&mut bytes, offset)?;
    bytes.truncate(count);
    Ok(bytes)
}

fn all(file: &dyn WritableFile, size_bytes: u64) -> Result<OperationResult> {
    Ok(OperationResult::All(size_bytes, read(file, 0, WINDOW_BYTES)?, read(file, FAR, WINDOW_BYTES)?))
}

impl Executor {
    pub(super) fn new(
        mounts: Vec<Arc<dyn FileSystem>>,
        mounts_in_turn: usize,
        implementation: &WritableImplementation<'_>,
    ) -> Executor {
        let new = NewEntry { permissions: 0o644, uid: implementation.uid, gid: implementation.gid };
        let slots = mounts.iter().map(|_| (0..SLOTS).map(|_| None).collect()).collect();
        Executor { slots, mounts_in_turn, mounts, mount: 0, new }
    }

    pub(super) fn slot_count(&self) -> usize {
        SLOTS
    }

    pub(super) fn mount_count(&self) -> usize {
        self.mounts.len()
    }

    pub(super) fn start_last_turn(&mut self, mount: usize) {
        self.mount = mount;
    }

    fn fs(&self) -> &dyn FileSystem {
        &*self.mounts[self.mount]
    }

    fn verbs(&self) -> &dyn Writable {
        self.fs().writable().expect("it may be changed")
    }

    fn slot(&self, slot: usize) -> Option<&Slot> {
        self.slots[self.mount][slot].as_ref().filter(|slot| !slot.idle)
    }

    /// Returns, on the model, whether the operation is applicable and its result is determined.
    pub(super) fn is_possible(&self, operation: &Operation) -> bool {
        let size =
            |node| self.fs().attributes(&Context::OWN, node).map_or(0, |attributes| attributes.size_bytes);
        match operation {
            Operation::Open { .. } | Operation::Create { .. } => true,
            Operation::Forget { slot } => self.slot(*slot).is_some_and(|slot| slot.held),
            // The contract does not state whether setting the current size changes the file.
            Operation::SizeOpen { slot, size: new } => {
                self.slot(*slot).is_some_and(|slot| slot.held && size(slot.node) != *new)
            }
            Operation::Size { path, size: new } => {
                self.with_file(*path, |node| Ok(size(node) != *new)).unwrap_or(true)
            }
            // A node without references may be stale although the file is open.
            Operation::TimeOpen { slot, .. } => self.slot(*slot).is_some_and(|slot| slot.held),
            other => other.slot().is_none_or(|slot| self.slot(slot).is_some()),
        }
    }

    /// Returns, on the model, the node of the operation's file.
    pub(super) fn file_of(&self, operation: &Operation) -> Option<u64> {
        if let Some(path) = operation.path() {
            return self.with_file(path, |node| Ok(node.0)).ok();
        }
        self.slot(operation.slot()?).map(|slot| slot.node.0)
    }

    /// Calls `call` with the node of a directory, which has a reference during the call.
    fn with_dir<T>(&self, dir: usize, call: impl FnOnce(NodeId) -> Result<T>) -> Result<T> {
        let root = self.fs().root();
        if dir == 0 {
            return call(root);
        }
        match self.fs().lookup(&Context::OWN, root, DIRECTORIES[dir].as_bytes())? {
            None => not_found(),
            Some(found) => call(found.node()),
        }
    }

    fn with_file<T>(&self, path: Path, call: impl FnOnce(NodeId) -> Result<T>) -> Result<T> {
        let name = file_name(path.name);
        self.with_dir(path.dir, |dir| match self.fs().lookup(&Context::OWN, dir, name.as_bytes())? {
            None => not_found(),
            Some(found) => call(found.node()),
        })
    }

    fn close(&mut self, mount: usize, slot: usize, is_published: bool) -> Result<()> {
        let Some(open) = self.slots[mount][slot].take() else { return Ok(()) };
        let closed = open.file.close();
        drop(open.file);
        if open.held {
            let verbs = self.mounts[mount].writable().expect("it may be changed");
            verbs.forget(open.node, 1);
        }
        if is_published { Ok(()) } else { closed }
    }

    pub(super) fn close_all(&mut self) -> OperationResult {
        let mut answer = OperationResult::Done;
        for mount in 0..self.mounts.len() {
            for slot in 0..SLOTS {
                let idle = self.slots[mount][slot].as_ref().is_some_and(|slot| slot.idle);
                if let Err(e) = self.close(mount, slot, idle) {
                    answer = OperationResult::Error(e.errno());
                }
            }
        }
        answer
    }

    fn turn(&mut self, closing: u64) -> Result<()> {
        let mut outcome = Ok(());
        for slot in 0..SLOTS {
            if closing >> slot & 1 == 1 {
                outcome = outcome.and(self.close(self.mount, slot, false));
            } else if let Some(open) = &mut self.slots[self.mount][slot] {
                open.idle = true;
                outcome = outcome.and(open.file.publish());
            }
        }
        self.mount = (self.mount + 1) % self.mounts_in_turn;
        for slot in 0..SLOTS {
            if self.slots[self.mount][slot].as_ref().is_some_and(|slot| slot.idle) {
                outcome = outcome.and(self.close(self.mount, slot, true));
            }
        }
        outcome
    }

    pub(super) fn perform(&mut self, number: usize, operation: &Operation) -> OperationResult {
        self.answer(number, operation).unwrap_or_else(|e| OperationResult::Error(e.errno()))
    }

    fn answer(&mut self, number: usize, operation: &Operation) -> Result<OperationResult> {
        match operation {
            Operation::Open { slot, path, process, truncate } => {
                let mode = OpenMode { truncate: *truncate, ..OpenMode::READ_WRITE };
                self.open(*slot, *path, *process, mode)?;
            }
            Operation::Create { slot, path, process } => {
                self.close(self.mount, *slot, false)?;
                self.create(*slot, *path, *process, OpenMode::READ_WRITE)?;
            }
            Operation::Close { slot } => self.close(self.mount, *slot, false)?,
            Operation::ReadAll { path } => {
                return self.with_file(*path, |node| {
                    let file = self.verbs().open_as(&Context::OWN, node, OpenMode::READ)?;
                    all(&*file, self.fs().attributes(&Context::OWN, node)?.size_bytes)
                });
            }
            Operation::Stat { path } => {
                return self.with_dir(path.dir, |dir| {
                    match self.fs().lookup(&Context::OWN, dir, file_name(path.name).as_bytes())? {
                        None => not_found(),
                        Some(found) => {
                            let again = self.fs().attributes(&Context::OWN, found.node())?;
                            let (again, found) = (
                                OperationResult::from_attributes(again),
                                OperationResult::from_attributes(*found),
                            );
                            if again != found {
                                return Ok(OperationResult::Contradiction(format!(
                                    "looked up {found:?}, looked up again {again:?}"
                                )));
                            }
                            Ok(found)
                        }
                    }
                });
            }
            Operation::Size { path, size } => {
                let change = Change { size_bytes: Some(*size), ..Change::default() };
                return self.with_file(*path, |node| {
                    Ok(OperationResult::from_attributes(self.verbs().change(&Context::OWN, node, &change)?))
                });
            }
            Operation::Mode { path, permissions } => {
                let change = Change { permissions: Some(*permissions), ..Change::default() };
                return self.with_file(*path, |node| {
                    Ok(OperationResult::from_attributes(self.verbs().change(&Context::OWN, node, &change)?))
                });
            }
            Operation::Xattr { path, name, value } => {
                let name = format!("user.{name}");
                self.with_file(*path, |node| match value {
                    Some((count, mode)) => {
                        let value = bytes_of(number, *count);
                        self.verbs().set_xattr(&Context::OWN, node, name.as_bytes(), &value, *mode)
                    }
                    None => self.verbs().remove_xattr(&Context::OWN, node, name.as_bytes()),
                })?;
            }
            Operation::Xattrs { path } => {
                return self.with_file(*path, |node| {
                    let names = self.fs().xattr_names(&Context::OWN, node)?;
                    let values = names.into_iter().map(|name| {
                        let value = self.fs().xattr(&Context::OWN, node, &name)?;
                        Ok((name, value))
                    });
                    values.collect::<Result<_>>().map(OperationResult::Xattrs)
                });
            }
            Operation::Rename { from, to, how } => {
                let (old, new) = (file_name(from.name), file_name(to.name));
                self.with_dir(from.dir, |a| {
                    self.with_dir(to.dir, |b| {
                        self.verbs().rename(&Context::OWN, a, old.as_bytes(), b, new.as_bytes(), *how)
                    })
                })?;
            }
            Operation::Link { from, to } => {
                let name = file_name(to.name);
                self.with_file(*from, |node| {
                    self.with_dir(to.dir, |dir| {
                        self.verbs().link(&Context::OWN, node, dir, name.as_bytes()).map(drop)
                    })
                })?;
            }
            Operation::Remove { path } => {
                let name = file_name(path.name);
                self.with_dir(path.dir, |dir| self.verbs().remove(&Context::OWN, dir, name.as_bytes()))?;
            }
            Operation::MakeDir { dir } => {
                let new = NewEntry { permissions: 0o755, ..self.new };
                let name = DIRECTORIES[*dir].as_bytes();
                drop(self.verbs().make_dir(&Context::OWN, self.fs().root(), name, new)?);
            }
            Operation::RemoveDir { dir } => {
                self.verbs().remove_dir(&Context::OWN, self.fs().root(), DIRECTORIES[*dir].as_bytes())?;
            }
            Operation::RenameDir { from, to, how } => {
                let (root, from, to) = (self.fs().root(), DIRECTORIES[*from], DIRECTORIES[*to]);
                self.verbs().rename(&Context::OWN, root, from.as_bytes(), root, to.as_bytes(), *how)?;
            }
            Operation::List { dir } => {
                let entries = self.with_dir(*dir, |dir| listing(self.fs(), dir, 1 + number % 5))?;
                let names: BTreeSet<_> = entries.iter().map(|(n, a)| (n.clone(), a.kind.letter())).collect();
                if names.len() != entries.len() {
                    return Ok(OperationResult::Contradiction(format!(
                        "a name was listed twice: {entries:?}"
                    )));
                }
                return Ok(OperationResult::Names(names));
            }
            Operation::Turn { closing } => self.turn(*closing)?,
            Operation::CloseAll => return Ok(self.close_all()),
            on_a_slot => return self.on_slot(number, on_a_slot),
        }
        Ok(OperationResult::Done)
    }

    fn on_slot(&mut self, number: usize, operation: &Operation) -> Result<OperationResult> {
        let slot = operation.slot().expect("all others are on a slot");
        let open = self.slot(slot).expect("checked to be open");
        match operation {
            Operation::Write { offset, count, .. } => {
                open.file.write_at(&bytes_of(number, *count), *offset)?
            }
            Operation::WritePieces { pieces, .. } => {
                let bytes: Vec<_> = pieces
                    .iter()
                    .enumerate()
                    .map(|(i, (_, count))| bytes_of(number + i * 8, *count))
                    .collect();
                let pieces: Vec<_> =
                    pieces.iter().zip(&bytes).map(|((offset, _), b)| (*offset, &**b)).collect();
                open.file.write_pieces(&pieces)?;
            }
            Operation::WriteZeros { offset, count, .. } => open.file.write_zeros(*offset, *count as u64)?,
            Operation::Append { count, .. } => {
                return open.file.append(&bytes_of(number, *count)).map(OperationResult::At);
            }
            Operation::Read { offset, count, .. } => {
                return read(&*open.file, *offset, *count).map(OperationResult::Bytes);
            }
            Operation::ReadPieces { pieces, .. } => {
                let mut buffers: Vec<_> = pieces.iter().map(|(_, count)| vec![0xAA; *count]).collect();
                let mut ranges: Vec<_> =
                    pieces.iter().zip(&mut buffers).map(|((offset, _), b)| (*offset, &mut b[..])).collect();
                let counts = open.file.read_pieces(&mut ranges)?;
                for (buffer, count) in buffers.iter_mut().zip(counts) {
                    buffer.truncate(count);
                }
                return Ok(OperationResult::Pieces(buffers));
            }
            Operation::ReadOpen { .. } => {
                return all(&*open.file, open.file.attributes()?.size_bytes);
            }
            Operation::StatOpen { .. } => {
                return open.file.attributes().map(OperationResult::from_attributes);
            }
            Operation::Publish { .. } => open.file.publish()?,
            Operation::Sync { .. } => open.file.sync()?,
            Operation::SizeOpen { size, .. } => {
                let change = Change { size_bytes: Some(*size), ..Change::default() };
                return self
                    .verbs()
                    .change(&Context::OWN, open.node, &change)
                    .map(OperationResult::from_attributes);
            }
            Operation::TimeOpen { seconds, .. } => {
                let modified = Time { seconds: *seconds, nanoseconds: SET_NANOSECONDS };
                let change = Change { modified: Some(modified), ..Change::default() };
                return self
                    .verbs()
                    .change(&Context::OWN, open.node, &change)
                    .map(OperationResult::from_attributes);
            }
            Operation::Forget { .. } => {
                self.verbs().forget(open.node, 1);
                self.slots[self.mount][slot].as_mut().expect("it is open").held = false;
            }
            other => unreachable!("{other} is on no slot"),
        }
        Ok(OperationResult::Done)
    }

    fn create(&mut self, slot: usize, path: Path, process: u32, mode: OpenMode) -> Result<()> {
        let (name, new) = (file_name(path.name), self.new);
        let context = Context::for_process(process);
        let (made, file) =
            self.with_dir(path.dir, |dir| self.verbs().create(&context, dir, name.as_bytes(), new, mode))?;
        let node = made.into_attributes().node;
        self.slots[self.mount][slot] = Some(Slot { node, file, held: true, idle: false });
        Ok(())
    }

    fn open(&mut self, slot: usize, path: Path, process: u32, mut mode: OpenMode) -> Result<()> {
        self.close(self.mount, slot, false)?;
        let name = file_name(path.name);
        let context = Context::for_process(process);
        let fs = Arc::clone(&self.mounts[self.mount]);
        let found = self.with_dir(path.dir, |dir| fs.lookup(&context, dir, name.as_bytes()))?;
        let Some(found) = found else {
            return self.create(slot, path, process, OpenMode { truncate: false, ..mode });
        };
        // The contract does not state whether truncating an empty file changes it.
        mode.truncate &= found.size_bytes > 0;
        let file = self.verbs().open_as(&context, found.node(), mode)?;
        let node = found.into_attributes().node;
        self.slots[self.mount][slot] = Some(Slot { node, file, held: true, idle: false });
        Ok(())
    }
}
