//! The state of a verification, and the operations that several of its parts need.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;

use quell_vfs::{Kind, NAME_BYTES_MAX, Result};

use super::access::Accesses;
use super::conflicts::ConflictOutput;
use super::merged_dirs::MergedDirs;
use super::output::Output;
use super::refusal::refused;
use super::state::{ExistingDir, Facts, Name, NewDir, NewLinked, Numbers};
use crate::batch::{BatchRecord, Conflict, ConflictReason, Kept};
use crate::certificate::Certificate;
use crate::entry::{Content, Entry, Inode, LINKED, ROOT, Timestamp};
use crate::files::TableFiles;
use crate::key::Key;
use crate::readable::{ReadAccess, SearchableDirs};
use crate::table::Table;
use crate::table_set::{SetLookups, TableSet};
use crate::usage::UsageChanges;

/// A batch, or a part of one, that is to be verified.
pub(crate) struct Submission<'a> {
    pub(crate) record: &'a BatchRecord,
    /// The number in the names of entries in conflict: the number of the batch, also for a part.
    pub(crate) batch: u64,
    /// The inode numbers of the parts of the batch whose changes `current` has.
    pub(crate) earlier: &'a [Range<u64>],
    /// The number of conflicts of these parts.
    pub(crate) conflicts: u64,
    pub(crate) certificate: &'a Certificate,
    /// The tables that the certificate names, in the order of the certificate.
    pub(crate) tables: Vec<Arc<Table>>,
    /// The snapshot that the record names.
    pub(crate) snapshot: &'a TableSet,
    /// The current image, with the changes of earlier parts of the batch.
    pub(crate) current: TableSet,
    /// The random number of the store.
    pub(crate) store: u128,
    /// The present time.
    pub(crate) now: Timestamp,
    /// The entries of the snapshot that the user may read, and therefore change.
    pub(crate) reads: ReadAccess,
    /// The directory of the image's tables.
    pub(crate) files: Arc<dyn TableFiles>,
}

/// The state of a verification.
pub(super) struct Pass<'a> {
    pub(super) submission: Submission<'a>,
    pub(super) accesses: Accesses<'a>,
    /// The directories whose entries the user may read. `None` if the user may read all entries.
    pub(super) readable: Option<SearchableDirs<'a>>,
    pub(super) numbers: Numbers,
    /// Look-ups of the keys of the batch in the snapshot, and in the current image.
    pub(super) in_snapshot: SetLookups,
    pub(super) in_image: SetLookups,
    pub(super) out: Output,
    /// The directories that the batch has created.
    pub(super) new_dirs: HashMap<u64, NewDir>,
    /// The hash function of names, with a random key that no user knows.
    pub(super) name_hashes: RandomState,
    /// The new files with several names.
    pub(super) linked: HashMap<u64, NewLinked>,
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
    /// The directories above moved directories, which are in `dirs` as well.
    pub(super) dirs_on_paths: HashSet<u64>,
    /// The number of directories of the certificate that were checked.
    pub(super) certified: usize,
    /// The number of subdirectories that each directory of the snapshot has got or lost.
    pub(super) subdirs: HashMap<u64, i64>,
    /// Changes that are newer than the tables.
    pub(super) patch: BTreeMap<Key, Option<Entry>>,
    pub(super) conflicts: ConflictOutput,
    pub(super) merged: MergedDirs,
    /// The number of inodes for contents that are in conflict.
    pub(super) kept: u64,
    pub(super) entries: u64,
    /// The changes of the use of users by the entries that were written.
    pub(super) usage: UsageChanges,
}

