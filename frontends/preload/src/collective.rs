//! The functions of quell_collective.h, which `libquell_mpi.so` calls: the ranks of a job read the
//! index of a file together (Parallel Index Read, section IV-B of the PLFS paper), and a rank makes
//! the data of others visible in a file that it has open.

use libc::{c_char, c_int, c_void, size_t};
use quell_log::LogFs;
use quell_vfs::{NodeRef, OpenMode, WritableFile};

use crate::descriptors::{self, Description};
use crate::errno::{Errno, Outcome};
use crate::guard::inside;
use crate::resolve::LastLink;
use crate::view::{self, VirtualDir};
use crate::wrappers::{Target, find, if_virtual};

/// The largest sum of the shares of an index that the ranks exchange, in bytes. Above it each rank
/// reads the index alone.
const EXCHANGED_BYTES_MAX: usize = 512 << 20;

/// `struct quell_block`: bytes of one rank.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Block {
    bytes: *const c_void,
    length: size_t,
}

/// `struct quell_job`: the ranks that open a file together.
#[repr(C)]
pub struct Job {
    rank: c_int,
    ranks: c_int,
    context: *mut c_void,
    broadcast: extern "C" fn(*mut c_void, *mut c_void, size_t) -> c_int,
    exchange: extern "C" fn(*mut c_void, *const Block, size_t, *mut *const Block, *mut size_t) -> c_int,
}

/// A file that this rank keeps open with the index that all ranks have read.
pub struct CollectiveFile {
    file: Box<dyn WritableFile>,
    generation: u32,
    /// Dropped after the file.
    found: NodeRef<'static>,
}

/// A file of a log directory.
struct LogEntry {
    log: &'static LogFs,
    found: NodeRef<'static>,
}

/// Opens the index of a file by all ranks of a job together; quell_collective.h describes it.
///
/// # Safety
///
/// `path` is a string that ends with a NUL, `job` has valid functions, and `held` is a variable for
/// the result.
// SAFETY: no other symbol has this name; the section above states the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_collective_open(
    path: *const c_char,
    job: *const Job,
    held: *mut *mut CollectiveFile,
) -> c_int {
    // SAFETY: the caller's promise.
    let job = unsafe {
        *held = std::ptr::null_mut();
        &*job
    };
    // SAFETY: the caller's promise.
    let entry = unsafe { log_entry(path) };
    // Every rank takes part in each exchange, also after an error of its own.
    let own_logs = match &entry {
        Ok(entry) if job.rank == 0 => inside(|| Ok(entry.log.index_logs(entry.found.node())?)),
        _ => Ok(0),
    };
    let mut logs = own_logs.unwrap_or(0) as u64;
    let sent = (job.broadcast)(job.context, (&raw mut logs).cast(), size_of::<u64>());
    if sent != 0 || logs == 0 || job.ranks < 2 {
        return sent;
    }
    let share = entry.as_ref().map_or(Ok(Vec::new()), |entry| read_share(entry, job, logs as usize));
    // A share that cannot be read is left out: its data is found through the index logs.
    let share = share.unwrap_or_default();
    let own = Block { bytes: share.as_ptr().cast(), length: share.len() };
    let (mut blocks, mut count) = (std::ptr::null(), 0);
    let exchanged = (job.exchange)(job.context, &own, EXCHANGED_BYTES_MAX, &mut blocks, &mut count);
    if exchanged != 0 {
        return exchanged;
    }
    let opened = inside(move || {
        // SAFETY: the function has returned these blocks, which are valid during this call.
        let shares = unsafe { copied(blocks, count) };
        let LogEntry { log, found } = entry?;
        let mode = OpenMode { read: true, write: false, truncate: false };
        let file = log.open_with_shares(&view::context(), found.node(), mode, shares)?;
        Ok(Box::into_raw(Box::new(CollectiveFile { file, generation: view::generation(), found })))
    });
    match opened {
        Ok(opened) => {
            // SAFETY: the caller's promise.
            unsafe { *held = opened };
            0
        }
        Err(Errno(number)) => -number,
    }
}

/// Releases the index; does nothing for NULL.
///
/// # Safety
///
/// `held` is NULL or a result of `quell_collective_open` that is not used afterwards.
// SAFETY: no other symbol has this name; the section above states the requirements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_collective_release(held: *mut CollectiveFile) {
    if held.is_null() {
        return;
    }
    let _ = inside(|| {
        // SAFETY: the caller's promise.
        if unsafe { (*held).generation } != view::generation() {
            return Ok(()); // it belongs to the parent process
        }
        // SAFETY: the caller's promise.
        let held = unsafe { Box::from_raw(held) };
        let CollectiveFile { file, found, .. } = *held;
        // The file was open only for reading, so its close reports no failed write.
        let closed = file.close();
        drop(found);
        Ok(closed?)
    });
}

/// Makes the published data of other processes visible in the files that this process has open at
/// `path`. Returns 0 or a negative error number.
///
/// # Safety
///
/// `path` is a string that ends with a NUL.
// SAFETY: no other symbol has this name; the section above states the requirement.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_collective_sync(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let synced = unsafe {
        if_virtual(libc::AT_FDCWD, path, LastLink::Follow, |entry| {
            let node = entry.node()?.node();
            for (_, description) in descriptors::all() {
                if let Description::File(file) = &*description
                    && is_same_dir(file.dir, entry.dir)
                    && let Some(file) = file.opened_as(node)
                {
                    file.sync()?;
                }
            }
            Ok(())
        })
    };
    match synced {
        None | Some(Ok(())) => 0,
        Some(Err(Errno(number))) => -number,
    }
}

fn is_same_dir(a: &'static VirtualDir, b: &'static VirtualDir) -> bool {
    std::ptr::eq(a, b)
}

/// Finds a file of a log directory.
///
/// # Safety
///
/// `path` is a string that ends with a NUL.
unsafe fn log_entry(path: *const c_char) -> Outcome<LogEntry> {
    // SAFETY: the caller's promise.
    match unsafe { find(libc::AT_FDCWD, path, LastLink::Follow) }? {
        Target::Virtual(entry) => inside(|| {
            let entry = *entry.into_inner()?;
            let log = entry.dir.log()?;
            entry.node()?;
            let found = entry.found.ok_or(Errno(libc::ENOENT))?;
            Ok(LogEntry { log, found })
        }),
        Target::Native | Target::Elsewhere(_) => Err(Errno(libc::EINVAL)),
    }
}

/// Reads the share of this rank. The shares are spread over the ranks, and so over the nodes; the
/// result is empty for a rank that has no share.
fn read_share(entry: &LogEntry, job: &Job, logs: usize) -> Outcome<Vec<u8>> {
    let (rank, ranks) = (job.rank as usize, job.ranks as usize);
    let shares = logs.min(ranks);
    let number = rank * shares / ranks;
    if rank > 0 && (rank - 1) * shares / ranks == number {
        return Ok(Vec::new());
    }
    inside(|| Ok(entry.log.read_share(entry.found.node(), number, shares)?))
}

/// Copies the blocks of an exchange.
///
/// # Safety
///
/// `blocks` has `count` elements, each with `length` bytes.
unsafe fn copied(blocks: *const Block, count: usize) -> Vec<Vec<u8>> {
    if count == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    let blocks = unsafe { std::slice::from_raw_parts(blocks, count) };
    let bytes = |block: &Block| {
        // SAFETY: the caller's promise. Blocks without bytes are left out.
        unsafe { std::slice::from_raw_parts(block.bytes.cast::<u8>(), block.length) }.to_vec()
    };
    blocks.iter().map(bytes).collect()
}
