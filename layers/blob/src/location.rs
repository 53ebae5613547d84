//! The locations of stores.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use quell_vfs::{Error, ErrorKind};

/// The location of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A directory that this process opens: `dir:PATH`, or a path with a slash or without a colon.
    Directory(PathBuf),
}

impl FromStr for Location {
    type Err = Error;

    fn from_str(text: &str) -> Result<Location, Error> {
        let directory = |path: &str| match path.is_empty() {
            true => Err(invalid(text, "the path is empty")),
            false => Ok(Location::Directory(path.into())),
        };
        match text.split_once(':') {
            Some(("dir", path)) => directory(path),
            Some((scheme, _)) if !scheme.contains('/') => {
                Err(invalid(text, "a location is dir:PATH, or the path of a directory"))
            }
            _ => directory(text),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Directory(path) => write!(f, "dir:{}", path.display()),
        }
    }
}

fn invalid(text: &str, reason: &str) -> Error {
    let source = Some(reason.to_string().into());
    Error { source, ..Error::new(ErrorKind::InvalidInput, "open the store", text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_directory_and_other_schemes_are_refused() {
        let directory = |path: &str| Location::Directory(path.into());
        for (text, expected) in [
            ("dir:/a/b", Some(directory("/a/b"))),
            ("dir:a:b", Some(directory("a:b"))),
            ("a/b", Some(directory("a/b"))),
            ("./a:b", Some(directory("./a:b"))),
            ("", None),
            ("dir:", None),
            ("http://host", None),
        ] {
            assert_eq!(text.parse::<Location>().ok(), expected, "{text}");
        }
    }
}
