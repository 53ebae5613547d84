//! The runtime directory, the files in it, and the keys and jobs that determine which runs share
//! them.

pub(crate) mod directory;
pub(crate) mod end_record;
pub(crate) mod fifo;
pub(crate) mod job;
pub(crate) mod key;
pub(crate) mod notices;
#[cfg(test)]
pub(crate) mod recorded;
