//! The check of a store that no process has open, and the repairs that lose no data.

use std::collections::{HashMap, HashSet};

use quell_kv::KeyValue;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::Committed;

use crate::epoch::epoch_of;
use crate::extents::Extents;
use crate::joint;
use crate::keys::{self, BlobEntry, ContentId, ExtentEntry, ExtentId, ExtentRef, PAGE_BYTES};
use crate::tables::{Changed, Changes, Latest, batch_of, visit_prefix};

/// The number of bytes of an extent that are read at once.
const READ_BYTES: u64 = 1 << 20;
/// The number of repairs that one commit contains.
const REPAIRS_TOGETHER: usize = 4096;

/// The kind of a problem of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProblemKind {
    /// A key or value of the tables does not have its format.
    DamagedEntry,
    /// Two names have the same content.
    SharedContent,
    /// There are pages or references of a content that no blob has. Repair: the content is marked,
    /// and an open store removes it.
    OrphanContent,
    /// A page or reference after the end of its blob. Repair: it is removed.
    AfterEnd,
    /// Two references of a blob overlap.
    Overlap,
    /// The number of references of a blob differs from the number in its entry. Repair: the number
    /// is set.
    WrongCount,
    /// The number of references to an extent differs from the number in its entry. Repair: the
    /// number is set; an extent without references is marked, and an open store removes it.
    WrongReferences,
    /// A blob refers to an extent without an entry, or to bytes after its end.
    UnknownExtent,
    /// An extent has an entry, but does not exist.
    MissingExtent,
    /// Data of an extent does not agree with its checksum.
    DamagedExtent,
    /// An extent exists, but has no entry in the tables. Repair: it is removed, unless a blob
    /// refers to it.
    OrphanExtent,
    /// A blob is not in the group of servers to which its name belongs, so that no client finds it.
    WrongGroup,
    /// A transaction over several groups of servers is committed in some of them only.
    HalfCommitted,
}

impl ProblemKind {
    /// All kinds.
    pub const ALL: [ProblemKind; 13] = [
        ProblemKind::DamagedEntry,
        ProblemKind::SharedContent,
        ProblemKind::OrphanContent,
        ProblemKind::AfterEnd,
        ProblemKind::Overlap,
        ProblemKind::WrongCount,
        ProblemKind::WrongReferences,
        ProblemKind::UnknownExtent,
        ProblemKind::MissingExtent,
        ProblemKind::DamagedExtent,
        ProblemKind::OrphanExtent,
        ProblemKind::WrongGroup,
        ProblemKind::HalfCommitted,
    ];

    /// Returns the identifier, which `quell blob fsck` prints.
    pub fn identifier(self) -> &'static str {
        match self {
            ProblemKind::DamagedEntry => "damaged-entry",
            ProblemKind::SharedContent => "shared-content",
            ProblemKind::OrphanContent => "orphan-content",
            ProblemKind::AfterEnd => "after-end",
            ProblemKind::Overlap => "overlap",
            ProblemKind::WrongCount => "wrong-count",
            ProblemKind::WrongReferences => "wrong-references",
            ProblemKind::UnknownExtent => "unknown-extent",
            ProblemKind::MissingExtent => "missing-extent",
            ProblemKind::DamagedExtent => "damaged-extent",
            ProblemKind::OrphanExtent => "orphan-extent",
            ProblemKind::WrongGroup => "wrong-group",
            ProblemKind::HalfCommitted => "half-committed",
        }
    }
}

/// A problem of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The kind.
    pub kind: ProblemKind,
    /// The blob, if the problem concerns one.
    pub name: Option<Vec<u8>>,
    /// The part of the store that has the problem.
    pub detail: String,
    /// Whether a repair loses no data.
    pub is_repairable: bool,
}

/// The numbers and sizes of the blobs and extents that a check has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckedStore {
    /// The number of blobs.
    pub blobs: u64,
    /// The sum of their sizes, in bytes.
    pub size_bytes: u64,
    /// The number of extents.
    pub extents: u64,
    /// The sum of the lengths of the extents, in bytes.
    pub extent_bytes: u64,
}

