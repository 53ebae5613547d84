//! The job holder: the process that has the files of a job in memory, one on each node, for all
//! processes of the job there. It reads the files or receives them from another node, and sends
//! them to others.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_job::{Environment, JobNode, JobSettings, OpenedFile, OwnLink};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, errno};
use quell_wire::job::{FileAttributes, FileState};

use crate::failure::Failure;
use crate::holder::handshake::{HolderContext, end_process};
use crate::holder::served::Served;
use crate::holder::signals::Signals;
use crate::id_map::{IdMap, UNMAPPED};
use crate::inputs::{InputFile, Origin};
use crate::protocol::job_files::{FileInMemory, FilesInMemory};
use crate::protocol::plan::JobPlan;
use crate::protocol::report::{HolderReport, JobNodeReport, JobReport};
use crate::resources::check_available;
use crate::socket::server::{Holder, Need, Service};
use crate::waiting::Waiting;

/// How long the job holder serves other nodes after the programs of its own node have ended.
const SERVE_AFTER_END: Duration = Duration::from_secs(60);
/// How long a node waits for a list or a block of nodes that answer, but do not have it.
const PROGRESS_LIMIT: Duration = Duration::from_secs(30);
/// How long the removal of the link may take before the process ends without it.
const REMOVE_LIMIT: Duration = Duration::from_secs(2);
/// The length of the magic numbers of indexes and boot images.
const MAGIC_BYTES: usize = 8;

/// The files of a job, in memory.
pub struct JobFiles {
    plan: JobPlan,
    node: JobNode,
    holder: Holder,
    signals: Arc<Mutex<Signals>>,
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
            progress_limit: PROGRESS_LIMIT.max(Duration::from_millis(plan.limit_ms)),
        };
        let messages = context.messages.clone();
        let quiet = context.plan.quiet;
        let print = move |message: &str| {
            if !quiet {
                messages.print(message);
            }
        };
        let limit = context.plan.answer_timeout_s.map(Duration::from_secs);
        let link: Arc<Mutex<Option<Arc<OwnLink>>>> = Arc::default();
        let (address, own_link) = (context.address.clone(), link.clone());
        let end = move |failure: Option<Failure>| {
            let created = lock(&own_link).take();
            created.into_iter().for_each(remove_link);
            end_process(&address, failure.as_ref());
        };
        let signals = Arc::new(Mutex::new(Signals::listen()?));
        let watched = signals.clone();
        let waiting = Waiting::for_creator(limit, context.creator, print.clone(), end);
        let environment = HolderEnvironment {
            waiting: waiting.or_if(move || lock(&watched).requests() > 0),
            print: Box::new(print),
            link,
            signals,
            users: IdMap::of_users(),
            groups: IdMap::of_groups(),
        };
        let node = start(&settings, &environment)?;
        let HolderEnvironment { signals, .. } = environment;
        let holder = listen(context, &lock(&signals));
        match holder {
            Ok(holder) => Ok(JobFiles { plan: plan.clone(), node, holder, signals }),
            Err(failure) => {
                node.end(Duration::ZERO, || true);
                Err(failure)
            }
        }
    }
}

/// Starts the node in a thread of its own. The kernel delivers a signal to the first thread, which
/// could not handle it while it waits for a file server.
fn start(settings: &JobSettings, environment: &HolderEnvironment) -> Result<JobNode, Failure> {
    std::thread::scope(|scope| {
        let starting = std::thread::Builder::new()
            .name("job".into())
            .spawn_scoped(scope, || JobNode::start(settings, environment));
        let starting = starting.map_err(|e| Failure::cannot(format!("cannot start a thread: {e}")))?;
        let started = starting.join().map_err(|_| Failure::cannot("the thread of the job has failed"))?;
        Ok(started?)
    })
}

