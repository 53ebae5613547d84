//! The open(2) family.

use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_char, c_int, mode_t};
use quell_vfs::{Kind, NewEntry, NodeRef, OpenMode, WritableFile};

use crate::counters::Counter;
use crate::descriptors::{self, Description};
use crate::errno::{self, Errno, Outcome};
use crate::guard::inside;
use crate::next::wrap;
use crate::open_dir::OpenDir;
use crate::open_file::{CHANGEABLE_FLAGS, OpenFile, kept_flags, open_mode};
use crate::placeholder::{self, Header};
use crate::resolve::{Entry, LastLink, last_name, path_of};
use crate::spare_placeholders;
use crate::wrappers::{Target, find_and};

/// The flags with which open(2) does not create a file that has a name.
const NOT_A_NEW_FILE: c_int = libc::O_TMPFILE | libc::O_PATH | libc::O_DIRECTORY;

/// The number of attempts to open a file that other processes create and remove at the same time.
const OPEN_RACES_MAX: usize = 100;

wrap! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for open(2).
        unsafe { open_at(libc::AT_FDCWD, path, flags, mode, |_, path, flags| next(path, flags, mode)) }
    }
}

wrap! {
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, |next| {
        // SAFETY: as for open.
        unsafe { open_at(libc::AT_FDCWD, path, flags, mode, |_, path, flags| next(path, flags, mode)) }
    }
}

wrap! {
    fn openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for openat(2).
        unsafe { open_at(dirfd, path, flags, mode, |dirfd, path, flags| next(dirfd, path, flags, mode)) }
    }
}

