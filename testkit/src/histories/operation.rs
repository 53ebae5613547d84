//! The operations of histories, as values. An operation refers to paths and slots, so that it is
//! valid after any other operations.

use std::fmt;

use quell_vfs::{Rename, SetXattr};

use super::shape::Shape;
use crate::Random;
use crate::conformance::writing::WritableImplementation;

pub(super) const SLOTS: usize = 6;
pub(super) const DIRECTORIES: [&str; 3] = ["", "sub", "sub2"];
/// The offset beyond which some files have data.
pub(super) const FAR: u64 = 1 << 40;

/// The path of a file: a directory and a name, as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) dir: usize,
    pub(super) name: usize,
}

pub(super) fn file_name(number: usize) -> String {
    format!("f{number}")
}

pub(super) fn name_number(name: &[u8]) -> Option<usize> {
    std::str::from_utf8(name).ok()?.strip_prefix('f')?.parse().ok()
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", DIRECTORIES[self.dir], file_name(self.name))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Operation {
    /// Opens a file for reading and writing, and creates it if it does not exist. A file open in
    /// the slot is closed before.
    Open {
        slot: usize,
        path: Path,
        process: u32,
        truncate: bool,
    },
    /// Creates a file that must not exist.
    Create {
        slot: usize,
        path: Path,
        process: u32,
    },
    /// Publishes the file, then closes it.
    Close {
        slot: usize,
    },
    Write {
        slot: usize,
        offset: u64,
        count: usize,
    },
    WritePieces {
        slot: usize,
        pieces: Vec<(u64, usize)>,
    },
    WriteZeros {
        slot: usize,
        offset: u64,
        count: usize,
    },
    Append {
        slot: usize,
        count: usize,
    },
    Read {
        slot: usize,
        offset: u64,
        count: usize,
    },
    ReadPieces {
        slot: usize,
        pieces: Vec<(u64, usize)>,
    },
    /// Reads all data of an open file.
    ReadOpen {
        slot: usize,
    },
    /// Opens the file of a name, reads all its data and closes it.
    ReadAll {
        path: Path,
    },
    StatOpen {
        slot: usize,
    },
    Stat {
        path: Path,
    },
    Publish {
        slot: usize,
    },
    Sync {
        slot: usize,
    },
    /// Returns the node's reference; only the open file keeps the node.
    Forget {
        slot: usize,
    },
    SizeOpen {
        slot: usize,
        size: u64,
    },
    Size {
        path: Path,
        size: u64,
    },
    TimeOpen {
        slot: usize,
        seconds: i64,
    },
    Mode {
        path: Path,
        permissions: u32,
    },
    /// Sets an extended attribute of a file to a value of this length, or removes it.
    Xattr {
        path: Path,
        name: usize,
        value: Option<(usize, SetXattr)>,
    },
    /// Reads all extended attributes of a file.
    Xattrs {
        path: Path,
    },
    Rename {
        from: Path,
        to: Path,
        how: Rename,
    },
    /// Gives a file another name.
    Link {
        from: Path,
        to: Path,
    },
    Remove {
        path: Path,
    },
    MakeDir {
        dir: usize,
    },
    RemoveDir {
        dir: usize,
    },
    RenameDir {
        from: usize,
        to: usize,
        how: Rename,
    },
    List {
        dir: usize,
    },
    /// Publishes all files and closes those in the bit mask; the others become idle. Then the next
    /// mount takes its turn.
    Turn {
        closing: u64,
    },
    CloseAll,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Open { slot, path, process, truncate } => {
                let truncate = if *truncate { ", truncated" } else { "" };
                write!(f, "slot {slot}: open {path} by process {process}{truncate}")
            }
            Operation::Create { slot, path, process } => {
                write!(f, "slot {slot}: create {path} by process {process}")
            }
            Operation::Close { slot } => write!(f, "slot {slot}: publish, close"),
            Operation::Write { slot, offset, count } => {
                write!(f, "slot {slot}: write {offset} .. {}", offset + *count as u64)
            }
            Operation::WritePieces { slot, pieces } => write!(f, "slot {slot}: write {}", Pieces(pieces)),
            Operation::WriteZeros { slot, offset, count } => {
                write!(f, "slot {slot}: write zeros {offset} .. {}", offset + *count as u64)
            }
            Operation::Append { slot, count } => write!(f, "slot {slot}: append {count} bytes"),
            Operation::Read { slot, offset, count } => {
                write!(f, "slot {slot}: read {offset} .. {}", offset + *count as u64)
            }
            Operation::ReadPieces { slot, pieces } => write!(f, "slot {slot}: read {}", Pieces(pieces)),
            Operation::ReadOpen { slot } => write!(f, "slot {slot}: read everything"),
            Operation::ReadAll { path } => write!(f, "open {path}, read everything, close"),
            Operation::StatOpen { slot } => write!(f, "slot {slot}: stat"),
            Operation::Stat { path } => write!(f, "stat {path}"),
            Operation::Publish { slot } => write!(f, "slot {slot}: publish"),
            Operation::Sync { slot } => write!(f, "slot {slot}: sync"),
            Operation::Forget { slot } => write!(f, "slot {slot}: forget the node"),
            Operation::SizeOpen { slot, size } => write!(f, "slot {slot}: set the size to {size}"),
            Operation::Size { path, size } => write!(f, "set the size of {path} to {size}"),
            Operation::TimeOpen { slot, seconds } => write!(f, "slot {slot}: set the time to {seconds}"),
            Operation::Mode { path, permissions } => write!(f, "chmod {permissions:o} {path}"),
            Operation::Xattr { path, name, value: Some((count, mode)) } => {
                write!(f, "set attribute {name} of {path} to {count} bytes ({mode:?})")
            }
            Operation::Xattr { path, name, value: None } => write!(f, "remove attribute {name} of {path}"),
            Operation::Xattrs { path } => write!(f, "read the attributes of {path}"),
            Operation::Rename { from, to, how } => write!(f, "rename {from} to {to} ({how:?})"),
            Operation::Link { from, to } => write!(f, "link {from} as {to}"),
            Operation::Remove { path } => write!(f, "remove {path}"),
            Operation::MakeDir { dir } => write!(f, "make directory {}", DIRECTORIES[*dir]),
            Operation::RemoveDir { dir } => write!(f, "remove directory {}", DIRECTORIES[*dir]),
            Operation::RenameDir { from, to, how } => {
                write!(f, "rename directory {} to {} ({how:?})", DIRECTORIES[*from], DIRECTORIES[*to])
            }
            Operation::List { dir } => write!(f, "list /{}", DIRECTORIES[*dir]),
            Operation::Turn { closing } => {
                write!(
                    f,
                    "-- publish all; close slots {:?}, leave the others; the next mount --",
                    closed(*closing)
                )
            }
            Operation::CloseAll => write!(f, "publish and close everything"),
        }
    }
}

