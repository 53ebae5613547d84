//! Uses the placeholders of closed files again for files that are opened later. To create a
//! placeholder, the kernel allocates an inode, and opens it a second time for writing only; this
//! was the largest part of the processor time of a create in a pool.
//!
//! A placeholder is kept only if this process has created it, and no other process can have its
//! open file description. Otherwise that process would share the position of another file, and a
//! program that it executes would find the header of the other file. `descriptors` therefore
//! records which placeholders are shared: those that existed when the process was forked, executed
//! or spawned a program, or sent a descriptor, and those that the process has received itself. The
//! library does not notice a process that the program creates with the clone system call directly,
//! without libc, unless system calls are dispatched.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;

use quell_threads::try_lock;

use crate::errno::Outcome;
use crate::own_descriptors;
use crate::placeholder::{self, Header};
use crate::process_id::process_id;

/// The maximum number of placeholders that are kept. Each has a page of memory.
const SPARES_MAX: usize = 16;

/// The placeholders, at descriptor numbers that the library reserves for itself.
struct Spares {
    /// The process that has opened them. A forked child closes its copies.
    process: u32,
    placeholders: Vec<Spare>,
}

/// A placeholder without data, at position 0.
struct Spare {
    fd: ManuallyDrop<OwnedFd>,
    /// The user that has created it.
    uid: u32,
}

/// A thread that finds this locked creates or closes a placeholder instead of waiting. In a child,
/// it stays locked if another thread of the parent held the lock during the fork.
static SPARES: Mutex<Spares> = Mutex::new(Spares { process: 0, placeholders: Vec::new() });

/// Uses the placeholder of a closed file again, or creates one. The descriptor has the lowest free
/// number.
pub fn take_or_create(header: &Header, close_on_exec: bool) -> Outcome<OwnedFd> {
    match take(header, close_on_exec) {
        Some(spare) => Ok(spare),
        None => placeholder::create(header, close_on_exec),
    }
}

/// Returns `None` if there is no spare placeholder, or if it cannot be prepared.
fn take(header: &Header, close_on_exec: bool) -> Option<OwnedFd> {
    let spare = {
        let mut spares = try_lock(&SPARES)?;
        match spares.process == process_id() {
            true => spares.placeholders.pop()?,
            false => return None,
        }
    };
    let fd = ManuallyDrop::into_inner(spare.fd);
    // A program does not accept a placeholder that another user has created.
    let prepared = match spare.uid == rustix::process::geteuid().as_raw() {
        true => prepare(&fd, header, close_on_exec),
        false => None,
    };
    own_descriptors::remove(fd.as_raw_fd());
    prepared
}

fn prepare(spare: &OwnedFd, header: &Header, close_on_exec: bool) -> Option<OwnedFd> {
    placeholder::write_header(spare.as_fd(), header).ok()?;
    let lowest = rustix::io::fcntl_dupfd_cloexec(spare, 0).ok()?;
    if !close_on_exec {
        rustix::io::fcntl_setfd(&lowest, rustix::io::FdFlags::empty()).ok()?;
    }
    Some(lowest)
}

/// Forgets the placeholders in a forked child, which closes their descriptors.
pub fn forget() {
    if let Some(mut spares) = try_lock(&SPARES) {
        *spares = Spares { process: 0, placeholders: Vec::new() };
    }
}

/// Keeps the placeholder of a closed file for reuse, or closes it. No other process may have the
/// placeholder.
pub fn keep(closed: OwnedFd) {
    let Some(mut spares) = try_lock(&SPARES) else { return };
    let process = process_id();
    if spares.process != process {
        // The child has closed the descriptors, and may have opened others with their numbers.
        *spares = Spares { process, placeholders: Vec::new() };
    }
    if spares.placeholders.len() < SPARES_MAX
        && let Some(uid) = placeholder::owner_if_empty(closed.as_fd())
        && placeholder::set_position(closed.as_fd(), 0).is_ok()
        && let Ok(spare) = own_descriptors::duplicate(&closed)
    {
        spares.placeholders.push(Spare { fd: ManuallyDrop::new(spare), uid });
    }
}
