//! A tree's metadata while an index is being built: what the builder fills and the encoder reads.
//! Compact, because a tree may have tens of millions of entries: about 100 bytes an entry and its name.

use quell_backing::Stat;

/// What few entries have besides what `stat` tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Special {
    /// The number of the child's own listing in `Tree::listings`.
    Listing(u32),
    Target(Vec<u8>),
    /// Sorted by name.
    Xattrs(Vec<(Vec<u8>, Vec<u8>)>),
    /// A directory on which another file system is mounted.
    Boundary,
}

/// The children of one directory, sorted by name.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    names: Vec<u8>,
    ends: Vec<u32>,
    records: Vec<Stat>,
    /// Sorted by child once sealed.
    specials: Vec<(u32, Special)>,
    /// Why the directory could not be listed, as an error number.
    pub unknown: Option<u32>,
}

impl Listing {
    /// Adds a child; `name` must sort after all that are there.
    pub fn push(&mut self, name: &[u8], record: Stat) -> u32 {
        debug_assert!(self.records.is_empty() || self.name(self.records.len() as u32 - 1) < name);
        self.names.extend_from_slice(name);
        self.ends.push(self.names.len() as u32);
        self.records.push(record);
        self.records.len() as u32 - 1
    }

    /// Adds what is special of a child that was pushed before.
    pub fn push_special(&mut self, child: u32, special: Special) {
        self.specials.push((child, special));
    }

    pub fn len(&self) -> u32 {
        self.records.len() as u32
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn name(&self, child: u32) -> &[u8] {
        let child = child as usize;
        let start = if child == 0 { 0 } else { self.ends[child - 1] };
        &self.names[start as usize..self.ends[child] as usize]
    }

    pub fn record(&self, child: u32) -> &Stat {
        &self.records[child as usize]
    }

    pub(crate) fn set_record(&mut self, child: u32, record: Stat) {
        self.records[child as usize] = record;
    }

    pub fn specials(&self, child: u32) -> impl Iterator<Item = &Special> {
        let start = self.specials.partition_point(|(c, _)| *c < child);
        self.specials[start..].iter().take_while(move |(c, _)| *c == child).map(|(_, s)| s)
    }

    /// Ends the adding: specials can be looked up from now on.
    pub fn seal(&mut self) {
        self.specials.sort_by_key(|(child, _)| *child);
        self.names.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.records.shrink_to_fit();
        self.specials.shrink_to_fit();
    }
}

/// A whole tree: the root's record, then listings that name one another by number.
#[derive(Debug, Clone)]
pub struct Tree {
    /// Absolute.
    pub root_path: Vec<u8>,
    pub root: Stat,
    pub root_specials: Vec<Special>,
    /// Listing 0 is the root's.
    pub listings: Vec<Listing>,
    /// Sorted by path.
    pub problems: Vec<crate::image::Problem>,
    pub options: Vec<String>,
    pub xattrs_skipped: bool,
}
