//! Reads fixed fields from bytes that may be damaged.

/// The bytes that are not yet decoded.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    /// Returns the next bytes, or `None` if there are fewer.
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Returns the checksum of the concatenation of two parts.
pub(crate) fn checksum(first: &[u8], second: &[u8]) -> u64 {
    if second.is_empty() {
        return xxhash_rust::xxh3::xxh3_64(first);
    }
    let mut state = xxhash_rust::xxh3::Xxh3::new();
    state.update(first);
    state.update(second);
    state.digest()
}

/// A fault of the bytes of an object, and its offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The offset in the object, in bytes.
    pub(crate) offset: u64,
    pub(crate) reason: &'static str,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "offset {}: {}", self.offset, self.reason)
    }
}
