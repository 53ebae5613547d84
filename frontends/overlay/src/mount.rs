//! The mounts of a view. The system calls take layers as descriptors, so that no path has to be
//! escaped, and only the finished view is attached.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use quell_vfs::{Error, ErrorKind, FileIdentity, Result, printable};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, makedev, openat2, statx};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_fd,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Opens a directory as a layer. It must be opened in the namespace that mounts the overlay.
pub fn open_layer(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
        .map_err(|e| Error::from_io(e.into(), "open", path.as_os_str().as_bytes()))
}

/// The upper layer, which takes writes.
#[derive(Debug)]
pub struct Upper {
    /// The directory that takes the writes.
    pub upper: OwnedFd,
    /// An empty directory on the same file system.
    pub work: OwnedFd,
    /// Whether it is on the file system of the metadata layer.
    pub same_file_system: bool,
    /// The mount of both directories, if nothing else holds it: a detached mount ends when its
    /// descriptor is closed, and the kernel then accepts no layer from it.
    pub mount: Option<OwnedFd>,
}

/// The credentials with which overlayfs accesses its layers. A program's access to a file of the
/// view is first checked against the attributes of the view, with the program's own credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credentials {
    /// The credentials of the process that mounts.
    Mounter,
    /// User and group 65534, who own no files, without capabilities that bypass permissions. A file
    /// that is not readable by every user cannot be opened through the view by any user. Needs
    /// Linux 6.15; not possible with an upper layer.
    Nobody,
}

/// Privileges that files of a mount can give. None, unless root requests them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Powers {
    /// Set-id bits and file capabilities have an effect.
    pub suid: bool,
    /// Device nodes can be opened as devices.
    pub dev: bool,
}

impl Powers {
    fn attributes(self) -> MountAttrFlags {
        let mut attributes = MountAttrFlags::empty();
        attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !self.suid);
        attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, !self.dev);
        attributes
    }
}

/// The parts of an overlay mount.
#[derive(Debug)]
pub struct Layers<'a> {
    /// The source of names and attributes.
    pub metadata: BorrowedFd<'a>,
    /// The layers with data, in order. The data of a file is taken from the first layer that has
    /// the file.
    pub data: &'a [OwnedFd],
    /// The layer that takes writes; without one the view is read-only.
    pub upper: Option<&'a Upper>,
    /// The credentials with which the kernel opens files of the layers.
    pub credentials: Credentials,
    /// The privileges that files of the view can give.
    pub powers: Powers,
    /// The source in the list of mounts.
    pub source: &'a str,
}

/// Creates a detached, empty tmpfs.
pub fn mount_tmpfs() -> Result<OwnedFd> {
    mount_tmpfs_with([("size", "100%"), ("nr_inodes", "0"), ("mode", "0755")])
}

/// Creates a detached, empty tmpfs for this user only, with at most this number of bytes, which is
/// rounded up to whole pages, and of files.
pub fn mount_bounded_tmpfs(size_bytes: u64, files: u64) -> Result<OwnedFd> {
    let (size, files) = (size_bytes.to_string(), files.to_string());
    mount_tmpfs_with([("size", &size), ("nr_inodes", &files), ("mode", "0700")])
}

fn mount_tmpfs_with(options: [(&str, &str); 3]) -> Result<OwnedFd> {
    let failed = |e: rustix::io::Errno| Error::from_io(e.into(), "mount", b"tmpfs");
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed)?;
    for (key, value) in options {
        fsconfig_set_string(fs.as_fd(), key, value).map_err(failed)?;
    }
    fsconfig_set_flag(fs.as_fd(), "inode64").map_err(failed)?;
    fsconfig_create(fs.as_fd()).map_err(failed)?;
    let attributes = Powers::default().attributes();
    fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(failed)
}

/// Creates a detached overlay mount. The layers' descriptors may be closed afterwards.
pub fn mount_overlay(layers: &Layers<'_>) -> Result<OwnedFd> {
    let _span = tracing::debug_span!("mount_overlay").entered();
    let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)
        .map_err(|e| Error::from_io(e.into(), "mount", b"overlay"))?;
    configure(&fs, layers).map_err(|e| explained(&fs, e))?;
    let mut attributes = layers.powers.attributes();
    if layers.upper.is_none() {
        attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
    }
    fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .map_err(|e| Error::from_io(e.into(), "mount", b"overlay"))
}

