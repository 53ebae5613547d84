//! The constants of the index format, described in docs/formats/index.md: sizes, section kinds,
//! fields, flags. This module has only constants and the small functions that encoder and reader
//! share.

use quell_vfs::{Kind, Time};

/// The first bytes of an index.
pub const MAGIC: [u8; 8] = *b"QUELLIDX";
/// The version that is written. [`preamble_bytes`] accepts all versions that can be read.
pub const VERSION: u32 = 2;
/// The first version; it has no INODE section.
const VERSION_1: u32 = 1;

/// The size of the header.
pub const HEADER_BYTES: usize = 176;
/// The size of one row of the section table.
pub const SECTION_ROW_BYTES: usize = 40;
/// Size of header and section table in a file of this version.
pub const PREAMBLE_BYTES: usize = HEADER_BYTES + Section::ALL.len() * SECTION_ROW_BYTES;
/// Size of the smallest header and section table of all versions.
pub const PREAMBLE_BYTES_MIN: usize = HEADER_BYTES + Section::IN_VERSION_1 * SECTION_ROW_BYTES;
/// Offset of the header checksum, which covers the rest of the preamble.
pub const HEADER_CHECKSUM_AT: usize = 32;
/// The first byte that the header checksum covers.
pub const HEADER_CHECKED_FROM: usize = 40;

/// The maximum size of an index.
pub const FILE_BYTES_MAX: u64 = 64 << 30;
/// The maximum number of entries.
pub const ENTRIES_MAX: u64 = u32::MAX as u64 - 1;
/// The maximum length of a link target.
pub const TARGET_BYTES_MAX: usize = 4095;
/// The maximum length of one extended attribute.
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;
/// The maximum length of all extended attributes of an entry, with their names.
pub const XATTR_SET_BYTES_MAX: usize = 1 << 20;
/// The maximum of `block_granule`.
pub const BLOCK_GRANULE_MAX: u64 = 1 << 20;

/// The size of a row of DIRS.
pub const DIR_ROW_BYTES: usize = 8;
/// The size of a row of CLASSES.
pub const CLASS_ROW_BYTES: usize = 16;
/// The size of a row of EXTRAS.
pub const EXTRA_ROW_BYTES: usize = 16;

/// A node has extended attributes.
pub const FLAG_XATTRS: u64 = 1 << 0;
/// A node has an access control list.
pub const FLAG_ACLS: u64 = 1 << 1;
/// A node is a character or block device.
pub const FLAG_DEVICES: u64 = 1 << 2;
/// Some attribute is outside `user.` and is not an access control list.
pub const FLAG_PRIVILEGED_XATTRS: u64 = 1 << 3;
/// Extended attributes were not read.
pub const FLAG_XATTRS_SKIPPED: u64 = 1 << 4;
/// All flags that this version knows.
pub const FLAGS_KNOWN: u64 = 0b1_1111;

const _: () = assert!(PREAMBLE_BYTES == 736 && PREAMBLE_BYTES.is_multiple_of(8));
const _: () = assert!(PREAMBLE_BYTES_MIN == 696 && PREAMBLE_BYTES_MIN.is_multiple_of(8));

/// Returns the size of header and section table in a file of `version`, or `None` if the version is
/// unknown.
pub fn preamble_bytes(version: u32) -> Option<usize> {
    match version {
        VERSION_1 => Some(PREAMBLE_BYTES_MIN),
        VERSION => Some(PREAMBLE_BYTES),
        _ => None,
    }
}

/// Returns the sections of a file of `version`, in the order of the file.
pub fn sections(version: u32) -> &'static [Section] {
    if version == VERSION_1 { &Section::ALL[..Section::IN_VERSION_1] } else { &Section::ALL }
}

/// The sections, in the order of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// The path of the root.
    Root = 1,
    /// The first child and the entry of each directory.
    Dirs,
    /// Each different name once.
    Names,
    /// The offset of each entry's name in NAMES.
    Name,
    /// The class of each entry.
    Class,
    /// The size of each entry.
    Size,
    /// The modification time of each entry.
    Modified,
    /// The status change time of each entry.
    Changed,
    /// Combinations of mode and owners.
    Classes,
    /// Fields that few entries have.
    Extras,
    /// The bytes that EXTRAS refers to.
    Blob,
    /// The paths that could not be read.
    Problems,
    /// The options of the build.
    Options,
    /// The inode number of each entry.
    Inode,
}

impl Section {
    /// Number of sections in version 1: the first ones of `ALL`.
    const IN_VERSION_1: usize = 13;

    /// All sections, in the order of the file.
    pub const ALL: [Section; 14] = [
        Section::Root,
        Section::Dirs,
        Section::Names,
        Section::Name,
        Section::Class,
        Section::Size,
        Section::Modified,
        Section::Changed,
        Section::Classes,
        Section::Extras,
        Section::Blob,
        Section::Problems,
        Section::Options,
        Section::Inode,
    ];

