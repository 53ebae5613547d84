//! A program's output on its way to ours: passed on as it comes, byte for byte, and looked at for a line.
//!
//! Where ours is a terminal the program gets a terminal (a pseudo-terminal that changes nothing), so that it writes lines and
//! colours as ever; elsewhere a pipe. Standard input is not touched: it stays the program's own.

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

/// As much as a pipe holds.
const PIECE_BYTES: usize = 64 << 10;
/// Between two looks whether the program has ended, which a closed stream tells at once.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Standard output and standard error of a program.
#[derive(Debug)]
pub struct Taps {
    /// One if ours are the same file: the order of what is written there is the program's.
    taps: Vec<Tap>,
}

#[derive(Debug)]
struct Tap {
    source: Source,
    /// What the program writes to.
    path: PathBuf,
    to: Ours,
}

#[derive(Debug)]
enum Source {
    Pipe(Pipe),
    /// Both ends: with ours alone it would count as closed until the program has opened its own.
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

    /// What the program is to open as its output and as its error output.
    pub fn paths(&self) -> [PathBuf; 2] {
        let path = |tap: Option<&Tap>| tap.map(|tap| tap.path.clone()).unwrap_or_default();
        [path(self.taps.first()), path(self.taps.last())]
    }

    /// Until nobody has the streams open any more, or `ended` is set and all was read. Sets `found` with the first line that
    /// the pattern is found in.
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
        // Where there are no pseudo-terminals a pipe does it, too.
        if is_terminal && let Some((source, path)) = terminal(to.as_fd()) {
            return Ok(Tap { source, path, to });
        }
        let pipe = Pipe::make(name)?;
        Ok(Tap { path: pipe.path.clone(), source: Source::Pipe(pipe), to })
    }

    /// Returns early, and closes its end, if what is passed on can be written no more: the program is told as it would be
    /// without us.
    fn pass_on(self, pattern: &Regex, found: &AtomicBool, ended: &AtomicBool) {
        let mut piece = vec![0; PIECE_BYTES];
        let mut lines = Lines::new(pattern);
        loop {
            // Asked before looking: what was written before the end is read after it.
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
                // Closed by everybody; a terminal says so with an error.
                _ => return,
            }
        }
    }
}

/// A pseudo-terminal of the size of ours that passes on every byte as it is: ours does what a terminal does.
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
            // Ours may have been made not to wait by whoever shares it.
            Err(Errno::AGAIN) => _ = poll(&mut [PollFd::new(&to, PollFlags::OUT)], None),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
