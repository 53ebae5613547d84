//! Checks with few requests whether a tree still equals its index. An index covers a tree that
//! changes seldom (MetaFS, section 6).

use std::sync::Arc;

use quell_posix::{Dir, Stat};
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

/// The result of the comparison of one entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The entry.
    pub entry: EntryId,
    /// The current metadata of the entry; `None` if the entry was removed.
    pub now: Option<Stat>,
    /// The difference from the index; `None` if the entry equals it.
    pub difference: Option<Difference>,
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
        let entry = self.next_entry();
        Ok(self.compare(entry)?.difference)
    }

    /// Returns the entry that the next step compares.
    pub fn next_entry(&mut self) -> EntryId {
        if self.plan.is_empty() {
            self.plan_random_descent();
        }
        self.plan.pop().unwrap_or(ROOT)
    }

    /// Closes all directories but the root. Entries are then found in the directories that have
    /// their paths now.
    pub fn close_directories(&mut self) {
        self.entered.truncate(1);
    }

    /// Compares an entry. Returns the same errors as [`step`](Sampler::step).
    pub fn compare(&mut self, entry: EntryId) -> Result<Comparison> {
        let now = match self.stat(entry) {
            Ok(now) => now,
            Err(e) if matches!(e.kind, ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                let difference = Some(Difference { path: self.image.path(entry), what: Change::Removed });
                return Ok(Comparison { entry, now: None, difference });
            }
            Err(e) => return Err(e),
        };
        let found = attributes_of(&now);
        let mut changed = changed_attributes(&self.image.attributes(entry), &found);
        if found.uid == OVERFLOW_ID || found.gid == OVERFLOW_ID {
            changed.retain(|what| *what != "owner");
        }
        let difference = match changed.is_empty() {
            true => None,
            false => Some(Difference { path: self.image.path(entry), what: Change::Changed(changed) }),
        };
        Ok(Comparison { entry, now: Some(now), difference })
    }

    /// Returns the open directory that has the path of `entry`, which is a directory of the index.
    pub fn directory(&mut self, entry: EntryId) -> Result<Arc<dyn Dir>> {
        self.enter(entry)
    }

    fn stat(&mut self, entry: EntryId) -> Result<Stat> {
        if entry == ROOT {
            return self.entered[0].1.stat_self();
        }
        let parent = self.image.parent(entry);
        let dir = self.enter(parent)?;
        dir.stat(self.image.name(entry))
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

pub(crate) fn attributes_of(stat: &Stat) -> Attributes {
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
