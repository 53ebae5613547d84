//! Copies of the directories above covered trees, so that looking up the path of a tree needs no
//! request to its file system.
//!
//! A path is looked up one directory at a time, and clients of shared file systems repeat each of
//! these requests when their cache expires. A copy is a directory of a read-only tmpfs that covers
//! the mount point of the file system. It has the names that the original had when it was listed.
//! Each entry that is neither copied nor covered by a tree is the original entry, attached to the
//! copy, except that a symbolic link is made again. rename(2) and link(2) do not work between two
//! of these mounts.
//!
//! The rules are in docs/semantics.md.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use quell_vfs::{Error, ErrorKind, FileIdentity, Result, Time};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, StatxFlags, Timestamps, Uid,
    XattrFlags, openat, openat2, statx,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::mount::{FsPickFlags, OpenTreeFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick, open_tree};

use crate::metadata::{failed, times};
use crate::mount::{NOBODY_ID, attach, identity_of, mount_tmpfs, move_over};

/// The extended attribute with the access control list of a file.
const ACL: &str = "system.posix_acl_access";
/// The largest size of an extended attribute (xattr(7)).
const XATTR_BYTES_MAX: usize = 65536;
/// The sticky bit, and write permission for every user.
const STICKY_AND_WRITABLE: u32 = 0o1002;

/// The directories above trees, as they were when they were listed.
#[derive(Debug)]
pub struct CopiedDirectories {
    mount_point: PathBuf,
    entries_max: usize,
    /// By path, with the mount point.
    listings: BTreeMap<PathBuf, Listing>,
    /// The listed directories, until the originals are opened: the client of MooseFS answers
    /// lookups in a directory from its listing while the directory is open.
    open: Vec<OwnedFd>,
    /// Mounts of open files, which need no lookup.
    open_files: BTreeMap<FileIdentity, OwnedFd>,
}

/// One listed directory.
#[derive(Debug)]
struct Listing {
    attributes: Stat,
    acl: Option<Vec<u8>>,
    /// The entries, with their inode numbers.
    entries: BTreeMap<OsString, u64>,
}

/// The first directory above a tree that is not copied. The directories below it are not copied
/// either.
#[derive(Debug)]
pub struct NotCopied {
    /// The path of the directory.
    pub path: PathBuf,
    /// `None` if the copies would have too many entries.
    pub error: Option<Error>,
}

/// An entry of an original directory, before it is attached.
enum Entry {
    /// A symbolic link, which is in the copy.
    Link,
    /// A symbolic link that cannot be copied with its owner.
    ForeignLink,
    /// A mount of the original. The copy has an empty file or directory to which it is attached.
    Original(OwnedFd),
}

/// The copies, before they are attached.
#[derive(Debug)]
pub struct UnattachedCopies {
    copies: OwnedFd,
    mount_point: PathBuf,
    mount_point_identity: FileIdentity,
    /// Mounts of the original entries, by path below the mount point.
    originals: Vec<(PathBuf, OwnedFd)>,
    foreign_links: Vec<PathBuf>,
}

impl CopiedDirectories {
    /// Begins with no directory. `mount_point`: where the file system of the trees is mounted.
    /// Directories are copied while they have at most `entries_max` entries together.
    pub fn below(mount_point: &Path, entries_max: usize) -> CopiedDirectories {
        CopiedDirectories {
            mount_point: mount_point.into(),
            entries_max,
            listings: BTreeMap::new(),
            open: Vec::new(),
            open_files: BTreeMap::new(),
        }
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

    /// Lists the directories from the mount point to the parent of `tree`, until one cannot be
    /// listed or the copies would have too many entries.
    pub fn list_above(&mut self, tree: &Path) -> std::result::Result<(), NotCopied> {
        let Some(parent) = tree.parent() else { return Ok(()) };
        let mut above: Vec<&Path> =
            parent.ancestors().take_while(|path| path.starts_with(&self.mount_point)).collect();
        above.reverse();
        let first = self.open.len();
        for path in above {
            let name = path.as_os_str().as_bytes();
            let not_copied = |error| NotCopied { path: path.into(), error };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let parent = self.open[first..].last();
            let directory = match (parent, path.file_name()) {
                (Some(parent), Some(last)) => openat(parent, last, flags, Mode::empty()),
                _ => openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS),
            };
            let directory = directory.map_err(|e| not_copied(Some(failed(e, "open", name))))?;
            if !self.listings.contains_key(path) {
                let listed: usize = self.listings.values().map(|listing| listing.entries.len()).sum();
                let listing = Listing::read(&directory, self.entries_max.saturating_sub(listed));
                match listing.map_err(|e| not_copied(Some(failed(e, "list", name))))? {
                    Some(listing) => _ = self.listings.insert(path.into(), listing),
                    None => return Err(not_copied(None)),
                }
            }
            self.open.push(directory);
        }
        Ok(())
    }

