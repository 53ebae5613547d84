//! The changes that make the entries of an image a tree.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use quell_vfs::{Kind, Result};

use super::problem::{Problem, ProblemKind};
use super::scan::{Dir, Scan, place};
use crate::entries::Entries;
use crate::entry::{Content, Entry, Inode, LINKED, ROOT, Timestamp, damaged};
use crate::image::Image;
use crate::key::{Key, split};

/// The directory for directories and files without names.
const FOUND: &[u8] = b"quell-found";
/// The number of names that are tried for an entry of this directory.
const ATTEMPTS: usize = 1000;
/// The number of entries that are changed at a time.
const CHANGES_AT_A_TIME: usize = 1000;
/// The permissions of new directories.
const PERMISSIONS: u32 = 0o700;

/// The problems that a scan shows, and their repair.
pub(super) struct Repair<'a> {
    scan: Scan,
    image: &'a Image,
    report: &'a mut dyn FnMut(&Problem),
    changes: BTreeMap<Key, Option<Entry>>,
    /// The number of the directory for entries without names, once it is needed.
    found: Option<u64>,
    next_inode: u64,
}

/// The changes of a repair.
pub(super) struct Repairs {
    changes: BTreeMap<Key, Option<Entry>>,
    next_inode: u64,
}

impl Repairs {
    /// Makes the changes. If this is interrupted, the next check finds the remaining problems.
    pub(super) fn apply(self, image: &mut Image) -> Result<()> {
        image.raise_next_inode(self.next_inode)?;
        let mut changes = self.changes.into_iter().peekable();
        while changes.peek().is_some() {
            image.apply_without_limits(changes.by_ref().take(CHANGES_AT_A_TIME).collect())?;
        }
        image.sync()
    }
}

