//! The steps of a probe: check the directory, create the tree, measure each kind alone, measure the
//! mix with an increasing number of threads, remove the tree. The decisions are made in other
//! modules.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use quell_vfs::Error;
use rustix::fs::{Access, AtFlags, Mode, OFlags, RawDir, StatxFlags};
use rustix::io::Errno;

use crate::budget::{Budget, Limits};
use crate::curve::{self, End, Left, Next, Step};
use crate::directory::{self, ProbeDirectory, REMOVING_MAX, Stopped, failed};
use crate::kind::{AnsweredBy, OperationKind, READ_KINDS, round};
use crate::leftover::Leftover;
use crate::node::Ticks;
use crate::pool::{Call, LimitReached, SLOW, TaskError, TaskLimits, TaskResult, Worker, WorkerPool};
use crate::progress::{ProbeProgress, Stage};
use crate::refusal::Refusal;

/// The number of requests that test whether the file system is busy, and the limit of their median.
const TRIAL_REQUESTS: usize = 9;
const TRIAL_MEDIAN_MAX: Duration = Duration::from_millis(50);
/// The time limit for the check.
const CHECK_DURATION_MAX: Duration = Duration::from_secs(10);
/// More than the check can need: about twenty requests, and six for each leftover directory.
const CHECK_OPERATIONS_MAX: u64 = 130;
/// The number of stats answered by the kernel, for comparison.
const CACHED_STATS: usize = 200;
/// The size of the buffer for a listing, in bytes. A directory of the tree takes two reads, the
/// last of which returns nothing.
const NAMES_BUFFER_BYTES: usize = 8 << 10;
/// The minimum free space, in bytes.
const FREE_BYTES_MIN: u64 = 1 << 20;
/// The minimum number of free inodes. A probe creates about three hundred, and others need some.
const FREE_NAMES_MIN: u64 = 400;

/// A directory that passed the check.
#[derive(Debug)]
pub struct Survey {
    directory: Arc<OwnedFd>,
    /// The directories that killed probes left there.
    pub leftovers: Vec<Leftover>,
    /// The operations of the check.
    operations: u64,
}

/// The result of one kind, measured one call at a time.
#[derive(Debug, Clone)]
pub struct KindRate {
    /// The kind of request.
    pub kind: OperationKind,
    /// The number of calls.
    pub calls: u64,
    /// The operations of these calls.
    pub operations: u64,
    /// The total duration of these calls.
    pub seconds: f64,
    /// The median latency.
    pub p50: Duration,
    /// The 99th percentile of the latencies.
    pub p99: Duration,
    /// The part of the system that seems to have answered the requests.
    pub answered_by: AnsweredBy,
}

impl KindRate {
    /// Returns the operations per second.
    pub fn rate(&self) -> f64 {
        curve::rate(self.operations, self.seconds)
    }
}

/// The result of a probe.
#[derive(Debug)]
pub struct ProbeResult {
    /// When the probe started.
    pub started: SystemTime,
    /// The results of the kinds measured alone.
    pub kinds: Vec<KindRate>,
    /// The results of the mix, by number of threads.
    pub steps: Vec<Step>,
    /// The reason for which the measurement ended.
    pub end: End,
    /// All operations, from the first check to the last removal.
    pub operations: u64,
    /// The probe's directory, if it could not be removed.
    pub left: Option<String>,
}

impl ProbeResult {
    /// Returns the sustained operations per second, if there is a result.
    pub fn sustained(&self) -> Option<f64> {
        curve::sustained(&self.steps)
    }

    /// Returns the maximum share of the time that this node's processors were busy on the plateau.
    pub fn node_busy(&self) -> Option<f64> {
        curve::plateau(&self.steps).filter_map(|step| step.node_busy).reduce(f64::max)
    }

    /// Returns whether a step belongs to the plateau.
    pub fn is_on_plateau(&self, step: &Step) -> bool {
        curve::plateau(&self.steps).any(|other| other == step)
    }
}

/// Checks whether the directory may be probed; changes nothing.
pub fn survey(directory: &Path, progress: &Arc<ProbeProgress>) -> Result<Survey, Refusal> {
    let _span = tracing::debug_span!("check_directory", path = %directory.display()).entered();
    progress.enter(Stage::Checking);
    let survey = check(directory, progress);
    match &survey {
        Ok(Survey { leftovers, operations, .. }) => {
            tracing::debug!(leftovers = leftovers.len(), operations, "the directory may be probed");
        }
        Err(refusal) => tracing::debug!(%refusal, "the directory may not be probed"),
    }
    survey
}

