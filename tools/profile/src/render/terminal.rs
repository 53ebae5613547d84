//! The summary for a terminal of 80 columns, which is legible without colour.

use unicode_width::UnicodeWidthStr;

use crate::format::{
    bytes, command_line, count, escaped, mode, name, nodes, number, percentage, plural, truncated,
};
use crate::render::statements;
use crate::report::{Report, Scenarios};

/// Maximum width of a line in columns.
const COLUMNS_MAX: usize = 80;
/// Maximum number of commands to run next.
const COMMANDS_MAX: usize = 5;
/// Maximum number of lines of the verdict.
const VERDICT_LINES_MAX: usize = 7;
/// Width of the labels of findings in columns.
const LABEL: usize = 15;
/// The indentation of a command.
const INDENT: &str = "    ";

/// Returns a summary of at most 80 columns. Each command stands alone on its lines, so that they
/// can be copied to a shell.
pub fn summary(report: &Report, colour: bool) -> String {
    let mut screen = Screen { lines: Vec::new(), colour };
    subject(report, &mut screen);
    screen.blank();
    screen.paragraph(&report.verdict.text, VERDICT_LINES_MAX);
    if report.remaining.direct.metadata > 0 {
        screen.blank();
        operations(report, &mut screen);
    }
    screen.blank();
    locations(report, &mut screen);
    screen.blank();
    findings(report, &mut screen);
    next_steps(report, &mut screen);
    screen.lines.join("\n") + "\n"
}

struct Screen {
    lines: Vec<String>,
    colour: bool,
}

impl Screen {
    /// Adds an empty line, unless the last one is empty.
    fn blank(&mut self) {
        if self.lines.last().is_some_and(|line| !line.is_empty()) {
            self.lines.push(String::new());
        }
    }

    fn styled(&self, text: &str, code: &str) -> String {
        if self.colour && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn title(&mut self, text: &str) {
        let line = self.styled(&truncated(text, COLUMNS_MAX), "1");
        self.lines.push(line);
    }

    fn quiet(&mut self, text: &str) {
        let line = self.styled(&truncated(text, COLUMNS_MAX), "2");
        self.lines.push(line);
    }

    fn quiet_paragraph(&mut self, text: &str) {
        for line in wrapped(text) {
            self.quiet(&line);
        }
    }

    /// Adds untrusted text, wrapped at spaces.
    fn paragraph(&mut self, text: &str, lines_max: usize) {
        let mut lines = wrapped(&escaped(text));
        if lines.len() > lines_max {
            lines.truncate(lines_max);
            lines.push("…".to_owned());
        }
        self.lines.extend(lines);
    }

    fn row(&mut self, label: &str, text: &str) {
        let label = self.styled(&format!("{label:LABEL$}"), "1");
        self.lines.push(label + &truncated(text, COLUMNS_MAX - LABEL));
    }
}

/// Splits text at spaces into lines of at most 80 columns.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= COLUMNS_MAX => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(truncated(word, COLUMNS_MAX)),
        }
    }
    lines
}

fn subject(report: &Report, screen: &mut Screen) {
    let totals = &report.totals;
    // A long command line is shortened.
    screen.title(&format!("Profile: {}", statements::subject(report)));
    let counted = [
        plural(totals.processes, "process", "processes"),
        plural(totals.calls, "file-system call", "file-system calls"),
    ];
    let unread = totals.skipped.truncated + totals.skipped.foreign + totals.skipped.orphans;
    let unread = (unread > 0).then(|| plural(unread, "line not read", "lines not read"));
    let facts: Vec<String> = statements::origin(report).into_iter().chain(counted).chain(unread).collect();
    screen.quiet_paragraph(&facts.join("; "));
    screen.quiet_paragraph(&statements::timing(report));
}

/// Prints the operations of one node in all scenarios, and the nodes that saturate the file system.
fn operations(report: &Report, screen: &mut Screen) {
    let row = |cells: [&str; 4]| {
        let [label, direct, index, boot] = cells;
        format!("{label:26} {direct:>13} {index:>19} {boot:>19}")
    };
    screen.quiet(&row(["one node, estimated", "without Quell", "index", "boot image"]));
    let mut add = |label: &str, values: [String; 3]| {
        let [direct, index, boot] = values;
        screen.lines.push(truncated(row([label, &direct, &index, &boot]).trim_end(), COLUMNS_MAX));
    };
    let remaining = &report.remaining;
    let direct = remaining.direct.metadata;
    let part = |value: u64| format!("{} ({})", count(value), percentage(value, direct));
    add(
        "metadata operations",
        [count(direct), part(remaining.index.metadata), part(remaining.boot.metadata)],
    );
    let rates = &report.metadata_rate.scenarios;
    if rates.direct.peak > 0.0 {
        add("  per second, average", scenario_texts(rates, |rate| number(rate.average)));
        add("  per second, peak", scenario_texts(rates, |rate| number(rate.peak)));
    }
    if let Some(saturation) = &report.nodes {
        add("nodes to saturation", [saturation.direct, saturation.index, saturation.boot].map(nodes));
        add("  if all peaks coincide", scenario_texts(&saturation.by_peak, |number| nodes(*number)));
        let source = name(&saturation.capacity_from, 44);
        screen.quiet(&format!("capacity: {} operations per second ({source})", number(saturation.capacity)));
    }
}

