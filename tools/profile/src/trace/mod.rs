//! Reads the output of strace: lines become calls, and calls become events that name the file that
//! each call refers to.

pub mod calls;
pub mod delayed;
pub mod descriptors;
pub mod event;
#[cfg(test)]
mod histories_test;
pub mod line;
pub mod processes;
pub mod reader;
#[cfg(test)]
mod reader_test;
pub mod resolver;
pub mod split_lines;
pub mod timestamps;
pub mod unfinished;
