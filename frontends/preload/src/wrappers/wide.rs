//! Streams of wide characters (wchar.h). libc's functions would use data that a custom stream does
//! not have, so for these streams the characters are converted here, and the bytes are read and
//! written by the functions for bytes. Encodings with shift states are not supported, as glibc has
//! no locales with them. Formatted input is refused.

use libc::{FILE, c_char, c_int, size_t, wchar_t};

use crate::errno::{self, Errno};
use crate::guard::is_inside;
use crate::next::wrap;
use crate::refusals::refused;
use crate::streams;
use crate::variadic::{ArgumentList, variadic};

/// `wint_t`
type WideInt = u32;

/// The end of the file, or an error.
const WEOF: WideInt = WideInt::MAX;

/// The length of the longest character in bytes, `MB_LEN_MAX`.
const CHARACTER_BYTES_MAX: usize = 16;

/// The results of mbrtowc(3) for an invalid and for an incomplete character.
const INVALID: size_t = size_t::MAX;
const INCOMPLETE: size_t = size_t::MAX - 1;

/// `mbstate_t`; zeros are the initial state.
#[repr(C)]
#[derive(Default)]
struct ConversionState {
    count: c_int,
    value: u32,
}

// SAFETY: the signatures match the functions of libc.
unsafe extern "C" {
    fn mbrtowc(
        into: *mut wchar_t,
        from: *const c_char,
        length: size_t,
        state: *mut ConversionState,
    ) -> size_t;
    fn wcrtomb(into: *mut c_char, character: wchar_t, state: *mut ConversionState) -> size_t;
    fn flockfile(stream: *mut FILE);
    fn funlockfile(stream: *mut FILE);
    fn fgetc_unlocked(stream: *mut FILE) -> c_int;
    fn fwrite_unlocked(from: *const u8, size: size_t, count: size_t, stream: *mut FILE) -> size_t;
    fn ungetc(byte: c_int, stream: *mut FILE) -> c_int;
    fn ferror_unlocked(stream: *mut FILE) -> c_int;
    fn open_wmemstream(text: *mut *mut wchar_t, length: *mut size_t) -> *mut FILE;
    fn fclose(stream: *mut FILE) -> c_int;
    fn free(memory: *mut libc::c_void);
}

/// A custom stream that this thread has locked until the value is dropped.
struct Locked(*mut FILE);

impl Locked {
    /// Locks a custom stream. `None`: the stream belongs to libc, or the thread serves a file.
    fn new(stream: *mut FILE) -> Option<Locked> {
        if is_inside() {
            return None;
        }
        streams::descriptor(stream)?;
        // SAFETY: the stream is in the table, so it is open.
        unsafe { flockfile(stream) };
        Some(Locked(stream))
    }

    /// Sets the orientation of the stream to wide characters. Returns false if it is a stream of
    /// bytes.
    fn is_wide(&self) -> bool {
        streams::orientation(self.0, 1).is_some_and(|orientation| orientation > 0)
    }

    fn fail(&self, error: Errno) {
        streams::set_error(self.0);
        errno::set(error.0);
    }

    /// Returns the next character, or WEOF.
    fn read(&self) -> WideInt {
        if !self.is_wide() {
            return WEOF;
        }
        let mut bytes = [0u8; CHARACTER_BYTES_MAX];
        for length in 1..=CHARACTER_BYTES_MAX {
            // SAFETY: the stream is open and locked.
            let byte = unsafe { fgetc_unlocked(self.0) };
            if byte == libc::EOF {
                if length > 1 {
                    self.fail(Errno(libc::EILSEQ));
                }
                return WEOF;
            }
            bytes[length - 1] = byte as u8;
            let mut character: wchar_t = 0;
            // SAFETY: the pointers are to variables of this function.
            let found = unsafe {
                mbrtowc(&mut character, bytes.as_ptr().cast(), length, &mut ConversionState::default())
            };
            match found {
                INCOMPLETE => {}
                INVALID => {
                    // SAFETY: as above.
                    bytes[..length].iter().rev().for_each(|byte| unsafe {
                        ungetc((*byte).into(), self.0);
                    });
                    break;
                }
                _ => return character as WideInt,
            }
        }
        self.fail(Errno(libc::EILSEQ));
        WEOF
    }

