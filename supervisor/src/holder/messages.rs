//! The messages of a holder. They go to the standard error of the command that started it: for a
//! mount until it has answered, then to a log file; for a view of `quell run` until the program has
//! ended.
//!
//! A holder closes the streams of the program that started it: a program that captures the output
//! of `quell mount` reads until the last process has closed the stream.

use std::fs::File;
use std::io::Result;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::console::Console;
use crate::protocol::transfer::Address;

/// Size at which the message log is truncated.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// How long a message waits until the stream can be written.
const WRITE_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Prints messages. Clones share the log.
#[derive(Clone)]
pub struct Messages {
    console: Arc<dyn Console>,
    /// The message log, if it replaces standard error.
    log: Arc<Mutex<Option<File>>>,
}

impl Messages {
    pub fn new(console: Arc<dyn Console>) -> Messages {
        Messages { console, log: Arc::default() }
    }

    pub fn console(&self) -> &dyn Console {
        &*self.console
    }

    /// Writes a message to standard error or the log. A failed write is ignored.
    pub fn print(&self, message: &str) {
        if let Some(log) = self.log().as_ref()
            && log.metadata().is_ok_and(|found| found.size() > LOG_BYTES_MAX)
        {
            let _ = log.set_len(0);
        }
        // A stopped terminal or a full pipe must not block the process that serves requests: the
        // message is then lost.
        let stderr = std::io::stderr();
        let mut watched = [PollFd::new(&stderr, PollFlags::OUT)];
        if rustix::event::poll(&mut watched, Some(&WRITE_TIMEOUT)).is_ok_and(|ready| ready > 0) {
            self.console.print(message);
        }
    }

    /// Sends messages to a new file that only this user can read. If it cannot be created, messages
    /// are lost: the stream of the program that started this process is closed in any case.
    pub fn log_to(&self, path: &Path) {
        let nofollow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let _ = std::fs::remove_file(path);
        let file =
            File::options().append(true).create_new(true).mode(0o600).custom_flags(nofollow).open(path);
        match file {
            Ok(file) if rustix::stdio::dup2_stderr(&file).is_ok() => *self.log() = Some(file),
            _ => release_error(),
        }
    }

    /// Removes the log if it is empty.
    pub fn remove_empty_log(&self, path: &Path) {
        let log = self.log();
        let Some(ours) = log.as_ref().and_then(|log| log.metadata().ok()) else { return };
        // The next mount at the same path may have created a new log.
        let is_ours = std::fs::symlink_metadata(path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (ours.dev(), ours.ino()));
        if is_ours && ours.size() == 0 {
            let _ = std::fs::remove_file(path);
        }
    }

    fn log(&self) -> MutexGuard<'_, Option<File>> {
        quell_threads::lock(&self.log)
    }
}

/// Returns the path of the message log of a mount's process.
pub fn log_path(address: &Address) -> PathBuf {
    address.directory.join(format!("{}.log", address.key))
}

fn null() -> Result<File> {
    File::options().read(true).write(true).open("/dev/null")
}

/// Replaces standard input and output by /dev/null.
pub fn release_input_and_output() -> Result<()> {
    let null = null()?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(rustix::stdio::dup2_stdout(&null)?)
}

/// Replaces standard error by /dev/null. Later messages, including those of a panic, are lost.
pub fn release_error() {
    if let Ok(null) = null() {
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}
