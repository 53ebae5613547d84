//! The charts of a report. Each is a function from a report to a drawing, in two widths: for
//! desktop pages and for phones.

use super::drawing::{Anchor, Drawing, Width};
use super::picture::{self, PictureError};
use super::scale::{self, Kind, Scale};
use super::words::{bytes, count, mode, name, number, rates, several, share, time};
use crate::{RatePoint, Report, Scenarios};

/// A chart as the files `NAME.svg` and `NAME.png`.
#[derive(Debug, Clone)]
pub struct Chart {
    pub name: &'static str,
    pub title: String,
    /// The content of the chart in words and numbers, for readers who cannot see it.
    pub description: String,
    pub svg: String,
    pub png: Vec<u8>,
}

type Draw = fn(&Report, Width) -> Drawing;

const CHARTS: [(&str, Draw); 4] = [
    ("timeline", timeline),
    ("places", places),
    ("directories", directories),
    ("before-after", before_after),
];

/// Returns all charts, in the width of a desktop page.
pub fn charts(report: &Report) -> Result<Vec<Chart>, PictureError> {
    let chart = |(name, drawing): (&'static str, Drawing)| {
        let (title, description) = (drawing.title.clone(), drawing.description.clone());
        let png = picture::png(name, &drawing.clone().alone_in_outlines())?;
        Ok(Chart { name, title, description, svg: drawing.alone(), png })
    };
    drawings(report).into_iter().map(chart).collect()
}