    /// Writes characters. Returns false on failure; the characters before an invalid one are
    /// written.
    fn write(&self, characters: impl Iterator<Item = wchar_t>) -> bool {
        if !self.is_wide() {
            return false;
        }
        let (mut bytes, mut is_valid) = (Vec::new(), true);
        for character in characters {
            let Some(encoded) = encoded(character) else {
                is_valid = false;
                break;
            };
            bytes.extend_from_slice(&encoded.bytes[..encoded.length]);
        }
        // SAFETY: the stream is open and locked, and the bytes exist.
        let written = unsafe { fwrite_unlocked(bytes.as_ptr(), 1, bytes.len(), self.0) };
        if written == bytes.len() && !is_valid {
            self.fail(Errno(libc::EILSEQ));
        }
        written == bytes.len() && is_valid
    }

    /// Reads a line of at most `space - 1` characters. NULL at the end of the file and on failure.
    ///
    /// # Safety
    ///
    /// `into` has space for `space` characters.
    unsafe fn read_line(&self, into: *mut wchar_t, space: usize) -> *mut wchar_t {
        let Some(characters_max) = space.checked_sub(1) else { return std::ptr::null_mut() };
        let mut length = 0;
        while length < characters_max {
            let character = self.read();
            // SAFETY: the stream is open and locked.
            if character == WEOF && (length == 0 || unsafe { ferror_unlocked(self.0) } != 0) {
                return std::ptr::null_mut();
            }
            if character == WEOF {
                break;
            }
            // SAFETY: the caller's promise.
            unsafe { into.add(length).write(character as wchar_t) };
            length += 1;
            if character == u32::from(b'\n') {
                break;
            }
        }
        // SAFETY: as above; a character of the space is left.
        unsafe { into.add(length).write(0) };
        into
    }

    fn put_back(&self, character: WideInt) -> WideInt {
        if character == WEOF || !self.is_wide() {
            return WEOF;
        }
        let Some(encoded) = encoded(character as wchar_t) else {
            self.fail(Errno(libc::EILSEQ));
            return WEOF;
        };
        for byte in encoded.bytes[..encoded.length].iter().rev() {
            // SAFETY: the stream is open and locked.
            if unsafe { ungetc((*byte).into(), self.0) } == libc::EOF {
                return WEOF;
            }
        }
        character
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: this value has locked the stream.
        unsafe { funlockfile(self.0) };
    }
}

struct Encoded {
    bytes: [u8; CHARACTER_BYTES_MAX],
    length: usize,
}

/// Returns a character in the encoding of the locale.
fn encoded(character: wchar_t) -> Option<Encoded> {
    let mut bytes = [0; CHARACTER_BYTES_MAX];
    // SAFETY: the array has space for the longest character.
    let length = unsafe { wcrtomb(bytes.as_mut_ptr().cast(), character, &mut ConversionState::default()) };
    (length != INVALID).then_some(Encoded { bytes, length })
}

macro_rules! get {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(stream: *mut FILE) -> WideInt, |next| {
                match Locked::new(stream) {
                    // SAFETY: the caller's argument is valid for fgetwc(3).
                    None => unsafe { next(stream) },
                    Some(stream) => stream.read(),
                }
            }
        }
    )*};
}

get!(fgetwc, getwc, fgetwc_unlocked, getwc_unlocked);

macro_rules! get_standard {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name() -> WideInt, |next| {
                match Locked::new(streams::standard_stream(0)) {
                    // SAFETY: there are no preconditions.
                    None => unsafe { next() },
                    Some(stream) => stream.read(),
                }
            }
        }
    )*};
}

get_standard!(getwchar, getwchar_unlocked);

/// Writes a character, and returns it, or WEOF.
fn put(stream: &Locked, character: wchar_t) -> WideInt {
    match stream.write(std::iter::once(character)) {
        true => character as WideInt,
        false => WEOF,
    }
}

