//! Applies the operations of a transaction to the tables. Conflicts with other transactions are
//! found in `recent.rs`.

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::Failure;
use quell_wire::blob::{NAME_BYTES_MAX, Operation, OperationResult, Refusal, Transform};

use crate::content::{Content, NewExtent, end_of, entry, is_stale_content, read};
use crate::extents::Extents;
use crate::keys::{self, BlobEntry, ContentId, PAGE_BYTES};
use crate::recent::{Change, ChangedPart};
use crate::tables::{Changes, Tables};
use crate::transform::{self, NotApplied};

/// The largest size of a blob whose pages a deletion or truncation removes at once, in bytes. The
/// pages of larger blobs are removed later.
const REMOVED_AT_ONCE_BYTES: u64 = 16 * PAGE_BYTES;

/// An operation. Its data, if it is large, was written as an extent.
#[derive(Debug)]
pub(crate) struct PreparedOperation {
    pub(crate) operation: Operation,
    /// The data of a write or append, which is empty in `operation`.
    pub(crate) extent: Option<NewExtent>,
}

impl PreparedOperation {
    pub(crate) fn inline(operation: Operation) -> PreparedOperation {
        PreparedOperation { operation, extent: None }
    }
}

/// The values that operations need besides the tables.
pub(crate) struct Environment<'a> {
    pub(crate) extents: &'a dyn Extents,
    /// Returns a number that no other content has.
    pub(crate) new_id: &'a dyn Fn() -> ContentId,
    /// The time of the commit, in nanoseconds since 1970.
    pub(crate) now_ns: u64,
    /// The largest size of all changes and results, in bytes.
    pub(crate) bytes_max: u64,
}

/// The results of applied operations.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    pub(crate) results: Vec<OperationResult>,
    pub(crate) changes: Vec<Change>,
}

/// The reason for which operations were not applied. The caller discards the changed tables.
#[derive(Debug)]
pub(crate) enum ApplyError {
    Refused(Refusal),
    /// Content that a truncation of this blob has left must be removed first.
    StaleContent(Vec<u8>),
}

/// Applies operations in their order.
pub(crate) fn apply(
    changes: &mut Changes<'_>,
    environment: &Environment<'_>,
    operations: &[PreparedOperation],
) -> std::result::Result<Applied, ApplyError> {
    let mut applied = Applied::default();
    let mut result_bytes = 0;
    for (position, operation) in operations.iter().enumerate() {
        let position = position as u32;
        match apply_one(changes, environment, operation, &mut applied.changes) {
            Ok(result) => {
                if let OperationResult::Before(numbers) = &result {
                    result_bytes += numbers.len() as u64;
                }
                // Few bytes of operations can need much memory.
                if changes.size_bytes() + result_bytes > environment.bytes_max {
                    let failure = Failure::new(&too_large());
                    return Err(ApplyError::Refused(Refusal::Failed { operation: Some(position), failure }));
                }
                applied.results.push(result);
            }
            Err(Stop::NotApplied(NotApplied::Different { cell, found })) => {
                return Err(ApplyError::Refused(Refusal::Different { operation: position, cell, found }));
            }
            Err(Stop::NotApplied(NotApplied::Overflow { cell })) => {
                return Err(ApplyError::Refused(Refusal::Overflow { operation: position, cell }));
            }
            Err(Stop::Failed(error)) if is_stale_content(&error) => {
                return Err(ApplyError::StaleContent(operation.operation.name().to_vec()));
            }
            Err(Stop::Failed(error)) => {
                let failure = Failure::new(&error);
                return Err(ApplyError::Refused(Refusal::Failed { operation: Some(position), failure }));
            }
        }
    }
    Ok(applied)
}

/// Returns the error of a transaction whose changes need too much space.
pub(crate) fn too_large() -> Error {
    let source = Some("its changes need more than 23 MiB; divide it".into());
    Error { source, ..Error::new(ErrorKind::InvalidInput, "commit", "transaction") }
}

