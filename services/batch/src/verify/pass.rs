//! The state of a verification, and the operations that several of its parts need.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use quell_vfs::{NAME_BYTES_MAX, Result};

use super::output::Output;
use super::refusal::refused;
use super::state::{ExistingDir, Facts, NewDir, Numbers};
use crate::batch::{BatchRecord, Conflict, ConflictReason};
use crate::certificate::Certificate;
use crate::entry::{Content, Entry, Inode, ROOT};
use crate::files::TableFiles;
use crate::image::Addition;
use crate::key::Key;
use crate::table::Table;
use crate::table_set::TableSet;

/// The largest number of conflicts of a batch. With more, it is refused.
const CONFLICTS_MAX: usize = 1 << 20;
/// The largest number of directories above an entry.
pub(super) const DEPTH_MAX: usize = 1 << 16;

/// A batch that is to be verified.
pub(crate) struct Submission<'a> {
    pub(crate) record: &'a BatchRecord,
    pub(crate) certificate: &'a Certificate,
    /// The tables that the certificate names, in its order.
    pub(crate) tables: Vec<Arc<Table>>,
    /// The snapshot that the record names.
    pub(crate) snapshot: &'a TableSet,
    /// The current image.
    pub(crate) current: TableSet,
    /// The last change of the image that `current` has.
    pub(crate) change: u64,
    /// The random number of the store.
    pub(crate) store: u128,
    /// The directory of the image's tables.
    pub(crate) files: Arc<dyn TableFiles>,
}

/// The result of a verification.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// The changes of the image.
    pub(crate) addition: Addition,
    /// The number of new entries.
    pub(crate) entries: u64,
    pub(crate) conflicts: Vec<Conflict>,
    /// The directories that the verification has read from the current image.
    pub(crate) dirs: Vec<u64>,
    /// The last change of the image that the verification has seen.
    pub(crate) change: u64,
}

/// The state of a verification.
pub(super) struct Pass<'a> {
    pub(super) submission: Submission<'a>,
    pub(super) numbers: Numbers,
    pub(super) out: Output,
    /// The directories that the batch has created.
    pub(super) new_dirs: HashMap<u64, NewDir>,
    /// The new inodes with several names: the number of names that were found, and that of the
    /// inode.
    pub(super) linked: HashMap<u64, (u32, Option<u32>)>,
    /// The groups of the new inodes, and whether one of them is a file with the set-group-ID bit.
    pub(super) groups: HashSet<(u32, bool)>,
    /// The groups that directories of the image give to new entries.
    pub(super) inherited_groups: HashSet<u32>,
    /// The changes of inodes of the snapshot.
    pub(super) facts: BTreeMap<u64, Facts>,
    /// The directory of the snapshot whose entries are being read.
    pub(super) dir: Option<ExistingDir>,
    /// The directories of the snapshot that were read.
    pub(super) dirs: Vec<u64>,
    /// The number of directories of the certificate that were checked.
    pub(super) certified: usize,
    /// The number of subdirectories that each directory of the snapshot has got or lost.
    pub(super) subdirs: HashMap<u64, i64>,
    /// Changes that are newer than the tables.
    pub(super) patch: BTreeMap<Key, Option<Entry>>,
    pub(super) conflicts: Vec<Conflict>,
    pub(super) entries: u64,
}

