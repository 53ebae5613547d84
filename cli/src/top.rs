//! Commands that show rates, and update them until the user ends the command.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::arguments::TopArgs;
use crate::failure::{Failure, NO};
use crate::output::{has_failed, outln};
use crate::progress::interruption;
use crate::screen::Screen;

/// How often the command checks whether it is to end.
const INPUT_INTERVAL: Duration = Duration::from_millis(100);
/// How long the command waits for the end of the thread that requests the counters.
const END_LIMIT: Duration = Duration::from_secs(1);

/// The rates of an interval.
pub trait Shown {
    /// Returns a table with at most this number of lines and columns.
    fn table(&self, lines_max: usize, columns_max: usize) -> String;

    /// Returns the rates and the counters as JSON. `now` is the time of the counters.
    fn json(&self, now: SystemTime) -> Value;

    /// Returns whether all servers have answered.
    fn is_complete(&self) -> bool;
}

/// Shows the rates until the user ends the command, or once. `title` is shown during the first
/// interval. `sample` requests the counters, and `rates` compares the counters of two times.
pub fn run<S: Send + 'static, R: Shown>(
    args: &TopArgs,
    title: &str,
    sample: impl FnMut() -> Result<S, Failure> + Send + 'static,
    rates: impl Fn(&S, &S) -> R,
) -> Result<ExitCode, Failure> {
    let interrupted = interruption();
    let sampler = Sampler::start(sample, Duration::from_secs_f64(args.interval));
    let is_screen = !args.once && !args.json && crate::output::is_terminal();
    let screen = if is_screen { Some(Screen::begin()?) } else { None };
    let samples = &sampler.samples;
    let shown = show(args, title, samples, &rates, screen.as_ref(), &|| interrupted.load(Ordering::Relaxed));
    if let Some(screen) = screen {
        screen.end();
    }
    sampler.end();
    shown
}

fn show<S, R: Shown>(
    args: &TopArgs,
    title: &str,
    samples: &Receiver<Result<S, Failure>>,
    rates: &dyn Fn(&S, &S) -> R,
    screen: Option<&Screen>,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<ExitCode, Failure> {
    let mut earlier: Option<S> = None;
    loop {
        let Some(later) = next(samples, screen, is_interrupted) else { return Ok(ExitCode::SUCCESS) };
        let later = later?;
        let rates = earlier.as_ref().map(|earlier| rates(earlier, &later));
        earlier = Some(later);
        let Some(rates) = rates else {
            if let Some(screen) = screen {
                screen.show(&format!("{title}: the first interval is measured"));
            }
            continue;
        };
        match (screen, args.json) {
            (Some(screen), _) => {
                let (lines, columns) = screen.size();
                screen.show(&rates.table(lines, columns));
            }
            (None, true) => outln!("{}", rates.json(SystemTime::now())),
            (None, false) => {
                outln!("{}{}", rates.table(usize::MAX, usize::MAX), if args.once { "" } else { "\n" })
            }
        }
        if args.once {
            return Ok(if rates.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(NO) });
        }
        if has_failed() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Returns the next sample, or `None` if the user ends the command before.
fn next<S>(
    samples: &Receiver<Result<S, Failure>>,
    screen: Option<&Screen>,
    is_interrupted: &dyn Fn() -> bool,
) -> Option<Result<S, Failure>> {
    loop {
        if is_interrupted() || screen.is_some_and(Screen::is_ended_by_key) {
            return None;
        }
        match samples.recv_timeout(INPUT_INTERVAL) {
            Ok(sample) => return Some(sample),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// A thread that requests the counters at intervals: a server that is stopped may delay the answers
/// for several seconds, in which the command can be ended.
struct Sampler<S> {
    samples: Receiver<Result<S, Failure>>,
    /// The thread ends when this sender is dropped.
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl<S: Send + 'static> Sampler<S> {
    fn start(
        mut sample: impl FnMut() -> Result<S, Failure> + Send + 'static,
        interval: Duration,
    ) -> Sampler<S> {
        let ((sender, samples), (end, is_ended)) = (channel(), channel());
        let thread = std::thread::spawn(move || {
            loop {
                let begun = Instant::now();
                let sampled = sample();
                let is_last = sampled.is_err();
                let rest = interval.saturating_sub(begun.elapsed());
                if sender.send(sampled).is_err()
                    || is_last
                    || is_ended.recv_timeout(rest) != Err(RecvTimeoutError::Timeout)
                {
                    return;
                }
            }
        });
        Sampler { samples, end, thread }
    }

    /// Ends the thread, which closes its connection. A thread that waits for an answer ends with
    /// the process.
    fn end(self) {
        drop(self.end);
        let give_up = Instant::now() + END_LIMIT;
        while !self.thread.is_finished() && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
