//! Functions of stdio that name a file or a descriptor.

use std::ffi::{CStr, CString};

use libc::{FILE, c_char, c_int};

use crate::descriptors::{self, Description};
use crate::errno::{self, Errno, Outcome};
use crate::guard::{inside, is_inside};
use crate::next::wrap;
use crate::refusals::refused;
use crate::resolve::LastLink;
use crate::streams;
use crate::view;
use crate::wrappers::open::open_entry;
use crate::wrappers::programs::publish_before;
use crate::wrappers::{Target, find, if_virtual, opened};

/// The permissions of new files, before the umask.
const NEW_FILE_MODE: libc::mode_t = 0o666;

// SAFETY: the signatures match the functions of libc.
unsafe extern "C" {
    fn fflush(stream: *mut FILE) -> c_int;
    fn __fpurge(stream: *mut FILE);
}

/// The mode of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mode {
    /// The flags of open(2).
    flags: c_int,
}

impl Mode {
    /// Returns the mode that a string of fopen(3) describes. Errors: EINVAL.
    fn parse(text: &[u8]) -> Outcome<Mode> {
        let (first, rest) = text.split_first().ok_or(Errno(libc::EINVAL))?;
        // libc looks at a few characters, up to the encoding.
        let end = rest.iter().position(|byte| *byte == b',').unwrap_or(rest.len()).min(6);
        let has = |letter| rest[..end].contains(&letter);
        let access = if has(b'+') { libc::O_RDWR } else { libc::O_WRONLY };
        let flags = match first {
            b'r' if !has(b'+') => libc::O_RDONLY,
            b'r' => access,
            b'w' => access | libc::O_CREAT | libc::O_TRUNC,
            b'a' => access | libc::O_CREAT | libc::O_APPEND,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let exclusive = if has(b'x') { libc::O_EXCL } else { 0 };
        let close_on_exec = if has(b'e') { libc::O_CLOEXEC } else { 0 };
        Ok(Mode { flags: flags | exclusive | close_on_exec })
    }

    /// Returns the mode for a custom stream, which understands fewer letters.
    fn custom(self) -> &'static CStr {
        let updates = self.flags & libc::O_ACCMODE == libc::O_RDWR;
        match (self.flags & libc::O_APPEND != 0, self.flags & libc::O_ACCMODE) {
            (true, _) if updates => c"a+",
            (true, _) => c"a",
            (false, libc::O_RDONLY) => c"r",
            (false, libc::O_RDWR) => c"r+",
            (false, _) => c"w",
        }
    }

    fn appends_only(self) -> bool {
        self.flags & libc::O_APPEND != 0 && self.flags & libc::O_ACCMODE == libc::O_WRONLY
    }
}

/// Returns the mode of a stream.
///
/// # Safety
///
/// `mode` is a string that ends with a NUL.
unsafe fn mode_of(mode: *const c_char) -> Outcome<Mode> {
    // SAFETY: the caller's promise.
    Mode::parse(unsafe { crate::wrappers::bytes(mode) })
}

/// Creates a stream for a virtual descriptor, which is closed if that fails.
fn stream_of(fd: c_int, mode: Mode) -> *mut FILE {
    if mode.appends_only() {
        // As libc does, so that ftell(3) returns the size.
        // SAFETY: any arguments are valid.
        unsafe { libc::lseek64(fd, 0, libc::SEEK_END) };
    }
    let stream = streams::create(fd, mode.custom());
    if stream.is_null() {
        let number = errno::get();
        // SAFETY: any argument is valid.
        unsafe { libc::close(fd) };
        errno::set(number);
    }
    stream
}

/// Opens a stream for a path.
///
/// # Safety
///
/// `path` and `mode` are strings that end with a NUL.
unsafe fn open_stream(
    path: *const c_char,
    mode: *const c_char,
    next: impl FnOnce(*const c_char) -> *mut FILE,
) -> *mut FILE {
    if mode.is_null() || is_inside() || !view::is_active() {
        return next(path);
    }
    let text = mode;
    // SAFETY: the caller's promise.
    let parsed = unsafe { mode_of(mode) };
    let last_link = match parsed {
        Ok(mode) if mode.flags & libc::O_EXCL != 0 => LastLink::Keep,
        _ => LastLink::Follow,
    };
    // SAFETY: the caller's promise.
    match unsafe { find(libc::AT_FDCWD, path, last_link) } {
        Ok(Target::Native) => next(path),
        Ok(Target::Elsewhere(path)) => next(path.as_ptr()),
        Ok(Target::Virtual(entry)) => {
            let opened = parsed.and_then(|mode| {
                Ok((mode, inside(|| open_entry(entry.into_inner()?, mode.flags, NEW_FILE_MODE))?))
            });
            match opened {
                // The descriptor of a file of an indexed tree is the original's.
                // SAFETY: the caller's promise.
                Ok((_, fd)) if !descriptors::is_virtual(fd) => unsafe { libc::fdopen(fd, text) },
                Ok((mode, fd)) => {
                    streams::use_for_standard(fd);
                    stream_of(fd, mode)
                }
                Err(error) => errno::reply_pointer(Err(error)),
            }
        }
        Err(error) => errno::reply_pointer(Err(error)),
    }
}

