//! Changes of a tree while it is covered: shows changed files as they are now, where the view can,
//! and prints each change once.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use quell_index::{Change, Checked, Comparison, EntryId, Image, ROOT, Sampler};
use quell_overlay::{FileNow, MountedMetadata, Update};
use quell_threads::{lock, try_lock};
use quell_vfs::{Kind, NodeId};

use crate::display::shown;
use crate::freshness::consequence::{Shown, ViewAtChange, consequence};
use crate::freshness::stale::difference_line;
use crate::freshness::watch::Watch;
use crate::freshness::whole_check::RunningCheck;
use crate::holder::messages::Messages;

/// Number of changes that are printed; the rest is only counted.
const CHANGES_PRINTED: u64 = 5;
/// The shortest pause between two sets of notifications, so that a program that writes without a
/// pause does not keep a processor busy. The pause is as long as the comparisons before it.
const NOTIFICATION_PAUSE: Duration = Duration::from_millis(10);
/// While a part of the tree is compared, how often the view shows the replaced files found so far.
const NAMES_DROPPED_EVERY: Duration = Duration::from_millis(100);

/// The pauses between attempts to show a file whose name a program uses.
const FIRST_ATTEMPT_PAUSE: Duration = Duration::from_millis(20);
const ATTEMPT_PAUSE_MAX: Duration = Duration::from_secs(10);

/// The changes of one tree.
pub struct TreeChanges {
    image: Arc<Image>,
    tree: PathBuf,
    /// "covered" or "served".
    state: &'static str,
    view: ViewAtChange,
    metadata: Option<MountedMetadata>,
    messages: Messages,
    /// The number of changed entries, which reports read without waiting for `found`.
    count: AtomicU64,
    /// Held from the comparison of an entry until its result is applied: of two results of one
    /// entry, the older one must not be applied last. The thread that serves requests does not wait
    /// for it.
    found: Mutex<ChangedEntries>,
    /// Files that replaced others and are shown, and that a program which looks them up may not
    /// find yet, because the kernel still has the old name. Held only to read and change the map.
    unseen: Mutex<HashMap<EntryId, FileNow>>,
}

/// How a new change is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Report {
    /// The change is counted, and printed unless many were printed before.
    Print,
    /// The change is only counted.
    Count,
    /// Nothing is done: the check of the whole tree has reported the change.
    Nothing,
}

#[derive(Default)]
struct ChangedEntries {
    /// The changed entries.
    changed: HashSet<EntryId>,
    /// Inode number, size and time of files that are not shown as indexed.
    shown: HashMap<EntryId, (u64, FileNow)>,
}

impl TreeChanges {
    pub fn new(
        image: Arc<Image>,
        tree: &Path,
        state: &'static str,
        view: ViewAtChange,
        metadata: Option<MountedMetadata>,
        messages: Messages,
    ) -> TreeChanges {
        TreeChanges {
            image,
            tree: tree.to_owned(),
            state,
            view,
            metadata,
            messages,
            count: AtomicU64::new(0),
            found: Mutex::default(),
            unseen: Mutex::default(),
        }
    }

    /// Returns the number of entries that have changed.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Compares the sampler's next entry, unless another thread compares one now. Returns whether
    /// it was compared. `check`: after the check of the whole tree has printed that the index is
    /// out of date, changes are only counted.
    pub fn compare_next(&self, sampler: &mut Sampler, check: Option<&RunningCheck>) -> bool {
        let Some(found) = try_lock(&self.found) else { return false };
        let entry = sampler.next_entry();
        // The directories may have been moved since they were opened.
        sampler.close_directories();
        // An error of the file system is no difference; the program gets the same error.
        if let Ok(comparison) = sampler.compare(entry) {
            let is_printed = check.is_some_and(|check| check.changes() > 0);
            self.apply(&comparison, found, if is_printed { Report::Count } else { Report::Print });
        }
        true
    }

    /// Compares an entry and applies the result. A different link count alone is no change.
    fn compare(
        &self,
        report: Report,
        compare: impl FnOnce() -> quell_vfs::Result<Comparison>,
    ) -> Option<Comparison> {
        let found = lock(&self.found);
        // An error of the file system is no difference; the program gets the same error.
        let comparison = compare().ok()?;
        let links = |change: &Change| matches!(change, Change::Changed(what) if what[..] == ["nlink"]);
        if !comparison.difference.as_ref().is_some_and(|difference| links(&difference.what)) {
            self.apply(&comparison, found, report);
        }
        Some(comparison)
    }

    /// Applies the comparison of an entry. The message is printed without the lock.
    fn apply(&self, comparison: &Comparison, mut found: MutexGuard<'_, ChangedEntries>, report: Report) {
        let entry = comparison.entry;
        if comparison.difference.is_none() && !found.shown.contains_key(&entry) {
            return;
        }
        let effect = self.show(comparison, &mut found);
        let Some(difference) = &comparison.difference else { return };
        let is_new = found.changed.insert(entry);
        drop(found);
        if !is_new || report == Report::Nothing {
            return;
        }
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        if before < CHANGES_PRINTED && report == Report::Print {
            self.messages.print(&format!(
                "{} changed while it is {}: {}; {}",
                shown(&self.tree),
                self.state,
                difference_line(difference),
                consequence(self.view, self.image.kind(entry), &difference.what, effect)
            ));
        }
    }

