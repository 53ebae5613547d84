//! Notifications about changes that programs on this node make to a tree, from inotify(7). Changes
//! that other nodes make to a shared file system cause no notification.

use std::collections::{BTreeSet, HashMap};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quell_index::{EntryId, Image};
use quell_posix::Dir;
use quell_threads::lock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

/// Maximum number of watched directories of a tree. A watched directory's inode stays in the
/// kernel's memory.
const DIRECTORIES_MAX: usize = 32_768;
/// The part of the user's watches that one tree may use, as a divisor: other programs and other
/// runs of the user need watches, too.
const USER_WATCHES_DIVISOR: usize = 8;
/// The number of watches that a user has if the kernel's limit cannot be read: the limit of old
/// kernels.
const USER_WATCHES_DEFAULT: usize = 8192;
/// Size of a buffer for about 200 events with names of 50 bytes.
const EVENTS_BYTES: usize = 16 << 10;

/// The watched directories of a tree.
#[derive(Debug)]
pub struct Watch {
    inotify: OwnedFd,
    directories: Mutex<Directories>,
    directories_max: usize,
    has_unwatched: AtomicBool,
}

/// The watch descriptors and the directories.
#[derive(Debug, Default)]
struct Directories {
    entries: HashMap<i32, EntryId>,
    watches: HashMap<EntryId, i32>,
}

/// The entries of a tree for which there were notifications.
#[derive(Debug, Default)]
pub struct Notified {
    pub entries: BTreeSet<EntryId>,
    /// The entries of `entries` whose paths now have a new directory. Its entries are unknown.
    pub directories: BTreeSet<EntryId>,
    /// Whether the kernel dropped notifications, because there were too many.
    pub has_lost: bool,
}

impl Watch {
    /// Returns `None` if the user has no inotify instance left (`max_user_instances`): changes are
    /// then found by comparisons only.
    pub fn new() -> Option<Watch> {
        let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_watches");
        let limit = limit.ok().and_then(|limit| limit.trim().parse().ok()).unwrap_or(USER_WATCHES_DEFAULT);
        Watch::with_max(DIRECTORIES_MAX.min(limit / USER_WATCHES_DIVISOR))
    }

    fn with_max(directories_max: usize) -> Option<Watch> {
        let inotify = inotify::init(CreateFlags::CLOEXEC).ok()?;
        let (directories, has_unwatched) = (Mutex::default(), AtomicBool::new(false));
        Some(Watch { inotify, directories, directories_max, has_unwatched })
    }

    /// Returns whether a directory is not watched, because the tree or the user has no watch left.
    pub fn has_unwatched(&self) -> bool {
        self.has_unwatched.load(Ordering::Relaxed)
    }

    /// Watches the directory that is now at the path of an entry, and no longer the directory that
    /// was there before.
    pub fn add(&self, directory: EntryId, dir: &dyn Dir) {
        let Some(descriptor) = dir.descriptor() else { return };
        let is_full = |found: &Directories| {
            found.entries.len() >= self.directories_max && !found.watches.contains_key(&directory)
        };
        if is_full(&lock(&self.directories)) {
            return self.has_unwatched.store(true, Ordering::Relaxed);
        }
        // The path of the directory is not looked up again.
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let flags = WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ONLYDIR;
        let Ok(watch) = inotify::add_watch(&self.inotify, path, flags) else {
            return self.has_unwatched.store(true, Ordering::Relaxed);
        };
        let mut found = lock(&self.directories);
        found.entries.insert(watch, directory);
        let Some(old) = found.watches.insert(directory, watch).filter(|old| *old != watch) else { return };
        // The old directory may have been moved to the path of another entry.
        if found.entries.get(&old) == Some(&directory) {
            found.entries.remove(&old);
            drop(found);
            // An error means that the kernel has removed the watch with the directory.
            let _ = inotify::remove_watch(&self.inotify, old);
        }
    }

