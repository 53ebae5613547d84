//! fts(3): walks of trees with the structures of libc. The working directory is never changed, as
//! with FTS_NOCHDIR. A walk uses the program's malloc, like the functions of `walks`.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use libc::{c_char, c_int, c_long, c_short, c_ushort, c_void};

use crate::c_bytes::CBytes;
use crate::errno::{self, Errno, Outcome};
use crate::guard::is_inside;
use crate::next::wrap;
use crate::view;

// The options of fts_open(3).
const FTS_COMFOLLOW: c_int = 0x01;
const FTS_LOGICAL: c_int = 0x02;
const FTS_NOSTAT: c_int = 0x08;
const FTS_SEEDOT: c_int = 0x20;
const FTS_XDEV: c_int = 0x40;
const FTS_OPTIONS: c_int = 0xff;
const FTS_NAMEONLY: c_int = 0x100;

// The types of entries.
const FTS_D: c_ushort = 1;
const FTS_DC: c_ushort = 2;
const FTS_DEFAULT: c_ushort = 3;
const FTS_DNR: c_ushort = 4;
const FTS_DOT: c_ushort = 5;
const FTS_DP: c_ushort = 6;
const FTS_ERR: c_ushort = 7;
const FTS_F: c_ushort = 8;
const FTS_NS: c_ushort = 10;
const FTS_NSOK: c_ushort = 11;
const FTS_SL: c_ushort = 12;
const FTS_SLNONE: c_ushort = 13;

// The instructions of fts_set(3).
const FTS_AGAIN: c_ushort = 1;
const FTS_FOLLOW: c_ushort = 2;
const FTS_NOINSTR: c_ushort = 3;
const FTS_SKIP: c_ushort = 4;

/// The level of the entries that the program names, and of their parent.
const ROOT_LEVEL: c_short = 0;
const ROOT_PARENT_LEVEL: c_short = -1;

/// `FTSENT` of libc. The memory of an entry also has its name, its path and its status.
#[repr(C)]
pub struct Entry {
    cycle: *mut Entry,
    parent: *mut Entry,
    link: *mut Entry,
    number: c_long,
    pointer: *mut c_void,
    access_path: *mut c_char,
    path: *mut c_char,
    error: c_int,
    symlink_fd: c_int,
    path_length: c_ushort,
    name_length: c_ushort,
    inode: libc::ino_t,
    device: libc::dev_t,
    links: libc::nlink_t,
    level: c_short,
    info: c_ushort,
    flags: c_ushort,
    instruction: c_ushort,
    status: *mut libc::stat,
    name: [c_char; 1],
}

// SAFETY: a call requires pointers to elements of an array of entries.
type CompareEntries = unsafe extern "C" fn(*const *const Entry, *const *const Entry) -> c_int;
type Compare = Option<CompareEntries>;
// SAFETY: a call requires pointers to elements of an array.
type RawCompare = unsafe extern "C" fn(*const c_void, *const c_void) -> c_int;

/// `FTS` of libc. Programs do not use its members; fts_set(3) of libc does not either.
#[repr(C)]
pub struct Walk {
    current: *mut Entry,
    /// The entries of the current directory that fts_children(3) has read.
    children: *mut Entry,
    array: *mut *mut Entry,
    device: libc::dev_t,
    path: *mut c_char,
    root_fd: c_int,
    path_length: c_int,
    items: c_int,
    compare: Compare,
    options: c_int,
    /// The parent of the entries that the program names.
    root: *mut Entry,
    has_begun: bool,
    names_only: bool,
}

fn is_used() -> bool {
    view::is_active() && !is_inside()
}

fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Allocates an entry with a name and a path.
fn new_entry(parent: *mut Entry, level: c_short, name: &[u8], path: &[u8]) -> Outcome<*mut Entry> {
    let too_long = Errno(libc::ENAMETOOLONG);
    let name_length = c_ushort::try_from(name.len()).map_err(|_| too_long)?;
    let path_length = c_ushort::try_from(path.len()).map_err(|_| too_long)?;
    let status_offset = (size_of::<Entry>() + name.len() + 1).next_multiple_of(align_of::<libc::stat>());
    let path_offset = status_offset + size_of::<libc::stat>();
    // SAFETY: calloc returns zeroed memory, for which all members are valid; each part is in it.
    unsafe {
        let start = libc::calloc(1, path_offset + path.len() + 1).cast::<u8>();
        let entry = start.cast::<Entry>();
        if entry.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        let text = (&raw mut (*entry).name).cast::<u8>();
        std::ptr::copy_nonoverlapping(name.as_ptr(), text, name.len());
        std::ptr::copy_nonoverlapping(path.as_ptr(), start.add(path_offset), path.len());
        (*entry).parent = parent;
        (*entry).level = level;
        (*entry).name_length = name_length;
        (*entry).path_length = path_length;
        (*entry).instruction = FTS_NOINSTR;
        (*entry).symlink_fd = -1;
        (*entry).path = start.add(path_offset).cast();
        (*entry).access_path = (*entry).path;
        (*entry).status = start.add(status_offset).cast();
        Ok(entry)
    }
}

/// Frees a list of entries.
///
/// # Safety
///
/// The entries were allocated by `new_entry` and are not used any more.
unsafe fn free_list(mut entry: *mut Entry) {
    while !entry.is_null() {
        // SAFETY: the caller's promise.
        unsafe {
            let next = (*entry).link;
            libc::free(entry.cast());
            entry = next;
        }
    }
}

/// Reads the status of an entry, and returns its type.
///
/// # Safety
///
/// The entry belongs to the walk.
unsafe fn status(walk: &Walk, entry: *mut Entry, follows: bool) -> c_ushort {
    // SAFETY: the caller's promise; the path is a string.
    unsafe {
        let found = &mut *(*entry).status;
        let path = (*entry).access_path;
        if follows || walk.options & FTS_LOGICAL != 0 {
            if libc::stat(path, found) != 0 {
                let number = errno::get();
                if libc::lstat(path, found) == 0 {
                    errno::set(0);
                    return FTS_SLNONE;
                }
                (*entry).error = number;
                *found = MaybeUninit::zeroed().assume_init();
                return FTS_NS;
            }
        } else if libc::lstat(path, found) != 0 {
            (*entry).error = errno::get();
            *found = MaybeUninit::zeroed().assume_init();
            return FTS_NS;
        }
        match found.st_mode & libc::S_IFMT {
            libc::S_IFDIR => {
                (*entry).device = found.st_dev;
                (*entry).inode = found.st_ino;
                (*entry).links = found.st_nlink;
                let name = CStr::from_ptr((&raw const (*entry).name).cast()).to_bytes();
                if is_dot(name) && (*entry).level != ROOT_LEVEL {
                    return FTS_DOT;
                }
                let mut above = (*entry).parent;
                while !above.is_null() && (*above).level >= ROOT_LEVEL {
                    if (*above).inode == found.st_ino && (*above).device == found.st_dev {
                        (*entry).cycle = above;
                        return FTS_DC;
                    }
                    above = (*above).parent;
                }
                FTS_D
            }
            libc::S_IFLNK => FTS_SL,
            libc::S_IFREG => FTS_F,
            _ => FTS_DEFAULT,
        }
    }
}

/// Sorts a list with the function of the program.
///
/// # Safety
///
/// The list has `count` entries.
unsafe fn sort(walk: &Walk, list: *mut Entry, count: usize) -> *mut Entry {
    let Some(compare) = walk.compare else { return list };
    // SAFETY: the caller's promise; the function of the program compares pointers to elements.
    unsafe {
        let array = libc::calloc(count.max(1), size_of::<*mut Entry>()).cast::<*mut Entry>();
        if array.is_null() || count == 0 {
            libc::free(array.cast());
            return list;
        }
        let mut next = list;
        for position in 0..count {
            *array.add(position) = next;
            next = (*next).link;
        }
        let compare = std::mem::transmute::<CompareEntries, RawCompare>(compare);
        libc::qsort(array.cast(), count, size_of::<*mut Entry>(), Some(compare));
        for position in 0..count {
            let following =
                if position + 1 < count { *array.add(position + 1) } else { std::ptr::null_mut() };
            (**array.add(position)).link = following;
        }
        let first = *array;
        libc::free(array.cast());
        first
    }
}

