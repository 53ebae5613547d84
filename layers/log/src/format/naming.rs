//! Maps names in the mount to names in the store and back. Pure functions on values, no I/O.

use quell_vfs::{Error, ErrorKind, NAME_BYTES_MAX, Result, check_name};

/// The suffix of a container's name.
pub const SUFFIX: &[u8] = b".container";
/// The directory in a store's root that holds the store's own data.
pub const OWN: &[u8] = b".quell";

/// Returns true if a name in a store's root is reserved: `.quell`, or the temporary name of a
/// `.quell` under construction.
pub fn is_own(name: &[u8]) -> bool {
    match name.strip_prefix(OWN) {
        Some(rest) => {
            rest.is_empty()
                || rest.len() == 33 && rest[0] == b'-' && rest[1..].iter().all(u8::is_ascii_hexdigit)
        }
        None => false,
    }
}

/// The meaning of a name in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored<'a> {
    /// A directory that should be the container of the file with this name.
    Container(&'a [u8]),
    /// A directory or a symbolic link with this name.
    Other(&'a [u8]),
}

/// Returns the name of the container of the file `name`.
pub fn container_name(name: &[u8]) -> Result<Vec<u8>> {
    check_name(name)?;
    let stored = [name, SUFFIX].concat();
    if stored.len() > NAME_BYTES_MAX {
        return Err(Error::new(ErrorKind::NameTooLong, "name", name));
    }
    Ok(stored)
}

/// Returns the largest number of bytes of a file's name, if a name in the store can have
/// `stored_bytes_max`.
pub fn file_name_bytes_max(stored_bytes_max: u32) -> u32 {
    stored_bytes_max.saturating_sub(SUFFIX.len() as u32)
}

/// Returns the name in the store of the directory or symbolic link `name`. One `~` is appended to a
/// name that would otherwise be the name of a container.
pub fn other_name(name: &[u8]) -> Result<Vec<u8>> {
    let tilde: &[u8] = if is_marked(name) { b"~" } else { b"" };
    let stored = [name, tilde].concat();
    check_name(&stored)?;
    Ok(stored)
}

/// Returns true if the name ends with the suffix and any number of `~`.
fn is_marked(name: &[u8]) -> bool {
    let end = name.iter().rposition(|byte| *byte != b'~').map_or(0, |last| last + 1);
    name[..end].ends_with(SUFFIX)
}

/// Returns the path of `name` in the directory `path`, as the mount shows them. The path of the
/// root is empty.
pub fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// Returns the meaning of the name `stored` in a store, or `None` for the suffix alone, which would
/// be the container of a file without a name.
pub fn shown(stored: &[u8]) -> Option<Stored<'_>> {
    match stored.strip_suffix(SUFFIX) {
        Some(b"") => None,
        Some(name) => Some(Stored::Container(name)),
        None if is_marked(stored) => Some(Stored::Other(&stored[..stored.len() - 1])),
        None => Some(Stored::Other(stored)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_do_not_collide() {
        let names: [&[u8]; 8] = [
            b"a",
            b"ckpt.h5",
            b"a.container",
            b"a.container~",
            b"a~",
            b"a.container.container",
            b".container~~",
            b"~",
        ];
        let mut all = Vec::new();
        for name in names {
            let container = container_name(name).unwrap();
            assert_eq!(shown(&container), Some(Stored::Container(name)));
            let other = other_name(name).unwrap();
            assert_eq!(shown(&other), Some(Stored::Other(name)));
            all.extend([container, other]);
        }
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 2 * names.len());
    }

    #[test]
    fn names_that_the_store_cannot_hold_are_refused() {
        assert!(container_name(&[b'x'; 245]).is_ok());
        assert_eq!(container_name(&[b'x'; 246]).unwrap_err().kind, ErrorKind::NameTooLong);
        assert!(other_name(&[b'x'; 255]).is_ok());
        for bad in [&b""[..], b".", b"..", b"a/b"] {
            assert!(other_name(bad).is_err());
        }
        assert_eq!(shown(b".container"), None);
    }
}
