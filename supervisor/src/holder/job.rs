//! The job holder: the process that has the files of a job in memory, one on each node, for all
//! processes of the job there. It reads the files or receives them from another node, and sends
//! them to others. The reader compares a sample of each tree with its index for all nodes, and
//! passes on the result of the check of the whole tree, which the holder of its view makes.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quell_index::Sampler;
use quell_job::{CompleteFile, Environment, JobNode, JobSettings, OpenedFile, OwnLink};
use quell_mount_spec::{Ownership, TrustedUse};
use quell_posix::{Dir, PosixDir};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, errno};
use quell_wire::job::{CheckResult, FileAttributes, FileState, RESULT_BYTES_MAX};

use crate::failure::Failure;
use crate::freshness::decision;
use crate::freshness::results::Results;
use crate::freshness::sample::sample;
use crate::freshness::stale::StaleReport;
use crate::holder::handshake::{HolderContext, end_process};
use crate::holder::job_trees::JobTrees;
use crate::holder::served::Served;
use crate::holder::signals::Signals;
use crate::id_map::{IdMap, UNMAPPED};
use crate::inputs::{InputFile, Origin, root_of};
use crate::protocol::job_files::{FileInMemory, FilesInMemory, JobInput};
use crate::protocol::plan::{JobCheck, JobPlan, SampleResult};
use crate::protocol::report::{HolderReport, JobNodeReport, JobReport};
use crate::resources::check_available;
use crate::socket::lock::blocks_socket_path;
use crate::socket::server::{Holder, Need, Service};
use crate::trust::check_input_trust;
use crate::waiting::Waiting;

/// How long the job holder serves other nodes after the programs of its own node have ended.
const SERVE_AFTER_END: Duration = Duration::from_secs(60);
/// How long a node waits for a list or a block while the other nodes answer, but do not have it.
pub const JOB_PROGRESS_LIMIT: Duration = Duration::from_secs(30);
/// How long the removal of the link may take before the process ends without it.
const REMOVE_LIMIT: Duration = Duration::from_secs(2);
/// The interval at which the reader looks for results of checks of whole trees.
const READ_RESULT_INTERVAL: Duration = Duration::from_secs(1);
/// The length of the magic numbers of indexes and boot images.
const MAGIC_BYTES: usize = 8;

/// The files of a job, in memory.
pub struct JobFiles {
    plan: JobPlan,
    node: JobNode,
    /// The socket for shared blocks, if this node shares blocks.
    blocks_socket: Option<PathBuf>,
    holder: Holder,
    signals: Arc<Mutex<Signals>>,
}

impl JobFiles {
    /// Reads or receives the files.
    pub fn create(context: &HolderContext, plan: &JobPlan) -> Result<JobFiles, Failure> {
        let settings = JobSettings {
            job: plan.job.clone(),
            meeting: plan.meeting.clone(),
            files: plan.files.clone(),
            name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            interface: plan.interface.clone(),
            limit: Duration::from_millis(plan.limit_ms),
            progress_limit: JOB_PROGRESS_LIMIT.max(Duration::from_millis(plan.limit_ms)),
            shared_bytes_max: plan.shared_mib.map(|mib| mib.saturating_mul(1 << 20)),
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
            context,
            plan,
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
            Ok(holder) => {
                let blocks_socket = share(context, plan, &node);
                Ok(JobFiles { plan: plan.clone(), node, blocks_socket, holder, signals })
            }
            Err(failure) => {
                node.end(Duration::ZERO, || true);
                Err(failure)
            }
        }
    }
}

