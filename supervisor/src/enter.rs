//! Moves the calling process into a view, or finds the trees that a holder has in memory. The
//! holder is joined or started.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use quell_mount_spec::ViewTree;

use crate::display::shown;
use crate::failure::Failure;
use crate::inputs::InputFile;
use crate::protocol::answer::Refusal;
use crate::protocol::job_files::{FilesInMemory, JobInput};
use crate::protocol::plan::{Plan, PlanSource};
use crate::protocol::transfer::Address;
use crate::runtime::directory::runtime_directory;
use crate::runtime::{key, notices};
use crate::socket::client::{admitted, join, shared};
use crate::socket::connection::ANSWER_TIMEOUT;
use crate::start::start_holder;
use crate::waiting::Waiting;
use crate::working_directory::WorkingDirectory;

/// The reason why this process did not enter the view.
#[derive(Debug)]
pub struct NotEntered {
    /// The failure to print.
    pub failure: Failure,
    /// Whether this process is already in a namespace that it cannot leave.
    pub is_irrevocable: bool,
}

impl<E: Into<Failure>> From<E> for NotEntered {
    fn from(failure: E) -> NotEntered {
        NotEntered { failure: failure.into(), is_irrevocable: false }
    }
}

/// Moves this process into the view of a plan, and to its working directory there. The process must
/// have a single thread.
///
/// `files`: the inputs of the plan that the caller has opened. `job`: the identifier of the job.
/// Runs with equal plans and the same identifier share a view. `waiting`: watches operations of
/// this process.
pub fn enter_view(
    plan: &Plan,
    files: &[InputFile],
    job: Option<&str>,
    waiting: &Waiting,
) -> Result<(), NotEntered> {
    let working_directory = WorkingDirectory::of_caller()?;
    let path = &working_directory.path;
    let admission = find_holder(plan, files, job, waiting, |stream, until| admitted(stream, path, until))?;
    let directory = waiting.watch(path, || working_directory.in_view(admission.directory))?;
    admission.namespaces.enter()?;
    rustix::process::fchdir(&directory).map_err(|e| {
        let message = format!("cannot enter {} in the view: {e}", shown(&working_directory.path));
        NotEntered { is_irrevocable: true, ..Failure::cannot(message).into() }
    })
}

/// Trees in the memory of a holder, for programs that serve them in their own processes.
#[derive(Debug)]
pub struct SharedTrees {
    /// The trees, without aliases.
    pub trees: Vec<ViewTree>,
    /// Keeps the holder running: the program and its children inherit it.
    pub lifeline: OwnedFd,
}

/// Joins or starts the holder that checks the trees of a plan and has them in memory. The target of
/// the plan must be `Processes`. `files`, `job` and `waiting` have the same meaning as in
/// [`enter_view`].
pub fn share_trees(
    plan: &Plan,
    files: &[InputFile],
    job: Option<&str>,
    waiting: &Waiting,
) -> Result<SharedTrees, Failure> {
    let found =
        find_holder(plan, files, job, waiting, shared).map_err(|NotEntered { failure, .. }| failure)?;
    let (answer, lifeline) = found;
    let trees = serde_json::from_slice(&answer)
        .map_err(|_| Failure::cannot("the holder process sent an answer that cannot be read"))?;
    Ok(SharedTrees { trees, lifeline })
}

/// The files of a job, in the memory of a process of this node.
#[derive(Debug)]
pub struct JobInputs {
    /// The files, in the order of the plan, or the reasons why they could not be opened.
    pub files: Vec<Result<JobInput, Failure>>,
    /// The socket for shared blocks, if the process shares blocks.
    pub blocks_socket: Option<PathBuf>,
}

/// Joins or starts the job holder of this node. The source of the plan must
/// be `Job`, and its target `Processes`. The process ends after this one, whose process number the
/// user's program has later.
pub fn job_inputs(plan: &Plan, job: &str, waiting: &Waiting) -> Result<JobInputs, Failure> {
    let found =
        find_holder(plan, &[], Some(job), waiting, shared).map_err(|NotEntered { failure, .. }| failure)?;
    let (answer, _lifeline) = found;
    let FilesInMemory { holder, files, blocks_socket } = serde_json::from_slice(&answer)
        .map_err(|_| Failure::cannot("the job holder sent an answer that cannot be read"))?;
    Ok(JobInputs { files: files.iter().map(|file| file.open(holder)).collect(), blocks_socket })
}

/// Joins the holder of a plan, which is started if there is none, and returns its answer to
/// `request`.
fn find_holder<T>(
    plan: &Plan,
    files: &[InputFile],
    job: Option<&str>,
    waiting: &Waiting,
    request: impl Fn(&UnixStream, Instant) -> quell_vfs::Result<T>,
) -> Result<T, NotEntered> {
    // Machines are started by separate runs without a job. They share one holder, so that the
    // blocks are in memory once.
    let shared_by = job.or(matches!(plan.source, PlanSource::Disk(_)).then_some("machines"));
    let read = files.first().map_or(Path::new("/proc"), |file| &*file.path);
    let key = waiting.watch(read, || key::view_key(plan, files, shared_by))?;
    let address = Address { directory: runtime_directory()?, key };
    let Address { directory, key } = &address;
    // If another rank of the job was refused within the last 30 s, this rank does not try again.
    let recent_refusal = || job.and_then(|_| notices::recent_refusal(directory, key));
    if let Some(refusal) = recent_refusal() {
        return Err(Failure::from(refusal).into());
    }
    let mut refused = None;
    let make = |lock: &File| {
        refused = recent_refusal().or_else(|| {
            tracing::debug!(key, "starting a holder");
            let refusal = match start_holder(plan, &address, files, lock) {
                Ok(answer) => answer.refused,
                Err(failure) => Some(Refusal::from(&failure)),
            };
            if let (Some(refusal), Some(_)) = (&refusal, job) {
                notices::record_refusal(directory, key, refusal);
            }
            refusal
        });
        match &refused {
            None => Ok(()),
            Some(_) => {
                // The refused holder left no mount; its lock file is removed too.
                key::remove_lock(&address);
                Err(quell_vfs::Error::new(quell_vfs::ErrorKind::Unsupported, "cover", key))
            }
        }
    };
    let joined = join(directory, key, make, request);
    if let Some(refusal) = refused {
        return Err(Failure::from(refusal).into());
    }
    tracing::debug!(key, joined = joined.is_ok(), "answered by the holder");
    match joined {
        Err(e) if e.errno() == rustix::io::Errno::TIMEDOUT.raw_os_error() => {
            Err(Failure::cannot(format!(
                "the process that serves the view does not answer within {} s: {e}; kill -KILL ends it, and the next run \
                 starts another",
                ANSWER_TIMEOUT.as_secs()
            ))
            .into())
        }
        joined => Ok(joined?),
    }
}
