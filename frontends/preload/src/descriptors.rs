//! The virtual descriptors of this process.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock, RwLockWriteGuard};

use libc::c_int;
use quell_threads::{read_lock, write_lock};

use crate::errno::{Errno, Outcome};
use crate::guard;
use crate::open_dir::OpenDir;
use crate::open_file::OpenFile;
use crate::own_descriptors;
use crate::placeholder::{self, Header};
use crate::process_id::process_id;
use crate::view::{VirtualDir, absolute};

/// Virtual descriptors have numbers below this one.
const NUMBERS_MAX: usize = 1 << 16;

/// The values of `KINDS`.
const NOT_VIRTUAL: u8 = 0;
/// Another process may have the placeholder.
const SHARED: u8 = 1;
/// Only this process has the placeholder.
const PRIVATE: u8 = 2;

/// For each number, whether it is virtual, and whether its placeholder is shared. Read without a
/// lock, for calls on other descriptors.
static KINDS: [AtomicU8; NUMBERS_MAX] = [const { AtomicU8::new(NOT_VIRTUAL) }; NUMBERS_MAX];

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The process for which the values `PRIVATE` are true. A child that was created without the
/// handlers of fork(2) has copies of the values, which are false there.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The number of calls of `share_all`.
static SHARINGS: AtomicU64 = AtomicU64::new(0);

static TABLE: RwLock<BTreeMap<c_int, Arc<Description>>> = RwLock::new(BTreeMap::new());

/// An open file description, which several descriptors may share.
pub enum Description {
    /// A regular file.
    File(OpenFile),
    /// A directory.
    Dir(OpenDir),
}

/// The virtual descriptors by their numbers.
pub type Table = BTreeMap<c_int, Arc<Description>>;

/// Returns whether a descriptor is virtual.
pub fn is_virtual(fd: c_int) -> bool {
    COUNT.load(Ordering::Relaxed) > 0
        && usize::try_from(fd)
            .ok()
            .and_then(|number| KINDS.get(number))
            .is_some_and(|kind| kind.load(Ordering::Relaxed) != NOT_VIRTUAL)
}

/// Returns the open file of a virtual descriptor.
pub fn get(fd: c_int) -> Option<Arc<Description>> {
    if !is_virtual(fd) {
        return None;
    }
    read_lock(&TABLE).get(&fd).cloned()
}

impl Description {
    /// Returns the virtual directory of the file.
    pub fn dir(&self) -> &'static VirtualDir {
        match self {
            Description::File(file) => file.dir,
            Description::Dir(dir) => dir.dir,
        }
    }

    /// Returns the header of the placeholder.
    pub fn header(&self) -> Header {
        match self {
            Description::File(file) => Header { flags: file.flags(), path: absolute(file.dir, &file.path()) },
            Description::Dir(dir) => {
                Header { flags: dir.flags() | libc::O_DIRECTORY, path: absolute(dir.dir, &dir.path()) }
            }
        }
    }
}

/// Returns the open regular file of a virtual descriptor. Errors: EISDIR.
pub fn file(description: &Description) -> Outcome<&OpenFile> {
    match description {
        Description::File(file) => Ok(file),
        Description::Dir(_) => Err(Errno(libc::EISDIR)),
    }
}

/// Returns the open directory of a virtual descriptor. Errors: ENOTDIR.
pub fn dir(description: &Description) -> Outcome<&OpenDir> {
    match description {
        Description::Dir(dir) => Ok(dir),
        Description::File(_) => Err(Errno(libc::ENOTDIR)),
    }
}

/// Returns the path of an open virtual directory.
pub fn directory_path(fd: c_int) -> Option<(&'static VirtualDir, Vec<u8>)> {
    match &*get(fd)? {
        Description::Dir(dir) => Some((dir.dir, dir.path())),
        // A path relative to a file is refused when it is walked: the file is not a directory.
        Description::File(file) => Some((file.dir, file.path())),
    }
}

/// Adds a virtual descriptor with a new placeholder, and returns its number. `sharings` is the
/// value of [`sharings`] before the placeholder was created. Errors: EMFILE for a number that is
/// too large.
pub fn insert(fd: OwnedFd, description: Arc<Description>, sharings: u64) -> Outcome<c_int> {
    let number = std::os::fd::AsRawFd::as_raw_fd(&fd);
    if number as usize >= NUMBERS_MAX {
        return Err(Errno(libc::EMFILE));
    }
    let mut table = write_lock(&TABLE);
    let process = process_id();
    if OWNER.load(Ordering::Relaxed) != process {
        share_all();
        OWNER.store(process, Ordering::Relaxed);
    }
    let kind = if self::sharings() == sharings { PRIVATE } else { SHARED };
    set(&mut table, placeholder::leak(fd), description, kind);
    Ok(number)
}

