//! Resolves paths to nodes. Each lookup creates a reference to the node, which is returned when it
//! is no longer needed.

use quell_log::LogFs;
use quell_vfs::{Attributes, Error, ErrorKind, FileSystem, Kind, NodeId, Result, Writable, errno};

/// A node and one reference to it, which is returned when this is dropped.
pub struct Held<'a> {
    fs: &'a LogFs,
    pub attributes: Attributes,
    /// Whether the reference has to be returned.
    is_owed: bool,
}

impl<'a> Held<'a> {
    /// Takes over the reference of `attributes`.
    pub fn new(fs: &'a LogFs, attributes: Attributes) -> Held<'a> {
        Held { fs, attributes, is_owed: attributes.node != fs.root() }
    }

    pub fn node(&self) -> NodeId {
        self.attributes.node
    }

    /// Passes the reference to the caller, who must return it.
    pub fn keep(mut self) -> Attributes {
        self.is_owed = false;
        self.attributes
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.is_owed {
            self.fs.forget(self.attributes.node, 1);
        }
    }
}

/// The directory of the last name of a path, and that name.
pub struct Place<'a> {
    pub dir: Held<'a>,
    pub name: Vec<u8>,
}

/// Resolves `path`. Components are separated by `/`; empty components and `.` are skipped, and `..`
/// is the parent directory, at most the root. Symbolic links are not followed.
pub fn resolve<'a>(fs: &'a LogFs, path: &[u8]) -> Result<Held<'a>> {
    let components: Vec<&[u8]> = path.split(|b| *b == b'/').collect();
    enter(fs, &components, path)
}

/// Returns the directory and the last name of `path`, whether the name exists or not. `None`: the
/// path does not end in a name, for example the path of the root.
pub fn place<'a>(fs: &'a LogFs, path: &[u8]) -> Result<Option<Place<'a>>> {
    let mut components: Vec<&[u8]> = path.split(|b| *b == b'/').collect();
    while components.last().is_some_and(|last| matches!(*last, b"" | b".")) {
        components.pop();
    }
    match components.pop() {
        None | Some(b"..") => Ok(None),
        Some(name) => Ok(Some(Place { dir: enter(fs, &components, path)?, name: name.to_vec() })),
    }
}

fn enter<'a>(fs: &'a LogFs, components: &[&[u8]], path: &[u8]) -> Result<Held<'a>> {
    let mut at = Held::new(fs, fs.attributes(fs.root())?);
    let mut above = Vec::new();
    for component in components {
        match *component {
            b"" | b"." => continue,
            _ if at.attributes.kind == Kind::Symlink => {
                return Err(Error::new(ErrorKind::Os(errno::ELOOP), "follow", path));
            }
            _ if at.attributes.kind != Kind::Dir => {
                return Err(Error::new(ErrorKind::NotADirectory, "look up", path));
            }
            b".." => at = above.pop().unwrap_or(at),
            name => {
                let found = fs.lookup(at.node(), name)?;
                let found = found.ok_or_else(|| Error::new(ErrorKind::NotFound, "look up", path))?;
                above.push(std::mem::replace(&mut at, Held::new(fs, found)));
            }
        }
    }
    Ok(at)
}