    /// Shows a file as it is now, if the view can.
    fn show(&self, comparison: &Comparison, found: &mut ChangedEntries) -> Shown {
        let Comparison { entry, now: Some(now), .. } = comparison else { return Shown::AsIndexed };
        let Some(metadata) = &self.metadata else { return Shown::AsIndexed };
        let indexed = self.image.attributes(*entry);
        if indexed.kind != Kind::File || Kind::from_mode(now.mode) != Some(Kind::File) {
            return Shown::AsIndexed;
        }
        let before = found.shown.get(entry).copied();
        let (inode, size_bytes, modified) = match before {
            Some((inode, file)) => (Some(inode), file.size_bytes, file.modified),
            None => (self.image.inode(*entry), indexed.size_bytes, indexed.modified),
        };
        let is_shown_file = inode == Some(now.inode);
        let file = FileNow { size_bytes: now.size_bytes, modified: now.modified, is_shown_file };
        if (size_bytes, modified) == (file.size_bytes, file.modified) && (is_shown_file || inode.is_none()) {
            return if before.is_some() { Shown::Now } else { Shown::AsIndexed };
        }
        let path = self.image.path(*entry);
        let node = NodeId(u64::from(self.image.node_of(*entry)));
        let update = match metadata.show(node, &path, file) {
            Ok(update) => update,
            Err(e) => {
                tracing::debug!(error = %e, "a changed file is shown as it was indexed");
                return Shown::AsIndexed;
            }
        };
        if update == Update::FromMemory {
            return Shown::FromMemory;
        }
        found.shown.insert(*entry, (now.inode, file));
        let mut unseen = lock(&self.unseen);
        if update == Update::Replaced || unseen.contains_key(entry) {
            unseen.insert(*entry, file);
        }
        Shown::Now
    }

    /// Makes the kernel look up the names of replaced files again. Returns whether a name is still
    /// in use, so that this must be repeated.
    pub fn show_unseen(&self) -> bool {
        let Some(metadata) = &self.metadata else { return false };
        let unseen = lock(&self.unseen).clone();
        if unseen.is_empty() {
            return false;
        }
        if let Err(e) = metadata.drop_unused_names() {
            tracing::debug!(error = %e, "a changed file may be shown as it was");
        }
        let mut is_hidden = false;
        for (entry, file) in unseen {
            if !metadata.is_visible(&self.image.path(entry), file) {
                is_hidden = true;
                continue;
            }
            let mut unseen = lock(&self.unseen);
            if unseen.get(&entry) == Some(&file) {
                unseen.remove(&entry);
            }
        }
        is_hidden
    }

    /// Compares the entries that have notifications, until the process ends. `prints_unwatched`:
    /// whether to print, once, that some directories are not watched.
    pub fn follow(&self, watch: &Watch, mut sampler: Sampler, prints_unwatched: bool) {
        let mut prints_unwatched = prints_unwatched;
        let mut attempt_pause = None;
        loop {
            if prints_unwatched && watch.has_unwatched() {
                prints_unwatched = false;
                self.messages.print(&format!(
                    "some directories of {} are not watched, because a tree may use an eighth of fs.inotify.max_user_watches: changes there are found by comparisons at intervals",
                    shown(&self.tree)
                ));
            }
            // After an error, only the comparisons at intervals find changes.
            let Ok(notified) = watch.wait(&self.image, attempt_pause) else { return };
            let begun = Instant::now();
            if !notified.entries.is_empty() || notified.has_lost {
                attempt_pause = None;
                sampler.close_directories();
            }
            for entry in notified.entries {
                self.compare(Report::Print, || sampler.compare(entry));
            }
            for directory in notified.directories.into_iter().chain(notified.has_lost.then_some(ROOT)) {
                sampler.close_directories();
                self.compare_below(directory, Some(watch), &mut sampler, Report::Print);
            }
            attempt_pause = self.show_unseen().then(|| next_pause(attempt_pause));
            std::thread::sleep(begun.elapsed().max(NOTIFICATION_PAUSE));
        }
    }

    /// Shows the changed files that the check of the whole tree has found after the start, and
    /// compares the rest of the tree if the check ended early.
    pub fn found_late(&self, checked: &Checked, watch: Option<&Watch>, mut sampler: Sampler) {
        for difference in &checked.differences {
            let mut names = difference.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
            // The index has no entry for a file that was added.
            if let Some(entry) = names.try_fold(ROOT, |at, name| self.image.lookup(at, name)) {
                sampler.close_directories();
                self.compare(Report::Nothing, || sampler.compare(entry));
            }
        }
        if !checked.complete {
            sampler.close_directories();
            self.compare_below(ROOT, watch, &mut sampler, Report::Count);
        }
        let mut pause = None;
        while self.show_unseen() {
            std::thread::sleep(*pause.insert(next_pause(pause)));
        }
    }

