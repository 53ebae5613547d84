//! Counts the events of a trace, chooses trees, and replays the operations that would remain.

pub mod client_cache;
pub mod counts;
pub mod findings;
pub mod lanes;
pub mod measured;
pub mod notes;
pub mod path_tree;
pub mod rates;
pub mod readings;
#[cfg(test)]
mod readings_test;
pub mod replay;
#[cfg(test)]
mod replay_test;
pub mod saturation;
pub mod searches;
pub mod series;
pub mod totals;
pub mod trees;
pub mod verdict;
