//! The descriptions of the keys with which users of a store for a group connect to its server over
//! TCP. docs/formats/batch-protocol.md describes them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The first bytes of a description.
const TAG: [u8; 4] = *b"user";
const DESCRIPTION_BYTES: usize = 16;
/// The time of expiry of a key that does not expire.
const NEVER: u64 = u64::MAX;
const ROOT: u32 = 0;
/// The id that the kernel shows for users that the user namespace does not map.
const UNMAPPED: u32 = 65_534;

/// The description of a key: the user whose requests it allows, until a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserKey {
    /// The user: not root, nor the id that the kernel shows for unknown users.
    pub uid: u32,
    /// The time from which the key is refused, in seconds since 1970 (UTC); `None` if it does not
    /// expire.
    pub expires_s: Option<u64>,
}

impl UserKey {
    /// Returns the bytes from which the key is derived.
    pub fn encode(&self) -> [u8; DESCRIPTION_BYTES] {
        let mut bytes = [0; DESCRIPTION_BYTES];
        bytes[..4].copy_from_slice(&TAG);
        bytes[4..8].copy_from_slice(&self.uid.to_le_bytes());
        bytes[8..].copy_from_slice(&self.expires_s.unwrap_or(NEVER).to_le_bytes());
        bytes
    }

    /// Returns the description with these bytes. `None` if they are not those of a description.
    pub fn decode(bytes: &[u8]) -> Option<UserKey> {
        let bytes: &[u8; DESCRIPTION_BYTES] = bytes.strip_prefix(&TAG).and(bytes.try_into().ok())?;
        let uid = u32::from_le_bytes(*bytes[4..].first_chunk()?);
        let expires_s = u64::from_le_bytes(*bytes.last_chunk()?);
        let is_user = uid != ROOT && uid != UNMAPPED;
        is_user.then_some(UserKey { uid, expires_s: Some(expires_s).filter(|time| *time != NEVER) })
    }

    /// Returns whether the key has expired at a time.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        let elapsed = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.expires_s.is_some_and(|expires_s| elapsed >= Duration::from_secs(expires_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_format_is_encoded() {
        let key = UserKey { uid: 1000, expires_s: Some(1_800_000_000) };
        assert_eq!(key.encode(), *b"user\xe8\x03\0\0\0\xd2\x49\x6b\0\0\0\0");
    }

    #[test]
    fn a_description_is_decoded_from_its_own_bytes_only() {
        for expires_s in [None, Some(0), Some(NEVER - 1)] {
            let key = UserKey { uid: 1000, expires_s };
            assert_eq!(UserKey::decode(&key.encode()), Some(key));
        }
        let bytes = UserKey { uid: 1000, expires_s: Some(5) }.encode();
        assert_eq!(UserKey::decode(b""), None);
        assert_eq!(UserKey::decode(&bytes[..15]), None);
        assert_eq!(UserKey::decode(&[&bytes[..], &[0]].concat()), None);
        assert_eq!(UserKey::decode(&[b"User", &bytes[4..]].concat()), None);
        for uid in [ROOT, UNMAPPED] {
            assert_eq!(UserKey::decode(&UserKey { uid, expires_s: None }.encode()), None);
        }
    }

    #[test]
    fn a_key_expires_at_its_time() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let key = UserKey { uid: 1000, expires_s: Some(5) };
        assert!(!key.has_expired(at(4)) && key.has_expired(at(5)) && key.has_expired(at(6)));
        assert!(!UserKey { expires_s: None, ..key }.has_expired(at(u64::from(u32::MAX))));
    }
}