/// Reads the entries of a directory. Returns `None` if the directory cannot be read; its type is
/// then FTS_DNR.
///
/// # Safety
///
/// `parent` is a directory of the walk.
unsafe fn read_dir(walk: &Walk, parent: *mut Entry, names_only: bool) -> Outcome<Option<*mut Entry>> {
    // SAFETY: the caller's promise; the stream is open, and an entry is used before the next call.
    unsafe {
        let stream = libc::opendir((*parent).access_path);
        if stream.is_null() {
            (*parent).info = FTS_DNR;
            (*parent).error = errno::get();
            return Ok(None);
        }
        let (mut first, mut last, mut count) =
            (std::ptr::null_mut::<Entry>(), std::ptr::null_mut::<Entry>(), 0);
        let mut path = CBytes::new();
        let result = loop {
            errno::set(0);
            let found = libc::readdir64(stream);
            if found.is_null() {
                let number = errno::get();
                if number != 0 {
                    (*parent).error = number;
                    (*parent).info = if count > 0 { FTS_ERR } else { FTS_DNR };
                }
                break Ok(());
            }
            let name = CStr::from_ptr((*found).d_name.as_ptr()).to_bytes();
            if is_dot(name) && walk.options & FTS_SEEDOT == 0 {
                continue;
            }
            path.truncate(0);
            let above = CStr::from_ptr((*parent).path).to_bytes();
            let slash: &[u8] = if above.ends_with(b"/") { b"" } else { b"/" };
            let joined = path.push(above).and_then(|()| path.push(slash)).and_then(|()| path.push(name));
            let entry = joined.and_then(|()| new_entry(parent, (*parent).level + 1, name, path.bytes()));
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => break Err(error),
            };
            let may_be_dir = matches!((*found).d_type, libc::DT_DIR | libc::DT_UNKNOWN);
            (*entry).info = match names_only || walk.options & FTS_NOSTAT != 0 && !may_be_dir {
                true => FTS_NSOK,
                false => status(walk, entry, false),
            };
            match last.is_null() {
                true => first = entry,
                false => (*last).link = entry,
            }
            last = entry;
            count += 1;
        };
        libc::closedir(stream);
        match result {
            Ok(()) => Ok(Some(sort(walk, first, count))),
            Err(error) => {
                free_list(first);
                Err(error)
            }
        }
    }
}

/// Begins a walk.
///
/// # Safety
///
/// The arguments are valid for fts_open(3).
unsafe fn open(paths: *const *const c_char, options: c_int, compare: Compare) -> Outcome<*mut Walk> {
    if options & !FTS_OPTIONS != 0 {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the caller's promise; calloc returns zeroed memory, for which all members are valid.
    unsafe {
        let walk = libc::calloc(1, size_of::<Walk>()).cast::<Walk>();
        if walk.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        (*walk).options = options;
        (*walk).compare = compare;
        let opened = open_roots(&mut *walk, paths);
        if let Err(error) = opened {
            libc::free((*walk).root.cast());
            libc::free(walk.cast());
            return Err(error);
        }
        Ok(walk)
    }
}

/// Creates the entries that the program names.
///
/// # Safety
///
/// As for `open`.
unsafe fn open_roots(walk: &mut Walk, paths: *const *const c_char) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        walk.root = new_entry(std::ptr::null_mut(), ROOT_PARENT_LEVEL, b"", b"")?;
        let (mut first, mut last, mut count) =
            (std::ptr::null_mut::<Entry>(), std::ptr::null_mut::<Entry>(), 0);
        let mut next = paths;
        while !(*next).is_null() {
            let path = CStr::from_ptr(*next).to_bytes();
            let created = match path {
                b"" => Err(Errno(libc::ENOENT)),
                path => new_entry(walk.root, ROOT_LEVEL, path, path),
            };
            let entry = match created {
                Ok(entry) => entry,
                Err(error) => {
                    free_list(first);
                    return Err(error);
                }
            };
            (*entry).info = status(walk, entry, walk.options & FTS_COMFOLLOW != 0);
            if (*entry).info == FTS_DOT {
                (*entry).info = FTS_D;
            }
            match last.is_null() {
                true => first = entry,
                false => (*last).link = entry,
            }
            last = entry;
            count += 1;
            next = next.add(1);
        }
        walk.children = sort(walk, first, count);
        walk.has_begun = false;
        Ok(())
    }
}