fn check(directory: &Path, progress: &Arc<ProbeProgress>) -> Result<Survey, Refusal> {
    let path = directory.to_owned();
    let task_limits = TaskLimits {
        threads: 1,
        operations: CHECK_OPERATIONS_MAX,
        until: Instant::now() + CHECK_DURATION_MAX,
        removing: false,
    };
    let pool = WorkerPool::new(progress.clone());
    let checked = single_result(pool.run(task_limits, move |worker| check_directory(&path, worker)))?;
    if pool.has_slow_call() {
        return Err(Refusal::Busy(SLOW));
    }
    let (directory, leftovers) = checked?;
    match directory::first_live(&leftovers) {
        Some(other) => Err(Refusal::InUse { name: other.name.clone(), owner: other.describe_owner() }),
        None => Ok(Survey { directory: Arc::new(directory), leftovers, operations: progress.operations() }),
    }
}

/// Returns the result of the only thread.
fn single_result<T>(done: Result<TaskResult<T>, TaskError>) -> Result<T, Refusal> {
    done.ok().and_then(|mut done| done.results.pop()).ok_or(Refusal::Unanswered)
}

impl From<Stopped> for Refusal {
    fn from(stopped: Stopped) -> Refusal {
        match stopped {
            Stopped::LimitReached => Refusal::Unanswered,
            Stopped::Failed(error) => Refusal::Failed(error),
        }
    }
}

impl From<LimitReached> for Refusal {
    fn from(_: LimitReached) -> Refusal {
        Refusal::Unanswered
    }
}

fn check_directory(path: &Path, worker: &mut Worker) -> Result<(OwnedFd, Vec<Leftover>), Refusal> {
    let subject = path.as_os_str().as_encoded_bytes();
    let directory = directory::open(path, worker)?;
    let mut took = Vec::new();
    for _ in 0..TRIAL_REQUESTS {
        let begun = Instant::now();
        worker
            .call(OperationKind::Attributes, || fetch_attributes(&directory))?
            .map_err(|e| Refusal::Failed(failed(e, "stat", subject)))?;
        took.push(begun.elapsed());
    }
    let median = curve::percentile(&mut took, 0.5);
    if median > TRIAL_MEDIAN_MAX {
        return Err(Refusal::Busy(median));
    }
    // With the effective user id of this process, not the real one.
    let may = Access::WRITE_OK | Access::EXEC_OK;
    worker
        .call(OperationKind::Other, || rustix::fs::accessat(&directory, ".", may, AtFlags::EACCESS))?
        .map_err(|e| Refusal::NotWritable(failed(e, "write to", subject)))?;
    let space = worker.call(OperationKind::Other, || rustix::fs::fstatvfs(&directory))?;
    // Some file systems do not count inodes, and some do not support the call.
    if let Ok(space) = space {
        if space.f_files > 0 && space.f_favail < FREE_NAMES_MIN {
            return Err(Refusal::NoSpace("inodes"));
        }
        if space.f_blocks > 0 && space.f_bavail.saturating_mul(space.f_frsize) < FREE_BYTES_MIN {
            return Err(Refusal::NoSpace("blocks"));
        }
    }
    let leftovers = directory::leftovers(&directory, None, worker)?;
    Ok((directory, leftovers))
}

/// Measures the file system, and removes everything that was created. `local`: the file system is
/// local to this node.
pub fn measure(
    survey: Survey,
    limits: &Limits,
    local: bool,
    progress: &Arc<ProbeProgress>,
) -> Result<ProbeResult, Refusal> {
    let mut budget = Budget::new(limits.operations);
    budget.spend(survey.operations);
    let started = SystemTime::now();
    let mut probe = Probe {
        pool: WorkerPool::new(progress.clone()),
        limits: *limits,
        local,
        budget,
        until: Instant::now() + limits.duration,
        cached_stat: Duration::ZERO,
        kinds: Vec::new(),
        steps: Vec::new(),
    };
    let mut created = Vec::new();
    let (probe_directory, mut result) = match probe.create_tree(&survey.directory, &mut created) {
        (Some(probe_directory), Ok(())) => {
            let probe_directory = Arc::new(probe_directory);
            let result = probe.measure_all(&probe_directory);
            (Some(probe_directory), result)
        }
        (probe_directory, result) => (probe_directory.map(Arc::new), result.map(|()| End::Interrupted)),
    };
    let left = match &probe_directory {
        Some(probe_directory) => probe.remove(probe_directory, &mut created),
        None => None,
    };
    if progress.is_stopped() {
        result = Ok(End::Interrupted);
    }
    let end = match (result, &left) {
        (Ok(end), _) => end,
        // A directory that could not be removed must be reported, even if something else failed as
        // well.
        (Err(Refusal::Unanswered), Some(_)) => End::Slow,
        (Err(refusal), _) => {
            tracing::debug!(%refusal, "the probe has no result");
            return Err(refusal);
        }
    };
    tracing::debug!(
        ?end,
        steps = probe.steps.len(),
        operations = progress.operations(),
        "the probe has ended"
    );
    Ok(ProbeResult {
        started,
        kinds: probe.kinds,
        steps: probe.steps,
        end,
        operations: progress.operations(),
        left,
    })
}