/// Starts the node in a thread of its own. The kernel delivers a signal to the first thread, which
/// could not handle it while it waits for a file server.
fn start(settings: &JobSettings, environment: &HolderEnvironment<'_>) -> Result<JobNode, Failure> {
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

/// Starts to share blocks of the files of the trees, if the plan says so. Returns the socket for
/// the views of this node. Without it they read the files themselves.
fn share(context: &HolderContext, plan: &JobPlan, node: &JobNode) -> Option<PathBuf> {
    plan.shared_mib?;
    let trees = JobTrees::new(&node.files, &context.plan, plan.source.clone());
    let socket = blocks_socket_path(&context.address.directory, &context.address.key);
    let (messages, quiet) = (context.messages.clone(), context.plan.quiet);
    let print = move |message: &str| {
        if !quiet {
            messages.print(message);
        }
    };
    match node.share(Arc::new(trees), &socket, Box::new(print.clone())) {
        Ok(is_shared) => is_shared.then_some(socket),
        Err(error) => {
            print(&format!("cannot share blocks of files with other nodes of the job: {error}"));
            None
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
struct HolderEnvironment<'a> {
    context: &'a HolderContext,
    plan: &'a JobPlan,
    waiting: Waiting,
    print: Box<dyn Fn(&str) + Send + Sync>,
    /// The link that this process has created.
    link: Arc<Mutex<Option<Arc<OwnLink>>>>,
    signals: Arc<Mutex<Signals>>,
    users: IdMap,
    groups: IdMap,
}

impl Environment for HolderEnvironment<'_> {
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

    fn sample(&self, files: &[CompleteFile]) -> Vec<Option<CheckResult>> {
        let sample_of = |file| if self.plan.samples { self.sample_of(file) } else { None };
        files.iter().map(sample_of).collect()
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

impl HolderEnvironment<'_> {
    /// Compares a sample of the tree of an index with the index. Returns `None` for a boot image,
    /// and for an index that cannot be used: each node then finds the reason itself.
    fn sample_of(&self, file: &CompleteFile) -> Option<CheckResult> {
        let of_this_process = (&self.users, &self.groups);
        let copy = FileInMemory::new(file, None, of_this_process.0, of_this_process.1);
        let JobInput { file, .. } = copy.open(std::process::id()).ok()?;
        let mut magic = [0; MAGIC_BYTES];
        file.file.read_exact_at(&mut magic, 0).ok()?;
        if magic != quell_index::format::MAGIC {
            return None;
        }
        let image = Arc::new(file.index().ok()?);
        let source = self.plan.source.clone().unwrap_or_else(|| root_of(&image));
        let tree = self.waiting.watch(&source, || PosixDir::start(&source)).ok()?;
        // The index is not trusted yet. Until here, only the path of the tree was taken from it.
        let owner = Ownership::from(&self.waiting.watch(&source, || tree.stat_self()).ok()?);
        let trusted = self.context.plan.trusted();
        check_input_trust(&trusted, &file, TrustedUse::Index, Some((&source, &owner))).ok()?;
        let mut sampler = Sampler::new(image.clone(), Arc::new(tree), random_seed());
        let directory = &self.context.address.directory;
        let differences = sample(&self.waiting, directory, &image, &source, &mut sampler);
        let result = serde_json::to_vec(&StaleReport::from_differences(&differences, false)).ok()?;
        (result.len() <= RESULT_BYTES_MAX).then_some(CheckResult(result))
    }
}

/// Returns, for each open file, the memory that this file and all files before it take: the copy in
/// this process, and the copy that the holder of the view makes while the first copy exists.
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
    blocks_socket: Option<PathBuf>,
    signals: &'a Mutex<Signals>,
    /// The users of the user namespace of this process.
    users: IdMap,
    groups: IdMap,
}

impl ServedFiles<'_> {
    /// Returns the checks of a file that one node makes for all nodes. A node that has read the
    /// files without others makes all checks itself.
    fn check_of(&self, position: usize) -> Option<JobCheck> {
        let CheckResult(sample) = self.node.samples.get(position)?.as_ref()?;
        Some(JobCheck {
            is_reader: self.node.is_reader(),
            // A node with another version of Quell wrote a result that cannot be parsed.
            sample: serde_json::from_slice(sample).ok().map(|stale| SampleResult { stale }),
            result: result_path(self.context, position),
        })
    }
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
            shared_blocks: status.shared_blocks,
        };
        HolderReport { pid: std::process::id(), job: Some(job), ..HolderReport::default() }.to_json()
    }

    fn shared(&self) -> Option<String> {
        let (users, groups) = (&self.users, &self.groups);
        let file = |(position, file): (usize, &CompleteFile)| {
            FileInMemory::new(file, self.check_of(position), users, groups)
        };
        let files = self.node.files.iter().enumerate().map(file).collect();
        let blocks_socket = self.blocks_socket.clone();
        serde_json::to_string(&FilesInMemory { holder: std::process::id(), files, blocks_socket }).ok()
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
        let JobFiles { plan, node, blocks_socket, holder, signals } = self;
        let (users, groups) = (IdMap::of_users(), IdMap::of_groups());
        let mut served = ServedFiles {
            context,
            plan: &plan,
            node: &node,
            blocks_socket,
            signals: &signals,
            users,
            groups,
        };
        let is_serving = AtomicBool::new(true);
        remove_results(context, &node);
        let ended = std::thread::scope(|scope| {
            let exchanging = std::thread::Builder::new()
                .name("checks".into())
                .spawn_scoped(scope, || exchange_checks(context, &node, &is_serving));
            // Without the thread the other nodes get no result of the check of the whole tree.
            if let Err(error) = &exchanging {
                tracing::debug!(%error, "the results of checks are not passed on");
            }
            let ended = holder.serve(None, Duration::from_secs(3600), &mut served);
            is_serving.store(false, Ordering::Relaxed);
            if let Ok(thread) = &exchanging {
                thread.thread().unpark();
            }
            ended
        });
        remove_results(context, &node);
        node.end(SERVE_AFTER_END, || lock(&signals).requests() > 0);
        ended?;
        Ok(())
    }
}

