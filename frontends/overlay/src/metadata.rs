//! Fills a tmpfs with the metadata of a tree for overlayfs. Directories, links and special files
//! are created as they are. A regular file becomes an empty file of the same size with an attribute
//! that names its data; a file whose data will be written to the tmpfs itself gets no such
//! attribute.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use quell_vfs::{
    Attributes, Context, Cursor, Error, ErrorKind, FileSystem, Kind, NodeId, Result, Time, errno,
};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::redirected::{METACOPY, REDIRECT, REDIRECT_BYTES_MAX, escaped};

/// The number of directories that a thread takes at a time.
const DIRECTORIES_AT_ONCE: usize = 32;
/// The maximum number of links made to reproduce a file's link count if its other names lie outside
/// the tree.
const OUTSIDE_LINKS_MAX: u32 = 1000;

/// The user and groups of the caller, if the metadata layer can have no other owner.
#[derive(Debug, Clone)]
pub struct Ids {
    /// The effective user.
    pub uid: u32,
    /// The effective group and the supplementary groups.
    pub groups: Vec<u32>,
}

impl Ids {
    /// Returns the ids of the calling process.
    pub fn of_caller() -> Result<Ids> {
        let mut groups: Vec<u32> = rustix::process::getgroups()
            .map_err(|e| Error::from_io(e.into(), "read groups", b""))?
            .iter()
            .map(|g| g.as_raw())
            .collect();
        groups.push(rustix::process::getegid().as_raw());
        Ok(Ids { uid: rustix::process::geteuid().as_raw(), groups })
    }

    /// Returns the mode that gives the caller, as the owner of the copy, no more read and search
    /// permission than the original gives. Write permission is not restricted, because the view is
    /// read-only or private.
    fn mode_for(&self, a: &Attributes) -> u32 {
        if a.uid == self.uid {
            return a.permissions;
        }
        let class = if self.groups.contains(&a.gid) { a.permissions >> 3 } else { a.permissions };
        let allowed = (class & 0o5) << 6;
        a.permissions & !0o500 | a.permissions & 0o500 & allowed
    }
}

/// The filled layer, as descriptors for `mount_overlay`.
#[derive(Debug)]
pub struct Metadata {
    /// The root of the metadata layer.
    pub layer: OwnedFd,
    /// An empty upper directory on the same file system.
    pub upper: OwnedFd,
    /// An empty work directory on the same file system.
    pub work: OwnedFd,
    /// A directory on the same file system that is in no layer.
    pub outside: OwnedFd,
}

/// A directory to fill.
struct Directory {
    node: NodeId,
    attributes: Attributes,
    /// Relative to the root of the layer; empty for the root.
    path: Vec<u8>,
}

/// A name of a file that has several.
struct Name {
    node: NodeId,
    nlink: u32,
    path: Vec<u8>,
}

pub(crate) struct Fill<'a> {
    pub fs: &'a dyn FileSystem,
    pub layer: BorrowedFd<'a>,
    /// `None` if owners are kept.
    pub squash: Option<&'a Ids>,
    pub xattrs: bool,
    pub whole: &'a HashSet<NodeId>,
}

/// Fills `tmpfs`, an empty file system. With `squash`, the caller becomes the owner of all entries,
/// as a user namespace with one user requires. The caller's umask must be 0. The data of the files
/// in `whole` is written later ([`Metadata::write`], then [`Metadata::finish`]); overlayfs does not
/// look for it in other layers.
///
/// An error of kind `Unsupported` names the first entry that a tmpfs cannot show in this namespace;
/// the tree then needs another view.
pub fn fill(
    fs: &dyn FileSystem,
    tmpfs: &OwnedFd,
    squash: Option<&Ids>,
    whole: &HashSet<NodeId>,
    threads: usize,
) -> Result<Metadata> {
    let _span = tracing::debug_span!("fill_metadata_layer").entered();
    let [layer, upper, work, outside] = ["m", "u", "w", "x"].map(|name| -> Result<OwnedFd> {
        make_dir(tmpfs.as_fd(), name.as_bytes(), 0o755)?;
        open_dir(tmpfs.as_fd(), name.as_bytes())
    });
    let (layer, outside) = (layer?, outside?);
    let fill = Fill { fs, layer: layer.as_fd(), squash, xattrs: fs.capabilities().xattrs, whole };

    let directories = fill.make_directories()?;
    let next = AtomicUsize::new(0);
    let work_off = || -> Result<Vec<Name>> {
        let mut later = Vec::new();
        loop {
            let start = next.fetch_add(DIRECTORIES_AT_ONCE, Ordering::Relaxed);
            let Some(rest) = directories.get(start..) else { return Ok(later) };
            for directory in rest.iter().take(DIRECTORIES_AT_ONCE) {
                fill.make_children(directory, &mut later)?;
            }
        }
    };
    let results: Vec<Result<Vec<Name>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work_off)).collect();
        let panicked = || Err(Error::new(ErrorKind::Os(errno::EIO), "fill", b"the metadata layer"));
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| panicked())).collect()
    });
    let mut names = Vec::new();
    for result in results {
        names.extend(result?);
    }
    fill.make_linked(names, outside.as_fd())?;
    for directory in &directories {
        fill.finish_directory(directory)?;
    }
    fill.finish_upper(tmpfs.as_fd(), b"u")?;
    Ok(Metadata { layer, upper: upper?, work: work?, outside })
}

