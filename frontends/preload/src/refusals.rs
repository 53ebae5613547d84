//! Calls on virtual files that the library refuses. They are counted for `quell stats`, and with
//! the variable QUELL_LOG the first one of each function is reported.

use std::collections::BTreeSet;
use std::sync::Mutex;

use quell_threads::lock;

use crate::counters::Counter;
use crate::errno::Errno;
use crate::guard::inside;
use crate::messages::warn;
use crate::view::{self, VirtualDir};

/// The functions of which a call was reported.
static REPORTED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Counts a refused call of a function on a file of `dir`, and returns its error. A call that names
/// no file is counted for the first directory.
pub fn refused(function: &'static str, dir: Option<&VirtualDir>, error: Errno) -> Errno {
    let reported = inside(|| {
        if let Some(dir) = dir.or_else(|| view::dirs().first()) {
            dir.count(Counter::CallsRefused, 1);
        }
        if std::env::var_os("QUELL_LOG").is_some() && lock(&REPORTED).insert(function) {
            let reason = std::io::Error::from_raw_os_error(error.0);
            warn(&format!("{function} is not supported on virtual files: {reason}; this is reported once"));
        }
        Ok(())
    });
    reported.map_or_else(|error| error, |()| error)
}

/// Locks the table for a fork.
pub fn lock_for_fork() -> std::sync::MutexGuard<'static, BTreeSet<&'static str>> {
    lock(&REPORTED)
}

/// Prints a warning once in a process, for all values of QUELL_LOG.
pub fn warn_once(function: &'static str, message: &str) {
    // A warning that cannot be printed is lost.
    let _ = inside(|| {
        if lock(&REPORTED).insert(function) {
            warn(message);
        }
        Ok(())
    });
}