fn scenario_texts<T>(scenarios: &Scenarios<T>, text: impl Fn(&T) -> String) -> [String; 3] {
    [text(&scenarios.direct), text(&scenarios.index), text(&scenarios.boot)]
}

/// Prints figure 2 of the paper.
fn locations(report: &Report, screen: &mut Screen) {
    let row = |cells: [&str; 7]| {
        let [name, mode, metadata, missing, data, read, written] = cells;
        format!("{name:7} {mode:4} {metadata:>14} {missing:>13} {data:>14} {read:>10} {written:>10}")
    };
    screen.quiet(&row([
        "counted",
        "mode",
        "metadata calls",
        "missing names",
        "data calls",
        "read",
        "written",
    ]));
    for (name, _, totals) in report.locations.named() {
        let calls = [count(totals.metadata), count(totals.missing), count(totals.data)];
        let bytes = [bytes(totals.bytes_read), bytes(totals.bytes_written)];
        let cells = [name, mode(totals.mode), &calls[0], &calls[1], &calls[2], &bytes[0], &bytes[1]];
        screen.lines.push(truncated(&row(cells), COLUMNS_MAX));
    }
}

fn findings(report: &Report, screen: &mut Screen) {
    if report.totals.shared.metadata > 0 {
        screen.row("missing names", &format!("{} on shared", statements::missing_shared(report)));
    }
    // A long path is shortened in the middle, so that the figures remain visible.
    let mut finding = |label: &str, path: &str, figures: String| {
        let room = COLUMNS_MAX - LABEL - 2;
        let path = name(path, room.saturating_sub(figures.width()).max(20));
        screen.row(label, &format!("{path}: {figures}"));
    };
    let more = |length: usize| match length {
        0 | 1 => String::new(),
        _ => format!("; {} more", count(length as u64 - 1)),
    };
    if let Some(first) = report.directories.first() {
        let missing = percentage(first.missing, first.metadata);
        let calls = plural(first.metadata, "call", "calls");
        finding("top directory", &first.path, format!("{calls}, {missing} missing"));
    }
    if let Some(first) = report.programs.first() {
        let processes = plural(first.processes, "process", "processes");
        finding(
            "top program",
            &first.path,
            format!("{}, {processes}", plural(first.shared, "shared call", "shared calls")),
        );
    }
    if let Some(first) = report.searches.first() {
        let figures = format!(
            "{}, {} on shared",
            plural(first.missing, "missing name", "missing names"),
            count(first.shared)
        );
        finding("top search", &first.variable, figures);
    }
    if let Some(first) = report.shared_writes.first() {
        let figures =
            format!("{}, {}", plural(first.writers, "writer", "writers"), bytes(first.bytes_written));
        finding("N-1 writes", &first.path, figures + &more(report.shared_writes.len()));
    }
    if let Some(first) = report.rereads.first() {
        let figures = format!("{} times by one process", number(first.times));
        finding("rereads", &first.path, figures + &more(report.rereads.len()));
    }
    if let Some(first) = report.small_files.first() {
        let figures = format!("{}, {}", plural(first.files, "file", "files"), bytes(first.bytes_written));
        finding("small files", &first.directory, figures + &more(report.small_files.len()));
    }
}

/// Prints the commands to run next, each after a line with its purpose.
fn next_steps(report: &Report, screen: &mut Screen) {
    for step in report.next.iter().take(COMMANDS_MAX) {
        screen.blank();
        screen.title(&format!("{}:", truncated(&escaped(&step.purpose), COLUMNS_MAX - 1)));
        let lines = folded(&command_line(&step.command));
        // A part of a command must not be run.
        match lines.iter().all(|line| line.width() <= COLUMNS_MAX) {
            true => screen.lines.extend(lines),
            false => screen.quiet(&format!("{INDENT}(a long command: see report.html)")),
        }
    }
    if report.next.len() > COMMANDS_MAX {
        let more = (report.next.len() - COMMANDS_MAX) as u64;
        let verb = if more == 1 { "is" } else { "are" };
        screen.blank();
        screen.quiet(&format!("{} {verb} in the report", plural(more, "more command", "more commands")));
    }
}

/// Splits a command into several lines of shell syntax: at spaces outside quotes, with a backslash
/// at the end of all lines except the last. A word that is too long is not split.
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
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            // Two columns for " \\".
            Some(line) if line.width() + 1 + word.width() + 2 <= COLUMNS_MAX => {
                line.push(' ');
                line.push_str(word);
            }
            Some(line) => {
                line.push_str(" \\");
                lines.push(format!("{INDENT}{INDENT}{word}"));
            }
            None => lines.push(format!("{INDENT}{word}")),
        }
    }
    lines
}
