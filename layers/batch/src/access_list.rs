//! The access control lists of files in a private store: a list has the users other than the
//! owner that can read the file. docs/formats/batch.md describes the lists.
//!
//! A list is set through the descriptor of a file that was created with the mode 0600, so no other
//! user can open the file before it has its list. The kernel's form of a list is described in
//! `include/uapi/linux/posix_acl_xattr.h`: a version, and entries in the order of their tags and
//! ids, all numbers in little endian.

use std::collections::BTreeSet;

use quell_batch_service::Inode;
use quell_posix::{OpenFile, WritableDir, WritableFile};
use quell_vfs::{Error, ErrorKind, Result};
use rustix::fs::{XattrFlags, fsetxattr};
use rustix::io::Errno;

const NAME: &str = "system.posix_acl_access";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The id of an entry that names no user and no group.
const NO_ID: u32 = u32::MAX;
const READ: u16 = 4;
const READ_WRITE: u16 = 6;
const NONE: u16 = 0;

/// The tags of entries, in the order of a list.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The mode of a new file before it has its list.
pub(crate) const PRIVATE: u32 = 0o600;
/// The read permissions of `st_mode`.
const OWNER_READS: u32 = 0o400;
const GROUP_READS: u32 = 0o040;
const OTHERS_READ: u32 = 0o004;
/// The file with which a new store is checked for support of access control lists.
const PROBE: &[u8] = b"access-list.new";

/// The users that can read a file of a private store, besides its owner and the owner of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Readers {
    /// All members of the group of the store, so all users of the store. Then `users` and `groups`
    /// are empty.
    is_store_group: bool,
    users: BTreeSet<u32>,
    groups: BTreeSet<u32>,
}

impl Readers {
    fn store_group() -> Readers {
        Readers { is_store_group: true, ..Readers::default() }
    }

    /// Returns whether these readers are certainly among those of `other`.
    pub(crate) fn is_subset(&self, other: &Readers) -> bool {
        let names_less = self.users.is_subset(&other.users) && self.groups.is_subset(&other.groups);
        other.is_store_group || !self.is_store_group && names_less
    }

    /// Returns the readers that both values certainly have. It leaves out users of one value that
    /// are members of a group of the other value.
    pub(crate) fn intersection(&self, other: &Readers) -> Readers {
        match (self.is_store_group, other.is_store_group) {
            (true, _) => other.clone(),
            (false, true) => self.clone(),
            (false, false) => Readers {
                is_store_group: false,
                users: self.users.intersection(&other.users).copied().collect(),
                groups: self.groups.intersection(&other.groups).copied().collect(),
            },
        }
    }
}

/// The ids on which the lists of a private store depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PrivateStore {
    pub(crate) owner: u32,
    pub(crate) gid: u32,
}

impl PrivateStore {
    /// Returns the users that may read a regular file with this inode, if its data file belongs to
    /// `file_owner`. No list can deny access to the members of a group and grant it to others, so a
    /// mode with this meaning permits only the owner.
    pub(crate) fn readers(self, inode: &Inode, file_owner: u32) -> Readers {
        let mut readers = Readers::default();
        if inode.mode & GROUP_READS != 0 {
            if inode.mode & OTHERS_READ != 0 || inode.gid == self.gid {
                return Readers::store_group();
            }
            readers.groups.insert(inode.gid);
        }
        if inode.mode & OWNER_READS != 0 && inode.uid != file_owner && inode.uid != self.owner {
            readers.users.insert(inode.uid);
        }
        readers
    }

    /// Returns the list of a file of `file_owner`.
    pub(crate) fn list(self, readers: &Readers, file_owner: u32) -> Vec<u8> {
        let mut users = readers.users.clone();
        users.insert(self.owner);
        users.remove(&file_owner);
        let mut list = VERSION.to_le_bytes().to_vec();
        let mut add = |tag: u16, permissions: u16, id: u32| {
            list.extend(tag.to_le_bytes());
            list.extend(permissions.to_le_bytes());
            list.extend(id.to_le_bytes());
        };
        add(OWNER, READ_WRITE, NO_ID);
        users.iter().for_each(|uid| add(USER, READ, *uid));
        add(OWNING_GROUP, if readers.is_store_group { READ } else { NONE }, NO_ID);
        readers.groups.iter().for_each(|gid| add(GROUP, READ, *gid));
        // A list that names no user and no group is the mode of the file, and has no mask.
        if !users.is_empty() || !readers.groups.is_empty() {
            add(MASK, READ, NO_ID);
        }
        add(OTHER, NONE, NO_ID);
        list
    }

