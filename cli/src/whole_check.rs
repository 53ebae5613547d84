//! Runs the check of a whole tree in a thread of the holder, and passes its result to the other
//! nodes of the job and to later runs. `freshness.rs` decides which check is run.
//!
//! Results are in the state directory, which the nodes of a job share and only the user can access:
//! `$XDG_STATE_HOME/quell`, by default `~/.local/state/quell`. If that cannot be used, they are in
//! the runtime directory of the node. The checking node creates a file `check-KEY` with `O_EXCL`.
//! It is empty until it has the result: JSON of an `Option<Stale>`. For a tree that the caller may
//! write to, the key depends on tree and job, otherwise on the tree alone, so that one result
//! serves all jobs of the user.

use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quell_index::Image;
use quell_posix::{Dir, PosixDir};
use rustix::fs::{Mode, OFlags};
use xxhash_rust::xxh3::xxh3_64;

use crate::freshness::{self, Stale, WholeCheck};
use crate::runtime;

/// Number of requests in flight while a start waits.
const THREADS_BEFORE: usize = 16;
/// Number of requests in flight while the program runs and makes its own requests.
const THREADS_BESIDE: usize = 4;
/// Nice value of a check while the program runs.
const NICE_BESIDE: i32 = 10;
/// The largest expected difference between the clocks of two nodes.
const CLOCKS_DIFFER: Duration = Duration::from_secs(60);
/// Result files older than this are removed.
const RESULTS_LAST: Duration = Duration::from_secs(3600);
/// Size limit of a result in bytes. It has a few lines, each with a path of up to 4,096 bytes,
/// escaped.
const RESULT_BYTES_MAX: u64 = 64 << 10;

/// A planned check. It starts after the namespace was created, because no thread may exist before.
pub struct WholeTree {
    image: Arc<Image>,
    /// The tree's root, opened before anything is covered; `None` if this node never checks.
    root: Option<Arc<dyn Dir>>,
    how: WholeCheck,
    /// `None` if no other run reads the result.
    results: Option<Results>,
}

/// The plan for the check of a tree.
#[derive(Default)]
pub struct Planned {
    pub check: Option<WholeTree>,
    /// Differences that another node has found.
    pub stale: Option<Stale>,
}

impl WholeTree {
    /// Decides which check is needed for the tree at `source`.
    pub fn plan(image: &Arc<Image>, source: &Path, runtime_directory: &Path) -> Planned {
        let job = runtime::job();
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let role = freshness::node_role(job.is_some(), &variable);
        let is_writable = freshness::is_writable_by(
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
            (true, None) => return WholeTree::opened(image, source, WholeCheck::Before, None),
        };
        let results = Results::open(state_directory(), runtime_directory, &key);
        let known = results.read();
        let how = match freshness::decide(role, is_writable, results.is_shared()) {
            WholeCheck::BeforeIfClaimed if results.claim() => WholeCheck::Before,
            WholeCheck::BeforeIfClaimed => WholeCheck::Await,
            how => how,
        };
        match (how, known) {
            // A result of an earlier run in the same job is not valid for this run.
            (WholeCheck::Before, _) => results.begin(),
            (_, Some(None)) => return Planned::default(),
            (WholeCheck::Await, Some(stale)) => return Planned { stale, check: None },
            // The tree may have been corrected since.
            (_, Some(Some(_))) => results.forget(),
            (WholeCheck::Await, None) if !results.is_state => return Planned::default(),
            (_, None) => {}
        }
        WholeTree::opened(image, source, how, Some(results))
    }

    fn opened(image: &Arc<Image>, source: &Path, how: WholeCheck, results: Option<Results>) -> Planned {
        let root: Option<Arc<dyn Dir>> = match how {
            WholeCheck::Await => None,
            _ => match PosixDir::open(source) {
                Ok(root) => Some(Arc::new(root)),
                // A tree that cannot be listed cannot be compared.
                Err(_) => return Planned::default(),
            },
        };
        let check = Some(WholeTree { image: image.clone(), root, how, results });
        Planned { check, stale: None }
    }

