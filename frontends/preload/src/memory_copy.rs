//! Copies of virtual files in memfds, for programs, libraries and mappings that the kernel reads.

use std::os::fd::OwnedFd;

use rustix::fs::MemfdFlags;

use crate::errno::Outcome;

const CHUNK_BYTES: usize = 1 << 20;

/// Copies a file to a new memfd. `read` fills a buffer from an offset, and returns 0 at the end of
/// the file.
pub fn copy(name: &str, mut read: impl FnMut(&mut [u8], u64) -> Outcome<usize>) -> Outcome<OwnedFd> {
    let memfd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut offset = 0;
    loop {
        let length = read(&mut buffer, offset)?;
        if length == 0 {
            return Ok(memfd);
        }
        write_at(&memfd, &buffer[..length], offset)?;
        offset += length as u64;
    }
}

/// Writes all bytes at an offset.
pub fn write_at(memfd: &OwnedFd, bytes: &[u8], offset: u64) -> Outcome<()> {
    let mut written = 0;
    while written < bytes.len() {
        written += rustix::io::pwrite(memfd, &bytes[written..], offset + written as u64)?;
    }
    Ok(())
}
