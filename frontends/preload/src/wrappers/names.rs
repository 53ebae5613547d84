//! Functions that create, remove and rename names.

use libc::{c_char, c_int, c_uint, dev_t, mode_t, size_t, ssize_t};
use quell_vfs::{Context, ErrorKind, Kind, NewEntry, OpenMode, Rename};

use crate::descriptors::{self, Description};
use crate::errno::{self, Errno, Outcome};
use crate::next::wrap;
use crate::resolve::{Entry, LastLink};
use crate::wrappers::open::new_entry;
use crate::wrappers::{Target, find, with_path};

fn context() -> Context<'static> {
    crate::view::context()
}

/// Returns an error if the name exists.
fn require_missing(entry: &Entry) -> Outcome<()> {
    match entry.found {
        Some(_) => Err(Errno(libc::EEXIST)),
        None => Ok(()),
    }
}

fn make_dir(entry: &Entry, mode: mode_t) -> Outcome<c_int> {
    require_missing(entry)?;
    entry.writable()?.make_dir(&context(), entry.parent.node(), entry.name(), new_entry(mode))?;
    Ok(0)
}

wrap! {
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for mkdir(2).
        unsafe { with_path(libc::AT_FDCWD, path, LastLink::Keep, |_, path| next(path, mode), |entry| make_dir(entry, mode)) }
    }
}

wrap! {
    fn mkdirat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for mkdirat(2).
        unsafe { with_path(dirfd, path, LastLink::Keep, |dirfd, path| next(dirfd, path, mode), |entry| make_dir(entry, mode)) }
    }
}

fn make_node(entry: &Entry, mode: mode_t) -> Outcome<c_int> {
    require_missing(entry)?;
    match Kind::from_mode(mode) {
        None if mode & libc::S_IFMT == 0 => {}
        Some(Kind::File) => {}
        _ => return Err(Errno(libc::EPERM)), // as of file systems without special files
    }
    let (_, file) = entry.writable()?.create(
        &context(),
        entry.parent.node(),
        entry.name(),
        new_entry(mode),
        OpenMode::WRITE,
    )?;
    file.close()?;
    Ok(0)
}

wrap! {
    fn mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for mknod(2).
        unsafe { with_path(libc::AT_FDCWD, path, LastLink::Keep, |_, path| next(path, mode, device), |entry| make_node(entry, mode)) }
    }
}

wrap! {
    fn mknodat(dirfd: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for mknodat(2).
        unsafe { with_path(dirfd, path, LastLink::Keep, |dirfd, path| next(dirfd, path, mode, device), |entry| make_node(entry, mode)) }
    }
}

wrap! {
    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for mkfifo(3).
        unsafe { with_path(libc::AT_FDCWD, path, LastLink::Keep, |_, path| next(path, mode), |entry| make_node(entry, mode | libc::S_IFIFO)) }
    }
}

wrap! {
    fn mkfifoat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for mkfifoat(3).
        unsafe { with_path(dirfd, path, LastLink::Keep, |dirfd, path| next(dirfd, path, mode), |entry| make_node(entry, mode | libc::S_IFIFO)) }
    }
}

fn remove_dir(entry: &Entry) -> Outcome<c_int> {
    if entry.is_root() {
        return Err(Errno(libc::EBUSY)); // as of a mount point
    }
    match entry.node()?.kind {
        Kind::Dir => {}
        _ => return Err(Errno(libc::ENOTDIR)),
    }
    if entry.ends_with_dot {
        return Err(Errno(libc::EINVAL));
    }
    entry.writable()?.remove_dir(&context(), entry.parent.node(), entry.name())?;
    Ok(0)
}

/// Removes an entry that was found with [`LastLink::KeepUnread`].
fn remove_file(entry: &Entry) -> Outcome<c_int> {
    // A pool or batch itself refuses to remove a directory in this way, so the name was not looked
    // up.
    let is_unread = entry.dir.has_remote_names() && entry.found.is_none() && !entry.must_be_dir;
    if !is_unread && entry.node()?.kind == Kind::Dir {
        return Err(Errno(libc::EISDIR));
    }
    entry.writable()?.remove(&context(), entry.parent.node(), entry.name())?;
    Ok(0)
}

wrap! {
    fn rmdir(path: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's argument is valid for rmdir(2).
        unsafe { with_path(libc::AT_FDCWD, path, LastLink::Keep, |_, path| next(path), remove_dir) }
    }
}

wrap! {
    fn unlink(path: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's argument is valid for unlink(2).
        unsafe { with_path(libc::AT_FDCWD, path, LastLink::KeepUnread, |_, path| next(path), remove_file) }
    }
}

