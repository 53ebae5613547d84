//! Functions that read whole directories: scandir(3), glob(3), ftw(3) and nftw(3). The functions of
//! libc open directories by internal calls. The functions here call functions of the program, so
//! they do not run inside `guard::inside`, and use the program's malloc instead of the library's
//! allocator.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::mem::MaybeUninit;

use libc::{DIR, c_char, c_int, c_void, dirent64, size_t};

use crate::c_bytes::CBytes;
use crate::errno::{self, Errno, Outcome};
use crate::guard::{inside, is_inside};
use crate::next::wrap;
use crate::view;

fn is_used() -> bool {
    view::is_active() && !is_inside()
}

fn failure<T>() -> Outcome<T> {
    Err(Errno(errno::get()))
}

// SAFETY: a call requires an entry.
type Select = Option<unsafe extern "C" fn(*const dirent64) -> c_int>;
// SAFETY: a call requires pointers to elements of an array of entries.
type CompareEntries = unsafe extern "C" fn(*mut *const dirent64, *mut *const dirent64) -> c_int;
type Compare = Option<CompareEntries>;
// SAFETY: a call requires pointers to elements of an array.
type RawCompare = unsafe extern "C" fn(*const c_void, *const c_void) -> c_int;

/// Frees an array of entries.
///
/// # Safety
///
/// The array and its `count` elements were allocated with malloc.
unsafe fn free_entries(entries: *mut *mut dirent64, count: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        for position in 0..count {
            libc::free((*entries.add(position)).cast());
        }
        libc::free(entries.cast());
    }
}

/// Reads the entries of a stream.
///
/// # Safety
///
/// The arguments are valid for scandir(3).
unsafe fn scan_stream(
    stream: *mut DIR,
    select: Select,
    compare: Compare,
) -> Outcome<(*mut *mut dirent64, usize)> {
    let (mut entries, mut count, mut capacity) = (std::ptr::null_mut::<*mut dirent64>(), 0, 0);
    // SAFETY: the stream is open; the entries are copied before the next call; the arrays are
    // allocated with malloc, so that the program can free them.
    unsafe {
        loop {
            errno::set(0);
            let found = libc::readdir64(stream);
            if found.is_null() {
                break;
            }
            if select.is_some_and(|select| select(found) == 0) {
                continue;
            }
            if count == capacity {
                capacity = (capacity * 2).max(16);
                let grown = libc::realloc(entries.cast(), capacity * size_of::<*mut dirent64>());
                if grown.is_null() {
                    break;
                }
                entries = grown.cast();
            }
            let length = usize::from((*found).d_reclen);
            let copy = libc::malloc(length);
            if copy.is_null() {
                break;
            }
            std::ptr::copy_nonoverlapping(found.cast::<u8>(), copy.cast(), length);
            *entries.add(count) = copy.cast();
            count += 1;
        }
        if errno::get() != 0 {
            let number = errno::get();
            free_entries(entries, count);
            return Err(Errno(number));
        }
        if entries.is_null() {
            entries = libc::malloc(1).cast();
        }
        if let Some(compare) = compare {
            // The function compares pointers to elements of the array.
            let compare = std::mem::transmute::<CompareEntries, RawCompare>(compare);
            libc::qsort(entries.cast(), count, size_of::<*mut dirent64>(), Some(compare));
        }
    }
    Ok((entries, count))
}

/// Reads the entries of a directory.
///
/// # Safety
///
/// The arguments are valid for scandirat(3).
unsafe fn scan(
    dirfd: c_int,
    path: *const c_char,
    list: *mut *mut *mut dirent64,
    select: Select,
    compare: Compare,
) -> Outcome<c_int> {
    let before = errno::get();
    // SAFETY: the caller's promise.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NONBLOCK;
        let fd = libc::openat64(dirfd, path, flags);
        if fd < 0 {
            return failure();
        }
        let stream = libc::fdopendir(fd);
        if stream.is_null() {
            let result = failure();
            libc::close(fd);
            return result;
        }
        let scanned = scan_stream(stream, select, compare);
        libc::closedir(stream);
        let (entries, count) = scanned?;
        *list = entries;
        errno::set(before);
        Ok(count as c_int)
    }
}

