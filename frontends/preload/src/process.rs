//! Initializes the library, and handles fork, exec and the end of the process.

use std::any::Any;
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use libc::{c_int, c_void};
use quell_threads::lock;
use rustix::fs::{Mode, OFlags};

use crate::cwd;
use crate::descriptors::{self, Description, Table};
use crate::dispatch;
use crate::environment;
use crate::errno::Outcome;
use crate::guard::{Entered, inside};
use crate::library_copies;
use crate::locate::{Located, locate_absolute};
use crate::messages::{self, warn};
use crate::open_dir::OpenDir;
use crate::open_file::OpenFile;
use crate::own_descriptors;
use crate::placeholder::{self, Header, Part};
use crate::process_id::process_id;
use crate::refusals;
use crate::spare_placeholders;
use crate::streams;
use crate::view;
use crate::wrappers::{file_actions, locks};

/// The flag in the header of a descriptor that passes the working directory to a program that is
/// executed. No program can open a file with this flag.
const CWD_FLAG: c_int = 1 << 30;

/// The descriptor that passes a virtual working directory to executed programs.
static CWD_DESCRIPTOR: Mutex<Option<c_int>> = Mutex::new(None);

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

// SAFETY: the signatures match the functions of libc, and the linker defines the handle.
unsafe extern "C" {
    fn __register_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
        library: *mut c_void,
    ) -> c_int;
    static __dso_handle: c_void;
    fn fflush(stream: *mut libc::FILE) -> c_int;
    fn _IO_list_lock();
    fn _IO_list_unlock();
}

/// Initializes the library. Does nothing in a process without the variable QUELL_VIEW.
pub fn start() {
    if std::env::var_os(quell_mount_spec::VIEW_VARIABLE).is_none() {
        return;
    }
    let started = inside(|| {
        if view::dirs().is_empty() {
            return Ok(());
        }
        environment::remember();
        // SAFETY: there are no preconditions. The handlers of the allocator are registered first:
        // their lock is then taken last and released first.
        unsafe { dlmalloc::enable_alloc_after_fork() };
        // SAFETY: the functions are valid for the life of the process, because the library is never
        // unloaded, and the handle belongs to this library.
        unsafe {
            __register_atfork(
                Some(before_fork),
                Some(after_fork),
                Some(begin_child),
                (&raw const __dso_handle).cast_mut().cast(),
            )
        };
        adopt_inherited()
    });
    if !dispatch::switch_on_requested() {
        messages::refuse_dispatch();
    }
    (0..=2).for_each(streams::use_for_standard);
    if let Err(error) = started {
        warn(&format!("inherited virtual files cannot be used: error {}", error.0));
    }
}

