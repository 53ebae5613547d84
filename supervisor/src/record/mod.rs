//! Recordings: the command's side, the selection of files without a program, and the image.

pub(crate) mod files;
pub(crate) mod image;
pub(crate) mod output_copy;
pub(crate) mod stop;
pub(crate) mod wait;
