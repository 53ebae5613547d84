//! Checks with few requests whether a tree still equals its index. An index covers a tree that
//! changes seldom (MetaFS, section 6).

use std::sync::Arc;

use quell_posix::Dir;
use quell_vfs::{Attributes, ErrorKind, Kind, NodeId, Result};

use crate::compare::{Change, Difference, changed_attributes};
use crate::image::{EntryId, Image, ROOT};

/// The id that the kernel shows in place of an owner that the caller's user namespace does not map.
/// The real owner is then unknown.
pub(crate) const OVERFLOW_ID: u32 = 65534;

/// Compares entries of a tree one at a time, each with one metadata operation.
///
/// It begins with the root and the directories on the path to the directory with the most entries:
/// installing or removing software changes the times of such directories (`site-packages`, `lib`,
/// `bin`). Random descents from the root follow.
pub struct Sampler {
    image: Arc<Image>,
    /// The open directories on the path to the last entry, outermost first. The root is always in
    /// the list.
    entered: Vec<(EntryId, Arc<dyn Dir>)>,
    /// The next entries to compare, in reverse order.
    plan: Vec<EntryId>,
    random: u64,
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Sampler {
    /// Returns a sampler. `seed` determines the random entries; different nodes should use
    /// different seeds.
    pub fn new(image: Arc<Image>, source: Arc<dyn Dir>, seed: u64) -> Sampler {
        let mut plan = Vec::new();
        let mut at = fullest_directory(&image);
        while at != ROOT {
            plan.push(at);
            at = image.parent(at);
        }
        plan.push(ROOT);
        Sampler { image, entered: vec![(ROOT, source)], plan, random: seed | 1 }
    }

    /// Continues with random entries after the root, because the path to the directory with the
    /// most entries was compared just before.
    pub fn skip_path_to_fullest(&mut self) {
        self.plan = vec![ROOT];
    }

    /// Compares one entry. Returns `Ok(None)` if it equals the index. An error is an error of the
    /// file system other than "no such entry", and is not a difference.
    pub fn step(&mut self) -> Result<Option<Difference>> {
        let entry = match self.plan.pop() {
            Some(entry) => entry,
            None => {
                self.plan_random_descent();
                self.plan.pop().unwrap_or(ROOT)
            }
        };
        let found = self.read_attributes(entry);
        let image = &self.image;
        let difference = |what| Ok(Some(Difference { path: image.path(entry), what }));
        match found {
            Ok(found) => {
                let mut changed = changed_attributes(&image.attributes(entry), &found);
                if found.uid == OVERFLOW_ID || found.gid == OVERFLOW_ID {
                    changed.retain(|what| *what != "owner");
                }
                if changed.is_empty() { Ok(None) } else { difference(Change::Changed(changed)) }
            }
            Err(e) if matches!(e.kind, ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                difference(Change::Removed)
            }
            Err(e) => Err(e),
        }
    }

    fn read_attributes(&mut self, entry: EntryId) -> Result<Attributes> {
        if entry == ROOT {
            return Ok(attributes_of(&self.entered[0].1.stat_self()?));
        }
        let parent = self.image.parent(entry);
        let dir = self.enter(parent)?;
        Ok(attributes_of(&dir.stat(self.image.name(entry))?))
    }

    /// Returns the open directory for `entry`, starting from the nearest ancestor that is open.
    fn enter(&mut self, entry: EntryId) -> Result<Arc<dyn Dir>> {
        let mut path = Vec::new();
        let mut at = entry;
        let depth = loop {
            match self.entered.iter().position(|(open, _)| *open == at) {
                Some(depth) => break depth,
                None => path.push(at),
            }
            at = self.image.parent(at);
        };
        self.entered.truncate(depth + 1);
        while let Some(next) = path.pop() {
            let dir = self.entered.last().expect("the root stays").1.enter(self.image.name(next))?;
            self.entered.push((next, dir));
        }
        Ok(self.entered.last().expect("the root stays").1.clone())
    }

    /// Plans a random descent from the root to an entry that has no children. Each entry on the
    /// path is compared, because the file system has to look it up anyway.
    fn plan_random_descent(&mut self) {
        let mut path = Vec::new();
        let mut at = ROOT;
        while let Some(children) = self.image.children(at).filter(|c| !c.is_empty()) {
            let pick = self.next_random() % u64::from(children.end - children.start);
            at = children.start + pick as u32;
            path.push(at);
        }
        path.reverse();
        self.plan = path;
    }

    /// Returns the next number of Marsaglia's xorshift generator, which is sufficient to choose
    /// entries.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

fn fullest_directory(image: &Image) -> EntryId {
    let directories = (0..image.entries()).filter(|e| image.kind(*e) == Kind::Dir);
    let fullness = |e: &EntryId| image.children(*e).map_or(0, |c| c.end - c.start);
    // Of several such directories the first one is taken, because it is nearer to the root.
    directories.max_by_key(|e| (fullness(e), std::cmp::Reverse(*e))).unwrap_or(ROOT)
}

pub(crate) fn attributes_of(stat: &quell_posix::Stat) -> Attributes {
    Attributes {
        node: NodeId(0),
        kind: Kind::from_mode(stat.mode).unwrap_or(Kind::File),
        permissions: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        nlink: stat.nlink,
        rdev: if stat.mode & 0o170_000 == 0o020_000 || stat.mode & 0o170_000 == 0o060_000 {
            stat.rdev
        } else {
            0
        },
        size_bytes: stat.size_bytes,
        blocks: stat.blocks,
        modified: stat.modified,
        changed: stat.changed,
    }
}
