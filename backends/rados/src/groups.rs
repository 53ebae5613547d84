//! The number of the groups of servers of a store, and the secret of its servers.
//! docs/formats/rados-log.md draws the objects.

use quell_vfs::{ErrorKind, Result};

use crate::fields::{Fields, checksum};
use crate::objects::{Objects, Write, failure};

const GROUPS_MAGIC: &[u8; 8] = b"QUELLRG1";
const SECRET_MAGIC: &[u8; 8] = b"QUELLRK1";
/// The length of the secret, in bytes.
const SECRET_BYTES: usize = 32;

/// Returns the name of the log, extents and server of a group of the store `name`.
pub fn group_name(name: &str, group: u32) -> String {
    if group == 0 { name.to_owned() } else { format!("{name}-{group}") }
}

/// Returns the number of groups that the store `name` has, or `None` if no object states it: the
/// store does not exist, or has one group.
///
/// # Errors
/// `Damaged` if the object does not have its format; the errors of [`Objects`].
pub fn read_groups(objects: &dyn Objects, name: &str) -> Result<Option<u32>> {
    let content = read_object(objects, &groups_object(name), GROUPS_MAGIC)?;
    Ok(content.map(u32::from_le_bytes))
}

/// Stores the number of groups of a new store. If another process does so at the same time, returns
/// the number that was stored first.
///
/// # Errors
/// The errors of [`Objects`].
pub fn create_groups(objects: &dyn Objects, name: &str, groups: u32) -> Result<u32> {
    let bytes = encode(GROUPS_MAGIC, &groups.to_le_bytes());
    create(objects, &groups_object(name), &bytes)?;
    Ok(read_groups(objects, name)?.unwrap_or(1))
}

/// Returns the secret of the servers of the store `name`. If there is none yet, stores `new` first.
///
/// # Errors
/// `Damaged` if the object does not have its format; the errors of [`Objects`].
pub fn find_secret(
    objects: &dyn Objects,
    name: &str,
    new: &[u8; SECRET_BYTES],
) -> Result<[u8; SECRET_BYTES]> {
    let object = format!("{name}.secret");
    if let Some(found) = read_object(objects, &object, SECRET_MAGIC)? {
        return Ok(found);
    }
    create(objects, &object, &encode(SECRET_MAGIC, new))?;
    let created = read_object(objects, &object, SECRET_MAGIC)?;
    created.ok_or_else(|| failure(ErrorKind::NotFound, "read", &object, "it was removed"))
}

fn groups_object(name: &str) -> String {
    format!("{name}.server.groups")
}

fn encode(magic: &[u8; 8], content: &[u8]) -> Vec<u8> {
    let mut bytes = [&magic[..], content].concat();
    bytes.extend(checksum(&bytes, &[]).to_le_bytes());
    bytes
}

/// Creates an object unless it exists.
fn create(objects: &dyn Objects, object: &str, bytes: &[u8]) -> Result<()> {
    match objects.write(object, &Write::new().create_exclusive().write_full(bytes)) {
        Err(error) if error.kind == ErrorKind::Exists => Ok(()),
        created => created,
    }
}

fn read_object<const N: usize>(
    objects: &dyn Objects,
    object: &str,
    magic: &[u8; 8],
) -> Result<Option<[u8; N]>> {
    let bytes = match objects.read(object, 0, 8 + N + 9) {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
        bytes => bytes?,
    };
    let mut fields = Fields(&bytes);
    let parsed = (fields.array::<8>(), fields.array::<N>(), fields.u64(), fields.0.len());
    match parsed {
        (Some(found), Some(content), Some(sum), 0)
            if found == *magic && sum == checksum(&bytes[..8 + N], &[]) =>
        {
            Ok(Some(content))
        }
        _ => Err(failure(ErrorKind::Damaged, "read", object, "it does not have its format")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryObjects;

    #[test]
    fn the_first_number_of_groups_and_the_first_secret_stay() {
        let objects = MemoryObjects::new();
        assert_eq!(read_groups(&objects, "a").expect("read"), None);
        assert_eq!(create_groups(&objects, "a", 3).expect("created"), 3);
        assert_eq!(create_groups(&objects, "a", 2).expect("found"), 3);
        assert_eq!(read_groups(&objects, "a").expect("read"), Some(3));
        assert_eq!(find_secret(&objects, "a", &[1; 32]).expect("created"), [1; 32]);
        assert_eq!(find_secret(&objects, "a", &[2; 32]).expect("found"), [1; 32]);
        objects.write("a.server.groups", &Write::new().write_full(b"QUELLRG1")).expect("damaged");
        assert_eq!(read_groups(&objects, "a").expect_err("damaged").kind, ErrorKind::Damaged);
    }
}
