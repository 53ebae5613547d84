//! The description of a key that gives some rights for a store. The secret of the key is derived
//! from these bytes and the key of the store, so a client cannot change them.
//! docs/formats/blob-protocol.md describes them.

use std::fmt;

use quell_vfs::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::operation::NAME_BYTES_MAX;
use crate::bounded::at_most;
use crate::{decode, encode};

/// The largest number of grants of a key.
pub const GRANTS_MAX: usize = 16;
/// The largest description of a key, in bytes.
const KEY_DESCRIPTION_BYTES_MAX: usize = 4096;

/// A right for the blobs whose names begin with a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Right {
    /// Reading bytes and attributes, and listing names.
    Read,
    /// All changes. A result that depends on the bytes of a blob needs the right to read also.
    Write,
}

/// A right for the blobs whose names begin with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The right.
    pub right: Right,
    /// The beginning of the names, at most [`NAME_BYTES_MAX`] bytes; empty for all names.
    #[serde(with = "serde_bytes")]
    pub prefix: Vec<u8>,
}

/// The rights of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// All rights.
    Admin,
    /// The rights of the grants.
    Grants(#[serde(deserialize_with = "at_most::<GRANTS_MAX, _, _>")] Vec<Grant>),
}

/// The description of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyDescription {
    /// The rights.
    pub access: Access,
    /// The time from which the key has no rights, in seconds since 1970 (UTC); `None` if the key
    /// does not expire.
    pub expires_s: Option<u64>,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Right::Read => "read",
            Right::Write => "write",
        })
    }
}

impl KeyDescription {
    /// Returns the bytes of the description.
    ///
    /// # Errors
    /// `InvalidInput` if it has more than [`GRANTS_MAX`] grants, a prefix of more than
    /// [`NAME_BYTES_MAX`] bytes, or more than [`KEY_DESCRIPTION_BYTES_MAX`] bytes in all.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let encoded = encode(self);
        match self.reason_against(&encoded) {
            Some(reason) => Err(invalid(reason)),
            None => Ok(encoded),
        }
    }

    /// Returns the description with these bytes.
    ///
    /// # Errors
    /// `Damaged` or `InvalidInput` if the bytes are not a valid description.
    pub fn decode(bytes: &[u8]) -> Result<KeyDescription> {
        let description: KeyDescription = decode(bytes)?;
        match description.reason_against(bytes) {
            Some(reason) => Err(invalid(reason)),
            None => Ok(description),
        }
    }

    /// Returns the limit that the description exceeds, if there is one.
    fn reason_against(&self, encoded: &[u8]) -> Option<&'static str> {
        let grants = match &self.access {
            Access::Admin => &[][..],
            Access::Grants(grants) => grants,
        };
        let is_wrong = [
            (grants.len() > GRANTS_MAX, "a key has at most 16 grants"),
            (
                grants.iter().any(|grant| grant.prefix.len() > NAME_BYTES_MAX),
                "a prefix has at most 1,024 bytes",
            ),
            (encoded.len() > KEY_DESCRIPTION_BYTES_MAX, "all prefixes together have more than 4,096 bytes"),
        ];
        is_wrong.into_iter().find_map(|(is_wrong, reason)| is_wrong.then_some(reason))
    }
}

fn invalid(reason: &'static str) -> Error {
    let error = Error::new(ErrorKind::InvalidInput, "describe", "a key");
    Error { source: Some(reason.into()), ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(count: usize, prefix_bytes: usize) -> KeyDescription {
        let grant = Grant { right: Right::Write, prefix: vec![b'a'; prefix_bytes] };
        KeyDescription { access: Access::Grants(vec![grant; count]), expires_s: None }
    }

    #[test]
    fn a_description_is_encoded_within_its_limits_only() {
        let admin = KeyDescription { access: Access::Admin, expires_s: Some(1_800_000_000) };
        for description in [admin, grants(0, 0), grants(16, 200), grants(3, 1024)] {
            let encoded = description.encode().unwrap();
            assert_eq!(KeyDescription::decode(&encoded).unwrap(), description);
        }
        for description in [grants(17, 0), grants(1, 1025), grants(4, 1024)] {
            assert_eq!(description.encode().unwrap_err().kind, ErrorKind::InvalidInput);
            KeyDescription::decode(&encode(&description)).unwrap_err();
        }
    }

    #[test]
    fn the_example_of_the_format_is_encoded() {
        let grants = vec![
            Grant { right: Right::Read, prefix: b"a/".to_vec() },
            Grant { right: Right::Write, prefix: b"a/b".to_vec() },
        ];
        let description = KeyDescription { access: Access::Grants(grants), expires_s: Some(300) };
        let expected = [1, 2, 0, 2, b'a', b'/', 1, 3, b'a', b'/', b'b', 1, 0xac, 2];
        assert_eq!(description.encode().unwrap(), expected);
    }

    #[test]
    fn bytes_that_are_no_description_are_refused() {
        // No bytes, an unknown kind of access, 2^60 grants, bytes after the end.
        for bytes in
            [&[][..], &[2, 0], &[1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10], &[0, 0, 0]]
        {
            KeyDescription::decode(bytes).unwrap_err();
        }
    }
}
