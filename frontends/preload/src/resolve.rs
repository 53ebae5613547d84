//! Walks a path in a virtual directory, and follows its symbolic links.

use quell_vfs::{Context, FileSystem, Kind, NodeRef, Writable};

use crate::access::check_access;
use crate::errno::{Errno, Outcome};
use crate::locate::{Located, locate_absolute};
use crate::view::{VirtualDir, absolute, joined};

/// The number of symbolic links that the kernel follows in one path.
const LINKS_MAX: usize = 40;

/// The largest length of a path, in bytes.
const PATH_BYTES_MAX: usize = libc::PATH_MAX as usize;

/// Whether a symbolic link at the end of the path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastLink {
    Follow,
    Keep,
}

/// The end of a path.
pub enum Resolved {
    /// The path leads out of the virtual directories, to this absolute path.
    Native(Vec<u8>),
    /// A name in a virtual directory, or its root.
    Virtual(Box<Entry>),
}

/// A name in a directory of a virtual directory.
pub struct Entry {
    pub dir: &'static VirtualDir,
    pub fs: &'static dyn FileSystem,
    /// The directory that has the name; the root itself for the root.
    pub parent: NodeRef<'static>,
    /// Empty for the root.
    pub name: Vec<u8>,
    /// The node with the name, if it exists.
    pub found: Option<NodeRef<'static>>,
    /// The path below the virtual directory, without symbolic links and slashes at its ends.
    pub path: Vec<u8>,
    /// The path ended with a slash or a dot: only a directory can have the name.
    pub must_be_dir: bool,
}

impl Entry {
    /// Returns the node. Errors: ENOENT; ENOTDIR if the path requires a directory.
    pub fn node(&self) -> Outcome<&NodeRef<'static>> {
        let found = self.found.as_ref().ok_or(Errno(libc::ENOENT))?;
        match self.must_be_dir && found.kind != Kind::Dir {
            true => Err(Errno(libc::ENOTDIR)),
            false => Ok(found),
        }
    }

    /// Returns the file system for changes. Errors: EROFS.
    pub fn writable(&self) -> Outcome<&'static dyn Writable> {
        self.fs.writable().ok_or(Errno(libc::EROFS))
    }

    /// Returns whether this is the root of the virtual directory.
    pub fn is_root(&self) -> bool {
        self.name.is_empty()
    }
}

/// Walks `path` from the root of `dir`. Errors: ENOENT if a directory on the path does not exist,
/// ENOTDIR, ELOOP, ENAMETOOLONG, and those of the file system.
pub fn resolve(dir: &'static VirtualDir, path: &[u8], last_link: LastLink) -> Outcome<Resolved> {
    let (mut dir, mut path) = (dir, path.to_vec());
    for _ in 0..=LINKS_MAX {
        if path.len() >= PATH_BYTES_MAX {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        match walk(dir, &path, last_link)? {
            Walked::Entry(entry) => return Ok(Resolved::Virtual(entry)),
            Walked::Link { below, rest } => path = joined(&below, &rest),
            Walked::Absolute(target) => match locate_absolute(&target) {
                Located::Native => return Ok(Resolved::Native(target)),
                Located::Virtual(next, rest) => (dir, path) = (next, rest.into_owned()),
            },
        }
    }
    Err(Errno(libc::ELOOP))
}

enum Walked {
    Entry(Box<Entry>),
    /// A relative symbolic link: the path to walk next is `rest`, from the directory `below`.
    Link {
        below: Vec<u8>,
        rest: Vec<u8>,
    },
    /// An absolute symbolic link, or a path that leaves the virtual directory.
    Absolute(Vec<u8>),
}

fn walk(dir: &'static VirtualDir, path: &[u8], last_link: LastLink) -> Outcome<Walked> {
    let fs = dir.fs()?;
    let context = Context::for_process(std::process::id());
    let mut above: Vec<(NodeRef<'static>, Vec<u8>)> = Vec::new();
    let mut current = NodeRef::permanent(fs.attributes(&context, fs.root())?);
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut rest = path;
    let must_be_dir = ends_as_dir(path);
    loop {
        let (name, after) = crate::paths::split(rest);
        rest = after;
        let is_last = crate::paths::split(rest).0.is_empty();
        match name {
            b"" => break,
            _ if current.kind != Kind::Dir => return Err(Errno(libc::ENOTDIR)),
            // The store checks access to its directories; an index does not.
            _ if dir.is_tree() && !is_searchable(&current) => return Err(Errno(libc::EACCES)),
            b"." => {}
            b".." => match above.pop() {
                Some((parent, _)) => {
                    current = parent;
                    names.pop();
                }
                None => {
                    let parent = &dir.path[..dir.path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)];
                    return Ok(Walked::Absolute(joined(parent, crate::paths::strip_slashes(rest))));
                }
            },
            name => {
                let found = fs.lookup(&context, current.node(), name)?;
                let follows = !is_last || last_link == LastLink::Follow || must_be_dir;
                match found {
                    Some(found) if found.kind == Kind::Symlink && follows => {
                        let target = fs.read_link(&context, found.node())?;
                        let after = if rest.is_empty() {
                            target.clone()
                        } else {
                            joined(&target, crate::paths::strip_slashes(rest))
                        };
                        let after =
                            if must_be_dir && !ends_as_dir(&after) { joined(&after, b"") } else { after };
                        return Ok(match target.first() {
                            Some(b'/') => Walked::Absolute(after),
                            Some(_) => Walked::Link { below: names.join(&b'/'), rest: after },
                            None => return Err(Errno(libc::ENOENT)),
                        });
                    }
                    Some(found) => {
                        above.push((std::mem::replace(&mut current, found), name.to_vec()));
                        names.push(name.to_vec());
                    }
                    None if is_last => {
                        names.push(name.to_vec());
                        let path = names.join(&b'/');
                        let name = name.to_vec();
                        return Ok(Walked::Entry(Box::new(Entry {
                            dir,
                            fs,
                            parent: current,
                            name,
                            found: None,
                            path,
                            must_be_dir,
                        })));
                    }
                    None => return Err(Errno(libc::ENOENT)),
                }
            }
        }
    }
    let path = names.join(&b'/');
    let entry = match above.pop() {
        Some((parent, name)) => Entry { dir, fs, parent, name, found: Some(current), path, must_be_dir },
        None => {
            let root = NodeRef::permanent(*current);
            Entry { dir, fs, parent: root, name: Vec::new(), found: Some(current), path, must_be_dir }
        }
    };
    Ok(Walked::Entry(Box::new(entry)))
}

fn is_searchable(dir: &NodeRef<'_>) -> bool {
    // Most directories of software can be searched by everybody.
    dir.permissions & 0o111 == 0o111 || check_access(dir, libc::X_OK, true).is_ok()
}

/// Returns whether a path names a directory by its form.
fn ends_as_dir(path: &[u8]) -> bool {
    let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    matches!(last, b"" | b"." | b"..") && !path.is_empty()
}

/// Returns the absolute path of an entry.
pub fn path_of(entry: &Entry) -> Vec<u8> {
    absolute(entry.dir, &entry.path)
}
