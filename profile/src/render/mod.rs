//! Draws a report: for the terminal, as one page of HTML, as charts, and its table of operations. Values come in,
//! text and bytes go out: nothing here opens a file, asks a clock or looks at the environment, and the same report
//! gives the same bytes. What a report quotes from traces (names of files above all) is hostile until `words::shown`
//! has been over it.

mod chart;
mod drawing;
mod letters;
mod operations;
mod page;
mod picture;
mod scale;
mod terminal;
mod words;

#[cfg(test)]
mod example;
#[cfg(test)]
mod render_test;

pub use chart::{Chart, charts};
pub use operations::csv;
pub use page::html;
pub use picture::PictureError;
pub use terminal::summary;
