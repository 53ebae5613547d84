//! The rules for extended attributes that file systems of the contract store.

use crate::attributes::Kind;
use crate::error::{Error, ErrorKind, Result, errno};

/// The longest name of an extended attribute, in bytes: the limit of Linux.
pub const XATTR_NAME_BYTES_MAX: usize = 255;

/// The longest value of an extended attribute, in bytes: the limit of Linux.
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;

/// The beginning of the names that programs choose.
pub const USER_XATTRS: &[u8] = b"user.";

/// Checks the name of an attribute of `kind` that is set or removed, for a file system that stores
/// only `user.` attributes: it has at most 255 bytes and no NUL, and begins with `user.`.
///
/// # Errors
///
/// `Os(ERANGE)` for a length that is not permitted; `Unsupported` for other beginnings;
/// `InvalidInput` if nothing follows `user.`, or for a NUL; `Os(EPERM)` if `kind` is neither a file
/// nor a directory (xattr(7)).
pub fn check_user_xattr(kind: Kind, name: &[u8]) -> Result<()> {
    let refused = |kind| Err(Error::new(kind, "use the extended attribute", name));
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        return refused(ErrorKind::Os(errno::ERANGE));
    }
    match name.strip_prefix(USER_XATTRS) {
        None => refused(ErrorKind::Unsupported),
        Some(rest) if rest.is_empty() || rest.contains(&0) => refused(ErrorKind::InvalidInput),
        Some(_) if !matches!(kind, Kind::File | Kind::Dir) => refused(ErrorKind::Os(errno::EPERM)),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_user_attributes_of_files_and_directories_can_be_set() {
        let checked = |kind, name: &[u8]| check_user_xattr(kind, name).err().map(|error| error.errno());
        let long = [b"user.".as_slice(), &[b'x'; 250]].concat();
        for kind in [Kind::File, Kind::Dir] {
            for good in [&b"user.a"[..], b"user.\xff", b"user.a.b", &long] {
                assert_eq!(checked(kind, good), None, "{good:?}");
            }
            assert_eq!(checked(kind, b""), Some(errno::ERANGE));
            assert_eq!(checked(kind, &[&long[..], b"x"].concat()), Some(errno::ERANGE));
            assert_eq!(checked(kind, b"user."), Some(errno::EINVAL));
            assert_eq!(checked(kind, b"user.a\0"), Some(errno::EINVAL));
            assert_eq!(checked(kind, b"system.posix_acl_access"), Some(errno::EOPNOTSUPP));
            assert_eq!(checked(kind, b"user"), Some(errno::EOPNOTSUPP));
        }
        assert_eq!(checked(Kind::Symlink, b"user.a"), Some(errno::EPERM));
    }
}