wrap! {
    fn openat64(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, |next| {
        // SAFETY: as for openat.
        unsafe { open_at(dirfd, path, flags, mode, |dirfd, path, flags| next(dirfd, path, flags, mode)) }
    }
}

wrap! {
    fn creat(path: *const c_char, mode: mode_t) -> c_int, |next| {
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        // SAFETY: the caller's arguments are valid for creat(2).
        unsafe { open_at(libc::AT_FDCWD, path, flags, mode, |_, path, _| next(path, mode)) }
    }
}

wrap! {
    fn creat64(path: *const c_char, mode: mode_t) -> c_int, |next| {
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        // SAFETY: as for creat.
        unsafe { open_at(libc::AT_FDCWD, path, flags, mode, |_, path, _| next(path, mode)) }
    }
}

// Programs that were compiled with _FORTIFY_SOURCE call these functions instead of open(2).

wrap! {
    fn __open_2(path: *const c_char, flags: c_int) -> c_int, |next| {
        // SAFETY: as for open.
        unsafe { open_at(libc::AT_FDCWD, path, flags, 0, |_, path, flags| next(path, flags)) }
    }
}

wrap! {
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int, |next| {
        // SAFETY: as for open.
        unsafe { open_at(libc::AT_FDCWD, path, flags, 0, |_, path, flags| next(path, flags)) }
    }
}

wrap! {
    fn __openat_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int, |next| {
        // SAFETY: as for openat.
        unsafe { open_at(dirfd, path, flags, 0, |dirfd, path, flags| next(dirfd, path, flags)) }
    }
}

wrap! {
    fn __openat64_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int, |next| {
        // SAFETY: as for openat.
        unsafe { open_at(dirfd, path, flags, 0, |dirfd, path, flags| next(dirfd, path, flags)) }
    }
}

/// Opens a path.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL.
pub unsafe fn open_at(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    next: impl FnOnce(c_int, *const c_char, c_int) -> c_int,
) -> c_int {
    let excludes = flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0;
    let (read, unread) = match flags & libc::O_NOFOLLOW != 0 || excludes {
        true => (LastLink::Keep, LastLink::KeepUnread),
        false => (LastLink::Follow, LastLink::FollowUnread),
    };
    // A file is created without a look-up of its name, which saves a request. It is looked up if
    // the name exists.
    let creates_file = flags & libc::O_CREAT != 0 && flags & NOT_A_NEW_FILE == 0;
    let open = |last_link| {
        // SAFETY: the caller's promise.
        unsafe { find_and(dirfd, path, last_link, |entry| open_entry(entry, flags, mode)) }
    };
    let opened = match open(if creates_file { unread } else { read }) {
        // The name is a symbolic link, which only a look-up follows.
        Err(Errno(libc::ELOOP)) if creates_file => open(read),
        opened => opened,
    };
    match opened {
        Ok(Target::Native) => next(dirfd, path, flags),
        Ok(Target::Elsewhere(path)) => next(libc::AT_FDCWD, path.as_ptr(), flags),
        Ok(Target::Virtual(fd)) => {
            crate::streams::use_for_standard(fd);
            fd
        }
        Err(error) => errno::reply(Err(error)),
    }
}

/// Opens a virtual path that another function of libc names, such as fopen(3). Returns `None` if
/// the path is not virtual.
pub fn open_path(path: &[u8], flags: c_int, mode: mode_t) -> Option<Outcome<c_int>> {
    let path = CString::new(path).ok()?;
    let open = |entry| open_entry(entry, flags, mode);
    // SAFETY: the string ends with a NUL.
    match unsafe { find_and(libc::AT_FDCWD, path.as_ptr(), LastLink::Follow, open) } {
        Ok(Target::Native) => None,
        Ok(Target::Elsewhere(path)) => Some(inside(|| open_elsewhere(&path, flags, mode))),
        Ok(Target::Virtual(fd)) => Some(Ok(fd)),
        Err(error) => Some(Err(error)),
    }
}

/// Opens a path outside of the virtual directories, to which a symbolic link in one leads.
fn open_elsewhere(path: &CString, flags: c_int, mode: mode_t) -> Outcome<c_int> {
    let flags = rustix::fs::OFlags::from_bits_retain(flags as u32);
    let fd = rustix::fs::open(path, flags, rustix::fs::Mode::from_bits_retain(mode))?;
    Ok(placeholder::leak(fd))
}

/// Opens an entry of a virtual directory, and returns the number of its descriptor.
pub fn open_entry(entry: Box<Entry>, flags: c_int, mode: mode_t) -> Outcome<c_int> {
    let dir = entry.dir;
    let opened = open_uncounted(entry, flags, mode);
    dir.count(if opened.is_ok() { Counter::Opens } else { Counter::OpensRefused }, 1);
    opened
}

fn open_uncounted(entry: Box<Entry>, flags: c_int, mode: mode_t) -> Outcome<c_int> {
    let closes = flags & libc::O_CLOEXEC != 0;
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if let Some(original) = open_original(&entry, flags)? {
        return Ok(original);
    }
    let path = path_of(&entry);
    let is_dir = entry.found.as_ref().is_some_and(|found| found.kind == Kind::Dir);
    let is_dir = is_dir || flags & libc::O_DIRECTORY != 0;
    let kept = kept_flags(flags) | if is_dir { libc::O_DIRECTORY } else { 0 };
    // The placeholder is created before the file is opened, so that it gets the lowest free number,
    // as POSIX requires.
    let sharings = descriptors::sharings();
    let fd = spare_placeholders::take_or_create(&Header { flags: kept, path }, closes)?;
    let description = match is_dir {
        true => open_dir(entry, flags)?,
        false => open_file(entry, flags, mode)?,
    };
    descriptors::insert(fd, description.into(), sharings)
}

/// Opens a file of an indexed tree: the program gets the descriptor of the original file. Returns
/// `None` for directories and for files of log directories.
fn open_original(entry: &Entry, flags: c_int) -> Outcome<Option<c_int>> {
    if !entry.dir.is_tree() || entry.found.as_ref().is_some_and(|found| found.kind == Kind::Dir) {
        return Ok(None);
    }
    let Some(found) = &entry.found else {
        return Err(Errno(if flags & libc::O_CREAT != 0 { libc::EROFS } else { libc::ENOENT }));
    };
    if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 {
        return Err(Errno(libc::EEXIST));
    }
    if entry.must_be_dir || flags & libc::O_DIRECTORY != 0 {
        return Err(Errno(libc::ENOTDIR));
    }
    if found.kind != Kind::File || flags & libc::O_PATH != 0 {
        // Files of other kinds are opened by the kernel itself.
        return open_natively(entry, flags).map(Some);
    }
    if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0 {
        return Err(Errno(libc::EROFS));
    }
    let node = found.node();
    let fd = match entry.dir.open_from_memory(node) {
        Some(fd) => {
            // The kernel checks the access to original files itself.
            crate::access::check_access(found, libc::R_OK, true)?;
            fd
        }
        None => {
            let file = entry.fs.open(&crate::view::context(), node)?;
            file.into_descriptor().ok_or(Errno(libc::EIO))?
        }
    };
    let closes = flags & libc::O_CLOEXEC != 0;
    let fd = match std::os::fd::AsRawFd::as_raw_fd(&fd) {
        // The backend has opened the file with a number in the range of the library's own
        // descriptors.
        number if crate::own_descriptors::contains(number) => rustix::io::fcntl_dupfd_cloexec(&fd, 0)?,
        _ => fd,
    };
    if !closes {
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty())?;
    }
    // The backend opens without blocking, in case the name has become a FIFO.
    let wanted = rustix::fs::OFlags::from_bits_retain((flags & CHANGEABLE_FLAGS) as u32);
    rustix::fs::fcntl_setfl(&fd, wanted)?;
    Ok(Some(placeholder::leak(fd)))
}

