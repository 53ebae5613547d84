//! The terminal as a screen that a command fills again and again, until a key ends it.

use std::io::{self, IsTerminal, Write};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::failure::Failure;

/// Shows the alternate screen without a cursor.
const BEGIN: &str = "\x1b[?1049h\x1b[?25l";
/// Shows the cursor and the first screen.
const END: &str = "\x1b[?25h\x1b[?1049l";
/// The size of a terminal that does not report one.
const LINES: usize = 24;
const COLUMNS: usize = 80;

/// The terminal of standard output.
pub struct Screen {
    /// The modes of the terminal of standard input before, if there is one.
    input: Option<Termios>,
}

impl Screen {
    /// Shows an empty screen. Keys are read at once and not shown; Ctrl-C still sends SIGINT.
    pub fn begin() -> Result<Screen, Failure> {
        let failed = |e: io::Error| Failure::cannot(format!("cannot use the terminal: {e}"));
        let stdin = io::stdin();
        let mut input = None;
        if stdin.is_terminal() {
            let modes = tcgetattr(&stdin).map_err(|e| failed(e.into()))?;
            let mut changed = modes.clone();
            changed.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            tcsetattr(&stdin, OptionalActions::Now, &changed).map_err(|e| failed(e.into()))?;
            input = Some(modes);
        }
        let screen = Screen { input };
        write(BEGIN);
        Ok(screen)
    }

    /// Restores the terminal.
    pub fn end(self) {
        // `drop` restores the terminal, also after a panic.
    }

    /// Returns the numbers of lines and columns.
    pub fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
            _ => (LINES, COLUMNS),
        }
    }

    /// Replaces the content of the screen. `text` fits in its size and has no control characters
    /// except newlines.
    pub fn show(&self, text: &str) {
        let lines: Vec<&str> = text.lines().collect();
        // Each line is erased up to its end, and then all lines below the last one.
        write(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")));
    }

    /// Returns whether the user has pressed q or Ctrl-D, or the terminal is closed. Does not wait.
    pub fn is_ended_by_key(&self) -> bool {
        if self.input.is_none() {
            return false;
        }
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let stdin = io::stdin();
        let mut events = [PollFd::new(&stdin, PollFlags::IN)];
        if !rustix::event::poll(&mut events, Some(&at_once)).is_ok_and(|ready| ready > 0) {
            return false;
        }
        let mut keys = [0; 64];
        match rustix::io::read(&stdin, &mut keys) {
            Ok(0) => true,
            Ok(count) => keys[..count].iter().any(|key| matches!(key, b'q' | b'Q' | 4)),
            Err(error) => error != rustix::io::Errno::INTR,
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        write(END);
        if let Some(modes) = &self.input {
            // A terminal that is closed needs no modes.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, modes);
        }
    }
}

/// Writes to the terminal. Errors are ignored: a closed terminal ends the command.
fn write(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
