//! The results of checks of whole trees, which the nodes of a job share.
//!
//! Results are in the state directory, which the nodes of a job share and only the user can access:
//! `$XDG_STATE_HOME/quell`, by default `~/.local/state/quell`. If that cannot be used, they are in
//! the runtime directory of the node. A node that checks a tree creates an empty file `check-KEY`,
//! with `O_EXCL` if another node may claim the check as well. When the check has ended, the file is
//! replaced by one with the result: JSON of an `Option<StaleReport>`. For a tree that the caller
//! may write to, the key depends on tree and job, otherwise on the tree alone, so that one result
//! serves all jobs of the user.

use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use xxhash_rust::xxh3::xxh3_64;

use crate::freshness::decision;
use crate::freshness::stale::StaleReport;

/// The largest expected difference between the clocks of two nodes.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(60);
/// Result files older than this are removed.
const RESULTS_KEPT_FOR: Duration = Duration::from_secs(3600);
/// Size limit of a result in bytes. It has a few lines, each with a path of up to 4,096 bytes,
/// escaped.
const RESULT_BYTES_MAX: u64 = 64 << 10;

const PREFIX: &str = "check-";

/// Returns `$XDG_STATE_HOME/quell`, created if necessary; `None` if it belongs to another user or
/// other users can access it.
pub fn state_directory() -> Option<PathBuf> {
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
pub struct Results {
    path: PathBuf,
    /// Whether the file is in the state directory, and not in this node's runtime directory.
    pub is_state: bool,
}

impl Results {
    pub fn open(state_directory: Option<PathBuf>, runtime_directory: &Path, key: &[u8]) -> Results {
        let is_state = state_directory.is_some();
        let directory = state_directory.unwrap_or_else(|| runtime_directory.into());
        Results { path: directory.join(format!("{PREFIX}{:016x}", xxh3_64(key))), is_state }
    }

    /// Returns the result at a path in the runtime directory, through which the processes of a job
    /// on a node exchange it.
    pub fn at(path: &Path) -> Results {
        Results { path: path.into(), is_state: false }
    }

    /// Returns the path of the result of the check of a file of a job.
    pub fn path_of_job(runtime_directory: &Path, holder_key: &str, file: usize) -> PathBuf {
        runtime_directory.join(format!("{PREFIX}{holder_key}-{file}"))
    }

    /// Returns whether the file is on a file system that other nodes may access, judged by its
    /// type.
    pub fn is_shared(&self) -> bool {
        let directory = self.path.parent().filter(|_| self.is_state);
        let found = directory.and_then(|directory| rustix::fs::statfs(directory).ok());
        found.is_some_and(|found| !LOCAL_TYPES.contains(&(found.f_type as u64)))
    }

    /// Claims the check. Returns whether this process must do it: its claim is the first, or the
    /// claim could not be recorded.
    pub fn claim(&self) -> bool {
        let is_empty = std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.len() == 0);
        let lasts = if is_empty { decision::CLAIM_VALID_FOR } else { decision::RESULT_VALID_FOR };
        if age_of(&self.path).is_some_and(|age| age >= lasts) {
            self.forget();
        }
        !create(&self.path, true).is_err_and(|e| e.kind() == std::io::ErrorKind::AlreadyExists)
    }

    /// Replaces the file by an empty one, which shows other processes that this one is checking.
    pub fn begin(&self) {
        // If this fails, the other nodes get no result; nothing else is affected.
        let _ = create(&self.path, false);
    }

    pub fn forget(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    /// Writes the result atomically. If this fails, only the other nodes are affected.
    pub fn publish(&self, stale: &Option<StaleReport>) {
        let aside = self.path.with_extension(format!("{}.aside", std::process::id()));
        let text = serde_json::to_vec(stale).expect("a result is always JSON");
        let written = create(&aside, false).and_then(|mut file| file.write_all(&text));
        if written.and_then(|()| std::fs::rename(&aside, &self.path)).is_err() {
            let _ = std::fs::remove_file(&aside);
        }
        self.sweep();
    }

    /// Returns the result if it is complete and recent. `Some(None)`: the check found no
    /// difference.
    pub fn read(&self) -> Option<Option<StaleReport>> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(&self.path).ok()?;
        let found = file.metadata().ok()?;
        if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
            return None;
        }
        let is_recent = found.modified().is_ok_and(|at| {
            // The clock of another node may be ahead of this node's clock.
            at.elapsed()
                .map_or_else(|e| e.duration() < CLOCK_SKEW_MAX, |age| age < decision::RESULT_VALID_FOR)
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
            let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
            if is_ours && age_of(&entry.path()).is_some_and(|age| age >= RESULTS_KEPT_FOR) {
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
    fn one_process_claims_a_check_and_the_others_read_its_result() {
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
        age(&results, decision::RESULT_VALID_FOR);
        assert_eq!(results.read(), None);
        assert!(results.claim());
        age(&results, decision::CLAIM_VALID_FOR);
        assert!(results.claim() && !results.claim(), "a claim without a result expires");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn links_and_incomplete_files_are_no_results() {
        let (directory, results) = results("foreign");
        let other = directory.join("other");
        std::fs::write(&other, "null").unwrap();
        std::os::unix::fs::symlink(&other, &results.path).unwrap();
        assert_eq!(results.read(), None, "a link is not followed");
        std::fs::remove_file(&results.path).unwrap();
        std::fs::write(&results.path, "{\"lines\":[]").unwrap();
        assert_eq!(results.read(), None, "the result is not complete");
        std::fs::remove_dir_all(directory).unwrap();
    }
}
