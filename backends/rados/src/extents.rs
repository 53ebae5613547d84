//! Extents: immutable data with numbers. Their pieces are objects with up to 4 MiB of data each,
//! which are written and read in parallel. docs/formats/rados-log.md draws the objects.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use quell_vfs::{Error, ErrorKind, Result};

use crate::extent_cache::{ExtentCache, GroupId};
use crate::extent_writer::ExtentWriter;
use crate::format::extent::{
    BLOCK_BYTES, EXTENT_BYTES_MAX, GROUP_BYTES, PIECE_BYTES, PIECES_MAX, check_blocks, stored_range,
};
use crate::format::names;
use crate::objects::{Objects, PendingRead, PendingWrite, Write, failure, is_refusal};

/// The largest read that is taken from memory and kept there, in bytes. A larger one would remove
/// many smaller ones from memory.
const CACHED_READ_BYTES_MAX: usize = 1 << 20;
/// The largest number of pieces in flight of an extent that is written at once.
const PIECES_IN_FLIGHT: usize = 8;
/// The largest number of pieces in flight of an extent whose data is passed in parts.
const PARTS_IN_FLIGHT: usize = 2;
/// The largest number of extents whose removal is in flight.
const REMOVALS_IN_FLIGHT: usize = 32;

/// The extents of a store. Each number is written at most once, and never again after the extent
/// was removed.
///
/// A process can still write extents after another one has taken the store over. Nothing refers to
/// their numbers.
pub struct ObjectExtents {
    objects: Arc<dyn Objects>,
    name: String,
    cache: ExtentCache,
}

impl fmt::Debug for ObjectExtents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectExtents").field(&self.name).finish()
    }
}

fn damaged(object: &str, reason: impl fmt::Display) -> Error {
    failure(ErrorKind::Damaged, "read", object, format!("{object}: {reason}"))
}

impl ObjectExtents {
    /// Returns the extents of the store with this name, which is that of its log as well. At most
    /// `cache_bytes` bytes of data that was read are kept in memory, but at least 1 MiB.
    ///
    /// # Errors
    /// `InvalidInput` if the name has other characters than letters, digits, `_` and `-`, or more
    /// than 64.
    pub fn new(objects: Arc<dyn Objects>, name: &str, cache_bytes: usize) -> Result<ObjectExtents> {
        match names::is_log_name(name) {
            true => {
                Ok(ObjectExtents { objects, name: name.to_owned(), cache: ExtentCache::new(cache_bytes) })
            }
            false => {
                let reason = "the name of a store has 1 to 64 letters, digits, `_` and `-`";
                Err(failure(ErrorKind::InvalidInput, "open", name, reason))
            }
        }
    }

    fn piece_name(&self, number: u64, piece: u32) -> String {
        names::extent(&self.name, number, piece)
    }

    /// Writes an extent of at most 64 MiB. When the call returns, all replicas of the pool have the
    /// data on their disks.
    ///
    /// # Errors
    /// `InvalidInput` if there are more bytes. Those of [`Objects`]: a part of the extent may
    /// exist, which [`remove`](ObjectExtents::remove) removes.
    pub fn write(&self, number: u64, data: &[u8]) -> Result<()> {
        if data.len() > EXTENT_BYTES_MAX {
            let reason = format!("an extent of {} bytes; the limit is {EXTENT_BYTES_MAX}", data.len());
            return Err(failure(ErrorKind::InvalidInput, "write", &self.name, reason));
        }
        let mut writer = ExtentWriter { in_flight_max: PIECES_IN_FLIGHT, ..self.begin(number) };
        let (whole, rest) = data.split_at(data.len() / PIECE_BYTES * PIECE_BYTES);
        writer.append(whole)?;
        writer.finish_with(rest)
    }

    /// Begins to write an extent whose data is passed in parts.
    pub fn begin(&self, number: u64) -> ExtentWriter {
        ExtentWriter {
            objects: Arc::clone(&self.objects),
            name: self.name.clone(),
            number,
            next: 0,
            data: Vec::new(),
            first: None,
            in_flight: VecDeque::new(),
            in_flight_max: PARTS_IN_FLIGHT,
        }
    }

    /// Reads a part of an extent at an offset, in bytes: as many bytes as `into` has, at most 64
    /// MiB.
    ///
    /// # Errors
    /// `Damaged` if the extent does not exist, is shorter, or has data that does not agree with its
    /// checksum. Those of [`Objects`].
    pub fn read(&self, number: u64, offset: u64, into: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(into.len() as u64).filter(|end| *end <= EXTENT_BYTES_MAX as u64);
        if end.is_none() {
            return Err(damaged(&self.piece_name(number, 0), "the extent is shorter than the read"));
        }
        let unit_bytes = if into.len() <= CACHED_READ_BYTES_MAX { GROUP_BYTES } else { PIECE_BYTES };
        let (mut reads, mut start, mut rest) = (Vec::new(), offset as usize, into);
        while !rest.is_empty() {
            let (part, after) = rest.split_at_mut(rest.len().min(unit_bytes - start % unit_bytes));
            let (piece, in_piece) = ((start / PIECE_BYTES) as u32, start % PIECE_BYTES);
            start += part.len();
            rest = after;
            let source = match unit_bytes {
                GROUP_BYTES => self.start_group((number, piece, (in_piece / GROUP_BYTES) as u32)),
                _ => Source::Object(self.start_range(number, piece, stored_range(in_piece, part.len()))),
            };
            reads.push((piece, in_piece, part, source));
        }
        for (piece, in_piece, part, source) in reads {
            let group = match source {
                Source::Object(range) => {
                    self.copy_checked(number, piece, in_piece, &self.finish_range(range)?, part)?;
                    continue;
                }
                Source::Group(id, range) => self.finish_group(id, range)?,
                Source::Cached(group) => group,
            };
            let stored = stored_range(in_piece % GROUP_BYTES, part.len());
            let blocks = group.get(stored.start..stored.end.min(group.len())).unwrap_or_default();
            self.copy_checked(number, piece, in_piece, blocks, part)?;
        }
        Ok(())
    }

