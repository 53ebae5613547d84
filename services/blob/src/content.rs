//! The bytes of a blob: pages of 512 bytes in the tables, and references to extents.
//!
//! - A page holds all bytes of its part of the blob. It replaces the bytes of extents there. Zeros
//!   at its end are not stored.
//! - Bytes that neither a page nor an extent has are zeros.
//! - Pages and references have no bytes after the end of the blob, except those that a truncation
//!   has left: see [`BlobEntry::stale_end_bytes`].

use quell_kv::Value;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::SIZE_BYTES_MAX;

use crate::extents::Extents;
use crate::keys::{self, BlobEntry, ContentId, ExtentEntry, ExtentId, ExtentRef, PAGE_BYTES};
use crate::tables::{Changes, Tables, end_of_prefix, visit_range};

/// A read of more pages scans the tables; a read of fewer pages gets each of them.
const PAGES_BY_GET_MAX: u64 = 8;
/// The largest number of pages and references that a truncation removes at once. The others are
/// removed later.
const REMOVED_AT_ONCE_MAX: usize = 4096;

/// An extent that was written for a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewExtent {
    pub(crate) id: ExtentId,
    pub(crate) length_bytes: u64,
}

/// A part of a blob in an extent.
struct Piece {
    extent: ExtentId,
    /// The position of the first byte in the extent.
    skip_bytes: u64,
    /// The position of the first byte in the blob.
    start: u64,
    /// The position after the last byte in the blob.
    end: u64,
}

/// Reads bytes of a blob. The range must end at or before the end of the blob.
pub(crate) fn read(
    tables: &dyn Tables,
    extents: &dyn Extents,
    entry: &BlobEntry,
    offset: u64,
    into: &mut [u8],
) -> Result<()> {
    if into.is_empty() {
        return Ok(());
    }
    let end = offset + into.len() as u64;
    let mut done = 0;
    if entry.extent_refs > 0 {
        for piece in pieces(tables, entry.id, offset, end)? {
            let (start, end) = ((piece.start - offset) as usize, (piece.end - offset) as usize);
            // References overlap only if the tables are damaged.
            if let Some(hole) = into.get_mut(done..start) {
                hole.fill(0);
            }
            extents.read(piece.extent, piece.skip_bytes, &mut into[start..end])?;
            done = done.max(end);
        }
    }
    into[done..].fill(0);
    let first = offset / PAGE_BYTES;
    let last = (end - 1) / PAGE_BYTES;
    if last - first < PAGES_BY_GET_MAX {
        for number in first..=last {
            if let Some(page) = tables.get(&keys::page(entry.id, number))? {
                copy_page(number, &page, offset, into);
            }
        }
        return Ok(());
    }
    let (start, end) = (keys::page(entry.id, first), keys::page(entry.id, last + 1));
    visit_range(tables, &start, &end, &mut |key, page| {
        copy_page(keys::number_of_page(key)?, page, offset, into);
        Ok(true)
    })
}

/// Returns the first position from `offset` on that is in a page or an extent, if it is before the
/// end of the blob. The bytes before it are zeros.
pub(crate) fn next_data(tables: &dyn Tables, entry: &BlobEntry, offset: u64) -> Result<Option<u64>> {
    if offset >= entry.size_bytes {
        return Ok(None);
    }
    let mut next = None;
    if entry.extent_refs > 0 {
        visit_references(tables, entry.id, offset, entry.size_bytes, &mut |reference, _| {
            next = Some(reference.start.max(offset));
            false
        })?;
    }
    let mut page = None;
    let first = keys::page(entry.id, offset / PAGE_BYTES);
    let end = keys::page(entry.id, entry.size_bytes.div_ceil(PAGE_BYTES));
    visit_range(tables, &first, &end, &mut |key, _| {
        page = Some((keys::number_of_page(key)? * PAGE_BYTES).max(offset));
        Ok(false)
    })?;
    Ok(next.into_iter().chain(page).min().filter(|next| *next < entry.size_bytes))
}

