//! Patterns of names and paths of a tree. Pure.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use quell_vfs::{Error, ErrorKind, Result};

/// Glob patterns. A pattern with a `/` matches paths below the root of the tree, and a pattern
/// without one matches names in any directory.
#[derive(Debug)]
pub struct Patterns {
    names: GlobSet,
    paths: GlobSet,
}

impl Patterns {
    /// Compiles patterns. `operation`: for error messages.
    pub fn new(operation: &'static str, patterns: &[String]) -> Result<Patterns> {
        let mut names = GlobSetBuilder::new();
        let mut paths = GlobSetBuilder::new();
        for pattern in patterns {
            let wrong = |e: globset::Error| Error {
                source: Some(Box::new(e)),
                ..Error::new(ErrorKind::InvalidInput, operation, pattern)
            };
            if pattern.contains('\n') {
                return Err(Error::new(ErrorKind::InvalidInput, operation, pattern));
            }
            let of_path = pattern.trim_end_matches('/').contains('/');
            let text = pattern.trim_matches('/');
            let glob = GlobBuilder::new(text).literal_separator(true).build().map_err(wrong)?;
            if of_path {
                paths.add(glob)
            } else {
                names.add(glob)
            };
        }
        let build = |set: GlobSetBuilder| {
            set.build().map_err(|e| Error {
                source: Some(Box::new(e)),
                ..Error::new(ErrorKind::InvalidInput, operation, patterns.join(" "))
            })
        };
        Ok(Patterns { names: build(names)?, paths: build(paths)? })
    }

    /// Returns whether an entry matches. `directory`: the path of its directory below the root.
    pub fn matches(&self, directory: &[u8], name: &[u8]) -> bool {
        let path = |bytes: &[u8]| Path::new(OsStr::from_bytes(bytes)).to_owned();
        let joined = || match directory {
            b"" => name.to_vec(),
            _ => [directory, b"/", name].concat(),
        };
        (!self.names.is_empty() && self.names.is_match(path(name)))
            || (!self.paths.is_empty() && self.paths.is_match(path(&joined())))
    }
}
