//! `quell log map` and `query`: show the log of each range of bytes of a file, and the reverse.
//! Lines are printed while the logs are read.

use std::fmt::Write;
use std::process::ExitCode;

use quell_log::{ByteState, LogLocation, LoggedRange, MappedRange, ResolvedFile};
use quell_vfs::ErrorKind;
use serde_json::json;

use super::log_stores::{open_file, open_stores};
use crate::arguments::{LogMapArgs, LogQueryArgs, PartArgs};
use crate::failure::{Failure, YES};
use crate::inputs::shown;
use crate::output;

/// Size at which buffered lines are printed.
const BUFFER_BYTES: usize = 1 << 16;

/// Buffered lines for standard output.
struct Lines(String);

impl Lines {
    fn new() -> Lines {
        Lines(String::with_capacity(BUFFER_BYTES))
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{line}");
        if self.0.len() >= BUFFER_BYTES {
            self.print();
        }
    }

    fn print(&mut self) {
        output::print(format_args!("{}", self.0));
        self.0.clear();
    }
}

/// Returns the resolved file, and the end offset of the part that begins at `start`.
fn resolve(part: &PartArgs, start: u64) -> Result<(ResolvedFile, u64), Failure> {
    let stores = open_stores(&part.stores)?;
    let container = open_file(&stores, &part.stores, &part.path)?;
    let file = ResolvedFile::resolve(container, part.threads.count.into())?;
    Ok((file, part.length.map_or(u64::MAX, |length| start.saturating_add(length))))
}

pub fn map(args: &LogMapArgs) -> Result<ExitCode, Failure> {
    let (file, end) = resolve(&args.part, args.offset)?;
    let mut lines = Lines::new();
    if !args.part.output.json {
        lines.line(format_args!(
            "{:>11} {:>11}  {:<16} {:>11} {:>11} {:>5} {:>8}",
            "start", "end", "writer", "payload", "log offset", "epoch", "sequence"
        ));
    }
    file.map(args.offset, end, &mut |MappedRange { start, end, location }| match location {
        None if args.part.output.json => {
            lines.line(format_args!("{}", json!({ "start": start, "end": end, "hole": true })))
        }
        None => lines.line(format_args!("{start:>11} {end:>11}  hole")),
        Some(LogLocation { writer, payload_offset, log_offset, epoch, sequence }) if args.part.output.json => {
            lines.line(format_args!(
                "{}",
                json!({ "start": start, "end": end, "writer": format!("{writer:016x}"),
                    "payload_offset": payload_offset, "log_offset": log_offset, "epoch": epoch, "sequence": sequence })
            ));
        }
        Some(LogLocation { writer, payload_offset, log_offset, epoch, sequence }) => {
            lines.line(format_args!(
                "{start:>11} {end:>11}  {writer:016x} {payload_offset:>11} {log_offset:>11} {epoch:>5} {sequence:>8}"
            ));
        }
    })?;
    lines.print();
    Ok(ExitCode::from(YES))
}

pub fn query(args: &LogQueryArgs) -> Result<ExitCode, Failure> {
    let (file, end) = resolve(&args.part, args.position)?;
    let mut lines = Lines::new();
    if !args.part.output.json {
        lines.line(format_args!(
            "{:>11} {:>11} {:>11} {:>11}  {:<11} by",
            "payload", "log offset", "start", "end", "state"
        ));
    }
    let visited = file.query(args.writer, args.position, end, &mut |range| {
        let LoggedRange { payload_offset, log_offset, start, end, state } = range;
        let (state, by) = match state {
            ByteState::Held => ("held", None),
            ByteState::Overwritten(location) => ("overwritten", Some(location)),
            ByteState::Truncated => ("truncated", None),
        };
        if args.part.output.json {
            let mut value = json!({ "payload_offset": payload_offset, "log_offset": log_offset,
                "start": start, "end": end, "now": state });
            if let Some(LogLocation { writer, epoch, sequence, .. }) = by {
                value["by"] =
                    json!({ "writer": format!("{writer:016x}"), "epoch": epoch, "sequence": sequence });
            }
            lines.line(format_args!("{value}"));
        } else {
            let by = by.map(|location| format!("{:016x}", location.writer)).unwrap_or_default();
            let line =
                format!("{payload_offset:>11} {log_offset:>11} {start:>11} {end:>11}  {state:<11} {by}");
            lines.line(format_args!("{}", line.trim_end()));
        }
    });
    if let Err(error) = visited {
        return Err(match error.kind {
            ErrorKind::NotFound => Failure::wrong_input(format!(
                "{} has no writer {:016x}; `quell log stat` lists the writers of a file",
                shown(&args.part.path),
                args.writer
            )),
            _ => error.into(),
        });
    }
    lines.print();
    Ok(ExitCode::from(YES))
}