/// Copies the common part of a page and of the bytes from `offset` on.
fn copy_page(number: u64, page: &[u8], offset: u64, into: &mut [u8]) {
    let page_start = number * PAGE_BYTES;
    let start = page_start.max(offset);
    let end = (page_start + PAGE_BYTES).min(offset + into.len() as u64);
    let into = &mut into[(start - offset) as usize..(end - offset) as usize];
    let skip = (start - page_start) as usize;
    let stored = page.get(skip..).unwrap_or(&[]);
    let length = stored.len().min(into.len());
    into[..length].copy_from_slice(&stored[..length]);
    into[length..].fill(0);
}

/// Returns the pieces of extents in a range.
fn pieces(tables: &dyn Tables, id: ContentId, start: u64, end: u64) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    visit_references(tables, id, start, end, &mut |reference, reference_end| {
        let from = reference.start.max(start);
        pieces.push(Piece {
            extent: reference.extent,
            skip_bytes: reference.skip_bytes + (from - reference.start),
            start: from,
            end: reference_end.min(end),
        });
        true
    })?;
    Ok(pieces)
}

/// Passes the references that have bytes in a range, with their ends, to `visit`, until it returns
/// false.
fn visit_references(
    tables: &dyn Tables,
    id: ContentId,
    start: u64,
    end: u64,
    visit: &mut dyn FnMut(ExtentRef, u64) -> bool,
) -> Result<()> {
    let first = keys::reference(id, start + 1);
    visit_range(tables, &first, &end_of_prefix(&keys::references(id)), &mut |key, value| {
        let (reference, reference_end) = (keys::decode::<ExtentRef>(value)?, keys::end_of_reference(key)?);
        if reference.start >= reference_end {
            return Err(Error::new(ErrorKind::Damaged, "read", "reference to an extent"));
        }
        Ok(reference.start < end && visit(reference, reference_end))
    })
}

/// Returns the end of a range, or `InvalidInput` if it is after the largest size of a blob.
pub(crate) fn end_of(offset: u64, length_bytes: u64) -> Result<u64> {
    match offset.checked_add(length_bytes) {
        Some(end) if end <= SIZE_BYTES_MAX => Ok(end),
        _ => {
            let source = Some(format!("bytes after {SIZE_BYTES_MAX}, the largest size of a blob").into());
            Err(Error { source, ..Error::new(ErrorKind::InvalidInput, "write", "blob") })
        }
    }
}

/// The blob of an operation, whose content is changed.
pub(crate) struct Content<'a, 'b> {
    pub(crate) changes: &'a mut Changes<'b>,
    pub(crate) extents: &'a dyn Extents,
    pub(crate) entry: &'a mut BlobEntry,
}