/// Opens an entry of an indexed tree by its path.
fn open_natively(entry: &Entry, flags: c_int) -> Outcome<c_int> {
    if entry.found.as_ref().is_some_and(|found| found.kind == Kind::Symlink) && flags & libc::O_PATH == 0 {
        return Err(Errno(libc::ELOOP));
    }
    // Nothing is created in the original tree.
    let flags = flags & !(libc::O_CREAT | libc::O_TRUNC);
    let flags = rustix::fs::OFlags::from_bits_retain(flags as u32);
    let fd = rustix::fs::open(path_of(entry), flags, rustix::fs::Mode::empty())?;
    Ok(placeholder::leak(fd))
}

fn open_dir(entry: Box<Entry>, flags: c_int) -> Outcome<Description> {
    let is_path_only = flags & libc::O_PATH != 0;
    let Some(found) = &entry.found else {
        // Linux does not create a directory for O_CREAT | O_DIRECTORY.
        return Err(Errno(if flags & libc::O_CREAT != 0 { libc::EINVAL } else { libc::ENOENT }));
    };
    if found.kind != Kind::Dir {
        return Err(Errno(libc::ENOTDIR));
    }
    if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 {
        return Err(Errno(libc::EEXIST));
    }
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & (libc::O_CREAT | libc::O_TRUNC) != 0;
    if writes && !is_path_only {
        return Err(Errno(libc::EISDIR));
    }
    if entry.dir.is_tree() && !is_path_only {
        // The index lists every directory; a store checks the access itself.
        crate::access::check_access(found, libc::R_OK, true)?;
    }
    Ok(Description::Dir(OpenDir::new(entry.dir, entry.path, flags)))
}

fn open_file(entry: Box<Entry>, flags: c_int, mode: mode_t) -> Outcome<Description> {
    if flags & libc::O_PATH != 0 {
        entry.node()?;
        return Ok(Description::File(OpenFile::new(entry.dir, entry.path, flags, None)));
    }
    let (opened, entry) = open_or_create(entry, flags, mode)?;
    let (found, file) = opened;
    let node = found.into_attributes().node;
    Ok(Description::File(OpenFile::new(entry.0, entry.1, flags, Some((node, file)))))
}

