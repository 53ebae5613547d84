//! Making mounts and taking them away: with the kernel's mount calls where the caller may (root, or
//! inside a user name space of its own), with fusermount3 otherwise. Read-only unless the file system has
//! verbs that write; without set-user-id programs and devices unless root asks for them, and with the kernel
//! checking permissions.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_fs::{Error, ErrorKind, FileSystem, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};
use rustix::process::{getegid, geteuid};

use crate::options::{REQUEST_BYTES_MAX, SUBTYPE};
use crate::{Options, Session, fusermount};

/// Mounts `fs` without attaching it anywhere: the descriptor is the mount, as `fsmount(2)` makes it,
/// to be attached with `move_mount(2)` or given to overlayfs as a layer. It may be used, and closed,
/// as soon as this returns; the session ends when the mount and all its copies are gone.
///
/// Needs Linux 5.2 and the right to mount (root, or a user name space that the caller has made). Owners
/// in the attributes are understood as ids of that name space.
///
/// Errors: `Os(EPERM)` without the right to mount; those of opening `/dev/fuse`.
pub fn detached(fs: Arc<dyn FileSystem>, options: &Options) -> Result<(OwnedFd, Session)> {
    let context = fs_context().map_err(|errno| failed(errno, "mount", "fuse"))?;
    start_detached(fs, &context, options, None)
}

/// Mounts `fs` at the existing directory `mountpoint`, over whatever is there. Where the caller has no
/// right to mount, fusermount3 does it, if the caller may write to the directory.
///
/// Errors: those of finding the directory and of opening `/dev/fuse`; `NotFound` without fusermount3;
/// `PermissionDenied` with what fusermount3 says, or with what to do about `allow_other`.
pub fn at(fs: Arc<dyn FileSystem>, mountpoint: &Path, options: &Options) -> Result<Session> {
    let path = fs::canonicalize(mountpoint)
        .map_err(|cause| Error::from_io(cause, "mount on", mountpoint.as_os_str().as_bytes()))?;
    match fs_context() {
        Ok(context) => {
            let (mount, session) = start_detached(fs, &context, options, Some(path.clone()))?;
            attach(&mount, &path).map_err(|errno| failed(errno, "mount on", path.as_os_str().as_bytes()))?;
            Ok(session)
        }
        // An ordinary user; or a kernel before 5.2, for which fusermount3 knows the older call.
        Err(Errno::PERM | Errno::NOSYS) => {
            let device = fusermount::mount(&path, Access::to(&*fs), options)?;
            let number = topmost_at(&path);
            Session::start(fs, device, options, Place { path: Some(path), number })
        }
        Err(errno) => Err(failed(errno, "mount on", path.as_os_str().as_bytes())),
    }
}

/// Puts the mount on the directory `path`, no part of which may be a symbolic link: its owner could change where that
/// leads at any time. Linux 5.6.
fn attach(mount: &OwnedFd, path: &Path) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let target = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", &target, "", flags)
}

/// What a mount lets programs do.
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
    // The kernel wants the device opened in the user name space that mounts, so here and not earlier.
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

/// The kernel reads ahead 128 KiB at a time unless root says otherwise. Larger requests are fewer
/// round trips to slow storage; where we may not ask for them, nothing is lost but that.
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
    /// `None` if the kernel did not tell, which it always does.
    number: Option<DeviceNumber>,
}

impl Place {
    /// The kernel's number of the connection: the minor device number of the mount.
    pub(crate) fn connection(&self) -> Option<u32> {
        self.number.map(|number| number.minor)
    }

    /// Removes the mount if it is the one on top at its path; `lazily` also while it is in use.
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

/// The device number of a mount, without a request to whoever serves it.
fn number_of(mount: &OwnedFd) -> Option<DeviceNumber> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(mount, "", flags, StatxFlags::empty()).ok()?;
    Some(DeviceNumber { major: found.stx_dev_major, minor: found.stx_dev_minor })
}

/// The device number of the mount on top at `path` (absolute, no symbolic links), if there is one.
fn topmost_at(path: &Path) -> Option<DeviceNumber> {
    parse_topmost(&fs::read("/proc/self/mountinfo").ok()?, path)
}

/// Lines of mountinfo read `id parent major:minor root mountpoint options ...`; later ones are on top.
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

/// The kernel writes space, tab, newline and backslash in a path as `\` and three octal digits.
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
