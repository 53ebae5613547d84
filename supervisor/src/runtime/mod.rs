//! The runtime directory and the files in it, and which runs share them.

pub(crate) mod directory;
pub(crate) mod fifo;
pub(crate) mod job;
pub(crate) mod key;
pub(crate) mod notices;