wrap! {
    fn unlinkat(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for unlinkat(2).
        unsafe {
            let removes_dir = flags & libc::AT_REMOVEDIR != 0;
            let last_link = if removes_dir { LastLink::Keep } else { LastLink::KeepUnread };
            with_path(dirfd, path, last_link, |dirfd, path| next(dirfd, path, flags), |entry| {
                match removes_dir {
                    true => remove_dir(entry),
                    false => remove_file(entry),
                }
            })
        }
    }
}

wrap! {
    fn remove(path: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's argument is valid for remove(3).
        unsafe {
            with_path(libc::AT_FDCWD, path, LastLink::Keep, |_, path| next(path), |entry| {
                match entry.node()?.kind {
                    Kind::Dir => remove_dir(entry),
                    _ => remove_file(entry),
                }
            })
        }
    }
}

fn rename_entry(from: &Entry, to: &Entry, mode: Rename) -> Outcome<c_int> {
    if from.dir.number != to.dir.number {
        return Err(Errno(libc::EXDEV));
    }
    if from.is_root() || to.is_root() {
        return Err(Errno(libc::EBUSY));
    }
    let moved = from.node()?;
    if from.ends_with_dot || to.ends_with_dot {
        return Err(Errno(libc::EBUSY));
    }
    if to.must_be_dir && moved.kind != Kind::Dir {
        return Err(Errno(libc::ENOTDIR));
    }
    if mode == Rename::Keep {
        require_missing(to)?;
    }
    if mode == Rename::Exchange {
        to.node()?;
    }
    if from.path != to.path && path_at_or_below(&to.path, &from.path).is_some() {
        return Err(Errno(libc::EINVAL));
    }
    if mode == Rename::Replace && from.path != to.path && path_at_or_below(&from.path, &to.path).is_some() {
        return Err(Errno(libc::ENOTEMPTY));
    }
    // A file that was not published yet would not be found by its new name in another process.
    publish_named(from)?;
    from.writable()?.rename(
        &context(),
        from.parent.node(),
        from.name(),
        to.parent.node(),
        to.name(),
        mode,
    )?;
    follow_rename(from, to, mode)?;
    Ok(0)
}

fn publish_named(entry: &Entry) -> Outcome<()> {
    for (fd, description) in descriptors::all() {
        if let Description::File(file) = &*description
            && file.dir.number == entry.dir.number
            && path_at_or_below(&file.path(), &entry.path).is_some()
        {
            file.publish(crate::placeholder::borrow(fd), crate::placeholder::Part::WholePages)?;
        }
    }
    Ok(())
}

/// Returns the part of `path` below `base`, if `path` is `base` or a path below it.
fn path_at_or_below<'p>(path: &'p [u8], base: &[u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(base)?;
    (rest.is_empty() || rest[0] == b'/').then_some(rest)
}

/// Gives open files and directories of this process their new paths.
fn follow_rename(from: &Entry, to: &Entry, mode: Rename) -> Outcome<()> {
    for (fd, description) in descriptors::all() {
        let (number, path) = match &*description {
            Description::File(file) => (file.dir.number, file.path()),
            Description::Dir(dir) => (dir.dir.number, dir.path()),
        };
        if number != from.dir.number {
            continue;
        }
        let new = if let Some(rest) = path_at_or_below(&path, &from.path) {
            [&to.path, rest].concat()
        } else if mode == Rename::Exchange
            && let Some(rest) = path_at_or_below(&path, &to.path)
        {
            [&from.path, rest].concat()
        } else {
            continue;
        };
        let (flags, absolute) = match &*description {
            Description::File(file) => {
                file.renamed(new.clone());
                (file.flags(), crate::view::absolute(file.dir, &new))
            }
            Description::Dir(dir) => {
                dir.renamed(new.clone());
                (dir.flags() | libc::O_DIRECTORY, crate::view::absolute(dir.dir, &new))
            }
        };
        let header = crate::placeholder::Header { flags, path: absolute };
        crate::placeholder::set_header(crate::placeholder::borrow(fd), &header)?;
    }
    Ok(())
}

