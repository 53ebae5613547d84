//! Memory that two processes share: the segment of a client, and the status page of the daemon.
//!
//! The other process can write a segment at any time. In the daemon, all accesses are therefore
//! atomic loads and stores: Rust defines their result whatever the other process does. The client
//! also lends slices of a payload, see [`Segment::payload_mut`].

// Mapping memory, and references to words in a mapping, are unsafe in every library.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use quell_vfs::{Error, ErrorKind, Result};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::layout::{
    AWAKE, CLIENTS, PAGE_BYTES, PAYLOAD_BYTES_MAX, PENDING, SEGMENT_BYTES, VERSION, WATCHED, counter,
    payload, processor, reply_bytes, request_bytes, state,
};

/// Without these seals, the other process could truncate the memfd, and a read behind its end would
/// then kill the reading process (SIGBUS).
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

fn failed(operation: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |cause| Error::from_io(cause.into(), operation, "shared memory")
}

/// A mapping, which is removed when the value is dropped.
#[derive(Debug)]
struct Mapping {
    address: NonNull<u8>,
    size_bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; the methods access it with atomic
// operations only, or state their requirements.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(memfd: impl AsFd, size_bytes: usize, access: ProtFlags) -> Result<Mapping> {
        // SAFETY: the kernel chooses an address that is not in use.
        let address =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), size_bytes, access, MapFlags::SHARED, memfd, 0) };
        let address = NonNull::new(address.map_err(failed("map"))?.cast()).expect("an address is not null");
        Ok(Mapping { address, size_bytes })
    }

    fn anonymous(size_bytes: usize) -> Result<Mapping> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address that is not in use.
        let address = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), size_bytes, access, MapFlags::PRIVATE)
        };
        let address = NonNull::new(address.map_err(failed("map"))?.cast()).expect("an address is not null");
        Ok(Mapping { address, size_bytes })
    }

    fn at<T>(&self, offset: usize) -> NonNull<T> {
        assert!(offset.is_multiple_of(align_of::<T>()) && offset + size_of::<T>() <= self.size_bytes);
        // SAFETY: the offset lies within the mapping.
        unsafe { self.address.add(offset) }.cast()
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `at` checked range and alignment, the mapping lives as long as `self`, every bit
        // pattern is valid, and all accesses of this process are atomic.
        unsafe { self.at::<AtomicU32>(offset).as_ref() }
    }

    fn long(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as in `word`.
        unsafe { self.at::<AtomicU64>(offset).as_ref() }
    }

    fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: as in `word`.
        unsafe { self.at::<AtomicU8>(offset).as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by this value, and no reference to it outlives the value.
        // The call cannot fail for a range that mmap(2) returned.
        let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.size_bytes) };
    }
}

fn create(name: &str, size_bytes: usize) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memfd = rustix::fs::memfd_create(name, flags).map_err(failed("create"))?;
    rustix::fs::ftruncate(&memfd, size_bytes as u64).map_err(failed("allocate"))?;
    Ok(memfd)
}

/// Checks in the client that a memfd has the right size, which cannot change.
fn check_size(memfd: &OwnedFd, size_bytes: usize) -> Result<()> {
    let seals = rustix::fs::fcntl_get_seals(memfd).map_err(failed("inspect"))?;
    let found = rustix::fs::fstat(memfd).map_err(failed("inspect"))?.st_size;
    match seals.contains(SIZE_SEALS) && found == size_bytes as i64 {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Damaged, "map", "shared memory of the daemon")),
    }
}

/// The segment of one client.
#[derive(Debug)]
pub(super) struct Segment(Mapping);