    /// Returns the name that docs/formats/index.md and error messages use.
    pub fn title(self) -> &'static str {
        match self {
            Section::Root => "ROOT",
            Section::Dirs => "DIRS",
            Section::Names => "NAMES",
            Section::Name => "NAME",
            Section::Class => "CLASS",
            Section::Size => "SIZE",
            Section::Modified => "MODIFIED",
            Section::Changed => "CHANGED",
            Section::Classes => "CLASSES",
            Section::Extras => "EXTRAS",
            Section::Blob => "BLOB",
            Section::Problems => "PROBLEMS",
            Section::Options => "OPTIONS",
            Section::Inode => "INODE",
        }
    }

    /// Returns whether the section has one value of fixed width for each entry.
    pub fn is_column(self) -> bool {
        matches!(
            self,
            Section::Name
                | Section::Class
                | Section::Size
                | Section::Modified
                | Section::Changed
                | Section::Inode
        )
    }
}

/// The fields of EXTRAS, which most entries do not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Field {
    /// The number of hard links, if it differs from the default.
    Nlink = 1,
    /// The entry that identifies the node of a hard-linked file.
    Node,
    /// The target of a symbolic link.
    Target,
    /// The extended attributes.
    Xattrs,
    /// The device number.
    Rdev,
    /// The block count, if it differs from the default.
    Blocks,
    /// The error number of a directory that could not be listed.
    Unknown,
    /// The seconds of a modification time that the column cannot hold.
    ModifiedSeconds,
    /// The nanoseconds of such a time.
    ModifiedNanoseconds,
    /// The seconds of a status change time that the column cannot hold.
    ChangedSeconds,
    /// The nanoseconds of such a time.
    ChangedNanoseconds,
    /// Another file system is mounted on the directory.
    Boundary,
}

impl Field {
    /// All fields, in the order of their numbers.
    pub const ALL: [Field; 12] = [
        Field::Nlink,
        Field::Node,
        Field::Target,
        Field::Xattrs,
        Field::Rdev,
        Field::Blocks,
        Field::Unknown,
        Field::ModifiedSeconds,
        Field::ModifiedNanoseconds,
        Field::ChangedSeconds,
        Field::ChangedNanoseconds,
        Field::Boundary,
    ];

    /// Converts a number of EXTRAS; `None` for an unknown one.
    pub fn from_number(number: u32) -> Option<Field> {
        Field::ALL.into_iter().find(|f| *f as u32 == number)
    }
}

/// Returns the default number of 512-byte blocks for a size. EXTRAS has only other numbers.
pub fn expected_blocks(kind: Kind, size_bytes: u64, granule_bytes: u64) -> u64 {
    match kind {
        Kind::File | Kind::Dir if granule_bytes > 0 => {
            size_bytes.div_ceil(granule_bytes).saturating_mul(granule_bytes / 512)
        }
        _ => 0,
    }
}

/// Returns nanoseconds since 1970 and `true` if they fit the column (1678 to 2261); otherwise the
/// nearest value that fits, and `false`.
pub fn time_to_column(time: Time) -> (i64, bool) {
    let exact = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    match i64::try_from(exact) {
        Ok(ns) => (ns, true),
        Err(_) => (if exact < 0 { i64::MIN } else { i64::MAX }, false),
    }
}

/// Converts nanoseconds since 1970.
pub fn time_from_column(ns: i64) -> Time {
    Time { seconds: ns.div_euclid(1_000_000_000), nanoseconds: ns.rem_euclid(1_000_000_000) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_nanoseconds_on_both_sides_of_1970() {
        for time in [
            Time { seconds: 0, nanoseconds: 0 },
            Time { seconds: -1, nanoseconds: 999_999_999 },
            Time { seconds: 1_700_000_000, nanoseconds: 123_456_789 },
        ] {
            let (ns, fits) = time_to_column(time);
            assert!(fits);
            assert_eq!(time_from_column(ns), time);
        }
        assert!(!time_to_column(Time { seconds: i64::MAX, nanoseconds: 0 }).1);
    }

    #[test]
    fn blocks_follow_the_size_for_files_and_are_none_for_links() {
        assert_eq!(expected_blocks(Kind::File, 1, 4096), 8);
        assert_eq!(expected_blocks(Kind::File, 0, 4096), 0);
        assert_eq!(expected_blocks(Kind::File, 4097, 512), 9);
        assert_eq!(expected_blocks(Kind::Symlink, 10, 4096), 0);
        assert_eq!(expected_blocks(Kind::Dir, 4096, 0), 0);
    }
}
