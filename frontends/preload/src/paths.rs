//! Compares paths with the virtual directories. Pure: no file is opened, and nothing is allocated.
//! A virtual directory is named by its plain path: absolute, without `.`, `..`, repeated slashes
//! and a slash at the end.

/// The relation of a path to a virtual directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation<'p, 'd> {
    /// The path is outside of the directory.
    Outside,
    /// The path is in the directory. The value is the rest of the path below the directory, and
    /// empty for the directory itself.
    Inside(&'p [u8]),
    /// The path is an ancestor of the directory. The value is the rest of the directory's path
    /// below the ancestor.
    Ancestor(&'d [u8]),
    /// The path has `..` before it reaches the directory, so the relation depends on the symbolic
    /// links before the `..`.
    Unknown,
}

/// Compares `path`, which begins where the plain relative path `dir` begins, with `dir`.
pub fn compare<'p, 'd>(path: &'p [u8], dir: &'d [u8]) -> Relation<'p, 'd> {
    let (mut path, mut dir) = (path, dir);
    loop {
        let (wanted, dir_rest) = split(dir);
        if wanted.is_empty() {
            return Relation::Inside(path);
        }
        let (found, path_rest) = split(path);
        match found {
            b"" => return Relation::Ancestor(strip_slashes(dir)),
            b"." => path = path_rest,
            b".." => return Relation::Unknown,
            found if found == wanted => (path, dir) = (path_rest, dir_rest),
            _ if has_parent(path_rest) => return Relation::Unknown,
            _ => return Relation::Outside,
        }
    }
}

/// Returns whether a path has a component `..`.
pub fn has_parent(path: &[u8]) -> bool {
    // Most paths have no "..": two dots are searched for before components are separated.
    path.windows(2).any(|pair| pair == b"..") && path.split(|byte| *byte == b'/').any(|name| name == b"..")
}

/// Returns the first component of a path and the rest after it.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let path = strip_slashes(path);
    let end = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
    path.split_at(end)
}

/// Returns the path without slashes at its beginning.
pub fn strip_slashes(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
    &path[start..]
}

/// Splits a path after its last component `..`. The second part has none.
pub fn split_after_parent(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut end = None;
    let mut start = 0;
    for name in path.split(|byte| *byte == b'/') {
        start += name.len();
        if name == b".." {
            end = Some(start);
        }
        start += 1;
    }
    end.map(|end| path.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_compared_component_by_component() {
        let inside = |path: &'static str| compare(path.as_bytes(), b"scratch/run");
        for (path, rest) in [
            ("/scratch/run", ""),
            ("//scratch///run/", "/"),
            ("/scratch/./run/a/../b", "/a/../b"),
            ("scratch/run/a", "/a"),
        ] {
            assert_eq!(inside(path), Relation::Inside(rest.as_bytes()), "{path}");
        }
        for path in ["/scratch/runs", "/scratc", "/other/run", "/run/scratch", "/scratch/r/un", "/a../b"] {
            assert_eq!(inside(path), Relation::Outside, "{path}");
        }
        assert_eq!(inside("/"), Relation::Ancestor(b"scratch/run"));
        assert_eq!(inside("/scratch/."), Relation::Ancestor(b"run"));
        for path in ["/other/../scratch/run", "/scratch/../scratch/run/a", "..", "/x/y/.."] {
            assert_eq!(inside(path), Relation::Unknown, "{path}");
        }
    }

    #[test]
    fn a_path_is_split_after_its_last_parent() {
        assert_eq!(split_after_parent(b"/a/../b/.././c"), Some((&b"/a/../b/.."[..], &b"/./c"[..])));
        assert_eq!(split_after_parent(b".."), Some((&b".."[..], &b""[..])));
        assert_eq!(split_after_parent(b"/a..b/..c"), None);
    }
}
