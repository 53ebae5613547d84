//! Offsets of the same byte in different spaces: in the file, in the payload of a log, and in the
//! data log as a file (docs/formats/log.md, Terms). Offsets in the file and in the payload are
//! types of their own, so that they cannot be confused; an offset in a data log or an index log is
//! a plain number with `log_offset` or `index_offset` in its name.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use crate::format::heads::HEAD_BYTES;

/// The offset of a byte in the file. As the end of a range, the offset of the next byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FileOffset(
    /// Number of bytes before it.
    pub u64,
);

/// The offset of a byte in the payload of one log, that is, without headers and checksums. As the
/// end of a range, the offset of the next byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PayloadOffset(pub u64);

macro_rules! impl_arithmetic {
    ($offset:ident) => {
        impl $offset {
            /// The offset of the first byte.
            pub const ZERO: $offset = $offset(0);
            /// The largest number; used as "no limit".
            pub const MAX: $offset = $offset(u64::MAX);

            /// Returns the number of bytes from `earlier` to this offset, or 0 if it is not
            /// earlier.
            pub fn bytes_after(self, earlier: $offset) -> u64 {
                self.0.saturating_sub(earlier.0)
            }
        }

        impl Add<u64> for $offset {
            type Output = $offset;

            fn add(self, bytes: u64) -> $offset {
                $offset(self.0 + bytes)
            }
        }

        impl AddAssign<u64> for $offset {
            fn add_assign(&mut self, bytes: u64) {
                self.0 += bytes;
            }
        }

        impl Sub for $offset {
            type Output = u64;

            fn sub(self, earlier: $offset) -> u64 {
                self.0 - earlier.0
            }
        }

        impl fmt::Display for $offset {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

impl_arithmetic!(FileOffset);
impl_arithmetic!(PayloadOffset);

/// The boundary between two frames of a data log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPosition {
    /// Offset in the data log as a file.
    pub log_offset: u64,
    pub payload: PayloadOffset,
}

impl LogPosition {
    /// The start of the first frame.
    pub const START: LogPosition =
        LogPosition { log_offset: HEAD_BYTES as u64, payload: PayloadOffset::ZERO };
}

/// A range of the payload of one log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PayloadRange {
    pub start: PayloadOffset,
    pub end: PayloadOffset,
}

impl PayloadRange {
    /// The whole payload of a log.
    pub const ALL: PayloadRange = PayloadRange { start: PayloadOffset::ZERO, end: PayloadOffset::MAX };
}