impl Segment {
    /// Creates the segment of a client in the daemon; returns also the memfd for the client.
    pub(super) fn create() -> Result<(Segment, OwnedFd)> {
        let memfd = create("quell-channel", SEGMENT_BYTES)?;
        rustix::fs::fcntl_add_seals(&memfd, SIZE_SEALS | SealFlags::SEAL).map_err(failed("seal"))?;
        let mapping = Mapping::of(&memfd, SEGMENT_BYTES, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok((Segment(mapping), memfd))
    }

    /// Maps a segment in the client.
    pub(super) fn open(memfd: &OwnedFd) -> Result<Segment> {
        check_size(memfd, SEGMENT_BYTES)?;
        Ok(Segment(Mapping::of(memfd, SEGMENT_BYTES, ProtFlags::READ | ProtFlags::WRITE)?))
    }

    pub(super) fn pending(&self) -> &AtomicU64 {
        self.0.long(PENDING)
    }

    pub(super) fn watched(&self) -> &AtomicU32 {
        self.0.word(WATCHED)
    }

    pub(super) fn counter(&self, number: usize) -> &AtomicU64 {
        self.0.long(counter(number))
    }

    pub(super) fn state(&self, slot: usize) -> &AtomicU32 {
        self.0.word(state(slot))
    }

    pub(super) fn request_bytes(&self, slot: usize) -> &AtomicU32 {
        self.0.word(request_bytes(slot))
    }

    pub(super) fn reply_bytes(&self, slot: usize) -> &AtomicU32 {
        self.0.word(reply_bytes(slot))
    }

    pub(super) fn processor(&self, slot: usize) -> &AtomicU32 {
        self.0.word(processor(slot))
    }

    /// Copies the beginning of a payload, which the other process may be writing.
    pub(super) fn copy_out(&self, slot: usize, bytes: &mut [u8]) {
        assert!(bytes.len() <= PAYLOAD_BYTES_MAX);
        let mut offset = payload(slot);
        let mut longs = bytes.chunks_exact_mut(8);
        for to in &mut longs {
            to.copy_from_slice(&self.0.long(offset).load(Ordering::Relaxed).to_ne_bytes());
            offset += 8;
        }
        for to in longs.into_remainder() {
            *to = self.0.byte(offset).load(Ordering::Relaxed);
            offset += 1;
        }
    }

    /// Writes bytes to the beginning of a payload, which the other process may be reading.
    pub(super) fn copy_in(&self, slot: usize, bytes: &[u8]) {
        assert!(bytes.len() <= PAYLOAD_BYTES_MAX);
        let mut offset = payload(slot);
        let longs = bytes.chunks_exact(8);
        let rest = longs.remainder();
        for from in longs {
            let long = u64::from_ne_bytes(from.try_into().expect("it has 8 bytes"));
            self.0.long(offset).store(long, Ordering::Relaxed);
            offset += 8;
        }
        for from in rest {
            self.0.byte(offset).store(*from, Ordering::Relaxed);
            offset += 1;
        }
    }

    /// Lends the payload of a slot to the client. The daemon is assumed to follow the protocol: the
    /// client has checked that the daemon is a process of the same user, which could write all
    /// memory of this process (ptrace(2)).
    ///
    /// # Safety
    ///
    /// The slot belongs to the calling thread, by the client's table of slots, and its state is
    /// idle or replied, in which the daemon does not write it.
    #[allow(clippy::mut_from_ref)] // the table of slots gives each slot to one thread
    pub(super) unsafe fn payload_mut(&self, slot: usize) -> &mut [u8] {
        let first = self.0.at::<[u8; PAYLOAD_BYTES_MAX]>(payload(slot));
        // SAFETY: `at` checked the range; the caller guarantees that nothing else accesses it.
        unsafe { &mut *first.as_ptr() }
    }
}

/// The status page in the daemon.
#[derive(Debug)]
pub(super) struct StatusPage(Mapping);

impl StatusPage {
    /// Creates the page; returns also the memfd for clients, through which it cannot be written.
    pub(super) fn create() -> Result<(StatusPage, OwnedFd)> {
        let memfd = create("quell-daemon-status", PAGE_BYTES)?;
        let mapping = Mapping::of(&memfd, PAGE_BYTES, ProtFlags::READ | ProtFlags::WRITE)?;
        let seals = SIZE_SEALS | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&memfd, seals).map_err(failed("seal"))?;
        Ok((StatusPage(mapping), memfd))
    }

    pub(super) fn set(&self, daemon: Daemon) {
        self.0.word(AWAKE).store(daemon.encode(), Ordering::SeqCst);
    }

    pub(super) fn set_clients(&self, count: u32) {
        self.0.word(CLIENTS).store(count, Ordering::Relaxed);
    }

    pub(super) fn increase_version(&self) {
        self.0.long(VERSION).fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn set_version(&self, version: u64) {
        self.0.long(VERSION).store(version, Ordering::SeqCst);
    }

    pub(super) fn is_sleeping(&self) -> bool {
        Daemon::decode(self.0.word(AWAKE).load(Ordering::SeqCst)) == Daemon::Sleeping
    }
}

/// The content of the status page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Daemon {
    /// The service thread sleeps or is about to sleep: a doorbell wakes it.
    Sleeping,
    /// The service thread looks for requests, or will do so before it sleeps. It has last run on
    /// this processor.
    AwakeOn(u32),
}

