//! Runs the check of a whole tree in a thread of the holder, and passes its result to the other
//! nodes of the job and to later runs. `decision.rs` decides which check is run.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use quell_index::{Checked, Image};
use quell_posix::{Dir, PosixDir};
use quell_threads::{lock, wait_timeout_while};
use xxhash_rust::xxh3::xxh3_64;

use crate::freshness::decision::{self, CheckTiming, NodeRole};
use crate::freshness::results::{Results, state_directory};
use crate::freshness::stale::StaleReport;
use crate::freshness::watch::Watch;
use crate::protocol::plan::JobCheck;
use crate::runtime::job::current_job;

/// Number of requests in flight while a start waits.
const THREADS_BEFORE_START: usize = 16;
/// Number of requests in flight while the program runs and makes its own requests.
const THREADS_DURING_RUN: usize = 4;
/// Nice value of a check while the program runs.
const NICE_DURING_RUN: i32 = 10;

/// A planned check. It starts after the namespace was created, because only a process with a single
/// thread can create a user namespace.
pub struct TreeCheck {
    image: Arc<Image>,
    /// The tree's root, opened before anything is covered; `None` if this node only polls for
    /// another node's result.
    root: Option<Arc<dyn Dir>>,
    timing: CheckTiming,
    /// `None` if no other run reads the result.
    results: Option<Results>,
    /// The file in which the reader of a job writes the result for the other nodes; `None` on the
    /// other nodes.
    for_job: Option<Results>,
}

/// The plan for the check of a tree.
#[derive(Default)]
pub struct CheckPlan {
    pub check: Option<TreeCheck>,
    /// Differences that another node has found.
    pub stale: Option<StaleReport>,
}

impl TreeCheck {
    /// Decides which check is needed for the tree at `source`. `job_check`: the checks that one
    /// node of the job makes for all.
    pub fn plan(
        image: &Arc<Image>,
        source: &Path,
        runtime_directory: &Path,
        job_check: Option<&JobCheck>,
    ) -> CheckPlan {
        let Some(job_check) = job_check else {
            return TreeCheck::plan_with_role(image, source, runtime_directory, None);
        };
        let results = Results::at(&job_check.result);
        if !job_check.is_reader {
            return match results.read() {
                Some(stale) => CheckPlan { stale, check: None },
                None => TreeCheck::planned_at(image, source, CheckTiming::AwaitResult, Some(results)),
            };
        }
        let planned = TreeCheck::plan_with_role(image, source, runtime_directory, Some(NodeRole::First));
        match planned.check {
            Some(check) => {
                CheckPlan { check: Some(TreeCheck { for_job: Some(results), ..check }), ..planned }
            }
            None => {
                results.publish(&planned.stale);
                planned
            }
        }
    }

    /// Does the same without a job whose nodes pass on the index. `role`: the role of this node, if
    /// it is known.
    fn plan_with_role(
        image: &Arc<Image>,
        source: &Path,
        runtime_directory: &Path,
        role: Option<NodeRole>,
    ) -> CheckPlan {
        let job = current_job();
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let role = role.unwrap_or_else(|| decision::node_role(job.is_some(), &variable));
        let is_writable = decision::is_writable_by(
            image.classes(),
            image.has_flag(quell_index::format::FLAG_ACLS),
            rustix::process::geteuid().as_raw(),
            &groups(),
        );
        let tree = [image.generation().to_string().as_bytes(), source.as_os_str().as_bytes()].concat();
        let key = match (is_writable, &job) {
            (true, Some(job)) => [&tree, &b"\0"[..], job.as_bytes()].concat(),
            (false, _) => tree,
            // Outside a job such a tree is checked each time, so no other run reads the result.
            (true, None) => return TreeCheck::planned_at(image, source, CheckTiming::BeforeStart, None),
        };
        let results = Results::open(state_directory(), runtime_directory, &key);
        let known = results.read();
        let timing = match decision::check_timing(role, is_writable, results.is_shared()) {
            CheckTiming::BeforeStartIfClaimed if results.claim() => CheckTiming::BeforeStart,
            CheckTiming::BeforeStartIfClaimed => CheckTiming::AwaitResult,
            timing => timing,
        };
        match (timing, known) {
            // A result of an earlier run in the same job is not valid for this run.
            (CheckTiming::BeforeStart, _) => results.begin(),
            (_, Some(None)) => return CheckPlan::default(),
            (CheckTiming::AwaitResult, Some(stale)) => return CheckPlan { stale, check: None },
            // The tree may have been corrected since.
            (_, Some(Some(_))) => results.forget(),
            (CheckTiming::AwaitResult, None) if !results.is_state => return CheckPlan::default(),
            (_, None) => {}
        }
        TreeCheck::planned_at(image, source, timing, Some(results))
    }

