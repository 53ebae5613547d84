//! The report as one HTML page that needs no network, script or font. The template engine escapes
//! its text, after `words::shown` has made characters visible that a browser would hide.

use askama::Template;

use super::chart;
use super::drawing::{self, Palette, Width};
use super::words::{command, count, cut, date, mode, number, several, share, time};
use crate::{Report, SlowDown};

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
    page.render().expect("a page is written to memory")
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
    explained: String,
}

/// A chart in both widths; the page shows the one that fits.
struct Figure {
    title: String,
    wide: String,
    narrow: String,
}

impl Page<'_> {
    fn what(&self) -> String {
        match self.report.command.is_empty() {
            true => several(self.report.traces.len() as u64, "trace", "traces"),
            false => cut(&command(&self.report.command), 2 * NAME_MAX),
        }
    }

    fn started(&self) -> Option<String> {
        date(self.report.started_s)
    }

    fn how_traced(&self) -> Option<String> {
        let tracing = self.report.tracing.as_ref()?;
        let how = match tracing.how {
            SlowDown::Measured => "measured by running it once more",
            SlowDown::Estimated => "estimated from the cost of one traced call",
        };
        let (direct, slow_down) = (time(tracing.direct_s), number(tracing.slow_down));
        let tracer = super::words::name(&tracing.tracer, 60);
        let exit = match tracing.exit_code {
            Some(code) => format!("Exit code {code}."),
            None => "Ended by a signal.".to_owned(),
        };
        Some(format!("Traced by {tracer}: {slow_down} times as long as the {direct} without ({how}). {exit}"))
    }

    /// Describes the metadata storm in one sentence.
    fn storm(&self) -> String {
        let report = self.report;
        let direct = &report.metadata_rate.scenarios.direct;
        if direct.peak <= 0.0 && report.remaining.direct.metadata == 0 {
            return "No metadata calls went to shared file systems: there is no storm here.".to_owned();
        }
        let missing = share(report.totals.missing, report.totals.metadata);
        format!(
            "One node asks shared file systems {} metadata questions a second on average and {} at its busiest, \
             {} after the start. Of all metadata calls, {missing} asked for names that do not exist.",
            number(direct.average),
            number(direct.peak),
            time(direct.peak_at_s),
        )
    }

    fn headlines(&self) -> Vec<Headline> {
        let report = self.report;
        let direct = &report.metadata_rate.scenarios.direct;
        let of = &report.remaining;
        let mut headlines = vec![
            Headline {
                label: "Metadata rate, shared",
                figure: format!("{} /s", number(direct.average)),
                explained: format!("peak {} /s, at {}", number(direct.peak), time(direct.peak_at_s)),
            },
            Headline {
                label: "Missing names",
                figure: count(report.totals.missing),
                explained: format!(
                    "{} of all metadata calls",
                    share(report.totals.missing, report.totals.metadata)
                ),
            },
            Headline {
                label: "Operations with an index",
                figure: count(of.index.metadata),
                explained: format!(
                    "{} of {} a node",
                    share(of.index.metadata, of.direct.metadata),
                    count(of.direct.metadata)
                ),
            },
        ];
        if let Some(nodes) = &report.nodes {
            let [direct, index] = [nodes.direct, nodes.index].map(super::words::nodes);
            headlines.push(Headline {
                label: "Nodes with an index",
                figure: index,
                explained: format!("{direct} without; average rate"),
            });
        }
        headlines
    }

    fn figure(&self, draw: fn(&Report, Width) -> drawing::Drawing) -> Figure {
        let [wide, narrow] = [Width::Wide, Width::Narrow].map(|width| draw(self.report, width));
        Figure { title: wide.title.clone(), wide: wide.within_a_page(), narrow: narrow.within_a_page() }
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
            ("calls that failed before they concerned a file", elsewhere.bad),
            ("system calls that concern no file system", skipped.other_calls),
            ("signals, exits and remarks of the tracer", skipped.events),
            ("second halves of interrupted calls, counted with their first half", skipped.resumed),
            ("second halves without a first half", skipped.orphans),
            ("lines cut off in the middle", skipped.truncated),
            ("lines not written by strace", skipped.foreign),
            ("calls that had not ended when the trace did; counted, without a result", skipped.unfinished),
        ]
    }
}

/// Returns the first rows of a list.
fn first<T>(list: &[T], most: usize) -> &[T] {
    &list[..list.len().min(most)]
}

/// Returns the text below a table that does not have all rows.
fn left_out(length: usize, most: usize) -> Option<String> {
    let more = length.checked_sub(most).filter(|more| *more > 0)?;
    Some(format!("{} more in report.json.", count(more as u64)))
}

/// The functions of `words`, for the template.
mod filters {
    use std::borrow::Borrow;

    use askama::{Result, Values};

    use super::super::words;

    #[askama::filter_fn]
    pub fn count(number: impl Borrow<u64>, _: &dyn Values) -> Result<String> {
        Ok(words::count(*number.borrow()))
    }

    #[askama::filter_fn]
    pub fn bytes(number: impl Borrow<u64>, _: &dyn Values) -> Result<String> {
        Ok(words::bytes(*number.borrow()))
    }

    #[askama::filter_fn]
    pub fn number(number: impl Borrow<f64>, _: &dyn Values) -> Result<String> {
        Ok(words::number(*number.borrow()))
    }

    #[askama::filter_fn]
    pub fn time(seconds: impl Borrow<f64>, _: &dyn Values) -> Result<String> {
        Ok(words::time(*seconds.borrow()))
    }

    #[askama::filter_fn]
    pub fn nodes(number: impl Borrow<Option<u64>>, _: &dyn Values) -> Result<String> {
        Ok(words::nodes(*number.borrow()))
    }

    /// Formats a path, or any other text of a trace that may be long.
    #[askama::filter_fn]
    pub fn name(text: impl AsRef<str>, _: &dyn Values) -> Result<String> {
        Ok(words::name(text.as_ref(), super::NAME_MAX))
    }

    #[askama::filter_fn]
    pub fn sentence(text: impl AsRef<str>, _: &dyn Values) -> Result<String> {
        Ok(words::cut(&words::shown(text.as_ref()), 4 * super::NAME_MAX))
    }

    #[askama::filter_fn]
    pub fn command(text: impl AsRef<str>, _: &dyn Values) -> Result<String> {
        Ok(words::cut(&words::command_line(text.as_ref()), super::COMMAND_MAX))
    }
}
