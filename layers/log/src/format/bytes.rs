//! Encodes and decodes the numbers of the on-disk formats: fixed-size little endian, varint
//! (LEB128) and zigzag.

use crate::format::damage::LogDamage;

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_zigzag(out: &mut Vec<u8>, value: i64) {
    put_varint(out, (value << 1 ^ value >> 63) as u64);
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// A decoder that takes values from the front of a byte slice. Every read is bounds-checked.
#[derive(Debug)]
pub(crate) struct Bytes<'a> {
    rest: &'a [u8],
    total: usize,
    object: &'static str,
}

impl<'a> Bytes<'a> {
    pub(crate) fn new(bytes: &'a [u8], object: &'static str) -> Bytes<'a> {
        Bytes { rest: bytes, total: bytes.len(), object }
    }

    /// Returns an error for damage at the current position.
    pub(crate) fn damage(&self, reason: &'static str) -> LogDamage {
        LogDamage { object: self.object, offset: (self.total - self.rest.len()) as u64, reason }
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], LogDamage> {
        match self.rest.split_at_checked(length) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(self.damage("it ends too early")),
        }
    }

    pub(crate) fn u64(&mut self) -> Result<u64, LogDamage> {
        Ok(u64_at(self.take(8)?, 0))
    }

    pub(crate) fn varint(&mut self) -> Result<u64, LogDamage> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.take(1)?[0];
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.damage("a number is too large"))
    }

    pub(crate) fn zigzag(&mut self) -> Result<i64, LogDamage> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            put_zigzag(&mut out, value as i64);
            let mut bytes = Bytes::new(&out, "test");
            assert_eq!(bytes.varint().unwrap(), value);
            assert_eq!(bytes.zigzag().unwrap(), value as i64);
            assert!(bytes.is_empty());
        }
    }

    #[test]
    fn truncated_or_too_large_numbers_are_refused() {
        for bad in [&[][..], &[0x80], &[0xFF; 10], &[0xFF; 20]] {
            assert!(Bytes::new(bad, "test").varint().is_err(), "{bad:?}");
        }
    }
}
