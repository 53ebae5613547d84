//! Progress messages: a line on a terminal, lines at intervals in a log, none with `--quiet`.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use quell_index::BuildProgress;
use quell_log::ToolProgress;
use quell_supervisor::{Console, ProgressTask, is_hang_up_ignored};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::Failure;
use crate::output::{counted, errln};

/// Interval between two lines in a log.
pub const LOG_INTERVAL: Duration = Duration::from_secs(10);
const BAR_INTERVAL: Duration = Duration::from_millis(100);

/// Returns a flag that the first Ctrl-C, SIGTERM or SIGHUP sets. While it is set, Ctrl-C or SIGTERM
/// ends the process at once. SIGHUP never does, because some programs send it together with
/// SIGTERM, and it has no effect below nohup(1).
pub fn interruption() -> Arc<AtomicBool> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order of registration matters: the first signal sets the flag; the second one finds
        // it set and ends the process.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, 130, interrupted.clone());
        let _ = signal_hook::flag::register(signal, interrupted.clone());
    }
    if !is_hang_up_ignored() {
        let _ = signal_hook::flag::register(SIGHUP, interrupted.clone());
    }
    interrupted
}

/// Standard error, for the supervisor.
#[derive(Debug)]
pub struct Terminal;

impl Console for Terminal {
    fn print(&self, message: &str) {
        errln!("quell: {message}");
    }

    fn watch(&self, task: &ProgressTask<'_>, is_unwanted: &dyn Fn() -> bool, run: &mut (dyn FnMut() + Send)) {
        let ProgressTask { title, progress, expected_entries, quiet } = *task;
        watch(title, progress, expected_entries, quiet, is_unwanted, run);
    }
}

/// Runs `work` and shows its `progress`. `unwanted` is called at intervals; if it returns true, the
/// work ends early. `expected` is the number of entries of an older index, if there is one.
pub fn watch<T: Send>(
    what: &str,
    progress: &BuildProgress,
    expected: Option<u64>,
    quiet: bool,
    unwanted: &dyn Fn() -> bool,
    work: impl FnOnce() -> T + Send,
) -> T {
    let line = |elapsed| format!("{what}: {}", state(progress, expected, elapsed));
    let look = || {
        if unwanted() {
            progress.stop();
        }
    };
    watch_line(&line, quiet, &look, work)
}

/// Runs `work` and shows the text that `line` returns for the elapsed time. `look` is called at
/// intervals.
pub fn watch_line<T: Send>(
    line: &dyn Fn(Duration) -> String,
    quiet: bool,
    look: &dyn Fn(),
    work: impl FnOnce() -> T + Send,
) -> T {
    let terminal = std::io::stderr().is_terminal();
    let bar = if quiet || !terminal { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    bar.set_style(ProgressStyle::with_template("{spinner} {wide_msg}").expect("a constant template"));
    let begun = Instant::now();
    let mut next_line = LOG_INTERVAL;
    let result = std::thread::scope(|scope| {
        let worker = scope.spawn(work);
        while !worker.is_finished() {
            std::thread::park_timeout(if begun.elapsed() < BAR_INTERVAL {
                Duration::from_millis(5)
            } else {
                BAR_INTERVAL
            });
            look();
            if terminal {
                bar.set_message(line(begun.elapsed()));
                bar.tick();
            } else if !quiet && begun.elapsed() > next_line {
                errln!("quell: {}", line(begun.elapsed()));
                next_line += LOG_INTERVAL;
            }
        }
        match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
    bar.finish_and_clear();
    result
}

/// The counters of a tool that copies or converts files, which can be stopped.
pub trait FileProgress: Sync {
    fn files(&self) -> u64;
    fn bytes(&self) -> u64;
    fn stop(&self);
}

impl FileProgress for ToolProgress {
    fn files(&self) -> u64 {
        self.files()
    }

    fn bytes(&self) -> u64 {
        self.bytes()
    }

    fn stop(&self) {
        self.stop();
    }
}

impl FileProgress for quell_staging::Progress {
    fn files(&self) -> u64 {
        self.files()
    }

    fn bytes(&self) -> u64 {
        self.bytes()
    }

    fn stop(&self) {
        self.stop();
    }
}

/// Runs `work` and shows its files, bytes and rate. Ctrl-C stops `progress`, and is an error with
/// the message `interrupted` when `work` has ended.
pub fn watch_files<T: Send>(
    title: &str,
    progress: &dyn FileProgress,
    quiet: bool,
    interrupted: &str,
    work: impl FnOnce() -> T + Send,
) -> Result<T, Failure> {
    let is_interrupted = interruption();
    let stop_if_interrupted = || {
        if is_interrupted.load(Ordering::Relaxed) {
            progress.stop();
        }
    };
    let line = |elapsed: Duration| {
        let rate = progress.bytes() as f64 / elapsed.as_secs_f64().max(0.001);
        let (files, bytes) = (counted(progress.files(), "file", "files"), HumanBytes(progress.bytes()));
        format!("{title}: {files}, {bytes}, {}/s", HumanBytes(rate as u64))
    };
    let result = watch_line(&line, quiet, &stop_if_interrupted, work);
    match is_interrupted.load(Ordering::Relaxed) {
        true => Err(Failure::interrupted(format!("interrupted: {interrupted}"))),
        false => Ok(result),
    }
}

fn state(progress: &BuildProgress, expected: Option<u64>, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(0.001);
    let entries = progress.entries();
    let rate = (entries as f64 / seconds) as u64;
    let mut line = format!(
        "{} {}, {}/s",
        HumanCount(entries),
        if entries == 1 { "entry" } else { "entries" },
        HumanCount(rate)
    );
    // The size of a tree is unknown before it was read; an older index is the best estimate.
    let share = match expected {
        Some(expected) if expected > entries => entries as f64 / expected as f64,
        _ => progress.share(),
    };
    if let Some(left) = remaining(share, seconds) {
        line += &format!(", {:.0} %, about {} left", share * 100.0, HumanDuration(left));
    }
    line
}

/// The remaining time is estimated after this part of the work and this time in seconds. The rate
/// of the first seconds is not representative: caches are cold, and few directories are known.
const SHARE_KNOWN: f64 = 0.1;
const SECONDS_KNOWN: f64 = 5.0;

/// Returns the remaining time, or `None` if too little is done to estimate it.
pub fn remaining(share: f64, seconds: f64) -> Option<Duration> {
    let is_known = (SHARE_KNOWN..1.0).contains(&share) && seconds >= SECONDS_KNOWN;
    is_known.then(|| Duration::from_secs_f64(seconds * (1.0 - share) / share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remaining_time_is_estimated_only_from_enough_work() {
        assert_eq!(remaining(0.25, 10.0), Some(Duration::from_secs(30)));
        for (share, seconds) in [(0.0, 60.0), (0.05, 60.0), (0.5, 1.0), (1.0, 60.0), (f64::NAN, 60.0)] {
            assert_eq!(remaining(share, seconds), None, "{share} {seconds}");
        }
    }
}
