//! Paths and numbers in messages.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

pub use quell_mount_spec::shown;

/// Does the same as `shown`, for the bytes of a path within an index.
pub fn shown_bytes(path: &[u8]) -> String {
    shown(OsStr::from_bytes(path))
}

/// Returns a number with its noun: `1 entry`, `2 entries`.
pub fn counted(number: u64, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// Returns paths as one printable line, separated by commas.
pub fn shown_list(paths: &[PathBuf]) -> String {
    paths.iter().map(shown).collect::<Vec<_>>().join(",")
}