enum Stop {
    Failed(Error),
    NotApplied(NotApplied),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

fn apply_one(
    changes: &mut Changes<'_>,
    environment: &Environment<'_>,
    prepared: &PreparedOperation,
    changed: &mut Vec<Change>,
) -> std::result::Result<OperationResult, Stop> {
    let name = prepared.operation.name();
    check_name(name)?;
    let mut note = |part| changed.push(Change { name: name.to_vec(), part });
    let found = entry(&*changes, name)?;
    let mut entry = match (&prepared.operation, found) {
        (Operation::Create { may_exist, .. }, Some(_)) => {
            return match may_exist {
                true => Ok(OperationResult::Done),
                false => Err(Error::new(ErrorKind::Exists, "create", name).into()),
            };
        }
        (Operation::Create { .. }, None) => {
            note(ChangedPart::Existence);
            let id = (environment.new_id)();
            BlobEntry { id, size_bytes: 0, modified_ns: 0, extent_refs: 0, stale_end_bytes: 0, file: None }
        }
        (_, None) => return Err(Error::new(ErrorKind::NotFound, "use", name).into()),
        (Operation::Delete { .. }, Some(entry)) => {
            note(ChangedPart::Existence);
            changes.delete(keys::name(name));
            discard_content(changes, environment.extents, &entry)?;
            return Ok(OperationResult::Done);
        }
        (Operation::Rename { to, .. }, Some(entry)) => {
            rename(changes, name, to, &entry)?;
            note(ChangedPart::Existence);
            changed.push(Change { name: to.clone(), part: ChangedPart::Existence });
            return Ok(OperationResult::Done);
        }
        (Operation::SetAttributes { file, modified_ns, .. }, Some(entry)) => {
            let modified_ns = modified_ns.unwrap_or(entry.modified_ns);
            let entry = BlobEntry { file: file.or(entry.file), modified_ns, ..entry };
            changes.put(keys::name(name), &keys::encode(&entry));
            return Ok(OperationResult::Done);
        }
        (_, Some(entry)) => entry,
    };
    let size_before = entry.size_bytes;
    let mut result = OperationResult::Done;
    match &prepared.operation {
        Operation::Create { .. }
        | Operation::Delete { .. }
        | Operation::Rename { .. }
        | Operation::SetAttributes { .. } => {}
        Operation::Write { offset, data, .. } => {
            let length = prepared.extent.map_or(data.len() as u64, |extent| extent.length_bytes);
            let content = Content { changes, extents: environment.extents, entry: &mut entry };
            write(content, *offset, data, prepared.extent)?;
            note(ChangedPart::Range((*offset).min(size_before), offset + length));
        }
        Operation::Append { data, .. } => {
            let length = prepared.extent.map_or(data.len() as u64, |extent| extent.length_bytes);
            let content = Content { changes, extents: environment.extents, entry: &mut entry };
            write(content, size_before, data, prepared.extent)?;
            note(ChangedPart::Range(size_before, size_before + length));
            result = OperationResult::Appended(size_before);
        }
        Operation::Resize { size_bytes, .. } => {
            resize(changes, environment, &mut entry, *size_bytes)?;
            note(ChangedPart::Range(size_before.min(*size_bytes), size_before.max(*size_bytes)));
        }
        Operation::Transform { offset, transform, .. } => {
            let content = Content { changes, extents: environment.extents, entry: &mut entry };
            let before = apply_transform(content, *offset, transform)?;
            note(ChangedPart::Range((*offset).min(size_before), offset + transform.length_bytes()));
            if transform.returns_before {
                result = OperationResult::Before(before);
            }
        }
    }
    if entry.size_bytes != size_before {
        note(ChangedPart::Size);
    }
    entry.modified_ns = environment.now_ns;
    changes.put(keys::name(name), &keys::encode(&entry));
    Ok(result)
}

fn write(mut content: Content<'_, '_>, offset: u64, data: &[u8], extent: Option<NewExtent>) -> Result<()> {
    match extent {
        Some(extent) => content.write_extent(offset, extent),
        None => content.write(offset, data),
    }
}

/// Sets the size. A large blob that is truncated to size 0 gets a new, empty content.
fn resize(
    changes: &mut Changes<'_>,
    environment: &Environment<'_>,
    entry: &mut BlobEntry,
    size_bytes: u64,
) -> Result<()> {
    if size_bytes == 0 && has_much_content(entry) {
        changes.put(keys::deleted_content(entry.id), &[]);
        *entry = BlobEntry {
            id: (environment.new_id)(),
            size_bytes: 0,
            extent_refs: 0,
            stale_end_bytes: 0,
            ..*entry
        };
        return Ok(());
    }
    Content { changes, extents: environment.extents, entry }.resize(size_bytes)
}

/// Moves the entry of a blob to another name.
fn rename(changes: &mut Changes<'_>, name: &[u8], to: &[u8], blob: &BlobEntry) -> Result<()> {
    check_name(to)?;
    if entry(&*changes, to)?.is_some() {
        return Err(Error::new(ErrorKind::Exists, "rename to", to));
    }
    changes.delete(keys::name(name));
    changes.put(keys::name(to), &keys::encode(blob));
    Ok(())
}

/// Removes the content of a blob that is deleted, or marks it to be removed later.
fn discard_content(changes: &mut Changes<'_>, extents: &dyn Extents, entry: &BlobEntry) -> Result<()> {
    if has_much_content(entry) {
        changes.put(keys::deleted_content(entry.id), &[]);
        return Ok(());
    }
    Content { changes, extents, entry: &mut entry.clone() }.resize(0)
}

fn has_much_content(entry: &BlobEntry) -> bool {
    entry.size_bytes.max(entry.stale_end_bytes) > REMOVED_AT_ONCE_BYTES || entry.extent_refs > 0
}

/// Applies a transform, and returns the numbers before it.
fn apply_transform(
    mut content: Content<'_, '_>,
    offset: u64,
    transform: &Transform,
) -> std::result::Result<Vec<u8>, Stop> {
    transform::check(transform)?;
    end_of(offset, transform.length_bytes())?;
    let mut cells = vec![0; transform.length_bytes() as usize];
    let stored = content.entry.size_bytes.saturating_sub(offset).min(transform.length_bytes());
    read(&*content.changes, content.extents, content.entry, offset, &mut cells[..stored as usize])?;
    let before = if transform.returns_before { cells.clone() } else { Vec::new() };
    transform::apply(transform, &mut cells).map_err(Stop::NotApplied)?;
    content.write(offset, &cells)?;
    Ok(before)
}

/// Returns an error if a blob cannot have a name.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match name.len() {
        0 => Err(Error::new(ErrorKind::InvalidInput, "use the empty name", name)),
        1..=NAME_BYTES_MAX => Ok(()),
        _ => Err(Error::new(ErrorKind::NameTooLong, "use", &name[..64])),
    }
}

/// Removes content that a truncation of a blob has left, and returns whether all of it is removed.
pub(crate) fn remove_stale(
    changes: &mut Changes<'_>,
    extents: &dyn Extents,
    name: &[u8],
    limit: usize,
) -> Result<bool> {
    let Some(mut entry) = entry(&*changes, name)? else { return Ok(true) };
    if !entry.has_stale_content() {
        return Ok(true);
    }
    let is_removed = Content { changes, extents, entry: &mut entry }.remove_stale(limit)?;
    changes.put(keys::name(name), &keys::encode(&entry));
    Ok(is_removed)
}

/// Returns whether a truncation has left content of a blob.
pub(crate) fn has_stale(tables: &dyn Tables, name: &[u8]) -> Result<bool> {
    Ok(entry(tables, name)?.is_some_and(|entry| entry.has_stale_content()))
}

/// Returns whether a value is the entry of a blob with content that a truncation has left.
pub(crate) fn is_stale_entry(value: &[u8]) -> bool {
    keys::decode::<BlobEntry>(value).is_ok_and(|entry| entry.has_stale_content())
}
