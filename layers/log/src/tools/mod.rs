//! Tools that work on stores without a mount: fsck, report, export, import, rebalance.

pub mod fsck;
pub mod progress;
pub mod rebalance;
pub mod report;
pub mod transfer;
