//! Resolves the path of a file directory by directory, and decides from the permissions of the file
//! and of each of these directories whether every user may read it.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_posix::{Dir, OpenFile, PosixDir, Stat};
use quell_vfs::{Error, ErrorKind, FileIdentity, Result};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

/// The number of symbolic links that the kernel follows in one path (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// The operation in error messages.
const OPERATION: &str = "open disk image";

/// The permissions of a file or directory that decide whether every user has access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Permissions {
    /// The mode. The file type is ignored.
    pub(crate) mode: u32,
    /// Whether there is an access control list, which may deny access to single users.
    pub(crate) has_acl: bool,
}

/// Returns whether every user may read a file, given the permissions of all directories of its
/// path.
///
/// The owner and the group need the permission, too: the kernel does not apply the permissions of
/// others to them.
pub(crate) fn is_readable_by_everyone(
    file: Permissions,
    mut directories: impl Iterator<Item = Permissions>,
) -> bool {
    let allows = |found: Permissions, bits| !found.has_acl && found.mode & bits == bits;
    allows(file, 0o444) && directories.all(|directory| allows(directory, 0o111))
}

/// A symbolic link on a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    /// Its path, without other symbolic links.
    pub(crate) path: PathBuf,
    /// Its owner.
    pub(crate) uid: u32,
}

/// The directories of a path from `/` to the parent of the file.
pub(crate) type Directories = Arc<[OwnedFd]>;

/// A regular file that was opened for reading, and the directories and links of its path.
pub(crate) struct ResolvedFile {
    /// The absolute path, without symbolic links.
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn OpenFile>,
    /// The metadata when the file was opened.
    pub(crate) stat: Stat,
    pub(crate) directories: Directories,
    /// The symbolic links that were followed.
    pub(crate) links: Vec<Link>,
}

/// Opens the regular file at an absolute path for reading. Symbolic links are followed.
pub(crate) fn open(path: &Path) -> Result<ResolvedFile> {
    let failed = |e: Errno| Error::from_io(e.into(), OPERATION, path.as_os_str().as_bytes());
    let Position { directories, links, name, found } = walk(path).map_err(failed)?;
    let parent = path_of(&directories);
    let file: Arc<dyn OpenFile> = PosixDir::start(&parent)?
        .open_file(name.as_bytes())
        .map_err(|e| Error { operation: OPERATION, subject: path.as_os_str().as_bytes().to_vec(), ..e })?
        .into();
    let stat = file.stat()?;
    let walked = rustix::fs::fstat(&found).map_err(failed)?;
    // The file was opened by its path. `found` keeps the inode number from being used again.
    if stat.identity() != (FileIdentity { device: walked.st_dev, inode: walked.st_ino }) {
        let cause = std::io::Error::other("it was replaced while it was opened");
        let error = Error::new(ErrorKind::Stale, OPERATION, path.as_os_str().as_bytes());
        return Err(Error { source: Some(Box::new(cause)), ..error });
    }
    let directories = directories.into_iter().map(|directory| directory.fd).collect();
    Ok(ResolvedFile { path: parent.join(name), file, stat, directories, links })
}

/// Returns whether every user may read an open file by the path through these directories, now.
pub(crate) fn is_readable_by_everyone_now(file: &dyn OpenFile, directories: &[OwnedFd]) -> Result<bool> {
    // After an error the existence of a list is unknown, so one is assumed.
    let has_acl = !matches!(file.acl(), Ok(None));
    let file = Permissions { mode: file.stat()?.mode, has_acl };
    let directories = directories.iter().map(permissions_of_directory).collect::<Result<Vec<_>>>()?;
    Ok(is_readable_by_everyone(file, directories.into_iter()))
}

/// Returns whether two paths lead through the same directories.
pub(crate) fn are_same(one: &[OwnedFd], other: &[OwnedFd]) -> bool {
    let identity = |fd| rustix::fs::fstat(fd).map(|found| (found.st_dev, found.st_ino));
    one.len() == other.len()
        && one.iter().zip(other).all(
            |(one, other)| matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other),
        )
}

fn permissions_of_directory(fd: &OwnedFd) -> Result<Permissions> {
    let found = rustix::fs::fstat(fd).map_err(|e| Error::from_io(e.into(), "stat", b""))?;
    // A descriptor that was opened with O_PATH has no extended attributes.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let list = rustix::fs::getxattr(path, "system.posix_acl_access", &mut [0_u8; 0][..]);
    // After another error the existence of a list is unknown, so one is assumed.
    let has_acl = !matches!(list, Ok(0) | Err(Errno::NODATA | Errno::OPNOTSUPP));
    Ok(Permissions { mode: found.st_mode, has_acl })
}

struct Directory {
    name: OsString,
    fd: OwnedFd,
}

fn path_of(directories: &[Directory]) -> PathBuf {
    directories.iter().map(|directory| &directory.name).collect()
}

/// The position of a file in the directory tree.
struct Position {
    /// From `/` to the parent.
    directories: Vec<Directory>,
    links: Vec<Link>,
    /// The name in the parent.
    name: OsString,
    /// The file, opened with `O_PATH`.
    found: OwnedFd,
}