fn closed(closing: u64) -> Vec<usize> {
    (0..SLOTS).filter(|slot| closing >> slot & 1 == 1).collect()
}

struct Pieces<'a>(&'a [(u64, usize)]);

impl fmt::Display for Pieces<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pieces = self.0.iter().map(|(offset, count)| format!("{offset} .. {}", offset + *count as u64));
        f.write_str(&pieces.collect::<Vec<_>>().join(", "))
    }
}

impl Operation {
    pub(super) fn slot(&self) -> Option<usize> {
        match self {
            Operation::Open { slot, .. }
            | Operation::Create { slot, .. }
            | Operation::Close { slot }
            | Operation::Write { slot, .. }
            | Operation::WritePieces { slot, .. }
            | Operation::WriteZeros { slot, .. }
            | Operation::Append { slot, .. }
            | Operation::Read { slot, .. }
            | Operation::ReadPieces { slot, .. }
            | Operation::ReadOpen { slot }
            | Operation::StatOpen { slot }
            | Operation::Publish { slot }
            | Operation::Sync { slot }
            | Operation::Forget { slot }
            | Operation::SizeOpen { slot, .. }
            | Operation::TimeOpen { slot, .. } => Some(*slot),
            _ => None,
        }
    }

    /// Returns the path, if the operation has one.
    pub(super) fn path(&self) -> Option<Path> {
        match self {
            Operation::Open { path, .. }
            | Operation::Create { path, .. }
            | Operation::ReadAll { path }
            | Operation::Stat { path }
            | Operation::Size { path, .. }
            | Operation::Mode { path, .. }
            | Operation::Xattr { path, .. }
            | Operation::Xattrs { path }
            | Operation::Remove { path } => Some(*path),
            _ => None,
        }
    }
}

