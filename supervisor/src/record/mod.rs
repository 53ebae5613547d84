//! The command's side of a recording.

pub(crate) mod output_copy;
pub(crate) mod stop;
pub(crate) mod wait;