/// Shortens the name of an entry that the program names to the last component of its path.
///
/// # Safety
///
/// The entry belongs to the walk.
unsafe fn shorten_name(entry: *mut Entry) {
    // SAFETY: the caller's promise; the new name is in the memory of the old one.
    unsafe {
        let name = (&raw mut (*entry).name).cast::<u8>();
        let bytes = std::slice::from_raw_parts_mut(name, usize::from((*entry).name_length));
        let Some(slash) = bytes.iter().rposition(|byte| *byte == b'/') else { return };
        if bytes.len() > 1 {
            bytes.copy_within(slash + 1.., 0);
            let length = bytes.len() - slash - 1;
            bytes[length] = 0;
            (*entry).name_length = length as c_ushort;
        }
    }
}

/// Makes an entry the current one, and carries out the instructions for it.
///
/// # Safety
///
/// The entry belongs to the walk.
unsafe fn enter(walk: &mut Walk, entry: *mut Entry) -> *mut Entry {
    // SAFETY: the caller's promise.
    unsafe {
        walk.current = entry;
        if (*entry).level == ROOT_LEVEL {
            walk.device = (*entry).device;
            shorten_name(entry);
        }
        if (*entry).instruction == FTS_FOLLOW {
            (*entry).info = status(walk, entry, true);
            (*entry).instruction = FTS_NOINSTR;
        }
        entry
    }
}

/// Returns the next entry, or NULL at the end.
///
/// # Safety
///
/// The walk is open.
unsafe fn read(walk: &mut Walk) -> Outcome<*mut Entry> {
    // SAFETY: the caller's promise: the entries belong to the walk.
    unsafe {
        if !walk.has_begun {
            walk.has_begun = true;
            let first = std::mem::replace(&mut walk.children, std::ptr::null_mut());
            return Ok(if first.is_null() { first } else { enter(walk, first) });
        }
        let current = walk.current;
        if current.is_null() {
            return Ok(current);
        }
        let instruction = std::mem::replace(&mut (*current).instruction, FTS_NOINSTR);
        if instruction == FTS_AGAIN {
            (*current).info = status(walk, current, false);
            return Ok(current);
        }
        if instruction == FTS_FOLLOW && matches!((*current).info, FTS_SL | FTS_SLNONE) {
            (*current).info = status(walk, current, true);
            return Ok(current);
        }
        if (*current).info == FTS_D {
            let leaves_device = walk.options & FTS_XDEV != 0 && (*current).device != walk.device;
            if instruction == FTS_SKIP || leaves_device {
                free_list(std::mem::replace(&mut walk.children, std::ptr::null_mut()));
                (*current).info = FTS_DP;
                return Ok(current);
            }
            if walk.names_only {
                walk.names_only = false;
                free_list(std::mem::replace(&mut walk.children, std::ptr::null_mut()));
            }
            let mut children = std::mem::replace(&mut walk.children, std::ptr::null_mut());
            if children.is_null() {
                match read_dir(walk, current, false)? {
                    Some(read) => children = read,
                    None => return Ok(current), // FTS_DNR
                }
            }
            if children.is_null() {
                if (*current).info == FTS_D {
                    (*current).info = FTS_DP;
                }
                return Ok(current);
            }
            return Ok(enter(walk, children));
        }
        Ok(after(walk, current))
    }
}

