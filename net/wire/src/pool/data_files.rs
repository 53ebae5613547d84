//! The local files in which a member keeps the chunks of a file. docs/formats/pool.md has the
//! rules.

use std::num::NonZeroU64;

use super::entry::FileId;

/// The largest number of local files that a member has for the chunks of one file.
pub const DATA_FILES_MAX: usize = 8;

/// The permissions of the first local file as long as it is the only one.
pub const ONLY_DATA_FILE: u32 = 0o600;

/// The permissions of the first local file if there may be others.
pub const FIRST_DATA_FILE: u32 = 0o700;

/// The number of consecutive bytes of a file that are in one local file.
const STRIPE_BYTES: u64 = 512 << 10;

impl FileId {
    /// Returns the name of a local file with chunks of this file. The numbers begin at 0.
    pub fn data_name(self, number: usize) -> Vec<u8> {
        match number {
            0 => format!("{:x}", self.0).into_bytes(),
            number => format!("{:x}.{number}", self.0).into_bytes(),
        }
    }

    /// Returns the file whose first local file has this name.
    pub fn from_data_name(name: &[u8]) -> Option<FileId> {
        let number = u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()?;
        Some(FileId(number)).filter(|id| id.data_name(0) == name)
    }
}

/// Divides a range of a file into the parts that are in one local file each: the number of the
/// local file, the offset, and the length in bytes.
pub fn data_files(offset: u64, bytes: usize) -> impl Iterator<Item = (usize, u64, usize)> {
    let (mut at, mut rest) = (offset, bytes);
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let length = rest.min((STRIPE_BYTES - at % STRIPE_BYTES) as usize);
        let part = ((at / STRIPE_BYTES % DATA_FILES_MAX as u64) as usize, at, length);
        at += length as u64;
        rest -= length;
        Some(part)
    })
}

/// Returns the length of the range from `offset` on that is to be read in advance when `bytes` are
/// read from one local file. The ranges after it may be holes, which the system would read as zeros
/// into its cache; the local files are therefore read without a read-ahead of the system. A process
/// that reads in sequence reads the begin of each of these ranges.
pub fn read_ahead(offset: u64, bytes: usize) -> Option<NonZeroU64> {
    let is_begin = offset.is_multiple_of(STRIPE_BYTES) && (bytes as u64) < STRIPE_BYTES;
    is_begin.then_some(STRIPE_BYTES).and_then(NonZeroU64::new)
}

/// Reads a range with a function that reads from one local file: it gets the number of the local
/// file, the buffer and the offset, and returns the number of bytes, fewer at the end of the local
/// file. Returns the number of bytes before the end of the last data in the range. Parts without
/// data before it are zeros.
pub fn read_data_files<E>(
    into: &mut [u8],
    offset: u64,
    mut read: impl FnMut(usize, &mut [u8], u64) -> Result<usize, E>,
) -> Result<usize, E> {
    let (mut at, mut end) = (0, 0);
    for (number, offset, bytes) in data_files(offset, into.len()) {
        let part = &mut into[at..at + bytes];
        let found = read(number, part, offset)?;
        part[found..].fill(0);
        end = if found > 0 { at + found } else { end };
        at += bytes;
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_the_name_of_its_data() {
        for id in [FileId(0), FileId(0xa0), FileId(u64::MAX)] {
            assert_eq!(FileId::from_data_name(&id.data_name(0)), Some(id));
            assert_eq!(FileId::from_data_name(&id.data_name(1)), None);
        }
        for name in ["", "-1", "+1", "0A", "01", "g", "10000000000000000"] {
            assert_eq!(FileId::from_data_name(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn a_range_is_divided_at_multiples_of_512_kib() {
        let parts = |offset, bytes| data_files(offset, bytes).collect::<Vec<_>>();
        assert_eq!(parts(7, 0), []);
        assert_eq!(parts(0, 512 << 10), [(0, 0, 512 << 10)]);
        let last = 8 * STRIPE_BYTES - 1;
        assert_eq!(parts(last, 3), [(7, last, 1), (0, last + 1, 2)]);
        assert_eq!(parts(u64::MAX - 5, 5), [(7, u64::MAX - 5, 5)]);
    }

    #[test]
    fn the_rest_of_512_kib_is_read_in_advance_with_its_begin() {
        assert_eq!(read_ahead(0, 8192), NonZeroU64::new(512 << 10));
        assert_eq!(read_ahead(3 * STRIPE_BYTES, 1), NonZeroU64::new(512 << 10));
        assert_eq!(read_ahead(0, 512 << 10), None);
        assert_eq!(read_ahead(8192, 8192), None);
    }

    #[test]
    fn parts_without_data_before_the_last_data_are_zeros() {
        let start = STRIPE_BYTES - 4;
        let read = |found: [usize; 2]| {
            let mut into = [9; 8];
            let end = read_data_files::<()>(&mut into, start, |number, part, _| {
                part[..found[number]].fill(1);
                Ok(found[number])
            });
            (end.unwrap(), into)
        };
        assert_eq!(read([2, 0]), (2, [1, 1, 0, 0, 0, 0, 0, 0]));
        assert_eq!(read([2, 3]), (7, [1, 1, 0, 0, 1, 1, 1, 0]));
        assert_eq!(read([0, 0]).0, 0);
    }
}
