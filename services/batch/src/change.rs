//! A change of the attributes or the content of an inode.

use quell_vfs::{
    Error, ErrorKind, Kind, Result, SetXattr, Time, XATTR_VALUE_BYTES_MAX, check_user_xattr, errno,
};

use crate::entry::{Content, Inode, Timestamp, Xattr};

/// The largest total length of the names and values of the extended attributes of a node, in bytes.
const XATTRS_BYTES_MAX: usize = 128 << 10;

/// A change of an inode. A field that is `None` is left unchanged. Each change sets the time of
/// the last change of the attributes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InodeChange {
    /// The lower twelve bits of `st_mode`.
    pub permissions: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The time of the last change of the content.
    pub modified: Option<Timestamp>,
    /// The content of a regular file and its size in bytes.
    pub content: Option<(Content, u64)>,
    /// An extended attribute.
    pub xattr: Option<XattrChange>,
}

/// A change of an extended attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XattrChange {
    /// Sets the attribute of this name to this value.
    Set(Vec<u8>, Vec<u8>, SetXattr),
    /// Removes the attribute of this name.
    Remove(Vec<u8>),
}

impl InodeChange {
    /// Applies the change at the time `now`.
    ///
    /// # Errors
    /// `InvalidInput` if the content of another node than a regular file would change; those of
    /// [`Writable::set_xattr`](quell_vfs::Writable::set_xattr) for extended attributes. Then the
    /// inode is unchanged.
    pub fn apply(&self, inode: &mut Inode, now: Time) -> Result<()> {
        if self.content.is_some() && inode.kind()? != Kind::File {
            return Err(Error::new(ErrorKind::InvalidInput, "set the size of", ""));
        }
        match &self.xattr {
            Some(XattrChange::Set(name, value, mode)) => set_xattr(inode, name, value, *mode)?,
            Some(XattrChange::Remove(name)) => remove_xattr(inode, name)?,
            None => {}
        }
        if let Some(permissions) = self.permissions {
            inode.mode = inode.mode & !0o7777 | permissions & 0o7777;
        }
        inode.uid = self.uid.unwrap_or(inode.uid);
        inode.gid = self.gid.unwrap_or(inode.gid);
        inode.modified = self.modified.unwrap_or(inode.modified);
        inode.changed = now.into();
        if let Some((content, size_bytes)) = &self.content {
            (inode.content, inode.size_bytes) = (content.clone(), *size_bytes);
        }
        Ok(())
    }
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