/// Returns the path of the result of the check of a whole tree, for the processes of this node.
fn result_path(context: &HolderContext, position: usize) -> PathBuf {
    Results::path_of_job(&context.address.directory, &context.address.key, position)
}

/// Removes the results of this process and of an earlier process.
fn remove_results(context: &HolderContext, node: &JobNode) {
    for position in 0..node.files.len() {
        Results::at(&result_path(context, position)).forget();
    }
}

/// Passes the results of checks of whole trees from the holder of the reader's view to the holders
/// of the other nodes' views, until the job holder stops serving.
fn exchange_checks(context: &HolderContext, node: &JobNode, is_serving: &AtomicBool) {
    let mut missing: Vec<u32> =
        (0..).zip(&node.samples).filter(|(_, s)| s.is_some()).map(|(i, _)| i).collect();
    let begun = Instant::now();
    let is_reader = node.is_reader();
    for attempt in 0.. {
        if missing.is_empty() || begun.elapsed() >= decision::AWAIT_TIMEOUT {
            return;
        }
        // On the reader, the files are local.
        let until = Instant::now()
            + if is_reader { READ_RESULT_INTERVAL } else { decision::poll_pause(attempt, random_seed()) };
        while is_serving.load(Ordering::Relaxed) && Instant::now() < until {
            std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
        }
        if !is_serving.load(Ordering::Relaxed) {
            return;
        }
        let results = |position: u32| Results::at(&result_path(context, position as usize));
        if is_reader {
            missing.retain(|position| match results(*position).read() {
                Some(stale) => {
                    let result = serde_json::to_vec(&stale).expect("a result is always JSON");
                    node.publish_check(*position, result);
                    false
                }
                None => true,
            });
        } else {
            for (position, result) in node.checked(&missing, &|| is_serving.load(Ordering::Relaxed)) {
                missing.retain(|missing| *missing != position);
                if let Ok(stale) = serde_json::from_slice(&result) {
                    results(position).publish(&stale);
                }
            }
        }
    }
}

/// Returns a number that differs between processes and calls.
fn random_seed() -> u64 {
    let time = std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.subsec_nanos());
    u64::from(std::process::id()) << 32 | u64::from(time)
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
