//! The entries of a private store that a user may read.
//!
//! The permission to search a directory and all directories above it permits to look names up in
//! the directory and to read their attributes. The permission to read the directory permits to list
//! it. The permission to read a file permits to read its bytes and its extended attributes. The
//! owner of a file or directory always has these permissions, because it can change the mode.

use std::collections::HashMap;

use quell_vfs::{Kind, Result};
use serde::{Deserialize, Serialize};

use crate::batch::BatchCaller;
use crate::entry::{Content, DEPTH_MAX, Entry, Inode, ROOT, damaged};
use crate::key::{Key, split};
use crate::merge::Merge;
use crate::permissions::READ;
use crate::table_set::TableSet;

/// No more entries are added to a part of a list when it has this many bytes.
const LISTED_BYTES: usize = 256 << 10;

/// The entries of a store that a user may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadAccess {
    /// All entries.
    All,
    /// The entries that the user has the permission to read.
    Permitted,
}

/// The entries of a directory that a client requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntriesOf {
    /// The inode of the directory.
    Inode,
    /// The entry of a name.
    Name(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The next entries after a name.
    NamesAfter(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// A key and its entry, which is encoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncodedEntry {
    /// The key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// The entry.
    #[serde(with = "serde_bytes")]
    pub entry: Vec<u8>,
    /// Whether the entry lacks parts that the user may not read, so that a batch cannot change it.
    pub is_reduced: bool,
}

/// Entries of a directory, in the order of their names. The inode of a directory, and that of a
/// file with several names, follows the entry of the name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListedEntries {
    /// The entries, after which the directory has no further names. A request for one entry has
    /// this reply.
    Last(Vec<EncodedEntry>),
    /// The entries, after which the directory has further names.
    Part(Vec<EncodedEntry>),
    /// The snapshot has no such directory.
    Missing,
    /// The user may look names up in the directory, and may not list it.
    NotListable,
    /// The user may not look names up in the directory, or not reach it.
    Denied,
}

/// The directories of a snapshot that a user may search and reach.
pub(crate) struct SearchableDirs<'a> {
    snapshot: &'a TableSet,
    caller: &'a BatchCaller,
    known: HashMap<u64, bool>,
}

impl<'a> SearchableDirs<'a> {
    pub(crate) fn new(snapshot: &'a TableSet, caller: &'a BatchCaller) -> SearchableDirs<'a> {
        SearchableDirs { snapshot, caller, known: HashMap::new() }
    }

    /// Returns whether the user may search a directory and all directories above it. False if there
    /// is no such directory.
    ///
    /// # Errors
    /// The errors of tables; `Damaged`.
    pub(crate) fn may_search(&mut self, dir: u64) -> Result<bool> {
        let mut path = Vec::new();
        let mut at = dir;
        let is_searchable = loop {
            if let Some(known) = self.known.get(&at) {
                break *known;
            }
            path.push(at);
            let Some(inode) = self.snapshot.dir(at)? else { break false };
            if !may_search(&inode, self.caller) {
                break false;
            }
            if at == ROOT {
                break true;
            }
            if path.len() > DEPTH_MAX {
                return Err(damaged("the path of a directory"));
            }
            at = inode.above()?;
        };
        // Otherwise only the result for `dir` is kept: the path can contain directories whose own
        // result differs.
        match is_searchable {
            true => self.known.extend(path.into_iter().map(|dir| (dir, true))),
            false => _ = self.known.insert(dir, false),
        }
        Ok(is_searchable)
    }

    /// Returns whether the user may read the attributes of a directory.
    ///
    /// # Errors
    /// As for [`may_search`](Self::may_search).
    pub(crate) fn may_show_inode(&mut self, dir: u64) -> Result<bool> {
        match self.snapshot.dir(dir)? {
            Some(_) if dir == ROOT => Ok(true),
            Some(inode) => self.may_search(inode.above()?),
            None => Ok(false),
        }
    }
}

/// Returns whether a user may look names up in a directory that the user can reach.
pub(crate) fn may_search(dir: &Inode, caller: &BatchCaller) -> bool {
    caller.owns(dir) || caller.may_search(dir)
}

/// Returns whether a user may list a directory, or read the bytes of a file.
pub(crate) fn may_read(inode: &Inode, caller: &BatchCaller) -> bool {
    caller.owns(inode) || caller.has_access(inode, READ)
}