    fn planned_at(
        image: &Arc<Image>,
        source: &Path,
        timing: CheckTiming,
        results: Option<Results>,
    ) -> CheckPlan {
        let root: Option<Arc<dyn Dir>> = match timing {
            CheckTiming::AwaitResult => None,
            _ => match PosixDir::open(source) {
                Ok(root) => Some(Arc::new(root)),
                // A tree that cannot be listed cannot be compared.
                Err(_) => return CheckPlan::default(),
            },
        };
        let check = Some(TreeCheck { image: image.clone(), root, timing, results, for_job: None });
        CheckPlan { check, stale: None }
    }

    /// Starts the check in a thread. The thread calls `report` with differences that are found
    /// after `RunningCheck::wait` has timed out; for a check while the program runs, at any time.
    /// The second argument of `report`: whether the view shows changed files.
    ///
    /// `watches`: the directories of a tree that the caller may write to are watched from the check
    /// on.
    pub fn begin(
        self,
        watches: bool,
        report: impl FnOnce(&StaleReport, bool) + Send + 'static,
    ) -> RunningCheck {
        let waits = self.timing == CheckTiming::BeforeStart;
        let watch = if waits && watches { Watch::new().map(Arc::new) } else { None };
        let shared = Arc::new(Shared {
            phase: Mutex::new(Phase { timed_out: !waits, ..Phase::default() }),
            ended: Condvar::new(),
            changes: AtomicU64::new(0),
        });
        let running = RunningCheck { shared: shared.clone(), watch: watch.clone() };
        let spawned = std::thread::Builder::new().name("check".into()).spawn(move || {
            let CheckOutcome { stale, checked } = self.result(watch.as_deref());
            drop(watch);
            let mut phase = lock(&shared.phase);
            phase.ended = true;
            let Some(stale) = stale else { return shared.ended.notify_all() };
            shared.changes.fetch_add(stale.count() as u64, Ordering::Relaxed);
            if !phase.timed_out {
                phase.stale = Some(stale);
                return shared.ended.notify_all();
            }
            let receiver = phase.late_receiver.take();
            let late = match (checked, receiver) {
                (Some(checked), Some(receiver)) => Some((checked, receiver)),
                (checked, _) => {
                    phase.late = checked;
                    None
                }
            };
            drop(phase);
            report(&stale, late.is_some());
            if let Some((checked, receiver)) = late {
                receiver(&checked);
            }
        });
        if spawned.is_err() {
            // Without a thread there is no check; the sample, and the comparisons during the run,
            // remain.
            lock(&running.shared.phase).ended = true;
        }
        running
    }

