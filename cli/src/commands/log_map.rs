//! `quell log map` and `query`: show which log has which bytes of a file, and the reverse. Lines
//! are printed while the logs are resolved.

use std::fmt::Write;
use std::process::ExitCode;

use quell_log::{Fate, Resolved, Source, Stretch, Wrote};
use serde_json::json;

use super::log_list::{container, open};
use crate::arguments::{LogMapArgs, LogQueryArgs, PartArgs};
use crate::failure::{Failure, YES};
use crate::output;

/// Buffered lines for standard output.
struct Lines(String);

/// Size at which the buffer is printed.
const PIECE_BYTES: usize = 1 << 16;

impl Lines {
    fn new() -> Lines {
        Lines(String::with_capacity(PIECE_BYTES))
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{line}");
        if self.0.len() >= PIECE_BYTES {
            output::print(format_args!("{}", self.0));
            self.0.clear();
        }
    }

    fn end(self) {
        output::print(format_args!("{}", self.0));
    }
}

/// Returns the resolved file, and the end offset of the range that begins at `start`.
fn resolved(part: &PartArgs, start: u64) -> Result<(Resolved, u64), Failure> {
    let stores = open(&part.stores)?;
    let resolved = Resolved::of(container(&stores, &part.path)?, part.threads.into())?;
    Ok((resolved, part.length.map_or(u64::MAX, |length| start.saturating_add(length))))
}

pub fn map(args: &LogMapArgs) -> Result<ExitCode, Failure> {
    let (resolved, end) = resolved(&args.part, args.offset)?;
    let mut lines = Lines::new();
    if !args.part.json {
        lines.line(format_args!(
            "{:>14} {:>14}  {:<16} {:>14} {:>14} {:>6} {:>8}",
            "start", "end", "writer", "position", "place", "epoch", "sequence"
        ));
    }
    resolved.map(args.offset, end, &mut |Stretch { start, end, source }| match source {
        None if args.part.json => {
            lines.line(format_args!("{}", json!({ "start": start, "end": end, "hole": true })))
        }
        None => lines.line(format_args!("{start:>14} {end:>14}  hole")),
        Some(Source { writer, position, place, epoch, sequence }) if args.part.json => {
            lines.line(format_args!(
                "{}",
                json!({ "start": start, "end": end, "writer": format!("{writer:016x}"), "position": position,
                    "place": place, "epoch": epoch, "sequence": sequence })
            ));
        }
        Some(Source { writer, position, place, epoch, sequence }) => lines.line(format_args!(
            "{start:>14} {end:>14}  {writer:016x} {position:>14} {place:>14} {epoch:>6} {sequence:>8}"
        )),
    })?;
    lines.end();
    Ok(ExitCode::from(YES))
}

pub fn query(args: &LogQueryArgs) -> Result<ExitCode, Failure> {
    let (resolved, end) = resolved(&args.part, args.position)?;
    let mut lines = Lines::new();
    if !args.part.json {
        lines.line(format_args!("{:>14} {:>14} {:>14} {:>14}  now", "position", "place", "start", "end"));
    }
    resolved.query(args.writer, args.position, end, &mut |Wrote { position, place, start, end, fate }| {
        let (state, by) = match fate {
            Fate::Held => ("held", None),
            Fate::Overwritten(source) => ("overwritten", Some(source)),
            Fate::Cut => ("cut", None),
        };
        if args.part.json {
            let mut value =
                json!({ "position": position, "place": place, "start": start, "end": end, "now": state });
            if let Some(Source { writer, epoch, sequence, .. }) = by {
                value["by"] =
                    json!({ "writer": format!("{writer:016x}"), "epoch": epoch, "sequence": sequence });
            }
            lines.line(format_args!("{value}"));
        } else {
            let by =
                by.map(|s| format!(" by {:016x} in epoch {}, sequence {}", s.writer, s.epoch, s.sequence));
            let by = by.unwrap_or_default();
            lines.line(format_args!("{position:>14} {place:>14} {start:>14} {end:>14}  {state}{by}"));
        }
    })?;
    lines.end();
    Ok(ExitCode::from(YES))
}