    /// Starts the check in a thread. The thread calls `report` with differences that are found
    /// after `Watch::wait` has timed out; for a check while the program runs, at any time.
    pub fn begin(self, report: impl FnOnce(&Stale) + Send + 'static) -> Watch {
        let waits = self.how == WholeCheck::Before;
        let shared = Arc::new(Shared {
            phase: Mutex::new(Phase { ended: false, found: None, given_up: !waits }),
            ended: Condvar::new(),
            changes: AtomicU64::new(0),
        });
        let watch = Watch { shared: shared.clone() };
        let spawned = std::thread::Builder::new().name("check".into()).spawn(move || {
            let found = self.result();
            let mut phase = lock(&shared.phase);
            phase.ended = true;
            let Some(found) = found else { return shared.ended.notify_all() };
            shared.changes.fetch_add(found.count() as u64, Ordering::Relaxed);
            if phase.given_up {
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
            lock(&watch.shared.phase).ended = true;
        }
        watch
    }

    fn result(&self) -> Option<Stale> {
        if self.how == WholeCheck::Before {
            return self.check(THREADS_BEFORE);
        }
        let results = self.results.as_ref()?;
        std::thread::sleep(freshness::CHECK_DELAY);
        let begun = Instant::now();
        let time = std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.subsec_nanos());
        let random = xxh3_64(&[std::process::id().to_le_bytes(), time.to_le_bytes()].concat());
        for question in 0.. {
            if let Some(result) = results.read() {
                return result;
            }
            if self.root.is_some() && results.claim() {
                // The threads of the check inherit the nice value. If it cannot be set, the check
                // competes with the program.
                let _ = rustix::process::setpriority_process(None, NICE_BESIDE);
                return self.check(THREADS_BESIDE);
            }
            if begun.elapsed() >= freshness::AWAIT_LASTS {
                break;
            }
            std::thread::sleep(freshness::await_pause(question, random >> (question % 8)));
        }
        None
    }

    fn check(&self, threads: usize) -> Option<Stale> {
        let never = AtomicBool::new(false);
        let max = freshness::DIFFERENCES_MAX;
        // An error of the file system is no difference; the program gets the same error.
        let checked = quell_index::check(&self.image, self.root.clone()?, threads, max, &never).ok()?;
        let stale = Stale::of(&checked.differences, checked.complete);
        if let Some(results) = &self.results {
            results.publish(&stale);
        }
        stale
    }
}

#[derive(Debug)]
struct Phase {
    ended: bool,
    found: Option<Stale>,
    given_up: bool,
}

#[derive(Debug)]
struct Shared {
    phase: Mutex<Phase>,
    ended: Condvar,
    changes: AtomicU64,
}

fn lock(phase: &Mutex<Phase>) -> MutexGuard<'_, Phase> {
    phase.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running check.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
}

impl Watch {
    /// Waits until the deadline for the result of a check before the start. Later differences are
    /// reported by the thread of the check.
    pub fn wait(&self, deadline: Instant) -> Option<Stale> {
        let left = deadline.saturating_duration_since(Instant::now());
        let phase = lock(&self.shared.phase);
        let unknown = |phase: &mut Phase| !phase.ended && !phase.given_up;
        let waited = self.shared.ended.wait_timeout_while(phase, left, unknown);
        let (mut phase, _) = waited.unwrap_or_else(PoisonError::into_inner);
        phase.given_up = true;
        phase.found.take()
    }

    /// Returns the number of differences found so far.
    pub fn changes(&self) -> u64 {
        self.shared.changes.load(Ordering::Relaxed)
    }
}

const CHECK: &str = "check-";

/// Returns `$XDG_STATE_HOME/quell`, created if necessary; `None` if it belongs to another user or
/// other users can access it.
fn state_directory() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let parent = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    let directory = parent.join("quell");
    let _ = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::PATH | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&directory, flags, Mode::empty()).ok()?;
    let found = rustix::fs::fstat(&opened).ok()?;
    let is_own = found.st_uid == rustix::process::geteuid().as_raw() && found.st_mode & 0o077 == 0;
    is_own.then_some(directory)
}

/// The result for one tree, or for one tree in one job.
#[derive(Debug)]
struct Results {
    path: PathBuf,
    /// Whether the file is in the state directory, and not in this node's runtime directory.
    is_state: bool,
}

impl Results {
    fn open(state_directory: Option<PathBuf>, runtime_directory: &Path, key: &[u8]) -> Results {
        let is_state = state_directory.is_some();
        let directory = state_directory.unwrap_or_else(|| runtime_directory.into());
        Results { path: directory.join(format!("{CHECK}{:016x}", xxh3_64(key))), is_state }
    }

    /// Returns whether the file is on a file system that other nodes may access, judged by its
    /// type.
    fn is_shared(&self) -> bool {
        let directory = self.path.parent().filter(|_| self.is_state);
        let found = directory.and_then(|directory| rustix::fs::statfs(directory).ok());
        found.is_some_and(|found| !LOCAL_TYPES.contains(&(found.f_type as u64)))
    }

