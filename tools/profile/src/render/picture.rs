//! A drawing as PNG, for mail and slides.

use std::error::Error;
use std::fmt;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};

/// Twice the size of the drawing: sharp on high-density screens and on paper.
pub const PIXELS_PER_UNIT: f32 = 2.0;

/// A chart that could not be rendered as a picture; the report has its numbers nevertheless.
#[derive(Debug)]
pub struct PictureError {
    chart: &'static str,
    reason: String,
}

impl fmt::Display for PictureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot render the chart {} as a picture: {}", self.chart, self.reason)
    }
}

impl Error for PictureError {}

/// Renders a drawing with text as outlines: the library is linked without its text support.
pub fn png(chart: &'static str, svg: &str) -> Result<Vec<u8>, PictureError> {
    let failed = |reason: String| PictureError { chart, reason };
    let tree = Tree::from_str(svg, &Options::default()).map_err(|e| failed(e.to_string()))?;
    let size =
        tree.size().to_int_size().scale_by(PIXELS_PER_UNIT).ok_or_else(|| failed("no size".to_owned()))?;
    let mut pixels =
        Pixmap::new(size.width(), size.height()).ok_or_else(|| failed(format!("{size:?} is too large")))?;
    resvg::render(&tree, Transform::from_scale(PIXELS_PER_UNIT, PIXELS_PER_UNIT), &mut pixels.as_mut());
    pixels.encode_png().map_err(|e| failed(e.to_string()))
}
