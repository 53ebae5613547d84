//! Copies of the directories above covered trees, so that looking up the path of a tree needs no
//! request to its file system.
//!
//! A path is looked up one directory at a time, and clients of shared file systems repeat each of
//! these requests when their cache expires. A copy is a directory of a read-only tmpfs that covers
//! the mount point of the file system. It has the names that the original had when it was listed.
//! Each entry that is neither copied nor covered by a tree is the original entry, attached to the
//! copy. rename(2) and link(2) do not work between two of these mounts.
//!
//! The rules are in docs/semantics.md.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use quell_vfs::{Error, ErrorKind, FileIdentity, Result, Time};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, XattrFlags, openat, openat2,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::mount::{FsPickFlags, OpenTreeFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick, open_tree};

use crate::metadata::{failed, times};
use crate::mount::{attach, identity_of, mount_tmpfs, move_over};

/// The extended attribute with the access control list of a file.
const ACL: &str = "system.posix_acl_access";
/// The largest size of an extended attribute (xattr(7)).
const XATTR_BYTES_MAX: usize = 65536;
/// The directories above trees, as they were when they were listed.
#[derive(Debug)]
pub struct CopiedDirectories {
    mount_point: PathBuf,
    entries_max: usize,
    /// By path, with the mount point.
    listings: BTreeMap<PathBuf, Listing>,
}

/// One listed directory.
#[derive(Debug)]
struct Listing {
    attributes: Stat,
    acl: Option<Vec<u8>>,
    entries: Vec<(OsString, FileType)>,
}

/// The copies, before they are attached.
#[derive(Debug)]
pub struct UnattachedCopies {
    copies: OwnedFd,
    mount_point: PathBuf,
    mount_point_identity: FileIdentity,
    /// Mounts of the original entries, by path below the mount point.
    originals: Vec<(PathBuf, OwnedFd)>,
}

impl CopiedDirectories {
    /// Begins with no directory. `mount_point`: where the file system of the trees is mounted.
    /// Directories are copied while they have at most `entries_max` entries together.
    pub fn below(mount_point: &Path, entries_max: usize) -> CopiedDirectories {
        CopiedDirectories { mount_point: mount_point.into(), entries_max, listings: BTreeMap::new() }
    }

