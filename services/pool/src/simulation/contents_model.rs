//! The sequential specification of one byte of a file. A truncation before the byte and a hole
//! make it 0. The bytes of a file are checked independently, because only single bytes are read
//! and written at once.

use quell_testkit::linearizability::Model;

/// An operation on one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteOperation {
    Read,
    Write(u8),
}

/// The result of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteResult {
    Found(u8),
    Written,
}

/// The value of the byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Byte(u8);

impl Model for Byte {
    type Operation = ByteOperation;
    type Result = ByteResult;

    fn perform_unknown(&mut self, operation: &ByteOperation, _: u64) -> bool {
        match *operation {
            ByteOperation::Write(value) if self.0 != value => {
                self.0 = value;
                true
            }
            _ => false,
        }
    }

    fn perform(&mut self, operation: &ByteOperation, result: &ByteResult) -> bool {
        match (*operation, *result) {
            (ByteOperation::Read, ByteResult::Found(value)) => self.0 == value,
            (ByteOperation::Write(value), ByteResult::Written) => {
                self.0 = value;
                true
            }
            _ => false,
        }
    }
}