    /// Returns the readers of a file of `file_owner` with this list, or with this mode if it has no
    /// list. `None` if another program has changed the list or the mode, so that they have another
    /// form.
    fn readers_in(self, list: Option<&[u8]>, mode: u32, file_owner: u32) -> Option<Readers> {
        let Some(list) = list else {
            return match mode & 0o777 {
                0o600 => Some(Readers::default()),
                0o640 => Some(Readers::store_group()),
                _ => None,
            };
        };
        let mut readers = Readers::default();
        for entry in list.get(HEADER_BYTES..)?.chunks_exact(ENTRY_BYTES) {
            let number = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            match number(0) {
                USER if id != self.owner => _ = readers.users.insert(id),
                GROUP => _ = readers.groups.insert(id),
                OWNING_GROUP => readers.is_store_group = number(2) == READ,
                _ => {}
            }
        }
        // These readers must have exactly this list.
        (self.list(&readers, file_owner) == list).then_some(readers)
    }

    /// Reads the users that can read an open file of `file_owner`. `None` if another program has
    /// changed its access.
    ///
    /// # Errors
    /// The errors of fstat(2) and fgetxattr(2).
    pub(crate) fn readers_of(self, file: &dyn OpenFile, file_owner: u32) -> Result<Option<Readers>> {
        Ok(self.readers_in(file.acl()?.as_deref(), file.stat()?.mode, file_owner))
    }
}

/// The access of other users to a new file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileAccess {
    /// The mode of the file.
    Mode(u32),
    /// An access control list.
    List(Vec<u8>),
}

impl FileAccess {
    /// Creates a file. If its access cannot be set, it is removed.
    ///
    /// # Errors
    /// `Exists`; the errors of files.
    pub(crate) fn create(&self, dir: &dyn WritableDir, name: &[u8]) -> Result<Box<dyn WritableFile>> {
        match self {
            FileAccess::Mode(permissions) => dir.create_file(name, *permissions),
            FileAccess::List(list) => {
                let file = dir.create_file(name, PRIVATE)?;
                match set_list(&*file, list) {
                    Ok(()) => Ok(file),
                    Err(error) => dir.remove(name).and(Err(error)),
                }
            }
        }
    }
}

/// Sets the access control list of an open file.
///
/// # Errors
/// `Unsupported` if the file system has no such lists; the errors of fsetxattr(2).
pub(crate) fn set_list(file: &dyn OpenFile, list: &[u8]) -> Result<()> {
    const OPERATION: &str = "set the access control list of";
    let descriptor = file.descriptor();
    let descriptor = descriptor.ok_or_else(|| Error::new(ErrorKind::Unsupported, OPERATION, "a file"))?;
    fsetxattr(descriptor, NAME, list, XattrFlags::empty()).map_err(|error| match error {
        Errno::OPNOTSUPP => Error::new(ErrorKind::Unsupported, OPERATION, "a file"),
        error => Error::from_io(error.into(), OPERATION, "a file"),
    })
}

/// Checks that the file system of a directory has access control lists, with a file that is removed
/// again.
///
/// # Errors
/// `Unsupported` if it has none; the errors of files.
pub(crate) fn check_support(dir: &dyn WritableDir, store: PrivateStore, subject: &[u8]) -> Result<()> {
    let file = dir.create_file(PROBE, PRIVATE)?;
    // Without a named user, the kernel would store the list as the mode.
    let readers = Readers { users: [store.owner.wrapping_add(1)].into(), ..Readers::default() };
    let set = set_list(&*file, &store.list(&readers, store.owner));
    let mode = file.stat().map(|found| found.mode);
    dir.remove(PROBE)?;
    let is_supported = match set {
        // Some file systems store a list, but do not use it. Then the mode does not have its mask.
        Ok(()) => mode? & GROUP_READS != 0,
        Err(error) if error.kind == ErrorKind::Unsupported => false,
        Err(error) => return Err(error),
    };
    if is_supported {
        return Ok(());
    }
    let source = "the file system has no POSIX access control lists, which a private store needs";
    let error = Error::new(ErrorKind::Unsupported, "create the store", subject);
    Err(Error { source: Some(source.into()), ..error })
}

#[cfg(test)]
#[path = "access_list_test.rs"]
mod tests;
