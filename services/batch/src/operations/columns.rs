//! The columns of a block of operations. Equal fields of successive operations are adjacent, so
//! that compression finds repeated bytes.

use quell_vfs::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::entry::damaged;

/// The number of columns.
const COUNT: usize = 9;

/// The columns of a block: vectors while it is written, slices while it is read.
#[derive(Debug, Default)]
pub(super) struct Columns<B> {
    /// A byte for each operation.
    pub(super) operations: B,
    /// The numbers of directories.
    pub(super) directories: B,
    /// For each name, the number of bytes that it shares with the name before, and of its other
    /// bytes.
    pub(super) lengths: B,
    /// The other bytes of the names.
    pub(super) names: B,
    /// Inode numbers.
    pub(super) inodes: B,
    /// Modes, owners, groups and numbers of names.
    pub(super) attributes: B,
    /// The seconds of times.
    pub(super) seconds: B,
    /// The nanoseconds of times.
    pub(super) nanoseconds: B,
    /// Sizes, contents and extended attributes.
    pub(super) contents: B,
}

impl<B> Columns<B> {
    fn as_mut_array(&mut self) -> [&mut B; COUNT] {
        let Columns {
            operations,
            directories,
            lengths,
            names,
            inodes,
            attributes,
            seconds,
            nanoseconds,
            contents,
        } = self;
        [operations, directories, lengths, names, inodes, attributes, seconds, nanoseconds, contents]
    }

    fn from_array(columns: [B; COUNT]) -> Columns<B> {
        let [operations, directories, lengths, names, inodes, attributes, seconds, nanoseconds, contents] =
            columns;
        Columns {
            operations,
            directories,
            lengths,
            names,
            inodes,
            attributes,
            seconds,
            nanoseconds,
            contents,
        }
    }
}

impl Columns<Vec<u8>> {
    /// Appends the lengths of the columns, and then the columns, to `into`. Afterwards the columns
    /// are empty, and keep their memory.
    pub(super) fn finish(&mut self, into: &mut Vec<u8>) {
        let columns = self.as_mut_array();
        for column in &columns {
            put(into, &(column.len() as u64));
        }
        for column in columns {
            into.append(column);
        }
    }
}

impl<'a> Columns<&'a [u8]> {
    /// Divides a block into its columns.
    ///
    /// # Errors
    /// `Damaged` if the lengths do not add up to the length of the block.
    pub(super) fn decode(mut block: &'a [u8]) -> Result<Columns<&'a [u8]>> {
        let mut lengths = [0_u64; COUNT];
        for length in &mut lengths {
            *length = take(&mut block)?;
        }
        let mut columns = [&[][..]; COUNT];
        for (column, length) in columns.iter_mut().zip(lengths) {
            let length = usize::try_from(length).map_err(|_| broken())?;
            (*column, block) = block.split_at_checked(length).ok_or_else(broken)?;
        }
        match block {
            [] => Ok(Columns::from_array(columns)),
            _ => Err(broken()),
        }
    }

    /// Returns whether all columns were read to their ends.
    pub(super) fn are_empty(&mut self) -> bool {
        self.as_mut_array().iter().all(|column| column.is_empty())
    }
}

/// Appends a value in the encoding of postcard to a column.
pub(super) fn put(column: &mut Vec<u8>, value: &impl Serialize) {
    // The longest encoding of the numbers of a column has 10 bytes.
    let mut bytes = [0; 10];
    match postcard::to_slice(value, &mut bytes) {
        Ok(encoded) => column.extend_from_slice(encoded),
        Err(_) => column.extend(postcard::to_stdvec(value).expect("postcard refuses no value of a column")),
    }
}

/// Removes the first value of a column.
///
/// # Errors
/// `Damaged` if the column does not begin with such a value.
pub(super) fn take<T: DeserializeOwned>(column: &mut &[u8]) -> Result<T> {
    let (value, rest) = postcard::take_from_bytes(column).map_err(|_| broken())?;
    *column = rest;
    Ok(value)
}

/// Removes the first bytes of a column.
///
/// # Errors
/// `Damaged` if the column is shorter.
pub(super) fn take_bytes<'a>(column: &mut &'a [u8], length: usize) -> Result<&'a [u8]> {
    let (bytes, rest) = column.split_at_checked(length).ok_or_else(broken)?;
    *column = rest;
    Ok(bytes)
}

/// Returns the error for a block that does not have its format.
pub(super) fn broken() -> quell_vfs::Error {
    damaged("the operation log of a batch")
}
