//! The mounts that make the view, with the system calls that name layers by descriptor: no path is
//! quoted, nothing is attached but the finished view.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use quell_fs::{Error, Result};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_fd,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};

/// A directory to be a layer. It must be opened in the namespace in which the overlay is mounted.
pub fn open_layer(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
        .map_err(|e| Error::from_io(e.into(), "open", path.as_os_str().as_bytes()))
}

/// Where writes go.
#[derive(Debug)]
pub struct Upper {
    pub upper: OwnedFd,
    /// An empty directory on the same file system.
    pub work: OwnedFd,
    /// Whether it lies on the file system of the metadata layer.
    pub same_file_system: bool,
    /// The mount that both lie on, if nothing else holds it: a mount that is attached nowhere ends with its
    /// descriptor, and the kernel takes no layer from it then.
    pub mount: Option<OwnedFd>,
}

/// What an overlay is made of.
#[derive(Debug)]
pub struct Layers<'a> {
    /// Names and attributes.
    pub metadata: BorrowedFd<'a>,
    /// Where the bytes are; the first that has the file is taken.
    pub data: &'a [OwnedFd],
    pub upper: Option<&'a Upper>,
    /// Shown as the source in the list of mounts.
    pub source: &'a str,
}

/// An empty tmpfs, attached nowhere.
pub fn mount_tmpfs() -> Result<OwnedFd> {
    let failed = |e: rustix::io::Errno| Error::from_io(e.into(), "mount", b"tmpfs");
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed)?;
    for (key, value) in [("size", "100%"), ("nr_inodes", "0"), ("mode", "0755")] {
        fsconfig_set_string(fs.as_fd(), key, value).map_err(failed)?;
    }
    fsconfig_set_flag(fs.as_fd(), "inode64").map_err(failed)?;
    fsconfig_create(fs.as_fd()).map_err(failed)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID;
    fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(failed)
}

/// The overlay, attached nowhere yet. The layers' descriptors may be closed afterwards.
pub fn mount_overlay(layers: &Layers<'_>) -> Result<OwnedFd> {
    let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)
        .map_err(|e| Error::from_io(e.into(), "mount", b"overlay"))?;
    configure(&fs, layers).map_err(|e| explained(&fs, e))?;
    let attributes = match layers.upper {
        Some(_) => MountAttrFlags::empty(),
        None => MountAttrFlags::MOUNT_ATTR_RDONLY,
    };
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
            // One device number for the whole view, though its files come from two.
            fsconfig_set_string(fs, "xino", "on")?;
        }
    }
    fsconfig_create(fs)
}

/// Overlayfs writes its reasons into a log of the configuration; the error number alone says little.
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

/// Puts a detached mount over `path`. The directory must exist and not be a symbolic link.
pub fn attach(mount: &OwnedFd, path: &Path) -> Result<()> {
    let target = rustix::fs::openat(
        CWD,
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|e| Error::from_io(e.into(), "cover", path.as_os_str().as_bytes()))?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount.as_fd(), OsStr::new(""), target.as_fd(), OsStr::new(""), flags)
        .map_err(|e| Error::from_io(e.into(), "attach the view to", path.as_os_str().as_bytes()))
}