/// Returns the entry that follows `current`, whose content was returned completely: the next entry
/// of the same directory that is not skipped, or the directory itself.
///
/// # Safety
///
/// As for `read`.
unsafe fn after(walk: &mut Walk, mut current: *mut Entry) -> *mut Entry {
    // SAFETY: the caller's promise.
    unsafe {
        loop {
            let (next, parent) = ((*current).link, (*current).parent);
            libc::free(current.cast());
            if next.is_null() {
                if (*parent).level == ROOT_PARENT_LEVEL {
                    walk.current = std::ptr::null_mut();
                    errno::set(0);
                    return std::ptr::null_mut();
                }
                walk.current = parent;
                (*parent).info = if (*parent).error != 0 { FTS_ERR } else { FTS_DP };
                return parent;
            }
            if (*next).instruction != FTS_SKIP {
                return enter(walk, next);
            }
            current = next;
        }
    }
}

/// Returns the entries of the current directory.
///
/// # Safety
///
/// The walk is open.
unsafe fn children(walk: &mut Walk, options: c_int) -> Outcome<*mut Entry> {
    if options != 0 && options != FTS_NAMEONLY {
        return Err(Errno(libc::EINVAL));
    }
    errno::set(0);
    if !walk.has_begun {
        return Ok(walk.children);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let current = walk.current;
        if current.is_null() || (*current).info != FTS_D {
            return Ok(std::ptr::null_mut());
        }
        free_list(std::mem::replace(&mut walk.children, std::ptr::null_mut()));
        walk.names_only = options == FTS_NAMEONLY;
        if let Some(read) = read_dir(walk, current, walk.names_only)? {
            walk.children = read;
        }
        Ok(walk.children)
    }
}

/// Ends a walk.
///
/// # Safety
///
/// The walk is open, and its entries are not used any more.
unsafe fn close(walk: *mut Walk) {
    // SAFETY: the caller's promise. The lists of the current entry and of the directories above it
    // have the entries that follow them.
    unsafe {
        free_list((*walk).children);
        let mut entry = (*walk).current;
        while !entry.is_null() && (*entry).level >= ROOT_LEVEL {
            let parent = (*entry).parent;
            free_list(entry);
            entry = parent;
        }
        libc::free((*walk).root.cast());
        libc::free(walk.cast());
    }
}

macro_rules! fts {
    ($open:ident, $read:ident, $children:ident, $close:ident) => {
        wrap! {
            fn $open(paths: *const *const c_char, options: c_int, compare: Compare) -> *mut Walk, |next| {
                // SAFETY: the caller's arguments are valid for fts_open(3).
                unsafe {
                    match is_used() && !paths.is_null() {
                        true => errno::reply_pointer(open(paths, options, compare)),
                        false => next(paths, options, compare),
                    }
                }
            }
        }

        // In a process with virtual directories, this library has opened all walks.
        wrap! {
            fn $read(walk: *mut Walk) -> *mut Entry, |next| {
                // SAFETY: the caller's argument is valid for fts_read(3).
                unsafe {
                    match is_used() && !walk.is_null() {
                        true => errno::reply_pointer(read(&mut *walk)),
                        false => next(walk),
                    }
                }
            }
        }

        wrap! {
            fn $children(walk: *mut Walk, options: c_int) -> *mut Entry, |next| {
                // SAFETY: the caller's arguments are valid for fts_children(3).
                unsafe {
                    match is_used() && !walk.is_null() {
                        true => errno::reply_pointer(children(&mut *walk, options)),
                        false => next(walk, options),
                    }
                }
            }
        }

        wrap! {
            fn $close(walk: *mut Walk) -> c_int, |next| {
                // SAFETY: the caller's argument is valid for fts_close(3).
                unsafe {
                    if !is_used() || walk.is_null() {
                        return next(walk);
                    }
                    close(walk);
                    0
                }
            }
        }
    };
}

fts!(fts_open, fts_read, fts_children, fts_close);
fts!(fts64_open, fts64_read, fts64_children, fts64_close);
