//! The entries of an image, as a check reads them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use quell_vfs::{Kind, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::problem::{Checked, Problem, ProblemKind};
use crate::entry::{Content, Entry, Inode, LINKED, ROOT};
use crate::image::Image;
use crate::key::split;
use crate::usage::{Usage, UsageChanges, UsageOfUsers};

/// The directories and files of an image, as its entries describe them.
#[derive(Default)]
pub(super) struct Scan {
    pub(super) dirs: BTreeMap<u64, Dir>,
    /// The files whose inodes are in the directory of linked inodes.
    pub(super) linked: BTreeMap<u64, Linked>,
    /// The names of files that are not linked inodes, but state another number of links than 1.
    pub(super) wrong_links: Vec<(u64, Vec<u8>)>,
    /// The second and later names of directories, with the inode numbers of the directories.
    pub(super) second_names: Vec<(u64, (u64, Vec<u8>))>,
    /// The largest inode number.
    pub(super) last_inode: u64,
    /// The owner and the group of the first inode.
    pub(super) owner: Option<(u32, u32)>,
    numbers: HashSet<u64>,
    /// The use of users by the entries.
    usage: UsageChanges,
}

/// A directory.
#[derive(Default)]
pub(super) struct Dir {
    /// The number of the parent directory and the hash of the name, as the inode states them, and
    /// the stated number of links.
    pub(super) stated: Option<((u64, u64), u32)>,
    /// The number of the parent directory, and the name there.
    pub(super) named: Option<(u64, Vec<u8>)>,
    /// The number of directories that have a name in it.
    pub(super) subdirs: u32,
}

/// A file in the directory of linked inodes.
#[derive(Default)]
pub(super) struct Linked {
    /// The number of links that its inode states.
    pub(super) stated: Option<u32>,
    /// The number of its names.
    pub(super) names: u32,
}

/// Returns a parent directory and the hash of a name in it, in the form of `Dir::stated`.
pub(super) fn place(dir: u64, name: &[u8]) -> (u64, u64) {
    (dir, xxh3_64(name))
}

impl Scan {
    /// Reads all entries.
    pub(super) fn read(&mut self, image: &Image, report: &mut dyn FnMut(&Problem)) -> Result<()> {
        self.dirs.entry(ROOT).or_default();
        let mut entries = image.entries()?;
        while let Some((key, value)) = entries.next()? {
            if value.is_empty() {
                continue;
            }
            let Some((dir, name)) = split(key) else {
                let detail = "the key is too short".to_owned();
                report(&Problem::of_entry(ProblemKind::BadEntry, 0, key, detail));
                continue;
            };
            let noted = match Entry::decode(value) {
                Ok(entry) => {
                    self.usage.add(&entry);
                    self.note(dir, name, &entry)
                }
                Err(_) => Err((ProblemKind::BadEntry, "the bytes are not an encoded entry".to_owned())),
            };
            if let Err((kind, detail)) = noted {
                report(&Problem::of_entry(kind, dir, name, detail));
            }
        }
        Ok(())
    }

    /// Reports each user whose counted use differs from the use by the entries. Returns whether
    /// all counts are right.
    pub(super) fn compare_usage(&self, counted: &UsageOfUsers, report: &mut dyn FnMut(&Problem)) -> bool {
        let of_entries: UsageOfUsers = self.usage.applied_to(&UsageOfUsers::default()).into_iter().collect();
        let users: BTreeSet<u32> = counted.iter().chain(of_entries.iter()).map(|(uid, _)| uid).collect();
        for uid in users {
            let (stated, found) = (counted.of(uid), of_entries.of(uid));
            if stated != found {
                let Usage { inodes, bytes } = stated;
                let detail = format!(
                    "{inodes} inodes and {bytes} bytes are counted for user {uid}, and the entries have {} inodes \
                     and {} bytes",
                    found.inodes, found.bytes
                );
                report(&Problem { kind: ProblemKind::WrongUsage, entry: None, detail });
            }
        }
        counted == &of_entries
    }

    pub(super) fn checked(&self) -> Checked {
        let dirs = self.dirs.values().filter(|dir| dir.stated.is_some()).count() as u64;
        Checked { dirs, files: self.numbers.len() as u64 - dirs }
    }

    fn note(&mut self, dir: u64, name: &[u8], entry: &Entry) -> Result<(), (ProblemKind, String)> {
        if let Entry::Inode(inode) = entry {
            self.owner.get_or_insert((inode.uid, inode.gid));
        }
        let bad = |reason: &str| Err((ProblemKind::BadEntry, reason.to_owned()));
        if dir == LINKED {
            return match (entry, name.try_into().map(u64::from_be_bytes)) {
                (Entry::Inode(inode), Ok(number)) if number == inode.number && is_file(inode) => {
                    self.linked.entry(number).or_default().stated = Some(inode.links);
                    self.number(number)
                }
                _ => bad("it is not the inode of a file with this number"),
            };
        }
        let in_dir = self.dirs.entry(dir).or_default();
        match entry {
            Entry::Inode(inode) if name.is_empty() => match &inode.content {
                Content::Parent { dir: above, name } if inode.number == dir && !is_file(inode) => {
                    in_dir.stated = Some((place(*above, name), inode.links));
                    self.number(dir)
                }
                _ => bad("it is not the inode of the directory"),
            },
            Entry::Inode(inode) if is_file(inode) => {
                if inode.links != 1 {
                    self.wrong_links.push((dir, name.to_vec()));
                }
                self.number(inode.number)
            }
            Entry::Inode(_) => bad("the inode of a directory is at a name"),
            _ if name.is_empty() => bad("a directory has no inode here"),
            Entry::Dir { inode: ROOT | LINKED } => bad("it is the name of a directory that has none"),
            Entry::Dir { inode } => {
                in_dir.subdirs += 1;
                let named = self.dirs.entry(*inode).or_default();
                match named.named {
                    Some(_) => self.second_names.push((*inode, (dir, name.to_vec()))),
                    None => named.named = Some((dir, name.to_vec())),
                }
                Ok(())
            }
            Entry::Link { inode, .. } => {
                self.linked.entry(*inode).or_default().names += 1;
                Ok(())
            }
        }
    }

    /// Records the number of an inode. Fails if another inode has this number.
    fn number(&mut self, number: u64) -> Result<(), (ProblemKind, String)> {
        self.last_inode = self.last_inode.max(number);
        match self.numbers.insert(number) {
            true => Ok(()),
            false => Err((ProblemKind::InodeTwice, format!("another inode has the number {number}, too"))),
        }
    }

    /// Returns, for each directory, the one that contains it.
    pub(super) fn above(&self) -> HashMap<u64, u64> {
        let above = |(dir, facts): (&u64, &Dir)| facts.named.as_ref().map(|(above, _)| (*dir, *above));
        self.dirs.iter().filter_map(above).collect()
    }
}

fn is_file(inode: &Inode) -> bool {
    inode.kind().is_ok_and(|kind| kind != Kind::Dir)
}