macro_rules! fopen {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE, |next| {
                // SAFETY: the caller's arguments are valid for fopen(3).
                unsafe { open_stream(path, mode, |path| next(path, mode)) }
            }
        }
    )*};
}

fopen!(fopen, fopen64);

/// Checks that a descriptor allows the mode, and sets O_APPEND.
fn prepare(fd: c_int, description: &Description, mode: Mode) -> Outcome<()> {
    let file = descriptors::file(description)?;
    let access = file.flags() & libc::O_ACCMODE;
    let wanted = mode.flags & libc::O_ACCMODE;
    if access != libc::O_RDWR && access != wanted {
        return Err(Errno(libc::EINVAL));
    }
    if mode.flags & libc::O_APPEND != 0 && file.flags() & libc::O_APPEND == 0 {
        // SAFETY: the argument of F_SETFL is a number.
        if unsafe { libc::fcntl(fd, libc::F_SETFL, file.flags() | libc::O_APPEND) } < 0 {
            return Err(Errno(errno::get()));
        }
    }
    Ok(())
}

wrap! {
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE, |next| {
        let Some(description) = opened(fd) else {
            // SAFETY: the caller's arguments are valid for fdopen(3).
            return unsafe { next(fd, mode) };
        };
        // SAFETY: as above.
        let mode = unsafe { mode_of(mode) }.and_then(|mode| prepare(fd, &description, mode).map(|()| mode));
        drop(description);
        match mode {
            Ok(mode) => {
                let stream = streams::create(fd, mode.custom());
                if !stream.is_null() && mode.appends_only() {
                    // SAFETY: any arguments are valid.
                    unsafe { libc::lseek64(fd, 0, libc::SEEK_END) };
                }
                stream
            }
            Err(error) => errno::reply_pointer(Err(error)),
        }
    }
}

/// Opens the file of freopen(3), and returns its descriptor. Without a path it is the stream's own
/// file, opened again.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL.
unsafe fn open_again(path: *const c_char, own: c_int, mode: Mode) -> Outcome<c_int> {
    let own_path;
    let (path, flags) = match path.is_null() {
        false => (path, mode.flags),
        true => {
            let description = opened(own).ok_or(Errno(libc::EBADF))?;
            own_path = inside(|| {
                let file = descriptors::file(&description)?;
                CString::new(view::absolute(file.dir, &file.path())).map_err(|_| Errno(libc::ENOENT))
            })?;
            (own_path.as_ptr(), mode.flags & !libc::O_EXCL)
        }
    };
    // SAFETY: the caller's promise.
    match unsafe { libc::open64(path, flags, NEW_FILE_MODE) } {
        -1 => Err(Errno(errno::get())),
        fd => Ok(fd),
    }
}

/// Gives the stream's descriptor another file. A stream of libc itself cannot read or write a
/// virtual file, except a standard stream, whose variable is changed.
///
/// # Safety
///
/// The arguments are valid for freopen(3).
unsafe fn reopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> Outcome<*mut FILE> {
    // SAFETY: the caller's promise.
    let (mode, number) = unsafe { (mode_of(mode)?, libc::fileno(stream)) };
    let is_custom = streams::descriptor(stream).is_some();
    let standard = streams::standard(stream);
    if !is_custom && standard.is_none() {
        return Err(refused("freopen", None, Errno(libc::ENOTSUP)));
    }
    // SAFETY: the stream is open. Its buffered input is discarded, as by freopen(3).
    unsafe {
        fflush(stream);
        __fpurge(stream);
    }
    // SAFETY: the caller's promise.
    let opened = unsafe { open_again(path, number, mode) };
    let Ok(new) = opened else {
        // SAFETY: any argument is valid.
        unsafe { libc::close(number) };
        return opened.map(|_| std::ptr::null_mut());
    };
    if new != number {
        // SAFETY: any arguments are valid.
        unsafe {
            libc::dup3(new, number, mode.flags & libc::O_CLOEXEC);
            libc::close(new);
        }
    }
    if mode.appends_only() {
        // SAFETY: any arguments are valid.
        unsafe { libc::lseek64(number, 0, libc::SEEK_END) };
    }
    match standard {
        // The variable has another stream if the file became virtual or native.
        Some(standard) if streams::standard_stream(standard) != stream => {
            Ok(streams::standard_stream(standard))
        }
        _ => {
            streams::set_mode(stream, mode.flags);
            Ok(stream)
        }
    }
}

