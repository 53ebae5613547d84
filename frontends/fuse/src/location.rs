//! The path and the device number of a session's mount, by which the mount is recognized and
//! unmounted.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use quell_vfs::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::fusermount;

/// The path and device number of a session's mount, as far as they are known.
#[derive(Debug)]
pub(crate) struct MountLocation {
    /// `None` for a detached mount.
    pub(crate) path: Option<PathBuf>,
    /// `None` if the kernel did not report it, which does not happen in practice.
    pub(crate) number: Option<DeviceNumber>,
}

impl MountLocation {
    /// Opens the file that aborts the kernel's FUSE connection, whose number is the minor device
    /// number of the mount. Most systems have this file, and the user who mounted may write to it.
    pub(crate) fn abort_file(&self) -> Option<File> {
        let path = format!("/sys/fs/fuse/connections/{}/abort", self.number?.minor);
        File::options().write(true).open(path).ok()
    }

    /// Unmounts the mount if it is the topmost one at its path. With `lazily`, even while it is in
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
            Err(errno) => Err(Error::from_io(errno.into(), "unmount", path.as_os_str().as_bytes())),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceNumber {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

/// Returns the device number of a mount, without a request to its server.
pub(crate) fn number_of(mount: &OwnedFd) -> Option<DeviceNumber> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(mount, "", flags, StatxFlags::empty()).ok()?;
    Some(DeviceNumber { major: found.stx_dev_major, minor: found.stx_dev_minor })
}

/// Returns the device number of the topmost mount at `path` (absolute, without symbolic links), if
/// there is one.
pub(crate) fn topmost_at(path: &Path) -> Option<DeviceNumber> {
    parse_topmost(&fs::read("/proc/self/mountinfo").ok()?, path)
}

/// Returns the device number of the topmost mount at `path` in the text of mountinfo. Its lines
/// have the form `id parent major:minor root mountpoint options ...`. Of two mounts at one path,
/// the later line is on top.
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
