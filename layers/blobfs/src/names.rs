//! The names of blobs that are files and directories. The functions perform no I/O.
//!
//! | blob | meaning |
//! |---|---|
//! | prefix, path | a file or a symbolic link |
//! | prefix, path, `/` | the directory, with its attributes; it may also exist without this blob |
//! | prefix, `/removed/`, mount, `/`, number | a file without a name that a mount still uses |
//! | prefix, `/removed/`, mount, `/mount` | the mark of the mount |
//!
//! The blob of the root is the prefix, or `/` if the prefix is empty.

use quell_blob::NAME_BYTES_MAX;
use quell_vfs::{Error, ErrorKind, NodeId, Result, check_name};

/// The largest length of the prefix, in bytes: paths and the names of removed files follow it.
const PREFIX_BYTES_MAX: usize = 512;

/// The names of the blobs below a prefix.
#[derive(Debug)]
pub(crate) struct Names {
    /// The prefix, which is empty or ends with a slash.
    prefix: Vec<u8>,
    /// A number that no other mount has.
    mount: u64,
}

/// The meaning of the name of a blob in the listing of a directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shown<'a> {
    /// The blob is a file of this name, or a symbolic link.
    File(&'a [u8]),
    /// The blob is, or lies below, a directory of this name.
    Dir(&'a [u8]),
    /// The blob is the directory itself.
    Itself,
    /// No file can have the name.
    Hidden,
}

impl Names {
    /// Returns the names below a prefix, to which a slash is added. `mount` is a number that no
    /// other mount has.
    pub(crate) fn new(prefix: &[u8], mount: u64) -> Result<Names> {
        let mut prefix = prefix.to_vec();
        if !prefix.is_empty() && !prefix.ends_with(b"/") {
            prefix.push(b'/');
        }
        if prefix.len() > PREFIX_BYTES_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, "use the prefix", &prefix[..64]));
        }
        Ok(Names { prefix, mount })
    }

    /// Returns the blob of a file.
    pub(crate) fn of_file(&self, path: &[u8]) -> Result<Vec<u8>> {
        bounded([&self.prefix[..], path].concat(), path)
    }

    /// Returns the blob of a directory.
    pub(crate) fn of_dir(&self, path: &[u8]) -> Result<Vec<u8>> {
        match (path.is_empty(), self.prefix.is_empty()) {
            (true, true) => Ok(b"/".to_vec()),
            _ => self.below(path),
        }
    }

    /// Returns the beginning of the names of all blobs in a directory.
    pub(crate) fn below(&self, path: &[u8]) -> Result<Vec<u8>> {
        let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
        bounded([&self.prefix[..], path, slash].concat(), path)
    }

    /// Returns the blob of a file without a name that this mount uses.
    pub(crate) fn of_removed(&self, number: u64) -> Vec<u8> {
        let number = format!("{:016x}/{number}", self.mount);
        [&self.all_removed()[..], number.as_bytes()].concat()
    }

    /// Returns the blob that is the mark of this mount.
    pub(crate) fn of_mount(&self) -> Vec<u8> {
        let name = format!("{:016x}/mount", self.mount);
        [&self.all_removed()[..], name.as_bytes()].concat()
    }

    /// Returns the beginning of the names of the blobs of files without names, of all mounts.
    pub(crate) fn all_removed(&self) -> Vec<u8> {
        [&self.prefix[..], b"/removed/"].concat()
    }

    /// Returns the mount to which a blob below [`all_removed`](Names::all_removed) belongs, unless
    /// it is this mount.
    pub(crate) fn other_mount(&self, blob: &[u8]) -> Option<u64> {
        let rest = blob.strip_prefix(&self.all_removed()[..])?;
        let digits = std::str::from_utf8(&rest[..rest.iter().position(|byte| *byte == b'/')?]).ok()?;
        let mount = u64::from_str_radix(digits, 16).ok()?;
        (mount != self.mount && digits == format!("{mount:016x}")).then_some(mount)
    }
}

fn bounded(name: Vec<u8>, path: &[u8]) -> Result<Vec<u8>> {
    match name.len() {
        0..=NAME_BYTES_MAX => Ok(name),
        _ => Err(Error::new(ErrorKind::NameTooLong, "use", path)),
    }
}

