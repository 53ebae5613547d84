//! The rules for names in a directory.

use crate::error::{Error, ErrorKind, Result};

/// The limit of Linux for one name.
pub const NAME_BYTES_MAX: usize = 255;

/// Checks that a name has 1 to 255 bytes, contains neither `/` nor NUL, and is neither `.` nor
/// `..`. Errors: `NameTooLong`, `InvalidInput`.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::new(ErrorKind::NameTooLong, "name", name));
    }
    let bad = name.is_empty() || name == b"." || name == b".." || name.iter().any(|b| matches!(b, b'/' | 0));
    if bad {
        return Err(Error::new(ErrorKind::InvalidInput, "name", name));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_to_255_bytes_without_slash_or_nul() {
        for good in [&b"a"[..], b"...", b"\xff\xfe", b"with\nnewline", &[b'x'; 255]] {
            assert!(check_name(good).is_ok(), "{good:?}");
        }
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
