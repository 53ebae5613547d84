//! Mounts and unmounts: with the kernel's mount calls if the caller has the right to use them
//! (root, or in a user namespace of its own), otherwise with fusermount3. A mount is read-only
//! unless the file system is writable, and `nosuid,nodev` unless root requests otherwise. The
//! kernel checks permissions.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_vfs::{Error, ErrorKind, FileSystem, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};
use rustix::process::{getegid, geteuid};

use crate::options::{REQUEST_BYTES_MAX, SUBTYPE};
use crate::{Options, Session, fusermount};

/// Mounts `fs` without attaching it anywhere. Returns the descriptor of the mount, as `fsmount(2)`
/// does; it can be attached with `move_mount(2)` or given to overlayfs as a layer. It may be used,
/// and closed, as soon as this function returns. The session ends when the mount and all its copies
/// are gone.
///
/// Needs Linux 5.2 and the right to mount (root, or a user namespace that the caller has created).
/// Owners in the attributes are ids of that namespace.
///
/// Errors: `Os(EPERM)` without the right to mount; those of opening `/dev/fuse`.
pub fn detached(fs: Arc<dyn FileSystem>, options: &Options) -> Result<(OwnedFd, Session)> {
    let context = fs_context().map_err(|errno| failed(errno, "mount", "fuse"))?;
    start_detached(fs, &context, options, None)
}

/// Mounts `fs` on the existing directory `mountpoint`, over its present content. If the caller has
/// no right to mount, fusermount3 mounts, provided that the caller may write to the directory.
///
/// Errors: those of finding the directory and of opening `/dev/fuse`; `NotFound` without
/// fusermount3; `PermissionDenied` with the message of fusermount3, or with advice about
/// `allow_other`.
pub fn at(fs: Arc<dyn FileSystem>, mountpoint: &Path, options: &Options) -> Result<Session> {
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
            let device = fusermount::mount(&path, Access::to(&*fs), options)?;
            let number = topmost_at(&path);
            Session::start(fs, device, options, Place { path: Some(path), number })
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

/// Whether programs can change a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    Writable,
}

impl Access {
    fn to(fs: &dyn FileSystem) -> Access {
        if fs.writable().is_some() { Access::Writable } else { Access::ReadOnly }
    }
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
    let root_mode = fs.attributes(fs.root())?.mode();
    let mount = configure(context, &device, root_mode, Access::to(&*fs), options)
        .map_err(|errno| failed(errno, "mount", options.source.as_bytes()))?;
    let number = number_of(&mount);
    let session = Session::start(fs, device, options, Place { path, number })?;
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

/// Where a session's mount is, as far as the session knows.
#[derive(Debug)]
pub(crate) struct Place {
    /// `None` for a detached mount.
    path: Option<PathBuf>,
    /// `None` if the kernel did not report it, which does not happen in practice.
    number: Option<DeviceNumber>,
}

impl Place {
    /// Returns the number of the kernel's FUSE connection: the minor device number of the mount.
    pub(crate) fn connection(&self) -> Option<u32> {
        self.number.map(|number| number.minor)
    }

    /// Unmounts the mount if it is the topmost one at its path. With `lazily`, also while it is in
    /// use.
    pub(crate) fn unmount(&self, lazily: bool) -> Result<()> {
        let Some(path) = &self.path else {
            return Err(Error::new(ErrorKind::Unsupported, "unmount", "a detached mount"));
        };
        if topmost_at(path) != self.number {
            return Ok(());
        }
        let lazy = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        match unmount(path, UnmountFlags::NOFOLLOW | lazy) {
            Ok(()) => Ok(()),
            Err(Errno::PERM) => fusermount::unmount(path, lazily),
            Err(errno) => Err(failed(errno, "unmount", path.as_os_str().as_bytes())),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DeviceNumber {
    major: u32,
    minor: u32,
}

/// Returns the device number of a mount, without a request to its server.
fn number_of(mount: &OwnedFd) -> Option<DeviceNumber> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(mount, "", flags, StatxFlags::empty()).ok()?;
    Some(DeviceNumber { major: found.stx_dev_major, minor: found.stx_dev_minor })
}

/// Returns the device number of the topmost mount at `path` (absolute, without symbolic links), if
/// there is one.
fn topmost_at(path: &Path) -> Option<DeviceNumber> {
    parse_topmost(&fs::read("/proc/self/mountinfo").ok()?, path)
}

/// Lines of mountinfo have the form `id parent major:minor root mountpoint options ...`. Of two
/// mounts at one path, the later line is on top.
fn parse_topmost(mountinfo: &[u8], path: &Path) -> Option<DeviceNumber> {
    let mut lines = mountinfo.split(|b| *b == b'\n').rev();
    lines.find_map(|line| {
        let mut words = line.split(|b| *b == b' ');
        let device = words.nth(2)?;
        let mountpoint = words.nth(1)?;
        if OsStr::from_bytes(&unescape(mountpoint)) != path.as_os_str() {
            return None;
        }
        let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
        Some(DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? })
    })
}

/// Decodes a path of mountinfo, in which the kernel writes space, tab, line feed and backslash as
/// `\` and three octal digits.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, tail @ ..] = rest {
        (rest, _) = match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] if *first == b'\\' => {
                (tail, plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0')))
            }
            tail => (tail, plain.push(*first)),
        };
    }
    plain
}

fn failed(errno: Errno, operation: &'static str, subject: impl AsRef<[u8]>) -> Error {
    Error::from_io(errno.into(), operation, subject)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_for_a_path_is_the_mount_on_top() {
        let info = b"1 0 8:1 / / rw - ext4 a rw\n2 1 0:40 / /a\\040b rw - fuse.quell q ro\n\
                     3 1 0:41 / /a\\040b rw - fuse.quell q ro\n4 1 0:42 / /a rw - tmpfs t rw\n";
        assert_eq!(parse_topmost(info, Path::new("/a b")), Some(DeviceNumber { major: 0, minor: 41 }));
        assert_eq!(parse_topmost(info, Path::new("/")), Some(DeviceNumber { major: 8, minor: 1 }));
        assert_eq!(parse_topmost(info, Path::new("/b")), None);
        assert_eq!(parse_topmost(b"broken\n\n1 2 3", Path::new("/")), None);
    }

    #[test]
    fn octal_escapes_become_bytes() {
        assert_eq!(unescape(b"a\\134\\012\\0x\\"), b"a\\\n\\0x\\");
    }
}
