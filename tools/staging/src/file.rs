//! Copies one regular file to a temporary name, in ranges that any thread may copy, reads the copy
//! back, compares the checksums, and then sets the attributes and the final name of the copy.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use blake3::hazmat::ChainingValue;
use quell_posix::{OpenFile, Stat, WritableFile};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Kind, Rename, Result};

use crate::context::Context;
use crate::digest::{Ranges, update_with_zeros};
use crate::directories::{Directory, attributes_of, permissions_of};
use crate::options::{CopiedFile, Owners};
use crate::xattrs::copy_xattrs;

/// The length of the buffer of a thread, in bytes.
pub const BUFFER_BYTES: usize = 1 << 20;

/// Aligned blocks of this length that contain only zeros are not written, in bytes.
const BLOCK_BYTES: u64 = 4096;

/// A file that is being copied.
pub struct FileCopy {
    dir: Arc<Directory>,
    name: Vec<u8>,
    source: Box<dyn OpenFile>,
    /// The attributes of the source when it was opened.
    found: Stat,
    target: Box<dyn WritableFile>,
    temporary: Vec<u8>,
    ranges: Ranges,
    /// The checksum value of each range that was read from the source.
    values: Mutex<Vec<ChainingValue>>,
    /// The end of the last block that was written.
    written_end: AtomicU64,
    failure: Mutex<Option<Error>>,
    has_failed: AtomicBool,
    /// The number of ranges of the current step that are not processed yet.
    left: AtomicUsize,
}

/// The steps of the copy of a file, each of which processes all ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Copy,
    Verify,
}

/// Opens a file and creates its copy. Returns `None` if the destination has the file already.
pub fn begin(
    context: &Context<'_>,
    dir: &Arc<Directory>,
    name: &[u8],
    buffer: &mut [u8],
) -> Result<Option<FileCopy>> {
    let (source, found) = dir.source.open_file_and_stat(name)?;
    if !dir.is_new && is_complete(context, dir, name, (&*source, &found), buffer)? {
        return Ok(None);
    }
    let temporary = context.temporary_name();
    let target = dir.target.create_file(&temporary, 0o600)?;
    let ranges = Ranges::of(found.size_bytes);
    Ok(Some(FileCopy {
        dir: Arc::clone(dir),
        name: name.to_vec(),
        source,
        found,
        target,
        temporary,
        ranges,
        values: Mutex::new(vec![ChainingValue::default(); ranges.count()]),
        written_end: AtomicU64::new(0),
        failure: Mutex::new(None),
        has_failed: AtomicBool::new(false),
        left: AtomicUsize::new(ranges.count()),
    }))
}

