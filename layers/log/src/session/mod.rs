//! Open log files: writers, order of their frames, and the extents that a reader resolves.

pub mod buffer;
pub mod collected;
pub mod flatten;
#[cfg(test)]
mod flatten_test;
#[cfg(test)]
mod forged_test;
pub mod log_file;
pub mod scan;
pub mod share;
pub mod view;
pub mod writer;
