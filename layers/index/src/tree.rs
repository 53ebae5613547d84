//! A tree's metadata while an index is built: the builder fills it, the encoder reads it. It is
//! compact, because a tree may have tens of millions of entries: about 100 bytes for an entry and
//! its name.

use quell_posix::Stat;

/// Properties of an entry that stat(2) does not return. Few entries have them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Special {
    /// The index of the child's own listing in `Tree::listings`.
    Listing(u32),
    /// The target of a symbolic link.
    Target(Vec<u8>),
    /// Sorted by name.
    Xattrs(Vec<(Vec<u8>, Vec<u8>)>),
    /// The entry is a directory on which another file system is mounted.
    Boundary,
}

/// The children of one directory, sorted by name.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    names: Vec<u8>,
    ends: Vec<u32>,
    records: Vec<Stat>,
    /// Sorted by child after `seal`.
    specials: Vec<(u32, Special)>,
    /// The error number, if the directory could not be listed.
    pub unknown: Option<u32>,
}

impl Listing {
    /// Adds a child; `name` must sort after all names in the listing.
    pub fn push(&mut self, name: &[u8], record: Stat) -> u32 {
        debug_assert!(self.records.is_empty() || self.name(self.records.len() as u32 - 1) < name);
        self.names.extend_from_slice(name);
        self.ends.push(self.names.len() as u32);
        self.records.push(record);
        self.records.len() as u32 - 1
    }

    /// Adds a special of a child that was added before.
    pub fn push_special(&mut self, child: u32, special: Special) {
        self.specials.push((child, special));
    }

    /// Returns the number of children.
    pub fn len(&self) -> u32 {
        self.records.len() as u32
    }

    /// Returns whether there are no children.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the name of a child.
    pub fn name(&self, child: u32) -> &[u8] {
        let child = child as usize;
        let start = if child == 0 { 0 } else { self.ends[child - 1] };
        &self.names[start as usize..self.ends[child] as usize]
    }

    /// Returns the metadata of a child.
    pub fn record(&self, child: u32) -> &Stat {
        &self.records[child as usize]
    }

    pub(crate) fn set_record(&mut self, child: u32, record: Stat) {
        self.records[child as usize] = record;
    }

    /// Returns the specials of a child.
    pub fn specials(&self, child: u32) -> impl Iterator<Item = &Special> {
        let start = self.specials.partition_point(|(c, _)| *c < child);
        self.specials[start..].iter().take_while(move |(c, _)| *c == child).map(|(_, s)| s)
    }

    /// Completes the listing: specials can be looked up from now on.
    pub fn seal(&mut self) {
        self.specials.sort_by_key(|(child, _)| *child);
        self.names.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.records.shrink_to_fit();
        self.specials.shrink_to_fit();
    }
}

/// A complete tree: the root's record, and listings that refer to each other by index.
#[derive(Debug, Clone)]
pub struct Tree {
    /// The absolute path of the root.
    pub root_path: Vec<u8>,
    /// The metadata of the root.
    pub root: Stat,
    /// The specials of the root.
    pub root_specials: Vec<Special>,
    /// Listing 0 is the root's.
    pub listings: Vec<Listing>,
    /// Sorted by path.
    pub problems: Vec<crate::image::Problem>,
    /// The lines of the OPTIONS section.
    pub options: Vec<String>,
    /// Whether extended attributes were not read.
    pub xattrs_skipped: bool,
}
