//! The messages of the starting program. A thread reads them from standard input, so that a signal
//! can end the daemon while it waits for a message, and the end of the input is noticed later.

use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use quell_wire::pool::LINE_BYTES_MAX;
use serde::de::DeserializeOwned;

use crate::event::Event;
use crate::failure::Failure;

/// How often the daemon checks for a signal while it waits for a message.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(20);

/// Starts the thread, which sends an event for each line and for the end of the input.
pub fn start(events: Sender<Event>) -> Result<(), Failure> {
    let read = move || {
        read_lines(&events);
        // The main thread may have ended.
        let _ = events.send(Event::InputEnded);
    };
    let started = std::thread::Builder::new().name("quell-input".into()).spawn(read);
    started.map(drop).map_err(|e| Failure::cannot(format!("cannot start a thread: {e}")))
}

/// Waits for a message of the starting program.
///
/// # Errors
///
/// The end of the input, a damaged message, or a signal, which sets `stop`.
pub fn receive<T: DeserializeOwned>(events: &Receiver<Event>, stop: &AtomicBool) -> Result<T, Failure> {
    loop {
        match events.recv_timeout(SIGNAL_INTERVAL) {
            Ok(Event::Line(Ok(line))) => {
                let message = serde_json::from_str(&line);
                return message.map_err(|e| Failure::wrong_input(format!("damaged settings: {e}")));
            }
            Ok(Event::Line(Err(e))) => return Err(Failure::cannot(format!("cannot read the settings: {e}"))),
            Err(RecvTimeoutError::Timeout) if stop.load(Ordering::SeqCst) => {
                return Err(Failure::cannot("the start was interrupted by a signal"));
            }
            Ok(Event::Ended(_)) => return Err(Failure::cannot("a member has ended")),
            Ok(Event::Backup { .. } | Event::Clients(_)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Event::InputEnded) | Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::wrong_input(
                    "quelld is started by `quell pool up`, which passes its settings through standard input",
                ));
            }
        }
    }
}

/// Reads lines until the input ends. A line that is too long is truncated, and is then refused as
/// damaged.
fn read_lines(events: &Sender<Event>) {
    let mut input = BufReader::new(std::io::stdin());
    loop {
        let mut line = String::new();
        match (&mut input).take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(0) => return,
            // The main thread has ended.
            Ok(_) if events.send(Event::Line(Ok(line))).is_err() => return,
            Ok(_) => {}
            Err(e) => {
                let _ = events.send(Event::Line(Err(e)));
                return;
            }
        }
    }
}
