//! Renders a report: for the terminal, as one HTML page, as charts, and as a table of operations.
//! The functions are pure: they open no file, read no clock and no environment, and the same report
//! gives the same bytes. Text from traces (above all names of files) is untrusted until
//! `words::shown` has escaped it.

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