pub fn drawings(report: &Report) -> [(&'static str, Drawing); 4] {
    CHARTS.map(|(name, draw)| (name, draw(report, Width::Wide)))
}

/// Number of directories in the chart; the table beside it has more.
pub const DIRECTORIES_DRAWN: usize = 10;
/// Minimum length of a bar, so that it is visible.
const BAR_LEAST: f64 = 2.0;

const SCENARIOS: [&str; 3] = ["direct", "index", "boot image"];
const LINES: [&str; 3] = ["direct-line", "index-line", "boot-line"];

fn of<T>(scenarios: &Scenarios<T>) -> [&T; 3] {
    [&scenarios.direct, &scenarios.index, &scenarios.boot]
}

/// Draws the rate of metadata operations over time: figure 1 of the paper.
pub fn timeline(report: &Report, width: Width) -> Drawing {
    let scenarios = of(&report.metadata_rate.scenarios);
    let told = SCENARIOS.iter().zip(scenarios).map(|(name, rate)| format!("{name}: {}", rates(rate)));
    let description = match report.rate.is_empty() {
        true => "No calls over time are known.".to_owned(),
        false => format!("Over {}. {}.", time(length_of(report)), told.collect::<Vec<_>>().join("; ")),
    };
    let title = "Metadata operations a second on shared file systems";
    let mut drawing = Drawing::new("timeline", width, title, description);
    let letters = width.letters();
    let row = letters * 1.5;
    if report.rate.is_empty() {
        drawing.set_height(row * 3.0);
        drawing.words(
            "quiet",
            (width.pixels() / 2.0, row * 1.7),
            Anchor::Middle,
            "No calls over time are known.",
        );
        return drawing;
    }

    // The names of the lines with their figures: side by side if the drawing is wide enough.
    let legend_rows = width.pick(1.0, 3.0);
    for (at, (line, rate)) in LINES.into_iter().zip(scenarios).enumerate() {
        let x = width.pick(at as f64 * width.pixels() / 3.0, 0.0);
        let y = row * (width.pick(0.0, at as f64) + 0.7);
        drawing.line(line, (x, y - letters * 0.35), (x + 30.0, y - letters * 0.35));
        let text = format!("{}: {}", SCENARIOS[at], rates(rate));
        drawing.words("", (x + 38.0, y), Anchor::Start, text);
    }

    let of_direct = scenarios[0];
    let greatest = report.rate.iter().flat_map(|p| [p.metadata, p.index, p.boot]).map(scale::finite);
    let greatest = greatest.chain(scenarios.iter().map(|r| scale::finite(r.peak))).fold(0.0, f64::max);
    let matter: Vec<f64> = scenarios.iter().flat_map(|r| [r.average, r.peak]).collect();
    // With space for the text at the peak.
    let scale = Scale::that_shows(greatest, &matter).with_room(width.pick(0.12, 0.16));

    let left = width.pick(62.0, 50.0);
    let right = width.pixels() - 4.0;
    let top = row * legend_rows + row * 1.7;
    let bottom = top + width.pick(230.0, 210.0);
    let y = |value: f64| bottom - scale.place(value) * (bottom - top);
    let length = length_of(report);
    let x = |at_s: f64| left + (scale::finite(at_s) / length).min(1.0) * (right - left);

    drawing.words("quiet", (0.0, top - row * 0.55), Anchor::Start, format!("a second, {}", scale.called()));
    for mark in scale.marks(5) {
        drawing.line("grid", (left, y(mark)), (right, y(mark)));
        drawing.words("quiet", (left - 8.0, y(mark) + letters * 0.35), Anchor::End, number(mark));
    }
    let moments = scale::moments(length, width.pick(9, 4));
    for moment in &moments {
        drawing.line("axis", (x(*moment), bottom), (x(*moment), bottom + 5.0));
        let fits = x(*moment) + drawing.width_of(&time(*moment)) / 2.0 <= right;
        let anchor = if fits { Anchor::Middle } else { Anchor::End };
        drawing.words("quiet", (x(*moment).min(right), bottom + letters * 1.6), anchor, time(*moment));
    }

    let steps = busiest(&report.rate, ((right - left) / 2.0) as usize);
    let outline = |value: fn(&RatePoint) -> f64| outline(&steps, left, right, |point| y(value(point)));
    let direct = outline(|point| point.metadata);
    let (first, last) = (format!("M{left:.1} {bottom:.1}L"), format!("V{bottom:.1}Z"));
    drawing.path("direct-area", format!("{first}{}{last}", &direct[1..]));
    drawing.path("direct-line", direct);
    drawing.path("index-line", outline(|point| point.index));
    drawing.path("boot-line", outline(|point| point.boot));
    drawing.line("axis", (left, bottom), (right, bottom));

    drawing.line("average", (left, y(of_direct.average)), (right, y(of_direct.average)));
    let words = format!("direct, average {}", number(of_direct.average));
    drawing.words("over", (right - 4.0, y(of_direct.average) - 5.0), Anchor::End, words);
    mark_peak(&mut drawing, report, right, x, y);

    drawing.set_height(bottom + letters * 2.2);
    drawing
}

/// Marks the busiest interval: a bar over its length, because single steps in it may be higher, or
/// a point if it is short.
fn mark_peak(
    drawing: &mut Drawing,
    report: &Report,
    right: f64,
    x: impl Fn(f64) -> f64,
    y: impl Fn(f64) -> f64,
) {
    let (peak, window) = (report.metadata_rate.scenarios.direct, report.metadata_rate.window_s);
    let (from, to, level) = (x(peak.peak_at_s), x(peak.peak_at_s + scale::finite(window)), y(peak.peak));
    let words = if to - from < 12.0 {
        drawing.path("peak", diamond(((from + to) / 2.0, level), 5.0));
        format!("peak {} at {}", number(peak.peak), time(peak.peak_at_s))
    } else {
        let ends = format!(
            "M{from:.1} {:.1}V{:.1}M{to:.1} {:.1}V{:.1}",
            level - 5.0,
            level + 5.0,
            level - 5.0,
            level + 5.0
        );
        drawing.path("stretch", format!("{ends}M{from:.1} {level:.1}H{to:.1}"));
        format!("peak {} over {}", number(peak.peak), time(window))
    };
    let beside = from.max(to - 12.0) + 16.0 + drawing.width_of(&words) <= right;
    match (to - from < 12.0, beside) {
        (true, true) => drawing.words("over strong", (to + 10.0, level - 2.0), Anchor::Start, words),
        (true, false) => drawing.words("over strong", (from - 10.0, level - 2.0), Anchor::End, words),
        (false, _) => {
            // Below the bar, at its start, or further left if the text would not fit.
            let begin = from.min(right - drawing.width_of(&words) * 1.08).max(0.0);
            drawing.words(
                "over strong",
                (begin + 6.0, level + drawing.letters() * 1.3),
                Anchor::Start,
                words,
            );
        }
    }
}

/// Returns the time from the start of the first step to the end of the last one.
fn length_of(report: &Report) -> f64 {
    let steps = report.rate.len() as f64 * scale::finite(report.metadata_rate.step_s);
    let length = if steps > 0.0 { steps } else { scale::finite(report.duration_s) };
    if length > 0.0 { length } else { 1.0 }
}

/// Reduces the steps to at most `room` intervals, each with the values of its busiest step: an
/// average would hide bursts.
fn busiest(rate: &[RatePoint], room: usize) -> Vec<RatePoint> {
    let stretches = rate.len().min(room.max(1));
    let stretch = |at: usize| {
        let steps = &rate[at * rate.len() / stretches..(at + 1) * rate.len() / stretches];
        let most =
            |value: fn(&RatePoint) -> f64| steps.iter().map(value).map(scale::finite).fold(0.0, f64::max);
        RatePoint {
            t: steps[0].t,
            metadata: most(|p| p.metadata),
            data: most(|p| p.data),
            index: most(|p| p.index),
            boot: most(|p| p.boot),
            elsewhere: most(|p| p.elsewhere),
        }
    };
    (0..stretches).map(stretch).collect()
}

/// Returns a step line from left to right; consecutive equal levels are one segment.
fn outline(steps: &[RatePoint], left: f64, right: f64, y: impl Fn(&RatePoint) -> f64) -> String {
    let mut path = format!("M{left:.1} {:.1}", y(&steps[0]));
    let mut level = format!("{:.1}", y(&steps[0]));
    for (at, step) in steps.iter().enumerate().skip(1) {
        let next = format!("{:.1}", y(step));
        if next != level {
            let x = left + (right - left) * at as f64 / steps.len() as f64;
            path.push_str(&format!("H{x:.1}V{next}"));
            level = next;
        }
    }
    path + &format!("H{right:.1}")
}

fn diamond((x, y): (f64, f64), r: f64) -> String {
    format!("M{:.1} {y:.1}L{x:.1} {:.1}L{:.1} {y:.1}L{x:.1} {:.1}Z", x - r, y - r, x + r, y + r)
}

/// Draws a legend of small boxes in a row, and returns its height.
fn key(drawing: &mut Drawing, width: Width, entries: &[(&'static str, bool, &str)], note: &str) -> f64 {
    let letters = width.letters();
    let mut x = 0.0;
    for (class, hatched, text) in entries {
        match hatched {
            true => drawing.hatched(class, x, 2.0, 16.0, letters),
            false => drawing.area(class, x, 2.0, 16.0, letters),
        }
        drawing.words("", (x + 22.0, letters), Anchor::Start, *text);
        x += 22.0 + drawing.width_of(text) + 20.0;
    }
    let (at, rows) = width.pick(((width.pixels(), letters), 1.0), ((0.0, letters * 2.6), 2.0));
    drawing.words("quiet", at, width.pick(Anchor::End, Anchor::Start), note);
    letters * 1.6 * rows + letters * 0.8
}

/// Returns the width of a bar: 0 for the value 0, and otherwise at least the visible minimum.
fn bar_width(scale: &Scale, value: u64, room: f64) -> f64 {
    if value == 0 { 0.0 } else { (scale.place(value as f64) * room).max(BAR_LEAST) }
}

/// Draws the calls in each place: figure 2 of the paper.
pub fn places(report: &Report, width: Width) -> Drawing {
    let places = report.places.named();
    let told = places.iter().map(|(name, _, place)| {
        let bytes = [bytes(place.bytes_read), bytes(place.bytes_written)];
        let calls = [count(place.metadata), count(place.data)];
        format!(
            "{name}: {} metadata and {} data calls, {} read, {} written",
            calls[0], calls[1], bytes[0], bytes[1]
        )
    });
    let description = told.collect::<Vec<_>>().join("; ") + ".";
    let mut drawing = Drawing::new("places", width, "Calls in each place", description);
    let letters = width.letters();
    let entries = [("metadata-bar", false, "metadata calls"), ("data-bar", true, "data calls")];
    let top = key(&mut drawing, width, &entries, "linear scale");
    let mut y = top;
    let greatest = places.iter().flat_map(|(_, _, place)| [place.metadata, place.data]).max().unwrap_or(0);
    let scale = Scale::linear(greatest as f64);
    // The names are to the left of their bars, or above them.
    let left = width.pick(190.0, 0.0);
    let room = width.pixels() - left - width.pick(110.0, 92.0);
    let bar = letters * 1.1;
    for (name, meaning, place) in places {
        let title = format!("{name} · {}", mode(place.mode));
        match width {
            Width::Wide => {
                drawing.words("strong", (0.0, y + letters), Anchor::Start, title);
                drawing.words("quiet", (0.0, y + letters * 2.35), Anchor::Start, meaning);
            }
            Width::Narrow => {
                // Bold letters are slightly wider.
                let x = drawing.width_of(&title) * 1.08 + 8.0;
                drawing.words("strong", (0.0, y + letters), Anchor::Start, title);
                drawing.words("quiet", (x, y + letters), Anchor::Start, meaning);
                y += letters * 1.6;
            }
        }
        for (class, value) in [("metadata-bar", place.metadata), ("data-bar", place.data)] {
            let length = bar_width(&scale, value, room);
            match class {
                "data-bar" => drawing.hatched(class, left, y, length, bar),
                _ => drawing.area(class, left, y, length, bar),
            }
            drawing.words("", (left + length + 7.0, y + letters * 0.95), Anchor::Start, count(value));
            y += bar + 3.0;
        }
        y += letters * 1.1;
    }
    drawing.line("axis", (left, top - 3.0), (left, y - letters * 0.9));
    drawing.set_height(y - letters * 0.6);
    drawing
}

/// Draws the directories with the most metadata calls, and the part of these calls with missing
/// names.
pub fn directories(report: &Report, width: Width) -> Drawing {
    let shown_here: Vec<_> = report.directories.iter().take(DIRECTORIES_DRAWN).collect();
    let told = shown_here.iter().map(|d| {
        let missing = share(d.missing, d.metadata);
        format!(
            "{}: {}, {missing} for missing names",
            name(&d.path, 120),
            several(d.metadata, "call", "calls")
        )
    });
    let description = match shown_here.is_empty() {
        true => "No metadata calls were found.".to_owned(),
        false => told.collect::<Vec<_>>().join("; ") + ".",
    };
    let title = "Directories with most metadata calls";
    let mut drawing = Drawing::new("directories", width, title, description);
    let letters = width.letters();
    if shown_here.is_empty() {
        drawing.set_height(letters * 4.0);
        let at = (width.pixels() / 2.0, letters * 2.5);
        drawing.words("quiet", at, Anchor::Middle, "No metadata calls were found.");
        return drawing;
    }
    let entries = [("metadata-bar", false, "names found"), ("missing-bar", true, "names missing")];
    let mut y = key(&mut drawing, width, &entries, "metadata calls, linear scale");
    let scale = Scale::linear(shown_here.iter().map(|d| d.metadata).max().unwrap_or(0) as f64);
    // The text "1,234,567, 99 % missing" is to the right of the longest bar on a wide page, and
    // above it on a narrow one.
    let room = width.pixels() - width.pick(200.0, 0.0);
    for directory in shown_here {
        let figures = format!(
            "{}, {} missing",
            count(directory.metadata),
            share(directory.missing, directory.metadata)
        );
        let path = name(&directory.path, width.columns(width.pixels()));
        drawing.words("", (0.0, y + letters), Anchor::Start, path);
        y += letters * 1.5;
        if width == Width::Narrow {
            drawing.words("quiet", (0.0, y + letters * 0.9), Anchor::Start, figures.as_str());
            y += letters * 1.4;
        }
        let missing = directory.missing.min(directory.metadata);
        let found = bar_width(&scale, directory.metadata - missing, room);
        let lacking = bar_width(&scale, missing, room - found);
        drawing.area("metadata-bar", 0.0, y, found, letters);
        let whole = scale.place(missing as f64) * room;
        let lacking = if missing == 0 { lacking } else { whole.max(BAR_LEAST).min(room - found + BAR_LEAST) };
        drawing.hatched("missing-bar", found, y, lacking, letters);
        if width == Width::Wide {
            drawing.words("quiet", (found + lacking + 8.0, y + letters * 0.88), Anchor::Start, figures);
        }
        y += letters * 1.9;
    }
    drawing.set_height(y - letters * 0.4);
    drawing
}

/// Draws the operations that reach the shared file systems from one cold node: without Quell, with
/// an index, and with a boot image.
pub fn before_after(report: &Report, width: Width) -> Drawing {
    let values = of(&report.remaining).map(|remaining| remaining.metadata);
    let told = SCENARIOS.iter().zip(values).map(|(name, value)| format!("{name} {}", count(value)));
    let description =
        format!("Metadata operations of one cold node: {}.", told.collect::<Vec<_>>().join(", "));
    let title = "Metadata operations that reach shared file systems";
    let mut drawing = Drawing::new("before-after", width, title, description);
    let letters = width.letters();
    let greatest = values.into_iter().max().unwrap_or(0) as f64;
    let scale = Scale::that_shows(greatest, &values.map(|value| value as f64));
    let left = width.pick(140.0, 4.0);
    let right = width.pixels() - width.pick(190.0, 24.0);
    let x = |value: f64| left + scale.place(value) * (right - left);

    let explained = match scale.kind {
        Kind::Linear => "linear scale",
        Kind::Logarithmic => "logarithmic scale: the same distance is the same factor",
    };
    drawing.words("quiet", (0.0, letters), Anchor::Start, explained);
    let top = letters * 2.0;
    let row = letters * width.pick(2.6, 3.8);
    let bottom = top + row * 3.0;
    for mark in scale.marks(width.pick(7, 4)) {
        drawing.line("grid", (x(mark), top), (x(mark), bottom));
        let anchor = if mark == 0.0 && left < 10.0 { Anchor::Start } else { Anchor::Middle };
        drawing.words("quiet", (x(mark), bottom + letters * 1.4), anchor, number(mark));
    }
    for (at, value) in values.into_iter().enumerate() {
        let base = top + row * at as f64;
        let figures = match at {
            0 => count(value),
            _ => format!("{} ({})", count(value), share(value, values[0])),
        };
        let y = match width {
            Width::Wide => {
                let y = base + row / 2.0;
                drawing.words("", (0.0, y + letters * 0.35), Anchor::Start, SCENARIOS[at]);
                drawing.words(
                    "over strong",
                    (x(value as f64) + 14.0, y + letters * 0.35),
                    Anchor::Start,
                    figures,
                );
                y
            }
            Width::Narrow => {
                let words = format!("{}: {figures}", SCENARIOS[at]);
                drawing.words("over", (0.0, base + letters * 1.3), Anchor::Start, words);
                base + letters * 2.5
            }
        };
        drawing.line(LINES[at], (left, y), (x(value as f64), y));
        let class = ["direct-mark", "index-mark", "boot-mark"][at];
        // Each scenario also has its own shape.
        match at {
            0 => drawing.area(class, x(value as f64) - 5.5, y - 5.5, 11.0, 11.0),
            1 => drawing.path(class, diamond((x(value as f64), y), 8.0)),
            _ => drawing.path(class, triangle((x(value as f64), y), 7.5)),
        }
    }
    drawing.line("axis", (left, top), (left, bottom));
    drawing.set_height(bottom + letters * 2.0);
    drawing
}

fn triangle((x, y): (f64, f64), r: f64) -> String {
    format!("M{x:.1} {:.1}L{:.1} {:.1}H{:.1}Z", y - r, x + r, y + r * 0.75, x - r)
}
