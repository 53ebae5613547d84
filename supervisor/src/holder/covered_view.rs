//! The view of one tree, while it is served.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use quell_boot::BLOCK_BYTES;
use quell_fuse::Session;
use quell_index::{BuildOptions, Sampler};
use quell_mount_spec::Covered;
use quell_overlay::Ids;
use quell_vfs::{ErrorKind, FileIdentity};

use crate::display::{counted, shown};
use crate::failure::Failure;
use crate::freshness::consequence::ViewAtChange;
use crate::freshness::whole_check::RunningCheck;
use crate::holder::checked_tree::CheckedTree;
use crate::holder::handshake::HolderContext;
use crate::holder::hidden_mounts::Covering;
use crate::holder::privileges::{needs_user_namespace, visibility};
use crate::holder::tree_changes::TreeChanges;
use crate::mount_table::mount_source;
use crate::protocol::plan::{Target, TreesPlan, ViewChoice, Writes};
use crate::protocol::report::TreeReport;
use crate::socket::request::CoveredTree;
use crate::view::boot_blocks::BootBlocks;
use crate::view::mount::{MountedView, SelectedView, fuse_at, mount_first};
use crate::view::options::{ViewOptions, Visibility, tree_properties};
use crate::view::selection::View;

/// One covered tree.
pub struct CoveredView {
    covered: Covered,
    pub index: PathBuf,
    pub path: PathBuf,
    view: View,
    reason: String,
    pub sessions: Vec<Session>,
    boot_blocks: Option<BootBlocks>,
    sampler: Sampler,
    pub running_check: Option<RunningCheck>,
    /// Number of entries compared since the tree was covered.
    compared: u64,
    changes: Arc<TreeChanges>,
}

/// The mount of a view, before it is attached.
pub struct Unattached {
    /// `None` if the mount is attached already.
    pub mount: Option<std::os::fd::OwnedFd>,
    pub path: PathBuf,
    /// The identity that the directory at the path must have.
    pub original: Option<FileIdentity>,
}

impl CoveredView {
    /// Mounts the view of a tree, without attaching it. `squash`: in a user namespace, the ids that
    /// it maps.
    pub fn mount(
        context: &HolderContext,
        trees: &TreesPlan,
        mut tree: CheckedTree,
        squash: Option<Ids>,
    ) -> Result<(CoveredView, Unattached), Failure> {
        let selected = select_view(context, trees, &mut tree, squash)?;
        let CheckedTree { mut covered, index, path, sampler, running_check, .. } = tree;
        // The blocks are decoded, so the compressed frames are no longer needed.
        covered.recorded = None;
        let SelectedView { view, reason, mounted } = selected;
        let MountedView { mount, sessions, boot_blocks, metadata } = mounted;
        // At the tree's own path the view covers only the directory that was checked, and not
        // another directory that was moved to the path meanwhile.
        let original = match path == covered.source_path {
            true => {
                // The identity of an open directory does not change.
                let source = || covered.source().stat_self_cached();
                Some(context.waiting.watch(&covered.source_path, source)?.identity())
            }
            false => None,
        };
        let unattached = Unattached { mount, path: path.clone(), original };
        let changes = Arc::new(TreeChanges::new(
            covered.image.clone(),
            &covered.source_path,
            "covered",
            match view {
                View::Overlay | View::OverlayFuse => ViewAtChange::Overlay,
                View::Fuse => ViewAtChange::Compared(trees.on_change),
            },
            metadata.map(|metadata| metadata.mounted_at(&path)),
            context.messages.clone(),
        ));
        let compared = 0;
        let view = CoveredView {
            covered,
            index,
            path,
            view,
            reason,
            sessions,
            boot_blocks,
            sampler,
            running_check,
            compared,
            changes,
        };
        Ok((view, unattached))
    }

    /// Shows changes from now on, as the check of the whole tree and notifications find them.
    pub fn follow_changes(&mut self, verbose: bool) {
        // The other views compare files themselves, or cannot show a changed file.
        let (View::Overlay, Some(check)) = (self.view, &mut self.running_check) else { return };
        let watch = check.take_watch();
        let (image, source) = (self.covered.image.clone(), self.covered.source());
        let sampler = move || Sampler::new(image.clone(), source.clone(), 1);
        if let Some(watch) = watch.clone() {
            let (changes, sampler) = (self.changes.clone(), sampler.clone());
            let spawned = std::thread::Builder::new()
                .name("watch".into())
                .spawn(move || changes.follow(&watch, sampler(), verbose));
            // Without the thread, only comparisons at intervals find changes.
            if let Err(e) = spawned {
                tracing::debug!(error = %e, "changes are not followed");
            }
        }
        let changes = self.changes.clone();
        check.pass_late_result(move |checked| changes.found_late(checked, watch.as_deref(), sampler()));
    }

