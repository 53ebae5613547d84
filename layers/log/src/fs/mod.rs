//! The file system of the contract: names, nodes and handles.

pub mod file_system;
pub mod flatten_queue;
pub mod nodes;
#[cfg(test)]
mod others_test;
