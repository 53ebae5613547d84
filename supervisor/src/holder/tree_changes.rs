//! Changes of a tree while it is covered: shows changed files as they are now, where the view can,
//! and prints each change once.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_index::{Change, Comparison, Image, Sampler};
use quell_overlay::{FileNow, MountedMetadata};
use quell_threads::lock;
use quell_vfs::{Kind, NodeId};

use crate::display::shown;
use crate::freshness::consequence::{Shown, ViewAtChange, consequence};
use crate::freshness::stale::difference_line;
use crate::freshness::watch::Watch;
use crate::freshness::whole_check::RunningCheck;
use crate::holder::messages::Messages;

/// Number of changes that are printed; the rest is only counted.
const CHANGES_PRINTED: u64 = 5;
/// The pause between two sets of notifications, so that a program that writes without a pause does
/// not keep a processor busy.
const NOTIFICATION_PAUSE: Duration = Duration::from_millis(10);

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
    /// Waited for by two threads, the one that compares entries and the one that reads
    /// notifications. Held while the entry in the tmpfs is changed.
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    /// The changed entries.
    changed: HashSet<u32>,
    /// Inode number, size and time of files that are not shown as indexed.
    shown: HashMap<u32, (u64, FileNow)>,
    /// Files that are shown, and that a program which looks them up may not find yet, because
    /// another one used the name.
    unseen: HashMap<u32, FileNow>,
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
        let tree = tree.to_owned();
        TreeChanges { image, tree, state, view, metadata, messages, found: Mutex::default() }
    }

    /// Returns the number of entries that have changed.
    pub fn count(&self) -> u64 {
        lock(&self.found).changed.len() as u64
    }

    /// Takes note of the comparison of an entry. `check`: after the check of the whole tree has
    /// printed that the index is out of date, changes are only counted.
    pub fn compared(&self, comparison: &Comparison, check: Option<&RunningCheck>) {
        let entry = comparison.entry;
        let mut found = lock(&self.found);
        if comparison.difference.is_none() && !found.shown.contains_key(&entry) {
            return;
        }
        let effect = self.show(comparison, &mut found);
        let Some(difference) = &comparison.difference else { return };
        let is_new = found.changed.insert(entry);
        let count = found.changed.len() as u64;
        drop(found);
        if is_new && count <= CHANGES_PRINTED && check.is_none_or(|check| check.changes() == 0) {
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
    fn show(&self, comparison: &Comparison, found: &mut Found) -> Shown {
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
        match metadata.show(node, &path, file) {
            Ok(true) => {
                found.shown.insert(*entry, (now.inode, file));
                found.unseen.insert(*entry, file);
                Shown::Now
            }
            Ok(false) => Shown::FromMemory,
            Err(e) => {
                tracing::debug!(error = %e, "a changed file is shown as it was indexed");
                Shown::AsIndexed
            }
        }
    }

    /// Tries again to show files whose names were in use. Returns whether a name still is.
    pub fn show_unseen(&self) -> bool {
        let Some(metadata) = &self.metadata else { return false };
        let unseen = lock(&self.found).unseen.clone();
        // Without the lock: stat(2) in the view may wait for the file system of the tree.
        let is_visible =
            |(entry, file): &(u32, FileNow)| metadata.is_visible(&self.image.path(*entry), *file);
        let (seen, hidden): (Vec<_>, Vec<_>) = unseen.into_iter().partition(is_visible);
        let mut found = lock(&self.found);
        for (entry, file) in seen {
            if found.unseen.get(&entry) == Some(&file) {
                found.unseen.remove(&entry);
            }
        }
        drop(found);
        if hidden.is_empty() {
            return false;
        }
        if let Err(e) = metadata.drop_unused_names() {
            tracing::debug!(error = %e, "a changed file may be shown as it was");
        }
        true
    }

    /// Compares the entries that have notifications, until the process ends.
    pub fn follow(&self, watch: &Watch, mut sampler: Sampler) {
        let mut has_lost = false;
        let mut attempt_pause = None;
        loop {
            // An error here has no remedy; comparisons at intervals still find changes.
            let Ok(notified) = watch.wait(&self.image, attempt_pause) else { return };
            if !notified.entries.is_empty() {
                attempt_pause = None;
                sampler.close_directories();
            }
            for entry in notified.entries {
                // An error of the file system is no difference; the program gets the same error.
                let Ok(comparison) = sampler.compare(entry) else { continue };
                let links =
                    |change: &Change| matches!(change, Change::Changed(what) if what[..] == ["nlink"]);
                if !comparison.difference.as_ref().is_some_and(|difference| links(&difference.what)) {
                    self.compared(&comparison, None);
                }
            }
            if notified.has_lost && !has_lost {
                has_lost = true;
                self.messages.print(&format!(
                    "{} has more changes than the kernel reports: some files are shown with their indexed sizes and times",
                    shown(&self.tree)
                ));
            }
            attempt_pause = self.show_unseen().then(|| {
                attempt_pause.map_or(FIRST_ATTEMPT_PAUSE, |pause| (pause * 2).min(ATTEMPT_PAUSE_MAX))
            });
            std::thread::sleep(NOTIFICATION_PAUSE);
        }
    }
}
