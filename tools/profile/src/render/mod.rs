//! Renders a report: for the terminal, as one HTML page, as charts, and as a table of operations.
//! The functions are pure: they open no file, read no clock and no environment, and the same report
//! gives the same bytes. Text from traces (above all names of files) is untrusted until
//! `format::escaped` has escaped it.

pub mod before_after;
pub mod chart;
pub mod drawing;
#[cfg(test)]
pub mod example;
pub mod glyphs;
mod hypotf;
pub mod icicle;
pub mod lanes;
pub mod location_bars;
pub mod operations;
pub mod page;
pub mod picture;
#[cfg(test)]
mod render_test;
pub mod scale;
pub mod statements;
pub mod terminal;
pub mod timeline;