/// Checks a store that no process has open: the tables, the extents and their checksums. Passes
/// each problem to `report`. If `repair` is set, repairs the problems that are repairable. The
/// memory grows with the number of blobs and extents.
///
/// # Errors
/// The errors of the key-value store and of the extents, other than damage.
pub fn check(
    tables: &dyn KeyValue,
    extents: &dyn Extents,
    repair: bool,
    report: &mut dyn FnMut(Problem),
) -> Result<CheckedStore> {
    let latest = Latest(tables);
    let has_damaged_entries = has_damaged_entries(&latest)?;
    let epoch = tables.get(keys::EPOCH)?.map_or(0, |epoch| keys::decode(&epoch).unwrap_or(0));
    let mut check = Check {
        epoch,
        has_damaged_entries,
        extents,
        report,
        repairs: Changes::new(&latest),
        blobs: HashMap::new(),
        deleted: HashSet::new(),
        orphans: HashSet::new(),
        references: HashMap::new(),
        checked: CheckedStore::default(),
    };
    visit_prefix(&latest, &keys::name(b""), &mut |key, value| check.name(key, value))?;
    visit_prefix(&latest, &keys::deleted_contents(), &mut |key, _| {
        match keys::deleted_content_of(key) {
            Ok(id) => {
                check.deleted.insert(id);
            }
            Err(_) => check.damaged_entry(key),
        }
        Ok(())
    })?;
    visit_prefix(&latest, &keys::all_pages(), &mut |key, value| check.page(key, value))?;
    visit_prefix(&latest, &keys::all_references(), &mut |key, value| check.reference(key, value))?;
    check.counts();
    let mut unused = HashSet::new();
    visit_prefix(&latest, &keys::unused_extents(), &mut |key, value| {
        match (keys::extent_of(key), keys::decode::<u64>(value)) {
            (Ok(id), Ok(_)) => {
                unused.insert(id);
            }
            _ => check.damaged_entry(key),
        }
        Ok(())
    })?;
    let mut known = HashMap::new();
    visit_prefix(&latest, &keys::extents(), &mut |key, value| {
        match (keys::extent_of(key), keys::decode::<ExtentEntry>(value)) {
            (Ok(id), Ok(entry)) => {
                known.insert(id, entry);
            }
            _ => check.damaged_entry(key),
        }
        Ok(())
    })?;
    visit_prefix(&latest, &keys::results(), &mut |key, value| {
        if keys::transaction_of(key).is_err() || keys::decode::<Committed>(value).is_err() {
            check.damaged_entry(key);
        }
        Ok(())
    })?;
    for prefix in [keys::joint_outcomes(), keys::all_joint_prepared(), keys::all_joint_unconfirmed()] {
        visit_prefix(&latest, &prefix, &mut |key, value| {
            if !joint::is_entry(key, value) {
                check.damaged_entry(key);
            }
            Ok(())
        })?;
    }
    let orphans = check.extents(&known, &unused)?;
    let Check { repairs, checked, .. } = check;
    if repair && !has_damaged_entries {
        for id in orphans {
            extents.remove(id)?;
        }
        commit(tables, repairs.into_changed())?;
    }
    Ok(checked)
}

/// Commits repairs. Each repair is valid without the others.
fn commit(tables: &dyn KeyValue, repairs: Changed) -> Result<()> {
    let mut step = Changed::new();
    for (key, value) in repairs {
        step.insert(key, value);
        if step.len() == REPAIRS_TOGETHER {
            tables.commit(batch_of(&std::mem::take(&mut step)))?;
        }
    }
    tables.commit(batch_of(&step))
}

struct Check<'a, 'c> {
    /// The epoch of the last opening of the store.
    epoch: u64,
    extents: &'a dyn Extents,
    report: &'a mut dyn FnMut(Problem),
    repairs: Changes<'c>,
    blobs: HashMap<ContentId, Blob>,
    deleted: HashSet<ContentId>,
    /// Contents that no blob has and that were reported.
    orphans: HashSet<ContentId>,
    /// For each extent, the number of references, the largest end of a reference, and a content
    /// that refers to the extent.
    references: HashMap<ExtentId, (u32, u64, ContentId)>,
    checked: CheckedStore,
    /// Whether there are damaged entries. Then no problem is repaired.
    has_damaged_entries: bool,
}