impl Metadata {
    /// Writes data of a file in `whole`.
    pub fn write(&self, path: &[u8], offset: u64, bytes: &[u8]) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.layer, os(path), flags, Mode::empty())
            .map_err(|e| failed(e, "open", path))?;
        let file = std::fs::File::from(file);
        file.write_all_at(bytes, offset).map_err(|e| Error::from_io(e, "write", path))
    }

    /// Restores metadata of the written files that writing has changed: their times, set-id bits
    /// and extended attributes, such as file capabilities.
    pub fn finish(&self, fs: &dyn FileSystem, whole: &HashSet<NodeId>) -> Result<()> {
        let xattrs = fs.capabilities().xattrs;
        let fill = Fill { fs, layer: self.layer.as_fd(), squash: None, xattrs, whole };
        for node in whole {
            let (a, path) = (fs.attributes(&Context::OWN, *node)?, fs.path(*node)?);
            if xattrs && !fs.xattr_names(&Context::OWN, *node)?.is_empty() {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&self.layer, os(&path), flags, Mode::empty())
                    .map_err(|e| failed(e, "open", &path))?;
                fill.set_xattrs(*node, &path, |name, value| {
                    rustix::fs::fsetxattr(&file, os(name), value, XattrFlags::empty())
                })?;
            }
            if a.permissions & 0o6000 != 0 {
                let mode = rustix::fs::statat(&self.layer, os(&path), AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(|e| failed(e, "stat", &path))?
                    .st_mode;
                let mode = Mode::from_raw_mode(mode & 0o777 | a.permissions & 0o7000);
                rustix::fs::chmodat(&self.layer, os(&path), mode, AtFlags::empty())
                    .map_err(|e| failed(e, "set mode of", &path))?;
            }
            rustix::fs::utimensat(&self.layer, os(&path), &times(a.modified), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|e| failed(e, "set times of", &path))?;
        }
        Ok(())
    }
}

fn os(path: &[u8]) -> &OsStr {
    OsStr::from_bytes(path)
}

pub(crate) fn failed(errno: Errno, operation: &'static str, path: &[u8]) -> Error {
    Error::from_io(errno.into(), operation, path)
}

/// Returns the error for an entry that the tmpfs cannot hold in this namespace.
fn unsupported(what: &'static str, path: &[u8]) -> Error {
    Error::new(ErrorKind::Unsupported, what, path)
}

fn make_dir(at: BorrowedFd<'_>, path: &[u8], mode: u32) -> Result<()> {
    rustix::fs::mkdirat(at, os(path), Mode::from_raw_mode(mode))
        .map_err(|e| failed(e, "create directory", path))
}

pub(crate) fn open_dir(at: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path = if path.is_empty() { b"." } else { path };
    rustix::fs::openat(at, os(path), flags, Mode::empty()).map_err(|e| failed(e, "open", path))
}

