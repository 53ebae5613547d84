//! Remarks for the interpretation of a report: assumptions, skipped lines, and unknown values.

use crate::analysis::measured::Measured;
use crate::format::{count, plural};
use crate::report::Report;

pub fn notes(measured: &Measured, report: &Report) -> Vec<String> {
    let (totals, skipped) = (&report.totals, &report.totals.skipped);
    let has_calls = totals.calls > 0;
    let dropped = measured.map.paths.dropped;
    let hidden_calls = measured.reader.resolver.hidden_calls;
    let notes = [
        (!has_calls, "the traces contain no file-system calls".to_owned()),
        (
            has_calls && totals.shared.metadata == 0,
            "no metadata call goes to a shared file system; --shared DIR treats a directory as shared"
                .to_owned(),
        ),
        (
            has_calls && !measured.reader.timestamps.has_times,
            "the traces have no times (strace -ttt), so there are no rates and no numbers of nodes"
                .to_owned(),
        ),
        (
            skipped.truncated + skipped.foreign + skipped.orphans > 0,
            format!(
                "not counted: {}, {} that strace did not write, and {} of a call without its first half",
                plural(skipped.truncated, "truncated line", "truncated lines"),
                plural(skipped.foreign, "line", "lines"),
                plural(skipped.orphans, "second half", "second halves"),
            ),
        ),
        (
            totals.elsewhere.unknown > 0,
            format!(
                "{} use descriptors or directories whose paths are not in the traces (strace -y prints them)",
                plural(totals.elsewhere.unknown, "call", "calls")
            ),
        ),
        (
            hidden_calls > 0,
            format!(
                "{} of io_uring or aio make requests that a trace of calls does not show",
                plural(hidden_calls, "call", "calls")
            ),
        ),
        (
            dropped > 0,
            format!(
                "the traces name more or deeper paths than are stored: {} lookups count for a directory above",
                count(dropped)
            ),
        ),
        (
            report.remaining.direct.metadata > 0,
            "operations are estimated for a node with cold caches, whose client keeps directories and \
             attributes for a second and looks up files again, as MooseFS does; a client that keeps more \
             sends fewer"
                .to_owned(),
        ),
    ];
    notes.into_iter().filter(|(condition, _)| *condition).map(|(_, text)| text).collect()
}