    /// Makes a mount of an open regular file in the namespace of the caller, so that it needs no
    /// lookup if it is an entry of a listed directory. Without CAP_SYS_ADMIN, and if the file is on
    /// another mount, it is looked up like all others.
    pub fn use_open_file(&mut self, file: BorrowedFd<'_>) {
        let Some(directory) = self.open.first() else { return };
        // Another mount of the file system may have other options.
        let (Some((_, mount_id)), Some((kind, mount_id_of_file))) =
            (kind_and_mount(directory.as_fd()), kind_and_mount(file))
        else {
            return;
        };
        if kind != FileType::RegularFile || mount_id != mount_id_of_file {
            return;
        }
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let Ok(mount) = open_tree(file, "", flags) else { return };
        if let Ok(identity) = identity_of(&mount) {
            self.open_files.insert(identity, mount);
        }
    }

    /// Fills a file system with the copies, and opens mounts of the original entries, in the mount
    /// namespace of the view. `trees` are the paths that the view covers. `keeps_owners` is false
    /// in a user namespace, in which the caller becomes the owner of the copies.
    pub fn prepare(&mut self, trees: &[&Path], keeps_owners: bool) -> Result<UnattachedCopies> {
        let root = self.listings.get(&self.mount_point).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "copy", self.mount_point.as_os_str().as_bytes())
        })?;
        let copies = mount_tmpfs()?;
        let (open, mut open_files) = (std::mem::take(&mut self.open), std::mem::take(&mut self.open_files));
        let (mut originals, mut foreign_links) = (Vec::new(), Vec::new());
        for (path, listing) in &self.listings {
            let below = self.below_mount_point(path);
            let copy = open_below(&copies, &below, OFlags::DIRECTORY)?;
            let above_trees: BTreeSet<&OsStr> = (self.paths().chain(trees.iter().copied()))
                .filter(|other| other.parent() == Some(path) && *other != self.mount_point)
                .filter_map(Path::file_name)
                .collect();
            for name in &above_trees {
                make_place(&copy, name, FileType::Directory)
                    .map_err(|e| failed(e, "create", name.as_bytes()))?;
            }
            let others = listing.entries.iter().filter(|(name, _)| !above_trees.contains(name.as_os_str()));
            let mut original = None;
            for (name, &inode) in others {
                let identity = FileIdentity { device: listing.attributes.st_dev, inode };
                if let Some(mount) = open_files.remove(&identity) {
                    make_place(&copy, name, FileType::RegularFile)
                        .map_err(|e| failed(e, "create", name.as_bytes()))?;
                    originals.push((below.join(name), mount));
                    continue;
                }
                let original = match &mut original {
                    Some(original) => original,
                    none => none.insert(listing.reopen(path)?),
                };
                match listing.copy_entry(original, &copy, name, keeps_owners) {
                    Ok(Entry::Link) => {}
                    Ok(Entry::ForeignLink) => foreign_links.push(path.join(name)),
                    Ok(Entry::Original(mount)) => originals.push((below.join(name), mount)),
                    // The entry was removed after the directory had been listed.
                    Err(Errno::NOENT | Errno::STALE) => {}
                    Err(e) => return Err(failed(e, "copy", path.join(name).as_os_str().as_bytes())),
                }
            }
        }
        drop(open);
        for (path, listing) in &self.listings {
            let copy = open_below(&copies, &self.below_mount_point(path), OFlags::DIRECTORY)?;
            let set = listing.set_attributes(&copy, keeps_owners);
            set.map_err(|e| failed(e, "set attributes of the copy of", path.as_os_str().as_bytes()))?;
        }
        set_read_only(&copies, true).map_err(|e| failed(e, "make read-only", b"the copied directories"))?;
        let mount_point_identity = root.identity();
        Ok(UnattachedCopies {
            copies,
            mount_point: self.mount_point.clone(),
            mount_point_identity,
            originals,
            foreign_links,
        })
    }

    fn below_mount_point(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.mount_point).unwrap_or(Path::new("")).into()
    }
}

