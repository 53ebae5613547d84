//! The summary for a terminal: it fits on the screen of a small terminal, and is legible without
//! colour.

use unicode_width::UnicodeWidthStr;

use super::words::{
    bytes, command, command_line, count, cut, mode, name, nodes, number, rates, several, share, time,
};
use crate::{Report, SlowDown};

/// Maximum number of lines of a summary. A terminal has at least 24, and the command itself may
/// scroll away.
const LINES_MAX: usize = 25;
/// Maximum width of a line in columns.
const COLUMNS_MAX: usize = 100;
/// Width of the labels in columns.
const LABEL: usize = 15;

/// Returns a summary of at most 25 lines and at most 100 columns.
pub fn summary(report: &Report, colour: bool) -> String {
    let mut screen = Screen { lines: Vec::new(), colour };
    what_ran(report, &mut screen);
    screen.blank();
    places(report, &mut screen);
    screen.blank();
    storm(report, &mut screen);
    what_quell_does(report, &mut screen);
    next(report, &mut screen);
    screen.lines.join("\n") + "\n"
}

struct Screen {
    lines: Vec<String>,
    colour: bool,
}

impl Screen {
    fn blank(&mut self) {
        self.lines.push(String::new());
    }

    fn painted(&self, text: &str, how: &str) -> String {
        if self.colour && !text.is_empty() { format!("\x1b[{how}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn title(&mut self, text: &str) {
        let line = self.painted(&cut(text, COLUMNS_MAX), "1");
        self.lines.push(line);
    }

    fn quiet(&mut self, text: &str) {
        let line = self.painted(&cut(text, COLUMNS_MAX), "2");
        self.lines.push(line);
    }

    fn row(&mut self, label: &str, text: &str) {
        let label = self.painted(&format!("{label:LABEL$}"), "1");
        self.lines.push(label + &cut(text, COLUMNS_MAX - LABEL));
    }

    fn room(&self) -> usize {
        LINES_MAX - self.lines.len()
    }
}

fn what_ran(report: &Report, screen: &mut Screen) {
    let totals = &report.totals;
    let what = match report.command.is_empty() {
        true => several(report.traces.len() as u64, "trace", "traces"),
        // A long command line is shortened.
        false => command(&report.command),
    };
    screen.title(&format!("Profile: {what}"));
    let mut facts = vec![
        format!("ran {}", time(report.duration_s)),
        several(totals.processes, "process", "processes"),
        format!("{}, {} for missing names", several(totals.calls, "call", "calls"), count(totals.missing)),
    ];
    let unread = totals.skipped.truncated + totals.skipped.foreign + totals.skipped.orphans;
    if unread > 0 {
        facts.push(several(unread, "line not read", "lines not read"));
    }
    screen.quiet(&facts.join("; "));
    if let Some(tracing) = &report.tracing {
        let how = match tracing.how {
            SlowDown::Measured => "measured",
            SlowDown::Estimated => "estimated",
        };
        let exit = match tracing.exit_code {
            Some(0) => String::new(),
            Some(code) => format!("; exit code {code}"),
            None => "; ended by a signal".to_owned(),
        };
        let times = [time(tracing.direct_s), time(tracing.traced_s)];
        let slow_down = number(tracing.slow_down);
        let tracer = name(&tracing.tracer, 30);
        screen.quiet(&format!("{tracer} slowed it {slow_down} times ({how}): {} without{exit}", times[0]));
    }
}

/// Prints figure 2 of the paper.
fn places(report: &Report, screen: &mut Screen) {
    let row = |cells: [&str; 7]| {
        let [name, meaning, mode, metadata, data, read, written] = cells;
        format!("{name:7} {meaning:20} {mode:^4} {metadata:>15} {data:>15} {read:>12} {written:>14}")
    };
    screen.quiet(&row(["place", "", "mode", "metadata calls", "data calls", "bytes read", "bytes written"]));
    for (name, meaning, place) in report.places.named() {
        let calls = [count(place.metadata), count(place.data)];
        let bytes = [bytes(place.bytes_read), bytes(place.bytes_written)];
        let cells = [name, meaning, mode(place.mode), &calls[0], &calls[1], &bytes[0], &bytes[1]];
        screen.lines.push(cut(&row(cells), COLUMNS_MAX));
    }
}

fn storm(report: &Report, screen: &mut Screen) {
    let direct = &report.metadata_rate.scenarios.direct;
    match direct.peak > 0.0 {
        true => {
            screen.row("storm", &format!("metadata calls a second on shared file systems: {}", rates(direct)))
        }
        false => screen.row("storm", "none: no metadata calls went to shared file systems"),
    }
    // A long path is shortened in the middle, so that the figures remain visible.
    let mut about = |label: &str, path: &str, figures: String| {
        let room = COLUMNS_MAX - LABEL - 2;
        let path = name(path, room.saturating_sub(figures.width()).max(30));
        screen.row(label, &format!("{path}: {figures}"));
    };
    let more = |length: usize, what: &str| match length {
        0 | 1 => String::new(),
        _ => format!("; {} more {what}", count(length as u64 - 1)),
    };
    if let Some(most) = report.directories.first() {
        let missing = share(most.missing, most.metadata);
        let calls = several(most.metadata, "call", "calls");
        about("top directory", &most.path, format!("{calls}, {missing} for missing names"));
    }
    if let Some(most) = report.programs.first() {
        let processes = several(most.processes, "process", "processes");
        let calls = several(most.metadata, "call", "calls");
        about("top program", &most.path, format!("{calls}, {} on shared, {processes}", count(most.shared)));
    }
    if let Some(most) = report.searches.first() {
        let (missing, shared) = (count(most.missing), count(most.shared));
        about(
            "top search",
            &most.variable,
            format!("{missing} names not found ({shared} on shared), {} found", count(most.found)),
        );
    }
    if let Some(most) = report.shared_writes.first() {
        let figures = format!(
            "{} writers, {} in {} writes",
            count(most.writers),
            bytes(most.bytes_written),
            count(most.writes)
        );
        about("N-1 writes", &most.path, figures + &more(report.shared_writes.len(), "files"));
    }
    if let Some(most) = report.rereads.first() {
        let figures = format!("read {} times over, {}", number(most.times), bytes(most.bytes_read));
        about("rereads", &most.path, figures + &more(report.rereads.len(), "files"));
    }
    if let Some(most) = report.small_files.first() {
        let figures = format!("{}, {}", several(most.files, "file", "files"), bytes(most.bytes_written));
        about("small files", &most.directory, figures + &more(report.small_files.len(), "directories"));
    }
}

fn what_quell_does(report: &Report, screen: &mut Screen) {
    let of = &report.remaining;
    let [direct, index, boot] = [of.direct.metadata, of.index.metadata, of.boot.metadata];
    let part = |value: u64| format!("{} ({})", count(value), share(value, direct));
    let text = match report.trees.is_empty() {
        true => format!("{} operations a node; no tree is proposed", count(direct)),
        false => {
            format!("{} operations a node; index {}; boot image {}", count(direct), part(index), part(boot))
        }
    };
    screen.row("remaining", &text);
    if let Some(of) = &report.nodes {
        let [direct, index, boot] = [of.direct, of.index, of.boot].map(nodes);
        let text =
            format!("{direct} saturate the file system; index {index}; boot image {boot} (average rate)");
        screen.row("nodes", &text);
        let [direct, index, boot] = [of.by_peak.direct, of.by_peak.index, of.by_peak.boot].map(nodes);
        let capacity = number(of.capacity);
        let from = name(&of.capacity_from, 24);
        let text = format!(
            "{direct}; index {index}; boot image {boot} (peaks coincide); capacity {capacity}/s: {from}"
        );
        screen.row("", &text);
    }
}

/// Prints as many commands as there is space for, and at least the first.
fn next(report: &Report, screen: &mut Screen) {
    let mut shown = 0;
    for line in &report.next {
        let lines = folded(&command_line(line));
        // One line is reserved for the message that there are more.
        let keep = usize::from(shown + 1 < report.next.len());
        if lines.len() + keep > screen.room() && shown > 0 {
            break;
        }
        let room = screen.room().saturating_sub(keep);
        for (at, line) in lines.iter().take(room).enumerate() {
            match (shown, at) {
                (0, 0) => screen.row("run next", line),
                (_, 0) => screen.row("", line),
                _ => screen.lines.push(cut(line, COLUMNS_MAX)),
            }
        }
        shown += 1;
    }
    if shown < report.next.len() {
        let more = several((report.next.len() - shown) as u64, "more command is", "more commands are");
        screen.row("", &format!("{more} in the report"));
    }
}

/// Splits a command into several lines of shell syntax: at spaces outside quotes, with a backslash
/// at the end of all lines except the last. A single word that is too long is not split, and is
/// truncated later; the report has it completely.
fn folded(command: &str) -> Vec<String> {
    let (mut quote, mut literal) = (None, false);
    let words = command.split(|c| {
        if std::mem::take(&mut literal) {
            return false;
        }
        match quote {
            _ if c == '\\' => literal = quote != Some('\''),
            None if c == '\'' || c == '"' => quote = Some(c),
            Some(begun) if c == begun => quote = None,
            _ => {}
        }
        c == ' ' && quote.is_none()
    });
    // The first line follows the label; the others have the whole width.
    let mut room = COLUMNS_MAX - LABEL;
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            // Two columns for " \\".
            Some(line) if line.width() + 1 + word.width() + 2 <= room => {
                line.push(' ');
                line.push_str(word);
            }
            Some(line) => {
                line.push_str(" \\");
                lines.push(format!("    {word}"));
                room = COLUMNS_MAX;
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}
