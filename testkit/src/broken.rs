//! Twins of the engines that fail on purpose. Which operation fails, and how, is a pure function of a seed
//! and of what is asked, so a run can be replayed and does not depend on the order of threads.

mod backing;

pub use backing::{BrokenDir, Fault, Faults};
