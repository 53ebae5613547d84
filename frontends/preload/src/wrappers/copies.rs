//! Calls with which the kernel copies data between two descriptors: sendfile(2),
//! copy_file_range(2), splice(2) and tee(2). If one of them is virtual, the library reads and
//! writes instead.

use libc::{c_int, c_uint, iovec, loff_t, off_t, size_t, ssize_t};

use crate::descriptors::{self, Description};
use crate::errno::{self, Errno, Outcome};
use crate::guard::{inside, is_inside};
use crate::next::wrap;

/// The number of bytes that are copied at a time.
const CHUNK_BYTES: usize = 1 << 18;

/// The largest amount that a pipe takes at once without waiting if poll(2) reports that it is
/// writable.
const PIPE_BYTES: usize = libc::PIPE_BUF;

fn is_virtual(fd: c_int) -> bool {
    descriptors::is_virtual(fd) && !is_inside()
}

/// Returns the result of a function of libc.
fn checked(result: ssize_t) -> Outcome<usize> {
    usize::try_from(result).map_err(|_| Errno(errno::get()))
}

/// The type and the flags of a descriptor.
struct End {
    kind: libc::mode_t,
    flags: c_int,
}

impl End {
    fn of(fd: c_int) -> Outcome<End> {
        // SAFETY: the structure consists of integers, for which zero bytes are valid, and any
        // number of a descriptor is.
        unsafe {
            let mut found: libc::stat = std::mem::zeroed();
            let flags = libc::fcntl(fd, libc::F_GETFL);
            if flags < 0 || libc::fstat(fd, &mut found) < 0 {
                return Err(Errno(errno::get()));
            }
            Ok(End { kind: found.st_mode & libc::S_IFMT, flags })
        }
    }

    fn is_pipe(&self) -> bool {
        self.kind == libc::S_IFIFO
    }

    fn require_readable(&self) -> Outcome<()> {
        match self.flags & libc::O_ACCMODE == libc::O_WRONLY || self.flags & libc::O_PATH != 0 {
            true => Err(Errno(libc::EBADF)),
            false => Ok(()),
        }
    }

    fn require_writable(&self) -> Outcome<()> {
        match self.flags & libc::O_ACCMODE == libc::O_RDONLY || self.flags & libc::O_PATH != 0 {
            true => Err(Errno(libc::EBADF)),
            false => Ok(()),
        }
    }
}

/// The position in a file from which a call reads or to which it writes: the variable of the
/// caller, or the position of the descriptor.
struct Position {
    fd: c_int,
    variable: *mut loff_t,
    offset: i64,
}

