//! Copies a program's output to the output of this process, byte for byte, and searches it for a
//! line.
//!
//! If the output of this process is a terminal, the program gets a pseudo-terminal in raw mode, so
//! that it writes lines and colours as usual; otherwise it gets a pipe. Standard input remains the
//! program's own.

use std::fs::File;
use std::io::{IsTerminal, Stderr, Stdout};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use regex::bytes::Regex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};

use crate::failure::Failure;
use crate::record::stop::LineSearch;
use crate::runtime::fifo::{Fifo, open_fifo};

/// The capacity of a pipe, in bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// Interval between two checks that the program has ended; a closed stream is detected at once.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Standard output and standard error of a program.
#[derive(Debug)]
pub struct OutputCopy {
    /// A single element if both streams of this process are the same file, so that the order of the
    /// program's output is kept.
    streams: Vec<StreamCopy>,
}

#[derive(Debug)]
struct StreamCopy {
    source: StreamSource,
    /// The path that the program opens for writing.
    path: PathBuf,
    to: Destination,
}

#[derive(Debug)]
enum StreamSource {
    Fifo(Fifo),
    /// Both ends: with only this process's end open, the terminal would count as closed until the
    /// program has opened its end.
    Terminal {
        end: OwnedFd,
        _programs: File,
    },
}

#[derive(Debug)]
enum Destination {
    Out(Stdout),
    Err(Stderr),
}

impl AsFd for Destination {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Destination::Out(out) => out.as_fd(),
            Destination::Err(err) => err.as_fd(),
        }
    }
}

impl AsFd for StreamSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            StreamSource::Fifo(fifo) => fifo.reader.as_fd(),
            StreamSource::Terminal { end, .. } => end.as_fd(),
        }
    }
}

impl OutputCopy {
    /// Creates the streams that the program opens. `out` and `err` are the destinations of the
    /// copies.
    pub fn new(out: Stdout, err: Stderr) -> Result<OutputCopy, Failure> {
        let same = match (rustix::fs::fstat(&out), rustix::fs::fstat(&err)) {
            (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
            _ => false,
        };
        let mut streams = vec![StreamCopy::new(out.is_terminal(), "stdout", Destination::Out(out))?];
        if !same {
            streams.push(StreamCopy::new(err.is_terminal(), "stderr", Destination::Err(err))?);
        }
        Ok(OutputCopy { streams })
    }

    /// Returns the paths that the program must open as standard output and standard error.
    pub fn paths(&self) -> [PathBuf; 2] {
        let path = |stream: Option<&StreamCopy>| stream.map(|stream| stream.path.clone()).unwrap_or_default();
        [path(self.streams.first()), path(self.streams.last())]
    }

    /// Copies until no process has the streams open, or `ended` is set and all output was read.
    /// Sets `found` at the first line that matches the pattern.
    pub fn copy(self, pattern: &Regex, found: &AtomicBool, ended: &AtomicBool) {
        std::thread::scope(|scope| {
            for stream in self.streams {
                scope.spawn(move || stream.copy(pattern, found, ended));
            }
        });
    }
}

impl StreamCopy {
    fn new(is_terminal: bool, name: &str, to: Destination) -> Result<StreamCopy, Failure> {
        // A pipe is the fallback if there are no pseudo-terminals.
        if is_terminal && let Some((source, path)) = terminal(to.as_fd()) {
            return Ok(StreamCopy { source, path, to });
        }
        let fifo = Fifo::create(name)?;
        Ok(StreamCopy { path: fifo.path.clone(), source: StreamSource::Fifo(fifo), to })
    }

    /// Returns early, and closes its end, if the output cannot be written any more. The program
    /// then gets the same error as without the copy.
    fn copy(self, pattern: &Regex, found: &AtomicBool, ended: &AtomicBool) {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut lines = LineSearch::new(pattern);
        loop {
            // Loaded before the poll, so that output written before the end is still read.
            let was_ended = ended.load(Ordering::Acquire);
            let ready = poll(&mut [PollFd::new(&self.source, PollFlags::IN)], Some(&POLL_INTERVAL));
            if matches!(ready, Err(Errno::INTR)) {
                continue;
            }
            if matches!(ready, Ok(0)) && !was_ended {
                continue;
            }
            match rustix::io::read(&self.source, &mut buffer) {
                Ok(length @ 1..) => {
                    if write_all(self.to.as_fd(), &buffer[..length]).is_err() {
                        return;
                    }
                    if lines.find(&buffer[..length]) {
                        found.store(true, Ordering::Release);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !was_ended => {}
                // All writers have closed the stream; a terminal reports this as an error.
                _ => return,
            }
        }
    }
}

/// Opens a pseudo-terminal with the window size of `real` and in raw mode: the real terminal does
/// all processing.
fn terminal(real: BorrowedFd<'_>) -> Option<(StreamSource, PathBuf)> {
    let end = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).ok()?;
    grantpt(&end).ok()?;
    unlockpt(&end).ok()?;
    let path = PathBuf::from(std::ffi::OsString::from_vec(ptsname(&end, Vec::new()).ok()?.into_bytes()));
    let mut modes = tcgetattr(real).ok()?;
    modes.make_raw();
    tcsetattr(&end, OptionalActions::Now, &modes).ok()?;
    if let Ok(size) = tcgetwinsize(real) {
        let _ = tcsetwinsize(&end, size);
    }
    rustix::io::ioctl_fionbio(&end, true).ok()?;
    let programs = open_fifo(&path).ok()?;
    Some((StreamSource::Terminal { end, _programs: programs }, path))
}

fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            // Another process may have set O_NONBLOCK on the shared open file description.
            Err(Errno::AGAIN) => _ = poll(&mut [PollFd::new(&to, PollFlags::OUT)], None),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
