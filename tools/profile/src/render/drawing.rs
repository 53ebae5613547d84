//! A drawing of rectangles, lines and text, as SVG. Its colours are CSS classes, so that a page can
//! use others in dark mode; a drawing in its own file includes the style of light mode.

use askama::Template;
use unicode_width::UnicodeWidthStr;

use crate::render::glyphs::{self, Anchor};

/// The colours of a drawing, from the palette of Okabe and Ito, which remains distinguishable with
/// colour vision deficiency. No colour is the only distinction: lines also differ by dashes, areas
/// by hatching, and everything has a label.
#[derive(Debug, Template)]
#[template(path = "chart.css", escape = "none")]
pub struct Palette {
    paper: &'static str,
    ink: &'static str,
    quiet: &'static str,
    grid: &'static str,
    direct: &'static str,
    index: &'static str,
    boot: &'static str,
    metadata: &'static str,
    data: &'static str,
}

pub const DAY: Palette = Palette {
    paper: "#ffffff",
    ink: "#1b2127",
    quiet: "#56616b",
    grid: "#dde2e7",
    direct: "#d55e00",
    index: "#0072b2",
    boot: "#009e73",
    metadata: "#0072b2",
    data: "#e69f00",
};

pub const NIGHT: Palette = Palette {
    paper: "#14181c",
    ink: "#e6eaee",
    quiet: "#a3aeb8",
    grid: "#333b43",
    direct: "#e8772a",
    index: "#56b4e9",
    boot: "#1fbf91",
    metadata: "#56b4e9",
    data: "#e69f00",
};

/// The available width: a desktop page, or a phone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    Wide,
    Narrow,
}

impl Width {
    pub const fn pixels(self) -> f64 {
        match self {
            Width::Wide => 960.0,
            Width::Narrow => 358.0,
        }
    }

    /// Returns one of the two values by the width.
    pub fn pick<T>(self, wide: T, narrow: T) -> T {
        match self {
            Width::Wide => wide,
            Width::Narrow => narrow,
        }
    }

    /// Returns the font size.
    pub fn font_size(self) -> f64 {
        self.pick(13.0, 12.0)
    }

    /// Returns the number of columns of text that fit into this many pixels in a wide font.
    pub fn columns(self, pixels: f64) -> usize {
        (pixels / (self.font_size() * 0.56)).max(0.0) as usize
    }
}

#[derive(Debug, Clone)]
enum Mark {
    Box {
        class: &'static str,
        x: f64,
        y: f64,
        width: f64,
        height: f64,
        hatched: bool,
    },
    Line {
        class: &'static str,
        x1: f64,
        y1: f64,
        x2: f64,
        y2: f64,
    },
    Path {
        class: &'static str,
        d: String,
    },
    Text {
        class: &'static str,
        x: f64,
        y: f64,
        anchor: Anchor,
        size: f64,
        text: String,
    },
    /// Text as outlines.
    Outline {
        class: &'static str,
        d: String,
    },
}

/// The visible area of the drawing.
#[derive(Debug, Clone, Copy)]
struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

/// A drawing: marks in the order in which they are drawn.
#[derive(Debug, Clone, Template)]
#[template(path = "drawing.svg")]
pub struct Drawing {
    /// Prefix of all ids in the drawing, so that several drawings can be on one page.
    id: String,
    pub title: String,
    pub description: String,
    frame: Frame,
    font_size: f64,
    /// The drawing's own colours and background; empty within a page, which has them.
    style: String,
    marks: Vec<Mark>,
}

impl Drawing {
    pub fn new(name: &str, width: Width, title: &str, description: String) -> Self {
        let id = format!("{name}-{}", width.pick("wide", "narrow"));
        let font_size = width.font_size();
        let (title, style, marks) = (title.to_owned(), String::new(), Vec::new());
        let frame = Frame { left: 0.0, top: 0.0, width: width.pixels(), height: 0.0 };
        Drawing { id, title, description, frame, font_size, style, marks }
    }

    pub fn set_height(&mut self, height: f64) {
        self.frame.height = height.ceil();
    }

    pub fn area(&mut self, class: &'static str, x: f64, y: f64, width: f64, height: f64) {
        self.marks.push(Mark::Box { class, x, y, width, height, hatched: false });
    }

    /// Adds a hatched area, which differs from its neighbours without colour.
    pub fn hatched(&mut self, class: &'static str, x: f64, y: f64, width: f64, height: f64) {
        self.marks.push(Mark::Box { class, x, y, width, height, hatched: true });
    }

    pub fn line(&mut self, class: &'static str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.marks.push(Mark::Line { class, x1, y1, x2, y2 });
    }

    pub fn path(&mut self, class: &'static str, d: String) {
        self.marks.push(Mark::Path { class, d });
    }

    pub fn text(&mut self, class: &'static str, at: (f64, f64), anchor: Anchor, text: impl Into<String>) {
        let size = self.font_size;
        self.marks.push(Mark::Text { class, x: at.0, y: at.1, anchor, size, text: text.into() });
    }

    pub fn font_size(&self) -> f64 {
        self.font_size
    }

    /// Returns the approximate width of a text in a wide font: a page uses the reader's own font.
    pub fn text_width(&self, text: &str) -> f64 {
        text.width() as f64 * self.font_size * 0.6
    }

    /// Returns the SVG for a page that has the style.
    pub fn inline_svg(&self) -> String {
        self.render().expect("rendering to memory cannot fail")
    }

    /// Returns the SVG for a separate file, with its title and a margin.
    pub fn standalone_svg(mut self) -> String {
        self.with_title().inline_svg()
    }

    /// Returns the SVG for a separate file, with text as outlines, for a renderer without fonts.
    pub fn outlined_svg(mut self) -> String {
        self.with_title();
        for mark in &mut self.marks {
            if let Mark::Text { class, x, y, anchor, size, text } = mark {
                *mark = Mark::Outline { class, d: glyphs::outline(text, (*x, *y), *anchor, *size) };
            }
        }
        self.inline_svg()
    }

    fn with_title(&mut self) -> &Self {
        let (class, anchor, size) = ("strong", Anchor::Start, self.font_size * 1.25);
        let (x, y, text) = (0.0, self.font_size * -1.5, self.title.clone());
        self.marks.push(Mark::Text { class, x, y, anchor, size, text });
        self.style = DAY.render().expect("rendering to memory cannot fail");
        let (margin, above) = (24.0, self.font_size * 4.0);
        let Frame { width, height, .. } = self.frame;
        self.frame = Frame {
            left: -margin,
            top: -above,
            width: width + 2.0 * margin,
            height: height + above + margin,
        };
        self
    }
}
