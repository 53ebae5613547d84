//! Reads the traces of `quell profile` twice, with a progress bar, until a signal interrupts it.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use quell_profile::{Capacity, Directories, FirstReading, Links, LocationRules, Report, Tracing};

use crate::failure::Failure;
use crate::inputs::shown;
use crate::output::errln;
use crate::progress::{self, LOG_INTERVAL};
use crate::tracer::Traced;
use crate::traces::Traces;

/// Number of lines between two checks of the clock and of signals.
const LINES_BETWEEN_CHECKS: u64 = 4096;

/// The input of a report, and how it is read.
pub struct Reading<'a> {
    pub traces: &'a Traces,
    pub rules: &'a LocationRules,
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    pub interrupted: &'a AtomicBool,
    pub quiet: bool,
}

impl Reading<'_> {
    /// Reads the traces twice, with a progress bar.
    pub fn read(
        &self,
        traced: Option<&Traced>,
        capacity: Option<&Capacity>,
        links: &mut dyn Links,
        directories: &mut dyn Directories,
    ) -> Result<(Report, Option<Tracing>), Failure> {
        let mut bar = Bar::new(self.traces.bytes * 2, self.quiet);
        let environment = self.environment.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
        let mut first = FirstReading::new(self.rules, quell_profile::variables(environment), links);
        if let Some(cost) = traced.and_then(|traced| traced.call_cost) {
            first.set_call_cost(cost);
        }
        self.traces.read(&mut |line| {
            first.line(line.source, line.text, || format!("{}:{}", shown(line.path), line.number));
            bar.advance("reading the trace", line.text.len(), self.interrupted)
        })?;
        stop_if(self.interrupted)?;
        let summary = first.end();
        let tracing = traced.map(|traced| traced.tracing(&summary));
        let mut second = first.choose(tracing.as_ref().map_or(1.0, |t| t.slow_down), directories);
        self.traces.read(&mut |line| {
            second.line(line.source, line.text);
            bar.advance("replaying the trace", line.text.len(), self.interrupted)
        })?;
        stop_if(self.interrupted)?;
        bar.end();
        Ok((second.report(capacity), tracing))
    }
}

fn stop_if(interrupted: &AtomicBool) -> Result<(), Failure> {
    match interrupted.load(Ordering::Relaxed) {
        true => Err(Failure::interrupted("interrupted: no report was written; the trace is unchanged")),
        false => Ok(()),
    }
}

/// Progress of the reading.
struct Bar {
    bar: ProgressBar,
    terminal: bool,
    quiet: bool,
    done: u64,
    all: u64,
    lines: u64,
    next_line: Duration,
    begin: Instant,
}

impl Bar {
    fn new(all: u64, quiet: bool) -> Bar {
        let terminal = std::io::stderr().is_terminal();
        let bar = if quiet || !terminal { ProgressBar::hidden() } else { ProgressBar::new(all) };
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {bytes}/{total_bytes}{msg}");
        bar.set_style(style.expect("a constant template"));
        Bar { bar, terminal, quiet, done: 0, all, lines: 0, next_line: LOG_INTERVAL, begin: Instant::now() }
    }

    /// Counts a line of this many bytes and updates the bar. Returns `false` if the reading was
    /// interrupted.
    fn advance(&mut self, activity: &'static str, bytes: usize, interrupted: &AtomicBool) -> bool {
        self.done += bytes as u64 + 1;
        self.lines += 1;
        if !self.lines.is_multiple_of(LINES_BETWEEN_CHECKS) {
            return true;
        }
        let elapsed = self.begin.elapsed();
        if self.terminal && elapsed > Duration::from_secs(1) {
            let share = self.done as f64 / self.all.max(1) as f64;
            let left = progress::remaining(share, elapsed.as_secs_f64());
            self.bar.set_prefix(activity);
            self.bar.set_message(
                left.map_or_else(String::new, |left| format!(", about {} left", HumanDuration(left))),
            );
            self.bar.set_position(self.done);
        } else if !self.terminal && !self.quiet && elapsed > self.next_line {
            self.next_line += LOG_INTERVAL;
            errln!("quell: {activity}: {} %", self.done * 100 / self.all.max(1));
        }
        !interrupted.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}
