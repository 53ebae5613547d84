//! `quell run`: joins or creates the view, then executes the program in its own process.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::arguments::{IndexArgs, RunArgs, XattrsArg};
use crate::commands::index::Voice;
use crate::commands::{disks, holder, index};
use crate::config::Config;
use crate::failure::Failure;
use crate::freshness::with_consequence;
use crate::inputs::{Named, real_path, root_of, shown};
use crate::notices;
use crate::output::errln;
use crate::plan::{Place, Plan, Refusal, TreePlan, refuse_mixtures, refuse_powers};
use crate::runtime;
use crate::working_directory::WorkingDirectory;

pub fn run(args: RunArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let (plan, files) = plan(&args, quiet)?;
    let strict = plan.strict;
    let original = if plan.disk.is_some() { "disk image" } else { "directory" };
    // Opened before the view is entered, because in it the paths may refer to other files.
    let outputs = plan.recording.as_ref().and_then(|recording| recording.outputs.as_ref());
    let outputs = match outputs {
        Some([out, err]) => Some([runtime::open_pipe(out)?, runtime::open_pipe(err)?]),
        None => None,
    };
    let job = job_of(&args);
    match enter(plan, &files, job.as_deref()) {
        Ok(()) => {}
        Err(NotEntered { failure, is_irrevocable }) => {
            let message = failure.to_string();
            let directory = runtime::directory().ok();
            let is_first = notices::is_first_to_say(directory.as_deref(), job.as_deref(), &message);
            if strict || is_irrevocable || failure.is_final() {
                return if is_first { Err(failure) } else { Ok(failure.exit_code()) };
            }
            if is_first {
                let consequence = format!(": running on the original {original}, without Quell");
                errln!("quell: {}", with_consequence(&message, &consequence));
            }
        }
    }
    become_program(&args.command, outputs)
}

/// Returns the identity that runs which share a view have in common.
fn job_of(args: &RunArgs) -> Option<String> {
    args.share.as_ref().map(|name| format!("share={name}")).or_else(runtime::job)
}

/// Prints a message once for all ranks of a job on a node.
fn say_once(args: &RunArgs, message: &str) {
    if notices::is_first_to_say(runtime::directory().ok().as_deref(), job_of(args).as_deref(), message) {
        errln!("quell: {message}");
    }
}

fn plan(args: &RunArgs, quiet: bool) -> Result<(Plan, Vec<Named>), Failure> {
    let cover = &args.cover;
    if args.index.len() > 1 && (cover.source.is_some() || cover.at.is_some() || cover.writable.is_some()) {
        return Err(Failure::wrong_input("--source, --at and --writable go with one -i"));
    }
    refuse_mixtures(&args.boot, cover)?;
    refuse_powers(cover, args.image.is_some())?;
    if let Some(disk) = &args.image {
        disks::check_boots(args.boot.boot.len(), args.recording.is_some())?;
        let disk = disks::plan_of(disk, args.image_format, cover)?;
        let mut plan = Plan::new(Place::Namespace, Vec::new(), &args.boot, cover, quiet);
        plan.disk = Some(disk);
        return finish_plan(plan, Vec::new(), args);
    }
    let absolute = |path: &Option<PathBuf>| path.as_deref().map(real_path).transpose();
    let mut indexes = Vec::new();
    if let Some(file) = &args.config {
        for tree in Config::read_trees(file, &cover.trust_owner)? {
            indexes.push(Asked::Tree { path: real_path(&tree.path).unwrap_or(tree.path), index: tree.index });
        }
    }
    for path in &args.index {
        indexes.push(Asked::open(path)?);
    }
    let mut trees = Vec::new();
    let mut files = Vec::new();
    for (index, directory) in open_indexes(indexes, quiet)? {
        let (source, at) = (absolute(&cover.source)?, absolute(&cover.at)?);
        let named = directory.filter(|_| source.is_none() && at.is_none());
        trees.push(TreePlan { index: index.path.clone(), source, at, named });
        files.push(index);
    }
    finish_plan(Plan::new(Place::Namespace, trees, &args.boot, cover, quiet), files, args)
}

/// Adds the part of the plan that is common to trees and disk images.
fn finish_plan(mut plan: Plan, mut files: Vec<Named>, args: &RunArgs) -> Result<(Plan, Vec<Named>), Failure> {
    // A missing boot image does not prevent the run, unless --strict is given.
    for path in &args.boot.boot {
        match Named::open(path) {
            Ok(file) => {
                plan.boots.push(file.path.clone());
                files.push(file);
            }
            Err(failure) if plan.strict => return Err(failure),
            Err(failure) => say_once(args, &format!("{failure}; nothing is served from memory")),
        }
    }
    if let Some(text) = &args.recording {
        let recording = serde_json::from_str(text);
        plan.recording = Some(recording.map_err(|e| Failure::wrong_input(format!("--recording: {e}")))?);
    }
    plan.resolve_writable()?;
    Ok((plan, files))
}

/// An index as the user named it.
#[derive(Debug)]
enum Asked {
    File(Named),
    /// A directory, without symbolic links in its path, and the path of its index.
    Tree {
        path: PathBuf,
        index: PathBuf,
    },
}

impl Asked {
    fn open(path: &Path) -> Result<Asked, Failure> {
        let named = Named::open(path)?;
        if !named.is_dir() {
            return Ok(Asked::File(named));
        }
        let index = index::default_path(&named.path)?;
        Ok(Asked::Tree { path: named.path, index })
    }
}

