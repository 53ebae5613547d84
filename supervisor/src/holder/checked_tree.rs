//! Trees that were opened and compared with their indexes before anything is covered.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_index::Sampler;
use quell_job::{BlockClient, SharedBlocksLimits};
use quell_mount_spec::{Covered, Ownership, TrustedUse};

use crate::display::shown;
use crate::failure::Failure;
use crate::freshness::decision::START_TIMEOUT;
use crate::freshness::full_check::full_check;
use crate::freshness::sample::sample;
use crate::freshness::stale::StaleReport;
use crate::freshness::whole_check::{CheckPlan, RunningCheck, TreeCheck};
use crate::holder::copies_above::CopiesAbove;
use crate::holder::handshake::HolderContext;
use crate::holder::job::JOB_PROGRESS_LIMIT;
use crate::holder::privileges;
use crate::inputs::{InputFile, root_of};
use crate::protocol::plan::{CheckMode, SampleResult, SharedBlocksPlan, Target, TreePlan, TreesPlan};
use crate::protocol::transfer::OpenFiles;
use crate::resources;
use crate::trust::check_input_trust;
use crate::view::shared_blocks::{SharedBlocks, SharedBlocksFs};
use crate::waiting::Waiting;

/// How long programs get between SIGTERM and SIGKILL when --strict ends them.
const END_GRACE: Duration = Duration::from_secs(5);

/// A tree that was compared with its index and opened before anything is covered.
pub struct CheckedTree {
    pub covered: Covered,
    /// The file of the boot image, if there is one. Its frames are read while they are decoded.
    pub boot_file: Option<InputFile>,
    pub index: PathBuf,
    pub index_belongs_to_root: bool,
    /// The directory to cover.
    pub path: PathBuf,
    pub sampler: Sampler,
    /// The check of the whole tree, before it starts (`planned_check`) and while it runs.
    planned_check: Option<TreeCheck>,
    pub running_check: Option<RunningCheck>,
}

/// A tree whose index is out of date.
pub struct StaleTree {
    pub index: PathBuf,
    pub path: PathBuf,
    pub report: StaleReport,
}

impl CheckedTree {
    /// Performs an operation that decodes the boot image of the tree, if there is one, and watches
    /// it as a read of the image's file.
    pub fn watch_decoding<T>(
        waiting: &Waiting,
        boot_file: Option<&InputFile>,
        decode: impl FnOnce() -> T,
    ) -> T {
        match boot_file {
            Some(file) => waiting.watch_read(&file.file, &file.path, decode),
            None => decode(),
        }
    }
}

/// Opens the trees of a plan and compares them with their indexes, as far as this is done before
/// the namespace exists. Trees with differences are left out and reported. The directories above
/// each tree are added to `copies`, if the plan says so.
pub fn open_trees(
    context: &HolderContext,
    plan: &TreesPlan,
    files: &mut OpenFiles,
    copies: &mut CopiesAbove,
) -> Result<Vec<CheckedTree>, Failure> {
    let (mut trees, mut stale) = (Vec::new(), Vec::new());
    for tree in &plan.trees {
        match open_tree(context, plan, tree, files, copies)? {
            (tree, None) => trees.push(tree),
            (tree, Some(report)) => stale.push(StaleTree { index: tree.index, path: tree.path, report }),
        }
    }
    report_stale(context, &stale, trees.is_empty())?;
    Ok(trees)
}

