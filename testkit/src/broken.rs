//! Implementations of the backing traits with injected faults. The failing operations and their
//! faults depend only on a seed and on the operation's kind and path, so a run can be repeated and
//! does not depend on the scheduling of threads.

mod backing;

pub use backing::{BrokenDir, Fault, Faults};