/// A running probe.
struct Probe {
    pool: WorkerPool,
    limits: Limits,
    local: bool,
    budget: Budget,
    until: Instant,
    /// The duration of a stat that the kernel answers from its cache.
    cached_stat: Duration,
    kinds: Vec<KindRate>,
    steps: Vec<Step>,
}

impl Probe {
    /// Runs a task in threads and counts its operations.
    fn run_task<T: Send + 'static>(
        &mut self,
        task_limits: TaskLimits,
        job: impl Fn(&mut Worker) -> T + Send + Sync + 'static,
    ) -> Result<TaskResult<T>, TaskError> {
        let before = self.pool.progress().operations();
        let done = self.pool.run(task_limits, job);
        self.budget.spend(self.pool.progress().operations() - before);
        done
    }

    fn task_limits(&self, threads: u32, operations: u64, at_most: Duration) -> TaskLimits {
        TaskLimits { threads, operations, until: self.until.min(Instant::now() + at_most), removing: false }
    }

    /// Creates the probe's directory and its tree. The result includes everything that was created,
    /// even after an error.
    fn create_tree(
        &mut self,
        directory: &Arc<OwnedFd>,
        created: &mut Vec<Call>,
    ) -> (Option<ProbeDirectory>, Result<(), Refusal>) {
        self.pool.progress().enter(Stage::Creating);
        let (directories, files) = self.limits.shape();
        // The operations for removing all of it are not available for creating.
        let removing = (2 + u64::from(directories * (1 + files))) * OperationKind::Remove.operations();
        let operations = self.budget.free().saturating_sub(removing);
        let task_limits = self.task_limits(1, operations, self.limits.creation_duration());
        let directory = directory.clone();
        let done = self.run_task(task_limits, move |worker| {
            let mut probe_directory = match ProbeDirectory::create(&directory, worker) {
                Ok(probe_directory) => probe_directory,
                Err(stopped) => return (None, Err(stopped.into())),
            };
            let result = prepare(&directory, &mut probe_directory, directories, files, worker);
            (Some(probe_directory), result)
        });
        match done {
            Ok(mut done) => {
                created.extend(done.calls);
                let (probe_directory, result) = done.results.pop().expect("one thread ran");
                let names = probe_directory.as_ref().map_or(0, ProbeDirectory::names);
                self.budget.reserve_removal(names);
                if let Some(ProbeDirectory { name, .. }) = &probe_directory {
                    tracing::debug!(%name, names, "created the probe's directory");
                }
                (probe_directory, result.map_err(not_writable))
            }
            Err(_) => (None, Err(Refusal::Unanswered)),
        }
    }

    /// Measures each kind alone, then the mix with an increasing number of threads.
    fn measure_all(&mut self, probe_directory: &Arc<ProbeDirectory>) -> Result<End, Refusal> {
        if probe_directory.subdirectories().next().is_none() {
            return Ok(if self.pool.has_slow_call() { End::Slow } else { End::Seconds });
        }
        self.pool.progress().enter(Stage::Kinds);
        self.cached_stat = self.take_cached_stat(probe_directory)?;
        let names = Arc::new(AtomicU64::new(0));
        for kind in READ_KINDS {
            let operations = self.limits.kind_operations().min(self.budget.free());
            let task_limits = self.task_limits(1, operations, self.limits.kind_duration());
            let Some(done) = self.send_requests(task_limits, probe_directory, &names, vec![kind])? else {
                return Err(Refusal::Unanswered);
            };
            self.add_kind(kind, &done.calls);
        }
        let answered = |kind| self.kinds.iter().any(|k| k.kind == kind && k.answered_by != AnsweredBy::Cache);
        let mix = round(answered);
        loop {
            if self.pool.has_slow_call() {
                return Ok(End::Slow);
            }
            if mix.is_empty() {
                let nothing_measured = self.kinds.is_empty();
                return Ok(if nothing_measured { End::Operations } else { End::Cached });
            }
            let seconds = self.until.saturating_duration_since(Instant::now()).as_secs_f64();
            let left = Left { operations: self.budget.free(), seconds };
            let (parallelism, task_limits) = match curve::next(&self.steps, self.limits.parallelism, left) {
                Next::Done(end) => return Ok(end),
                Next::Measure { parallelism, operations, seconds } => {
                    (parallelism, self.task_limits(parallelism, operations, Duration::from_secs_f64(seconds)))
                }
            };
            self.pool.progress().enter(Stage::Mix(parallelism));
            let before = Ticks::now();
            // If the node allows no more threads, this is its highest parallelism.
            let Some(done) = self.send_requests(task_limits, probe_directory, &names, mix.clone())? else {
                return Ok(End::Highest);
            };
            if self.pool.progress().is_stopped() {
                return Ok(End::Interrupted);
            }
            // A step that a slow call has ended is not meaningful.
            if !self.pool.has_slow_call() {
                let node_busy = before.zip(Ticks::now()).and_then(|(then, now)| now.busy_since(then));
                let step = step(parallelism, &done, node_busy);
                let Step { operations, seconds, .. } = step;
                tracing::debug!(threads = parallelism, operations, seconds, "measured the mix");
                self.steps.push(step);
            }
        }
    }

    /// Makes requests in the order of the mix, directory by directory, as long as the limits allow.
    /// `None`: this node does not allow so many threads.
    fn send_requests(
        &mut self,
        task_limits: TaskLimits,
        probe_directory: &Arc<ProbeDirectory>,
        names: &Arc<AtomicU64>,
        mix: Vec<OperationKind>,
    ) -> Result<Option<TaskResult<()>>, Refusal> {
        let (probe_directory, names) = (probe_directory.clone(), names.clone());
        // All threads share one sequence, so that the proportions of the mix hold even if each
        // thread makes few calls.
        let index = AtomicU64::new(0);
        let has_failed = AtomicBool::new(false);
        let done = self.run_task(task_limits, move |worker| {
            let subdirectories: Vec<&OwnedFd> = probe_directory.subdirectories().collect();
            while !has_failed.load(Ordering::Relaxed) {
                let index = index.fetch_add(1, Ordering::Relaxed) as usize;
                // Threads use different directories, because some clients serialize requests in a
                // directory.
                let subdirectory =
                    subdirectories[(worker.number() + index / mix.len()) % subdirectories.len()];
                let kind = mix[index % mix.len()];
                let answer = match kind {
                    OperationKind::LookUp => {
                        let name = format!("q{:08x}", names.fetch_add(1, Ordering::Relaxed));
                        worker.call(kind, || look_up(subdirectory, &name))
                    }
                    OperationKind::Attributes => worker.call(kind, || fetch_attributes(subdirectory)),
                    _ => worker.call(kind, || list(subdirectory)),
                };
                match answer {
                    Err(_) => break,
                    Ok(Ok(()) | Err(Errno::INTR)) => {}
                    Ok(Err(e)) => {
                        has_failed.store(true, Ordering::Relaxed);
                        return Err(failed(e, kind.name(), "in the probe's own directory"));
                    }
                }
            }
            Ok::<(), Error>(())
        });
        match done {
            Ok(TaskResult { results, calls, seconds }) => {
                let results = results.into_iter().collect::<Result<Vec<()>, Error>>()?;
                Ok(Some(TaskResult { results, calls, seconds }))
            }
            Err(TaskError::NoThreads) => Ok(None),
            Err(TaskError::Hung) => Err(Refusal::Unanswered),
        }
    }

    /// Returns the median duration of a stat that the kernel answers from its cache.
    fn take_cached_stat(&mut self, probe_directory: &Arc<ProbeDirectory>) -> Result<Duration, Refusal> {
        let probe_directory = probe_directory.clone();
        let task_limits = self.task_limits(1, 0, self.limits.kind_duration());
        single_result(self.run_task(task_limits, move |_| {
            let Some(subdirectory) = probe_directory.subdirectories().next() else { return Duration::ZERO };
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let mut took: Vec<Duration> = (0..CACHED_STATS)
                .map(|_| {
                    let begun = Instant::now();
                    let _ = rustix::fs::statx(subdirectory, "", flags, StatxFlags::TYPE);
                    begun.elapsed()
                })
                .collect();
            curve::percentile(&mut took, 0.5)
        }))
    }

    /// Removes everything that was created; returns the directory's name if that failed.
    fn remove(&mut self, probe_directory: &Arc<ProbeDirectory>, created: &mut [Call]) -> Option<String> {
        self.pool.progress().enter(Stage::Removing);
        let task_limits =
            TaskLimits { threads: 1, operations: 0, until: Instant::now() + REMOVING_MAX, removing: true };
        let last = probe_directory.clone();
        let done = self.run_task(task_limits, move |worker| last.remove(worker));
        let (gone, removed) = match done {
            Ok(done) => (done.results == [true], done.calls),
            Err(_) => (false, Vec::new()),
        };
        for (kind, calls) in [(OperationKind::Create, &*created), (OperationKind::Remove, &removed)] {
            self.add_kind(kind, calls);
        }
        let name = &probe_directory.name;
        match gone {
            true => tracing::debug!(%name, "removed the probe's directory"),
            false => tracing::debug!(%name, "could not remove the probe's directory"),
        }
        (!gone).then(|| name.clone())
    }

    /// Adds the result of one kind, if there were calls.
    fn add_kind(&mut self, kind: OperationKind, calls: &[Call]) {
        if let Some(rate) = kind_rate(kind, calls, self.cached_stat, self.local) {
            let KindRate { operations, seconds, answered_by, .. } = rate;
            let (kind, answered_by) = (kind.name(), answered_by.name());
            tracing::debug!(kind, operations, seconds, answered_by, "measured one kind");
            self.kinds.push(rate);
        }
    }
}