fn open_tree(
    context: &HolderContext,
    trees: &TreesPlan,
    tree: &TreePlan,
    files: &mut OpenFiles,
    copies: &mut CopiesAbove,
) -> Result<(CheckedTree, Option<StaleReport>), Failure> {
    let plan = &context.plan;
    let file = match files.remove(&tree.index) {
        Some(file) => file,
        None => InputFile::open(&tree.index)?,
    };
    let waiting = &context.waiting;
    let loaded =
        waiting.watch_read(&file.file, &tree.index, || resources::load_index(&file.file, &tree.index));
    let image = loaded.map_err(|failure| match failure.is_damage() {
        true => failure,
        false => failure.into_final(),
    })?;
    let image = Arc::new(image);
    let root = root_of(&image);
    if let Some(named) = tree.named.as_ref().filter(|named| **named != root) {
        return Err(Failure::refused(format!(
            "{} is an index of {}, not of {}: index that directory, or name the location of the indexed tree with --source or --at",
            shown(&tree.index),
            shown(&root),
            shown(named)
        )));
    }
    let source = tree.source.clone().unwrap_or(root);
    let open_files: Vec<&InputFile> = files.values().chain([&file]).collect();
    copies.list(context, trees, tree.at.as_ref().unwrap_or(&source), &open_files)?;
    let index_belongs_to_root = quell_mount_spec::belongs_to_root(&file.ownership()?);
    let rules = privileges::rules(plan, trees, index_belongs_to_root)?;
    let mut covered = waiting
        .watch(&source, || quell_mount_spec::cover(image.clone(), &source, trees.on_change.into(), rules))?;
    // The index is not trusted yet. Until here, only the path of the tree was taken from it.
    let owner = Ownership::from(&waiting.watch(&source, || covered.source().stat_self())?);
    check_input_trust(&plan.trusted(), &file, TrustedUse::Index, Some((&source, &owner)))?;
    if let Some(shared) = &tree.shared_blocks {
        let blocks = SharedBlocks { client: block_client(context, shared), index: shared.index };
        covered.fs = Arc::new(SharedBlocksFs::new(covered.fs, blocks));
    }
    let path = match &plan.target {
        Target::Mountpoint { path, .. } => path.clone(),
        Target::Namespace | Target::Processes => {
            tree.at.clone().unwrap_or_else(|| covered.source_path.clone())
        }
    };
    let seed = u64::from(std::process::id()) << 32
        | u64::from(std::time::UNIX_EPOCH.elapsed().map_or(1, |t| t.subsec_nanos()));
    let mut sampler = Sampler::new(image.clone(), covered.source(), seed);
    let directory = &context.address.directory;
    let job_check = tree.job_check.as_ref();
    let of_job = job_check.and_then(|check| check.sample.clone());
    let stale = match (trees.check, of_job) {
        (CheckMode::None, _) => None,
        (CheckMode::Sample | CheckMode::Auto, Some(SampleResult { stale })) => stale,
        (CheckMode::Sample | CheckMode::Auto, None) => {
            let differences = sample(waiting, directory, &image, &source, &mut sampler);
            StaleReport::from_differences(&differences, false)
        }
        (CheckMode::Full, _) => {
            // Ctrl-C ends the run, but not this process, which has its own session. The check
            // therefore ends when the run has ended.
            let run = PathBuf::from(format!("/proc/{}", context.creator));
            let console = context.messages.console();
            let differences = full_check(&image, &source, plan.quiet, console, &|| !run.exists())?;
            StaleReport::from_differences(&differences, true)
        }
    };
    let CheckPlan { check: planned_check, stale: known } = match (trees.check, &stale) {
        (CheckMode::Auto, None) => TreeCheck::plan(&image, &source, directory, job_check),
        _ => CheckPlan::default(),
    };
    let tree = CheckedTree {
        covered,
        boot_file: None,
        index: tree.index.clone(),
        index_belongs_to_root,
        path,
        sampler,
        planned_check,
        running_check: None,
    };
    Ok((tree, stale.or(known)))
}

/// Returns the client of the job holder of this node. It starts no thread before the first read.
fn block_client(context: &HolderContext, shared: &SharedBlocksPlan) -> Arc<BlockClient> {
    let answer = Duration::from_millis(shared.limit_ms);
    let limits = SharedBlocksLimits { answer, progress: JOB_PROGRESS_LIMIT.max(answer) };
    let (messages, quiet) = (context.messages.clone(), context.plan.quiet);
    let print = move |message: &str| {
        if !quiet {
            messages.print(message);
        }
    };
    Arc::new(BlockClient::new(shared.socket.clone(), limits, Box::new(print)))
}

/// Reports trees that are not covered because their indexes are out of date. This is an error with
/// --strict, or if no tree is left.
pub fn report_stale(context: &HolderContext, stale: &[StaleTree], none_left: bool) -> Result<(), Failure> {
    if stale.is_empty() {
        return Ok(());
    }
    if context.plan.strict || none_left {
        let messages: Vec<String> = stale.iter().map(|tree| tree.report.message(&tree.index, "")).collect();
        return Err(Failure::cannot(messages.join("\n")));
    }
    for StaleTree { index, path, report } in stale {
        context.print(&report.message(index, &format!(": {} is not covered", shown(path))));
    }
    Ok(())
}

/// Starts the checks of whole trees; views are created meanwhile. Returns the time until which the
/// start waits for the checks that it depends on.
///
/// `watches`: directories of trees that the caller may write to are watched.
pub fn start_checks(context: &HolderContext, trees: &mut [CheckedTree], watches: bool) -> Instant {
    for tree in trees {
        let report = late_report(context, &tree.index, &tree.covered.source_path);
        tree.running_check = tree.planned_check.take().map(|check| check.begin(watches, report));
    }
    Instant::now() + START_TIMEOUT
}

/// Returns the function that reports differences found after the program's start, and with --strict
/// ends the programs of the view. Its second argument: whether the view shows changed files.
fn late_report(
    context: &HolderContext,
    index: &Path,
    source: &Path,
) -> impl FnOnce(&StaleReport, bool) + Send + 'static {
    let (index, source, messages) = (index.to_owned(), source.to_owned(), context.messages.clone());
    let ends_programs = context.plan.strict && matches!(context.plan.target, Target::Namespace);
    move |stale, shows_files| {
        let consequence = match (ends_programs, shows_files) {
            (true, _) => ": ending the program because of --strict".into(),
            (false, false) => format!(": the view of {} keeps the indexed metadata", shown(source)),
            (false, true) => format!(
                ": the view of {} keeps the indexed metadata, except sizes and times of changed files",
                shown(source)
            ),
        };
        messages.print(&stale.message(&index, &consequence));
        if !ends_programs {
            return;
        }
        loop {
            // Also ends programs that join from now on; the holder ends after the last one.
            quell_overlay::end_other_members(END_GRACE);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