    /// Waits for notifications, or until the timeout has passed, and returns the entries of the
    /// index that they name.
    pub fn wait(&self, image: &Image, timeout: Option<Duration>) -> rustix::io::Result<Notified> {
        let mut watched = [PollFd::new(&self.inotify, PollFlags::IN)];
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut watched, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Notified::default()),
            Ok(_) => {}
            Err(e) => return Err(e),
        }
        let mut buffer = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let mut notified = Notified::default();
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(e),
            };
            let events = event.events();
            notified.has_lost |= events.contains(ReadFlags::QUEUE_OVERFLOW);
            let mut directories = lock(&self.directories);
            let directory = directories.entries.get(&event.wd()).copied();
            if events.contains(ReadFlags::IGNORED) {
                directories.forget(event.wd());
            }
            drop(directories);
            if let (Some(directory), Some(name)) = (directory, event.file_name())
                && let Some(entry) = image.lookup(directory, name.to_bytes())
            {
                notified.entries.insert(entry);
                let is_new = events.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
                if is_new && events.contains(ReadFlags::ISDIR) {
                    notified.directories.insert(entry);
                }
            }
            if reader.is_buffer_empty() {
                return Ok(notified);
            }
        }
    }
}

impl Directories {
    /// Removes a watch that the kernel has removed with its directory.
    fn forget(&mut self, watch: i32) {
        let Some(directory) = self.entries.remove(&watch) else { return };
        if self.watches.get(&directory) == Some(&watch) {
            self.watches.remove(&directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use quell_index::{BuildOptions, BuildProgress, build, encode};
    use quell_posix::PosixDir;

    use super::*;

    #[test]
    fn a_directory_has_one_watch_and_a_tree_no_more_than_its_limit() {
        let tree = tempfile::tempdir().unwrap();
        let path = |name: &str| tree.path().join(name);
        for name in ["a", "b", "c"] {
            fs::create_dir(path(name)).unwrap();
            fs::write(path(name).join("file"), "").unwrap();
        }
        let root = std::sync::Arc::new(PosixDir::open(tree.path()).unwrap());
        let options = BuildOptions::default();
        let built = build(root.clone(), b"/tree", &options, 1, None, &BuildProgress::default()).unwrap();
        let image = Image::parse(encode(&built).unwrap()).unwrap();
        let entry = |name: &str| image.lookup(0, name.as_bytes()).unwrap();
        let watch = Watch::with_max(2).unwrap();
        let add = |name: &str| watch.add(entry(name), &*root.enter(name.as_bytes()).unwrap());
        let count = || lock(&watch.directories).entries.len();
        let files = |names: &[&str]| -> BTreeSet<EntryId> {
            names.iter().map(|name| image.lookup(entry(name), b"file").unwrap()).collect()
        };
        let notified = || watch.wait(&image, Some(Duration::from_secs(10))).unwrap().entries;
        add("a");
        add("b");
        assert!(!watch.has_unwatched());
        add("c");
        assert!(watch.has_unwatched() && count() == 2);
        // A replaced directory: the watch of the old one is removed.
        fs::rename(path("a"), path("old")).unwrap();
        fs::rename(path("c"), path("a")).unwrap();
        add("a");
        assert_eq!(count(), 2);
        fs::write(path("old/file"), "x").unwrap();
        fs::write(path("a/file"), "x").unwrap();
        assert_eq!(notified(), files(&["a"]));
        // A directory that is moved to the path of another one keeps its watch for the new path.
        fs::remove_dir_all(path("b")).unwrap();
        fs::rename(path("a"), path("b")).unwrap();
        add("b");
        fs::write(path("b/file"), "xy").unwrap();
        assert_eq!(notified(), files(&["b"]));
        assert_eq!(count(), 1);
        fs::create_dir(path("a")).unwrap();
        add("a");
        assert_eq!(count(), 2);
        fs::write(path("a/file"), "").unwrap();
        fs::write(path("b/file"), "xyz").unwrap();
        assert_eq!(notified(), files(&["a", "b"]));
    }
}