    /// Returns the kind of the view and the reason for it, as a message.
    pub fn description(&self) -> String {
        let CoveredView { path, view, covered, reason, .. } = self;
        let entries = counted(covered.image.entries().into(), "entry", "entries");
        format!("{} covered by {} ({entries}; {reason})", shown(path), view.name())
    }

    /// Returns the tree, for the answers to processes that join.
    pub fn covered_tree(&self) -> Result<CoveredTree, Failure> {
        let crosses_mounts = BuildOptions::from_image(&self.covered.image)?.cross_mounts;
        Ok(CoveredTree { path: self.path.clone(), crosses_mounts })
    }

    /// Returns the directories of the tree and of its view.
    pub fn covering(&self) -> Covering {
        Covering { source: self.covered.source_path.clone(), path: self.path.clone() }
    }

    pub fn report(&self) -> TreeReport {
        TreeReport {
            index: self.index.clone(),
            generation: self.covered.image.generation().to_string(),
            path: self.path.clone(),
            source: self.covered.source_path.clone(),
            view: self.view.name().into(),
            reason: self.reason.clone(),
            entries: self.covered.image.entries().into(),
            looks: self.compared,
            changes: self.changes.count() + self.running_check.as_ref().map_or(0, RunningCheck::changes),
            counters: self.counters(),
        }
    }

    /// Returns `None` if the kernel alone serves the view and nothing is counted.
    fn counters(&self) -> Option<BTreeMap<String, u64>> {
        let mut counters: BTreeMap<String, u64> = BTreeMap::new();
        for session in &self.sessions {
            for (name, value) in session.counters().snapshot().pairs() {
                *counters.entry(name.to_owned()).or_default() += value;
            }
        }
        if let Some(blocks) = &self.boot_blocks {
            let served = blocks.recorded.served();
            counters.insert("blocks_from_memory".into(), served.from_memory);
            counters.insert("blocks_from_source".into(), served.from_source);
            counters.insert("blocks_cached".into(), blocks.cached_bytes.div_ceil(BLOCK_BYTES as u64));
            counters.insert("files_whole".into(), blocks.whole_files);
            if let Some(frames_read) = blocks.recorded.frames_read() {
                counters.insert("frames_read".into(), frames_read);
            }
        }
        (!counters.is_empty()).then_some(counters)
    }

    /// Compares one entry with the tree.
    pub fn compare_next(&mut self) {
        if self.changes.compare_next(&mut self.sampler, self.running_check.as_ref()) {
            self.compared += 1;
        }
        self.changes.show_unseen();
    }
}

fn select_view(
    context: &HolderContext,
    trees: &TreesPlan,
    tree: &mut CheckedTree,
    squash: Option<Ids>,
) -> Result<SelectedView, Failure> {
    let plan = &context.plan;
    let CheckedTree { covered, boot_file, index, index_belongs_to_root, path, .. } = tree;
    let (boot_file, path) = (boot_file.as_ref(), &*path);
    let allow_other = match plan.target {
        Target::Namespace | Target::Processes => true,
        Target::Mountpoint { allow_other, .. } => allow_other,
    };
    // Outside a namespace an ordinary user can mount only with fusermount3.
    let by_fusermount = matches!(plan.target, Target::Mountpoint { .. }) && needs_user_namespace();
    let is_possible =
        matches!(trees.view, ViewChoice::Auto | ViewChoice::Fuse) && trees.writes == Writes::Refused;
    if by_fusermount && !is_possible {
        let message = "an ordinary user can mount only a read-only FUSE view; `quell run` has the other views and writable layers";
        return Err(Failure::cannot(message));
    }
    // In its own user namespace this process may mount, but has no more access than the caller.
    let visibility = if squash.is_some() { Visibility::Caller } else { visibility(&plan.target) };
    let mut options = ViewOptions {
        plan,
        trees,
        squash,
        visibility,
        index_belongs_to_root: *index_belongs_to_root,
        source_name: mount_source(index),
        allow_other,
        has_blocks_in_memory: covered.recorded.as_ref().is_some_and(|recorded| !recorded.is_in_ranges()),
    };
    let properties = tree_properties(&covered.image, &covered.source_path, trees);
    let mount = |covered: &Covered, options: &ViewOptions<'_>| {
        let mount = || match by_fusermount {
            true => fuse_at(covered, path, options),
            false => mount_first(covered, &properties, options),
        };
        let boot_file = boot_file.filter(|_| covered.recorded.is_some());
        CheckedTree::watch_decoding(&context.waiting, boot_file, mount)
    };
    match mount(covered, &options) {
        // The frames of a boot image are verified while they are decoded.
        Err(e) if e.kind == ErrorKind::Damaged && covered.recorded.is_some() && !plan.strict => {
            context.print(&format!("{e}; the boot image is not used"));
            covered.recorded = None;
            options.has_blocks_in_memory = false;
            Ok(mount(covered, &options)?)
        }
        other => Ok(other?),
    }
}
