//! A drawing of rectangles, lines and text, as SVG. Its colours are CSS classes, so that a page can
//! use others in dark mode; a drawing in its own file includes the style of light mode.

use askama::Template;
use unicode_width::UnicodeWidthStr;

use super::letters;

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
    missing: &'static str,
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
    missing: "#d55e00",
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
    missing: "#e8772a",
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
    pub fn letters(self) -> f64 {
        self.pick(13.0, 12.0)
    }

    /// Returns the number of text columns that fit into this many pixels, with wide letters.
    pub fn columns(self, pixels: f64) -> usize {
        (pixels / (self.letters() * 0.56)).max(0.0) as usize
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn word(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
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
    Words {
        class: &'static str,
        x: f64,
        y: f64,
        anchor: Anchor,
        size: f64,
        text: String,
    },
    /// Text as outlines.
    Letters {
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
    letters: f64,
    /// The drawing's own colours and background; empty within a page, which has them.
    style: String,
    marks: Vec<Mark>,
}

impl Drawing {
    pub fn new(name: &str, width: Width, title: &str, description: String) -> Self {
        let id = format!("{name}-{}", width.pick("wide", "narrow"));
        let letters = width.letters();
        let (title, style, marks) = (title.to_owned(), String::new(), Vec::new());
        let frame = Frame { left: 0.0, top: 0.0, width: width.pixels(), height: 0.0 };
        Drawing { id, title, description, frame, letters, style, marks }
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

    pub fn words(&mut self, class: &'static str, at: (f64, f64), anchor: Anchor, text: impl Into<String>) {
        let size = self.letters;
        self.marks.push(Mark::Words { class, x: at.0, y: at.1, anchor, size, text: text.into() });
    }

    pub fn letters(&self) -> f64 {
        self.letters
    }

    /// Returns the approximate width of a text, with wide letters: a page uses the reader's own
    /// font.
    pub fn width_of(&self, text: &str) -> f64 {
        text.width() as f64 * self.letters * 0.6
    }

    /// Returns the SVG for a page that has the style.
    pub fn within_a_page(&self) -> String {
        self.render().expect("a drawing is written to memory")
    }

    /// Returns the SVG for a separate file, with its title and a margin.
    pub fn alone(mut self) -> String {
        self.with_title().within_a_page()
    }

    /// Returns the SVG for a separate file, with text as outlines, for a renderer without fonts.
    pub fn alone_in_outlines(mut self) -> String {
        self.with_title();
        for mark in &mut self.marks {
            if let Mark::Words { class, x, y, anchor, size, text } = mark {
                *mark = Mark::Letters { class, d: letters::outline(text, (*x, *y), *anchor, *size) };
            }
        }
        self.within_a_page()
    }

    fn with_title(&mut self) -> &Self {
        let (class, anchor, size) = ("strong", Anchor::Start, self.letters * 1.25);
        let (x, y, text) = (0.0, self.letters * -1.5, self.title.clone());
        self.marks.push(Mark::Words { class, x, y, anchor, size, text });
        self.style = DAY.render().expect("a style is written to memory");
        let (space, above) = (24.0, self.letters * 4.0);
        let Frame { width, height, .. } = self.frame;
        self.frame =
            Frame { left: -space, top: -above, width: width + 2.0 * space, height: height + above + space };
        self
    }
}
