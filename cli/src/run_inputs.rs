//! The inputs of `quell run`: its job, indexes and boot images.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_supervisor::{
    BootPlan, CheckMode, JobCheck, JobInput, JobInputs, JobPlan, MeetingPoint, Plan, PlanSource,
    RecordingPlan, SharedBlocksPlan, Target, TreePlan, Waiting, current_job, is_first_notice, job_inputs,
    runtime_directory, state_directory,
};

use quell_wire::job::FILES_MAX;

use crate::arguments::{OnChangeArg, RunArgs, Via, ViewArg};
use crate::commands::job::MEETING_VARIABLE;
use crate::config::Config;
use crate::failure::Failure;
use crate::indexes::{Creation, RequestedIndex, open_indexes};
use crate::inputs::{InputFile, real_path, shown};
use crate::output::errln;
use crate::plans;

/// Returns the identifier of the job: the name given with `--share`, or the parallel job of this
/// process. Runs with the same identifier share a view.
pub fn job_of(args: &RunArgs) -> Option<String> {
    args.share.as_ref().map(|name| format!("share={name}")).or_else(current_job)
}

/// Prints a message once for all ranks of a job on a node.
pub fn print_once(args: &RunArgs, message: &str) {
    if is_first_notice(runtime_directory().ok().as_deref(), job_of(args).as_deref(), message) {
        errln!("quell: {message}");
    }
}

/// Returns the watchdog for a file system that may not answer. Messages are printed once for all
/// ranks of a job on a node, and with `quiet` only if they are errors.
pub fn waiting_of(args: &RunArgs, quiet: bool) -> Waiting {
    let job = job_of(args);
    Waiting::of_command(args.cover.answer_timeout.map(Duration::from_secs), quiet, move |message| {
        if is_first_notice(runtime_directory().ok().as_deref(), job.as_deref(), message) {
            errln!("quell: {message}");
        }
    })
}

/// The indexes and boot images of a run that another node of the job has read.
#[derive(Debug, Default)]
pub struct RunFiles {
    /// For each index its file, or the reason why it cannot be opened; `None` if this process
    /// opens the indexes itself.
    indexes: Option<Vec<Result<JobInput, Failure>>>,
    /// The same for the boot images.
    boot_images: Option<Vec<Result<JobInput, Failure>>>,
    /// The socket of the job holder for shared blocks, if the nodes of the job share blocks.
    blocks_socket: Option<PathBuf>,
}

impl RunFiles {
    /// Gets the files from the nodes of the job, with `--job`. If this is not possible, the reason
    /// is printed, and this process opens the files.
    pub fn of_job(args: &RunArgs, quiet: bool, waiting: &Waiting) -> Result<RunFiles, Failure> {
        if !args.job.job {
            return Ok(RunFiles::default());
        }
        refuse_share_data(args)?;
        let Some(job) = job_of(args) else {
            return Err(Failure::wrong_input(
                "--job: no launcher of parallel jobs has started this process; pass the same --share NAME on all nodes",
            ));
        };
        if args.index.len() + args.boot.boot.len() > FILES_MAX {
            return Err(Failure::wrong_input(format!(
                "--job: at most {FILES_MAX} indexes and boot images can be used together"
            )));
        }
        let found = job_plan(args, &job, quiet).and_then(|plan| job_inputs(&plan, &job, waiting));
        match found {
            Ok(JobInputs { mut files, blocks_socket }) => {
                let boot_images = Some(files.split_off(args.index.len().min(files.len())));
                Ok(RunFiles { indexes: Some(files), boot_images, blocks_socket })
            }
            Err(failure) if failure.is_final() => Err(failure),
            Err(failure) => {
                if !quiet {
                    print_once(
                        args,
                        &format!("{failure}; reading the index and the boot images from the file system"),
                    );
                }
                Ok(RunFiles::default())
            }
        }
    }
}

/// Refuses `--share-data` with options under which Quell does not read the files itself, or shows
/// changed files.
fn refuse_share_data(args: &RunArgs) -> Result<(), Failure> {
    let message = match (&args.job.share_data, args.via, args.cover.view, args.cover.on_change) {
        (None, ..) => return Ok(()),
        _ if !args.pools.is_empty() => "--share-data cannot be used with --pool, which implies --via preload",
        (_, Via::Preload | Via::PreloadSud | Via::Trap, ..) => {
            "--share-data cannot be used with --via preload: the program opens the files itself"
        }
        (_, _, ViewArg::Overlay | ViewArg::OverlayFuse, _) => {
            "--share-data can be used only with --view fuse: in the other views the kernel reads the files"
        }
        (_, _, _, OnChangeArg::Serve | OnChangeArg::Ignore) => {
            "shared blocks have the content of files as they were indexed: use --share-data only with --on-change refuse"
        }
        (_, Via::View, ViewArg::Auto | ViewArg::Fuse, OnChangeArg::Refuse) => return Ok(()),
    };
    Err(Failure::wrong_input(message))
}