/// Returns whether an entry of a name, a reference or an extent does not have its format.
fn has_damaged_entries(latest: &Latest<'_>) -> Result<bool> {
    let mut is_damaged = false;
    visit_prefix(latest, &keys::name(b""), &mut |_, value| {
        is_damaged |= keys::decode::<BlobEntry>(value).is_err();
        Ok(())
    })?;
    visit_prefix(latest, &keys::all_references(), &mut |key, value| {
        let (end, reference) = (keys::end_of_reference(key), keys::decode::<ExtentRef>(value));
        is_damaged |= !matches!((end, reference), (Ok(end), Ok(reference)) if reference.start < end);
        Ok(())
    })?;
    visit_prefix(latest, &keys::extents(), &mut |key, value| {
        is_damaged |= keys::extent_of(key).is_err() || keys::decode::<ExtentEntry>(value).is_err();
        Ok(())
    })?;
    Ok(is_damaged)
}

struct Blob {
    name: Vec<u8>,
    entry: BlobEntry,
    references: u64,
    last_end: u64,
}

impl Check<'_, '_> {
    fn problem(&mut self, kind: ProblemKind, id: Option<ContentId>, detail: String, is_repairable: bool) {
        let name = id.and_then(|id| self.blobs.get(&id)).map(|blob| blob.name.clone());
        // Content that seems to belong to no blob may belong to a damaged entry.
        let is_repairable = is_repairable && !self.has_damaged_entries;
        (self.report)(Problem { kind, name, detail, is_repairable });
    }

    fn damaged_entry(&mut self, key: &[u8]) {
        self.problem(ProblemKind::DamagedEntry, None, format!("entry {}", key.escape_ascii()), false);
    }

    fn name(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (Ok(name), Ok(entry)) = (keys::name_of(key), keys::decode::<BlobEntry>(value)) else {
            self.damaged_entry(key);
            return Ok(());
        };
        self.checked.blobs += 1;
        self.checked.size_bytes = self.checked.size_bytes.saturating_add(entry.size_bytes);
        let blob = Blob { name: name.to_vec(), entry, references: 0, last_end: 0 };
        if let Some(other) = self.blobs.insert(entry.id, blob) {
            let detail = format!("the same content as {}", other.name.escape_ascii());
            self.problem(ProblemKind::SharedContent, Some(entry.id), detail, false);
        }
        Ok(())
    }

    /// Returns the end of the part of a content that pages and references may have; `None` if no
    /// blob has the content.
    fn end_of_content(&mut self, id: ContentId) -> Option<u64> {
        if let Some(blob) = self.blobs.get(&id) {
            return Some(blob.entry.size_bytes.max(blob.entry.stale_end_bytes));
        }
        if !self.deleted.contains(&id) && self.orphans.insert(id) {
            self.problem(ProblemKind::OrphanContent, None, format!("content {:x}", id.0), true);
            self.repairs.put(keys::deleted_content(id), &[]);
        }
        None
    }

    fn page(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (Ok(id), Ok(number)) = (keys::content_of(key), keys::number_of_page(key)) else {
            self.damaged_entry(key);
            return Ok(());
        };
        if value.len() as u64 > PAGE_BYTES {
            self.damaged_entry(key);
        }
        if let Some(end) = self.end_of_content(id)
            && number >= end.div_ceil(PAGE_BYTES)
        {
            self.problem(ProblemKind::AfterEnd, Some(id), format!("page {number}"), true);
            self.repairs.delete(key.to_vec());
        }
        Ok(())
    }

    fn reference(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let parsed = (keys::content_of(key), keys::end_of_reference(key), keys::decode::<ExtentRef>(value));
        let (Ok(id), Ok(end), Ok(reference)) = parsed else {
            self.damaged_entry(key);
            return Ok(());
        };
        let Some(length) = end.checked_sub(reference.start).filter(|length| *length > 0) else {
            self.damaged_entry(key);
            return Ok(());
        };
        let end_of_content = self.end_of_content(id);
        if end_of_content.is_some_and(|content_end| reference.start >= content_end) {
            let detail = format!("reference to bytes {} to {end}", reference.start);
            self.problem(ProblemKind::AfterEnd, Some(id), detail, true);
            self.repairs.delete(key.to_vec());
            return Ok(());
        }
        let counted = self.references.entry(reference.extent).or_insert((0, 0, id));
        counted.0 += 1;
        counted.1 = counted.1.max(reference.skip_bytes.saturating_add(length));
        let mut overlaps = false;
        if let Some(blob) = self.blobs.get_mut(&id) {
            blob.references += 1;
            overlaps = reference.start < std::mem::replace(&mut blob.last_end, end);
        }
        if overlaps {
            let detail = format!("two references to bytes from {} on", reference.start);
            self.problem(ProblemKind::Overlap, Some(id), detail, false);
        }
        Ok(())
    }