/// Removes the link of this process, which is about to end. The file system may not answer.
fn remove_link(link: Arc<OwnLink>) {
    let (done, is_done) = channel();
    let remove = move || {
        if let Err(error) = link.remove() {
            tracing::debug!(%error, "the link of the job remains");
        }
        // The receiver may have stopped waiting.
        let _ = done.send(());
    };
    if std::thread::Builder::new().spawn(remove).is_ok() {
        let _ = is_done.recv_timeout(REMOVE_LIMIT);
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
    /// The link that this process has created.
    link: Arc<Mutex<Option<Arc<OwnLink>>>>,
    signals: Arc<Mutex<Signals>>,
    users: IdMap,
    groups: IdMap,
}

impl Environment for HolderEnvironment {
    fn open(&self, path: &Path) -> Result<OpenedFile, String> {
        let open =
            |path: &Path| self.waiting.watch(path, || InputFile::open(path)).map_err(|e| e.to_string());
        let mut opened = open(path)?;
        // A directory stands for the index beside it.
        let mut directory = None;
        if opened.is_dir()
            && let Some(index) = quell_mount_spec::default_index_path(&opened.path)
        {
            directory = Some(opened.path.into_os_string().into_encoded_bytes());
            opened = open(&index)?;
        }
        let InputFile { path, file, .. } = opened;
        let origin = Origin::read(&file, &path).map_err(|e| e.to_string())?;
        let shown = crate::display::shown(&path);
        // A job sends no other files to its nodes, and no device without an end.
        let mut magic = [0; MAGIC_BYTES];
        let is_regular = origin.mode & 0o170_000 == 0o100_000;
        let begin = match file.read_exact_at(&mut magic, 0) {
            _ if !is_regular => false,
            Ok(()) => true,
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => false,
            Err(e) => return Err(format!("{shown}: cannot read: {e}")),
        };
        if !begin || magic != quell_index::format::MAGIC && magic != quell_boot::MAGIC {
            return Err(format!("{shown} is neither an index nor a boot image: --job reads only these"));
        }
        let Origin { uid, gid, mode, has_acl, inode, size_bytes, modified } = origin;
        let attributes = FileAttributes {
            path: path.as_os_str().as_bytes().to_vec(),
            directory,
            size_bytes,
            mode,
            uid: self.users.outside(uid),
            gid: self.groups.outside(gid),
            has_acl,
            inode,
            modified_seconds: modified.0,
            modified_nanoseconds: modified.1,
        };
        Ok(OpenedFile { file, attributes })
    }

    fn admit(&self, files: &[FileState]) -> quell_vfs::Result<()> {
        let refused = |kind, operation, file: &FileAttributes, reason: String| Error {
            source: Some(reason.into()),
            ..Error::new(kind, operation, &file.path)
        };
        for (file, bytes) in memory(files) {
            // No user has this number: the reader does not know the owner.
            if file.uid == UNMAPPED {
                let reason = "the user namespace of the reader does not map its owner";
                return Err(refused(ErrorKind::Unsupported, "send to other nodes", file, reason.into()));
            }
            let path = Path::new(std::ffi::OsStr::from_bytes(&file.path));
            check_available(path, bytes).map_err(|failure| {
                let no_memory = ErrorKind::Os(errno::ENOMEM);
                refused(no_memory, "keep two copies in memory", file, failure.to_string())
            })?;
        }
        Ok(())
    }

    fn watch_read(&self, path: &Path, file: &File, operation: &mut dyn FnMut()) {
        self.waiting.watch_read(file, path, operation);
    }

    fn is_needed(&self) -> bool {
        !self.waiting.creator_has_ended() && lock(&self.signals).requests() == 0
    }

    fn link_created(&self, link: &Arc<OwnLink>) {
        *lock(&self.link) = Some(link.clone());
    }

    fn print(&self, message: &str) {
        (self.print)(message);
    }
}

/// Returns for each open file the memory for it and those before it: the copy of this process, and
/// the one that the holder of the view makes while this one exists.
fn memory(files: &[FileState]) -> impl Iterator<Item = (&FileAttributes, u64)> {
    let open = files.iter().filter_map(|state| match state {
        FileState::Open(file) => Some(file),
        FileState::Failed(_) => None,
    });
    open.scan(0_u64, |bytes, file| {
        *bytes = bytes.saturating_add(file.size_bytes.saturating_mul(2));
        Some((file, *bytes))
    })
}

/// The files while programs use them.
struct ServedFiles<'a> {
    context: &'a HolderContext,
    plan: &'a JobPlan,
    node: &'a JobNode,
    signals: &'a Mutex<Signals>,
    /// Those of this process.
    users: IdMap,
    groups: IdMap,
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
        let (users, groups) = (&self.users, &self.groups);
        let files = self.node.files.iter().map(|file| FileInMemory::new(file, users, groups)).collect();
        serde_json::to_string(&FilesInMemory { holder: std::process::id(), files }).ok()
    }

    fn need(&mut self) -> Need {
        if lock(self.signals).requests() == 0 { Need::Joinable } else { Need::Over }
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
        let JobFiles { plan, node, holder, signals } = self;
        let (users, groups) = (IdMap::of_users(), IdMap::of_groups());
        let mut served = ServedFiles { context, plan: &plan, node: &node, signals: &signals, users, groups };
        let ended = holder.serve(None, Duration::from_secs(3600), &mut served);
        node.end(SERVE_AFTER_END, || lock(&signals).requests() > 0);
        ended?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_views_holder_is_needed_for_each_file_too() {
        let file = |size_bytes| {
            FileState::Open(FileAttributes {
                path: b"/env.quell".to_vec(),
                directory: None,
                size_bytes,
                mode: 0o100_644,
                uid: 0,
                gid: 0,
                has_acl: false,
                inode: 1,
                modified_seconds: 0,
                modified_nanoseconds: 0,
            })
        };
        let needed = |files: &[FileState]| memory(files).map(|(_, bytes)| bytes).collect::<Vec<_>>();
        assert_eq!(needed(&[file(10), FileState::Failed("no".into()), file(7)]), [20, 34]);
        assert_eq!(needed(&[file(u64::MAX), file(1)]), [u64::MAX; 2]);
    }
}