macro_rules! scandir {
    ($scandir:ident, $scandirat:ident) => {
        wrap! {
            fn $scandir(path: *const c_char, list: *mut *mut *mut dirent64, select: Select, compare: Compare) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for scandir(3).
                unsafe {
                    match is_used() {
                        true => errno::reply(scan(libc::AT_FDCWD, path, list, select, compare)),
                        false => next(path, list, select, compare),
                    }
                }
            }
        }

        wrap! {
            fn $scandirat(dirfd: c_int, path: *const c_char, list: *mut *mut *mut dirent64, select: Select, compare: Compare) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for scandirat(3).
                unsafe {
                    match is_used() {
                        true => errno::reply(scan(dirfd, path, list, select, compare)),
                        false => next(dirfd, path, list, select, compare),
                    }
                }
            }
        }
    };
}

scandir!(scandir, scandirat);
scandir!(scandir64, scandirat64);

/// The flag with which glob(3) calls functions of the program.
const GLOB_ALTDIRFUNC: c_int = 1 << 9;

/// The result of glob(3), as libc defines it.
#[repr(C)]
pub struct Glob {
    path_count: size_t,
    paths: *mut *mut c_char,
    reserved: size_t,
    flags: c_int,
    // SAFETY: calls require a stream, or a path and a structure to fill.
    close_dir: Option<unsafe extern "C" fn(*mut DIR) -> c_int>,
    read_dir: Option<unsafe extern "C" fn(*mut DIR) -> *mut dirent64>,
    open_dir: Option<unsafe extern "C" fn(*const c_char) -> *mut DIR>,
    link_status: Option<unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int>,
    status: Option<unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int>,
}

const _: () = assert!(size_of::<Glob>() == size_of::<libc::glob_t>());

// SAFETY: a call requires a path.
type GlobError = Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>;

macro_rules! glob {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(pattern: *const c_char, flags: c_int, on_error: GlobError, result: *mut Glob) -> c_int, |next| {
                if !is_used() || result.is_null() || flags & GLOB_ALTDIRFUNC != 0 {
                    // SAFETY: the caller's arguments are valid for glob(3).
                    return unsafe { next(pattern, flags, on_error, result) };
                }
                // SAFETY: as above. The assigned functions are the wrappers of this library.
                unsafe {
                    (*result).close_dir = Some(libc::closedir);
                    (*result).read_dir = Some(libc::readdir64);
                    (*result).open_dir = Some(libc::opendir);
                    (*result).link_status = Some(libc::lstat);
                    (*result).status = Some(libc::stat);
                    let found = next(pattern, flags | GLOB_ALTDIRFUNC, on_error, result);
                    (*result).flags &= !GLOB_ALTDIRFUNC;
                    found
                }
            }
        }
    )*};
}

glob!(glob, glob64);

// The flags and the types of nftw(3).
const FTW_PHYS: c_int = 1;
const FTW_MOUNT: c_int = 2;
const FTW_CHDIR: c_int = 4;
const FTW_DEPTH: c_int = 8;
const FTW_ACTIONRETVAL: c_int = 16;
const FTW_F: c_int = 0;
const FTW_D: c_int = 1;
const FTW_DNR: c_int = 2;
const FTW_NS: c_int = 3;
const FTW_SL: c_int = 4;
const FTW_DP: c_int = 5;
const FTW_SLN: c_int = 6;
const FTW_SKIP_SUBTREE: c_int = 2;
const FTW_SKIP_SIBLINGS: c_int = 3;

/// `struct FTW` of libc.
#[repr(C)]
pub struct Level {
    base: c_int,
    level: c_int,
}

// SAFETY: calls require a path and the structures.
type Visit = unsafe extern "C" fn(*const c_char, *const libc::stat, c_int) -> c_int;
type VisitAt = unsafe extern "C" fn(*const c_char, *const libc::stat, c_int, *mut Level) -> c_int;

/// The function of the program.
#[derive(Clone, Copy)]
enum Callback {
    Old(Visit),
    New(VisitAt),
}

/// A walk of nftw(3).
struct Walk {
    function: Callback,
    flags: c_int,
    path: CBytes,
    device: u64,
    /// The directories that were visited through symbolic links, by device and inode number.
    visited: BTreeSet<(u64, u64)>,
}

impl Walk {
    /// Calls the function of the program. `base` is the position of the last name in the path.
    fn report(&self, found: &libc::stat, kind: c_int, base: usize, level: c_int) -> c_int {
        // SAFETY: the path is a string; the structures are valid during the call.
        unsafe {
            match self.function {
                Callback::New(function) => {
                    let mut position = Level { base: base as c_int, level };
                    function(self.path.as_ptr(), found, kind, &mut position)
                }
                Callback::Old(function) => {
                    let kind = match kind {
                        FTW_SL => FTW_F,
                        FTW_DP => FTW_D,
                        FTW_SLN => FTW_NS,
                        kind => kind,
                    };
                    function(self.path.as_ptr(), found, kind)
                }
            }
        }
    }

    fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    /// Returns the status of the path, and its type for the program. With FTW_CHDIR the last name
    /// is relative to the working directory.
    fn status(&self, base: usize, is_start: bool) -> Outcome<(libc::stat, c_int)> {
        let is_relative = self.has(FTW_CHDIR) && !is_start;
        let path = self.path.at(if is_relative { base } else { 0 });
        // SAFETY: the structure consists of integers; the path is a string.
        unsafe {
            let mut found: libc::stat = MaybeUninit::zeroed().assume_init();
            let result = match self.has(FTW_PHYS) {
                true => libc::lstat(path, &mut found),
                false => libc::stat(path, &mut found),
            };
            if result == 0 {
                return Ok((
                    found,
                    match found.st_mode & libc::S_IFMT {
                        libc::S_IFDIR => FTW_D,
                        libc::S_IFLNK => FTW_SL,
                        _ => FTW_F,
                    },
                ));
            }
            let number = errno::get();
            let may_dangle = !self.has(FTW_PHYS) && number == libc::ENOENT;
            if may_dangle
                && libc::lstat(path, &mut found) == 0
                && found.st_mode & libc::S_IFMT == libc::S_IFLNK
            {
                return Ok((found, FTW_SLN));
            }
            match number {
                libc::ENOENT | libc::EACCES if !is_start => Ok((found, FTW_NS)),
                _ => Err(Errno(number)),
            }
        }
    }

    /// Visits the path and, if it is a directory, its content. Returns the result of the program's
    /// function, 0 to continue.
    fn visit(&mut self, base: usize, level: c_int, parent: c_int) -> Outcome<c_int> {
        let (found, kind) = self.status(base, level == 0)?;
        if level == 0 {
            self.device = found.st_dev;
        } else if self.has(FTW_MOUNT) && kind != FTW_NS && found.st_dev != self.device {
            return Ok(0);
        }
        if kind != FTW_D {
            return Ok(self.report(&found, kind, base, level));
        }
        if !self.has(FTW_PHYS) {
            let visited = &mut self.visited;
            if !inside(|| Ok(visited.insert((found.st_dev, found.st_ino))))? {
                return Ok(0);
            }
        }
        self.visit_dir(&found, base, level, parent)
    }

    fn visit_dir(&mut self, found: &libc::stat, base: usize, level: c_int, parent: c_int) -> Outcome<c_int> {
        let is_relative = self.has(FTW_CHDIR) && level > 0;
        // SAFETY: the path is a string.
        let stream = unsafe { libc::opendir(self.path.at(if is_relative { base } else { 0 })) };
        if stream.is_null() {
            return match errno::get() {
                libc::EACCES => Ok(self.report(found, FTW_DNR, base, level)),
                number => Err(Errno(number)),
            };
        }
        let visited = self.visit_stream(stream, found, base, level);
        // SAFETY: the stream is open.
        unsafe { libc::closedir(stream) };
        if self.has(FTW_CHDIR) && parent >= 0 {
            // SAFETY: any number is valid.
            let returned = unsafe { libc::fchdir(parent) };
            if returned < 0 && visited == Ok(0) {
                return failure();
            }
        }
        visited
    }

    fn visit_stream(
        &mut self,
        stream: *mut DIR,
        found: &libc::stat,
        base: usize,
        level: c_int,
    ) -> Outcome<c_int> {
        let mut result = 0;
        if !self.has(FTW_DEPTH) {
            result = self.report(found, FTW_D, base, level);
            if result != 0 {
                let skips = self.has(FTW_ACTIONRETVAL) && result == FTW_SKIP_SUBTREE;
                return Ok(if skips { 0 } else { result });
            }
        }
        // SAFETY: the stream is open.
        let fd = unsafe { libc::dirfd(stream) };
        // SAFETY: any number is valid.
        if self.has(FTW_CHDIR) && unsafe { libc::fchdir(fd) } < 0 {
            return failure();
        }
        let length = self.path.len();
        loop {
            errno::set(0);
            // SAFETY: the stream is open, and the entry is valid until the next call for it.
            let entry = unsafe { libc::readdir64(stream) };
            if entry.is_null() {
                if errno::get() != 0 {
                    return failure();
                }
                break;
            }
            // SAFETY: the name is a string.
            let name = unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) }.to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            if self.path.bytes().last() != Some(&b'/') {
                self.path.push(b"/")?;
            }
            let child_base = self.path.len();
            self.path.push(name)?;
            let visited = self.visit(child_base, level + 1, fd);
            self.path.truncate(length);
            result = visited?;
            if result != 0 {
                break;
            }
        }
        if self.has(FTW_ACTIONRETVAL) && result == FTW_SKIP_SIBLINGS {
            result = 0;
        }
        if result == 0 && self.has(FTW_DEPTH) {
            result = self.report(found, FTW_DP, base, level);
            if self.has(FTW_ACTIONRETVAL) && result == FTW_SKIP_SUBTREE {
                result = 0;
            }
        }
        Ok(result)
    }
}

