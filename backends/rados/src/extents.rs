//! Extents: immutable data with numbers. Their pieces are objects with up to 4 MiB of data each,
//! which are written and read in parallel. docs/formats/rados-log.md draws the objects.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use quell_vfs::{Error, ErrorKind, Result};

use crate::extent_cache::ExtentCache;
use crate::extent_writer::ExtentWriter;
use crate::format::extent::{
    BLOCK_BYTES, EXTENT_BYTES_MAX, GROUP_BYTES, PIECE_BYTES, PIECES_MAX, check_blocks, stored_range,
};
use crate::format::names;
use crate::objects::{Objects, PendingRead, PendingWrite, Write, failure, is_refusal};

/// The largest read that uses the cache, in bytes. A larger one would remove many smaller ones from
/// the cache.
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
    /// Returns the extents of the store with this name, which is also the name of its log. At most
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
    /// `InvalidInput` if there are more bytes. The errors of [`Objects`], after which a part of the
    /// extent may exist. [`remove`](ObjectExtents::remove) removes it.
    pub fn write(&self, number: u64, data: &[u8]) -> Result<()> {
        if data.len() > EXTENT_BYTES_MAX {
            let reason = format!("an extent of {} bytes; the limit is {EXTENT_BYTES_MAX}", data.len());
            return Err(failure(ErrorKind::InvalidInput, "write", &self.name, reason));
        }
        let mut writer = self.writer(number, data.len(), PIECES_IN_FLIGHT);
        writer.append(data)?;
        writer.finish()
    }

    /// Begins to write an extent whose data is passed in parts.
    pub fn begin(&self, number: u64) -> ExtentWriter {
        self.writer(number, EXTENT_BYTES_MAX, PARTS_IN_FLIGHT)
    }

    fn writer(&self, number: u64, bytes_max: usize, in_flight_max: usize) -> ExtentWriter {
        ExtentWriter::new(Arc::clone(&self.objects), self.name.clone(), number, bytes_max, in_flight_max)
    }

    /// Reads a part of an extent at an offset, in bytes: as many bytes as `into` has, at most 64
    /// MiB.
    ///
    /// # Errors
    /// `Damaged` if the extent does not exist, is shorter, or has data that does not agree with its
    /// checksum. The errors of [`Objects`].
    pub fn read(&self, number: u64, offset: u64, into: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(into.len() as u64).filter(|end| *end <= EXTENT_BYTES_MAX as u64);
        if end.is_none() {
            return Err(damaged(&self.piece_name(number, 0), "the extent is shorter than the read"));
        }
        let is_kept = into.len() <= CACHED_READ_BYTES_MAX;
        let mut parts = self.parts(number, offset as usize, into, is_kept);
        // One read for each sequence of parts of a piece that are not in memory.
        let is_one_read = |one: &Part<'_>, next: &Part<'_>| {
            one.is_in_piece_with(next) && !one.is_cached() && !next.is_cached()
        };
        let started: Vec<_> = parts
            .chunk_by_mut(is_one_read)
            .map(|parts| {
                let range = (!parts[0].is_cached()).then(|| self.start_range(number, parts, is_kept));
                (parts, range)
            })
            .collect();
        for (parts, range) in started {
            let (start, bytes) = match range {
                Some(range) => (range.stored.start, self.finish_range(range)?),
                None => (0, Vec::new()),
            };
            for part in parts {
                match part.cached.take() {
                    Some(group) => self.copy_of_group(number, part, &group)?,
                    None if is_kept => {
                        let stored = part.stored_group();
                        let group = bytes.get(stored.start - start..).unwrap_or_default();
                        self.copy_and_keep(number, part, &group[..group.len().min(stored.len())])?;
                    }
                    None => self.copy_checked(number, part, &bytes)?,
                }
            }
        }
        Ok(())
    }

    /// Divides a read into parts of groups, some of which may be in memory, or of pieces.
    fn parts<'a>(&self, number: u64, offset: usize, into: &'a mut [u8], in_groups: bool) -> Vec<Part<'a>> {
        let unit_bytes = if in_groups { GROUP_BYTES } else { PIECE_BYTES };
        let (mut parts, mut start, mut rest) = (Vec::new(), offset, into);
        while !rest.is_empty() {
            let (into, after) = rest.split_at_mut(rest.len().min(unit_bytes - start % unit_bytes));
            let (piece, in_piece) = ((start / PIECE_BYTES) as u32, start % PIECE_BYTES);
            let id = (number, piece, (in_piece / GROUP_BYTES) as u32);
            let cached = if in_groups { self.cache.get(id) } else { None };
            start += into.len();
            rest = after;
            parts.push(Part { piece, in_piece, into, cached });
        }
        parts
    }

    /// Copies a part from its group, which is in memory.
    fn copy_of_group(&self, number: u64, part: &mut Part<'_>, group: &[u8]) -> Result<()> {
        let stored = stored_range(part.in_piece % GROUP_BYTES, part.into.len());
        let blocks = group.get(stored.start..stored.end.min(group.len())).unwrap_or_default();
        self.copy_checked(number, part, blocks)
    }

    /// Copies a part from its group, and keeps the group if all of its checksums agree. A damaged
    /// block fails only the reads of this block.
    fn copy_and_keep(&self, number: u64, part: &mut Part<'_>, group: &[u8]) -> Result<()> {
        self.copy_of_group(number, part, group)?;
        let first = part.in_piece / GROUP_BYTES;
        let is_checked = part.into.len() == GROUP_BYTES;
        if is_checked
            || check_blocks(group, number, part.piece, first * GROUP_BYTES / BLOCK_BYTES, 0, &mut []).is_ok()
        {
            self.cache.insert((number, part.piece, first as u32), Arc::new(group.to_vec()));
        }
        Ok(())
    }

    /// Verifies the blocks that have a part, and copies it.
    fn copy_checked(&self, number: u64, part: &mut Part<'_>, blocks: &[u8]) -> Result<()> {
        let Part { piece, in_piece, into, .. } = part;
        check_blocks(blocks, number, *piece, *in_piece / BLOCK_BYTES, *in_piece % BLOCK_BYTES, into)
            .map_err(|fault| damaged(&self.piece_name(number, *piece), fault))
    }

    /// Starts to read the blocks, or with `in_groups` the groups, that have adjacent parts of a
    /// piece.
    fn start_range(&self, number: u64, parts: &[Part<'_>], in_groups: bool) -> StartedRange {
        let (first, last) = (&parts[0], &parts[parts.len() - 1]);
        let stored = match in_groups {
            true => first.stored_group().start..last.stored_group().end,
            false => stored_range(first.in_piece, last.in_piece + last.into.len() - first.in_piece),
        };
        let object = self.piece_name(number, first.piece);
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

    /// Removes extents with these numbers and at most these lengths in bytes, or the pieces that
    /// unfinished writes have left. If there are none, the call succeeds.
    ///
    /// # Errors
    /// The errors of [`Objects`]. The call can be repeated.
    pub fn remove(&self, extents: &[(u64, u64)]) -> Result<()> {
        let pieces = |bytes: u64| bytes.div_ceil(PIECE_BYTES as u64).clamp(1, PIECES_MAX.into()) as u32;
        let all =
            extents.iter().flat_map(|(number, bytes)| (0..pieces(*bytes)).map(|piece| (*number, piece)));
        let mut in_flight: VecDeque<Box<dyn PendingWrite>> = VecDeque::new();
        for (number, piece) in all {
            self.cache.remove(number, piece);
            if in_flight.len() >= REMOVALS_IN_FLIGHT {
                in_flight.pop_front().map_or(Ok(()), removed)?;
            }
            let object = self.piece_name(number, piece);
            in_flight.push_back(self.objects.start_write(&object, &Write::new().remove()));
        }
        in_flight.into_iter().try_for_each(removed)
    }

    /// Passes the numbers of all extents that are at least `first` to `visit`, also those of
    /// unfinished writes, each once and in no particular order. The call takes as long as
    /// [`Objects::list`].
    ///
    /// # Errors
    /// The errors of [`Objects`]; some numbers may have been passed before.
    pub fn list(&self, first: u64, visit: &mut dyn FnMut(u64)) -> Result<()> {
        let mut found = BTreeSet::new();
        self.objects.list(&format!("{}.extent.", self.name), &mut |object| {
            match names::parse(&self.name, object) {
                // Pieces of one extent are not listed together.
                Some(names::ParsedName::Extent { number, .. }) if number >= first => {
                    found.insert(number);
                }
                _ => {}
            }
            true
        })?;
        found.into_iter().for_each(visit);
        Ok(())
    }
}

/// A part of a read.
struct Part<'a> {
    piece: u32,
    /// The offset of the part in the piece.
    in_piece: usize,
    into: &'a mut [u8],
    /// The group that has the part, if it is in memory.
    cached: Option<Arc<Vec<u8>>>,
}

impl Part<'_> {
    fn is_cached(&self) -> bool {
        self.cached.is_some()
    }

    fn is_in_piece_with(&self, other: &Part<'_>) -> bool {
        self.piece == other.piece
    }

    /// Returns the bytes of the object that have the group of the part.
    fn stored_group(&self) -> Range<usize> {
        stored_range(self.in_piece / GROUP_BYTES * GROUP_BYTES, GROUP_BYTES)
    }
}

struct StartedRange {
    object: String,
    stored: Range<usize>,
    pending: Box<dyn PendingRead>,
}

/// Waits for the removal of an object, which may not exist.
fn removed(pending: Box<dyn PendingWrite>) -> Result<()> {
    match pending.wait() {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
