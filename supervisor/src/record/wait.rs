//! Waits for the end of a recorded program, and for the result that its holder reports.

use std::collections::HashSet;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::failure::Failure;
use crate::protocol::answer::{RecordingResult, RecordingStart};
use crate::record::output_copy::OutputCopy;
use crate::record::stop::StopCondition;
use crate::runtime::fifo::Fifo;

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long the command waits before it prints which processes it waits for.
const NOTICE_DELAY: Duration = Duration::from_secs(5);

/// The end of a program, and the messages of its recording.
#[derive(Debug)]
pub struct RecordingEnd {
    /// The exit status of the program.
    pub status: ExitStatus,
    /// Whether the program was started in a recording view.
    pub started: bool,
    /// The result of the recording, if the holder sent it.
    pub result: Option<RecordingResult>,
    /// Whether SIGTERM was sent to the program, because the condition was met or at Ctrl-C.
    pub was_stopped: bool,
}

/// Waits until the program has ended and the holder has sent the result of the recording to `pipe`,
/// or has ended without one. When the condition is met, and at Ctrl-C (`interrupted`), all recorded
/// processes are sent SIGTERM, including children that outlive their parents.
///
/// `output`: the streams of the program that are searched for a line. `notice` prints a message.
pub fn wait_for_recording(
    child: Child,
    pipe: &Fifo,
    stop: Option<&StopCondition>,
    output: Option<OutputCopy>,
    interrupted: &AtomicBool,
    notice: &dyn Fn(&str),
) -> Result<RecordingEnd, Failure> {
    let (found, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    // Seconds count from the moment when the program can start. Creating the view is not part of
    // the recording, and may take long.
    let is_met = |since: Instant| match stop {
        Some(StopCondition::Time(time)) => since.elapsed() > *time,
        Some(StopCondition::Line(_)) => found.load(Ordering::Acquire),
        None => false,
    };
    std::thread::scope(|scope| {
        if let (Some(output), Some(StopCondition::Line(pattern))) = (output, stop) {
            let (found, ended) = (&found, &ended);
            scope.spawn(move || output.copy(pattern, found, ended));
        }
        let end = wait(child, pipe, &is_met, interrupted, notice);
        ended.store(true, Ordering::Release);
        end
    })
}

/// The messages of a holder that records, as far as they were received.
#[derive(Debug, Default)]
struct Received {
    bytes: Vec<u8>,
    start: Option<RecordingStart>,
    result: Option<RecordingResult>,
    /// Whether the pipe has no writer any more. While the program runs this does not mean that the
    /// holder has ended: it may not have opened the pipe yet.
    is_closed: bool,
}

impl Received {
    /// Reads the available messages.
    fn read(&mut self, pipe: &Fifo) -> Result<(), Failure> {
        self.is_closed = loop {
            self.bytes.reserve(1 << 12);
            match rustix::io::read(&pipe.reader, spare_capacity(&mut self.bytes)) {
                Ok(0) => break true,
                Err(Errno::AGAIN) => break false,
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => {
                    return Err(Failure::cannot(format!("cannot receive the state of the recording: {e}")));
                }
            }
        };
        let mut lines = self.bytes.split_inclusive(|b| *b == b'\n').filter(|line| line.ends_with(b"\n"));
        self.start = lines.next().and_then(|line| serde_json::from_slice(line).ok());
        self.result = lines.next().and_then(|line| serde_json::from_slice(line).ok());
        Ok(())
    }

    /// Returns the recorded processes, without the holder.
    fn members(&self) -> Vec<i32> {
        // A process that cannot be identified as a member is not signalled: it may belong to
        // another user, and `wait` calls this again.
        self.start
            .iter()
            .flat_map(|start| quell_overlay::other_members(&start.namespace, start.holder))
            .collect()
    }
}

fn wait(
    mut child: Child,
    pipe: &Fifo,
    is_met: &dyn Fn(Instant) -> bool,
    interrupted: &AtomicBool,
    notice: &dyn Fn(&str),
) -> Result<RecordingEnd, Failure> {
    let mut received = Received::default();
    let (mut status, mut reasons_acted_on, mut signalled) = (None, 0, HashSet::new());
    // The time at which the program ended, or at which the recorded processes were last signalled.
    let mut waiting_since = None;
    let (mut was_noticed, mut started_at) = (false, None);
    loop {
        if status.is_none() {
            let failed = |e| Failure::cannot(format!("cannot wait for the program: {e}"));
            status = child.try_wait().map_err(failed)?;
        }
        received.read(pipe)?;
        if received.start.is_some() {
            started_at.get_or_insert_with(Instant::now);
        }
        if let Some(status) = status
            && (received.is_closed || received.result.is_some())
        {
            let (started, was_stopped) = (received.start.is_some(), reasons_acted_on > 0);
            return Ok(RecordingEnd { status, started, result: received.result, was_stopped });
        }
        let is_interrupted = interrupted.load(Ordering::Relaxed);
        let reasons = u8::from(started_at.is_some_and(is_met)) + u8::from(is_interrupted);
        if reasons > reasons_acted_on {
            reasons_acted_on = reasons;
            signalled.clear();
            (waiting_since, was_noticed) = (None, false);
            if status.is_none() {
                terminate(child.id() as i32, &mut signalled);
            }
            received.members().into_iter().for_each(|pid| terminate(pid, &mut signalled));
        } else if reasons_acted_on > 0 {
            // Also signals processes that were being created at the time of the first signal.
            // Children of a process that was signalled are not signalled: it may need them for its
            // own cleanup.
            for pid in received.members() {
                if parent_of(pid).is_none_or(|parent| !signalled.contains(&parent)) {
                    terminate(pid, &mut signalled);
                }
            }
        }
        if status.is_some() || reasons_acted_on > 0 {
            let since = waiting_since.get_or_insert_with(Instant::now);
            if !was_noticed && since.elapsed() > NOTICE_DELAY {
                was_noticed = true;
                let left: Vec<String> = received.members().iter().map(i32::to_string).collect();
                if !left.is_empty() {
                    let left = left.join(", ");
                    // The second Ctrl-C ends this command.
                    let next = match is_interrupted {
                        false => "Ctrl-C ends them with SIGTERM",
                        true => {
                            "Ctrl-C again leaves them running, and the image is written when they have ended"
                        }
                    };
                    notice(&format!("still running, and recorded: process {left}; {next}"));
                }
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Sends SIGTERM to a process, unless it was sent before.
fn terminate(pid: i32, signalled: &mut HashSet<i32>) {
    if signalled.insert(pid) {
        let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::TERM));
    }
}

fn parent_of(pid: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}