type OpenedNode = (NodeRef<'static>, Box<dyn WritableFile>);
type Location = (&'static crate::view::VirtualDir, Vec<u8>);

fn open_or_create(entry: Box<Entry>, flags: c_int, mode: mode_t) -> Outcome<(OpenedNode, Location)> {
    let creates = flags & libc::O_CREAT != 0;
    let excludes = creates && flags & libc::O_EXCL != 0;
    let open = open_mode(flags);
    let context = crate::view::context();
    let fs = entry.writable()?;
    let Entry { dir, parent, mut found, path, must_be_dir, .. } = *entry;
    let name = last_name(&path);
    for _ in 0..OPEN_RACES_MAX {
        if let Some(found) = found.take() {
            if excludes {
                return Err(Errno(libc::EEXIST));
            }
            if must_be_dir {
                return Err(Errno(libc::ENOTDIR));
            }
            if found.kind == Kind::Symlink {
                return Err(Errno(libc::ELOOP));
            }
            if found.kind == Kind::Dir {
                return Err(Errno(libc::EISDIR));
            }
            check_access(&found, open)?;
            match fs.open_as(&context, found.node(), open) {
                Ok(file) => return Ok(((found, file), (dir, path))),
                // Another process has removed the file meanwhile.
                Err(error) if creates && matches!(error.errno(), libc::ENOENT | libc::ESTALE) => {}
                Err(error) => return Err(error.into()),
            }
        } else if !creates {
            return Err(Errno(libc::ENOENT));
        } else if must_be_dir {
            return Err(Errno(libc::EISDIR));
        }
        match fs.create(&context, parent.node(), name, new_entry(mode), open) {
            Ok(opened) => return Ok((opened, (dir, path))),
            Err(error) if error.errno() == libc::EEXIST && !excludes => {
                found = fs.lookup(&context, parent.node(), name)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno(libc::EAGAIN))
}

/// Checks the permissions of a file as the kernel does at open(2). The store checks the permissions
/// of directories.
fn check_access(found: &NodeRef<'_>, open: OpenMode) -> Outcome<()> {
    let wanted = if open.read { libc::R_OK } else { 0 } | if open.write { libc::W_OK } else { 0 };
    crate::access::check_access(found, wanted, true)
}

/// Returns the attributes of a new entry.
pub fn new_entry(mode: mode_t) -> NewEntry {
    NewEntry {
        permissions: mode & 0o7777 & !current_umask(),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    }
}

/// The umask of the process, or `UNKNOWN_MASK`. A change by another process that shares the umask
/// (CLONE_FS of clone(2)) is not noticed.
static MASK: AtomicU32 = AtomicU32::new(UNKNOWN_MASK);

/// Stands for a mask that is not known. A mask has nine bits.
const UNKNOWN_MASK: u32 = u32::MAX;

wrap! {
    fn umask(mask: mode_t) -> mode_t, |next| {
        // SAFETY: the caller's argument is valid for umask(2).
        let before = unsafe { next(mask) };
        MASK.store(mask & 0o777, Ordering::Relaxed);
        before
    }
}

/// Returns the umask of the process. It is read once from `/proc`, because umask(2) can only return
/// it by changing it for all threads.
fn current_umask() -> u32 {
    let known = MASK.load(Ordering::Relaxed);
    if known != UNKNOWN_MASK {
        return known;
    }
    let mask = || {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let file = rustix::fs::open("/proc/self/status", flags, rustix::fs::Mode::empty()).ok()?;
        let mut text = [0; 512];
        let length = rustix::io::read(&file, &mut text).ok()?;
        let text = String::from_utf8_lossy(&text[..length]).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("Umask:"))?;
        u32::from_str_radix(line.trim(), 8).ok()
    };
    let Some(mask) = mask() else { return 0o022 };
    // A thread may have called umask(2) meanwhile; its mask remains.
    let stored = MASK.compare_exchange(UNKNOWN_MASK, mask, Ordering::Relaxed, Ordering::Relaxed);
    stored.err().unwrap_or(mask)
}
