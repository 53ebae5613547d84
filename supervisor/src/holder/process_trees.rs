//! Trees that programs serve in their own processes, with the preload library. The holder checks
//! the trees once for all processes of a job on the node, and keeps their indexes and the whole
//! files of their boot images in memory.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use quell_boot::BootFile;
use quell_index::Sampler;
use quell_mount_spec::{Covered, MemoryFile, SealedFile, SharedTree, ViewTree, encode_table, shown};
use quell_vfs::{ErrorKind, NodeId};
use rustix::process::{Resource, getrlimit};

use crate::display::counted;
use crate::failure::Failure;
use crate::freshness::consequence::ViewAtChange;
use crate::freshness::whole_check::RunningCheck;
use crate::holder::boot_images::{add_boot_images, open_boot_images};
use crate::holder::checked_tree::{self, CheckedTree, StaleTree, report_stale, start_checks};
use crate::holder::copies_above::CopiesAbove;
use crate::holder::handshake::HolderContext;
use crate::holder::served::Served;
use crate::holder::signals::Signals;
use crate::holder::tree_changes::TreeChanges;
use crate::protocol::plan::{CheckMode, TreesPlan};
use crate::protocol::report::{HolderReport, TreeReport};
use crate::protocol::transfer::OpenFiles;
use crate::resources::processors;
use crate::socket::server::{Holder, Need, Service};

/// Number of intervals between the check before a run and the first check during it. A comparison
/// looks up each directory on a path, and a start of a program on a busy node takes many intervals.
const INTERVALS_BEFORE_RECHECKS: u32 = 60;

/// Number of threads that decode a boot image.
const DECODE_THREADS: usize = 4;

/// The number of descriptors that the holder keeps free for its own use.
const FREE_DESCRIPTORS: u64 = 64;

/// The trees of a plan, in memory.
pub struct ProcessTrees {
    plan: TreesPlan,
    holder: Holder,
    trees: Vec<HeldTree>,
    signals: Signals,
}

/// A tree that was checked, and its files in memory.
struct HeldTree {
    covered: Covered,
    index: PathBuf,
    path: PathBuf,
    shared: SharedTree,
    /// The whole files, the table and the index. Other processes can open them while they exist.
    files: Vec<SealedFile>,
    sampler: Sampler,
    running_check: Option<RunningCheck>,
    /// Number of entries compared since the start.
    compared: u64,
    changes: TreeChanges,
}

impl ProcessTrees {
    /// Checks the trees, and copies their indexes and boot images to memory.
    pub fn create(
        context: &HolderContext,
        plan: &TreesPlan,
        mut files: OpenFiles,
    ) -> Result<ProcessTrees, Failure> {
        let mut trees = checked_tree::open_trees(context, plan, &mut files, &mut CopiesAbove::default())?;
        let images = open_boot_images(context, &plan.boot, files);
        add_boot_images(context, &plan.boot, images, &mut trees)?;
        // Until here a signal ends this process.
        let signals = Signals::listen()?;
        let checks_end = start_checks(context, &mut trees, false);
        let held = trees.into_iter().map(|tree| HeldTree::hold(context, plan, tree));
        let held = held.collect::<Result<Vec<_>, Failure>>()?;
        let (mut trees, mut stale) = (Vec::new(), Vec::new());
        for tree in held {
            match tree.running_check.as_ref().and_then(|check| check.wait(checks_end)) {
                None => trees.push(tree),
                Some(report) => stale.push(StaleTree { index: tree.index, path: tree.path, report }),
            }
        }
        report_stale(context, &stale, trees.is_empty())?;
        if context.plan.verbose {
            trees.iter().for_each(|tree| context.print(&tree.description()));
        }
        let mut holder = Holder::bind(&context.address.directory, &context.address.key)?;
        holder.wait_for_creator(context.creator);
        holder.end_with_programs()?;
        signals.wake(&mut holder)?;
        Ok(ProcessTrees { plan: plan.clone(), holder, trees, signals })
    }
}

impl HeldTree {
    fn hold(context: &HolderContext, plan: &TreesPlan, tree: CheckedTree) -> Result<HeldTree, Failure> {
        let CheckedTree { mut covered, boot_file, index, path, sampler, running_check, .. } = tree;
        if covered.fs.capabilities().acls {
            return Err(Failure::cannot(format!(
                "the files of {} have access control lists, which only a view of `quell run` checks: run it without --via preload",
                shown(&path)
            )));
        }
        let mut nodes = Vec::new();
        let mut files = Vec::new();
        let copied = || recorded_files(&mut covered);
        match CheckedTree::watch_decoding(&context.waiting, boot_file.as_ref(), copied) {
            Ok(recorded) => {
                for (node, file) in recorded {
                    nodes.push((node, file.shared));
                    files.push(file);
                }
            }
            // The frames of a boot image are verified while they are decoded.
            Err(e) if e.kind == ErrorKind::Damaged && !context.plan.strict => {
                context.print(&format!("{e}; the boot image is not used"));
            }
            Err(e) => return Err(e.into()),
        }
        let root = covered.source().stat_self()?;
        let table = SealedFile::of(b"quell-table", &encode_table(&root, &nodes))?;
        let bytes = SealedFile::of(b"quell-index", covered.image.bytes())?;
        let shared = SharedTree { holder: std::process::id(), index: bytes.shared, table: table.shared };
        files.extend([table, bytes]);
        let view = ViewAtChange::Compared(plan.on_change);
        let messages = context.messages.clone();
        let changes = TreeChanges::new(covered.image.clone(), &path, "served", view, None, messages);
        let compared = 0;
        Ok(HeldTree { covered, index, path, shared, files, sampler, running_check, compared, changes })
    }

