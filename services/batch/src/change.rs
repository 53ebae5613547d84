//! A change of the attributes or the content of an inode.

use quell_vfs::{
    Error, ErrorKind, Kind, Result, SetXattr, Time, XATTR_VALUE_BYTES_MAX, check_user_xattr, errno,
};

use serde::{Deserialize, Serialize};

use crate::entry::{Content, DataFile, INLINE_BYTES_MAX, Inode, Timestamp, Xattr};

/// The largest total length of the names and values of the extended attributes of a node, in bytes.
pub const XATTRS_BYTES_MAX: usize = 128 << 10;

/// The set-id bits of `st_mode`, and the right of the group to execute the file.
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;
/// The largest size of a file on Linux, in bytes.
const SIZE_BYTES_MAX: u64 = i64::MAX as u64;

/// A change of an inode. A field that is `None` is left unchanged. Each change sets the time of
/// the last change of the attributes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InodeChange {
    /// The lower twelve bits of `st_mode`.
    pub permissions: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// Remove the set-id bits, as
    /// [`WritableFile::drop_set_id`](quell_vfs::WritableFile::drop_set_id) does.
    pub drops_set_id: bool,
    /// The time of the last change of the content. If it is `None`, a change of the data sets it.
    pub modified: Option<Timestamp>,
    /// The data of a regular file.
    pub data: Option<DataChange>,
    /// An extended attribute.
    pub xattr: Option<XattrChange>,
}

/// A change of the content or the size of a regular file. It fails with `Conflict` if the content
/// is not of the described form, because another client has changed it: the client then reads the
/// inode again. So the writes of several clients to one file are all kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataChange {
    /// The content is in the inode: first the writes, then the new size, then an append.
    Inline {
        /// Offsets and bytes, whose ends are at most [`INLINE_BYTES_MAX`].
        writes: Vec<(u64, Vec<u8>)>,
        /// The new size.
        size_bytes: Option<u64>,
        /// Bytes that are written at the end of the file, so that they end at the new size. The
        /// change fails with `Conflict` if this would be beyond [`INLINE_BYTES_MAX`].
        #[serde(with = "serde_bytes")]
        append: Vec<u8>,
    },
    /// The content is in this data file, and the file gets another size.
    File(DataFile, FileSize),
    /// The content `expected` is replaced by `new`, and the file gets another size.
    Replace {
        /// The present content.
        expected: Content,
        /// The new content.
        new: Content,
        /// The new size.
        size: FileSize,
    },
}

/// The new size of a file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileSize {
    /// Exactly this size.
    Exactly(u64),
    /// The present size, or this one if it is larger.
    GrownTo(u64),
    /// The present size and this number of bytes.
    LongerBy(u64),
}

/// A change of an extended attribute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrChange {
    /// Sets the attribute of this name to this value.
    Set(
        #[serde(with = "serde_bytes")] Vec<u8>,
        #[serde(with = "serde_bytes")] Vec<u8>,
        #[serde(with = "SetXattrMode")] SetXattr,
    ),
    /// Removes the attribute of this name.
    Remove(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// The encoding of [`SetXattr`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "SetXattr")]
enum SetXattrMode {
    Any,
    Create,
    Replace,
}

impl InodeChange {
    /// Applies the change at the time `now`.
    ///
    /// # Errors
    /// `InvalidInput` if the data of a node that is not a regular file would change, or a file
    /// would become larger than 2^63 - 1; `Conflict` as described in [`DataChange`]; the errors of
    /// [`Writable::set_xattr`](quell_vfs::Writable::set_xattr) for extended attributes. Then the
    /// inode is unchanged.
    pub fn apply(&self, inode: &mut Inode, now: Time) -> Result<()> {
        let data = match &self.data {
            None => None,
            Some(_) if inode.kind()? != Kind::File => {
                return Err(Error::new(ErrorKind::InvalidInput, "set the size of", ""));
            }
            Some(data) => Some(data.result(inode)?),
        };
        match &self.xattr {
            Some(XattrChange::Set(name, value, mode)) => set_xattr(inode, name, value, *mode)?,
            Some(XattrChange::Remove(name)) => remove_xattr(inode, name)?,
            None => {}
        }
        if let Some(permissions) = self.permissions {
            inode.mode = inode.mode & !0o7777 | permissions & 0o7777;
        }
        if self.drops_set_id {
            let group = if inode.mode & GROUP_EXECUTE != 0 { SET_GROUP_ID } else { 0 };
            inode.mode &= !(SET_USER_ID | group);
        }
        inode.uid = self.uid.unwrap_or(inode.uid);
        inode.gid = self.gid.unwrap_or(inode.gid);
        inode.changed = now.into();
        if let Some((content, size_bytes)) = data {
            inode.modified = now.into();
            inode.size_bytes = size_bytes;
            if let Some(content) = content {
                inode.content = content;
            }
        }
        inode.modified = self.modified.unwrap_or(inode.modified);
        Ok(())
    }
}

impl DataChange {
    /// Returns the new content of an inode, or `None` if the content does not change, and the new
    /// size.
    fn result(&self, inode: &Inode) -> Result<(Option<Content>, u64)> {
        match self {
            DataChange::Inline { writes, size_bytes, append } => {
                let (bytes, size_bytes) = written(inode, writes, *size_bytes, append)?;
                let content = if bytes.is_empty() { Content::Empty } else { Content::Inline(bytes) };
                Ok((Some(content), size_bytes))
            }
            DataChange::File(file, size) if inode.content == Content::File(*file) => {
                Ok((None, size.of(inode.size_bytes)?))
            }
            DataChange::Replace { expected, new, size } if inode.content == *expected => {
                match new {
                    Content::Empty | Content::File(_) => {}
                    Content::Inline(bytes) if bytes.len() <= INLINE_BYTES_MAX => {}
                    _ => return Err(Error::new(ErrorKind::InvalidInput, "replace the content of", "")),
                }
                Ok((Some(new.clone()), size.of(inode.size_bytes)?))
            }
            _ => Err(conflict()),
        }
    }
}

impl FileSize {
    fn of(self, present: u64) -> Result<u64> {
        let size_bytes = match self {
            FileSize::Exactly(size_bytes) => Some(size_bytes),
            FileSize::GrownTo(size_bytes) => Some(size_bytes.max(present)),
            FileSize::LongerBy(bytes) => present.checked_add(bytes),
        };
        let size_bytes = size_bytes.filter(|size_bytes| *size_bytes <= SIZE_BYTES_MAX);
        size_bytes.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "set the size of", ""))
    }
}

