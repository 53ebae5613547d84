//! Sentences that the summary and the page have in common.

use crate::format::{command, count, duration, name, number, percentage, plural};
use crate::report::{Report, SlowDown};

/// Returns the traced command, or the number of traces.
pub fn subject(report: &Report) -> String {
    match report.command.is_empty() {
        true => plural(report.traces.len() as u64, "trace", "traces"),
        false => command(&report.command),
    }
}

/// Returns the node and the job, if they are known.
pub fn origin(report: &Report) -> Option<String> {
    const COLUMNS_MAX: usize = 60;
    let host = report.host.as_ref().map(|host| format!("on {}", name(host, COLUMNS_MAX)));
    let job = report.job.as_ref().map(|job| format!("job {}", name(job, COLUMNS_MAX)));
    let known: Vec<String> = host.into_iter().chain(job).collect();
    (!known.is_empty()).then(|| known.join(", "))
}

/// Returns the durations with and without the tracer, each with its source, and the exit code.
pub fn timing(report: &Report) -> String {
    let Some(tracing) = &report.tracing else {
        return match report.duration_s > 0.0 {
            true => {
                format!("duration {} in the trace, including the tracer's time", duration(report.duration_s))
            }
            false => "the traces have no times".to_owned(),
        };
    };
    let tracer = name(&tracing.tracer, 30);
    let (direct, traced) = (duration(tracing.direct_s), duration(tracing.traced_s));
    let slow_down = number(tracing.slow_down);
    let times = match tracing.how {
        SlowDown::Measured => {
            format!("ran {direct} (measured); {traced} with {tracer} (measured, {slow_down} times)")
        }
        SlowDown::Estimated => {
            format!("ran {traced} with {tracer} (measured); about {direct} without (estimated)")
        }
        SlowDown::Unknown => {
            format!("ran {traced} with {tracer} (measured); without it unknown, --compare measures it")
        }
    };
    let exit = match tracing.exit_code {
        Some(0) => String::new(),
        Some(code) => format!("; exit code {code}"),
        None => "; ended by a signal".to_owned(),
    };
    times + &exit
}

/// Returns the method by which the rates of the report were determined.
pub fn rate_source(report: &Report) -> &'static str {
    match report.tracing.as_ref().map(|tracing| tracing.how) {
        Some(SlowDown::Measured) => "Rates are those without the tracer; its slow-down was measured.",
        Some(SlowDown::Estimated) => "Rates are those without the tracer, whose slow-down is estimated.",
        Some(SlowDown::Unknown) | None => "Rates include the time of the tracer, so real rates are higher.",
    }
}

/// Returns the calls with missing names on shared file systems, and their part.
pub fn missing_shared(report: &Report) -> String {
    let shared = &report.totals.shared;
    format!(
        "{} of {} ({})",
        count(shared.missing),
        plural(shared.metadata, "metadata call", "metadata calls"),
        percentage(shared.missing, shared.metadata)
    )
}
