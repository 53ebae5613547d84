//! The rules of a name space: look-ups, creations, removals, renames and links, as POSIX defines
//! them. They read entries and compute the changes; [`Entries`] stores them.
//!
//! The primary server applies these rules to the master image, a private name space applies them to
//! its own changes over a snapshot (BatchFS, section II-C: the private server reuses the logic of
//! the primary server).

use quell_vfs::{Error, ErrorKind, Kind, NAME_BYTES_MAX, NewEntry, Rename, Result, Time, check_name, errno};
use serde::{Deserialize, Serialize};

use crate::change::InodeChange;
use crate::entries::{Entries, KeyChange};
use crate::entry::{Content, DEPTH_MAX, Entry, Inode, LINKED, ROOT, Timestamp, damaged};
use crate::key::Key;

/// The largest number of names of a file.
const LINKS_MAX: u32 = 65_000;

/// The place where the inode of a node is stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Place {
    /// In the directory with this inode number: the inode of the directory itself.
    Dir(u64),
    /// At this name of a directory: a node with one name, other than a directory.
    Name {
        /// The inode number of the directory.
        dir: u64,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Among the inodes of files that have several names, or that were renamed.
    Linked(u64),
}

impl Place {
    fn key(&self) -> Key {
        match self {
            Place::Dir(dir) => Key::of_dir(*dir),
            Place::Name { dir, name } => Key::of_name(*dir, name),
            Place::Linked(inode) => Key::of_linked(*inode),
        }
    }
}

/// A node that was found or created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundNode {
    /// The place of its inode.
    pub place: Place,
    /// The inode.
    pub inode: Inode,
}

/// A node of which a name was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// The inode after the removal. `links` is 0 if no name is left.
    pub inode: Inode,
    /// The place of the inode if it has names left.
    pub place: Option<Place>,
}

/// The nodes that a rename has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renamed {
    /// The inode number of the node that has the new name.
    pub moved: u64,
    /// The inode number of the node that has the old name, if the two have exchanged their names.
    pub exchanged: Option<u64>,
    /// The node whose name was replaced.
    pub replaced: Option<Removed>,
}

