//! `quell log fsck`: checks all data in the stores, and repairs problems where this loses no data.
//! Every header, name, frame and block is verified; no value is trusted, no symbolic link is
//! followed, and only names that belong to the stores are changed. Without a repair nothing is
//! written.
//!
//! `check` walks the tree, and `context` has the state of the walk. `container_check` and
//! `log_check` read one container and the logs of one writer, and write nothing. `log_repairs` and
//! `names` decide without I/O which problems and repairs follow from the results. `repair` does all
//! repairs of a container, and `own_data` repairs a store's `.quell` directory.

mod check;
mod container_check;
mod context;
mod flat_check;
mod log_check;
mod log_repairs;
mod names;
mod own_data;
mod problem;
mod repair;

pub use check::check;
pub use context::{CheckOptions, CheckResult};
pub use problem::{Finding, Problem, ProblemKind, RepairOutcome};