impl Daemon {
    fn encode(self) -> u32 {
        match self {
            Daemon::Sleeping => 0,
            Daemon::AwakeOn(processor) => processor + 1,
        }
    }

    fn decode(word: u32) -> Daemon {
        word.checked_sub(1).map_or(Daemon::Sleeping, Daemon::AwakeOn)
    }
}

/// The status page in a client, which can only read it.
#[derive(Debug)]
pub(super) struct StatusView(Mapping);

impl StatusView {
    pub(super) fn open(memfd: &OwnedFd) -> Result<StatusView> {
        check_size(memfd, PAGE_BYTES)?;
        Ok(StatusView(Mapping::of(memfd, PAGE_BYTES, ProtFlags::READ)?))
    }

    pub(super) fn daemon(&self) -> Daemon {
        Daemon::decode(self.0.word(AWAKE).load(Ordering::SeqCst))
    }

    /// Returns the number of clients with recent requests.
    pub(super) fn clients(&self) -> u32 {
        self.0.word(CLIENTS).load(Ordering::Relaxed)
    }

    pub(super) fn version(&self) -> u64 {
        self.0.long(VERSION).load(Ordering::SeqCst)
    }
}

/// Tells a process from its forked children. A comparison of process ids would need a system call,
/// and could be wrong with nested namespaces of process ids.
#[derive(Debug)]
pub(super) struct ForkMark(Mapping);

impl ForkMark {
    /// Marks the calling process.
    pub(super) fn new() -> Result<ForkMark> {
        let mapping = Mapping::anonymous(PAGE_BYTES)?;
        let address = mapping.address.as_ptr().cast();
        // SAFETY: the advice concerns the mapping that was made above, in forked children.
        unsafe { rustix::mm::madvise(address, PAGE_BYTES, Advice::LinuxWipeOnFork) }
            .map_err(failed("mark"))?;
        mapping.word(0).store(1, Ordering::Relaxed);
        Ok(ForkMark(mapping))
    }

    /// Returns whether the calling process is the one that was marked, or its vfork(2) child, which
    /// shares its memory.
    pub(super) fn is_marked(&self) -> bool {
        self.0.word(0).load(Ordering::Relaxed) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_copied_at_every_length_and_slot() {
        let (segment, _memfd) = Segment::create().unwrap();
        let bytes: Vec<u8> = (0..PAYLOAD_BYTES_MAX).map(|i| (i * 7 % 251) as u8 + 1).collect();
        for (slot, length) in (0..super::super::SLOTS).zip([0, 1, 7, 8, 9, 64, 4095, PAYLOAD_BYTES_MAX]) {
            segment.copy_in(slot, &bytes[..length]);
            let mut found = vec![0; PAYLOAD_BYTES_MAX];
            segment.copy_out(slot, &mut found);
            assert!(found[..length] == bytes[..length] && found[length..].iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn a_client_maps_only_memory_that_keeps_its_size() {
        let open = create("open", SEGMENT_BYTES).unwrap();
        assert_eq!(Segment::open(&open).unwrap_err().kind, ErrorKind::Damaged);
        let small = create("small", PAGE_BYTES).unwrap();
        rustix::fs::fcntl_add_seals(&small, SIZE_SEALS).unwrap();
        assert_eq!(Segment::open(&small).unwrap_err().kind, ErrorKind::Damaged);
        StatusView::open(&small).unwrap();
    }

    #[test]
    fn a_client_cannot_write_the_status_page_or_change_the_size_of_its_segment() {
        let (_page, memfd) = StatusPage::create().unwrap();
        assert!(Mapping::of(&memfd, PAGE_BYTES, ProtFlags::READ | ProtFlags::WRITE).is_err());
        assert!(rustix::io::pwrite(&memfd, b"x", 0).is_err());
        let (_segment, memfd) = Segment::create().unwrap();
        assert!(rustix::fs::ftruncate(&memfd, 0).is_err());
        assert!(rustix::fs::fcntl_add_seals(&memfd, SealFlags::WRITE).is_err());
    }
}
