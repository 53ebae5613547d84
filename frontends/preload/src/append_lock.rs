//! Appending to a file that other processes append to at the same time. Each process has its own
//! copy of the index, so it learns the end of the file from the store, and no other process may
//! append until its data is published there.

use std::time::{Duration, Instant};

use quell_vfs::{LockMode, LockOwner, LockScope, WritableFile};

use crate::errno::{Errno, Outcome};
use crate::guard;
use crate::pause;

/// The byte of a file that represents appending: the largest that can be locked. The locks of
/// programs end before it.
pub const APPEND_BYTE: u64 = i64::MAX as u64 - 1;

const SCOPE: LockScope = LockScope::Bytes { first: APPEND_BYTE, last: APPEND_BYTE };

const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// An append fails after this time if another process, for example a stopped one, does not complete
/// its append.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Takes the lock. Returns false if the store keeps no locks. Errors: ETIMEDOUT after `WAIT_MAX`;
/// EINTR if a signal arrives that ends the process or has a handler without SA_RESTART. Other
/// signals are delivered after the append.
fn take(file: &dyn WritableFile, owner: LockOwner, mode: LockMode) -> Outcome<bool> {
    let Ok(locks) = file.locks() else { return Ok(false) };
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        match locks.try_lock(owner, SCOPE, mode) {
            Ok(true) => return Ok(true),
            Ok(false) if begun.elapsed() > WAIT_MAX => return Err(Errno(libc::ETIMEDOUT)),
            Ok(false)
                if guard::blocked_by_program().is_some_and(|blocked| pause::is_interrupted(&blocked)) =>
            {
                return Err(Errno(libc::EINTR));
            }
            Ok(false) => {
                std::thread::sleep(pause);
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
            Err(error) if error.errno() == libc::ENOLCK => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Appends to the file, and returns the offset. Takes no lock if the store keeps no locks.
pub fn append(file: &dyn WritableFile, owner: LockOwner, bytes: &[u8]) -> Outcome<u64> {
    if !take(file, owner, LockMode::Exclusive)? {
        return Ok(file.append(bytes)?);
    }
    let appended = file.append(bytes);
    // Unlocking publishes the data.
    let unlocked = file.locks()?.unlock(owner, SCOPE);
    let start = appended?;
    unlocked?;
    Ok(start)
}

/// Makes data visible that other processes have published, as taking a lock does.
pub fn refresh(file: &dyn WritableFile, owner: LockOwner) -> Outcome<()> {
    match take(file, owner, LockMode::Shared)? {
        true => Ok(file.locks()?.unlock(owner, SCOPE)?),
        false => Ok(file.sync()?),
    }
}
