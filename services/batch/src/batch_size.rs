//! The largest size of the changes that one commit can have.

use quell_vfs::{Error, ErrorKind, Result};

/// A file of changes is ended when it has this many bytes.
pub(crate) const FILE_BYTES: u64 = 64 << 20;
/// The largest number of tables of a batch, or of a part of one.
pub(crate) const TABLES_MAX: usize = 4096;
/// The largest total length of the footers of these tables, in bytes. Content that is kept inline
/// in its entry and longer than about 4 KiB has some 36 bytes in a footer, so a batch can have at
/// least 7 million such files.
pub(crate) const FOOTERS_BYTES_MAX: u64 = 512 << 20;

/// Checks that changes can be submitted which tables of these lengths have, so that a batch that is
/// too large for a commit is refused at the change that makes it too large.
///
/// # Errors
/// `NoSpace`.
pub(crate) fn check_submittable(table_bytes: u64, footer_bytes: u64) -> Result<()> {
    // The tables that are submitted can be larger: they also have the changes in memory, and where
    // small and large entries take turns, their footers can be twice as long.
    const BYTES_MAX: u64 = TABLES_MAX as u64 * FILE_BYTES / 8 * 7;
    const FOOTERS_MAX: u64 = FOOTERS_BYTES_MAX / 2;
    if table_bytes <= BYTES_MAX && footer_bytes <= FOOTERS_MAX {
        return Ok(());
    }
    let reason = "the changes of the batch have the size that one commit can have; commit it, and make the \
                  other changes in a new batch";
    Err(Error { source: Some(reason.into()), ..Error::new(ErrorKind::NoSpace, "change a batch", "") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_no_commit_accepts_are_refused() {
        check_submittable(0, 0).unwrap();
        check_submittable(200 << 30, 200 << 20).unwrap();
        for (table_bytes, footer_bytes) in [(256 << 30, 0), (0, 500 << 20)] {
            let refused = check_submittable(table_bytes, footer_bytes).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::NoSpace);
        }
    }
}
