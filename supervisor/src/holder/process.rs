//! The process of a holder, from its start to its end.

use std::sync::Arc;

use crate::console::Console;
use crate::failure::Failure;
use crate::holder::disk::DiskView;
use crate::holder::handshake::HolderContext;
use crate::holder::log;
use crate::holder::messages::Messages;
use crate::holder::process_trees::ProcessTrees;
use crate::holder::served::hold;
use crate::holder::tree_view::TreeView;
use crate::holder::{batch, blob, job, pool};
use crate::protocol::plan::{PlanSource, Target};
use crate::protocol::transfer::{self, Received};

/// Runs the holder: reads its plan from standard input, writes its answer to standard output, and
/// serves until the last user of the view or mount has ended.
///
/// Errors: the plan cannot be read; or an error after the answer.
pub fn run_holder(console: Arc<dyn Console>, quiet: bool) -> Result<(), Failure> {
    let Received { mut envelope, lock, files } = transfer::receive(std::io::stdin())?;
    envelope.plan.quiet |= quiet;
    leave_session();
    let context = HolderContext::new(envelope, Messages::new(console));
    match &context.plan.source {
        PlanSource::Trees(trees) if matches!(context.plan.target, Target::Processes) => {
            hold(ProcessTrees::create(&context, trees, files), lock, &context)
        }
        PlanSource::Trees(trees) => hold(TreeView::create(&context, trees, files), lock, &context),
        PlanSource::Disk(disk) => hold(DiskView::create(&context, disk, files), lock, &context),
        PlanSource::Log(plan) => hold(log::create(&context, plan), lock, &context),
        PlanSource::Pool(plan) => hold(pool::create(&context, plan), lock, &context),
        PlanSource::Blob(plan) => hold(blob::create(&context, plan), lock, &context),
        PlanSource::Batch(plan) => hold(batch::create(&context, plan), lock, &context),
        PlanSource::Job(plan) => hold(job::JobFiles::create(&context, plan), lock, &context),
    }
}

/// Detaches the process from the terminal and from the caller's directory and umask, and raises its
/// limits of open files and file size to the maximum.
fn leave_session() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, setsid, umask};
    // The process was started as /proc/self/exe and would be named `exe`.
    let _ = rustix::thread::set_name(c"quell");
    let _ = setsid();
    let _ = std::env::set_current_dir("/");
    umask(rustix::fs::Mode::empty());
    for resource in [Resource::Nofile, Resource::Fsize] {
        let limit = getrlimit(resource);
        let _ = setrlimit(resource, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    // Without the handler, a write beyond the file size limit would kill the process instead of
    // returning an error.
    let ignored = Arc::default();
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, ignored);
}
