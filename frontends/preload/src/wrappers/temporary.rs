//! Functions that create files and directories with new names: mkstemp(3) and its relatives. The
//! functions of libc open the files by internal calls.

use std::ffi::CString;

use libc::{c_char, c_int};

use crate::errno::{self, Errno, Outcome};
use crate::next::wrap;
use crate::resolve::{Entry, LastLink};
use crate::wrappers::{Target, bytes, find, if_virtual};

/// The characters at the end of a template that are replaced.
const PLACE: &[u8; 6] = b"XXXXXX";

const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// The number of names that are tried.
const ATTEMPTS_MAX: usize = 62 * 62 * 62;

/// Returns whether a template leads into a virtual directory.
///
/// # Safety
///
/// `template` is NULL or a string that ends with a NUL.
unsafe fn is_virtual(template: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    match unsafe { find(libc::AT_FDCWD, template, LastLink::Keep) } {
        Ok(Target::Native) => false,
        Ok(Target::Virtual(entry)) => entry.with(|_| Ok(true)).unwrap_or(true),
        Ok(Target::Elsewhere(_)) | Err(_) => true,
    }
}

fn random_name() -> [u8; 6] {
    let mut random = [0; 6];
    if rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty()).is_err() {
        // The names only need to differ; a name that exists is not used.
        random = std::array::from_fn(|at| (std::process::id() >> at) as u8);
    }
    random.map(|byte| LETTERS[byte as usize % LETTERS.len()])
}

/// Replaces `XXXXXX` in a template until `create` succeeds. Errors: EINVAL if the template does not
/// have it before the suffix; EEXIST if all names exist.
///
/// # Safety
///
/// `template` is a string that ends with a NUL and can be changed.
unsafe fn with_new_name(
    template: *mut c_char,
    suffix_bytes: c_int,
    mut create: impl FnMut(*const c_char) -> c_int,
) -> Outcome<c_int> {
    // SAFETY: the caller's promise.
    let length = unsafe { bytes(template) }.len();
    let suffix_bytes = usize::try_from(suffix_bytes).map_err(|_| Errno(libc::EINVAL))?;
    let start = length.checked_sub(suffix_bytes + PLACE.len()).ok_or(Errno(libc::EINVAL))?;
    // SAFETY: the range is in the string.
    let place = unsafe { std::slice::from_raw_parts_mut(template.cast::<u8>().add(start), PLACE.len()) };
    if place != PLACE {
        return Err(Errno(libc::EINVAL));
    }
    for _ in 0..ATTEMPTS_MAX {
        place.copy_from_slice(&random_name());
        match create(template) {
            -1 if errno::get() == libc::EEXIST => {}
            -1 => return Err(Errno(errno::get())),
            created => return Ok(created),
        }
    }
    Err(Errno(libc::EEXIST))
}

/// Creates a file.
///
/// # Safety
///
/// As for `with_new_name`.
unsafe fn create_file(template: *mut c_char, suffix_bytes: c_int, flags: c_int) -> c_int {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    // SAFETY: the caller's promise.
    errno::reply(unsafe { with_new_name(template, suffix_bytes, |path| libc::open64(path, flags, 0o600)) })
}

macro_rules! mkstemp {
    ($plain:ident, $flags:ident, $suffix:ident, $suffix_flags:ident) => {
        wrap! {
            fn $plain(template: *mut c_char) -> c_int, |next| {
                // SAFETY: the caller's argument is valid for mkstemp(3).
                unsafe { if is_virtual(template) { create_file(template, 0, 0) } else { next(template) } }
            }
        }

        wrap! {
            fn $flags(template: *mut c_char, flags: c_int) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for mkostemp(3).
                unsafe { if is_virtual(template) { create_file(template, 0, flags) } else { next(template, flags) } }
            }
        }

        wrap! {
            fn $suffix(template: *mut c_char, suffix_bytes: c_int) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for mkstemps(3).
                unsafe {
                    if is_virtual(template) { create_file(template, suffix_bytes, 0) } else { next(template, suffix_bytes) }
                }
            }
        }

        wrap! {
            fn $suffix_flags(template: *mut c_char, suffix_bytes: c_int, flags: c_int) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for mkostemps(3).
                unsafe {
                    if is_virtual(template) {
                        create_file(template, suffix_bytes, flags)
                    } else {
                        next(template, suffix_bytes, flags)
                    }
                }
            }
        }
    };
}

mkstemp!(mkstemp, mkostemp, mkstemps, mkostemps);
mkstemp!(mkstemp64, mkostemp64, mkstemps64, mkostemps64);

wrap! {
    fn mkdtemp(template: *mut c_char) -> *mut c_char, |next| {
        // SAFETY: the caller's argument is valid for mkdtemp(3).
        unsafe {
            if !is_virtual(template) {
                return next(template);
            }
            errno::reply_pointer(with_new_name(template, 0, |path| libc::mkdir(path, 0o700)).map(|_| template))
        }
    }
}

/// Returns 0 if no file has this name, and otherwise -1 with `errno`, like a function that creates
/// a file.
///
/// # Safety
///
/// `path` is a string that ends with a NUL.
unsafe fn require_missing(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let found =
        unsafe { if_virtual(libc::AT_FDCWD, path, LastLink::Keep, |entry| Ok(entry.found.is_some())) };
    match found {
        Some(Ok(false)) => 0,
        Some(Err(error)) => errno::reply(Err(error)),
        Some(Ok(true)) | None => errno::reply(Err(Errno(libc::EEXIST))),
    }
}

wrap! {
    fn mktemp(template: *mut c_char) -> *mut c_char, |next| {
        // SAFETY: the caller's argument is valid for mktemp(3).
        unsafe {
            if !is_virtual(template) {
                return next(template);
            }
            if let Err(error) = with_new_name(template, 0, |path| require_missing(path)) {
                errno::set(error.0);
                *template = 0;
            }
            template
        }
    }
}

wrap! {
    fn tempnam(dir: *const c_char, prefix: *const c_char) -> *mut c_char, |next| {
        if !crate::view::is_active() || crate::guard::is_inside() {
            // SAFETY: the caller's arguments are valid for tempnam(3).
            return unsafe { next(dir, prefix) };
        }
        // SAFETY: the arguments are NULL or strings.
        unsafe {
            let variable = libc::getenv(c"TMPDIR".as_ptr());
            let chosen = [variable.cast_const(), dir].into_iter().find(|dir| {
                let exists = |entry: &Entry| Ok(entry.found.is_some());
                !dir.is_null() && matches!(if_virtual(libc::AT_FDCWD, *dir, LastLink::Follow, exists), Some(Ok(true)))
            });
            let Some(chosen) = chosen else { return next(dir, prefix) };
            let prefix = if prefix.is_null() { &b"file"[..] } else { bytes(prefix) };
            let prefix = &prefix[..prefix.len().min(5)];
            let path = CString::new([bytes(chosen), b"/", prefix, PLACE].concat()).unwrap_or_default();
            // The program frees the result.
            let template = libc::strdup(path.as_ptr());
            if template.is_null() {
                return template;
            }
            if let Err(error) = with_new_name(template, 0, |path| require_missing(path)) {
                libc::free(template.cast());
                return errno::reply_pointer(Err(error));
            }
            template
        }
    }
}
