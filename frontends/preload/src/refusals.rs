//! Calls on virtual files that the library refuses. They are counted, and with the variable
//! QUELL_LOG the first one of each function is reported.

use std::collections::BTreeMap;
use std::sync::Mutex;

use quell_threads::lock;

use crate::errno::Errno;
use crate::guard::inside;
use crate::messages::warn;

/// The number of refused calls, by the name of the function.
static REFUSED: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// Counts a refused call of a function, and returns its error.
pub fn refused(function: &'static str, error: Errno) -> Errno {
    let reported = inside(|| {
        let mut calls = lock(&REFUSED);
        let count = calls.entry(function).or_insert(0);
        *count += 1;
        let is_first = *count == 1;
        drop(calls);
        if is_first && std::env::var_os("QUELL_LOG").is_some() {
            let reason = std::io::Error::from_raw_os_error(error.0);
            warn(&format!("{function} is not supported on virtual files: {reason}; this is reported once"));
        }
        Ok(())
    });
    reported.map_or_else(|error| error, |()| error)
}

/// Prints a warning once in a process, whatever QUELL_LOG says.
pub fn warn_once(function: &'static str, message: &str) {
    // A warning that cannot be printed is lost.
    let _ = inside(|| {
        let is_first = lock(&REFUSED).insert(function, 1).is_none();
        if is_first {
            warn(message);
        }
        Ok(())
    });
}
