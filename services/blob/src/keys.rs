//! The keys and values of the tables. docs/formats/blob.md describes them. Integers in keys are big
//! endian, so that the order of keys is the order of the integers.

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{FileAttributes, JointId, TransactionId, Version};
use serde::{Deserialize, Serialize};

/// The size of a page, in bytes.
pub(crate) const PAGE_BYTES: u64 = 512;

/// The number of a content. A blob that is deleted and created again has another content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct ContentId(pub(crate) u64);

/// The number of an extent. It is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExtentId(pub u64);

/// The value of the key of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlobEntry {
    pub(crate) id: ContentId,
    pub(crate) size_bytes: u64,
    /// The time of the last commit that changed the content, in nanoseconds since 1970, or the time
    /// that was set afterwards.
    pub(crate) modified_ns: u64,
    /// The number of references to extents.
    pub(crate) extent_refs: u64,
    /// The end of the content that a truncation has left after the end of the blob, or a smaller
    /// number if there is no such content. The content is removed before the blob is extended.
    pub(crate) stale_end_bytes: u64,
    /// The attributes of the blob as a file.
    pub(crate) file: Option<FileAttributes>,
}

impl BlobEntry {
    /// Returns whether a truncation has left content after the end of the blob.
    pub(crate) fn has_stale_content(&self) -> bool {
        self.stale_end_bytes > self.size_bytes
    }
}

/// The value of a reference to an extent: bytes of a blob that are in an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExtentRef {
    /// The position of the first byte in the blob.
    pub(crate) start: u64,
    pub(crate) extent: ExtentId,
    /// The position of the first byte in the extent.
    pub(crate) skip_bytes: u64,
}

/// The value of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExtentEntry {
    pub(crate) length_bytes: u64,
    /// The number of references to the extent.
    pub(crate) refs: u32,
}

const NAME: u8 = b'N';
const PAGE: u8 = b'P';
const REFERENCE: u8 = b'X';
const EXTENT: u8 = b'E';
const UNUSED_EXTENT: u8 = b'D';
const DELETED_CONTENT: u8 = b'G';
const RESULT: u8 = b'T';
const JOINT_OUTCOME: u8 = b'O';
const JOINT_PREPARED: u8 = b'Q';
const JOINT_UNCONFIRMED: u8 = b'U';
/// The key of the number of times that the store was opened.
pub(crate) const EPOCH: &[u8] = b"Mepoch";
/// The key of the version of the last commit whose results were removed.
pub(crate) const FORGOTTEN_RESULTS: &[u8] = b"Mforgotten";

/// Returns the key of a name, or the beginning of the keys of all names with this prefix.
pub(crate) fn name(name: &[u8]) -> Vec<u8> {
    [&[NAME], name].concat()
}

/// Returns the name in a key that [`name`] has returned.
pub(crate) fn name_of(key: &[u8]) -> Result<&[u8]> {
    key.strip_prefix(&[NAME]).ok_or_else(|| damaged("a key of a name"))
}

/// Returns the beginning of the keys of all pages of a blob.
pub(crate) fn pages(id: ContentId) -> Vec<u8> {
    key(PAGE, id.0)
}