macro_rules! freopen {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE, |next| {
                if is_inside() || !view::is_active() || mode.is_null() || stream.is_null() {
                    // SAFETY: the caller's arguments are valid for freopen(3).
                    return unsafe { next(path, mode, stream) };
                }
                let is_custom = streams::descriptor(stream).is_some();
                // SAFETY: as above.
                let is_tree = match unsafe { find(libc::AT_FDCWD, path, LastLink::Follow) } {
                    // SAFETY: as above.
                    Ok(Target::Native) if !is_custom => return unsafe { next(path, mode, stream) },
                    // SAFETY: as above.
                    Ok(Target::Elsewhere(path)) if !is_custom => return unsafe { next(path.as_ptr(), mode, stream) },
                    Err(error) if !is_custom => return errno::reply_pointer(Err(error)),
                    Ok(Target::Virtual(entry)) => entry.with(|entry| Ok(entry.dir.is_tree())).unwrap_or(false),
                    _ => false,
                };
                match is_tree && !is_custom {
                    // SAFETY: as above. libc opens the original file of an indexed tree.
                    true => unsafe { next(path, mode, stream) },
                    // SAFETY: as above.
                    false => errno::reply_pointer(unsafe { reopen(path, mode, stream) }),
                }
            }
        }
    )*};
}

freopen!(freopen, freopen64);

macro_rules! tmpfile {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name() -> *mut FILE, |next| {
                let mut template = *b"/tmp/tmpfXXXXXX\0";
                let path = template.as_mut_ptr().cast::<c_char>();
                // SAFETY: the path is a string.
                if unsafe { if_virtual(libc::AT_FDCWD, path, LastLink::Keep, |_| Ok(())) }.is_none() {
                    // SAFETY: there are no preconditions.
                    return unsafe { next() };
                }
                // SAFETY: the path is a string that can be changed.
                let fd = unsafe { libc::mkstemp(path) };
                if fd < 0 {
                    return std::ptr::null_mut();
                }
                // SAFETY: the path is a string.
                unsafe { libc::unlink(path) };
                stream_of(fd, Mode { flags: libc::O_RDWR })
            }
        }
    )*};
}

tmpfile!(tmpfile, tmpfile64);

wrap! {
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE, |next| {
        publish_before();
        // SAFETY: the caller's arguments are valid for popen(3).
        unsafe { next(command, mode) }
    }
}

wrap! {
    fn fcloseall() -> c_int, |next| {
        // SAFETY: there are no preconditions. The streams are flushed and stay open.
        let closed = unsafe { next() };
        publish_before();
        closed
    }
}

macro_rules! fileno {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(stream: *mut FILE) -> c_int, |next| {
                // SAFETY: the caller's argument is valid for fileno(3).
                streams::descriptor(stream).unwrap_or_else(|| unsafe { next(stream) })
            }
        }
    )*};
}

fileno!(fileno, fileno_unlocked);

wrap! {
    fn fclose(stream: *mut FILE) -> c_int, |next| {
        if streams::descriptor(stream).is_some() {
            streams::forget(stream);
            // SAFETY: the caller's argument is valid for fclose(3).
            return unsafe { next(stream) };
        }
        // The descriptor of a stream of libc may have become virtual by dup2(2); libc then writes
        // the rest of its buffer to the placeholder, and closes the descriptor itself.
        // SAFETY: as above.
        let stored = unsafe {
            let fd = fileno(stream);
            if crate::descriptors::is_virtual(fd) {
                fflush(stream);
            }
            crate::wrappers::descriptor::before_internal_close(fd)
        };
        // SAFETY: as above.
        let closed = unsafe { next(stream) };
        match stored {
            Ok(()) => closed,
            Err(error) => {
                errno::set(error.0);
                libc::EOF
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_fopen() {
        let flags = |mode: &str| Mode::parse(mode.as_bytes()).map(|mode| mode.flags);
        let created = libc::O_CREAT | libc::O_TRUNC;
        assert_eq!(flags("r"), Ok(libc::O_RDONLY));
        assert_eq!(flags("rb+"), Ok(libc::O_RDWR));
        assert_eq!(flags("w"), Ok(libc::O_WRONLY | created));
        assert_eq!(flags("w+xe"), Ok(libc::O_RDWR | created | libc::O_EXCL | libc::O_CLOEXEC));
        assert_eq!(flags("a+,ccs=UTF-8+x"), Ok(libc::O_RDWR | libc::O_CREAT | libc::O_APPEND));
        assert_eq!(flags("rm"), Ok(libc::O_RDONLY));
        for mode in ["", "x", "+r"] {
            assert_eq!(flags(mode), Err(Errno(libc::EINVAL)), "{mode:?}");
        }
        assert_eq!(Mode::parse(b"ab+").unwrap().custom(), c"a+");
        assert_eq!(Mode::parse(b"wb").unwrap().custom(), c"w");
    }
}