fn configure(fs: &OwnedFd, layers: &Layers<'_>) -> rustix::io::Result<()> {
    let fs = fs.as_fd();
    fsconfig_set_string(fs, "source", layers.source)?;
    fsconfig_set_flag(fs, "userxattr")?;
    fsconfig_set_fd(fs, "lowerdir+", layers.metadata)?;
    for data in layers.data {
        fsconfig_set_fd(fs, "datadir+", data.as_fd())?;
    }
    if let Some(upper) = layers.upper {
        fsconfig_set_fd(fs, "upperdir", upper.upper.as_fd())?;
        fsconfig_set_fd(fs, "workdir", upper.work.as_fd())?;
        if !upper.same_file_system {
            // One device number for the whole view, although its files come from two file systems.
            fsconfig_set_string(fs, "xino", "on")?;
        }
    }
    if layers.credentials == Credentials::Nobody {
        std::thread::scope(|scope| {
            let override_credentials = || {
                become_nobody()?;
                for layer in layers.data {
                    // If this user may not search a layer, the view would show files that cannot be
                    // opened.
                    rustix::fs::openat(layer, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
                }
                fsconfig_set_flag(fs, "override_creds")
            };
            let done = scope.spawn(override_credentials).join();
            done.unwrap_or(Err(rustix::io::Errno::IO))
        })?;
    }
    fsconfig_create(fs)
}

/// Drops the privileges of the calling thread, which should end soon. Overlayfs keeps a copy of the
/// remaining credentials and needs CAP_SYS_ADMIN in them for its mounts; that capability opens no
/// file.
fn become_nobody() -> rustix::io::Result<()> {
    use rustix::process::{Gid, Uid};
    let (uid, gid) = (Uid::from_raw(NOBODY_ID), Gid::from_raw(NOBODY_ID));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    // The real user id is kept, so that the capability can be set in the effective set again.
    rustix::thread::set_thread_res_uid(None::<Uid>, uid, None::<Uid>)?;
    let needed = CapabilitySet::SYS_ADMIN;
    let sets = CapabilitySets { effective: needed, permitted: needed, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)
}

/// The user and group that the kernel, NFS and distributions use for `nobody`.
pub(crate) const NOBODY_ID: u32 = 65534;

/// Adds overlayfs's messages from the log of the configuration to the error, because the error
/// number alone is not specific.
fn explained(fs: &OwnedFd, errno: rustix::io::Errno) -> Error {
    let mut reasons = Vec::new();
    let mut line = [0; 1024];
    while let Ok(length @ 1..) = rustix::io::read(fs, &mut line) {
        reasons.push(String::from_utf8_lossy(&line[..length]).trim_end().to_string());
    }
    let subject =
        if reasons.is_empty() { "overlay".into() } else { format!("overlay [{}]", reasons.join("; ")) };
    Error::from_io(errno.into(), "mount", subject)
}

/// Attaches a detached mount over the directory `path`. No component of the path may be a symbolic
/// link: another user who owns one of its directories could replace it with a link to any
/// directory. Needs Linux 5.6.
///
/// `original`: the identity that the directory must have, because another one may have been moved
/// to this path.
pub fn attach(mount: &OwnedFd, path: &Path, original: Option<FileIdentity>) -> Result<()> {
    let _span = tracing::debug_span!("attach", path = %printable(path.as_os_str().as_bytes())).entered();
    attach_to(mount, path, OFlags::DIRECTORY, original)
}

/// Attaches over a file or directory. `kind` is the open flag for its type.
pub(crate) fn attach_to(
    mount: &OwnedFd,
    path: &Path,
    kind: OFlags,
    original: Option<FileIdentity>,
) -> Result<()> {
    let flags = kind | OFlags::PATH | OFlags::CLOEXEC;
    let target = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        .map_err(|e| Error::from_io(e.into(), "cover", path.as_os_str().as_bytes()))?;
    check_original(&target, path, original)?;
    move_over(mount, &target, path)
}

/// Attaches over a path below the root of a mount that is already attached; follows no symbolic
/// link.
pub fn attach_below(mount: &OwnedFd, around: &OwnedFd, path: &Path) -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let target = openat2(around, path, flags, Mode::empty(), resolve)
        .map_err(|e| Error::from_io(e.into(), "cover", path.as_os_str().as_bytes()))?;
    move_over(mount, &target, path)
}

fn check_original(target: &OwnedFd, path: &Path, original: Option<FileIdentity>) -> Result<()> {
    let Some(original) = original else { return Ok(()) };
    let subject = path.as_os_str().as_bytes();
    if identity_of(target).map_err(|e| Error::from_io(e.into(), "cover", subject))? == original {
        return Ok(());
    }
    let cause = std::io::Error::other("another file or directory has this path than when it was opened");
    Err(Error { source: Some(Box::new(cause)), ..Error::new(ErrorKind::PermissionDenied, "cover", subject) })
}

/// Returns the identity of an open file or directory, which does not change, without a request to
/// its file system.
pub(crate) fn identity_of(opened: &OwnedFd) -> rustix::io::Result<FileIdentity> {
    let local = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(opened, "", local, StatxFlags::INO)?;
    let device = makedev(found.stx_dev_major, found.stx_dev_minor);
    Ok(FileIdentity { device, inode: found.stx_ino })
}

pub(crate) fn move_over(mount: &OwnedFd, target: &OwnedFd, path: &Path) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount.as_fd(), OsStr::new(""), target.as_fd(), OsStr::new(""), flags)
        .map_err(|e| Error::from_io(e.into(), "attach the view to", path.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isolation, isolate};

    #[test]
    fn no_part_of_a_mount_point_is_a_symbolic_link() {
        if !rustix::process::geteuid().is_root() {
            return println!("SKIPPED: only root mounts outside of a user namespace");
        }
        // For this thread only.
        isolate(Isolation::Mount).unwrap();
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("real/tree")).unwrap();
        std::os::unix::fs::symlink("real", base.join("link")).unwrap();
        std::os::unix::fs::symlink("tree", base.join("real/last")).unwrap();
        let mount = mount_tmpfs().unwrap();
        for path in ["link/tree", "real/last"] {
            let refused = attach(&mount, &base.join(path), None).unwrap_err();
            assert_eq!(refused.errno(), rustix::io::Errno::LOOP.raw_os_error(), "{path}: {refused}");
        }
        let tree = rustix::fs::stat(base.join("real/tree")).unwrap();
        let identity = FileIdentity { device: tree.st_dev, inode: tree.st_ino };
        let other = Some(FileIdentity { inode: tree.st_ino + 1, ..identity });
        let refused = attach(&mount, &base.join("real/tree"), other).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::PermissionDenied);
        attach(&mount, &base.join("real/tree"), Some(identity)).unwrap();
        rustix::mount::unmount(base.join("real/tree"), rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}
