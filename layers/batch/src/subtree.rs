//! A directory of a name space as the root of another one, and the paths of directories.

use std::sync::Arc;

use quell_batch_service::{
    Content, DEPTH_MAX, FoundNode, Inode, InodeChange, NameSpace, NewNode, Place, Quota, ROOT, Removed,
    Renamed,
};
use quell_vfs::{Error, ErrorKind, Kind, NewEntry, Rename, Result, Time};

/// Returns the tree below a directory of a name space.
pub(crate) fn tree_below(whole: Arc<dyn NameSpace>, top: u64) -> Arc<dyn NameSpace> {
    match top {
        ROOT => whole,
        top => Arc::new(Subtree::new(whole, top)),
    }
}

/// Returns the inode number of the directory at a path. Errors: `NotFound` or `NotADirectory` if
/// there is no such directory.
pub(crate) fn dir_at(names: &dyn NameSpace, path: &[u8]) -> Result<u64> {
    let mut dir = ROOT;
    for name in path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")) {
        let failed = |kind| Error::new(kind, "find the directory in the store", path);
        let found = names.lookup(dir, name)?.ok_or_else(|| failed(ErrorKind::NotFound))?;
        if found.inode.kind()? != Kind::Dir {
            return Err(failed(ErrorKind::NotADirectory));
        }
        dir = found.inode.number;
    }
    Ok(dir)
}

/// Returns the length of the part of a path that names an existing directory.
pub(crate) fn existing_part(names: &dyn NameSpace, path: &[u8]) -> Result<usize> {
    let (mut dir, mut at) = (ROOT, 0);
    for name in path.split(|byte| *byte == b'/') {
        if !name.is_empty() && name != b"." {
            match names.lookup(dir, name)? {
                Some(found) if found.inode.kind()? == Kind::Dir => dir = found.inode.number,
                _ => break,
            }
        }
        at += name.len() + 1;
    }
    Ok(at.min(path.len()))
}

/// Returns the path of a directory, which begins with a slash unless it is the root directory,
/// whose path is empty. Errors: `Stale` if the directory was removed; `Damaged` if it is below
/// itself.
pub(crate) fn path_of(names: &dyn NameSpace, dir: u64) -> Result<Vec<u8>> {
    let (mut parts, mut at) = (Vec::new(), dir);
    while at != ROOT {
        let (above, name) = names.parent(at)?;
        parts.push([b"/", &name[..]].concat());
        check_depth(parts.len(), dir)?;
        at = above;
    }
    parts.reverse();
    Ok(parts.concat())
}

/// Checks the number of directories above the directory `dir`. Only a cycle can have too many.
pub(crate) fn check_depth(dirs: usize, dir: u64) -> Result<()> {
    match dirs <= DEPTH_MAX {
        true => Ok(()),
        false => {
            let source = Some("the directory is below itself".into());
            Err(Error { source, ..Error::new(ErrorKind::Damaged, "find the path of", dir.to_string()) })
        }
    }
}

/// The tree below a directory. The directory has the inode number of the root.
struct Subtree {
    whole: Arc<dyn NameSpace>,
    /// The inode number of the directory in the whole name space.
    top: u64,
}

impl Subtree {
    fn new(whole: Arc<dyn NameSpace>, top: u64) -> Subtree {
        Subtree { whole, top }
    }

    /// Returns the inode number in the whole name space.
    fn outer(&self, number: u64) -> u64 {
        if number == ROOT { self.top } else { number }
    }

    /// Returns the inode number in the subtree.
    fn inner(&self, number: u64) -> u64 {
        if number == self.top { ROOT } else { number }
    }

    fn outer_place(&self, place: &Place) -> Place {
        match place {
            Place::Dir(dir) => Place::Dir(self.outer(*dir)),
            Place::Name { dir, name } => Place::Name { dir: self.outer(*dir), name: name.clone() },
            Place::Linked(number) => Place::Linked(*number),
        }
    }

    fn inner_place(&self, place: Place) -> Place {
        match place {
            Place::Dir(dir) => Place::Dir(self.inner(dir)),
            Place::Name { dir, name } => Place::Name { dir: self.inner(dir), name },
            Place::Linked(number) => Place::Linked(number),
        }
    }