/// The kind and the content of a new node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewNode {
    /// An empty regular file.
    File,
    /// An empty directory.
    Dir,
    /// A symbolic link to this target.
    Symlink(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// A name space with the rules of POSIX, over entries that are stored elsewhere.
#[derive(Debug)]
pub struct Names<E>(pub E);

impl<E: Entries> Names<E> {
    /// Returns the root directory of a new name space, which `apply` must store first.
    pub fn new_root(new: NewEntry, now: Time) -> KeyChange {
        let content = Content::Parent { dir: ROOT, name: Vec::new() };
        let inode = Inode { links: 2, ..new_inode(ROOT, Kind::Dir, new, content, now) };
        (Key::of_dir(ROOT), Some(Entry::Inode(inode)))
    }

    /// Returns the node of a name, or `None` if there is no such name.
    ///
    /// # Errors
    /// `NotADirectory` if `dir` is not a directory, or was removed; `NameTooLong`.
    pub fn lookup(&self, dir: u64, name: &[u8]) -> Result<Option<FoundNode>> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, "look up", name));
        }
        if check_name(name).is_err() {
            return Ok(None);
        }
        match self.0.get(&Key::of_name(dir, name))? {
            Some(entry) => self.found(dir, name, entry).map(Some),
            None => Ok(None),
        }
    }

    /// Returns a node and its place. `place` is the place where it was found before. Another client
    /// may have renamed the node, or given it another name, since.
    ///
    /// # Errors
    /// `Stale` if the node was removed.
    pub fn find(&self, number: u64, place: &Place) -> Result<FoundNode> {
        let place = match place {
            Place::Name { .. } => match self.0.get(&place.key())? {
                Some(Entry::Inode(inode)) if inode.number == number => {
                    return Ok(FoundNode { place: place.clone(), inode });
                }
                _ => Place::Linked(number),
            },
            Place::Dir(_) => Place::Dir(number),
            Place::Linked(_) => Place::Linked(number),
        };
        let inode = self.inode(&place)?;
        Ok(FoundNode { place, inode })
    }

    /// Returns the inode at a place. After a change by another client, it may belong to another
    /// node than before.
    ///
    /// # Errors
    /// `Stale` if there is no inode at the place.
    pub fn inode(&self, place: &Place) -> Result<Inode> {
        match self.0.get(&place.key())? {
            Some(Entry::Inode(inode)) => Ok(inode),
            _ => Err(Error::new(ErrorKind::Stale, "read the attributes of", "")),
        }
    }

    /// Returns the directory that contains a directory, and its name there.
    ///
    /// # Errors
    /// `Stale` if the directory was removed.
    pub fn parent(&self, dir: u64) -> Result<(u64, Vec<u8>)> {
        match self.inode(&Place::Dir(dir))?.content {
            Content::Parent { dir, name } => Ok((dir, name)),
            _ => Err(damaged("a directory")),
        }
    }

    /// Passes the names of a directory after `after` to `visit`, in their order, with their inode
    /// numbers and kinds, until it returns false.
    ///
    /// # Errors
    /// The errors of the stored entries.
    pub fn list(
        &self,
        dir: u64,
        after: &[u8],
        visit: &mut dyn FnMut(&[u8], u64, Kind) -> bool,
    ) -> Result<()> {
        let mut failure = None;
        self.0.list(dir, after, &mut |name, entry| match entry.kind() {
            Ok(kind) => visit(name, entry.inode_number(), kind),
            Err(error) => {
                failure = Some(error);
                false
            }
        })?;
        failure.map_or(Ok(()), Err)
    }

    /// Creates a node.
    ///
    /// # Errors
    /// `Exists`; `NotFound` if the directory was removed; the errors of `apply`.
    pub fn create(
        &mut self,
        dir: u64,
        name: &[u8],
        node: NewNode,
        new: NewEntry,
        now: Time,
    ) -> Result<FoundNode> {
        check_name(name)?;
        let mut parent = self.dir(dir, name)?;
        let key = Key::of_name(dir, name);
        if self.0.get(&key)?.is_some() {
            return Err(Error::new(ErrorKind::Exists, "create", name));
        }
        let new = inherit(new, &parent, matches!(node, NewNode::Dir));
        let number = self.0.new_inode()?;
        let (inode, place) = match node {
            NewNode::File => (new_inode(number, Kind::File, new, Content::Empty, now), None),
            NewNode::Dir => {
                let content = Content::Parent { dir, name: name.to_vec() };
                (new_inode(number, Kind::Dir, new, content, now), Some(Place::Dir(number)))
            }
            NewNode::Symlink(target) => {
                let size_bytes = target.len() as u64;
                let inode = new_inode(number, Kind::Symlink, new, Content::Target(target), now);
                (Inode { size_bytes, mode: Kind::Symlink.mode_bits() | 0o777, ..inode }, None)
            }
        };
        let mut changes = Vec::with_capacity(3);
        match &place {
            Some(place) => {
                parent.links += 1;
                changes.push((key, Some(Entry::Dir { inode: number })));
                changes.push((place.key(), Some(Entry::Inode(inode.clone()))));
            }
            None => changes.push((key, Some(Entry::Inode(inode.clone())))),
        }
        changes.push(touched(dir, parent, now));
        self.0.apply(changes)?;
        let place = place.unwrap_or_else(|| Place::Name { dir, name: name.to_vec() });
        Ok(FoundNode { place, inode })
    }

    /// Gives the file `number` another name, and returns it at its new place. `place` is as for
    /// [`find`](Self::find).
    ///
    /// # Errors
    /// `Exists`; `Os(EPERM)` for a directory; `Os(EMLINK)` for a file with 65,000 names; `Stale` if
    /// the file was removed.
    pub fn link(
        &mut self,
        (number, place): (u64, &Place),
        dir: u64,
        name: &[u8],
        now: Time,
    ) -> Result<FoundNode> {
        check_name(name)?;
        let FoundNode { place, mut inode } = self.find(number, place)?;
        if inode.kind()? == Kind::Dir {
            return Err(Error::new(ErrorKind::Os(errno::EPERM), "link", name));
        }
        if inode.links >= LINKS_MAX {
            return Err(Error::new(ErrorKind::Os(errno::EMLINK), "link", name));
        }
        let parent = self.dir(dir, name)?;
        let key = Key::of_name(dir, name);
        if self.0.get(&key)?.is_some() {
            return Err(Error::new(ErrorKind::Exists, "link", name));
        }
        inode.links += 1;
        inode.changed = now.into();
        let link = Entry::Link { inode: inode.number, type_bits: inode.kind()?.mode_bits() };
        let new_place = Place::Linked(inode.number);
        let mut changes = vec![(key, Some(link.clone())), touched(dir, parent, now)];
        if let Place::Name { .. } = place {
            changes.push((place.key(), Some(link)));
        }
        changes.push((new_place.key(), Some(Entry::Inode(inode.clone()))));
        self.0.apply(changes)?;
        Ok(FoundNode { place: new_place, inode })
    }

    /// Removes a name of a node other than a directory.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`.
    pub fn remove(&mut self, dir: u64, name: &[u8], now: Time) -> Result<Removed> {
        let entry = self.existing(dir, name, "remove")?;
        if let Entry::Dir { .. } = entry {
            return Err(Error::new(ErrorKind::IsADirectory, "remove", name));
        }
        let parent = self.dir(dir, name)?;
        let (removed, mut changes) = self.without_name(dir, name, entry, now)?;
        changes.push(touched(dir, parent, now));
        self.0.apply(changes)?;
        Ok(removed)
    }

    /// Removes an empty directory, and returns its inode.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NotEmpty`.
    pub fn remove_dir(&mut self, dir: u64, name: &[u8], now: Time) -> Result<Removed> {
        let Entry::Dir { inode } = self.existing(dir, name, "remove")? else {
            return Err(Error::new(ErrorKind::NotADirectory, "remove", name));
        };
        self.check_empty(inode, name)?;
        let mut parent = self.dir(dir, name)?;
        parent.links = parent.links.saturating_sub(1);
        let mut gone = self.inode(&Place::Dir(inode))?;
        (gone.links, gone.changed) = (0, now.into());
        let changes =
            vec![(Key::of_name(dir, name), None), (Key::of_dir(inode), None), touched(dir, parent, now)];
        self.0.apply(changes)?;
        Ok(Removed { inode: gone, place: None })
    }

    /// Renames an entry.
    ///
    /// # Errors
    /// As for [`Writable::rename`](quell_vfs::Writable::rename).
    pub fn rename(
        &mut self,
        (from_dir, from): (u64, &[u8]),
        (to_dir, to): (u64, &[u8]),
        mode: Rename,
        now: Time,
    ) -> Result<Renamed> {
        check_name(to)?;
        let moved = self.existing(from_dir, from, "rename")?;
        let mut old_parent = self.dir(from_dir, from)?;
        let mut new_parent = self.dir(to_dir, to)?;
        let target = self.0.get(&Key::of_name(to_dir, to))?;
        match (&target, mode) {
            (Some(_), Rename::Keep) => return Err(Error::new(ErrorKind::Exists, "rename", to)),
            (None, Rename::Exchange) => return Err(Error::new(ErrorKind::NotFound, "rename", to)),
            _ => {}
        }
        if target.as_ref().is_some_and(|target| target.inode_number() == moved.inode_number()) {
            return Ok(Renamed { moved: moved.inode_number(), exchanged: None, replaced: None });
        }
        if let Entry::Dir { inode } = moved {
            self.check_not_below(inode, to_dir, to)?;
        }
        let mut changes = Vec::with_capacity(6);
        let mut replaced = None;
        let mut back = None;
        match target {
            Some(target) if mode == Rename::Exchange => {
                if let Entry::Dir { inode } = target {
                    self.check_not_below(inode, from_dir, from)?;
                }
                back = Some(target);
            }
            Some(target) => {
                let (gone, removal) = self.replaced(&moved, (to_dir, to), target, now)?;
                if gone.inode.kind()? == Kind::Dir {
                    new_parent.links = new_parent.links.saturating_sub(1);
                }
                changes.extend(removal);
                replaced = Some(gone);
            }
            None => {}
        }
        let dirs = |entry: Option<&Entry>| u32::from(matches!(entry, Some(Entry::Dir { .. })));
        let (leave, come) = (dirs(Some(&moved)), dirs(back.as_ref()));
        if from_dir != to_dir {
            old_parent.links = (old_parent.links + come).saturating_sub(leave);
            new_parent.links = (new_parent.links + leave).saturating_sub(come);
        }
        let (number, exchanged) = (moved.inode_number(), back.as_ref().map(Entry::inode_number));
        changes.extend(self.moved_to(moved, (to_dir, to), now)?);
        match back {
            Some(back) => changes.extend(self.moved_to(back, (from_dir, from), now)?),
            None => changes.push((Key::of_name(from_dir, from), None)),
        }
        if from_dir != to_dir {
            changes.push(touched(from_dir, old_parent, now));
        }
        changes.push(touched(to_dir, new_parent, now));
        self.0.apply(changes)?;
        Ok(Renamed { moved: number, exchanged, replaced })
    }

    /// Changes the inode `number`, and returns the changed one. `place` is as for
    /// [`find`](Self::find).
    ///
    /// # Errors
    /// `Stale` if the node was removed; the errors of [`InodeChange::apply`].
    pub fn change(
        &mut self,
        (number, place): (u64, &Place),
        change: &InodeChange,
        now: Time,
    ) -> Result<Inode> {
        let FoundNode { place, mut inode } = self.find(number, place)?;
        change.apply(&mut inode, now)?;
        self.0.apply(vec![(place.key(), Some(Entry::Inode(inode.clone())))])?;
        Ok(inode)
    }

    fn found(&self, dir: u64, name: &[u8], entry: Entry) -> Result<FoundNode> {
        let place = match entry {
            Entry::Inode(inode) => {
                return Ok(FoundNode { place: Place::Name { dir, name: name.to_vec() }, inode });
            }
            Entry::Dir { inode } => Place::Dir(inode),
            Entry::Link { inode, .. } => Place::Linked(inode),
        };
        let inode = self.inode(&place)?;
        Ok(FoundNode { place, inode })
    }

    /// Returns the inode of a directory in which an entry is changed. Errors: `NotFound` if it was
    /// removed.
    fn dir(&self, dir: u64, name: &[u8]) -> Result<Inode> {
        match self.0.get(&Key::of_dir(dir))? {
            Some(Entry::Inode(inode)) if dir != LINKED => Ok(inode),
            _ => Err(Error::new(ErrorKind::NotFound, "find the directory of", name)),
        }
    }

    fn existing(&self, dir: u64, name: &[u8], operation: &'static str) -> Result<Entry> {
        check_name(name)?;
        let entry = self.0.get(&Key::of_name(dir, name))?;
        entry.ok_or_else(|| Error::new(ErrorKind::NotFound, operation, name))
    }

    fn check_empty(&self, dir: u64, name: &[u8]) -> Result<()> {
        let mut is_empty = true;
        self.0.list(dir, b"", &mut |_, _| {
            is_empty = false;
            false
        })?;
        match is_empty {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::NotEmpty, "remove", name)),
        }
    }

    /// Checks that the directory `moved` is neither `dir` nor above it.
    fn check_not_below(&self, moved: u64, mut dir: u64, name: &[u8]) -> Result<()> {
        for _ in 0..DEPTH_MAX {
            if dir == moved {
                return Err(Error::new(ErrorKind::InvalidInput, "move a directory below itself as", name));
            }
            if dir == ROOT {
                return Ok(());
            }
            dir = self.parent(dir)?.0;
        }
        Err(damaged("the path of a directory"))
    }

    /// Returns the changes that remove a name of a node other than a directory.
    fn without_name(
        &self,
        dir: u64,
        name: &[u8],
        entry: Entry,
        now: Time,
    ) -> Result<(Removed, Vec<KeyChange>)> {
        let FoundNode { place, mut inode } = self.found(dir, name, entry)?;
        inode.links = inode.links.saturating_sub(1);
        inode.changed = now.into();
        let mut changes = vec![(Key::of_name(dir, name), None)];
        let mut left = None;
        if let Place::Linked(_) = place {
            // The inode stays in its place when one name is left, so that no search for that name
            // is needed.
            let rest = (inode.links > 0).then(|| Entry::Inode(inode.clone()));
            left = rest.is_some().then(|| place.clone());
            changes.push((place.key(), rest));
        }
        Ok((Removed { inode, place: left }, changes))
    }

    /// Returns the changes that remove the entry that a rename replaces.
    fn replaced(
        &self,
        moved: &Entry,
        (dir, name): (u64, &[u8]),
        target: Entry,
        now: Time,
    ) -> Result<(Removed, Vec<KeyChange>)> {
        match (moved, &target) {
            (Entry::Dir { .. }, Entry::Dir { inode }) => {
                self.check_empty(*inode, name)?;
                let mut gone = self.inode(&Place::Dir(*inode))?;
                (gone.links, gone.changed) = (0, now.into());
                Ok((Removed { inode: gone, place: None }, vec![(Key::of_dir(*inode), None)]))
            }
            (Entry::Dir { .. }, _) => Err(Error::new(ErrorKind::NotADirectory, "rename", name)),
            (_, Entry::Dir { .. }) => Err(Error::new(ErrorKind::IsADirectory, "rename", name)),
            _ => {
                let (removed, mut changes) = self.without_name(dir, name, target, now)?;
                changes.remove(0); // the name itself gets its new entry
                Ok((removed, changes))
            }
        }
    }

    /// Returns the changes that store a moved entry at its new name.
    fn moved_to(&self, entry: Entry, (dir, name): (u64, &[u8]), now: Time) -> Result<Vec<KeyChange>> {
        let changed = Timestamp::from(now);
        let mut changes = Vec::with_capacity(2);
        let entry = match entry {
            Entry::Inode(inode) if E::IS_SHARED => {
                let link = Entry::Link { inode: inode.number, type_bits: inode.kind()?.mode_bits() };
                let inode = Inode { changed, ..inode };
                changes.push((Key::of_linked(inode.number), Some(Entry::Inode(inode))));
                link
            }
            Entry::Inode(inode) => Entry::Inode(Inode { changed, ..inode }),
            Entry::Dir { inode: number } => {
                let inode = self.inode(&Place::Dir(number))?;
                let content = Content::Parent { dir, name: name.to_vec() };
                let inode = Inode { changed, content, ..inode };
                changes.push((Key::of_dir(number), Some(Entry::Inode(inode))));
                entry
            }
            Entry::Link { inode: number, .. } => {
                let inode = Inode { changed, ..self.inode(&Place::Linked(number))? };
                changes.push((Key::of_linked(number), Some(Entry::Inode(inode))));
                entry
            }
        };
        changes.push((Key::of_name(dir, name), Some(entry)));
        Ok(changes)
    }
}