/// Prepares the new directory: writes the owner's file, checks for other probes again, and fills
/// the directory.
fn prepare(
    parent: &OwnedFd,
    probe_directory: &mut ProbeDirectory,
    directories: u32,
    files: u32,
    worker: &mut Worker,
) -> Result<(), Refusal> {
    // If a limit is reached or the user interrupts, the probe continues with the created names, and
    // removes them later.
    let ignore_limit = |result: Result<(), Stopped>| match result {
        Ok(()) | Err(Stopped::LimitReached) => Ok(()),
        Err(Stopped::Failed(error)) => Err(Refusal::Failed(error)),
    };
    ignore_limit(probe_directory.write_owner(worker))?;
    // Two probes that start at the same time detect each other here, and both withdraw.
    match directory::leftovers(parent, Some(&probe_directory.name), worker) {
        Ok(others) => {
            if let Some(other) = directory::first_live(&others) {
                return Err(Refusal::InUse { name: other.name.clone(), owner: other.describe_owner() });
            }
        }
        Err(stopped) => ignore_limit(Err(stopped))?,
    }
    ignore_limit(probe_directory.fill(directories, files, worker))
}

/// Returns the refusal for an error while creating names: no probe is possible in this directory.
fn not_writable(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::Failed(error) => Refusal::NotWritable(error),
        other => other,
    }
}