/// Returns the content in the inode and the size after writes, a new size and an append.
fn written(
    inode: &Inode,
    writes: &[(u64, Vec<u8>)],
    size_bytes: Option<u64>,
    append: &[u8],
) -> Result<(Vec<u8>, u64)> {
    let mut bytes = match &inode.content {
        Content::Empty => Vec::new(),
        Content::Inline(bytes) => bytes.clone(),
        Content::Hidden => return Err(Error::new(ErrorKind::PermissionDenied, "write to", "hidden bytes")),
        _ => return Err(conflict()),
    };
    let mut size = inode.size_bytes;
    for (offset, data) in writes {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= INLINE_BYTES_MAX as u64);
        let end = end.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "write", ""))?;
        put(&mut bytes, *offset as usize, data);
        size = size.max(end);
    }
    if let Some(size_bytes) = size_bytes {
        size = FileSize::Exactly(size_bytes).of(size)?;
        bytes.truncate(usize::try_from(size_bytes).unwrap_or(usize::MAX));
    }
    if !append.is_empty() {
        let end = FileSize::LongerBy(append.len() as u64).of(size)?;
        if end > INLINE_BYTES_MAX as u64 {
            return Err(conflict());
        }
        put(&mut bytes, size as usize, append);
        size = end;
    }
    Ok((bytes, size))
}

fn put(bytes: &mut Vec<u8>, offset: usize, data: &[u8]) {
    let end = offset + data.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(data);
}

fn conflict() -> Error {
    Error::new(ErrorKind::Conflict, "change the content of", "")
}

fn set_xattr(inode: &mut Inode, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
    let refused = |kind| Err(Error::new(kind, "set an extended attribute", name));
    check_user_xattr(inode.kind()?, name)?;
    let place = inode.xattrs.binary_search_by(|xattr| (*xattr.name).cmp(name));
    match (place, mode) {
        (Ok(_), SetXattr::Create) => return refused(ErrorKind::Exists),
        (Err(_), SetXattr::Replace) => return refused(ErrorKind::Os(errno::ENODATA)),
        _ => {}
    }
    if value.len() > XATTR_VALUE_BYTES_MAX {
        return refused(ErrorKind::Os(errno::E2BIG));
    }
    let others = inode.xattrs.iter().filter(|xattr| xattr.name != name);
    let others_bytes: usize = others.map(|xattr| xattr.name.len() + xattr.value.len()).sum();
    if others_bytes + name.len() + value.len() > XATTRS_BYTES_MAX {
        return refused(ErrorKind::NoSpace);
    }
    match place {
        Ok(index) => inode.xattrs[index].value = value.to_vec(),
        Err(index) => inode.xattrs.insert(index, Xattr { name: name.to_vec(), value: value.to_vec() }),
    }
    Ok(())
}