    fn inner_inode(&self, mut inode: Inode) -> Inode {
        if let Content::Parent { dir, name } = &mut inode.content {
            *dir = self.inner(*dir);
            if inode.number == self.top {
                (*dir, *name) = (ROOT, Vec::new());
            }
        }
        Inode { number: self.inner(inode.number), ..inode }
    }

    fn inner_found(&self, found: FoundNode) -> FoundNode {
        FoundNode { place: self.inner_place(found.place), inode: self.inner_inode(found.inode) }
    }

    fn inner_removed(&self, removed: Removed) -> Removed {
        let place = removed.place.map(|place| self.inner_place(place));
        Removed { inode: self.inner_inode(removed.inode), place }
    }
}

impl NameSpace for Subtree {
    fn is_shared(&self) -> bool {
        self.whole.is_shared()
    }

    fn quota(&self) -> Result<Option<Quota>> {
        self.whole.quota()
    }

    fn lookup(&self, dir: u64, name: &[u8]) -> Result<Option<FoundNode>> {
        Ok(self.whole.lookup(self.outer(dir), name)?.map(|found| self.inner_found(found)))
    }

    fn lookup_on_path(&self, dir: u64, name: &[u8]) -> Result<Option<FoundNode>> {
        Ok(self.whole.lookup_on_path(self.outer(dir), name)?.map(|found| self.inner_found(found)))
    }

    fn check_write(&self, (number, place): (u64, &Place)) -> Result<()> {
        self.whole.check_write((self.outer(number), &self.outer_place(place)))
    }

    fn check_open(&self) -> Result<()> {
        self.whole.check_open()
    }

    fn find(&self, number: u64, place: &Place) -> Result<FoundNode> {
        let found = self.whole.find(self.outer(number), &self.outer_place(place))?;
        Ok(self.inner_found(found))
    }

    fn parent(&self, dir: u64) -> Result<(u64, Vec<u8>)> {
        if dir == ROOT {
            return Ok((ROOT, Vec::new()));
        }
        let (above, name) = self.whole.parent(dir)?;
        Ok((self.inner(above), name))
    }

    fn list(&self, dir: u64, after: &[u8], visit: &mut dyn FnMut(&[u8], u64, Kind) -> bool) -> Result<()> {
        // The directory itself is not an entry of the tree below it.
        self.whole.list(self.outer(dir), after, visit)
    }

    fn create(&self, dir: u64, name: &[u8], node: NewNode, new: NewEntry, now: Time) -> Result<FoundNode> {
        Ok(self.inner_found(self.whole.create(self.outer(dir), name, node, new, now)?))
    }

    fn link(&self, (number, place): (u64, &Place), dir: u64, name: &[u8], now: Time) -> Result<FoundNode> {
        let node = (self.outer(number), &self.outer_place(place));
        Ok(self.inner_found(self.whole.link(node, self.outer(dir), name, now)?))
    }

    fn remove(&self, dir: u64, name: &[u8], now: Time) -> Result<Removed> {
        Ok(self.inner_removed(self.whole.remove(self.outer(dir), name, now)?))
    }

    fn remove_dir(&self, dir: u64, name: &[u8], now: Time) -> Result<Removed> {
        Ok(self.inner_removed(self.whole.remove_dir(self.outer(dir), name, now)?))
    }

    fn rename(
        &self,
        (from_dir, from): (u64, &[u8]),
        (to_dir, to): (u64, &[u8]),
        mode: Rename,
        now: Time,
    ) -> Result<Renamed> {
        let (from, to) = ((self.outer(from_dir), from), (self.outer(to_dir), to));
        let renamed = self.whole.rename(from, to, mode, now)?;
        Ok(Renamed { replaced: renamed.replaced.map(|removed| self.inner_removed(removed)), ..renamed })
    }

    fn change(&self, (number, place): (u64, &Place), change: &InodeChange, now: Time) -> Result<Inode> {
        let node = (self.outer(number), &self.outer_place(place));
        Ok(self.inner_inode(self.whole.change(node, change, now)?))
    }

    fn sync(&self) -> Result<()> {
        self.whole.sync()
    }
}