impl Pass<'_> {
    /// Adds a conflict.
    pub(super) fn conflict(
        &mut self,
        dir: u64,
        name: &[u8],
        reason: ConflictReason,
        kept_as: Option<(u64, Vec<u8>)>,
    ) -> Result<()> {
        if self.conflicts.len() == CONFLICTS_MAX {
            return Err(refused("the batch has more than a million conflicts"));
        }
        self.conflicts.push(Conflict { dir, name: name.to_vec(), reason, kept_as });
        Ok(())
    }

    /// Adds the entry of a name that is in conflict under another name, and the conflict.
    pub(super) fn keep_as_other_name(
        &mut self,
        dir: u64,
        name: &[u8],
        entry: Entry,
        reason: ConflictReason,
    ) -> Result<()> {
        let batch = self.submission.record.number;
        let (kept_dir, suffix) = match reason {
            ConflictReason::Exists => (dir, format!(".quell-conflict-{batch}-{}", self.conflicts.len() + 1)),
            // The directory cannot have the entry.
            _ => (self.conflict_dir()?, format!(".quell-conflict-{batch}-{}", self.conflicts.len() + 1)),
        };
        let length = name.len().min(NAME_BYTES_MAX - suffix.len());
        let kept_name = [&name[..length], suffix.as_bytes()].concat();
        let key = Key::of_name(kept_dir, &kept_name);
        if self.submission.current.entry(&key)?.is_some() || self.patch.contains_key(&key) {
            return Err(refused("a name for an entry in conflict exists"));
        }
        if let Entry::Dir { inode } = entry {
            let moved = self.dir_inode(inode)?;
            let content = Content::Parent { dir: kept_dir, name: kept_name.clone() };
            self.patch.insert(Key::of_dir(inode), Some(Entry::Inode(Inode { content, ..moved })));
            *self.subdirs.entry(kept_dir).or_default() += 1;
        }
        self.patch.insert(key, Some(entry));
        self.conflict(dir, name, reason, Some((kept_dir, kept_name)))
    }

    /// Returns the inode of a directory of the batch, or of the snapshot with its changes.
    pub(super) fn dir_inode(&self, dir: u64) -> Result<Inode> {
        let key = Key::of_dir(dir);
        if let Some(Some(Entry::Inode(inode))) = self.patch.get(&key) {
            return Ok(inode.clone());
        }
        if self.numbers.contains(dir) {
            for table in &self.submission.tables {
                if let Some(value) = table.get(key.as_bytes())?
                    && let Entry::Inode(inode) = Entry::decode(&value)?
                {
                    return Ok(inode);
                }
            }
        }
        match self.submission.current.entry(&key)? {
            Some(Entry::Inode(inode)) => Ok(inode),
            _ => Err(refused("a directory has no inode")),
        }
    }

    /// Returns the directory for entries whose own directories cannot have them. It is created in
    /// the root directory when it is first needed, and only the user of the batch may list it.
    pub(super) fn conflict_dir(&mut self) -> Result<u64> {
        let record = self.submission.record;
        let number = record.inodes.end - 1;
        let key = Key::of_dir(number);
        if self.patch.contains_key(&key) {
            return Ok(number);
        }
        let name = format!("quell-conflicts-{}", record.number).into_bytes();
        let in_root = Key::of_name(ROOT, &name);
        if self.submission.current.entry(&in_root)?.is_some() {
            return Err(refused("the directory for entries in conflict exists"));
        }
        let root = self.dir_inode(ROOT)?;
        let inode = Inode {
            number,
            mode: quell_vfs::Kind::Dir.mode_bits() | 0o700,
            uid: record.caller.uid,
            gid: record.caller.gid,
            links: 2,
            size_bytes: 0,
            modified: root.modified,
            changed: root.changed,
            content: Content::Parent { dir: ROOT, name },
            xattrs: Vec::new(),
        };
        self.patch.insert(in_root, Some(Entry::Dir { inode: number }));
        self.patch.insert(key, Some(Entry::Inode(inode)));
        *self.subdirs.entry(ROOT).or_default() += 1;
        Ok(number)
    }

    /// Returns whether the caller may look up names on the path to a directory of the image, and
    /// whether the directory is in the subtree of the batch.
    pub(super) fn path_state(&self, dir: u64) -> Result<(bool, bool)> {
        let Submission { record, current, .. } = &self.submission;
        let (mut is_searchable, mut is_inside) = (true, false);
        let mut next = dir;
        for _ in 0..DEPTH_MAX {
            let Some(Entry::Inode(inode)) = current.entry(&Key::of_dir(next))? else {
                return Ok((false, is_inside));
            };
            is_searchable &= record.caller.may_search(&inode);
            is_inside |= next == record.subtree;
            match inode.content {
                _ if next == ROOT => return Ok((is_searchable, is_inside)),
                Content::Parent { dir, .. } => next = dir,
                _ => return Err(crate::entry::damaged("a directory")),
            }
        }
        Err(crate::entry::damaged("the path of a directory"))
    }
}