/// Returns whether a descriptor with this number can be virtual.
pub fn is_possible(fd: c_int) -> bool {
    usize::try_from(fd).is_ok_and(|number| number < NUMBERS_MAX)
}

/// Makes the open descriptor `to` a virtual descriptor of an open file. Its placeholder may be
/// shared. Returns the open file to which `to` referred before.
pub fn assign(to: c_int, description: Arc<Description>) -> Option<Arc<Description>> {
    if to as usize >= NUMBERS_MAX {
        return None;
    }
    set(&mut write_lock(&TABLE), to, description, SHARED)
}

fn set(table: &mut Table, fd: c_int, description: Arc<Description>, kind: u8) -> Option<Arc<Description>> {
    let before = table.insert(fd, description);
    if before.is_none() {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
    KINDS[fd as usize].store(kind, Ordering::Relaxed);
    before
}

/// Removes a virtual descriptor.
pub fn remove(fd: c_int) -> Option<Arc<Description>> {
    remove_with_kind(fd).map(|(removed, _)| removed)
}

/// Removes a virtual descriptor. Returns its open file, and whether only this process can have the
/// placeholder.
pub fn remove_for_close(fd: c_int) -> Option<(Arc<Description>, bool)> {
    let is_owner = OWNER.load(Ordering::Relaxed) == process_id();
    remove_with_kind(fd).map(|(removed, kind)| (removed, is_owner && kind == PRIVATE))
}

fn remove_with_kind(fd: c_int) -> Option<(Arc<Description>, u8)> {
    let mut table = write_lock(&TABLE);
    let removed = table.remove(&fd)?;
    COUNT.fetch_sub(1, Ordering::Relaxed);
    Some((removed, KINDS[fd as usize].swap(NOT_VIRTUAL, Ordering::Relaxed)))
}

/// Records that another process may get the placeholders. To be called before a fork, an exec, or a
/// message with descriptors. Takes no lock.
pub fn share_all() {
    SHARINGS.fetch_add(1, Ordering::SeqCst);
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    for kind in &KINDS {
        if kind.load(Ordering::Relaxed) == PRIVATE {
            // Another thread may close or open the descriptor.
            let _ = kind.compare_exchange(PRIVATE, SHARED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Returns the number of calls of [`share_all`]. If two calls of `sharings` return the same number,
/// no placeholder was passed to another process between them, not even a placeholder that was not
/// in the table at that time.
pub fn sharings() -> u64 {
    SHARINGS.load(Ordering::SeqCst)
}

/// Returns the number of a virtual descriptor that a path in `/dev` or `/proc` names. The kernel
/// would open the placeholder.
pub fn number_in(path: &[u8]) -> Option<c_int> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let number = match path {
        b"/dev/stdin" => 0,
        b"/dev/stdout" => 1,
        b"/dev/stderr" => 2,
        _ => {
            let own = ["/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/"];
            let digits = own.iter().find_map(|prefix| path.strip_prefix(prefix.as_bytes()))?;
            std::str::from_utf8(digits).ok()?.parse().ok()?
        }
    };
    is_virtual(number).then_some(number)
}

/// Returns whether a descriptor of this process refers to the open file.
pub fn refers(description: &Arc<Description>) -> bool {
    read_lock(&TABLE).values().any(|open| Arc::ptr_eq(open, description))
}

/// Returns all virtual descriptors and their open files.
pub fn all() -> Vec<(c_int, Arc<Description>)> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return Vec::new();
    }
    read_lock(&TABLE).iter().map(|(fd, description)| (*fd, Arc::clone(description))).collect()
}

/// Returns the virtual descriptors with a number of at least `first` and at most `last`.
pub fn in_range(first: c_int, last: c_int) -> Vec<c_int> {
    read_lock(&TABLE).range(first..=last).map(|(fd, _)| *fd).collect()
}

/// Returns a table of the same files for another process, which opens the files again at their
/// first use.
pub fn reopened(table: &Table) -> Table {
    let mut renewed: BTreeMap<*const Description, Arc<Description>> = BTreeMap::new();
    let entries = table.iter().map(|(fd, description)| {
        let again = renewed.entry(Arc::as_ptr(description)).or_insert_with(|| {
            Arc::new(match &**description {
                Description::File(file) => Description::File(file.reopened()),
                Description::Dir(dir) => Description::Dir(dir.reopened()),
            })
        });
        (*fd, Arc::clone(again))
    });
    entries.collect()
}

/// Locks the table for a fork.
pub fn lock_table() -> RwLockWriteGuard<'static, Table> {
    write_lock(&TABLE)
}

/// Returns whether the library has opened this descriptor for itself. The program cannot close it.
pub fn is_own(fd: c_int) -> bool {
    own_descriptors::can_contain(fd)
        && !guard::is_inside()
        && guard::inside(|| Ok(own_descriptors::contains(fd))).unwrap_or(false)
}