fn fetch_attributes(directory: &OwnedFd) -> rustix::io::Result<()> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    rustix::fs::statx(directory, "", flags, StatxFlags::BASIC_STATS).map(drop)
}

/// Looks up a name that does not exist.
fn look_up(directory: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match rustix::fs::statx(directory, name, flags, StatxFlags::BASIC_STATS) {
        Err(Errno::NOENT) => Ok(()),
        answer => answer.map(drop),
    }
}

fn list(directory: &OwnedFd) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(directory, ".", flags, Mode::empty())?;
    let mut buffer = [std::mem::MaybeUninit::<u8>::uninit(); NAMES_BUFFER_BYTES];
    let mut entries = RawDir::new(fd, &mut buffer);
    while let Some(entry) = entries.next() {
        entry?;
    }
    Ok(())
}

/// Summarizes the calls of one kind; `None` if there were none.
fn kind_rate(kind: OperationKind, calls: &[Call], cached_stat: Duration, local: bool) -> Option<KindRate> {
    let mut took: Vec<Duration> = calls.iter().filter(|c| c.kind == kind).map(|c| c.took).collect();
    let p50 = curve::percentile(&mut took, 0.5);
    (!took.is_empty()).then(|| KindRate {
        kind,
        calls: took.len() as u64,
        operations: took.len() as u64 * kind.operations(),
        seconds: took.iter().sum::<Duration>().as_secs_f64(),
        p50,
        p99: curve::percentile(&mut took, 0.99),
        answered_by: AnsweredBy::judge(p50, cached_stat, local),
    })
}

fn step(parallelism: u32, done: &TaskResult<()>, node_busy: Option<f64>) -> Step {
    let mut took: Vec<Duration> = done.calls.iter().map(|call| call.took).collect();
    Step {
        parallelism,
        operations: done.calls.iter().map(|call| call.kind.operations()).sum(),
        seconds: done.seconds,
        p50: curve::percentile(&mut took, 0.5),
        p99: curve::percentile(&mut took, 0.99),
        node_busy,
    }
}