impl Content<'_, '_> {
    /// Writes bytes into pages.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let end = end_of(offset, data.len() as u64)?;
        self.grow(end)?;
        let mut done = 0;
        while done < data.len() {
            let start = offset + done as u64;
            let skip = (start % PAGE_BYTES) as usize;
            let length = (PAGE_BYTES as usize - skip).min(data.len() - done);
            self.write_page(start / PAGE_BYTES, skip, &data[done..done + length])?;
            done += length;
        }
        Ok(())
    }

    /// Writes bytes that are in one page.
    fn write_page(&mut self, number: u64, skip: usize, data: &[u8]) -> Result<()> {
        let key = keys::page(self.entry.id, number);
        if data.len() == PAGE_BYTES as usize {
            self.changes.put(key, without_zeros(data));
            return Ok(());
        }
        let mut page = [0; PAGE_BYTES as usize];
        self.read_page(&key, number, &mut page)?;
        page[skip..skip + data.len()].copy_from_slice(data);
        self.changes.put(key, without_zeros(&page));
        Ok(())
    }

    /// Reads a whole page; bytes after the end of the blob are zeros.
    fn read_page(&self, key: &[u8], number: u64, page: &mut [u8; PAGE_BYTES as usize]) -> Result<()> {
        if let Some(stored) = self.changes.get(key)? {
            let length = stored.len().min(page.len());
            page[..length].copy_from_slice(&stored[..length]);
        } else if self.entry.extent_refs > 0 {
            let start = number * PAGE_BYTES;
            let length = self.entry.size_bytes.saturating_sub(start).min(PAGE_BYTES) as usize;
            read(&*self.changes, self.extents, self.entry, start, &mut page[..length])?;
        }
        Ok(())
    }

    /// Makes a range refer to a new extent.
    pub(crate) fn write_extent(&mut self, offset: u64, new: NewExtent) -> Result<()> {
        let end = end_of(offset, new.length_bytes)?;
        self.grow(end)?;
        self.remove_references(offset, end, usize::MAX)?;
        let reference = ExtentRef { start: offset, extent: new.id, skip_bytes: 0 };
        self.changes.put(keys::reference(self.entry.id, end), &keys::encode(&reference));
        let extent = ExtentEntry { length_bytes: new.length_bytes, refs: 1 };
        self.changes.put(keys::extent(new.id), &keys::encode(&extent));
        self.entry.extent_refs += 1;
        // Pages replace extents, so the pages in the range are removed, and the common part of a
        // page and the range is copied.
        let first_whole = offset.div_ceil(PAGE_BYTES);
        let end_whole = end / PAGE_BYTES;
        self.remove_pages(first_whole, end_whole, usize::MAX)?;
        if !offset.is_multiple_of(PAGE_BYTES) {
            let page_end = ((offset / PAGE_BYTES + 1) * PAGE_BYTES).min(end);
            self.copy_into_page(new.id, offset, offset, page_end)?;
        }
        if end % PAGE_BYTES != 0 && end_whole >= first_whole {
            self.copy_into_page(new.id, offset, end_whole * PAGE_BYTES, end)?;
        }
        Ok(())
    }

    /// Copies bytes of an extent, which begins at `extent_start` in the blob, into the page that
    /// contains them, if this page exists.
    fn copy_into_page(&mut self, extent: ExtentId, extent_start: u64, start: u64, end: u64) -> Result<()> {
        let number = start / PAGE_BYTES;
        if self.changes.get(&keys::page(self.entry.id, number))?.is_none() {
            return Ok(());
        }
        let mut data = vec![0; (end - start) as usize];
        self.extents.read(extent, start - extent_start, &mut data)?;
        self.write_page(number, (start % PAGE_BYTES) as usize, &data)
    }

    /// Sets the size.
    pub(crate) fn resize(&mut self, size_bytes: u64) -> Result<()> {
        if size_bytes >= self.entry.size_bytes {
            end_of(size_bytes, 0)?;
            return self.grow(size_bytes);
        }
        let old_size = self.entry.size_bytes;
        let is_removed = self.remove_after(size_bytes, REMOVED_AT_ONCE_MAX)?;
        self.entry.size_bytes = size_bytes;
        if !is_removed {
            self.entry.stale_end_bytes = self.entry.stale_end_bytes.max(old_size);
        }
        Ok(())
    }

    /// Extends the blob to a size, if it is smaller.
    fn grow(&mut self, size_bytes: u64) -> Result<()> {
        if size_bytes <= self.entry.size_bytes {
            return Ok(());
        }
        if self.entry.has_stale_content() {
            return Err(stale_content());
        }
        self.entry.size_bytes = size_bytes;
        Ok(())
    }

    /// Removes up to `limit` pages and references after the end of the blob, which a truncation has
    /// left, and returns whether all are removed.
    pub(crate) fn remove_stale(&mut self, limit: usize) -> Result<bool> {
        let is_removed = self.remove_after(self.entry.size_bytes, limit)?;
        if is_removed {
            self.entry.stale_end_bytes = 0;
        }
        Ok(is_removed)
    }

    /// Removes the content after `end`: at most `limit` pages and at most `limit` references, in
    /// ascending order of their positions. Returns whether all content is removed. A page or
    /// reference that contains `end` is shortened in any case.
    fn remove_after(&mut self, end: u64, limit: usize) -> Result<bool> {
        let id = self.entry.id;
        if !end.is_multiple_of(PAGE_BYTES) {
            let key = keys::page(id, end / PAGE_BYTES);
            if let Some(page) = self.changes.get(&key)? {
                let kept = page.len().min((end % PAGE_BYTES) as usize);
                self.changes.put(key, without_zeros(&page[..kept]));
            }
        }
        let mut is_removed = true;
        if self.entry.extent_refs > 0 {
            is_removed = self.remove_references(end, SIZE_BYTES_MAX, limit)?;
        }
        let pages_end = SIZE_BYTES_MAX / PAGE_BYTES + 1;
        Ok(self.remove_pages(end.div_ceil(PAGE_BYTES), pages_end, limit)? && is_removed)
    }

    /// Removes at most `limit` pages from `first` up to `end`, exclusive, and returns whether all
    /// are removed.
    fn remove_pages(&mut self, first: u64, end: u64, limit: usize) -> Result<bool> {
        if first >= end {
            return Ok(true);
        }
        let id = self.entry.id;
        let mut found = Vec::new();
        self.changes.scan(&keys::page(id, first), &keys::page(id, end), &mut |key, _| {
            found.push(key.to_vec());
            found.len() <= limit
        })?;
        let is_removed = found.len() <= limit;
        found.into_iter().take(limit).for_each(|key| self.changes.delete(key));
        Ok(is_removed)
    }

    /// Removes a range from the references of the blob, at most `limit` of them, and returns
    /// whether all are removed.
    fn remove_references(&mut self, start: u64, end: u64, limit: usize) -> Result<bool> {
        let id = self.entry.id;
        let mut found = Vec::new();
        visit_references(&*self.changes, id, start, end, &mut |reference, reference_end| {
            found.push((reference, reference_end));
            found.len() <= limit
        })?;
        let is_removed = found.len() <= limit;
        for (reference, reference_end) in found.into_iter().take(limit) {
            self.changes.delete(keys::reference(id, reference_end));
            let mut remaining = 0;
            if reference.start < start {
                self.changes.put(keys::reference(id, start), &keys::encode(&reference));
                remaining += 1;
            }
            if reference_end > end {
                let skip_bytes = reference.skip_bytes + (end - reference.start);
                let rest = ExtentRef { start: end, skip_bytes, ..reference };
                self.changes.put(keys::reference(id, reference_end), &keys::encode(&rest));
                remaining += 1;
            }
            self.entry.extent_refs = self.entry.extent_refs - 1 + u64::from(remaining);
            count_references(self.changes, reference.extent, remaining)?;
        }
        Ok(is_removed)
    }
}

