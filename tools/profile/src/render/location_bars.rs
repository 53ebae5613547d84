//! The chart of the calls in each location: figure 2 of the paper.

use crate::format::{bytes, count, mode};
use crate::render::before_after::BAR_MIN;
use crate::render::drawing::{Drawing, Width};
use crate::render::glyphs::Anchor;
use crate::render::scale::Scale;
use crate::report::Report;

pub fn location_bars(report: &Report, width: Width) -> Drawing {
    let locations = report.locations.named();
    let described = locations.iter().map(|(name, _, totals)| {
        format!(
            "{name}: {} metadata and {} data calls, {} read, {} written",
            count(totals.metadata),
            count(totals.data),
            bytes(totals.bytes_read),
            bytes(totals.bytes_written)
        )
    });
    let description = described.collect::<Vec<_>>().join("; ") + ".";
    let mut drawing = Drawing::new("locations", width, "Calls by location, as counted", description);
    let font_size = width.font_size();
    let top = key(&mut drawing, width);
    let mut y = top;
    let calls = locations.iter().flat_map(|(_, _, totals)| [totals.metadata, totals.data]);
    let scale = Scale::new(calls.max().unwrap_or(0) as f64);
    // The names are to the left of their bars, or above them.
    let left = width.pick(190.0, 0.0);
    let bar_room = width.pixels() - left - width.pick(110.0, 92.0);
    let bar = font_size * 1.1;
    for (name, meaning, totals) in locations {
        let title = format!("{name} · {}", mode(totals.mode));
        match width {
            Width::Wide => {
                drawing.text("strong", (0.0, y + font_size), Anchor::Start, title);
                drawing.text("quiet", (0.0, y + font_size * 2.35), Anchor::Start, meaning);
            }
            Width::Narrow => {
                // Bold text is slightly wider.
                let x = drawing.text_width(&title) * 1.08 + 8.0;
                drawing.text("strong", (0.0, y + font_size), Anchor::Start, title);
                drawing.text("quiet", (x, y + font_size), Anchor::Start, meaning);
                y += font_size * 1.6;
            }
        }
        for (class, calls) in [("metadata-bar", totals.metadata), ("data-bar", totals.data)] {
            let length = match calls {
                0 => 0.0,
                _ => (scale.position(calls as f64) * bar_room).max(BAR_MIN),
            };
            match class {
                "data-bar" => drawing.hatched(class, left, y, length, bar),
                _ => drawing.area(class, left, y, length, bar),
            }
            drawing.text("", (left + length + 7.0, y + font_size * 0.95), Anchor::Start, count(calls));
            y += bar + 3.0;
        }
        y += font_size * 1.1;
    }
    drawing.line("axis", (left, top - 3.0), (left, y - font_size * 0.9));
    drawing.set_height(y - font_size * 0.6);
    drawing
}

/// Draws the meaning of the bars, and returns the height.
fn key(drawing: &mut Drawing, width: Width) -> f64 {
    let font_size = width.font_size();
    let mut x = 0.0;
    for (class, is_hatched, text) in
        [("metadata-bar", false, "metadata calls"), ("data-bar", true, "data calls")]
    {
        match is_hatched {
            true => drawing.hatched(class, x, 2.0, 16.0, font_size),
            false => drawing.area(class, x, 2.0, 16.0, font_size),
        }
        drawing.text("", (x + 22.0, font_size), Anchor::Start, text);
        x += 22.0 + drawing.text_width(text) + 20.0;
    }
    font_size * 2.4
}
