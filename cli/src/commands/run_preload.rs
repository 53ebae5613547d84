//! `quell run --via preload` and `--via preload+sud`: executes the program with the preload
//! library, which serves the directories in the program's own process.

use std::ffi::OsString;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use quell_mount_spec::{VIEW_VARIABLE, View, ViewTree, create_process_counters};
use quell_supervisor::{
    LogOptions, Target, Waiting, is_first_notice, runtime_directory, share_trees, with_consequence,
};

use crate::arguments::{AboveArg, RunArgs, Via, ViewArg};
use crate::config::{Config, LogConfig};
use crate::failure::Failure;
use crate::inputs::{real_path, shown};
use crate::installed::{self, PRELOAD_LIBRARY};
use crate::output::errln;
use crate::plans;
use crate::program::become_program;
use crate::program_kind::{ALTERNATIVE, program_kind, why_no_dispatch};
use crate::run_inputs::{RunFiles, boot_plan, job_of, tree_plans, waiting_of};
use crate::views::{POOL_DIRECTORY_VARIABLE, aliases, log_of_argument, log_of_paths, pool_of_argument};

/// The lowest number of the descriptors that the program inherits and does not use: the lock of the
/// counters, and the descriptor that keeps a holder running.
const INHERITED_DESCRIPTOR_MINIMUM: i32 = 500;

/// The variable by which the dynamic linker loads libraries before all others.
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// The library for a program that can be started with it.
pub struct Preload {
    pub library: PathBuf,
    /// Whether system calls without libc are served as well.
    pub dispatch: bool,
}

/// Checks the options and the program, and finds the library.
pub fn preload(args: &RunArgs) -> Result<Preload, Failure> {
    refuse_other_options(args)?;
    let dispatch = args.via == Via::PreloadSud;
    if dispatch && let Some(reason) = why_no_dispatch() {
        return Err(Failure::cannot(format!(
            "--via preload+sud: {reason}; use --via preload, or {ALTERNATIVE}"
        )));
    }
    let library = installed::library(PRELOAD_LIBRARY, "install the library with `make install`")?;
    let kind = program_kind(&args.command[0])?;
    if let Some(refusal) = kind.refusal {
        let reason = refusal.reason();
        return Err(Failure::cannot(format!("{} {reason}; {ALTERNATIVE}", shown(&kind.file))));
    }
    Ok(Preload { library, dispatch })
}

pub fn run(args: &RunArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let Preload { library, dispatch } = preload(args)?;
    let logs = match &args.config {
        Some(file) => match Config::read_both(file, &args.cover.trust_owner)? {
            (trees, logs) if trees.is_empty() && logs.is_empty() && args.index.is_empty() => {
                return Err(Failure::wrong_input("the configuration file has no [[tree]] and no [[log]]"));
            }
            (_, logs) => logs,
        },
        None => Vec::new(),
    };
    let waiting = waiting_of(args, quiet);
    let (trees, lifeline) = view_trees(args, quiet, &waiting)?;
    let mut view = View { trees, dispatch, ..View::default() };
    for text in &args.logs {
        view.logs.push(log_of_argument(text, LogOptions::default())?);
    }
    for text in &args.pools {
        view.pools.push(pool_of_argument(text)?);
    }
    for LogConfig { path, stores, index, .. } in &logs {
        let options = LogOptions { index: index.map(Into::into), ..LogOptions::default() };
        view.logs.push(log_of_paths(stores, path, options)?);
    }
    // A program's working directory can only be an existing directory.
    if let Some(log) = view.logs.iter().find(|log| !log.path.is_dir()) {
        let path = shown(&log.path);
        return Err(Failure::wrong_input(format!("{path} does not exist; create it: mkdir {path}")));
    }
    if view.directories() == 0 {
        // The reasons have been printed.
        return become_program(&args.command, None, &[], &waiting);
    }
    View::parse(view.to_json()?.as_bytes())?;
    count(&mut view, args.cover.verbose);
    lifeline.map(inherit).transpose()?;
    if args.cover.verbose {
        for log in &view.logs {
            errln!("quell: {} served by {}", shown(&log.path), shown(&library));
        }
    }
    let mut variables = variables(&view, &library)?;
    if let Some(pool) = view.pools.first() {
        variables.push((POOL_DIRECTORY_VARIABLE, pool.path.clone().into()));
    }
    become_program(&args.command, None, &variables, &waiting)
}

