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
/// Size of a buffer for about 200 events with names of 50 bytes.
const EVENTS_BYTES: usize = 16 << 10;

/// The watched directories of a tree.
#[derive(Debug)]
pub struct Watch {
    inotify: OwnedFd,
    directories: Mutex<HashMap<i32, EntryId>>,
    is_full: AtomicBool,
}

/// The entries of a tree for which there were notifications.
#[derive(Debug, Default)]
pub struct Notified {
    pub entries: BTreeSet<EntryId>,
    /// Whether the kernel dropped notifications, because there were too many.
    pub has_lost: bool,
}

impl Watch {
    /// Returns `None` if the user has no inotify instance left (`max_user_instances`): changes are
    /// then found by comparisons only.
    pub fn new() -> Option<Watch> {
        let inotify = inotify::init(CreateFlags::CLOEXEC).ok()?;
        Some(Watch { inotify, directories: Mutex::default(), is_full: AtomicBool::new(false) })
    }

    /// Watches a directory, unless the user has no watch left (`max_user_watches`).
    pub fn add(&self, directory: EntryId, dir: &dyn Dir) {
        let Some(descriptor) = dir.descriptor() else { return };
        if self.is_full.load(Ordering::Relaxed) {
            return;
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
            return self.is_full.store(true, Ordering::Relaxed);
        };
        let mut directories = lock(&self.directories);
        directories.insert(watch, directory);
        if directories.len() >= DIRECTORIES_MAX {
            self.is_full.store(true, Ordering::Relaxed);
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
            notified.has_lost |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            let directory = lock(&self.directories).get(&event.wd()).copied();
            if let (Some(directory), Some(name)) = (directory, event.file_name())
                && let Some(entry) = image.lookup(directory, name.to_bytes())
            {
                notified.entries.insert(entry);
            }
            if reader.is_buffer_empty() {
                return Ok(notified);
            }
        }
    }
}
