//! The standard streams of a process that stays. It keeps none of the program that started it: a program that captures
//! the output of `quell mount` reads until the last process has closed the stream.

use std::fs::File;
use std::io::Result;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec};

/// A log of messages that is longer begins anew.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// How long a message waits for its reader.
const WRITE_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Where messages go instead of the standard error of the program that started this process.
static LOG: Mutex<Option<File>> = Mutex::new(None);

/// The file with the messages of a mount's process, by the name of its holder.
pub fn log_path(directory: &Path, key: &str) -> PathBuf {
    directory.join(format!("{key}.log"))
}

fn null() -> Result<File> {
    File::options().read(true).write(true).open("/dev/null")
}

/// Standard input and output are /dev/null from here on.
pub fn release_input_and_output() -> Result<()> {
    let null = null()?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(rustix::stdio::dup2_stdout(&null)?)
}

/// Messages, and what the standard library prints about a panic, are lost from here on.
pub fn release_error() {
    if let Ok(null) = null() {
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

/// Messages go to a new file from here on, which only this user may read. Where none can be made they are lost: the stream of the
/// program that started this process is released in any case.
pub fn log_to(path: &Path) {
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let _ = std::fs::remove_file(path);
    let file = File::options().append(true).create_new(true).mode(0o600).custom_flags(nofollow).open(path);
    match file {
        Ok(file) if rustix::stdio::dup2_stderr(&file).is_ok() => {
            *LOG.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
        }
        _ => release_error(),
    }
}

/// Removes the log if nothing was written to it.
pub fn remove_empty_log(path: &Path) {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(ours) = log.as_ref().and_then(|log| log.metadata().ok()) else { return };
    // The next mount at the same place may have made its own.
    let is_ours = std::fs::symlink_metadata(path)
        .is_ok_and(|found| (found.dev(), found.ino()) == (ours.dev(), ours.ino()));
    if is_ours && ours.size() == 0 {
        let _ = std::fs::remove_file(path);
    }
}

/// One message, to standard error or the log. A stream that cannot be written to is no reason to end.
pub fn say(message: &str) {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(log) = log.as_ref()
        && log.metadata().is_ok_and(|found| found.size() > LOG_BYTES_MAX)
    {
        let _ = log.set_len(0);
    }
    drop(log);
    // A terminal that was stopped, or a pipe that is full, must not stop the process that serves: the message is lost.
    let stderr = std::io::stderr();
    let mut watched = [PollFd::new(&stderr, PollFlags::OUT)];
    if !rustix::event::poll(&mut watched, Some(&WRITE_TIMEOUT)).is_ok_and(|ready| ready > 0) {
        return;
    }
    crate::output::report_line(format_args!("quell: {message}"));
}
