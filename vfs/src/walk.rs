//! Resolves paths to nodes, one lookup for each component.

use crate::attributes::Kind;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result, errno};
use crate::file_system::FileSystem;
use crate::node_ref::NodeRef;

/// Resolves `path` from the root. Components are separated by `/`; empty components and `.` are
/// skipped, and `..` is the parent directory, at most the root. Symbolic links are not followed.
/// Errors: `NotFound`; `NotADirectory`, and `Os(ELOOP)` for a symbolic link, if one is not the last
/// component.
pub fn resolve<'a, F: FileSystem + ?Sized>(
    fs: &'a F,
    context: &Context<'_>,
    path: &[u8],
) -> Result<NodeRef<'a>> {
    resolve_components(fs, context, path.split(|byte| *byte == b'/'), path)
}

/// The directory of the last name of a path, and that name.
#[derive(Debug)]
pub struct ParentAndName<'a, 'p> {
    /// The directory that has, or would have, the entry.
    pub parent: NodeRef<'a>,
    /// The name of the entry.
    pub name: &'p [u8],
}

/// Resolves `path` up to its last name, whether an entry of that name exists or not. Returns `None`
/// if the path does not end in a name, as the path of the root does not. Errors: as
/// [`resolve`].
pub fn resolve_parent<'a, 'p, F: FileSystem + ?Sized>(
    fs: &'a F,
    context: &Context<'_>,
    path: &'p [u8],
) -> Result<Option<ParentAndName<'a, 'p>>> {
    let mut components: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    while components.last().is_some_and(|last| matches!(*last, b"" | b".")) {
        components.pop();
    }
    match components.pop() {
        None | Some(b"..") => Ok(None),
        Some(name) => {
            let parent = resolve_components(fs, context, components.into_iter(), path)?;
            Ok(Some(ParentAndName { parent, name }))
        }
    }
}

fn resolve_components<'a, 'p, F: FileSystem + ?Sized>(
    fs: &'a F,
    context: &Context<'_>,
    components: impl Iterator<Item = &'p [u8]>,
    path: &[u8],
) -> Result<NodeRef<'a>> {
    let refused = |kind| Err(Error::new(kind, "resolve", path));
    let mut current = NodeRef::permanent(fs.attributes(context, fs.root())?);
    // The directories above, whose references are needed for `..`.
    let mut above = Vec::new();
    for component in components {
        match component {
            b"" | b"." => {}
            _ if current.kind == Kind::Symlink => return refused(ErrorKind::Os(errno::ELOOP)),
            _ if current.kind != Kind::Dir => return refused(ErrorKind::NotADirectory),
            b".." => current = above.pop().unwrap_or(current),
            name => match fs.lookup(context, current.node(), name)? {
                Some(found) => above.push(std::mem::replace(&mut current, found)),
                None => return refused(ErrorKind::NotFound),
            },
        }
    }
    Ok(current)
}