    /// Returns whether this process does the check. If claims cannot be created, every process does
    /// it.
    fn claim(&self) -> bool {
        let is_empty = std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.len() == 0);
        let lasts = if is_empty { freshness::CLAIM_LASTS } else { freshness::CLEAN_LASTS };
        if age_of(&self.path).is_some_and(|age| age >= lasts) {
            self.forget();
        }
        !create(&self.path, true).is_err_and(|e| e.kind() == std::io::ErrorKind::AlreadyExists)
    }

    /// Replaces the file by an empty one, which means that this process is checking.
    fn begin(&self) {
        // If this fails, the other nodes get no result; nothing else is affected.
        let _ = create(&self.path, false);
    }

    fn forget(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    /// Writes the result atomically. If this fails, only the other nodes are affected.
    fn publish(&self, stale: &Option<Stale>) {
        let aside = self.path.with_extension(format!("{}.aside", std::process::id()));
        let text = serde_json::to_vec(stale).expect("a result is always JSON");
        let written = create(&aside, false).and_then(|mut file| file.write_all(&text));
        if written.and_then(|()| std::fs::rename(&aside, &self.path)).is_err() {
            let _ = std::fs::remove_file(&aside);
        }
        self.sweep();
    }

    /// Returns a complete and recent result.
    fn read(&self) -> Option<Option<Stale>> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(&self.path).ok()?;
        let found = file.metadata().ok()?;
        if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
            return None;
        }
        let is_recent = found.modified().is_ok_and(|at| {
            // The clock of another node may be ahead of this node's clock.
            at.elapsed().map_or_else(|e| e.duration() < CLOCKS_DIFFER, |age| age < freshness::CLEAN_LASTS)
        });
        let mut text = Vec::new();
        file.take(RESULT_BYTES_MAX).read_to_end(&mut text).ok()?;
        is_recent.then(|| serde_json::from_slice(&text).ok())?
    }

    /// Removes old results of all jobs and trees.
    fn sweep(&self) {
        let Some(entries) = self.path.parent().and_then(|directory| std::fs::read_dir(directory).ok()) else {
            return;
        };
        for entry in entries.flatten() {
            let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(CHECK));
            if is_ours && age_of(&entry.path()).is_some_and(|age| age >= RESULTS_LAST) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

fn create(path: &Path, must_be_new: bool) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    if must_be_new {
        options.create_new(true)
    } else {
        options.create(true).truncate(true)
    };
    let file = options.open(path)?;
    // Truncating an empty file does not change its times.
    file.set_modified(std::time::SystemTime::now())?;
    Ok(file)
}

/// Returns the time since a file was last written; `None` if that is in the future.
fn age_of(path: &Path) -> Option<Duration> {
    std::fs::symlink_metadata(path).ok()?.modified().ok()?.elapsed().ok()
}

/// Returns the groups that determine the caller's access.
fn groups() -> Vec<u32> {
    let supplementary = rustix::process::getgroups().unwrap_or_default();
    let mut groups: Vec<u32> = supplementary.into_iter().map(|group| group.as_raw()).collect();
    groups.push(rustix::process::getegid().as_raw());
    groups
}

/// Types of local file systems, as returned by statfs(2): ext2 to ext4, XFS, Btrfs, tmpfs, ramfs,
/// overlayfs, ZFS, F2FS, bcachefs.
const LOCAL_TYPES: [u64; 9] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x8584_58f6,
    0x794c_7630,
    0x2fc1_2fc1,
    0xf2f5_2010,
    0xca45_1a4e,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn results(name: &str) -> (PathBuf, Results) {
        let directory = std::env::temp_dir().join(format!("quell-results-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).unwrap();
        let results = Results::open(Some(directory.clone()), Path::new("/"), b"key");
        (directory, results)
    }

    fn age(results: &Results, by: Duration) {
        let past = std::time::SystemTime::now() - by;
        File::options().write(true).open(&results.path).unwrap().set_modified(past).unwrap();
    }

    #[test]
    fn one_of_many_claims_a_check_and_the_others_read_its_result() {
        let (directory, results) = results("claim");
        let claimed = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(|| results.claim())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).filter(|claimed| *claimed).count()
        });
        assert_eq!(claimed, 1);
        assert_eq!(results.read(), None, "a claim is no result");
        results.publish(&None);
        assert_eq!(results.read(), Some(None));
        assert!(!results.claim());
        age(&results, freshness::CLEAN_LASTS);
        assert_eq!(results.read(), None);
        assert!(results.claim());
        age(&results, freshness::CLAIM_LASTS);
        assert!(results.claim() && !results.claim(), "a claim without a result is given up after a while");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn what_is_no_result_of_ours_is_none() {
        let (directory, results) = results("foreign");
        let other = directory.join("other");
        std::fs::write(&other, "null").unwrap();
        std::os::unix::fs::symlink(&other, &results.path).unwrap();
        assert_eq!(results.read(), None, "a link is not followed");
        std::fs::remove_file(&results.path).unwrap();
        std::fs::write(&results.path, "{\"lines\":[]").unwrap();
        assert_eq!(results.read(), None, "half of a result");
        std::fs::remove_dir_all(directory).unwrap();
    }
}