impl Position {
    /// # Safety
    ///
    /// `variable` is NULL or valid until the value is dropped.
    unsafe fn new(fd: c_int, variable: *mut loff_t) -> Outcome<Position> {
        // SAFETY: the caller's promise; any number of a descriptor is valid.
        let offset = match unsafe { variable.as_ref() } {
            Some(offset) => *offset,
            // SAFETY: as above.
            None => unsafe { libc::lseek64(fd, 0, libc::SEEK_CUR) },
        };
        match offset {
            0.. => Ok(Position { fd, variable, offset }),
            _ if variable.is_null() => Err(Errno(errno::get())),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    fn advance(&mut self, bytes: usize) -> Outcome<()> {
        self.offset += bytes as i64;
        if self.variable.is_null() {
            // SAFETY: any arguments are valid.
            return match unsafe { libc::lseek64(self.fd, self.offset, libc::SEEK_SET) } {
                -1 => Err(Errno(errno::get())),
                _ => Ok(()),
            };
        }
        // SAFETY: the promise of `new`.
        unsafe { *self.variable = self.offset };
        Ok(())
    }

    fn read(&self, into: &mut [u8]) -> Outcome<usize> {
        // SAFETY: the buffer has this length.
        checked(unsafe { libc::pread64(self.fd, into.as_mut_ptr().cast(), into.len(), self.offset) })
    }

    fn write(&self, from: &[u8]) -> Outcome<usize> {
        // SAFETY: the buffer has this length.
        checked(unsafe { libc::pwrite64(self.fd, from.as_ptr().cast(), from.len(), self.offset) })
    }
}

/// Copies up to `length` bytes. `transfer` copies at most a buffer, and returns 0 at the end. An
/// error after some bytes is not returned.
fn repeat(length: usize, mut transfer: impl FnMut(&mut [u8]) -> Outcome<usize>) -> Outcome<ssize_t> {
    let mut buffer = inside(|| Ok(vec![0; CHUNK_BYTES.min(length)]))?;
    let mut total = 0;
    while total < length {
        let wanted = buffer.len().min(length - total);
        match transfer(&mut buffer[..wanted]) {
            Ok(0) => break,
            Ok(copied) => total += copied,
            Err(error) if total == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(total as ssize_t)
}

/// Sends a range of a file to any descriptor.
///
/// # Safety
///
/// `offset` is NULL or valid.
unsafe fn send(to: c_int, from: c_int, offset: *mut off_t, length: size_t) -> Outcome<ssize_t> {
    let (source, target) = (End::of(from)?, End::of(to)?);
    source.require_readable()?;
    target.require_writable()?;
    if source.kind == libc::S_IFDIR || target.flags & libc::O_APPEND != 0 {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the caller's promise.
    let mut position = unsafe { Position::new(from, offset) }?;
    repeat(length, |buffer| {
        let received = position.read(buffer)?;
        if received == 0 {
            return Ok(0);
        }
        // SAFETY: the buffer has this length.
        let sent = checked(unsafe { libc::write(to, buffer.as_ptr().cast(), received) })?;
        position.advance(sent)?;
        Ok(sent)
    })
}

/// Defines a function that copies or moves data between two descriptors with offsets.
macro_rules! between {
    ($name:ident, $ours:ident) => {
        wrap! {
            fn $name(
                from: c_int,
                from_offset: *mut loff_t,
                to: c_int,
                to_offset: *mut loff_t,
                length: size_t,
                flags: c_uint,
            ) -> ssize_t, |next| {
                // SAFETY: the caller's arguments are valid for the function of libc.
                unsafe {
                    match is_virtual(from) || is_virtual(to) {
                        true => errno::reply($ours(from, from_offset, to, to_offset, length, flags)),
                        false => next(from, from_offset, to, to_offset, length, flags),
                    }
                }
            }
        }
    };
}

macro_rules! sendfile {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(to: c_int, from: c_int, offset: *mut off_t, length: size_t) -> ssize_t, |next| {
                // SAFETY: the caller's arguments are valid for sendfile(2).
                unsafe {
                    match is_virtual(to) || is_virtual(from) {
                        true => errno::reply(send(to, from, offset, length)),
                        false => next(to, from, offset, length),
                    }
                }
            }
        }
    )*};
}

sendfile!(sendfile, sendfile64);

fn is_one_file(a: c_int, b: c_int) -> bool {
    let identity = |fd| match &*descriptors::get(fd)? {
        Description::File(file) => Some((file.dir.number, file.file().ok()?.0.0)),
        Description::Dir(_) => None,
    };
    inside(|| Ok(identity(a).is_some() && identity(a) == identity(b))).unwrap_or(false)
}

/// Copies a range from one file to another.
///
/// # Safety
///
/// The offsets are NULL or valid.
unsafe fn copy_range(
    from: c_int,
    from_offset: *mut loff_t,
    to: c_int,
    to_offset: *mut loff_t,
    length: size_t,
    flags: c_uint,
) -> Outcome<ssize_t> {
    let (source, target) = (End::of(from)?, End::of(to)?);
    if source.kind == libc::S_IFDIR || target.kind == libc::S_IFDIR {
        return Err(Errno(libc::EISDIR));
    }
    if flags != 0 || source.kind != libc::S_IFREG || target.kind != libc::S_IFREG {
        return Err(Errno(libc::EINVAL));
    }
    source.require_readable()?;
    target.require_writable()?;
    if target.flags & libc::O_APPEND != 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: the caller's promise.
    let (mut read_from, mut write_to) =
        unsafe { (Position::new(from, from_offset)?, Position::new(to, to_offset)?) };
    let overlaps = read_from.offset < write_to.offset.saturating_add(length as i64)
        && write_to.offset < read_from.offset.saturating_add(length as i64);
    if overlaps && is_one_file(from, to) {
        return Err(Errno(libc::EINVAL));
    }
    repeat(length, |buffer| {
        let received = read_from.read(buffer)?;
        let copied = write_to.write(&buffer[..received])?;
        read_from.advance(copied)?;
        write_to.advance(copied)?;
        Ok(copied)
    })
}

between!(copy_file_range, copy_range);

/// Returns whether a pipe is ready at once.
fn is_ready(fd: c_int, events: i16) -> bool {
    let mut waiting = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: the pointer is to one structure.
    unsafe { libc::poll(&mut waiting, 1, 0) > 0 }
}

/// Moves data between a file and a pipe.
///
/// # Safety
///
/// The offsets are NULL or valid.
unsafe fn move_data(
    from: c_int,
    from_offset: *mut loff_t,
    to: c_int,
    to_offset: *mut loff_t,
    length: size_t,
    flags: c_uint,
) -> Outcome<ssize_t> {
    let (source, target) = (End::of(from)?, End::of(to)?);
    source.require_readable()?;
    target.require_writable()?;
    let pipe_offset = if source.is_pipe() { from_offset } else { to_offset };
    if !source.is_pipe() && !target.is_pipe() {
        return Err(Errno(libc::EINVAL));
    }
    if !pipe_offset.is_null() {
        return Err(Errno(libc::ESPIPE));
    }
    let waits = |pipe: &End| flags & libc::SPLICE_F_NONBLOCK == 0 && pipe.flags & libc::O_NONBLOCK == 0;
    if source.is_pipe() {
        if target.kind == libc::S_IFDIR || target.flags & libc::O_APPEND != 0 {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's promise.
        let mut position = unsafe { Position::new(to, to_offset) }?;
        let mut is_first = true;
        return repeat(length, |buffer| {
            // Like the kernel, only the first transfer waits.
            if !(is_first && waits(&source) || is_ready(from, libc::POLLIN)) {
                return Err(Errno(libc::EAGAIN));
            }
            is_first = false;
            // SAFETY: the buffer has this length.
            let received = checked(unsafe { libc::read(from, buffer.as_mut_ptr().cast(), buffer.len()) })?;
            if received > 0 {
                position.write(&buffer[..received])?;
                position.advance(received)?;
            }
            Ok(received)
        });
    }
    if source.kind == libc::S_IFDIR {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the caller's promise.
    let mut position = unsafe { Position::new(from, from_offset) }?;
    let mut is_first = true;
    repeat(length, |buffer| {
        let wanted = buffer.len().min(PIPE_BYTES);
        let received = position.read(&mut buffer[..wanted])?;
        if received == 0 {
            return Ok(0);
        }
        if !(is_first && waits(&target) || is_ready(to, libc::POLLOUT)) {
            return Err(Errno(libc::EAGAIN));
        }
        is_first = false;
        // SAFETY: the buffer has this length.
        let sent = checked(unsafe { libc::write(to, buffer.as_ptr().cast(), received) })?;
        position.advance(sent)?;
        Ok(sent)
    })
}

between!(splice, move_data);

wrap! {
    fn tee(from: c_int, to: c_int, length: size_t, flags: c_uint) -> ssize_t, |next| {
        if is_virtual(from) || is_virtual(to) {
            return errno::reply(Err(Errno(libc::EINVAL))); // both must be pipes
        }
        // SAFETY: any arguments are valid.
        unsafe { next(from, to, length, flags) }
    }
}

wrap! {
    fn vmsplice(fd: c_int, vector: *const iovec, number: size_t, flags: c_uint) -> ssize_t, |next| {
        if is_virtual(fd) {
            return errno::reply(Err(Errno(libc::EBADF))); // it must be a pipe
        }
        // SAFETY: the caller's arguments are valid for vmsplice(2).
        unsafe { next(fd, vector, number, flags) }
    }
}