pub(crate) fn times(modified: Time) -> Timestamps {
    let time = Timespec { tv_sec: modified.seconds, tv_nsec: modified.nanoseconds.into() };
    // The index has no access times; see quell_vfs::Attributes.
    Timestamps { last_access: time, last_modification: time }
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

impl Fill<'_> {
    fn mode(&self, a: &Attributes) -> u32 {
        self.squash.map_or(a.permissions, |ids| ids.mode_for(a))
    }

    /// Creates all directories, parents first. They are still empty and have the current time.
    fn make_directories(&self) -> Result<Vec<Directory>> {
        let root = self.fs.root();
        let mut all = vec![Directory {
            node: root,
            attributes: self.fs.attributes(&Context::OWN, root)?,
            path: Vec::new(),
        }];
        let mut next = 0;
        while next < all.len() {
            let (node, path) = (all[next].node, all[next].path.clone());
            next += 1;
            let mut below = Vec::new();
            self.list(node, &path, &mut |name, attributes| {
                if attributes.kind == Kind::Dir {
                    below.push(Directory { node: attributes.node, attributes, path: join(&path, name) });
                }
            })?;
            if below.is_empty() {
                continue;
            }
            let parent = open_dir(self.layer, &path)?;
            // A tmpfs lists the newest entry first, so directories are created in reverse order.
            for directory in below.iter().rev() {
                if directory.path.len() > REDIRECT_BYTES_MAX {
                    return Err(unsupported("redirect to so long a path:", &directory.path));
                }
                let name = directory.path.rsplit(|b| *b == b'/').next().unwrap_or_default();
                make_dir(parent.as_fd(), name, 0o700)?;
            }
            all.append(&mut below);
        }
        Ok(all)
    }

    /// Lists a directory. A directory whose content is not known stays empty and becomes
    /// inaccessible: see `finish_directory`.
    fn list(&self, node: NodeId, path: &[u8], visit: &mut dyn FnMut(&[u8], Attributes)) -> Result<()> {
        let listed = self.fs.list(&Context::OWN, node, Cursor::START, &mut |entry| {
            let attributes = entry.attributes.expect("a read-only tree lists all attributes");
            visit(entry.name, attributes);
            true
        });
        match listed {
            Err(e) if e.kind == ErrorKind::PermissionDenied && !path.is_empty() => Ok(()),
            other => other,
        }
    }

    /// Creates all entries of a directory except directories. Files with several names are created
    /// later.
    fn make_children(&self, directory: &Directory, later: &mut Vec<Name>) -> Result<()> {
        let mut children = Vec::new();
        self.list(directory.node, &directory.path, &mut |name, attributes| {
            if attributes.kind != Kind::Dir {
                children.push((name.to_vec(), attributes));
            }
        })?;
        if children.is_empty() {
            return Ok(());
        }
        let at = open_dir(self.layer, &directory.path)?;
        for (name, attributes) in children.iter().rev() {
            let path = join(&directory.path, name);
            if attributes.nlink > 1 {
                later.push(Name { node: attributes.node, nlink: attributes.nlink, path });
            } else {
                self.make(at.as_fd(), name, attributes, &path)?;
            }
        }
        Ok(())
    }

    fn make(&self, at: BorrowedFd<'_>, name: &[u8], a: &Attributes, path: &[u8]) -> Result<()> {
        match a.kind {
            Kind::File => self.make_file(at, name, a, path),
            Kind::Symlink => {
                let target = self.fs.read_link(&Context::OWN, a.node)?;
                rustix::fs::symlinkat(os(&target), at, os(name))
                    .map_err(|e| failed(e, "create link", path))?;
                self.own(at, name, a, path)?;
                self.set_times(at, name, a, path)
            }
            _ => self.make_special(at, name, a, path),
        }
    }

    pub(crate) fn make_file(
        &self,
        at: BorrowedFd<'_>,
        name: &[u8],
        a: &Attributes,
        path: &[u8],
    ) -> Result<()> {
        let mode = Mode::from_raw_mode(self.mode(a));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file =
            rustix::fs::openat(at, os(name), flags, mode).map_err(|e| failed(e, "create file", path))?;
        let redirect = [b"/", path].concat();
        if redirect.len() > REDIRECT_BYTES_MAX {
            return Err(unsupported("redirect to so long a path:", path));
        }
        let set = |name: &[u8], value: &[u8]| {
            rustix::fs::fsetxattr(&file, os(name), value, XattrFlags::empty())
                .map_err(|e| failed(e, "set attribute of", path))
        };
        // An empty file has no data in another layer.
        if a.size_bytes > 0 && !self.whole.contains(&a.node) {
            set(METACOPY, b"")?;
            set(REDIRECT, &redirect)?;
        }
        if a.size_bytes > 0 {
            rustix::fs::ftruncate(&file, a.size_bytes).map_err(|e| match e {
                // The size exceeds the file size limit of the process (RLIMIT_FSIZE), which applies
                // even to a file without data.
                Errno::FBIG => unsupported("show the size of", path),
                e => failed(e, "set size of", path),
            })?;
        }
        if self.squash.is_none() && (a.uid, a.gid) != (0, 0) {
            rustix::fs::fchown(&file, Some(Uid::from_raw(a.uid)), Some(Gid::from_raw(a.gid)))
                .map_err(|e| failed(e, "give an owner to", path))?;
        }
        if a.permissions & 0o6000 != 0 {
            // The calls above have cleared the set-id bits.
            rustix::fs::fchmod(&file, mode).map_err(|e| failed(e, "set mode of", path))?;
        }
        if self.xattrs {
            self.set_xattrs(a.node, path, |name, value| {
                rustix::fs::fsetxattr(&file, os(name), value, XattrFlags::empty())
            })?;
        }
        rustix::fs::futimens(&file, &times(a.modified)).map_err(|e| failed(e, "set times of", path))
    }

    fn make_special(&self, at: BorrowedFd<'_>, name: &[u8], a: &Attributes, path: &[u8]) -> Result<()> {
        let kind = FileType::from_raw_mode(a.kind.mode_bits());
        if a.kind == Kind::CharDevice && a.rdev == 0 {
            // In overlayfs such a device is a whiteout, which hides a name.
            return Err(unsupported("show the device", path));
        }
        let mode = Mode::from_raw_mode(self.mode(a));
        rustix::fs::mknodat(at, os(name), kind, mode, a.rdev).map_err(|e| match e {
            Errno::PERM => unsupported("create the device", path),
            e => failed(e, "create special file", path),
        })?;
        self.own(at, name, a, path)?;
        rustix::fs::chmodat(at, os(name), mode, AtFlags::empty())
            .map_err(|e| failed(e, "set mode of", path))?;
        self.set_times(at, name, a, path)
    }

    fn own(&self, at: BorrowedFd<'_>, name: &[u8], a: &Attributes, path: &[u8]) -> Result<()> {
        if self.squash.is_some() || (a.uid, a.gid) == (0, 0) {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(a.uid), Gid::from_raw(a.gid));
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        rustix::fs::chownat(at, os(name), Some(uid), Some(gid), flags)
            .map_err(|e| failed(e, "give an owner to", path))
    }

    fn set_times(&self, at: BorrowedFd<'_>, name: &[u8], a: &Attributes, path: &[u8]) -> Result<()> {
        rustix::fs::utimensat(at, os(name), &times(a.modified), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| failed(e, "set times of", path))
    }

    fn set_xattrs(
        &self,
        node: NodeId,
        path: &[u8],
        set: impl Fn(&[u8], &[u8]) -> rustix::io::Result<()>,
    ) -> Result<()> {
        for name in self.fs.xattr_names(&Context::OWN, node)? {
            let Some(value) = self.fs.xattr(&Context::OWN, node, &name)? else { continue };
            set(&escaped(&name), &value).map_err(|e| match e {
                // An access control list or a capability refers to an id that this namespace does
                // not map, or the kernel has no such attributes on a tmpfs.
                Errno::INVAL | Errno::PERM | Errno::OPNOTSUPP => unsupported("keep the attributes of", path),
                e => failed(e, "set attribute of", path),
            })?;
        }
        Ok(())
    }

    /// Creates files with several names: the first is created, the others are links to it. Names
    /// outside the tree are represented by links beside the layer, so that the link count is
    /// correct.
    fn make_linked(&self, mut names: Vec<Name>, outside: BorrowedFd<'_>) -> Result<()> {
        names.sort_by(|a, b| (a.node, &a.path).cmp(&(b.node, &b.path)));
        let mut counts: HashMap<NodeId, u32> = HashMap::new();
        for name in &names {
            *counts.entry(name.node).or_default() += 1;
        }
        let mut first: Option<&Name> = None;
        for name in &names {
            let (directory, last) = split(&name.path);
            match first.filter(|first| first.node == name.node) {
                Some(first) => {
                    rustix::fs::linkat(
                        self.layer,
                        os(&first.path),
                        self.layer,
                        os(&name.path),
                        AtFlags::empty(),
                    )
                    .map_err(|e| failed(e, "link", &name.path))?;
                }
                None => {
                    let at = open_dir(self.layer, directory)?;
                    let attributes = self.fs.attributes(&Context::OWN, name.node)?;
                    self.make(at.as_fd(), last, &attributes, &name.path)?;
                    let missing = name.nlink.saturating_sub(counts[&name.node]).min(OUTSIDE_LINKS_MAX);
                    for i in 0..missing {
                        let link = format!("{}.{i}", name.node.0);
                        rustix::fs::linkat(self.layer, os(&name.path), outside, &*link, AtFlags::empty())
                            .map_err(|e| failed(e, "link", &name.path))?;
                    }
                    first = Some(name);
                }
            }
        }
        Ok(())
    }

    /// Sets the metadata that filling a directory changes: owner, mode, attributes, times.
    fn finish_directory(&self, directory: &Directory) -> Result<()> {
        let (a, path) = (&directory.attributes, directory.path.as_slice());
        let name: &[u8] = if path.is_empty() { b"." } else { path };
        let known = self.fs.list(&Context::OWN, directory.node, Cursor::START, &mut |_| false).is_ok();
        // A directory with unknown content is inaccessible, even to its owner, but never shown
        // empty.
        let mode = if known { self.mode(a) } else { self.mode(a) & !0o555 };
        self.finish(self.layer, name, a, mode, path)
    }

    /// Sets the mode after the attributes, because an access control list would restore permissions
    /// that the mode removes, and the times last.
    fn finish(&self, at: BorrowedFd<'_>, name: &[u8], a: &Attributes, mode: u32, path: &[u8]) -> Result<()> {
        if self.xattrs && !self.fs.xattr_names(&Context::OWN, a.node)?.is_empty() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(at, os(name), flags, Mode::empty())
                .map_err(|e| failed(e, "open", path))?;
            self.set_xattrs(a.node, path, |name, value| {
                rustix::fs::fsetxattr(&opened, os(name), value, XattrFlags::empty())
            })?;
        }
        self.own(at, name, a, path)?;
        rustix::fs::chmodat(at, os(name), Mode::from_raw_mode(mode), AtFlags::empty())
            .map_err(|e| failed(e, "set mode of", path))?;
        self.set_times(at, name, a, path)
    }

    /// Sets the attributes of the upper directory to the attributes of the tree's root. The root of
    /// a view with an upper directory has the attributes of the upper directory, which must not
    /// give access to users to whom the original denies it.
    fn finish_upper(&self, at: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        let root = self.fs.attributes(&Context::OWN, self.fs.root())?;
        self.finish(at, name, &root, self.mode(&root), b"the upper directory")
    }
}