/// Returns the attributes of a new entry: its directory may determine its group and set-group-ID
/// bit.
fn inherit(new: NewEntry, parent: &Inode, is_dir: bool) -> NewEntry {
    const SET_GROUP_ID: u32 = 0o2000;
    if parent.mode & SET_GROUP_ID == 0 {
        return new;
    }
    let bit = if is_dir { SET_GROUP_ID } else { 0 };
    NewEntry { permissions: new.permissions | bit, gid: parent.gid, ..new }
}

fn new_inode(number: u64, kind: Kind, new: NewEntry, content: Content, now: Time) -> Inode {
    Inode {
        number,
        mode: kind.mode_bits() | new.permissions & 0o7777,
        uid: new.uid,
        gid: new.gid,
        links: if kind == Kind::Dir { 2 } else { 1 },
        size_bytes: 0,
        modified: now.into(),
        changed: now.into(),
        content,
        xattrs: Vec::new(),
    }
}

/// Returns the change that stores a directory whose names have changed.
fn touched(dir: u64, inode: Inode, now: Time) -> KeyChange {
    let inode = Inode { modified: now.into(), changed: now.into(), ..inode };
    (Key::of_dir(dir), Some(Entry::Inode(inode)))
}

#[cfg(test)]
#[path = "names_test.rs"]
mod tests;
