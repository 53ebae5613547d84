//! Reads complete listings and compares attributes, for the checks and the comparisons of this
//! crate.

use quell_vfs::{Attributes, Context, Cursor, DirEntry, FileSystem, Kind, NodeId, Result};

/// An entry of a listing, without its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// The number of the node.
    pub node: NodeId,
    /// The kind of the node.
    pub kind: Kind,
    /// All attributes, if the listing has them.
    pub attributes: Option<Attributes>,
}

/// Describes the attributes that differ. Node numbers are not compared, because each implementation
/// chooses its own.
pub fn differences(expected: &Attributes, found: &Attributes, exact: bool) -> Vec<String> {
    let is_dir = expected.kind == Kind::Dir;
    let mut found = *found;
    if !exact {
        (found.uid, found.gid) = (expected.uid, expected.gid);
        (found.changed, found.blocks) = (expected.changed, expected.blocks);
        if is_dir {
            (found.size_bytes, found.nlink) = (expected.size_bytes, expected.nlink);
        }
    }
    found.node = expected.node;
    if found == *expected {
        return Vec::new();
    }
    vec![format!("expected {expected:?}"), format!("found {found:?}")]
}

/// Lists a directory, reading `step` entries at a time.
pub fn listing(fs: &dyn FileSystem, dir: NodeId, step: usize) -> Result<Vec<(Vec<u8>, Listed)>> {
    let mut all = Vec::new();
    let mut cursor = Cursor::START;
    loop {
        let before = all.len();
        fs.list(&Context::OWN, dir, cursor, &mut |entry: DirEntry<'_>| {
            let DirEntry { node, kind, attributes, .. } = entry;
            all.push((entry.name.to_vec(), Listed { node, kind, attributes }));
            cursor = entry.next;
            all.len() - before < step
        })?;
        if all.len() == before {
            return Ok(all);
        }
    }
}
