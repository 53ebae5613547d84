//! How names in the mount become names in the store and back. Values to values, no I/O.

use quell_fs::{Error, ErrorKind, NAME_BYTES_MAX, Result, check_name};

/// What the name of a container ends with.
pub const SUFFIX: &[u8] = b".container";
/// The store's own directory in its root.
pub const OWN: &[u8] = b".quell";

/// Whether a name in a store's root is the store's own: its directory, or one that was to become it.
pub fn is_own(name: &[u8]) -> bool {
    match name.strip_prefix(OWN) {
        Some(rest) => {
            rest.is_empty()
                || rest.len() == 33 && rest[0] == b'-' && rest[1..].iter().all(u8::is_ascii_hexdigit)
        }
        None => false,
    }
}

/// What a name in the store stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored<'a> {
    /// A directory that should be the container of the file of this name.
    Container(&'a [u8]),
    /// A directory or a symbolic link of this name.
    Other(&'a [u8]),
}

/// The name of the container of the file `name`.
pub fn container_name(name: &[u8]) -> Result<Vec<u8>> {
    check_name(name)?;
    let stored = [name, SUFFIX].concat();
    if stored.len() > NAME_BYTES_MAX {
        return Err(Error::new(ErrorKind::NameTooLong, "name", name));
    }
    Ok(stored)
}

/// The name of the directory or symbolic link `name`: one that could be taken for a container gets one `~` more.
pub fn other_name(name: &[u8]) -> Result<Vec<u8>> {
    let tilde: &[u8] = if is_marked(name) { b"~" } else { b"" };
    let stored = [name, tilde].concat();
    check_name(&stored)?;
    Ok(stored)
}

/// Ends with the suffix and any number of `~`.
fn is_marked(name: &[u8]) -> bool {
    let end = name.iter().rposition(|byte| *byte != b'~').map_or(0, |last| last + 1);
    name[..end].ends_with(SUFFIX)
}

/// The path of `name` in the directory `path`, as a mount shows them; the root's is empty.
pub fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// What `stored`, found in a store, is called in the mount; `None` for the name that no file can have.
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
    fn names_come_back_and_no_two_meet() {
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