macro_rules! put {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(character: wchar_t, stream: *mut FILE) -> WideInt, |next| {
                match Locked::new(stream) {
                    // SAFETY: the caller's arguments are valid for fputwc(3).
                    None => unsafe { next(character, stream) },
                    Some(stream) => put(&stream, character),
                }
            }
        }
    )*};
}

put!(fputwc, putwc, fputwc_unlocked, putwc_unlocked);

macro_rules! put_standard {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(character: wchar_t) -> WideInt, |next| {
                match Locked::new(streams::standard_stream(1)) {
                    // SAFETY: any argument is valid.
                    None => unsafe { next(character) },
                    Some(stream) => put(&stream, character),
                }
            }
        }
    )*};
}

put_standard!(putwchar, putwchar_unlocked);

macro_rules! get_line {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(into: *mut wchar_t, space: c_int, stream: *mut FILE) -> *mut wchar_t, |next| {
                match Locked::new(stream) {
                    // SAFETY: the caller's arguments are valid for fgetws(3).
                    None => unsafe { next(into, space, stream) },
                    // SAFETY: as above.
                    Some(stream) => unsafe { stream.read_line(into, usize::try_from(space).unwrap_or(0)) },
                }
            }
        }
    )*};
}

get_line!(fgetws, fgetws_unlocked);

macro_rules! get_line_checked {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(into: *mut wchar_t, size: size_t, space: c_int, stream: *mut FILE) -> *mut wchar_t, |next| {
                let fits = usize::try_from(space).is_ok_and(|space| space <= size);
                match Locked::new(stream).filter(|_| fits) {
                    // SAFETY: the caller's arguments are valid for fgetws(3). libc ends the program
                    // if the line may be longer than the space.
                    None => unsafe { next(into, size, space, stream) },
                    // SAFETY: as above.
                    Some(stream) => unsafe { stream.read_line(into, space as usize) },
                }
            }
        }
    )*};
}

get_line_checked!(__fgetws_chk, __fgetws_unlocked_chk);

/// Returns the characters of a string.
///
/// # Safety
///
/// `text` ends with a NUL and outlives the iterator.
unsafe fn characters(text: *const wchar_t) -> impl Iterator<Item = wchar_t> {
    // SAFETY: the caller's promise: the characters before the NUL, and the NUL, exist.
    (0..).map(move |position| unsafe { *text.add(position) }).take_while(|character| *character != 0)
}

macro_rules! put_string {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(text: *const wchar_t, stream: *mut FILE) -> c_int, |next| {
                match Locked::new(stream) {
                    // SAFETY: the caller's arguments are valid for fputws(3).
                    None => unsafe { next(text, stream) },
                    // SAFETY: as above.
                    Some(stream) => match stream.write(unsafe { characters(text) }) {
                        true => 1,
                        false => libc::EOF,
                    },
                }
            }
        }
    )*};
}

put_string!(fputws, fputws_unlocked);

wrap! {
    fn ungetwc(character: WideInt, stream: *mut FILE) -> WideInt, |next| {
        match Locked::new(stream) {
            // SAFETY: the caller's arguments are valid for ungetwc(3).
            None => unsafe { next(character, stream) },
            Some(stream) => stream.put_back(character),
        }
    }
}

wrap! {
    fn fwide(stream: *mut FILE, mode: c_int) -> c_int, |next| {
        match streams::orientation(stream, mode) {
            // SAFETY: the caller's arguments are valid for fwide(3).
            None => unsafe { next(stream, mode) },
            Some(orientation) => orientation,
        }
    }
}

/// Writes the text that `format` writes to a stream in memory, and returns its result: the number
/// of characters, or -1.
fn print(stream: &Locked, format: impl FnOnce(*mut FILE) -> c_int) -> c_int {
    let (mut text, mut length) = (std::ptr::null_mut(), 0);
    // SAFETY: the variables outlive the stream, which is closed here; the text exists after that.
    unsafe {
        let memory = open_wmemstream(&mut text, &mut length);
        if memory.is_null() {
            return -1;
        }
        let count = format(memory);
        let number = errno::get();
        fclose(memory);
        let is_written = count >= 0 && stream.write(std::slice::from_raw_parts(text, length).iter().copied());
        let number = if count < 0 { number } else { errno::get() };
        free(text.cast());
        errno::set(number);
        if is_written { count } else { -1 }
    }
}

