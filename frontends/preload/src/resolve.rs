//! Walks a path in a virtual directory, and follows its symbolic links.

use std::borrow::Cow;

use quell_vfs::{Attributes, Context, FileSystem, Kind, NodeId, NodeRef, Time, Writable};

use crate::access::check_access;
use crate::counters::Counter;
use crate::errno::{Errno, Outcome};
use crate::locate::{Located, locate_absolute};
use crate::view::{self, VirtualDir, absolute, joined};

/// The number of symbolic links that the kernel follows in one path.
const LINKS_MAX: usize = 40;

/// The largest length of a path, in bytes.
const PATH_BYTES_MAX: usize = libc::PATH_MAX as usize;

/// Whether a symbolic link at the end of the path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastLink {
    Follow,
    Keep,
    /// As `Follow`, but in a pool or batch the last name is not looked up, unless it must be a
    /// directory.
    FollowUnread,
    /// As `Keep`, with the same exception.
    KeepUnread,
}

impl LastLink {
    fn follows(self) -> bool {
        matches!(self, LastLink::Follow | LastLink::FollowUnread)
    }

    fn is_unread(self) -> bool {
        matches!(self, LastLink::FollowUnread | LastLink::KeepUnread)
    }
}

/// The result of walking a path.
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
    /// The directory that has the name; the root itself for the root. Its attributes may be unread.
    pub parent: NodeRef<'static>,
    /// The node with the name, if it exists.
    pub found: Option<NodeRef<'static>>,
    /// The path below the virtual directory, without symbolic links and slashes at its ends.
    pub path: Vec<u8>,
    /// The path ended with a slash or a dot: only a directory can have the name.
    pub must_be_dir: bool,
    /// The path ended with `.` or `..`, which rmdir(2) and rename(2) refuse.
    pub ends_with_dot: bool,
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

    /// Returns the name in the directory; empty for the root.
    pub fn name(&self) -> &[u8] {
        last_name(&self.path)
    }

    /// Returns whether this is the root of the virtual directory.
    pub fn is_root(&self) -> bool {
        self.path.is_empty()
    }
}