/// Removes up to `limit` pages and references of a deleted blob, and returns whether all are
/// removed.
pub(crate) fn remove_deleted(changes: &mut Changes<'_>, id: ContentId, limit: usize) -> Result<bool> {
    let mut found = Vec::new();
    for prefix in [keys::pages(id), keys::references(id)] {
        changes.scan(&prefix, &end_of_prefix(&prefix), &mut |key, value| {
            found.push((key.to_vec(), value.clone()));
            found.len() <= limit
        })?;
    }
    let is_removed = found.len() <= limit;
    for (key, value) in found.into_iter().take(limit) {
        if key.starts_with(&keys::references(id)) {
            let reference: ExtentRef = keys::decode(&value)?;
            count_references(changes, reference.extent, 0)?;
        }
        changes.delete(key);
    }
    if is_removed {
        changes.delete(keys::deleted_content(id));
    }
    Ok(is_removed)
}

/// Changes the number of references to an extent after one reference was replaced by `remaining`
/// ones. An extent without references is marked as unused.
fn count_references(changes: &mut Changes<'_>, extent: ExtentId, remaining: u32) -> Result<()> {
    let key = keys::extent(extent);
    let damaged = || Error::new(ErrorKind::Damaged, "count references", "extent");
    let mut entry: ExtentEntry = keys::decode(&changes.get(&key)?.ok_or_else(damaged)?)?;
    entry.refs =
        entry.refs.checked_sub(1).and_then(|refs| refs.checked_add(remaining)).ok_or_else(damaged)?;
    if entry.refs > 0 {
        changes.put(key, &keys::encode(&entry));
    } else {
        changes.delete(key);
        changes.put(keys::unused_extent(extent), &keys::encode(&entry.length_bytes));
    }
    Ok(())
}

/// Returns the entry of a blob.
pub(crate) fn entry(tables: &dyn Tables, name: &[u8]) -> Result<Option<BlobEntry>> {
    tables.get(&keys::name(name))?.map(|value: Value| keys::decode(&value)).transpose()
}

fn without_zeros(data: &[u8]) -> &[u8] {
    let length = data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &data[..length]
}

/// Returns the error of an operation that would extend a blob over content that a truncation has
/// left. The caller removes this content first, and applies the transaction again.
fn stale_content() -> Error {
    Error::new(ErrorKind::Busy, "extend", "blob")
}

/// Returns whether [`stale_content`] has returned the error.
pub(crate) fn is_stale_content(error: &Error) -> bool {
    error.kind == ErrorKind::Busy
}