wrap! {
    fn vfwprintf(stream: *mut FILE, format: *const wchar_t, list: *mut ArgumentList) -> c_int, |next| {
        match Locked::new(stream) {
            // SAFETY: the caller's arguments are valid for vfwprintf(3).
            None => unsafe { next(stream, format, list) },
            // SAFETY: as above; the list is used once.
            Some(stream) => print(&stream, |memory| unsafe { next(memory, format, list) }),
        }
    }
}

wrap! {
    fn __vfwprintf_chk(stream: *mut FILE, flag: c_int, format: *const wchar_t, list: *mut ArgumentList) -> c_int, |next| {
        match Locked::new(stream) {
            // SAFETY: the caller's arguments are valid for vfwprintf(3).
            None => unsafe { next(stream, flag, format, list) },
            // SAFETY: as above; the list is used once.
            Some(stream) => print(&stream, |memory| unsafe { next(memory, flag, format, list) }),
        }
    }
}

wrap! {
    fn vwprintf(format: *const wchar_t, list: *mut ArgumentList) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for vwprintf(3).
        unsafe { vfwprintf(streams::standard_stream(1), format, list) }
    }
}

wrap! {
    fn __vwprintf_chk(flag: c_int, format: *const wchar_t, list: *mut ArgumentList) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for vwprintf(3).
        unsafe { __vfwprintf_chk(streams::standard_stream(1), flag, format, list) }
    }
}

variadic!(
    /// Writes formatted text to a stream.
    #[unsafe(no_mangle)]
    fwprintf, 2, "rdx", "x2", vfwprintf
);
variadic!(
    /// Writes formatted text to a stream.
    #[unsafe(no_mangle)]
    __fwprintf_chk, 3, "rcx", "x3", __vfwprintf_chk
);
variadic!(
    /// Writes formatted text to standard output.
    #[unsafe(no_mangle)]
    wprintf, 1, "rsi", "x1", vwprintf
);
variadic!(
    /// Writes formatted text to standard output.
    #[unsafe(no_mangle)]
    __wprintf_chk, 2, "rdx", "x2", __vwprintf_chk
);

/// Defines the functions of formatted input with one standard of C.
macro_rules! scan {
    ($($list:ident $standard_list:ident $variadic:ident $standard_variadic:ident;)*) => {$(
        wrap! {
            fn $list(stream: *mut FILE, format: *const wchar_t, list: *mut ArgumentList) -> c_int, |next| {
                match Locked::new(stream) {
                    // SAFETY: the caller's arguments are valid for vfwscanf(3).
                    None => unsafe { next(stream, format, list) },
                    Some(stream) => {
                        stream.fail(refused("fwscanf", None, Errno(libc::ENOTSUP)));
                        libc::EOF
                    }
                }
            }
        }

        wrap! {
            fn $standard_list(format: *const wchar_t, list: *mut ArgumentList) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for vwscanf(3).
                unsafe { $list(streams::standard_stream(0), format, list) }
            }
        }

        variadic!(
            /// Reads formatted text from a stream.
            #[unsafe(no_mangle)]
            $variadic, 2, "rdx", "x2", $list
        );
        variadic!(
            /// Reads formatted text from standard input.
            #[unsafe(no_mangle)]
            $standard_variadic, 1, "rsi", "x1", $standard_list
        );
    )*};
}

scan! {
    vfwscanf vwscanf fwscanf wscanf;
    __isoc99_vfwscanf __isoc99_vwscanf __isoc99_fwscanf __isoc99_wscanf;
    __isoc23_vfwscanf __isoc23_vwscanf __isoc23_fwscanf __isoc23_wscanf;
}