/// Returns entries of a directory of a snapshot.
///
/// # Errors
/// The errors of tables; `Damaged`.
pub(crate) fn readable_entries(
    snapshot: &TableSet,
    caller: &BatchCaller,
    dir: u64,
    of: &EntriesOf,
) -> Result<ListedEntries> {
    let mut dirs = SearchableDirs::new(snapshot, caller);
    let Some(inode) = snapshot.dir(dir)? else { return Ok(ListedEntries::Missing) };
    let is_permitted = match of {
        EntriesOf::Inode => dirs.may_show_inode(dir)?,
        EntriesOf::Name(_) | EntriesOf::NamesAfter(_) => dirs.may_search(dir)?,
    };
    if !is_permitted {
        return Ok(ListedEntries::Denied);
    }
    let mut list = List { snapshot, caller, entries: Vec::new() };
    match of {
        EntriesOf::Inode => list.add_stored(&Key::of_dir(dir))?,
        EntriesOf::Name(name) => list.add_stored(&Key::of_name(dir, name))?,
        EntriesOf::NamesAfter(_) if !may_read(&inode, caller) => return Ok(ListedEntries::NotListable),
        EntriesOf::NamesAfter(after) => {
            if !list.add_names(dir, after)? {
                return Ok(ListedEntries::Part(list.entries));
            }
        }
    }
    Ok(ListedEntries::Last(list.entries))
}

/// The entries of a reply.
struct List<'a> {
    snapshot: &'a TableSet,
    caller: &'a BatchCaller,
    entries: Vec<EncodedEntry>,
}

impl List<'_> {
    /// Adds entries after a name, and returns whether they are the last ones.
    fn add_names(&mut self, dir: u64, after: &[u8]) -> Result<bool> {
        let start = Key::of_name(dir, after);
        let mut merge = Merge::new(self.snapshot.sources_after(start.as_bytes()).collect())?;
        let mut bytes = 0;
        while let Some((key, entry)) = merge.next()? {
            match split(key) {
                Some((found, _)) if found != dir => break,
                Some((_, name)) if !name.is_empty() && !entry.is_empty() => {
                    if bytes >= LISTED_BYTES {
                        return Ok(false);
                    }
                    let first = self.entries.len();
                    self.add(key, entry)?;
                    let added = self.entries[first..].iter();
                    bytes += added.map(|added| added.key.len() + added.entry.len()).sum::<usize>();
                }
                _ => {}
            }
        }
        Ok(true)
    }

    /// Adds the entry of a key, if there is one.
    fn add_stored(&mut self, key: &Key) -> Result<()> {
        match self.snapshot.get(key.as_bytes())?.filter(|entry| !entry.is_empty()) {
            Some(entry) => self.add(key.as_bytes(), &entry),
            None => Ok(()),
        }
    }

    /// Adds an entry, and the inode to which it refers.
    fn add(&mut self, key: &[u8], entry: &[u8]) -> Result<()> {
        let decoded = Entry::decode(entry)?;
        let shown = match &decoded {
            Entry::Inode(inode) => {
                shown_in_snapshot(inode, self.caller).map(|inode| Entry::Inode(inode).encode())
            }
            Entry::Dir { .. } | Entry::Link { .. } => None,
        };
        let is_reduced = shown.is_some();
        let entry = shown.unwrap_or_else(|| entry.to_vec());
        self.entries.push(EncodedEntry { key: key.to_vec(), entry, is_reduced });
        match decoded {
            Entry::Inode(_) => Ok(()),
            Entry::Dir { inode } => self.add_stored(&Key::of_dir(inode)),
            Entry::Link { inode, .. } => self.add_stored(&Key::of_linked(inode)),
        }
    }
}

/// Returns whether a user may not read all parts of an inode. A user who may change the names of a
/// directory gets its extended attributes: the batch states a hash of the whole inode.
pub(crate) fn has_unreadable_parts(inode: &Inode, caller: &BatchCaller) -> bool {
    let has_parts = has_bytes(inode) || !inode.xattrs.is_empty();
    let is_dir = matches!(inode.kind(), Ok(Kind::Dir));
    has_parts && !may_read(inode, caller) && !(is_dir && caller.may_change_names(inode))
}

/// Returns whether an inode shows bytes of a file. Those of a file without content are zeros.
fn has_bytes(inode: &Inode) -> bool {
    match inode.content {
        Content::Inline(_) => true,
        Content::Empty => inode.size_bytes > 0,
        _ => false,
    }
}

/// Returns the inode for a reply about a snapshot, if the user may not read all parts of it. A
/// batch cannot change a file whose content is hidden.
fn shown_in_snapshot(inode: &Inode, caller: &BatchCaller) -> Option<Inode> {
    has_unreadable_parts(inode, caller).then(|| {
        let content = match &inode.content {
            Content::Parent { dir, name } => Content::Parent { dir: *dir, name: name.clone() },
            _ => Content::Hidden,
        };
        Inode { content, xattrs: Vec::new(), ..inode.clone() }
    })
}

/// Returns an inode of the master image without the parts that the user may not read.
pub(crate) fn shown(mut inode: Inode, caller: &BatchCaller) -> Inode {
    if !may_read(&inode, caller) {
        inode.xattrs = Vec::new();
        if has_bytes(&inode) {
            inode.content = Content::Hidden;
        }
    }
    inode
}
