//! The real descriptor of a virtual file: a memfd, opened for writing only.
//!
//! In it the kernel keeps the position (lseek(2) on the descriptor), which processes that have
//! inherited the descriptor share. The placeholder describes the file, so that a program that was
//! executed with the descriptor finds the file again. The description is the name of the memfd,
//! which /proc/PID/fd shows:
//!
//! ```text
//! quell-file:FLAGS:PATH
//!
//! FLAGS   flags of open(2) in hexadecimal, without O_CREAT, O_EXCL, O_TRUNC, O_CLOEXEC
//! PATH    absolute
//! ```
//!
//! The name of a memfd cannot change and has at most 249 bytes. After a rename of the file, and for
//! a longer path, a header in the memfd, far beyond any file's data, replaces the name:
//!
//! ```text
//! HEADER_OFFSET +0   magic   8 bytes   "QUELLFD1"
//!               +8   flags   u32       as above
//!               +12  length  u32       of the path, in bytes; at most PATH_MAX
//!               +16  path    bytes     absolute
//! ```
//!
//! The first header doubles the time that creating and closing a placeholder takes, because the
//! kernel allocates memory for it. Therefore `spare_placeholders` reuses placeholders that have a
//! header.
//!
//! Numbers are little endian. Names and headers are written and read by processes of one user: a
//! memfd of another user is not accepted, because it would make this process use its own
//! permissions for a path that the other user chose.
//!
//! A read that does not pass through this library fails with EBADF. A write that does not, for
//! example a write of a statically linked program or of libc's stream for standard output, adds its
//! data to the memfd; `collected` finds it, and the open file writes it to the virtual file.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use libc::c_int;
use rustix::fs::{MemfdFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno as SystemError;

use crate::errno::{Errno, Outcome};

/// Larger than any offset of data; less than the largest offset of a memfd.
pub const HEADER_OFFSET: u64 = 1 << 62;

/// The unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

const MAGIC: &[u8; 8] = b"QUELLFD1";
const FIXED_BYTES: usize = 16;
/// The number of bytes that are collected at a time.
const COLLECTED_BYTES: usize = 1 << 20;
/// A run of at least this number of zeros is not treated as written data.
const ZERO_RUN_BYTES: usize = 16;
/// The time that a process waits for another one that collects the data of the same placeholder.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
const LOCK_PAUSE: Duration = Duration::from_millis(1);
/// The beginning of the name of a placeholder.
const NAME_START: &[u8] = b"quell-file:";
/// The largest name of a memfd, in bytes.
const NAME_BYTES_MAX: usize = 249;
/// In /proc/PID/fd, the target of a memfd's link is its name between these strings.
const LINK_START: &[u8] = b"/memfd:";
const LINK_END: &[u8] = b" (deleted)";

/// The description of a virtual file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The flags of open(2) that remain after the open.
    pub flags: c_int,
    /// The absolute path.
    pub path: Vec<u8>,
}

impl Header {
    /// Returns the name of a memfd that contains the description, unless it would be too long.
    fn name(&self) -> Option<Vec<u8>> {
        let mut name = NAME_START.to_vec();
        name.extend_from_slice(format!("{:x}:", self.flags as u32).as_bytes());
        name.extend_from_slice(&self.path);
        (name.len() <= NAME_BYTES_MAX).then_some(name)
    }

    /// Returns the description in the name of a placeholder.
    fn from_name(name: &[u8]) -> Option<Header> {
        let (flags, path) = name
            .strip_prefix(NAME_START)?
            .split_at_checked(name[NAME_START.len()..].iter().position(|byte| *byte == b':')?)?;
        let flags = u32::from_str_radix(std::str::from_utf8(flags).ok()?, 16).ok()?;
        let path = path[1..].to_vec();
        path.starts_with(b"/").then_some(Header { flags: flags as c_int, path })
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED_BYTES + self.path.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&(self.flags as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.path.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.path);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Header> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let length = word(12)? as usize;
        if !bytes.starts_with(MAGIC) || length > libc::PATH_MAX as usize {
            return None;
        }
        let path = bytes.get(FIXED_BYTES..FIXED_BYTES + length)?.to_vec();
        path.starts_with(b"/").then_some(Header { flags: word(8)? as c_int, path })
    }
}