impl<'a> Repair<'a> {
    pub(super) fn new(scan: Scan, image: &'a Image, report: &'a mut dyn FnMut(&Problem)) -> Repair<'a> {
        let next_inode = image.next_inode().max(scan.last_inode + 1);
        Repair { scan, image, report, changes: BTreeMap::new(), found: None, next_inode }
    }

    /// Reports the problems and returns the changes.
    pub(super) fn run(mut self) -> Result<Repairs> {
        let last = self.scan.last_inode;
        if last >= self.image.next_inode() {
            let detail = format!("an inode has the number {last}, which the store has not assigned yet");
            self.report(ProblemKind::InodeNumber, ROOT, b"", detail);
        }
        self.report_links();
        self.second_names();
        self.missing_inodes();
        self.cycles();
        self.dirs_without_names()?;
        self.files()?;
        self.missing_files()?;
        self.places()?;
        self.set_links()?;
        Ok(Repairs { changes: self.changes, next_inode: self.next_inode })
    }

    fn report(&mut self, kind: ProblemKind, dir: u64, name: &[u8], detail: String) {
        (self.report)(&Problem::of_entry(kind, dir, name, detail));
    }

    /// Of several names of a directory, keeps the one that its inode states, or else the first one.
    fn second_names(&mut self) {
        for (number, mut other) in std::mem::take(&mut self.scan.second_names) {
            let dir = self.scan.dirs.entry(number).or_default();
            let stated = dir.stated.map(|(stated, _)| stated);
            if let Some(named) = &mut dir.named
                && stated == Some(place(other.0, &other.1))
            {
                std::mem::swap(named, &mut other);
            }
            let (above, name) = other;
            self.scan.dirs.entry(above).or_default().subdirs -= 1;
            self.changes.insert(Key::of_name(above, &name), None);
            self.report(
                ProblemKind::SecondName,
                above,
                &name,
                format!("directory {number} has another name"),
            );
        }
    }

    /// Creates the inodes of directories that have entries or a name.
    fn missing_inodes(&mut self) {
        let missing: Vec<u64> =
            self.scan.dirs.iter().filter(|(_, dir)| dir.stated.is_none()).map(|(dir, _)| *dir).collect();
        for number in missing {
            self.report(ProblemKind::MissingInode, number, b"", format!("directory {number} has no inode"));
            let named = self.scan.dirs[&number].named.clone();
            let (above, name) = named.unwrap_or_default();
            self.add_dir(number, above, name);
        }
    }

    fn add_dir(&mut self, number: u64, above: u64, name: Vec<u8>) {
        let (uid, gid) = self.scan.owner.unwrap_or_default();
        let dir = self.scan.dirs.entry(number).or_default();
        dir.stated = Some((place(above, &name), 2));
        let inode = Inode {
            number,
            mode: Kind::Dir.mode_bits() | PERMISSIONS,
            uid,
            gid,
            links: 2,
            size_bytes: 0,
            modified: Timestamp(0, 0),
            changed: Timestamp(0, 0),
            content: Content::Parent { dir: above, name },
            xattrs: Vec::new(),
        };
        self.changes.insert(Key::of_dir(number), Some(Entry::Inode(inode)));
    }

    /// Breaks each cycle of directories: a directory in it loses its name, and then gets a name in
    /// the directory for entries without names.
    fn cycles(&mut self) {
        let mut above = self.scan.above();
        let mut reaches_end: HashSet<u64> = HashSet::new();
        let dirs: Vec<u64> = self.scan.dirs.keys().copied().collect();
        for start in dirs {
            let mut path = BTreeSet::new();
            let mut at = start;
            while !reaches_end.contains(&at) && path.insert(at) {
                match above.get(&at) {
                    Some(next) => at = *next,
                    None => break,
                }
                if path.contains(&at) {
                    self.break_cycle(at, &mut above);
                    break;
                }
            }
            reaches_end.extend(path);
        }
    }

    fn break_cycle(&mut self, number: u64, above: &mut HashMap<u64, u64>) {
        above.remove(&number);
        let dir = self.scan.dirs.entry(number).or_default();
        let Some((dir_above, name)) = dir.named.take() else { return };
        self.scan.dirs.entry(dir_above).or_default().subdirs -= 1;
        self.changes.insert(Key::of_name(dir_above, &name), None);
        self.report(ProblemKind::Cycle, dir_above, &name, format!("directory {number} is below itself"));
    }

    fn dirs_without_names(&mut self) -> Result<()> {
        let unnamed = |(number, dir): &(&u64, &Dir)| **number != ROOT && dir.named.is_none();
        let unnamed: Vec<u64> = self.scan.dirs.iter().filter(unnamed).map(|(number, _)| *number).collect();
        for number in unnamed {
            self.report(ProblemKind::NoName, number, b"", format!("directory {number} has no name"));
            let (found, name) = self.free_name("dir", number)?;
            self.changes.insert(Key::of_name(found, &name), Some(Entry::Dir { inode: number }));
            self.scan.dirs.entry(found).or_default().subdirs += 1;
            let dir = self.scan.dirs.entry(number).or_default();
            dir.named = Some((found, name.clone()));
            // The inode is corrected here, so that its stated parent and name are not reported
            // again.
            if let Some((stated, _)) = &mut dir.stated {
                *stated = place(found, &name);
            }
            let mut inode = self.dir_inode(number)?;
            inode.content = Content::Parent { dir: found, name };
            self.changes.insert(Key::of_dir(number), Some(Entry::Inode(inode)));
        }
        Ok(())
    }

    /// Corrects the inodes of files.
    fn files(&mut self) -> Result<()> {
        for (dir, name) in std::mem::take(&mut self.scan.wrong_links) {
            self.report(
                ProblemKind::WrongLinks,
                dir,
                &name,
                "a file with one name states another number".into(),
            );
            let key = Key::of_name(dir, &name);
            if let Some(Entry::Inode(inode)) = self.image.get(&key)? {
                self.changes.insert(key, Some(Entry::Inode(Inode { links: 1, ..inode })));
            }
        }
        let linked: Vec<(u64, u32, u32)> =
            self.scan.linked.iter().filter_map(|(n, file)| Some((*n, file.stated?, file.names))).collect();
        for (number, stated, names) in linked.into_iter().filter(|(_, stated, names)| stated != names) {
            let key = Key::of_linked(number);
            let place_name = number.to_be_bytes();
            let Some(Entry::Inode(mut inode)) = self.image.get(&key)? else { continue };
            inode.links = names.max(1);
            if names == 0 {
                self.report(ProblemKind::NoName, LINKED, &place_name, format!("file {number} has no name"));
                let (found, name) = self.free_name("file", number)?;
                let link = Entry::Link { inode: number, type_bits: inode.kind()?.mode_bits() };
                self.changes.insert(Key::of_name(found, &name), Some(link));
            } else {
                let detail = format!("file {number} has {names} names and states {stated}");
                self.report(ProblemKind::WrongLinks, LINKED, &place_name, detail);
            }
            self.changes.insert(key, Some(Entry::Inode(inode)));
        }
        Ok(())
    }

    /// Removes the names of files that have no inode.
    fn missing_files(&mut self) -> Result<()> {
        let missing: HashSet<u64> =
            self.scan.linked.iter().filter(|(_, file)| file.stated.is_none()).map(|(n, _)| *n).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let image = self.image;
        let mut entries = image.entries()?;
        while let Some((key, value)) = entries.next()? {
            let Some((dir, name)) = split(key) else { continue };
            if value.is_empty() || dir == LINKED {
                continue;
            }
            if let Ok(Entry::Link { inode, .. }) = Entry::decode(value)
                && missing.contains(&inode)
            {
                self.changes.insert(Key::of_name(dir, name), None);
                self.report(ProblemKind::MissingFile, dir, name, format!("file {inode} has no inode"));
            }
        }
        Ok(())
    }

    /// Corrects the parents and names that the inodes of directories state.
    fn places(&mut self) -> Result<()> {
        let is_wrong = |(number, dir): &(&u64, &Dir)| {
            let expected = match &dir.named {
                _ if **number == ROOT => place(ROOT, b""),
                Some((above, name)) => place(*above, name),
                None => return false,
            };
            dir.stated.is_some_and(|(stated, _)| stated != expected)
        };
        let wrong: Vec<u64> = self.scan.dirs.iter().filter(is_wrong).map(|(number, _)| *number).collect();
        for number in wrong {
            self.report(
                ProblemKind::WrongParent,
                number,
                b"",
                format!("directory {number} states another place"),
            );
            let named = self.scan.dirs[&number].named.clone().filter(|_| number != ROOT);
            let (dir, name) = named.unwrap_or((ROOT, Vec::new()));
            let mut inode = self.dir_inode(number)?;
            inode.content = Content::Parent { dir, name };
            self.changes.insert(Key::of_dir(number), Some(Entry::Inode(inode)));
        }
        Ok(())
    }

    /// Reports the directories that state a wrong number of links.
    fn report_links(&mut self) {
        let wrong = |(number, dir): (&u64, &Dir)| {
            let (_, stated) = dir.stated?;
            (stated != 2 + dir.subdirs).then_some((*number, stated, 2 + dir.subdirs))
        };
        let wrong: Vec<(u64, u32, u32)> = self.scan.dirs.iter().filter_map(wrong).collect();
        for (number, stated, links) in wrong {
            let detail = format!("directory {number} states {stated} links and has {links}");
            self.report(ProblemKind::WrongLinks, number, b"", detail);
        }
    }

    /// Sets the numbers of links of directories. Other repairs change them, too.
    fn set_links(&mut self) -> Result<()> {
        let wrong = |(number, dir): (&u64, &Dir)| {
            let (_, stated) = dir.stated?;
            (stated != 2 + dir.subdirs).then_some((*number, 2 + dir.subdirs))
        };
        let wrong: Vec<(u64, u32)> = self.scan.dirs.iter().filter_map(wrong).collect();
        for (number, links) in wrong {
            let inode = Inode { links, ..self.dir_inode(number)? };
            self.changes.insert(Key::of_dir(number), Some(Entry::Inode(inode)));
        }
        Ok(())
    }

    /// Returns the inode of a directory with the changes so far.
    fn dir_inode(&self, number: u64) -> Result<Inode> {
        let key = Key::of_dir(number);
        let found = match self.changes.get(&key) {
            Some(changed) => changed.clone(),
            None => self.image.get(&key)?,
        };
        match found {
            Some(Entry::Inode(inode)) => Ok(inode),
            _ => Err(damaged("a directory")),
        }
    }

    /// Returns the directory for entries without names, and a free name in it.
    fn free_name(&mut self, kind: &str, number: u64) -> Result<(u64, Vec<u8>)> {
        let found = self.found_dir()?;
        for attempt in 0..ATTEMPTS {
            let suffix = if attempt == 0 { String::new() } else { format!("-{attempt}") };
            let name = format!("{kind}-{number}{suffix}").into_bytes();
            let key = Key::of_name(found, &name);
            if !self.changes.contains_key(&key) && self.image.get(&key)?.is_none() {
                return Ok((found, name));
            }
        }
        Err(damaged("the directory quell-found"))
    }

    fn found_dir(&mut self) -> Result<u64> {
        if let Some(found) = self.found {
            return Ok(found);
        }
        let mut name = FOUND.to_vec();
        for attempt in 2..ATTEMPTS {
            let found = match self.changes.get(&Key::of_name(ROOT, &name)) {
                Some(changed) => changed.clone(),
                None => self.image.get(&Key::of_name(ROOT, &name))?,
            };
            match found {
                None => break,
                Some(Entry::Dir { inode }) if self.scan.dirs[&inode].named == Some((ROOT, name.clone())) => {
                    self.found = Some(inode);
                    return Ok(inode);
                }
                Some(_) => name = [FOUND, format!("-{attempt}").as_bytes()].concat(),
            }
        }
        let number = self.next_inode;
        self.next_inode += 1;
        self.changes.insert(Key::of_name(ROOT, &name), Some(Entry::Dir { inode: number }));
        self.scan.dirs.entry(ROOT).or_default().subdirs += 1;
        self.add_dir(number, ROOT, name.clone());
        self.scan.dirs.entry(number).or_default().named = Some((ROOT, name));
        self.found = Some(number);
        Ok(number)
    }
}