/// Renames between two paths of which at least one may be virtual.
///
/// # Safety
///
/// The paths are NULL or strings that end with a NUL.
unsafe fn rename_paths(
    (from_fd, from): (c_int, *const c_char),
    (to_fd, to): (c_int, *const c_char),
    flags: c_uint,
    next: impl FnOnce(c_int, *const c_char, c_int, *const c_char) -> c_int,
) -> c_int {
    let mode = match flags {
        0 => Rename::Replace,
        libc::RENAME_NOREPLACE => Rename::Keep,
        libc::RENAME_EXCHANGE => Rename::Exchange,
        _ => Rename::Replace,
    };
    // SAFETY: the caller's promise.
    let ends = unsafe { (find(from_fd, from, LastLink::Keep), find(to_fd, to, LastLink::Keep)) };
    with_two_paths(ends, (from_fd, from), (to_fd, to), next, |from, to| {
        match flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) {
            0 => rename_entry(from, to, mode),
            _ => Err(Errno(libc::EINVAL)),
        }
    })
}

/// Calls `ours` if both paths are virtual, and `next` if both are native. Errors: EXDEV if only one
/// of them is virtual.
fn with_two_paths(
    ends: (Outcome<Target>, Outcome<Target>),
    (from_fd, from): (c_int, *const c_char),
    (to_fd, to): (c_int, *const c_char),
    next: impl FnOnce(c_int, *const c_char, c_int, *const c_char) -> c_int,
    ours: impl FnOnce(&Entry, &Entry) -> Outcome<c_int>,
) -> c_int {
    match ends {
        (Err(error), _) | (_, Err(error)) => errno::reply(Err(error)),
        (Ok(Target::Virtual(from)), Ok(Target::Virtual(to))) => {
            errno::reply(from.with(|from| to.with(|to| ours(from, to))))
        }
        (Ok(Target::Virtual(entry)), _) | (_, Ok(Target::Virtual(entry))) => {
            errno::reply(entry.with(|_| Err(Errno(libc::EXDEV))))
        }
        (Ok(from_target), Ok(to_target)) => {
            let (from_fd, from) = native(&from_target, from_fd, from);
            let (to_fd, to) = native(&to_target, to_fd, to);
            next(from_fd, from, to_fd, to)
        }
    }
}

/// Returns the directory and the path of a native target, for libc.
fn native(target: &Target, dirfd: c_int, path: *const c_char) -> (c_int, *const c_char) {
    match target {
        Target::Elsewhere(path) => (libc::AT_FDCWD, path.as_ptr()),
        Target::Native | Target::Virtual(_) => (dirfd, path),
    }
}

wrap! {
    fn rename(from: *const c_char, to: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for rename(2).
        unsafe { rename_paths((libc::AT_FDCWD, from), (libc::AT_FDCWD, to), 0, |_, from, _, to| next(from, to)) }
    }
}

wrap! {
    fn renameat(from_fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for renameat(2).
        unsafe { rename_paths((from_fd, from), (to_fd, to), 0, |from_fd, from, to_fd, to| next(from_fd, from, to_fd, to)) }
    }
}

wrap! {
    fn renameat2(from_fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char, flags: c_uint) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for renameat2(2).
        unsafe {
            rename_paths((from_fd, from), (to_fd, to), flags, |from_fd, from, to_fd, to| next(from_fd, from, to_fd, to, flags))
        }
    }
}

/// Gives a file another name. Errors: EPERM if the store does not support hard links, as a log
/// store.
fn link_entry(from: &Entry, to: &Entry) -> Outcome<c_int> {
    let linked = from.node()?;
    require_missing(to)?;
    if from.dir.number != to.dir.number {
        return Err(Errno(libc::EXDEV));
    }
    if to.must_be_dir || to.ends_with_dot {
        return Err(Errno(libc::ENOENT));
    }
    // A file that was not published yet would not be found by its new name in another process.
    publish_named(from)?;
    match to.writable()?.link(&context(), linked.node(), to.parent.node(), to.name()) {
        Err(error) if error.kind == ErrorKind::Unsupported => Err(Errno(libc::EPERM)),
        linked => Ok(linked.map(|_| 0)?),
    }
}

