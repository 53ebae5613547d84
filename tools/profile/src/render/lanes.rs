//! The chart of processes over time: one lane for each process, darker where it causes more
//! operations.

use crate::format::{count, name, plural};
use crate::render::drawing::{Drawing, Width};
use crate::render::glyphs::Anchor;
use crate::render::scale;
use crate::render::timeline::{draw_times, length_s};
use crate::report::{ProcessLane, Report};

/// Number of lanes that are drawn; report.json may have more.
const LANES_MAX: usize = 24;
/// Number of steps that are drawn in a lane.
const STEPS_MAX: usize = 60;
const DESCRIBED_MAX: usize = 12;
/// Classes of a step by its part of the busiest step.
const SHADES: [&str; 4] = ["shade-1", "shade-2", "shade-3", "shade-4"];

pub fn lanes(report: &Report, width: Width) -> Drawing {
    let processes = &report.processes[..report.processes.len().min(LANES_MAX)];
    let title = "Metadata operations by process over time, without Quell";
    let mut drawing = Drawing::new("processes", width, title, description(processes));
    let font_size = width.font_size();
    if processes.is_empty() {
        drawing.set_height(font_size * 4.0);
        let at = (width.pixels() / 2.0, font_size * 2.5);
        drawing.text("quiet", at, Anchor::Middle, "No process sent operations to a shared file system.");
        return drawing;
    }
    let (left, right) = (width.pick(230.0, 0.0), width.pixels() - width.pick(90.0, 2.0));
    let length_s = length_s(report);
    let x = |at_s: f64| left + (scale::finite(at_s) / length_s).min(1.0) * (right - left);
    let busiest = processes.iter().flat_map(|process| &process.steps).copied().max().unwrap_or(0);
    let bar = font_size * 1.1;
    let mut y = 2.0;
    for process in processes {
        let figures = count(process.operations);
        let program = process.program.rsplit('/').next().unwrap_or_default();
        let pid = format!(" {}", process.pid);
        match width {
            Width::Wide => {
                let baseline = y + bar * 0.82;
                let text = name(program, width.columns(left - 12.0).saturating_sub(pid.len())) + &pid;
                drawing.text("", (0.0, baseline), Anchor::Start, text);
                drawing.text("", (width.pixels(), baseline), Anchor::End, figures);
            }
            Width::Narrow => {
                let columns = width.columns(width.pixels()).saturating_sub(pid.len() + figures.len() + 2);
                drawing.text("", (0.0, y + font_size), Anchor::Start, name(program, columns) + &pid);
                drawing.text("", (width.pixels(), y + font_size), Anchor::End, figures);
                y += font_size * 1.4;
            }
        }
        let (begin, end) = (x(process.begin_s), x(process.end_s).max(x(process.begin_s) + 1.0));
        drawing.line("axis", (begin, y + bar / 2.0), (end, y + bar / 2.0));
        let steps = &process.steps[..process.steps.len().min(STEPS_MAX)];
        let step = (right - left) / steps.len().max(1) as f64;
        for (at, operations) in steps.iter().enumerate().filter(|(_, operations)| **operations > 0) {
            let shade = operations
                .saturating_mul(SHADES.len() as u64)
                .div_ceil(busiest.max(1))
                .clamp(1, SHADES.len() as u64);
            drawing.area(SHADES[shade as usize - 1], left + at as f64 * step, y, step, bar);
        }
        y += bar + font_size * 0.5;
    }
    drawing.line("axis", (left, y), (right, y));
    draw_times(&mut drawing, width, (left, right), y, length_s);
    drawing.set_height(y + font_size * 2.2);
    drawing
}

fn description(processes: &[ProcessLane]) -> String {
    let described = processes.iter().take(DESCRIBED_MAX).map(|process| {
        let operations = plural(process.operations, "operation", "operations");
        format!("{} ({}): {operations}", name(&process.program, 80), process.pid)
    });
    match processes.is_empty() {
        true => "No process sent operations to a shared file system.".to_owned(),
        false => described.collect::<Vec<_>>().join("; ") + ".",
    }
}