/// Walks `path` from the root of `dir`. Errors: ENOENT if a directory on the path does not exist,
/// ENOTDIR, ELOOP, ENAMETOOLONG, and the errors of the file system.
pub fn resolve(dir: &'static VirtualDir, path: &[u8], last_link: LastLink) -> Outcome<Resolved> {
    let (mut dir, mut path) = (dir, Cow::Borrowed(path));
    for _ in 0..=LINKS_MAX {
        if path.len() >= PATH_BYTES_MAX {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        match walk(dir, &path, last_link)? {
            Walked::Entry(entry) => return Ok(Resolved::Virtual(entry)),
            Walked::Link { below, rest } => path = joined(&below, &rest).into(),
            Walked::Absolute(target) => match locate_absolute(&target) {
                Located::Native => return Ok(Resolved::Native(target)),
                Located::Virtual(next, rest) => (dir, path) = (next, rest.into_owned().into()),
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

/// The position of a walk in a virtual directory.
struct Position {
    current: NodeRef<'static>,
    /// The directory with `current`; `None` in the root.
    parent: Option<NodeRef<'static>>,
    /// The directories above `parent`, if the path has `..`.
    above: Vec<NodeRef<'static>>,
    has_parents: bool,
    /// The path without symbolic links.
    path: Vec<u8>,
}

impl Position {
    fn new(root: NodeRef<'static>, path: &[u8]) -> Position {
        let has_parents = crate::paths::has_parent(path);
        let path = Vec::with_capacity(path.len());
        Position { current: root, parent: None, above: Vec::new(), has_parents, path }
    }

    fn enter(&mut self, name: &[u8], found: NodeRef<'static>) {
        self.push(name);
        let left = self.parent.replace(std::mem::replace(&mut self.current, found));
        if self.has_parents {
            self.above.extend(left);
        }
    }

    /// Adds a name to the path.
    fn push(&mut self, name: &[u8]) {
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
    }

    /// Returns to the directory above; false in the root.
    fn leave(&mut self) -> bool {
        let Some(parent) = self.parent.take() else { return false };
        self.current = parent;
        self.parent = self.above.pop();
        let start = self.path.len() - last_name(&self.path).len();
        self.path.truncate(start.saturating_sub(1));
        true
    }
}

/// Returns the last component of a path without slashes at its end.
pub fn last_name(path: &[u8]) -> &[u8] {
    let start = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    &path[start..]
}

fn walk(dir: &'static VirtualDir, path: &[u8], last_link: LastLink) -> Outcome<Walked> {
    let fs = dir.fs()?;
    dir.count(Counter::Lookups, 1);
    let context = view::context();
    // The access to the root of a tree is checked with its attributes, which cost no request.
    let root = match dir.is_tree() {
        true => fs.attributes(&context, fs.root())?,
        false => unread_dir(fs.root()),
    };
    let mut at = Position::new(NodeRef::permanent(root), path);
    let mut rest = path;
    let (must_be_dir, ends_with_dot) = (ends_as_dir(path), ends_with_dot(path));
    loop {
        let (name, after) = crate::paths::split(rest);
        rest = after;
        let is_last = crate::paths::split(rest).0.is_empty();
        match name {
            b"" => break,
            _ if at.current.kind != Kind::Dir => return Err(Errno(libc::ENOTDIR)),
            // The store checks access to its directories; an index does not.
            _ if dir.is_tree() && !is_searchable(&at.current) => return Err(Errno(libc::EACCES)),
            b"." => {}
            b".." if at.leave() => {}
            b".." => {
                let parent = &dir.path[..dir.path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)];
                return Ok(Walked::Absolute(joined(parent, crate::paths::strip_slashes(rest))));
            }
            name if is_last && !must_be_dir && last_link.is_unread() && dir.has_remote_names() => {
                at.push(name);
                let Position { current: parent, path, .. } = at;
                let entry = Entry { dir, fs, parent, found: None, path, must_be_dir, ends_with_dot };
                return Ok(Walked::Entry(Box::new(entry)));
            }
            name => match look_up(fs, &context, at.current.node(), name, is_last)? {
                Some(found)
                    if found.kind == Kind::Symlink && (!is_last || last_link.follows() || must_be_dir) =>
                {
                    let target = fs.read_link(&context, found.node())?;
                    return follow(target, rest, must_be_dir, at.path);
                }
                Some(found) => at.enter(name, found),
                None if is_last => {
                    at.push(name);
                    let Position { current, path, .. } = at;
                    let entry =
                        Entry { dir, fs, parent: current, found: None, path, must_be_dir, ends_with_dot };
                    return Ok(Walked::Entry(Box::new(entry)));
                }
                None => return Err(Errno(libc::ENOENT)),
            },
        }
    }
    let Position { current, parent, path, .. } = at;
    let is_unread = current.node() == fs.root() && !dir.is_tree();
    let current = if is_unread { NodeRef::permanent(fs.attributes(&context, fs.root())?) } else { current };
    let parent = parent.unwrap_or_else(|| NodeRef::permanent(*current));
    let found = Some(current);
    Ok(Walked::Entry(Box::new(Entry { dir, fs, parent, found, path, must_be_dir, ends_with_dot })))
}

fn look_up<'a>(
    fs: &'a dyn FileSystem,
    context: &Context<'_>,
    dir: NodeId,
    name: &[u8],
    is_last: bool,
) -> quell_vfs::Result<Option<NodeRef<'a>>> {
    if is_last { fs.lookup(context, dir, name) } else { fs.lookup_on_path(context, dir, name) }
}

/// Returns the attributes of a directory of which only the number is known.
fn unread_dir(node: NodeId) -> Attributes {
    Attributes {
        node,
        kind: Kind::Dir,
        permissions: 0,
        uid: 0,
        gid: 0,
        nlink: 0,
        rdev: 0,
        size_bytes: 0,
        blocks: 0,
        modified: Time::default(),
        changed: Time::default(),
    }
}

/// Returns the path to walk next: the target of a symbolic link in the directory `below`, and the
/// rest of the path.
fn follow(target: Vec<u8>, rest: &[u8], must_be_dir: bool, below: Vec<u8>) -> Outcome<Walked> {
    let Some(first) = target.first().copied() else { return Err(Errno(libc::ENOENT)) };
    let mut path = target;
    if !rest.is_empty() {
        path = joined(&path, crate::paths::strip_slashes(rest));
    }
    if must_be_dir && !ends_as_dir(&path) {
        path.push(b'/');
    }
    Ok(match first {
        b'/' => Walked::Absolute(path),
        _ => Walked::Link { below, rest: path },
    })
}

fn is_searchable(dir: &NodeRef<'_>) -> bool {
    // Most directories of software can be searched by all users.
    dir.permissions & 0o111 == 0o111 || check_access(dir, libc::X_OK, true).is_ok()
}

/// Returns whether a path can only name a directory, because it ends with a slash, `.` or `..`.
fn ends_as_dir(path: &[u8]) -> bool {
    let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    matches!(last, b"" | b"." | b"..") && !path.is_empty()
}

fn ends_with_dot(path: &[u8]) -> bool {
    let last = path.split(|byte| *byte == b'/').rfind(|name| !name.is_empty());
    matches!(last, Some(b"." | b".."))
}

/// Returns the absolute path of an entry.
pub fn path_of(entry: &Entry) -> Vec<u8> {
    absolute(entry.dir, &entry.path)
}