/// Creates a hard link between two paths of which at least one may be virtual.
///
/// # Safety
///
/// The paths are NULL or strings that end with a NUL.
unsafe fn link_paths(
    (from_fd, from): (c_int, *const c_char),
    (to_fd, to): (c_int, *const c_char),
    last_link: LastLink,
    next: impl FnOnce(c_int, *const c_char, c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let ends = unsafe { (find(from_fd, from, last_link), find(to_fd, to, LastLink::Keep)) };
    with_two_paths(ends, (from_fd, from), (to_fd, to), next, link_entry)
}

wrap! {
    fn link(from: *const c_char, to: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for link(2).
        unsafe { link_paths((libc::AT_FDCWD, from), (libc::AT_FDCWD, to), LastLink::Keep, |_, from, _, to| next(from, to)) }
    }
}

wrap! {
    fn linkat(from_fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char, flags: c_int) -> c_int, |next| {
        let last_link = if flags & libc::AT_SYMLINK_FOLLOW != 0 { LastLink::Follow } else { LastLink::Keep };
        // SAFETY: the caller's arguments are valid for linkat(2).
        unsafe {
            link_paths((from_fd, from), (to_fd, to), last_link, |from_fd, from, to_fd, to| next(from_fd, from, to_fd, to, flags))
        }
    }
}

/// Creates a symbolic link.
///
/// # Safety
///
/// `target` is a string that ends with a NUL.
unsafe fn make_symlink(entry: &Entry, target: *const c_char) -> Outcome<c_int> {
    require_missing(entry)?;
    // SAFETY: the caller's promise.
    let target = unsafe { crate::wrappers::bytes(target) };
    if target.is_empty() {
        return Err(Errno(libc::ENOENT));
    }
    entry.writable()?.make_symlink(
        &context(),
        entry.parent.node(),
        entry.name(),
        target,
        // The umask does not apply to symbolic links.
        NewEntry { permissions: 0o777, ..new_entry(0) },
    )?;
    Ok(0)
}

wrap! {
    fn symlink(target: *const c_char, path: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for symlink(2).
        unsafe { with_path(libc::AT_FDCWD, path, LastLink::Keep, |_, path| next(target, path), |entry| make_symlink(entry, target)) }
    }
}

wrap! {
    fn symlinkat(target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for symlinkat(2).
        unsafe { with_path(dirfd, path, LastLink::Keep, |dirfd, path| next(target, dirfd, path), |entry| make_symlink(entry, target)) }
    }
}

/// Copies the target of a symbolic link, without a NUL.
///
/// # Safety
///
/// `into` has space for `space` bytes.
unsafe fn read_link(entry: &Entry, into: *mut c_char, space: size_t) -> Outcome<ssize_t> {
    let found = entry.node()?;
    if found.kind != Kind::Symlink || space == 0 {
        return Err(Errno(libc::EINVAL));
    }
    let target = entry.fs.read_link(&context(), found.node())?;
    let length = target.len().min(space);
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(target.as_ptr(), into.cast(), length) };
    Ok(length as ssize_t)
}

wrap! {
    fn readlink(path: *const c_char, into: *mut c_char, space: size_t) -> ssize_t, |next| {
        // SAFETY: the caller's arguments are valid for readlink(2).
        unsafe { with_path(libc::AT_FDCWD, path, LastLink::Keep, |_, path| next(path, into, space), |entry| read_link(entry, into, space)) }
    }
}

wrap! {
    fn readlinkat(dirfd: c_int, path: *const c_char, into: *mut c_char, space: size_t) -> ssize_t, |next| {
        // SAFETY: the caller's arguments are valid for readlinkat(2).
        unsafe { with_path(dirfd, path, LastLink::Keep, |dirfd, path| next(dirfd, path, into, space), |entry| read_link(entry, into, space)) }
    }
}

wrap! {
    fn __readlink_chk(path: *const c_char, into: *mut c_char, space: size_t, size: size_t) -> ssize_t, |next| {
        // SAFETY: the caller's arguments are valid for readlink(2), and the buffer's size.
        unsafe { with_path(libc::AT_FDCWD, path, LastLink::Keep, |_, path| next(path, into, space, size), |entry| read_link(entry, into, space.min(size))) }
    }
}

wrap! {
    fn __readlinkat_chk(dirfd: c_int, path: *const c_char, into: *mut c_char, space: size_t, size: size_t) -> ssize_t, |next| {
        // SAFETY: as above.
        unsafe { with_path(dirfd, path, LastLink::Keep, |dirfd, path| next(dirfd, path, into, space, size), |entry| read_link(entry, into, space.min(size))) }
    }
}

// Programs that were linked with a glibc older than 2.33 call these functions.

wrap! {
    fn __xmknod(version: c_int, path: *const c_char, mode: mode_t, device: *mut dev_t) -> c_int, |next| {
        // SAFETY: the caller's arguments are a version and valid arguments of mknod(2).
        unsafe { with_path(libc::AT_FDCWD, path, LastLink::Keep, |_, path| next(version, path, mode, device), |entry| make_node(entry, mode)) }
    }
}

wrap! {
    fn __xmknodat(version: c_int, dirfd: c_int, path: *const c_char, mode: mode_t, device: *mut dev_t) -> c_int, |next| {
        // SAFETY: the caller's arguments are a version and valid arguments of mknodat(2).
        unsafe { with_path(dirfd, path, LastLink::Keep, |dirfd, path| next(version, dirfd, path, mode, device), |entry| make_node(entry, mode)) }
    }
}