    /// Returns the number of files of the boot image.
    fn whole_files(&self) -> u64 {
        self.files.len().saturating_sub(2) as u64
    }

    fn description(&self) -> String {
        format!(
            "{} served by the preload library ({}; {} in memory)",
            shown(&self.path),
            counted(self.covered.image.entries().into(), "entry", "entries"),
            counted(self.whole_files(), "file", "files")
        )
    }

    fn report(&self) -> TreeReport {
        TreeReport {
            index: self.index.clone(),
            generation: self.covered.image.generation().to_string(),
            path: self.path.clone(),
            source: self.covered.source_path.clone(),
            view: "preload".into(),
            reason: "--via preload".into(),
            entries: self.covered.image.entries().into(),
            looks: self.compared,
            changes: self.changes.count() + self.running_check.as_ref().map_or(0, RunningCheck::changes),
            counters: Some(BTreeMap::from([("files_whole".to_owned(), self.whole_files())])),
        }
    }

    /// Compares one entry with the tree.
    fn compare_next(&mut self) {
        if self.changes.compare_next(&mut self.sampler, self.running_check.as_ref()) {
            self.compared += 1;
        }
    }
}

/// Copies the whole files of a tree's boot image to memory. Each takes a descriptor of this
/// process, so their number is limited; the others are served from the tree.
fn recorded_files(covered: &mut Covered) -> quell_vfs::Result<Vec<(NodeId, SealedFile)>> {
    let Some(set) = covered.recorded.take() else { return Ok(Vec::new()) };
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).saturating_sub(FREE_DESCRIPTORS);
    let used = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
    let free = usize::try_from(limit.saturating_sub(used)).unwrap_or(usize::MAX);
    let mut whole: Vec<NodeId> = set.whole().into_iter().collect();
    whole.sort_unstable();
    tracing::debug!(files = whole.len(), free, "copying the whole files of a boot image to memory");
    whole.truncate(free);
    let set = set.only(&HashSet::from_iter(whole.iter().copied()));
    let mut files: HashMap<Vec<u8>, (NodeId, MemoryFile, _)> = HashMap::new();
    for node in &whole {
        let path = covered.fs.path(*node)?;
        let attributes = covered.image.attributes(node.0 as u32);
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let file = MemoryFile::create(name, attributes.size_bytes)?;
        files.insert(path, (*node, file, attributes.modified));
    }
    let write = |file: &BootFile<'_>, offset: u64, bytes: &[u8]| match files.get(file.name) {
        Some((_, memory, _)) => memory.write(bytes, offset),
        None => Ok(()),
    };
    let whole = HashSet::from_iter(whole);
    set.decode_and_write(&whole, processors().min(DECODE_THREADS), &write)?;
    files.into_values().map(|(node, file, modified)| Ok((node, file.seal(Some(modified))?))).collect()
}

/// The trees while programs serve them.
struct ServedTrees<'a> {
    context: &'a HolderContext,
    trees: Vec<HeldTree>,
    signals: Signals,
    rechecks: bool,
    /// Number of intervals without a check: the trees were compared just before the start.
    intervals_before_rechecks: u32,
    /// The tree that was compared last.
    compared: usize,
}

impl Service for ServedTrees<'_> {
    fn report(&self) -> String {
        HolderReport {
            pid: std::process::id(),
            trees: self.trees.iter().map(HeldTree::report).collect(),
            ..HolderReport::default()
        }
        .to_json()
    }

    fn shared(&self) -> Option<String> {
        let view = |tree: &HeldTree| ViewTree {
            path: tree.path.clone(),
            aliases: Vec::new(),
            index: tree.index.clone(),
            shared: Some(tree.shared),
        };
        serde_json::to_string(&self.trees.iter().map(view).collect::<Vec<_>>()).ok()
    }

    fn need(&mut self) -> Need {
        if self.signals.requests() == 0 { Need::Joinable } else { Need::Over }
    }

    /// Compares one entry of the next tree.
    fn tick(&mut self) {
        if self.intervals_before_rechecks > 0 {
            self.intervals_before_rechecks -= 1;
        } else if self.rechecks && !self.trees.is_empty() {
            self.compared = (self.compared + 1) % self.trees.len();
            self.trees[self.compared].compare_next();
        }
    }

    fn creator_ended(&mut self) {
        self.context.release_error_of_creator();
    }
}

impl Served for ProcessTrees {
    fn report_start(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn is_mounted(&self) -> bool {
        false
    }

    fn abandon(self, _: &HolderContext) {
        self.holder.abandon();
    }

    fn serve(self, context: &HolderContext) -> Result<(), Failure> {
        let ProcessTrees { plan, holder, trees, signals } = self;
        let rechecks = plan.rechecks_per_second > 0.0;
        let interval = if rechecks { 1.0 / plan.rechecks_per_second.min(1000.0) } else { 3600.0 };
        let mut served = ServedTrees {
            context,
            trees,
            signals,
            rechecks,
            intervals_before_rechecks: match plan.check {
                CheckMode::None => 0,
                _ => INTERVALS_BEFORE_RECHECKS,
            },
            compared: 0,
        };
        holder.serve(None, Duration::from_secs_f64(interval.min(3600.0)), &mut served)?;
        Ok(())
    }
}