impl Pass<'_> {
    /// Adds a conflict.
    pub(super) fn conflict(
        &mut self,
        dir: u64,
        name: &[u8],
        reason: ConflictReason,
        kept_as: Option<Kept>,
    ) -> Result<()> {
        self.conflicts.add(&Conflict { dir, name: name.to_vec(), reason, kept_as })
    }

    /// Adds the entry of a name that is in conflict under another name, and the conflict.
    pub(super) fn keep_as_other_name(
        &mut self,
        dir: u64,
        name: &[u8],
        entry: Entry,
        reason: ConflictReason,
    ) -> Result<()> {
        let kept_dir = match reason {
            ConflictReason::Exists => dir,
            // The directory cannot have the entry.
            _ => self.conflict_dir()?,
        };
        let (kept_name, key) = self.free_name(kept_dir, name)?;
        if let Entry::Dir { inode } = entry {
            let moved = self.dir_inode(inode)?;
            let content = Content::Parent { dir: kept_dir, name: kept_name.clone() };
            self.patch.insert(Key::of_dir(inode), Some(Entry::Inode(Inode { content, ..moved })));
            *self.subdirs.entry(kept_dir).or_default() += 1;
        }
        let inode = entry.inode_number();
        self.patch.insert(key, Some(entry));
        self.conflict(dir, name, reason, Some(Kept { dir: kept_dir, name: kept_name, inode }))
    }

    /// Adds a new file with the content that the batch has given to a file of the snapshot, if this
    /// content is left out because of a conflict. `place` is a name of the file.
    pub(super) fn keep_content(
        &mut self,
        before: &Inode,
        after: &Inode,
        place: Option<&Name>,
    ) -> Result<Option<Kept>> {
        let is_changed = (&before.content, before.size_bytes) != (&after.content, after.size_bytes);
        if before.kind()? != Kind::File || !is_changed {
            return Ok(None);
        }
        let record = self.submission.record;
        let number = record.inodes.start + self.submission.certificate.inodes_used + self.kept;
        // The last number is for the directory of entries in conflict.
        if number >= record.inodes.end - 1 {
            return Err(refused("the batch has no inode numbers left for contents in conflict"));
        }
        self.kept += 1;
        let may_create = |dir: u64| -> Result<bool> {
            Ok(dir != LINKED && (self.numbers.contains(dir) || self.accesses.of(dir)?.may_change_names))
        };
        let (dir, name) = match place {
            Some((dir, name)) if may_create(*dir)? => (*dir, name.clone()),
            Some((_, name)) => (self.conflict_dir()?, name.clone()),
            None => (self.conflict_dir()?, format!("inode-{}", before.number).into_bytes()),
        };
        self.dirs.push(dir);
        let (name, key) = self.free_name(dir, &name)?;
        let inode = Inode {
            number,
            // The new file belongs to the user of the batch, so it gets no set-id bits.
            mode: Kind::File.mode_bits() | after.mode & 0o777,
            uid: record.caller.uid,
            gid: record.caller.gid,
            links: 1,
            ..after.clone()
        };
        self.patch.insert(key, Some(Entry::Inode(inode)));
        Ok(Some(Kept { dir, name, inode: number }))
    }

    /// Returns an unused name for an entry in conflict, and its key. The number in the name is that
    /// of the conflict or one of the next. If these names are used, it is a number that other users
    /// cannot predict, so that they cannot prevent a commit by creating all names that it could
    /// need.
    fn free_name(&self, dir: u64, name: &[u8]) -> Result<(Vec<u8>, Key)> {
        const ATTEMPTS: u64 = 100;
        const IN_ORDER: u64 = 10;
        let first = self.conflicts.count() + 1;
        for attempt in 0..ATTEMPTS {
            let number = match attempt < IN_ORDER {
                true => first + attempt,
                false => self.name_hashes.hash_one((attempt, name)),
            };
            let suffix = format!(".quell-conflict-{}-{number}", self.submission.batch);
            let length = name.len().min(NAME_BYTES_MAX - suffix.len());
            let kept_name = [&name[..length], suffix.as_bytes()].concat();
            let key = Key::of_name(dir, &kept_name);
            let source = self.merged.source_of(dir).map(|dir| Key::of_name(dir, &kept_name));
            let is_taken = self.submission.current.entry(&key)?.is_some()
                || self.patch.contains_key(&key)
                || self.submitted(&key)?.is_some()
                || source.map(|key| self.submitted(&key)).transpose()?.flatten().is_some();
            if !is_taken {
                return Ok((kept_name, key));
            }
        }
        Err(refused("an entry in conflict has no free name"))
    }

    /// Returns the entry that the batch has submitted for a key.
    pub(super) fn submitted(&self, key: &Key) -> Result<Option<Entry>> {
        for table in &self.submission.tables {
            if let Some(value) = table.get(key.as_bytes())? {
                return if value.is_empty() { Ok(None) } else { Entry::decode(&value).map(Some) };
            }
        }
        Ok(None)
    }

    /// Returns the inode of a directory of the batch, or of the snapshot with its changes.
    pub(super) fn dir_inode(&self, dir: u64) -> Result<Inode> {
        let key = Key::of_dir(dir);
        match self.patch.get(&key) {
            Some(Some(Entry::Inode(inode))) => return Ok(inode.clone()),
            Some(_) => return Err(refused("a directory is removed and used")),
            None => {}
        }
        let found = match self.numbers.contains(dir) {
            true => self.submitted(&key)?,
            false => self.submission.current.entry(&key)?,
        };
        match found {
            // The tables of the batch can change after they were checked.
            Some(Entry::Inode(inode)) if inode.number == dir && inode.kind()? == Kind::Dir => {
                if self.numbers.contains(dir) {
                    self.check_limits(&inode)?;
                    self.check_user(&inode)?;
                }
                Ok(inode)
            }
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
        let usual = format!("quell-conflicts-{}", self.submission.batch).into_bytes();
        let usual_key = Key::of_name(ROOT, &usual);
        let found = self.submission.current.entry(&usual_key)?;
        if let Some(Entry::Dir { inode }) = found
            && self.submission.earlier.iter().any(|numbers| numbers.end - 1 == inode)
        {
            // An earlier part has created it.
            return Ok(inode);
        }
        let is_taken = found.is_some() || self.submitted(&usual_key)?.is_some();
        let (name, in_root) = match is_taken {
            true => self.free_name(ROOT, &usual)?,
            false => (usual, usual_key),
        };
        // The links of the root are computed from the links of the current root.
        self.dirs.push(ROOT);
        let root = self.dir_inode(ROOT)?;
        let inode = Inode {
            number,
            mode: Kind::Dir.mode_bits() | 0o700,
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
}