/// Returns the meaning of a blob. Its name is the common prefix of the blobs of the directory,
/// followed by `rest`.
pub(crate) fn shown(rest: &[u8]) -> Shown<'_> {
    if rest.is_empty() {
        return Shown::Itself;
    }
    let slash = rest.iter().position(|byte| *byte == b'/');
    let name = &rest[..slash.unwrap_or(rest.len())];
    match (check_name(name), slash) {
        (Err(_), _) => Shown::Hidden,
        (Ok(()), None) => Shown::File(name),
        (Ok(()), Some(_)) => Shown::Dir(name),
    }
}

/// Returns a name that is after the names of all blobs that begin with `beginning`.
pub(crate) fn after_all(beginning: &[u8]) -> Vec<u8> {
    let mut name = beginning.to_vec();
    name.resize(NAME_BYTES_MAX.max(beginning.len()), 0xFF);
    name
}

/// Returns the path of an entry.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir.is_empty() {
        true => name.to_vec(),
        false => [dir, b"/", name].concat(),
    }
}

/// Returns the path of the directory of an entry. The directory of the root is the root.
pub(crate) fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(b"", |slash| &path[..slash])
}

/// Returns whether a path is the path of the directory `dir`, or of an entry below it.
pub(crate) fn is_within(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/' || dir.is_empty())
}

/// Returns the number of the node of a path, which another node may already have. `attempt` is the
/// number of numbers that were tried before.
pub(crate) fn node_number(path: &[u8], attempt: u64) -> NodeId {
    // 0 is the root, and 2^64 - 1 is no node.
    NodeId(xxhash_rust::xxh3::xxh3_64_with_seed(path, attempt).clamp(1, u64::MAX - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_below_the_prefix_are_files_and_directories() {
        let names = Names::new(b"results", 7).unwrap();
        assert_eq!(names.of_file(b"a/b").unwrap(), b"results/a/b");
        assert_eq!(
            (names.of_dir(b"a").unwrap(), names.of_dir(b"").unwrap()),
            (b"results/a/".into(), b"results/".into())
        );
        assert_eq!(names.of_removed(3), b"results//removed/0000000000000007/3");
        let (removed, of_mount) = (names.of_removed(3), Names::new(b"results", 8).unwrap().of_mount());
        assert_eq!((names.other_mount(&removed), names.other_mount(&of_mount)), (None, Some(8)));
        assert_eq!(names.other_mount(b"results//removed/8/1"), None, "no mount has made this name");
        let all = Names::new(b"", 7).unwrap();
        assert_eq!((all.of_dir(b"").unwrap(), all.below(b"").unwrap()), (b"/".into(), b"".into()));
        assert_eq!((all.of_file(b"a").unwrap(), all.below(b"a").unwrap()), (b"a".into(), b"a/".into()));
        assert_eq!(all.of_file(&[b'x'; 1025]).unwrap_err().kind, ErrorKind::NameTooLong);
        assert!(Names::new(&[b'x'; 512], 0).is_err());
    }

    #[test]
    fn names_that_no_file_can_have_are_hidden() {
        for (rest, expected) in [
            (&b""[..], Shown::Itself),
            (b"a", Shown::File(b"a")),
            (b"a/", Shown::Dir(b"a")),
            (b"a/b/c", Shown::Dir(b"a")),
            (b"a//b", Shown::Dir(b"a")),
            (b"/removed/1/2", Shown::Hidden),
            (b"..", Shown::Hidden),
            (b"./a", Shown::Hidden),
            (b"a\0", Shown::Hidden),
            (&[b'x'; 256], Shown::Hidden),
        ] {
            assert_eq!(shown(rest), expected, "{}", rest.escape_ascii());
        }
    }

    #[test]
    fn paths_have_parents_and_lie_below_directories() {
        assert_eq!((parent(b"a/b/c"), parent(b"a"), parent(b"")), (&b"a/b"[..], &b""[..], &b""[..]));
        assert!(is_within(b"a/b", b"a") && is_within(b"a", b"a") && is_within(b"a", b""));
        assert!(!is_within(b"ab", b"a") && !is_within(b"a", b"a/b"));
        assert!(after_all(b"a/") > b"a/\xff\xff".to_vec() && after_all(b"a/") < b"a0".to_vec());
    }
}
