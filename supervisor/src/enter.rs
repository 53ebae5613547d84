//! Moves the calling process into a view, which it joins or creates.

use crate::display::shown;
use crate::failure::Failure;
use crate::inputs::InputFile;
use crate::protocol::answer::Refusal;
use crate::protocol::plan::{Plan, PlanSource};
use crate::protocol::transfer::Address;
use crate::runtime::directory::runtime_directory;
use crate::runtime::{key, notices};
use crate::socket::client::join;
use crate::socket::connection::ANSWER_TIMEOUT;
use crate::start::start_holder;
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
/// Runs with equal plans and the same identifier share a view.
pub fn enter_view(plan: &Plan, files: &[InputFile], job: Option<&str>) -> Result<(), NotEntered> {
    let working_directory = WorkingDirectory::of_caller()?;
    // Machines are started by separate runs without a job. They share one holder, so that the
    // blocks are in memory once.
    let shared_by = job.or(matches!(plan.source, PlanSource::Disk(_)).then_some("machines"));
    let address = Address { directory: runtime_directory()?, key: key::view_key(plan, files, shared_by)? };
    let Address { directory, key } = &address;
    // If another rank of the job was refused within the last 30 s, this rank does not try again.
    let recent_refusal = || job.and_then(|_| notices::recent_refusal(directory, key));
    if let Some(refusal) = recent_refusal() {
        return Err(Failure::from(refusal).into());
    }
    let mut refused = None;
    let joined = join(directory, key, &working_directory.path, |lock| {
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
    });
    if let Some(refusal) = refused {
        return Err(Failure::from(refusal).into());
    }
    tracing::debug!(key, joined = joined.is_ok(), "answered by the holder");
    let admission = match joined {
        Err(e) if e.errno() == rustix::io::Errno::TIMEDOUT.raw_os_error() => {
            return Err(Failure::cannot(format!(
                "the process that serves the view does not answer within {} s: {e}; kill -KILL ends it, and the next run \
                 starts another",
                ANSWER_TIMEOUT.as_secs()
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