impl UnattachedCopies {
    /// Returns the paths of the symbolic links that are left out: links of other users in
    /// directories with the sticky bit that every user may write to. There, the kernel does not let
    /// a program follow the link of another user (`fs.protected_symlinks`). In a user namespace the
    /// copy would belong to the caller.
    pub fn foreign_links(&self) -> &[PathBuf] {
        &self.foreign_links
    }

    /// Covers the mount point with the copies, and attaches the original entries to them. Returns
    /// the mount of the copies, for [`attach_below`](crate::attach_below).
    pub fn attach(self) -> Result<OwnedFd> {
        let _span = tracing::debug_span!("attach_copied_directories").entered();
        attach(&self.copies, &self.mount_point, Some(self.mount_point_identity))?;
        let mut removed = Vec::new();
        for (below, mount) in &self.originals {
            let place = open_below(&self.copies, below, OFlags::PATH)?;
            match move_over(mount, &place, &self.mount_point.join(below)) {
                // The original was removed after it had been opened.
                Err(e) if e.kind == ErrorKind::NotFound => removed.push(&**below),
                attached => attached?,
            }
        }
        if !removed.is_empty() {
            self.remove_places(&removed)
                .map_err(|e| failed(e, "remove from the copy", b"of the directories above the tree"))?;
        }
        Ok(self.copies)
    }

    /// Removes the empty files and directories of the copy whose originals no longer exist.
    fn remove_places(&self, places: &[&Path]) -> rustix::io::Result<()> {
        set_read_only(&self.copies, false)?;
        for place in places {
            let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else { continue };
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let parent = openat(&self.copies, parent, flags, Mode::empty())?;
            let before = rustix::fs::fstat(&parent)?;
            match rustix::fs::unlinkat(&parent, name, AtFlags::empty()) {
                Err(Errno::ISDIR) => rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR)?,
                removed => removed?,
            }
            rustix::fs::futimens(&parent, &modification_time(&before))?;
        }
        set_read_only(&self.copies, true)
    }
}

impl Listing {
    /// Returns `None` if there are more than `entries_max` entries.
    fn read(directory: &OwnedFd, entries_max: usize) -> rustix::io::Result<Option<Listing>> {
        // Before the names are read, which changes the access time: the client of a shared file
        // system must request the attributes again after it.
        let attributes = rustix::fs::fstat(directory)?;
        // A directory that is changed meanwhile can list a name twice.
        let mut entries = BTreeMap::new();
        // A descriptor of the same open directory: opening it again would be a request.
        for entry in Dir::new(fcntl_dupfd_cloexec(directory, 0)?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            entries.insert(OsString::from_vec(name.to_vec()), entry.ino());
            if entries.len() > entries_max {
                return Ok(None);
            }
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
        rustix::fs::futimens(&copy, &modification_time(&self.attributes))
    }

    /// Copies an entry that the view does not cover, as it is now: another entry may have got its
    /// name since the directory was listed.
    fn copy_entry(
        &self,
        original: &OwnedFd,
        copy: &OwnedFd,
        name: &OsStr,
        keeps_owners: bool,
    ) -> rustix::io::Result<Entry> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(original, name, flags, Mode::empty())?;
        // Without a request: the lookup has just returned the attributes.
        let local = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(&opened, "", local, StatxFlags::TYPE | StatxFlags::UID | StatxFlags::GID)?;
        let kind = FileType::from_raw_mode(found.stx_mode.into());
        if kind != FileType::Symlink {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::OPEN_TREE_CLOEXEC
                | OpenTreeFlags::AT_RECURSIVE
                | OpenTreeFlags::AT_EMPTY_PATH;
            let mount = open_tree(&opened, "", flags)?;
            make_place(copy, name, kind)?;
            return Ok(Entry::Original(mount));
        }
        if !keeps_owners && self.protects_links() && !is_own(found.stx_uid) {
            return Ok(Entry::ForeignLink);
        }
        let target = rustix::fs::readlinkat(&opened, "", Vec::new())?;
        rustix::fs::symlinkat(target, copy, name)?;
        if keeps_owners {
            let (owner, group) = (Uid::from_raw(found.stx_uid), Gid::from_raw(found.stx_gid));
            rustix::fs::chownat(copy, name, Some(owner), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(Entry::Link)
    }

    /// Returns whether `fs.protected_symlinks` applies to links in this directory.
    fn protects_links(&self) -> bool {
        self.attributes.st_mode & STICKY_AND_WRITABLE == STICKY_AND_WRITABLE
    }
}

/// Returns the type of an open file, and the identifier of its mount if the kernel has one (Linux
/// 5.8), without a request to its file system.
fn kind_and_mount(opened: BorrowedFd<'_>) -> Option<(FileType, u64)> {
    let local = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(opened, "", local, StatxFlags::TYPE | StatxFlags::MNT_ID).ok()?;
    let has_id = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID);
    has_id.then_some((FileType::from_raw_mode(found.stx_mode.into()), found.stx_mnt_id))
}

/// Creates an empty directory or file that a mount of this type can cover.
fn make_place(copy: &OwnedFd, name: &OsStr, kind: FileType) -> rustix::io::Result<()> {
    match kind {
        FileType::Directory => rustix::fs::mkdirat(copy, name, Mode::RWXU),
        _ => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            openat(copy, name, flags, Mode::RUSR).map(drop)
        }
    }
}