/// Creates the file with counters for `quell stats`. Without it the program runs all the same. The
/// descriptor with the lock remains open in the program and its children, with a number that
/// programs do not use.
pub fn count(view: &mut View, verbose: bool) {
    let created = runtime_directory().and_then(|runtime| Ok(create_process_counters(&runtime, view)?));
    if let Err(failure) = created.and_then(|file| inherit(file.into())) {
        if verbose {
            errln!("quell: {failure}; operations are not counted");
        }
        view.counters = None;
    }
}

/// Returns the variables with which a program loads the library, and by which it finds the view.
pub fn variables(view: &View, library: &Path) -> Result<Vec<(&'static str, OsString)>, Failure> {
    Ok(vec![(VIEW_VARIABLE, view.to_json()?.into()), (PRELOAD_VARIABLE, preloaded(library))])
}

/// Returns the value of LD_PRELOAD with the library before the user's own.
fn preloaded(library: &Path) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(known) = std::env::var_os(PRELOAD_VARIABLE).filter(|known| !known.is_empty()) {
        value.push(":");
        value.push(known);
    }
    value
}

/// Refuses options that need a view of the kernel.
fn refuse_other_options(args: &RunArgs) -> Result<(), Failure> {
    let cover = &args.cover;
    let options = [
        ("--image", args.image.is_some()),
        ("--recording", args.recording.is_some()),
        ("--source", cover.source.is_some()),
        ("--at", cover.at.is_some()),
        ("--scratch", cover.scratch),
        ("--writable", cover.writable.is_some()),
        ("--view", !matches!(cover.view, ViewArg::Auto)),
        ("--suid", cover.suid),
        ("--dev", cover.dev),
        ("--above copy", args.above == AboveArg::Copy),
    ];
    match options.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((option, _)) => {
            Err(Failure::wrong_input(format!("{option} needs a view, and cannot be used with --via preload")))
        }
    }
}

/// Lets a holder check the trees and keep them in memory, for all processes of the job on this
/// node. Returns the trees, and the descriptor that keeps the holder running. Without `--strict`,
/// trees that cannot be served are reported and left out.
fn view_trees(
    args: &RunArgs,
    quiet: bool,
    waiting: &Waiting,
) -> Result<(Vec<ViewTree>, Option<OwnedFd>), Failure> {
    plans::refuse_mixed_content(&args.boot, &args.cover)?;
    let mut files = Vec::new();
    let mut received = RunFiles::of_job(args, quiet, waiting)?;
    let trees = tree_plans(args, quiet, &mut received, &mut files, waiting)?;
    if trees.is_empty() {
        return match args.boot.boot.is_empty() {
            true => Ok((Vec::new(), None)),
            false => Err(Failure::wrong_input("-b needs the index of its tree: name it with -i")),
        };
    }
    let source = plans::trees(
        trees,
        boot_plan(args, &mut received, &mut files, waiting)?,
        &args.cover,
        args.cover.view.into(),
        args.above,
    )?;
    let plan = plans::plan(Target::Processes, source, &args.cover, quiet);
    let job = job_of(args);
    let shared = match share_trees(&plan, &files, job.as_deref(), waiting) {
        Ok(shared) => shared,
        Err(failure) => {
            let message = failure.to_string();
            let is_first = is_first_notice(runtime_directory().ok().as_deref(), job.as_deref(), &message);
            if plan.strict || failure.is_final() {
                return Err(failure);
            }
            if is_first {
                errln!("quell: {}", with_consequence(&message, ": the original directory is used"));
            }
            return Ok((Vec::new(), None));
        }
    };
    let mut trees = shared.trees;
    for named in args.index.iter().filter(|path| path.is_dir()) {
        let real = real_path(named)?;
        if let Some(tree) = trees.iter_mut().find(|tree| tree.path == real) {
            tree.aliases = aliases(named, &real);
        }
    }
    Ok((trees, Some(shared.lifeline)))
}

/// Lets the program and its children inherit a descriptor, with a number that programs do not use.
fn inherit(fd: OwnedFd) -> Result<(), Failure> {
    let failed = |error: rustix::io::Errno| Failure::cannot(format!("descriptors: {error}"));
    let high = rustix::io::fcntl_dupfd_cloexec(&fd, INHERITED_DESCRIPTOR_MINIMUM).map_err(failed)?;
    rustix::io::fcntl_setfd(&high, rustix::io::FdFlags::empty()).map_err(failed)?;
    let _inherited = high.into_raw_fd();
    Ok(())
}
