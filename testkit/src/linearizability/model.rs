//! Sequential specifications.

use std::fmt::Debug;
use std::hash::Hash;

/// The state in a sequential specification. The default is the state before all operations.
pub trait Model: Clone + Eq + Hash + Default {
    /// An operation.
    type Operation: Debug;
    /// The result of an operation.
    type Result: Debug;

    /// Performs an operation and returns whether it can have this result.
    fn perform(&mut self, operation: &Self::Operation, result: &Self::Result) -> bool;

    /// Performs an operation whose result is not known, and returns whether it has an effect. Each
    /// operation has a different `number`.
    fn perform_unknown(&mut self, operation: &Self::Operation, number: u64) -> bool;
}
