//! The report as one HTML page that needs no network, script or font. The template engine escapes
//! its text, after `format::escaped` has made characters visible that a browser would hide.

use askama::Template;

use crate::format::{count, date, mode, nodes, number, percentage, plural, truncated};
use crate::render::before_after::before_after;
use crate::render::drawing::{self, Drawing, Palette, Width};
use crate::render::icicle::icicle;
use crate::render::lanes::lanes;
use crate::render::location_bars::location_bars;
use crate::render::statements;
use crate::render::timeline::timeline;
use crate::report::Report;

/// Maximum number of rows of a table on the page; report.json has all.
const ROWS_MAX: usize = 40;
/// Maximum number of commands to run next; the table of trees has more.
const COMMANDS_MAX: usize = 12;
/// Maximum number of directories that are shown for one search.
const SEARCH_DIRECTORIES_MAX: usize = 12;
/// Maximum width of a name in columns, three or four lines of a table. A longer name is shown
/// without its middle.
const NAME_MAX: usize = 240;
/// Maximum width of a command in columns: long enough to copy a complete command.
const COMMAND_MAX: usize = 2000;

/// Returns `report.html`.
pub fn html(report: &Report) -> String {
    let page = Page { report, day: drawing::DAY, night: drawing::NIGHT };
    page.render().expect("rendering to memory cannot fail")
}

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    report: &'a Report,
    day: Palette,
    night: Palette,
}

/// One headline number of the page.
struct Headline {
    label: &'static str,
    figure: String,
    explanation: String,
}

/// A chart in both widths; the page shows the one that fits.
struct Figure {
    title: String,
    wide: String,
    narrow: String,
}

impl Page<'_> {
    fn subject(&self) -> String {
        truncated(&statements::subject(self.report), 2 * NAME_MAX)
    }

    /// Returns the facts below the title.
    fn facts(&self) -> String {
        let totals = &self.report.totals;
        let facts = [
            statements::origin(self.report),
            date(self.report.started_s, self.report.utc_offset_s).map(|date| format!("started {date}")),
            Some(statements::timing(self.report)),
            Some(plural(totals.processes, "process", "processes")),
            Some(plural(totals.calls, "file-system call", "file-system calls")),
        ];
        facts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
    }

    fn rate_source(&self) -> &'static str {
        statements::rate_source(self.report)
    }

    /// Returns the operations before and after, the nodes to saturation, and the missing names.
    fn headlines(&self) -> Vec<Headline> {
        let report = self.report;
        let remaining = &report.remaining;
        let direct = remaining.direct.metadata;
        if direct == 0 {
            return Vec::new();
        }
        let rates = &report.metadata_rate.scenarios;
        let mut headlines = vec![Headline {
            label: "Operations without Quell",
            figure: count(direct),
            explanation: format!(
                "average {}/s, peak {}/s",
                number(rates.direct.average),
                number(rates.direct.peak)
            ),
        }];
        if !report.trees.is_empty() {
            headlines.push(Headline {
                label: "Operations with an index",
                figure: count(remaining.index.metadata),
                explanation: format!(
                    "{}; with a boot image {}",
                    percentage(remaining.index.metadata, direct),
                    count(remaining.boot.metadata)
                ),
            });
        }
        if let Some(saturation) = &report.nodes {
            headlines.push(Headline {
                label: "Nodes to saturation",
                figure: match report.trees.is_empty() {
                    true => nodes(saturation.direct),
                    false => format!("{} → {}", nodes(saturation.direct), nodes(saturation.index)),
                },
                explanation: format!("at {} operations per second", number(saturation.capacity)),
            });
        }
        headlines.push(Headline {
            label: "Missing names, shared",
            figure: count(report.totals.shared.missing),
            explanation: format!(
                "{} of the metadata calls there",
                percentage(report.totals.shared.missing, report.totals.shared.metadata)
            ),
        });
        headlines
    }

    fn figure(&self, draw: fn(&Report, Width) -> Drawing) -> Figure {
        let [wide, narrow] = [Width::Wide, Width::Narrow].map(|width| draw(self.report, width));
        Figure { title: wide.title.clone(), wide: wide.inline_svg(), narrow: narrow.inline_svg() }
    }

    fn before_after(&self) -> Figure {
        self.figure(before_after)
    }

    fn icicle(&self) -> Figure {
        self.figure(icicle)
    }

    fn timeline(&self) -> Figure {
        self.figure(timeline)
    }

    fn lanes(&self) -> Figure {
        self.figure(lanes)
    }

    fn location_bars(&self) -> Figure {
        self.figure(location_bars)
    }

    /// Returns the calls by name, in decreasing order of number.
    fn by_call(&self) -> Vec<(&str, u64)> {
        let mut calls: Vec<_> =
            self.report.totals.by_call.iter().map(|(call, n)| (call.as_str(), *n)).collect();
        calls.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        calls
    }

    /// Returns the numbers of lines that are not counted, with the reason.
    fn skipped(&self) -> Vec<(&'static str, u64)> {
        let skipped = &self.report.totals.skipped;
        let elsewhere = &self.report.totals.elsewhere;
        vec![
            ("calls on pipes, sockets, event and memory descriptors", elsewhere.no_file),
            ("calls on descriptors or directories that the trace does not explain", elsewhere.unknown),
            ("calls that failed before they referred to a file", elsewhere.bad),
            ("system calls that do not refer to a file system", skipped.other_calls),
            ("signals, exits and remarks of the tracer", skipped.events),
            ("second halves of interrupted calls, counted with their first half", skipped.resumed),
            ("second halves without a first half", skipped.orphans),
            ("truncated lines", skipped.truncated),
            ("lines not written by strace", skipped.foreign),
            ("calls that had not ended when the trace did; counted, without a result", skipped.unfinished),
        ]
    }
}

