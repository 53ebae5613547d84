//! Reads the kernel's mount table, without a request to any file system.

use std::path::{Path, PathBuf};

/// Prefix of the source of Quell's mounts; the index or the stores follow.
const SOURCE_PREFIX: &str = "quell:";

/// The path of the mount table.
pub const MOUNT_TABLE: &str = "/proc/self/mountinfo";

/// One line of the table.
#[derive(Debug, Clone)]
pub struct MountTableEntry {
    /// The kernel's mount id. The id of a removed mount may be used again.
    pub id: u64,
    /// The id of the mount that contains the mount point.
    pub parent: u64,
    /// Major and minor number of the device, with a colon.
    pub device: String,
    /// The directory of the file system that is mounted.
    pub root: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// The type of the file system.
    pub kind: String,
    /// The source, as the mount gave it.
    pub source: String,
    /// The file system's own options, without the options of this mount.
    pub options: String,
}

impl MountTableEntry {
    /// Returns whether this is a mount of Quell.
    pub fn is_quell(&self) -> bool {
        self.source.starts_with(SOURCE_PREFIX)
    }

    /// Returns whether both lines describe the same mount, which may have been moved in between.
    pub fn is_same(&self, other: &MountTableEntry) -> bool {
        (self.id, &self.device, &self.source) == (other.id, &other.device, &other.source)
    }
}

/// Returns the source that the mount table shows for a Quell mount of an index or of stores.
pub fn mount_source(index: &Path) -> String {
    format!("{SOURCE_PREFIX}{}", index.display())
}

/// Returns the topmost mount at exactly this path.
pub fn topmost_at(path: &Path) -> Option<MountTableEntry> {
    mount_table().ok()?.into_iter().rfind(|mount| mount.point == path)
}

/// Returns the topmost Quell mount at exactly this path, even if another mount covers it.
pub fn quell_mount_at(path: &Path) -> Option<MountTableEntry> {
    mount_table().ok()?.into_iter().rfind(|mount| mount.point == path && mount.is_quell())
}

/// Returns all mounts in the namespace of this process. Of several mounts at one path, the last one
/// covers the others.
pub fn mount_table() -> std::io::Result<Vec<MountTableEntry>> {
    Ok(parse_mount_table(&std::fs::read(MOUNT_TABLE)?))
}

/// Parses a copy of the mount table; malformed lines are skipped.
pub fn parse_mount_table(table: &[u8]) -> Vec<MountTableEntry> {
    table.split(|b| *b == b'\n').filter_map(parse).collect()
}

/// Returns the type of the file system that contains `path`.
pub fn file_system_of(path: &Path) -> Option<String> {
    let above = mount_table().ok()?.into_iter().filter(|mount| path.starts_with(&mount.point));
    // `max_by_key` returns the last of equal elements, which covers the others.
    above.max_by_key(|mount| mount.point.components().count()).map(|mount| mount.kind)
}

fn parse(line: &[u8]) -> Option<MountTableEntry> {
    use std::os::unix::ffi::OsStringExt;
    let path = |field: &[u8]| PathBuf::from(std::ffi::OsString::from_vec(unescape(field)));
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let mut fields = line.split(|b| *b == b' ');
    let id = text(fields.next()?).parse().ok()?;
    let parent = text(fields.next()?).parse().ok()?;
    let device = text(fields.next()?);
    let (root, point) = (path(fields.next()?), path(fields.next()?));
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = String::from_utf8_lossy(&unescape(rest.next()?)).into_owned();
    let options = String::from_utf8_lossy(rest.next()?).into_owned();
    Some(MountTableEntry { id, parent, device, root, point, kind, source, options })
}

/// Decodes a field: the mount table writes blanks and backslashes as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_table_line_is_read_with_its_escapes() {
        let line =
            br"36 35 98:0 /mnt1 /mnt\040two rw,noatime master:1 shared:2 - fuse.quell quell:/a\134b rw,x=1";
        let mount = parse(line).unwrap();
        assert_eq!(mount.point, Path::new("/mnt two"));
        assert_eq!((mount.id, mount.parent, mount.device.as_str()), (36, 35, "98:0"));
        assert_eq!((mount.kind.as_str(), mount.source.as_str()), ("fuse.quell", r"quell:/a\b"));
        assert_eq!((mount.root.as_path(), mount.options.as_str()), (Path::new("/mnt1"), "rw,x=1"));
        assert!(parse(b"").is_none());
    }
}