fn remove_xattr(inode: &mut Inode, name: &[u8]) -> Result<()> {
    check_user_xattr(inode.kind()?, name)?;
    let Ok(index) = inode.xattrs.binary_search_by(|xattr| (*xattr.name).cmp(name)) else {
        return Err(Error::new(ErrorKind::Os(errno::ENODATA), "remove an extended attribute", name));
    };
    inode.xattrs.remove(index);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::ROOT;

    const NOW: Time = Time { seconds: 5, nanoseconds: 6 };
    const FILE: DataFile = DataFile { batch: 3, inode: 9, version: 0 };

    fn file() -> Inode {
        let (mode, changed) = (Kind::File.mode_bits() | 0o6755, Timestamp(0, 0));
        Inode {
            number: ROOT + 2,
            mode,
            uid: 1,
            gid: 2,
            links: 1,
            size_bytes: 0,
            modified: changed,
            changed,
            content: Content::Empty,
            xattrs: Vec::new(),
        }
    }

    fn change(inode: &mut Inode, data: DataChange) -> Result<(), ErrorKind> {
        let before = inode.clone();
        let change = InodeChange { data: Some(data), ..InodeChange::default() };
        let changed = change.apply(inode, NOW).map_err(|error| error.kind);
        assert!(changed.is_ok() || *inode == before, "a change that failed");
        changed
    }

    fn inline(writes: &[(u64, &[u8])], size_bytes: Option<u64>, append: &[u8]) -> DataChange {
        let writes = writes.iter().map(|(offset, bytes)| (*offset, bytes.to_vec())).collect();
        DataChange::Inline { writes, size_bytes, append: append.to_vec() }
    }

    #[test]
    fn bytes_in_the_inode_are_written_truncated_and_appended() {
        let mut inode = file();
        change(&mut inode, inline(&[(4, b"four"), (1, b"1")], None, b"!")).unwrap();
        assert_eq!((&inode.content, inode.size_bytes), (&Content::Inline(b"\x001\0\0four!".to_vec()), 9));
        assert_eq!(inode.modified, NOW.into());
        // Bytes that were removed are zeros if the file grows again.
        change(&mut inode, inline(&[(0, b"0")], Some(5), b"")).unwrap();
        change(&mut inode, inline(&[], Some(7), b"end")).unwrap();
        assert_eq!((&inode.content, inode.size_bytes), (&Content::Inline(b"01\0\0f\0\0end".to_vec()), 10));
        let limit = INLINE_BYTES_MAX as u64;
        assert_eq!(change(&mut inode, inline(&[(limit, b"x")], None, b"")), Err(ErrorKind::InvalidInput));
        assert_eq!(change(&mut inode, inline(&[(u64::MAX, b"x")], None, b"")), Err(ErrorKind::InvalidInput));
        assert_eq!(change(&mut inode, inline(&[], Some(limit), b"x")), Err(ErrorKind::Conflict));
        assert_eq!(change(&mut inode, inline(&[], Some(1 << 63), b"")), Err(ErrorKind::InvalidInput));
        change(&mut inode, inline(&[], Some(i64::MAX as u64), b"")).unwrap();
        assert_eq!(change(&mut inode, inline(&[], None, b"x")), Err(ErrorKind::InvalidInput));
        change(&mut inode, inline(&[(limit - 1, b"x")], Some(0), b"")).unwrap();
        assert_eq!((inode.content, inode.size_bytes), (Content::Empty, 0));
    }

    #[test]
    fn content_is_replaced_only_if_it_is_the_expected_one() {
        let mut inode = file();
        change(&mut inode, inline(&[], None, b"bytes")).unwrap();
        let replace = |expected: &[u8]| DataChange::Replace {
            expected: Content::Inline(expected.to_vec()),
            new: Content::File(FILE),
            size: FileSize::GrownTo(3),
        };
        assert_eq!(change(&mut inode, replace(b"other")), Err(ErrorKind::Conflict));
        assert_eq!(
            change(&mut inode, DataChange::File(FILE, FileSize::Exactly(1))),
            Err(ErrorKind::Conflict)
        );
        change(&mut inode, replace(b"bytes")).unwrap();
        assert_eq!((&inode.content, inode.size_bytes), (&Content::File(FILE), 5));
        assert_eq!(change(&mut inode, inline(&[(0, b"b")], None, b"")), Err(ErrorKind::Conflict));
        let other = DataFile { version: 1, ..FILE };
        assert_eq!(
            change(&mut inode, DataChange::File(other, FileSize::Exactly(1))),
            Err(ErrorKind::Conflict)
        );
        for (size, expected) in
            [(FileSize::LongerBy(7), 12), (FileSize::GrownTo(9), 12), (FileSize::Exactly(2), 2)]
        {
            change(&mut inode, DataChange::File(FILE, size)).unwrap();
            assert_eq!(inode.size_bytes, expected);
        }
        let overflow = DataChange::File(FILE, FileSize::LongerBy(u64::MAX));
        assert_eq!(change(&mut inode, overflow), Err(ErrorKind::InvalidInput));
    }

    #[test]
    fn set_id_bits_are_removed_from_files_that_their_group_may_execute() {
        for (before, after) in [(0o6755, 0o755), (0o4700, 0o700), (0o2745, 0o2745), (0o644, 0o644)] {
            let mut inode = file();
            let change = InodeChange { permissions: Some(before), drops_set_id: true, ..Default::default() };
            change.apply(&mut inode, NOW).unwrap();
            assert_eq!(inode.mode & 0o7777, after, "{before:o}");
        }
    }
}
