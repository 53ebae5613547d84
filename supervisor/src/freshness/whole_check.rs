//! Runs the check of a whole tree in a thread of the holder, and passes its result to the other
//! nodes of the job and to later runs. `decision.rs` decides which check is run.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use quell_index::Image;
use quell_posix::{Dir, PosixDir};
use quell_threads::{lock, wait_timeout_while};
use xxhash_rust::xxh3::xxh3_64;

use crate::freshness::decision::{self, CheckTiming};
use crate::freshness::results::{Results, state_directory};
use crate::freshness::stale::StaleReport;
use crate::freshness::watch::Watch;
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
}

/// The plan for the check of a tree.
#[derive(Default)]
pub struct CheckPlan {
    pub check: Option<TreeCheck>,
    /// Differences that another node has found.
    pub stale: Option<StaleReport>,
}

impl TreeCheck {
    /// Decides which check is needed for the tree at `source`.
    pub fn plan(image: &Arc<Image>, source: &Path, runtime_directory: &Path) -> CheckPlan {
        let job = current_job();
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let role = decision::node_role(job.is_some(), &variable);
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
        let check = Some(TreeCheck { image: image.clone(), root, timing, results });
        CheckPlan { check, stale: None }
    }

    /// Starts the check in a thread. The thread calls `report` with differences that are found
    /// after `RunningCheck::wait` has timed out; for a check while the program runs, at any time.
    ///
    /// `watches`: the directories of a tree that the caller may write to are watched from the check
    /// on.
    pub fn begin(self, watches: bool, report: impl FnOnce(&StaleReport) + Send + 'static) -> RunningCheck {
        let waits = self.timing == CheckTiming::BeforeStart;
        let watch = if waits && watches { Watch::new().map(Arc::new) } else { None };
        let shared = Arc::new(Shared {
            phase: Mutex::new(Phase { ended: false, found: None, timed_out: !waits }),
            ended: Condvar::new(),
            changes: AtomicU64::new(0),
        });
        let running = RunningCheck { shared: shared.clone(), watch: watch.clone() };
        let spawned = std::thread::Builder::new().name("check".into()).spawn(move || {
            let found = self.result(watch.as_deref());
            drop(watch);
            let mut phase = lock(&shared.phase);
            phase.ended = true;
            let Some(found) = found else { return shared.ended.notify_all() };
            shared.changes.fetch_add(found.count() as u64, Ordering::Relaxed);
            if phase.timed_out {
                drop(phase);
                report(&found);
            } else {
                phase.found = Some(found);
                shared.ended.notify_all();
            }
        });
        if spawned.is_err() {
            // Without a thread there is no check; the sample, and the comparisons during the run,
            // remain.
            lock(&running.shared.phase).ended = true;
        }
        running
    }

    fn result(&self, watch: Option<&Watch>) -> Option<StaleReport> {
        if self.timing == CheckTiming::BeforeStart {
            return self.check(THREADS_BEFORE_START, watch);
        }
        let results = self.results.as_ref()?;
        std::thread::sleep(decision::CHECK_DELAY);
        let begun = Instant::now();
        let time = std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.subsec_nanos());
        let random = xxh3_64(&[std::process::id().to_le_bytes(), time.to_le_bytes()].concat());
        for attempt in 0.. {
            if let Some(result) = results.read() {
                return result;
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
        None
    }

    fn check(&self, threads: usize, watch: Option<&Watch>) -> Option<StaleReport> {
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
        let root = self.root.clone()?;
        let checked =
            quell_index::check_and_visit(&self.image, root, threads, max, &never_stop, &visit).ok()?;
        let stale = StaleReport::from_differences(&checked.differences, checked.complete);
        if let Some(results) = &self.results {
            results.publish(&stale);
        }
        stale
    }
}

#[derive(Debug)]
struct Phase {
    ended: bool,
    found: Option<StaleReport>,
    timed_out: bool,
}

#[derive(Debug)]
struct Shared {
    phase: Mutex<Phase>,
    ended: Condvar,
    changes: AtomicU64,
}

/// A running check.
#[derive(Debug)]
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
        phase.found.take()
    }

    /// Returns the watch of the tree's directories, once.
    pub fn take_watch(&mut self) -> Option<Arc<Watch>> {
        self.watch.take()
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
