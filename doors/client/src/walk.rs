//! The way from a path to a node. Each name that is looked up is a reference to its node, which is given back when
//! nothing needs it any more.

use quell_fs::{Attributes, Error, ErrorKind, FileSystem, Kind, NodeId, Result, Writable, errno};
use quell_log::LogFs;

/// A node and one reference to it, given back when this is dropped.
pub struct Held<'a> {
    fs: &'a LogFs,
    pub attributes: Attributes,
    /// Whether the reference is ours to give back.
    is_owed: bool,
}

impl<'a> Held<'a> {
    /// Takes over the reference that `attributes` are.
    pub fn new(fs: &'a LogFs, attributes: Attributes) -> Held<'a> {
        Held { fs, attributes, is_owed: attributes.node != fs.root() }
    }

    pub fn node(&self) -> NodeId {
        self.attributes.node
    }

    /// The reference is the caller's to give back.
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

/// The directory that holds the last name of a path, and that name.
pub struct Place<'a> {
    pub dir: Held<'a>,
    pub name: Vec<u8>,
}

/// Where `path` leads: components between `/`; empty ones and `.` are skipped, `..` goes up, to the root at most. Symbolic links are
/// not followed.
pub fn resolve<'a>(fs: &'a LogFs, path: &[u8]) -> Result<Held<'a>> {
    let components: Vec<&[u8]> = path.split(|b| *b == b'/').collect();
    enter(fs, &components, path)
}

/// The directory and the last name of `path`, whether that exists or not. `None`: it ends in no name, as the root does.
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