/// Opens the index that was named: a file, or the index beside a directory, which is created if it
/// does not exist. Returns the directory, too.
pub fn index_of(path: &Path, quiet: bool) -> Result<(Named, Option<PathBuf>), Failure> {
    Ok(open_indexes(vec![Asked::open(path)?], quiet)?.remove(0))
}

/// Opens the indexes in their order, together with the directories that were named, and creates
/// missing ones. No index is written into a tree that another one covers.
fn open_indexes(indexes: Vec<Asked>, quiet: bool) -> Result<Vec<(Named, Option<PathBuf>)>, Failure> {
    let is_missing = |asked: &Asked| match asked {
        Asked::File(_) => None,
        Asked::Tree { index, .. } => (!index.exists()).then(|| index.clone()),
    };
    let missing: Vec<PathBuf> = indexes.iter().filter_map(is_missing).collect();
    if !missing.is_empty() {
        let covered = indexes.iter().map(|asked| match asked {
            Asked::Tree { path, .. } => Ok(path.clone()),
            Asked::File(file) => Ok(root_of(&file.index().map_err(Failure::and_final)?)),
        });
        let covered = covered.collect::<Result<Vec<_>, Failure>>()?;
        for index in &missing {
            index::refuse_within(index, &covered)?;
        }
    }
    let open = |asked| match asked {
        Asked::File(file) => Ok((file, None)),
        Asked::Tree { path, index } => Ok((index_at(&path, &index, quiet)?, Some(path))),
    };
    indexes.into_iter().map(open).collect()
}

/// Opens the index of a directory in this file, and creates it if it does not exist.
fn index_at(directory: &Path, file: &Path, quiet: bool) -> Result<Named, Failure> {
    if !file.exists() {
        errln!("quell: {} has no index yet; making {}", shown(directory), shown(file));
        index::run(
            IndexArgs {
                path: directory.into(),
                output: Some(file.into()),
                force: false,
                update: None,
                exclude: Vec::new(),
                one_file_system: false,
                cross_mounts: false,
                xattrs: XattrsArg::Auto,
                strict: false,
                threads: 16,
                source: None,
                trust_owner: Vec::new(),
                json: false,
            },
            quiet,
            Voice::Aside,
        )?;
    }
    Named::open(file)
}

/// The reason why this process is not in the view.
struct NotEntered {
    failure: Failure,
    /// Whether this process is already in a namespace that it cannot leave.
    is_irrevocable: bool,
}

impl<E: Into<Failure>> From<E> for NotEntered {
    fn from(failure: E) -> NotEntered {
        NotEntered { failure: failure.into(), is_irrevocable: false }
    }
}

/// Moves this process into the view, and to its working directory there.
fn enter(mut plan: Plan, files: &[Named], job: Option<&str>) -> Result<(), NotEntered> {
    let working_directory = WorkingDirectory::of_caller()?;
    plan.directory = runtime::directory()?;
    // Virtual machines are started one by one, but share the blocks in memory.
    let shared_by = job.or_else(|| plan.disk.is_some().then_some("machines"));
    plan.key = runtime::key(&plan, files, shared_by)?;
    // If another rank of the job was refused just before, nothing is tried again.
    let recall = || job.and_then(|_| notices::recall(&plan.directory, &plan.key));
    if let Some(refusal) = recall() {
        return Err(Failure::from(refusal).into());
    }
    let mut refused = None;
    let joined = quell_overlay::join(&plan.directory, &plan.key, &working_directory.path, |lock| {
        refused = recall().or_else(|| {
            let refusal = match holder::start(&plan, files, lock) {
                Ok(answer) => answer.refused,
                Err(failure) => Some(Refusal::from(&failure)),
            };
            if let (Some(refusal), Some(_)) = (&refusal, job) {
                notices::remember(&plan.directory, &plan.key, refusal);
            }
            refusal
        });
        match &refused {
            None => Ok(()),
            Some(_) => {
                // The refused holder left no mount; its lock file is removed too.
                runtime::remove_lock(&plan);
                Err(quell_vfs::Error::new(quell_vfs::ErrorKind::Unsupported, "cover", &plan.key))
            }
        }
    });
    if let Some(refusal) = refused {
        return Err(Failure::from(refusal).into());
    }
    let admission = match joined {
        Err(e) if e.errno() == rustix::io::Errno::TIMEDOUT.raw_os_error() => {
            return Err(Failure::cannot(format!(
                "the process that serves the view does not answer within {} s: {e}; kill -KILL ends it, and the next run \
                 starts another",
                quell_overlay::ANSWER_TIMEOUT.as_secs()
            ))
            .into());
        }
        joined => joined?,
    };
    let directory = working_directory.in_view(admission.directory)?;
    admission.namespaces.enter()?;
    rustix::process::fchdir(&directory).map_err(|e| {
        let message = format!("cannot enter {} in the view: {e}", shown(&working_directory.path));
        NotEntered { is_irrevocable: true, ..Failure::cannot(message).into() }
    })
}

/// Executes the program in this process, so exit code, signals and terminal are the program's own.
/// Returns only if the program cannot be started.
fn become_program(command: &[OsString], outputs: Option<[File; 2]>) -> Result<ExitCode, Failure> {
    let (program, arguments) = command.split_first().expect("clap asks for one");
    let mut command = Command::new(program);
    if let Some([out, err]) = outputs {
        command.stdout(out).stderr(err);
    }
    let error = command.args(arguments).exec();
    // The codes of shells and env(1): 127 if the program was not found, 126 if it could not be
    // started.
    errln!("quell: {}: {error}", shown(Path::new(program)));
    let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    Ok(ExitCode::from(code))
}
