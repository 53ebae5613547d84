//! The trees of a job, from which the job holder of a node reads shared blocks.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use quell_index::{Image, OnChange};
use quell_job::{CompleteFile, SharedTrees};
use quell_mount_spec::{Covered, Ownership, TrustedUse};
use quell_vfs::{Error, ErrorKind, FileState, Kind, NodeId, Result};

use crate::failure::Failure;
use crate::holder::privileges;
use crate::id_map::IdMap;
use crate::inputs::{InputFile, root_of};
use crate::protocol::job_files::{FileInMemory, JobInput};
use crate::protocol::plan::Plan;
use crate::trust::check_input_trust;

/// The trees of a job, by the positions of their indexes in the list of files.
pub struct JobTrees {
    trees: Vec<JobTree>,
    plan: Plan,
    /// The directory of the tree, if it is not the directory that the index names.
    source: Option<PathBuf>,
}

struct JobTree {
    /// The copy of the index in memory; `None` for another file.
    index: Option<InputFile>,
    /// Loaded by the first request. `None` if it cannot be used.
    image: OnceLock<Option<Arc<Image>>>,
    /// Opened by the first request for a file, so that only a node that reads from the file system
    /// opens the tree. `None` if the tree cannot be used.
    covered: OnceLock<Option<Covered>>,
}

impl JobTrees {
    /// Returns the trees of these files, none of which is opened yet.
    pub fn new(files: &[CompleteFile], plan: &Plan, source: Option<PathBuf>) -> JobTrees {
        let (users, groups) = (IdMap::of_users(), IdMap::of_groups());
        let tree = |file: &CompleteFile| {
            let copy = FileInMemory::new(file, None, &users, &groups);
            let opened = copy.open(std::process::id());
            let index = opened.ok().map(|JobInput { file, .. }| file).filter(is_index);
            JobTree { index, image: OnceLock::new(), covered: OnceLock::new() }
        };
        JobTrees { trees: files.iter().map(tree).collect(), plan: plan.clone(), source }
    }

    fn image(&self, index: u32) -> Option<&Arc<Image>> {
        let tree = self.trees.get(index as usize)?;
        let load = || {
            let loaded = tree.index.as_ref()?.index();
            let loaded =
                loaded.inspect_err(|error| tracing::debug!(%error, "no blocks of a tree are shared"));
            Some(Arc::new(loaded.ok()?))
        };
        tree.image.get_or_init(load).as_ref()
    }

    fn tree(&self, index: u32) -> Option<&Covered> {
        let tree = self.trees.get(index as usize)?;
        let (file, image) = (tree.index.as_ref()?, self.image(index)?);
        let open = || {
            let opened = self.cover(file, image);
            opened.inspect_err(|error| tracing::debug!(%error, "no blocks of a tree are read")).ok()
        };
        tree.covered.get_or_init(open).as_ref()
    }

    /// Opens a tree by the rules that apply to a view in a namespace.
    fn cover(&self, file: &InputFile, image: &Arc<Image>) -> std::result::Result<Covered, Failure> {
        let source = self.source.clone().unwrap_or_else(|| root_of(image));
        let rules = privileges::rules_in_namespace(quell_mount_spec::belongs_to_root(&file.ownership()?));
        let covered = quell_mount_spec::cover(image.clone(), &source, OnChange::Refuse, rules)?;
        // The index is not trusted yet. Until here, only the path of the tree was taken from it.
        let owner = Ownership::from(&covered.source().stat_self()?);
        check_input_trust(&self.plan.trusted(), file, TrustedUse::Index, Some((&source, &owner)))?;
        Ok(covered)
    }
}

fn is_index(file: &InputFile) -> bool {
    let mut magic = [0; quell_index::format::MAGIC.len()];
    file.file.read_exact_at(&mut magic, 0).is_ok() && magic == quell_index::format::MAGIC
}

impl SharedTrees for JobTrees {
    fn size_bytes(&self, index: u32, entry: u32) -> Option<u64> {
        let image = self.image(index)?;
        let is_file = entry < image.entries() && image.kind(entry) == Kind::File;
        is_file.then(|| image.attributes(entry).size_bytes)
    }

    fn open(&self, index: u32, entry: u32) -> Result<(File, FileState)> {
        let unsupported = || Error::new(ErrorKind::Unsupported, "read a file of index", index.to_string());
        self.tree(index).ok_or_else(unsupported)?.open_compared(NodeId(entry.into()))
    }
}