    /// Returns the mount point.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Returns the paths of the directories that are copied.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.listings.keys().map(PathBuf::as_path)
    }

    /// Returns whether a directory is copied.
    pub fn contains(&self, path: &Path) -> bool {
        self.listings.contains_key(path)
    }

    /// Lists the directories from the mount point to the parent of `tree`, as far as they have not
    /// too many entries. An error if not even the mount point can be copied, or if a directory
    /// cannot be listed.
    pub fn list_above(&mut self, tree: &Path) -> Result<()> {
        let Some(parent) = tree.parent() else { return Ok(()) };
        let mut above: Vec<&Path> =
            parent.ancestors().take_while(|path| path.starts_with(&self.mount_point)).collect();
        above.reverse();
        let mut opened: Option<OwnedFd> = None;
        for path in above {
            let name = path.as_os_str().as_bytes();
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = match (&opened, path.file_name()) {
                (Some(parent), Some(last)) => openat(parent, last, flags, Mode::empty()),
                _ => openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS),
            };
            let directory = directory.map_err(|e| failed(e, "open", name))?;
            if !self.listings.contains_key(path) {
                let listed: usize = self.listings.values().map(|listing| listing.entries.len()).sum();
                match Listing::read(&directory, self.entries_max.saturating_sub(listed)) {
                    Ok(Some(listing)) => _ = self.listings.insert(path.into(), listing),
                    Ok(None) if opened.is_some() => return Ok(()),
                    Ok(None) => {
                        let reason = format!("more than {} entries", self.entries_max);
                        return Err(Error::new(
                            ErrorKind::Unsupported,
                            "copy the directory, which has",
                            reason,
                        ));
                    }
                    Err(e) => return Err(failed(e, "list", name)),
                }
            }
            opened = Some(directory);
        }
        Ok(())
    }

    /// Fills a file system with the copies, and opens mounts of the original entries, in the mount
    /// namespace of the view. `trees` are the paths that the view covers. `keeps_owners` is false
    /// in a user namespace, in which the caller becomes the owner of the copies.
    pub fn prepare(&self, trees: &[&Path], keeps_owners: bool) -> Result<UnattachedCopies> {
        let root = self.listings.get(&self.mount_point).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "copy", self.mount_point.as_os_str().as_bytes())
        })?;
        let copies = mount_tmpfs()?;
        let mut originals = Vec::new();
        for (path, listing) in &self.listings {
            let below = self.below_mount_point(path);
            let copy = open_below(&copies, &below, OFlags::DIRECTORY)?;
            let above_trees: BTreeSet<&OsStr> = (self.paths().chain(trees.iter().copied()))
                .filter(|other| other.parent() == Some(path) && *other != self.mount_point)
                .filter_map(Path::file_name)
                .collect();
            for name in &above_trees {
                make_place(&copy, name, FileType::Directory)?;
            }
            let others = listing.entries.iter().filter(|(name, _)| !above_trees.contains(&**name));
            let mut original = None;
            for (name, kind) in others {
                let original = match &mut original {
                    Some(original) => original,
                    none => none.insert(listing.reopen(path)?),
                };
                match copy_entry(original, &copy, name, *kind) {
                    Ok(None) => {}
                    Ok(Some(mount)) => originals.push((below.join(name), mount)),
                    // It was removed after the directory had been listed.
                    Err(Errno::NOENT) => {
                        let _ = rustix::fs::unlinkat(&copy, name, AtFlags::empty());
                        let _ = rustix::fs::unlinkat(&copy, name, AtFlags::REMOVEDIR);
                    }
                    Err(e) => return Err(failed(e, "copy", path.join(name).as_os_str().as_bytes())),
                }
            }
        }
        for (path, listing) in &self.listings {
            let copy = open_below(&copies, &self.below_mount_point(path), OFlags::DIRECTORY)?;
            let set = listing.set_attributes(&copy, keeps_owners);
            set.map_err(|e| failed(e, "set attributes of the copy of", path.as_os_str().as_bytes()))?;
        }
        make_read_only(&copies).map_err(|e| failed(e, "make read-only", b"the copied directories"))?;
        let mount_point_identity = root.identity();
        Ok(UnattachedCopies {
            copies,
            mount_point: self.mount_point.clone(),
            mount_point_identity,
            originals,
        })
    }

    fn below_mount_point(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.mount_point).unwrap_or(Path::new("")).into()
    }
}

impl UnattachedCopies {
    /// Covers the mount point with the copies, and attaches the original entries to them. Returns
    /// the mount of the copies, for [`attach_below`](crate::attach_below).
    pub fn attach(self) -> Result<OwnedFd> {
        let _span = tracing::debug_span!("attach_copied_directories").entered();
        attach(&self.copies, &self.mount_point, Some(self.mount_point_identity))?;
        for (below, mount) in &self.originals {
            let place = open_below(&self.copies, below, OFlags::empty())?;
            move_over(mount, &place, &self.mount_point.join(below))?;
        }
        Ok(self.copies)
    }
}

impl Listing {
    /// Returns `None` if there are more than `entries_max` entries.
    fn read(directory: &OwnedFd, entries_max: usize) -> rustix::io::Result<Option<Listing>> {
        // Before the names are read, which changes the access time: the client of a shared file
        // system must request the attributes again after it.
        let attributes = rustix::fs::fstat(directory)?;
        let mut entries = Vec::new();
        // A descriptor of the same open directory: opening it again would be a request.
        for entry in Dir::new(fcntl_dupfd_cloexec(directory, 0)?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if entries.len() == entries_max {
                return Ok(None);
            }
            entries.push((OsString::from_vec(name.to_vec()), entry.file_type()));
        }
        // Only root's view has programs of several users.
        let acl = rustix::process::geteuid().is_root().then(|| read_acl(directory)).transpose()?.flatten();
        Ok(Some(Listing { attributes, acl, entries }))
    }

