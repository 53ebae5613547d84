//! The verification of a batch by a trusted process (BatchFS, section II-F).
//!
//! The tables of the batch are read once, in the order of their keys:
//!
//! - An entry in a directory that the batch has created is checked by itself, and copied
//!   ([`new_entries`]). The inode number of the directory belongs to the batch, so nothing else can
//!   be in it.
//! - An entry in a directory of the snapshot is compared with the snapshot and with the current
//!   image ([`existing`]).
//! - A directory that an earlier part of the batch has created at the same name gets the entries of
//!   the new one ([`merge_dirs`]).
//! - The changes of inodes of the snapshot are collected, since the names of one inode may be in
//!   several directories, and merged at the end ([`resolve`]).
//!
//! In a private store, the user may change only entries of the snapshot that the user may read.
//! Otherwise the result of a forged batch would show the others.
//!
//! The whole batch is refused if a statement of the certificate is not true, or if no sequence of
//! operations can make a change. A change that is in conflict with a change of others since the
//! snapshot is left out, and listed.

mod access;
mod apply;
mod conflicts;
mod existing;
mod merge_dirs;
mod merge_inode;
mod merged_dirs;
mod new_entries;
mod output;
mod pass;
mod refusal;
mod resolve;
mod state;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::RandomState;

use quell_vfs::{NAME_BYTES_MAX, Result};

use crate::certificate::{ProofForm, snapshot_hash};
use crate::entry::LINKED;
use crate::key::split;
use crate::readable::{ReadAccess, SearchableDirs};
use crate::table_ref::first_table_of_batch;
use crate::usage::UsageChanges;
use crate::verdict::Verdict;
use access::Accesses;
use conflicts::ConflictOutput;
use merged_dirs::MergedDirs;
use output::Output;
use pass::Pass;
use refusal::refused;
use state::Numbers;

pub(crate) use pass::Submission;

/// Verifies a batch, or a part of one, and writes its entries as tables of the image.
///
/// # Errors
/// `InvalidInput` if the batch is refused; `Damaged`; the errors of files.
pub(crate) fn verify(submission: Submission<'_>) -> Result<Verdict> {
    let Submission { record, certificate, .. } = &submission;
    let is_for_this = certificate.store == submission.store
        && certificate.batch == record.number
        && certificate.snapshot == snapshot_hash(record);
    if !is_for_this {
        return Err(refused("the certificate is of another batch"));
    }
    if certificate.form == ProofForm::Log && !certificate.dirs.is_empty() {
        return Err(refused("the certificate of a log states directories"));
    }
    let tables_match = certificate.tables.len() == submission.tables.len()
        && certificate
            .tables
            .iter()
            .zip(&submission.tables)
            .all(|(stated, found)| stated.entries == found.len() && stated.checksum == found.checksum());
    if !tables_match {
        return Err(refused("the tables do not match the certificate"));
    }
    let readable = match submission.reads {
        ReadAccess::All => None,
        ReadAccess::Permitted => Some(SearchableDirs::new(submission.snapshot, &record.caller)),
    };
    let mut pass = Pass {
        readable,
        accesses: Accesses::new(record, submission.snapshot, submission.current.clone(), submission.earlier),
        in_snapshot: submission.snapshot.lookups(),
        in_image: submission.current.lookups(),
        numbers: Numbers::new(record.inodes.clone(), certificate.inodes_used)?,
        out: Output::new(submission.files.clone(), first_table_of_batch(record.number)),
        new_dirs: HashMap::new(),
        name_hashes: RandomState::new(),
        linked: HashMap::new(),
        groups: HashSet::new(),
        inherited_groups: HashSet::new(),
        facts: BTreeMap::new(),
        dir: None,
        dirs: Vec::new(),
        dirs_on_paths: HashSet::new(),
        certified: 0,
        subdirs: HashMap::new(),
        patch: BTreeMap::new(),
        conflicts: ConflictOutput::new(submission.files.clone(), record.number, submission.conflicts),
        merged: MergedDirs::new(submission.files.clone(), record.number),
        kept: 0,
        entries: 0,
        usage: UsageChanges::default(),
        submission,
    };
    let verdict = pass.read_tables().and_then(|()| pass.resolve()).and_then(|()| pass.finish());
    if verdict.is_err() {
        pass.out.discard()?;
        pass.conflicts.discard()?;
        pass.merged.discard()?;
    }
    verdict
}

impl Pass<'_> {
    fn read_tables(&mut self) -> Result<()> {
        let mut last_key = Vec::new();
        for table in self.submission.tables.clone() {
            let mut entries = table.entries();
            while let Some(read) = entries.next(|key, value| {
                if key <= &*last_key {
                    return Err(refused("the keys of the tables do not ascend"));
                }
                last_key.clear();
                last_key.extend_from_slice(key);
                self.read_entry(key, value)
            })? {
                read?;
            }
        }
        self.end_existing_dir()?;
        match self.certified == self.submission.certificate.dirs.len() {
            true => Ok(()),
            false => Err(refused("the certificate has a directory without changes")),
        }
    }

    fn read_entry(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (dir, name) = split(key).ok_or_else(|| refused("a key is too short"))?;
        let is_name = name.len() <= NAME_BYTES_MAX && quell_vfs::check_name(name).is_ok();
        if !is_name && !name.is_empty() && dir != LINKED {
            return Err(refused("a name is not permitted"));
        }
        match self.numbers.contains(dir) {
            true => self.new_dir_entry(dir, name, key, value),
            false => self.existing_dir_entry(dir, name, key, value),
        }
    }
}
