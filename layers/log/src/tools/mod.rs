//! Tools that work on stores without a mount: check, report, export, import, rebalance.

pub mod check;
pub mod crew;
pub mod log_check;
pub mod problem;
pub mod rebalance;
pub mod report;
pub mod transfer;
