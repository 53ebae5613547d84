//! Resolves paths to nodes. Each lookup creates a reference to the node, which is returned when it
//! is no longer needed.

use quell_vfs::{Attributes, Error, ErrorKind, Kind, NodeId, Result, Writable, errno};

/// A node and one reference to it, which is returned when this is dropped.
pub struct NodeGuard<'a> {
    fs: &'a dyn Writable,
    pub attributes: Attributes,
    /// Whether the reference has to be returned.
    must_forget: bool,
}

impl<'a> NodeGuard<'a> {
    /// Takes over the reference of `attributes`.
    pub fn new(fs: &'a dyn Writable, attributes: Attributes) -> NodeGuard<'a> {
        NodeGuard { fs, attributes, must_forget: attributes.node != fs.root() }
    }

    pub fn node(&self) -> NodeId {
        self.attributes.node
    }

    /// Passes the reference to the caller, who must return it.
    pub fn into_attributes(mut self) -> Attributes {
        self.must_forget = false;
        self.attributes
    }
}

impl Drop for NodeGuard<'_> {
    fn drop(&mut self) {
        if self.must_forget {
            self.fs.forget(self.attributes.node, 1);
        }
    }
}

/// The directory of the last name of a path, and that name.
pub struct ParentAndName<'a> {
    pub parent: NodeGuard<'a>,
    pub name: Vec<u8>,
}

/// Resolves `path`. Components are separated by `/`; empty components and `.` are skipped, and `..`
/// is the parent directory, at most the root. Symbolic links are not followed.
pub fn resolve<'a>(fs: &'a dyn Writable, path: &[u8]) -> Result<NodeGuard<'a>> {
    let components: Vec<&[u8]> = path.split(|b| *b == b'/').collect();
    walk(fs, &components, path)
}

/// Returns the directory and the last name of `path`, whether the name exists or not. `None`: the
/// path does not end in a name, for example the path of the root.
pub fn parent_and_name<'a>(fs: &'a dyn Writable, path: &[u8]) -> Result<Option<ParentAndName<'a>>> {
    let mut components: Vec<&[u8]> = path.split(|b| *b == b'/').collect();
    while components.last().is_some_and(|last| matches!(*last, b"" | b".")) {
        components.pop();
    }
    match components.pop() {
        None | Some(b"..") => Ok(None),
        Some(name) => {
            let parent = walk(fs, &components, path)?;
            Ok(Some(ParentAndName { parent, name: name.to_vec() }))
        }
    }
}

fn walk<'a>(fs: &'a dyn Writable, components: &[&[u8]], path: &[u8]) -> Result<NodeGuard<'a>> {
    let mut current = NodeGuard::new(fs, fs.attributes(fs.root())?);
    let mut above = Vec::new();
    for component in components {
        match *component {
            b"" | b"." => continue,
            _ if current.attributes.kind == Kind::Symlink => {
                return Err(Error::new(ErrorKind::Os(errno::ELOOP), "follow", path));
            }
            _ if current.attributes.kind != Kind::Dir => {
                return Err(Error::new(ErrorKind::NotADirectory, "look up", path));
            }
            b".." => current = above.pop().unwrap_or(current),
            name => {
                let found = fs.lookup(current.node(), name)?;
                let found = found.ok_or_else(|| Error::new(ErrorKind::NotFound, "look up", path))?;
                above.push(std::mem::replace(&mut current, NodeGuard::new(fs, found)));
            }
        }
    }
    Ok(current)
}
