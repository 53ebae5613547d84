//! Extended attributes. All extended attributes of a node are in one record, beside the record of
//! the node. So each change is one write, and a node without extended attributes needs no space.

use std::borrow::Cow;
use std::collections::BTreeMap;

use quell_kv::Batch;
use quell_vfs::{Error, ErrorKind, Result, XATTR_VALUE_BYTES_MAX, check_user_xattr, errno};
use quell_wire::pool::{FileId, Reply, XATTR_NAMES_BYTES_MAX, XATTRS_BYTES_MAX, XattrMode};

use crate::inode::{Inode, from_bytes, to_bytes};
use crate::keys;
use crate::member::Member;
use crate::results::Performed;
use crate::sessions::Origin;

/// The record of the attributes of a node: values by names.
type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

impl Member {
    /// Returns the value of an attribute.
    pub(crate) fn xattr(&self, id: FileId, name: &[u8]) -> Result<Reply<'static>> {
        let value = self.xattrs(id, &self.inode(id)?)?.remove(name);
        Ok(Reply::Value(value.map(Cow::Owned)))
    }

    /// Returns the names of all attributes.
    pub(crate) fn xattr_names(&self, id: FileId) -> Result<Reply<'static>> {
        let mut names = Vec::new();
        for name in self.xattrs(id, &self.inode(id)?)?.into_keys() {
            names.extend(name);
            names.push(0);
        }
        Ok(Reply::Bytes(Cow::Owned(names)))
    }

    pub(crate) fn set_xattr(
        &self,
        origin: Origin,
        id: FileId,
        (name, value): (&[u8], &[u8]),
        mode: XattrMode,
    ) -> Result<Reply<'static>> {
        let refused = |kind| Err(Error::new(kind, "set the extended attribute", name));
        let inode = self.inode(id)?;
        check_user_xattr(inode.kind.into(), name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return refused(ErrorKind::Os(errno::E2BIG));
        }
        let mut xattrs = self.xattrs(id, &inode)?;
        match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return refused(ErrorKind::Exists),
            (XattrMode::Replace, false) => return refused(ErrorKind::Os(errno::ENODATA)),
            _ => {}
        }
        xattrs.insert(name.to_vec(), value.to_vec());
        let names_bytes: usize = xattrs.keys().map(|name| name.len() + 1).sum();
        let bytes: usize = xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        if names_bytes > XATTR_NAMES_BYTES_MAX || bytes > XATTRS_BYTES_MAX {
            return refused(ErrorKind::NoSpace);
        }
        self.put_xattrs(origin, id, inode, &xattrs)
    }

    pub(crate) fn remove_xattr(&self, origin: Origin, id: FileId, name: &[u8]) -> Result<Reply<'static>> {
        let inode = self.inode(id)?;
        check_user_xattr(inode.kind.into(), name)?;
        let mut xattrs = self.xattrs(id, &inode)?;
        if xattrs.remove(name).is_none() {
            return Err(Error::new(ErrorKind::Os(errno::ENODATA), "remove the extended attribute", name));
        }
        self.put_xattrs(origin, id, inode, &xattrs)
    }

    fn xattrs(&self, id: FileId, inode: &Inode) -> Result<Xattrs> {
        if !inode.has_xattrs {
            return Ok(Xattrs::new());
        }
        match self.environment.store.get(&keys::xattrs(id))? {
            Some(bytes) => from_bytes(&bytes, "set of extended attributes"),
            None => Err(Error::new(ErrorKind::Damaged, "find the extended attributes", id.0.to_string())),
        }
    }

    fn put_xattrs(
        &self,
        origin: Origin,
        id: FileId,
        mut inode: Inode,
        xattrs: &Xattrs,
    ) -> Result<Reply<'static>> {
        let mut batch = Batch::new();
        match xattrs.is_empty() {
            true => delete_xattrs(id, &inode, &mut batch),
            false => batch.put(&keys::xattrs(id), &to_bytes(xattrs)),
        }
        inode.has_xattrs = !xattrs.is_empty();
        inode.changed = self.now().max(inode.changed);
        batch.put(&keys::inode(id), &to_bytes(&inode));
        self.put_result(origin, Performed::All, &mut batch);
        self.environment.store.commit(batch)?;
        Ok(Reply::Done)
    }
}

/// Adds the removal of the attributes of a node to a batch.
pub(crate) fn delete_xattrs(id: FileId, inode: &Inode, batch: &mut Batch) {
    if inode.has_xattrs {
        batch.delete(&keys::xattrs(id));
    }
}
