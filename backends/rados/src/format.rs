//! The bytes of the objects of a log, as docs/formats/rados-log.md draws them. Pure functions: every
//! length is compared with its limit before memory is allocated for it.

pub(crate) mod checkpoint;
pub(crate) mod head;
pub(crate) mod log;
pub(crate) mod names;
pub(crate) mod payload;
