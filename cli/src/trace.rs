//! The trace of this process: one line for each event, from which a user can find the cause of a
//! slow or hung program. `QUELL_LOG` selects the events, `--log-file` the destination.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use quell_supervisor::{LOG_FILE_VARIABLE, shown};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::failure::Failure;

const FILTER_VARIABLE: &str = "QUELL_LOG";
/// The events in a log file if `QUELL_LOG` is not set.
const FILTER_OF_LOG_FILE: &str = "debug";

/// The log file of this process, set once when the trace starts.
static LOG_FILE: OnceLock<PathBuf> = OnceLock::new();

/// Returns the absolute path of the log file, for holders that this process starts.
pub fn log_file() -> Option<PathBuf> {
    LOG_FILE.get().cloned()
}

/// Returns the value of `QUELL_LOG`, unless it is empty.
pub fn filter() -> Result<Option<String>, Failure> {
    let filter = std::env::var_os(FILTER_VARIABLE).filter(|filter| !filter.is_empty());
    let invalid = |_| Failure::wrong_input(format!("{FILTER_VARIABLE}: the value is not UTF-8"));
    filter.map(|filter| filter.into_string().map_err(invalid)).transpose()
}

/// Starts the trace if the environment or `log_file` requests one. Must be called once.
pub fn start(log_file: Option<&Path>) -> Result<(), Failure> {
    let from_environment = || std::env::var_os(LOG_FILE_VARIABLE).filter(|path| !path.is_empty());
    let log_file = log_file.map(Path::to_owned).or_else(|| from_environment().map(PathBuf::from));
    let filter = match filter()? {
        Some(filter) => filter,
        None if log_file.is_some() => FILTER_OF_LOG_FILE.into(),
        None => return Ok(()),
    };
    let filter = EnvFilter::try_new(&filter).map_err(|e| {
        Failure::wrong_input(format!(
            "{FILTER_VARIABLE}={filter}: {e}; for example: {FILTER_VARIABLE}=debug, or {FILTER_VARIABLE}=quell_fuse=debug"
        ))
    })?;
    let writer = match log_file {
        Some(path) => {
            let path = std::path::absolute(&path).map_err(|e| cannot_write(&path, &e))?;
            let file = open(&path)?;
            LOG_FILE.get_or_init(|| path);
            BoxMakeWriter::new(Arc::new(file))
        }
        None => BoxMakeWriter::new(|| LossyStderr),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(false)
        .with_thread_names(true)
        .with_span_events(FmtSpan::CLOSE)
        .try_init()
        .expect("this process has no other trace");
    Ok(())
}

/// Opens the log file of this user, to append to it. The file contains names of the user's files,
/// so other users cannot read a new file, and a file of another user is refused.
fn open(path: &Path) -> Result<File, Failure> {
    // NONBLOCK: the open of a FIFO without a reader would wait forever.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let opened = File::options().append(true).create(true).mode(0o600).custom_flags(flags).open(path);
    let file = opened.map_err(|e| cannot_write(path, &e))?;
    let found = file.metadata().map_err(|e| cannot_write(path, &e))?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(Failure::wrong_input(format!(
            "{}: the log file belongs to another user; name a file of your own",
            shown(path)
        )));
    }
    if !found.is_file() || found.nlink() != 1 {
        return Err(Failure::wrong_input(format!(
            "{}: not a regular file with one name; name a new file for the log",
            shown(path)
        )));
    }
    Ok(file)
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::cannot(format!("cannot write the log file {}: {error}", shown(path)))
}

/// Standard error, for a process that serves requests: a stopped terminal or a full pipe must not
/// block it, so events that cannot be written at once are lost.
struct LossyStderr;

impl Write for LossyStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_ready = rustix::event::poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&at_once))
            .is_ok_and(|ready| ready > 0);
        if is_ready { stderr.write(bytes) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_file_is_created_for_its_owner_alone_and_appended_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        for line in ["first\n", "second\n"] {
            open(&path).unwrap_or_else(|e| panic!("{e}")).write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first\nsecond\n");
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_symbolic_link_is_no_log_file() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("target"), directory.path().join("link"));
        std::fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(open(&link).is_err());
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");
    }
}
