//! A launcher that runs: the program that starts a daemon on its node. It passes its standard input
//! to the daemon, and the daemon's output to its standard output.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_wire::pool::LINE_BYTES_MAX;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::failure::Failure;
use crate::pools::messages::{KeeperAnswer, KeeperCommand};
use crate::pools::new_pool::NewDaemon;

/// How long the keeper waits for the end of a launcher that has closed its connection.
const END_LIMIT: Duration = Duration::from_secs(2);
/// The lines of a launcher's standard error that are kept for the message of a failure.
const KEPT_LINES: usize = 8;
/// The longest of these lines, in bytes.
const KEPT_LINE_BYTES_MAX: u64 = 1000;

/// The longest part of a daemon's message that is shown, in characters.
const MESSAGE_CHARS_MAX: usize = 2000;

/// An event for the keeper.
pub enum Event {
    /// A line of the daemon with this number.
    Line(usize, String),
    /// The standard output of a launcher has ended, which is the end of the daemon.
    Ended(usize),
    /// A command, and the receiver of its answers.
    Command(KeeperCommand, Sender<KeeperAnswer>),
}

/// A launcher that runs.
pub struct RunningLauncher {
    /// The name of the node in messages.
    pub host: String,
    program: String,
    child: Child,
    /// Messages for its standard input, which ends when this is dropped.
    pub input: Option<Sender<Vec<u8>>>,
    messages: Arc<Mutex<VecDeque<String>>>,
    reader: Option<JoinHandle<()>>,
    /// Whether its standard output has ended.
    pub is_ended: bool,
    /// Whether the program is the daemon itself, on this node.
    pub is_daemon: bool,
}

impl RunningLauncher {
    /// Starts the launcher of the daemon with this number. Its lines and its end are sent to
    /// `events`.
    pub fn start(new: &NewDaemon, number: usize, events: &Sender<Event>) -> Result<RunningLauncher, Failure> {
        let [program, arguments @ ..] = new.command.as_slice() else {
            return Err(Failure::wrong_input(format!("{}: the launcher has no program", new.host)));
        };
        let failed = |e: std::io::Error| {
            Failure::cannot(format!("cannot start the daemon on {}: {program}: {e}", new.host))
        };
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = (input.expect("it is piped"), output.expect("it is piped"));
        let errors = child.stderr.take().expect("it is piped");
        let (sender, lines) = channel();
        let messages = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&messages);
        let events = events.clone();
        let mut launch = RunningLauncher {
            host: new.host.clone(),
            program: program.clone(),
            child,
            input: Some(sender),
            messages,
            reader: None,
            is_ended: false,
            is_daemon: arguments.is_empty(),
        };
        let started = (|| {
            thread(move || write_lines(input, &lines))?;
            launch.reader = Some(thread(move || keep_lines(errors, &kept))?);
            thread(move || read_lines(output, number, &events)).map(drop)
        })();
        if let Err(error) = started {
            // Errors of these calls are ignored: the failure of the start is reported.
            let _ = launch.child.kill();
            let _ = launch.child.wait();
            return Err(failed(error));
        }
        Ok(launch)
    }

    /// Sends a message. If the daemon has ended, the end of its output is noticed elsewhere.
    pub fn send(&self, message: &impl Serialize) {
        let mut line = serde_json::to_vec(message).expect("the messages have no maps, and valid paths");
        line.push(b'\n');
        if let Some(input) = &self.input {
            let _ = input.send(line);
        }
    }

    /// Returns the last lines of the launcher's standard error, each after a newline.
    pub fn last_lines(&self) -> String {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.iter().map(|line| format!("\n  {}: {line}", self.host)).collect()
    }

    /// Returns whether the process of the launcher has ended. Reaps it then.
    pub fn has_exited(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)) | Err(_))
    }

    /// Waits until the process of the launcher has ended.
    pub fn wait(&mut self) {
        // It was killed.
        let _ = self.child.wait();
    }

    /// Signals the process of the launcher, unless it has ended.
    pub fn signal(&mut self, signal: Signal) {
        // A child that was not waited for keeps its process id.
        if let Ok(None) = self.child.try_wait() {
            // The process may have ended meanwhile.
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// Returns the failure that the daemon has reported.
    pub fn refused(&self, code: u8, message: &str) -> Failure {
        let message = format!("the daemon on {}: {}", self.host, printable(message));
        Failure::with_code(if code == Failure::WRONG_INPUT { code } else { Failure::CANNOT }, message)
    }

    /// Returns the failure of a launcher whose daemon has sent a line that is not a message.
    pub fn wrong_answer(&self, line: &str, error: &serde_json::Error) -> Failure {
        let shown: String = line.trim_end().chars().take(200).collect();
        let shown = quell_vfs::printable(shown.as_bytes());
        self.failed(&format!("its answer is not a valid message: {shown}: {error}"))
    }

    /// Returns the failure of the start of the daemon.
    pub fn failed(&self, reason: &str) -> Failure {
        Failure::cannot(format!("cannot start the daemon on {}: {reason}", self.host))
    }

    /// Returns the failure of a launcher that has ended without a message of the daemon.
    pub fn ended(&mut self) -> Failure {
        // The connection of the launcher ends before its process. Its standard error ends with the
        // process, unless another process has it open.
        let deadline = Instant::now() + END_LIMIT;
        let status = loop {
            let status = self.child.try_wait().ok().flatten();
            let has_all = self.reader.as_ref().is_none_or(|reader| reader.is_finished());
            if status.is_some() && has_all || Instant::now() >= deadline {
                break status;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let status = match status {
            Some(status) => format!("ended with {status}"),
            None => "closed the connection".into(),
        };
        self.failed(&format!("{} {status}{}", self.program, self.last_lines()))
    }
}

/// Returns the beginning of a daemon's message, with its control characters replaced.
pub fn printable(message: &str) -> String {
    let message: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
    quell_vfs::printable(message.as_bytes())
}

fn thread(run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("quell-launcher".into()).stack_size(128 << 10).spawn(run)
}

fn write_lines(mut input: ChildStdin, lines: &Receiver<Vec<u8>>) {
    for line in lines {
        // A daemon that has failed has reported the reason, and does not read any more.
        if input.write_all(&line).and_then(|()| input.flush()).is_err() {
            return;
        }
    }
}

fn read_lines(output: ChildStdout, number: usize, events: &Sender<Event>) {
    let mut output = BufReader::new(output);
    loop {
        let mut line = String::new();
        let event = match (&mut output).take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(0) | Err(_) => Event::Ended(number),
            Ok(_) => Event::Line(number, line),
        };
        let is_last = matches!(event, Event::Ended(_));
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}

/// Reads the messages of a launcher until its end, and keeps the last ones.
fn keep_lines(errors: ChildStderr, kept: &Mutex<VecDeque<String>>) {
    let mut errors = BufReader::new(errors);
    loop {
        let mut line = Vec::new();
        match (&mut errors).take(KEPT_LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = quell_vfs::printable(line.trim_ascii_end());
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT_LINES {
            kept.pop_front();
        }
        kept.push_back(text);
    }
}