/// Returns the bytes that an operation writes; they identify the operation.
pub(super) fn bytes_of(number: usize, count: usize) -> Vec<u8> {
    let stamp = (number as u8).wrapping_mul(29).wrapping_add(7);
    // No zeros, because holes read as zeros.
    (0..count).map(|i| (stamp ^ (i % 251) as u8).max(1)).collect()
}

struct Generator {
    shape: Shape,
    random: Random,
    /// The next offset and the stride of each slot's sequence of writes.
    rows: [(u64, u64); SLOTS],
    /// Whether files have extended attributes.
    xattrs: bool,
    /// Whether files can have several names.
    hard_links: bool,
    /// Whether ranges can be replaced by zeros.
    writes_zeros: bool,
}

/// Generates the history of a seed, with the operations that the implementation supports.
pub(super) fn generate(
    seed: u64,
    shape: Shape,
    implementation: &WritableImplementation<'_>,
) -> Vec<Operation> {
    let WritableImplementation { rename_kinds, xattrs, hard_links, writes_zeros, .. } = *implementation;
    let (random, rows) = (Random::new(seed), [(0, 0); SLOTS]);
    let mut generator = Generator { shape, random, rows, xattrs, hard_links, writes_zeros };
    let mut operations = vec![Operation::MakeDir { dir: 1 }];
    generator.open_some(&mut operations);
    for _ in 0..shape.operations {
        let mut operation = generator.operation();
        let turned = matches!(operation, Operation::Turn { .. });
        if let Operation::Rename { how, .. } | Operation::RenameDir { how, .. } = &mut operation
            && !rename_kinds
        {
            *how = Rename::Replace;
        }
        operations.push(operation);
        if turned {
            generator.open_some(&mut operations);
        }
    }
    operations
}

impl Generator {
    fn path(&mut self) -> Path {
        let dir = if self.random.one_in(3) { 1 + self.random.below(2) } else { 0 };
        Path { dir, name: self.random.below(self.shape.names) }
    }

    /// Opens files in half of the slots, because most operations need an open file.
    fn open_some(&mut self, operations: &mut Vec<Operation>) {
        for slot in 0..SLOTS / 2 {
            let process = self.random.below(self.shape.processes as usize) as u32;
            operations.push(Operation::Open { slot, path: self.path(), process, truncate: false });
        }
    }

    fn offset(&mut self) -> u64 {
        let end = self.shape.file_bytes;
        let offset = match self.random.below(6) {
            0 => self.random.below(end / 100 + 1) * 100,
            1 => self.random.below(end / 4096 + 1) * 4096,
            2 => 0,
            _ => self.random.below(end),
        };
        let far = self.shape.far && self.random.one_in(25);
        offset as u64 + if far { FAR } else { 0 }
    }

    fn count(&mut self) -> usize {
        let most = self.shape.write_bytes_max;
        match self.random.below(5) {
            0 => 1 + self.random.below(10),
            1 => (1 + self.random.below(3)) * 100,
            2 => 4096.min(most),
            _ => 1 + self.random.below(most),
        }
    }

    fn size(&mut self) -> u64 {
        match self.random.below(4) {
            0 => 0,
            _ => self.offset(),
        }
    }