    /// Compares all entries below a directory, and watches the directories that are now at the
    /// paths of these entries.
    fn compare_below(
        &self,
        directory: EntryId,
        watch: Option<&Watch>,
        sampler: &mut Sampler,
        report: Report,
    ) {
        let mut directories = vec![directory];
        let mut names_dropped = Instant::now();
        while let Some(directory) = directories.pop() {
            let children = self.image.children(directory).unwrap_or(0..0);
            if children.is_empty() {
                continue;
            }
            // The comparison of the directory itself has found that it no longer exists.
            let Ok(dir) = sampler.directory(directory) else { continue };
            // A directory is watched before its entries are compared, so no change is missed
            // between.
            if let Some(watch) = watch {
                watch.add(directory, &*dir);
            }
            for entry in children {
                let now =
                    self.compare(report, || sampler.compare(entry)).and_then(|comparison| comparison.now);
                let is_dir = now.is_some_and(|now| now.kind() == Some(Kind::Dir));
                if is_dir && self.image.kind(entry) == Kind::Dir {
                    directories.push(entry);
                }
            }
            if names_dropped.elapsed() >= NAMES_DROPPED_EVERY {
                self.show_unseen();
                names_dropped = Instant::now();
            }
        }
    }
}

/// Returns the pause after an attempt that followed the pause `last`.
fn next_pause(last: Option<Duration>) -> Duration {
    last.map_or(FIRST_ATTEMPT_PAUSE, |last| (last * 2).min(ATTEMPT_PAUSE_MAX))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use quell_index::{BuildOptions, BuildProgress, build, encode};
    use quell_posix::{Dir, PosixDir};

    use super::*;
    use crate::console::{Console, ProgressTask};

    struct NoConsole;

    impl Console for NoConsole {
        fn print(&self, _: &str) {}

        fn watch(&self, _: &ProgressTask<'_>, _: &dyn Fn() -> bool, _: &mut (dyn FnMut() + Send)) {}
    }

    fn indexed(tree: &Path) -> (Arc<dyn Dir>, Arc<Image>, TreeChanges) {
        let root: Arc<dyn Dir> = Arc::new(PosixDir::open(tree).unwrap());
        let options = BuildOptions::default();
        let built = build(root.clone(), b"/tree", &options, 1, None, &BuildProgress::default()).unwrap();
        let image = Arc::new(Image::parse(encode(&built).unwrap()).unwrap());
        let messages = Messages::new(Arc::new(NoConsole));
        let changes = TreeChanges::new(image.clone(), tree, "covered", ViewAtChange::Overlay, None, messages);
        (root, image, changes)
    }

    #[test]
    fn an_entry_is_compared_after_the_previous_result_was_applied() {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join("file"), "x").unwrap();
        let (root, image, changes) = indexed(tree.path());
        let (begun, has_begun) = channel();
        let (end, may_end) = channel::<()>();
        let (second, second_compares) = channel();
        let sampler = || Sampler::new(image.clone(), root.clone(), 1);
        let (mut first_sampler, mut second_sampler) = (sampler(), sampler());
        let changes = &changes;
        std::thread::scope(|threads| {
            threads.spawn(move || {
                changes.compare(Report::Print, || {
                    begun.send(()).unwrap();
                    may_end.recv().unwrap();
                    first_sampler.compare(1)
                })
            });
            has_begun.recv().unwrap();
            threads.spawn(move || {
                changes.compare(Report::Print, || {
                    second.send(()).unwrap();
                    second_sampler.compare(1)
                })
            });
            let waits = second_compares.recv_timeout(Duration::from_millis(200));
            assert_eq!(waits, Err(RecvTimeoutError::Timeout));
            // The thread that serves requests does not wait.
            assert!(!changes.compare_next(&mut sampler(), None));
            end.send(()).unwrap();
            second_compares.recv().unwrap();
        });
        assert!(changes.compare_next(&mut sampler(), None));
    }

    #[test]
    fn an_entry_is_compared_in_the_directory_that_has_its_path() {
        let tree = tempfile::tempdir().unwrap();
        let file = tree.path().join("a/b/file");
        fs::create_dir_all(tree.path().join("a/b")).unwrap();
        fs::write(&file, "x").unwrap();
        let (root, image, changes) = indexed(tree.path());
        let mut sampler = Sampler::new(image, root, 1);
        // The root, and then the only path from it, except the file.
        for _ in 0..3 {
            assert!(changes.compare_next(&mut sampler, None));
        }
        assert_eq!(changes.count(), 0);
        fs::rename(tree.path().join("a"), tree.path().join("old")).unwrap();
        fs::create_dir_all(tree.path().join("a/b")).unwrap();
        fs::write(&file, "longer").unwrap();
        assert!(changes.compare_next(&mut sampler, None));
        assert_eq!(changes.count(), 1);
    }
}
