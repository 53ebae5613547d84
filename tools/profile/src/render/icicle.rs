//! The icicle chart of the operations by path: each directory is as wide as the operations below
//! it, and its entries are in the row below.

use unicode_width::UnicodeWidthStr;

use crate::format::{count, name, percentage, plural};
use crate::render::drawing::{Drawing, Width};
use crate::render::glyphs::Anchor;
use crate::report::{PathNode, Report};

/// Number of directories in the description.
const DESCRIBED_MAX: usize = 12;
const DESCRIBED_COLUMNS_MAX: usize = 120;
/// Cells that are narrower than this many columns have no name.
const NAME_COLUMNS_MIN: usize = 4;
const LABEL_COLUMNS_MAX: usize = 120;
/// Number of cells that are drawn; report.json has all.
const CELLS_MAX: usize = 250;

/// A directory whose entries are being drawn.
struct Ancestor<'a> {
    path: &'a str,
    /// The x coordinate of its next entry.
    next_x: f64,
    end_x: f64,
}

pub fn icicle(report: &Report, width: Width) -> Drawing {
    let nodes = &report.path_tree;
    let title = "Metadata operations of one node by path, without Quell";
    let mut drawing = Drawing::new("paths", width, title, description(nodes));
    let font_size = width.font_size();
    let Some(root) = nodes.first() else {
        drawing.set_height(font_size * 4.0);
        let at = (width.pixels() / 2.0, font_size * 2.5);
        drawing.text("quiet", at, Anchor::Middle, "No operations on shared file systems.");
        return drawing;
    };
    let top = key(&mut drawing, width);
    let row_height = font_size * 2.1;
    let total = root.operations.direct.max(1) as f64;
    let mut ancestors: Vec<Ancestor> = Vec::new();
    let mut rows = 0;
    for node in nodes.iter().take(CELLS_MAX) {
        let depth = usize::try_from(node.depth).unwrap_or(usize::MAX);
        if depth > ancestors.len() || depth == 0 && rows > 0 {
            // There is one root, and each directory follows the one above.
            continue;
        }
        ancestors.truncate(depth);
        let (begin, room) = match ancestors.last() {
            Some(parent) => (parent.next_x, parent.end_x - parent.next_x),
            None => (0.0, width.pixels()),
        };
        let length = (node.operations.direct as f64 / total * width.pixels()).clamp(0.0, room.max(0.0));
        let y = top + depth as f64 * row_height;
        let class = if node.in_tree { "covered-cell" } else { "open-cell" };
        drawing.area(class, begin, y, length, row_height - 2.0);
        let columns = width.columns(length - 12.0).min(LABEL_COLUMNS_MAX);
        if columns >= NAME_COLUMNS_MIN {
            let text = label(node, ancestors.last().map(|parent| parent.path), columns);
            drawing.text("", (begin + 6.0, y + row_height / 2.0 + font_size * 0.3), Anchor::Start, text);
        }
        if let Some(parent) = ancestors.last_mut() {
            parent.next_x += length;
        }
        ancestors.push(Ancestor { path: &node.path, next_x: begin, end_x: begin + length });
        rows = rows.max(depth + 1);
    }
    drawing.set_height(top + rows as f64 * row_height);
    drawing
}

/// Draws the meaning of the colours, and returns the height.
fn key(drawing: &mut Drawing, width: Width) -> f64 {
    let font_size = width.font_size();
    let mut x = 0.0;
    for (class, text) in [("covered-cell", "in a proposed tree"), ("open-cell", "not covered")] {
        drawing.area(class, x, 2.0, 16.0, font_size);
        drawing.text("", (x + 22.0, font_size), Anchor::Start, text);
        x += 22.0 + drawing.text_width(text) + 20.0;
    }
    font_size * 2.4
}

/// Returns the name relative to the directory above, with its operations if there is space.
fn label(node: &PathNode, parent: Option<&str>, columns: usize) -> String {
    let below = parent.and_then(|parent| node.path.strip_prefix(parent));
    let relative = below.map_or(node.path.as_str(), |below| below.trim_start_matches('/'));
    let short = if relative.is_empty() { node.path.as_str() } else { relative };
    let figures = format!(" {}", count(node.operations.direct));
    match name(short, usize::MAX).width() + figures.width() <= columns {
        true => name(short, columns) + &figures,
        false => name(short, columns),
    }
}

fn description(nodes: &[PathNode]) -> String {
    let total = nodes.first().map_or(0, |root| root.operations.direct);
    let described = nodes.iter().take(DESCRIBED_MAX).map(|node| {
        format!(
            "{}: {} ({})",
            name(&node.path, DESCRIBED_COLUMNS_MAX),
            plural(node.operations.direct, "operation", "operations"),
            percentage(node.operations.direct, total)
        )
    });
    match nodes.is_empty() {
        true => "No operations on shared file systems.".to_owned(),
        false => described.collect::<Vec<_>>().join("; ") + ".",
    }
}