    fn counts(&mut self) {
        let wrong =
            |(id, blob): (&ContentId, &Blob)| (blob.references != blob.entry.extent_refs).then_some(*id);
        let wrong: Vec<ContentId> = self.blobs.iter().filter_map(wrong).collect();
        for id in wrong {
            let Some(blob) = self.blobs.get(&id) else { continue };
            let detail = format!("{} references, not {}", blob.references, blob.entry.extent_refs);
            let entry = BlobEntry { extent_refs: blob.references, ..blob.entry };
            self.repairs.put(keys::name(&blob.name), &keys::encode(&entry));
            self.problem(ProblemKind::WrongCount, Some(id), detail, true);
        }
    }

    /// Compares the extents with their entries, and returns the extents without an entry that can
    /// be removed.
    fn extents(
        &mut self,
        known: &HashMap<ExtentId, ExtentEntry>,
        unused: &HashSet<ExtentId>,
    ) -> Result<Vec<ExtentId>> {
        let mut existing = HashSet::new();
        self.extents.list(ExtentId(0), &mut |id| {
            existing.insert(id);
        })?;
        for (id, (_, end, content)) in self.references.clone() {
            if known.get(&id).is_none_or(|entry| entry.length_bytes < end) {
                let detail = format!("extent {:x}, up to byte {end}", id.0);
                self.problem(ProblemKind::UnknownExtent, Some(content), detail, false);
            }
        }
        for (id, entry) in known {
            let (count, _, content) =
                self.references.get(id).map_or((0, 0, None), |(count, end, id)| (*count, *end, Some(*id)));
            if count != entry.refs {
                let detail = format!("extent {:x}: {count} references, not {}", id.0, entry.refs);
                self.problem(ProblemKind::WrongReferences, content, detail, true);
                self.set_references(*id, ExtentEntry { refs: count, ..*entry });
            }
            self.checked.extents += 1;
            self.checked.extent_bytes += entry.length_bytes;
            if !existing.contains(id) {
                self.problem(ProblemKind::MissingExtent, content, format!("extent {:x}", id.0), false);
            } else if let Some(offset) = self.first_damaged(*id, entry.length_bytes)? {
                let detail = format!("extent {:x}, in the MiB from byte {offset} on", id.0);
                self.problem(ProblemKind::DamagedExtent, content, detail, false);
            }
        }
        // A server in RADOS that has replaced this process writes extents of a later epoch.
        let is_orphan =
            |id: &ExtentId| epoch_of(id.0) <= self.epoch && !known.contains_key(id) && !unused.contains(id);
        let mut orphans: Vec<ExtentId> = existing.into_iter().filter(is_orphan).collect();
        orphans.sort();
        for id in &orphans {
            self.problem(ProblemKind::OrphanExtent, None, format!("extent {:x}", id.0), true);
        }
        // An extent to which a blob refers is not removed, although its entry is missing.
        orphans.retain(|id| !self.references.contains_key(id));
        Ok(orphans)
    }

    fn set_references(&mut self, id: ExtentId, entry: ExtentEntry) {
        match entry.refs {
            0 => {
                self.repairs.delete(keys::extent(id));
                self.repairs.put(keys::unused_extent(id), &keys::encode(&entry.length_bytes));
            }
            _ => self.repairs.put(keys::extent(id), &keys::encode(&entry)),
        }
    }

    /// Returns the position of the first part of an extent, of [`READ_BYTES`], that does not agree
    /// with its checksums.
    fn first_damaged(&self, id: ExtentId, length_bytes: u64) -> Result<Option<u64>> {
        let mut buffer = vec![0; READ_BYTES.min(length_bytes) as usize];
        for offset in (0..length_bytes).step_by(READ_BYTES as usize) {
            let part = &mut buffer[..READ_BYTES.min(length_bytes - offset) as usize];
            match self.extents.read(id, offset, part) {
                Err(Error { kind: ErrorKind::Damaged, .. }) => return Ok(Some(offset)),
                read => read?,
            }
        }
        Ok(None)
    }
}