/// Walks a tree.
///
/// # Safety
///
/// The arguments are valid for nftw(3).
unsafe fn walk(path: *const c_char, function: Callback, flags: c_int) -> Outcome<c_int> {
    // SAFETY: the caller's promise.
    let start = unsafe { crate::wrappers::bytes(path) };
    if start.is_empty() {
        return Err(Errno(libc::ENOENT));
    }
    let known = FTW_PHYS | FTW_MOUNT | FTW_CHDIR | FTW_DEPTH | FTW_ACTIONRETVAL;
    if flags & !known != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let end = start.iter().rposition(|byte| *byte != b'/').map_or(1, |last| last + 1);
    let start = &start[..end];
    let base = match start {
        b"/" => 0,
        start => start.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1),
    };
    let mut text = CBytes::new();
    text.push(start)?;
    let mut walk = Walk { function, flags, path: text, device: 0, visited: BTreeSet::new() };
    let mut before = -1;
    if flags & FTW_CHDIR != 0 {
        // SAFETY: the path is a string.
        before = unsafe { libc::open64(c".".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) };
        if before < 0 {
            return failure();
        }
    }
    let result = walk.start(base, before);
    if before >= 0 {
        let number = errno::get();
        // SAFETY: any number is valid.
        unsafe {
            libc::fchdir(before);
            libc::close(before);
        }
        errno::set(number);
    }
    let visited = std::mem::take(&mut walk.visited);
    inside(|| {
        drop(visited);
        Ok(())
    })?;
    result
}

impl Walk {
    /// Visits the start of the walk. With FTW_CHDIR, its parent is then the working directory when
    /// the function of the program is called.
    fn start(&mut self, base: usize, before: c_int) -> Outcome<c_int> {
        if !self.has(FTW_CHDIR) || base == 0 {
            return self.visit(base, 0, before);
        }
        let (found, kind) = self.status(base, true)?;
        let mut parent = CBytes::new();
        parent.push(&self.path.bytes()[..base])?;
        // SAFETY: the path is a string; any number is valid.
        let above =
            unsafe { libc::open64(parent.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) };
        // SAFETY: as above.
        if above < 0 || unsafe { libc::fchdir(above) } < 0 {
            return failure();
        }
        self.device = found.st_dev;
        let result = match kind {
            FTW_D => {
                // SAFETY: the path is a string.
                let stream = unsafe { libc::opendir(self.path.at(base)) };
                if stream.is_null() {
                    failure()
                } else {
                    let visited = self.visit_stream(stream, &found, base, 0);
                    // SAFETY: the stream is open.
                    unsafe { libc::closedir(stream) };
                    visited
                }
            }
            kind => Ok(self.report(&found, kind, base, 0)),
        };
        // SAFETY: any number is valid.
        unsafe { libc::close(above) };
        result
    }
}

macro_rules! ftw {
    ($old:ident, $new:ident) => {
        wrap! {
            fn $old(path: *const c_char, function: Visit, descriptors: c_int) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for ftw(3).
                unsafe {
                    match is_used() && !path.is_null() {
                        true => errno::reply(walk(path, Callback::Old(function), 0)),
                        false => next(path, function, descriptors),
                    }
                }
            }
        }

        wrap! {
            fn $new(path: *const c_char, function: VisitAt, descriptors: c_int, flags: c_int) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for nftw(3).
                unsafe {
                    match is_used() && !path.is_null() {
                        true => errno::reply(walk(path, Callback::New(function), flags)),
                        false => next(path, function, descriptors, flags),
                    }
                }
            }
        }
    };
}

ftw!(ftw, nftw);
ftw!(ftw64, nftw64);
