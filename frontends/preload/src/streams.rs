//! Streams of libc for virtual descriptors. libc reads and writes the file of a stream by internal
//! calls, so a stream for a virtual descriptor is a custom one (fopencookie(3)), whose functions
//! call those of this library.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};
use quell_threads::lock;

use crate::descriptors;
use crate::guard::inside;

type ReadFunction = extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t;
type WriteFunction = extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t;
type SeekFunction = extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int;
type CloseFunction = extern "C" fn(*mut c_void) -> c_int;

/// The functions of a custom stream, as libc defines them.
#[repr(C)]
struct CookieFunctions {
    read: Option<ReadFunction>,
    write: Option<WriteFunction>,
    seek: Option<SeekFunction>,
    close: Option<CloseFunction>,
}

// SAFETY: libc defines the functions and variables with these types. The variables are only changed
// by `use_for_standard`, as a program may do, too.
unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: CookieFunctions) -> *mut FILE;
    fn setvbuf(stream: *mut FILE, buffer: *mut c_char, mode: c_int, size: size_t) -> c_int;
    fn fflush(stream: *mut FILE) -> c_int;
    fn __fpurge(stream: *mut FILE);
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// A custom stream.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    fd: c_int,
    /// The orientation that fwide(3) returns. libc itself treats all custom streams as streams of
    /// bytes.
    orientation: c_int,
}

/// The custom streams by their addresses.
pub type Streams = BTreeMap<usize, Stream>;

static STREAMS: Mutex<Streams> = Mutex::new(BTreeMap::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The streams for one of the descriptors 0 to 2.
#[derive(Debug, Clone, Copy)]
pub struct Standard {
    /// The stream of libc, while a custom stream replaces it.
    original: Option<usize>,
    /// The custom stream, if one was created. It is not closed when the descriptor changes, because
    /// the program may have kept its address.
    custom: Option<usize>,
}

static STANDARD: Mutex<[Standard; 3]> = Mutex::new([Standard { original: None, custom: None }; 3]);

/// Returns the descriptor of a custom stream of this library.
pub fn descriptor(stream: *mut FILE) -> Option<c_int> {
    with_stream(stream, |stream| stream.fd)
}

/// Returns the orientation of a custom stream. If it has none, sets `wanted` first.
pub fn orientation(stream: *mut FILE, wanted: c_int) -> Option<c_int> {
    with_stream(stream, |stream| {
        if stream.orientation == 0 {
            stream.orientation = wanted.signum();
        }
        stream.orientation
    })
}

/// Calls `act` for a custom stream.
fn with_stream<T>(stream: *mut FILE, act: impl FnOnce(&mut Stream) -> T) -> Option<T> {
    match COUNT.load(Ordering::Relaxed) {
        0 => None,
        // A signal handler must not wait for the lock.
        _ => inside(|| Ok(lock(&STREAMS).get_mut(&(stream as usize)).map(act))).unwrap_or(None),
    }
}

/// Locks the table for a fork.
pub fn lock_for_fork() -> std::sync::MutexGuard<'static, Streams> {
    lock(&STREAMS)
}

/// Creates a stream for a descriptor, and passes the ownership of the descriptor to the stream.
/// `mode`: as for fopen(3). NULL on failure.
pub fn create(fd: c_int, mode: &std::ffi::CStr) -> *mut FILE {
    let functions =
        CookieFunctions { read: Some(read), write: Some(write), seek: Some(seek), close: Some(close) };
    // SAFETY: the cookie is a number that the functions understand, and the mode is a string.
    let stream = unsafe { fopencookie(cookie(fd), mode.as_ptr(), functions) };
    if !stream.is_null() {
        // Inserting into the table cannot fail.
        let _ = inside(|| Ok(lock(&STREAMS).insert(stream as usize, Stream { fd, orientation: 0 })));
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
    stream
}

/// Removes a stream from the table, before libc closes it.
pub fn forget(stream: *mut FILE) {
    let removed = inside(|| Ok(lock(&STREAMS).remove(&(stream as usize))));
    if matches!(removed, Ok(Some(_))) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
    for known in lock(&STANDARD).iter_mut().filter(|known| known.custom == Some(stream as usize)) {
        known.custom = None;
    }
}

fn cookie(fd: c_int) -> *mut c_void {
    std::ptr::without_provenance_mut(fd as usize)
}

fn number(cookie: *mut c_void) -> c_int {
    cookie.addr() as c_int
}

extern "C" fn read(cookie: *mut c_void, into: *mut c_char, length: size_t) -> ssize_t {
    // SAFETY: libc passes a buffer of this length.
    unsafe { libc::read(number(cookie), into.cast(), length) }
}

/// Writes all bytes: a custom stream must return 0 on failure, not -1.
extern "C" fn write(cookie: *mut c_void, from: *const c_char, length: size_t) -> ssize_t {
    let mut written = 0;
    while written < length {
        // SAFETY: libc passes a buffer of this length.
        match unsafe { libc::write(number(cookie), from.add(written).cast(), length - written) } {
            count if count > 0 => written += count as usize,
            _ => break,
        }
    }
    written as ssize_t
}

extern "C" fn seek(cookie: *mut c_void, offset: *mut off64_t, whence: c_int) -> c_int {
    // SAFETY: libc passes a valid pointer.
    let found = unsafe { libc::lseek64(number(cookie), *offset, whence) };
    if found < 0 {
        return -1;
    }
    // SAFETY: as above.
    unsafe { *offset = found };
    0
}

extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: any number is valid.
    unsafe { libc::close(number(cookie)) }
}

