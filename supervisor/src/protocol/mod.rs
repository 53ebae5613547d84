//! The messages between the command that starts a holder and the holder, as types, and their
//! transfer.

pub(crate) mod answer;
pub(crate) mod job_files;
pub(crate) mod plan;
pub(crate) mod report;
pub(crate) mod transfer;