/// Returns the numbers of the open descriptors of this process.
pub fn open_numbers() -> Outcome<Vec<c_int>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open("/proc/self/fd", flags, Mode::empty())?;
    let mut numbers = Vec::new();
    for entry in rustix::fs::Dir::read_from(&dir)? {
        let entry = entry?;
        if let Ok(number) = entry.file_name().to_string_lossy().parse::<c_int>()
            && number != dir.as_raw_fd()
        {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

/// Finds virtual files among the descriptors that the program was executed with.
fn adopt_inherited() -> Outcome<()> {
    let numbers = open_numbers()?;
    let mut adopted: Vec<(c_int, Arc<Description>)> = Vec::new();
    for number in numbers {
        let Some(header) = placeholder::read(number) else { continue };
        if header.flags & CWD_FLAG != 0 {
            adopt_cwd(number, &header);
            continue;
        }
        // Descriptors of one open file have the same memfd.
        let shared = adopted.iter().find(|(other, _)| is_same_file(*other, number));
        let description = match shared {
            Some((_, description)) => Some(Arc::clone(description)),
            None => description_of(&header),
        };
        if let Some(description) = description {
            descriptors::assign(number, Arc::clone(&description));
            adopted.push((number, description));
        }
    }
    Ok(())
}

fn is_same_file(a: c_int, b: c_int) -> bool {
    let identity =
        |fd| rustix::fs::fstat(placeholder::borrow(fd)).map(|found| (found.st_dev, found.st_ino)).ok();
    identity(a).is_some() && identity(a) == identity(b)
}

/// Returns the open file that a header describes, if its path leads into a virtual directory.
pub fn description_of(header: &Header) -> Option<Arc<Description>> {
    let Located::Virtual(dir, path) = locate_absolute(&header.path) else { return None };
    let path = crate::paths::strip_slashes(&path).to_vec();
    Some(Arc::new(match header.flags & libc::O_DIRECTORY != 0 {
        true => Description::Dir(OpenDir::new(dir, path, header.flags)),
        false => Description::File(OpenFile::new(dir, path, header.flags, None)),
    }))
}

fn adopt_cwd(number: c_int, header: &Header) {
    // A program without the library may have changed the kernel's working directory.
    let is_current = |dir: &view::VirtualDir| {
        let identity = |path: &[u8]| rustix::fs::stat(path).map(|found| (found.st_dev, found.st_ino)).ok();
        identity(b".").is_some() && identity(b".") == identity(&dir.path)
    };
    if let Located::Virtual(dir, path) = locate_absolute(&header.path)
        && is_current(dir)
    {
        cwd::enter_virtual(dir, crate::paths::strip_slashes(&path).to_vec());
    }
    own_descriptors::raise_limit();
    own_descriptors::add(number);
    *lock(&CWD_DESCRIPTOR) = Some(number);
}

/// Makes programs that this process executes start in the virtual working directory. The kernel's
/// own working directory is the mount point.
pub fn hand_over_cwd() -> Outcome<()> {
    let mut known = lock(&CWD_DESCRIPTOR);
    if let Some(number) = known.take() {
        drop(placeholder::own(number));
    }
    if let Some((dir, path)) = cwd::virtual_cwd().filter(|(dir, _)| !dir.is_tree()) {
        let header = Header { flags: CWD_FLAG, path: view::absolute(dir, &path) };
        let fd = placeholder::create(&header, true)?;
        // The number is above those that programs use, and executed programs inherit the
        // descriptor.
        let high = own_descriptors::duplicate(&fd)?;
        rustix::io::fcntl_setfd(&high, rustix::io::FdFlags::empty())?;
        *known = Some(placeholder::leak(high));
    }
    Ok(())
}

/// Begins a generation in a child that was created without the handlers of fork(2), by `_Fork` or
/// clone(2): it must not use the objects of its parent.
fn notice_fork() {
    if view::context().process != process_id() {
        view::begin_generation();
        dispatch::switch_on_again();
    }
}

/// Publishes all files before the program creates a process by clone(2) itself.
#[cfg(target_arch = "x86_64")]
pub fn before_raw_fork() {
    if let Err(error) = inside(|| publish_all(Part::WholePages)) {
        warn(&format!("data could not be published before a fork: error {}", error.0));
    }
}

/// Begins a generation in a process that the program created by clone(2) itself.
#[cfg(target_arch = "x86_64")]
pub fn after_raw_fork() {
    notice_fork();
}

/// Publishes all files that are open in this process: before a fork or an exec, and at the end.
pub fn publish_all(part: Part) -> Outcome<()> {
    notice_fork();
    descriptors::share_all();
    let mut result = Ok(());
    for (fd, description) in descriptors::all() {
        if let Description::File(file) = &*description {
            result = result.and(file.publish(placeholder::borrow(fd), part));
        }
    }
    result
}

/// Writes the headers of all virtual descriptors again: another process that shares a descriptor
/// may have changed its header.
pub fn restore_headers() -> Outcome<()> {
    for (fd, description) in descriptors::all() {
        placeholder::set_header(placeholder::borrow(fd), &description.header())?;
    }
    Ok(())
}

/// Closes all files in this process, except removed ones, which could not be opened again. The
/// descriptors stay open, and a file is opened again at its next use.
pub fn close_files() -> Outcome<()> {
    let mut result = Ok(());
    for (_, description) in descriptors::all() {
        if let Description::File(file) = &*description
            && (view::is_ending() || !file.is_removed())
        {
            result = result.and(file.close());
        }
    }
    result
}

/// Locks that are held during a fork, so that the child does not inherit a lock that another thread
/// of the parent holds.
struct ForkLocks {
    table: std::sync::RwLockWriteGuard<'static, Table>,
    streams:
        std::sync::RwLockWriteGuard<'static, std::collections::BTreeMap<usize, Arc<crate::open_dir::Stream>>>,
    _files: std::sync::MutexGuard<'static, streams::Streams>,
    locked: std::sync::MutexGuard<'static, BTreeSet<(usize, u64)>>,
    cwd_descriptor: std::sync::MutexGuard<'static, Option<c_int>>,
    own: std::sync::MutexGuard<'static, BTreeSet<c_int>>,
    /// The locks of tables that the child continues to use.
    _others: [Box<dyn Any>; 4],
    _cwd: cwd::ForkLock,
    _view: view::ForkLocks,
    /// The table of the child, with objects of its own: another thread of the parent may hold the
    /// lock of an open file.
    child_table: Table,
    // Signals are blocked until all locks are released.
    _entered: Entered,
}

/// Held from `before_fork` to the end of the fork, by the forking thread.
static FORK_LOCKS: Mutex<Option<ManuallyDrop<SendLocks>>> = Mutex::new(None);

/// The locks are released by the thread that took them, or by its copy in the child.
struct SendLocks(#[allow(dead_code)] ForkLocks);

// SAFETY: see the type.
unsafe impl Send for SendLocks {}

extern "C" fn before_fork() {
    if let Err(error) = inside(|| publish_all(Part::WholePages)) {
        warn(&format!("data could not be published before a fork: error {}", error.0));
    }
    let entered = Entered::new();
    // Other threads hold these locks while they use files, or create and flush streams.
    let (libraries, standard) = (library_copies::lock_table(), streams::lock_standard_for_fork());
    // fork(2) takes libc's lock of all streams after this function. A thread that holds it, in
    // fflush(3), may be waiting for a lock below. The lock is recursive, and fork(2) resets it in
    // the child.
    // SAFETY: there are no preconditions.
    unsafe { _IO_list_lock() };
    let cwd_descriptor = lock(&CWD_DESCRIPTOR);
    let (view, cwd) = (view::lock_for_fork(), cwd::lock_for_fork());
    let locked = locks::lock_for_fork();
    let (streams, files) = (crate::open_dir::lock_streams(), streams::lock_for_fork());
    let table = descriptors::lock_table();
    // Another thread may have opened files since they were published.
    descriptors::share_all();
    let (actions, reports) = (file_actions::lock_for_fork(), refusals::lock_for_fork());
    let locks = ForkLocks {
        own: own_descriptors::lock_for_fork(),
        _others: [Box::new(libraries), Box::new(standard), Box::new(actions), Box::new(reports)],
        child_table: descriptors::reopened(&table),
        table,
        streams,
        _files: files,
        cwd_descriptor,
        _cwd: cwd,
        _view: view,
        _entered: entered,
        locked,
    };
    *lock(&FORK_LOCKS) = Some(ManuallyDrop::new(SendLocks(locks)));
}

extern "C" fn after_fork() {
    let locks = lock(&FORK_LOCKS).take();
    // SAFETY: `before_fork` has taken the lock.
    unsafe { _IO_list_unlock() };
    drop(locks.map(ManuallyDrop::into_inner));
}

extern "C" fn begin_child() {
    let Some(locks) = lock(&FORK_LOCKS).take() else { return };
    let SendLocks(mut locks) = ManuallyDrop::into_inner(locks);
    // Locks of files belong to the process that took them.
    locks.locked.clear();
    view::begin_generation();
    let child_table = std::mem::take(&mut locks.child_table);
    // Dropping an object of the parent would write its buffer.
    let _ = ManuallyDrop::new(std::mem::replace(&mut *locks.table, child_table));
    crate::open_dir::renew_streams(&mut locks.streams);
    spare_placeholders::forget();
    // The descriptors belong to the parent's stores.
    close_own(&mut locks.own, *locks.cwd_descriptor);
    drop(locks);
    dispatch::switch_on_again();
}

/// Closes the library's own descriptors, except the descriptor of the working directory.
fn close_own(own: &mut BTreeSet<c_int>, kept: Option<c_int>) {
    for fd in own.iter().filter(|fd| Some(**fd) != kept) {
        // SAFETY: only the library uses these numbers, and the objects of the parent process that
        // refer to them are not used in this process.
        unsafe { crate::next::system_call()(libc::SYS_close, *fd) };
    }
    own.retain(|fd| Some(*fd) == kept);
}

/// Publishes all data when the process ends by exit(3). Streams of libc are flushed first, because
/// libc does that only after this function.
extern "C" fn end() {
    if view::dirs().is_empty() {
        return;
    }
    // SAFETY: NULL stands for all streams.
    unsafe { fflush(std::ptr::null_mut()) };
    finish();
}

/// Publishes all data at the end of the process. An error can only be printed.
pub fn finish() {
    notice_fork();
    if view::begin_end() {
        return;
    }
    let closed = inside(|| publish_all(Part::WholePages).and(close_files()));
    if let Err(error) = closed {
        let reason = std::io::Error::from_raw_os_error(error.0);
        warn(&format!("written data could not be stored at the end of the process: {reason}"));
    }
}
