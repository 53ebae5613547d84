//! The data that all parts of a copy share: the options, the counters, and the receiver of the
//! results.

use std::sync::atomic::{AtomicU64, Ordering};

use quell_vfs::{Error, ErrorKind, Result};

use crate::options::{CopiedFile, Options, Report};
use crate::progress::Progress;

/// The prefix of the names of incomplete files.
pub const TEMPORARY_PREFIX: &[u8] = b".quell-staging.";

pub struct Context<'a> {
    pub options: Options,
    pub progress: &'a Progress,
    report: &'a dyn Report,
    /// Random, so that two commands do not use the same temporary names.
    token: u64,
    temporaries: AtomicU64,
}

impl<'a> Context<'a> {
    pub fn new(options: Options, progress: &'a Progress, report: &'a dyn Report) -> Context<'a> {
        use std::hash::{BuildHasher, RandomState};
        let token = RandomState::new().hash_one(std::process::id());
        Context { options, progress, report, token, temporaries: AtomicU64::new(0) }
    }

    /// Returns a name for a new file that is not complete yet.
    pub fn temporary_name(&self) -> Vec<u8> {
        let number = self.temporaries.fetch_add(1, Ordering::Relaxed);
        [TEMPORARY_PREFIX, format!("{:016x}.{number}", self.token).as_bytes()].concat()
    }

    /// Reports a failure, unless the request to stop the copy has caused it.
    pub fn fail(&self, path: &[u8], error: &Error) {
        if !(self.progress.is_stopped() && error.kind == ErrorKind::Interrupted) {
            self.progress.add_failure();
            self.report.failed(path, error);
        }
    }

    /// Reports a file that is complete at the destination.
    pub fn complete(&self, file: &CopiedFile<'_>) {
        self.report.copied(file);
    }

    /// Returns an error if the copy was requested to stop.
    pub fn check_stop(&self) -> Result<()> {
        match self.progress.is_stopped() {
            true => Err(Error::new(ErrorKind::Interrupted, "copy", "")),
            false => Ok(()),
        }
    }
}
