//! The charts of a report as files. Each chart is a function from a report to a drawing, in two
//! widths: for desktop pages and for phones.

use crate::render::before_after::before_after;
use crate::render::drawing::{Drawing, Width};
use crate::render::icicle::icicle;
use crate::render::lanes::lanes;
use crate::render::location_bars::location_bars;
use crate::render::picture::{self, PictureError};
use crate::render::timeline::timeline;
use crate::report::Report;

/// A chart as the files `NAME.svg` and `NAME.png`.
#[derive(Debug, Clone)]
pub struct Chart {
    /// The name of its files, without an ending.
    pub name: &'static str,
    /// The title above it.
    pub title: String,
    /// The content of the chart in words and numbers, for readers who cannot see it.
    pub description: String,
    /// The content of the SVG file.
    pub svg: String,
    /// The content of the PNG file.
    pub png: Vec<u8>,
}

type Draw = fn(&Report, Width) -> Drawing;

const CHARTS: [(&str, Draw); 5] = [
    ("before-after", before_after),
    ("paths", icicle),
    ("timeline", timeline),
    ("processes", lanes),
    ("locations", location_bars),
];

/// Returns all charts, in the width of a desktop page.
pub fn charts(report: &Report) -> Result<Vec<Chart>, PictureError> {
    let chart = |(name, drawing): (&'static str, Drawing)| {
        let (title, description) = (drawing.title.clone(), drawing.description.clone());
        let png = picture::png(name, &drawing.clone().outlined_svg())?;
        Ok(Chart { name, title, description, svg: drawing.standalone_svg(), png })
    };
    drawings(report).into_iter().map(chart).collect()
}

pub fn drawings(report: &Report) -> [(&'static str, Drawing); 5] {
    CHARTS.map(|(name, draw)| (name, draw(report, Width::Wide)))
}