/// Creates a placeholder with the lowest free number.
pub fn create(header: &Header, close_on_exec: bool) -> Outcome<OwnedFd> {
    let memfd = match header.name() {
        Some(name) => {
            let memfd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
            // With this size, the last page of data is collected as a whole, like all others.
            rustix::fs::ftruncate(&memfd, HEADER_OFFSET)?;
            memfd
        }
        None => {
            let memfd = rustix::fs::memfd_create(NAME_START, MemfdFlags::CLOEXEC)?;
            write_header(memfd.as_fd(), header)?;
            memfd
        }
    };
    let again =
        rustix::fs::open(proc_path(memfd.as_raw_fd()), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    // `dup3` replaces the description for reading and writing, which has the lower number, by the
    // one for writing only.
    let mut lower = memfd;
    let flags = if close_on_exec { rustix::io::DupFlags::CLOEXEC } else { rustix::io::DupFlags::empty() };
    rustix::io::dup3(&again, &mut lower, flags)?;
    Ok(lower)
}

/// Writes the description into a placeholder. It replaces the name or an earlier description.
pub fn write_header(memfd: BorrowedFd<'_>, header: &Header) -> Outcome<()> {
    let bytes = header.encode();
    match rustix::io::pwrite(memfd, &bytes, HEADER_OFFSET)? {
        written if written == bytes.len() => Ok(()),
        _ => Err(Errno(libc::EIO)),
    }
}

/// Replaces the description, after a rename.
pub fn set_header(fd: BorrowedFd<'_>, header: &Header) -> Outcome<()> {
    // A header, once written, replaces the name.
    if !has_pages(fd)
        && name_of(fd.as_raw_fd()).and_then(|name| Header::from_name(&name)).as_ref() == Some(header)
    {
        return Ok(());
    }
    let again = rustix::fs::open(proc_path(fd.as_raw_fd()), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    write_header(again.as_fd(), header)
}

fn proc_path(fd: c_int) -> String {
    format!("/proc/self/fd/{fd}")
}

/// Returns the name of a memfd.
fn name_of(fd: c_int) -> Option<Vec<u8>> {
    let link = rustix::fs::readlink(proc_path(fd), Vec::new()).ok()?.into_bytes();
    link.strip_prefix(LINK_START)?.strip_suffix(LINK_END).map(<[u8]>::to_vec)
}

/// Returns the description if `fd` is a placeholder that this user created.
pub fn read(fd: c_int) -> Option<Header> {
    let name = name_of(fd).filter(|name| name.starts_with(NAME_START))?;
    let memfd = rustix::fs::open(proc_path(fd), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    if rustix::fs::fstat(&memfd).ok()?.st_uid != rustix::process::geteuid().as_raw() {
        return None;
    }
    let mut bytes = vec![0; FIXED_BYTES + libc::PATH_MAX as usize];
    match rustix::io::pread(&memfd, &mut bytes, HEADER_OFFSET).ok()? {
        0 => Header::from_name(&name),
        length => Header::decode(&bytes[..length]),
    }
}

/// Returns the position that the processes with this descriptor share.
pub fn position(fd: BorrowedFd<'_>) -> Outcome<u64> {
    Ok(rustix::fs::seek(fd, SeekFrom::Current(0))?)
}

/// Sets the position.
pub fn set_position(fd: BorrowedFd<'_>, position: u64) -> Outcome<()> {
    rustix::fs::seek(fd, SeekFrom::Start(position))?;
    Ok(())
}

/// Moves the position forward by `bytes`, and returns the position before. No other process gets
/// the same range.
pub fn reserve(fd: BorrowedFd<'_>, bytes: usize) -> Outcome<u64> {
    let bytes = i64::try_from(bytes).map_err(|_| Errno(libc::EINVAL))?;
    let end = rustix::fs::seek(fd, SeekFrom::Current(bytes))?;
    Ok(end - bytes as u64)
}

/// Moves the position back, after less was transferred than was reserved.
pub fn give_back(fd: BorrowedFd<'_>, bytes: usize) -> Outcome<()> {
    if bytes > 0 {
        rustix::fs::seek(fd, SeekFrom::Current(-(bytes as i64)))?;
    }
    Ok(())
}

/// Excludes other processes that collect data of the same placeholder, until the returned
/// description is closed. A lock of flock(2) is not used: the program that writes the data may hold
/// such a lock on a description that it shares with this process. Errors: ETIMEDOUT.
fn lock_for_collecting(memfd: &OwnedFd) -> Outcome<()> {
    let begun = Instant::now();
    loop {
        // SAFETY: the structure consists of integers, for which zero bytes are valid.
        let mut range: libc::flock = unsafe { std::mem::zeroed() };
        range.l_type = libc::F_WRLCK as _;
        range.l_whence = libc::SEEK_SET as _;
        range.l_start = HEADER_OFFSET as libc::off_t;
        range.l_len = 1;
        // rustix has no locks of open file descriptions.
        // SAFETY: the descriptor is open, and the pointer is to a structure of this function.
        let locked = unsafe {
            crate::next::system_call()(libc::SYS_fcntl, memfd.as_raw_fd(), libc::F_OFD_SETLK, &raw mut range)
        };
        match crate::errno::get() {
            _ if locked == 0 => return Ok(()),
            libc::EAGAIN | libc::EACCES if begun.elapsed() < LOCK_WAIT_MAX => {
                std::thread::sleep(LOCK_PAUSE);
            }
            libc::EAGAIN | libc::EACCES => return Err(Errno(libc::ETIMEDOUT)),
            number => return Err(Errno(number)),
        }
    }
}

/// Removes data from the placeholder. Returns the length of the data, and the position up to which
/// other processes had written at that time. A process that writes at the same time, one write
/// after the other, loses no data: only the bytes that were read are overwritten with zeros, and
/// the pages are removed when the position is behind them, or has not changed.
fn take(fd: BorrowedFd<'_>, memfd: &OwnedFd, buffer: &mut [u8], start: u64) -> Outcome<(usize, u64)> {
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    let before = position(fd)?;
    let length = rustix::io::pread(memfd, &mut *buffer, start)?;
    if before >= start + length as u64 {
        rustix::fs::fallocate(memfd, punch, start, length as u64)?;
        return Ok((length, before));
    }
    let mut taken = Vec::new();
    let stable = loop {
        for (at, bytes) in data_runs(&buffer[..length]) {
            rustix::io::pwrite(memfd, &vec![0; bytes.len()], start + at as u64)?;
            taken.push((at, bytes.to_vec()));
        }
        let current = position(fd)?;
        rustix::io::pread(memfd, &mut buffer[..length], start)?;
        if buffer[..length].iter().all(|byte| *byte == 0) && position(fd)? == current {
            break current;
        }
    };
    rustix::fs::fallocate(memfd, punch, start, length as u64)?;
    for (at, bytes) in taken {
        buffer[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    Ok((length, stable))
}

/// The data that is collected from a placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The pages before the position. A program that writes at the same time does not write there.
    WholePages,
    /// All data, after the program that wrote it has ended.
    All,
}

/// Passes the data that was written to the placeholder without this library to `write`, with its
/// offsets, and removes it from the placeholder. The kernel keeps whole pages: zeros around the
/// data are left out. Returns the number of zeros that were written after the last data, as the
/// position shows, and their offset. Data that `write` refuses stays in the placeholder.
pub fn collected(
    fd: BorrowedFd<'_>,
    part: Part,
    write: &mut dyn FnMut(&[u8], u64) -> Outcome<()>,
) -> Outcome<Option<(u64, u64)>> {
    // Reading needs another description, with a position of its own.
    let memfd = rustix::fs::open(proc_path(fd.as_raw_fd()), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // A process that shares the placeholder must not collect the same data.
    lock_for_collecting(&memfd)?;
    let mut buffer = vec![0; COLLECTED_BYTES];
    let (mut start, mut last_data) = (0, 0);
    let mut written_to = position(fd)?;
    let limit = match part {
        Part::WholePages => written_to / page_bytes() * page_bytes(),
        Part::All => HEADER_OFFSET,
    };
    loop {
        let data = match rustix::fs::seek(&memfd, SeekFrom::Data(start)) {
            // Another process may have written before `start` meanwhile. That data is collected the
            // next time, so that appended data keeps its order.
            Ok(data)
                if data < limit && (start == 0 || limit <= written_to || position(fd)? == written_to) =>
            {
                data
            }
            Ok(_) | Err(SystemError::NXIO) => {
                let zeros =
                    written_to.min(start).min(limit).checked_sub(last_data).filter(|zeros| *zeros > 0);
                return Ok(zeros.map(|zeros| (zeros, last_data)));
            }
            Err(error) => return Err(error.into()),
        };
        // Zeros before this page are followed by data.
        last_data = last_data.max(if data > start { data } else { 0 });
        let hole = rustix::fs::seek(&memfd, SeekFrom::Hole(data))?.min(limit);
        let length_max = ((hole - data) as usize).min(buffer.len());
        let length;
        (length, written_to) = take(fd, &memfd, &mut buffer[..length_max], data)?;
        if length == 0 {
            return Ok(None);
        }
        for (at, bytes) in data_runs(&buffer[..length]) {
            if let Err(error) = write(bytes, data + at as u64) {
                rustix::io::pwrite(&memfd, &buffer[at..length], data + at as u64)?;
                return Err(error);
            }
            last_data = data + (at + bytes.len()) as u64;
        }
        start = data + length as u64;
    }
}

/// Returns the runs of bytes between runs of at least `ZERO_RUN_BYTES` zeros, and their positions.
fn data_runs(bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte != 0) {
        match runs.last_mut() {
            Some((_, end)) if at - *end < ZERO_RUN_BYTES => *end = at + 1,
            _ => runs.push((at, at + 1)),
        }
    }
    runs.into_iter().map(|(start, end)| (start, &bytes[start..end])).collect()
}

fn has_pages(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|found| found.st_blocks > 0)
}

/// Returns whether data was written to the placeholder without this library.
pub fn has_uncollected_data(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|found| has_more_than_header(&found)) && has_data(fd)
}

/// Returns whether a placeholder has more pages than its header needs. Only a header is beyond
/// `HEADER_OFFSET`.
fn has_more_than_header(found: &rustix::fs::Stat) -> bool {
    let header_bytes = (found.st_size as u64).saturating_sub(HEADER_OFFSET);
    found.st_blocks as u64 * BLOCK_BYTES > header_bytes.next_multiple_of(page_bytes())
}

/// Returns the creator of a placeholder, if it has no data before the header.
pub fn owner_if_empty(fd: BorrowedFd<'_>) -> Option<u32> {
    let found = rustix::fs::fstat(fd).ok()?;
    (!has_more_than_header(&found)).then_some(found.st_uid)
}

/// Returns whether a placeholder has no data before the header. Its position changes.
fn is_empty(fd: BorrowedFd<'_>) -> bool {
    match rustix::fs::seek(fd, SeekFrom::Data(0)) {
        Ok(first) => first >= HEADER_OFFSET,
        Err(error) => error == SystemError::NXIO,
    }
}

/// Returns whether the placeholder has data before the header. The position of `fd` does not
/// change.
fn has_data(fd: BorrowedFd<'_>) -> bool {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(proc_path(fd.as_raw_fd()), flags, Mode::empty()) {
        Ok(again) => !is_empty(again.as_fd()),
        // The error is reported when the data is collected.
        Err(_) => true,
    }
}

fn page_bytes() -> u64 {
    // SAFETY: sysconf has no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

/// Borrows a descriptor by its number.
pub fn borrow<'a>(fd: c_int) -> BorrowedFd<'a> {
    // SAFETY: the callers pass the number of an open descriptor in the table; if another thread has
    // closed it meanwhile, the system call fails or uses the new one, as in a program without this
    // library.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Takes the ownership of a number.
pub fn own(fd: c_int) -> OwnedFd {
    // SAFETY: the callers pass a number that they have removed from the table.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Returns the number of a descriptor, which remains open.
pub fn leak(fd: OwnedFd) -> c_int {
    std::os::fd::IntoRawFd::into_raw_fd(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_around_data_are_left_out() {
        let mut page = [0; 4096];
        page[5..10].copy_from_slice(b"he\0lo");
        page[100] = b'x';
        assert_eq!(data_runs(&page), [(5, &b"he\0lo"[..]), (100, &b"x"[..])]);
        assert_eq!(data_runs(&[0; 4096]), []);
        assert_eq!(data_runs(b"ab"), [(0, &b"ab"[..])]);
    }

    #[test]
    fn a_name_is_decoded_and_damaged_ones_are_refused() {
        let header =
            Header { flags: libc::O_RDWR | libc::O_APPEND, path: b"/scratch/a:b (deleted)".to_vec() };
        let name = header.name().unwrap();
        assert_eq!(Header::from_name(&name), Some(header));
        for damaged in [
            &b"quell-file:"[..],
            b"quell-file:2",
            b"quell-file:2:",
            b"quell-file:2:a",
            b"quell-file:x:/a",
            b"other:2:/a",
        ] {
            assert_eq!(Header::from_name(damaged), None, "{}", damaged.escape_ascii());
        }
        let bytes_of_others = NAME_START.len() + "2:".len();
        let path = |bytes| [b"/".as_slice(), &vec![b'a'; bytes - 1]].concat();
        let longest = NAME_BYTES_MAX - bytes_of_others;
        assert!(Header { flags: 2, path: path(longest) }.name().is_some());
        assert_eq!(Header { flags: 2, path: path(longest + 1) }.name(), None);
    }

    #[test]
    fn a_placeholder_describes_its_file_by_its_name_or_by_its_header() {
        let long = [b"/".as_slice(), &[b'a'; 300]].concat();
        for path in [b"/scratch/a".to_vec(), long] {
            let header = Header { flags: libc::O_WRONLY, path };
            let fd = create(&header, true).unwrap();
            assert_eq!(read(fd.as_raw_fd()), Some(header.clone()));
            set_header(borrow(fd.as_raw_fd()), &header).unwrap();
            assert!(!has_uncollected_data(borrow(fd.as_raw_fd())));
            let renamed = Header { path: b"/scratch/b".to_vec(), ..header };
            set_header(borrow(fd.as_raw_fd()), &renamed).unwrap();
            assert_eq!(read(fd.as_raw_fd()), Some(renamed.clone()));
            assert!(!has_uncollected_data(borrow(fd.as_raw_fd())));
            rustix::io::write(&fd, b"data").unwrap();
            assert!(has_uncollected_data(borrow(fd.as_raw_fd())));
            assert_eq!(position(borrow(fd.as_raw_fd())).unwrap(), 4);
            assert_eq!(read(fd.as_raw_fd()), Some(renamed));
        }
    }

    #[test]
    fn a_header_is_decoded_and_damaged_ones_are_refused() {
        let header = Header { flags: libc::O_RDWR | libc::O_APPEND, path: b"/scratch/run/a".to_vec() };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        for length in 0..bytes.len() {
            assert_eq!(Header::decode(&bytes[..length]), None);
        }
        let mut long = bytes.clone();
        long[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Header::decode(&long), None);
        let mut relative = bytes;
        relative[16] = b'x';
        assert_eq!(Header::decode(&relative), None);
    }
}