/// Returns whether a user id that a user namespace shows belongs to the caller. The id of `nobody`
/// stands for all users that the namespace does not map.
fn is_own(uid: u32) -> bool {
    uid != NOBODY_ID && uid == rustix::process::geteuid().as_raw()
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

fn modification_time(attributes: &Stat) -> Timestamps {
    let nanoseconds = u32::try_from(attributes.st_mtime_nsec).unwrap_or(0);
    times(Time { seconds: attributes.st_mtime, nanoseconds })
}

fn set_read_only(copies: &OwnedFd, read_only: bool) -> rustix::io::Result<()> {
    let fs = fspick(copies, "", FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH)?;
    fsconfig_set_flag(fs.as_fd(), if read_only { "ro" } else { "rw" })?;
    fsconfig_reconfigure(fs.as_fd())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};

    use super::*;
    use crate::{Isolation, isolate};

    const OTHER_USER: u32 = 4321;

    /// Mounts a file system with the directories `apps/tree`, for this thread only. `None` without
    /// the privileges of root.
    fn mounted() -> Option<(tempfile::TempDir, PathBuf)> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root mounts outside of a user namespace");
            return None;
        }
        isolate(Isolation::Mount).unwrap();
        let temp = tempfile::tempdir().unwrap();
        let point = temp.path().canonicalize().unwrap();
        attach(&mount_tmpfs().unwrap(), &point, None).unwrap();
        fs::create_dir_all(point.join("apps/tree")).unwrap();
        Some((temp, point))
    }

    fn unmount(point: &Path) {
        rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH).unwrap();
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn an_entry_is_copied_as_it_is_when_it_was_replaced_or_removed_after_the_listing() {
        let Some((_temp, point)) = mounted() else { return };
        for name in ["file", "link", "gone"] {
            fs::write(point.join(name), "old").unwrap();
        }
        for name in ["directory", "gone-directory"] {
            fs::create_dir(point.join(name)).unwrap();
        }
        let mut copies = CopiedDirectories::below(&point, 256);
        copies.list_above(&point.join("apps")).unwrap();
        for name in ["file", "link", "gone"] {
            fs::remove_file(point.join(name)).unwrap();
        }
        for name in ["directory", "gone-directory"] {
            fs::remove_dir(point.join(name)).unwrap();
        }
        fs::create_dir_all(point.join("file/below")).unwrap();
        fs::write(point.join("directory"), "new").unwrap();
        symlink("directory", point.join("link")).unwrap();
        fs::write(point.join("apps/gone"), "").unwrap();
        fs::create_dir(point.join("apps/gone-directory")).unwrap();
        let tree = point.join("apps/tree");
        fs::File::open(point.join("apps")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        copies.list_above(&tree).unwrap();
        let prepared = copies.prepare(&[&tree], true).unwrap();
        // These two entries are removed after they were opened.
        fs::remove_file(point.join("apps/gone")).unwrap();
        fs::remove_dir(point.join("apps/gone-directory")).unwrap();
        prepared.attach().unwrap();
        assert_eq!(names(&point), ["apps", "directory", "file", "link"]);
        assert_eq!(names(&point.join("file")), ["below"]);
        assert_eq!(fs::read_to_string(point.join("link")).unwrap(), "new");
        assert_eq!(names(&point.join("apps")), ["tree"]);
        let modified = fs::metadata(point.join("apps")).unwrap().modified().unwrap();
        assert_eq!(modified, std::time::UNIX_EPOCH);
        let refused = fs::write(point.join("apps/new"), "").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        unmount(&point);
        unmount(&point);
    }

    #[test]
    fn a_symbolic_link_keeps_its_owner_or_is_left_out_where_the_owner_matters() {
        let Some((_temp, point)) = mounted() else { return };
        fs::create_dir(point.join("apps/public")).unwrap();
        fs::create_dir(point.join("apps/public/tree")).unwrap();
        fs::set_permissions(point.join("apps/public"), fs::Permissions::from_mode(0o1777)).unwrap();
        for directory in ["apps", "apps/public"] {
            for (name, owner) in [("own", 0), ("foreign", OTHER_USER)] {
                let link = point.join(directory).join(name);
                symlink("tree", &link).unwrap();
                lchown(&link, Some(owner), Some(owner)).unwrap();
            }
        }
        let tree = point.join("apps/public/tree");
        for keeps_owners in [true, false] {
            let mut copies = CopiedDirectories::below(&point, 256);
            copies.list_above(&tree).unwrap();
            let prepared = copies.prepare(&[&tree], keeps_owners).unwrap();
            let left_out = prepared.foreign_links().to_vec();
            prepared.attach().unwrap();
            let owner = |link: &str| {
                fs::symlink_metadata(point.join(link)).ok().map(|found| (found.uid(), found.gid()))
            };
            let (own, other) = (Some((0, 0)), Some((OTHER_USER, OTHER_USER)));
            assert_eq!((owner("apps/own"), owner("apps/public/own")), (own, own));
            let foreign = (owner("apps/foreign"), owner("apps/public/foreign"));
            match keeps_owners {
                true => {
                    assert_eq!(foreign, (other, other));
                    assert_eq!(left_out, Vec::<PathBuf>::new());
                }
                false => {
                    assert_eq!(foreign, (own, None));
                    assert_eq!(left_out, [point.join("apps/public/foreign")]);
                }
            }
            unmount(&point);
        }
        unmount(&point);
    }

    #[test]
    fn an_open_file_needs_no_lookup() {
        let Some((_temp, point)) = mounted() else { return };
        fs::write(point.join("open"), "old").unwrap();
        fs::write(point.join("other"), "other").unwrap();
        let (open, elsewhere) = (fs::File::open(point.join("open")).unwrap(), tempfile::tempfile().unwrap());
        let mut copies = CopiedDirectories::below(&point, 256);
        let tree = point.join("apps/tree");
        copies.list_above(&tree).unwrap();
        for file in [&open, &elsewhere] {
            copies.use_open_file(file.as_fd());
        }
        // A lookup would find this file.
        fs::rename(point.join("open"), point.join("renamed")).unwrap();
        fs::write(point.join("open"), "new").unwrap();
        copies.prepare(&[&tree], true).unwrap().attach().unwrap();
        assert_eq!(names(&point), ["apps", "open", "other"]);
        assert_eq!(fs::read_to_string(point.join("open")).unwrap(), "old");
        assert_eq!(fs::read_to_string(point.join("other")).unwrap(), "other");
        unmount(&point);
        unmount(&point);
    }

    #[test]
    fn directories_are_copied_until_they_have_too_many_entries_together() {
        let Some((_temp, point)) = mounted() else { return };
        for name in 0..8 {
            fs::write(point.join("apps").join(name.to_string()), "").unwrap();
        }
        let tree = point.join("apps/tree");
        // The mount point has one entry, and the directory below it nine.
        for (entries_max, copied) in [(0, vec![]), (9, vec!["."]), (10, vec![".", "apps"])] {
            let mut copies = CopiedDirectories::below(&point, entries_max);
            let listed = copies.list_above(&tree);
            let expect: Vec<PathBuf> =
                copied.iter().map(|below| point.join(below).components().collect()).collect();
            assert_eq!(copies.paths().collect::<Vec<_>>(), expect);
            let first = listed.err().map(|not_copied| (not_copied.path, not_copied.error.is_none()));
            let expect = [point.clone(), point.join("apps")].get(copied.len()).cloned();
            assert_eq!(first, expect.map(|path| (path, true)), "{entries_max}");
        }
        unmount(&point);
    }
}