    fn identity(&self) -> FileIdentity {
        FileIdentity { device: self.attributes.st_dev, inode: self.attributes.st_ino }
    }

    /// Opens the original in the caller's mount namespace.
    fn reopen(&self, path: &Path) -> Result<OwnedFd> {
        let name = path.as_os_str().as_bytes();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
            .map_err(|e| failed(e, "open", name))?;
        if identity_of(&opened).map_err(|e| failed(e, "stat", name))? != self.identity() {
            return Err(Error::new(
                ErrorKind::Stale,
                "copy a directory that was replaced at this moment:",
                name,
            ));
        }
        Ok(opened)
    }

    fn set_attributes(&self, copy: &OwnedFd, keeps_owners: bool) -> rustix::io::Result<()> {
        let copy = openat(copy, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut mode = Mode::from_raw_mode(self.attributes.st_mode & 0o7777);
        if keeps_owners {
            let owner = Uid::from_raw(self.attributes.st_uid);
            rustix::fs::fchown(&copy, Some(owner), Some(Gid::from_raw(self.attributes.st_gid)))?;
        } else {
            // The caller has listed the original.
            mode |= Mode::RUSR | Mode::XUSR;
        }
        rustix::fs::fchmod(&copy, mode)?;
        if let Some(acl) = &self.acl {
            rustix::fs::fsetxattr(&copy, ACL, acl, XattrFlags::empty())?;
        }
        let nanoseconds = u32::try_from(self.attributes.st_mtime_nsec).unwrap_or(0);
        rustix::fs::futimens(&copy, &times(Time { seconds: self.attributes.st_mtime, nanoseconds }))
    }
}

/// Copies an entry that the view does not cover. A symbolic link is made again; for all others, a
/// mount of the original is returned, and the copy has a place for it.
fn copy_entry(
    original: &OwnedFd,
    copy: &OwnedFd,
    name: &OsStr,
    kind: FileType,
) -> rustix::io::Result<Option<OwnedFd>> {
    let kind = match kind {
        FileType::Unknown => {
            let found = rustix::fs::statat(original, name, AtFlags::SYMLINK_NOFOLLOW)?;
            FileType::from_raw_mode(found.st_mode)
        }
        known => known,
    };
    if kind == FileType::Symlink {
        let target = rustix::fs::readlinkat(original, name, Vec::new())?;
        rustix::fs::symlinkat(target, copy, name)?;
        return Ok(None);
    }
    make_place_raw(copy, name, kind)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
        | OpenTreeFlags::AT_NO_AUTOMOUNT;
    open_tree(original, name, flags).map(Some)
}

fn make_place(copy: &OwnedFd, name: &OsStr, kind: FileType) -> Result<()> {
    make_place_raw(copy, name, kind).map_err(|e| failed(e, "create", name.as_bytes()))
}

fn make_place_raw(copy: &OwnedFd, name: &OsStr, kind: FileType) -> rustix::io::Result<()> {
    match kind {
        FileType::Directory => rustix::fs::mkdirat(copy, name, Mode::RWXU),
        _ => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            openat(copy, name, flags, Mode::RUSR).map(drop)
        }
    }
}

fn open_below(copies: &OwnedFd, below: &Path, kind: OFlags) -> Result<OwnedFd> {
    let path = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let flags = kind | OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    openat2(copies, path, flags, Mode::empty(), resolve)
        .map_err(|e| failed(e, "open the copy of", below.as_os_str().as_bytes()))
}

fn read_acl(directory: &OwnedFd) -> rustix::io::Result<Option<Vec<u8>>> {
    let mut list = vec![0; XATTR_BYTES_MAX];
    match rustix::fs::fgetxattr(directory, ACL, &mut list[..]) {
        Ok(length) => {
            list.truncate(length);
            Ok((length > 0).then_some(list))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(e) => Err(e),
    }
}

fn make_read_only(copies: &OwnedFd) -> rustix::io::Result<()> {
    let fs = fspick(copies, "", FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH)?;
    fsconfig_set_flag(fs.as_fd(), "ro")?;
    fsconfig_reconfigure(fs.as_fd())
}