/// Finds the file at an absolute path.
fn walk(path: &Path) -> std::result::Result<Position, Errno> {
    const DIRECTORY: OFlags =
        OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    const ANY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    let root = OsString::from("/");
    let fd = rustix::fs::openat(CWD, &root, DIRECTORY, Mode::empty())?;
    let (mut directories, mut links) = (vec![Directory { name: root, fd }], Vec::new());
    // The last component comes first.
    let mut pending = Vec::new();
    push_components(&mut pending, path);
    while let Some(name) = pending.pop() {
        let parent = directories.last().map_or(CWD, |directory| directory.fd.as_fd());
        match name.as_bytes() {
            b"/" => directories.truncate(1),
            b"." => {}
            b".." if directories.len() == 1 => {}
            b".." => drop(directories.pop()),
            // The flag O_DIRECTORY mounts the file systems of automount points.
            _ => match rustix::fs::openat(parent, &name, DIRECTORY, Mode::empty()) {
                Ok(fd) => directories.push(Directory { name, fd }),
                Err(Errno::NOTDIR) => {
                    let found = rustix::fs::openat(parent, &name, ANY, Mode::empty())?;
                    let stat = rustix::fs::fstat(&found)?;
                    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                        let is_last = pending.is_empty();
                        let position = Position { directories, links, name, found };
                        return if is_last { Ok(position) } else { Err(Errno::NOTDIR) };
                    }
                    if links.len() == LINKS_MAX {
                        return Err(Errno::LOOP);
                    }
                    links.push(Link { path: path_of(&directories).join(&name), uid: stat.st_uid });
                    let target = rustix::fs::readlinkat(&found, "", Vec::new())?;
                    push_components(&mut pending, Path::new(&OsString::from_vec(target.into_bytes())));
                }
                Err(e) => return Err(e),
            },
        }
    }
    Err(Errno::ISDIR)
}

fn push_components(pending: &mut Vec<OsString>, path: &Path) {
    pending.extend(path.components().rev().map(|component| OsStr::to_owned(component.as_os_str())));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(mode: u32) -> Permissions {
        Permissions { mode, has_acl: false }
    }

    #[test]
    fn a_file_is_readable_by_everyone_only_with_all_directories_of_its_path() {
        let decide = |file, directories: &[u32]| {
            is_readable_by_everyone(file, directories.iter().map(|bits| mode(0o040_000 | bits)))
        };
        assert!(decide(mode(0o100_644), &[0o755, 0o1777, 0o711]));
        assert!(decide(mode(0o100_444), &[]));
        // A private directory anywhere on the path denies access.
        for directories in [&[0o700, 0o755][..], &[0o755, 0o700], &[0o750, 0o755], &[0o755, 0o754]] {
            assert!(!decide(mode(0o100_644), directories), "{directories:?}");
        }
        for file in [0o600, 0o640, 0o660, 0o604, 0o044] {
            assert!(!decide(mode(0o100_000 | file), &[0o755]), "{file:o}");
        }
        // Members of the group have less access than other users.
        assert!(!decide(mode(0o100_644), &[0o701]));
        let listed = Permissions { mode: 0o755, has_acl: true };
        assert!(!decide(listed, &[0o755]));
        assert!(!is_readable_by_everyone(mode(0o644), [mode(0o755), listed].into_iter()));
    }

    #[test]
    fn symbolic_links_are_followed_and_returned_with_their_owners() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        std::fs::create_dir(top.join("sub")).unwrap();
        std::fs::write(top.join("sub/file"), "x").unwrap();
        symlink("sub/../sub", top.join("dir")).unwrap();
        symlink(top.join("dir/file"), top.join("link")).unwrap();
        let plain = open(&top.join("sub/./file")).unwrap();
        assert_eq!((plain.path, plain.links), (top.join("sub/file"), Vec::new()));
        let linked = open(&top.join("link")).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let link = |name: &str| Link { path: top.join(name), uid };
        assert_eq!((linked.path, linked.links), (top.join("sub/file"), vec![link("link"), link("dir")]));
        assert!(are_same(&plain.directories, &linked.directories));
        assert_eq!(plain.directories.len(), top.components().count() + 1);
        symlink("loop", top.join("loop")).unwrap();
        let error = |name: &str| open(&top.join(name)).err().unwrap().kind;
        assert_eq!(error("loop"), ErrorKind::Os(Errno::LOOP.raw_os_error()));
        assert_eq!(error("sub/file/more"), ErrorKind::NotADirectory);
        assert_eq!(error("sub"), ErrorKind::IsADirectory);
        assert_eq!(error("absent"), ErrorKind::NotFound);
    }

    #[test]
    fn removed_permissions_are_noticed_on_open_descriptors() {
        use std::os::unix::fs::PermissionsExt;
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("disk.raw");
        std::fs::write(&path, "x").unwrap();
        let resolved = open(&path).unwrap();
        // The directories above are those of the system.
        let last = &resolved.directories[resolved.directories.len() - 1..];
        let now = || is_readable_by_everyone_now(&*resolved.file, last).unwrap();
        for (directory_mode, file_mode) in [(0o755, 0o644), (0o700, 0o644), (0o755, 0o600), (0o711, 0o444)] {
            set(directory.path(), directory_mode);
            set(&path, file_mode);
            assert_eq!(
                now(),
                directory_mode != 0o700 && file_mode != 0o600,
                "{directory_mode:o} {file_mode:o}"
            );
        }
    }
}