/// Returns whether the destination has the file already, and reports it in that case.
fn is_complete(
    context: &Context<'_>,
    dir: &Directory,
    name: &[u8],
    (source, found): (&dyn OpenFile, &Stat),
    buffer: &mut [u8],
) -> Result<bool> {
    let existing = match dir.target.stat(name) {
        Ok(existing) => existing,
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match existing.kind() {
        Some(Kind::File) => {}
        Some(Kind::Dir) => return Err(Error::new(ErrorKind::IsADirectory, "replace", name)),
        _ => return Ok(false),
    }
    // A copy gets the modification time of its source only after it was verified.
    if (existing.size_bytes, existing.modified) != (found.size_bytes, found.modified) {
        return Ok(false);
    }
    let mut checksum = None;
    if context.options.compares_content {
        let ranges = Ranges::of(found.size_bytes);
        let ours = checksum_of(context, source, ranges, buffer)?;
        let target = dir.target.open_file(name)?;
        if checksum_of(context, &*target, ranges, buffer)? != ours {
            return Ok(false);
        }
        check_unchanged(source, found)?;
        checksum = Some(ours);
    }
    let owners = context.options.owners;
    let has_owners = owners != Owners::OfSource || (existing.uid, existing.gid) == (found.uid, found.gid);
    if existing.mode & 0o7777 != permissions_of(found, owners) || !has_owners {
        dir.target.change(name, &attributes_of(found, owners))?;
    }
    if context.options.keeps_xattrs {
        copy_xattrs(&*dir.source, name, &*dir.target, name)?;
    }
    context.progress.add_unchanged();
    let path = dir.path_of(name);
    let (size_bytes, modified) = (found.size_bytes, found.modified);
    context.complete(&CopiedFile { path: &path, size_bytes, modified, blake3: checksum });
    Ok(true)
}

fn checksum_of(
    context: &Context<'_>,
    file: &dyn OpenFile,
    ranges: Ranges,
    buffer: &mut [u8],
) -> Result<[u8; 32]> {
    let values: Result<Vec<ChainingValue>> = (0..ranges.count())
        .map(|index| {
            read_range(context, file, ranges, index, buffer, &mut |data, _| {
                context.progress.add_bytes(data.len() as u64);
                Ok(())
            })
        })
        .collect();
    Ok(ranges.checksum(&values?))
}

/// Passes the data of a range, without its holes, to `each`, and returns the checksum value of the
/// range.
fn read_range(
    context: &Context<'_>,
    file: &dyn OpenFile,
    ranges: Ranges,
    index: usize,
    buffer: &mut [u8],
    each: &mut dyn FnMut(&[u8], u64) -> Result<()>,
) -> Result<ChainingValue> {
    let (mut at, end) = ranges.range(index);
    let mut hasher = ranges.hasher(index);
    while at < end {
        let (data, data_end) =
            file.next_data(at)?.map_or((end, end), |(from, to)| (from.min(end), to.min(end)));
        while at < data {
            context.check_stop()?;
            let count = (data - at).min(1 << 30);
            update_with_zeros(&mut hasher, count);
            at += count;
        }
        while at < data_end {
            context.check_stop()?;
            // The reads end at multiples of the length of the buffer, which are also borders of
            // chunks.
            let room = buffer.len() as u64 - at % buffer.len() as u64;
            let part = &mut buffer[..room.min(data_end - at) as usize];
            if file.read_at(part, at)? < part.len() {
                return Err(failed(ErrorKind::InvalidInput, "copy", "it was truncated while it was read"));
            }
            hasher.update(part);
            each(part, at)?;
            at += part.len() as u64;
        }
    }
    Ok(ranges.value(&hasher))
}

/// Writes the blocks that contain other bytes than zeros. Returns the end of the last written
/// block, or 0.
fn write_blocks(target: &dyn WritableFile, data: &[u8], offset: u64) -> Result<u64> {
    // The range of `data` that is to be written.
    let (mut from, mut to) = (0, 0);
    let mut written_end = 0;
    while to < data.len() {
        let room = BLOCK_BYTES - (offset + to as u64) % BLOCK_BYTES;
        let end = data.len().min(to + room as usize);
        let is_hole = data[to..end].iter().all(|byte| *byte == 0);
        if is_hole {
            if from < to {
                target.write_at(&data[from..to], offset + from as u64)?;
                written_end = offset + to as u64;
            }
            from = end;
        }
        to = end;
    }
    if from < to {
        target.write_at(&data[from..to], offset + from as u64)?;
        written_end = offset + to as u64;
    }
    Ok(written_end)
}

/// Returns an error if a file has changed since it was opened.
fn check_unchanged(source: &dyn OpenFile, found: &Stat) -> Result<()> {
    let now = source.stat()?;
    // A new hard link to the file, or its removal, changes only the status change time.
    match (now.size_bytes, now.modified, now.changed) == (found.size_bytes, found.modified, found.changed) {
        true => Ok(()),
        false => {
            Err(failed(ErrorKind::InvalidInput, "copy", "it changed while it was copied; copy it again"))
        }
    }
}

fn failed(kind: ErrorKind, operation: &'static str, reason: &'static str) -> Error {
    Error { source: Some(reason.into()), ..Error::new(kind, operation, "") }
}

impl FileCopy {
    pub fn range_count(&self) -> usize {
        self.ranges.count()
    }

    /// Processes one range. Returns whether it was the last one of the step.
    pub fn process(&self, context: &Context<'_>, step: Step, index: usize, buffer: &mut [u8]) -> bool {
        if !self.has_failed.load(Ordering::Relaxed) {
            let result = match step {
                Step::Copy => self.copy_range(context, index, buffer),
                Step::Verify => self.verify_range(context, index, buffer),
            };
            if let Err(error) = result {
                self.has_failed.store(true, Ordering::Relaxed);
                lock(&self.failure).get_or_insert(error);
            }
        }
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    fn copy_range(&self, context: &Context<'_>, index: usize, buffer: &mut [u8]) -> Result<()> {
        let value = read_range(context, &*self.source, self.ranges, index, buffer, &mut |data, at| {
            self.written_end.fetch_max(write_blocks(&*self.target, data, at)?, Ordering::Relaxed);
            context.progress.add_bytes(data.len() as u64);
            Ok(())
        })?;
        lock(&self.values)[index] = value;
        Ok(())
    }

    fn verify_range(&self, context: &Context<'_>, index: usize, buffer: &mut [u8]) -> Result<()> {
        let value = read_range(context, &*self.target, self.ranges, index, buffer, &mut |_, _| Ok(()))?;
        match lock(&self.values)[index] == value {
            true => Ok(()),
            false => Err(failed(
                ErrorKind::Damaged,
                "verify",
                "the copy differs from the data that was read from the source",
            )),
        }
    }

    /// Continues after the last range of a step was processed. Returns the next step, or `None` if
    /// the file is complete or has failed; the caller then calls `end` of its directory.
    pub fn next_step(&self, context: &Context<'_>, step: Step) -> Option<Step> {
        let failure = lock(&self.failure).take();
        let result = match (failure, step) {
            (Some(error), _) => Err(error),
            (None, Step::Copy) => self.set_size(),
            (None, Step::Verify) => Ok(()),
        };
        if result.is_ok() && step == Step::Copy && context.options.verifies {
            self.left.store(self.range_count(), Ordering::Release);
            return Some(Step::Verify);
        }
        match result.and_then(|()| self.complete(context)) {
            Ok(()) => {
                let path = self.dir.path_of(&self.name);
                let (size_bytes, modified) = (self.found.size_bytes, self.found.modified);
                let blake3 = Some(self.ranges.checksum(&lock(&self.values)));
                context.progress.add_file();
                context.complete(&CopiedFile { path: &path, size_bytes, modified, blake3 });
            }
            Err(error) => {
                context.fail(&self.dir.path_of(&self.name), &error);
                if let Err(error) = self.dir.target.remove(&self.temporary) {
                    context.fail(&self.dir.path_of(&self.temporary), &error);
                }
            }
        }
        None
    }

    /// Extends the copy to the size of the source if the source ends with a hole.
    fn set_size(&self) -> Result<()> {
        match self.written_end.load(Ordering::Relaxed) < self.found.size_bytes {
            true => self.target.set_size(self.found.size_bytes),
            false => Ok(()),
        }
    }

    /// Sets the attributes and the final name of the copy.
    fn complete(&self, context: &Context<'_>) -> Result<()> {
        context.check_stop()?;
        if context.options.keeps_xattrs {
            // Before the permissions, which may forbid it.
            copy_xattrs(&*self.dir.source, &self.name, &*self.dir.target, &self.temporary)?;
        }
        check_unchanged(&*self.source, &self.found)?;
        self.target.change(&attributes_of(&self.found, context.options.owners))?;
        let target = &*self.dir.target;
        target.rename(&self.temporary, target, &self.name, Rename::Replace)
    }

    /// The directory that counts this file.
    pub fn dir(&self) -> &Arc<Directory> {
        &self.dir
    }
}