    fn result(&self, watch: Option<&Watch>) -> CheckOutcome {
        if self.timing == CheckTiming::BeforeStart {
            return self.check(THREADS_BEFORE_START, watch);
        }
        let Some(results) = &self.results else { return CheckOutcome::default() };
        std::thread::sleep(decision::CHECK_DELAY);
        let begun = Instant::now();
        let time = std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.subsec_nanos());
        let random = xxh3_64(&[std::process::id().to_le_bytes(), time.to_le_bytes()].concat());
        for attempt in 0.. {
            if let Some(stale) = results.read() {
                self.publish_for_job(&stale);
                return CheckOutcome { stale, checked: None };
            }
            if self.root.is_some() && results.claim() {
                // The threads of the check inherit the nice value. If it cannot be set, the check
                // competes with the program.
                let _ = rustix::process::setpriority_process(None, NICE_DURING_RUN);
                return self.check(THREADS_DURING_RUN, None);
            }
            if begun.elapsed() >= decision::AWAIT_TIMEOUT {
                break;
            }
            std::thread::sleep(decision::poll_pause(attempt, random >> (attempt % 8)));
        }
        CheckOutcome::default()
    }

    fn publish_for_job(&self, stale: &Option<StaleReport>) {
        if let Some(results) = &self.for_job {
            results.publish(stale);
        }
    }

    fn check(&self, threads: usize, watch: Option<&Watch>) -> CheckOutcome {
        let never_stop = AtomicBool::new(false);
        let max = decision::DIFFERENCES_MAX;
        // An error of the file system is no difference; the program gets the same error.
        // A directory is watched before its entries are compared, so no change is missed between.
        let visit = |entry, dir: &dyn Dir| {
            let is_empty = self.image.children(entry).is_none_or(|children| children.is_empty());
            if let Some(watch) = watch.filter(|_| !is_empty) {
                watch.add(entry, dir);
            }
        };
        let Some(root) = self.root.clone() else { return CheckOutcome::default() };
        let checked = quell_index::check_and_visit(&self.image, root, threads, max, &never_stop, &visit);
        let Ok(checked) = checked else { return CheckOutcome::default() };
        let stale = StaleReport::from_differences(&checked.differences, checked.complete);
        if let Some(results) = &self.results {
            results.publish(&stale);
        }
        self.publish_for_job(&stale);
        CheckOutcome { stale, checked: Some(checked) }
    }
}

/// The result of a check.
#[derive(Default)]
struct CheckOutcome {
    stale: Option<StaleReport>,
    /// `None` if another node has checked the tree.
    checked: Option<Checked>,
}

type LateReceiver = Box<dyn FnOnce(&Checked) + Send>;

#[derive(Default)]
struct Phase {
    ended: bool,
    /// Differences that were found before the timeout.
    stale: Option<StaleReport>,
    timed_out: bool,
    /// Differences that were found after the timeout, until `late_receiver` is known.
    late: Option<Checked>,
    late_receiver: Option<LateReceiver>,
}

struct Shared {
    phase: Mutex<Phase>,
    ended: Condvar,
    changes: AtomicU64,
}

/// A running check.
pub struct RunningCheck {
    shared: Arc<Shared>,
    watch: Option<Arc<Watch>>,
}

impl RunningCheck {
    /// Waits until the deadline for the result of a check before the start. Later differences are
    /// reported by the thread of the check.
    pub fn wait(&self, deadline: Instant) -> Option<StaleReport> {
        let left = deadline.saturating_duration_since(Instant::now());
        let phase = lock(&self.shared.phase);
        let unknown = |phase: &mut Phase| !phase.ended && !phase.timed_out;
        let mut phase = wait_timeout_while(&self.shared.ended, phase, left, unknown);
        phase.timed_out = true;
        phase.stale.take()
    }

    /// Returns the watch of the tree's directories, once.
    pub fn take_watch(&mut self) -> Option<Arc<Watch>> {
        self.watch.take()
    }

    /// Passes the differences that this node finds after the timeout to a function. The thread of
    /// the check calls it, or another thread if they are known already.
    pub fn pass_late_result(&self, receiver: impl FnOnce(&Checked) + Send + 'static) {
        let mut phase = lock(&self.shared.phase);
        match phase.late.take() {
            Some(checked) => {
                drop(phase);
                let spawned =
                    std::thread::Builder::new().name("late".into()).spawn(move || receiver(&checked));
                // Without the thread, only comparisons at intervals find the differences.
                if let Err(e) = spawned {
                    tracing::debug!(error = %e, "the result of the check is not applied");
                }
            }
            None if phase.ended => {}
            None => phase.late_receiver = Some(Box::new(receiver)),
        }
    }

    /// Returns the number of differences that the check has found; 0 until it has ended.
    pub fn changes(&self) -> u64 {
        self.shared.changes.load(Ordering::Relaxed)
    }
}

/// Returns the groups that determine the caller's access.
fn groups() -> Vec<u32> {
    let supplementary = rustix::process::getgroups().unwrap_or_default();
    let mut groups: Vec<u32> = supplementary.into_iter().map(|group| group.as_raw()).collect();
    groups.push(rustix::process::getegid().as_raw());
    groups
}
