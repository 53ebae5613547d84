//! Text as outlines, for pictures. The font is included in the program: the fonts of a login node
//! must not change a picture, and nothing is read from its disks. Glyphs are placed one after
//! another, without kerning or ligatures, which the labels of a chart do not need
//! (docs/decisions/0008-drawing-the-report.md has the size of a library that supports them).

use std::fmt::Write;

use ttf_parser::{Face, GlyphId, OutlineBuilder};

/// tools/profile/fonts/README.md describes its content and how it was created.
static FONT: &[u8] = include_bytes!("../../fonts/Roboto-subset.ttf");

/// The part of a text that is at its position.
#[derive(Debug, Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    /// Returns the value of the SVG attribute `text-anchor`.
    pub fn svg_name(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// Returns the path of `text` with its baseline at `at`.
pub fn outline(text: &str, at: (f64, f64), anchor: Anchor, size: f64) -> String {
    let font = Face::parse(FONT, 0).expect("the included font is valid");
    let scale = size / f64::from(font.units_per_em());
    let unknown = font.glyph_index(char::REPLACEMENT_CHARACTER).unwrap_or_default();
    let glyphs: Vec<GlyphId> = text.chars().map(|c| font.glyph_index(c).unwrap_or(unknown)).collect();
    let advance = |glyph: &GlyphId| f64::from(font.glyph_hor_advance(*glyph).unwrap_or_default()) * scale;
    let width: f64 = glyphs.iter().map(advance).sum();
    let begin = match anchor {
        Anchor::Start => 0.0,
        Anchor::Middle => width / 2.0,
        Anchor::End => width,
    };
    let mut pen = Pen { path: String::new(), x: at.0 - begin, y: at.1, scale };
    for glyph in glyphs {
        font.outline_glyph(glyph, &mut pen);
        pen.x += advance(&glyph);
    }
    pen.path
}

/// Writes the outlines of one glyph after another. The y axis of a font points up, and the y axis
/// of a drawing points down.
struct Pen {
    path: String,
    x: f64,
    y: f64,
    scale: f64,
}

impl Pen {
    fn draw(&mut self, verb: char, points: &[(f32, f32)]) {
        self.path.push(verb);
        for (x, y) in points {
            let (x, y) = (self.x + f64::from(*x) * self.scale, self.y - f64::from(*y) * self.scale);
            write!(self.path, "{x:.2} {y:.2} ").expect("writing to a string cannot fail");
        }
    }
}

impl OutlineBuilder for Pen {
    fn move_to(&mut self, x: f32, y: f32) {
        self.draw('M', &[(x, y)]);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.draw('L', &[(x, y)]);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.draw('Q', &[(x1, y1), (x, y)]);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.draw('C', &[(x1, y1), (x2, y2), (x, y)]);
    }

    fn close(&mut self) {
        self.path.push('Z');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_font_has_the_characters_of_labels() {
        let font = Face::parse(FONT, 0).unwrap();
        for letter in (' '..='~').chain("…·–×äöüßéñŁΩжЖ\u{fffd}".chars()) {
            assert!(font.glyph_index(letter).is_some(), "{letter:?}");
        }
    }

    #[test]
    fn text_is_aligned_at_its_anchor() {
        let x_of = |path: &str| path[1..].split(' ').next().unwrap().parse::<f64>().unwrap();
        let [start, middle, end] = [Anchor::Start, Anchor::Middle, Anchor::End].map(|anchor| {
            let path = outline("10,454", (100.0, 50.0), anchor, 13.0);
            x_of(&path)
        });
        assert!((100.0..105.0).contains(&start), "{start}");
        assert!((start - middle - (middle - end)).abs() < 0.1, "{start} {middle} {end}");
        assert_eq!(outline("", (0.0, 0.0), Anchor::End, 13.0), "");
        assert_eq!(
            outline("模型", (0.0, 9.0), Anchor::Start, 9.0),
            outline("\u{fffd}\u{fffd}", (0.0, 9.0), Anchor::Start, 9.0)
        );
    }
}
