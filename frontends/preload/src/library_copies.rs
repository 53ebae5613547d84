//! The copies of libraries of log directories that this process has loaded.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard};

use quell_threads::lock;
use quell_vfs::Time;

/// Identifies a library in this process: the generation of the process, and the path, the size and
/// the modification time of the library.
pub type Identity = (u32, Vec<u8>, u64, Time);

/// The names of the copies of loaded libraries. A copy stays open, so that a library that is loaded
/// twice has one name.
static COPIES: Mutex<BTreeMap<Identity, CString>> = Mutex::new(BTreeMap::new());

/// Locks the names of the copies, also for a fork.
pub fn lock_table() -> MutexGuard<'static, BTreeMap<Identity, CString>> {
    lock(&COPIES)
}
