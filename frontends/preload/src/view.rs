//! The virtual directories of this process.

use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use quell_mount_spec::{View, ViewLog};
use quell_threads::lock;
use quell_vfs::Writable;

use crate::errno::Outcome;
use crate::messages;
use crate::own_descriptors;
use crate::paths::{self, Relation};

/// The base of the device numbers that files of virtual directories show. Linux gives no device
/// with a major number of this size.
const DEVICE_BASE: u64 = 0xFFF_F000_0000;

/// Counts the forks that led to this process since the library was initialized. A child must not
/// use an object that its parent opened.
static GENERATION: AtomicU32 = AtomicU32::new(0);

static DIRS: OnceLock<Vec<VirtualDir>> = OnceLock::new();

/// A directory whose content comes from a file system of the contract.
pub struct VirtualDir {
    /// Absolute and plain.
    pub path: Vec<u8>,
    /// `st_dev` of its files.
    pub device: u64,
    /// The position in the view.
    pub number: usize,
    log: ViewLog,
    opened: Mutex<Option<Opened>>,
}

#[derive(Clone, Copy)]
struct Opened {
    generation: u32,
    fs: &'static dyn Writable,
}

impl VirtualDir {
    /// Returns the file system, which is opened at first use, and again in a forked child.
    pub fn fs(&self) -> Outcome<&'static dyn Writable> {
        let generation = generation();
        let mut opened = lock(&self.opened);
        if let Some(known) = *opened
            && known.generation == generation
        {
            return Ok(known.fs);
        }
        let number = own_descriptors::raise_limit();
        quell_posix::set_descriptor_minimum(number);
        let fs: &'static dyn Writable = Box::leak(Box::new(self.log.open()?));
        *opened = Some(Opened { generation, fs });
        Ok(fs)
    }

    /// Returns the file system if it is open in this process.
    pub fn opened_fs(&self) -> Option<&'static dyn Writable> {
        let opened = *lock(&self.opened);
        opened.filter(|known| known.generation == generation()).map(|known| known.fs)
    }
}

/// Returns the number of forks that led to this process.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Starts a new generation, in a forked child.
pub fn begin_generation() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Returns the virtual directories. Without the variable there are none.
pub fn dirs() -> &'static [VirtualDir] {
    DIRS.get_or_init(|| match View::from_environment() {
        Ok(view) => view.map(|view| virtual_dirs(view.logs)).unwrap_or_default(),
        Err(error) => messages::refuse_start(&error),
    })
}

/// Returns whether the process has virtual directories.
pub fn is_active() -> bool {
    match DIRS.get() {
        Some(dirs) => !dirs.is_empty(),
        // A library that is initialized before this one has called a function of libc.
        None => crate::guard::inside(|| Ok(!dirs().is_empty())).unwrap_or(false),
    }
}

/// Returns whether a path is certainly outside of the virtual directories, without a lock, a system
/// call or an allocation.
pub fn is_surely_native(path: &[u8]) -> bool {
    let is_outside = |dir: &VirtualDir| {
        matches!(paths::compare(path, &dir.path[1..]), Relation::Outside | Relation::Ancestor(_))
    };
    path.first() == Some(&b'/') && dirs().iter().all(is_outside)
}

fn virtual_dirs(logs: Vec<ViewLog>) -> Vec<VirtualDir> {
    let numbered = logs.into_iter().enumerate();
    let dirs = numbered.map(|(number, log)| VirtualDir {
        path: log.path.clone().into_os_string().into_vec(),
        device: DEVICE_BASE + number as u64,
        number,
        log,
        opened: Mutex::new(None),
    });
    dirs.collect()
}

/// Returns a path and the rest after it, with a slash between them.
pub fn joined(base: &[u8], rest: &[u8]) -> Vec<u8> {
    [base, b"/", rest].concat()
}

/// Returns the path with which programs name a file below a virtual directory.
pub fn absolute(dir: &VirtualDir, path: &[u8]) -> Vec<u8> {
    if path.is_empty() { dir.path.clone() } else { joined(&dir.path, path) }
}

/// The locks of the view, held during a fork.
pub struct ForkLocks {
    _opened: Vec<MutexGuard<'static, Option<Opened>>>,
}

/// Takes the locks of the view.
pub fn lock_for_fork() -> ForkLocks {
    ForkLocks { _opened: dirs().iter().map(|dir| lock(&dir.opened)).collect() }
}