/// Returns the key of a page.
pub(crate) fn page(id: ContentId, number: u64) -> Vec<u8> {
    let mut key = pages(id);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// Returns the number of the page in a key that [`page`] has returned.
pub(crate) fn number_of_page(key: &[u8]) -> Result<u64> {
    last_number(key, 17)
}

/// Returns the beginning of the keys of all pages.
pub(crate) fn all_pages() -> Vec<u8> {
    vec![PAGE]
}

/// Returns the beginning of the keys of all references.
pub(crate) fn all_references() -> Vec<u8> {
    vec![REFERENCE]
}

/// Returns the content in a key that [`page`] or [`reference`] has returned.
pub(crate) fn content_of(key: &[u8]) -> Result<ContentId> {
    match key.get(1..9).and_then(|id| id.first_chunk()) {
        Some(id) => Ok(ContentId(u64::from_be_bytes(*id))),
        None => Err(damaged("a key")),
    }
}

/// Returns the beginning of the keys of all references of a blob.
pub(crate) fn references(id: ContentId) -> Vec<u8> {
    key(REFERENCE, id.0)
}

/// Returns the key of the reference whose last byte is before `end`. The end is in the key, so that
/// a scan from a position begins with the reference that contains the position.
pub(crate) fn reference(id: ContentId, end: u64) -> Vec<u8> {
    let mut key = references(id);
    key.extend_from_slice(&end.to_be_bytes());
    key
}

/// Returns the end in a key that [`reference`] has returned.
pub(crate) fn end_of_reference(key: &[u8]) -> Result<u64> {
    last_number(key, 17)
}

/// Returns the key of an extent.
pub(crate) fn extent(id: ExtentId) -> Vec<u8> {
    key(EXTENT, id.0)
}

/// Returns the beginning of the keys of all extents.
pub(crate) fn extents() -> Vec<u8> {
    vec![EXTENT]
}

/// Returns the extent in a key that [`extent`] or [`unused_extent`] has returned.
pub(crate) fn extent_of(key: &[u8]) -> Result<ExtentId> {
    Ok(ExtentId(last_number(key, 9)?))
}

/// Returns the key of an extent that has no references.
pub(crate) fn unused_extent(id: ExtentId) -> Vec<u8> {
    key(UNUSED_EXTENT, id.0)
}

/// Returns the beginning of the keys of all extents without references.
pub(crate) fn unused_extents() -> Vec<u8> {
    vec![UNUSED_EXTENT]
}

/// Returns the key of the content of a deleted blob, whose pages and references remain.
pub(crate) fn deleted_content(id: ContentId) -> Vec<u8> {
    key(DELETED_CONTENT, id.0)
}

/// Returns the beginning of the keys of the contents of all deleted blobs.
pub(crate) fn deleted_contents() -> Vec<u8> {
    vec![DELETED_CONTENT]
}

/// Returns the content in a key that [`deleted_content`] has returned.
pub(crate) fn deleted_content_of(key: &[u8]) -> Result<ContentId> {
    Ok(ContentId(last_number(key, 9)?))
}

/// Returns the key of the result of a transaction.
pub(crate) fn result(id: TransactionId) -> Vec<u8> {
    transaction_key(RESULT, id.client, id.number)
}

/// Returns the key of the outcome of a joint transaction.
pub(crate) fn joint_outcome(id: JointId) -> Vec<u8> {
    transaction_key(JOINT_OUTCOME, id.client, id.number)
}

/// Returns the beginning of the keys of all outcomes of joint transactions.
pub(crate) fn joint_outcomes() -> Vec<u8> {
    vec![JOINT_OUTCOME]
}

/// Returns the key of a joint transaction that is prepared and not ended.
pub(crate) fn joint_prepared(id: JointId) -> Vec<u8> {
    transaction_key(JOINT_PREPARED, id.client, id.number)
}

/// Returns the beginning of the keys of all joint transactions that are prepared.
pub(crate) fn all_joint_prepared() -> Vec<u8> {
    vec![JOINT_PREPARED]
}

/// Returns the key of the decision to commit a joint transaction that some participants have not
/// confirmed.
pub(crate) fn joint_unconfirmed(id: JointId) -> Vec<u8> {
    transaction_key(JOINT_UNCONFIRMED, id.client, id.number)
}

/// Returns the beginning of the keys of all decisions that are not confirmed.
pub(crate) fn all_joint_unconfirmed() -> Vec<u8> {
    vec![JOINT_UNCONFIRMED]
}

/// Returns the joint transaction in a key that [`joint_outcome`], [`joint_prepared`] or
/// [`joint_unconfirmed`] has returned.
pub(crate) fn joint_of(key: &[u8]) -> Result<JointId> {
    transaction_of(key).map(|TransactionId { client, number, .. }| JointId { client, number })
}

fn transaction_key(tag: u8, client: u128, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(25);
    key.push(tag);
    key.extend_from_slice(&client.to_be_bytes());
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// Returns the beginning of the keys of all results.
pub(crate) fn results() -> Vec<u8> {
    vec![RESULT]
}

/// Returns the transaction in a key that [`result`] has returned. The key does not contain `begun`.
pub(crate) fn transaction_of(key: &[u8]) -> Result<TransactionId> {
    let number = last_number(key, 25)?;
    match key[1..].first_chunk() {
        Some(client) => {
            Ok(TransactionId { client: u128::from_be_bytes(*client), number, begun: Version::default() })
        }
        None => Err(damaged("a key")),
    }
}

/// Encodes a value.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).expect("a vector has room for every value")
}

/// Decodes a value.
pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(damaged("a value")),
    }
}

fn key(tag: u8, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(17);
    key.push(tag);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// Returns the last eight bytes of a key of `length` bytes as a number.
fn last_number(key: &[u8], length: usize) -> Result<u64> {
    match key.last_chunk() {
        Some(number) if key.len() == length => Ok(u64::from_be_bytes(*number)),
        _ => Err(damaged("a key")),
    }
}

fn damaged(part: &str) -> Error {
    let source = Some(format!("{part} of the tables does not have its format").into());
    Error { source, ..Error::new(ErrorKind::Damaged, "read", "tables") }
}