/// Formats the length of a list.
fn number_of<T>(list: &[T], one: &str, more: &str) -> String {
    plural(list.len() as u64, one, more)
}

/// Returns the first rows of a list.
fn first<T>(list: &[T], number: usize) -> &[T] {
    &list[..list.len().min(number)]
}

/// Returns the text below a table that does not have all rows.
fn left_out(length: usize, shown: usize) -> Option<String> {
    let more = length.checked_sub(shown).filter(|more| *more > 0)?;
    Some(format!("{} more in report.json.", count(more as u64)))
}

/// The functions of `format`, for the template.
mod filters {
    use std::borrow::Borrow;

    use askama::{Result, Values};

    use crate::format;

    #[askama::filter_fn]
    pub fn count(number: impl Borrow<u64>, _: &dyn Values) -> Result<String> {
        Ok(format::count(*number.borrow()))
    }

    #[askama::filter_fn]
    pub fn bytes(number: impl Borrow<u64>, _: &dyn Values) -> Result<String> {
        Ok(format::bytes(*number.borrow()))
    }

    #[askama::filter_fn]
    pub fn number(number: impl Borrow<f64>, _: &dyn Values) -> Result<String> {
        Ok(format::number(*number.borrow()))
    }

    #[askama::filter_fn]
    pub fn duration(seconds: impl Borrow<f64>, _: &dyn Values) -> Result<String> {
        Ok(format::duration(*seconds.borrow()))
    }

    #[askama::filter_fn]
    pub fn nodes(number: impl Borrow<Option<u64>>, _: &dyn Values) -> Result<String> {
        Ok(format::nodes(*number.borrow()))
    }

    /// Formats a path, or any other text of a trace that may be long.
    #[askama::filter_fn]
    pub fn name(text: impl AsRef<str>, _: &dyn Values) -> Result<String> {
        Ok(format::name(text.as_ref(), super::NAME_MAX))
    }

    #[askama::filter_fn]
    pub fn sentence(text: impl AsRef<str>, _: &dyn Values) -> Result<String> {
        Ok(format::truncated(&format::escaped(text.as_ref()), 4 * super::NAME_MAX))
    }

    #[askama::filter_fn]
    pub fn command(text: impl AsRef<str>, _: &dyn Values) -> Result<String> {
        Ok(format::truncated(&format::command_line(text.as_ref()), super::COMMAND_MAX))
    }
}
