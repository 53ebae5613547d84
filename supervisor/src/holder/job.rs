//! The job holder: the process that has the files of a job in memory, one on each node, for all
//! processes of the job there. It reads the files or receives them from another node, and sends
//! them to others.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use quell_job::{Environment, JobNode, JobSettings, OpenedFile};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, errno};
use quell_wire::job::FileAttributes;

use crate::failure::Failure;
use crate::holder::handshake::HolderContext;
use crate::holder::served::Served;
use crate::holder::signals::Signals;
use crate::inputs::{InputFile, Origin};
use crate::protocol::job_files::{FileInMemory, FilesInMemory};
use crate::protocol::plan::JobPlan;
use crate::protocol::report::{HolderReport, JobNodeReport, JobReport};
use crate::resources::check_available;
use crate::socket::server::{Holder, Need, Service};
use crate::waiting::Waiting;

/// How long the job holder serves other nodes after the programs of its own node have ended.
const SERVE_AFTER_END: Duration = Duration::from_secs(60);
/// The length of the magic numbers of indexes and boot images.
const MAGIC_BYTES: usize = 8;

/// The files of a job, in memory.
pub struct JobFiles {
    plan: JobPlan,
    node: JobNode,
    holder: Holder,
    signals: Signals,
}

impl JobFiles {
    /// Reads or receives the files.
    pub fn create(context: &HolderContext, plan: &JobPlan) -> Result<JobFiles, Failure> {
        let settings = JobSettings {
            job: plan.job.clone(),
            directory: plan.directory.clone(),
            files: plan.files.clone(),
            name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            interface: plan.interface.clone(),
            limit: Duration::from_millis(plan.limit_ms),
        };
        let messages = context.messages.clone();
        let quiet = context.plan.quiet;
        let print = move |message: &str| {
            if !quiet {
                messages.print(message);
            }
        };
        let limit = context.plan.answer_timeout_s.map(Duration::from_secs);
        let environment = HolderEnvironment {
            // The meeting point must be removed before this process ends, so the end of the command
            // is noticed by `is_needed`.
            waiting: Waiting::of_command(limit, quiet, print.clone()),
            print: Box::new(print),
            command: PathBuf::from(format!("/proc/{}", context.creator)),
            signals: Mutex::new(Signals::listen()?),
        };
        let node = JobNode::start(&settings, &environment)?;
        let signals = environment.signals.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        match listen(context, &signals) {
            Ok(holder) => Ok(JobFiles { plan: plan.clone(), node, holder, signals }),
            Err(failure) => {
                node.end(Duration::ZERO, || true);
                Err(failure)
            }
        }
    }
}

/// Opens the socket for the processes of this node.
fn listen(context: &HolderContext, signals: &Signals) -> Result<Holder, Failure> {
    let mut holder = Holder::bind(&context.address.directory, &context.address.key)?;
    holder.wait_for_creator(context.creator);
    holder.end_with_programs()?;
    signals.wake(&mut holder)?;
    Ok(holder)
}

/// The part of the process that opens files and prints messages.
struct HolderEnvironment {
    waiting: Waiting,
    print: Box<dyn Fn(&str) + Send + Sync>,
    /// The directory in /proc of the command that waits for the files.
    command: PathBuf,
    signals: Mutex<Signals>,
}

impl Environment for HolderEnvironment {
    fn open(&self, path: &Path) -> Result<OpenedFile, String> {
        let InputFile { path, file, .. } =
            self.waiting.watch(path, || InputFile::open(path)).map_err(|failure| failure.to_string())?;
        let origin = Origin::read(&file, &path).map_err(|e| e.to_string())?;
        let shown = crate::display::shown(&path);
        // A job sends no other files to its nodes, and no device without an end.
        let mut magic = [0; MAGIC_BYTES];
        let is_regular = origin.mode & 0o170_000 == 0o100_000;
        let begin = is_regular && file.read_exact_at(&mut magic, 0).is_ok();
        if !begin || magic != quell_index::format::MAGIC && magic != quell_boot::MAGIC {
            return Err(format!("{shown} is neither an index nor a boot image: --job reads only these"));
        }
        check_available(&path, origin.size_bytes).map_err(|failure| failure.to_string())?;
        let Origin { uid, gid, mode, has_acl, inode, size_bytes, modified } = origin;
        let attributes = FileAttributes {
            path: path.as_os_str().as_bytes().to_vec(),
            size_bytes,
            mode,
            uid,
            gid,
            has_acl,
            inode,
            modified_seconds: modified.0,
            modified_nanoseconds: modified.1,
        };
        Ok(OpenedFile { file, attributes })
    }

    fn admit(&self, file: &FileAttributes) -> quell_vfs::Result<()> {
        let path = Path::new(std::ffi::OsStr::from_bytes(&file.path));
        check_available(path, file.size_bytes).map_err(|failure| Error {
            source: Some(failure.to_string().into()),
            ..Error::new(ErrorKind::Os(errno::ENOMEM), "receive", &file.path)
        })
    }

    fn watch_read(&self, path: &Path, file: &File, operation: &mut dyn FnMut()) {
        self.waiting.watch_read(file, path, operation);
    }

    fn is_needed(&self) -> bool {
        self.command.exists() && lock(&self.signals).requests() == 0
    }

    fn print(&self, message: &str) {
        (self.print)(message);
    }
}

/// The files while programs use them.
struct ServedFiles<'a> {
    context: &'a HolderContext,
    plan: &'a JobPlan,
    node: &'a JobNode,
    signals: &'a mut Signals,
}

impl Service for ServedFiles<'_> {
    fn report(&self) -> String {
        let status = self.node.status();
        let node = |state: quell_wire::job::NodeState| JobNodeReport {
            node: state.node,
            parent: state.parent,
            name: state.name,
            received_bytes: state.received_bytes,
            read_bytes: state.read_bytes,
            milliseconds: state.milliseconds,
        };
        let job = JobReport {
            job: self.plan.job.clone(),
            node: status.node,
            parent: status.parent,
            files: self.plan.files.clone(),
            received_bytes: status.received_bytes,
            read_bytes: status.read_bytes,
            milliseconds: status.milliseconds,
            nodes: status.nodes.into_iter().map(node).collect(),
        };
        HolderReport { pid: std::process::id(), job: Some(job), ..HolderReport::default() }.to_json()
    }

    fn shared(&self) -> Option<String> {
        let files = self.node.files.iter().map(FileInMemory::from).collect();
        serde_json::to_string(&FilesInMemory { holder: std::process::id(), files }).ok()
    }

    fn need(&mut self) -> Need {
        if self.signals.requests() == 0 { Need::Joinable } else { Need::Over }
    }

    fn tick(&mut self) {}

    fn creator_ended(&mut self) {
        self.context.release_error_of_creator();
    }
}

impl Served for JobFiles {
    fn report_start(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn is_mounted(&self) -> bool {
        false
    }

    fn abandon(self, _: &HolderContext) {
        self.node.end(Duration::ZERO, || true);
        self.holder.abandon();
    }

    /// Serves the processes of this node until the last of them has ended, and then the nodes that
    /// are still receiving the files.
    fn serve(self, context: &HolderContext) -> Result<(), Failure> {
        let JobFiles { plan, node, holder, mut signals } = self;
        let mut served = ServedFiles { context, plan: &plan, node: &node, signals: &mut signals };
        let ended = holder.serve(None, Duration::from_secs(3600), &mut served);
        node.end(SERVE_AFTER_END, || signals.requests() > 0);
        ended?;
        Ok(())
    }
}
