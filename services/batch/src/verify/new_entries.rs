//! Entries in directories that the batch has created.

use std::collections::HashSet;
use std::hash::BuildHasher;

use quell_vfs::{Kind, Result};

use super::pass::Pass;
use super::refusal::refused;
use super::state::{NewDir, NewLinked};
use crate::entry::{Content, Entry, INLINE_BYTES_MAX, Inode};

/// The largest number of bytes of the extended attributes of an inode.
const XATTRS_BYTES_MAX: usize = 128 << 10;
/// The largest length of the target of a symbolic link, in bytes.
const TARGET_BYTES_MAX: usize = 4095;

impl Pass<'_> {
    /// Checks an entry of a directory that the batch has created, and copies it.
    pub(super) fn new_dir_entry(&mut self, dir: u64, name: &[u8], key: &[u8], value: &[u8]) -> Result<()> {
        if value.is_empty() {
            return Err(refused("an entry of a new directory is removed"));
        }
        let entry = Entry::decode(value)?;
        if name.is_empty() {
            self.new_dir_inode(dir, &entry)?;
            return match self.merged.target_of(dir) {
                Some(_) => Ok(()),
                None => self.add_dir_inode(key, value, entry),
            };
        }
        if !matches!(self.new_dirs.get(&dir), Some(NewDir { stated: Some(_), .. })) {
            return Err(refused("a new directory has no inode"));
        }
        self.new_name(dir, name, &entry)?;
        if !self.numbers.contains(entry.inode_number()) {
            // The name of an inode of the snapshot is committed with the other changes of the
            // inode.
            return Ok(());
        }
        if let Some(target) = self.merged.target_of(dir) {
            return self.merged_entry(dir, target, name, entry);
        }
        self.entries += 1;
        self.usage.add(&entry);
        self.out.add(key, value)
    }

    /// Adds the inode of a new directory, which may be in a directory of an earlier part.
    fn add_dir_inode(&mut self, key: &[u8], value: &[u8], entry: Entry) -> Result<()> {
        self.usage.add(&entry);
        if let Entry::Inode(inode) = entry
            && let Content::Parent { dir, name } = &inode.content
            && let Some(target) = self.merged.target_of(*dir)
        {
            let content = Content::Parent { dir: target, name: name.clone() };
            return self.out.add(key, &Entry::Inode(Inode { content, ..inode }).encode());
        }
        self.out.add(key, value)
    }

    fn new_dir_inode(&mut self, dir: u64, entry: &Entry) -> Result<()> {
        let Entry::Inode(inode) = entry else {
            return Err(refused("the value for the inode of a directory is not an inode"));
        };
        let Content::Parent { dir: parent, name } = &inode.content else {
            return Err(refused("the inode of a directory has no directory above"));
        };
        if inode.number != dir || inode.kind()? != Kind::Dir {
            return Err(refused("the inode of a directory has another number or kind"));
        }
        self.numbers.take(dir)?;
        self.check_limits(inode)?;
        let hash = self.name_hashes.hash_one(name);
        self.new_dirs.entry(dir).or_default().stated = Some((*parent, hash, inode.links));
        self.check_owner(inode)
    }

    /// Checks a new name in a directory.
    pub(super) fn new_name(&mut self, dir: u64, name: &[u8], entry: &Entry) -> Result<()> {
        let number = entry.inode_number();
        if !self.numbers.contains(number) {
            return self.existing_inode_named(dir, name, entry);
        }
        match entry {
            Entry::Inode(inode) => {
                let kind = inode.kind()?;
                if inode.links != 1 || kind == Kind::Dir {
                    return Err(refused("a new file has a wrong number of names"));
                }
                self.numbers.take(number)?;
                self.check_limits(inode)?;
                self.check_owner(inode)
            }
            Entry::Dir { inode } => {
                let hash = self.name_hashes.hash_one(name);
                let known = self.new_dirs.entry(*inode).or_default();
                if known.named.replace((dir, hash)).is_some() {
                    return Err(refused("a new directory has two names"));
                }
                if self.numbers.contains(dir) {
                    self.new_dirs.entry(dir).or_default().subdirs += 1;
                }
                Ok(())
            }
            Entry::Link { inode, type_bits } => {
                let linked = self.linked.entry(*inode).or_default();
                linked.names += 1;
                linked.types.insert(*type_bits);
                Ok(())
            }
        }
    }

    /// Checks a new inode with several names.
    pub(super) fn new_linked_inode(&mut self, number: u64, entry: &Entry) -> Result<()> {
        let Entry::Inode(inode) = entry else {
            return Err(refused("the value for a linked inode is not an inode"));
        };
        if inode.number != number || inode.kind()? == Kind::Dir {
            return Err(refused("a linked inode has another number or kind"));
        }
        self.numbers.take(number)?;
        self.check_limits(inode)?;
        self.check_owner(inode)?;
        let kind = inode.kind()?;
        self.linked.entry(number).or_default().stated = Some((inode.links, kind.mode_bits()));
        Ok(())
    }

    /// Checks the owner of a new inode, and notes its group.
    fn check_owner(&mut self, inode: &Inode) -> Result<()> {
        const SET_GROUP_ID: u32 = 0o2000;
        self.check_user(inode)?;
        let sets_group = inode.mode & SET_GROUP_ID != 0 && inode.kind()? != Kind::Dir;
        self.groups.insert((inode.gid, sets_group));
        Ok(())
    }

    /// Checks that a new inode belongs to the user.
    pub(super) fn check_user(&self, inode: &Inode) -> Result<()> {
        match self.submission.record.caller.owns(inode) {
            true => Ok(()),
            false => Err(refused("a new entry does not belong to the user")),
        }
    }

    /// Checks the groups of the new inodes: each is a group of the user, or the group of a
    /// directory of the image that gives its group to new entries.
    fn check_groups(&self) -> Result<()> {
        let caller = &self.submission.record.caller;
        let is_permitted = |(gid, sets_group): &(u32, bool)| {
            caller.is_in_group(*gid) || !sets_group && self.inherited_groups.contains(gid)
        };
        match caller.uid == 0 || self.groups.iter().all(is_permitted) {
            true => Ok(()),
            false => Err(refused("a new entry has a group that the user cannot give it")),
        }
    }

    /// Checks the limits of an inode that the batch has created or changed.
    pub(super) fn check_limits(&self, inode: &Inode) -> Result<()> {
        let kind = inode.kind()?;
        let is_content_permitted = match &inode.content {
            Content::Empty => kind == Kind::File,
            Content::Inline(bytes) => {
                kind == Kind::File
                    && bytes.len() <= INLINE_BYTES_MAX
                    && bytes.len() as u64 <= inode.size_bytes
            }
            Content::File(file) => {
                kind == Kind::File
                    && (file.batch, file.inode) == (self.submission.record.number, inode.number)
            }
            Content::Target(target) => {
                let fits = !target.is_empty() && target.len() <= TARGET_BYTES_MAX;
                kind == Kind::Symlink && fits && target.len() as u64 == inode.size_bytes
            }
            Content::Parent { .. } => kind == Kind::Dir,
            // Only the creation of a store adopts files.
            Content::Adopted(_) | Content::Hidden => false,
        };
        let sizes = inode.xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len());
        let are_xattrs_permitted = inode.xattrs.windows(2).all(|pair| pair[0].name < pair[1].name)
            && inode.xattrs.iter().all(|xattr| quell_vfs::check_user_xattr(kind, &xattr.name).is_ok())
            && sizes.sum::<usize>() <= XATTRS_BYTES_MAX;
        let are_times_permitted = inode.modified.1 < 1_000_000_000 && inode.changed.1 < 1_000_000_000;
        match is_content_permitted
            && are_xattrs_permitted
            && are_times_permitted
            && inode.size_bytes <= i64::MAX as u64
        {
            true => Ok(()),
            false => Err(refused("an inode exceeds a limit")),
        }
    }

    /// Checks that all new directories and inodes form a tree below directories of the image.
    pub(super) fn check_new_tree(&mut self) -> Result<()> {
        if !self.numbers.is_last_found() {
            return Err(refused("the batch has fewer inodes than it states"));
        }
        for NewLinked { names, types, stated } in self.linked.values() {
            let is_right = stated.is_some_and(|(links, type_bits)| {
                links == *names && types.iter().all(|found| *found == type_bits)
            });
            if !is_right {
                return Err(refused("a file does not have the number of names that it states"));
            }
        }
        for dir in self.new_dirs.values() {
            let NewDir { stated: Some((parent, name, links)), named: Some(named), subdirs, .. } = dir else {
                return Err(refused("a new directory has no name or no inode"));
            };
            if (*parent, *name) != *named || *links != subdirs + 2 {
                return Err(refused("a new directory is not where it states to be"));
            }
        }
        // Every directory is named once, so a directory that is not connected to the image is in a
        // cycle.
        let mut connected = HashSet::new();
        for &start in self.new_dirs.keys() {
            let mut path = vec![start];
            let mut at = start;
            while let Some(NewDir { named: Some((parent, _)), .. }) = self.new_dirs.get(&at) {
                at = *parent;
                if connected.contains(&at) || !self.new_dirs.contains_key(&at) {
                    break;
                }
                path.push(at);
                if path.len() > self.new_dirs.len() {
                    return Err(refused("new directories are below themselves"));
                }
            }
            connected.extend(path);
        }
        self.check_groups()
    }
}