    /// Returns a write that continues the slot's sequence, as in checkpoints where each process has
    /// its own blocks.
    fn in_a_row(&mut self, slot: usize) -> Operation {
        let (next, stride) = self.rows[slot];
        let count = 100 + slot * 50;
        if stride == 0 || next > self.shape.file_bytes as u64 || self.random.one_in(20) {
            self.rows[slot] = (slot as u64 * 400, *self.random.pick(&[count as u64, 2000, 1000]));
        } else {
            self.rows[slot].0 += stride;
        }
        Operation::Write { slot, offset: self.rows[slot].0, count }
    }

    fn pieces(&mut self) -> Vec<(u64, usize)> {
        let (begin, stride, count) =
            (self.offset(), self.random.below(500) as u64, 1 + self.random.below(200));
        if self.random.one_in(3) {
            return (0..1 + self.random.below(5)).map(|_| (self.offset(), self.count())).collect();
        }
        (0..1 + self.random.below(20) as u64).map(|i| (begin + i * stride, count)).collect()
    }

    fn how(&mut self) -> Rename {
        *self.random.pick(&[Rename::Replace, Rename::Replace, Rename::Keep, Rename::Exchange])
    }

    fn operation(&mut self) -> Operation {
        let slot = self.random.below(SLOTS);
        let path = self.path();
        let process = self.random.below(self.shape.processes as usize) as u32;
        if self.shape.mounts > 1 && self.random.one_in(15) {
            return Operation::Turn { closing: self.random.below(1 << SLOTS) as u64 };
        }
        if self.hard_links && self.random.one_in(25) {
            return Operation::Link { from: path, to: self.path() };
        }
        if self.writes_zeros && self.random.one_in(20) {
            return Operation::WriteZeros { slot, offset: self.offset(), count: self.count() * 3 };
        }
        match self.random.below(if self.xattrs { 118 } else { 110 }) {
            0..18 => Operation::Write { slot, offset: self.offset(), count: self.count() },
            18..30 => self.in_a_row(slot),
            30..35 => Operation::WritePieces { slot, pieces: self.pieces() },
            35..41 => Operation::Append { slot, count: self.count() },
            41..52 => Operation::Read { slot, offset: self.offset(), count: self.count() * 2 },
            52..55 => Operation::ReadPieces { slot, pieces: self.pieces() },
            55 => Operation::ReadOpen { slot },
            56..59 => Operation::ReadAll { path },
            59..69 => Operation::Open { slot, path, process, truncate: self.random.one_in(5) },
            69..71 => Operation::Create { slot, path, process },
            71..77 => Operation::Close { slot },
            77..81 => Operation::Publish { slot },
            81..84 => Operation::Sync { slot },
            84..87 => Operation::StatOpen { slot },
            87..90 => Operation::Stat { path },
            90..92 => Operation::SizeOpen { slot, size: self.size() },
            92..95 => Operation::Size { path, size: self.size() },
            95 => Operation::TimeOpen { slot, seconds: 1_000_000_000 + self.random.below(1000) as i64 },
            96 => Operation::Mode { path, permissions: *self.random.pick(&[0o600, 0o644, 0o755]) },
            97..101 => Operation::Rename { from: path, to: self.path(), how: self.how() },
            101..104 => Operation::Remove { path },
            104 => Operation::MakeDir { dir: 1 + self.random.below(2) },
            105 => Operation::RemoveDir { dir: 1 + self.random.below(2) },
            106 => {
                let from = 1 + self.random.below(2);
                Operation::RenameDir { from, to: 3 - from, how: self.how() }
            }
            107 if self.shape.forgets => Operation::Forget { slot },
            110..114 => {
                let mode = *self.random.pick(&[SetXattr::Any, SetXattr::Create, SetXattr::Replace]);
                let count = *self.random.pick(&[0, 1, 100, 3000]);
                Operation::Xattr { path, name: self.random.below(3), value: Some((count, mode)) }
            }
            114 => Operation::Xattr { path, name: self.random.below(3), value: None },
            115.. => Operation::Xattrs { path },
            _ => Operation::List { dir: self.random.below(3) },
        }
    }
}
