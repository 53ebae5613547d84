//! The sample: the comparison of a few entries of a tree with its index, before a run.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_index::{Difference, Image, Sampler};
use xxhash_rust::xxh3::xxh3_64;

use crate::waiting::Waiting;

/// Maximum number of metadata operations of a sample.
const OPERATIONS: u32 = 8;
/// As `OPERATIONS`, if this node has just checked the tree: many launches in a row must not cause a
/// metadata storm.
const OPERATIONS_AGAIN: u32 = 2;
const STAMP_VALID_FOR: Duration = Duration::from_secs(60);
const STAMP_PREFIX: &str = "checked-";

/// Compares a sample. A stamp in the runtime directory, whose age is the time since the tree was
/// last found equal to this generation of its index, makes the next samples smaller. `waiting`
/// watches each comparison: a slow file system answers, although the sample takes long.
pub fn sample(
    waiting: &Waiting,
    runtime_directory: &Path,
    image: &Image,
    source: &Path,
    sampler: &mut Sampler,
) -> Vec<Difference> {
    let stamp = stamp_path(runtime_directory, image, source);
    let (mut differences, mut compared) = (Vec::new(), 0);
    let age = std::fs::metadata(&stamp).and_then(|metadata| metadata.modified()).map(|at| at.elapsed());
    // A stamp with a time in the future is ignored.
    let operations = match age {
        Ok(Ok(age)) if age < STAMP_VALID_FOR => {
            sampler.skip_path_to_fullest();
            OPERATIONS_AGAIN
        }
        _ => OPERATIONS,
    };
    // For a tree with fewer entries, the number of steps is the number of entries.
    let mut seen = HashSet::new();
    for _ in 0..operations.min(image.entries()) {
        let entry = sampler.next_entry();
        // In a small tree, random descents meet the same entry again.
        if !seen.insert(entry) {
            continue;
        }
        // An error of the file system is no difference; the program gets the same error.
        if let Ok(comparison) = waiting.watch(source, || sampler.compare(entry)) {
            compared += 1;
            differences.extend(comparison.difference);
        }
    }
    tracing::debug!(compared, differences = differences.len(), "compared a sample of the tree");
    sweep_stamps(&stamp);
    // If the stamp cannot be written, the next start makes more requests, and nothing else changes.
    let _ = match (differences.is_empty(), operations) {
        (true, OPERATIONS) if compared > 0 => {
            File::options().write(true).create(true).truncate(true).mode(0o600).open(stamp).map(drop)
        }
        (true, _) => Ok(()),
        (false, _) => std::fs::remove_file(stamp),
    };
    differences
}

fn stamp_path(runtime_directory: &Path, image: &Image, source: &Path) -> PathBuf {
    let text = [image.generation().to_string().as_bytes(), source.as_os_str().as_bytes()].concat();
    runtime_directory.join(format!("{STAMP_PREFIX}{:016x}", xxh3_64(&text)))
}

/// Removes all expired stamps, except `except`.
fn sweep_stamps(except: &Path) {
    let entries = except.parent().and_then(|directory| std::fs::read_dir(directory).ok());
    for entry in entries.into_iter().flatten().flatten() {
        let is_stamp = entry.file_name().to_str().is_some_and(|name| name.starts_with(STAMP_PREFIX));
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        if is_stamp && entry.path() != except && age().is_none_or(|age| age >= STAMP_VALID_FOR) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Instant;

    use quell_index::{BuildOptions, BuildProgress, build, encode};
    use quell_posix::{Dir, OpenFile, PosixDir, Stat};
    use quell_threads::lock;
    use quell_vfs::Result;

    use super::*;

    /// A directory of files on a server that answers late.
    struct SlowDir {
        directory: PosixDir,
        answered: Arc<Mutex<Vec<Instant>>>,
    }

    impl SlowDir {
        fn answer<T>(&self, answer: T) -> T {
            std::thread::sleep(Duration::from_millis(400));
            lock(&self.answered).push(Instant::now());
            answer
        }
    }

    impl Dir for SlowDir {
        fn stat_self(&self) -> Result<Stat> {
            self.answer(self.directory.stat_self())
        }

        fn stat(&self, name: &[u8]) -> Result<Stat> {
            self.answer(self.directory.stat(name))
        }

        fn names(&self) -> Result<Vec<Vec<u8>>> {
            self.directory.names()
        }

        fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
            self.directory.read_link(name)
        }

        fn xattrs(&self, name: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
            self.directory.xattrs(name)
        }

        fn open_dir(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
            self.directory.open_dir(name)
        }

        fn enter(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
            self.directory.enter(name)
        }

        fn open_file(&self, name: &[u8]) -> Result<Box<dyn OpenFile>> {
            self.directory.open_file(name)
        }
    }

    #[test]
    fn the_time_limit_is_for_one_answer_and_not_for_the_whole_sample() {
        let (tree, runtime) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // There are so many files that the random entries differ; their seed is fixed.
        for number in 1..300 {
            std::fs::write(tree.path().join(number.to_string()), "x").unwrap();
        }
        let root: Arc<dyn Dir> = Arc::new(PosixDir::open(tree.path()).unwrap());
        let options = BuildOptions::default();
        let built = build(root, b"/tree", &options, 1, None, &BuildProgress::default()).unwrap();
        let image = Arc::new(Image::parse(encode(&built).unwrap()).unwrap());
        let answered = Arc::new(Mutex::new(vec![Instant::now()]));
        let directory = PosixDir::open(tree.path()).unwrap();
        let slow = Arc::new(SlowDir { directory, answered: answered.clone() });
        let mut sampler = Sampler::new(image.clone(), slow, 1);
        let ended = Arc::new(Mutex::new(0));
        let end = {
            let ended = ended.clone();
            move |_| *lock(&ended) += 1
        };
        let limit = Duration::from_secs(2);
        let creator = std::process::id().cast_signed();
        let waiting = Waiting::for_creator(Some(limit), creator, |_: &str| {}, end);
        let differences = sample(&waiting, runtime.path(), &image, tree.path(), &mut sampler);
        assert_eq!(differences, Vec::new());
        lock(&answered).push(Instant::now());
        let times = lock(&answered).clone();
        assert_eq!(times.len(), OPERATIONS as usize + 2);
        assert!(times[times.len() - 1] - times[0] > limit);
        // On a busy machine a thread may not run for as long as the limit.
        let longest = times.windows(3).map(|three| three[2] - three[0]).max().unwrap();
        assert!(*lock(&ended) == 0 || longest >= limit, "ended after {longest:?}");
    }
}
