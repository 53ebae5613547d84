//! Copies a program's output to this process's output, byte for byte, and searches it for a line.
//!
//! If this process's output is a terminal, the program gets a pseudo-terminal in raw mode, so that
//! it writes lines and colours as usual; otherwise it gets a pipe. Standard input remains the
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
use crate::runtime::{Pipe, open_pipe};
use crate::until::Lines;

/// The capacity of a pipe, in bytes.
const PIECE_BYTES: usize = 64 << 10;
/// Interval between two checks that the program has ended; a closed stream is detected at once.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Standard output and standard error of a program.
#[derive(Debug)]
pub struct Taps {
    /// A single element if both streams of this process are the same file, so that the order of the
    /// program's output is kept.
    taps: Vec<Tap>,
}

#[derive(Debug)]
struct Tap {
    source: Source,
    /// The path that the program opens for writing.
    path: PathBuf,
    to: Ours,
}

#[derive(Debug)]
enum Source {
    Pipe(Pipe),
    /// Both ends: with only this process's end open, the terminal would count as closed until the
    /// program has opened its end.
    Terminal {
        end: OwnedFd,
        _programs: File,
    },
}

#[derive(Debug)]
enum Ours {
    Out(Stdout),
    Err(Stderr),
}

impl AsFd for Ours {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Ours::Out(out) => out.as_fd(),
            Ours::Err(err) => err.as_fd(),
        }
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Source::Pipe(pipe) => pipe.end.as_fd(),
            Source::Terminal { end, .. } => end.as_fd(),
        }
    }
}

impl Taps {
    pub fn make() -> Result<Taps, Failure> {
        let (out, err) = (std::io::stdout(), std::io::stderr());
        let same = match (rustix::fs::fstat(&out), rustix::fs::fstat(&err)) {
            (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
            _ => false,
        };
        let mut taps = vec![Tap::make(out.is_terminal(), "stdout", Ours::Out(out))?];
        if !same {
            taps.push(Tap::make(err.is_terminal(), "stderr", Ours::Err(err))?);
        }
        Ok(Taps { taps })
    }

    /// Returns the paths that the program must open as standard output and standard error.
    pub fn paths(&self) -> [PathBuf; 2] {
        let path = |tap: Option<&Tap>| tap.map(|tap| tap.path.clone()).unwrap_or_default();
        [path(self.taps.first()), path(self.taps.last())]
    }

    /// Copies until no process has the streams open, or `ended` is set and all output was read.
    /// Sets `found` at the first line that matches the pattern.
    pub fn pass_on(self, pattern: &Regex, found: &AtomicBool, ended: &AtomicBool) {
        std::thread::scope(|scope| {
            for tap in self.taps {
                scope.spawn(move || tap.pass_on(pattern, found, ended));
            }
        });
    }
}

impl Tap {
    fn make(is_terminal: bool, name: &str, to: Ours) -> Result<Tap, Failure> {
        // A pipe is the fallback if there are no pseudo-terminals.
        if is_terminal && let Some((source, path)) = terminal(to.as_fd()) {
            return Ok(Tap { source, path, to });
        }
        let pipe = Pipe::make(name)?;
        Ok(Tap { path: pipe.path.clone(), source: Source::Pipe(pipe), to })
    }

    /// Returns early, and closes its end, if the output cannot be written any more. The program
    /// then gets the same error as without the copy.
    fn pass_on(self, pattern: &Regex, found: &AtomicBool, ended: &AtomicBool) {
        let mut piece = vec![0; PIECE_BYTES];
        let mut lines = Lines::new(pattern);
        loop {
            // Loaded before the poll, so that output written before the end is still read.
            let was_ended = ended.load(Ordering::Acquire);
            let ready = poll(&mut [PollFd::new(&self.source, PollFlags::IN)], Some(&LOOK));
            if matches!(ready, Err(Errno::INTR)) {
                continue;
            }
            if matches!(ready, Ok(0)) && !was_ended {
                continue;
            }
            match rustix::io::read(&self.source, &mut piece) {
                Ok(length @ 1..) => {
                    if write_all(self.to.as_fd(), &piece[..length]).is_err() {
                        return;
                    }
                    if lines.find(&piece[..length]) {
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

/// Opens a pseudo-terminal with the window size of `ours` and in raw mode: the real terminal does
/// all processing.
fn terminal(ours: BorrowedFd<'_>) -> Option<(Source, PathBuf)> {
    let end = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).ok()?;
    grantpt(&end).ok()?;
    unlockpt(&end).ok()?;
    let path = PathBuf::from(std::ffi::OsString::from_vec(ptsname(&end, Vec::new()).ok()?.into_bytes()));
    let mut modes = tcgetattr(ours).ok()?;
    modes.make_raw();
    tcsetattr(&end, OptionalActions::Now, &modes).ok()?;
    if let Ok(size) = tcgetwinsize(ours) {
        let _ = tcsetwinsize(&end, size);
    }
    rustix::io::ioctl_fionbio(&end, true).ok()?;
    let programs = open_pipe(&path).ok()?;
    Some((Source::Terminal { end, _programs: programs }, path))
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
