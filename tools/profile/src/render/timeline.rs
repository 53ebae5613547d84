//! The chart of metadata operations over time: one small chart for each scenario, all with the same
//! axes.

use crate::format::{duration, number, rates};
use crate::render::before_after::SCENARIOS;
use crate::render::drawing::{Drawing, Width};
use crate::render::glyphs::Anchor;
use crate::render::scale::{self, Scale};
use crate::report::{Rate, RatePoint, Report};

type Value = fn(&RatePoint) -> f64;

/// For each scenario the classes of its line and area, and its values.
const SERIES: [(&str, &str, Value); 3] = [
    ("direct-line", "direct-area", |point| point.direct),
    ("index-line", "index-area", |point| point.index),
    ("boot-line", "boot-area", |point| point.boot),
];

/// The position of a small chart in the drawing.
#[derive(Clone, Copy)]
struct Panel {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

pub fn timeline(report: &Report, width: Width) -> Drawing {
    let scenarios = &report.metadata_rate.scenarios;
    let scenario_rates = [scenarios.direct, scenarios.index, scenarios.boot];
    let described =
        SCENARIOS.iter().zip(&scenario_rates).map(|(name, rate)| format!("{name}: {}", rates(rate)));
    let description = match report.rate.is_empty() {
        true => "The traces have no times.".to_owned(),
        false => {
            format!("Over {}. {}.", duration(length_s(report)), described.collect::<Vec<_>>().join("; "))
        }
    };
    let title = "Metadata operations per second of one node on shared file systems";
    let mut drawing = Drawing::new("timeline", width, title, description);
    let font_size = width.font_size();
    if report.rate.is_empty() {
        drawing.set_height(font_size * 4.0);
        let at = (width.pixels() / 2.0, font_size * 2.5);
        drawing.text("quiet", at, Anchor::Middle, "The traces have no times.");
        return drawing;
    }
    let values = report.rate.iter().flat_map(|point| SERIES.map(|(_, _, value)| value(point)));
    let peaks = scenario_rates.iter().map(|rate| rate.peak);
    let greatest = values.chain(peaks).map(scale::finite).fold(0.0, f64::max);
    let scale = Scale::new(greatest * 1.05);
    let (left, right) = (width.pick(62.0, 52.0), width.pixels() - 8.0);
    let steps = busiest(&report.rate, ((right - left) / 2.0) as usize);
    let panel_height = width.pick(88.0, 72.0);
    let mut top = 0.0;
    for (at, rate) in scenario_rates.iter().enumerate() {
        let heading = format!("{}: {}", SCENARIOS[at], rates(rate));
        drawing.text("strong", (0.0, top + font_size), Anchor::Start, heading);
        let panel =
            Panel { left, right, top: top + font_size * 1.8, bottom: top + font_size * 1.8 + panel_height };
        draw_panel(&mut drawing, panel, &scale, &steps, SERIES[at]);
        mark_peak(&mut drawing, panel, &scale, report, rate);
        top = panel.bottom + font_size * 1.2;
    }
    let bottom = top - font_size * 1.2;
    draw_times(&mut drawing, width, (left, right), bottom, length_s(report));
    drawing.set_height(bottom + font_size * 2.2);
    drawing
}

fn draw_panel(
    drawing: &mut Drawing,
    panel: Panel,
    scale: &Scale,
    steps: &[RatePoint],
    (line, area, value): (&'static str, &'static str, Value),
) {
    let Panel { left, right, top, bottom } = panel;
    let y = |value: f64| bottom - scale.position(value) * (bottom - top);
    for mark in scale.marks(2) {
        drawing.line("grid", (left, y(mark)), (right, y(mark)));
        let baseline = y(mark) + drawing.font_size() * 0.35;
        drawing.text("quiet", (left - 8.0, baseline), Anchor::End, number(mark));
    }
    let outline = outline(steps, left, right, |point| y(value(point)));
    drawing.path(area, format!("M{left:.1} {bottom:.1}L{}V{bottom:.1}Z", &outline[1..]));
    drawing.path(line, outline);
    drawing.line("axis", (left, bottom), (right, bottom));
}

/// Marks the busiest interval: a bar over its length, because single steps in it may be higher, or
/// a point if it is short.
fn mark_peak(drawing: &mut Drawing, panel: Panel, scale: &Scale, report: &Report, rate: &Rate) {
    if scale::finite(rate.peak) == 0.0 {
        return;
    }
    let length = length_s(report);
    let x = |at_s: f64| panel.left + (scale::finite(at_s) / length).min(1.0) * (panel.right - panel.left);
    let level = panel.bottom - scale.position(rate.peak) * (panel.bottom - panel.top);
    let window_s = scale::finite(report.metadata_rate.window_s);
    let (from, to) = (x(rate.peak_at_s), x(rate.peak_at_s + window_s));
    match to - from < 12.0 {
        true => drawing.path("peak", diamond(((from + to) / 2.0, level), 4.5)),
        false => drawing.path(
            "stretch",
            format!(
                "M{from:.1} {:.1}V{:.1}M{to:.1} {:.1}V{:.1}M{from:.1} {level:.1}H{to:.1}",
                level - 4.0,
                level + 4.0,
                level - 4.0,
                level + 4.0
            ),
        ),
    }
}

/// Draws the common time axis.
pub fn draw_times(
    drawing: &mut Drawing,
    width: Width,
    (left, right): (f64, f64),
    bottom: f64,
    length_s: f64,
) {
    let font_size = width.font_size();
    for time in scale::round_times(length_s, width.pick(9, 4)) {
        let x = left + (time / length_s).min(1.0) * (right - left);
        drawing.line("axis", (x, bottom), (x, bottom + 5.0));
        let text = duration(time);
        let half = drawing.text_width(&text) / 2.0;
        let anchor = match (x - half < 0.0, x + half > width.pixels()) {
            (true, _) => Anchor::Start,
            (_, true) => Anchor::End,
            _ => Anchor::Middle,
        };
        drawing.text("quiet", (x, bottom + font_size * 1.6), anchor, text);
    }
}

/// Returns the time from the start of the first step to the end of the last one.
pub fn length_s(report: &Report) -> f64 {
    let steps_s = report.rate.len() as f64 * scale::finite(report.metadata_rate.step_s);
    let length_s = if steps_s > 0.0 { steps_s } else { scale::finite(report.duration_s) };
    if length_s > 0.0 { length_s } else { 1.0 }
}

/// Reduces the steps to at most `number_max` intervals, each with the values of its busiest step:
/// an average would hide bursts.
fn busiest(rate: &[RatePoint], number_max: usize) -> Vec<RatePoint> {
    let intervals = rate.len().min(number_max.max(1));
    let interval = |at: usize| {
        let steps = &rate[at * rate.len() / intervals..(at + 1) * rate.len() / intervals];
        let greatest = |value: Value| steps.iter().map(value).map(scale::finite).fold(0.0, f64::max);
        RatePoint {
            t: steps[0].t,
            metadata: greatest(|point| point.metadata),
            data: greatest(|point| point.data),
            direct: greatest(|point| point.direct),
            index: greatest(|point| point.index),
            boot: greatest(|point| point.boot),
            elsewhere: greatest(|point| point.elsewhere),
        }
    };
    (0..intervals).map(interval).collect()
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
