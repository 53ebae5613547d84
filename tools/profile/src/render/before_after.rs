//! The chart of the operations that reach the shared file systems from one cold node: without
//! Quell, with an index, and with a boot image.

use crate::format::{count, percentage};
use crate::render::drawing::{Drawing, Width};
use crate::render::glyphs::Anchor;
use crate::render::scale::Scale;
use crate::report::Report;

/// The names of the scenarios, in their order.
pub const SCENARIOS: [&str; 3] = ["without Quell", "with an index", "with a boot image"];
const BARS: [&str; 3] = ["direct-bar", "index-bar", "boot-bar"];
/// Minimum length of a bar, so that it is visible.
pub const BAR_MIN: f64 = 2.0;

pub fn before_after(report: &Report, width: Width) -> Drawing {
    let remaining = &report.remaining;
    let values = [remaining.direct, remaining.index, remaining.boot].map(|scenario| scenario.metadata);
    let described = SCENARIOS.iter().zip(values).map(|(name, value)| format!("{name} {}", count(value)));
    let description =
        format!("Metadata operations of one cold node: {}.", described.collect::<Vec<_>>().join(", "));
    let title = "Metadata operations of one node on shared file systems";
    let mut drawing = Drawing::new("before-after", width, title, description);
    let font_size = width.font_size();
    let scale = Scale::new(values.into_iter().max().unwrap_or(0) as f64);
    // Names are to the left of their bars, or above them.
    let left = width.pick(150.0, 0.0);
    // "1,234,567 (100 %)" is to the right of the longest bar.
    let bar_room = width.pixels() - left - width.pick(160.0, 0.0);
    let bar_height = font_size * 1.5;
    let mut y = 2.0;
    for (at, value) in values.into_iter().enumerate() {
        let figures = match at {
            0 => count(value),
            _ => format!("{} ({})", count(value), percentage(value, values[0])),
        };
        let length = match value {
            0 => 0.0,
            _ => (scale.position(value as f64) * bar_room).max(BAR_MIN),
        };
        match width {
            Width::Wide => {
                let baseline = y + bar_height * 0.7;
                drawing.text("", (0.0, baseline), Anchor::Start, SCENARIOS[at]);
                drawing.text("strong", (left + length + 8.0, baseline), Anchor::Start, figures);
            }
            Width::Narrow => {
                drawing.text("", (0.0, y + font_size), Anchor::Start, SCENARIOS[at]);
                drawing.text("strong", (width.pixels(), y + font_size), Anchor::End, figures);
                y += font_size * 1.5;
            }
        }
        match at {
            // Each bar also has its own pattern.
            1 => drawing.hatched(BARS[at], left, y, length, bar_height),
            _ => drawing.area(BARS[at], left, y, length, bar_height),
        }
        y += bar_height + font_size * 0.7;
    }
    drawing.set_height(y);
    drawing
}
