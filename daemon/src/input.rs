//! The messages of the starting program. A thread reads them from standard input, so that a signal
//! can end the daemon while it waits for a message, and the end of the input is noticed later.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use quell_wire::pool::LINE_BYTES_MAX;
use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// How often the daemon checks for a signal while it waits for a message.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(20);

/// The standard input.
pub struct Input {
    lines: Receiver<std::io::Result<String>>,
    is_ended: Arc<AtomicBool>,
}

impl Input {
    /// Starts the thread.
    pub fn start() -> Result<Input, Failure> {
        let (sender, lines) = channel();
        let is_ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_ended);
        let read = move || {
            read_lines(&sender);
            flag.store(true, Ordering::SeqCst);
        };
        let started = std::thread::Builder::new().name("quell-input".into()).spawn(read);
        started.map_err(|e| Failure::cannot(format!("cannot start a thread: {e}")))?;
        Ok(Input { lines, is_ended })
    }

    /// Returns whether the input has ended.
    pub fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::SeqCst)
    }

    /// Waits for a message.
    ///
    /// # Errors
    ///
    /// The end of the input, a damaged message, or a signal, which sets `stop`.
    pub fn receive<T: DeserializeOwned>(&self, stop: &AtomicBool) -> Result<T, Failure> {
        loop {
            match self.lines.recv_timeout(SIGNAL_INTERVAL) {
                Ok(Ok(line)) => {
                    let message = serde_json::from_str(&line);
                    return message.map_err(|e| Failure::wrong_input(format!("damaged settings: {e}")));
                }
                Ok(Err(e)) => return Err(Failure::cannot(format!("cannot read the settings: {e}"))),
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::SeqCst) => {
                    return Err(Failure::cannot("the start was interrupted by a signal"));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::wrong_input(
                        "quelld is started by `quell pool up`, which passes its settings through standard input",
                    ));
                }
            }
        }
    }
}

/// Reads lines until the input ends. A line that is too long is truncated, and is then refused as
/// damaged.
fn read_lines(lines: &Sender<std::io::Result<String>>) {
    let mut input = BufReader::new(std::io::stdin());
    loop {
        let mut line = String::new();
        match (&mut input).take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(0) => return,
            // After the start, the receiver reads no lines. It ends with the process.
            Ok(_) if lines.send(Ok(line)).is_err() => return,
            Ok(_) => {}
            Err(e) => {
                let _ = lines.send(Err(e));
                return;
            }
        }
    }
}
