//! A name that a rename has prepared on this member, which keeps it locked.

use crate::inode::PreparedName;
use crate::lock_table::Held;

/// A name that a transaction has prepared on this member.
pub struct Prepared {
    pub record: PreparedName,
    _name: Held,
}

impl Prepared {
    /// Keeps the name locked until this is dropped.
    pub fn new(record: PreparedName, name: Held) -> Prepared {
        Prepared { record, _name: name }
    }
}