/// Prepares the new directory `name` as the upper directory of a view of `fs`.
pub fn finish_upper(
    fs: &dyn FileSystem,
    at: BorrowedFd<'_>,
    name: &[u8],
    squash: Option<&Ids>,
) -> Result<()> {
    let whole = &HashSet::new();
    Fill { fs, layer: at, squash, xattrs: fs.capabilities().xattrs, whole }.finish_upper(at, name)
}

/// Splits a path into its directory and its last component.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(uid: u32, gid: u32, permissions: u32) -> Attributes {
        Attributes {
            node: NodeId(1),
            kind: Kind::File,
            permissions,
            uid,
            gid,
            nlink: 1,
            rdev: 0,
            size_bytes: 0,
            blocks: 0,
            modified: Time::default(),
            changed: Time::default(),
        }
    }

    #[test]
    fn becoming_the_owner_gives_no_more_than_before() {
        let me = Ids { uid: 7, groups: vec![70] };
        for (uid, gid, before, after) in [
            (7, 1, 0o4711, 0o4711), // the caller's own: unchanged
            (1, 1, 0o755, 0o755),   // readable by all: unchanged
            (1, 1, 0o700, 0o200),   // another user's private file
            (1, 1, 0o711, 0o311),   // executable, not readable
            (1, 70, 0o750, 0o750),  // through the group
            (1, 70, 0o705, 0o205),  // denied to the group
            (1, 1, 0o640, 0o240),
        ] {
            let mode = me.mode_for(&attributes(uid, gid, before));
            assert_eq!(mode, after, "{uid} {gid} {before:o}: {mode:o}");
        }
    }
}