/// Makes `stdin`, `stdout` or `stderr` a custom stream while its descriptor is virtual. Called
/// after the descriptor `fd` has changed.
pub fn use_for_standard(fd: c_int) {
    if !(0..=2).contains(&fd) {
        return;
    }
    // Programs may change the variables, so libc reads them at each use.
    let variable = match fd {
        0 => &raw mut stdin,
        1 => &raw mut stdout,
        _ => &raw mut stderr,
    };
    let mut streams = lock(&STANDARD);
    let known = &mut streams[fd as usize];
    match (descriptors::is_virtual(fd), known.original) {
        (true, None) => {
            let Some(stream) = custom_standard(fd, known) else { return };
            // SAFETY: see above.
            unsafe {
                known.original = Some(*variable as usize);
                *variable = stream;
            }
        }
        (false, Some(original)) => {
            // SAFETY: the stream is flushed before it is replaced.
            unsafe {
                fflush(*variable);
                *variable = original as *mut FILE;
            }
            known.original = None;
        }
        (true, Some(_)) | (false, None) => {}
    }
}

/// Returns the custom stream for one of the descriptors 0 to 2.
fn custom_standard(fd: c_int, known: &mut Standard) -> Option<*mut FILE> {
    if let Some(known) = known.custom {
        let stream = known as *mut FILE;
        // SAFETY: the stream is open; what it has read from an earlier file is dropped.
        unsafe { __fpurge(stream) };
        set_mode(stream, if fd == 0 { libc::O_RDONLY } else { libc::O_WRONLY });
        return Some(stream);
    }
    let stream = create(fd, if fd == 0 { c"r" } else { c"w" });
    if stream.is_null() {
        return None;
    }
    if fd == 2 {
        // SAFETY: the stream is new; standard error is not buffered.
        unsafe { setvbuf(stream, std::ptr::null_mut(), libc::_IONBF, 0) };
    }
    known.custom = Some(stream as usize);
    Some(stream)
}

/// Locks the standard streams for a fork.
pub fn lock_standard_for_fork() -> std::sync::MutexGuard<'static, [Standard; 3]> {
    lock(&STANDARD)
}

/// Returns the descriptor of a standard stream, or `None` if `stream` is not a standard stream.
pub fn standard(stream: *mut FILE) -> Option<c_int> {
    (0..=2).find(|fd| standard_stream(*fd) == stream)
}

/// Returns `stdin`, `stdout` or `stderr`.
pub fn standard_stream(fd: c_int) -> *mut FILE {
    // SAFETY: the variables exist; a program that changes them while another thread uses them has
    // a race of its own.
    unsafe {
        match fd {
            0 => stdin,
            1 => stdout,
            _ => stderr,
        }
    }
}

/// Bits of the first word of a stream that describe its mode and state, as libc defines them.
const NO_READS: c_int = 0x0004;
const NO_WRITES: c_int = 0x0008;
const AT_END: c_int = 0x0010;
const FAILED: c_int = 0x0020;
const APPENDS: c_int = 0x1000;

/// Sets the mode of a custom stream from flags of open(2), and clears its errors.
pub fn set_mode(stream: *mut FILE, flags: c_int) {
    with_stream(stream, |stream| stream.orientation = 0);
    let mut bits = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => NO_WRITES,
        libc::O_WRONLY => NO_READS,
        _ => 0,
    };
    if flags & libc::O_APPEND != 0 {
        bits |= APPENDS;
    }
    let word = stream.cast::<c_int>();
    // SAFETY: a stream begins with the word of its flags (`_flags`), which is part of libc's binary
    // interface.
    unsafe { *word = *word & !(NO_READS | NO_WRITES | AT_END | FAILED | APPENDS) | bits };
}

/// Sets the error indicator of a custom stream.
pub fn set_error(stream: *mut FILE) {
    let word = stream.cast::<c_int>();
    // SAFETY: as above.
    unsafe { *word |= FAILED };
}

/// Flushes a standard stream before its descriptor changes.
pub fn flush_standard(fd: c_int) {
    if !(0..=2).contains(&fd) || lock(&STANDARD)[fd as usize].original.is_none() {
        return;
    }
    // SAFETY: the variables exist and have valid streams.
    unsafe {
        match fd {
            0 => 0,
            1 => fflush(stdout),
            _ => fflush(stderr),
        }
    };
}
