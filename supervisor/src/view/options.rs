//! The options of a view.

use std::path::Path;

use quell_index::Image;
use quell_overlay::{Ids, Powers};

use crate::mount_table;
use crate::protocol::plan::{ChangePolicy, Plan, TreesPlan};
use crate::view::selection::TreeProperties;

/// The users who see a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// The user who created it, with that user's permissions.
    Caller,
    /// Programs that root starts in it.
    RootPrograms,
    /// All users of the machine; the view is mounted by root.
    AllUsers,
}

/// The inputs of an attempt to mount a view, besides the tree.
#[derive(Debug)]
pub struct ViewOptions<'a> {
    pub plan: &'a Plan,
    pub trees: &'a TreesPlan,
    /// `Some` in a user namespace that maps one user.
    pub squash: Option<Ids>,
    pub visibility: Visibility,
    /// Whether the index belongs to root.
    pub index_belongs_to_root: bool,
    /// The source shown in the mount table.
    pub source_name: String,
    pub allow_other: bool,
    /// Whether there are blocks of a boot image in memory.
    pub has_blocks_in_memory: bool,
}

impl ViewOptions<'_> {
    /// Returns the options that root gave; the plan was checked.
    pub fn powers(&self) -> Powers {
        Powers { suid: self.trees.suid, dev: self.trees.dev }
    }

    /// Returns the options of a FUSE mount.
    pub fn fuse(&self, allow_other: bool) -> quell_fuse::Options {
        quell_fuse::Options {
            threads: self.plan.threads.into(),
            no_open: self.trees.on_change == ChangePolicy::Ignore,
            // Read-ahead would add blocks to the recording that the program did not read.
            no_read_ahead: self.trees.boot.recording().is_some(),
            fills_cache: self.has_blocks_in_memory,
            allow_other,
            suid: self.trees.suid,
            dev: self.trees.dev,
            direct: false,
            exclusive: false,
            publishes_writes: false,
            read_only: false,
            locks: quell_fuse::LockKeeper::Kernel,
            source: self.source_name.clone(),
        }
    }
}

/// Returns the properties of the tree of an index at `source`.
pub fn tree_properties(image: &Image, source: &Path, plan: &TreesPlan) -> TreeProperties {
    TreeProperties {
        entries: image.entries().into(),
        longest_path_bytes: image.longest_path_bytes(),
        file_system: mount_table::file_system_of(source),
        memory_budget_bytes: plan.memory_mib << 20,
        forced: plan.view,
    }
}