/// Returns the plan of the process that gets the files of a job.
fn job_plan(args: &RunArgs, job: &str, quiet: bool) -> Result<Plan, Failure> {
    let absolute = |path: &PathBuf| {
        std::path::absolute(path).map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(path))))
    };
    let files = args.index.iter().chain(&args.boot.boot).map(absolute);
    let process = std::env::var(MEETING_VARIABLE).ok().filter(|text| !text.is_empty());
    let meeting = match (&args.job.job_dir, process) {
        (Some(directory), _) => MeetingPoint::Directory(absolute(directory)?),
        (None, Some(text)) => MeetingPoint::Process(text),
        (None, None) => MeetingPoint::Directory(state_directory().ok_or_else(|| {
            Failure::cannot("the state directory cannot be used: name another with --job-dir DIR")
        })?),
    };
    let plan = JobPlan {
        job: job.to_owned(),
        meeting,
        source: args.cover.source.as_ref().map(absolute).transpose()?,
        samples: matches!(CheckMode::from(args.cover.check), CheckMode::Auto | CheckMode::Sample),
        files: files.collect::<Result<_, Failure>>()?,
        interface: args.job.job_interface.clone(),
        limit_ms: limit_ms(args),
        shared_mib: args.job.share_data,
    };
    let plan = plans::plan(Target::Processes, PlanSource::Job(plan), &args.cover, quiet);
    // All runs of the job on this node share the files. Only a process that reads blocks of the
    // trees for other nodes decides whether it trusts an index.
    let trust_owners = if args.job.share_data.is_some() { plan.trust_owners.clone() } else { Vec::new() };
    Ok(Plan { strict: false, trust_owners, threads: 1, ..plan })
}

fn limit_ms(args: &RunArgs) -> u64 {
    (args.job.job_timeout * 1000.0) as u64
}

/// Opens the indexes, and creates missing ones of directories.
pub fn tree_plans(
    args: &RunArgs,
    quiet: bool,
    received: &mut RunFiles,
    files: &mut Vec<InputFile>,
    waiting: &Waiting,
) -> Result<Vec<TreePlan>, Failure> {
    let cover = &args.cover;
    let resolve = |path: &Path| waiting.watch(path, || real_path(path));
    let absolute = |path: &Option<PathBuf>| path.as_deref().map(resolve).transpose();
    let mut indexes = Vec::new();
    let mut checks: BTreeMap<PathBuf, JobCheck> = BTreeMap::new();
    let mut shared: BTreeMap<PathBuf, SharedBlocksPlan> = BTreeMap::new();
    if let Some(file) = &args.config {
        for tree in waiting.watch(file, || Config::read_trees(file, &cover.trust_owner))? {
            let path = resolve(&tree.path).unwrap_or(tree.path);
            indexes.push(RequestedIndex::Tree { path, index: tree.index });
        }
    }
    let blocks_socket = received.blocks_socket.take();
    match received.indexes.take() {
        Some(received) => {
            for (index, (received, path)) in (0..).zip(received.into_iter().zip(&args.index)) {
                if let (Ok(JobInput { file, .. }), Some(socket)) = (&received, &blocks_socket) {
                    let (socket, limit_ms) = (socket.clone(), limit_ms(args));
                    shared.insert(file.path.clone(), SharedBlocksPlan { socket, index, limit_ms });
                }
                if let Ok(JobInput { file, check: Some(check), .. }) = &received {
                    checks.insert(file.path.clone(), check.clone());
                }
                indexes.push(match received {
                    Ok(JobInput { file, directory: None, .. }) => RequestedIndex::File(file),
                    Ok(JobInput { file, directory: Some(path), .. }) => {
                        RequestedIndex::OfTree { path, index: file }
                    }
                    // The index of a directory is created if it does not exist.
                    Err(_) if waiting.watch(path, || path.is_dir()) => {
                        waiting.watch(path, || RequestedIndex::open(path))?
                    }
                    Err(failure) => return Err(failure),
                });
            }
        }
        None => {
            for path in &args.index {
                indexes.push(waiting.watch(path, || RequestedIndex::open(path))?);
            }
        }
    }
    let creation = Creation { is_reported: cover.verbose, quiet };
    let mut trees = Vec::new();
    for (index, directory) in open_indexes(indexes, creation)? {
        let (source, at) = (absolute(&cover.source)?, absolute(&cover.at)?);
        let named = directory.filter(|_| source.is_none() && at.is_none());
        let (job_check, shared_blocks) = (checks.remove(&index.path), shared.remove(&index.path));
        trees.push(TreePlan { index: index.path.clone(), source, at, named, job_check, shared_blocks });
        files.push(index);
    }
    Ok(trees)
}

/// Opens the boot images, or parses the recording that `quell record` requests.
pub fn boot_plan(
    args: &RunArgs,
    received: &mut RunFiles,
    files: &mut Vec<InputFile>,
    waiting: &Waiting,
) -> Result<BootPlan, Failure> {
    if let Some(text) = &args.recording {
        if !args.boot.boot.is_empty() {
            return Err(Failure::wrong_input("--recording cannot be used with -b"));
        }
        let recording: RecordingPlan =
            serde_json::from_str(text).map_err(|e| Failure::wrong_input(format!("--recording: {e}")))?;
        return Ok(BootPlan::Record(recording));
    }
    let mut images = Vec::new();
    let open = |path: &PathBuf| waiting.watch(path, || InputFile::open(path));
    let opened: Vec<Result<InputFile, Failure>> = match received.boot_images.take() {
        Some(received) => received.into_iter().map(|file| file.map(|input| input.file)).collect(),
        None => args.boot.boot.iter().map(open).collect(),
    };
    // A missing boot image does not prevent the run, unless --strict is given.
    for file in opened {
        match file {
            Ok(file) => {
                images.push(file.path.clone());
                files.push(file);
            }
            Err(failure) if args.cover.strict => return Err(failure),
            Err(failure) => print_once(args, &format!("{failure}; nothing is served from memory")),
        }
    }
    Ok(BootPlan::Serve { images, budget_mib: args.boot.budget })
}
