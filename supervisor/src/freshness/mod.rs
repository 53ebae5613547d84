//! Detects that a tree has changed since it was indexed.

pub(crate) mod consequence;
pub(crate) mod decision;
pub(crate) mod full_check;
pub(crate) mod results;
pub(crate) mod sample;
pub(crate) mod stale;
pub(crate) mod watch;
pub(crate) mod whole_check;
