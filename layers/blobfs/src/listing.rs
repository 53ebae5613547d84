//! The entries of a directory, in the order of the names of their blobs. Only the first blob below
//! a subdirectory makes an entry; the others are skipped.

use quell_blob::{BlobStat, Snapshot};
use quell_mount_state::Cursors;
use quell_vfs::{Cursor, Kind, NodeId, Result};

use crate::attributes::kind_of;
use crate::failure::failed;
use crate::names::{Shown, after_all, shown};

/// The number of blobs that are requested at a time.
const PAGE_BLOBS: usize = 512;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: Kind,
}

/// A position in a listing: the name up to which all blobs were visited.
pub(crate) type Position = Vec<u8>;

/// The entries of a part of a directory.
pub(crate) struct Page {
    pub(crate) entries: Vec<Entry>,
    /// The position after the part; `None` at the end of the directory.
    pub(crate) next: Option<Position>,
    /// The number of blobs that have no entry, because no file can have their names.
    pub(crate) hidden: u64,
}

/// Returns the position after an entry.
pub(crate) fn after(below: &[u8], entry: &Entry) -> Position {
    let blob = [below, &entry.name[..]].concat();
    match entry.kind {
        Kind::Dir => after_all(&[&blob[..], b"/"].concat()),
        _ => blob,
    }
}

/// Reads the next part of the directory whose blobs begin with `below`.
pub(crate) fn read_page(state: &Snapshot, below: &[u8], start: &[u8]) -> Result<Page> {
    let failed = |cause| failed(cause, "list", below);
    let found = state.list(below, start, PAGE_BLOBS).map_err(failed)?;
    let mut page = Page { entries: Vec::new(), next: None, hidden: 0 };
    let mut position = start.to_vec();
    for (blob, stat) in &found {
        if *blob <= position {
            continue; // below a subdirectory that has an entry already
        }
        position.clone_from(blob);
        let Some(rest) = blob.strip_prefix(below) else { continue };
        match shown(rest) {
            Shown::File(name) => page.entries.push(file(name, stat)),
            Shown::Dir(name) => {
                let entry = Entry { name: name.to_vec(), kind: Kind::Dir };
                position = after(below, &entry);
                // A file hides a directory of the same name.
                let file_blob = [below, name].concat();
                match state.stat(&file_blob).map_err(failed)? {
                    None => page.entries.push(entry),
                    Some(_) => page.hidden += 1,
                }
            }
            Shown::Itself => {}
            Shown::Hidden => page.hidden += 1,
        }
    }
    page.next = (found.len() == PAGE_BLOBS).then_some(position);
    Ok(page)
}

fn file(name: &[u8], stat: &BlobStat) -> Entry {
    Entry { name: name.to_vec(), kind: kind_of(stat) }
}

/// Returns the position of a cursor. `state` and `below` describe the directory.
///
/// # Errors
///
/// `Stale` if the entry is not kept any more and was removed.
pub(crate) fn position(
    cursors: &Cursors<Entry>,
    (dir, cursor): (NodeId, Cursor),
    state: &Snapshot,
    below: &[u8],
) -> Result<Position> {
    if cursor == Cursor::START {
        return Ok(Position::new());
    }
    let entry = cursors.entry(dir, cursor, |matches| {
        let mut next = Some(Position::new());
        while let Some(start) = next {
            let page = read_page(state, below, &start)?;
            if let Some(entry) = page.entries.into_iter().find(|entry| matches(&entry.name)) {
                return Ok(Some(entry));
            }
            next = page.next;
        }
        Ok(None)
    })?;
    Ok(after(below, &entry))
}

#[cfg(test)]
mod tests {
    use quell_blob::{Operation, Store};
    use quell_vfs::ErrorKind;

    use super::*;

    #[test]
    fn a_cursor_that_is_not_kept_is_found_by_its_entry() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("dir:{}", directory.path().join("store").display())).unwrap();
        let create = |number| Operation::Create { name: format!("d/{number:04}").into(), may_exist: false };
        store.commit((0..2000).map(create).collect()).unwrap();
        let state = store.snapshot().unwrap();
        let entry = |name: &[u8]| Entry { name: name.to_vec(), kind: Kind::File };
        // The same entries have equal cursors in another directory.
        let cursors = Cursors::new();
        let position = |name: &[u8]| {
            let cursor = cursors.after(NodeId(2), name, entry(name));
            position(&cursors, (NodeId(1), cursor), &state, b"d/")
        };
        for name in ["0000", "0511", "0512", "1999"] {
            assert_eq!(position(name.as_bytes()).unwrap(), [b"d/", name.as_bytes()].concat());
        }
        assert_eq!(position(b"removed").unwrap_err().kind, ErrorKind::Stale);
        // The entry of a cursor that is kept may have been removed.
        cursors.after(NodeId(1), b"removed", entry(b"removed"));
        assert_eq!(position(b"removed").unwrap(), b"d/removed");
    }
}