    /// Verifies `blocks`, and copies their data from the offset `in_piece` of a piece on.
    fn copy_checked(
        &self,
        number: u64,
        piece: u32,
        in_piece: usize,
        blocks: &[u8],
        into: &mut [u8],
    ) -> Result<()> {
        check_blocks(blocks, number, piece, in_piece / BLOCK_BYTES, in_piece % BLOCK_BYTES, into)
            .map_err(|fault| damaged(&self.piece_name(number, piece), fault))
    }

    fn start_range(&self, number: u64, piece: u32, stored: Range<usize>) -> StartedRange {
        let object = self.piece_name(number, piece);
        let pending = self.objects.start_read(&object, stored.start as u64, stored.len());
        StartedRange { object, stored, pending }
    }

    /// Waits for a read. A read with an unknown result is repeated once.
    fn finish_range(&self, StartedRange { object, stored, pending }: StartedRange) -> Result<Vec<u8>> {
        let bytes = pending.wait().or_else(|error| match is_refusal(&error) {
            true => Err(error),
            false => self.objects.read(&object, stored.start as u64, stored.len()),
        });
        bytes.map_err(|error| match error.kind {
            ErrorKind::NotFound => damaged(&object, "the extent is missing"),
            _ => error,
        })
    }

    /// Returns a group of blocks from memory, or starts to read it.
    fn start_group(&self, id @ (number, piece, group): GroupId) -> Source {
        match self.cache.get(id) {
            Some(group) => Source::Cached(group),
            None => {
                let stored = stored_range(group as usize * GROUP_BYTES, GROUP_BYTES);
                Source::Group(id, self.start_range(number, piece, stored))
            }
        }
    }

    /// Waits for a group, and keeps it if all of its checksums agree.
    fn finish_group(
        &self,
        id @ (number, piece, group): GroupId,
        range: StartedRange,
    ) -> Result<Arc<Vec<u8>>> {
        let bytes = Arc::new(self.finish_range(range)?);
        let first = group as usize * (GROUP_BYTES / BLOCK_BYTES);
        // A damaged block fails only the reads of this block, so the group is not kept.
        if check_blocks(&bytes, number, piece, first, 0, &mut []).is_ok() {
            self.cache.insert(id, Arc::clone(&bytes));
        }
        Ok(bytes)
    }

    /// Removes extents, or the pieces that unfinished writes have left. If there are none, the call
    /// succeeds.
    ///
    /// # Errors
    /// Those of [`Objects`]. The call can be repeated.
    pub fn remove(&self, numbers: &[u64]) -> Result<()> {
        for numbers in numbers.chunks(REMOVALS_IN_FLIGHT) {
            let begun: Vec<_> =
                numbers.iter().map(|number| [0, 1].map(|piece| self.start_removal(*number, piece))).collect();
            for (number, [first, second]) in numbers.iter().zip(begun) {
                self.cache.remove(*number, 0);
                // An extent with a first piece is complete, so it has no others without a second
                // one.
                let (is_complete, has_second) = (existed(first.wait())?, existed(second.wait())?);
                if !is_complete || has_second {
                    self.remove_rest(*number)?;
                }
            }
        }
        Ok(())
    }

    fn start_removal(&self, number: u64, piece: u32) -> Box<dyn PendingWrite> {
        self.objects.start_write(&self.piece_name(number, piece), &Write::new().remove())
    }

    /// Removes the pieces after the second one, and those after the first one from memory.
    fn remove_rest(&self, number: u64) -> Result<()> {
        (1..PIECES_MAX).for_each(|piece| self.cache.remove(number, piece));
        let removals: Vec<_> = (2..PIECES_MAX).map(|piece| self.start_removal(number, piece)).collect();
        let results: Vec<_> = removals.into_iter().map(|removal| existed(removal.wait())).collect();
        results.into_iter().try_for_each(|result| result.map(drop))
    }

    /// Passes the numbers of all extents that are at least `first` to `visit`, also those of
    /// unfinished writes, each once and in no particular order. The time is that of
    /// [`Objects::list`].
    ///
    /// # Errors
    /// Those of [`Objects`]; some numbers may have been passed before.
    pub fn list(&self, first: u64, visit: &mut dyn FnMut(u64)) -> Result<()> {
        let mut large = BTreeSet::new();
        self.objects.list(&format!("{}.extent.", self.name), &mut |object| {
            match names::parse(&self.name, object) {
                Some(names::ParsedName::Extent { number, piece: 0 }) if number >= first => visit(number),
                Some(names::ParsedName::Extent { number, .. }) if number >= first => {
                    large.insert(number);
                }
                _ => {}
            }
            true
        })?;
        for number in large {
            match self.objects.size(&self.piece_name(number, 0)) {
                Err(error) if error.kind == ErrorKind::NotFound => visit(number),
                size => drop(size?),
            }
        }
        Ok(())
    }
}

/// The source of the data of a part of a read.
enum Source {
    /// In memory.
    Cached(Arc<Vec<u8>>),
    /// A group that is being read, and is kept in memory.
    Group(GroupId, StartedRange),
    /// The blocks of the part are being read, and are not kept in memory.
    Object(StartedRange),
}

struct StartedRange {
    object: String,
    stored: Range<usize>,
    pending: Box<dyn PendingRead>,
}

/// Returns whether the removed object existed.
fn existed(removed: Result<()>) -> Result<bool> {
    match removed {
        Ok(()) => Ok(true),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
