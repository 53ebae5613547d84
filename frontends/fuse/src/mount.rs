//! Mounts a file system: with the kernel's mount calls if the caller has the right to use them
//! (root, or in a user namespace of its own), otherwise with fusermount3. A mount is read-only
//! unless the file system is writable, and `nosuid,nodev` unless root requests otherwise. The
//! kernel checks permissions.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_vfs::{Context, Error, FileSystem, Result};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};
use rustix::process::{getegid, geteuid};

use crate::fusermount;
use crate::location::{DeviceNumber, MountLocation, number_of, topmost_at};
use crate::options::{Access, Options, REQUEST_BYTES_MAX, SUBTYPE};
use crate::session::Session;

/// Mounts `fs` without attaching it anywhere. Returns the descriptor of the mount, as `fsmount(2)`
/// does; it can be attached with `move_mount(2)` or given to overlayfs as a layer. It may be used,
/// and closed, as soon as this function returns. The session ends when the mount and all its copies
/// are gone.
///
/// Needs Linux 5.2 and the right to mount (root, or a user namespace that the caller has created).
/// Owners in the attributes are ids of that namespace.
///
/// Errors: `Os(EPERM)` without the right to mount; the errors of opening `/dev/fuse`.
pub fn mount_detached(fs: Arc<dyn FileSystem>, options: &Options) -> Result<(OwnedFd, Session)> {
    let context = fs_context().map_err(|errno| failed(errno, "mount", "fuse"))?;
    start_detached(fs, &context, options, None)
}

/// Mounts `fs` on the existing directory `mountpoint`, over its present content. If the caller has
/// no right to mount, fusermount3 mounts, provided that the caller may write to the directory.
///
/// Errors: the errors of finding the directory and of opening `/dev/fuse`; `NotFound` without
/// fusermount3; `PermissionDenied` with the message of fusermount3, or with advice about
/// `allow_other`.
pub fn mount_at(fs: Arc<dyn FileSystem>, mountpoint: &Path, options: &Options) -> Result<Session> {
    let path = fs::canonicalize(mountpoint)
        .map_err(|cause| Error::from_io(cause, "mount on", mountpoint.as_os_str().as_bytes()))?;
    match fs_context() {
        Ok(context) => {
            let (mount, session) = start_detached(fs, &context, options, Some(path.clone()))?;
            attach(&mount, &path).map_err(|errno| failed(errno, "mount on", path.as_os_str().as_bytes()))?;
            Ok(session)
        }
        // An ordinary user, or a kernel before 5.2, where fusermount3 uses mount(2).
        Err(Errno::PERM | Errno::NOSYS) => {
            let device = fusermount::mount(&path, Access::new(&*fs, options), options)?;
            let number = topmost_at(&path);
            Session::start(fs, device, options, MountLocation { path: Some(path), number })
        }
        Err(errno) => Err(failed(errno, "mount on", path.as_os_str().as_bytes())),
    }
}

/// Attaches the mount to the directory `path`. No component of the path may be a symbolic link,
/// because its owner could change its target at any time. Needs Linux 5.6.
fn attach(mount: &OwnedFd, path: &Path) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let target = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", &target, "", flags)
}

fn fs_context() -> rustix::io::Result<OwnedFd> {
    fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)
}

fn start_detached(
    fs: Arc<dyn FileSystem>,
    context: &OwnedFd,
    options: &Options,
    path: Option<PathBuf>,
) -> Result<(OwnedFd, Session)> {
    // The kernel requires the device to be opened in the user namespace that mounts, so it is
    // opened here.
    let device: OwnedFd = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map_err(|cause| Error::from_io(cause, "open", "/dev/fuse"))?
        .into();
    let root_mode = fs.attributes(&Context::OWN, fs.root())?.mode();
    let mount = configure(context, &device, root_mode, Access::new(&*fs, options), options)
        .map_err(|errno| failed(errno, "mount", options.source.as_bytes()))?;
    let number = number_of(&mount);
    let session = Session::start(fs, device, options, MountLocation { path, number })?;
    if !options.no_read_ahead {
        widen_read_ahead(number);
    }
    Ok((mount, session))
}

/// Increases the kernel's read-ahead, which is 128 KiB unless root sets it. Larger requests mean
/// fewer round trips to slow storage. Without the right to set it, reads are only slower.
fn widen_read_ahead(number: Option<DeviceNumber>) {
    if let Some(DeviceNumber { major, minor }) = number {
        let kib = REQUEST_BYTES_MAX / 1024;
        let _ = fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), kib.to_string());
    }
}

fn configure(
    context: &OwnedFd,
    device: &OwnedFd,
    root_mode: u32,
    access: Access,
    options: &Options,
) -> rustix::io::Result<OwnedFd> {
    let set = |key: &str, value: String| fsconfig_set_string(context, key, value);
    set("source", options.source.clone())?;
    set("subtype", SUBTYPE.to_owned())?;
    set("fd", device.as_raw_fd().to_string())?;
    set("rootmode", format!("{root_mode:o}"))?;
    set("user_id", geteuid().as_raw().to_string())?;
    set("group_id", getegid().as_raw().to_string())?;
    fsconfig_set_flag(context, "default_permissions")?;
    if options.allow_other {
        fsconfig_set_flag(context, "allow_other")?;
    }
    let mut attributes = MountAttrFlags::empty();
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !options.suid);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, !options.dev);
    if access == Access::ReadOnly {
        fsconfig_set_flag(context, "ro")?;
        attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
    }
    fsconfig_create(context)?;
    fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn failed(errno: Errno, operation: &'static str, subject: impl AsRef<[u8]>) -> Error {
    Error::from_io(errno.into(), operation, subject)
}
