//! Names of the files and directories in a store's `.quell` and in a container
//! (docs/formats/log.md). Pure functions on values, no I/O.

use crate::format::meta::MetaName;
use crate::format::store_map::StoreMap;

/// The record of a container, with its number and sizes.
pub(crate) const CONTAINER_RECORD: &[u8] = b"container";
pub(crate) const ACCESS: &[u8] = b"access";
/// An empty file. If it exists, the former owner of the object may have the object open for
/// writing.
pub(crate) const GIVEN_AWAY: &[u8] = b"given-away";
pub(crate) const META: &[u8] = b"meta";
/// The name in `meta` of a file that was moved to another store, while the other names are being
/// deleted.
pub(crate) const MOVED: &[u8] = b"moved";
pub(crate) const EPOCH_PREFIX: &str = "epoch-";
pub(crate) const FLAT_PREFIX: &str = "flat-";
const LOGS_PREFIX: &str = "logs-";

/// The record of a store, with its number.
pub(crate) const STORE_RECORD: &[u8] = b"store";
/// The directory in `.quell` for containers and files under construction.
pub(crate) const NEW_DIR: &[u8] = b"new";
/// The former `new` of a store that is drained, until it is removed.
pub(crate) const CLOSED_NEW_DIR: &[u8] = b"closed-new";
/// The directory in `.quell` for removed containers that are not yet deleted.
pub(crate) const TRASH_DIR: &[u8] = b"trash";
/// The directory in `.quell` for log directories of containers in other stores.
pub(crate) const PARTS_DIR: &[u8] = b"parts";

pub(crate) fn epoch_name(epoch: u64) -> Vec<u8> {
    format!("{EPOCH_PREFIX}{epoch:x}").into_bytes()
}

pub(crate) fn data_name(writer: u64) -> Vec<u8> {
    format!("{writer:016x}.data").into_bytes()
}

pub(crate) fn index_name(writer: u64) -> Vec<u8> {
    format!("{writer:016x}.index").into_bytes()
}

pub(crate) fn logs_name(number: u32) -> Vec<u8> {
    format!("{LOGS_PREFIX}{number:x}").into_bytes()
}

/// Returns the name of an object with this number: a store in a pointer, a container in `parts`,
/// or an object under construction or in `trash`.
pub(crate) fn number_name(number: u128) -> Vec<u8> {
    format!("{number:032x}").into_bytes()
}

/// Returns true for the name of an object under construction or in `trash`: a random number.
pub(crate) fn is_number_name(name: &[u8]) -> bool {
    name.len() == 32 && name.iter().all(u8::is_ascii_hexdigit)
}

/// Returns true if the format defines this name in `.quell`.
pub(crate) fn is_name_of_store(name: &[u8]) -> bool {
    [NEW_DIR, CLOSED_NEW_DIR, TRASH_DIR, PARTS_DIR, STORE_RECORD].contains(&name)
        || StoreMap::version_of(name).is_some()
}

/// Returns true if the format defines a name like this in a container's directory, except for the
/// record.
pub(crate) fn is_name_of_container(name: &[u8]) -> bool {
    [ACCESS, GIVEN_AWAY, META].contains(&name)
        || [EPOCH_PREFIX, FLAT_PREFIX, LOGS_PREFIX].iter().any(|prefix| name.starts_with(prefix.as_bytes()))
}

/// Returns true if the format defines a name like this in a container, in `parts`, or in `.quell`.
pub(crate) fn is_defined_name(name: &[u8]) -> bool {
    [CONTAINER_RECORD, MOVED].contains(&name)
        || is_name_of_container(name)
        || is_name_of_store(name)
        || MetaName::decode(name).is_some()
        || [&b".data"[..], b".index"].iter().any(|suffix| name.ends_with(suffix))
        || name.starts_with(b".new-")
}
